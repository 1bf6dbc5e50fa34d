"""Writing a GGUF file (version 3, little endian); the layout is described in `gguf_format`, which reads it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import torch
from torch import Tensor

Value: TypeAlias = bool | int | float | str | Sequence[str] | Sequence[int]
"""A metadata value: flag, u32, f32, string, strings, or i32 numbers."""

ALIGNMENT = 32
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
"""dtype -> type number of a tensor."""

_SCALARS = ((bool, 7, "<?"), (int, 4, "<I"), (float, 6, "<f"))
_INT32, _STRING, _ARRAY = 5, 8, 9


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, of the dtypes in `TYPES`, with `metadata` to the file `path`.

    Raises:
        OSError: the file cannot be written.
        TypeError: a metadata value is of no kind named by `Value`.
    """
    rows, offset = [], 0
    for name, t in tensors.items():
        shape = t.shape[::-1]
        rows.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[t.dtype], offset))
        offset += t.nbytes + -t.nbytes % ALIGNMENT
    pairs = [_text(key) + _value(value) for key, value in metadata.items()]
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(pairs)) + b"".join(pairs + rows))
        _pad(file)
        for t in tensors.values():
            file.write(t.detach().cpu().contiguous().view(torch.uint8).numpy().data)
            _pad(file)


def _pad(file: IO[bytes]) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    """Type number and bytes of a metadata value."""
    for kind, number, form in _SCALARS:
        if isinstance(value, kind):
            return struct.pack("<I", number) + struct.pack(form, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    items = list(value) if isinstance(value, Sequence) else [value]
    words = [item for item in items if isinstance(item, str)]
    numbers = [item for item in items if isinstance(item, int)]
    if len(words) == len(items):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(items)) + b"".join(map(_text, words))
    if len(numbers) == len(items):
        return struct.pack("<IIQ", _ARRAY, _INT32, len(items)) + struct.pack(f"<{len(items)}i", *numbers)
    raise TypeError(f"no GGUF value: {value!r:.80}")
