"""`layerrope train`: flags, output, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import same, tensors

from layerrope.cli import main
from layerrope.commands.live import clock
from layerrope.commands.train import Command
from layerrope.errors import InputError
from layerrope.training.recipe import Settings, TrainConfig

torch.set_num_threads(1)

SMALL = ["--tier", "micro-100k", "--n-layer", "2", "--seq-len", "32", "--batch-size", "4", "--threads", "1"]


pytestmark = pytest.mark.usefixtures("elsewhere")


def command(*words: str, data: str = "text") -> list[str]:
    return ["train", *SMALL, "--data", data, *words]


def test_a_run_is_reported_and_then_only_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = command("--steps", "6", "--scheme", "layerrope:rotation=off", "--eval-every", "3")
    assert main(words) == 0
    said = capsys.readouterr()
    assert "status    done" in said.out
    assert "6 of 6 steps, 768 tokens" in said.out
    folder = next(Path("runs").iterdir())
    assert folder.name.startswith("layerrope-rotation-off-")
    assert str(folder) in said.out
    assert "6/6" in said.err
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == said.out
    assert "6/6" not in again.err


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--steps", "3", "--json", "--out", "here")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["step"], found["run_dir"]) == ("done", 3, "here")
    assert found["val_loss"] > 0
    saved = json.loads(Path("here/config.json").read_text())["config"]
    assert saved["model"]["vocab_size"] == 257
    assert saved["data"]["source"] == "text"


def test_a_diverged_run_exits_with_1_and_shows_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--steps", "9", "--lr", "1e30", "--warmup", "0", "--out", "x")) == 1
    assert "diverged: the " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schem", "lns"], "unknown flag --schem: did you mean --scheme"),
        (["--scheme", "layerop"], "unknown scheme 'layerop': did you mean layerrope"),
        (["--tier", "61m"], "unknown tier '61m': did you mean 60m"),
        (["--preset", "modem"], "unknown preset 'modem': did you mean modern"),
        (["--n-head", "3"], "d_model 32 is not divisible by n_head 3"),
        (["--batch-size", "1" + "0" * 30], "batch_size must lie between 1 and 1e+08"),
        (["--d-ff", "1" + "0" * 18], "d_ff must be at most 100000000"),
        (["--precision", "fp16"], "unknown precision 'fp16'"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--track", "tensorbord"], "unknown tracker 'tensorbord'"),
        (["--budget", "much"], "cannot read the budget 'much'"),
        (["--budget", "9", "--steps", "9"], "--steps and --budget both set"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--lr", "fast"], "--lr"),
        (["--data", "missing.txt"], "missing.txt"),
        (["--seq-len", "100000"], "fewer than one window"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(*words, "--out", "run")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert [line for line in said.err.splitlines() if not line.startswith("preparing data")] == [
        line for line in said.err.splitlines() if line.startswith("error: ") and message in line
    ]
    assert not Path("run").exists()


def test_a_folder_with_another_run_is_refused_and_fresh_starts_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--steps", "3", "--out", "run")) == 0
    before = Path("run/result.json").read_bytes()
    assert main(command("--steps", "4", "--out", "run")) == 2
    assert "steps is 3 there, 4 here" in capsys.readouterr().err
    assert Path("run/result.json").read_bytes() == before
    assert main(command("--steps", "4", "--out", "run", "--fresh")) == 0
    assert json.loads(Path("run/result.json").read_text())["step"] == 4


def test_every_setting_is_a_flag_with_the_librarys_default() -> None:
    config = Command(steps=7).plan()
    wanted = TrainConfig(model=config.model, data=config.data, steps=7)
    assert {name: getattr(config, name) for name in Settings.__dataclass_fields__} == {
        name: getattr(wanted, name) for name in Settings.__dataclass_fields__
    }


def test_flags_shape_the_model_and_the_budget() -> None:
    def plan(**flags: Any) -> TrainConfig:
        return Command(**flags).plan(257)

    assert plan(tier="micro-100k", budget="2048").steps == 2048
    assert plan(tier="micro-100k", budget="1M").steps == -(-1_000_000 // 2048)
    gpt = plan(preset="gpt-2017", d_model=96, n_head=6, d_ff=100, seq_len=64, embed_std=0.5)
    assert (gpt.model.norm, gpt.model.position, gpt.model.d_model, gpt.model.embed_std) == (
        "layernorm",
        "learned",
        96,
        0.5,
    )
    assert gpt.data.seq_len == 64
    with pytest.raises(InputError, match="unknown layout 'loose'"):
        plan(layout="loose")


def test_ctrl_c_saves_and_exits_with_130(elsewhere: Path) -> None:
    words = command("--steps", "400", "--checkpoint-every", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "layerrope.cli", *words, "--out", "cut"], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (elsewhere / "cut" / "metrics.jsonl").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert b"status    interrupted" in out
    assert main([*words, "--out", "cut"]) == 0
    assert main([*words, "--out", "whole"]) == 0
    assert same(tensors(elsewhere / "cut", 400), tensors(elsewhere / "whole", 400))


def test_time_left_reads_like_a_clock() -> None:
    assert [clock(s) for s in (0, 5.4, 65, 3599.6, 3723)] == ["0:00", "0:05", "1:05", "1:00:00", "1:02:03"]
