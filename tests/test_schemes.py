"""The contract of a depth scheme, held by every row of the table and by combinations."""

from __future__ import annotations

import re

import pytest
import torch
from nets import perturbed, role_of, tiny, token_ids
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from layerrope.errors import InputError
from layerrope.model import LM
from layerrope.norms import KeepFp32
from layerrope.scheme_table import scheme, schemes
from layerrope.training.optim import Optimizers

COMBINATIONS = [
    "hc+layerrope",
    "mhc+layerrope",
    "attnres+layerrope",
    "attnres:blocks=8",
    "xhc:n=6,active=3,fixed=1",
    "hc:n=2,dynamic=off",
    "perinorm+depth-mup:base=2",
    "postnorm+layerrope",
    "lns+layerrope",
    "layerrope:rotation=off",
    "layerrope:sites=write,magnitude=off",
    "layerrope-peri:gamma=layer",
    "layerrope:schedule=free,alpha=0/damped",
]
SPECS = [*schemes, *COMBINATIONS]

GRAPHS: dict[str, int] = {"attnres+layerrope": 3}
"""Compiled graphs at L = 24 where a scheme needs more than two, and how many."""


DEAD: dict[str, tuple[str, ...]] = {"xhc": ("layers.0.attn.residual.phi_res", "layers.0.attn.residual.bias_res")}
"""Parameters that cannot matter: the first streams are equal, and mixing equal streams changes nothing."""


def loss_and_grads(model: LM, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("spec", SPECS)
def test_is_causal(spec: str) -> None:
    model = perturbed(spec).double()
    ids = token_ids(2, 10)
    later = ids.clone()
    later[:, 6:] = (ids[:, 6:] + 1) % 31
    a, b = model(ids), model(later)
    assert torch.equal(a[:, :6], b[:, :6])
    assert not torch.allclose(a[:, 6:], b[:, 6:])


@pytest.mark.parametrize("spec", SPECS)
def test_no_parameter_is_dead_and_gradients_are_finite(spec: str) -> None:
    model = perturbed(spec)
    _, grads = loss_and_grads(model, token_ids(4, 12))
    for name, p in model.named_parameters():
        assert name in grads, f"{name} gets no gradient"
        assert grads[name].isfinite().all(), f"{name} has a gradient that is not finite"
        alive = float(grads[name].abs().max()) > 1e-9 * max(1.0, float(p.detach().abs().max()))
        assert alive == (name not in DEAD.get(re.split("[:+]", spec)[0], ())), (
            f"{name} is {'alive' if alive else 'dead'}"
        )


@pytest.mark.parametrize("spec", SPECS)
def test_start_has_finite_loss_and_gradients(spec: str) -> None:
    model = LM(tiny(spec, n_layer=24))
    loss, grads = loss_and_grads(model, token_ids(2, 12))
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in grads.values())


class Recomputed(nn.Module):
    """A layer whose activations are recomputed in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: object) -> object:
        return checkpoint(self.layer, *args, use_reentrant=False)


@pytest.mark.parametrize("spec", SPECS)
def test_activation_checkpointing_changes_no_bit(spec: str) -> None:
    plain, recomputed = perturbed(spec), perturbed(spec)
    ids = token_ids(2, 12)
    loss, grads = loss_and_grads(plain, ids)
    for i, layer in enumerate(recomputed.layers):
        recomputed.layers[i] = Recomputed(layer)
    other_loss, other_grads = loss_and_grads(recomputed, ids)
    assert torch.equal(loss, other_loss)
    for name, grad in other_grads.items():
        assert torch.equal(grad, grads[name.replace(".layer.", ".")]), name


@pytest.mark.parametrize("spec", SPECS)
def test_number_of_compiled_graphs_does_not_grow_with_depth(spec: str) -> None:
    torch._dynamo.reset()
    model = LM(tiny(spec, n_layer=24))
    ids = token_ids(2, 12)
    eager = model(ids)
    counter = CompileCounter()
    for layer in model.layers:
        layer.compile(backend=counter)
    torch.testing.assert_close(model(ids), eager)
    torch._dynamo.reset()
    assert 1 <= counter.frame_count <= GRAPHS.get(spec, 2)


@pytest.mark.parametrize("spec", SPECS)
def test_meta_build_equals_direct_build(spec: str) -> None:
    direct = LM(tiny(spec), seed=3)
    with torch.device("meta"):
        meta = LM(tiny(spec))
    assert not list(meta.buffers()), "a buffer would be wiped by to_empty"
    meta.to_empty(device="cpu")
    with torch.no_grad():
        for p in meta.parameters():
            p.fill_(float("nan"))
    meta.init_weights(3)
    for (name, a), (_, b) in zip(meta.state_dict().items(), direct.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(meta(token_ids(1, 12)), direct(token_ids(1, 12)))


@pytest.mark.parametrize("spec", SPECS)
def test_second_init_equals_the_first(spec: str) -> None:
    model = perturbed(spec)
    model.init_weights(0)
    for (name, a), (_, b) in zip(model.state_dict().items(), LM(tiny(spec)).state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("spec", SPECS)
def test_bf16_cast_and_state_dict_keep_depth(spec: str) -> None:
    model = perturbed(spec)
    cast = perturbed(spec).to(torch.bfloat16)
    roles = role_of(cast)
    for name, p in cast.named_parameters():
        kept = roles[name] not in {"matrix", "embedding", "head"}
        assert p.dtype == (torch.float32 if kept else torch.bfloat16), f"{name} ({roles[name]})"
        assert not kept or torch.equal(p, model.get_parameter(name)), name
    if model.gains is not None:
        assert torch.equal(cast.gains(4), model.gains(4))
    ids = token_ids(2, 12)
    assert cast(ids).isfinite().all()
    fresh = LM(tiny(spec), seed=9)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(ids), model(ids))


@pytest.mark.parametrize("spec", SPECS)
def test_what_a_scheme_adds_stays_fp32_and_has_a_dimension(spec: str) -> None:
    model = LM(tiny(spec))
    for path, module in model.named_modules():
        own = list(module.named_parameters(recurse=False))
        if own and not isinstance(module, nn.Linear | nn.Embedding):
            assert isinstance(module, KeepFp32), f"{path} would follow the model to bf16"
            assert all(p.ndim >= 1 for _, p in own), f"{path} has a parameter that FSDP2 refuses"


@pytest.mark.parametrize("spec", SPECS)
def test_one_step_at_zero_gradient_leaves_gains_and_scalars(spec: str) -> None:
    model = perturbed(spec)
    optimizers = Optimizers(model, "adamw", lr=0.1, weight_decay=0.1)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizers.step(1.0)
    for name, role in role_of(model).items():
        decayed = role in {"matrix", "embedding", "head", "dynamic"}
        assert torch.equal(model.get_parameter(name), before[name]) != decayed, f"{name} ({role})"


@pytest.mark.parametrize("spec", SPECS)
def test_cached_generation_equals_recomputing(spec: str) -> None:
    model = perturbed(spec)
    prompt = token_ids(2, 3)
    cached = model.generate(prompt, 6, temperature=0, cache=True)
    assert torch.equal(cached, model.generate(prompt, 6, temperature=0, cache=False))


@pytest.mark.parametrize("name", schemes)
def test_each_row_says_its_rule_and_source(name: str) -> None:
    row = schemes[name]
    assert "<-" in row.rule
    assert any(word in row.source for word in ("arXiv", "GPT-2"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("hyperconnection", "unknown scheme"),
        ("lns:foo=1", "has no option 'foo'"),
        ("lns:foo", "name=value"),
        ("layerrope:magnitude=3", "not on or off"),
        ("layerrope:base=big", "not a number"),
        ("layerrope:sites=attn", "unknown gain site"),
        ("layerrope+layerrope", "twice"),
        ("prenorm-scaledinit+lns", "count depth twice"),
        ("lns+scaledinit", "count depth twice"),
        ("prenorm+perinorm", "cannot add"),
        ("", "unknown scheme"),
        (None, "named by text"),
        (3, "named by text"),
        ("layerrope:beta=nan", "option beta of scheme 'layerrope' must be a finite"),
        ("layerrope:beta=1e999", "must be a finite"),
        ("layerrope:beta=1/nan", "must be a finite"),
        ("layerrope:base=nan", "must be a finite"),
        ("layerscale:start=nan", "must be a finite"),
        ("rezero:start=-inf", "must be a finite"),
        ("rezero:start=1" + "0" * 400, "must be a finite"),
        ("hc:n=65", "at most 64"),
    ],
)
def test_bad_specs_are_refused_by_name(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        scheme(spec)
