"""What a training step costs: schemes against Pre-Norm, against transformers' Llama, and against bare products.

Every figure is a ratio of paired repetitions in one process (`layerrope.timing`); nothing here is a test.
Dimensions: B sequences, T positions, D width.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from layerrope.accounting import account
from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.layerwise import compile_layers
from layerrope.model import LM
from layerrope.optim import Optimizers
from layerrope.timing import Timing, paired

LLAMA = "transformers Llama"


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
    """model FLOPs (6 (N - V d) + 6 L d T a token) times tokens per second, in 1e9 a second"""
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """A paired run: its rows, the rate of bare matrix products at the same shapes, and where it ran."""

    rows: list[Row]
    bare_gflops: float
    """the step's own products alone, forward and backward, at the FLOP-weighted mean rate"""
    llama_speedup: float | None
    """Pre-Norm's tokens per second over the Llama's; None where transformers is not installed"""
    notes: list[str]
    settings: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def bench_train(
    config: ModelConfig,
    schemes: tuple[str, ...],
    *,
    batch_size: int,
    rounds: int,
    compile: bool = True,
    llama: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time one training step (forward, backward, fused Adam) of each scheme in paired rounds.

    Args:
        config: the shape; its scheme is replaced by each of `schemes`.
        schemes: the first is what the others' ratios refer to.
        batch_size: sequences per step.
        rounds: counted repetitions of each contender.
        llama: add transformers' LlamaForCausalLM of the same shape, compiled whole, where it can be imported.

    Raises:
        InputError: a scheme or shape that does not exist, or fewer than one round.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1: got {rounds}")
    ids = torch.randint(0, config.vocab_size, (batch_size, config.seq_len))
    notes: list[str] = []
    steps: dict[str, Callable[[], object]] = {}
    for name in schemes:
        progress(f"building {name}")
        steps[name] = our_step(replace(config, scheme=name), ids, compile, notes)
    if llama and _has_transformers(notes):
        progress(f"building {LLAMA}")
        steps[LLAMA] = llama_step(config, ids, compile)
    timings = paired(steps, rounds, after=lambda r: progress(f"round {r} of {rounds}"))
    first = timings[schemes[0]]
    tokens = batch_size * config.seq_len
    rows = [_row(name, timing, first, tokens, config) for name, timing in timings.items()]
    return Bench(
        rows=rows,
        bare_gflops=bare_products(config, tokens),
        llama_speedup=timings[LLAMA].ratio(first) if LLAMA in timings else None,
        notes=notes,
        settings=_settings(config, batch_size, rounds, compile),
    )


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
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return None


def llama_step(config: ModelConfig, ids: Tensor, compile: bool) -> Callable[[], object]:
    """One step of transformers' Llama of the same shape: the model compiled whole, torch's Adam as it comes."""
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.seq_len,
            rms_norm_eps=config.eps,
            tie_word_embeddings=config.tie,
            use_cache=False,
        )
    )
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        run(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


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


def _row(name: str, timing: Timing, first: Timing, tokens: int, config: ModelConfig) -> Row:
    rate = tokens / timing.seconds
    flops = account(replace(config, scheme="prenorm")).flops_per_token
    return Row(name, rate, timing.ratio(first), timing.cpu_ratio(first), flops * rate / 1e9)


def _has_transformers(notes: list[str]) -> bool:
    found = importlib.util.find_spec("transformers") is not None
    if not found:
        notes.append("transformers is not installed: no Llama in this run (pip install 'layerrope[hf]')")
    return found


def _settings(config: ModelConfig, batch_size: int, rounds: int, compile: bool) -> dict[str, object]:
    shape = {k: getattr(config, k) for k in ("n_layer", "n_head", "d_model", "d_ff", "vocab_size", "seq_len")}
    where = {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}
    return {**shape, "batch_size": batch_size, "rounds": rounds, "compile": compile, "dtype": "fp32", **where}
