"""From a comparison on the bundled digits to this record.

The runs (resumable; the same command continues them) are those of the command in README.md, with `--out runs/digits`.
Then, from the root of the repository:

    python results/digits/record.py runs/digits
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerrope.comparing.record import Purpose, bullets, markdown, opening, portable
from layerrope.comparing.report import made_with, version_lines
from layerrope.vision.compare import VisionRun
from layerrope.vision.report import CAPTION, findings, ranked, shown_rows, table_of

HERE = Path(__file__).parent
PURPOSE = Purpose(
    title="Every scheme on handwritten digits",
    question=(
        "Which depth schemes learn fastest in a Vision Transformer of twelve layers, each at its own learning rate?"
    ),
    doubt=(
        "Rates further out, since many schemes are best at the highest tried; more than three seeds; training to the"
        " end instead of a few epochs, where a scheme that starts slowly cannot show what it ends at; images large"
        " enough that twelve layers are needed. The rate is chosen by the loss on the held-out images that are"
        " reported, for every scheme alike. Patches of 4 pixels were chosen after Pre-Norm hardly learned with"
        " patches of 2 in 120 steps, on the same held-out images."
    ),
)


def rates(runs: Sequence[VisionRun]) -> list[dict[str, str]]:
    """Mean accuracy by scheme and rate."""
    rows: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        if run.accuracy is not None:
            rows.setdefault(run.scheme, {}).setdefault(run.lr, []).append(run.accuracy)
    return [
        {"scheme": scheme, **{f"{lr:g}": f"{sum(found) / len(found):.2%}" for lr, found in by_rate.items()}}
        for scheme, by_rate in rows.items()
    ]


def settings(found: dict[str, Any]) -> list[str]:
    """What all runs share, as lines."""
    base, model, data = found["base"], found["base"]["model"], found["data"]
    steps = base["steps"] * base["batch_size"]
    return [
        f"{data['train']['n_images']:,} training and {data['val']['n_images']} held-out digits of"
        f" {model['image_size']} x {model['image_size']} pixels, moved by up to {base['data']['shift']} pixel",
        f"{model['n_layer']} layers, width {model['d_model']}, {model['n_head']} heads, MLP {model['d_ff']}, patches of"
        f" {model['patch_size']} pixels, {model['norm']}, N(0, {model['init_std']}) at the start",
        f"{base['steps']} steps of {base['batch_size']} images ({steps / data['train']['n_images']:.1f} epochs),"
        f" {base['optimizer']}, weight decay {base['weight_decay']}, clipping at {base['clip']}, {base['schedule']}"
        f" schedule with {base['warmup']:.0%} warm-up",
    ]


def machine(found: dict[str, Any], folder: Path) -> list[str]:
    """Where and with what the runs were made."""
    keys = {run["key"] for run in found["runs"]}
    made = made_with(sorted(path for path in folder.iterdir() if path.name.rsplit("-", 1)[-1] in keys))
    minutes = sum(run["seconds"] for run in found["runs"]) / 60
    return [
        f"{made['processor']}, {made['cores']} cores, shared with other work; one thread a run",
        f"{len(found['runs'])} runs, {minutes:.0f} minutes on the clock",
        *version_lines(made),
    ]


def readme(found: dict[str, Any], folder: Path) -> str:
    """The record's page; every number in it is from the runs."""
    table = table_of(found)
    said = findings(table)
    parts = [
        *opening(PURPOSE, " ".join(said[:2])),
        "## Command",
        f"```\n{portable(found['command'])}\n```",
        "The same command continues what was cut. Every run is in `runs.csv`.",
        "## At the best rates",
        markdown(shown_rows(ranked(table), table.rows[0].scheme)),
        "## By learning rate",
        "Mean accuracy over the seeds.",
        markdown(rates(table.runs)),
        "## What it tells",
        bullets(said[1:]),
        "## Picture",
        f"![{CAPTION}](accuracy.png)\n\n{CAPTION}",
        "## Settings",
        bullets(settings(found)),
        "## Made with",
        bullets(machine(found, folder)),
    ]
    return "\n\n".join(parts) + "\n"


def main(folder: Path) -> None:
    """Write README.md, runs.csv and accuracy.png beside this file."""
    found = json.loads((folder / "vision.json").read_text(encoding="utf-8"))
    (HERE / "README.md").write_text(readme(found, folder), encoding="utf-8")
    for name in ("runs.csv", "accuracy.png"):
        shutil.copyfile(folder / name, HERE / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
