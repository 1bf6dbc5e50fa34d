"""Where words go: results to stdout, progress and notes to stderr, one JSON document when asked."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from layerrope.files import strict


class _Terminal(Console):
    """Text is shown as it is (no :smile:, nothing highlighted); a reader who left is told of by BrokenPipeError."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with code 1


out = _Terminal()
status = _Terminal(stderr=True)


def note(text: str) -> None:
    """A remark for the person at the terminal (stderr; no markup is read from `text`, no control character sent)."""
    status.print(escape("".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)))


def emit_json(value: Any) -> None:
    """Print `value` as the one strict JSON document on stdout."""
    sys.stdout.write(json.dumps(strict(value), indent=1, allow_nan=False) + "\n")  # ASCII: right in any encoding
