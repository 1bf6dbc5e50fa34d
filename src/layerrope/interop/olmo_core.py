"""OLMo-core 3.0: block, model and config classes for LayerRoPE and every other scheme that folds, without a fork.

A `DepthBlock` is OLMo-core's own pre-norm block whose norms and gates are this package's; a `DepthTransformer` is its
own decoder with one gain table at the root, computed once per forward and handed to each block as a tensor row. Data
and tensor parallelism, activation checkpointing, compilation, the data loader and the checkpoints are OLMo-core's.

Dimensions: L blocks, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.func import functional_call

from layerrope.axes import Scheme
from layerrope.config import ModelConfig
from layerrope.errors import InputError, MissingExtra
from layerrope.exporting.folding import obstacles
from layerrope.gains import KINDS
from layerrope.interop.olmo_names import read_olmo_config
from layerrope.model import LM
from layerrope.norms import RMSNorm
from layerrope.residual import Site
from layerrope.roles import declared
from layerrope.scheme_table import scheme as find_scheme
from layerrope.training.optim import param_groups

try:
    from olmo_core.config import DType  # pyright: ignore[reportMissingImports]
    from olmo_core.distributed.parallel.tensor_parallel import SequenceParallel  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.attention import AttentionConfig  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.feed_forward import FeedForwardConfig  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.layer_norm import LayerNormConfig, LayerNormType  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.lm_head import LMHeadConfig  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.rope import RoPEConfig  # pyright: ignore[reportMissingImports]
    from olmo_core.nn.transformer import (  # pyright: ignore[reportMissingImports]
        Transformer,
        TransformerBlock,
        TransformerBlockConfig,
        TransformerBlockType,
        TransformerConfig,
    )
    from olmo_core.optim import OptimGroupOverride  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtra("ai2-olmo-core", "olmo") from error

NORMS = {"attn": "attention_norm", "mlp": "feed_forward_norm"}
"""The norm before each sublayer; what stands after it is called the same with `post_` before."""

MATRICES = {
    "q": "attention.w_q",
    "k": "attention.w_k",
    "v": "attention.w_v",
    "o": "attention.w_out",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
}
"""Role of a matrix in a block -> its module."""


def folding_scheme(spec: str, n_layers: int, d_model: int) -> Scheme:
    """The scheme of this name. Raises InputError where no stock form exists for it; the message names the feature."""
    with torch.device("meta"):
        bare = LM(ModelConfig(n_layer=n_layers, n_head=1, d_model=d_model, d_ff=1, vocab_size=1, scheme=spec))
    found = obstacles(bare)
    if found:
        raise InputError(f"scheme {spec!r} is not for OLMo-core here, only schemes that fold are: {found[0]}")
    return find_scheme(spec)


def _site(layer: int, kind: str, n_layers: int, d_model: int, eps: float = 1e-6) -> Site:
    """A sublayer of the model, whose norms are RMSNorms with this eps."""

    def norm(d: int, weight: bool = True) -> nn.Module:
        return RMSNorm(d, eps=eps, weight=weight)

    return Site(layer, kind, n_layers, d_model, norm)


# -------------------------------------------------------------------------------------------------------------- block
class DepthBlock(TransformerBlock):
    """h <- h + post(f(pre(h, read row)), write row) for attention, then for the MLP

    Args:
        scheme: a depth scheme that folds; its norms and gates stand in for the block's own norms.
        parts: as OLMo-core's `TransformerBlock` takes them.
    """

    def __init__(self, *, scheme: str, **parts: Any) -> None:
        super().__init__(**parts)
        D, L = parts["d_model"], parts["n_layers"]
        chosen = find_scheme(scheme)  # the whole model checks that it folds
        self.param_tuning = chosen.tuning(L, D)
        self.covers = {kind: chosen.covers(kind) for kind in KINDS}
        with torch.device(parts.get("init_device", "cpu")):
            for kind, name in NORMS.items():
                site = _site(parts["block_idx"], kind, L, D, parts["layer_norm"].eps)
                branch = chosen.branch(site, chosen.covers(kind))
                setattr(self, name, branch.pre)
                setattr(self, f"post_{name}", branch.post)

    def forward(
        self, x: Tensor, *, gains: Tensor | None = None, loss_div_factor: Tensor | float | None = None, **kwargs: Any
    ) -> Tensor:
        """The stream after this block. `gains` (2, 2, D or 1): attention and MLP, read and write rows, or None."""
        rows = (None, None) if gains is None else gains.unbind(0)
        (read, write), (mlp_read, mlp_write) = (self._pair(kind, pair) for kind, pair in zip(KINDS, rows, strict=True))
        # rows go by name: the hooks of sequence parallelism hand on a module's first argument alone
        y = self.post_attention_norm(self.attention(self.attention_norm(x, row=read), **kwargs), row=write)
        h = self.attention_residual_stream(x, y)
        y = self.post_feed_forward_norm(self.feed_forward(self.feed_forward_norm(h, row=mlp_read)), row=mlp_write)
        return self.feed_forward_residual_stream(h, y)

    def _pair(self, kind: str, pair: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The rows of one sublayer that the scheme has."""
        if pair is None:
            return None, None
        read, write = pair.unbind(0)
        covers = self.covers[kind]
        return read if covers.read else None, write if covers.write else None

    def apply_tp(self, tp_mesh: DeviceMesh, **options: Any) -> None:
        from torch.distributed.tensor.parallel import parallelize_module

        super().apply_tp(tp_mesh, **options)
        for name in NORMS.values():
            parallelize_module(
                self.get_submodule(f"post_{name}"), device_mesh=tp_mesh, parallelize_plan=SequenceParallel()
            )

    def apply_fsdp(self, dp_mesh: DeviceMesh | None = None, **options: Any) -> None:
        """As OLMo-core shards a block, but inputs keep their dtype: a cast would round the gains to bf16."""
        if "mp_policy" in options:
            options["mp_policy"] = replace(options["mp_policy"], cast_forward_inputs=False)
        super().apply_fsdp(dp_mesh, **options)


@dataclass
class DepthBlockConfig(TransformerBlockConfig):
    """OLMo-core's block config with a scheme."""

    scheme: str = "prenorm"

    def build(self, *, d_model: int, block_idx: int, n_layers: int, init_device: str = "cpu", cache: Any = None) -> Any:
        _check_block(self)
        parts = self.as_dict(exclude_none=True, recurse=False)
        del parts["name"]
        parts |= {"d_model": d_model, "block_idx": block_idx, "n_layers": n_layers}
        return DepthBlock(**parts, init_device=init_device, cache=cache)

    def num_params(self, d_model: int) -> int:
        assert self.layer_norm is not None
        chosen, norm = find_scheme(self.scheme), self.layer_norm.num_params(d_model)
        own = 0
        for kind in KINDS:
            with torch.device("meta"):
                branch = chosen.branch(_site(0, kind, 1, d_model), chosen.covers(kind))
            own += sum(p.numel() for p in branch.parameters())
        return super().num_params(d_model) - 2 * norm + own


def _check_block(config: TransformerBlockConfig) -> None:
    """Raise InputError for a block that depth gains are not written for."""
    if config.name != TransformerBlockType.default or config.feed_forward_moe is not None:
        raise InputError(f"a scheme takes the place of OLMo-core's plain block, not of {config.name}: use default")
    norm = config.layer_norm
    if norm is None or norm.name != LayerNormType.rms or norm.bias is not False or norm.eps is None:
        raise InputError("a scheme needs a layer_norm of type rms, with bias=False and an explicit eps")


# -------------------------------------------------------------------------------------------------------------- model
class DepthTransformer(Transformer):
    """OLMo-core's decoder under a depth scheme: `gains` is its table, or None for a scheme without one.

    Raises:
        InputError: a scheme that does not fold.
    """

    param_roles = {
        "embeddings.weight": "embedding",
        "lm_head.w_out.weight": "head",
        "lm_head.norm.weight": "norm",
    }

    def __init__(self, *, scheme: str, **parts: Any) -> None:
        super().__init__(**parts)
        self.scheme = chosen = folding_scheme(scheme, self.n_layers, self.d_model)
        self.param_tuning = {"head": chosen.head_tuning(self.d_model)}
        if self.tie_word_embeddings and chosen.untied:
            raise InputError(f"scheme {scheme!r} tunes the head apart from the embedding: do not tie them")
        with torch.device(parts.get("init_device", "cpu")):
            self.gains = chosen.build_gains(self.n_layers, self.d_model)
        for name in ("num_params", "num_non_embedding_params"):  # OLMo-core counts before there are gains
            self.__dict__.pop(name, None)
            getattr(self, name)

    @property
    def learned_gains(self) -> nn.Module | None:
        """The gain table where it has parameters."""
        return self.gains if self.gains is not None and any(True for _ in self.gains.parameters()) else None

    # ------------------------------------------------------------------------------------------------------- forward
    def gain_rows(self) -> tuple[Tensor | None, ...]:
        """Each block's rows of the table, (2, 2, D or 1) fp32, or None for a scheme without one."""
        if self.gains is None:
            return (None,) * self.n_layers
        from torch.distributed.tensor import DTensor, Replicate

        with self.device:
            table = self.gains(self.n_layers)
        if self.tp_enabled:  # each rank has a part of the sequence: the gradient is summed on the way back
            table = DTensor.from_local(table, self._tp_mesh, [Replicate()])
        return table.unbind(0)

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """What OLMo-core prepares, with each block's rows among its keyword arguments."""
        prepared = super()._prepare_inputs(*args, **kwargs)
        rows = self.gain_rows()
        for index in map(int, self.blocks):
            prepared[3][index]["gains"] = rows[index]
        return prepared

    # ----------------------------------------------------------------------------------------------- starting values
    @torch.no_grad()
    def init_weights(self, **options: Any) -> torch.Generator:
        """OLMo-core's starting values, times the scheme's multiplier by role; gains by their own rule."""
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            generator = super().init_weights(**options)
        for matrix, factor in self._init_factors():
            if factor != 1.0:
                matrix.mul_(factor)
        return generator

    def _init_factors(self) -> Iterator[tuple[Tensor, float]]:
        for key, block in self.blocks.items():
            for role, path in MATRICES.items():
                kind = "attn" if path.startswith("attention") else "mlp"
                site = _site(int(key), kind, self.n_layers, self.d_model)
                yield block.get_submodule(path).weight, self.scheme.init(role, site)
        if self.lm_head is not None and not self.tie_word_embeddings:
            site = _site(self.n_layers, "attn", self.n_layers, self.d_model)
            yield self.lm_head.w_out.weight, self.scheme.init("head", site)

    # --------------------------------------------------------------------------------------------------- parallelism
    def apply_tp(self, tp_mesh: DeviceMesh, float8_enabled: bool | None = None) -> None:
        """As OLMo-core's, with the gains replicated: every rank multiplies its part of the sequence by all of them."""
        from torch.distributed.tensor import distribute_module

        super().apply_tp(tp_mesh, float8_enabled)
        if self.learned_gains is not None:
            distribute_module(self.learned_gains, tp_mesh)
            with torch.device("meta"):
                plain = self.scheme.build_gains(self.n_layers, self.d_model)
            assert plain is not None
            self.learned_gains.forward = partial(_from_replicas, self.learned_gains, plain)

    def apply_fsdp(self, dp_mesh: DeviceMesh | None = None, **options: Any) -> None:
        """As OLMo-core's, with the gains in a group of their own that stays in fp32 and gathered."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if self.learned_gains is not None:
            self.learned_gains.register_forward_hook(_copied)
            policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
            fully_shard(self.learned_gains, mesh=dp_mesh, reshard_after_forward=False, mp_policy=policy)
        super().apply_fsdp(dp_mesh, **options)

    def apply_pp(self, pp_mesh: DeviceMesh) -> None:
        """Raises InputError for learned gains: each stage would train a copy of its own."""
        if self.learned_gains is not None:
            raise InputError(
                "a scheme with learned gains has no pipeline parallelism here (each stage would train a copy of them): "
                "use FSDP, HSDP or tensor parallelism"
            )
        super().apply_pp(pp_mesh)


def _from_replicas(gains: nn.Module, plain: nn.Module, n_depth: int) -> Tensor:
    """The table as a plain tensor from parameters that every rank has whole: `plain` computes it with them.

    The depths in a table are plain tensors, which do not mix with distributed ones, least of all in the backward pass.
    """
    from torch.distributed.tensor import DTensor

    local = {name: p.to_local() for name, p in gains.named_parameters() if isinstance(p, DTensor)}
    return functional_call(plain, local, (n_depth,))


def _copied(module: nn.Module, args: Any, table: Tensor) -> Tensor:
    """A table of its own: FSDP warns of modules that return a view."""
    return table.clone()


@dataclass
class DepthTransformerConfig(TransformerConfig):
    """OLMo-core's decoder config with a scheme; `block` is a `DepthBlockConfig` of the same one."""

    scheme: str = "prenorm"

    def build(self, *, init_device: str = "cpu") -> DepthTransformer:
        own = {"name", "freeze_params", "dtype"}
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        model = DepthTransformer(**parts, dtype=self.dtype.as_pt(), init_device=init_device)
        for name, parameter in model.named_parameters():
            if any(fnmatch(name, pattern) for pattern in self.freeze_params or ()):
                parameter.requires_grad = False
        return model

    @property
    def num_params(self) -> int:
        with torch.device("meta"):
            gains = find_scheme(self.scheme).build_gains(self.n_layers, self.d_model)
        own = 0 if gains is None else sum(p.numel() for p in gains.parameters())
        return TransformerConfig.num_params.__get__(self) + own

    def to_model_config(self, seq_len: int) -> ModelConfig:
        """The `ModelConfig` of the same model. Raises InputError for parts that an `LM` does not have."""
        return read_olmo_config(self.as_config_dict(), seq_len)


def with_scheme(config: TransformerConfig, scheme: str) -> DepthTransformerConfig:
    """An OLMo-core decoder config under a depth scheme, for instance `with_scheme(TransformerConfig.llama_like(...),
    "layerrope")`.

    Raises:
        InputError: unknown scheme, one that does not fold, or a config whose block a scheme cannot replace.
    """
    if not isinstance(config.block, TransformerBlockConfig) or config.block_overrides:
        raise InputError("a scheme needs one block config for all layers, without overrides or a pattern")
    _check_block(config.block)
    folding_scheme(scheme, config.n_layers, config.d_model)
    block = {f.name: getattr(config.block, f.name) for f in fields(config.block)}
    whole = {f.name: getattr(config, f.name) for f in fields(config)}
    return DepthTransformerConfig(
        **{**whole, "block": DepthBlockConfig(**{**block, "scheme": scheme}), "scheme": scheme}
    )


def olmo_config(config: ModelConfig, dtype: DType = DType.float32) -> DepthTransformerConfig:
    """The OLMo-core config of the decoder that `LM(config)` is.

    Raises:
        InputError: a scheme that does not fold, or parts other than RMSNorm, rotary positions, SwiGLU and no biases.
    """
    wanted = {"norm": "rmsnorm", "position": "rotary", "mlp": "swiglu", "bias": False}
    for name, value in wanted.items():
        if getattr(config, name) != value:
            raise InputError(f"OLMo-core models here have {name} {value}: got {getattr(config, name)}")
    norm = LayerNormConfig(name=LayerNormType.rms, eps=config.eps, bias=False, dtype=dtype)
    theta: Any = int(config.rope_base) if config.rope_base.is_integer() else config.rope_base
    attention = AttentionConfig(
        n_heads=config.n_head, n_kv_heads=config.n_kv_head, bias=False, rope=RoPEConfig(theta=theta), dtype=dtype
    )
    mlp = FeedForwardConfig(hidden_size=config.d_ff, bias=False, dtype=dtype)
    plain = TransformerConfig(
        d_model=config.d_model,
        vocab_size=config.vocab_size,
        n_layers=config.n_layer,
        block=TransformerBlockConfig(sequence_mixer=attention, layer_norm=norm, feed_forward=mlp),
        lm_head=LMHeadConfig(layer_norm=norm, bias=False, dtype=dtype),
        dtype=dtype,
        init_std=config.init_std,
        embedding_init_std=config.embed_std,
        tie_word_embeddings=config.tie,
    )
    return with_scheme(plain, config.scheme)


# ---------------------------------------------------------------------------------------------------------- optimiser
def group_overrides(
    model: DepthTransformer, *, lr: float, weight_decay: float, eps: float = 1e-8
) -> list[OptimGroupOverride]:
    """What this package's trainer does with each parameter, as OLMo-core's optimiser overrides.

    Gains, norms and gates are never decayed; a scheme's own rates (depth-muP, CompleteP, muP) are in. Patterns match
    the names with and without the wrappers of activation checkpointing.

    Args:
        model: as the config builds it, on any device, before it is made parallel.
        lr: peak learning rate. weight_decay: of decayed parameters. eps: Adam's.
    """
    made = []
    for group in param_groups(declared(model), lr=lr, weight_decay=weight_decay, eps=eps):
        opts = {name: group[name] for name in ("lr", "weight_decay", "eps")}
        made.append(OptimGroupOverride(params=sorted({_pattern(name) for name in group["names"]}), opts=opts))
    return made


def _pattern(name: str) -> str:
    """blocks.3.attention.w_q.weight -> blocks*.attention*.w_q*.weight: every block, wrapped or not."""
    parts = [part for part in name.split(".") if not part.isdigit() or not name.startswith("blocks.")]
    return "*.".join(parts)
