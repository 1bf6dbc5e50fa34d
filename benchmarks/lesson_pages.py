"""Write docs/lessons/: each marimo lesson as a page with its prose, its code, and what it shows.

python benchmarks/lesson_pages.py 02          # runs that lesson in full and writes its page
python benchmarks/lesson_pages.py             # all of them

A page without its outputs follows from the lesson alone, so a test can tell when one is out of date.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "lessons"
PAGES = ROOT / "docs" / "lessons"

HEAD = """<!-- Made from lessons/{name}.py by benchmarks/lesson_pages.py; do not edit by hand. -->

"""
OPEN, CLOSE = "<!-- shown -->", "<!-- /shown -->"
"""Around what a cell showed when the page was made."""


@dataclass(frozen=True)
class Cell:
    """One cell of a notebook file: prose, or code that is shown or hidden."""

    prose: str | None
    code: str
    hidden: bool


def lessons() -> list[Path]:
    """The notebooks in order."""
    return sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def cells(path: Path) -> Iterator[Cell]:
    """The cells of a marimo file, in order."""
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            yield _cell(node, source)


def _cell(node: ast.FunctionDef, source: str) -> Cell:
    hidden = any(isinstance(d, ast.Call) and any(k.arg == "hide_code" for k in d.keywords) for d in node.decorator_list)
    body = [statement for statement in node.body if not isinstance(statement, ast.Return)]
    if len(body) == 1 and (text := _prose(body[0])) is not None:
        return Cell(text, "", hidden)
    end = node.body[-1].lineno - 1 if isinstance(node.body[-1], ast.Return) else node.end_lineno
    lines = source.splitlines()[node.body[0].lineno - 1 : end] if body else []
    return Cell(None, textwrap.dedent("\n".join(lines)).strip(), hidden)


def _prose(statement: ast.stmt) -> str | None:
    """The text of `mo.md("...")`, or None for anything else."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(attr="md"), args=[ast.Constant(value=str(text))])):
            return textwrap.dedent(text).strip()
    return None


def page(path: Path, shown: list[str]) -> str:
    """The page, with what each cell showed ("" for nothing)."""
    parts = []
    for cell, output in zip(cells(path), shown, strict=True):
        if cell.prose is not None:
            parts.append(cell.prose)
            continue
        if cell.code and not cell.hidden:
            parts.append(f"```python\n{cell.code}\n```")
        if output:
            parts.append(f"{OPEN}\n\n{output}\n\n{CLOSE}")
    return HEAD.format(name=path.stem) + "\n\n".join(parts) + "\n"


def without_outputs(text: str) -> str:
    """A page with everything between the marks cut out: what must follow from the lesson's source."""
    kept, rest = "", text
    while OPEN in rest:
        before, _, after = rest.partition(OPEN)
        kept, rest = kept.rstrip() + "\n\n" + before.strip(), after.partition(CLOSE)[2]
    return "\n".join(line for line in (kept + "\n\n" + rest).splitlines() if line.strip())


def load(path: Path) -> ModuleType:
    """The notebook as a module; its neighbours in lessons/ can be imported from it."""
    if str(LESSONS) not in sys.path:
        sys.path.insert(0, str(LESSONS))
    spec = importlib.util.spec_from_file_location(f"lesson_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render(value: Any, name: str) -> str:
    """What a cell showed, as Markdown; charts are written as pictures beside the page. "" for controls."""
    if isinstance(text := getattr(value, "markdown", None), str):
        return text
    if isinstance(value, str):
        return f"```text\n{value}\n```"
    if hasattr(value, "to_dict") and hasattr(value, "properties"):
        from layerrope.charts import save_svg

        save_svg(value, PAGES / "images" / f"{name}.svg")
        return f"![A chart: {value.description}](images/{name}.svg)"
    return ""


def write(path: Path) -> Path:
    """Run a lesson in full and write its page."""
    outputs, _ = load(path).app.run()
    (PAGES / "images").mkdir(parents=True, exist_ok=True)
    short = path.stem[:2]
    shown = [render(value, f"{short}-{i:02d}") for i, value in enumerate(outputs)]
    target = PAGES / f"{path.stem}.md"
    target.write_text(page(path, shown), encoding="utf-8")
    return target


if __name__ == "__main__":
    for lesson in lessons():
        if not sys.argv[1:] or lesson.stem[:2] in sys.argv[1:]:
            print(write(lesson).relative_to(ROOT))
