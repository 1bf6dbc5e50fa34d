"""What a study trains: cells (a model in a setting) at several rates, each at its best rate on further seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layerrope.comparing.compare import Trial, best_rate, trials_of
from layerrope.errors import InputError
from layerrope.launching.launch import Outcome
from layerrope.scheme_table import scheme
from layerrope.study import Run, Study
from layerrope.training.kinds import Shape
from layerrope.training.recipe import TrainConfig

RUN_AXES = ("scheme", "lr", "seed")
"""Labels that tell runs of one setting apart; every other label is the setting."""


@dataclass(frozen=True)
class Ask:
    """What a user may set of any study; an empty value leaves the study's own."""

    scale: str = "micro"
    """tiny (seconds, to try a command), micro (CPUs) or paper (the LayerRoPE paper's sizes and tokens)"""
    schemes: tuple[str, ...] = ()
    """depth schemes, with options where wanted"""
    sizes: tuple[str, ...] = ()
    """names of sizes, depths, contexts or optimiser recipes: the values of the study's axis"""
    lrs: tuple[float, ...] = ()
    """peak learning rates to try for every scheme in every setting"""
    bracket: int | None = None
    """where the best of several rates is the lowest or the highest tried: rates to add beyond it, each a grid step
    further, until it lies between two others; 0: none; none: the scale's own"""
    seeds: tuple[int, ...] = ()
    """the first one is swept over the rates, the others are trained at the best rate"""
    every_seed: bool = False
    """train every seed at every rate, and take the rate that is best on average: dearer, and never a rate near the edge
    of stability at which only the first seed did well"""
    seeded_sizes: int | None = None
    """sizes, the smallest first, at which seeds beyond the first are trained; the larger ones have one seed. none:
    all"""
    budgets: tuple[str, ...] = ()
    """length of each run: tokens per parameter (20x), tokens (2M) or steps (200); several make an axis"""
    embed_stds: tuple[float, ...] = ()
    """standard deviation of the embedding at the start; several make an axis"""
    data: str = ""
    """embedded, a .txt or .jsonl file, a folder of these, or hf:NAME"""
    tokenizer: str = ""
    """bytes, bpe:SIZE, a tokenizer.json, or hub:NAME"""
    vocab_size: int | None = None
    """token ids to plan with; none: as the tokenizer's name says, or the size's own. Training takes the text's"""
    batch_size: int | None = None
    """sequences per step"""
    eval_tokens: int | None = None
    """validation tokens of an evaluation"""

    def __post_init__(self) -> None:
        for name in self.schemes:
            scheme(name)
        if any(seed < 0 for seed in self.seeds):
            raise InputError("seeds are whole numbers from 0")
        if any(not lr > 0 for lr in self.lrs):
            raise InputError(f"a learning rate must be positive: got {min(self.lrs):g}")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise InputError(f"--vocab-size must be at least 1: got {self.vocab_size}")
        if self.seeded_sizes is not None and self.seeded_sizes < 1:
            raise InputError(f"--seeded-sizes is a number of sizes from 1: got {self.seeded_sizes}")
        if self.bracket is not None and self.bracket < 0:
            raise InputError(f"--bracket is a number of rates from 0: got {self.bracket}")


@dataclass(frozen=True)
class Cell:
    """One scheme in one setting."""

    scheme: str
    setting: Mapping[str, Any]
    """its values on the study's axes, as a reader names them"""
    fields: Mapping[str, Any]
    """what differs from the study's base config, without scheme, rate and seed"""
    lrs: tuple[float, ...]
    added: int = 0
    """rates among them that came in beyond the edge of those first asked for"""
    seeded: bool = True
    """seeds beyond the first are trained"""

    @property
    def name(self) -> tuple[tuple[str, Any], ...]:
        return cell_name({**self.setting, "scheme": self.scheme})


@dataclass(frozen=True)
class Plan:
    """A study before its runs. Every cell is swept over its rates; see `first` and `then`."""

    name: str
    question: str
    base: TrainConfig
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    every_seed: bool = False
    """every seed at every rate, not at the best one only"""
    one_grid: bool = False
    """every cell at the same rates"""
    bracket: int = 0
    """rates that `wider` may add to a cell"""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def first(self) -> Study:
        """Every cell at every rate, on the first seed, or on every one where that is the plan."""
        rest = self.seeds[1:] if self.every_seed else ()
        wanted = [(cell, lr, seed) for seed in self.seeds[:1] for cell in self.cells for lr in cell.lrs]
        wanted += [(cell, lr, seed) for seed in rest for cell in filter(_seeded, self.cells) for lr in cell.lrs]
        return self._study(wanted)

    def wider(self, outcomes: Mapping[str, Outcome]) -> Plan:
        """The plan with a rate more for every cell whose best one, by `outcomes`, is the lowest or highest tried.

        A rate at which a run diverged counts as tried. A cell of one rate was not swept and gets none, and neither
        does one with runs still to end, or `bracket` rates added already. On one grid all cells get what one needs.
        The plan itself is returned where nothing is to be added.
        """
        runs: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
        for run in self.first().runs:
            runs.setdefault(cell_name(run.labels), []).append(run)
        beyond = [
            _beyond(cell, trials_of(runs[cell.name], outcomes)) if cell.added < self.bracket else None
            for cell in self.cells
        ]
        if self.one_grid:
            beyond = [next((lr for lr in beyond if lr is not None), None)] * len(beyond)
        return dataclasses.replace(self, cells=tuple(map(_with_rate, self.cells, beyond)))

    def then(self, outcomes: Mapping[str, Outcome]) -> Study:
        """What `first` has and, now that its outcomes are known, the other seeds at each cell's best rate.

        A cell of which no run reached its end gets no further seed.
        """
        first = self.first()
        if self.every_seed or len(self.seeds) == 1:
            return first
        runs = {(cell_name(run.labels), run.config.lr): run for run in first.runs}
        more: list[tuple[Cell, float, int]] = []
        for cell in filter(_seeded, self.cells):
            best = best_rate(trials_of([runs[cell.name, lr] for lr in cell.lrs], outcomes))
            more += [(cell, best, seed) for seed in self.seeds[1:] if best is not None]
        added = self._study(more)
        labels, points = (*first.labels, *added.labels), (*first.points, *added.points)
        return dataclasses.replace(first, points=points, labels=labels)

    def whole(self) -> Study:
        """What the plan trains in all, with each cell's middle rate in place of its best one: to count costs."""
        rest = [] if self.every_seed else self.seeds[1:]
        more = [(cell, cell.lrs[len(cell.lrs) // 2], seed) for cell in filter(_seeded, self.cells) for seed in rest]
        first, added = self.first(), self._study(more)
        labels, points = (*first.labels, *added.labels), (*first.points, *added.points)
        return dataclasses.replace(first, points=points, labels=labels)

    def _study(self, wanted: Sequence[tuple[Cell, float, int]]) -> Study:
        points = tuple({"model.scheme": c.scheme, **c.fields, "lr": lr, "seed": seed} for c, lr, seed in wanted)
        labels = tuple({**c.setting, "scheme": c.scheme, "lr": lr, "seed": seed} for c, lr, seed in wanted)
        facts = {**self.facts, "question": self.question, "axes": self.axes}
        return Study(self.name, self.base, points, facts, labels=labels)

    @property
    def axes(self) -> list[str]:
        """Names of the settings' values."""
        return list(dict.fromkeys(name for cell in self.cells for name in cell.setting))


def _seeded(cell: Cell) -> bool:
    return cell.seeded


def _beyond(cell: Cell, trials: Sequence[Trial]) -> float | None:
    """The next rate past the edge at which the cell's best one lies; None: it is bracketed, or cannot be told."""
    lowest, highest = cell.lrs[:2], cell.lrs[-2:]
    best = best_rate(trials)
    if len(cell.lrs) < 2 or not all(trial.outcome.final for trial in trials):
        return None
    if best is None:
        diverged = any(trial.outcome.status == "diverged" for trial in trials)
        best = lowest[0] if diverged else None
    steps = {lowest[0]: lowest[0] / lowest[1], highest[1]: highest[1] / highest[0]}
    return float(f"{best * steps[best]:.6g}") if best in steps else None


def _with_rate(cell: Cell, lr: float | None) -> Cell:
    if lr is None:
        return cell
    return dataclasses.replace(cell, lrs=tuple(sorted({*cell.lrs, lr})), added=cell.added + 1)


def cell_name(labels: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A cell by its labels, without rate and seed."""
    return tuple(sorted((k, v) for k, v in labels.items() if k not in ("lr", "seed")))


def setting_of(labels: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's labels that is its setting."""
    return {k: v for k, v in labels.items() if k not in RUN_AXES}


def in_words(setting: Mapping[str, Any]) -> str:
    """A setting as a reader names it: `size micro-400k, budget 20x`."""
    return ", ".join(f"{k} {v}" for k, v in setting.items())


def model_fields(model: Shape, base: Shape) -> dict[str, Any]:
    """The fields of a TrainConfig that turn `base` into `model`, of the same kind, its window included."""
    changed = {
        f"model.{f.name}": getattr(model, f.name)
        for f in dataclasses.fields(base)
        if f.name != "scheme" and getattr(model, f.name) != getattr(base, f.name)
    }
    return changed | ({"data.seq_len": model.seq_len} if "model.seq_len" in changed else {})
