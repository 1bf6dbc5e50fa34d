"""Roles, groups, optimisers and schedules."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from layerrope.config import ModelConfig, preset
from layerrope.errors import InputError
from layerrope.model import LM
from layerrope.roles import Tuning, declared
from layerrope.scheme_table import schemes
from layerrope.training.optim import Optimizers, clip_by_norm, param_groups, total_norm
from layerrope.training.schedule import lr_factor

torch.set_num_threads(1)


DECAYED = {"matrix", "embedding", "head", "dynamic"}


def small(**changes: Any) -> ModelConfig:
    return ModelConfig(
        **{"n_layer": 2, "n_head": 2, "d_model": 8, "d_ff": 16, "vocab_size": 31, "seq_len": 8} | changes
    )


def with_gradients(model: nn.Module, seed: int = 0) -> nn.Module:
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)
    return model


# --------------------------------------------------------------------------------------------------------- roles
@pytest.mark.parametrize("scheme", sorted(schemes))
@pytest.mark.parametrize("style", ["modern", "gpt-2017"])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_each_parameter_is_in_one_group_and_only_matrices_decay(scheme: str, style: str, optimizer: str) -> None:
    model = LM(preset(style, small(scheme=scheme, tie=style == "gpt-2017")))
    optimizers = Optimizers(model, optimizer, lr=1e-3, weight_decay=0.1)
    names = [name for group in optimizers.groups() for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    roles = {row.name: row.role for row in declared(model)}
    for group in optimizers.groups():
        for name in group["names"]:
            assert (group["weight_decay"] > 0) == (roles[name] in DECAYED)
    flat = [name for name, p in model.named_parameters() if p.ndim < 2 or name.startswith("gains")]
    assert all(roles[name] in {"norm", "gain", "vector", "static"} for name in flat)


def test_roles_of_the_decoder() -> None:
    roles = {row.name: row.role for row in declared(LM(preset("gpt-2017", small(scheme="layerrope"))))}
    assert roles["embed.weight"] == roles["position.weight"] == "embedding"
    assert roles["head.weight"] == "head"
    assert roles["layers.1.attn.f.q.weight"] == roles["layers.0.mlp.f.down.weight"] == "matrix"
    assert roles["layers.1.attn.f.q.bias"] == "vector"
    assert roles["gains.gamma"] == roles["gains.beta"] == "gain"
    assert roles["norm.weight"] == roles["layers.0.attn.branch.pre.bias"] == "norm"


def test_a_tied_weight_is_updated_once() -> None:
    model = LM(small(tie=True))
    assert [row.name for row in declared(model) if row.parameter is model.head.weight] == ["embed.weight"]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))


def test_a_parameter_without_a_role_is_an_error() -> None:
    with pytest.raises(InputError, match=r"parameter 0\.w has no role: name it in param_roles of Bare"):
        declared(nn.Sequential(Bare()))
    bare = Bare()
    bare.param_roles = {"w": "gian"}  # type: ignore[assignment]
    with pytest.raises(InputError, match="did you mean gain"):
        declared(bare)


def test_the_outer_declaration_wins() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model.param_roles = {"0.weight": "dynamic"}  # type: ignore[assignment]
    assert [row.role for row in declared(model)] == ["dynamic"]


def test_tuning_multiplies_inwards_and_can_fix_eps() -> None:
    inner, outer = nn.Sequential(nn.Linear(2, 2, bias=False)), nn.Module()
    outer.inner, outer.other = inner, nn.Linear(2, 2, bias=False)
    outer.param_tuning = {"matrix": Tuning(lr=0.5, decay=2, eps=0.1)}  # type: ignore[assignment]
    inner.param_tuning = {"matrix": Tuning(lr=0.5, fixed_eps=1e-20)}  # type: ignore[assignment]
    groups = param_groups(declared(outer), lr=1.0, weight_decay=0.1, eps=1e-8)
    found = {group["names"][0]: (group["lr"], group["weight_decay"], group["eps"]) for group in groups}
    assert found == {
        "inner.0.weight": (0.25, 0.2, 1e-20),
        "other.weight": (0.5, 0.2, pytest.approx(1e-9)),
    }


# ---------------------------------------------------------------------------------------------------- optimisers
def plain_adam(p: Tensor, grads: list[Tensor], lr: float, eps: float, decay: float, decoupled: bool) -> Tensor:
    """Kingma & Ba 2015, Algorithm 1; Loshchilov & Hutter 2019, Algorithm 2; in float64."""
    p, m, v = p.double().clone(), 0.0, 0.0
    for t, grad in enumerate(grads, 1):
        g = grad.double() + (0 if decoupled else decay * p)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p * (1 - lr * decay if decoupled else 1) - lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + eps)
    return p


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("fused", [True, False])
def test_adam_is_the_published_rule(optimizer: str, fused: bool) -> None:
    model = nn.Linear(5, 7, bias=True)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = Optimizers(model, optimizer, lr=1e-2, weight_decay=0.1, fused=fused)
    grads: dict[str, list[Tensor]] = {name: [] for name in start}
    for step in range(20):
        for name, p in with_gradients(model, step).named_parameters():
            assert p.grad is not None
            grads[name].append(p.grad.clone())
        optimizers.step(0.5)
    for name, decay in (("weight", 0.1), ("bias", 0.0)):
        wanted = plain_adam(start[name], grads[name], 5e-3, 1e-8, decay, optimizer == "adamw")
        torch.testing.assert_close(model.get_parameter(name).double(), wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_and_plain_updates_differ_by_rounding_alone(dtype: torch.dtype) -> None:
    models = [LM(small(scheme="layerrope")).to(dtype) for _ in range(2)]
    both = [Optimizers(m, "adam", lr=3e-3, fused=fused) for m, fused in zip(models, (True, False), strict=True)]
    for step in range(20):
        for model, optimizers in zip(models, both, strict=True):
            with_gradients(model, step)
            optimizers.step(1.0)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        bits = torch.finfo(a.dtype).eps
        torch.testing.assert_close(a, b, rtol=20 * bits, atol=3e-3 * 20 * bits)


def test_muon_moves_matrices_by_a_fifth_of_the_rate_and_leaves_the_rest_to_adam() -> None:
    model = LM(small(scheme="layerrope", d_model=16, d_ff=32))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Optimizers(with_gradients(model), "muon", lr=1e-2).step(1.0)
    for row in declared(model):
        moved = (row.parameter - before[row.name]).detach()
        wanted = 0.2e-2 if row.role == "matrix" else 1e-2  # 0.2 is AdamW's usual RMS; Adam's first step is the rate
        assert moved.square().mean().sqrt().item() == pytest.approx(wanted, rel=0.15), row.name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_without_gradients_only_decayed_roles_shrink(optimizer: str) -> None:
    model = LM(small(scheme="layerrope-peri", bias=True))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    Optimizers(model, optimizer, lr=1e-2, weight_decay=0.5).step(1.0)
    for row in declared(model):
        wanted = before[row.name] * (1 - 1e-2 * 0.5) if row.role in DECAYED else before[row.name]
        torch.testing.assert_close(row.parameter.detach(), wanted, rtol=1e-6, atol=1e-9)


def test_small_gradients_need_the_eps_their_module_fixed() -> None:
    def moved(tuning: dict[str, Tuning]) -> float:
        model = nn.Linear(4, 4, bias=False)
        model.param_tuning = tuning  # type: ignore[assignment]
        before = model.weight.detach().clone()
        model.weight.grad = torch.full_like(model.weight, 1e-12)
        Optimizers(model, "adam", lr=1e-2).step(1.0)
        return (model.weight - before).abs().mean().item()

    assert moved({}) < 1e-5
    assert moved({"matrix": Tuning(fixed_eps=1e-20)}) == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_state_goes_out_and_in_bit_for_bit(optimizer: str) -> None:
    first, second = (LM(small(scheme="layerrope")) for _ in range(2))
    a, b = (Optimizers(model, optimizer, lr=1e-2) for model in (first, second))
    for step in range(3):
        with_gradients(first, step)
        a.step(1.0)
    second.load_state_dict(first.state_dict())
    b.load(a.state(), a.stateless())
    for model, optimizers in ((first, a), (second, b)):
        with_gradients(model, 9)
        optimizers.step(0.3)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(t, b.state()[name]) for name, t in a.state().items())


def test_missing_or_foreign_state_is_an_error() -> None:
    model = with_gradients(LM(small()))
    optimizers = Optimizers(model, "adam", lr=1e-2)
    assert optimizers.state() == {}
    assert len(optimizers.stateless()) == len(list(model.parameters()))
    optimizers.step(1.0)
    saved = optimizers.state()
    fresh = Optimizers(LM(small()), "adam", lr=1e-2)
    with pytest.raises(InputError, match=r"state exp_avg/embed\.weight is missing"):
        fresh.load({k: v for k, v in saved.items() if k != "exp_avg/embed.weight"})
    with pytest.raises(InputError, match=r"state exp_avg/x fits no parameter"):
        fresh.load({**saved, "exp_avg/x": torch.zeros(1)})
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        fresh.load({**saved, "exp_avg/embed.weight": torch.zeros(3)})


def test_clipping_scales_the_whole_gradient() -> None:
    model = with_gradients(LM(small()))
    norm = total_norm(model.parameters())
    wanted = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    assert float(norm) == pytest.approx(wanted, rel=1e-6)
    clip_by_norm(model.parameters(), norm, 2 * wanted)
    assert float(total_norm(model.parameters())) == pytest.approx(wanted, rel=1e-5)
    clip_by_norm(model.parameters(), norm, 0.5)
    assert float(total_norm(model.parameters())) == pytest.approx(0.5, rel=1e-4)


def test_unknown_optimizer_names_the_choices() -> None:
    with pytest.raises(InputError, match="did you mean muon"):
        Optimizers(LM(small()), "muno", lr=1e-3)


# ------------------------------------------------------------------------------------------------------ schedule
fractions = st.floats(0, 1)


@given(
    schedule=st.sampled_from(["cosine", "wsd", "constant"]),
    steps=st.integers(1, 200),
    warmup=fractions,
    decay=fractions,
    least=fractions,
)
def test_schedules_stay_in_range_and_end_where_they_say(
    schedule: str, steps: int, warmup: float, decay: float, least: float
) -> None:
    rise = round(warmup * steps)
    factors = [lr_factor(s, steps, schedule=schedule, warmup=warmup, decay=decay, least=least) for s in range(steps)]
    assert all(min(least, 1 / max(rise, 1)) - 1e-9 <= f <= 1 + 1e-9 for f in factors)
    assert factors[:rise] == [pytest.approx((s + 1) / rise) for s in range(rise)]
    falling = factors[max(rise - 1, 0) :]
    assert all(a >= b - 1e-9 for a, b in pairwise(falling))
    if rise < steps and (schedule == "cosine" or (schedule == "wsd" and round(decay * steps) > 0)):
        assert factors[-1] == pytest.approx(least)


def test_cosine_by_the_formula_and_wsd_by_its_three_pieces() -> None:
    cosine = [lr_factor(s, 100, warmup=0.1, least=0.1) for s in range(100)]
    assert cosine[54] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 45 / 90)))
    wsd = [lr_factor(s, 100, schedule="wsd", warmup=0.1, decay=0.2, least=0.0) for s in range(100)]
    assert wsd[9:80] == [1.0] * 71
    assert wsd[89] == pytest.approx(0.5)
    assert wsd[99] == pytest.approx(0.0)
