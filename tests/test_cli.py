"""The command line's manners: help, one-line errors with the nearest name, exit codes."""

from __future__ import annotations

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
