"""docs/engines.md is true: its commands parse, its example's flags exist, its Python runs where OLMo-core is."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from layerrope import cli

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "engines.md").read_text()
LINES = [line for block in re.findall(r"^```console\n(.*?)^```", DOC, re.M | re.S) for line in block.splitlines()]
EXAMPLE = ROOT / "examples" / "olmo_core_train.py"


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("layerrope ")])
def test_commands_parse(line: str) -> None:
    _, name, *words = shlex.split(line)
    cli.parse(importlib.import_module(f"layerrope.commands.{name}").Command, name, words)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("torchrun ")])
def test_the_example_has_the_flags_that_it_is_given(line: str) -> None:
    run = next(node for node in ast.parse(EXAMPLE.read_text()).body if getattr(node, "name", "") == "Run")
    fields = {node.target.id for node in ast.walk(run) if isinstance(node, ast.AnnAssign) if hasattr(node.target, "id")}  # type: ignore[union-attr]
    words = line[line.index(EXAMPLE.name) :].split()
    assert {word[2:].replace("-", "_") for word in words if word.startswith("--")} <= fields


def test_each_line_of_the_example_leads_to_a_tier() -> None:
    from layerrope.config import tier

    for name in re.findall(r"--tier ([\w-]+)", DOC):
        tier(name)


def test_the_python_runs() -> None:
    pytest.importorskip("olmo_core", reason="OLMo-core is not installed: pip install 'layerrope[olmo]'")
    (block,) = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["model"].num_params == names["config"].num_params  # type: ignore[attr-defined]
