"""Parameters of every scheme on the paper's ladder, counted by building on the meta device (no formula in the code)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layerrope.config import ModelConfig, tiers
from layerrope.model import LM

TIERS = ("60m", "130m", "350m", "1b", "7b")
TOTALS = (58_073_600, 134_105_856, 367_969_280, 1_339_082_752, 6_738_415_616)

EXTRA: dict[str, tuple[int, ...]] = {
    "postnorm": (-512, -768, -1_024, -2_048, -4_096),
    "deepnorm": (-512, -768, -1_024, -2_048, -4_096),
    "deepnorm:final_norm=on": (0, 0, 0, 0, 0),
    "prenorm-scaledinit": (0, 0, 0, 0, 0),
    "lns": (0, 0, 0, 0, 0),
    "mixln": (0, 0, 0, 0, 0),
    "depth-mup": (0, 0, 0, 0, 0),
    "completep": (0, 0, 0, 0, 0),
    "perinorm": (8_192, 18_432, 49_152, 98_304, 262_144),
    "layerscale": (8_192, 18_432, 49_152, 98_304, 262_144),
    "keel": (7_680, 17_664, 48_128, 96_256, 258_048),
    "rezero": (8 - 8_192, 12 - 18_432, 24 - 49_152, 24 - 98_304, 32 - 262_144),
    "hc:dynamic=off": (384, 576, 1_152, 1_152, 1_536),
    "hc": (57_760, 129_648, 345_312, 689_376, 1_836_672),
    "mhc": (786_864, 1_770_120, 4_719_888, 9_438_480, 25_167_552),
    "xhc": tuple(n * (1256 * d + 90) for n, d in ((8, 512), (12, 768), (24, 1024), (24, 2048), (32, 4096))),
    "attnres": (16_384, 36_864, 98_304, 196_608, 524_288),
    "attnres:blocks=8": (16_384, 36_864, 98_304, 196_608, 524_288),
    "nanochat": (16, 24, 48, 48, 64),
    "layerrope": (-6_128, -15_344, -45_040, -90_096, -245_744),
}
"""Beyond Pre-Norm at each tier."""


def count(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in LM(config).parameters())


def test_prenorm_totals_of_the_ladder() -> None:
    assert tuple(count(tiers[name]) for name in TIERS) == TOTALS
    assert count(tiers["250m"]) == 250_038_656
    assert count(tiers["500m"]) == 553_811_200


@pytest.mark.parametrize("spec", EXTRA)
def test_extra_parameters(spec: str) -> None:
    totals = (count(replace(tiers[name], scheme=spec)) for name in TIERS)
    assert tuple(n - base for n, base in zip(totals, TOTALS, strict=True)) == EXTRA[spec]


def test_dynamic_connections_of_the_paper_with_a_norm_that_has_a_bias() -> None:
    """gamma and beta of a LayerNorm, as in the paper's Algorithm 2: 60m to 1b of the ladder."""

    def own(name: str) -> int:
        with torch.device("meta"):
            model = LM(replace(tiers[name], scheme="hc", norm="layernorm"))
        return sum(p.numel() for name, p in model.named_parameters() if ".residual." in name)

    assert [own(name) for name in TIERS[:4]] == [65_952, 148_080, 394_464, 787_680]


@pytest.mark.parametrize("n_layer", [1, 4, 24])
def test_keel_has_4n_minus_1_norms_before_the_final_one(n_layer: int) -> None:
    config = ModelConfig(n_layer=n_layer, scheme="keel")
    with torch.device("meta"):
        names = [name for name, _ in LM(config).named_parameters() if name.startswith("layers.")]
    assert sum("norm" in name or "branch.pre" in name for name in names) == 4 * n_layer - 1
