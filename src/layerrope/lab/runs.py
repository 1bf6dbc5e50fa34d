"""The page's last part: what the runs of a folder say, from their own files; without a folder, the packaged sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerrope.comparing import rates
from layerrope.comparing.charts import (
    Figure,
    ends,
    final_losses,
    gain_chart,
    loss_curves,
    loss_rows,
    rate_curves,
    rate_rows,
    validation_curves,
)
from layerrope.comparing.compare import Table
from layerrope.comparing.report import add_figures, gain_rows, read_comparison
from layerrope.comparing.table import caption_of, shown_rows
from layerrope.errors import InputError
from layerrope.lab.measured import name_of
from layerrope.page import Page
from layerrope.studies.findings import findings_of
from layerrope.studies.reading import read_found
from layerrope.studies.recipes import RECIPES
from layerrope.study import FILE, read_study
from layerrope.training.kinds import read_config
from layerrope.training.run_folder import read_metrics, read_record
from layerrope.training.trained import load_trained

POINTS = 9_000
"""Points of all loss curves of one chart together; longer curves are thinned evenly."""
MOST_STUDIES = 12
"""Studies of one folder that a page takes in."""
MOST_RUNS = 24
"""Runs that belong to no study that a page tells apart."""


def runs_page(folder: Path | None) -> Page:
    """The blocks for `folder`: a comparison, a study, a run, or a folder of these; None for the packaged sweep.

    Raises:
        InputError: there is nothing of the kind, or it is not readable.
    """
    made = Page("Runs")
    if folder is None:
        return _packaged(made)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give one that compare, study or train wrote, or one that holds such")
    places = _places(folder)
    if not places:
        raise InputError(f"{folder} holds no study and no run: give a folder that compare, study or train wrote")
    singles = [place for place in places if not (place / FILE).exists()]
    studies = [place for place in places if (place / FILE).exists()]
    for found, most, kind in ((studies, MOST_STUDIES, "studies"), (singles, MOST_RUNS, "runs outside of studies")):
        if len(found) > most:
            raise InputError(f"{folder} holds {len(found)} {kind}, a page takes {most}: give a folder with fewer")
    for place in studies:
        _study(made, place)
    if singles:
        _singles(made, singles)
    return made


def _places(folder: Path) -> list[Path]:
    """`folder` itself where it is a study or a run, else those directly inside it."""
    if _is_place(folder):
        return [folder]
    return sorted(child for child in folder.iterdir() if child.is_dir() and _is_place(child))


def _is_place(folder: Path) -> bool:
    return (folder / FILE).exists() or (folder / "config.json").exists()


# -------------------------------------------------------------------------------------------------------------- studies
def _packaged(made: Page) -> Page:
    """The learning-rate sweep that comes with the package."""
    sweep = rates.packaged()
    rows = [] if sweep is None else _sweep_rows(sweep)
    figure = rate_curves(rows, "from the sweep that comes with the package")
    made.text(
        "No folder of runs was given, so here is the sweep from which the package takes its learning rates: every"
        " scheme on the same micro model, trained at rates a factor of two apart."
    )
    if figure is not None:
        add_figures(made, figure)
    made.text("With runs of your own, their loss curves, rates, learned gains and fits come here:")
    return made.code("layerrope compare --out runs/mine\nlayerrope lab --runs runs/mine --out lab.html")


def _sweep_rows(sweep: rates.Sweep) -> list[dict[str, Any]]:
    return [
        {"scheme": name, "lr": lr, "loss": loss}
        for name, row in sweep.schemes.items()
        for lr, loss in row.losses.items()
    ]


def _study(made: Page, folder: Path) -> None:
    name = read_study(folder).name
    made.heading(f"{folder.name}: {'comparison' if name == 'compare' else f'study of kind {name}'}", 3)
    if name == "compare":
        _comparison(made, folder)
    elif name in RECIPES:
        _recipe(made, folder)
    else:
        raise InputError(f"{folder} holds a study of another kind ({name}): give a comparison, a study or runs")


def _comparison(made: Page, folder: Path) -> None:
    found = read_comparison(folder)
    made.table(shown_rows(found.table), caption_of(found.table)).bullets(found.findings.can)
    made.text("What this comparison cannot tell:").bullets(found.findings.cannot)
    source = "from these runs" if found.sweep is None else "from these runs and the packaged sweep"
    figures = [*_losses(folder, found.table), final_losses(found.table)]
    add_figures(made, *figures, rate_curves(rate_rows(found.table, found.sweep), source))
    _gains(made, folder, [found.table])


def _recipe(made: Page, folder: Path) -> None:
    """A study's own findings, tables and fits, then the curves and gains of its last setting."""
    found = read_found(folder)
    said = findings_of(found)
    made.bullets(said.sentences)
    for caption, rows in said.tables:
        made.table(rows, caption)
    add_figures(made, *said.figures)
    last = found.groups[-1]
    if last.name:
        made.text(f"Curves and gains of the last setting, {last.name}:")
    add_figures(made, *_losses(folder, last.table))
    _gains(made, folder, [last.table])


def _losses(folder: Path, table: Table) -> list[Figure | None]:
    rows, lost = thinned(loss_rows(folder, table)), ends(table)
    return [loss_curves(rows, lost), validation_curves(rows)] if rows or lost else []


def _gains(made: Page, folder: Path, tables: Iterable[Table]) -> None:
    """The learned gains of every scheme, of its first finished seed at its best rate."""
    rows: list[dict[str, Any]] = []
    for row in (row for table in tables for row in table.ranked):
        trial = next(trial for trial in row.trials if trial.result is not None)
        try:
            rows += gain_rows(row.scheme, load_trained(folder / trial.key).model)
        except InputError as error:
            made.note(f"{row.scheme} is missing among the gains: {error}")
    add_figures(made, gain_chart(rows))


# ----------------------------------------------------------------------------------------------------------------- runs
def _singles(made: Page, folders: Sequence[Path]) -> None:
    """Runs that belong to no study, each a curve of its own."""
    made.heading("Runs" if len(folders) > 1 else f"Run {folders[0].name}", 3)
    named = {folder: f"{folder.name}: {_name(folder)}" for folder in folders}
    rows = thinned([row for folder, name in named.items() for row in _run_rows(folder, name)])
    if not rows:
        made.note("No run here has logged a loss yet.")
    else:
        add_figures(made, loss_curves(rows), validation_curves(rows))
    gains: list[dict[str, Any]] = []
    for folder, name in named.items():
        try:
            gains += gain_rows(name, load_trained(folder).model)
        except InputError as error:
            made.note(f"{name} is missing among the gains: {error}")
    add_figures(made, gain_chart(gains))


def _name(folder: Path) -> str:
    record = read_record(folder)
    assert record is not None
    return name_of(read_config(record["config"], f"{folder / 'config.json'}: config"))


def _run_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [
        {"scheme": name, "seed": "", "tokens": line["tokens"], "loss": line[key], "text": text}
        for line in read_metrics(folder / "metrics.jsonl")
        for key, text in (("loss", "training"), ("val_loss", "validation"))
        if isinstance(line.get(key), (int, float)) and isinstance(line.get("tokens"), int)
    ]


# -------------------------------------------------------------------------------------------------------------- drawing
def thinned(rows: Sequence[Mapping[str, Any]], most: int = POINTS) -> list[Mapping[str, Any]]:
    """`rows` of loss curves with each curve thinned evenly, its last point kept, to about `most` in all."""
    curves: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault((row["scheme"], row["seed"], row["text"]), []).append(row)
    step = -(-len(rows) // most)
    kept: list[Mapping[str, Any]] = []
    for curve in curves.values():
        kept += curve[(len(curve) - 1) % step if step else 0 :: max(step, 1)]
    return kept
