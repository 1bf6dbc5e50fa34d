"""Locks between processes. The system frees a lock when its process dies, so none is ever stale."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from layerrope.errors import InputError
from layerrope.files import unwritable

_WITHOUT = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""What a file system without locks answers, such as a network's whose lock daemon does not run."""


@contextlib.contextmanager
def lock_held(path: Path, wait: float = 0.0) -> Iterator[bool]:
    """Hold the lock file `path`; False where its file system has no locks, so that nothing is held.

    Args:
        path: in a folder that is there.
        wait: seconds for another process to let it go; below 0: as long as it takes.

    Raises:
        Timeout: another process holds it.
        OSError: the file cannot be made.
    """
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except NotImplementedError:  # filelock's word for ENOSYS
        pass
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextlib.contextmanager
def folder_held(folder: Path, doing: str) -> Iterator[None]:
    """Make `folder` and keep every other process that asks for it out, where its file system has locks.

    Raises:
        InputError: another process "`doing` in" it, or it cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock_held(folder / "lock"))
        except Timeout as error:
            raise InputError(f"another process {doing} in {folder}: wait for it or choose another --out") from error
        except OSError as error:
            raise unwritable(folder, error) from error
        yield
