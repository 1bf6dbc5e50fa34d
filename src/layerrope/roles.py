"""Parameter roles: which parameters are decayed, which are Muon's, and how a scheme tunes its own.

A module says what its parameters are in `param_roles`, a dict from the local name (dotted for a child's) to a role;
where two modules name the same parameter, the outer one wins. `nn.Linear`, `nn.Embedding` and torch's own norms have
a role by type. A module may also have `param_tuning`, a dict from a role to a `Tuning` for every parameter of that
role at or below it (depth-muP's rates, mHC's Adam eps). Every parameter has exactly one role; none at all is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from layerrope.errors import InputError, one_of


@dataclass(frozen=True)
class Role:
    """What the optimiser does with parameters of one role."""

    decayed: bool
    muon: bool = False  # Muon's where Muon is chosen; every other role is always Adam's


ROLES: dict[str, Role] = {
    "matrix": Role(decayed=True, muon=True),  # linear maps inside the layers
    "embedding": Role(decayed=True),
    "head": Role(decayed=True),
    "dynamic": Role(decayed=True),  # input-dependent mixing matrices (Hyper-Connections)
    "static": Role(decayed=False),  # fixed mixing weights (Hyper-Connections)
    "vector": Role(decayed=False),  # biases
    "norm": Role(decayed=False),
    "gain": Role(decayed=False),
}

BY_TYPE: tuple[tuple[type[nn.Module], dict[str, str]], ...] = (
    (nn.Linear, {"weight": "matrix", "bias": "vector"}),
    (nn.Embedding, {"weight": "embedding"}),
    (nn.LayerNorm, {"weight": "norm", "bias": "norm"}),
    (nn.RMSNorm, {"weight": "norm"}),
)
"""Roles of torch's own modules."""


@dataclass(frozen=True)
class Tuning:
    """Multipliers on the run's settings; nested ones multiply, and the innermost absolute eps wins."""

    lr: float = 1.0
    decay: float = 1.0
    eps: float = 1.0
    fixed_eps: float | None = None  # Adam's eps itself, in place of the run's (1e-20 for mHC)

    def within(self, outer: Tuning) -> Tuning:
        """This tuning inside another."""
        fixed = outer.fixed_eps if self.fixed_eps is None else self.fixed_eps
        return Tuning(self.lr * outer.lr, self.decay * outer.decay, self.eps * outer.eps, fixed)


@dataclass(frozen=True)
class Declared:
    """One parameter with its role and tuning."""

    name: str
    parameter: nn.Parameter
    role: str
    tuning: Tuning


def declared(model: nn.Module) -> list[Declared]:
    """Every parameter that is trained, once each (tied weights under their first name), with its role and tuning.

    Raises:
        InputError: a parameter without a role, or a role that does not exist.
    """
    modules = dict(model.named_modules())
    rows: list[Declared] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = _role(modules, name)
            rows.append(Declared(name, parameter, role, _tuning(modules, name, role)))
    return rows


def _path(name: str) -> list[tuple[str, str]]:
    """(module name, name of the parameter below it), from the root down to the owner."""
    parts = name.split(".")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts))]


def _role(modules: dict[str, nn.Module], name: str) -> str:
    for owner, local in _path(name):
        role = getattr(modules[owner], "param_roles", {}).get(local)
        if role is not None:
            return one_of(f"role of parameter {name},", role, ROLES)
    owner, local = _path(name)[-1]
    for kind, roles in BY_TYPE:
        if isinstance(modules[owner], kind) and local in roles:
            return roles[local]
    module = type(modules[owner]).__name__
    raise InputError(f"parameter {name} has no role: name it in param_roles of {module} ({', '.join(ROLES)})")


def _tuning(modules: dict[str, nn.Module], name: str, role: str) -> Tuning:
    tuning = Tuning()
    for owner, _ in _path(name):
        inner = getattr(modules[owner], "param_tuning", {}).get(role)
        tuning = tuning if inner is None else inner.within(tuning)
    return tuning
