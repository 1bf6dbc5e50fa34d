"""Writing: whole or not at all, through links, with the mode that was there; and standard streams that are gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from layerrope.errors import InputError
from layerrope.files import read_json, write_atomic
from layerrope.terminal import note


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_mode(tmp_path: Path, before: int) -> None:
    path = tmp_path / "private.json"
    path.write_text("old")
    path.chmod(before)
    write_atomic(path, "new")
    assert (path.read_text(), mode(path)) == ("new", before)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert mode(write_atomic(tmp_path / "new", b"x")) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through_and_stays(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to("far/target")
    assert write_atomic(link, "new") == link
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["target"]
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to("folder")
    os.mkfifo(tmp_path / "fifo")
    for name in ("loop", "folder", "linked", "fifo"):
        with pytest.raises(InputError, match="no regular file"):
            write_atomic(tmp_path / name, "x")
        with pytest.raises(InputError, match="no regular file" if name != "loop" else "not readable"):
            read_json(tmp_path / name)
    with pytest.raises(InputError, match="cannot be the name"):
        write_atomic(f"{tmp_path}/a\0b", "x")


def test_a_name_as_long_as_the_disk_allows(tmp_path: Path) -> None:
    assert write_atomic(tmp_path / ("n" * 250), "x").read_text() == "x"
    with pytest.raises(InputError, match="cannot write"):
        write_atomic(tmp_path / ("n" * 300), "x")


def test_a_note_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note("wrote \x1b[31mred\u202e [bold]x[/bold] :smile: \udc80")
    said = capsys.readouterr().err
    assert said.strip() == "wrote \\x1b[31mred\\u202e [bold]x[/bold] :smile: \\udc80"


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", ">&- 2>&- <&-", "| true"])
def test_a_closed_or_broken_standard_stream_is_no_error(redirection: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m layerrope.cli --help {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
