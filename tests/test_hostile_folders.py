"""Runs and studies whose files are JSON of another shape: one line that names file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_run import run, toy_config, until

from layerrope.cli import main
from layerrope.errors import InputError
from layerrope.loading import load_lm, run_data
from layerrope.study import FAILURE, FILE, Study, outcomes, read_study, write_study


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ('{"key": "k", "config": []}', "config is not an object"),
        ('{"key": "k", "config": null}', "config is not an object"),
        ('{"key": "k", "config": {}}', r"config\.model"),
        ('{"key": "k", "config": {"model": 3}}', r"config\.model"),
        ('{"key": "k", "config": {"model": {}}, "data": 5}', "data is not an object"),
    ],
)
def test_a_checkpoint_beside_a_config_of_another_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    run(toy_config(), tmp_path, stop=until(2))
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=rf"config\.json.*{message}"):
        load_lm(tmp_path / "checkpoints" / "step-2")


@pytest.mark.parametrize("data", [None, 5, "absent"])
def test_sampling_from_a_run_that_does_not_say_its_data(
    tmp_path: Path, data: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(toy_config(), tmp_path, stop=until(2))
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["config"]["data"] = data
    if data == "absent":
        del saved["config"]["data"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert main(["sample", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "config.data is not a JSON object" in said.err
    if data != "absent":
        with pytest.raises(InputError, match=r"config\.data is not a JSON object"):
            run_data(tmp_path)


@pytest.mark.parametrize("text", ["[]", "null", '{"error": 3}', '{"attempts": "many"}'])
def test_a_failure_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    wanted = Study("s", toy_config(), ({"seed": 0},))
    folder = tmp_path / wanted.runs[0].key
    folder.mkdir()
    (folder / FAILURE).write_text(text)
    with pytest.raises(InputError, match=FAILURE):
        outcomes(wanted, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"points": [3]},
        {"points": None},
        {"keys": [1]},
        {"keys": ["../elsewhere"]},
        {"keys": [".."]},
        {"facts": []},
        {"base": []},
        {"labels": 5},
        {"name": 1},
    ],
)
def test_a_study_of_another_shape_is_refused_by_field(tmp_path: Path, change: dict[str, Any]) -> None:
    write_study(Study("s", toy_config(), ({"seed": 0},)), tmp_path)
    saved = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(saved | change))
    with pytest.raises(InputError, match=f"is not a study .{next(iter(change))}"):
        read_study(tmp_path)
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(InputError, match="is not a study"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    "point", [{"lr": "x"}, {"precision": 3}, {"model": 3}, {"model.scheme": 5}, {"data.source": []}]
)
def test_a_point_of_another_type_is_refused(tmp_path: Path, point: dict[str, Any]) -> None:
    write_study(Study("s", toy_config(), ({"seed": 0},)), tmp_path)
    saved = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(saved | {"points": [point]}))
    with pytest.raises(InputError):
        read_study(tmp_path)
