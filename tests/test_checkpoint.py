"""Checkpoints: whole or not there, checked before use, no pickle; and a run killed at any moment."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from toy_run import curve, kill_config, run, same, tensors, toy_config, until

from layerrope.errors import InputError
from layerrope.loading import load_lm
from layerrope.training import checkpoint
from layerrope.training.checkpoint import Checkpoint, latest, load, save, steps
from layerrope.training.run_folder import RunFolder
from layerrope.training.trained import load_trained

torch.set_num_threads(1)

FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json")


def filled(value: float) -> Checkpoint:
    ones = torch.full((3, 2), value)
    byte = {"cpu": torch.arange(9, dtype=torch.uint8)}
    return Checkpoint(
        {"model": {"a": ones, "b": ones.bfloat16()}, "optimizer": {"m": ones}, "rng": byte}, {"steps": int(value)}
    )


# ----------------------------------------------------------------------------------------------------- save, load
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    back = load(save(tmp_path, 7, filled(7)))
    assert back.state == {"steps": 7}
    for stem, wanted in filled(7).tensors.items():
        assert same(dict(back.tensors[stem]), dict(wanted))
    assert back.tensors["model"]["b"].dtype == torch.bfloat16


def test_only_safetensors_and_json_are_written(tmp_path: Path) -> None:
    run(toy_config(), tmp_path)
    folder = tmp_path / "checkpoints" / "step-12"
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert json.loads((folder / "manifest.json").read_text())["files"].keys() == set(FILES) - {"manifest.json"}


def test_only_the_newest_are_kept_and_an_older_step_never_costs_itself(tmp_path: Path) -> None:
    for step in (2, 10, 9, 30):
        save(tmp_path, step, filled(step), keep=2)
    assert [path.name for path in steps(tmp_path)] == ["step-10", "step-30"]
    save(tmp_path, 4, filled(4), keep=1)
    assert [path.name for path in steps(tmp_path)] == ["step-4", "step-10", "step-30"]


def test_litter_of_a_killed_save_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".abc.part").mkdir()
    (tmp_path / ".abc.part" / "model.safetensors").write_bytes(b"half")
    save(tmp_path, 1, filled(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


# --------------------------------------------------------------------------------------------------------- broken
def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)


def same_size(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


DAMAGES: list[Callable[[Path], None]] = [cut, flip, same_size, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_checkpoint_is_named_and_the_one_before_it_taken(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    save(tmp_path, 1, filled(1))
    newest = save(tmp_path, 2, filled(2))
    damage(newest / name)
    if (name, damage) == ("manifest.json", flip):  # a changed space or brace at the end may leave the JSON as it was
        (newest / name).write_text("[]")
    path, found, skipped = latest(tmp_path)
    assert path is not None
    assert path.name == "step-1"
    assert found is not None
    assert found.state == {"steps": 1}
    assert len(skipped) == 1
    assert str(newest) in skipped[0]
    assert name in skipped[0]


def test_empty_folders_and_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 1, filled(1))
    (tmp_path / "step-9").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-99.part").mkdir()
    (tmp_path / "step-5").write_text("a file")
    path, _, skipped = latest(tmp_path)
    assert path is not None
    assert path.name == "step-1"
    assert [line.split(": ")[1] for line in skipped] == ["no manifest.json"] * 2


def test_a_manifest_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    newest = save(tmp_path, 2, filled(2))
    listing = json.loads((newest / "manifest.json").read_text())
    listing["files"]["../secret"] = {"bytes": 1, "sha256": "0"}
    (newest / "manifest.json").write_text(json.dumps(listing))
    with pytest.raises(InputError, match=r"\.\./secret is missing"):
        load(newest)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("listed", [False, True])
def test_no_pickle_is_ever_opened(tmp_path: Path, name: str, listed: bool) -> None:
    """RSM-5: a pickle in place of each file, also where the manifest was made to list it."""
    marker = tmp_path / "marker"
    run(toy_config(), tmp_path / "run", stop=until(4))
    folder = tmp_path / "run" / "checkpoints" / "step-4"
    (folder / name).write_bytes(pickle.dumps(Bomb(marker)))
    if listed and name != "manifest.json":
        files = json.loads((folder / "manifest.json").read_text())
        path = folder / name
        files["files"][name] = {"bytes": path.stat().st_size, "sha256": checkpoint._hash(path)}
        (folder / "manifest.json").write_text(json.dumps(files))
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=rf"{re.escape(str(folder))} cannot be used.*no other checkpoint.*--fresh"):
        run(toy_config(), tmp_path / "run")
    assert not marker.exists()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_files(step: Path) -> None:
    rewrite(step / "manifest.json", files={})
    (step / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_files, "does not list model.safetensors"),
        (lambda step: rewrite(step / "manifest.json", format=99), "has format 99"),
        (lambda step: rewrite(step / "manifest.json", files=[]), "does not list"),
        (lambda step: step.rename(step.parent / "step-7"), "state.json is of step 2"),
    ],
)
def test_what_only_looks_like_a_checkpoint_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(save(tmp_path, 2, filled(2)))
    path, _, skipped = latest(tmp_path)
    assert path is None
    assert message in skipped[0]


def test_a_file_that_the_manifest_does_not_list_is_not_opened(tmp_path: Path) -> None:
    path = save(tmp_path, 2, filled(2))
    (path / "extra.safetensors").write_bytes(b"no tensors")
    assert set(load(path).tensors) == {"model", "optimizer", "rng"}


def test_a_broken_newest_checkpoint_costs_time_but_no_number(tmp_path: Path) -> None:
    config = toy_config(checkpoint_every=3)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop=until(8))
    flip(tmp_path / "cut" / "checkpoints" / "step-8" / "optimizer.safetensors")
    notes: list[str] = []
    run(config, tmp_path / "cut", notes)
    assert "step-8" in notes[0]
    assert "skipped" in notes[0]
    assert "resumed at step 6" in notes[1]
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert same(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))


# ------------------------------------------------------------------------------------------------------- disk full
def test_a_full_disk_leaves_the_older_checkpoint_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, filled(1))

    def full(tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half of it")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(InputError, match=r"no space left while writing .*step-2: free some"):
        save(tmp_path, 2, filled(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert latest(tmp_path)[2] == []


@pytest.mark.parametrize("call", range(1, 9))
def test_a_disk_that_fails_at_any_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    save(tmp_path, 1, filled(1))
    count, real = iter(range(1, 99)), os.fsync

    def fail(handle: int) -> None:
        if next(count) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with contextlib.suppress(InputError):
        save(tmp_path, 2, filled(2))
    monkeypatch.undo()
    assert not list(tmp_path.glob(".*"))
    path, _, skipped = latest(tmp_path)
    assert path is not None
    assert skipped == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path, tmp_path: Path) -> None:
    config = toy_config(checkpoint_every=1, keep_checkpoints=9)
    with pytest.raises(InputError, match="no space left"):
        run(config, tiny_disk / "run")
    reached = [path.name for path in steps(tiny_disk / "run" / "checkpoints")]
    assert reached
    assert latest(tiny_disk / "run" / "checkpoints")[2] == []
    assert not list((tiny_disk / "run" / "checkpoints").glob(".*"))
    for path in steps(tiny_disk / "run" / "checkpoints")[:-1]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    config = toy_config(checkpoint_every=1, keep_checkpoints=1)
    run(config, tiny_disk / "run")
    run(toy_config(), tmp_path / "whole")
    assert curve(tiny_disk / "run") == curve(tmp_path / "whole")


def test_a_full_disk_under_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    from io import FileIO

    monkeypatch.setattr(RunFolder, "open_metrics", lambda self: FileIO("/dev/full", "a"))
    with pytest.raises(InputError, match=r"no space left while writing .*metrics\.jsonl"):
        run(toy_config(), tmp_path)


# ------------------------------------------------------------------------------------------------------- kill, lock
def toy_process(*words: str) -> subprocess.Popen[str]:
    program = str(Path(__file__).parent / "toy_run.py")
    return subprocess.Popen(
        [sys.executable, program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_killed_at_random_moments_a_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    """RSM-2, RSM-4: kill -9 thirty times while saving every step; compare with the run that was left alone."""
    out, errors = toy_process("30", str(tmp_path / "killed")).communicate(timeout=300)
    attempts = [json.loads(line) for line in out.splitlines()]
    assert [a["status"] for a in attempts] == [9] * 30 + [0], errors
    assert sum(a["litter"] for a in attempts) > 0, "no kill fell into a save: the test is blind"
    run(kill_config(), tmp_path / "whole")
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    assert same(tensors(tmp_path / "killed", 70), tensors(tmp_path / "whole", 70))
    assert not list((tmp_path / "killed" / "checkpoints").glob(".*"))


def test_two_processes_cannot_train_one_run_but_a_dead_one_does_not_block(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        with pytest.raises(InputError, match="another process is training in"):
            run(toy_config(), tmp_path)
        assert not (tmp_path / "config.json").exists()
    assert (tmp_path / "lock").exists()
    assert run(toy_config(), tmp_path).status == "done"


def test_every_reader_takes_the_newest_sound_checkpoint_and_names_the_newest_that_is_not(tmp_path: Path) -> None:
    run(toy_config(steps=6, checkpoint_every=2, keep_checkpoints=3), tmp_path)
    for step, left in (("step-6", "step 4"), ("step-4", "step 2")):
        (tmp_path / "checkpoints" / step / "optimizer.safetensors").unlink()
        assert load_lm(tmp_path).label.endswith(left)
        assert load_trained(tmp_path).label.endswith(left)
    (tmp_path / "checkpoints" / "step-2" / "state.json").unlink()
    for read in (load_lm, load_trained):
        with pytest.raises(InputError, match=r"step-6 cannot be used: optimizer.safetensors is missing"):
            read(tmp_path)
        with pytest.raises(InputError, match=r"step-2 cannot be used"):
            read(tmp_path / "checkpoints" / "step-2")
    shutil.rmtree(tmp_path / "checkpoints")
    for read in (load_lm, load_trained):
        with pytest.raises(InputError, match="has no checkpoint yet"):
            read(tmp_path)
