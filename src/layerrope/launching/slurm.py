"""The Slurm launcher: every run is a task of a job array, submitted through submitit.

A task keeps one `layerrope.launching.worker` at work. Shortly before its time limit Slurm sends a signal: the worker
saves its state, the task puts itself back into the queue, and goes on from there. A preempted or requeued task does the
same. A run whose worker or job dies is submitted once more. What a worker reports goes to a file in the run's folder,
which the launcher follows, so results come as they are made; the results that submitit pickles are never opened.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerrope.errors import InputError, MissingExtra, in_full, reason
from layerrope.files import read_json, unwritable, write_json
from layerrope.launching.launch import ATTEMPTS, Job, Listener, Outcome
from layerrope.launching.processes import GRACE
from layerrope.launching.slurm_task import REPORTS, Task
from layerrope.launching.workers import LOG
from layerrope.training.recipe import to_json
from layerrope.training.run_folder import Result, read_result
from layerrope.training.session import Report

TICKET = "slurm.json"
"""The id of the job that trains the run, while there is one."""
REQUEUES = 10_000
"""How often a run may reach its time limit."""


@dataclass(frozen=True)
class SlurmOptions:
    """What is asked of Slurm for every run."""

    partition: str | None = None
    time: int = 24 * 60
    """minutes; a run that needs more saves its state, is requeued and goes on"""
    array: int = 64
    """runs at once"""
    cpus: int | None = None
    """cores for each run; None: as many as its threads"""
    gpus: int | None = None
    """GPUs for each run; None: one where the device is a GPU"""
    memory: float | None = None
    """GB for each run; None: the partition's default"""
    extra: tuple[str, ...] = ()
    """further sbatch options, each NAME=VALUE: account=me, qos=low"""
    warning: int = 90
    """seconds between the signal and the time limit: time to save"""

    def __post_init__(self) -> None:
        for name in ("time", "array", "cpus", "warning"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--slurm-{name} must be at least 1: got {value}")
        for word in self.extra:
            if not all(word.partition("=")[::2]):
                raise InputError(f"--slurm-extra takes NAME=VALUE, as in account=me: got {word!r}")

    def parameters(self, threads: int, device: str) -> dict[str, Any]:
        """As submitit takes them."""
        gpus = self.gpus if self.gpus is not None else int(device.startswith("cuda"))
        asked = {
            "timeout_min": self.time,
            "slurm_partition": self.partition,
            "slurm_array_parallelism": self.array,
            "cpus_per_task": self.cpus or threads,
            "gpus_per_node": gpus or None,
            "mem_gb": self.memory,
            "slurm_signal_delay_s": self.warning,
            "slurm_additional_parameters": dict(word.split("=", 1) for word in self.extra) or None,
            "name": "layerrope",
        }
        return {name: value for name, value in asked.items() if value is not None}


# -------------------------------------------------------------------------------------------------------- the cluster
class Slurm:
    """Submits to Slurm and asks it what is queued. Works without an accounting database."""

    settle = 20.0
    """Seconds that files of a job which has ended may take to appear on a shared disk."""

    def __init__(self, folder: Path, parameters: dict[str, Any], cluster: str = "slurm") -> None:
        try:
            import submitit  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra("submitit", "slurm") from error
        try:
            limit = {"slurm_max_num_timeout": REQUEUES} if cluster == "slurm" else {}
            self.executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **limit)
            self.executor.update_parameters(**parameters)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"cannot submit to {cluster} from here ({reason(error)})") from error
        except OSError as error:
            raise unwritable(folder, error) from error

    def submit(self, tasks: Sequence[Task]) -> list[str]:
        """One array; the ids of its jobs. Raises InputError where Slurm refuses it."""
        try:
            with self.executor.batch():
                made = [self.executor.submit(task) for task in tasks]
        except Exception as error:  # submitit has several kinds, each with what sbatch said
            raise InputError(f"Slurm refused the jobs: {in_full(error)[-300:]}") from error
        return self._ids(made)

    def _ids(self, made: Sequence[Any]) -> list[str]:
        return [job.job_id for job in made]

    def alive(self, ids: set[str]) -> set[str]:
        """Those of `ids` that wait or run; all of them where Slurm does not answer just now."""
        asked = ["squeue", "--me", "--noheader", "--array", "--format", "%i"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return ids if done.returncode else ids & set(done.stdout.split())

    def cancel(self, ids: Sequence[str]) -> None:
        """Ask the jobs to end; their workers get a moment to save."""
        if ids:
            subprocess.run(["scancel", *ids], capture_output=True, check=False)


# ------------------------------------------------------------------------------------------------------- the launcher
def run_slurm(
    jobs: Sequence[Job],
    listen: Listener,
    *,
    folder: Path,
    options: SlurmOptions,
    threads: int = 1,
    device: str = "cpu",
    cluster: type[Slurm] = Slurm,
    poll: float = 10.0,
) -> dict[Path, Outcome]:
    """Train the jobs on a Slurm cluster that sees the same folders.

    Runs whose job of an earlier call is still queued are followed, not submitted again.

    Args:
        jobs: what to train.
        listen: told what happens.
        folder: of Slurm's output and submitit's files.
        options: what is asked of Slurm.
        threads: of each run. device: as `train` takes it.
        cluster: who takes the jobs. poll: seconds between looks at them.

    Returns:
        The outcome of every job, by its folder. "interrupted" where somebody cancelled it: the same call continues.

    Raises:
        InputError: no Slurm here, it refuses the jobs, or a run cannot be trained as it is; the others are cancelled.
        KeyboardInterrupt: Ctrl-C; the jobs are cancelled, each with its state saved.
    """
    if not jobs:
        return {}
    taker = cluster(folder, options.parameters(threads, device))
    fleet = Fleet(taker, listen, {"threads": threads, "device": device, "until": None}, poll)
    try:
        fleet.work(jobs)
    except BaseException:
        fleet.stop()
        raise
    return fleet.outcomes


@dataclass
class Followed:
    """A run in the queue or at work: its job, and how far its reports have been read."""

    job: Job
    id: str
    attempt: int = 1
    read: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    """the last thing its worker said"""
    ended: bool = False
    """the task says that its worker has ended"""
    gone: float | None = None
    """when its job was first seen to have ended"""


class Fleet:
    """The runs that are out, and the outcomes so far."""

    def __init__(self, cluster: Slurm, listen: Listener, words: dict[str, Any], poll: float) -> None:
        self.cluster, self.listen, self.words, self.poll = cluster, listen, words, poll
        self.out: dict[Path, Followed] = {}
        self.outcomes: dict[Path, Outcome] = {}

    def work(self, jobs: Sequence[Job]) -> None:
        """Until every job has an outcome."""
        self._take_up(jobs)
        self._submit([job for job in jobs if job.run_dir not in self.out])
        while self.out:
            alive = self.cluster.alive({run.id for run in self.out.values()})
            for run in list(self.out.values()):
                self._follow(run)
                if run.id not in alive:
                    self._ended(run)
            if self.out:
                time.sleep(self.poll)

    def _take_up(self, jobs: Sequence[Job]) -> None:
        """Follow the jobs of an earlier call that are still there."""
        tickets = {job.run_dir: _ticket(job.run_dir) for job in jobs}
        alive = self.cluster.alive({ticket for ticket in tickets.values() if ticket})
        for job in jobs:
            ticket = tickets[job.run_dir]
            if ticket in alive:
                self.out[job.run_dir] = Followed(job, ticket)

    def _submit(self, jobs: Sequence[Job], attempt: int = 1) -> None:
        if not jobs:
            return
        for job in jobs:
            _fresh(job.run_dir)
        said = [{"config": to_json(job.config), "run_dir": str(job.run_dir.resolve()), **self.words} for job in jobs]
        numbers = self.cluster.submit([Task(words) for words in said])
        runs = [Followed(job, number, attempt) for job, number in zip(jobs, numbers, strict=True)]
        self.out |= {run.job.run_dir: run for run in runs}  # all of them, so that a full disk below cancels all
        for run in runs:
            write_json(run.job.run_dir / TICKET, {"job_id": run.id})

    def _follow(self, run: Followed) -> None:
        """Pass on what the worker has reported since the last look."""
        try:
            with open(run.job.run_dir / REPORTS, "rb") as file:
                file.seek(run.read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:  # not begun, or not here yet
            return
        run.read += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                said = json.loads(line)
            except ValueError:  # a line that a kill cut short, with the next one behind it
                continue
            if isinstance(said, dict):
                self._hear(run, said)

    def _hear(self, run: Followed, said: dict[str, Any]) -> None:
        run.ended = "ended" in said
        run.last = said if run.last.keys().isdisjoint(_LAST_WORDS) or not run.ended else run.last
        if "report" in said:
            self.listen(run.job, Report(**said["report"]))

    def _ended(self, run: Followed) -> None:
        """The job has left the queue: its outcome, or a second attempt."""
        outcome = _outcome(run)
        run.gone = time.monotonic() if run.gone is None else run.gone
        if outcome.status == "failed" and time.monotonic() - run.gone < self.cluster.settle:
            return
        del self.out[run.job.run_dir]
        if outcome.status == "failed" and run.attempt < ATTEMPTS:
            said = Report("note", 0, run.job.config.steps, text=f"{outcome.error}; trying once more")
            self.listen(run.job, said)
            self._submit([run.job], run.attempt + 1)
            return
        (run.job.run_dir / TICKET).unlink(missing_ok=True)
        self.outcomes[run.job.run_dir] = outcome
        self.listen(run.job, outcome)

    def stop(self) -> None:
        """Cancel what is out and give it time to save."""
        self.cluster.cancel([run.id for run in self.out.values()])
        end = time.monotonic() + GRACE
        try:
            while time.monotonic() < end and self.cluster.alive({run.id for run in self.out.values()}):
                time.sleep(min(self.poll, 1.0))
        except KeyboardInterrupt:
            pass


_LAST_WORDS = frozenset({"result", "error", "input_error"})
"""What a worker says in its last line."""


def _ticket(run_dir: Path) -> str | None:
    """The id of the job that an earlier call gave the run to, if it has not ended since."""
    path = run_dir / TICKET
    found = read_json(path) if path.exists() else None
    return found["job_id"] if isinstance(found, dict) and isinstance(found.get("job_id"), str) else None


def _fresh(run_dir: Path) -> None:
    """The run's folder, without the reports of an earlier job."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / REPORTS).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(run_dir, error) from error


def _outcome(run: Followed) -> Outcome:
    """How a run whose job has ended stands, by its folder and its worker's last words.

    Raises InputError when it could not start at all.
    """
    result = read_result(run.job.run_dir)
    if result is not None:
        return Outcome(result.status, result, result.error, run.attempt)
    last = run.last
    if "input_error" in last:
        raise InputError(str(last["input_error"]))
    if "result" in last and run.ended:  # somebody asked it to stop, and it has saved its state
        stopped = Result(**last["result"])
        return Outcome(stopped.status, stopped, stopped.error, run.attempt)
    error = str(last.get("error") or f"job {run.id} ended without a result: see {run.job.run_dir.name}/{LOG}")
    return Outcome("failed", error=error, attempts=run.attempt)
