"""From the runs of a study to its record, for every study whose evidence is kept here.

The runs (resumable; the same command continues them) are trained on the large corpus of public-domain English, seven
files of 240 MB of text, laid into `texts/`:

    layerrope study ablation ... --data texts --tokenizer bpe:4096 --out runs/ablation

with the options that the record's README shows. Then, from the root of the repository:

    python results/evidence.py ablation runs/ablation
    python results/evidence_page.py

A study whose sizes were trained at different rates is several commands, a folder each: name them all.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerrope.comparing.record import Purpose
from layerrope.studies.reading import Found, read_found
from layerrope.studies.record import write_study_record
from layerrope.study import Study

SMALL = (
    "A larger model or more tokens: these have 0.1 to 7 million weights in the layers, trained for minutes. The text is"
    " 240 MB of English prose published from 1688 to 1929, laid into `texts/` and not part of the repository; its"
    " vocabulary is a BPE of 4,096."
)

PURPOSES = {
    "ablation": Purpose(
        "What part of LayerRoPE does the work, and how much of it is its start?",
        "Without the rotation, how much is left; and is its start, a depth-scaled one, the method?",
        SMALL
        + " A longer budget above all: the best rates lie near the edge of stability (the recipe does not clip), where"
        " luck decides much, and 250 steps favour whatever starts fast.",
    ),
    "ablation-wide": Purpose(
        "Every switch and every start of LayerRoPE, at the rate that one seed chose",
        "Which parts and which starts are worth a closer look?",
        SMALL + " Other seeds, above all: each variant's rate is the best one of its first seed, which near the edge of"
        " stability is luck; the record in results/ablation trains every seed at every rate.",
    ),
    "lr": Purpose(
        "How wide is the range of good learning rates?",
        "Is LayerRoPE 3 to 10 times less sensitive to the learning rate, as its paper says?",
        SMALL + " One seed. The paper's recipe has no clipping, which may be what robustness is against.",
    ),
    "depth": Purpose(
        "Does it still train at 512 layers?",
        "At width 32, which schemes keep improving as layers are added, and which fall apart?",
        SMALL
        + " More steps and tuned rates, above all: 400 steps of 512 tokens are few, the two deeper models were trained"
        " at one rate, and there is one seed.",
    ),
    "competitors": Purpose(
        "LayerRoPE beside schemes that rebuild the residual stream",
        "At one size, each at its own best rate: does LayerRoPE keep up with Hyper-Connections and AttnRes?",
        SMALL + " At 8 layers, where depth is hardly a problem yet, the order says little of deep models.",
    ),
    "ladder": Purpose(
        "How much compute does it save?",
        "Over sizes at equal tokens per parameter: at which compute does each scheme reach a loss?",
        SMALL
        + " The paper trains at 80 tokens per parameter, these runs at one. The two larger sizes have one seed, and"
        " some of their cells one rate; at the largest Pre-Norm is far better at half the rate of the others, so cells"
        " with one rate flatter whoever has two.",
    ),
    "aspect": Purpose(
        "Depth against width at equal parameters",
        "With the same number of weights: are more layers a better use of them than more width?",
        SMALL
        + " One parameter count, one seed. Parameters are equal in the layers only: the vocabulary's tables grow with"
        " width, so the wide shapes have about twice as many in all, and these budgets hardly begin to train the narrow"
        " deep ones.",
    ),
}


PARALLEL = ("points", "keys", "labels")
"""The fields of a study that have an entry a run."""


def joined(folders: Sequence[Path], together: Path) -> Found:
    """One study of the runs of several, which are linked into the empty folder `together`."""
    parts = [read_found(folder).study for folder in folders]
    for folder, part in zip(folders, parts, strict=True):
        if (part.name, part.base) != (parts[0].name, parts[0].base):
            raise SystemExit(f"{folder} is not a part of the study in {folders[0]}: other settings")
        for run in part.runs:
            link = together / run.key
            if not link.exists():
                link.symlink_to((folder / run.key).resolve())
    facts = {**parts[0].facts, "command": "\n".join(str(part.facts["command"]) for part in parts)}
    points, keys, labels = (tuple(x for part in parts for x in getattr(part, name)) for name in PARALLEL)
    return Found(together, with_budgets(Study(parts[0].name, parts[0].base, points, facts, keys, labels)))


def with_budgets(study: Study) -> Study:
    """The study with its budgets, in steps, as one more axis, where runs of one setting differ in their length."""
    axes = tuple(study.facts["axes"])
    lengths: dict[tuple[Any, ...], set[int]] = {}
    for point, label in zip(study.points, study.labels, strict=True):
        lengths.setdefault(tuple(label[axis] for axis in axes), set()).add(point["steps"])
    if all(len(steps) == 1 for steps in lengths.values()):
        return study
    labels = tuple(
        {**{axis: label[axis] for axis in axes}, "budget": str(point["steps"]), **label}
        for point, label in zip(study.points, study.labels, strict=True)
    )
    return replace(study, labels=labels, facts={**study.facts, "axes": [*axes, "budget"]})


if __name__ == "__main__":
    name, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as together:
        found = joined([Path(folder) for folder in folders], Path(together))
        write_study_record(found, Path(__file__).parent / name, PURPOSES[name])
