"""A place holds a model's files under relative names: a folder on disk here, a repository or a web folder elsewhere."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, LocalFile, printable

#: Entries of one folder looked at; more than this is no model.
MAX_LISTED = 100_000


class Place(ABC):
    """Somewhere files can be opened by name."""

    label: str

    @abstractmethod
    def listing(self) -> list[str] | None:
        """Names of the files here, sorted; None where the place cannot be listed."""

    @abstractmethod
    def open(self, name: str) -> Blob | None:
        """The file called `name` (a safe relative name), None where there is none."""

    def absence(self, name: str, why: str) -> InputError:
        """What to say when `open` found no `name`; `why` tells what it was wanted for."""
        return InputError(f"{self.label} lacks {printable(name)}, {why}: fetch that file too")


def safe_name(name: object, where: str) -> str:
    """`name` when it is a relative path that stays below its folder, on every operating system.

    File names inside an index come from strangers: `..`, absolute paths, drives, backslashes and control
    characters raise InputError that names `where`.
    """
    text = str(name)
    parts = PurePosixPath(text).parts
    bad = not parts or text.startswith("/") or ".." in parts or any(c in text for c in "\\:") or len(text) > 1024
    if not isinstance(name, str) or bad or not text.isprintable():
        raise InputError(
            f"{where} names the file {printable(text, 120)!r}, which is not a plain name inside its own folder: "
            f"it will not be opened"
        )
    return text


def inside(path: Path, roots: Iterable[Path]) -> Path:
    """Where `path` really is. Raises InputError where links lead it out of all `roots`."""
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise InputError(f"{printable(path)} is a link that leads out of its folder: to read it, name what it leads to")
    return real


class Folder(Place):
    """A folder on disk. Links that lead out of it are not followed, except into a Hugging Face cache's blobs."""

    def __init__(self, path: Path, only: Iterable[str] | None = None) -> None:
        self.path = path
        self.label = printable(path)
        self.opened: list[Path] = []
        self._only = None if only is None else sorted(only)

    def listing(self) -> list[str]:
        if self._only is not None:
            return self._only
        try:
            with os.scandir(self.path) as found:
                names = [entry.name for entry, _ in zip(found, range(MAX_LISTED), strict=False)]
        except OSError as error:
            raise InputError(f"cannot list {self.label} ({error.strerror}): check its permissions") from error
        return sorted(names)

    def open(self, name: str) -> Blob | None:
        path = self.path / name
        if not os.path.lexists(path):
            return None
        real = inside(path, self._roots())
        self.opened.append(real)
        return LocalFile(real, str(path))

    def _roots(self) -> list[Path]:
        """The folder, and the blobs of models--A--B/snapshots/COMMIT/... when that is where it is (and no link)."""
        above = Path(os.path.realpath(self.path)).parents
        caches = [p.parent for p in above if p.name == "snapshots" and p.parent.name.startswith("models--")]
        blobs = [cache / "blobs" for cache in caches]
        return [self.path, *(b for b in blobs if not os.path.islink(b))]
