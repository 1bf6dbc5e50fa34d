"""The one exception for bad input: its message says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one line, "what, where, what to do". The command line prints it as `error: ...` and exits
    with code 2; from Python it is an ordinary `ValueError`.
    """


class MissingExtra(InputError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package}, which is not installed: pip install 'layerrope[{extra}]'")


def one_of(kind: str, name: str, choices: Iterable[str]) -> str:
    """`name` when it is one of `choices`; otherwise InputError with the nearest names, or all of them."""
    known = list(choices)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
    raise InputError(f"unknown {kind} {name!r}: {hint}")


def reason(error: BaseException) -> str:
    """The first line of what another library's exception says, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def in_full(error: BaseException) -> str:
    """All that another library's exception says, in one line: for those whose first line is but a heading."""
    return " ".join(str(error).split()) or type(error).__name__


def one_line(error: BaseException) -> str:
    """An exception's kind, and the first line of what it says where it says anything."""
    kind = type(error).__name__
    return f"{kind}: {reason(error)}" if str(error).strip() else kind
