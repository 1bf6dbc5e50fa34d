"""A study as a record: what is written, and that a cut one says so."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from test_studies import on_disk

from layerrope.comparing.record import Purpose
from layerrope.errors import InputError
from layerrope.studies import RECIPES, Ask, plan_study
from layerrope.studies.reading import Found
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
