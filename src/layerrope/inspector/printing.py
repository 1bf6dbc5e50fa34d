"""Inspections on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from layerrope.inspector.compare import compare, short_labels
from layerrope.inspector.words import fixed, share
from layerrope.page import MISSING, show
from layerrope.terminal import note, out

if TYPE_CHECKING:
    from layerrope.inspector.inspection import Inspection

Line = Mapping[str, Any]

#: Columns that hold a stranger's words are cut at so many characters.
WIDEST = {"site": 24, "role": 24, "model": 24}


def print_inspections(inspections: Sequence[Inspection], layers: bool = False) -> None:
    """Verdict and tables of every model, and their comparison."""
    for inspection in inspections:
        _print_model(inspection)
        if layers:
            columns = ("role", "layer", "rms", "mean", "l2", "min", "max", "negative", "zero", "fault")
            print_table("Every layer", inspection.layer_rows(), columns)
    if len(inspections) > 1:
        _print_comparison(inspections, by_depth=layers or len(inspections) == 2)


def print_faults(inspections: Sequence[Inspection]) -> None:
    """Broken and untouched norms, or that there are none."""
    for inspection in inspections:
        if inspection.faults:
            columns = ("role", "layer", "fault", "name")
            print_table(f"{inspection.label}: broken or untouched", inspection.faults, columns)
        else:
            note(f"{inspection.label}: every norm is finite, and none is all zeros or all ones")


def _print_model(inspection: Inspection) -> None:
    table = inspection.table
    known = table.architecture if table.known else f"{table.architecture} (unknown)"
    cost = f"{table.spent[0]:,} bytes in {table.spent[1]} requests" if table.spent[1] else "nothing fetched"
    out.print(f"[bold]{escape(table.label)}[/bold]  {escape(f'{known}, {table.format}, {cost}')}")
    for words in [*table.notes, *_conventions(inspection)]:
        out.print(escape(words), style="dim", soft_wrap=True)
    out.print(escape(inspection.verdict), soft_wrap=True)
    rows = inspection.summary_rows()
    print_table("RMS of the gain as c (l+1)^beta", [_growth(r) for r in rows])
    told = [r for r in rows if "rank1" in r]
    if told:
        print_table("True angles (degrees); the 2-D picture's sweep beside its null", [_direction(r) for r in told])
        print_table("LayerRoPE's form: relative errors, and its rotation's null", [_fit(r) for r in told])
    if table.scalars:
        scalars = [{"site": site, **values} for site, values in table.scalars.items()]
        print_table("Scalars as this run learned them", scalars)
    if inspection.faults:
        print_faults([inspection])


def _conventions(inspection: Inspection) -> list[str]:
    """Each convention once, with the sites it holds for."""
    named: dict[str, list[str]] = {}
    for report in inspection.reports.values():
        named.setdefault(f"{report.site.convention} ({report.site.reason})", []).append(report.site.words)
    return [f"{', '.join(sites)}: {rule}" for rule, sites in named.items()]


def _growth(row: Line) -> dict[str, Any]:
    low, high = row.get("beta_low"), row.get("beta_high")
    return {
        "site": row["site"],
        "layers": row["layers"],
        "d": row["d"],
        "c": row.get("c"),
        "beta": _fixed(row.get("beta")),
        "95%": MISSING if low is None or high is None else f"{fixed(low)} to {fixed(high)}",
        "l > 0": _fixed(row.get("beta_from_1")),
        "R²": _fixed(row.get("r2")),
        "best law": row.get("best_law"),
    }


def _direction(row: Line) -> dict[str, Any]:
    null, spread = row["swept_null"], row["swept_null_std"]
    return {
        "site": row["site"],
        "largest": _fixed(row["largest_angle"], 1),
        "l > 0": _fixed(row["largest_angle_from_1"], 1),
        "rank-1": _fixed(row["rank1"], 4),
        "stress": _fixed(row["stress"], 3),
        "swept": _fixed(row["swept"], 0),
        "(null)": MISSING if null is None else f"({null:.0f}±{spread:.0f})",
        "folded": _fixed(row["folded"], 0),
        "(null) ": MISSING if null is None else f"({row['folded_null']:.0f})",
    }


def _fit(row: Line) -> dict[str, Any]:
    gain, null = row["rotation_gain"], row["rotation_null_max"]
    return {
        "site": row["site"],
        "constant": _fixed(row["error_constant"], 4),
        "magnitude": _fixed(row["error_magnitude"], 4),
        "LayerRoPE": _fixed(row["error_full"], 4),
        "rank-1": _fixed(row["error_rank1"], 4),
        "rotation": MISSING if gain is None else share(gain),
        "(null up to)": MISSING if null is None else f"({share(null)})",
        "p": _fixed(row["p_value"]),
    }


def _fixed(value: float | None, decimals: int = 2) -> str:
    return MISSING if value is None or math.isnan(value) else fixed(value, decimals)


def _print_comparison(inspections: Sequence[Inspection], by_depth: bool) -> None:
    both = compare(inspections)
    labels = [i.label for i in inspections]
    short = dict(zip(labels, short_labels(labels), strict=True))
    print_table("Side by side", [{**_side(r), "model": short[r["model"]]} for r in both.site_rows])
    if by_depth:
        columns = ("site", "model", "layer", "its_layer", "rms", "its_rms", "ratio", "angle")
        rows = [{**r, "model": short[r["model"]]} for r in both.layer_rows]
        print_table(f"Against {short[labels[0]]}, by role and depth", rows, columns)
    for role, labels in both.only_in.items():
        note(f"only in {', '.join(labels)}: {role}")


def _side(row: Line) -> dict[str, Any]:
    return {
        "site": row["site"],
        "model": row["model"],
        "layers": row["layers"],
        "beta": _fixed(row["beta"]),
        "R²": _fixed(row["r2"]),
        "rank-1": _fixed(row["rank1"], 4),
        "magnitude": _fixed(row["error_magnitude"], 4),
        "LayerRoPE": _fixed(row["error_full"], 4),
        "p": _fixed(row["p_value"]),
    }


def print_table(title: str, rows: Sequence[Line], columns: Sequence[str] | None = None) -> None:
    """A table with those of `columns` (by default all) in which anything stands."""
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    present = [n for n in names if any(row.get(n) not in (None, MISSING) for row in rows)]
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in present:
        words = name in {"site", "role", "model", "name", "best law", "fault", "convention"}
        justify = "left" if words else "right"
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=name != "name", max_width=WIDEST.get(name))
    for row in rows:
        table.add_row(*(escape(show(row.get(name))) for name in present))
    out.print()
    out.print(table)
