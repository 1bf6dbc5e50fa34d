"""A folder that appears whole or not at all: written aside, flushed, renamed into place.

What is written aside lies in `.NAME.xxxxxxxx.part/` beside the target: `new`, the folder that is being written; `old`,
while one folder takes the other's place; and `lock`, held as long as the writer lives. A writer that was killed leaves
it, and the next export to the same place clears it away.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from layerrope.errors import InputError
from layerrope.files import unwritable
from layerrope.locks import lock_held

PROOF = "proof.json"
"""The file by which an export is known."""
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja")
WRITTEN = (
    PROOF,
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "model.gguf",
    *TOKENIZER_FILES,
)
"""Names of the files that an export writes. Others in its folder are somebody's own."""
YOUNG = 60.0
"""Seconds in which a folder aside is left alone, so that a writer which has not locked it yet keeps it."""


@contextlib.contextmanager
def published(target: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder to write into; it becomes `target` when the block ends, and is removed where it raises.

    A link is followed: the folder that it points to is the one that is made.

    Raises:
        InputError: `target` is there and not empty (without `overwrite`) or holds something else than an export (with
            it), cannot be written, or the disk is full.
    """
    try:
        real = Path(os.path.realpath(target))
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(target)!r} cannot be the name of a folder: choose another") from error
    try:
        _clear(real)
        _check_free(target, overwrite)
        real.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{real.name}.", suffix=".part", dir=real.parent))
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        with lock_held(aside / "lock"):
            (aside / "new").mkdir()
            yield aside / "new"
            _check_free(target, overwrite)  # again: writing took its time, and the place may have been taken meanwhile
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
    for path in sorted(target.iterdir()):
        if not any(path.match(name) for name in WRITTEN):
            raise InputError(f"{target} holds {path.name}, which no export wrote: move it away, or choose another --to")


def _publish(aside: Path, target: Path) -> None:
    new, old = aside / "new", aside / "old"
    umask = os.umask(0)
    os.umask(umask)
    for path in new.rglob("*"):
        if path.is_file():
            os.chmod(path, 0o666 & ~umask)  # some writers make files that only their owner may read
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(new, target)
    finally:
        _restore(old, target)


def _restore(old: Path, target: Path) -> None:
    """Put back the folder that was to be replaced, where nothing took its place."""
    if old.exists() and not target.exists():
        os.replace(old, target)


def _clear(target: Path) -> None:
    """Remove what writers to `target` left aside when they were killed: folders whose lock nobody holds."""
    name = re.compile(re.escape(f".{target.name}.") + r"\w{8}\.part")
    for aside in target.parent.glob(".*.part") if target.parent.is_dir() else ():
        lock = aside / "lock"
        if not name.fullmatch(aside.name) or not lock.is_file() or time.time() - lock.stat().st_mtime < YOUNG:
            continue
        with contextlib.suppress(OSError), lock_held(lock) as held:
            if held:  # where there are no locks, its writer may be alive
                _restore(aside / "old", target)
                shutil.rmtree(aside, ignore_errors=True)
