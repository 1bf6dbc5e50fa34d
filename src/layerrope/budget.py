"""How long a run is: steps, tokens, or tokens per parameter, as one writes it on a command line."""

from __future__ import annotations

import math
import re

from layerrope.errors import InputError

SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def steps_of(budget: str, n_params: int, tokens_per_step: int) -> int:
    """The updates that a budget pays for, rounded up.

    Args:
        budget: "240" or "240steps"; tokens as "2M", "500K", "1.5B" or "20000tokens"; "20x" tokens per parameter.
        n_params: parameters that "x" multiplies.
        tokens_per_step: positions of one update.

    Raises:
        InputError: not of these forms, or less than one update.

    >>> steps_of("2M", 0, 2048), steps_of("20x", 1_000_000, 2048), steps_of("240", 0, 2048)
    (977, 9766, 240)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMB]?)\s*(x|steps?|tok|tokens)?", budget.strip(), re.IGNORECASE)
    if found is None:
        raise InputError(
            f"cannot read the budget {budget!r}: write steps (240), tokens (2M), tokens per parameter (20x)"
        )
    number, scale, unit = float(found[1]), found[2].upper(), (found[3] or "").lower()
    amount = number * SCALES[scale]
    if unit.startswith("step") or not (scale or unit):
        steps = amount
    else:
        steps = amount * (n_params if unit == "x" else 1) / tokens_per_step
    if not math.isfinite(steps) or steps <= 0:
        raise InputError(f"the budget {budget!r} pays for no step: give at least one")
    return math.ceil(steps)
