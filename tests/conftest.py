"""Settings of the whole suite: no test has a deadline, since machines are shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every test draws the same random numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and home, with a text to train on."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for name in "abcdefgh":
        line = f"document {name} says {name * 5} and then something else entirely.\n"
        (tmp_path / "text" / f"{name}.txt").write_text(line * 40)
    return tmp_path


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[Any]:
    """The device mesh of a process group of one."""
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three short runs, of which one has a hostile name."""
    from lab_runs import train

    return train(tmp_path_factory.mktemp("lab") / "runs")


@pytest.fixture(scope="session")
def lab_page(lab_folder: Path) -> str:
    """The lab page with the run of the hostile name in it, and all runs."""
    from lab_runs import HOSTILE

    from layerrope import lab

    return lab.lab_page(lab_folder / HOSTILE, lab_folder)
