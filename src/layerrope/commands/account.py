"""`layerrope account`: parameters, FLOPs and memory of any shape under any scheme, without building it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerrope.config import ModelConfig
    from layerrope.roofline import Plan


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
    devices: tuple[int, ...] = ()
    """also plan training on so many devices: memory, communication, seconds a step (docs/scaling-out.md)"""
    gpu: str = "h100"
    """what they are: a100, h100 or h200"""
    batch_tokens: int = 2**20
    """tokens a step on all devices together"""
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
        plans = self.plans(config)
        rows: list[dict[str, Any]] = []
        for name in self.schemes:
            counted = account(replace(config, scheme=name))
            tokens = self.tokens_per_parameter * counted.parameters
            run = {"run_tokens": tokens, "run_flops": counted.training_flops(tokens)}
            rows.append({"scheme": name, **counted.as_dict(), **run})
        if self.json:
            found = {name: [plan.as_dict() for plan in of] for name, of in plans.items()}
            emit_json({"schema_version": 1, "tier": self.tier, "rows": rows, **({"plans": found} if found else {})})
        else:
            _show(rows, f"{self.tier}: {config.n_layer} layers, width {config.d_model}, T {config.seq_len}")
            for name, of in plans.items():
                _show_plans(of, f"{self.tier}, {name}, on {self.gpu}: {self.batch_tokens:,} tokens a step")
        return 0

    def plans(self, config: ModelConfig) -> dict[str, list[Plan]]:
        """Each scheme's steps on the devices that were asked for."""
        from layerrope.errors import one_of
        from layerrope.roofline import DEVICES, plans

        device = DEVICES[one_of("gpu", self.gpu, DEVICES)]
        return {
            name: plans(replace(config, scheme=name), self.devices, device, self.batch_tokens)
            for name in (self.schemes if self.devices else ())
        }

    def shape(self) -> ModelConfig:
        """The tier with what was given instead."""
        from layerrope.config import tier

        names = ("n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len")
        given = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        return replace(tier(self.tier), **given)


_LINES: dict[str, tuple[str, str]] = {
    "parameters": ("parameters", "{:,}"),
    "relative to Pre-Norm": ("scheme_parameters", "{:+,}"),
    "FLOPs per token": ("flops_per_token", "{:,}"),
    "write gates' FLOPs": ("gate_flops_per_token", "{:,}"),
    "their share": ("gate_flops_share", "{:.4%}"),
    "training state, bytes": ("training_bytes", "{:,}"),
    "activations, bytes a token": ("activation_bytes_per_token", "{:,}"),
    "run, tokens": ("run_tokens", "{:.4g}"),
    "run, FLOPs": ("run_flops", "{:.4g}"),
}


def _show(rows: list[dict[str, Any]], title: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.terminal import out

    table = Table(title=escape(title))
    table.add_column("")
    for row in rows:
        table.add_column(escape(row["scheme"]), justify="right", overflow="fold")
    for line, (key, form) in _LINES.items():
        table.add_row(line, *(form.format(row[key]) for row in rows))
    out.print(table)
    out.print("FLOPs per token: 6 (N - V d) + 6 L d T. Training state: weights, gradients and Adam's two moments.")
    out.print("Activations: what the backward pass keeps, uncompiled. Bytes are those of fp32.")


def _show_plans(plans: list[Plan], title: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.roofline import COLUMNS
    from layerrope.terminal import out

    (first, devices), *lines = COLUMNS.items()
    table = Table(first, title=escape(title))
    for plan in plans:
        table.add_column(devices(plan), justify="right", overflow="fold")
    for line, form in lines:
        table.add_row(line, *map(form, plans))
    out.print(table)
    out.print("FSDP over all devices, on paper; what is assumed: docs/scaling-out.md.")
