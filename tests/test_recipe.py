"""The run's config: checked when made, the same after a trip through JSON, named by its key."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_run import toy_config

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.training.recipe import (
    KEY_VERSION,
    NEUTRAL,
    TrainConfig,
    completed,
    differences,
    from_json,
    run_key,
    to_json,
)

DEFAULTS: dict[str, dict[str, Any]] = {
    "TrainConfig": {
        "batch_size": 16,
        "micro_batch": None,
        "lr": 0.003,
        "schedule": "cosine",
        "warmup": 0.1,
        "decay": 0.2,
        "min_lr": 0.1,
        "optimizer": "adam",
        "betas": (0.9, 0.999),
        "adam_eps": 1e-08,
        "weight_decay": 0.0,
        "clip": None,
        "seed": 0,
        "precision": "fp32",
        "compile": False,
        "checkpointing": False,
        "eval_every": 0,
        "eval_tokens": None,
        "probe_every": 0,
        "log_every": 10,
        "checkpoint_every": 500,
        "keep_checkpoints": 2,
        "steps": 1000,
    },
    "ModelConfig": {
        "n_layer": 24,
        "n_head": 2,
        "n_kv_head": None,
        "d_model": 64,
        "d_ff": 176,
        "vocab_size": 257,
        "seq_len": 128,
        "scheme": "prenorm",
        "norm": "rmsnorm",
        "eps": 1e-06,
        "position": "rotary",
        "rope_base": 10000.0,
        "mlp": "swiglu",
        "bias": False,
        "tie": False,
        "init_std": 0.02,
        "embed_std": 0.02,
    },
    "DataConfig": {
        "source": "embedded",
        "tokenizer": "bytes",
        "seq_len": 128,
        "layout": "packed",
        "val_fraction": 0.05,
        "text_key": "text",
        "max_docs": None,
        "max_tokens": None,
        "max_val_tokens": None,
    },
}

settings = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 10**7),
        "lr": st.floats(1e-8, 10),
        "betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
        "clip": st.none() | st.floats(0, 10),
        "micro_batch": st.none() | st.sampled_from([1, 2, 4, 8, 16]),
        "eval_tokens": st.none() | st.integers(1, 10**9),
        "schedule": st.sampled_from(["cosine", "wsd", "constant"]),
        "compile": st.booleans(),
        "seed": st.integers(0, 2**63 - 1),
        "model": st.builds(ModelConfig, n_kv_head=st.sampled_from([None, 1, 2]), embed_std=st.floats(0.001, 3)),
        "data": st.builds(DataConfig, source=st.text(), max_docs=st.none() | st.integers(1, 99)),
    },
)


@given(settings)
def test_json_there_and_back(changes: dict[str, Any]) -> None:
    config = TrainConfig(**changes)
    back = from_json(TrainConfig, json.loads(json.dumps(to_json(config))))
    assert back == config
    assert run_key(back) == run_key(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lrr": 1}, "unknown field in config: 'lrr': did you mean lr"),
        ({"model": {"n_layers": 2}}, "field in config.model: 'n_layers': did you mean n_layer"),
        ({"steps": "12"}, "config.steps should be int: got '12'"),
        ({"steps": True}, "config.steps should be int: got True"),
        ({"compile": 1}, "config.compile should be bool"),
        ({"clip": "off"}, "config.clip should be float | None"),
        ({"model": 3}, "config.model is not a JSON object"),
        ({"betas": 0.9}, "config.betas should be"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_json_that_is_no_config_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_json(TrainConfig, to_json(toy_config()) | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 6, "micro_batch": 4}, "micro_batch 4 does not divide batch_size 6"),
        ({"micro_batch": 0}, "micro_batch must be at least 1"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"lr": float("inf")}, "lr must be positive"),
        ({"warmup": 1.5}, "warmup must lie between 0 and 1"),
        ({"min_lr": float("nan")}, "min_lr must lie between"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"clip": -1.0}, "clip must be"),
        ({"eval_tokens": 0}, "eval_tokens must be at least 1"),
        ({"precision": "fp16"}, "unknown precision 'fp16': did you mean"),
        ({"optimizer": "adamw2"}, "unknown optimizer 'adamw2': did you mean adamw"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean cosine"),
        ({"precision": "paper", "clip": 1.0}, "precision paper means Adam"),
        ({"data": DataConfig(seq_len=9)}, "windows of 9 tokens, the model a seq_len of 8"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),
        ({"seed": -1}, "seed must lie between"),
        ({"seed": 2**63}, "seed must lie between"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number"),
        ({"clip": float("inf")}, "clip must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        toy_config(**change)
    assert message in str(caught.value)


def other(config: TrainConfig, name: str) -> TrainConfig:
    """`config` with another value of one field."""
    value = getattr(config, name)
    changes: dict[str, Any] = {
        "micro_batch": 2,
        "schedule": "wsd",
        "optimizer": "adamw",
        "precision": "bf16",
        "clip": 1.0,
        "betas": (0.9, 0.95),
        "eval_tokens": 8,
        "model": replace(config.model, scheme="prenorm"),
        "data": replace(config.data, layout="padded"),
    }
    if name in changes:
        return replace(config, **{name: changes[name]})
    if isinstance(value, bool):
        return replace(config, **{name: not value})
    return replace(config, **{name: value + 1 if isinstance(value, int) else value + 0.01})


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_the_key_depends_on_every_field_that_can_change_a_number(name: str) -> None:
    config = toy_config()
    changed = other(config, name)
    assert (run_key(changed) == run_key(config)) == (name in NEUTRAL)
    assert [f.split(".")[0] for f, _, _ in differences(to_json(config), to_json(changed))] == (
        [] if name in NEUTRAL else [name]
    )


def test_the_key_rests_on_these_defaults() -> None:
    """A key leaves out fields at their defaults. When one of these changes, raise KEY_VERSION; a new field just goes
    in here."""
    defaults = {
        kind.__name__: {f.name: f.default for f in fields(kind) if f.default is not MISSING}
        for kind in (TrainConfig, ModelConfig, DataConfig)
    }
    assert KEY_VERSION == 1
    assert defaults == DEFAULTS


def test_a_field_at_its_default_is_not_in_the_key() -> None:
    @dataclass(frozen=True)
    class Later(TrainConfig):
        new: float = 0.5

    config = toy_config()
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    assert run_key(Later(**values)) == run_key(config)
    assert run_key(Later(**values, new=0.25)) != run_key(config)
    later = Later(**values)
    assert not list(differences(completed(to_json(config), later), to_json(later)))
    assert list(differences(completed(to_json(config), later), to_json(replace(later, new=0.25))))


def test_a_nested_field_that_is_younger_than_the_file_counts_as_its_default() -> None:
    config = toy_config()
    saved = to_json(config)
    del saved["model"]["rope_base"], saved["betas"]
    assert not list(differences(completed(saved, config), to_json(config)))
    other = replace(config, model=replace(config.model, rope_base=7.0))
    assert [name for name, _, _ in differences(completed(saved, other), to_json(other))] == ["model.rope_base"]
