"""`layerrope account`: parameters, FLOPs and memory of any shape under any scheme, without building it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerrope.config import ModelConfig


@dataclass
class Command:
    """Parameters, FLOPs per token and memory of a model under several depth schemes, from a meta build."""

    tier: str = "130m"
    """the shape to start from: 60m ... 7b, d128-L48 ... d128-L512, micro ..."""
    schemes: tuple[str, ...] = ("prenorm", "layerrope", "perinorm")
    """depth schemes, with options where wanted"""
    n_layer: int | None = None
    """layers, instead of the tier's"""
    n_head: int | None = None
    """query heads, instead of the tier's"""
    d_model: int | None = None
    """width, instead of the tier's"""
    d_ff: int | None = None
    """hidden width of the MLP, instead of the tier's"""
    vocab_size: int | None = None
    """token ids, instead of the tier's"""
    seq_len: int | None = None
    """tokens per sequence, instead of the tier's"""
    tokens_per_parameter: float = 80.0
    """length of the run that the total FLOPs are for; the LayerRoPE paper trains on 80, compute-optimal is about 20"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        from layerrope.accounting import account
        from layerrope.errors import InputError
        from layerrope.terminal import emit_json

        if not self.schemes:
            raise InputError("no scheme to account for: name at least one after --schemes")
        if not self.tokens_per_parameter > 0:
            raise InputError(f"tokens-per-parameter must be positive: got {self.tokens_per_parameter}")
        config = self.shape()
        rows: list[dict[str, Any]] = []
        for name in self.schemes:
            counted = account(replace(config, scheme=name))
            tokens = self.tokens_per_parameter * counted.parameters
            run = {"run_tokens": tokens, "run_flops": counted.training_flops(tokens)}
            rows.append({"scheme": name, **counted.as_dict(), **run})
        if self.json:
            emit_json({"schema_version": 1, "tier": self.tier, "rows": rows})
        else:
            _show(rows, f"{self.tier}: {config.n_layer} layers, width {config.d_model}, T {config.seq_len}")
        return 0

    def shape(self) -> ModelConfig:
        """The tier with what was given instead."""
        from layerrope.config import tier

        names = ("n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len")
        given = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        return replace(tier(self.tier), **given)


def _show(rows: list[dict[str, Any]], title: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.terminal import out

    heads = (
        "scheme",
        "parameters",
        "to Pre-Norm",
        "FLOPs/token",
        "gates",
        "training",
        "activations/token",
        "FLOPs run",
    )
    table = Table(title=escape(title))
    for head in heads:
        table.add_column(head, justify="left" if head == "scheme" else "right")
    for row in rows:
        table.add_row(
            escape(row["scheme"]),
            f"{row['parameters']:,}",
            f"{row['scheme_parameters']:+,}",
            f"{row['flops_per_token']:,}",
            f"{row['gate_flops_share']:.4%}",
            f"{row['training_bytes'] / 2**30:,.2f} GiB",
            f"{row['activation_bytes_per_token'] / 2**20:,.2f} MiB",
            f"{row['run_flops']:.3g}",
        )
    out.print(table)
    out.print("FLOPs per token are 6 (N - V d) + 6 L d T; gates: write gates' share of them; training: weights,")
    out.print("gradients and Adam's moments in fp32; activations: kept for the backward pass, fp32, uncompiled.")
