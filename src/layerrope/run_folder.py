"""A run on disk: config.json, metrics.jsonl, checkpoints/, result.json, and a lock against a second process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import layerrope
from layerrope.errors import InputError
from layerrope.files import dumps, read_json, unwritable, write_atomic, write_json
from layerrope.recipe import NEUTRAL, ROUNDING, TrainConfig, differences, run_key, to_json


@dataclass
class Result:
    """How a run ended. Losses are nats per counted token; None where the run did not get that far."""

    status: str  # "done", "diverged" or "interrupted"
    key: str
    step: int  # updates done
    tokens: int  # counted targets trained on
    train_loss: float | None  # over the last twentieth of the steps
    val_loss: float | None  # at the end
    bits_per_byte: float | None  # at the end
    best_val_loss: float | None
    best_step: int | None
    seconds: float  # of training and evaluation, over all sessions
    tokens_per_second: float | None  # of training alone: without compilation, evaluation and checkpoints
    n_params: int
    diverged_at: int | None = None  # the update (from 1) whose loss or gradient was not finite
    error: str | None = None


def read_result(folder: str | os.PathLike[str]) -> Result | None:
    """The result of the finished run in `folder`, or None. Raises InputError when it is not readable."""
    path = Path(folder) / "result.json"
    if not path.exists():
        return None
    try:
        return Result(**read_json(path))
    except TypeError as error:
        raise InputError(f"{path} is not the result of a run ({error}): remove it to train again") from error


class RunFolder:
    """The files of one run. Use inside `locked()`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.config, self.metrics, self.result = (
            self.path / name for name in ("config.json", "metrics.jsonl", "result.json")
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run. The system frees the lock when a process dies, so none is ever stale.

        Raises:
            InputError: another process holds it, or the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / "lock", timeout=0)
            lock.acquire()
        except Timeout as error:
            raise InputError(
                f"another process is training in {self.path}: wait for it or choose another --out"
            ) from error
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            yield
        finally:
            lock.release()

    # --------------------------------------------------------------------------------------------------- config
    def claim(self, config: TrainConfig, facts: dict[str, Any]) -> None:
        """Write config.json, or check that the one there is of the same run.

        Raises:
            InputError: the folder holds a run with another config; names the first field that differs.
        """
        if not self.config.exists():
            mine = {"config": to_json(config), "key": run_key(config)}
            write_json(self.config, {**mine, **facts, "versions": versions(), "git_commit": git_commit()})
            return
        self.check(config)
        saved = read_json(self.config).get("data", {})
        for name, new in facts["data"].items():
            if name.endswith("sha256") and name in saved and saved[name] != new:
                self._refuse(f"data {name}", saved[name], new)

    def check(self, config: TrainConfig) -> None:
        """Raise InputError if the folder holds a run with another config."""
        for name, old, new in self.changes(config, NEUTRAL | ROUNDING):
            self._refuse(name, old, new)

    def changes(self, config: TrainConfig, free: frozenset[str] = NEUTRAL) -> list[tuple[str, Any, Any]]:
        """(field, value there, value here) for every field in which the folder's config differs, but `free` ones."""
        saved = read_json(self.config).get("config", {}) if self.config.exists() else to_json(config)
        return list(differences(saved, to_json(config), free))

    def _refuse(self, name: str, old: Any, new: Any) -> None:
        remedy = "choose another --out, or start over with --fresh"
        if name == "steps":
            remedy = "the schedule would change under a run that is half done: " + remedy
        raise InputError(f"{self.path} holds a run with another config ({name} is {old} there, {new} here): {remedy}")

    def clear(self) -> None:
        """Remove the run's files (nothing else in the folder)."""
        for path in (self.result, self.metrics, self.config):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    # -------------------------------------------------------------------------------------------------- metrics
    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.metrics)

    def rewind(self, step: int) -> None:
        """Drop the metrics after `step`, and a line cut short by a kill."""
        if self.metrics.exists():
            kept = [row for row in self.rows() if row["step"] <= step]
            write_atomic(self.metrics, "".join(dumps(row, indent=None) + "\n" for row in kept))

    def open_metrics(self) -> FileIO:
        """metrics.jsonl for `append`; unbuffered, so that a line is in the file when the call returns."""
        try:
            return FileIO(self.metrics, "a")
        except OSError as error:
            raise unwritable(self.metrics, error) from error

    def append(self, metrics: FileIO, row: dict[str, Any]) -> None:
        """Add one line. Raises InputError when the disk is full; the next resume drops what was written of it."""
        line = (dumps(row, indent=None) + "\n").encode()
        try:
            if metrics.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise unwritable(self.metrics, error) from error

    def finish(self, result: Result) -> None:
        write_json(self.result, asdict(result))


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, in order; what a kill left of a line is not one."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def versions() -> dict[str, str]:
    """What this run was made with."""
    return {
        "layerrope": layerrope.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def git_commit() -> str | None:
    """The commit of the package's source tree, with "+changes" where files differ from it; None outside of git."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # an installed copy inside somebody's repository is not in it
        commit = git("rev-parse", "HEAD")
        return commit + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
