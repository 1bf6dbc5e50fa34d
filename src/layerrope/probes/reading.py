"""From a folder on disk to a model and text to probe it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from layerrope.checkpoint import number
from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.files import read_json
from layerrope.model import LM
from layerrope.probes.suite import PROBES, Options, probe
from layerrope.probes.trunk import Batches
from layerrope.recipe import from_json
from layerrope.stream import trained_model


@dataclass(frozen=True)
class Plan:
    """What to measure, and on what."""

    text: str | None = None
    """a data source; None: the run's own validation text"""
    tokens: int = 4096
    """positions, in whole windows"""
    batch: int = 8
    """windows per forward pass"""
    probes: Sequence[str] = tuple(PROBES)
    options: Options = field(default_factory=Options)


def probe_source(source: str, plan: Plan, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The document of `layerrope.probes.probe` for the model in folder `source`, with where it came from.

    Raises:
        InputError: no model there, no text for it, or text in other token ids than its own.
    """
    model, data = read_source(Path(source))
    if plan.text is not None:
        data = replace(data or DataConfig(seq_len=model.config.seq_len), source=plan.text)
    if data is None:
        raise InputError(f"{source} does not say on what text it was trained: give one with --text")
    found = probe(model.to(device), batches(data, model, plan, device), plan.probes, plan.options)
    return {"source": source, "text": data.source, "tokenizer": data.tokenizer, **found}


def read_source(path: Path) -> tuple[LM, DataConfig | None]:
    """The model in `path` (a run, a checkpoint of one, another folder with a model) and the data it was trained on."""
    if (path / "checkpoints").is_dir():
        model, config = trained_model(path)
        return model, config.data
    from layerrope.loading import load_lm

    loaded = load_lm(path)
    run = path.parent.parent
    if path.parent.name == "checkpoints" and (run / "config.json").exists():
        return loaded.model, from_json(DataConfig, read_json(run / "config.json")["config"]["data"], "data")
    tokenizer = path / "tokenizer.json"
    if not tokenizer.exists():
        return loaded.model, None
    return loaded.model, DataConfig(seq_len=loaded.model.config.seq_len, tokenizer=str(tokenizer))


def batches(data: DataConfig, model: LM, plan: Plan, device: torch.device | str = "cpu") -> Batches:
    """Validation windows of `data`, evenly spaced, on `device`.

    Raises:
        InputError: the text holds ids that the model does not know.
    """
    held = load_data(data)
    if held.vocab_size > model.config.vocab_size:
        raise InputError(
            f"token ids run to {held.vocab_size - 1}, the model knows {model.config.vocab_size}: "
            "probe on text in the tokenizer that the model was trained with"
        )
    found = held.eval_batches(plan.batch, plan.tokens)
    return [(ids.to(device), targets.to(device)) for ids, targets in found]


def default_folder(source: str) -> Path:
    """Where the report goes: RUN/probes, RUN/probes/step-N for a checkpoint, ./probes for a folder that is no run."""
    path = Path(source)
    if (path / "checkpoints").is_dir():
        return path / "probes"
    if path.parent.name == "checkpoints" and number(path) >= 0:
        return path.parent.parent / "probes" / path.name
    return Path("probes")
