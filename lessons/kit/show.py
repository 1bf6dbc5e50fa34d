"""What a lesson shows beside prose: words with numbers in them, tables, charts, verdicts, and solutions behind a click.

Everything here knows its own Markdown, so that one object serves the notebook and the page under docs/lessons. marimo is
imported where something is displayed, so the checks run without it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Words:
    """A paragraph of Markdown made from numbers."""

    text: str

    @property
    def markdown(self) -> str:
        return textwrap.dedent(self.text).strip()

    def _display_(self) -> Any:
        import marimo as mo

        return mo.md(self.markdown)


@dataclass(frozen=True)
class Table:
    """Rows of one shape, as a Markdown table; floats with `digits` decimals."""

    rows: Sequence[Mapping[str, Any]]
    digits: int = 3

    @property
    def markdown(self) -> str:
        names = list(self.rows[0])
        lines = [names, ["---"] * len(names), *([self._cell(row[name]) for name in names] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _cell(self, value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.{self.digits}f}" if abs(value) < 1e4 else f"{value:.3g}"
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    def _display_(self) -> Any:
        import marimo as mo

        return mo.md(self.markdown)


@dataclass(frozen=True)
class Verdict:
    """What a check says of an answer: right (True), wrong (False), or not answered yet (None)."""

    right: bool | None
    says: str

    @property
    def markdown(self) -> str:
        mark = {True: "**Right.**", False: "**Not yet.**", None: "**Your turn.**"}[self.right]
        return f"> {mark} {self.says}"

    def _display_(self) -> Any:
        import marimo as mo

        kind = {True: "success", False: "warn", None: "neutral"}[self.right]
        return mo.callout(mo.md(self.markdown.removeprefix("> ")), kind=kind)


@dataclass(frozen=True)
class Solution:
    """A worked answer, closed until it is asked for: words, and the code that the tests hold against the check."""

    words: str
    code: Callable[..., Any] | None = None

    @property
    def text(self) -> str:
        words = textwrap.dedent(self.words).strip()
        if self.code is None:
            return words
        return f"{words}\n\n```python\n{inspect.getsource(self.code).strip()}\n```"

    @property
    def markdown(self) -> str:
        return f'<details markdown="1">\n<summary>Solution</summary>\n\n{self.text}\n\n</details>'

    def _display_(self) -> Any:
        import marimo as mo

        return mo.accordion({"Solution": mo.md(self.text)})


def yours(says: str) -> Verdict:
    """An exercise that has not been answered."""
    return Verdict(None, says)


def wrong(says: str) -> Verdict:
    """An answer with a mistake, and what the mistake is."""
    return Verdict(False, says)


def right(says: str) -> Verdict:
    """An answer that holds."""
    return Verdict(True, says)


def answer_of(f: Callable[..., Any], *args: Any, shape: tuple[int, ...] | None = None) -> NDArray[np.float64] | Verdict:
    """What a learner's `f` gives, as an array; a verdict where it gives nothing, no numbers, another shape, or stops."""
    try:
        found = f(*args)
        if found is None or found is Ellipsis:
            return yours("The function returns nothing yet.")
        answer = np.asarray(found, dtype=np.float64)
    except Exception as error:  # a learner's function may raise anything
        return wrong(f"Your function stopped with {type(error).__name__}: {error}")
    if shape is not None and answer.shape != shape:
        return wrong(f"{f'The shape {shape}' if shape else 'One number'} is asked for; this has shape {answer.shape}.")
    return answer


def lines(
    rows: Sequence[Mapping[str, Any]],
    x: str,
    y: str,
    by: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    dashed: Sequence[str] = (),
    dots: Sequence[str] = (),
) -> Any:
    """A line chart of `rows`, one line for each value of `by`, in the project's colours.

    `dashed` lie over others; `dots` are points without a line, the first in the colour of the first line, and so on.
    """
    import altair as alt

    from layerrope.charts import PALETTE

    names = list(dict.fromkeys(str(row[by]) for row in rows))
    drawn = [name for name in names if name not in dots]
    colours = [colour for name, colour in PALETTE.items() if name != "grey"]
    coloured = dict(zip(drawn, colours, strict=False)) | dict(zip(dots, colours, strict=False))
    scale = alt.Scale(domain=names, range=[coloured[name] for name in names])
    dashes = alt.Scale(domain=names, range=[[5, 5] if name in dashed else [1, 0] for name in names])
    legend = alt.Legend(orient="bottom", labelLimit=0, columns=2, columnPadding=28, symbolType="circle")
    whole = all(isinstance(row[x], int) for row in rows)
    chart = alt.Chart(alt.Data(values=[dict(row) for row in rows])).encode(
        x=alt.X(
            x,
            type="quantitative",
            scale=alt.Scale(type="log" if log_x else "linear", nice=not log_x),
            axis=alt.Axis(tickMinStep=1 if whole else 0),
        ),
        y=alt.Y(y, type="quantitative", scale=alt.Scale(type="log" if log_y else "linear", zero=False)),
        color=alt.Color(by, type="nominal", scale=scale, title=None, legend=legend),
    )
    few = not dashed and not dots and len(rows) / len(names) < 40
    dash = alt.StrokeDash(by, type="nominal", scale=dashes, legend=None)
    line = chart.mark_line(point=few).encode(strokeDash=dash)
    if dots:
        kept, left = alt.FieldOneOfPredicate(by, drawn), alt.FieldOneOfPredicate(by, list(dots))
        line = alt.layer(line.transform_filter(kept), chart.mark_point(size=45).transform_filter(left))
    return line.properties(width=560, height=280, description=f"{y} against {x} by {by}")


def planes(rows: Sequence[Mapping[str, Any]], by: str) -> Any:
    """Paths of points x, y in [-1, 1], coloured by `layer`: a square for each value of `by`, one scale for all."""
    import altair as alt

    names = list(dict.fromkeys(str(row[by]) for row in rows))
    ends = alt.Scale(domain=[-1, 1])
    axis = alt.Axis(values=[-1, 0, 1], format=".0f")
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=None, scale=ends, axis=axis), y=alt.Y("y:Q", title=None, scale=ends, axis=axis)
    )
    path = base.mark_line(color="#8a8f98", strokeWidth=1, point=False).encode(order="layer:Q")
    colour = alt.Color("layer:Q", scale=alt.Scale(scheme="viridis"), legend=alt.Legend(orient="bottom"))
    points = base.mark_point(filled=True, size=40, opacity=1).encode(color=colour)
    squares = alt.layer(path, points).properties(width=180, height=180)
    return squares.facet(
        alt.Column(by, type="nominal", sort=names, title=None), data=alt.Data(values=[dict(row) for row in rows])
    ).properties(description=f"points of the plane in the order of layers, by {by}")
