"""Sums of squares of numbers of any size: what a float64 holds may be too large or too small for its square.

Every length here is taken of values divided by a power of two near their largest, which changes no bit of them.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]


def exponent(values: Array) -> int:
    """The e for which the largest |value| lies in [2^(e-1), 2^e); 0 where all are zero or there is none."""
    return int(np.frexp(np.max(np.abs(values), initial=0.0))[1])


def scaled(values: Array, e: int) -> Array:
    """`values` times 2^e, exactly as far as float64 reaches; beyond its largest they are infinite."""
    return _times(values, np.asarray(e, dtype=np.int32))


def lengths(rows: Array) -> Array:
    """Euclidean length of every row of (..., d); infinite only where it exceeds float64."""
    return _times(*_near_one(rows))


def root_mean_square(rows: Array) -> Array:
    """RMS of every row of (..., d), d at least 1."""
    length, e = _near_one(rows)
    return _times(length / math.sqrt(rows.shape[-1]), e)


def _near_one(rows: Array) -> tuple[Array, NDArray[np.int32]]:
    """Lengths of the rows divided by 2^e, their largest element then being near 1; and each row's e."""
    _, e = np.frexp(np.max(np.abs(rows), axis=-1, initial=0.0))
    return np.linalg.norm(_times(rows, -e[..., None]), axis=-1), e


def _times(values: Array, e: NDArray[np.int32]) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.ldexp(values, e // 2), e - e // 2)  # 2^2000 itself is no float64, yet may be needed


def times_power_of_two(value: float, e: int) -> float:
    """value 2^e, infinite or zero where that leaves float64."""
    return float(scaled(np.asarray(value), e))


def exp(value: float) -> float:
    """e^value, infinite where that is no float64."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(value))
