"""Vision Transformers: counts, both-ways attention, every scheme, stochastic depth, images, training on real digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import role_of
from torch._dynamo.testing import CompileCounter

from layerrope.errors import InputError
from layerrope.scheme_table import schemes
from layerrope.training.optim import Optimizers
from layerrope.vision.images import ImageConfig, load_images
from layerrope.vision.vit import ViT, ViTConfig, drop_path, vit_tiers

TINY = ViTConfig(image_size=8, patch_size=4, n_class=5, n_layer=4, n_head=2, d_model=16, d_ff=24, init_std=0.2)
LOOKING_BOTH_WAYS = [name for name in schemes if name != "xhc"]


def perturbed(scheme: str, **changes: Any) -> ViT:
    model = ViT(replace(TINY, scheme=scheme, **changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model


def pictures(n: int, size: int = 8, channels: int = 1) -> torch.Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(0))


# ---------------------------------------------------------------------------------------------------------- the model
@pytest.mark.parametrize(("tier", "total"), [("deit-ti", 5_717_416), ("deit-s", 22_050_664), ("deit-b", 86_567_656)])
def test_totals_of_deit(tier: str, total: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(vit_tiers[tier]).parameters()) == total


@pytest.mark.parametrize("tier", ["deit-ti", "deit-s"])
def test_layerrope_and_layerscale_counts(tier: str) -> None:
    config = vit_tiers[tier]
    d, L = config.d_model, config.n_layer

    def extra(scheme: str) -> int:
        with torch.device("meta"):
            models = (ViT(replace(config, scheme=scheme)), ViT(config))
        a, b = (sum(p.numel() for p in m.parameters()) for m in models)
        return a - b

    assert extra("layerscale") == 2 * L * d
    assert extra("layerrope") == 4 * d + 16 - 2 * L * d


@pytest.mark.parametrize("scheme", [*LOOKING_BOTH_WAYS, "hc+layerrope", "attnres+layerrope"])
def test_every_scheme_is_alive_and_finite(scheme: str) -> None:
    model = perturbed(scheme)
    model(pictures(6), torch.arange(6) % 5).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert bool(p.grad.any()), name
    assert set(role_of(model)) == {name for name, _ in model.named_parameters()}


def test_attention_looks_both_ways_and_positions_count() -> None:
    model = perturbed("prenorm").double()
    images = pictures(1).double()
    before = model(images)
    for corner in (slice(0, 4), slice(4, 8)):
        changed = images.clone()
        changed[:, :, corner, corner] += 1
        assert not torch.allclose(model(changed), before)
    assert not torch.allclose(model(images.flip(-1)), before)


def test_patches_are_read_row_by_row() -> None:
    model = ViT(TINY)
    images = pictures(2)
    patch = images[1, :, 4:8, 0:4].flatten()  # second row, first column
    expected = model.patch(patch) + model.position[0, 1 + 2]
    torch.testing.assert_close(model.tokens(images)[1, 3], expected)


def test_images_of_another_size_are_refused_with_both_sizes() -> None:
    with pytest.raises(InputError, match=r"\(1, 8, 8\).*\(1, 8, 12\)"):
        ViT(TINY)(torch.zeros(1, 1, 8, 12))
    with pytest.raises(InputError, match="do not divide"):
        replace(TINY, patch_size=3)
    with pytest.raises(InputError, match="earlier positions"):
        ViT(replace(TINY, scheme="xhc"))


def test_meta_build_equals_direct_build() -> None:
    with torch.device("meta"):
        meta = ViT(replace(TINY, scheme="layerrope"))
    meta.to_empty(device="cpu")
    meta.init_weights(3)
    direct = ViT(replace(TINY, scheme="layerrope"), seed=3)
    for (name, a), (_, b) in zip(meta.state_dict().items(), direct.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("scheme", ["layerrope", "keel", "hc"])
def test_number_of_compiled_graphs_does_not_grow_with_depth(scheme: str) -> None:
    torch._dynamo.reset()
    model, counter = ViT(replace(TINY, n_layer=12, scheme=scheme, drop_path=0.1)), CompileCounter()
    for layer in model.layers:
        layer.compile(backend=counter)
    model(pictures(3), torch.arange(3)).backward()
    torch._dynamo.reset()
    assert 1 <= counter.frame_count <= 2


def test_stochastic_depth_keeps_the_mean_and_is_off_in_evaluation() -> None:
    y = torch.ones(40_000, 1, 1)
    torch.manual_seed(0)
    dropped = drop_path(y, torch.tensor(0.8))
    assert set(dropped.flatten().tolist()) == {0.0, 1.25}
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)
    model, plain = perturbed("prenorm", drop_path=0.5), perturbed("prenorm")
    assert not torch.equal(model(pictures(4)), plain(pictures(4)))
    assert torch.equal(model.eval()(pictures(4)), plain(pictures(4)))


def test_label_smoothing_is_for_training_alone() -> None:
    model, plain = perturbed("prenorm", label_smoothing=0.1), perturbed("prenorm")
    labels = torch.arange(4) % 5
    assert model(pictures(4), labels) != plain(pictures(4), labels)
    assert model.eval()(pictures(4), labels) == plain(pictures(4), labels)


# -------------------------------------------------------------------------------------------------------------- images
def test_digits_are_there_and_split_without_overlap() -> None:
    data = load_images(ImageConfig())
    assert (data.n_class, data.image_shape) == (10, (1, 8, 8))
    held = torch.cat([x for x, _ in data.eval_batches(100)])
    assert (data.n_train, len(held)) == (1438, 359)
    train = torch.cat([data.batch(i, 719)[0] for i in range(2)])
    rows = {tuple(x.flatten().tolist()) for x in train}
    assert len(rows) > 1400
    assert sum(tuple(x.flatten().tolist()) in rows for x in held) <= 5  # equal drawings, not shared images
    assert abs(float(train.mean())) < 1e-4
    assert float(train.std()) == pytest.approx(1, abs=1e-3)


def test_batches_are_a_function_of_the_step_and_of_no_split_over_ranks() -> None:
    data = load_images(ImageConfig(shift=1, flip=True))
    x, y = data.batch(40, 64, seed=3)
    again, _ = data.batch(40, 64, seed=3)
    assert torch.equal(x, again)
    parts = [data.batch(40, 64, seed=3, rank=r, world=4) for r in range(4)]
    assert torch.equal(torch.cat([p[0] for p in parts]), x)
    assert torch.equal(torch.cat([p[1] for p in parts]), y)
    assert not torch.equal(data.batch(40, 64, seed=4)[0], x)
    with pytest.raises(InputError, match="ranks"):
        data.batch(0, 10, world=3)


def test_moves_shift_by_whole_pixels_and_mirror() -> None:
    plain, moved = load_images(ImageConfig()), load_images(ImageConfig(shift=1, flip=True))
    for a, b in zip(plain.batch(0, 50)[0], moved.batch(0, 50)[0], strict=True):
        choices = [
            torch.nn.functional.pad(picture, (1, 1, 1, 1))[:, y : y + 8, x : x + 8]
            for picture in (a, a.flip(-1))
            for y in range(3)
            for x in range(3)
        ]
        assert any(torch.equal(b, choice) for choice in choices)


def test_array_files_are_read_and_bad_ones_refused(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 6, 6), dtype=np.uint8)
    labels = np.arange(40) % 4
    path = tmp_path / "own.npz"
    np.savez(path, images=images, labels=labels)
    data = load_images(ImageConfig(str(path), val_fraction=0.25))
    assert (data.n_class, data.image_shape, data.n_train) == (4, (1, 6, 6), 30)

    def refused(says: str, **arrays: Any) -> None:
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=says):
            load_images(ImageConfig(str(path)))

    refused("no array 'labels'", images=images)
    refused("square", images=images[:, :5], labels=labels)
    refused("uint8", images=images.astype(float), labels=labels)
    refused("labels", images=images, labels=labels[:-1])
    refused("count from 0", images=images, labels=labels - 1)
    refused("cannot read", images=np.array([{}], dtype=object), labels=labels)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"is no \.npz file"):
        load_images(ImageConfig(str(path)))
    with pytest.raises(InputError, match="no images at"):
        load_images(ImageConfig(str(tmp_path / "absent")))


def test_learns_digits() -> None:
    """A two-layer LayerRoPE model reads nine of ten held-out digits after 150 steps."""
    data = load_images(ImageConfig())
    model = ViT(replace(vit_tiers["micro"], n_layer=2, d_model=32, d_ff=64, scheme="layerrope"))
    optimizers = Optimizers(model, "adamw", lr=3e-3, weight_decay=0.05)
    for step in range(150):
        images, labels = data.batch(step, 64)
        model(images, labels).backward()
        optimizers.step(min(1.0, (step + 1) / 20) * (1 - step / 150))
        optimizers.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in data.eval_batches(359))
    assert right / 359 > 0.85
