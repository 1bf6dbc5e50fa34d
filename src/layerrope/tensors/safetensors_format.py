"""The safetensors format, read from any blob: a bounded parser of the header, nothing else.

    8 bytes   n, unsigned little-endian
    n bytes   JSON object in UTF-8, starting with "{", perhaps padded with spaces at the end:
              name -> {"dtype": str, "shape": [int, ...], "data_offsets": [begin, end]}
              and optionally "__metadata__" -> {str: str}
    the rest  data, little-endian, row-major; offsets count from its first byte

Rules kept here: n is at most 100 MB and lies inside the file; no key twice; the ranges cover the data exactly
(no overlap, no hole, nothing behind the last); the bytes of a tensor are the product of its shape times the
width of its dtype, which is not checked where the dtype is unknown. A dimension may be 0, a shape may be [],
names may come in another order than the data, and the data need not be aligned.

The safetensors library itself reads whole local files only; this parser asks the blob for the header's bytes.
Everything it allocates is bounded by bytes that really are there.
"""

from __future__ import annotations

from typing import Any

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, printable
from layerrope.tensors.entries import Entry, TensorInfo
from layerrope.tensors.floats import BITS
from layerrope.tensors.json_text import parse_json

MAX_HEADER = 100_000_000
MAX_RANK = 64
_MAX_BYTES = 1 << 63


def read_header(blob: Blob) -> dict[str, Entry]:
    """The tensors of the safetensors file `blob`, in the header's order.

    Raises InputError, naming the file, the cause and the tensor, where the format's rules are broken.
    """
    if blob.size < 8:
        raise InputError(f"{blob.label} is cut off: {blob.size} bytes, and a safetensors file starts with 8")
    length = int.from_bytes(blob.read(0, 8), "little")
    if length > min(MAX_HEADER, blob.size - 8):
        raise InputError(
            f"{blob.label} is cut off or not safetensors: it declares a header of {length} bytes, the file has "
            f"{blob.size} and the format allows {MAX_HEADER}; fetch it again"
        )
    header = _parse_json(blob.read(8, 8 + length), blob.label)
    _check_metadata(header.pop("__metadata__", None), blob.label)
    data = 8 + length
    entries = {name: _entry(name, row, blob, data) for name, row in header.items()}
    _check_cover(entries, blob, data)
    return entries


def _parse_json(text: bytes, label: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise InputError(f"{label} is not safetensors: its header does not start with '{{'")
    try:
        return parse_json(text, f"{label}: the safetensors header", object_pairs_hook=_unique)
    except _TwiceError as error:
        raise InputError(f"{label}: the header names {printable(error)!r} twice; write the file anew") from None


class _TwiceError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return found


def _check_metadata(metadata: Any, label: str) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError(f"{label}: __metadata__ of the header is not a map from text to text; write the file anew")


def _entry(name: str, row: Any, blob: Blob, data: int) -> Entry:
    """One header row as an Entry. Raises InputError where it contradicts itself or the file's size."""

    def bad(cause: str) -> InputError:
        return InputError(f"{blob.label}: tensor {printable(name)} {cause}; fetch the file again")

    if not isinstance(row, dict) or not isinstance(row.get("dtype"), str):
        raise bad("has no dtype in the header")
    shape, offsets = _naturals(row.get("shape")), _naturals(row.get("data_offsets"))
    if shape is None or len(shape) > MAX_RANK:
        raise bad("has a shape that is not a short list of natural numbers")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad("has data_offsets that are not two rising natural numbers")
    if data + offsets[1] > blob.size:
        raise bad(f"ends at byte {data + offsets[1]}, but the file has {blob.size}: it is cut off")
    nbytes, dtype = offsets[1] - offsets[0], row["dtype"]
    declared = _nbytes(shape, BITS.get(dtype))
    if declared not in (None, nbytes):
        raise bad(f"of dtype {dtype} and shape {list(shape)} does not fit its {nbytes} bytes")
    return Entry(TensorInfo(name, dtype, shape, nbytes), blob, data + offsets[0])


def _naturals(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(v) is int and 0 <= v < _MAX_BYTES for v in value):
        return tuple(value)
    return None


def _nbytes(shape: tuple[int, ...], bits: int | None) -> int | None:
    """Bytes of a tensor; None for an unknown dtype, -1 (fits no range) where they overflow or end inside a byte."""
    if bits is None:
        return None
    total = bits
    for dim in shape:
        total *= dim
        if total > 8 * _MAX_BYTES:
            return -1
    return total // 8 if total % 8 == 0 else -1


def _check_cover(entries: dict[str, Entry], blob: Blob, data: int) -> None:
    """Raises InputError unless the tensors lie one behind the other and fill the file."""
    at, before = data, "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.stop)):
        name = printable(entry.info.name)
        if entry.start != at:
            fault = "overlaps" if entry.start < at else f"leaves a hole of {entry.start - at} bytes behind"
            raise InputError(f"{blob.label}: tensor {name} {fault} {before}; fetch the file again")
        at, before = entry.stop, name
    if at != blob.size:
        raise InputError(
            f"{blob.label}: {blob.size - at} bytes behind {before} belong to no tensor; fetch the file again"
        )
