"""From a request in a user's words to the study of a comparison: config, rates, and the reasons for every setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from layerrope.accounting import count_parameters
from layerrope.budget import steps_of
from layerrope.comparing.choices import as_rows, choices
from layerrope.comparing.compare import SCHEMES, comparison
from layerrope.comparing.rates import choose, packaged, sweep_to_json
from layerrope.config import PAPER_EMBED_STD, preset, tier
from layerrope.data import DataConfig, Dataset, load_data
from layerrope.errors import InputError
from layerrope.scheme_table import scheme
from layerrope.study import Study
from layerrope.text.prepare import Progress
from layerrope.training.recipe import TrainConfig


@dataclass(frozen=True)
class Request:
    """What to compare. The defaults are the demonstration: five schemes on English novels, minutes on two cores."""

    schemes: tuple[str, ...] = SCHEMES
    """depth schemes, with options where wanted: layerrope:rotation=off"""
    lrs: tuple[float, ...] = ()
    """peak learning rates to try for every scheme; none: the best of the packaged sweep where it was made at these
    settings, else a grid from 0.0015 to 0.096 in factors of two"""
    seeds: tuple[int, ...] = (0,)
    """one run of everything for each; two or more give intervals"""
    tier: str = "micro"
    """size of the model: micro (24 layers, width 64), micro-100k ... micro-2m, 60m ... 7b, d128-L48 ... d128-L512"""
    preset: str = "modern"
    """parts of the model: modern (RMSNorm, rotary, SwiGLU) or gpt-2017 (LayerNorm, learned positions, GELU)"""
    data: str = "embedded"
    """text: embedded, a .txt or .jsonl file (also .xz, .zst, .gz), a folder of these, or hf:NAME"""
    tokenizer: str = "bytes"
    """bytes, bpe:SIZE (trained on the text), a tokenizer.json, or hub:NAME. Bytes suit a small budget: nothing to
    train first, and the compute goes to the layers, where the schemes differ, and not to a large head"""
    budget: str = "200"
    """length of each run: steps (200), tokens (2M) or tokens per parameter of the Pre-Norm model (20x)"""
    batch_size: int = 16
    """sequences per step"""
    embed_std: float = PAPER_EMBED_STD
    """standard deviation of the embedding at the start: where the stream starts. sqrt(2/5) is the papers'"""
    optimizer: str = "adam"
    """adam, adamw or muon"""
    precision: str = "fp32"
    """fp32, bf16 (autocast) or paper (bf16 weights, fp32 gains and norms)"""
    compile: bool = True
    """compile the layers with torch.compile"""
    eval_every: int = 0
    """steps between evaluations; 0: only at the end (the training loss is on unseen text as long as no text repeats)"""
    eval_tokens: int | None = 32_768
    """validation tokens of an evaluation"""


def plan(request: Request, progress: Progress | None = None) -> Study:
    """The study that a request asks for. Prepares the text, trains nothing.

    Raises:
        InputError: a name that does not exist (with the nearest ones), or settings that do not fit together.
    """
    _check(request)
    model = replace(preset(request.preset, tier(request.tier)), embed_std=request.embed_std)
    config = DataConfig(source=request.data, tokenizer=request.tokenizer, seq_len=model.seq_len)
    base = TrainConfig(
        model=model,
        data=config,
        batch_size=request.batch_size,
        optimizer=request.optimizer,
        precision=request.precision,
        compile=request.compile,
        eval_every=request.eval_every,
        eval_tokens=request.eval_tokens,
        checkpoint_every=100,
        keep_checkpoints=1,
    )
    data = load_data(config, progress=progress)
    base = replace(base, model=replace(model, vocab_size=data.vocab_size))
    base = replace(base, steps=steps_of(request.budget, count_parameters(base.model)[0], base.tokens_per_step))
    for name in request.schemes:
        count_parameters(replace(base.model, scheme=name))  # builds it, so that what does not fit is refused now
    return _study(request, base, data)


def _check(request: Request) -> None:
    """Raise InputError for what can be refused before any text is read."""
    if not request.schemes:
        raise InputError("no scheme to compare: name at least one after --schemes")
    for name in request.schemes:
        scheme(name)
    if not request.seeds or min(request.seeds) < 0:
        raise InputError("seeds are whole numbers from 0: give at least one after --seeds")
    bad = [lr for lr in request.lrs if not (math.isfinite(lr) and lr > 0)]
    if bad:
        raise InputError(f"a learning rate must be positive: got {bad[0]}")


def _study(request: Request, base: TrainConfig, data: Dataset) -> Study:
    schemes = tuple(dict.fromkeys(request.schemes))
    seeds = tuple(dict.fromkeys(request.seeds))
    rates = choose(schemes, request.lrs, base, packaged())
    facts: dict[str, Any] = {
        "settings": as_rows(choices(base, rates, seeds, data)),
        "rates": {"source": rates.source, "by_scheme": rates.by_scheme},
        "sweep": None if rates.sweep is None else sweep_to_json(rates.sweep),
        "text": data.summary(),
    }
    return comparison(base, rates, seeds, facts)
