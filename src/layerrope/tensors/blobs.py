"""A blob is a file whose bytes can be read by range, wherever it lies; the formats are parsed from blobs."""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from pathlib import Path

from layerrope.errors import InputError

#: Two wanted ranges of a remote file are fetched as one when the bytes between them are at most this many.
JOIN_GAP = 32 * 1024


def printable(text: object, limit: int = 300) -> str:
    """`text` for one line of a terminal: control, format and unassigned characters are escaped, length bounded.

    Names of tensors, files and servers come from strangers; an escape sequence in one must not be obeyed.
    """
    words = str(text)[: limit + 1]  # no character shrinks
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def redacted(text: object) -> str:
    """What may be shown of something that is no proper address: no user, no password, no query, no fragment.

    Where it holds an @ (outside of a plain Hub id, `org/name@revision`), all in front of the last one may be a
    password, whatever stands in it.
    """
    words = str(text)
    if re.fullmatch(r"[\w./-]*@[\w./-]*", words) is None and "@" in words:
        words = "***@" + words.rpartition("@")[2]
    return printable(re.split(r"[?#]", words, maxsplit=1)[0])


class Blob(ABC):
    """Bytes 0 <= i < `size` of one file. `label` names it in messages; `remote` says that reads cost requests."""

    label: str
    size: int
    remote: bool

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop), 0 <= start <= stop <= size. Raises InputError when they cannot be had."""


class LocalFile(Blob):
    """A regular file on disk, opened for each read and checked to be the file it was at first."""

    remote = False

    def __init__(self, path: Path, label: str | None = None) -> None:
        """Raises InputError unless `path` is a regular file that can be read (a FIFO would wait for ever)."""
        self.path = path
        self.label = printable(label or path)
        try:
            seen = os.stat(path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if not stat.S_ISREG(seen.st_mode):
            raise InputError(f"{self.label} is not a regular file: name a .safetensors or .gguf file or a folder")
        self.size, self._version = seen.st_size, _version(seen)

    def _unreadable(self, error: OSError | ValueError) -> InputError:
        reason = getattr(error, "strerror", None) or error
        return InputError(f"cannot read {self.label} ({printable(reason)}): check the path and its permissions")

    def read(self, start: int, stop: int) -> bytes:
        try:
            with open(self.path, "rb", opener=_without_waiting) as file:
                if _version(os.fstat(file.fileno())) != self._version:
                    raise InputError(f"{self.label} changed while it was being read: run the command again")
                file.seek(start)
                data = file.read(stop - start)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) != stop - start:
            raise InputError(f"{self.label} ends at byte {start + len(data)}: it was cut while being read")
        return data


def _version(seen: os.stat_result) -> tuple[int, ...]:
    """What tells one content of a path from another: which file it is, its size and when it was written."""
    return (seen.st_dev, seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns)


def _without_waiting(path: str, flags: int) -> int:
    """An opener that does not wait for the other end of a FIFO that has taken the file's place."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class MemoryFile(Blob):
    """Bytes already here: what a server that ignores ranges sent, or a test's file."""

    remote = False

    def __init__(self, data: bytes, label: str) -> None:
        self.data, self.label, self.size = data, printable(label), len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]
