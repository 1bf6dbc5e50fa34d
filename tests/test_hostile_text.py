"""Names, prompts and settings that no model can read: refused in one line, before anything is written."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.gains import gain_table
from layerrope.model import LM
from layerrope.sampling import Sampling, stream_text
from layerrope.text.files import open_files
from layerrope.text.tokens import Bytes

BAD = os.fsdecode(b"bad\xff.txt")


def model() -> LM:
    return LM(ModelConfig(n_layer=1, n_head=1, d_model=8, d_ff=8, vocab_size=257, seq_len=8), seed=0)


def test_file_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    try:
        (tmp_path / BAD).write_text("some text")
    except OSError:
        pytest.skip("this file system takes no such name")
    for spec in (tmp_path, tmp_path / BAD, tmp_path / os.fsdecode(b"none\xff.txt")):
        with pytest.raises(InputError, match=r"\\xff.txt is not UTF-8") as caught:
            open_files(str(spec))
        str(caught.value).encode()


def test_a_prompt_that_is_not_utf8_is_refused_before_the_first_piece() -> None:
    with pytest.raises(InputError, match="the prompt is not UTF-8 text at character 1"):
        stream_text(model(), Bytes(), "a\udcff", Sampling())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top-k"),
        ({"max_new_tokens": -1}, "new tokens"),
        ({"seed": 2**70}, "seed"),
        ({"seed": -1}, "seed"),
    ],
)
def test_drawing_without_meaning_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**change)
    options: dict[str, Any] = {"max_new_tokens": 1} | change
    with pytest.raises(InputError, match=message):
        model().generate(torch.zeros(1, 2, dtype=torch.long), **options)


def test_ids_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match="got 1 dimensions"):
        model().generate(torch.zeros(2, dtype=torch.long), 1)


@pytest.mark.parametrize(
    ("gamma", "change", "message"),
    [
        (torch.ones(4), {"base": 0.0}, "base"),
        (torch.ones(4), {"base": math.nan}, "base"),
        (torch.ones(4), {"n_layer": 0}, "n_layer"),
        (torch.ones(4), {"n_layer": 2.5}, "n_layer must be a whole number"),
        (torch.ones(4), {"n_layer": 10**30}, "n_layer must be at most"),
        (torch.ones(2, 4), {}, r"shape \(2, 4\)"),
        (torch.ones(0), {}, r"shape \(0,\)"),
    ],
)
def test_gain_tables_of_no_meaning_are_refused(gamma: torch.Tensor, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gain_table(gamma, **{"n_layer": 3} | change)
