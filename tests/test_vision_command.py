"""`layerrope vision`: the table, its JSON, resuming, bad input."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layerrope.charts import save_charts
from layerrope.cli import main
from layerrope.comparing.intervals import Interval
from layerrope.comparing.record import markdown
from layerrope.train import train
from layerrope.training.kinds import VisionTrainConfig
from layerrope.training.run_folder import Result
from layerrope.vision.compare import VisionRow, VisionRun, VisionTable, rows_of
from layerrope.vision.report import CAPTION, accuracies, findings, ranked, shown_rows, table_of

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


def run(scheme: str, lr: float, seed: int, loss: float | None, accuracy: float | None = None) -> VisionRun:
    """A run; without a loss it diverged."""
    status = "diverged" if loss is None else "done"
    return VisionRun(scheme, lr, seed, status, loss, accuracy, {"a": 5, "b": 6, "c": 7}[scheme], 1.0, "key")


BASE = [run("a", 0.1, 0, 1.0, 0.7), run("a", 0.1, 1, 1.2, 0.6), run("a", 0.2, 0, 0.1, 0.9), run("a", 0.2, 1, None)]
"""A first scheme, of which one seed of two diverged at the rate that did better on the other."""


def test_the_best_rate_lost_fewest_seeds_and_then_has_the_smallest_loss() -> None:
    better = [run("b", 0.1, 0, 2.0, 0.5), run("b", 0.1, 1, 2.0, 0.5), run("b", 0.2, 0, 0.5, 0.9)]
    first, row = rows_of([*BASE, *better, run("b", 0.2, 1, 0.5, 0.8)])
    assert (first.lr, first.diverged, first.gain) == (0.1, 1, None)
    assert (row.lr, row.parameters, row.at_edge, row.diverged) == (0.2, 6, True, 0)
    assert row.gain is not None
    assert row.gain.mean == pytest.approx((0.2 + 0.2) / 2)


def test_a_scheme_that_lost_a_seed_at_every_rate_is_compared_on_the_others() -> None:
    _, row = rows_of([*BASE, run("b", 0.1, 0, None), run("b", 0.1, 1, 2.0, 0.5), run("b", 0.2, 1, None)])
    assert (row.lr, row.diverged) == (0.1, 2)
    assert row.accuracy is not None
    assert row.gain is not None
    assert (row.accuracy.n, row.gain.n) == (1, 1)
    assert row.gain.mean == pytest.approx(0.5 - 0.6)


def test_a_scheme_without_a_run_that_ended_is_a_row_without_a_loss() -> None:
    lost = [run("b", 0.1, 0, None), run("b", 0.2, 0, None)]
    table = VisionTable(rows_of([*BASE, *lost]), [*BASE, *lost], {})
    assert [row.scheme for row in ranked(table)] == ["a", "b"]
    words = findings(table)
    assert words[0].startswith("Best accuracy: a")
    assert "Diverged: a at 0.2 (seed 1); b at 0.1 (seed 0); b at 0.2 (seed 0)." in words
    assert "No accuracy to compare, since no run reached the end: b." in words
    shown = shown_rows(table.rows, "a")[1]
    assert shown == {
        "scheme": "b",
        "parameters": "6",
        "best lr": "–",
        "loss": "–",
        "accuracy": "–",
        "vs a, 95%": "–",
        "diverged": "2",
    }
    figure = accuracies(table)
    assert figure is not None
    (dots, *_) = figure.chart.to_dict()["datasets"].values()
    assert {dot["scheme"] for dot in dots} == {"a"}
    assert accuracies(VisionTable(rows_of(lost), lost, {})) is None


def test_a_first_scheme_that_was_lost_leaves_the_others_without_a_difference() -> None:
    runs = [run("a", 0.1, 0, None), run("b", 0.1, 0, 1.0, 0.5), run("c", 0.1, 0, 2.0, 0.4)]
    words = findings(VisionTable(rows_of(runs), runs, {}))
    assert words[0] == "Best accuracy: b, 50.00% at learning rate 0.1."
    assert "No difference to a, since no seed ended in both: b, c." in words


def test_one_diverging_scheme_leaves_the_comparison_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging(monkeypatch, {"lns"})
    words = ["vision", "--schemes", "prenorm", "lns", *SMALL, "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lost = found["rows"][1]
    assert (lost["lr"], lost["val_loss"], lost["accuracy"], lost["gain"], lost["diverged"]) == (*[None] * 4, 4)
    assert json.loads((tmp_path / "vision.json").read_text()) == found
    assert (tmp_path / "runs.csv").read_text().count("diverged") == 4
    assert (tmp_path / "accuracy.png").exists()
    assert asdict(table_of(found))["rows"] == found["rows"]
    assert main(words) == 0
    assert "no run reached the end: lns" in capsys.readouterr().out


def test_a_comparison_of_which_nothing_ended_fails_with_its_runs_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging(monkeypatch, {"prenorm", "lns"})
    save_charts({"accuracy": {"data": {"values": []}, "mark": "point"}}, tmp_path)  # an earlier report's
    assert main(["vision", "--schemes", "prenorm", "lns", *SMALL, "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "No run was trained to its end" in shown.out
    assert "accuracy.png" not in shown.out
    assert "Traceback" not in shown.err
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 8
    assert not (tmp_path / "accuracy.png").exists()


def diverging(monkeypatch: pytest.MonkeyPatch, schemes: set[str]) -> None:
    """Let every run of these schemes be trained at a rate at which it diverges."""

    def trained(config: VisionTrainConfig, *args: Any, **options: Any) -> Result:
        lr = 1e30 if config.model.scheme in schemes else config.lr
        return train(replace(config, lr=lr), *args, **options)

    monkeypatch.setattr("layerrope.vision.compare.train", trained)


def test_the_digits_record_is_what_its_runs_and_this_code_give() -> None:
    folder = Path(__file__).parents[1] / "results" / "digits"
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as lines:
        read = [{name: typed_cell(name, cell) for name, cell in row.items()} for row in csv.DictReader(lines)]
    table = table_of({"runs": read, "data": {}})
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert markdown(shown_rows(ranked(table), "prenorm")) in text
    assert all(sentence in text for sentence in findings(table))
    assert f"![{CAPTION}](accuracy.png)" in text


def typed_cell(name: str, cell: str) -> str | int | float | None:
    """A cell of runs.csv as the run holds it."""
    kind = {"lr": float, "seed": int, "val_loss": float, "accuracy": float, "parameters": int, "seconds": float}
    return None if cell == "" else kind.get(name, str)(cell)


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
