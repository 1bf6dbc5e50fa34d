"""An `LM` from what is on disk: a training run, an exported folder, or a stock Llama or GLM-4 folder."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerrope.config import ModelConfig
from layerrope.data import DataConfig, Dataset, load_data
from layerrope.errors import InputError
from layerrope.exporting.folding import lm_from_tensors
from layerrope.exporting.stock import from_stock, read_stock_config
from layerrope.files import read_json
from layerrope.gains import own_name
from layerrope.interop.olmo_checkpoint import is_olmo, read_olmo
from layerrope.model import LM
from layerrope.norms import LayerNorm, RMSNorm
from layerrope.tensors import open_source
from layerrope.text.tokens import Subwords, Tokenizer, load_file, read_tokenizer
from layerrope.training import checkpoint as checkpoints
from layerrope.training.recipe import from_json
from layerrope.training.run_folder import read_record
from layerrope.training.trained import check_finite, run_of

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """A model and what came with it."""

    model: LM
    label: str
    """what was loaded, in words"""
    tokenizer: Tokenizer | None
    why_no_tokenizer: str = ""


def load_lm(source: str | os.PathLike[str]) -> Loaded:
    """The model in `source`, in the dtype it is stored in, on the CPU.

    Args:
        source: a run of this package (its newest sound checkpoint) or one of its `checkpoints/step-N`; a folder that
            `layerrope export` wrote; a stock Llama or GLM-4 folder of safetensors; a checkpoint of OLMo-core.

    Raises:
        InputError: there is no such model, its files are damaged or do not match each other, a weight is not
            finite, or a norm is zero throughout.
    """
    path = Path(source)
    _check_folder(path)
    if is_olmo(path):
        return _checked(_from_olmo(path))
    if checkpoints.is_step(path):
        return _checked(_from_run(path.parent.parent, path))
    if not (path / "config.json").exists():
        raise InputError(f"{path} has no config.json: give a run, or a folder with a model and its configuration")
    config = read_json(path / "config.json")
    if not isinstance(config, dict):
        raise InputError(f"{path / 'config.json'} is no JSON object")
    if isinstance(config.get("config"), dict) and "model" in config["config"]:
        return _checked(_from_run(path, None))
    if isinstance(config.get("layerrope"), dict):
        raise InputError(f"{path} is a model patched by layerrope.apply: export it first, its stock form can be read")
    if config.get("model_type") == "layerrope":
        return _checked(_from_export(path, config))
    return _checked(_from_stock(path, config))


def _check_folder(path: Path) -> None:
    if path.suffix == ".gguf" or (path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))):
        raise InputError(f"{path} is a GGUF file, which llama.cpp reads: give the run or the folder it was made from")
    if not path.is_dir():
        raise InputError(f"{path} is a file: give its folder" if path.exists() else f"no such folder: {path}")


def run_data(path: Path) -> Dataset | None:
    """The data that the run in `path` (or its checkpoint) was trained on, or None for other folders.

    Raises:
        InputError: the data is no longer there.
    """
    run = run_of(path)
    facts = read_json(run / "config.json") if (run / "config.json").exists() else None
    if not (isinstance(facts, dict) and isinstance(facts.get("config"), dict) and "data" in facts["config"]):
        return None
    return load_data(from_json(DataConfig, facts["config"]["data"], f"{run / 'config.json'}: config.data"))


def is_patched(path: Path) -> bool:
    """Is this the folder of a model that `layerrope.apply` patched?"""
    config = read_json(path / "config.json") if (path / "config.json").exists() else None
    return isinstance(config, dict) and isinstance(config.get("layerrope"), dict)


# -------------------------------------------------------------------------------------------------------- our runs
def _from_run(run: Path, step: Path | None) -> Loaded:
    facts = read_record(run)
    if facts is None:
        raise InputError(f"{run} has no config.json: give a run, or one of its checkpoints")
    kind = _kind(facts["config"].get("model"))
    if kind is not None:
        raise InputError(f"{run} is a run of another kind of model ({kind}), and this reads decoders: give a decoder's")
    config = from_json(ModelConfig, facts["config"].get("model"), f"{run / 'config.json'}: config.model")
    path, _ = checkpoints.chosen(run, step)
    model = lm_from_tensors(config, _read(path / "model.safetensors"))
    return Loaded(model, f"{run} at step {checkpoints.number(path)}", *run_tokenizer(facts))


def _kind(model: Any) -> str | None:
    """The kind of model that a run's config names; decoders name none."""
    return str(model["kind"]) if isinstance(model, dict) and "kind" in model else None


def run_tokenizer(facts: Mapping[str, Any]) -> tuple[Tokenizer | None, str]:
    """The run's tokenizer, or None and why it cannot be had."""
    wanted = facts["data"].get("tokenizer_sha256")
    try:
        config = from_json(DataConfig, facts["config"].get("data"), "config.json: config.data")
        found = _tokenizer_of(config)
    except InputError as error:
        return None, str(error)
    if wanted and found.info.sha256 != wanted:
        return None, f"the tokenizer {config.tokenizer} is no longer the one that the run was trained with"
    return found, ""


def _tokenizer_of(config: DataConfig) -> Tokenizer:
    if not config.tokenizer.startswith("bpe:"):
        return read_tokenizer(config.tokenizer)
    from layerrope.text.prepare import prepare

    return prepare(config, None).tokenizer  # trained on the run's own text, or taken from the cache


# -------------------------------------------------------------------------------------------------- other folders
def _from_export(path: Path, config: Mapping[str, Any]) -> Loaded:
    fields = {name: config[name] for name in ModelConfig.__dataclass_fields__ if name in config}
    model_config = from_json(ModelConfig, fields, f"{path / 'config.json'}")
    tensors = {_own_name(name): t for name, t in _read(path).items()}
    try:
        model = lm_from_tensors(model_config, tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Loaded(model, str(path), *_folder_tokenizer(path))


def _own_name(name: str) -> str:
    """model.gains.shared -> gains.gamma"""
    name = name.removeprefix("model.")
    return f"gains.{own_name(name.removeprefix('gains.'))}" if name.startswith("gains.") else name


def _from_olmo(path: Path) -> Loaded:
    found = read_olmo(path)
    if found.tokenizer is None:
        return Loaded(found.model, str(path), None, f"{path / 'config.json'} does not say which tokenizer")
    try:
        config = DataConfig(tokenizer=found.tokenizer, source=found.source or DataConfig.source)
        return Loaded(found.model, str(path), _tokenizer_of(config))
    except InputError as error:
        return Loaded(found.model, str(path), None, str(error))


def _from_stock(path: Path, config: Mapping[str, Any]) -> Loaded:
    tensors = _read(path)
    try:
        stock, model_config = read_stock_config(config)
        if not model_config.tie and "lm_head.weight" not in tensors:
            raise InputError("config.json says that the head is not tied, but there is no lm_head.weight")
        model = lm_from_tensors(model_config, from_stock(stock, model_config, tensors))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return Loaded(model, str(path), *_folder_tokenizer(path))


def _read(path: Path) -> dict[str, Tensor]:
    """Every tensor of `path` in its stored dtype; nothing but safetensors is opened."""
    source = open_source(path)
    for name, info in source.names.items():
        if info.dtype not in DTYPES:
            raise InputError(f"{path}: tensor {name} is stored as {info.dtype}: use a copy in {', '.join(DTYPES)}")
    made: dict[str, Tensor] = {}
    for name, info in source.names.items():  # one at a time: each is decoded to at most 8 bytes a number
        array = source.read([name], limit=8 * math.prod(info.shape) + 1)[name]
        made[name] = torch.from_numpy(np.array(array)).to(DTYPES[info.dtype])
    return made


def _folder_tokenizer(path: Path) -> tuple[Tokenizer | None, str]:
    file = path / "tokenizer.json"
    if not file.exists():
        return None, f"{path} has no tokenizer.json"
    return Subwords(f"{path.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:8]}", load_file(file)), ""


def _checked(loaded: Loaded) -> Loaded:
    """`loaded`, unless a weight is not finite or a norm is zero throughout."""
    check_finite(loaded.label, loaded.model.named_parameters())
    for name, norm in loaded.model.named_modules():
        weight = norm.weight if isinstance(norm, RMSNorm | LayerNorm) else None
        if weight is not None and not bool(weight.any()):
            raise InputError(f"{loaded.label}: norm {name} is zero throughout: what it feeds sees nothing")
    return loaded
