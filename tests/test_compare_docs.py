"""The how-to of comparisons holds: its blocks run, its flags exist, its record has the parts it names."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from layerrope.commands.compare import Command
from layerrope.comparing import plan as compare_plan
from layerrope.comparing.rates import GRID
from layerrope.comparing.report import SCHEMA, document, read_comparison
from layerrope.training.machine import threads

DOC = (Path(__file__).parents[1] / "docs" / "compare.md").read_text()


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    names: dict[str, object] = {}
    with threads(1):
        for block in blocks:
            exec(block.replace("batch_size=2)", "batch_size=2, eval_tokens=256, compile=False)"), names)
    promised = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(blocks), re.M)
    assert capsys.readouterr().out.splitlines() == promised
    assert len(promised) == 2
    named = set(re.findall(r"`(\w+)`", DOC[DOC.index("`result.json` has") : DOC.index("## From Python")]))
    assert set(document(read_comparison(tmp_path / "runs" / "mine"))) <= named
    assert SCHEMA in DOC


def test_it_and_the_help_name_the_grid() -> None:
    words = f"a grid from {GRID[0]:g} to {GRID[-1]:g} in factors of two"
    assert words in DOC
    assert words.removeprefix("a ") in (Path(compare_plan.__file__)).read_text()
    assert all(b == 2 * a for a, b in itertools.pairwise(GRID))


def test_every_flag_it_names_is_one() -> None:
    flags = {name.replace("_", "-") for name in Command.__dataclass_fields__}
    assert set(re.findall(r"--([a-z][a-z-]*)", DOC)) <= flags
