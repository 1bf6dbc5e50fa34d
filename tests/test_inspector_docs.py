"""docs/inspector.md: its commands and its Python run, and what it says SmolLM2 prints is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from inspector_files import smollm2_tensors, write_folder

from layerrope import cli
from layerrope.inspector.figures import charts
from layerrope.inspector.inspection import inspect
from layerrope.norm_sites import ROLES

PAGE = (Path(__file__).parents[1] / "docs" / "inspector.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tensors = smollm2_tensors()
    write_folder(tmp_path / "smollm2", tensors, {"model_type": "llama"})
    write_folder(tmp_path / "smollm2-tuned", {k: 1.1 * v for k, v in tensors.items()}, {"model_type": "llama"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run_and_write_what_they_say(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command.split(" > ")[0])
        assert cli.main(words[1:]) == 0, command
    for name in ("report.html", "overview.png", "layers.csv", "gains.npz", "charts/size.png"):
        assert (models / name).stat().st_size > 1000


def test_the_python_runs(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(code, {})
    assert "attention read" in capsys.readouterr().out


def test_the_quoted_verdict_is_the_real_one(models: Path) -> None:
    (quoted,) = blocks("text")
    found = inspect("smollm2")
    assert " ".join(quoted.split()) == found.verdict
    assert "176" in PAGE
    assert all(f"`{role}`" in PAGE for role in ROLES)
    assert {name.split("-")[0] for name in charts(found)} == {"size", "angle", "error", "rotation", "picture", "spread"}
