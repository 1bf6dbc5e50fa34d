"""Folding: the same logits without a gain table, and a refusal, by name, of what cannot be folded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_models import IDS, logits, model
from torch import nn

import layerrope
from layerrope import InputError
from layerrope.exporting.folding import fold_tensors, lm_from_tensors, obstacles
from layerrope.scheme_table import schemes

FOLDABLE = {
    "prenorm": "prenorm",
    "layerrope": "prenorm",
    "lns": "prenorm",
    "layerscale": "prenorm",
    "depth-mup": "prenorm",
    "lns+layerrope": "prenorm",
    "layerscale+layerrope": "prenorm",
    "layerrope:rotation=off": "prenorm",
    "layerrope:schedule=free,gamma=layer": "prenorm",
    "layerrope:sites=read": "prenorm",
    "layerrope:sites=mlp_write": "prenorm",
    "perinorm": "perinorm",
    "layerrope-peri": "perinorm",
    "perinorm+lns": "perinorm",
    "perinorm+completep": "perinorm",
}


@pytest.mark.parametrize("scheme", FOLDABLE)
@pytest.mark.parametrize("preset", ["modern", "gpt-2017"])
def test_a_folded_model_computes_the_same_without_gains(scheme: str, preset: str) -> None:
    parts = {"norm": "layernorm", "position": "learned", "mlp": "gelu", "bias": True} if preset == "gpt-2017" else {}
    made = model(scheme, **parts)
    folded = layerrope.fold(made)
    assert folded.config.scheme == (FOLDABLE[scheme] if folded is not made else made.config.scheme)
    assert folded.gains is None
    torch.testing.assert_close(logits(folded), logits(made), rtol=0, atol=5e-6)
    assert not any("gains" in name for name in folded.state_dict())


@pytest.mark.parametrize("scheme", ["layerrope", "layerrope-peri"])
def test_the_source_is_untouched_and_a_second_fold_does_nothing(scheme: str) -> None:
    made = model(scheme)
    before = {name: t.clone() for name, t in made.state_dict().items()}
    folded = layerrope.fold(made)
    assert all(torch.equal(t, before[name]) for name, t in made.state_dict().items())
    assert layerrope.fold(folded) is folded
    assert fold_tensors(folded).record == {}


def test_every_scheme_of_the_table_either_folds_exactly_or_is_refused_by_name() -> None:
    for name in schemes:
        made = model(name)
        if obstacles(made):
            with pytest.raises(InputError, match=f"scheme '{name}'.*no stock form"):
                layerrope.fold(made)
        else:
            torch.testing.assert_close(logits(layerrope.fold(made)), logits(made), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("scheme", "feature"),
    [
        ("deepnorm", "PostNorm|final norm"),
        ("keel", "PostNorm"),
        ("mixln:fraction=0.5", "PostNorm"),
        ("hc", "more than one vector"),
        ("hc+layerrope", "more than one vector"),
        ("rezero", "without a norm"),
        ("nanochat", "more than one vector"),
    ],
)
def test_what_cannot_be_folded_is_named(scheme: str, feature: str) -> None:
    with pytest.raises(InputError, match=feature):
        layerrope.fold(model(scheme))


def test_only_the_covered_site_changes() -> None:
    """EXP-3: a gain on what the MLP reads changes the norm that feeds the MLP, and nothing else, byte for byte."""
    for scheme in ("layerrope:sites=mlp_read", "perinorm+layerrope:sites=mlp_read"):
        made = model(scheme)
        folded = layerrope.fold(made).state_dict()
        kept = {name: t for name, t in made.state_dict().items() if not name.startswith("gains.")}
        changed = {name for name, t in folded.items() if name not in kept or not torch.equal(t, kept[name])}
        assert changed == {f"layers.{i}.mlp.branch.pre.weight" for i in range(3)}


def test_matrices_are_rounded_once() -> None:
    made = model("layerrope").to(torch.bfloat16)
    folded = layerrope.fold(made)
    exact = fold_tensors(made).tensors
    for name, t in folded.state_dict().items():
        assert torch.equal(t, exact[name].to(t.dtype)), name
    assert folded.layers[0].attn.f.o.weight.dtype == torch.bfloat16
    assert folded.layers[0].attn.branch.pre.weight.dtype == torch.float32
    expected = (
        made.layers[1].mlp.f.down.weight.double() * made.gain_rows(torch.device("cpu"))[1][1, 1].double()[:, None]
    )
    assert torch.equal(folded.layers[1].mlp.f.down.weight.double(), expected.float().to(torch.bfloat16).double())


@settings(max_examples=15, deadline=None)
@given(
    beta=st.floats(-2, 1),
    rotation=st.floats(-2, 2),
    heads=st.sampled_from([(2, 1), (2, 2), (4, 2)]),
    tie=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_folding_holds_for_any_gains(
    beta: float, rotation: float, heads: tuple[int, int], tie: bool, seed: int
) -> None:
    spec = f"layerrope:beta={beta:.3f},alpha_rot={rotation:.3f}"
    made = model(spec, seed=seed, n_layer=2, n_head=heads[0], n_kv_head=heads[1], d_model=32, tie=tie)
    ids = IDS[:1, :16]
    scale = logits(made, ids).abs().max().clamp(min=1)
    assert float((logits(layerrope.fold(made), ids) - logits(made, ids)).abs().max() / scale) < 2e-5


def test_an_lm_from_tensors_names_what_does_not_match() -> None:
    made = model("prenorm")
    state = made.state_dict()
    with pytest.raises(InputError, match=r"embed.weight is missing"):
        lm_from_tensors(made.config, {k: v for k, v in state.items() if k != "embed.weight"})
    with pytest.raises(InputError, match=r"norm.weight has shape \(3,\)"):
        lm_from_tensors(made.config, state | {"norm.weight": torch.ones(3)})
    with pytest.raises(InputError, match="tensor other is not in"):
        lm_from_tensors(made.config, state | {"other": torch.ones(3)})


def test_norms_with_differing_eps_are_refused() -> None:
    made = model("layerrope")
    made.layers[1].mlp.branch.pre.eps = 1e-3
    with pytest.raises(InputError, match=r"differing eps \(1e-06, 0.001\)"):
        layerrope.fold(made)


def test_other_models_with_gains_are_not_taken_for_models_without() -> None:
    looped = layerrope.LoopedLM(layerrope.LoopedConfig(d_model=16, d_ff=24, scheme="layerrope"))
    vit = layerrope.ViT(layerrope.ViTConfig(n_layer=1, scheme="lns"))
    for other in (torch.compile(model("layerrope")), nn.Sequential(model("lns")), looped, vit):
        with pytest.raises(InputError, match="with gains does not fold: give an LM"):
            layerrope.fold(other)
    plain = nn.Sequential(model("prenorm"))
    assert layerrope.fold(plain) is plain


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="cannot fold a str"):
        layerrope.fold("runs/x")


def test_a_module_without_a_model_type_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match=r'Linear has no model type .*architecture="llama".*howto-own-model'):
        layerrope.apply(torch.nn.Linear(2, 2))
