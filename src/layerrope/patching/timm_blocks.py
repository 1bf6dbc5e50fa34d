"""What sets timm's Vision Transformers apart from other models with norms before their sublayers.

timm names its parts alike in blocks that compute different things (norms after f, both sublayers at once), so a block
is run once against the update rule that gains need, instead of trusting its names.

Dimensions: N patches and class tokens, D width.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from layerrope.errors import InputError, reason

PARTS = ("norm1", "attn", "norm2", "mlp")
ENTRIES = ("patch_embed", "embeds")
"""What a timm model calls first, in `forward` and in `forward_features` alike."""


def is_timm(model: nn.Module) -> bool:
    """Is this a model of timm, or of a class made from one?"""
    return any(cls.__module__.startswith("timm.") for cls in type(model).__mro__)


def entry_of(model: nn.Module, owner: str) -> str:
    """The path of the module whose call begins every forward pass of `owner`, also those that skip its `forward`."""
    parts = dict(model.get_submodule(owner).named_children())
    name = next((name for name in ENTRIES if name in parts), "")
    return f"{owner}.{name}".strip(".")


@torch.no_grad()
def check_block(model: nn.Module, block: nn.Module, path: str) -> None:
    """h = x + f(norm1(x));  y = h + g(norm2(h)), where f and g end in the block's LayerScale.

    Raises:
        InputError: the block at `path` lacks one of these parts or computes something else.
    """
    children = dict(block.named_children())
    missing = [name for name in PARTS if name not in children]
    if missing:
        raise InputError(f"{path} ({_name(block)}) has no {missing[0]}: it cannot be patched")
    try:
        block = copy.deepcopy(block).to("cpu", torch.float64).eval()
        x = torch.randn(1, _tokens(model), _width(block), generator=torch.Generator().manual_seed(0)).double()
        made, ruled = block(x), _pre_norm(block, x)
    except Exception as error:  # timm's blocks take inputs of many kinds
        raise InputError(f"{path} ({_name(block)}) cannot be run by itself ({reason(error)})") from error
    if not torch.allclose(made - x, ruled - x, rtol=1e-6, atol=1e-9 * float((made - x).abs().max())):
        raise InputError(f"{path} ({_name(block)}) is no Pre-Norm block, x + f(norm(x)): it cannot be patched")


def _pre_norm(block: Any, x: Tensor) -> Tensor:
    """The update rule, from the block's own parts."""
    for norm, f, scale, gamma in (("norm1", "attn", "ls1", "gamma_1"), ("norm2", "mlp", "ls2", "gamma_2")):
        y = getattr(block, f)(getattr(block, norm)(x))
        y = getattr(block, scale)(y) if hasattr(block, scale) else y
        own = getattr(block, gamma, None)  # EVA and BEiT keep their LayerScale in the block itself
        x = x + (y if own is None else own * y)
    return x


def _tokens(model: Any) -> int:
    """N of an image of the model's own size; position biases want exactly that many."""
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", None) or 8
    return patches + getattr(model, "num_prefix_tokens", 0)


def _width(block: nn.Module) -> int:
    weight = getattr(block.get_submodule("norm1"), "weight", None)
    if not isinstance(weight, Tensor):
        raise AttributeError("its norm1 has no weight")
    return len(weight)


def _name(module: nn.Module) -> str:
    return type(module).__name__


class SpareGains:
    """Stands in for a model's `no_weight_decay`, with the gains' names added, until it is removed."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self.model, self.names = model, names
        model.__dict__["no_weight_decay"] = self

    def __call__(self) -> set[str]:
        own: Any = getattr(type(self.model), "no_weight_decay", None)
        return self.names | (set() if own is None else set(own(self.model)))

    def remove(self) -> None:
        del self.model.__dict__["no_weight_decay"]
