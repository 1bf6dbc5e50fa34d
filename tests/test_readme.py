"""The README is true: its Python runs and prints what it says, its commands parse, its links exist."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest

from layerrope import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for kind in ("sh", "console") for block in blocks(kind) for line in block.splitlines()]
    return [line.split("&&")[-1].strip() for line in lines]


def test_python_blocks_print_what_their_comments_say() -> None:
    (code,) = blocks("python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    lines = printed.getvalue().splitlines()
    assert lines[0].startswith("tensor([45.2548, 32.0000]")
    assert lines[1:] == ["True", "-90096"]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("layerrope ")])
def test_commands_parse(command: str) -> None:
    _, name, *words = shlex.split(command)
    assert name in cli.COMMANDS
    module = importlib.import_module(f"layerrope.commands.{name}")
    cli.parse(module.Command, name, words)


def test_there_are_two_set_up_commands() -> None:
    starts = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python -m pip")]
    assert len(starts) == 2


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_every_test_module_imports_without_the_material_the_project_was_built_from() -> None:
    here = Path(__file__).name
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        if path.name != here:
            assert "../shared" not in path.read_text(encoding="utf-8"), path


def test_no_public_name_is_hidden_by_a_module_of_the_same_name() -> None:
    import layerrope

    modules = {path.stem for path in (ROOT / "src" / "layerrope").iterdir()}
    assert not set(layerrope.__all__) & modules
    for name in layerrope.__all__:
        getattr(layerrope, name)
