"""From what a person typed to a `TensorSource`: a folder, a file, a run, a Hub id or an address."""

from __future__ import annotations

import os
from pathlib import Path

from layerrope.errors import InputError
from layerrope.tensors.blobs import LocalFile, printable
from layerrope.tensors.layout import find_model, find_run, steps
from layerrope.tensors.places import Folder
from layerrope.tensors.shards import (
    NUMBERED,
    PICKLES,
    Found,
    pickle_refused,
    read_config,
    read_index,
    read_one,
    read_set,
)
from layerrope.tensors.source import TensorSource


def open_source(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> TensorSource:
    """Open `source` and read its headers; tensors are read when asked for.

    `source`: a folder or file (safetensors, single or with an index; GGUF, single or split), a training run of
    this package (its newest checkpoint that can be read), a Hub id `org/name[@revision]` or one file of it
    `org/name/FILE[@revision]`, or an http(s) address of a file or of a folder. What exists on disk wins.

    `token` goes to the Hub's (or the address's) own host only; without one, the token that `hf auth login` saved
    is used for the Hub. `endpoint` is the Hub's address, `cache_dir` its cache; `timeout` is in seconds, for the
    server to answer or go on sending. Raises InputError for everything that cannot be read.
    """
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        return _open_path(path)
    raise InputError(f"no such file or folder: {printable(source)}")


def _open_path(path: Path) -> TensorSource:
    if not path.is_dir():
        return _open_file(path)
    if steps(path / "checkpoints"):
        return _open_run(path)
    folder = Folder(path)
    return _source(str(path), find_model(folder), folder)


def _open_run(run: Path) -> TensorSource:
    step, found = find_run(run)
    return TensorSource(f"{run}@{step.name}", "run", found.entries, read_config(Folder(run)), notes=found.notes)


def _open_file(path: Path) -> TensorSource:
    folder, name = Folder(path.parent), path.name
    if name.endswith(PICKLES):
        raise pickle_refused(str(path))
    if name.endswith(".index.json"):
        return _source(str(path), read_index(folder, name), folder)
    if match := NUMBERED.fullmatch(name):
        index = f"{match['stem']}.safetensors.index.json"
        if match["ending"] == ".safetensors" and (path.parent / index).exists():
            return _source(str(path), read_index(folder, index), folder)
        return _source(str(path), read_set(folder, name), folder)
    return _source(str(path), read_one(LocalFile(path)), folder)


def _source(label: str, found: Found, folder: Folder) -> TensorSource:
    config = found.metadata if found.format == "gguf" else read_config(folder)
    return TensorSource(label, found.format, found.entries, config, notes=found.notes)
