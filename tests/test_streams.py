"""Schemes of several streams: what the mixing matrices are, that they learn, and that streams part."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import perturbed, tiny, token_ids
from torch import Tensor

from layerrope.errors import InputError
from layerrope.model import LM, make_site
from layerrope.residual.hyper import HyperConnection
from layerrope.residual.manifold import ManifoldHyperConnection, sinkhorn
from layerrope.roles import declared
from layerrope.scheme_table import scheme
from layerrope.training.optim import Optimizers


def trained(spec: str, steps: int, lr: float = 1e-3, **settings: float) -> LM:
    """A tiny model after some steps on one repeated text."""
    model = LM(tiny(spec, n_layer=3, init_std=0.05))
    optimizers = Optimizers(model, "adam", lr=lr, **settings)
    ids = token_ids(8, 13)
    for _ in range(steps):
        optimizers.zero_grad()
        model(ids[:, :-1], ids[:, 1:]).backward()
        optimizers.step(1.0)
    return model


def states(model: LM, ids: Tensor) -> list[Tensor]:
    """The streams H (B, T, S, D) after the embedding and after each layer."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda module, args, out: seen.append(out)) for layer in model.layers]
    model(ids)
    for hook in hooks:
        hook.remove()
    return seen


# ------------------------------------------------------------------------------------------------------- sinkhorn
@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 6), size=st.floats(0, 30), seed=st.integers(0, 2**20), iterations=st.integers(1, 20))
def test_every_new_stream_is_a_convex_combination(n: int, size: float, seed: int, iterations: int) -> None:
    logits = size * torch.randn(n, n, 5, generator=torch.Generator().manual_seed(seed))
    mix = sinkhorn(logits, iterations)
    assert bool((mix >= 0).all())
    torch.testing.assert_close(mix.sum(1), torch.ones(n, 5), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(2, 6), seed=st.integers(0, 2**20))
def test_columns_sum_to_one_for_moderate_logits(n: int, seed: int) -> None:
    """Birkhoff: logits within 1 of zero contract by tanh(1)^2 each time, so 20 iterations leave less than 1e-4."""
    logits = 2 * torch.rand(n, n, 5, generator=torch.Generator().manual_seed(seed)) - 1
    torch.testing.assert_close(sinkhorn(logits).sum(0), torch.ones(n, 5), rtol=0, atol=2e-4)


def test_sinkhorn_gradient_and_large_logits() -> None:
    logits = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sinkhorn(t, 4), logits)
    large = torch.tensor([[80.0, -80.0], [-300.0, 300.0]], requires_grad=True)
    mix = sinkhorn(large[..., None])
    (mix * torch.tensor([[1.0, 2.0], [3.0, 5.0]])[..., None]).sum().backward()
    assert mix.isfinite().all()
    assert large.grad is not None
    assert large.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mhc_coefficients_are_fp32_and_doubly_stochastic(dtype: torch.dtype) -> None:
    model = perturbed("mhc", size=0.05).to(dtype)
    H = torch.randn(2, 5, 4, 16).to(dtype)
    for layer in model.layers:
        with torch.autocast("cpu", torch.bfloat16):
            read, write, mix = layer.attn.residual.coefficients(H)
        assert read.dtype == write.dtype == mix.dtype == torch.float32
        torch.testing.assert_close(mix.sum(-2), torch.ones(2, 5, 4), rtol=0, atol=1e-6)  # over old streams
        torch.testing.assert_close(mix.sum(-1), torch.ones(2, 5, 4), rtol=0, atol=1e-3)
        assert bool(((read > 0) & (read < 1)).all())
        assert bool(((write > 0) & (write < 2)).all())


# -------------------------------------------------------------------------------------------------------- learning
def mean_move(model: LM, slots: slice) -> float:
    """Mean move of mHC's biases from their start, in the middle layer."""
    start = LM(model.config)
    moves = [
        (model.get_parameter(name) - p).detach()[slots].abs().mean()
        for name, p in start.named_parameters()
        if name.endswith("residual.bias") and name.split(".")[1] == "1"
    ]
    return float(torch.stack(moves).mean())


def test_mhc_mixing_learns_from_its_start() -> None:
    steps, lr = 60, 1e-3
    model = trained("mhc", steps, lr)
    assert mean_move(model, slice(8, None)) > lr * steps / 4
    H = states(model, token_ids(8, 12))[0]
    *_, mix = model.layers[1].attn.residual.coefficients(H)
    *_, first = LM(model.config).layers[1].attn.residual.coefficients(H)
    assert float((mix - first).detach().abs().max()) > 1e-3


def test_mhc_gradient_is_far_larger_than_at_a_start_that_cannot_learn() -> None:
    def gradient(off: float, diagonal: float) -> float:
        model = LM(tiny("mhc", n_layer=6))
        with torch.no_grad():
            for layer in model.layers:
                for residual in (layer.attn.residual, layer.mlp.residual):
                    residual.bias[8:] = (off + (diagonal - off) * torch.eye(4)).flatten()
        ids = token_ids(8, 13)
        model(ids[:, :-1], ids[:, 1:]).backward()
        return float(model.layers[3].mlp.residual.bias.grad[8:].abs().mean())

    assert gradient(-4, 0) > 1000 * gradient(-8, 8)


def test_mhc_asks_for_the_papers_adam_eps() -> None:
    rows = {row.name: row for row in declared(LM(tiny("mhc")))}
    for name, row in rows.items():
        assert (row.tuning.fixed_eps == 1e-20) == (".residual." in name), name
    roles = {name.rsplit(".", 1)[1]: row.role for name, row in rows.items() if ".residual." in name}
    assert roles == {"phi": "dynamic", "bias": "static", "scale": "static"}


@pytest.mark.parametrize("spec", ["hc", "hc:dynamic=off", "mhc"])
def test_streams_are_equal_at_the_start_and_part_by_training(spec: str) -> None:
    ids = token_ids(2, 12)

    def spread(model: LM) -> float:
        H = states(model, ids)[-1].detach()
        return float((H - H.mean(-2, keepdim=True)).norm() / H.norm())

    model = trained(spec, 0)
    assert spread(model) < 1e-6
    assert spread(trained(spec, 10, lr=1e-2)) > 1e-3


# ------------------------------------------------------------------------------------------------------ mechanics
@pytest.mark.parametrize("kind", [HyperConnection, ManifoldHyperConnection])
def test_new_streams_are_the_mixing_matrix_times_the_old_ones(kind: type) -> None:
    """The branch must not be added to the unmixed streams, a bug that hides where the matrix starts as the identity."""
    residual = kind(make_site(tiny("hc"), 0, "attn"), 4).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in residual.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    H = torch.randn(2, 3, 4, 16, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64)
    read, write, mix = residual.coefficients(H)
    mix = mix.expand(2, 3, 4, 4)
    assert not torch.allclose(mix, mix.mT, atol=1e-2)
    x, rest = residual.read(H)
    new = residual.write(rest, y)
    for b in range(2):
        for t in range(3):
            A, m = mix[b, t], read.expand(2, 3, 4)[b, t]
            torch.testing.assert_close(x[b, t], m @ H[b, t])
            torch.testing.assert_close(new[b, t], A.T @ H[b, t] + torch.outer(write.expand(2, 3, 4)[b, t], y[b, t]))


def test_write_leaves_the_old_streams_alone() -> None:
    model = perturbed("hc")
    H = torch.randn(1, 3, 4, 16)
    before = H.clone()
    _, rest = model.layers[0].attn.residual.read(H)
    model.layers[0].attn.residual.write(rest, torch.randn(1, 3, 16))
    assert torch.equal(H, before)


@pytest.mark.parametrize("spec", ["hc:n=0", "mhc:n=1", "hc:n=-2"])
def test_impossible_numbers_of_streams_are_refused(spec: str) -> None:
    with pytest.raises(InputError, match="number of streams"):
        scheme(spec)


def test_mhc_needs_an_iteration() -> None:
    with pytest.raises(InputError, match="iterations"):
        scheme("mhc:iterations=0")
