"""The plain loop of each depth scheme, in float64, written from the papers and from nothing in this package.

A loop sees `net`, the parameters of a decoder by name, and its sublayers `s` in order. `s.f(x)` is attention or MLP
with no norm; `s.p(name)` a parameter of the sublayer; `s.read` and `s.write` are LayerRoPE's gains (1 without it);
`s.layer` and `s.index` count from 0. `rms(x)` has no weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EPS = 1e-6
Loop = Callable[["Net", Tensor, dict[str, Any]], Tensor]


# ------------------------------------------------------------------------------------------------ the plain pieces
def rms(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, n_head: int) -> Tensor:
    """Causal attention, one head and one position at a time."""
    d = x.shape[-1] // n_head
    heads = []
    for h in range(n_head):
        rows = slice(h * d, (h + 1) * d)
        Q, K, V = x @ q[rows].T, x @ k[rows].T, x @ v[rows].T
        heads.append(
            torch.stack(
                [(Q[:, t : t + 1] @ K[:, : t + 1].mT / d**0.5).softmax(-1) @ V[:, : t + 1] for t in range(x.shape[1])],
                1,
            )
        )
    return torch.cat([h[:, :, 0] for h in heads], -1) @ o.T


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    g = x @ gate.T
    return (g / (1 + torch.exp(-g)) * (x @ up.T)) @ down.T


@dataclass
class Sub:
    """One sublayer of `net`."""

    net: Net
    layer: int
    kind: str

    @property
    def index(self) -> int:
        return 2 * self.layer + (self.kind == "mlp")

    def p(self, name: str) -> Tensor:
        return self.net.params[f"layers.{self.layer}.{self.kind}.{name}"]

    @property
    def pre(self) -> Tensor | float:
        """The weight of the norm before f; LayerRoPE's gain stands in its place."""
        return self.net.params.get(f"layers.{self.layer}.{self.kind}.branch.pre.weight", 1.0)

    @property
    def post(self) -> Tensor | float:
        """The weight of the norm or gate after f."""
        return self.net.params.get(f"layers.{self.layer}.{self.kind}.branch.post.weight", 1.0)

    @property
    def read(self) -> Tensor | float:
        return self.net.gain(self.layer, f"{self.kind}_read")

    @property
    def write(self) -> Tensor | float:
        return self.net.gain(self.layer, f"{self.kind}_write")

    def f(self, x: Tensor) -> Tensor:
        weights = ("q", "k", "v", "o") if self.kind == "attn" else ("gate", "up", "down")
        matrices = [self.p(f"f.{w}.weight") for w in weights]
        return attention(x, *matrices, self.net.n_head) if self.kind == "attn" else swiglu(x, *matrices)


@dataclass
class Net:
    """A decoder with learned positions, as a dict of its parameters."""

    params: dict[str, Tensor]
    n_layer: int
    n_head: int
    layerrope: dict[str, Any] | None = None  # its options, where the scheme has LayerRoPE's gains

    def __iter__(self) -> Iterator[Sub]:
        for layer in range(self.n_layer):
            yield from (Sub(self, layer, "attn"), Sub(self, layer, "mlp"))

    def logits(self, ids: Tensor, loop: Loop, options: dict[str, Any]) -> Tensor:
        h = self.params["embed.weight"][ids] + self.params["position.weight"][: ids.shape[1]]
        h = loop(self, h, options)
        if "norm.weight" in self.params:
            h = rms(h) * self.params["norm.weight"]
        return h @ self.params["head.weight"].T

    def named(self, end: str) -> str:
        """The one parameter of the gain tables whose name ends so."""
        (name,) = (name for name in self.params if name.startswith("gains.") and name.endswith(end))
        return name

    def gain(self, layer: int, site: str) -> Tensor | float:
        """LayerRoPE: gamma (x) exp(r(l) + i theta(l, j)), the pairs (2j, 2j+1) as complex numbers."""
        if self.layerrope is None:
            return 1.0
        prefix = self.named("gamma")[: -len("gamma")]
        k = ("attn_read", "attn_write", "mlp_read", "mlp_write").index(site)
        gamma, a, b, a_rot, b_rot = (
            self.params[prefix + name][k] for name in ("gamma", "alpha", "beta", "alpha_rot", "beta_rot")
        )
        u = math.log(layer + 1)
        j = torch.arange(len(gamma) // 2)
        theta = torch.exp(a_rot + b_rot * u) * self.layerrope.get("base", 100.0) ** (-2.0 * j / len(gamma))
        turned = torch.view_as_complex(gamma.view(-1, 2)) * torch.exp(torch.complex(a + b * u + 0 * theta, theta))
        return torch.view_as_real(turned).flatten()


# ------------------------------------------------------------------------------------------------------- the loops
def prenorm(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + s.write * s.f(s.read * s.pre * rms(h))
    return h


def postnorm(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = rms(h + s.write * s.f(s.read * h)) * s.p("residual.norm.weight")
    return h


def lns(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + s.write * s.f(s.read * s.pre * rms(h) / math.sqrt(s.layer + 1))
    return h


def perinorm(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + s.write * s.post * rms(s.f(s.read * s.pre * rms(h)))
    return h


def deepnorm(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = rms((2 * net.n_layer) ** (1 / 4) * h + s.write * s.f(s.read * h)) * s.p("residual.norm.weight")
    return h


def rezero(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    a = net.params[net.named("scale")]
    for s in net:
        h = h + a[s.layer] * s.write * s.f(s.read * h)
    return h


def layerscale(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + s.post * s.write * s.f(s.read * s.pre * rms(h))
    return h


def mixln(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        if s.layer < options.get("fraction", 0.25) * net.n_layer:
            h = rms(h + s.write * s.f(s.read * h)) * s.p("residual.norm.weight")
        else:
            h = h + s.write * s.f(s.read * s.pre * rms(h))
    return h


def keel(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        alpha = 1 if s.index < 2 else 2 * net.n_layer
        h = alpha * h + s.write * s.f(s.read * s.pre * rms(h))
        h = h if s.index == 0 else rms(h) * s.p("residual.norm.weight")
    return h


def depth_mup(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + (net.n_layer / options.get("base", 24)) ** -0.5 * s.write * s.f(s.read * s.pre * rms(h))
    return h


def completep(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    for s in net:
        h = h + options.get("base", 24) / net.n_layer * s.write * s.f(s.read * s.pre * rms(h))
    return h


def hc(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    n, d = int(options.get("n", 4)), h.shape[-1]
    H = torch.stack([h] * n, -2)
    for s in net:
        A, B = s.p("residual.A"), s.p("residual.B")
        if options.get("dynamic", True):
            z = rms(H) * s.p("residual.norm.weight") @ s.p("residual.W")
            z = torch.tanh(z) if options.get("tanh", True) else z
            A, B = A + s.p("residual.scale")[0] * z[..., : n + 1], B + s.p("residual.scale")[1] * z[..., n + 1]
        mixed = torch.einsum("...ic,...id->...cd", A.expand(*H.shape[:2], n, n + 1), H)
        y = s.write * s.f(s.read * s.pre * rms(mixed[..., 0, :]))
        H = mixed[..., 1:, :] + B[..., None] * y[..., None, :].expand(*H.shape[:2], n, d)
    return H.sum(-2)


def mhc(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    n = int(options.get("n", 4))
    H = torch.stack([h] * n, -2)
    for s in net:
        z = rms(H.flatten(-2)) @ s.p("residual.phi")
        scale, bias = s.p("residual.scale"), s.p("residual.bias")
        pre = torch.sigmoid(scale[0] * z[..., :n] + bias[:n])
        post = 2 * torch.sigmoid(scale[1] * z[..., n : 2 * n] + bias[n : 2 * n])
        res = torch.exp(scale[2] * z[..., 2 * n :] + bias[2 * n :]).unflatten(-1, (n, n))
        for _ in range(int(options.get("iterations", 20))):
            res = res / res.sum(-2, keepdim=True)
            res = res / res.sum(-1, keepdim=True)
        x = (pre[..., None] * H).sum(-2)
        H = res @ H + post[..., None] * (s.write * s.f(s.read * s.pre * rms(x)))[..., None, :]
    return H.mean(-2)


def xhc(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    n, k, fixed = (int(options.get(name, v)) for name, v in (("n", 16), ("active", 4), ("fixed", 2)))
    H = torch.stack([h] * n, -2)
    for s in net:
        pre, post, res = s.p("residual.bias_pre"), s.p("residual.bias_post"), s.p("residual.bias_res")
        scale = s.p("residual.scale")
        x_all = rms(H.flatten(-2))
        p = torch.sigmoid(x_all @ s.p("residual.router"))
        x = (torch.sigmoid(scale[0] * (x_all @ s.p("residual.phi_pre")) + pre)[..., None] * H).sum(-2)
        y = s.write * s.f(s.read * s.pre * rms(x))
        vectors = [y]
        if s.kind == "mlp":
            for w in s.p("residual.kernels").split([4, 8, 12]):
                v = torch.zeros_like(y)
                for t in range(y.shape[1]):
                    for tau in range(min(len(w), t + 1)):
                        v[:, t] += w[tau] * y[:, t - tau]
                for u in vectors:
                    v = v - (v * u).sum(-1, keepdim=True) / ((u * u).sum(-1, keepdim=True) + 1e-12) * u
                vectors.append(v)
        new = H.clone()
        for b in range(H.shape[0]):
            for t in range(H.shape[1]):
                rest = sorted(range(fixed, n), key=lambda j: -float(p[b, t, j]))
                a = [*range(fixed), *rest[: k - fixed]]
                xa = rms(H[b, t, a].flatten())
                to_post = 2 * torch.sigmoid(scale[1] * (xa @ s.p("residual.phi_post")).view(k, -1) + post)
                M = torch.exp(scale[2] * (xa @ s.p("residual.phi_res")).view(k, k) + res)
                for _ in range(20):
                    M = M / M.sum(0, keepdim=True)
                    M = M / M.sum(1, keepdim=True)
                new[b, t, a] = M @ H[b, t, a] + p[b, t, a, None] * (to_post @ torch.stack([v[b, t] for v in vectors]))
        H = new
    return H.sum(-2)


def attnres(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    S = 2 * net.n_layer
    size = math.ceil(S / options["blocks"]) if options.get("blocks") else int(options.get("size", 1))

    def mix(sources: list[Tensor], w: Tensor, key: Tensor) -> Tensor:
        a = torch.stack([(rms(v) * key) @ w for v in sources]).softmax(0)
        return sum((a[i, ..., None] * v for i, v in enumerate(sources)), torch.zeros(()))

    blocks, partial = [h], None
    for s in net:
        if s.index % size == 0:
            blocks, partial = blocks if partial is None else [*blocks, partial], None
        sources = blocks if partial is None else [*blocks, partial]
        x = mix(sources, s.p("residual.mix.query"), s.p("residual.mix.key")) if s.index else h
        y = s.write * s.f(s.read * s.pre * rms(x))
        partial = y if partial is None else partial + y
    return mix([*blocks, partial], net.params["ends.mix.query"], net.params["ends.mix.key"])


def nanochat(net: Net, h: Tensor, options: dict[str, Any]) -> Tensor:
    x0 = h = rms(h)
    for s in net:
        if s.kind == "attn":
            r, z = s.p("residual.mix")
            h = r * h + z * x0
        h = h + s.write * s.f(s.read * s.pre * rms(h))
    return h


LOOPS: dict[str, Loop] = {
    "prenorm": prenorm,
    "prenorm-scaledinit": prenorm,
    "postnorm": postnorm,
    "deepnorm": deepnorm,
    "rezero": rezero,
    "layerscale": layerscale,
    "mixln": mixln,
    "keel": keel,
    "hc": hc,
    "mhc": mhc,
    "xhc": xhc,
    "attnres": attnres,
    "depth-mup": depth_mup,
    "completep": completep,
    "nanochat": nanochat,
    "lns": lns,
    "perinorm": perinorm,
    "layerrope": prenorm,
    "layerrope-peri": perinorm,
}
"""Each row of the scheme table by its loop."""
