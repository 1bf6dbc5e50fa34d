"""What a training run is: `TrainConfig`, its JSON form, and the key that names runs with the same numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from layerrope.config import MOST, ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError, one_of
from layerrope.training.optim import OPTIMIZERS
from layerrope.training.schedule import SCHEDULES

PRECISIONS = ("fp32", "bf16", "paper")

NEUTRAL = frozenset({"log_every", "probe_every", "checkpoint_every", "keep_checkpoints"})
"""Fields that change what is written and when, but no number: left out of the run's key and free on resume."""

ROUNDING = frozenset({"micro_batch", "compile", "checkpointing"})
"""Fields that change how a step is computed and so, at most, how it rounds: in the run's key, but free on resume."""


@dataclass(frozen=True)
class Settings:
    """How to train: everything but the model, the text and the number of steps."""

    batch_size: int = 16
    """sequences per update"""
    micro_batch: int | None = None
    """sequences per forward pass, a divisor of the batch; None: the whole batch at once"""
    lr: float = 3e-3
    """peak learning rate"""
    schedule: str = "cosine"
    """cosine, wsd or constant"""
    warmup: float = 0.1
    """fraction of the steps in which the learning rate rises"""
    decay: float = 0.2
    """fraction of the steps in which wsd falls"""
    min_lr: float = 0.1
    """learning rate at the end, as a fraction of the peak"""
    optimizer: str = "adam"
    """adam, adamw or muon"""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the two moments"""
    adam_eps: float = 1e-8
    """Adam's eps"""
    weight_decay: float = 0.0
    """for matrices, embeddings and the head; norms, biases and gains are never decayed"""
    clip: float | None = None
    """largest norm of the whole gradient; None or 0: no clipping"""
    seed: int = 0
    """of the weights and of the order of the data"""
    precision: str = "fp32"
    """fp32, bf16 (autocast) or paper (bf16 weights, fp32 gains and norms; Adam, no decay, no clipping)"""
    compile: bool = False
    """compile the layers with torch.compile"""
    checkpointing: bool = False
    """recompute each layer's activations in the backward pass instead of keeping them"""
    eval_every: int = 0
    """steps between evaluations; 0: only at the end"""
    eval_tokens: int | None = None
    """validation positions per evaluation, evenly spaced over the split; None: all"""
    probe_every: int = 0
    """steps between cheap probes of every layer, written to metrics.jsonl; 0: never"""
    log_every: int = 10
    """steps between lines of metrics.jsonl"""
    checkpoint_every: int = 500
    """steps between checkpoints; 0: only at the end and on an interrupt"""
    keep_checkpoints: int = 2
    """how many of the newest checkpoints stay on disk"""


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Everything needed to repeat a run. Raises InputError for settings that do not fit together."""

    steps: int = 1000
    """optimiser updates"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """shape, parts and scheme"""
    data: DataConfig = field(default_factory=DataConfig)
    """text, tokenizer and windows"""

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("precision", self.precision, PRECISIONS)
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}: got {getattr(self, name)}")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} must lie between {low:g} and {high:g}: got {getattr(self, name)}")
        if not math.isfinite(self.weight_decay):
            raise InputError(f"weight_decay must be a finite number: got {self.weight_decay}")
        for name in ("lr", "adam_eps"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(f"{name} must be positive: got {getattr(self, name)}")
        self._check_together()

    def _check_together(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be two numbers in [0, 1): got {self.betas}")
        for name in ("micro_batch", "eval_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.batch_size % self.micro:
            raise InputError(f"micro_batch {self.micro_batch} does not divide batch_size {self.batch_size}")
        if self.clip is not None and not 0 <= self.clip < math.inf:
            raise InputError(f"clip must be a positive norm, or 0 for no clipping: got {self.clip}")
        self._check_data()
        if self.precision == "paper" and (self.optimizer != "adam" or self.weight_decay or self.clip):
            raise InputError("precision paper means Adam, no weight decay and no clipping: drop those or take bf16")

    def _check_data(self) -> None:
        """Raise InputError unless the model can read what the data gives."""
        if self.data.seq_len != self.model.seq_len:
            raise InputError(
                f"the data has windows of {self.data.seq_len} tokens, the model a seq_len of {self.model.seq_len}: "
                "set both to the same"
            )

    @property
    def micro(self) -> int:
        """Sequences per forward pass."""
        return self.batch_size if self.micro_batch is None else self.micro_batch

    @property
    def tokens_per_step(self) -> int:
        """Positions per update, ignored ones included."""
        return self.batch_size * self.model.seq_len


_LEAST: dict[str, int] = {
    "steps": 1,
    "batch_size": 1,
    "eval_every": 0,
    "probe_every": 0,
    "log_every": 1,
    "checkpoint_every": 0,
    "keep_checkpoints": 1,
}

_RANGES: dict[str, tuple[float, float]] = {
    "batch_size": (1, MOST),
    "warmup": (0, 1),
    "decay": (0, 1),
    "min_lr": (0, 1),
    "weight_decay": (0, math.inf),
    "seed": (0, 2**63 - 1),
}


# ---------------------------------------------------------------------------------------------------------- JSON
def to_json(config: Any) -> dict[str, Any]:
    """A config dataclass as JSON data, nested ones included."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


Config = TypeVar("Config")


def from_json(kind: type[Config], data: Mapping[str, Any], where: str = "config") -> Config:
    """The config that `to_json` wrote. Fields that are absent take their defaults.

    Raises:
        InputError: an unknown field (with the nearest names), an absent one, a value of the wrong type, or one that
            does not fit.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where} is not a JSON object")
    hints = typing.get_type_hints(kind)
    for name in data:
        one_of(f"field in {where}:", name, hints)
    lacking = [f.name for f in dataclasses.fields(kind) if f.name not in data and not _has_default(f)]  # type: ignore[arg-type]
    if lacking:
        raise InputError(f"{where} lacks {lacking[0]}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _has_default(f: dataclasses.Field[Any]) -> bool:
    return not (f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)


def _value(hint: Any, value: Any, where: str) -> Any:
    """`value` read as type `hint`: numbers, words, None where allowed, nested configs, pairs as tuples."""
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_value(typing.get_args(hint)[0], v, where) for v in value)
    if typing.get_origin(hint) is list and isinstance(value, list):
        for v in value:
            _value(typing.get_args(hint)[0], v, where)
        return value
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        raise InputError(f"{where} should be {getattr(hint, '__name__', hint)}: got {value!r}")
    return value


# ----------------------------------------------------------------------------------------------------------- key
KEY_VERSION = 1
"""Part of every key. Raise it when equal fields no longer mean equal numbers: a default or the arithmetic changed."""


def run_key(config: TrainConfig) -> str:
    """12 hexadecimal digits that name the run: equal keys, equal numbers.

    A hash of the fields that differ from their defaults, but for the `NEUTRAL` ones, so a field added to a config
    renames no run that leaves it alone. The device and the number of threads are not in the config.
    """
    own = {name: value for name, value in _changed(config).items() if name not in NEUTRAL}
    kind = getattr(config.model, "kind", None)  # of models that are no decoders; a default, yet it sets runs apart
    own |= {} if kind is None else {"kind": kind}
    return hashlib.sha256(json.dumps([KEY_VERSION, own], sort_keys=True).encode()).hexdigest()[:12]


def _changed(config: Any) -> dict[str, Any]:
    """The fields of a config that differ from their defaults, as JSON data; fields without one, and nested configs."""
    values = {f.name: (f, getattr(config, f.name)) for f in dataclasses.fields(config)}
    nested = {name: _changed(value) for name, (_, value) in values.items() if dataclasses.is_dataclass(value)}
    plain = {
        name: value
        for name, (f, value) in values.items()
        if name not in nested and not (f.default is not dataclasses.MISSING and f.default == value)
    }
    return json.loads(json.dumps(plain)) | nested


def completed(saved: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """`saved`, the JSON of a config of the same kind as `config`, with fields that are younger than it at their
    defaults."""
    known = {f.name: f.default for f in dataclasses.fields(config) if f.default is not dataclasses.MISSING}
    filled = json.loads(json.dumps(known)) | dict(saved)
    for name, value in filled.items():
        inner = getattr(config, name, None)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(inner):
            filled[name] = completed(value, inner)
    return filled


def differences(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], free: frozenset[str] = NEUTRAL, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """(field, saved value, wanted value) for every field in which two JSON configs differ, but for the `free` ones."""
    for name in dict(wanted) | dict(saved):
        a, b = saved.get(name), wanted.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from differences(a, b, free, f"{prefix}{name}.")
        elif a != b and name not in free:
            yield f"{prefix}{name}", a, b
