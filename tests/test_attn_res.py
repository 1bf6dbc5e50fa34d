"""Attention Residuals: the mixing, the groups, and what is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from nets import perturbed, tiny, token_ids
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree

from layerrope.errors import InputError
from layerrope.model import LM
from layerrope.residual.attn_res import Sources, depth_weights, inverse_rms, mix, n_sources


def sources(n: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(n))


def mixed(q: Tensor, *values: Tensor) -> Tensor:
    return mix(q, Sources(values, tuple(inverse_rms(v, 1e-6) for v in values)))


# -------------------------------------------------------------------------------------------------------- the mix
@pytest.mark.parametrize("n", [1, 2, 5])
def test_mix_has_the_exact_gradient(n: int) -> None:
    q, *values = (t.requires_grad_() for t in (torch.randn(4, dtype=torch.float64), *sources(n, 2, 3, 4)))
    assert torch.autograd.gradcheck(mixed, (q, *values))


def test_weights_sum_to_one_and_a_zero_query_gives_the_mean() -> None:
    values = sources(5, 2, 3, 8)
    scales = [inverse_rms(v, 1e-6) for v in values]
    _, weights = depth_weights(torch.randn(8, dtype=torch.float64), values, scales)
    torch.testing.assert_close(weights.sum(0), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(mixed(torch.zeros(8, dtype=torch.float64), *values), torch.stack(values).mean(0))


def test_bf16_sources_are_mixed_in_fp32() -> None:
    q = torch.randn(64)
    values = sources(6, 2, 3, 64, dtype=torch.bfloat16)
    exact = mixed(q, *(v.float() for v in values))
    with torch.autocast("cpu", torch.bfloat16):
        low, high = mixed(q, *values), mixed(q, *(v.float() for v in values))
    assert low.dtype == torch.bfloat16
    # one rounding to bf16, 2^-8, beside the order in which fp32 adds; a mix added up in bf16 is several roundings off
    torch.testing.assert_close(low.float(), exact, rtol=2**-8 * 1.001, atol=1e-5)
    assert torch.equal(high, exact)


def test_bf16_gradient_follows_the_sources() -> None:
    q = torch.randn(64, requires_grad=True)
    values = [v.requires_grad_() for v in sources(3, 2, 3, 64, dtype=torch.bfloat16)]
    mixed(q, *values).sum().backward()
    wide = [v.detach().float().requires_grad_() for v in values]
    mixed(q, *wide).sum().backward()
    for v, w in zip(values, wide, strict=True):
        assert v.grad is not None
        assert v.grad.dtype == torch.bfloat16
        torch.testing.assert_close(v.grad.float(), w.grad, rtol=2e-2, atol=2e-2)


# ------------------------------------------------------------------------------------------------------- the groups
def test_groups_of_one_are_the_full_form() -> None:
    ids = token_ids(2, 12)
    assert torch.equal(perturbed("attnres:size=1")(ids), perturbed("attnres")(ids))
    assert torch.equal(perturbed("attnres:blocks=8")(ids), perturbed("attnres")(ids))


def test_one_group_is_prenorm_at_a_zero_query() -> None:
    config = tiny("attnres:blocks=1")
    model, plain = LM(config).double(), LM(replace(config, scheme="prenorm")).double()
    ids = token_ids(2, 12)
    torch.testing.assert_close(model(ids), plain(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "counts"), [(1, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [1, 2, 2, 2, 3, 3, 3, 4]), (4, [1] + [2] * 4 + [3] * 3)]
)
def test_number_of_sources(size: int, counts: list[int]) -> None:
    model = LM(tiny(f"attnres:size={size}"))
    seen: list[int] = []
    for layer in model.layers:
        for sublayer in (layer.attn, layer.mlp):
            sublayer.register_forward_pre_hook(lambda module, args: seen.append(len(args[0].values)))
    model(token_ids(1, 5))
    assert seen == counts == [n_sources(s, size) for s in range(8)]


@pytest.mark.parametrize("spec", ["attnres", "attnres:size=3"])
def test_causal_in_depth(spec: str) -> None:
    """A sublayer's output changes nothing that was read before it."""

    def reads(change: int | None) -> list[Tensor]:
        model = perturbed(spec)
        seen: list[Tensor] = []
        for i, sublayer in enumerate(s for layer in model.layers for s in (layer.attn, layer.mlp)):
            sublayer.branch.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
            if i == change:
                sublayer.branch.register_forward_hook(lambda module, args, y: y + 1)
        model(token_ids(1, 5))
        return seen

    for i, (a, b) in enumerate(zip(reads(None), reads(4), strict=True)):
        assert torch.equal(a, b) == (i <= 4), i


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("size=0", "size=0 .* 8 sublayers"),
        ("size=-2", "size=-2"),
        ("size=9", "size=9 .* 8 sublayers"),
        ("blocks=9", "blocks=9"),
        ("blocks=-1", "blocks=-1"),
        ("size=2,blocks=2", "not both"),
    ],
)
def test_bad_groups_are_refused_by_name(options: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LM(tiny(f"attnres:{options}"))


# ------------------------------------------------------------------------------------------------------------ memory
@contextmanager
def kept() -> Iterator[dict[int, int]]:
    """Bytes that autograd keeps for the backward pass, by storage."""
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        yield storages


def kept_bytes(model: nn.Module, ids: Tensor) -> int:
    with kept() as storages:
        model(ids, ids)
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_layer", [8, 96])
def test_extra_memory_is_the_sources_and_not_a_copy_for_each_sublayer(n_layer: int, dtype: torch.dtype) -> None:
    """At most (B, T, D) for each source beyond Pre-Norm, four numbers a position, and three vectors of the query."""
    shape = {"n_layer": n_layer, "d_model": 64, "d_ff": 64, "n_head": 1, "seq_len": 32}
    ids = token_ids(2, 32)
    extra = [kept_bytes(LM(tiny(s, **shape)).to(dtype), ids) for s in ("prenorm", "attnres")]
    stream, position = ids.numel() * 64 * dtype.itemsize, ids.numel() * 4
    assert extra[1] - extra[0] <= (2 * n_layer + 1) * (stream + 4 * position + 3 * 64 * 4)


def test_another_schemes_weights_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"residual\.mix\.query"):
        LM(tiny("attnres")).load_state_dict(LM(tiny("prenorm")).state_dict())


def test_state_is_a_pytree() -> None:
    values = sources(2, 1, 2, 4)
    leaves, spec = _pytree.tree_flatten(Sources(values, values))
    assert len(leaves) == 4
    assert isinstance(_pytree.tree_unflatten(leaves, spec), Sources)
