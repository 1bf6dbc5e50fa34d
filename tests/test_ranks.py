"""What goes wrong among ranks: one message, every rank stops, and the run can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rank_group import HUNG, Ended, Group, SharedToy, command, fated, moved, rank_config, starved, together
from safetensors.torch import load_file, save_file
from toy_run import curve, run, until

from layerrope import cli
from layerrope.errors import InputError
from layerrope.ranks.parallel import form_of
from layerrope.ranks.place import VARIABLES, rank_place
from layerrope.ranks.ranks import Ranks, join
from layerrope.train import train
from layerrope.training import checkpoint

torch.set_num_threads(1)


pytestmark = pytest.mark.usefixtures("elsewhere")


def words(*more: str) -> list[str]:
    shape = "--tier micro-100k --n-layer 2 --seq-len 32 --batch-size 4 --device cpu --data text --steps 3"
    return ["train", *shape.split(), "--parallel", "fsdp", "--out", "run", *more]


def complaint(ended: list[Ended], code: int = 2) -> str:
    """The one line that all ranks together have said on their way out, each with this exit code."""
    assert [rank.code for rank in ended] == [code] * len(ended), [rank.err for rank in ended]
    said = [line for rank in ended for line in rank.err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, said
    assert not any("Traceback" in rank.err for rank in ended)
    return said[0]


# -------------------------------------------------------------------------------------------------- the command line
def test_torchrun_starts_two_ranks_that_print_once(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "-m", "layerrope", *words()], capture_output=True, text=True, env=env, timeout=HUNG
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("status    done") == 1
    assert done.stderr.count("layerrope  3/3") == 1
    assert "2 ranks (fsdp)" in done.stderr
    again = together(tmp_path / "ranks", command, 2, words("--json"))
    assert json.loads(again[0].out)["status"] == "done"
    assert (again[1].out, again[1].err) == ("", "")


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (words("--lr", "0.1"), r"the ranks disagree on the config \(lr is 0.003 on rank 0, 0.1 on rank 1\)"),
        (words("--n-layer", "3"), "model.n_layer is 2 on rank 0, 3 on rank 1"),
        (words("--parallel", "ddp"), "parallel is fsdp on rank 0, ddp on rank 1"),
        (words("--data", "nowhere"), "rank 1: .*nowhere"),
        (words("--layers", "3"), "unknown flag --layers"),
    ],
)
def test_ranks_that_were_started_differently_are_refused(tmp_path: Path, theirs: list[str], message: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        said = complaint(Group(tmp_path / "ranks", command, [[words()], [theirs]]).wait())
    assert re.search(message, said), said
    assert not (tmp_path / "run" / "config.json").exists()


def test_ranks_with_other_texts_are_refused(tmp_path: Path) -> None:
    """Of one name and vocabulary, as copies on the disks of two machines have them."""
    for name, text in (("here", "one text\n"), ("there", "another\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(text * 400)
    wanted = words("--data", "text.txt", "--out", str(tmp_path / "run"))
    said = complaint(Group(tmp_path / "ranks", moved, [[tmp_path / name, wanted] for name in ("here", "there")]).wait())
    assert re.search(r"the ranks disagree on the data \(source_sha256 is \w+ on rank 0, .* the same text", said), said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (words("--batch-size", "5"), "a batch of 5 sequences cannot be shared equally by 2 ranks"),
        (words("--batch-size", "12", "--micro-batch", "4"), "micro-batch 4 does not divide the 6 sequences"),
        (words("--precision", "paper"), "precision paper needs every parameter whole"),
        (words("--parallel", "zero"), "unknown way to be parallel 'zero'"),
        (["compare"], "train alone runs on several ranks"),
    ],
)
def test_what_ranks_cannot_do_is_refused_once(tmp_path: Path, wanted: list[str], message: str) -> None:
    assert message in complaint(together(tmp_path / "ranks", command, 2, wanted))


def test_one_process_has_no_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="--parallel fsdp is for several ranks: start them by torchrun"):
        form_of("fsdp", rank_config(), Ranks())
    assert (Ranks().gather([1]), Ranks().add([2.0]), Ranks().any(True)) == ([[1]], [2.0], True)
    assert rank_place() is None
    assert join(rank_place()) == Ranks()
    for name in VARIABLES:
        monkeypatch.setenv(name, "2")
    for rank in ("x", "2"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(InputError, match="use torchrun"):
            rank_place()
    monkeypatch.setenv("RANK", "1")
    assert cli.main(words()) == 2
    assert "start them by torchrun ... -m layerrope train" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- checkpoints
def test_a_run_of_another_scheme_is_refused(tmp_path: Path) -> None:
    run(rank_config(steps=6, scheme="prenorm"), tmp_path / "run", stop=until(3))
    said = complaint(together(tmp_path / "ranks", fated, 2, tmp_path / "run", None))
    assert "model.scheme is prenorm there, layerrope here" in said


def other_shape(step: Path) -> None:
    found = load_file(step / "model.safetensors")
    save_file(found | {"norm.weight": torch.ones(3)}, step / "model.safetensors")


def one_less(step: Path) -> None:
    found = load_file(step / "optimizer.safetensors")
    save_file({name: t for name, t in found.items() if "exp_avg/gains" not in name}, step / "optimizer.safetensors")


def damaged(step: Path) -> None:
    raw = bytearray((step / "model.safetensors").read_bytes())
    raw[-3] ^= 1
    (step / "model.safetensors").write_bytes(raw)


@pytest.mark.parametrize(
    ("spoil", "listed", "message"),
    [
        (other_shape, True, r"tensor norm.weight has shape (3,), not (8,)"),
        (one_less, True, "optimiser state exp_avg/gains"),
        (damaged, False, "model.safetensors is not what was written"),
        (lambda step: (step / "optimizer.safetensors").unlink(), False, "optimizer.safetensors is missing"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], listed: bool, message: str
) -> None:
    run(rank_config(steps=6), tmp_path / "run", stop=until(3), data=SharedToy(rank_config().data))
    step = tmp_path / "run" / "checkpoints" / "step-3"
    spoil(step)
    if listed:
        files = {path.name: path for path in step.iterdir() if path.name != "manifest.json"}
        listing = {n: {"bytes": p.stat().st_size, "sha256": checkpoint._hash(p)} for n, p in files.items()}
        (step / "manifest.json").write_text(json.dumps({"format": checkpoint.FORMAT, "files": listing}))
    assert message in complaint(together(tmp_path / "ranks", fated, 2, tmp_path / "run", None))


def test_a_checkpoint_that_one_rank_cannot_see_is_refused(tmp_path: Path) -> None:
    """A folder that the machines do not share."""
    run(rank_config(steps=6), tmp_path / "run", stop=until(3), data=SharedToy(rank_config().data))
    said = complaint(Group(tmp_path / "ranks", fated, [["run", None], ["run", None, "blind"]]).wait())
    assert said.startswith("error: rank 1: ")
    assert "manifest.json" in said


@pytest.mark.parametrize("limit", [300, 5_000, 12_000])
def test_a_full_disk_on_one_rank_stops_all(tmp_path: Path, limit: int) -> None:
    """Full for config.json, for the first tensors of the checkpoint, and for its later ones."""
    said = complaint(together(tmp_path / "ranks", starved, 2, tmp_path / "run", limit))
    assert "run" in said
    assert "File too large" in said
    assert not list((tmp_path / "run").glob("checkpoints/*"))


# ------------------------------------------------------------------------------------------------- death and signals
def test_the_death_of_a_rank_ends_the_others(tmp_path: Path) -> None:
    for dead in (0, 1):
        fates = [[tmp_path / "run", signal.SIGKILL if rank == dead else None] for rank in range(2)]
        ended = Group(tmp_path / "ranks", fated, fates).wait()
        assert ended[dead].code == -signal.SIGKILL
        assert "another rank has died or does not answer" in complaint([ended[1 - dead]])


def test_a_rank_that_hangs_is_given_up(tmp_path: Path) -> None:
    group = Group(tmp_path / "ranks", fated, [[tmp_path / "run", None], [tmp_path / "run", 0]])
    group.processes[0].join()
    group.processes[1].kill()
    first, _ = group.wait()
    assert "does not answer" in complaint([first])


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, number: int, times: int) -> None:
    fates = [[tmp_path / "run", None], [tmp_path / "run", number, times]]
    ended = Group(tmp_path / "ranks", fated, fates).wait()
    assert [rank.code for rank in ended] == [130, 130], ended[1].err
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-3"]
    assert together(tmp_path / "ranks", fated, 2, tmp_path / "run", None)[0].code == 0
    train(rank_config(steps=6), tmp_path / "alone", data=SharedToy(rank_config().data), progress=lambda report: None)  # type: ignore[arg-type]
    losses = [[row[1] for row in curve(tmp_path / name)] for name in ("run", "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
