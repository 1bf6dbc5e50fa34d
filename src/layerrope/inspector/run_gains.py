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
from layerrope.inspector.table import DEEPEST, MOST_NUMBERS, WIDEST, Row, Site
from layerrope.norm_sites import architecture_of
from layerrope.tensors.blobs import printable

if TYPE_CHECKING:
    from torch import nn

    from layerrope.inspector.table import GainTable, Source


def has_gains(source: Source) -> bool:
    """Is this a model of this package?"""
    return architecture_of(source.config, source.format) == "layerrope"


def with_gains(table: GainTable, source: Source) -> GainTable:
    """`table` with the rows of the model's gain table put in, and its learned scalars.

    Raises InputError where the configuration does not describe the tensors.
    """
    import torch

    from layerrope.scheme_table import scheme

    shape = _checked(_shape(source), source)
    chosen = scheme(shape["scheme"])
    n_layer, d_model = shape["n_layer"], shape["d_model"]
    with torch.device("meta"):  # its shapes cost nothing; a configuration may say anything
        described = chosen.build_gains(n_layer, d_model)
    table = replace(table, depth=n_layer)
    if described is None:
        return table
    stored = _stored(described, source)
    module = chosen.build_gains(n_layer, d_model)
    assert module is not None
    _load(module, stored, source)
    rows = module().detach().double().numpy()  # (L, kinds, read or write, d or 1)
    sites = dict(table.sites)
    learned = any(True for _ in module.parameters())
    for k, kind in enumerate(("attn", "mlp")):
        covered = chosen.covers(kind)
        for r, end in enumerate(("read", "write")):
            if getattr(covered, end):
                role = f"{kind}_{end}"
                weights = {row.layer for row in sites[role].rows} if role in sites else set[int]()
                site = _effective(role, rows[:, k, r], sites.get(role), d_model, shape["scheme"], learned)
                sites[role] = site if end == "write" or covered.replaces_read else _with_gaps(site, weights)
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


def _checked(shape: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """`shape` where it can be that of the tensors. Raises InputError before anything is built from it."""
    spec = shape["scheme"]
    if not isinstance(spec, str) or len(spec) > 300:
        raise InputError(f"{source.label}: config.json names no scheme: {printable(spec, 60)}")
    for name, most in (("n_layer", DEEPEST), ("d_model", WIDEST)):
        if type(shape[name]) is not int or not 1 <= shape[name] <= most:
            said = printable(shape[name], 60)
            raise InputError(f"{source.label}: {name} in config.json is {said}, no whole number from 1 to {most}")
    found = [int(m[1]) for name in source.names if (m := re.search(r"(?:^|\.)layers\.(\d{1,9})\.", name))]
    depth = max(found, default=-1) + 1
    if depth != shape["n_layer"]:
        raise InputError(
            f"{source.label}: config.json says {shape['n_layer']} layers, the tensors are of {depth}: they are no "
            f"model together"
        )
    if depth * shape["d_model"] > MOST_NUMBERS // 4:
        raise InputError(f"{source.label}: a gain table of {depth} layers and {shape['d_model']} channels is too large")
    return shape


def _stored(described: nn.Module, source: Source) -> dict[str, str]:
    """Key of the module's state -> the tensor that holds it, its own name or that of an exported folder's.

    Raises InputError where one is missing or of another shape.
    """
    from layerrope.gains import own_name

    state = described.state_dict()
    prefixes = {
        name: own_name(name.partition("gains.")[2]) for name in source.names if re.search(r"(^|\.)gains\.", name)
    }
    names = {key: name for name, key in prefixes.items() if key in state}
    missing = sorted(set(state) - set(names))
    if missing:
        raise InputError(f"{source.label} lacks the gain tensors {', '.join(f'gains.{m}' for m in missing)}")
    for key, name in names.items():
        has, needs = tuple(source.names[name].shape), tuple(state[key].shape)
        if has != needs:
            raise InputError(f"{source.label}: {printable(name)} has shape {has}, its scheme needs {needs}")
    return names


def _load(module: nn.Module, names: Mapping[str, str], source: Source) -> None:
    """Fill `module` with the tensors that `names` (key -> tensor) says."""
    import torch

    values = source.read(names.values())
    module.load_state_dict({key: torch.from_numpy(np.array(values[name])) for key, name in names.items()})


def _effective(role: str, rows: np.ndarray, weights: Site | None, d: int, scheme: str, learned: bool) -> Site:
    """What acts at each layer: the table's row times the norm's own weight, where it has one.

    A fault is one of what is stored. A fixed table, which nothing trained, has none: LNS multiplies by 1/sqrt(l+1),
    which is all ones at layer 0 by design. There the norm's own weight tells whether a layer was trained.
    """
    own = {row.layer: row for row in weights.rows} if weights else {}
    made = []
    for layer, row in enumerate(rows):
        weight = own.get(layer)
        if weight is not None and weight.values.size != d:
            raise InputError(f"{weight.name} has {weight.values.size} numbers, config.json says d_model {d}")
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.broadcast_to(row, (d,)) * (1.0 if weight is None else weight.values)
        wrong = fault(values, gain=learned) or (weight.fault if weight and not learned else None)
        made.append(Row(layer, f"gains[{layer}]", values, wrong, "fp32"))
    words = f"gain table of scheme {printable(scheme)}"
    return Site(role, tuple(made), "computed", f"{words}, times the norm's own weight" if own else words)


def _with_gaps(site: Site, weights: set[int]) -> Site:
    """`site` of norms that have weights of their own, with the layers that lack theirs."""
    return replace(site, missing=tuple(row.layer for row in site.rows if row.layer not in weights))


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
