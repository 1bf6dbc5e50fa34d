"""`layerrope report`: draw the report of a comparison or a study again from the runs in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from layerrope import terminal
from layerrope.commands.compare import show
from layerrope.commands.study import report_study
from layerrope.comparing.report import read_comparison, write_picture, write_report
from layerrope.errors import InputError
from layerrope.files import PNG, ready
from layerrope.studies.reading import read_found
from layerrope.studies.recipes import RECIPES
from layerrope.study import read_study


@dataclass(frozen=True)
class Command:
    """Write report.html, the charts and result.json of a comparison or a study again, from its runs as they are now."""

    folder: Positional[Path]
    """folder that `layerrope compare` or `layerrope study` wrote"""
    picture: Path | None = None
    """of a comparison: also write loss curves and final losses side by side into this PNG, and for a dark ground into
    NAME-dark.png"""
    json: bool = False
    """print result.json on stdout, and nothing else there"""

    def run(self) -> int:
        if read_study(self.folder).name in RECIPES:
            return self._study()
        found = read_comparison(self.folder)
        pictures = self._pictures()
        ready((path, PNG) for path in pictures.values())
        document = write_report(found)
        for mode, path in pictures.items():
            write_picture(found, path, mode)
        if self.json:
            terminal.emit_json(document)
        else:
            show(found)
        return 0 if found.table.ranked else 1

    def _pictures(self) -> dict[str, Path]:
        """Light or dark -> file."""
        if self.picture is None:
            return {}
        return {"light": self.picture, "dark": self.picture.with_stem(f"{self.picture.stem}-dark")}

    def _study(self) -> int:
        if self.picture is not None:
            raise InputError("a study has no picture of its own: its charts are in its folder; drop --picture")
        return report_study(read_found(self.folder), self.json)
