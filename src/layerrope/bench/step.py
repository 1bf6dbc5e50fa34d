"""What a training step costs: schemes against Pre-Norm, against other packages, and against bare products.

Every figure is a ratio of paired repetitions in one process (`layerrope.bench.paired`); nothing here is a test.
Dimensions: B sequences, T positions, D width.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from layerrope.accounting import Account, account
from layerrope.bench.paired import Timing, paired
from layerrope.bench.peers import LLAMA, PEERS, installed
from layerrope.config import ModelConfig
from layerrope.errors import InputError, one_line
from layerrope.model import LM
from layerrope.training.layerwise import compile_layers
from layerrope.training.optim import Optimizers


@dataclass(frozen=True)
class Row:
    """One contender's step."""

    name: str
    tokens_per_second: float
    """median over rounds"""
    ratio: float
    """step time relative to Pre-Norm's, wall clock, median over rounds"""
    cpu_ratio: float
    """the same in CPU time: steadier where other work shares the machine"""
    gflops: float
    """model FLOPs (6 (N - V d) + 6 L d T a token, Pre-Norm's) times tokens per second, in 1e9 a second"""
    activations: float | None
    """bytes a token kept for the backward pass, uncompiled, relative to Pre-Norm's; None for other packages"""


@dataclass(frozen=True)
class Bench:
    """A paired run: its rows, the rate of bare matrix products at the same shapes, and where it ran."""

    rows: list[Row]
    bare_gflops: float
    """the step's own products alone, forward and backward, at the FLOP-weighted mean rate"""
    speedups: dict[str, float]
    """ours over another package's, in tokens per second: Pre-Norm over Llama, hc over lucidrains' hyper-connections"""
    notes: list[str]
    settings: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def bench(
    config: ModelConfig,
    schemes: tuple[str, ...],
    peers: tuple[str, ...] = (LLAMA,),
    *,
    batch_size: int,
    rounds: int,
    compile: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time one training step (forward, backward, fused Adam) of each scheme and peer in paired rounds.

    Args:
        config: the shape; its scheme is replaced by each of `schemes`.
        schemes: the first is what the others' ratios refer to.
        peers: models of other packages (`layerrope.bench.peers.PEERS`) at the same shape, where they can be imported.
        batch_size: sequences per step.
        rounds: counted repetitions of each contender.

    Raises:
        InputError: a scheme, peer or shape that does not exist, or fewer than one round.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1: got {rounds}")
    # every contender stays compiled at once, and each scheme is a version of the same layer's code for torch
    with torch._dynamo.config.patch(recompile_limit=8 * (len(schemes) + len(peers))):
        return _bench(config, schemes, peers, batch_size, rounds, compile, progress)


def _bench(
    config: ModelConfig,
    schemes: tuple[str, ...],
    peers: tuple[str, ...],
    batch_size: int,
    rounds: int,
    compile: bool,
    progress: Callable[[str], None],
) -> Bench:
    ids = torch.randint(0, config.vocab_size, (batch_size, config.seq_len))
    notes: list[str] = []
    steps: dict[str, Callable[[], object]] = {}
    for name in (*schemes, *peers):
        progress(f"building {name}")
        step = contender_step(name, config, ids, compile, notes)
        if step is not None:
            steps[name] = step
    timings = paired(steps, rounds, after=lambda r: progress(f"round {r} of {rounds}"))
    tokens = batch_size * config.seq_len
    first = account(replace(config, scheme=schemes[0]))
    return Bench(
        rows=[_row(n, t, timings[schemes[0]], tokens, config, first) for n, t in timings.items()],
        bare_gflops=bare_products(config, tokens),
        speedups={
            f"{PEERS[n].ours} over {n}": timings[n].ratio(timings[PEERS[n].ours])
            for n in peers
            if n in timings and PEERS[n].ours in timings
        },
        notes=notes,
        settings={**settings_of(config, batch_size, compile), "rounds": rounds},
    )


def contender_step(
    name: str, config: ModelConfig, ids: Tensor, compile: bool, notes: list[str]
) -> Callable[[], object] | None:
    """One step of a scheme or of another package's model; None, and a line in `notes`, where that is not installed."""
    if name not in PEERS:
        return our_step(replace(config, scheme=name), ids, compile, notes)
    return PEERS[name].step(config, ids, compile) if installed(name, notes) else None


def our_step(config: ModelConfig, ids: Tensor, compile: bool, notes: list[str]) -> Callable[[], object]:
    """One step of our model, as `layerrope train` makes it."""
    model = LM(config)
    optimizer = Optimizers(model, "adam", lr=1e-3)

    def step() -> None:
        model(ids, ids).backward()
        optimizer.step(1.0)
        optimizer.zero_grad()

    if compile:
        for layer in model.layers:
            layer.compile()
        failure = _first(step)
        if failure:
            notes.append(f"{config.scheme} runs uncompiled: {failure}")
            compile_layers(model, lambda: None, backend="eager")
    return step


def _first(step: Callable[[], object]) -> str | None:
    """Run `step` once; the first line of what went wrong, or None."""
    try:
        step()
    except Exception as error:  # the compiler's layers raise exceptions of their own
        return one_line(error)[:200]
    return None


def bare_products(config: ModelConfig, tokens: int, rounds: int = 15) -> float:
    """GFLOP/s of the linear maps' own matrix products (forward, both gradients), each timed alone, FLOP-weighted."""
    D, F, V = config.d_model, config.d_ff, config.vocab_size
    kv = config.d_head * config.kv_heads
    shapes = [(D, D), (D, kv), (D, kv), (D, D), (D, F), (D, F), (F, D)]
    work = {(k, n): 0 for k, n in [*shapes, (D, V)]}
    for shape in shapes:
        work[shape] += config.n_layer
    work[D, V] += 1
    flops = seconds = 0.0
    for (k, n), count in work.items():
        x, w, y = torch.randn(tokens, k), torch.randn(n, k), torch.randn(tokens, n)
        products = {
            "forward": lambda x=x, w=w: x @ w.T,
            "input": lambda y=y, w=w: y @ w,
            "weight": lambda x=x, y=y: y.T @ x,
        }
        timings = paired(products, rounds)
        flops += count * 3 * 2.0 * tokens * k * n
        seconds += count * sum(t.seconds for t in timings.values())
    return flops / seconds / 1e9


def _row(name: str, timing: Timing, first: Timing, tokens: int, config: ModelConfig, to: Account) -> Row:
    rate = tokens / timing.seconds
    ours = None if name in PEERS else account(replace(config, scheme=name)).activation_bytes_per_token
    activations = None if ours is None else ours / to.activation_bytes_per_token
    gflops = to.flops_per_token * rate / 1e9
    return Row(name, rate, timing.ratio(first), timing.cpu_ratio(first), gflops, activations)


def settings_of(config: ModelConfig, batch_size: int, compile: bool) -> dict[str, object]:
    """What a record says of the shape and of where it was made."""
    shape = {k: getattr(config, k) for k in ("n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len")}
    where = {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}
    return {**shape, "batch_size": batch_size, "compile": compile, "dtype": "fp32", **where}
