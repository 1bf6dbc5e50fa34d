"""The exercises of lesson 3: the update, the toy stream, the lift; each usual mistake has its diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import depth
from kit.depth import check_lift, check_prenorm, check_update
from lesson_answers import assert_told, wrong_answers

from layerrope.toy_stream import power, relative_update


def in_place(h: Any, f: Any, norm: Any) -> Any:
    h += f(norm(h))
    return h


STEPS = {
    "returns nothing": lambda h, f, n: None,
    "stopped with": lambda h, f, n: h + f,
    "in place": in_place,
    "Post-Norm": lambda h, f, n: n(h + f(h)),
    "Keel": lambda h, f, n: n(h + f(n(h))),
    "No norm at all": lambda h, f, n: h + f(h),
    "stream is lost": lambda h, f, n: f(n(h)),
    "normed stream is carried on": lambda h, f, n: n(h) + f(n(h)),
    "on what f writes": lambda h, f, n: h + n(f(h)),
    "Peri-Norm": lambda h, f, n: h + n(f(n(h))),
    "differs from the update": lambda h, f, n: h - f(n(h)),
}


def before(w: Any) -> Any:
    return np.cumsum(w**2) - w**2


UPDATES = {
    "returns nothing": lambda w: None,
    "One number for each": lambda w: (w / np.sqrt(before(w)))[1:],
    "own write yet": lambda w: w / np.sqrt(np.cumsum(w**2)),
    "their squares do: sqrt": lambda w: w / (np.cumsum(w) - w),
    "is not in yet": lambda w: w / np.cumsum(w),
    "its square root": lambda w: w / before(w),
    "share of the variance": lambda w: w**2 / before(w),
    "Upside down": lambda w: np.sqrt(before(w)) / w,
    "Three writes": lambda w: w,
    "empty stream": lambda w: np.where(np.arange(len(w)) == 0, 1.0, w / np.sqrt(before(w))),
}

LIFTS = {
    "returns nothing": lambda k: None,
    "One number": lambda k: [k, k],
    "ratio of the squares": lambda k: 2 * k + 1,
    "so 2k": lambda k: (k + 1) ** 0.5,
    "Upside down": lambda k: (2 * k + 1) ** -0.5,
    "The 1 is lost": lambda k: (2 * k) ** 0.5,
    "stream grows": lambda k: k + 0.5,
    "slope 0 alone": lambda k: 1,
    "an integral": lambda k: k,
}


@wrong_answers((check_prenorm, STEPS), (check_update, UPDATES), (check_lift, LIFTS))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [(check_prenorm, depth.solve_prenorm), (check_update, depth.solve_update), (check_lift, depth.solve_lift)],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_the_solutions_are_what_the_package_computes() -> None:
    writes = power(200, 0.4)
    assert np.allclose(depth.solve_update(writes), relative_update(writes))
    ratio = relative_update(power(20_000, 0.4))[-1] / relative_update(power(20_000, 0))[-1]
    assert depth.solve_lift(0.4) == pytest.approx(ratio, rel=1e-3)


def test_rows_carry_what_the_probes_found() -> None:
    found = {"probes": {"stream": {"rms": [1.0, 2.0, 3.0]}, "update": {"ratio": [0.5, 0.25]}}}
    rows = depth.by_sublayer(found, "prenorm")
    assert [(row["sublayer"], row["stream"], row["update"]) for row in rows] == [(1, 2.0, 0.5), (2, 3.0, 0.25)]
