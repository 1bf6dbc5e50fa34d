"""Models of other packages at the same shape, to be timed beside ours: each is imported only when asked for.

Dimensions: B sequences, T positions, D width.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerrope.config import ModelConfig
from layerrope.model import LM
from layerrope.residual import Sublayer
from layerrope.rotary import rotary_table

LLAMA = "transformers Llama"
LUCIDRAINS = "lucidrains hyper-connections"


@dataclass(frozen=True)
class Peer:
    """Another package's model."""

    package: str  # to import
    install: str
    ours: str  # the scheme of ours that it is compared with
    step: Callable[[ModelConfig, Tensor, bool], Callable[[], object]]


def installed(name: str, notes: list[str]) -> bool:
    """Whether the peer can be imported; if not, a line in `notes` says how to get it."""
    peer = PEERS[name]
    found = importlib.util.find_spec(peer.package) is not None
    if not found:
        notes.append(f"no {name} in this run: pip install {peer.install}")
    return found


def llama_step(config: ModelConfig, ids: Tensor, compile: bool) -> Callable[[], object]:
    """One step of transformers' Llama of the same shape: the model compiled whole, torch's Adam as it comes."""
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.seq_len,
            rms_norm_eps=config.eps,
            tie_word_embeddings=config.tie,
            use_cache=False,
        )
    )
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        run(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def lucidrains_step(config: ModelConfig, ids: Tensor, compile: bool) -> Callable[[], object]:
    """One step of our own sublayers under lucidrains' dynamic Hyper-Connections with four streams."""
    from hyper_connections import (  # pyright: ignore[reportMissingImports]
        get_init_and_expand_reduce_stream_functions as functions,
    )

    init, expand, reduce = functions(4)
    model = LM(replace(config, scheme="prenorm"))
    rope = rotary_table(config.seq_len, config.d_head, config.rope_base)
    layers = nn.ModuleList(_HyperLayer(layer, init, config.d_model, rope) for layer in model.layers)
    optimizer = torch.optim.Adam([*model.parameters(), *_new(layers, model)], lr=1e-3, fused=True)
    if compile:
        for layer in layers:
            layer.compile()

    def step() -> None:
        H = expand(model.embed(ids))
        for layer in layers:
            H = layer(H)
        logits = model.logits(reduce(H))
        nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class _HyperLayer(nn.Module):
    """Attention and MLP, each as the branch of one of the package's hyper-connections."""

    def __init__(self, layer: nn.Module, init: Callable[..., nn.Module], d_model: int, rope: Tensor) -> None:
        super().__init__()
        self.attn = init(dim=d_model, branch=_BranchOf(layer.get_submodule("attn"), rope))
        self.mlp = init(dim=d_model, branch=_BranchOf(layer.get_submodule("mlp")))

    def forward(self, H: Tensor) -> Tensor:
        return self.mlp(self.attn(H))


class _BranchOf(nn.Module):
    """f(norm(x)) of one of our sublayers."""

    def __init__(self, sublayer: nn.Module, *context: Any) -> None:
        super().__init__()
        assert isinstance(sublayer, Sublayer)
        self.f, self.branch, self.context = sublayer.f, sublayer.branch, context

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(self.f, x, None, *self.context)


def _new(layers: nn.Module, model: nn.Module) -> list[nn.Parameter]:
    known = {id(p) for p in model.parameters()}
    return [p for p in layers.parameters() if id(p) not in known]


PEERS: dict[str, Peer] = {
    LLAMA: Peer("transformers", "transformers", "prenorm", llama_step),
    LUCIDRAINS: Peer("hyper_connections", "hyper-connections", "hc", lucidrains_step),
}
