"""Pictures of the lab page for the README: `python tests/lab_pictures.py docs/images`.

They are taken in a headless Chromium, as the tests of the page look at it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import Tab, browser, missing

from layerrope.lab import write_lab

SHOTS = (
    ("lab-gain", "#gain.preset=read-mlp&at=gain", False, "gain"),
    ("lab-stream", "#stream.n_layer=512&at=stream", True, "stream"),
)
"""File name, address, dark or light, and the part that is shown."""


def take(tab: Tab, page: Path, folder: Path) -> list[Path]:
    """Save every picture of `SHOTS` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, address, dark, part in SHOTS:
        tab.look(1280, dark=dark)
        tab.open(page, address)
        top, bottom = tab.js("lab.bounds(arguments[0])", part)
        made.append(tab.picture(folder / f"{name}.png", top, bottom - top))
    return made


def main(folder: Path) -> None:
    why = missing()
    if why is not None:
        raise SystemExit(f"no pictures: {why}")
    with tempfile.TemporaryDirectory() as place, browser() as tab:
        for path in take(tab, write_lab(Path(place) / "lab.html"), folder):
            print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
