"""The inspector's charts, each with its caption and a description in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from layerrope.charts import DASHED, KEEP_SHAPE, PALETTE, save_png
from layerrope.errors import InputError
from layerrope.inspector.compare import short_labels
from layerrope.inspector.inspection import refuse_inputs
from layerrope.inspector.mds import Picture, pure_scaling_picture
from layerrope.inspector.naming import file_names
from layerrope.inspector.scale import exponent, scaled
from layerrope.inspector.site import SiteReport, layer_statistics
from layerrope.norm_sites import role_words

if TYPE_CHECKING:
    import altair as alt

    from layerrope.inspector.inspection import Inspection

#: Role -> colour, the same in every chart. Sites that a model usually has together are far apart in hue.
COLOURS = {
    "attn_read": PALETTE["blue"],
    "mlp_read": PALETTE["vermilion"],
    "shared_read": PALETTE["blue"],
    "attn_write": PALETTE["green"],
    "mlp_write": PALETTE["purple"],
    "attn_post": PALETTE["blue"],
    "mlp_post": PALETTE["vermilion"],
    "q_norm": PALETTE["orange"],
    "k_norm": PALETTE["grey"],
    "attn_inner": PALETTE["wine"],
}


class Figure(NamedTuple):
    """A chart with its words."""

    chart: Any
    """an altair chart"""
    caption: str
    alt: str
    title: str
    """what stands over it where it stands alone"""


def charts(inspection: Inspection) -> dict[str, Figure]:
    """Every chart of one model; sites with too few layers are left out."""
    told = [r for r in inspection.reports.values() if r.whole is not None]
    figures = {"size": size_chart(inspection)}
    if told:
        figures |= {"angle": _angle_chart(told), "error": _error_chart(told)}
    tried = [r for r in told if r.whole and any(r.whole.fit.null)]
    if tried:
        figures["rotation"] = _rotation_chart(tried)
    for report in (r for r in told if r.of_the_stream):
        figures[f"picture-{report.site.role}"] = _site_picture(report)
    for report in inspection.reports.values():
        figures[f"spread-{report.site.role}"] = _spread_chart(report)
    return figures


def size_chart(inspection: Inspection) -> Figure:
    """RMS of the gain by layer, one line a site, with the fitted power laws over them."""
    import altair as alt

    rows = [row for report in inspection.reports.values() for row in _size_rows(report)]
    base = alt.Chart(alt.Data(values=rows)).encode(x=_layer_axis(), color=_site_colour(list(inspection.reports)))
    tips = ["site:N", "layer:Q", alt.Tooltip("rms:Q", format=".4g"), alt.Tooltip("fit:Q", format=".4g")]
    measured = base.mark_line().encode(y=_size_axis(), tooltip=tips)
    fitted = base.mark_line(point=False, strokeDash=DASHED, opacity=0.8).encode(y=_size_axis("fit"))
    caption = (
        "Size of the gains by layer on a logarithmic scale, and dashed the fitted power law: an exponential law "
        "would be a straight line. A gap is a layer that is missing or broken."
    )
    alternative = "RMS of the norm gains by layer, one line for each site, and the power law fitted to it"
    drawing = alt.layer(measured, fitted).properties(width=640, height=300)
    return Figure(drawing, caption, alternative, "Size of the gains by layer (dashed: fitted power law)")


def _size_rows(report: SiteReport) -> list[dict[str, Any]]:
    """RMS and fitted power law of each layer; no RMS where the layer is missing."""
    sizes: dict[int, float | None] = {r.layer: layer_statistics(r)["rms"] for r in report.site.rows}
    sizes |= dict.fromkeys(report.site.missing)
    power = report.whole.power if report.whole else None
    return [
        {
            "site": report.site.words,
            "layer": layer,
            "rms": sizes[layer],
            "fit": power.at(layer) if power else None,
        }
        for layer in sorted(sizes)
    ]


def comparison_charts(inspections: Sequence[Inspection]) -> list[Figure]:
    """RMS of the gain by relative depth, one line a model, one chart a site."""
    labels = short_labels([i.label for i in inspections])
    roles = list(dict.fromkeys(role for i in inspections for role in i.reports))
    return [_comparison_chart(role, dict(zip(labels, inspections, strict=True))) for role in roles]


def _comparison_chart(role: str, inspections: dict[str, Inspection]) -> Figure:
    import altair as alt

    rows = []
    for label, inspection in inspections.items():
        here = [r for r in inspection.layer_rows() if r["role"] == role and r["part"] == "gain"]
        last = max((r["layer"] for r in here), default=0) or 1
        rows += [{"model": label, "layer": r["layer"], "depth": r["layer"] / last, "rms": r["rms"]} for r in here]
    legend = alt.Legend(symbolType="stroke")
    scale = alt.Scale(domain=list(inspections))
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("depth:Q", title="depth (0 the first layer, 1 the last)"),
            y=_size_axis(),
            color=alt.Color("model:N", scale=scale, legend=legend),
            strokeDash=alt.StrokeDash("model:N", scale=scale, legend=legend),
            tooltip=["model:N", "layer:Q", alt.Tooltip("rms:Q", format=".4g")],
        )
        .properties(width=640, height=260)
    )
    words = role_words(role)
    return Figure(
        chart,
        f"{words}: size of the gains by depth.",
        f"RMS of {words} by model",
        f"Size of the {words} gains by depth",
    )


def _layer_axis() -> alt.X:
    import altair as alt

    return alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))


def _size_axis(field: str = "rms") -> alt.Y:
    import altair as alt

    return alt.Y(f"{field}:Q", title="RMS of the gain", scale=alt.Scale(type="log", nice=False))


def _site_colour(roles: Sequence[str]) -> alt.Color:
    import altair as alt

    spare = list(PALETTE.values())
    colours = [COLOURS.get(role, spare[i % len(spare)]) for i, role in enumerate(roles)]
    scale = alt.Scale(domain=[role_words(r) for r in roles], range=colours)
    return alt.Color("site:N", scale=scale, title="site", legend=alt.Legend(symbolType="stroke"))


def _angle_chart(reports: Sequence[SiteReport]) -> Figure:
    import altair as alt

    rows = [
        {"site": r.site.words, "layer": layer, "angle": angle}
        for r in reports
        for layer, angle in zip(r.whole.layers[1:], r.whole.angles.steps, strict=True)  # type: ignore[union-attr]
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=_layer_axis(),
            y=alt.Y("angle:Q", title="angle to the layer before (degrees)"),
            color=_site_colour([r.site.role for r in reports]),
            tooltip=["site:N", "layer:Q", alt.Tooltip("angle:Q", format=".1f")],
        )
        .properties(width=640, height=260)
    )
    caption = "True angle in R^d between each layer's gain vector and the one before it."
    return Figure(
        chart,
        caption,
        "angle between neighbouring layers' gains by layer, one line for each site",
        "Angle to the layer before",
    )


_FITS = {"one vector": "constant", "magnitude only": "magnitude", "LayerRoPE": "full", "free sizes": "rank1"}


def _error_chart(reports: Sequence[SiteReport]) -> Figure:
    import altair as alt

    rows = [
        {"site": r.site.words, "fit": words, "error": getattr(r.whole.fit, name)}  # type: ignore[union-attr]
        for r in reports
        for words, name in _FITS.items()
    ]
    colours = [PALETTE[name] for name in ("grey", "blue", "vermilion", "green")]
    shapes = ["circle", "square", "diamond", "triangle-up"]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_point(size=80)
        .encode(
            x=alt.X("error:Q", title="relative error (0 is exact)", scale=alt.Scale(zero=True)),
            y=alt.Y("site:N", title=None, sort=None, axis=alt.Axis(grid=True)),
            color=alt.Color("fit:N", title="shared vector", scale=alt.Scale(domain=list(_FITS), range=colours)),
            shape=alt.Shape("fit:N", title="shared vector", scale=alt.Scale(domain=list(_FITS), range=shapes)),
            tooltip=["site:N", "fit:N", alt.Tooltip("error:Q", format=".4f")],
        )
        .properties(width=640, height=alt.Step(34))
    )
    caption = (
        "Error of one shared vector for all layers: as it is (one vector), growing as (l+1)^beta (magnitude "
        "only), growing and rotating (LayerRoPE), or with a free size for each layer (the best possible of rank 1)."
    )
    return Figure(chart, caption, "relative error of four fits for each site", "Error of one shared vector, four ways")


def _rotation_chart(reports: Sequence[SiteReport]) -> Figure:
    import altair as alt

    rows = []
    for r in reports:
        fit = r.whole.fit  # type: ignore[union-attr]
        rows += [{"site": r.site.words, "table": "channels shuffled", "gain": gain} for gain in fit.null]
        rows.append({"site": r.site.words, "table": "as trained", "gain": fit.rotation_gain})
    scale = alt.Scale(domain=["channels shuffled", "as trained"], range=[PALETTE["grey"], PALETTE["vermilion"]])
    gain = alt.X(
        "gain:Q",
        title="share that the rotation removes",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(tickCount=6, format="~e"),
    )
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_point(size=70, opacity=0.75)
        .encode(
            x=gain,
            y=alt.Y("site:N", title=None, sort=None, axis=alt.Axis(grid=True)),
            color=alt.Color("table:N", scale=scale, title=None),
            shape=alt.Shape("table:N", scale=alt.Scale(domain=scale.domain, range=["circle", "diamond"]), title=None),
            tooltip=["site:N", "table:N", alt.Tooltip("gain:Q", format=".2g")],
        )
        .properties(width=640, height=alt.Step(34))
    )
    caption = (
        "What the rotation removes of the magnitude-only residual, against its null: tables with shuffled channels, "
        "searched exactly as hard. Only a trained table to the right of nearly all shuffled ones says anything about "
        "angles. A gain of zero is not drawn."
    )
    alternative = "share of the residual removed by the rotation, trained table and shuffled ones"
    return Figure(chart, caption, alternative, "What the rotation removes, beside its null")


def _site_picture(report: SiteReport) -> Figure:
    assert report.whole is not None
    drawn, null = report.whole.picture, report.null
    caption = f"{report.site.words}: stress {drawn.stress:.3f}; swept {drawn.sweep.net:.0f}° about the centroid, "
    caption += f"first to last folded {drawn.sweep.folded:.0f}°."
    if null:
        caption += f" Null ({null.words}): {null.mean.net:.0f} ± {null.std.net:.0f}° and {null.mean.folded:.0f}"
        caption += f" ± {null.std.folded:.0f}°."
    words = f"2-D picture of {report.site.words}"
    return Figure(_picture_chart(drawn, report.whole.layers), caption, f"{words} by layer", words)


def control_figure() -> Figure:
    """The picture of vectors that do not turn at all."""
    angle, drawn = pure_scaling_picture()
    caption = (
        f"Control: {len(drawn.points)} copies of one flat vector scaled 1 to 8 with 5% noise. Their true angles stay "
        f"under {angle:.1f}°, yet the picture sweeps {drawn.sweep.net:.0f}° about the centroid "
        f"(first to last folded {drawn.sweep.folded:.0f}°)."
    )
    chart = _picture_chart(drawn, tuple(range(len(drawn.points))))
    return Figure(chart, caption, "2-D picture of pure scaling", "Control: pure scaling")


def _picture_chart(drawn: Picture, layers: Sequence[int]) -> Any:
    import altair as alt

    rows = [{"x": x, "y": y, "layer": n} for (x, y), n in zip(drawn.points.tolist(), layers, strict=True)]
    reach = float(np.abs(drawn.points).max()) * 1.12 or 1.0
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:Q", title="first axis", scale=scale), y=alt.Y("y:Q", title="second axis", scale=scale)
    )
    path = base.mark_line(point=False, opacity=0.45, color=PALETTE["grey"]).encode(order="layer:Q")
    colour = alt.Color("layer:Q", scale=alt.Scale(scheme="viridis"), legend=alt.Legend(gradientLength=160))
    dots = base.mark_point(size=60, opacity=1).encode(color=colour, tooltip=["layer:Q"])
    centre = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}])).mark_point(shape="cross", size=90, color=PALETTE["wine"])
    ends = base.mark_text(dy=-10, fontSize=11).encode(text="layer:Q")
    ends = ends.transform_filter(f"datum.layer == {layers[0]} || datum.layer == {layers[-1]}")
    drawing = alt.layer(path, dots, centre.encode(x="x:Q", y="y:Q"), ends)
    return drawing.properties(width=270, height=270, usermeta=KEEP_SHAPE)  # one unit is as long on both axes


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def _spread_chart(report: SiteReport) -> Figure:
    """Quantiles of the gain over channels, by layer."""
    import altair as alt

    rows = []
    for row in report.site.rows:
        if row.values.size and np.isfinite(row.values).all():
            e = exponent(row.values)
            q = scaled(np.quantile(scaled(row.values, -e), _QUANTILES), e).tolist()
            low, high = float(row.values.min()), float(row.values.max())
            names = ("p5", "p25", "p50", "p75", "p95")
            rows.append({"layer": row.layer, "min": low, "max": high, **dict(zip(names, q, strict=True))})
    base = alt.Chart(alt.Data(values=rows)).encode(x=_layer_axis())
    colour = COLOURS.get(report.site.role, PALETTE["blue"])
    tips = [alt.Tooltip(f"{n}:Q", format=".3g") for n in ("layer", "min", "p5", "p50", "p95", "max")]
    wide = base.mark_area(opacity=0.18, color=colour).encode(y=alt.Y("p5:Q", title="gain"), y2="p95:Q")
    close = base.mark_area(opacity=0.3, color=colour).encode(y="p25:Q", y2="p75:Q")
    middle = base.mark_line(color=colour).encode(y="p50:Q", tooltip=tips)
    chart = alt.layer(wide, close, middle).properties(width=320, height=220)
    caption = f"{report.site.words}: median, middle half and middle nine tenths of the channels."
    alternative = f"quantiles of {report.site.words} gains over channels, by layer"
    return Figure(chart, caption, alternative, f"Spread of the {report.site.words} gains over channels")


#: Endings that name a picture which is not drawn here; any other name without .png is a folder's.
_OTHER_PICTURES = frozenset([".jpg", ".jpeg", ".svg", ".pdf", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".eps"])


def check_picture_path(path: str | os.PathLike[str]) -> None:
    """Raises InputError where `path` names a kind of picture that is not drawn."""
    if Path(path).suffix.lower() in _OTHER_PICTURES:
        raise InputError(f"cannot draw {path}: name a .png file (one picture) or a folder (one .png a chart)")


def save_pictures(inspections: Sequence[Inspection], path: str | os.PathLike[str]) -> list[Path]:
    """Draw the charts of `inspections`: one picture if `path` ends in .png, else a file a chart in that folder.

    Raises InputError for another kind of picture, or where it cannot write.
    """
    drawn = pictures(inspections, path)
    refuse_inputs(inspections, list(drawn))
    return [save_png(chart, file) for file, chart in drawn.items()]


def pictures(inspections: Sequence[Inspection], path: str | os.PathLike[str]) -> dict[Path, Any]:
    """What `save_pictures` draws: file -> chart. Raises InputError for another kind of picture."""
    check_picture_path(path)
    path = Path(path)
    if path.suffix.lower() == ".png":
        return {path: _overview(inspections)}
    labels = short_labels([i.label for i in inspections]) if len(inspections) > 1 else [""]
    drawn = [
        (f"{label}.{name}".lstrip("."), _alone(name, figure, inspection.label))
        for label, inspection in zip(labels, inspections, strict=True)
        for name, figure in charts(inspection).items()
    ]
    stems = file_names(name for name, _ in drawn)
    return {path / f"{stem}.png": chart for stem, (_, chart) in zip(stems, drawn, strict=True)}


def _overview(inspections: Sequence[Inspection]) -> alt.VConcatChart:
    """One picture: size, angle and error of one model, or the sizes of several by site."""
    import altair as alt

    if len(inspections) > 1:
        figures = comparison_charts(inspections)
    else:
        drawn = charts(inspections[0])
        figures = [drawn[name] for name in ("size", "angle", "error") if name in drawn]
    titled = [figure.chart.properties(title=figure.title) for figure in figures]
    stacked = alt.vconcat(*titled).resolve_scale(color="independent", shape="independent", strokeDash="independent")
    labels = [_brief(i.label) for i in inspections]
    title = alt.TitleParams(text="Norm gains by depth", subtitle=labels, fontSize=18, subtitleFontSize=13, offset=14)
    return stacked.properties(title=title)


def _alone(name: str, figure: Figure, label: str) -> Any:
    """`figure` with what a picture needs that stands alone: its title, its model, and for a 2-D picture its numbers
    and the control of pure scaling beside it."""
    import altair as alt

    if not name.startswith("picture-"):
        return figure.chart.properties(title=alt.TitleParams(text=figure.title, subtitle=_brief(label)))
    pair = [
        _without_usermeta(one.chart).properties(title=alt.TitleParams(text=one.title, subtitle=wrap(one.caption, 50)))
        for one in (figure, control_figure())
    ]
    beside = alt.hconcat(*pair, spacing=60).resolve_scale(color="independent", x="independent", y="independent")
    return beside.properties(title=alt.TitleParams(text=_brief(label), offset=10))


def _without_usermeta(chart: Any) -> Any:
    """A copy that may stand inside another chart."""
    import altair as alt

    inner = chart.copy()
    inner.usermeta = alt.Undefined
    return inner


def _brief(label: str, most: int = 80) -> str:
    """The end of a long label, which tells models apart."""
    return label if len(label) <= most else f"…{label[1 - most :]}"
