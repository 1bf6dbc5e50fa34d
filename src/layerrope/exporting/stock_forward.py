"""A plain forward pass of the stock formats from their files alone: the definition that an export is proved against
where transformers is not installed.

Written from the published architectures (Llama: arXiv 2302.13971; GLM-4's sandwich norms), not from this package's
`LM`, so that a mistake there cannot hide here.

Dimensions: B batch, T position, D width, H heads, C head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.norm_sites import LAYOUTS, MODEL_TYPES, tensor_name


def stock_forward(config: Mapping[str, Any], tensors: Mapping[str, Tensor], ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits (B, T, V) of ids (B, T), and the stream (B, T, D) after each layer, in fp32.

    `config` is the config.json and `tensors` the safetensors of a Llama or GLM-4 folder. A further key `rotary`,
    "halves" or "pairs", says how channels turn where it is not the format's own way.
    """
    w = {name: t.float() for name, t in tensors.items()}
    h, streams = w["model.embed_tokens.weight"][ids], []
    for layer in range(config["num_hidden_layers"]):
        h = h + _normed(
            config, w, "attn_write", layer, _attention(config, w, layer, _normed(config, w, "attn_read", layer, h))
        )
        h = h + _normed(config, w, "mlp_write", layer, _mlp(w, layer, _normed(config, w, "mlp_read", layer, h)))
        streams.append(h)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return _normed(config, w, "final", None, h) @ w[head].T, streams


def _normed(config: Mapping[str, Any], w: Mapping[str, Tensor], role: str, layer: int | None, x: Tensor) -> Tensor:
    """x / rms(x) * weight of the norm in this role, or x where the format has none."""
    if role not in LAYOUTS[MODEL_TYPES[config["model_type"]]].roles:
        return x
    weight = w[tensor_name(config["model_type"], role, layer)]
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


def _attention(config: Mapping[str, Any], w: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
    C, H = config["head_dim"], config["num_attention_heads"]
    B, T, _ = x.shape

    def heads(role: str) -> Tensor:
        y = x @ w[f"model.layers.{layer}.self_attn.{role}_proj.weight"].T
        return y.view(B, T, -1, C).transpose(1, 2)

    q, k, v = _turned(config, heads("q")), _turned(config, heads("k")), heads("v")
    k, v = (t.repeat_interleave(H // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / C**0.5
    hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
    y = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    return y.transpose(1, 2).reshape(B, T, H * C) @ w[f"model.layers.{layer}.self_attn.o_proj.weight"].T


def _turned(config: Mapping[str, Any], x: Tensor) -> Tensor:
    """Rotary positions as complex numbers; Llama pairs channel i with C/2 + i, GLM-4 2i with 2i + 1."""
    T, C = x.shape[-2:]
    base = config["rope_parameters"]["rope_theta"]
    angles = torch.outer(torch.arange(T).double(), base ** (-torch.arange(0, C, 2).double() / C)).to(x.device)
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    own = "halves" if config["model_type"] == "llama" else "pairs"
    if config.get("rotary", own) == "halves":
        z = torch.complex(*x.chunk(2, dim=-1)) * turn
        return torch.cat((z.real, z.imag), dim=-1)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)


def _mlp(w: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
    at = f"model.layers.{layer}.mlp"
    joined = w.get(f"{at}.gate_up_proj.weight")
    joined = torch.cat((w[f"{at}.gate_proj.weight"], w[f"{at}.up_proj.weight"])) if joined is None else joined
    gate, up = (x @ joined.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w[f"{at}.down_proj.weight"].T
