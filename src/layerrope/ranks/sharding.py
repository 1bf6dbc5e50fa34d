"""A model on several ranks: a copy on each (DDP), or in shards (FSDP2).

Under FSDP2 every layer is a group of its own, gathered when it runs and freed after; the embedding, the last norm and
the head stay gathered from the forward to the backward pass. The gains of a scheme are a third kind of group: a few
thousand numbers that every layer reads, in fp32 whatever the layers' precision, gathered once a step.
(FSDP: Zhao et al. 2023, arXiv 2304.11277; FSDP2 is torch.distributed.fsdp.fully_shard.)

Both give the losses and gradients of one process. A rank adds up the losses of its rows and divides by the counted
targets of the whole batch; DDP and FSDP2 average over ranks, so the loss is multiplied by their number.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from layerrope.config import ModelConfig
from layerrope.model import LM
from layerrope.ranks.parallel import OneDevice
from layerrope.ranks.ranks import Ranks
from layerrope.training.kinds import Model, build_model
from layerrope.training.optim import total_norm
from layerrope.training.recipe import TrainConfig


class _Loss(nn.Module):
    """`loss_sum` as a forward pass, which is what DDP wraps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.loss_sum(ids, targets)


class Copies(OneDevice):
    """A copy of the model on every rank; gradients are averaged once a step, while the last backward pass runs."""

    name = "ddp"

    def __init__(self, model: Model, device: torch.device) -> None:
        ids = [device] if device.type == "cuda" else None
        self.ddp = DistributedDataParallel(_Loss(model), device_ids=ids, gradient_as_bucket_view=True)

    def loss_sum(self, model: Model, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.ddp(ids, targets)

    def part(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.ddp.no_sync()


class Shards(OneDevice):
    """Every parameter, gradient and moment in shards. Each part of a batch reduces its gradients at once, since to
    keep them whole until the last part would take the memory that sharding saves."""

    name = "fsdp"
    in_shards = True

    def __init__(self, config: TrainConfig, ranks: Ranks, device: torch.device) -> None:
        self.config, self.device, self.main = config, device, ranks.main
        self.mesh = init_device_mesh(device.type, (ranks.world,))
        # that a view may be changed in place unseen: nothing here writes in place, and tests compare the gradients
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)

    def build(self) -> LM:
        """The model in shards, started as `LM(config, seed)` is; no rank ever holds more than one layer whole."""
        model = self._on_meta()
        shard(model, self.mesh)
        model.to_empty(device=self.device)
        self.fill(model, starting_values(self._on_meta(), self.config.seed))
        return model

    def _on_meta(self) -> LM:
        assert isinstance(self.config.model, ModelConfig)
        with torch.device("meta"):
            return LM(self.config.model)

    def norm(self, parameters: Iterable[Tensor]) -> Tensor:
        return self.whole(total_norm(parameters))

    def settle(self, model: Model) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def whole(self, t: Tensor) -> Tensor:
        return t.full_tensor() if isinstance(t, DTensor) else t

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return value
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    @contextlib.contextmanager
    def readable(self, model: Model) -> Iterator[Model]:
        copy = build_model(self.config.model, 0).to(self.device) if self.main else None
        for name, t in model.state_dict(keep_vars=True).items():
            value = self.whole(t)
            if copy is not None:
                OneDevice().fill(copy, [(name, value)])
        yield model if copy is None else copy


def shard(model: LM, mesh: DeviceMesh) -> None:
    """Put FSDP2 around every layer, around the gains in fp32, and around the rest; in place."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    if model.gains is not None and any(True for _ in model.gains.parameters()):
        exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        fully_shard(model.gains, mesh=mesh, reshard_after_forward=False, mp_policy=exact)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss_sum")


def starting_values(model: LM, seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, value) of every parameter as `init_weights(seed)` fills it. `model` is on meta; one part at a time, a
    layer or what lies beside the layers, is made real and dropped again."""
    parts: list[tuple[str, nn.Module]] = [(f"layers.{i}", layer) for i, layer in enumerate(model.layers)]
    parts += [(name, child) for name, child in model.named_children() if name != "layers"]
    for prefix, part in parts:
        part.to_empty(device="cpu")
        if model.config.tie:  # `to_empty` has given each of the two a parameter of its own
            model.head.weight = model.embed.weight
        model.init_weights(seed)
        yield from ((f"{prefix}.{name}", t) for name, t in part.state_dict(keep_vars=True).items() if not t.is_meta)
        part.to(device="meta")
