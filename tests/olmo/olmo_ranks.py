"""`torchrun olmo_ranks.py CASES.json`: trains each case, the fields of a `Run` of examples/olmo_core_train.py, one
after another in one process group."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from olmo_core.distributed import parallel
from olmo_core.train import prepare_training_environment, teardown_training_environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "olmo_core_train.py"


def example() -> ModuleType:
    """examples/olmo_core_train.py as a module."""
    spec = importlib.util.spec_from_file_location("olmo_core_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    prepare_training_environment(seed=0, backend="gloo")
    logging.getLogger("olmo_core").setLevel(logging.ERROR)
    train = example()
    try:
        for case in cases:
            parallel._WORLD_MESH = None  # OLMo-core keeps one mesh a process; here every case has its own
            train.trainer_for(train.Run(**{**case, "folder": Path(case["folder"])})).fit()
        torch.distributed.barrier()
    finally:
        teardown_training_environment()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
