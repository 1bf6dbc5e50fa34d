"""Text to batches: `load_data(DataConfig(...))` gives the same windows in the same order to every run.

Dimension key: B rows of a batch, T positions of a window (`seq_len`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerrope.config import MOST
from layerrope.errors import InputError, one_of
from layerrope.text.prepare import Progress, prepare
from layerrope.text.shards import Shard
from layerrope.text.tokens import Tokenizer, TokenizerInfo
from layerrope.text.windows import IGNORED, LAYOUTS, Packed, Padded, read, visited

__all__ = ["IGNORED", "DataConfig", "Dataset", "Split", "load_data"]


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
        if not 1 <= self.seq_len <= MOST:
            raise InputError(f"seq_len is {self.seq_len}: a window has at least 1 position, at most {MOST}")
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
        layout = LAYOUTS[config.layout]
        self._train, self._val = layout(train, config.seq_len), layout(val, config.seq_len)
        _check_length("training", train, config)
        _check_length("validation", val, config)
        self.train = _split(self._train, self._train.n_train)
        self.val = _split(self._val, self._val.count)

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
        order of its own (`windows.permutation`), and a batch may reach over its end. Raises InputError when batch_size
        is not a multiple of world.
        """
        if batch_size < 1 or world < 1 or batch_size % world:
            raise InputError(f"a batch of {batch_size} rows cannot be shared equally by {world} ranks")
        if step < 0 or not 0 <= rank < world:
            raise InputError(f"no batch for step {step} on rank {rank} of {world}: both count from 0")
        share = batch_size // world
        first = step * batch_size + rank * share
        return _tensors(read(self._train, visited(self._train.n_train, seed, first, share)))

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Validation inputs and targets [B, T] in a fixed order, every id of the split a counted target once.

        The last batch may have fewer rows. With `max_tokens`, just so many windows as hold that number of
        positions, evenly spaced over the split. The windows never depend on `batch_size`.
        """
        if batch_size < 1:
            raise InputError(f"an evaluation batch of {batch_size} rows: at least 1")
        count = self._val.count
        keep = count if max_tokens is None else min(count, -(-max(max_tokens, 1) // self.config.seq_len))
        chosen = np.arange(keep) * count // keep
        for start in range(0, keep, batch_size):
            yield _tensors(read(self._val, chosen[start : start + batch_size]))

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
        header = self._train.shard.header
        return {
            "source": header.source,
            "source_sha256": header.source_sha256,
            "tokenizer": self.tokenizer_info.name,
            "tokenizer_sha256": self.tokenizer_info.sha256,
            "vocab_size": self.vocab_size,
            "layout": self.config.layout,
            "seq_len": self.config.seq_len,
            "split_by": self.split_by,
            "train_ids_sha256": header.sha256,
            "val_ids_sha256": self._val.shard.header.sha256,
            "train": vars(self.train),
            "val": vars(self.val),
        }


def _tensors(arrays: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])


def _split(windows: Packed | Padded, n_windows: int) -> Split:
    header = windows.shard.header
    counted = int(windows.spans(np.arange(n_windows))[1].sum())
    return Split(header.n_tokens, header.n_bytes, header.n_documents, n_windows, counted)


def _check_length(name: str, shard: Shard, config: DataConfig) -> None:
    n_tokens = shard.header.n_tokens
    if n_tokens == 0 or (config.layout == "packed" and n_tokens < config.seq_len):
        raise InputError(
            f"the {name} split of {config.source} has {n_tokens:,} tokens, fewer than one window of "
            f"{config.seq_len}: give more text or a smaller seq_len"
        )


def load_data(config: DataConfig, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """The data `config` describes, tokenised once and kept as shards in `cache_dir`.

    cache_dir: default ~/.cache/layerrope; where that cannot be written, a folder that ends with the process.
    progress: called as progress(stage, characters of text so far), stage being "tokenizer" or "tokens".

    Raises InputError for a source, tokenizer or shard that cannot be used (see `layerrope.text.prepare`).
    """
    prepared = prepare(config, cache_dir, progress)
    return Dataset(config, prepared.tokenizer, prepared.train, prepared.val, prepared.split_by)
