"""A command's arguments as one would type them, for the record of what made a result."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any


def typed(command: Any, name: str, without: tuple[str, ...] = (), positional: tuple[str, ...] = ()) -> str:
    """`layerrope NAME ...` with every flag of the dataclass `command` that differs from its default.

    Args:
        command: the parsed arguments; fields are flags.
        name: of the command.
        without: fields that do not change the result.
        positional: fields that are given without a flag, first.
    """
    words = ["layerrope", name, *(word for field in positional for word in _words(getattr(command, field)))]
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if value != field.default and field.name not in (*without, *positional):
            words += _flag(field.name.replace("_", "-"), value)
    return shlex.join(words)


def _flag(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    yield from _words(value)


def _words(value: Any) -> Iterator[str]:
    yield from (
        _number(v) if isinstance(v, float) else str(v) for v in (value if isinstance(value, tuple) else (value,))
    )


def _number(value: float) -> str:
    """Short where that is the number itself, else every digit of it."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
