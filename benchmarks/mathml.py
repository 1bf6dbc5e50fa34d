"""Set the site's formulas as MathML while the pages are built: browsers draw it without a script, a font or a network.

An extension of Python-Markdown, named in zensical.toml. `pymdownx.arithmatex` has marked the formulas by then.
"""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

MARKED = re.compile(r'(<(div|span) class="arithmatex">)\\([(\[])(.*?)\\[)\]](</\2>)', re.DOTALL)


class MathML(Postprocessor):
    """From `<span class="arithmatex">\\(x\\)</span>` to the same with MathML inside."""

    def run(self, text: str) -> str:
        return MARKED.sub(set_formula, text)


def set_formula(found: re.Match[str]) -> str:
    """The mark with its TeX as MathML; raises latex2mathml's errors on TeX that is none."""
    start, _, kind, tex, end = found.groups()
    return start + convert(unescape(tex), display="block" if kind == "[" else "inline") + end


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.postprocessors.register(MathML(md), "mathml", 0)


def makeExtension(**settings: object) -> Formulas:
    return Formulas(**settings)
