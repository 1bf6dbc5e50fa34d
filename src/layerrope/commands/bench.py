"""`layerrope bench`: what a training step costs: time in paired, interleaved repetitions, and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from layerrope.bench.peers import LLAMA, LUCIDRAINS
from layerrope.config import ModelConfig, tiers
from layerrope.terminal import note

if TYPE_CHECKING:
    from layerrope.bench.memory import Memory
    from layerrope.bench.step import Bench


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
    """What one training step of several schemes and of other packages' models costs: time, beside that of bare matrix
    products, and peak memory.

    Run it on an idle machine; ratios of time are medians over rounds, so they hold on a drifting one, too. Memory is
    counted where tensors are allocated and does not depend on the machine's other work.
    """

    what: Annotated[str, tyro.conf.Positional] = "train"
    """train (the demonstration's model) or schemes (all of them, width 256, 24 layers, T 256)"""
    schemes: tuple[str, ...] = ()
    """schemes to time, instead of the benchmark's own; the first is what the others are compared with"""
    tier: str | None = None
    """shape, instead of the benchmark's own (see layerrope account)"""
    batch_size: int | None = None
    """sequences per step, instead of the benchmark's own"""
    measure: tuple[str, ...] = ("time", "memory")
    """time, memory"""
    rounds: int = 20
    """counted repetitions of each contender"""
    threads: int = 1
    """of torch's operators"""
    compile: bool = True
    """compile the models"""
    peers: bool = True
    """time other packages' models too, where they are installed"""
    out: Path | None = None
    """also write the JSON document there; what the file holds of the same shape and is not measured now is kept"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        import torch

        from layerrope.errors import InputError
        from layerrope.terminal import emit_json, status

        plan = self.plan()
        if self.threads < 1 or plan.batch_size < 1:
            raise InputError("bench needs at least one thread and one sequence per step")
        kept = self._kept()
        torch.set_num_threads(self.threads)
        with status.status("starting") as spinner:
            time, memory = self._measure(plan, spinner.update)
        document = as_document(time, memory)
        if self.out is not None:
            self._write(document, kept)
        emit_json(document) if self.json else _show(time, memory, plan.schemes[0])
        return 0

    def _measure(self, plan: Plan, progress: Callable[[str], None]) -> tuple[Bench | None, Memory | None]:
        from layerrope.bench.memory import bench_memory
        from layerrope.bench.step import bench

        time = memory = None
        asked = {"batch_size": plan.batch_size, "compile": self.compile, "progress": progress}
        if "time" in self.measure:
            time = bench(plan.config, plan.schemes, plan.peers, rounds=self.rounds, **asked)
        if "memory" in self.measure:
            memory = bench_memory(plan.config, plan.schemes, plan.peers, **asked)
        return time, memory

    def _kept(self) -> dict[str, Any]:
        """What --out holds of an earlier benchmark. Raises InputError for a file of another kind."""
        from layerrope.errors import InputError
        from layerrope.files import read_json

        if self.out is None or not self.out.exists():
            return {}
        found = read_json(self.out)
        if not isinstance(found, dict) or not {"rows", "memory"} & found.keys():
            raise InputError(f"{self.out} holds no benchmark: choose another --out")
        return found

    def _write(self, document: dict[str, Any], kept: dict[str, Any]) -> None:
        from layerrope.files import write_json

        assert self.out is not None
        rest = {name: value for name, value in kept.items() if name not in document}
        same = _shape(document) == _shape(kept)
        if rest and not same:
            note(f"{self.out} was of another shape, and is replaced as a whole")
        write_json(self.out, {**(rest if same else {}), **document})

    def plan(self) -> Plan:
        """The named benchmark with what was given instead."""
        from layerrope.config import tier
        from layerrope.errors import InputError, one_of

        if not self.measure:
            raise InputError("nothing to measure: give --measure time, memory or both")
        for name in self.measure:
            one_of("measure", name, ("time", "memory"))
        named = plans()
        plan = named[one_of("benchmark", self.what, named)]
        return plan._replace(
            config=plan.config if self.tier is None else tier(self.tier),
            batch_size=plan.batch_size if self.batch_size is None else self.batch_size,
            schemes=self.schemes or plan.schemes,
            peers=plan.peers if self.peers else (),
        )


_SHAPE = ("n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len", "batch_size", "compile", "dtype")


def as_document(time: Bench | None, memory: Memory | None) -> dict[str, Any]:
    """What was measured as JSON data; `memory` stands apart, with settings of its own."""
    document = {} if time is None else time.as_dict()
    return document if memory is None else {**document, "memory": asdict(memory)}


def _shape(document: dict[str, Any]) -> dict[str, Any]:
    """The shape that a document is of."""
    settings = document.get("settings") or document.get("memory", {}).get("settings", {})
    return {name: settings.get(name) for name in _SHAPE}


def _show(time: Bench | None, memory: Memory | None, first: str) -> None:
    if time is not None:
        _show_time(time, first)
    if memory is not None:
        _show_memory(memory, first)


def _show_memory(memory: Memory, first: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from layerrope.terminal import out

    table = Table(title=f"memory at the step's most, relative to {escape(first)}")
    table.add_column("", overflow="fold")
    for column in ("peak", "held, MB", "step, MB"):
        table.add_column(column, justify="right")
    for row in memory.rows:
        bytes = (f"{row.state_bytes / 1e6:,.1f}", f"{row.step_bytes / 1e6:,.1f}")
        table.add_row(escape(row.name), f"{row.ratio:.3f}", *bytes)
    out.print(table)
    out.print("held: weights and Adam's moments; step: activations, gradients and temporaries on top; peak: their sum.")
    for line in memory.notes:
        out.print(escape(f"note: {line}"))


def _show_time(result: Bench, first: str) -> None:
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
    for line in result.notes:
        out.print(escape(f"note: {line}"))
    out.print(", ".join(f"{k} {v}" for k, v in result.settings.items()))
