"""Others' exceptions in one line, also where they say nothing: while one is handled, no second one is raised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from layerrope import ModelConfig
from layerrope.bench.step import our_step
from layerrope.errors import InputError, in_full, one_line, reason
from layerrope.training.machine import check_machine


@pytest.mark.parametrize(
    ("error", "says", "line", "all_of_it"),
    [
        (ValueError(), "ValueError", "ValueError", "ValueError"),
        (OSError(" \n "), "OSError", "OSError", "OSError"),
        (RuntimeError("\n no device \nat all"), "no device ", "RuntimeError: no device ", "no device at all"),
    ],
)
def test_an_exception_is_one_line(error: Exception, says: str, line: str, all_of_it: str) -> None:
    assert (reason(error), one_line(error), in_full(error)) == (says, line, all_of_it)


def silent(*_: Any, **__: Any) -> None:
    raise AssertionError


def test_a_device_that_fails_without_a_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", silent)
    with pytest.raises(InputError, match=r"device cpu cannot be used \(AssertionError\)"):
        check_machine("cpu")


def test_a_compiler_that_fails_without_a_word_leaves_the_bench_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = nn.Module.compile

    def broken(self: nn.Module, **options: Any) -> None:
        if options:  # the plain code that takes its place
            return compiled(self, **options)
        self._compiled_call_impl = silent
        return None

    monkeypatch.setattr(nn.Module, "compile", broken)
    notes: list[str] = []
    config = ModelConfig(n_layer=1, n_head=1, d_model=8, d_ff=16, vocab_size=11, seq_len=6)
    our_step(config, torch.zeros(1, 6, dtype=torch.long), True, notes)()
    assert notes == ["prenorm runs uncompiled: AssertionError"]
