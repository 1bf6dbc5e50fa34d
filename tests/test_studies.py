"""Studies: what each plans, what it costs, and what it says of runs whose losses are known."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from layerrope.accounting import count_parameters
from layerrope.comparing.compare import compare, trials_of
from layerrope.comparing.intervals import t_interval
from layerrope.errors import InputError
from layerrope.files import write_json
from layerrope.launching.launch import Outcome
from layerrope.studies import RECIPES, Ask, Plan, plan_study
from layerrope.studies.cost import cost_rows, costs
from layerrope.studies.findings import findings_of
from layerrope.studies.paired import holm, paired_tests, t_test
from layerrope.studies.reading import Found, read_found, runs_csv
from layerrope.studies.recipes import ABLATION, ABSENT
from layerrope.studies.report import setting_rows, write_study_report
from layerrope.studies.robustness import good_region, sensitivity
from layerrope.studies.scales import SCALES, SIZES, equal_shapes
from layerrope.studies.stability import verdict
from layerrope.study import Run, run_study, write_study
from layerrope.training.run_folder import Result

TINY = Ask(scale="tiny")


def ended(loss: float | None) -> Outcome:
    """A run that reached `loss`; None: it diverged."""
    status = "diverged" if loss is None else "done"
    result = Result(status, "k", 6, 96, loss, loss, None, loss, 6, 1.0, 100.0, 5000, 3 if loss is None else None)
    return Outcome(status, result)


def on_disk(plan: Plan, folder: Path, loss: Callable[[Run], float | None]) -> Found:
    """The plan with every run ended at a made-up loss, read back from its folder."""
    first = plan.first()
    study = plan.then({run.key: ended(loss(run)) for run in first.runs})
    write_study(study, folder)
    for run in study.runs:
        write_json(folder / run.key / "result.json", dataclasses.asdict(ended(loss(run)).result))  # type: ignore[arg-type]
    return read_found(folder)


def words(found: Found) -> str:
    return "\n".join(findings_of(found).sentences)


# --------------------------------------------------------------------------------------------------------------- plans
@pytest.mark.parametrize("name", RECIPES)
def test_every_study_plans_cells_that_are_configs_with_scaled_init_among_them(name: str) -> None:
    plan = plan_study(name, TINY)
    scaled = () if name == "loop" else ("prenorm-scaledinit",)  # the same model there: see test_loop_study.py
    assert {"prenorm", *scaled, "layerrope"} <= {cell.scheme for cell in plan.cells}
    runs = plan.whole().runs
    per_cell = len(plan.cells[0].lrs) * (len(plan.seeds) if plan.every_seed else 1) + (
        0 if plan.every_seed else len(plan.seeds) - 1
    )
    assert len({run.key for run in runs}) == len(runs) == len(plan.cells) * per_cell
    assert plan.question.endswith("?") or "DepthBench" in plan.question


def test_a_study_that_is_not_there_is_refused_with_the_reason() -> None:
    for name in ABSENT:
        with pytest.raises(InputError, match="does not have"):
            plan_study(name, TINY)
    with pytest.raises(InputError, match="did you mean ladder"):
        plan_study("lader", TINY)
    with pytest.raises(InputError, match="unknown scale"):
        plan_study("ladder", Ask(scale="large"))
    with pytest.raises(InputError, match="unknown size"):
        plan_study("ladder", Ask(sizes=("61m",)))
    with pytest.raises(InputError, match="a depth is a whole number"):
        plan_study("depth", Ask(scale="tiny", sizes=("deep",)))
    with pytest.raises(InputError, match="unknown scheme"):
        Ask(schemes=("layerrop",))
    with pytest.raises(InputError, match="must be positive"):
        Ask(lrs=(0.0,))
    with pytest.raises(InputError, match="--vocab-size must be at least 1"):
        Ask(vocab_size=0)


@pytest.mark.parametrize(
    ("name", "ask", "says"),
    [
        ("ladder", {"budgets": ("200", "200steps")}, "tiny-8, budget 200 and size tiny-8, budget 200steps. Leave"),
        ("depth", {"budgets": ("20x", "20.0x")}, "layers 2, budget 20x and layers 2, budget 20.0x"),
        ("aspect", {"embed_stds": (0.02, 0.02001)}, "both be called layers 1, shape .*, embed std 0.02: set them"),
        ("context", {"budgets": ("3", "96tokens")}, "budget 3 and context 16, budget 96tokens"),
        ("loop", {"budgets": ("1", "1step")}, "are the same runs"),
    ],
)
def test_settings_that_are_one_are_refused_before_anything_is_trained(
    name: str, ask: dict[str, tuple[str, ...]], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        plan_study(name, replace(TINY, **ask))  # type: ignore[arg-type]


def test_a_setting_asked_for_twice_is_one() -> None:
    once = Ask(scale="tiny", sizes=("tiny-8",), budgets=("4",), embed_stds=(0.1,))
    twice = replace(once, sizes=("tiny-8",) * 2, budgets=("4",) * 2, embed_stds=(0.1,) * 2)
    assert plan_study("ladder", twice) == plan_study("ladder", once)
    assert plan_study("ladder", twice).axes == ["size"]
    two, three = (replace(TINY, sizes=sizes) for sizes in (("2",), ("2", "02", "2")))
    assert plan_study("depth", three) == plan_study("depth", two)


def test_the_sweep_comes_first_and_other_seeds_follow_at_the_best_rate() -> None:
    plan = plan_study("competitors", Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.1, 0.2, 0.4), seeds=(7, 8)))
    first = plan.first()
    assert [run.config.seed for run in first.runs] == [7] * 6
    best = {"prenorm": 0.2, "lns": None}
    outcomes = {r.key: ended(2.0 if best[r.config.model.scheme] == r.config.lr else None) for r in first.runs}
    more = plan.then(outcomes).runs[6:]
    assert [(r.config.model.scheme, r.config.lr, r.config.seed) for r in more] == [("prenorm", 0.2, 8)]
    assert len(plan.whole().runs) == 8


def test_further_seeds_can_be_kept_to_the_smallest_sizes() -> None:
    ask = Ask(scale="tiny", sizes=("tiny-16", "tiny-8", "tiny-12"), schemes=("lns",), seeds=(0, 1, 2), seeded_sizes=2)
    plan = plan_study("ladder", ask)
    outcomes = {run.key: ended(2.0 + run.config.lr) for run in plan.first().runs}
    for study in (plan.then(outcomes), plan.whole()):
        seeds = {(run.labels["size"], run.config.seed) for run in study.runs}
        assert seeds == {*((size, 0) for size in ask.sizes), *((s, k) for s in ("tiny-8", "tiny-12") for k in (1, 2))}
    assert (
        plan_study("ladder", replace(ask, seeded_sizes=9)).cells
        == plan_study("ladder", replace(ask, seeded_sizes=None)).cells
    )
    with pytest.raises(InputError, match="number of sizes from 1"):
        replace(ask, seeded_sizes=0)
    with pytest.raises(InputError, match="lr takes --seeds alone"):
        plan_study("lr", replace(ask, sizes=()))


def test_a_table_of_uneven_seeds_counts_them(tmp_path: Path) -> None:
    ask = Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.01, 0.02), seeds=(0, 1), seeded_sizes=1)
    plan = plan_study("ladder", ask)
    found = on_disk(plan, tmp_path, lambda run: 3.0 + run.config.lr)
    assert [row["seeds"] for row in setting_rows(found)] == ["2", "2", "1", "1", "1", "1"]


def test_the_rate_study_trains_every_seed_at_every_rate() -> None:
    plan = plan_study("lr", Ask(scale="tiny", seeds=(0, 1)))
    assert plan.then({}) == plan.first()
    assert {(r.config.lr, r.config.seed) for r in plan.first().runs} == {
        (lr, s) for lr in plan.cells[0].lrs for s in (0, 1)
    }


def widened(plan: Plan, loss: Callable[[str, float], float | None]) -> dict[str, tuple[float, ...]]:
    """The rates of every scheme once nothing more is to be added, the runs ending at `loss`(scheme, rate)."""
    for _ in range(10):
        runs = plan.first().runs
        wider = plan.wider({r.key: ended(loss(r.config.model.scheme, r.config.lr)) for r in runs})
        if wider == plan:
            return {cell.scheme: cell.lrs for cell in plan.cells}
        plan = wider
    raise AssertionError("rates were added without end")


def test_a_best_rate_at_the_edge_is_followed_until_it_lies_between_two_others() -> None:
    def distance(scheme: str, lr: float) -> float | None:
        wanted = {"prenorm": 0.2, "lns": 0.8, "perinorm": 0.025, "keel": 100.0, "layerrope": 0.0}[scheme]
        return None if scheme == "layerrope" and lr > 0.06 else abs(math.log((lr + 1e-9) / (wanted + 1e-9)))

    schemes = ("prenorm", "lns", "perinorm", "keel", "layerrope")
    ask = Ask(scale="tiny", schemes=schemes, lrs=(0.1, 0.2, 0.4), seeds=(0, 1), bracket=3)
    assert widened(plan_study("competitors", ask), distance) == {
        "prenorm": (0.1, 0.2, 0.4),
        "lns": (0.1, 0.2, 0.4, 0.8, 1.6),
        "perinorm": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4),
        "keel": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2),  # three and no more
        "layerrope": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4),  # down to where it does not diverge, and on
    }
    alone = plan_study("competitors", dataclasses.replace(ask, lrs=(0.1,)))
    assert widened(alone, distance) == dict.fromkeys(schemes, (0.1,))
    none = plan_study("competitors", dataclasses.replace(ask, bracket=0))
    assert widened(none, distance) == dict.fromkeys(schemes, (0.1, 0.2, 0.4))
    with pytest.raises(InputError, match="--bracket"):
        Ask(bracket=-1)


def test_every_seed_is_trained_at_every_rate_where_asked_and_a_lucky_first_seed_decides_nothing() -> None:
    ask = Ask(scale="tiny", schemes=("prenorm",), lrs=(0.1, 0.2), seeds=(0, 1, 2), bracket=0, every_seed=True)
    plan = plan_study("competitors", ask)
    runs = plan.first().runs
    assert {(run.config.lr, run.config.seed) for run in runs} == {(lr, seed) for lr in (0.1, 0.2) for seed in (0, 1, 2)}
    luck = {r.key: ended(1.9 if (r.config.lr, r.config.seed) == (0.2, 0) else 2.0 + 4 * r.config.lr) for r in runs}
    assert plan.then(luck) == plan.first()
    assert plan.whole() == plan.first()
    (row,) = compare(trials_of(runs, luck)).rows
    assert row.lr == 0.1  # and 0.2 by the first seed alone
    cells = plan_study("ladder", dataclasses.replace(ask, sizes=("tiny-8", "tiny-16"), seeded_sizes=1)).first().runs
    assert sorted({(run.labels["size"], run.config.seed) for run in cells}) == [
        ("tiny-16", 0),
        ("tiny-8", 0),
        ("tiny-8", 1),
        ("tiny-8", 2),
    ]


def test_seeds_that_end_far_apart_at_one_rate_are_named(tmp_path: Path) -> None:
    ask = Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.1, 0.2), seeds=(0, 1), bracket=0)
    fallen = {("prenorm", 1): 6.6}
    plan = plan_study("competitors", ask)
    found = on_disk(plan, tmp_path, lambda r: fallen.get((r.config.model.scheme, r.config.seed), 2.0 + r.config.lr))
    said = words(found)
    assert "Seeds at one rate end more than 0.5 nats apart: prenorm at size tiny-8, 0.1 (2.100 to 6.600)." in said
    assert "lns at" not in said.split("apart:")[1].split(".\n")[0]
    assert "--every-seed takes" in said
    whole = plan_study("competitors", dataclasses.replace(ask, every_seed=True))
    again = on_disk(whole, tmp_path / "all", lambda r: fallen.get((r.config.model.scheme, r.config.seed), 2.0))
    assert "--every-seed takes" not in words(again)
    assert "clips gradients" in words(again)


def test_the_rate_study_keeps_one_grid_for_all_schemes() -> None:
    plan = plan_study("lr", Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.1, 0.2), seeds=(0, 1), bracket=2))
    best = {"prenorm": 0.1, "lns": 0.4}
    found = widened(plan, lambda scheme, lr: abs(math.log(lr / best[scheme])))
    assert found["prenorm"] == found["lns"] == (0.05, 0.1, 0.2, 0.4)


def test_rates_are_added_to_no_cell_whose_runs_are_not_all_ended() -> None:
    plan = plan_study("competitors", Ask(scale="tiny", schemes=("prenorm",), lrs=(0.1, 0.2), bracket=2))
    low, high = plan.first().runs
    assert plan.wider({low.key: ended(1.0), high.key: Outcome("interrupted")}) == plan
    crashed = Outcome("failed", error="x", attempts=2)
    assert plan.wider({low.key: crashed, high.key: crashed}) == plan
    (cell,) = plan.wider({low.key: ended(1.0), high.key: crashed}).cells
    assert cell.lrs == (0.05, 0.1, 0.2)


def test_a_ladder_has_equal_tokens_per_parameter_and_the_paper_s_flops() -> None:
    plan = plan_study("ladder", Ask(scale="paper", sizes=("60m", "1b"), schemes=("prenorm",), lrs=(2e-3,), seeds=(0,)))
    found = costs(plan.whole().runs, "h100", 0.4)
    assert [round(c.tokens_per_parameter, 2) for c in found] == [80, 80]
    assert float(f"{found[1].flops:.3g}") == 8.27e20
    assert found[1].hours == pytest.approx(8.27e20 / (0.4 * 989e12) / 3600, rel=1e-3)
    assert cost_rows(found)[-1]["run"] == "total of 2 runs"
    with pytest.raises(InputError, match="unknown GPU"):
        costs([], "h1000")
    with pytest.raises(InputError, match="share of the peak"):
        costs([], utilisation=40)


def test_contexts_have_equal_tokens_per_step() -> None:
    runs = plan_study("context", TINY).first().runs
    assert {run.config.model.seq_len for run in runs} == {16, 32}
    assert {run.config.tokens_per_step for run in runs} == {32}
    with pytest.raises(InputError, match="does not divide"):
        plan_study("context", Ask(scale="tiny", sizes=("17",)))


@pytest.mark.parametrize("scale", ["tiny", "micro"])
def test_shapes_of_the_aspect_study_have_equal_parameters(scale: str) -> None:
    s = SCALES[scale]
    shapes = equal_shapes(s.aspect_target, s.aspect_depths, SIZES[s.size])
    for shape in shapes.values():
        total, ends, _ = count_parameters(shape)
        assert total - ends == pytest.approx(s.aspect_target, rel=0.15 if scale == "micro" else 0.5)
        assert shape.d_head % 2 == 0


def test_the_ablation_has_every_start_of_the_issue_in_short_and_long_budgets() -> None:
    plan = plan_study("ablation", TINY)
    assert len({(c.setting["budget"], c.setting["embed std"]) for c in plan.cells}) == 4
    assert {c.fields["steps"] for c in plan.cells} == {4, 6}
    assert len(plan.cells) == 4 * len(ABLATION)


def test_what_the_user_sets_is_what_runs() -> None:
    ask = Ask(scale="tiny", schemes=("lns",), lrs=(0.5,), seeds=(3,), budgets=("9",), embed_stds=(0.1,), batch_size=4)
    (run,) = plan_study("competitors", ask).first().runs
    c = run.config
    assert (c.model.scheme, c.lr, c.seed, c.steps, c.model.embed_std, c.batch_size) == ("lns", 0.5, 3, 9, 0.1, 4)
    bpe = plan_study("ladder", Ask(scale="micro", tokenizer="bpe:4096", sizes=("micro-100k",), schemes=("lns",)))
    assert bpe.base.model.vocab_size == 4096


# ------------------------------------------------------------------------------------------------------------ measures
def test_the_good_region_is_where_straight_lines_cross() -> None:
    found = good_region({1.0: 2.2, 2.0: 2.02, 4.0: 2.0, 8.0: 2.1, 16.0: None}, near=0.05)
    assert found is not None
    assert found.low == pytest.approx(2 * 2 ** (-0.03 / 0.18))
    assert found.high == pytest.approx(4 * 2**0.5)
    assert (found.open_low, found.open_high) == (False, False)
    edge = good_region({1.0: 2.0, 2.0: 2.01, 4.0: None}, near=0.05)
    assert edge is not None
    assert (edge.low, edge.open_low, edge.high, edge.open_high) == (1.0, True, 2.0, False)
    assert good_region({1.0: None}) is None
    assert (found.tried, found.outside, found.least, found.most) == ((2.0, 4.0), (1.0, 8.0), 2.0, 8.0)
    assert (edge.outside, edge.most) == ((None, 4.0), None)


def test_a_region_of_one_rate_is_no_measured_width(tmp_path: Path) -> None:
    """A grid of factors of two cannot tell a width of 1.1 from one of 4."""
    narrow = good_region({1.0: 2.5, 2.0: 2.0, 4.0: 2.5})
    assert narrow is not None
    assert (narrow.least, narrow.most) == (1.0, 4.0)
    assert narrow.width < 1.2

    def loss(run: Run) -> float:
        return 2 + (0.5 if run.config.model.scheme == "prenorm" else 0.01) * abs(math.log2(run.config.lr / 0.02))

    ask = Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.01, 0.02, 0.04), bracket=0)
    found = on_disk(plan_study("lr", ask), tmp_path, loss)
    assert "a region reaches the edge of the grid and a region holds a single rate of the grid" in words(found)
    (rows,) = [rows for title, rows in findings_of(found).tables if title.startswith("Good")]
    assert {row["scheme"]: row["by the rates tried alone"] for row in rows} == {
        "lns": "at least 4x",
        "prenorm": "1x to 4x",
    }


@given(st.floats(0.05, 2), st.floats(-3, 3))
def test_the_width_of_a_parabola_is_its_own(curvature: float, centre: float) -> None:
    step = 0.01
    rates = {math.exp(centre + k * step): 2 + curvature * (k * step) ** 2 for k in range(-150, 151)}
    found = good_region(rates, near=0.05)
    assert found is not None
    half = math.sqrt(0.05 / curvature)
    assert math.log(found.width) == pytest.approx(2 * half, rel=0.02)


def test_sensitivity_is_the_mean_loss_over_the_best_and_a_lost_run_counts_as_untrained() -> None:
    assert sensitivity({1.0: 2.0, 2.0: 3.0, 4.0: 9.0, 8.0: None}, start=5.0) == pytest.approx((2 + 3 + 5 + 5) / 4 - 2)
    assert sensitivity({1.0: None}, start=5.0) is None


def test_verdicts_on_depth() -> None:
    assert verdict("a", {8: 2.0, 16: 1.9, 32: 1.94}).breaks_at is None
    broken = verdict("b", {8: 2.0, 16: 1.9, 32: 1.96, 64: 1.5})
    assert (broken.stable_to, broken.breaks_at, broken.best_depth) == (16, 32, 64)
    assert "not at 32 (loss 1.9600 at 32)" in broken.words
    assert "no run reached its end" in verdict("c", {8: 2.0, 16: None}).words
    assert verdict("d", {8: None}).words == "d: no depth trained to its end."


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.floats(-0.5, 0.5))
def test_the_paired_test_is_scipy_s(values: list[float], shift: float) -> None:
    gaps = t_interval([v + shift for v in values])
    if gaps.sd and gaps.sd > 1e-6:
        assert t_test(gaps) == pytest.approx(
            ttest_rel([v + shift for v in values], [0.0] * len(values)).pvalue, abs=1e-9
        )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_never_lowers_a_p_and_keeps_the_order(values: list[float]) -> None:
    made = holm(values)
    assert all(a >= b for a, b in zip(made, values, strict=True))
    assert min(made) == pytest.approx(min(1, min(values) * len(values)))
    assert [v for _, v in sorted(zip(values, made, strict=True))] == sorted(made)


# ------------------------------------------------------------------------------------------------------------ findings
def test_a_ladder_s_savings_are_those_of_its_losses(tmp_path: Path) -> None:
    ask = Ask(
        scale="tiny", sizes=("tiny-8", "tiny-12", "tiny-16", "micro-100k"), schemes=("prenorm", "lns", "layerrope")
    )
    heights = {"prenorm": 1.0, "lns": 0.95, "layerrope": 0.9}

    def loss(run: Run) -> float | None:
        size = {"tiny-8": 1.0, "tiny-12": 2.0, "tiny-16": 4.0, "micro-100k": 30.0}[run.labels["size"]]
        bad = run.labels["lr"] != 0.01
        return 2 + heights[run.config.model.scheme] * size**-0.3 + 0.5 * bad

    found = on_disk(plan_study("ladder", ask), tmp_path, loss)
    said = findings_of(found)
    saved = next(rows for caption, rows in said.tables if caption.startswith("Compute saved"))
    assert [row["against"] for row in saved] == ["lns", "prenorm"]
    assert "left out" in words(found)
    assert "scaling" in {figure.name for figure in said.figures}


def test_the_best_rate_of_every_depth_is_given_with_edges_and_lost_runs(tmp_path: Path) -> None:
    """SCL-3: a rate that is best at one depth is taken to another only by who has seen how far it moves."""
    ask = Ask(scale="tiny", sizes=("2", "3", "4"), schemes=("prenorm", "lns"), lrs=(0.1, 0.2, 0.4, 0.8), seeds=(0,))
    best = {2: 0.4, 3: 0.2, 4: 0.1}

    def loss(run: Run) -> float | None:
        depth, lr = run.config.model.n_layer, run.config.lr
        if run.config.model.scheme == "lns":
            return abs(math.log(lr / 0.4))
        return None if depth == 4 and lr > 0.3 else abs(math.log(lr / best[depth]))

    found = on_disk(plan_study("depth", ask), tmp_path, loss)
    assert "prenorm: the best learning rate moves by 4x over depths or more, for not every one is" in words(found)
    assert "lns: the best learning rate moves by 1x over depths." in words(found)
    (rows,) = [rows for title, rows in findings_of(found).tables if title.startswith("Best learning rate by layers")]
    assert rows[0] == {"scheme": "prenorm", "2": "0.4", "3": "0.2", "4": "0.1*, 2 lost"}
    assert "Diverged: 2 runs: prenorm at 0.4 (layers 4, seed 0), prenorm at 0.8 (layers 4, seed 0)" in words(found)


def test_depth_gives_a_verdict_a_scheme_and_names_what_was_lost(tmp_path: Path) -> None:
    ask = Ask(scale="tiny", sizes=("2", "4", "8"), schemes=("prenorm", "postnorm"))
    found = on_disk(
        plan_study("depth", ask),
        tmp_path,
        lambda r: None if (r.config.model.scheme, r.labels["layers"]) == ("postnorm", 8) else 3.0,
    )
    said = words(found)
    assert "prenorm: stable to 8 layers" in said
    assert "postnorm: stable to 4 layers, not at 8 (no run reached its end)" in said
    assert "Diverged: 1 runs: postnorm" in said


def test_the_rate_study_says_how_much_wider(tmp_path: Path) -> None:
    widths = {"prenorm": 0.5, "layerrope": 2.0}

    def loss(run: Run) -> float:
        return 2 + 0.05 * (math.log2(run.config.lr / 0.01) / widths[run.config.model.scheme]) ** 2

    rates = tuple(0.01 * 2 ** (k / 4) for k in range(-16, 17))
    found = on_disk(plan_study("lr", Ask(scale="tiny", schemes=tuple(widths), lrs=rates)), tmp_path, loss)
    said = findings_of(found)
    rows = {row["scheme"]: row for row in said.tables[0][1]}
    assert (rows["prenorm"]["width"], rows["layerrope"]["width"]) == ("2.0x", "16.0x")
    assert "layerrope: good rates span 8.00 times Pre-Norm's factor" in words(found)


def test_the_ablation_tests_pairs_and_says_what_the_rotation_is_worth(tmp_path: Path) -> None:
    gaps = {"prenorm": 0.1, "layerrope": 0.0, "layerrope:rotation=off": 0.02, "prenorm-scaledinit": 0.0001}
    ask = Ask(
        scale="tiny", schemes=tuple(gaps), seeds=(0, 1, 2, 3), budgets=("4",), embed_stds=(0.1,), lrs=(0.01, 0.02)
    )

    def loss(run: Run) -> float:
        wobble = 0.001 * (run.config.seed % 2) * (1 if run.config.model.scheme == "layerrope" else 1.7)
        return 3 + run.config.seed + gaps[run.config.model.scheme] + wobble + (run.config.lr > 0.015)

    found = on_disk(plan_study("ablation", ask), tmp_path, loss)
    assert re.search(
        r"lead over prenorm: \+0\.100\d \[.*\] nats; without the rotation \+0\.080\d.*, 80% of it\.", words(found)
    )
    assert re.search(r"lead over prenorm-scaledinit: .*, but no lead is told, so no share of it\.", words(found))
    tests = {test.scheme: test for test in paired_tests(found.groups[0].table, "layerrope")}
    assert tests["prenorm"].words == "worse"
    assert tests["layerrope:rotation=off"].words == "worse"
    assert tests["prenorm-scaledinit"].words == "not told apart"


@pytest.mark.parametrize("name", ["aspect", "context", "recipe", "competitors"])
def test_the_other_studies_report_every_setting(name: str, tmp_path: Path) -> None:
    found = on_disk(plan_study(name, TINY), tmp_path, lambda r: 3 + len(r.config.model.scheme) / 100)
    said, made = write_study_report(found)
    assert said.sentences
    assert len(made["runs"]) == len(found.study.runs)
    assert all((tmp_path / "charts" / f"{figure.name}.png").stat().st_size > 1000 for figure in said.figures)
    assert json.loads((tmp_path / "result.json").read_text())["finished"]


# -------------------------------------------------------------------------------------------- settings on a second axis
STEPS = ("4", "8")
"""Two budgets: in the made-up losses below the schemes do something else in each."""


def two_budgets(name: str, folder: Path, loss: Callable[[Run], float | None], **more: object) -> Found:
    ask = Ask(scale="tiny", schemes=("prenorm", "lns"), budgets=STEPS, lrs=(0.1, 0.2, 0.4), seeds=(0,), bracket=0)
    return on_disk(plan_study(name, replace(ask, **more)), folder, loss)  # type: ignore[arg-type]


def drawn_points(found: Found) -> dict[str, set[tuple[float, float]]]:
    """What the charts of loss by a numeric axis show, by their names: (x, loss)."""
    charts = {figure.name: figure.chart.to_dict() for figure in findings_of(found).figures}
    return {
        name: {(row["x"], round(row["loss"], 6)) for rows in chart["datasets"].values() for row in rows}
        for name, chart in charts.items()
        if name.startswith("loss-by-")
    }


def test_depth_is_judged_in_each_budget_alone(tmp_path: Path) -> None:
    """Stable in the short runs and not in the long ones; each with the rate that is best there."""

    def loss(run: Run) -> float:
        depth, long = run.config.model.n_layer, run.labels["budget"] == "8"
        return 2 + (depth - 2) * long + abs(math.log(run.config.lr / (0.4 if long and depth == 3 else 0.2)))

    found = two_budgets("depth", tmp_path, loss, sizes=("2", "3"))
    said = findings_of(found)
    assert "budget 4, prenorm: stable to 3 layers; lowest loss 2.0000 at 2." in said.sentences
    assert "budget 8, prenorm: stable to 2 layers, not at 3 (loss 3.0000 at 3); lowest loss 2.0000 at 2." in (
        said.sentences
    )
    assert "budget 4, lns: the best learning rate moves by 1x over depths." in said.sentences
    assert any(line.startswith("budget 8, lns: the best learning rate moves by 2x") for line in said.sentences)
    rates = {caption: rows[0] for caption, rows in said.tables if caption.startswith("Best learning rate")}
    assert [caption.split(". ")[-1] for caption in rates] == ["budget 4", "budget 8"]
    assert list(rates.values()) == [
        {"scheme": "prenorm", "2": "0.2", "3": "0.2"},
        {"scheme": "prenorm", "2": "0.2", "3": "0.4*"},
    ]
    assert drawn_points(found) == {"loss-by-layers-0": {(2, 2), (3, 2)}, "loss-by-layers-1": {(2, 2), (3, 3)}}
    assert [figure.caption.split(".")[0] for figure in said.figures] == ["budget 4", "budget 8"]


def test_shapes_and_contexts_are_judged_in_each_budget_alone(tmp_path: Path) -> None:
    def loss(run: Run) -> float:
        depth, context = run.config.model.n_layer, run.config.model.seq_len
        return 2 + (depth / 10 + context / 1000) * (1 if run.labels["budget"] == "4" else -1) + run.config.lr

    aspect = two_budgets("aspect", tmp_path / "aspect", loss, sizes=("4", "2", "1"))
    short, long = (next(s for s in findings_of(aspect).sentences if s.startswith(f"budget {b}, lns")) for b in STEPS)
    assert re.search(r"best shape L1 .*; the deepest, L4 x \d+, is \+0\.3000\.", short)
    assert re.search(r"best shape L4 .*; the deepest, L4 x \d+, is \+0\.0000\.", long)
    assert {name: len(points) for name, points in drawn_points(aspect).items()} == {
        "loss-by-layers-0": 3,
        "loss-by-layers-1": 3,
    }
    context = two_budgets("context", tmp_path / "context", loss)
    assert {name: len(points) for name, points in drawn_points(context).items()} == {
        "loss-by-context-0": 2,
        "loss-by-context-1": 2,
    }


def test_the_order_under_recipes_is_asked_in_each_budget_alone(tmp_path: Path) -> None:
    """The same under every recipe in either budget, though not the same in both."""

    def loss(run: Run) -> float:
        return 2 + 0.1 * ((run.config.model.scheme == "lns") == (run.labels["budget"] == "4"))

    said = findings_of(two_budgets("recipe", tmp_path, loss)).sentences
    assert said[:2] == [
        "The order of the schemes is the same under all 3 recipes at budget 4.",
        "The order of the schemes is the same under all 3 recipes at budget 8.",
    ]


@pytest.mark.parametrize(
    ("gap", "said"),
    [(0.1, "told from the spread of seeds for lns and prenorm"), (1e-3, "no swap is told from the spread of seeds")],
)
def test_an_order_that_changes_under_recipes_says_whether_seeds_tell_it(tmp_path: Path, gap: float, said: str) -> None:
    def loss(run: Run) -> float:
        sign = 1 if run.labels["recipe"] == "muon" else -1
        return 2 + (run.config.model.scheme == "lns") * (sign * gap + 0.01 * (run.config.seed - 1))

    plan = plan_study("recipe", Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.01,), seeds=(0, 1, 2)))
    assert findings_of(on_disk(plan, tmp_path, loss)).sentences[0].endswith(f"under all 3 recipes: {said}.")


def test_looping_is_compared_within_a_budget(tmp_path: Path) -> None:
    def loss(run: Run) -> float:
        return 2 + 0.1 * run.labels["run"].endswith("loops") * (1 if run.labels["budget"] == "4" else -1)

    tables = dict(findings_of(two_budgets("loop", tmp_path, loss)).tables)
    added = {caption.split(". ")[-1]: rows for caption, rows in tables.items() if "looping adds" in caption}
    assert list(added) == ["size loop-tiny, budget 4", "size loop-tiny, budget 8"]
    assert [[v for k, v in rows[0].items() if k != "scheme"] for rows in added.values()] == [
        ["+0.1000"] * 2,
        ["-0.1000"] * 2,
    ]


def test_every_setting_of_the_rate_study_has_its_own_chart_and_sentence(tmp_path: Path) -> None:
    def loss(run: Run) -> float:
        return 2 + 0.1 * math.log2(run.config.lr / 0.2) ** 2

    found = two_budgets("lr", tmp_path, loss, sizes=("tiny-8", "tiny-12"))
    said = findings_of(found)
    places = [f"size {size}, budget {budget}" for size in ("tiny-8", "tiny-12") for budget in STEPS]
    assert [(f.name, f.caption.split(".")[0]) for f in said.figures] == [
        (f"learning-rates-{i}", place) for i, place in enumerate(places)
    ]
    wider = [line for line in said.sentences if "good rates span" in line]
    assert [line.split(", lns:")[0] for line in wider] == places
    alone = findings_of(two_budgets("lr", tmp_path / "one", loss, budgets=("4",)))
    assert [figure.name for figure in alone.figures] == ["learning-rates"]
    assert any(line.startswith("lns: good rates span") for line in alone.sentences)


def test_a_ladder_has_a_law_for_each_start_of_the_stream_and_lengths_are_points_of_one(tmp_path: Path) -> None:
    heights = {0.02: 1.0, 0.5: 2.0}
    sizes = {"tiny-8": 1.0, "tiny-12": 2.0, "tiny-16": 4.0, "micro-100k": 30.0}

    def loss(run: Run) -> float:
        better = 0.8 if run.config.model.scheme == "lns" else 1.0
        height = heights[run.config.model.embed_std] * sizes[run.labels["size"]] ** -0.3
        return 2 + better * height * (1 if run.labels.get("budget", "4") == "4" else 0.9)

    found = two_budgets("ladder", tmp_path, loss, embed_stds=tuple(heights), lrs=(0.1,), sizes=tuple(sizes))
    said = findings_of(found)
    assert [figure.name for figure in said.figures] == ["scaling-0", "scaling-1"]
    for i, (std, height) in enumerate(heights.items()):
        (report,) = (line for line in said.sentences if line.startswith(f"embed std {std}: L(C)"))
        assert "16 points from these runs" in report  # four sizes of two schemes, each at two lengths; and no seeds
        shown = {row["loss"] for rows in said.figures[i].chart.to_dict()["datasets"].values() for row in rows}
        assert 2 + height in {round(loss, 6) for loss in shown}
        assert 2 + sum(heights.values()) - height not in {round(loss, 6) for loss in shown}
    laws = [caption for caption, _ in said.tables if caption.startswith("L(C)")]
    assert laws == ["L(C) = E + A C^-alpha. embed std 0.02", "L(C) = E + A C^-alpha. embed std 0.5"]
    assert not any("taken as seeds" in line or "left out" in line for line in said.sentences)


def test_nothing_finished_is_said_and_no_error(tmp_path: Path) -> None:
    for name in RECIPES:
        found = on_disk(
            plan_study(name, Ask(scale="tiny", schemes=("prenorm", "layerrope"))), tmp_path / name, lambda r: None
        )
        assert "Diverged" in words(found)
        write_study_report(found)


def test_a_crash_is_kept_with_its_error_and_in_the_table(tmp_path: Path) -> None:
    plan = plan_study("competitors", Ask(scale="tiny", schemes=("prenorm", "lns"), lrs=(0.01,)))
    study = plan.first()
    for run in study.runs:
        (tmp_path / run.key).mkdir()
    crashed = Outcome("failed", error="RuntimeError: x, y", attempts=2)
    run_study(study, tmp_path, lambda jobs, listen: {job.run_dir: crashed for job in jobs}, lambda job, what: None)
    found = read_found(tmp_path)
    assert "Crashed, twice: 2 runs: prenorm at 0.01 (size tiny-8, seed 0), lns at 0.01 (size tiny-8, seed 0)" in words(
        found
    )
    assert '"RuntimeError: x, y"' in runs_csv(found)
    assert compare(found.groups[0].table.trials).ranked == ()
