"""Looped models from the command line: trained by tier, sampled with and without LoopCD, scored by iterations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import token_ids
from test_kinds import LOOPED, VISION

from layerrope import cli
from layerrope.errors import InputError
from layerrope.looping.loopcd import Contrast, Drawing, contrast, generate, loop_losses, read_contrast
from layerrope.looping.looped import LoopedLM
from layerrope.model import IGNORED
from layerrope.sampling import Sampling, stream_tokens
from layerrope.stream import trained_model
from layerrope.train import train
from layerrope.training.evaluation import evaluate
from layerrope.training.kinds import LoopedTrainConfig, read_config
from layerrope.training.trained import is_run, load_trained, run_trains

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looped") / "run"
    assert train(replace(LOOPED, steps=3), folder).status == "done"
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> LoopedLM:
    found = load_trained(run).model
    assert isinstance(found, LoopedLM)
    return found


# ---------------------------------------------------------------------------------------------------------- training
def test_a_looped_tier_trains_a_looped_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--tier", "loop-micro", "--d-model", "16", "--d-ff", "16", "--seq-len", "16", "--loops", "2"]
    words = [*shape, "--grad-loops", "1", "--steps", "2", "--batch-size", "2", "--eval-tokens", "64", "--threads", "1"]
    assert cli.main(["train", *words, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    config = read_config(json.loads((tmp_path / "config.json").read_text())["config"])
    assert isinstance(config, LoopedTrainConfig)
    assert (config.model.loops, config.model.grad_loops, config.model.d_model) == (2, 1, 16)
    assert run_trains(tmp_path, "looped")
    assert not run_trains(tmp_path / "checkpoints", "looped")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tier", "loop-micro", "--n-layer", "3"], "looped models do not take it"),
        (["--tier", "loop-micro", "--embed-std", "1"], "looped models do not take it"),
        (["--loops", "3"], "it is for looped models"),
        (["--tier", "parcae-140"], "did you mean parcae-140m"),
        (["--tier", "loop-micro", "--preset", "modern"], "leave out --preset"),
        (["--tier", "loop-micro", "--scheme", "attnres"], "cannot be looped"),
        (["--tier", "loop-micro", "--loops", "0"], "loops must be at least 1"),
        (["--tier", "loop-micro", "--loops", "1000000000"], "loops must be at most"),
    ],
)
def test_what_does_not_fit_a_tier_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words, "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not (tmp_path / "run").exists()


# ----------------------------------------------------------------------------------------------------------- sampling
def test_streamed_tokens_are_those_of_generate(model: LoopedLM) -> None:
    ids = token_ids(1, 5, vocab_size=200)
    for how in (None, Contrast(), Contrast(omega=0.5, early=2)):
        drawn = Sampling(6, 0.8, 20, seed=3, loops=4, contrast=how)
        whole = generate(model, ids, 6, loops=4, how=how, temperature=0.8, top_k=20, seed=3)
        assert list(stream_tokens(model, ids[0].tolist(), drawn)) == whole[0, 5:].tolist()


def test_the_command_samples_with_and_without_a_contrast(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in ([], ["--contrast", "adaptive"], ["--contrast", "0.4", "--loops", "5", "--early", "2"]):
        assert cli.main(["sample", str(run), "--prompt", "It", "--tokens", "4", *words, "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert all(each["prompt"] == "It" for each in said)
    step = next((run / "checkpoints").glob("step-*"))
    assert cli.main(["sample", str(step), "--prompt", "It", "--tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == said[0]["text"]


# ------------------------------------------------------------------------------------------------------------- scoring
def test_losses_by_iterations_are_the_model_s(model: LoopedLM) -> None:
    ids, targets = token_ids(5, 12, seed=1, vocab_size=200), token_ids(5, 12, seed=2, vocab_size=200)
    targets[0, :6] = IGNORED
    batches = list(zip(ids.split(2), targets.split(2), strict=True))
    found = loop_losses(model, batches, [3, 1, 5, 3], Contrast(early=1))
    assert list(found) == [1, 3, 5]
    assert found[3][0] == pytest.approx(evaluate(model, batches), rel=1e-6)
    assert found[5][0] == pytest.approx(float(model(ids, targets, loops=5).detach()), rel=1e-6)
    assert found[1][1] is None
    early, last = model.logits_after(ids, [1, 5])
    z = contrast(last, early, Contrast(early=1)).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(z, targets.flatten(), ignore_index=IGNORED)
    assert found[5][1] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert loop_losses(model, batches, [3])[3][1] is None
    same = loop_losses(model, batches, [5], Contrast(omega=0.0))[5]
    assert same[0] == pytest.approx(same[1])


def test_the_command_scores_by_iterations(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(run), "--loops", "1", "3", "6", "--contrast", "adaptive", "--tokens", "256"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["loops"] for row in found["rows"]] == [1, 3, 6]
    assert (found["trained_loops"], found["scheme"], found["tokens"]) == (3, "layerrope", 256)
    assert [row["contrasted"] is None for row in found["rows"]] == [True, False, False]
    assert cli.main(words) == 0
    assert "under LoopCD" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sample", "RUN", "--loops", "0"], "at least 1 iteration"),
        (["sample", "RUN", "--loops", "100000000"], "at most 1024"),
        (["sample", "RUN", "--loops", "1", "--contrast", "adaptive"], "must come before the last"),
        (["sample", "RUN", "--contrast", "strong"], "`adaptive` or a finite number"),
        (["sample", "RUN", "--contrast", "nan"], "`adaptive` or a finite number"),
        (["sample", "RUN", "--contrast", "adaptive", "--early", "0"], "`adaptive`|early iteration"),
        (["eval", "RUN", "--loops", "0"], "iterations run from 1 to"),
        (["eval", "RUN", "--loops", "100000"], "iterations run from 1 to"),
        (["eval", "RUN", "--loops", "2", "4", "--contrast", "adaptive", "--early", "4"], "come before the last, 4"),
        (["eval", "RUN", "--loops", "2", "--tasks", "piqa"], "two different evaluations"),
        (["eval", "RUN", "--contrast", "adaptive"], "needs --loops"),
        (["eval", "RUN", "--numerics"], "another kind of model (looped)"),
        (["eval", "VISION", "--loops", "2"], "no run of a looped model"),
        (["sample", "VISION"], "another kind of model (vit)"),
        (["export", "RUN", "--to", "OUT"], "another kind of model (looped)"),
        (["eval", "NOWHERE", "--loops", "2"], "has no config.json"),
    ],
)
def test_what_a_run_cannot_is_one_line(
    words: list[str], says: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "VISION" in words:
        train(replace(VISION, steps=1), tmp_path / "vision")
    places = {"RUN": run, "VISION": tmp_path / "vision", "OUT": tmp_path / "out", "NOWHERE": tmp_path / "nowhere"}
    assert cli.main([str(places.get(word, word)) for word in words]) == 2
    said = capsys.readouterr()
    assert any(each in said.err for each in says.split("|"))
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not (tmp_path / "out").exists()


def test_decoders_have_no_iterations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from toy_run import run as toy
    from toy_run import toy_config

    toy(toy_config(), tmp_path / "toy")
    assert cli.main(["sample", str(tmp_path / "toy"), "--loops", "2", "--tokens", "1"]) == 2
    assert "only looped models have iterations" in capsys.readouterr().err


def test_settings_of_no_meaning_are_refused(model: LoopedLM) -> None:
    for wrong in ({"omega": math.inf}, {"cap": math.nan}, {"early": 0}):
        with pytest.raises(InputError):
            Contrast(**wrong)  # type: ignore[arg-type]
    assert read_contrast("0.25", 2) == Contrast(omega=0.25, early=2)
    with pytest.raises(InputError, match="empty"):
        generate(model, torch.zeros(1, 0, dtype=torch.long), 1)
    with pytest.raises(InputError, match="temperature"):
        generate(model, token_ids(1, 3), 1, temperature=-1)
    with pytest.raises(InputError, match="numbers of iterations"):
        loop_losses(model, [], [])
    assert Drawing(loops=4, how=Contrast(early=3)).counts(model) == [3, 4]


# ----------------------------------------------------------------------------------------------------------- reading
def test_a_damaged_looped_run_is_named(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config: dict[str, Any] = json.loads((copy / "config.json").read_text())
    config["config"]["model"]["d_model"] = 32
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="is of another model"):
        load_trained(copy)
    config["config"]["model"]["kind"] = "spiral"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="unknown kind of model"):
        load_trained(copy)
    with pytest.raises(InputError, match="another kind of model"):
        trained_model(run)
    (copy / "config.json").unlink()
    assert not is_run(copy)


def test_a_model_that_does_not_fit_into_memory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **settings: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 4 TB")

    monkeypatch.setattr("layerrope.commands.train.train", full)
    assert cli.main(["train", "--tier", "loop-micro", "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("error: the model or its batch does not fit into memory")
    monkeypatch.setattr("layerrope.commands.train.train", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("else")))
    with pytest.raises(RuntimeError, match="else"):
        cli.main(["train", "--tier", "loop-micro", "--steps", "1", "--out", str(tmp_path / "run")])
