"""Writing so that nothing is ever half there: strict JSON, written aside and renamed into place."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerrope.errors import InputError

PAGE, PNG, SVG, NPZ = b"<!DOCTYPE html", b"\x89PNG\r\n\x1a\n", b"<svg", b"PK\x03\x04"
"""First bytes of the pages, pictures and arrays that are written here."""


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, lines ended by a newline. `columns`: these and no others; None: every row's, as they come up."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def strict(value: Any) -> Any:
    """`value` as strict JSON data: non-finite floats become None, arrays and tuples lists, paths strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(strict(v) for v in value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors
        return strict(value.tolist())
    return value


def dumps(value: Any, indent: int | None = 1) -> str:
    """Strict JSON text of `value`; NaN and infinities are written as null."""
    return json.dumps(strict(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_atomic(path: str | os.PathLike[str], data: str | bytes, over: bytes = b"") -> Path:
    """Write `data` beside `path`, flush it to disk, then rename it into place.

    A link is written through: the file that it leads to is replaced, the link stays. A file that was there keeps its
    mode. Raises InputError when the folder cannot be written or the disk is full, or for a file that does not start
    with `over` (see `keep_others`); `path` then is as it was.
    """
    path = Path(path)
    target = keep_others(path, over)
    raw = data.encode() if isinstance(data, str) else data
    aside: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, _mode_for(target))
        os.replace(aside, target)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:  # after a rename there is nothing left to remove; after anything else, an interrupt too, there is
        if aside is not None:
            Path(aside).unlink(missing_ok=True)
    return path


def keep_others(path: str | os.PathLike[str], over: bytes) -> Path:
    """The file that `path` names, which is empty, not there, or starts with `over`: one of the kind to be written.

    Raises InputError for any other: a page or a picture takes the place of its last version, not of a user's table.
    """
    target = _target(Path(path))
    try:
        with open(target, "rb") as file:
            found = file.read(len(over))
    except (FileNotFoundError, NotADirectoryError):
        return target
    except OSError as error:
        raise unwritable(path, error) from error
    if found and found != over:
        raise InputError(f"{path} is there and holds something else, so it is not written over: choose another name")
    return target


def apart(outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise InputError where two outputs are one file, or one would have to be a folder for another to lie in it."""
    places = [Path(os.path.realpath(output)) for output in outputs]
    if len(set(places)) < len(places):
        raise InputError("two outputs have the same name: give each its own")
    for place in places:
        if any(place in other.parents for other in places):
            raise InputError(f"{place.name} is one output and the folder of another: give each its own name")


def ready(outputs: Iterable[tuple[str | os.PathLike[str] | None, bytes]]) -> None:
    """Check all of a command's outputs (path or None, first bytes of its kind) before the first one is written.

    Raises InputError where one is in another's way (`apart`) or would take the place of something else (`keep_others`).
    """
    asked = [(path, over) for path, over in outputs if path is not None]
    apart(path for path, _ in asked)
    for path, over in asked:
        keep_others(path, over)


def _target(path: Path) -> Path:
    """The file that `path` names, behind all links. Raises InputError where that is something else than a file."""
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{str(path)!r} cannot be the name of a file: choose another") from error
    there = os.path.lexists(target) or os.path.exists(path)  # a descriptor's file may have lost its name: /dev/stdout
    if there and not target.is_file():
        raise InputError(f"{path} is no regular file: choose another name to write to")
    return target


def _mode_for(target: Path) -> int:
    """The mode of the file that is there, else what the umask leaves of rw for all."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(os.stat(target).st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def unwritable(path: str | os.PathLike[str], error: OSError) -> InputError:
    """The InputError for a path that could not be written, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"no space left while writing {path}: free some and run the same command again")
    return InputError(f"cannot write {path} ({error.strerror or error}): choose another folder")


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Write `value` as strict JSON, atomically."""
    return write_atomic(path, dumps(value) + "\n")


def regular(path: str | os.PathLike[str]) -> None:
    """Raise InputError for something else than a file: a read from a pipe would wait for a writer for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} is no regular file: put the file itself there")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON document at `path`. Raises InputError when it is missing, no file, or not JSON."""
    regular(path)
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"no such file: {path}") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, no text, or a number without end
        raise InputError(f"{path} is not readable JSON ({error})") from error
