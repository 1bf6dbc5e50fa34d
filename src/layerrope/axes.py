"""What a scheme is made of: a residual, a branch, gain tables, and the weight-init multiplier by role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from layerrope.gains import Covers, Product
from layerrope.norms import Gate
from layerrope.residual import Add, Branch, Ends, Residual, Single, Site
from layerrope.roles import Tuning


# --------------------------------------------------------------------------------------------------- gain tables
@dataclass(frozen=True)
class Gains:
    """A gain table as a scheme names it: how to build it, which sites it has rows for, and whether a row replaces
    the norm weight (LayerRoPE) or scales the norm (LNS)."""

    build: Callable[[int, int], nn.Module]  # (n_layer, d_model) -> module; module(n_depth) -> G (L, 2, 2, D or 1)
    sites: frozenset[str]
    replaces: bool = False


READS = frozenset({"attn_read", "mlp_read"})
WRITES = frozenset({"attn_write", "mlp_write"})


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


def layerscale_start(n_layer: int) -> float:
    """0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond   (CaiT, arXiv 2103.17239, section 2)"""
    return 0.1 if n_layer <= 18 else 1e-5 if n_layer <= 24 else 1e-6


def layerscale_branch(site: Site, covers: Covers, start: float | None = None) -> Branch:
    """y = w * f(norm(x)), w a vector that starts at `start` (None: by depth)"""
    start = layerscale_start(site.n_layer) if start is None else start
    pre = site.norm(site.d_model, weight=not covers.replaces_read)
    return Branch(pre, Gate(start, site.d_model), covers)


# ----------------------------------------------------------------------------------------------------- the scheme
Init = Callable[[str, Site], float]
"""(role, site) -> multiplier on the standard deviation of that matrix; roles are q k v o gate up down head."""


def unit_init(role: str, site: Site) -> float:
    return 1.0


def scaled_init(role: str, site: Site) -> float:
    """1/sqrt(2L) on the output projections (Radford et al. 2019, GPT-2; Megatron-LM)."""
    return (2 * site.n_layer) ** -0.5 if role in {"o", "down"} else 1.0


def product_init(first: Init, second: Init) -> Init:
    def both(role: str, site: Site) -> float:
        return first(role, site) * second(role, site)

    return both


def tuned(first: dict[str, Tuning], second: dict[str, Tuning]) -> dict[str, Tuning]:
    """Both tunings at once, role by role."""
    roles = {**first, **second}
    return {role: first.get(role, Tuning()).within(second.get(role, Tuning())) for role in roles}


@dataclass(frozen=True)
class Scheme:
    """One depth scheme: three independent axes, a gain table and the weight-init multiplier by role."""

    rule: str  # the update rule, in one line
    source: str
    residual: Callable[[Site], Residual] = lambda site: Add()
    branch: Callable[[Site, Covers], Branch] = pre_branch
    ends: Callable[[Site], Ends] = lambda site: Single()
    gains: tuple[Gains, ...] = ()
    init: Init = unit_init
    final_norm: bool = True
    tuning: Callable[[int, int], dict[str, Tuning]] = lambda n_layer, d_model: {}  # inside the layers, by role
    head_tuning: Callable[[int], Tuning] = lambda d_model: Tuning()
    untied: bool = False  # does the rule need a head of its own?
    depth_rule: str = ""  # the constant that shrinks branches with depth, if there is one: at most one a scheme
    damped: frozenset[str] = frozenset()  # "read", "write": where that constant acts; LayerRoPE starts flat there
    cacheable: bool = True  # False where a sublayer's write looks at earlier positions
    spec: str = field(default="", compare=False)

    def covers(self, kind: str) -> Covers:
        return covers(self.gains, kind)

    def build_gains(self, n_layer: int, d_model: int) -> nn.Module | None:
        """The module whose forward gives the gain table, or None."""
        tables = [g.build(n_layer, d_model) for g in self.gains]
        return None if not tables else tables[0] if len(tables) == 1 else Product(*tables)
