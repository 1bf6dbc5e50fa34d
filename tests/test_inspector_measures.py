"""The inspector's measurements against SmolLM2's reference values, plain formulas, and tables made to order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspector_files import REFERENCE, growing, smollm2

from layerrope.inspector.angles import angles, outliers, rank1_share, shared_direction, unit_rows
from layerrope.inspector.depth_law import aicc, best_law, fit_laws, power_law
from layerrope.inspector.gain_fit import best_size, fit_gains
from layerrope.inspector.health import bf16_exact, exact_in, fault, folded_sites, fp16_exact
from layerrope.inspector.mds import noisy_gram, picture, pure_scaling_picture, rank1_null, sweep
from layerrope.inspector.rotation_search import RotationSearch, spectrum, turned

SITES = ["attn_in", "mlp_in"]
LAYERS = np.arange(30.0)


def table(site: str) -> np.ndarray:
    return smollm2()[site].astype(np.float64)


def rms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(rows**2, axis=1))


# ---------------------------------------------------------------------------------------- SmolLM2, as published
@pytest.mark.parametrize("site", SITES)
def test_power_law_and_exponential_of_smollm2(site: str) -> None:
    y, ref = rms(table(site)), REFERENCE[site]
    law = power_law(LAYERS, y)
    assert (law.c, law.beta, law.r2) == pytest.approx([ref["power_law"][k] for k in ("c", "beta", "R2")], rel=1e-9)
    later = power_law(LAYERS[1:], y[1:])
    expected = [ref["power_law_without_first_layer"][k] for k in ("c", "beta", "R2")]
    assert (later.c, later.beta, later.r2) == pytest.approx(expected, rel=1e-9)
    exponential = fit_laws(LAYERS, y)["exponential"]
    expected = [ref["exponential_in_l"][k] for k in ("c", "rate", "R2")]
    assert (exponential.c, exponential.slope, exponential.r2) == pytest.approx(expected, rel=1e-9)


def test_the_published_numbers_to_the_digit_of_the_issue() -> None:
    attn, mlp = (power_law(LAYERS, rms(table(site))) for site in SITES)
    assert [round(v, 4) for v in (attn.c, attn.beta, attn.r2)] == [0.1038, 0.4221, 0.6846]
    assert [round(v, 4) for v in (mlp.c, mlp.beta, mlp.r2)] == [0.1407, 0.2092, 0.7424]


@pytest.mark.parametrize("site", SITES)
def test_angles_and_shares_of_smollm2(site: str) -> None:
    rows, ref = table(site), REFERENCE[site]
    turn, expected = angles(rows), ref["angles_deg"]
    assert turn.largest == pytest.approx(expected["max_pairwise"], rel=1e-9)
    assert turn.largest_pair == tuple(expected["max_pair"])
    assert turn.first_to_last == pytest.approx(expected["first_to_last"], rel=1e-9)
    assert turn.steps == pytest.approx(expected["steps"], rel=1e-7)
    assert turn.from_first == pytest.approx(expected["from_first"], rel=1e-7)
    assert turn.median_pair == pytest.approx(expected["median_pairwise"], rel=1e-9)
    assert rank1_share(rows) == pytest.approx(ref["svd"]["rank1_share"], rel=1e-9)
    assert rank1_share(unit_rows(rows)) == pytest.approx(ref["unit_rows_rank1_share"], rel=1e-9)
    later, expected = angles(rows[1:]), ref["without_first_layer"]
    assert later.largest == pytest.approx(expected["max_pairwise_deg"], rel=1e-9)
    assert tuple(i + 1 for i in later.largest_pair) == tuple(expected["max_pair"])
    assert later.first_to_last == pytest.approx(expected["layer1_to_last_deg"], rel=1e-9)
    assert rank1_share(rows[1:]) == pytest.approx(expected["rank1_share"], rel=1e-9)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("key", ["mds2", "mds2_unit_vectors"])
def test_the_picture_of_smollm2(site: str, key: str) -> None:
    rows, ref = table(site), REFERENCE[site][key]
    drawn = picture(unit_rows(rows) if key == "mds2_unit_vectors" else rows)
    assert drawn.stress == pytest.approx(ref["stress1"], rel=1e-7)
    assert drawn.kept == pytest.approx(ref["share_pc1_pc2"], rel=1e-9)
    swept = [ref["swept"][k] for k in ("net_deg", "first_last_at_centroid_deg", "path_deg", "range_deg")]
    found = drawn.sweep
    assert [found.net, found.folded, found.path, found.range] == pytest.approx(swept, rel=1e-7)
    if "coords" in ref:
        assert np.abs(drawn.points) == pytest.approx(np.abs(np.array(ref["coords"])), abs=1e-9)


@pytest.mark.parametrize("site", SITES)
def test_the_null_of_smollm2_s_picture(site: str) -> None:
    rows = table(site)
    null = rank1_null(rows, shared_direction(rows), draws=400)
    ref = REFERENCE[site]["mds2"]["null_rank1_plus_noise"]
    for name, key in (("folded", "first_last_at_centroid_deg"), ("path", "path_deg")):
        mean, std = ref[key]
        # The reference has few draws, so its own mean is uncertain by about a third of its spread.
        assert getattr(null.mean, name) == pytest.approx(mean, abs=std / 2 + 1)
        assert getattr(null.std, name) == pytest.approx(std, rel=0.6)


@pytest.mark.parametrize("site", SITES)
def test_layerrope_s_form_on_smollm2(site: str) -> None:
    rows, ref = table(site), REFERENCE[site]
    fit, errors = fit_gains(rows, LAYERS), ref["fit_rel_frobenius_err"]
    assert fit.constant == pytest.approx(errors["constant_gamma"], rel=1e-9)
    assert fit.magnitude == pytest.approx(errors["i_magnitude_only"], rel=1e-7)
    assert fit.rank1 == pytest.approx(errors["iii_rank1_svd"], rel=1e-9)
    assert fit.full == pytest.approx(errors["ii_layerrope_full"], abs=3e-8)
    assert fit.beta_magnitude == pytest.approx(ref["fit_mag"]["b_mag"], abs=1e-6)
    assert fit.per_layer == pytest.approx(ref["per_layer_rel_err_magnitude_only"], rel=1e-5)
    assert fit.per_layer_full == pytest.approx(ref["per_layer_rel_err_layerrope"], rel=1e-4)
    gain = ref["rotation_gain"]
    assert fit.rotation_gain == pytest.approx(gain["share_of_magnitude_only_residual_removed"], abs=5e-7)
    assert max(fit.null) == pytest.approx(gain["shuffled_max"], rel=0.6)
    assert not fit.identifiable
    later = fit_gains(rows[1:], LAYERS[1:], shuffles=0)
    expected = ref["without_first_layer"]
    assert later.magnitude == pytest.approx(expected["i_magnitude_only"], rel=1e-7)
    assert later.full == pytest.approx(expected["ii_layerrope_full"], abs=1e-6)
    assert later.beta == pytest.approx(expected["b_mag"], abs=1e-4)


def test_layerrope_errors_to_the_digit_of_the_issue() -> None:
    assert [round(fit_gains(table(s), LAYERS, rotation=False).magnitude, 4) for s in SITES] == [0.2609, 0.2004]


# ------------------------------------------------------------------------------------------------- growth laws
LAWS: list[tuple[str, Any]] = [
    ("power", lambda x: 0.3 * (x + 1) ** 0.7),
    ("exponential", lambda x: 0.3 * np.exp(0.05 * x)),
    ("linear", lambda x: 0.3 * (1 + 0.4 * x)),
    ("constant", lambda x: np.full_like(x, 0.3)),
]


@pytest.mark.parametrize(("name", "law"), LAWS)
@pytest.mark.parametrize("seed", range(3))
def test_the_law_that_made_the_data_fits_best(name: str, law: Any, seed: int) -> None:
    x = np.arange(40.0)
    y = law(x) * np.exp(0.01 * np.random.default_rng(seed).standard_normal(40))
    fits = fit_laws(x, y)
    best = min(fits.values(), key=lambda f: f.aicc or 0)
    # A constant is a special case of the others, which by luck can lead it by a little.
    assert best.name == name or (name == "constant" and (fits[name].aicc or 0) - (best.aicc or 0) < 4)
    assert next(iter(fits)) == best.name
    if name != "constant":
        true = {"power": 0.7, "exponential": 0.05, "linear": 0.4}[name]
        assert fits[name].slope == pytest.approx(true, rel=0.1)


def test_a_falling_line_is_found_too() -> None:
    x = np.arange(20.0)
    assert fit_laws(x, 2 * (1 - 0.04 * x))["linear"].slope == pytest.approx(-0.04, rel=1e-4)


def test_aicc_penalises_by_the_formula_and_needs_layers() -> None:
    residuals = np.array([0.1, -0.2, 0.05, 0.0, 0.3, -0.1, 0.02])
    n, k = 7, 3
    by_hand = n * math.log(float(residuals @ residuals) / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
    assert aicc(residuals, 2) == pytest.approx(by_hand)
    assert aicc(residuals[:4], 2) is None


def test_too_few_layers_have_no_best_law() -> None:
    layers = np.arange(5.0)
    assert best_law(fit_laws(layers[:4], np.exp(layers[:4]))) is None
    assert best_law(fit_laws(layers, np.exp(layers))) == "exponential"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    x, inside = np.arange(24.0), 0
    for seed in range(60):
        noise = 0.2 * np.random.default_rng(seed).standard_normal(24)
        low, high = power_law(x, (x + 1) ** 0.5 * np.exp(noise), resamples=400, seed=seed).beta_interval or (0, 0)
        inside += low <= 0.5 <= high
    assert 49 <= inside <= 60


def test_intervals_narrow_with_more_layers_and_count_what_could_not_be_fitted() -> None:
    widths = []
    for n in (6, 24, 96):
        x = np.arange(float(n))
        law = power_law(x, (x + 1) ** 0.5 * np.exp(0.2 * np.random.default_rng(1).standard_normal(n)))
        assert law.beta_interval is not None
        widths.append(law.beta_interval[1] - law.beta_interval[0])
    assert widths[0] > widths[1] > widths[2]
    two = power_law(np.array([0.0, 1.0]), np.array([1.0, 2.0]), resamples=1000)
    assert two.resamples == pytest.approx(500, abs=60)  # half of them draw one layer twice


# --------------------------------------------------------------------------------------- directions and pictures
@given(st.integers(2, 12), st.integers(2, 40), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_angles_and_shares_are_those_of_plain_formulas(n: int, d: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    singular = np.linalg.svd(rows, compute_uv=False)
    assert rank1_share(rows) == pytest.approx(singular[0] ** 2 / np.sum(singular**2), rel=1e-9)
    turn = angles(rows)
    u, v = rows[turn.largest_pair[0]], rows[turn.largest_pair[1]]
    assert turn.largest == pytest.approx(math.degrees(math.acos(u @ v / np.linalg.norm(u) / np.linalg.norm(v))))
    shared = shared_direction(rows)
    assert np.linalg.norm(shared.direction) == pytest.approx(1)
    assert np.linalg.norm(rows - shared.table) == pytest.approx(np.sqrt(np.sum(singular[1:] ** 2)), abs=1e-7)


def test_outliers_are_found_where_they_were_put() -> None:
    rows = growing(20, 400, noise=1e-3).astype(np.float64)
    odd = [5, 77, 123]
    rows[:, odd] += np.random.default_rng(1).standard_normal((20, 3))
    split = outliers(rows, shared_direction(rows))
    assert split is not None
    assert set(split.top_channels[:3]) == set(odd)
    assert split.half <= 3
    assert split.top_share > 0.95
    assert split.rank1_without > 0.9999
    assert outliers(np.outer(np.arange(1.0, 6), np.ones(8)), shared_direction(np.ones((5, 8)))) is not None


def test_no_deviation_means_no_outliers() -> None:
    rows = np.outer(np.arange(1.0, 6), np.arange(1.0, 9))
    assert outliers(rows, shared_direction(rows)) is None


def test_pure_scaling_seems_to_turn_by_half_a_circle() -> None:
    for seed in range(3):
        angle, drawn = pure_scaling_picture(seed=seed)
        assert angle < 4.3
        assert drawn.sweep.folded == pytest.approx(176, abs=3)


def test_a_circle_is_swept_once_round() -> None:
    t = np.linspace(0, 1.5 * np.pi, 40)
    swept = sweep(np.stack([np.cos(t), np.sin(t)], axis=1))
    assert (swept.net, swept.folded, swept.path, swept.range) == pytest.approx((270, 90, 270, 270))


def test_the_picture_of_flat_data_has_no_stress() -> None:
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((10, 2)) @ rng.standard_normal((2, 50))
    assert picture(plane).stress == pytest.approx(0, abs=1e-6)
    assert picture(plane).kept == pytest.approx(1)


@pytest.mark.parametrize("d", [5, 300])
def test_the_null_s_gram_matrix_is_that_of_real_noise(d: int) -> None:
    """The matrix drawn without channels has the distribution of one made from d channels."""
    along, noise = np.array([1.0, 2.0, -3.0, 0.5]), np.array([0.3, 0.1, 0.2, 0.4])
    draws, direction = 4000, np.ones(d) / math.sqrt(d)
    rng = np.random.default_rng(0)
    quick = np.array([noisy_gram(along, noise, d, rng) for _ in range(draws)])
    tables = along[:, None] * direction + noise[:, None] * rng.standard_normal((draws, 4, d))
    plain = np.einsum("bld,bmd->blm", tables, tables)
    error = plain.std(axis=0) / math.sqrt(draws)
    assert np.all(np.abs(quick.mean(axis=0) - plain.mean(axis=0)) < 6 * error)
    assert quick.std(axis=0) == pytest.approx(plain.std(axis=0), rel=0.1)


# ---------------------------------------------------------------------------------------------- LayerRoPE's form
def layerrope_table(n: int = 24, d: int = 128, noise: float = 0.01, **scalars: float) -> np.ndarray:
    rng = np.random.default_rng(3)
    gamma, depth = rng.standard_normal(d), np.log(np.arange(n) + 1.0)
    s = {"alpha": 0.1, "beta": -0.4, "alpha_rot": 0.3, "beta_rot": -0.6, **scalars}
    theta = np.exp(s["alpha_rot"] + s["beta_rot"] * depth)[:, None] * spectrum(d, 100.0)
    rows = np.exp(s["alpha"] + s["beta"] * depth)[:, None] * turned(np.tile(gamma, (n, 1)), theta)
    return rows + noise * rng.standard_normal(rows.shape)


def test_the_scalars_that_made_a_table_are_found_again() -> None:
    fit = fit_gains(layerrope_table(), np.arange(24))
    assert fit.identifiable
    assert fit.p_value == pytest.approx(1 / 21)
    assert fit.beta == pytest.approx(-0.4, abs=0.01)
    assert fit.alpha_rot == pytest.approx(0.3, abs=0.05)
    assert fit.beta_rot == pytest.approx(-0.6, abs=0.05)
    assert fit.full is not None
    assert fit.full < fit.magnitude / 3
    assert np.sqrt(np.mean(fit.gamma**2)) == pytest.approx(1)


def test_a_growing_turn_is_found_too() -> None:
    fit = fit_gains(layerrope_table(alpha_rot=-2.0, beta_rot=1.0), np.arange(24))
    assert fit.identifiable
    assert fit.beta_rot == pytest.approx(1.0, abs=0.1)


def test_a_table_that_only_grows_has_no_identifiable_angles() -> None:
    fits = [fit_gains(growing(24, 128, noise=0.05, seed=s), np.arange(24)) for s in range(6)]
    assert sum(f.identifiable for f in fits) <= 1  # one in twenty by chance
    assert all(f.rotation_gain < 0.05 for f in fits if f.rotation_gain is not None)


def test_the_same_turn_at_every_layer_cannot_be_seen() -> None:
    """A rotation that does not depend on depth belongs to gamma: only differences of angle are in the data."""
    fit = fit_gains(layerrope_table(beta_rot=0.0), np.arange(24))
    assert not fit.identifiable


def test_the_table_s_own_rotation_module_agrees() -> None:
    torch = pytest.importorskip("torch")
    from layerrope.gains import gain_table

    gamma = np.random.default_rng(0).standard_normal(64)
    ours = np.exp(-0.4 * np.log(np.arange(9) + 1.0))[:, None] * turned(
        np.tile(gamma, (9, 1)), np.exp(0.2 - 0.5 * np.log(np.arange(9) + 1.0))[:, None] * spectrum(64, 100.0)
    )
    theirs = gain_table(torch.tensor(gamma, dtype=torch.float64), 9, beta=-0.4, alpha_rot=0.2).numpy()
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("n", [3, 24])
def test_the_search_scores_a_rotation_as_the_plain_formula_does(n: int) -> None:
    """Interpolated at a few points, the score equals turning every row back and fitting it."""
    rows, depth = table("attn_in")[:n], np.log(np.arange(n) + 1.0)
    search = RotationSearch(depth, spectrum(576, 100.0), 0.3)
    values, squares = search._values(rows), np.einsum("ld,ld->l", rows, rows)
    for beta, top, slope in [(0.3, 0.2, -0.7), (-0.2, 1.8, 1.3), (0.9, -3.0, -3.0)]:
        own, pairs = search._sizes(np.array([beta]))
        point = np.array([[top, slope]])
        quick = own @ squares + np.einsum("np,npk,kp->n", pairs, search._basis(point), values)
        alpha_rot, beta_rot = search.scalars(point[0])
        back = turned(rows, -np.exp(alpha_rot + beta_rot * depth)[:, None] * spectrum(576, 100.0))
        s = np.exp(beta * depth)
        plain = np.sum((s @ back) ** 2) / (s @ s)
        assert quick[0] == pytest.approx(plain, rel=1e-8)


def test_the_search_finds_what_a_fine_grid_finds() -> None:
    rows, depth = layerrope_table(12, 32, noise=0.2), np.log(np.arange(12) + 1.0)
    fit = fit_gains(rows, np.arange(12), shuffles=0)
    total, best = np.sum(rows**2), 0.0
    for a in np.linspace(-2, 1.8, 39):
        for b in np.linspace(-3, 0, 13):
            back = turned(rows, -np.exp(a + b * depth)[:, None] * spectrum(32, 100.0))
            best = max(best, best_size(back, depth).explained)
    assert fit.full is not None
    assert fit.full <= math.sqrt(1 - best / total) + 1e-6


def test_odd_widths_and_deep_tables() -> None:
    odd = fit_gains(growing(10, 33), np.arange(10))
    assert odd.full is None
    assert odd.p_value is None
    assert not odd.identifiable
    deep = fit_gains(layerrope_table(200, 32), np.arange(200), shuffles=5)
    assert deep.beta_rot == pytest.approx(-0.6, abs=0.05)


# -------------------------------------------------------------------------------------------------------- health
def test_faults_by_name() -> None:
    assert fault(np.array([1.0, np.nan, np.inf])) == "NaN"
    assert fault(np.array([1.0, -np.inf])) == "Inf"
    assert fault(np.zeros(3)) == "all zeros"
    assert fault(np.ones(3)) == "all ones"
    assert fault(np.array([1.0, 1.0, 0.999])) is None
    assert fault(np.zeros(3), gain=False) is None


@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_fp16_values_are_exact_in_fp16(values: list[float]) -> None:
    assert fp16_exact(np.array(values)) == 1


@given(st.lists(st.integers(0, 0x7F7F), min_size=1, max_size=20))
def test_bf16_values_are_exact_in_bf16(patterns: list[int]) -> None:
    values = (np.array(patterns, np.uint32) << 16).view(np.float32).astype(np.float64)
    assert bf16_exact(values) == 1
    assert exact_in(values) == "bf16"
    assert exact_in(np.array([1.0]) + np.array([0.0078125])) == "bf16"


def test_a_quantiser_s_fold_is_told_from_a_trained_gain() -> None:
    rows = table("attn_in")
    scales = 1 + np.random.default_rng(0).random(576)
    folded = (rows / scales).astype(np.float16).astype(np.float64)
    kinds = {"attention read": [exact_in(r) for r in folded], "MLP read": [exact_in(r) for r in table("mlp_in")]}
    flagged = folded_sites(kinds)
    assert list(flagged) == ["attention read"]
    assert "AWQ" in flagged["attention read"]


def test_a_model_trained_in_another_type_is_not_called_folded() -> None:
    fp16 = [exact_in(np.array([0.1], np.float16).astype(np.float64))]
    fp32 = [exact_in(np.array([0.1]))]
    assert folded_sites({"a": fp16, "b": fp16}) == {}
    assert folded_sites({"a": fp32, "b": ["bf16"]}) == {}
    assert folded_sites({"a": ["bf16"], "b": ["bf16"]}) == {}
