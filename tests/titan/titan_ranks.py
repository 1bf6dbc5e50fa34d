"""`torchrun titan_ranks.py BACKEND`: torchtitan's FSDP over gloo ranks; the gradients against those of one process.

torchtitan names its device when it is imported, and without CUDA takes "cuda" all the same: here it is told "cpu".
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def loss(model: torch.nn.Module, ids: Tensor) -> Tensor:
    return model(ids, positions=torch.arange(ids.shape[1]).expand(len(ids), -1)).float().logsumexp(-1).mean()


def main(backend: Any) -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    from test_titan import spec_of, started
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    spec = spec_of("layerrope")
    alone = started(spec)
    ids = torch.randint(2048, (2 * world, 24), generator=torch.Generator().manual_seed(1))
    loss(alone, ids).backward()
    wanted = {name: p.grad for name, p in alone.named_parameters()}

    parallelism = ParallelismConfig(spmd_backend=backend, data_parallel_shard_degree=world)
    spec.model.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    dims = ParallelDims.from_config(parallelism, world)
    set_spmd_backend(backend)
    model = started(spec)
    training = TrainingConfig(mixed_precision_param="float32")
    spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        ac_config=None,
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    seen: list[torch.dtype] = []
    model.layers["0"].register_forward_pre_hook(lambda module, args: seen.append(args[3].dtype))
    (loss(model, ids.chunk(world)[rank]) / world).backward()  # torchtitan sums over ranks: its losses are shares
    assert seen == [torch.float32]
    for name, p in model.named_parameters():
        assert isinstance(p.grad, DTensor), name
        torch.testing.assert_close(p.grad.full_tensor(), wanted[name], rtol=1e-4, atol=1e-7, msg=name)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
