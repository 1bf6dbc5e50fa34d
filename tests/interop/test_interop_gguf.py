"""GGUF: a folded model as one file, read back by three readers that know nothing of how it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_models import IDS, logits, model, plain_llama

from layerrope import InputError, cli
from layerrope.exporting.export import export, verify
from layerrope.exporting.folding import fold_tensors
from layerrope.interop import gguf
from layerrope.interop.gguf_vocab import vocabulary
from layerrope.rotary import halves
from layerrope.tensors import open_source
from layerrope.tensors.gguf_write import write_gguf
from layerrope.text.tokens import EOT, Bytes, Subwords, train_bpe

TEXTS = ["the cat sat on the mat; the dog sat on the log.", "Zwölf Boxkämpfer — 12 of them, 345 rounds!"] * 20


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    source = open_source(folder / "model.gguf")
    return {name: torch.from_numpy(np.array(a)) for name, a in source.read(source.names).items()}


def subwords(**changes: Any) -> Subwords:
    """A small BPE, with changes to its tokenizer.json."""
    from tokenizers import Tokenizer

    file = json.loads(train_bpe(TEXTS, 300).to_str()) | changes
    return Subwords("small", Tokenizer.from_str(json.dumps(file)))


# ------------------------------------------------------------------------------------------------------------- the file
_NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5)
_VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=5),
    _NUMBERS,
)
_SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@settings(max_examples=30)
@given(
    st.dictionaries(st.text(min_size=1, max_size=12).filter(lambda key: key != "general.alignment"), _VALUES),
    st.dictionaries(st.text("abc.", min_size=1, max_size=8), _SHAPES, min_size=1),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype,
) -> None:
    file = tmp_path_factory.mktemp("g") / "x.gguf"
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    write_gguf(file, metadata, tensors)
    source = open_source(file)
    assert {key: source.config[key] for key in metadata} == metadata
    read = source.read(source.names)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(torch.from_numpy(np.array(a)), tensors[name].float()) for name, a in read.items())


def test_llama_s_names_and_layout(tmp_path: Path) -> None:
    made = model("layerrope", n_layer=2)
    export(made, tmp_path / "out", as_="gguf", reader="plain")
    found = tensors_of(tmp_path / "out")
    block = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    names = {"token_embd.weight", "output_norm.weight", "output.weight"}
    assert set(found) == names | {f"blk.{i}.{name}.weight" for i in range(2) for name in block}
    ours = fold_tensors(made).tensors
    assert torch.equal(found["blk.1.attn_q.weight"], ours["layers.1.attn.f.q.weight"])  # pairs, as llama.cpp turns them
    assert torch.equal(found["blk.1.ffn_gate.weight"], ours["layers.1.mlp.f.gate.weight"])
    assert torch.equal(found["blk.1.ffn_norm.weight"], ours["layers.1.mlp.branch.pre.weight"])


def test_glm4_joins_gate_and_up_and_keeps_its_write_norms(tmp_path: Path) -> None:
    made = model("layerrope-peri", n_layer=2, tie=True)
    export(made, tmp_path / "out", as_="gguf", reader="plain")
    found, ours = tensors_of(tmp_path / "out"), fold_tensors(made).tensors
    assert "output.weight" not in found
    joined = torch.cat([ours[f"layers.0.mlp.f.{role}.weight"] for role in ("gate", "up")])
    assert torch.equal(found["blk.0.ffn_up.weight"], joined)
    assert torch.equal(found["blk.1.post_ffw_norm.weight"], ours["layers.1.mlp.branch.post.weight"])
    assert torch.equal(found["blk.1.post_attention_norm.weight"], ours["layers.1.attn.branch.post.weight"])


@pytest.mark.parametrize("heads", [(4, 2), (4, 4)])
def test_the_file_computes_what_its_source_does(tmp_path: Path, heads: tuple[int, int]) -> None:
    """By a Llama written out from its description, from the file alone."""
    made = model("layerrope", n_head=heads[0], n_kv_head=heads[1])
    proof = export(made, tmp_path / "out", as_="gguf", reader="plain").proof
    assert proof == json.loads((tmp_path / "out" / "proof.json").read_text())
    assert proof["max_difference"] < 1e-5
    source, found = open_source(tmp_path / "out" / "model.gguf"), tensors_of(tmp_path / "out")
    names = {"blk": "model.layers", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    names |= {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    names |= {f"attn_{role}": f"self_attn.{role}_proj" for role in "qkv"} | {"attn_output": "self_attn.o_proj"}
    names |= {f"ffn_{role}": f"mlp.{role}_proj" for role in ("gate", "up", "down")}
    tensors = {".".join(names.get(part, part) for part in name.split(".")): t for name, t in found.items()}
    for i in range(3):
        for role, n_head in zip("qk", heads, strict=True):
            name = f"model.layers.{i}.self_attn.{role}_proj.weight"
            tensors[name] = halves(tensors[name], n_head)
    config = {
        "head_dim": source.config["llama.attention.key_length"],
        "num_attention_heads": source.config["llama.attention.head_count"],
        "num_key_value_heads": source.config["llama.attention.head_count_kv"],
        "num_hidden_layers": source.config["llama.block_count"],
        "rope_theta": source.config["llama.rope.freq_base"],
        "rms_norm_eps": source.config["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": False,
    }
    assert float((plain_llama(config, tensors, IDS) - logits(made)).abs().max()) < 1e-4


@pytest.mark.parametrize(("word", "dtype"), [("bf16", "BF16"), ("fp16", "F16"), ("fp32", "F32")])
def test_matrices_are_rounded_and_norms_are_not(tmp_path: Path, word: str, dtype: str) -> None:
    export(model("layerrope"), tmp_path / "out", as_="gguf", dtype=word, reader="plain")
    dtypes = {name: info.dtype for name, info in open_source(tmp_path / "out" / "model.gguf").names.items()}
    assert {dtypes[name] for name in dtypes if "norm" in name} == {"F32"}
    assert {dtypes[name] for name in dtypes if "norm" not in name} == {dtype}


# -------------------------------------------------------------------------------------------------- proofs and refusals
@pytest.mark.parametrize("name", ["blk.1.attn_k.weight", "blk.1.ffn_norm.weight"])
def test_a_damaged_file_fails_with_the_first_differing_layer(tmp_path: Path, name: str) -> None:
    made = model("layerrope")
    export(made, tmp_path / "out", as_="gguf", reader="plain")
    assert verify(made, tmp_path / "out", reader="plain")["passed"]
    tensors = tensors_of(tmp_path / "out")
    tensors[name] = tensors[name] * 1.5
    facts = gguf.metadata(gguf.BY_BACKBONE["prenorm"], made.config, torch.float32, "out")
    write_gguf(tmp_path / "out" / "model.gguf", facts, tensors)
    with pytest.raises(InputError, match="first differ at layer 1"):
        verify(made, tmp_path / "out", reader="plain")


def test_another_model_s_file_is_refused(tmp_path: Path) -> None:
    export(model("layerrope"), tmp_path / "llama", as_="gguf", reader="plain")
    with pytest.raises(InputError, match=r"says nothing of glm4\.block_count"):
        verify(model("layerrope-peri"), tmp_path / "llama", reader="plain")
    for changes in ({"n_layer": 4}, {"n_layer": 2}, {"d_model": 32}, {"vocab_size": 80}):
        with pytest.raises(InputError):
            verify(model("layerrope", **changes), tmp_path / "llama", reader="plain")


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [("deepnorm", {}, "no final norm"), ("hc", {}, "more than one vector"), ("prenorm", {"bias": True}, "bias False")],
)
def test_what_has_no_stock_form_has_no_gguf_and_leaves_nothing(
    tmp_path: Path, scheme: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=rf"cannot export as gguf: .*{message}"):
        export(model(scheme, **changes), tmp_path / "out", as_="gguf")
    with pytest.raises(InputError, match="unknown reader of a GGUF file 'transformers'"):
        export(model("prenorm"), tmp_path / "out", as_="gguf", reader="transformers")
    with pytest.raises(InputError, match="holds fp32, bf16, fp16, not float64"):
        export(model("prenorm").double(), tmp_path / "out", as_="gguf", reader="plain")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_one_file_beside_its_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(model("layerrope"), tmp_path / "stock", reader="plain", tokenizer=None)
    out = tmp_path / "g"
    asked = ["export", str(tmp_path / "stock"), "--as", "gguf", "--to", str(out), "--reader", "plain", "--json"]
    assert cli.main(asked) in (0, None)
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "gguf (llama)"
    assert "no tokenizer.json" in said["no_tokenizer"]
    assert sorted(path.name for path in out.iterdir()) == ["model.gguf", "proof.json"]


# ----------------------------------------------------------------------------------------------------------- vocabulary
def test_bytes_become_a_vocabulary_without_merges() -> None:
    words, why = vocabulary(Bytes(), 257)
    assert not why
    assert len(words["tokenizer.ggml.tokens"]) == 257
    assert words["tokenizer.ggml.tokens"][256] == EOT
    assert words["tokenizer.ggml.token_type"] == [1] * 256 + [3]
    assert words["tokenizer.ggml.merges"] == []
    assert words["tokenizer.ggml.eos_token_id"] == 256
    assert words["tokenizer.ggml.add_bos_token"] is False


def test_a_bpe_keeps_ids_and_merges_and_names_its_split() -> None:
    made = subwords()
    words, why = vocabulary(made, made.vocab_size + 3)
    assert not why
    assert words["tokenizer.ggml.pre"] == "gpt-2"
    file = json.loads(made.to_json())
    tokens = words["tokenizer.ggml.tokens"]
    assert all(tokens[id] == token for token, id in file["model"]["vocab"].items())
    assert tokens[-1] == f"[unused {made.vocab_size + 2}]"
    assert len(words["tokenizer.ggml.merges"]) == len(file["model"]["merges"]) > 0
    byte_level = file["pre_tokenizer"]
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    assert vocabulary(subwords(pre_tokenizer=digits), 400)[0]["tokenizer.ggml.pre"] == "smollm"


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
        {"normalizer": {"type": "NFC"}},
    ],
)
def test_a_tokenizer_that_llama_cpp_cannot_name_is_left_out_and_said(changes: dict[str, Any]) -> None:
    words, why = vocabulary(subwords(**changes), 400)
    assert words == {"tokenizer.ggml.model": "no_vocab"}
    assert "no name in llama.cpp" in why


def test_a_tokenizer_with_more_ids_than_the_model_is_left_out() -> None:
    assert "has ids up to 256, the model knows 61" in vocabulary(Bytes(), 61)[1]


# -------------------------------------------------------------------------------------------------------- other readers
def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    reading = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'layerrope[gguf]'")
    made = model("layerrope", vocab_size=257)
    export(made, tmp_path / "out", as_="gguf", dtype="fp16", reader="plain", tokenizer=Bytes())
    found = reading.GGUFReader(tmp_path / "out" / "model.gguf")
    ours = tensors_of(tmp_path / "out")
    assert {t.name for t in found.tensors} == set(ours)
    for t in found.tensors:
        assert np.array_equal(np.asarray(t.data, np.float32).reshape(ours[t.name].shape), ours[t.name].numpy())
    assert found.fields["general.architecture"].contents() == "llama"
    assert found.fields["tokenizer.ggml.tokens"].contents()[256] == EOT


@pytest.mark.parametrize("heads", [(4, 2), (4, 4)])
def test_transformers_reads_the_file_as_the_same_llama(tmp_path: Path, heads: tuple[int, int]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed: pip install 'layerrope[gguf]'")
    made = model("layerrope", n_head=heads[0], n_kv_head=heads[1], vocab_size=257)
    export(made, tmp_path / "out", as_="gguf", reader="plain", tokenizer=Bytes())
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf").eval()
    with torch.no_grad():
        assert float((stock(IDS).logits - logits(made)).abs().max()) < 1e-4


@pytest.mark.opt_in
@pytest.mark.parametrize("scheme", ["layerrope", "layerrope-peri"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_llama_cpp_computes_and_writes_the_same(tmp_path: Path, scheme: str, dtype: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (docs/interop.md)")
    tokenizer = subwords()
    made = model(scheme, vocab_size=tokenizer.vocab_size)
    folder = tmp_path / "out"
    proof = export(made, folder, as_="gguf", dtype=dtype, reader="llama.cpp", tokenizer=tokenizer).proof
    assert proof["max_difference_llama_cpp"] < proof["tolerance_llama_cpp"]
    llm = llama_cpp.Llama(str(folder / "model.gguf"), n_ctx=256, verbose=False)
    text = "The dog sat on 12 mats; Zwölf!"
    ids = tokenizer.encode_batch([text])[0].tolist()
    assert llm.tokenize(text.encode(), add_bos=True, special=False) == ids
    assert llm.detokenize(ids).decode() == text
    if dtype == "fp32":
        new = made.generate(torch.tensor([ids]), 20, temperature=0)[0, len(ids) :].tolist()
        llm.reset()
        written = [token for token, _ in zip(llm.generate(ids, temp=0.0), range(20), strict=False)]
        assert written == new
