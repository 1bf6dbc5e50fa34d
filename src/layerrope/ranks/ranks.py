"""The ranks of one run: what they tell each other beside tensors, and how they end together.

`torchrun ... -m layerrope train` starts one process, a rank, for each device. Numbers and short JSON texts go over
gloo from CPU to CPU, whatever carries the gradients; nothing is pickled. Rank 0 alone writes and speaks.

Three things can go wrong, and no rank waits for ever in any of them. Bad input that every rank can find in its turn is
exchanged by `together`: all of them raise the same error. A rank that dies closes its connections: the others
get an error from the next exchange (`is_loss`), and one of them says so. A rank that only hangs is given up after
`PATIENCE`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from layerrope.errors import InputError, reason
from layerrope.ranks.place import Place, rank_place
from layerrope.training.recipe import differences

if TYPE_CHECKING:  # torch can be built without them: then a process trains alone
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others: longer than any one of them may be busy alone (hashing a large checkpoint)."""

GOODBYE = timedelta(seconds=20)
"""How long a rank waits for the others once it has nothing more to say."""


@dataclass(frozen=True)
class Ranks:
    """This process and its peers. `Ranks()` is a process alone, whose every question is answered by itself."""

    rank: int = 0
    world: int = 1
    local: int = 0
    store: Store | None = None

    @property
    def main(self) -> bool:
        """Is this the rank that writes and speaks?"""
        return self.rank == 0

    @property
    def joined(self) -> bool:
        """Has this process a group of ranks, be it its only member?"""
        return self.store is not None

    # ---------------------------------------------------------------------------------------------------- exchanges
    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` (JSON data), by rank, on every rank."""
        if self.world == 1:
            return [value]
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(n) for (n,) in self._numbers([len(mine)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(mine)] = mine
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        return [json.loads(bytes(t[:n].tolist())) for t, n in zip(found, sizes, strict=True)]

    def tell(self, value: Any) -> Any:
        """Rank 0's `value` (JSON data) on every rank."""
        return self.gather(value if self.main else None)[0]

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the ranks, in float64 and in the order of the ranks: equal bits on every rank."""
        if self.world == 1:
            return list(numbers)
        return [sum(column) for column in zip(*self._numbers(numbers), strict=True)]

    def any(self, flag: bool) -> bool:
        """Does any rank say yes?"""
        return bool(self.add([float(flag)])[0])

    def _numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return [t.tolist() for t in found]

    # --------------------------------------------------------------------------------------------------- one fate
    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What one rank's body refuses, every rank refuses: the InputError of the first that failed, on all of them.

        The body must not talk to other ranks, unless all of them get through it whatever happens.
        """
        failure: InputError | None = None
        try:
            yield
        except InputError as error:
            if self.world == 1:
                raise
            failure = error
        said = self.gather(None if failure is None else str(failure))
        failed = [rank for rank, words in enumerate(said) if words is not None]
        if failed:
            words = said[failed[0]]
            everyone = len(failed) == self.world and len(set(said)) == 1
            raise InputError(words if everyone else f"rank {failed[0]}: {words}") from failure

    def check_same(self, what: str, value: Mapping[str, Any], remedy: str) -> None:
        """Raise InputError on every rank unless all of them have an equal `value`; names the first field."""
        first, *others = self.gather(value)
        for rank, found in enumerate(others, 1):
            for name, theirs, ours in differences(found, first, free=frozenset()):
                raise InputError(
                    f"the ranks disagree on the {what} ({name} is {ours} on rank 0, {theirs} on rank {rank}): {remedy}"
                )

    # ------------------------------------------------------------------------------------------------------- the end
    def say(self, message: str) -> None:
        """Print `message` to stderr unless another rank has had the last word already."""
        first = True
        if self.store is not None:
            with contextlib.suppress(RuntimeError):  # the store is gone: better said twice than not at all
                first = self.store.add("last word", 1) == 1
        if first:
            print(message, file=sys.stderr, flush=True)

    def leave(self, well: bool = True) -> None:
        """End this rank's part. It waits a little, so that no other loses its peer in the middle of an exchange: less
        where it ends in an error, since the others may be waiting for it."""
        if self.store is None:
            return
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left {self.rank}", "")
            self.store.wait([f"left {rank}" for rank in range(self.world)], GOODBYE if well else GOODBYE / 10)
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def join(place: Place | None, patience: timedelta = PATIENCE) -> Ranks:
    """Meet the other ranks, over gloo for the CPU and nccl for CUDA. None: there are no others.

    Raises:
        InputError: they did not all come within `patience`.
    """
    from torch.distributed.rendezvous import rendezvous

    if place is None:
        return Ranks()
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    if cuda and place.local < torch.cuda.device_count():
        torch.cuda.set_device(place.local)
    try:
        store, rank, world = next(rendezvous("env://", timeout=patience))
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"rank {place.rank} did not meet the other {place.world - 1} ({reason(error)}): start every rank, "
            "with the same MASTER_ADDR and MASTER_PORT"
        ) from error
    return Ranks(place.rank, place.world, place.local, store)


def joined() -> Ranks:
    """The ranks of the process group that this process has joined; alone where it has joined none."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    from torch.distributed.distributed_c10d import _get_default_store

    place = rank_place() or Place(dist.get_rank(), dist.get_world_size(), dist.get_rank())
    return Ranks(place.rank, place.world, place.local, _get_default_store())


_LOSS = re.compile(
    r"\bgloo\b|\bnccl\b|\bTCPStore\b|connection (was )?(closed|reset|refused)|broken pipe|timed out", re.I
)
"""In the errors of gloo, nccl and the store; torch gives them no class of their own."""


def is_loss(error: BaseException) -> bool:
    """Does `error` come from another rank that died or does not answer?"""
    return isinstance(error, RuntimeError) and _LOSS.search(str(error)) is not None


def lost(error: BaseException) -> str:
    """What to say about it."""
    return (
        f"another rank has died or does not answer ({reason(error)[:200]}): its own words tell why; "
        "the same command goes on from the newest checkpoint"
    )
