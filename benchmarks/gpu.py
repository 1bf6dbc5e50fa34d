"""What one GPU shows in eight minutes: every scheme right, how fast steps are, what LayerRoPE and streams cost.

    python benchmarks/gpu.py                        # writes results/gpu/DEVICE.json
    python benchmarks/gpu.py --device cpu --tiny    # the same, end to end, on any machine; its times mean nothing

Five parts, each in the record, or the reason why it is not: gradients of every scheme against the CPU; training in
shards and on copies (FSDP2 and DDP over nccl, one rank) against plain training; the rate of bare products; compiled
bf16 steps of 1b under Pre-Norm and LayerRoPE; the same of 130m under five schemes. Steps are timed in turn, round after
round.

Dimensions: B sequences, T positions.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro
from torch import Tensor

from layerrope import LM, ModelConfig, account, schemes, tiers
from layerrope.bench.paired import paired
from layerrope.data import DataConfig
from layerrope.errors import InputError, one_line, reason
from layerrope.files import write_json
from layerrope.ranks.ranks import Ranks
from layerrope.roofline import DEVICES
from layerrope.training.evaluation import undisturbed
from layerrope.training.layerwise import compile_layers
from layerrope.training.machine import autocast, check_machine, peak_memory
from layerrope.training.optim import Optimizers
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import RunFolder, versions
from layerrope.training.session import Session

TARGET = 1.01
"""LayerRoPE's step over Pre-Norm's, at most."""
SMALL = ModelConfig(n_layer=4, n_head=4, d_model=128, d_ff=352, vocab_size=257, seq_len=64, scheme="layerrope")
TINY = replace(SMALL, n_layer=2, n_head=2, d_model=32, d_ff=64, seq_len=16)
PAIR = ("prenorm", "layerrope")
STREAMS = (*PAIR, "hc", "mhc", "attnres")
FEW = (*PAIR, "hc:n=2")
"""Enough to try the script."""


@dataclass(frozen=True)
class Options:
    """Check and time this package on one device."""

    device: str = "cuda"
    """cuda, cuda:N or cpu"""
    tiny: bool = False
    """toy shapes and no code generation: to try the script itself"""
    out: Path | None = None
    """the record; results/gpu/DEVICE.json"""
    minutes: float = 5.0
    """parts that would begin later are left out; the longest takes about three"""
    rounds: int = 20
    """repetitions of each timed step"""


@dataclass(frozen=True)
class Bench:
    """What every part works with."""

    device: torch.device
    tiny: bool
    rounds: int

    def shape(self, tier: str, batch: int) -> tuple[ModelConfig, int]:
        """A tier and its batch, or toys."""
        return (self.small, 2) if self.tiny else (tiers[tier], batch)

    @property
    def small(self) -> ModelConfig:
        """A shape that a CPU computes in no time."""
        return TINY if self.tiny else SMALL

    @property
    def backend(self) -> str:
        return "eager" if self.tiny else "inductor"

    @property
    def peak(self) -> float | None:
        """Dense bf16 FLOPs a second on the vendor's sheet, where the device is in the table."""
        name = self.name.lower()
        return next((device.peak for key, device in DEVICES.items() if key in name), None)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


# -------------------------------------------------------------------------------------------------------- correctness
def every_scheme(bench: Bench) -> dict[str, Any]:
    """Loss and gradient in fp32 against the CPU's, with parameters moved away from their start."""
    rows = {name: _against_cpu(replace(bench.small, scheme=name), bench.device) for name in schemes}
    return {"rows": rows, "ok": all(row["loss"] < 1e-5 and row["gradient"] < 1e-4 for row in rows.values())}


def _against_cpu(config: ModelConfig, device: torch.device) -> dict[str, float]:
    """Relative errors of the loss and, as a norm, of the whole gradient."""
    model, generator = LM(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    ids = torch.randint(config.vocab_size, (4, config.seq_len), generator=generator)
    wanted, gradient = _loss_and_gradient(model, ids)
    found, there = _loss_and_gradient(model.to(device), ids.to(device))
    return {
        "loss": abs(found / wanted - 1),
        "gradient": float((there - gradient).norm() / gradient.norm()),
    }


def _loss_and_gradient(model: LM, ids: Tensor) -> tuple[float, Tensor]:
    model.zero_grad(set_to_none=True)
    loss = model(ids, ids)
    loss.backward()
    gradients = [p.grad.flatten().double().cpu() for p in model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(gradients)


@dataclass
class Noise:
    """Random ids, the same for the same step."""

    config: DataConfig
    vocab_size: int

    def batch(self, step: int, batch_size: int, *, seed: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(self.vocab_size, (batch_size, self.config.seq_len + 1), generator=generator)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def in_shards(bench: Bench) -> dict[str, Any]:
    """Losses of three steps in shards and on copies, one rank, against three plain ones."""
    model = bench.small
    config = TrainConfig(model=model, data=DataConfig(seq_len=model.seq_len), steps=3, batch_size=4, clip=0.1)
    plain = _losses(config, bench.device, Ranks(), "auto")
    with _one_rank(bench.device) as ranks:
        sharded = _losses(config, bench.device, ranks, "fsdp")
        copied = _losses(config, bench.device, ranks, "ddp")
    errors = {
        name: max(abs(a / b - 1) for a, b in zip(found, plain, strict=True))
        for name, found in {"fsdp": sharded, "ddp": copied}.items()
    }
    return {"errors": errors, "ok": all(error < 1e-5 for error in errors.values())}


def _losses(config: TrainConfig, device: torch.device, ranks: Ranks, parallel: str) -> list[float]:
    data = Noise(config.data, config.model.vocab_size)
    session = Session(config, RunFolder("unused"), device, data, None, (), ranks, parallel)  # type: ignore[arg-type]
    found = []
    for _ in range(config.steps):
        session.at.since_log = [0.0, 0]
        session.update()
        session._read()
        found.append(session.at.since_log[0] / session.at.since_log[1])
    return found


@contextlib.contextmanager
def _one_rank(device: torch.device) -> Iterator[Ranks]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield Ranks(store=store)
    finally:
        dist.destroy_process_group()


# -------------------------------------------------------------------------------------------------------------- times
def bare_products(bench: Bench) -> dict[str, Any]:
    """bf16 products of the shapes of 1b and 7b on 8,192 positions: FLOPs a second, and their share of the peak."""
    tokens, rows = 64 if bench.tiny else 8192, {}
    for name in ("1b", "7b"):
        config = bench.shape(name, 1)[0]
        for k, n in ((config.d_model, config.d_model), (config.d_model, config.d_ff)):
            x, w = (torch.randn(size, device=bench.device, dtype=torch.bfloat16) for size in ((tokens, k), (k, n)))
            rate = 2.0 * tokens * k * n / _median_seconds(bench, lambda x=x, w=w: x @ w)
            rows[f"{k} x {n}"] = {"flops": rate, "share": bench.peak and rate / bench.peak}
    return {"tokens": tokens, "rows": rows, "ok": True}


def _median_seconds(bench: Bench, work: Callable[[], object]) -> float:
    def timed() -> None:
        work()
        bench.wait()

    return paired({"": timed}, bench.rounds)[""].seconds


def steps_of(bench: Bench, tier: str, names: tuple[str, ...], batch: int) -> dict[str, Any]:
    """Compiled bf16 training steps: time relative to the first scheme's, tokens a second, MFU, peak memory."""
    config, batch = bench.shape(tier, batch)
    steps, rows = dict[str, Callable[[], object]](), dict[str, dict[str, Any]]()
    limit = 8 * len(names)  # every scheme is a version of the same layer's code, and all stay compiled
    with torch._dynamo.config.patch(recompile_limit=limit):
        for name in names:
            steps[name], rows[name] = _prepared(bench, replace(config, scheme=name), batch)
        timings = paired(steps, bench.rounds)
    torch._dynamo.reset()
    tokens, flops = batch * config.seq_len, account(config).flops_per_token
    for name, row in rows.items():
        rate = tokens / timings[name].seconds
        row |= {
            "milliseconds": 1e3 * timings[name].seconds,
            "ratio": timings[name].ratio(timings[names[0]]),
            "tokens_per_second": rate,
            "mfu": bench.peak and rate * flops / bench.peak,
        }
    return {
        "tier": tier,
        "batch": batch,
        "rows": rows,
        "ok": all(row["compiled_error"] < 0.02 for row in rows.values()),
    }


def _prepared(bench: Bench, config: ModelConfig, batch: int) -> tuple[Callable[[], object], dict[str, Any]]:
    """A compiled step, and what is known before it is timed: peak memory alone, and the compiled loss's error."""
    gc.collect()
    before = _held(bench.device)
    model = LM(config).to(bench.device)
    optimizer = Optimizers(model, "adam", lr=1e-4)
    ids = torch.randint(config.vocab_size, (batch, config.seq_len), device=bench.device)

    def loss() -> Tensor:
        with autocast(bench.device, "bf16"):
            return model(ids, ids)

    def step() -> None:
        loss().backward()
        optimizer.step(1.0)
        optimizer.zero_grad()
        bench.wait()

    with undisturbed(model), torch.no_grad():
        eager = float(loss())
    problem = compile_layers_beside(model, lambda: loss().backward(), bench.backend)
    optimizer.zero_grad()
    with undisturbed(model), torch.no_grad():
        compiled = float(loss())
    step()
    peak = peak_memory(bench.device) - before if bench.device.type == "cuda" else None
    return step, {"uncompiled": problem, "compiled_error": abs(compiled / eager - 1), "peak_bytes": peak}


def compile_layers_beside(model: LM, trial: Callable[[], object], backend: str) -> str | None:
    """`compile_layers`, but models compiled before stay so."""
    for layer in model.layers:
        layer.compile(backend=backend)
    try:
        trial()
        return None
    except Exception as error:  # as in `compile_layers`: the compiler's layers have exceptions of their own
        compile_layers(model, lambda: None, backend="eager")
        return one_line(error)


def _held(device: torch.device) -> int:
    """Bytes held now; the peak starts anew from here."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


PARTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "schemes": every_scheme,
    "ranks": in_shards,
    "products": bare_products,
    "steps-1b": lambda bench: steps_of(bench, "1b", PAIR, 32),
    "steps-130m": lambda bench: steps_of(bench, "130m", FEW if bench.tiny else STREAMS, 128),
}


# ------------------------------------------------------------------------------------------------------------- record
def measured(bench: Bench, minutes: float) -> dict[str, Any]:
    """Every part's findings, with its seconds, or why there are none."""
    began, found = time.monotonic(), dict[str, Any]()
    for name, part in PARTS.items():
        at = time.monotonic()
        if at - began > 60 * minutes:
            found[name] = {"skipped": f"{minutes:g} minutes were over"}
            continue
        try:
            found[name] = part(bench)
        except torch.OutOfMemoryError as error:
            found[name] = {"skipped": f"out of memory: {reason(error)}"}
        found[name]["seconds"] = time.monotonic() - at
        print(f"{name}: {_words(found[name])}", file=sys.stderr, flush=True)
    return found


def _words(part: dict[str, Any]) -> str:
    if "skipped" in part:
        return f"left out, {part['skipped']}"
    rows = part.get("rows", {})
    ratios = ", ".join(f"{name} {row['ratio']:.3f}" for name, row in rows.items() if "ratio" in row)
    return f"{'ok' if part['ok'] else 'WRONG'} in {part['seconds']:.0f} s{': ' + ratios if ratios else ''}"


def verdict(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Is everything right, and is LayerRoPE's step within the target at 1b (at 130m where 1b was left out)?"""
    right = all(part.get("ok", True) for part in parts.values())
    for name in ("steps-1b", "steps-130m"):
        if "rows" in parts.get(name, {}):
            ratio = parts[name]["rows"]["layerrope"]["ratio"]
            return {"right": right, "layerrope_ratio": ratio, "of": name, "within_target": ratio <= TARGET}
    return {"right": right, "layerrope_ratio": None, "of": None, "within_target": None}


def main(options: Options) -> int:
    """Run all parts, write the record; 1 where a number is wrong, 2 for a device that is not there."""
    try:
        device = check_machine(options.device, "bf16")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    bench = Bench(device, options.tiny, 2 if options.tiny else options.rounds)
    parts = measured(bench, options.minutes)
    record = {"device": bench.name, "tiny": options.tiny, "versions": versions(), "cuda": torch.version.cuda}
    record |= {"target": TARGET, "verdict": verdict(parts), "parts": parts}
    slug = bench.name.lower().replace(" ", "-").replace("/", "-")
    path = options.out or Path(__file__).parents[1] / "results" / "gpu" / f"{slug}{'-tiny' * options.tiny}.json"
    print(f"{write_json(path, record)}: {record['verdict']}")
    return 0 if record["verdict"]["right"] else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
