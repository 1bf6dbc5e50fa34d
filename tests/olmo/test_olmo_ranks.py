"""OLMo-core on 1 and 2 gloo ranks against this package's own trainer, from the same weights and the same batches.

Needs the extra `olmo`; docs/engines.md has the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("olmo_core", reason="OLMo-core is not installed: pip install 'layerrope[olmo]'")

from olmo_core.data import NumpyDataLoaderConfig
from olmo_ranks import example

from layerrope.config import tier
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.exporting.export import export
from layerrope.loading import load_lm
from layerrope.text.prepare import prepare
from layerrope.train import train
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import read_metrics

HERE = Path(__file__).parent
T, ROWS, STEPS = 32, 8, 6
SHARED: dict[str, Any] = {
    "tier": "micro-400k",
    "n_layer": 2,
    "seq_len": T,
    "steps": STEPS,
    "batch_size": ROWS,
    "save_every": 3,
    "weights": "layerrope",
    "clip": 0.3,  # the gradients are longer: it bites in every step
    "weight_decay": 0.1,
}
TWO: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "tp": {"tp": 2},
    "checkpointing": {"checkpointing": "full"},
    "accumulation": {"micro_batch": 2},
    "ddp": {"dp": "ddp"},
    "tied": {"tie": True},
    "peri on tp": {"scheme": "layerrope-peri", "tp": 2},
    "vectors on tp": {"scheme": "layerscale:start=0.5+layerrope:schedule=free,gamma=layer", "tp": 2},
    "lns on tp": {"scheme": "lns", "tp": 2},
    "rates": {"scheme": "depth-mup:base=1+layerrope"},
    "resumed": {"stop_at": 3},
}
ONE: dict[str, dict[str, Any]] = {"alone": {"dp": "none"}, "resumed": {}}
NAMES = [*TWO, *(name for name in ONE if name not in TWO)]


def launch(ranks: int, cases: dict[str, dict[str, Any]], folder: Path) -> None:
    """Train `cases` on so many processes of this machine."""
    asked = folder / f"cases-{ranks}.json"
    asked.write_text(json.dumps([{**SHARED, **case, "folder": str(folder / name)} for name, case in cases.items()]))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, str(HERE / "olmo_ranks.py"), str(asked)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every case was trained: on two ranks, then what is left on one."""
    folder = tmp_path_factory.mktemp("olmo")
    launch(2, TWO, folder)
    launch(1, ONE, folder)
    return folder


def losses(run: Path) -> dict[int, tuple[float, float]]:
    """(loss, gradient norm) of every step that OLMo-core logged; the last word on a step counts."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: (row["train/CE loss"], row["optim/total grad norm"]) for row in rows if "train/CE loss" in row}


@dataclass
class Recorded:
    """The batches of OLMo-core's loader, as this package's trainer takes data."""

    config: DataConfig
    batches: list[Tensor]
    vocab_size: int

    def batch(self, step: int, batch_size: int, **where: Any) -> tuple[Tensor, Tensor]:
        ids = self.batches[step]
        assert len(ids) == batch_size
        return ids, torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), dim=1)

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.batch(0, len(self.batches[0]))

    def bits_per_byte(self, nats: float) -> float:
        return nats

    def summary(self) -> dict[str, Any]:
        return {"source_sha256": "recorded"}


def ours(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The metrics of this package's trainer on the same weights and batches."""
    module = example()
    text = prepare(DataConfig(), None)
    run = module.Run(folder=folder, **{**SHARED, **case})
    config = module.model_config(run, text)
    data = module.dataset(text, config, str(folder / "work"))
    loader = NumpyDataLoaderConfig(global_batch_size=ROWS * T, seed=run.seed, work_dir=str(folder / "work")).build(data)
    loader.reshuffle(1)
    batches = [batch["input_ids"].long() for _, batch in zip(range(STEPS), loader, strict=False)]
    settings = TrainConfig(
        model=config,
        data=DataConfig(seq_len=T),
        steps=STEPS,
        batch_size=ROWS,
        optimizer="adamw",
        lr=run.lr,
        weight_decay=run.weight_decay,
        clip=run.clip,
        log_every=1,
        checkpoint_every=0,
    )
    train(settings, folder / "ours", data=Recorded(settings.data, batches, config.vocab_size), threads=1)  # type: ignore[arg-type]
    return read_metrics(folder / "ours" / "metrics.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_our_own_trainer(name: str, runs: Path, tmp_path: Path) -> None:
    case = {k: v for k, v in (TWO | ONE)[name].items() if k in {"scheme", "tie"}}
    theirs, rows = losses(runs / name), ours(case, tmp_path)
    assert sorted(theirs) == [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        loss, norm = theirs[row["step"]]
        assert loss == pytest.approx(row["loss"], rel=1e-5)
        assert norm == pytest.approx(row["grad_norm"], rel=1e-4)
        assert norm > SHARED["clip"]


def test_a_run_resumed_on_one_rank_is_the_run_on_two(runs: Path) -> None:
    whole, resumed = losses(runs / "fsdp"), losses(runs / "resumed")
    for step in range(1, STEPS + 1):
        assert resumed[step] == pytest.approx(whole[step], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_become_ours_and_stock_folders_with_a_proof(name: str, runs: Path, tmp_path: Path) -> None:
    from layerrope.interop.olmo_core import olmo_config
    from layerrope.interop.olmo_weights import load_weights, prove

    loaded = load_lm(runs / name / f"step{STEPS}")
    case = (TWO | ONE)[name]
    assert loaded.model.config.scheme == case.get("scheme", "layerrope")
    assert loaded.tokenizer is not None
    assert export(loaded.model, tmp_path / "stock").proof["passed"]
    assert export(loaded.model, tmp_path / "own", as_="layerrope").proof["passed"]
    back = olmo_config(loaded.model.config).build()
    load_weights(back, loaded.model)
    assert prove(back, loaded.model)["first"] is None


def test_training_moved_every_parameter(runs: Path) -> None:
    from layerrope.model import LM

    trained = load_lm(runs / "fsdp" / f"step{STEPS}").model
    fresh = LM(replace(tier("micro-400k"), **{k: getattr(trained.config, k) for k in ("n_layer", "seq_len", "scheme")}))
    for (name, a), (_, b) in zip(trained.named_parameters(), fresh.named_parameters(), strict=True):
        assert not torch.equal(a, b), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"tp": 3}, "tp 3 does not divide the 2 devices"),
        ({"batch_size": 5}, "batch_size 5 cannot be shared by 2 devices"),
        ({"batch_size": 5, "tp": 2}, ""),
        ({"micro_batch": 3}, "micro_batch 3 does not divide the 4 sequences"),
    ],
)
def test_the_example_refuses_what_devices_cannot_share(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    olmo = example()
    run = olmo.Run(tmp_path, **{"batch_size": ROWS} | changes)
    if not message:
        assert olmo.sequences_per_device(run) == 5
        return
    with pytest.raises(InputError, match=message):
        olmo.sequences_per_device(run)
