"""What does not depend on a table's size is measured alike at any size that a float64 holds."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspector_files import DATA, growing

from layerrope import cli
from layerrope.inspector import scale
from layerrope.inspector.health import fault
from layerrope.inspector.site import SiteReport, layer_statistics, report_site
from layerrope.inspector.table import Row, Site
from layerrope.inspector.words import site_verdict


def site(rows: np.ndarray) -> Site:
    made = (Row(layer, f"r{layer}", np.asarray(r, np.float64), fault(r), "fp64") for layer, r in enumerate(rows))
    return Site("attn_read", tuple(made), "w", "given")


def scale_free(report: SiteReport) -> dict[str, Any]:
    """Numbers without a unit, and those with one as they would be at unit size."""
    whole, fit = report.whole, report.whole.fit  # type: ignore[union-attr]
    assert whole is not None
    assert report.outliers is not None
    assert report.null is not None
    return {
        "beta": (whole.power.beta, *whole.power.beta_interval, whole.power.r2),  # type: ignore[misc]
        "laws": [(law.aicc, law.slope or 0.0) for _, law in sorted(whole.laws.items())],
        "angles": (whole.angles.largest, *whole.angles.steps, whole.largest_angle_abs),
        "rank 1": (whole.rank1, whole.rank1_unit, whole.rank1_abs),
        "picture": (whole.picture.stress, whole.picture.kept, whole.picture.sweep.net, report.null.mean.net),
        "errors": (fit.constant, fit.magnitude, fit.full, fit.rank1, *fit.per_layer),
        "rotation": (fit.rotation_gain, *fit.null, fit.p_value),
        "outliers": (report.outliers.half, report.outliers.ninety, report.outliers.top_share),
        "gamma": fit.gamma.tolist(),
    }


@pytest.mark.parametrize("factor", [1e200, 1e-200, 3e307, 1e-300, -1e200])
def test_a_measurement_does_not_depend_on_the_unit(factor: float) -> None:
    rows = growing(8, 16).astype(np.float64) * 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, moved = report_site(site(rows), shuffles=6), report_site(site(rows * factor), shuffles=6)
    gamma = np.sign(factor) * np.array(scale_free(moved).pop("gamma"))
    for name, value in scale_free(plain).items():
        got = gamma.tolist() if name == "gamma" else scale_free(moved)[name]
        assert np.ravel(got) == pytest.approx(np.ravel(value), rel=1e-4, abs=1e-9), (
            name
        )  # the search ends where rounding lets it
    before, after = plain.whole, moved.whole
    assert before is not None
    assert after is not None
    assert math.log(after.power.c) == pytest.approx(math.log(before.power.c) + math.log(abs(factor)))
    assert after.fit.alpha == pytest.approx(before.fit.alpha + math.log(abs(factor)))
    assert after.power.c_interval is not None
    assert after.power.c_interval[0] < after.power.c < after.power.c_interval[1]


@pytest.mark.parametrize("value", [3.3e38, 1e12, 0.3, 1.7e308, 5e-324, 1e200])
@pytest.mark.parametrize("grows", [False, True])
def test_one_vector_for_all_layers_leaves_nothing_for_a_rotation(value: float, grows: bool) -> None:
    gamma = value * (1 - 0.3 * (np.arange(16) % 3)) if value > 1e-300 else np.full(16, value)
    size = np.arange(1, 7)[:, None] ** (-0.5 if grows and value > 1e-300 else 0.0)
    report = report_site(site(size * gamma))
    assert report.whole is not None
    fit = report.whole.fit
    assert fit.magnitude == pytest.approx(0, abs=1e-6)
    assert (fit.rotation_gain, fit.p_value, fit.identifiable) == (None, None, False)
    assert "nothing is left for the rotation" in site_verdict(report)
    assert math.isnan(report.whole.power.r2) != (grows and value > 1e-300)


def test_layers_of_very_different_size_are_measured_each() -> None:
    rows = growing(6, 16).astype(np.float64) * 10.0 ** np.array([-300, 0, 200, 1, -160, 300])[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = report_site(site(rows), shuffles=2)
    assert report.whole is not None
    assert report.whole.angles.largest < 10  # each is nearly the same direction
    assert math.isfinite(report.whole.power.beta)
    assert math.isfinite(report.whole.power.at(1000)) or report.whole.power.beta > 0


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=8), st.integers(-1000, 1000))
def test_lengths_are_those_of_exact_arithmetic(values: list[float], e: int) -> None:
    rows = np.ldexp(np.array([values]), e)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        length, rms = scale.lengths(rows)[0], scale.root_mean_square(rows)[0]
    assert length == pytest.approx(math.hypot(*rows[0].tolist()), rel=1e-12, abs=1e-320)
    assert rms == pytest.approx(math.hypot(*(rows[0] / math.sqrt(rows.shape[1])).tolist()), rel=1e-12, abs=1e-320)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=16, max_size=16))
def test_any_finite_numbers_are_measured_without_a_warning(values: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = report_site(site(np.array(values).reshape(4, 4)), shuffles=1)
        numbers = layer_statistics(Row(0, "r", np.array(values), None, "fp64"))
    site_verdict(report)
    assert abs(numbers["mean"]) <= max(map(abs, values)) * (1 + 1e-9)


FORMS = {
    "F64 large": ("F64", np.float64, 1e200),
    "F64 small": ("F64", np.float64, 1e-200),
    "F64 largest": ("F64", np.float64, 1.7e308),
    "F32 large": ("F32", np.float32, 3.3e38),
    "F32 smallest": ("F32", np.float32, 1.4e-45),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_command_bears_any_size(
    form: str, spread: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import save_file

    _, dtype, size = FORMS[form]
    rng = np.random.default_rng(0)
    rows = {
        f"model.layers.{layer}.input_layernorm.weight": (size * (1 - spread * rng.random(8))).astype(dtype)
        for layer in range(4)
    }
    save_file(rows, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    page = ["--html", tmp_path / "o.html"] if form == "F64 large" and spread else []  # its library takes a while
    outputs = [*page, "--csv", tmp_path / "o.csv", "--save", tmp_path / "o.npz"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(["inspect", str(tmp_path), "--json", "--shuffles", "2", *map(str, outputs)]) == 0
        document = json.loads(capsys.readouterr().out, parse_constant=lambda c: pytest.fail(c))
        assert cli.main(["inspect", str(tmp_path), str(tmp_path), "--layers", "--shuffles", "2"]) == 0
    assert document["models"][0]["sites"]["attn_read"]["whole"]["power"]["c"] == pytest.approx(size, rel=0.2)
    assert ("Nothing is left" in document["models"][0]["verdict"]) == (spread == 0 or form == "F32 smallest")
    assert max(map(len, capsys.readouterr().out.splitlines())) < 700


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_signalling_nans_are_nan_without_a_warning(tmp_path: Path, architecture: str) -> None:
    from layerrope.inspector import check

    for name, bits in (("F64", np.full(8, 0x7FF0000000000001, "<u8")), ("F32", np.full(8, 0x7F800001, "<u4"))):
        row = {"dtype": name, "shape": [8], "data_offsets": [0, bits.nbytes]}
        header = json.dumps({"model.layers.0.input_layernorm.weight": row}).encode()
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [f["fault"] for f in check(path, architecture=architecture).faults] == ["NaN"]


def test_smollm2_at_another_size_has_the_published_exponent() -> None:
    with np.load(DATA / "smollm2-135m.npz") as arrays:
        rows = arrays["attn_in"].astype(np.float64)
    report = report_site(site(rows * 1e-250), shuffles=0)
    assert report.whole is not None
    assert round(report.whole.power.beta, 4) == 0.4221
    assert round(report.whole.fit.magnitude, 4) == 0.2609
