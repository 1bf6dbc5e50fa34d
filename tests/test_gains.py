"""Gain tables: the paper's numbers, exact properties, and what every dtype, device and switch must keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerrope import LayerRoPE, gain_table
from layerrope.errors import InputError
from layerrope.gains import LNS, SITES, Product, damped, linear_depth, log_depth, rotate_pairs

scalars = st.floats(-1.5, 1.5, allow_nan=False)


def angle_deg(a: torch.Tensor, b: torch.Tensor) -> float:
    cos = torch.dot(a.double(), b.double()) / (a.double().norm() * b.double().norm())
    return math.degrees(math.acos(float(cos)))


def reference_table(gamma: np.ndarray, n: int, a: float, b: float, ar: float, br: float, base: float) -> np.ndarray:
    """Eq. 1 with numpy's complex numbers, in float64."""
    d = len(gamma)
    rows = []
    for layer in range(n):
        r = a + b * np.log(layer + 1)
        theta = np.exp(ar + br * np.log(layer + 1)) * base ** (-2 * np.arange(d // 2) / d)
        turned = (gamma[0::2] + 1j * gamma[1::2]) * np.exp(r + 1j * theta)
        rows.append(np.stack((turned.real, turned.imag), axis=-1).ravel())
    return np.stack(rows)


class TestThePapersNumbers:
    def test_start_values(self) -> None:
        table = gain_table(torch.ones(2048), 24)
        expected = (torch.arange(24) + 1.0) ** -0.5 * math.sqrt(2048)
        torch.testing.assert_close(table.norm(dim=1), expected, rtol=2e-6, atol=0)
        assert int((table[0] < 0).sum()) == 54
        torch.testing.assert_close(table[0, :2], torch.tensor([-0.301169, 1.381773]), rtol=0, atol=1e-6)

    def test_learned_rotation_of_the_mlp_read(self) -> None:
        offset, slope = math.log(math.radians(49)), -1.09
        assert math.degrees(math.exp(offset + slope * math.log(24))) == pytest.approx(1.53, abs=0.005)
        gamma = torch.ones(2048)
        table = gain_table(gamma, 24, beta=0.0, alpha_rot=offset, beta_rot=slope)
        assert angle_deg(table[0], gamma) == pytest.approx(15.99, abs=0.005)
        assert angle_deg(table[23], gamma) == pytest.approx(0.506, abs=0.0005)

    def test_parameters_are_4d_plus_16(self) -> None:
        for d in (512, 2048):
            assert sum(p.numel() for p in LayerRoPE(24, d).parameters()) == 4 * d + 16


class TestGainTable:
    @given(st.integers(1, 9), st.integers(1, 6), scalars, scalars, scalars, scalars, st.floats(2, 1e4))
    @settings(max_examples=60, deadline=None)
    def test_equals_complex_arithmetic(
        self, pairs: int, n: int, a: float, b: float, ar: float, br: float, base: float
    ) -> None:
        gamma = np.random.default_rng(pairs).normal(size=2 * pairs)
        table = gain_table(torch.from_numpy(gamma), n, a, b, ar, br, base)
        assert table.dtype == torch.float64
        np.testing.assert_allclose(table.numpy(), reference_table(gamma, n, a, b, ar, br, base), rtol=1e-10, atol=1e-11)

    @given(st.integers(1, 20), st.integers(1, 12), scalars, scalars)
    @settings(max_examples=30, deadline=None)
    def test_rotation_keeps_the_norm(self, pairs: int, n: int, a: float, b: float) -> None:
        gamma = torch.randn(2 * pairs, generator=torch.Generator().manual_seed(pairs))
        norms = gain_table(gamma, n, a, b).norm(dim=1)
        expected = torch.exp(a + b * torch.log(torch.arange(n) + 1.0)) * gamma.norm()
        torch.testing.assert_close(norms, expected, rtol=1e-5, atol=1e-7)

    def test_odd_width_is_refused(self) -> None:
        with pytest.raises(InputError, match="must be even: got 7"):
            gain_table(torch.ones(7), 4)
        with pytest.raises(InputError, match="must be even"):
            LayerRoPE(4, 7)

    def test_low_precision_gamma_is_computed_in_fp32(self) -> None:
        assert gain_table(torch.ones(8, dtype=torch.bfloat16), 3).dtype == torch.float32

    def test_rotate_pairs_by_a_quarter_turn(self) -> None:
        turned = rotate_pairs(torch.tensor([1.0, 2.0]), torch.tensor([math.pi / 2]))
        torch.testing.assert_close(turned, torch.tensor([-2.0, 1.0]), atol=1e-6, rtol=0)


SWITCHES = [
    {},
    {"rotation": False},
    {"magnitude": False},
    {"spectrum": "single"},
    {"gamma": "layer"},
    {"schedule": "geometric"},
    {"schedule": "free"},
    {"schedule": "free", "gamma": "layer", "rotation": False},
    {"sites": ("attn_read", "mlp_read")},
    {"sites": ("mlp_write",), "alpha": "damped", "beta": 0.0},
    {"alpha": (0.0, "damped"), "beta": (-0.5, 0.3)},
]


class TestLayerRoPE:
    @pytest.mark.parametrize("switch", SWITCHES, ids=str)
    def test_shape_ones_where_not_covered_and_no_dead_parameter(self, switch: dict) -> None:
        module = LayerRoPE(5, 8, **switch)
        table = module()
        assert table.shape == (5, 2, 2, 8)
        assert table.dtype == torch.float32
        covered = switch.get("sites", SITES)
        for i, site in enumerate(SITES):
            if site not in covered:
                assert torch.equal(table[:, i // 2, i % 2], torch.ones(5, 8))
        (table * torch.randn(table.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.dim() >= 1, name
            assert bool((parameter.grad != 0).any()), name
        assert set(dict(module.named_parameters())) <= set(module.param_roles)

    def test_table_is_eq_1_at_each_site(self) -> None:
        module = LayerRoPE(6, 8)
        for p in module.parameters():
            p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.3 + p.data)
        table = module()
        for k in range(4):
            one = gain_table(
                module.gamma[k], 6, module.alpha[k], module.beta[k], module.alpha_rot[k], module.beta_rot[k]
            )
            torch.testing.assert_close(table[:, k // 2, k % 2], one)

    def test_rotation_off_is_magnitude_times_gamma_exactly(self) -> None:
        module = LayerRoPE(4, 7, rotation=False, alpha=0.0, beta=0.0)
        assert torch.equal(module(), torch.ones(4, 2, 2, 7))

    def test_single_angle_turns_every_pair_alike(self) -> None:
        row = LayerRoPE(3, 8, spectrum="single", magnitude=False)()[0, 0, 0]
        torch.testing.assert_close(row, row[:2].repeat(4))

    def test_geometric_has_constant_ratio_and_the_power_laws_ends(self) -> None:
        rms = LayerRoPE(9, 4, schedule="geometric", rotation=False)()[:, 0, 0, 0]
        ratios = rms[1:] / rms[:-1]
        torch.testing.assert_close(ratios, ratios[:1].expand(8))
        torch.testing.assert_close(rms[[0, 8]], torch.tensor([1.0, 1 / 3]))
        assert float(linear_depth(1, 1, torch.ones(()))[0]) == 0.0

    def test_free_table_starts_at_the_power_law(self) -> None:
        torch.testing.assert_close(LayerRoPE(7, 6, schedule="free")(), LayerRoPE(7, 6)())

    def test_damped_start_is_gpt2s_factor(self) -> None:
        write = LayerRoPE(24, 4, alpha=(0.0, "damped"), beta=0.0, rotation=False)()[:, :, 1]
        torch.testing.assert_close(write, torch.full_like(write, 48**-0.5))
        assert damped(24) == pytest.approx(-0.5 * math.log(48))

    def test_any_depth_for_loops_but_not_for_per_layer_tables(self) -> None:
        assert LayerRoPE(4, 6)(12).shape == (12, 2, 2, 6)
        torch.testing.assert_close(LayerRoPE(4, 6)(12), LayerRoPE(12, 6)())
        assert LayerRoPE(4, 6, gamma="layer")(2).shape == (2, 2, 2, 6)
        with pytest.raises(InputError, match="free per-layer gains exist for 4 layers, 5 were asked for"):
            LayerRoPE(4, 6, schedule="free")(5)

    @pytest.mark.parametrize(
        ("switch", "words"),
        [
            ({"spectrum": "rop"}, "did you mean rope"),
            ({"gamma": "each"}, "choose from shared, layer"),
            ({"schedule": "powr"}, "did you mean power"),
            ({"sites": ("attn_raed",)}, "did you mean attn_read"),
            ({"sites": ()}, "covers nothing"),
            ({"base": 0.0}, "must be positive"),
        ],
    )
    def test_bad_switches_name_the_nearest(self, switch: dict, words: str) -> None:
        with pytest.raises(InputError, match=words):
            LayerRoPE(4, 8, **switch)


class TestPrecisionAndDevices:
    def test_to_bf16_leaves_gains_and_their_values(self) -> None:
        module = LayerRoPE(4, 8)
        module.gamma.data.add_(1e-4)
        before = module.gamma.detach().clone()
        module.to(torch.bfloat16)
        module.half()
        assert torch.equal(module.gamma, before)
        assert module().dtype == torch.float32
        assert module.double()().dtype == torch.float64

    def test_autocast_changes_nothing(self) -> None:
        module = LayerRoPE(4, 8)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(module(), LayerRoPE(4, 8)())

    def test_meta_build_then_reset_equals_a_direct_build(self) -> None:
        with torch.device("meta"):
            module = LayerRoPE(4, 8, schedule="free")
            assert module().is_meta
        module = module.to_empty(device="cpu")
        module.reset_parameters()
        assert torch.equal(module(), LayerRoPE(4, 8, schedule="free")())
        assert not list(module.buffers())

    def test_under_torch_func(self) -> None:
        module = LayerRoPE(3, 4)
        names = dict(module.named_parameters())

        def total(parameters: dict) -> torch.Tensor:
            return torch.func.functional_call(module, parameters, ()).square().sum()

        grads = torch.func.grad(total)(names)
        total(names).backward()
        for name, parameter in names.items():
            torch.testing.assert_close(grads[name], parameter.grad)
        stacked = {k: torch.stack((v, v)) for k, v in names.items()}
        assert torch.vmap(lambda p: torch.func.functional_call(module, p, ()))(stacked).shape == (2, 3, 2, 2, 4)

    def test_gradients(self) -> None:
        module = LayerRoPE(3, 4).double()
        inputs = tuple(p.detach().requires_grad_() for p in module.parameters())
        names = [n for n, _ in module.named_parameters()]

        def table(*values: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, dict(zip(names, values, strict=True)), ())

        assert torch.autograd.gradcheck(table, inputs, eps=1e-5, atol=1e-4)


class TestLNS:
    def test_scales_reads_by_one_over_the_root_of_the_layer(self) -> None:
        table = LNS(32)()
        assert table.shape == (32, 2, 2, 1)
        expected = {1: 1, 2: 0.7071, 3: 0.5774, 4: 0.5, 8: 0.3536, 12: 0.2887, 16: 0.25, 24: 0.2041, 32: 0.1768}
        for layer, scale in expected.items():
            assert table[layer - 1, :, 0].flatten().tolist() == pytest.approx([scale, scale], abs=5e-5)
        assert torch.equal(table[:, :, 1], torch.ones(32, 2, 1))
        assert not list(LNS(3).state_dict())

    def test_product_multiplies_tables(self) -> None:
        product = Product(LNS(3), LayerRoPE(3, 4))
        torch.testing.assert_close(product(), LNS(3)() * LayerRoPE(3, 4)())


def test_log_depth_counts_from_zero() -> None:
    assert log_depth(3, torch.ones(())).tolist() == pytest.approx([0.0, math.log(2), math.log(3)])
