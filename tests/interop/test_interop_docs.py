"""The commands and the program of docs/interop.md run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from layerrope import cli

PAGE = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("bash") for line in block.strip().splitlines()]
    assert len(lines) == 5
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "layerrope"
        assert cli.main(words) == 0, line
    said = capsys.readouterr().out
    assert "llama, float32" in said
    assert "gguf (llama), float32" in said
    assert "The old man" in said


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'layerrope[hf]'")
    program, _ = blocks("python")
    torch.manual_seed(0)
    exec(compile(program, "docs/interop.md", "exec"), {})
    assert capsys.readouterr().out.endswith(f"{4 * 32 + 16}\n")


def test_the_program_for_timm_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install 'layerrope[vision]'")
    monkeypatch.chdir(tmp_path)
    _, program = blocks("python")
    exec(compile(program, "docs/interop.md", "exec"), {})
    assert capsys.readouterr().out.startswith("True {'attn_read': 'the weight of norm1'")
    assert (tmp_path / "exported" / "vit" / "model.safetensors").exists()


def test_the_schemes_it_names_exist_and_go_where_it_says() -> None:
    from interop_models import model

    from layerrope.exporting.folding import obstacles
    from layerrope.scheme_table import ROWS, schemes

    rows = [
        line
        for line in PAGE.splitlines()
        if line.startswith("|") and ("ForCausalLM" in line or "`layerrope` |" in line)
    ]
    named = {kind: re.findall(r"`([a-z-]+)`", line.split("|")[1]) for kind, line in zip("pso", rows, strict=True)}
    for kind, names in named.items():
        assert names
        assert set(names) <= {*schemes, *ROWS}
        for name in names:
            assert bool(obstacles(model(name, n_layer=4))) is (kind == "o"), name
