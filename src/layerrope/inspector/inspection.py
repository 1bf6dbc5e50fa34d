"""A whole checkpoint inspected: tables, verdict, and the files it can be written to."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerrope.errors import InputError
from layerrope.files import NPZ, apart, write_atomic, write_json
from layerrope.inspector.depth_law import best_law
from layerrope.inspector.mds import pure_scaling_picture
from layerrope.inspector.naming import array_names
from layerrope.inspector.site import SiteReport, layer_statistics, report_site
from layerrope.inspector.table import OTHER, GainTable, Row, Site, Source, read_table
from layerrope.inspector.words import check_verdict, model_verdict, site_verdict

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

#: Of the JSON document and of every line of the CSV; raised when a field changes its meaning or goes.
SCHEMA_VERSION = 1

#: First bytes of the CSV: the name of its first column.
CSV = b"schema_version"


#: Sites that are measured; only a stranger's naming can make more.
MOST_SITES = 24
#: Shuffled tables of a null; each costs a search.
MOST_SHUFFLES = 10_000


def inspect(
    source: str | os.PathLike[str] | Source,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    architecture: str | None = None,
    base: float | None = None,
    shuffles: int = 20,
    seed: int = 0,
) -> Inspection:
    """What the norms of a checkpoint say about depth.

    Args:
        source: a folder, file, training run, Hub id or address; or an open `layerrope.tensors.TensorSource`.
        revision: branch, tag or commit of a Hub id.
        token: for gated models, sent to the Hub only.
        endpoint: address of another Hub.
        architecture: read the tensors as this `model_type` instead of what the configuration says.
        base: of LayerRoPE's spectrum; by default the run's own, or 100.
        shuffles: tables with shuffled channels in the rotation's null.
        seed: of every random draw.

    Raises:
        InputError: the source cannot be read, or holds no norm gains.
    """
    if not 0 <= shuffles <= MOST_SHUFFLES:
        raise InputError(f"shuffles must be 0 to {MOST_SHUFFLES}: got {shuffles}")
    if base is not None and not 1 < base < math.inf:
        raise InputError(f"the base of the spectrum must be above 1: got {base}")
    table = read_table(_opened(source, revision, token, endpoint), architecture)
    own = table.base if table.base is not None and 1 < table.base < math.inf else 100.0
    roles = sorted(table.sites, key=lambda role: -len(table.sites[role].rows))[:MOST_SITES]
    if len(roles) < len(table.sites):
        left = len(table.sites) - len(roles)
        table = dataclasses.replace(table, notes=(*table.notes, f"{left} more sites, with fewer layers, not measured"))
    measured = {role: site for role, site in table.sites.items() if role in roles}
    return Inspection(table, {r: report_site(s, base or own, shuffles, seed) for r, s in measured.items()})


def check(
    source: str | os.PathLike[str] | Source,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    architecture: str | None = None,
) -> Inspection:
    """Every norm-like tensor of a checkpoint looked at for what is broken; nothing is fitted.

    The arguments are those of `inspect`. `Inspection.faults` lists NaN, Inf, empty, all-zero and all-ones tensors and
    missing layers, in layers past the configured depth, other towers and norms of no known site too.

    Raises:
        InputError: the source cannot be read, or holds nothing that is called like a norm.
    """
    source = _opened(source, revision, token, endpoint)
    return Inspection(read_table(source, architecture, everything=True), {}, fitted=False)


def _opened(
    source: str | os.PathLike[str] | Source, revision: str | None, token: str | None, endpoint: str | None
) -> Source:
    if not isinstance(source, str | os.PathLike):
        if not hasattr(source, "format"):
            what = "a folder, a file, a run or a Hub id; save a model first"
            raise InputError(f"cannot inspect a {type(source).__name__}: give {what}")
        return source
    from layerrope.tensors import open_source

    return open_source(source, revision=revision, token=token, endpoint=endpoint)


@dataclass(frozen=True, repr=False)
class Inspection:
    """One checkpoint's norm gains, measured."""

    table: GainTable
    reports: dict[str, SiteReport]
    """role -> what its gains say"""
    fitted: bool = True
    """False where the norms were only looked at (`check`)"""

    @property
    def label(self) -> str:
        """What was inspected."""
        return self.table.label

    @property
    def verdict(self) -> str:
        """Two or three sentences on the whole model."""
        if not self.fitted:
            return check_verdict(self.looked_at, self.faults, self.table.depth)
        return model_verdict(list(self.reports.values()), self.faults)

    @property
    def looked_at(self) -> int:
        """Norm vectors and biases that were read."""
        sites = [*self.table.sites.values(), *self.table.biases.values()]
        alone = (self.table.singles, self.table.single_biases, self.table.others)
        return sum(len(site.rows) for site in sites) + sum(map(len, alone))

    def __repr__(self) -> str:
        layers = max((s.expected for s in self.table.sites.values()), default=0)
        sites = f"{len(self.reports or self.table.sites)} sites of {layers} layers"
        return f"Inspection({self.label!r}: {self.table.architecture}, {sites}, {len(self.faults)} faults)"

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Tensors with NaN or Inf, all zeros or all ones, and layers that are missing."""
        return self.table.faults

    def layer_rows(self) -> list[dict[str, Any]]:
        """One row of statistics per vector: gains by site and layer, then single norms, then biases."""
        rows = [_line(s.role, "gain", s.convention, row) for s in self.table.sites.values() for row in s.rows]
        rows += [_line(role, "gain", "", row) for role, row in self.table.singles.items()]
        rows += [_line(s.role, "bias", "w", row) for s in self.table.biases.values() for row in s.rows]
        rows += [_line(role, "bias", "w", row) for role, row in self.table.single_biases.items()]
        rows += [_line(OTHER, "gain", "raw", row) for row in self.table.others]
        return [{"model": self.label, **row} for row in rows]

    def layers(self) -> pl.DataFrame:
        """`layer_rows` as a frame."""
        import polars as pl

        return pl.DataFrame(self.layer_rows(), infer_schema_length=None)

    def summary_rows(self) -> list[dict[str, Any]]:
        """One row per site: growth, direction, picture with its null, and LayerRoPE's fit."""
        return [{"model": self.label, **_summary(report)} for report in self.reports.values()]

    def summary(self) -> pl.DataFrame:
        """`summary_rows` as a frame."""
        import polars as pl

        return pl.DataFrame(self.summary_rows(), infer_schema_length=None)

    def charts(self) -> dict[str, alt.TopLevelMixin]:
        """Charts by name: `size`, `angle`, `error`, `rotation`, and one `picture` and `spread` per site."""
        from layerrope.inspector.figures import charts

        return {name: figure.chart for name, figure in charts(self).items()}

    def document(self) -> dict[str, Any]:
        """Everything measured, as data for JSON."""
        table = self.table
        return {
            "label": table.label,
            "format": table.format,
            "architecture": table.architecture,
            "architecture_known": table.known,
            "bytes": table.spent[0],
            "requests": table.spent[1],
            "notes": list(table.notes),
            "verdict": self.verdict,
            "fitted": self.fitted,
            "norms_read": self.looked_at,
            "faults": self.faults,
            "learned_scalars": table.scalars,
            "sites": {role: _site_document(report) for role, report in self.reports.items()},
            "singles": {role: {"name": row.name, **layer_statistics(row)} for role, row in table.singles.items()},
            "single_biases": {role: _line(role, "bias", "w", row) for role, row in table.single_biases.items()},
            "expected_layers": table.depth,
            "biases": {role: [_line(role, "bias", "w", r) for r in s.rows] for role, s in table.biases.items()},
        }

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write `document` with the schema version. Raises InputError if it cannot be written."""
        refuse_inputs([self], [path])
        return write_json(path, json_document([self]))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write `layers` as CSV. Raises InputError if it cannot be written."""
        refuse_inputs([self], [path])
        return write_atomic(path, csv_text([self]))

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report page. Raises InputError if it cannot be written."""
        from layerrope.inspector.report import report_page

        refuse_inputs([self], [path])
        return report_page([self]).write(path)

    def to_png(self, path: str | os.PathLike[str]) -> list[Path]:
        """Draw the charts: one picture into a `.png` file, or one file a chart into a folder."""
        from layerrope.inspector.figures import save_pictures

        return save_pictures([self], path)

    def save_npz(self, path: str | os.PathLike[str]) -> Path:
        """Write the gains: `SITE` (L, d) with `SITE.layers` (L,), single norms by role, `SITE.bias`. No pickle.

        Broken layers are kept as they are; only layers of another width than most are not.
        """
        refuse_inputs([self], [path])
        table = self.table
        names = array_names([*dict.fromkeys([*table.sites, *table.singles, *table.biases, *table.single_biases])])
        arrays: dict[str, Any] = {"label": np.array(self.label)}
        for role, site in table.sites.items():
            arrays |= _stacked(names[role], site)
        for role, site in table.biases.items():
            arrays |= _stacked(f"{names[role]}.bias", site)
        arrays |= {names[role]: row.values for role, row in table.singles.items()}
        arrays |= {f"{names[role]}.bias": row.values for role, row in table.single_biases.items()}
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **{k: _narrow(v) for k, v in arrays.items()})
        return write_atomic(path, data.getvalue(), NPZ)


def refuse_inputs(inspections: Sequence[Inspection], outputs: Sequence[str | os.PathLike[str]]) -> None:
    """Raises InputError where an output is a file that was read, by whatever name or link, or by any name twice."""
    read = [file for i in inspections for file in i.table.files]
    for output in map(Path, outputs):
        if any(_same(output, file) for file in read):
            raise InputError(f"{output} is what was inspected, so it is not written over: choose another name")
    apart(outputs)


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False


def json_document(inspections: list[Inspection]) -> dict[str, Any]:
    """The JSON document of one or several models, with their comparison."""
    from layerrope import __version__
    from layerrope.inspector.compare import compare

    angle, drawn = pure_scaling_picture()
    return {
        "schema_version": SCHEMA_VERSION,
        "written_by": f"layerrope {__version__}",
        "models": [inspection.document() for inspection in inspections],
        "comparison": compare(inspections).document() if len(inspections) > 1 else None,
        "controls": {"pure_scaling": {"largest_angle": angle, "sweep": plain(drawn.sweep)}},
    }


def csv_text(inspections: list[Inspection]) -> str:
    """The per-layer statistics of every model as CSV, with the schema version on each line."""
    import polars as pl

    rows = [{"schema_version": SCHEMA_VERSION, **row} for i in inspections for row in i.layer_rows()]
    floats = pl.DataFrame(rows, infer_schema_length=None)
    return floats.with_columns(pl.selectors.float().fill_nan(None)).write_csv()


def plain(value: Any) -> Any:
    """Dataclasses as dicts, arrays as lists, without the shared gamma (it is as long as the model is wide)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f.name for f in dataclasses.fields(value) if f.name not in {"gamma", "site"})
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def _line(role: str, part: str, convention: str, row: Row) -> dict[str, Any]:
    layer = None if row.layer < 0 else row.layer
    head = {"role": role, "part": part, "layer": layer, "name": row.name, "convention": convention}
    return {**head, **layer_statistics(row), "stored": row.stored, "exact_in": row.exact_in, "fault": row.fault}


def _site_document(report: SiteReport) -> dict[str, Any]:
    site = report.site
    return {
        "words": site.words,
        "convention": site.convention,
        "reason": site.reason,
        "warnings": list(site.warnings),
        "missing": list(site.missing),
        "verdict": site_verdict(report),
        "statistics": [_line(site.role, "gain", site.convention, row) for row in site.rows],
        **plain(report),
        "rotation": _rotation(report),
    }


def _rotation(report: SiteReport) -> dict[str, Any] | None:
    if report.whole is None or report.whole.fit.rotation_gain is None:
        return None
    fit = report.whole.fit
    return {"p_value": fit.p_value, "identifiable": fit.identifiable}


def _summary(report: SiteReport) -> dict[str, Any]:
    whole, later = report.whole, report.later
    head = {"site": report.site.role, "layers": len(report.site.rows), "d": report.d}
    head |= {"fitted": len(whole.layers) if whole else 0, "expected": report.site.expected}
    head |= {"convention": report.site.convention}
    if whole is None:
        return head
    fit, null = whole.fit, report.null
    return {
        **head,
        "c": whole.power.c,
        "beta": whole.power.beta,
        "beta_low": whole.power.beta_interval[0] if whole.power.beta_interval else None,
        "beta_high": whole.power.beta_interval[1] if whole.power.beta_interval else None,
        "r2": whole.power.r2,
        "best_law": best_law(whole.laws),
        "best_law_from_1": best_law(later.laws) if later else None,
        "beta_from_1": later.power.beta if later else None,
        "largest_angle": whole.angles.largest,
        "largest_angle_from_1": later.angles.largest if later else None,
        "rank1": whole.rank1,
        "rank1_unit": whole.rank1_unit,
        "stress": whole.picture.stress,
        "swept": whole.picture.sweep.net,
        "swept_null": null.mean.net if null else None,
        "swept_null_std": null.std.net if null else None,
        "swept_null_least": null.least.net if null else None,
        "swept_null_most": null.most.net if null else None,
        "folded": whole.picture.sweep.folded,
        "folded_null": null.mean.folded if null else None,
        "error_constant": fit.constant,
        "error_magnitude": fit.magnitude,
        "error_full": fit.full,
        "error_rank1": fit.rank1,
        "rotation_gain": fit.rotation_gain,
        "rotation_null_max": max(fit.null) if fit.null else None,
        "p_value": fit.p_value,
    }


def _narrow(value: np.ndarray) -> np.ndarray:
    """float64 as float32 where nothing is lost."""
    if value.dtype != np.float64:
        return value
    with np.errstate(over="ignore", under="ignore"):
        narrow = value.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), value, equal_nan=True) else value


def _stacked(name: str, site: Site) -> dict[str, np.ndarray]:
    rows = site.stackable
    layers = np.array([row.layer for row in rows], dtype=np.int64)
    return {name: np.array([row.values for row in rows], dtype=np.float64), f"{name}.layers": layers}
