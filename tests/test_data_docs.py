"""The how-to runs: every Python block of docs/data.md, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layerrope.text.tokens import EOT_NAMES

DOC = (Path(__file__).parents[1] / "docs" / "data.md").read_text()


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    first = capsys.readouterr().out.splitlines()[0]
    assert f"# {first}\n" in DOC


def test_the_names_it_lists_are_the_ones_used() -> None:
    listed = re.search(r"The end of a document is its (.*?), the first", DOC, re.S)
    assert listed is not None
    assert tuple(re.findall(r"`([^`]+)`", listed[1])) == EOT_NAMES
