"""The looped model: the paper's counts and start, loops of each sequence, gradient, gains by executed depth, LoopCD."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from nets import role_of, token_ids
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from layerrope.errors import InputError
from layerrope.looping.loopcd import Contrast, contrast, generate, weight
from layerrope.looping.looped import LoopedConfig, LoopedLM, looped_tiers
from layerrope.looping.parts import Injection
from layerrope.rotary import rotary_table
from layerrope.training.optim import Optimizers

TINY = LoopedConfig(prelude=1, core=2, coda=1, loops=5, n_head=2, d_model=16, d_ff=24, vocab_size=31, seq_len=12)
LOOPABLE = [
    "prenorm",
    "perinorm",
    "lns",
    "layerrope",
    "layerrope-peri",
    "hc",
    "mhc",
    "hc+layerrope",
    "postnorm",
    "keel",
]


def perturbed(scheme: str = "layerrope", **changes: Any) -> LoopedLM:
    model = LoopedLM(replace(TINY, scheme=scheme, **changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model.double().eval()


# ------------------------------------------------------------------------------------------------ counts and start
@pytest.mark.parametrize(
    ("tier", "transformer", "parcae"),
    [
        ("parcae-140m", 143_141_184, 144_323_136),
        ("parcae-370m", 385_903_104, 388_003_328),
        ("parcae-770m", 773_375_040, 776_655_680),
        ("parcae-1.3b", 1_333_868_544, 1_338_591_744),
    ],
)
def test_totals_of_the_paper(tier: str, transformer: int, parcae: int) -> None:
    with torch.device("meta"):
        model = LoopedLM(looped_tiers[tier])
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    looping = sum(n for name, n in sizes.items() if name.split(".")[0] in {"B", "C", "inject", "prelude_norm"})
    assert sum(sizes.values()) == parcae
    assert sum(sizes.values()) - looping == transformer


def test_injection_starts_at_the_papers_numbers() -> None:
    inject = Injection(8)
    assert inject.delta().tolist() == pytest.approx([0.804719] * 8, abs=1e-6)
    assert inject.decay().tolist() == pytest.approx([0.447214] * 8, abs=1e-6)
    assert float(inject.dt_bias.detach()[0]) == pytest.approx(0.2119, abs=1e-4)


def test_start_is_a_leaky_integrator_of_the_normed_embedding() -> None:
    """h_R = (1 - a^R) delta / (1 - a) e with a the decay, since every layer starts as the identity and B = I."""
    model = LoopedLM(TINY).double().eval()
    ids = token_ids(2, 7)
    seen: list[Tensor] = []
    model.C.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(ids, loops=3)
    e = model.prelude_norm(model.embed(ids))
    a, delta = math.sqrt(0.2), -0.5 * math.log(0.2)
    torch.testing.assert_close(seen[0], (1 - a**3) * delta / (1 - a) * e, rtol=1e-6, atol=1e-6)
    assert delta / (1 - a) == pytest.approx(1.4558, abs=1e-4)


def test_linear_maps_start_orthogonal_and_outputs_at_zero() -> None:
    model = LoopedLM(replace(TINY, d_model=20, d_ff=30))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "B":
            W = module.weight.detach()
            if name.endswith((".o", ".down")):
                assert not W.any(), name
                continue
            gain = math.sqrt(2 / (5 * 20) * max(W.shape))
            gram = W.T @ W if W.shape[0] >= W.shape[1] else W @ W.T
            torch.testing.assert_close(gram, gain**2 * torch.eye(min(W.shape)), rtol=1e-4, atol=1e-4)
    assert torch.equal(model.B.weight, torch.eye(20))


# ----------------------------------------------------------------------------------------------------------- loops
@pytest.mark.parametrize("scheme", LOOPABLE)
def test_a_batch_of_mixed_loops_is_each_sequence_alone(scheme: str) -> None:
    model, ids = perturbed(scheme), token_ids(4, 9)
    loops = torch.tensor([1, 7, 3, 4])
    together = model(ids, loops=loops)
    for b, n in enumerate(loops.tolist()):
        torch.testing.assert_close(together[b : b + 1], model(ids[b : b + 1], loops=n), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scheme", LOOPABLE)
def test_is_causal(scheme: str) -> None:
    model, ids = perturbed(scheme), token_ids(2, 10)
    later = ids.clone()
    later[:, 6:] = (ids[:, 6:] + 1) % 31
    a, b = model(ids), model(later)
    assert torch.equal(a[:, :6], b[:, :6])
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def plain(model: LoopedLM, ids: Tensor, loops: int) -> Tensor:
    """The loop as the paper writes it, one layer after the other, with one row of gains for each executed layer."""
    config = model.config
    assert model.gains is not None
    rows = iter(model.gains(config.depth(loops)))
    rope = rotary_table(ids.shape[1], config.d_model // config.n_head, config.rope_base)
    prelude, core, coda = (
        model.layers[: config.prelude],
        model.layers[config.prelude : config.prelude + config.core],
        model.layers[config.prelude + config.core :],
    )
    h = model.embed(ids)
    for layer in prelude:
        h = layer(h, next(rows), rope, ids)
    e = model.prelude_norm(h)
    h = torch.zeros_like(h)
    delta, A = torch.log1p(torch.exp(model.inject.dt_bias)), torch.exp(model.inject.A_log)
    for _ in range(loops):
        h = torch.exp(-delta * A) * h + delta * (e @ model.B.weight.T)
        for layer in core:
            h = layer(h, next(rows), rope, ids)
    h = h @ model.C.weight.T
    for layer in coda:
        h = layer(h, next(rows), rope, ids)
    assert next(rows, None) is None
    return model.norm(h) @ model.embed.weight.T


@pytest.mark.parametrize("scheme", ["layerrope", "lns", "layerrope:schedule=geometric"])
@pytest.mark.parametrize("loops", [1, 2, 6])
def test_gains_follow_executed_depth(scheme: str, loops: int) -> None:
    model, ids = perturbed(scheme), token_ids(2, 7)
    torch.testing.assert_close(model(ids, loops=loops), plain(model, ids, loops), rtol=1e-9, atol=1e-9)


def test_only_the_last_iterations_carry_gradient() -> None:
    """With 7 iterations of which 3 have gradient, h after 4 is a constant: the gradient is that of a run from there."""
    model, ids = perturbed("prenorm"), token_ids(2, 7)
    assert model.config.truncation == 3
    calls: list[bool] = []
    model.layers[1].register_forward_pre_hook(lambda module, args: calls.append(torch.is_grad_enabled()))
    model(ids, ids, loops=torch.tensor([7, 2])).backward()
    assert calls == [False] * 4 + [True] * 3
    calls.clear()
    model(ids, ids, loops=2)
    assert calls == [True] * 2


def test_gradient_is_finite_and_no_parameter_is_dead() -> None:
    model, ids = perturbed("layerrope"), token_ids(4, 12)
    model(ids, (ids + 1) % 31, loops=torch.tensor([1, 2, 6, 3])).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert bool(p.grad.any()), name


def test_training_draws_loops_and_evaluation_does_not() -> None:
    model, ids = perturbed("layerrope"), token_ids(8, 7)
    assert torch.equal(model(ids), model(ids, loops=5))
    model.train()
    torch.manual_seed(0)
    first = model(ids)
    assert not torch.equal(first, model(ids))
    torch.manual_seed(0)
    assert torch.equal(first, model(ids))


def test_drawn_loops_are_poisson_and_at_least_one() -> None:
    model = LoopedLM(replace(TINY, loops=8))
    torch.manual_seed(0)
    loops = model.draw_loops(200_000)
    assert int(loops.min()) == 1
    with_grad = loops.clamp(max=4).double()
    assert float(with_grad.mean()) == pytest.approx(3.94, abs=0.01)
    assert float((loops - with_grad).mean()) == pytest.approx(4.06, abs=0.03)


def test_value_embeddings_stand_in_every_other_layer_up_to_the_last() -> None:
    for n in (1, 2, 3):
        config = replace(TINY, prelude=1, core=n, coda=1)
        with_value = [layer.value is not None for layer in LoopedLM(config).layers]
        assert with_value == [i % 2 == (n + 1) % 2 for i in range(n + 2)]


@pytest.mark.parametrize("scheme", ["prenorm", "layerrope", "hc+layerrope"])
def test_number_of_compiled_graphs_does_not_grow(scheme: str) -> None:
    """With and without a value embedding, with and without gradient, rows for all or for each sequence: 8 at most."""
    torch._dynamo.reset()
    model, ids = LoopedLM(replace(TINY, scheme=scheme, loops=9)), token_ids(4, 9)
    counter = CompileCounter()
    for layer in model.layers:
        layer.compile(backend=counter)
    counts = []
    for loops in (torch.tensor([1, 12, 3, 7]), torch.tensor([9, 2, 11, 4]), torch.tensor([5, 5, 5, 14])):
        model(ids, ids, loops=loops).backward()
        counts.append(counter.frame_count)
    with torch.no_grad():
        model.eval()(ids)
    torch._dynamo.reset()
    assert counts[0] == counts[-1] <= 6
    assert counter.frame_count <= 8


# ---------------------------------------------------------------------------------------------- training and roles
@pytest.mark.parametrize("scheme", ["layerrope", "hc+layerrope"])
def test_trains(scheme: str) -> None:
    model, ids = LoopedLM(replace(TINY, scheme=scheme)), token_ids(8, 13)
    optimizers = Optimizers(model, "adamw", lr=1e-2, weight_decay=0.1)
    torch.manual_seed(0)
    losses = []
    for _ in range(30):
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        losses.append(loss.item())
        optimizers.step(1.0)
        optimizers.zero_grad()
    assert losses[-1] < losses[0] - 0.5


def test_what_the_loop_adds_is_never_decayed_and_stays_fp32() -> None:
    model = LoopedLM(replace(TINY, scheme="layerrope")).to(torch.bfloat16)
    roles = role_of(model)
    for name in ("inject.A_log", "inject.dt_bias", "B.weight", "C.weight", "layers.3.attn.f.value_gate.weight"):
        assert roles[name] == "static"
    assert model.inject.A_log.dtype == torch.float32
    assert model(token_ids(2, 7)).isfinite().all()


def test_meta_build_equals_direct_build() -> None:
    with torch.device("meta"):
        meta = LoopedLM(TINY)
    meta.to_empty(device="cpu")
    meta.init_weights(3)
    for (name, a), (_, b) in zip(meta.state_dict().items(), LoopedLM(TINY, seed=3).state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("scheme", ["attnres", "nanochat", "rezero", "layerrope:gamma=layer"])
def test_schemes_that_cannot_be_looped_are_refused(scheme: str) -> None:
    with pytest.raises(InputError):
        LoopedLM(replace(TINY, scheme=scheme))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"core": 0}, "core"),
        ({"coda": 10**9}, "n_layer must be at most"),
        ({"loops": 0}, "loops"),
        ({"prelude": -1}, "prelude"),
        ({"coda": 1.5}, "numbers of layers: got 1 and 1.5"),
        ({"n_head": 3}, "head width"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(TINY, **change)


# ---------------------------------------------------------------------------------------------------------- LoopCD
def test_contrast_at_weight_zero_and_where_the_model_is_sure() -> None:
    last, early = torch.randn(2, 31), torch.randn(2, 31)
    assert torch.equal(contrast(last, early, Contrast(omega=0.0)), last)
    torch.testing.assert_close(contrast(last, early, Contrast(omega=0.5)), 1.5 * last - 0.5 * early)
    sure = torch.tensor([[200.0, 0.0, 0.0]])
    assert float(weight(sure, Contrast())) == 0.0
    level = torch.tensor([[1.0, 1.0, -50.0]])
    assert float(weight(level, Contrast(cap=0.7))) == pytest.approx(0.7)


def test_logits_after_are_those_of_shorter_runs() -> None:
    model, ids = perturbed("layerrope"), token_ids(2, 7)
    for n, z in zip((1, 3, 5), model.logits_after(ids, (1, 3, 5)), strict=True):
        torch.testing.assert_close(z, model(ids, loops=n), rtol=1e-9, atol=1e-9)


def test_generation_with_and_without_contrast() -> None:
    model, ids = perturbed("layerrope"), token_ids(2, 3)
    text = generate(model, ids, 5, temperature=0)
    assert text.shape == (2, 8)
    assert torch.equal(text, generate(model, ids, 5, temperature=0, how=Contrast(omega=0.0)))
    z_early, z_last = (z[:, -1] for z in model.logits_after(ids, (2, 5)))
    expected = (z_last + 3.0 * (z_last - z_early)).argmax(-1)
    assert torch.equal(generate(model, ids, 1, temperature=0, how=Contrast(omega=3.0, early=2))[:, -1], expected)
    with pytest.raises(InputError, match="early"):
        generate(model, ids, 1, how=Contrast(early=5))
