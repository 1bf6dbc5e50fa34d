"""Probes of looped models, by executed depth, and of Vision Transformers: against the models themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import token_ids
from test_kinds import LOOPED, VISION
from torch import Tensor, nn

from layerrope import cli
from layerrope.looping.looped import LoopedConfig, LoopedLM
from layerrope.model import IGNORED
from layerrope.probes import CHEAP, PROBES, Batches, Options, Trunk, probe
from layerrope.stream import executed
from layerrope.train import train
from layerrope.training.kinds import LoopedTrainConfig, Model, VisionTrainConfig
from layerrope.training.recipe import TrainConfig
from layerrope.training.run_folder import read_metrics
from layerrope.vision.vit import ViT, ViTConfig

torch.set_num_threads(1)
TEXT = LoopedConfig(prelude=1, core=2, coda=1, loops=3, n_head=2, d_model=16, d_ff=24, vocab_size=31, seq_len=12)
IMAGES = ViTConfig(image_size=8, patch_size=4, n_layer=3, n_head=2, d_model=16, d_ff=24, init_std=0.2)
LOOPABLE = ("prenorm", "layerrope", "lns", "hc+layerrope", "mhc", "keel")
SEEN = ("prenorm", "layerrope", "postnorm", "hc", "attnres", "nanochat")


def shaken(model: Model) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model.eval()


def looped(scheme: str = "layerrope", **changes: Any) -> LoopedLM:
    return shaken(LoopedLM(replace(TEXT, scheme=scheme, **changes)))


def vit(scheme: str = "layerrope", **changes: Any) -> ViT:
    return shaken(ViT(replace(IMAGES, scheme=scheme, **changes)))


def text(windows: int = 6) -> Batches:
    ids, targets = token_ids(windows, 12, seed=5), token_ids(windows, 12, seed=6)
    return list(zip(ids.split(4), targets.split(4), strict=True))


def pictures(n: int = 6) -> Batches:
    generator = torch.Generator().manual_seed(2)
    images, labels = torch.randn(n, 1, 8, 8, generator=generator), torch.randint(10, (n,), generator=generator)
    return list(zip(images.split(4), labels.split(4), strict=True))


def loss_of(model: nn.Module, batches: Batches) -> float:
    whole = [torch.cat(part) for part in zip(*batches, strict=True)]
    return float(model(*whole).detach())


def pair(kind: str, scheme: str) -> tuple[Any, Batches]:
    return (looped(scheme), text()) if kind == "looped" else (vit(scheme), pictures())


BOTH = pytest.mark.parametrize(
    ("kind", "scheme"), [*(("looped", s) for s in LOOPABLE), *(("vit", s) for s in SEEN)], ids=lambda x: x
)


# ------------------------------------------------------------------------------------------------ the same model
@BOTH
def test_the_trunk_is_the_model_bit_for_bit(kind: str, scheme: str) -> None:
    model, batches = pair(kind, scheme)
    trunk = Trunk.of(model, batches[0][0])
    assert torch.equal(trunk.stream(trunk.states()[-1]), model.hidden(batches[0][0]))
    assert torch.equal(trunk.stream(trunk.run(range(trunk.n_layer), trunk.first)), model.hidden(batches[0][0]))


@pytest.mark.parametrize("shape", [{"prelude": 0}, {"coda": 0}, {"prelude": 0, "coda": 0, "loops": 1}, {"loops": 5}])
def test_the_trunk_of_a_loop_without_ends(shape: dict[str, int]) -> None:
    model, ids = looped("hc+layerrope", **shape), text()[0][0]
    trunk = Trunk.of(model, ids)
    assert trunk.n_layer == model.config.depth(model.config.loops)
    assert torch.equal(trunk.stream(trunk.states()[-1]), model.hidden(ids))


def test_layers_are_executed_in_the_order_of_the_loop() -> None:
    assert executed(looped()) == [0, 1, 2, 1, 2, 1, 2, 3]
    assert executed(vit()) == [0, 1, 2]


@BOTH
def test_every_probe_gives_plain_data_and_leaves_the_model_alone(kind: str, scheme: str) -> None:
    model, batches = pair(kind, scheme)
    before, state = {n: p.clone() for n, p in model.state_dict().items()}, torch.get_rng_state()
    document = probe(model.train(), batches * (2 if kind == "looped" else 5), options=Options(vectors=1))
    assert json.loads(json.dumps(document, allow_nan=False))["kind"] == kind
    assert document["probes"].keys() == PROBES.keys()
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert document["loss"] == pytest.approx(loss_of(model.eval(), batches), rel=1e-5)
    assert document["probes"]["lens"]["loss"][-1] == pytest.approx(document["loss"], rel=1e-5)
    assert len(document["probes"]["drop"]["change"]) == document["n_layer"] == len(executed(model))


# -------------------------------------------------------------------------------------------------- known values
@pytest.mark.parametrize("scheme", ["layerrope", "hc"])
def test_layers_that_write_nothing_give_the_values_of_nothing(scheme: str) -> None:
    """A looped model starts like that; what stands between its parts is no layer's doing."""
    still = ViT(replace(IMAGES, scheme=scheme))
    for name, p in still.named_parameters():
        if ".f.o." in name or ".f.down." in name:
            nn.init.zeros_(p)
    for model, batches in ((LoopedLM(replace(TEXT, scheme=scheme)), text(30)), (still, pictures(60))):
        of = probe(model, batches, options=Options(vectors=0))["probes"]
        L = len(executed(model))
        assert of["angle"]["neighbour"] == pytest.approx([0.0] * L, abs=1e-6)
        assert of["update"]["ratio"] == [0.0] * 2 * L
        assert of["jacobian"]["distance"] == pytest.approx([0.0] * L, abs=1e-6)
        assert of["drop"]["ratio"] == pytest.approx([1.0] * L)
        assert of["swap"]["permutation_score"] == pytest.approx(0.0, abs=1e-6)
        assert of["affine"]["ratio"] == pytest.approx([1.0] * L, abs=1e-5)


def test_leaving_out_the_last_layer_is_a_model_with_a_shorter_coda() -> None:
    model = looped("prenorm", coda=2, value_embed=False)
    of = probe(model, text(), ["drop"])["probes"]["drop"]
    shorter = LoopedLM(replace(model.config, coda=1)).eval()
    shorter.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("layers.4.")})
    assert of["loss"] + of["change"][-1] == pytest.approx(loss_of(shorter, text()), rel=1e-5)


def test_leaving_out_a_layer_of_one_iteration_keeps_the_others() -> None:
    """Against a model whose core layer is taken away in that iteration alone."""
    model, (batch, *_) = looped("layerrope"), text(4)
    ids, targets = batch
    calls = 0

    def skip_third(layer: nn.Module, given: Any, state: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        return given[0] if calls == 2 else None

    handle = model.layers[2].register_forward_hook(skip_third)
    without = float(model(ids, targets).detach())
    handle.remove()
    of = probe(model, [batch], ["drop"])["probes"]["drop"]
    assert of["loss"] + of["change"][4] == pytest.approx(without, rel=1e-6)  # depths 0, 1 2, 1 2, ...: layer 2 again


def test_leaving_out_and_exchanging_layers_of_a_vision_model() -> None:
    model = vit("prenorm")
    of = probe(model, pictures(), ["drop", "swap"])["probes"]
    two = ViT(replace(model.config, n_layer=2)).eval()
    kept = {f"layers.{old}.": f"layers.{new}." for old, new in ((0, 0), (2, 1))}
    weights = {n: p for n, p in model.state_dict().items() if not n.startswith("layers.")}
    for old, new in kept.items():
        weights |= {n.replace(old, new): p for n, p in model.state_dict().items() if n.startswith(old)}
    two.load_state_dict(weights)
    assert of["drop"]["loss"] + of["drop"]["change"][1] == pytest.approx(loss_of(two, pictures()), rel=1e-5)
    model.layers = nn.ModuleList(model.layers[i] for i in (1, 0, 2))
    assert of["swap"]["loss"] + of["swap"]["change"][0] == pytest.approx(loss_of(model, pictures()), rel=1e-5)


@pytest.mark.parametrize("kind", ["looped", "vit"])
def test_gradients_are_those_of_a_backward_pass(kind: str) -> None:
    """Through all iterations: a looped model is probed in evaluation mode, where none is cut off."""
    model, batches = pair(kind, "layerrope")
    if kind == "looped":
        model.config = replace(model.config, grad_loops=model.config.loops)
    of = probe(model, batches, ["gradient"])["probes"]["gradient"]
    model(*(torch.cat(part) for part in zip(*batches, strict=True))).backward()
    grads = [[p.grad.flatten() for p in layer.parameters() if p.grad is not None] for layer in model.layers]
    assert of["weights"] == pytest.approx([float(torch.cat(each).norm()) for each in grads], rel=1e-4)
    assert len(of["stream"]) == len(executed(model)) + 1


@pytest.mark.parametrize("kind", ["looped", "vit"])
def test_gains_are_the_table_at_the_executed_depth(kind: str) -> None:
    model, batches = pair(kind, "layerrope")
    assert model.gains is not None
    table = model.gains(len(executed(model))).square().mean(-1).sqrt()
    of = probe(model, batches, ["gains"])["probes"]["gains"]
    assert of["rms"]["attn_read"] == pytest.approx(table[:, 0, 0].tolist(), rel=1e-5)
    assert len(of["angle"]["mlp_write"]) == len(executed(model))


def test_images_without_a_label_do_not_count() -> None:
    model, (batch, *_) = vit(), pictures(4)
    images, labels = batch[0], batch[1].clone()
    labels[2:] = IGNORED
    other = images.clone()
    other[2:] = 0.0
    one, two = (probe(model, [(x, labels)])["probes"] for x in (images, other))
    assert one["lens"]["loss"] == pytest.approx(two["lens"]["loss"], rel=1e-5)
    assert one["stream"]["rms"] == pytest.approx(two["stream"]["rms"], rel=1e-5)
    assert one["collapse"]["stable_rank"] == pytest.approx(two["collapse"]["stable_rank"], rel=1e-4)
    assert one["gradient"]["stream"] == pytest.approx(two["gradient"]["stream"], rel=1e-4)


# ------------------------------------------------------------------------------------------------------- the runs
@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    for name, config in (("looped", LOOPED), ("vision", VISION)):
        assert train(replace(config, steps=2), folder / name).status == "done"
    return {name: folder / name for name in ("looped", "vision")}


QUICK = ("--tokens", "64", "--threads", "1", "--vectors", "1", "--no-png")


def test_the_command_reads_runs_of_every_kind(runs: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    sources = [str(path) for path in runs.values()]
    assert cli.main(["probe", *sources, *QUICK, "--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [(d["kind"], d["n_layer"]) for d in found] == [("looped", 5), ("vit", 2)]
    assert "tokens of images" in said.err
    assert "Layers probed" in (tmp_path / "probe.html").read_text()
    step = next((runs["looped"] / "checkpoints").glob("step-*"))
    words = ["probe", str(step), *QUICK, "--loops", "5", "--out", str(tmp_path / "five"), "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)[0]["n_layer"] == 7


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vision", "--loops", "3"], "only looped models"),
        (["looped", "--loops", "0"], "loops must lie between 1 and"),
        (["vision", "--text", "missing.npz"], "no images at"),
        (["looped", "--text", "missing.txt"], "missing.txt"),
    ],
)
def test_what_a_run_does_not_have_is_one_line(
    words: list[str], says: str, runs: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    assert cli.main(["probe", str(runs[words[0]]), *words[1:], *QUICK, "--out", str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("config", [LOOPED, VISION], ids=["looped", "vision"])
def test_probing_while_training_moves_no_number(config: TrainConfig, tmp_path: Path) -> None:
    assert isinstance(config, LoopedTrainConfig | VisionTrainConfig)
    config = replace(config, steps=4, log_every=2)
    plain = train(config, tmp_path / "plain")
    probed = train(replace(config, probe_every=2), tmp_path / "probed")
    assert (probed.train_loss, probed.val_loss) == (plain.train_loss, plain.val_loss)
    lines = [row["probes"] for row in read_metrics(tmp_path / "probed" / "metrics.jsonl") if "probes" in row]
    assert len(lines) == 2
    assert set(CHEAP) <= lines[0].keys()
