"""Attention Residuals: each sublayer reads a softmax mix of everything written before it, by depth.

Dimensions: B batch, T position, D width, N sources.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from layerrope.errors import InputError
from layerrope.norms import KeepFp32, no_autocast
from layerrope.residual.base import Ends, Residual, Site


@dataclass(frozen=True)
class Sources:
    """Everything written so far. An object and not a bare tuple, so that compiled layers do not depend on N; a pytree
    all the same, which is where FSDP2 looks for the tensors of its arguments."""

    values: tuple[Tensor, ...]  # v_i, (B, T, D) each
    scales: tuple[Tensor, ...]  # 1 / rms(v_i), (B, T) each


pytree.register_dataclass(Sources)


def inverse_rms(v: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(v^2) + eps) over the width, (B, T), at least fp32, with no copy of v in that precision."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    norm = cast(Tensor, torch.linalg.vector_norm(v, dim=-1, dtype=dtype))  # pyright: ignore[reportUnknownMemberType]
    return torch.rsqrt(norm.square() / v.shape[-1] + eps)


def n_sources(sublayer: int, size: int) -> int:
    """How many sources sublayer s reads in groups of `size`: 1 + ceil(s / size); s = 2L gives the output's.

    >>> [n_sources(s, 4) for s in range(6)], n_sources(12, 1)
    ([1, 2, 2, 2, 2, 3], 13)
    """
    return 1 + -(-sublayer // size)


def group_size(n_sublayer: int, size: int, blocks: int) -> int:
    """Sublayers in a group: `size`, or what makes `blocks` groups where that is not 0 (the last may be shorter).

    Raises:
        InputError: both are given, or a size or number of groups that the depth does not have.
    """
    if blocks and size != 1:
        raise InputError(f"scheme 'attnres' takes size or blocks, not both: got size={size}, blocks={blocks}")
    if not 0 <= blocks <= n_sublayer:
        raise InputError(f"blocks={blocks} of scheme 'attnres' must lie between 1 and the {n_sublayer} sublayers")
    if not 1 <= size <= n_sublayer:
        raise InputError(f"size={size} of scheme 'attnres' must lie between 1 and the {n_sublayer} sublayers")
    return -(-n_sublayer // blocks) if blocks else size


# ------------------------------------------------------------------------------------------------------ the mixing
def _dot(v: Tensor, q: Tensor) -> Tensor:
    """v . q over the width, (B, T, D) and (D,) or (B, T, D) to (B, T), in q's dtype."""
    return v @ q if v.dtype == q.dtype and q.ndim == 1 else (v * q).sum(-1)


def _sum(w: Tensor, v: Tensor) -> Tensor:
    """sum of w v over batch and positions, (B, T, 1) and (B, T, D) to (D,), in w's dtype."""
    return v.flatten(0, 1).mT @ w.flatten() if v.dtype == w.dtype else (w * v).sum((0, 1))


def depth_weights(q: Tensor, values: Sequence[Tensor], scales: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Logits q . v_i / rms(v_i) and their softmax over the sources, each (N, B, T)."""
    with no_autocast(q.device):
        logits = torch.stack([_dot(v, q) * scale for v, scale in zip(values, scales, strict=True)])
        return logits, torch.softmax(logits, 0)


class _Mix(torch.autograd.Function):
    """sum_i a_i v_i with a = softmax_i(scale_i v_i . q); keeps references to the sources and nothing else.

    Written out because autograd would keep the N weights of every sublayer, N^2 (B, T) in all and more than the
    sources of a deep narrow network, and a stack of the sources would be a second copy of them at every sublayer.
    The weights are formed again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, *sources: Tensor) -> Tensor:
        n = len(sources) // 2
        values, scales = sources[:n], sources[n:]
        ctx.save_for_backward(q, *sources)
        _, weights = depth_weights(q, values, scales)
        h = weights[0, ..., None] * values[0]
        for a, v in zip(weights[1:], values[1:], strict=True):
            h.addcmul_(a[..., None], v)
        return h.to(values[0].dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        q, *sources = saved
        n = len(sources) // 2
        values, scales = sources[:n], sources[n:]
        g = grad_outputs[0].to(q.dtype)
        # both products of a source while it is in the cache: at depth, reading the sources is what takes the time
        pairs = [(_dot(v, q) * scale, _dot(v, g)) for v, scale in zip(values, scales, strict=True)]
        logits, to_weights = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        weights = torch.softmax(logits, 0)
        to_logits = weights * (to_weights - (weights * to_weights).sum(0))
        to_q, to_values, to_scales = torch.zeros_like(q), list[Tensor](), list[Tensor]()
        for v, scale, a, logit, pull in zip(values, scales, weights, logits, to_logits, strict=True):
            along_q = (pull * scale)[..., None]
            to_q += _sum(along_q, v)
            to_values.append((along_q * q).addcmul_(a[..., None], g).to(v.dtype))
            to_scales.append(pull * logit / scale)
        return to_q, *to_values, *to_scales


def mix(q: Tensor, sources: Sources) -> Tensor:
    """sum_i softmax_i(q . v_i / rms(v_i)) v_i: (B, T, D) in the first source's dtype."""
    return cast(Tensor, _Mix.apply(q, *sources.values, *sources.scales))  # pyright: ignore[reportUnknownMemberType]


class DepthAttention(KeepFp32):
    """h = sum_i a_i v_i, a = softmax_i(query . rms(v_i) * key)   (Attention Residuals, arXiv 2603.15031)

    The query starts at zero: the mix is the plain mean. Weights are formed in fp32; the values are not normalised.
    """

    param_roles = {"query": "static", "key": "norm"}

    def __init__(self, d: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.key = nn.Parameter(torch.empty(d, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.query)
        nn.init.ones_(self.key)

    def forward(self, sources: Sources) -> Tensor:
        return mix(self.query * self.key, sources)


# ---------------------------------------------------------------------------------------------------- the residual
class AttentionResidual(Residual):
    """x = sum_i softmax_i(w . rms(v_i)) v_i;  append y   (Attention Residuals, arXiv 2603.15031)

    Nothing is added to a stream: the mix is the stream. In groups of `size` sublayers, a group's outputs are summed
    into one source, which its own later sublayers see half grown; size 1 is the full form. The first sublayer has
    one source and no parameters.

    The mixing is left out of compiled graphs: each layer has another number of sources, and one graph for each
    would be compiled.

    Args:
        size: sublayers in a group.
        blocks: number of groups, in place of the size; 0: by size.
        eps: inside the root of rms.

    Raises:
        InputError: see `group_size`.
    """

    def __init__(self, site: Site, size: int = 1, blocks: int = 0, eps: float = 1e-6) -> None:
        super().__init__()
        self.opens, self.eps = site.index % group_size(site.n_sublayer, size, blocks) == 0, eps
        self.mix = DepthAttention(site.d_model) if site.index else First()
        self.run = outside_graphs(call)

    def read(self, state: Sources) -> tuple[Tensor, Sources]:
        return self.run(self.mix, state), state

    def write(self, rest: Sources, y: Tensor) -> Sources:
        return self.run(append if self.opens else grow, rest, y, self.eps)


def append(sources: Sources, y: Tensor, eps: float) -> Sources:
    """One source more."""
    return Sources((*sources.values, y), (*sources.scales, inverse_rms(y, eps)))


def grow(sources: Sources, y: Tensor, eps: float) -> Sources:
    """The last source plus y."""
    return append(Sources(sources.values[:-1], sources.scales[:-1]), sources.values[-1] + y, eps)


def call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


@functools.cache
def outside_graphs(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as an ordinary call from compiled code. Made on demand, since it loads the compiler, and only once, since
    compiled layers hold on to the very object."""
    return torch.compiler.disable(fn)  # pyright: ignore[reportUnknownMemberType, reportReturnType]


class First(nn.Module):
    """The only source there is."""

    def forward(self, sources: Sources) -> Tensor:
        return sources.values[0]


class Mixed(Ends):
    """v_0 is the embedding; the stream after the last sublayer is one more mix, with a query of its own."""

    def __init__(self, d: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.mix, self.eps = DepthAttention(d), eps

    def expand(self, h: Tensor) -> Sources:
        return Sources((h,), (inverse_rms(h, self.eps),))

    def reduce(self, state: Sources) -> Tensor:
        return self.mix(state)
