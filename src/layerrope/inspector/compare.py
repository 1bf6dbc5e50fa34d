"""Models side by side, by role and depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.inspector.angles import angles
from layerrope.inspector.naming import unique
from layerrope.inspector.site import layer_statistics
from layerrope.inspector.table import Row, Site

if TYPE_CHECKING:
    import polars as pl

    from layerrope.inspector.inspection import Inspection


@dataclass(frozen=True)
class Comparison:
    """Every later model against the first."""

    labels: list[str]
    """what each model is called here: its label, numbered where two are the same"""
    site_rows: list[dict[str, Any]]
    """one row per role and model: growth, direction, errors"""
    layer_rows: list[dict[str, Any]]
    """one row per role, layer of the first model and other model: the RMS of both, their ratio and angle"""
    role_rows: list[dict[str, Any]]
    """one row per role and other model: the range of the ratio of RMS, the largest angle and difference"""
    only_in: dict[str, list[str]]
    """role -> the models that have it, for roles that some lack"""

    def sites(self) -> pl.DataFrame:
        """`site_rows` as a frame."""
        import polars as pl

        return pl.DataFrame(self.site_rows, infer_schema_length=None)

    def layers(self) -> pl.DataFrame:
        """`layer_rows` as a frame."""
        import polars as pl

        return pl.DataFrame(self.layer_rows, infer_schema_length=None)

    def document(self) -> dict[str, Any]:
        """All of it, as data for JSON."""
        return {"sites": self.site_rows, "roles": self.role_rows, "layers": self.layer_rows, "only_in": self.only_in}


_COLUMNS = ("layers", "d", "beta", "r2", "rank1", "largest_angle_from_1", "error_magnitude", "error_full", "p_value")


_DIFFERENCES = ("ratio", "angle", "largest_difference")


def compare(inspections: Sequence[Inspection]) -> Comparison:
    """Set `inspections` side by side; the first is what the others are compared with."""
    labels = unique(i.label for i in inspections)
    named = list(zip(labels, inspections, strict=True))
    (_, first), *others = named
    roles = list(dict.fromkeys(role for i in inspections for role in i.reports))
    owners = {role: [label for label, i in named if role in i.reports] for role in roles}
    by_layer = [
        row
        for role in roles
        for label, other in others
        if role in first.reports and role in other.reports
        for row in _against(first.reports[role].site, other.reports[role].site, role, label, labels[0])
    ]
    return Comparison(
        labels=labels,
        site_rows=[_site_row(role, label, i) for role in roles for label, i in named if role in i.reports],
        layer_rows=by_layer,
        role_rows=_over_layers(by_layer),
        only_in={role: labels for role, labels in owners.items() if len(labels) < len(inspections)},
    )


def _over_layers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Layer rows put together by role and model; what no layer tells is None."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["site"], row["model"]), []).append(row)
    return [{"site": site, "model": model, **_extremes(group)} for (site, model), group in groups.items()]


def _extremes(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    told = {n: [r[n] for r in rows if r[n] is not None and np.isfinite(r[n])] for n in _DIFFERENCES}
    return {
        "ratio_least": min(told["ratio"], default=None),
        "ratio_most": max(told["ratio"], default=None),
        "largest_angle": max(told["angle"], default=None),
        "largest_difference": max(told["largest_difference"], default=None),
    }


def short_labels(labels: Sequence[str]) -> list[str]:
    """The last parts of `labels`, as many as it takes to tell them apart; repeated labels get a number."""
    parts = [label.rstrip("/").split("/") for label in labels]
    longest = max(map(len, parts), default=1)
    for n in range(1, longest + 1):
        short = ["/".join(p[-n:]) for p in parts]
        if len(set(short)) == len(set(labels)):
            break
    seen: dict[str, int] = {}
    for i, label in enumerate(short):
        seen[label] = seen.get(label, 0) + 1
        short[i] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return short


def _site_row(role: str, label: str, inspection: Inspection) -> dict[str, Any]:
    row = next(row for row in inspection.summary_rows() if row["site"] == role)
    return {"site": role, "model": label, **{name: row.get(name) for name in _COLUMNS}}


def _against(a: Site, b: Site, role: str, label: str, against: str) -> list[dict[str, Any]]:
    rows = []
    for row, depth in zip(a.rows, _relative(a), strict=True):
        match = b.rows[int(np.argmin(np.abs(_relative(b) - depth)))]
        head = {"site": role, "model": label, "against": against, "depth": float(depth)}
        rows.append({**head, "layer": row.layer, "its_layer": match.layer, **_difference(row, match)})
    return rows


def _relative(site: Site) -> np.ndarray:
    """Depth from 0 (first layer) to 1 (last): models of different depth meet there."""
    layers = np.array([row.layer for row in site.rows], dtype=np.float64)
    span = layers[-1] - layers[0]
    return (layers - layers[0]) / span if span > 0 else np.zeros(len(layers))


def _difference(a: Row, b: Row) -> dict[str, Any]:
    """RMS of both, b's over a's, and the angle between them where they are as wide."""
    rms, its_rms = (layer_statistics(row)["rms"] for row in (a, b))
    same = a.values.size == b.values.size > 0
    alike = same and all(np.isfinite(row.values).all() and row.values.any() for row in (a, b))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        gap = float(np.max(np.abs(a.values - b.values))) if same else None
        ratio = float(np.float64(its_rms) / rms) if rms > 0 else None
    angle = angles(np.array([a.values, b.values])).largest if alike else None
    return {"rms": rms, "its_rms": its_rms, "ratio": ratio, "angle": angle, "largest_difference": gap}
