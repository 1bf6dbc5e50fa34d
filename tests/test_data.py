"""Batches and evaluation windows against plain references: pure functions, every token once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerrope.data import IGNORED, DataConfig, Dataset, load_data
from layerrope.errors import InputError
from layerrope.text.windows import permutation, visited

EOT = 256
Maker = Callable[..., Dataset]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def embedded(cache: Path) -> Dataset:
    return load_data(DataConfig(), cache)


def from_texts(folder: Path, train: list[str], val: list[str], **settings: Any) -> Dataset:
    """A dataset from lists of training and validation texts."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for name, found in (("train", train), ("val", val)):
        (texts / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in found))
    return load_data(DataConfig(source=str(texts), **settings), folder / "cache")


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return partial(from_texts, tmp_path)


def stream(texts: list[str]) -> list[int]:
    return [EOT] + [i for text in texts for i in [*text.encode(), EOT]]


def test_the_embedded_corpus_needs_nothing(embedded: Dataset) -> None:
    assert (embedded.train.n_bytes, embedded.val.n_bytes) == (5_274_610, 296_208)
    assert (embedded.train.n_documents, embedded.val.n_documents) == (377, 15)
    assert embedded.train.n_tokens == embedded.train.n_bytes + embedded.train.n_documents
    assert (embedded.vocab_size, embedded.eot, embedded.split_by) == (257, 256, "source")


def test_bpe_on_the_embedded_corpus_is_shorter_and_loses_nothing(cache: Path, embedded: Dataset) -> None:
    data = load_data(DataConfig(tokenizer="bpe:300"), cache)
    assert data.vocab_size == 300
    assert data.val.n_tokens < 0.8 * embedded.val.n_tokens
    ids = torch.cat([targets[targets != IGNORED] for _, targets in data.eval_batches(64)])
    ids = ids[ids != data.eot]
    plain = torch.cat([targets[targets != IGNORED] for _, targets in embedded.eval_batches(64)])
    assert data.decode(ids) == embedded.decode(plain[plain != EOT])


@pytest.mark.parametrize("seq_len", [1, 3, 7, 20])
def test_packed_windows_are_the_stream_cut_every_t(make: Maker, seq_len: int) -> None:
    texts = ["one two", "three", "a somewhat longer document", "x"]
    data = make(texts, texts, seq_len=seq_len)
    ids = stream(texts)
    expected = [(ids[w : w + seq_len], ids[w + 1 : w + 1 + seq_len]) for w in range(0, len(ids) - seq_len, seq_len)]
    rows = zip(*data.batch(0, len(expected)), strict=True)
    assert sorted((i.tolist(), t.tolist()) for i, t in rows) == sorted(expected)
    assert data.train.n_windows == len(expected)
    assert data.train.n_counted == len(expected) * seq_len


@pytest.mark.parametrize("seq_len", [1, 3, 7, 40])
def test_padded_windows_are_single_documents(make: Maker, seq_len: int) -> None:
    texts = ["one two", "three", "a somewhat longer document", "x"]
    data = make(texts, texts, seq_len=seq_len, layout="padded")
    expected = []
    for text in texts:
        ids = [EOT, *text.encode(), EOT][: seq_len + 1]
        gap = seq_len + 1 - len(ids)
        expected.append((ids[:-1] + [EOT] * gap, ids[1:] + [IGNORED] * gap))
    rows = zip(*data.batch(0, len(texts)), strict=True)
    assert sorted((i.tolist(), t.tolist()) for i, t in rows) == sorted(expected)
    evaluated = [(i.tolist(), t.tolist()) for b in data.eval_batches(3) for i, t in zip(*b, strict=True)]
    assert evaluated == expected
    assert data.val.n_counted == sum(t != IGNORED for _, row in expected for t in row)


@given(
    texts=st.lists(st.text(min_size=1, max_size=40).filter(lambda t: not t.isspace()), min_size=1, max_size=6),
    seq_len=st.integers(1, 9),
    batch_size=st.integers(1, 9),
)
@settings(deadline=None, max_examples=40)
def test_evaluation_counts_every_token_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], seq_len: int, batch_size: int
) -> None:
    texts = ["long enough for a window", *texts]
    data = from_texts(tmp_path_factory.mktemp("t"), texts, texts, seq_len=seq_len)
    batches = list(data.eval_batches(batch_size))
    counted = torch.cat([targets[targets != IGNORED] for _, targets in batches])
    assert counted.tolist() == stream(texts)[1:]
    assert len(counted) == data.val.n_tokens == data.val.n_counted
    assert all(len(inputs) == batch_size for inputs, _ in batches[:-1])
    assert all(i.shape == t.shape == (len(i), seq_len) for i, t in batches)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_row_of_every_batch_counts_something(make: Maker, layout: str) -> None:
    texts = ["x" * n for n in range(1, 30)]
    data = make(texts, texts, seq_len=8, layout=layout)
    for _, targets in [*data.eval_batches(4), data.batch(0, 64)]:
        assert (targets != IGNORED).any(dim=1).all()


@pytest.mark.parametrize("max_tokens", [1, 1_000, 10_000, 10**9])
def test_a_shorter_evaluation_does_not_depend_on_the_batch_size(embedded: Dataset, max_tokens: int) -> None:
    found = [torch.cat([t for _, t in embedded.eval_batches(b, max_tokens)]) for b in (5, 64)]
    assert torch.equal(found[0], found[1])
    assert len(found[0]) == min(math.ceil(max_tokens / 128), embedded.val.n_windows)


def test_a_shorter_evaluation_is_spread_over_the_split(embedded: Dataset) -> None:
    whole = torch.cat([inputs for inputs, _ in embedded.eval_batches(64)])
    part = torch.cat([inputs for inputs, _ in embedded.eval_batches(64, 10 * 128)])
    places = [int((whole == row).all(dim=1).nonzero()[0]) for row in part]
    assert places == [i * len(whole) // 10 for i in range(10)]


@given(step=st.integers(0, 10**6), seed=st.integers(-5, 2**70), world=st.sampled_from([1, 2, 3, 4, 6, 12]))
@settings(deadline=None, max_examples=25)
def test_ranks_take_contiguous_slices_of_one_global_batch(embedded: Dataset, step: int, seed: int, world: int) -> None:
    whole = embedded.batch(step, 12, seed=seed)
    parts = [embedded.batch(step, 12, seed=seed, rank=r, world=world) for r in range(world)]
    for which in range(2):
        assert torch.equal(whole[which], torch.cat([part[which] for part in parts]))


@given(n=st.integers(1, 50), batch=st.integers(1, 60), seed=st.integers(0, 9))
def test_each_epoch_visits_every_window_once_in_its_own_order(n: int, batch: int, seed: int) -> None:
    steps = math.ceil(3 * n / batch)
    order = np.concatenate([visited(n, seed, step * batch, batch) for step in range(steps)])
    epochs = order[: 3 * n].reshape(3, n)
    assert np.array_equal(np.sort(epochs, axis=1), np.tile(np.arange(n), (3, 1)))
    assert np.array_equal(epochs[1], permutation(n, seed, 1))
    if n > 20:
        assert not np.array_equal(epochs[0], epochs[1])


def test_batches_are_a_pure_function(embedded: Dataset, cache: Path) -> None:
    again = load_data(DataConfig(), cache)
    late = again.batch(7_000, 4, seed=3)
    for step in (0, 1, 7_000):
        assert torch.equal(embedded.batch(step, 4, seed=3)[0], again.batch(step, 4, seed=3)[0])
    assert torch.equal(late[0], embedded.batch(7_000, 4, seed=3)[0])
    assert not torch.equal(embedded.batch(0, 4, seed=3)[0], embedded.batch(0, 4, seed=4)[0])


def test_the_order_is_the_same_on_every_machine() -> None:
    assert permutation(10, seed=0, epoch=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert permutation(10, seed=1, epoch=2).tolist() == [4, 2, 0, 6, 1, 5, 9, 8, 7, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 10, "world": 4}, "cannot be shared equally by 4"),
        ({"batch_size": 0}, "cannot be shared"),
        ({"batch_size": 4, "rank": 2, "world": 2}, "rank 2 of 2"),
        ({"batch_size": 4, "step": -1}, "step -1"),
    ],
)
def test_a_batch_that_cannot_be(embedded: Dataset, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        embedded.batch(**{"step": 0, **arguments})
    with pytest.raises(InputError, match="at least 1"):
        next(embedded.eval_batches(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "packd"}, "did you mean packed"),
        ({"seq_len": 0}, "at least 1 position"),
        ({"val_fraction": 1.0}, "between 0 and 1"),
        ({"max_docs": 0}, "max_docs is 0"),
        ({"max_tokens": -3}, "max_tokens is -3"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DataConfig(**settings)  # type: ignore[arg-type]


def test_a_split_shorter_than_one_window_is_refused(make: Maker) -> None:
    with pytest.raises(InputError, match=r"training split .* has 6 tokens, fewer than one window of 7"):
        make(["hello"], ["long enough"], seq_len=7)
    with pytest.raises(InputError, match=r"validation split .* has 6 tokens"):
        make(["long enough"], ["hello"], seq_len=7)
    assert make(["hello!"], ["hello!"], seq_len=7).train.n_windows == 1
    assert make(["hello"], ["hello"], seq_len=7, layout="padded").train.n_windows == 1


def test_bits_per_byte_of_a_uniform_guess(make: Maker) -> None:
    data = make(["abcdefg"], ["äöü", "x"], seq_len=2)
    assert data.bits_per_byte(math.log(2)) == pytest.approx((7 + 2) / 7)


def test_limits_stop_with_whole_documents(make: Maker) -> None:
    texts = [f"document {i:03d}" for i in range(100)]
    assert make(texts, texts, seq_len=4, max_docs=5).train.n_documents == 5
    limited = make(texts, texts, seq_len=4, max_tokens=30, max_val_tokens=13)
    assert (limited.train.n_documents, limited.val.n_documents) == (3, 1)
    both = make(texts, texts, seq_len=4, max_docs=5, max_tokens=10_000)
    assert (both.train.n_documents, both.val.n_documents) == (5, 100)


def test_the_summary_is_json_and_names_no_folder(make: Maker, tmp_path: Path) -> None:
    summary = make(["some text here"], ["some text there"], seq_len=4).summary()
    text = json.dumps(summary)
    assert str(tmp_path) not in text
    assert summary["train"]["n_bytes"] == 14
    assert summary["source"] == "texts"
