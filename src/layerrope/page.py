"""One self-contained HTML page from blocks: words, tables and interactive charts, without any network.

The page carries its own libraries, shows light or dark as the reader's system asks, and forbids itself every
connection by a Content-Security-Policy in which only its own two scripts, known by their hash, may run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from layerrope.charts import (
    KEEP_SHAPE,
    PALETTE,
    embeddable,
    save_png,
    save_svg,
    scheme_channels,
    scheme_colours,
    scheme_style,
    theme,
    vega_lite_version,
)
from layerrope.files import PAGE, strict, write_atomic

if TYPE_CHECKING:
    import polars as pl

    from layerrope.charts import Chart

    Rows = pl.DataFrame | Sequence[Mapping[str, Any]]

__all__ = [
    "KEEP_SHAPE",
    "PALETTE",
    "Page",
    "json_script",
    "save_png",
    "save_svg",
    "scheme_channels",
    "scheme_colours",
    "scheme_style",
    "show",
    "theme",
]

MISSING = "–"


class Page:
    """A page under construction; every method adds a block and returns the page.

    ```python
    Page("Two runs").text("The second is better.").table(rows, "Final losses").write("report.html")
    ```
    All text is escaped: names from a file or a model card cannot become markup.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self._body: list[str] = []
        self._specs: list[dict[str, Any]] = []

    def heading(self, text: str, level: int = 2) -> Self:
        """A heading of `level` 2 to 4 (1 is the page's title)."""
        level = min(max(level, 2), 4)
        return self._add(f"<h{level}>{_esc(text)}</h{level}>")

    def text(self, *paragraphs: str) -> Self:
        """Paragraphs of plain words."""
        return self._add(*(f"<p>{_esc(p)}</p>" for p in paragraphs))

    def note(self, text: str) -> Self:
        """A remark set apart: a caveat, or what a chart does not show."""
        return self._add(f'<p class="note">{_esc(text)}</p>')

    def bullets(self, items: Iterable[str]) -> Self:
        """An unordered list of short texts."""
        return self._add("<ul>" + "".join(f"<li>{_esc(item)}</li>" for item in items) + "</ul>")

    def code(self, text: str) -> Self:
        """Text in the type of a terminal, lines kept."""
        return self._add(f"<pre><code>{_esc(text)}</code></pre>")

    def table(self, rows: Rows, caption: str = "", digits: int = 4, folded: bool = False) -> Self:
        """A table from a polars frame or a sequence of mappings; it scrolls inside itself when too wide.

        Numbers are shown to `digits` significant digits, missing and non-finite ones as a dash. With `folded`
        only the caption shows until the reader opens it.
        """
        inner = _table(rows, caption, digits, folded)
        if folded:
            return self._add(f"<details><summary>{_esc(caption or 'Table')}</summary>{inner}</details>")
        return self._add(inner)

    def chart(self, chart: Chart, caption: str, alt: str) -> Self:
        """An interactive chart, as wide as the page; `alt` says in words what it shows.

        Raises InputError for a chart that names its data by address.
        """
        return self._add(self._figure(chart, caption, alt))

    def charts(self, figures: Iterable[tuple[Chart, str, str]]) -> Self:
        """Several (chart, caption, alt) side by side, one below the other where the page is narrow."""
        return self._add('<div class="grid">', *(self._figure(*figure) for figure in figures), "</div>")

    def html(self) -> str:
        """The whole page."""
        body, specs = self.content()
        subtitle = f'<p class="subtitle">{_esc(self.subtitle)}</p>' if self.subtitle else ""
        return self_contained(
            self.title,
            [f"<main><header><h1>{_esc(self.title)}</h1>{subtitle}</header>", *body, "</main>"],
            style=asset("page.css"),
            data={"themes": themes(), **specs} if specs else {},
            scripts=[chart_library(), asset("page.js")] if specs else [],
        )

    def content(self) -> tuple[list[str], dict[str, Any]]:
        """The blocks' markup, and by name the specifications of the charts that they leave room for."""
        return list(self._body), {f"spec-{i}": spec for i, spec in enumerate(self._specs)}

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to `path`, whole or not at all. Raises InputError if it cannot."""
        return write_atomic(path, self.html(), over=PAGE)

    def _add(self, *blocks: str) -> Self:
        self._body.extend(blocks)
        return self

    def _figure(self, chart: Chart, caption: str, alt: str) -> str:
        number = len(self._specs)
        self._specs.append(_responsive(embeddable(chart)))
        return (
            f'<figure><div class="chart" id="chart-{number}" role="img" aria-label="{_esc(alt)}">'
            f"<noscript>{_esc(alt)}</noscript></div><figcaption>{_esc(caption)}</figcaption></figure>"
        )


def self_contained(
    title: str, body: Iterable[str], *, style: str, data: Mapping[str, Any], scripts: Sequence[str]
) -> str:
    """A whole HTML page with everything inside, which may fetch, send and run nothing else.

    Args:
        title: plain words.
        body: markup, trusted as it is: escape what comes from outside.
        style: a style sheet.
        data: JSON data by the id under which a script finds it; any text in it is safe.
        scripts: what the page runs, in order; only these may.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_esc(title)}</title>",
            f"<style>{style}</style></head>",
            "<body>",
            *body,
            *(json_script(name, value) for name, value in data.items()),
            *(f"<script>{part}</script>" for part in scripts),
            "</body></html>",
            "",
        ]
    )


def themes() -> dict[str, dict[str, Any]]:
    """The configuration of every chart, by mode."""
    return {mode: theme(mode) for mode in ("light", "dark")}


def show(value: Any, digits: int = 4) -> str:
    """`value` as a table shows it: `digits` significant digits, a dash where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value, digits)
    if isinstance(value, (list, tuple)):
        return ", ".join(show(v, digits) for v in value)
    return str(value)


def _number(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 10 ** max(digits, 6):
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(decimals, 0)}f}"


def json_script(name: str, value: Any) -> str:
    """A `<script type="application/json">` block holding `value`, safe whatever text is inside it."""
    text = json.dumps(strict(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{_esc(name)}">{safe}</script>'


def _esc(text: Any) -> str:
    return html.escape(str(text), quote=True).replace("\x00", "\ufffd")


def _table(rows: Rows, caption: str, digits: int, folded: bool) -> str:
    columns, records = _records(rows)
    numeric = {c for c in columns if any(_is_number(r.get(c)) for r in records)}
    numeric = {c for c in numeric if all(r.get(c) is None or _is_number(r.get(c)) for r in records)}
    short = {c for c in columns if all(len(show(r.get(c), digits)) <= 32 for r in records)}
    align = {c: ' class="n"' if c in numeric else ' class="s"' if c in short else "" for c in columns}
    head = "".join(f'<th scope="col"{align[c]}>{_esc(c)}</th>' for c in columns)
    lines = [
        "<tr>" + "".join(f"<td{align[c]}>{_esc(show(r.get(c), digits))}</td>" for c in columns) + "</tr>"
        for r in records
    ]
    title = f"<caption><span>{_esc(caption)}</span></caption>" if caption and not folded else ""
    label = _esc(caption or "table")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _records(rows: Rows) -> tuple[list[str], list[Mapping[str, Any]]]:
    if not isinstance(rows, Sequence):
        return list(rows.columns), list(rows.iter_rows(named=True))
    records = list(rows)
    return list(dict.fromkeys(key for row in records for key in row)), records


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _responsive(spec: dict[str, Any]) -> dict[str, Any]:
    """`spec` with the width of its figure, where it is one plot; grids of plots keep theirs and scroll."""
    if ("mark" not in spec and "layer" not in spec) or spec.get("usermeta") == KEEP_SHAPE:
        return spec
    if any(channel in spec.get("encoding", {}) for channel in ("row", "column", "facet")):
        return spec
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be fetched, sent or framed; only `scripts` may run, and none may compile text to code."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{h}'" for h in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'none'; form-action 'none'; base-uri 'none'"
    )


@functools.cache
def chart_library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, as vl-convert bundles them."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite_version())
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("\r", "")


@functools.cache
def asset(name: str) -> str:
    """A file of this package's page assets, as text."""
    return (resources.files("layerrope") / "assets" / name).read_text(encoding="utf-8")
