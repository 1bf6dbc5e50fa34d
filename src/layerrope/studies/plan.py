"""What a study trains: cells (a model in a setting) at several rates, each at its best rate on further seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layerrope.compare import best_rate, trials_of
from layerrope.errors import InputError
from layerrope.kinds import Shape
from layerrope.launch import Outcome
from layerrope.recipe import TrainConfig
from layerrope.scheme_table import scheme
from layerrope.study import Study

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
    seeds: tuple[int, ...] = ()
    """the first one is swept over the rates, the others are trained at the best rate"""
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


@dataclass(frozen=True)
class Cell:
    """One scheme in one setting."""

    scheme: str
    setting: Mapping[str, Any]
    """its values on the study's axes, as a reader names them"""
    fields: Mapping[str, Any]
    """what differs from the study's base config, without scheme, rate and seed"""
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """A study before its runs. Every cell is swept over its rates; see `first` and `then`."""

    name: str
    question: str
    base: TrainConfig
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    full: bool = False
    """every seed at every rate, not at the best one only"""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def first(self) -> Study:
        """Every cell at every rate, on the first seed (on every seed where the plan is full)."""
        seeds = self.seeds if self.full else self.seeds[:1]
        return self._study([(cell, lr, seed) for seed in seeds for cell in self.cells for lr in cell.lrs])

    def then(self, outcomes: Mapping[str, Outcome]) -> Study:
        """What `first` has and, now that its outcomes are known, the other seeds at each cell's best rate.

        A cell of which no run reached its end gets no further seed.
        """
        first = self.first()
        if self.full or len(self.seeds) == 1:
            return first
        runs = {(cell_name(run.labels), run.config.lr): run for run in first.runs}
        more: list[tuple[Cell, float, int]] = []
        for cell in self.cells:
            name = cell_name({**cell.setting, "scheme": cell.scheme})
            best = best_rate(trials_of([runs[name, lr] for lr in cell.lrs], outcomes))
            more += [(cell, best, seed) for seed in self.seeds[1:] if best is not None]
        added = self._study(more)
        labels, points = (*first.labels, *added.labels), (*first.points, *added.points)
        return dataclasses.replace(first, points=points, labels=labels)

    def whole(self) -> Study:
        """What the plan trains in all, with each cell's middle rate in place of its best one: to count costs."""
        rest = [] if self.full else self.seeds[1:]
        more = [(cell, cell.lrs[len(cell.lrs) // 2], seed) for cell in self.cells for seed in rest]
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


def cell_name(labels: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A cell by its labels, without rate and seed."""
    return tuple(sorted((k, v) for k, v in labels.items() if k not in ("lr", "seed")))


def setting_of(labels: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's labels that is its setting."""
    return {k: v for k, v in labels.items() if k not in RUN_AXES}


def model_fields(model: Shape, base: Shape) -> dict[str, Any]:
    """The fields of a TrainConfig that turn `base` into `model`, of the same kind, its window included."""
    changed = {
        f"model.{f.name}": getattr(model, f.name)
        for f in dataclasses.fields(base)
        if f.name != "scheme" and getattr(model, f.name) != getattr(base, f.name)
    }
    return changed | ({"data.seq_len": model.seq_len} if "model.seq_len" in changed else {})
