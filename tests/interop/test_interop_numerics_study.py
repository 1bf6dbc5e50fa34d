"""Low precision under every scheme of a comparison: rows, sentences and a record that only say what was measured."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from layerrope import cli
from layerrope.comparing.record import Purpose
from layerrope.comparing.report import read_comparison
from layerrope.errors import InputError
from layerrope.numerics import FORMATS, Numerics, Row
from layerrope.studies.numerics import (
    LOW,
    Scored,
    _answer,
    _luck,
    answers,
    by_scheme,
    loss_rows,
    score_schemes,
    settings_in,
    stream_rows,
    write_numerics,
)

ASKED = ["compare", "--schemes", "prenorm", "lns", "--tier", "micro-100k", "--seeds", "0", "1", "--lrs", "1e-3"]
ASKED += ["--budget", "2", "--batch-size", "2", "--eval-tokens", "256", "--jobs", "0", "--no-compile"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numerics")
    (folder / "text.txt").write_text("The cat sat on the mat, and the dog on the log. " * 400)
    assert cli.main([*ASKED, "--data", str(folder / "text.txt"), "--out", str(folder / "runs")]) == 0
    return folder / "runs"


def scored(scheme: str, seed: int, change: float, largest: float = 2.0) -> Scored:
    rows = tuple(Row(name, 1.0 + change, 0.0 if name == "fp32" else change, True) for name in FORMATS)
    return Scored(scheme, seed, 0.1, f"{scheme}-{seed}", Numerics(rows, (1.0, largest), (0.5, 1.0)))


def test_every_run_is_scored_and_recorded(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_comparison(runs)
    told: list[str] = []
    (setting,) = settings_in(runs)
    assert setting.name == ""
    made = score_schemes(runs, setting, 256, 4, told.append)
    assert sorted((run.scheme, run.seed) for run in made) == [("lns", 0), ("lns", 1), ("prenorm", 0), ("prenorm", 1)]
    assert len(told) == 4
    purpose = Purpose("A title", "Is it so?", "More of it.")
    write_numerics(found, made, tmp_path / "out", purpose, "python record.py", 256)
    losses = list(csv.DictReader((tmp_path / "out" / "losses.csv").open()))
    assert len(losses) == 4 * len(FORMATS)
    assert len(list(csv.DictReader((tmp_path / "out" / "stream.csv").open()))) == 4 * len(made[0].found.rms)
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.startswith("# A title\n\n**Question.** Is it so?\n\n**Answer.** ")
    assert "256 positions" in page
    assert str(runs) not in page
    capsys.readouterr()
    assert cli.main(["eval", str(runs), "--numerics", "--tokens", "256", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["runs"]) == 4
    by_key = {row["key"]: float(row["loss"]) for row in losses if row["format"] == "int4"}
    for run in said["runs"]:
        (row,) = (row for row in run["found"]["rows"] if row["format"] == "int4")
        assert row["loss"] == pytest.approx(by_key[run["key"]], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "x.txt"], "its own validation text"),
        (["--tokens", "0"], "tokens must be"),
        (["--batch-size", "0"], "batch-size must be"),
        (["--limit", "3"], "--limit needs --tasks"),
        (["--through", "transformers"], "--through needs --tasks"),
        (["--device", "cuda"], "--device needs --tasks or --loops"),
        (["--contrast", "adaptive"], "--contrast needs --loops"),
        (["--loops", "2"], "two different evaluations"),
        (["--tasks", "piqa"], "two different evaluations"),
    ],
)
def test_what_does_not_fit_is_refused(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["eval", str(runs), "--numerics", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_study_is_scored_setting_by_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the data of its own: here two lengths of context."""
    (tmp_path / "text.txt").write_text("The cat sat on the mat, and the dog on the log. " * 400)
    words = ["study", "context", "--scale", "tiny", "--sizes", "8", "16", "--schemes", "prenorm", "lns", "--seeds", "0"]
    words += ["--lrs", "1e-3", "--budgets", "2", "--data", str(tmp_path / "text.txt"), "--eval-tokens", "256"]
    assert cli.main([*words, "--jobs", "0", "--out", str(tmp_path / "runs")]) == 0
    assert [one.data.seq_len for one in settings_in(tmp_path / "runs")] == [8, 16]
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "runs"), "--numerics", "--tokens", "64", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(run["setting"], run["scheme"]) for run in said["runs"]] == [
        (f"context {n}", scheme) for n in (8, 16) for scheme in ("prenorm", "lns")
    ]
    assert len(said["says"]) == 2 * len(LOW)
    assert said["says"][0].startswith("context 8: bf16 costs at most ")
    assert cli.main(["eval", str(tmp_path / "runs"), "--numerics", "--tokens", "64"]) == 0
    assert "(context 16)" in capsys.readouterr().out


def test_the_study_of_that_name_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "numerics", "--dry-run"]) == 2
    assert "layerrope eval FOLDER --numerics" in capsys.readouterr().err


def test_sentences_tell_a_difference_only_beyond_the_seeds() -> None:
    even = [scored("prenorm", i, 0.001 * i) for i in range(3)]
    worse = [scored("lns", i, 0.05 + 0.001 * i) for i in range(3)]
    noisy = [scored("hc", i, 0.05 * (-1) ** i) for i in range(3)]
    said = dict(zip(LOW, answers([*even, *worse, *noisy]), strict=True))
    assert said["int4"] == (
        "int4 costs at most +0.0510 nats per token on average (lns); told apart from prenorm: lns (+0.0500)."
    )
    assert answers(worse)[0] == "bf16 costs at most +0.0510 nats per token on average (lns)."
    one = answers([even[0], worse[0]])[0]
    assert one.endswith("told apart from prenorm: none.")  # one seed tells nothing apart


def test_a_loss_that_is_not_finite_is_never_a_cheap_one() -> None:
    """NaN is neither more nor less than another cost: a maximum over it would pass it by."""
    sound = [scored("prenorm", i, 0.001 * i) for i in range(3)]
    for nan in (math.nan, math.inf):
        lost = [scored("lns", 0, 0.0), scored("lns", 1, nan), scored("lns", 2, 0.0)]
        for runs in ([*sound, *lost], [*lost, *sound]):
            assert {row["scheme"]: row["fp16"] for row in loss_rows(runs)}["lns"] == "not finite"
            assert answers(runs)[LOW.index("fp16")] == (
                "fp16 makes the loss not finite under lns; fp16 costs at most +0.0010 nats per token on average "
                "(prenorm); told apart from prenorm: none."
            )
        assert _answer([*sound, *lost]).startswith("The loss is not finite in bf16 under lns, fp16 under lns, int8")
        assert "under any scheme" in _answer(lost)
        assert answers(lost)[0] == "bf16 makes the loss not finite under lns."


def test_only_intervals_that_were_made_are_counted() -> None:
    """Of one seed, of no Pre-Norm and of a format that breaks a scheme there is none."""
    even, worse = ([scored(name, i, cost * i) for i in range(3)] for name, cost in (("prenorm", 0.001), ("lns", 0.05)))
    assert _luck(by_scheme([*even, *worse])) == [
        f"{len(LOW)} intervals at 95%: luck alone takes one or more off zero in up to 30% of tries."
    ]
    broken = [scored("hc", 0, 0.1), scored("hc", 1, math.nan)]
    assert _luck(by_scheme([*even, *worse, *broken])) == _luck(by_scheme([*even, *worse]))
    assert _luck(by_scheme([even[0], worse[0]])) == []
    assert _luck(by_scheme(worse)) == []
    assert _luck(by_scheme([*even[:2], *worse[1:]])) == []  # one seed in common


def test_tables_have_a_row_a_scheme() -> None:
    made = [scored("prenorm", 0, 0.0), scored("prenorm", 1, 0.2), scored("lns", 0, 0.1, largest=900.0)]
    rows = loss_rows(made)
    assert [row["scheme"] for row in rows] == ["prenorm", "lns"]
    assert rows[0]["int4"].startswith("+0.1000 ± ")
    assert rows[1]["int4"] == "+0.1000"  # one seed has no interval
    assert stream_rows(made)[1]["largest value"] == "900"
    assert stream_rows(made)[1]["largest / RMS, at most"] == "900"


def test_a_folder_without_finished_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text("{}")
    assert cli.main(["eval", str(tmp_path), "--numerics"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(InputError):
        read_comparison(tmp_path)
