"""The Slurm launcher: what it submits, how it reads what happens, retries, stops and takes up again; without Slurm.

`Script` stands for the cluster: it says what each job writes before it ends. `test_slurm_cluster.py` has the real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from layerrope import cli
from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError, MissingExtra
from layerrope.launching.launch import Job, Outcome, run_here
from layerrope.launching.slurm import TICKET, Slurm, SlurmOptions, run_slurm
from layerrope.launching.slurm_task import REPORTS, Task
from layerrope.training.recipe import TrainConfig, to_json
from layerrope.training.run_folder import Result, read_metrics
from layerrope.training.session import Report

MODEL = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=8, seq_len=16)
TINY = TrainConfig(
    model=MODEL, data=DataConfig(seq_len=16), steps=6, batch_size=2, log_every=2, eval_tokens=64, checkpoint_every=0
)
DONE = Result("done", "k", 6, 192, 2.0, 2.0, 3.0, 2.0, 6, 1.0, 100.0, 10)
STOPPED = replace(DONE, status="interrupted", step=3)


def job(folder: Path, name: str) -> Job:
    return Job(folder / name, replace(TINY, seed=len(name)), name)


def report(step: int) -> dict[str, Any]:
    return {"report": asdict(Report("step", step, 6))}


def finish(folder: Path) -> None:
    (folder / "result.json").write_text(json.dumps(asdict(DONE)))


Acts = list[Callable[[Path], None] | dict[str, Any] | None]
"""What a job does, one act a look: a call with the run's folder, a line of its worker, or nothing."""


class Script(Slurm):
    """A cluster whose jobs do what `acts` says for the run of that name, one list an attempt; then they are gone."""

    settle = 0.0
    acts: dict[str, list[Acts]]
    log: list[str]

    def __init__(self, folder: Path, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.log.append("connected")

    def submit(self, tasks: Sequence[Task]) -> list[str]:
        names = [Path(task.words["run_dir"]).name for task in tasks]
        self.log.append("submitted " + " ".join(names))
        ids = []
        for name, task in zip(names, tasks, strict=True):
            number = f"{name}:{len(self.queue)}"
            self.queue[number] = (Path(task.words["run_dir"]), self.acts[name].pop(0))
            ids.append(number)
        return ids

    queue: dict[str, tuple[Path, Acts]]

    def alive(self, ids: set[str]) -> set[str]:
        for number in ids & set(self.queue):
            folder, left = self.queue[number]
            act = left.pop(0) if left else None
            if callable(act):
                act(folder)
            elif act is not None:
                with open(folder / REPORTS, "a") as file:
                    file.write(json.dumps(act) + "\n")
        return {number for number in ids if number in self.queue and self.queue[number][1]}

    def cancel(self, ids: Sequence[str]) -> None:
        self.log.append("cancelled " + " ".join(sorted(name.partition(":")[0] for name in ids)))
        for number in ids:
            self.queue[number] = (self.queue[number][0], [])


def script(acts: dict[str, list[Acts]]) -> type[Script]:
    return type("Script", (Script,), {"acts": acts, "log": [], "queue": {}})


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def __call__(self, job: Job, what: Report | Outcome) -> None:
        kind = (what.kind, what.step) if isinstance(what, Report) else (what.status, what.attempts)
        self.said.append((job.label, kind))


def launch(folder: Path, cluster: type[Slurm], names: Sequence[str], heard: Any = None) -> dict[Path, Outcome]:
    jobs = [job(folder, name) for name in names]
    return run_slurm(jobs, heard or Heard(), folder=folder / "slurm", options=SlurmOptions(), cluster=cluster, poll=0.0)


# ------------------------------------------------------------------------------------------------------- what happens
def test_all_runs_go_as_one_array_and_reports_come_as_they_are_made(tmp_path: Path) -> None:
    cluster = script({"a": [[report(1), report(2), finish]], "b": [[None, report(5), None, finish]]})
    heard = Heard()
    found = launch(tmp_path, cluster, ["a", "b"], heard)
    assert cluster.log == ["connected", "submitted a b"]
    assert [found[tmp_path / name].status for name in "ab"] == ["done", "done"]
    assert heard.said == [
        ("a", ("step", 1)),
        ("a", ("step", 2)),
        ("b", ("step", 5)),
        ("a", ("done", 1)),
        ("b", ("done", 1)),
    ]
    assert not (tmp_path / "a" / TICKET).exists()


def test_a_run_that_dies_is_submitted_once_more_and_no_oftener(tmp_path: Path) -> None:
    dies: Acts = [report(1), {"error": "OSError: gone"}, {"ended": 0}]
    cluster = script({"a": [list(dies), [report(2), finish]], "b": [list(dies), list(dies)]})
    heard = Heard()
    found = launch(tmp_path, cluster, ["a", "b"], heard)
    assert cluster.log == ["connected", "submitted a b", "submitted a", "submitted b"]
    assert (found[tmp_path / "a"].status, found[tmp_path / "a"].attempts) == ("done", 2)
    assert found[tmp_path / "b"] == Outcome("failed", error="OSError: gone", attempts=2)
    assert heard.said.count(("a", ("note", 0))) == 1


def test_a_job_that_leaves_nothing_says_where_to_look(tmp_path: Path) -> None:
    cluster = script({"a": [[None], [None]]})
    error = launch(tmp_path, cluster, ["a"])[tmp_path / "a"].error
    assert error is not None
    assert "ended without a result: see a/worker.log" in error


def test_a_cancelled_run_is_interrupted_and_not_tried_again(tmp_path: Path) -> None:
    cluster = script({"a": [[report(3), {"result": asdict(STOPPED)}, {"ended": 0}]]})
    assert launch(tmp_path, cluster, ["a"])[tmp_path / "a"].status == "interrupted"
    assert cluster.log == ["connected", "submitted a"]


def test_a_killed_task_is_tried_again_though_its_worker_could_still_save(tmp_path: Path) -> None:
    cluster = script({"a": [[report(3), {"result": asdict(STOPPED)}], [report(4), finish]]})
    found = launch(tmp_path, cluster, ["a"])[tmp_path / "a"]
    assert (found.status, found.attempts) == ("done", 2)


def test_a_requeued_run_goes_on(tmp_path: Path) -> None:
    cluster = script({"a": [[report(3), {"result": asdict(STOPPED)}, {"ended": 0}, None, report(4), finish]]})
    heard = Heard()
    assert launch(tmp_path, cluster, ["a"], heard)[tmp_path / "a"].status == "done"
    assert heard.said == [("a", ("step", 3)), ("a", ("step", 4)), ("a", ("done", 1))]


def test_bad_input_of_one_run_cancels_the_others(tmp_path: Path) -> None:
    cluster = script({"a": [[{"input_error": "what, where, what to do"}]], "b": [[None] * 9]})
    with pytest.raises(InputError, match="what, where, what to do"):
        launch(tmp_path, cluster, ["a", "b"])
    assert cluster.log[-1] == "cancelled b" or cluster.log[-1] == "cancelled a b"


def test_ctrl_c_cancels_all(tmp_path: Path) -> None:
    def interrupt(job: Job, what: Report | Outcome) -> None:
        raise KeyboardInterrupt

    cluster = script({"a": [[report(1)] + [None] * 9], "b": [[None] * 9]})
    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path, cluster, ["a", "b"], interrupt)
    assert cluster.log[-1] == "cancelled a b"


def test_a_disk_that_is_full_once_the_jobs_are_out_cancels_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise InputError(f"no space left while writing {path}")

    monkeypatch.setattr("layerrope.launching.slurm.write_json", full)
    cluster = script({"a": [[report(1)] * 9], "b": [[report(1)] * 9]})
    with pytest.raises(InputError, match="no space left"):
        launch(tmp_path, cluster, ["a", "b"])
    assert cluster.log[-1] == "cancelled a b"


def test_a_job_loads_torch_in_its_worker_alone() -> None:
    """Slurm's own process of a job only waits."""
    seen = "import sys, layerrope.launching.slurm_task; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert Task.__module__ == "layerrope.launching.slurm_task"


def test_jobs_of_an_earlier_call_are_followed_and_not_submitted_again(tmp_path: Path) -> None:
    cluster = script({"b": [[finish]]})
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / TICKET).write_text('{"job_id": "a:7"}')
    (tmp_path / "a" / REPORTS).write_text(json.dumps(report(2)) + "\n")
    (tmp_path / "c" / TICKET).write_text('{"job_id": "c:8"}')  # no longer queued
    cluster.acts["c"] = [[finish]]
    cluster.queue["a:7"] = (tmp_path / "a", [None, report(3), finish])
    heard = Heard()
    found = launch(tmp_path, cluster, ["a", "b", "c"], heard)
    assert cluster.log == ["connected", "submitted b c"]
    assert {outcome.status for outcome in found.values()} == {"done"}
    assert [kind for label, kind in heard.said if label == "a"] == [("step", 2), ("step", 3), ("done", 1)]


def test_with_nothing_left_to_train_no_cluster_is_asked(tmp_path: Path) -> None:
    cluster = script({})
    assert launch(tmp_path, cluster, []) == {}
    assert cluster.log == []


def test_a_line_that_is_half_there_is_read_when_it_is_whole(tmp_path: Path) -> None:
    line = json.dumps(report(4))

    def add(text: str) -> Callable[[Path], None]:
        def act(folder: Path) -> None:
            with open(folder / REPORTS, "a") as file:
                file.write(text)

        return act

    cluster = script({"a": [[add(line[:20]), add(line[20:] + "\n"), add('{"cut'), add("\n"), add('"word"\n'), finish]]})
    heard = Heard()
    assert launch(tmp_path, cluster, ["a"], heard)[tmp_path / "a"].status == "done"
    assert heard.said == [("a", ("step", 4)), ("a", ("done", 1))]


# ------------------------------------------------------------------------------------------------------------- options
def test_options_become_submitits_parameters() -> None:
    asked = SlurmOptions("gpu", time=60, array=3, memory=7.5, extra=("account=me", "nice=10=2"))
    assert asked.parameters(4, "cuda") == {
        "timeout_min": 60,
        "slurm_partition": "gpu",
        "slurm_array_parallelism": 3,
        "cpus_per_task": 4,
        "gpus_per_node": 1,
        "mem_gb": 7.5,
        "slurm_signal_delay_s": 90,
        "slurm_additional_parameters": {"account": "me", "nice": "10=2"},
        "name": "layerrope",
    }
    assert "gpus_per_node" not in SlurmOptions().parameters(1, "cpu")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--launch", "slum"], "did you mean slurm"),
        (["--launch", "slurm", "--slurm-time", "0"], "--slurm-time"),
        (["--launch", "slurm", "--slurm-array", "-1"], "--slurm-array"),
        (["--launch", "slurm", "--slurm-extra", "account"], "--slurm-extra"),
        (["--slurm-partition", "gpu"], "--slurm-partition is for --launch slurm"),
    ],
)
@pytest.mark.parametrize("command", [["study", "ladder", "--scale", "tiny"], ["compare"]])
def test_bad_options_are_refused_before_anything_is_read(
    command: list[str], words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert named in said
    assert said.count("\n") == 1


def test_without_submitit_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtra, match=r"layerrope\[slurm\]"):
        Slurm(tmp_path, {})


def test_without_slurm_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'layerrope[slurm]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="cannot submit to slurm from here"):
        Slurm(tmp_path, {"timeout_min": 1})


# --------------------------------------------------------------------------------------------------------------- tasks
def words(folder: Path, **changes: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    config = to_json(replace(TINY, **changes))
    return {"config": config, "run_dir": str(folder), "threads": 1, "device": "cpu", "until": None}


def await_step(folder: Path, alive: Callable[[], bool]) -> None:
    """Return when the worker in `folder` has made its first step."""
    while not (folder / REPORTS).exists() or b'"kind": "step"' not in (folder / REPORTS).read_bytes():
        assert alive()
        time.sleep(0.1)


class Processes(Slurm):
    """A cluster of one, without Slurm: submitit's local executor."""

    settle = 0.0

    def __init__(self, folder: Path, parameters: dict[str, Any]) -> None:
        here = {name: value for name, value in parameters.items() if not name.startswith("slurm_")}
        super().__init__(folder, here, "local")
        self.jobs: dict[str, Any] = {}

    def _ids(self, made: Sequence[Any]) -> list[str]:
        self.jobs |= {job.job_id: job for job in made}
        return super()._ids(made)

    def alive(self, ids: set[str]) -> set[str]:
        return {name for name in ids if name in self.jobs and not self.jobs[name].done()}

    def cancel(self, ids: Sequence[str]) -> None:
        for name in ids:
            self.jobs[name].cancel(check=False)


def test_submitits_local_executor_trains_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'layerrope[slurm]'")
    found = run_slurm(
        [job(tmp_path / "s", "a")],
        Heard(),
        folder=tmp_path / "slurm",
        options=SlurmOptions(time=5),
        cluster=Processes,
        poll=0.1,
    )[tmp_path / "s" / "a"]
    here = run_here([job(tmp_path / "h", "a")], Heard(), threads=1)[tmp_path / "h" / "a"]
    assert found.status == here.status == "done"
    losses = [[r["loss"] for r in read_metrics(tmp_path / w / "a" / "metrics.jsonl")] for w in ("s", "h")]
    assert losses[0] == losses[1]


WARNED = """
import json, signal, sys
from layerrope.launching.slurm_task import Task

task = Task(json.loads(sys.argv[1]))
signal.signal(signal.SIGUSR1, lambda number, frame: print(task.checkpoint().function.words == task.words, flush=True))
task()
"""


def test_near_the_limit_a_task_saves_and_says_what_to_requeue(tmp_path: Path) -> None:
    """The signal comes while the task waits for its worker, and the handler waits for the same worker."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'layerrope[slurm]'")
    folder = tmp_path / "r"
    said = json.dumps(words(folder, steps=10**9, checkpoint_every=0))
    task = subprocess.Popen([sys.executable, "-c", WARNED, said], stdout=subprocess.PIPE, text=True)
    await_step(folder, lambda: task.poll() is None)
    task.send_signal(signal.SIGUSR1)
    assert task.communicate()[0] == "True\n"
    assert task.returncode == 0
    *_, last, end = (json.loads(line) for line in (folder / REPORTS).read_text().splitlines())
    assert last["result"]["status"] == "interrupted"
    assert end == {"ended": 0}
    assert list((folder / "checkpoints").glob("step-*"))


def test_a_worker_that_is_killed_leaves_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    task = Task(words(folder, steps=10**9, checkpoint_every=0))
    work = threading.Thread(target=task)
    work.start()
    await_step(folder, work.is_alive)
    assert task.process is not None
    os.kill(task.process.pid, signal.SIGUSR2)  # Slurm signals the worker too, which takes no notice
    assert task.process.poll() is None
    task.process.kill()
    work.join()
    assert "ended by signal 9" in json.loads((folder / REPORTS).read_text().splitlines()[-1])["error"]
