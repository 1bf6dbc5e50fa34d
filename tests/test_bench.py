"""The benchmark's machinery on a tiny shape: what is timed, what is compared. No speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from layerrope import LM, ModelConfig, account, cli
from layerrope.bench.memory import bench_memory, held_bytes, step_peak
from layerrope.bench.paired import Timing, paired
from layerrope.bench.step import bare_products, bench
from layerrope.commands.bench import Command, plans
from layerrope.errors import InputError

TINY = ModelConfig(n_layer=1, n_head=1, d_model=8, d_ff=16, vocab_size=11, seq_len=6)


def test_contenders_take_turns_and_none_is_always_first() -> None:
    calls: list[str] = []
    timings = paired({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert {name: len(t.wall) for name, t in timings.items()} == {"a": 3, "b": 3}


def test_ratios_are_medians_of_ratios() -> None:
    slow, fast = Timing(wall=[2.0, 30.0, 6.0], cpu=[1.0, 1.0, 1.0]), Timing(wall=[1.0, 10.0, 3.0], cpu=[2.0, 2.0, 2.0])
    assert slow.ratio(fast) == 2.0
    assert slow.cpu_ratio(fast) == 0.5
    assert slow.seconds == 6.0


def test_a_bench_names_what_it_timed() -> None:
    result = bench(TINY, ("prenorm", "layerrope"), (), batch_size=2, rounds=2, compile=False)
    assert [row.name for row in result.rows] == ["prenorm", "layerrope"]
    assert result.rows[0].ratio == 1.0
    assert result.rows[0].activations == 1.0
    assert result.rows[1].activations is not None
    assert result.rows[1].activations > 1.0
    assert all(row.tokens_per_second > 0 for row in result.rows)
    assert bare_products(TINY, 12, rounds=1) > 0


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench train --tier micro-100k --batch-size 1 --rounds 1 --no-compile --no-peers --measure time --json"
    assert cli.main(words.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in document["rows"]} == {"prenorm", "layerrope"}


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InputError, match="rounds must be at least 1"):
        bench(TINY, ("prenorm",), (), batch_size=1, rounds=0)
    with pytest.raises(InputError, match="did you mean schemes"):
        Command(what="scheme").plan()
    assert plans()["schemes"].schemes[0] == "prenorm"


# -------------------------------------------------------------------------------------------------------------- memory
def test_the_peak_is_what_a_step_holds_at_once() -> None:
    """Two blocks after one another are one; a block inside the other's life adds to it."""
    size = 1 << 20

    def one_after_the_other() -> None:
        for _ in range(3):
            torch.empty(size, dtype=torch.float32)

    def together() -> None:
        kept = [torch.empty(size, dtype=torch.float32) for _ in range(3)]
        del kept

    assert step_peak(one_after_the_other) == pytest.approx(4 * size, rel=0.01)
    assert step_peak(together) == pytest.approx(12 * size, rel=0.01)


def test_held_bytes_count_each_storage_once() -> None:
    before = held_bytes()
    whole = torch.zeros(1000, 250)
    views = [whole[i] for i in range(5)]
    assert held_bytes() - before == 1_000_000
    del whole, views
    assert held_bytes() == before


def test_memory_of_schemes_is_that_of_their_parts() -> None:
    found = bench_memory(TINY, ("prenorm", "hc"), batch_size=2, compile=False)
    plain, streams = found.rows
    weights = sum(p.numel() for p in LM(TINY).parameters())
    assert plain.state_bytes == pytest.approx(12 * weights, rel=0.01)  # weights, two moments; a step counter each
    assert plain.ratio == 1.0
    assert streams.step_bytes > plain.step_bytes > account(TINY).activation_bytes_per_token * 2 * TINY.seq_len


def test_a_record_keeps_what_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "train", "--tier", "micro-100k", "--batch-size", "1", "--rounds", "1", "--no-compile"]
    words.append("--no-peers")
    assert cli.main([*words, "--measure", "time", "--out", str(out)]) == 0
    timed = json.loads(out.read_text())
    assert cli.main([*words, "--measure", "memory", "--out", str(out)]) == 0
    both = json.loads(out.read_text())
    assert {name: value for name, value in both.items() if name != "memory"} == timed
    assert [row["name"] for row in both["memory"]["rows"]] == ["prenorm", "layerrope"]
    words[5] = "2"  # sequences per step
    assert cli.main([*words, "--measure", "memory", "--out", str(out)]) == 0
    assert json.loads(out.read_text()).keys() == {"memory"}
    assert "another shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--measure", "memroy"], "did you mean memory"), (["--out", "other.json"], "holds no benchmark")],
)
def test_what_cannot_be_benched_is_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert cli.main(["bench", "train", *words]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
