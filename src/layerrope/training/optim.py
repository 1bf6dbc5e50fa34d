"""Optimisers: parameter groups from the declared roles, Adam, AdamW and Muon, and their state by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerrope.errors import InputError, one_of
from layerrope.roles import ROLES, Declared, declared

STATE_KEYS: dict[type[Optimizer], tuple[str, ...]] = {
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Muon: ("momentum_buffer",),
}
"""What each optimiser keeps for a parameter."""

OPTIMIZERS = ("adam", "adamw", "muon")


def param_groups(
    rows: Iterable[Declared], *, lr: float, weight_decay: float, eps: float | None = None
) -> list[dict[str, Any]]:
    """Groups for one torch optimiser: parameters that share decay, rate and eps, in order of first appearance.

    Each group carries `peak_lr`, its learning rate before the schedule, and `names`. `eps` None leaves the
    optimiser's own (Muon's guards a norm and has nothing to do with Adam's).
    """
    groups: dict[tuple[float, ...], dict[str, Any]] = {}
    for row in rows:
        tuning = row.tuning
        rate, decay = lr * tuning.lr, weight_decay * tuning.decay if ROLES[row.role].decayed else 0.0
        settings = {"lr": rate, "peak_lr": rate, "weight_decay": decay}
        if eps is not None:
            settings["eps"] = eps * tuning.eps if tuning.fixed_eps is None else tuning.fixed_eps
        group = groups.setdefault(tuple(settings.values()), {"params": [], "names": [], **settings})
        group["params"].append(row.parameter)
        group["names"].append(row.name)
    return list(groups.values())


class Optimizers:
    """The torch optimisers of one run, stepped and scheduled together.

    Args:
        optimizer: "adam" (L2 decay in the gradient), "adamw" (decoupled decay), or "muon" (torch's Muon for every
            `matrix` with its update scaled to AdamW's RMS, so one learning rate serves both; AdamW for the rest).
        lr: peak learning rate. betas, eps: Adam's. weight_decay: for decayed roles only.
        fused: one kernel for all parameters; None where torch has it for this device (it does on CPU and CUDA).

    Raises:
        InputError: unknown optimiser, or a parameter without a role.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: str = "adam",
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ) -> None:
        rows = declared(model)
        adam = torch.optim.Adam if one_of("optimizer", optimizer, OPTIMIZERS) == "adam" else torch.optim.AdamW
        muon = {row.name for row in rows if optimizer == "muon" and ROLES[row.role].muon}
        to_muon = [row for row in rows if row.name in muon]
        to_adam = [row for row in rows if row.name not in muon]
        fused = _can_fuse(rows) if fused is None else fused
        self.parts: list[Optimizer] = []
        if to_adam:
            groups = param_groups(to_adam, lr=lr, weight_decay=weight_decay, eps=eps)
            self.parts.append(adam(groups, lr=lr, betas=betas, fused=fused))
        if to_muon:
            groups = param_groups(to_muon, lr=lr, weight_decay=weight_decay)
            self.parts.append(torch.optim.Muon(groups, lr=lr, adjust_lr_fn="match_rms_adamw"))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every parameter that is trained."""
        return [parameter for _, _, parameter in self._named()]

    def groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self, factor: float) -> None:
        """One update at `factor` times the peak learning rate."""
        for group in self.groups():
            group["lr"] = group["peak_lr"] * factor
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    # ------------------------------------------------------------------------------------------------ save, load
    def _named(self) -> list[tuple[Optimizer, str, nn.Parameter]]:
        return [
            (part, name, parameter)
            for part in self.parts
            for group in part.param_groups
            for name, parameter in zip(group["names"], group["params"], strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """All state as `KEY/parameter.name` tensors; a parameter that never had a gradient has none."""
        found: dict[str, Tensor] = {}
        for part, name, parameter in self._named():
            for key in STATE_KEYS[type(part)] if part.state.get(parameter) else ():
                found[f"{key}/{name}"] = part.state[parameter][key]
        return found

    def load(
        self,
        saved: Mapping[str, Tensor],
        stateless: Iterable[str] = (),
        place: Callable[[Tensor, Tensor], Tensor] = lambda value, like: value,
    ) -> None:
        """Put saved state in place, bit for bit.

        Args:
            saved: what `state` gave.
            stateless: names of the parameters that had no state then.
            place: lays a whole tensor as its parameter lies, where that is in shards.

        Raises:
            InputError: state missing for a parameter, or of another shape, or for a parameter there is not.
        """
        without = set(stateless)
        named = [row for row in self._named() if row[1] not in without]
        wanted = {f"{key}/{name}" for part, name, _ in named for key in STATE_KEYS[type(part)]}
        for problem, keys in (("is missing", wanted - set(saved)), ("fits no parameter", set(saved) - wanted)):
            if keys:
                raise InputError(f"optimiser state {min(keys)} {problem} ({len(keys)} in all)")
        for part, name, parameter in named:
            part.state[parameter] = {
                key: _placed(saved[f"{key}/{name}"], key, name, parameter, part, place)
                for key in STATE_KEYS[type(part)]
            }

    def stateless(self) -> list[str]:
        """Names of the parameters without state: those that have had no gradient yet."""
        return [name for part, name, parameter in self._named() if not part.state.get(parameter)]


def _placed(
    value: Tensor,
    key: str,
    name: str,
    parameter: nn.Parameter,
    part: Optimizer,
    place: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """A copy of saved state where torch wants it: step counters live beside fused parameters, else on the CPU."""
    if key == "step":
        return value.to(parameter.device if part.defaults["fused"] else "cpu", copy=True)
    if value.shape != parameter.shape:
        raise InputError(f"optimiser state {key}/{name} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
    return place(value.to(parameter.device, copy=True), parameter)


def _can_fuse(rows: Iterable[Declared]) -> bool:
    return all(row.parameter.device.type in {"cpu", "cuda"} for row in rows)


def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, a 0-d tensor; NaN or infinite when any of them is."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip_by_norm(parameters: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients so that their norm, now `norm`, is at most `limit`."""
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
