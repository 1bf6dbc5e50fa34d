"""How a scheme is written: `name:option=value,option=value+addition:option=value`.

Values are on or off, numbers, words, or READ/WRITE pairs. An option is checked against the default of the function
that takes it, so a typo is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from layerrope.errors import InputError

LARGEST = 1e30
"""Largest absolute value of an option: far inside fp32."""

Made = TypeVar("Made")

STARTS = frozenset({"alpha", "beta", "alpha_rot", "beta_rot"})
"""Options that take one number, "damped", or a READ/WRITE pair."""


def parse(spec: str) -> list[tuple[str, dict[str, Any]]]:
    """The parts of `spec`, each a name with its options.

    >>> parse("hc:n=2,dynamic=off+layerrope:beta=0/-0.5")
    [('hc', {'n': 2, 'dynamic': False}), ('layerrope', {'beta': (0, -0.5)})]

    Raises:
        InputError: an option without a value, or something else than text.
    """
    if not isinstance(spec, str):
        raise InputError(f"a scheme is named by text, such as layerrope:rotation=off: got {spec!r}")
    return [_part(part) for part in spec.replace(" ", "").split("+")]


def _part(part: str) -> tuple[str, dict[str, Any]]:
    name, _, tail = part.partition(":")
    pairs = [item.partition("=") for item in tail.split(",")] if tail else []
    for key, equals, value in pairs:
        if not (key and equals and value):
            raise InputError(f"cannot read options {tail!r} of scheme {name!r}: write {name}:name=value,name=value")
    return name, {key: _value(value) for key, _, value in pairs}


_WORDS = {"on": True, "true": True, "off": False, "false": False}


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    parts = [_number(p) for p in text.split("/")]
    if len(parts) == 2 and all(isinstance(p, float | int) or p == "damped" for p in parts):
        return tuple(parts)
    return parts[0] if len(parts) == 1 else text


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def call(name: str, row: Callable[..., Made], options: dict[str, Any], *given: Any) -> Made:
    """`row(*given, **options)`, where options are the keyword-only parameters of `row`.

    Raises:
        InputError: an option that `row` lacks, or a value of the wrong kind.
    """
    known = {k: p for k, p in inspect.signature(row).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for key, value in options.items():
        if key not in known:
            choices = ", ".join(known) or "none"
            raise InputError(f"scheme {name!r} has no option {key!r}: its options are {choices}")
        _check(name, key, value, known[key].default)
    return row(*given, **options)


def _check(name: str, key: str, value: Any, default: Any) -> None:
    """Raise InputError unless `value` is of the kind that option `key` takes, judged by its default."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float | int) and not abs(number) <= LARGEST:
            raise InputError(f"option {key} of scheme {name!r} must be a finite number of ordinary size")
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "on or off"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), "a word"
    elif isinstance(default, int):
        fits, wanted = is_number and isinstance(value, int), "a whole number"
    elif key in STARTS:
        fits, wanted = is_number or isinstance(value, tuple) or value == "damped", "a number, damped, or READ/WRITE"
    else:
        fits, wanted = is_number, "a number"
    if not fits:
        raise InputError(f"option {key}={value} of scheme {name!r} is not {wanted}")
