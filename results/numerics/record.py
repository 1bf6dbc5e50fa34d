"""From trained runs to what low precision costs them.

The runs (resumable; the same command continues them):

    layerrope compare --seeds 0 1 2 --out runs/demo-seeds

Then, from the root of the repository:

    python results/numerics/record.py runs/demo-seeds
"""

from __future__ import annotations

import sys
from pathlib import Path

from layerrope.comparing.record import Purpose
from layerrope.comparing.report import read_comparison
from layerrope.studies.numerics import score_schemes, settings_in, write_numerics
from layerrope.terminal import note

TOKENS, BATCH = 16_384, 16
PURPOSE = Purpose(
    title="What low precision costs under each scheme",
    question=(
        "Schemes without a norm after each sublayer let the stream grow; does a large stream cost loss once a trained"
        " model is stored or computed in 16, 8 or 4 bits?"
    ),
    doubt=(
        "Models that are trained longer and are wider, where single channels of the stream grow far beyond the rest; "
        "activations kept in 8 bits between the sublayers, not only at the matrices; int4 with one scale a row; kernels"
        " that also sum in low precision. Rounding is computed in fp32 here."
    ),
)

if __name__ == "__main__":
    found = read_comparison(Path(sys.argv[1]))
    (setting,) = settings_in(found.folder)
    scored = score_schemes(found.folder, setting, TOKENS, BATCH, note)
    command = "python results/numerics/record.py runs/demo-seeds"
    write_numerics(found, scored, Path(__file__).parent, PURPOSE, command, TOKENS)
