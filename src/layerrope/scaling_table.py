"""The points of a scaling law, from a CSV table or from the runs of a study: each size at its best learning rate."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layerrope.accounting import count_parameters, flops_per_token
from layerrope.errors import InputError, reason
from layerrope.launch import Outcome
from layerrope.recipe import TrainConfig
from layerrope.scaling import Point
from layerrope.study import FILE, Run, Study, outcomes, read_study

COLUMNS: dict[str, tuple[str, ...]] = {
    "scheme": ("scheme", "method"),
    "loss": ("loss", "val_loss"),
    "compute": ("compute", "flops"),
    "n_params": ("n_params", "parameters", "n"),
    "tokens": ("tokens", "d"),
    "lr": ("lr",),
    "seed": ("seed",),
    "status": ("status",),
}
"""What a table may hold, each under one of these headers; any other column is left alone."""


@dataclass(frozen=True)
class Row:
    """One run of a table; `loss` is None where it did not reach its end."""

    scheme: str
    loss: float | None
    compute: float | None
    n_params: float | None
    tokens: float | None
    lr: float | None
    seed: str


def read_points(*sources: Path) -> tuple[list[Point], list[str]]:
    """The points in all `sources` together, and remarks on what was left out.

    Args:
        sources: each a CSV file with a header, or the folder of a study. A run that several of them hold counts once.

    Raises:
        InputError: neither, a column or a number that is missing or wrong (with its line), or no point at all.
    """
    rows = [row for source in sources for row in (_study_rows(source) if source.is_dir() else _csv_rows(source))]
    points, notes = best_rows(list(dict.fromkeys(rows)) if len(sources) > 1 else rows)
    if not points:
        raise InputError(f"{', '.join(map(str, sources))} holds no run that reached its end: train it first")
    return points, notes


def best_rows(rows: Sequence[Row]) -> tuple[list[Point], list[str]]:
    """Of every scheme and size, the seeds of the learning rate that lost the fewest and then has the lowest mean.

    Rates are judged by the seeds tried at each of them, where there are such (as `compare.best_rate` does).
    """
    sizes: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        sizes.setdefault((row.scheme, row.compute, row.n_params, row.tokens), []).append(row)
    kept: list[Row] = [row for same in sizes.values() for row in _at_best_rate(same)]
    points = [Point(r.scheme, r.loss, r.compute, r.n_params, r.tokens, r.seed) for r in kept if r.loss is not None]
    lost = sum(row.loss is None for row in rows)
    other = len(rows) - lost - len(points)
    notes = [f"{other} runs at other learning rates than the best of their size were left out."] if other else []
    return points, notes + ([f"{lost} runs did not reach their end and are no points."] if lost else [])


def _at_best_rate(rows: Sequence[Row]) -> list[Row]:
    rates: dict[float | None, list[Row]] = {}
    for row in rows:
        rates.setdefault(row.lr, []).append(row)

    common = set[str]().union(*({r.seed for r in m} for m in rates.values()))
    common = common.intersection(*({r.seed for r in m} for m in rates.values()))
    judged = {lr: [r for r in mine if r.seed in common] or mine for lr, mine in rates.items()}

    def quality(lr: float | None) -> tuple[int, float]:
        losses = [row.loss for row in judged[lr] if row.loss is not None]
        return len(judged[lr]) - len(losses), statistics.fmean(losses) if losses else math.inf

    ended = [lr for lr, mine in judged.items() if any(row.loss is not None for row in mine)]
    return rates[min(ended, key=quality)] if ended else []


# ---------------------------------------------------------------------------------------------------------------- CSV
def _csv_rows(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file, restkey="", restval=""))
    except FileNotFoundError as error:
        raise InputError(f"no such table: {path}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV table ({reason(error)})") from error
    if not lines:
        raise InputError(f"{path} has no rows: give a CSV table with a header, {_wanted()}")
    names = {k: next((h for h in lines[0] if h.strip().lower() in COLUMNS[k]), None) for k in COLUMNS}
    if names["scheme"] is None or names["loss"] is None:
        raise InputError(f"{path} lacks a column {'scheme' if names['scheme'] is None else 'loss'}: give {_wanted()}")
    return [_row(line, names, f"{path}, line {i}") for i, line in enumerate(lines, start=2)]


def _wanted() -> str:
    return "scheme, loss and compute, or scheme, loss, n_params and tokens; seed, lr and status where there are some"


def _row(line: Mapping[str, str], names: Mapping[str, str | None], where: str) -> Row:
    """One line of the table. Raises InputError for what is no number."""

    def text(key: str) -> str:
        name = names[key]
        return "" if name is None else (line[name] or "").strip()

    def number(key: str) -> float | None:
        try:
            return float(text(key)) if text(key) else None
        except ValueError as error:
            raise InputError(f"{where}: {key} is {text(key)!r}, not a number") from error

    if not text("scheme"):
        raise InputError(f"{where}: no scheme")
    ended = text("status") in {"", "done"}
    loss = number("loss") if ended else None
    return Row(
        text("scheme"),
        loss if loss is not None and math.isfinite(loss) else None,
        number("compute"),
        number("n_params"),
        number("tokens"),
        number("lr"),
        text("seed"),
    )


# -------------------------------------------------------------------------------------------------------------- study
def _study_rows(folder: Path) -> list[Row]:
    if not (folder / FILE).exists():
        raise InputError(f"{folder} holds no study: give a CSV table or the folder of a study")
    study = read_study(folder)
    return list(rows_of_runs((run.config, outcome) for run, outcome in _ends(study, folder)))


def _ends(study: Study, folder: Path) -> Iterable[tuple[Run, Outcome]]:
    found = outcomes(study, folder)
    return [(run, found[run.key]) for run in study.runs]


def rows_of_runs(runs: Iterable[tuple[TrainConfig, Outcome]]) -> Iterable[Row]:
    """Runs as rows of the table: FLOPs of the Pre-Norm shape, all parameters, positions trained on."""
    for config, outcome in runs:
        tokens = float(config.steps * config.tokens_per_step)
        done = outcome.result if outcome.status == "done" else None
        yield Row(
            config.model.scheme,
            None if done is None else done.val_loss,
            flops_per_token(config.model) * tokens,
            float(count_parameters(config.model)[0]),
            tokens,
            config.lr,
            str(config.seed),
        )
