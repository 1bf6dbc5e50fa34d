"""Batches and evaluation windows: pure functions of their arguments, every token once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerrope.data import IGNORED, DataConfig, Dataset, load_data
from layerrope.errors import InputError
from layerrope.windows import permutation


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def embedded(cache: Path) -> Dataset:
    return load_data(DataConfig(), cache)


def test_the_embedded_corpus_loads(embedded: Dataset) -> None:
    assert (embedded.train.n_bytes, embedded.val.n_bytes) == (5_274_610, 296_208)
    assert (embedded.train.n_documents, embedded.val.n_documents) == (377, 15)
    assert embedded.vocab_size == 257


def test_targets_are_the_inputs_one_further_on(embedded: Dataset) -> None:
    inputs, targets = embedded.batch(3, 8)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (8, 128)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@given(step=st.integers(0, 10**6), seed=st.integers(-5, 2**70), world=st.sampled_from([1, 2, 3, 4, 6, 12]))
@settings(deadline=None, max_examples=25)
def test_ranks_take_contiguous_slices_of_one_global_batch(embedded: Dataset, step: int, seed: int, world: int) -> None:
    whole = embedded.batch(step, 12, seed=seed)
    parts = [embedded.batch(step, 12, seed=seed, rank=r, world=world) for r in range(world)]
    for which in range(2):
        assert torch.equal(whole[which], torch.cat([part[which] for part in parts]))


@given(n=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 99))
def test_permutation_holds_every_window_once(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permutation(n, seed, epoch)), np.arange(n))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_evaluation_counts_every_token_once_whatever_the_batch(embedded: Dataset, batch_size: int) -> None:
    targets = torch.cat([t[t != IGNORED] for _, t in embedded.eval_batches(batch_size, 10_000)])
    whole = torch.cat([t[t != IGNORED] for _, t in embedded.eval_batches(5, 10_000)])
    assert torch.equal(targets, whole)


def test_a_batch_that_ranks_cannot_share_is_refused(embedded: Dataset) -> None:
    with pytest.raises(InputError, match="cannot be shared"):
        embedded.batch(0, 10, world=4)
