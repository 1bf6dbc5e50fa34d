"""Rounding on known grids, and losses in low precision against a plain evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_models import IDS, model

from layerrope import InputError, cli
from layerrope.exporting.export import export
from layerrope.numerics import FORMATS, in_format, numerics, round_fp8, round_int, text_batches
from layerrope.text.tokens import Bytes

BATCHES = [(IDS[:, :-1], IDS[:, 1:])]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), bits=st.sampled_from([4, 8]), group=st.sampled_from([None, 8, 32]))
def test_integer_grids(seed: int, bits: int, group: int | None) -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(seed))
    made = round_int(weight, bits, group)
    size, top = group or 64, 2 ** (bits - 1) - 1
    parts, before = made.unflatten(1, (-1, size)), weight.unflatten(1, (-1, size))
    scale = before.abs().amax(-1, keepdim=True) / top
    assert float((parts / scale - (parts / scale).round()).abs().max()) < 1e-3
    assert float(((parts - before).abs() / scale).max()) <= 0.5 + 1e-3
    torch.testing.assert_close(round_int(made, bits, group), made)


def test_fp8_keeps_its_own_values_and_three_bits_of_others() -> None:
    exact = torch.tensor([[448.0, 1.0, -0.875, 0.0]])
    assert torch.equal(round_fp8(exact), exact)
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    large = weight.abs() > 0.05
    assert float(((round_fp8(weight) - weight).abs() / weight.abs())[large].max()) <= 2**-4 + 1e-6


@pytest.mark.parametrize("scheme", ["layerrope", "deepnorm", "hc", "nanochat"])
def test_losses_by_format_and_sizes_by_depth(scheme: str) -> None:
    made = model(scheme)
    found = numerics(made, BATCHES)
    by = {row.format: row for row in found.rows}
    assert tuple(by) == FORMATS
    with torch.no_grad():
        assert by["fp32"].loss == pytest.approx(float(made(*BATCHES[0])), rel=1e-6)
    assert by["fp32"].change == 0
    assert abs(by["int8"].change) < abs(by["int4"].change) < 0.1
    assert all(row.finite and row.change != 0 for row in found.rows if row.format != "fp32")
    assert len(found.largest) == len(found.rms) == 3
    assert all(top > rms > 0 for top, rms in zip(found.largest, found.rms, strict=True))


def test_a_stream_beyond_fp16_is_reported_and_not_hidden() -> None:
    made = model("prenorm")
    with torch.no_grad():
        made.layers[1].mlp.f.down.weight.mul_(1e7)
    by = {row.format: row for row in numerics(made, BATCHES, ("bf16", "fp16")).rows}
    assert by["bf16"].finite
    assert not by["fp16"].finite


def test_weight_only_formats_leave_embedding_head_and_source_alone() -> None:
    made = model()
    before = {name: t.clone() for name, t in made.state_dict().items()}
    changed = {name for name, t in in_format(made, "int4").state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {n for n in before if n.startswith("layers.") and ".f." in n}
    assert all(torch.equal(t, before[name]) for name, t in made.state_dict().items())
    with pytest.raises(InputError, match="unknown format 'int3'"):
        in_format(made, "int3")


def test_text_batches_count_every_target_once() -> None:
    batches = text_batches(range(50), seq_len=8, batch_size=4, most=37)
    targets = torch.cat([y.flatten() for _, y in batches])
    assert targets[targets >= 0].tolist() == list(range(1, 38))
    assert sum(x.numel() for x, _ in batches) == 40


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(model(vocab_size=257, seq_len=32), tmp_path / "m", tokenizer=Bytes(), reader="plain")
    (tmp_path / "text.txt").write_text("A text of some length. " * 20)
    words = ["eval", str(tmp_path / "m"), "--numerics", "--text", str(tmp_path / "text.txt")]
    assert cli.main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["format"] for row in said["rows"]] == list(FORMATS)
    assert len(said["largest"]) == 3
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    assert "int4" in shown.out
    assert re.search(r"\d+ positions of .*text\.txt", " ".join(shown.err.split()))
    assert cli.main(["eval", str(tmp_path / "m"), "--numerics"]) == 2
    assert "--text" in capsys.readouterr().err
