"""`layerrope report`: draw the report of a comparison again from the runs in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from layerrope import terminal
from layerrope.commands.compare import show
from layerrope.report import read_comparison, write_picture, write_report


@dataclass(frozen=True)
class Command:
    """Write report.html, the charts and result.json of a comparison again, from its runs as they are now."""

    folder: Positional[Path]
    """folder that `layerrope compare` wrote"""
    picture: Path | None = None
    """also write loss curves and final losses side by side into this PNG, and for a dark ground into NAME-dark.png"""
    json: bool = False
    """print result.json on stdout, and nothing else there"""

    def run(self) -> int:
        found = read_comparison(self.folder)
        document = write_report(found)
        if self.picture is not None:
            write_picture(found, self.picture)
            write_picture(found, self.picture.with_stem(f"{self.picture.stem}-dark"), mode="dark")
        if self.json:
            terminal.emit_json(document)
        else:
            show(found)
        return 0 if found.table.ranked else 1
