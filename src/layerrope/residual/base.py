"""The interface of every depth scheme: `x, rest = read(state);  y = branch(f, x, gains);  state = write(rest, y)`.

Dimensions: B batch, T position, D width. A plain `state` is the stream h (B, T, D); other residuals carry more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from layerrope.gains import KINDS, Covers


class MakeNorm(Protocol):
    """Builds the model's norm: `make_norm(d)`, or `make_norm(d, weight=False)` where gains replace its weight."""

    def __call__(self, d: int, weight: bool = True) -> nn.Module: ...


@dataclass(frozen=True)
class Site:
    """Where a sublayer stands: what a scheme may depend on."""

    layer: int  # which weights, 0-based
    kind: str  # "attn" or "mlp"
    n_layer: int
    d_model: int
    norm: MakeNorm

    @property
    def index(self) -> int:
        """The sublayer's index, 0 .. 2L - 1."""
        return 2 * self.layer + KINDS.index(self.kind)

    @property
    def n_sublayer(self) -> int:
        return 2 * self.n_layer


class Residual(nn.Module):
    """Reads a sublayer's input from the state and writes its output back. `write` is never in place."""

    def read(self, state: Any) -> tuple[Tensor, Any]:
        """(x, rest): the sublayer's input (B, T, D), and what `write` needs."""
        raise NotImplementedError

    def write(self, rest: Any, y: Tensor) -> Any:
        """The next state, from `rest` and the sublayer's output y (B, T, D)."""
        raise NotImplementedError


class Add(Residual):
    """h <- h + y"""

    def read(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, rest: Tensor, y: Tensor) -> Tensor:
        return rest + y.to(rest.dtype)


class Ends(nn.Module):
    """How the trunk begins and ends: the embedding becomes a state, the last state becomes the stream."""

    def expand(self, h: Tensor) -> Any:
        """The first state, from the embedding (B, T, D)."""
        raise NotImplementedError

    def reduce(self, state: Any) -> Tensor:
        """The stream (B, T, D) that the final norm reads."""
        raise NotImplementedError


class Single(Ends):
    """The state is the stream."""

    def expand(self, h: Tensor) -> Tensor:
        return h

    def reduce(self, state: Tensor) -> Tensor:
        return state


class Branch(nn.Module):
    """y = post(f(pre(x, read row)), write row)

    Args:
        pre, post: a norm or a gate of `layerrope.norms`, called with `(x, row)`.
        covers: which of the two rows this sublayer's gain table holds.
    """

    def __init__(self, pre: nn.Module, post: nn.Module, covers: Covers) -> None:
        super().__init__()
        self.pre, self.post = pre, post
        self.reads, self.writes = covers.read, covers.write

    def forward(self, f: Callable[..., Tensor], x: Tensor, rows: Tensor | None, *context: Any) -> Tensor:
        read = rows[0] if self.reads and rows is not None else None
        write = rows[1] if self.writes and rows is not None else None
        return self.post(f(self.pre(x, read), *context), write)


class Sublayer(nn.Module):
    """One sublayer f (attention or MLP) with its residual and its branch."""

    def __init__(self, f: nn.Module, residual: Residual, branch: Branch) -> None:
        super().__init__()
        self.f, self.residual, self.branch = f, residual, branch

    def forward(self, state: Any, rows: Tensor | None, *context: Any) -> Any:
        """The next state. `rows` (2, D) are this sublayer's read and write gains, or None."""
        x, rest = self.residual.read(state)
        return self.residual.write(rest, self.branch(self.f, x, rows, *context))
