"""The exported folders in transformers itself: its logits, its greedy text, its tokenizer, its own model type."""

# ruff: noqa: E402 - what needs transformers is imported after the check that it is there

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'layerrope[hf]'")

from hf_models import decoder, runner, shake
from interop_models import IDS, logits, model

import layerrope
from layerrope import InputError, cli
from layerrope.exporting.export import export, prove
from layerrope.interop import hf
from layerrope.loading import load_lm
from layerrope.text.tokens import Bytes


@pytest.mark.parametrize("scheme", ["layerrope", "lns", "layerscale+layerrope", "layerrope-peri"])
@pytest.mark.parametrize("tie", [False, True])
def test_stock_transformers_gives_the_sources_logits_and_text(tmp_path: Path, scheme: str, tie: bool) -> None:
    made = model(scheme, tie=tie)
    proof = export(made, tmp_path / "out").proof
    assert proof["reader"].startswith("transformers")
    stock = hf.load_stock(tmp_path / "out")  # refuses missing, unexpected and newly initialised tensors
    expected = {"glm4": "Glm4ForCausalLM", "llama": "LlamaForCausalLM"}[proof["format"]]
    assert type(stock).__name__ == expected
    with torch.no_grad():
        assert float((stock(IDS).logits - logits(made)).abs().max()) < 1e-4
    ours = made.generate(IDS[:, :5], 20, temperature=0)
    theirs = stock.generate(IDS[:, :5], max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert torch.equal(ours, theirs)


def test_the_reader_uses_the_exported_rotary_base(tmp_path: Path) -> None:
    """EXP-5: whichever key style this version reads, and also where only the old or the new key is there."""
    export(model("layerrope"), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    read = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    base = getattr(read, "rope_theta", None) or read.rope_parameters["rope_theta"]
    assert base == 500_000.0
    key = "rope_parameters" if int(transformers.__version__[0]) < 5 else "rope_theta"
    (tmp_path / "out" / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != key}))
    again = hf.load_stock(tmp_path / "out")
    assert float((again(IDS).logits - logits(model("layerrope"))).abs().max()) < 1e-4


def test_the_tokenizer_loads_and_adds_nothing(tmp_path: Path) -> None:
    export(model("layerrope", vocab_size=257), tmp_path / "out", tokenizer=Bytes())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Zoë said: “漢字”  it's fine\n"
    assert tokenizer(text).input_ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, len(tokenizer)) == (256, None, 257)


# -------------------------------------------------------------------------------------------------------- the own type
@pytest.mark.parametrize(
    "scheme", ["deepnorm", "hc+layerrope", "rezero", "layerrope:rotation=off", "mixln:fraction=0.5"]
)
@pytest.mark.parametrize("tie", [False, True])
def test_the_own_type_loads_generates_and_saves(tmp_path: Path, scheme: str, tie: bool) -> None:
    made = model(scheme, tie=tie)
    export(made, tmp_path / "one", as_="layerrope")
    loaded = hf.load_stock(tmp_path / "one")
    assert isinstance(loaded, hf.LayerRoPEForCausalLM)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, logits(made))
    text = loaded.generate(IDS[:, :5], max_new_tokens=10, do_sample=False, pad_token_id=0)
    assert torch.equal(text, made.generate(IDS[:, :5], 10, temperature=0))
    loaded.save_pretrained(tmp_path / "two")
    assert prove(made, tmp_path / "two")["passed"]
    back = load_lm(tmp_path / "two").model
    assert torch.equal(logits(back), logits(made))
    assert (back.head.weight is back.embed.weight) is tie


def test_the_own_type_keeps_gains_and_norms_in_fp32(tmp_path: Path) -> None:
    export(model("hc+layerrope"), tmp_path / "out", as_="layerrope", dtype="bf16")
    loaded = hf.load_stock(tmp_path / "out", dtype=torch.bfloat16)
    dtypes = {name.split(".")[1]: p.dtype for name, p in loaded.named_parameters() if "layers" not in name}
    assert dtypes["gains"] == dtypes["norm"] == torch.float32
    assert dtypes["embed"] == loaded.model.layers[0].attn.f.q.weight.dtype == torch.bfloat16
    assert not [name for name, _ in loaded.named_parameters() if "gamma" in name or "beta" in name]


@pytest.mark.parametrize("field", [{"n_layer": "2"}, {"d_model": None}, {"tie": "no"}, {"eps": [1e-6]}])
def test_a_config_of_wrong_types_is_named(field: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"config\.json\.{next(iter(field))} should be"):
        hf.LayerRoPEConfig(**field)


def test_the_own_types_loss_is_the_models(tmp_path: Path) -> None:
    made = model("hc")
    export(made, tmp_path / "out")
    loaded = hf.load_stock(tmp_path / "out")
    labels = IDS.clone()
    labels[:, :50] = -100
    loss = loaded(input_ids=IDS, labels=labels).loss
    torch.testing.assert_close(loss, made(IDS[:, :-1], labels[:, 1:]))
    mask = torch.ones_like(IDS)
    mask[0, -9:] = 0
    torch.testing.assert_close(loaded(IDS, attention_mask=mask).logits, loaded(IDS).logits)
    with pytest.raises(InputError, match="pad on the right"):
        loaded(IDS, attention_mask=mask.flip(1))


def test_the_auto_class_knows_the_type_once_the_module_is_imported(tmp_path: Path) -> None:
    export(model("hc"), tmp_path / "out")
    code = (
        "import layerrope.interop.hf, transformers, sys\n"
        "m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(type(m).__name__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "LayerRoPEForCausalLM"


# ------------------------------------------------------------------------------------------------------ patched models
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_patched_folder_exports_as_the_stock_model(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = decoder(name)
    shake(layerrope.apply(made, init="paper").gains, 0.1)
    made.save_pretrained(tmp_path / "patched")
    assert cli.main(["export", str(tmp_path / "patched"), "--to", str(tmp_path / "out"), "--json"]) == 0
    proof: Any = json.loads(capsys.readouterr().out)
    assert cli.main(["export", str(tmp_path / "patched"), "--to", str(tmp_path / "x"), "--reader", "plain"]) == 2
    assert "transformers reads it" in capsys.readouterr().err
    assert proof["passed"] is True
    assert proof["max_difference"] <= proof["tolerance"]
    assert set(proof["folded"]) == {"attn_read", "attn_write", "mlp_read", "mlp_write"}
    stock = hf.load_stock(tmp_path / "out")
    assert type(stock) is type(made)
    assert float((runner(made)(made) - runner(stock)(stock)).abs().max()) < 1e-4
    assert "layerrope" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_a_stock_llama_of_transformers_becomes_an_lm_exactly(tmp_path: Path) -> None:
    made = decoder("llama")
    made.save_pretrained(tmp_path / "stock")
    ours = load_lm(tmp_path / "stock").model
    assert ours.config.tie
    given = IDS % 61
    with torch.no_grad():
        assert float((made(given).logits - ours(given)).abs().max()) < 1e-5
