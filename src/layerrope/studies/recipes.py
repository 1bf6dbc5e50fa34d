"""The studies: a function each, from what the user asked for to the cells to train.

`SCHEMES` is in every table: scaled-init Pre-Norm stands beside plain Pre-Norm, since the start of LayerRoPE's gains is
itself a start scaled with depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layerrope.accounting import count_parameters
from layerrope.budget import steps_of
from layerrope.config import PAPER_EMBED_STD, ModelConfig
from layerrope.errors import InputError, one_of
from layerrope.looping.looped import LoopedConfig
from layerrope.studies.loops import LOOP_SIZES, TOKENS, LoopScale, at_equal_flops, loop_base, loop_scale, ways
from layerrope.studies.plan import Ask, Cell, Plan, in_words, model_fields
from layerrope.studies.scales import SCALES, SIZES, Scale, base_config, equal_shapes
from layerrope.study import replaced
from layerrope.text.tokens import bpe_size
from layerrope.training.kinds import LoopedTrainConfig
from layerrope.training.recipe import TrainConfig, run_key

SCHEMES = ("prenorm", "prenorm-scaledinit", "lns", "perinorm", "layerrope", "layerrope-peri")
DEEP_START = "layerrope:beta=0,beta_rot=0,base=10000"
"""LayerRoPE as the paper starts it in its deep, narrow runs (arXiv 2610.09179, Appendix D.2)."""
ABLATION = (
    "prenorm",
    "prenorm-scaledinit",
    "lns",
    "perinorm",
    "layerrope",
    "layerrope-peri",
    # what is learned
    "layerrope:rotation=off",
    "layerrope:magnitude=off",
    "layerrope:sites=read",
    "layerrope:sites=write",
    "layerrope:spectrum=single",
    "layerrope:gamma=layer",
    "layerrope:schedule=free",
    "layerrope:schedule=geometric",
    "layerrope-peri:rotation=off",
    "layerrope-peri:magnitude=off",
    # how it starts: slopes of reads/writes, offset of writes, angle, weights
    "layerrope:beta=0",
    "layerrope:beta=-0.5/0",
    "layerrope:beta=0/-0.5",
    "layerrope:beta=0,alpha=0/damped",
    "layerrope:beta=-0.5/0,alpha=0/damped",
    "layerrope:alpha_rot=-3",
    "layerrope:beta=0,alpha=0/damped,rotation=off",
    "prenorm-scaledinit+layerrope:beta=0",
    "prenorm-scaledinit+layerrope:beta=-0.5/0",
)
"""Every switch alone, and every start: slopes for reads and writes apart, the write offset 0 or -ln(2L)/2 (the gain
form of scaled init), a small starting angle (alpha_rot -3: 0.05 radians), plain or scaled weights."""
LOOPED = ("prenorm", "lns", "perinorm", "layerrope", "layerrope-peri")
"""Scaled-init Pre-Norm is Pre-Norm here: the projections that it would scale start at zero."""
COMPETITORS = ("hc", "mhc", "attnres", "mixln", "keel", "hc+layerrope")
OPTIMISERS: dict[str, dict[str, Any]] = {
    "paper": {"optimizer": "adam", "weight_decay": 0.0, "clip": None, "betas": (0.9, 0.999)},
    "modern": {"optimizer": "adamw", "weight_decay": 0.1, "clip": 1.0, "betas": (0.9, 0.95)},
    "muon": {"optimizer": "muon", "weight_decay": 0.1, "clip": 1.0, "betas": (0.9, 0.95)},
}
WIDE = 2
"""Factors of two that the study of rates adds below and above the other studies' grid."""


@dataclass(frozen=True)
class Setting:
    """One value of a study's axis: what a reader calls it, and the fields that make it."""

    labels: Mapping[str, Any]
    fields: Mapping[str, Any]


Recipe = Callable[[Ask, Scale], Plan]


# --------------------------------------------------------------------------------------------------------- the studies
def ladder(ask: Ask, scale: Scale) -> Plan:
    """Which scheme needs how much compute for a loss, over sizes at equal tokens per parameter?"""
    base = base_config(scale, SIZES[scale.ladder[0]])
    settings = [_size(name, base) for name in _chosen(ask, "size", scale.ladder, SIZES)]
    return _plan("ladder", ask, scale, base, settings, SCHEMES)


def depth(ask: Ask, scale: Scale) -> Plan:
    """Which scheme still trains, and still improves, as layers are added at one width?"""
    base = base_config(scale, scale.narrow)
    depths = [_number("depth", d) for d in ask.sizes] or scale.depths
    settings = [Setting({"layers": d}, {"model.n_layer": d}) for d in depths]
    ask = replace(ask, lrs=ask.lrs or scale.depth_lrs, budgets=ask.budgets or (scale.depth_budget,))
    return _plan("depth", ask, scale, base, settings, (*SCHEMES, DEEP_START, "deepnorm"))


def aspect(ask: Ask, scale: Scale) -> Plan:
    """At equal parameters in the layers: are more layers a better use of them than more width?   (DepthBench)"""
    base = base_config(scale, SIZES[scale.size])
    depths = tuple(_number("depth", d) for d in ask.sizes) or scale.aspect_depths
    shapes = equal_shapes(scale.aspect_target, depths, base.model)
    settings = [
        Setting({"layers": shape.n_layer, "shape": name}, model_fields(shape, base.model))
        for name, shape in shapes.items()
    ]
    return _plan("aspect", ask, scale, base, settings, SCHEMES)


def lr(ask: Ask, scale: Scale) -> Plan:
    """How wide is the range of learning rates in which a scheme trains well?"""
    base = base_config(scale, SIZES[scale.size])
    settings = [_size(name, base) for name in _chosen(ask, "size", (scale.size,), SIZES)]
    low, high = min(scale.lrs), max(scale.lrs)
    wide = [low / 2**k for k in range(WIDE, 0, -1)] + [*scale.lrs] + [high * 2**k for k in range(1, WIDE + 1)]
    return replace(
        _plan("lr", replace(ask, lrs=ask.lrs or tuple(wide)), scale, base, settings, SCHEMES),
        every_seed=True,
        one_grid=True,
    )


def ablation(ask: Ask, scale: Scale) -> Plan:
    """Which part of LayerRoPE does the work, and how much of it is its start, in budgets short and long?"""
    base = base_config(scale, SIZES[scale.size])
    settings = [_size(name, base) for name in _chosen(ask, "size", (scale.size,), SIZES)]
    ask = replace(
        ask, budgets=ask.budgets or (scale.short, scale.budget), embed_stds=ask.embed_stds or (0.02, PAPER_EMBED_STD)
    )
    return _plan("ablation", ask, scale, base, settings, ABLATION)


def recipe(ask: Ask, scale: Scale) -> Plan:
    """Does the order of the schemes survive weight decay, clipping and another optimiser?"""
    base = base_config(scale, SIZES[scale.size])
    base = replace(base, precision="bf16") if base.precision == "paper" else base  # which knows Adam alone
    names = _chosen(ask, "optimiser recipe", tuple(OPTIMISERS), OPTIMISERS)
    return _plan("recipe", ask, scale, base, [Setting({"recipe": n}, OPTIMISERS[n]) for n in names], SCHEMES)


def context(ask: Ask, scale: Scale) -> Plan:
    """Does the order survive longer contexts, at equal tokens per step?"""
    base = base_config(scale, SIZES[scale.size])
    lengths = [_number("context", length) for length in ask.sizes] or scale.contexts
    batch = ask.batch_size or base.batch_size
    tokens = max(batch * base.model.seq_len, max(lengths))
    settings = []
    for length in lengths:
        if tokens % length:
            raise InputError(
                f"a context of {length} does not divide the {tokens} tokens of a step: take a power of two"
            )
        fields = {"model.seq_len": length, "data.seq_len": length, "batch_size": tokens // length}
        settings.append(Setting({"context": length}, fields))
    return _plan("context", ask, scale, base, settings, SCHEMES)


def competitors(ask: Ask, scale: Scale) -> Plan:
    """How do schemes that rebuild the residual stream compare with LayerRoPE at one size?"""
    base = base_config(scale, SIZES[scale.size])
    settings = [_size(name, base) for name in _chosen(ask, "size", (scale.size,), SIZES)]
    return _plan("competitors", ask, scale, base, settings, (*SCHEMES, *COMPETITORS))


def loop(ask: Ask, scale: Scale) -> Plan:
    """What does looping bring at equal parameters and at equal FLOPs, and what do gains by executed depth add to it?"""
    if ask.embed_stds:
        raise InputError("the loop study has no --embed-stds: the embedding of a looped model starts at sqrt(2 / 5 d)")
    own = loop_scale(ask.scale)
    base = loop_base(scale, own)
    sizes = {name: LOOP_SIZES[name] for name in _chosen(ask, "looped size", (own.size,), LOOP_SIZES)}
    plans = [_looped(name, model, ask, scale, own, base) for name, model in sizes.items()]
    return replace(plans[0], cells=tuple(cell for plan in plans for cell in plan.cells))


def _looped(name: str, model: LoopedConfig, ask: Ask, scale: Scale, own: LoopScale, base: LoopedTrainConfig) -> Plan:
    """The cells of one size, each way of running it under each scheme."""
    asked = _asked(ask, base)
    kept = replace(model, vocab_size=asked.model.vocab_size)
    settings = [
        Setting({"size": name, "run": way}, {**model_fields(kept, asked.model), **fields})
        for way, fields in ways(model).items()
    ]
    ask = replace(ask, lrs=ask.lrs or own.lrs, budgets=ask.budgets or (TOKENS.get(name, scale.budget),))
    made = _plan("loop", ask, scale, base, settings, LOOPED)
    return replace(made, cells=tuple(at_equal_flops(cell, kept) for cell in made.cells))


RECIPES: dict[str, Recipe] = {
    "ladder": ladder,
    "depth": depth,
    "aspect": aspect,
    "lr": lr,
    "ablation": ablation,
    "recipe": recipe,
    "context": context,
    "competitors": competitors,
    "loop": loop,
}
SIZED = ("ladder", "depth", "ablation", "competitors")
"""Studies whose axis can hold smaller and larger models, each seed at its best rate."""
ABSENT = {
    "numerics": "it trains nothing that another study does not have: score a comparison's or study's folder with"
    " layerrope eval FOLDER --numerics",
}
"""Studies that are asked for and are none, with what to do instead."""


def plan_study(name: str, ask: Ask) -> Plan:
    """The plan of the study `name`. Reads no text and trains nothing.

    Raises:
        InputError: no such study, a value that does not exist, or settings that do not fit together.
    """
    if name in ABSENT:
        raise InputError(f"the study {name} cannot be run: {ABSENT[name]}; there are {', '.join(RECIPES)}")
    recipe_of = RECIPES[one_of("study", name, RECIPES)]
    if ask.seeded_sizes is not None and name not in SIZED:
        raise InputError(f"--seeded-sizes is for studies over sizes ({', '.join(SIZED)}); {name} takes --seeds alone")
    made = recipe_of(ask, SCALES[one_of("scale", ask.scale, SCALES)])
    _refuse_twins(made)
    return made


def _refuse_twins(plan: Plan) -> None:
    """Raise InputError, naming the settings, where two cells would train the same runs or have the same name."""
    names: dict[tuple[tuple[str, Any], ...], Cell] = {}
    keys: dict[str, Cell] = {}
    for cell in plan.cells:
        key = run_key(replaced(plan.base, {"model.scheme": cell.scheme, **cell.fields}))
        if cell.name in names:
            raise InputError(f"two settings would both be called {in_words(cell.setting)}: set them further apart")
        if key in keys:
            two = f"{in_words(keys[key].setting)} and {in_words(cell.setting)}"
            raise InputError(f"two settings are the same runs: {two}. Leave one of them out")
        names[cell.name] = keys[key] = cell


# ------------------------------------------------------------------------------------------------------------ assembly
def _plan(
    name: str, ask: Ask, scale: Scale, base: TrainConfig, settings: list[Setting], schemes: tuple[str, ...]
) -> Plan:
    """Settings x budgets x starts of the stream x schemes, each at its rates; budgets are in Pre-Norm's parameters."""
    base = _asked(ask, base)
    cells: list[Cell] = []
    last = _last_seeded(ask, base, settings)
    for setting in _with_axes(ask, scale, settings):
        fields = dict(setting.fields)
        there, size = _in_setting(base, fields)
        fields["steps"] = steps_of(fields.pop("budget"), size, there.tokens_per_step)
        for scheme in dict.fromkeys(ask.schemes or schemes):
            count_parameters(
                replace(there.model, scheme=scheme)
            )  # refuses what does not fit, before anything is trained
            rates = tuple(sorted(set(ask.lrs or scale.lrs)))
            cells.append(Cell(scheme, setting.labels, fields, rates, seeded=size <= last))
    question = next(line for line in (RECIPES[name].__doc__ or "").splitlines() if line)
    seeds = tuple(dict.fromkeys(ask.seeds or scale.seeds))
    bracket = scale.bracket if ask.bracket is None else ask.bracket
    return Plan(name, question, base, tuple(cells), seeds, ask.every_seed, bracket=bracket)


def _in_setting(base: TrainConfig, fields: Mapping[str, Any]) -> tuple[TrainConfig, int]:
    """The config of a setting, and its parameters with Pre-Norm."""
    there = replaced(base, {k: v for k, v in fields.items() if k != "budget"})
    return there, count_parameters(replace(there.model, scheme="prenorm"))[0]


def _last_seeded(ask: Ask, base: TrainConfig, settings: list[Setting]) -> float:
    """Parameters of the largest size at which seeds beyond the first are trained."""
    if ask.seeded_sizes is None:
        return math.inf
    sizes = sorted({_in_setting(base, setting.fields)[1] for setting in settings})
    return sizes[min(ask.seeded_sizes, len(sizes)) - 1]


def _with_axes(ask: Ask, scale: Scale, settings: list[Setting]) -> list[Setting]:
    """Every setting once at every budget and start of the stream; these are labels where there are several."""
    budgets, stds = tuple(dict.fromkeys(ask.budgets or (scale.budget,))), tuple(dict.fromkeys(ask.embed_stds))
    made: list[Setting] = []
    for setting in (each for i, each in enumerate(settings) if each not in settings[:i]):
        for budget in budgets:
            for std in stds or (None,):
                labels, fields = dict(setting.labels), {**setting.fields, "budget": budget}
                labels |= {"budget": budget} if len(budgets) > 1 else {}
                labels |= {"embed std": round(std, 4)} if std is not None and len(stds) > 1 else {}
                fields |= {"model.embed_std": std} if std is not None else {}
                made.append(Setting(labels, fields))
    return made


def _asked(ask: Ask, base: TrainConfig) -> TrainConfig:
    """The base config with what the user set."""
    source, tokenizer = ask.data or base.data.source, ask.tokenizer or base.data.tokenizer
    data = replace(base.data, source=source, tokenizer=tokenizer)
    settings = {"batch_size": ask.batch_size, "eval_tokens": ask.eval_tokens}
    given = {name: value for name, value in settings.items() if value is not None}
    vocabulary = ask.vocab_size or _vocabulary(tokenizer, base.model)
    return replace(base, data=data, model=replace(base.model, vocab_size=vocabulary), **given)


def _vocabulary(tokenizer: str, model: ModelConfig) -> int:
    """Token ids, as far as the tokenizer's name says them; else the size's own."""
    if tokenizer == "bytes":
        return ModelConfig.vocab_size
    return bpe_size(tokenizer) if tokenizer.startswith("bpe:") else model.vocab_size


def _size(name: str, base: TrainConfig) -> Setting:
    kept = replace(SIZES[name], embed_std=base.model.embed_std, vocab_size=base.model.vocab_size)
    return Setting({"size": name}, model_fields(kept, base.model))


def _chosen(ask: Ask, kind: str, default: tuple[str, ...], known: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(one_of(kind, name, known) for name in ask.sizes) or default


def _number(kind: str, word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise InputError(f"a {kind} is a whole number from 1: got {word!r}")
    return int(word)
