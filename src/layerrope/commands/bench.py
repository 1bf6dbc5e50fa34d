"""`layerrope bench train`: what a training step costs, in paired, interleaved repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from layerrope.bench import Bench


@dataclass
class Command:
    """Time one training step of several schemes, transformers' Llama and bare matrix products, in paired rounds.

    Run it on an idle machine; the ratios are medians over rounds, so they hold on a drifting one, too.
    """

    what: Annotated[str, tyro.conf.Positional] = "train"
    """train: a step of the demo's model"""
    schemes: tuple[str, ...] = ("prenorm", "layerrope")
    """the first is what the others are compared with"""
    tier: str = "micro"
    """the shape (see layerrope account)"""
    batch_size: int = 16
    """sequences per step"""
    rounds: int = 20
    """counted repetitions of each contender"""
    threads: int = 1
    """of torch's operators"""
    compile: bool = True
    """compile the layers (and the Llama)"""
    llama: bool = True
    """time transformers' LlamaForCausalLM too, where it is installed"""
    out: Path | None = None
    """also write the JSON document there"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        import torch

        from layerrope.bench import bench_train
        from layerrope.config import tier
        from layerrope.errors import InputError, one_of
        from layerrope.files import write_json
        from layerrope.terminal import emit_json, status

        one_of("benchmark", self.what, ("train",))
        if not self.schemes or self.threads < 1 or self.batch_size < 1:
            raise InputError("bench needs at least one scheme, one thread and one sequence per step")
        torch.set_num_threads(self.threads)
        with status.status("starting") as spinner:
            result = bench_train(
                tier(self.tier),
                self.schemes,
                batch_size=self.batch_size,
                rounds=self.rounds,
                compile=self.compile,
                llama=self.llama,
                progress=spinner.update,
            )
        if self.out is not None:
            write_json(self.out, result.as_dict())
        emit_json(result.as_dict()) if self.json else _show(result, self.schemes[0])
        return 0


def _show(result: Bench, first: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.terminal import out

    table = Table(title=f"one training step, relative to {first}")
    for column in ("contender", "tokens/s", "time (wall)", "time (CPU)", "GFLOP/s", "of bare products"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in result.rows:
        share = f"{row.gflops / result.bare_gflops:.0%}"
        cells = (f"{row.tokens_per_second:,.0f}", f"{row.ratio:.3f}", f"{row.cpu_ratio:.3f}", f"{row.gflops:.1f}")
        table.add_row(row.name, *cells, share)
    out.print(table)
    out.print(f"bare matrix products at these shapes: {result.bare_gflops:.1f} GFLOP/s")
    if result.llama_speedup is not None:
        out.print(f"{first} trains {result.llama_speedup:.2f} times as many tokens per second as transformers' Llama")
    for note in result.notes:
        out.print(escape(f"note: {note}"))
    out.print(", ".join(f"{k} {v}" for k, v in result.settings.items()))
