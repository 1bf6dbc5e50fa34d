"""The how-to runs: every Python block of docs/models.md, in order, prints what it says it prints."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from layerrope.commands.vision import Command
from layerrope.machine import threads

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


def test_every_flag_it_names_is_one() -> None:
    flags = {name.replace("_", "-") for name in Command.__dataclass_fields__} | {"help"}
    assert set(re.findall(r"--([a-z][a-z-]*)", DOC)) <= flags
