"""Experiment trackers behind one interface: TensorBoard, Weights & Biases, trackio. Each is an optional extra."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from layerrope.errors import InputError, MissingExtra, in_full, one_of


class Tracker(Protocol):
    """Takes the rows of metrics.jsonl as they are written."""

    def log(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's folder, under tensorboard/."""

    def __init__(self, run_dir: Path, key: str, config: dict[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1)

    def log(self, row: dict[str, Any]) -> None:
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self.writer.close()


class HostedRun:
    """A run of W&B or trackio, which share their interface; resumed under its key. What they print goes to stderr."""

    def __init__(self, module: str, run_dir: Path, key: str, config: dict[str, Any], extra: dict[str, Any]) -> None:
        self.module = importlib.import_module(module)
        with contextlib.redirect_stdout(sys.stderr):
            self.module.init(project="layerrope", name=f"{run_dir.name}-{key}", config=config, resume="allow", **extra)

    def log(self, row: dict[str, Any]) -> None:
        self.module.log(numbers(row), step=row["step"])

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.module.finish()


def _wandb(run_dir: Path, key: str, config: dict[str, Any], step: int) -> Tracker:
    return HostedRun("wandb", run_dir, key, config, {"id": key, "dir": str(run_dir)})


def _trackio(run_dir: Path, key: str, config: dict[str, Any], step: int) -> Tracker:
    return HostedRun("trackio", run_dir, key, config, {})


TRACKERS: dict[str, Callable[[Path, str, dict[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
}


def check_trackers(names: Iterable[str]) -> None:
    """Raise InputError for an unknown tracker, MissingExtra for one that is not installed."""
    for name in names:
        one_of("tracker", name, TRACKERS)
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingExtra(name, "track") from error


@contextlib.contextmanager
def start_trackers(
    names: Iterable[str], run_dir: Path, key: str, config: dict[str, Any], step: int
) -> Iterator[list[Tracker]]:
    """The trackers of a run that has done `step` updates, as a context that closes them.

    Raises:
        InputError: one that does not start (no account, no network).
    """
    with contextlib.ExitStack() as stack:
        trackers: list[Tracker] = []
        for name in names:
            try:
                tracker = TRACKERS[name](run_dir, key, config, step)
            except Exception as error:
                raise InputError(f"tracker {name} does not start: {in_full(error)}") from error
            stack.callback(tracker.close)
            trackers.append(tracker)
        yield trackers


def numbers(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers in a row of metrics, nested ones as outer/inner; `step` is left out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            found[f"{prefix}{name}"] = value
    return found
