"""The GGUF format, read from any blob: a bounded parser of the header, nothing else.

    4 bytes   "GGUF"
    u32       version: 2 or 3; its byte order is the byte order of everything that follows (big only in 3)
    u64 u64   number of tensors, number of metadata pairs
    pairs     key (string), value type (u32), value
    tensors   name (string), number of dimensions (u32), dimensions (u64 each, fastest first),
              type (u32), offset (u64, from the start of the data, a multiple of the alignment)
    padding   up to the next multiple of the alignment: there the data start

A string is a u64 length and that many bytes; an array an element type (u32), a u64 count, and the elements. The
alignment is the metadata pair "general.alignment", of any integer type, a multiple of 8; 32 where it is absent.
Quantised tensors are listed with their type's name and size; only the float types can be decoded.

The `gguf` package maps whole local files and builds a Python object per metadata element; this parser asks the
blob for the header piece by piece, and neither a length nor a count in it ever decides how much is allocated:
a window slides over the header, and long strings and arrays (the tokenizer's) are passed over. Each window is
four times the one before, from 64 KiB up to 4 MiB, so what is read behind the header's end is at most three times
the header and at most 4 MiB.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Any

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, printable
from layerrope.tensors.entries import Entry, Order, TensorInfo
from layerrope.tensors.floats import GGUF_TYPES

MAGIC = b"GGUF"
#: Bounds on the header; the largest real ones have 20 MB (a tokenizer's), 10^6 strings and 10^5 tensors.
MAX_HEADER = 100_000_000
MAX_TENSORS = 200_000
MAX_PAIRS = 65_536
MAX_ITEMS = 2_000_000
MAX_INNER_ARRAYS = 10_000
#: Longer strings and arrays are passed over, not kept in the metadata; so is what goes beyond these all together.
KEEP_BYTES = 1 << 16
KEEP_ITEMS = 1024
KEEP_ALL_BYTES = 1 << 24
KEEP_ALL_ITEMS = 1 << 16
MAX_RANK = 8
MAX_NESTING = 2

_STRING, _ARRAY = 8, 9
#: value type -> struct code
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FIRST_WINDOW, _LAST_WINDOW = 1 << 16, 1 << 22


class _Cursor:
    """Reads forward through a blob by a sliding window; skipping costs no reading."""

    def __init__(self, blob: Blob) -> None:
        self.blob, self.order = blob, "<"
        self.at = 0  # position in the file
        self.items = self.arrays = 0  # strings and arrays inside arrays so far: each costs time, so they are bounded
        self.kept_items = self.kept_bytes = 0  # of arrays and of strings, so far
        self._window, self._start, self._grow = b"", 0, _FIRST_WINDOW

    def take(self, n: int) -> bytes:
        """The next `n` bytes; `n` is at most KEEP_BYTES."""
        if self.at + n > self._start + len(self._window):
            self._slide(n)
        at = self.at - self._start
        self.at += n
        return self._window[at : at + n]

    def skip(self, n: int) -> None:
        self._must_hold(n)
        self.at += n

    def _must_hold(self, n: int) -> None:
        if self.at + n > self.blob.size:
            raise InputError(
                f"{self.blob.label} is cut off: its header goes on behind byte {self.blob.size}, the file's end; "
                f"fetch it again"
            )
        if self.at + n > MAX_HEADER:
            raise InputError(f"{self.blob.label} has a header of more than {MAX_HEADER} bytes: it is not read")

    def _slide(self, n: int) -> None:
        self._must_hold(n)
        stop = min(self.blob.size, self.at + max(n, self._grow))
        self._window, self._start = self.blob.read(self.at, stop), self.at
        self._grow = min(4 * self._grow, _LAST_WINDOW)

    def number(self, code: str) -> Any:
        form = self.order + code
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, limit: int, what: str) -> str:
        """A string of at most `limit` bytes that must be UTF-8: a key or a tensor's name."""
        length = self.number("Q")
        self._must_hold(length)
        if length > limit:
            raise InputError(f"{self.blob.label} has {what} of {length} bytes; at most {limit} are allowed")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise InputError(f"{self.blob.label} has {what} that is not UTF-8: fetch the file again") from None

    def string_value(self) -> str | None:
        """A string of any bytes; None (passed over) where it is long, or much is kept already."""
        length = self.number("Q")
        self.kept_bytes += length
        if length <= KEEP_BYTES and self.kept_bytes <= KEEP_ALL_BYTES:
            return self.take(length).decode(errors="replace")
        self.skip(length)
        return None

    def skip_strings(self, count: int) -> None:
        """Pass over `count` strings: a tokenizer has 10^5 of them, so the window is walked in one loop."""
        length_at = struct.Struct(self.order + "Q").unpack_from
        window, at = self._window, self.at - self._start
        for _ in range(count):
            if at + 8 > len(window):
                self.at = self._start + at
                self._slide(8)
                window, at = self._window, 0
            at += 8 + length_at(window, at)[0]
        self.at = self._start + at
        self._must_hold(0)


def read_header(blob: Blob) -> tuple[dict[str, Entry], dict[str, Any]]:
    """The tensors of the GGUF file `blob` and its metadata (long strings and arrays left out).

    Raises InputError, naming the file, the cause and the tensor or key, where the format's rules are broken.
    """
    if blob.size < 24:
        raise InputError(f"{blob.label} is cut off: {blob.size} bytes, and a GGUF file starts with 24")
    cursor = _Cursor(blob)
    if (magic := cursor.take(4)) != MAGIC:
        raise InputError(f"{blob.label} is not GGUF: it starts with {magic!r}")
    order = cursor.order = _byte_order(cursor.take(4), blob.label)
    n_tensors, n_pairs = cursor.number("Q"), cursor.number("Q")
    if n_tensors > MAX_TENSORS or n_pairs > MAX_PAIRS:
        raise InputError(
            f"{blob.label} declares {n_tensors} tensors and {n_pairs} metadata pairs; at most {MAX_TENSORS} and "
            f"{MAX_PAIRS} are read"
        )
    metadata = _read_pairs(cursor, n_pairs)
    rows = [_read_row(cursor) for _ in range(n_tensors)]
    alignment = _alignment(metadata.get("general.alignment", 32), blob.label)
    data = -(-cursor.at // alignment) * alignment
    return _entries(rows, blob, data, alignment, order), metadata


def _byte_order(raw: bytes, label: str) -> Order:
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if little in (2, 3):
        return "<"
    if big == 3:
        return ">"
    raise InputError(
        f"{label} is GGUF version {min(little, big)}, and versions 2 and 3 are read: convert it with a current "
        f"llama.cpp"
    )


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text(65535, "a metadata key")
        if key in metadata:
            raise InputError(f"{cursor.blob.label} holds the metadata key {printable(key)!r} twice: fetch it again")
        metadata[key] = _read_value(cursor, cursor.number("I"), key)
    return {key: value for key, value in metadata.items() if value is not None}


def _read_value(cursor: _Cursor, kind: int, key: str, depth: int = 0) -> Any:
    """One metadata value; None where it is too long to keep."""
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string_value()
    if kind == _ARRAY and depth < MAX_NESTING:
        return _read_array(cursor, key, depth)
    fault = "arrays nested too deep" if kind == _ARRAY else f"the unknown value type {kind}"
    raise InputError(f"{cursor.blob.label}: metadata key {printable(key)!r} has {fault}; fetch the file again")


def _read_array(cursor: _Cursor, key: str, depth: int) -> list[Any] | None:
    kind, count = cursor.number("I"), cursor.number("Q")
    cursor.kept_items += min(count, KEEP_ITEMS)
    keep = count <= KEEP_ITEMS and cursor.kept_items <= KEEP_ALL_ITEMS
    if kind in _SCALARS and not keep:
        return cursor.skip(count * struct.calcsize("<" + _SCALARS[kind]))
    if kind not in _SCALARS:
        cursor.items += count
        cursor.arrays += count if kind == _ARRAY else 0
        if cursor.items > MAX_ITEMS or cursor.arrays > MAX_INNER_ARRAYS:
            raise InputError(
                f"{cursor.blob.label}: metadata key {printable(key)!r} declares {count} elements; at most {MAX_ITEMS} "
                f"strings and {MAX_INNER_ARRAYS} arrays inside arrays are read"
            )
    if kind == _STRING and not keep:
        return cursor.skip_strings(count)
    values = [_read_value(cursor, kind, key, depth + 1) for _ in range(count)]
    return values if keep else None


def _alignment(value: Any, label: str) -> int:
    if type(value) is not int or value <= 0 or value % 8:
        raise InputError(
            f"{label} has general.alignment {value!r}, which is no positive multiple of 8: convert it anew"
        )
    return value


def _read_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """One tensor's name, shape (row-major), type number and offset."""
    name = cursor.text(65535, "a tensor name")
    rank = cursor.number("I")
    if rank > MAX_RANK:
        raise InputError(f"{cursor.blob.label}: tensor {printable(name)} has {rank} dimensions; fetch the file again")
    shape = tuple(cursor.number("Q") for _ in range(rank))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _entries(
    rows: list[tuple[str, tuple[int, ...], int, int]], blob: Blob, data: int, alignment: int, order: Order
) -> dict[str, Entry]:
    """The rows as entries, in the header's order. Raises InputError where they overlap or leave the file."""

    def bad(name: str, cause: str) -> InputError:
        return InputError(f"{blob.label}: tensor {printable(name)} {cause}; fetch the file again")

    entries: dict[str, Entry] = {}
    before = None
    in_place = sorted(rows, key=lambda row: row[3])
    room = dict(pairwise([*(offset for *_, offset in in_place), max(blob.size - data, 0)]))
    for name, shape, kind, offset in in_place:
        dtype, nbytes = _size(kind, shape, room[offset] - offset)
        if nbytes is None:
            raise bad(name, f"of type {dtype} and shape {list(shape)} has no whole number of blocks")
        if offset % alignment:
            raise bad(name, f"starts at {offset}, which is no multiple of the alignment {alignment}")
        entry = Entry(TensorInfo(name, dtype, shape, nbytes), blob, data + offset, order)
        if entry.stop > blob.size:
            raise bad(name, f"ends at byte {entry.stop}, but the file has {blob.size}: it is cut off")
        if before is not None and before.stop > entry.start:
            raise bad(name, f"overlaps {printable(before.info.name)}")
        if name in entries:
            raise bad(name, "is listed twice")
        entries[name] = before = entry
    return {name: entries[name] for name, *_ in rows}


def _size(kind: int, shape: tuple[int, ...], room: int) -> tuple[str, int | None]:
    """Name and stored bytes of a tensor of type number `kind`; all the `room` there is for an unknown type."""
    if kind not in GGUF_TYPES:
        return f"type {kind}", max(room, 0)
    dtype, numbers, nbytes = GGUF_TYPES[kind]
    row = shape[-1] if shape else 1
    return dtype, math.prod(shape) // numbers * nbytes if row % numbers == 0 else None
