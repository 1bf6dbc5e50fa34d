"""Write docs/evidence.md: one row for every claim, answered by the code and by the records of this folder.

python results/evidence_page.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from claims import CLAIMS, VERDICTS

from layerrope.comparing.record import markdown

PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"

HEAD = """# Evidence

What the LayerRoPE paper (arXiv 2610.09179) and an article that checked it say, and what this package finds. Generated
by `results/evidence_page.py` from the code and from the records under `results/`; do not edit by hand.

Our runs are tiny: 0.1 to 2 million weights in the layers, minutes each. They can contradict a statement made of every
scale, and agree with a direction; they cannot confirm a number measured at a billion weights. A lead is the loss of the
other scheme minus that of the first, at the best rate of each, paired by seed, with 95% intervals; "the budget cannot
tell" means that an interval holds zero, or settings disagree, or a best rate lies at the edge of its grid. A statement
that there is no difference agrees only where the interval has no room for one of 0.02 nats.
"""


def page() -> str:
    """The page, from the claims as they stand."""
    answered = {part: [(claim, *claim.answer()) for claim in claims] for part, claims in CLAIMS.items()}
    counts = Counter(verdict for rows in answered.values() for _, verdict, _ in rows)
    parts = [HEAD, "\n".join(f"- {verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict])]
    for part, rows in answered.items():
        table = [
            {"claim": c.says, "said by": c.source, "verdict": verdict, "ours": found, "command": f"`{c.command}`"}
            for c, verdict, found in rows
        ]
        parts += [f"## {part}", markdown(table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
