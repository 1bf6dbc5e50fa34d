"""A study as a record to keep: README, every run as CSV, the charts, the findings as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerrope.charts import save_png
from layerrope.comparing.record import Purpose, bullets, markdown, opening, portable
from layerrope.comparing.report import made_with, version_lines
from layerrope.errors import InputError
from layerrope.files import write_atomic, write_json
from layerrope.studies.findings import Said, findings_of
from layerrope.studies.reading import Found, runs_csv
from layerrope.studies.report import BEST, document, setting_rows


def write_study_record(found: Found, folder: Path, purpose: Purpose) -> None:
    """Write README.md, runs.csv, findings.json and the charts into `folder`.

    A study with runs left to train is recorded as far as it went, and its page says so first.

    Raises:
        InputError: no run has ended, or the folder cannot be written.
    """
    if not any(outcome.final for outcome in found.outcomes.values()):
        raise InputError(f"{found.folder} has no run that ended: nothing to record yet")
    said = findings_of(found)
    for figure in said.figures:
        save_png(figure.chart, folder / f"{figure.name}.png")
    write_atomic(folder / "runs.csv", runs_csv(found))
    write_json(folder / "findings.json", _findings(found, said))
    write_atomic(folder / "README.md", readme(found, said, purpose))


def _findings(found: Found, said: Said) -> dict[str, Any]:
    """The report's document without its runs, which are in runs.csv."""
    whole = document(found, said)
    return {**{k: v for k, v in whole.items() if k != "runs"}, "command": portable(str(whole["command"]))}


def readme(found: Found, said: Said, purpose: Purpose) -> str:
    """The record's page; every number in it is from the runs."""
    parts = [
        *opening(purpose, _answer(said.sentences)),
        *_unfinished(found),
        "## Command",
        f"```\n{portable(str(found.study.facts.get('command', '')))}\n```",
        "The same command continues a study that was cut. Every run, lost ones too, is in `runs.csv`.",
        "## Findings",
        bullets(said.sentences),
        *(part for caption, rows in said.tables for part in (f"### {caption}", markdown(rows))),
        "## Every setting",
        f"{BEST}.",
        markdown(setting_rows(found)),
        *(["## Charts"] if said.figures else []),
        *(f"![{figure.alt}]({figure.name}.png)\n\n{figure.caption}" for figure in said.figures),
        "## Made with",
        bullets(machine(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _answer(sentences: Sequence[str]) -> str:
    return sentences[0] if sentences else "These runs give none."


def _unfinished(found: Found) -> list[str]:
    left = [run for run in found.study.runs if not found.outcomes[run.key].final]
    if not left:
        return []
    total = len(found.study.runs)
    return [f"**Not finished.** {len(left)} of {total} runs are still to be trained; the command below continues them."]


def machine(found: Found) -> list[str]:
    """Processor, hours, and every set of versions that the runs were trained with."""
    made = made_with(found.folder / run.key for run in found.study.runs)
    done = [outcome.result for outcome in found.outcomes.values() if outcome.result is not None]
    hours = sum(result.seconds for result in done) / 3600
    return [
        f"{made['processor']}, {made['cores']} cores, shared with other work: seconds and tokens per second compare"
        " nothing",
        f"{len(done)} runs ended, {hours:.2f} hours of training and evaluation",
        *version_lines(made),
    ]
