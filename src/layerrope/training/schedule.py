"""Learning-rate schedules: pure functions of (step, steps), as a fraction of the peak rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from layerrope.errors import one_of

Shape = Callable[[float, float, float], float]


def _cosine(done: float, decay: float, least: float) -> float:
    """Half a cosine from 1 to `least` over everything after the warm-up (Loshchilov & Hutter 2017)."""
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))


def _wsd(done: float, decay: float, least: float) -> float:
    """1, then a straight line to `least` over the last `decay` of it (warm-up-stable-decay, Hu et al. 2024)."""
    return 1.0 if decay == 0 else 1 - (1 - least) * max(0.0, (done - (1 - decay)) / decay)


def _constant(done: float, decay: float, least: float) -> float:
    return 1.0


SCHEDULES: dict[str, Shape] = {"cosine": _cosine, "wsd": _wsd, "constant": _constant}


def lr_factor(
    step: int, steps: int, *, schedule: str = "cosine", warmup: float = 0.1, decay: float = 0.2, least: float = 0.1
) -> float:
    """The learning rate of update `step` (0-based) of `steps`, as a fraction of the peak.

    Rises in a straight line over the first round(warmup * steps) updates, of which the last has the full rate; the
    last update of all has exactly `least` (cosine, and wsd with a decay).

    Args:
        schedule: "cosine", "wsd" or "constant".
        warmup: fraction of the steps.
        decay: fraction of the steps in which wsd falls, rounded to whole steps.
        least: the fraction of the peak at the end.

    >>> [round(lr_factor(s, 10, warmup=0.2), 3) for s in (0, 1, 5, 9)]
    [0.5, 1.0, 0.55, 0.1]
    """
    shape = SCHEDULES[one_of("schedule", schedule, SCHEDULES)]
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    rest = max(steps - rise, 1)
    return shape((step + 1 - rise) / rest, min(rest, round(decay * steps)) / rest, least)
