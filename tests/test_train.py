"""The training loop: the same numbers however a run is cut, split, evaluated or resumed."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from toy_run import T, Toy, V, curve, run, same, tensors, toy_config, until

from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.model import IGNORED, LM
from layerrope.train import TrainConfig, train
from layerrope.training import machine
from layerrope.training.evaluation import evaluate, undisturbed
from layerrope.training.optim import total_norm
from layerrope.training.run_folder import RunFolder, read_metrics, read_result
from layerrope.training.session import Report, Session

torch.set_num_threads(1)


def session(config: TrainConfig, path: Path) -> Session:
    return Session(config, RunFolder(path), torch.device("cpu"), Toy(config.data), None, ())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ whole runs
def test_a_run_learns_and_a_finished_one_is_only_read(tmp_path: Path) -> None:
    result = run(toy_config(steps=60), tmp_path)
    losses = [loss for _, loss, _, _ in curve(tmp_path)]
    assert (result.status, result.step, result.tokens) == ("done", 60, 60 * 4 * 6)
    assert losses[0] == pytest.approx(math.log(V), abs=0.05)
    assert losses[-1] < losses[0] - 0.3
    assert result.train_loss == pytest.approx(sum(losses[-3:]) / 3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "lock"}
    assert run(toy_config(steps=60), tmp_path) == result == read_result(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "lock"}


def test_config_json_repeats_the_run(tmp_path: Path) -> None:
    from layerrope.training.recipe import from_json

    first = run(toy_config(), tmp_path / "a")
    saved = json.loads((tmp_path / "a" / "config.json").read_text())
    again = run(from_json(TrainConfig, saved["config"]), tmp_path / "b")
    assert saved["key"] == first.key == again.key
    assert saved["versions"]["torch"] == torch.__version__
    assert (again.val_loss, again.train_loss) == (first.val_loss, first.train_loss)


def test_the_log_averages_over_the_tokens_since_the_last_line(tmp_path: Path) -> None:
    run(toy_config(), tmp_path / "each")
    run(toy_config(log_every=5), tmp_path / "five")
    each, five = curve(tmp_path / "each"), curve(tmp_path / "five")
    assert [step for step, *_ in five] == [5, 10, 12]
    assert five[0][1] == pytest.approx(sum(loss for _, loss, _, _ in each[:5]) / 5)
    assert five[2][1] == pytest.approx((each[10][1] + each[11][1]) / 2)


def test_fresh_starts_over_and_leaves_other_files(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    result = run(toy_config(steps=3), tmp_path, resume=False)
    assert (result.step, len(curve(tmp_path))) == (3, 3)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("theirs", ['{"model_type": "llama"}', "[]", "null", '{"key": 5, "config": {}}', None])
def test_fresh_removes_nothing_from_a_folder_of_somebody_else(tmp_path: Path, theirs: str | None) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.txt").write_text("mine")
    (tmp_path / ("result.json" if theirs is None else "config.json")).write_text(theirs or "{}")
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    for resume in (False, True):
        with pytest.raises(InputError, match=r"config\.json") as caught:
            run(toy_config(), tmp_path, resume=resume)
        assert "--fresh" not in str(caught.value)
    (tmp_path / "lock").unlink()
    assert {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_fresh_leaves_other_files_among_the_checkpoints(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    (tmp_path / "checkpoints" / "mine.txt").write_text("mine")
    run(toy_config(steps=3), tmp_path, resume=False)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["mine.txt", "step-3"]


def test_files_of_a_run_without_its_config_are_refused(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    (tmp_path / "config.json").unlink()
    for name in ("result.json", "metrics.jsonl", "checkpoints"):
        with pytest.raises(InputError, match=f"has {name} but no config.json"):
            run(toy_config(lr=0.5), tmp_path)
        (tmp_path / name).rename(tmp_path / f"old {name}")
    assert run(toy_config(lr=0.5), tmp_path).status == "done"


def test_results_and_checkpoints_of_another_run_are_refused(tmp_path: Path) -> None:
    run(toy_config(), tmp_path / "a")
    run(toy_config(lr=0.5), tmp_path / "b")
    (tmp_path / "a" / "config.json").write_bytes((tmp_path / "b" / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"result\.json is the result of another run"):
        run(toy_config(lr=0.5), tmp_path / "a")
    (tmp_path / "a" / "result.json").unlink()
    with pytest.raises(InputError, match="step-12 is of another run"):
        run(toy_config(lr=0.5), tmp_path / "a")


def test_a_run_resumed_with_other_rounding_is_read_again(tmp_path: Path) -> None:
    run(toy_config(), tmp_path, stop=until(3))
    done = run(toy_config(micro_batch=2), tmp_path)
    assert run(toy_config(), tmp_path) == run(toy_config(micro_batch=2), tmp_path) == done


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": []}, "config is not an object"),
        ({"config": None}, "config is not an object"),
        ({"data": 5}, "data is not an object"),
        ({"data": None}, "data is not an object"),
        ({"key": None}, "key is not a text"),
    ],
)
def test_a_config_json_of_another_shape_is_refused_by_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run(toy_config(), tmp_path, stop=until(3))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        run(toy_config(), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"status": 3},
        {"step": "x"},
        {"val_loss": "low"},
        {"val_loss": math.nan},
        {"val_loss": math.inf},
        {"val_loss": -1.0},
        {"seconds": None},
    ],
)
def test_a_result_of_another_shape_is_refused_by_field(tmp_path: Path, change: dict[str, Any]) -> None:
    run(toy_config(), tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=rf"result\.json.*{next(iter(change))}"):
        run(toy_config(), tmp_path)


def test_metrics_that_are_a_folder_are_refused(tmp_path: Path) -> None:
    run(toy_config(), tmp_path, stop=until(3))
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        run(toy_config(), tmp_path)


# ---------------------------------------------------------------------------------------------------------- resume
class Counted(Toy):
    """Remembers which steps were asked for."""

    def batch(self, step: int, batch_size: int, **options: Any) -> tuple[Tensor, Tensor]:
        asked.append(step)
        return super().batch(step, batch_size, **options)


asked: list[int] = []


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cut_three_times_and_resumed_is_the_same_bit_for_bit(tmp_path: Path, optimizer: str, precision: str) -> None:
    """RSM-2, RSM-3: weights, moments, step counts, random state, losses; each batch is used once."""
    config = toy_config(optimizer=optimizer, precision=precision, weight_decay=0.1, micro_batch=2, log_every=5)
    whole = run(config, tmp_path / "whole")
    asked.clear()
    for count in (3, 4, 2, 100):
        cut = run(config, tmp_path / "cut", data=Counted(config.data), stop=until(count))
    assert asked == list(range(12))
    assert (cut.train_loss, cut.val_loss, cut.tokens) == (whole.train_loss, whole.val_loss, whole.tokens)
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert same(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))


def test_random_numbers_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with noise in it: the random state is part of a checkpoint, and evaluation draws from another one."""
    real = LM.hidden

    def noisy(model: LM, ids: Tensor, caches: None = None) -> Tensor:
        h = real(model, ids, caches)
        return h + 0.1 * torch.randn_like(h)

    monkeypatch.setattr(LM, "hidden", noisy)
    run(toy_config(), tmp_path / "whole")
    config = toy_config(eval_every=3)
    for count in (4, 5, 100):
        run(config, tmp_path / "cut", stop=until(count))
    assert [row[:3] for row in curve(tmp_path / "cut")] == [row[:3] for row in curve(tmp_path / "whole")]
    assert same(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))


def test_a_killed_runs_half_line_and_later_lines_are_dropped(tmp_path: Path) -> None:
    config = toy_config(checkpoint_every=4)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop=until(4))
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 1.0, "grad_norm": 1.0}\n{"step": 6, "lo')
    run(config, tmp_path / "cut")
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")


def test_a_folder_with_another_config_is_refused_by_field(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    for change, message in (
        ({"lr": 2e-2}, r"lr is 0.01 there, 0.02 here"),
        ({"steps": 24}, r"steps is 12 there, 24 here.*schedule would change"),
        ({"scheme": "prenorm"}, r"model.scheme is layerrope there, prenorm here"),
    ):
        with pytest.raises(InputError, match=message):
            run(toy_config(**change), tmp_path)
    run(toy_config(log_every=7, keep_checkpoints=1), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_changed_text_is_refused(tmp_path: Path) -> None:
    class Other(Toy):
        def summary(self) -> dict[str, Any]:
            return {"source_sha256": "other"}

    run(toy_config(), tmp_path, stop=until(3))
    with pytest.raises(InputError, match="data source_sha256 is toy there, other here"):
        run(toy_config(), tmp_path, data=Other(toy_config().data))


def test_optimiser_state_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """RSM-3: moments are never silently started anew."""
    from layerrope.training import checkpoint

    run(toy_config(), tmp_path, stop=until(3))
    folder = tmp_path / "checkpoints"
    found = checkpoint.load(folder / "step-3")
    moments = {k: v for k, v in found.tensors["optimizer"].items() if "gains" not in k}
    (folder / "step-3").rename(folder / "old")
    checkpoint.save(folder, 3, checkpoint.Checkpoint(dict(found.tensors) | {"optimizer": moments}, found.state))
    with pytest.raises(InputError, match=r"optimiser state exp_avg/gains\.\w+ is missing"):
        run(toy_config(), tmp_path)


@pytest.mark.parametrize(
    "change", [{"stateless": None}, {"stateless": 3}, {"stepz": 3}, {"tail": None}, {"tail": [0.0, "x"]}]
)
def test_a_sound_checkpoint_with_other_contents_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    from layerrope.training import checkpoint

    run(toy_config(), tmp_path, stop=until(3))
    folder = tmp_path / "checkpoints"
    found = checkpoint.load(folder / "step-3")
    (folder / "step-3").rename(folder / "old")
    checkpoint.save(folder, 3, checkpoint.Checkpoint(found.tensors, dict(found.state) | change))
    with pytest.raises(InputError, match="step-3 is of another version of this package") as caught:
        run(toy_config(), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_fails_without_a_word_is_refused_with_the_kind_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(toy_config(), tmp_path, stop=until(3))

    def silent(*_: Any) -> None:
        raise KeyError

    monkeypatch.setattr("layerrope.training.session._set_rng", silent)
    with pytest.raises(InputError, match=r"of another version of this package: KeyError$"):
        run(toy_config(), tmp_path)


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    from layerrope.training import checkpoint
    from layerrope.training.trained import load_trained

    run(toy_config(), tmp_path, stop=until(3))
    folder = tmp_path / "checkpoints"
    found = checkpoint.load(folder / "step-3")
    other = {name: torch.zeros(2, 3) if name == "embed.weight" else t for name, t in found.tensors["model"].items()}
    (folder / "step-3").rename(folder / "old")
    checkpoint.save(folder, 3, checkpoint.Checkpoint(dict(found.tensors) | {"model": other}, found.state))
    with pytest.raises(InputError, match=r"is of another model \(.*size mismatch for embed\.weight") as caught:
        load_trained(str(tmp_path))
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- losses, gradients
def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro", [1, 2, 3, 6])
def test_losses_and_gradients_are_means_over_tokens_however_a_batch_is_split(tmp_path: Path, micro: int) -> None:
    """TRN-1, with rows of 2, 6 and 0 counted targets among others."""
    ids, targets = Toy(DataConfig(seq_len=T)).windows(6, 3)
    targets = torch.where(targets == IGNORED, 1, targets)
    targets[0, 2:] = IGNORED
    targets[1, 6:] = IGNORED
    targets[4, :] = IGNORED
    config = toy_config(batch_size=6)
    whole = LM(config.model, seed=config.seed)
    F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED).backward()
    split = session(replace(config, micro_batch=micro), tmp_path)
    losses, counted = split._forward_backward(ids, targets)
    assert counted == int((targets != IGNORED).sum()) == 2 + 6 + 3 * 8
    wanted = F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    assert float(sum(losses)) / counted == pytest.approx(wanted.item(), rel=1e-6)
    for name, grad in gradients(whole).items():
        torch.testing.assert_close(gradients(split.model)[name], grad, rtol=1e-4, atol=1e-7)


def test_the_mean_of_the_means_would_be_wrong(tmp_path: Path) -> None:
    """TRN-1's numbers: 2 tokens with mean 4, 6 with mean 2, and a part with none: 2.5, not 3."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def loss_sum(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            counted = (targets != IGNORED).sum()
            return self.w * ids[:, 0].float().sum() * counted, counted

    three = session(toy_config(batch_size=3, micro_batch=1), tmp_path)
    three.model = Fixed()  # type: ignore[assignment]
    targets = torch.full((3, 8), IGNORED)
    targets[0, :2] = targets[1, :6] = 1
    losses, counted = three._forward_backward(torch.tensor([[4], [2], [7]]), targets)
    assert float(sum(losses)) / counted == 2.5
    assert three.model.w.grad.item() == 2.5  # type: ignore[union-attr]


def test_a_batch_with_every_target_ignored_changes_nothing_and_is_no_nan(tmp_path: Path) -> None:
    class Empty(Toy):
        def batch(self, step: int, batch_size: int, **options: Any) -> tuple[Tensor, Tensor]:
            ids, targets = super().batch(step, batch_size, **options)
            return ids, torch.full_like(targets, IGNORED)

    config = toy_config(steps=2)
    result = run(config, tmp_path, data=Empty(config.data))
    assert (result.status, result.tokens, result.train_loss) == ("done", 0, None)
    start = LM(config.model, seed=config.seed).state_dict()
    assert same(load_file(tmp_path / "checkpoints" / "step-2" / "model.safetensors"), start)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "paper"])
def test_the_loss_is_computed_in_fp32_in_every_precision(precision: str) -> None:
    """TRN-3: logits scaled so that the loss is large; nearby losses differ in fine steps."""
    model = LM(toy_config().model, seed=1)
    with torch.no_grad():
        model.head.weight.mul_(1300)
    exact = [model(*Toy(DataConfig(seq_len=T)).windows(4, step)).item() for step in range(5)]
    machine.cast(model, precision)
    found = []
    for step in range(5):
        with machine.autocast(torch.device("cpu"), precision):
            loss = model(*Toy(DataConfig(seq_len=T)).windows(4, step))
        assert loss.dtype == torch.float32
        found.append(loss.item())
    assert min(exact) > 15
    assert all(value * 32 % 1 for value in found), "losses in steps of a bf16 number of this size"
    limit = 1e-6 if precision == "fp32" else 0.05
    assert found == [pytest.approx(value, rel=limit) for value in exact]


def test_paper_precision_keeps_gains_and_norms_in_fp32(tmp_path: Path) -> None:
    run(toy_config(precision="paper"), tmp_path)
    found = tensors(tmp_path)
    fp32 = {name for name, t in found.items() if t.dtype == torch.float32 and name.startswith("model.")}
    assert fp32 == {"model.norm.weight", *(n for n in found if n.startswith("model.gains."))}
    assert found["model.layers.0.attn.f.q.weight"].dtype == torch.bfloat16
    assert found["optimizer.exp_avg/gains.gamma"].dtype == torch.float32


def test_clipping_limits_the_gradient_and_logs_it_unclipped(tmp_path: Path) -> None:
    clipped = session(toy_config(clip=0.01), tmp_path)
    seen: list[float] = []
    clipped.optimizers.step = lambda factor: seen.append(float(total_norm(clipped.model.parameters())))  # type: ignore[method-assign]
    clipped.update()
    assert seen == [pytest.approx(0.01, rel=1e-3)]
    assert clipped.at.grad_norm is not None
    assert clipped.at.grad_norm > 0.1


# ------------------------------------------------------------------------------------------------------- evaluation
def test_training_is_the_same_with_and_without_evaluation_and_probes(tmp_path: Path) -> None:
    def probe(model: LM, ids: Tensor, targets: Tensor) -> dict[str, float]:
        torch.rand(3)
        model(ids, targets).backward()
        return {"norm": float(total_norm(model.parameters()))}

    run(toy_config(), tmp_path / "plain")
    run(toy_config(eval_every=2, probe_every=3), tmp_path / "watched", probes=[probe])
    assert same(tensors(tmp_path / "plain"), tensors(tmp_path / "watched"))
    plain, watched = curve(tmp_path / "plain"), curve(tmp_path / "watched")
    assert [row[:3] for row in plain] == [row[:3] for row in watched]
    assert [row[3] is not None for row in watched] == [step % 2 == 0 for step in range(1, 13)]
    probed = [row["step"] for row in read_metrics(tmp_path / "watched" / "metrics.jsonl") if "probes" in row]
    assert probed == [3, 6, 9, 12]


def test_evaluation_leaves_modes_random_state_and_gradients_alone() -> None:
    model = LM(toy_config().model)
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    before = torch.get_rng_state()
    with undisturbed(model):
        torch.rand(5)
        assert not any(module.training for module in model.modules())
    evaluate(model, Toy(DataConfig(seq_len=T)).eval_batches(4))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in model.parameters())


def test_the_callers_random_state_survives_a_run(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(toy_config(), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 64])
def test_evaluation_does_not_depend_on_its_batch_size(batch_size: int) -> None:
    model = LM(toy_config().model)
    ids, targets = next(Toy(DataConfig(seq_len=T)).eval_batches(10))
    wanted = F.cross_entropy(model(ids).double().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    found = evaluate(model, Toy(DataConfig(seq_len=T)).eval_batches(batch_size))
    assert found == pytest.approx(wanted.item(), rel=1e-6)


def test_evaluation_without_a_counted_target_is_nan() -> None:
    ids = torch.zeros(2, T, dtype=torch.int64)
    assert math.isnan(evaluate(LM(toy_config().model), [(ids, torch.full_like(ids, IGNORED))]))


# --------------------------------------------------------------------------------------------------------- diverged
@pytest.mark.parametrize("what", ["loss", "gradient", "validation loss"])
def test_a_diverged_run_is_a_result_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    real, calls = LM.loss_sum, iter(range(1, 99))

    def broken(model: LM, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        total, counted = real(model, ids, targets)
        if next(calls) != 5:
            return total, counted
        if what == "gradient":
            total.register_hook(lambda grad: grad * math.nan)
            return total, counted
        return total * math.nan, counted

    monkeypatch.setattr(LM, "loss_sum", broken)
    config = toy_config(eval_every=4) if what == "validation loss" else toy_config()
    result = run(config, tmp_path)
    monkeypatch.undo()
    at = 4 if what == "validation loss" else 5
    assert (result.status, result.diverged_at) == ("diverged", at)
    assert result.error == f"the {what} of step {at} is not finite"
    assert not list((tmp_path / "checkpoints").glob("*"))
    assert len(curve(tmp_path)) == at - 1
    assert run(config, tmp_path) == result
    json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


def test_a_learning_rate_far_too_high_diverges_without_an_exception(tmp_path: Path) -> None:
    result = run(toy_config(lr=1e30, warmup=0.0), tmp_path)
    assert result.status == "diverged"
    assert result.diverged_at is not None
    assert result.step == result.diverged_at - 1


# -------------------------------------------------------------------------------------------------------- interrupts
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_returns_and_the_old_handler_is_back(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def progress(report: Report) -> None:
        if report.step == 5:
            os.kill(os.getpid(), number)

    result = run(toy_config(), tmp_path / "cut", progress=progress)
    assert signal.getsignal(number) == before
    assert (result.status, result.step) == ("interrupted", 5)
    assert not (tmp_path / "cut" / "result.json").exists()
    run(toy_config(), tmp_path / "cut")
    run(toy_config(), tmp_path / "whole")
    assert same(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    def progress(report: Report) -> None:
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt):
        run(toy_config(), tmp_path, progress=progress)


def test_outside_the_main_thread_no_handler_is_set(tmp_path: Path) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(run(toy_config(), tmp_path)))
    thread.start()
    thread.join()
    assert results[0].status == "done"


# --------------------------------------------------------------------------------------------------------- bad input
class Untouchable:
    """Data that must not be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the data was asked for {name} before the machine was checked")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "warp"}, "unknown device 'warp'"),
        ({"device": "cuda:63"}, "cuda:63"),
        ({"device": "meta"}, "device meta does not compute"),
        ({"device": "cpu:7"}, "device cpu:7 does not compute"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": 10**9}, "threads must be at most 1024"),
        ({"track": ["tensorbord"]}, "unknown tracker 'tensorbord': did you mean tensorboard"),
    ],
)
def test_what_the_machine_cannot_serve_is_refused_first(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    data = {} if "threads" in options else {"data": Untouchable()}
    with pytest.raises(InputError, match=message):
        run(toy_config(), tmp_path / "run", **options, **data)
    assert not (tmp_path / "run" / "config.json").exists()


def test_bf16_where_there_is_none_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_computes", lambda device, dtype: False)
    for precision in ("bf16", "paper"):
        with pytest.raises(InputError, match=f"precision {precision} needs bf16, which device cpu does not have"):
            run(toy_config(precision=precision), tmp_path / "run", data=Untouchable())
    assert not (tmp_path / "run").exists()


def test_a_cpu_run_never_asks_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CMP-3: probing starts a driver and, on a shared machine, takes memory on every card."""

    def probed(*words: Any) -> Any:
        raise AssertionError("CUDA was probed for a run on the CPU")

    for name in ("is_available", "device_count", "is_bf16_supported", "init", "_lazy_init", "current_device"):
        monkeypatch.setattr(torch.cuda, name, probed)
    assert run(toy_config(precision="bf16"), tmp_path).status == "done"


def test_data_that_does_not_fit_the_run_is_refused(tmp_path: Path) -> None:
    config = toy_config()
    with pytest.raises(
        InputError, match="token ids run to 31, but the model's vocabulary has 31: set vocab_size to 32"
    ):
        run(config, tmp_path / "run", data=Toy(config.data, vocab_size=V + 1))
    with pytest.raises(InputError, match="made with another data config"):
        run(config, tmp_path / "run", data=Toy(replace(config.data, layout="padded")))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        run(toy_config(), tmp_path / "file" / "run")


def test_a_damaged_result_is_refused_by_name(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    for text in ("[]", '{"status": "done"}', "not json"):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(InputError, match=r"result\.json"):
            run(toy_config(), tmp_path)


# ---------------------------------------------------------------------------------------------------------- progress
def test_progress_is_told_every_step_and_remarks_are_warnings_without_it(tmp_path: Path) -> None:
    reports: list[Report] = []
    run(toy_config(log_every=4), tmp_path, progress=reports.append, stop=until(9))
    assert [r.kind for r in reports] == ["start", *["step"] * 9]
    assert [r.row["step"] for r in reports if r.row is not None] == [4, 8]
    assert reports[-1].seconds_left is not None
    assert reports[-1].tokens_per_second is not None
    with pytest.warns(RuntimeWarning, match="resumed at step 9"):
        train(toy_config(log_every=4), tmp_path, data=Toy(toy_config().data))  # type: ignore[arg-type]


def test_threads_are_set_for_the_run_alone(tmp_path: Path) -> None:
    seen: list[int] = []
    run(toy_config(steps=1), tmp_path, threads=2, progress=lambda report: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


class Recorder:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.closed = 0

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row["step"])

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    from layerrope.training import tracking

    found = Recorder()
    monkeypatch.setitem(tracking.TRACKERS, "json", lambda *words: found)
    return found


def test_trackers_get_every_line_and_are_closed(tmp_path: Path, recorder: Recorder) -> None:
    run(toy_config(log_every=5), tmp_path, track=["json"])
    assert (recorder.rows, recorder.closed) == ([5, 10, 12], 1)
