"""Settings of the whole suite: no test has a deadline, since machines are shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


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
