"""The claims of the LayerRoPE paper and of the articles about it, and what our code and our records say of each.

A claim is answered by a function. Those that can be computed are computed afresh; the others read a record of this
folder, and say "not yet run" where there is none. `evidence_page.py` makes docs/evidence.md of them.
"""

from __future__ import annotations

import csv
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import layerrope
from layerrope import account, gain_table, tiers
from layerrope.comparing.compare import best_of
from layerrope.comparing.intervals import Interval, t_interval
from layerrope.errors import InputError
from layerrope.inspector.mds import pure_scaling_picture
from layerrope.scaling.report import saved
from layerrope.scaling.savings import Saving, savings
from layerrope.scaling.table import read_points
from layerrope.toy_stream import LEARNED, block, power, power_update, relative_update, variance

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"

EXACT, SAME, UNTOLD = "reproduced exactly", "same direction at our scale", "the budget cannot tell"
CONTRADICTS, NOT_HERE, NOT_RUN = "contradicts", "not testable here", "not yet run"
VERDICTS = (EXACT, SAME, UNTOLD, CONTRADICTS, NOT_HERE, NOT_RUN)

Answer = tuple[str, str]
"""(one of VERDICTS, what we found, in words with the numbers)"""


@dataclass(frozen=True)
class Claim:
    """A statement, where it is made, what answers it, and the command that repeats the answer."""

    says: str
    source: str
    answer: Callable[[], Answer]
    command: str


# ------------------------------------------------------------------------------------------------------- computed here
def exactly(theirs: float, ours: float, digits: int, unit: str = "") -> Answer:
    """Equal when `ours`, rounded to the digits that were printed, is `theirs`."""
    shown = f"{ours:,.{max(digits, 0)}f}{unit}"
    return (EXACT if round(ours, digits) == theirs else CONTRADICTS), shown


def table(n_layer: int = 24, d: int = 2048, **scalars: float) -> torch.Tensor:
    return gain_table(torch.ones(d, dtype=torch.float64), n_layer, **scalars)


def norms_fall_as_a_power() -> Answer:
    rows = table().norm(dim=1)
    worst = float((rows / (math.sqrt(2048) * torch.arange(1, 25, dtype=torch.float64) ** -0.5) - 1).abs().max())
    return (EXACT if worst < 1e-12 else CONTRADICTS), "to a part in 1e12"


def negatives() -> Answer:
    return exactly(54, float((table()[0] < 0).sum()), 0)


def angle_of(layer: int) -> float:
    """Degrees of the first pair's turn at the MLP read of the learned 1.3B model: 49 at layer 0, slope -1.09."""
    return 49 * (layer + 1) ** -1.09


def base_angle() -> Answer:
    return exactly(1.5, angle_of(23), 1, " degrees")


def mean_turn(layer: int) -> Callable[[], Answer]:
    def answer() -> Answer:
        turned = table(alpha=0.0, beta=0.0, alpha_rot=math.log(math.radians(49)), beta_rot=-1.09)[layer]
        cosine = float(turned.sum() / (turned.norm() * math.sqrt(2048)))
        degrees = math.degrees(math.acos(cosine))
        close = abs(degrees - {0: 16.0, 23: 0.5}[layer]) < 0.05 * {0: 16.0, 23: 0.5}[layer]
        return (EXACT if close else CONTRADICTS), f"{degrees:.3f} degrees"

    return answer


def parameters() -> Answer:
    return exactly(-90096, account(replace(tiers["1b"], scheme="layerrope")).scheme_parameters, 0)


def free_gamma() -> Answer:
    own = [account(replace(tiers["130m"], scheme=f"layerrope{s}")).scheme_parameters for s in ("", ":gamma=layer")]
    return exactly(33792, own[1] - own[0], 0)


def gate_share(tier: str, printed: float) -> Callable[[], Answer]:
    return lambda: exactly(printed, 100 * account(replace(tiers[tier], scheme="layerrope")).gate_flops_share, 4, "%")


def flops() -> Answer:
    return exactly(7.72, account(tiers["1b"]).flops_per_token / 1e9, 2, " GFLOPs")


def deep_model() -> Answer:
    return exactly(111.1, account(tiers["d128-L512"]).parameters / 1e6, 1, " million")


def vocabulary() -> Answer:
    config = tiers["d128-L512"]
    return exactly(8.2, 2 * config.vocab_size * config.d_model / 1e6, 1, " million")


def a_layer() -> Answer:
    deep = tiers["d128-L512"]
    added = account(deep).parameters - account(replace(deep, n_layer=511)).parameters
    return (EXACT if abs(added - 200_000) < 10_000 else CONTRADICTS), f"{added:,}"


def compute_of_a_run() -> Answer:
    found = account(tiers["1b"])
    spent = found.training_flops(80 * found.parameters)
    return (EXACT if abs(spent / 8.3e20 - 1) < 0.005 else CONTRADICTS), f"{spent:.3g} FLOPs"


def toy_last(schedule: str, n_layer: int, printed: float) -> Callable[[], Answer]:
    def answer() -> Answer:
        writes = power(n_layer, 0.0) if schedule == "prenorm" else block(n_layer, LEARNED)
        return exactly(printed, float(relative_update(writes)[-1]), 4 if schedule == "prenorm" else 3)

    return answer


def toy_variance() -> Answer:
    return exactly(2.5, float(variance(block(24, LEARNED))[-1] / variance(power(24, 0.0))[-1]), 1, "x")


def toy_lift() -> Answer:
    lifted = power_update(1e6, 0.75) / power_update(1e6, 0.0)
    measured = float(relative_update(power(4096, 0.75))[-1] / relative_update(power(4096, 0.0))[-1])
    close = abs(measured / math.sqrt(2.5) - 1) < 1e-3
    return (
        EXACT if close else CONTRADICTS
    ), f"at slope 0.75 and 4,096 blocks {measured:.4f}, sqrt(2k + 1) {lifted:.4f}"


def mirage() -> Answer:
    largest, drawn = pure_scaling_picture()
    right = largest < 4.3 and abs(drawn.sweep.folded - 176) < 3
    return (EXACT if right else CONTRADICTS), f"true {largest:.1f}, swept {drawn.sweep.folded:.0f} degrees"


def the_paper_s_saving() -> Answer:
    points, _ = read_points(DATA / "scaling" / "layerrope-1b.csv")
    fit = layerrope.fit_scaling([p for p in points if p.scheme == "layerrope"], e=1.81)
    prenorm = next(p.loss for p in points if p.scheme == "prenorm" and p.compute == 8.3e20)
    saving = layerrope.compute_saving(fit, "layerrope", (8.3e20, prenorm))
    return exactly(3.4, saving.ratio, 1, "x")


@cache
def smollm2() -> layerrope.Inspection:
    """SmolLM2-135M's norms, from the table in the tests' data, inspected."""
    sys.path.insert(0, str(ROOT / "tests"))
    from inspector_files import smollm2_tensors, write_folder  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        return layerrope.inspect(write_folder(Path(folder) / "smollm2", smollm2_tensors(), {"model_type": "llama"}))


def magnitude_grows() -> Answer:
    rows = smollm2().summary_rows()
    words = ", ".join(f"{r['site'].replace('_', ' ')} (l+1)^{r['beta']:.2f} with R^2 {r['r2']:.2f}" for r in rows)
    return (SAME if all(r["beta"] > 0 for r in rows) else CONTRADICTS), f"SmolLM2-135M: {words}"


def direction_turns() -> Answer:
    rows = smollm2().summary_rows()
    words = ", ".join(
        f"{r['site'].replace('_', ' ')} {r['rank1']:.1%} along one direction, largest angle {r['largest_angle']:.0f}"
        for r in rows
    )
    fits = [report.whole.fit for report in smollm2().reports.values() if report.whole]
    told = any(fit.identifiable for fit in fits)
    beyond = "the rotation removes more than its null" if told else "a rotation removes nothing beyond its null"
    return (SAME if told else CONTRADICTS), f"SmolLM2-135M: {words} degrees; {beyond}"


# ------------------------------------------------------------------------------------------------- from the records
Runs = list[dict[str, str]]
EQUAL = 0.02
"""Nats that count as no difference: half of LayerRoPE's lead over Pre-Norm at the paper's smallest size, 0.043."""


def ended_in(record: str) -> Runs | None:
    """The runs of a record that ended, lost ones too; None: there is no such record."""
    path = ROOT / "results" / record / "runs.csv"
    if not path.exists():
        return None
    with path.open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["status"] != "interrupted"]


def trials(runs: Runs, scheme: str) -> list[tuple[float, str, float | None]]:
    """(rate, seed, loss) of a scheme's runs; None where a run was lost."""
    mine = [row for row in runs if row["scheme"] == scheme]
    return [(float(r["lr"]), r["seed"], float(r["val_loss"]) if r["status"] == "done" else None) for r in mine]


def best(runs: Runs, scheme: str) -> dict[str, float]:
    """Loss by seed at the rate that a comparison would choose, without its lost seeds; empty where none ended."""
    tried = trials(runs, scheme)
    best_lr = best_of(tried)
    return {seed: loss for lr, seed, loss in tried if lr == best_lr and loss is not None}


def at_edge(runs: Runs, *names: str) -> list[str]:
    """Those of the schemes whose best rate is the lowest or the highest tried: a better one may lie beyond."""
    tried = {name: trials(runs, name) for name in names}
    return [
        name for name, of in tried.items() if of and best_of(of) in (min(lr for lr, *_ in of), max(lr for lr, *_ in of))
    ]


def edges(names: list[str]) -> str:
    return f" ({', '.join(names)} best at the edge of the rates tried)" if names else ""


def lead(runs: Runs, scheme: str, over: str) -> Interval | None:
    """Loss of `over` minus that of `scheme`, paired by seed: positive where `scheme` is better."""
    a, b = best(runs, scheme), best(runs, over)
    shared = [b[seed] - a[seed] for seed in a if seed in b]
    return t_interval(shared) if shared else None


def unanswered(runs: Runs, *names: str) -> Answer:
    """Why there is nothing to judge: not every one of the schemes was run, or all runs of one were lost."""
    if not {row["scheme"] for row in runs}.issuperset(names):
        return NOT_RUN, ""
    gone = [name for name in names if not best(runs, name)]
    return UNTOLD, f"no run of {', '.join(gone)} reached its end" if gone else "no seed reached its end under all"


def shown(found: Interval) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:+.4f} nats on one seed"
    return f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}] nats over {found.n} seeds"


def settings(runs: Runs, axis: str) -> dict[str, Runs]:
    """Runs by their value on an axis, or all together where the record has no such axis."""
    values = dict.fromkeys(row.get(axis, "") for row in runs)
    return {value: [row for row in runs if row.get(axis, "") == value] for value in values}


def compared(record: str, scheme: str, over: str, axis: str = "budget", positive: bool = True) -> Callable[[], Answer]:
    """Whether `scheme` beats `over` (or, not `positive`, differs from it at all) in every setting of a record."""

    def answer() -> Answer:
        runs = ended_in(record)
        if runs is None:
            return NOT_RUN, ""
        found = {value: lead(rows, scheme, over) for value, rows in settings(runs, axis).items()}
        leads = {value: each for value, each in found.items() if each is not None}
        if not leads:
            return unanswered(runs, scheme, over)
        open_ = {value: at_edge(rows, scheme, over) for value, rows in settings(runs, axis).items() if value in leads}
        words = "; ".join(
            f"{axis + ' ' + value + ': ' if value else ''}{shown(each)}{edges(open_[value])}"
            for value, each in leads.items()
        )
        return UNTOLD if any(open_.values()) else judged(leads, positive), words

    return answer


def at(budget: str) -> str:
    """Which budget, where a record has several."""
    return f"budget {budget}: " if budget else ""


def judged(leads: Mapping[Any, Interval], positive: bool) -> str:
    """The verdict on leads that should be above zero, or, not `positive`, be none.

    That there is none is only shown by an interval that has no room for one, not by an interval that holds zero.
    """
    if not positive:
        edges = [(each.low, each.high) for each in leads.values()]
        if all(low is not None and high is not None and low > -EQUAL and high < EQUAL for low, high in edges):
            return SAME
        beyond = any(low is not None and high is not None and (low > EQUAL or high < -EQUAL) for low, high in edges)
        return CONTRADICTS if beyond else UNTOLD
    if all(each.decided and each.mean > 0 for each in leads.values()):
        return SAME
    return CONTRADICTS if all(each.decided and each.mean < 0 for each in leads.values()) else UNTOLD


def share_of_magnitude(base: str, whole: str, part: str) -> Callable[[], Answer]:
    """How much of the lead of `whole` over `base` is there with `part` alone."""

    def answer() -> Answer:
        runs = ended_in("ablation")
        if runs is None:
            return NOT_RUN, ""
        words, most, open_ = [], [], []
        for value, rows in settings(runs, "budget").items():
            full, kept = lead(rows, whole, base), lead(rows, part, base)
            if full is None or kept is None:
                continue
            told = full.decided and full.mean > 0
            most += [kept.mean / full.mean > 0.5] if told else []
            share = f", {kept.mean / full.mean:.0%} of it with the magnitude alone" if told else ""
            open_ += (here := at_edge(rows, base, whole, part))
            words.append(f"{at(value)}lead {shown(full)}{share or ': no lead is told, so no share of it'}{edges(here)}")
        if not words:
            return unanswered(runs, base, whole, part)
        return (UNTOLD if open_ or not most else SAME if all(most) else CONTRADICTS), "; ".join(words)

    return answer


def swept(runs: Runs, scheme: str) -> dict[str, dict[float, float | None]]:
    """Loss at every rate by seed; None where the run was lost, which is a rate that is not good."""
    found: dict[str, dict[float, float | None]] = {}
    for lr, seed, loss in trials(runs, scheme):
        found.setdefault(seed, {})[lr] = loss
    return found


def rates_are_wider() -> Answer:
    runs = ended_in("lr")
    if runs is None:
        return NOT_RUN, ""
    from layerrope.studies.robustness import good_region, sensitivity

    start, words, felt = math.log(4096), [], {}
    for name in ("prenorm", "layerrope"):
        sweeps = list(swept(runs, name).values())
        found = [(good_region(losses), sensitivity(losses, start)) for losses in sweeps]
        whole = [(region, spread) for region, spread in found if region is not None and spread is not None]
        if not whole:
            return UNTOLD, f"{name} has no finished run"
        felt[name] = math.fsum(spread for _, spread in whole) / len(whole)
        low, high = min(region.low for region, _ in whole), max(region.high for region, _ in whole)
        words.append(f"{name} good from {low:.2g} to {high:.2g}, sensitivity {felt[name]:.3f} nats")
    ratio, seeds = felt["prenorm"] / felt["layerrope"], len({row["seed"] for row in runs})
    verdict = SAME if ratio > 1.2 else CONTRADICTS if ratio < 1 / 1.2 else UNTOLD
    return verdict, f"{'; '.join(words)}: {ratio:.2f} times less sensitive, {counted(seeds)}"


def counted(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def best_rate_ratio() -> Answer:
    """LayerRoPE's best rate over Pre-Norm's on the first seed; told only where both lie inside the grid."""
    runs = ended_in("lr")
    if runs is None:
        return NOT_RUN, ""
    rates, inside = {}, True
    for name in ("prenorm", "layerrope"):
        sweeps = swept(runs, name)
        losses = sweeps[min(sweeps, key=int)] if sweeps else {}
        ended = {lr: loss for lr, loss in losses.items() if loss is not None}
        if not ended:
            return UNTOLD, f"{name} has no finished run"
        rates[name] = min(ended, key=lambda lr: ended[lr])
        inside &= min(losses) < rates[name] < max(losses)
    ratio = rates["layerrope"] / rates["prenorm"]
    verdict = UNTOLD if ratio == 1 or not inside else SAME if ratio > 1 else CONTRADICTS
    edge = "" if inside else ", at the edge of the grid"
    return verdict, f"{rates['layerrope']:g} against {rates['prenorm']:g}: {ratio:g} times, one seed{edge}"


@cache
def ladder_s_savings(path: Path) -> list[Saving]:
    """What LayerRoPE saves by the ladder's runs, against the best baseline first."""
    points, _ = read_points(path)
    return savings(layerrope.fit_scaling(points), schemes=("layerrope",))[0]


def saves_compute(against: str | None) -> Callable[[], Answer]:
    """Whether LayerRoPE needs less compute than the best baseline (None), or than the one named."""

    def answer() -> Answer:
        path = ROOT / "results" / "ladder" / "runs.csv"
        if not path.exists():
            return NOT_RUN, ""
        try:
            found = [s for s in ladder_s_savings(path) if against in (None, s.baseline)]
        except InputError as error:
            return UNTOLD, f"no curve was fitted: {error}"
        if not found:
            return UNTOLD, "no saving can be read off the curves"
        first, words = found[0], saved(found[:1])[0]
        if first.denied or first.low is None or first.high is None:
            return UNTOLD, words
        return (SAME if first.low > 1 else CONTRADICTS if first.high < 1 else UNTOLD), words

    return answer


DEEPEST = 512
"""Layers of the paper's deepest model."""


def stable_at_depth(scheme: str, expected: bool) -> Callable[[], Answer]:
    """Whether `scheme` is stable to the deepest model, as expected; one seed tells only that a model was lost."""

    def answer() -> Answer:
        runs = ended_in("depth")
        if runs is None:
            return NOT_RUN, ""
        from layerrope.studies.stability import verdict

        mine = settings([row for row in runs if row["scheme"] == scheme], "layers")
        found = {int(depth): list(best(rows, scheme).values()) for depth, rows in mine.items()}
        losses = {depth: fmean(each) if each else None for depth, each in found.items()}  # None: every run was lost
        if not any(losses.values()):
            return unanswered(runs, scheme)
        if max(losses) < DEEPEST:
            return UNTOLD, f"trained to {max(losses)} of {DEEPEST} layers so far"
        said = verdict(scheme, losses, {})
        stable = said.stable_to == max(losses)
        if None not in losses.values() and min(map(len, found.values())) == 1:
            return UNTOLD, f"{said.words.rstrip('.')}, on one seed"
        return (SAME if stable == expected else CONTRADICTS), said.words

    return answer


def better_start() -> Answer:
    """Slopes 0 and the write offset -ln(2L)/2 against the paper's start and against scaled-init weights."""
    runs = ended_in("ablation")
    if runs is None:
        return NOT_RUN, ""
    ours, others = "layerrope:beta=0,alpha=0/damped", ("layerrope", "prenorm-scaledinit")
    words: list[str] = []
    ahead: list[Interval] = []
    open_: list[str] = []
    for value, rows in settings(runs, "budget").items():
        for over in others:
            found = lead(rows, ours, over)
            if found is not None:
                open_ += (here := at_edge(rows, ours, over))
                words.append(f"{at(value)}over {over} {shown(found)}{edges(here)}")
                ahead.append(found)
    if not words:
        return unanswered(runs, ours, *others)
    return UNTOLD if open_ else judged(dict(enumerate(ahead)), True), "; ".join(words)


def nothing(why: str) -> Callable[[], Answer]:
    return lambda: (NOT_HERE, why)


# --------------------------------------------------------------------------------------------------------- the claims
TEST = "python -m pytest tests/test_gains.py"
A = "article"


def count(tier: str) -> str:
    """The command that counts at a tier."""
    return f"layerrope account --tier {tier} --schemes prenorm layerrope"


def study(name: str) -> str:
    """The command of a study, and where its options are, once there is a record."""
    page = f"results/{name}/README.md"
    return f"layerrope study {name}" + (f" (options: {page})" if (ROOT / page).exists() else "")


CLAIMS: dict[str, list[Claim]] = {
    "The construction": [
        Claim(
            "With gamma = 1, offsets 0 and slopes -0.5 the row norms are sqrt(d) / sqrt(l + 1).",
            A,
            norms_fall_as_a_power,
            TEST,
        ),
        Claim("54 channels of layer 0 then have a negative gain (d 2048).", A, negatives, TEST),
        Claim("A base angle near 49 degrees with slope -1.09 is about 1.5 degrees at layer 23.", A, base_angle, TEST),
        Claim("The whole vector then turns about 16 degrees at layer 0.", A, mean_turn(0), TEST),
        Claim("And about half a degree at layer 23.", A, mean_turn(23), TEST),
        Claim("4d + 16 parameters: 90,096 fewer than Pre-Norm at 1b.", "paper, Table 5", parameters, count("1b")),
        Claim("A gamma for each layer adds 33.8 thousand at 130m.", "paper, Table 4", free_gamma, count("130m")),
        Claim("The write gate is 0.0051% of the FLOPs at 1b.", A, gate_share("1b", 0.0051), count("1b")),
        Claim("And 0.0128% at 60m.", A, gate_share("60m", 0.0128), count("60m")),
        Claim("A training token costs 7.72 GFLOPs at 1b.", A, flops, count("1b")),
        Claim(
            "The 1b run takes 8.3e20 FLOPs at 80 tokens per parameter.",
            "paper, App. D.1.3",
            compute_of_a_run,
            count("1b"),
        ),
    ],
    "The stream as a sum of independent writes": [
        Claim(
            "The last of 24 Pre-Norm blocks changes the stream by 0.2085 of itself.",
            "article (prints 0.208)",
            toy_last("prenorm", 24, 0.2085),
            "layerrope lab",
        ),
        Claim(
            "The last of 512 by 0.0442.", "article (prints 0.044)", toy_last("prenorm", 512, 0.0442), "layerrope lab"
        ),
        Claim("The learned schedule: 0.297 at 24.", A, toy_last("learned", 24, 0.297), "layerrope lab"),
        Claim("And 0.065 at 512.", A, toy_last("learned", 512, 0.065), "layerrope lab"),
        Claim("It ends with 2.5 times Pre-Norm's variance at 24.", A, toy_variance, "layerrope lab"),
        Claim("A write slope k lifts the relative update by sqrt(2k + 1) and no more.", A, toy_lift, "layerrope lab"),
    ],
    "Norms of trained models": [
        Claim(
            "Gains grow with depth as a power law.",
            "paper, Sec. 3; article, LLaMA-2 7B",
            magnitude_grows,
            "layerrope inspect MODEL",
        ),
        Claim(
            "Their direction rotates with depth.",
            "paper, Sec. 3; the article doubts it",
            direction_turns,
            "layerrope inspect MODEL",
        ),
        Claim(
            "A vector that only grows sweeps about 176 degrees in the MDS plane, its true angles staying under 4.2.",
            A,
            mirage,
            "layerrope inspect MODEL --html",
        ),
        Claim(
            "LLaMA-2 7B's MLP read: R^2 0.972, slope 0.553, largest angle 12.3 degrees.",
            A,
            nothing("its weights are gated or need a network; the command reads them"),
            "layerrope inspect NousResearch/Llama-2-7b-hf",
        ),
    ],
    "Losses and savings": [
        Claim(
            "3.4 times less compute than Pre-Norm at 1.3B, by the paper's own numbers.",
            "paper, App. D.1.3; article",
            the_paper_s_saving,
            "layerrope fit tests/data/scaling/layerrope-1b.csv --schemes layerrope --e 1.81 --against 8.3e20 2.431",
        ),
        Claim(
            "LayerRoPE ends below Pre-Norm at 1.3B, 80 tokens per parameter.",
            "paper, Table 7",
            nothing("8.3e20 FLOPs a run"),
            "layerrope study ladder --scale paper --dry-run",
        ),
        Claim(
            "LayerRoPE beats Pre-Norm at the smallest size.",
            "paper, Table 7 (0.043 nats at 58M)",
            compared("ablation", "layerrope", "prenorm"),
            study("ablation"),
        ),
        Claim(
            "LayerRoPE beats Layer-Norm Scaling.",
            "paper, Table 7 (0.018 nats at 58M)",
            compared("ablation", "layerrope", "lns"),
            study("ablation"),
        ),
        Claim(
            "LayerRoPE beats Peri-Norm.",
            "paper, Fig. 1",
            compared("ablation", "layerrope", "perinorm"),
            study("ablation"),
        ),
        Claim(
            "And scaled-init Pre-Norm, a baseline that the paper does not have.",
            "this project",
            compared("ablation", "layerrope", "prenorm-scaledinit"),
            study("ablation"),
        ),
        Claim(
            "The compute saved over Pre-Norm holds over a ladder of sizes.",
            "paper, Fig. 1",
            saves_compute("prenorm"),
            study("ladder"),
        ),
        Claim(
            "And so it does over the best baseline of the ladder.",
            "this project",
            saves_compute(None),
            study("ladder"),
        ),
        Claim(
            "At 6.7B, 11.7B tokens, LayerRoPE ends 0.168 nats below Pre-Norm.",
            A,
            nothing("5e20 FLOPs a run"),
            "layerrope study ladder --scale paper --sizes 7b --dry-run",
        ),
        Claim(
            "Downstream average 52.6 against 48.0 at 1.3B.",
            A,
            nothing("needs the 1.3B models; `layerrope eval --tasks commonsense` scores any run"),
            "layerrope eval RUN --tasks commonsense",
        ),
    ],
    "Learning rates": [
        Claim(
            "LayerRoPE is 3 to 10 times less sensitive to the learning rate.",
            "paper, abstract",
            rates_are_wider,
            study("lr"),
        ),
        Claim(
            "Its best rate is 4 to 16 times Pre-Norm's.",
            "paper, Table 6",
            best_rate_ratio,
            study("lr"),
        ),
    ],
    "What part does the work": [
        Claim(
            "On Peri-Norm, the magnitude alone gives about four fifths of the gain.",
            "paper, Table 4; article",
            share_of_magnitude("perinorm", "layerrope-peri", "layerrope-peri:rotation=off"),
            study("ablation"),
        ),
        Claim(
            "On Pre-Norm: drop the rotation, keep the power laws; how much is left?",
            "article, untested there",
            share_of_magnitude("prenorm", "layerrope", "layerrope:rotation=off"),
            study("ablation"),
        ),
        Claim(
            "The rotation helps on its own.",
            "paper, Table 4 (Peri-Norm)",
            compared("ablation", "layerrope-peri:magnitude=off", "perinorm"),
            study("ablation"),
        ),
        Claim(
            "One angle for all pairs is not told from the spectrum.",
            "article on Table 4",
            compared("ablation", "layerrope", "layerrope:spectrum=single", positive=False),
            study("ablation"),
        ),
        Claim(
            "A free gamma for each layer changes nothing.",
            "paper, Table 4",
            compared("ablation", "layerrope", "layerrope:gamma=layer", positive=False),
            study("ablation"),
        ),
        Claim(
            "The start is a confound: slopes 0 with the write offset -ln(2L)/2 beat the paper's start and scaled init.",
            "this project",
            better_start,
            study("ablation"),
        ),
    ],
    "Depth": [
        Claim("The 512-layer model of width 128 has 111.1 million parameters.", A, deep_model, count("d128-L512")),
        Claim("8.2 million of them are the untied vocabulary.", A, vocabulary, count("d128-L512")),
        Claim("Every extra layer adds about 200 thousand.", A, a_layer, count("d128-L512")),
        Claim(
            "LayerRoPE improves to 384 layers and is stable at 512.",
            "paper, Fig. 4",
            stable_at_depth("layerrope:beta=0,beta_rot=0,base=10000", True),
            study("depth"),
        ),
        Claim(
            "Pre-Norm is worse at 512 than at 384.",
            "paper, Fig. 4, one seed",
            stable_at_depth("prenorm", False),
            study("depth"),
        ),
        Claim(
            "Peri-Norm falls apart past 96 layers.",
            "paper, Fig. 4",
            stable_at_depth("perinorm", False),
            study("depth"),
        ),
        Claim(
            "Layer-Norm Scaling falls apart past 96 layers.",
            "paper, Fig. 4",
            stable_at_depth("lns", False),
            study("depth"),
        ),
    ],
    "What the paper leaves open": [
        Claim(
            "Hyper-Connections against LayerRoPE: cited, not run there.",
            A,
            compared("competitors", "layerrope", "hc"),
            study("competitors"),
        ),
        Claim(
            "Manifold-constrained Hyper-Connections against LayerRoPE.",
            A,
            compared("competitors", "layerrope", "mhc"),
            study("competitors"),
        ),
        Claim(
            "Attention Residuals against LayerRoPE.",
            A,
            compared("competitors", "layerrope", "attnres"),
            study("competitors"),
        ),
        Claim(
            "Mix-LN against LayerRoPE.",
            A,
            compared("competitors", "layerrope", "mixln"),
            study("competitors"),
        ),
        Claim(
            "Looped models gain 1.2 to 3.2% of perplexity (Parcae).",
            "paper",
            nothing("104 billion tokens at 1.3B"),
            "layerrope study loop --dry-run",
        ),
        Claim(
            "ViT-T gains 0.9, ViT-S 0.6 points on ImageNet.",
            "paper",
            nothing("ImageNet, 300 epochs"),
            "layerrope vision --help",
        ),
    ],
}
