"""What a trained model's depth looks like: its gains at the four sites, and the size of its stream, layer by layer.

Dimensions: B batch, T position, D width, L layers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from layerrope.errors import InputError
from layerrope.gains import KINDS, LayerRoPE
from layerrope.looping.looped import LoopedLM
from layerrope.model import LM
from layerrope.residual import Sublayer
from layerrope.training.kinds import Model
from layerrope.training.recipe import TrainConfig
from layerrope.training.trained import load_trained


def trained_model(run_dir: Path) -> tuple[LM, TrainConfig]:
    """The model of a run at its newest sound checkpoint, on the CPU in evaluation mode, and the run's config.

    Raises:
        InputError: no run there, no sound checkpoint, one of another model, or a run of no plain decoder.
    """
    found = load_trained(run_dir)
    if not isinstance(found.model, LM):
        raise InputError(f"{run_dir} is the run of another kind of model than a decoder: give a decoder's")
    return found.model, found.config


def executed(model: Model) -> list[int]:
    """Whose weights run at each depth: 0 .. L - 1, and in a looped model its core again for every iteration."""
    layers = list(range(len(model.layers)))
    if not isinstance(model, LoopedLM):
        return layers
    p, n = model.config.prelude, model.config.core
    return layers[:p] + layers[p : p + n] * model.config.loops + layers[p + n :]


def gain_rows(model: Model, device: torch.device) -> tuple[Tensor | None, ...]:
    """The rows of the gain table at each executed depth, (2, 2, D or 1) fp32, or None for a scheme without one."""
    if not isinstance(model, LoopedLM):
        return model.gain_rows(device)
    depth = len(executed(model))
    table = model.gain_rows(depth, device)
    return (None,) * depth if table is None else table.unbind(0)


def sublayers(model: Model) -> list[tuple[int, str, Sublayer]]:
    """(depth, "attn" or "mlp", sublayer) in the order of execution."""
    layers = [model.layers[i] for i in executed(model)]
    found = [(depth, kind, layer.get_submodule(kind)) for depth, layer in enumerate(layers) for kind in KINDS]
    return [(depth, kind, module) for depth, kind, module in found if isinstance(module, Sublayer)]


@torch.no_grad()
def site_gains(model: Model) -> dict[str, Tensor]:
    """The gain on what each sublayer reads and on what it writes: site -> (L, D) fp32, L executed layers.

    A norm's or gate's own weight times the row of the gain table, whichever are there; a site with neither has no
    entry (the write of a plain Pre-Norm sublayer).
    """
    rows = gain_rows(model, next(model.parameters()).device)
    found: dict[str, list[Tensor]] = {}
    for depth, kind, module in sublayers(model):
        branch, row = module.branch, rows[depth]
        mine = None if row is None else row[KINDS.index(kind)]
        for site, part, index, covered in (
            ("read", branch.pre, 0, branch.reads),
            ("write", branch.post, 1, branch.writes),
        ):
            weight = getattr(part, "weight", None)
            gain = _product(weight, mine[index] if covered and mine is not None else None)
            if gain is not None:
                found.setdefault(f"{kind}_{site}", []).append(gain.float().expand(model.config.d_model))
    return {site: torch.stack(gains) for site, gains in found.items()}


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a * b


@torch.no_grad()
def base_angles(model: Model) -> dict[str, Tensor]:
    """LayerRoPE's angle of the first channel pair in degrees: site -> (L,). Empty without its gains or rotation."""
    found: dict[str, Tensor] = {}
    for module in model.gains.modules() if model.gains is not None else ():
        if isinstance(module, LayerRoPE) and module.rotation:
            angles = torch.rad2deg(module.base_angle(len(executed(model))))
            found |= {site: angles[:, k] for k, site in enumerate(module.sites)}
    return found


@torch.no_grad()
def stream_rms(model: LM, ids: Tensor) -> Tensor:
    """The root mean square of the stream h over B, T and D: before the first sublayer, then after each (2L + 1,).

    A state of several streams is taken as the final norm would read it there.

    Args:
        ids: tokens (B, T).
    """
    found: list[Tensor] = []

    def note(state: object) -> None:
        found.append(model.ends.reduce(state).float().square().mean().sqrt())

    modules = [module for _, _, module in sublayers(model)]
    hooks = [modules[0].register_forward_pre_hook(lambda m, given: note(given[0]))]
    hooks += [module.register_forward_hook(lambda m, given, state: note(state)) for module in modules]
    try:
        model.hidden(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)
