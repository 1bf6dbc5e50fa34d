"""Depth in Transformers: LayerRoPE and every other depth scheme behind one small interface.

The public names load on first use, so `import layerrope` costs little more than `import torch`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_WHERE: dict[str, str] = {
    "InputError": "errors",
    "Inspection": "inspector",
    "LM": "model",
    "LayerRoPE": "gains",
    "LoopedConfig": "looping.looped",
    "LoopedLM": "looping.looped",
    "ModelConfig": "config",
    "ViT": "vision.vit",
    "ViTConfig": "vision.vit",
    "account": "accounting",
    "apply": "patching.patching",
    "compute_saving": "scaling.savings",
    "fit_scaling": "scaling.law",
    "fold": "exporting.folding",
    "gain_table": "gains",
    "init_table": "multipliers",
    "inspect": "inspector",
    "remove": "patching.patching",
    "scheme": "scheme_table",
    "schemes": "scheme_table",
    "tiers": "config",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"layerrope.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'layerrope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
