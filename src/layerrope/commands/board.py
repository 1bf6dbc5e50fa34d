"""Progress on the terminal: one line a run that is training, a note for each that has ended, the total time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from layerrope.commands.live import clock
from layerrope.launching.launch import Job, Outcome
from layerrope.terminal import note, status
from layerrope.training.session import Report


class Board:
    """Draws what a launcher tells it, on stderr. Without a terminal only the notes are written.

    Args:
        jobs: every run of the study, finished ones included.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.left: dict[str, float] = {str(job.run_dir): float(job.config.steps * job.cost) for job in jobs}
        self.losses: dict[str, float] = {}
        self.tasks: dict[str, TaskID] = {}
        self.done = 0
        self.clock = Clock(sum(self.left.values()))
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}", markup=False),
            console=status,
            transient=True,
            disable=not status.is_terminal,
        )
        self.total = self.bars.add_task("all runs", total=len(jobs), words="starting")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bars.stop()

    def __call__(self, job: Job, what: Report | Outcome) -> None:
        """A launcher's listener."""
        if isinstance(what, Outcome):
            self._ended(job, what)
        else:
            self._reported(job, what)
        seconds = self.clock.seconds_left(sum(self.left.values()))
        words = f"{self.done} of {len(self.left)} done" + (f", {clock(seconds)} left" if seconds is not None else "")
        self.bars.update(self.total, completed=self.done, words=words)

    def _reported(self, job: Job, report: Report) -> None:
        name = str(job.run_dir)
        if report.kind == "note":
            note(f"{job.label}: {report.text}")
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(job.label, total=report.steps, words="")
        before, self.left[name] = self.left[name], (report.steps - report.step) * job.cost
        if report.kind == "start":
            self.clock.skip(before - self.left[name])  # steps of an earlier call
        loss = (report.row or {}).get("loss")
        if loss is not None:
            self.losses[name] = loss
        self.bars.update(self.tasks[name], completed=report.step, words=self._words(name, report))

    def _words(self, name: str, report: Report) -> str:
        parts = [f"{report.step}/{report.steps}"]
        if name in self.losses:
            parts.append(f"loss {self.losses[name]:.3f}")
        if report.tokens_per_second is not None:
            parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
        if report.seconds_left is not None:
            parts.append(f"{clock(report.seconds_left)} left")
        return "  ".join(parts)

    def _ended(self, job: Job, outcome: Outcome) -> None:
        name = str(job.run_dir)
        if name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))
        else:
            self.clock.skip(self.left[name])
        self.left[name] = 0.0
        self.done += 1
        note(f"{job.label}: {ending(outcome)}")


class Clock:
    """Time left, from the work done since it was made."""

    def __init__(self, work: float) -> None:
        self.work, self.began = work, time.monotonic()

    def skip(self, work: float) -> None:
        """Work that needs no time: it was done before."""
        self.work -= work

    def seconds_left(self, left: float) -> float | None:
        """Seconds for `left` at the speed so far; None before the first work is done."""
        done = self.work - left
        return None if done <= 0 else (time.monotonic() - self.began) * left / done


def ending(outcome: Outcome) -> str:
    """How a run ended, in a few words."""
    result = outcome.result
    if outcome.status == "done" and result is not None and result.val_loss is not None:
        speed = f", {result.tokens_per_second:,.0f} tokens/s" if result.tokens_per_second else ""
        return f"validation loss {result.val_loss:.4f}{speed}"
    if outcome.status == "diverged" and result is not None:
        return f"diverged at step {result.diverged_at}"
    return f"{outcome.status}{f' ({outcome.error})' if outcome.error else ''}"
