"""Inspections on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from layerrope.inspector.compare import compare, short_labels
from layerrope.inspector.naming import shortened
from layerrope.inspector.words import fixed, share
from layerrope.page import MISSING, show
from layerrope.terminal import note, out

if TYPE_CHECKING:
    from layerrope.inspector.inspection import Inspection

Line = Mapping[str, Any]

#: Columns that hold a stranger's words are shortened to so many characters.
WIDEST = {"site": 24, "role": 24, "model": 24}
#: Columns of words, and those that say what a line is about.
WORDS = frozenset({"site", "role", "part", "model", "name", "best law", "fault", "convention"})
LEADING = frozenset({"site", "role", "part", "model", "layer", "its_layer"})


def print_inspections(inspections: Sequence[Inspection], layers: bool = False) -> None:
    """Verdict and tables of every model, and their comparison."""
    for inspection in inspections:
        _print_model(inspection)
        if layers:
            columns = ("role", "part", "layer", "rms", "mean", "l2", "min", "max", "negative", "zero", "fault")
            print_table("Every layer", inspection.layer_rows(), columns)
    if len(inspections) > 1:
        _print_comparison(inspections, by_depth=layers or len(inspections) == 2)


#: Rows of faults that are printed; all of them are in the JSON document.
MOST_FAULTS = 200


def print_checks(inspections: Sequence[Inspection]) -> None:
    """Broken and untouched norms of every model, or that there are none; and what was left out."""
    for inspection in inspections:
        for words in inspection.table.notes:
            note(f"{inspection.label}: {words}")
        if inspection.faults:
            print_faults(inspection)
        else:
            note(f"{inspection.label}: {inspection.verdict}")


def print_faults(inspection: Inspection) -> None:
    """Broken and untouched norms."""
    columns = ("role", "part", "layer", "fault", "name")
    print_table(f"{inspection.label}: broken, untouched or missing", inspection.faults[:MOST_FAULTS], columns)
    if len(inspection.faults) > MOST_FAULTS:
        note(f"and {len(inspection.faults) - MOST_FAULTS} more: --json lists all")


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
        print_faults(inspection)


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
        "layers": _layers(row),
        "d": row["d"],
        "c": row.get("c"),
        "beta": _fixed(row.get("beta")),
        "95%": MISSING if low is None or high is None else f"{fixed(low)} to {fixed(high)}",
        "l > 0": _fixed(row.get("beta_from_1")),
        "R²": _fixed(row.get("r2")),
        "best law": row.get("best_law"),
    }


def _layers(row: Line) -> str:
    """Layers fitted of those present of those expected, each only where it differs."""
    counts = [row["fitted"] or row["layers"], row["layers"], row["expected"]]
    return " of ".join(map(str, dict.fromkeys(counts)))


def _direction(row: Line) -> dict[str, Any]:
    low, high = row["swept_null_least"], row["swept_null_most"]
    return {
        "site": row["site"],
        "largest": _fixed(row["largest_angle"], 1),
        "l > 0": _fixed(row["largest_angle_from_1"], 1),
        "rank-1": _fixed(row["rank1"], 4),
        "stress": _fixed(row["stress"], 3),
        "swept": _fixed(row["swept"], 0),
        "(null)": MISSING if low is None else f"({low:.0f} to {high:.0f})",
        "it is": MISSING if low is None else "within" if low <= row["swept"] <= high else "outside",
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
    labels = both.labels
    short = dict(zip(labels, short_labels(labels), strict=True))
    print_table("Side by side", [{**_side(r), "model": short[r["model"]]} for r in both.site_rows])
    print_table(f"Against {short[labels[0]]}, over all layers", [_apart(r, short) for r in both.role_rows])
    if by_depth:
        columns = ("site", "model", "layer", "its_layer", "rms", "its_rms", "ratio", "angle")
        rows = [{**r, "model": short[r["model"]]} for r in both.layer_rows]
        print_table(f"Against {short[labels[0]]}, by role and depth", rows, columns)
    for role, owners in both.only_in.items():
        note(f"only in {', '.join(owners)}: {role}")


def _apart(row: Line, short: Mapping[str, str]) -> dict[str, Any]:
    low, high = row["ratio_least"], row["ratio_most"]
    return {
        "site": row["site"],
        "model": short[row["model"]],
        "ratio of RMS": MISSING if low is None else f"{_ratio(low)} to {_ratio(high)}",
        "largest angle": _fixed(row["largest_angle"], 2),
        "largest difference": row["largest_difference"],
    }


def _ratio(value: float) -> str:
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e6 else show(value)


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
    """A table with those of `columns` (by default all) in which anything stands.

    Long names are shortened in their middle. What does not fit the terminal's width side by side goes into a second
    table below, under the same leading columns: no number is ever cut.
    """
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    present = [n for n in names if any(row.get(n) not in (None, MISSING) for row in rows)]
    cells = {n: [shortened(show(row.get(n)), WIDEST.get(n)) for row in rows] for n in present}
    out.print()
    for number, group in enumerate(side_by_side({n: _width(n, cells[n]) for n in present}, out.width)):
        more = " (more columns)" if number else ""
        table = Table(title=escape(title + more), title_justify="left", title_style="bold", box=None, pad_edge=False)
        for name in group:
            justify = "left" if name in WORDS else "right"
            table.add_column(name.replace("_", " "), justify=justify, no_wrap=name != "name", overflow="fold")
        for row in zip(*(cells[n] for n in group), strict=True):
            table.add_row(*map(escape, row))
        out.print(table)


def side_by_side(widths: Mapping[str, int], limit: int) -> list[list[str]]:
    """The columns of `widths` in groups that fit `limit` characters; each group begins with those of `LEADING`."""
    leading = [n for n in widths if n in LEADING]
    start = sum(widths[n] + 2 for n in leading)
    groups: list[list[str]] = [[]]
    room = limit - start
    for name in (n for n in widths if n not in LEADING):
        if groups[-1] and widths[name] > room:
            groups.append([])
            room = limit - start
        groups[-1].append(name)
        room -= widths[name] + 2
    return [leading + group for group in groups]


def _width(name: str, cells: Sequence[str]) -> int:
    """What a column takes; a tensor's name may be folded, so 24 characters of it are enough."""
    width = max([len(name), *map(len, cells)])
    return min(width, 24) if name == "name" else width
