"""How OLMo-core 3.0 names and lays out the weights of a decoder that an `LM` can be. Needs torch alone.

OLMo-core rotates the halves (i, C/2 + i) of a head, an `LM` the pairs (2i, 2i+1): the rows of the query and key
projections move, everything else keeps its values.

Dimensions: C head width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.exporting.folding import lm_from_tensors
from layerrope.model import LM
from layerrope.rotary import halves, pairs

OUTSIDE = {
    "embed.weight": "embeddings.weight",
    "norm.weight": "lm_head.norm.weight",
    "head.weight": "lm_head.w_out.weight",
}
"""Our name -> theirs, outside the layers; the names of the gain table are the same."""

INSIDE = {
    "attn.f.q": "attention.w_q",
    "attn.f.k": "attention.w_k",
    "attn.f.v": "attention.w_v",
    "attn.f.o": "attention.w_out",
    "mlp.f.gate": "feed_forward.w1",
    "mlp.f.up": "feed_forward.w3",
    "mlp.f.down": "feed_forward.w2",
    "attn.branch.pre": "attention_norm",
    "attn.branch.post": "post_attention_norm",
    "mlp.branch.pre": "feed_forward_norm",
    "mlp.branch.post": "post_feed_forward_norm",
}
"""Our module below `layers.N` -> theirs below `blocks.N`."""

STOCK_BLOCKS = {"default": "prenorm", "default_scaled": "lns", "peri_norm": "perinorm"}
"""OLMo-core's own block types -> the scheme they are."""


def olmo_name(name: str) -> str:
    """A parameter of an `LM` -> the same one in OLMo-core.

    >>> olmo_name("layers.3.mlp.f.up.weight"), olmo_name("gains.gamma")
    ('blocks.3.feed_forward.w3.weight', 'gains.gamma')
    """
    found = re.fullmatch(r"layers\.(\d+)\.(.+)\.weight", name)
    if found is None:
        return OUTSIDE.get(name, name)
    return f"blocks.{found[1]}.{INSIDE[found[2]]}.weight"


def _turned_heads(config: ModelConfig, name: str) -> int:
    """Heads whose rows move in the tensor of this name; 0 where none do."""
    ends = {".attn.f.q.weight": config.n_head, ".attn.f.k.weight": config.kv_heads}
    return next((n for end, n in ends.items() if name.endswith(end)), 0)


def _skeleton(config: ModelConfig) -> dict[str, Tensor]:
    """Names and shapes of an `LM` of this config, tied weights once."""
    with torch.device("meta"):
        model = LM(config)
    return {name: t for name, t in model.state_dict().items() if not (config.tie and name == "head.weight")}


def to_olmo(model: LM) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight of `model` as OLMo-core has it."""
    state = model.state_dict()
    for name in _skeleton(model.config):
        n = _turned_heads(model.config, name)
        yield olmo_name(name), halves(state[name], n) if n else state[name]


def from_olmo(config: ModelConfig, tensors: Mapping[str, Tensor]) -> LM:
    """The `LM` that holds the weights `tensors` of an OLMo-core model; further tensors are left alone.

    Raises:
        InputError: a tensor is missing or of another shape than the config says.
    """
    made: dict[str, Tensor] = {}
    for name, like in _skeleton(config).items():
        theirs = olmo_name(name)
        if theirs not in tensors:
            raise InputError(
                f"tensor {theirs} is missing: the checkpoint is of another model than its config.json says"
            )
        weight = tensors[theirs]
        if weight.shape != like.shape:
            raise InputError(f"tensor {theirs} has shape {tuple(weight.shape)}, config.json says {tuple(like.shape)}")
        n = _turned_heads(config, name)
        made[name] = pairs(weight, n) if n else weight
    return lm_from_tensors(config, made)


# ------------------------------------------------------------------------------------------------------------- config
def read_olmo_config(found: Mapping[str, Any], seq_len: int) -> ModelConfig:
    """The `ModelConfig` of an OLMo-core model config as JSON data: this package's, or a plain decoder of theirs.

    Raises:
        InputError: a part that an `LM` does not have; the message names it.
    """
    block = _object(found, "block", "model")
    mixer, mlp = _object(block, "sequence_mixer", "model.block"), _object(block, "feed_forward", "model.block")
    norm, rope = _object(block, "layer_norm", "model.block"), _object(mixer, "rope", "model.block.sequence_mixer")
    head = _object(found, "lm_head", "model")
    _refuse_other_parts(found, block, mixer, mlp, norm, rope, head)
    std = _number(found, "init_std", "model", 0.02)
    return ModelConfig(
        n_layer=_whole(found, "n_layers", "model"),
        n_head=_whole(mixer, "n_heads", "model.block.sequence_mixer"),
        n_kv_head=None
        if mixer.get("n_kv_heads") is None
        else _whole(mixer, "n_kv_heads", "model.block.sequence_mixer"),
        d_model=_whole(found, "d_model", "model"),
        d_ff=_whole(mlp, "hidden_size", "model.block.feed_forward"),
        vocab_size=_whole(found, "vocab_size", "model"),
        seq_len=seq_len,
        scheme=_scheme(found, block),
        eps=_number(norm, "eps", "model.block.layer_norm", 1e-5),
        rope_base=_number(rope, "theta", "model.block.sequence_mixer.rope", 500_000.0),
        tie=bool(found.get("tie_word_embeddings", False)),
        init_std=std,
        embed_std=_number(found, "embedding_init_std", "model", std),
    )


def _scheme(found: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    if isinstance(found.get("scheme"), str):
        return found["scheme"]
    name = str(block.get("name", "default"))
    if name not in STOCK_BLOCKS:
        raise InputError(f"config.json has blocks of type {name}: an LM is {', '.join(STOCK_BLOCKS)}, or a scheme")
    return STOCK_BLOCKS[name]


_MIXER = "model.block.sequence_mixer"
_ABSENT = {
    "model": ("embedding_norm", "block_pattern", "block_overrides", "embed_scale"),
    "model.block": ("feed_forward_moe", "dropout", "attention_residual_alpha", "feed_forward_residual_alpha"),
    _MIXER: (
        *("gate", "qk_norm", "clip_qkv", "dropout", "softmax_scale", "sliding_window", "window_size"),
        *("attention_sinks", "scalable_softmax", "head_dim"),
    ),
    f"{_MIXER}.rope": ("scaling", "no_global_rope"),
}
"""What must be absent (or off) for an `LM` to be the same function."""

_VALUES = {
    "model": {"name": ("default",)},
    _MIXER: {"name": ("default", "fused", "fused_v2"), "bias": (False,)},
    "model.block.feed_forward": {"name": ("default",), "bias": (False,), "activation": ("silu",)},
    "model.block.layer_norm": {"name": ("rms", "fused_rms", "cute_rms"), "bias": (False,)},
    "model.lm_head": {"name": ("default",), "bias": (False,)},
}
"""What must have one of these values; absent means the first of them, but biases must be switched off by name."""


def _refuse_other_parts(
    model: Mapping[str, Any],
    block: Mapping[str, Any],
    mixer: Mapping[str, Any],
    mlp: Mapping[str, Any],
    norm: Mapping[str, Any],
    rope: Mapping[str, Any],
    head: Mapping[str, Any],
) -> None:
    places = {
        "model": model,
        "model.block": block,
        _MIXER: mixer,
        f"{_MIXER}.rope": rope,
        "model.block.feed_forward": mlp,
        "model.block.layer_norm": norm,
        "model.lm_head": head,
    }
    for where, names in _ABSENT.items():
        for name in names:
            if places[where].get(name) not in (None, False) and not _plain_width(name, model, mixer):
                raise InputError(f"config.json has {where}.{name}: an LM does not")
    for where, values in _VALUES.items():
        for name, allowed in values.items():
            value = places[where].get(name, None if name == "bias" else allowed[0])
            if value not in allowed:
                raise InputError(f"config.json has {where}.{name} {value!r}, an LM has {allowed[0]!r} only")


def _plain_width(name: str, model: Mapping[str, Any], mixer: Mapping[str, Any]) -> bool:
    """A head width that is d_model / n_heads, spelled out."""
    return name == "head_dim" and mixer[name] * mixer.get("n_heads", 0) == model.get("d_model")


def _object(found: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = found.get(name)
    if not isinstance(value, Mapping):
        raise InputError(f"config.json has no {where}.{name}: it is not that of a decoder of OLMo-core")
    return value


def _whole(found: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    value = default if found.get(name) is None else found[name]
    if type(value) is not int:
        raise InputError(f"config.json needs {where}.{name}, a whole number: it has {value!r}")
    return value


def _number(found: Mapping[str, Any], name: str, where: str, default: float) -> float:
    value = default if found.get(name) is None else found[name]
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise InputError(f"config.json needs {where}.{name}, a number: it has {value!r}")
    return float(value)
