"""The training loop of the lessons, in the open: lesson 1 explains it line by line, the others call it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from layerrope import LM, ModelConfig
from layerrope.data import DataConfig, Dataset, load_data
from layerrope.training.evaluation import evaluate


@dataclass(frozen=True)
class Trained:
    """A model after its training, and how it went."""

    model: LM
    losses: tuple[float, ...]
    """of each step's batch before it was learnt from, nats per token"""
    validation: float
    """on held-out text, nats per token"""

    def curve(self, name: str, every: int = 10) -> list[dict[str, float | str]]:
        """Rows (step, loss, model) for a chart, the loss averaged over `every` steps."""
        starts = range(0, len(self.losses) - every + 1, every)
        return [
            {"step": s + every, "loss": sum(self.losses[s : s + every]) / every, "model": name} for s in starts
        ] or [{"step": len(self.losses), "loss": self.losses[-1], "model": name}]


def text(seq_len: int) -> Dataset:
    """The embedded corpus as bytes, in windows of `seq_len`."""
    return load_data(DataConfig(seq_len=seq_len))


def rate(step: int, steps: int, peak: float) -> float:
    """The learning rate: up over the first tenth of the steps, then straight down to a tenth of its peak."""
    rise = max(1, steps // 10)
    return peak * (step + 1) / rise if step < rise else peak * (1 - 0.9 * (step - rise) / max(1, steps - rise))


def train(
    config: ModelConfig, data: Dataset, steps: int, *, lr: float = 3e-3, batch_size: int = 16, seed: int = 0
) -> Trained:
    """A fresh model of `config`, trained with Adam for `steps` batches. The same call gives the same numbers."""
    model = LM(config, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, lr)
        ids, targets = data.batch(step, batch_size, seed=seed)
        loss = model(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(model, tuple(losses), validation(model, data, steps))


def validation(model: LM, data: Dataset, steps: int) -> float:
    """Mean loss on held-out text in nats; on less of it after a short training, which deserves no better."""
    return evaluate(model, data.eval_batches(16, min(16_384, 128 * steps)))
