"""What a training step holds in memory at its most: measured where tensors are allocated, one scheme at a time.

Every allocation of torch's allocator is counted, temporaries inside operators and compiled code too; the process's own
size, which depends on what else it did, is not. So the figure is the same on a busy machine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from layerrope.bench.step import contender_step, settings_of
from layerrope.config import ModelConfig


@dataclass(frozen=True)
class Peak:
    """One contender's memory."""

    name: str
    state_bytes: int
    """held between steps: weights and Adam's two moments"""
    step_bytes: int
    """on top of that at the step's most: activations, gradients, temporaries"""
    ratio: float
    """the sum relative to the first contender's"""


@dataclass(frozen=True)
class Memory:
    """The peaks of all contenders, and where they were measured."""

    rows: list[Peak]
    notes: list[str]
    settings: dict[str, object]


def bench_memory(
    config: ModelConfig,
    schemes: Sequence[str],
    peers: Sequence[str] = (),
    *,
    batch_size: int,
    compile: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Memory:
    """Peak memory of one training step (forward, backward, fused Adam) of each scheme and peer; see `bench.step`."""
    ids = torch.randint(0, config.vocab_size, (batch_size, config.seq_len))
    notes: list[str] = []
    found: dict[str, tuple[int, int]] = {}
    for name in (*schemes, *peers):
        progress(f"measuring the memory of {name}")
        torch._dynamo.reset()  # each is alone: no compiled code of another is kept
        before = held_bytes()
        step = contender_step(name, config, ids, compile, notes)
        if step is None:
            continue
        step()
        found[name] = held_bytes() - before, step_peak(step)
        del step
    first = sum(found[schemes[0]])
    rows = [Peak(name, state, peak, (state + peak) / first) for name, (state, peak) in found.items()]
    return Memory(rows, notes, settings_of(config, batch_size, compile))


def held_bytes() -> int:
    """Bytes of all CPU tensors that are alive, a storage that several share counted once.

    The compiler's stand-ins for tensors have no memory and are of types of their own, so they are not counted.
    """
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    here = [t.untyped_storage() for t in tensors if t.device.type == "cpu" and t.layout == torch.strided]
    return sum({storage._cdata: storage.nbytes() for storage in here}.values())


def step_peak(step: Callable[[], object]) -> int:
    """The most bytes allocated on the CPU at once while `step` runs, beyond what was there before."""
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        step()
    result: Any = None if found.profiler is None else found.profiler.kineto_results
    events = [] if result is None else [e for e in result.events() if e.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes), default=0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the profiler's C++ side writes to stderr when it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
