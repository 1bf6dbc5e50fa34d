"""`layerrope train`: one model under one scheme, resumable."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from layerrope.accounting import count_parameters
from layerrope.budget import steps_of
from layerrope.commands.live import DataStages, RunBar
from layerrope.config import ModelConfig, preset, tiers
from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError, one_of
from layerrope.looping.looped import LoopedConfig, looped_tiers
from layerrope.probes import training_cost
from layerrope.ranks.parallel import form_of
from layerrope.ranks.place import Place, rank_place
from layerrope.ranks.ranks import Ranks, joined
from layerrope.scheme_table import scheme
from layerrope.terminal import emit_json, note, out
from layerrope.train import train
from layerrope.training.kinds import LoopedTrainConfig
from layerrope.training.machine import check_machine, default_device
from layerrope.training.recipe import Settings, TrainConfig
from layerrope.training.run_folder import Result, RunFolder, folder_name, read_metrics
from layerrope.training.tracking import check_trackers

_SHAPE = ("n_layer", "n_head", "d_model", "d_ff", "seq_len", "embed_std", "loops", "grad_loops")
_WHERE = {True: "looped models do not take it", False: f"it is for looped models, {', '.join(looped_tiers)}"}

EXIT = {"done": 0, "diverged": 1, "interrupted": 130}


@dataclass(frozen=True)
class Command(Settings):
    """Train one decoder language model and keep a run that can be resumed, compared and inspected.

    The same flags give the same run: a finished one is only printed, a cut one continues. Exit code 1 means that the
    run diverged.
    """

    scheme: str = "layerrope"
    """depth scheme, with options: layerrope:rotation=off"""
    tier: str = "micro"
    """named model size: micro (1.2M parameters, minutes on a CPU), 60m ... 7b (the paper's ladder), d128-L48 ...;
    loop-micro, parcae-140m ... parcae-1.3b: looped models"""
    preset: str | None = None
    """modern (RMSNorm, rotary positions, SwiGLU) or gpt-2017 (LayerNorm, learned positions, GELU); the tier's own"""
    n_layer: int | None = None
    """layers, in place of the tier's"""
    loops: int | None = None
    """mean number of times that a looped model's core runs, in place of the tier's"""
    grad_loops: int | None = None
    """of these, the last ones that carry gradient, at most; half of loops, rounded up"""
    n_head: int | None = None
    """query heads, in place of the tier's"""
    d_model: int | None = None
    """width of the stream, in place of the tier's"""
    d_ff: int | None = None
    """hidden width of the MLP, in place of the tier's"""
    seq_len: int | None = None
    """tokens per training sequence, in place of the tier's"""
    embed_std: float | None = None
    """standard deviation of the token embedding at the start, in place of the tier's"""
    data: str = "embedded"
    """text: embedded (5.6 MB of novels), a .txt or .jsonl file (also .xz, .zst, .gz), a folder, or hf:NAME"""
    tokenizer: str = "bytes"
    """bytes (257 ids), bpe:SIZE (trained on this text), a tokenizer.json file, or hub:NAME"""
    layout: str = "packed"
    """packed (documents one after another) or padded (each document padded or cut to a sequence)"""
    text_key: str = "text"
    """key or column that holds the text in .jsonl files and Hugging Face datasets"""
    max_docs: int | None = None
    """stop reading the training text after this many documents"""
    budget: str | None = None
    """length of the run: updates (500), tokens (2M) or tokens per parameter (20x); 500 updates"""
    steps: int | None = None
    """length of the run in updates, in place of --budget"""
    device: str = "auto"
    """cpu, cuda, cuda:N; auto: cuda where there is one"""
    threads: int | None = None
    """CPU threads; torch's own choice"""
    out: Path | None = None
    """folder of the run; runs/SCHEME-KEY, where KEY names the settings"""
    parallel: str = "auto"
    """on several ranks (torchrun ... -m layerrope train): ddp (a copy on each), fsdp (in shards), or auto (by size)"""
    fresh: bool = False
    """start over: remove the run that the folder holds"""
    track: tuple[str, ...] = ()
    """also log to: tensorboard, wandb, trackio"""
    json: bool = False
    """print the result as one JSON document on stdout"""

    def run(self) -> int:
        ranks = joined()
        if not ranks.joined and (rank_place() or Place(0, 1, 0)).world > 1:
            raise InputError("this is one of several ranks: start them by torchrun ... -m layerrope train")
        with ranks.together():
            device = self._device(ranks)
            check_machine(device, self.precision)
            check_trackers(self.track)
            config = self.plan()
            data = load_data(config.data, progress=DataStages() if ranks.main else None)
            config = self.plan(data.vocab_size)
            form_of(self.parallel, config, ranks)
        run_dir = self.out or Path("runs") / folder_name(config)
        with RunBar(self.scheme) if ranks.main else nullcontext() as bar:
            result = train(
                config,
                run_dir,
                device=device,
                threads=self.threads,
                resume=not self.fresh,
                progress=bar,
                track=self.track,
                data=data,
                ranks=ranks,
                parallel=self.parallel,
            )
        if ranks.main:
            self._print(run_dir, config, result)
            cost = training_cost(read_metrics(RunFolder(run_dir).metrics)) if config.probe_every else None
            if cost is not None:
                note(f"probing took {cost[0]:.1f} s, {cost[1]:.1%} of the time before the last evaluation")
        return EXIT[result.status]

    def _device(self, ranks: Ranks) -> str:
        """This rank's device: of several on its machine, the one with its number."""
        device = default_device() if self.device == "auto" else self.device
        if device != "cuda" or not ranks.joined:
            return device
        here = torch.cuda.device_count()
        if here and ranks.local >= here:
            raise InputError(f"there are {here} CUDA devices here, and more ranks: set --nproc-per-node to {here}")
        return f"cuda:{ranks.local}"

    def plan(self, vocab_size: int | None = None) -> TrainConfig:
        """The run these flags describe; without the data's vocabulary only to see whether they fit together."""
        model = self._model(vocab_size)
        data = DataConfig(
            source=self.data,
            tokenizer=self.tokenizer,
            seq_len=model.seq_len,
            layout=self.layout,
            text_key=self.text_key,
            max_docs=self.max_docs,
        )
        settings = {name: getattr(self, name) for name in Settings.__dataclass_fields__}
        kind = LoopedTrainConfig if isinstance(model, LoopedConfig) else TrainConfig
        config = kind(**settings, model=model, data=data)  # type: ignore[arg-type]
        return replace(config, steps=self._steps(config))

    def _model(self, vocab_size: int | None) -> ModelConfig | LoopedConfig:
        scheme(self.scheme)
        known: dict[str, ModelConfig | LoopedConfig] = {**tiers, **looped_tiers}
        start = known[one_of("tier", self.tier, known)]
        changes: dict[str, Any] = {n: getattr(self, n) for n in _SHAPE if getattr(self, n) is not None}
        odd = [name for name in changes if name not in {f.name for f in fields(start)}]
        if odd:
            flag = odd[0].replace("_", "-")
            raise InputError(f"the tier {self.tier} has no --{flag}: {_WHERE[self.tier in looped_tiers]}")
        if vocab_size is not None:
            changes["vocab_size"] = vocab_size
        model = replace(start, scheme=self.scheme, **changes)
        if self.preset is None:
            return model
        if isinstance(model, LoopedConfig):
            raise InputError("looped models have parts of their own: leave out --preset")
        return preset(self.preset, model)

    def _steps(self, config: TrainConfig) -> int:
        if self.steps is not None and self.budget is not None:
            raise InputError("--steps and --budget both set the length of the run: give one of them")
        size = count_parameters(config.model)[0]  # refuses what does not fit, before any text is read
        return steps_of(self.budget or "500", size, config.tokens_per_step) if self.steps is None else self.steps

    def _print(self, run_dir: Path, config: TrainConfig, result: Result) -> None:
        if self.json:
            emit_json({"run_dir": run_dir, **asdict(result)})
            return
        out.print(report(config, result), markup=False, soft_wrap=True)
        out.print(f"run       {run_dir} ({', '.join(files(run_dir))})", markup=False, soft_wrap=True)


def report(config: TrainConfig, result: Result) -> str:
    """The result in words and numbers, for a terminal."""
    loss, bits = (number(x) for x in (result.val_loss, result.bits_per_byte))
    rate = "not measured" if result.tokens_per_second is None else f"{result.tokens_per_second:,.0f} tokens/s"
    lines = {
        "status": result.status if result.error is None else f"{result.status}: {result.error}",
        "scheme": f"{config.model.scheme}, {result.n_params:,} parameters, learning rate {config.lr:g}",
        "trained": f"{result.step:,} of {config.steps:,} steps, {result.tokens:,} tokens, {result.seconds:,.1f} s",
        "speed": rate,
        "loss": f"validation {loss} nats per token, {bits} bits per byte; training {number(result.train_loss)}",
    }
    return "\n".join(f"{name:<9} {text}" for name, text in lines.items())


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def files(run_dir: Path) -> list[str]:
    """What the run left in its folder."""
    folder = RunFolder(run_dir)
    return [path.name for path in (folder.config, folder.metrics, folder.checkpoints, folder.result) if path.exists()]
