"""Parameters and FLOPs: the published counts, from meta builds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layerrope import InputError, ModelConfig, account, tiers
from layerrope.accounting import count_parameters

LADDER = {
    "60m": 58_073_600,
    "130m": 134_105_856,
    "350m": 367_969_280,
    "500m": 553_811_200,
    "1b": 1_339_082_752,
    "7b": 6_738_415_616,
    "250m": 250_038_656,
    "d128-L512": 111_083_648,
}


@pytest.mark.parametrize(("tier", "parameters"), LADDER.items())
def test_parameters_of_the_ladder(tier: str, parameters: int) -> None:
    assert count_parameters(tiers[tier])[0] == parameters


def test_a_tier_s_name_is_no_configuration() -> None:
    with pytest.raises(InputError, match=r"such as layerrope\.tiers\['1b'\]: got '7b'"):
        account("7b")  # type: ignore[arg-type]


def test_layerrope_at_1b_has_8208_gain_parameters_for_98304() -> None:
    plain, gained = (count_parameters(replace(tiers["1b"], scheme=s))[0] for s in ("prenorm", "layerrope"))
    assert plain - gained == 98_304 - 8_208 == 90_096


def test_a_free_gamma_per_layer_at_130m() -> None:
    shared, free = (
        count_parameters(replace(tiers["130m"], scheme=s))[0] for s in ("layerrope", "layerrope:gamma=layer")
    )
    assert free - shared == 33_792


@pytest.mark.parametrize(("tier", "flops", "share"), [("60m", 256_429_056, 0.000128), ("1b", 7_716_777_984, 0.000051)])
def test_flops_per_token_and_the_gates_share(tier: str, flops: int, share: float) -> None:
    config = replace(tiers[tier], scheme="layerrope")
    counted = account(config)
    assert counted.flops_per_token == flops
    assert counted.gate_flops_per_token == 8 * config.n_layer * config.d_model
    assert counted.gate_flops_share == pytest.approx(share, abs=1e-6)


def test_flops_of_the_papers_1b_run() -> None:
    assert account(tiers["1b"]).training_flops(80 * LADDER["1b"]) == pytest.approx(8.27e20, rel=1e-3)


def test_schemes_without_a_gate_have_none() -> None:
    for scheme in ("prenorm", "lns", "perinorm", "layerrope-peri", "layerrope:sites=read"):
        assert account(ModelConfig(scheme=scheme)).gate_flops_per_token == 0


def test_tied_embeddings_are_counted_once() -> None:
    untied, tied = (account(ModelConfig(tie=tie)) for tie in (False, True))
    assert untied.parameters - tied.parameters == 257 * 64
    assert untied.flops_per_token == tied.flops_per_token


def test_activation_memory_scales_with_width_not_with_vocabulary_per_layer() -> None:
    small, deep = ModelConfig(n_layer=2), ModelConfig(n_layer=4)
    wide = replace(small, vocab_size=2 * small.vocab_size)
    per_layer = account(deep).activation_bytes_per_token - account(small).activation_bytes_per_token
    widths = 11 * 64 + 4 * 176  # of the stream and the heads; of gate, silu, up and their product
    assert per_layer / 2 == 4 * (widths + 2 + 2)  # and two roots of norms, and a log-sum for each of two heads
    assert account(wide).activation_bytes_per_token - account(small).activation_bytes_per_token == 4 * 257


def test_a_scheme_that_only_the_full_depth_satisfies() -> None:
    counted = account(ModelConfig(n_layer=6, scheme="attnres:size=6"))
    assert counted.activation_bytes_per_token > account(ModelConfig(n_layer=6)).activation_bytes_per_token / 2
    assert counted.gate_flops_per_token == 0
