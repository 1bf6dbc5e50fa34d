"""A blob is a file whose bytes can be read by range, wherever it lies; the formats are parsed from blobs."""

from __future__ import annotations

import os
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
    words = str(text)
    cut = words if len(words) <= limit else words[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


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
            self._seen = os.stat(path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if not stat.S_ISREG(self._seen.st_mode):
            raise InputError(f"{self.label} is not a regular file: name a .safetensors or .gguf file or a folder")
        self.size = self._seen.st_size

    def _unreadable(self, error: OSError | ValueError) -> InputError:
        reason = getattr(error, "strerror", None) or error
        return InputError(f"cannot read {self.label} ({printable(reason)}): check the path and its permissions")

    def read(self, start: int, stop: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                now = os.fstat(file.fileno())
                if (now.st_size, now.st_mtime_ns) != (self._seen.st_size, self._seen.st_mtime_ns):
                    raise InputError(f"{self.label} changed while it was being read: run the command again")
                file.seek(start)
                data = file.read(stop - start)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(data) != stop - start:
            raise InputError(f"{self.label} ends at byte {start + len(data)}: it was cut while being read")
        return data


class MemoryFile(Blob):
    """Bytes already here: what a server that ignores ranges sent, or a test's file."""

    remote = False

    def __init__(self, data: bytes, label: str) -> None:
        self.data, self.label, self.size = data, printable(label), len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]
