"""The search for LayerRoPE's rotation in a gain table, fast enough to repeat on shuffled tables.

Turned back by theta_l, the rows fit best when s^T M s / s^T s is largest, with s_l = exp(beta log(l+1)) and
M_lm = f_lm(theta_l - theta_m), where

    f_lm(t) = <row l, row m turned by t>,  pair j turned by t base^(-2j/d).

f_lm is a sum of waves no faster than cos(t), so its values at a few Chebyshev points give it everywhere to ten
digits. Those values cost one product of the table with itself a point; after that no step of the search touches
the d channels again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Chebyshev points on [-2 pi, 2 pi]; the interpolation error is about pi^n / n! = 8e-11.
NODES = 22
#: Base angle of the layer that turns most, in radians: below 0.01 nothing moves, above 2 pi it only comes round.
TURN = (0.01, 2 * math.pi)
#: Slope of the log angle, in either direction.
SLOPE = (-3.0, 3.0)
#: Layers that enter a search; deeper tables are thinned evenly.
MOST_LAYERS = 64
#: Numbers of a table and its turned copies that are held at once.
MOST_SPUN = 1 << 22

_TURNS = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75, *np.arange(1.0, 6.0, 0.3).tolist(), TURN[1])
_SLOPES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Turn:
    """Where a search ended."""

    alpha_rot: float
    beta_rot: float
    gain: float
    """share of the squared magnitude-only residual that this rotation removes"""
    at_bound: tuple[str, ...]


def spectrum(d: int, base: float) -> Array:
    """base^(-2j/d), (d/2,)."""
    return base ** (-np.arange(0, d, 2) / d)


def turned(rows: Array, angle: Array) -> Array:
    """Pairs (2j, 2j+1) of `rows` (..., d) turned by `angle` (..., d/2) radians."""
    u, v = rows[..., 0::2], rows[..., 1::2]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([u * cos - v * sin, u * sin + v * cos], axis=-1).reshape(*u.shape[:-1], -1)


class RotationSearch:
    """One search, to be put to several tables of the same depths: a grid, then a local refinement.

    Args:
        depth: log(l+1) of every row, ascending, (L,), L at most `MOST_LAYERS`.
        omega: the spectrum over pairs, (d/2,), none above 1.
        beta: where the magnitude's slope starts.
    """

    def __init__(self, depth: Array, omega: Array, beta: float) -> None:
        self.depth, self.beta = depth, beta
        k = np.arange(NODES // 2)
        angle = (2 * k + 1) * math.pi / (2 * NODES)
        half = TURN[1] * np.cos(angle)
        self.nodes = np.concatenate([half, -half])
        self.weights = np.concatenate([(-1.0) ** k * np.sin(angle), -((-1.0) ** k) * np.sin(angle)])
        self.spins = np.exp(1j * half[:, None, None] * omega)
        self.upper = np.triu_indices(len(depth), 1)
        self.grid = np.array([(math.log(t), sign * s) for t in _TURNS for s in _SLOPES for sign in (-1, 1)])
        self.betas = beta + np.linspace(-0.4, 0.4, 9)

    def run(self, tables: Iterable[Array], residual: float, explained: float) -> list[Turn]:
        """The best rotation of every (L, d) table; all share one squared norm, and `explained` of it is what the
        magnitude alone explains, `residual` what it leaves."""
        values, squares = [], []
        for rows in tables:  # one at a time: only what is small is kept of each
            values.append(self._values(rows))
            squares.append(np.einsum("ld,ld->l", rows, rows))
        if not values:
            return []
        starts = self._best_of_grid(np.stack(values), np.array(squares))
        return [
            self._refined(v, q, start, residual, explained) for v, q, start in zip(values, squares, starts, strict=True)
        ]

    def _values(self, rows: Array) -> Array:
        """f_lm at the nodes for l < m, (NODES, L (L-1)/2). f_lm(-t) = f_ml(t) halves the work."""
        n, d = rows.shape
        pairs = np.ascontiguousarray(rows).view(np.complex128)
        size = max(1, MOST_SPUN // rows.size)
        parts = (self.spins[start : start + size] for start in range(0, len(self.spins), size))
        spun = ((pairs * spins).view(np.float64).reshape(-1, d) for spins in parts)
        f = np.concatenate([copy @ rows.T for copy in spun]).reshape(-1, n, n)  # [node, m, l]
        return np.concatenate([f[:, self.upper[1], self.upper[0]], f[:, self.upper[0], self.upper[1]]])

    def scalars(self, point: Array) -> tuple[Array, Array]:
        """(alpha_rot, beta_rot) of points (..., 2) = (log of the largest base angle, slope)."""
        top, slope = point[..., 0], point[..., 1]
        return top - np.where(slope > 0, slope * self.depth[-1], slope * self.depth[0]), slope

    def _basis(self, points: Array) -> Array:
        """Lagrange basis at the differences of angle that `points` (n, 2) imply, (n, L (L-1)/2, NODES)."""
        alpha_rot, slope = self.scalars(points)
        theta = np.exp(alpha_rot[:, None] + slope[:, None] * self.depth)
        apart = theta[:, self.upper[0]] - theta[:, self.upper[1]]
        gap = apart[..., None] - self.nodes
        gap[gap == 0] = 1e-300
        terms = self.weights / gap
        return terms / terms.sum(axis=-1, keepdims=True)

    def _sizes(self, betas: Array) -> tuple[Array, Array]:
        """Weights of the squares (n, L) and of the pairs (n, L (L-1)/2) in s^T M s / s^T s."""
        power = betas[:, None] * self.depth
        s = np.exp(power - power.max(axis=1, keepdims=True))
        s = s / np.linalg.norm(s, axis=1, keepdims=True)
        return s**2, 2 * s[:, self.upper[0]] * s[:, self.upper[1]]

    def _best_of_grid(self, values: Array, squares: Array) -> list[Array]:
        """The best (beta, log largest angle, slope) on the grid, for each of the stacked tables."""
        own, pairs = self._sizes(self.betas)
        by_pair = np.ascontiguousarray(values.transpose(2, 1, 0))  # (pairs of layers, nodes, tables)
        size = max(1, 2_000_000 // (NODES * by_pair.shape[0]))
        explained = []
        for start in range(0, len(self.grid), size):
            basis = self._basis(self.grid[start : start + size]).transpose(1, 0, 2)
            f = np.matmul(basis, by_pair)  # (pairs of layers, points, tables)
            explained.append(np.tensordot(pairs, f, axes=(1, 0)))
        scores = np.concatenate(explained, axis=1) + (own @ squares.T)[:, None, :]
        flat = scores.reshape(-1, scores.shape[-1]).argmax(axis=0)
        at_beta, at_point = np.unravel_index(flat, scores.shape[:2])
        return [np.array([self.betas[b], *self.grid[g]]) for b, g in zip(at_beta, at_point, strict=True)]

    def _refined(self, values: Array, squares: Array, start: Array, residual: float, explained: float) -> Turn:
        from scipy.optimize import minimize

        step = 1e-5 * np.vstack([np.zeros(3), np.eye(3)])

        def left_over(x: Array) -> tuple[float, Array]:
            points = x + step * np.where(x + 1e-5 > high, -1.0, 1.0)
            own, pairs = self._sizes(points[:, 0])
            f = np.einsum("npk,kp->np", self._basis(points[:, 1:]), values)
            score = own @ squares + np.einsum("np,np->n", pairs, f)
            y = (explained - score) / residual
            return float(y[0]), (y[1:] - y[0]) / np.diagonal(points[1:] - x)

        slopes = (SLOPE[0], 0.0) if start[2] < 0 else (0.0, SLOPE[1])
        bounds = [(start[0] - 1, start[0] + 1), (math.log(TURN[0]), math.log(TURN[1])), slopes]
        high = np.array([b[1] for b in bounds])
        found: Any = minimize(left_over, start, jac=True, method="L-BFGS-B", bounds=bounds)
        alpha_rot, beta_rot = self.scalars(found.x[1:])
        return Turn(float(alpha_rot), float(beta_rot), max(-float(found.fun), 0.0), _edges(found.x))


def _edges(point: Array) -> tuple[str, ...]:
    """The scalars that ended on an edge of the search."""
    near = 1e-3
    turn = [math.log(t) for t in TURN]
    edges = []
    if min(abs(point[1] - t) for t in turn) < near:
        edges.append("alpha_rot")
    if min(abs(point[2] - s) for s in SLOPE) < near:
        edges.append("beta_rot")
    return tuple(edges)
