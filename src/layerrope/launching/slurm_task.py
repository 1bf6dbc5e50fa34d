"""What runs inside of a Slurm job: one worker, kept to its end, saved and requeued near the time limit.

submitit sends a `Task` by this module's name. It needs no torch: of a job's two processes only the worker loads that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from layerrope.files import dumps
from layerrope.launching.workers import LOG, WORKER, died, worker_env

REPORTS = "slurm.jsonl"
"""What the worker says, in the run's folder."""


class Task:
    """What runs in the job: one worker from start to end. Submitted by value; submitit calls it."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.words = words
        self.process: subprocess.Popen[str] | None = None

    def __call__(self) -> None:
        """Train until the worker ends. How it ended stands in the run's folder.

        The last line is the task's own: where it is missing, the task was killed, even if its worker could still save.
        """
        folder = Path(self.words["run_dir"])
        with open(folder / REPORTS, "a", encoding="utf-8") as out, open(folder / LOG, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                WORKER,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                env=worker_env(int(self.words["threads"])),
                text=True,
                encoding="utf-8",
                preexec_fn=_ignore_warning,
            )
            assert self.process.stdin is not None
            self.process.stdin.write(dumps(self.words, indent=None) + "\n")
            self.process.stdin.flush()
            _await_end(self.process)
            code = self.process.wait()
            out.write(dumps({"ended": code} | ({"error": died(code)} if code else {}), indent=None) + "\n")

    def checkpoint(self) -> Any:
        """Called by submitit when the time limit is near: save, and say what to requeue."""
        import submitit  # pyright: ignore[reportMissingImports]

        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            _await_end(self.process)
        return submitit.helpers.DelayedSubmission(Task(self.words))


def _await_end(process: subprocess.Popen[str]) -> None:
    """Return when the process has ended, without taking note of it.

    `Popen.wait` holds a lock while it waits: called again by a signal handler on top of itself, it would never return.
    """
    with contextlib.suppress(ChildProcessError):  # taken note of already
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _ignore_warning() -> None:
    """Slurm signals every process of a step; the warning is the task's, and would end a worker at once."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
