"""The inside of `train`: a model, its optimisers, how far they are, and the loop over steps.

Dimensions: B sequences, T positions.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerrope.errors import InputError, in_full
from layerrope.model import IGNORED
from layerrope.ranks.parallel import laid_out
from layerrope.ranks.ranks import Ranks
from layerrope.training import checkpoint as checkpoints
from layerrope.training.checkpoint import Checkpoint
from layerrope.training.evaluation import accuracy, evaluate, shared, undisturbed
from layerrope.training.kinds import Data, Model
from layerrope.training.layerwise import checkpoint_layers, compile_layers, compiler_problem
from layerrope.training.machine import autocast, peak_memory
from layerrope.training.optim import Optimizers, clip_by_norm
from layerrope.training.recipe import TrainConfig, from_json
from layerrope.training.run_folder import Result, RunFolder
from layerrope.training.schedule import lr_factor
from layerrope.training.tracking import Tracker
from layerrope.vision.vit import ViT

WARM = 2
"""Steps at the start of a session that do not count for the speed: compilation, first allocations."""


@dataclass(frozen=True)
class Report:
    """What a run tells its caller while it trains."""

    kind: str  # "start", "step" or "note"
    step: int  # updates done
    steps: int
    row: dict[str, Any] | None = None  # the line just written to metrics.jsonl, if one was
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    text: str = ""


Callback = Callable[[Report], None]

Probe = Callable[[Model, Tensor, Tensor], dict[str, Any]]
"""Measures something on the model and a batch, (ids, targets) or (images, labels); its dict goes into the step's line
of metrics."""


@dataclass
class Progress:
    """How far a run is: all that a checkpoint keeps beside tensors. Losses as (sum in nats, counted tokens)."""

    steps: int = 0  # updates done
    tokens: int = 0  # counted targets trained on
    since_log: list[float] = field(default_factory=lambda: [0.0, 0])
    tail: list[float] = field(default_factory=lambda: [0.0, 0])  # the last twentieth of the run
    grad_norm: float | None = None
    val_loss: float | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    seconds: float = 0.0
    timed: list[float] = field(default_factory=lambda: [0.0, 0])  # seconds, positions, of steps past the warm ones


class Diverged(Exception):
    """A loss or gradient that is not finite, at an update counted from 1."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"the {what} of step {step} is not finite")
        self.step = step


class Session:
    """One call of `train`: the model, its optimisers and how far they are."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        device: torch.device,
        data: Data,
        progress: Callback | None,
        probes: Sequence[Probe],
        ranks: Ranks | None = None,
        parallel: str = "auto",
    ) -> None:
        self.config, self.folder, self.device, self.data = config, folder, device, data
        self.progress, self.probes = progress, probes
        self.ranks = ranks = Ranks() if ranks is None else ranks
        torch.manual_seed(config.seed)
        self.model: Model
        self.model, self.form = laid_out(parallel, config, ranks, device)
        self.optimizers = Optimizers(
            self.model,
            config.optimizer,
            lr=config.lr,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self.trained = self.optimizers.parameters
        self.at = Progress()
        self.key = ""  # of the run that claimed the folder
        self.warm = WARM  # up to this step, time does not count for the speed
        self.micro = min(config.micro, config.batch_size // ranks.world)  # sequences per forward pass on this rank
        self.check_every = 1 if device.type == "cpu" else 16  # reading a loss makes the CPU wait for the device
        self.unread: list[tuple[int, list[Tensor], int, Tensor]] = []  # step, losses, counted tokens, gradient norm

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    # ------------------------------------------------------------------------------------------- start and resume
    def start(self) -> None:
        """Claim the folder, take up the newest sound checkpoint, and compile."""
        path, found, key = None, None, ""
        with self.ranks.together():
            if self.ranks.main:
                path, found = self._claim()
                key = self.folder.key
        self.key, where = self.ranks.tell([key, path and str(path)])
        if where is not None:
            with self.ranks.together():
                self._take_up(Path(where), found or checkpoints.opened(Path(where)))
        with self.ranks.together():
            if self.ranks.main:
                self.folder.rewind(self.at.steps)
        if self.config.checkpointing:
            checkpoint_layers(self.model)
        if self.config.compile and self.at.steps < self.config.steps:
            self._compile()
        self.report("start")

    def _claim(self) -> tuple[Path | None, Checkpoint | None]:
        """Make the folder this run's; its newest sound checkpoint with its path, if there is one."""
        facts = {"data": self.data.summary(), "n_params": self.n_params, "device": str(self.device)}
        if self.ranks.world > 1:
            facts |= {"ranks": self.ranks.world, "parallel": self.form.name}
        self.folder.claim(self.config, facts | {"threads": torch.get_num_threads()})
        path, found, skipped = checkpoints.latest(self.folder.checkpoints)
        if found is None and skipped:
            raise InputError(
                f"{skipped[0]}; no other checkpoint there is sound, so the run cannot go on where it was: "
                "put one back, or start over with --fresh (resume=False)"
            )
        for line in skipped:
            self.note(f"{line}: skipped")
        return path, found

    def _take_up(self, path: Path, found: Checkpoint) -> None:
        """Go on from the checkpoint at `path`, which rank 0 has found sound."""
        self._check_owner(path, found)
        try:
            self._restore(found)
        except (AttributeError, InputError, KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"checkpoint {path} is of another version of this package: {in_full(error)}") from error
        self.warm = self.at.steps + WARM
        self.note(f"resumed at step {self.at.steps} from {path}")
        for name, old, new in self.folder.changes(self.config):
            self.note(f"{name} was {old} and is {new} from here on: numbers may round differently")

    def _check_owner(self, path: Path, found: Checkpoint) -> None:
        """Raise InputError for a checkpoint of another run; those without a key are taken on config.json's word."""
        theirs, mine = found.state.get("key", self.key), self.key
        if theirs != mine:
            raise InputError(
                f"checkpoint {path} is of another run (key {theirs}, config.json has {mine}): "
                "move it away, or choose another folder"
            )

    def _restore(self, found: Checkpoint) -> None:
        state = {name: value for name, value in found.state.items() if name != "key"}
        self.form.fill(self.model, _own(self.model, found.tensors["model"]))
        self.optimizers.load(found.tensors["optimizer"], state.pop("stateless"), self.form.place)
        _set_rng(found.tensors["rng"], self.device)
        self.at = from_json(Progress, state, "state.json")

    def _compile(self) -> None:
        def trial() -> None:
            self._forward_backward(*self._batch(self.at.steps))

        problem = self._compiler_problem()
        if problem is None:
            with undisturbed(self.model):
                self.model.train()
                problem = compile_layers(self.model, trial)
            self.optimizers.zero_grad()
            if problem is not None and self.ranks.world > 1:  # in the middle of exchanges: there is no way back
                raise InputError(f"torch.compile does not work here ({problem}): train without --compile")
        if problem is not None:
            self.note(f"torch.compile does not work here, training uncompiled ({problem})")

    def _compiler_problem(self) -> str | None:
        """Why a compiler does not work on some rank, tried before the trial, in which ranks wait for each other."""
        if self.ranks.world == 1:
            return None
        found = self.ranks.gather(compiler_problem(self.device))
        return next((f"rank {rank}: {words}" for rank, words in enumerate(found) if words is not None), None)

    def save(self) -> None:
        """Write a checkpoint of the steps done. Raises Diverged rather than keep weights that are not finite."""
        self._read()
        tensors = {
            "model": _tied(self.model),
            "optimizer": self.optimizers.state(),
            "rng": _rng(self.device),
        }
        state = asdict(self.at) | {"stateless": self.optimizers.stateless(), "key": self.key}
        found = Checkpoint(tensors, state)
        whole = self.form.whole if self.form.in_shards else None
        with self.ranks.together():
            if self.ranks.main:
                checkpoints.save(self.folder.checkpoints, self.at.steps, found, self.config.keep_checkpoints, whole)
            elif whole is not None:
                checkpoints.attend(found, whole)

    # --------------------------------------------------------------------------------------------------- the loop
    def run(self, stopped: Callable[[], bool], trackers: Sequence[Tracker]) -> Result:
        """Train to the end, to an interrupt, or to the step that diverges."""
        at, steps = self.at, self.config.steps
        status, diverged = "done", None
        try:
            with self._opened_metrics() as metrics:
                while at.steps < steps and status == "done":
                    self._advance(metrics, trackers)
                    if at.steps < steps and self.ranks.any(stopped()):
                        status = "interrupted"
                    if status == "interrupted" or at.steps == steps or _due(at.steps, self.config.checkpoint_every):
                        if metrics is not None:
                            os.fsync(metrics.fileno())
                        self.save()
        except Diverged as error:
            status, diverged = "diverged", error
        result = self.result(status, diverged)
        with self.ranks.together():
            if status != "interrupted" and self.ranks.main:
                self.folder.finish(result)
        return result

    @contextlib.contextmanager
    def _opened_metrics(self) -> Iterator[FileIO | None]:
        """metrics.jsonl on rank 0, nothing on the others."""
        with contextlib.ExitStack() as held:
            metrics = None
            with self.ranks.together():
                if self.ranks.main:
                    metrics = held.enter_context(self.folder.open_metrics())
            yield metrics

    def _advance(self, metrics: FileIO | None, trackers: Sequence[Tracker]) -> None:
        """One step, with its line of metrics where one is due, and its share of the clock."""
        at, began = self.at, time.perf_counter()
        self.update()
        spent = time.perf_counter() - began
        at.seconds += spent
        if at.steps > self.warm:
            at.timed[0] += spent
            at.timed[1] += self.config.tokens_per_step
        row = self.row()
        if row is not None:
            with self.ranks.together():
                if metrics is not None:
                    self.folder.append(metrics, row)
            for tracker in trackers:
                tracker.log(row)
        self.report("step", row)
        at.seconds += time.perf_counter() - began - spent

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's rows of the step's batch."""
        ranks = self.ranks
        return self.data.batch(step, self.config.batch_size, seed=self.config.seed, rank=ranks.rank, world=ranks.world)

    def update(self) -> None:
        """One optimiser step. Raises Diverged, on the CPU before the weights are touched."""
        config, at = self.config, self.at
        losses, counted = self._forward_backward(*self._batch(at.steps))
        norm = self.form.norm(self.trained)
        self.unread.append((at.steps + 1, losses, counted, norm))
        if len(self.unread) >= self.check_every:
            self._read()
        if config.clip:
            clip_by_norm(self.trained, norm, config.clip)
        self.optimizers.step(self._lr_factor(at.steps))
        self.optimizers.zero_grad()
        at.steps += 1

    def _forward_backward(self, ids: Tensor, targets: Tensor) -> tuple[list[Tensor], int]:
        """Gradients of the mean loss over every counted token of all ranks' rows (B, T), however they are split.

        Returns:
            The sum of losses of each part of this rank's rows, and the number of counted tokens of all ranks.
        """
        counted = int(self.ranks.add([int((targets != IGNORED).sum())])[0])
        share = max(counted, 1) / self.ranks.world  # gradients are averaged over the ranks
        losses, left = [], len(ids)
        for x, y in zip(ids.split(self.micro), targets.split(self.micro), strict=True):
            left -= len(x)
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            with self.form.part(last=not left):
                with autocast(self.device, self.config.precision, cache=not self.form.in_shards):
                    loss, _ = self.form.loss_sum(self.model, x, y)
                (loss / share).backward()
            losses.append(loss.detach())
        return losses, counted

    def _lr_factor(self, step: int) -> float:
        config = self.config
        shape = {"schedule": config.schedule, "warmup": config.warmup, "decay": config.decay, "least": config.min_lr}
        return lr_factor(step, config.steps, **shape)

    def _read(self) -> None:
        """Add the losses of the last steps to the sums. Raises Diverged at the first that is not finite."""
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        totals = self.ranks.add([sum(map(float, losses)) for _, losses, _, _ in unread])
        for (step, _, counted, norm), total in zip(unread, totals, strict=True):
            self.at.grad_norm = float(norm)
            if not math.isfinite(total):
                raise Diverged(step, "loss")
            if not math.isfinite(self.at.grad_norm):
                raise Diverged(step, "gradient")
            self.at.tokens += counted
            in_tail = step > self.config.steps - max(1, self.config.steps // 20)
            for sums in (self.at.since_log, self.at.tail) if in_tail else (self.at.since_log,):
                sums[0] += total
                sums[1] += counted

    # ---------------------------------------------------------------------------------------------- what it writes
    def row(self) -> dict[str, Any] | None:
        """The line of metrics for the step just done, or None where none is due. Evaluates and probes where due."""
        config, step = self.config, self.at.steps
        last = step == config.steps
        evaluates, probes = last or _due(step, config.eval_every), _due(step, config.probe_every)
        if not (last or evaluates or probes or _due(step, config.log_every)):
            return None
        self._read()
        row = self._basics()
        if evaluates:
            row |= self._evaluate()
        if probes:
            row["probes"] = self._probe()
        if last and self.ranks.world > 1:
            row["ranks"] = self._usage()
        return row

    def _usage(self) -> list[dict[str, float | None]]:
        """What each rank has done and held, for the last line of metrics; said in words too."""
        mine = {"tokens_per_second": self.rate and self.rate / self.ranks.world, "peak_bytes": peak_memory(self.device)}
        found = self.ranks.gather(mine)
        rates, held = ([rank[name] for rank in found] for name in mine)
        speed = "" if None in rates else f"{sum(rates):,.0f} tokens/s in all, {min(rates):,.0f} or more a rank; "
        self.note(
            f"{len(found)} ranks ({self.form.name}): {speed}peak memory {sum(held) / 1e9:.2f} GB in all, "
            f"{max(held) / 1e9:.2f} or less a rank"
        )
        return found

    def _basics(self) -> dict[str, Any]:
        at = self.at
        total, count = at.since_log
        at.since_log = [0.0, 0]
        return {
            "step": at.steps,
            "tokens": at.tokens,
            "loss": total / count if count else None,
            "lr": self.config.lr * self._lr_factor(at.steps - 1),
            "grad_norm": at.grad_norm,
            "seconds": round(at.seconds, 3),
            "tokens_per_second": self.rate,
        }

    def _evaluate(self) -> dict[str, float | None]:
        at, config = self.at, self.config
        batches = shared(self.data.eval_batches(self.micro, config.eval_tokens), self.ranks.rank, self.ranks.world)
        loss = evaluate(self.model, batches, config.precision, self.ranks.add)
        self.form.settle(self.model)
        if not math.isfinite(loss):
            raise Diverged(at.steps, "validation loss")
        at.val_loss = loss
        if at.best_val_loss is None or loss < at.best_val_loss:
            at.best_val_loss, at.best_step = loss, at.steps
        row = {"val_loss": loss, "bits_per_byte": self.data.bits_per_byte(loss)}
        if isinstance(self.model, ViT):
            batches = self.data.eval_batches(self.micro, config.eval_tokens)
            row["val_accuracy"] = accuracy(self.model, batches, config.precision)
        return row

    def _probe(self) -> dict[str, Any]:
        """What the probes find on the next step's batch. They may use gradients; none is left."""
        config = self.config
        batch = self.data.batch(self.at.steps, config.batch_size, seed=config.seed, rank=0, world=1)
        ids, targets = (x[: config.micro].to(self.device) for x in batch)
        found: dict[str, Any] = {}
        with self.form.readable(self.model) as model, undisturbed(model):
            for probe in self.probes if self.ranks.main else ():
                found |= probe(model, ids, targets)
        self.optimizers.zero_grad()
        return found

    @property
    def rate(self) -> float | None:
        """Positions per second over the steps past the warm ones, or None before there is one."""
        seconds, positions = self.at.timed
        return positions / seconds if seconds else None

    def report(self, kind: str, row: dict[str, Any] | None = None, text: str = "") -> None:
        if self.progress is None:
            return
        left = (self.config.steps - self.at.steps) * self.config.tokens_per_step
        seconds_left = left / self.rate if self.rate else None
        self.progress(Report(kind, self.at.steps, self.config.steps, row, self.rate, seconds_left, text))

    def note(self, text: str) -> None:
        """A remark for whoever started the run."""
        if self.progress is None:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.report("note", text=text)

    def result(self, status: str, diverged: Diverged | None) -> Result:
        at = self.at
        total, count = at.tail
        return Result(
            status=status,
            key=self.key,
            step=at.steps,
            tokens=at.tokens,
            train_loss=total / count if count else None,
            val_loss=at.val_loss,
            bits_per_byte=None if at.val_loss is None else self.data.bits_per_byte(at.val_loss),
            best_val_loss=at.best_val_loss,
            best_step=at.best_step,
            seconds=at.seconds,
            tokens_per_second=self.rate,
            n_params=self.n_params,
            diverged_at=None if diverged is None else diverged.step,
            error=None if diverged is None else str(diverged),
        )


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


# ------------------------------------------------------------------------------------------------ tensors to save
def _tied(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once, under their first name."""
    names: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: t for name, t in state.items() if names.setdefault(id(t), name) == name}


def _own(model: nn.Module, saved: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, value) of `saved`, one after another. Raises InputError when they are not this model's."""
    own = _tied(model)
    for problem, keys in (("lacks", own.keys() - saved.keys()), ("has the unknown", saved.keys() - own.keys())):
        if keys:
            raise InputError(f"the checkpoint {problem} tensor {min(keys)} ({len(keys)} in all)")
    return ((name, saved[name]) for name in own)


def _rng(device: torch.device) -> dict[str, Tensor]:
    """torch's random state, as bytes."""
    found = {"cpu": torch.get_rng_state()}
    return found | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_rng(saved: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(saved["cpu"])
    if device.type == "cuda" and "cuda" in saved:
        torch.cuda.set_rng_state(saved["cuda"], device)
