"""Writes tests/data/olmo: a checkpoint of OLMo-core from two ranks, and what OLMo-core computes with it.

    torchrun --nproc-per-node 2 tests/olmo/make_olmo_data.py

Two layers of LayerRoPE with grouped heads, weights only. Needs the extra `olmo`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from olmo_core.distributed.checkpoint import save_model_and_optim_state
from olmo_core.train import prepare_training_environment, teardown_training_environment

from layerrope.config import ModelConfig
from layerrope.interop.olmo_core import olmo_config
from layerrope.interop.olmo_weights import load_weights
from layerrope.model import LM

FOLDER = Path("tests/data/olmo/step3")  # from the root of the source tree: OLMo-core writes the path into its metadata
SHAPE = ModelConfig(n_layer=2, n_head=4, n_kv_head=2, d_model=16, d_ff=24, vocab_size=13, seq_len=16, embed_std=0.6)


def main() -> None:
    prepare_training_environment(seed=0, backend="gloo")
    first = torch.distributed.get_rank() == 0
    config = olmo_config(replace(SHAPE, scheme="layerrope"))
    source = LM(replace(SHAPE, scheme="layerrope"), seed=1)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for p in source.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    model = config.build()
    load_weights(model, source)
    ids = torch.arange(16)[None] % 13
    logits = model(ids)
    model.apply_fsdp(dp_mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    if first:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        told = {"model": config.as_config_dict(), "train_module": {"max_sequence_length": 16}}
        (FOLDER / "config.json").write_text(json.dumps(told, indent=1) + "\n")
        (FOLDER.parent / "logits.json").write_text(json.dumps(logits[0].tolist()) + "\n")
    torch.distributed.barrier()
    save_model_and_optim_state(FOLDER / "model_and_optim", model, save_overwrite=True)
    torch.distributed.barrier()
    teardown_training_environment()


if __name__ == "__main__":
    main()
