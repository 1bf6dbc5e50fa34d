"""`layerrope lab`: write the page that explains depth by sliders, with your own runs in it if you like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from layerrope import terminal


@dataclass(frozen=True)
class Command:
    """Write one HTML page with a lab on depth: sliders, charts and, where given, your runs. It needs no server."""

    learned: Annotated[Path | None, arg(name="run")] = None
    """folder of one run; its learned gains come into the first part as a start, and into the pictures of the third"""
    runs: Path | None = None
    """folder of a comparison, a study or runs for the last part; without it that part shows the packaged sweep"""
    out: Path = Path("lab.html")
    """the page, at most 3 MB; it opens from disk and loads nothing"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        from layerrope.lab import write_lab

        path = write_lab(self.out, self.learned, self.runs)
        size = path.stat().st_size
        if self.json:
            terminal.emit_json({"schema_version": 1, "page": path, "bytes": size})
        else:
            terminal.note(f"{path} ({size / 2**20:.1f} MB): open it in a browser")
        return 0
