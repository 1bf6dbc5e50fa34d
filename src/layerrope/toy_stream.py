"""The stream as a sum of independent writes: what a depth schedule alone does to it, with every block idealised.

Block l of L writes a vector of its own size g_l, independent of the stream, so variances add up:

    V_0 = start,  V_(l+1) = V_l + g_l^2,  u_l = g_l / sqrt(V_l)

V is the variance of the stream and u the relative update of block l: its write over the stream it is added to. A
block is attention and MLP together. The stream starts empty (start = 0): the first write is the stream, and its
relative update is infinite. In this toy a gain on what a block reads and a gain on what it writes are one knob, for
the block is taken as linear: g_l is their product.

Plain Pre-Norm has g = 1: u = 1/sqrt(l), 0.2085 in the last of 24 blocks and 0.0442 in the last of 512. Everything
here is numpy on float64; shapes are (L,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.errors import InputError

Floats: TypeAlias = NDArray[np.float64]


# ------------------------------------------------------------------------------------------------------- schedules
def power(n_layer: int, slope: float, scale: float = 1.0) -> Floats:
    """g_l = scale (l + 1)^slope: LayerRoPE's power law; slope 0 is Pre-Norm, -1/2 is Layer-Norm Scaling.

    >>> power(4, 0.5).round(3).tolist()
    [1.0, 1.414, 1.732, 2.0]
    """
    return scale * np.arange(1, _depth(n_layer) + 1, dtype=np.float64) ** slope


def geometric(n_layer: int, ratio: float, scale: float = 1.0) -> Floats:
    """g_l = scale ratio^l: every write is the same factor larger than the one before.

    >>> geometric(4, 2.0).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    if not ratio > 0:
        raise InputError(f"the ratio of a geometric schedule must be positive: got {ratio}")
    return scale * ratio ** np.arange(_depth(n_layer), dtype=np.float64)


def geometric_ratio(n_layer: int, slope: float) -> float:
    """L^(slope / (L - 1)): the ratio whose first and last of L writes are those of the power law with this slope.

    >>> geometric(3, geometric_ratio(3, 0.5)).round(3).tolist(), power(3, 0.5).round(3).tolist()
    ([1.0, 1.316, 1.732], [1.0, 1.414, 1.732])
    """
    return float(n_layer ** (slope / (n_layer - 1))) if n_layer > 1 else 1.0


@dataclass(frozen=True)
class Site:
    """One sublayer of every block: its first write, and the slopes of its two gains in log(l + 1)."""

    scale: float
    write_slope: float
    read_slope: float = 0.0

    def writes(self, n_layer: int) -> Floats:
        return power(n_layer, self.write_slope + self.read_slope, self.scale)


def block(n_layer: int, sites: Sequence[Site]) -> Floats:
    """g_l = sqrt(sum over sites of theirs squared): sublayers of one block that write independently."""
    return np.sqrt(np.sum([site.writes(n_layer) ** 2 for site in sites], axis=0))


LEARNED = (Site(0.4166, 0.56, -0.1203), Site(0.1863, 0.76, -0.1203))
"""Attention and MLP of a schedule like the one that LayerRoPE learns at 1.3B (arXiv 2610.09179, Fig. 20, 21).

The two write slopes are the paper's. They alone give a last relative update of at least 0.3039 in 24 blocks, whatever
the scales, where 0.297 is reported for the toy; so the reads fall with depth. One read slope and two scales are set
here such that the toy gives the three numbers reported for it: 2.5 times Pre-Norm's variance at 24 blocks, and last
relative updates of 0.297 at 24 and 0.065 at 512. Other slopes of the reads would do as well.
"""


# -------------------------------------------------------------------------------------------------------- the stream
def variance(writes: Floats, start: float = 0.0) -> Floats:
    """V_0 ... V_L, (L + 1,): the stream's variance before the first block and after each one."""
    if not start >= 0:
        raise InputError(f"the stream cannot start with a variance of {start}")
    return start + np.concatenate(([0.0], np.cumsum(np.asarray(writes, dtype=np.float64) ** 2)))


def relative_update(writes: Floats, start: float = 0.0) -> Floats:
    """u_l = g_l / sqrt(V_l), (L,); infinite where a write meets an empty stream.

    >>> [relative_update(power(n, 0))[-1].round(4).item() for n in (24, 512)]
    [0.2085, 0.0442]
    """
    before = np.sqrt(variance(writes, start)[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(writes) == 0, 0.0, np.asarray(writes) / before)


# ------------------------------------------------------------------------------------------------------ closed forms
def power_update(depth: float, slope: float) -> float:
    """u -> sqrt((2 slope + 1) / depth) far from the first block: a slope lifts Pre-Norm's curve, it still falls.

    Raises:
        InputError: a slope of -1/2 or less, for which the sum of the writes no longer grows as a power.

    >>> power_update(400, 0.0), round(power_update(400, 1.5), 4)
    (0.05, 0.1)
    """
    if slope <= -0.5:
        raise InputError(f"the closed form needs a slope above -1/2: got {slope}")
    return float(np.sqrt((2 * slope + 1) / depth))


def lift(slope: float) -> float:
    """sqrt(2 slope + 1): how far the relative update ends above Pre-Norm's at the same depth."""
    return power_update(1.0, slope)


def geometric_update(depth: int, ratio: float) -> float:
    """u = sqrt((ratio^2 - 1) / (1 - ratio^(-2 depth))): for a ratio above 1 it settles at sqrt(ratio^2 - 1).

    >>> round(geometric_update(10, 1.1), 4), round(geometric_update(500, 1.1), 4)
    (0.4967, 0.4583)
    """
    if ratio == 1:
        return power_update(depth, 0.0)
    return float(np.sqrt((ratio**2 - 1) / (1 - ratio ** (-2.0 * depth))))


def steady_start(ratio: float) -> float:
    """1 / (ratio^2 - 1): the starting variance with which a geometric schedule has one relative update throughout."""
    if not ratio > 1:
        raise InputError(
            f"writes that do not grow never hold the relative update: the ratio must exceed 1, got {ratio}"
        )
    return 1 / (ratio**2 - 1)


def _depth(n_layer: int) -> int:
    if n_layer < 1:
        raise InputError(f"a stream needs at least one block: got {n_layer}")
    return n_layer
