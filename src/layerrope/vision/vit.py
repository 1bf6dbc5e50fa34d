"""Vision Transformers on the same sublayers and schemes   (ViT, arXiv 2010.11929; sizes and start of DeiT, 2012.12877).

Patches and a class token, learned positions, L layers of (attention, MLP) under one depth scheme, a head on the class
token. Attention looks both ways.

Dimensions: B batch, C channels, P patches, T = P + 1 tokens, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerrope.axes import Scheme
from layerrope.config import check_counts
from layerrope.errors import InputError, one_of
from layerrope.model import IGNORED
from layerrope.norms import NORMS, Gate, no_autocast, upcast
from layerrope.residual import Site, Sublayer
from layerrope.scheme_table import scheme
from layerrope.starting import fill_normal, name_seed, reset_modules
from layerrope.sublayers import MLPS


@dataclass(frozen=True)
class ViTConfig:
    """Shape and scheme of a vision model. Raises InputError for shapes that do not fit."""

    image_size: int = 8
    """height and width of the images in pixels"""
    patch_size: int = 2
    """height and width of a patch in pixels"""
    channels: int = 1
    """colour channels"""
    n_class: int = 10
    """labels run from 0 to n_class - 1"""
    n_layer: int = 12
    """layers (blocks); sublayers are twice as many"""
    n_head: int = 2
    """attention heads"""
    d_model: int = 64
    """width of the stream"""
    d_ff: int = 256
    """hidden width of the MLP"""
    scheme: str = "prenorm"
    """depth scheme, with options: `layerrope:rotation=off`"""
    norm: str = "layernorm"
    """rmsnorm or layernorm"""
    eps: float = 1e-6
    """inside the norm's root"""
    mlp: str = "gelu"
    """swiglu or gelu"""
    bias: bool = True
    """biases in the linear maps"""
    init_std: float = 0.02
    """standard deviation of the weights at the start, before the scheme's multiplier by role"""
    drop_path: float = 0.0
    """largest share of branches dropped in training, image by image; grows linearly from 0 with depth"""
    label_smoothing: float = 0.0
    """share of each training label spread over all classes"""
    kind: str = "vit"
    """says in a run's record that this is a vision model"""

    def __post_init__(self) -> None:
        check_counts(self, "image_size", "patch_size", "channels", "n_class", "n_layer", "n_head", "d_model", "d_ff")
        if self.image_size % self.patch_size:
            raise InputError(f"patches of {self.patch_size} pixels do not divide images of {self.image_size}")
        if self.d_model % self.n_head:
            raise InputError(f"d_model {self.d_model} is not divisible by n_head {self.n_head}: change one of them")
        for name in ("drop_path", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is a share, from 0 to below 1: got {getattr(self, name)}")
        one_of("norm", self.norm, NORMS)
        one_of("mlp", self.mlp, MLPS)
        one_of("kind of model", self.kind, ("vit",))

    @property
    def n_patch(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def seq_len(self) -> int:
        """Tokens of an image, the class token included."""
        return self.n_patch + 1

    @property
    def vocab_size(self) -> int:
        """Number of classes: what the head gives."""
        return self.n_class


def _deit(d_model: int, n_head: int) -> ViTConfig:
    """A size of arXiv 2012.12877: ImageNet at 224 pixels, patches of 16, head width 64."""
    return ViTConfig(224, 16, 3, 1000, 12, n_head, d_model, 4 * d_model)


vit_tiers: dict[str, ViTConfig] = {
    "deit-ti": _deit(192, 3),
    "deit-s": _deit(384, 6),
    "deit-b": _deit(768, 12),
    "micro": ViTConfig(init_std=0.1),
}
"""DeiT's sizes, and one for 8 x 8 digits on a CPU: at its width 0.02 would learn nothing for hundreds of steps."""


class FullAttention(nn.Module):
    """Softmax attention of every token to every token."""

    def __init__(self, d_model: int, n_head: int, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=bias) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.n_head, -1)).transpose(-2, -3) for p in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2))


def drop_path(y: Tensor, keep: Tensor | None) -> Tensor:
    """y (B, T, D) with whole images' branches set to zero and the others raised by 1 / keep: the mean stays.

    (Stochastic depth, Huang et al. 2016, arXiv 1603.09382.) `keep` is the share kept, a tensor; None keeps all.
    """
    if keep is None:
        return y
    kept = torch.rand(len(y), 1, 1, device=y.device) < keep
    return torch.where(kept, y / keep.to(y.dtype), 0)


class ViTLayer(nn.Module):
    """One block: attention, then MLP, each read and written as the scheme says."""

    def __init__(self, config: ViTConfig, chosen: Scheme, sites: tuple[Site, Site]) -> None:
        super().__init__()
        self.param_tuning = chosen.tuning(config.n_layer, config.d_model)
        mlp = MLPS[config.mlp](config.d_model, config.d_ff, config.bias)
        fs = (FullAttention(config.d_model, config.n_head, config.bias), mlp)
        self.attn, self.mlp = (
            Sublayer(f, chosen.residual(site), chosen.branch(site, chosen.covers(site.kind)))
            for f, site in zip(fs, sites, strict=True)
        )

    def forward(self, state: Any, rows: Tensor | None, keep: Tensor | None) -> Any:
        """The next state. `rows` (2, 2, D): read and write gains; `keep`: see `drop_path`."""
        attn, mlp = (None, None) if rows is None else rows.unbind(0)
        for sublayer, row in ((self.attn, attn), (self.mlp, mlp)):
            x, rest = sublayer.residual.read(state)
            y = sublayer.branch(sublayer.f, x, row)
            state = sublayer.residual.write(rest, drop_path(y, keep))
        return state


class ViT(nn.Module):
    """A vision model under the depth scheme of its config.

    `ViT(images)` gives logits (B, n_class), `ViT(images, labels)` the mean loss in nats; both in fp32. Builds on the
    meta device; `init_weights(seed)` fills it.

    Raises:
        InputError: a scheme that does not exist, does not fit the shape, or looks at earlier positions (xHC).
    """

    param_roles = {
        "patch.weight": "embedding",
        "token": "vector",
        "position": "vector",
        "head.weight": "head",
    }

    def __init__(self, config: ViTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.scheme = chosen = scheme(config.scheme)
        if not chosen.cacheable:
            raise InputError(f"scheme {config.scheme!r} convolves over earlier positions, of which images have none")
        D = config.d_model
        self.patch = nn.Linear(config.channels * config.patch_size**2, D)
        self.token = nn.Parameter(torch.empty(1, 1, D))
        self.position = nn.Parameter(torch.empty(1, config.seq_len, D))
        self.gains = chosen.build_gains(config.n_layer, D)
        layers = range(config.n_layer)
        self.layers = nn.ModuleList(
            ViTLayer(config, chosen, (self._site(i, "attn"), self._site(i, "mlp"))) for i in layers
        )
        self.ends = chosen.ends(self._site(config.n_layer, "attn"))
        self.norm = self._norm(D) if chosen.final_norm else Gate()
        self.head = nn.Linear(D, config.n_class)
        self.param_tuning = {"head": chosen.head_tuning(D)}
        self.init_weights(seed)

    def _norm(self, d: int, weight: bool = True) -> nn.Module:
        return NORMS[self.config.norm](d, eps=self.config.eps, weight=weight)

    def _site(self, layer: int, kind: str) -> Site:
        return Site(layer, kind, self.config.n_layer, self.config.d_model, self._norm)

    # ------------------------------------------------------------------------------------------- starting values
    def init_weights(self, seed: int = 0) -> None:
        """Fill every parameter: norms, gates, gains and residuals by their own rule, matrices by role, biases 0."""
        reset_modules(self, seed)
        for name, weight, std in self.init_stds():
            fill_normal(weight, std, name_seed(seed, name))

    def init_stds(self) -> Iterator[tuple[str, Tensor, float]]:
        """(name, weight, standard deviation) of every matrix, the class token and the positions at the start."""
        std = self.config.init_std
        yield from (("patch.weight", self.patch.weight, std), ("token", self.token, std))
        yield "position", self.position, std
        yield "head.weight", self.head.weight, std * self.scheme.init("head", self._site(self.config.n_layer, "attn"))
        for i, layer in enumerate(self.layers):
            for kind in ("attn", "mlp"):
                for role, linear in layer.get_submodule(f"{kind}.f").named_children():
                    multiplier = self.scheme.init(role, self._site(i, kind))
                    yield f"layers.{i}.{kind}.f.{role}.weight", linear.get_parameter("weight"), std * multiplier

    # --------------------------------------------------------------------------------------------------- forward
    def tokens(self, images: Tensor) -> Tensor:
        """The class token and the embedded patches, row by row: (B, T, D) from (B, C, height, width)."""
        p, size = self.config.patch_size, (self.config.channels, self.config.image_size, self.config.image_size)
        if images.shape[1:] != size:
            raise InputError(
                f"the model reads images of shape {size} (C, height, width): got {tuple(images.shape[1:])}"
            )
        h = self.patch(F.unfold(images, p, stride=p).mT)
        return torch.cat((self.token.expand(len(h), -1, -1).to(h.dtype), h), dim=1) + self.position

    def hidden(self, images: Tensor) -> Tensor:
        """The stream after the trunk, before the final norm: (B, T, D)."""
        state = self.ends.expand(self.tokens(images))
        rows, keep = self.gain_rows(images.device), self._keep(images.device)
        for layer, row, share in zip(self.layers, rows, keep, strict=True):
            state = layer(state, row, share)
        return self.ends.reduce(state)

    def gain_rows(self, device: torch.device) -> tuple[Tensor | None, ...]:
        """Each layer's rows of the gain table, (2, 2, D or 1) fp32, or None for a scheme without one."""
        if self.gains is None:
            return (None,) * len(self.layers)
        with device:
            return self.gains(len(self.layers)).unbind(0)

    def _keep(self, device: torch.device) -> tuple[Tensor | None, ...]:
        """The share of branches each layer keeps; None where all are."""
        if not (self.training and self.config.drop_path):
            return (None,) * len(self.layers)
        return (1 - torch.linspace(0, self.config.drop_path, len(self.layers), device=device)).unbind(0)

    def logits(self, h: Tensor) -> Tensor:
        """(B, n_class) in at least fp32, from the stream (B, T, D); autocast is off here."""
        with no_autocast(h.device):
            h = upcast(self.norm(h[:, 0]))
            return F.linear(h, self.head.weight.to(h.dtype), self.head.bias.to(h.dtype))

    def loss_sum(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of the losses in nats, number of counted labels); smoothed in training mode alone."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        logits = self.logits(self.hidden(images))
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return loss, (labels != IGNORED).sum()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (B, n_class) of images (B, C, height, width); with labels (B,), the mean loss in nats."""
        if labels is None:
            return self.logits(self.hidden(images))
        total, count = self.loss_sum(images, labels)
        return total / count.clamp(min=1)
