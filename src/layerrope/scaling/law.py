"""Scaling laws: one curve a scheme through its (compute, loss) points, with the floor E shared or free.

    power        L(C) = E + A C^-alpha
    chinchilla   L(N, D) = E + A N^-alpha + B D^-beta   (Hoffmann et al. 2022, arXiv 2203.15556, Eq. 2)

Residuals are of log L, under a Huber loss summed over points, from many starts, as in Hoffmann et al., Appendix D.3.
Compute, parameters and tokens are taken relative to their geometric mean, so units change no number but A and B.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from layerrope.errors import InputError, one_of
from layerrope.scaling.logsum_fit import Array, Problem, Solved, agreeing, best_of, minimise, predict

FORMS: dict[str, tuple[str, ...]] = {"power": ("compute",), "chinchilla": ("n_params", "tokens")}
"""What each form is a law in."""
DELTA = 1e-3
FLAT = 1e-6
"""Exponents up to this are no fall: a factor of a million in size moves the part above the floor by a hundred
thousandth."""
MOST = 5000
"""Points that one fit takes: a table of more is of training curves, not of trained models."""
NEAREST = 1.05
"""Sizes that span a smaller factor than this are one size."""
LEAST_E = 0.01
"""The floor is at least this share of the lowest loss: below that it moves no prediction."""
E_SHARES = np.concatenate([np.linspace(0.02, 0.9, 23), 1 - np.geomspace(0.09, 0.005, 9)])
"""Starts: the floor as a share of the lowest loss; what lies above it is regressed on log compute."""
TERM_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Starts of the Chinchilla form: the share of the N term in what lies above the floor."""


@dataclass(frozen=True)
class Point:
    """One trained model. A law needs `compute`, or `n_params` and `tokens`."""

    scheme: str
    loss: float
    """validation loss, nats per token"""
    compute: float | None = None
    """training FLOPs"""
    n_params: float | None = None
    tokens: float | None = None
    """trained on"""
    seed: str = ""


@dataclass(frozen=True)
class Curve:
    """L(x) = e + sum_k height_k (x_k / at_k)^-exponent_k, with x = (compute,) or (n_params, tokens)."""

    e: float
    heights: tuple[float, ...]
    """the part above the floor at `at`, nats"""
    exponents: tuple[float, ...]
    at: tuple[float, ...]

    def loss(self, *x: float | Array) -> Array:
        """The curve at x, one argument for each of the law's variables."""
        terms = zip(self.heights, self.exponents, self.at, x, strict=True)
        with np.errstate(over="ignore"):  # a search that ended nowhere may have any exponent; its fit is marked
            return self.e + sum((h * (np.asarray(v) / at) ** -a for h, a, at, v in terms), np.zeros(()))

    @property
    def amplitudes(self) -> tuple[float, ...]:
        """A (and B), as the law is usually written: height times at^exponent."""
        terms = zip(self.heights, self.exponents, self.at, strict=True)
        return tuple(_exp(_log(h) + a * math.log(at)) for h, a, at in terms)

    def compute_at(self, loss: float) -> float:
        """FLOPs at which the curve reaches `loss`; for the Chinchilla form along its compute-optimal frontier.

        Raises:
            InputError: it never does: the loss is at or below the floor, or the curve does not fall. Or it does at a
                compute that no number holds, as a nearly flat curve does of a loss far from those of its points.
        """
        if not math.isfinite(loss):
            raise InputError(f"no curve reaches a loss of {loss}: give a loss in nats per token")
        curve = self.over_compute()
        above = loss - curve.e
        if above <= 0 or curve.exponents[0] <= FLAT:
            why = f"its floor is {curve.e:.4g}" if above <= 0 else "it does not fall with compute"
            raise InputError(f"this curve never reaches a loss of {loss:g}: {why}")
        power = (_log(curve.heights[0]) - math.log(above)) / curve.exponents[0] + math.log(curve.at[0])
        compute = _exp(power)
        if not 0 < compute < math.inf:
            raise InputError(
                f"this curve falls so little (exponent {curve.exponents[0]:.2g}) that it reaches a loss of {loss:g} at"
                f" no compute one can name (10^{power / math.log(10):.0f} FLOPs): give a loss nearer those trained"
            )
        return compute

    def over_compute(self) -> Curve:
        """The curve in compute alone: itself, or its frontier. Raises InputError where it has none."""
        return self if len(self.at) == 1 else self.frontier()

    def frontier(self) -> Curve:
        """The lowest loss of a Chinchilla law at every compute C = 6 N D, which is a power law in C   (ibid., Eq. 4)

        Raises:
            InputError: a term does not fall.
        """
        (h, k), (a, b), (n, d) = self.heights, self.exponents, self.at
        if min(a, b, h, k) <= 0:
            raise InputError("this law has no compute-optimal frontier: one of its terms does not fall")
        height, exponent = optimum(np.array([h]), np.array([k]), np.array([a]), np.array([b]))
        return Curve(self.e, (float(height[0]),), (float(exponent[0]),), (6 * n * d,))


def optimum(h_B: Array, k_B: Array, a_B: Array, b_B: Array) -> tuple[Array, Array]:
    """Height and exponent of the frontier of h s^-a + k s^b: with N = n s and D = d / s the compute is 6 n d.

    The slopes of the two terms in log s cancel at the optimum. In logs, since s itself has no bound: it is a ratio to
    the power of 1 / (a + b).
    """
    log_B = (np.log(h_B) + np.log(a_B) - np.log(k_B) - np.log(b_B)) / (a_B + b_B)
    return h_B * np.exp(-a_B * log_B) + k_B * np.exp(b_B * log_B), a_B * b_B / (a_B + b_B)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(power: float) -> float:
    """e^power, infinite (or 0) where that is beyond the range of numbers."""
    return math.exp(power) if power < 709 else math.inf


@dataclass(frozen=True)
class Search:
    """How the minimum of one group of schemes, fitted together, was found."""

    schemes: tuple[str, ...]
    objective: float
    """summed Huber loss"""
    converged: bool
    starts: int
    agreeing: int
    """starts that ended at this objective, within a millionth"""


@dataclass(frozen=True)
class ScalingFit:
    """Fitted curves, and how they were found; `converged` is False where a search was not."""

    form: str
    floor: str
    """shared, free or given"""
    delta: float
    points: tuple[Point, ...]
    weights: tuple[float, ...]
    curves: Mapping[str, Curve]
    searches: tuple[Search, ...]
    notes: tuple[str, ...]
    """what to know before the numbers are used"""

    @property
    def converged(self) -> bool:
        return all(search.converged for search in self.searches)

    @property
    def objective(self) -> float:
        return sum(search.objective for search in self.searches)

    @property
    def n_parameters(self) -> int:
        """Free numbers of the law."""
        floors = {"shared": 1, "free": len(self.curves), "given": 0}[self.floor]
        return floors + 2 * len(FORMS[self.form]) * len(self.curves)

    def residuals(self) -> Array:
        """log of measured over fitted loss, a point at a time."""
        fitted = [float(self.curves[p.scheme].loss(*variables(p, self.form))) for p in self.points]
        return np.log([p.loss for p in self.points]) - np.log(fitted)


def variables(point: Point, form: str) -> tuple[float, ...]:
    """What the law is in, at a point. Raises InputError where the point lacks it."""
    found = [getattr(point, name) for name in FORMS[form]]
    for name, value in zip(FORMS[form], found, strict=True):
        if value is None or not (math.isfinite(value) and value > 0):
            raise InputError(f"a point of {point.scheme} has no positive {name}, which the {form} form is a law in")
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------ fitting
def fit_scaling(
    points: Iterable[Point | tuple[str, float, float]],
    *,
    form: str = "power",
    shared_e: bool = True,
    e: float | None = None,
    delta: float = DELTA,
) -> ScalingFit:
    """Fit one curve a scheme.

    Points of one scheme at one compute are its seeds; a point whose seeds spread less weighs more (`seed_weights`).

    Args:
        points: trained models; (scheme, compute, loss) will do for the power form.
        form: "power" or "chinchilla".
        shared_e: one floor for all schemes, or one for each.
        e: the floor itself, in place of a fitted one.
        delta: of the Huber loss, in units of log loss: residuals beyond it count by their size, not its square.

    Raises:
        InputError: a scheme with fewer sizes than the law needs, or with one only; N and D that move together; a
            loss or a compute that is not positive.
    """
    one_of("form", form, FORMS)
    known = tuple(p if isinstance(p, Point) else Point(p[0], loss=p[2], compute=p[1]) for p in points)
    floor = "given" if e is not None else "shared" if shared_e else "free"
    check_points(known, form, floor)
    if e is not None and not 0 < e < min(p.loss for p in known):
        raise InputError(f"the floor must lie between 0 and the lowest loss {min(p.loss for p in known):g}: got {e:g}")
    if not (math.isfinite(delta) and delta > 0):
        raise InputError(f"delta must be positive: got {delta}")
    weights = seed_weights(known, form)
    groups = [tuple(group) for group in _groups(known, floor)]
    curves: dict[str, Curve] = {}
    searches: list[Search] = []
    for group in groups:
        law = Law.of(known, group, form, floor, weights, e, delta)
        solved = minimise(law.starts(), law.y_N[None], law.problem)
        best = int(best_of(solved.value_B[:, None], solved.converged_B[:, None])[0])
        searches.append(_search(group, solved, best))
        curves |= law.curves(solved.theta_BP[best])
    made = ScalingFit(form, floor, delta, known, tuple(weights.tolist()), curves, tuple(searches), ())
    return replace(made, notes=tuple(_notes(made)))


def schemes_of(points: Iterable[Point]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(p.scheme for p in points))


def _groups(points: Sequence[Point], floor: str) -> Iterable[Sequence[str]]:
    """Schemes that have to be fitted together."""
    names = schemes_of(points)
    return [names] if floor == "shared" else [[name] for name in names]


def _search(group: Sequence[str], solved: Solved, best: int) -> Search:
    value = float(solved.value_B[best])
    agree = int(agreeing(solved.value_B[:, None]).sum())
    return Search(tuple(group), value, bool(solved.converged_B[best]), len(solved.value_B), agree)


def _notes(fit: ScalingFit) -> Iterable[str]:
    for search in fit.searches:
        if not search.converged:
            yield f"NOT CONVERGED: {', '.join(search.schemes)}. The curve is where the search stopped; do not quote it."
    cells = len({cell(p, fit.form) for p in fit.points})
    if cells <= fit.n_parameters:
        yield f"As many points as parameters ({cells}): the curves pass through them, and no interval can be given."
    for name, curve in fit.curves.items():
        if min(curve.exponents) <= FLAT:
            yield f"{name}: the loss does not fall with size in every term; no compute can be read off its curve."
    for search in fit.searches if fit.floor != "given" else ():
        e = fit.curves[search.schemes[0]].e
        if e <= LEAST_E * min(p.loss for p in fit.points if p.scheme in search.schemes) * 1.001:
            whose = "" if fit.floor == "shared" else f"{search.schemes[0]}: "
            yield f"{whose}the points do not bound the floor E from below; it is held at {e:.3g}."


# --------------------------------------------------------------------------------------------------------- the points
Cell = tuple[str, tuple[float, ...]]


def cell(point: Point, form: str) -> Cell:
    """Points that differ by their seed only share it."""
    return point.scheme, variables(point, form)


def check_points(points: Sequence[Point], form: str, floor: str) -> None:
    """Raise InputError where no law of this form can be fitted."""
    if not points:
        raise InputError("no point to fit: give at least three sizes of a scheme")
    if len(points) > MOST:
        raise InputError(
            f"{len(points):,} points are more than the {MOST:,} of a fit: give one point a trained model, at its end"
        )
    for p in points:
        if not (math.isfinite(p.loss) and p.loss > 0):
            raise InputError(f"a loss of {p.scheme} is {p.loss}: leave out runs that did not reach the end")
        if not 0 < 6 * math.prod(variables(p, form)) < math.inf:
            raise InputError(f"no number holds the compute of a point of {p.scheme}: check the units of its sizes")
    cells = {cell(p, form) for p in points}
    least = 2 * len(FORMS[form]) + (floor == "free")
    for name in schemes_of(points):
        sizes = np.array(sorted(x for scheme, x in cells if scheme == name))
        if (sizes.max(0) < NEAREST * sizes.min(0)).all():
            raise InputError(f"{name} has one size only, and a curve needs several: train more sizes or leave it out")
        if len(sizes) < least:
            raise InputError(
                f"{name} has {len(sizes)} sizes and its curve {least} free numbers: train more or leave it out"
            )
        if form == "chinchilla":
            _check_spread(name, np.log(sizes))
    if floor == "shared" and len(cells) < 1 + 2 * len(FORMS[form]) * len(schemes_of(points)):
        raise InputError(
            f"{len(cells)} points are fewer than the law's free numbers: train more sizes, or give the floor"
        )


def _check_spread(name: str, logs: Array) -> None:
    """N and D that move together cannot be told apart."""
    spread = np.linalg.svd(logs - logs.mean(0), compute_uv=False)
    if spread[-1] < 0.02 * spread[0]:
        raise InputError(
            f"{name} has parameters and tokens that move together, so their terms cannot be told apart: "
            "use the power form, or train some sizes on other numbers of tokens"
        )


def seed_weights(points: Sequence[Point], form: str) -> Array:
    """Inverse variance of log loss over seeds, relative to its pooled value, (N,); ones where there are no seeds.

    A few seeds estimate a variance badly, so that of a point is drawn to the pooled one as if four degrees of freedom
    had shown it (a moderated variance: Smyth 2004). The same measurement listed twice counts once here.
    """
    groups: dict[Cell, set[float]] = {}
    for p in points:
        groups.setdefault(cell(p, form), set()).add(math.log(p.loss))
    squares = {c: float(np.sum((np.array(sorted(v)) - np.mean(sorted(v))) ** 2)) for c, v in groups.items()}
    freedom = {c: len(v) - 1 for c, v in groups.items()}
    total = sum(freedom.values())
    pooled = sum(squares.values()) / total if total else 0.0
    if pooled == 0:
        return np.ones(len(points))
    moderated = {c: (4 * pooled + squares[c]) / (4 + freedom[c]) for c in groups}
    return np.array([pooled / moderated[cell(p, form)] for p in points])


# ------------------------------------------------------------------------------------------------------------ the law
@dataclass(frozen=True)
class Law:
    """A law as terms of `logsum_fit`: the floor's logarithm first, then for every scheme log height and exponent."""

    group: tuple[str, ...]
    problem: Problem
    y_N: Array
    floors: int
    """free floors: 0 or 1"""
    e: float | None
    at: tuple[float, ...]
    """geometric means of the variables"""

    @staticmethod
    def of(
        points: Sequence[Point],
        group: tuple[str, ...],
        form: str,
        floor: str,
        weights: Array,
        e: float | None,
        delta: float,
    ) -> Law:
        """The law of the schemes in `group`, fitted to their points."""
        mine = [i for i, p in enumerate(points) if p.scheme in group]
        x_NK = np.log(np.array([variables(points[i], form) for i in mine]))
        distinct = np.log(np.array(sorted({variables(points[i], form) for i in mine})))
        center_K = distinct.mean(0)  # of the sizes, so that a point listed twice does not move it
        y_N = np.log(np.array([points[i].loss for i in mine]))
        terms, floors = x_NK.shape[1], int(floor != "given")
        design = np.zeros((1 + terms, len(mine), floors + 2 * terms * len(group)))
        offset = np.zeros(design.shape[:2])
        design[0, :, :floors] = 1
        if e is not None:
            offset[0] = math.log(e)
        for row, i in enumerate(mine):
            first = floors + 2 * terms * group.index(points[i].scheme)
            for k in range(terms):
                design[1 + k, row, first + 2 * k] = 1
                design[1 + k, row, first + 2 * k + 1] = -(x_NK[row, k] - center_K[k])
        least = np.full(design.shape[2], -np.inf)
        least[:floors] = math.log(LEAST_E) + y_N.min()
        problem = Problem(design, offset, weights[mine], least, delta)
        return Law(group, problem, y_N, floors, e, tuple(np.exp(center_K).tolist()))

    @property
    def terms(self) -> int:
        return len(self.at)

    def starts(self) -> Array:
        """Starting points, (B, P): a floor, and what lies above it regressed on the variables, split between terms."""
        lowest = math.exp(self.y_N.min())
        floors = E_SHARES * lowest if self.e is None else np.array([self.e])
        splits = TERM_SHARES if self.terms == 2 else (1.0,)
        slopes = (0.5, 1.0, 2.0)
        rows = [self._start(float(f), share, slope) for f in floors for share in splits for slope in slopes]
        return np.array(rows)

    def _start(self, floor: float, share: float, stretch: float) -> Array:
        """One start; `stretch` multiplies the regressed exponents."""
        above_N = np.log(np.maximum(np.exp(self.y_N) - floor, 1e-6))
        parts = [share, 1 - share][: self.terms]
        theta = [math.log(floor)][: self.floors]
        for index in range(len(self.group)):
            first = self.floors + 2 * self.terms * index
            rows = np.flatnonzero(self.problem.design_TNP[1, :, first])
            x = -self.problem.design_TNP[1:, rows, first + 1 : first + 2 * self.terms : 2]
            x_NK = np.stack([x[k, :, k] for k in range(self.terms)], axis=1)
            ones = np.ones((len(rows), 1))
            fitted = cast(Array, np.linalg.lstsq(np.hstack([ones, x_NK]), above_N[rows], rcond=None)[0])
            for k, part in enumerate(parts):
                theta += [float(fitted[0]) + math.log(part), -float(fitted[1 + k]) / part * stretch]
        return np.array(theta)

    def curves(self, theta_P: Array) -> dict[str, Curve]:
        """The parameters as curves, by scheme."""
        e = math.exp(theta_P[0]) if self.e is None else self.e
        rest = theta_P[self.floors :].reshape(len(self.group), self.terms, 2)
        return {
            name: Curve(e, tuple(np.exp(own[:, 0]).tolist()), tuple(own[:, 1].tolist()), self.at)
            for name, own in zip(self.group, rest, strict=True)
        }

    def fitted(self, theta_P: Array) -> Array:
        """log loss on the curves at the law's points, (N,)."""
        return predict(theta_P[None], self.problem)[0][0]
