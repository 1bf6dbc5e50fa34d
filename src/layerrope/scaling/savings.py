"""How much less compute one scheme needs than another for the same loss, with an interval from resampled fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layerrope.errors import InputError, one_of
from layerrope.scaling.law import NEAREST, Cell, Law, Point, ScalingFit, cell, optimum, schemes_of, variables
from layerrope.scaling.logsum_fit import Array, Flags, best_of, minimise

RESAMPLES = 2000
LEVEL = 0.95
FLOORS = (0.02, 0.4, 0.75, 0.95)
"""Starts of a refit beside the fit's own: the floor as a share of the lowest loss."""


@dataclass(frozen=True)
class Resamples:
    """The law of a fit, fitted again to B made-up tables like the measured one."""

    fit: ScalingFit
    losses_BN: Array
    """the made-up losses, in the order of the fit's points"""
    curves: Mapping[str, tuple[Array, Array, Array]]
    """scheme -> floors (B,), heights (B, K) and exponents (B, K), at the same `at` as the fit's curve"""
    converged_B: Flags

    @property
    def failed(self) -> int:
        """Resamples whose fit did not converge; they are in no interval, and counted."""
        return int((~self.converged_B).sum())


def resample(fit: ScalingFit, count: int = RESAMPLES, seed: int = 0) -> Resamples | None:
    """Fit `count` made-up tables: every point takes the residuals of a point drawn at random, seed by seed.

    A residual bootstrap (Efron & Tibshirani 1993, section 9.4) over points, and within the drawn point over its
    seeds, so that a point's seeds keep in common what they have in common. The design stays as it was trained, which
    resampling the points themselves would not leave: five sizes drawn from five are three on average. Residuals are
    widened by sqrt(n / (n - p)), n points and p parameters, for what the fit took out of them.

    Returns:
        The fits, all of the same form as `fit`; None where there are no more points than parameters, or where the
        fit ended nowhere.

    Raises:
        InputError: fewer than one resample, or a seed below 0.
    """
    if count < 1:
        raise InputError(f"at least one resample is needed: got {count}")
    if seed < 0:
        raise InputError(f"the seed of the resamples is a whole number from 0: got {seed}")
    cells = [cell(p, fit.form) for p in fit.points]
    n, p = len(set(cells)), fit.n_parameters
    residual_N = fit.residuals()
    if n <= p or not np.isfinite(residual_N).all():
        return None
    fitted_N = np.log([point.loss for point in fit.points]) - residual_N
    y_BN = fitted_N + _drawn(cells, fit.points, residual_N, count, seed) * math.sqrt(n / (n - p))
    curves: dict[str, tuple[Array, Array, Array]] = {}
    converged_B = np.ones(count, dtype=bool)
    for search in fit.searches:
        e = None if fit.floor != "given" else next(iter(fit.curves.values())).e
        law = Law.of(fit.points, search.schemes, fit.form, fit.floor, np.array(fit.weights), e, fit.delta)
        mine = [i for i, point in enumerate(fit.points) if point.scheme in search.schemes]
        theta_BP, good_B = _refit(law, fit, y_BN[:, mine])
        converged_B &= good_B
        curves |= _unpacked(law, theta_BP)
    return Resamples(fit, np.exp(y_BN), curves, converged_B)


def _drawn(cells: Sequence[Cell], points: Sequence[Point], residual_N: Array, count: int, seed: int) -> Array:
    """Residuals for every resample, (B, N)."""
    order = list(dict.fromkeys(cells))
    donors = [_distinct(points, [i for i, c in enumerate(cells) if c == each]) for each in order]
    seeds_C = np.array([len(rows) for rows in donors])
    table_CS = np.array([np.resize(residual_N[rows], seeds_C.max()) for rows in donors])
    random = np.random.default_rng(seed)
    drawn_BC = random.integers(len(order), size=(count, len(order)))
    made_BN = np.empty((count, len(cells)))
    seen: dict[tuple[Cell, str, float], int] = {}
    for i, (where, point) in enumerate(zip(cells, points, strict=True)):
        first = seen.setdefault((where, point.seed, point.loss), i)
        if first != i:  # a measurement listed twice stays one
            made_BN[:, i] = made_BN[:, first]
            continue
        donor_B = drawn_BC[:, order.index(where)]
        made_BN[:, i] = table_CS[donor_B, random.integers(seeds_C[donor_B])]
    return made_BN


def _distinct(points: Sequence[Point], rows: Sequence[int]) -> list[int]:
    """One row for each measurement."""
    return list({(points[i].seed, points[i].loss): i for i in rows}.values())


def _refit(law: Law, fit: ScalingFit, y_BN: Array) -> tuple[Array, Flags]:
    """The best of several starts: the fit's own parameters, and other floors."""
    starts = _starts(_packed(law, fit), law)
    solved = [minimise(np.tile(start, (len(y_BN), 1)), y_BN, law.problem) for start in starts]
    converged_SB = np.array([s.converged_B for s in solved])
    best_B = best_of(np.array([s.value_B for s in solved]), converged_SB)
    rows = np.arange(len(y_BN))
    theta_SBP = np.array([s.theta_BP for s in solved])
    return theta_SBP[best_B, rows], converged_SB[best_B, rows]


def _starts(own_P: Array, law: Law) -> list[Array]:
    """The fit's own parameters, and the same curves over other floors: of equal loss and slope in the middle."""
    if not law.floors:
        return [own_P]
    log_heights_MK, exponents_MK = np.moveaxis(own_P[1:].reshape(-1, law.terms, 2), 2, 0)
    above_M1 = np.exp(log_heights_MK).sum(1, keepdims=True)
    middle_M1 = above_M1 + math.exp(own_P[0])
    lowest = min(math.exp(law.y_N.min()), float(middle_M1.min()))
    starts = [own_P]
    for floor in np.array(FLOORS) * lowest:
        ratio_M1 = (middle_M1 - floor) / above_M1
        curves_MK2 = np.stack([log_heights_MK + np.log(ratio_M1), exponents_MK / ratio_M1], axis=-1)
        starts.append(np.array([math.log(floor), *curves_MK2.ravel()]))
    return starts


def _packed(law: Law, fit: ScalingFit) -> Array:
    """The fit's curves as the law's parameters."""
    curves = [fit.curves[name] for name in law.group]
    theta = [math.log(curves[0].e)][: law.floors]
    for curve in curves:
        for height, exponent in zip(curve.heights, curve.exponents, strict=True):
            theta += [math.log(height), exponent]
    return np.array(theta)


def _unpacked(law: Law, theta_BP: Array) -> dict[str, tuple[Array, Array, Array]]:
    e_B = np.exp(theta_BP[:, 0]) if law.e is None else np.full(len(theta_BP), law.e)
    rest = theta_BP[:, law.floors :].reshape(len(theta_BP), len(law.group), law.terms, 2)
    return {name: (e_B, np.exp(rest[:, m, :, 0]), rest[:, m, :, 1]) for m, name in enumerate(law.group)}


# ------------------------------------------------------------------------------------------------------------ savings
@dataclass(frozen=True)
class Saving:
    """`baseline` needs `ratio` times the compute of `scheme` for a loss of `target`."""

    scheme: str
    baseline: str
    target: float
    ratio: float
    """above 0 and finite"""
    low: float | None
    """bounds of the interval; infinite where a resampled baseline never reaches the target; None: no interval, as
    where more resamples gave no ratio than an interval of this level leaves outside"""
    high: float | None
    level: float
    compute: float
    """FLOPs of `scheme`, on its curve"""
    baseline_compute: float
    measured: bool
    """the baseline's compute and the target are those of its largest model, not of its curve"""
    interpolated: bool
    """both computes lie within those trained"""
    resamples: int
    failed: int
    """resamples without a ratio: no convergence, or neither curve reaches the target"""
    denied: tuple[float, float] | None = None
    """FLOPs and loss of a model of `scheme` that says the opposite of the ratio (`_denying`)"""


def compute_saving(
    fit: ScalingFit,
    scheme: str,
    baseline: str | tuple[float, float],
    *,
    target: float | None = None,
    resamples: Resamples | int | None = RESAMPLES,
    level: float = LEVEL,
) -> Saving:
    """The ratio of the computes at which two schemes have the same loss.

    Without a target it is the baseline's largest model against the curve of `scheme`: its measured compute over the
    compute at which the curve reaches its measured loss   (LayerRoPE, arXiv 2610.09179, Appendix D.1.3). With a
    target, or in the Chinchilla form, both computes are read off curves.

    Args:
        fit: the curves.
        scheme: whose saving it is.
        baseline: another scheme of the fit, or a (compute, loss) of a model that the fit knows nothing of.
        target: loss, nats per token.
        resamples: the fit's, how many to make, or None for no interval.
        level: of confidence.

    Raises:
        InputError: a scheme that the fit does not have, or a loss that a curve never reaches.

    >>> sizes = (1e18, 1e19, 1e20, 1e21)
    >>> points = [(s, c, 1.7 + a * (c / 1e19) ** -0.15) for s, a in (("new", 0.9), ("old", 1.0)) for c in sizes]
    >>> round(compute_saving(fit_scaling(points), "new", "old", resamples=None).ratio, 2)  # (1 / 0.9)^(1 / 0.15)
    2.02
    """
    one_of("scheme of the fit", scheme, fit.curves)
    made = resample(fit, resamples) if isinstance(resamples, int) else resamples
    if isinstance(baseline, tuple):
        if target is not None:
            raise InputError("a measured baseline brings its own loss: give no target with it")
        return _against_point(fit, scheme, baseline, made, level)
    one_of("baseline of the fit", baseline, fit.curves)
    measured = target is None and fit.form == "power"
    rows = _largest(fit, baseline)
    goal = float(np.mean([fit.points[i].loss for i in rows])) if target is None else target
    theirs = _trained(fit, baseline)[1] if measured else fit.curves[baseline].compute_at(goal)
    mine = fit.curves[scheme].compute_at(goal)
    inside = _within(fit, scheme, mine) and (measured or _within(fit, baseline, theirs))
    low, high, failed = None, None, 0
    if made is not None:
        goal_B = made.losses_BN[:, rows].mean(1) if target is None else np.full(len(made.losses_BN), goal)
        theirs_B = np.full(len(goal_B), math.log(theirs)) if measured else _log_compute(made, baseline, goal_B)
        low, high, failed = _interval(theirs_B, _log_compute(made, scheme, goal_B), made.converged_B, level)
    count = 0 if made is None else len(made.converged_B)
    ratio, denied = _ratio(theirs, mine), _denying(fit, scheme, goal, theirs, mine)
    return Saving(
        scheme, baseline, goal, ratio, low, high, level, mine, theirs, measured, inside, count, failed, denied
    )


def _against_point(
    fit: ScalingFit, scheme: str, baseline: tuple[float, float], made: Resamples | None, level: float
) -> Saving:
    compute, goal = baseline
    if not 0 < compute < math.inf:
        raise InputError(f"the compute of a baseline must be a positive number: got {compute:g}")
    mine = fit.curves[scheme].compute_at(goal)
    low, high, failed = None, None, 0
    if made is not None:
        theirs_B = np.full(len(made.converged_B), math.log(compute))
        mine_B = _log_compute(made, scheme, np.full(len(theirs_B), goal))
        low, high, failed = _interval(theirs_B, mine_B, made.converged_B, level)
    count, inside = 0 if made is None else len(made.converged_B), _within(fit, scheme, mine)
    name, ratio, denied = elsewhere(baseline), _ratio(compute, mine), _denying(fit, scheme, goal, compute, mine)
    return Saving(scheme, name, goal, ratio, low, high, level, mine, compute, True, inside, count, failed, denied)


def elsewhere(model: tuple[float, float]) -> str:
    """The name of a model from elsewhere, by its compute and loss."""
    return f"{model[1]:g} at {model[0]:.3g} FLOPs"


def _ratio(theirs: float, mine: float) -> float:
    """Raises InputError where no number holds it."""
    ratio = theirs / mine
    if not 0 < ratio < math.inf:
        raise InputError(f"{theirs:.3g} over {mine:.3g} FLOPs is a ratio of nothing: give a loss nearer those trained")
    return ratio


def _denying(fit: ScalingFit, scheme: str, goal: float, theirs: float, mine: float) -> tuple[float, float] | None:
    """A model of `scheme` that denies what the curves say: compute and loss (mean over seeds), or None.

    Where the curves say that it needs more than the baseline, a model that reached the goal with no more; where they
    say that it needs less, one that missed the goal with no less. Computes within `NEAREST` of each other are equal;
    a ratio as near to 1 says nothing to deny. A near-absolute loss takes a scheme's farthest model for an outlier when
    the others line up, and the largest model is the one that matters. Power form only: elsewhere a model off the
    frontier may do worse with more compute.
    """
    if fit.form != "power" or 1 / NEAREST <= theirs / mine <= NEAREST:
        return None
    losses: dict[float, list[float]] = {}
    for p in fit.points:
        if p.scheme == scheme and p.compute is not None:
            losses.setdefault(p.compute, []).append(p.loss)
    means = {compute: float(np.mean(some)) for compute, some in losses.items()}
    if mine > theirs:
        against = [(loss - goal, c) for c, loss in means.items() if c <= theirs * NEAREST and loss < goal]
    else:
        against = [(goal - loss, c) for c, loss in means.items() if c * NEAREST >= theirs and loss > goal]
    return (min(against)[1], means[min(against)[1]]) if against else None


def _largest(fit: ScalingFit, scheme: str) -> list[int]:
    """The points of a scheme's largest model."""
    mine = [i for i, p in enumerate(fit.points) if p.scheme == scheme]
    top = max(math.prod(variables(fit.points[i], fit.form)) for i in mine)
    return [i for i in mine if math.prod(variables(fit.points[i], fit.form)) == top]


def _trained(fit: ScalingFit, scheme: str) -> tuple[float, float]:
    """The least and the most compute that a scheme was trained with; 6 N D in the Chinchilla form."""
    factor = 1.0 if fit.form == "power" else 6.0
    sizes = [factor * float(math.prod(variables(p, fit.form))) for p in fit.points if p.scheme == scheme]
    return min(sizes), max(sizes)


def _within(fit: ScalingFit, scheme: str, compute: float) -> bool:
    low, high = _trained(fit, scheme)
    return low * (1 - 1e-9) <= compute <= high * (1 + 1e-9)


def _log_compute(made: Resamples, scheme: str, goal_B: Array) -> Array:
    """log of `Curve.compute_at` for every resample; inf where the curve never reaches its goal."""
    e_B, height_BK, exponent_BK = made.curves[scheme]
    at = made.fit.curves[scheme].at
    with np.errstate(all="ignore"):
        if len(at) == 1:
            height_B, exponent_B, log_at = height_BK[:, 0], exponent_BK[:, 0], math.log(at[0])
        else:
            height_B, exponent_B = optimum(*height_BK.T, *exponent_BK.T)
            exponent_B = np.where(exponent_BK.min(1) > 0, exponent_B, 0.0)
            log_at = math.log(6 * at[0] * at[1])
        log_B = np.log(height_B / (goal_B - e_B)) / exponent_B + log_at
    return np.where((goal_B > e_B) & (exponent_B > 0), log_B, np.inf)


def _interval(theirs_B: Array, mine_B: Array, good_B: Flags, level: float) -> tuple[float | None, float | None, int]:
    """Percentiles of the ratio, and the resamples that have none.

    A resample without a ratio may have stood anywhere. Where more of them have none than the interval leaves outside,
    the percentiles of the rest say nothing of the whole, and there is no interval.
    """
    known_B = good_B & ~(np.isinf(theirs_B) & np.isinf(mine_B))
    failed = int((~known_B).sum())
    if failed > (1 - level) * len(known_B):
        return None, None, failed
    with np.errstate(all="ignore"):
        logs = np.sort(theirs_B[known_B] - mine_B[known_B])
        edges = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.exp(np.quantile(logs, edges, method="inverted_cdf")).tolist()
    return low, high, failed


# -------------------------------------------------------------------------------------------------------- whom against
REFERENCE = "prenorm"


def is_baseline(scheme: str) -> bool:
    """A scheme without LayerRoPE's gains."""
    return "layerrope" not in scheme


def best_baseline(fit: ScalingFit, baselines: Sequence[str]) -> str:
    """The baseline with the lowest curve at the largest compute that all of them were trained with.

    Raises:
        InputError: a Chinchilla law without a frontier is among them.
    """
    common = min(_trained(fit, name)[1] for name in baselines)
    return min(baselines, key=lambda name: float(fit.curves[name].over_compute().loss(common)))


def _comparable(fit: ScalingFit, baselines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The baselines that can be compared with, and a sentence for each of the others."""
    able: list[str] = []
    refused: list[str] = []
    for name in baselines:
        try:
            fit.curves[name].over_compute()
        except InputError as error:
            refused.append(f"{name} is no baseline here: {error}")
        else:
            able.append(name)
    return able, refused


def _nobody(whose: Sequence[str], asked: Sequence[str], against_point: tuple[float, float] | None) -> list[str]:
    """A sentence where there is nobody to save, or nobody to save against."""
    if not whose:
        return ["No saving: no scheme here has LayerRoPE's gains; `layerrope fit --whose` names others."]
    if not asked and against_point is None:
        return ["No saving: every scheme here has LayerRoPE's gains; `layerrope fit --baselines` names one as it."]
    return []


def savings(
    fit: ScalingFit,
    *,
    schemes: Sequence[str] = (),
    baselines: Sequence[str] = (),
    against_point: tuple[float, float] | None = None,
    target: float | None = None,
    resamples: Resamples | int | None = RESAMPLES,
) -> tuple[list[Saving], list[str]]:
    """Every scheme against the best baseline first, against Pre-Norm second, then against a model from elsewhere.

    Args:
        fit: the curves.
        schemes: whose savings; none: every one with LayerRoPE's gains.
        baselines: against which; none: every other one without.
        against_point: compute and loss of a model from elsewhere.
        target: as in `compute_saving`.
        resamples: as in `compute_saving`.

    Returns:
        The savings, and a sentence for each that could not be computed, and for each baseline without a frontier.

    Raises:
        InputError: a scheme that the fit does not have.
    """
    names = schemes_of(fit.points)
    for name in (*schemes, *baselines):
        one_of("scheme of the fit", name, names)
    whose = tuple(schemes) or tuple(name for name in names if not is_baseline(name))
    asked = tuple(baselines) or tuple(name for name in names if is_baseline(name) and name not in whose)
    against, refused = _comparable(fit, asked)
    refused += _nobody(whose, asked, against_point)
    made = resample(fit, resamples) if isinstance(resamples, int) else resamples
    found: list[Saving] = []
    rivals: list[str | tuple[float, float]] = []
    if against:
        rivals.extend(dict.fromkeys([best_baseline(fit, against), *([REFERENCE] if REFERENCE in against else [])]))
    for scheme in whose:
        for rival in [*rivals, *([against_point] if against_point else [])]:
            goal = None if isinstance(rival, tuple) else target
            try:
                found.append(compute_saving(fit, scheme, rival, target=goal, resamples=made))
            except InputError as error:
                name = elsewhere(rival) if isinstance(rival, tuple) else rival
                refused.append(f"{scheme} against {name}: {error}")
    return found, refused
