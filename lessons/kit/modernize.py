"""Lesson 2: the checks of its exercises, their solutions, and the measurement of longer contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from kit.show import Verdict, answer_of, right, wrong, yours
from layerrope import LM
from layerrope.data import Dataset

Array: TypeAlias = NDArray[np.float64]
Norm: TypeAlias = Callable[[Array], Array]


# ------------------------------------------------------------------------------------------ exercise 1, on paper
UNCHANGED, FLIPS, TURNS, CHANGES = "y unchanged", "y becomes -y", "y becomes Qy", "none of these"
CHOICES = (UNCHANGED, FLIPS, TURNS, CHANGES)

QUESTIONS: dict[str, str] = {
    "rmsnorm cx": UNCHANGED,
    "layernorm cx": UNCHANGED,
    "rmsnorm x+b": CHANGES,
    "layernorm x+b": UNCHANGED,
    "rmsnorm -x": FLIPS,
    "layernorm -x": FLIPS,
    "rmsnorm Qx": TURNS,
    "layernorm Qx": CHANGES,
}
"""norm and change of the input -> what happens to y; c > 0, b the same number on every channel, Q orthogonal."""

WHY: dict[str, str] = {
    "rmsnorm cx": "RMSNorm of cx divides cx by c rms(x): the c cancels.",
    "layernorm cx": "Mean and standard deviation both grow by c, so c cancels in LayerNorm too: both norms share this one.",
    "rmsnorm x+b": "Try x = (1, -1) and b = 1: (2, 0) is not a multiple of (1, -1). Nothing in RMSNorm takes b out.",
    "layernorm x+b": "LayerNorm subtracts the mean first. Adding b to every channel adds b to the mean, so b is gone "
    "before anything is divided. It is RMSNorm that sees the shift.",
    "rmsnorm -x": "rms(-x) = rms(x) is positive, so the sign stays in the numerator. Invariance holds for c > 0 only.",
    "layernorm -x": "The standard deviation has no sign, the centred numerator has: y becomes -y.",
    "rmsnorm Qx": "An orthogonal Q keeps the length of x, so rms(Qx) = rms(x) and Qx / rms(x) = Qy (at unit gain).",
    "layernorm Qx": "The mean is the part of x along (1, ..., 1), a direction that Q moves. What LayerNorm removes before "
    "and after Q differs.",
}


def check_symmetries(answers: Mapping[str, str | None]) -> Verdict:
    """The eight answers of exercise 1: the first wrong one is explained."""
    open_ = [name for name in QUESTIONS if not answers.get(name)]
    if len(open_) == len(QUESTIONS):
        return yours("Say for each norm what each change of the input does to the output.")
    for name, truth in QUESTIONS.items():
        if answers.get(name) and answers[name] != truth:
            return wrong(f"`{name}`: {WHY[name]}")
    if open_:
        return yours(f"Right so far; still open: {', '.join(open_)}.")
    return right(
        "Both norms forget the size of x. LayerNorm also forgets its mean, which RMSNorm keeps; RMSNorm in turn has no "
        "preferred direction, while LayerNorm singles out (1, ..., 1)."
    )


# ------------------------------------------------------------------------------------------- exercise 1, in code
def rms_norm(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True))


def layer_norm(x: Array) -> Array:
    return rms_norm(x - x.mean(-1, keepdims=True))


def check_layernorm(f: Callable[[Array, Norm], Array]) -> Verdict:
    """LayerNorm written with RMSNorm as its only normaliser: f(x, rms_norm)."""
    x = np.random.default_rng(0).normal(3.0, 2.0, (4, 16))
    found = answer_of(f, x, rms_norm)
    if isinstance(found, Verdict):
        return found
    if found.shape != x.shape:
        return wrong(
            f"The output has shape {found.shape} for an input {x.shape}: keep the axis when you take the mean."
        )
    for answer, says in (
        (rms_norm(x), "This is RMSNorm itself: it still changes when a constant is added. What must go first?"),
        (rms_norm(x) - rms_norm(x).mean(-1, keepdims=True), "Centred after dividing: the size divided by still has "
         "the mean in it. Subtract the mean first."),
        (x - x.mean(-1, keepdims=True), "Centred, but not divided by the size of what is left."),
        (rms_norm(x - x.mean()), "The mean runs over everything. Each row has its own."),
    ):  # fmt: skip
        if np.allclose(found, answer):
            return wrong(says)
    if not np.allclose(found, layer_norm(x)):
        return wrong("It differs from LayerNorm. Take the row's own mean away, then call the norm you were given.")
    return right("LayerNorm is RMSNorm after a projection: take out the mean, then divide by the size of the rest.")


def solve_layernorm(x: Array, norm: Norm) -> Array:
    return norm(x - x.mean(axis=-1, keepdims=True))


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_rmsnorm(x: Array, gain: Array, eps: float = 1e-5) -> Array:
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    return gain * x / np.sqrt(mean_square + eps)


def check_rmsnorm(f: Callable[[Array, Array, float], Array]) -> Verdict:
    """RMSNorm in numpy, f(x, gain, eps), against the definition; the usual mistakes are named."""
    rng = np.random.default_rng(1)
    x, gain, eps = rng.normal(0.5, 2.0, (5, 8)), rng.uniform(0.5, 2.0, 8), 1e-5
    kept = x.copy()
    found = answer_of(f, x, gain, eps)
    if isinstance(found, Verdict):
        if found.right is False and "broadcast" in found.says:
            return wrong("The mean has lost its axis: a (5,) cannot divide a (5, 8). Use keepdims=True.")
        return found
    if not np.array_equal(x, kept):
        return wrong("The input was changed in place. Whoever owns x still needs it: the residual stream adds to it.")
    if found.shape != x.shape:
        return wrong(f"The output has shape {found.shape}, the input {x.shape}.")
    for answer, says in _mistakes(x, gain, eps):
        if np.allclose(found, answer, rtol=1e-4):
            return wrong(says)
    if not np.allclose(found, solve_rmsnorm(x, gain, eps), rtol=1e-4):
        return wrong("It differs from gain * x / sqrt(mean(x^2) + eps). Print both for a row of two numbers.")
    return _check_eps(f, x, gain)


def _mistakes(x: Array, gain: Array, eps: float) -> list[tuple[Array, str]]:
    """Wrong outputs and what they come from."""
    square = (x**2).mean(-1, keepdims=True)
    return [
        (gain * layer_norm(x), "This centres first: it is LayerNorm without its bias. RMSNorm leaves the mean in."),
        (gain * x / x.std(-1, keepdims=True), "np.std subtracts the mean inside. The root mean square does not."),
        (gain * x / (square + eps), "The square root is missing: the output still shrinks when x grows."),
        (gain * x * np.sqrt(square + eps), "Multiplied by the size instead of divided by it."),
        (gain * x / np.sqrt((x**2).sum(-1, keepdims=True) + eps), "The sum of squares instead of their mean: the output is too "
         "small by sqrt(d), and would depend on the width."),
        (gain * x / np.abs(x).mean(-1, keepdims=True), "The mean of |x| is another size. Square, average, take the root."),
        (gain * x / np.sqrt((x**2).mean() + eps), "One mean over the whole batch: a token would see its neighbours. "
         "Average over the last axis only."),
        (gain * x / np.sqrt((x**2).mean(0) + eps), "The mean runs over the rows. Each row is divided by its own size."),
        (x / np.sqrt(square + eps), "The gain is not applied."),
    ]  # fmt: skip


def _check_eps(f: Callable[[Array, Array, float], Array], x: Array, gain: Array) -> Verdict:
    """eps stands inside the root and is the one that was given: seen where x is about as small as sqrt(eps)."""
    tiny = 1e-2 * x
    found = answer_of(f, tiny, gain, 1e-3, shape=x.shape)
    if isinstance(found, Verdict):
        return found
    square = (tiny**2).mean(-1, keepdims=True)
    if np.allclose(found, gain * tiny / (np.sqrt(square) + 1e-3)):
        return wrong("eps is added to the root. It belongs inside, to the mean square: near zero the two differ.")
    if not np.allclose(found, solve_rmsnorm(tiny, gain, 1e-3)):
        return wrong("Right for ordinary inputs, but eps = 1e-3 was not respected: use the argument, inside the root.")
    return right("That is the definition, and 3x gives the same output as x up to the guard eps.")


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_rope(x: Array, m: int, base: float = 10_000.0) -> Array:
    d = len(x)
    angle = m * base ** (-np.arange(0, d, 2) / d)
    even, odd = x[0::2], x[1::2]
    turned = np.empty(d)
    turned[0::2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return turned


def _turned(x: Array, angle: Array) -> Array:
    pairs = (x[0::2] + 1j * x[1::2]) * np.exp(1j * angle)
    return np.stack((pairs.real, pairs.imag), -1).reshape(-1)


def check_rope(f: Callable[[Array, int, float], Array]) -> Verdict:
    """RoPE of one head vector, f(x, m, base): first its relative offset, then its frequencies and layout."""
    rng = np.random.default_rng(2)
    q, k, base, d = rng.normal(size=8), rng.normal(size=8), 100.0, 8
    found = answer_of(f, q.copy(), 3, base)
    if isinstance(found, Verdict):
        return found
    if found.shape != q.shape:
        return wrong(f"The output has shape {found.shape}: a vector of 8 channels stays one of 8 channels.")
    if np.allclose(found, q):
        return wrong("Position 3 gives the vector back unturned: the angle must grow with m.")
    if not np.isclose(np.linalg.norm(found), np.linalg.norm(q)):
        return wrong("The length changed. A rotation (u cos - v sin, u sin + v cos) keeps it: look at the signs.")

    placed = {}
    for name, x, m in (("q", q, 5), ("k", k, 3), ("q", q, 9), ("k", k, 7)):
        vector = answer_of(f, x.copy(), m, base, shape=x.shape)
        if isinstance(vector, Verdict):
            return vector
        placed[name, m] = vector
    if not np.isclose(placed["q", 5] @ placed["k", 3], placed["q", 9] @ placed["k", 7]):
        return wrong("Positions (5, 3) and (9, 7) have one offset but two scores: the angle is not proportional to m.")
    channel = np.arange(0, d, 2)
    for angle, says in (
        (-3 * base ** (-channel / d), "The relative offset holds, but every pair turns the other way round."),
        (3 * base ** (-channel / (2 * d)), "The frequencies fall too slowly: base^(-2i/d) for pair i, where 2i is the "
         "channel. (2i was taken as i.)"),
        (3 * base ** (-2 * channel / d), "The frequencies fall too fast: the exponent has the channel 2i once, not twice."),
        (np.full(d // 2, 3.0), "Every pair turns by the same angle, so scores repeat after 2 pi positions. Spread the angles."),
        (np.radians(3 * base ** (-channel / d)), "The angle was converted from degrees. It is in radians already."),
    ):  # fmt: skip
        if np.allclose(found, _turned(q, angle)):
            return wrong(says)
    if np.allclose(found, _halves(q, 3 * base ** (-channel / d))):
        return wrong("Right angles, other pairs: channel i with channel i + d/2, the layout of stock Llama files. The "
                     "scores are as relative as before; here the pairs are (2i, 2i + 1).")  # fmt: skip
    if not np.allclose(found, solve_rope(q, 3, base)):
        return wrong("Scores depend on the offset alone, but pair i should turn by m base^(-2i/d).")
    return right("Equal offsets give equal scores, whatever the positions: the score sees m - n only.")


def _halves(x: Array, angle: Array) -> Array:
    u, v = np.split(x, 2)
    return np.concatenate((u * np.cos(angle) - v * np.sin(angle), u * np.sin(angle) + v * np.cos(angle)))


# ------------------------------------------------------------------------------------------------ longer contexts
def stretched(model: LM, seq_len: int) -> LM:
    """A model with learned positions for `seq_len` positions: the rows it never learnt are zero."""
    longer = LM(replace(model.config, seq_len=seq_len))
    state = dict(model.state_dict())
    if model.position is not None:
        learned = state["position.weight"]
        state["position.weight"] = F.pad(learned, (0, 0, 0, seq_len - len(learned)))
    longer.load_state_dict(state)
    return longer


@torch.no_grad()
def loss_by_position(model: LM, data: Dataset, tokens: int) -> Array:
    """Mean loss at each position of the windows of `data`, (T,), nats."""
    total, count = 0.0, 0
    for ids, targets in data.eval_batches(8, tokens):
        if (targets < 0).any():  # the last window may be short
            continue
        losses = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="none")
        total, count = total + losses.view_as(ids).double().sum(0), count + len(ids)
    return (total / max(count, 1)).numpy()
