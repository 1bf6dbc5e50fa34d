"""The gains of one checkpoint as tables, layer by layer, with what is known and what is wrong about each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.errors import InputError
from layerrope.inspector.health import bf16_exact, exact_in, fault, folded_sites
from layerrope.inspector.naming import at_most, with_safe_roles
from layerrope.norm_sites import (
    ABSENT,
    MODEL_TYPES,
    ROLES,
    STREAM_ROLES,
    Found,
    NormTensor,
    find_norms,
    norm_like,
    role_words,
    split_name,
)
from layerrope.tensors.blobs import printable
from layerrope.tensors.floats import DECODERS

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]

#: The role of a norm that is no site's.
OTHER = "other"
#: A vector longer than this is no norm gain.
WIDEST = 1 << 20
#: More norm tensors than this, or more numbers in all of them, are not read: the largest models have some hundreds
#: and some millions.
MOST_NORMS = 20_000
MOST_NUMBERS = 1 << 24
#: A configured depth beyond this is not believed, so nothing is called missing by it.
DEEPEST = 4096


class Info(Protocol):
    """What a source says about a tensor (`layerrope.tensors.TensorInfo`)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


class Source(Protocol):
    """What is needed of a source of tensors (`layerrope.tensors.TensorSource`)."""

    label: str
    format: str
    config: dict[str, Any]
    notes: list[str]

    @property
    def names(self) -> Mapping[str, Info]: ...

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]: ...


@dataclass(frozen=True)
class Row:
    """One norm vector: the gain (or bias) that acts at one depth."""

    layer: int
    name: str
    values: Vector = field(repr=False)
    fault: str | None
    exact_in: str
    """narrowest float that holds the stored values exactly: bf16, fp16, fp32 or fp64"""
    stored: str = "computed"
    """dtype in the file (F32, BF16, ...), or "computed" for a row of a gain table"""


@dataclass(frozen=True)
class Site:
    """Every layer's vector in one role."""

    role: str
    rows: tuple[Row, ...]
    """in order of depth"""
    convention: str
    """w, 1+w, raw, or computed (from a gain table)"""
    reason: str
    warnings: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    """layers that the model has and the file lacks here"""

    def __repr__(self) -> str:
        return f"Site({self.role}: {len(self.rows)} layers, {self.convention})"

    @property
    def expected(self) -> int:
        """Layers there should be."""
        return len(self.rows) + len(self.missing)

    @property
    def words(self) -> str:
        return role_words(self.role)

    @property
    def untrained(self) -> bool:
        """Is every gain exactly one?"""
        return all(row.values.size and bool(np.all(row.values == 1)) for row in self.rows)

    @cached_property
    def usable(self) -> tuple[Row, ...]:
        """The rows that can enter a fit: finite, not all zeros, of the commonest width.

        Rows of ones among trained ones were not trained and stay out too; in a computed table they may be right.
        """
        trained = self.convention != "computed" and any(r.fault is None for r in self.rows)
        fine = (None,) if trained else (None, "all ones")
        return _of_one_width([r for r in self.rows if r.fault in fine])

    @cached_property
    def stackable(self) -> tuple[Row, ...]:
        """All rows of the commonest width, broken ones included."""
        return _of_one_width(self.rows)

    @cached_property
    def layers(self) -> NDArray[np.int64]:
        """Depths of the usable rows, 0-based, (L,)."""
        return np.array([row.layer for row in self.usable], dtype=np.int64)

    @cached_property
    def matrix(self) -> Matrix:
        """The usable rows, (L, d) in float64."""
        return np.array([row.values for row in self.usable], dtype=np.float64)


def _of_one_width(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Those of `rows` that have the commonest width above 0."""
    widths = Counter(r.values.size for r in rows if r.values.size).most_common(1)
    return tuple(r for r in rows if widths and r.values.size == widths[0][0])


@dataclass(frozen=True)
class GainTable:
    """All norm gains of one checkpoint."""

    label: str
    format: str
    architecture: str
    known: bool
    sites: dict[str, Site]
    """role -> the vectors of all layers, in the order of a block"""
    singles: dict[str, Row]
    """role -> the one vector of a norm outside the layers (its `layer` is -1)"""
    biases: dict[str, Site]
    """role -> LayerNorm biases, kept apart from the gains"""
    single_biases: dict[str, Row] = field(default_factory=dict)
    """role -> the bias of a norm outside the layers"""
    notes: tuple[str, ...] = ()
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)
    """site -> learned scalars, for a LayerRoPE run of this package"""
    base: float | None = None
    """the run's own spectrum base"""
    spent: tuple[int, int] = (0, 0)
    """bytes and requests"""
    depth: int | None = None
    """layers that the configuration names"""
    others: tuple[Row, ...] = ()
    """everything else that is called like a norm (read for a check only); `layer` is -1"""
    files: tuple[Path, ...] = ()
    """the files on this disk that all this was read from"""

    def __repr__(self) -> str:
        return f"GainTable({self.label!r}: {self.architecture}, {', '.join(map(repr, self.sites.values()))})"

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Every broken, untouched or missing tensor: role, part (gain or bias), layer, name (None: missing), fault."""
        parts = (("gain", self.sites, self.singles), ("bias", self.biases, self.single_biases))
        return [
            {"role": role, "part": part, "layer": layer, "name": name, "fault": fault}
            for part, sites, singles in parts
            for role, layer, name, fault in [*_site_faults(sites.values()), *_single_faults(singles)]
        ] + [
            {"role": OTHER, "part": "gain", "layer": None, "name": row.name, "fault": row.fault}
            for row in self.others
            if row.fault
        ]


def _site_faults(sites: Iterable[Site]) -> list[tuple[str, int | None, str | None, str]]:
    found = [(s.role, r.layer, r.name, r.fault) for s in sites for r in s.rows if r.fault]
    return [*found, *((s.role, layer, None, "missing") for s in sites for layer in s.missing)]


def _single_faults(singles: Mapping[str, Row]) -> list[tuple[str, int | None, str | None, str]]:
    return [(role, None, row.name, row.fault) for role, row in singles.items() if row.fault]


def read_table(source: Source, architecture: str | None = None, everything: bool = False) -> GainTable:
    """The gains of `source`.

    Args:
        source: named tensors (`layerrope.tensors.open_source`).
        architecture: what to read it as (a `model_type`), instead of what its configuration says.
        everything: read whatever else is called like a norm too (`GainTable.others`): layers past the configured
            depth, other towers, a second tensor for one place, norms that the architecture does not have.

    Raises:
        InputError: nothing in it is a norm, its architecture has norms without weights, a tensor is unreadable, or
            there are too many.
    """
    _check(architecture, source.format)
    shapes = {name: tuple(info.shape) for name, info in source.names.items()}
    found = find_norms(source.names, source.config, source.format, architecture, shapes)
    notes = [*source.notes, *map(printable, at_most(found.notes))]
    norms = _in_range(found.tensors, shapes, source.config, notes)
    norms = with_safe_roles(_once_each(norms, notes))
    others = _others({norm.name for norm in norms}, found, source.names, notes) if everything else []
    from layerrope.inspector.run_gains import has_gains, with_gains

    if not norms and not others and not has_gains(source):
        unread = notes[-1] if found.tensors else "no tensor is called like a norm"
        why = printable(found.notes[0]) if found.notes else unread
        raise InputError(f"{source.label} has no norm gains to inspect: {why}")
    names = [*(norm.name for norm in norms), *others]
    _check_size(source.label, names, shapes)
    values = source.read(names)
    rows = [(norm, _row(norm, values[norm.name], source.names[norm.name].dtype)) for norm in norms]
    gains = _sites([(n, r) for n, r in rows if n.part == "gain" and n.layer is not None])
    if not all(info.dtype in ("F32", "F64") for info in source.names.values()):
        gains = _with_folds(gains)
    depth = _configured_depth(source.config)
    table = GainTable(
        label=source.label,
        format=source.format,
        architecture=printable(found.architecture),
        known=found.known,
        sites=_with_gaps(gains, depth, found.architecture) if found.known else gains,
        singles={n.role: r for n, r in reversed(rows) if n.part == "gain" and n.layer is None},
        biases=_sites([(n, r) for n, r in rows if n.part == "bias" and n.layer is not None]),
        single_biases={n.role: r for n, r in reversed(rows) if n.part == "bias" and n.layer is None},
        notes=tuple(notes),
        depth=depth,
        spent=_spent(source),
        others=tuple(_other_row(name, values[name], source.names[name].dtype) for name in others),
        files=tuple(getattr(source, "files", list)()),
    )
    return with_gains(table, source) if has_gains(source) else table


def _check(architecture: str | None, format: str) -> None:
    from layerrope.errors import one_of
    from layerrope.norm_sites import GGUF_ARCHITECTURES

    if architecture is not None:
        one_of("architecture", printable(architecture, 60), GGUF_ARCHITECTURES if format == "gguf" else MODEL_TYPES)


def _spent(source: Source) -> tuple[int, int]:
    spent = getattr(source, "spent", None)
    return (int(getattr(spent, "bytes", 0)), int(getattr(spent, "requests", 0)))


def _in_range(
    norms: Sequence[NormTensor],
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
    notes: list[str],
) -> list[NormTensor]:
    """Without what is too large for a norm, and without layers past the configured depth (prediction heads)."""
    depth = _configured_depth(config)
    wide = [n.name for n in norms if len(shapes[n.name]) > 2 or np.prod(shapes[n.name], dtype=float) > WIDEST]
    deep = [n.name for n in norms if n.layer is not None and depth is not None and n.layer >= depth]
    if wide:
        notes.append(f"{len(wide)} too large for a norm, not read: {printable(', '.join(wide[:3]), 120)}")
    if deep:
        notes.append(f"{len(deep)} norm tensors lie past the configured {depth} layers: not measured")
    left_out = {*wide, *deep}
    return [n for n in norms if n.name not in left_out]


def _once_each(norms: Sequence[NormTensor], notes: list[str]) -> list[NormTensor]:
    """One of the norms that stand for one place: `layers.1` before `layers.01`, `weight` before `gamma`."""
    first: dict[tuple[str, int | None, str], NormTensor] = {}
    for norm in sorted(norms, key=lambda norm: _oddity(norm.name)):
        first.setdefault((norm.role, norm.layer, norm.part), norm)
    kept = set(map(id, first.values()))
    again = [norm.name for norm in norms if id(norm) not in kept]
    if again:
        which = printable(", ".join(again[:3]), 120)
        notes.append(f"{len(again)} norm tensors stand for a place that another has taken: not measured ({which})")
    return [norm for norm in norms if id(norm) in kept]


def _oddity(name: str) -> tuple[bool, bool]:
    """Has a name a number that starts with 0, or an unusual last part?"""
    return re.search(r"(^|\.)0\d+\.", name) is not None, not name.endswith(("weight", "bias"))


def _others(taken: set[str], found: Found, infos: Mapping[str, Info], notes: list[str]) -> list[str]:
    """The names of everything else that is called like a norm, as far as it can be read."""
    known = {*found.aside, *(norm.name for norm in found.tensors)}
    names = [name for name in infos if name not in taken and (name in known or norm_like(name))]
    fine = [n for n in names if infos[n].dtype in DECODERS and np.prod(infos[n].shape, dtype=float) <= WIDEST]
    if len(fine) < len(names):
        left = printable(", ".join(sorted(set(names) - set(fine))[:3]), 120)
        notes.append(
            f"{len(names) - len(fine)} tensors called like norms are too large or not stored as floats: {left}"
        )
    return fine


def _other_row(name: str, stored: NDArray[Any], dtype: str) -> Row:
    """A norm that no fit uses; only of a vector with a gain's name are all zeros or all ones a fault."""
    flat = _flat(stored)
    pattern, _, part = split_name(name)
    gain = part == "gain" and norm_like(pattern) and stored.ndim <= 1
    return Row(-1, printable(name), flat, fault(flat, gain), exact_in(flat), printable(dtype))


def _check_size(label: str, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    numbers = sum(float(np.prod(shapes[name], dtype=float)) for name in names)
    if len(names) > MOST_NORMS or numbers > MOST_NUMBERS:
        raise InputError(
            f"{label} has {len(names)} norm tensors with {numbers:.3g} numbers; at most {MOST_NORMS} with "
            f"{MOST_NUMBERS} are read"
        )


def _configured_depth(config: Mapping[str, Any]) -> int | None:
    """The depth that a configuration (config.json, or GGUF's metadata) names, under whichever of its names."""
    text = config.get("text_config")
    block_count = f"{config.get('general.architecture')}.block_count"
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", block_count)
    for place in (text if isinstance(text, Mapping) else {}, config):
        for depth in map(place.get, names):
            if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0:
                return depth
    return None


def _with_gaps(sites: dict[str, Site], depth: int | None, architecture: str) -> dict[str, Site]:
    """`sites` with the layers that are missing from each site of the stream, which every layer has.

    Without a configured depth the deepest layer found stands in for it. This package's own schemes may place a norm
    in some layers only, so nothing is called missing there.
    """
    stream = {role: site for role, site in sites.items() if role in STREAM_ROLES}
    if not stream or architecture == "layerrope" or (depth or 0) > DEEPEST:
        return sites
    deep = depth or min(max(row.layer for site in stream.values() for row in site.rows) + 1, DEEPEST)
    return {**sites, **{role: _with_gap(site, deep, architecture) for role, site in stream.items()}}


def _with_gap(site: Site, depth: int, architecture: str) -> Site:
    present = {row.layer for row in site.rows} | ABSENT.get((architecture, site.role), frozenset())
    return replace(site, missing=tuple(layer for layer in range(depth) if layer not in present))


def _row(norm: NormTensor, stored: NDArray[Any], dtype: str) -> Row:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        values = norm.gain(_flat(stored))
    layer = -1 if norm.layer is None else norm.layer
    exact = exact_in(np.asarray(stored).reshape(-1))
    return Row(layer, printable(norm.name), values, fault(values, norm.part == "gain"), exact, printable(dtype))


def _flat(stored: NDArray[Any]) -> Vector:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return np.asarray(stored).reshape(-1).astype(np.float64)


def _sites(rows: Sequence[tuple[NormTensor, Row]]) -> dict[str, Site]:
    grouped: dict[str, dict[int, tuple[NormTensor, Row]]] = {}
    for norm, row in rows:
        grouped.setdefault(norm.role, {}).setdefault(row.layer, (norm, row))
    order = {role: i for i, role in enumerate(ROLES)}
    sites = {}
    for role in sorted(grouped, key=lambda r: (order.get(r, len(order)), r)):
        group = [grouped[role][layer] for layer in sorted(grouped[role])]
        sites[role] = _site(role, group)
    return sites


def _with_folds(sites: dict[str, Site]) -> dict[str, Site]:
    """`sites` with a warning at those that a quantiser's scales were folded into."""
    spread = {s.role: [r for r in s.rows if r.fault is None and np.ptp(r.values) > 0] for s in sites.values()}
    folded = folded_sites({role_words(role): [trained_in(r) for r in rows] for role, rows in spread.items()})
    return {
        role: replace(site, warnings=(*site.warnings, f"not the trained gain: {folded[site.words]}"))
        if site.words in folded
        else site
        for role, site in sites.items()
    }


def trained_in(row: Row) -> str:
    """`Row.exact_in`, but a gain that a converter wrote as 1 + w counts as bf16 where w is."""
    return "bf16" if bf16_exact(row.values - 1) == 1 else row.exact_in


def _site(role: str, group: Sequence[tuple[NormTensor, Row]]) -> Site:
    norm, _ = group[0]
    warnings = []
    if all(row.fault == "all ones" for _, row in group):
        warnings.append("every gain is exactly one, so it is probably untrained")
    widths = sorted({row.values.size for _, row in group})
    if len(widths) > 1:
        some = ", ".join(at_most([str(width) for width in widths], 6))
        warnings.append(f"layers have different widths ({some}): the commonest enters the fits")
    return Site(role, tuple(row for _, row in group), norm.convention, printable(norm.reason), tuple(warnings))
