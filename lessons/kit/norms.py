"""Lesson 5: SmolLM2's gains, the checks of its exercises and their solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kit.show import Verdict, answer_of, right, wrong

Array: TypeAlias = NDArray[np.float64]

DATA = Path(__file__).parents[1] / "data" / "smollm2-135m.npz"
SITES = {"attn_in": "attention read", "mlp_in": "MLP read"}


def smollm2() -> dict[str, Array]:
    """The gains (30, 576) of what SmolLM2-135M's attention and MLP read; see data/README.md."""
    with np.load(DATA) as arrays:
        return {words: arrays[name].astype(np.float64) for name, words in SITES.items()}


def growing(n: int = 32, d: int = 4096, top: float = 8.0, noise: float = 0.05, seed: int = 0) -> Array:
    """n copies of one flat vector of R^d, scaled 1 to `top`, each with noise in proportion: nothing turns."""
    scale = np.linspace(1.0, top, n)[:, None]
    return scale * (1.0 + noise * np.random.default_rng(seed).standard_normal((n, d)))


# --------------------------------------------------------------------------------------------------- exercise 1
def solve_angle(a: Array, b: Array) -> float:
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def check_angle(f: Callable[[Array, Array], float]) -> Verdict:
    """The angle between two gain vectors in degrees, f(a, b)."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.2, 1.0, 20)
    b = 3.0 * a + rng.normal(0, 0.3, 20)
    found = answer_of(f, a, b)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong("One number for two vectors.")
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    x, y = a - a.mean(), b - b.mean()
    for value, says in (
        (np.arccos(cosine), "In radians; degrees were asked for."),
        (cosine, "That is the cosine. Its arc cosine is the angle."),
        (1 - cosine, "One less the cosine is a distance; the angle is the arc cosine."),
        (np.degrees(np.arccos(x @ y / np.sqrt((x @ x) * (y @ y)))), "The means were taken out first: that angle is about "
         "a centroid, and changes when a constant is added. Gains are directions from the origin."),
        (np.degrees(np.arcsin(cosine)), "arcsin in place of arccos: 90 degrees less the angle."),
    ):  # fmt: skip
        if np.isclose(found, value):
            return wrong(says)
    same = answer_of(f, a, 5.0 * a, shape=())
    if isinstance(same, Verdict) or not np.isclose(same, 0, atol=1e-5):
        return wrong("a and 5a point the same way: 0 degrees. Divide by both lengths, and clip the cosine to 1.")
    if not np.isclose(found, solve_angle(a, b)):
        return wrong("It differs from the arc cosine of a.b / (|a| |b|).")
    return right("Size does not enter. This is the angle that a picture must be held against.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_picture(rows: Array) -> Array:
    centred = rows - rows.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    return u[:, :2] * s[:2]


def _gaps(points: Array) -> Array:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def check_picture(f: Callable[[Array], Array]) -> Verdict:
    """Classical scaling of rows (L, d) to two dimensions, f(rows) -> (L, 2), whatever its turn and mirror image."""
    rng = np.random.default_rng(1)
    rows = 2.0 + rng.normal(size=(12, 2)) @ rng.normal(size=(2, 9)) + 0.05 * rng.normal(size=(12, 9))
    found = answer_of(f, rows.copy())
    if isinstance(found, Verdict):
        return found
    if found.shape != (12, 2):
        return wrong(f"Two coordinates for each of 12 layers, (12, 2); this has shape {found.shape}.")
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    raw, t, _ = np.linalg.svd(rows, full_matrices=False)
    for points, says in (
        (raw[:, :2] * t[:2], "Not centred: distances do not know the origin, so classical scaling puts it in the centroid. "
         "(That very centring makes the mirage.)"),
        (u[:, :2], "The axes have one length each: multiply them by their singular values."),
        (u[:, :2] * s[:2] ** 2, "Scaled by eigenvalues. Coordinates have their square roots, the singular values."),
        (u[:, 1:3] * s[1:3], "The largest axis is missing: take the first two."),
        (u[:, -2:] * s[-2:], "The two smallest axes: eigh sorts upwards."),
    ):  # fmt: skip
        if np.allclose(_gaps(found), _gaps(points)):
            return wrong(says)
    if not np.allclose(_gaps(found), _gaps(u[:, :2] * s[:2])):
        return wrong("Distances between points are not those of the first two principal axes of the centred rows.")
    if not np.allclose(found.mean(0), 0, atol=1e-8):
        return wrong("Right distances, but the centroid is not at the origin.")
    return right("Classical scaling of distances is a projection on the first two principal axes, about the centroid.")


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_p(real: float, shuffled: Sequence[float]) -> float:
    as_good = sum(value >= real for value in shuffled)
    return (1 + as_good) / (1 + len(shuffled))


def check_p(f: Callable[[float, Sequence[float]], float]) -> Verdict:
    """The p-value of a gain against those of shuffled tables, f(real, shuffled); larger is better."""
    shuffled = [0.2, 0.9, 0.1, 0.5, 0.3, 0.7, 0.4, 0.6, 0.05]
    found = answer_of(f, 0.65, shuffled, shape=())
    if isinstance(found, Verdict):
        return found
    for value, says in (
        (2 / 9, "The real table is one of those that could have come up: add it to both counts, or p can be 0."),
        (2 / 10, "The real table does as well as itself: it belongs into the numerator too."),
        (3 / 9, "The real table was counted above, but not below."),
        (8 / 10, "The other tail: p is the share that does as well or better, here as large or larger."),
        (7 / 9, "The other tail: p is the share that does as well or better."),
        (7 / 10, "One less p."),
        (30.0, "A share, not a percentage."),
    ):
        if np.isclose(found, value):
            return wrong(says)
    if not np.isclose(found, 0.3):
        return wrong("Two of nine shuffled tables do as well as 0.65; with the real one that is three of ten.")
    tie = answer_of(f, 0.7, shuffled, shape=())
    if isinstance(tie, Verdict):
        return tie
    if not np.isclose(tie, 0.3):
        return wrong("Right but for ties: a shuffled table that does exactly as well counts.")
    return right("With n shuffles the smallest p is 1 / (n + 1): fewer than 19 cannot reach 0.05.")
