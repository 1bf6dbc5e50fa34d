"""The terminal's view of a study: what is said of each run, and a time left that counts only work done now."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from layerrope.commands.board import Board, Clock, ending
from layerrope.commands.typed import typed
from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.launching.launch import Job, Outcome
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import Result
from layerrope.training.session import Report

MODEL = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=8, seq_len=16)
CONFIG = TrainConfig(model=MODEL, data=DataConfig(seq_len=16), steps=100)
DONE = Result("done", "k", 100, 10, 2.0, 2.5, 3.6, 2.5, 100, 9.0, 1234.0, 10)


def jobs(*names: str) -> list[Job]:
    return [Job(Path(name), CONFIG, name) for name in names]


def test_the_clock_goes_by_work_done_since_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock(1000.0)
    assert clock.seconds_left(1000.0) is None
    now[0] += 10
    assert clock.seconds_left(900.0) == pytest.approx(90)
    clock.skip(400.0)  # found done: no time went into it
    assert clock.seconds_left(500.0) == pytest.approx(50)


def test_steps_of_an_earlier_call_and_finished_runs_do_not_count_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first, second, third = jobs("a", "b", "c")
    board = Board([first, second, third])
    board(first, Outcome("done", DONE))
    board(second, Report("start", 80, 100))
    assert board.clock.seconds_left(sum(board.left.values())) is None
    now[0] = 5.0
    board(second, Report("step", 90, 100))
    assert board.clock.seconds_left(sum(board.left.values())) == pytest.approx(55)
    assert board.done == 1


def test_a_run_s_line_has_loss_speed_and_time_left() -> None:
    (job,) = jobs("a")
    board = Board([job])
    board(job, Report("step", 10, 100, {"loss": 3.25}, 2000.0, 65.0))
    (task,) = [task for task in board.bars.tasks if task.description == "a"]
    assert task.fields["words"] == "10/100  loss 3.250  2,000 tokens/s  1:05 left"
    board(job, Report("step", 11, 100, None, 2000.0, 64.0))
    assert "loss 3.250" in board.bars.tasks[-1].fields["words"]


def test_every_end_has_its_words() -> None:
    assert ending(Outcome("done", DONE)) == "validation loss 2.5000, 1,234 tokens/s"
    lost = Result(**{**vars(DONE), "status": "diverged", "diverged_at": 7})
    assert ending(Outcome("diverged", lost)) == "diverged at step 7"
    assert ending(Outcome("failed", error="RuntimeError: x")) == "failed (RuntimeError: x)"


def test_names_with_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = jobs("[red]a[/red]")
    with Board([job]) as board:
        board(job, Report("note", 0, 100, text="[bold]"))
        board(job, Outcome("done", DONE))
    err = capsys.readouterr().err
    assert "[red]a[/red]: [bold]" in err
    assert "[red]a[/red]: validation loss" in err


def test_a_command_is_written_as_typed() -> None:
    from layerrope.commands.compare import Command

    assert typed(Command(), "compare") == "layerrope compare"
    made = Command(schemes=("lns", "hc:n=2"), lrs=(3e-3, 1e-2), compile=False, out=Path("a b"), json=True)
    assert typed(made, "compare", ("json",)) == (
        "layerrope compare --schemes lns hc:n=2 --lrs 0.003 0.01 --no-compile --out 'a b'"
    )
