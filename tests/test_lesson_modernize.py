"""The exercises of lesson 2: each usual mistake has its diagnosis, each solution passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit import modernize
from kit.modernize import QUESTIONS, check_layernorm, check_rmsnorm, check_rope, check_symmetries, layer_norm, rms_norm
from lesson_answers import assert_told, wrong_answers

from layerrope import LM, ModelConfig
from layerrope.config import preset
from layerrope.norms import layer_norm as package_layer_norm
from layerrope.norms import rms_norm as package_rms_norm
from layerrope.rotary import rotary_table, rotate


def rms(x: Any, axis: Any = -1, keep: bool = True) -> Any:
    return np.sqrt((x**2).mean(axis, keepdims=keep))


def in_place(x: Any, gain: Any, eps: float) -> Any:
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return gain * x


RMSNORMS = {
    "returns nothing": lambda x, g, e: None,
    "stopped with ZeroDivisionError": lambda x, g, e: 1 / 0,
    "keepdims": lambda x, g, e: g * x / rms(x, keep=False),
    "changed in place": in_place,
    "shape (5,)": lambda x, g, e: rms(x, keep=False),
    "centres first": lambda x, g, e: g * layer_norm(x),
    "np.std subtracts": lambda x, g, e: g * x / x.std(-1, keepdims=True),
    "square root is missing": lambda x, g, e: g * x / (rms(x) ** 2 + e),
    "instead of divided": lambda x, g, e: g * x * rms(x),
    "sum of squares": lambda x, g, e: g * x / np.sqrt((x**2).sum(-1, keepdims=True)),
    "mean of |x|": lambda x, g, e: g * x / np.abs(x).mean(-1, keepdims=True),
    "whole batch": lambda x, g, e: g * x / rms(x, axis=None),
    "over the rows": lambda x, g, e: g * x / rms(x, axis=0),
    "gain is not applied": lambda x, g, e: x / rms(x),
    "differs from gain": lambda x, g, e: g * x,
    "added to the root": lambda x, g, e: g * x / (rms(x) + e),
    "was not respected": lambda x, g, e: g * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5),
}

LAYERNORMS = {
    "returns nothing": lambda x, norm: ...,
    "stopped with": lambda x, norm: norm(),
    "keep the axis": lambda x, norm: norm(x).mean(-1),
    "RMSNorm itself": lambda x, norm: norm(x),
    "after dividing": lambda x, norm: norm(x) - norm(x).mean(-1, keepdims=True),
    "not divided": lambda x, norm: x - x.mean(-1, keepdims=True),
    "its own": lambda x, norm: norm(x - x.mean()),
    "differs from LayerNorm": lambda x, norm: x,
}


def turned(x: Any, angle: Any) -> Any:
    return modernize._turned(x, np.asarray(angle) * np.ones(len(x) // 2))


def spectrum(d: int, base: float) -> Any:
    return base ** (-np.arange(0, d, 2) / d)


ROPES = {
    "returns nothing": lambda x, m, base: None,
    "stopped with": lambda x, m, base: x[99],
    "stays one of 8": lambda x, m, base: x[:4],
    "back unturned": lambda x, m, base: x,
    "length changed": lambda x, m, base: x + m,
    "not proportional": lambda x, m, base: turned(x, m**2 * spectrum(8, base)),
    "other way round": lambda x, m, base: turned(x, -m * spectrum(8, base)),
    "too slowly": lambda x, m, base: turned(x, m * base ** (-np.arange(4) / 8)),
    "too fast": lambda x, m, base: turned(x, m * spectrum(8, base) ** 2),
    "by the same angle": lambda x, m, base: turned(x, m),
    "degrees": lambda x, m, base: turned(x, np.radians(m * spectrum(8, base))),
    "channel i with channel i + d/2": lambda x, m, base: modernize._halves(x, m * spectrum(8, base)),
    "should turn by": lambda x, m, base: turned(x, m * spectrum(8, base / 2)),
}


@wrong_answers((check_rmsnorm, RMSNORMS), (check_layernorm, LAYERNORMS), (check_rope, ROPES))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [
        (check_rmsnorm, modernize.solve_rmsnorm),
        (check_layernorm, modernize.solve_layernorm),
        (check_rope, modernize.solve_rope),
    ],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_wrong_choice_is_explained_by_its_own_reason(name: str) -> None:
    for choice in modernize.CHOICES:
        if choice != QUESTIONS[name]:
            verdict = check_symmetries({**QUESTIONS, name: choice})
            assert verdict.right is False
            assert verdict.says == f"`{name}`: {modernize.WHY[name]}"


def test_choices_open_and_complete() -> None:
    assert check_symmetries(dict.fromkeys(QUESTIONS)).right is None
    some = check_symmetries({"rmsnorm cx": QUESTIONS["rmsnorm cx"]})
    assert some.right is None
    assert "layernorm Qx" in some.says
    assert check_symmetries(QUESTIONS).right


@given(seed=st.integers(0, 2**32 - 1), d=st.integers(3, 12))
def test_the_table_of_symmetries_is_true(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0.3, 1.0, d)
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    changed = {"cx": 3.7 * x, "x+b": x + 1.5, "-x": -x, "Qx": q @ x}
    for name, truth in QUESTIONS.items():
        kind, change = name.split()
        norm = {"rmsnorm": rms_norm, "layernorm": layer_norm}[kind]
        y, new = norm(x), norm(changed[change])
        becomes = {modernize.UNCHANGED: y, modernize.FLIPS: -y, modernize.TURNS: q @ y}
        holds = {words: np.allclose(new, value) for words, value in becomes.items()}
        assert holds.get(truth, not any(holds.values()))


def test_the_solutions_are_what_the_package_computes() -> None:
    rng = np.random.default_rng(3)
    x, gain = rng.normal(1.0, 2.0, (3, 8)), rng.normal(size=8)
    t, g = torch.from_numpy(x), torch.from_numpy(gain)
    assert np.allclose(modernize.solve_rmsnorm(x, gain, 1e-6), package_rms_norm(t, g, 1e-6))
    assert np.allclose(modernize.solve_layernorm(x, rms_norm), package_layer_norm(t, None, None, 0.0))
    head = torch.from_numpy(x).float().view(1, 1, 3, 8)
    ours = np.stack([modernize.solve_rope(row, m) for m, row in enumerate(x)])
    assert np.allclose(ours, rotate(head, rotary_table(3, 8))[0, 0], atol=1e-5)


class Counted:
    """Windows of text whose last one is filled up."""

    def eval_batches(self, rows: int, tokens: int) -> Any:
        ids = torch.arange(8).view(1, 8)
        yield ids, ids
        yield ids, torch.full_like(ids, -100)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_stretched_model_is_the_same_where_it_was_trained(position: str) -> None:
    config = preset("gpt-2017", ModelConfig(n_layer=2, d_model=16, d_ff=32, seq_len=4, position=position))
    model = LM(replace(config, position=position))
    longer = modernize.stretched(model, 8)
    ids = torch.arange(8).view(1, 8)
    assert torch.equal(longer(ids[:, :4]), model(ids[:, :4]))
    losses = modernize.loss_by_position(longer, Counted(), 16)  # type: ignore[arg-type]
    assert losses.shape == (8,)
    assert np.isclose(losses.mean(), longer(ids, ids).item())
