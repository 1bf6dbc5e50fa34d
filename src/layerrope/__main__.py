"""`python -m layerrope COMMAND ...`; under torchrun, `train` on as many devices as there are ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from layerrope import cli
from layerrope.errors import InputError
from layerrope.ranks.place import Place, rank_place

if TYPE_CHECKING:
    from layerrope.ranks.ranks import Ranks


def main(words: list[str] | None = None) -> int:
    """Run one command, as one of several ranks where a launcher says so; the exit code."""
    words = sys.argv[1:] if words is None else words
    try:
        place = rank_place()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if place is None or (place.world == 1 and words[:1] != ["train"]):
        return cli.main(words)
    return _as_rank(place, words)


def _as_rank(place: Place, words: list[str]) -> int:
    from layerrope.ranks.ranks import join

    try:
        ranks = join(place)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    code = 1
    try:
        code = _run(ranks, words)
    finally:
        ranks.leave(well=code == 0)
    return code


def _run(ranks: Ranks, words: list[str]) -> int:
    """The command on this rank; rank 0 alone prints."""
    from layerrope import terminal

    terminal.out.quiet = terminal.status.quiet = not ranks.main
    if words[:1] != ["train"]:
        ranks.say("error: train alone runs on several ranks: start other commands as one process")
        return 2
    return guarded(ranks, lambda: cli.main(words, ranks.say))


def guarded(ranks: Ranks, work: Callable[[], int]) -> int:
    """`work`, whose failure by the loss of another rank is said in one line; exit code 2 then."""
    from layerrope.ranks.ranks import is_loss, lost

    try:
        return work()
    except RuntimeError as error:
        if not is_loss(error):
            raise
        ranks.say(f"error: {lost(error)}")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
