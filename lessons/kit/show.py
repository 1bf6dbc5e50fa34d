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
    rows: Sequence[Mapping[str, Any]], x: str, y: str, by: str, *, log_x: bool = False, log_y: bool = False
) -> Any:
    """A line chart of `rows`, one line for each value of `by`, in the project's colours."""
    import altair as alt

    from layerrope.charts import PALETTE

    names = list(dict.fromkeys(str(row[by]) for row in rows))
    colours = [colour for name, colour in PALETTE.items() if name != "grey"]
    scale = alt.Scale(domain=names, range=colours[: len(names)])
    chart = alt.Chart(alt.Data(values=[dict(row) for row in rows])).mark_line(point=len(rows) / len(names) < 40)
    return chart.encode(
        x=alt.X(x, type="quantitative", scale=alt.Scale(type="log" if log_x else "linear", nice=not log_x)),
        y=alt.Y(y, type="quantitative", scale=alt.Scale(type="log" if log_y else "linear", zero=False)),
        color=alt.Color(
            by, type="nominal", scale=scale, title=None, legend=alt.Legend(orient="bottom", labelLimit=0, columns=2)
        ),
    ).properties(width=560, height=280)
