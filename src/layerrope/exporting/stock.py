"""The two stock formats that gains fold into: names, layout and configuration of Llama and of GLM-4, both ways.

`LlamaForCausalLM` is Pre-Norm; `Glm4ForCausalLM` is the stock sandwich-norm class whose norms multiply by their stored
weight. Llama turns halves of a head (i, C/2 + i), GLM-4 pairs (2i, 2i+1), which is the layout here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from layerrope.config import ModelConfig
from layerrope.errors import InputError, one_of
from layerrope.norm_sites import tensor_name
from layerrope.rotary import halves, pairs


@dataclass(frozen=True)
class Stock:
    """A stock format: which backbone it holds and how its checkpoints differ from ours."""

    model_type: str
    """config.json's model_type, also the name for `--as`"""
    architecture: str
    backbone: str
    """the scheme it holds: prenorm or perinorm"""
    halved: bool
    """queries and keys in the layout of `rotary.halves`"""
    joined_mlp: bool
    """gate and up as one matrix"""
    norms: tuple[tuple[str, str], ...]
    """(our name below a layer, role in `norm_sites`)"""


_READS = (("attn.branch.pre", "attn_read"), ("mlp.branch.pre", "mlp_read"))
_WRITES = (("attn.branch.post", "attn_write"), ("mlp.branch.post", "mlp_write"))

STOCKS: dict[str, Stock] = {
    "llama": Stock("llama", "LlamaForCausalLM", "prenorm", halved=True, joined_mlp=False, norms=_READS),
    "glm4": Stock("glm4", "Glm4ForCausalLM", "perinorm", halved=False, joined_mlp=True, norms=(*_READS, *_WRITES)),
}
BY_BACKBONE = {stock.backbone: stock for stock in STOCKS.values()}

NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
"""Our name -> the stock name, outside the layers."""


def check_parts(config: ModelConfig) -> None:
    """Raise InputError where `config` has a part that neither stock format has."""
    wanted = {"norm": "rmsnorm", "position": "rotary", "mlp": "swiglu", "bias": False}
    for name, value in wanted.items():
        has = getattr(config, name)
        if has != value:
            raise InputError(
                f"a stock folder needs {name} {value}, this model has {has}; export it as layerrope instead"
            )


# -------------------------------------------------------------------------------------------------------------- names
def matrix_names(stock: Stock, layer: int) -> dict[str, str]:
    """Our matrix below layer `layer` -> the stock tensor that holds it (gate and up share one where joined)."""
    at = f"model.layers.{layer}"
    names = {f"attn.f.{role}.weight": f"{at}.self_attn.{role}_proj.weight" for role in "qkvo"}
    joined = "gate_up" if stock.joined_mlp else ""
    return (
        names
        | {f"mlp.f.{role}.weight": f"{at}.mlp.{joined or role}_proj.weight" for role in ("gate", "up")}
        | {"mlp.f.down.weight": f"{at}.mlp.down_proj.weight"}
    )


def norm_names(stock: Stock, layer: int) -> dict[str, str]:
    """Our norm weight below layer `layer` -> the stock tensor, by role."""
    return {f"{ours}.weight": tensor_name(stock.model_type, role, layer) for ours, role in stock.norms}


def to_stock(stock: Stock, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Folded tensors of an LM under their stock names, in the stock layout; the values are not touched."""
    ours = NAMES if not config.tie else {k: v for k, v in NAMES.items() if k != "head.weight"}
    made = {theirs: tensors[name] for name, theirs in ours.items()}
    for i in range(config.n_layer):
        at = f"layers.{i}."
        for name, theirs in (matrix_names(stock, i) | norm_names(stock, i)).items():
            weight = tensors[at + name]
            n_head = {"attn.f.q.weight": config.n_head, "attn.f.k.weight": config.kv_heads}.get(name)
            weight = halves(weight, n_head) if stock.halved and n_head else weight
            made[theirs] = torch.cat((made[theirs], weight)) if theirs in made else weight
    return made


def from_stock(stock: Stock, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_stock`, bit for bit.

    Raises:
        InputError: a tensor is missing, or one is left over.
    """
    left = dict(tensors)

    def take(name: str) -> Tensor:
        if name not in tensors:
            raise InputError(f"tensor {name} is missing: the weights do not match config.json")
        left.pop(name, None)
        return tensors[name]

    made = {ours: take(theirs) for ours, theirs in NAMES.items() if not (config.tie and ours == "head.weight")}
    head = left.pop("lm_head.weight", None) if config.tie else None  # some writers repeat the embedding
    if head is not None and not torch.equal(head, made["embed.weight"]):
        raise InputError("config.json ties the head to the embedding, but lm_head.weight is another matrix")
    for i in range(config.n_layer):
        for name, theirs in (matrix_names(stock, i) | norm_names(stock, i)).items():
            weight = take(theirs)
            n_head = {"attn.f.q.weight": config.n_head, "attn.f.k.weight": config.kv_heads}.get(name)
            if n_head and stock.halved:
                _check_rows(theirs, weight, n_head * config.d_head)
                weight = pairs(weight, n_head)
            if stock.joined_mlp and theirs.endswith("gate_up_proj.weight"):
                weight = weight.chunk(2)[name.startswith("mlp.f.up")]
            made[f"layers.{i}.{name}"] = weight
    extra = sorted(name for name in left if not name.endswith("rotary_emb.inv_freq"))  # a constant old writers kept
    if extra:
        raise InputError(f"tensor {extra[0]} is not part of the model in config.json ({len(extra)} such)")
    return made


def _check_rows(name: str, weight: Tensor, rows: int) -> None:
    if weight.ndim != 2 or len(weight) != rows:
        raise InputError(f"tensor {name} has shape {tuple(weight.shape)}, config.json says {rows} rows")


# ------------------------------------------------------------------------------------------------------ configuration
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_word(dtype: torch.dtype) -> str:
    """torch.bfloat16 -> "bfloat16", as config.json has it."""
    return str(dtype).removeprefix("torch.")


def stock_config(stock: Stock, config: ModelConfig, dtype: torch.dtype, eot: int | None) -> dict[str, Any]:
    """The config.json of a stock folder: every value explicit, the rotary base under the old and the new key."""
    word = dtype_word(dtype)
    rope = {"rope_type": "default", "rope_theta": config.rope_base}
    if stock.model_type == "glm4":
        rope["partial_rotary_factor"] = 1.0
    return {
        "architectures": [stock.architecture],
        "model_type": stock.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "max_position_embeddings": config.seq_len,
        "rope_theta": config.rope_base,  # read by transformers 4, llama.cpp and vLLM
        "rope_parameters": rope,  # read by transformers 5
        **({"partial_rotary_factor": 1.0} if stock.model_type == "glm4" else {"mlp_bias": False, "pretraining_tp": 1}),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.tie,
        "initializer_range": config.init_std,
        "bos_token_id": None,
        "eos_token_id": eot,
        "pad_token_id": None,
        "torch_dtype": word,
        "dtype": word,
        "use_cache": True,
    }


def read_stock_config(found: Mapping[str, Any]) -> tuple[Stock, ModelConfig]:
    """The stock format and our config of a config.json.

    Raises:
        InputError: a model type, part or value that an `LM` does not have; the message names it.
    """
    kind = found.get("model_type")
    if not isinstance(kind, str) or kind not in STOCKS:
        raise InputError(f"config.json has model_type {kind!r}: {' and '.join(STOCKS)} folders can be imported")
    stock = STOCKS[kind]
    for name, value in _PLAIN[kind].items():
        if found.get(name, value) not in (value, None):
            raise InputError(f"config.json has {name} {found[name]!r}, an LM has {value!r} only")
    n_head, d_model = _whole(found, "num_attention_heads"), _whole(found, "hidden_size")
    config = ModelConfig(
        n_layer=_whole(found, "num_hidden_layers"),
        n_head=n_head,
        n_kv_head=_whole(found, "num_key_value_heads", n_head),
        d_model=d_model,
        d_ff=_whole(found, "intermediate_size"),
        vocab_size=_whole(found, "vocab_size"),
        seq_len=_whole(found, "max_position_embeddings", 2048),
        scheme=stock.backbone,
        eps=_number(found, "rms_norm_eps"),
        rope_base=rope_base(found),
        tie=_flag(found, "tie_word_embeddings"),
    )
    if _whole(found, "head_dim", config.d_head) != config.d_head:
        raise InputError(
            f"config.json has head_dim {found['head_dim']}, an LM hidden_size / num_attention_heads = {config.d_head}"
        )
    return stock, config


_PLAIN: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    "glm4": {"hidden_act": "silu", "attention_bias": False, "partial_rotary_factor": 1.0},
}
"""What a stock config may say but an LM cannot vary."""


def rope_base(found: Mapping[str, Any]) -> float:
    """The rotary base of a config.json in the 4.x or the 5.x key style.

    Raises:
        InputError: scaled positions, or two keys that disagree.
    """
    new = found.get("rope_parameters") or {}
    old = found.get("rope_scaling") or {}
    for place, key in ((new, "rope_parameters"), (old, "rope_scaling")):
        if not isinstance(place, Mapping):
            raise InputError(f"config.json has a {key} that is no JSON object")
        kind = place.get("rope_type") or place.get("type") or "default"
        if kind != "default":
            raise InputError(f"config.json scales its rotary positions ({key} {kind!r}): an LM does not")
    bases = {_number(place, "rope_theta") for place in (new, found) if place.get("rope_theta") is not None}
    if len(bases) > 1:
        raise InputError(f"config.json has two rotary bases, {' and '.join(map(str, sorted(bases)))}: keep one")
    return bases.pop() if bases else 10_000.0


def _whole(found: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = found.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise InputError(f"config.json needs {name}, a whole number of at least 1: it has {value!r}")
    return value


def _flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    if not isinstance(value, bool | None):
        raise InputError(f"config.json needs {name}, true or false: it has {value!r}")
    return bool(value)


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"config.json needs {name}, a positive number: it has {value!r}")
    return float(value)


def stock_for(backbone: str, wanted: str | None = None) -> Stock:
    """The stock format of a backbone. Raises InputError where `wanted` is another one."""
    stock = BY_BACKBONE[one_of("backbone", backbone, BY_BACKBONE)]
    if wanted is not None and STOCKS[one_of("format", wanted, STOCKS)] != stock:
        why = "has norms after f" if backbone == "perinorm" else "has no norms after f"
        raise InputError(f"a model whose backbone {why} is no {wanted}: export it as {stock.model_type}")
    return stock


def renamed(config: ModelConfig, backbone: str) -> ModelConfig:
    """`config` of the folded model."""
    return replace(config, scheme=backbone)
