"""Which learning rates a comparison tries: those given, a swept best one that comes with the package, or the grid.

`demo.json` is written by `results/demo-sweep/record.py` from the runs of a full sweep and by nothing else. Its rates
are used only where every setting that a best rate may depend on is the sweep's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from layerrope.errors import InputError
from layerrope.training.recipe import NEUTRAL, TrainConfig, from_json, to_json

GRID = (1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2, 4.8e-2, 9.6e-2)
"""The rates of a sweep: a factor of two apart, wide enough to hold the best ones of every scheme in the sources."""

FORMAT = 1
FILE = "demo.json"

_SWEPT = ("lr", "seed")
_ONLY_MEASURED = ("eval_every", "eval_tokens", "probe_every", "compile", "checkpointing")


@dataclass(frozen=True)
class Swept:
    """What a sweep says about one scheme."""

    lr: float
    bracketed: bool
    losses: Mapping[float, float | None]
    """rate -> mean validation loss over the sweep's seeds; None where a run diverged"""
    spread: float | None
    """standard deviation over seeds of the paired difference to the reference, each at its best rate"""


@dataclass(frozen=True)
class Sweep:
    """A sweep that comes with the package: its settings, its command, and what it found for every scheme."""

    base: Mapping[str, Any]
    """config of its runs as JSON data; their schemes, rates and seeds replace its own"""
    seeds: tuple[int, ...]
    reference: str
    command: str
    schemes: Mapping[str, Swept]

    def fits(self, config: TrainConfig) -> bool:
        """The sweep was made at these settings (whatever their scheme, rate and seed).

        A setting that came into the package after the sweep is taken at its default.
        """
        try:
            return settings_of(from_json(TrainConfig, self.base)) == settings_of(config)
        except InputError:  # a setting that is no more
            return False


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings on which a best learning rate may depend, as JSON data."""
    config = replace(config, model=replace(config.model, scheme="prenorm"))
    left_out = {*NEUTRAL, *_SWEPT, *_ONLY_MEASURED}
    return {name: value for name, value in to_json(config).items() if name not in left_out}


def packaged() -> Sweep | None:
    """The sweep in this package, or None before there is one."""
    file = resources.files("layerrope") / FILE
    return sweep_from_json(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def sweep_from_json(saved: Mapping[str, Any]) -> Sweep:
    """The sweep that `sweep_to_json` wrote."""
    schemes = {
        name: Swept(
            lr=row["lr"],
            bracketed=row["bracketed"],
            losses={point["lr"]: point["val_loss"] for point in row["points"]},
            spread=row["spread"],
        )
        for name, row in saved["schemes"].items()
    }
    return Sweep(saved["base"], tuple(saved["seeds"]), saved["reference"], saved["command"], schemes)


def sweep_to_json(sweep: Sweep) -> dict[str, Any]:
    """`sweep` as JSON data, as it lies in the package."""
    schemes = {
        name: {
            "lr": row.lr,
            "bracketed": row.bracketed,
            "spread": row.spread,
            "points": [{"lr": lr, "val_loss": loss} for lr, loss in row.losses.items()],
        }
        for name, row in sweep.schemes.items()
    }
    head = {"format": FORMAT, "command": sweep.command, "seeds": sweep.seeds, "reference": sweep.reference}
    return {**head, "base": sweep.base, "schemes": schemes}


@dataclass(frozen=True)
class Rates:
    """The learning rates to try, by scheme, and where they come from."""

    by_scheme: Mapping[str, tuple[float, ...]]
    source: str
    sweep: Sweep | None = None
    """the packaged sweep, where some rates are from it"""


def choose(schemes: Sequence[str], lrs: Sequence[float], base: TrainConfig, sweep: Sweep | None) -> Rates:
    """The rates of every scheme: `lrs` where given, else the sweep's best where it fits, else the grid."""
    if lrs:
        return Rates(dict.fromkeys(schemes, tuple(sorted(set(lrs)))), "the rates given with --lrs")
    known = sweep.schemes if sweep is not None and sweep.fits(base) else {}
    by_scheme = {name: (known[name].lr,) if name in known else GRID for name in schemes}
    swept = [name for name in schemes if name in known]
    if not swept:
        return Rates(by_scheme, "the whole grid, since no packaged sweep was made at these settings")
    assert sweep is not None
    of = f"the best of the packaged sweep (rates {_list(GRID)}; seeds {_list(sweep.seeds)}; results/demo-sweep)"
    rest = [name for name in schemes if name not in known]
    return Rates(by_scheme, of + (f"; the whole grid for {', '.join(rest)}" if rest else ""), sweep)


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{v:g}" for v in values)
