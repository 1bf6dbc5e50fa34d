"""The lab page without a browser: one closed file, its numbers from the package's own code, bad input refused."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_runs import HOSTILE, ended_study
from toy_run import toy_config

from layerrope import cli, lab
from layerrope.accounting import count_parameters, flops_per_token, gate_flops
from layerrope.cli import help_text
from layerrope.commands.lab import Command
from layerrope.comparing.compare import comparison
from layerrope.comparing.rates import Rates
from layerrope.config import ModelConfig, tiers
from layerrope.errors import InputError
from layerrope.files import read_json, write_json
from layerrope.lab import budget, measured, runs, specs
from layerrope.lab.runs import POINTS, runs_page, thinned
from layerrope.studies import RECIPES
from layerrope.studies.findings import findings_of
from layerrope.studies.reading import read_found
from layerrope.study import Run, write_study
from layerrope.training.machine import threads
from layerrope.training.trained import load_trained

ROOT = Path(__file__).parents[1]


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append((self.tags[-1][1], data))

    def json(self, name: str) -> Any:
        return json.loads("".join(text for attrs, text in self.scripts if attrs.get("id") == name))


# ------------------------------------------------------------------------------------------------------------- the page
def test_the_page_is_one_closed_file_of_bounded_size(lab_page: str) -> None:
    assert len(lab_page.encode()) <= 3 * 10**6 <= lab.MOST_BYTES
    found = Tags(lab_page)
    for tag, attrs in found.tags:
        assert not {"src", "srcset", "action", "data"} & set(attrs), (tag, attrs)
        assert (attrs.get("href") or "#").startswith("#")
    policy = next(str(attrs["content"]) for tag, attrs in found.tags if tag == "meta" and "http-equiv" in attrs)
    for rule in ("default-src 'none'", "connect-src 'none'", "form-action 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe-eval" not in policy
    scripts: dict[int, str] = {}
    for attrs, text in found.scripts:
        if attrs.get("type") != "application/json":
            scripts[id(attrs)] = scripts.get(id(attrs), "") + text
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts.values()}
    assert hashes == set(re.findall(r"sha256-([^']+)'", policy))
    assert len(hashes) == 1 + len(lab.SCRIPTS)


def test_every_chart_has_its_place_and_every_part_its_title(lab_page: str) -> None:
    found = Tags(lab_page)
    live = {str(a["id"]) for _, a in found.tags if (a.get("class") or "") == "chart live"}
    assert live == set(specs.live(run=True)) == set(found.json("charts"))
    assert all(a.get("aria-label") for _, a in found.tags if "chart" in (a.get("class") or "").split())
    parts = [str(a["id"]) for tag, a in found.tags if tag == "section"]
    assert parts == ["gain", "stream", "mirage", "budget", "runs"]
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_names_from_files_are_text_whatever_they_are(lab_page: str) -> None:
    found = Tags(lab_page)
    assert "img" not in {tag for tag, _ in found.tags}
    assert HOSTILE in found.json("lab")["run"]["name"]
    drawn = json.dumps([found.json(f"spec-{i}") for i in range(3)])
    assert json.dumps(HOSTILE)[1:-1] in drawn
    assert HOSTILE not in lab_page


def test_a_script_inside_a_name_does_not_end_the_data(monkeypatch: pytest.MonkeyPatch, lab_folder: Path) -> None:
    words = "</script><script>alert(1)</script><!--"
    monkeypatch.setattr(measured, "name_of", lambda config: words)
    found = Tags(lab.lab_page(lab_folder / "plain"))
    assert words in found.json("lab")["run"]["name"]
    assert not any(text.startswith("alert") for _, text in found.scripts)


def test_without_runs_the_last_part_shows_the_packaged_sweep() -> None:
    body, charts = runs_page(None).content()
    assert len(charts) == 1
    rows = next(iter(charts["spec-0"]["datasets"].values()))
    assert {"prenorm", "layerrope"} <= {row["scheme"] for row in rows}
    assert "layerrope lab --runs" in "".join(body)


# -------------------------------------------------------------------------------------------------------- what it reads
def test_the_packaged_norms_are_those_of_the_model() -> None:
    norms = np.load(ROOT / "tests" / "data" / "smollm2-135m.npz")
    packaged = measured.packaged()
    for site, rows in (("attn_read", norms["attn_in"]), ("mlp_read", norms["mlp_in"])):
        stored, now = packaged["sites"][site], measured.measure(rows)
        assert stored["d"] == now["d"]
        assert stored["law"] == pytest.approx(now["law"], rel=1e-12)
        for name in ("rms", "gram"):
            assert stored[name] == pytest.approx(now[name], rel=1e-12)
    assert packaged["sha256"] in (ROOT / "tests" / "data" / "README.md").read_text()
    assert "Apache" in packaged["licence"]


def test_a_table_that_has_no_law_or_no_picture_says_so() -> None:
    assert measured.measure(np.zeros((4, 6)))["law"] is None
    assert measured.measure(np.zeros((4, 6)))["gram"] is None
    assert measured.measure(np.ones((2, 6)))["gram"] is None
    assert measured.measure(np.ones((measured.MOST_VECTORS + 1, 2)))["gram"] is None
    assert measured.measure(np.ones((1, 6)))["law"] is None


@pytest.mark.parametrize("name", [HOSTILE, "free"])
def test_a_runs_numbers_are_those_of_its_module(lab_folder: Path, name: str) -> None:
    found = measured.of_run(lab_folder / name)
    module: Any = load_trained(lab_folder / name).model.gains
    table = found["table"]
    assert (table["n_layer"], table["d"], table["per_layer"]) == (2, 8, name == "free")
    assert set(table["sites"]) == set(found["sites"]) == {"attn_read", "attn_write", "mlp_read", "mlp_write"}
    for k, site in enumerate(table["sites"].values()):
        gamma = np.frombuffer(base64.b64decode(site["gamma"]), "<f4").reshape(-1, 8)
        own = module.gamma.detach().numpy()
        assert np.array_equal(gamma, own[:, k] if name == "free" else own[k][None])
        if name == "free":
            assert site["magnitude"] == module.magnitude_table.detach()[:, k].tolist()
            assert site["alpha"] == 0
        else:
            assert (site["beta"], site["alpha_rot"]) == (module.beta[k].item(), module.alpha_rot[k].item())
            assert site["magnitude"] is None


def test_a_run_without_layerrope_is_measured_and_has_no_sliders(lab_folder: Path) -> None:
    found = measured.of_run(lab_folder / "plain")
    assert found["table"] is None
    assert set(found["sites"]) == {"attn_read", "mlp_read"}
    assert found["sites"]["attn_read"]["rms"] == pytest.approx([1, 1], abs=0.05)


# ----------------------------------------------------------------------------------------------------------- its budget
@pytest.mark.parametrize("name", budget.SHOWN)
@settings(max_examples=4)
@given(n_layer=st.integers(1, 9), half=st.integers(1, 20))
def test_the_formula_of_a_schemes_parameters_holds(name: str, n_layer: int, half: int) -> None:
    cost, d = budget.cost(name), 2 * half
    config = ModelConfig(n_layer=n_layer, d_model=d, n_head=1, d_ff=8, vocab_size=5, seq_len=4, scheme=name)
    plain = ModelConfig(n_layer=n_layer, d_model=d, n_head=1, d_ff=8, vocab_size=5, seq_len=4)
    one, layer, width, both = cost.parameters
    extra = count_parameters(config)[0] - count_parameters(plain)[0]
    assert extra == one + layer * n_layer + width * d + both * n_layer * d
    assert gate_flops(config) == cost.gate * n_layer * d


def test_a_scheme_that_is_no_such_formula_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_own", lambda name, L, d: L * d * d)
    with pytest.raises(InputError, match="no such formula"):
        budget.cost.__wrapped__("prenorm")


def test_every_tier_is_there() -> None:
    found = budget.document()["tiers"]
    assert list(found) == list(tiers)
    assert all(found[name]["d_ff"] == tiers[name].d_ff for name in tiers)


# ------------------------------------------------------------------------------------------------------------- its runs
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), max_size=300),
    st.integers(5, 400),
)
def test_thinned_curves_keep_their_ends_and_are_few(points: list[tuple[str, str]], most: int) -> None:
    rows = [{"scheme": s, "seed": seed, "text": "training", "tokens": i} for i, (s, seed) in enumerate(points)]
    kept = thinned(rows, most)
    assert len(kept) <= most + len(set(points))
    ends = {(row["scheme"], row["seed"]): row["tokens"] for row in rows}
    assert {(row["scheme"], row["seed"]): row["tokens"] for row in kept} == ends
    if len(rows) <= most:
        assert sorted(kept, key=lambda row: row["tokens"]) == rows


def test_a_comparison_brings_its_curves_rates_and_gains(tmp_path: Path) -> None:
    tiny = ["--steps", "4", "--batch-size", "1", "--eval-tokens", "256", "--no-compile", "--jobs", "0"]
    made = tmp_path / "all" / "mine"
    asked = ["--tier", "micro-100k", "--schemes", "prenorm", "layerrope", "--lrs", "0.003", "0.01", "--seeds", "0"]
    with threads(1):
        assert cli.main(["compare", *asked, *tiny, "--out", str(made)]) == 0
    body, charts = runs_page(made.parent).content()
    text = "".join(body)
    assert "mine: comparison" in text
    for words in (
        "training loss",
        "learning rate",
        "attention reads",
        "MLP writes",
        "Lowest validation loss",
        "cannot tell",
    ):
        assert words in text or words in json.dumps(charts)
    alone, _ = runs_page(made).content()
    assert len(alone) == len(body)


@pytest.mark.parametrize("name", RECIPES)
def test_every_kind_of_study_has_its_findings_on_the_page(name: str, tmp_path: Path) -> None:
    folder = ended_study(name, tmp_path / "mine", lambda each: 3 + len(each.config.model.scheme) / 100 + each.config.lr)
    body, charts = runs_page(folder).content()
    text = html.unescape("".join(body))
    assert f"mine: study of kind {name}" in text
    for sentence in findings_of(read_found(folder)).sentences:
        assert sentence in text
    assert "is missing among the gains" in text
    assert charts


def test_a_ladders_fit_is_drawn_with_its_savings(tmp_path: Path) -> None:
    def loss(each: Run) -> float:
        tokens = each.config.steps * each.config.tokens_per_step
        compute = flops_per_token(each.config.model) * tokens * (2 if each.config.model.scheme == "layerrope" else 1)
        return 1.5 + 20 * compute**-0.1 + (math.log(each.config.lr) - math.log(0.012)) ** 2 / 100

    body, charts = runs_page(ended_study("ladder", tmp_path / "ladder", loss)).content()
    text = "".join(body)
    assert "2.00x" in text
    drawn = [spec for spec in charts.values() if "training FLOPs" in json.dumps(spec)]
    assert len(drawn) == 1
    assert len(json.dumps(drawn)) > 2000


def test_a_study_that_has_only_begun_says_so(tmp_path: Path) -> None:
    for name in ("ladder", "lr"):
        folder = ended_study(name, tmp_path / name, lambda each: 3.0)
        for result in folder.glob("*/result.json"):
            result.unlink()
    write_study(comparison(toy_config(), Rates({"prenorm": (0.01,)}, "x"), [0], {}), tmp_path / "compare")
    body, charts = runs_page(tmp_path).content()
    text = "".join(body)
    assert text.count("Not finished") == 2
    assert "No run was trained to its end" in text
    assert not charts


def test_more_than_can_be_told_apart_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(runs.MOST_RUNS + 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds 25 runs outside of studies, a page takes 24"):
        runs_page(tmp_path)
    monkeypatch.setattr(runs, "MOST_STUDIES", 1)
    for name in ("a", "b"):
        ended_study("lr", tmp_path / "all" / name, lambda each: 3.0)
    with pytest.raises(InputError, match="holds 2 studies, a page takes 1"):
        runs_page(tmp_path / "all")


def test_what_a_study_calls_its_settings_is_text(tmp_path: Path) -> None:
    words = "</script><img src=x onerror=alert(1)>"
    folder = ended_study("ladder", tmp_path / "mine", lambda each: 3 + each.config.lr)
    saved = read_json(folder / "study.json")
    saved["labels"] = [{**row, "budget": words} for row in saved["labels"]]
    write_json(folder / "study.json", saved)
    page = lab.lab_page(runs=folder)
    assert "&lt;/script&gt;&lt;img" in page
    assert "img" not in {tag for tag, _ in Tags(page).tags}


# ------------------------------------------------------------------------------------------------------------ bad input
def test_what_is_no_run_is_refused_and_nothing_written(tmp_path: Path, lab_folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    file = tmp_path / "file"
    file.write_text("x")
    out = tmp_path / "lab.html"
    for run_dir, runs_dir, words in (
        (tmp_path / "empty", None, "config.json"),
        (None, tmp_path / "empty", "holds no study and no run"),
        (None, tmp_path / "nowhere", "is no folder"),
        (None, file, "is no folder"),
    ):
        with pytest.raises(InputError, match=words):
            lab.write_lab(out, run_dir, runs_dir)
    assert not out.exists()
    with pytest.raises(InputError, match="no regular file"):
        lab.write_lab(tmp_path / "empty")


def test_a_page_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lab, "MOST_BYTES", 10_000)
    with pytest.raises(InputError, match="give fewer runs"):
        lab.write_lab(tmp_path / "lab.html")
    assert not (tmp_path / "lab.html").exists()


def test_runs_with_more_gains_than_a_page_takes_keep_their_measurements(
    monkeypatch: pytest.MonkeyPatch, lab_folder: Path
) -> None:
    monkeypatch.setattr(measured, "MOST_GAIN_NUMBERS", 8)
    found = measured.of_run(lab_folder / HOSTILE)
    assert found["table"] is None
    assert len(found["sites"]) == 4


def test_the_command_writes_the_page_and_one_document(
    tmp_path: Path, lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "site" / "index.html"
    torch.set_num_threads(1)
    assert cli.main(["lab", "--run", str(lab_folder / "free"), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"schema_version": 1, "page": str(out), "bytes": out.stat().st_size}
    assert cli.main(["lab", "--runs", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


# ---------------------------------------------------------------------------------------------------------- its how-to
def test_the_how_to_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    how_to = (ROOT / "docs" / "lab.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"^```python\n(.*?)^```", how_to, re.M | re.S)[0], {})
    assert capsys.readouterr().out == "True\n"
    flags = set(re.findall(r"--[a-z-]+", help_text(Command, "lab")))
    assert set(re.findall(r"--[a-z-]+", how_to)) <= flags
    for picture in re.findall(r"\((images/.*?)\)", how_to):
        assert (ROOT / "docs" / picture).stat().st_size < 200_000
    assert f"{POINTS:,} points" in how_to
    assert f"{len(budget.SHOWN)} schemes" in how_to.replace("nine", "9")
