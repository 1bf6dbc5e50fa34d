"""Publishing: whatever happens to the writer, nothing of the user's is lost and nothing half-written stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from layerrope import InputError
from layerrope.exporting.publish import PROOF, YOUNG, published


def write(target: Path, text: str = "new", overwrite: bool = False) -> None:
    with published(target, overwrite) as aside:
        (aside / PROOF).write_text(text)


def leftover(target: Path, stem: str | None = None, age: float = 2 * YOUNG) -> Path:
    """What a writer that was killed leaves beside `target`."""
    aside = target.parent / f".{stem or target.name}.abcd_123.part"
    (aside / "new").mkdir(parents=True)
    (aside / "new" / "config.json").write_text("{}")
    (aside / "lock").touch()
    then = (aside / "lock").stat().st_mtime - age
    os.utime(aside / "lock", (then, then))
    return aside


def test_a_killed_writer_leaves_nothing_behind_for_long(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\nfrom layerrope.exporting.publish import published\n"
        "with published(pathlib.Path(sys.argv[1]), False) as aside:\n"
        "    (aside / 'config.json').write_text('{}')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=False)
    assert done.returncode == -9
    (aside,) = tmp_path.iterdir()
    old = (aside / "lock").stat().st_mtime - 2 * YOUNG
    os.utime(aside / "lock", (old, old))
    write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_what_nobody_writes_to_this_very_place_is_cleared(tmp_path: Path) -> None:
    target = tmp_path / "out"
    kept = [leftover(tmp_path / "out.b"), leftover(tmp_path / "out.abcd_123"), leftover(tmp_path / "ou")]
    young = leftover(target, age=0)
    write(target)
    assert all(path.is_dir() for path in (*kept, young))
    young.rename(tmp_path / "elsewhere")
    held = leftover(target)
    with FileLock(held / "lock"):
        os.utime(held / "lock", (0, 0))
        write(target, "again", overwrite=True)
        assert held.is_dir()
    os.utime(held / "lock", (0, 0))
    write(target, "third", overwrite=True)
    assert not held.exists()


def test_what_was_to_be_replaced_comes_back_after_a_kill_between_the_two_renames(tmp_path: Path) -> None:
    write(tmp_path / "out", "precious")
    aside = leftover(tmp_path / "out")
    (tmp_path / "out").rename(aside / "old")
    with pytest.raises(InputError, match="is there already"):
        write(tmp_path / "out")
    assert (tmp_path / "out" / PROOF).read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_was_to_be_replaced_comes_back_where_the_second_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", "precious")
    rename = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(InputError, match="Input/output error"):
        write(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / PROOF).read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_of_somebody_s_own_is_not_overwritten_with_the_export(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("my notes")
    with pytest.raises(InputError, match=r"holds README\.md, which no export wrote"):
        write(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "README.md").read_text() == "my notes"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_place_that_is_taken_while_the_export_is_made_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    def slowly() -> None:
        with published(tmp_path / "out", overwrite) as aside:
            (aside / PROOF).write_text("new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "thesis.tex").write_text("years of work")

    with pytest.raises(InputError, match=r"is there already|was not written by an export"):
        slowly()
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["a\0b", "n" * 254])
def test_names_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
