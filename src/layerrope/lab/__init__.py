"""The lab: one page that explains depth by sliders. It computes in the browser and needs no server and no network.

Five parts: one layer's gain, the stream of independent writes, the mirage of multidimensional scaling, the budget of
a training run, and runs. The arithmetic of the first four is this package's, written again in the scripts under
`assets/` and held to it by tests in a browser.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from layerrope.errors import InputError
from layerrope.files import PAGE, keep_others, write_atomic
from layerrope.lab import budget, measured, specs
from layerrope.lab.runs import runs_page
from layerrope.page import asset, chart_library, self_contained, themes
from layerrope.toy_stream import LEARNED

MOST_BYTES = 3 * 2**20
"""Size that a page may have: it is opened on phones."""
SCRIPTS = (
    *("ui", "panel", "charts", "theme", "address", "data"),
    *("gain", "stream", "mirage", "budget"),
    *("gain_part", "stream_part", "mirage_part", "budget_part", "begin"),
)
"""What the page runs, in order: its furniture, the arithmetic, the parts."""

__all__ = ["MOST_BYTES", "lab_page", "write_lab"]


def write_lab(
    path: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the lab page to `path`, whole or not at all.

    Args:
        path: the HTML file.
        run: folder of one run of this package; its gains come into the first and the third part.
        runs: folder of a comparison, a study or runs, for the last part; None shows the packaged sweep.

    Raises:
        InputError: a folder is not what it should be, the page would be larger than `MOST_BYTES`, or it cannot be
            written: `path` holds something else than a page.
    """
    keep_others(path, PAGE)  # before the work
    return write_atomic(path, lab_page(run, runs), over=PAGE)


def lab_page(run: str | os.PathLike[str] | None = None, runs: str | os.PathLike[str] | None = None) -> str:
    """The page that `write_lab` writes, as text."""
    found = None if run is None else measured.of_run(Path(run))
    body, charts = runs_page(None if runs is None else Path(runs)).content()
    before, after = _asset("lab.html").split("<!-- runs -->")
    text = self_contained(
        "Depth lab",
        [before, *body, after],
        style=asset("page.css") + _asset("lab.css"),
        data={"themes": themes(), "charts": specs.live(found is not None), "lab": _numbers(found), **charts},
        scripts=[chart_library(), *(_asset(f"{name}.js") for name in SCRIPTS)],
    )
    if len(text.encode()) > MOST_BYTES:
        raise InputError(
            f"the page would have {len(text.encode()) / 2**20:.1f} MB, more than {MOST_BYTES / 2**20:g}: "
            "give fewer runs with --runs"
        )
    return text


def _numbers(run: dict[str, Any] | None) -> dict[str, Any]:
    """What the page's scripts compute from."""
    return {
        "smollm2": measured.packaged(),
        "run": run,
        "sites": measured.KNOWN_SITES,
        "learned": [asdict(site) for site in LEARNED],
        "budget": budget.document(),
    }


def _asset(name: str) -> str:
    return (resources.files("layerrope.lab") / "assets" / name).read_text(encoding="utf-8")
