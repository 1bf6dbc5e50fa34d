"""The report page of one or several inspected models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.inspector.compare import compare, short_labels
from layerrope.inspector.figures import charts, comparison_charts, control_figure
from layerrope.inspector.words import site_verdict
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
    labels = [i.label for i in inspections]
    short = dict(zip(labels, short_labels(labels), strict=True))
    page.heading("Side by side")
    page.table([{"model": short[i.label], "verdict": i.verdict} for i in inspections], "In words")
    page.charts(comparison_charts(inspections))
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
    page.heading("Growth with depth", 3).chart(*figures["size"])
    rows = []
    for report in inspection.reports.values():
        for words, view in (("all", report.whole), ("from layer 1", report.later)):
            if view is not None:
                low, high = view.power.beta_interval or (None, None)
                rows.append(
                    {
                        "site": report.site.words,
                        "layers": words,
                        "c": view.power.c,
                        "beta": view.power.beta,
                        "95% from": low,
                        "to": high,
                        "R²": view.power.r2,
                        **{f"AICc {law.name}": law.aicc for law in sorted(view.laws.values(), key=lambda f: f.name)},
                    }
                )
    page.table(rows, "RMS of the gain as c (l+1)^beta, and the laws it competes with (the lowest AICc fits best)")


def _direction(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    told = [r for r in inspection.reports.values() if r.whole is not None]
    if not told:
        return
    page.heading("Direction", 3).chart(*figures["angle"])
    page.table([row for r in told for row in _direction_rows(r)], "True angles in degrees, and shares of one direction")
    page.charts([*(f for name, f in figures.items() if name.startswith("picture-")), control_figure()])
    rows = [_outlier_row(r) for r in told if r.outliers is not None]
    page.table(rows, "Which channels depart from one shared trajectory")


def _direction_rows(report: Any) -> list[dict[str, Any]]:
    rows = []
    for words, view in (("all", report.whole), ("from layer 1", report.later)):
        if view is not None:
            rows.append(
                {
                    "site": report.site.words,
                    "layers": words,
                    "largest": view.angles.largest,
                    "between": view.angles.largest_pair,
                    "first to last": view.angles.first_to_last,
                    "median step": float(np.nanmedian(view.angles.steps)),
                    "rank-1 share": view.rank1,
                    "of unit rows": view.rank1_unit,
                    "largest of |g|": view.largest_angle_abs,
                    "rank-1 of |g|": view.rank1_abs,
                }
            )
    return rows


def _outlier_row(report: Any) -> dict[str, Any]:
    split = report.outliers
    return {
        "site": report.site.words,
        "channels": report.d,
        "carry half": split.half,
        "carry 90%": split.ninety,
        "share of top 1%": split.top_share,
        "rank-1 share without them": split.rank1_without,
        "largest angle without them": split.largest_angle_without,
        "most deviating": split.top_channels[:5],
    }


def _fits(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    if "error" not in figures:
        return
    page.heading("Does LayerRoPE's form describe them?", 3).chart(*figures["error"])
    rows = [_fit_row(r) for r in inspection.reports.values() if r.whole is not None]
    page.table(rows, "Best scalars (gamma at unit RMS) and errors; angles that are not identifiable say nothing")
    if "rotation" in figures:
        page.chart(*figures["rotation"])
    scalars = inspection.table.scalars
    if scalars:
        page.table([{"site": s, **v} for s, v in scalars.items()], "Scalars as this run learned them", digits=5)


def _fit_row(report: Any) -> dict[str, Any]:
    fit = report.whole.fit
    return {
        "site": report.site.words,
        **fit.scalars,
        "angles": _angles_word(fit),
        "constant": fit.constant,
        "magnitude only": fit.magnitude,
        "LayerRoPE": fit.full,
        "free sizes": fit.rank1,
        "rotation removes": fit.rotation_gain,
        "most of shuffled": max(fit.null) if fit.null else None,
        "p": fit.p_value,
    }


def _angles_word(fit: Any) -> str:
    if fit.rotation_gain is None:
        return "not tried"
    if not fit.decidable:
        return "undecided: too few shuffles"
    return "identifiable" if fit.identifiable else "not identifiable"


def _details(page: Page, inspection: Inspection, figures: dict[str, Any]) -> None:
    page.heading("Site by site", 3)
    for report in inspection.reports.values():
        page.heading(report.site.words, 4).text(site_verdict(report))
        page.text(f"Convention: {report.site.convention} ({report.site.reason}).")
    page.charts([f for name, f in figures.items() if name.startswith("spread-")])
    page.table(inspection.layer_rows(), "Every norm vector", folded=True)
