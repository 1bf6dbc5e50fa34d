"""JSON of strangers: parsed only where it cannot grow into very many Python objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from layerrope.errors import InputError
from layerrope.tensors.blobs import printable

#: Lists and objects, and values between commas, that one document may hold. A header has three and about seven for
#: each tensor, an index one of the latter; the largest checkpoints have 10^5 tensors, in many files.
MAX_CONTAINERS = 600_000
MAX_VALUES = 2_000_000


def parse_json(text: bytes, what: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of the JSON document `text`, UTF-8.

    Raises InputError, which begins with `what`, where it is not JSON or holds too many parts: an empty list takes two
    bytes in the file and thirty times that in memory. What stands inside strings is counted too.
    """
    containers, values = text.count(b"[") + text.count(b"{"), text.count(b",")
    if containers > MAX_CONTAINERS or values > MAX_VALUES:
        raise InputError(
            f"{what} holds {containers} lists or objects and {values} commas; at most {MAX_CONTAINERS} and "
            f"{MAX_VALUES} are read"
        )
    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=object_pairs_hook)
    except (ValueError, RecursionError) as error:
        reason = printable(str(error) or type(error).__name__, 120)
        raise InputError(f"{what} is not JSON ({reason}): fetch the file again") from None
