"""The report page of one or several inspected models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.inspector.compare import compare, short_labels
from layerrope.inspector.figures import charts, comparison_charts, control_figure
from layerrope.inspector.site import SiteReport, View
from layerrope.inspector.words import fixed, leading, site_verdict
from layerrope.norm_sites import role_words
from layerrope.page import Page

if TYPE_CHECKING:
    from layerrope.inspector.inspection import Inspection

HOW_TO_READ = (
    "A norm multiplies its input by one gain per channel. Here the gains of all layers at one site form a table, "
    "one row per layer; the questions are how the rows grow with depth, and whether they turn.",
    "Angles are true angles between rows. The 2-D picture is a projection about the centroid, in which even a "
    "vector that only grows seems to turn by half a circle: read a sweep only beside its null and the control.",
    "LayerRoPE's form is one shared vector, times (l+1)^beta, with pairs of channels rotated by an angle that "
    "depends on depth. Which channels stand side by side in a stock checkpoint is an accident, so the rotation is "
    "compared with tables whose channels were shuffled.",
)


def report_page(inspections: Sequence[Inspection]) -> Page:
    """The page, ready to be written."""
    several = len(inspections) > 1
    title = "Norm gains of several models" if several else f"Norm gains of {inspections[0].label}"
    page = Page(title, "What a checkpoint's norms say about depth")
    if several:
        _comparison(page, inspections)
    for inspection in inspections:
        _model(page, inspection, several)
    return page.heading("How to read this").text(*HOW_TO_READ)


def _comparison(page: Page, inspections: Sequence[Inspection]) -> None:
    both = compare(inspections)
    labels = both.labels
    short = dict(zip(labels, short_labels(labels), strict=True))
    page.heading("Side by side")
    page.table(
        [{"model": short[n], "verdict": i.verdict} for n, i in zip(labels, inspections, strict=True)], "In words"
    )
    page.charts([f[:3] for f in comparison_charts(inspections)])
    page.table(_renamed(both.site_rows, _BY_ROLE, short), "By role")
    if both.only_in:
        only = (f"{role_words(r)} only in {', '.join(short[m] for m in models)}" for r, models in both.only_in.items())
        page.note(f"Not every model has every site: {'; '.join(only)}.")
    rows = _renamed(both.layer_rows, _BY_DEPTH, short)
    page.table(rows, f"By role and depth, against {short[labels[0]]}", folded=True)


_BY_ROLE = {
    "site": "site",
    "model": "model",
    "layers": "layers",
    "d": "channels",
    "beta": "beta",
    "r2": "R²",
    "rank1": "rank-1 share",
    "largest_angle_from_1": "largest angle, l > 0",
    "error_magnitude": "magnitude only",
    "error_full": "LayerRoPE",
    "p_value": "p of its rotation",
}
_BY_DEPTH = {
    "site": "site",
    "model": "model",
    "layer": "layer",
    "its_layer": "its layer",
    "depth": "depth",
    "rms": "RMS",
    "its_rms": "its RMS",
    "ratio": "ratio",
    "angle": "angle (degrees)",
    "largest_difference": "largest difference",
}


def _renamed(rows: Sequence[dict[str, Any]], columns: dict[str, str], short: dict[str, str]) -> list[dict[str, Any]]:
    """`rows` under readable column names, with sites in words and short labels."""
    said = [{**row, "site": role_words(row["site"]), "model": short[row["model"]]} for row in rows]
    return [{words: row[name] for name, words in columns.items()} for row in said]


def _model(page: Page, inspection: Inspection, several: bool) -> None:
    table = inspection.table
    if several:
        page.heading(inspection.label)
    page.text(inspection.verdict)
    known = table.architecture if table.known else f"{table.architecture} (unknown)"
    origin = f"Architecture {known}, read from {table.format}"
    cost = f"; {table.spent[0]:,} bytes in {table.spent[1]} requests" if table.spent[1] else ""
    page.text(f"{origin}{cost}.")
    for note in table.notes:
        page.note(note)
    if inspection.faults:
        page.table(inspection.faults, "Broken, untouched or missing tensors")
    figures = charts(inspection)
    _growth(page, inspection, figures)
    _direction(page, inspection, figures)
    _fits(page, inspection, figures)
    _details(page, inspection, figures)


def _growth(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    page.heading("Growth with depth", 3).chart(*figures["size"][:3])
    views = [(r, words, view) for r in inspection.reports.values() for words, view in _views(r)]
    page.table([_growth_row(*v) for v in views], "RMS of the gain as c (l+1)^beta, and the law that fits best")
    laws = [
        {"site": r.site.words, "layers": words, **{n: law.aicc for n, law in sorted(view.laws.items())}}
        for r, words, view in views
    ]
    page.table(laws, "AICc of each law (the lowest fits best; less than 2 apart says nothing)", folded=True)


def _views(report: SiteReport) -> list[tuple[str, View]]:
    """Both selections of a site's layers, as far as there are fits."""
    views = (("all", report.whole), ("from layer 1", report.later))
    return [(words, view) for words, view in views if view is not None]


def _growth_row(report: SiteReport, words: str, view: View) -> dict[str, Any]:
    interval = view.power.beta_interval
    best, second, *_ = view.laws.values()
    lead = None if best.aicc is None or second.aicc is None else second.aicc - best.aicc
    return {
        "site": report.site.words,
        "layers": words,
        "fitted": len(view.layers),
        "c": view.power.c,
        "beta": view.power.beta,
        "95% interval": f"{fixed(interval[0])} to {fixed(interval[1])}" if interval else None,
        "R²": view.power.r2,
        "best law": " or ".join(leading(view.laws)) or None,
        "AICc ahead by": lead,
    }


def _direction(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    told = [r for r in inspection.reports.values() if r.whole is not None]
    if not told:
        return
    page.heading("Direction", 3).chart(*figures["angle"][:3])
    page.table([row for r in told for row in _direction_rows(r)], "True angles in degrees, and shares of one direction")
    absolute = [row for r in told for row in _absolute_rows(r)]
    page.table(absolute, "The same with every row at length one, and for |g| (signs are arbitrary)", folded=True)
    pictures = [f for name, f in figures.items() if name.startswith("picture-")]
    page.charts([f[:3] for f in (*pictures, control_figure())])
    rows = [_outlier_row(r) for r in told if r.outliers is not None]
    page.table(
        rows,
        "Channels that carry half and 90% of the departure from one direction, and what is left without the top 1%",
    )


def _direction_rows(report: SiteReport) -> list[dict[str, Any]]:
    return [
        {
            "site": report.site.words,
            "layers": words,
            "largest": view.angles.largest,
            "between": view.angles.largest_pair,
            "first to last": view.angles.first_to_last,
            "median step": float(np.nanmedian(view.angles.steps)),
            "rank-1 share": view.rank1,
        }
        for words, view in _views(report)
    ]


def _absolute_rows(report: SiteReport) -> list[dict[str, Any]]:
    return [
        {
            "site": report.site.words,
            "layers": words,
            "rank-1 share of unit rows": view.rank1_unit,
            "largest angle of |g|": view.largest_angle_abs,
            "rank-1 share of |g|": view.rank1_abs,
        }
        for words, view in _views(report)
    ]


def _outlier_row(report: Any) -> dict[str, Any]:
    split = report.outliers
    return {
        "site": report.site.words,
        "channels": report.d,
        "half": split.half,
        "90%": split.ninety,
        "top 1%": split.top_share,
        "rank-1 without": split.rank1_without,
        "angle without": split.largest_angle_without,
        "most deviating": split.top_channels[:5],
    }


def _fits(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    if "error" not in figures:
        return
    page.heading("Does LayerRoPE's form describe them?", 3).chart(*figures["error"][:3])
    told = [r for r in inspection.reports.values() if r.whole is not None]
    page.table([_fit_row(r) for r in told], "Relative errors, and what the rotation removes beside its null")
    fits = [(r.site.words, r.whole.fit) for r in told if r.whole is not None]
    scalars = [{"site": words, **fit.scalars, "angles": _angles_word(fit)} for words, fit in fits]
    page.table(scalars, "Best scalars (gamma at unit RMS); angles not identifiable say nothing", folded=True)
    if "rotation" in figures:
        page.chart(*figures["rotation"][:3])
    scalars = inspection.table.scalars
    if scalars:
        page.table([{"site": s, **v} for s, v in scalars.items()], "Scalars as this run learned them", digits=5)


def _fit_row(report: Any) -> dict[str, Any]:
    fit = report.whole.fit
    return {
        "site": report.site.words,
        "constant": fit.constant,
        "magnitude": fit.magnitude,
        "LayerRoPE": fit.full,
        "free sizes": fit.rank1,
        "rotation": fit.rotation_gain,
        "null up to": max(fit.null) if fit.null else None,
        "p": fit.p_value,
        "angles": _angles_word(fit),
    }


def _angles_word(fit: Any) -> str:
    if fit.rotation_gain is None:
        return "nothing left" if fit.exact else "not tried"
    if not fit.decidable:
        return "undecided"
    return "identifiable" if fit.identifiable else "not identifiable"


def _details(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    page.heading("Site by site", 3)
    for report in inspection.reports.values():
        page.heading(report.site.words, 4).text(site_verdict(report))
        page.text(f"Convention: {report.site.convention} ({report.site.reason}).")
    page.charts([f[:3] for name, f in figures.items() if name.startswith("spread-")])
    page.table(inspection.layer_rows(), "Every norm vector", folded=True)
