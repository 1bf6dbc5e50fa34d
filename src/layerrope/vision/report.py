"""A comparison on images as files: every run as CSV, everything as JSON, a picture, and findings in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from layerrope.charts import save_charts, scheme_colours
from layerrope.comparing.charts import Figure
from layerrope.comparing.intervals import Interval, by_luck
from layerrope.files import csv_text, write_atomic, write_json
from layerrope.page import MISSING
from layerrope.training.kinds import VisionTrainConfig
from layerrope.training.recipe import to_json
from layerrope.vision.compare import VisionRow, VisionRun, VisionTable, rows_of

SCHEMA = "layerrope.vision/1"


def write_vision(table: VisionTable, base: VisionTrainConfig, command: str, folder: Path) -> dict[str, Any]:
    """Write vision.json, runs.csv and, where a run ended, accuracy.png into `folder`; the document.

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
    figure = accuracies(table)
    save_charts({} if figure is None else {figure.name: figure.chart}, folder)
    return document


def table_of(document: Mapping[str, Any]) -> VisionTable:
    """The comparison that `write_vision` wrote as a document."""
    runs = [VisionRun(**run) for run in document["runs"]]
    return VisionTable(rows_of(runs), runs, document["data"])


def runs_csv(table: VisionTable) -> str:
    """Every run, diverged ones too, as CSV."""
    return csv_text([asdict(run) for run in table.runs], [f.name for f in fields(VisionRun)])


# --------------------------------------------------------------------------------------------------------- in words
def shown_rows(rows: Sequence[VisionRow], first: str) -> list[dict[str, str]]:
    """The table in words and rounded numbers, the same on a terminal and in a record; `first` is what gains are to."""
    return [
        {
            "scheme": row.scheme,
            "parameters": f"{row.parameters:,}",
            "best lr": MISSING if row.lr is None else f"{row.lr:g}{' (edge)' if row.at_edge else ''}",
            "loss": MISSING if row.val_loss is None else f"{row.val_loss.mean:.4f}",
            "accuracy": MISSING if row.accuracy is None else f"{row.accuracy.mean:.2%}",
            f"vs {first}, 95%": "reference" if row.scheme == first else percents(row.gain),
            "diverged": str(row.diverged),
        }
        for row in rows
    ]


def percents(gain: Interval | None) -> str:
    """A difference of accuracies with its interval."""
    if gain is None:
        return MISSING
    if gain.low is None or gain.high is None:
        return f"{gain.mean:+.2%}"
    return f"{gain.mean:+.2%} ({gain.low:+.2%} to {gain.high:+.2%})"


def ranked(table: VisionTable) -> list[VisionRow]:
    """The rows, best accuracy first, and those of which every run diverged last."""
    return sorted(table.rows, key=lambda row: math.inf if row.accuracy is None else -row.accuracy.mean)


VERDICTS = ("Better than", "Worse than", "Not told apart from", "One seed, so not tested against")
"""What a difference to the first scheme is called, in the order in which findings name them."""


def findings(table: VisionTable) -> list[str]:
    """What the runs say, best accuracy first; differences count where their 95% interval leaves out zero."""
    rows, first = ranked(table), table.rows[0].scheme
    ended = [(row, row.accuracy) for row in rows if row.accuracy is not None]
    best = [f"Best accuracy: {row.scheme}, {found.mean:.2%} at learning rate {row.lr:g}." for row, found in ended[:1]]
    said = best or ["No run was trained to its end, so nothing is compared."]
    groups: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for row in rows:
        if row.gain is not None:
            groups[_verdict(row.gain)].append(f"{row.scheme} {percents(row.gain)}")
    said += [f"{verdict} {first}: {', '.join(each)}." for verdict, each in groups.items() if each]
    apart = [row.scheme for row, _ in ended if row.gain is None and row.scheme != first]
    if apart:
        said.append(f"No difference to {first}, since no seed ended in both: {', '.join(apart)}.")
    said += _lost(table)
    edges = [row.scheme for row in rows if row.at_edge]
    if edges:
        said.append(f"Best at the edge of the rates tried, so not bracketed: {', '.join(edges)}.")
    tests = sum(row.gain is not None and row.gain.low is not None for row in rows)
    if tests > 1:
        said.append(by_luck(tests))
    return said


def _lost(table: VisionTable) -> list[str]:
    """Which runs diverged, and which schemes with them."""
    lost = [f"{run.scheme} at {run.lr:g} (seed {run.seed})" for run in table.runs if run.val_loss is None]
    gone = [row.scheme for row in table.rows if row.accuracy is None]
    said = [f"Diverged: {'; '.join(lost)}."] if lost else []
    return said + ([f"No accuracy to compare, since no run reached the end: {', '.join(gone)}."] if gone else [])


def _verdict(gain: Interval) -> str:
    better, worse, alike, untested = VERDICTS
    if gain.low is None:
        return untested
    if not gain.decided:
        return alike
    return better if gain.mean > 0 else worse


# ------------------------------------------------------------------------------------------------------- the picture
CAPTION = "Held-out accuracy of each scheme at its best learning rate: a dot a seed, a tick for their mean."


def accuracies(table: VisionTable) -> Figure | None:
    """Held-out accuracy of every scheme at its best rate, a dot a seed and a tick for the mean, best first.

    None where no run was trained to its end.
    """
    import altair as alt
    import polars as pl

    best = {row.scheme: (row.lr, row.accuracy.mean) for row in ranked(table) if row.accuracy is not None}
    if not best:
        return None
    rows = [
        {"scheme": run.scheme, "seed": str(run.seed), "accuracy": run.accuracy, "mean": best[run.scheme][1]}
        for run in table.runs
        if run.accuracy is not None and run.lr == best[run.scheme][0]
    ]
    names, frame = list(best), pl.DataFrame(rows)
    y = alt.Y("scheme:N", sort=names, title=None)
    colour = alt.Color("scheme:N", scale=scheme_colours(names), legend=None)
    x = alt.X(
        "accuracy:Q", title="held-out accuracy", scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(format="%")
    )
    dots = alt.Chart(frame).mark_point(size=60).encode(x=x, y=y, color=colour, tooltip=["scheme", "seed", "accuracy"])
    means = alt.Chart(frame).mark_tick(thickness=2, size=18).encode(x="mean(mean):Q", y=y, color=colour)
    return Figure("accuracy", (dots + means).properties(height=max(60, 26 * len(names))), CAPTION, CAPTION)
