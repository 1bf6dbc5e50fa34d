"""Where words go: results to stdout, progress and notes to stderr, one JSON document when asked."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from layerrope.files import strict

out = Console(highlight=False)
status = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """A remark for the person at the terminal (stderr; no markup is read from `text`)."""
    status.print(escape(text))


def emit_json(value: Any) -> None:
    """Print `value` as the one strict JSON document on stdout."""
    sys.stdout.write(json.dumps(strict(value), indent=1, allow_nan=False) + "\n")  # ASCII: right in any encoding
