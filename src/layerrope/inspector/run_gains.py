"""The gain table of a model of this package, as the gains that act at each site and depth.

A read row of LayerRoPE stands in for the norm's weight, one of LNS multiplies it; a write row gates the output.
Here alone the inspector needs torch: the table is computed by the very module that trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.errors import InputError
from layerrope.inspector.health import fault
from layerrope.norm_sites import architecture_of

if TYPE_CHECKING:
    from torch import nn

    from layerrope.inspector.table import GainTable, Site, Source


def has_gains(source: Source) -> bool:
    """Is this a model of this package?"""
    return architecture_of(source.config, source.format) == "layerrope"


def with_gains(table: GainTable, source: Source) -> GainTable:
    """`table` with the rows of the model's gain table put in, and its learned scalars.

    Raises InputError where the configuration does not describe the tensors.
    """
    from layerrope.scheme_table import scheme

    shape = _shape(source)
    chosen = scheme(str(shape["scheme"]))
    module = chosen.build_gains(int(shape["n_layer"]), int(shape["d_model"]))
    if module is None:
        return table
    _load(module, source)
    rows = module().detach().double().numpy()  # (L, kinds, read or write, d or 1)
    sites = dict(table.sites)
    for k, kind in enumerate(("attn", "mlp")):
        covered = chosen.covers(kind)
        for r, end in enumerate(("read", "write")):
            if getattr(covered, end):
                role = f"{kind}_{end}"
                words = f"gain table of scheme {shape['scheme']}"
                sites[role] = _effective(role, rows[:, k, r], sites.get(role), int(shape["d_model"]), words)
    order = [r for r in _ORDER if r in sites] + [r for r in sites if r not in _ORDER]
    table = replace(table, sites={role: sites[role] for role in order})
    return replace(table, scalars=learned_scalars(module), base=_base(module))


_ORDER = ("attn_read", "attn_write", "attn_post", "mlp_read", "mlp_write", "mlp_post")


def _shape(source: Source) -> Mapping[str, Any]:
    """The model's own configuration: config.json itself, or inside a run's under config.model."""
    places: list[Any] = [source.config]
    for key in ("config", "model"):
        places += [place[key] for place in places if isinstance(place, Mapping) and key in place]
    needed = {"scheme", "n_layer", "d_model"}
    for place in places:
        if isinstance(place, Mapping) and needed <= place.keys():
            return place
    raise InputError(f"{source.label}: its config.json names no scheme, n_layer and d_model, so no gains can be built")


def _load(module: nn.Module, source: Source) -> None:
    """Fill `module` with the source's `gains.*` tensors, under their own names or those of an exported folder."""
    import torch

    from layerrope.gains import own_name

    state = module.state_dict()
    prefixes = {
        name: own_name(name.partition("gains.")[2]) for name in source.names if re.search(r"(^|\.)gains\.", name)
    }
    names = {key: name for name, key in prefixes.items() if key in state}
    missing = sorted(set(state) - set(names))
    if missing:
        raise InputError(f"{source.label} lacks the gain tensors {', '.join(f'gains.{m}' for m in missing)}")
    values = source.read(names.values())
    for key, name in names.items():
        has, needs = tuple(values[name].shape), tuple(state[key].shape)
        if has != needs:
            raise InputError(f"{source.label}: {name} has shape {has}, its scheme needs {needs}")
    module.load_state_dict({key: torch.from_numpy(np.array(values[name])) for key, name in names.items()})


def _effective(role: str, rows: np.ndarray, weights: Site | None, d: int, words: str) -> Site:
    from layerrope.inspector.table import Row, Site

    own = {row.layer: row.values for row in weights.rows} if weights else {}
    made = []
    for layer, row in enumerate(rows):
        values = np.broadcast_to(row, (d,)) * own.get(layer, 1.0)
        made.append(Row(layer, f"gains[{layer}]", values, fault(values), "fp32"))
    reason = f"{words}, times the norm's own weight" if own else words
    return Site(role, tuple(made), "computed", reason)


def learned_scalars(module: nn.Module) -> dict[str, dict[str, float]]:
    """site -> alpha, beta, alpha_rot, beta_rot as trained, where the table has them."""
    scalars: dict[str, dict[str, float]] = {}
    for table in module.modules():
        sites = getattr(table, "sites", ())
        for name in ("alpha", "beta", "alpha_rot", "beta_rot"):
            values = getattr(table, name, None)
            for site, value in zip(sites, values.tolist() if values is not None else (), strict=False):
                scalars.setdefault(site, {})[name] = float(value)
    return scalars


def _base(module: nn.Module) -> float | None:
    bases = [base for table in module.modules() if isinstance(base := getattr(table, "base", None), float | int)]
    return float(bases[0]) if bases else None
