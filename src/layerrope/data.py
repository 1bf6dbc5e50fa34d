"""Text to batches: `load_data(DataConfig(...))` gives the same windows in the same order to every run.

Dimension key: B rows of a batch, T positions of a window (`seq_len`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerrope.errors import InputError, one_of
from layerrope.prepare import Progress, prepare
from layerrope.shards import Shard
from layerrope.tokens import Tokenizer, TokenizerInfo

IGNORED = -100
"""The target of a position that is not counted in any loss."""

LAYOUTS = ("packed", "padded")


@dataclass(frozen=True)
class DataConfig:
    """Which text, which tokenizer, which windows."""

    source: str = "embedded"
    """embedded, a .txt or .jsonl file (also .xz, .zst, .gz), a folder of these, or hf:NAME[:CONFIG][@REVISION]."""
    tokenizer: str = "bytes"
    """bytes, bpe:SIZE (trained on the training split), a tokenizer.json file, or hub:NAME."""
    seq_len: int = 128
    """T, positions in a window."""
    layout: str = "packed"
    """packed (documents one after another) or padded (each document padded or cut to T)."""
    val_fraction: float = 0.05
    """Share held out, by a hash of the work or document, where the source has no validation split of its own."""
    text_key: str = "text"
    """The key (jsonl) or column (hf) that holds the text."""
    max_docs: int | None = None
    """Stop the training split after this many documents."""
    max_tokens: int | None = None
    """Stop the training split with the document that reaches this many tokens."""
    max_val_tokens: int | None = None
    """Stop the validation split with the document that reaches this many tokens."""

    def __post_init__(self) -> None:
        one_of("layout", self.layout, LAYOUTS)
        if self.seq_len < 1:
            raise InputError(f"seq_len is {self.seq_len}: a window has at least 1 position")
        if not 0 < self.val_fraction < 1:
            raise InputError(f"val_fraction is {self.val_fraction}: it lies between 0 and 1, both excluded")
        for name in ("max_docs", "max_tokens", "max_val_tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise InputError(f"{name} is {limit}: at least 1, or leave it out for no limit")


@dataclass(frozen=True)
class Split:
    """One side of the data. `n_tokens` counts every id of its documents, an end-of-text each included."""

    n_tokens: int
    n_bytes: int
    n_documents: int
    n_windows: int
    n_counted: int
    """Targets that are counted in one pass over the windows."""


class Windows:
    """Windows over a shard. Each has T inputs and T targets, the targets one id further on.

    packed: window w starts at id w T of the stream; attention may reach into the document before. Every id
    after the first is the target of one window; the last window may be partial.
    padded: window w is document w, from the end-of-text before it, cut after T targets or padded with
    end-of-text inputs whose targets are ignored.
    """

    def __init__(self, shard: Shard, layout: str, seq_len: int) -> None:
        self.shard, self.seq_len = shard, seq_len
        header = shard.header
        if layout == "packed":
            count = -(-header.n_tokens // seq_len)
            self._span = lambda w: (w * seq_len, np.minimum(header.n_tokens - w * seq_len, seq_len))
        else:
            count = header.n_documents
            self._span = lambda w: (
                shard.offsets[w] - 1,
                np.minimum(shard.offsets[w + 1] - shard.offsets[w], seq_len),
            )
        self.count = count

    def lengths(self, windows: np.ndarray) -> np.ndarray:
        """Counted targets of each of `windows`."""
        return self._span(windows)[1]

    def read(self, windows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `windows`, both int64 [B, T]."""
        starts, lengths = self._span(windows)
        columns = np.arange(self.seq_len + 1)
        held = columns <= lengths[:, None]
        ids = self.shard.gather(np.where(held, starts[:, None] + columns, 0))
        targets = np.where(held[:, 1:], ids[:, 1:], IGNORED)
        inputs = np.where(held[:, :-1], ids[:, :-1], self.shard.header.eot)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of 0 ... n - 1 that depends on nothing else: the order of n draws of Philox(seed, epoch).

    The raw draws of a NumPy bit generator are the same in every version, unlike `Generator.permutation`.
    """
    key = np.array([seed % (1 << 64), epoch], np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(n), kind="stable")


_permutation = lru_cache(maxsize=4)(permutation)


class Dataset:
    """Batches from a training shard, evaluation from a validation shard, and the tokenizer between.

    Raises InputError when a split is shorter than one window.
    """

    def __init__(
        self, config: DataConfig, tokenizer: Tokenizer, train: Shard, val: Shard, split_by: str = "source"
    ) -> None:
        self.config = config
        self.split_by = split_by
        self._tokenizer = tokenizer
        self._windows = {
            side: Windows(shard, config.layout, config.seq_len) for side, shard in (("train", train), ("val", val))
        }
        for side, windows in self._windows.items():
            _check_length(side, windows, config)
        packed_train = config.layout == "packed"
        self._n_train = train.header.n_tokens // config.seq_len if packed_train else train.header.n_documents
        self.train = _split(self._windows["train"], self._n_train)
        self.val = _split(self._windows["val"], self._windows["val"].count)

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def eot(self) -> int:
        """The end-of-text id."""
        return self._tokenizer.eot

    @property
    def tokenizer_info(self) -> TokenizerInfo:
        return self._tokenizer.info

    def batch(
        self, step: int, batch_size: int, *, seed: int = 0, rank: int = 0, world: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Training inputs and targets of `step`, int64 [batch_size / world, T]; -100 is not counted.

        `batch_size` is the global number of rows; rank r takes the r-th of `world` equal runs of them, so the
        global batch of a step does not depend on `world`. Every epoch goes through all full windows once, in an
        order of its own (`permutation`), and a batch may reach over its end. Raises InputError when batch_size
        is not a multiple of world.
        """
        if batch_size < 1 or world < 1 or batch_size % world:
            raise InputError(f"a batch of {batch_size} rows cannot be shared equally by {world} ranks")
        if step < 0 or not 0 <= rank < world:
            raise InputError(f"no batch for step {step} on rank {rank} of {world}: both count from 0")
        share = batch_size // world
        first = step * batch_size + rank * share
        rows = range(first, first + share)
        return self._windows["train"].read(self._order(rows, seed))

    def _order(self, rows: range, seed: int) -> np.ndarray:
        found = [
            _permutation(self._n_train, seed, epoch)[
                max(rows.start - epoch * self._n_train, 0) : rows.stop - epoch * self._n_train
            ]
            for epoch in range(rows.start // self._n_train, (rows.stop - 1) // self._n_train + 1)
        ]
        return np.concatenate(found)

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Validation inputs and targets [B, T] in a fixed order, every id of the split a counted target once.

        The last batch may have fewer rows. With `max_tokens`, just so many windows as hold that number of
        positions, evenly spaced over the split. The windows never depend on `batch_size`.
        """
        windows = self._windows["val"]
        keep = windows.count if max_tokens is None else -(-max(max_tokens, 1) // self.config.seq_len)
        keep = min(keep, windows.count)
        chosen = np.arange(keep) * windows.count // keep
        for start in range(0, keep, batch_size):
            yield windows.read(chosen[start : start + batch_size])

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without an end-of-text."""
        return self._tokenizer.encode_batch([text])[0].tolist()

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of `ids`; end-of-text is written out."""
        return self._tokenizer.decode(list(map(int, ids)))

    def bits_per_byte(self, nats_per_token: float) -> float:
        """A validation loss in nats per token as bits per byte of UTF-8 text.

        Uses the tokens per byte of the whole validation split (end-of-text counts as a token, not as a byte):
        exact for a loss over the whole packed split, and the split's average otherwise.
        """
        return nats_per_token * self.val.n_tokens / self.val.n_bytes / math.log(2)

    def summary(self) -> dict[str, Any]:
        """What was loaded, for a run's records: names, hashes, counts. No path of this machine is in it."""
        header = self._windows["train"].shard.header
        return {
            "source": header.source,
            "source_sha256": header.source_sha256,
            "tokenizer": self.tokenizer_info.name,
            "tokenizer_sha256": self.tokenizer_info.sha256,
            "vocab_size": self.vocab_size,
            "layout": self.config.layout,
            "seq_len": self.config.seq_len,
            "split_by": self.split_by,
            "train": vars(self.train),
            "val": vars(self.val),
        }


def _split(windows: Windows, n_windows: int) -> Split:
    header = windows.shard.header
    counted = int(windows.lengths(np.arange(n_windows)).sum())
    return Split(header.n_tokens, header.n_bytes, header.n_documents, n_windows, counted)


def _check_length(side: str, windows: Windows, config: DataConfig) -> None:
    n_tokens, name = windows.shard.header.n_tokens, "training" if side == "train" else "validation"
    if n_tokens == 0 or (config.layout == "packed" and n_tokens < config.seq_len):
        raise InputError(
            f"the {name} split of {config.source} has {n_tokens:,} tokens, fewer than one window of "
            f"{config.seq_len}: give more text or a smaller seq_len"
        )


def load_data(config: DataConfig, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """The data `config` describes, tokenised once and kept as shards in `cache_dir`.

    cache_dir: default ~/.cache/layerrope; where that cannot be written, a folder that ends with the process.
    progress: called as progress(stage, bytes of text so far), stage being "tokenizer" or "tokens".

    Raises InputError for a source, tokenizer or shard that cannot be used (see `layerrope.prepare`).
    """
    prepared = prepare(config, cache_dir, progress)
    return Dataset(config, prepared.tokenizer, prepared.train, prepared.val, prepared.split_by)
