"""From the finished sweep to this record and to the rates that `layerrope compare` uses without arguments.

The sweep itself (resumable; the same command continues it):

    layerrope compare --lrs 0.0015 0.003 0.006 0.012 0.024 0.048 0.096 --eval-tokens 65536 --out runs/demo-sweep

Then, from the root of the repository:

    python results/demo-sweep/record.py runs/demo-sweep
"""

from __future__ import annotations

import sys
from pathlib import Path

from layerrope.comparing.rates import FILE, sweep_to_json
from layerrope.comparing.record import Purpose, sweep_of, write_record
from layerrope.comparing.report import read_comparison
from layerrope.files import write_json

ROOT = Path(__file__).parents[2]

PURPOSE = Purpose(
    title="The sweep behind `layerrope compare`",
    question=(
        "Which learning rate is each of the five schemes' best one at the size and budget of `layerrope compare`"
        " without arguments?"
    ),
    doubt=(
        "A best rate at the edge of the grid, a rate that is best by less than the spread over seeds, or another start"
        " of the stream (`--embed-std 0.02`), which the command below takes too. The machine was shared while these"
        " runs trained: their tokens per second say nothing about the schemes."
    ),
)


def main(sweep: str) -> None:
    """Write README.md, runs.csv and charts here, and the package's rates."""
    found = read_comparison(Path(sweep))
    write_json(ROOT / "src" / "layerrope" / FILE, sweep_to_json(sweep_of(found)))
    write_record(found, Path(__file__).parent, PURPOSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
