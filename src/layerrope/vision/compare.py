"""Depth schemes side by side on images: every scheme at every learning rate with every seed, one run each.

Runs of one seed share their images, their order and all the weights that two schemes both have, so differences to the
first scheme are taken seed by seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerrope.comparing.intervals import Interval, t_interval
from layerrope.errors import InputError
from layerrope.scheme_table import scheme
from layerrope.train import train
from layerrope.training.kinds import VisionTrainConfig
from layerrope.training.recipe import run_key
from layerrope.training.run_folder import read_metrics
from layerrope.training.session import Callback
from layerrope.vision.images import ImageData, load_images
from layerrope.vision.vit import ViT


@dataclass(frozen=True)
class VisionRow:
    """One scheme at its best learning rate, over seeds."""

    scheme: str
    parameters: int
    lr: float
    """of those tried, the one with the smallest mean held-out loss"""
    at_edge: bool
    """is it the smallest or largest tried, where more than one was?"""
    val_loss: Interval
    """nats per held-out image"""
    accuracy: Interval
    """share of held-out images named right"""
    gain: Interval | None
    """accuracy beyond the first scheme's, seed by seed; None for the first"""
    diverged: int
    """runs of this scheme, at any rate, whose loss was not finite"""


@dataclass(frozen=True)
class VisionRun:
    """One run. Loss (nats per held-out image) and accuracy are None where it diverged."""

    scheme: str
    lr: float
    seed: int
    status: str
    val_loss: float | None
    accuracy: float | None
    parameters: int
    seconds: float
    key: str
    """the end of its folder's name"""


@dataclass(frozen=True)
class VisionTable:
    """A comparison: a row for each scheme, in the order asked for, and every run."""

    rows: list[VisionRow]
    runs: list[VisionRun]
    data: dict[str, Any]
    """what the images were: name, hash, counts"""


@dataclass(frozen=True)
class _Outcome:
    val_loss: float
    accuracy: float
    parameters: int


def compare_vision(
    base: VisionTrainConfig,
    schemes: Sequence[str],
    lrs: Sequence[float],
    seeds: Sequence[int],
    folder: Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    watch: Callable[[str], Callback | None] = lambda label: None,
) -> VisionTable:
    """Train every combination below `folder`; finished runs there are only read. The first scheme is the baseline.

    Args:
        base: the run of which scheme, learning rate and seed are replaced.
        watch: gives the progress callback of a run from its label.

    Raises:
        InputError: nothing to compare, a scheme that does not exist or fit, images that do not fit the model.
    """
    for name, values in (("scheme", schemes), ("learning rate", lrs), ("seed", seeds)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"give at least one {name}, and each once: got {', '.join(map(str, values)) or 'none'}")
    for name in schemes:
        scheme(name)
        ViT(replace(base.model, scheme=name))
    data = load_images(base.data)
    runs = {
        (name, lr, seed): _run(_config(base, name, lr, seed), folder, data, device, threads, watch)
        for name in schemes
        for seed in seeds
        for lr in lrs
    }
    found = {which: _outcome(run) for which, run in runs.items()}
    rows = [_row(name, schemes[0], lrs, seeds, found) for name in schemes]
    return VisionTable(rows, list(runs.values()), data.summary())


def _config(base: VisionTrainConfig, name: str, lr: float, seed: int) -> VisionTrainConfig:
    return replace(base, model=replace(base.model, scheme=name), lr=lr, seed=seed)


def _run(
    config: VisionTrainConfig,
    folder: Path,
    data: ImageData,
    device: str,
    threads: int | None,
    watch: Callable[[str], Callback | None],
) -> VisionRun:
    """Train one run, or read it where it is done."""
    label = f"{config.model.scheme} lr {config.lr:g} seed {config.seed}"
    path = folder / f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', config.model.scheme)}-{run_key(config)}"
    result = train(config, path, device=device, threads=threads, data=data, progress=watch(label))
    if result.status == "interrupted":
        raise KeyboardInterrupt
    accuracy = None if result.status == "diverged" else _last_accuracy(path / "metrics.jsonl")
    loss = None if accuracy is None else result.val_loss
    names = (config.model.scheme, config.lr, config.seed)
    return VisionRun(*names, result.status, loss, accuracy, result.n_params, result.seconds, run_key(config))


def _last_accuracy(metrics: Path) -> float:
    """What the last evaluation of a finished run found.

    Raises:
        InputError: its metrics are gone.
    """
    found = [row["val_accuracy"] for row in read_metrics(metrics) if isinstance(row.get("val_accuracy"), float)]
    if not found:
        raise InputError(f"{metrics} has lost the accuracy of a finished run: remove its folder to train it again")
    return found[-1]


def _outcome(run: VisionRun) -> _Outcome | None:
    """What a run that did not diverge reached."""
    if run.val_loss is None or run.accuracy is None:
        return None
    return _Outcome(run.val_loss, run.accuracy, run.parameters)


Found = dict[tuple[str, float, int], _Outcome | None]


def _row(name: str, first: str, lrs: Sequence[float], seeds: Sequence[int], found: Found) -> VisionRow:
    lr = best_lr(name, lrs, seeds, found)
    mine, theirs = _at(name, lr, seeds, found), _at(first, best_lr(first, lrs, seeds, found), seeds, found)
    return VisionRow(
        scheme=name,
        parameters=mine[0].parameters,
        lr=lr,
        at_edge=len(lrs) > 1 and lr in (min(lrs), max(lrs)),
        val_loss=t_interval([o.val_loss for o in mine]),
        accuracy=t_interval([o.accuracy for o in mine]),
        gain=None
        if name == first
        else t_interval([a.accuracy - b.accuracy for a, b in zip(mine, theirs, strict=True)]),
        diverged=sum(found[name, rate, seed] is None for rate in lrs for seed in seeds),
    )


def best_lr(name: str, lrs: Sequence[float], seeds: Sequence[int], found: Found) -> float:
    """The rate with the smallest mean loss over seeds, of those where no seed diverged.

    Raises:
        InputError: there is none.
    """
    whole = [lr for lr in lrs if all(found[name, lr, seed] is not None for seed in seeds)]
    if not whole:
        raise InputError(f"{name} diverged at every learning rate: try smaller ones than {min(lrs):g}")
    return min(whole, key=lambda lr: sum(o.val_loss for o in _at(name, lr, seeds, found)))


def _at(name: str, lr: float, seeds: Sequence[int], found: Found) -> list[_Outcome]:
    return [outcome for seed in seeds if (outcome := found[name, lr, seed]) is not None]
