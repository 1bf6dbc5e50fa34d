"""Probes on trained runs: the command, its files and its refusals; and probes while training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_run import curve, run, same, tensors, toy_config

from layerrope import cli
from layerrope.probes import CHEAP, PROBES, TrainingProbe, training_cost
from layerrope.probes.charts import GROUPS, Panel, figures, left_out, points
from layerrope.probes.reading import default_folder
from layerrope.training.run_folder import read_metrics

SMALL = ["--n-layer", "2", "--n-head", "1", "--d-model", "8", "--d-ff", "16", "--seq-len", "32", "--threads", "1"]
TRAIN = ["--steps", "3", "--batch-size", "2", "--eval-tokens", "256", "--json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three trained runs on the embedded text."""
    folder = tmp_path_factory.mktemp("runs")
    made = {name: folder / name for name in ("prenorm", "layerrope", "attnres")}
    for name, path in made.items():
        assert cli.main(["train", "--scheme", name, *SMALL, *TRAIN, "--out", str(path)]) == 0
    return made


def probed(*words: object) -> int:
    return cli.main(["probe", *map(str, words)])


QUICK = ("--tokens", "512", "--threads", "1", "--vectors", "2")


# -------------------------------------------------------------------------------------------------------- the command
def test_a_run_is_probed_into_its_folder(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert probed(runs["prenorm"], *QUICK, "--json") == 0
    said = capsys.readouterr()
    (document,) = json.loads(said.out)
    folder = runs["prenorm"] / "probes"
    assert json.loads((folder / "probe.json").read_text()) == [document]
    assert document["probes"].keys() == document["seconds"].keys() == PROBES.keys()
    assert (document["tokens"], document["windows"], document["text"]) == (512, 16, "embedded")
    assert "<canvas" not in (folder / "probe.html").read_text().split("<script")[0]
    assert {p.stem for p in (folder / "charts").glob("*.png")} >= {group.name for group in GROUPS}
    assert "probed on 512 tokens in" in said.err
    assert sorted(p.name for p in runs["prenorm"].iterdir() if p.is_dir()) == ["checkpoints", "probes"]


def test_several_models_share_charts_and_one_says_what_does_not_compare(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probed(*runs.values(), *QUICK, "--out", tmp_path, "--no-png") == 0
    said = capsys.readouterr()
    assert "attnres: not comparable with other schemes: stream.rms, stream.variance" in said.err.replace("\n", " ")
    assert "evaluations" in said.out
    documents = json.loads((tmp_path / "probe.json").read_text())
    assert [d["scheme"] for d in documents] == ["prenorm", "layerrope", "attnres"]
    page = (tmp_path / "probe.html").read_text()
    assert "What does not compare" in page
    assert "Without attnres (root mean square, variance)" in page
    assert not (tmp_path / "charts").exists()


def test_a_checkpoint_gives_what_its_run_gives(runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("layerrope.loading")
    (step,) = (runs["layerrope"] / "checkpoints").glob("step-*")
    for source, name in ((runs["layerrope"], "run"), (step, "step")):
        assert probed(source, *QUICK, "--probes", "stream", "lens", "--out", tmp_path / name, "--no-png") == 0
    one, other = (json.loads((tmp_path / name / "probe.json").read_text())[0] for name in ("run", "step"))
    assert one["probes"] == other["probes"]
    assert default_folder(str(step)) == runs["layerrope"] / "probes" / step.name
    assert default_folder(str(runs["layerrope"])) == runs["layerrope"] / "probes"
    assert default_folder("elsewhere/model") == Path("probes")


def test_other_text_gives_other_losses(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("\n\n".join(f"{i} {'zebra quilt ' * 40}" for i in range(60)))
    words = ("--probes", "drop", "--no-png", "--no-html")
    assert probed(runs["prenorm"], *QUICK, *words, "--out", tmp_path / "own") == 0
    assert probed(runs["prenorm"], *QUICK, *words, "--out", tmp_path / "o", "--text", tmp_path / "other.txt") == 0
    own, other = (json.loads((tmp_path / name / "probe.json").read_text())[0] for name in ("own", "o"))
    assert own["loss"] != other["loss"]
    assert own["loss"] == pytest.approx(own["probes"]["drop"]["loss"])
    assert not (tmp_path / "own" / "probe.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere"),
        (["RUN", "--probes", "lense"], "did you mean lens"),
        (["RUN", "--tokens", "0"], "tokens must be at least 1"),
        (["RUN", "--batch", "0"], "batch must be at least 1"),
        (["RUN", "--vectors", "-1"], "vectors must be at least 0"),
        (["RUN", "--device", "gpu"], "gpu"),
        (["RUN", "--text", "missing.txt"], "missing.txt"),
        ([], "name a run"),
        (["RUN", "--vektors", "3"], "did you mean --vectors"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    given = [str(runs["prenorm"]) if word == "RUN" else word for word in words]
    assert probed(*given, "--out", tmp_path / "out") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message.lower() in said.err.lower()
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = toy_config()
    run(config, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"):
        file.unlink()
    assert probed(tmp_path / "run") == 2
    assert capsys.readouterr().err.startswith("error: ")


# --------------------------------------------------------------------------------------------------------- the charts
def document(scheme: str, **apart: str) -> dict[str, Any]:
    probes = {
        "stream": {"rms": [1.0, 2.0, None], "variance": [1.0, 4.0, 9.0]},
        "swap": {"pairs": [[0, 1], [0, 2], [1, 2]], "change": [0.1, 0.2, 0.3], "standard_error": [None] * 3},
        "jacobian": {"distance": None},
    }
    return {"scheme": scheme, "probes": probes, "not_comparable": apart}


def test_panels_show_the_values_at_their_depth() -> None:
    one = document("prenorm")
    assert points(one, Panel("stream.rms", "", x=lambda i: i / 2)) == [
        (0.0, 1.0, None),
        (0.5, 2.0, None),
        (1.0, None, None),
    ]
    assert points(one, Panel("stream.variance", "", only=(1, 2))) == [(0.0, 4.0, None)]
    assert points(one, Panel("swap.change", "", error="swap.standard_error")) == [(0.0, 0.1, None), (1.0, 0.3, None)]
    assert points(one, Panel("jacobian.distance", "")) == points(one, Panel("lens.loss", "")) == []


def test_a_model_that_does_not_compare_is_drawn_alone_only() -> None:
    apart = document("attnres", **{"stream.rms": "no sum"})
    assert left_out({"a": apart}, "stream.rms") == {}
    assert left_out({"a": apart, "b": apart}, "stream.rms") == {}
    assert left_out({"a": apart, "b": document("prenorm")}, "stream.rms") == {"a": "no sum"}
    assert left_out({"a": apart, "b": document("prenorm")}, "stream.variance") == {}
    assert {figure.name for figure in figures({"a": apart})} == {"stream", "loss-change"}


# ---------------------------------------------------------------------------------------------------- while training
def test_training_is_the_same_bit_for_bit_with_the_probes_of_every_step(tmp_path: Path) -> None:
    run(toy_config(), tmp_path / "alone")
    run(toy_config(probe_every=1), tmp_path / "probed")
    assert same(tensors(tmp_path / "alone"), tensors(tmp_path / "probed"))
    assert curve(tmp_path / "alone") == curve(tmp_path / "probed")
    lines = read_metrics(tmp_path / "probed" / "metrics.jsonl")
    assert all(line["probes"].keys() == {*CHEAP, "tokens", "seconds"} for line in lines)
    assert len(lines[0]["probes"]["stream"]["rms"]) == 5
    assert lines[0]["probes"]["tokens"] == 4 * 6  # of 8 targets a window, two are ignored


def test_the_cost_of_probing_is_a_share_of_the_run(tmp_path: Path) -> None:
    run(toy_config(probe_every=6), tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    cost = training_cost(lines)
    assert cost is not None
    spent = [line["probes"]["seconds"] for line in lines if "probes" in line]
    assert len(spent) == 2
    assert cost[0] == pytest.approx(sum(spent))
    assert 0 < cost[1] < 1
    assert training_cost([{"step": 1, "seconds": 1.0}]) is training_cost([]) is None


def test_probes_of_ones_own_choice(tmp_path: Path) -> None:
    config = toy_config(probe_every=6)
    run(config, tmp_path / "run", probes=[TrainingProbe(["lens", "collapse"])])
    line = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert line["probes"].keys() == {"lens", "collapse", "tokens", "seconds"}


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"checkpointing": True}, {"micro_batch": 2}])
def test_probes_run_beside_what_a_run_may_do(changes: dict[str, Any], tmp_path: Path) -> None:
    run(toy_config(**changes), tmp_path / "alone")
    run(toy_config(probe_every=4, **changes), tmp_path / "probed")
    assert same(tensors(tmp_path / "alone"), tensors(tmp_path / "probed"))


def test_the_command_says_what_probing_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--scheme", "hc", *SMALL, *TRAIN, "--probe-every", "2", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "done"
    assert "probing took" in said.err
    assert "probes" in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
