"""The how-to runs: every Python block of docs/training.md, in order, prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from layerrope.commands.train import Command
from layerrope.roles import ROLES
from layerrope.training.machine import threads
from layerrope.training.recipe import NEUTRAL, PRECISIONS, ROUNDING
from layerrope.training.schedule import SCHEDULES
from layerrope.training.tracking import TRACKERS

DOC = (Path(__file__).parents[1] / "docs" / "training.md").read_text()


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    names: dict[str, object] = {}
    with threads(1):
        for block in blocks:
            exec(block, names)
    promised = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(blocks), re.M)
    assert capsys.readouterr().out.splitlines() == promised
    assert len(promised) >= 6
    assert torch.get_num_threads() == 1


def test_it_names_every_role_schedule_precision_and_tracker() -> None:
    for name in (*ROLES, *SCHEDULES, *PRECISIONS, *NEUTRAL, *ROUNDING):
        assert f"`{name}`" in DOC, name
    assert all(name in DOC for name in TRACKERS)


def test_every_flag_it_names_is_one() -> None:
    flags = {name.replace("_", "-") for name in Command.__dataclass_fields__} | {"help"}
    assert set(re.findall(r"--([a-z][a-z-]*)", DOC)) <= flags
