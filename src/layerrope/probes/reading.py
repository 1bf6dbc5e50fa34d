"""From a folder on disk to a model and text to probe it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.looping.looped import LoopedLM
from layerrope.probes.suite import PROBES, Options, probe
from layerrope.probes.trunk import Batches
from layerrope.training.checkpoint import number
from layerrope.training.kinds import Model, check_reads, load_any
from layerrope.training.trained import is_run, load_trained
from layerrope.vision.images import ImageConfig
from layerrope.vision.vit import ViT

Source: TypeAlias = DataConfig | ImageConfig


@dataclass(frozen=True)
class Plan:
    """What to measure, and on what."""

    text: str | None = None
    """a data source, of text or for a vision model of images; None: the run's own validation part"""
    tokens: int = 4096
    """positions, in whole windows or images"""
    batch: int = 8
    """windows per forward pass"""
    probes: Sequence[str] = tuple(PROBES)
    options: Options = field(default_factory=Options)
    loops: int | None = None
    """iterations of a looped model; None: those it was trained with in the mean"""


def probe_source(source: str, plan: Plan, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The document of `layerrope.probes.probe` for the model in folder `source`, with where it came from.

    Raises:
        InputError: no model there, no text for it, text in other token ids than its own, or loops of no looped model.
    """
    model, data = read_source(Path(source))
    if plan.loops is not None:
        _set_loops(model, plan.loops)
    if plan.text is not None:
        data = replace(data or DataConfig(seq_len=model.config.seq_len), source=plan.text)
    if data is None:
        raise InputError(f"{source} does not say on what text it was trained: give one with --text")
    found = probe(model.to(device), batches(data, model, plan, device), plan.probes, plan.options)
    tokenizer = data.tokenizer if isinstance(data, DataConfig) else None
    return {"source": source, "text": data.source, "tokenizer": tokenizer, **found}


def _set_loops(model: Model, loops: int) -> None:
    if not isinstance(model, LoopedLM):
        raise InputError("only looped models have iterations to choose: leave out --loops")
    model.config = replace(model.config, loops=loops)


def read_source(path: Path) -> tuple[Model, Source | None]:
    """The model in `path` (a run, a checkpoint of one, another folder with a model) and the data it was trained on."""
    if is_run(path):
        found = load_trained(path)
        return found.model, found.config.data
    from layerrope.loading import load_lm

    loaded = load_lm(path)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.exists():
        return loaded.model, None
    return loaded.model, DataConfig(seq_len=loaded.model.config.seq_len, tokenizer=str(tokenizer))


def batches(data: Source, model: Model, plan: Plan, device: torch.device | str = "cpu") -> Batches:
    """Validation windows of `data`, evenly spaced, or held-out images, on `device`.

    Raises:
        InputError: the text holds ids that the model does not know, or the images are of another shape.
    """
    held = load_any(data)
    check_reads(model.config, held)
    many = -(-plan.tokens // model.config.seq_len) if isinstance(model, ViT) else plan.tokens
    found = held.eval_batches(plan.batch, many)
    return [(ids.to(device), targets.to(device)) for ids, targets in found]


def default_folder(source: str) -> Path:
    """Where the report goes: RUN/probes, RUN/probes/step-N for a checkpoint, ./probes for a folder that is no run."""
    path = Path(source)
    if (path / "checkpoints").is_dir():
        return path / "probes"
    if path.parent.name == "checkpoints" and number(path) >= 0:
        return path.parent.parent / "probes" / path.name
    return Path("probes")
