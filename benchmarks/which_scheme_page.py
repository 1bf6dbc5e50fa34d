"""Write docs/which-scheme.md: which depth scheme to use, answered from the records under results/ and from the code.

python benchmarks/which_scheme_page.py
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from layerrope import LM, account, schemes, tiers
from layerrope.comparing.intervals import Interval, t_interval
from layerrope.exporting.folding import obstacles

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "which-scheme.md"
SEEDS, SWEEP = (ROOT / "results" / name / "runs.csv" for name in ("demo-seeds", "demo-sweep"))
BENCH = ROOT / "results" / "bench" / "schemes.json"

NEAR = 0.1
"""Nats from its own best within which a learning rate of the sweep counts as a good one."""
REFERENCE = "prenorm"


@dataclass(frozen=True)
class Run:
    """One finished run of a record."""

    scheme: str
    lr: float
    seed: int
    loss: float
    tokens: int
    n_params: int


def runs(path: Path) -> list[Run]:
    """The finished runs of a runs.csv."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Run(r["scheme"], float(r["lr"]), int(r["seed"]), float(r["val_loss"]), int(r["tokens"]), int(r["n_params"]))
            for r in csv.DictReader(file)
            if r["status"] == "done"
        ]


def differences(found: Sequence[Run]) -> dict[str, Interval]:
    """Scheme -> paired interval of its loss minus the reference's over the seeds that both have."""
    losses = {(r.scheme, r.seed): r.loss for r in found}
    seeds = sorted({r.seed for r in found if r.scheme == REFERENCE})
    names = sorted({r.scheme for r in found} - {REFERENCE})
    paired = {n: [losses[n, s] - losses[REFERENCE, s] for s in seeds if (n, s) in losses] for n in names}
    return {name: t_interval(values) for name, values in paired.items() if values}


def good_rates(found: Sequence[Run], scheme: str) -> tuple[float, float, float]:
    """(best rate, lowest and highest rate within `NEAR` of the best loss) of one scheme."""
    mine = {r.lr: r.loss for r in found if r.scheme == scheme}
    best = min(mine, key=lambda lr: mine[lr])
    near = [lr for lr, loss in mine.items() if loss <= mine[best] + NEAR]
    return best, min(near), max(near)


@lru_cache
def stock(name: str) -> bool:
    """Does a trained model of this scheme fold into a stock class?"""
    with torch.device("meta"):
        return not obstacles(LM(replace(tiers["130m"], n_layer=8, scheme=name)))


def _signed(found: Interval) -> str:
    bounds = "" if found.low is None or found.high is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.mean:+.3f}{bounds}"


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}" if quoted else "none"


WIDE = 0.1
"""Standard deviation over seeds, in nats, from which a recipe is called unsteady."""


def unsteady(found: Sequence[Run]) -> str:
    """A sentence on the recipes whose seeds differ widely, or nothing."""
    spreads = {n: t_interval([r.loss for r in found if r.scheme == n]).sd or 0.0 for n in {r.scheme: 0 for r in found}}
    names = [name for name, sd in spreads.items() if sd > WIDE]
    if not names:
        return ""
    return (
        f"The losses of {_listed(names)} spread widely over seeds at the rate that one seed chose;\n"
        "a sweep over several seeds would probably choose lower ones and treat them better. "
    )


def losses_table(found: Sequence[Run], sweep: Sequence[Run]) -> str:
    """Every scheme of the three-seed record: loss, difference, rates."""
    apart = differences(found)
    means = {name: t_interval([r.loss for r in found if r.scheme == name]) for name in {r.scheme for r in found}}
    lines = [
        "| scheme | loss, nats | minus Pre-Norm | spread over seeds | best rate | good rates |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(means, key=lambda n: means[n].mean):
        best, low, high = good_rates(sweep, name)
        difference = _signed(apart[name]) if name in apart else "reference"
        sd = means[name].sd
        spread = "one seed" if sd is None else f"{sd:.3f}"
        lines.append(
            f"| `{name}` | {means[name].mean:.3f} | {difference} | {spread} | {best:g} | {low:g} to {high:g} |"
        )
    return "\n".join(lines)


def cost_row(name: str, step: float, plain_kept: int) -> str:
    """One measured scheme: step time, parameters, activations, stock form."""
    counted = account(replace(tiers["130m"], scheme=name))
    kept = counted.activation_bytes_per_token / plain_kept
    return f"| `{name}` | {step:.2f} | {counted.scheme_parameters:+,} | {kept:.2f} | {'yes' if stock(name) else 'no'} |"


def plain_kept() -> int:
    """Bytes of activations a token that Pre-Norm keeps at 130m."""
    return account(replace(tiers["130m"], scheme=REFERENCE)).activation_bytes_per_token


def cost_table(steps: dict[str, float]) -> str:
    """Every measured scheme, fastest first."""
    kept = plain_kept()
    rows = [cost_row(name, steps[name], kept) for name in sorted(steps, key=lambda n: steps[n])]
    return "\n".join(["| scheme | step | parameters | kept | stock |", "|---|---|---|---|---|", *rows])


def step_times() -> dict[str, float]:
    """Scheme -> compiled step time relative to the reference, from the bench record."""
    rows = json.loads(BENCH.read_text(encoding="utf-8"))["rows"]
    return {r["name"]: r["ratio"] for r in rows if r["name"] in schemes}


@lru_cache
def by_setting(record: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Setting -> scheme -> its row at the best rate, in the order of the record of a study: best scheme first."""
    found = json.loads((ROOT / "results" / record / "findings.json").read_text(encoding="utf-8"))["settings"]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found:
        if row["val_loss"] is not None:
            rows.setdefault(" ".join(map(str, row["setting"].values())), {})[row["scheme"]] = row
    return rows


def study_table(record: str) -> str:
    """A line a scheme and a column a setting: the loss at its best rate, with a mark where that is an edge."""
    found = by_setting(record)
    last = found[list(found)[-1]]
    lines = [
        f"| scheme | {' | '.join(f'{name}, {_seeds(rows)}' for name, rows in found.items())} |",
        f"|---|{'---|' * len(found)}",
    ]
    for scheme in last:
        cells = [_cell(rows[scheme]) if scheme in rows else "lost" for rows in found.values()]
        lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _seeds(rows: dict[str, dict[str, Any]]) -> str:
    counts = sorted({row["seeds"] for row in rows.values()})
    return "one seed" if counts == [1] else f"{' or '.join(map(str, counts))} seeds"


def _cell(row: dict[str, Any]) -> str:
    mark = {True: "", False: "*", None: "†"}[row["bracketed"]]
    return f"{row['val_loss']:.3f}{mark}"


TEXT = """# Which scheme should I use?

Made by `benchmarks/which_scheme_page.py` from the records under `results/` and from the code; do not edit by hand. The
answer is as good as the records: read the limits at the end.

## In short

- **A short run or a small budget** (here {tokens:,} tokens for {n_params:,} parameters, {ratio:.2f} a parameter):
  `prenorm`. Better than it beyond the spread of the seeds: {better}. Worse beyond it: {worse}.
  Not told apart: {unclear}.
  What scaling the start of the output projections (`prenorm-scaledinit`) costs or brings, these seeds do not tell:
  {scaledinit}.
- **More weights, one token a parameter**, each scheme at its best rate, best first. At the smallest of the ladder's
  sizes ({smallest}, {smallest_seeds}):
  {small_order};
  at its largest ({largest}, {largest_seeds}):
  {large_order}.
- **A model to be served by stock engines** (transformers, vLLM, llama.cpp): one of
  {stock}.
  They fold into a stock class and then run at its speed; the others need this package at inference.
- **Cost matters and quality is open**: these are within {within:.0%} of Pre-Norm's step time here:
  {cheap}.
  More than 1.2 of it, and to be earned first: {dear}.
- **A long run at 80 tokens a parameter or more**: our records hold none. The LayerRoPE paper reports its lead there,
  and the [evidence page](evidence.md) says which of its claims were reproduced. Ask for your own shape before you
  spend: `layerrope study ladder --scale paper --sizes 130m --dry-run` prints the bill.
- **In any case tune the learning rate of each scheme.** In the sweep the best rates differ by a factor of {factor:.0f},
  from {lowest} to {highest}. At one rate for all you measure the rate.

## What was measured: loss

24 layers of width 64 on bytes of English novels, {n_seed} seeds, each scheme at the best rate of a sweep on one seed.
Intervals are paired by seed, 95%. *Good rates*: those of the grid within {near:g} nats of the scheme's own best.

{losses}

{wide}So the table orders recipes (a scheme with the rate chosen for it), not schemes.

## What was measured: over sizes

Sizes are named by the weights in their layers; English prose, a vocabulary of 4,096, one token a parameter, at each
scheme's best rate. \\* marks a best rate at the edge of those tried, † the only rate tried.
Tables, intervals and their flaws: `results/ladder`.

{ladder}

## What was measured: beside schemes that rebuild the stream

8 layers of width 32 on the same text, 250 steps of 2,048 tokens (`results/competitors`; * as above).

{competitors}

## What was measured: cost

Compiled training step relative to Pre-Norm, median of {rounds} paired rounds, width {d_model}, {n_layer} layers,
{threads} thread of a CPU, {dtype}; other work shared the machine. Parameters beyond Pre-Norm's and activations kept
for the backward pass relative to it, both counted at 130m. [All schemes](schemes.md) has the rules and sources.

{costs}

## Limits

- One shape or four, two texts, budgets far from compute-optimal (about 20 tokens a parameter), one to three seeds.
  Early in training the order shows how fast a start learns; it can turn with more tokens.
- The first table's rates come from one seed of the same text, which favours no scheme knowingly and some by luck.
- Step times are of one CPU. On a GPU the products are faster and everything elementwise counts for more: measure with
  `layerrope bench schemes` where you will train.
- {unread} are in no table of losses here.
  Other records have more, at other sizes: `results/lr`, `results/ablation` and `results/digits`.

## Ask it for your model

```console
layerrope compare --schemes prenorm prenorm-scaledinit lns layerrope --lrs 3e-3 6e-3 1.2e-2 --seeds 0 1 2 --dry-run
layerrope study lr --sizes micro-100k --schemes prenorm layerrope --dry-run
layerrope account --tier 350m --schemes prenorm layerrope hc mhc
```
"""


def page() -> str:
    """The whole page."""
    found, sweep = runs(SEEDS), runs(SWEEP)
    settings = json.loads(BENCH.read_text(encoding="utf-8"))["settings"]
    steps = step_times()
    apart = differences(found)
    best = {name: good_rates(sweep, name)[0] for name in {r.scheme for r in sweep}}
    ladder = by_setting("ladder")
    smallest, *_, largest = ladder
    others = next(iter(by_setting("competitors").values()))
    within = 0.05
    rest = [name for name in steps if name != REFERENCE]
    some = next(r for r in found if r.scheme == REFERENCE)
    return TEXT.format(
        tokens=some.tokens,
        n_params=some.n_params,
        ratio=some.tokens / some.n_params,
        better=_listed([n for n, i in apart.items() if i.decided and i.mean < 0]),
        worse=_listed([n for n, i in apart.items() if i.decided and i.mean > 0]),
        unclear=_listed([n for n, i in apart.items() if not i.decided]),
        scaledinit=f"{_signed(apart['prenorm-scaledinit'])} nats",
        stock=_listed([name for name in schemes if stock(name)]),
        cheap=_listed([n for n in rest if steps[n] <= 1 + within]),
        within=within,
        dear=_listed([n for n in rest if steps[n] > 1.2]),
        factor=max(best.values()) / min(best.values()),
        lowest=" and ".join(f"{lr:g} (`{n}`)" for n, lr in best.items() if lr == min(best.values())),
        highest=" and ".join(f"{lr:g} (`{n}`)" for n, lr in best.items() if lr == max(best.values())),
        n_seed=len({r.seed for r in found}),
        near=NEAR,
        smallest=smallest,
        largest=largest,
        smallest_seeds=_seeds(ladder[smallest]),
        largest_seeds=_seeds(ladder[largest]),
        small_order=_listed(list(ladder[smallest])),
        large_order=_listed(list(ladder[largest])),
        ladder=study_table("ladder"),
        competitors=study_table("competitors"),
        losses=losses_table(found, sweep),
        wide=unsteady(found),
        unread=_listed([n for n in rest if n not in {*apart, *ladder[largest], *others}]),
        costs=cost_table(steps),
        **settings,
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
