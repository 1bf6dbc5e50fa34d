"""The short runs behind the lab page of the tests."""

from __future__ import annotations

from pathlib import Path

from toy_run import run, toy_config

from layerrope.machine import threads

HOSTILE = "<img src=x onerror=alert(1)>&\"'\u2028"
"""A folder's name that would be markup, were it not escaped."""
RUNS = {HOSTILE: "layerrope", "free": "layerrope:schedule=free,gamma=layer", "plain": "prenorm"}
"""Folder -> scheme."""


def train(folder: Path) -> Path:
    """`folder` with the runs of `RUNS` in it."""
    with threads(1):
        for name, scheme in RUNS.items():
            run(toy_config(steps=4, eval_every=2, scheme=scheme), folder / name)
    return folder
