"""The 2-D picture of a gain table, with its stress and with the controls that say how little its angles mean.

Classical (Torgerson) scaling of Euclidean distances is a projection on the first two principal axes, about the
centroid. A vector that only grows moves along a line *through* the centroid: seen from there it turns by half a
circle though its true direction never changes. So a swept angle is only ever given beside its null.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.inspector.angles import Shared, angles

Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Angles swept about the centroid of the picture, in degrees."""

    net: float
    """from first to last, unwrapped"""
    folded: float
    """between first and last as seen from the centroid, 0 to 180"""
    path: float
    """sum of all steps, each taken positive"""
    range: float
    """largest minus smallest unwrapped angle"""


@dataclass(frozen=True)
class Picture:
    """Classical 2-D scaling of a table's rows."""

    points: Matrix
    """(L, 2), centroid at the origin"""
    stress: float
    """Kruskal's stress-1: sqrt(sum (D - d)^2 / sum d^2), d the distances in the picture"""
    kept: float
    """share of the variance that the two axes hold"""
    sweep: Sweep


@dataclass(frozen=True)
class Null:
    """The same sweep for tables that do not turn: mean, standard deviation and range over draws."""

    words: str
    mean: Sweep
    std: Sweep
    least: Sweep
    most: Sweep
    """smallest and largest of all draws, number by number"""
    draws: int

    def __repr__(self) -> str:
        return f"Null({self.words}: net {self.least.net:.0f} to {self.most.net:.0f} degrees)"


def picture(rows: Matrix) -> Picture:
    """The picture of (L, d) `rows`, L >= 3."""
    gram = _centred_gram(rows)
    points, values = _axes(gram)
    true, drawn = _distances(gram), _distances(points @ points.T)
    norm = float(np.sum(drawn**2))
    return Picture(
        points=points,
        stress=float(np.sqrt(np.sum((true - drawn) ** 2) / norm)) if norm > 0 else float("nan"),
        kept=float(values[-2:].sum() / values.sum()) if values.sum() > 0 else float("nan"),
        sweep=sweep(points),
    )


def sweep(points: Matrix) -> Sweep:
    """The angles swept by (L, 2) `points` about the origin."""
    turn = np.unwrap(np.arctan2(points[:, 1], points[:, 0]))
    net = abs(float(turn[-1] - turn[0]))
    once = net % (2 * np.pi)
    numbers = (net, min(once, 2 * np.pi - once), float(np.abs(np.diff(turn)).sum()), float(np.ptp(turn)))
    return Sweep(*(float(np.degrees(v)) for v in numbers))


def rank1_null(rows: Matrix, shared: Shared, draws: int = 50, seed: int = 0) -> Null:
    """The sweep of `shared` alone plus noise: each layer as far from one direction as it is, in a random way."""
    size = np.sqrt(np.mean((rows - shared.table) ** 2, axis=1))
    rng = np.random.default_rng(seed)
    sweeps = [sweep(_axes(_centred(noisy_gram(shared.size, size, rows.shape[1], rng)))[0]) for _ in range(draws)]
    values = np.array([list(asdict(s).values()) for s in sweeps])
    words = f"one shared direction plus each layer's own amount of noise ({draws} draws)"
    mean, std, least, most = (Sweep(*f(values, axis=0).tolist()) for f in (np.mean, np.std, np.min, np.max))
    return Null(words, mean, std, least, most, draws)


def noisy_gram(along: Matrix, noise: Matrix, d: int, rng: np.random.Generator) -> Matrix:
    """Gram matrix of rows along[l] v + noise[l] e_l, v one unit vector of R^d, e_l standard normal in R^d.

    Drawn without the d channels: one coordinate lies along v, and the Gram matrix of the d - 1 others is Wishart,
    which is C C^T with C lower triangular (Bartlett 1933).
    """
    n, rest = len(along), d - 1
    if rest < n:
        others = rng.standard_normal((n, max(rest, 0)))
    else:
        others = np.tril(rng.standard_normal((n, n)), -1)
        np.fill_diagonal(others, np.sqrt(rng.chisquare(rest - np.arange(n))))
    first = along + noise * rng.standard_normal(n)
    scaled = noise[:, None] * others
    return np.outer(first, first) + scaled @ scaled.T


def pure_scaling_picture(
    n: int = 32, d: int = 4096, top: float = 8.0, noise: float = 0.05, seed: int = 0
) -> tuple[float, Picture]:
    """(largest true angle in degrees, picture) of `n` copies of one flat vector in R^d scaled 1 to `top`.

    The noise is `noise` times each copy's size, a channel. The copies do not turn; their picture does.
    """
    scale = np.linspace(1.0, top, n)[:, None]
    rows = scale * (1.0 + noise * np.random.default_rng(seed).standard_normal((n, d)))
    return angles(rows).largest, picture(rows)


def _centred_gram(rows: Matrix) -> Matrix:
    centred = rows - rows.mean(axis=0)
    return centred @ centred.T


def _centred(gram: Matrix) -> Matrix:
    """The Gram matrix about the centroid of the rows that `gram` belongs to."""
    mean = gram.mean(axis=0)
    return gram - mean[:, None] - mean[None, :] + mean.mean()


def _axes(gram: Matrix) -> tuple[Matrix, NDArray[np.float64]]:
    """Coordinates on the two largest axes, and all eigenvalues (ascending, negatives of rounding cut to 0).

    Each axis points so that its largest coordinate is positive: an eigenvector has no sign of its own.
    """
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    points = vectors[:, [-1, -2]] * np.sqrt(values[[-1, -2]])
    signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    return points * np.where(signs == 0, 1.0, signs), values


def _distances(gram: Matrix) -> NDArray[np.float64]:
    """Upper-triangle Euclidean distances from a Gram matrix."""
    norms = np.diagonal(gram)
    squared = norms[:, None] + norms[None, :] - 2 * gram
    return np.sqrt(np.maximum(squared[np.triu_indices(len(gram), 1)], 0.0))
