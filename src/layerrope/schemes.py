"""The table of depth schemes: name -> residual x branch x gains x init.

A scheme is named by a spec: a row's name, options after a colon, parts joined by a plus:
`layerrope`, `layerrope:rotation=off,beta=0/-0.5`, `perinorm+layerrope`. `/` separates a value for reads from one
for writes. `A+layerrope` is A's residual and branch with LayerRoPE's gains.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from layerrope.errors import InputError, one_of
from layerrope.gains import LNS, SITES, Covers, LayerRoPE, Product, Start
from layerrope.norms import Gate
from layerrope.residual import Add, Branch, Ends, PostNorm, Residual, Single, Site


# --------------------------------------------------------------------------------------------------- gain tables
@dataclass(frozen=True)
class Gains:
    """A gain table as a scheme names it: how to build it, which sites it has rows for, and whether a row replaces
    the norm weight (LayerRoPE) or scales the norm (LNS)."""

    build: Callable[[int, int], nn.Module]  # (n_layer, d_model) -> module; module(n_depth) -> G (L, 2, 2, D or 1)
    sites: frozenset[str]
    replaces: bool = False


def covers(gains: tuple[Gains, ...], kind: str) -> Covers:
    """What the tables together do at the sublayers of this kind."""

    def at(site: str) -> tuple[bool, bool]:
        here = [g for g in gains if site in g.sites]
        return bool(here), any(g.replaces for g in here)

    (read, replaces_read), (write, replaces_write) = at(f"{kind}_read"), at(f"{kind}_write")
    return Covers(read, write, replaces_read, replaces_write)


# ------------------------------------------------------------------------------------------------------ branches
def pre_branch(site: Site, covers: Covers) -> Branch:
    """y = f(norm(x)); a write row gates the raw output."""
    return Branch(site.norm(site.d_model, weight=not covers.replaces_read), Gate(), covers)


def peri_branch(site: Site, covers: Covers) -> Branch:
    """y = norm(f(norm(x)))"""
    pre = site.norm(site.d_model, weight=not covers.replaces_read)
    post = site.norm(site.d_model, weight=not covers.replaces_write)
    return Branch(pre, post, covers)


def bare_branch(site: Site, covers: Covers) -> Branch:
    """y = f(x)"""
    return Branch(Gate(), Gate(), covers)


# ----------------------------------------------------------------------------------------------------- the scheme
def unit_init(role: str, site: Site) -> float:
    return 1.0


def scaled_init(role: str, site: Site) -> float:
    """1/sqrt(2L) on the output projections (Radford et al. 2019, GPT-2; Megatron-LM)."""
    return (2 * site.n_layer) ** -0.5 if role in {"o", "down"} else 1.0


@dataclass(frozen=True)
class Scheme:
    """One depth scheme: three independent axes, a gain table and the weight-init multiplier by role."""

    rule: str  # the update rule, in one line
    source: str
    residual: Callable[[Site], Residual] = lambda site: Add()
    branch: Callable[[Site, Covers], Branch] = pre_branch
    ends: Callable[[Site], Ends] = lambda site: Single()
    gains: tuple[Gains, ...] = ()
    init: Callable[[str, Site], float] = unit_init
    final_norm: bool = True
    spec: str = field(default="", compare=False)

    def covers(self, kind: str) -> Covers:
        return covers(self.gains, kind)

    def build_gains(self, n_layer: int, d_model: int) -> nn.Module | None:
        """The module whose forward gives the gain table, or None."""
        tables = [g.build(n_layer, d_model) for g in self.gains]
        return None if not tables else tables[0] if len(tables) == 1 else Product(*tables)


# ------------------------------------------------------------------------------------------------------ the table
def prenorm() -> Scheme:
    return Scheme("h <- h + f(norm(h))", "Xiong et al. 2020, arXiv 2002.04745")


def prenorm_scaledinit() -> Scheme:
    return replace(prenorm(), source="Radford et al. 2019 (GPT-2), section 2.3", init=scaled_init)


def postnorm() -> Scheme:
    return Scheme(
        "h <- norm(h + f(h))",
        "Vaswani et al. 2017, arXiv 1706.03762, section 3.1",
        residual=PostNorm,
        branch=bare_branch,
        final_norm=False,
    )


def lns() -> Scheme:
    gains = Gains(lambda n_layer, d_model: LNS(n_layer), frozenset({"attn_read", "mlp_read"}))
    return Scheme("h <- h + f(norm(h) / sqrt(l))", "Sun et al. 2025, arXiv 2502.05795, Eq. 6", gains=(gains,))


def perinorm() -> Scheme:
    return Scheme("h <- h + norm(f(norm(h)))", "Kim et al. 2025, arXiv 2502.02732, section 3", branch=peri_branch)


def layerrope_gains(
    *,
    sites: str = "all",
    magnitude: bool = True,
    rotation: bool = True,
    spectrum: str = "rope",
    gamma: str = "shared",
    schedule: str = "power",
    alpha: Start = 0.0,
    beta: Start = -0.5,
    alpha_rot: Start = 0.0,
    beta_rot: Start = -0.5,
    base: float = 100.0,
) -> Gains:
    """LayerRoPE's table with its switches (see `layerrope.LayerRoPE`).

    `sites` is "all", "read", "write", or site names joined by "/".
    """
    chosen = _SITE_SETS.get(sites) or tuple(sites.split("/"))
    for site in chosen:
        one_of("gain site", site, (*SITES, *_SITE_SETS))
    build = partial(
        LayerRoPE,
        sites=chosen,
        magnitude=magnitude,
        rotation=rotation,
        spectrum=spectrum,
        gamma=gamma,
        schedule=schedule,
        alpha=alpha,
        beta=beta,
        alpha_rot=alpha_rot,
        beta_rot=beta_rot,
        base=base,
    )
    return Gains(build, frozenset(chosen), replaces=True)


_SITE_SETS: dict[str, tuple[str, ...]] = {
    "all": SITES,
    "read": ("attn_read", "mlp_read"),
    "write": ("attn_write", "mlp_write"),
}

_LAYERROPE = "Srivastava & Kanan 2026, arXiv 2610.09179, Eq. 1"

ROWS: dict[str, Callable[..., Scheme]] = {
    "prenorm": prenorm,
    "prenorm-scaledinit": prenorm_scaledinit,
    "postnorm": postnorm,
    "lns": lns,
    "perinorm": perinorm,
}
"""Rows without LayerRoPE's gains; `layerrope` itself is `prenorm+layerrope`, `layerrope-peri` `perinorm+layerrope`."""

_ALIASES = {"layerrope": "prenorm", "layerrope-peri": "perinorm"}


def scheme(spec: str) -> Scheme:
    """The scheme that `spec` names.

    >>> scheme("perinorm+layerrope:rotation=off").final_norm
    True

    Raises:
        InputError: unknown name, option or value, with the nearest names.
    """
    head, *rest = spec.replace(" ", "").split("+")
    name, options = _options(head)
    one_of("scheme", name, (*ROWS, *_ALIASES))
    if name in _ALIASES:
        made = _with_layerrope(ROWS[_ALIASES[name]](), options, spec)
    else:
        made = _call(ROWS[name], options, name)
    for part in rest:
        extra, options = _options(part)
        if extra != "layerrope":
            raise InputError(f"cannot add {extra!r} to {head!r} in scheme {spec!r}: only +layerrope combines")
        made = _with_layerrope(made, options, spec)
    return replace(made, spec=spec.replace(" ", ""))


def _with_layerrope(base: Scheme, options: dict[str, Any], spec: str) -> Scheme:
    if any(g.replaces for g in base.gains):
        raise InputError(f"scheme {spec!r} has LayerRoPE's gains twice: drop one")
    rule = f"{base.rule}, gains gamma_l = gamma (x) exp(r(l) + i theta(l, j))"
    table = _call(layerrope_gains, options, "layerrope")
    return replace(base, rule=rule, source=f"{_LAYERROPE} on: {base.source}", gains=(*base.gains, table))


def _options(part: str) -> tuple[str, dict[str, Any]]:
    name, _, tail = part.partition(":")
    pairs = [item.partition("=") for item in tail.split(",")] if tail else []
    for key, equals, value in pairs:
        if not (key and equals and value):
            raise InputError(f"cannot read options {tail!r} of scheme {name!r}: write {name}:name=value,name=value")
    return name, {key: _value(value) for key, _, value in pairs}


_WORDS = {"on": True, "true": True, "off": False, "false": False}


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    parts = [_number(p) for p in text.split("/")]
    if len(parts) == 2 and all(isinstance(p, float | int) or p == "damped" for p in parts):
        return tuple(parts)
    return parts[0] if len(parts) == 1 else text


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _call(row: Callable[..., Any], options: dict[str, Any], name: str) -> Any:
    known = inspect.signature(row).parameters
    for key, value in options.items():
        if key not in known:
            choices = ", ".join(known) or "none"
            raise InputError(f"scheme {name!r} has no option {key!r}: its options are {choices}")
        default = known[key].default
        _check(name, key, value, default)
    return row(**options)


def _check(name: str, key: str, value: Any, default: Any) -> None:
    """Raise InputError unless `value` is of the kind that option `key` takes, judged by its default."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "on or off"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), "a word"
    elif isinstance(default, int):
        fits, wanted = is_number and isinstance(value, int), "a whole number"
    elif key in {"alpha", "beta", "alpha_rot", "beta_rot"}:
        fits, wanted = is_number or isinstance(value, tuple) or value == "damped", "a number, damped, or READ/WRITE"
    else:
        fits, wanted = is_number, "a number"
    if not fits:
        raise InputError(f"option {key}={value} of scheme {name!r} is not {wanted}")


schemes: dict[str, Scheme] = {name: scheme(name) for name in (*ROWS, *_ALIASES)}
"""Every named scheme at its default options."""
