"""Every setting of a comparison in words, with its reason: printed before training and kept with the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from layerrope.accounting import count_parameters
from layerrope.comparing.rates import Rates
from layerrope.config import PAPER_EMBED_STD, ModelConfig, tiers
from layerrope.data import Dataset
from layerrope.gains import LayerRoPE
from layerrope.model import LM
from layerrope.training.recipe import TrainConfig


@dataclass(frozen=True)
class Choice:
    """One setting."""

    name: str
    value: str
    why: str = ""


def choices(base: TrainConfig, rates: Rates, seeds: Sequence[int], data: Dataset) -> list[Choice]:
    """The settings of a comparison, in the order in which they matter."""
    schemes = list(rates.by_scheme)
    return [
        Choice("schemes", ", ".join(schemes)),
        Choice("model", shape(base.model), f"{count_parameters(base.model)[0]:,} parameters as Pre-Norm"),
        Choice("text", _text(data), _why_tokens(base)),
        Choice("budget", _budget(base), _why_budget(base)),
        Choice("start of the stream", f"embedding std {base.model.embed_std:.4g}", _why_embedding(base.model)),
        Choice("weights at the start", f"N(0, {base.model.init_std:g}^2)", "; ".join(_multipliers(base, schemes))),
        Choice("gains at the start", "; ".join(_gain_starts(base, schemes)) or "1", "norm weights start at 1"),
        Choice("learning rates", _rates(rates), rates.source),
        Choice("optimiser", _optimizer(base), _schedule(base)),
        Choice("arithmetic", f"{base.precision}, {'compiled' if base.compile else 'not compiled'}"),
        Choice("seeds", " ".join(map(str, seeds)), "a seed fixes weights and order of the text for every scheme"),
        Choice("evaluation", _evaluation(base, data), "the same windows for every run"),
    ]


def shape(model: ModelConfig) -> str:
    """A model's shape and parts in one line, with its tier where it is one."""
    known = {"vocab_size": 1, "embed_std": 1.0, "scheme": "prenorm"}
    name = next((n for n, c in tiers.items() if replace(c, **known) == replace(model, **known)), None)
    parts = f"{model.norm}, {model.position} positions, {model.mlp}"
    size = f"{model.n_layer} layers, width {model.d_model}, {model.n_head} heads, MLP {model.d_ff}, T {model.seq_len}"
    return f"{'' if name is None else f'tier {name}: '}{size}; {parts}; vocabulary {model.vocab_size:,}"


def _text(data: Dataset) -> str:
    summary = data.summary()
    return f"{summary['source']}, tokenizer {summary['tokenizer']}; {data.train.n_tokens:,} training tokens"


def _why_tokens(base: TrainConfig) -> str:
    """Why these tokens, with the share of the matrix products that the head takes under them."""
    model = base.model
    head = model.vocab_size * model.d_model
    inside = sum(p.numel() for p in _meta(model, "prenorm").layers.parameters() if p.ndim == 2)
    cost = f"the head takes {head / (head + inside):.0%} of the weights that multiply"
    return f"no tokenizer to train, {cost}, and bits per byte are exact" if base.data.tokenizer == "bytes" else cost


def _budget(base: TrainConfig) -> str:
    tokens = base.steps * base.tokens_per_step
    return f"{base.steps:,} steps of {base.batch_size} x {base.data.seq_len} = {tokens:,} tokens a run"


def _why_budget(base: TrainConfig) -> str:
    ratio = base.steps * base.tokens_per_step / count_parameters(base.model)[0]
    return f"{ratio:.2g} tokens per parameter (compute-optimal is about 20, the LayerRoPE paper has 80)"


def _why_embedding(model: ModelConfig) -> str:
    if math.isclose(model.embed_std, PAPER_EMBED_STD, rel_tol=1e-3):
        return "sqrt(2/5), as on the ladder of the LayerRoPE and LNS papers; moves results as much as the scheme does"
    return f"the papers' ladder has sqrt(2/5) = {PAPER_EMBED_STD:.4g}; moves results as much as the scheme does"


def _multipliers(base: TrainConfig, schemes: Sequence[str]) -> Iterator[str]:
    """What a scheme's init multiplies, read off the model itself: `prenorm-scaledinit: o, down x 0.144`."""
    for name in schemes:
        found: dict[str, set[float]] = {}
        for weight, _, std in _meta(base.model, name).init_stds():
            if ".f." in weight:
                found.setdefault(weight.split(".")[-2], set()).add(std / base.model.init_std)
        words = [f"{role} x {_span(v)}" for role, v in found.items() if not all(math.isclose(x, 1) for x in v)]
        if words:
            yield f"{name}: {', '.join(words)}"


def _span(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if math.isclose(low, high) else f"{low:.3g} to {high:.3g}"


def _gain_starts(base: TrainConfig, schemes: Sequence[str]) -> Iterator[str]:
    """Where LayerRoPE's scalars start, read off the module: `layerrope: alpha 0, beta -0.5, ...`."""
    for name in schemes:
        gains = _meta(base.model, name).gains
        for module in gains.modules() if gains is not None else ():
            if isinstance(module, LayerRoPE):
                starts = ", ".join(f"{k} {_start(v)}" for k, v in module.starts.items())
                yield f"{name}: {starts}, base {module.base:g}"


def _start(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(dict.fromkeys(map(_start, value)))
    return value if isinstance(value, str) else f"{value:g}"


def _meta(model: ModelConfig, scheme: str) -> LM:
    with torch.device("meta"):
        return LM(replace(model, scheme=scheme))


def _rates(rates: Rates) -> str:
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, lrs in rates.by_scheme.items():
        groups.setdefault(lrs, []).append(name)
    return "; ".join(f"{', '.join(names)}: {' '.join(f'{lr:g}' for lr in lrs)}" for lrs, names in groups.items())


def _optimizer(base: TrainConfig) -> str:
    decay = f"weight decay {base.weight_decay:g}" if base.weight_decay else "no weight decay"
    clip = f"gradients clipped at {base.clip:g}" if base.clip else "no clipping"
    return f"{base.optimizer}, betas {base.betas[0]:g} {base.betas[1]:g}, {decay}, {clip}"


def _schedule(base: TrainConfig) -> str:
    return f"{base.schedule}: warm-up over {base.warmup:.0%} of the steps, ends at {base.min_lr:g} of the peak"


def _evaluation(base: TrainConfig, data: Dataset) -> str:
    held = data.val.n_counted
    return f"{min(base.eval_tokens or held, held):,} of {held:,} validation tokens, evenly spaced"


def as_rows(found: Sequence[Choice]) -> list[Mapping[str, str]]:
    """For a table or for JSON."""
    return [{"setting": c.name, "value": c.value, "why": c.why} for c in found]
