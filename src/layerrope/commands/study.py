"""`layerrope study NAME`: train one of the studies, or say what it would cost, and report what its runs say."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from tyro.conf import Positional

from layerrope import terminal
from layerrope.commands.board import Board
from layerrope.commands.compare import table
from layerrope.commands.launching import UNRECORDED, Launching
from layerrope.commands.live import DataStages
from layerrope.commands.typed import typed
from layerrope.data import load_data
from layerrope.launching.launch import Job, Outcome
from layerrope.studies.cost import cost_document, cost_rows, costs
from layerrope.studies.plan import Ask, Plan
from layerrope.studies.reading import Found
from layerrope.studies.recipes import plan_study
from layerrope.studies.report import BEST, setting_rows, write_study_report
from layerrope.study import Study, job, run_study
from layerrope.training.session import Report

WIDTH = 220
"""Columns of tables where stdout is no terminal."""


@dataclass(frozen=True)
class _Name:
    name: Positional[str]
    """ladder, depth, aspect, lr, ablation, recipe, context, competitors or loop"""


@dataclass(frozen=True)
class Command(Launching, Ask, _Name):
    """Train a study and report it: every scheme in every setting at several learning rates, then further seeds.

    Runs that are done are reused and runs that were cut are continued, so the same command can be given again.
    """

    dry_run: bool = False
    """print every run with parameters, tokens, FLOPs, memory and hours, and the total; train nothing"""
    gpu: str = "h100"
    """for the hours: a100, h100, h200, b200, l40s, rtx4090, or cpu-core"""
    utilisation: float = 0.4
    """for the hours: share of the peak that training reaches"""
    device: str = "cpu"
    """cpu, cuda or cuda:N"""
    out: Path | None = None
    """folder of the runs and the report; none: runs/NAME"""
    json: bool = False
    """print one JSON document on stdout, and nothing else there"""

    def run(self) -> int:
        ask = Ask(**{f.name: getattr(self, f.name) for f in fields(Ask)})
        plan = plan_study(self.name, ask)
        if self.dry_run:
            self._show_costs(plan)
            return 0
        self.check_launch(self.device, plan.base.precision)
        plan = self._with_text(plan, ask)
        folder = self.out or Path("runs") / self.name
        study = self._train(plan, folder)
        return report_study(Found(folder, study), self.json)

    def _with_text(self, plan: Plan, ask: Ask) -> Plan:
        """The plan for the text's own vocabulary, with the command in its facts. Prepares the text."""
        data = load_data(plan.base.data, progress=DataStages())
        plan = plan_study(self.name, replace(ask, vocab_size=data.vocab_size))
        command = typed(self, "study", ("json", "dry_run", "gpu", "utilisation", *UNRECORDED), positional=("name",))
        return replace(plan, facts={"command": command, "text": data.summary()})

    def _train(self, plan: Plan, folder: Path) -> Study:
        """Sweep every cell, wider where its best rate is at an edge, then train the other seeds at each one's best."""
        first = plan.first()
        left = len(plan.whole().runs) - len(first.runs)
        then = f", then up to {left} more on other seeds at the best rates" if left else ""
        terminal.note(f"{plan.name}: {len(first.runs)} runs{then}; in {folder}")
        outcomes = self._run(first, folder, ())
        while (wider := plan.wider(outcomes)) != plan:
            plan, before = wider, len(outcomes)
            terminal.note(f"{len(plan.first().runs) - before} more at rates beyond the edge where a best one lay")
            outcomes = self._run(plan.first(), folder, tuple(outcomes))
        second = plan.then(outcomes)
        if len(second.runs) > len(first.runs):
            self._run(second, folder, tuple(outcomes))
        return second

    def _run(self, study: Study, folder: Path, told: tuple[str, ...]) -> dict[str, Outcome]:
        """Train what is left of `study`; runs whose keys are `told` were spoken of before."""
        new = [job(run, folder) for run in study.runs if run.key not in told]
        workers = self.workers(len(new), self.device)
        with Board(new) as board:

            def listen(each: Job, what: Report | Outcome) -> None:
                if each.run_dir.name not in told:
                    board(each, what)

            return run_study(study, folder, self.launcher(folder, workers, self.device), listen)

    def _show_costs(self, plan: Plan) -> None:
        found = costs(plan.whole().runs, self.gpu, self.utilisation)
        if self.json:
            terminal.emit_json(cost_document(found, self.gpu, self.utilisation))
            return
        swept = any(len(cell.lrs) > 1 for cell in plan.cells)
        more = f"; up to {plan.bracket} rates more for a scheme whose best one is at the edge" if swept else ""
        caption = f"{self.name}: hours are on one {self.gpu} at {self.utilisation:.0%} of its peak"
        _console().print(table(cost_rows(found), caption + (more if plan.bracket else "")))


def report_study(found: Found, json: bool) -> int:
    """Write a study's report and tell what it says; the exit code: 0 where any scheme has a result."""
    said, document = write_study_report(found)
    if json:
        terminal.emit_json(document)
    else:
        show_study(found, said.sentences)
    return 0 if any(group.table.ranked for group in found.groups) else 1


def show_study(found: Found, sentences: list[str]) -> None:
    """The table of settings and the findings on stdout."""
    out = _console()
    out.print(table(setting_rows(found), BEST))
    for sentence in sentences:
        out.print(f"- {escape(sentence)}")
    folder = escape(str(found.folder))
    out.print(f"\nreport: {folder}/report.html, every run: {folder}/runs.csv")


def _console() -> Console:
    return terminal.out if terminal.out.is_terminal else Console(highlight=False, width=WIDTH, soft_wrap=True)
