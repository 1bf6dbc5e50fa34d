"""Scores against plain sums of log-probabilities; truncation on the left; a padded vocabulary."""

from __future__ import annotations

import pytest
import torch
from interop_models import model

from layerrope import InputError
from layerrope.scoring import Scorer


def plain(made: torch.nn.Module, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    ids = context + continuation
    with torch.no_grad():
        logp = made(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    steps = range(len(context) - 1, len(ids) - 1)
    return sum(float(logp[t, ids[t + 1]]) for t in steps), all(int(logp[t].argmax()) == ids[t + 1] for t in steps)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_scores_are_sums_of_log_probabilities(batch_size: int) -> None:
    made = model()
    greedy = made.generate(torch.tensor([[5, 6]]), 4, temperature=0)[0, 2:].tolist()
    pairs = [([5, 6], greedy), ([1], [2, 3, 4]), ([9] * 20, [1]), ([7, 8, 9], [10] * 11)]
    scorer = Scorer(made, 61, batch_size)
    for pair, score in zip(pairs, scorer.score(pairs), strict=True):
        total, is_greedy = plain(made, *pair)
        assert score.log_likelihood == pytest.approx(total, abs=1e-4)
        assert score.greedy is is_greedy
    assert scorer.score(pairs)[0].greedy is True
    assert (scorer.cuts.requests, scorer.cuts.tokens) == (0, 0)


def test_long_requests_lose_tokens_on_the_left_and_are_counted() -> None:
    made = model()
    scorer = Scorer(made, 61, context=8)
    context = list(range(20))
    score = scorer.score([(context, [3, 4]), ([1], [2])])[0]
    assert score.log_likelihood == pytest.approx(plain(made, context[-7:], [3, 4])[0], abs=1e-5)
    assert (scorer.cuts.requests, scorer.cuts.tokens) == (1, 13)


def test_ids_of_a_padded_vocabulary_never_win() -> None:
    made = model()
    with torch.no_grad():
        made.head.weight[60] = made.head.weight[:60].sum(0) * 50
    greedy = int(made(torch.tensor([[5, 6]]))[0, -1, :60].argmax())
    assert Scorer(made, 60).score([([5, 6], [greedy])])[0].greedy is True


def test_what_cannot_be_scored_is_refused() -> None:
    scorer = Scorer(model(), 61, context=8)
    for pair, message in ((([], [1]), "at least one token"), (([1], [2] * 9), "no room")):
        with pytest.raises(InputError, match=message):
            scorer.score([pair])
    with pytest.raises(InputError, match="batch size"):
        Scorer(model(), 61, batch_size=0)
