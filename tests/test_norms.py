"""Norms, gates and rotary positions: definitions, symmetries, precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerrope.norms import Gate, LayerNorm, RMSNorm, layer_norm, rms_norm
from layerrope.rotary import halves, pairs, rotary_table, rotate, rotate_halves


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestRMSNorm:
    @given(st.floats(1e-2, 1e3), st.integers(1, 64))
    @settings(max_examples=40, deadline=None)
    def test_scaling_the_input_changes_nothing(self, c: float, d: int) -> None:
        x = randn(3, d, seed=d) + 0.5
        torch.testing.assert_close(rms_norm(c * x, None, 1e-12), rms_norm(x, None, 1e-12), rtol=1e-4, atol=1e-5)

    def test_equals_torchs(self) -> None:
        x, norm = randn(2, 5, 16), RMSNorm(16, eps=1e-6)
        norm.weight.data = randn(16, seed=1)
        torch.testing.assert_close(norm(x), torch.nn.functional.rms_norm(x, (16,), norm.weight, 1e-6))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_eps_is_inside_the_root(self, dtype: torch.dtype) -> None:
        y = RMSNorm(64, eps=1e-5)(torch.full((64,), 1e-3).to(dtype))
        assert y.dtype == dtype
        tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-3, torch.float16: 1e-3}[dtype]
        assert y[0].item() == pytest.approx(0.3015, abs=tolerance)

    def test_fp16_squares_do_not_underflow(self) -> None:
        y = RMSNorm(64, eps=1e-6)(torch.full((64,), 1e-4, dtype=torch.float16))
        assert y[0].item() == pytest.approx(1e-4 / math.sqrt(1e-8 + 1e-6), rel=2e-3)

    def test_a_row_scales_a_weight_or_stands_in_for_it(self) -> None:
        x, row = randn(2, 8), randn(8, seed=2)
        own, bare = RMSNorm(8), RMSNorm(8, weight=False)
        own.weight.data = randn(8, seed=3)
        torch.testing.assert_close(own(x, row), own(x) * row)
        torch.testing.assert_close(bare(x, row), bare(x) * row)
        assert not list(bare.parameters())


class TestLayerNorm:
    def test_equals_torchs(self) -> None:
        x, norm = randn(2, 5, 16), LayerNorm(16, eps=1e-5)
        norm.weight.data, norm.bias.data = randn(16, seed=1), randn(16, seed=2)
        expected = torch.nn.functional.layer_norm(x, (16,), norm.weight, norm.bias, 1e-5)
        torch.testing.assert_close(norm(x), expected)

    def test_shifting_the_input_changes_nothing_here_but_not_in_rms_norm(self) -> None:
        x = randn(4, 32)
        torch.testing.assert_close(layer_norm(x + 3, None, None, 1e-12), layer_norm(x, None, None, 1e-12))
        assert (rms_norm(x + 3, None, 1e-12) - rms_norm(x, None, 1e-12)).abs().max() > 0.1

    def test_a_scaling_row_scales_the_bias_a_replacing_row_does_not(self) -> None:
        x, row = randn(2, 8), randn(8, seed=2)
        own, bare = LayerNorm(8), LayerNorm(8, weight=False)
        own.bias.data = bare.bias.data = randn(8, seed=3)
        torch.testing.assert_close(own(x, row), own(x) * row)
        torch.testing.assert_close(bare(x, row), layer_norm(x, None, None, 1e-5) * row + bare.bias)


class TestGate:
    def test_is_the_identity_without_weight_and_row(self) -> None:
        x = randn(2, 8)
        assert Gate()(x) is x
        torch.testing.assert_close(Gate(start=0.5)(x), 0.5 * x)
        torch.testing.assert_close(Gate(start=0.5, d=8)(x, x[0]), 0.5 * x * x[0])

    def test_rounds_once_back_to_the_input_dtype(self) -> None:
        x, row = randn(2, 8).bfloat16(), randn(8, seed=1)
        y = Gate()(x, row)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, (x.float() * row).bfloat16())


def test_weights_stay_fp32_when_the_model_is_cast() -> None:
    for module in (RMSNorm(4), LayerNorm(4), Gate(1.0, 4)):
        assert {p.dtype for p in module.to(torch.bfloat16).parameters()} == {torch.float32}


class TestRotary:
    def test_angles_are_m_theta_i(self) -> None:
        table = rotary_table(50, 16)
        for m, i in ((0, 0), (7, 3), (49, 7)):
            angle = m * 10000 ** (-2 * i / 16)
            assert table[:, m, i].tolist() == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-6)

    def test_right_at_position_65536_under_autocast(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            table = rotary_table(1, 64, first=65_536)
        angle = 65_536 * 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        assert table.dtype == torch.float32
        torch.testing.assert_close(table[0, 0].double(), angle.cos(), atol=1e-7, rtol=0)
        torch.testing.assert_close(table[1, 0].double(), angle.sin(), atol=1e-7, rtol=0)

    @given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 500))
    @settings(max_examples=40, deadline=None)
    def test_scores_depend_only_on_the_offset(self, m: int, n: int, shift: int) -> None:
        q, k = randn(1, 1, 1, 8, seed=1).double(), randn(1, 1, 1, 8, seed=2).double()

        def score(a: int, b: int) -> float:
            return float((rotate(q, rotary_table(1, 8, first=a)) * rotate(k, rotary_table(1, 8, first=b))).sum())

        assert score(m, n) == pytest.approx(score(m + shift, n + shift), abs=1e-5)

    def test_pairs_are_neighbours(self) -> None:
        x = torch.zeros(1, 1, 2, 4)
        x[..., 0] = 1.0
        turned = rotate(x, rotary_table(2, 4))[0, 0, 1]
        torch.testing.assert_close(turned, torch.tensor([math.cos(1), math.sin(1), 0.0, 0.0]))

    @pytest.mark.parametrize("n_head", [1, 3])
    def test_the_fast_layout_is_a_permutation_of_the_plain_one(self, n_head: int) -> None:
        x, weight, table = randn(2, 5, 16), randn(8 * n_head, 16, seed=1), rotary_table(5, 8)

        def heads(w: torch.Tensor) -> torch.Tensor:
            return (x @ w.T).unflatten(-1, (n_head, 8)).transpose(1, 2)

        plain, fast = rotate(heads(weight), table), rotate_halves(heads(halves(weight, n_head)), table)
        torch.testing.assert_close(torch.cat((plain[..., 0::2], plain[..., 1::2]), dim=-1), fast)
        assert torch.equal(pairs(halves(weight, n_head), n_head), weight)
        assert halves(torch.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]

    def test_dtype_is_kept(self) -> None:
        assert rotate(randn(1, 1, 3, 4).bfloat16(), rotary_table(3, 4)).dtype == torch.bfloat16
