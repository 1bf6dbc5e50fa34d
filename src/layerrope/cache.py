"""The cache folder: where it is, who may write, and the keys under which things are kept."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import Timeout

from layerrope.files import dumps, unwritable
from layerrope.locks import lock_held
from layerrope.terminal import note


def cache_folder(folder: str | Path | None = None) -> Path:
    """`folder`, or ~/.cache/layerrope, made and tried for writing.

    Where the default cannot be written, a temporary folder that is removed when the process ends, with a note.
    Raises InputError when a folder that was asked for cannot be written.
    """
    if folder is not None:
        return _tried(Path(folder).expanduser())
    try:
        return _tried(Path.home() / ".cache" / "layerrope")
    except (ValueError, RuntimeError):
        return _temporary()


def _tried(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise unwritable(folder, error) from error


@lru_cache(maxsize=1)
def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="layerrope-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    note(f"~/.cache/layerrope cannot be written: prepared data goes to {folder} and ends with this process")
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting (with a note) while another process does.

    It saves doing work twice and is not needed for correctness: everything in the cache is published by rename.
    So a lock that cannot be made is no obstacle.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(lock_held(path))
            except Timeout:
                note("waiting for another process that prepares the same data")
                held.enter_context(lock_held(path, wait=-1))
        yield


def sweep(folder: Path, age_s: float = 86_400.0) -> None:
    """Remove what killed processes left half-written in `folder`: .part files untouched for `age_s` seconds."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > age_s:
                path.unlink()


def content_key(*parts: Any) -> str:
    """SHA-256 of `parts` as strict JSON."""
    return hashlib.sha256(dumps(parts, indent=None).encode()).hexdigest()
