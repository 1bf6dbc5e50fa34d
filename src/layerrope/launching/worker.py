"""`python -m layerrope.launching.worker`: one run in a process of its own.

A job comes as one JSON line on stdin; reports go out as JSON lines on stdout. The end of stdin means stop: it is
closed on purpose to stop a run, and by the system when the launcher dies, so no worker outlives it. Whatever
libraries print goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

from layerrope.errors import InputError, one_line
from layerrope.files import dumps
from layerrope.train import train
from layerrope.training.kinds import read_config
from layerrope.training.session import Report

QUIET = 0.25
"""Seconds between reports of plain steps."""


class Line:
    """The way out: one JSON object a line, and the time of the last plain step reported."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.last = 0.0

    def send(self, **message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the launcher died: nobody listens, but the run is still saved
            self.out.write(dumps(message, indent=None) + "\n")
            self.out.flush()

    def report(self, report: Report) -> None:
        """Pass a report on; plain steps only every `QUIET` seconds."""
        now = time.monotonic()
        if report.kind != "step" or report.row is not None or now - self.last >= QUIET:
            self.last = now
            self.send(report=dataclasses.asdict(report))


def watch(stream: TextIO) -> threading.Event:
    """An event that is set when `stream` ends."""
    ended = threading.Event()

    def read() -> None:
        while stream.readline():
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def run(job: dict[str, object], line: Line, ended: threading.Event) -> None:
    """Train the job, to its end, to `until` updates, or to the end of stdin; the last line says how it ended."""
    until, steps = job["until"], 0

    def progress(report: Report) -> None:
        nonlocal steps
        steps = report.step
        line.report(report)

    def stop() -> bool:
        return ended.is_set() or (isinstance(until, int) and steps >= until)

    try:
        config = read_config(job["config"])
        threads = int(str(job["threads"]))
        run_dir = Path(str(job["run_dir"]))
        result = train(config, run_dir, device=str(job["device"]), threads=threads, progress=progress, stop=stop)
        line.send(result=dataclasses.asdict(result))
    except InputError as error:
        line.send(input_error=str(error))
    except Exception as error:
        traceback.print_exc()
        line.send(error=one_line(error))


def main() -> None:
    """Read one job, run it."""
    line = Line(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    run(job, line, watch(sys.stdin))


if __name__ == "__main__":
    main()
