"""One file or many into one set of tensors: what kind each file is, indexes, numbered sets, merging."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from layerrope.errors import InputError
from layerrope.tensors import gguf_format, safetensors_format
from layerrope.tensors.blobs import Blob, printable
from layerrope.tensors.entries import Entry
from layerrope.tensors.json_text import parse_json
from layerrope.tensors.places import Place, safe_name
from layerrope.tensors.source import WORKERS, in_parallel

#: JSON files (index, config) larger than this are not read.
MAX_JSON = 100_000_000
#: An index or a numbered set of more files than this is not followed.
MAX_FILES = 10_000
#: Endings of files that run code when loaded, or may: never opened.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".npz", ".joblib", ".msgpack", ".h5")
#: The parts of a set are numbered from 1 in their names, by both formats.
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<no>\d{5,6})-of-(?P<count>\d{5,6})(?P<ending>\.safetensors|\.gguf)")


@dataclass
class Found:
    """Tensors of one or several files of one format; `metadata` is a GGUF's, `{}` for safetensors."""

    format: str
    entries: dict[str, Entry]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_pickle(name: str) -> bool:
    """Is a file of this name one that is never opened?"""
    return name.lower().endswith(PICKLES)


def pickle_refused(name: str) -> InputError:
    """The refusal of a file that would have to be unpickled."""
    return InputError(
        f"{printable(name)} is not opened, since loading such a file can run code hidden in it: use the model's "
        f".safetensors, or convert the file where you trust it (safetensors.torch.save_file)"
    )


#: First bytes of files that are often taken for a checkpoint -> what they are and what to do.
_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes; it is not unpickled, so use the model's .safetensors"),
    (b"\x80\x02", "a pickle, which is never opened; use the model's .safetensors"),
    (b"\x80\x03", "a pickle, which is never opened; use the model's .safetensors"),
    (b"\x80\x04", "a pickle, which is never opened; use the model's .safetensors"),
    (b"\x80\x05", "a pickle, which is never opened; use the model's .safetensors"),
    (b"\x93NUMPY", "a numpy array, which may hold pickles and is not opened; use the model's .safetensors"),
    (b"\x89HDF", "an HDF5 file; use the model's .safetensors"),
    (b"version https://git-lfs", "a Git LFS pointer and not the weights; run git lfs pull"),
    (b"<!doctype html", "an HTML page and not the weights; a login or error page was saved, so fetch it again"),
    (b"<html", "an HTML page and not the weights; a login or error page was saved, so fetch it again"),
)


def read_file(blob: Blob) -> Found:
    """The tensors of one file, its format told from its first bytes (names may lie or be absent).

    Raises InputError where it is neither format, saying what it is where that can be told.
    """
    head = blob.read(0, min(blob.size, 64))
    if head.startswith(gguf_format.MAGIC):
        return Found("gguf", *gguf_format.read_header(blob))
    # A header length below 4 GiB puts zeros into bytes 4 to 7, and no stranger's greeting has them there.
    if len(head) >= 8 and head[4:8] != bytes(4):
        start = head.lstrip().lower()
        for greeting, meaning in _STRANGERS:
            if start.startswith(greeting.lower()):
                raise InputError(f"{blob.label} is {meaning}")
    return Found("safetensors", safetensors_format.read_header(blob))


def open_files(place: Place, names: Sequence[str], why: str) -> list[Blob]:
    """The files `names` at `place`. Raises InputError that names the first one missing; `why` it was wanted.

    None is a pickle: an index may name any file.
    """
    for name in filter(is_pickle, names):
        raise pickle_refused(f"{place.label.rstrip('/')}/{name}")
    blobs = in_parallel([(place.open, (name,)) for name in names], WORKERS)
    for name, blob in zip(names, blobs, strict=True):
        if blob is None:
            raise place.absence(name, why)
    return blobs


def read_index(place: Place, name: str) -> Found:
    """The tensors of the shards that the safetensors index file `name` lists, folder by the index's own."""
    (blob,) = open_files(place, [name], "the index")
    weight_map = _weight_map(blob)
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_FILES:
        raise InputError(f"{blob.label} lists {len(shards)} files; at most {MAX_FILES} are read")
    folder = name.rpartition("/")[0]
    paths = [f"{folder}/{safe_name(shard, blob.label)}".lstrip("/") for shard in shards]
    parts = read_files(open_files(place, paths, f"listed in {printable(name)}"))
    held = dict(zip(shards, parts, strict=True))
    for tensor, shard in weight_map.items():
        if tensor not in held[shard].entries:
            raise InputError(
                f"{blob.label} puts tensor {printable(tensor)} into {printable(shard)}, which does not hold it: "
                f"fetch both again"
            )
    everything = {k: e for part in parts for k, e in part.entries.items()}
    indexed = {tensor: held[shard].entries[tensor] for tensor, shard in weight_map.items()}
    return Found("safetensors", everything | indexed)


def _weight_map(blob: Blob) -> dict[str, str]:
    weight_map = read_json(blob).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{blob.label} has no weight_map from tensor to file: it is no safetensors index")
    if not all(isinstance(v, str) for v in weight_map.values()):
        raise InputError(f"{blob.label} has a weight_map with a file name that is no text: fetch it again")
    return weight_map


def read_files(blobs: Sequence[Blob]) -> list[Found]:
    """`read_file` of each, remote ones side by side."""
    remote = any(blob.remote for blob in blobs)
    return in_parallel([(read_file, (blob,)) for blob in blobs], WORKERS if remote else 1)


def read_one(blob: Blob) -> Found:
    """`read_file` of a file that stands for itself. Raises InputError where it is one part of a split GGUF."""
    found = read_file(blob)
    if found.metadata.get("split.count", 1) != 1:
        raise InputError(
            f"{blob.label} is part of a split set of {found.metadata['split.count']}, whose other parts cannot be "
            f"told from its name: give it back its name NAME-0000i-of-0000n.gguf"
        )
    return found


def read_set(place: Place, name: str) -> Found:
    """The tensors of the file `name`, and of the rest of its set where the name says "-00002-of-00003"."""
    match = NUMBERED.fullmatch(name)
    if match is None:
        (blob,) = open_files(place, [name], "the file asked for")
        return read_one(blob)
    count, width = int(match["count"]), len(match["no"])
    if not 1 <= int(match["no"]) <= count <= MAX_FILES:
        raise InputError(f"{place.label}: the numbers in the name {printable(name)} are no part and count")
    names = [f"{match['stem']}-{no:0{width}d}-of-{match['count']}{match['ending']}" for no in range(1, count + 1)]
    blobs = open_files(place, names, f"part of a set of {count}")
    parts = read_files(blobs)
    if count > 1 and parts[0].format == "gguf":
        _check_split(parts, blobs)
    return merge(parts, place.label)


def _check_split(parts: Sequence[Found], blobs: Sequence[Blob]) -> None:
    """Raises InputError unless a split GGUF's parts agree: numbered from 0, same count, tensors of the whole set."""
    for no, (part, blob) in enumerate(zip(parts, blobs, strict=True)):
        said = part.metadata.get("split.no"), part.metadata.get("split.count")
        if said != (no, len(parts)):
            raise InputError(
                f"{blob.label} says it is part {said[0]} (from 0) of {said[1]}, its name says {no + 1} (from 1) of "
                f"{len(parts)}: fetch the set again"
            )
    declared, held = parts[0].metadata.get("split.tensors.count"), sum(len(part.entries) for part in parts)
    if declared not in (None, held):
        raise InputError(
            f"{blobs[0].label} declares {printable(declared)} tensors for the whole set, its {len(parts)} parts hold "
            f"{held}: fetch the set again"
        )


def merge(parts: Sequence[Found], label: str) -> Found:
    """One set of tensors from the parts of a model. Raises InputError where two parts hold the same name."""
    entries: dict[str, Entry] = {}
    for part in parts:
        for name, entry in part.entries.items():
            if name in entries:
                raise InputError(
                    f"{label}: tensor {printable(name)} is in {entries[name].blob.label} and in "
                    f"{entry.blob.label}: they are no parts of one model"
                )
            entries[name] = entry
    return Found(parts[0].format, entries, parts[0].metadata)


def read_json(blob: Blob) -> dict[str, Any]:
    """The JSON object in `blob`. Raises InputError where it is too large, not JSON or not an object."""
    if blob.size > MAX_JSON:
        raise InputError(f"{blob.label} has {blob.size} bytes; JSON files up to {MAX_JSON} are read")
    value = parse_json(blob.read(0, blob.size), blob.label)
    if not isinstance(value, dict):
        raise InputError(f"{blob.label} holds no JSON object: fetch it again")
    return value


def read_config(place: Place, folder: str = "") -> dict[str, Any]:
    """config.json at `place` (in its folder `folder`), `{}` where there is none."""
    blob = place.open(f"{folder}/config.json".lstrip("/"))
    return {} if blob is None else read_json(blob)
