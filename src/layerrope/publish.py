"""A folder that appears whole or not at all: written aside, flushed, renamed into place."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from layerrope.errors import InputError
from layerrope.files import unwritable


@contextlib.contextmanager
def published(target: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder to write into; it becomes `target` when the block ends, and is removed where it raises.

    Raises:
        InputError: `target` is there and not empty (without `overwrite`), cannot be written, or the disk is full.
    """
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already: choose another --to, or replace it with --overwrite")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = _beside(target)
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield aside
        _publish(aside, target)
    except SafetensorError as error:
        raise unwritable(target, OSError(0, str(error))) from error
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _beside(target: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))


def _publish(aside: Path, target: Path) -> None:
    for path in aside.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(aside, 0o777 & ~umask)
    if not target.exists():
        os.replace(aside, target)
        return
    old = _beside(target)
    try:
        os.replace(target, old / "old")
        os.replace(aside, target)
    finally:
        shutil.rmtree(old, ignore_errors=True)
