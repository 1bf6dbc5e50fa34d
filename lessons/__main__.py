"""A lesson in the terminal: `python lessons 02 --steps 30` runs it and prints what it shows, solutions left closed.

Answers are written into the lesson's file with any editor; the next run says what is wrong with them.
"""

from __future__ import annotations

import html
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.show import Solution

HERE = Path(__file__).parent
HEADING = re.compile(r"<h[1-3][^>]*>(.*?)</h[1-3]>", flags=re.DOTALL)


def lesson(name: str) -> Path:
    """The file of the lesson that `name` begins. Ends the program with the list where there is not one."""
    lessons = sorted(HERE.glob("[0-9][0-9]_*.py"))
    found = [path for path in lessons if name and path.stem.startswith(name.removesuffix(".py"))]
    if len(found) != 1:
        listed = "\n".join(f"  python lessons {path.stem[:2]}   {path.stem}" for path in lessons)
        raise SystemExit(f"which lesson?\n{listed}")
    return found[0]


def app(path: Path) -> Any:
    """The marimo app in a lesson's file."""
    spec = importlib.util.spec_from_file_location(f"lesson_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


def said(value: Any) -> Iterator[str]:
    """What a cell showed, as lines for a terminal: headings, words, tables and verdicts; no prose and no solution."""
    if isinstance(value, Solution):
        return
    if isinstance(text := getattr(value, "markdown", None), str):
        yield text
    elif isinstance(value, str):
        yield value
    elif hasattr(value, "to_dict"):
        yield "(a chart: in the notebook, and on the lesson's page)"
    else:
        for heading in HEADING.findall(getattr(value, "text", None) or ""):
            yield "## " + html.unescape(re.sub(r"<[^>]+>", "", heading))


def main(words: list[str]) -> None:
    path = lesson(words[0] if words else "")
    print(f"running {path.name}: seconds to minutes; what it shows comes at the end", file=sys.stderr)
    sys.argv = [str(path), *words[1:]]  # where a lesson reads --steps
    outputs, _ = app(path).run()
    for value in outputs:
        for line in said(value):
            print(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
