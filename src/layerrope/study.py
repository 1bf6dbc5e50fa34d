"""A study: one base config, axes and seeds give runs, each in a folder named by the hash of its config.

`runs/NAME/study.json` says what was asked for, `runs/NAME/KEY/` is one run. Asking again reuses what is done,
continues what was cut, and adds what is new.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from layerrope.accounting import count_parameters
from layerrope.errors import InputError, one_of
from layerrope.files import read_json, write_json
from layerrope.launching.launch import Job, Listener, Outcome
from layerrope.locks import folder_held
from layerrope.training.kinds import read_config
from layerrope.training.recipe import TrainConfig, run_key, to_json
from layerrope.training.run_folder import read_result

FORMAT = 1
FILE = "study.json"
FAILURE = "failure.json"

Config = TypeVar("Config")


def replaced(config: Config, fields: Mapping[str, Any]) -> Config:
    """`config` with the named fields changed, all at once; a dot reaches into a nested config: `model.scheme`.

    Raises:
        InputError: no such field (with the nearest names), or a value that does not fit.
    """
    flat = {path: value for path, value in fields.items() if "." not in path}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        name, dot, inner = path.partition(".")
        one_of("field", name, [f.name for f in dataclasses.fields(config)])  # type: ignore[arg-type]
        if dot:
            nested.setdefault(name, {})[inner] = value
    for name, inner_fields in nested.items():
        flat[name] = replaced(flat.get(name, getattr(config, name)), inner_fields)
    return replace(config, **flat)  # type: ignore[type-var]


@dataclass(frozen=True)
class Run:
    """One run of a study: its values on the axes, its config, and the name of its folder."""

    labels: Mapping[str, Any]
    config: TrainConfig
    key: str


@dataclass(frozen=True)
class Study:
    """What is asked for: a base config and, for every run, the fields in which it differs."""

    name: str
    base: TrainConfig
    points: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """anything else that belongs to the record: the command, how the rates were chosen"""
    keys: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """folders of the points, as study.json has them; none: named by the configs as they are hashed now"""
    labels: tuple[Mapping[str, Any], ...] = ()
    """the points' values on the study's axes, where these say more than the fields; none: the fields"""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Every run once, in order. Raises InputError for a point that is no config."""
        configs = [replaced(self.base, point) for point in self.points]
        keys = self.keys or [run_key(config) for config in configs]
        made = [Run(*each) for each in zip(self.labels or self.points, configs, keys, strict=True)]
        return tuple({run.key: run for run in made}.values())


def grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the axes' values; the last axis moves fastest.

    >>> grid({"lr": [0.1, 0.2], "seed": [0]})
    [{'lr': 0.1, 'seed': 0}, {'lr': 0.2, 'seed': 0}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# ------------------------------------------------------------------------------------------------------- on disk
def locked(folder: Path) -> AbstractContextManager[None]:
    """Hold a study's folder.

    Raises:
        InputError: another process works in it, it holds a single run or is a file, or it cannot be written.
    """
    if (folder / "config.json").exists():
        raise InputError(f"{folder} holds a single run, not a study: choose another --out")
    return folder_held(folder, "works")


def write_study(study: Study, folder: Path) -> None:
    """Write study.json."""
    saved = {"format": FORMAT, "name": study.name, "facts": study.facts, "base": to_json(study.base)}
    write_json(folder / FILE, {**saved, "points": study.points, "keys": _keys(study), "labels": study.labels})


def _keys(study: Study) -> list[str]:
    """The folder of every point."""
    return list(study.keys) or [run_key(replaced(study.base, point)) for point in study.points]


def read_study(folder: Path) -> Study:
    """The study that was asked for in `folder` last.

    Raises:
        InputError: there is none, or it is not readable.
    """
    if not (folder / FILE).exists():
        raise InputError(f"{folder} holds no study (no {FILE}): give the folder that compare or study wrote")
    saved = read_json(folder / FILE)
    _check_shape(saved, folder / FILE)
    try:
        base = read_config(saved["base"], f"base in {folder / FILE}")
        points, keys = tuple(saved["points"]), tuple(saved["keys"])
        if len(points) != len(keys):
            raise KeyError("points and keys differ in number")
        labels = tuple(saved.get("labels", ()))
        if len(labels) not in {0, len(points)}:
            raise KeyError("points and labels differ in number")
        study = Study(saved["name"], base, points, saved["facts"], keys, labels)
        for i, run in enumerate(study.runs):
            read_config(to_json(run.config), f"run {i}")  # a field's type, which no config checks of itself
        return study
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / FILE} is not a study ({error}): run the study again") from error


def _check_shape(saved: Any, path: Path) -> None:
    """Raise InputError, naming the field, unless a study.json has the fields of `write_study` in their types."""
    found = saved if isinstance(saved, dict) else {}
    for name, kind in {"name": str, "base": dict, "facts": dict, "points": list, "keys": list}.items():
        if not isinstance(found.get(name), kind):
            raise InputError(f"{path} is not a study ({name} is missing or of another type): run the study again")
    if any(key in {"", ".", ".."} or Path(key).name != key for key in found["keys"] if isinstance(key, str)):
        raise InputError(f"{path} is not a study (keys are not names of folders): run the study again")
    for name, kind in {"points": dict, "keys": str, "labels": dict}.items():
        rows = found.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
            raise InputError(f"{path} is not a study ({name} is of another type): run the study again")


def outcomes(study: Study, folder: Path) -> dict[str, Outcome]:
    """How far every run is on disk, by key: done, diverged, failed, or interrupted (begun or not)."""
    return {run.key: _outcome(folder / run.key) for run in study.runs}


def _outcome(run_dir: Path) -> Outcome:
    result = read_result(run_dir)
    if result is not None:
        return Outcome(result.status, result, result.error)
    if not (run_dir / FAILURE).exists():
        return Outcome("interrupted")
    failure = read_json(run_dir / FAILURE)
    error, attempts = (failure.get("error"), failure.get("attempts", 1)) if isinstance(failure, dict) else (5, 0)
    if not isinstance(error, str | None) or type(attempts) is not int:
        raise InputError(f"{run_dir / FAILURE} is not the record of a failure: remove it to try the run again")
    return Outcome("failed", error=error, attempts=attempts)


# -------------------------------------------------------------------------------------------------------- running
Launcher = Callable[[Sequence[Job], Listener], Mapping[Path, Outcome]]
"""Trains jobs somewhere: `run_here` or `run_local` with their settings filled in."""


def run_study(study: Study, folder: Path, launch: Launcher, listen: Listener) -> dict[str, Outcome]:
    """Train every run of `study` that is not done yet, in `folder`; failures of an earlier call are tried again.

    Args:
        study: what to train.
        folder: of the study.
        launch: where the runs go.
        listen: told what happens; runs that are done already are told of first.

    Returns:
        The outcome of every run, by its key.

    Raises:
        InputError: a run that cannot be trained as it is; the folder is in use, holds another study, or cannot be
            written.
        KeyboardInterrupt: the user stopped; the same call continues.
    """
    with locked(folder):
        _keep_another(study, folder)
        write_study(study, folder)
        found = outcomes(study, folder)
        jobs = {run.key: job(run, folder) for run in study.runs}
        for key, outcome in found.items():
            if outcome.result is not None:
                listen(jobs[key], outcome)
        waiting = [jobs[key] for key, outcome in found.items() if outcome.result is None]
        for each in waiting:
            (each.run_dir / FAILURE).unlink(missing_ok=True)
        for run_dir, outcome in launch(waiting, listen).items():
            found[run_dir.name] = outcome
            if outcome.status == "failed":
                write_json(run_dir / FAILURE, {"error": outcome.error, "attempts": outcome.attempts})
        return found


def _keep_another(study: Study, folder: Path) -> None:
    """Raise InputError where `folder` holds the record of a study of another name, which this one's would replace."""
    try:
        saved = read_json(folder / FILE)
    except InputError:  # none there, or what a damaged disk left of one, which running the study again mends
        return
    there = saved.get("name") if isinstance(saved, dict) else None
    if isinstance(there, str) and there != study.name:
        raise InputError(f"{folder} holds the study {there}, not {study.name}: choose another --out")


def job(run: Run, folder: Path) -> Job:
    """A run as a launcher takes it; the cost of a step is taken as its parameters times its tokens."""
    size = count_parameters(run.config.model)[0]
    return Job(folder / run.key, run.config, label(run), float(size * run.config.tokens_per_step))


def label(run: Run) -> str:
    """A run's values on the axes, short: `layerrope lr 0.003 seed 0`."""
    names = {"model.scheme": "", "scheme": "", "lr": "lr ", "seed": "seed "}
    return " ".join(f"{names.get(k, k.removeprefix('model.') + ' ')}{_short(v)}" for k, v in run.labels.items())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
