"""The how-to runs: every Python block of docs/models.md, in order, prints what it says it prints."""

from __future__ import annotations

import importlib
import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch

from layerrope import cli
from layerrope.training.machine import threads

DOC = (Path(__file__).parents[1] / "docs" / "models.md").read_text()


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    names: dict[str, object] = {}
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for block in blocks:
            exec(block, names)
    promised = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(blocks), re.M)
    assert capsys.readouterr().out.splitlines() == promised
    assert len(promised) == 8


LINES = re.findall(r"^layerrope (.*)$", DOC, re.M)


@pytest.mark.parametrize("line", LINES)
def test_every_command_it_shows_is_understood(line: str) -> None:
    name, *words = shlex.split(line)
    command = importlib.import_module(f"layerrope.commands.{name}").Command
    cli.parse(command, name, words)


def test_every_flag_it_names_is_shown_in_a_command() -> None:
    shown = set(re.findall(r"--([a-z][a-z-]*)", "\n".join(LINES)))
    assert set(re.findall(r"--([a-z][a-z-]*)", DOC)) <= shown | {"scale", "out"}
    assert len(LINES) == 7
