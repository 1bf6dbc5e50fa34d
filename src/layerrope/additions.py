"""Additions: what may follow a plus in a scheme's spec. Each takes the scheme so far and gives the next.

Depth is counted once: of the constants that shrink branches with depth a scheme takes one, and LayerRoPE, whose gains
are learned, starts flat where there is such a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from layerrope.axes import READS, WRITES, Gains, Scheme, product_init, scaled_init, tuned
from layerrope.errors import InputError, one_of
from layerrope.gains import LNS, SITES, BranchScale, LayerRoPE, Start
from layerrope.residual import Site
from layerrope.roles import ROLES, Tuning


def add_scaledinit(to: Scheme) -> Scheme:
    """1/sqrt(2L) on the output projections at the start."""
    made = _shrunk_by_depth(to, "scaled init", "write", "Radford et al. 2019 (GPT-2), section 2.3")
    return replace(made, init=product_init(to.init, scaled_init))


def add_lns(to: Scheme) -> Scheme:
    """1/sqrt(l) on what the norms before f give."""
    made = _shrunk_by_depth(to, "LNS", "read", "Sun et al. 2025, arXiv 2502.05795, Eq. 6")
    table = Gains(lambda n_layer, d_model: LNS(n_layer), READS)
    return replace(made, rule=to.rule.replace("f(norm(h))", "f(norm(h) / sqrt(l))"), gains=(*to.gains, table))


def add_depth_mup(to: Scheme, *, base: int = 24, width: int = 0) -> Scheme:
    """(L / base)^(-1/2) on every branch, with depth-muP's learning rates and Adam eps; a width adds `add_mup`."""
    made = _add_branch_scale(to, "depth-muP", 0.5, base, "Yang et al. 2023 (depth-muP), arXiv 2310.02244")
    return add_mup(made, width=width) if width else made


def add_completep(to: Scheme, *, base: int = 24, width: int = 0) -> Scheme:
    """base / L on every branch, with CompleteP's learning rates and Adam eps; a width adds `add_mup`."""
    made = _add_branch_scale(to, "CompleteP", 1.0, base, "Dey et al. 2025 (CompleteP), arXiv 2505.01618")
    return add_mup(made, width=width) if width else made


def _add_branch_scale(to: Scheme, name: str, power: float, base: int, source: str) -> Scheme:
    """m^(-power) on every branch, m = L / base; inside the layers the learning rate times m^(power - 1) and Adam's
    eps times m^(-power)."""
    if base < 1:
        raise InputError(f"base of {name} is a number of layers, at least 1: got {base}")
    made = _shrunk_by_depth(to, name, "write", source)
    table = Gains(lambda n_layer, d_model: BranchScale(n_layer, (n_layer / base) ** -power), WRITES)

    def tuning(n_layer: int, d_model: int) -> dict[str, Tuning]:
        m = n_layer / base
        return tuned(to.tuning(n_layer, d_model), dict.fromkeys(ROLES, Tuning(lr=m ** (power - 1), eps=m**-power)))

    rule = f"{to.rule}, every f times (N / {base})^-{power:g}"
    return replace(made, rule=rule, gains=(*to.gains, table), tuning=tuning)


def add_mup(to: Scheme, *, width: int = 256) -> Scheme:
    """muP for Adam, m = D / width: matrices in the layers start m^(-1/2) smaller, learn 1/m as fast, with m times the
    decay and eps / m. The head's 1/m forward is its start and rate over m, decay and eps times m: the same numbers.
    """
    if width < 1:
        raise InputError(f"width of muP is a number of channels, at least 1: got {width}")
    if to.untied:
        raise InputError("muP is there twice: drop one")

    def tuning(n_layer: int, d_model: int) -> dict[str, Tuning]:
        m = d_model / width
        return tuned(to.tuning(n_layer, d_model), {"matrix": Tuning(lr=1 / m, decay=m, eps=1 / m)})

    def init(role: str, site: Site) -> float:
        m = site.d_model / width
        return to.init(role, site) * (1 / m if role == "head" else m**-0.5)

    def head(d_model: int) -> Tuning:
        return Tuning(lr=width / d_model, decay=d_model / width, eps=d_model / width)

    return replace(
        to,
        source=f"Yang et al. 2022 (muP), arXiv 2203.03466, on: {to.source}",
        init=init,
        tuning=tuning,
        head_tuning=head,
        untied=True,
    )


def add_layerrope(
    to: Scheme,
    *,
    sites: str = "all",
    magnitude: bool = True,
    rotation: bool = True,
    spectrum: str = "rope",
    gamma: str = "shared",
    schedule: str = "power",
    alpha: Start = 0.0,
    beta: Start | None = None,
    alpha_rot: Start = 0.0,
    beta_rot: Start = -0.5,
    base: float = 100.0,
) -> Scheme:
    """LayerRoPE's table with its switches (see `layerrope.LayerRoPE`).

    `sites` is "all", "read", "write", or site names joined by "/". `beta` starts at -0.5, but at 0 on the side
    (reads or writes) that `to` already shrinks with depth, so that depth is not counted twice.
    """
    if any(g.replaces for g in to.gains):
        raise InputError("LayerRoPE's gains are there twice: drop one +layerrope")
    chosen = _SITE_SETS.get(sites) or tuple(sites.split("/"))
    for site in chosen:
        one_of("gain site", site, (*SITES, *_SITE_SETS))
    slopes = (0.0 if "read" in to.damped else -0.5, 0.0 if "write" in to.damped else -0.5)
    build = partial(
        LayerRoPE,
        sites=chosen,
        magnitude=magnitude,
        rotation=rotation,
        spectrum=spectrum,
        gamma=gamma,
        schedule=schedule,
        alpha=alpha,
        beta=slopes if beta is None else beta,
        alpha_rot=alpha_rot,
        beta_rot=beta_rot,
        base=base,
    )
    rule = f"{to.rule}, gains gamma_l = gamma (x) exp(r(l) + i theta(l, j))"
    source = f"Srivastava & Kanan 2026, arXiv 2610.09179, Eq. 1, on: {to.source}"
    return replace(to, rule=rule, source=source, gains=(*to.gains, Gains(build, frozenset(chosen), replaces=True)))


_SITE_SETS: dict[str, tuple[str, ...]] = {"all": SITES, "read": tuple(sorted(READS)), "write": tuple(sorted(WRITES))}

ADDITIONS: dict[str, Callable[..., Scheme]] = {
    "layerrope": add_layerrope,
    "lns": add_lns,
    "scaledinit": add_scaledinit,
    "depth-mup": add_depth_mup,
    "completep": add_completep,
    "mup": add_mup,
}
"""What may follow a plus: each takes the scheme so far."""


def _shrunk_by_depth(to: Scheme, rule: str, side: str, source: str) -> Scheme:
    """`to` with a constant that shrinks its branches with depth. Raises InputError where there is one already."""
    if to.depth_rule:
        raise InputError(f"{to.depth_rule} and {rule} together count depth twice: drop one")
    return replace(to, source=f"{source}, on: {to.source}", depth_rule=rule, damped=frozenset({side}))
