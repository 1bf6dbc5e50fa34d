"""The charts of a comparison: loss curves, final losses, learning-rate curves, gains and stream by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerrope.charts import scheme_channels, scheme_colours
from layerrope.comparing.compare import Row, Table, mean_losses
from layerrope.comparing.rates import Sweep
from layerrope.errors import InputError
from layerrope.gains import SITES
from layerrope.training.run_folder import read_metrics

if TYPE_CHECKING:
    import altair as alt

NAME_WIDTH = 380
"""Pixels for a scheme's name beside its row: the longest of the ablation's fit."""
SITE_NAMES = {
    "attn_read": "attention reads",
    "attn_write": "attention writes",
    "mlp_read": "MLP reads",
    "mlp_write": "MLP writes",
}


@dataclass(frozen=True)
class Figure:
    """A chart with its file name, its caption and what it shows in words."""

    name: str
    chart: alt.TopLevelMixin
    caption: str
    alt: str
    panels: tuple[tuple[alt.TopLevelMixin, str, str], ...] = ()
    """the same chart as several of (chart, caption, alt), for a page that may be narrow"""


def _frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> Any:
    import polars as pl

    return pl.DataFrame(rows, schema=dict(columns))


def _schemes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["scheme"] for row in rows))


# ------------------------------------------------------------------------------------------------------ loss curves
def loss_rows(folder: Path, table: Table) -> list[dict[str, Any]]:
    """Training and validation loss by tokens of every run at its scheme's best rate."""
    return [
        {"scheme": row.scheme, "seed": str(trial.seed), "tokens": line["tokens"], "loss": line[key], "text": text}
        for row in table.ranked
        for trial in row.trials
        for line in read_metrics(folder / trial.key / "metrics.jsonl")
        for key, text in (("loss", "training"), ("val_loss", "validation"))
        if line.get(key) is not None
    ]


def ends(table: Table) -> list[dict[str, Any]]:
    """Where the runs diverged of every scheme that has no curve: scheme, rate, seed, tokens, step."""
    lost = [(trial, trial.outcome.result) for row in table.rows if row.val_loss is None for trial in row.lost]
    return [
        {"scheme": t.scheme, "lr": t.lr, "seed": str(t.seed), "tokens": found.tokens, "step": found.diverged_at}
        for t, found in lost
        if found is not None and found.diverged_at is not None
    ]


def loss_curves(rows: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]] = ()) -> Figure:
    """Training loss against tokens, one line a run; `lost` (from `ends`) are crosses along the top."""
    caption = (
        "Loss on each stretch of training text before it is learnt from, averaged between log lines. All schemes see"
        " the same batches, so the curves compare point by point. The first tokens are cut off above."
    )
    if lost:
        caption += " A cross along the top: a run of a scheme without any finished one diverged there."
    mine = [row for row in rows if row["text"] == "training"]
    alt = "Training loss against training tokens, one line for each run."
    return Figure("loss-curves", _curves(mine, lost, "training loss, nats per token"), caption, alt)


def validation_curves(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Validation loss against tokens; None where the runs were only evaluated at their ends."""
    mine = [row for row in rows if row["text"] == "validation"]
    if len({row["tokens"] for row in mine}) < 2:
        return None
    chart = _curves(mine, (), "validation loss, nats per token")
    alt = "Validation loss against training tokens, one line for each run."
    return Figure("validation-curves", chart, "Validation loss, on the same windows each time.", alt)


def _curves(rows: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]], title: str) -> alt.TopLevelMixin:
    import altair as alt
    import polars as pl

    columns = {"scheme": pl.Utf8, "seed": pl.Utf8, "tokens": pl.Int64, "loss": pl.Float64, "text": pl.Utf8}
    low, high = _late(rows)
    colour, dash = scheme_channels("scheme", _schemes([*rows, *lost]))
    x = alt.X("tokens:Q", title="training tokens", axis=alt.Axis(format="~s"))
    y = alt.Y("loss:Q", title=title, scale=alt.Scale(domain=[low, high], zero=False))
    words = ["scheme", "seed", "tokens", alt.Tooltip("loss:Q", format=".4f")]
    lines = (
        alt.Chart(_frame(rows, columns))
        .mark_line(clip=True)
        .encode(x=x, y=y, color=colour, strokeDash=dash, detail="seed:N", tooltip=words)
    )
    spots = {"scheme": pl.Utf8, "lr": pl.Float64, "seed": pl.Utf8, "tokens": pl.Int64, "step": pl.Int64}
    crosses = (
        alt.Chart(_frame(lost, spots))
        .mark_point(shape="cross", angle=45, size=90)
        .encode(x=x, y=alt.value(0), color=colour, tooltip=["scheme", "lr", "seed", "step"])
    )
    return alt.layer(lines, crosses) if lost else alt.layer(lines)


def _late(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Limits of the loss axis that show the last four fifths of every curve."""
    end = max((row["tokens"] for row in rows), default=0)
    shown = [row["loss"] for row in rows if row["tokens"] >= end / 5]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    pad = 0.03 * (high - low) or 0.1
    return low - pad, high + pad


# ----------------------------------------------------------------------------------------------------- final losses
def final_losses(table: Table) -> Figure | None:
    """Validation loss of every scheme at its best rate: a dot a seed, the mean, its distance to the reference.

    None where no run was trained to its end.
    """
    import altair as alt
    import polars as pl

    rows = [
        {"scheme": row.scheme, "seed": str(t.seed), "loss": t.result.val_loss, "mean": row.val_loss, "note": _gap(row)}
        for row in table.ranked
        for t in row.trials
        if t.result is not None
    ]
    if not rows:
        return None
    columns = {"scheme": pl.Utf8, "seed": pl.Utf8, "loss": pl.Float64, "mean": pl.Float64, "note": pl.Utf8}
    frame = _frame(rows, columns)
    names = [row.scheme for row in table.ranked]
    y = alt.Y("scheme:N", sort=names, title=None, axis=alt.Axis(titleX=0, labelLimit=NAME_WIDTH))
    colour = alt.Color("scheme:N", scale=scheme_colours(names), legend=None)
    x = alt.X(
        "loss:Q",
        title="validation loss, nats per token",
        scale=alt.Scale(zero=False, padding=24),
        axis=alt.Axis(tickCount=6),
    )
    seeds = alt.Chart(frame).mark_point(size=70).encode(x=x, y=y, color=colour, tooltip=["scheme", "seed", "loss"])
    mean = alt.Chart(frame).mark_tick(thickness=2, size=22).encode(x="mean(mean):Q", y=y, color=colour)
    words = (
        alt.Chart(frame)
        .mark_text(dy=-19, align="center")
        .encode(x="mean(mean):Q", y=y, text="note:N", detail="scheme:N")
    )
    chart = (seeds + mean + words).properties(height=52 * len(names))
    caption = f"Validation loss at each scheme's best rate, a dot a seed, with the distance to {table.reference}."
    return Figure("final-losses", chart, caption, caption)


def _gap(row: Row) -> str:
    return f"{row.val_loss:.3f}" if row.difference is None else f"{row.difference.mean:+.3f}"


# ---------------------------------------------------------------------------------------------- learning-rate curves
def rate_rows(table: Table, sweep: Sweep | None) -> list[dict[str, Any]]:
    """Mean validation loss by scheme and rate, from the runs or, for schemes tried at one rate, from the sweep."""
    rows: list[dict[str, Any]] = []
    for row in table.rows:
        mine = [trial for trial in table.trials if trial.scheme == row.scheme]
        losses = {lr: None if lost else loss for lr, (lost, loss) in mean_losses(mine).items()}
        if len(losses) < 2 and sweep is not None and row.scheme in sweep.schemes:
            losses = dict(sweep.schemes[row.scheme].losses)
        rows += [{"scheme": row.scheme, "lr": lr, "loss": loss} for lr, loss in losses.items()]
    return rows


def rate_curves(rows: Sequence[Mapping[str, Any]], source: str) -> Figure | None:
    """Validation loss against the learning rate; None where no scheme was tried at two."""
    import altair as alt
    import polars as pl

    lost = [f"{row['scheme']} at {row['lr']:g}" for row in rows if row["loss"] is None]
    rows = [row for row in rows if row["loss"] is not None]
    if len({row["lr"] for row in rows}) < 2:
        return None
    frame = _frame(rows, {"scheme": pl.Utf8, "lr": pl.Float64, "loss": pl.Float64})
    colour, dash = scheme_channels("scheme", _schemes(rows))
    rates = sorted({row["lr"] for row in rows})
    chart = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=alt.X(
                "lr:Q",
                title="peak learning rate",
                scale=alt.Scale(type="log", nice=False, padding=12),
                axis=alt.Axis(values=rates),
            ),
            y=alt.Y("loss:Q", title="validation loss, nats per token", scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=dash,
            tooltip=["scheme", "lr", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    caption = f"Validation loss by learning rate, {source}." + (f" No point: {', '.join(lost)}." if lost else "")
    return Figure("learning-rates", chart, caption, "Validation loss against the learning rate, one line a scheme.")


# ------------------------------------------------------------------------------------------------- gains and stream
def gain_chart(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Size of the learned gains by layer, a panel for each site. Rows: scheme, panel (a `SITE_NAMES`), x, y."""
    caption = (
        "Root mean square over channels of the learned gain, by layer, at each of the four sites. A site without a gain"
        " (the writes of a Pre-Norm block) has no line."
    )
    return _by_depth("gains-by-depth", rows, [SITE_NAMES[s] for s in SITES], "RMS of the gain", "layer", caption)


WHEN = ("at the start", "after training")


def stream_chart(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Size of the stream by depth, before and after training. Rows: scheme, panel (of `WHEN`), x, y."""
    caption = (
        "Root mean square of the stream over positions and channels, before the first sublayer and after each one, on"
        " validation text. A sublayer that adds little to a large stream changes little."
    )
    return _by_depth("stream-by-depth", rows, list(WHEN), "RMS of the stream", "depth in layers", caption)


def _by_depth(
    name: str, rows: Sequence[Mapping[str, Any]], panels: Sequence[str], what: str, x_title: str, caption: str
) -> Figure | None:
    """Panels of y against x on one logarithmic scale; None where there are no rows."""
    import altair as alt
    import polars as pl

    if not rows:
        return None
    frame = _frame(rows, {"scheme": pl.Utf8, "panel": pl.Utf8, "x": pl.Float64, "y": pl.Float64})
    colour, dash = scheme_channels("scheme", _schemes(rows))
    sizes = [row["y"] for row in rows if row["y"] > 0]
    domain = [min(sizes, default=1.0) / 1.1, max(sizes, default=1.0) * 1.1]

    def lines(title: str | None) -> alt.Chart:
        y = alt.Y("y:Q", title=title, scale=alt.Scale(type="log", domain=domain, nice=False))
        return (
            alt.Chart(frame)
            .mark_line()
            .encode(
                x=alt.X("x:Q", title=x_title, axis=alt.Axis(tickMinStep=1)),
                y=y,
                color=colour,
                strokeDash=dash,
                tooltip=["scheme", "x", "y"],
            )
        )

    header = alt.Header(labelAnchor="start", labelFontSize=12)
    facet = alt.Facet("panel:N", sort=list(panels), title=None, header=header)
    whole = lines(None).properties(width=320, height=190).facet(facet=facet, columns=2, title=what)
    each = [
        (lines(f"{panel}: {what}").transform_filter(alt.datum.panel == panel), panel, f"{what} against depth, {panel}")
        for panel in panels
    ]
    return Figure(
        name, whole, caption, f"{what} against {x_title}, one line a scheme: {', '.join(panels)}.", tuple(each)
    )


# ---------------------------------------------------------------------------------------------------------- picture
def picture(rows: Sequence[Mapping[str, Any]], table: Table, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Loss curves and final losses side by side: what a README shows.

    Raises InputError where no run was trained to its end.
    """
    import altair as alt

    final = final_losses(table)
    if final is None:
        raise InputError("there is no picture to draw: no run was trained to its end")
    left, right = loss_curves(rows, ends(table)).chart, final.chart
    assert isinstance(left, alt.LayerChart)
    assert isinstance(right, alt.LayerChart)
    both = alt.hconcat(left.properties(width=430, height=270), right.properties(width=330, height=270), spacing=30)
    words = alt.TitleParams(title, subtitle=subtitle, offset=18)
    return both.properties(title=words).resolve_scale(color="independent", strokeDash="independent")
