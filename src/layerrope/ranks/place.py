"""What a launcher such as torchrun tells a process through its environment. Needs no torch, so that --help is quick."""

from __future__ import annotations

import os
from dataclasses import dataclass

from layerrope.errors import InputError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What launchers of torch set, torchrun and others: who a process is, and where the ranks meet."""


@dataclass(frozen=True)
class Place:
    """Which of how many ranks a process is."""

    rank: int
    world: int
    local: int
    """the rank's number on its own machine: which of the machine's devices it takes"""


def rank_place() -> Place | None:
    """This process's place among ranks, or None where no launcher has set all of `VARIABLES`.

    Raises:
        InputError: the launcher's variables are not whole numbers that fit together.
    """
    if not all(name in os.environ for name in VARIABLES):
        return None
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", rank))
    except ValueError as error:
        raise InputError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error}): use torchrun") from error
    if not 0 <= rank < world or local < 0:
        raise InputError(f"there is no rank {rank} (local {local}) among {world}: use torchrun")
    return Place(rank, world, local)
