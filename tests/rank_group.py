"""Several gloo ranks on this machine for the tests, and what they do.

The processes come from a server that has torch imported already, so that a group is up in a moment.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed import TCPStore
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from toy_run import Toy, toy_config, until

from layerrope.__main__ import guarded, main
from layerrope.commands.train import EXIT
from layerrope.errors import InputError
from layerrope.ranks.place import rank_place
from layerrope.ranks.ranks import PATIENCE, Ranks, join
from layerrope.train import train
from layerrope.training.layerwise import checkpoint_layers, compile_layers
from layerrope.training.machine import autocast
from layerrope.training.recipe import TrainConfig, from_json
from layerrope.training.run_folder import Result, RunFolder
from layerrope.training.session import Session

HUNG = 240.0
"""Seconds after which a test takes a group for hung: many times what any of them needs on a busy machine."""

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    ["layerrope.train", "layerrope.ranks.sharding", "layerrope.data", "torch._dynamo.testing"]
)


class SharedToy(Toy):
    """The toy data, each rank with its rows of the batch."""

    def batch(self, step: int, batch_size: int, *, seed: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        ids, targets = self.windows(batch_size, 1000 * seed + step)
        targets[: batch_size // 2, 3:] = -100  # ranks have different numbers of counted targets
        return ids.chunk(world)[rank], targets.chunk(world)[rank]


@dataclass
class Ended:
    """How one rank ended: its exit code (negative: the signal), and what it printed."""

    code: int | None
    out: str
    err: str


class Group:
    """Ranks that run `work(rank, *arguments)`, each in a process of its own, as torchrun would start them."""

    def __init__(self, folder: Path, work: Callable[..., int | None], arguments: Sequence[Sequence[Any]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, world = folder, len(arguments)
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: list[BaseProcess] = []
        for rank, mine in enumerate(arguments):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": self.store.port}
            process = server.Process(target=_as_rank, args=(place, folder, work, tuple(mine)), daemon=True)
            process.start()
            self.processes.append(process)

    def wait(self) -> list[Ended]:
        """Every rank's end. Fails the test where one of them hangs."""
        end = time.monotonic() + HUNG
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        hung = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()
        said = [[(self.folder / f"{name}-{r}").read_text() for name in ("out", "err")] for r in self._ranks()]
        assert not hung, f"ranks {hung} hang: {said}"
        return [Ended(p.exitcode, *words) for p, words in zip(self.processes, said, strict=True)]

    def _ranks(self) -> range:
        return range(len(self.processes))


def together(folder: Path, work: Callable[..., int | None], world: int, *arguments: Any) -> list[Ended]:
    """`world` ranks with the same arguments, to their end."""
    return Group(folder, work, [arguments] * world).wait()


def _as_rank(place: dict[str, int], folder: Path, work: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
    agent = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ.update({name: str(value) for name, value in place.items()} | agent)
    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(folder / f"{name}-{place['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    torch.set_num_threads(1)
    sys.exit(work(*arguments))


@contextlib.contextmanager
def as_rank() -> Iterator[Ranks]:
    """The ranks, joined; left at the end."""
    place = rank_place()
    assert place is not None
    ranks = join(place)
    yield ranks
    ranks.leave()


# ------------------------------------------------------------------------------------------------ what ranks can do
def rank_config(**changes: Any) -> TrainConfig:
    """A toy run that three ranks can share, with weight decay and a clip that bites."""
    return toy_config(**{"batch_size": 6, "clip": 0.05, "steps": 2, "weight_decay": 0.1} | changes)


def command(words: Sequence[str]) -> int:
    """`python -m layerrope WORDS`."""
    return main(list(words))


def moved(folder: Path, words: Sequence[str]) -> int:
    """The same in another working folder."""
    os.chdir(folder)
    return command(words)


def session(config: TrainConfig, ranks: Ranks, parallel: str = "auto") -> Session:
    data, folder = SharedToy(config.data), RunFolder(Path("nowhere"))
    return Session(config, folder, torch.device("cpu"), data, None, (), ranks, parallel)  # type: ignore[arg-type]


def course(config: TrainConfig, ranks: Ranks, parallel: str = "auto") -> list[list[float]]:
    """(loss, gradient norm) of each step, and (validation loss, parameters) at the end."""
    s = session(config, ranks, parallel)
    if config.checkpointing:
        checkpoint_layers(s.model)
    found = []
    for _ in range(config.steps):
        s.at.since_log = [0.0, 0]
        s.update()
        assert s.at.grad_norm is not None
        found.append([s.at.since_log[0] / s.at.since_log[1], s.at.grad_norm])
    loss = s._evaluate()["val_loss"]
    assert loss is not None
    return [*found, [loss, float(s.n_params)]]


def courses(configs: dict[str, dict[str, Any]], parallel: str, out: Path) -> None:
    """The courses of several configs, one after another in the same group; written by rank 0."""
    with as_rank() as ranks:
        found = {name: course(from_json(TrainConfig, config), ranks, parallel) for name, config in configs.items()}
        if ranks.main:
            out.write_text(json.dumps(found))


def graphs(cases: Sequence[tuple[dict[str, Any], str]], out: Path) -> None:
    """How many graphs a compiled model of each config has after two steps, and after an evaluation."""
    found = []
    with as_rank() as ranks:
        for config, parallel in cases:
            s = session(from_json(TrainConfig, config), ranks, parallel)
            counter = CompileCounterWithBackend("eager")
            counts: list[Any] = [compile_layers(s.model, s.update, backend=counter)]
            for work in (s.update, s._evaluate):
                work()
                counts.append(counter.frame_count)
            found.append(counts)
        if ranks.main:
            out.write_text(json.dumps(found))


COLLECTIVES = {
    "gathered": ("all_gather_single", "all_gather_into_tensor"),
    "reduced": ("reduce_scatter_single", "reduce_scatter_tensor"),
}
"""What FSDP2 calls, by the names of newer and older versions of torch."""


def traffic(config: dict[str, Any], out: Path) -> None:
    """Bytes that one step gathers and reduces, whole tensors, and bytes of this rank's training state."""
    counted = dict.fromkeys(COLLECTIVES, 0)

    def counting(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            tensors = [t for t in (*given, *named.values()) if isinstance(t, Tensor)]
            counted[kind] += max(t.numel() * t.element_size() for t in tensors)
            return real(*given, **named)

        return call

    for kind, names in COLLECTIVES.items():
        name = next(name for name in names if hasattr(torch.distributed, name))
        setattr(torch.distributed, name, counting(kind, getattr(torch.distributed, name)))
    with as_rank() as ranks:
        s = session(from_json(TrainConfig, config), ranks, "fsdp")
        s.update()
        counted.update(dict.fromkeys(counted, 0))
        s.update()
        state = [*s.trained, *(t for k, t in s.optimizers.state().items() if not k.startswith("step/"))]
        held = sum(t.to_local().numel() * t.element_size() for t in (*state, *s.trained))  # gradients are like weights
        if ranks.main:
            out.write_text(json.dumps([*counted.values(), held]))


class Casts(TorchDispatchMode):
    """Remembers the storage of every bf16 copy that is made of an fp32 matrix of one of these sizes."""

    def __init__(self, sizes: set[int]) -> None:
        super().__init__()
        self.sizes, self.made = sizes, list[StorageWeakRef]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.dtype == torch.bfloat16 and found.numel() in self.sizes:
            self.made.append(StorageWeakRef(found.untyped_storage()))
        return found


def casts(config: dict[str, Any], out: Path) -> None:
    """bf16 copies of weights that one step makes, and those that are there between its forward and backward pass, with
    layers recomputed and not."""
    read, found = from_json(TrainConfig, config), []
    with as_rank() as ranks:
        for recomputes in (True, False):
            s = session(read, ranks, "fsdp")
            if recomputes:
                checkpoint_layers(s.model)
            ids, targets = s._batch(0)
            with Casts({p.numel() for layer in s.model.layers for p in layer.parameters() if p.ndim == 2}) as seen:
                with autocast(s.device, "bf16", cache=not s.form.in_shards):
                    loss, _ = s.form.loss_sum(s.model, ids, targets)
                found.append([len(seen.made), sum(not ref.expired() for ref in seen.made)])
                loss.backward()
        if ranks.main:
            out.write_text(json.dumps(found))


def runs(config: dict[str, Any], cuts: Sequence[tuple[str, int | None]], parallel: str) -> None:
    """`train` on the toy data, in each of these folders up to so many steps of this session (None: to the end)."""
    read = from_json(TrainConfig, config)
    with as_rank() as ranks:
        for path, steps in cuts:
            stop = None if steps is None else until(steps)
            _train(read, path, ranks, parallel, SharedToy(read.data), stop=stop)


@dataclass
class Fated(SharedToy):
    """Data at whose step 2 something happens to this rank."""

    fate: Callable[[], object] = bool

    def batch(self, step: int, batch_size: int, **options: int) -> tuple[Tensor, Tensor]:
        if step == 2:
            self.fate()
        return super().batch(step, batch_size, **options)


def fated(path: Path, number: int | None, *more: Any) -> int:
    """A run in which this rank sends itself the signal `number`, as often as `more` says; 0: it sleeps for ever.

    A rank that is "blind" looks for the run in another folder.
    """
    if "blind" in more:
        os.chdir("/")

    def fate() -> None:
        if number == 0:
            time.sleep(10 * HUNG)
        for _ in range(*more) if number and more else [0] * bool(number):
            os.kill(os.getpid(), number or 0)

    data = Fated(rank_config().data, fate=fate)
    patience = timedelta(seconds=5) if number is None and not more else PATIENCE
    return said(lambda ranks: _train(rank_config(steps=6), path, ranks, "fsdp", data), patience)


def starved(path: Path, limit: int) -> int:
    """A run whose files may not grow beyond `limit` bytes on rank 0: what a full disk does, and truly the system's."""

    def work(ranks: Ranks) -> Result:
        if ranks.main:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return _train(rank_config(), path, ranks, "fsdp", SharedToy(rank_config().data))

    return said(work)


def said(work: Callable[[Ranks], Result], patience: timedelta = PATIENCE) -> int:
    """`work` among ranks with the exit codes and the one message of the command line."""
    place = rank_place()
    assert place is not None
    ranks = join(place, patience)
    try:
        code = guarded(ranks, lambda: refused(ranks, lambda: EXIT[work(ranks).status]))
    finally:
        ranks.leave(well=False)
    return code


def refused(ranks: Ranks, work: Callable[[], int]) -> int:
    try:
        return work()
    except InputError as error:
        ranks.say(f"error: {error}")
        return 2


def _train(config: TrainConfig, path: Any, ranks: Ranks, parallel: str, data: Any, **options: Any) -> Result:
    return train(config, path, data=data, ranks=ranks, parallel=parallel, progress=lambda report: None, **options)
