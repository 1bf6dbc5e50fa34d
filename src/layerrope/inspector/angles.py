"""Directions of gain vectors in R^d: true angles, the best shared direction, and which channels depart from it.

Everything comes from the Gram matrix of the rows (layers), so the cost is one L x L product whatever the width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Angles:
    """True angles between layers' vectors, in degrees; layers by their position in the table."""

    largest: float
    largest_pair: tuple[int, int]
    first_to_last: float
    steps: tuple[float, ...]
    from_first: tuple[float, ...]
    median_pair: float


def angles(rows: Matrix) -> Angles:
    """Angles between the rows of a (L, d) table without zero rows, L >= 2."""
    turn = np.degrees(np.arccos(np.clip(_cosines(rows), -1.0, 1.0)))
    above = np.triu_indices(len(rows), 1)
    at = int(np.argmax(turn[above]))
    return Angles(
        largest=float(turn[above][at]),
        largest_pair=(int(above[0][at]), int(above[1][at])),
        first_to_last=float(turn[0, -1]),
        steps=tuple(np.diagonal(turn, 1).tolist()),
        from_first=tuple([0.0, *turn[0, 1:].tolist()]),
        median_pair=float(np.median(turn[above])),
    )


def _cosines(rows: Matrix) -> Matrix:
    unit = unit_rows(rows)
    return unit @ unit.T


def rank1_share(rows: Matrix) -> float:
    """Share of the squared Frobenius norm of (L, d) `rows` on the best rank-1 direction; nan for all zeros."""
    energies = np.linalg.eigvalsh(rows @ rows.T)
    total = float(energies.sum())
    return float(energies[-1]) / total if total > 0 else float("nan")


def unit_rows(rows: Matrix) -> Matrix:
    """Every row at length one (a zero row stays zero)."""
    largest = np.max(np.abs(rows), axis=1, keepdims=True, initial=0.0)
    near_one = rows / np.where(largest > 0, largest, 1.0)  # so that no square is too large or too small for a float
    length = np.linalg.norm(near_one, axis=1, keepdims=True)
    return near_one / np.where(length > 0, length, 1.0)


@dataclass(frozen=True)
class Shared:
    """The best rank-1 description of a table: row l is about size[l] times `direction`."""

    size: NDArray[np.float64]
    direction: NDArray[np.float64]

    @property
    def table(self) -> Matrix:
        return np.outer(self.size, self.direction)


def shared_direction(rows: Matrix) -> Shared:
    """The unit vector v and sizes s that minimise ||rows - s v^T||, with the sign that makes most sizes positive."""
    _, vectors = np.linalg.eigh(rows @ rows.T)
    direction = vectors[:, -1] @ rows
    direction = direction / (np.linalg.norm(direction) or 1.0)
    size = rows @ direction
    sign = -1.0 if size.sum() < 0 else 1.0
    return Shared(sign * size, sign * direction)


@dataclass(frozen=True)
class Outliers:
    """Which channels carry the deviation from one shared trajectory."""

    half: int
    """fewest channels that carry half of the squared deviation"""
    ninety: int
    """fewest channels that carry nine tenths of it"""
    top_channels: tuple[int, ...]
    """the channels that deviate most, largest first, at most ten"""
    top_share: float
    """what the largest hundredth of the channels (at least one) carries of it"""
    rank1_without: float
    """rank-1 share of the table without that hundredth"""
    largest_angle_without: float
    """largest angle between layers without that hundredth, degrees"""


def outliers(rows: Matrix, shared: Shared) -> Outliers | None:
    """The outlier split of (L, d) `rows` around `shared`; None where they do not deviate at all."""
    energy = np.sum((rows - shared.table) ** 2, axis=0)
    total = float(energy.sum())
    if total <= 1e-24 * float(np.sum(rows**2)):
        return None
    order = np.argsort(energy)[::-1]
    carried = np.cumsum(energy[order]) / total
    n_top = max(1, rows.shape[1] // 100)
    rest = np.delete(rows, order[:n_top], axis=1)
    alive = bool(rest.shape[1]) and bool(np.all(np.any(rest != 0, axis=1)))
    return Outliers(
        half=int(np.searchsorted(carried, 0.5) + 1),
        ninety=int(np.searchsorted(carried, 0.9) + 1),
        top_channels=tuple(order[:10].tolist()),
        top_share=float(carried[n_top - 1]),
        rank1_without=rank1_share(rest) if alive else float("nan"),
        largest_angle_without=angles(rest).largest if alive else float("nan"),
    )
