"""Gains at the four sites and the stream's size, against the models they are read from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.gains import SITES, gain_table
from layerrope.model import LM
from layerrope.scheme_table import schemes
from layerrope.stream import base_angles, site_gains, stream_rms, trained_model
from layerrope.train import train
from layerrope.training.recipe import TrainConfig

SMALL = ModelConfig(n_layer=3, n_head=2, d_model=16, d_ff=24, vocab_size=31, seq_len=8)
IDS = torch.arange(24).reshape(3, 8)


def model(scheme: str) -> LM:
    return LM(replace(SMALL, scheme=scheme))


def test_layerrope_s_gains_are_its_equation() -> None:
    gains = site_gains(model("layerrope"))
    assert tuple(gains) == ("attn_read", "attn_write", "mlp_read", "mlp_write")
    for rows in gains.values():
        torch.testing.assert_close(rows, gain_table(torch.ones(16), 3))


def test_lns_scales_the_reads_and_leaves_the_writes() -> None:
    made = model("lns")
    with torch.no_grad():
        made.layers[1].get_parameter("mlp.branch.pre.weight").fill_(3.0)
    gains = site_gains(made)
    assert set(gains) == {"attn_read", "mlp_read"}
    torch.testing.assert_close(gains["mlp_read"][:, 0], torch.tensor([1.0, 3 / math.sqrt(2), 1 / math.sqrt(3)]))


@pytest.mark.parametrize(("scheme", "sites"), [("prenorm", 2), ("perinorm", 4), ("postnorm", 0), ("layerscale", 4)])
def test_only_sites_with_a_gain_are_there(scheme: str, sites: int) -> None:
    assert len(site_gains(model(scheme))) == sites


def test_the_base_angle_is_one_radian_at_the_start_and_absent_without_rotation() -> None:
    angles = base_angles(model("layerrope"))
    assert tuple(angles) == SITES
    torch.testing.assert_close(angles["attn_read"], torch.rad2deg(torch.arange(1.0, 4.0) ** -0.5))
    assert base_angles(model("layerrope:rotation=off")) == base_angles(model("prenorm")) == {}


def test_the_stream_is_the_plain_loop_s() -> None:
    made = model("prenorm")
    sizes = stream_rms(made, IDS)
    h = made.embed(IDS)
    assert sizes[0].item() == pytest.approx(h.square().mean().sqrt().item())
    assert sizes[-1].item() == pytest.approx(made.hidden(IDS).square().mean().sqrt().item())
    assert len(sizes) == 7


@pytest.mark.parametrize("scheme", sorted(schemes))
def test_every_scheme_has_a_stream_and_its_hooks_are_gone_afterwards(scheme: str) -> None:
    made = model(scheme)
    before = made(IDS)
    sizes = stream_rms(made, IDS)
    assert len(sizes) == 7
    assert torch.isfinite(sizes).all()
    assert all(rows.shape == (3, 16) for rows in site_gains(made).values())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.modules())
    assert torch.equal(made(IDS), before)


@pytest.mark.parametrize("tie", [False, True])
def test_a_run_s_model_is_read_back(tmp_path: Path, tie: bool) -> None:
    config = TrainConfig(
        model=replace(SMALL, vocab_size=257, tie=tie, scheme="layerrope"),
        data=DataConfig(seq_len=8),
        steps=3,
        batch_size=2,
        eval_tokens=64,
    )
    result = train(config, tmp_path, threads=1)
    made, read = trained_model(tmp_path)
    assert read == config
    assert result.status == "done"
    assert not torch.equal(made.embed.weight, LM(config.model).embed.weight)
    assert (made.head.weight is made.embed.weight) == tie


def test_a_run_without_a_checkpoint_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        trained_model(tmp_path)
