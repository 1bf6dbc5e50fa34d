"""The points of a scaling law, from a CSV table or from the runs of a study: each size at its best learning rate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from layerrope.accounting import count_parameters, flops_per_token
from layerrope.comparing.compare import best_of
from layerrope.errors import InputError, reason
from layerrope.launching.launch import Outcome
from layerrope.scaling.law import Point
from layerrope.study import FILE, Run, Study, outcomes, read_study
from layerrope.training.recipe import TrainConfig, run_key

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
UNSAID = 0.0
"""Stands for the learning rate of a run of which the table gives none; no rate is zero."""
LOST = ("diverged", "failed", "interrupted")
"""What `status` may say of a run that is no point; of one that is, it says done or nothing."""


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
    rest: str = field(default="", compare=False)
    """names whatever else sets a run apart from those of its size, as far as it is known"""


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

    Rates are judged as `comparing.compare.best_rate` does: by the seeds tried at each of them, where there are such.
    """
    sizes: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        sizes.setdefault((row.scheme, row.compute, row.n_params, row.tokens), []).append(row)
    kept: list[Row] = [row for same in sizes.values() for row in _at_best_rate(same)]
    points = [Point(r.scheme, r.loss, r.compute, r.n_params, r.tokens, r.seed) for r in kept if r.loss is not None]
    lost = sum(row.loss is None for row in rows)
    other = len(rows) - lost - len(points)
    notes = [f"{other} runs at other learning rates than the best of their size were left out."] if other else []
    notes += [f"{lost} runs did not reach their end and are no points."] if lost else []
    return points, notes + _unlike(sizes.values()) + _same_seeds(points)


def _unlike(sizes: Iterable[Sequence[Row]]) -> list[str]:
    """A remark where runs of one size differ in more than rate and seed."""
    unlike = sum(len({row.rest for row in same if row.rest}) > 1 for same in sizes)
    if not unlike:
        return []
    return [
        f"{unlike} sizes hold runs that differ in more than learning rate and seed, such as the start of the embedding"
        " or the optimiser; they are taken as one. Fit each kind by itself, from its rows of runs.csv."
    ]


def _same_seeds(points: Sequence[Point]) -> list[str]:
    """A remark where runs of one size differ in nothing but their loss."""
    runs: dict[tuple[object, ...], set[float]] = {}
    for p in points:
        runs.setdefault((p.scheme, p.compute, p.n_params, p.tokens, p.seed), set()).add(p.loss)
    sizes = {key[:4] for key, losses in runs.items() if len(losses) > 1}
    if not sizes:
        return []
    return [
        f"{len(sizes)} sizes have several runs of the same seed, or of none; they are taken as seeds. Were they trained"
        " at several learning rates, give a column lr."
    ]


def _at_best_rate(rows: Sequence[Row]) -> list[Row]:
    best = best_of((row.lr or UNSAID, row.seed, row.loss) for row in rows)
    return [row for row in rows if (row.lr or UNSAID) == best]


# ---------------------------------------------------------------------------------------------------------------- CSV
def _csv_rows(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)  # a quote that is never closed would swallow the rows after it
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except FileNotFoundError as error:
        raise InputError(f"no such table: {path}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV table ({reason(error)})") from error
    if len(rows) < 2:
        raise InputError(f"{path} has no rows: give a CSV table with a header, {_wanted()}")
    header = rows[0][1]
    names = {key: _column(header, key, path) for key in COLUMNS}
    if names["scheme"] is None or names["loss"] is None:
        one = len(header) == 1 and any(mark in header[0] for mark in ";\t")
        why = "cells must be separated by commas" if one else f"give {_wanted()}"
        raise InputError(f"{path} lacks a column {'scheme' if names['scheme'] is None else 'loss'}: {why}")
    return [_row(cells, header, names, f"{path}, line {number}") for number, cells in rows[1:]]


def _column(header: Sequence[str], key: str, path: Path) -> str | None:
    """The header under which a table has `key`. Raises InputError where two could be meant."""
    found = [h for h in header if h.strip().lower() in COLUMNS[key]]
    if len(found) > 1:
        shown = " and ".join(h.strip() for h in found)
        raise InputError(f"{path} has the columns {shown}, which are both read as {key}: keep or rename one")
    return found[0] if found else None


def _wanted() -> str:
    return "scheme, loss and compute, or scheme, loss, n_params and tokens; seed, lr and status where there are some"


def _row(cells: Sequence[str], header: Sequence[str], names: Mapping[str, str | None], where: str) -> Row:
    """One line of the table. Raises InputError for what is no number."""
    if len(cells) > len(header):
        raise InputError(f"{where}: more cells than the header has; quote a cell that holds a comma")
    line = dict(zip(header, cells, strict=False))  # cells left out at the end are empty

    def text(key: str) -> str:
        name = names[key]
        return "" if name is None else line.get(name, "").strip()

    def number(key: str) -> float | None:
        try:
            return float(text(key)) if text(key) else None
        except ValueError as error:
            raise InputError(f"{where}: {key} is {text(key)!r}, not a number") from error

    def size(key: str) -> float | None:
        found = number(key)
        if found is not None and not (math.isfinite(found) and found > 0):
            raise InputError(f"{where}: {key} is {found:g}, not a positive number")
        return found

    if not text("scheme"):
        raise InputError(f"{where}: no scheme")
    scheme, status = " ".join(text("scheme").split()), text("status").lower()
    if status not in {"", "done", *LOST}:
        raise InputError(f"{where}: status is {text('status')!r}; it may be done, {', '.join(LOST)} or empty")
    loss = None if status in LOST else number("loss")
    if loss is not None and loss <= 0 and math.isfinite(loss):
        raise InputError(f"{where}: a loss of {loss:g} is no cross-entropy: give nats per token, above zero")
    ended = loss is not None and math.isfinite(loss)
    return Row(
        scheme,
        loss if ended else None,
        compute=size("compute"),
        n_params=size("n_params"),
        tokens=size("tokens"),
        lr=size("lr"),
        seed=text("seed"),
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
            run_key(replace(config, lr=1.0, seed=0)),
        )
