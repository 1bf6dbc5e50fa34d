"""The exercises of lesson 7: log-probability and loss; each usual mistake has its diagnosis."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kit import preferences, training
from kit.preferences import check_dpo, check_log_probability
from lesson_answers import assert_told, wrong_answers

from layerrope import LM, ModelConfig


def log_p(logits: Any) -> Any:
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def answered(ids: Any, n: int) -> Any:
    return np.arange(n, len(ids))


LOG_PROBABILITIES = {
    "returns nothing": lambda x, ids, n: None,
    "One number": lambda x, ids, n: log_p(x)[0],
    "Off by one": lambda x, ids, n: log_p(x)[answered(ids, n), ids[n:]].sum(),
    "first token of the answer": lambda x, ids, n: log_p(x)[np.arange(n, len(ids) - 1), ids[n + 1 :]].sum(),
    "prompt is counted": lambda x, ids, n: log_p(x)[np.arange(len(ids) - 1), ids[1:]].sum(),
    "mean over tokens": lambda x, ids, n: log_p(x)[answered(ids, n) - 1, ids[n:]].mean(),
    "not log-probabilities": lambda x, ids, n: x[answered(ids, n) - 1, ids[n:]].sum(),
    "Probabilities were added": lambda x, ids, n: np.exp(log_p(x)[answered(ids, n) - 1, ids[n:]]).sum(),
    "The sign": lambda x, ids, n: -log_p(x)[answered(ids, n) - 1, ids[n:]].sum(),
    "differs from the sum": lambda x, ids, n: -1.0,
}


def each(margin: Any) -> Any:
    return -F.logsigmoid(torch.from_numpy(margin)).numpy()


def margin(c: Any, r: Any, rc: Any, rr: Any, beta: float) -> Any:
    return beta * ((c - rc) - (r - rr))


LOSSES = {
    "returns nothing": lambda *a: ...,
    "One number": lambda *a: each(margin(*a)),
    "reference is missing": lambda c, r, rc, rr, b: each(b * (c - r)).mean(),
    "teaches the opposite": lambda *a: each(-margin(*a)).mean(),
    "beta is missing": lambda c, r, rc, rr, b: each(margin(c, r, rc, rr, 1.0)).mean(),
    "inside the sigmoid": lambda c, r, rc, rr, b: b * each(margin(c, r, rc, rr, 1.0)).mean(),
    "The sign": lambda *a: -each(margin(*a)).mean(),
    "sum over pairs": lambda *a: each(margin(*a)).sum(),
    "One less the sigmoid": lambda *a: (1 - np.exp(-each(margin(*a)))).mean(),
    "averaged first": lambda *a: each(margin(*a).mean()[None]).item(),
    "log of a ratio": lambda c, r, rc, rr, b: each(b * ((c + rc) - (r + rr))).mean(),
    "differs from -log": lambda *a: 0.1,
    "overflows": lambda *a: np.log(1 + np.exp(-margin(*a))).mean(),
}


@wrong_answers((check_log_probability, LOG_PROBABILITIES), (check_dpo, LOSSES))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [(check_log_probability, preferences.solve_log_probability), (check_dpo, preferences.solve_dpo)],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_margins_are_those_of_the_formula() -> None:
    data = training.text(32)
    config = ModelConfig(n_layer=1, n_head=1, d_model=16, d_ff=16, seq_len=32, init_std=0.3)
    policy, reference = LM(config, seed=1), LM(config, seed=2)
    (pair,) = preferences.pairs(data, 1, prompt=8, answer=8)
    ids = np.array(data.encode(pair["prompt"] + pair["chosen"]))
    logits = policy(torch.from_numpy(ids)[None]).detach().double()[0].numpy()
    ours = preferences.log_probability(policy, data, pair["prompt"], pair["chosen"])
    assert ours == pytest.approx(preferences.solve_log_probability(logits, ids, 8), rel=1e-4)
    assert preferences.margins(policy, policy, data, [pair], 0.5) == pytest.approx([0.0])
    (found,) = preferences.margins(policy, reference, data, [pair], 0.5)
    gains = {
        side: preferences.log_probability(policy, data, pair["prompt"], pair[side])
        - preferences.log_probability(reference, data, pair["prompt"], pair[side])
        for side in ("chosen", "rejected")
    }
    assert found == pytest.approx(0.5 * (gains["chosen"] - gains["rejected"]))


def test_the_shown_program_is_the_one_that_runs() -> None:
    shown = preferences.pass_source()
    assert {node.name for node in ast.parse(shown).body if isinstance(node, ast.FunctionDef)} == {"run"}
    assert shown in preferences.PASS.read_text(encoding="utf-8")
