"""`export`: a run or a model becomes a folder that other software loads, proved before it appears under its name."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import layerrope
from layerrope.config import ModelConfig
from layerrope.errors import InputError, one_of
from layerrope.exporting.folding import OWN_INSTEAD, Folded, fold_tensors, lm_from_tensors, obstacles
from layerrope.exporting.proof import (
    POSITIONS,
    choose_reader,
    compare,
    demand,
    measured,
    sample_ids,
    trace_folder,
    trace_lm,
)
from layerrope.exporting.publish import published
from layerrope.exporting.stock import (
    DTYPES,
    STOCKS,
    Stock,
    check_parts,
    dtype_word,
    read_stock_config,
    stock_config,
    stock_for,
    to_stock,
)
from layerrope.files import read_json, write_json
from layerrope.gains import STORED_NAMES
from layerrope.loading import is_patched, load_lm
from layerrope.model import LM
from layerrope.text.tokens import EOT, Tokenizer
from layerrope.training.trained import check_finite, is_run

FORMATS = (*STOCKS, "gguf", "layerrope")
SHAPE = ("n_layer", "n_head", "n_kv_head", "d_model", "d_ff", "vocab_size", "seq_len", "eps", "rope_base", "tie")
"""What a stock config.json and ours say of the same model."""
SHARD_BYTES = 5_000_000_000
"""Largest safetensors file."""


@dataclass(frozen=True)
class Exported:
    """A folder that was written, and its proof."""

    folder: Path
    proof: dict[str, Any]


def export(
    source: LM | str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    as_: str | None = None,
    dtype: str | None = None,
    tokenizer: Tokenizer | None = None,
    reader: str = "auto",
    overwrite: bool = False,
) -> Exported:
    """Write `source` as a model folder and prove that it computes the same.

    Args:
        source: an `LM`, or anything `loading.load_lm` reads.
        to: the folder to make. It appears under this name only once the proof has passed.
        as_: "llama", "glm4", "gguf" (a file for llama.cpp) or "layerrope"; None: the stock format that fits, else
            "layerrope".
        dtype: "fp32", "bf16" or "fp16"; None: the dtype of the source's matrices.
        tokenizer: written beside an `LM`; a run brings its own.
        reader: what reads the folder for the proof: "transformers", "plain" (a forward pass of this package written
            for that purpose), or "auto" (transformers where it is installed). A GGUF file is read by "plain" and
            "llama.cpp" instead.
        overwrite: replace a folder that is there.

    Raises:
        InputError: the source cannot be read, has no form of the kind asked for (naming the feature), the folder is
            there already, or the proof fails (naming the first layer that differs). No folder is left then.
    """
    why = ""
    _check_source(source)
    if not isinstance(source, LM) and is_patched(Path(source)):
        return _export_patched(Path(source), Path(to), as_, dtype, reader, overwrite)
    if not isinstance(source, LM):
        loaded = load_lm(source)
        source, tokenizer, why = loaded.model, tokenizer or loaded.tokenizer, loaded.why_no_tokenizer
    if as_ == "gguf":
        return _export_gguf(source, Path(to), dtype, tokenizer, why, reader, overwrite)
    plan = _plan(source, as_, _dtype(source, dtype))
    reader = choose_reader(reader)
    with published(Path(to), overwrite) as aside:
        _write(aside, plan, source, tokenizer)
        proof = prove(source, aside, plan=plan, reader=reader) | {"no_tokenizer": why or None}
        write_json(aside / "proof.json", proof)
    return Exported(Path(to), proof)


def _check_source(source: object) -> None:
    """Raise InputError for a model that cannot be a source."""
    if isinstance(source, nn.Module) and not isinstance(source, LM):
        raise InputError(
            f"cannot export a {type(source).__name__}: give an LM (as it was before torch.compile or a wrapper), a run "
            "or a folder; a model patched by layerrope.apply is saved first"
        )
    if isinstance(source, LM) and any(p.is_meta for p in source.parameters()):
        raise InputError("cannot export a model on the meta device: it has no weights; build it on the CPU")


def _export_patched(
    source: Path, to: Path, as_: str | None, dtype: str | None, reader: str, overwrite: bool
) -> Exported:
    """A folder of a model that `layerrope.apply` patched, as its own stock class."""
    from layerrope.interop.hf_export import export_patched

    if as_ is not None:
        raise InputError(f"{source} is a patched model: it is exported as its own class, without --as")
    if choose_reader(reader) != "transformers":
        raise InputError(f"{source} is a patched model: transformers reads it, no reader of our own (--reader)")
    chosen = None if dtype is None else DTYPES[one_of("dtype", dtype, DTYPES)]
    return Exported(to, export_patched(source, to, dtype=chosen, overwrite=overwrite))


def _export_gguf(
    model: LM, to: Path, dtype: str | None, tokenizer: Tokenizer | None, why: str, reader: str, overwrite: bool
) -> Exported:
    """A folder with one GGUF file."""
    from layerrope.interop.gguf import export_gguf

    plan = _plan(model, "gguf", _dtype(model, dtype))
    assert plan.folded is not None
    told = {"tokenizer": tokenizer, "why_no_tokenizer": why, "reader": reader, "overwrite": overwrite}
    return Exported(to, export_gguf(model, plan.folded, to, dtype=plan.dtype, **told))


# ----------------------------------------------------------------------------------------------------------- the plan
@dataclass(frozen=True)
class Plan:
    """What will be written."""

    stock: Stock | None
    """None: this package's own format"""
    dtype: torch.dtype
    folded: Folded | None
    """None where nothing is folded: the own format"""
    reason: str
    """why the own format was taken unasked, or empty"""

    @property
    def format(self) -> str:
        return "layerrope" if self.stock is None else self.stock.model_type


def _dtype(model: LM, wanted: str | None) -> torch.dtype:
    if wanted is None:
        return model.layers[0].get_submodule("attn.f.q").get_parameter("weight").dtype
    return DTYPES[one_of("dtype", wanted, DTYPES)]


def _plan(model: LM, as_: str | None, dtype: torch.dtype) -> Plan:
    if as_ is not None:
        one_of("format", as_, FORMATS)
    if as_ == "layerrope":
        return Plan(None, dtype, None, "")
    try:
        if not obstacles(model):
            check_parts(model.config)
        folded = fold_tensors(model)
        return Plan(stock_for(folded.backbone, None if as_ == "gguf" else as_), dtype, folded, "")
    except InputError as error:
        if as_ is not None:
            raise InputError(f"cannot export as {as_}: {error}") from error
        return Plan(None, dtype, None, str(error).removesuffix(OWN_INSTEAD))


# -------------------------------------------------------------------------------------------------------- the folder
def _write(folder: Path, plan: Plan, model: LM, tokenizer: Tokenizer | None) -> None:
    eot = None if tokenizer is None else tokenizer.eot
    if plan.stock is not None and plan.folded is not None:
        config = stock_config(plan.stock, model.config, plan.dtype, eot)
        tensors = to_stock(plan.stock, model.config, plan.folded.tensors)
        tensors = {name: t.to(plan.dtype) for name, t in tensors.items()}
    else:
        config = own_config(model, plan.dtype, eot)
        tensors = own_tensors(model, plan.dtype)
    check_finite(f"the export in {dtype_word(plan.dtype)}", tensors.items())
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {name: config[name] for name in _TOKEN_IDS})
    _save(folder, tensors)
    if tokenizer is not None:
        _write_tokenizer(folder, tokenizer, model.config.seq_len)


_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def own_config(model: LM, dtype: torch.dtype, eot: int | None) -> dict[str, Any]:
    """The config.json of this package's own format."""
    word = dtype_word(dtype)
    return {
        "architectures": ["LayerRoPEForCausalLM"],
        "model_type": "layerrope",
        **asdict(model.config),
        "tie_word_embeddings": model.config.tie,
        "bos_token_id": None,
        "eos_token_id": eot,
        "pad_token_id": None,
        "torch_dtype": word,
        "dtype": word,
        "layerrope_version": layerrope.__version__,
    }


def own_tensors(model: LM, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor under "model.", matrices in `dtype`; gains and norms stay in fp32, under names that no loader
    rewrites."""
    made: dict[str, Tensor] = {}
    matrices = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
    for name, t in model.state_dict(keep_vars=True).items():
        if model.config.tie and name == "head.weight":
            continue
        head, _, last = name.rpartition(".")
        stored = f"{head}.{STORED_NAMES.get(last, last)}" if name.startswith("gains.") else name
        made[f"model.{stored}"] = t.detach().to(dtype) if id(t) in matrices else t.detach()
    return made


def _save(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """model.safetensors, or numbered files with an index where it would be larger than `SHARD_BYTES`."""
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, t in tensors.items():
        if t.nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = t.contiguous().clone()
        room -= t.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata={"format": "pt"})
    total = sum(t.nbytes for t in tensors.values())
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, seq_len: int) -> None:
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    eos = tokenizer.decode([tokenizer.eot]) or EOT
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": eos,
            "model_max_length": seq_len,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(folder / "special_tokens_map.json", {"eos_token": eos})


# --------------------------------------------------------------------------------------------------------- the proof
def prove(model: LM, folder: Path, *, plan: Plan | None = None, reader: str = "auto") -> dict[str, Any]:
    """Compare `model` with the folder: what `proof.json` holds.

    Folding is compared in fp32 before any rounding, the files with what they should hold after it; the whole
    difference from the source, rounding included, is recorded (and must vanish too where the folder is fp32).

    Raises:
        InputError: something differs; the message names the first layer that does.
    """
    reader = choose_reader(reader)
    plan = plan or _plan_of(model, folder)
    T = POSITIONS if model.config.position == "rotary" else min(POSITIONS, model.config.seq_len)
    ids = sample_ids(model.config.vocab_size, T)
    source = trace_lm(model, ids)
    exact = source if plan.folded is None else trace_lm(_lm(model, plan.folded, None), ids)
    demand(compare(source, exact), "the folded model")
    if plan.stock is not None:
        _check_config(model.config, folder)
    rounded = trace_lm(_rounded(model, plan), ids)
    read = trace_folder(folder, ids, reader)
    files = demand(compare(rounded, read), f"the folder (read by {reader})")
    whole = compare(source, read)
    if plan.dtype == torch.float32:
        demand(whole, "the folder")
    return {
        "passed": True,
        "format": plan.format,
        "reason": plan.reason or None,
        "dtype": dtype_word(plan.dtype),
        "reader": _reader_words(reader),
        **measured(ids, source, whole, files),
        "folded": dict(plan.folded.record) if plan.folded else {},
        "scheme": model.config.scheme,
        "layerrope": layerrope.__version__,
        "torch": torch.__version__,
    }


def _check_config(config: ModelConfig, folder: Path) -> None:
    """Raise InputError where config.json names another shape than `config`: a reader may not look at all of it."""
    try:
        _, found = read_stock_config(read_json(folder / "config.json"))
    except InputError as error:
        raise InputError(f"{folder} is not its source's export: {error}") from error
    ours, theirs = (asdict(replace(c, n_kv_head=c.kv_heads)) for c in (config, found))
    for name in SHAPE:
        if ours[name] != theirs[name]:
            raise InputError(
                f"{folder} is not its source's export: config.json says {name} {theirs[name]}, the source {ours[name]}"
            )


def verify(source: LM | str | os.PathLike[str], folder: str | os.PathLike[str], reader: str = "auto") -> dict[str, Any]:
    """`prove` for a folder that was exported before.

    Raises:
        InputError: the folder is no export, or it differs from the source.
    """
    _check_source(source)
    path = Path(folder)
    is_gguf = (path / "model.gguf").exists()
    if not is_gguf and not (path / "config.json").exists():
        raise InputError(f"{path} has no config.json: give a folder that layerrope export wrote")
    if not is_gguf and is_run(path):
        raise InputError(f"{path} is a run and no export: give a folder that layerrope export wrote")
    model = source if isinstance(source, LM) else load_lm(source).model
    return _verify_gguf(model, path, reader) if is_gguf else prove(model, path, reader=reader)


def _verify_gguf(model: LM, folder: Path, reader: str) -> dict[str, Any]:
    from layerrope.interop.gguf import prove_gguf, stored_dtype

    plan = _plan(model, "gguf", stored_dtype(folder))
    assert plan.folded is not None
    return prove_gguf(model, plan.folded, folder, plan.dtype, reader)


def _plan_of(model: LM, folder: Path) -> Plan:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise InputError(f"{folder / 'config.json'} is no JSON object")
    words = {dtype_word(dtype): name for name, dtype in DTYPES.items()}
    dtype = DTYPES[words[one_of("dtype in config.json:", str(config.get("dtype")), words)]]
    return _plan(model, str(config.get("model_type")), dtype)


def _lm(model: LM, folded: Folded, dtype: torch.dtype | None) -> LM:
    tensors = folded.tensors if dtype is None else {name: t.to(dtype) for name, t in folded.tensors.items()}
    return lm_from_tensors(replace(model.config, scheme=folded.backbone), tensors)


def _rounded(model: LM, plan: Plan) -> LM:
    """What the folder should hold, as an LM."""
    if plan.folded is not None:
        return _lm(model, plan.folded, plan.dtype)
    made = copy.deepcopy(model)
    for module in made.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(plan.dtype)
    return made


def _reader_words(reader: str) -> str:
    if reader == "plain":
        return "layerrope's own plain forward pass"
    import transformers  # pyright: ignore[reportMissingImports]

    return f"transformers {transformers.__version__}"
