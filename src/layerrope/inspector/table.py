"""The gains of one checkpoint as tables, layer by layer, with what is known and what is wrong about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerrope.errors import InputError
from layerrope.inspector.health import fault, folded_sites, stored_as
from layerrope.norm_sites import MODEL_TYPES, ROLES, NormTensor, find_norms, role_words
from layerrope.tensors.blobs import printable

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]

#: A vector longer than this is no norm gain.
WIDEST = 1 << 20


class Info(Protocol):
    """What a source says about a tensor (`layerrope.tensors.TensorInfo`)."""

    @property
    def shape(self) -> tuple[int, ...]: ...


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
    values: Vector
    fault: str | None
    stored: str
    """narrowest float that holds the stored values: bf16, fp16 or fp32"""


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

    @property
    def words(self) -> str:
        return role_words(self.role)

    @property
    def untrained(self) -> bool:
        """Is every gain exactly one?"""
        return all(row.fault == "all ones" for row in self.rows)

    @cached_property
    def usable(self) -> tuple[Row, ...]:
        """The rows that can enter a fit: finite, not all zeros, of the commonest width."""
        fine = [r for r in self.rows if r.fault in (None, "all ones") and r.values.size]
        width = Counter(r.values.size for r in fine).most_common(1)
        return tuple(r for r in fine if r.values.size == width[0][0])

    @cached_property
    def layers(self) -> NDArray[np.int64]:
        """Depths of the usable rows, 0-based, (L,)."""
        return np.array([row.layer for row in self.usable], dtype=np.int64)

    @cached_property
    def matrix(self) -> Matrix:
        """The usable rows, (L, d) in float64."""
        return np.array([row.values for row in self.usable], dtype=np.float64)


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
    notes: tuple[str, ...] = ()
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)
    """site -> learned scalars, for a LayerRoPE run of this package"""
    base: float | None = None
    """the run's own spectrum base"""
    spent: tuple[int, int] = (0, 0)
    """bytes and requests"""

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Every broken or untouched tensor, with its role, layer and fault."""
        rows = [(site.role, row) for sites in (self.sites, self.biases) for site in sites.values() for row in site.rows]
        rows += list(self.singles.items())
        return [
            {"role": role, "layer": None if row.layer < 0 else row.layer, "name": row.name, "fault": row.fault}
            for role, row in rows
            if row.fault is not None
        ]


def read_table(source: Source, architecture: str | None = None) -> GainTable:
    """The gains of `source`.

    Args:
        source: named tensors (`layerrope.tensors.open_source`).
        architecture: what to read it as (a `model_type`), instead of what its configuration says.

    Raises:
        InputError: nothing in it is a norm, its architecture has norms without weights, or a tensor is unreadable.
    """
    _check(architecture, source.format)
    shapes = {name: tuple(info.shape) for name, info in source.names.items()}
    found = find_norms(source.names, source.config, source.format, architecture, shapes)
    notes = [*source.notes, *map(printable, found.notes)]
    norms = _in_range(found.tensors, shapes, source.config, notes)
    from layerrope.inspector.run_gains import has_gains, with_gains

    if not norms and not has_gains(source):
        why = found.notes[0] if found.notes else "no tensor is called like a norm"
        raise InputError(f"{source.label} has no norm gains to inspect: {why}")
    values = source.read(norm.name for norm in norms)
    rows = [(norm, _row(norm, values[norm.name])) for norm in norms]
    table = GainTable(
        label=source.label,
        format=source.format,
        architecture=printable(found.architecture),
        known=found.known,
        sites=_sites([(n, r) for n, r in rows if n.part == "gain" and n.layer is not None]),
        singles={n.role: r for n, r in reversed(rows) if n.part == "gain" and n.layer is None},
        biases=_sites([(n, r) for n, r in rows if n.part == "bias" and n.layer is not None]),
        notes=tuple(notes),
        spent=_spent(source),
    )
    return with_gains(table, source) if has_gains(source) else table


def _check(architecture: str | None, format: str) -> None:
    from layerrope.errors import one_of
    from layerrope.norm_sites import GGUF_ARCHITECTURES

    if architecture is not None:
        one_of("architecture", architecture, GGUF_ARCHITECTURES if format == "gguf" else MODEL_TYPES)


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
        notes.append(f"too large for a norm, not read: {printable(', '.join(wide[:3]), 120)}")
    if deep:
        notes.append(f"{len(deep)} norm tensors lie past the configured {depth} layers: not read")
    left_out = {*wide, *deep}
    return [n for n in norms if n.name not in left_out]


def _configured_depth(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    for place in (text if isinstance(text, Mapping) else {}, config):
        depth = place.get("num_hidden_layers")
        if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0:
            return depth
    return None


def _row(norm: NormTensor, stored: NDArray[Any]) -> Row:
    flat = np.asarray(stored).reshape(-1)
    values = norm.gain(flat.astype(np.float64))
    layer = -1 if norm.layer is None else norm.layer
    return Row(layer, printable(norm.name), values, fault(values, norm.part == "gain"), stored_as(flat))


def _sites(rows: Sequence[tuple[NormTensor, Row]]) -> dict[str, Site]:
    grouped: dict[str, dict[int, tuple[NormTensor, Row]]] = {}
    for norm, row in rows:
        grouped.setdefault(norm.role, {}).setdefault(row.layer, (norm, row))
    kinds = {role_words(role): [r.stored for _, r in group.values()] for role, group in grouped.items()}
    folded = folded_sites(kinds) if rows and rows[0][0].part == "gain" else {}
    order = {role: i for i, role in enumerate(ROLES)}
    sites = {}
    for role in sorted(grouped, key=lambda r: (order.get(r, len(order)), r)):
        group = [grouped[role][layer] for layer in sorted(grouped[role])]
        sites[role] = _site(role, group, folded.get(role_words(role)))
    return sites


def _site(role: str, group: Sequence[tuple[NormTensor, Row]], folded: str | None) -> Site:
    norm, _ = group[0]
    warnings = []
    ones = sum(row.fault == "all ones" for _, row in group)
    if ones:
        which = "every gain is exactly one" if ones == len(group) else f"{ones} of {len(group)} layers are all ones"
        warnings.append(f"{which}: probably untrained")
    if folded:
        warnings.append(f"not the trained gain: {folded}")
    widths = sorted({row.values.size for _, row in group})
    if len(widths) > 1:
        warnings.append(f"layers have different widths ({', '.join(map(str, widths))}): the commonest enters the fits")
    return Site(
        printable(role), tuple(row for _, row in group), norm.convention, printable(norm.reason), tuple(warnings)
    )
