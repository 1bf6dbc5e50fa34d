"""Lesson 6: ladders of models whose law is known, the checks of its exercises and their solutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kit.show import Verdict, answer_of, right, wrong
from layerrope.scaling.law import Point

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """L(C) = floor + height (C / 1e18)^-exponent, in nats."""

    floor: float
    height: float
    exponent: float

    def loss(self, compute: float) -> float:
        return self.floor + self.height * (compute / 1e18) ** -self.exponent

    def compute_at(self, loss: float) -> float:
        return 1e18 * (self.height / (loss - self.floor)) ** (1 / self.exponent)


def ladder(truths: Mapping[str, Truth], computes: Sequence[float], n_seed: int, noise: float, seed: int) -> list[Point]:
    """A trained model for each scheme, compute and seed; `noise` is the standard deviation over seeds, in nats."""
    rng = np.random.default_rng(seed)
    return [
        Point(name, truth.loss(c) + noise * float(rng.standard_normal()), compute=c, seed=str(s))
        for name, truth in truths.items()
        for c in computes
        for s in range(n_seed)
    ]


def apparent_gain(n_rates: Sequence[int], noise: float, draws: int, seed: int = 0) -> list[dict[str, float | int]]:
    """Two equal schemes: one swept over n rates that are truly equal, the other run once. The mean apparent gain."""
    rng = np.random.default_rng(seed)
    return [
        {"rates tried": n, "apparent gain, nats": float(-(noise * rng.standard_normal((draws, n))).min(1).mean())}
        for n in n_rates
    ]


# --------------------------------------------------------------------------------------------------- exercise 1
def solve_compute(loss: float, floor: float, height: float, exponent: float) -> float:
    return (height / (loss - floor)) ** (1 / exponent)


def check_compute(f: Callable[[float, float, float, float], float]) -> Verdict:
    """The compute at which floor + height C^-exponent reaches a loss, f(loss, floor, height, exponent)."""
    loss, floor, height, exponent = 2.4, 1.8, 3.0, 0.2
    found = answer_of(f, loss, floor, height, exponent, shape=())
    if isinstance(found, Verdict):
        return found
    above = loss - floor
    for value, says in (
        ((height / loss) ** (1 / exponent), "The floor is still in the loss: no compute takes the loss below it."),
        ((height / above) ** exponent, "Raised to the exponent; to undo it, raise to one over the exponent."),
        ((height / above) ** (-1 / exponent), "Upside down: a loss closer to the floor takes more compute."),
        (
            (above / height) ** exponent,
            "Raised to the exponent; to undo it, raise to one over the exponent, with the sign.",
        ),
        (height / above, "The exponent is not used."),
        (math.log(height / above) / exponent, "That is the logarithm of the compute."),
    ):
        if np.isclose(found, value):
            return wrong(says)
    if found.shape != () or not np.isclose(found, solve_compute(loss, floor, height, exponent)):
        return wrong("Put your compute into the law: it should give the loss back.")
    return right("One over the exponent is five to seven here: small changes of a loss are large changes of a compute.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_saving(old: Array, new: Array, floor: float, compute: float) -> float:
    height, exponent = new
    target = floor + old[0] * compute ** -old[1]
    return compute / (height / (target - floor)) ** (1 / exponent)


def check_saving(f: Callable[[Array, Array, float, float], float]) -> Verdict:
    """The saving of `new` over `old` at a compute, f(old, new, floor, compute); each is (height, exponent)."""
    old, new, floor, compute = np.array([3.0, 0.2]), np.array([2.8, 0.21]), 1.8, 3000.0
    found = answer_of(f, old, new, floor, compute, shape=())
    if isinstance(found, Verdict):
        return found

    def loss(law: Array, c: float) -> float:
        return floor + float(law[0] * c ** -law[1])

    truth = solve_saving(old, new, floor, compute)
    backwards = (old[0] / (loss(new, compute) - floor)) ** (1 / old[1]) / compute
    for value, says in (
        (1 / truth, "Upside down: a saving of 2 means that the old scheme needs twice the compute."),
        (loss(old, compute) / loss(new, compute), "The ratio of the losses. A saving is a ratio of computes at one loss."),
        (old[0] / new[0], "The ratio of the heights, without the exponent that turns losses into computes."),
        (loss(old, compute) - loss(new, compute), "The gap in nats. Ask what compute the new scheme needs for the old one's loss."),
        (backwards, "That asks what the old scheme would need for the new one's loss: an extrapolation of the old curve. "
         "Measured at the old scheme's own point, the old compute is known."),
        (truth * compute, "Divide by the new scheme's compute, not by its ratio to the old."),
        (compute / truth, "That is the new scheme's compute. The saving is the old compute over it."),
    ):  # fmt: skip
        if np.isclose(found, value):
            return wrong(says)
    if found.shape != () or not np.isclose(found, truth):
        return wrong("Take the old scheme's loss at `compute`, find where the new curve reaches it, and divide.")
    return right("The target is the old scheme's, so its compute is measured and only the new curve is read off.")


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_interval(a: Array, b: Array) -> tuple[float, float]:
    difference = a - b
    n = len(difference)
    half = stats.t.ppf(0.975, n - 1) * difference.std(ddof=1) / np.sqrt(n)
    return float(difference.mean() - half), float(difference.mean() + half)


def check_interval(f: Callable[[Array, Array], tuple[float, float]]) -> Verdict:
    """A paired 95% interval for the mean of a - b over seeds, f(a, b) -> (low, high)."""
    rng = np.random.default_rng(3)
    shared = rng.normal(0, 0.05, 4)  # what a seed does to both schemes alike
    a, b = 2.30 + shared + rng.normal(0, 0.01, 4), 2.33 + shared + rng.normal(0, 0.01, 4)
    found = answer_of(f, a, b)
    if isinstance(found, Verdict):
        return found
    if found.shape != (2,):
        return wrong("Two numbers: the lower and the upper end.")
    d, n = a - b, 4
    mean, sd = d.mean(), d.std(ddof=1)
    t, z = stats.t.ppf(0.975, n - 1), 1.96
    apart = np.sqrt(a.var(ddof=1) / n + b.var(ddof=1) / n)
    for centre, half, says in (
        (-mean, t * sd / 2, "The sign: a - b was asked for."),
        (mean, z * sd / 2, "1.96 is for many seeds. With four, Student's t with three degrees of freedom is 3.18."),
        (mean, t * d.std() / 2, "The standard deviation divides by n - 1 here: use ddof=1."),
        (mean, z * d.std() / 2, "1.96 is for many seeds, and the standard deviation divides by n - 1 (ddof=1)."),
        (mean, t * sd, "That is the spread of single seeds. The mean of n spreads by sqrt(n) less."),
        (mean, stats.t.ppf(0.95, n - 1) * sd / 2, "That is a 90% interval: 2.5% on each side makes 95%."),
        (mean, stats.t.ppf(0.975, n) * sd / 2, "n values have n - 1 degrees of freedom."),
        (mean, stats.t.ppf(0.975, 2 * n - 2) * apart, "The pairs are lost: seeds that make both schemes worse count as noise. "
         "Take the differences first."),
        (mean, z * apart, "The pairs are lost: take the differences seed by seed, then Student's t."),
    ):  # fmt: skip
        if np.allclose(found, (centre - half, centre + half), rtol=1e-3):
            return wrong(says)
    if not np.allclose(found, solve_interval(a, b)):
        return wrong("Differences first, then their mean plus and minus t times their standard deviation over sqrt(n).")
    return right("Here it excludes zero. Without the pairing it would not: the seeds differ more than the schemes.")
