"""`layerrope.apply` on Vision Transformers of timm: neutral, reversible, folded into stock folders, or refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm", reason="timm is not installed: pip install 'layerrope[vision]'")

import timm
from hf_models import shake

import layerrope
from layerrope import InputError
from layerrope.gains import SITES
from layerrope.interop.timm import export_timm
from layerrope.patching.patching import patch_of

torch.set_num_threads(1)
SMALL = {"depth": 3, "embed_dim": 32, "num_heads": 4, "img_size": 32, "num_classes": 7}
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"patch_size": 8},
    "deit_tiny_distilled_patch16_224": {"patch_size": 8},
    "deit3_small_patch16_224": {"patch_size": 8},
    "vit_small_patch14_dinov2": {"patch_size": 8},
    "eva_giant_patch14_224": {"patch_size": 8},
    "beit_base_patch16_224": {"patch_size": 8},
}
"""Plain; two class tokens; LayerScale in modules; the same without a head's norm; LayerScale in the block; position
bias."""
SCALED = ("deit3_small_patch16_224", "vit_small_patch14_dinov2")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def vit(name: str = "vit_tiny_patch16_224", **more: Any) -> Any:
    """A small random model whose every parameter is away from its start."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **MODELS.get(name, {}), **more}).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
    return model


def run(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IMAGES)


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max().clamp(min=1))


# ---------------------------------------------------------------------------------------------------------- every model
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("init", ["neutral", "paper", "fit"])
def test_gains_go_in_fold_and_come_out(name: str, init: str) -> None:
    model = vit(name)
    before, state = run(model), {k: v.clone() for k, v in model.state_dict().items()}
    spared = model.no_weight_decay()
    patch = layerrope.apply(model, init=init)
    assert patch.sites == tuple(SITES)
    assert (off(before, run(model)) < 1e-6) == (init == "neutral")
    shake(patch.gains, 0.1)
    with_gains = run(model)
    assert off(before, with_gains) > 1e-3
    folded = layerrope.fold(model)
    assert list(folded.state_dict()) == list(state)
    assert folded.no_weight_decay() == spared
    assert off(with_gains, run(folded)) < 5e-6
    layerrope.remove(model)
    assert torch.equal(before, run(model))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.no_weight_decay() == spared


@pytest.mark.parametrize("name", MODELS)
def test_write_gains_go_into_a_layer_scale_where_there_is_one(name: str) -> None:
    model = vit(name)
    shake(layerrope.apply(model, "layerrope:sites=attn_write").gains)
    before, after = model.state_dict(), layerrope.fold(model).state_dict()
    changed = {k.split(".", 2)[2] for k, v in after.items() if not torch.equal(v, before[k])}
    assert changed == ({"ls1.gamma"} if name in SCALED else {"attn.proj.weight", "attn.proj.bias"})


# ------------------------------------------------------------------------------------------------------------- training
def test_features_alone_see_the_gains_as_they_are_now() -> None:
    """`forward_features` does not go through the model's own call."""
    model = vit()
    patch = layerrope.apply(model)
    with torch.no_grad():
        first = model.forward_features(IMAGES)
        shake(patch.gains)
        assert off(first, model.forward_features(IMAGES)) > 1e-3
        assert torch.equal(model.forward_head(model.forward_features(IMAGES)), model(IMAGES))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_timm_s_optimizer_trains_the_gains_without_decay(checkpointing: bool) -> None:
    from timm.optim import create_optimizer_v2

    model = vit().train()
    patch = layerrope.apply(model)
    model.set_grad_checkpointing(checkpointing)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.5)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    gains = dict(patch.gains.named_parameters())
    assert {decay[id(p)] for p in gains.values()} == {0.0}
    assert decay[id(model.blocks[0].mlp.fc1.weight)] == 0.5
    before = {k: p.detach().clone() for k, p in gains.items()}
    for _ in range(3):
        torch.nn.functional.cross_entropy(model(IMAGES), torch.tensor([1, 2])).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(not torch.equal(p, before[k]) for k, p in gains.items())


def test_a_state_dict_carries_the_gains() -> None:
    model = vit()
    shake(layerrope.apply(model, init="paper").gains)
    again = timm.create_model("vit_tiny_patch16_224", **SMALL, patch_size=8).eval()
    layerrope.apply(again, init="paper")
    again.load_state_dict(model.state_dict())
    assert torch.equal(run(model), run(again))


def test_gains_stay_fp32_and_a_copy_is_a_model_of_its_own() -> None:
    model = vit()
    patch = layerrope.apply(model)
    other = copy.deepcopy(model).to(torch.bfloat16)
    assert {p.dtype for p in patch_of(other).gains.parameters()} == {torch.float32}
    assert other(IMAGES.bfloat16()).dtype == torch.bfloat16
    before = run(model)
    shake(patch_of(other).gains)
    assert torch.equal(run(model), before)
    assert other.no_weight_decay() == model.no_weight_decay()
    layerrope.remove(other)
    assert patch_of(model) is patch


# --------------------------------------------------------------------------------------------------------------- export
@pytest.mark.parametrize("name", MODELS)
def test_an_export_is_a_stock_folder_with_a_proof(tmp_path: Path, name: str) -> None:
    model = vit(name)
    shake(layerrope.apply(model).gains, 0.1)
    folder = tmp_path / "a b#1"
    proof = export_timm(model, folder)
    assert proof == json.loads((folder / "proof.json").read_text())
    assert proof["max_difference"] < 1e-5 * proof["largest_logit"]
    assert proof["max_difference_of_files"] == 0
    stock = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert off(run(model), run(stock)) < 5e-6
    with pytest.raises(InputError, match="is there already"):
        export_timm(model, folder)


def test_a_fold_that_is_wrong_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LayerScale of 1e-6 does not hide it."""
    from layerrope import interop

    model = vit("vit_small_patch14_dinov2")
    with torch.no_grad():
        for block in model.blocks:
            block.ls1.gamma.mul_(1e-6)
            block.ls2.gamma.mul_(1e-6)
    shake(layerrope.apply(model).gains)
    fold = interop.timm.fold_patched  # pyright: ignore[reportAttributeAccessIssue]

    def wrong(given: Any) -> Any:
        made = fold(given)
        with torch.no_grad():
            made.blocks[1].ls2.gamma.mul_(1.01)
        return made

    monkeypatch.setattr(interop.timm, "fold_patched", wrong)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InputError, match="first differ at layer 1 "):
        export_timm(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------------- refusals
def test_blocks_that_compute_something_else_are_refused_by_path() -> None:
    from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock

    with pytest.raises(InputError, match=r"blocks\.0 \(ResPostBlock\) is no Pre-Norm block"):
        layerrope.apply(vit(block_fn=ResPostBlock))
    with pytest.raises(InputError, match="no list of equal layers with the norms norm1"):
        layerrope.apply(vit(block_fn=ParallelScalingBlock))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mixer_s32_224", {}, r"blocks\.0 \(MixerBlock\) has no attn"),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "num_heads": (1, 2, 4, 8)}, r"layers\.0\.blocks and"),
        ("samvit_base_patch16_224", {"depth": 1, "embed_dim": 32, "num_heads": 4}, r"blocks\.0 .*be run by itself"),
        ("vit_tiny_patch16_224", {**SMALL, "scale_mlp_norm": True}, r"blocks\.0\.mlp\.norm is a norm whose role"),
        ("resnet10t", {}, "no list of equal layers"),
    ],
)
def test_other_models_of_timm_are_refused_by_path(name: str, options: dict[str, Any], message: str) -> None:
    model = timm.create_model(name, **options)
    names = list(model.state_dict())
    with pytest.raises(InputError, match=message):
        layerrope.apply(model)
    assert list(model.state_dict()) == names


def test_a_model_that_timm_could_not_make_again_is_not_exported(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)
    layerrope.apply(model)
    with pytest.raises(InputError, match=r"not made by timm\.create_model"):
        export_timm(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
