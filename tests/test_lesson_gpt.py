"""The exercises of lesson 1: attention, loss, count; each usual mistake has its diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit import gpt
from kit.gpt import check_attention, check_count, check_loss, softmax
from lesson_answers import assert_told, wrong_answers

from layerrope import LM, ModelConfig
from layerrope.config import preset

BELOW = np.tril(np.ones((6, 6))) > 0


def attend(q: Any, k: Any, v: Any, *, scale: float = 0.5, keep: Any = BELOW, axis: int = -1) -> Any:
    return softmax(np.where(keep, scale * q @ k.T, -np.inf), axis) @ v


def hiding_itself(q: Any, k: Any, v: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return attend(q, k, v, keep=np.tril(np.ones((6, 6)), -1) > 0)


ATTENTIONS = {
    "returns nothing": lambda q, k, v: None,
    "has shape (6, 6)": lambda q, k, v: q @ k.T,
    "No mask": lambda q, k, v: attend(q, k, v, keep=True),
    "not divided by sqrt(d)": lambda q, k, v: attend(q, k, v, scale=1.0),
    "Divided by d": lambda q, k, v: attend(q, k, v, scale=0.25),
    "after the softmax": lambda q, k, v: (softmax(q @ k.T / 2) * BELOW) @ v,
    "set to 0": lambda q, k, v: softmax(q @ k.T / 2 * BELOW) @ v,
    "runs over queries": lambda q, k, v: attend(q, k, v, axis=0),
    "upside down": lambda q, k, v: attend(q, k, v, keep=BELOW.T),
    "must see itself": hiding_itself,
    "two positions": lambda q, k, v: attend(k, k, v),
}


def chosen(logits: Any, targets: Any) -> Any:
    return softmax(logits)[np.arange(len(targets)), targets]


LOSSES = {
    "returns nothing": lambda x, t: ...,
    "one number": lambda x, t: -np.log(chosen(x, t)),
    "The sign": lambda x, t: np.log(chosen(x, t)).mean(),
    "in bits": lambda x, t: -np.log2(chosen(x, t)).mean(),
    "The sum over": lambda x, t: -np.log(chosen(x, t)).sum(),
    "logarithm of the mean": lambda x, t: -np.log(chosen(x, t).mean()),
    "probability of being wrong": lambda x, t: 1 - chosen(x, t).mean(),
    "not log-probabilities": lambda x, t: -x[np.arange(len(t)), t].mean(),
    "differs from the mean": lambda x, t: 0.5,
    "overflows": lambda x, t: -np.log((np.exp(x) / np.exp(x).sum(1, keepdims=True))[np.arange(len(t)), t]).mean(),
}


def without(lack: Any) -> Any:
    return lambda L, d, f, V, T: gpt.solve_count(L, d, f, V, T) - lack(L, d, f, V, T)


COUNTS = {
    "returns nothing": lambda L, d, f, V, T: None,
    "not shared": without(lambda L, d, f, V, T: V * d),
    "learned positions": without(lambda L, d, f, V, T: T * d),
    "the norm before the head": without(lambda L, d, f, V, T: 2 * d),
    "biases of the norms": without(lambda L, d, f, V, T: (2 * L + 1) * d),
    "all norms": without(lambda L, d, f, V, T: (2 * L + 1) * 2 * d),
    "attention's four maps": without(lambda L, d, f, V, T: 4 * L * d),
    "MLP's two maps": without(lambda L, d, f, V, T: L * (f + d)),
    "biases of all linear maps": without(lambda L, d, f, V, T: L * (5 * d + f)),
    "one of attention's": without(lambda L, d, f, V, T: L * (d * d + d)),
    "two matrices": without(lambda L, d, f, V, T: L * d * f),
    "too many": without(lambda L, d, f, V, T: -T * d),
    "Off by": without(lambda L, d, f, V, T: 1),
}


@wrong_answers((check_attention, ATTENTIONS), (check_loss, LOSSES), (check_count, COUNTS))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [(check_attention, gpt.solve_attention), (check_loss, gpt.solve_loss), (check_count, gpt.solve_count)],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_the_solutions_are_what_the_package_computes() -> None:
    config = preset("gpt-2017", ModelConfig(n_layer=3, n_head=2, d_model=8, d_ff=20, vocab_size=19, seq_len=7))
    model = LM(config)
    counted = {str(row["part"]): int(row["parameters"]) for row in gpt.parts(model)}
    assert counted.pop("all") == gpt.solve_count(3, 8, 20, 19, 7) == sum(counted.values())
    ids = torch.arange(14).view(2, 7)
    logits = model(ids).detach().double().flatten(0, 1).numpy()
    assert gpt.solve_loss(logits, ids.flatten().numpy()) == pytest.approx(model(ids, ids).item(), rel=1e-5)
    q, k, v = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert np.allclose(gpt.solve_attention(q.numpy(), k.numpy(), v.numpy()), theirs.numpy())
