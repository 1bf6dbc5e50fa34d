"""Schemes side by side: the same data, weights, budget and seeds, each scheme at its own best learning rate."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from layerrope.comparing.intervals import Interval, t_interval
from layerrope.comparing.rates import Rates
from layerrope.launching.launch import Outcome
from layerrope.study import Run, Study, grid
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import Result

SCHEMES = ("prenorm", "prenorm-scaledinit", "lns", "perinorm", "layerrope")
REFERENCE = "prenorm"


def reference_of(schemes: Sequence[str]) -> str:
    """The scheme that differences are taken to: Pre-Norm where it takes part, else the first."""
    return REFERENCE if REFERENCE in schemes else schemes[0]


def comparison(base: TrainConfig, rates: Rates, seeds: Sequence[int], facts: Mapping[str, Any]) -> Study:
    """The study of every scheme at every one of its rates, on every seed.

    All runs of a seed start from the same weights (but for what a scheme's init multiplies) and see the same tokens
    in the same order: those depend on the seed alone.
    """
    points = [
        point
        for seed in seeds
        for scheme, lrs in rates.by_scheme.items()
        for point in grid({"model.scheme": [scheme], "lr": lrs, "seed": [seed]})
    ]
    return Study("compare", base, tuple(points), facts)


# ---------------------------------------------------------------------------------------------------- what was found
@dataclass(frozen=True)
class Trial:
    """One run of the comparison and how it ended."""

    scheme: str
    lr: float
    seed: int
    key: str
    outcome: Outcome

    @property
    def result(self) -> Result | None:
        """The result of a run that was trained to its end."""
        return self.outcome.result if self.outcome.status == "done" else None

    def as_dict(self) -> dict[str, Any]:
        """For result.json; the status of a run that was not finished is "interrupted"."""
        names = {"scheme": self.scheme, "lr": self.lr, "seed": self.seed, "key": self.key}
        result = {} if self.outcome.result is None else asdict(self.outcome.result)
        return {**result, **names, "status": self.outcome.status, "error": self.outcome.error}


@dataclass(frozen=True)
class Row:
    """One scheme at its best rate."""

    scheme: str
    lr: float | None
    """None: no run of the scheme was trained to its end"""
    bracketed: bool | None
    """a lower and a higher rate were tried and were worse; None: one rate, not swept here"""
    val_loss: float | None
    """nats per token, mean over seeds"""
    bits_per_byte: float | None
    difference: Interval | None
    """validation loss minus the reference's on the same seed; None for the reference itself or without a pair"""
    tokens_per_second: float | None
    """of one run, median over the scheme's runs"""
    parameters: int | None
    seeds: int
    """seeds trained to the end at that rate"""
    lost: tuple[Trial, ...]
    """runs that diverged or crashed, at any rate"""
    trials: tuple[Trial, ...]
    """the runs at the best rate"""


@dataclass(frozen=True)
class Table:
    """A comparison's rows, best first."""

    rows: tuple[Row, ...]
    reference: str
    trials: tuple[Trial, ...]

    @cached_property
    def ranked(self) -> tuple[Row, ...]:
        """The rows that have a loss, lowest first."""
        return tuple(row for row in self.rows if row.val_loss is not None)

    @property
    def seeds(self) -> int:
        """Seeds asked for."""
        return len({trial.seed for trial in self.trials})


def trials_of(runs: Sequence[Run], outcomes: Mapping[str, Outcome]) -> tuple[Trial, ...]:
    """The runs of a study over model.scheme, lr and seed, with their outcomes."""
    return tuple(
        Trial(run.config.model.scheme, run.config.lr, run.config.seed, run.key, outcomes[run.key]) for run in runs
    )


def mean_losses(trials: Sequence[Trial]) -> dict[float, tuple[int, float | None]]:
    """For every rate tried, lowest first: how many seeds were not trained to the end, and the others' mean loss."""
    found: dict[float, tuple[int, float | None]] = {}
    for lr in sorted({trial.lr for trial in trials}):
        here = [trial.result for trial in trials if trial.lr == lr]
        losses = [r.val_loss for r in here if r is not None and r.val_loss is not None]
        found[lr] = (len(here) - len(losses), statistics.fmean(losses) if losses else None)
    return found


def best_rate(trials: Sequence[Trial]) -> float | None:
    """The rate with the lowest mean loss among those at which the fewest seeds were lost; None where none finished.

    Judged by the seeds tried at every rate, where there are such: a seed tried at one rate only says nothing of others.
    """
    return best_of((t.lr, t.seed, None if t.result is None else t.result.val_loss) for t in trials)


def best_of(runs: Iterable[tuple[float, Hashable, float | None]]) -> float | None:
    """`best_rate` of (rate, seed, loss), None where a run was lost; the lowest of rates that are equally good."""
    losses: dict[float, list[tuple[Hashable, float | None]]] = {}
    for lr, seed, loss in runs:
        losses.setdefault(lr, []).append((seed, loss))
    seeds = [{seed for seed, _ in tried} for tried in losses.values()]
    common = set[Hashable]().union(*seeds).intersection(*seeds)
    ranks: dict[float, tuple[int, float]] = {}
    for lr in sorted(losses):
        judged = [loss for seed, loss in losses[lr] if not common or seed in common]
        ended = [loss for loss in judged if loss is not None]
        if ended:
            ranks[lr] = len(judged) - len(ended), statistics.fmean(ended)
    return min(ranks, key=lambda lr: ranks[lr]) if ranks else None


def bracketed(trials: Sequence[Trial], lr: float | None) -> bool | None:
    """Whether rates on both sides of `lr` were tried; a rate at which runs diverged counts as tried."""
    rates = sorted({trial.lr for trial in trials})
    return None if lr is None or len(rates) < 2 else rates[0] < lr < rates[-1]


def compare(trials: Sequence[Trial], known: Mapping[str, bool] | None = None) -> Table:
    """The table of a comparison.

    Args:
        trials: every run, finished or not.
        known: whether an earlier sweep bracketed a scheme's rate, for schemes tried at one rate only.
    """
    names = list(dict.fromkeys(trial.scheme for trial in trials))
    reference = reference_of(names)
    at_best = {name: _at_best([t for t in trials if t.scheme == name]) for name in names}
    rows = [_row(name, trials, at_best, reference, (known or {}).get(name)) for name in names]
    rows.sort(key=lambda row: (row.val_loss is None, row.val_loss or 0.0))
    return Table(tuple(rows), reference, tuple(trials))


def _at_best(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    lr = best_rate(trials)
    return tuple(trial for trial in trials if trial.lr == lr)


def _row(
    name: str, trials: Sequence[Trial], at_best: Mapping[str, tuple[Trial, ...]], reference: str, known: bool | None
) -> Row:
    mine = [trial for trial in trials if trial.scheme == name]
    best = at_best[name]
    done = [trial.result for trial in best if trial.result is not None]
    lr = best[0].lr if best else None
    swept = bracketed(mine, lr)
    return Row(
        scheme=name,
        lr=lr,
        bracketed=known if swept is None else swept,
        val_loss=_mean([result.val_loss for result in done]),
        bits_per_byte=_mean([result.bits_per_byte for result in done]),
        difference=None if name == reference else paired(best, at_best[reference]),
        tokens_per_second=_median([t.result.tokens_per_second for t in mine if t.result is not None]),
        parameters=next((t.outcome.result.n_params for t in mine if t.outcome.result is not None), None),
        seeds=len(done),
        lost=tuple(trial for trial in mine if trial.outcome.status in {"diverged", "failed"}),
        trials=best,
    )


def paired(trials: Sequence[Trial], reference: Sequence[Trial]) -> Interval | None:
    """Loss minus the reference's, seed by seed, with a 95% t interval; None where no seed has both."""
    theirs = {t.seed: t.result.val_loss for t in reference if t.result is not None}
    mine = {t.seed: t.result.val_loss for t in trials if t.result is not None}
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    return t_interval(gaps) if gaps else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
