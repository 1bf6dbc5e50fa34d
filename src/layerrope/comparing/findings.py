"""What a comparison can tell and what it cannot, in sentences made from its numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerrope.comparing.compare import REFERENCE, Row, Table, Trial
from layerrope.comparing.intervals import Interval, by_luck
from layerrope.comparing.rates import Sweep
from layerrope.training.recipe import TrainConfig


@dataclass(frozen=True)
class Findings:
    """Sentences."""

    can: tuple[str, ...]
    cannot: tuple[str, ...]


def findings(table: Table, base: TrainConfig, sweep: Sweep | None = None) -> Findings:
    """The sentences for a table.

    Args:
        table: the comparison.
        base: the settings its runs share.
        sweep: the packaged sweep where the rates are from it; its seeds say how far one seed can be trusted.
    """
    can = (*_best(table), *_against_reference(table), *_one_seed(table, sweep), *_lost(table))
    cannot = (*_edges(table), *_choice(table, sweep), *_scale(table, base), *_starts(base))
    return Findings(can, cannot)


def signed(interval: Interval, digits: int = 3) -> str:
    """A difference with its interval: `-0.031 [-0.040, -0.022]`."""
    mean = f"{interval.mean:+.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


# ---------------------------------------------------------------------------------------------------- what it tells
def _best(table: Table) -> Iterator[str]:
    if not table.ranked:
        yield "No run was trained to its end, so nothing is compared."
        return
    first = table.ranked[0]
    yield (
        f"Lowest validation loss: {first.scheme}, {first.val_loss:.4f} nats per token"
        f" ({first.bits_per_byte:.4f} bits per byte), at learning rate {first.lr:g}."
    )
    if len(table.ranked) > 1:
        yield "In order: " + ", ".join(f"{row.scheme} {row.val_loss:.3f}" for row in table.ranked) + "."


def _against_reference(table: Table) -> Iterator[str]:
    """Who is told apart from the reference by several seeds."""
    measured = [(row, row.difference) for row in table.ranked if row.difference is not None]
    several = [(row, d) for row, d in measured if d.n > 1]
    if table.reference != REFERENCE:
        yield f"{REFERENCE} is not among the schemes: differences are to the first one, {table.reference}."
    groups = {
        "Better than": [(row, d) for row, d in several if d.decided and d.mean < 0],
        "Worse than": [(row, d) for row, d in several if d.decided and d.mean > 0],
    }
    for word, group in groups.items():
        if group:
            yield f"{word} {table.reference} beyond the spread of the seeds: {_listed(group)}."
    same = [(row, d) for row, d in several if not d.decided]
    if same:
        yield f"Not told apart from {table.reference} by these seeds: {_listed(same)}."
    if len(several) > 1:
        yield by_luck(len(several))


def _listed(group: Sequence[tuple[Row, Interval]]) -> str:
    return ", ".join(f"{row.scheme} {signed(d)}" for row, d in group)


def _one_seed(table: Table, sweep: Sweep | None) -> Iterator[str]:
    if table.seeds > 1 or len(table.ranked) < 2:
        return
    yield "One seed, so no interval: the order is a fact about this seed."
    spread = _spread(table, sweep)
    if spread is None or sweep is None:
        return
    close = [
        f"{a.scheme} and {b.scheme} ({b.val_loss - a.val_loss:.3f} apart)"
        for a, b in itertools.pairwise(table.ranked)
        if a.val_loss is not None and b.val_loss is not None and b.val_loss - a.val_loss < 2 * spread
    ]
    yield (
        f"In the packaged sweep, differences to {sweep.reference} scattered over {len(sweep.seeds)} seeds with a"
        f" standard deviation of up to {spread:.3f} nats. " + _too_close(close)
    )


def _spread(table: Table, sweep: Sweep | None) -> float | None:
    """The largest spread over seeds that the sweep found among these schemes."""
    known = {} if sweep is None else sweep.schemes
    found = [known[row.scheme].spread for row in table.ranked if row.scheme in known]
    return max((s for s in found if s is not None), default=None)


def _too_close(close: Sequence[str]) -> str:
    if not close:
        return "Every gap between neighbours in the order is more than twice that."
    return f"Less than twice that lies between {', '.join(close)}: this run does not rank them."


def _lost(table: Table) -> Iterator[str]:
    """Which runs were lost, and which schemes with them."""
    for status, how in (("diverged", _diverged), ("failed", _crashed)):
        lost = [trial for row in table.rows for trial in row.lost if trial.outcome.status == status]
        if lost:
            word = {"diverged": "Diverged", "failed": "Crashed, twice"}[status]
            yield f"{word}: {'; '.join(how(trial) for trial in lost)}."
    gone = [row.scheme for row in table.rows if row.val_loss is None and row.lost]
    if gone:
        yield f"No loss to compare, since no run reached the end: {', '.join(gone)}."


def _diverged(trial: Trial) -> str:
    step = None if trial.outcome.result is None else trial.outcome.result.diverged_at
    return f"{trial.scheme} at {trial.lr:g} (seed {trial.seed}, step {step})"


def _crashed(trial: Trial) -> str:
    return f"{trial.scheme} at {trial.lr:g} (seed {trial.seed}): {trial.outcome.error}"


# ------------------------------------------------------------------------------------------------ what it does not
def _edges(table: Table) -> Iterator[str]:
    edges = [row for row in table.ranked if row.bracketed is False]
    if edges:
        names = ", ".join(f"{row.scheme} ({row.lr:g})" for row in edges)
        yield f"Not bracketed: the best rate is at the edge of those tried for {names}; a better one may lie beyond."
    blind = [row.scheme for row in table.ranked if row.bracketed is None]
    if blind:
        yield f"One rate only, never swept: {', '.join(blind)}. The scheme and the rate cannot be told apart."


def _choice(table: Table, sweep: Sweep | None) -> Iterator[str]:
    rates = {name: {t.lr for t in table.trials if t.scheme == name} for name in {t.scheme for t in table.trials}}
    if any(len(lrs) > 1 for lrs in rates.values()):
        yield (
            "Each scheme's rate was chosen by the same validation text and seeds that it is judged by, which makes"
            " every loss slightly too low, and more so for schemes with more rates."
        )
    elif sweep is not None:
        shared = {t.seed for t in table.trials} & set(sweep.seeds)
        seeds = "partly on these seeds and" if shared else "on other seeds than these, but"
        yield f"The rates were chosen by the packaged sweep, {seeds} on the validation text that judges them here."


def _scale(table: Table, base: TrainConfig) -> Iterator[str]:
    size = next((row.parameters for row in table.rows if row.parameters), None)
    tokens = base.steps * base.tokens_per_step
    ratio = "" if size is None else f" ({tokens / size:.2g} tokens per parameter, {size:,} parameters)"
    yield (
        f"One shape, one text and {tokens:,} tokens{ratio}: early in training the order shows how fast a start learns,"
        " and it can turn with more tokens or another depth. --budget and --tier ask again."
    )


def _starts(base: TrainConfig) -> Iterator[str]:
    yield (
        f"The start of the stream (embedding std {base.model.embed_std:.4g}), of the weights and of the gains moves the"
        " losses about as much as the scheme: another --embed-std can change the order."
    )
