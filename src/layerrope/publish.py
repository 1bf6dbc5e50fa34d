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

PROOF = "proof.json"
"""The file by which an export is known."""


@contextlib.contextmanager
def published(target: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder to write into; it becomes `target` when the block ends, and is removed where it raises.

    A link is followed: the folder that it points to is the one that is made.

    Raises:
        InputError: `target` is there and not empty (without `overwrite`) or no export (with it), cannot be written, or
            the disk is full.
    """
    real = Path(os.path.realpath(target))
    try:
        _check_free(target, overwrite)
        real.parent.mkdir(parents=True, exist_ok=True)
        aside = _beside(real)
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield aside
        _publish(aside, real)
    except SafetensorError as error:
        raise unwritable(target, OSError(0, str(error))) from error
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_free(target: Path, overwrite: bool) -> None:
    """Raise InputError unless nothing of worth stands at `target`: no file, no folder but an empty one or an export."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{target} is there already: choose another --to, or replace it with --overwrite")
    if not (target / PROOF).is_file() or any(path.is_dir() for path in target.iterdir()):
        raise InputError(f"{target} was not written by an export, so it is not replaced: choose another --to")


def _beside(target: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))


def _publish(aside: Path, target: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for path in aside.rglob("*"):
        if path.is_file():
            os.chmod(path, 0o666 & ~umask)  # some writers make files that only their owner may read
            with open(path, "rb") as file:
                os.fsync(file.fileno())
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
