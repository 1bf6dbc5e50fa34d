"""The table of depth schemes: name -> residual x branch x gains x init.

A scheme is named by a spec: a row's name, options after a colon, additions after a plus:
`keel`, `layerrope:rotation=off,beta=0/-0.5`, `perinorm+layerrope`. `/` separates a value for reads from one for
writes. `A+layerrope` is A's residual and branch with LayerRoPE's gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from layerrope.axes import READS, WRITES, Gains, Scheme, bare_branch, peri_branch, product_init, scaled_init
from layerrope.errors import InputError, one_of
from layerrope.gains import LNS, SITES, LayerRoPE, Start
from layerrope.residual import PostNorm
from layerrope.scheme_spec import call, parse


# ---------------------------------------------------------------------------------------------------------- rows
def prenorm() -> Scheme:
    return Scheme("h <- h + f(norm(h))", "Xiong et al. 2020, arXiv 2002.04745")


def postnorm() -> Scheme:
    return Scheme(
        "h <- norm(h + f(h))",
        "Vaswani et al. 2017, arXiv 1706.03762, section 3.1",
        residual=PostNorm,
        branch=bare_branch,
        final_norm=False,
    )


def perinorm() -> Scheme:
    return Scheme("h <- h + norm(f(norm(h)))", "Kim et al. 2025, arXiv 2502.02732, section 3", branch=peri_branch)


ROWS: dict[str, Callable[..., Scheme]] = {
    "prenorm": prenorm,
    "postnorm": postnorm,
    "perinorm": perinorm,
}
"""Backbones; their keyword-only parameters are the options of a spec."""


# ----------------------------------------------------------------------------------------------------- additions
def add_scaledinit(to: Scheme) -> Scheme:
    """1/sqrt(2L) on the output projections at the start."""
    made = _shrunk_by_depth(to, "scaled init", "write", "Radford et al. 2019 (GPT-2), section 2.3")
    return replace(made, init=product_init(to.init, scaled_init))


def add_lns(to: Scheme) -> Scheme:
    """1/sqrt(l) on what the norms before f give."""
    made = _shrunk_by_depth(to, "LNS", "read", "Sun et al. 2025, arXiv 2502.05795, Eq. 6")
    table = Gains(lambda n_layer, d_model: LNS(n_layer), READS)
    return replace(made, rule=to.rule.replace("f(norm(h))", "f(norm(h) / sqrt(l))"), gains=(*to.gains, table))


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
}
"""What may follow a plus: each takes the scheme so far."""


def _shrunk_by_depth(to: Scheme, rule: str, side: str, source: str) -> Scheme:
    """`to` with a constant that shrinks its branches with depth. Raises InputError where there is one already."""
    if to.depth_rule:
        raise InputError(f"{to.depth_rule} and {rule} together count depth twice: drop one")
    source = source if to == prenorm() else f"{source}, on: {to.source}"
    return replace(to, source=source, depth_rule=rule, damped=frozenset({side}))


# ------------------------------------------------------------------------------------------------------ the table
NAMED: dict[str, tuple[str, str]] = {
    "prenorm-scaledinit": ("prenorm", "scaledinit"),
    "lns": ("prenorm", "lns"),
    "layerrope": ("prenorm", "layerrope"),
    "layerrope-peri": ("perinorm", "layerrope"),
}
"""Rows that are a backbone with one addition."""


def scheme(spec: str) -> Scheme:
    """The scheme that `spec` names.

    >>> scheme("perinorm+layerrope:rotation=off").final_norm
    True

    Raises:
        InputError: unknown name, option or value, with the nearest names; a depth rule counted twice.
    """
    (name, options), *rest = parse(spec)
    one_of("scheme", name, (*ROWS, *NAMED))
    if name in NAMED:
        backbone, addition = NAMED[name]
        made = call(name, ADDITIONS[addition], options, ROWS[backbone]())
    else:
        made = call(name, ROWS[name], options)
    for extra, options in rest:
        if extra not in ADDITIONS:
            raise InputError(f"cannot add {extra!r} in scheme {spec!r}: what combines is +{', +'.join(ADDITIONS)}")
        made = call(extra, ADDITIONS[extra], options, made)
    return replace(made, spec=spec.replace(" ", ""))


schemes: dict[str, Scheme] = {name: scheme(name) for name in (*ROWS, *NAMED)}
"""Every named scheme at its default options."""
