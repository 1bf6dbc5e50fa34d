"""Lesson 7: pairs of texts, TRL's DPO on an exported model, the checks of its exercises and their solutions."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from kit.show import Verdict, answer_of, right, wrong
from layerrope import LM
from layerrope.data import Dataset
from layerrope.loading import load_lm

Array: TypeAlias = NDArray[np.float64]

NEEDS = ("trl", "transformers", "datasets")
PASS = Path(__file__).with_name("dpo_pass.py")


def missing() -> list[str]:
    """The packages that the pass needs and that are not installed."""
    return [name for name in NEEDS if importlib.util.find_spec(name) is None]


# ------------------------------------------------------------------------------------------------------- the pairs
def pairs(data: Dataset, n: int, *, first: int = 0, prompt: int = 24, answer: int = 24) -> list[dict[str, str]]:
    """n of {prompt, chosen, rejected}: a novel's own next characters, in capitals (chosen) and as they are (rejected)."""
    ids = torch.cat([data.batch(step, 16)[0] for step in range(first, first + -(-2 * n // 16))])
    texts = [data.decode(row)[: prompt + answer] for row in ids]
    cut = [(t[:prompt].lower(), t[prompt:]) for t in texts if t.isascii() and any(c.islower() for c in t[prompt:])]
    return [{"prompt": p, "chosen": a.upper(), "rejected": a.lower()} for p, a in cut[:n]]


def log_probability(model: LM, data: Dataset, prompt: str, answer: str) -> float:
    """log p(answer | prompt) in nats, summed over the answer's bytes."""
    before, after = data.encode(prompt), data.encode(answer)
    ids = torch.tensor([before + after])
    with torch.no_grad():
        log_p = model(ids[:, :-1]).log_softmax(-1)[0]
    return float(log_p.gather(1, ids[0, 1:, None])[len(before) - 1 :].sum())


def margins(policy: LM, reference: LM, data: Dataset, held_out: Sequence[dict[str, str]], beta: float) -> Array:
    """beta times (the policy's gain on chosen minus its gain on rejected), for each pair: DPO's implied reward."""

    def gain(pair: dict[str, str], side: str) -> float:
        return log_probability(policy, data, pair["prompt"], pair[side]) - log_probability(
            reference, data, pair["prompt"], pair[side]
        )

    return np.array([beta * (gain(pair, "chosen") - gain(pair, "rejected")) for pair in held_out])


def capitals(model: LM, data: Dataset, prompts: Sequence[str], n_new: int = 24) -> float:
    """The share of capitals among the letters that the model writes after the prompts."""
    written = ""
    for seed, prompt in enumerate(prompts):
        ids = torch.tensor([data.encode(prompt)])
        written += data.decode(model.generate(ids, n_new, temperature=0.8, seed=seed)[0, ids.shape[1] :])
    letters = [c for c in written if c.isascii() and c.isalpha()]
    return sum(c.isupper() for c in letters) / max(1, len(letters))


# ---------------------------------------------------------------------------------------------------------- the pass
@dataclass(frozen=True)
class Tuned:
    """What TRL's pass gave."""

    model: LM
    """the tuned model, read back from the folder that TRL's trainer saved"""
    losses: tuple[float, ...]
    """DPO's loss as TRL logged it, step by step"""


def pass_source() -> str:
    """The program of the pass from its imports on."""
    source = PASS.read_text(encoding="utf-8")
    return source[source.index("from datasets") : source.index("if __name__")].strip()


def tune(folder: Path, training_pairs: list[dict[str, str]], steps: int) -> Tuned:
    """TRL's pass on an exported folder, in a process of its own; see dpo_pass.py.

    Raises:
        RuntimeError: the process failed; with the end of what it said.
    """
    out = folder.parent
    asked = out / "pairs.json"
    asked.write_text(json.dumps(training_pairs))
    command = [sys.executable, str(PASS), str(folder), str(asked), str(steps), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the preference pass failed: {done.stderr[-2000:]}")
    losses = json.loads((out / "losses.json").read_text())
    return Tuned(load_lm(out / "tuned").model, tuple(losses))


# --------------------------------------------------------------------------------------------------- exercise 1
def solve_log_probability(logits: Array, ids: NDArray[np.int64], n_prompt: int) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    answered = np.arange(n_prompt, len(ids))  # token t is predicted by the logits of position t - 1
    return float(log_p[answered - 1, ids[answered]].sum())


def check_log_probability(f: Callable[[Array, NDArray[np.int64], int], float]) -> Verdict:
    """log p(answer | prompt), f(logits (T, V), ids (T,), n_prompt)."""
    rng = np.random.default_rng(0)
    logits, ids, n = rng.normal(0, 2, (9, 7)), rng.integers(0, 7, 9), 4
    found = answer_of(f, logits.copy(), ids, n)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong("One number: the sum over the answer's tokens.")
    log_p = torch.from_numpy(logits).log_softmax(-1).numpy()
    t = np.arange(n, 9)
    truth = float(log_p[t - 1, ids[t]].sum())
    for value, says in (
        (log_p[t, ids[t]].sum(), "Off by one: the logits at position t are about token t + 1."),
        (log_p[t[:-1], ids[t[:-1] + 1]].sum(), "The first token of the answer is missing: the last prompt position predicts it."),
        (log_p[np.arange(8), ids[1:]].sum(), "The prompt is counted too. It is given; only the answer is scored."),
        (truth / len(t), "The mean over tokens. DPO's log-probability is of the whole answer: the sum."),
        (logits[t - 1, ids[t]].sum(), "Logits are not log-probabilities: subtract the log of their total at each position."),
        (np.exp(log_p[t - 1, ids[t]]).sum(), "Probabilities were added. Log-probabilities add, probabilities multiply."),
        (-truth, "The sign: a log-probability is negative."),
    ):  # fmt: skip
        if np.isclose(found, float(value)):
            return wrong(says)
    if not np.isclose(found, truth):
        return wrong("It differs from the sum of log softmax(logits[t - 1])[ids[t]] over the answer's t.")
    return right("Long answers have lower log-probabilities: DPO compares each with a reference, where that cancels.")


# --------------------------------------------------------------------------------------------------- exercise 2
def solve_dpo(chosen: Array, rejected: Array, ref_chosen: Array, ref_rejected: Array, beta: float) -> float:
    margin = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    return float(np.logaddexp(0.0, -margin).mean())  # -log sigmoid(margin), safe for large margins


def check_dpo(f: Callable[[Array, Array, Array, Array, float], float]) -> Verdict:
    """DPO's loss from four arrays of log-probabilities, f(chosen, rejected, ref_chosen, ref_rejected, beta)."""
    rng = np.random.default_rng(1)
    c, r, rc, rr = (-30 + 5 * rng.normal(size=6) for _ in range(4))
    beta = 0.3
    found = answer_of(f, c, r, rc, rr, beta)
    if isinstance(found, Verdict):
        return found
    if found.shape != ():
        return wrong("One number: the mean over pairs.")

    def loss(margin: Array) -> float:
        return float(-F.logsigmoid(torch.from_numpy(margin)).mean())

    margin = beta * ((c - rc) - (r - rr))
    each = -F.logsigmoid(torch.from_numpy(margin)).numpy()
    for value, says in (
        (loss(beta * (c - r)), "The reference is missing: without it the pull does not stop, whatever the model was before."),
        (loss(-margin), "Chosen and rejected are exchanged: this teaches the opposite."),
        (loss(margin / beta), "beta is missing. It sets how far the policy may move from the reference."),
        (beta * loss(margin / beta), "beta stands inside the sigmoid, times the margin, not before the loss."),
        (-loss(margin), "The sign: the loss is minus the log of the sigmoid."),
        (each.sum(), "The sum over pairs. Take the mean."),
        (float((1 - np.exp(-each)).mean()), "One less the sigmoid. The loss takes its logarithm."),
        (loss(np.array([margin.mean()])), "Margins were averaged first. Average the losses: one badly ranked pair must cost."),
        (loss(beta * ((c + rc) - (r + rr))), "The reference's log-probabilities are subtracted: log of a ratio."),
    ):  # fmt: skip
        if np.isclose(found, value):
            return wrong(says)
    if not np.isclose(found, loss(margin)):
        return wrong("It differs from -log sigmoid(beta ((c - c_ref) - (r - r_ref))), averaged over pairs.")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        far = answer_of(f, c - 5000.0, r, rc, rr, beta, shape=())
    if isinstance(far, Verdict) or not np.isfinite(far):
        return wrong("Right, but exp overflows for a very badly ranked pair: log(1 + e^x) as logaddexp(0, x) does not.")
    return right("At the start policy and reference are one, every margin is 0, and the loss is log 2 = 0.693.")
