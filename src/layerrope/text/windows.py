"""Windows over a token shard, and the order in which training visits them.

Dimension key: B windows, T positions of a window.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from layerrope.text.shards import Shard

IGNORED = -100
"""The target of a position that is not counted in any loss."""


class Packed:
    """Documents one after another: window w starts at id w T of the stream.

    Every id after the first is the target of exactly one window. Windows reach over the ends of documents, and
    attention may look into the document before. The last window may be partial; training leaves it out.
    """

    def __init__(self, shard: Shard, seq_len: int) -> None:
        self.shard, self.seq_len = shard, seq_len
        self.count = -(-shard.header.n_tokens // seq_len)
        self.n_train = shard.header.n_tokens // seq_len

    def spans(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The position of each window's first input, and its number of counted targets."""
        starts = windows * self.seq_len
        return starts, np.minimum(self.shard.header.n_tokens - starts, self.seq_len)


class Padded:
    """One document a window: from the end-of-text before it, cut after T targets or filled up with ignored ones.

    The published runs that pad (C4 in the paper's ladder) have no id before a document's first, so there its
    first id is never a target; here it is.
    """

    def __init__(self, shard: Shard, seq_len: int) -> None:
        self.shard, self.seq_len = shard, seq_len
        self.count = self.n_train = shard.header.n_documents

    def spans(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The position of each window's first input, and its number of counted targets."""
        starts, ends = self.shard.offsets[windows], self.shard.offsets[windows + 1]
        return starts - 1, np.minimum(ends - starts, self.seq_len)


LAYOUTS: dict[str, type[Packed] | type[Padded]] = {"packed": Packed, "padded": Padded}


def read(windows: Packed | Padded, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the windows `which`, int64 [B, T]; target t is the id after input t.

    Positions after a window's last target hold end-of-text as input and IGNORED as target.
    """
    starts, lengths = windows.spans(which)
    columns = np.arange(windows.seq_len + 1)
    held = columns <= lengths[:, None]
    ids = windows.shard.gather(np.where(held, starts[:, None] + columns, 0))
    inputs = np.where(columns[:-1] < lengths[:, None], ids[:, :-1], windows.shard.header.eot)
    return inputs, np.where(held[:, 1:], ids[:, 1:], IGNORED)


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of 0 ... n - 1, int64: the order of n draws of the counter-based Philox(seed, epoch).

    It rests on a bit generator's raw draws, which NumPy keeps the same in every version, unlike those of
    `Generator.permutation`.
    """
    key = np.array([seed % (1 << 64), epoch], np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(n), kind="stable")


_permutation = lru_cache(maxsize=2)(permutation)


def visited(n: int, seed: int, first: int, count: int) -> np.ndarray:
    """The windows at places first ... first + count - 1 of training, epoch after epoch over n windows.

    Each epoch visits every window once, in its own `permutation`.
    """
    places = np.arange(first, first + count)
    found = [
        _permutation(n, seed, epoch)[places[places // n == epoch] % n]
        for epoch in range(first // n, (first + count - 1) // n + 1)
    ]
    return np.concatenate(found)
