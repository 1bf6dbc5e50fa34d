"""The one interface to named tensors: what there is (`names`), what it costs (`spent`), the values (`read`)."""

from __future__ import annotations

import difflib
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from layerrope.errors import InputError
from layerrope.tensors.blobs import JOIN_GAP, LocalFile, printable
from layerrope.tensors.entries import Entry, Spent, TensorInfo
from layerrope.tensors.floats import BITS, DECODERS, TYPE_NAMES, decode

#: Requests made side by side to one server.
WORKERS = 16
#: `read` refuses more than this many bytes at once: norms are small, and a header may declare anything.
READ_LIMIT = 1 << 30


class TensorSource:
    """Named tensors of one model, read lazily from wherever they lie. Made by `open_source`."""

    def __init__(
        self,
        label: str,
        format: str,
        entries: Mapping[str, Entry],
        config: Mapping[str, Any],
        spent: Spent | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.label = printable(label)
        self.format = format
        self.config: dict[str, Any] = dict(config)
        self.names: Mapping[str, TensorInfo] = MappingProxyType({n: e.info for n, e in entries.items()})
        self.spent = spent or Spent()
        self.notes: list[str] = [*notes, *_undecodable(self.names.values())]
        self._entries = dict(entries)
        self.beside: list[Path] = []  # files that were read for other things than tensors

    def read(self, names: Iterable[str], limit: int = READ_LIMIT) -> dict[str, np.ndarray]:
        """The tensors called `names`: float32, exact (F64 stays float64), shaped as `self.names` says.

        Remote tensors come by byte ranges, neighbours joined, `WORKERS` requests side by side. Raises InputError,
        naming the tensor, where one is unknown, of a dtype that cannot be decoded, or where they take more than
        `limit` bytes together, decoded; and whatever the file or server was found to do wrong.
        """
        entries = [self._readable(name) for name in dict.fromkeys(names)]
        total = sum(_decoded(e.info) for e in entries)
        if total > limit:
            biggest = max(entries, key=lambda e: _decoded(e.info)).info
            raise InputError(
                f"{self.label}: {total} bytes of tensors asked for at once, the largest "
                f"{printable(biggest.name)}; at most {limit} are read, so ask for fewer"
            )
        raw = fetch(entries)
        return {e.info.name: self._decode(e, raw.pop(e.info.name)) for e in entries}

    def _decode(self, entry: Entry, raw: bytes) -> np.ndarray:
        info = entry.info
        try:
            return decode(raw, info.dtype, info.shape, entry.order)
        except ValueError as error:  # legal in a file, and no array: [0, 2^62], or 64 dimensions
            name, reason = printable(info.name), printable(error, 80)
            raise InputError(f"{self.label}: tensor {name} has a shape that no array can have ({reason})") from None

    def files(self) -> list[Path]:
        """The files on this disk that all this comes from, in no order."""
        blobs = {id(e.blob): e.blob for e in self._entries.values()}.values()
        return [*self.beside, *(blob.path for blob in blobs if isinstance(blob, LocalFile))]

    def _readable(self, name: str) -> Entry:
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, n=1, cutoff=0.5)
            hint = f"did you mean {printable(near[0])}?" if near else f"it holds {len(self.names)} others"
            raise InputError(f"{self.label} has no tensor {printable(name)!r}: {hint}")
        entry = self._entries[name]
        if entry.info.dtype not in DECODERS:
            raise InputError(
                f"{self.label}: tensor {printable(name)} is stored as {printable(entry.info.dtype)}, which is not "
                f"read exactly here: use a copy where it is one of {', '.join(DECODERS)}"
            )
        return entry


def fetch(entries: Sequence[Entry]) -> dict[str, bytes]:
    """The stored bytes of each entry, by name; neighbours in a remote file come joined, requests side by side."""
    remote = any(e.blob.remote for e in entries)
    groups = neighbours(entries, JOIN_GAP if remote else 0)
    jobs = [(g[0].blob.read, (g[0].start, max(e.stop for e in g))) for g in groups]
    pieces = in_parallel(jobs, WORKERS if remote else 1)
    return {
        e.info.name: piece[e.start - group[0].start : e.stop - group[0].start]
        for group, piece in zip(groups, pieces, strict=True)
        for e in group
    }


def neighbours(entries: Iterable[Entry], gap: int) -> list[list[Entry]]:
    """Entries grouped so that one range per group fetches them all and wastes at most `gap` bytes a neighbour."""
    groups: list[list[Entry]] = []
    for entry in sorted(entries, key=lambda e: (id(e.blob), e.start)):
        last = groups[-1][-1] if groups else None
        if last is not None and last.blob is entry.blob and entry.start - last.stop <= gap:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def in_parallel(jobs: Sequence[tuple[Any, tuple[Any, ...]]], workers: int) -> list[Any]:
    """[function(*arguments) for each job], in order; the first error stops the jobs not yet begun.

    The threads are daemons and nobody waits for those that an error or an interrupt leaves behind: a server may keep
    them for as long as the timeouts allow.
    """
    if workers == 1 or len(jobs) < 2:
        return [function(*arguments) for function, arguments in jobs]
    ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            function, arguments = jobs[number]
            try:
                ended.put((number, function(*arguments), None))
            except BaseException as error:
                ended.put((number, None, error))

    for number in range(len(jobs)):
        waiting.put(number)
    try:
        for _ in range(min(workers, len(jobs))):
            threading.Thread(target=work, daemon=True).start()
        return _collected(ended, len(jobs))
    finally:
        stop.set()


def _collected(ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]], count: int) -> list[Any]:
    """The results of `count` jobs, in order. Raises the first error that comes."""
    results: list[Any] = [None] * count
    for _ in range(count):
        number, value, error = ended.get()
        if error is not None:
            raise error
        results[number] = value
    return results


def _decoded(info: TensorInfo) -> int:
    """Bytes of a tensor as float32 (float64 for F64), which may be four times those that are stored."""
    return info.nbytes * max(4 * 8 // BITS.get(info.dtype, 32), 1)


def _undecodable(infos: Iterable[TensorInfo]) -> list[str]:
    """One remark per dtype that nobody here has heard of, or that packs several numbers into a byte."""
    counts = Counter(info.dtype for info in infos)
    return [
        f"dtype {printable(dtype)} on {n} tensor{'s' if n > 1 else ''} is not read here; no matter unless asked for"
        for dtype, n in sorted(counts.items())
        if BITS.get(dtype, 0) % 8 or (dtype not in BITS and dtype not in TYPE_NAMES)
    ]
