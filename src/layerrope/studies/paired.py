"""Paired tests of many variants against one, with the number of tests taken into account."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layerrope.comparing.compare import Row, Table, paired
from layerrope.comparing.intervals import Interval


@dataclass(frozen=True)
class Test:
    """Loss of `scheme` minus that of `against`, seed by seed, each at its own best rate."""

    __test__ = False  # a name that pytest would take for a test

    scheme: str
    against: str
    difference: Interval
    """nats, with a 95% interval"""
    p: float | None
    """of Student's paired t test, two-sided; None with one seed"""
    p_holm: float | None = None
    """the same, for as many tests as there are"""

    @property
    def words(self) -> str:
        """better, worse, or not told apart."""
        if self.p_holm is None:
            return "one seed: not tested"
        if self.p_holm >= 0.05:
            return "not told apart"
        return "better" if self.difference.mean < 0 else "worse"


def t_test(difference: Interval) -> float | None:
    """The two-sided p of a mean difference of zero   (Student 1908)."""
    if difference.n < 2 or difference.sd is None:
        return None
    if difference.sd == 0:
        return 0.0 if difference.mean else 1.0
    from scipy.stats import t

    return float(2 * t.sf(abs(difference.mean) / (difference.sd / math.sqrt(difference.n)), difference.n - 1))


def holm(values: Sequence[float]) -> list[float]:
    """p values for as many tests as there are, in their order   (Holm 1979)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    made, floor = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(values) - rank) * values[i]))
        made[i] = floor
    return made


def paired_tests(table: Table, against: str) -> list[Test]:
    """Every scheme of a table against one of them, in the table's order; those without a common seed are left out."""
    reference = next((row for row in table.rows if row.scheme == against), None)
    if reference is None:
        return []
    found = [test for row in table.rows if row.scheme != against and (test := _test(row, reference)) is not None]
    known = [test for test in found if test.p is not None]
    adjusted = dict(zip((t.scheme for t in known), holm([t.p for t in known if t.p is not None]), strict=True))
    return [replace(test, p_holm=adjusted.get(test.scheme)) for test in found]


def _test(row: Row, reference: Row) -> Test | None:
    difference = paired(row.trials, reference.trials)
    return None if difference is None else Test(row.scheme, reference.scheme, difference, t_test(difference))
