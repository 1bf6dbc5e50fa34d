"""torchtitan 0.3: Llama 3 models under LayerRoPE or any other Pre-Norm scheme whose gains are a table.

`model_spec("8B", "layerrope")` is a `ModelSpec` like torchtitan's own: its config converter puts the gain table and the
blocks in, `parallelize` keeps the gains in an fp32 group of their own, `param_groups` keeps them out of weight decay,
and the state-dict adapter folds them, so that what torchtitan saves for Hugging Face is a stock Llama. Data parallel
(FSDP2, HSDP) only. torchtitan needs torch >= 2.14 and CUDA.

Dimensions: L layers, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerrope.errors import InputError, MissingExtra
from layerrope.exporting.folding import obstacles
from layerrope.gains import KINDS
from layerrope.model import LM, ModelConfig
from layerrope.norms import rms_norm
from layerrope.scheme_table import scheme as find_scheme

try:
    import spmd_types as spmd  # pyright: ignore[reportMissingImports]
    from torchtitan.components.optimizer import ParamGroupConfig  # pyright: ignore[reportMissingImports]
    from torchtitan.config import TORCH_DTYPE_MAP  # pyright: ignore[reportMissingImports]
    from torchtitan.config.override import derive  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed.compile import apply_compile  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed.full_dtensor import (  # pyright: ignore[reportMissingImports]
        resolve_fsdp_mesh,
        validate_config,
    )
    from torchtitan.models.common.decoder_sharding import (  # pyright: ignore[reportMissingImports]
        dense_param_placement,
    )
    from torchtitan.models.common.nn_modules import RMSNorm  # pyright: ignore[reportMissingImports]
    from torchtitan.models.llama3 import model_registry  # pyright: ignore[reportMissingImports]
    from torchtitan.models.llama3.model import (  # pyright: ignore[reportMissingImports]
        Llama3Model,
        Llama3TransformerBlock,
    )
    from torchtitan.models.llama3.state_dict_adapter import (  # pyright: ignore[reportMissingImports]
        Llama3StateDictAdapter,
    )
    from torchtitan.protocols.model import ModelConfigConverter  # pyright: ignore[reportMissingImports]
    from torchtitan.protocols.model_spec import ModelSpec  # pyright: ignore[reportMissingImports]
    from torchtitan.protocols.module import Module  # pyright: ignore[reportMissingImports]
    from torchtitan.protocols.sharding import ShardingConfig  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtra("torchtitan", "titan") from error

NORMS = {"attn": "attention_norm", "mlp": "ffn_norm"}
OUT = {"attn": "attention.wo", "mlp": "feed_forward.w2"}
"""Where the read gain of a sublayer is folded, and its write gain."""


def check_scheme(spec: str, n_layers: int, dim: int) -> None:
    """Raise InputError unless `spec` is a Pre-Norm scheme with a gain table and nothing else; names the feature."""
    with torch.device("meta"):
        bare = LM(ModelConfig(n_layer=n_layers, n_head=1, d_model=dim, d_ff=1, vocab_size=1, scheme=spec))
    found = obstacles(bare)
    post = bare.layers[0].get_submodule("attn.branch.post")
    if not found and any(True for _ in post.parameters()):
        found = [f"it has weights after f ({type(post).__name__})"]
    if not found and bare.scheme.covers("attn").replaces_write and hasattr(post, "eps"):
        found = ["it has norms after f"]
    if not found and bare.gains is None:
        found = ["it has no gain table"]
    if found:
        raise InputError(
            f"scheme {spec!r} is not for torchtitan here: {found[0]}; examples/olmo_core_train.py takes more"
        )


# -------------------------------------------------------------------------------------------------------------- gains
class DepthGains(Module):
    """The gain table of a scheme; the parameters are its own and `init_states` starts them, as torchtitan wants."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        scheme: str
        n_layers: int
        dim: int

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.formula = (self._table(),)  # in a tuple: it computes, its parameters are not the model's
        for name, p in self.formula[0].named_parameters():
            self.register_parameter(_flat(name), nn.Parameter(torch.empty(p.shape, dtype=torch.float32)))

    def _table(self) -> nn.Module:
        table = find_scheme(self.config.scheme).build_gains(self.config.n_layers, self.config.dim)
        assert table is not None
        return table

    @torch.no_grad()
    def _init_self_parameters(self) -> None:
        from torch.distributed.tensor.experimental import implicit_replication

        with torch.device("cpu"), implicit_replication():
            for name, start in self._table().named_parameters():
                own = self.get_parameter(_flat(name))
                own.copy_(start.to(own.device))

    def forward(self, device: torch.device) -> Tensor:
        """G (L, 2, 2, D or 1), fp32."""
        (formula,) = self.formula
        own = {name: self.get_parameter(_flat(name)) for name, _ in formula.named_parameters()}
        with device:
            return functional_call(formula, own, (self.config.n_layers,)).clone()


def _flat(name: str) -> str:
    return name.replace(".", "_")


# -------------------------------------------------------------------------------------------------------------- model
class DepthBlock(Llama3TransformerBlock):
    """h <- h + write row * f(norm(h) * read row) for attention, then for the MLP"""

    @dataclass(kw_only=True, slots=True)
    class Config(Llama3TransformerBlock.Config):
        scheme: str

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.covers = {kind: find_scheme(config.scheme).covers(kind) for kind in KINDS}

    def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None = None, gains: Any = None) -> Tensor:
        """The next stream; `gains` (2, 2, D or 1): attention and MLP, read and write rows."""
        attn, mlp = gains.unbind(0)
        y = self.attention(self._read("attn", x, attn[0]), attention_masks, positions)
        h = x + self._written("attn", y, attn[1])
        return h + self._written("mlp", self.feed_forward(self._read("mlp", h, mlp[0])), mlp[1])

    def _read(self, kind: str, x: Tensor, row: Tensor) -> Tensor:
        norm = self.get_submodule(NORMS[kind])
        gain = norm.weight
        if self.covers[kind].read:
            gain = row if gain is None else gain * row
        return rms_norm(x, gain, norm.eps)  # type: ignore[arg-type]

    def _written(self, kind: str, y: Tensor, row: Tensor) -> Tensor:
        return (y * row).to(y.dtype) if self.covers[kind].write else y


class DepthLlama(Llama3Model):
    """torchtitan's Llama 3 under a depth scheme."""

    @dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        gains: DepthGains.Config

        def update_from_config(self, *, config: Any, **kwargs: Any) -> None:
            Llama3Model.Config.update_from_config(self, config=config, **kwargs)
            _check_parallelism(config.parallelism)
            with torch.device("meta"):
                names = [name for name, _ in self.gains.build().named_parameters()]
            everywhere = dense_param_placement(tp=spmd.I)
            self.gains.sharding_config = ShardingConfig(state_shardings=dict.fromkeys(names, everywhere))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.gains = config.gains.build()

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None) -> Tensor:
        h = self.tok_embeddings(tokens)
        rows = self.gains(h.device).unbind(0)
        for i, layer in self.layers.items():
            h = layer(h, attention_masks, positions, rows[int(i)])
        h = self.norm(h)
        return h if self._skip_lm_head else self.lm_head(h)


def _check_parallelism(parallelism: Any) -> None:
    """Raise InputError for degrees above 1 of anything but data parallelism."""
    for kind in ("tensor", "context", "pipeline", "expert"):
        degree = getattr(parallelism, f"{kind}_parallel_degree")
        if degree > 1:
            raise InputError(
                f"torchtitan with a gain table is data parallel only: {kind}_parallel_degree is {degree}, set it to 1 "
                "(examples/olmo_core_train.py has tensor parallelism)"
            )


class DepthConverter(ModelConfigConverter):
    """Llama 3's model config -> the same model under a scheme."""

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        scheme: str = "layerrope"

    def __init__(self, config: Config) -> None:
        self.scheme = config.scheme

    def convert(self, model_config: Any) -> Any:
        """Raises InputError for a scheme that does not fit, or a model other than a dense Llama."""
        layers = model_config.layers
        if not all(isinstance(layer, Llama3TransformerBlock.Config) and layer.moe is None for layer in layers):
            raise InputError("depth gains in torchtitan are for dense Llama 3 models")
        check_scheme(self.scheme, len(layers), model_config.dim)
        gains = DepthGains.Config(scheme=self.scheme, n_layers=len(layers), dim=model_config.dim)
        return derive(model_config, DepthLlama.Config, layers=[self._block(layer) for layer in layers], gains=gains)

    def _block(self, layer: Any) -> Any:
        norms = {}
        for kind, name in NORMS.items():
            norm = getattr(layer, name)
            if find_scheme(self.scheme).covers(kind).replaces_read:
                norm = derive(norm, RMSNorm.Config, elementwise_affine=False, param_init=None)
            norms[name] = norm
        return derive(layer, DepthBlock.Config, scheme=self.scheme, **norms)


def parallelize(
    model: Any,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
) -> Any:
    """As torchtitan makes Llama 3 parallel, with the gains in an FSDP group of their own that stays in fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    whole = parallelism.spmd_backend in ("full_dtensor", "spmd_types")
    if whole:
        validate_config(parallel_dims, model)
        model.parallelize(parallel_dims)
    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(model)
    if compile_config.enable and "model" in compile_config.components:
        apply_compile(model, compile_config=compile_config, parallel_dims=parallel_dims)
    names = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
    mesh, dims = resolve_fsdp_mesh(parallel_dims) if whole else (parallel_dims.get_mesh(names), None)
    fp32 = MixedPrecisionPolicy(torch.float32, torch.float32, cast_forward_inputs=False)
    if any(True for _ in model.gains.parameters()):
        own: dict[str, Any] = {} if dims is None else {"dp_mesh_dims": dims}
        fully_shard(model.gains, mesh=mesh, reshard_after_forward=False, mp_policy=fp32, **own)
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
        pp_enabled=False,
        cpu_offload=training.enable_cpu_offload,
        reshard_after_forward_policy=parallelism.fsdp_reshard_after_forward,
        dp_mesh_dims=dims,
    )
    return model


# --------------------------------------------------------------------------------------------------- optimiser, export
def param_groups(groups: list[Any]) -> list[Any]:
    """torchtitan's parameter groups with one before them: gains, norms and biases, as the last of `groups` says but
    without weight decay."""
    rest = groups[-1]
    kwargs = {**rest.optimizer_kwargs, "weight_decay": 0.0}
    pattern = r"^gains\.|(^|_|\.)norm\.weight$|\.bias$"
    return [ParamGroupConfig(pattern=pattern, optimizer_name=rest.optimizer_name, optimizer_kwargs=kwargs), *groups]


class DepthStateDictAdapter(Llama3StateDictAdapter):
    """Hugging Face weights of a stock Llama: read gains in the norms, write gains in the rows of o and down."""

    def to_hf(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """The folded weights. Where the state is sharded, so are they, but for the norms, which every rank has."""
        from torch.distributed.tensor.experimental import implicit_replication

        folded = dict(state_dict)
        table = gain_table_of(self.model_config, folded)
        folded = {name: t for name, t in folded.items() if not name.startswith("gains.")}
        with implicit_replication(), torch.no_grad():
            for i, rows in enumerate(table.unbind(0)):
                for kind, pair in zip(KINDS, rows.unbind(0), strict=True):
                    self._fold(folded, f"layers.{i}", kind, pair)
        return super().to_hf(folded)

    def _fold(self, tensors: dict[str, Any], at: str, kind: str, pair: Tensor) -> None:
        covers = find_scheme(self.model_config.gains.scheme).covers(kind)
        norm, out = f"{at}.{NORMS[kind]}.weight", f"{at}.{OUT[kind]}.weight"
        if covers.read:
            read = pair[0].expand(self.model_config.dim)
            tensors[norm] = tensors[norm] * read if norm in tensors else read.clone()
        if covers.write:
            weight = tensors[out]
            tensors[out] = (weight * pair[1].expand(self.model_config.dim)[:, None]).to(weight.dtype)

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        """Raises InputError: folding cannot be undone."""
        raise InputError(
            "a stock Llama has no gains to start from: start from torchtitan's own checkpoint, or without gains"
        )


@torch.no_grad()
def gain_table_of(config: Any, state_dict: Mapping[str, Any]) -> Tensor:
    """G (L, 2, 2, D or 1) on the CPU from the state of a `DepthLlama`, gathered from its shards."""
    from torch.distributed.tensor import DTensor

    gains = replace(config.gains, sharding_config=None).build()
    for name, own in gains.named_parameters():
        saved = state_dict[f"gains.{name}"]
        own.copy_((saved.full_tensor() if isinstance(saved, DTensor) else saved).float())
    return gains(torch.device("cpu"))


def model_spec(flavor: str, scheme: str = "layerrope", **options: Any) -> ModelSpec:
    """torchtitan's Llama 3 of this flavor ("debugmodel", "8B", "70B" ...) under a scheme.

    Args:
        options: of torchtitan's `model_registry`: attn_backend, tp_gemm_backend, converters (applied after this one).

    Raises:
        InputError: a scheme that has no gain table, or more than that.
    """
    later = options.pop("converters", None) or []
    spec = model_registry(flavor, converters=[DepthConverter.Config(scheme=scheme), *later], **options)
    return replace(
        spec,
        name="layerrope_llama3",
        parallelize_fn=parallelize,
        pipelining_fn=None,
        state_dict_adapter=DepthStateDictAdapter,
    )
