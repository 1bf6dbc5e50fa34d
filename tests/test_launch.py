"""Launchers: sharing without idle workers, crashes tried again and kept apart, stopping with everything saved."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.launching.launch import SHORTEST, Job, Outcome, Queue, available_cores, run_here, share
from layerrope.launching.processes import run_local
from layerrope.launching.worker import Line, run, watch
from layerrope.training.recipe import TrainConfig, to_json
from layerrope.training.run_folder import Result, read_metrics
from layerrope.training.session import Report

MODEL = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=8, seq_len=16)
TINY = TrainConfig(
    model=MODEL, data=DataConfig(seq_len=16), steps=6, batch_size=2, log_every=2, eval_tokens=64, checkpoint_every=0
)
DONE = Result("done", "k", 6, 192, 2.0, 2.0, 3.0, 2.0, 6, 1.0, 100.0, 10)


def job(folder: Path, name: str, steps: int = 6) -> Job:
    return Job(folder / name, replace(TINY, steps=steps, seed=len(name)), name)


# ------------------------------------------------------------------------------------------------------- sharing out
def simulate(jobs: list[Job], workers: int) -> tuple[float, dict[Path, list[tuple[float, float]]]]:
    """Work through the parts as the pool does; the time of the last end, and every run's spells of work."""
    queue = Queue(share(jobs, workers))
    now, busy, spells = 0.0, [], {}
    while True:
        while len(busy) < workers:
            part = queue.take({p.job.run_dir for _, p in busy})
            if part is None:
                break
            busy.append((now + part.cost, part))
            spells.setdefault(part.job.run_dir, []).append((now, now + part.cost))
        if not busy:
            return now, spells
        busy.sort(key=lambda pair: pair[0])
        now = busy.pop(0)[0]


@given(st.integers(1, 12), st.integers(1, 6))
def test_equal_runs_keep_every_worker_busy_to_the_end(n: int, workers: int) -> None:
    jobs = [job(Path("x"), f"run-{i}", 1000) for i in range(n)]
    end, spells = simulate(jobs, workers)
    assert end <= max(1000, 1000 * n / workers) + 2
    assert set(spells) == {j.run_dir for j in jobs}
    for mine in spells.values():
        assert sum(b - a for a, b in mine) == pytest.approx(1000)
        assert all(a2 >= b1 for (_, b1), (a2, _) in itertools.pairwise(mine))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=9), st.integers(1, 4))
def test_any_runs_are_shared_out_whole_and_no_piece_is_tiny(steps: list[int], workers: int) -> None:
    jobs = [job(Path("x"), f"run-{i}", n) for i, n in enumerate(steps)]
    parts = share(jobs, workers)
    assert sum(p.cost for p in parts) == pytest.approx(sum(steps))
    for first in (p for p in parts if p.until is not None):
        assert SHORTEST <= (first.until or 0) <= first.job.config.steps - SHORTEST
    assert len(simulate(jobs, workers)[1]) == len(steps)


def test_two_parts_of_a_run_are_never_out_together(tmp_path: Path) -> None:
    queue = Queue(share([job(tmp_path, f"r{i}", 200) for i in range(3)], 2))
    first = queue.take(set())
    assert first is not None
    assert first.until == 100
    others = [queue.take({first.job.run_dir}), queue.take({first.job.run_dir})]
    assert {p.job.run_dir for p in others if p is not None} == {tmp_path / "r0", tmp_path / "r2"}
    assert queue.take({first.job.run_dir}) is None
    rest = queue.take(set())
    assert rest is not None
    assert (rest.job, rest.until) == (first.job, None)


def test_some_core_can_be_used() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


# --------------------------------------------------------------------------------------------------- stand-in workers
WORKER = """
import json, os, sys, time
from pathlib import Path
job = json.loads(sys.stdin.readline())
folder = Path(job["run_dir"])
name, log = folder.name, folder / "starts"
log.write_text((log.read_text() if log.exists() else "") + "x")
starts = len(log.read_text())
def say(**message):
    print(json.dumps(message), flush=True)
say(report={"kind": "start", "step": 0, "steps": 6})
if name == "dies" or (name == "dies-once" and starts == 1):
    sys.stdout.write('{"report": {"kind"'); sys.stdout.flush()
    os.kill(os.getpid(), 9)
if name == "raises":
    say(error="ValueError: no")
    sys.exit(0)
if name == "refuses":
    say(input_error="d_model does not fit")
    sys.exit(0)
if name.startswith("waits"):
    sys.stdin.read()
    (folder / "saved").touch()
    say(result={**RESULT, "status": "interrupted"})
    sys.exit(0)
if name == "hangs":
    time.sleep(600)
(folder / "environment").write_text(os.environ["OMP_NUM_THREADS"] + f" {job['threads']} {job['device']}")
say(result=RESULT)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    """A command that starts a worker which does what its folder's name says."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("RESULT", json.dumps(asdict(DONE)).replace("null", "None")))
    return [sys.executable, str(script)]


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []

    def __call__(self, job: Job, what: Report | Outcome) -> None:
        self.all.append((job.label, what))


def launch(folder: Path, names: list[str], command: list[str], **settings: Any) -> tuple[dict[str, Outcome], Heard]:
    heard = Heard()
    found = run_local([job(folder, n) for n in names], heard, **{"workers": 2, **settings}, command=command)
    return {path.name: outcome for path, outcome in found.items()}, heard


def test_a_crash_is_tried_once_more_and_does_not_stop_the_others(tmp_path: Path, stand_in: list[str]) -> None:
    found, heard = launch(tmp_path, ["a", "dies", "dies-once", "raises", "b"], stand_in)
    assert {name: (o.status, o.attempts) for name, o in found.items()} == {
        "a": ("done", 1),
        "b": ("done", 1),
        "dies": ("failed", 2),
        "dies-once": ("done", 2),
        "raises": ("failed", 2),
    }
    assert "signal 9" in (found["dies"].error or "")
    assert found["raises"].error == "ValueError: no"
    retried = [label for label, what in heard.all if isinstance(what, Report) and what.text.endswith("once more")]
    assert sorted(retried) == ["dies", "dies-once", "raises"]
    assert sum(isinstance(what, Outcome) for _, what in heard.all) == 5


def test_threads_are_fixed_for_each_worker(tmp_path: Path, stand_in: list[str]) -> None:
    launch(tmp_path, ["a"], stand_in, threads=3)
    assert (tmp_path / "a" / "environment").read_text() == "3 3 cpu"


def test_bad_input_stops_all_with_everything_saved(tmp_path: Path, stand_in: list[str]) -> None:
    with pytest.raises(InputError, match="d_model does not fit"):
        launch(tmp_path, ["waits", "refuses", "never"], stand_in)
    assert (tmp_path / "waits" / "saved").exists()
    assert not (tmp_path / "never").exists()


def test_ctrl_c_lets_every_worker_save(tmp_path: Path, stand_in: list[str]) -> None:
    started: list[str] = []

    def listen(job: Job, what: Report | Outcome) -> None:
        started.append(job.label)
        if len(started) == 2:
            raise KeyboardInterrupt

    jobs = [job(tmp_path, name) for name in ("waits-1", "waits-2", "waits-3")]
    with pytest.raises(KeyboardInterrupt):
        run_local(jobs, listen, workers=2, command=stand_in)
    assert sorted(p.parent.name for p in tmp_path.glob("*/saved")) == ["waits-1", "waits-2"]


def test_a_worker_that_does_not_end_is_killed(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerrope.launching.processes.GRACE", 0.1)

    def listen(job: Job, what: Report | Outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local([job(tmp_path, "hangs")], listen, workers=1, command=stand_in)


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path, stand_in: list[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        launch(tmp_path / "file", ["a"], stand_in)


# -------------------------------------------------------------------------------------------------------- real workers
def words(tmp_path: Path, until: int | None = None) -> dict[str, Any]:
    return {"config": to_json(TINY), "run_dir": str(tmp_path), "threads": 1, "device": "cpu", "until": until}


def replies(tmp_path: Path, job: dict[str, Any], ended: threading.Event) -> list[dict[str, Any]]:
    out = io.StringIO()
    run(job, Line(out), ended)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_run_in_two_pieces_is_the_run_in_one(tmp_path: Path) -> None:
    never = threading.Event()
    cut = replies(tmp_path / "cut", words(tmp_path / "cut", until=3), never)[-1]["result"]
    assert (cut["status"], cut["step"]) == ("interrupted", 3)
    rest = replies(tmp_path / "cut", words(tmp_path / "cut"), never)[-1]["result"]
    whole = replies(tmp_path / "whole", words(tmp_path / "whole"), never)[-1]["result"]
    timing = ("seconds", "tokens_per_second")
    assert {k: v for k, v in rest.items() if k not in timing} == {k: v for k, v in whole.items() if k not in timing}


def test_the_end_of_stdin_stops_a_worker_with_a_checkpoint(tmp_path: Path) -> None:
    ended = watch(io.StringIO(""))
    assert ended.wait(5)
    last = replies(tmp_path, words(tmp_path), ended)[-1]["result"]
    assert (last["status"], last["step"]) == ("interrupted", 1)
    assert (tmp_path / "checkpoints" / "step-1").is_dir()


def test_a_worker_whose_launcher_died_still_saves(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    ended = threading.Event()
    ended.set()
    run(words(tmp_path), Line(out), ended)
    assert (tmp_path / "checkpoints" / "step-1").is_dir()
    with pytest.raises(BrokenPipeError):
        out.close()


def test_a_worker_says_what_is_wrong(tmp_path: Path) -> None:
    never = threading.Event()
    bad = words(tmp_path) | {"device": "abacus"}
    assert "unknown device" in replies(tmp_path, bad, never)[-1]["input_error"]
    (tmp_path / "checkpoints").mkdir()
    crash = words(tmp_path) | {"threads": "many"}
    assert replies(tmp_path, crash, never)[-1]["error"].startswith("ValueError")


def test_workers_and_this_process_give_the_same_numbers(tmp_path: Path) -> None:
    jobs = [replace(job(tmp_path / "w", name)) for name in ("a", "bb")]
    apart = run_local(jobs, Heard(), workers=2)
    here = run_here([replace(j, run_dir=tmp_path / "h" / j.label) for j in jobs], Heard(), threads=1)
    for label in ("a", "bb"):
        one, other = apart[tmp_path / "w" / label], here[tmp_path / "h" / label]
        assert one.status == other.status == "done"
        assert one.result is not None
        assert other.result is not None
        assert one.result.val_loss == other.result.val_loss
        losses = [[r["loss"] for r in read_metrics(tmp_path / w / label / "metrics.jsonl")] for w in ("w", "h")]
        assert losses[0] == losses[1]


def test_this_process_tries_a_crash_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def fail(config: TrainConfig, run_dir: Path, **rest: Any) -> Result:
        calls.append(run_dir)
        if run_dir.name == "a":
            raise RuntimeError("first line\nsecond line")
        return DONE

    monkeypatch.setattr("layerrope.launching.launch.train", fail)
    found = run_here([job(tmp_path, "a"), job(tmp_path, "b")], Heard())
    assert [p.name for p in calls] == ["a", "a", "b"]
    assert found[tmp_path / "a"] == Outcome("failed", error="RuntimeError: first line", attempts=2)
    assert found[tmp_path / "b"].status == "done"
