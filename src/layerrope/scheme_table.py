"""The table of depth schemes: name -> residual x branch x gains x init.

A scheme is named by a spec: a row's name, options after a colon, additions after a plus:
`keel`, `layerrope:rotation=off,beta=0/-0.5`, `perinorm+layerrope`. `/` separates a value for reads from one for
writes. `A+layerrope` is A's residual and branch with LayerRoPE's gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from layerrope.additions import ADDITIONS
from layerrope.axes import WRITES, Gains, Scheme, bare_branch, layerscale_branch, peri_branch, pre_branch
from layerrope.errors import InputError, one_of
from layerrope.gains import ReZero
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
    keel_residual,
    mixln_split,
    streams_init,
)
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
        "Wang et al. 2022 (DeepNet), arXiv 2203.00555, Fig. 2",
        residual=lambda site: PostNorm(site, deepnorm_alpha(site.n_layer)),
        branch=bare_branch,
        init=lambda role, site: deepnorm_beta(role, site.n_layer),
        final_norm=final_norm,
        depth_rule="DeepNorm",
        damped=frozenset({"write"}),
    )


def keel() -> Scheme:
    return Scheme(
        "h <- norm(2N h + f(norm(h)))",
        "Keel (2026), arXiv 2601.19895",
        residual=keel_residual,
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
        "Li et al. 2024 (Mix-LN), arXiv 2412.13795",
        residual=lambda site: PostNorm(site) if is_post(site) else Add(),
        branch=lambda site, covers: (bare_branch if is_post(site) else pre_branch)(site, covers),
    )


def rezero(*, start: float = 0.0, final_norm: bool = True) -> Scheme:
    table = Gains(lambda n_layer, d_model: ReZero(n_layer, start), WRITES)
    return Scheme(
        "h <- h + a_l f(h)",
        "Bachlechner et al. 2020 (ReZero), arXiv 2003.04887, section 3",
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
        "Zhu et al. 2024 (Hyper-Connections), arXiv 2409.19606, sections 2-4",
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
        "Kimi Team 2026 (Attention Residuals), arXiv 2603.15031",
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
    "keel": keel,
    "hc": hc,
    "mhc": mhc,
    "xhc": xhc,
    "attnres": attnres,
    "nanochat": nanochat,
}
"""Backbones; their keyword-only parameters are the options of a spec."""


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
