"""Hugging Face datasets, streamed: rows are kept as they come, so that none is fetched twice.

The cache has a folder for each dataset at one revision: `about.json`, and the rows in compressed JSON lines,
`SPLIT-FIRST.jsonl.zst`, named by the number of their first row; `SPLIT-COUNT.end` marks a split that was read to
its end. What is there is read; from there on, the stream goes on. Files are published by rename and rows never
change within a revision, so an interrupted or parallel fetch leaves a valid beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from layerrope.cache import content_key
from layerrope.errors import InputError, MissingExtra, reason
from layerrope.files import dumps, read_json, write_atomic, write_json
from layerrope.text.documents import Document, Side
from layerrope.text.files import digest, document_from, read_jsonl

PART_CHARS = 16 << 20
"""Characters in a file of rows."""
VAL_SPLITS = ("validation", "valid", "val", "dev", "test")
"""Names of the split used for validation: the first of them that exists."""


@dataclass(frozen=True)
class HubRows:
    """The training split of a dataset and its validation split, if it has one, as a source.

    `revision` names the content (a commit of the Hub, or a hash of a local folder's files); `location` is where
    it is read, and `commit` what is asked for there.
    """

    location: str
    config: str | None
    commit: str | None
    revision: str
    text_key: str
    val_split: str | None
    folder: Path

    @property
    def name(self) -> str:
        return Path(self.location).name if self.commit is None else self.location

    @property
    def sha256(self) -> str:
        return content_key("hf", self.name, self.config, self.revision, self.text_key)

    @property
    def sides(self) -> tuple[Side | None, ...]:
        return ("val", "train") if self.val_split else (None,)

    def documents(self, side: Side | None) -> Iterator[Document]:
        """The rows with text, from the cache as far as it goes and then from the Hub."""
        split = self.val_split if side == "val" and self.val_split else "train"
        yield from (row for row in self._rows(split) if row.text.strip())

    def _rows(self, split: str) -> Iterator[Document]:
        count = 0
        for row in self._kept(split):
            count += 1
            yield row
        if not self._path(split, count, "end").exists():
            yield from self._fetched(split, count)

    def _kept(self, split: str) -> Iterator[Document]:
        first = 0
        while (part := self._path(split, first, "jsonl.zst")).exists():
            rows = list(read_jsonl(part, "text"))
            if not rows:
                raise InputError(f"{part} has no rows: delete it and run again to have it fetched again")
            yield from rows
            first += len(rows)

    def _fetched(self, split: str, first: int) -> Iterator[Document]:
        writer = _Writer(self, split, first)
        try:
            for number, record in enumerate(self._stream(split, first), first):
                row = document_from(record, f"{self.name}, row {number} of {split},", self.text_key)
                writer.add(row)
                yield row
            writer.flush()
            write_atomic(self._path(split, writer.first, "end"), b"")
        finally:
            writer.flush()

    def _stream(self, split: str, first: int) -> Iterator[Any]:
        try:
            yield from load_splits(self.location, self.config, self.commit)[split].skip(first)
        except InputError:
            raise
        except Exception as error:  # whatever the library, the network or a data file raises
            raise InputError(
                f"the stream of {self.name} stopped ({reason(error)}): run again to go on from there"
            ) from error

    def _path(self, split: str, first: int, suffix: str) -> Path:
        return self.folder / f"{split}-{first:012d}.{suffix}"


@dataclass
class _Writer:
    """Holds fetched rows and publishes them file by file; `first` is the number of the next file's first row."""

    source: HubRows
    split: str
    first: int
    rows: list[Document] = field(default_factory=list)
    chars: int = 0

    def add(self, row: Document) -> None:
        self.rows.append(row)
        self.chars += len(row.text)
        if self.chars >= PART_CHARS:
            self.flush()

    def flush(self) -> None:
        if not self.rows:
            return
        lines = (dumps({"text": row.text, "work": row.work}, indent=None) for row in self.rows)
        raw = zstandard.ZstdCompressor().compress("\n".join(lines).encode())
        write_atomic(self.source._path(self.split, self.first, "jsonl.zst"), raw)
        self.first, self.rows, self.chars = self.first + len(self.rows), [], 0


def open_hub(spec: str, text_key: str, cache: Path) -> HubRows:
    """The dataset "hf:NAME[:CONFIG][@REVISION]"; NAME may be a local folder that `datasets` can read.

    The revision and the names of the splits are looked up once and then kept, so what was fetched can be used
    without a network. Raises MissingExtra without `datasets`, InputError for a dataset that cannot be opened.
    """
    found = re.fullmatch(r"hf:([^:@]+)(?::([^:@]+))?(?:@([^:@]+))?", spec)
    if found is None:
        raise InputError(f"cannot read {spec!r}: a dataset is hf:NAME[:CONFIG][@REVISION]")
    name, config, asked = found.groups()
    local = Path(name).expanduser()
    content = _folder_sha256(local) if local.is_dir() else asked
    folder = cache / "hub" / content_key(name, config, content, text_key)[:32]
    about = folder / "about.json"
    if not about.exists():
        commit = None if local.is_dir() else _commit(name, asked)
        val_split = _val_split(load_splits(name, config, commit), name)
        write_json(about, {"commit": commit, "revision": commit or content, "val_split": val_split})
    kept = read_json(about)
    if not isinstance(kept, dict) or set(kept) != {"commit", "revision", "val_split"}:
        raise InputError(f"{about} is damaged: delete its folder and run again to have the rows fetched again")
    return HubRows(location=name, config=config, text_key=text_key, folder=folder, **kept)


def _val_split(splits: Any, name: str) -> str | None:
    if "train" not in splits:
        raise InputError(f"{name} has no split called train (it has {', '.join(splits)}): choose another dataset")
    return next((split for split in VAL_SPLITS if split in splits), None)


def _commit(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    except Exception as error:
        raise InputError(
            f"cannot find the dataset {name!r} on the Hugging Face Hub ({reason(error)}): check the name, "
            f"the network and, for a gated one, your token"
        ) from error


def load_splits(name: str, config: str | None, revision: str | None) -> Any:
    """The splits of a dataset by name, streamed. Raises MissingExtra or InputError."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra("datasets", "hf") from error
    try:
        return datasets.load_dataset(name, config, revision=revision, streaming=True)
    except Exception as error:
        raise InputError(f"cannot open the dataset {name!r} ({reason(error)}): check its name") from error


def _folder_sha256(folder: Path) -> str:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return content_key([(path.relative_to(folder).as_posix(), digest(path)) for path in files])
