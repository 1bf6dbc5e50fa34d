"""Log-likelihoods of texts under an `LM`, as evaluation harnesses ask for them, and what was done to make them fit.

Nothing is ever put before a text but what the caller puts there. Texts longer than the context lose tokens on the
left, and each such cut is counted.

Dimensions: B batch, T position, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.errors import InputError
from layerrope.model import LM


@dataclass
class Cuts:
    """How many requests were cut on the left, and by how many tokens in all."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Score:
    """Of a continuation after its context."""

    log_likelihood: float
    """sum over the continuation, nats"""
    greedy: bool
    """is every token of it the most likely one?"""


class Scorer:
    """Scores continuations in batches.

    Args:
        model: the LM, on its device.
        n_ids: ids that the tokenizer has; those of a padded vocabulary beyond it never count as the most likely.
        batch_size: rows of a forward pass.
        context: positions per row; None: the model's seq_len.
    """

    def __init__(self, model: LM, n_ids: int, batch_size: int = 8, context: int | None = None) -> None:
        if batch_size < 1:
            raise InputError(f"batch size must be at least 1: got {batch_size}")
        self.model = model.eval()
        self.n_ids, self.batch_size = n_ids, batch_size
        self.context = context or model.config.seq_len
        self.cuts = Cuts()

    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Score]:
        """One score for each (context ids, continuation ids), in their order. Contexts hold at least one id."""
        rows = [self._fit(context, continuation) for context, continuation in pairs]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
        scores: dict[int, Score] = {}
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            scores |= dict(zip(chosen, self._batch([rows[i] for i in chosen]), strict=True))
        return [scores[i] for i in range(len(rows))]

    def _fit(self, context: list[int], continuation: list[int]) -> tuple[list[int], int]:
        """(ids that fit the context and one target more, number of scored ids)."""
        if not context or not continuation:
            raise InputError("a score needs a context and a continuation of at least one token each")
        whole = context + continuation
        cut = max(0, len(whole) - self.context - 1)
        if cut >= len(context):
            raise InputError(
                f"a continuation of {len(continuation)} tokens leaves no room for context in {self.context} positions"
            )
        self.cuts.requests += cut > 0
        self.cuts.tokens += cut
        return whole[cut:], len(continuation)

    @torch.no_grad()
    def _batch(self, rows: list[tuple[list[int], int]]) -> list[Score]:
        longest = max(len(ids) for ids, _ in rows) - 1
        padded = torch.tensor([ids[:-1] + [0] * (longest + 1 - len(ids)) for ids, _ in rows])
        logits = self.model(padded.to(self.model.embed.weight.device)).float().cpu()
        return [self._one(logits[b], ids, n) for b, (ids, n) in enumerate(rows)]

    def _one(self, logits: Tensor, ids: list[int], n: int) -> Score:
        """The score of the last `n` of `ids` from logits (T, V)."""
        end = len(ids) - 1
        here, targets = logits[end - n : end], torch.tensor(ids[-n:])
        total = F.log_softmax(here, dim=-1).gather(1, targets[:, None]).sum()
        return Score(float(total), bool((here[:, : self.n_ids].argmax(-1) == targets).all()))
