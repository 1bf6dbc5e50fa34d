"""Parameters, FLOPs and memory of a model, counted on a meta build; no second formula to drift from the code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.looping.cost import looked_up, loop_flops, loop_loss
from layerrope.looping.looped import LoopedConfig, LoopedLM
from layerrope.model import LM
from layerrope.norms import Gate
from layerrope.residual import Sublayer

STATE = 16
"""Bytes a parameter in training: weight, gradient and Adam's two moments, in fp32."""


@dataclass(frozen=True)
class Account:
    """What a model costs. FLOPs are per training token (forward and backward), a multiply-add being two."""

    parameters: int
    """all trainable parameters"""
    embedding_parameters: int
    """the token embedding and, where untied, the head; value embeddings"""
    scheme_parameters: int
    """parameters beyond (or, negative, short of) plain Pre-Norm's"""
    flops_per_token: int
    """6 (N - V d) + 6 L d T of the Pre-Norm model: every product, causal attention; looped: see `looping.cost`"""
    gate_flops_per_token: int
    """of write gates that Pre-Norm does not have: 8 L d for LayerRoPE's"""
    gate_flops_share: float
    """gate_flops_per_token / flops_per_token"""
    weight_bytes: int
    """in fp32"""
    training_bytes: int
    """weights, gradients and Adam's two moments in fp32; activations not included"""
    activation_bytes_per_token: int
    """kept for the backward pass in fp32, uncompiled, without checkpointing"""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    def training_flops(self, tokens: float) -> float:
        """FLOPs of a run over `tokens` tokens."""
        return self.flops_per_token * tokens


Decoder: TypeAlias = ModelConfig | LoopedConfig


def _built(config: Decoder) -> LM | LoopedLM:
    return LoopedLM(config) if isinstance(config, LoopedConfig) else LM(config)


@lru_cache(maxsize=256)
def count_parameters(config: Decoder) -> tuple[int, int, int]:
    """(all parameters, those in the embeddings and the head, those that are only looked up) of a meta build."""
    with torch.device("meta"):
        model = _built(config)
    total = sum(p.numel() for p in model.parameters())
    if isinstance(model, LoopedLM):
        tables = looked_up(model)
        return total, model.embed.weight.numel() + tables, tables
    tables = [model.embed.weight] if model.position is None else [model.embed.weight, model.position.weight]
    only = {id(p): p.numel() for p in tables if p is not model.head.weight}
    ends = only | {id(model.head.weight): model.head.weight.numel()}
    return total, sum(ends.values()), sum(only.values())


def gate_flops(config: Decoder) -> int:
    """FLOPs a training token of gates that Pre-Norm does not have: 4 an element, 8 L d for LayerRoPE's two.

    L is the executed depth of a looped model at its mean number of iterations, as if all carried gradient.

    One multiplication forward, and backward one for the output's gradient and a multiply-add for the gain's
    (arXiv 2610.09179, Appendix A). A gain that replaces a norm's weight costs nothing more.
    """
    with torch.device("meta"):
        layer = _built(config).layers[0]
    sublayers = (layer.get_submodule("attn"), layer.get_submodule("mlp"))
    gated = sum(_has_gate(s) for s in sublayers if isinstance(s, Sublayer))
    depth = config.depth(config.loops) if isinstance(config, LoopedConfig) else config.n_layer
    return 4 * gated * depth * config.d_model


def _has_gate(sublayer: Sublayer) -> bool:
    post = sublayer.branch.post
    return isinstance(post, Gate) and (sublayer.branch.writes or post.weight is not None)


def activation_bytes(config: Decoder) -> int:
    """Bytes a token that the backward pass keeps, in fp32, uncompiled and without checkpointing.

    The tensors autograd saves are counted, on fake tensors, so nothing is computed: what a second sequence and a
    second layer add gives the cost of one layer, which the depth multiplies; the head's logits come on top. A looped
    model keeps those iterations that carry gradient, at most `truncation`.
    """
    if isinstance(config, LoopedConfig):
        return (_saved_bytes(config, 2) - _saved_bytes(config, 1)) // config.seq_len
    try:
        one, two = (replace(config, n_layer=n) for n in (1, 2))
        count_parameters(one)
    except InputError:  # an option that only the full depth satisfies, such as AttnRes's block size
        return (_saved_bytes(config, 2) - _saved_bytes(config, 1)) // config.seq_len
    of_one = _saved_bytes(one, 2) - _saved_bytes(one, 1)
    per_layer = _saved_bytes(two, 2) - _saved_bytes(two, 1) - of_one
    return (of_one + (config.n_layer - 1) * per_layer) // config.seq_len


def _saved_bytes(config: Decoder, batch: int) -> int:
    with FakeTensorMode():
        model = _built(config)
        ids = torch.zeros(batch, config.seq_len, dtype=torch.long)
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        saved: dict[int, Tensor] = {}  # held, so that no storage is freed and its address used again

        def keep(t: Tensor) -> Tensor:
            if t.untyped_storage()._cdata not in weights:
                saved[t.untyped_storage()._cdata] = t
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            loop_loss(model, ids) if isinstance(model, LoopedLM) else model.loss_sum(ids, ids)
        return sum(t.untyped_storage().nbytes() for t in saved.values())


def flops_per_token(config: Decoder) -> int:
    """6 (N - V d) + 6 L d T of the Pre-Norm model of this shape: a training token's matrix products and attention.

    Of a looped model the mean over what is drawn in training (`layerrope.looping.cost`).
    """
    if isinstance(config, LoopedConfig):
        with torch.device("meta"):
            return loop_flops(LoopedLM(replace(config, scheme="prenorm")))
    parameters, _, looked_up = count_parameters(replace(config, scheme="prenorm"))
    return 6 * (parameters - looked_up) + 6 * config.n_layer * config.d_model * config.seq_len


def account(config: Decoder) -> Account:
    """Parameters, FLOPs per token and memory of a model of this config   (FLOPs: arXiv 2610.09179, Appendix A)

    Raises:
        InputError: the scheme does not exist or does not fit the shape.
    """
    if not isinstance(config, Decoder):
        raise InputError(f"the account of a configuration, such as layerrope.tiers['1b']: got {config!r:.100}")
    parameters, ends, _ = count_parameters(config)
    plain_parameters = count_parameters(replace(config, scheme="prenorm"))[0]
    flops = flops_per_token(config)
    gate = gate_flops(config)
    return Account(
        parameters=parameters,
        embedding_parameters=ends,
        scheme_parameters=parameters - plain_parameters,
        flops_per_token=flops,
        gate_flops_per_token=gate,
        gate_flops_share=gate / flops,
        weight_bytes=4 * parameters,
        training_bytes=STATE * parameters,
        activation_bytes_per_token=activation_bytes(config),
    )
