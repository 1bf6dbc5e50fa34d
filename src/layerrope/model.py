"""The decoder language model: embedding, L layers of (attention, MLP) under one depth scheme, head.

Dimensions: B batch, T position, D width, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.norms import NORMS, Gate, no_autocast, upcast
from layerrope.residual import Site, Sublayer
from layerrope.residual.base import MakeNorm
from layerrope.rotary import rotary_table
from layerrope.scheme_table import Scheme, scheme
from layerrope.starting import fill_normal, name_seed, reset_modules
from layerrope.sublayers import MLPS, Attention, KVCache

IGNORED = -100
"""The label of a position that no loss counts."""


def make_norm(config: ModelConfig) -> MakeNorm:
    """The config's norm at its eps."""

    def make(d: int, weight: bool = True) -> nn.Module:
        return NORMS[config.norm](d, eps=config.eps, weight=weight)

    return make


def make_site(config: ModelConfig, layer: int, kind: str) -> Site:
    """The site of one sublayer of a model of this config."""
    return Site(layer, kind, config.n_layer, config.d_model, make_norm(config))


class Layer(nn.Module):
    """One block: attention, then MLP, each read and written as the scheme says."""

    def __init__(self, config: ModelConfig, chosen: Scheme, layer: int) -> None:
        super().__init__()
        self.param_tuning = chosen.tuning(config.n_layer, config.d_model)

        def sublayer(kind: str, f: nn.Module) -> Sublayer:
            site = make_site(config, layer, kind)
            return Sublayer(f, chosen.residual(site), chosen.branch(site, chosen.covers(kind)))

        attention = Attention(config.d_model, config.n_head, config.kv_heads, config.bias)
        self.attn = sublayer("attn", attention)
        self.mlp = sublayer("mlp", MLPS[config.mlp](config.d_model, config.d_ff, config.bias))

    def forward(self, state: Any, rows: Tensor | None, rope: Tensor | None, cache: KVCache | None = None) -> Any:
        """The next state. `rows` (2, 2, D): attention and MLP, read and write gains, or None."""
        attn, mlp = (None, None) if rows is None else rows.unbind(0)
        state = self.attn(state, attn, rope, cache)
        return self.mlp(state, mlp)


class LM(nn.Module):
    """A decoder language model under the depth scheme of its config.

    `LM(ids)` gives logits (B, T, V), `LM(ids, targets)` the mean loss in nats over the targets that are not
    `IGNORED`; both in fp32 whatever the model's dtype or autocast. Builds on the meta device; `init_weights(seed)`
    fills it. Weights depend on (seed, parameter name) alone, so two schemes start from the same ones.

    Raises:
        InputError: a scheme that does not exist or does not fit the shape.
    """

    param_roles = {"head.weight": "head"}

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.scheme = chosen = scheme(config.scheme)
        D, V = config.d_model, config.vocab_size
        self.embed = nn.Embedding(V, D)
        self.position = nn.Embedding(config.seq_len, D) if config.position == "learned" else None
        self.gains = chosen.build_gains(config.n_layer, D)
        self.layers = nn.ModuleList(Layer(config, chosen, i) for i in range(config.n_layer))
        self.ends = chosen.ends(make_site(config, config.n_layer, "attn"))
        self.norm = make_norm(config)(D) if chosen.final_norm else Gate()
        self.head = nn.Linear(D, V, bias=False)
        self.param_tuning = {"head": chosen.head_tuning(D)}
        if config.tie and chosen.untied:
            raise InputError(f"scheme {config.scheme!r} tunes the head apart from the embedding: set tie to false")
        if config.tie:
            self.head.weight = self.embed.weight
        self.init_weights(seed)

    # ------------------------------------------------------------------------------------------- starting values
    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Fill every parameter: norms, gates, gains and residuals by their own rule, matrices by role."""
        reset_modules(self, seed)
        for name, weight, std in self.init_stds():
            fill_normal(weight, std, name_seed(seed, name))

    def init_stds(self) -> Iterator[tuple[str, Tensor, float]]:
        """(name, weight, standard deviation) of every matrix and embedding at the start."""
        config = self.config
        yield "embed.weight", self.embed.weight, config.embed_std
        if self.position is not None:
            yield "position.weight", self.position.weight, config.init_std
        if not config.tie:
            site = make_site(config, config.n_layer, "attn")
            yield "head.weight", self.head.weight, config.init_std * self.scheme.init("head", site)
        for i, layer in enumerate(self.layers):
            for kind in ("attn", "mlp"):
                site = make_site(config, i, kind)
                for role, linear in layer.get_submodule(f"{kind}.f").named_children():
                    std = config.init_std * self.scheme.init(role, site)
                    yield f"layers.{i}.{kind}.f.{role}.weight", linear.get_parameter("weight"), std

    # --------------------------------------------------------------------------------------------------- forward
    def hidden(self, ids: Tensor, caches: list[KVCache] | None = None) -> Tensor:
        """The stream after the trunk, before the final norm: (B, T, D)."""
        past = caches[0].length if caches else 0
        h = self._embed(ids, past)
        rope = None
        if self.config.position == "rotary":
            rope = rotary_table(ids.shape[1], self.config.d_head, self.config.rope_base, past, ids.device)
        rows = self.gain_rows(ids.device)
        state = self.ends.expand(h)
        for i, layer in enumerate(self.layers):
            # generation grows its shapes step by step: never through a compiled layer
            state = layer.forward(state, rows[i], rope, caches[i]) if caches else layer(state, rows[i], rope)
        return self.ends.reduce(state)

    def gain_rows(self, device: torch.device) -> tuple[Tensor | None, ...]:
        """Each layer's rows of the gain table, (2, 2, D or 1) fp32, or None for a scheme without one."""
        if self.gains is None:
            return (None,) * len(self.layers)
        with device:
            return self.gains(len(self.layers)).unbind(0)

    def _embed(self, ids: Tensor, past: int) -> Tensor:
        h = self.embed(ids)
        if self.position is None:
            return h
        last = past + ids.shape[1]
        if last > self.config.seq_len:
            raise InputError(
                f"{last} positions asked for, but the model learned {self.config.seq_len}: "
                "shorten the text or use rotary positions"
            )
        return h + self.position.weight[past:last]

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, V) in at least fp32, from the stream (B, T, D); autocast is off here."""
        with no_autocast(h.device):
            h = upcast(self.norm(h))
            return F.linear(h, self.head.weight.to(h.dtype))

    def loss_sum(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of the losses in nats, number of counted targets): what gradient accumulation adds up."""
        logits = self.logits(self.hidden(ids))
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total, (targets != IGNORED).sum()

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of ids (B, T); with targets (B, T), the mean loss in nats per counted token."""
        if targets is None:
            return self.logits(self.hidden(ids))
        total, count = self.loss_sum(ids, targets)
        return total / count.clamp(min=1)

    # ------------------------------------------------------------------------------------------------ generation
    def caches(self) -> list[KVCache] | None:
        """One empty cache a layer; None where the scheme's writes look at earlier positions, so that none would do."""
        return [KVCache() for _ in self.layers] if self.scheme.cacheable else None

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
        stop: int | None = None,
        cache: bool = True,
    ) -> Tensor:
        """`ids` (B, T) with up to `max_new_tokens` sampled tokens appended: (B, T + n).

        Args:
            temperature: divides the logits; 0 takes the most likely token.
            top_k: sample among the k most likely only.
            seed: of the sampling; None draws from torch's generator.
            stop: end-of-text id; a row that has produced it repeats it, and all rows there end the text.
            cache: keep keys and values (the plain form recomputes the whole text for each token).

        Raises:
            InputError: ids of another shape or empty, or settings of no meaning; see `check_drawing`.
        """
        check_drawing(max_new_tokens, temperature, top_k, seed)
        if ids.ndim != 2:
            raise InputError(f"ids must be (batch, positions): got {ids.ndim} dimensions")
        if ids.shape[1] == 0:
            raise InputError("the prompt is empty: give at least one token")
        caches = self.caches() if cache else None
        generator = None if seed is None else torch.Generator(ids.device).manual_seed(seed)
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        fresh = ids
        for _ in range(max_new_tokens):
            h = self.hidden(fresh if caches else ids, caches)
            token = sample_token(self.logits(h[:, -1:])[:, 0], temperature, top_k, generator)
            if stop is not None:
                token = torch.where(done, stop, token)
                done = done | (token == stop)
            fresh = token[:, None]
            ids = torch.cat((ids, fresh), dim=1)
            if bool(done.all()):
                break
        return ids


def check_drawing(max_new_tokens: int, temperature: float, top_k: int | None, seed: int | None) -> None:
    """Raise InputError unless tokens can be drawn like this: a temperature of 0 or from 1e-6, and no negative count."""
    if max_new_tokens < 0:
        raise InputError(f"the number of new tokens must be at least 0: got {max_new_tokens}")
    if temperature != 0 and not 1e-6 <= temperature < math.inf:
        raise InputError(f"temperature must be 0 or a number from 1e-6 on: got {temperature}")
    if top_k is not None and top_k < 1:
        raise InputError(f"top-k must be at least 1: got {top_k}")
    if seed is not None and not 0 <= seed < 2**63:
        raise InputError(f"seed must lie between 0 and {2**63 - 1}: got {seed}")


def sample_token(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token a row from logits (B, V): (B,)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
