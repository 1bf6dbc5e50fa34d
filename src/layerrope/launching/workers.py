"""How a worker process is started, and what its end says. Without torch: waiting for a worker costs next to nothing."""

from __future__ import annotations

import os
import signal
import sys

WORKER = (sys.executable, "-m", "layerrope.launching.worker")
LOG = "worker.log"
"""What a worker prints, in the run's folder."""


def worker_env(threads: int) -> dict[str, str]:
    """The environment of a worker with so many threads."""
    own = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    # one process compiles with one thread: a pool of compiler processes would take the other workers' cores
    return {**os.environ, **own, "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def died(code: int) -> str:
    """A worker's exit status in words."""
    if code < 0:
        hint = " (the system may have run out of memory)" if -code == signal.SIGKILL else ""
        return f"the worker was ended by signal {-code}, {signal.strsignal(-code)}{hint}"
    return f"the worker ended with status {code} and no result: see its {LOG}"
