"""Write the tables of docs/scaling-out.md, between its marks, from `layerrope.roofline`.

python benchmarks/scaling_page.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from layerrope.config import ModelConfig, tier
from layerrope.roofline import COLUMNS, DEVICES, gains_elsewhere, plans

PAGE = Path(__file__).parents[1] / "docs" / "scaling-out.md"
GPU, BATCH, COUNTS = "h100", 2**20, (8, 64, 512)
SIZES = ("1b", "7b")
MICRO = 4096
"""Positions of a part of the batch in the table of tensor and pipeline parallelism."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _model(name: str) -> ModelConfig:
    return replace(tier(name), scheme="layerrope")


def steps() -> str:
    """Memory, communication and time of a step."""
    rows = [
        [name, *(form(plan) for form in COLUMNS.values())]
        for name in SIZES
        for plan in plans(_model(name), COUNTS, DEVICES[GPU], BATCH)
    ]
    return table(["model", *COLUMNS], rows)


def gains() -> str:
    """What the gains add to an FSDP step."""
    rows = [
        [
            name,
            str(plan.devices),
            f"{plan.gains_bytes / 1e3:,.0f} kB",
            f"{plan.gains_bytes / plan.sent_bytes:.4%}",
            f"{1e6 * plan.gains_seconds:.0f} us",
            f"{plan.gains_seconds / plan.seconds:.2%}",
            f"{plan.gate_seconds / (plan.compute_seconds - plan.gate_seconds):.1%}",
        ]
        for name in SIZES
        for plan in plans(_model(name), COUNTS, DEVICES[GPU], BATCH)
    ]
    head = ["model", "devices", "gains sent", "of all sent", "their collectives", "of a step", "write gates, at most"]
    return table(head, rows)


def elsewhere() -> str:
    """What the gains add to tensor and pipeline parallelism."""
    rows = []
    for name in SIZES:
        found = gains_elsewhere(_model(name), MICRO)
        for kind, own, stream in (
            ("tensor", "tp_gradient_bytes", "tp_stream_bytes"),
            ("pipeline", "pp_table_bytes", "pp_stream_bytes"),
        ):
            share = found[own] / found[stream]
            rows.append([name, kind, f"{found[own] / 1e3:,.0f} kB", f"{found[stream] / 1e6:,.0f} MB", f"{share:.4%}"])
    return table(["model", "parallelism", "gains", "stream", "share"], rows)


TABLES = {"steps": steps, "gains": gains, "elsewhere": elsewhere}


def renewed(text: str) -> str:
    """The page with its tables written anew."""
    for name, make in TABLES.items():
        mark = f"<!-- {name} -->"
        text = re.sub(rf"{mark}\n.*?{mark}", f"{mark}\n{make()}\n{mark}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
