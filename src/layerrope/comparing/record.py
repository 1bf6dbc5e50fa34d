"""A comparison as a record to keep: README, every run as CSV, the charts; and what its sweep says about rates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerrope.charts import save_png
from layerrope.comparing.charts import Figure
from layerrope.comparing.compare import Table, Trial, mean_losses
from layerrope.comparing.rates import Sweep, Swept
from layerrope.comparing.report import Comparison, figures_of, made_with, version_lines
from layerrope.comparing.table import caption_of, shown_rows
from layerrope.errors import InputError
from layerrope.files import csv_text, write_atomic
from layerrope.training.recipe import to_json

COLUMNS = (
    "scheme",
    "lr",
    "seed",
    "status",
    "step",
    "tokens",
    "train_loss",
    "val_loss",
    "bits_per_byte",
    "diverged_at",
    "error",
    "tokens_per_second",
    "seconds",
    "n_params",
    "key",
)


@dataclass(frozen=True)
class Purpose:
    """Why a record was made, written before it was."""

    title: str
    question: str
    doubt: str
    """what would change the answer"""


def write_record(found: Comparison, folder: Path, purpose: Purpose) -> None:
    """Write README.md, runs.csv and the charts into `folder`. Raises InputError if it cannot be written."""
    figures = figures_of(found)
    for figure in figures:
        save_png(figure.chart, folder / f"{figure.name}.png")
    write_atomic(folder / "runs.csv", runs_csv(found.table.trials))
    write_atomic(folder / "README.md", readme(found, purpose, figures))


def opening(purpose: Purpose, answer: str) -> list[str]:
    """How a record's page begins: what was asked, what came out, and what would change it."""
    return [
        f"# {purpose.title}",
        f"**Question.** {purpose.question}",
        f"**Answer.** {answer}",
        f"**What would change it.** {purpose.doubt}",
    ]


def bullets(lines: Sequence[str]) -> str:
    """Lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def portable(command: str) -> str:
    """Commands, a line each, without `--out`, which names a folder of the machine it ran on and changes no result.

    >>> portable("layerrope compare --seeds 0 1 --out /somewhere/else --jobs 2")
    'layerrope compare --seeds 0 1 --jobs 2'
    """
    return "\n".join(_portable(line) for line in command.splitlines())


def _portable(line: str) -> str:
    words = shlex.split(line)
    at = words.index("--out") if "--out" in words else len(words)
    return shlex.join(words[:at] + words[at + 2 :])


def runs_csv(trials: Sequence[Trial]) -> str:
    """Every run, lost ones too, as CSV."""
    return csv_text([trial.as_dict() for trial in trials], COLUMNS)


def readme(found: Comparison, purpose: Purpose, figures: Sequence[Figure]) -> str:
    """The record's page; every number in it is from the runs."""
    facts, said = found.study.facts, found.findings
    parts = [
        *opening(purpose, " ".join(said.can[:2])),
        "## Command",
        f"```\n{portable(str(facts.get('command', '')))}\n```",
        "The same command continues a sweep that was cut. Every run, lost ones too, is in `runs.csv`.",
        "## At the best rates",
        caption_of(found.table),
        markdown(shown_rows(found.table)),
        "## By learning rate",
        "Mean validation loss over the seeds, nats per token; the best in bold.",
        markdown(rate_table(found.table)),
        "## What it tells",
        bullets(said.can[2:]),
        "## What it cannot tell",
        bullets(said.cannot),
        "## Charts",
        *(f"![{figure.alt}]({figure.name}.png)\n\n{figure.caption}" for figure in figures),
        "## Settings",
        markdown(facts.get("settings", [])),
        "## Made with",
        bullets(_machine(found)),
    ]
    return "\n\n".join(parts) + "\n"


def rate_table(table: Table) -> list[dict[str, str]]:
    """Mean loss by scheme and rate, in words; where seeds were lost, how many."""
    rows: list[dict[str, str]] = []
    for row in table.rows:
        found = mean_losses([trial for trial in table.trials if trial.scheme == row.scheme])
        cells = {f"{lr:g}": _cell(lost, loss, lr == row.lr) for lr, (lost, loss) in found.items()}
        rows.append({"scheme": row.scheme, **cells})
    return rows


def _cell(lost: int, loss: float | None, best: bool) -> str:
    words = "lost" if loss is None else f"{loss:.4f}"
    words = f"**{words}**" if best else words
    return f"{words} ({lost} lost)" if lost and loss is not None else words


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([str(row.get(name, "")) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _machine(found: Comparison) -> list[str]:
    made = made_with(found.runs)
    seconds = sum(t.outcome.result.seconds for t in found.table.trials if t.outcome.result is not None)
    return [
        f"{made['processor']}, {made['cores']} cores",
        f"{len(found.table.trials)} runs, {seconds / 3600:.2f} hours of training and evaluation, one thread a run",
        *version_lines(made),
    ]


def sweep_of(found: Comparison) -> Sweep:
    """What the comparison says about every scheme's rates, in the form that the package carries.

    Raises:
        InputError: a scheme has no finished run, so no best rate.
    """
    table = found.table
    lost = [row.scheme for row in table.rows if row.lr is None]
    if lost:
        raise InputError(f"no run of {', '.join(lost)} was trained to its end: finish the sweep first")
    schemes: dict[str, Swept] = {}
    for row in table.rows:
        mine = [trial for trial in table.trials if trial.scheme == row.scheme]
        losses = {lr: None if gone else loss for lr, (gone, loss) in mean_losses(mine).items()}
        spread = None if row.difference is None else row.difference.sd
        schemes[row.scheme] = Swept(float(row.lr or 0), bool(row.bracketed), losses, spread)
    return Sweep(
        base=to_json(found.study.base),
        seeds=tuple(sorted({trial.seed for trial in table.trials})),
        reference=table.reference,
        command=portable(str(found.study.facts.get("command", ""))),
        schemes=schemes,
    )
