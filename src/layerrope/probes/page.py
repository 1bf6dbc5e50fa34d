"""What probes found, as a page, as pictures, and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerrope.charts import save_charts
from layerrope.comparing.charts import Figure
from layerrope.files import write_json
from layerrope.page import Page
from layerrope.probes.charts import Found, figures, left_out
from layerrope.probes.suite import PROBES

HEADINGS = {
    "stream": "The stream",
    "update": "What sublayers write",
    "angle": "Angles",
    "loss-change": "Layers left out and exchanged",
    "lens": "Predictions on the way",
    "layer-work": "What a layer does",
    "gradient": "Gradients",
    "collapse": "Tokens",
    "gains": "Gains",
}


LEGEND = (
    "Last update: relative update of the last MLP. Last angle: angular distance across the last layer. Least missed: "
    "the layer without which the loss changes least upwards, and that change in nats. Swaps: mean change of the loss "
    "over layers exchanged with their neighbour, as a share of the loss. Useful: share of layers that an affine map "
    "cannot replace within 10% of the loss. A dash: not measured, or not to be compared with the other models."
)


def write(found: Found, folder: Path, html: bool = True, png: bool = True) -> list[Path]:
    """Write probe.json, and as asked probe.html and charts/*.png, into `folder`.

    Raises:
        InputError: the folder cannot be written.
    """
    made = figures(found) if html or png else []
    paths = [write_json(folder / "probe.json", list(found.values()))]
    paths += [page(found, made).write(folder / "probe.html")] if html else []
    paths += save_charts({figure.name: figure.chart for figure in made}, folder / "charts") if png else []
    return paths


def page(found: Found, made: Sequence[Figure]) -> Page:
    """The whole page."""
    shown = Page("Layers probed", f"{', '.join(found)}: what each layer does to the stream, by depth")
    shown.table(summary(found), "Models, and what stands out").text(LEGEND)
    for figure in made:
        if figure.name in HEADINGS:
            shown.heading(HEADINGS[figure.name])
        _add(shown, figure)
    shown.heading("What does not compare").table(
        apart_rows(found), "Numbers not to be set beside those of other schemes"
    )
    return shown.heading("Cost").table(cost_rows(found), "Seconds on this machine, and in evaluations of the same text")


def _add(shown: Page, figure: Figure) -> None:
    if not figure.panels:
        shown.chart(figure.chart, figure.caption, figure.alt)
        return
    for start in range(0, len(figure.panels), 2):
        shown.charts(figure.panels[start : start + 2])
    shown.text(figure.caption)


# ------------------------------------------------------------------------------------------------------------ tables
def summary(found: Found) -> list[dict[str, Any]]:
    """One row a model: what it is, on how much text, its loss, and one number of most probes."""
    rows = [{"model": label, **_facts(document), **_headline(document["probes"])} for label, document in found.items()]
    for column, field in (("last update", "update.ratio"), ("last angle", "angle.neighbour")):
        apart = left_out(found, field)
        rows = [row | {column: None} if row["model"] in apart and column in row else row for row in rows]
    return rows


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": document["n_layer"],
        "tokens": document["tokens"],
        "loss": document["loss"],
    }


def _headline(probes: Mapping[str, Any]) -> dict[str, Any]:
    """The last layer's relative update (MLP) and angle, and where the layer that matters least stands."""
    rows: dict[str, Any] = {}
    if "update" in probes:
        rows["last update"] = probes["update"]["ratio"][-1]
    if "angle" in probes:
        rows["last angle"] = probes["angle"]["neighbour"][-1]
    if "drop" in probes:
        change = probes["drop"]["change"]
        least = min(range(len(change)), key=change.__getitem__)
        rows["least missed"] = f"{least} ({change[least]:+.4f})"
    if "swap" in probes:
        rows["swaps"] = probes["swap"]["permutation_score"]
    if "affine" in probes:
        rows["useful"] = probes["affine"].get("useful")
    return rows


def apart_rows(found: Found) -> list[dict[str, str]]:
    """One row a model and reason: which of its numbers do not compare with other schemes."""
    rows: list[dict[str, str]] = []
    for label, document in found.items():
        apart = document["not_comparable"]
        for why in dict.fromkeys(apart.values()):
            fields = ", ".join(field for field, reason in apart.items() if reason == why)
            rows.append({"model": label, "numbers": fields, "why": why})
    return rows


def cost_rows(found: Found) -> list[dict[str, Any]]:
    """What each probe cost, summed over the models."""
    once = sum(document["pass_seconds"] for document in found.values())
    spent = {name: sum(d["seconds"].get(name, 0.0) for d in found.values()) for name in PROBES}
    ran = [name for name in PROBES if any(name in d["seconds"] for d in found.values())]
    return [
        {"probe": name, "what": PROBES[name].gloss, "seconds": spent[name], "evaluations": spent[name] / once}
        for name in ran
    ]
