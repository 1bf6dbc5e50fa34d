"""What a header says: a tensor's name, dtype and shape (TensorInfo) and where its bytes lie (Entry)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from layerrope.tensors.blobs import Blob

#: Byte order of stored numbers: little-endian or big-endian.
Order = Literal["<", ">"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file says about one tensor."""

    name: str
    """as stored; may hold any character, so pass it through `printable` before showing it"""
    dtype: str
    """safetensors spelling (F32, BF16, F8_E4M3, ...) or the GGUF type's name (Q4_1, ...)"""
    shape: tuple[int, ...]
    """row-major, the order of Hugging Face; GGUF stores it reversed"""
    nbytes: int
    """bytes stored"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor and where its bytes lie: [start, start + nbytes) of `blob`, byte order `order` ("<" or ">")."""

    info: TensorInfo
    blob: Blob
    start: int
    order: Order = "<"

    @property
    def stop(self) -> int:
        return self.start + self.info.nbytes


@dataclass
class Spent:
    """Network traffic so far: body bytes received and requests sent (redirects and retries included)."""

    bytes: int = 0
    requests: int = 0
