"""Scaling laws: the search against finite differences and scipy, recovery, invariance, refusals, and the savings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize as scipy_minimize

import layerrope
from layerrope.errors import InputError
from layerrope.scaling import logsum_fit
from layerrope.scaling.law import Curve, Law, Point, ScalingFit, fit_scaling, seed_weights
from layerrope.scaling.logsum_fit import Problem, best_of, minimise, objective
from layerrope.scaling.report import saved, saving_rows
from layerrope.scaling.savings import best_baseline, compute_saving, resample, savings
from layerrope.scaling.table import read_points

PAPER = Path(__file__).parent / "data" / "scaling" / "layerrope-1b.csv"
E, TOP = 1.81, 8.3e20
TRUTH = {"prenorm": (0.62, 0.15), "lns": (0.585, 0.15), "perinorm": (0.59, 0.147), "layerrope": (0.52, 0.155)}
"""Loss above the floor at `TOP`, and exponent; like the LayerRoPE paper's ladder."""


def made(
    sizes: int = 8, noise: float = 0.003, seed: int = 0, seeds: int = 1, schemes: Sequence[str] = tuple(TRUTH)
) -> list[Point]:
    """Points of the true curves, with noise in log loss."""
    random = np.random.default_rng(seed)
    return [
        Point(name, (E + a * (c / TOP) ** -b) * math.exp(noise * random.normal()), c, seed=str(k))
        for name, (a, b) in TRUTH.items()
        if name in schemes
        for c in np.geomspace(1.6e18, TOP, sizes).tolist()
        for k in range(seeds)
    ]


def problem(points: Sequence[Point], floor: str = "shared") -> Law:
    names = tuple(dict.fromkeys(p.scheme for p in points))
    return Law.of(points, names, "power", floor, np.ones(len(points)), None, 1e-3)


# ---------------------------------------------------------------------------------------------------------- the search
@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_gradient_is_that_of_finite_differences(seed: int) -> None:
    random = np.random.default_rng(seed)
    design = random.normal(size=(3, 7, 4))
    made = Problem(design, random.normal(size=(3, 7)), random.uniform(0.5, 2, 7), np.full(4, -np.inf), 0.3)
    theta, y = random.normal(size=(2, 4)), random.normal(size=(2, 7))
    _, gradient = objective(theta, y, made)
    for p in range(4):
        step = np.zeros(4)
        step[p] = 1e-6
        slope = (objective(theta + step, y, made)[0] - objective(theta - step, y, made)[0]) / 2e-6
        assert gradient[:, p] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_minimum_is_no_higher_than_what_scipy_finds(seed: int) -> None:
    law = problem(made(5, seed=seed))
    solved = minimise(law.starts(), law.y_N[None], law.problem)
    best = solved.value_B.min()
    assert solved.converged_B[solved.value_B.argmin()]

    def scaled(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(theta[None], law.y_N[None], law.problem)
        return 1e4 * value[0], 1e4 * gradient[0]

    found = [
        scipy_minimize(scaled, start, jac=True, method="BFGS", options={"gtol": 1e-10}) for start in law.starts()[::24]
    ]
    assert best <= min(f.fun for f in found) / 1e4 * (1 + 1e-6)


def test_most_starts_end_at_the_same_minimum_and_all_are_counted() -> None:
    (search,) = fit_scaling(made(5)).searches
    assert search.starts >= 90
    assert search.agreeing > search.starts / 2
    assert search.objective == pytest.approx(_huber(fit_scaling(made(5)).residuals(), 1e-3))


def loose(seed: int) -> list[Point]:
    """Small models: four sizes over a factor of 40, seeds 1.5% apart, a floor that the points hardly bound."""
    random = np.random.default_rng(seed)
    return [
        Point(name, (0.1 + a * (c / 1e13) ** -0.06) * math.exp(0.015 * random.normal()), c, seed=str(k))
        for name, a in (("prenorm", 5.0), ("lns", 4.9), ("layerrope", 4.8), ("perinorm", 5.2))
        for c in np.geomspace(1e12, 4e13, 4).tolist()
        for k in range(2)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_floor_that_the_points_hardly_bound_is_found_from_everywhere_and_in_resamples(seed: int) -> None:
    fit = fit_scaling(loose(seed))
    assert fit.searches[0].agreeing > 90
    made_up = resample(fit, 50)
    assert made_up is not None
    assert made_up.failed <= 1


def test_a_step_that_ends_at_a_bound_takes_the_other_parameters_downhill() -> None:
    law = problem(loose(0))
    near = law.starts()[0]
    near[0] = law.problem.least_P[0] + 1e-10
    solved = minimise(near[None], law.y_N[None], law.problem)
    everywhere = minimise(law.starts(), law.y_N[None], law.problem)
    assert solved.converged_B[0]
    assert solved.value_B[0] == pytest.approx(everywhere.value_B.min(), rel=1e-6)


def test_of_starts_that_agree_a_converged_one_is_taken() -> None:
    values = np.array([[1.0, 3.0, 2.0], [1.0 + 1e-8, 1.0, 2.0 + 1e-3], [2.0, 1.0 + 1e-9, 2.1]])
    converged = np.array([[False, True, False], [True, False, True], [True, False, True]])
    assert best_of(values, converged).tolist() == [1, 1, 0]


def _huber(residuals: np.ndarray, delta: float) -> float:
    size = np.abs(residuals)
    return float(np.where(size <= delta, size**2 / 2, delta * (size - delta / 2)).sum())


# ------------------------------------------------------------------------------------------------------------ recovery
@pytest.mark.parametrize("seed", range(5))
def test_exponents_come_back_within_two_hundredths_under_noise(seed: int) -> None:
    fit = fit_scaling(made(10, seed=seed))
    assert fit.converged
    assert not fit.notes
    for name, (_, exponent) in TRUTH.items():
        assert fit.curves[name].exponents[0] == pytest.approx(exponent, abs=0.02)
    assert len({curve.e for curve in fit.curves.values()}) == 1


def test_exact_points_come_back_exactly_with_shared_and_free_floors() -> None:
    for shared in (True, False):
        fit = fit_scaling(made(6, noise=0), shared_e=shared)
        for name, (height, exponent) in TRUTH.items():
            curve = fit.curves[name]
            assert (curve.e, curve.exponents[0]) == pytest.approx((E, exponent), abs=1e-4)
            assert float(curve.loss(TOP)) == pytest.approx(E + height, abs=1e-5)


def chinchilla_points(noise: float = 0.003) -> list[Point]:
    random = np.random.default_rng(3)
    return [
        Point("a", (1.8 + 480 * n**-0.35 + 2000 * d**-0.37) * math.exp(noise * random.normal()), n_params=n, tokens=d)
        for n in np.geomspace(1e7, 1e10, 8).tolist()
        for d in np.geomspace(1e9, 1e12, 8).tolist()
    ]


def test_the_chinchilla_form_comes_back_and_its_frontier_is_the_lowest_loss_at_every_compute() -> None:
    fit = fit_scaling(chinchilla_points(), form="chinchilla")
    curve = fit.curves["a"]
    assert fit.converged
    assert curve.exponents == pytest.approx((0.35, 0.37), abs=0.02)
    for compute in (1e18, 1e21):
        n = np.geomspace(1e6, 1e12, 20001)
        assert float(curve.frontier().loss(compute)) == pytest.approx(curve.loss(n, compute / 6 / n).min(), abs=1e-6)
        assert curve.compute_at(float(curve.frontier().loss(compute))) == pytest.approx(compute)


@pytest.mark.parametrize(
    "change",
    [
        lambda points: [p for p in points for _ in range(3)],
        lambda points: [replace(p, compute=(p.compute or 0) / 1e15) for p in points],
        lambda points: [replace(p, loss=p.loss / math.log(2)) for p in points],
        lambda points: points[::-1],
    ],
    ids=["listed three times", "petaFLOPs", "bits", "another order"],
)
def test_the_exponents_do_not_depend_on_how_the_points_are_given(change) -> None:
    points = made(6, seeds=2)
    plain, other = fit_scaling(points), fit_scaling(change(points))
    for name in TRUTH:
        assert other.curves[name].exponents == pytest.approx(plain.curves[name].exponents, abs=1e-4)


def test_one_outlier_hardly_moves_the_curve() -> None:
    points = made(10, noise=0.0005)
    bent = [replace(p, loss=p.loss * 1.3) if i == 3 else p for i, p in enumerate(points)]
    for name, curve in fit_scaling(bent).curves.items():
        assert curve.exponents == pytest.approx(fit_scaling(points).curves[name].exponents, abs=0.01)


def test_seeds_that_spread_less_weigh_more_but_few_of_them_are_not_believed() -> None:
    quiet = [Point("a", 3 + s, 1.0, seed=str(i)) for i, s in enumerate((-0.001, 0, 0.001))]
    loud = [Point("a", 2 + s, 10.0, seed=str(i)) for i, s in enumerate((-0.05, 0, 0.05))]
    alone = [Point("a", 1.5, 100.0)]
    weights = seed_weights([*quiet, *loud, *alone], "power")
    assert weights[0] > weights[6] == 1 > weights[3]
    assert weights[0] < 2
    assert seed_weights([*quiet, *quiet, *loud, *alone], "power")[0] == pytest.approx(weights[0])
    assert (seed_weights(made(3), "power") == 1).all()


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ([], {}, "no point to fit"),
        ([("a", 1e18, 3.0)] * 5, {}, "one size only"),
        (made(2), {"shared_e": False}, "2 sizes and its curve 3 free numbers"),
        (made(2, schemes=("lns",)), {}, "4 points are fewer|2 points are fewer"),
        ([("a", 1e18, 3.0), ("a", 1e19, math.nan)], {}, "did not reach the end"),
        ([("a", 1e18, 3.0), ("a", -1.0, 2.0)], {}, "no positive compute"),
        (made(4), {"form": "chinchilla"}, "no positive n_params"),
        (made(4), {"form": "powr"}, "did you mean power"),
        (made(4), {"e": 2.9}, "between 0 and the lowest loss"),
        (made(4), {"delta": 0.0}, "delta must be positive"),
        (
            [Point("a", 2 + 1e3 / n, n_params=n, tokens=80 * n) for n in (1e6, 1e7, 1e8, 1e9, 1e10)],
            {"form": "chinchilla"},
            "move together",
        ),
    ],
)
def test_what_no_law_can_be_fitted_to_is_refused(points, options, words) -> None:
    with pytest.raises(InputError, match=words):
        fit_scaling(points, **options)


def test_a_search_that_did_not_converge_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logsum_fit, "STEPS", 1)
    fit = fit_scaling(made(5))
    assert not fit.converged
    assert "NOT CONVERGED" in fit.notes[0]


def test_as_many_points_as_parameters_is_said_and_gives_no_interval() -> None:
    fit = fit_scaling(made(3, schemes=("lns",)))
    assert "As many points as parameters (3)" in fit.notes[0]
    assert resample(fit) is None


def test_a_floor_that_the_points_do_not_bound_is_said() -> None:
    fit = fit_scaling([("a", c, 3 * (c / 1e18) ** -0.1) for c in (1e18, 1e19, 1e20, 1e21)])
    assert any("do not bound the floor" in note for note in fit.notes)
    assert fit.curves["a"].exponents[0] == pytest.approx(0.1, abs=0.01)


def test_a_loss_that_rises_has_no_compute_to_read_off() -> None:
    fit = fit_scaling([("a", c, 2 + i * 0.1) for i, c in enumerate((1e18, 1e19, 1e20, 1e21))])
    assert any("does not fall" in note for note in fit.notes)
    with pytest.raises(InputError, match="never reaches"):
        fit.curves["a"].compute_at(2.1)


# ------------------------------------------------------------------------------------------------------------- savings
def test_the_paper_s_arithmetic() -> None:
    points, _ = read_points(PAPER)
    measured = {p.scheme: p for p in points if p.compute == 8.3e20}
    fit = layerrope.fit_scaling([p for p in points if p.scheme == "layerrope"], e=1.81)
    saving = layerrope.compute_saving(fit, "layerrope", (8.3e20, measured["prenorm"].loss))
    assert round(saving.ratio, 1) == 3.4
    assert saving.compute == pytest.approx(2.42e20, rel=1e-6)
    assert saving.interpolated
    assert saving.low is None
    assert measured["prenorm"].loss - measured["layerrope"].loss == pytest.approx(0.107)


def test_a_ratio_is_that_of_the_curves_and_turns_over_with_the_schemes() -> None:
    fit = fit_scaling(made(6, noise=0))
    there = compute_saving(fit, "layerrope", "prenorm", target=2.6, resamples=None)
    back = compute_saving(fit, "prenorm", "layerrope", target=2.6, resamples=None)
    true = {name: TOP * ((2.6 - E) / a) ** (-1 / b) for name, (a, b) in TRUTH.items()}
    assert there.ratio == pytest.approx(true["prenorm"] / true["layerrope"], rel=1e-3)
    assert there.ratio * back.ratio == pytest.approx(1)


def test_without_a_target_the_baseline_is_measured() -> None:
    points = made(6, seeds=2)
    saving = compute_saving(fit_scaling(points), "layerrope", "prenorm", resamples=None)
    top = [p.loss for p in points if p.scheme == "prenorm" and p.compute == pytest.approx(TOP)]
    assert saving.measured
    assert saving.target == pytest.approx(np.mean(top))
    assert saving.baseline_compute == pytest.approx(TOP)


def test_beyond_the_sizes_trained_is_said() -> None:
    fit = fit_scaling(made(6))
    assert compute_saving(fit, "layerrope", "prenorm", target=2.6, resamples=None).interpolated
    assert not compute_saving(fit, "layerrope", "prenorm", target=2.2, resamples=None).interpolated
    assert not compute_saving(fit, "layerrope", "prenorm", target=3.4, resamples=None).interpolated


def bent(last: float) -> list[Point]:
    """A baseline on a line; a scheme on a worse one, but for the loss of its largest model."""
    sizes = [1e18, 1e19, 1e20, 1e21]
    plain = [Point("prenorm", 1.8 + 0.9 * (c / 1e19) ** -0.15, c) for c in sizes]
    return plain + [Point("layerrope", p.loss + 0.05, p.compute) for p in plain[:-1]] + [Point("layerrope", last, 1e21)]


def test_a_ratio_that_the_scheme_s_own_runs_deny_is_said() -> None:
    points = bent(last=2.0)
    saving = compute_saving(fit_scaling(points), "layerrope", "prenorm", resamples=None)
    assert saving.ratio < 0.95  # the three small models outvote the large one, which beat the baseline's
    assert saving.target > 2.0
    assert saving.denied == pytest.approx((1e21, 2.0))
    assert "SAY THE OPPOSITE: 2.0000 at 1e+21 FLOPs; do not quote" in saved([saving])[0]
    assert "SAY THE OPPOSITE" in saving_rows([saving])[0]["its own runs"]
    mirrored = [Point(p.scheme, p.loss - 0.1 if p.scheme == "layerrope" else p.loss, p.compute) for p in bent(2.6)]
    saving = compute_saving(fit_scaling(mirrored), "layerrope", "prenorm", resamples=None)
    assert saving.ratio > 1.05
    assert saving.denied == pytest.approx((1e21, 2.5))


def test_a_ratio_that_its_runs_bear_out_is_not_denied() -> None:
    saving = compute_saving(fit_scaling(made(6)), "layerrope", "prenorm", resamples=None)
    assert saving.denied is None
    assert "OPPOSITE" not in saved([saving])[0]
    assert "its own runs" not in saving_rows([saving])[0]
    equal = [Point(name, p.loss, p.compute) for p in bent(2.0)[:4] for name in ("prenorm", "layerrope")]
    assert compute_saving(fit_scaling(equal), "layerrope", "prenorm", resamples=None).denied is None


def test_the_best_baseline_comes_first_and_pre_norm_second() -> None:
    fit = fit_scaling(made(8))
    assert best_baseline(fit, ("prenorm", "lns", "perinorm")) in {"lns", "perinorm"}
    found, refused = savings(fit, resamples=100)
    assert [s.baseline for s in found] == [best_baseline(fit, ("prenorm", "lns", "perinorm")), "prenorm"]
    assert found[0].ratio < found[1].ratio
    assert not refused
    assert savings(fit, target=1.5, resamples=None)[1][0].startswith("layerrope against")
    with pytest.raises(InputError, match="did you mean layerrope"):
        savings(fit, schemes=("layerope",))


def test_intervals_widen_as_points_fall() -> None:
    widths: list[float] = []
    for sizes in (4, 6, 40):
        points = made(sizes, seed=1, schemes=("prenorm", "layerrope"))
        saving = compute_saving(fit_scaling(points), "layerrope", "prenorm", target=2.6, resamples=300)
        assert saving.low is not None
        assert saving.high is not None
        assert saving.low < saving.ratio < saving.high
        widths.append(math.log(saving.high / saving.low))
    assert widths[0] > widths[1] > 1.5 * widths[2]


def test_points_listed_twice_do_not_narrow_an_interval() -> None:
    points = made(6, schemes=("prenorm", "layerrope"))
    once = compute_saving(fit_scaling(points), "layerrope", "prenorm", target=2.6, resamples=300)
    twice = compute_saving(fit_scaling([*points, *points]), "layerrope", "prenorm", target=2.6, resamples=300)
    assert (twice.low, twice.high) == (pytest.approx(once.low, rel=0.02), pytest.approx(once.high, rel=0.02))


@pytest.mark.slow
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    true = ((2.6 - E) / 0.62) ** (-1 / 0.15) / ((2.6 - E) / 0.52) ** (-1 / 0.155)
    inside = 0
    for seed in range(24):
        fit = fit_scaling(made(5, seed=seed, seeds=1 + seed % 2))
        saving = compute_saving(fit, "layerrope", "prenorm", target=2.6, resamples=120)
        inside += (saving.low or 0) <= true <= (saving.high or 0)
    assert inside >= 20


def test_resamples_that_fail_are_counted_and_in_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fit_scaling(made(5))
    monkeypatch.setattr(logsum_fit, "STEPS", 6)
    some = resample(fit, 200)
    assert some is not None
    assert 0 < some.failed < 200
    assert compute_saving(fit, "layerrope", "prenorm", resamples=some).failed == some.failed
    monkeypatch.setattr(logsum_fit, "STEPS", 0)
    none = compute_saving(fit, "layerrope", "prenorm", resamples=50)
    assert (none.low, none.high, none.failed) == (None, None, 50)


def test_a_baseline_that_some_resamples_keep_from_the_target_has_an_unbounded_interval() -> None:
    fit = fit_scaling(made(4, noise=0.01, schemes=("prenorm", "layerrope")), shared_e=False)
    floor = fit.curves["prenorm"].e
    saving = compute_saving(fit, "layerrope", "prenorm", target=floor * 1.06, resamples=200)
    assert saving.high == math.inf


def test_there_is_no_interval_where_more_resamples_fail_than_it_leaves_outside() -> None:
    fit = fit_scaling(made(4, noise=0.01, seed=3, schemes=("prenorm", "layerrope")), shared_e=False)
    low = fit.curves["prenorm"].e * 1.001  # which neither curve reaches in some of the resamples
    saving = compute_saving(fit, "layerrope", "prenorm", target=low, resamples=200)
    assert 10 < saving.failed < 100
    assert (saving.low, saving.high) == (None, None)
    wide = compute_saving(fit, "layerrope", "prenorm", target=low, resamples=200, level=0.5)
    assert wide.low is not None


def test_sizes_that_differ_by_nothing_to_speak_of_are_one_size() -> None:
    with pytest.raises(InputError, match="one size only"):
        fit_scaling([("a", 1e12 * (1 + k * 1e-7), 3.0 - k / 10) for k in range(4)])


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_sizes_whose_compute_no_number_holds_are_refused(size: float) -> None:
    points = [replace(p, n_params=(p.n_params or 1) * size, tokens=(p.tokens or 1) * size) for p in chinchilla_points()]
    with pytest.raises(InputError, match="check the units"):
        fit_scaling(points, form="chinchilla")


def test_a_training_log_is_no_table_of_models() -> None:
    with pytest.raises(InputError, match="more than the 5,000 of a fit"):
        fit_scaling([("a", float(k), 3.0) for k in range(1, 5002)])


def test_equal_losses_are_a_curve_that_does_not_fall() -> None:
    fit = fit_scaling([("a", 10.0**k, 3.0) for k in range(12, 16)])
    assert any("does not fall" in note for note in fit.notes)


def test_a_search_that_ends_nowhere_warns_of_no_overflow(recwarn: pytest.WarningsRecorder) -> None:
    fit = fit_scaling([*made(5, schemes=("lns",)), Point("lns", 1e300, 1e22)])
    assert not fit.converged
    resample(fit, 5)
    assert not recwarn.list


def test_resamples_depend_on_the_seed_alone() -> None:
    fit = fit_scaling(made(5, seeds=2))
    first, again, other = (resample(fit, 20, seed) for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert (first.losses_BN == again.losses_BN).all()
    assert (first.losses_BN != other.losses_BN).any()


def test_the_chinchilla_form_saves_along_its_frontier() -> None:
    better = [replace(p, scheme="layerrope", loss=1.8 + (p.loss - 1.8) * 0.9) for p in chinchilla_points(0.0005)]
    worse = [replace(p, scheme="prenorm") for p in chinchilla_points(0.0005)]
    fit = fit_scaling([*better, *worse], form="chinchilla")
    saving = compute_saving(fit, "layerrope", "prenorm", target=2.5, resamples=5)
    frontier = 0.35 * 0.37 / 0.72
    assert not saving.measured
    assert saving.ratio == pytest.approx((1 / 0.9) ** (1 / frontier), rel=0.03)
    assert saving.low is not None
    assert saving.low <= saving.ratio


def test_amplitudes_are_those_of_the_law_as_it_is_written() -> None:
    curve = Curve(1.8, (0.5,), (0.15,), (1e20,))
    assert 1.8 + curve.amplitudes[0] * 1e21**-0.15 == pytest.approx(float(curve.loss(1e21)))


# ------------------------------------------------------------------------------------- what no number holds
def test_a_baseline_without_a_frontier_is_left_out_and_said() -> None:
    at = (1e8, 1e10)
    curves = {
        "layerrope": Curve(1.8, (0.5, 0.5), (0.35, 0.37), at),
        "prenorm": Curve(1.8, (0.6, 0.6), (0.35, 0.37), at),
        "lns": Curve(1.8, (0.5, 0.5), (0.35, -0.01), at),
    }
    points = tuple(
        Point(name, float(curve.loss(n, d)), n_params=n, tokens=d)
        for name, curve in curves.items()
        for n in (1e7, 1e9)
        for d in (1e9, 1e11)
    )
    fit = ScalingFit("chinchilla", "given", 1e-3, points, (1.0,) * len(points), curves, (), ())
    found, refused = savings(fit, resamples=None)
    assert [s.baseline for s in found] == ["prenorm"]
    assert refused == [
        "lns is no baseline here: this law has no compute-optimal frontier: one of its terms does not fall"
    ]
    assert savings(fit, baselines=("lns",), resamples=None) == ([], refused)


@pytest.mark.parametrize("loss", [20.0, 1.5 + 1e-9, math.inf, math.nan])
def test_a_compute_that_no_number_holds_is_refused(loss: float) -> None:
    with pytest.raises(InputError, match=r"at no compute one can name \(10\^-?\d+ FLOPs\)|no curve reaches"):
        Curve(1.5, (1.2,), (1e-3,), (1e20,)).compute_at(loss)


def test_a_ratio_that_no_number_holds_is_refused() -> None:
    fit = fit_scaling(made(5, schemes=("layerrope",)), e=E)
    flat = replace(fit, curves={"layerrope": Curve(E, (0.5,), (1e-3,), (1e20,))})
    with pytest.raises(InputError, match="nearer those trained"):
        compute_saving(flat, "layerrope", (1e300, E + 0.8), resamples=None)
    found, refused = savings(flat, against_point=(1e300, E + 0.8), resamples=None)
    assert not found
    assert refused[0].startswith("layerrope against 2.61 at 1e+300 FLOPs: ")


@given(st.floats(-7, 1), st.floats(-7, 1), st.floats(-6, 3), st.floats(-6, 3))
def test_a_frontier_of_any_two_falling_terms_touches_the_law(a: float, b: float, h: float, k: float) -> None:
    law = Curve(1.8, (10**h, 10**k), (10**a, 10**b), (1e8, 1e10))
    frontier = law.over_compute()
    compute = frontier.at[0]
    above = float(frontier.loss(compute)) - law.e
    assert 0 < above <= float(law.loss(*law.at)) - law.e + 1e-9 * above
    with np.errstate(all="ignore"):
        n = 1e8 * np.exp(np.linspace(-80, 80, 401))
        assert above <= (law.loss(n, compute / 6 / n).min() - law.e) * (1 + 1e-9) + 1e-12


def test_amplitudes_of_a_term_that_vanished_are_zero() -> None:
    assert Curve(1.8, (0.0, 0.5), (0.3, 400.0), (1e8, 1e10)).amplitudes == (0.0, math.inf)
