"""A run on disk: config.json, metrics.jsonl, checkpoints/, result.json, and a lock against a second process."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import platform
import re
import subprocess
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

import layerrope
from layerrope.errors import InputError, one_of
from layerrope.files import dumps, read_json, unwritable, write_atomic, write_json
from layerrope.locks import folder_held
from layerrope.training import checkpoint as checkpoints
from layerrope.training.recipe import (
    NEUTRAL,
    ROUNDING,
    TrainConfig,
    completed,
    differences,
    from_json,
    run_key,
    to_json,
)

STATUSES = ("done", "diverged", "interrupted")


@dataclass
class Result:
    """How a run ended. Losses are nats per counted token; None where the run did not get that far."""

    status: str  # one of `STATUSES`
    key: str
    step: int  # updates done
    tokens: int  # counted targets trained on
    train_loss: float | None  # over the last twentieth of the steps
    val_loss: float | None  # of the last evaluation: at the end, unless the run was cut or diverged
    bits_per_byte: float | None  # of the same evaluation
    best_val_loss: float | None
    best_step: int | None
    seconds: float  # of training and evaluation, over all sessions
    tokens_per_second: float | None  # of training alone: without compilation, evaluation and checkpoints
    n_params: int
    diverged_at: int | None = None  # the update (from 1) whose loss or gradient was not finite
    error: str | None = None


def read_record(run: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What config.json of the run in folder `run` says, or None where there is no such file.

    Returns:
        The document, with "key" (a text), "config" and "data" (objects; "data" may have been left out) among others.

    Raises:
        InputError: it is not the config.json of a run of this package; names the field.
    """
    path = Path(run) / "config.json"
    if not os.path.lexists(path):
        return None
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} is not that of a run (no JSON object): give the folder of a run, or a new one")
    found = {"data": {}, **found}
    for name, kind in {"key": str, "config": dict, "data": dict}.items():
        if not isinstance(found.get(name), kind):
            wanted = "a text" if kind is str else "an object"
            raise InputError(
                f"{path} is not that of a run ({name} is not {wanted}): give the folder of a run, or a new one"
            )
    return found


def read_result(folder: str | os.PathLike[str]) -> Result | None:
    """The result of the finished run in `folder`, or None.

    Raises:
        InputError: it is not readable, or not the result of the run that config.json beside it describes.
    """
    path = Path(folder) / "result.json"
    if not os.path.lexists(path):
        return None
    try:
        result = from_json(Result, read_json(path), str(path))
        one_of("status", result.status, STATUSES)
        if result.val_loss is not None and not 0 <= result.val_loss < math.inf:
            raise InputError(f"val_loss is {result.val_loss:g}, no cross-entropy")
    except (InputError, TypeError) as error:
        raise InputError(f"{path} is not the result of a run ({error}): remove it to train again") from error
    record = read_record(folder)
    if record is not None and record["key"] != result.key:
        raise InputError(
            f"{path} is the result of another run (key {result.key}, config.json has {record['key']}): "
            "choose another folder, or put the files of one run together again"
        )
    return result


def folder_name(config: TrainConfig) -> str:
    """A run's folder where none is given: the scheme, with what a file system may not take left out, and the key."""
    return f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', config.model.scheme)}-{run_key(config)}"


class RunFolder:
    """The files of one run. Use inside `locked()`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.config, self.metrics, self.result = (
            self.path / name for name in ("config.json", "metrics.jsonl", "result.json")
        )

    def locked(self) -> AbstractContextManager[None]:
        """Hold the run.

        Raises:
            InputError: another process holds it, or the folder cannot be made.
        """
        return folder_held(self.path, "is training")

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
        saved = self.record()["data"]
        for name, new in facts["data"].items():
            if name.endswith("sha256") and name in saved and saved[name] != new:
                self._refuse(f"data {name}", saved[name], new)

    def record(self) -> dict[str, Any]:
        """What config.json says; see `read_record`. Raises InputError when there is none."""
        found = read_record(self.path)
        if found is None:
            raise InputError(f"{self.path} has no config.json: give the folder of a run")
        return found

    @property
    def key(self) -> str:
        """The key of the run that claimed the folder."""
        return self.record()["key"]

    def check(self, config: TrainConfig) -> None:
        """Raise InputError if the folder holds a run with another config, or files of a run that cannot be told."""
        self._check_known()
        for name, old, new in self.changes(config, NEUTRAL | ROUNDING):
            self._refuse(name, old, new)

    def _check_known(self) -> None:
        """Raise InputError if there are files of a run, or a config.json, that are not known to be this package's."""
        if read_record(self.path) is not None:
            return
        left = [path.name for path in (self.result, self.metrics) if os.path.lexists(path)]
        left += ["checkpoints"] if checkpoints.steps(self.checkpoints) else []
        if left:
            raise InputError(
                f"{self.path} has {left[0]} but no config.json, so nothing says whose it is: "
                "put config.json back, or choose another folder"
            )

    def changes(self, config: TrainConfig, free: frozenset[str] = NEUTRAL) -> list[tuple[str, Any, Any]]:
        """(field, value there, value here) for every field in which the folder's config differs, but `free` ones."""
        record = read_record(self.path)
        saved = to_json(config) if record is None else completed(record["config"], config)
        return list(differences(saved, to_json(config), free))

    def _refuse(self, name: str, old: Any, new: Any) -> None:
        remedy = "choose another --out, or start over with --fresh"
        if name == "steps":
            remedy = "the schedule would change under a run that is half done: " + remedy
        raise InputError(f"{self.path} holds a run with another config ({name} is {old} there, {new} here): {remedy}")

    def clear(self) -> None:
        """Remove the run's files and nothing else; config.json, which says whose they are, goes last.

        Raises:
            InputError: the folder holds something that is no run of this package, or a file cannot be removed.
        """
        self._check_known()
        try:
            for path in (self.result, self.metrics):
                path.unlink(missing_ok=True)
            checkpoints.clear(self.checkpoints)
            self.config.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(error.filename or self.path, error) from error

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
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): move it away") from error
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
