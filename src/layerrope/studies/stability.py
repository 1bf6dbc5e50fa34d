"""Is a scheme stable as layers are added? A verdict for each, from its best loss at every depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOLERANCE = 0.05
"""Nats by which a deeper model may be worse than the best shallower one and still count as stable."""


@dataclass(frozen=True)
class Verdict:
    """What depth does to one scheme."""

    scheme: str
    losses: Mapping[int, float | None]
    """by depth, lowest first; None: no run reached its end"""
    lost: Mapping[int, int]
    """runs that diverged or crashed, by depth, at any rate"""
    stable_to: int | None
    """largest depth up to which every depth has a loss and none is above the best shallower one by `TOLERANCE`"""
    best_depth: int | None
    breaks_at: int | None
    """first depth that is not stable"""

    @property
    def words(self) -> str:
        """One sentence."""
        if self.best_depth is None or self.stable_to is None:
            return f"{self.scheme}: no depth trained to its end."
        best = f"lowest loss {self._loss(self.best_depth)}"
        if self.breaks_at is None:
            return f"{self.scheme}: stable to {self.stable_to} layers; {best}."
        there = self.losses[self.breaks_at]
        how = "no run reached its end" if there is None else f"loss {self._loss(self.breaks_at)}"
        return f"{self.scheme}: stable to {self.stable_to} layers, not at {self.breaks_at} ({how}); {best}."

    def _loss(self, depth: int) -> str:
        return f"{self.losses[depth]:.4f} at {depth}"


def verdict(
    scheme: str, losses: Mapping[int, float | None], lost: Mapping[int, int] | None = None, tolerance: float = TOLERANCE
) -> Verdict:
    """The verdict on one scheme.

    >>> verdict("a", {8: 2.0, 16: 1.9, 32: 2.1, 64: 1.8}).stable_to
    16
    """
    depths = sorted(losses)
    best: float | None = None
    stable_to = breaks_at = None
    for depth in depths:
        loss = losses[depth]
        if loss is None or (best is not None and loss > best + tolerance):
            breaks_at = depth
            break
        best, stable_to = loss if best is None else min(best, loss), depth
    ended = {d: loss for d in depths if (loss := losses[d]) is not None}
    best_depth = min(ended, key=lambda d: ended[d]) if ended else None
    return Verdict(scheme, {d: losses[d] for d in depths}, dict(lost or {}), stable_to, best_depth, breaks_at)
