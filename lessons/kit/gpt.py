"""Lesson 1: the checks of its exercises and their solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kit.show import Verdict, answer_of, right, wrong
from layerrope import LM

Array: TypeAlias = NDArray[np.float64]


def parts(model: LM) -> list[dict[str, str | int]]:
    """Parameters of a model by part, counted from its tensors."""
    kinds = {
        "token embedding": lambda name: name.startswith("embed."),
        "learned positions": lambda name: name.startswith("position."),
        "attention": lambda name: ".attn.f." in name,
        "MLP": lambda name: ".mlp.f." in name,
        "norms": lambda name: ".branch." in name or name.startswith("norm."),
        "head": lambda name: name.startswith("head."),
    }
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    rows: list[dict[str, str | int]] = [
        {"part": part, "parameters": sum(n for name, n in sizes.items() if belongs(name))}
        for part, belongs in kinds.items()
    ]
    return [*rows, {"part": "all", "parameters": sum(sizes.values())}]


# --------------------------------------------------------------------------------------------------- exercise 1
def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def solve_attention(q: Array, k: Array, v: Array) -> Array:
    n, d = q.shape
    scores = q @ k.T / np.sqrt(d)
    later = np.triu(np.ones((n, n), dtype=bool), 1)  # a query may see itself and what came before
    scores[later] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def check_attention(f: Callable[[Array, Array, Array], Array]) -> Verdict:
    """One head of causal attention, f(q, k, v) on (T, d)."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 6, 4))
    found = answer_of(f, q.copy(), k.copy(), v.copy())
    if isinstance(found, Verdict):
        return found
    if found.shape != v.shape:
        return wrong(f"The output has shape {found.shape}: one vector of d channels for each position, (6, 4).")
    scores, keep = q @ k.T / 2, np.tril(np.ones((6, 6)))
    hidden = np.where(keep > 0, scores, -np.inf)
    strict = np.where(np.tril(np.ones((6, 6)), -1) > 0, scores, -np.inf)
    strict[0] = 0.0
    for answer, says in (
        (softmax(scores) @ v, "No mask: position 0 reads what it should predict. Hide later keys before the softmax."),
        (softmax(np.where(keep > 0, q @ k.T, -np.inf)) @ v, "The scores are not divided by sqrt(d): with wide heads the "
         "softmax would pick one key at the start already."),
        (softmax(np.where(keep > 0, q @ k.T / 4, -np.inf)) @ v, "Divided by d. The scores of random vectors grow like sqrt(d)."),
        ((softmax(scores) * keep) @ v, "Masked after the softmax: the weights of early positions no longer add up to 1."),
        (softmax(scores * keep) @ v, "Hidden scores were set to 0, and exp(0) = 1. They must be -infinity."),
        (softmax(hidden, 0) @ v, "The softmax runs over queries. For each query, the weights over keys add up to 1."),
        (softmax(np.where(keep.T > 0, scores, -np.inf)) @ v, "The mask is upside down: each position sees the later ones."),
    ):  # fmt: skip
        if np.allclose(found, answer):
            return wrong(says)
    if not np.isfinite(found).all() or np.allclose(found[1:], (softmax(strict) @ v)[1:]):
        return wrong(
            "A position must see itself: with a mask that hides the diagonal, position 0 has nothing to look at."
        )
    if not np.allclose(found, softmax(hidden) @ v):
        return wrong(
            "It differs. Compare with two positions: the first output is v[0], the second a mix of v[0] and v[1]."
        )
    return right("Later positions have no weight, and each row of weights adds up to 1.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_loss(logits: Array, targets: NDArray[np.int64]) -> float:
    top = logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return float((log_total - logits[np.arange(len(targets)), targets]).mean())


def check_loss(f: Callable[[Array, NDArray[np.int64]], float]) -> Verdict:
    """The mean cross-entropy in nats, f(logits (T, V), targets (T,))."""
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(0, 2, (7, 11)), rng.integers(0, 11, 7)
    found = answer_of(f, logits.copy(), targets)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong(f"The loss is one number, the mean over positions; this has shape {found.shape}.")
    p = softmax(logits)[np.arange(7), targets]
    truth = float(-np.log(p).mean())
    for value, says in (
        (-truth, "The sign: log-probabilities are negative, the loss is their mean times -1."),
        (truth / np.log(2), "That is in bits. The loss in training is in nats: the natural logarithm."),
        (truth * 7, "The sum over positions. Take the mean, or the loss grows with the length of the text."),
        (float(-np.log(p.mean())), "The logarithm of the mean probability. Average the logarithms: one very unlikely byte must cost."),
        (float(1 - p.mean()), "The mean probability of being wrong. Cross-entropy takes the logarithm."),
        (float(-logits[np.arange(7), targets].mean()), "Logits are not log-probabilities: subtract the log of their total."),
    ):  # fmt: skip
        if np.isclose(found, value):
            return wrong(says)
    if not np.isclose(found, truth):
        return wrong("It differs from the mean of -log softmax(logits)[target].")
    with np.errstate(over="ignore", invalid="ignore"):
        large = answer_of(f, logits + 2000.0, targets, shape=())
    if isinstance(large, Verdict) or not np.isclose(large, truth):
        return wrong(
            "Right, but exp overflows when all logits are near 2000. Subtract the largest first: nothing changes."
        )
    return right(
        "Divide it by log(2) and by the bytes a token has, and it is in bits per byte, comparable across tokenizers."
    )


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_count(n_layer: int, d: int, d_ff: int, vocab: int, seq_len: int) -> int:
    attention = 4 * (d * d + d)
    mlp = d * d_ff + d_ff + d_ff * d + d
    norms = (2 * n_layer + 1) * 2 * d
    return n_layer * (attention + mlp) + norms + seq_len * d + 2 * vocab * d


def check_count(f: Callable[[int, int, int, int, int], int]) -> Verdict:
    """Parameters of the 2017 GPT, f(n_layer, d, d_ff, vocab, seq_len); a missing part is told by its size."""
    n_layer, d, d_ff, vocab, seq_len = shape = (3, 10, 37, 101, 29)
    found = answer_of(f, *shape, shape=())
    if isinstance(found, Verdict):
        return found
    if not np.isfinite(found):
        return wrong(f"{float(found)} is no number of parameters.")
    lacking = solve_count(*shape) - float(found)
    for size, part in (
        (vocab * d, "the head, or the embedding: they are not shared here"),
        (seq_len * d, "the learned positions, one row each"),
        (2 * d, "the norm before the head, gain and bias"),
        ((2 * n_layer + 1) * d, "the biases of the norms: a LayerNorm has two vectors"),
        ((2 * n_layer + 1) * 2 * d, "all norms: two a layer and one before the head"),
        (n_layer * 4 * d, "the biases of attention's four maps, or the norms inside the layers: they are as many"),
        (n_layer * (d_ff + d), "the biases of the MLP's two maps"),
        (n_layer * (5 * d + d_ff), "the biases of all linear maps"),
        (n_layer * (d * d + d), "one of attention's four maps: q, k, v and the output"),
        (n_layer * (d * d_ff), "one of the MLP's two matrices"),
    ):
        if lacking == size:
            return wrong(f"Missing {size:,}: {part}.")
        if lacking == -size:
            return wrong(f"{size:,} too many. That is the size of this part: {part}.")
    if lacking:
        return wrong(f"Off by {lacking:+,g} for 3 layers of width 10. Count part by part, as the table above does.")
    return right("Every tensor is accounted for. Nearly all of it is the 12 d^2 a layer, if the vocabulary is small.")
