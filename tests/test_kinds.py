"""The trainer on looped decoders and Vision Transformers: runs, resuming, records, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.looping.looped import LoopedConfig
from layerrope.train import train
from layerrope.training.evaluation import accuracy, evaluate
from layerrope.training.kinds import LoopedTrainConfig, VisionTrainConfig
from layerrope.training.recipe import TrainConfig, from_json, run_key, to_json
from layerrope.training.run_folder import read_metrics
from layerrope.training.session import Report
from layerrope.vision.images import ImageConfig, load_images
from layerrope.vision.vit import ViT, vit_tiers

torch.set_num_threads(1)

VISION = VisionTrainConfig(
    model=replace(vit_tiers["micro"], n_layer=2, d_model=16, d_ff=32, scheme="layerrope", drop_path=0.1),
    data=ImageConfig(shift=1),
    steps=12,
    batch_size=32,
    lr=5e-3,
    optimizer="adamw",
    weight_decay=0.05,
    log_every=4,
    checkpoint_every=6,
)
LOOPED = LoopedTrainConfig(
    model=LoopedConfig(
        prelude=1, core=1, coda=1, loops=3, n_head=2, d_model=16, d_ff=32, seq_len=32, scheme="layerrope"
    ),
    data=DataConfig(seq_len=32, max_docs=4, max_val_tokens=200),
    steps=12,
    batch_size=4,
    lr=5e-3,
    log_every=4,
    checkpoint_every=6,
)
RUNS = pytest.mark.parametrize("config", [VISION, LOOPED], ids=["vision", "looped"])


def until(step: int) -> tuple[Callable[[Report], None], Callable[[], bool]]:
    """A progress callback and a stop that fires after `step` updates."""
    seen = [0]

    def progress(report: Report) -> None:
        seen[0] = report.step

    return progress, lambda: seen[0] >= step


@RUNS
def test_trains_and_resumes_bit_for_bit(config: TrainConfig, tmp_path: Path) -> None:
    whole = train(config, tmp_path / "whole")
    progress, stop = until(8)
    cut = train(config, tmp_path / "cut", progress=progress, stop=stop)
    assert (whole.status, cut.status) == ("done", "interrupted")
    resumed = train(config, tmp_path / "cut")
    assert resumed.val_loss == whole.val_loss
    assert resumed.train_loss == whole.train_loss
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"] + 0.2
    assert ("val_accuracy" in rows[-1]) == isinstance(config, VisionTrainConfig)


@RUNS
def test_micro_batches_do_not_change_the_loss(config: TrainConfig, tmp_path: Path) -> None:
    """One step, since later draws differ; the looped model's first state is drawn even then, hence its tolerance."""
    plain = replace(config, steps=1, model=replace(config.model, **({"drop_path": 0.0} if config is VISION else {})))
    if isinstance(config, LoopedTrainConfig):
        plain = replace(plain, model=replace(plain.model, loops=1, grad_loops=1))
    losses = [
        train(replace(plain, micro_batch=m), tmp_path / str(m)).train_loss for m in (None, config.batch_size // 2)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2 if isinstance(config, LoopedTrainConfig) else 1e-5)


@RUNS
def test_config_survives_json_and_has_a_key_of_its_own(config: TrainConfig, tmp_path: Path) -> None:
    data = json.loads(json.dumps(to_json(config)))
    assert from_json(type(config), data) == config
    assert data["model"]["kind"] in {"vit", "looped"}
    other = replace(config, model=replace(config.model, scheme="prenorm"))
    assert run_key(config) != run_key(other)
    with pytest.raises(InputError, match="unknown field in config"):
        from_json(TrainConfig, data)


def test_models_of_two_kinds_never_share_a_key() -> None:
    made = [TrainConfig(), LoopedTrainConfig(), VisionTrainConfig()]
    assert len({run_key(config) for config in made}) == 3


def test_accuracy_counts_every_held_out_image_whatever_the_batch() -> None:
    data = load_images(ImageConfig())
    model = ViT(vit_tiers["micro"])
    found = {round(accuracy(model, data.eval_batches(n)), 12) for n in (7, 100, 359)}
    assert len(found) == 1
    losses = [evaluate(model, data.eval_batches(n)) for n in (7, 359)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": replace(VISION.model, image_size=16)}, r"\(1, 8, 8\).*\(1, 16, 16\)"),
        ({"model": replace(VISION.model, n_class=9)}, "10 classes"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        train(replace(VISION, **change), tmp_path / "run")
    with pytest.raises(InputError, match="16 pixels"):
        VisionTrainConfig(model=vit_tiers["micro"], data=ImageConfig("somewhere", image_size=16))


@RUNS
def test_recomputed_activations_give_the_same_losses(config: TrainConfig, tmp_path: Path) -> None:
    plain = train(replace(config, steps=3), tmp_path / "plain")
    recomputed = train(replace(config, steps=3, checkpointing=True), tmp_path / "recomputed")
    assert recomputed.train_loss == pytest.approx(plain.train_loss, rel=1e-5)
