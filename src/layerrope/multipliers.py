"""What a scheme sets before the first step: every multiplier by parameter role, and the gains at the two ends of depth.

One place to see that depth is counted once: a scheme has at most one constant that shrinks branches with depth
(`Scheme.depth_rule`), in the weights, in the gains, or in the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from layerrope.config import ModelConfig
from layerrope.gains import SITES
from layerrope.model import LM
from layerrope.roles import ROLES, Declared, declared


@dataclass(frozen=True)
class RoleRow:
    """Parameters that share a role, a start and a tuning."""

    role: str
    """q k v o gate up down, embed, position, head, or the declared role of everything else"""
    parameters: int
    std: float | None
    """standard deviation at the start; None where a constant is the start"""
    init: float
    """the scheme's multiplier in `std`"""
    lr: float
    """multiplier on the learning rate"""
    eps: float
    """multiplier on Adam's eps"""
    fixed_eps: float | None
    """Adam's eps itself, where the scheme asks for one"""
    decayed: bool
    """is it decayed, where the run decays weights?"""


@dataclass(frozen=True)
class SiteRow:
    """Gains that multiply the norm's output or the branch's, root mean square over the width, at the start."""

    site: str
    first: float
    """in the first layer"""
    last: float
    """in the last layer"""


@dataclass(frozen=True)
class InitTable:
    """Every multiplier of one scheme at one shape; `str` gives a table."""

    scheme: str
    depth_rule: str
    """the constant that shrinks branches with depth; empty where there is none"""
    roles: tuple[RoleRow, ...]
    sites: tuple[SiteRow, ...]

    def __str__(self) -> str:
        lines = [f"{self.scheme}: depth rule {self.depth_rule or 'none'}"]
        lines.append(f"{'role':<10}{'parameters':>14}{'std':>11}{'init x':>10}{'lr x':>9}{'eps':>10}  decay")
        for r in self.roles:
            std = "" if r.std is None else f"{r.std:.4g}"
            eps = f"x{r.eps:.4g}" if r.fixed_eps is None else f"{r.fixed_eps:g}"
            decay = "yes" if r.decayed else "no"
            lines.append(f"{r.role:<10}{r.parameters:>14,}{std:>11}{r.init:>10.4g}{r.lr:>9.4g}{eps:>10}  {decay}")
        lines += [
            f"gain at {s.site:<11} {s.first:.4g} in the first layer, {s.last:.4g} in the last" for s in self.sites
        ]
        return "\n".join(lines)


def init_table(config: ModelConfig) -> InitTable:
    """The multipliers that `config`'s scheme sets, from a meta build: nothing is drawn.

    Raises:
        InputError: the scheme does not exist, counts depth twice, or does not fit the shape.
    """
    with torch.device("meta"):
        model = LM(config)
    stds = {name: std for name, _, std in model.init_stds()}
    rows: dict[tuple[object, ...], RoleRow] = {}
    for row in declared(model):
        made = _row(row, stds.get(row.name), config)
        key = (made.role, made.std, row.tuning)
        seen = rows[key].parameters if key in rows else 0
        rows[key] = _row(row, stds.get(row.name), config, seen)
    return InitTable(config.scheme, model.scheme.depth_rule, tuple(rows.values()), _sites(model))


def _row(row: Declared, std: float | None, config: ModelConfig, seen: int = 0) -> RoleRow:
    base = config.embed_std if row.name == "embed.weight" else config.init_std
    return RoleRow(
        role=row.role if std is None else row.name.split(".")[-2],
        parameters=seen + row.parameter.numel(),
        std=std,
        init=1.0 if std is None else std / base,
        lr=row.tuning.lr,
        eps=row.tuning.eps,
        fixed_eps=row.tuning.fixed_eps,
        decayed=ROLES[row.role].decayed,
    )


@torch.no_grad()
def _sites(model: LM) -> tuple[SiteRow, ...]:
    gains = model.scheme.build_gains(model.config.n_layer, model.config.d_model)
    if gains is None:
        return ()
    sizes = gains(model.config.n_layer).square().mean(-1).sqrt().flatten(1)  # (L, 4)
    return tuple(SiteRow(site, float(sizes[0, k]), float(sizes[-1, k])) for k, site in enumerate(SITES))
