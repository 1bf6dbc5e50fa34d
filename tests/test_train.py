"""The training loop: the same numbers however a run is cut, split, evaluated or resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.train import Report, TrainConfig, run_key, train

V, T = 31, 8
torch.set_num_threads(1)


@dataclass
class Toy:
    """A data set made up on the spot: token t + 1 follows t, with some noise; every fifth target is ignored."""

    config: DataConfig
    vocab_size: int = V

    def _windows(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        walk = torch.randint(1, 3, (rows, T + 1), generator=g).cumsum(1)
        ids = (walk + torch.randint(V, (rows, 1), generator=g)) % V
        targets = ids[:, 1:].clone()
        targets[:, ::5] = -100
        return ids[:, :-1].contiguous(), targets

    def batch(self, step: int, batch_size: int, *, seed: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        return self._windows(batch_size, 1000 * seed + step)

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        ids, targets = self._windows(10, 10**6)
        return iter(zip(ids.split(batch_size), targets.split(batch_size), strict=True))

    def bits_per_byte(self, nats: float) -> float:
        return nats / 0.6931471805599453

    def summary(self) -> dict[str, Any]:
        return {"source_sha256": "toy"}


def toy_config(**changes: Any) -> TrainConfig:
    model = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=16, vocab_size=V, seq_len=T, scheme="layerrope")
    base = TrainConfig(model=model, data=DataConfig(seq_len=T), steps=12, batch_size=4, log_every=1, lr=1e-2)
    return replace(base, **changes)


def run(config: TrainConfig, path: Path, **options: Any) -> Any:
    notes: list[Report] = []
    return train(config, path, data=Toy(config.data), progress=notes.append, **options)  # type: ignore[arg-type]


def weights(path: Path, step: int = 12) -> dict[str, Tensor]:
    folder = path / "checkpoints" / f"step-{step}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def losses(path: Path) -> list[tuple[int, float, float]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["grad_norm"]) for row in rows]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_run_learns_and_is_read_when_done(tmp_path: Path) -> None:
    result = run(toy_config(steps=60), tmp_path)
    curve = losses(tmp_path)
    assert result.status == "done"
    assert result.step == 60
    assert curve[-1][1] < curve[0][1] - 0.3
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert run(toy_config(steps=60), tmp_path) == result
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_cut_and_resumed_is_the_same_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    config = toy_config(optimizer=optimizer, weight_decay=0.1)
    whole = run(config, tmp_path / "whole")
    for count in (3, 4, 5, 100):
        left = iter(range(count))
        cut = run(config, tmp_path / "cut", stop=lambda left=left: next(left, None) is None)
    assert cut.status == "done"
    assert (cut.train_loss, cut.val_loss, cut.tokens) == (whole.train_loss, whole.val_loss, whole.tokens)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_folder_with_another_config_is_refused_by_field(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    with pytest.raises(InputError, match=r"lr is 0.01 there, 0.02 here"):
        run(toy_config(lr=2e-2), tmp_path)
    with pytest.raises(InputError, match=r"steps is 12 there, 24 here.*schedule"):
        run(toy_config(steps=24), tmp_path)
    run(toy_config(log_every=7), tmp_path)


def test_the_key_names_the_numbers() -> None:
    assert run_key(toy_config()) == run_key(toy_config(log_every=3, checkpoint_every=1))
    assert run_key(toy_config()) != run_key(toy_config(seed=1))
