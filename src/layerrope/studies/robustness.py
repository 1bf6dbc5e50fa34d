"""How much a scheme minds its learning rate: the width of the good region, and the sensitivity.

The width is the factor between the highest and the lowest rate at which the loss is within `NEAR` nats of the scheme's
own best, by straight lines between neighbouring rates in log rate. Towards a rate that diverged the region ends at the
last rate that did not, and towards the edge of the grid it is only known to reach the edge. A region of one rate is
narrower than the grid can see: the lines make of a parabola's top a roof, which is narrower still.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerrope.comparing.compare import Trial

NEAR = 0.05
"""Nats above the scheme's best loss that still count as good."""


@dataclass(frozen=True)
class Region:
    """The good rates of one scheme on one seed."""

    best_lr: float
    low: float
    high: float
    open_low: bool
    """the lowest rate tried is still good: the region may be wider"""
    open_high: bool
    tried: tuple[float, float]
    """lowest and highest rate tried in it"""
    outside: tuple[float | None, float | None]
    """nearest rates tried below and above that are not in it"""

    @property
    def width(self) -> float:
        """high / low, a factor."""
        return self.high / self.low

    @property
    def least(self) -> float:
        """The width that the rates tried show by themselves, without lines between them."""
        return self.tried[1] / self.tried[0]

    @property
    def most(self) -> float | None:
        """The width that the rates tried leave room for; None: no end was found."""
        low, high = self.outside
        return None if low is None or high is None else high / low


def good_region(losses: Mapping[float, float | None], near: float = NEAR) -> Region | None:
    """The region of one scheme, from the loss at every rate (None: it diverged); None where every run was lost.

    >>> found = good_region({1.0: 2.1, 2.0: 2.0, 4.0: 2.1})
    >>> round(found.width, 3)  # half an octave on each side
    2.0
    """
    ended = {lr: loss for lr, loss in losses.items() if loss is not None}
    if not ended:
        return None
    best = min(ended, key=lambda lr: ended[lr])
    limit = ended[best] + near
    rates = sorted(losses)
    at = rates.index(best)
    low, lowest, below = _edge(rates[at::-1], losses, limit)
    high, highest, above = _edge(rates[at:], losses, limit)
    tried, outside = (lowest, highest), (below, above)
    return Region(best, low, high, below is None, above is None, tried, outside)


def _edge(
    rates: Sequence[float], losses: Mapping[float, float | None], limit: float
) -> tuple[float, float, float | None]:
    """Walk along `rates` from the best one: where the loss crosses `limit`, the last rate before and the first after.

    The first after is None where the loss never crosses.
    """
    last = rates[0]
    for rate in rates[1:]:
        here, there = losses[last], losses[rate]
        assert here is not None
        if there is None:
            return last, last, rate
        if there > limit:
            share = (limit - here) / (there - here)
            return math.exp(math.log(last) + share * math.log(rate / last)), last, rate
        last = rate
    return last, last, None


def sensitivity(losses: Mapping[float, float | None], start: float) -> float | None:
    """Mean over the rates of min(loss, start) minus the best loss, nats   (Wortsman et al. 2023, arXiv 2309.14322)

    Args:
        losses: by rate, evenly spaced in log rate; None where a run diverged, which counts as `start`.
        start: loss before training.
    """
    ended = [loss for loss in losses.values() if loss is not None]
    if not ended:
        return None
    capped = [start if loss is None else min(loss, start) for loss in losses.values()]
    return statistics.fmean(capped) - min(ended)


@dataclass(frozen=True)
class Robustness:
    """One scheme: a region for every seed, and means over seeds."""

    scheme: str
    regions: tuple[Region, ...]
    sensitivity: float | None

    @property
    def width(self) -> float | None:
        """Geometric mean over seeds; a lower bound where `bound` is true."""
        return statistics.geometric_mean([r.width for r in self.regions]) if self.regions else None

    @property
    def bound(self) -> bool:
        return any(r.open_low or r.open_high for r in self.regions)

    @property
    def unresolved(self) -> bool:
        """A region holds one rate of those tried, so its width is a guess between it and its neighbours."""
        return any(r.least == 1 for r in self.regions)

    @property
    def limits(self) -> tuple[float, float | None] | None:
        """Least and most width by the rates tried alone, geometric means over seeds; no most where no end was found."""
        if not self.regions:
            return None
        most = [r.most for r in self.regions if r.most is not None]
        whole = len(most) == len(self.regions)
        return statistics.geometric_mean([r.least for r in self.regions]), (
            statistics.geometric_mean(most) if whole else None
        )


def robustness(trials: Sequence[Trial], start: float, near: float = NEAR) -> list[Robustness]:
    """Every scheme of a sweep, widest first.

    Args:
        trials: every scheme at every rate, on every seed.
        start: loss before training, nats: log of the vocabulary's size.
        near: nats above the best that are good.
    """
    made: list[Robustness] = []
    for scheme in dict.fromkeys(t.scheme for t in trials):
        by_seed: dict[int, dict[float, float | None]] = {}
        for t in (t for t in trials if t.scheme == scheme):
            by_seed.setdefault(t.seed, {})[t.lr] = None if t.result is None else t.result.val_loss
        regions = [r for losses in by_seed.values() if (r := good_region(losses, near)) is not None]
        felt = [s for losses in by_seed.values() if (s := sensitivity(losses, start)) is not None]
        made.append(Robustness(scheme, tuple(regions), statistics.fmean(felt) if felt else None))
    return sorted(made, key=lambda r: -(r.width or 0.0))
