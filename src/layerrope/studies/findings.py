"""What the runs of a study say: sentences and tables, a function a study, all numbers from the runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from layerrope.charts import scheme_channels
from layerrope.comparing.charts import Figure, final_losses, rate_curves, rate_rows
from layerrope.comparing.compare import Row, paired
from layerrope.comparing.findings import signed
from layerrope.comparing.intervals import Interval
from layerrope.errors import InputError
from layerrope.scaling.law import fit_scaling
from layerrope.scaling.report import CAPTION, FitReport, chart, coefficient_rows, saving_rows, sentences
from layerrope.scaling.savings import resample, savings
from layerrope.scaling.table import best_rows, rows_of_runs
from layerrope.studies.paired import paired_tests
from layerrope.studies.reading import Found, Group, Part, parts
from layerrope.studies.robustness import NEAR, Robustness, robustness
from layerrope.studies.stability import TOLERANCE, Verdict, verdict

SHOWN = 12
"""Runs or cells that a sentence names; of more it gives the number."""
APART = 0.5
"""Nats between seeds of one scheme at one rate, beyond which they did not do the same thing."""
AGAINST = ("layerrope", "prenorm-scaledinit")
"""What the ablation's variants are tested against: the paper's start, and scaled-init Pre-Norm."""


@dataclass
class Said:
    """Findings in the order in which a page shows them."""

    sentences: list[str] = field(default_factory=list)
    tables: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def findings_of(found: Found) -> Said:
    """The findings of a study: its own first, then what holds of any."""
    said = Said()
    ANALYSES[found.study.name](found, said)
    said.sentences += _edges(found) + _far_apart(found) + _lost(found)
    return said


# ------------------------------------------------------------------------------------------------------------ any study
def _edges(found: Found) -> list[str]:
    """Best rates that no lower or no higher one brackets."""
    edges = [f"{r.scheme} ({_at(g)}{r.lr:g})" for g in found.groups for r in g.table.ranked if r.bracketed is False]
    single = sum(r.bracketed is None for g in found.groups for r in g.table.ranked)
    all_of = sum(len(g.table.ranked) for g in found.groups)
    few = ", ".join(edges) if len(edges) <= SHOWN else f"{len(edges)} of {all_of}, marked with a star in the table"
    said = [f"Not bracketed, the best rate is at the edge of those tried: {few}."] if edges else []
    return said + (
        [f"{single} cells were trained at one rate only, so scheme and rate are not told apart."] if single else []
    )


def _far_apart(found: Found) -> list[str]:
    """Schemes of which, at their best rate, some seeds learned and others fell back: a mean over both says little."""
    apart: list[str] = []
    for group in found.groups:
        for row in group.table.ranked:
            losses = [t.result.val_loss for t in row.trials if t.result is not None and t.result.val_loss is not None]
            if max(losses) - min(losses) > APART:
                apart.append(f"{row.scheme} at {_at(group)}{row.lr:g} ({min(losses):.3f} to {max(losses):.3f})")
    if not apart:
        return []
    return [
        f"Seeds at one rate end more than {APART} nats apart: {', '.join(apart)}. Some runs fell back there, so means"
        f" and intervals say little of these schemes: {_steadier(found)}."
    ]


def _steadier(found: Found) -> str:
    """What would keep a scheme's seeds together: rates chosen by all of them, and where they were, another recipe."""
    seeds = [Counter((t.scheme, t.lr) for t in group.table.trials).values() for group in found.groups]
    if any(min(of) < max(of) for of in seeds):
        return "--every-seed takes the rate that is best over all seeds"
    return "lower rates, or a recipe that clips gradients, would keep them together"


def _schemes(part: Part) -> list[str]:
    """Every scheme once, in the study's order."""
    return list(dict.fromkeys(row.scheme for group in part.groups for row in group.table.rows))


def _at(place: Group | Part) -> str:
    return f"{place.name}, " if place.name else ""


def _in(place: Part, words: str) -> str:
    """A caption or the like, with the setting that it holds in."""
    return f"{words}. {place.name}" if place.name else words


def _lost(found: Found) -> list[str]:
    """Every run that diverged, crashed or is not finished; none is averaged away."""
    said: list[str] = []
    for status, word in (("diverged", "Diverged"), ("failed", "Crashed, twice"), ("interrupted", "Not finished")):
        lost = [(g, t) for g in found.groups for t in g.table.trials if t.outcome.status == status]
        if lost:
            shown = ", ".join(f"{t.scheme} at {t.lr:g} ({_at(g)}seed {t.seed})" for g, t in lost[:SHOWN])
            more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
            said.append(f"{word}: {len(lost)} runs: {shown}{more}. All are in runs.csv.")
    return said


def _order(group: Group) -> str:
    """The schemes of a setting, best first."""
    order = ", ".join(f"{row.scheme} {row.val_loss:.3f}" for row in group.table.ranked)
    return f"{group.name or 'All runs'}: {order or 'no run reached its end'}."


def by_setting(part: Part, axis: str, title: str) -> Figure | None:
    """Loss at the best rate against a numeric axis, a line a scheme; none where fewer than two values have one."""
    import altair as alt
    import polars as pl

    rows = [
        {"scheme": r.scheme, "x": float(g.setting[axis]), "loss": r.val_loss}
        for g in part.groups
        for r in g.table.ranked
    ]
    if len({row["x"] for row in rows}) < 2:
        return None
    colour, dash = scheme_channels("scheme", list(dict.fromkeys(row["scheme"] for row in rows)))
    values = sorted({row["x"] for row in rows})
    drawn = (
        alt.Chart(pl.DataFrame(rows))
        .mark_line()
        .encode(
            x=alt.X(
                "x:Q",
                title=title,
                scale=alt.Scale(type="log", nice=False, padding=12),
                axis=alt.Axis(values=values, format="d"),
            ),
            y=alt.Y("loss:Q", title="validation loss, nats per token", scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=dash,
            tooltip=["scheme", "x", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    caption = f"Validation loss against {title}, each scheme at its best rate; a model that was lost has no point."
    return Figure(f"loss-by-{axis}", drawn, caption, caption)


def told_apart(drawn: Sequence[tuple[Group | Part, Figure | None]]) -> list[Figure]:
    """Charts of one kind, by setting: the number of the setting in the file's name and its name in the words.

    The chart of a single setting stays as it is.
    """
    if len(drawn) == 1:
        return [figure for _, figure in drawn if figure is not None]
    return [
        replace(
            figure,
            name=f"{figure.name}-{i}",
            caption=f"{place.name}. {figure.caption}",
            alt=f"{place.name}. {figure.alt}",
        )
        for i, (place, figure) in enumerate(drawn)
        if figure is not None
    ]


# ---------------------------------------------------------------------------------------------------------- the ladder
def _ladder(found: Found, said: Said) -> None:
    """A law for each start of the stream, under which runs of one size are no seeds; lengths are points of one law."""
    drawn: list[tuple[Part, Figure | None]] = []
    refused: list[str] = []
    for part in parts(found.groups, "size", "budget"):
        try:
            drawn.append((part, _say_law(part, _law(found, part), said)))
        except InputError as error:
            drawn.append((part, None))
            refused.append(f"{_in(part, 'No curve was fitted')}: {error}")
    said.sentences += [_order(group) for group in found.groups] + refused
    said.figures += told_apart(drawn)


def _law(found: Found, part: Part) -> FitReport:
    """The law of these sizes. Raises InputError where there is none."""
    mine = {run.key for group in part.groups for run in group.runs}
    runs = [(run.config, found.outcomes[run.key]) for run in found.study.runs if run.key in mine]
    points, notes = best_rows(list(rows_of_runs(runs)))
    fit = fit_scaling(points)
    made = resample(fit)
    saved, refused = savings(fit, resamples=made)
    return FitReport(fit, made, saved, [*notes, *refused], "these runs", "")


def _say_law(part: Part, report: FitReport, said: Said) -> Figure:
    """Add what a law says in words and tables, and draw it."""
    said.sentences += [f"{part.name}: {line}" if part.name else line for line in sentences(report)]
    if report.savings:
        caption = _in(part, "Compute saved at equal loss; the best baseline first")
        said.tables.append((caption, saving_rows(report.savings)))
    said.tables.append((_in(part, "L(C) = E + A C^-alpha"), coefficient_rows(report)))
    return Figure("scaling", chart(report), CAPTION, "Validation loss against training compute.")


# ----------------------------------------------------------------------------------------------------- depth and width
def _depth(found: Found, said: Said) -> None:
    split = parts(found.groups, "layers")
    said.sentences += [_at(part) + v.words for part in split for v in _verdicts(part)]
    said.sentences.append(
        f"Stable: every depth has a finished run, and none is worse than the best shallower one by {TOLERANCE} nats."
        " Deeper models are larger here, so a falling loss alone is no praise of depth; the study aspect asks that."
    )
    said.sentences += [_at(part) + line for part in split for line in _rates_move(part)]
    caption = "Best learning rate by layers; * at the edge of those tried, so not bracketed"
    said.tables += [(_in(part, caption), rows) for part in split if (rows := _rates_by_depth(part))]
    said.figures += told_apart([(part, by_setting(part, "layers", "layers")) for part in split])


def _rates_by_depth(part: Part) -> list[dict[str, Any]]:
    """Each scheme's best rate at every depth, with the lost runs; none where nothing was swept."""
    if not any(row.bracketed is not None for group in part.groups for row in group.table.rows):
        return []
    return [
        {
            "scheme": name,
            **{str(g.setting["layers"]): _rate(r) for g in part.groups for r in g.table.rows if r.scheme == name},
        }
        for name in _schemes(part)
    ]


def _rate(row: Row) -> str:
    best = "none ended" if row.lr is None else f"{row.lr:g}{'*' if row.bracketed is False else ''}"
    return best + (f", {len(row.lost)} lost" if row.lost else "")


def _rates_move(part: Part) -> list[str]:
    """How far the best rate moves over depths: what a rate carried from a shallow model to a deep one must expect."""
    said: list[str] = []
    for name in _schemes(part):
        rows = [r for g in part.groups for r in g.table.rows if r.scheme == name and r.bracketed is not None]
        rates = [row.lr for row in rows if row.lr is not None]
        if len(rates) > 1:
            open_end = "" if all(row.bracketed for row in rows) else " or more, for not every one is bracketed"
            said.append(
                f"{name}: the best learning rate moves by {max(rates) / min(rates):.3g}x over depths{open_end}."
            )
    return said


def _verdicts(part: Part) -> list[Verdict]:
    made: list[Verdict] = []
    for name in _schemes(part):
        rows = {int(g.setting["layers"]): r for g in part.groups for r in g.table.rows if r.scheme == name}
        losses = {depth: row.val_loss for depth, row in rows.items()}
        made.append(verdict(name, losses, {depth: len(row.lost) for depth, row in rows.items()}))
    return sorted(made, key=lambda v: -(v.stable_to or 0))


def _aspect(found: Found, said: Said) -> None:
    split = parts(found.groups, "layers", "shape")
    said.sentences += [_at(part) + line for part in split for line in _best_shapes(part)]
    title = "layers, at equal parameters in the layers"
    said.figures += told_apart([(part, by_setting(part, "layers", title)) for part in split])


def _best_shapes(part: Part) -> list[str]:
    """Each scheme's best shape, and what its deepest one loses against it."""
    layers = {g.setting["shape"]: g.setting["layers"] for g in part.groups}
    said: list[str] = []
    for name in _schemes(part):
        rows = [(g.setting["shape"], r.val_loss) for g in part.groups for r in g.table.ranked if r.scheme == name]
        losses = {shape: loss for shape, loss in rows if loss is not None}
        if losses:
            best, deepest = min(losses, key=losses.__getitem__), max(losses, key=layers.__getitem__)
            gap = losses[deepest] - losses[best]
            said.append(f"{name}: best shape {best} ({losses[best]:.4f}); the deepest, {deepest}, is {gap:+.4f}.")
    return said


# ---------------------------------------------------------------------------------------------------------------- rates
def _lr(found: Found, said: Said) -> None:
    start = math.log(found.study.base.model.vocab_size)
    drawn: list[tuple[Group, Figure | None]] = []
    for group in found.groups:
        rows = robustness(group.table.trials, start)
        where = _at(group) if len(found.groups) > 1 else ""
        said.tables.append(
            (f"Good learning rates: within {NEAR} nats of the scheme's best. {group.name}", _widths(rows))
        )
        said.sentences += [where + line for line in _wider(rows)]
        drawn.append((group, rate_curves(rate_rows(group.table, None), "from these runs")))
    said.figures += told_apart(drawn)


def _widths(rows: Sequence[Robustness]) -> list[dict[str, Any]]:
    plain = next((row for row in rows if row.scheme == "prenorm"), None)
    return [
        {
            "scheme": r.scheme,
            "best lr": " ".join(f"{lr:g}" for lr in sorted({region.best_lr for region in r.regions})),
            "good from": _geometric([region.low for region in r.regions]),
            "to": _geometric([region.high for region in r.regions]),
            "width": "lost" if r.width is None else f"{'at least ' if r.bound else ''}{r.width:.1f}x",
            "by the rates tried alone": _limits(r),
            "sensitivity, nats": "" if r.sensitivity is None else f"{r.sensitivity:.4f}",
            "of prenorm's": _share(r.sensitivity, None if plain is None else plain.sensitivity),
        }
        for r in rows
    ]


def _limits(row: Robustness) -> str:
    """The width without lines between rates: `2x to 8x`."""
    if row.limits is None:
        return ""
    least, most = row.limits
    return f"at least {least:.3g}x" if most is None else f"{least:.3g}x to {most:.3g}x"


def _geometric(values: Sequence[float]) -> str:
    return f"{math.exp(math.fsum(map(math.log, values)) / len(values)):.3g}" if values else ""


def _share(mine: float | None, theirs: float | None) -> str:
    return "" if mine is None or not theirs else f"{mine / theirs:.2f}"


def _wider(rows: Sequence[Robustness]) -> list[str]:
    """How much wider, and how much less sensitive, than Pre-Norm."""
    plain = next((row for row in rows if row.scheme == "prenorm"), None)
    if plain is None or plain.width is None:
        return []
    said: list[str] = []
    for row in rows:
        if row is plain or row.width is None or not row.sensitivity or not plain.sensitivity:
            continue
        doubts = ["a region reaches the edge of the grid"] if row.bound or plain.bound else []
        doubts += ["a region holds a single rate of the grid"] if row.unresolved or plain.unresolved else []
        bound = f" ({' and '.join(doubts)}, so this is no measured ratio)" if doubts else ""
        ratio = plain.sensitivity / row.sensitivity
        how = f"{ratio:.2f} times lower" if ratio >= 1 else f"{1 / ratio:.2f} times higher"
        said.append(
            f"{row.scheme}: good rates span {row.width / plain.width:.2f} times Pre-Norm's factor{bound}; sensitivity"
            f" {how}."
        )
    return said


# ------------------------------------------------------------------------------------------------------------- ablation
def _ablation(found: Found, said: Said) -> None:
    for group in found.groups:
        said.sentences += _left_without_rotation(group)
        for against in AGAINST:
            tests = paired_tests(group.table, against)
            rows = [
                {
                    "scheme": t.scheme,
                    f"minus {against}": signed(t.difference, 4),
                    "seeds": t.difference.n,
                    "p": "" if t.p is None else f"{t.p:.3g}",
                    f"p of {len(tests)} tests": "" if t.p_holm is None else f"{t.p_holm:.3g}",
                    "verdict": t.words,
                }
                for t in tests
            ]
            if rows:
                said.tables.append((f"Against {against}, paired by seed. {group.name}", rows))
    _each_setting(found, said)


def _left_without_rotation(group: Group) -> list[str]:
    """How much of LayerRoPE's lead over each baseline is there without the rotation; no share of what is no lead."""
    rows = {row.scheme: row for row in group.table.ranked}
    said: list[str] = []
    for baseline in ("prenorm", "prenorm-scaledinit", "lns"):
        lead, kept = (_lead(rows, name, baseline) for name in ("layerrope", "layerrope:rotation=off"))
        if lead is None or kept is None:
            continue
        share = f"{kept.mean / lead.mean:.0%} of it" if kept.mean > 0 else "nothing of it"
        told = lead.decided and lead.mean > 0
        said.append(
            f"{_at(group)}LayerRoPE's lead over {baseline}: {signed(lead, 4)} nats; without the rotation"
            f" {signed(kept, 4)}, {share if told else 'but no lead is told, so no share of it'}."
        )
    return said


def _lead(rows: Mapping[str, Row], scheme: str, baseline: str) -> Interval | None:
    """Loss of the baseline minus that of the scheme, paired by seed; None where either has no finished run."""
    if scheme not in rows or baseline not in rows:
        return None
    return paired(rows[baseline].trials, rows[scheme].trials)


# ---------------------------------------------------------------------------------------------------------- the others
def _each_setting(found: Found, said: Said) -> None:
    said.sentences += [_order(group) for group in found.groups]
    for i, group in enumerate(found.groups):
        drawn = final_losses(group.table) if group.table.ranked else None
        if drawn is not None:
            said.figures.append(Figure(f"final-losses-{i}", drawn.chart, f"{group.name}. {drawn.caption}", drawn.alt))


def _context(found: Found, said: Said) -> None:
    said.sentences += [_order(group) for group in found.groups]
    title = "tokens of context, at equal tokens per step"
    split = parts(found.groups, "context")
    said.figures += told_apart([(part, by_setting(part, "context", title)) for part in split])


def _recipe(found: Found, said: Said) -> None:
    """Whether the order of the schemes is the same under every optimiser recipe."""
    for part in parts(found.groups, "recipe"):
        orders = {tuple(row.scheme for row in group.table.ranked) for group in part.groups}
        if len(part.groups) > 1:
            same = "the same" if len(orders) == 1 else "not the same"
            where = f" at {part.name}" if part.name else ""
            told = "" if len(orders) == 1 else f": {_swapped(part)}"
            said.sentences.append(
                f"The order of the schemes is {same} under all {len(part.groups)} recipes{where}{told}."
            )
    _each_setting(found, said)


def _swapped(part: Part) -> str:
    """The pairs of schemes of which each is ahead of the other under some recipe by more than seeds spread."""
    ahead: set[tuple[str, str]] = set()
    for group in part.groups:
        rows = {row.scheme: row for row in group.table.ranked}
        pairs = [(one, two) for one in rows for two in rows if one != two]
        leads = {pair: _lead(rows, *pair) for pair in pairs}
        ahead |= {pair for pair, lead in leads.items() if lead is not None and lead.decided and lead.mean > 0}
    swaps = [f"{one} and {two}" for one, two in sorted(ahead) if one < two and (two, one) in ahead]
    return (
        f"told from the spread of seeds for {', '.join(swaps)}" if swaps else "no swap is told from the spread of seeds"
    )


def _loop(found: Found, said: Said) -> None:
    """What looping changes for every scheme of a size, and then the schemes of each way to run it."""
    for part in parts(found.groups, "run"):
        here = {g.setting["run"]: g for g in part.groups}
        looped, *others = here
        rows = [
            {"scheme": scheme, **{f"{looped} minus {way}": _minus(here[looped], here[way], scheme) for way in others}}
            for scheme in dict.fromkeys(row.scheme for row in here[looped].table.ranked)
        ]
        if others and rows:
            said.tables.append((_in(part, "What looping adds to the loss, paired by seed, nats"), rows))
    _each_setting(found, said)


def _minus(group: Group, other: Group, scheme: str) -> str:
    """The loss of a scheme in one setting less that in another, each at its own best rate."""
    one, two = ([row for row in each.table.ranked if row.scheme == scheme] for each in (group, other))
    difference = paired(one[0].trials, two[0].trials) if one and two else None
    return "" if difference is None else signed(difference, 4)


ANALYSES: dict[str, Callable[[Found, Said], None]] = {
    "ladder": _ladder,
    "depth": _depth,
    "aspect": _aspect,
    "lr": _lr,
    "ablation": _ablation,
    "recipe": _recipe,
    "context": _context,
    "competitors": _each_setting,
    "loop": _loop,
}
