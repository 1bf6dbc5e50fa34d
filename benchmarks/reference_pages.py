"""Write docs/cli.md and docs/api.md from the code: every command with its flags, every public name with its docstring.

python benchmarks/reference_pages.py
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layerrope
from layerrope import cli

DOCS = Path(__file__).parents[1] / "docs"

CLI_HEAD = """# Commands

Every command and every flag, made from the code by `benchmarks/reference_pages.py`; do not edit by hand. `layerrope
COMMAND --help` prints the same. Every command exits with 0 when done, 1 when a check failed or training diverged, 2 on
bad input or an export that differs from its source (one line says what, where and what to do), 130 when interrupted.
With `--json`, stdout holds one JSON document, nothing else.
"""

API_HEAD = """# Python reference

The public names, made from their docstrings by `benchmarks/reference_pages.py`; do not edit by hand. They load on first
use: `import layerrope` costs little more than `import torch`. Whatever is not here is internal and may change.
"""


# -------------------------------------------------------------------------------------------------------- commands
def flag_table(command: type) -> str:
    """The fields of a command's dataclass as rows: how it is typed, default, gloss with units."""
    rows = [
        f"| {_typed(f)} | {_default(f)} | {_cell(_glosses(command).get(f.name, ''))} |"
        for f in dataclasses.fields(command)
    ]
    return "\n".join(["| flag | default | what |", "|---|---|---|", *rows])


def _typed(f: dataclasses.Field[Any]) -> str:
    hint = str(f.type)
    if "Positional" in hint:
        return f"`{f.name.upper()}`"
    named = re.search(r"arg\(.*?name=[\"']([^\"']+)[\"']", hint)
    flag = named[1] if named else f.name.replace("_", "-")
    return f"`--{flag}`, `--no-{flag}`" if hint == "bool" else f"`--{flag}`"


def _default(f: dataclasses.Field[Any]) -> str:
    value = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == ():
        return ""
    words = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return {"True": "on", "False": "off"}.get(words, f"`{words}`")


def _glosses(command: type) -> dict[str, str]:
    """Field -> the string under it, through the classes that `command` is made of."""
    found: dict[str, str] = {}
    for cls in reversed(command.__mro__):
        if dataclasses.is_dataclass(cls):
            (body,) = (
                n.body for n in ast.parse(textwrap.dedent(inspect.getsource(cls))).body if isinstance(n, ast.ClassDef)
            )
            found |= dict(_field_glosses(body))
    return found


def _field_glosses(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(value=str(text))):
                yield name, text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def cli_page() -> str:
    """docs/cli.md."""
    parts = [CLI_HEAD]
    for name, gloss in cli.COMMANDS.items():
        command = importlib.import_module(f"layerrope.commands.{name}").Command
        said = re.sub(r"(?m)^ {4}", "", inspect.cleandoc(command.__doc__ or ""))
        parts.append(
            f"## layerrope {name}\n\n{gloss[0].upper()}{gloss[1:]}.\n\n{_prose(said)}\n\n{flag_table(command)}\n"
        )
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------------------ Python
def api_page() -> str:
    """docs/api.md."""
    names = [name for name in layerrope.__all__ if name != "__version__"]
    return "\n".join([API_HEAD, *map(_entry, sorted(names, key=str.lower))])


def _entry(name: str) -> str:
    value = getattr(layerrope, name)
    home = layerrope._WHERE[name]
    if not callable(value):
        return (
            f"## `layerrope.{name}`\n\n{_variable_doc(home, name)} Defined in `layerrope.{home}`.\n\n{_listed(value)}\n"
        )
    doc = inspect.getdoc(value) or ""
    kind = "class" if inspect.isclass(value) else "function"
    shown = f"```python\n{signature(name, value)}\n```"
    fields = f"\n\n{_fields(value)}" if dataclasses.is_dataclass(value) else ""
    head = f"## `layerrope.{name}`\n\nA {kind} of `layerrope.{home}`."
    return f"{head}\n\n{shown}\n\n{_prose(doc)}{fields}\n{_methods(name, value)}"


def signature(name: str, value: Any) -> str:
    """`name(parameters) -> type`, one parameter a line where one line is too long."""
    if dataclasses.is_dataclass(value):
        return f"{name}(...)  # a frozen dataclass; fields below"
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"{name}(message)"
    found = inspect.signature(value)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    typed = [_parameter(p) for p in parameters]
    keyword = [p.kind is p.KEYWORD_ONLY for p in parameters]
    if any(keyword):
        typed.insert(keyword.index(True), "*")
    returns = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    short = f"{name}({', '.join(typed)}){returns}"
    return short if len(short) <= 100 else "\n".join([f"{name}(", *(f"    {t}," for t in typed), f"){returns}"])


def _parameter(p: inspect.Parameter) -> str:
    hint = "" if p.annotation is p.empty else f": {p.annotation}"
    if p.default is p.empty:
        return p.name + hint
    return f"{p.name}{hint} = {p.default!r}" if hint else f"{p.name}={p.default!r}"


def _fields(value: Any) -> str:
    glosses = _glosses(value)
    rows = [
        f"| `{f.name}` | `{_cell(str(f.type))}` | {_default(f)} | {_cell(glosses.get(f.name, ''))} |"
        for f in dataclasses.fields(value)
    ]
    return "\n".join(["| field | type | default | what |", "|---|---|---|---|", *rows])


def _methods(name: str, value: Any) -> str:
    """Public methods and properties that have a docstring of their own."""
    if not inspect.isclass(value):
        return ""
    parts = []
    for method, member in vars(value).items():
        doc = inspect.getdoc(member)
        if method.startswith("_") or not doc or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        shown = f"{name}.{method}" if isinstance(member, property) else signature(f"{name}.{method}", member)
        parts.append(f"\n```python\n{shown}\n```\n\n{_prose(doc)}\n")
    return "".join(parts)


def _variable_doc(home: str, name: str) -> str:
    tree = ast.parse(inspect.getsource(importlib.import_module(f"layerrope.{home}")))
    docs = dict(_field_glosses(tree.body))
    return " ".join(docs.get(name, "").split())


def _listed(value: Any) -> str:
    return ", ".join(f"`{key}`" for key in value)


SECTIONS = ("Args", "Returns", "Raises")


def _prose(doc: str) -> str:
    """A docstring as Markdown: indented equations and examples as code, sections as lists, one line a paragraph."""
    return "\n\n".join(filter(None, (_block(block) for block in re.split(r"\n\s*\n", doc.strip("\n")))))


def _block(block: str) -> str:
    first, _, rest = block.partition("\n")
    if first.rstrip(":") in SECTIONS and first.endswith(":"):
        words = textwrap.dedent(rest)
        return f"**{first}**\n\n" + (_escaped(" ".join(words.split())) if first == "Returns:" else _items(words))
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if block.startswith("    "):
        return f"```text\n{textwrap.dedent(block)}\n```"
    return _escaped(block)


def _items(text: str) -> str:
    """`name: words`, continued on deeper lines, as a list; other text as it is."""
    entries = re.split(r"\n(?=\S)", text)
    lines = []
    for entry in entries:
        words = " ".join(entry.split())
        name, colon, said = words.partition(": ")
        named = colon and re.fullmatch(r"[\w, ]{1,60}", name) and not name.startswith("The ")
        lines.append(f"- `{name}`: {_escaped(said)}" if named else f"- {_escaped(words)}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text whose stars and angle brackets mean themselves, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
    (DOCS / "api.md").write_text(api_page(), encoding="utf-8")
