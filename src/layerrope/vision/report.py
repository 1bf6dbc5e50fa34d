"""A comparison on images as files: every run as CSV, everything as JSON, a picture, and findings in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from layerrope.charts import save_png, scheme_colours
from layerrope.comparing.charts import Figure
from layerrope.comparing.intervals import Interval, by_luck
from layerrope.files import csv_text, write_atomic, write_json
from layerrope.training.kinds import VisionTrainConfig
from layerrope.training.recipe import to_json
from layerrope.vision.compare import VisionRow, VisionRun, VisionTable

SCHEMA = "layerrope.vision/1"


def write_vision(table: VisionTable, base: VisionTrainConfig, command: str, folder: Path) -> dict[str, Any]:
    """Write vision.json, runs.csv and accuracy.png into `folder`; the document.

    Raises:
        InputError: the folder cannot be written.
    """
    document = {
        "schema": SCHEMA,
        "command": command,
        "data": table.data,
        "findings": findings(table),
        "rows": [asdict(row) for row in table.rows],
        "runs": [asdict(run) for run in table.runs],
        "base": to_json(base),
    }
    write_json(folder / "vision.json", document)
    write_atomic(folder / "runs.csv", runs_csv(table))
    save_png(accuracies(table).chart, folder / "accuracy.png")
    return document


def runs_csv(table: VisionTable) -> str:
    """Every run, diverged ones too, as CSV."""
    return csv_text([asdict(run) for run in table.runs], [f.name for f in fields(VisionRun)])


# --------------------------------------------------------------------------------------------------------- in words
CELLS: dict[str, Callable[[VisionRow], str]] = {
    "scheme": lambda row: row.scheme,
    "parameters": lambda row: f"{row.parameters:,}",
    "lr": lambda row: f"{row.lr:g}{' (edge)' if row.at_edge else ''}",
    "loss": lambda row: f"{row.val_loss.mean:.4f}",
    "accuracy": lambda row: f"{row.accuracy.mean:.2%}",
    "to the first, 95%": lambda row: "" if row.gain is None else percents(row.gain),
    "diverged": lambda row: str(row.diverged),
}
"""The columns of the table, for a terminal and for a page."""


VERDICTS = ("Better than", "Worse than", "Not told apart from", "One seed, so not tested against")
"""What a difference to the first scheme is called, in the order in which findings name them."""


def percents(gain: Interval) -> str:
    """A difference of accuracies with its interval."""
    if gain.low is None or gain.high is None:
        return f"{gain.mean:+.2%}"
    return f"{gain.mean:+.2%} ({gain.low:+.2%} to {gain.high:+.2%})"


def ranked(table: VisionTable) -> list[VisionRow]:
    """The rows, best accuracy first."""
    return sorted(table.rows, key=lambda row: -row.accuracy.mean)


def findings(table: VisionTable) -> list[str]:
    """What the runs say, best accuracy first; differences count where their 95% interval leaves out zero."""
    rows, first = ranked(table), table.rows[0].scheme
    best = rows[0]
    said = [f"Best accuracy: {best.scheme}, {best.accuracy.mean:.2%} at learning rate {best.lr:g}."]
    groups: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for row in rows:
        if row.gain is not None:
            groups[_verdict(row.gain)].append(f"{row.scheme} {percents(row.gain)}")
    said += [f"{verdict} {first}: {', '.join(each)}." for verdict, each in groups.items() if each]
    edges = [row.scheme for row in rows if row.at_edge]
    if edges:
        said.append(f"Best at the edge of the rates tried, so not bracketed: {', '.join(edges)}.")
    tests = sum(row.gain is not None and row.gain.low is not None for row in rows)
    if tests > 1:
        said.append(by_luck(tests))
    return said


def _verdict(gain: Interval) -> str:
    better, worse, alike, untested = VERDICTS
    if gain.low is None:
        return untested
    if not gain.decided:
        return alike
    return better if gain.mean > 0 else worse


# ------------------------------------------------------------------------------------------------------- the picture
def accuracies(table: VisionTable) -> Figure:
    """Held-out accuracy of every scheme at its best rate, a dot a seed and a tick for the mean, best first."""
    import altair as alt
    import polars as pl

    best = {row.scheme: row for row in ranked(table)}
    rows = [
        {"scheme": run.scheme, "seed": str(run.seed), "accuracy": run.accuracy, "mean": best[run.scheme].accuracy.mean}
        for run in table.runs
        if run.lr == best[run.scheme].lr and run.accuracy is not None
    ]
    names, frame = list(best), pl.DataFrame(rows)
    y = alt.Y("scheme:N", sort=names, title=None)
    colour = alt.Color("scheme:N", scale=scheme_colours(names), legend=None)
    x = alt.X(
        "accuracy:Q", title="held-out accuracy", scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(format="%")
    )
    dots = alt.Chart(frame).mark_point(size=60).encode(x=x, y=y, color=colour, tooltip=["scheme", "seed", "accuracy"])
    means = alt.Chart(frame).mark_tick(thickness=2, size=18).encode(x="mean(mean):Q", y=y, color=colour)
    caption = "Held-out accuracy of each scheme at its best learning rate: a dot a seed, a tick for their mean."
    return Figure("accuracy", (dots + means).properties(height=max(60, 26 * len(names))), caption, caption)
