"""Train any tier under any scheme that folds, with OLMo-core 3.0 on any number of devices.

    pip install 'layerrope[olmo]'
    torchrun --nproc-per-node 8 examples/olmo_core_train.py --tier 1b --scheme layerrope --folder runs/olmo-1b \
        --source hf:allenai/c4:en --tokenizer hub:google-t5/t5-base --steps 100000 --precision bf16 --compile
    layerrope export runs/olmo-1b/step100000 --to exported/olmo-1b

On a machine without a GPU it trains on the CPUs (gloo); `--tier micro` is for that. The same command goes on where a
run was cut, on any number of devices. `metrics.jsonl` in the folder has one line a step.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from olmo_core.config import DType
from olmo_core.data import NumpyDataLoaderConfig, NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.distributed.utils import get_rank
from olmo_core.nn.transformer import TransformerActivationCheckpointingMode
from olmo_core.optim import AdamWConfig, CosWithWarmup
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback, ConfigSaverCallback
from olmo_core.train.train_module import (
    TransformerActivationCheckpointingConfig,
    TransformerDataParallelConfig,
    TransformerTensorParallelConfig,
    TransformerTrainModuleConfig,
)

from layerrope.config import ModelConfig, tier
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.interop.olmo_core import DepthTransformerConfig, group_overrides, olmo_config
from layerrope.interop.olmo_weights import load_weights
from layerrope.model import LM
from layerrope.text.prepare import Prepared, prepare

DTYPES = {"fp32": DType.float32, "bf16": DType.bfloat16}


@dataclass(frozen=True)
class Run:
    """One run with OLMo-core."""

    folder: Path
    """of the checkpoints; a run that is there goes on"""
    tier: str = "micro"
    """a size of layerrope: micro, 60m, 130m, 250m, 350m, 500m, 1b, 7b, d128-L96 ..."""
    scheme: str = "layerrope"
    """a depth scheme that folds"""
    n_layer: int | None = None
    """layers; none: the tier's"""
    seq_len: int | None = None
    """tokens per sequence; none: the tier's"""
    tie: bool = False
    """share the embedding with the head"""
    source: str = "embedded"
    """text: embedded, a file or folder, or hf:NAME"""
    tokenizer: str = "bytes"
    """bytes, bpe:SIZE, a tokenizer.json, or hub:NAME"""
    steps: int = 1000
    """optimiser updates"""
    stop_at: int | None = None
    """end this call after so many updates (the schedule is not changed)"""
    batch_size: int = 16
    """sequences per update, over all devices"""
    micro_batch: int | None = None
    """sequences per forward pass on each device; none: its whole share"""
    lr: float = 3e-3
    """peak learning rate"""
    warmup: float = 0.1
    """fraction of the steps in which the learning rate rises"""
    min_lr: float = 0.1
    """learning rate at the end of the cosine, as a fraction of the peak"""
    weight_decay: float = 0.0
    """for matrices and embeddings; never for norms and gains"""
    clip: float | None = 1.0
    """largest norm of the gradient; none: no clipping"""
    seed: int = 0
    """of the weights and of the order of the data"""
    weights: Literal["olmo", "layerrope"] = "olmo"
    """starting weights: olmo (OLMo-core's draws), or layerrope (those of LM(config, seed), for equal starts)"""
    dp: Literal["fsdp", "hsdp", "ddp", "none"] = "fsdp"
    """data parallelism"""
    tp: int = 1
    """degree of tensor parallelism"""
    checkpointing: Literal["full", "selected_ops"] | None = None
    """activation checkpointing; none: off"""
    compile: bool = False
    """compile every block (OLMo-core compiles on GPUs only)"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: FSDP keeps fp32 weights and computes in bf16; gains compute in fp32"""
    save_every: int = 1000
    """updates between checkpoints"""
    threads: int | None = None
    """of the CPU, per process"""


def sequences_per_device(run: Run) -> int:
    """Of each update. Raises InputError for numbers that do not fit the devices."""
    for name in ("steps", "batch_size", "tp", "save_every"):
        if getattr(run, name) < 1:
            raise InputError(f"{name} must be at least 1: got {getattr(run, name)}")
    replicas, rest = divmod(int(os.environ["WORLD_SIZE"]), run.tp)
    if rest:
        raise InputError(f"tp {run.tp} does not divide the {os.environ['WORLD_SIZE']} devices: set it to a divisor")
    share, rest = divmod(run.batch_size, replicas)
    if rest:
        raise InputError(f"batch_size {run.batch_size} cannot be shared by {replicas} devices: set it to a multiple")
    if run.micro_batch is not None and (run.micro_batch < 1 or share % run.micro_batch):
        raise InputError(f"micro_batch {run.micro_batch} does not divide the {share} sequences of a device")
    return share


class MetricsFile(Callback):
    """Appends what OLMo-core logs to metrics.jsonl, one line a step."""

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if get_rank() == 0:
            with open(Path(self.trainer.save_folder) / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")


def model_config(run: Run, text: Prepared) -> ModelConfig:
    """The tier with what the run changes; its vocabulary is the text's."""
    size = tier(run.tier)
    return replace(
        size,
        scheme=run.scheme,
        tie=run.tie,
        n_layer=run.n_layer or size.n_layer,
        seq_len=run.seq_len or size.seq_len,
        vocab_size=text.tokenizer.vocab_size,
    )


def train_module(run: Run, config: ModelConfig, overrides: list[Any]) -> TransformerTrainModuleConfig:
    """Optimiser and parallelism."""
    dp = None
    if run.dp != "none":
        dp = TransformerDataParallelConfig(name=DataParallelType(run.dp), param_dtype=DTYPES[run.precision])
    mode = run.checkpointing and TransformerActivationCheckpointingMode(run.checkpointing)
    return TransformerTrainModuleConfig(
        rank_microbatch_size=(run.micro_batch or sequences_per_device(run)) * config.seq_len,
        max_sequence_length=config.seq_len,
        optim=AdamWConfig(lr=run.lr, weight_decay=run.weight_decay, group_overrides=overrides),
        scheduler=CosWithWarmup(warmup=round(run.warmup * run.steps), alpha_f=run.min_lr),
        max_grad_norm=run.clip,
        compile_model=run.compile,
        dp_config=dp,
        tp_config=None if run.tp == 1 else TransformerTensorParallelConfig(degree=run.tp),
        ac_config=None if mode is None else TransformerActivationCheckpointingConfig(mode=mode),
    )


def dataset(text: Prepared, config: ModelConfig, work: str) -> Any:
    """The training tokens as OLMo-core reads them: this package's shard is a flat file of ids."""
    header = text.train.header
    tokenizer = TokenizerConfig(vocab_size=config.vocab_size, eos_token_id=header.eot, pad_token_id=header.eot)
    return NumpyFSLDatasetConfig(
        paths=[str(text.train.path)],
        sequence_length=config.seq_len,
        tokenizer=tokenizer,
        dtype=NumpyDatasetDType(header.width),
        work_dir=work,
    ).build()


def record(run: Run, model: DepthTransformerConfig, module: TransformerTrainModuleConfig) -> dict[str, Any]:
    """What config.json beside every checkpoint says; `layerrope export` reads the model from it."""
    own = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(run).items()}
    data = {"source": run.source, "tokenizer": run.tokenizer}
    return {"model": model.as_config_dict(), "train_module": module.as_config_dict(), "run": own, "data": data}


def trainer_for(run: Run) -> Any:
    """The trainer of this run, its model sharded and started."""
    sequences_per_device(run)
    text = prepare(DataConfig(source=run.source, tokenizer=run.tokenizer), None)
    config = model_config(run, text)
    ours = olmo_config(config)
    model = ours.build(init_device="meta")
    overrides = group_overrides(model, lr=run.lr, weight_decay=run.weight_decay)
    module_config = train_module(run, config, overrides)
    module = module_config.build(model)
    if run.weights == "layerrope":
        load_weights(module.model, LM(config, seed=run.seed))
    work = str(run.folder / "work")
    tokens = run.batch_size * config.seq_len
    loader = NumpyDataLoaderConfig(global_batch_size=tokens, seed=run.seed, work_dir=work).build(
        dataset(text, config, work), dp_process_group=module.dp_process_group
    )
    trainer = TrainerConfig(
        save_folder=str(run.folder),
        work_dir=work,
        save_overwrite=True,
        max_duration=Duration.steps(run.steps),
        hard_stop=None if run.stop_at is None else Duration.steps(run.stop_at),
        metrics_collect_interval=min(10, run.steps),
    )
    checkpoints = CheckpointerCallback(save_interval=run.save_every, save_async=False, pre_train_checkpoint=False)
    trainer = trainer.with_callback("checkpointer", checkpoints).with_callback("metrics", MetricsFile())
    made = trainer.with_callback("config_saver", ConfigSaverCallback()).build(module, loader)
    made.callbacks["config_saver"].config = record(run, ours, module_config)
    return made


def main() -> None:
    run = tyro.cli(Run)
    if "WORLD_SIZE" not in os.environ:
        raise InputError("start this with torchrun, for instance: torchrun --nproc-per-node 1 " + " ".join(sys.argv))
    if run.threads:
        torch.set_num_threads(run.threads)
    prepare_training_environment(seed=run.seed, backend="cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    logging.getLogger("olmo_core").setLevel(logging.WARNING)
    try:
        trainer_for(run).fit()
        torch.distributed.barrier()  # a rank that leaves first can abort the others
    finally:
        teardown_training_environment()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
