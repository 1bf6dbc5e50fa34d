"""The Slurm launcher on a real Slurm of one node, started by `one_node.sh`; skipped where there is none to start.

pytest tests/slurm                  arrays, a run killed in the middle, cancelling, going on
pytest tests/slurm -m opt_in        also the time limit's signal and requeue, after which Slurm waits for over 2 min
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.launching.launch import Job, Outcome, run_here
from layerrope.launching.slurm import SlurmOptions, run_slurm
from layerrope.training.recipe import TrainConfig
from layerrope.training.session import Report

SCRIPT = Path(__file__).parent / "one_node.sh"
MODEL = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=8, seq_len=16)
TINY = TrainConfig(
    model=MODEL, data=DataConfig(seq_len=16), steps=6, batch_size=2, log_every=2, eval_tokens=64, checkpoint_every=0
)
ENDLESS = replace(TINY, steps=10**8, checkpoint_every=100)
OPTIONS = SlurmOptions(time=10)


def reason_to_skip() -> str | None:
    path = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
    for name in ("slurmctld", "slurmd", "munged", "sbatch"):
        if shutil.which(name, path=path) is None:
            return f"no Slurm to test with: {name} is not installed (Debian: slurm-wlm and munge)"
    return None if os.geteuid() == 0 else "a Slurm of one node is started as root only"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running Slurm; jobs are submitted to it from here."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'layerrope[slurm]'")
    why = reason_to_skip()
    if why is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("one-node")
    log = folder.with_name(f"{folder.name}.log")  # a file: the daemons would keep a pipe open
    with open(log, "w") as out:
        started = subprocess.run([str(SCRIPT), "start", str(folder)], stdout=out, stderr=out, check=False)
    if started.returncode:
        pytest.skip(f"Slurm does not start here: {' '.join(log.read_text().split())[-300:]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield folder
        subprocess.run(["scancel", "--me"], check=False)
        subprocess.run([str(SCRIPT), "stop", str(folder)], check=False)


def launch(
    folder: Path, runs: dict[str, TrainConfig], listen: object, options: SlurmOptions = OPTIONS
) -> dict[str, Outcome]:
    jobs = [Job(folder / name, config, name) for name, config in runs.items()]
    found = run_slurm(jobs, listen, folder=folder / "slurm", options=options, poll=0.5)  # type: ignore[arg-type]
    return {path.name: outcome for path, outcome in found.items()}


def ticket(job: Job) -> str:
    """The Slurm job that trains the run now."""
    return json.loads((job.run_dir / "slurm.json").read_text())["job_id"]


def kill(number: str) -> None:
    """End every process of a job at once, as a node does that fails; scancel would be gentler."""
    raw = subprocess.run(["squeue", "-h", "-j", number, "-o", "%A"], capture_output=True, text=True, check=True).stdout
    listed = subprocess.run(["scontrol", "listpids", raw.strip()], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines()[1:]:
        pid, _, step = line.split()[:3]
        if step != "extern" and int(pid) > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


class Hand:
    """A listener that reaches into the run called "killed": once another run is done, it kills the job at its first
    checkpoint, and cancels the second one as soon as that is at work."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[str] = []
        self.killed: set[str] = set()

    def __call__(self, job: Job, what: Report | Outcome) -> None:
        if isinstance(what, Outcome):
            self.done.append(job.label)
        elif job.label == "killed":
            self._act(job, what)

    def _act(self, job: Job, report: Report) -> None:
        if report.kind == "note":
            self.notes.append(report.text)
        number = ticket(job)
        saved = list(job.run_dir.glob("checkpoints/step-*"))
        if report.kind != "step" or number in self.killed or not self.done or not saved:
            return
        self.killed.add(number)
        if len(self.killed) == 1:
            kill(number)
        else:
            subprocess.run(["scancel", number], check=True)


def test_an_array_trains_and_a_job_killed_in_the_middle_goes_on(slurm: Path, tmp_path: Path) -> None:
    hand = Hand()
    found = launch(tmp_path, {"short": TINY, "killed": ENDLESS}, hand)
    assert hand.done == ["short", "killed"]  # the first was collected while the other was still at work
    (wanted,) = run_here([Job(tmp_path / "here", TINY)], lambda job, what: None, threads=1).values()
    short = found["short"]
    assert (short.status, short.attempts, wanted.status) == ("done", 1, "done")
    assert short.result is not None
    assert wanted.result is not None
    assert short.result.val_loss == wanted.result.val_loss
    assert any("trying once more" in note for note in hand.notes)
    assert any("resumed at step" in note for note in hand.notes)
    assert (found["killed"].status, found["killed"].attempts) == ("interrupted", 2)
    saved = found["killed"].result
    assert saved is not None
    assert (tmp_path / "killed" / "checkpoints" / f"step-{saved.step}").is_dir()


def test_what_slurm_refuses_is_one_line(slurm: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Slurm refused the jobs: .*artition") as caught:
        launch(tmp_path, {"a": TINY}, lambda job, what: None, SlurmOptions("no-such", time=10))
    assert "\n" not in str(caught.value)


class Warned(Hand):
    """Sends the one signal that Slurm sends near the time limit, then cancels what has come back."""

    def _act(self, job: Job, report: Report) -> None:
        if report.kind == "note":
            self.notes.append(report.text)
        if report.kind == "step" and not self.killed:
            self.killed.add("warned")
            subprocess.run(["scancel", "--signal=USR2", ticket(job)], check=True)
        elif report.kind == "step" and self.notes and "cancelled" not in self.killed:
            self.killed.add("cancelled")
            subprocess.run(["scancel", ticket(job)], check=True)


@pytest.mark.opt_in
def test_near_its_time_limit_a_run_saves_is_requeued_and_goes_on(
    slurm: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "opt_in" not in (request.config.option.markexpr or ""):
        pytest.skip("Slurm waits over two minutes before a requeued job starts: run with -m opt_in")
    hand = Warned()
    found = launch(tmp_path, {"killed": replace(ENDLESS, checkpoint_every=0)}, hand)["killed"]
    assert any("resumed at step" in note for note in hand.notes)
    assert (found.status, found.attempts) == ("interrupted", 1)  # one job all the time
