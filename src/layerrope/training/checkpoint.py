"""Checkpoints: folders of safetensors and JSON, published by rename, each file listed with its size and hash.

`step-N/` holds `model.safetensors`, `optimizer.safetensors`, `rng.safetensors`, `state.json` and `manifest.json`.
N counts steps done. The folder is written under another name, flushed to disk and renamed, so a kill at any moment
leaves either all of it or none; the manifest tells a folder damaged later. No file here is a pickle.

A run on several ranks writes the same files. Rank 0 gathers a tensor that lies in shards, writes it, and lets it go
before the next, so it holds one whole tensor at a time; and a run saved on any number of ranks is read by any other
number, by one process, and by every command that reads runs. torch.distributed.checkpoint would write from all ranks at
once, but as many files as ranks, which only it can put together again, by an index (`.metadata`) that is a pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from layerrope.errors import InputError
from layerrope.files import read_json, unwritable, write_json
from layerrope.training.streamed import ordered, write_streamed

MANIFEST = "manifest.json"
FORMAT = 1
NEEDED = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")
"""Files without which a checkpoint is none."""


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds: tensors by file and name, and JSON data."""

    tensors: Mapping[str, Mapping[str, Tensor]]  # file stem -> tensor name -> tensor
    state: Mapping[str, Any]


Whole: TypeAlias = Callable[[Tensor], Tensor]
"""Gathers a tensor that lies in shards; every rank has to call it."""


# ------------------------------------------------------------------------------------------------------- writing
def save(folder: Path, step: int, checkpoint: Checkpoint, keep: int | None = None, whole: Whole | None = None) -> Path:
    """Write `folder/step-<step>` whole or not at all; one that is already there and sound is left alone.

    Args:
        keep: only the newest `keep` checkpoints up to this one stay.
        whole: for tensors in shards; the other ranks `attend` meanwhile.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    gathered = None if whole is None else _gathered(checkpoint, whole)
    try:
        return _save(folder, step, checkpoint, keep, gathered)
    finally:  # after a refusal there are some left, and the other ranks are in the middle of giving theirs
        deque(gathered or (), maxlen=0)


def attend(checkpoint: Checkpoint, whole: Whole) -> None:
    """What every other rank does while rank 0 saves: gives its shards, in the same order."""
    deque(_gathered(checkpoint, whole), maxlen=0)


def _gathered(checkpoint: Checkpoint, whole: Whole) -> Iterator[Tensor]:
    """Every tensor of every file, whole, one after another."""
    for tensors in checkpoint.tensors.values():
        yield from (whole(tensors[name]) for name in ordered(tensors))


def _save(folder: Path, step: int, checkpoint: Checkpoint, keep: int | None, gathered: Iterator[Tensor] | None) -> Path:
    target = folder / f"step-{step}"
    if target.exists() and problem(target) is None:
        return target
    _clean(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _aside(folder) as aside:
            _write(aside, checkpoint, gathered)
            if target.exists():
                os.replace(target, _unused(folder))
            os.replace(aside, target)
        _flush(folder)
    except OSError as error:
        raise unwritable(target, error) from error
    _clean(folder, step, keep)
    return target


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A new folder beside the checkpoints, removed again unless it has been renamed."""
    aside = _unused(folder)
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unused(folder: Path) -> Path:
    return Path(tempfile.mktemp(prefix=".", suffix=".part", dir=folder))


def _write(aside: Path, checkpoint: Checkpoint, gathered: Iterator[Tensor] | None) -> None:
    for stem, tensors in checkpoint.tensors.items():
        path = aside / f"{stem}.safetensors"
        if gathered is None:
            _write_whole(path, tensors)
        else:
            write_streamed(path, tensors, itertools.islice(gathered, len(tensors)))
        _flush(path)
    write_json(aside / "state.json", checkpoint.state)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _hash(path)} for path in sorted(aside.iterdir())}
    write_json(aside / MANIFEST, {"format": FORMAT, "files": files})
    _flush(aside)


def _write_whole(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        raise _as_os_error(error) from error


def _as_os_error(error: SafetensorError) -> OSError:
    """safetensors reports a full disk in words only."""
    code = re.search(r"os error (\d+)", str(error))
    number = int(code.group(1)) if code else 0
    return OSError(number, os.strerror(number) if number else str(error))


def _flush(path: Path) -> None:
    """Make sure that a file's bytes, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _clean(folder: Path, step: int = 0, keep: int | None = None) -> None:
    """Remove what a killed save left behind and, with `keep`, all checkpoints up to `step` but the newest `keep`."""
    for path in folder.glob(".*.part"):
        shutil.rmtree(path, ignore_errors=True)
    upto = [path for path in steps(folder) if number(path) <= step]
    for path in upto[:-keep] if keep else []:
        _remove(path)


def clear(folder: Path) -> None:
    """Remove the checkpoints in `folder`, and the folder if nothing else is in it."""
    for path in steps(folder):
        _remove(path)
    _clean(folder)
    with contextlib.suppress(OSError):  # not there, or it holds files of somebody else
        folder.rmdir()


def _remove(path: Path) -> None:
    """Remove the checkpoint `path`; a kill in the middle leaves no half of it under its name."""
    aside = _unused(path.parent)
    os.replace(path, aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()


# ------------------------------------------------------------------------------------------------------- reading
def number(path: Path) -> int:
    """Steps done, by the checkpoint folder's name; -1 for another name."""
    found = re.fullmatch(r"step-(\d+)", path.name)
    return int(found.group(1)) if found else -1


def steps(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first, sound or not."""
    return sorted((path for path in folder.glob("step-*") if number(path) >= 0), key=number)


def is_step(path: Path) -> bool:
    """Is this the name of a checkpoint in its place, `RUN/checkpoints/step-N`?"""
    return path.parent.name == "checkpoints" and number(path) >= 0


def problem(path: Path) -> str | None:
    """What is wrong with the checkpoint folder `path`, or None for a sound one.

    Sound: the manifest is of this format and lists every file that is needed, every listed file is there with its
    size and hash, and the state is of as many steps as the folder's name says.
    """
    try:
        manifest = read_json(path / MANIFEST)
        if manifest["format"] != FORMAT:
            return f"{MANIFEST} has format {manifest['format']!r}, this version reads {FORMAT}"
        return _problem_of_files(path, manifest["files"]) or _problem_of_state(path)
    except (InputError, KeyError, TypeError, AttributeError, OSError, ValueError):
        return f"no readable {MANIFEST}" if (path / MANIFEST).exists() else f"no {MANIFEST}"


def _problem_of_files(path: Path, files: Mapping[str, Any]) -> str | None:
    for name in NEEDED:
        if name not in files:
            return f"{MANIFEST} does not list {name}"
    for name, listed in files.items():
        file = path / name
        if file.parent != path or not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != listed["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {listed['bytes']}"
        if _hash(file) != listed["sha256"]:
            return f"{name} is not what was written"
    return None


def _problem_of_state(path: Path) -> str | None:
    try:
        state = read_json(path / "state.json")
    except InputError:
        return "state.json is not JSON"
    if not isinstance(state, dict):
        return "state.json is no JSON object"
    done = state.get("steps")
    if type(done) is not int:
        return f"steps in state.json is no whole number: {done!r}"
    return None if number(path) in (done, -1) else f"state.json is of step {done}"


class Stored(Mapping[str, Tensor]):
    """The tensors of one safetensors file, each read from the disk when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.file = safe_open(path, framework="pt")
        self.names = list(self.file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def opened(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`, its tensors read when they are asked for; not compared with its hashes.

    Raises:
        InputError: a file is missing, or no safetensors or JSON.
    """
    try:
        listed = sorted(path / name for name in read_json(path / MANIFEST)["files"])
        tensors = {file.stem: Stored(file) for file in listed if file.suffix == ".safetensors"}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"checkpoint {path} cannot be used: not safetensors ({error})") from error
    return Checkpoint(tensors, read_json(path / "state.json"))


def load(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`, found sound; files that the manifest does not list are not opened.

    Raises:
        InputError: it is incomplete, damaged, or in another format.
    """
    found = problem(path)
    if found is not None:
        raise InputError(f"checkpoint {path} cannot be used: {found}")
    return opened(path)


def latest(folder: Path) -> tuple[Path | None, Checkpoint | None, list[str]]:
    """The newest checkpoint that can be used, with its path, and a line for each newer one that cannot."""
    skipped: list[str] = []
    for path in reversed(steps(folder)):
        try:
            return path, load(path), skipped
        except InputError as error:
            skipped.append(str(error))
    return None, None, skipped


def chosen(run: Path, step: Path | None = None) -> tuple[Path, Checkpoint]:
    """The checkpoint `step` of the run in folder `run`, or its newest that can be used; with its path.

    Raises:
        InputError: that one, or every one, is damaged, or there is none.
    """
    if step is not None:
        return step, load(step)
    path, found, skipped = latest(run / "checkpoints")
    if path is None or found is None:
        raise InputError(skipped[0] if skipped else f"{run} has no checkpoint yet: train further")
    return path, found
