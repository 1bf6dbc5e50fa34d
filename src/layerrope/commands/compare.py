"""`layerrope compare`: train depth schemes side by side and show who wins, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from layerrope import terminal
from layerrope.commands.board import Board
from layerrope.commands.launching import UNRECORDED, Launching
from layerrope.commands.live import DataStages, clock
from layerrope.commands.typed import typed
from layerrope.comparing.plan import Request, plan
from layerrope.comparing.report import Comparison, write_report
from layerrope.comparing.table import caption_of, shown_rows
from layerrope.errors import InputError
from layerrope.study import Study, job, run_study
from layerrope.training.machine import default_device

WIDTH = 110
"""Columns of the table where stdout is no terminal."""


@dataclass(frozen=True)
class Command(Launching, Request):
    """Train depth schemes side by side on the same text, each at its own best learning rate, and compare them.

    Runs that are done are reused and runs that were cut are continued, so the same command can be given again.
    """

    steps: int | None = None
    """length of each run in steps, in place of --budget"""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto: cuda where there is one (on slurm: with --slurm-gpus)"""
    out: Path = Path("runs/compare")
    """folder of the runs, the report and the charts"""
    dry_run: bool = False
    """print the settings and the number of runs, and train nothing"""
    json: bool = False
    """print one JSON document on stdout, and nothing else there"""

    def run(self) -> int:
        self.check_launch(self._device, self.precision)
        study = plan(self._request(), progress=DataStages())
        study = replace(
            study, facts={**study.facts, "command": typed(self, "compare", ("json", "dry_run", *UNRECORDED))}
        )
        workers = self.workers(len(study.runs), self._device)
        show_settings(
            study, f"{len(study.runs)}, {max(workers, 1)} at once with {_threads(self.threads)}; in {self.out}"
        )
        if self.dry_run:
            return 0
        with Board([job(run, self.out) for run in study.runs]) as board:
            run_study(study, self.out, self.launcher(self.out, workers, self._device), board)
        found = Comparison(self.out, study)
        document = write_report(found)
        if self.json:
            terminal.emit_json(document)
        else:
            show(found)
        return 0 if found.table.ranked else 1

    def _request(self) -> Request:
        """The part of the arguments that says what to compare, with --steps as the budget."""
        request = Request(**{f.name: getattr(self, f.name) for f in fields(Request)})
        if self.steps is None:
            return request
        if self.budget != Request.budget:
            raise InputError("--steps and --budget both set the length of a run: give one of them")
        if self.steps < 1:
            raise InputError(f"--steps must be at least 1: got {self.steps}")
        return replace(request, budget=f"{self.steps}steps")

    @property
    def _device(self) -> str:
        if self.device == "auto" and self.on_slurm:  # this machine need not be like those of the cluster
            return "cuda" if self.slurm_gpus else "cpu"
        return default_device() if self.device == "auto" else self.device


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''} each"


def show_settings(study: Study, runs: str) -> None:
    """Every setting and its reason, on stderr."""
    rows = [*study.facts["settings"], {"setting": "runs", "value": runs, "why": ""}]
    grid = Grid.grid(padding=(0, 2))
    for row in rows:
        why = f" [dim]({escape(row['why'])})[/dim]" if row["why"] else ""
        grid.add_row(f"[bold]{escape(row['setting'])}[/bold]", escape(row["value"]) + why)
    terminal.status.print(grid)


def show(found: Comparison) -> None:
    """The table and the findings on stdout."""
    out = terminal.out if terminal.out.is_terminal else Console(highlight=False, width=WIDTH, soft_wrap=True)
    out.print(table(shown_rows(found.table), caption_of(found.table)))
    for title, sentences in (("It tells", found.findings.can), ("It cannot tell", found.findings.cannot)):
        out.print(f"\n[bold]{title}[/bold]")
        for sentence in sentences:
            out.print(f"- {escape(sentence)}")
    seconds = sum(t.outcome.result.seconds for t in found.table.trials if t.outcome.result is not None)
    out.print(f"\n{clock(seconds)} of training in all; report: {escape(str(found.folder / 'report.html'))}")


def table(rows: Sequence[Mapping[str, Any]], caption: str) -> Grid:
    """Rows as a terminal table, numbers to the right."""
    grid = Grid(title=escape(caption), title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in rows[0] if rows else ():
        left = name in {"scheme", "run"}
        grid.add_column(escape(name), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        grid.add_row(*(escape(str(value)) for value in row.values()))
    return grid
