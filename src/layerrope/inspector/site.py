"""Everything that is computed for one norm site."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layerrope.inspector.angles import (
    Angles,
    Outliers,
    angles,
    outliers,
    rank1_share,
    shared_direction,
    unit_rows,
)
from layerrope.inspector.depth_law import Law, PowerLaw, fit_laws, power_law
from layerrope.inspector.gain_fit import GainFit, fit_gains
from layerrope.inspector.mds import Null, Picture, picture, rank1_null
from layerrope.inspector.scale import exponent, lengths, root_mean_square, scaled, times_power_of_two
from layerrope.inspector.table import Matrix, Row, Site
from layerrope.norm_sites import STREAM_ROLES

#: With fewer usable layers than this, or more, nothing is fitted.
FEWEST, MOST = 3, 1024
#: Draws of the picture's null, and with more layers than `DEEP`, since each takes time as their cube.
DRAWS, DEEP, DRAWS_DEEP = 50, 256, 12


@dataclass(frozen=True)
class View:
    """One selection of a site's layers: all of them, or all but the first."""

    layers: tuple[int, ...]
    laws: dict[str, Law]
    """best AICc first"""
    power: PowerLaw
    angles: Angles
    """pairs by layer number"""
    rank1: float
    """share of the squared norm on the best rank-1 direction"""
    rank1_unit: float
    """the same with every row at length one"""
    largest_angle_abs: float
    """largest angle between the layers' |g|, degrees: the sign of a gain is arbitrary"""
    rank1_abs: float
    picture: Picture
    fit: GainFit

    def __repr__(self) -> str:
        largest = f"largest angle {self.angles.largest:.1f}°"
        return f"View({len(self.layers)} layers, beta {self.power.beta:.3f}, {largest}, rank-1 {self.rank1:.4f})"


@dataclass(frozen=True)
class SiteReport:
    """What one site's gains say about depth."""

    site: Site
    d: int
    left_out: tuple[int, ...]
    """layers that enter no fit: broken, all zeros, all ones among trained ones, or of another width"""
    whole: View | None
    """None outside `FEWEST` to `MOST` usable layers, or where every gain is one"""
    later: View | None
    """without layer 0; None where there is none, or too few remain"""
    outliers: Outliers | None
    null: Null | None
    """the sweep of the picture for a table that does not turn"""

    def __repr__(self) -> str:
        fitted = f"fitted on {len(self.whole.layers)}" if self.whole else "not fitted"
        return f"SiteReport({self.site!r}, {fitted})"

    @property
    def of_the_stream(self) -> bool:
        """Does the site read or write the stream (or is it unknown)?"""
        return of_the_stream(self.site.role)


def of_the_stream(role: str) -> bool:
    """Does a role read or write the stream, so that LayerRoPE could cover it? Unknown roles count."""
    return role in STREAM_ROLES or role.startswith("unknown")


def layer_statistics(row: Row) -> dict[str, Any]:
    """RMS, mean and the rest of one vector; NaN where the vector is broken."""
    g = row.values
    counts = {"negative": int(np.sum(g < 0)), "zero": int(np.sum(g == 0))}
    if g.size == 0 or not np.isfinite(g).all():
        return {"d": g.size, **dict.fromkeys(_NUMBERS, math.nan), **counts}
    e = exponent(g)
    near_one = scaled(g, -e)
    spread, rms = float(near_one.std()), float(root_mean_square(near_one))
    numbers = (
        float(root_mean_square(g)),
        times_power_of_two(float(near_one.mean()), e),
        times_power_of_two(float(np.abs(near_one).mean()), e),
        float(lengths(g)),
        float(g.min()),
        float(g.max()),
        spread / rms if rms > 0 else math.nan,
    )
    return {"d": g.size, **dict(zip(_NUMBERS, numbers, strict=True)), **counts}


_NUMBERS = ("rms", "mean", "mean_abs", "l2", "min", "max", "std_over_rms")


def report_site(site: Site, base: float = 100.0, shuffles: int = 20, seed: int = 0) -> SiteReport:
    """Measure one site.

    Args:
        site: its gains, layer by layer.
        base: of LayerRoPE's spectrum.
        shuffles: shuffled tables in the rotation's null.
        seed: of every random draw.
    """
    rows, layers = site.matrix, site.layers
    used = set(layers.tolist())
    left_out = tuple(row.layer for row in site.rows if row.layer not in used)
    d = rows.shape[1] if rows.ndim == 2 else 0
    if not FEWEST <= len(rows) <= MOST or d < 2 or site.untrained:
        return SiteReport(site, d, left_out, None, None, None, None)
    whole = _view(rows, layers, base, shuffles, seed, of_the_stream(site.role))
    later = layers > 0
    without = _view(rows[later], layers[later], base, 0, seed, False) if FEWEST <= later.sum() < len(rows) else None
    rows = scaled(rows, -exponent(rows))
    shared = shared_direction(rows)
    null = rank1_null(rows, shared, DRAWS if len(rows) <= DEEP else DRAWS_DEEP, seed)
    return SiteReport(site, d, left_out, whole, without, outliers(rows, shared), null)


def _view(rows: Matrix, layers: Any, base: float, shuffles: int, seed: int, rotation: bool) -> View:
    """One view. What sums squares is computed of the rows scaled near 1, which changes no number without a unit."""
    depth, e = layers.astype(np.float64), exponent(rows)
    near_one = scaled(rows, -e)
    rms = np.maximum(root_mean_square(rows), np.finfo(np.float64).smallest_subnormal)
    return View(
        layers=tuple(layers.tolist()),
        laws=fit_laws(depth, rms),
        power=power_law(depth, rms, seed=seed),
        angles=_by_layer(angles(rows), layers),
        rank1=rank1_share(near_one),
        rank1_unit=rank1_share(unit_rows(rows)),
        largest_angle_abs=angles(np.abs(rows)).largest,
        rank1_abs=rank1_share(np.abs(near_one)),
        picture=picture(near_one),
        fit=_grown(fit_gains(near_one, layers, base, shuffles, seed, rotation), e),
    )


def _grown(fit: GainFit, e: int) -> GainFit:
    """`fit` of a table 2^e times as large."""
    return replace(fit, alpha=fit.alpha + e * math.log(2))


def _by_layer(turn: Angles, layers: Any) -> Angles:
    """`turn` by layer number. A step over a layer that is missing or left out is no step: NaN."""
    a, b = turn.largest_pair
    gaps = np.diff(layers)
    steps = np.where(gaps == gaps.min(), turn.steps, np.nan) if len(gaps) else np.empty(0)
    return replace(turn, largest_pair=(int(layers[a]), int(layers[b])), steps=tuple(steps.tolist()))
