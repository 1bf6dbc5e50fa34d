"""A made-up data set and a tiny run for the trainer's tests.

As a program, `python toy_run.py KILLS FOLDER` trains the same run KILLS times, killing the process each time at a
random moment, then once to the end.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.train import Report, Result, TrainConfig, train

V, T = 31, 8


@dataclass
class Toy:
    """A walk over the ids in steps of one or two; every fifth target is ignored. A batch depends on its step alone."""

    config: DataConfig
    vocab_size: int = V

    def windows(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        walk = torch.randint(1, 3, (rows, T + 1), generator=g).cumsum(1)
        ids = (walk + torch.randint(V, (rows, 1), generator=g)) % V
        targets = ids[:, 1:].clone()
        targets[:, ::5] = -100
        return ids[:, :-1].contiguous(), targets

    def batch(self, step: int, batch_size: int, *, seed: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        return self.windows(batch_size, 1000 * seed + step)

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        ids, targets = self.windows(10, 10**6)
        return iter(zip(ids.split(batch_size), targets.split(batch_size), strict=True))

    def bits_per_byte(self, nats: float) -> float:
        return nats / 0.6931471805599453

    def summary(self) -> dict[str, Any]:
        return {"source_sha256": "toy"}


def toy_config(**changes: Any) -> TrainConfig:
    """Two narrow layers, 12 steps; `changes` of the model's fields go to the model."""
    model = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=16, vocab_size=V, seq_len=T, scheme="layerrope")
    own = {name: changes.pop(name) for name in list(changes) if hasattr(model, name)}
    base = TrainConfig(model=model, data=DataConfig(seq_len=T), steps=12, batch_size=4, log_every=1, lr=1e-2)
    return replace(base, model=replace(model, **own), **changes)


def run(config: TrainConfig, path: Path, notes: list[str] | None = None, **options: Any) -> Result:
    """Train on the toy data; remarks are added to `notes`."""

    def progress(report: Report) -> None:
        if report.kind == "note" and notes is not None:
            notes.append(report.text)

    options = {"data": Toy(config.data), "progress": progress} | options
    return train(config, path, **options)


def tensors(path: Path, step: int = 12) -> dict[str, Tensor]:
    """Everything in a checkpoint: weights, optimiser, random state."""
    files = sorted((path / "checkpoints" / f"step-{step}").glob("*.safetensors"))
    return {f"{file.stem}.{name}": t for file in files for name, t in load_file(file).items()}


def curve(path: Path) -> list[tuple[int, float, float, float | None]]:
    """(step, loss, gradient norm, validation loss) of every line of metrics."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in rows]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Equal names and equal bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def until(steps: int) -> Any:
    """A `stop` that says yes after so many steps of this session."""
    left = iter(range(steps - 1))
    return lambda: next(left, None) is None


def kill_config() -> TrainConfig:
    return toy_config(steps=70, checkpoint_every=1, eval_every=7, micro_batch=2)


def held(steps: int) -> Any:
    """A `stop` that never says yes, but holds its process after so many steps: a kill comes before the end."""
    left = iter(range(steps - 1))
    return lambda: next(left, None) is None and time.sleep(600)


def await_change(folder: Path, limit: float = 20) -> None:
    """Return when a name in `folder` changes: the child has begun to save."""
    before, end = sorted(folder.glob(".*")) + sorted(folder.glob("*")), time.monotonic() + limit
    while time.monotonic() < end and sorted(folder.glob(".*")) + sorted(folder.glob("*")) == before:
        time.sleep(0.001)


def main(kills: int, folder: Path) -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # which optimisers load: once here instead of in every child
    rng = random.Random(kills)
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                stop = held(2) if attempt < kills else None
                code = int(run(kill_config(), folder, stop=stop).status != "done")
            finally:
                os._exit(code)
        if attempt < kills:
            await_change(folder / "checkpoints")
            time.sleep(rng.uniform(0, 0.05) * (attempt % 2))  # every other kill falls into the save just begun
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        reached = sorted(int(p.name.split("-")[1]) for p in folder.glob("checkpoints/step-*"))
        litter = len(list(folder.glob("checkpoints/.*")))
        print(json.dumps({"status": status, "reached": reached, "litter": litter}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
