"""The plan on paper: against what FSDP2 really sends and holds, against measured steps, and the page in docs/."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_group import rank_config, together, traffic

from layerrope import cli
from layerrope.commands.account import Command as Account
from layerrope.commands.train import Command as Train
from layerrope.config import ModelConfig, tier
from layerrope.roofline import COLUMNS, DEVICES, Device, _divisors, collective_seconds, gains_elsewhere, parts_of, plan
from layerrope.training.recipe import to_json

ROOT = Path(__file__).parents[1]
SMALL = ModelConfig(n_layer=4, n_head=2, d_model=64, d_ff=176, scheme="layerrope")
H100 = DEVICES["h100"]


@pytest.mark.parametrize("scheme", ["layerrope", "hc"])
def test_a_plan_counts_what_fsdp_gathers_reduces_and_holds(tmp_path: Path, scheme: str) -> None:
    """Two gloo ranks, three parts a step; shapes that two ranks share without padding."""
    config = rank_config(vocab_size=32, micro_batch=1, n_layer=3, scheme=scheme)
    ended = together(tmp_path / "ranks", traffic, 2, to_json(config), tmp_path / "found")
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    gathered, reduced, held = json.loads((tmp_path / "found").read_text())
    parts = parts_of(config.model)
    assert (gathered, reduced) == (3 * 4 * parts.gathered, 3 * 4 * parts.all)
    assert held == 16 * parts.all / 2


def records() -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Settings and rows by name of the two records of measured steps, at widths 64 and 256."""
    found = [json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text()) for name in ("train", "schemes")]
    return [(record, {row["name"]: row for row in record["rows"]}) for record in found]


def shape(settings: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**{name: settings[name] for name in ("n_layer", "n_head", "d_model", "d_ff", "seq_len")})


def calibrated(device: Device, config: ModelConfig, tokens_per_second: float) -> Device:
    """`device`, which moves 1 byte a second, with the memory bandwidth that makes a measured rate come out."""
    step = plan(config, 1, device, config.seq_len)
    products = step.model_flops / device.peak / device.products
    rest = config.seq_len / tokens_per_second - products
    assert rest > 0
    return replace(device, bandwidth=(step.compute_seconds - products) * device.bandwidth / rest)


def test_the_step_of_one_measured_shape_predicts_another_four_times_as_wide() -> None:
    """CPU, compiled: memory traffic fitted at width 64, peak from bare products at either width; within a third."""
    (narrow, rows), (wide, wide_rows) = records()
    cpu = Device(1e9 * narrow["bare_gflops"], 1.0, 1e12, 1.0, 1.0, 1.0, 1, 0.0)
    fitted = calibrated(cpu, shape(narrow["settings"]), rows["prenorm"]["tokens_per_second"])
    there = replace(fitted, peak=1e9 * wide["bare_gflops"])
    config = shape(wide["settings"])
    found = config.seq_len / plan(config, 1, there, config.seq_len).compute_seconds
    assert found == pytest.approx(wide_rows["prenorm"]["tokens_per_second"], rel=0.35)
    gates = plan(replace(shape(narrow["settings"]), scheme="layerrope"), 1, fitted, narrow["settings"]["seq_len"])
    share = gates.gate_seconds / (gates.compute_seconds - gates.gate_seconds)
    assert rows["layerrope"]["ratio"] - 1 <= share <= 3 * (rows["layerrope"]["ratio"] - 1)  # uncompiled: a bound


@given(st.integers(1, 12), st.sampled_from(["1b", "7b"]))
def test_more_devices_hold_less_each_and_send_no_less(power: int, name: str) -> None:
    config = replace(tier(name), scheme="layerrope")
    fewer, more = (plan(config, n, H100, 2**20) for n in (2 ** (power - 1), 2**power))
    assert more.state_bytes == pytest.approx(fewer.state_bytes / 2)
    assert more.seconds <= fewer.seconds * 1.001 or more.communication_seconds > more.compute_seconds
    assert 0 < more.mfu < H100.products
    assert more.sequences * more.devices * config.seq_len >= 2**20 or more.sequences == 1


def test_gains_cost_nothing_worth_naming() -> None:
    """A thousandth of what is sent, a hundredth of a step; a table beside a stream where there are pipelines."""
    for name in ("1b", "7b"):
        config = replace(tier(name), scheme="layerrope")
        for n in (8, 64, 512):
            found = plan(config, n, H100)
            assert found.gains_bytes < 1e-4 * found.sent_bytes
            assert found.gains_seconds < 0.01 * found.seconds
            assert found.gate_seconds < 0.02 * found.compute_seconds
        elsewhere = gains_elsewhere(config, 4096)
        assert elsewhere["tp_gradient_bytes"] < 1e-4 * elsewhere["tp_stream_bytes"]
        assert elsewhere["pp_table_bytes"] < 0.05 * elsewhere["pp_stream_bytes"]
    assert plan(tier("1b"), 8, H100).gains_seconds == plan(tier("1b"), 8, H100).gate_seconds == 0


def test_gains_and_stream_are_summed_the_same_way_in_tensor_parallelism() -> None:
    config = replace(SMALL, n_layer=3)
    found = gains_elsewhere(config, 10)
    assert found["tp_gradient_bytes"] / parts_of(config).gains == 2 * 4  # fp32, reduced and gathered
    assert found["tp_stream_bytes"] / (10 * config.d_model) == 2 * 2 * (3 * 4)  # bf16; forward and backward, twice each


@pytest.mark.parametrize("spec", ["attnres:size=8", "attnres:blocks=8", "attnres:size=5"])
def test_a_scheme_that_one_layer_cannot_have_is_planned_with_recomputation(spec: str) -> None:
    """One layer's inside is at least Pre-Norm's, and less than all that is kept."""
    tight = replace(H100, memory=1.0)  # nothing fits, so the plan is the one that needs least
    grouped, plain = (plan(replace(SMALL, scheme=name), 8, tight, 2**12) for name in (spec, "prenorm"))
    assert grouped.recomputes
    assert plain.recomputes
    assert plain.activation_bytes <= grouped.activation_bytes < 2 * plain.activation_bytes


def test_a_ring_moves_all_but_its_own_share_once() -> None:
    assert collective_seconds(1e9, 1, 1, H100) == 0
    assert collective_seconds(450e9, 0, 8, H100) == pytest.approx(7 / 8)
    assert collective_seconds(400e9, 0, 16, H100) == pytest.approx(15 / 16)
    assert collective_seconds(0, 2, 16, H100) == pytest.approx(2 * 8 * 3e-6)


@pytest.mark.parametrize("n", [1, 2, 12, 49, 97, 360, 1024])
def test_a_batch_is_split_in_every_way(n: int) -> None:
    assert _divisors(n) == [k for k in range(1, n + 1) if n % k == 0]


def test_what_makes_no_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--devices", "0"], "at least one device"),
        (["--devices", "8", "--gpu", "h1000"], "unknown gpu 'h1000'"),
        (["--devices", "8", "--batch-tokens", "0"], "one token"),
        (["--devices", str(10**30)], "at most 1,073,741,824 devices"),
        (["--devices", "1", "--batch-tokens", str(4 * 10**18)], "tokens: got 1 and 4000000000000000000"),
    ):
        assert cli.main(["account", "--tier", "micro", "--schemes", "prenorm", *words]) == 2
        assert message in capsys.readouterr().err


def test_account_prints_plans(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["account", "--tier", "micro", "--schemes", "prenorm", "layerrope", "--devices", "1", "8"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["plans"]
    assert [row["devices"] for row in found["layerrope"]] == [1, 8]
    assert found["layerrope"][1]["gains_bytes"] > 0 == found["prenorm"][1]["gains_bytes"]
    assert cli.main([*words, "64", "512"]) == 0
    said = capsys.readouterr().out
    assert "\u2026" not in said  # no cell or heading is cut on a narrow terminal
    assert all(name in said for name in COLUMNS)


def test_the_how_to_runs_and_names_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "scaling-out.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    exec(block, {})
    assert capsys.readouterr().out == "None 1\n"
    flags = {f"--{name.replace('_', '-')}" for command in (Train, Account) for name in command.__dataclass_fields__}
    launchers = {"--nproc-per-node", "--nnodes", "--node-rank", "--rdzv-endpoint", "--shutdown-timeout"}
    assert set(re.findall(r"--[a-z][a-z-]*", text)) - launchers <= flags


def test_the_page_is_up_to_date() -> None:
    spec = spec_from_file_location("scaling_page", ROOT / "benchmarks" / "scaling_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = module_from_spec(spec)
    spec.loader.exec_module(page)
    text = (ROOT / "docs" / "scaling-out.md").read_text()
    assert page.renewed(text) == text, "out of date: python benchmarks/scaling_page.py"
