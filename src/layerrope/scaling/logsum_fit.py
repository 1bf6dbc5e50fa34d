"""Robust fits of y = log sum_t exp(X_t theta + c_t), many at once: damped Newton steps on a summed Huber loss.

A sum of power laws is of this form in log space, with every parameter in an exponent, so nothing changes sign or
scale with the units. Dimensions: B problems (starts or resamples), T terms, N points, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

STEPS = 400
"""Newton steps before a problem counts as not converged."""
TOLERANCE = 1e-5
"""Largest gradient at a minimum, relative to the sum of the sizes of its parts."""
LONGEST = 2.0
"""Largest change of a parameter in one step: a factor of e^2 in what it is the logarithm of."""
RIDGE = 1e-4
"""Share of the largest curvature that full damping adds to each: what the points hardly determine moves slowly."""
AGREE = 1e-6
"""Objectives within this share of each other are one."""


@dataclass(frozen=True)
class Problem:
    """What B fits have in common."""

    design_TNP: Array
    offset_TN: Array
    weights_N: Array
    least_P: Array
    """lower bounds, -inf where there is none"""
    delta: float
    """residual at which the Huber loss turns from a parabola into a line"""


@dataclass(frozen=True)
class Solved:
    """Where B fits ended."""

    theta_BP: Array
    value_B: Array
    converged_B: Flags


def predict(theta_BP: Array, problem: Problem) -> tuple[Array, Array]:
    """log sum_t exp(X_t theta + c_t), (B, N), and its derivative by theta, (B, N, P)."""
    z_BTN = np.einsum("tnp,bp->btn", problem.design_TNP, theta_BP, optimize=True) + problem.offset_TN
    top_BN = z_BTN.max(1)
    shares_BTN = np.exp(z_BTN - top_BN[:, None])
    total_BN = shares_BTN.sum(1)
    shares_BTN /= total_BN[:, None]
    slope_BNP = np.zeros((*total_BN.shape, problem.design_TNP.shape[2]))
    for share_BN, design_NP in zip(shares_BTN.swapaxes(0, 1), problem.design_TNP, strict=True):
        slope_BNP += share_BN[:, :, None] * design_NP
    return top_BN + np.log(total_BN), slope_BNP


def objective(theta_BP: Array, y_BN: Array, problem: Problem) -> tuple[Array, Array]:
    """The summed Huber loss of every problem, (B,), and its gradient, (B, P)."""
    fitted_BN, slope_BNP = predict(theta_BP, problem)
    residual_BN = y_BN - fitted_BN
    pull_BN = problem.weights_N * np.clip(residual_BN, -problem.delta, problem.delta)
    return _loss(residual_BN, problem), -np.einsum("bn,bnp->bp", pull_BN, slope_BNP)


def _loss(residual_BN: Array, problem: Problem) -> Array:
    size_BN = np.abs(residual_BN)
    near_BN = np.minimum(size_BN, problem.delta)
    return (problem.weights_N * near_BN * (size_BN - near_BN / 2)).sum(1)


def minimise(theta_BP: Array, y_BN: Array, problem: Problem) -> Solved:
    """The minimum of every problem from its own start.

    A step solves (J^T (Q + d W) J + d r I) s = -gradient: Q is 1 where the loss is a parabola and 0 where it is a line
    (Newton), W is 1 and delta / |residual| there (reweighted least squares, which never overshoots by much), and the
    ridge r keeps the step short along a curved valley, as that of a floor which the points hardly bound (Levenberg
    1944, Marquardt 1963). The damping d of a problem falls with every step that lowers its loss and rises with every
    one that does not.

    Args:
        theta_BP: starts.
        y_BN: data; one row may serve all problems.
        problem: what they share.
    """
    theta_BP = np.maximum(theta_BP, problem.least_P)
    y_BN = np.broadcast_to(y_BN, (len(theta_BP), y_BN.shape[1]))
    converged_B = np.zeros(len(theta_BP), dtype=bool)
    value_B, damping_B = _loss(y_BN - predict(theta_BP, problem)[0], problem), np.ones(len(theta_BP))
    for _ in range(STEPS):
        open_B = np.flatnonzero(~converged_B & (damping_B < 1e12))
        if not len(open_B):
            break
        step_BP, flat_B = _step(theta_BP[open_B], y_BN[open_B], damping_B[open_B], problem)
        tried_BP = np.maximum(theta_BP[open_B] + step_BP, problem.least_P)
        tried_B = _loss(y_BN[open_B] - predict(tried_BP, problem)[0], problem)
        converged_B[open_B] = flat_B
        better_B = (tried_B < value_B[open_B]) & ~flat_B
        theta_BP[open_B[better_B]], value_B[open_B[better_B]] = tried_BP[better_B], tried_B[better_B]
        damping_B[open_B] *= np.where(better_B, 0.2, 4.0)
        damping_B = np.maximum(damping_B, 1e-9)
    return Solved(theta_BP, value_B, converged_B)


def best_of(value_SB: Array, converged_SB: Flags) -> NDArray[np.intp]:
    """The start that ended lowest, for every problem, (B,): of those that agree with the lowest a converged one."""
    usable_SB = converged_SB & agreeing(value_SB)
    return np.where(usable_SB | ~usable_SB.any(0), value_SB, np.inf).argmin(0)


def agreeing(value_SB: Array) -> Flags:
    """Which starts ended at the lowest objective of their problem, (S, B)."""
    return value_SB <= value_SB.min(0) * (1 + AGREE) + 1e-15


def _step(theta_BP: Array, y_BN: Array, damping_B: Array, problem: Problem) -> tuple[Array, Flags]:
    """The next step of every problem, and whether it is at its minimum already."""
    fitted_BN, slope_BNP = predict(theta_BP, problem)
    residual_BN = y_BN - fitted_BN
    size_BN = np.abs(residual_BN)
    pull_BN = problem.weights_N * np.clip(residual_BN, -problem.delta, problem.delta)
    gradient_BP = -np.einsum("bn,bnp->bp", pull_BN, slope_BNP)
    held_BP = (theta_BP <= problem.least_P) & (gradient_BP > 0)
    flat_B = _is_flat(np.where(held_BP, 0.0, gradient_BP), pull_BN, slope_BNP, problem)
    softer_BN = problem.delta / np.maximum(size_BN, problem.delta)
    curve_BN = problem.weights_N * ((size_BN <= problem.delta) + damping_B[:, None] * softer_BN)
    matrix_BPP = np.swapaxes(slope_BNP * curve_BN[:, :, None], 1, 2) @ slope_BNP
    diagonal_BP = np.einsum("bpp->bp", matrix_BPP)
    diagonal_BP += (1e-12 + RIDGE * damping_B[:, None]) * diagonal_BP.max(1, keepdims=True) + 1e-300
    step_BP = _solve(matrix_BPP, gradient_BP, problem.least_P - theta_BP)
    return np.clip(step_BP, -LONGEST, LONGEST), flat_B


def _solve(matrix_BPP: Array, gradient_BP: Array, room_BP: Array) -> Array:
    """The minimum of gradient s + s matrix s / 2 over steps s of at least `room` (at most 0).

    Where the free minimum lies beyond a bound, the step goes to the bound and the other parameters are solved for
    again: their share of a step that was cut short would lead uphill. Exact for one bounded parameter, and there is
    no more than one floor.
    """
    step_BP = cast(Array, np.linalg.solve(matrix_BPP, -gradient_BP[..., None]))[..., 0]
    beyond_BP = step_BP < room_BP
    if not beyond_BP.any():
        return step_BP
    fixed_BP = np.where(beyond_BP, room_BP, 0.0)
    rest_BP = -gradient_BP - np.einsum("bpq,bq->bp", matrix_BPP, fixed_BP)
    free_BPP = np.where(beyond_BP[:, :, None] | beyond_BP[:, None, :], 0.0, matrix_BPP)
    diagonal_BP = np.einsum("bpp->bp", free_BPP)
    diagonal_BP += beyond_BP
    return fixed_BP + np.linalg.solve(free_BPP, np.where(beyond_BP, 0.0, rest_BP)[..., None])[..., 0]


def _is_flat(gradient_BP: Array, pull_BN: Array, slope_BNP: Array, problem: Problem) -> Flags:
    """Is the gradient zero but for rounding, or every residual?"""
    parts_BP = np.einsum("bn,bnp->bp", np.abs(pull_BN), np.abs(slope_BNP))
    balanced_B = (np.abs(gradient_BP) <= TOLERANCE * parts_BP).all(1)
    return balanced_B | (np.abs(pull_BN).max(1) <= 1e-9 * problem.delta * problem.weights_N.max())
