"""The local launcher: one worker process a run, several at a time, each with its own fixed number of threads."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerrope.errors import InputError
from layerrope.files import dumps, unwritable
from layerrope.launching.launch import ATTEMPTS, Job, Listener, Outcome, Part, Queue, share
from layerrope.launching.workers import LOG, WORKER, died, worker_env
from layerrope.training.recipe import to_json
from layerrope.training.run_folder import Result
from layerrope.training.session import Report

GRACE = 120.0
"""Seconds that workers get to save their state after Ctrl-C (one that is compiling first finishes that)."""


def run_local(
    jobs: Sequence[Job],
    listen: Listener,
    *,
    workers: int,
    threads: int = 1,
    device: str = "cpu",
    command: Sequence[str] = WORKER,
) -> dict[Path, Outcome]:
    """Train the jobs in processes of their own, several at a time; what a run prints goes to its worker.log.

    Args:
        jobs: what to train.
        listen: told what happens.
        workers: processes at once.
        threads: of each process.
        device: as `train` takes it.
        command: that starts a worker; it speaks the protocol of `layerrope.launching.worker`.

    Returns:
        The outcome of every job, by its folder.

    Raises:
        InputError: a job that cannot be trained as it is, or a full disk; the others have saved their state.
        KeyboardInterrupt: Ctrl-C; every run has saved its state. A second one ends the workers at once.
    """
    pool = Pool(jobs, listen, workers, {"threads": threads, "device": device}, command)
    try:
        pool.work()
    except BaseException:
        pool.stop()
        raise
    return pool.outcomes


class Worker:
    """One process with the part it trains. Its messages go to the shared queue; None is its end."""

    def __init__(
        self, part: Part, inbox: queue.Queue[tuple[Worker, Any]], options: dict[str, Any], command: Sequence[str]
    ) -> None:
        self.part = part
        self.last: dict[str, Any] = {}
        job = part.job
        words = {"config": to_json(job.config), "run_dir": str(job.run_dir), **options}
        self.process = _start(job.run_dir, options["threads"], command)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its end tells
            self.process.stdin.write(dumps({**words, "until": part.until}, indent=None) + "\n")
            self.process.stdin.flush()
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue[tuple[Worker, Any]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, line))
        self.process.wait()
        inbox.put((self, None))

    def close(self) -> None:
        """Ask it to stop with a checkpoint."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def outcome(self, attempt: int) -> Outcome:
        """How it ended, from its last words or its exit status. Raises InputError when it could not start at all."""
        if "input_error" in self.last:
            raise InputError(self.last["input_error"])
        if "result" in self.last:
            result = Result(**self.last["result"])
            return Outcome(result.status, result, result.error, attempt)
        return Outcome("failed", error=self.last.get("error") or died(self.process.returncode), attempts=attempt)


def _start(run_dir: Path, threads: int, command: Sequence[str]) -> subprocess.Popen[str]:
    """A worker process in a session of its own, so that the terminal's Ctrl-C reaches only the launcher."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(run_dir / LOG, "a", encoding="utf-8") as log:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_env(threads),
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
    except OSError as error:
        raise unwritable(run_dir, error) from error


class Pool:
    """The workers that run now, the parts that wait, and the outcomes so far."""

    def __init__(
        self, jobs: Sequence[Job], listen: Listener, workers: int, options: dict[str, Any], command: Sequence[str]
    ) -> None:
        self.listen, self.workers, self.options, self.command = listen, workers, options, command
        self.queue = Queue(share(jobs, workers))
        self.inbox: queue.Queue[tuple[Worker, Any]] = queue.Queue()
        self.running: list[Worker] = []
        self.attempts: dict[Path, int] = {job.run_dir: 1 for job in jobs}
        self.outcomes: dict[Path, Outcome] = {}

    def work(self) -> None:
        """Until every job has an outcome."""
        while True:
            self._fill()
            if not self.running:
                return
            self._handle(*self.inbox.get())

    def _fill(self) -> None:
        while len(self.running) < self.workers:
            part = self.queue.take({worker.part.job.run_dir for worker in self.running})
            if part is None:
                return
            self.running.append(Worker(part, self.inbox, self.options, self.command))

    def _handle(self, worker: Worker, line: str | None) -> None:
        job = worker.part.job
        if line is None:
            self.running.remove(worker)
            self._ended(job, worker)
            return
        with contextlib.suppress(json.JSONDecodeError):  # a line cut short by the end of its process
            worker.last = json.loads(line)
        if "report" in worker.last:
            self.listen(job, Report(**worker.last["report"]))

    def _ended(self, job: Job, worker: Worker) -> None:
        attempt = self.attempts[job.run_dir]
        outcome = worker.outcome(attempt)
        if outcome.status == "failed" and attempt < ATTEMPTS:
            self.attempts[job.run_dir] += 1
            self.queue.again(worker.part)
            self.listen(job, Report("note", 0, job.config.steps, text=f"{outcome.error}; trying once more"))
            return
        if outcome.status == "interrupted" and worker.part.until is not None:
            return  # the rest of it waits in the queue
        self.queue.drop(job)
        self.outcomes[job.run_dir] = outcome
        self.listen(job, outcome)

    def stop(self) -> None:
        """Let every worker save its state and end; one that takes longer than `GRACE`, or a second Ctrl-C, kills."""
        for worker in self.running:
            worker.close()
        try:
            deadline = time.monotonic() + GRACE
            for worker in self.running:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
        finally:
            for worker in self.running:
                if worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait()
