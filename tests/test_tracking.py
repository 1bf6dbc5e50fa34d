"""Experiment trackers: refused by name when absent, given plain numbers when there."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from toy_run import run, toy_config, until

from layerrope.errors import InputError, MissingExtra
from layerrope.training.tracking import TRACKERS, check_trackers, numbers


def test_a_tracker_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtra, match=rf"{name}.*pip install 'layerrope\[track\]'"):
            check_trackers([name])
    with pytest.raises(InputError, match="unknown tracker 'wand': did you mean wandb"):
        check_trackers(["wand"])


def test_numbers_of_a_row() -> None:
    row = {"step": 3, "loss": 1.5, "lr": None, "probes": {"rms": {"h": 2, "on": True}, "name": "x"}}
    assert numbers(row) == {"loss": 1.5, "probes/rms/h": 2}


class Hosted(types.ModuleType):
    """Stands in for wandb and trackio: remembers what it was told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[Any] = []

    def init(self, **settings: Any) -> None:
        print("welcome")
        self.told.append(settings)

    def log(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values["loss"]))

    def finish(self) -> None:
        self.told.append("finish")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_hosted_run_is_resumed_under_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hosted = Hosted(name)
    monkeypatch.setitem(sys.modules, name, hosted)
    first = run(toy_config(log_every=4), tmp_path, track=[name], stop=until(5))
    run(toy_config(log_every=4), tmp_path, track=[name])
    begun = [told for told in hosted.told if isinstance(told, dict)]
    assert begun[0] == begun[1]
    assert first.key in begun[0]["name"]
    assert begun[0]["resume"] == "allow"
    assert begun[0]["config"]["lr"] == 1e-2
    assert [told[0] for told in hosted.told if isinstance(told, tuple)] == [4, 8, 12]
    assert hosted.told[-1] == "finish"


def test_what_a_tracker_prints_stays_off_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", Hosted("trackio"))
    run(toy_config(), tmp_path, track=["trackio"])
    assert capsys.readouterr() == ("", "welcome\n")


def test_a_tracker_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: Any) -> None:
        raise RuntimeError("no API key:\nlog in first")

    hosted = Hosted("wandb")
    hosted.init = refuse  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "wandb", hosted)
    with pytest.raises(InputError, match=r"^tracker wandb does not start: no API key: log in first$"):
        run(toy_config(), tmp_path, track=["wandb"])


def test_tensorboard_writes_event_files_in_the_runs_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(toy_config(log_every=4), tmp_path, track=["tensorboard"])
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [4, 8, 12]
