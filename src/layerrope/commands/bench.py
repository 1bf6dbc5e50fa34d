"""`layerrope bench`: what a training step costs, in paired, interleaved repetitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from layerrope.bench_peers import LLAMA, LUCIDRAINS
from layerrope.config import ModelConfig, tiers

if TYPE_CHECKING:
    from layerrope.bench import Bench


class Plan(NamedTuple):
    """One named benchmark."""

    config: ModelConfig
    batch_size: int
    schemes: tuple[str, ...]
    peers: tuple[str, ...]


def plans() -> dict[str, Plan]:
    """`train`: a step of the demonstration's model. `schemes`: every scheme at width 256, 24 layers, T 256."""
    from layerrope.scheme_table import schemes

    wide = replace(tiers["micro"], n_head=8, d_model=256, d_ff=688, seq_len=256)
    names = ("prenorm", *(name for name in schemes if name != "prenorm"))
    return {
        "train": Plan(tiers["micro"], 16, ("prenorm", "layerrope"), (LLAMA,)),
        "schemes": Plan(wide, 4, names, (LUCIDRAINS,)),
    }


@dataclass
class Command:
    """Time one training step of several schemes, of other packages' models and of bare matrix products, in turn.

    Run it on an idle machine; ratios are medians over rounds, so they hold on a drifting one, too.
    """

    what: Annotated[str, tyro.conf.Positional] = "train"
    """train (the demonstration's model) or schemes (all of them, width 256, 24 layers, T 256)"""
    schemes: tuple[str, ...] = ()
    """schemes to time, instead of the benchmark's own; the first is what the others are compared with"""
    tier: str | None = None
    """shape, instead of the benchmark's own (see layerrope account)"""
    batch_size: int | None = None
    """sequences per step, instead of the benchmark's own"""
    rounds: int = 20
    """counted repetitions of each contender"""
    threads: int = 1
    """of torch's operators"""
    compile: bool = True
    """compile the models"""
    peers: bool = True
    """time other packages' models too, where they are installed"""
    out: Path | None = None
    """also write the JSON document there"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        import torch

        from layerrope.bench import bench
        from layerrope.errors import InputError
        from layerrope.files import write_json
        from layerrope.terminal import emit_json, status

        plan = self.plan()
        if self.threads < 1 or plan.batch_size < 1:
            raise InputError("bench needs at least one thread and one sequence per step")
        torch.set_num_threads(self.threads)
        with status.status("starting") as spinner:
            result = bench(
                plan.config,
                plan.schemes,
                plan.peers,
                batch_size=plan.batch_size,
                rounds=self.rounds,
                compile=self.compile,
                progress=spinner.update,
            )
        if self.out is not None:
            write_json(self.out, result.as_dict())
        emit_json(result.as_dict()) if self.json else _show(result, plan.schemes[0])
        return 0

    def plan(self) -> Plan:
        """The named benchmark with what was given instead."""
        from layerrope.config import tier
        from layerrope.errors import one_of

        named = plans()
        plan = named[one_of("benchmark", self.what, named)]
        return plan._replace(
            config=plan.config if self.tier is None else tier(self.tier),
            batch_size=plan.batch_size if self.batch_size is None else self.batch_size,
            schemes=self.schemes or plan.schemes,
            peers=plan.peers if self.peers else (),
        )


def _show(result: Bench, first: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.terminal import out

    table = Table(title=f"one training step, relative to {escape(first)}")
    table.add_column("", overflow="fold")
    for column in ("tokens/s", "wall", "CPU", "kept", "GFLOP/s", "of bare"):
        table.add_column(column, justify="right")
    for row in result.rows:
        kept = "" if row.activations is None else f"{row.activations:.2f}"
        ratios = (f"{row.ratio:.3f}", f"{row.cpu_ratio:.3f}", kept)
        share = f"{row.gflops / result.bare_gflops:.0%}"
        table.add_row(escape(row.name), f"{row.tokens_per_second:,.0f}", *ratios, f"{row.gflops:.1f}", share)
    out.print(table)
    out.print("wall, CPU: time of a step; kept: activations kept for the backward pass, uncompiled;")
    out.print(f"of bare: share of the rate of the step's own matrix products, {result.bare_gflops:.1f} GFLOP/s.")
    for pair, speedup in result.speedups.items():
        out.print(escape(f"{pair}: {speedup:.2f} times the tokens per second"))
    for note in result.notes:
        out.print(escape(f"note: {note}"))
    out.print(", ".join(f"{k} {v}" for k, v in result.settings.items()))
