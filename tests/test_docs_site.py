"""The documentation: generated pages are current, every command parses or runs, every link leads somewhere, it builds.

The rule for code in docs/: a `sh` block runs as it stands, a `console` or `bash` block needs a network, a GPU, an extra
or hours, so its flags are checked; a `python` block runs, here or in the test of its own page.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, needs_browser
from lesson_tools import ROOT, script

from layerrope import cli
from layerrope.training.machine import threads

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
RUN_HERE = ("quickstart", "howto-engineer", "howto-own-model", "howto-analyst")
"""Pages whose `sh` and `python` blocks run here, in one folder and from top to bottom."""

reference_pages = script(ROOT / "benchmarks" / "reference_pages.py")
which_scheme_page = script(ROOT / "benchmarks" / "which_scheme_page.py")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, code) of every fenced block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text(page), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path, *languages: str) -> list[str]:
    """Lines that call layerrope, without what the shell does with their output."""
    lines = [line for language, code in blocks(page) if language in languages for line in code.splitlines()]
    return [re.split(r" [>|] ", line)[0] for line in lines if line.startswith("layerrope ")]


def navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else navigation(target)


@pytest.mark.parametrize("name", ["cli", "api"])
def test_the_reference_is_current(name: str) -> None:
    made = {"cli": reference_pages.cli_page, "api": reference_pages.api_page}[name]()
    assert text(DOCS / f"{name}.md") == made, "out of date: python benchmarks/reference_pages.py"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_table_of_a_command_has_the_flags_of_its_help(name: str) -> None:
    command = importlib.import_module(f"layerrope.commands.{name}").Command
    shown = re.findall(r"^\| `(--[a-z][\w-]*)`", reference_pages.flag_table(command), flags=re.MULTILINE)
    helped = re.findall(r"^[│ ] {1,3}(--[a-z][\w-]*)", cli.help_text(command, name), flags=re.MULTILINE)
    assert sorted(shown) == sorted(helped)


def test_the_page_on_schemes_says_what_the_records_say() -> None:
    page = text(DOCS / "which-scheme.md")
    found, sweep = which_scheme_page.runs(which_scheme_page.SEEDS), which_scheme_page.runs(which_scheme_page.SWEEP)
    again = "out of date: python benchmarks/which_scheme_page.py"
    assert which_scheme_page.losses_table(found, sweep) in page, again
    assert which_scheme_page.unsteady(found) in page, again
    for record in ("ladder", "competitors"):
        assert which_scheme_page.study_table(record) in page, again
    steps = which_scheme_page.step_times()
    rows = {
        name: rest for name, rest in re.findall(r"^\| `(.*?)` \| (.*) \|$", text(DOCS / "schemes.md"), re.MULTILINE)
    }
    for name, step in steps.items():
        _, parameters, _, kept, time, *_ = rows[name].replace("\\|", "").split(" | ")
        assert time == f"{step:.2f}", again
        assert f"| `{name}` | {time} | {parameters} | {kept} | " in page, again


def test_paired_differences_pair_by_seed() -> None:
    make = which_scheme_page.Run
    runs = [make("prenorm", 1.0, s, 2.0 + s, 1, 1) for s in (0, 1, 2)]
    runs += [make("new", 1.0, s, 1.9 + s + 0.01 * s, 1, 1) for s in (0, 1)]
    (difference,) = which_scheme_page.differences(runs).values()
    assert (difference.n, round(difference.mean, 4)) == (2, -0.095)
    rates = [make("new", lr, 0, loss, 1, 1) for lr, loss in ((1.0, 3.0), (2.0, 2.05), (4.0, 2.0), (8.0, 2.2))]
    assert which_scheme_page.good_rates(rates, "new") == (4.0, 2.0, 4.0)


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = list(navigation(config["project"]["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_parse(page: Path) -> None:
    for line in commands(page, "sh", "bash", "console"):
        name, *words = shlex.split(line)[1:]
        cli.parse(importlib.import_module(f"layerrope.commands.{name}").Command, name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s#]+)", prose):
        assert "://" in link or (page.parent / link).exists(), link


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_page_runs_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    promised = []
    with threads(1):
        for language, code in blocks(DOCS / f"{name}.md"):
            if language == "python":
                promised += re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, name, "exec"), names)
            elif language == "sh":
                for line in filter(None, code.splitlines()):
                    assert cli.main(shlex.split(line)[1:]) == 0, line
    lines = iter(printed.getvalue().splitlines())
    assert all(line in lines for line in promised), (promised, printed.getvalue())


def test_every_python_block_of_every_page_is_run_by_some_test() -> None:
    tests = "\n".join(text(path) for path in (ROOT / "tests").glob("**/test_*.py"))
    for page in PAGES:
        made = page.parent.name == "lessons" or page.stem in ("api", "cli")  # from code that the tests run
        if any(language == "python" for language, _ in blocks(page)) and not made and page.stem not in RUN_HERE:
            assert f'"docs" / "{page.name}"' in tests or f"docs/{page.name}" in tests, page.name


def test_the_folded_block_of_the_how_to_is_the_unfolded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    first, second = (code for language, code in blocks(DOCS / "howto-own-model.md") if language == "python")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()), threads(1):
        exec(first, names)
        h = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0))
        before = names["net"](h)
        exec(second, names)
        folded = h
        for block in names["net"].blocks:
            folded = block(folded, (1.0, 1.0))
    assert torch.allclose(before, folded, atol=1e-5)


@pytest.fixture(scope="module")
def site() -> Path:
    """The built site."""
    pytest.importorskip("zensical", reason="the site needs: pip install 'layerrope[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "site"


def test_the_site_builds_without_a_warning(site: Path) -> None:
    lesson = text(site / "lessons" / "02_modernize.html")
    assert 'class="arithmatex"' in lesson
    assert "<summary>Solution</summary>" in lesson


def test_no_page_of_the_site_asks_another_host_for_a_script_a_style_or_a_picture(site: Path) -> None:
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > len(PAGES)  # and the one for a wrong address
    for page in pages:
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\"\s>]+)", text(page))
        fetched += re.findall(r"<link[^>]*stylesheet[^>]* href=\"?([^\"\s>]+)", text(page))
        assert fetched
        assert not [address for address in fetched if "//" in address], page.name


@needs_browser
def test_every_formula_is_set_without_a_network(site: Path) -> None:
    with browser() as tab:
        tab.look(390)
        for page in sorted((site / "lessons").glob("*.html")):
            tab.driver.get(page.as_uri())
            formulas = len(re.findall(r'class="arithmatex"', text(page)))
            assert tab.js("document.querySelectorAll('.arithmatex > math').length") == formulas > 0, page.name
            words = "[...document.querySelectorAll('.arithmatex')].map((e) => e.textContent).join('')"
            assert "\\" not in tab.js(words), f"{page.name}: a formula is not set"
            wide = (
                "[...document.querySelectorAll('div.arithmatex')].filter((e) => e.scrollWidth > e.clientWidth).length"
            )
            assert not tab.js(wide), f"{page.name}: a formula is wider than a phone: break the line"
        assert not [url for url in tab.requests() if not url.startswith(("file:", "data:"))]
