"""A study as a record: what is written, and that a cut one says so."""

from __future__ import annotations

import csv
import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from test_studies import on_disk

from layerrope.comparing.record import Purpose, portable
from layerrope.errors import InputError
from layerrope.studies import RECIPES, Ask, plan_study
from layerrope.studies.reading import Found, runs_csv
from layerrope.studies.record import write_study_record
from layerrope.study import Run

PURPOSE = Purpose("A title", "What is asked?", "More of it.")


def small(name: str, folder: Path) -> Found:
    """A study of two schemes and two rates whose losses fall with the rate."""

    def loss(run: Run) -> float:
        return 5.0 - run.config.lr - 0.1 * (run.config.model.scheme == "layerrope")

    ask = Ask(scale="tiny", schemes=("prenorm", "prenorm-scaledinit", "layerrope"), lrs=(0.01, 0.02))
    return on_disk(plan_study(name, ask), folder, loss)


@pytest.mark.parametrize("name", ["ablation", "lr", "competitors"])
def test_a_record_holds_the_answer_every_run_and_the_findings(name: str, tmp_path: Path) -> None:
    found = small(name, tmp_path / "runs")
    write_study_record(found, tmp_path / "record", PURPOSE)
    page = (tmp_path / "record" / "README.md").read_text()
    assert page.startswith("# A title\n\n**Question.** What is asked?\n\n**Answer.** ")
    assert "Not finished" not in page
    assert str(tmp_path) not in page
    findings = json.loads((tmp_path / "record" / "findings.json").read_text())
    assert all(f"- {line}" in page for line in findings["findings"])
    assert "runs" not in findings
    lines = (tmp_path / "record" / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found.study.runs)
    for chart in (tmp_path / "record").glob("*.png"):
        assert f"({chart.name})" in page


def test_a_cut_study_says_how_many_runs_are_left(tmp_path: Path) -> None:
    found = small("competitors", tmp_path / "runs")
    (found.folder / found.study.runs[0].key / "result.json").unlink()
    write_study_record(Found(found.folder, found.study), tmp_path / "record", PURPOSE)
    assert f"1 of {len(found.study.runs)} runs are still to be trained" in (tmp_path / "record/README.md").read_text()


def test_nothing_is_written_before_a_run_has_ended(tmp_path: Path) -> None:
    found = small("competitors", tmp_path / "runs")
    for run in found.study.runs:
        (found.folder / run.key / "result.json").unlink()
    with pytest.raises(InputError, match="nothing to record yet"):
        write_study_record(Found(found.folder, found.study), tmp_path / "record", PURPOSE)
    assert not (tmp_path / "record").exists()


def test_every_purpose_is_of_a_study() -> None:
    script = runpy.run_path(str(Path(__file__).parents[1] / "results" / "evidence.py"))
    assert {name.removesuffix("-wide") for name in script["PURPOSES"]} <= RECIPES.keys()


def test_a_study_trained_in_parts_is_one_record(tmp_path: Path) -> None:
    """Sizes at rates of their own: a folder and a command each."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "results" / "evidence.py"))
    folders = []
    for size, lrs in (("tiny-8", (0.01, 0.02)), ("tiny-16", (0.005,))):
        ask = Ask(scale="tiny", schemes=("prenorm", "layerrope"), sizes=(size,), lrs=lrs, seeds=(0,), bracket=0)
        plan = plan_study("ladder", ask)
        folders.append(tmp_path / size)
        on_disk(replace(plan, facts={"command": f"study {size} --out {folders[-1]}"}), folders[-1], lambda run: 5.0)
    (tmp_path / "all").mkdir()
    found = script["joined"](folders, tmp_path / "all")
    assert (
        sorted(row["size"] for row in csv.DictReader(runs_csv(found).splitlines())) == ["tiny-16"] * 2 + ["tiny-8"] * 4
    )
    assert found.finished
    assert portable(found.study.facts["command"]) == "study tiny-8\nstudy tiny-16"
    other = plan_study("depth", Ask(scale="tiny", schemes=("prenorm",), lrs=(0.01,), seeds=(0,)))
    on_disk(other, tmp_path / "other", lambda run: 5.0)
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match="other is not a part"):
        script["joined"]([folders[0], tmp_path / "other"], tmp_path / "none")


def test_parts_of_unlike_length_are_budgets(tmp_path: Path) -> None:
    """One size at two lengths, a command each: two settings, each with its own best rate."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "results" / "evidence.py"))
    folders = []
    for budget, best in (("4", 0.02), ("6", 0.01)):
        ask = Ask(
            scale="tiny", schemes=("prenorm", "layerrope"), lrs=(0.01, 0.02), budgets=(budget,), seeds=(0,), bracket=0
        )
        folders.append(tmp_path / budget)
        plan = replace(plan_study("competitors", ask), facts={"command": f"study {budget}"})
        on_disk(plan, folders[-1], lambda run, best=best: 5.0 + abs(run.config.lr - best))
    (tmp_path / "all").mkdir()
    write_study_record(script["joined"](folders, tmp_path / "all"), tmp_path / "record", PURPOSE)
    found = json.loads((tmp_path / "record" / "findings.json").read_text())["settings"]
    assert {(row["setting"]["budget"], row["lr"]) for row in found} == {("4", 0.02), ("6", 0.01)}
    assert len(found) == 4
