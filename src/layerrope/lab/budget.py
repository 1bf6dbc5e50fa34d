"""What a scheme adds to a model's parameters, as a formula in depth and width that is read off the models themselves.

The page cannot build a model, so it needs a formula; this one is not written down a second time. It is solved from
meta builds at four shapes and has to hold at others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from layerrope.accounting import count_parameters, gate_flops
from layerrope.config import ModelConfig, tiers
from layerrope.errors import InputError
from layerrope.scheme_table import schemes

SHOWN = ("prenorm", "lns", "layerrope", "perinorm", "layerrope-peri", "layerscale", "attnres", "hc", "mhc")
"""Schemes of the page's budget, in order."""
SHAPE = ("n_layer", "d_model", "d_ff", "vocab_size", "seq_len")


@dataclass(frozen=True)
class Cost:
    """What a scheme costs beyond Pre-Norm at L layers of width d."""

    name: str
    rule: str
    """its update rule"""
    parameters: tuple[int, int, int, int]
    """p of p[0] + p[1] L + p[2] d + p[3] L d parameters"""
    gate: int
    """FLOPs a training token, a layer and a channel, of write gates"""


@cache
def cost(name: str) -> Cost:
    """The cost of scheme `name`. Raises InputError where it is not of the form above."""
    one, deep, wide, both = (_own(name, L, d) for d in (8, 16) for L in (2, 4))
    per_both = (both - wide - deep + one) // 16
    per_layer = (deep - one) // 2 - 8 * per_both
    per_width = (wide - one) // 8 - 2 * per_both
    found = (one - 2 * per_layer - 8 * per_width - 16 * per_both, per_layer, per_width, per_both)
    for L, d in ((2, 8), (3, 8), (5, 24)):
        if _own(name, L, d) != found[0] + per_layer * L + per_width * d + per_both * L * d:
            raise InputError(f"the parameters of scheme {name} are no such formula: leave it out of the page")
    gate = gate_flops(_small(name, 3, 8))
    return Cost(name, schemes[name].rule, found, gate // 24)


def _own(name: str, n_layer: int, d_model: int) -> int:
    plain, own = (count_parameters(_small(n, n_layer, d_model))[0] for n in ("prenorm", name))
    return own - plain


def _small(name: str, n_layer: int, d_model: int) -> ModelConfig:
    return ModelConfig(n_layer=n_layer, d_model=d_model, n_head=1, d_ff=8, vocab_size=5, seq_len=4, scheme=name)


def document() -> dict[str, Any]:
    """Schemes and tiers, as the page reads them."""
    shapes = {name: {field: getattr(config, field) for field in SHAPE} for name, config in tiers.items()}
    return {"schemes": [asdict(cost(name)) for name in SHOWN], "tiers": shapes}
