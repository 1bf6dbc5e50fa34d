"""The benchmark's machinery on a tiny shape: what is timed, what is compared. No speed is asserted."""

from __future__ import annotations

import json

import pytest

from layerrope import ModelConfig, cli
from layerrope.bench import bare_products, bench
from layerrope.commands.bench import Command, plans
from layerrope.errors import InputError
from layerrope.timing import Timing, paired

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
    words = "bench train --tier micro-100k --batch-size 1 --rounds 1 --no-compile --no-peers --json"
    assert cli.main(words.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in document["rows"]} == {"prenorm", "layerrope"}


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InputError, match="rounds must be at least 1"):
        bench(TINY, ("prenorm",), (), batch_size=1, rounds=0)
    with pytest.raises(InputError, match="did you mean schemes"):
        Command(what="scheme").plan()
    assert plans()["schemes"].schemes[0] == "prenorm"
