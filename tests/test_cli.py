"""The command line's manners: help, one-line errors with the nearest name, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from layerrope import cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in cli.COMMANDS)


def test_an_unknown_command_is_one_line_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inpsect"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "did you mean inspect" in said


def test_a_message_with_line_breaks_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["in\nspect\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("study lr --bracket -1", "error: --bracket is a number"),
        ("study lr --seeds x", "error: --seeds: "),
        ("train --lr x", "error: --lr: "),
        ("lab --run", "error: Missing value for argument '--run'"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_flag(
    line: str, starts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(starts)
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [OSError(36, "File name too long", "x" * 9), MemoryError(), OverflowError("2^99")])
def test_what_the_machine_refuses_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["account"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def run(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "layerrope.cli", *words], capture_output=True, **options)  # type: ignore[call-overload]


def test_a_full_output_and_a_terminal_without_unicode_give_no_traceback() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "layerrope.cli", "--help"], stdout=full, stderr=subprocess.PIPE)
    assert b"Traceback" not in done.stderr
    plain = run("account", "--tier", "micro-100k", env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0
    assert b"Traceback" not in plain.stderr
