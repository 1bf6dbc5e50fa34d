"""Writing a safetensors file one tensor after another: what is on the disk need not be in memory.

The format: 8 bytes with the length of the header, the header (JSON: dtype, shape and offsets of every tensor), then the
tensors' bytes without gaps. Files come out as `safetensors.torch.save_file` writes them, byte for byte.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPES: dict[torch.dtype, str] = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""torch's dtypes by their names in a file's header, in the order in which a file holds them."""


def ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of `tensors` in the order in which a file holds them: wide dtypes first, so that each is aligned."""
    rank = {dtype: place for place, dtype in enumerate(DTYPES)}
    return sorted(tensors, key=lambda name: (rank[tensors[name].dtype], name))


def header(tensors: Mapping[str, Tensor]) -> bytes:
    """The file's beginning. Only shapes and dtypes are read, so tensors may lie in shards or on meta."""
    entries, end = {}, 0
    for name in ordered(tensors):
        t = tensors[name]
        start, end = end, end + t.numel() * t.element_size()
        entries[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_streamed(path: Path, tensors: Mapping[str, Tensor], values: Iterable[Tensor]) -> None:
    """Write the file of `tensors`, whose `values`, whole, come in the order of `ordered`.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    with open(path, "wb") as file:
        file.write(header(tensors))
        for value in values:
            file.write(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
