"""Twenty steps of every scheme: the losses that this code gave before, so that no number changes unnoticed.

After a change that should alter them: `python tests/test_golden.py --update`, and say why in the commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from nets import tiny, token_ids

from layerrope.model import LM
from layerrope.scheme_table import schemes
from layerrope.training.optim import Optimizers

PATH = Path(__file__).parent / "data" / "golden.json"
SPECS = [*schemes, "hc+layerrope", "mhc+layerrope", "attnres+layerrope", "attnres:blocks=2", "lns+layerrope"]
STEPS = 20


def losses(spec: str) -> list[float]:
    """The loss before each of 20 Adam steps on one batch, fp32, eager, one thread."""
    model = LM(tiny(spec, n_layer=6, init_std=0.05), seed=5)
    optimizers = Optimizers(model, "adam", lr=3e-3)
    ids = token_ids(4, 13, seed=7)
    found: list[float] = []
    for _ in range(STEPS):
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizers.step(1.0)
        optimizers.zero_grad()
        found.append(float(loss.detach()))
    return found


GOLDEN: dict[str, list[float]] = json.loads(PATH.read_text()) if PATH.exists() else {}


@pytest.mark.parametrize("spec", SPECS)
def test_losses_are_those_on_record(spec: str) -> None:
    assert spec in GOLDEN, "not on record: python tests/test_golden.py --update"
    assert losses(spec) == pytest.approx(GOLDEN[spec], rel=1e-5)


def test_nothing_else_is_on_record() -> None:
    assert set(GOLDEN) == set(SPECS)


def update() -> None:
    rows = ",\n".join(f"  {json.dumps(spec)}: {json.dumps([round(v, 7) for v in losses(spec)])}" for spec in SPECS)
    PATH.write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        raise SystemExit("usage: python tests/test_golden.py --update")
    update()
    print(f"wrote {PATH.name}: {len(SPECS)} schemes, {STEPS} losses each")
