"""The table of depth schemes: name -> residual x branch x gains x init.

A scheme is named by a spec: a row's name, options after a colon, additions after a plus:
`keel`, `layerrope:rotation=off,beta=0/-0.5`, `perinorm+layerrope`. `/` separates a value for reads from one for
writes. `A+layerrope` is A's residual and branch with LayerRoPE's gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from layerrope.axes import (
    READS,
    WRITES,
    Gains,
    Scheme,
    bare_branch,
    layerscale_branch,
    peri_branch,
    pre_branch,
    product_init,
    scaled_init,
)
from layerrope.errors import InputError, one_of
from layerrope.gains import LNS, SITES, BranchScale, LayerRoPE, ReZero, Start
from layerrope.residual import (
    Add,
    AttentionResidual,
    Copies,
    ExpandedHyperConnection,
    HyperConnection,
    ManifoldHyperConnection,
    Mixed,
    PostNorm,
    Site,
    WithX0,
    blend,
    check_streams,
    deepnorm_alpha,
    deepnorm_beta,
    keel,
    mixln_split,
    streams_init,
)
from layerrope.roles import ROLES, Tuning
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


def deepnorm(*, final_norm: bool = False) -> Scheme:
    return Scheme(
        "h <- norm((2N)^(1/4) h + f(h))",
        "Wang et al. 2022 (DeepNet), arXiv 2203.00555, section 3, Fig. 2",
        residual=lambda site: PostNorm(site, deepnorm_alpha(site.n_layer)),
        branch=bare_branch,
        init=lambda role, site: deepnorm_beta(role, site.n_layer),
        final_norm=final_norm,
        depth_rule="DeepNorm",
        damped=frozenset({"write"}),
    )


def keel_() -> Scheme:
    return Scheme(
        "h <- norm(2N h + f(norm(h)))",
        "Keel (2026), arXiv 2601.19895, section 3",
        residual=keel,
        depth_rule="Keel",
        damped=frozenset({"write"}),
    )


def mixln(*, fraction: float = 0.25) -> Scheme:
    """Post-Norm in the first layers, Pre-Norm in the rest."""
    if not 0 <= fraction <= 1:
        raise InputError(f"fraction of scheme 'mixln' must lie between 0 and 1: got {fraction}")

    def is_post(site: Site) -> bool:
        return site.layer < mixln_split(site.n_layer, fraction)

    return Scheme(
        f"h <- norm(h + f(h)) in the first {fraction:g} of the layers, then h <- h + f(norm(h))",
        "Li et al. 2024 (Mix-LN), arXiv 2412.13795, section 3",
        residual=lambda site: PostNorm(site) if is_post(site) else Add(),
        branch=lambda site, covers: (bare_branch if is_post(site) else pre_branch)(site, covers),
    )


def rezero(*, start: float = 0.0, final_norm: bool = True) -> Scheme:
    table = Gains(lambda n_layer, d_model: ReZero(n_layer, start), WRITES)
    return Scheme(
        "h <- h + a_l f(h)",
        "Bachlechner et al. 2020 (ReZero), arXiv 2003.04887, Eq. 2",
        branch=bare_branch,
        gains=(table,),
        final_norm=final_norm,
    )


def layerscale(*, start: float | None = None) -> Scheme:
    return Scheme(
        "h <- h + w * f(norm(h)), w a vector",
        "Touvron et al. 2021 (CaiT), arXiv 2103.17239, section 2",
        branch=partial(layerscale_branch, start=start),
        depth_rule="LayerScale",
        damped=frozenset({"write"}),
    )


def hc(*, n: int = 4, dynamic: bool = True, tanh: bool = True) -> Scheme:
    check_streams("hc", n)
    return Scheme(
        "x = A_m^T H;  H <- A_r^T H + B^T f(norm(x)), H of n streams",
        "Zhu et al. 2024 (Hyper-Connections), arXiv 2409.19606, Eq. 2-5 and 10-13",
        residual=partial(HyperConnection, n=n, dynamic=dynamic, tanh=tanh),
        ends=lambda site: Copies(n),
        init=lambda role, site: streams_init(role, n),
    )


def mhc(*, n: int = 4, iterations: int = 20, off: float = -4.0) -> Scheme:
    check_streams("mhc", n, least=2)
    _check_iterations("mhc", iterations)
    return Scheme(
        "x = H_pre H;  H <- H_res H + H_post^T f(norm(x)), H of n streams, H_res doubly stochastic",
        "Xie et al. 2025 (mHC), arXiv 2512.24880, Eq. 4-9",
        residual=partial(ManifoldHyperConnection, n=n, iterations=iterations, off=off),
        ends=lambda site: Copies(n, mean=True),
    )


def _check_iterations(name: str, iterations: int) -> None:
    if iterations < 1:
        raise InputError(f"iterations of scheme {name!r} must be at least 1: got {iterations}")


def xhc(*, n: int = 16, active: int = 4, fixed: int = 2, iterations: int = 20, off: float = -4.0) -> Scheme:
    check_streams("xhc", n, least=2)
    _check_iterations("xhc", iterations)
    if not 0 <= fixed <= active <= n or active < 1:
        raise InputError(f"scheme 'xhc' needs fixed <= active <= n: got fixed={fixed}, active={active}, n={n}")
    return Scheme(
        "x = H_pre H;  H_a <- H_res H_a + p * H_post^T v(f(norm(x))), a the active of n streams",
        "2026 (xHC), arXiv 2607.14530, from secondary notes",
        residual=partial(ExpandedHyperConnection, n=n, active=active, fixed=fixed, iterations=iterations, off=off),
        ends=lambda site: Copies(n),
        cacheable=False,
    )


def attnres(*, size: int = 1, blocks: int = 0) -> Scheme:
    """In groups of `size` sublayers, or in so many blocks; size 1 is the full form."""
    return Scheme(
        "x = sum_i softmax_i(w . rms(v_i)) v_i;  v <- (v, f(norm(x)))",
        "Kimi Team 2026 (Attention Residuals), arXiv 2603.15031, section 3",
        residual=partial(AttentionResidual, size=size, blocks=blocks),
        ends=lambda site: Mixed(site.d_model),
    )


def nanochat() -> Scheme:
    return Scheme(
        "h <- r_l h + z_l x0 before each layer, then h <- h + f(norm(h))",
        "Karpathy 2025, nanochat/gpt.py (code, no arXiv paper)",
        residual=blend,
        ends=WithX0,
    )


ROWS: dict[str, Callable[..., Scheme]] = {
    "prenorm": prenorm,
    "postnorm": postnorm,
    "deepnorm": deepnorm,
    "perinorm": perinorm,
    "rezero": rezero,
    "layerscale": layerscale,
    "mixln": mixln,
    "keel": keel_,
    "hc": hc,
    "mhc": mhc,
    "xhc": xhc,
    "attnres": attnres,
    "nanochat": nanochat,
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


def add_depth_mup(to: Scheme, *, base: int = 24) -> Scheme:
    """(L / base)^(-1/2) on every branch, with depth-muP's learning rates and Adam eps."""
    return _add_branch_scale(to, "depth-muP", 0.5, base, "Yang et al. 2023 (depth-muP), arXiv 2310.02244")


def add_completep(to: Scheme, *, base: int = 24) -> Scheme:
    """base / L on every branch, with CompleteP's learning rates and Adam eps."""
    return _add_branch_scale(to, "CompleteP", 1.0, base, "Dey et al. 2025 (CompleteP), arXiv 2505.01618")


def _add_branch_scale(to: Scheme, name: str, power: float, base: int, source: str) -> Scheme:
    """m^(-power) on every branch, m = L / base; inside the layers the learning rate times m^(power - 1) and Adam's
    eps times m^(-power)."""
    if base < 1:
        raise InputError(f"base of scheme {name!r} is a number of layers, at least 1: got {base}")
    made = _shrunk_by_depth(to, name, "write", source)
    table = Gains(lambda n_layer, d_model: BranchScale(n_layer, (n_layer / base) ** -power), WRITES)

    def tuning(n_layer: int) -> dict[str, Tuning]:
        m = n_layer / base
        return dict.fromkeys(ROLES, Tuning(lr=m ** (power - 1), eps=m**-power))

    rule = f"{to.rule}, every f times (N / {base})^-{power:g}"
    return replace(made, rule=rule, gains=(*to.gains, table), tuning=tuning)


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
    "depth-mup": ("prenorm", "depth-mup"),
    "completep": ("prenorm", "completep"),
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
