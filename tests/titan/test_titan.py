"""torchtitan's Llama 3 under our gain tables, as far as a CPU goes: build, start, forward, backward, sharding, export.

Needs torchtitan and transformers; docs/engines.md has the command. torchtitan's trainer itself needs CUDA.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan", reason="torchtitan is not installed: pip install 'layerrope[titan]'")

from torchtitan.models.common.attention import ScaledDotProductAttention

from layerrope.errors import InputError
from layerrope.exporting.stock_forward import stock_forward
from layerrope.interop.torchtitan import DepthLlama, gain_table_of, model_spec, param_groups
from layerrope.scheme_table import scheme

SPECS = [
    "layerrope",
    "lns",
    "lns+layerrope",
    "layerrope:sites=read,rotation=off",
    "layerrope:sites=attn_write/mlp_read",
    "layerrope:schedule=free,gamma=layer",
    "depth-mup+layerrope",
]
OTHERS = ["prenorm", "layerscale", "perinorm", "layerrope-peri", "hc", "deepnorm", "keel"]


def spec_of(name: str) -> Any:
    """The debug flavor with attention for CPUs and plain rotary positions."""
    spec = model_spec("debugmodel", name)
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        layer.attention.rope = replace(layer.attention.rope, scaling="none", max_seq_len=64)
    return spec


def started(spec: Any, moved: bool = True) -> DepthLlama:
    """Built on meta and started, as torchtitan does; norms and gains moved, so that a lost factor shows."""
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if moved and (name.startswith("gains.") or p.ndim == 1):
                p.add_(0.05 * torch.randn_like(p))
    return model


def ids() -> Tensor:
    return torch.randint(2048, (2, 24), generator=torch.Generator().manual_seed(1))


def logits(model: DepthLlama) -> Tensor:
    return model(ids(), positions=torch.arange(24).expand(2, -1))


def stock_config(model: DepthLlama) -> dict[str, Any]:
    attention = model.config.layers[0].attention
    return {
        "model_type": "llama",
        "vocab_size": 2048,
        "hidden_size": model.config.dim,
        "intermediate_size": model.state_dict()["layers.0.feed_forward.w1.weight"].shape[0],
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads or attention.n_heads,
        "head_dim": model.config.dim // attention.n_heads,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": False,
    }


@pytest.mark.parametrize("name", SPECS)
def test_the_exported_weights_are_a_stock_llama(name: str) -> None:
    spec = spec_of(name)
    model = started(spec)
    folded = spec.state_dict_adapter(spec.model, None).to_hf(model.state_dict())
    made, _ = stock_forward(stock_config(model), folded, ids())
    torch.testing.assert_close(made, logits(model), rtol=1e-4, atol=2e-5)


def test_transformers_loads_them_with_no_key_missing_and_none_left_over() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    spec = spec_of("layerrope")
    model = started(spec)
    folded = spec.state_dict_adapter(spec.model, None).to_hf(model.state_dict())
    stock = transformers.LlamaForCausalLM(transformers.LlamaConfig(**stock_config(model)))
    found = stock.load_state_dict(folded, strict=True)
    assert not found.missing_keys
    assert not found.unexpected_keys
    torch.testing.assert_close(stock(ids()).logits, logits(model), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", SPECS)
def test_gains_start_and_learn(name: str) -> None:
    model = started(spec_of(name), moved=False)
    wanted = scheme(name).build_gains(6, 256)
    assert wanted is not None
    assert torch.equal(model.gains(torch.device("cpu")), wanted())
    assert torch.equal(gain_table_of(model.config, model.state_dict()), wanted())
    logits(model).logsumexp(-1).mean().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.gains.parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_other_schemes_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"scheme '{name}' is not for torchtitan here"):
        model_spec("debugmodel", name)


def test_a_stock_llama_has_no_gains_to_start_from() -> None:
    spec = spec_of("layerrope")
    with pytest.raises(InputError, match="no gains to start from"):
        spec.state_dict_adapter(spec.model, None).from_hf({})


def test_gains_and_norms_are_not_decayed() -> None:
    from torchtitan.components.optimizer import default_adamw

    groups = param_groups(default_adamw(lr=1e-3).param_groups)
    names = [name for name, _ in started(spec_of("layerrope:sites=mlp_write")).named_parameters()]
    first, rest = groups
    assert (first.optimizer_kwargs["weight_decay"], rest.optimizer_kwargs["weight_decay"]) == (0.0, 0.1)
    undecayed = {name for name in names if re.search(first.pattern, name)}
    assert undecayed == {name for name in names if name.startswith("gains.") or "norm" in name}
    assert len(undecayed) == 5 + 2 * 6 + 1


@pytest.mark.parametrize("kind", ["tensor", "context", "pipeline"])
def test_only_data_parallelism_is_taken(kind: str) -> None:
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.model_spec = spec_of("layerrope")
    config.training.seq_len = 32
    setattr(config.parallelism, f"{kind}_parallel_degree", 2)
    with pytest.raises(InputError, match=f"{kind}_parallel_degree is 2"):
        config.model_spec.model.update_from_config(config=config)


def test_sharded_weights_fold_to_the_same(one_rank: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    spec = spec_of("layerrope")
    model = started(spec)
    adapter = spec.state_dict_adapter(spec.model, None)
    whole = {name: t.clone() for name, t in adapter.to_hf(model.state_dict()).items()}
    fully_shard(model.gains, mesh=one_rank)
    fully_shard(model, mesh=one_rank)
    for name, t in adapter.to_hf(model.state_dict()).items():
        torch.testing.assert_close(t.full_tensor() if isinstance(t, DTensor) else t, whole[name], rtol=0, atol=0)


def test_gradients_on_two_ranks_are_those_of_one_process() -> None:
    """FSDP with fp32 gains over gloo. torchtitan's default backend needs torch >= 2.14, also for its own Llama."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "titan_ranks.py"
    done = subprocess.run(
        [sys.executable, *words, str(script), "partial_dtensor"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("name", "layers"), [("debug", 6), ("llama3_8b", 32), ("llama3_70b", 80)])
def test_the_examples_configs_hold_our_model(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    config = getattr(importlib.import_module("torchtitan_layerrope"), name)()
    assert config.model_spec.name == "layerrope_llama3"
    assert config.model_spec.model.gains.n_layers == len(config.model_spec.model.layers) == layers
    assert [group.optimizer_kwargs["weight_decay"] for group in config.optimizer.param_groups] == [0.0, 0.1]
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        config.model_spec.model.build().verify_module_protocol()
