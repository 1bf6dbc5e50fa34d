"""What low precision costs under each depth scheme: every finished run of a study, scored in every format.

A record of it is a folder with `losses.csv` (a row a run and format), `stream.csv` (a row a run and layer), a chart and
a README whose numbers all come from these rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import layerrope
from layerrope.charts import save_png, scheme_channels
from layerrope.comparing.compare import Table, Trial
from layerrope.comparing.intervals import Interval, by_luck, t_interval
from layerrope.comparing.record import Purpose, bullets, markdown, opening, portable
from layerrope.comparing.report import Comparison, made_with, processor, read_comparison, version_lines
from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.files import csv_text, write_atomic
from layerrope.loading import load_lm
from layerrope.numerics import FORMATS, GROUP, Numerics, numerics
from layerrope.studies.reading import read_found
from layerrope.studies.recipes import RECIPES
from layerrope.study import read_study

if TYPE_CHECKING:
    import altair as alt

LOW = tuple(name for name in FORMATS if name != "fp32")
REFERENCE = "prenorm"
NOT_FINITE = "not finite"
LITTLE = 0.01
"""Nats per token that are called little."""


@dataclass(frozen=True)
class Scored:
    """One run in every format."""

    scheme: str
    seed: int
    lr: float
    key: str
    found: Numerics

    def change(self, name: str) -> float:
        """Nats per token that format `name` adds to the fp32 loss."""
        return next(row.change for row in self.found.rows if row.format == name)


@dataclass(frozen=True)
class Compared:
    """The schemes of one setting, to be scored side by side."""

    name: str
    """the setting in words; empty where there is one only"""
    table: Table
    data: DataConfig


def settings_in(folder: Path) -> list[Compared]:
    """What stands in the folder of a comparison, or of any study of language models: one entry a setting.

    Raises:
        InputError: there is no study, or no run of it was finished.
    """
    study = read_study(folder)
    if study.name in RECIPES:
        groups = read_found(folder).groups
        made = [Compared(group.name, group.table, group.runs[0].config.data) for group in groups]
    else:
        made = [Compared("", read_comparison(folder).table, study.base.data)]
    made = [one for one in made if _finished(one.table)]
    if not made:
        raise InputError(f"{folder} has no finished run: train it first")
    return made


def _finished(table: Table) -> list[Trial]:
    """Every scheme's finished runs at its best rate."""
    return [trial for row in table.ranked for trial in row.trials if trial.result is not None]


def score_schemes(
    folder: Path, found: Compared, tokens: int, batch_size: int, progress: Callable[[str], object] = lambda text: None
) -> list[Scored]:
    """Score the runs of one setting at each scheme's best rate on their validation text.

    Args:
        folder: where the runs lie.
        tokens: positions scored, at most.
        progress: told of each run before it is scored.

    Raises:
        InputError: a run cannot be read, or is no decoder's.
    """
    trials = _finished(found.table)
    batches = list(load_data(found.data).eval_batches(batch_size, tokens))
    where = f"{found.name}: " if found.name else ""
    scored = []
    for i, trial in enumerate(trials):
        progress(f"{where}{i + 1} of {len(trials)}: {trial.scheme}, seed {trial.seed}")
        model = load_lm(folder / trial.key).model
        scored.append(Scored(trial.scheme, trial.seed, trial.lr, trial.key, numerics(model, batches)))
    return scored


# ------------------------------------------------------------------------------------------------------------- tables
def broken(runs: Sequence[Scored], name: str) -> bool:
    """Is the loss of one of `runs` not finite in format `name`? Such a scheme has no mean cost there."""
    return not all(math.isfinite(run.change(name)) for run in runs)


def by_scheme(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The runs of each scheme, in the order of `scored`."""
    names = dict.fromkeys(run.scheme for run in scored)
    return {name: [run for run in scored if run.scheme == name] for name in names}


def loss_rows(scored: Sequence[Scored]) -> list[dict[str, str]]:
    """A row a scheme: mean fp32 loss, and what each format adds, +- half a 95% interval over the seeds."""
    rows = []
    for scheme, runs in by_scheme(scored).items():
        plain = statistics.fmean(run.found.rows[0].loss for run in runs)
        cells = {name: _cell([run.change(name) for run in runs]) for name in LOW}
        rows.append({"scheme": scheme, "fp32 loss": f"{plain:.4f}", **cells})
    return rows


def _cell(changes: Sequence[float]) -> str:
    if not all(map(math.isfinite, changes)):
        return NOT_FINITE
    found = t_interval(changes)
    half = "" if found.low is None else f" ± {found.mean - found.low:.4f}"
    return f"{_signed(found.mean)}{half}"


def _signed(nats: float) -> str:
    """Four digits and a sign; no minus before zero."""
    return f"{round(nats, 4) + 0.0:+.4f}"


def stream_rows(scored: Sequence[Scored]) -> list[dict[str, str]]:
    """A row a scheme: the stream after the first and the last layer, and its largest value; means over the seeds."""
    rows = []
    for scheme, runs in by_scheme(scored).items():

        def mean(pick: Callable[[Numerics], float], runs: Sequence[Scored] = runs) -> float:
            return statistics.fmean(pick(run.found) for run in runs)

        rows.append(
            {
                "scheme": scheme,
                "RMS after layer 0": f"{mean(lambda n: n.rms[0]):.3g}",
                "RMS after the last": f"{mean(lambda n: n.rms[-1]):.3g}",
                "largest value": f"{mean(lambda n: max(n.largest)):.3g}",
                "largest / RMS, at most": f"{mean(lambda n: max(map(_ratio, n.largest, n.rms))):.3g}",
            }
        )
    return rows


def _ratio(largest: float, rms: float) -> float:
    return largest / rms


def answers(scored: Sequence[Scored]) -> list[str]:
    """What the runs say, a sentence a format, in words and numbers."""
    return [_sentence(by_scheme(scored), name) for name in LOW]


def _sentence(everyone: Mapping[str, list[Scored]], name: str) -> str:
    """What format `name` costs: the schemes that it breaks first, then the dearest of the others."""
    groups = {scheme: runs for scheme, runs in everyone.items() if not broken(runs, name)}
    parts = []
    if len(groups) < len(everyone):
        parts.append(f"{name} makes the loss {NOT_FINITE} under {', '.join(s for s in everyone if s not in groups)}")
    if groups:
        means = {scheme: statistics.fmean(run.change(name) for run in runs) for scheme, runs in groups.items()}
        worst = max(means, key=lambda scheme: means[scheme])
        parts.append(f"{name} costs at most {_signed(means[worst])} nats per token on average ({worst})")
    if REFERENCE in groups:
        apart = {scheme: gap for scheme, gap in _gaps(everyone, name).items() if gap.decided}
        told = ", ".join(f"{scheme} ({_signed(gap.mean)})" for scheme, gap in apart.items())
        parts.append(f"told apart from {REFERENCE}: {told or 'none'}")
    return "; ".join(parts) + "."


def _luck(everyone: Mapping[str, Sequence[Scored]]) -> list[str]:
    """What the number of intervals means for each of them; nothing where there are not several."""
    made = sum(len(_gaps(everyone, name)) for name in LOW)
    return [by_luck(made)] if made > 1 else []


def _gaps(everyone: Mapping[str, Sequence[Scored]], name: str) -> dict[str, Interval]:
    """The cost of format `name` under each scheme minus that under Pre-Norm, paired by seed.

    None of a scheme that the format breaks, or that shares fewer than two seeds with Pre-Norm: it has no interval.
    """
    groups = {scheme: runs for scheme, runs in everyone.items() if not broken(runs, name)}
    theirs = {run.seed: run.change(name) for run in groups.get(REFERENCE, ())}
    gaps = {
        scheme: [run.change(name) - theirs[run.seed] for run in runs if run.seed in theirs]
        for scheme, runs in groups.items()
        if scheme != REFERENCE
    }
    return {scheme: t_interval(of) for scheme, of in gaps.items() if len(of) > 1}


# ------------------------------------------------------------------------------------------------------------- record
def write_numerics(
    found: Comparison, scored: Sequence[Scored], folder: Path, purpose: Purpose, command: str, tokens: int
) -> None:
    """Write README.md, losses.csv, stream.csv and the chart into `folder`.

    Raises:
        InputError: it cannot be written.
    """
    save_png(largest_chart(scored), folder / "largest-by-depth.png")
    write_atomic(folder / "losses.csv", csv_text(_losses(scored)))
    write_atomic(folder / "stream.csv", csv_text(_streams(scored)))
    write_atomic(folder / "README.md", readme(found, scored, purpose, command, tokens))


def readme(found: Comparison, scored: Sequence[Scored], purpose: Purpose, command: str, tokens: int) -> str:
    """The record's page."""
    said = answers(scored)
    made = made_with([found.folder / run.key for run in scored])
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in scored}))
    settings = {row["setting"]: row["value"] for row in found.study.facts.get("settings", [])}
    parts = [
        *opening(purpose, _answer(scored)),
        "## Command",
        f"```\n{portable(str(found.study.facts.get('command', '')))}\n{command}\n```",
        "Every run and format is in `losses.csv`, every run and layer in `stream.csv`.",
        "## What each format adds to the loss",
        f"Nats per token on {tokens:,} positions of validation text, mean over seeds {seeds} ± half a 95% interval. "
        "bf16 and fp16 cast the whole model; int8, int4 and fp8 e4m3 round the matrices inside the layers, a scale for "
        f"each row (int4: for {GROUP} inputs); w8a8 rounds their inputs to int8 as well, a scale for each token.",
        markdown(loss_rows(scored)),
        bullets([*said, *_luck(by_scheme(scored))]),
        "## The stream",
        markdown(stream_rows(scored)),
        "![Largest absolute value of the stream after each layer, one line a scheme.](largest-by-depth.png)",
        "## Made with",
        f"- {settings.get('model', '')}; {settings.get('budget', '')}",
        "\n".join(f"- trained with {line}" for line in version_lines(made)),
        f"- scored on {processor()}, torch {torch.__version__}, layerrope {layerrope.__version__}",
    ]
    return "\n\n".join(parts) + "\n"


def _answer(scored: Sequence[Scored]) -> str:
    """One line: the dearest format, and whether the size of the stream orders its cost."""
    groups = by_scheme(scored)
    cost = {
        (scheme, name): statistics.fmean(run.change(name) for run in runs)
        for scheme, runs in groups.items()
        for name in LOW
        if not broken(runs, name)
    }
    lost = [f"{name} under {each}" for each, runs in groups.items() for name in LOW if broken(runs, name)]
    if not cost:
        return f"The loss is {NOT_FINITE} in any format under any scheme."
    (scheme, name), most = max(cost.items(), key=lambda pair: pair[1])
    verdict = "Little" if most < LITTLE else f"Up to {most:.2f} nats per token"
    verdict = f"The loss is {NOT_FINITE} in {', '.join(lost)}. Elsewhere: {verdict.lower()}" if lost else verdict
    halves = max((abs(nats) for (_, cast), nats in cost.items() if cast in ("bf16", "fp16")), default=math.nan)
    size = {each: statistics.fmean(max(run.found.largest) for run in runs) for each, runs in groups.items()}
    big = max(size, key=lambda each: size[each])
    pays = {cast: _signed(cost[big, cast]) if (big, cast) in cost else NOT_FINITE for cast in ("bf16", "int4")}
    return (
        f"{verdict}, at this size. bf16 and fp16 move no scheme's mean loss by more than {halves:.4f} nats per token; "
        f"the dearest format, {name}, adds {most:.4f} at most ({scheme}). {big} has the largest stream, "
        f"{size[big]:,.0f} or {size[big] / torch.finfo(torch.float16).max:.1%} of what fp16 can hold, and pays "
        f"{pays['bf16']} in bf16 and {pays['int4']} in int4."
    )


def largest_chart(scored: Sequence[Scored]) -> alt.TopLevelMixin:
    """Largest absolute value of the stream by layer, mean over the seeds, a line a scheme."""
    import altair as alt
    import polars as pl

    rows = [
        {"scheme": scheme, "layer": float(i), "largest": statistics.fmean(run.found.largest[i] for run in runs)}
        for scheme, runs in by_scheme(scored).items()
        for i in range(len(runs[0].found.largest))
    ]
    colour, dash = scheme_channels("scheme", list(by_scheme(scored)))
    return (
        alt.Chart(pl.DataFrame(rows))
        .mark_line()
        .encode(
            x=alt.X("layer:Q", title="after layer"),
            y=alt.Y("largest:Q", title="largest absolute value", scale=alt.Scale(type="log")),
            color=colour,
            strokeDash=dash,
        )
        .properties(width=420, height=240)
    )


def _losses(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    return [
        {
            "scheme": s.scheme,
            "seed": s.seed,
            "lr": s.lr,
            "key": s.key,
            "format": r.format,
            "loss": r.loss,
            "change": r.change,
        }
        for s in scored
        for r in s.found.rows
    ]


def _streams(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    return [
        {"scheme": s.scheme, "seed": s.seed, "layer": i, "rms": rms, "largest": largest}
        for s in scored
        for i, (rms, largest) in enumerate(zip(s.found.rms, s.found.largest, strict=True))
    ]
