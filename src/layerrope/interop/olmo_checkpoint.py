"""A checkpoint of OLMo-core as an `LM`. OLMo-core itself is not needed, and no pickle runs (see `interop.dcp`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.files import read_json
from layerrope.interop.dcp import METADATA, DcpFolder
from layerrope.interop.olmo_names import from_olmo, read_olmo_config
from layerrope.model import LM

WEIGHTS = "model_and_optim"
"""The folder of a checkpoint that holds its tensors."""


def is_olmo(path: Path) -> bool:
    """Is this a checkpoint that OLMo-core's trainer wrote?"""
    return (path / WEIGHTS / METADATA).exists()


@dataclass(frozen=True)
class OlmoCheckpoint:
    """A model and what its config.json says of the run."""

    model: LM
    tokenizer: str | None
    """as `layerrope.data.DataConfig.tokenizer` names it; None where the run does not say"""
    source: str | None
    """as `layerrope.data.DataConfig.source` names it"""


def read_olmo(path: Path) -> OlmoCheckpoint:
    """The checkpoint in folder `path` (a `stepN` of OLMo-core's trainer with its config.json).

    Gains and norms are as they were trained, in fp32; the query and key rows move to this package's layout.

    Raises:
        InputError: no config.json, a model that an `LM` cannot be (names the part), or a damaged or hostile file.
    """
    if not (path / "config.json").exists():
        raise InputError(
            f"{path} is a checkpoint of OLMo-core without config.json: train with its ConfigSaverCallback, "
            "as examples/olmo_core_train.py does"
        )
    found = read_json(path / "config.json")
    if not isinstance(found, Mapping) or not isinstance(found.get("model"), Mapping):
        raise InputError(f"{path / 'config.json'} has no model: it is not the configuration of a run")
    try:
        config = read_olmo_config(found["model"], _seq_len(found))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return OlmoCheckpoint(_weights(path / WEIGHTS, config), *_text(found))


def _weights(folder: Path, config: ModelConfig) -> LM:
    dcp = DcpFolder(folder)
    tensors = {name.removeprefix("model."): dcp.read(name) for name in dcp.saved if name.startswith("model.")}
    return from_olmo(config, tensors)


def _seq_len(found: Mapping[str, Any]) -> int:
    """The training length: of the train module, else of the data set."""
    for place, name in (("train_module", "max_sequence_length"), ("dataset", "sequence_length")):
        part = found.get(place)
        value = part.get(name) if isinstance(part, Mapping) else None
        if type(value) is int and value > 0:
            return value
    raise InputError("config.json does not say train_module.max_sequence_length: add it")


def _text(found: Mapping[str, Any]) -> tuple[str | None, str | None]:
    data = found.get("data")
    words = data if isinstance(data, Mapping) else {}
    tokenizer, source = words.get("tokenizer"), words.get("source")
    return (tokenizer if isinstance(tokenizer, str) else None), (source if isinstance(source, str) else None)
