"""`layerrope study`: trained, reused, reported, fitted; its dry run; and the commands of docs/studies.md."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from layerrope import cli
from layerrope.studies import RECIPES
from layerrope.training.machine import threads

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "studies.md").read_text()
ASKED = ["--scale", "tiny", "--sizes", "tiny-8", "tiny-12", "--schemes", "prenorm", "layerrope", "--jobs", "0"]
RATES = ["--lrs", "0.003", "0.01", "1e30", "--seeds", "0", "1"]


def strictly(text: str) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished ladder: two sizes, two schemes, three rates of which one diverges, two seeds at the best one."""
    folder = tmp_path_factory.mktemp("study") / "ladder"
    with threads(1):
        assert cli.main(["study", "ladder", *ASKED, *RATES, "--out", str(folder)]) == 0
    return folder


def test_every_run_is_in_the_table_lost_ones_too(made: Path) -> None:
    rows = list(csv.DictReader((made / "runs.csv").open()))
    assert len(rows) == 2 * 2 * (3 + 1)
    assert {row["status"] for row in rows if row["lr"] == "1e+30"} == {"diverged"}
    assert {row["status"] for row in rows if row["lr"] != "1e+30"} == {"done"}
    assert sum(row["seed"] == "1" for row in rows) == 4
    for row in rows:
        assert (made / row["key"] / "result.json").exists()
        assert float(row["flops"]) > 6 * float(row["tokens"]) * 1000


def test_the_report_is_whole_and_strict(made: Path) -> None:
    record = strictly((made / "result.json").read_text())
    assert record["schema"] == "layerrope.study/1"
    assert record["finished"]
    assert len(record["settings"]) == 4
    assert any(line.startswith("Diverged: 4 runs") for line in record["findings"])
    page = (made / "report.html").read_text()
    assert "default-src 'none'" in page
    assert "Study: ladder" in page


def test_the_same_command_trains_nothing_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.glob("*/result.json")}
    assert cli.main(["study", "ladder", *ASKED, *RATES, "--out", str(made), "--json"]) == 0
    shown = capsys.readouterr()
    assert len(strictly(shown.out)["runs"]) == 16
    assert {path: path.stat().st_mtime_ns for path in made.glob("*/result.json")} == before
    labels = re.findall(r"^size .* seed \d: ", shown.err, re.M)
    assert len(labels) == len(set(labels)) == 16


def test_a_rate_beyond_the_edge_is_trained_before_the_other_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--scale", "tiny", "--schemes", "prenorm", "--jobs", "0", "--lrs", "0.0001", "0.0002", "--seeds", "0", "1"]
    with threads(1):
        assert cli.main(["study", "competitors", *small, "--bracket", "2", "--out", str(tmp_path / "s")]) == 0
    rows = list(csv.DictReader((tmp_path / "s" / "runs.csv").open()))
    assert [(row["lr"], row["seed"]) for row in rows][:-1] == [
        (lr, "0") for lr in ("0.0001", "0.0002", "0.0004", "0.0008")
    ]
    assert rows[-1]["seed"] == "1"
    assert capsys.readouterr().err.count("beyond the edge") == 2


def test_the_report_is_drawn_again_from_the_runs(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = strictly((made / "result.json").read_text())
    (made / "result.json").unlink()
    assert cli.main(["report", str(made), "--json"]) == 0
    assert strictly(capsys.readouterr().out) == before == strictly((made / "result.json").read_text())
    assert cli.main(["report", str(made), "--picture", "x.png"]) == 2


def test_a_lost_run_is_trained_again_alone(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    key = next(row["key"] for row in csv.DictReader((folder / "runs.csv").open()) if row["seed"] == "1")
    whole = (folder / key / "result.json").read_text()
    shutil.rmtree(folder / key)
    with threads(1):
        assert cli.main(["study", "ladder", *ASKED, *RATES, "--out", str(folder)]) == 0
    again = strictly((folder / key / "result.json").read_text())
    assert again["val_loss"] == strictly(whole)["val_loss"]


def test_a_dry_run_trains_nothing_and_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "ladder", *ASKED, *RATES, "--out", str(tmp_path / "none"), "--dry-run", "--json"]) == 0
    costs = strictly(capsys.readouterr().out)
    assert costs["total"]["runs"] == len(costs["runs"]) == 16
    assert costs["total"]["flops"] == pytest.approx(sum(run["flops"] for run in costs["runs"]))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lader"], "did you mean ladder"),
        (["loop", "--sizes", "micro"], "did you mean loop-micro"),
        (["ladder", "--sizes", "60x"], "unknown size"),
        (["ladder", "--schemes", "x"], "unknown scheme"),
        (["ladder", "--scale", "tiny", "--jobs", "-1"], "--jobs must be at least 0"),
        (["ladder", "--scale", "tiny", "--gpu", "h1", "--dry-run"], "unknown GPU"),
        (["recipe", "--sizes", "new"], "unknown optimiser recipe"),
        (["ladder", "--scale", "tiny", "--budgets", "much"], "cannot read the budget"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


# ----------------------------------------------------------------------------------------------------------- the how-to
def commands(word: str) -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", DOC, re.M | re.S)
    return [
        shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith(f"layerrope {word}")
    ]


@pytest.mark.parametrize("words", [c for c in commands("study") if "paper" not in c], ids=" ".join)
def test_the_study_commands_plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    trimmed = words if "--schemes" in words else [*words, "--schemes", "prenorm", "layerrope"]
    assert cli.main([*trimmed, *([] if "--dry-run" in words else ["--dry-run"])]) == 0
    assert "total of" in capsys.readouterr().out


def test_the_fit_commands_run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    shutil.copytree(made, tmp_path / "runs" / "try")
    shutil.copy(ROOT / "tests" / "data" / "scaling" / "layerrope-1b.csv", "paper.csv")
    lines = [
        f"{s},{c},{1.8 + a * (c / 1e19) ** -0.15}"
        for s, a in (("prenorm", 1.0), ("layerrope", 0.9))
        for c in (1e18, 1e19, 1e20, 1e21)
    ]
    Path("ladder.csv").write_text("scheme,compute,loss\n" + "\n".join(lines) + "\n")
    run, *others = commands("fit")
    assert cli.main(run) == 2  # two sizes of two schemes are fewer than the law's numbers, and it says so
    for words in others:
        assert cli.main([*words, "--resamples", "20"]) == 0, words
    assert Path("fit.html").exists()


def test_the_python_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print\(.*\)  # (.*)$", code, re.M)


def test_it_names_every_study() -> None:
    assert all(f"| `{name}` |" in DOC for name in RECIPES)
