"""Where runs go: this process, or local worker processes with a fixed number of threads each.

Both launchers take the same jobs and tell a listener what happens. A run that crashes is tried once more from its
last checkpoint and does not stop the others; bad input stops them all; Ctrl-C stops them all, each with a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerrope.errors import InputError, one_line
from layerrope.train import train
from layerrope.training import checkpoint
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import Result
from layerrope.training.session import Report

ATTEMPTS = 2
"""How often a run that crashes is started in all."""
SHORTEST = 50
"""Updates: a piece with fewer is not worth a process of its own."""


@dataclass(frozen=True)
class Job:
    """One run to be trained in a folder."""

    run_dir: Path
    config: TrainConfig
    label: str = ""
    """what progress lines call it"""
    cost: float = 1.0
    """of one step, relative to the other jobs"""


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: str
    """done, diverged, interrupted or failed (crashed every time)"""
    result: Result | None = None
    error: str | None = None
    attempts: int = 1

    @property
    def final(self) -> bool:
        """Nothing is left to train: done, diverged, or given up."""
        return self.status != "interrupted"


Listener = Callable[[Job, Report | Outcome], None]
"""Told every report of a run and, once a run has ended for this launch, its outcome."""


def run_here(
    jobs: Sequence[Job], listen: Listener, *, device: str = "cpu", threads: int | None = None
) -> dict[Path, Outcome]:
    """Train the jobs one after another in this process. Ctrl-C ends the run at hand with a checkpoint.

    Returns:
        The outcome of every job, by its folder.

    Raises:
        InputError: a job that cannot be trained as it is; the jobs before it are done.
        KeyboardInterrupt: the user stopped; everything done is kept.
    """
    outcomes: dict[Path, Outcome] = {}
    for job in jobs:
        outcome = _attempts(job, listen, device, threads)
        listen(job, outcome)
        outcomes[job.run_dir] = outcome
        if not outcome.final:
            raise KeyboardInterrupt
    return outcomes


def _attempts(job: Job, listen: Listener, device: str, threads: int | None) -> Outcome:
    outcome = Outcome("failed")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            result = train(job.config, job.run_dir, device=device, threads=threads, progress=lambda r: listen(job, r))
            return Outcome(result.status, result, result.error, attempt)
        except InputError:
            raise
        except Exception as error:  # whatever it was, the other runs go on, and the record says it
            outcome = Outcome("failed", error=one_line(error), attempts=attempt)
    return outcome


# ---------------------------------------------------------------------------------------------------- how to share
@dataclass(frozen=True)
class Part:
    """A job up to `until` updates (None: to its end), and what that costs from where the job now is."""

    job: Job
    until: int | None
    cost: float


def share(jobs: Sequence[Job], workers: int) -> list[Part]:
    """The jobs as parts that keep all workers busy to the end   (McNaughton 1959, the wrap-around rule)

    Laid end to end and cut into equal lengths, one a worker, at most `workers - 1` jobs are cut in two. The piece
    after a cut comes first on the next worker, the piece before it last on this one, so the two halves of a run
    never overlap in time as long as no run is longer than a worker's share.
    """
    left = [_steps_left(job) for job in jobs]
    costs = [steps * job.cost for job, steps in zip(jobs, left, strict=True)]
    length = max([sum(costs) / max(workers, 1), *costs], default=0.0)
    parts: list[Part] = []
    start = 0.0
    for job, steps, cost in zip(jobs, left, costs, strict=True):
        boundary = length * (1 + start // length) if length else 0.0
        before = boundary - start
        first_steps = round((cost - before) / job.cost) if before < cost else 0
        if SHORTEST <= first_steps <= steps - SHORTEST:
            parts.append(Part(job, job.config.steps - steps + first_steps, first_steps * job.cost))
            parts.append(Part(job, None, (steps - first_steps) * job.cost))
        else:
            parts.append(Part(job, None, cost))
        start += cost
    return parts


def _steps_left(job: Job) -> int:
    """Updates that the job still has to make, by the checkpoints in its folder."""
    saved = checkpoint.steps(job.run_dir / "checkpoints")
    return max(job.config.steps - (int(saved[-1].name.removeprefix("step-")) if saved else 0), 1)


class Queue:
    """The parts still to be done. Two parts of one run are never out at the same time."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.waiting = list(parts)

    def take(self, busy: set[Path]) -> Part | None:
        """The next part: one that ends at a cut before any other, then the most expensive, whose run is not busy."""
        opened = {part.job.run_dir for part in self.waiting if part.until is not None}
        free = [
            part
            for part in self.waiting
            if part.job.run_dir not in busy and (part.until is not None or part.job.run_dir not in opened)
        ]
        if not free:
            return None
        part = max(free, key=lambda part: (part.until is not None, part.cost))
        self.waiting.remove(part)
        return part

    def again(self, part: Part) -> None:
        """Put a part back, to be taken next."""
        self.waiting.insert(0, replace(part, cost=float("inf")))

    def drop(self, job: Job) -> None:
        """Forget the rest of a run that has ended."""
        self.waiting = [part for part in self.waiting if part.job.run_dir != job.run_dir]


# -------------------------------------------------------------------------------------------------------- machine
def available_cores() -> int:
    """Cores that this process may use: the machine's, less what the affinity mask or a container's quota withholds."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed
