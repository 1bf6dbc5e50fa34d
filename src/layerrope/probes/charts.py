"""The charts of probes: by depth, one line a model; the angle matrix as a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from layerrope.charts import KEEP_SHAPE, scheme_channels
from layerrope.comparing.charts import SITE_NAMES, Figure

Found: TypeAlias = Mapping[str, Mapping[str, Any]]
"""label -> the document of `layerrope.probes.probe`."""

Points: TypeAlias = list[tuple[float, float | None, float | None]]
"""(x, y, standard error of y or None)"""


@dataclass(frozen=True)
class Panel:
    """One plot: a field of a probe by depth."""

    field: str  # "probe.field", or "probe.field.site"
    title: str
    x_title: str = "layer"
    x: Callable[[int], float] = float  # index -> place on the axis
    log: bool = False
    only: tuple[int, int] = (0, 1)  # the first value shown, and every how many
    error: str = ""  # the field with the standard error


@dataclass(frozen=True)
class Group:
    """Panels that stand together as one picture."""

    name: str
    caption: str
    panels: tuple[Panel, ...]


def _half(index: int) -> float:
    return index / 2


ATTENTION, MLP = (0, 2), (1, 2)
AFTER = "layers passed"

GROUPS: tuple[Group, ...] = (
    Group(
        "stream",
        "Size of the stream before the first sublayer and after each one, over counted positions and channels.",
        (
            Panel("stream.rms", "root mean square", AFTER, _half, log=True),
            Panel("stream.variance", "variance", AFTER, _half, log=True),
        ),
    ),
    Group(
        "update",
        "What each sublayer writes, relative to what it read: ratio of mean lengths, and mean cosine. A small ratio "
        "says that the sublayer changes little.",
        (
            Panel("update.ratio", "attention, relative update", only=ATTENTION, log=True),
            Panel("update.ratio", "MLP, relative update", only=MLP, log=True),
            Panel("update.cosine", "attention, cosine with the read", only=ATTENTION),
            Panel("update.cosine", "MLP, cosine with the read", only=MLP),
        ),
    ),
    Group(
        "angle",
        "How far each layer turns the stream: angular distance (0.5 is a right angle), and block influence, 1 less the "
        "mean cosine.",
        (Panel("angle.neighbour", "angular distance"), Panel("angle.block_influence", "block influence")),
    ),
    Group(
        "loss-change",
        "Change of the loss in nats per token without a layer, and with a layer and the next in each other's place; "
        "bars are one standard error over windows, paired. Constants and gains move with their layer.",
        (
            Panel("drop.change", "without the layer", error="drop.standard_error"),
            Panel("swap.change", "exchanged with the next", error="swap.standard_error"),
        ),
    ),
    Group(
        "lens",
        "The model's own final norm and head, read at each depth: loss, and how far the prediction is from the last.",
        (
            Panel("lens.loss", "loss, nats per token", AFTER),
            Panel("lens.kl", "KL from the last, nats per token", AFTER),
        ),
    ),
    Group(
        "layer-work",
        "Distance of each layer's Jacobian from the identity (mean over positions; bars are one standard error of the "
        "estimate), and loss with the layer replaced by the affine map that fits it best, over the loss without, on "
        "text the map was not fitted on.",
        (
            Panel("jacobian.distance", "|J - I| / sqrt(d)", error="jacobian.standard_error"),
            Panel("affine.ratio", "loss ratio, affine in its place"),
        ),
    ),
    Group(
        "gradient",
        "Length of the mean loss's gradient in all parameters of a layer, and of the summed loss's gradient in the "
        "stream of one position.",
        (
            Panel("gradient.weights", "in the layer's weights", log=True),
            Panel("gradient.stream", "in the stream", AFTER, log=True),
        ),
    ),
    Group(
        "collapse",
        "How alike the tokens of one window are: mean cosine of two positions, and the rank their streams span, as "
        "they are and with their mean taken out.",
        (
            Panel("collapse.collinearity", "mean cosine of two tokens", AFTER),
            Panel("collapse.stable_rank", "stable rank", AFTER),
            Panel("collapse.effective_rank", "effective rank", AFTER),
            Panel("collapse.centred_rank", "effective rank, centred", AFTER),
        ),
    ),
    Group(
        "gains",
        "Root mean square over channels of the gain on what a sublayer reads and writes: norm weight or gate, times "
        "the row of the gain table. A site without a gain has no line.",
        tuple(Panel(f"gains.rms.{site}", name) for site, name in SITE_NAMES.items()),
    ),
)


def figures(found: Found) -> list[Figure]:
    """Every chart there is something to draw for."""
    made = [_figure(group, found) for group in GROUPS]
    maps = [_matrix(label, document) for label, document in found.items()]
    return [figure for figure in (*made, *maps) if figure is not None]


# -------------------------------------------------------------------------------------------------------------- data
def points(document: Mapping[str, Any], panel: Panel) -> Points:
    """What the panel shows of one model; empty where it was not measured, or has no value for this scheme."""
    y = _values(document, panel.field)
    error = _values(document, panel.error) if panel.error else None
    if panel.field == "swap.change":
        y, error = (_neighbours(document, values) for values in (y, error))
    if y is None:
        return []
    first, every = panel.only
    shown = list(zip(y, error or [None] * len(y), strict=True))[first::every]
    return [(panel.x(i), value, spread) for i, (value, spread) in enumerate(shown)]


def _values(document: Mapping[str, Any], path: str) -> list[float | None] | None:
    value: Any = document["probes"]
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _neighbours(document: Mapping[str, Any], values: list[float | None] | None) -> list[float | None] | None:
    """Of a list with one value a swapped pair, those of neighbours."""
    pairs = _values(document, "swap.pairs") or []
    return None if values is None else [v for (i, j), v in zip(pairs, values, strict=True) if j == i + 1]  # type: ignore[misc]


def left_out(found: Found, field: str) -> dict[str, str]:
    """label -> why its `field` is not drawn beside that of other models. A single model is always drawn."""
    probe_field = ".".join(field.split(".")[:2])
    reasons = {label: document["not_comparable"].get(probe_field) for label, document in found.items()}
    apart = {label: why for label, why in reasons.items() if why}
    alike = len({document["scheme"] for document in found.values()}) == 1
    return {} if alike else apart


# ------------------------------------------------------------------------------------------------------------ charts
def _figure(group: Group, found: Found) -> Figure | None:
    import altair as alt

    tables = [(panel, _rows(panel, found)) for panel in group.panels]
    drawn = [label for label in found if any(row["model"] == label for _, rows in tables for row in rows)]
    made = [(panel, _lines(panel, rows, drawn)) for panel, rows in tables if rows]
    if not made:
        return None
    whole = alt.concat(*(c.properties(width=330, height=190, title=p.title) for p, c in made), columns=2)
    whole = whole.resolve_scale(x="independent", y="independent")
    each = tuple((chart, panel.title, f"{panel.title} by depth, one line a model") for panel, chart in made)
    words = f"{', '.join(panel.title for panel, _ in made)} by depth, one line a model."
    return Figure(group.name, whole, " ".join([group.caption, *_apart(group, found)]), words, each)


def _apart(group: Group, found: Found) -> list[str]:
    """A sentence for every model and reason for which panels leave it out."""
    said: dict[tuple[str, str], list[str]] = {}
    for panel in group.panels:
        for label, why in left_out(found, panel.field).items():
            said.setdefault((label, why), []).append(panel.title)
    return [f"Without {label} ({', '.join(titles)}): {why}." for (label, why), titles in said.items()]


def _rows(panel: Panel, found: Found) -> list[dict[str, Any]]:
    """What a panel draws: model, x, y, and the ends of its error bar."""
    without = left_out(found, panel.field)
    return [
        {"model": label, "x": x, "y": y, "low": y - (e or 0), "high": y + (e or 0)}
        for label, document in found.items()
        if label not in without
        for x, y, e in points(document, panel)
        if y is not None
    ]


def _lines(panel: Panel, rows: list[dict[str, Any]], labels: list[str]) -> Any:
    """One line a model; error bars where there are errors."""
    import altair as alt
    import polars as pl

    kinds = {"model": pl.Utf8, **dict.fromkeys(("x", "y", "low", "high"), pl.Float64)}
    colour, dash = scheme_channels("model", labels, title="model")
    scale = alt.Scale(type="log", nice=False, padding=8) if panel.log else alt.Scale(zero=False, padding=8)
    x = alt.X("x:Q", title=panel.x_title, axis=alt.Axis(tickMinStep=1))
    base = alt.Chart(pl.DataFrame(rows, schema=kinds)).encode(x=x, color=colour)
    lines = base.mark_line().encode(
        y=alt.Y("y:Q", title=None, scale=scale),
        strokeDash=dash,
        tooltip=["model", "x", alt.Tooltip("y:Q", format=".4")],
    )
    if not panel.error:
        return lines
    bars = base.mark_rule(strokeWidth=1.2).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    return bars + lines


def _matrix(label: str, document: Mapping[str, Any]) -> Figure | None:
    """Angular distance between any two depths as a map."""
    import altair as alt
    import polars as pl

    matrix = _values(document, "matrix.matrix")
    if matrix is None:
        return None
    rows = [{"from": i, "to": j, "distance": d} for i, row in enumerate(matrix) for j, d in enumerate(row)]  # type: ignore[arg-type]
    axis = alt.Axis(labelOverlap=True, labelAngle=0)
    chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_rect()
        .encode(
            x=alt.X("from:O", title=AFTER, axis=axis),
            y=alt.Y("to:O", title=AFTER, axis=axis, sort="descending"),
            color=alt.Color("distance:Q", title="angular distance", legend=alt.Legend(orient="right")),
            tooltip=["from", "to", alt.Tooltip("distance:Q", format=".4f")],
        )
        .properties(width=300, height=300, usermeta=KEEP_SHAPE)
    )
    why = document["not_comparable"].get("matrix.matrix")
    caption = f"{label}: angular distance between the streams at two depths. 0.5 is a right angle."
    caption += f" Not to be compared with other schemes: {why}." if why else ""
    return Figure(f"angles-{_file_name(label)}", chart, caption, caption)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "+.-" else "-" for c in label)
