"""How a positive quantity grows with depth: power law, exponential, linear or constant, compared fairly.

All four are fitted to log y by least squares, so they share one error model (a relative error of the same size
at every depth) and their AICc can be compared. Depth l is 0-based and enters as l + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.inspector.scale import exp

Vector: TypeAlias = NDArray[np.float64]

#: Law -> how it reads, with its two parameters.
LAWS = {
    "power": "c (l+1)^slope",
    "exponential": "c exp(slope l)",
    "linear": "c (1 + slope l)",
    "constant": "c",
}


#: A logarithm that varies by no more than this does not vary.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Law:
    """One fitted law."""

    name: str
    c: float
    slope: float | None
    """exponent, rate or relative increase per layer; None for the constant"""
    r2: float
    """share of the variance of log y explained"""
    aicc: float | None
    """corrected Akaike criterion; None with too few layers for it"""
    n: int
    """layers fitted"""


@dataclass(frozen=True)
class PowerLaw:
    """y = c (l+1)^beta, with percentile intervals from resampled layers."""

    c: float
    beta: float
    r2: float
    c_interval: tuple[float, float] | None
    beta_interval: tuple[float, float] | None
    resamples: int
    """resamples that could be fitted (those drawing one depth only cannot)"""
    n: int

    def at(self, layer: int) -> float:
        """What the law gives for a layer; infinite where that is no float64."""
        return exp(math.log(self.c) + self.beta * math.log(layer + 1)) if 0 < self.c < math.inf else self.c


def fit_laws(layers: Vector, y: Vector) -> dict[str, Law]:
    """The laws of `LAWS` fitted to `y` (n,) > 0 at depths `layers` (n,), best AICc first. n must be at least 2."""
    log_y, start = _from_first(y)
    fits = [
        _law("power", *_line(np.log(layers + 1), log_y), np.log(layers + 1), log_y),
        _law("exponential", *_line(layers, log_y), layers, log_y),
        _linear(layers, log_y),
        _law("constant", float(log_y.mean()), None, layers, log_y),
    ]
    fits = [replace(fit, c=exp(fit.c + start)) for fit in fits]
    ranked = sorted(fits, key=lambda f: math.inf if f.aicc is None else f.aicc)
    return {fit.name: fit for fit in ranked}


def best_law(laws: dict[str, Law]) -> str | None:
    """The name of the law with the best AICc, None with too few layers to give every law one."""
    return next(iter(laws)) if all(law.aicc is not None for law in laws.values()) else None


def power_law(layers: Vector, y: Vector, resamples: int = 2000, seed: int = 0) -> PowerLaw:
    """y = c (l+1)^beta by least squares on log y, layers resampled with replacement for 95% intervals.

    Args:
        layers: depths (n,), 0-based, n >= 2.
        y: (n,), positive.
        resamples: how many bootstrap resamples; 0 for none.
        seed: of the resampling.
    """
    x = np.log(layers + 1)
    log_y, start = _from_first(y)
    log_c, beta = _line(x, log_y)
    picks = np.random.default_rng(seed).integers(0, len(x), (resamples, len(x)))
    slopes, offsets = _lines(x[picks], log_y[picks])
    enough = len(slopes) >= 100
    return PowerLaw(
        c=exp(log_c + start),
        beta=beta,
        r2=_r2(log_y, log_c + beta * x),
        c_interval=_interval(_exps(offsets + start)) if enough else None,
        beta_interval=_interval(slopes) if enough else None,
        resamples=len(slopes),
        n=len(x),
    )


def _from_first(y: Vector) -> tuple[Vector, float]:
    """log(y / y[0]) and log y[0]: exactly zeros for a constant, whatever its size."""
    log_y = np.log(y)
    return log_y - log_y[0], float(log_y[0])


def aicc(residuals: Vector, n_parameters: int) -> float | None:
    """n log(RSS/n) + 2k + 2k(k+1)/(n-k-1), k counting the variance; None unless n > k + 1.

    Hurvich and Tsai 1989, Biometrika 76(2), Eq. 5, up to a constant.
    """
    n, k = len(residuals), n_parameters + 1
    if n <= k + 1:
        return None
    rss = max(float(residuals @ residuals), n * ROUNDING**2)  # an exact fit stays finite
    return n * math.log(rss / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """(offset, slope) of least squares."""
    dx = x - x.mean()
    slope = float(dx @ y / max(float(dx @ dx), 1e-300))
    return float(y.mean() - slope * x.mean()), slope


def _lines(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[Vector, Vector]:
    """(slopes, offsets) row by row, without the rows whose x are all the same."""
    dx = x - x.mean(axis=1, keepdims=True)
    spread = np.einsum("bn,bn->b", dx, dx)
    fit = spread > 1e-12
    slopes = np.einsum("bn,bn->b", dx[fit], y[fit]) / spread[fit]
    return slopes, y[fit].mean(axis=1) - slopes * x[fit].mean(axis=1)


def _exps(values: Vector) -> Vector:
    with np.errstate(over="ignore"):
        return np.minimum(np.exp(values), np.finfo(np.float64).max)  # quantiles of infinities would be NaN


def _interval(values: Vector) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _law(name: str, log_c: float, slope: float | None, x: Vector, log_y: Vector) -> Law:
    """A law whose `c` is still its logarithm."""
    fitted = np.full_like(log_y, log_c) if slope is None else log_c + slope * x
    score = aicc(log_y - fitted, 1 if slope is None else 2)
    return Law(name, log_c, slope, _r2(log_y, fitted), score, len(log_y))


def _linear(layers: Vector, log_y: Vector) -> Law:
    """c (1 + slope l), `c` still a logarithm: for a given slope it is a mean, so one bounded search is enough."""
    from scipy.optimize import minimize_scalar

    top = float(layers.max())

    def spread(t: float) -> float:
        return float(np.var(log_y - np.log1p(_slope(t, top) * layers)))

    # t in (-1, 1) is the relative change between first and last layer, slope l_max = t/(1-|t|) or -|t|.
    grid = np.linspace(-0.999, 0.999, 81)
    best = grid[int(np.argmin([spread(t) for t in grid]))]
    found: Any = minimize_scalar(
        spread, bounds=(max(best - 0.025, -0.9999), min(best + 0.025, 0.9999)), method="bounded"
    )
    slope = _slope(float(found.x), top)
    shape = np.log1p(slope * layers)
    log_c = float((log_y - shape).mean())
    residuals = log_y - log_c - shape
    return Law("linear", log_c, slope, _r2(log_y, log_y - residuals), aicc(residuals, 2), len(log_y))


def _slope(t: float, top: float) -> float:
    return (t / (1 - t) if t > 0 else t) / max(top, 1.0)


def _r2(y: Vector, fitted: Vector) -> float:
    """1 - RSS/TSS; nan where y varies by nothing but rounding."""
    total = float(np.sum((y - y.mean()) ** 2))
    return 1 - float(np.sum((y - fitted) ** 2)) / total if total > len(y) * ROUNDING**2 else math.nan
