"""A scaling fit in words, tables, a chart and a page. Printed numbers are precise enough to predict from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.charts import save_png, scheme_channels, scheme_colours
from layerrope.errors import InputError
from layerrope.page import Page
from layerrope.scaling.law import FORMS, ScalingFit, cell, schemes_of, variables
from layerrope.scaling.savings import Resamples, Saving, elsewhere, is_baseline

if TYPE_CHECKING:
    import altair as alt

SCHEMA = "layerrope.fit/1"
LAWS = {"power": "L(C) = E + A C^-alpha", "chinchilla": "L(N, D) = E + A N^-alpha + B D^-beta"}
NAMES = {"power": (("A", "alpha"),), "chinchilla": (("A", "alpha"), ("B", "beta"))}
DIGITS = 8
"""Significant digits of printed coefficients: A C^-alpha with C = 1e21 multiplies an error of alpha by 48."""
UNREADABLE = "–"


@dataclass(frozen=True)
class FitReport:
    """A fit with what was made of it."""

    fit: ScalingFit
    resamples: Resamples | None
    savings: Sequence[Saving]
    notes: Sequence[str]
    """what was left out, could not be computed, or has to be known"""
    source: str
    command: str


# ------------------------------------------------------------------------------------------------------------- tables
def coefficient_rows(report: FitReport) -> list[dict[str, str]]:
    """A row a scheme: E and the terms to `DIGITS` digits, 95% intervals of E and the first exponent, points and fit."""
    return [_coefficients(report, name) for name in report.fit.curves]


def _coefficients(report: FitReport, name: str) -> dict[str, str]:
    fit, curve = report.fit, report.fit.curves[name]
    row = {"scheme": name, "E": f"{curve.e:.{DIGITS}g}"}
    if fit.floor != "given":
        row["E 95%"] = _spread(report, name, 0)
    for (size, power), amplitude, exponent in zip(NAMES[fit.form], curve.amplitudes, curve.exponents, strict=True):
        row |= {size: f"{amplitude:.{DIGITS}g}", power: f"{exponent:.{DIGITS}g}"}
    row[f"{NAMES[fit.form][0][1]} 95%"] = _spread(report, name, 2)
    mine = [i for i, p in enumerate(fit.points) if p.scheme == name]
    sizes = len({cell(fit.points[i], fit.form) for i in mine})
    row["sizes"] = str(sizes) if sizes == len(mine) else f"{sizes} ({len(mine)} runs)"
    row["rms residual"] = f"{np.sqrt(np.mean(fit.residuals()[mine] ** 2)):.2%}"
    search = next(s for s in fit.searches if name in s.schemes)
    row["fit"] = "converged" if search.converged else "NOT CONVERGED"
    return row


def _spread(report: FitReport, name: str, which: int) -> str:
    """The middle 95% of resamples: of the floor (0) or of the first exponent (2)."""
    made = report.resamples
    if made is None or not made.converged_B.any():
        return UNREADABLE
    values_B = made.curves[name][which].reshape(len(made.converged_B), -1)[made.converged_B, 0]
    low, high = np.quantile(values_B, [0.025, 0.975])
    return f"{low:.3f} to {high:.3f}"


def saving_rows(savings: Sequence[Saving]) -> list[dict[str, str]]:
    """A row a saving, best baseline first."""
    return [
        {
            "scheme": s.scheme,
            "against": s.baseline,
            "at loss": f"{s.target:.4f}",
            "compute saved": _times(s.ratio),
            f"{s.level:.0%} interval": _interval(s),
            "its FLOPs": f"{s.compute:.3g}",
            "baseline's FLOPs": f"{s.baseline_compute:.3g}{' (measured)' if s.measured else ''}",
            "within what was trained": "yes" if s.interpolated else "NO: extrapolated",
            **({"its own runs": _own_runs(s)} if any(t.denied for t in savings) else {}),
        }
        for s in savings
    ]


def _own_runs(s: Saving) -> str:
    """What a scheme's own runs say of its saving."""
    return "agree" if s.denied is None else f"SAY THE OPPOSITE: {s.denied[1]:.4f} at {s.denied[0]:.3g} FLOPs"


def _interval(s: Saving) -> str:
    if s.low is None or s.high is None:
        return UNREADABLE
    return " to ".join("unbounded" if math.isinf(v) else _times(v) for v in (s.low, s.high))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if 0.01 <= ratio < 1e5 or ratio == 0 else f"{ratio:.3g}x"


# -------------------------------------------------------------------------------------------------------------- words
def sentences(report: FitReport) -> list[str]:
    """What is saved, against the best baseline first; then how it was fitted, and what to know before it is used."""
    fit = report.fit
    floor = {"shared": "one E for all schemes", "free": "an E for each scheme", "given": "E given, not fitted"}
    lines = [
        f"{LAWS[fit.form]}, {floor[fit.floor]}; {len(fit.points)} points from {report.source}; Huber loss (delta"
        f" {fit.delta:g}) on log residuals, summed: {fit.objective:.6g}."
    ]
    lines += [
        f"Search over {', '.join(s.schemes)}: {'converged' if s.converged else 'NOT CONVERGED'}, {s.agreeing} of"
        f" {s.starts} starts ended at the best objective."
        for s in fit.searches
    ]
    if report.resamples is not None:
        count = len(report.resamples.converged_B)
        lines.append(f"Intervals from {count} resamples of the same form, {report.resamples.failed} not converged.")
    return [*saved(report.savings), *lines, *fit.notes, *report.notes]


def saved(savings: Sequence[Saving]) -> list[str]:
    """A sentence for each baseline, in the order of the savings: what every scheme saves at that baseline's loss."""
    rivals = dict.fromkeys((s.baseline, s.target) for s in savings)
    made = [[s for s in savings if (s.baseline, s.target) == rival] for rival in rivals]
    return [f"{_against(some[0])}: {'; '.join(map(_said, some))}." for some in made]


def _against(s: Saving) -> str:
    loss = f"the loss of its largest model, {s.target:.4f}" if s.measured else f"a loss of {s.target:.4f}"
    if s.baseline == elsewhere((s.baseline_compute, s.target)):  # its name says all of it
        return f"Compute saved against {s.baseline}"
    return f"Compute saved against {s.baseline} at {loss}"


def _said(s: Saving) -> str:
    """One scheme's share of such a sentence; a saving whose interval holds 1 is told from none by nothing."""
    edges = (s.low, s.high)
    bounds = "no interval" if s.low is None else f"{s.level:.0%} interval {_interval(s)}"
    untold = ", not told from none" if None not in edges and (s.low or 0) <= 1 <= (s.high or 0) else ""
    more = ", so it needs more" if s.ratio < 1 and not untold else ""
    where = "" if s.interpolated else ", beyond the sizes trained: an extrapolation"
    lost = f", {s.failed} of {s.resamples} resamples gave no ratio" if s.failed else ""
    denied = f", but its own runs {_own_runs(s)}; do not quote the ratio" if s.denied else ""
    return f"{s.scheme} {_times(s.ratio)} ({bounds}{lost}){more}{untold}{where}{denied}"


# -------------------------------------------------------------------------------------------------------------- chart
def chart(report: FitReport, size: tuple[int, int] | None = None) -> alt.TopLevelMixin:
    """Loss against compute, points and curves; the Chinchilla form over 6 N D. `size` is (width, height), pixels."""
    import altair as alt
    import polars as pl

    names = list(schemes_of(report.fit.points))
    points = pl.DataFrame(_point_rows(report.fit))
    colour, dash = scheme_channels("scheme", names)
    low, high = min(_ends(report)), max(_ends(report))
    x = alt.X(
        "compute:Q",
        title="training FLOPs",
        # room on the left for the dots, on the right for the words beside the lines
        scale=alt.Scale(type="log", nice=False, domain=[low / (high / low) ** 0.03, high * (high / low) ** 0.25]),
        axis=alt.Axis(format=".0e", tickCount=6),
    )
    y = alt.Y(
        "loss:Q",
        title="validation loss, nats per token",
        scale=alt.Scale(type="log", zero=False, nice=False, padding=10),
    )
    lines = alt.Chart(pl.DataFrame(_curve_rows(report.fit)))
    inside = lines.mark_line(point=False).encode(x=x, y=y, color=colour, strokeDash=dash)
    marks = (
        alt.Chart(points)
        .mark_point(size=55)
        .encode(
            x=x,
            y=y,
            color=alt.Color("scheme:N", scale=scheme_colours(names)),
            tooltip=["scheme", "seed", alt.Tooltip("compute:Q", format=".3g"), alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    shape = {} if size is None else {"width": size[0], "height": size[1]}
    return alt.layer(inside, marks, *_arrows(report.savings, x, y)).properties(**shape)


def _ends(report: FitReport) -> list[float]:
    """Every compute that the chart has to show."""
    trained = [row["compute"] for row in _point_rows(report.fit)]
    return trained + [v for s in report.savings for v in (s.compute, s.baseline_compute)]


def _point_rows(fit: ScalingFit) -> list[dict[str, Any]]:
    return [
        {"scheme": p.scheme, "seed": p.seed, "compute": _flops(fit, i), "loss": p.loss}
        for i, p in enumerate(fit.points)
    ]


def _flops(fit: ScalingFit, index: int) -> float:
    x = variables(fit.points[index], fit.form)
    return x[0] if fit.form == "power" else 6 * x[0] * x[1]


def _curve_rows(fit: ScalingFit) -> list[dict[str, Any]]:
    """Every curve over the compute that its scheme was trained with; for the Chinchilla form its frontier."""
    rows: list[dict[str, Any]] = []
    for name, curve in fit.curves.items():
        mine = [_flops(fit, i) for i, p in enumerate(fit.points) if p.scheme == name]
        try:
            drawn = curve.over_compute()
        except InputError:  # no frontier: the notes say so
            continue
        computes = np.geomspace(min(mine), max(mine), 60).tolist()
        rows += [{"scheme": name, "compute": c, "loss": float(drawn.loss(c))} for c in computes]
    return rows


def _arrows(savings: Sequence[Saving], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """For every baseline a line from the compute of the scheme that saves most to its own, with the ratio beside it.

    A saving that the scheme's own runs deny is none to point at.
    """
    import altair as alt
    import polars as pl

    most = {s.baseline: s for s in sorted(savings, key=lambda s: s.ratio) if not s.denied}
    if not most:
        return []
    rows = [
        {
            "compute": s.compute,
            "to": s.baseline_compute,
            "end": max(s.compute, s.baseline_compute),
            "loss": s.target,
            "words": f"{s.scheme} {_times(s.ratio)}",
        }
        for s in most.values()
    ]
    base = alt.Chart(pl.DataFrame(rows))
    line = base.mark_rule(strokeDash=[3, 3]).encode(x=x, x2="to:Q", y=y)
    words = base.mark_text(align="left", dx=8, baseline="middle").encode(x="end:Q", y=y, text="words:N")
    return [line, words]


CAPTION = (
    "Measured losses (dots) and fitted curves over the compute that was trained. A dashed line runs from the compute at"
    " which the scheme named beside it reaches a baseline's loss to the baseline's own; the ratio is the compute saved."
)


# --------------------------------------------------------------------------------------------------- page and record
def page(report: FitReport) -> Page:
    """The fit as one self-contained page."""
    said = sentences(report)
    made = Page("Scaling fit", said[0])
    if report.savings:
        made.table(saving_rows(report.savings), "Compute saved at equal loss; the best baseline first")
    made.table(coefficient_rows(report), f"{LAWS[report.fit.form]}: predictions from these digits hold to 0.001 nats")
    made.chart(chart(report), CAPTION, "Validation loss against training compute, with a fitted curve for each scheme.")
    made.heading("How it was fitted, and what to know").bullets(said)
    made.table(_point_rows(report.fit), "Every point", folded=True)
    return made.heading("Command").code(report.command)


def document(report: FitReport) -> dict[str, Any]:
    """Everything as strict JSON data; an unbounded interval has null for its bound."""
    fit = report.fit
    residuals = fit.residuals()
    return {
        "schema": SCHEMA,
        "command": report.command,
        "form": fit.form,
        "law": LAWS[fit.form],
        "variables": list(FORMS[fit.form]),
        "floor": fit.floor,
        "delta": fit.delta,
        "converged": fit.converged,
        "objective": fit.objective,
        "searches": [asdict(s) for s in fit.searches],
        "curves": {name: {**asdict(c), "amplitudes": c.amplitudes} for name, c in fit.curves.items()},
        "resamples": None if report.resamples is None else len(report.resamples.converged_B),
        "resamples_failed": None if report.resamples is None else report.resamples.failed,
        "savings": [asdict(s) for s in report.savings],
        "baselines": [name for name in fit.curves if is_baseline(name)],
        "notes": [*fit.notes, *report.notes],
        "points": [
            {**asdict(p), "weight": w, "log_residual": float(r)}
            for p, w, r in zip(fit.points, fit.weights, residuals, strict=True)
        ],
    }


def write_png(report: FitReport, path: Path) -> Path:
    """The chart as a picture. Raises InputError if it cannot write."""
    return save_png(chart(report, (620, 360)), path)
