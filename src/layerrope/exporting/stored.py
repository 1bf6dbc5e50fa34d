"""LayerRoPE under the names that its parameters have in exported and patched models (`gains.STORED_NAMES`).

Loaders of model hubs rename tensors called gamma and beta, and read parameters by name, so the names of the module
itself must be others there.
"""

from __future__ import annotations

from torch import nn

from layerrope.gains import STORED_NAMES, LayerRoPE


class StoredLayerRoPE(LayerRoPE):
    """`LayerRoPE` whose parameters are registered under their stored names; the own names still read them."""

    param_roles = {**LayerRoPE.param_roles, **dict.fromkeys(STORED_NAMES.values(), "gain")}


def _reader(name: str) -> property:
    return property(lambda gains: gains._parameters[name])


for _own, _name in STORED_NAMES.items():
    setattr(StoredLayerRoPE, _own, _reader(_name))


def store_names(model: nn.Module) -> None:
    """Rename the parameters of every LayerRoPE table in `model`, in place."""
    for module in model.modules():
        if type(module) is LayerRoPE:
            renamed = {STORED_NAMES.get(name, name): p for name, p in module._parameters.items()}
            for own, name in STORED_NAMES.items():
                renamed.setdefault(name, None)
                module.__dict__.pop(own, None)  # a scalar that is switched off is a plain None there
            module._parameters.clear()
            module._parameters.update(renamed)
            module.__class__ = StoredLayerRoPE
