"""Roles and conventions of norms: by what they do, per tensor, and never guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerrope.norm_sites import (
    GGUF_ADDED_ONE,
    GGUF_ARCHITECTURES,
    LAYOUTS,
    MODEL_TYPES,
    ONE_PLUS_W,
    ROLES,
    architecture_of,
    find_norms,
    role_words,
    split_name,
    tensor_name,
)

# (model type, tensor name, role, layer, convention) as the public implementations have them.
KNOWN: list[tuple[str, str, str, int | None, str]] = [
    ("llama", "model.layers.3.input_layernorm.weight", "attn_read", 3, "w"),
    ("llama", "model.layers.3.post_attention_layernorm.weight", "mlp_read", 3, "w"),
    ("llama", "model.norm.weight", "final", None, "w"),
    ("mistral", "model.layers.0.post_attention_layernorm.weight", "mlp_read", 0, "w"),
    ("qwen2", "model.layers.0.post_attention_layernorm.weight", "mlp_read", 0, "w"),
    ("qwen3", "model.layers.9.self_attn.q_norm.weight", "q_norm", 9, "w"),
    ("qwen3", "model.layers.9.self_attn.k_norm.weight", "k_norm", 9, "w"),
    ("glm", "model.layers.1.post_attention_layernorm.weight", "mlp_read", 1, "w"),
    ("glm4", "model.layers.1.input_layernorm.weight", "attn_read", 1, "w"),
    ("glm4", "model.layers.1.post_self_attn_layernorm.weight", "attn_write", 1, "w"),
    ("glm4", "model.layers.1.post_attention_layernorm.weight", "mlp_read", 1, "w"),
    ("glm4", "model.layers.1.post_mlp_layernorm.weight", "mlp_write", 1, "w"),
    ("gemma", "model.layers.1.post_attention_layernorm.weight", "mlp_read", 1, "1+w"),
    ("gemma2", "model.layers.1.input_layernorm.weight", "attn_read", 1, "1+w"),
    ("gemma2", "model.layers.1.post_attention_layernorm.weight", "attn_write", 1, "1+w"),
    ("gemma2", "model.layers.1.pre_feedforward_layernorm.weight", "mlp_read", 1, "1+w"),
    ("gemma3", "language_model.model.layers.1.post_feedforward_layernorm.weight", "mlp_write", 1, "1+w"),
    ("gemma3_text", "model.norm.weight", "final", None, "1+w"),
    ("olmo2", "model.layers.1.post_attention_layernorm.weight", "attn_write", 1, "w"),
    ("olmo2", "model.layers.1.post_feedforward_layernorm.weight", "mlp_write", 1, "w"),
    ("olmo3", "model.layers.1.post_feedforward_layernorm.weight", "mlp_write", 1, "w"),
    ("phi3", "model.layers.31.post_attention_layernorm.weight", "mlp_read", 31, "w"),
    ("phi", "model.layers.3.input_layernorm.weight", "shared_read", 3, "w"),
    ("phi", "model.final_layernorm.weight", "final", None, "w"),
    ("cohere", "model.layers.2.input_layernorm.weight", "shared_read", 2, "w"),
    ("falcon", "transformer.h.2.input_layernorm.weight", "shared_read", 2, "w"),
    ("gpt_neox", "gpt_neox.layers.5.post_attention_layernorm.weight", "mlp_read", 5, "w"),
    ("gpt_neox", "gpt_neox.final_layer_norm.bias", "final", None, "w"),
    ("gpt2", "h.0.ln_1.weight", "attn_read", 0, "w"),
    ("gpt2", "transformer.h.11.ln_2.weight", "mlp_read", 11, "w"),
    ("gpt2", "transformer.ln_f.weight", "final", None, "w"),
    ("bert", "bert.encoder.layer.4.attention.output.LayerNorm.weight", "attn_post", 4, "w"),
    ("bert", "bert.encoder.layer.4.output.LayerNorm.gamma", "mlp_post", 4, "w"),
    ("bert", "bert.embeddings.LayerNorm.weight", "embedding", None, "w"),
    ("vit", "vit.encoder.layer.4.layernorm_before.weight", "attn_read", 4, "w"),
    ("deit", "deit.encoder.layer.4.layernorm_after.weight", "mlp_read", 4, "w"),
    ("timm-vit", "blocks.4.norm2.weight", "mlp_read", 4, "w"),
    ("timm-vit", "blocks.4.ls1.gamma", "attn_write", 4, "w"),
    ("nemotron", "model.layers.4.input_layernorm.weight", "attn_read", 4, "1+w"),
    ("layerrope", "layers.4.mlp.branch.pre.weight", "mlp_read", 4, "w"),
    ("layerrope", "layers.4.attn.branch.post.weight", "attn_write", 4, "w"),
]


@pytest.mark.parametrize(("model_type", "name", "role", "layer", "convention"), KNOWN)
def test_a_norm_is_known_by_its_role(model_type: str, name: str, role: str, layer: int | None, convention: str) -> None:
    (norm,) = find_norms([name], {"model_type": model_type}).tensors
    assert (norm.role, norm.layer, norm.convention) == (role, layer, convention)
    assert model_type in norm.reason


GGUF: list[tuple[str, str, str]] = [
    ("llama", "blk.0.attn_norm.weight", "attn_read"),
    ("llama", "blk.0.ffn_norm.weight", "mlp_read"),
    ("gemma2", "blk.0.post_attention_norm.weight", "attn_write"),
    ("gemma3", "blk.0.post_ffw_norm.weight", "mlp_write"),
    ("glm4", "blk.0.post_attention_norm.weight", "attn_write"),
    ("glm4moe", "blk.0.post_attention_norm.weight", "mlp_read"),
    ("olmo2", "blk.0.post_attention_norm.weight", "attn_write"),
    ("gpt-oss", "blk.0.post_attention_norm.weight", "mlp_read"),
    ("command-r", "blk.0.attn_norm.weight", "shared_read"),
    ("bert", "blk.0.attn_output_norm.weight", "attn_post"),
    ("qwen3", "blk.0.attn_k_norm.weight", "k_norm"),
    ("qwen3next", "blk.0.ssm_norm.weight", "attn_inner"),
    ("gptneox", "output_norm.weight", "final"),
]


@pytest.mark.parametrize(("architecture", "name", "role"), GGUF)
def test_gguf_holds_the_gain_itself(architecture: str, name: str, role: str) -> None:
    (norm,) = find_norms([name], {"general.architecture": architecture}, "gguf").tensors
    assert (norm.role, norm.convention) == (role, "w")
    added = architecture in GGUF_ADDED_ONE and role != "attn_inner"
    assert ("has added the 1" in norm.reason) == added


def test_the_rule_is_per_tensor_where_one_layer_mixes_both_kinds() -> None:
    names = ["model.layers.0.input_layernorm.weight", "model.layers.0.linear_attn.norm.weight"]
    plus_one, plain = find_norms(names, {"model_type": "qwen3_next"}).tensors
    assert (plus_one.convention, plain.convention) == ("1+w", "w")
    assert "plain gated norm" in plain.reason
    stored = np.array([-0.5, 0.5])
    assert plus_one.gain(stored).tolist() == [0.5, 1.5]
    assert plain.gain(stored).tolist() == [-0.5, 0.5]


def test_one_plus_w_never_touches_a_bias() -> None:
    (bias,) = find_norms(["model.layers.0.input_layernorm.bias"], {"model_type": "nemotron"}).tensors
    assert bias.part == "bias"
    assert bias.gain(np.array([0.25])).tolist() == [0.25]


@pytest.mark.parametrize("config", [{}, {"model_type": "brand_new"}, {"model_type": 7}, {"general.architecture": "x"}])
def test_an_unknown_architecture_is_raw_and_its_roles_unknown(config: dict[str, Any]) -> None:
    names = [f"net.blocks.{i}.{n}.weight" for i in range(3) for n in ("input_layernorm", "mlp.up", "ln_2")]
    found = find_norms(names, config)
    assert not found.known
    assert {n.role for n in found.tensors} == {"unknown:net.blocks.*.input_layernorm", "unknown:net.blocks.*.ln_2"}
    assert {n.convention for n in found.tensors} == {"raw"}
    assert [n.layer for n in found.tensors] == [0, 0, 1, 1, 2, 2]
    stored = np.array([0.1])
    assert found.tensors[0].gain(stored) is stored


def test_only_vectors_count_where_the_architecture_is_unknown() -> None:
    shapes = {"a.norm.weight": (4,), "b.norm.weight": (4, 4)}
    assert [n.name for n in find_norms(shapes, {}, shapes=shapes).tensors] == ["a.norm.weight"]


def test_a_known_architecture_under_strange_names_is_shown_raw_with_a_note() -> None:
    found = find_norms(["stack.0.prenorm.weight"], {"model_type": "llama"})
    assert not found.known
    assert found.tensors[0].convention == "raw"
    assert "llama" in found.notes[0]


def test_weightless_norms_are_said_to_be_so() -> None:
    found = find_norms(["model.layers.0.self_attn.q_proj.weight"], {"model_type": "olmo"})
    assert found.tensors == ()
    assert "without weights" in found.notes[0]


def test_falcon_s_three_shapes() -> None:
    parallel = ["transformer.h.0.input_layernorm.weight"]
    sequential = [*parallel, "transformer.h.0.post_attention_layernorm.weight"]
    large = ["transformer.h.0.ln_attn.weight", "transformer.h.0.ln_mlp.weight"]
    roles = [
        [n.role for n in find_norms(names, {"model_type": "falcon"}).tensors] for names in (parallel, sequential, large)
    ]
    assert roles == [["shared_read"], ["attn_read", "mlp_read"], ["attn_read", "mlp_read"]]
    gguf = find_norms(
        ["blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight"], {"general.architecture": "falcon"}, "gguf"
    )
    assert [n.role for n in gguf.tensors] == ["mlp_read", "attn_read"]


def test_the_language_tower_is_taken_and_others_are_named() -> None:
    text = [f"model.language_model.layers.{i}.input_layernorm.weight" for i in range(4)]
    other = [f"model.audio_tower.layers.{i}.input_layernorm.weight" for i in range(2)]
    config = {"model_type": "some_vlm", "text_config": {"model_type": "gemma3_text"}}
    found = find_norms([*other, *text, "model.language_model.norm.weight", "vision.norm.weight"], config)
    assert found.architecture == "gemma3_text"
    assert [n.name for n in found.tensors] == [*text, "model.language_model.norm.weight"]
    assert "audio_tower" in found.notes[0]


def test_a_compiled_wrapper_s_prefix_changes_nothing() -> None:
    (norm,) = find_norms(["_orig_mod.model.layers.2.input_layernorm.weight"], {"model_type": "llama"}).tensors
    assert (norm.role, norm.layer) == ("attn_read", 2)


def test_the_architecture_can_be_given_by_hand() -> None:
    names = ["layers.0.attention_norm.weight"]
    assert not find_norms(names, {}).known
    assert find_norms(names, {}, architecture="meta-llama").tensors[0].role == "attn_read"


def test_timm_s_configuration_is_recognised() -> None:
    assert architecture_of({"architecture": "deit_small_patch16_224", "num_classes": 1000}) == "timm-vit"
    assert architecture_of({"architecture": "resnet50"}) == "resnet50"
    assert architecture_of({}, "run") == "layerrope"


@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_names_written_are_names_found(model_type: str) -> None:
    layout = LAYOUTS[MODEL_TYPES[model_type]]
    for role, templates in layout.roles.items():
        layer = 2 if "{l}" in templates[0] else None
        (norm,) = find_norms([tensor_name(model_type, role, layer)], {"model_type": model_type}).tensors
        assert (norm.role, norm.layer) == (role, layer)


def test_the_tables_are_whole() -> None:
    assert set(MODEL_TYPES.values()) | set(GGUF_ARCHITECTURES.values()) == set(LAYOUTS)
    assert set(ONE_PLUS_W) <= set(MODEL_TYPES)
    assert set(GGUF_ADDED_ONE) <= set(GGUF_ARCHITECTURES)
    assert all(role in ROLES for layout in LAYOUTS.values() for role in layout.roles)
    assert role_words("unknown:a.*.b") == "unknown site a.*.b"


@given(st.text(max_size=60), st.sampled_from([*sorted(MODEL_TYPES), "nobody's", ""]))
def test_no_name_breaks_the_search(name: str, model_type: str) -> None:
    for norm in find_norms([name], {"model_type": model_type}).tensors:
        assert norm.name == name
    pattern, layer, _ = split_name(name)
    assert layer is None or 0 <= layer < 100_000
    assert isinstance(pattern, str)
