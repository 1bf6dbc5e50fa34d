"""The exercises of lesson 6: compute, saving, interval; each usual mistake has its diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import scaling
from kit.scaling import check_compute, check_interval, check_saving
from lesson_answers import assert_told, wrong_answers
from scipy import stats

from layerrope import compute_saving, fit_scaling
from layerrope.comparing.intervals import t_interval

COMPUTES = {
    "returns nothing": lambda L, e, a, p: None,
    "floor is still": lambda L, e, a, p: (a / L) ** (1 / p),
    "raise to one over the exponent.": lambda L, e, a, p: (a / (L - e)) ** p,
    "with the sign": lambda L, e, a, p: ((L - e) / a) ** p,
    "closer to the floor": lambda L, e, a, p: ((L - e) / a) ** (1 / p),
    "not used": lambda L, e, a, p: a / (L - e),
    "logarithm of the compute": lambda L, e, a, p: np.log(a / (L - e)) / p,
    "give the loss back": lambda L, e, a, p: 1e18,
}


def loss(law: Any, floor: float, c: float) -> float:
    return floor + law[0] * c ** -law[1]


def right(old: Any, new: Any, floor: float, c: float) -> float:
    return c / (new[0] / (loss(old, floor, c) - floor)) ** (1 / new[1])


SAVINGS = {
    "returns nothing": lambda o, n, e, c: None,
    "needs twice": lambda o, n, e, c: 1 / right(o, n, e, c),
    "ratio of the losses": lambda o, n, e, c: loss(o, e, c) / loss(n, e, c),
    "ratio of the heights": lambda o, n, e, c: o[0] / n[0],
    "gap in nats": lambda o, n, e, c: loss(o, e, c) - loss(n, e, c),
    "extrapolation of the old": lambda o, n, e, c: (o[0] / (loss(n, e, c) - e)) ** (1 / o[1]) / c,
    "not by its ratio": lambda o, n, e, c: c * right(o, n, e, c),
    "new scheme's compute. The": lambda o, n, e, c: c / right(o, n, e, c),
    "and divide": lambda o, n, e, c: 2.0,
}


def around(mean: float, half: float) -> tuple[float, float]:
    return mean - half, mean + half


def spread(a: Any, b: Any, t: float = stats.t.ppf(0.975, 3), ddof: int = 1, root: float = 2.0) -> Any:
    return around((a - b).mean(), t * (a - b).std(ddof=ddof) / root)


def apart(a: Any, b: Any, t: float) -> Any:
    return around((a - b).mean(), t * np.sqrt(a.var(ddof=1) / 4 + b.var(ddof=1) / 4))


INTERVALS = {
    "returns nothing": lambda a, b: None,
    "Two numbers": lambda a, b: (a - b).mean(),
    "The sign": lambda a, b: spread(b, a),
    "three degrees": lambda a, b: spread(a, b, t=1.96),
    "here: use ddof=1": lambda a, b: spread(a, b, ddof=0),
    "many seeds, and": lambda a, b: spread(a, b, t=1.96, ddof=0),
    "spread of single seeds": lambda a, b: spread(a, b, root=1),
    "90% interval": lambda a, b: spread(a, b, t=stats.t.ppf(0.95, 3)),
    "n - 1 degrees": lambda a, b: spread(a, b, t=stats.t.ppf(0.975, 4)),
    "count as noise": lambda a, b: apart(a, b, stats.t.ppf(0.975, 6)),
    "then Student's t": lambda a, b: apart(a, b, 1.96),
    "Differences first": lambda a, b: (0, 1),
}


@wrong_answers((check_compute, COMPUTES), (check_saving, SAVINGS), (check_interval, INTERVALS))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [
        (check_compute, scaling.solve_compute),
        (check_saving, scaling.solve_saving),
        (check_interval, scaling.solve_interval),
    ],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_the_solutions_are_what_the_package_computes() -> None:
    values = [0.1, 0.4, -0.2, 0.3, 0.25]
    found = t_interval(values)
    assert scaling.solve_interval(np.array(values), np.zeros(5)) == pytest.approx((found.low, found.high))
    truth = scaling.Truth(1.8, 2.0, 0.2)
    assert truth.loss(truth.compute_at(2.5)) == pytest.approx(2.5)
    assert scaling.solve_compute(2.5, 1.8, 2.0, 0.2) == pytest.approx(truth.compute_at(2.5) / 1e18)
    better = scaling.Truth(1.8, 1.9, 0.21)
    points = scaling.ladder({"new": better, "old": truth}, [1e18, 1e19, 1e20, 1e21], 1, 0.0, seed=0)
    saving = compute_saving(fit_scaling(points, e=1.8), "new", "old", resamples=None).ratio
    ours = scaling.solve_saving(np.array([2.0, 0.2]), np.array([1.9, 0.21]), 1.8, 1e3)
    assert ours == pytest.approx(saving, rel=1e-4)


def test_more_rates_tried_look_like_a_gain() -> None:
    rows = scaling.apparent_gain((1, 4, 16), 0.01, 20_000)
    gains = [float(row["apparent gain, nats"]) for row in rows]
    assert gains[0] == pytest.approx(0, abs=3e-4)
    assert gains[1] == pytest.approx(0.0103, abs=3e-4)  # the mean of the largest of four normal draws is 1.029
    assert gains[2] == pytest.approx(0.01766, abs=3e-4)
