"""Looping as a study: what it costs, what it compares, what it says; and its runs as the launcher trains them."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nets import token_ids
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from layerrope import cli
from layerrope.accounting import account, activation_bytes, count_parameters, flops_per_token
from layerrope.errors import InputError
from layerrope.files import write_json
from layerrope.launching.launch import Outcome
from layerrope.looping.cost import loop_flops, mean_loops
from layerrope.looping.looped import LoopedConfig, LoopedLM, looped_tiers
from layerrope.studies import Ask, plan_study
from layerrope.studies.cost import costs
from layerrope.studies.findings import findings_of
from layerrope.studies.reading import read_found, runs_csv
from layerrope.study import Run, read_study, write_study
from layerrope.training.kinds import LoopedTrainConfig, read_config
from layerrope.training.recipe import to_json
from layerrope.training.run_folder import Result

torch.set_num_threads(1)
SMALL = LoopedConfig(prelude=1, core=2, coda=1, loops=3, grad_loops=2, n_head=2, d_model=64, d_ff=128, seq_len=8)


# -------------------------------------------------------------------------------------------------- what it costs
def test_mean_iterations_are_those_that_are_drawn() -> None:
    """E max(R, 1) = mu + e^-mu; and both means against many draws."""
    assert mean_loops(LoopedConfig(loops=8))[0] == pytest.approx(8 + math.exp(-8))
    assert mean_loops(LoopedConfig(loops=1))[0] == pytest.approx(1 + math.exp(-1))
    assert mean_loops(LoopedConfig(loops=8, draw=False)) == (8, 4)
    drawn = LoopedLM(replace(SMALL, loops=6, grad_loops=4)).draw_loops(40_000).double()
    expected = mean_loops(replace(SMALL, loops=6, grad_loops=4))
    assert float(drawn.mean()) == pytest.approx(expected[0], abs=0.05)
    assert float(drawn.clamp(max=4).mean()) == pytest.approx(expected[1], abs=0.03)


def test_flops_are_those_of_the_products_that_run() -> None:
    """Counted by torch on one batch at three iterations, two of them with gradient; norms are the difference."""
    model = LoopedLM(replace(SMALL, draw=False)).train()
    ids = token_ids(2, 8)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, ids, loops=torch.tensor([3, 3])).backward()
    upper_halves = 2 * 64 * 8 * (3 * 2 + 2 * (3 + 2 * 2))  # the products are whole squares, half of them masked
    assert counter.get_total_flops() / ids.numel() == pytest.approx(loop_flops(model) + upper_halves, rel=0.01)


def test_truncation_saves_backward_passes_and_memory() -> None:
    short, long = (replace(SMALL, loops=8, grad_loops=n) for n in (1, 8))
    assert flops_per_token(short) < flops_per_token(long)
    assert activation_bytes(short) < activation_bytes(long) / 2
    assert flops_per_token(replace(short, scheme="layerrope")) == flops_per_token(short)


def test_an_account_of_the_paper_s_smallest() -> None:
    found = account(replace(looped_tiers["parcae-140m"], scheme="layerrope"))
    assert found.parameters == 144_323_136 + found.scheme_parameters
    assert found.scheme_parameters == 4 * 768 + 16 - 2 * 6 * 768
    assert found.embedding_parameters == 4 * 32_768 * 768  # the token embedding and three value embeddings
    once = replace(looped_tiers["parcae-140m"], loops=1, draw=False)
    assert flops_per_token(once) == 6 * (144_323_136 - 3 * 32_768 * 768) + 6 * 6 * 768 * 2048


# ------------------------------------------------------------------------------------------------------- the plan
def test_the_paper_s_study_has_its_totals_and_equal_flops() -> None:
    asked = Ask(scale="paper", schemes=("prenorm", "layerrope"), lrs=(4e-3,), seeds=(0,))
    runs = plan_study("loop", asked).whole().runs
    found = costs(runs)
    assert [run.labels["run"] for run in runs[::2]] == ["8 loops", "once, equal tokens", "once, equal FLOPs"]
    assert {c.parameters for c in found} == {144_323_136, 144_317_008}
    assert {c.tokens for c in found[:4]} == {21_363 * 256 * 2048}
    assert found[4].flops == pytest.approx(found[0].flops, rel=1e-4)
    assert found[2].flops < found[0].flops / 1.9


def test_every_size_of_the_paper_can_be_planned() -> None:
    names = tuple(name for name in looped_tiers if name.startswith("parcae"))
    asked = Ask(scale="paper", sizes=names, schemes=("prenorm",), lrs=(4e-3,), seeds=(0,))
    runs = plan_study("loop", asked).first().runs
    assert {count_parameters(run.config.model)[0] for run in runs} == {
        144_323_136,
        388_003_328,
        776_655_680,
        1_338_591_744,
    }


def test_once_is_a_plain_decoder_of_the_same_parameters() -> None:
    """Nothing is drawn: training and evaluation agree, and the core runs once."""
    model = LoopedLM(replace(SMALL, loops=1, draw=False))
    ids = token_ids(2, 8)
    assert torch.equal(model.train()(ids), model.eval()(ids))
    assert model.config.depth(1) == model.config.n_layer


def test_scaled_init_is_prenorm_in_a_looped_model() -> None:
    plain, scaled = (LoopedLM(replace(SMALL, scheme=name)).state_dict() for name in ("prenorm", "prenorm-scaledinit"))
    assert all(torch.equal(value, scaled[name]) for name, value in plain.items())


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (Ask(scale="tiny", embed_stds=(1.0,)), "no --embed-stds"),
        (Ask(scale="tiny", sizes=("micro",)), "did you mean loop-micro"),
        (Ask(scale="tiny", schemes=("attnres",)), "cannot be looped"),
        (Ask(scale="tiny", schemes=("layerrope:gamma=layer",)), "free per-layer gains"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(ask: Ask, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_study("loop", ask)


def test_a_looped_study_survives_its_file(tmp_path: Path) -> None:
    study = plan_study("loop", Ask(scale="tiny")).first()
    write_study(study, tmp_path)
    assert read_study(tmp_path).base == study.base
    assert isinstance(read_config(to_json(study.base)), LoopedTrainConfig)
    with pytest.raises(InputError, match="unknown kind of model"):
        read_config({"model": {"kind": "loopd"}})


# --------------------------------------------------------------------------------------------------- what it says
def test_findings_are_the_differences_that_were_put_in(tmp_path: Path) -> None:
    put = {"3 loops": 2.0, "once, equal tokens": 2.5, "once, equal FLOPs": 2.2}

    def ended(run: Run) -> Outcome:
        loss = put[run.labels["run"]] + (0.1 if run.labels["scheme"] == "prenorm" else 0.0)
        loss += run.config.lr + 0.001 * run.config.seed
        return Outcome("done", Result("done", run.key, 6, 96, loss, loss, None, loss, 6, 1.0, 100.0, 500))

    plan = plan_study("loop", Ask(scale="tiny", schemes=("prenorm", "layerrope"), seeds=(0, 1)))
    study = plan.then({run.key: ended(run) for run in plan.first().runs})
    write_study(study, tmp_path)
    for run in study.runs:
        write_json(tmp_path / run.key / "result.json", dataclasses.asdict(ended(run).result))  # type: ignore[arg-type]
    said = findings_of(read_found(tmp_path))
    (caption, rows), *_ = said.tables
    assert "size loop-tiny" in caption
    assert rows[0]["3 loops minus once, equal tokens"].startswith("-0.5000 [")
    assert rows[1]["3 loops minus once, equal FLOPs"].startswith("-0.2000 [")
    assert "layerrope 2.003, prenorm 2.104" in said.sentences[0]
    assert len(runs_csv(read_found(tmp_path)).splitlines()) == 1 + len(study.runs)


def test_workers_train_looped_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scale", "tiny", "--schemes", "layerrope", "--lrs", "0.003", "--jobs", "1", "--json"]
    assert cli.main(["study", "loop", *words, "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in document["runs"]] == ["done"] * 3
    assert document["runs"][0]["flops"] > document["runs"][1]["flops"]
    assert {run["n_params"] for run in document["runs"]} == {
        count_parameters(replace(plan_study("loop", Ask(scale="tiny")).base.model, scheme="layerrope"))[0]
    }
    assert cli.main(["report", str(tmp_path)]) == 0
