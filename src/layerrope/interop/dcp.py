"""Reading torch.distributed.checkpoint folders (also those of OLMo-core) without trusting them.

Such a folder has a `.metadata` file, which is a pickle, and `*.distcp` files of saved tensors. An ordinary unpickler
runs whatever the file says. Here the metadata goes through one that knows the names of `_KNOWN` and builds inert
records for them, none of which does anything; any other name is refused. Tensors are read one by one at the places
the metadata gives, by `torch.load` with `weights_only=True`, and must have the shape and dtype that were announced.
Nothing else in the folder is opened, and nothing outside of it: links that lead out are refused.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerrope.errors import InputError, reason
from layerrope.tensors.places import Folder

METADATA = ".metadata"
LARGEST_METADATA = 1 << 30
"""Bytes of a `.metadata` that is read; that of a 7-billion-parameter model on 512 ranks has far fewer."""
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


class Record:
    """An inert stand-in for an object of the metadata: it keeps the state it is given."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """A field of the object. Raises InputError where there is none."""
        if not isinstance(self.state, Mapping) or name not in self.state:
            raise InputError(f"{type(self).__name__} has no {name}")
        return self.state[name]


class Tensors(Record):
    """TensorStorageMetadata: what a tensor is and which pieces it was saved in."""


class Place(Record):
    """_StorageInfo: where one piece lies."""


class Index(Record):
    """MetadataIndex: which piece of what."""


def _word(*args: Any) -> str:
    return " ".join(map(str, args))


def _member(owner: Any, name: Any) -> str:
    """An enum's member as Python before 3.11.4 names it: getattr(enum, name). Nothing is ever looked up."""
    if owner is not _word or not isinstance(name, str):
        raise InputError("it takes attributes of something else than its enum")
    return name


_TORCH = "torch.distributed.checkpoint."
_KNOWN: dict[tuple[str, str], Any] = {
    (f"{_TORCH}metadata", "Metadata"): Record,
    (f"{_TORCH}metadata", "TensorStorageMetadata"): Tensors,
    (f"{_TORCH}metadata", "BytesStorageMetadata"): Record,
    (f"{_TORCH}metadata", "ChunkStorageMetadata"): Record,
    (f"{_TORCH}metadata", "TensorProperties"): Record,
    (f"{_TORCH}metadata", "MetadataIndex"): Index,
    (f"{_TORCH}metadata", "StorageMeta"): Record,
    (f"{_TORCH}metadata", "_MEM_FORMAT_ENCODING"): _word,
    (f"{_TORCH}filesystem", "_StorageInfo"): Place,
    ("olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"): Place,
    ("torch.serialization", "_get_layout"): _word,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "getattr"): _member,
    **{("pathlib", name): _word for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
    **{("torch", name): getattr(torch, name) for name in DTYPES},
}
"""Every name that a `.metadata` may use, and what stands for it."""


class _Unpickler(pickle.Unpickler):
    """Knows the names of `_KNOWN` and no other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            named = f"{module}.{name}".encode("unicode_escape").decode()
            raise InputError(f"it names {named}, which no checkpoint's metadata needs")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise InputError("it refers to objects outside of itself")


@dataclass(frozen=True)
class Piece:
    """A part of a tensor, and where its bytes are."""

    first: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Saved:
    """One saved tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


class DcpFolder:
    """The tensors of a torch.distributed.checkpoint folder, by name.

    Raises:
        InputError: there is no `.metadata`, it is damaged, or it holds anything but a checkpoint's metadata.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, Folder(path)
        try:
            whole = _unpickled(self.folder)
            places = _places(whole.get("storage_data"))
            described = whole.get("state_dict_metadata")
            self.saved = {
                str(name): _saved(str(name), about, places)
                for name, about in described.items()
                if isinstance(about, Tensors)
            }
        except InputError as error:
            raise InputError(f"{path / METADATA} is not that of a checkpoint: {error}") from error
        except (AttributeError, TypeError, ValueError, IndexError, KeyError, RecursionError) as error:
            raise InputError(f"{path / METADATA} is not that of a checkpoint ({type(error).__name__})") from error

    def read(self, name: str) -> Tensor:
        """The whole tensor of this name, on the CPU.

        Raises:
            InputError: there is none, a file is missing or damaged, or its pieces do not make up the tensor.
        """
        if name not in self.saved:
            raise InputError(f"{self.path} has no tensor {name}")
        saved = self.saved[name]
        made = torch.empty(saved.shape, dtype=saved.dtype)
        covered = torch.zeros(saved.shape, dtype=torch.bool)
        for piece in saved.pieces:
            where = tuple(slice(a, a + n) for a, n in zip(piece.first, piece.shape, strict=True))
            made[where] = self._piece(name, piece, saved.dtype)
            covered[where] = True
        if not bool(covered.all()):
            raise InputError(f"{self.path}: the pieces of tensor {name} leave gaps, so a shard is missing")
        return made

    def _piece(self, name: str, piece: Piece, dtype: torch.dtype) -> Tensor:
        path, blob = self.path / piece.file, self.folder.open(piece.file)
        if blob is None:
            raise InputError(f"{path} is missing, a shard of the checkpoint: fetch all of it")
        end = piece.offset + piece.length
        if blob.size < end:
            raise InputError(f"{path} is cut short: tensor {name} should end at byte {end}")
        data = blob.read(piece.offset, end)
        try:
            tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # of the zip reader, the restricted unpickler, or the storage
            raise InputError(f"{path}: tensor {name} cannot be read ({reason(error)})") from error
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != piece.shape or tensor.dtype != dtype:
            raise InputError(f"{path}: tensor {name} is not what {METADATA} says")
        return tensor


def _unpickled(folder: Folder) -> Record:
    blob = folder.open(METADATA)
    if blob is None:
        raise InputError("there is none")
    if blob.size > LARGEST_METADATA:
        raise InputError(f"it has more than {LARGEST_METADATA:,} bytes")
    try:
        found = _Unpickler(io.BytesIO(blob.read(0, blob.size))).load()
    except InputError:
        raise
    except Exception as error:  # an unpickler raises nearly anything on damaged bytes
        raise InputError(f"it is damaged ({type(error).__name__})") from error
    if not isinstance(found, Record):
        raise InputError("it holds no metadata")
    return found


def _places(found: Mapping[Any, Any]) -> dict[tuple[str, tuple[int, ...] | None], Place]:
    """(tensor, first index of the piece) -> where it lies."""
    places: dict[tuple[str, tuple[int, ...] | None], Place] = {}
    for index, place in found.items():
        if isinstance(index, Index) and isinstance(place, Place):
            offset = index.state.get("offset")  # absent for what is no tensor
            places[str(index.get("fqn")), None if offset is None else _numbers(offset)] = place
    return places


def _saved(name: str, about: Tensors, places: Mapping[tuple[str, tuple[int, ...] | None], Place]) -> Saved:
    if not name.isprintable():
        raise InputError(f"it has a tensor called {name!r}")
    shape = _numbers(about.get("size"))
    dtype = about.get("properties").state[0]
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"tensor {name} has no dtype")
    pieces = tuple(_piece(name, chunk, shape, places) for chunk in about.get("chunks"))
    return Saved(shape, dtype, pieces)


def _piece(
    name: str, chunk: Record, whole: tuple[int, ...], places: Mapping[tuple[str, tuple[int, ...] | None], Place]
) -> Piece:
    first, shape = _numbers(chunk.get("offsets")), _numbers(chunk.get("sizes"))
    inside = len(first) == len(shape) == len(whole)
    inside = inside and all(a + n <= size for a, n, size in zip(first, shape, whole, strict=True))
    place = places.get((name, first))
    if not inside or place is None:
        raise InputError(f"a piece of tensor {name} lies nowhere in it, or nowhere on disk")
    file, offset, length = (place.get(field) for field in ("relative_path", "offset", "length"))
    if not isinstance(file, str) or Path(file).name != file or place.state.get("transform_descriptors"):
        raise InputError(f"tensor {name} lies in {file!r}, which is no plain file of the folder")
    return Piece(first, shape, file, *_numbers((offset, length)))


def _numbers(found: Any) -> tuple[int, ...]:
    """Whole numbers from 0 on. Raises InputError for anything else."""
    numbers = tuple(found)
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise InputError("it has sizes that are no whole numbers")
    return numbers
