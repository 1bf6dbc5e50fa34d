"""Token shards: a flat memory-mapped file of ids, its document offsets, and a JSON header written last.

A shard `NAME` is three files:

    NAME.bin           token ids, little-endian, 16 bits up to a vocabulary of 65,536 and 32 bits above
    NAME.offsets.bin   n_documents + 1 little-endian 64-bit positions in NAME.bin
    NAME.json          the header: format, width, vocabulary, hashes, counts

The stream opens with one end-of-text id and every document is followed by one, so document i is
`ids[offsets[i] : offsets[i + 1]]` (its end-of-text included) and the id before it is an end-of-text too: every
id of every document, the first as well, has a predecessor to be predicted from. All three files are written
aside and renamed into place, the header last, so a shard with a header is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np

from layerrope.errors import InputError
from layerrope.files import read_json, unwritable, write_json

FORMAT = "layerrope-shard-1"
OFFSETS = np.dtype("<i8")
WIDTHS: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

BLOCK = 1 << 22
"""Ids converted and written at a time."""
VERIFY_BYTES = 1 << 30
"""Shards up to this size are hashed and range-checked when they are opened; larger ones batch by batch."""


def width_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The narrowest stored type whose range holds the ids 0 ... vocab_size - 1."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


@dataclass(frozen=True)
class Header:
    """What NAME.json says about a shard. `n_ids` counts the leading end-of-text, `n_tokens` does not."""

    key: str
    vocab_size: int
    eot: int
    tokenizer: str
    tokenizer_sha256: str
    source: str
    source_sha256: str
    width: str
    n_ids: int
    n_bytes: int
    n_documents: int
    sha256: str
    format: str = FORMAT

    @property
    def n_tokens(self) -> int:
        return self.n_ids - 1


@dataclass(frozen=True)
class Shard:
    """An open shard: `ids` and `offsets` are memory-mapped and read-only."""

    path: Path
    header: Header
    ids: np.ndarray
    offsets: np.ndarray
    verified: bool = field(default=True)

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """The ids at `positions` as int64 of the same shape. Raises InputError for an id outside the vocabulary."""
        ids = self.ids[positions].astype(np.int64)
        if not self.verified:
            _check_range(ids, self.header, self.path)
        return ids


def paths_of(stem: Path) -> tuple[Path, Path, Path]:
    """The ids, offsets and header files of the shard `stem`."""
    return tuple(stem.with_name(stem.name + suffix) for suffix in (".bin", ".offsets.bin", ".json"))  # type: ignore[return-value]


def shard_exists(stem: Path) -> bool:
    """Whether a header was published under this name (the other files were renamed before it)."""
    return paths_of(stem)[2].exists()


class ShardWriter:
    """Writes a shard aside; `publish` renames it into place, leaving the block without it removes every trace."""

    def __init__(self, stem: Path, vocab_size: int, eot: int) -> None:
        self.stem, self.vocab_size, self.eot = stem, vocab_size, eot
        self.width = width_for(vocab_size)
        self.n_ids = self.n_bytes = self.n_documents = 0
        self._hash = hashlib.sha256()
        self._open: list[tuple[BinaryIO, Path]] = []

    def __enter__(self) -> ShardWriter:
        try:
            self.stem.parent.mkdir(parents=True, exist_ok=True)
            self._open = [self._aside(path) for path in paths_of(self.stem)[:2]]
        except OSError as error:
            raise unwritable(self.stem, error) from error
        self._write_ids(np.array([self.eot]))
        self._write_offset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file, path in self._open:
            with contextlib.suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)

    @property
    def n_tokens(self) -> int:
        return max(self.n_ids - 1, 0)

    def add(self, ids: np.ndarray, n_bytes: int) -> None:
        """Append one document of `n_bytes` bytes of text; its end-of-text is added here."""
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            raise InputError(
                f"the tokenizer gave id {int(ids.max())} but its vocabulary has {self.vocab_size} entries: "
                f"use another tokenizer file"
            )
        self._write_ids(ids)
        self._write_ids(np.array([self.eot]))
        self._write_offset()
        self.n_bytes += n_bytes
        self.n_documents += 1

    def publish(self, *, key: str, tokenizer: tuple[str, str], source: tuple[str, str]) -> None:
        """Rename the finished shard into place; `tokenizer` and `source` are (name, SHA-256) pairs."""
        header = Header(
            key=key,
            vocab_size=self.vocab_size,
            eot=self.eot,
            tokenizer=tokenizer[0],
            tokenizer_sha256=tokenizer[1],
            source=source[0],
            source_sha256=source[1],
            width=self.width,
            n_ids=self.n_ids,
            n_bytes=self.n_bytes,
            n_documents=self.n_documents,
            sha256=self._hash.hexdigest(),
        )
        try:
            for (file, aside), path in zip(self._open, paths_of(self.stem), strict=False):
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(aside, path)
        except OSError as error:
            raise unwritable(self.stem, error) from error
        write_json(paths_of(self.stem)[2], asdict(header))

    def _aside(self, path: Path) -> tuple[BinaryIO, Path]:
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        return aside.open("xb"), aside

    def _write_ids(self, ids: np.ndarray) -> None:
        for start in range(0, ids.size, BLOCK):
            raw = ids[start : start + BLOCK].astype(WIDTHS[self.width]).tobytes()
            self._hash.update(raw)
            self._write(0, raw)
        self.n_ids += ids.size

    def _write_offset(self) -> None:
        self._write(1, np.array([self.n_ids], OFFSETS).tobytes())

    def _write(self, which: int, raw: bytes) -> None:
        try:
            self._open[which][0].write(raw)
        except OSError as error:
            raise unwritable(self.stem, error) from error


def open_shard(stem: Path, key: str | None = None) -> Shard:
    """Open and check the shard `stem`.

    Raises InputError, naming the file, when the header is missing, malformed or (given `key`) belongs to other
    data, when the width is not the vocabulary's, a file is shorter or longer than the header says, the ids are
    not the ones that were written, or one lies outside the vocabulary.
    """
    ids_path, offsets_path, header_path = paths_of(stem)
    header = _read_header(header_path)
    if key is not None and header.key != key:
        raise _broken(header_path, "is stale: it was made from other data or by another tokenizer")
    if header.width != width_for(header.vocab_size):
        raise _broken(
            header_path,
            f"has {header.width} ids, but a vocabulary of {header.vocab_size} needs {width_for(header.vocab_size)}",
        )
    ids = _map(ids_path, WIDTHS[header.width], header.n_ids)
    offsets = _map(offsets_path, OFFSETS, header.n_documents + 1)
    if offsets[0] != 1 or offsets[-1] != header.n_ids or np.any(np.diff(offsets) < 1):
        raise _broken(offsets_path, "does not list the documents of its shard in order")
    verified = ids.nbytes <= VERIFY_BYTES
    if verified:
        _check_range(ids, header, ids_path)
        if hashlib.sha256(ids.data).hexdigest() != header.sha256:
            raise _broken(ids_path, "does not hold the ids that were written")
    return Shard(ids_path, header, ids, offsets, verified)


def _read_header(path: Path) -> Header:
    found: Any = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _broken(path, f"is not a {FORMAT} header")
    types = {"str": str, "int": int}
    fields = {name: types[str(kind)] for name, kind in Header.__annotations__.items()}
    if set(found) != set(fields) or any(type(found[name]) is not kind for name, kind in fields.items()):
        raise _broken(path, "lacks a field or has one of the wrong type")
    header = Header(**found)
    counts = (header.vocab_size, header.n_ids, header.n_bytes + 1, header.n_documents + 1)
    if min(counts) < 1 or header.width not in WIDTHS or not 0 <= header.eot < header.vocab_size:
        raise _broken(path, "has a count, width or end-of-text id that cannot be")
    return header


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    try:
        size = path.stat().st_size
        if size != count * dtype.itemsize:
            raise _broken(
                path,
                f"has {size:,} bytes, but {count:,} items of {8 * dtype.itemsize} bits make {count * dtype.itemsize:,}",
            )
        return np.memmap(path, dtype, mode="r", shape=(count,))
    except FileNotFoundError as error:
        raise _broken(path, "is missing") from error
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): check its permissions") from error


def _check_range(ids: np.ndarray, header: Header, path: Path) -> None:
    top = int(ids.max())
    if top >= header.vocab_size:
        raise _broken(path, f"holds id {top}, outside its vocabulary of {header.vocab_size}")


def _broken(path: Path, what: str) -> InputError:
    return InputError(f"the token shard {path} {what}: delete it and run again to have it rebuilt")
