"""Paired timing: contenders run in turn, round after round, and are compared round by round.

Shared machines drift; a ratio within a round does not. Wall and CPU seconds are both kept: where other work steals
the processor, the CPU ratio is the steadier one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Timing:
    """Seconds of one contender, one entry a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median wall seconds of a round."""
        return statistics.median(self.wall)

    def ratio(self, other: Timing) -> float:
        """Median over rounds of this contender's wall time over the other's."""
        return statistics.median(a / b for a, b in zip(self.wall, other.wall, strict=True))

    def cpu_ratio(self, other: Timing) -> float:
        """The same for CPU time."""
        return statistics.median(a / b for a, b in zip(self.cpu, other.cpu, strict=True))


def paired(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 3,
    after: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Time every contender once a round, each round starting one further along, so that none is always first.

    Args:
        contenders: name -> one repetition of the work.
        rounds: counted repetitions of each.
        warmup: uncounted repetitions of each, first.
        after: called with the number of rounds done.
    """
    names = list(contenders)
    for name in names:
        for _ in range(warmup):
            contenders[name]()
    timings = {name: Timing() for name in names}
    for r in range(rounds):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name]()
            timings[name].cpu.append(time.process_time() - cpu)
            timings[name].wall.append(time.perf_counter() - wall)
        if after is not None:
            after(r + 1)
    return timings
