"""Lesson 3: the checks of its exercises and their solutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kit.modernize import rms_norm
from kit.show import Verdict, answer_of, right, wrong

Array: TypeAlias = NDArray[np.float64]
Map: TypeAlias = Callable[[Array], Array]


def by_sublayer(found: Mapping[str, Any], model: str) -> list[dict[str, float | str]]:
    """Rows (sublayer, stream, update, model) from what the probes `stream` and `update` found."""
    probes = found["probes"]
    return [
        {"sublayer": i + 1, "stream": rms, "update": ratio, "model": model}
        for i, (rms, ratio) in enumerate(zip(probes["stream"]["rms"][1:], probes["update"]["ratio"], strict=True))
    ]


# --------------------------------------------------------------------------------------------------- exercise 1
def solve_prenorm(h: Array, f: Map, norm: Map) -> Array:
    return h + f(norm(h))


def check_prenorm(step: Callable[[Array, Map, Map], Array]) -> Verdict:
    """One Pre-Norm update, step(h, f, norm)."""
    rng = np.random.default_rng(0)
    h, weight = rng.normal(0, 3, (4, 8)), rng.normal(size=(8, 8))

    def f(x: Array) -> Array:
        return np.tanh(x @ weight)

    kept = h.copy()
    found = answer_of(step, h, f, rms_norm, shape=h.shape)
    if isinstance(found, Verdict):
        return found
    if not np.array_equal(h, kept):
        return wrong("The stream was changed in place. Backward passes and other readers need the old one.")
    x = rms_norm(h)
    for answer, says in (
        (rms_norm(h + f(h)), "That is Post-Norm: the stream itself goes through the norm, and so does every gradient."),
        (rms_norm(h + f(x)), "The stream is normed after the add as well: this is Keel's layout, not Pre-Norm."),
        (h + f(h), "No norm at all: what f reads grows with the stream."),
        (f(x), "The stream is lost. Add what f gives to h."),
        (x + f(x), "The normed stream is carried on. The norm stands on the branch only; h itself goes on untouched."),
        (h + rms_norm(f(h)), "The norm is on what f writes. Pre-Norm has it on what f reads."),
        (h + rms_norm(f(x)), "A norm on both sides of f: that is Peri-Norm."),
    ):
        if np.allclose(found, answer):
            return wrong(says)
    if not np.allclose(found, h + f(x)):
        return wrong("It differs from the update: read through the norm, apply f, add to the stream.")
    return right("The identity path from the first layer to the last has nothing on it.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_update(writes: Array) -> Array:
    before = np.concatenate(([0.0], np.cumsum(writes**2)[:-1]))
    with np.errstate(divide="ignore"):
        return writes / np.sqrt(before)


def check_update(f: Callable[[Array], Array]) -> Verdict:
    """Relative updates of independent writes of given sizes, f(writes) -> (L,); the first is infinite."""
    writes = np.random.default_rng(1).uniform(0.5, 2.0, 12)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = answer_of(f, writes.copy())
    if isinstance(found, Verdict):
        return found
    if found.shape != writes.shape:
        return wrong(f"One number for each block: {writes.shape}, not {found.shape}.")
    squares, sums = np.cumsum(writes**2), np.cumsum(writes)
    tail = slice(1, None)
    for answer, says in (
        (writes / np.sqrt(squares), "The stream that a block is added to does not hold the block's own write yet."),
        (writes[tail] / sums[:-1], "Sizes of independent writes do not add up, their squares do: sqrt(sum of squares)."),
        (writes / sums, "Sizes of independent writes do not add up, their squares do; and a block's own write is not in yet."),
        (writes[tail] / squares[:-1], "Divided by the variance. The size of the stream is its square root."),
        (writes[tail] ** 2 / squares[:-1], "That is the share of the variance. The relative update is a ratio of sizes, its root."),
        (np.sqrt(squares[:-1]) / writes[tail], "Upside down: the write over the stream."),
    ):  # fmt: skip
        if np.allclose(found[-len(answer) :], answer):
            return wrong(says)
    if not np.allclose(found[tail], solve_update(writes)[tail]):
        return wrong("It differs. Three writes of size 1: the third meets a stream of size sqrt(2), so 1 / sqrt(2).")
    if not np.isinf(found[0]):
        return wrong("Right but for the first write: it meets an empty stream, so its relative update is infinite.")
    return right("With all writes 1 this is 1/sqrt(l): 0.2085 in the last of 24 blocks, 0.0442 in the last of 512.")


# --------------------------------------------------------------------------------------------------- exercise 3
def solve_lift(slope: float) -> float:
    return math.sqrt(2 * slope + 1)


def check_lift(f: Callable[[float], float]) -> Verdict:
    """How far a write that grows as (l+1)^slope lifts the late relative updates above Pre-Norm's, f(slope)."""
    slope = 0.7
    found = answer_of(f, slope)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong("One number: the factor that the ratio tends to in deep stacks.")
    for value, says in (
        (2 * slope + 1, "That is the ratio of the squares: take its root."),
        (math.sqrt(slope + 1), "The sum of (l+1)^(2k) grows like l^(2k+1) / (2k+1): the write enters squared, so 2k."),
        (1 / math.sqrt(2 * slope + 1), "Upside down: growing writes are larger than the average one before them."),
        (math.sqrt(2 * slope), "The 1 is lost: the exponent of the sum is 2k + 1."),
        (
            slope + 0.5,
            "That is the exponent by which the stream grows. The question is the factor of the relative update.",
        ),
        (1.0, "That holds for slope 0 alone."),
    ):
        if np.isclose(found, value):
            return wrong(says)
    if not np.isclose(found, math.sqrt(2 * slope + 1)):
        return wrong("Write the stream's variance as a sum of (l+1)^(2k), put an integral in its place, and divide.")
    return right("A factor that does not depend on depth: power laws delay the fading of updates and cannot stop it.")
