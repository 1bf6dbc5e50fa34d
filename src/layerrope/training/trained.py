"""A trained model of any kind, from the folder of its run or from one of its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from layerrope.errors import InputError, in_full
from layerrope.model import LM
from layerrope.training import checkpoint as checkpoints
from layerrope.training.checkpoint import Checkpoint
from layerrope.training.kinds import Model, build_model, read_config
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import read_record


@dataclass(frozen=True)
class Trained:
    """A model and the run it comes from."""

    model: Model
    """on the CPU, in evaluation mode, in fp32"""
    config: TrainConfig
    label: str
    """what was loaded, in words"""


def run_of(source: str | os.PathLike[str]) -> Path:
    """The folder of the run that `source` is, or is a checkpoint of."""
    path = Path(source)
    return path.parent.parent if checkpoints.is_step(path) else path


def is_run(source: str | os.PathLike[str]) -> bool:
    """Is `source` a run of this package, or a checkpoint of one? Other models' folders have a config.json, too."""
    run = run_of(source)
    return (run / "config.json").is_file() and ((run / "checkpoints").is_dir() or (run / "metrics.jsonl").is_file())


def run_trains(source: str | os.PathLike[str], kind: str) -> bool:
    """Is `source` a run, or a checkpoint of one, whose config names this kind of model ("looped" or "vit")?

    Raises:
        InputError: the config.json of a run is damaged.
    """
    record = read_record(run_of(source)) if is_run(source) else None
    model = None if record is None else record["config"].get("model")
    return isinstance(model, dict) and model.get("kind") == kind


def load_trained(source: str | os.PathLike[str]) -> Trained:
    """The model of a run at its newest sound checkpoint, or of the checkpoint `RUN/checkpoints/step-N`.

    Raises:
        InputError: no run there, no sound checkpoint, one of another model, or weights that are not finite.
    """
    run = run_of(source)
    record = read_record(run)
    if record is None:
        raise InputError(f"{run} has no config.json: give the folder of a run")
    config = read_config(record["config"], f"{run / 'config.json'}: config")
    path, found = checkpoints.chosen(run, Path(source) if checkpoints.is_step(Path(source)) else None)
    model = build_model(config.model)
    _fill(model, found, path)
    return Trained(model.eval(), config, f"{run} at step {checkpoints.number(path)}")


def _fill(model: Model, found: Checkpoint, path: Path) -> None:
    weights = dict(found.tensors["model"])
    if isinstance(model, LM) and model.config.tie:
        weights.setdefault("head.weight", weights["embed.weight"])
    try:
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise InputError(f"checkpoint {path} is of another model ({in_full(error)[:300]})") from error
    check_finite(f"checkpoint {path}", weights.items())


def check_finite(where: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise InputError for a tensor that holds NaN or infinity, by its name."""
    for name, t in tensors:
        if not bool(torch.isfinite(t).all()):
            limit = f" (float16 ends at {torch.finfo(t.dtype).max:,.0f})" if t.dtype == torch.float16 else ""
            raise InputError(f"{where}: tensor {name} holds numbers that are not finite{limit}")
