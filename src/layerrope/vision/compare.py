"""Depth schemes side by side on images: every scheme at every learning rate with every seed, one run each.

Runs of one seed share their images, their order and all the weights that two schemes both have, so differences to the
first scheme are taken seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerrope.comparing.compare import best_of
from layerrope.comparing.intervals import Interval, t_interval
from layerrope.errors import InputError
from layerrope.scheme_table import scheme
from layerrope.train import train
from layerrope.training.kinds import VisionTrainConfig
from layerrope.training.recipe import run_key
from layerrope.training.run_folder import folder_name, read_metrics
from layerrope.training.session import Callback
from layerrope.vision.images import ImageData, load_images
from layerrope.vision.vit import ViT


@dataclass(frozen=True)
class VisionRow:
    """One scheme at its best learning rate, over the seeds that ended there."""

    scheme: str
    parameters: int
    lr: float | None
    """of those tried, the one that lost fewest seeds and then has the smallest mean held-out loss; None: every run of
    the scheme diverged"""
    at_edge: bool
    """is it the smallest or largest tried, where more than one was?"""
    val_loss: Interval | None
    """nats per held-out image"""
    accuracy: Interval | None
    """share of held-out images named right"""
    gain: Interval | None
    """accuracy beyond the first scheme's, seed by seed; None for the first, and where no seed ended in both"""
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
    runs = [
        _run(_config(base, name, lr, seed), folder, data, device, threads, watch)
        for name in schemes
        for seed in seeds
        for lr in lrs
    ]
    return VisionTable(rows_of(runs), runs, data.summary())


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
    path = folder / folder_name(config)
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


def rows_of(runs: Sequence[VisionRun]) -> list[VisionRow]:
    """A row for each scheme, in the order of the runs; the first one's is what gains are over."""
    by_scheme: dict[str, list[VisionRun]] = {}
    for run in runs:
        by_scheme.setdefault(run.scheme, []).append(run)
    first = next(iter(by_scheme), None)
    base = {} if first is None else _accuracies(by_scheme[first], _best_lr(by_scheme[first]))
    return [_row(name, mine, None if name == first else base) for name, mine in by_scheme.items()]


def _row(name: str, mine: Sequence[VisionRun], base: Mapping[int, float] | None) -> VisionRow:
    """One scheme's row; `base` is the accuracy of the first scheme by seed, None for that one itself."""
    lr, tried = _best_lr(mine), {run.lr for run in mine}
    losses = [run.val_loss for run in mine if run.lr == lr and run.val_loss is not None]
    accuracies = _accuracies(mine, lr)
    gains = [accuracies[seed] - base[seed] for seed in accuracies if seed in base] if base is not None else []
    return VisionRow(
        scheme=name,
        parameters=mine[0].parameters,
        lr=lr,
        at_edge=len(tried) > 1 and lr in (min(tried), max(tried)),
        val_loss=_interval(losses),
        accuracy=_interval(list(accuracies.values())),
        gain=_interval(gains),
        diverged=sum(run.val_loss is None for run in mine),
    )


def _best_lr(mine: Sequence[VisionRun]) -> float | None:
    return best_of((run.lr, run.seed, run.val_loss) for run in mine)


def _accuracies(mine: Sequence[VisionRun], lr: float | None) -> dict[int, float]:
    """By seed, at the rate `lr`."""
    return {run.seed: run.accuracy for run in mine if run.lr == lr and run.accuracy is not None}


def _interval(values: Sequence[float]) -> Interval | None:
    return t_interval(values) if values else None
