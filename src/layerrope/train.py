"""One training run: `train(TrainConfig(...), "runs/name")`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import FrameType

import torch

from layerrope.ranks.parallel import form_of
from layerrope.ranks.ranks import Ranks
from layerrope.training import machine
from layerrope.training.kinds import Data, check_fits, load
from layerrope.training.recipe import TrainConfig, run_key, to_json
from layerrope.training.run_folder import Result, RunFolder, read_result, versions
from layerrope.training.session import Callback, Probe, Report, Session
from layerrope.training.tracking import check_trackers, start_trackers

__all__ = ["Callback", "Probe", "Report", "Result", "TrainConfig", "run_key", "train"]


def train(
    config: TrainConfig,
    run_dir: str | os.PathLike[str],
    *,
    device: str = "cpu",
    threads: int | None = None,
    resume: bool = True,
    progress: Callback | None = None,
    track: Sequence[str] = (),
    data: Data | None = None,
    stop: Callable[[], bool] | None = None,
    probes: Sequence[Probe] | None = None,
    ranks: Ranks | None = None,
    parallel: str = "auto",
) -> Result:
    """Train `config` in `run_dir`, from its newest sound checkpoint if it has one; a finished run is only read.

    Args:
        config: the run. The same config gives the same numbers, bit for bit, cut anywhere and resumed or not.
            `LoopedTrainConfig` and `VisionTrainConfig` of `layerrope.training.kinds` are configs of runs too.
        run_dir: holds one run: config.json, metrics.jsonl, checkpoints/, result.json.
        device: "cpu", "cuda", "cuda:1".
        threads: for torch's operators, during this call; None: as they are.
        resume: False removes the run that `run_dir` holds and starts over.
        progress: called after every step. Without it, remarks are Python warnings.
        track: of "tensorboard", "wandb", "trackio".
        data: the loaded data of config.data, to share among runs; None loads it.
        stop: asked after every step; True saves a checkpoint and ends the call. SIGINT and SIGTERM do the same
            where this is the main thread (a second one ends the process at once).
        probes: run every `config.probe_every` steps, outside of any compiled graph; None: the cheap ones of
            `layerrope.probes`.
        ranks: of a run on several devices, one process each, which all make the same call. None: this process alone.
        parallel: "ddp" (a copy of the model on every rank), "fsdp" (in shards), or "auto" (copies of a small model).

    Returns:
        The result. A run that diverged is one too (`status`, `diverged_at`), not an exception.

    Raises:
        InputError: a device, precision, tracker, data set or run directory that does not fit; a full disk.
    """
    ranks = Ranks() if ranks is None else ranks
    folder = RunFolder(run_dir)
    with ranks.together():
        where = machine.check_machine(device, config.precision)
        check_trackers(track)
        form_of(parallel, config, ranks)
    _agree(ranks, config, parallel, str(folder.path), where)
    done = _finished(ranks, folder, config) if resume else None
    if done is not None:
        return done
    with ranks.together():
        data = load(config) if data is None else data
        check_fits(config, data)
    ranks.check_same("data", data.summary(), "give every rank the same text")
    with _held(ranks, folder, resume), machine.threads(threads), torch.random.fork_rng(_cuda(where)):
        chosen = _default_probes() if probes is None else probes
        session = Session(config, folder, where, data, _heard(ranks, progress), chosen, ranks, parallel)
        session.start()
        facts = folder.path, run_key(config), to_json(config), session.at.steps
        with start_trackers(track if ranks.main else (), *facts) as trackers, _interrupts(ranks) as interrupted:
            return session.run(lambda: interrupted() or (stop is not None and stop()), trackers)


def _agree(ranks: Ranks, config: TrainConfig, parallel: str, run_dir: str, where: torch.device) -> None:
    """Raise InputError on every rank unless all of them were started for the same run."""
    settings = to_json(config) | {"parallel": parallel, "run_dir": run_dir, "device": where.type}
    ranks.check_same("config", settings, "start every rank with the same command")
    software = {name: versions()[name] for name in ("layerrope", "torch")}
    ranks.check_same("software", software, "install the same on every machine")


def _finished(ranks: Ranks, folder: RunFolder, config: TrainConfig) -> Result | None:
    """The result, if the run in `folder` is over, as rank 0 reads it."""
    done = None
    with ranks.together():
        if ranks.main:
            folder.check(config)
            done = read_result(folder.path)
    done = ranks.tell(None if done is None else asdict(done))
    return None if done is None else Result(**done)


@contextlib.contextmanager
def _held(ranks: Ranks, folder: RunFolder, resume: bool) -> Iterator[None]:
    """The run's folder, locked by rank 0, and emptied where the run does not go on."""
    with contextlib.ExitStack() as held:
        with ranks.together():
            if ranks.main:
                held.enter_context(folder.locked())
                if not resume:
                    folder.clear()
        yield


def _heard(ranks: Ranks, progress: Callback | None) -> Callback | None:
    """Rank 0 alone reports; what the others would say, it says too."""
    return progress if ranks.main else lambda report: None


def _default_probes() -> Sequence[Probe]:
    from layerrope.probes import TrainingProbe

    return (TrainingProbe(),)


def _cuda(device: torch.device) -> list[int]:
    """The CUDA devices whose random state the run uses."""
    return [device.index or 0] if device.type == "cuda" else []


@contextlib.contextmanager
def _interrupts(ranks: Ranks) -> Iterator[Callable[[], bool]]:
    """Inside, the first SIGINT or SIGTERM is only noted (the yielded function tells); a second one interrupts.

    Among ranks all are only noted: on Ctrl-C each rank gets one from the terminal and one from the launcher, which
    also ends what takes too long.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught and ranks.world == 1:
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
