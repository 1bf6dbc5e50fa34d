"""Each scheme equals the plain loop of its paper to 1e-10 in float64, at parameters that are not the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from nets import TINY, perturbed, token_ids
from reference import LOOPS, Net

from layerrope.model import LM
from layerrope.scheme_table import schemes

OPTIONS = [
    "mixln:fraction=0.5",
    "mixln:fraction=1",
    "rezero:final_norm=off",
    "deepnorm:final_norm=on",
    "completep:base=1",
]
SPECS = [*schemes, *OPTIONS, *(f"{name}+layerrope" for name in schemes if not name.startswith("layerrope"))]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plain(model: LM, spec: str, ids: torch.Tensor) -> torch.Tensor:
    """The logits that the paper's loop gives with the model's parameters."""
    name, options = _parts(spec.split("+")[0])
    has_layerrope = "layerrope" in spec
    net = Net(dict(model.named_parameters()), model.config.n_layer, model.config.n_head, {} if has_layerrope else None)
    return net.logits(ids, LOOPS[name], options)


def _parts(spec: str) -> tuple[str, dict[str, Any]]:
    name, _, tail = spec.partition(":")
    words = {"on": True, "off": False}
    pairs = [item.split("=") for item in tail.split(",")] if tail else []
    return name, {key: words[v] if v in words else float(v) for key, v in pairs}


@pytest.mark.parametrize("spec", SPECS)
def test_scheme_equals_the_loop_of_its_paper(spec: str) -> None:
    model = perturbed(spec, position="learned").double()
    ids = token_ids(2, 7, vocab_size=TINY.vocab_size)
    with torch.no_grad():
        expected = plain(model, spec, ids)
        torch.testing.assert_close(model(ids), expected, atol=1e-10, rtol=1e-10)


def test_every_row_has_a_loop() -> None:
    assert set(LOOPS) == set(schemes)
