"""Robust fits of y = log sum_t exp(X_t theta + c_t), many at once: damped Newton steps on a summed Huber loss.

A sum of power laws is of this form in log space, with every parameter in an exponent, so nothing changes sign or
scale with the units. Dimensions: B problems (starts or resamples), T terms, N points, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    A step solves (J^T (Q + d W) J) s = -gradient: Q is 1 where the loss is a parabola and 0 where it is a line
    (Newton), W is 1 and delta / |residual| there (reweighted least squares, which never overshoots by much). The
    damping d of a problem falls with every step that lowers its loss and rises with every one that does not.

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
    free_BNP = np.where(held_BP[:, None], 0.0, slope_BNP)
    matrix_BPP = np.swapaxes(free_BNP * curve_BN[:, :, None], 1, 2) @ free_BNP
    diagonal_BP = np.einsum("bpp->bp", matrix_BPP)
    diagonal_BP += 1e-12 * diagonal_BP.max(1, keepdims=True) + 1e-300 + held_BP
    step_BP = np.linalg.solve(matrix_BPP, np.where(held_BP, 0.0, -gradient_BP)[..., None])[..., 0]
    return np.clip(step_BP, -LONGEST, LONGEST), flat_B


def _is_flat(gradient_BP: Array, pull_BN: Array, slope_BNP: Array, problem: Problem) -> Flags:
    """Is the gradient zero but for rounding, or every residual?"""
    parts_BP = np.einsum("bn,bnp->bp", np.abs(pull_BN), np.abs(slope_BNP))
    balanced_B = (np.abs(gradient_BP) <= TOLERANCE * parts_BP).all(1)
    return balanced_B | (np.abs(pull_BN).max(1) <= 1e-9 * problem.delta * problem.weights_N.max())
