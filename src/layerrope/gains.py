"""Gain tables: one tensor G[depth, attention or MLP, read or write, D], computed once per forward.

LayerRoPE (Srivastava & Kanan 2026, arXiv 2610.09179) and Layer-Norm Scaling (Sun et al. 2025, arXiv 2502.05795).
Pure functions first, modules on top. Everything is computed in at least fp32, whatever the model's dtype, and
depends on no buffer, so a meta build followed by `to_empty` cannot wipe it.

Dimensions: L depth (executed layers), K sites, d width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from layerrope.config import MOST, check_count
from layerrope.errors import InputError, one_of
from layerrope.norms import KeepFp32, upcast

KINDS = ("attn", "mlp")
SITES = ("attn_read", "attn_write", "mlp_read", "mlp_write")

Start: TypeAlias = float | Literal["damped"] | tuple[float | Literal["damped"], float | Literal["damped"]]
"""A starting value: one number for every site, or (read, write). "damped" is -ln(2L)/2, the gain 1/sqrt(2L)."""


STORED_NAMES = {
    "gamma": "shared",
    "alpha": "offset",
    "beta": "slope",
    "alpha_rot": "angle_offset",
    "beta_rot": "angle_slope",
}
"""LayerRoPE's parameters -> their names in exported folders: some loaders rename whatever has gamma or beta in it."""


def own_name(stored: str) -> str:
    """A gain tensor's own name from the one in an exported folder; other names stay.

    >>> own_name("tables.1.angle_slope"), own_name("beta")
    ('tables.1.beta_rot', 'beta')
    """
    head, dot, last = stored.rpartition(".")
    return head + dot + {name: own for own, name in STORED_NAMES.items()}.get(last, last)


# ----------------------------------------------------------------------------------------------- pure functions
def rope_spectrum(d: int, base: float, like: Tensor) -> Tensor:
    """base^(-2j/d) for j = 0 .. d/2 - 1, shape (d/2,), in `like`'s dtype. Raises InputError for odd `d`."""
    if d % 2:
        raise InputError(f"LayerRoPE pairs channels (2j, 2j+1), so the width must be even: got {d}")
    return torch.exp(torch.arange(0, d, 2, device=like.device, dtype=like.dtype) * (-math.log(base) / d))


def rotate_pairs(gamma: Tensor, theta: Tensor) -> Tensor:
    """Turn each pair (2j, 2j+1) of `gamma` (..., d), read as a complex number, by `theta` (..., d/2) radians."""
    u, v = gamma[..., 0::2], gamma[..., 1::2]
    cos, sin = torch.cos(theta), torch.sin(theta)
    return torch.stack((u * cos - v * sin, u * sin + v * cos), dim=-1).flatten(-2)


def log_depth(n_depth: int, like: Tensor) -> Tensor:
    """log(l + 1) for l = 0 .. n_depth - 1, shape (L,), in `like`'s dtype."""
    return torch.log(torch.arange(1, n_depth + 1, device=like.device, dtype=like.dtype))


def linear_depth(n_depth: int, n_layer: int, like: Tensor) -> Tensor:
    """l log(L)/(L - 1): linear in depth, with log depth's values at the first and the last of `n_layer` layers."""
    slope = math.log(n_layer) / (n_layer - 1) if n_layer > 1 else 0.0
    return torch.arange(n_depth, device=like.device, dtype=like.dtype) * slope


def gain_table(
    gamma: Tensor,
    n_layer: int,
    alpha: float | Tensor = 0.0,
    beta: float | Tensor = -0.5,
    alpha_rot: float | Tensor = 0.0,
    beta_rot: float | Tensor = -0.5,
    base: float = 100.0,
) -> Tensor:
    """gamma_l = gamma (x) exp(r(l) + i theta(l, j))   (LayerRoPE, arXiv 2610.09179, Eq. 1)

    with r(l) = alpha + beta log(l+1) and theta(l, j) = exp(alpha_rot + beta_rot log(l+1)) base^(-2j/d), the pairs
    (2j, 2j+1) of gamma taken as complex numbers. The norm of row l is exp(r(l)) times gamma's, exactly.

    Args:
        gamma: shared gain, (d,), d even.
        n_layer: number of rows L; the layer index l is 0-based.
        alpha, beta: offset and slope of the log magnitude.
        alpha_rot, beta_rot: offset and slope of the log base angle (radians).
        base: of the spectrum over pairs.

    Returns:
        (L, d), at least fp32; row l is layer l's gain.

    Raises:
        InputError: gamma is no vector, d is odd, there is no layer, or the base is not positive.

    >>> gain_table(torch.ones(2048), 24)[0, :2]
    tensor([-0.3012,  1.3818])
    """
    if gamma.ndim != 1 or not len(gamma):
        raise InputError(f"gamma must be one vector (d,): got the shape {tuple(gamma.shape)}")
    check_count("n_layer", n_layer, MOST)
    if not 0 < base < math.inf:
        raise InputError(f"the base of LayerRoPE's spectrum must be positive: got {base}")
    gamma = upcast(gamma)
    u = log_depth(n_layer, gamma)
    theta = torch.exp(alpha_rot + beta_rot * u)[:, None] * rope_spectrum(gamma.shape[-1], base, gamma)
    return torch.exp(alpha + beta * u)[:, None] * rotate_pairs(gamma, theta)


def damped(n_layer: int) -> float:
    """-ln(2L)/2: as a log gain on every write, the 1/sqrt(2L) by which GPT-2 shrinks its output projections."""
    return -0.5 * math.log(2 * n_layer)


# ------------------------------------------------------------------------------------------------------ modules
class LayerRoPE(KeepFp32):
    """gamma_l = gamma (x) exp(r(l) + i theta(l, j)) at four sites   (LayerRoPE, arXiv 2610.09179, Eq. 1)

    One shared vector and four scalars a site: 4d + 16 parameters for the whole network, kept in fp32. The gains
    replace the norm weight where a norm stands (reads, and writes of a Peri-Norm backbone) and gate the raw output
    elsewhere (writes of a Pre-Norm backbone).

    Args:
        n_layer: number of layers L (sets "damped", the geometric schedule and the sizes of free tables).
        d_model: width d, even.
        sites: which of `SITES` are covered; the others keep the backbone's own weight or have no gate.
        magnitude: False fixes r = 0.
        rotation: False fixes theta = 0 (then no pair is formed and d may be odd).
        spectrum: "rope" for base^(-2j/d), "single" for one angle for every pair.
        gamma: "shared" by all layers, or one for each "layer".
        schedule: "power" (linear in log(l+1)), "geometric" (linear in l, with the same first and last values; its
            relative update does not fade with depth), or "free" (a table, started from the power law).
        alpha, beta, alpha_rot, beta_rot: starting values; see `Start`.
        base: of the spectrum.

    Raises:
        InputError: odd width with rotation on, unknown switch, nothing left to learn.
    """

    param_roles = dict.fromkeys(
        ("gamma", "alpha", "beta", "alpha_rot", "beta_rot", "magnitude_table", "angle_table"), "gain"
    )

    def __init__(
        self,
        n_layer: int,
        d_model: int,
        *,
        sites: tuple[str, ...] = SITES,
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
    ) -> None:
        super().__init__()
        for site in sites:
            one_of("gain site", site, SITES)
        if not sites:
            raise InputError("LayerRoPE with no site covers nothing: name at least one of " + ", ".join(SITES))
        if rotation and d_model % 2:
            raise InputError(f"LayerRoPE pairs channels (2j, 2j+1), so the width must be even: got {d_model}")
        if base <= 0:
            raise InputError(f"the base of LayerRoPE's spectrum must be positive: got {base}")
        self.n_layer, self.d_model, self.base = n_layer, d_model, base
        self.sites = tuple(s for s in SITES if s in sites)
        self.magnitude, self.rotation = magnitude, rotation
        self.spectrum = one_of("spectrum", spectrum, ("rope", "single"))
        self.gamma_per = one_of("gamma", gamma, ("shared", "layer"))
        self.schedule = one_of("schedule", schedule, ("power", "geometric", "free"))
        self.starts = {"alpha": alpha, "beta": beta, "alpha_rot": alpha_rot, "beta_rot": beta_rot}
        self._build()
        self.reset_parameters()

    def _build(self) -> None:
        K, L = len(self.sites), self.n_layer
        shape = (K, self.d_model) if self.gamma_per == "shared" else (L, K, self.d_model)
        self.gamma = nn.Parameter(torch.empty(shape, dtype=torch.float32))

        def maybe(on: bool, *size: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(size, dtype=torch.float32)) if on else None

        law = self.schedule != "free"
        self.alpha, self.beta = maybe(self.magnitude and law, K), maybe(self.magnitude and law, K)
        self.alpha_rot, self.beta_rot = maybe(self.rotation and law, K), maybe(self.rotation and law, K)
        self.magnitude_table = maybe(self.magnitude and not law, L, K)
        self.angle_table = maybe(self.rotation and not law, L, K)

    def start(self, name: str) -> Tensor:
        """The starting value of scalar `name` at each covered site, (K,)."""
        value = self.starts[name]
        read, write = value if isinstance(value, tuple) else (value, value)

        def number(v: float | str) -> float:
            return damped(self.n_layer) if v == "damped" else float(v)

        values = [number(read if s.endswith("read") else write) for s in self.sites]
        return torch.tensor(values, device=self.gamma.device)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.gamma.fill_(1.0)
        for name in self.starts:
            scalar = getattr(self, name)
            if scalar is not None:
                scalar.copy_(self.start(name))
        law = log_depth(self.n_layer, self.gamma)[:, None]
        if self.magnitude_table is not None:
            self.magnitude_table.copy_(self.start("alpha") + self.start("beta") * law)
        if self.angle_table is not None:
            self.angle_table.copy_(self.start("alpha_rot") + self.start("beta_rot") * law)

    def _law(self, offset: Tensor | None, slope: Tensor | None, table: Tensor | None, n: int) -> Tensor:
        """offset + slope * depth, or the table's rows: (L, K)."""
        if table is not None:
            return table[:n]
        assert offset is not None
        assert slope is not None
        power = self.schedule == "power"
        depth = log_depth(n, slope) if power else linear_depth(n, self.n_layer, slope)
        return offset + slope * depth[:, None]

    def _per_depth(self, n_depth: int | None) -> int:
        n = self.n_layer if n_depth is None else n_depth
        tied_to_depth = self.gamma_per == "layer" or self.schedule == "free"
        if tied_to_depth and n > self.n_layer:
            raise InputError(
                f"free per-layer gains exist for {self.n_layer} layers, {n} were asked for: "
                "use gamma=shared and the power or geometric schedule"
            )
        return n

    def log_magnitude(self, n_depth: int | None = None) -> Tensor:
        """r(l) at each covered site, (L, K)."""
        n = self._per_depth(n_depth)
        if not self.magnitude:
            return self.gamma.new_zeros(n, len(self.sites))
        return self._law(self.alpha, self.beta, self.magnitude_table, n)

    def base_angle(self, n_depth: int | None = None) -> Tensor:
        """theta(l, 0) in radians at each covered site, (L, K)."""
        n = self._per_depth(n_depth)
        if not self.rotation:
            return self.gamma.new_zeros(n, len(self.sites))
        return torch.exp(self._law(self.alpha_rot, self.beta_rot, self.angle_table, n))

    def site_rows(self, n_depth: int | None = None) -> Tensor:
        """The gains of the covered sites, (L, K, d), in fp32."""
        n = self._per_depth(n_depth)
        gamma: Tensor = self.gamma
        rows = gamma[:n] if self.gamma_per == "layer" else gamma.expand(n, -1, -1)
        if self.rotation:
            angle = self.base_angle(n)[..., None]
            if self.spectrum == "rope":
                angle = angle * rope_spectrum(self.d_model, self.base, angle)
            rows = rotate_pairs(rows, angle)
        if self.magnitude:
            rows = torch.exp(self.log_magnitude(n))[..., None] * rows
        return rows

    def forward(self, n_depth: int | None = None) -> Tensor:
        """G (L, 2, 2, d): depth, attention or MLP, read or write, width; ones at sites not covered."""
        rows = self.site_rows(n_depth)
        if len(self.sites) < len(SITES):
            ones = torch.ones_like(rows[:, 0])
            columns = [rows[:, self.sites.index(s)] if s in self.sites else ones for s in SITES]
            rows = torch.stack(columns, dim=1)
        return rows.reshape(-1, 2, 2, self.d_model)

    def extra_repr(self) -> str:
        return (
            f"{self.n_layer}, {self.d_model}, sites={','.join(self.sites)}, schedule={self.schedule}, "
            f"magnitude={self.magnitude}, rotation={self.rotation}, spectrum={self.spectrum}"
        )


class LNS(nn.Module):
    """norm(x) <- norm(x) / sqrt(l), l = 1 .. L, on both reads   (Layer-Norm Scaling, arXiv 2502.05795, Eq. 6)

    A constant, no parameter: it scales the norm's own output and leaves its weight in place. The table's last
    dimension is 1, since every channel has the same gain.
    """

    def __init__(self, n_layer: int) -> None:
        super().__init__()
        self.n_layer = n_layer

    def forward(self, n_depth: int | None = None) -> Tensor:
        """G (L, 2, 2, 1): 1/sqrt(l+1) in the read column, 1 in the write column, fp32, on the default device."""
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        read = torch.rsqrt(torch.arange(1, (n_depth or self.n_layer) + 1, dtype=dtype))
        return torch.stack((read, torch.ones_like(read)), dim=-1)[:, None, :, None].expand(-1, 2, -1, -1)


class ReZero(KeepFp32):
    """a_l on what both sublayers of layer l write   (ReZero, arXiv 2003.04887, section 3)

    One scalar a layer, 0 at the start, so the network starts as the identity; held as one vector (L,), since
    FSDP2 refuses parameters without a dimension.
    """

    param_roles = {"scale": "gain"}

    def __init__(self, n_layer: int, start: float = 0.0) -> None:
        super().__init__()
        self.n_layer, self.start = n_layer, start
        self.scale = nn.Parameter(torch.empty(n_layer, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start)

    def forward(self, n_depth: int | None = None) -> Tensor:
        """G (L, 2, 2, 1): 1 in the read column, a_l in the write column. Raises InputError beyond n_layer."""
        n = self.n_layer if n_depth is None else n_depth
        if n > self.n_layer:
            raise InputError(f"ReZero has one scalar for each of {self.n_layer} layers: there is none for depth {n}")
        write = self.scale[:n]
        return torch.stack((torch.ones_like(write), write), dim=-1)[:, None, :, None].expand(-1, 2, -1, -1)


class BranchScale(nn.Module):
    """One constant on what every sublayer writes; no parameter."""

    def __init__(self, n_layer: int, write: float) -> None:
        super().__init__()
        self.n_layer, self.write = n_layer, write

    def forward(self, n_depth: int | None = None) -> Tensor:
        """G (L, 2, 2, 1): 1 in the read column, the constant in the write column."""
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        return torch.tensor([1.0, self.write], dtype=dtype).view(2, 1).expand(n_depth or self.n_layer, 2, 2, 1)


class Product(nn.Module):
    """The product of several gain tables, for combinations such as `lns+layerrope`."""

    def __init__(self, *tables: nn.Module) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)

    def forward(self, n_depth: int | None = None) -> Tensor:
        first, *rest = (table(n_depth) for table in self.tables)
        for other in rest:
            first = first * other
        return first


@dataclass(frozen=True)
class Covers:
    """What a scheme's gain table does at one sublayer: has it a read row, a write row, and does each stand in for
    the norm's own weight (LayerRoPE) or scale it (LNS)?"""

    read: bool = False
    write: bool = False
    replaces_read: bool = False
    replaces_write: bool = False
