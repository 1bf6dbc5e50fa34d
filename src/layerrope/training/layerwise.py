"""What is done to a model layer by layer from outside: torch.compile and activation checkpointing.

Neither wraps a module: parameter names, and so checkpoints, are the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from layerrope.errors import one_line
from layerrope.training.kinds import Model


def checkpoint_layers(model: Model) -> None:
    """Recompute each layer's activations in the backward pass; gradients are the same, bit for bit."""
    for layer in model.layers:
        layer.forward = MethodType(_recomputed, layer)


def _recomputed(layer: nn.Module, *args: Any) -> Any:
    """The layer's own forward, recomputed in the backward pass. One function for all layers: one compiled graph."""
    return checkpoint(type(layer).forward, layer, *args, use_reentrant=False)


def compile_layers(model: Model, trial: Callable[[], object], backend: str = "inductor") -> str | None:
    """Compile every layer with torch.compile; one graph serves all of them, since they differ only in tensors.

    torch compiles at the first call, so `trial` (a forward and a backward pass) is run here, where a failure can be
    caught: then the layers are left uncompiled. Compiled code of earlier models is dropped, because torch stops
    compiling a function after eight variants.

    Returns:
        None, or in one line why the model runs uncompiled.
    """
    torch._dynamo.reset()
    for layer in model.layers:
        layer.compile(backend=backend)
    try:
        trial()
        return None
    except Exception as error:  # any of several layers of the compiler: each has exceptions of its own
        for layer in model.layers:
            layer._compiled_call_impl = None
        torch._dynamo.reset()
        return one_line(error)


def compiler_problem(device: torch.device, backend: str = "inductor") -> str | None:
    """In one line why torch.compile does not work here, tried on one multiplication; None where it does."""
    try:
        torch.compile(torch.neg, backend=backend)(torch.ones(8, device=device))
        return None
    except Exception as error:  # as in `compile_layers`
        return one_line(error)


def compiled(layer: nn.Module) -> bool:
    return layer._compiled_call_impl is not None
