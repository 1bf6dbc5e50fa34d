"""Export: a folder in the stock layout, proved before it appears, and nothing left where something is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_models import IDS, folder_tensors, logits, model, plain_llama
from safetensors.torch import save_file

import layerrope
from layerrope import InputError, cli
from layerrope.exporting.export import export, own_tensors, prove, verify
from layerrope.exporting.folding import fold_tensors
from layerrope.exporting.proof import sample_ids
from layerrope.exporting.stock import STOCKS, from_stock, read_stock_config, to_stock
from layerrope.exporting.stock_forward import stock_forward
from layerrope.loading import load_lm
from layerrope.rotary import pairs
from layerrope.scheme_table import schemes
from layerrope.text.tokens import EOT, Bytes


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


# ------------------------------------------------------------------------------------------------ the stock formats
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize("tie", [False, True])
def test_an_exported_llama_equals_its_source_at_every_position(
    tmp_path: Path, heads: tuple[int, int], tie: bool
) -> None:
    """ROP-2, by a Llama written out from its description, in float64."""
    made = model("layerrope", n_head=heads[0], n_kv_head=heads[1], tie=tie)
    export(made, tmp_path / "out", reader="plain")
    config, tensors = config_of(tmp_path / "out"), folder_tensors(tmp_path / "out")
    difference = (plain_llama(config, tensors, IDS) - logits(made)).abs().amax(dim=(0, 2))
    assert difference.shape == (128,)
    assert float(difference.max()) < 1e-4
    assert ("lm_head.weight" in tensors) is not tie
    assert config["tie_word_embeddings"] is tie


def test_unpermuted_heads_would_be_right_at_position_0_only(tmp_path: Path) -> None:
    """So the test above can fail: the same tensors in the pair layout agree there and nowhere else."""
    made = model("layerrope")
    export(made, tmp_path / "out", reader="plain")
    config, tensors = config_of(tmp_path / "out"), folder_tensors(tmp_path / "out")
    for i in range(3):
        for role, n_head in (("q", 4), ("k", 2)):
            name = f"model.layers.{i}.self_attn.{role}_proj.weight"
            tensors[name] = pairs(tensors[name], n_head)
    difference = (plain_llama(config, tensors, IDS) - logits(made)).abs().amax(dim=(0, 2))
    assert float(difference[0]) < 1e-4
    assert float(difference[20:].min()) > 1e-3


def test_the_plain_reader_is_the_plain_llama(tmp_path: Path) -> None:
    export(model("layerrope"), tmp_path / "out", reader="plain")
    config, tensors = config_of(tmp_path / "out"), folder_tensors(tmp_path / "out")
    read, streams = stock_forward(config, tensors, IDS)
    assert float((plain_llama(config, tensors, IDS) - read).abs().max()) < 1e-5
    assert [h.shape for h in streams] == [(2, 128, 64)] * 3


def test_a_sandwich_model_becomes_a_glm4(tmp_path: Path) -> None:
    made = model("layerrope-peri")
    proof = export(made, tmp_path / "out", reader="plain").proof
    assert proof["format"] == "glm4"
    assert proof["max_difference"] < 1e-4
    assert proof["folded"]["attn_write"] == "the weight of the norm after f"
    config = config_of(tmp_path / "out")
    assert config["architectures"] == ["Glm4ForCausalLM"]
    assert config["partial_rotary_factor"] == config["rope_parameters"]["partial_rotary_factor"] == 1.0
    expected = made.gain_rows(torch.device("cpu"))[1][
        0, 1
    ]  # the write gain replaces the weight of attention's output norm
    stored = folder_tensors(tmp_path / "out")["model.layers.1.post_self_attn_layernorm.weight"]
    torch.testing.assert_close(stored, expected, rtol=1e-6, atol=0)


def test_config_json_says_everything_in_both_key_styles(tmp_path: Path) -> None:
    """EXP-5, NRM-2."""
    export(model("layerrope", eps=3e-5), tmp_path / "out", reader="plain", tokenizer=None)
    config = config_of(tmp_path / "out")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 500_000.0
    explicit = {
        "model_type": "llama",
        "head_dim": 16,
        "rms_norm_eps": 3e-5,
        "dtype": "float32",
        "torch_dtype": "float32",
        "vocab_size": 61,
        "tie_word_embeddings": False,
        "num_key_value_heads": 2,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    assert {name: config[name] for name in explicit} == explicit


@pytest.mark.parametrize("scheme", list(schemes))
def test_no_exported_name_holds_gamma_or_beta(tmp_path: Path, scheme: str) -> None:
    """NRM-4, for every scheme and in both kinds of folder."""
    made = model(scheme, n_layer=4)
    names = list(own_tensors(made, torch.float32))
    export(made, tmp_path / "out", reader="plain")
    names += list(folder_tensors(tmp_path / "out"))
    assert not [name for name in names if "gamma" in name.lower() or "beta" in name.lower()]


# ------------------------------------------------------------------------------------------------ dtypes and rounding
@pytest.mark.parametrize(("word", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_low_precision_is_rounded_once_from_fp32(tmp_path: Path, word: str, dtype: torch.dtype) -> None:
    made = model("layerrope")
    proof = export(made, tmp_path / "low", dtype=word, reader="plain").proof
    export(made, tmp_path / "full", dtype="fp32", reader="plain")
    full, low = folder_tensors(tmp_path / "full"), folder_tensors(tmp_path / "low")
    assert all(torch.equal(low[name], t.to(dtype)) for name, t in full.items())
    assert proof["max_difference_without_rounding"] < 1e-4 < proof["max_difference"] < 0.1
    assert config_of(tmp_path / "low")["dtype"] == str(dtype).removeprefix("torch.")


def test_the_dtype_is_the_sources_unless_said(tmp_path: Path) -> None:
    export(model("layerrope").to(torch.bfloat16), tmp_path / "out", reader="plain")
    assert {t.dtype for t in folder_tensors(tmp_path / "out").values()} == {torch.bfloat16}


# ---------------------------------------------------------------------------------------------------------- the proof
def test_proof_json_says_what_was_compared(tmp_path: Path) -> None:
    exported = export(model("lns"), tmp_path / "out", reader="plain")
    proof = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert proof == exported.proof
    assert proof["passed"] is True
    assert (proof["positions"], proof["sequences"], proof["dtype"]) == (128, 2, "float32")
    assert proof["max_difference"] <= proof["tolerance"]
    assert "plain" in proof["reader"]
    assert len(proof["layers"]) == 3
    assert proof["folded"] == {site: "the weight of the norm before f" for site in ("attn_read", "mlp_read")}


@pytest.mark.parametrize("scheme", ["layerrope", "layerrope-peri", "hc"])
def test_a_damaged_folder_fails_with_the_first_differing_layer(tmp_path: Path, scheme: str) -> None:
    """WSH-5: two tensors of layer 1 swapped."""
    made = model(scheme)
    export(made, tmp_path / "out", reader="plain")
    assert verify(made, tmp_path / "out", reader="plain")["passed"]
    tensors = folder_tensors(tmp_path / "out")
    middle = [n for n in tensors if ".layers.1." in n and ("v_proj" in n or "attn.f.v." in n)]
    keys = [n.replace("v_proj", "k_proj").replace("f.v.", "f.k.") for n in middle]
    tensors[middle[0]], tensors[keys[0]] = tensors[keys[0]].clone(), tensors[middle[0]].clone()
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    with pytest.raises(InputError, match="first differ at layer 1"):
        prove(made, tmp_path / "out", reader="plain")


@pytest.mark.parametrize(
    "changes", [{"n_layer": 4}, {"n_layer": 2}, {"d_model": 32}, {"vocab_size": 80}, {"tie": True}, {"n_head": 8}]
)
def test_another_model_s_folder_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    export(model("layerrope"), tmp_path / "out")
    for reader in ("plain", "auto"):
        with pytest.raises(InputError):
            verify(model("layerrope", **changes), tmp_path / "out", reader=reader)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 10**7}, "config.json says d_ff 10000000, the source 96"),
        ({"vocab_size": 10**7}, "says vocab_size"),
        ({"max_position_embeddings": 7}, "says seq_len 7"),
        ({"rms_norm_eps": 1e-3}, "says eps 0.001"),
        ({"rope_scaling": {"type": "linear"}}, "scales its rotary positions"),
        ({"attention_bias": True}, "attention_bias"),
        ({"tie_word_embeddings": True}, "says tie True"),
    ],
)
def test_a_config_that_contradicts_the_source_is_refused_though_a_reader_would_not_look(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    export(model("layerrope"), tmp_path / "out", reader="plain")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config_of(tmp_path / "out") | changes))
    with pytest.raises(InputError, match=message):
        verify(model("layerrope"), tmp_path / "out", reader="plain")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--overwrite"], "leave out --overwrite"),
        (["--as", "gguf"], "leave out --as"),
        (["--dtype", "bf16"], "leave out --dtype"),
        (["--to", "x"], "--to DIR to write a folder, or --verify"),
    ],
)
def test_a_comparison_takes_no_options_of_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["export", str(tmp_path / "run"), "--verify", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_no_export_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="is a run and no export"):
        verify(model("layerrope"), tmp_path / "run")


def test_models_that_are_no_source_are_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = model("layerrope").to("meta")
    for source, message in ((torch.compile(model()), "before torch.compile"), (empty, "it has no weights")):
        for call in (export, verify):
            with pytest.raises(InputError, match=message):
                call(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_too_many_is_refused(tmp_path: Path) -> None:
    export(model("layerrope"), tmp_path / "out", reader="plain")
    tensors = folder_tensors(tmp_path / "out")
    save_file(tensors | {"model.layers.9.x": torch.ones(2)}, tmp_path / "out" / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.layers\.9\.x is not part of the model"):
        verify(model("layerrope"), tmp_path / "out", reader="plain")


def test_every_file_may_be_read_by_those_who_may_read_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        export(model("layerrope"), tmp_path / "out", reader="plain", tokenizer=Bytes())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o644}


def test_a_tied_head_that_is_another_matrix_is_refused(tmp_path: Path) -> None:
    export(model("layerrope"), tmp_path / "out", reader="plain")
    config = config_of(tmp_path / "out") | {"tie_word_embeddings": True}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"ties the head to the embedding, but lm_head\.weight is another"):
        load_lm(tmp_path / "out")
    tensors = folder_tensors(tmp_path / "out")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    assert load_lm(tmp_path / "out").model.config.tie


def test_a_damaged_head_is_told_from_a_damaged_layer(tmp_path: Path) -> None:
    made = model("layerrope")
    export(made, tmp_path / "out", reader="plain")
    tensors = folder_tensors(tmp_path / "out")
    save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"].flip(0)}, tmp_path / "out" / "model.safetensors")
    with pytest.raises(InputError, match="final norm or the head"):
        prove(made, tmp_path / "out", reader="plain")


@pytest.mark.parametrize("as_", ["llama", "layerrope", "gguf"])
def test_a_damaged_row_of_the_embedding_is_found_though_no_test_id_reaches_it(tmp_path: Path, as_: str) -> None:
    made = model("layerrope", vocab_size=2000)
    damaged = model("layerrope", vocab_size=2000)
    unread = min(set(range(2000)) - set(sample_ids(2000, 128).flatten().tolist()))
    with torch.no_grad():
        damaged.embed.weight[unread, 3] += 0.5
    export(damaged, tmp_path / "out", as_=as_, reader="plain")
    for reader in ("plain",) if as_ == "gguf" else ("plain", "auto"):
        with pytest.raises(InputError, match="first differ at the embedding"):
            verify(made, tmp_path / "out", reader=reader)


def test_a_failing_proof_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(*given: Any) -> dict[str, torch.Tensor]:
        tensors = to_stock(*given)
        name = "model.layers.2.mlp.{}_proj.weight"
        tensors[name.format("gate")], tensors[name.format("up")] = (
            tensors[name.format("up")],
            tensors[name.format("gate")],
        )
        return tensors

    monkeypatch.setattr("layerrope.exporting.export.to_stock", swapped)
    with pytest.raises(InputError, match="first differ at layer 2"):
        export(model("layerrope"), tmp_path / "deep" / "out", reader="plain")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_model_that_is_not_finite_is_not_exported(tmp_path: Path) -> None:
    made = model("layerrope")
    with torch.no_grad():
        made.layers[1].mlp.f.up.weight[0, 0] = float("nan")
    for as_ in (None, "layerrope", "gguf"):
        with pytest.raises(InputError, match=r"export in float32: tensor .*up.* holds numbers that are not finite"):
            export(made, tmp_path / "out", reader="plain", as_=as_)
    assert os.listdir(tmp_path) == []


def test_a_weight_beyond_fp16_is_named(tmp_path: Path) -> None:
    made = model("layerrope")
    with torch.no_grad():
        made.layers[1].mlp.f.down.weight[0, 0] = 1e6
    for as_ in (None, "layerrope", "gguf"):
        with pytest.raises(InputError, match=r"float16: tensor .*down.* not finite \(float16 ends at 65,504\)"):
            export(made, tmp_path / "out", reader="plain", as_=as_, dtype="fp16")
    assert os.listdir(tmp_path) == []


# -------------------------------------------------------------------------------------------------------- the own type
@pytest.mark.parametrize("scheme", ["deepnorm", "hc+layerrope", "rezero", "layerrope:schedule=free,rotation=off"])
@pytest.mark.parametrize("tie", [False, True])
def test_the_own_format_round_trips_every_tensor(tmp_path: Path, scheme: str, tie: bool) -> None:
    made = model(scheme, tie=tie)
    proof = export(made, tmp_path / "out", as_="layerrope", reader="plain").proof
    assert proof["format"] == "layerrope"
    back = load_lm(tmp_path / "out").model
    assert back.config == made.config
    assert {n: t.tolist() for n, t in back.state_dict().items()} == {
        n: t.tolist() for n, t in made.state_dict().items()
    }
    assert (back.head.weight is back.embed.weight) is tie


def test_the_inspector_reads_the_same_gains_from_either_folder(tmp_path: Path) -> None:
    made = model("layerrope-peri", n_layer=4)
    export(made, tmp_path / "own", as_="layerrope", reader="plain")
    export(made, tmp_path / "stock", reader="plain")
    own, stock = (layerrope.inspect(tmp_path / name, shuffles=0).table.sites for name in ("own", "stock"))
    for site in ("attn_read", "attn_write", "mlp_read", "mlp_write"):
        for a, b in zip(own[site].rows, stock[site].rows, strict=True):
            assert a.values == pytest.approx(b.values, rel=1e-6)


def test_what_has_no_stock_form_takes_the_own_format_and_says_why(tmp_path: Path) -> None:
    proof = export(model("hc"), tmp_path / "out", reader="plain").proof
    assert proof["format"] == "layerrope"
    assert "more than one vector" in proof["reason"]


@pytest.mark.parametrize(
    ("changes", "as_", "reason"),
    [
        ({"scheme": "hc"}, "llama", "more than one vector"),
        ({"scheme": "keel"}, "llama", "PostNorm"),
        ({"scheme": "layerrope-peri"}, "llama", "norms after f"),
        ({"scheme": "layerrope"}, "glm4", "no norms after f"),
        ({"norm": "layernorm"}, "llama", "norm rmsnorm"),
        ({"position": "learned"}, "llama", "position rotary"),
        ({"mlp": "gelu"}, "llama", "mlp swiglu"),
        ({"bias": True}, "llama", "bias False"),
        ({}, "lama", "did you mean llama"),
    ],
)
def test_a_format_that_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], as_: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        export(model(**({"scheme": "layerrope"} | changes)), tmp_path / "out", as_=as_, reader="plain")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------- publishing
def test_a_folder_that_is_there_is_kept_unless_told(tmp_path: Path) -> None:
    made = model("layerrope")
    (tmp_path / "out").mkdir()
    export(made, tmp_path / "out", reader="plain")  # an empty folder is no loss
    with pytest.raises(InputError, match="is there already"):
        export(made, tmp_path / "out", reader="plain")
    export(model("prenorm"), tmp_path / "out", reader="plain", overwrite=True)
    assert json.loads((tmp_path / "out" / "proof.json").read_text())["scheme"] == "prenorm"
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_overwrite_replaces_exports_only(tmp_path: Path) -> None:
    """Not the run that is exported, nor a folder of somebody's own."""
    for name in ("run", "own"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "run" / "proof.json").write_text("{}")
    for name in ("run", "own"):
        with pytest.raises(InputError, match="was not written by an export"):
            export(model("prenorm"), tmp_path / name, reader="plain", overwrite=True)
        assert (tmp_path / name / "checkpoints").is_dir()
    export(model("prenorm"), tmp_path / "out", reader="plain")
    export(tmp_path / "out", tmp_path / "out", reader="plain", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "own", "run"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real" / "place")
    export(model("prenorm"), tmp_path / "link", reader="plain")
    export(model("layerrope"), tmp_path / "link", reader="plain", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "place" / "proof.json").is_file()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["place"]


def test_large_models_are_sharded_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerrope.exporting.export.SHARD_BYTES", 60_000)
    made = model("layerrope")
    export(made, tmp_path / "out", reader="plain")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert all((tmp_path / "out" / name).exists() for name in files)
    torch.testing.assert_close(logits(load_lm(tmp_path / "out").model), logits(made), rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- tokenizer
def test_the_bytes_tokenizer_travels_as_a_tokenizer_json(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    export(model("layerrope", vocab_size=257), tmp_path / "out", tokenizer=Bytes(), reader="plain")
    read = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    text = "Zoë said: “漢字”\t\x00\n  it's fine"
    assert read.encode(text).ids == list(text.encode())
    assert read.decode(read.encode(text).ids) == text
    assert read.encode(f"a{EOT}b").ids == [97, 256, 98]
    assert config_of(tmp_path / "out")["eos_token_id"] == 256
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 256
    back = load_lm(tmp_path / "out").tokenizer
    assert back is not None
    assert back.encode_batch([text])[0].tolist() == list(text.encode())
    assert back.eot == 256


# ------------------------------------------------------------------------------------------------------------- import
@pytest.mark.parametrize("scheme", ["layerrope", "layerrope-peri"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_stock_folder_becomes_an_lm_exactly(tmp_path: Path, scheme: str, dtype: str) -> None:
    export(model(scheme), tmp_path / "one", dtype=dtype, reader="plain")
    loaded = load_lm(tmp_path / "one").model
    assert loaded.config.scheme == ("prenorm" if scheme == "layerrope" else "perinorm")
    assert loaded.config.rope_base == 500_000.0
    export(loaded, tmp_path / "two", reader="plain", dtype=dtype)
    one, two = folder_tensors(tmp_path / "one"), folder_tensors(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(t, two[name]) for name, t in one.items())
    assert config_of(tmp_path / "one") == config_of(tmp_path / "two")
    assert json.loads((tmp_path / "two" / "proof.json").read_text())["folded"] == {}  # a second fold: a recorded no-op


def test_to_and_from_stock_are_inverse() -> None:
    for kind, stock in STOCKS.items():
        made = model("layerrope" if kind == "llama" else "layerrope-peri")
        tensors = fold_tensors(made).tensors
        back = from_stock(stock, made.config, to_stock(stock, made.config, tensors))
        assert back.keys() == tensors.keys()
        assert all(torch.equal(back[name], t) for name, t in tensors.items())


STOCK: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 61,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({}, 10_000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}, "rope_scaling": None}, 5e5),
    ],
)
def test_the_rotary_base_is_read_in_either_key_style(changes: dict[str, Any], base: float) -> None:
    assert read_stock_config(STOCK | changes)[1].rope_base == base


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scales its rotary positions"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scales its rotary positions"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "two rotary bases"),
        ({"rope_theta": "x"}, "needs rope_theta, a positive number"),
        ({"rope_parameters": {"rope_theta": [1]}}, "needs rope_theta, a positive number"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 32}, "head_dim 32"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "n_kv_head 3"),
    ],
)
def test_a_config_that_an_lm_does_not_have_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_stock_config(STOCK | changes)


def damaged(folder: Path, kind: str) -> None:
    tensors = folder_tensors(folder)
    config = config_of(folder)
    if kind == "no config":
        (folder / "config.json").unlink()
        return
    if kind == "no head":
        del tensors["lm_head.weight"]
    elif kind == "zero norm":
        tensors["model.layers.1.input_layernorm.weight"].zero_()
    elif kind == "not finite":
        tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("inf")
    elif kind == "other shape":
        config["intermediate_size"] = 97
    elif kind == "fewer layers":
        config["num_hidden_layers"] = 2
    elif kind == "more layers":
        config["num_hidden_layers"] = 4
    elif kind == "other heads":
        config["num_key_value_heads"] = 4
    elif kind == "not an object":
        config = []
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no config", "no config.json"),
        ("no head", "no lm_head.weight"),
        ("zero norm", "attn.branch.pre is zero throughout"),
        ("not finite", "not finite"),
        ("other shape", "shape"),
        ("fewer layers", "layers.2"),
        ("more layers", "layers.3"),
        ("other heads", "k_proj.weight has shape"),
        ("not an object", "no JSON object"),
    ],
)
def test_bad_folders_are_named_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str
) -> None:
    export(model("layerrope"), tmp_path / "bad", reader="plain")
    damaged(tmp_path / "bad", kind)
    assert cli.main(["export", str(tmp_path / "bad"), "--to", str(tmp_path / "out"), "--reader", "plain"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_pickle_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RSM-5: the weights as a pickle that would leave a mark."""
    mark = tmp_path / "mark"
    export(model("layerrope"), tmp_path / "bad", reader="plain")
    (tmp_path / "bad" / "model.safetensors").unlink()
    (tmp_path / "bad" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    assert cli.main(["export", str(tmp_path / "bad"), "--to", str(tmp_path / "out")]) == 2
    assert "pytorch_model.bin" in capsys.readouterr().err
    assert not mark.exists()


def test_the_reader_is_transformers_where_it_is_installed(tmp_path: Path) -> None:
    proof = export(model("layerrope"), tmp_path / "out").proof
    installed = importlib.util.find_spec("transformers") is not None
    assert proof["reader"].startswith("transformers" if installed else "layerrope's own")
