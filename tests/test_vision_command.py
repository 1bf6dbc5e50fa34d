"""`layerrope vision`: the table, its JSON, resuming, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layerrope.cli import main
from layerrope.comparing.intervals import Interval
from layerrope.vision.compare import VisionRow, VisionTable, _Outcome, _row
from layerrope.vision.report import findings

torch.set_num_threads(1)
SMALL = ["--n-layer=1", "--d-model=16", "--d-ff=16", "--steps=3", "--batch-size=16", "--seeds=2"]
SMALL += ["--lrs", "1e-3", "1e-2"]


def test_json_and_reading_finished_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vision", "--schemes", "prenorm", "layerrope", *SMALL, "--out", str(tmp_path / "runs"), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["scheme"] for row in first["rows"]] == ["prenorm", "layerrope"]
    assert first["rows"][0]["gain"] is None
    assert first["rows"][1]["gain"]["n"] == 2
    assert all(0 <= row["accuracy"]["mean"] <= 1 and row["at_edge"] for row in first["rows"])
    assert len([path for path in (tmp_path / "runs").iterdir() if path.is_dir()]) == 8
    assert json.loads((tmp_path / "runs" / "vision.json").read_text()) == first
    assert (tmp_path / "runs" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "runs" / "runs.csv").read_text().splitlines()) == 1 + 8 == 1 + len(first["runs"])
    assert first["findings"][0].startswith("Best accuracy: ")
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["vision", "--schemes", "prenorm", *SMALL, "--seeds", "1", "--lrs", "1e-3", "--out", str(tmp_path)]) == 0
    )
    shown = capsys.readouterr().out
    assert "prenorm" in shown
    assert "held-out images" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--schemes", "nonsense"], "unknown scheme"),
        (["--schemes", "xhc"], "earlier positions"),
        (["--tier", "deit-l"], "unknown tier"),
        (["--data", "absent.npz"], "no images at"),
        (["--n-class", "9"], "10 classes"),
        (["--patch-size", "3"], "do not divide"),
        (["--seeds", "0"], "seeds"),
        (["--lrs", "1e-3", "1e-3"], "each once"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vision", "--schemes", "prenorm", *SMALL, "--out", str(tmp_path), *words]) == 2
    seen = capsys.readouterr()
    assert says in seen.err
    assert seen.out == ""
    assert "Traceback" not in seen.err


def test_best_rate_is_by_loss_and_never_one_that_diverged() -> None:
    found = {
        ("a", 0.1, 0): _Outcome(1.0, 0.7, 5),
        ("a", 0.1, 1): _Outcome(1.2, 0.6, 5),
        ("a", 0.2, 0): _Outcome(0.1, 0.9, 5),
        ("a", 0.2, 1): None,
        ("b", 0.1, 0): _Outcome(2.0, 0.5, 6),
        ("b", 0.1, 1): _Outcome(2.0, 0.5, 6),
        ("b", 0.2, 0): _Outcome(0.5, 0.9, 6),
        ("b", 0.2, 1): _Outcome(0.5, 0.8, 6),
    }
    row = _row("b", "a", (0.1, 0.2), (0, 1), found)
    assert (row.lr, row.parameters, row.at_edge, row.diverged) == (0.2, 6, True, 0)
    assert row.gain is not None
    assert row.gain.mean == pytest.approx((0.2 + 0.2) / 2)
    assert _row("a", "a", (0.1, 0.2), (0, 1), found).diverged == 1


def made(scheme: str, gain: Interval | None, lr: float = 0.2) -> VisionRow:
    same = Interval(0.5, None, None, 1, None)
    return VisionRow(scheme, 1, lr, False, same, same if gain is None else replace(same, mean=0.5 + gain.mean), gain, 0)


def test_findings_count_only_what_its_interval_parts_from_zero() -> None:
    up, down = Interval(0.2, 0.1, 0.3, 3, 0.04), Interval(-0.2, -0.3, -0.1, 3, 0.04)
    rows = [made("a", None), made("b", up), made("c", down), made("d", Interval(0.1, -0.1, 0.3, 3, 0.1))]
    said = findings(VisionTable(rows, [], {}))
    assert said[0].startswith("Best accuracy: b, 70.00%")
    assert said[1] == "Better than a: b +20.00% (+10.00% to +30.00%)."
    assert said[2].startswith("Worse than a: c")
    assert said[3].startswith("Not told apart from a: d")
    assert said[4].startswith("3 intervals")
    assert len(findings(VisionTable(rows[:1], [], {}))) == 1


def test_a_finished_run_without_its_metrics_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vision", "--schemes", "prenorm", *SMALL, "--seeds", "1", "--lrs", "1e-3", "--out", str(tmp_path)]
    assert main(words) == 0
    (metrics,) = tmp_path.glob("prenorm-*/metrics.jsonl")
    metrics.write_text("")
    capsys.readouterr()
    assert main(words) == 2
    assert "has lost the accuracy" in capsys.readouterr().err
