"""Looped language models: a prelude, a core run R times, a coda   (Parcae, arXiv 2604.12946).

    e = norm(prelude(embed(ids)))
    h_0 = noise in training, 0 otherwise;   h <- core(exp(-delta A) h + delta B e),  R times
    logits = W norm(coda(C h_R))

Weights belong to layers, gains to executed depth: under LayerRoPE or LNS, every iteration of the core reads rows of its
own. In training R is drawn for each sequence, and only a sequence's last iterations carry gradient.

Dimensions: B batch, T position, D width, V vocabulary, L executed layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.config import check_counts
from layerrope.errors import InputError, one_of
from layerrope.looping.parts import Injection, LoopLayer
from layerrope.model import IGNORED
from layerrope.norms import NORMS, no_autocast, upcast
from layerrope.residual import Copies, Single, Site
from layerrope.rotary import rotary_table
from layerrope.scheme_table import scheme
from layerrope.starting import fill_normal, fill_orthogonal, name_seed, reset_modules

MOST_LOOPS = 1024
"""Iterations at most: beyond, a mistake in typing is likelier than a question."""


@dataclass(frozen=True)
class LoopedConfig:
    """Shape, loops and scheme of a looped model. Raises InputError for shapes that do not fit."""

    prelude: int = 2
    """layers before the loop"""
    core: int = 2
    """layers in the loop"""
    coda: int = 2
    """layers after the loop"""
    loops: int = 8
    """mean number of iterations in training, and the number in evaluation"""
    grad_loops: int | None = None
    """iterations with gradient, at most; None: half of loops, rounded up"""
    n_head: int = 2
    """attention heads"""
    d_model: int = 64
    """width of the stream"""
    d_ff: int = 256
    """hidden width of the MLP"""
    vocab_size: int = 257
    """token ids run from 0 to vocab_size - 1"""
    seq_len: int = 128
    """tokens per training sequence"""
    scheme: str = "prenorm"
    """depth scheme, with options: `layerrope:rotation=off`"""
    norm: str = "rmsnorm"
    """rmsnorm or layernorm"""
    eps: float = 1e-5
    """inside the norm's root"""
    rope_base: float = 50_000.0
    """base of the rotary spectrum"""
    value_embed: bool = True
    """value embeddings in every other layer, the last one included"""
    draw: bool = True
    """draw the first state and the iterations of each training sequence; without, they are 0 and `loops`, as in
    evaluation: with one loop, a plain decoder"""
    kind: str = "looped"
    """says in a run's record that this is a looped model"""

    def __post_init__(self) -> None:
        if not all(isinstance(n, Integral) and n >= 0 for n in (self.prelude, self.coda)):
            raise InputError(f"prelude and coda are numbers of layers: got {self.prelude} and {self.coda}")
        check_counts(self, "core", "loops", "n_head", "d_model", "d_ff", "vocab_size", "seq_len", "n_layer")
        if self.loops > MOST_LOOPS:
            raise InputError(f"loops must be at most {MOST_LOOPS}: got {self.loops}")
        if self.grad_loops is not None and self.grad_loops < 1:
            raise InputError(f"grad_loops must be at least 1: got {self.grad_loops}")
        if self.d_model % (2 * self.n_head):
            raise InputError(f"d_model {self.d_model} / n_head {self.n_head} must be a whole, even head width")
        one_of("norm", self.norm, NORMS)
        one_of("kind of model", self.kind, ("looped",))

    @property
    def n_layer(self) -> int:
        """Layers with weights of their own."""
        return self.prelude + self.core + self.coda

    @property
    def truncation(self) -> int:
        """Iterations with gradient, at most."""
        return math.ceil(self.loops / 2) if self.grad_loops is None else self.grad_loops

    @property
    def embed_std(self) -> float:
        return math.sqrt(2 / (5 * self.d_model))

    def depth(self, loops: int) -> int:
        """Executed layers at so many iterations."""
        return self.prelude + loops * self.core + self.coda


def _parcae(d_model: int, n_head: int, layers: int) -> LoopedConfig:
    """A size of arXiv 2604.12946: so many layers in each part, head width 128, T = 2048."""
    return LoopedConfig(layers, layers, layers, 8, None, n_head, d_model, 4 * d_model, 32_768, 2048)


looped_tiers: dict[str, LoopedConfig] = {
    "parcae-140m": _parcae(768, 6, 2),
    "parcae-370m": _parcae(1024, 8, 4),
    "parcae-770m": _parcae(1280, 10, 6),
    "parcae-1.3b": _parcae(1536, 12, 8),
    "loop-micro": LoopedConfig(),
}
"""The paper's sizes, and one for CPUs."""


class LoopedLM(nn.Module):
    """A looped decoder under the depth scheme of its config; the head is the embedding.

    Called as `LM` is: `(ids)` gives logits, `(ids, targets)` the mean loss. In training mode the number of iterations
    of each sequence is drawn from torch's random state; otherwise it is `config.loops`, or `loops` where given.

    Raises:
        InputError: a scheme that does not exist, needs every earlier output (Attention Residuals) or a second stream
            (nanochat), or has one gain for each of L layers and no law for more.
    """

    param_roles = {"B.weight": "static", "C.weight": "static"}

    def __init__(self, config: LoopedConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.scheme = chosen = scheme(config.scheme)
        D = config.d_model
        self.embed = nn.Embedding(config.vocab_size, D)
        self.gains = chosen.build_gains(config.n_layer, D)
        self.layers = nn.ModuleList(self._layer(i) for i in range(config.n_layer))
        self.ends = chosen.ends(self._site(config.n_layer, "attn"))
        if not isinstance(self.ends, Single | Copies):
            raise InputError(f"scheme {config.scheme!r} cannot be looped: its state is more than streams of one width")
        self.prelude_norm = self._norm(D)
        self.B, self.C = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.inject = Injection(D)
        self.norm = self._norm(D)
        self.gain_rows(config.depth(config.loops), torch.device("meta"))  # refuses tables that stop at n_layer
        self.init_weights(seed)

    def _norm(self, d: int, weight: bool = True) -> nn.Module:
        return NORMS[self.config.norm](d, eps=self.config.eps, weight=weight)

    def _site(self, layer: int, kind: str) -> Site:
        return Site(layer, kind, self.config.n_layer, self.config.d_model, self._norm)

    def _layer(self, i: int) -> LoopLayer:
        config = self.config
        sites = self._site(i, "attn"), self._site(i, "mlp")
        has_value = config.value_embed and i % 2 == (config.n_layer - 1) % 2
        return LoopLayer(self.scheme, sites, config.n_head, config.d_ff, config.vocab_size * has_value, config.eps)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Linear maps orthogonal at gain sqrt(2 / 5d) sqrt(max(rows, columns)), output projections 0, B the identity:
        every part starts as the identity and the loop as a leaky integrator."""
        reset_modules(self, seed)
        std = self.config.embed_std
        for name, module in self.named_modules():
            key = name_seed(seed, f"{name}.weight")
            if isinstance(module, nn.Embedding):
                fill_normal(module.weight, std, key)
            elif isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in {"o", "down"}:
                module.weight.zero_()
            elif isinstance(module, nn.Linear):
                fill_orthogonal(module.weight, std * math.sqrt(max(module.weight.shape)), key)
        nn.init.eye_(self.B.weight)

    # ------------------------------------------------------------------------------------------------------- parts
    def gain_rows(self, depth: int, device: torch.device) -> Tensor | None:
        """The gain table of so many executed layers, (L, 2, 2, D or 1), or None."""
        if self.gains is None:
            return None
        with device:
            return self.gains(depth)

    def _run(
        self, first: int, last: int, h: Tensor, rows: Sequence[Tensor | None], rope: Tensor, ids: Tensor
    ) -> Tensor:
        """Layers first .. last - 1 on the stream h (B, T, D)."""
        state = self.ends.expand(h)
        for layer, row in zip(self.layers[first:last], rows, strict=True):
            state = layer(state, row, rope, ids)
        return self.ends.reduce(state)

    def _prelude(self, ids: Tensor, table: Tensor | None, rope: Tensor) -> Tensor:
        """B e (B, T, D): what enters every iteration."""
        n = self.config.prelude
        return self.B(self.prelude_norm(self._run(0, n, self.embed(ids), _rows(table, 0, n), rope, ids)))

    def _iterate(
        self, h: Tensor, Be: Tensor, done: Tensor | int, table: Tensor | None, rope: Tensor, ids: Tensor
    ) -> Tensor:
        """One iteration of the core for sequences that have `done` so many: an int, or one number each (B,)."""
        p, n = self.config.prelude, self.config.core
        rows = _rows(table, p + done * n, n)
        return self._run(p, p + n, self.inject(h, Be), rows, rope, ids)

    def _coda(self, h: Tensor, loops: Tensor | int, table: Tensor | None, rope: Tensor, ids: Tensor) -> Tensor:
        p, n, c = self.config.prelude, self.config.core, self.config.coda
        return self._run(p + n, p + n + c, self.C(h).to(h.dtype), _rows(table, p + loops * n, c), rope, ids)

    # ----------------------------------------------------------------------------------------------------- forward
    @property
    def draws(self) -> bool:
        """Is anything drawn in a forward pass?"""
        return self.training and self.config.draw

    def draw_loops(self, batch: int) -> Tensor:
        """Iterations of each sequence, Poisson with mean `config.loops` and at least 1: (B,), on the CPU."""
        return torch.poisson(torch.full((batch,), float(self.config.loops))).long().clamp(min=1)

    def start_state(self, shape: torch.Size) -> Tensor:
        """h_0 in the embedding's dtype: N(0, embed_std^2) cut at three deviations where it is drawn; zero otherwise."""
        h = self.embed.weight.new_zeros(shape)
        std = self.config.embed_std
        return nn.init.trunc_normal_(h, 0.0, std, -3 * std, 3 * std) if self.draws else h

    def hidden(self, ids: Tensor, loops: Tensor | int | None = None) -> Tensor:
        """The stream after the coda, before the final norm: (B, T, D).

        Args:
            loops: iterations of every sequence, or of each, (B,) on the CPU. None: drawn in training mode (where the
                config says so), `config.loops` otherwise. Of R iterations the first R - truncation keep no gradient.
        """
        config = self.config
        if loops is None:
            loops = self.draw_loops(len(ids)) if self.draws else config.loops
        loops = torch.as_tensor(loops).expand(len(ids))
        if int(loops.min()) < 1:
            raise InputError(f"a looped model runs at least 1 iteration: got {int(loops.min())}")
        most = int(loops.max())
        table = self.gain_rows(config.depth(most), ids.device)
        rope = rotary_table(ids.shape[1], config.d_model // config.n_head, config.rope_base, 0, ids.device)
        Be = self._prelude(ids, table, rope)
        with_grad = loops.clamp(max=config.truncation)
        h = self._loop(self.start_state(Be.shape), Be, loops - with_grad, None, table, rope, ids)
        h = self._loop(h, Be, with_grad, loops - with_grad, table, rope, ids)
        return self._coda(h, _same(loops, ids.device), table, rope, ids)

    def _loop(
        self,
        h: Tensor,
        Be: Tensor,
        loops: Tensor,
        done: Tensor | None,
        table: Tensor | None,
        rope: Tensor,
        ids: Tensor,
    ) -> Tensor:
        """`loops` more iterations of each sequence (B,); the first ones, where `done` is None, keep no gradient."""
        with torch.no_grad() if done is None else nullcontext():
            for t in range(int(loops.max())):
                at = t if done is None else _same(done + t, ids.device)
                new = self._iterate(h, Be, at, table, rope, ids)
                running = (t < loops).to(ids.device)
                h = new if bool((t < loops).all()) else torch.where(running[:, None, None], new, h)
        return h

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, V) in at least fp32, from the stream (B, T, D); autocast is off here."""
        with no_autocast(h.device):
            h = upcast(self.norm(h))
            return F.linear(h, self.embed.weight.to(h.dtype))

    def logits_after(self, ids: Tensor, loops: Sequence[int]) -> list[Tensor]:
        """Logits (B, T, V) after each of these numbers of iterations, ascending, in one pass over the largest."""
        config, found = self.config, list[Tensor]()
        table = self.gain_rows(config.depth(max(loops)), ids.device)
        rope = rotary_table(ids.shape[1], config.d_model // config.n_head, config.rope_base, 0, ids.device)
        Be = self._prelude(ids, table, rope)
        h = self.start_state(Be.shape)
        for t in range(max(loops)):
            h = self._iterate(h, Be, t, table, rope, ids)
            if t + 1 in loops:
                found.append(self.logits(self._coda(h, t + 1, table, rope, ids)))
        return found

    def loss_sum(self, ids: Tensor, targets: Tensor, loops: Tensor | int | None = None) -> tuple[Tensor, Tensor]:
        """(sum of the losses in nats, number of counted targets)."""
        logits = self.logits(self.hidden(ids, loops))
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total, (targets != IGNORED).sum()

    def forward(self, ids: Tensor, targets: Tensor | None = None, loops: Tensor | int | None = None) -> Tensor:
        """Logits (B, T, V) of ids (B, T); with targets (B, T), the mean loss in nats per counted token."""
        if targets is None:
            return self.logits(self.hidden(ids, loops))
        total, count = self.loss_sum(ids, targets, loops)
        return total / count.clamp(min=1)


def _same(numbers: Tensor, device: torch.device) -> Tensor | int:
    """One int where all are equal, which needs no rows for each sequence; the tensor on `device` otherwise."""
    return int(numbers[0]) if bool((numbers == numbers[0]).all()) else numbers.to(device)


def _rows(table: Tensor | None, first: Tensor | int, n: int) -> Sequence[Any]:
    """n layers' rows from depth `first` on: (2, 2, D) each, or (2, 2, B, 1, D) where `first` differs by sequence."""
    if table is None:
        return [None] * n
    if isinstance(first, int):
        return table[first : first + n].unbind(0)
    return [torch.movedim(table[first + i], 0, 2)[..., None, :] for i in range(n)]
