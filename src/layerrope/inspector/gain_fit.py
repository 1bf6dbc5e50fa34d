"""Does LayerRoPE's form describe a trained gain table? The best fit, its rivals, and a null searched as hard.

    G_l ~ gamma (x) exp(r(l) + i theta(l, j)),  r = alpha + beta log(l+1),
    theta = exp(alpha_rot + beta_rot log(l+1)) base^(-2j/d)          (arXiv 2610.09179, Eq. 1)

For given scalars the best shared gamma is a weighted mean of the rows turned back, so only beta, alpha_rot and
beta_rot are searched. Which channel stands beside which in a stock checkpoint is an accident, so the rotation is
judged against tables with their channels shuffled, put through the very same search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.inspector.angles import rank1_share
from layerrope.inspector.rotation_search import MOST_LAYERS, RotationSearch, Turn, spectrum, turned
from layerrope.inspector.scale import lengths

Array: TypeAlias = NDArray[Any]

#: A rotation counts where at most this share of the tables does as well. 19 shuffles are the fewest that can tell.
LEVEL = 0.05
#: Share of the squared gains that the magnitude must leave for a rotation to be looked for: the search itself is exact
#: to about ten digits only.
LEAST_LEFT = 1e-8
#: Tables searched at a time.
BATCH = 64


@dataclass(frozen=True)
class GainFit:
    """LayerRoPE and its rivals on one (L, d) table; errors are ||G - fit|| / ||G||, Frobenius."""

    constant: float
    """error of one shared vector for all layers"""
    magnitude: float
    """error of a shared vector times exp(beta log(l+1)): LayerRoPE without the rotation"""
    beta_magnitude: float
    full: float | None
    """error of the whole form; None where the rotation was not tried"""
    rank1: float
    """error of the best shared vector with a free size for each layer"""
    alpha: float
    """log RMS of the best shared gamma, which is then given unit RMS"""
    beta: float
    alpha_rot: float | None
    beta_rot: float | None
    gamma: Array
    """(d,), unit RMS"""
    per_layer: tuple[float, ...]
    """relative error of each layer's own vector, magnitude only; nan for a zero vector"""
    per_layer_full: tuple[float, ...] | None
    """the same for the whole form"""
    at_bound: tuple[str, ...]
    """scalars of the rotation that ended on the edge of the search"""
    rotation_gain: float | None
    """share of the squared magnitude-only residual that the rotation removes"""
    null: tuple[float, ...]
    """the same for shuffled channels, one a shuffle"""
    base: float

    @property
    def p_value(self) -> float | None:
        """Share of the tables, the real one counted, in which the rotation gains at least as much."""
        if self.rotation_gain is None or not self.null:
            return None
        return (1 + sum(g >= self.rotation_gain for g in self.null)) / (1 + len(self.null))

    @property
    def smallest_p(self) -> float | None:
        """The least that `p_value` could be with so many shuffles; None without any."""
        return 1 / (1 + len(self.null)) if self.null else None

    @property
    def exact(self) -> bool:
        """Does the magnitude alone describe the table, so that nothing is left for a rotation?"""
        return self.magnitude**2 <= LEAST_LEFT

    @property
    def decidable(self) -> bool:
        """Are there shuffles enough for a p of `LEVEL` or less?"""
        return self.smallest_p is not None and self.smallest_p <= LEVEL

    @property
    def identifiable(self) -> bool:
        """Do the data fix the angles: a gain beyond 95% of the shuffles, found inside the search?"""
        return self.p_value is not None and self.p_value <= LEVEL and not self.at_bound

    @property
    def scalars(self) -> dict[str, float | None]:
        """The four scalars of the form."""
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "alpha_rot": self.alpha_rot,
            "beta_rot": self.beta_rot,
        }


def fit_gains(
    rows: Array, layers: Array, base: float = 100.0, shuffles: int = 20, seed: int = 0, rotation: bool = True
) -> GainFit:
    """The best LayerRoPE description of `rows`.

    Args:
        rows: gains (L, d), the largest near 1 (squares are summed), L >= 3.
        layers: depth of each row, 0-based, ascending, (L,).
        base: of the spectrum over pairs.
        shuffles: tables with shuffled channels in the null.
        seed: of the shuffles.
        rotation: False leaves the rotation out; an odd width does so too, since channels are paired.
    """
    rows = np.asarray(rows, dtype=np.float64)
    depth = np.log(np.asarray(layers, dtype=np.float64) + 1)
    total = float(np.sum(rows**2))
    flat = best_size(rows, depth)
    turns: list[Turn] = []
    if rotation and rows.shape[1] % 2 == 0 and total - flat.explained > LEAST_LEFT * total:
        turns = _search(rows, depth, base, shuffles, seed)
    unturned = turned(rows, -_angles(depth, turns[0], rows.shape[1], base)) if turns else rows
    best = max(best_size(unturned, depth), flat, key=lambda f: f.explained) if turns else flat
    size = float(np.sqrt(np.mean(best.gamma**2))) or 1.0
    return GainFit(
        constant=_error(total, float(np.sum(rows.sum(axis=0) ** 2)) / len(rows)),
        magnitude=_error(total, flat.explained),
        beta_magnitude=flat.beta,
        full=_error(total, best.explained) if turns else None,
        rank1=math.sqrt(max(1 - rank1_share(rows), 0.0)),
        alpha=math.log(size),
        beta=best.beta,
        alpha_rot=turns[0].alpha_rot if turns else None,
        beta_rot=turns[0].beta_rot if turns else None,
        gamma=best.gamma / size,
        per_layer=_per_layer(rows, depth, flat),
        per_layer_full=_per_layer(unturned, depth, best) if turns else None,
        at_bound=turns[0].at_bound if turns else (),
        rotation_gain=turns[0].gain if turns else None,
        null=tuple(t.gain for t in turns[1:]),
        base=base,
    )


@dataclass(frozen=True)
class SizeFit:
    """rows ~ exp(beta depth) gamma."""

    beta: float
    gamma: Array
    explained: float
    """squared norm of the fit"""


def best_size(rows: Array, depth: Array) -> SizeFit:
    """The best shared vector times exp(beta depth): the largest s^T G G^T s / s^T s over s = exp(beta depth)."""
    from scipy.optimize import minimize_scalar

    gram = rows @ rows.T

    def explained(beta: float) -> float:
        s = _sizes(beta, depth)
        return float(s @ gram @ s)

    grid = np.linspace(-4, 4, 81)
    near = grid[int(np.argmax([explained(b) for b in grid]))]
    found: Any = minimize_scalar(
        lambda b: -explained(b),
        bounds=(near - 0.1, near + 0.1),
        method="bounded",
        options={"xatol": 1e-9},
    )
    beta = float(found.x)
    s = np.exp(beta * depth)
    return SizeFit(beta, s @ rows / (s @ s), explained(beta))


def _sizes(beta: float, depth: Array) -> Array:
    """exp(beta depth) at unit length, without overflow."""
    s = np.exp(beta * depth - np.max(beta * depth))
    return s / np.linalg.norm(s)


def _search(rows: Array, depth: Array, base: float, shuffles: int, seed: int) -> list[Turn]:
    """The best turn of the real table, then of each shuffled one."""
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_LAYERS)).round().astype(int))
    rows, depth = rows[keep], depth[keep]
    flat = best_size(rows, depth)
    total = float(np.sum(rows**2))
    residual = max(total - flat.explained, LEAST_LEFT * total)
    rng = np.random.default_rng(seed)
    shuffled = (rows[:, rng.permutation(rows.shape[1])] for _ in range(shuffles))
    tables, turns = chain([rows], shuffled), []
    search = RotationSearch(depth, spectrum(rows.shape[1], base), flat.beta)
    while batch := search.run(islice(tables, BATCH), residual, flat.explained):
        turns += batch
    return turns


def _angles(depth: Array, turn: Turn, d: int, base: float) -> Array:
    return np.exp(turn.alpha_rot + turn.beta_rot * depth)[:, None] * spectrum(d, base)


def _error(total: float, explained: float) -> float:
    return math.sqrt(max(total - explained, 0.0) / total)


def _per_layer(rows: Array, depth: Array, fit: SizeFit) -> tuple[float, ...]:
    length = lengths(rows)
    errors = lengths(rows - np.exp(fit.beta * depth)[:, None] * fit.gamma)
    with np.errstate(over="ignore"):
        return tuple((errors / np.where(length > 0, length, np.nan)).tolist())
