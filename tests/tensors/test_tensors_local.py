"""Models on disk: a folder, a file, shards, a run; all through one interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensor_files import CONFIG, safetensors_bytes, tiny_llama, write_model

from layerrope.errors import InputError
from layerrope.tensors import open_source


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("start", ["folder", "file"])
def test_a_folder_and_any_of_its_files_give_the_same_tensors(tmp_path: Path, shards: int, start: str) -> None:
    tensors = tiny_llama()
    folder = write_model(tmp_path / "m", tensors, shards)
    files = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.index.json"))
    for path in [folder] if start == "folder" else files:
        source = open_source(path)
        assert (source.format, source.config) == ("safetensors", CONFIG)
        assert set(source.names) == set(tensors)
        read = source.read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
        assert (source.spent.bytes, source.spent.requests) == (0, 0)


def test_a_path_that_is_not_there_is_one_line() -> None:
    with pytest.raises(InputError, match="no such file or folder") as caught:
        open_source("./nowhere/model.safetensors")
    assert "\n" not in str(caught.value)


def test_the_newest_readable_step_of_a_run_is_taken_and_broken_ones_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_model(run, {})
    (run / "model.safetensors").unlink()
    for step in (9, 10, 11):
        write_model(run / f"checkpoints/step-{step}", {"norm": np.full(2, step, np.float32)})
    (run / "checkpoints/step-12").mkdir()
    whole = safetensors_bytes({"norm": np.zeros(2, np.float32)})
    (run / "checkpoints/step-11/model.safetensors").write_bytes(whole[:-3])
    source = open_source(run)
    assert (source.format, source.config, source.label) == ("run", CONFIG, f"{run}@step-10")
    assert source.read(["norm"])["norm"].tolist() == [10, 10]
    assert [note.split(":")[0] for note in source.notes] == ["skipped step-12", "skipped step-11"]
