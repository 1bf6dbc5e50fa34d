"""The table of a comparison as one reads it: rounded numbers and marks, the same on the terminal, pages and records."""

from __future__ import annotations

from layerrope.comparing.compare import Row, Table
from layerrope.comparing.findings import signed
from layerrope.page import MISSING

MARKS: dict[bool | None, str] = {True: "", False: "*", None: "†"}
"""After a best rate, by whether it was bracketed."""
MEANING = {"*": "not bracketed: the edge of the rates tried", "†": "not swept: one rate"}


def caption_of(table: Table) -> str:
    """What the table shows, how its intervals were made, and what its marks mean."""
    several = f"Means over {table.seeds} seeds, paired 95% intervals."
    intervals = "One seed: no interval." if table.seeds == 1 else several
    marks = {MARKS[row.bracketed] for row in table.ranked} - {""}
    notes = [f"{mark} {MEANING[mark]}." for mark in MEANING if mark in marks]
    return " ".join(["Each scheme at its best learning rate, best first.", intervals, *notes])


def shown_rows(table: Table) -> list[dict[str, str]]:
    """The table in words and rounded numbers, the same on the terminal and on the page."""
    return [_shown(row, table) for row in table.rows]


def _shown(row: Row, table: Table) -> dict[str, str]:
    return {
        "scheme": row.scheme,
        "best lr": MISSING if row.lr is None else f"{row.lr:g}{MARKS[row.bracketed]}",
        "val loss": _fixed(row.val_loss, ".4f"),
        "bits/byte": _fixed(row.bits_per_byte, ".4f"),
        f"vs {table.reference}": _difference(row, table),
        "tok/s": _fixed(row.tokens_per_second, ",.0f"),
        "params": _fixed(row.parameters, ","),
        "diverged": _lost(row, table),
    }


def _fixed(value: float | None, form: str) -> str:
    return MISSING if value is None else f"{value:{form}}"


def _difference(row: Row, table: Table) -> str:
    if row.scheme == table.reference:
        return "reference"
    return MISSING if row.difference is None else signed(row.difference)


def _lost(row: Row, table: Table) -> str:
    """How many runs were lost, of those tried."""
    tried = sum(trial.scheme == row.scheme for trial in table.trials)
    crashed = sum(trial.outcome.status == "failed" for trial in row.lost)
    words = f"{len(row.lost) - crashed} of {tried}"
    return f"{words}, {crashed} crashed" if crashed else words
