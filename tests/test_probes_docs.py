"""docs/probes.md: its examples run, and its tables name what there is."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from layerrope.probes import CHEAP, PROBES
from layerrope.training.machine import threads

TEXT = (Path(__file__).parent.parent / "docs" / "probes.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["probe", "toy"])
def test_an_example_prints_what_it_says(code: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), threads(1):
        exec(code, {})
    (said,) = re.findall(r"#\s+(.*)", code)
    assert printed.getvalue().strip() == said


def test_the_table_has_every_probe_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE) == list(PROBES)
    (cheap,) = re.findall(r"the cheap ones \((.*?)\)", TEXT, flags=re.DOTALL)
    assert re.findall(r"`(\w+)`", cheap) == list(CHEAP)
