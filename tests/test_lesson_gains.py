"""The exercises of lesson 4: the table, the slope and the fold; each usual mistake has its diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit import gains
from kit.gains import check_fold, check_slope, check_table
from lesson_answers import assert_told, wrong_answers

import layerrope


def table(
    r: Any = lambda a, b, n: a + b * np.log(n),
    t: Any = lambda a, b, n: np.exp(a + b * np.log(n)),
    w: Any = lambda base, d: base ** (-np.arange(0, d, 2) / d),
    first: int = 1,
    halves: bool = False,
    size: Any = np.exp,
) -> Any:
    """Eq. 1 with one part exchanged."""

    def built(gamma: Any, L: int, alpha: float, beta: float, alpha_rot: float, beta_rot: float, base: float) -> Any:
        n, d = np.arange(first, L + first)[:, None], len(gamma)
        u, v = np.split(gamma, 2) if halves else (gamma[0::2], gamma[1::2])
        z = size(r(alpha, beta, n)) * (u + 1j * v) * np.exp(1j * t(alpha_rot, beta_rot, n) * w(base, d))
        if halves:
            return np.concatenate((z.real, z.imag), 1)
        return np.stack((z.real, z.imag), -1).reshape(L, d)

    return built


def power(log: Any) -> dict[str, Any]:
    return {"r": lambda a, b, n: a + b * log(n), "t": lambda a, b, n: np.exp(a + b * log(n))}


TABLES = {
    "returns nothing": lambda *a: None,
    "stopped with TypeError": lambda gamma: gamma,
    "Transposed": lambda *a: table()(*a).T,
    "has shape (12,)": lambda *a: table()(*a)[0],
    "log(0)": table(first=0),
    "nothing turns yet": table(t=lambda a, b, n: 0.0 * n),
    "size does not change": table(r=lambda a, b, n: 0.0 * n),
    "wrong way": table(t=lambda a, b, n: -np.exp(a + b * np.log(n))),
    "exponential of alpha_rot": table(t=lambda a, b, n: a + b * np.log(n)),
    "not by r": table(size=lambda r: np.maximum(r, 1e-300)),
    "geometric schedule": table(**power(lambda n: n - 1)),
    "too deep": table(first=2),
    "log10": table(**power(np.log10)),
    "too slowly": table(w=lambda base, d: base ** (-np.arange(d // 2) / d)),
    "spectrum over pairs is missing": table(w=lambda base, d: np.ones(d // 2)),
    "other pairs": table(halves=True),
    "Layer 0 is off": table(w=lambda base, d: (2 * base) ** (-np.arange(0, d, 2) / d)),
    "two slopes": table(r=lambda a, b, n: a - b * np.log(n)),
}


def fit(x: Any, y: Any) -> float:
    return float(np.polyfit(x, y, 1)[0])


def norms(rows: Any) -> Any:
    return np.linalg.norm(rows, axis=1)


def depth(rows: Any) -> Any:
    return np.log(np.arange(1, len(rows) + 1))


SLOPES = {
    "returns nothing": lambda rows: None,
    "one number": lambda rows: norms(rows),
    "slope against l.": lambda rows: fit(np.arange(len(rows)), np.log(norms(rows))),
    "logarithms of both": lambda rows: fit(np.arange(len(rows)), norms(rows)),
    "its logarithm is": lambda rows: fit(depth(rows), norms(rows)),
    "Twice too large": lambda rows: fit(depth(rows), np.log(norms(rows) ** 2)),
    "axes are exchanged": lambda rows: fit(np.log(norms(rows)), depth(rows)),
    "one channel": lambda rows: fit(depth(rows), np.log(np.abs(rows[:, 0]))),
    "mean over channels": lambda rows: fit(depth(rows), np.log(np.abs(rows.mean(1)))),
    "Not a number": lambda rows: float("nan"),
    "another slope": lambda rows: 0.5,
}


def folded_in_place(weight: Any, gain: Any) -> Any:
    weight *= gain[:, None]
    return weight


FOLDS = {
    "returns nothing": lambda w, g: None,
    "in place": folded_in_place,
    "weight's shape": lambda w, g: g,
    "Columns were scaled": lambda w, g: w * g,
    "Nothing was folded": lambda w, g: w,
    "Divided": lambda w, g: w / g[:, None],
    "adding": lambda w, g: w + g[:, None],
    "another output": lambda w, g: np.sqrt(g)[:, None] * w,
}


@wrong_answers((check_table, TABLES), (check_slope, SLOPES), (check_fold, FOLDS))
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value", "ignore:overflow")
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [(check_table, gains.solve_table), (check_slope, gains.solve_slope), (check_fold, gains.solve_fold)],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_the_solution_is_the_package_s_table() -> None:
    gamma = np.random.default_rng(4).normal(size=10)
    ours = gains.solve_table(gamma, 6, 0.2, -0.3, 0.1, -0.8, 70.0)
    theirs = layerrope.gain_table(torch.from_numpy(gamma), 6, 0.2, -0.3, 0.1, -0.8, 70.0)
    assert np.allclose(ours, theirs.numpy())


def test_slopes_and_sizes_are_those_of_the_model() -> None:
    model = layerrope.LM(layerrope.ModelConfig(n_layer=3, d_model=16, d_ff=16, scheme="layerrope:beta=0.25/-0.5"))
    learned = gains.slopes(model)
    assert [row["site"] for row in learned] == list(gains.SITES)
    assert [row["slope of the size"] for row in learned] == [0.25, -0.5, 0.25, -0.5]
    drawn = {(row["layer"], row["site"]): row["gain"] for row in gains.sizes(model)}
    assert len(drawn) == 12
    assert drawn[2, "MLP read"] == pytest.approx(3**0.25)
    assert drawn[2, "attention write"] == pytest.approx(3**-0.5)
