"""The specifications of the page's live charts: their rows come from the page's own scripts, by the names used here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerrope.charts import DASHED, PALETTE, SOLID, embeddable

if TYPE_CHECKING:
    import altair as alt

SIGNS = {"both positive": PALETTE["blue"], "one negative": PALETTE["vermilion"]}
SCHEDULES = {
    "Pre-Norm": (PALETTE["grey"], SOLID),
    "power law": (PALETTE["vermilion"], SOLID),
    "learned at 1.3B": (PALETTE["wine"], DASHED),
    "geometric": (PALETTE["blue"], SOLID),
}
SWEEPS = {"true angle": (PALETTE["blue"], SOLID), "swept in the picture": (PALETTE["vermilion"], SOLID)}
PARTS = {
    "embedding": PALETTE["grey"],
    "attention": PALETTE["blue"],
    "attention scores": PALETTE["sky"],
    "MLP": PALETTE["green"],
    "norms": PALETTE["orange"],
    "head": PALETTE["purple"],
}
SMALL = {"point": False}


def live(run: bool) -> dict[str, Any]:
    """Every live chart by its name, as the page reads them; with a `run`, charts by layer have room for it."""
    made = {
        "pairs": pairs(),
        "channels": channels(),
        "sizes": by_layer("RMS of the gain", run, log=True),
        "turns": by_layer("degrees from layer 0's gain", run, log=False),
        "updates": by_block("relative update"),
        "variances": by_block("variance of the stream"),
        "picture": picture(),
        "swept": swept(),
        "shares": shares(),
        "added": added(),
    }
    return {name: embeddable(chart) for name, chart in made.items()}


def _rows(name: str) -> alt.Chart:
    import altair as alt

    return alt.Chart(alt.NamedData(name=name))


def _zero(channel: str) -> alt.Chart:
    """A line where the channel is zero."""
    import altair as alt

    base = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(strokeWidth=1)
    return base.encode(x="zero:Q") if channel == "x" else base.encode(y="zero:Q")


def _below_zero(x: Any, y: Any) -> alt.Chart:
    """The three quarters of the plane where a coordinate is negative. Rows: `shade` (x, to_x, y, to_y)."""
    shade = _rows("shade").mark_rect(clip=True, opacity=0.09, color=PALETTE["vermilion"])
    return shade.encode(x=x, x2="to_x:Q", y=y, y2="to_y:Q")


def _number(name: str, value: float) -> Any:
    """A number that the page's script sets."""
    import altair as alt

    return alt.param(name=name, value=value)


def _within(name: str) -> Any:
    """A linear scale from -name to name, both from the page's script."""
    import altair as alt

    low, high = alt.ExprRef(expr=f"-{name}"), alt.ExprRef(expr=name)
    return alt.Scale(domainMin=low, domainMax=high, zero=False, nice=False)  # type: ignore[arg-type]


def _kinds(field: str, known: dict[str, tuple[str, list[int]]], title: str | None = None) -> tuple[Any, Any]:
    """Colour and stroke of the lines in `known`, with one legend."""
    import altair as alt

    colours = alt.Scale(domain=list(known), range=[colour for colour, _ in known.values()])
    dashes = alt.Scale(domain=list(known), range=[dash for _, dash in known.values()])
    legend = alt.Legend(title=title, symbolType="stroke")
    return alt.Color(f"{field}:N", scale=colours, legend=legend), alt.StrokeDash(
        f"{field}:N", scale=dashes, legend=legend
    )


def _sign() -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(SIGNS), range=list(SIGNS.values()))
    return alt.Color("sign:N", scale=scale, legend=alt.Legend(title=None, symbolType="circle"))


# ----------------------------------------------------------------------------------------------------- one layer's gain
def pairs() -> alt.TopLevelMixin:
    """Channel pairs in the plane. Rows: `pairs` (pair, x, y, sign), `trail`, `ring` (layer, x, y), `start` (x, y)."""
    import altair as alt

    x = alt.X("x:Q", scale=_within("reach"), title="first channel of the pair", axis=alt.Axis(tickCount=5, grid=False))
    y = alt.Y("y:Q", scale=_within("reach"), title="second channel of the pair", axis=alt.Axis(tickCount=5, grid=False))
    cross = [_zero("x"), _zero("y")]
    trail = _rows("trail").mark_line(point=False, strokeWidth=1, opacity=0.7, color=PALETTE["grey"])
    ring = _rows("ring").mark_line(point=False, strokeWidth=1, strokeDash=[3, 4], opacity=0.8, color=PALETTE["grey"])
    start = _rows("start").mark_point(filled=False, size=110, color=PALETTE["grey"], strokeWidth=1.5)
    dots = _rows("pairs").mark_point(size=alt.ExprRef(expr="dot"), opacity=0.85)  # type: ignore[arg-type]
    words = [alt.Tooltip("pair:Q"), *(alt.Tooltip(f"{c}:Q", format=".4f") for c in ("x", "y"))]
    layers = [
        _below_zero(x, y),
        *cross,
        ring.encode(x=x, y=y, order="layer:Q"),
        trail.encode(x=x, y=y, order="layer:Q"),
        start.encode(x=x, y=y),
        dots.encode(x=x, y=y, color=_sign(), tooltip=words),
    ]
    return alt.layer(*layers).add_params(_number("reach", 1.5), _number("dot", 40))


def channels() -> alt.TopLevelMixin:
    """The gain of every channel. Rows: `channels` (channel, gain, sign, place)."""
    import altair as alt

    x = alt.X("channel:Q", title="channel", scale=alt.Scale(nice=False, padding=6))
    y = alt.Y("gain:Q", title="gain")
    places = alt.Scale(domain=["first of its pair", "second of its pair"], range=["circle", "triangle-up"])
    shape = alt.Shape("place:N", scale=places, legend=None)
    words = [alt.Tooltip("channel:Q"), alt.Tooltip("gain:Q", format=".4f")]
    dots = _rows("channels").mark_point(size=alt.ExprRef(expr="dot"), opacity=0.85)  # type: ignore[arg-type]
    return alt.layer(_zero("y"), dots.encode(x=x, y=y, color=_sign(), shape=shape, tooltip=words)).add_params(
        _number("dot", 40)
    )


def by_layer(title: str, run: bool, log: bool) -> alt.TopLevelMixin:
    """A quantity of the law by layer beside measured ones. Rows: `law` and `measured` (layer, value, who), `now`."""
    import altair as alt

    x = alt.X("layer:Q", title="layer + 1", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(tickCount=6))
    names = ["this law", "SmolLM2 attention read", "SmolLM2 MLP read", "the run"]
    upright = alt.Scale(type="log", nice=False, padding=8) if log else alt.Scale(zero=True)
    y = alt.Y("value:Q", title=title, scale=upright, axis=alt.Axis(tickCount=6, format="~g" if log else "~r"))
    scale = alt.Scale(domain=names[: 3 + run], range=[PALETTE[c] for c in ("vermilion", "blue", "green", "purple")])
    colour = alt.Color("who:N", scale=scale, legend=alt.Legend(title=None, symbolType="circle"))
    words = ["who:N", alt.Tooltip("layer:Q", title="layer + 1"), alt.Tooltip("value:Q", format=".4f")]
    law = _rows("law").mark_line(point=False).encode(x=x, y=y, color=colour)
    dots = _rows("measured").mark_point(size=26).encode(x=x, y=y, color=colour, tooltip=words)
    now = _rows("now").mark_point(size=110, filled=False, strokeWidth=2).encode(x=x, y=y, color=colour, tooltip=words)
    return alt.layer(dots, law, now)


# ----------------------------------------------------------------------------------------------------------- the stream
def by_block(title: str) -> alt.TopLevelMixin:
    """A quantity of the stream by block, a line a schedule. Rows: `blocks` (block, value, schedule)."""
    import altair as alt

    colour, dash = _kinds("schedule", SCHEDULES)
    x = alt.X("block:Q", title="block", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(tickCount=6))
    y = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=alt.Axis(tickCount=6, format="~g"),
    )
    words = ["schedule:N", "block:Q", alt.Tooltip("value:Q", format=".4f")]
    lines = _rows("blocks").mark_line(point=False).encode(x=x, y=y, color=colour, strokeDash=dash)
    ends = _rows("ends").mark_point(size=45).encode(x=x, y=y, color=colour, tooltip=words)
    return alt.layer(lines, ends)


# ----------------------------------------------------------------------------------------------------------- the mirage
def picture() -> alt.TopLevelMixin:
    """Vectors in two dimensions about their centroid. Rows: `points` (layer, x, y)."""
    import altair as alt

    bare = alt.Axis(labels=False, ticks=False, tickCount=5)
    x = alt.X("x:Q", scale=_within("reach"), title="first axis", axis=bare)
    y = alt.Y("y:Q", scale=_within("reach"), title="second axis", axis=bare)
    cross = [_zero("x"), _zero("y")]
    line = (
        _rows("points").mark_line(point=False, strokeWidth=1, color=PALETTE["grey"]).encode(x=x, y=y, order="layer:Q")
    )
    colour = alt.Color(
        "layer:Q",
        scale=alt.Scale(scheme=alt.SchemeParams(name="viridis", extent=[0.2, 0.95])),
        legend=alt.Legend(title="vector", titleOrient="left", gradientLength=120, gradientThickness=8),
    )
    words = ["layer:Q", alt.Tooltip("x:Q", format=".4f"), alt.Tooltip("y:Q", format=".4f")]
    dots = _rows("points").mark_point(size=60, opacity=1).encode(x=x, y=y, color=colour, tooltip=words)
    return alt.layer(*cross, line, dots).add_params(_number("reach", 1.0))


def swept() -> alt.TopLevelMixin:
    """Angles from the first vector. Rows: `angles` (layer, value, kind), `null` (at, low, high)."""
    import altair as alt

    colour, dash = _kinds("kind", SWEEPS)
    x = alt.X("layer:Q", title="vector", scale=alt.Scale(nice=False, padding=10))
    y = alt.Y("value:Q", title="degrees from the first vector")
    lines = _rows("angles").mark_line(point=False).encode(x=x, y=y, color=colour, strokeDash=dash)
    bar = _rows("null").mark_rule(strokeWidth=6, opacity=0.4, color=PALETTE["grey"])
    return alt.layer(
        bar.encode(x=alt.X("at:Q"), y=alt.Y("low:Q"), y2="high:Q", tooltip=["low:Q", "high:Q"]),
        lines,
    )


# ----------------------------------------------------------------------------------------------------------- the budget
def shares() -> alt.TopLevelMixin:
    """What parameters and FLOPs are spent on. Rows: `shares` (of, part, amount, order)."""
    import altair as alt

    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())),
        legend=alt.Legend(title=None, symbolType="square"),
    )
    x = alt.X("amount:Q", stack="normalize", title="share of the whole", axis=alt.Axis(format="%", tickCount=5))
    y = alt.Y("of:N", sort=["parameters", "FLOPs"], title=None, axis=alt.Axis(titleX=0))
    words = ["of:N", "part:N", alt.Tooltip("amount:Q", format=".4s")]
    return _rows("shares").mark_bar(height=26).encode(x=x, y=y, color=colour, order="order:Q", tooltip=words)


def added() -> alt.TopLevelMixin:
    """Parameters beyond Pre-Norm's by scheme. Rows: `added` (scheme, parameters, sign)."""
    import altair as alt

    colour = alt.Color(
        "sign:N",
        scale=alt.Scale(domain=["more", "fewer"], range=[PALETTE["vermilion"], PALETTE["blue"]]),
        legend=None,
    )
    x = alt.X(
        "parameters:Q",
        title="parameters beyond Pre-Norm's",
        scale=alt.Scale(type="symlog", constant=1000),
        axis=alt.Axis(values=[-1e7, -1e5, 0, 1e5, 1e7, 1e9], labelExpr="format(datum.value, '~s')"),
    )
    y = alt.Y("scheme:N", sort=None, title=None, axis=alt.Axis(titleX=0))
    return _rows("added").mark_bar(height=12).encode(x=x, y=y, color=colour, tooltip=["scheme:N", "parameters:Q"])
