"""Charts of this project: one house theme, fixed colours, specifications that survive zeros and gaps.

An Altair chart is only a description. `embeddable` turns it into strict JSON for a page, `save_png` and
`save_svg` into a picture; all three apply the same theme and need neither a browser nor a network.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerrope.errors import InputError
from layerrope.files import PNG, SVG, keep_others, read_json, strict, unwritable, write_atomic, write_json

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.TopLevelMixin | dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"

# After Okabe and Ito's colour-blind-safe set ("Color universal design", 2008); black and yellow, which vanish
# on a dark or a light ground, are replaced by a grey and a wine red of middle lightness.
PALETTE = {
    "blue": "#2474b5",
    "vermilion": "#d55e00",
    "green": "#009e73",
    "purple": "#c06ba0",
    "sky": "#4aa8e0",
    "orange": "#d99400",
    "wine": "#a2395b",
    "grey": "#80868f",
}
SOLID, DASHED, DOTTED = [1, 0], [6, 3], [2, 2]
PATTERNS = (SOLID, DASHED, DOTTED, [10, 4], [8, 3, 2, 3], [4, 4])

# Scheme -> colour and stroke, the same in every chart and page.
SCHEME_STYLE: dict[str, tuple[str, list[int]]] = {
    "prenorm": ("grey", SOLID),
    "prenorm-scaledinit": ("grey", DASHED),
    "postnorm": ("orange", SOLID),
    "deepnorm": ("orange", DASHED),
    "keel": ("orange", DOTTED),
    "lns": ("sky", SOLID),
    "perinorm": ("green", SOLID),
    "rezero": ("wine", DASHED),
    "layerscale": ("wine", SOLID),
    "mixln": ("sky", DASHED),
    "hc": ("purple", SOLID),
    "mhc": ("purple", DASHED),
    "xhc": ("purple", DOTTED),
    "attnres": ("blue", SOLID),
    "layerrope": ("vermilion", SOLID),
    "layerrope-peri": ("vermilion", DASHED),
}

#: `usermeta` of a chart that keeps its own width on a page instead of taking the page's.
KEEP_SHAPE = {"layerrope": "keep shape"}

# What the ground, the words and the lines of a chart are drawn in.
INK = {
    "light": {"ground": "#ffffff", "text": "#1d2126", "soft": "#5b636d", "rule": "#dfe3e8"},
    "dark": {"ground": "#14171a", "text": "#e8eaed", "soft": "#a3abb5", "rule": "#343a41"},
}


def scheme_style(name: str) -> tuple[str, list[int]]:
    """(colour, dash pattern) of a scheme; a name outside the table keeps one colour chosen by its hash.

    `A+layerrope` takes A's colour, dotted.
    """
    if name in SCHEME_STYLE:
        colour, dash = SCHEME_STYLE[name]
        return PALETTE[colour], dash
    base = name.split("+")[0]
    if base in SCHEME_STYLE:
        return PALETTE[SCHEME_STYLE[base][0]], DOTTED
    colours = list(PALETTE.values())
    return colours[hashlib.sha256(name.encode()).digest()[0] % len(colours)], SOLID


def scheme_colours(names: Sequence[str]) -> alt.Scale:
    """The colour scale that gives every scheme in `names` its fixed colour."""
    import altair as alt

    return alt.Scale(domain=list(names), range=[scheme_style(name)[0] for name in names])


def _dashes(names: Sequence[str]) -> list[list[int]]:
    """The dash pattern of each name: a name of the table keeps its own, another takes one free at its colour."""
    looks = {name: scheme_style(name) for name in names if name in SCHEME_STYLE}
    for name in names:
        if name not in looks:
            colour, dash = scheme_style(name)
            free = [each for each in (dash, *PATTERNS) if (colour, each) not in looks.values()]
            looks[name] = (colour, free[0] if free else dash)
    return [looks[name][1] for name in names]


def scheme_channels(field: str, names: Sequence[str], title: str = "scheme") -> tuple[alt.Color, alt.StrokeDash]:
    """The colour and stroke-dash channels of a line chart whose column `field` holds scheme names.

    `alt.Chart(rows).mark_line().encode(x=..., y=..., color=color, strokeDash=dash)`; one legend for both.
    """
    import altair as alt

    dashes = alt.Scale(domain=list(names), range=_dashes(names))
    legend = alt.Legend(symbolType="stroke", title=title)
    return (
        alt.Color(f"{field}:N", scale=scheme_colours(names), legend=legend),
        alt.StrokeDash(f"{field}:N", scale=dashes, legend=legend),
    )


def theme(mode: str = "light") -> dict[str, Any]:
    """The Vega-Lite configuration of every chart here, for a "light" or a "dark" ground.

    Lines carry small points, so a run with a single point is still seen.
    """
    ink = INK[mode]
    lines = {"domainColor": ink["soft"], "tickColor": ink["soft"], "gridColor": ink["rule"]}
    words = {"labelColor": ink["soft"], "titleColor": ink["text"], "labelFontSize": 11, "titleFontSize": 12}
    on_top = {"titleAlign": "left", "titleAngle": 0, "titleX": 0, "titleY": -8, "titleBaseline": "bottom"}
    return {
        "background": ink["ground"],
        "font": FONT,
        "view": {"stroke": None, "continuousWidth": 640, "continuousHeight": 300},
        "axis": {**lines, **words, "titleFontWeight": "normal", "labelLimit": 220, "labelFlush": False},
        "axisY": on_top,
        "legend": {**words, "orient": "bottom", "labelLimit": 260, "symbolStrokeWidth": 3},
        "header": {**words, "titleFontWeight": 600},
        "title": {"color": ink["text"], "subtitleColor": ink["soft"], "anchor": "start", "fontSize": 14},
        "range": {"category": list(PALETTE.values()), "heatmap": {"scheme": "viridis"}},
        "mark": {"color": PALETTE["blue"]},
        "line": {"strokeWidth": 2, "strokeCap": "round", "point": {"size": 12, "filled": True, "opacity": 1}},
        "point": {"filled": True, "size": 45, "opacity": 0.9},
        "rule": {"color": ink["soft"]},
        "text": {"color": ink["text"], "fontSize": 11},
    }


def embeddable(chart: Chart) -> dict[str, Any]:
    """`chart` as a strict Vega-Lite specification with its data inside and no theme of its own.

    Non-finite numbers become null. A value that a logarithmic axis cannot show (zero or less) becomes null
    too, so the rest is still drawn. Raises InputError for a chart that names data by address: a page has no
    network.
    """
    spec = strict(chart if isinstance(chart, dict) else _to_dict(chart))
    for part in _dicts(spec):
        if isinstance(part.get("data"), dict) and "url" in part["data"]:
            raise InputError(f"a chart reads its data from {part['data']['url']}: give the values themselves")
    for field in {f for part in _dicts(spec) for f in _logarithmic(part)}:
        _hide_unpositive(spec, field)
    return spec


def _to_dict(chart: alt.TopLevelMixin) -> dict[str, Any]:
    import altair as alt

    with alt.data_transformers.enable("default", max_rows=None):
        spec = chart.to_dict()
    if getattr(chart, "config", alt.Undefined) is alt.Undefined:
        spec.pop("config", None)  # that one is altair's own theme
    return spec


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict inside `value`, outermost first, without entering the tables of data."""
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in {"datasets", "values"}:
                yield from _dicts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _dicts(inner)


def _logarithmic(part: dict[str, Any]) -> list[str]:
    """The data fields that `part` shows on a logarithmic scale."""
    encoding = part.get("encoding")
    channels = encoding.values() if isinstance(encoding, dict) else ()
    return [
        channel["field"]
        for channel in channels
        if isinstance(channel, dict)
        and isinstance(channel.get("scale"), dict)
        and channel["scale"].get("type") == "log"
        and isinstance(channel.get("field"), str)
        and "aggregate" not in channel
    ]


def _hide_unpositive(spec: dict[str, Any], field: str) -> None:
    tables = list(spec.get("datasets", {}).values())
    tables += [part["data"]["values"] for part in _dicts(spec) if "values" in (part.get("data") or {})]
    for row in (row for table in tables if isinstance(table, list) for row in table):
        value = row.get(field) if isinstance(row, dict) else None
        if isinstance(value, (int, float)) and not (value > 0 and math.isfinite(value)):
            row[field] = None


def save_png(chart: Chart, path: str | os.PathLike[str], scale: float = 2.0, mode: str = "light") -> Path:
    """Draw `chart` into the PNG file `path`, at `scale` pixels a unit.

    Raises InputError if it cannot write, or for a chart that names its data by address.
    """
    import vl_convert

    data = vl_convert.vegalite_to_png(
        embeddable(chart), vl_version=vega_lite_version(), scale=scale, config=theme(mode)
    )
    return write_atomic(path, data, over=PNG)


DRAWN = ".drawn.json"
"""Beside a report's pictures: the names of those that the report drew."""


def save_charts(charts: Mapping[str, Chart], folder: Path) -> list[Path]:
    """Draw every chart into `folder`/NAME.png, the whole set of a report, and remove what its last set had besides.

    Pictures of other names are someone else's and stay. Raises InputError if it cannot write.
    """
    for name in _drawn(folder) - charts.keys():
        _remove_picture(folder / f"{name}.png")
    if charts or (folder / DRAWN).exists():
        write_json(folder / DRAWN, sorted(charts))
    return [save_png(chart, folder / f"{name}.png") for name, chart in charts.items()]


def _drawn(folder: Path) -> set[str]:
    """The charts of the set drawn last; none where nothing sound says so."""
    with contextlib.suppress(InputError):
        found = read_json(folder / DRAWN)
        if isinstance(found, list):
            return {name for name in found if isinstance(name, str) and name == os.path.basename(name)}
    return set()


def _remove_picture(path: Path) -> None:
    """Unless something else has taken its place."""
    try:
        if path.is_file() and not path.is_symlink():
            keep_others(path, PNG)
            path.unlink()
    except InputError:
        return
    except OSError as error:
        raise unwritable(path, error) from error


def save_svg(chart: Chart, path: str | os.PathLike[str], mode: str = "light") -> Path:
    """Draw `chart` into the SVG file `path`. Raises InputError if it cannot write."""
    import vl_convert

    text = vl_convert.vegalite_to_svg(embeddable(chart), vl_version=vega_lite_version(), config=theme(mode))
    return write_atomic(path, text, over=SVG)


def vega_lite_version() -> str:
    """The Vega-Lite version that the installed altair writes, as "major.minor"."""
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
