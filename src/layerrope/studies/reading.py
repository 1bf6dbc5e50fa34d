"""A study on disk: its runs by setting, each setting a comparison of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layerrope.accounting import flops_per_token
from layerrope.comparing.compare import Table, compare, trials_of
from layerrope.errors import InputError
from layerrope.files import csv_text
from layerrope.launching.launch import Outcome
from layerrope.studies.plan import in_words, setting_of
from layerrope.studies.recipes import RECIPES
from layerrope.study import Run, Study, outcomes, read_study


@dataclass(frozen=True)
class Group:
    """The runs of one setting, and what they say about its schemes."""

    setting: Mapping[str, Any]
    runs: tuple[Run, ...]
    table: Table

    @property
    def name(self) -> str:
        """`size micro-400k, budget 20x`; empty where there is one setting without a name."""
        return in_words(self.setting)


@dataclass(frozen=True)
class Part:
    """Settings that differ in nothing but the axis of their study: those among which an analysis may look for one."""

    name: str
    """the other labels in words; empty where there are none"""
    groups: tuple[Group, ...]


def parts(groups: Sequence[Group], *own: str) -> list[Part]:
    """The settings by every label but those `own` to the study, in the study's order."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        rest = in_words({k: v for k, v in group.setting.items() if k not in own})
        found.setdefault(rest, []).append(group)
    return [Part(name, tuple(alike)) for name, alike in found.items()]


@dataclass(frozen=True)
class Found:
    """A study and what its runs gave."""

    folder: Path
    study: Study

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        return outcomes(self.study, self.folder)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """A group a setting, in the study's order."""
        sorted_runs: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
        for run in self.study.runs:
            sorted_runs.setdefault(tuple(setting_of(run.labels).items()), []).append(run)
        return tuple(
            Group(dict(setting), tuple(runs), compare(trials_of(runs, self.outcomes)))
            for setting, runs in sorted_runs.items()
        )

    @property
    def finished(self) -> bool:
        """No run is left to train."""
        return all(outcome.final for outcome in self.outcomes.values())


def read_found(folder: Path) -> Found:
    """The study in `folder`. Raises InputError when there is none of this command's."""
    study = read_study(folder)
    if study.name not in RECIPES:
        raise InputError(f"{folder} holds a study of another kind ({study.name}): layerrope report reads it")
    return Found(folder, study)


# ---------------------------------------------------------------------------------------------------------------- CSV
RESULT = ("status", "val_loss", "bits_per_byte", "train_loss", "step", "diverged_at", "seconds", "tokens_per_second")


def runs_csv(found: Found) -> str:
    """Every run, lost ones too, as CSV; `layerrope fit` reads it."""
    return csv_text([run_row(found, run) for run in found.study.runs])


def run_row(found: Found, run: Run) -> dict[str, Any]:
    """One run: its labels, what it costs, how it ended."""
    outcome, config = found.outcomes[run.key], run.config
    result = outcome.result
    tokens = config.steps * config.tokens_per_step
    ended = {name: None if result is None else getattr(result, name) for name in RESULT}
    return {
        **run.labels,
        "tokens": tokens,
        "flops": float(flops_per_token(config.model) * tokens),
        "n_params": None if result is None else result.n_params,
        **ended,
        "status": outcome.status,
        "error": outcome.error,
        "key": run.key,
    }
