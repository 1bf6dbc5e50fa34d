"""A run's progress on stderr: a bar on a terminal, a few lines anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn

from layerrope.terminal import note, status
from layerrope.training.session import Report

PARTS = 10
"""Lines of progress where there is no terminal to draw a bar on."""


class RunBar:
    """The callback of `train` as a context: draws step, loss, tokens/s and time left, and prints remarks."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.words = {"loss": "", "rate": "", "left": ""}
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[words]}", markup=False),
            console=status,
            transient=True,
            disable=not status.is_terminal,
        )
        self.task = self.bar.add_task(label, total=None, words="")

    def __enter__(self) -> RunBar:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, report: Report) -> None:
        if report.kind == "note":
            note(report.text)
        self._read(report)
        words = "  ".join(word for word in self.words.values() if word)
        self.bar.update(self.task, completed=report.step, total=report.steps, words=words)
        part = max(1, report.steps // PARTS)
        if self.bar.disable and report.kind == "step" and (report.step % part == 0 or report.step == report.steps):
            note(f"{self.label}  {report.step}/{report.steps}  {words}")

    def _read(self, report: Report) -> None:
        """Take over what the report says anew."""
        row = report.row or {}
        if row.get("loss") is not None:
            self.words["loss"] = f"loss {row['loss']:.3f}"
        if "val_loss" in row:
            self.words["loss"] += f" (validation {row['val_loss']:.3f})"
        if report.tokens_per_second:
            self.words["rate"] = f"{report.tokens_per_second:,.0f} tokens/s"
        if report.seconds_left is not None:
            self.words["left"] = f"{clock(report.seconds_left)} left"


def clock(seconds: float) -> str:
    """`seconds` as 4:05 or 1:02:03."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class DataStages:
    """The progress of `load_data`: says once, when it begins, what is being prepared."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, stage: str, done: int) -> None:
        if stage not in self.said:
            self.said.add(stage)
            note(f"preparing data: {stage}")
