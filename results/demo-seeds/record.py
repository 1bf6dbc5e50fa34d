"""From three seeds of the demonstration to this record and to the README's picture.

The runs (resumable; the same command continues them):

    layerrope compare --seeds 0 1 2 --out runs/demo-seeds

Then, from the root of the repository:

    python results/demo-seeds/record.py runs/demo-seeds
    layerrope report runs/demo-seeds --picture docs/images/compare.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from layerrope.comparing.record import Purpose, write_record
from layerrope.comparing.report import read_comparison

PURPOSE = Purpose(
    title="The demonstration with three seeds",
    question="How much of the order that one seed of `layerrope compare` shows is the schemes, and how much the seed?",
    doubt=(
        "Rates swept on several seeds (these were chosen on seed 0 alone, which LNS and LayerRoPE pay for with a wide"
        " spread), a larger budget, or another start of the stream. The machine was shared while these runs trained:"
        " their tokens per second say nothing about the schemes."
    ),
)

if __name__ == "__main__":
    write_record(read_comparison(Path(sys.argv[1])), Path(__file__).parent, PURPOSE)
