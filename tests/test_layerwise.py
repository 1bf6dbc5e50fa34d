"""torch.compile and activation checkpointing, layer by layer."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from toy_run import T, Toy, curve, run, same, tensors, toy_config, until

from layerrope.data import DataConfig
from layerrope.model import LM
from layerrope.training import session
from layerrope.training.evaluation import evaluate
from layerrope.training.layerwise import checkpoint_layers, compile_layers

torch.set_num_threads(1)


def backward(model: LM, rows: int = 4) -> torch.Tensor:
    total, counted = model.loss_sum(*Toy(DataConfig(seq_len=T)).windows(rows, 1))
    (total / counted).backward()
    return total.detach()


@pytest.mark.parametrize(
    ("scheme", "checkpointing"), [("prenorm", False), ("lns", False), ("layerrope", False), ("layerrope-peri", True)]
)
@pytest.mark.parametrize("n_layer", [4, 24, 96])
def test_the_number_of_graphs_does_not_grow_with_depth(n_layer: int, scheme: str, checkpointing: bool) -> None:
    """CMP-1: one graph to train, one more to evaluate, one more for another batch size."""
    model = LM(toy_config(n_layer=n_layer, scheme=scheme).model)
    if checkpointing:
        checkpoint_layers(model)
    counter = CompileCounterWithBackend("eager")
    assert compile_layers(model, lambda: backward(model), backend=counter) is None
    assert counter.frame_count == 1
    evaluate(model, Toy(DataConfig(seq_len=T)).eval_batches(4))
    assert counter.frame_count == 2
    backward(model, rows=3)
    backward(model, rows=2)
    assert counter.frame_count == 3


def test_many_models_one_after_another_never_reach_the_recompile_limit(caplog: pytest.LogCaptureFixture) -> None:
    """torch compiles a function eight times at most; every scheme is another version of the same layer."""
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, logger="torch._dynamo"):
        warnings.filterwarnings("error", message=".*recompil.*")
        for width in range(4, 24, 2):
            model = LM(toy_config(d_model=width, n_head=1, d_ff=width).model)
            counter = CompileCounterWithBackend("eager")
            assert compile_layers(model, lambda model=model: backward(model), backend=counter) is None
            evaluate(model, Toy(DataConfig(seq_len=T)).eval_batches(4))
            assert counter.frame_count == 2
    assert not caplog.records


@pytest.mark.parametrize("scheme", ["prenorm", "postnorm", "layerrope-peri"])
def test_checkpointed_layers_give_the_same_gradients_bit_for_bit(scheme: str) -> None:
    plain, recomputed = (LM(toy_config(scheme=scheme).model) for _ in range(2))
    names = [name for name, _ in recomputed.named_parameters()]
    checkpoint_layers(recomputed)
    assert torch.equal(backward(plain), backward(recomputed))
    assert [name for name, _ in recomputed.named_parameters()] == names
    for a, b in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]


def kept(model: LM) -> int:
    """Bytes that a forward pass keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        model(*Toy(DataConfig(seq_len=T)).windows(32, 1))
    return sum(sizes.values())


def test_checkpointed_layers_keep_their_inputs_alone() -> None:
    plain, recomputed = (LM(toy_config(n_layer=12).model) for _ in range(2))
    checkpoint_layers(recomputed)
    assert kept(recomputed) < kept(plain) / 3


def test_generation_works_through_checkpointed_layers() -> None:
    plain, recomputed = (LM(toy_config().model) for _ in range(2))
    checkpoint_layers(recomputed)
    prompt = torch.tensor([[1, 2, 3]])
    wanted = plain.generate(prompt, 4, temperature=0)
    assert torch.equal(recomputed.generate(prompt, 4, temperature=0), wanted)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True), (True, True)])
def test_compiled_and_plain_sessions_resume_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool, then: bool
) -> None:
    """CMP-2: the same names in the files of both, and the same run as without compilation."""
    monkeypatch.setattr(session, "compile_layers", partial(compile_layers, backend="aot_eager"))
    notes: list[str] = []
    run(toy_config(compile=first), tmp_path / "mixed", stop=until(5))
    run(toy_config(compile=then), tmp_path / "mixed", notes)
    run(toy_config(), tmp_path / "plain")
    assert any("compile was" in note for note in notes) == (first != then)
    plain, mixed = tensors(tmp_path / "plain"), tensors(tmp_path / "mixed")
    assert plain.keys() == mixed.keys()
    for name, t in plain.items():
        torch.testing.assert_close(mixed[name], t, rtol=1e-3, atol=1e-4, msg=name)


def test_the_trial_of_the_compiler_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "compile_layers", partial(compile_layers, backend="eager"))
    run(toy_config(compile=True), tmp_path / "compiled")
    run(toy_config(), tmp_path / "plain")
    assert same(tensors(tmp_path / "compiled"), tensors(tmp_path / "plain"))


def test_a_compiler_that_fails_is_one_remark_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise OSError("no compiler\nand much more text")

    monkeypatch.setattr(session, "compile_layers", partial(compile_layers, backend=broken))
    notes: list[str] = []
    run(toy_config(compile=True, eval_every=3), tmp_path / "fallen", notes)
    assert len(notes) == 1
    assert notes[0].startswith("torch.compile does not work here, training uncompiled (")
    assert "\n" not in notes[0]
    run(toy_config(eval_every=3), tmp_path / "plain")
    assert curve(tmp_path / "fallen") == curve(tmp_path / "plain")


HIDDEN = """
import sys
from pathlib import Path
from toy_run import Toy, toy_config, train
config = toy_config(compile=True, steps=3)
print(train(config, Path(sys.argv[1]), data=Toy(config.data)).status)
"""


def test_without_a_compiler_there_is_one_warning(tmp_path: Path) -> None:
    """CMP-3: compilers hidden, in a process of its own, with no cache of earlier compilations."""
    found = subprocess.run(
        [sys.executable, "-c", HIDDEN, str(tmp_path / "run")],
        cwd=Path(__file__).parent,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.stdout == "done\n", found.stderr
    said, code = found.stderr.splitlines()
    assert "RuntimeWarning: torch.compile does not work here, training uncompiled (" in said
    assert code.strip().startswith("self.note(")  # the line of code that Python adds to a warning


@pytest.mark.slow
def test_compiled_training_follows_plain_training(tmp_path: Path) -> None:
    """The real compiler, where there is one."""
    notes: list[str] = []
    result = run(toy_config(compile=True), tmp_path / "compiled", notes)
    if notes:
        pytest.skip(notes[0])
    plain = run(toy_config(), tmp_path / "plain")
    assert result.val_loss == pytest.approx(plain.val_loss, rel=1e-4)
    for a, b in zip(curve(tmp_path / "compiled"), curve(tmp_path / "plain"), strict=True):
        assert a[:3] == pytest.approx(b[:3], rel=1e-4)
