"""Comparisons: best rates, paired intervals, edges, divergence, and the sentences made from them."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from layerrope.budget import steps_of
from layerrope.comparing.choices import choices
from layerrope.comparing.compare import SCHEMES, Table, Trial, best_rate, bracketed, compare, comparison, mean_losses
from layerrope.comparing.findings import findings, signed
from layerrope.comparing.intervals import Interval, t_interval
from layerrope.comparing.plan import Request, plan
from layerrope.comparing.rates import GRID, Rates, Sweep, Swept, choose, packaged, sweep_from_json, sweep_to_json
from layerrope.config import tiers
from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.launching.launch import Outcome
from layerrope.training.recipe import TrainConfig, to_json
from layerrope.training.run_folder import Result

LOSSES = st.floats(0.5, 10)


def trial(scheme: str, lr: float, seed: int, loss: float | None, status: str = "done") -> Trial:
    """A run that ended with `loss`; None is divergence at step 7."""
    status = status if loss is not None else "diverged"
    result = Result(
        status=status,
        key="k",
        step=10,
        tokens=100,
        train_loss=loss,
        val_loss=loss,
        bits_per_byte=None if loss is None else loss / math.log(2),
        best_val_loss=loss,
        best_step=10,
        seconds=1.0,
        tokens_per_second=100.0,
        n_params=1000,
        diverged_at=7 if loss is None else None,
    )
    return Trial(scheme, lr, seed, "k", Outcome(status, result))


def failed(scheme: str, lr: float, seed: int) -> Trial:
    return Trial(scheme, lr, seed, "k", Outcome("failed", error="RuntimeError: x", attempts=2))


def sweep(losses: dict[str, list[float | None]], rates: Sequence[float] = (1.0, 2.0, 4.0)) -> list[Trial]:
    """One seed of every scheme at every rate."""
    return [trial(s, lr, 0, loss) for s, row in losses.items() for lr, loss in zip(rates, row, strict=True)]


# --------------------------------------------------------------------------------------------------------- intervals
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.floats(0.5, 0.99))
def test_the_t_interval_is_scipy_s(values: list[float], level: float) -> None:
    assume(np.std(values) > 1e-6)
    found = t_interval(values, level)
    low, high = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(0.3, 2.0, size=(2000, 4))
    inside = [i.low < 0.3 < i.high for i in map(t_interval, draws.tolist())]  # type: ignore[operator]
    assert 0.935 < np.mean(inside) < 0.965


def test_one_value_has_no_interval_and_none_is_an_error() -> None:
    assert t_interval([2.0]) == Interval(2.0, None, None, 1, None)
    assert not t_interval([2.0]).decided
    assert t_interval([2.0, 2.0]).decided
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


# -------------------------------------------------------------------------------------------------------- best rates
@given(st.lists(LOSSES, min_size=1, max_size=8, unique=True))
def test_the_best_rate_has_the_lowest_loss_and_is_bracketed_inside_the_grid(losses: list[float]) -> None:
    trials = [trial("a", float(i + 1), 0, loss) for i, loss in enumerate(losses)]
    lr = best_rate(trials)
    at = losses.index(min(losses))
    assert lr == at + 1
    assert bracketed(trials, lr) == (None if len(losses) == 1 else 0 < at < len(losses) - 1)


def test_a_rate_that_loses_a_seed_is_not_the_best_one() -> None:
    trials = [trial("a", 1.0, 0, 3.0), trial("a", 1.0, 1, 3.2), trial("a", 2.0, 0, 1.0), trial("a", 2.0, 1, None)]
    assert mean_losses(trials) == {1.0: (0, pytest.approx(3.1)), 2.0: (1, 1.0)}
    assert best_rate(trials) == 1.0
    assert bracketed(trials, 1.0) is False
    assert bracketed([*trials, trial("a", 0.5, 0, 4.0), trial("a", 0.5, 1, 4.0)], 1.0) is True


def test_a_seed_tried_at_one_rate_only_does_not_choose_it_or_speak_against_it() -> None:
    trials = [trial("a", 1.0, 0, 2.0), trial("a", 2.0, 0, 2.5), trial("a", 1.0, 1, 9.0)]
    assert best_rate(trials) == 1.0
    assert compare(trials).rows[0].val_loss == pytest.approx(5.5)


def test_the_difference_is_paired_by_seed_each_at_its_own_best_rate() -> None:
    trials = [trial("prenorm", lr, s, 2.0 + s + (lr != 1.0)) for lr in (1.0, 2.0) for s in range(3)]
    trials += [trial("lns", lr, s, 1.9 + s + 0.01 * s + (lr != 2.0)) for lr in (1.0, 2.0) for s in range(3)]
    table = compare(trials)
    row = next(row for row in table.rows if row.scheme == "lns")
    assert (row.lr, row.difference and row.difference.n) == (2.0, 3)
    expected = stats.t.interval(0.95, 2, loc=-0.09, scale=stats.sem([-0.1, -0.09, -0.08]))
    assert row.difference is not None
    assert (row.difference.low, row.difference.high) == pytest.approx(expected)
    assert table.rows[0].scheme == "lns"


def test_a_seed_that_one_of_the_two_lost_is_no_pair() -> None:
    trials = [trial("prenorm", 1.0, 0, 2.0), trial("prenorm", 1.0, 1, None)]
    trials += [trial("lns", 1.0, 0, 1.5), trial("lns", 1.0, 1, 1.0)]
    row = compare(trials).rows[0]
    assert row.difference == Interval(-0.5, None, None, 1, None)


def test_a_scheme_that_diverges_everywhere_is_shown_last_and_never_dropped() -> None:
    table = compare(sweep({"postnorm": [None, None, None], "prenorm": [2.0, 1.0, None]}))
    assert [row.scheme for row in table.rows] == ["prenorm", "postnorm"]
    gone = table.rows[1]
    assert (gone.lr, gone.val_loss, gone.difference, len(gone.lost), gone.parameters) == (None, None, None, 3, 1000)
    said = " ".join(findings(table, TrainConfig()).can)
    assert "postnorm at 4 (seed 0, step 7)" in said
    assert "no run reached the end: postnorm" in said
    assert table.rows[0].bracketed is True


def test_nothing_finished_is_said_and_no_error() -> None:
    table = compare([failed("lns", 1.0, 0), trial("hc", 1.0, 0, None)])
    assert table.ranked == ()
    assert findings(table, TrainConfig()).can[0].startswith("No run was trained to its end")


# ----------------------------------------------------------------------------------------------------------- sentences
def said(table: Table, sweep: Sweep | None = None) -> str:
    found = findings(table, TrainConfig(), sweep)
    return "\n".join([*found.can, "--", *found.cannot])


def test_one_seed_is_said_to_give_no_interval() -> None:
    words = said(compare([trial("prenorm", 1.0, 0, 2.0), trial("lns", 1.0, 0, 1.9)]))
    assert "One seed, so no interval" in words
    assert "cannot be told apart" in words
    assert "95%" not in words


def test_several_seeds_say_who_is_told_apart() -> None:
    gaps = {"prenorm": [0, 0, 0], "lns": [-0.1, -0.11, -0.09], "hc": [0.2, 0.21, 0.19], "keel": [-0.5, 0.5, 0.1]}
    words = said(compare([trial(s, 1.0, i, 2 + i + g) for s, row in gaps.items() for i, g in enumerate(row)]))
    assert "Better than prenorm beyond the spread of the seeds: lns -0.100 [-0.125, -0.075]." in words
    assert "Worse than prenorm beyond the spread of the seeds: hc +0.200" in words
    assert "Not told apart from prenorm by these seeds: keel" in words
    assert "3 intervals at 95%" in words


def test_an_edge_is_called_not_bracketed_and_the_first_scheme_is_the_reference_without_prenorm() -> None:
    table = compare(sweep({"lns": [3.0, 2.0, 1.0], "hc": [3.0, 1.5, 2.0]}))
    words = said(table)
    assert "Not bracketed: the best rate is at the edge of those tried for lns (4)" in words
    assert "prenorm is not among the schemes: differences are to the first one, lns" in words
    assert table.reference == "lns"


SWEEP = Sweep(
    base=to_json(TrainConfig()),
    seeds=(1, 2, 3),
    reference="prenorm",
    command="sweep",
    schemes={
        "prenorm": Swept(2.0, True, {1.0: 2.1, 2.0: 2.0, 4.0: None}, None),
        "lns": Swept(4.0, False, {1.0: 2.1, 2.0: 2.0, 4.0: 1.9}, 0.02),
    },
)


def test_the_packaged_sweep_says_how_far_one_seed_can_be_trusted() -> None:
    close = compare([trial("prenorm", 2.0, 0, 2.0), trial("lns", 4.0, 0, 1.97)], {"prenorm": True, "lns": False})
    words = said(close, SWEEP)
    assert "scattered over 3 seeds with a standard deviation of up to 0.020 nats" in words
    assert "Less than twice that lies between lns and prenorm (0.030 apart)" in words
    assert "on other seeds than these" in words
    assert "partly on these seeds" in said(close, replace(SWEEP, seeds=(0, 1, 2)))
    assert "Not bracketed" in words
    clear = compare([trial("prenorm", 2.0, 0, 2.0), trial("lns", 4.0, 0, 1.9)])
    assert "Every gap between neighbours in the order is more than twice that" in said(clear, SWEEP)


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("tie", [False, True])
def test_the_head_s_share_is_that_of_the_matrices_which_the_model_has(mlp: str, tie: bool, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mat, and the dog on the log. " * 400)
    model = replace(tiers["micro-100k"], vocab_size=257, mlp=mlp, tie=tie)
    data = DataConfig(source=str(tmp_path / "text.txt"), seq_len=model.seq_len)
    base = TrainConfig(model=model, data=data, steps=2, batch_size=2)
    matrices = 4 * model.d_model**2 + {"swiglu": 3, "gelu": 2}[mlp] * model.d_model * model.d_ff
    head = model.vocab_size * model.d_model
    share = head / (head + model.n_layer * matrices)
    found = choices(base, Rates({"prenorm": (0.1,)}, "asked"), [0], load_data(data))
    (text,) = (choice for choice in found if choice.name == "text")
    assert f"the head takes {share:.0%} of the weights that multiply" in text.why


def test_a_difference_as_written() -> None:
    assert signed(Interval(-0.0312, -0.04, -0.0223, 3, 0.1)) == "-0.031 [-0.040, -0.022]"
    assert signed(Interval(0.5, None, None, 1, None)) == "+0.500"


# ---------------------------------------------------------------------------------------------------------- the rates
def test_packaged_rates_are_used_only_where_the_sweep_was_made_at_these_settings() -> None:
    base = TrainConfig()
    fits = choose(["prenorm", "lns"], [], replace(base, seed=5, eval_tokens=7, lr=9.0, compile=True), SWEEP)
    assert fits.by_scheme == {"prenorm": (2.0,), "lns": (4.0,)}
    assert fits.sweep is SWEEP
    for other in (replace(base, steps=7), replace(base, model=replace(base.model, embed_std=0.5))):
        found = choose(["prenorm", "lns"], [], other, SWEEP)
        assert (found.by_scheme, found.sweep) == ({"prenorm": GRID, "lns": GRID}, None)
    mixed = choose(["lns", "postnorm"], [], base, SWEEP)
    assert mixed.by_scheme == {"lns": (4.0,), "postnorm": GRID}
    assert "the whole grid for postnorm" in mixed.source
    given_ = choose(["lns"], [0.2, 0.1, 0.2], base, SWEEP)
    assert (given_.by_scheme, given_.sweep) == ({"lns": (0.1, 0.2)}, None)


def test_a_sweep_survives_its_file_and_settings_that_come_and_go() -> None:
    assert sweep_from_json(sweep_to_json(SWEEP)) == SWEEP
    older = {name: value for name, value in SWEEP.base.items() if name != "clip"}
    assert replace(SWEEP, base=older).fits(TrainConfig())
    assert not replace(SWEEP, base={**SWEEP.base, "gone": 1}).fits(TrainConfig())


@pytest.mark.skipif(packaged() is None, reason="no sweep is packaged yet")
def test_the_packaged_rates_are_those_of_the_record_and_of_the_command_without_arguments() -> None:
    sweep = packaged()
    assert sweep is not None
    record = Path(__file__).parents[1] / "results" / "demo-sweep"
    with open(record / "runs.csv", encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    assert sweep.command in (record / "README.md").read_text()
    assert {int(run["seed"]) for run in runs} == set(sweep.seeds)
    for name, swept in sweep.schemes.items():
        losses: dict[float, list[float]] = {}
        for run in runs:
            if run["scheme"] == name and run["status"] == "done":
                losses.setdefault(float(run["lr"]), []).append(float(run["val_loss"]))
        means = {lr: np.mean(found) for lr, found in losses.items() if len(found) == len(sweep.seeds)}
        assert swept.lr == min(means, key=lambda lr: means[lr])
        assert swept.losses[swept.lr] == pytest.approx(means[swept.lr])
    rates = plan(Request()).facts["rates"]["by_scheme"]
    assert rates == {name: (sweep.schemes[name].lr,) for name in SCHEMES}


def test_the_study_pairs_every_scheme_on_every_seed() -> None:
    made = comparison(TrainConfig(), Rates({"prenorm": (1.0, 2.0), "lns": (3.0,)}, "x"), (0, 4), {})
    seen = [(r.config.model.scheme, r.config.lr, r.config.seed) for r in made.runs]
    assert seen == [(s, lr, seed) for seed in (0, 4) for s, lr in (("prenorm", 1.0), ("prenorm", 2.0), ("lns", 3.0))]


# --------------------------------------------------------------------------------------------------------- the request
@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ("240", 240),
        ("240steps", 240),
        ("1step", 1),
        ("2M", 977),
        ("1.5m", 733),
        ("500K", 245),
        ("2048tokens", 1),
        ("2049 tok", 2),
        ("20x", 10),
        ("0.1x", 1),
    ],
)
def test_budgets(budget: str, steps: int) -> None:
    assert steps_of(budget, 1000, 2048) == steps


@pytest.mark.parametrize("budget", ["", "x", "0", "-3", "2Q", "1e3", "20xx", "0x", "2M steps more"])
def test_budgets_that_are_none(budget: str) -> None:
    with pytest.raises(InputError, match="budget"):
        steps_of(budget, 1000, 2048)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schemes": ("prenrom",)}, "did you mean prenorm"),
        ({"schemes": ("layerrope:rotatoin=off",)}, "no option"),
        ({"schemes": ()}, "no scheme"),
        ({"tier": "mikro"}, "did you mean micro"),
        ({"preset": "modren"}, "did you mean modern"),
        ({"lrs": (0.0,)}, "must be positive"),
        ({"lrs": (math.nan,)}, "must be positive"),
        ({"seeds": ()}, "seeds are whole numbers"),
        ({"seeds": (-1,)}, "seeds are whole numbers"),
        ({"budget": "long"}, "cannot read the budget"),
        ({"optimizer": "adamx"}, "did you mean"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"embed_std": 0.0}, "embed_std must be positive"),
        ({"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_bad_requests_are_one_line(changed: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        plan(replace(Request(), **changed))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_choice_of_a_plan_is_stated() -> None:
    study = plan(replace(Request(), schemes=("prenorm", "prenorm-scaledinit", "layerrope"), lrs=(0.01,), budget="20x"))
    rows = {row["setting"]: f"{row['value']} | {row['why']}" for row in study.facts["settings"]}
    assert study.base.steps == math.ceil(20 * 1_240_256 / 2048)
    assert "prenorm-scaledinit: o x 0.144, down x 0.144" in rows["weights at the start"]
    assert "layerrope: alpha 0, beta -0.5, alpha_rot 0, beta_rot -0.5, base 100" in rows["gains at the start"]
    assert "0.6325" in rows["start of the stream"]
    assert "sqrt(2/5)" in rows["start of the stream"]
    assert "the rates given with --lrs" in rows["learning rates"]
    assert "20 tokens per parameter" in rows["budget"]
    assert "tier micro" in rows["model"]
    assert study.base.model.vocab_size == 257
