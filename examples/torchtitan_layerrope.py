"""Llama 3 under LayerRoPE in torchtitan 0.3: functions for its `--config`, one a size.

    pip install 'layerrope[titan]' 'torch>=2.14'          # torchtitan needs CUDA
    PYTHONPATH=examples torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_layerrope --config debug
    PYTHONPATH=examples torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_layerrope --config llama3_8b

Every flag of torchtitan follows as usual, but for tensor, context and pipeline parallelism. With
`--checkpoint.last_save_in_hf --checkpoint.last_save_model_only` the last checkpoint is a stock Llama, its gains folded.
"""

from __future__ import annotations

from typing import Any

from torchtitan.models.llama3 import config_registry

from layerrope.interop.torchtitan import model_spec, param_groups

SCHEME = "layerrope"


def _under(config: Any) -> Any:
    """A trainer config of torchtitan's Llama 3 with the model and the parameter groups of the scheme."""
    config.model_spec = model_spec(config.model_spec.flavor, SCHEME)
    config.optimizer.param_groups = param_groups(config.optimizer.param_groups)
    return config


def debug() -> Any:
    """Six layers of width 256 for ten steps."""
    return _under(config_registry.llama3_debugmodel())


def llama3_8b() -> Any:
    """32 layers of width 4096."""
    return _under(config_registry.llama3_8b())


def llama3_70b() -> Any:
    """80 layers of width 8192, data parallel: torchtitan's own config has tensor parallelism, which gains exclude."""
    config = _under(config_registry.llama3_70b())
    config.parallelism.tensor_parallel_degree = 1
    return config
