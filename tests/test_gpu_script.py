"""benchmarks/gpu.py runs end to end without a GPU, and says when numbers are wrong or parts are left out."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from layerrope import schemes

torch.set_num_threads(1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
    spec = spec_from_file_location("gpu_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_script", module)
    spec.loader.exec_module(module)
    return module


def test_the_whole_script_on_a_cpu(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record.json"
    assert gpu.main(gpu.Options(device="cpu", tiny=True, out=out)) == 0
    record = json.loads(out.read_text())
    parts = record["parts"]
    assert list(parts) == list(gpu.PARTS)
    assert record["verdict"]["right"] is True
    assert parts["schemes"]["rows"].keys() == schemes.keys()
    assert parts["steps-130m"]["rows"].keys() == set(gpu.FEW)
    assert all(row["uncompiled"] is None for row in parts["steps-130m"]["rows"].values())
    assert all(part["seconds"] > 0 for part in parts.values())
    assert "steps-1b: ok" in capsys.readouterr().err


def test_wrong_numbers_lack_of_memory_and_of_time(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def large(bench: Any) -> dict[str, Any]:
        raise torch.OutOfMemoryError("tried to allocate 99 GiB")

    parts = {"schemes": lambda bench: {"rows": {}, "ok": False}, "steps-1b": large}
    monkeypatch.setattr(gpu, "PARTS", parts)
    out = tmp_path / "record.json"
    assert gpu.main(gpu.Options(device="cpu", tiny=True, out=out)) == 1
    record = json.loads(out.read_text())
    assert record["parts"]["steps-1b"]["skipped"] == "out of memory: tried to allocate 99 GiB"
    assert record["verdict"] == {"right": False, "layerrope_ratio": None, "of": None, "within_target": None}
    assert gpu.main(gpu.Options(device="cpu", tiny=True, out=out, minutes=-1)) == 0
    assert all("minutes were over" in part["skipped"] for part in json.loads(out.read_text())["parts"].values())


def test_a_gpu_that_is_not_there_is_refused_in_one_line(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(gpu.Options(out=tmp_path / "record.json")) == 2
    assert capsys.readouterr().err.startswith("error: device cuda was asked for")
    assert not (tmp_path / "record.json").exists()


def test_the_verdict_looks_at_1b_first(gpu: ModuleType) -> None:
    def steps(ratio: float) -> dict[str, Any]:
        return {"rows": {"layerrope": {"ratio": ratio}}, "ok": True}

    both = gpu.verdict({"steps-1b": steps(1.005), "steps-130m": steps(1.3)})
    assert (both["of"], both["within_target"]) == ("steps-1b", True)
    small = gpu.verdict({"steps-1b": {"skipped": "out of memory"}, "steps-130m": steps(1.3)})
    assert (small["of"], small["within_target"]) == ("steps-130m", False)
