"""Locks: one process at a time, and no obstacle where the file system has none."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from layerrope import cache, study
from layerrope.errors import InputError
from layerrope.exporting.publish import YOUNG, published
from layerrope.locks import folder_held, lock_held
from layerrope.training.run_folder import RunFolder


def without_locks(monkeypatch: pytest.MonkeyPatch, answer: int | None) -> None:
    """A file system whose flock answers so; None: filelock's own word for it."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError if answer is None else OSError(answer, os.strerror(answer))

    monkeypatch.setattr(*((FileLock, "acquire") if answer is None else (fcntl, "flock")), refuse)


def publish(folder: Path) -> None:
    with published(folder, overwrite=False) as aside:
        (aside / "config.json").write_text("{}")


def held(context: Callable[[Path], Any]) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        with context(folder):
            pass

    return use


PLACES: dict[str, Callable[[Path], None]] = {
    "run": held(lambda folder: RunFolder(folder).locked()),
    "study": held(study.locked),
    "cache": held(lambda folder: cache.locked(folder / "a.lock")),
    "export": publish,
}


@pytest.mark.parametrize("answer", [None, errno.ENOTSUP, errno.ENOLCK])
@pytest.mark.parametrize("place", PLACES)
def test_a_file_system_without_locks_is_no_obstacle(
    place: str, answer: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, answer)
    PLACES[place](tmp_path / "deep" / "folder")
    assert (tmp_path / "deep" / "folder").is_dir()


def test_without_locks_nothing_is_cleared_whose_writer_may_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / ".out.abcd_123.part"
    aside.mkdir()
    (aside / "lock").touch()
    os.utime(aside / "lock", (0, (aside / "lock").stat().st_mtime - 2 * YOUNG))
    with monkeypatch.context() as patch:
        without_locks(patch, errno.ENOTSUP)
        publish(tmp_path / "out")
    assert aside.is_dir()


def test_a_lock_is_held_against_others_and_let_go(tmp_path: Path) -> None:
    with lock_held(tmp_path / "lock") as mine:
        assert mine
        with pytest.raises(Timeout), lock_held(tmp_path / "lock"):
            pass
        with (
            pytest.raises(InputError, match="another process works in"),
            folder_held(tmp_path, "works"),
        ):
            pass
    with lock_held(tmp_path / "lock") as mine:
        assert mine


def test_other_errors_are_no_missing_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), lock_held(tmp_path / "lock"):
        pass
    with pytest.raises(InputError, match="cannot write"), folder_held(tmp_path, "works"):
        pass
