"""The report of a comparison: report.html, the same charts as PNGs, and result.json, from the runs in its folder."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from layerrope.charts import save_charts, save_png
from layerrope.comparing.charts import (
    SITE_NAMES,
    WHEN,
    Figure,
    ends,
    final_losses,
    gain_chart,
    loss_curves,
    loss_rows,
    picture,
    rate_curves,
    rate_rows,
    stream_chart,
    validation_curves,
)
from layerrope.comparing.compare import Row, Table, Trial, compare, trials_of
from layerrope.comparing.findings import Findings, findings
from layerrope.comparing.rates import Sweep, sweep_from_json
from layerrope.comparing.table import caption_of, shown_rows
from layerrope.data import load_data
from layerrope.errors import InputError
from layerrope.files import read_json, write_json
from layerrope.launching.launch import available_cores
from layerrope.model import LM
from layerrope.page import Page
from layerrope.stream import base_angles, site_gains, stream_rms, trained_model
from layerrope.study import Study, outcomes, read_study
from layerrope.training.kinds import Model
from layerrope.training.machine import threads
from layerrope.training.recipe import TrainConfig

SCHEMA = "layerrope.compare/1"
WINDOWS = 16
"""Validation windows on which the stream is measured."""


@dataclass(frozen=True)
class Depth:
    """What the models at their best rates look like by depth, as rows for charts; notes on models not there."""

    gains: list[dict[str, Any]]
    angles: list[dict[str, Any]]
    stream: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class Comparison:
    """A comparison on disk: what was asked for, and what its runs gave."""

    folder: Path
    study: Study

    @cached_property
    def sweep(self) -> Sweep | None:
        """The packaged sweep that its rates came from, as it was then."""
        saved = self.study.facts.get("sweep")
        return None if saved is None else sweep_from_json(saved)

    @property
    def runs(self) -> list[Path]:
        """Their folders."""
        return [self.folder / run.key for run in self.study.runs]

    @cached_property
    def table(self) -> Table:
        known = {} if self.sweep is None else {name: row.bracketed for name, row in self.sweep.schemes.items()}
        return compare(trials_of(self.study.runs, outcomes(self.study, self.folder)), known)

    @cached_property
    def findings(self) -> Findings:
        return findings(self.table, self.study.base, self.sweep)

    @cached_property
    def depth(self) -> Depth:
        return measure_depth(self.folder, self.table, self.study.base)


def read_comparison(folder: Path) -> Comparison:
    """The comparison in `folder`. Raises InputError when there is none."""
    study = read_study(folder)
    if study.name != "compare":
        raise InputError(f"{folder} holds a study of another kind ({study.name}): give a folder that compare wrote")
    return Comparison(folder, study)


def write_report(found: Comparison) -> dict[str, Any]:
    """Write report.html, charts/*.png and result.json into the comparison's folder.

    Returns:
        The document in result.json.

    Raises:
        InputError: the folder cannot be written, or the text is no longer there.
    """
    figures = figures_of(found)
    page(found, figures).write(found.folder / "report.html")
    made = document(found)
    write_json(found.folder / "result.json", made)
    # last: under a limit on memory the library that draws may end the process
    save_charts({figure.name: figure.chart for figure in figures}, found.folder / "charts")
    return made


def write_picture(found: Comparison, path: Path, mode: str = "light") -> Path:
    """The loss curves and final losses side by side as one PNG."""
    settings = {row["setting"]: row["value"] for row in found.study.facts.get("settings", [])}
    subtitle = f"{settings.get('model', '')}; {settings.get('budget', '')}; seeds {settings.get('seeds', '')}"
    chart = picture(loss_rows(found.folder, found.table), found.table, found.findings.can[0], subtitle)
    return save_png(chart, path, mode=mode)


# --------------------------------------------------------------------------------------------------------- by depth
def measure_depth(folder: Path, table: Table, base: TrainConfig) -> Depth:
    """Gains and stream of every scheme's model, of its first finished seed at its best rate."""
    depth = Depth([], [], [], [])
    data = load_data(base.data)
    windows = next(iter(data.eval_batches(WINDOWS, WINDOWS * base.data.seq_len)))[0]
    with threads(1):  # the models are small, and threads that wait for each other cost more than they bring
        for row in table.ranked:
            trial = next(trial for trial in row.trials if trial.result is not None)
            try:
                _add_model(depth, row.scheme, folder / trial.key, windows)
            except InputError as error:
                depth.notes.append(f"{row.scheme} is missing in the charts by depth: {error}")
    return depth


def _add_model(depth: Depth, scheme: str, run_dir: Path, windows: Tensor) -> None:
    """Measure one run's model, and the same model before training."""
    model, config = trained_model(run_dir)
    untrained = LM(config.model, seed=config.seed).eval()
    depth.gains.extend(gain_rows(scheme, model))
    depth.angles.extend(_angle_rows(scheme, model))
    for when, each in zip(WHEN, (untrained, model), strict=True):
        sizes = stream_rms(each, windows).tolist()
        depth.stream.extend({"scheme": scheme, "panel": when, "x": i / 2, "y": s} for i, s in enumerate(sizes))


def gain_rows(scheme: str, model: Model) -> list[dict[str, Any]]:
    """The size of the learned gains by site and layer, for `gain_chart`."""
    return [
        {"scheme": scheme, "panel": SITE_NAMES[site], "x": layer, "y": size}
        for site, gains in site_gains(model).items()
        for layer, size in enumerate(gains.square().mean(-1).sqrt().tolist())
    ]


def _angle_rows(scheme: str, model: LM) -> list[dict[str, Any]]:
    return [
        {"scheme": scheme, "site": SITE_NAMES[site], "first layer": angles[0].item(), "last layer": angles[-1].item()}
        for site, angles in base_angles(model).items()
    ]


# --------------------------------------------------------------------------------------------------------- the page
def figures_of(found: Comparison) -> list[Figure]:
    """Every chart there is something to draw for."""
    table = found.table
    source = "from these runs" if found.sweep is None else "from these runs and the packaged sweep"
    rows = loss_rows(found.folder, table)
    figures = [
        loss_curves(rows, ends(table)),
        validation_curves(rows),
        final_losses(table),
        rate_curves(rate_rows(table, found.sweep), source),
        gain_chart(found.depth.gains),
        stream_chart(found.depth.stream),
    ]
    return [figure for figure in figures if figure is not None]


def page(found: Comparison, figures: list[Figure]) -> Page:
    """The report as a page."""
    shown = {figure.name: figure for figure in figures}
    made = Page("Depth schemes compared", found.findings.can[0])
    made.table(shown_rows(found.table), caption_of(found.table))
    made.heading("What this comparison tells").bullets(found.findings.can)
    made.heading("What it cannot tell").bullets(found.findings.cannot)
    made.heading("Losses")
    for name in ("loss-curves", "validation-curves", "final-losses", "learning-rates"):
        add_figures(made, shown.get(name))
    made.heading("By depth")
    for name in ("gains-by-depth", "stream-by-depth"):
        add_figures(made, shown.get(name))
    for note in found.depth.notes:
        made.note(note)
    if found.depth.angles:
        made.table(found.depth.angles, "LayerRoPE's angle of the first channel pair, degrees", folded=True)
    made.heading("Settings").table(found.study.facts.get("settings", []), "Every setting and its reason")
    made.table([_run_row(trial) for trial in found.table.trials], "Every run", folded=True)
    return made.heading("Command").code(str(found.study.facts.get("command", "")))


def add_figures(made: Page, *figures: Figure | None) -> None:
    """Put figures on a page, one of several panels two by two; None: there is none."""
    for figure in figures:
        if figure is None:
            continue
        if figure.panels:
            for start in range(0, len(figure.panels), 2):
                made.charts(figure.panels[start : start + 2])
            made.text(figure.caption)
        else:
            made.chart(figure.chart, figure.caption, figure.alt)


def _run_row(trial: Trial) -> dict[str, Any]:
    result = trial.outcome.result
    return {
        "scheme": trial.scheme,
        "lr": f"{trial.lr:g}",
        "seed": trial.seed,
        "status": trial.outcome.status,
        "steps": None if result is None else result.step,
        "training loss": None if result is None else result.train_loss,
        "validation loss": None if result is None else result.val_loss,
        "tokens/s": None if result is None or result.tokens_per_second is None else round(result.tokens_per_second),
        "seconds": None if result is None else round(result.seconds),
        "folder": trial.key,
    }


# -------------------------------------------------------------------------------------------------------- the record
def document(found: Comparison) -> dict[str, Any]:
    """Everything as strict JSON data: what `--json` prints and result.json holds."""
    table = found.table
    return {
        "schema": SCHEMA,
        "command": found.study.facts.get("command"),
        "settings": found.study.facts.get("settings"),
        "rates": found.study.facts.get("rates"),
        "reference": table.reference,
        "rows": [_json_row(row) for row in table.rows],
        "can_tell": list(found.findings.can),
        "cannot_tell": list(found.findings.cannot),
        "runs": [trial.as_dict() for trial in table.trials],
        "depth": asdict(found.depth),
        "made_with": made_with(found.runs),
    }


def _json_row(row: Row) -> dict[str, Any]:
    plain = ("scheme", "lr", "bracketed", "val_loss", "bits_per_byte", "tokens_per_second", "parameters", "seeds")
    return {
        **{name: getattr(row, name) for name in plain},
        "difference": None if row.difference is None else {**asdict(row.difference), "level": 0.95},
        "lost": [trial.as_dict() for trial in row.lost],
    }


def made_with(runs: Iterable[Path]) -> dict[str, Any]:
    """This machine, and every set of versions that the runs in these folders were trained with."""
    records = [run / "config.json" for run in runs]
    saved = [read_json(path) for path in records if path.exists()]
    versions: list[Mapping[str, Any]] = []
    for each in saved:
        one = {**each.get("versions", {}), "git_commit": each.get("git_commit")}
        if one not in versions:
            versions.append(one)
    return {"cores": available_cores(), "processor": processor(), "runs": versions}


def version_lines(made: Mapping[str, Any]) -> list[str]:
    """The versions of `made_with`, a line a set."""
    return [", ".join(f"{name} {version}" for name, version in each.items() if version) for each in made["runs"]]


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
