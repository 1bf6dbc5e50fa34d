"""The short runs behind the lab page of the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from toy_run import run, toy_config

from layerrope.files import write_json
from layerrope.launching.launch import Outcome
from layerrope.studies import Ask, plan_study
from layerrope.study import Run, write_study
from layerrope.training.machine import threads
from layerrope.training.run_folder import Result

HOSTILE = "<img src=x onerror=alert(1)>&\"'\u2028"
"""A folder's name that would be markup, were it not escaped."""
RUNS = {
    HOSTILE: "layerrope",
    "free": "layerrope:schedule=free,gamma=layer",
    "far": "layerrope:schedule=geometric,base=2e5,alpha=5,alpha_rot=-9,beta_rot=3",
    "plain": "prenorm",
}
"""Folder -> scheme."""


def train(folder: Path) -> Path:
    """`folder` with the runs of `RUNS` in it."""
    with threads(1):
        for name, scheme in RUNS.items():
            run(toy_config(steps=4, eval_every=2, scheme=scheme), folder / name)
    return folder


def ended_study(name: str, folder: Path, loss: Callable[[Run], float]) -> Path:
    """A study of which every run has ended at a made-up loss; nothing is trained, so no model is there."""

    def result(each: Run) -> Result:
        return Result("done", "k", 6, 96, loss(each), loss(each), None, loss(each), 6, 1.0, 100.0, 5000, None)

    plan = plan_study(name, Ask(scale="tiny", schemes=("prenorm", "layerrope")))
    study = plan.then({each.key: Outcome("done", result(each)) for each in plan.first().runs})
    write_study(study, folder)
    for each in study.runs:
        write_json(folder / each.key / "result.json", dataclasses.asdict(result(each)))
    return folder
