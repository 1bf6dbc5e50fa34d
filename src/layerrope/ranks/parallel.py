"""How a model lies on the ranks of a run: which form is taken, and the plainest one, a model on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from layerrope.config import ModelConfig
from layerrope.errors import InputError, one_of
from layerrope.ranks.ranks import Ranks
from layerrope.training.kinds import Model, build_model
from layerrope.training.machine import cast
from layerrope.training.optim import total_norm
from layerrope.training.recipe import TrainConfig

CHOICES = ("auto", "ddp", "fsdp")

COPIED = 500_000_000
"""Parameters up to which `auto` keeps a copy on every rank: 16 bytes of training state each, 8 GB in all."""


class OneDevice:
    """The model as it is, and the interface of the forms in `layerrope.ranks.sharding`."""

    name = "one"
    in_shards = False

    def loss_sum(self, model: Model, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of the losses in nats, number of counted targets) of this rank's rows."""
        return model.loss_sum(ids, targets)

    def part(self, last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a part of the batch; `last` of the step's."""
        return nullcontext()

    def norm(self, parameters: Iterable[Tensor]) -> Tensor:
        """The 2-norm of the gradient of the whole batch, 0-d."""
        return total_norm(parameters)

    def settle(self, model: Model) -> None:
        """Free what an evaluation has gathered."""

    def whole(self, t: Tensor) -> Tensor:
        """All of a tensor that may lie in shards. Every rank has to ask."""
        return t

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        """A whole tensor laid on the ranks as `like` is; no rank talks to another."""
        return value

    @contextlib.contextmanager
    def readable(self, model: Model) -> Iterator[Model]:
        """A model whose parameters are plain tensors, for probes: on rank 0. Every rank has to ask."""
        yield model

    @torch.no_grad()
    def fill(self, model: nn.Module, values: Iterable[tuple[str, Tensor]]) -> None:
        """Write whole tensors into the model's own, by name. Raises InputError for one of another shape."""
        own = model.state_dict(keep_vars=True)
        for name, value in values:
            if value.shape != own[name].shape:
                raise InputError(f"tensor {name} has shape {tuple(value.shape)}, not {tuple(own[name].shape)}")
            own[name].copy_(self.place(value.to(own[name].dtype), own[name]))


def laid_out(parallel: str, config: TrainConfig, ranks: Ranks, device: torch.device) -> tuple[Model, OneDevice]:
    """The model of this config on `device`, and how it lies on the ranks.

    Args:
        parallel: "ddp", "fsdp", or "auto": the model as it is for a process alone, otherwise copies up to `COPIED`
            parameters and shards above.

    Raises:
        InputError: what does not fit; see `form_of`.
    """
    form = form_of(parallel, config, ranks)
    if form == "fsdp":
        from layerrope.ranks.sharding import Shards

        sharded = Shards(config, ranks, device)
        return sharded.build(), sharded
    model = build_model(config.model, config.seed)
    cast(model, config.precision)
    model.to(device)
    if form == "one":
        return model, OneDevice()
    from layerrope.ranks.sharding import Copies

    return model, Copies(model, device)


def form_of(parallel: str, config: TrainConfig, ranks: Ranks) -> str:
    """ "one", "ddp" or "fsdp".

    Raises:
        InputError: the batch cannot be shared, this kind of model has one form alone, or this precision or optimiser
            cannot work in shards.
    """
    one_of("way to be parallel", parallel, CHOICES)
    if not ranks.joined and parallel != "auto":
        raise InputError(
            f"--parallel {parallel} is for several ranks: start them by torchrun --nproc-per-node N -m layerrope train"
        )
    if parallel == "auto" and ranks.world == 1:
        return "one"
    if not isinstance(config.model, ModelConfig):
        raise InputError("looped models and Vision Transformers train on one device: start one process")
    _check_shares(config, ranks)
    whole = {"precision paper": config.precision == "paper", "optimizer muon": config.optimizer == "muon"}
    needs = [name for name, used in whole.items() if used]
    if parallel == "fsdp" and needs:
        raise InputError(f"{needs[0]} needs every parameter whole on every rank: use --parallel ddp")
    if parallel != "auto":
        return parallel
    from layerrope.accounting import count_parameters

    return "ddp" if needs or count_parameters(config.model)[0] <= COPIED else "fsdp"


def _check_shares(config: TrainConfig, ranks: Ranks) -> None:
    share, rest = divmod(config.batch_size, ranks.world)
    if rest or not share:
        raise InputError(
            f"a batch of {config.batch_size} sequences cannot be shared equally by {ranks.world} ranks: "
            f"set batch-size to a multiple of {ranks.world}"
        )
    if share % min(share, config.micro):
        raise InputError(f"micro-batch {config.micro} does not divide the {share} sequences of each rank")
