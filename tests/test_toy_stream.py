"""The toy stream: the numbers reported for it, its closed forms, and what no schedule can do."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerrope import toy_stream
from layerrope.errors import InputError
from layerrope.gains import LayerRoPE
from layerrope.toy_stream import (
    LEARNED,
    Site,
    block,
    geometric,
    geometric_ratio,
    geometric_update,
    lift,
    power,
    power_update,
    relative_update,
    steady_start,
    variance,
)

slopes = st.floats(-0.4, 2.0)


def test_the_examples_run() -> None:
    assert doctest.testmod(toy_stream).failed == 0


@pytest.mark.parametrize(("n_layer", "last"), [(24, 0.2085), (512, 0.0442)])
def test_pre_norm_fades_with_depth(n_layer: int, last: float) -> None:
    updates = relative_update(power(n_layer, 0.0))
    assert round(float(updates[-1]), 4) == last
    assert np.allclose(updates[1:], 1 / np.sqrt(np.arange(1, n_layer)))


def test_the_learned_schedule_lifts_the_update_and_does_not_cure_it() -> None:
    of = {n: block(n, LEARNED) for n in (24, 512)}
    assert {n: round(float(relative_update(g)[-1]), 3) for n, g in of.items()} == {24: 0.297, 512: 0.065}
    assert variance(of[24])[-1] / variance(power(24, 0.0))[-1] == pytest.approx(2.5, abs=0.005)
    assert [site.write_slope for site in LEARNED] == [0.56, 0.76]


@given(st.floats(0.01, 10), st.floats(0.01, 10))
def test_the_two_write_slopes_alone_stay_above_the_reported_update(attention: float, mlp: float) -> None:
    """Why LEARNED has a slope for its reads: 0.297 is out of reach without one."""
    writes = block(24, (Site(attention, 0.56), Site(mlp, 0.76)))
    assert float(relative_update(writes)[-1]) > 0.3039


@given(st.floats(0.0, 2.0))
def test_a_power_law_ends_a_constant_factor_above_pre_norm(slope: float) -> None:
    n = 20_000
    plain, lifted = (relative_update(power(n, s))[-1] for s in (0.0, slope))
    assert lifted / plain == pytest.approx(lift(slope), rel=1e-3)
    assert lift(slope) == pytest.approx(math.sqrt(2 * slope + 1))
    assert lifted == pytest.approx(power_update(n, slope), rel=1e-3)


@given(slopes, st.floats(0.1, 10))
def test_the_relative_update_knows_no_scale(slope: float, scale: float) -> None:
    assert np.allclose(relative_update(power(50, slope))[1:], relative_update(power(50, slope, scale))[1:])


@given(st.floats(1.001, 2.0), st.integers(2, 200))
def test_a_geometric_schedule_holds_the_update(ratio: float, n_layer: int) -> None:
    writes = geometric(n_layer, ratio)
    steady = relative_update(writes, start=steady_start(ratio))
    assert np.allclose(steady, math.sqrt(ratio**2 - 1), rtol=1e-6)
    closed = [geometric_update(depth, ratio) for depth in range(1, n_layer)]
    assert np.allclose(relative_update(writes)[1:], closed, rtol=1e-6)


def test_at_the_same_ends_the_geometric_schedule_does_not_fade_and_the_power_law_does() -> None:
    n = 512
    curves = [relative_update(g) for g in (geometric(n, geometric_ratio(n, 0.7)), power(n, 0.7))]
    held, faded = (float(u[-1] / u[n // 2]) for u in curves)
    assert held > 0.9
    assert faded < 0.75


@pytest.mark.parametrize("schedule", ["power", "geometric"])
def test_the_schedules_are_those_of_the_gains(schedule: str) -> None:
    table = LayerRoPE(12, 4, schedule=schedule, rotation=False, beta=0.6)()[:, 0, 1, 0].detach().numpy()
    mine = power(12, 0.6) if schedule == "power" else geometric(12, geometric_ratio(12, 0.6))
    assert np.allclose(table, mine, rtol=1e-6)


def test_a_silent_block_changes_nothing_and_an_empty_stream_is_said_so() -> None:
    updates = relative_update(np.array([0.0, 2.0, 0.0, 1.0]))
    assert updates.tolist() == [0.0, math.inf, 0.0, 0.5]
    assert variance(np.array([3.0, 4.0]), start=1.0).tolist() == [1.0, 10.0, 26.0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: power(0, 0.0),
        lambda: geometric(3, 0.0),
        lambda: variance(power(3, 0.0), start=-1.0),
        lambda: variance(power(3, 0.0), start=math.nan),
        lambda: power_update(3, -0.5),
        lambda: steady_start(1.0),
    ],
)
def test_what_cannot_be_is_refused(wrong: object) -> None:
    with pytest.raises(InputError):
        wrong()  # type: ignore[operator]
