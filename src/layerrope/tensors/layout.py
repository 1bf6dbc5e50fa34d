"""Which of the files at a place make up the model: an index, one file, a numbered set, or a run's newest step."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from layerrope.errors import InputError
from layerrope.tensors.blobs import printable
from layerrope.tensors.places import Folder, Place, inside
from layerrope.tensors.shards import NUMBERED, Found, is_pickle, pickle_refused, read_index, read_one, read_set
from layerrope.tensors.source import in_parallel

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_STEP = re.compile(r"step-(\d{1,18})", re.ASCII)
CHECKPOINTS = "checkpoints"


def find_model(place: Place) -> Found:
    """The tensors of the model at `place`.

    In this order: the index and its shards; model.safetensors; the only other safetensors file or numbered set;
    the only GGUF file or set. Raises InputError where there is none, where several could be meant (they are
    listed), or where only files are there that would have to be unpickled.
    """
    names = place.listing()
    if names is None:
        return _find_unlisted(place)
    indexes = [n for n in names if n.endswith(".safetensors.index.json") and "/" not in n]
    if INDEX in indexes or len(indexes) == 1:
        return read_index(place, INDEX if INDEX in indexes else indexes[0])
    if SINGLE in names:
        return read_set(place, SINGLE)
    for ending in (".safetensors", ".gguf"):
        if sets := _sets([n for n in names if n.endswith(ending) and "/" not in n]):
            return read_set(place, _only(sets, place.label))
    raise _nothing(place.label, names)


def _find_unlisted(place: Place) -> Found:
    """`find_model` where nothing can be listed: the two names that Hugging Face's libraries write."""
    index, single = in_parallel([(place.open, (INDEX,)), (place.open, (SINGLE,))], 2)
    if index is not None:
        return read_index(place, INDEX)
    if single is None:
        raise place.absence(SINGLE, f"and no {INDEX} either; the address of a file itself would do")
    return read_one(single)


def _sets(names: Sequence[str]) -> list[str]:
    """The first name of every model among `names`: the parts of a numbered set count as one."""
    first: dict[object, str] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        first.setdefault((match["stem"], match["count"]) if match else name, name)
    return list(first.values())


def _only(sets: Sequence[str], label: str) -> str:
    if len(sets) > 1:
        some = ", ".join(printable(name, 80) for name in sets[:8]) + (", ..." if len(sets) > 8 else "")
        raise InputError(f"{label} holds {len(sets)} models, so name one file of it: {some}")
    return sets[0]


def _nothing(label: str, names: Sequence[str]) -> InputError:
    nested = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    if nested:
        return InputError(f"{label} has models only in folders, so name one file: {printable(', '.join(nested))}")
    if pickles := [name for name in names if is_pickle(name)]:
        return pickle_refused(f"{label}/{pickles[0]}")
    if "model_and_optim" in names or any(name.endswith(".distcp") for name in names):
        return InputError(
            f"{label} is a checkpoint in shards: one of OLMo-core's becomes a folder that can be read by "
            "layerrope export CHECKPOINT --to FOLDER --as layerrope"
        )
    return InputError(f"{label} holds no .safetensors and no .gguf file: check the path")


def steps(run: Path) -> list[Path]:
    """The checkpoints step-N of `run`, newest first; [] where there are none.

    Raises InputError where the folder that holds them is a link that leads out of the run's.
    """
    folder = run / CHECKPOINTS
    if not os.path.isdir(folder):
        return []
    inside(folder, [run])
    found = [(int(m[1]), name) for name in Folder(folder).listing() if (m := _STEP.fullmatch(name))]
    return [folder / name for _, name in sorted(found, reverse=True)]


def run_of(path: Path) -> tuple[Path, list[Path]] | None:
    """The training run that `path` belongs to and the checkpoints meant, newest first; None where it is none.

    `path` may be the run's folder, its checkpoints/, or one step-N in there.
    """
    path = path.absolute()
    if _STEP.fullmatch(path.name) and path.parent.name == CHECKPOINTS:
        return path.parents[1], [path]
    run = path.parent if path.name == CHECKPOINTS else path
    found = steps(run)
    return (run, found) if found else None


def find_step(run: Path, candidates: Sequence[Path]) -> tuple[Path, Found]:
    """The first of a run's checkpoints that can be read, and its tensors.

    A step that cannot be read (a save was cut short, the folder is empty or a link that leads out of the run's) is
    named in the notes and the one before is taken. Raises InputError where no step can be read.
    """
    notes: list[str] = []
    for step in candidates:
        try:
            inside(step, [run])
            found = find_model(Folder(step))
        except InputError as error:
            notes.append(f"skipped {step.name}: {error}")
            continue
        found.notes[:0] = notes
        return step, found
    raise InputError(f"{printable(run)} has no checkpoint that can be read: {'; '.join(notes[:2])}")
