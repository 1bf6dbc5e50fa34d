"""A whole checkpoint inspected: the same gains from every kind of file, verdicts, and what is written out."""

from __future__ import annotations

import csv
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspector_files import (
    REFERENCE,
    Tensors,
    growing,
    layered,
    smollm2,
    smollm2_tensors,
    write_folder,
    write_gguf,
)

import layerrope
from layerrope.errors import InputError
from layerrope.inspector import Inspection, compare
from layerrope.inspector.compare import short_labels
from layerrope.inspector.words import share, site_verdict

Q = 4  # shuffles enough where the null is not what is tested


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    return layerrope.inspect(write_folder(folder, smollm2_tensors(), {"model_type": "llama"}))


def gemma_tensors(n: int = 8, d: int = 24) -> Tensors:
    """Four-norm layers as Gemma stores them: w, where the gain is 1 + w."""
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    stored = {name: growing(n, d, 0.3, seed=i) - 1 for i, name in enumerate(names)}
    tensors = {}
    for name, rows in stored.items():
        tensors |= layered(f"model.layers.{{l}}.{name}_layernorm.weight", rows)
    return {**tensors, "model.norm.weight": np.full(d, 2.5, np.float32)}


GEMMA_GGUF = {
    "input": "attn",
    "post_attention": "post_attention",
    "pre_feedforward": "ffn",
    "post_feedforward": "post_ffw",
}


def gemma_as_gguf(tensors: Tensors) -> Tensors:
    """The same as a converter writes it: other names, and the 1 added."""
    renamed = {"output_norm.weight": tensors["model.norm.weight"] + 1}
    for ours, theirs in GEMMA_GGUF.items():
        rows = [tensors[f"model.layers.{i}.{ours}_layernorm.weight"] + 1 for i in range(8)]
        renamed |= layered(f"blk.{{l}}.{theirs}_norm.weight", np.array(rows))
    return renamed


# ---------------------------------------------------------------------------------------------------- real gains
def test_smollm2_s_summary_has_the_published_numbers(smollm: Inspection) -> None:
    attn, mlp = smollm.summary_rows()
    assert (attn["site"], mlp["site"]) == ("attn_read", "mlp_read")
    assert [round(attn[k], 4) for k in ("c", "beta", "r2", "rank1")] == [0.1038, 0.4221, 0.6846, 0.9484]
    assert [round(mlp[k], 4) for k in ("c", "beta", "r2", "rank1")] == [0.1407, 0.2092, 0.7424, 0.9681]
    assert [round(r["error_magnitude"], 4) for r in (attn, mlp)] == [0.2609, 0.2004]
    assert [round(r["largest_angle"], 2) for r in (attn, mlp)] == [89.55, 27.18]
    assert smollm.reports["attn_read"].whole.angles.largest_pair == (0, 24)  # type: ignore[union-attr]
    assert smollm.reports["attn_read"].later.angles.largest_pair == (13, 24)  # type: ignore[union-attr]
    assert all(not r.whole.fit.identifiable for r in smollm.reports.values() if r.whole)
    assert attn["beta_from_1"] == pytest.approx(REFERENCE["attn_in"]["power_law_without_first_layer"]["beta"])


def test_smollm2_s_layers_have_the_reference_statistics(smollm: Inspection) -> None:
    for role, key in (("attn_read", "attn_in"), ("mlp_read", "mlp_in")):
        rows, ref = [r for r in smollm.layer_rows() if r["role"] == role], REFERENCE[key]
        for ours, theirs in (("rms", "rms"), ("mean", "mean"), ("l2", "l2"), ("std_over_rms", "std_over_rms")):
            assert [r[ours] for r in rows] == pytest.approx(ref[theirs], rel=1e-6)
        assert [r["negative"] for r in rows] == ref["n_negative_per_layer"]
        assert sum(r["zero"] for r in rows) == ref["n_zero"]
        assert {(r["stored"], r["exact_in"]) for r in rows} == {("F32", "bf16")}
    (final,) = [r for r in smollm.layer_rows() if r["role"] == "final"]
    assert final["layer"] is None
    assert final["rms"] == pytest.approx(1.8265668454357387)


def test_smollm2_s_verdict_says_what_was_measured(smollm: Inspection) -> None:
    words = smollm.verdict
    assert words.count(". ") <= 3
    assert "hardly" not in words
    for piece in (
        "30 layers",
        "attention read and MLP read grow",
        "0.42 and 0.21",
        "38.9° apart (89.5° with layer 0)",
        "shuffled",
    ):
        assert piece in words
    one = site_verdict(smollm.reports["attn_read"])
    for piece in ("(l+1)^0.42", "94.8%", "89.5° (layers 0 and 24)", "26.1%", "not identifiable", "0.25"):
        assert piece in one


# --------------------------------------------------------------------------------- conventions (EXP-2), formats
def test_gemma_has_the_same_gains_from_a_folder_and_from_gguf(tmp_path: Path) -> None:
    stored = gemma_tensors()
    folder = layerrope.inspect(write_folder(tmp_path / "hf", stored, {"model_type": "gemma2"}), shuffles=0)
    gguf = layerrope.inspect(write_gguf(tmp_path / "g.gguf", gemma_as_gguf(stored), "gemma2"), shuffles=0)
    assert list(folder.reports) == list(gguf.reports) == ["attn_read", "attn_write", "mlp_read", "mlp_write"]
    for role in folder.reports:
        a, b = folder.table.sites[role], gguf.table.sites[role]
        assert a.matrix == pytest.approx(b.matrix, abs=1e-6)
        assert (a.convention, b.convention) == ("1+w", "w")
        assert "1 + w" in a.reason
        assert "has added the 1" in b.reason
    assert folder.table.singles["final"].values == pytest.approx(np.full(24, 3.5))
    assert gguf.table.singles["final"].values == pytest.approx(np.full(24, 3.5))


def test_one_layer_may_mix_both_conventions(tmp_path: Path) -> None:
    rows = growing(6, 16)
    tensors = layered("model.layers.{l}.input_layernorm.weight", rows - 1)
    tensors |= layered("model.layers.{l}.linear_attn.norm.weight", rows)
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "qwen3_next"}), shuffles=0)
    assert found.table.sites["attn_read"].matrix == pytest.approx(rows, abs=1e-6)
    assert found.table.sites["attn_inner"].matrix == pytest.approx(rows, abs=1e-6)


@pytest.mark.parametrize("config", [None, {"model_type": "unheard_of"}])
def test_an_unknown_architecture_shows_raw_values_labelled_so(tmp_path: Path, config: dict[str, Any] | None) -> None:
    rows = growing(6, 16) - 1
    folder = write_folder(tmp_path / "m", layered("net.{l}.input_layernorm.weight", rows), config)
    found = layerrope.inspect(folder, shuffles=0)
    site = found.table.sites["unknown:net.*.input_layernorm"]
    assert not found.table.known
    assert site.convention == "raw"
    assert site.matrix == pytest.approx(rows)
    assert "raw" in found.verdict
    assert "unknown site net.*.input_layernorm" in found.verdict


def test_the_architecture_can_be_given_and_is_checked(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", layered("layers.{l}.attention_norm.weight", growing(4, 8)))
    assert layerrope.inspect(folder, architecture="meta-llama", shuffles=0).table.known
    with pytest.raises(InputError, match="did you mean llama"):
        layerrope.inspect(folder, architecture="lama")


def test_layernorm_biases_stand_apart_from_gains(tmp_path: Path) -> None:
    tensors = layered("h.{l}.ln_1.weight", growing(5, 8)) | layered("h.{l}.ln_1.bias", np.zeros((5, 8)))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "gpt2"}), shuffles=0)
    assert list(found.table.sites) == list(found.table.biases) == ["attn_read"]
    assert found.faults == []  # a bias may be all zeros
    assert {r["part"] for r in found.layer_rows()} == {"gain", "bias"}


def test_a_model_without_norm_gains_is_refused_with_the_reason(tmp_path: Path) -> None:
    only = {"model.embed_tokens.weight": np.zeros((3, 4))}
    with pytest.raises(InputError, match=r"no norm gains.*without weights"):
        layerrope.inspect(write_folder(tmp_path / "olmo", only, {"model_type": "olmo"}))
    with pytest.raises(InputError, match="no tensor is called like a norm"):
        layerrope.inspect(write_folder(tmp_path / "x", only))


def test_layers_past_the_configured_depth_are_left_out(tmp_path: Path) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(6, 8))
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 5}
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, config), shuffles=0)
    assert found.table.sites["attn_read"].layers.tolist() == [0, 1, 2, 3, 4]
    assert any("past the configured 5 layers" in note for note in found.table.notes)


def test_only_norms_are_read(tmp_path: Path) -> None:
    from layerrope.tensors import open_source

    source = open_source(write_folder(tmp_path / "m", smollm2_tensors(), {"model_type": "llama"}))
    asked: list[str] = []
    read = source.read
    source.read = lambda names, **k: read(asked.extend(n := list(names)) or n, **k)  # type: ignore[method-assign]
    layerrope.inspect(source, shuffles=0)
    assert len(asked) == 61
    assert all("norm" in name for name in asked)


# --------------------------------------------------------------------------------------------- warnings, faults
def with_row(name: str, values: Any) -> Tensors:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(8, 16))
    return {**tensors, f"model.layers.3.{name}.weight": values}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (np.full(16, np.nan), "NaN"),
        (np.full(16, np.inf), "Inf"),
        (np.zeros(16), "all zeros"),
        (np.ones(16), "all ones"),
    ],
)
def test_a_broken_layer_is_named_and_the_others_still_measured(tmp_path: Path, values: Any, word: str) -> None:
    tensors = with_row("input_layernorm", values)
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "llama"}), shuffles=Q)
    (fault,) = found.faults
    assert (fault["role"], fault["layer"], fault["fault"]) == ("attn_read", 3, word)
    report = found.reports["attn_read"]
    assert report.left_out == (3,)
    assert report.whole is not None
    assert report.whole.power.beta == pytest.approx(0.4, abs=0.1)
    assert found.verdict.startswith("Over 7 of 8 layers")
    said = {"NaN": "holds NaN in", "Inf": "holds Inf in", "all zeros": "is all zeros in", "all ones": "is all ones in"}
    assert f"Caution: attention read {said[word]} layer 3" in found.verdict
    assert f"Left out of the fits: layer 3 ({word}). Fitted on 7 of 8 layers." in site_verdict(report)
    assert [math.isnan(s) for s in report.whole.angles.steps] == [False, False, True, False, False, False]
    found.to_html(tmp_path / "r.html")
    json.loads(found.to_json(tmp_path / "r.json").read_text(), parse_constant=lambda c: pytest.fail(c))


def test_an_untrained_model_is_called_that(tmp_path: Path) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", np.ones((6, 8)))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "llama"}))
    assert "untrained" in found.verdict
    assert "untrained" in found.table.sites["attn_read"].warnings[0]
    zero = layered("model.layers.{l}.input_layernorm.weight", np.zeros((6, 8)))
    gemma = layerrope.inspect(write_folder(tmp_path / "g", zero, {"model_type": "gemma"}))
    assert {f["fault"] for f in gemma.faults} == {"all ones"}  # what acts is 1 + w
    found.to_html(tmp_path / "r.html")


def write_typed(folder: Path, tensors: Tensors, dtypes: dict[str, Any], rest: Any) -> Path:
    """A llama folder: tensors whose name contains a key of `dtypes` stored so, the others as `rest`."""
    import torch
    from safetensors.torch import save_file

    def dtype(name: str) -> Any:
        return next((d for part, d in dtypes.items() if part in name), rest)

    folder.mkdir()
    save_file({k: torch.tensor(v).to(dtype(k)).contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def folded_tensors() -> Tensors:
    """SmolLM2 as AWQ would leave its attention reads: divided by scales, in fp16."""
    tensors = smollm2_tensors()
    scales = 1 + np.random.default_rng(0).random(576)
    for i in range(30):
        name = f"model.layers.{i}.input_layernorm.weight"
        tensors[name] = (tensors[name] / scales).astype(np.float16).astype(np.float32)
    return tensors


def test_a_quantisation_folded_norm_is_flagged_with_its_site(tmp_path: Path) -> None:
    import torch

    folder = write_typed(tmp_path / "m", folded_tensors(), {}, torch.float16)
    found = layerrope.inspect(folder, shuffles=0)
    assert "not the trained gain" in found.table.sites["attn_read"].warnings[0]
    assert found.table.sites["mlp_read"].warnings == ()
    assert "attention read: not the trained gain" in found.verdict
    assert "AWQ" in found.verdict


def test_gains_of_a_model_kept_in_fp32_are_accused_of_nothing(tmp_path: Path) -> None:
    import torch

    noisy = {k: v * np.float32(1.0001234) if "input" in k else v for k, v in smollm2_tensors().items()}
    half = write_typed(tmp_path / "half", noisy, {"layernorm": torch.float32}, torch.bfloat16)
    whole = write_typed(tmp_path / "whole", folded_tensors(), {}, torch.float32)
    ones = {k: np.ones_like(v) if "post" in k else v for k, v in folded_tensors().items()}
    untouched = write_typed(tmp_path / "ones", ones, {}, torch.float16)
    for folder in (half, whole, untouched):
        found = layerrope.inspect(folder, shuffles=0)
        assert "AWQ" not in found.verdict, folder


@pytest.mark.parametrize(("config", "gone"), [({}, 4), ({"num_hidden_layers": 8}, 4), ({"n_layer": 8}, 7)])
def test_a_missing_layer_is_counted_and_named(tmp_path: Path, config: dict[str, int], gone: int) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(8, 16))
    tensors |= layered("model.layers.{l}.post_attention_layernorm.weight", growing(8, 16))
    del tensors[f"model.layers.{gone}.input_layernorm.weight"]
    folder = write_folder(tmp_path / "m", tensors, {"model_type": "llama", **config})
    found = layerrope.inspect(folder, shuffles=0)
    (fault,) = found.faults
    assert (fault["role"], fault["layer"], fault["name"], fault["fault"]) == ("attn_read", gone, None, "missing")
    assert f"attention read lacks layer {gone}" in found.verdict
    assert found.verdict.startswith("Over 7 to 8 of 8 layers")
    assert (found.summary_rows()[0]["fitted"], found.summary_rows()[0]["expected"]) == (7, 8)
    steps = found.reports["attn_read"].whole.angles.steps  # type: ignore[union-attr]
    assert sum(map(math.isnan, steps)) == (1 if gone < 7 else 0)  # the step over the gap is none


def test_norms_outside_the_layers_and_biases_reach_the_verdict(tmp_path: Path) -> None:
    tensors = layered("h.{l}.ln_1.weight", growing(5, 8)) | layered("h.{l}.ln_1.bias", np.zeros((5, 8)))
    tensors |= {"ln_f.weight": np.full(8, np.nan), "ln_f.bias": np.arange(8.0)}
    tensors["h.2.ln_1.bias"] = np.full(8, np.inf)
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "gpt2"}), shuffles=0)
    assert "final norm holds NaN" in found.verdict
    assert "attention read bias holds Inf in layer 2" in found.verdict
    with np.load(found.save_npz(tmp_path / "g.npz")) as arrays:
        assert arrays["final.bias"].tolist() == list(range(8))
        assert arrays["attn_read.bias"].shape == (5, 8)  # the broken row too
    final = [r for r in found.layer_rows() if r["role"] == "final"]
    assert [r["part"] for r in final] == ["gain", "bias"]


def test_what_is_shown_of_an_inspection_is_short(smollm: Inspection) -> None:
    report = smollm.reports["attn_read"]
    things = (smollm, smollm.table, report, report.site, report.site.rows[0], report.whole, report.null)
    assert all(len(repr(thing)) < 400 for thing in things)
    assert "llama, 2 sites of 30 layers, 0 faults" in repr(smollm)


def test_too_few_layers_are_said_to_be_too_few(tmp_path: Path) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(2, 8))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "llama"}))
    assert found.reports["attn_read"].whole is None
    assert "enough usable layers" in found.verdict
    found.to_html(tmp_path / "r.html")
    found.to_png(tmp_path / "r.png")


def test_layers_of_different_widths_do_not_mix(tmp_path: Path) -> None:
    tensors = with_row("input_layernorm", np.ones(10) * 0.3)
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "llama"}), shuffles=0)
    assert found.reports["attn_read"].left_out == (3,)
    assert "different widths" in found.table.sites["attn_read"].warnings[0]


@pytest.mark.parametrize(("argument", "value"), [("base", 0.5), ("base", math.nan), ("shuffles", -1)])
def test_nonsense_arguments_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InputError, match=argument):
        layerrope.inspect("anything", **{argument: value})


def test_a_model_is_no_source() -> None:
    with pytest.raises(InputError, match=r"cannot inspect a LM: .*save a model first"):
        layerrope.inspect(layerrope.LM(layerrope.ModelConfig(n_layer=1)))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- files written
def test_json_is_strict_and_carries_its_schema(smollm: Inspection, tmp_path: Path) -> None:
    text = smollm.to_json(tmp_path / "a.json").read_text()
    document = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert document["schema_version"] == 1
    (model,) = document["models"]
    assert set(model["sites"]) == {"attn_read", "mlp_read"}
    whole = model["sites"]["attn_read"]["whole"]
    assert whole["power"]["beta"] == pytest.approx(0.42205164)
    assert whole["fit"]["magnitude"] == pytest.approx(0.26091227)
    assert len(whole["fit"]["null"]) == 20
    assert len(model["sites"]["attn_read"]["statistics"]) == 30
    assert model["sites"]["attn_read"]["null"]["draws"] == 50
    assert document["controls"]["pure_scaling"]["largest_angle"] < 4.3


def test_csv_has_a_line_a_vector_with_the_schema(smollm: Inspection, tmp_path: Path) -> None:
    with open(smollm.to_csv(tmp_path / "a.csv")) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 61
    assert {r["schema_version"] for r in rows} == {"1"}
    assert float(rows[0]["rms"]) == pytest.approx(0.03992361502)


def test_npz_gives_the_gains_back_without_pickle(smollm: Inspection, tmp_path: Path) -> None:
    with np.load(smollm.save_npz(tmp_path / "a.npz"), allow_pickle=False) as arrays:
        gains = smollm2()
        assert np.array_equal(arrays["attn_read"], gains["attn_in"])
        assert np.array_equal(arrays["mlp_read"], gains["mlp_in"])
        assert np.array_equal(arrays["final"], gains["final"])
        assert arrays["attn_read"].dtype == np.float32
        assert arrays["attn_read.layers"].tolist() == list(range(30))


def test_html_tells_the_story_and_pngs_are_drawn(smollm: Inspection, tmp_path: Path) -> None:
    page = smollm.to_html(tmp_path / "a.html").read_text()
    for piece in ("Growth with depth", "Control: 32 copies", "Null (one shared direction", "not identifiable"):
        assert piece in page
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    swept = [c for c in captions if "swe" in c]
    assert len(swept) == 3
    assert all("Null (" in c or c.startswith("Control") for c in swept)  # never a sweep without its null
    drawn = smollm.to_png(tmp_path / "png")
    names = {p.stem for p in drawn}
    assert {"size", "angle", "error", "rotation", "picture-attn_read", "spread-mlp_read"} <= names
    assert "best law" in page
    assert "AICc ahead by" in page
    (one,) = smollm.to_png(tmp_path / "a.png")
    assert one.read_bytes()[:4] == b"\x89PNG"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = 'x<img src=q onerror="1">\x1b[31m.{l}.norm.weight'
    folder = write_folder(tmp_path / "m", layered(name, growing(4, 8)), {"model_type": "</script>\x1b]0;x\x07"})
    found = layerrope.inspect(folder, shuffles=0)
    page = found.to_html(tmp_path / "a.html").read_text()
    assert "<img src=q" not in page
    assert "\x1b" not in page
    assert "\x1b" not in found.verdict


def test_frames_are_polars_frames(smollm: Inspection) -> None:
    assert smollm.layers().shape[0] == 61
    assert smollm.summary()["site"].to_list() == ["attn_read", "mlp_read"]
    assert set(smollm.charts()) >= {"size", "angle", "error", "rotation"}


# -------------------------------------------------------------------------------------------------- comparison
def test_models_meet_by_role_and_relative_depth(tmp_path: Path) -> None:
    name = "model.layers.{l}.input_layernorm.weight"
    a = write_folder(tmp_path / "a", layered(name, growing(5, 16)), {"model_type": "llama"})
    b = write_folder(tmp_path / "b", layered(name, 2 * growing(9, 16)), {"model_type": "llama"})
    c = write_folder(tmp_path / "c", layered(name, growing(5, 8)), {"model_type": "olmoe"})
    both = compare([layerrope.inspect(p, shuffles=0) for p in (a, b, c)])
    of_b = [r for r in both.layer_rows if r["model"] == str(b)]
    assert [(r["layer"], r["its_layer"]) for r in of_b] == [(0, 0), (1, 2), (2, 4), (3, 6), (4, 8)]
    assert of_b[0]["ratio"] == pytest.approx(2, rel=0.05)
    assert of_b[0]["angle"] is not None
    assert all(r["angle"] is None for r in both.layer_rows if r["model"] == str(c))
    assert [r["model"] for r in both.site_rows] == [str(a), str(b), str(c)]
    assert both.only_in == {}


def test_a_model_compared_with_itself_does_not_differ(smollm: Inspection) -> None:
    both = compare([smollm, smollm])
    assert {r["ratio"] for r in both.layer_rows} == {1.0}
    assert {r["largest_difference"] for r in both.layer_rows} == {0.0}
    assert max(r["angle"] for r in both.layer_rows) < 1e-5


def test_roles_that_only_one_model_has_are_named(tmp_path: Path) -> None:
    a = write_folder(tmp_path / "a", gemma_tensors(), {"model_type": "gemma2"})
    b = write_folder(tmp_path / "b", layered("h.{l}.ln_1.weight", growing(8, 24)), {"model_type": "gpt2"})
    both = compare([layerrope.inspect(p, shuffles=0) for p in (a, b)])
    assert set(both.only_in) == {"attn_write", "mlp_read", "mlp_write"}


def test_labels_are_shortened_as_far_as_they_differ() -> None:
    assert short_labels(["/x/a", "/y/b"]) == ["a", "b"]
    assert short_labels(["/x/a", "/y/a"]) == ["x/a", "y/a"]
    assert short_labels(["m", "m"]) == ["m", "m (2)"]


def test_shares_keep_two_digits() -> None:
    assert [share(v) for v in (0.5, 0.00072, 8.9e-6, 1e-9)] == ["50%", "0.072%", "0.00089%", "<0.0001%"]
    assert [share(v) for v in (0.123, 0.985, 0.9957, 0.99999, 1.0)] == ["12%", "98%", "99.6%", ">99.9%", "100%"]


# ------------------------------------------------------------------------------------- runs of this package
def write_lm(folder: Path, scheme: str, spread: float = 0.1) -> Any:
    """An untrained model of `scheme` with its gains moved, as a folder; returns the model."""
    import torch
    from safetensors.torch import save_file

    from layerrope import LM, ModelConfig

    shape = {"n_layer": 6, "n_head": 2, "d_model": 16, "d_ff": 16, "vocab_size": 11, "seq_len": 8, "scheme": scheme}
    model = LM(ModelConfig(**shape))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or "gains" in name or "branch" in name:
                value.add_(spread * torch.randn(value.shape, generator=generator))
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "layerrope", **shape}))
    return model


@pytest.mark.parametrize(
    "scheme", ["layerrope", "layerrope-peri", "layerrope:sites=read", "lns", "perinorm", "postnorm"]
)
def test_a_run_shows_the_gain_that_acts_at_each_site_and_depth(tmp_path: Path, scheme: str) -> None:
    model = write_lm(tmp_path / "m", scheme)
    found = layerrope.inspect(tmp_path / "m", shuffles=0)
    state = {k: v.double().numpy() for k, v in model.state_dict().items()}
    rows = None if model.gains is None else model.gains().detach().double().numpy()
    for k, kind in enumerate(("attn", "mlp")):
        covered = model.scheme.covers(kind)
        for r, (end, slot) in enumerate((("read", "pre"), ("write", "post"))):
            own = [state.get(f"layers.{i}.{kind}.branch.{slot}.weight") for i in range(6)]
            expected = [1.0 if v is None else v for v in own]
            if getattr(covered, end):
                assert rows is not None
                expected = [v * rows[i, k, r] for i, v in enumerate(expected)]
            elif own[0] is None:
                assert f"{kind}_{end}" not in found.table.sites
                continue
            site = found.table.sites[f"{kind}_{end}"]
            assert site.matrix == pytest.approx(np.array([np.broadcast_to(e, 16) for e in expected]), abs=1e-6)
    if scheme == "postnorm":
        assert set(found.table.sites) == {"attn_post", "mlp_post"}


def test_a_layerrope_run_gives_its_learned_scalars_and_base(tmp_path: Path) -> None:
    model = write_lm(tmp_path / "m", "layerrope:base=10000")
    found = layerrope.inspect(tmp_path / "m", shuffles=0)
    assert found.table.base == 10_000
    assert set(found.table.scalars) == {"attn_read", "attn_write", "mlp_read", "mlp_write"}
    learned = found.table.scalars["attn_write"]
    assert learned["beta"] == pytest.approx(float(model.gains.beta.detach()[1]))
    fit = found.reports["attn_write"].whole.fit  # type: ignore[union-attr]
    assert fit.base == 10_000
    assert fit.full == pytest.approx(0, abs=1e-3)
    assert fit.beta == pytest.approx(learned["beta"], abs=1e-2)
    assert "learned" in found.to_html(tmp_path / "r.html").read_text()


def test_a_run_whose_gains_do_not_fit_its_configuration_is_refused(tmp_path: Path) -> None:
    write_lm(tmp_path / "m", "layerrope")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "d_model": 32}))
    with pytest.raises(InputError, match="shape"):
        layerrope.inspect(tmp_path / "m")
    path.write_text(json.dumps({**config, "scheme": "layerrope:schedule=free"}))
    with pytest.raises(InputError, match="lacks the gain tensors"):
        layerrope.inspect(tmp_path / "m")
    path.write_text(json.dumps({"model_type": "layerrope"}))
    with pytest.raises(InputError, match="names no scheme"):
        layerrope.inspect(tmp_path / "m")


@pytest.mark.parametrize("scheme", ["layerrope", "lns+layerrope"])
def test_a_training_run_is_inspected_as_it_lies(tmp_path: Path, scheme: str) -> None:
    from toy_run import run, toy_config

    run(toy_config(n_layer=4, steps=6, scheme=scheme), tmp_path / "run")
    found = layerrope.inspect(tmp_path / "run", shuffles=0)
    assert found.table.format == "run"
    assert found.label.endswith("step-6")
    assert [len(s.rows) for s in found.table.sites.values()] == [4] * 4
    assert {s.convention for s in found.table.sites.values()} == {"computed"}
    if scheme == "layerrope":
        size = found.table.scalars["attn_read"]
        assert found.reports["attn_read"].whole.fit.beta == pytest.approx(size["beta"], abs=0.02)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------- one model, many forms
def test_folder_file_and_gguf_give_the_same_table(tmp_path: Path) -> None:
    """WSH-2: one interface, the same numbers whatever the form."""
    attn, mlp = growing(6, 16), growing(6, 16, 0.2, seed=1)
    hf = layered("model.layers.{l}.input_layernorm.weight", attn)
    hf |= layered("model.layers.{l}.post_attention_layernorm.weight", mlp)
    folder = write_folder(tmp_path / "m", hf, {"model_type": "llama"})
    gguf = layered("blk.{l}.attn_norm.weight", attn) | layered("blk.{l}.ffn_norm.weight", mlp)
    forms = [folder, folder / "model.safetensors", write_gguf(tmp_path / "m.gguf", gguf, "llama")]
    tables = [layerrope.inspect(form, shuffles=Q).summary().drop("model") for form in forms]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


# --------------------------------------------------------------------------------------------------- hostile sizes
def test_a_stranger_s_many_sites_are_bounded(tmp_path: Path) -> None:
    tensors = {f"part{i}_x.norm.weight": np.full(4, 0.5) for i in range(40)}
    tensors |= layered("net.{l}.norm.weight", growing(5, 4)) | {"odd.norm.weight": np.full(4, np.nan)}
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors), shuffles=0)
    assert len(found.reports) <= 24
    assert "unknown:net.*.norm" in found.reports
    assert [f["name"] for f in found.faults] == ["odd.norm.weight"]  # looked for everywhere


def test_ten_thousand_layers_are_listed_but_not_measured(tmp_path: Path) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(10_000, 2))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "llama"}))
    assert found.reports["attn_read"].whole is None
    assert "too many" in site_verdict(found.reports["attn_read"])
    assert len(found.layer_rows()) == 10_000


def test_a_7b_model_is_measured_in_about_a_second_of_computing(tmp_path: Path) -> None:
    """All of it, nulls included: 64 vectors of 4096 (bound loose enough for a slow, shared machine)."""
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(32, 4096, 0.4))
    tensors |= layered("model.layers.{l}.post_attention_layernorm.weight", growing(32, 4096, 0.2, seed=1))
    folder = write_folder(tmp_path / "m", tensors, {"model_type": "llama"})
    layerrope.inspect(folder, shuffles=1)  # imports
    started = time.process_time()
    layerrope.inspect(folder)
    assert time.process_time() - started < 4


# ------------------------------------------------------------------------------------- what a null can decide
def turning_folder(folder: Path) -> Path:
    """Gains that turn as LayerRoPE's do, and others that only grow."""
    rng = np.random.default_rng(5)
    gamma, layers = 1 + 0.5 * rng.standard_normal(64), np.arange(1.0, 13)
    angle = (0.3 * layers)[:, None] * 100.0 ** (-np.arange(0, 64, 2) / 64)
    z = (gamma[0::2] + 1j * gamma[1::2]) * np.exp(1j * angle)
    rows = np.stack([z.real, z.imag], axis=-1).reshape(12, 64) * (1 + 0.01 * rng.standard_normal((12, 64)))
    tensors = layered("model.layers.{l}.input_layernorm.weight", rows)
    tensors |= layered("model.layers.{l}.post_attention_layernorm.weight", growing(12, 64))
    return write_folder(folder, tensors, {"model_type": "llama"})


@pytest.mark.parametrize("shuffles", [1, 18])
def test_too_few_shuffles_decide_nothing(tmp_path: Path, shuffles: int) -> None:
    found = layerrope.inspect(turning_folder(tmp_path / "m"), shuffles=shuffles)
    both = [found.verdict, *(site_verdict(r) for r in found.reports.values())]
    assert all(re.search(rf"{shuffles} shuffles? cannot decide", words) for words in both)
    assert not any("no more" in words or "not identifiable" in words for words in both)
    least = f"{1 / (1 + shuffles):.2g}"
    assert all(f"at least {least}" in words for words in both)
    assert "undecided" in found.to_html(tmp_path / "r.html").read_text()


def test_without_shuffles_it_is_the_null_that_was_not_tried(tmp_path: Path) -> None:
    found = layerrope.inspect(turning_folder(tmp_path / "m"), shuffles=0)
    for words in (found.verdict, site_verdict(found.reports["attn_read"])):
        assert "null was not tried (0 shuffles)" in words
        assert "rotation was not tried" not in words


def test_with_enough_shuffles_each_site_gets_its_p(tmp_path: Path) -> None:
    found = layerrope.inspect(turning_folder(tmp_path / "m"), shuffles=19)
    assert "more than shuffled channels at attention read" in found.verdict
    assert "no more than it does for shuffled channels at MLP read" in found.verdict
    p = found.reports["mlp_read"].whole.fit.p_value  # type: ignore[union-attr]
    assert f"(p = 0.05 and {p:.2g}; at best 0.05 with 19 shuffles, not corrected for 2 sites)" in found.verdict


# ------------------------------------------------------------------------------------- what layer 0 alone decides
def test_what_changes_without_layer_0_is_said(tmp_path: Path) -> None:
    name = "model.layers.{l}.input_layernorm.weight"
    rows = growing(24, 32, beta=0.0, noise=0.0) * np.exp(0.05 * np.arange(24))[:, None]
    rows[0] *= 0.05  # a small first layer looks like a power law
    found = layerrope.inspect(write_folder(tmp_path / "m", layered(name, rows), {"model_type": "llama"}), shuffles=0)
    report = found.reports["attn_read"]
    assert next(iter(report.later.laws)) == "exponential"  # type: ignore[union-attr]
    assert next(iter(report.whole.laws)) == "power"  # type: ignore[union-attr]
    beta = report.later.power.beta  # type: ignore[union-attr]
    law = "the power law no longer fits best (exponential does)"
    assert f"Without layer 0, at attention read the exponent is {beta:.2f} and {law}." in found.verdict
    assert "of four laws the exponential one fits best" in site_verdict(report)
    assert "hardly turns" in found.verdict
    assert found.summary_rows()[0]["best_law_from_1"] == "exponential"


def test_norms_inside_attention_are_said_to_be_left_out(tmp_path: Path) -> None:
    tensors = layered("model.layers.{l}.input_layernorm.weight", growing(6, 16))
    for one in ("q", "k"):
        tensors |= layered(f"model.layers.{{l}}.self_attn.{one}_norm.weight", growing(6, 8, seed=2))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "qwen3"}), shuffles=0)
    assert "Query norm and key norm are left out of this" in found.verdict


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (("input_layernorm", "post_attention_layernorm"), "llama"),
        (("input_layernorm", "post_attention_layernorm", "another_norm"), None),
        (("weird_norm",), None),
    ],
)
def test_a_stranger_named_as_a_known_one_gets_a_hint(tmp_path: Path, names: tuple[str, ...], hint: str | None) -> None:
    tensors: Tensors = {"model.norm.weight": np.full(8, 2.0)}
    for name in names:
        tensors |= layered(f"model.layers.{{l}}.{name}.weight", growing(4, 8))
    found = layerrope.inspect(write_folder(tmp_path / "m", tensors, {"model_type": "unheard_of"}), shuffles=0)
    hints = [n for n in found.table.notes if "--architecture" in n]
    assert [n.rpartition(" ")[2] for n in hints] == ([] if hint is None else [hint])


# ------------------------------------------------------------------------------------------------------- pictures
def test_the_fitted_law_is_drawn_over_the_sizes(smollm: Inspection) -> None:
    spec = smollm.charts()["size"].to_dict()
    first, *_ = next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]
    power = smollm.reports["attn_read"].whole.power  # type: ignore[union-attr]
    assert first["fit"] == pytest.approx(power.c)
    assert {layer["encoding"]["y"]["field"] for layer in spec["layer"]} == {"rms", "fit"}


def test_a_picture_that_stands_alone_says_what_it_is(smollm: Inspection) -> None:
    from layerrope.inspector.figures import _alone, _overview, charts

    for name, figure in charts(smollm).items():
        text = json.dumps(_alone(name, figure, smollm.label).to_dict())
        assert json.dumps(figure.title)[1:-1] in text
        assert "smollm2" in text
        if name.startswith("picture-"):
            assert all(word in text for word in ("stress", "Null (", "Control: pure scaling"))
    overview = json.dumps(_overview([smollm]).to_dict())
    assert "smollm2" in overview
    assert "legend" in overview


def test_sites_that_stand_together_differ_in_colour() -> None:
    from layerrope.inspector.figures import COLOURS

    for together in (
        ("attn_read", "attn_write", "mlp_read", "mlp_write", "q_norm", "k_norm"),
        ("attn_post", "mlp_post"),
    ):
        assert len({COLOURS[role] for role in together}) == len(together)
