"""Intervals for a handful of paired measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A mean with a Student t interval; `low` and `high` are None where n = 1 gives none."""

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None
    """standard deviation of the single values (n - 1 in the denominator)"""

    @property
    def decided(self) -> bool:
        """The interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """mean +- t_(n-1) sd / sqrt(n)   (Student 1908)

    Args:
        values: independent measurements, at least one; for a paired comparison their differences pair by pair.
        level: of confidence, between 0 and 1.

    Raises:
        ValueError: no value.

    >>> found = t_interval([1.0, 2.0, 3.0])
    >>> round(found.low, 3), round(found.high, 3)
    (-0.484, 4.484)
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1, None)
    from scipy.stats import t

    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(t.ppf(0.5 + level / 2, n - 1)) * sd / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, sd)


def by_luck(tests: int) -> str:
    """A sentence on many intervals at once: the chance that one or more of them leaves out a true zero.

    At most 5% for each, whether they depend on each other or not   (Boole's inequality). Differences to one reference
    share its runs, so 1 - 0.95^n, which is for independent tests, would not hold.
    """
    chance = min(1.0, 0.05 * tests)
    return f"{tests} intervals at 95%: luck alone takes one or more off zero in up to {chance:.0%} of tries."
