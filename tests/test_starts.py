"""What each scheme is before the first step: which equal Pre-Norm, and the scale of every matrix by role."""

from __future__ import annotations

import doctest
import importlib
import math

import pytest
import torch
from nets import TINY, tiny, token_ids

from layerrope.gains import LayerRoPE
from layerrope.model import LM
from layerrope.roles import declared
from layerrope.scheme_table import scheme

EQUAL_PRENORM = [
    "hc",
    "hc:n=2",
    "hc:dynamic=off",
    "mhc",
    "mhc:n=2,off=-8",
    "layerscale:start=1",
    "completep:base=4",
    "layerrope:rotation=off,beta=0",
]
"""Schemes that start as Pre-Norm when their matrices are Pre-Norm's."""


def with_prenorm_matrices(spec: str, **changes: object) -> tuple[LM, LM]:
    """The scheme and Pre-Norm at the same matrices and embeddings, everything else at its start."""
    plain, model = LM(tiny("prenorm", **changes)), LM(tiny(spec, **changes))
    matrices = {n: w for n, w in plain.state_dict().items() if "norm" not in n and "branch" not in n}
    unexpected = model.load_state_dict(matrices, strict=False).unexpected_keys
    assert not unexpected
    return plain, model


@pytest.mark.parametrize("spec", EQUAL_PRENORM)
def test_starts_as_prenorm(spec: str) -> None:
    plain, model = with_prenorm_matrices(spec)
    ids = token_ids(2, 12)
    torch.testing.assert_close(model(ids), plain(ids), rtol=1e-5, atol=1e-5)


def test_rezero_starts_as_the_embedding_and_only_its_scalars_learn_at_first() -> None:
    model = LM(tiny("rezero"))
    ids = token_ids(2, 12)
    assert torch.equal(model(ids), model.logits(model.embed(ids)))
    model(ids[:, :-1], ids[:, 1:]).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        inside = name.startswith("layers.")
        assert bool(p.grad.any()) != inside, name


@pytest.mark.parametrize(
    ("spec", "scale"),
    [
        ("prenorm", {}),
        ("lns", {}),
        ("mixln", {}),
        ("prenorm-scaledinit", dict.fromkeys(("o", "down"), 48**-0.5)),
        ("perinorm+scaledinit", dict.fromkeys(("o", "down"), 48**-0.5)),
        ("deepnorm", dict.fromkeys(("v", "o", "gate", "up", "down"), 192**-0.25)),
        ("hc", dict.fromkeys(("o", "down"), 0.5)),
        ("hc:n=2+scaledinit", dict.fromkeys(("o", "down"), (2 * 48) ** -0.5)),
    ],
)
def test_scale_of_each_matrix_by_role(spec: str, scale: dict[str, float]) -> None:
    model = LM(tiny(spec, n_layer=24, d_model=64, d_ff=96, init_std=0.02))
    for kind, roles in (("attn", "q k v o"), ("mlp", "gate up down")):
        for role in roles.split():
            weights = torch.stack(
                [layer.get_submodule(kind).f.get_submodule(role).weight.detach() for layer in model.layers]
            )
            expected = 0.02 * scale.get(role, 1.0)
            assert float(weights.std()) == pytest.approx(expected, rel=4 / math.sqrt(weights.numel())), role
            assert abs(float(weights.mean())) < 5 * expected / math.sqrt(weights.numel()), role


def test_deepnorm_at_24_layers_has_the_papers_constants() -> None:
    model = LM(tiny("deepnorm", n_layer=24))
    assert {round(layer.attn.residual.alpha, 4) for layer in model.layers} == {2.6321}
    stds = {name.rsplit(".", 2)[1]: std for name, _, std in model.init_stds() if name.startswith("layers.")}
    base = TINY.init_std
    assert {role: round(std / base * 0.02, 5) for role, std in stds.items()} == {
        "q": 0.02,
        "k": 0.02,
        **dict.fromkeys(("v", "o", "gate", "up", "down"), 0.00537),
    }


def test_layerscale_starts_by_depth() -> None:
    for n_layer, start in ((12, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)):
        with torch.device("meta"):
            config = tiny("layerscale", n_layer=n_layer)
            model = LM(config)
        assert {layer.mlp.branch.post.start for layer in model.layers} == {start}


@pytest.mark.parametrize(("spec", "power"), [("depth-mup:base=8", 0.5), ("completep:base=8", 1.0)])
def test_depth_transfer_rules_scale_branch_rate_and_eps(spec: str, power: float) -> None:
    """m = L / base = 3: branches m^-a, rates inside the layers m^(a - 1), Adam's eps m^-a; nothing outside."""
    model = LM(tiny(spec, n_layer=24))
    assert model.gains is not None
    table = model.gains(24)
    assert torch.equal(table[:, :, 0], torch.ones(24, 2, 1))
    torch.testing.assert_close(table[:, :, 1], torch.full((24, 2, 1), 3.0**-power))
    for row in declared(model):
        expected = (3.0 ** (power - 1), 3.0**-power) if row.name.startswith("layers.") else (1.0, 1.0)
        assert (row.tuning.lr, row.tuning.eps) == pytest.approx(expected), row.name


def test_layerrope_starts_flat_where_a_constant_already_shrinks_with_depth() -> None:
    def slopes(spec: str) -> list[float]:
        tables = scheme(spec).build_gains(4, 16)
        (layerrope,) = (m for m in tables.modules() if isinstance(m, LayerRoPE)) if tables else ()
        return layerrope.beta.tolist() if layerrope.beta is not None else []

    assert slopes("layerrope") == slopes("hc+layerrope") == slopes("rezero+layerrope") == [-0.5] * 4
    assert slopes("lns+layerrope") == [0.0, -0.5, 0.0, -0.5]
    for spec in ("prenorm-scaledinit", "deepnorm", "keel", "layerscale", "depth-mup", "completep"):
        assert slopes(f"{spec}+layerrope") == [-0.5, 0.0, -0.5, 0.0], spec
    assert slopes("lns+layerrope:beta=-0.25") == [-0.25] * 4


# -------------------------------------------------------------------------------------------------- scale by depth
def streams(model: LM, n: int = 8) -> list[torch.Tensor]:
    """The stream after the embedding and after each layer, (B, T, D)."""
    seen: list[torch.Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda m, args: seen.append(args[0])) for layer in model.layers]
    hooks.append(model.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0])))
    with torch.no_grad():
        model(token_ids(n, 12))
    for hook in hooks:
        hook.remove()
    return seen


def rms_of(h: torch.Tensor) -> torch.Tensor:
    return h.square().mean(-1).sqrt()


def test_lns_scales_what_both_norms_give_and_not_the_final_one() -> None:
    model, plain = LM(tiny("lns", n_layer=6)), LM(tiny("prenorm", n_layer=6))
    x = torch.randn(2, 5, 16)
    rows = model.gain_rows(x.device)
    for i, row in enumerate(rows):
        assert row is not None
        for k, kind in enumerate(("attn", "mlp")):
            norms = [m.layers[i].get_submodule(kind).branch.pre for m in (model, plain)]
            torch.testing.assert_close(norms[0](x, row[k, 0]), norms[1](x) / math.sqrt(i + 1))
    assert torch.equal(model.norm(x), plain.norm(x))


def test_mixln_streams_have_unit_rms_up_to_the_split_and_not_beyond() -> None:
    seen = streams(LM(tiny("mixln", n_layer=8)))
    unit = [bool((rms_of(h) - 1).abs().max() < 1e-4) for h in seen[1:]]
    assert unit == [True] * 2 + [False] * 6


def test_keel_normalises_from_the_first_mlp_on() -> None:
    model = LM(tiny("keel"))
    with torch.no_grad():
        model.embed.weight.mul_(2)
    assert all(bool((rms_of(h) - 1).abs().max() < 1e-4) for h in streams(model)[1:])
    alphas = [
        s.residual.alpha for layer in model.layers for s in (layer.attn, layer.mlp) if hasattr(s.residual, "alpha")
    ]
    assert alphas == [1.0] + [8.0] * 6


def test_perinorm_adds_one_to_the_variance_with_each_sublayer() -> None:
    n_layer = 24
    model = LM(tiny("perinorm", n_layer=n_layer, d_model=128, n_head=4, d_ff=128))
    seen = streams(model)
    growth = float(seen[-1].square().mean() - seen[0].square().mean())
    assert growth == pytest.approx(2 * n_layer, rel=0.2)


def test_perinorm_cancels_the_scale_of_the_output_projections() -> None:
    model = LM(tiny("perinorm", init_std=1.0))
    ids = token_ids(2, 12)
    before = model(ids)
    with torch.no_grad():
        for layer in model.layers:
            layer.attn.f.o.weight.mul_(10)
            layer.mlp.f.down.weight.mul_(10)
    torch.testing.assert_close(model(ids), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    ["scheme_spec", "scheme_table", "gains", *(f"residual.{m}" for m in ("post_norm", "x0", "manifold", "attn_res"))],
)
def test_examples_in_the_docstrings_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"layerrope.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
