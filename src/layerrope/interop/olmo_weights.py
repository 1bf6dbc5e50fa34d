"""Weights between an OLMo-core model, sharded or not, and an `LM`, and the proof that the two compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from layerrope.errors import InputError
from layerrope.exporting.proof import POSITIONS, compare, demand, sample_ids, trace, trace_lm
from layerrope.interop.olmo_core import DepthTransformer, DepthTransformerConfig
from layerrope.interop.olmo_names import from_olmo, to_olmo
from layerrope.model import LM


@torch.no_grad()
def load_weights(model: DepthTransformer, source: LM) -> None:
    """Give `model`, sharded or not, the weights of `source`. Every rank calls this with the same `source`.

    Raises:
        InputError: the two are different models.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    wanted = {_unwrapped(name): p for name, p in model.named_parameters()}
    given = dict(to_olmo(source))
    if set(wanted) != set(given):
        name = min(set(wanted) ^ set(given))
        raise InputError(f"the LM and the OLMo-core model differ: only one of them has {name}")
    for name, p in wanted.items():
        if p.shape != given[name].shape:
            raise InputError(f"{name} has shape {tuple(p.shape)} in OLMo-core, {tuple(given[name].shape)} in the LM")
        whole = given[name].to(device=p.device, dtype=p.dtype)
        if isinstance(p, DTensor):
            whole = distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None)
        p.copy_(whole)


def to_lm(model: DepthTransformer, config: DepthTransformerConfig, seq_len: int) -> LM:
    """The `LM` with the weights of `model`, gathered from its shards. Every rank calls this; every rank gets it.

    Raises:
        InputError: the config has parts that an `LM` does not have.
    """
    from torch.distributed.tensor import DTensor

    tensors = {}
    for name, p in model.named_parameters():
        whole = p.full_tensor() if isinstance(p, DTensor) else p
        tensors[_unwrapped(name)] = whole.detach().to("cpu", copy=True)
    return from_olmo(config.to_model_config(seq_len), tensors)


def _unwrapped(name: str) -> str:
    """A parameter's name without the wrappers of activation checkpointing and compilation."""
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def prove(model: DepthTransformer, lm: LM) -> dict[str, Any]:
    """Compare OLMo-core's forward pass with `lm`'s, logits and every block, in fp32 on one process.

    Returns:
        The largest differences, as `layerrope.exporting.proof.Difference` has them.

    Raises:
        InputError: they differ; the message names the first block that does.
    """
    ids = sample_ids(lm.config.vocab_size, POSITIONS)
    model = model.float().eval()
    blocks = nn.ModuleList(model.blocks.values())
    return demand(compare(trace_lm(lm, ids), trace(blocks, lambda: model(ids.to(model.device)))), "OLMo-core").as_dict()
