"""Lesson 4: the checks of its exercises and their solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kit.show import Verdict, answer_of, right, wrong
from layerrope import LM

Array: TypeAlias = NDArray[np.float64]

SITES = ("attention read", "attention write", "MLP read", "MLP write")


# --------------------------------------------------------------------------------------------------- exercise 1
def solve_table(
    gamma: Array, n_layer: int, alpha: float, beta: float, alpha_rot: float, beta_rot: float, base: float
) -> Array:
    depth = np.log(np.arange(1, n_layer + 1))[:, None]
    angle = np.exp(alpha_rot + beta_rot * depth) * base ** (-np.arange(0, len(gamma), 2) / len(gamma))
    size = np.exp(alpha + beta * depth)
    pairs = (gamma[0::2] + 1j * gamma[1::2]) * size * np.exp(1j * angle)
    return np.stack((pairs.real, pairs.imag), axis=-1).reshape(n_layer, -1)


def _table(gamma: Array, log_size: Array, angle: Array, spectrum: Array, halves: bool = False) -> Array:
    """Rows exp(log_size) gamma with pairs turned by angle times spectrum; log_size and angle are (L,)."""
    d = len(gamma)
    order = np.arange(d).reshape(2, -1).T.reshape(-1) if halves else np.arange(d)
    pairs = (gamma[order][0::2] + 1j * gamma[order][1::2]) * np.exp(1j * angle[:, None] * spectrum)
    rows = np.empty((len(angle), d))
    rows[:, order] = np.stack((pairs.real, pairs.imag), -1).reshape(len(angle), -1)
    return np.exp(log_size)[:, None] * rows


TRIAL = (0.1, -0.4, -0.2, -0.7, 50.0)
"""alpha, beta, alpha_rot, beta_rot, base that the check builds a table with."""


def _wrong_tables(gamma: Array, n_layer: int) -> Iterator[tuple[Array, str]]:
    alpha, beta, alpha_rot, beta_rot, base = TRIAL
    layer, d = np.arange(n_layer), len(gamma)
    depth, channel = np.log(layer + 1), np.arange(0, d, 2)
    size, angle, spectrum = alpha + beta * depth, np.exp(alpha_rot + beta_rot * depth), base ** (-channel / d)
    yield _table(gamma, size, 0 * angle, spectrum), "The sizes are right; nothing turns yet."
    yield _table(gamma, 0 * size, angle, spectrum), "The turn is right; the size does not change with depth yet."
    yield _table(gamma, size, -angle, spectrum), "Every pair turns the wrong way: e^(i theta) is (cos, sin)."
    yield (
        _table(gamma, size, alpha_rot + beta_rot * depth, spectrum),
        "The base angle is the exponential of alpha_rot + beta_rot log(l + 1): an angle, like a size, is a power law here.",
    )
    yield (
        _table(gamma, np.log(np.maximum(alpha + beta * depth, 1e-300)), angle, spectrum),
        "r(l) is the logarithm of the size: multiply by exp(r), not by r.",
    )
    yield (
        _table(gamma, alpha + beta * layer, np.exp(alpha_rot + beta_rot * layer), spectrum),
        "Linear in l: that is a geometric schedule. The law is linear in log(l + 1).",
    )
    yield (
        _table(gamma, alpha + beta * np.log(layer + 2), np.exp(alpha_rot + beta_rot * np.log(layer + 2)), spectrum),
        "One layer too deep: l counts from 0, so layer 0 has log(1) = 0 and only the offsets act there.",
    )
    yield (
        _table(gamma, alpha + beta * np.log10(layer + 1), np.exp(alpha_rot + beta_rot * np.log10(layer + 1)), spectrum),
        "log10 instead of the natural logarithm.",
    )
    yield (
        _table(gamma, size, angle, base ** (-channel / (2 * d))),
        "The spectrum is base^(-2j/d) for pair j: it falls too slowly.",
    )
    yield _table(gamma, size, angle, np.ones(d // 2)), "One angle for every pair. The spectrum over pairs is missing."
    yield (
        _table(gamma, size, angle, spectrum, halves=True),
        "Right angles, other pairs: here channels (2j, 2j + 1) belong together, not (j, j + d/2).",
    )


def check_table(f: Callable[..., Array]) -> Verdict:
    """The gain table of one site in numpy, f(gamma, n_layer, alpha, beta, alpha_rot, beta_rot, base)."""
    gamma, n_layer = np.random.default_rng(0).uniform(0.5, 1.5, 12), 5
    found = answer_of(f, gamma, n_layer, *TRIAL)
    if isinstance(found, Verdict):
        return found
    if found.shape == (12, n_layer):
        return wrong("Transposed: one row a layer, (L, d).")
    if found.shape != (n_layer, 12):
        return wrong(f"The table has shape {found.shape}; five layers of width 12 make (5, 12).")
    if not np.isfinite(found).all():
        return wrong("There is a nan or an infinity in it: log(0)? The law has log(l + 1), so that layer 0 is finite.")
    for table, says in _wrong_tables(gamma, n_layer):
        if np.allclose(found, table):
            return wrong(says)
    truth = solve_table(gamma, n_layer, *TRIAL)
    if not np.allclose(found[0], truth[0]):
        return wrong("Layer 0 is off already, where log(l + 1) = 0: only alpha, alpha_rot and the spectrum act there.")
    if not np.allclose(found, truth):
        return wrong("Layer 0 is right and deeper ones are not: look at the two slopes.")
    return right("That is Eq. 1. The norm of row l is e^r(l) times gamma's, whatever the rotation does.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_slope(rows: Array) -> float:
    depth = np.log(np.arange(1, len(rows) + 1))
    size = np.log(np.linalg.norm(rows, axis=1))
    return float(np.polyfit(depth, size, 1)[0])


def check_slope(f: Callable[[Array], float]) -> Verdict:
    """Reading beta back from a table (L, d) of gains that also turn."""
    rng = np.random.default_rng(1)
    n_layer, beta = 24, 0.6
    depth = np.log(np.arange(1, n_layer + 1))
    gamma = rng.normal(size=32)
    rows = _table(gamma, 0.3 + beta * depth, np.exp(0.2 - 0.5 * depth), 100.0 ** (-np.arange(0, 32, 2) / 32))
    found = answer_of(f, rows)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong(f"A slope is one number; this has shape {found.shape}.")
    norms = np.linalg.norm(rows, axis=1)
    layer = np.arange(n_layer)
    by_layer, by_log = (float(np.polyfit(layer, y, 1)[0]) for y in (np.log(norms), norms))
    for value, says in (
        (by_layer, "The slope against l. A power law is straight against log(l + 1)."),
        (by_log, "The slope of the size against l: take logarithms of both."),
        (float(np.polyfit(depth, norms, 1)[0]), "The size itself is not straight in log(l + 1); its logarithm is."),
        (float(np.polyfit(depth, np.log(norms**2), 1)[0]), "Twice too large: that is the slope of the squared size."),
        (float(np.polyfit(np.log(norms), depth, 1)[0]), "The axes are exchanged: this is one over the slope."),
        (float(np.polyfit(depth, np.log(np.abs(rows[:, 0])), 1)[0]), "The slope of one channel. Channels turn into their "
         "neighbours; only the size of the whole row follows the power law."),
        (float(np.polyfit(depth, np.log(np.abs(rows.mean(1))), 1)[0]), "The mean over channels feels the turn and the signs. "
         "The norm of the row does not."),
    ):  # fmt: skip
        if np.isclose(found, value, rtol=1e-6):
            return wrong(says)
    if not np.isfinite(found):
        return wrong("Not a number: log of layer 0? Depth enters as l + 1.")
    if not np.isclose(found, beta, atol=1e-3):
        return wrong("The table was made with another slope. Fit log |row| against log(l + 1) with a straight line.")
    return right("Rotation keeps the size of every pair, so the slope can be read off any table, turned or not.")


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_fold(weight: Array, gain: Array) -> Array:
    return gain[:, None] * weight


def check_fold(f: Callable[[Array, Array], Array]) -> Verdict:
    """A write gain folded into an output projection: f(weight (d, d_in), gain (d,)) for y = gain * (weight @ a)."""
    rng = np.random.default_rng(2)
    weight, gain, a = rng.normal(size=(6, 6)), rng.uniform(0.5, 2.0, 6), rng.normal(size=6)
    kept = weight.copy()
    found = answer_of(f, weight, gain)
    if isinstance(found, Verdict):
        return found
    if not np.array_equal(weight, kept):
        return wrong("The weight was changed in place: folding twice would apply the gain twice.")
    if found.shape != weight.shape:
        return wrong(f"A folded weight has the weight's shape {weight.shape}, not {found.shape}.")
    for folded, says in (
        (weight * gain, "Columns were scaled: that is a gain on what the projection reads. A write gain acts on its output, "
         "so on rows."),
        (weight, "Nothing was folded."),
        (weight / gain[:, None], "Divided by the gain: right rows, wrong way."),
        (weight + gain[:, None], "The gain multiplies the output; adding it to the weight is another function."),
    ):  # fmt: skip
        if np.allclose(found, folded):
            return wrong(says)
    if not np.allclose(found @ a, gain * (weight @ a)):
        return wrong("The folded projection gives another output than gain * (weight @ a).")
    return right("Row i of the projection makes channel i of the output, so it takes gain i. No gate is left to run.")


# --------------------------------------------------------------------------------------------- reading the model
def slopes(model: LM) -> list[dict[str, float | str]]:
    """Learned offsets and slopes of a LayerRoPE model, one row a site."""
    gains = model.gains
    assert gains is not None
    columns = {"size at layer 0": gains.alpha.exp(), "slope of the size": gains.beta,
               "angle at layer 0, degrees": gains.alpha_rot.exp().rad2deg(), "slope of the angle": gains.beta_rot}  # fmt: skip
    return [
        {"site": site, **{name: value[i].item() for name, value in columns.items()}} for i, site in enumerate(SITES)
    ]


def sizes(model: LM) -> list[dict[str, float | str]]:
    """Root mean square of the gain at every layer and site, rows for a chart."""
    assert model.gains is not None
    rms = model.gains(model.config.n_layer).detach().square().mean(-1).sqrt().flatten(1)
    return [
        {"layer": layer, "gain": float(value), "site": site}
        for layer, row in enumerate(rms)
        for site, value in zip(SITES, row, strict=True)
    ]
