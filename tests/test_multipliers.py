"""The printed multipliers: depth is counted once, and width, depth or both can be asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from nets import tiny, token_ids

from layerrope.errors import InputError
from layerrope.model import LM
from layerrope.multipliers import InitTable, RoleRow, init_table
from layerrope.scheme_table import schemes
from layerrope.training.optim import Optimizers


def table(spec: str) -> tuple[InitTable, dict[str, RoleRow]]:
    made = init_table(tiny(spec, n_layer=24, d_model=64, d_ff=96))
    return made, {row.role: row for row in made.roles}


@pytest.mark.parametrize("spec", schemes)
def test_every_parameter_is_in_the_table(spec: str) -> None:
    made, _ = table(spec)
    assert sum(row.parameters for row in made.roles) == sum(
        p.numel() for p in LM(tiny(spec, n_layer=24, d_model=64, d_ff=96)).parameters()
    )
    text = str(made)
    assert all(row.role in text for row in made.roles)
    assert (made.depth_rule or "none") in text


def test_depth_alone() -> None:
    made, rows = table("completep:base=6")
    assert (rows["q"].init, rows["q"].lr, rows["q"].eps) == (1.0, 1.0, 0.25)
    assert (rows["head"].lr, rows["head"].eps) == (1.0, 1.0)
    assert [s.last for s in made.sites] == [1.0, 0.25, 1.0, 0.25]


def test_width_alone() -> None:
    made, rows = table("prenorm+mup:width=16")
    assert (rows["q"].init, rows["q"].lr, rows["q"].eps) == (0.5, 0.25, 0.25)
    assert (rows["head"].init, rows["head"].lr, rows["head"].eps) == (0.25, 0.25, 4.0)
    assert (rows["norm"].lr, rows["embed"].lr) == (1.0, 1.0)
    assert made.sites == ()


def test_width_and_depth_multiply() -> None:
    _, rows = table("completep:base=6,width=16")
    assert (rows["q"].lr, rows["q"].eps) == (0.25, 1 / 16)
    _, other = table("prenorm+mup:width=16+completep:base=6")
    assert other == rows


def test_scaled_init_is_in_the_weights_alone() -> None:
    made, rows = table("prenorm-scaledinit")
    assert {r: round(rows[r].init, 4) for r in ("q", "v", "o", "down", "up")} == {
        "q": 1,
        "v": 1,
        "o": 0.1443,
        "down": 0.1443,
        "up": 1,
    }
    assert made.sites == ()


@pytest.mark.parametrize(
    "spec",
    [
        "prenorm-scaledinit+lns",
        "prenorm-scaledinit+depth-mup",
        "depth-mup+completep",
        "lns+completep",
        "deepnorm+scaledinit",
        "keel+depth-mup",
        "layerscale+scaledinit",
    ],
)
def test_depth_is_never_counted_twice(spec: str) -> None:
    with pytest.raises(InputError, match="count depth twice"):
        init_table(tiny(spec))


def test_width_twice_or_with_a_tied_head_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        init_table(tiny("depth-mup:width=8+mup"))
    with pytest.raises(InputError, match="tie"):
        init_table(tiny("prenorm+mup", tie=True))


def test_the_heads_start_rate_and_eps_are_the_forward_multiplier() -> None:
    """Weights over m, rate over m, decay and eps times m give the losses of a head whose output is divided by m."""
    ids = token_ids(4, 13)
    m, losses = 4.0, []
    for divided in (False, True):
        torch.manual_seed(0)
        model = LM(replace(tiny("prenorm+mup:width=4" if not divided else "prenorm"))).double()
        if divided:
            plain = LM(tiny("prenorm+mup:width=4")).double()
            model.load_state_dict(plain.state_dict())
            with torch.no_grad():
                model.head.weight.mul_(m)
            model.norm.register_forward_hook(lambda module, args, out: out / m)
        for p in model.layers.parameters():
            p.requires_grad_(False)
        optimizers = Optimizers(model, "adamw", lr=1e-2, weight_decay=0.1, eps=1e-3)
        seen = []
        for _ in range(5):
            loss = model(ids[:, :-1], ids[:, 1:])
            seen.append(loss.item())
            loss.backward()
            optimizers.step(1.0)
            optimizers.zero_grad()
        losses.append(seen)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
