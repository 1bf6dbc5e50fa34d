"""`layerrope eval`: a model's scores on the tasks of lm-evaluation-harness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from layerrope.errors import InputError, one_of
from layerrope.terminal import emit_json, note, out

if TYPE_CHECKING:
    from layerrope.interop.lm_eval import Evaluation

TASK_SETS: dict[str, tuple[str, ...]] = {
    "paper": ("arc_easy", "arc_challenge", "boolq", "hellaswag", "openbookqa", "piqa", "sciq", "winogrande"),
}
"""Named sets: the eight tasks of the LayerRoPE paper."""


@dataclass(frozen=True)
class Command:
    """Score a model on tasks of lm-evaluation-harness, through its Python interface.

    Texts longer than the model's context lose tokens on the left, which is counted and printed. No token is put
    before a text, but end-of-text once where there is no context.
    """

    source: Annotated[str, tyro.conf.Positional]
    """run, checkpoint (RUN/checkpoints/step-N), exported folder or stock folder"""
    tasks: tuple[str, ...] = ()
    """names that lm-eval knows, or a named set: paper (its eight tasks)"""
    include: Path | None = None
    """folder with lm-eval task files of your own"""
    limit: int | None = None
    """documents per task; all"""
    shots: int | None = None
    """examples in the context; each task's own number"""
    batch_size: int = 8
    """rows of a forward pass"""
    through: str = "adapter"
    """adapter (this package's model) or transformers (lm-eval loads the folder itself)"""
    device: str = "cpu"
    """cpu, cuda, cuda:N, for the adapter"""
    json: bool = False
    """print the scores as one JSON document on stdout"""

    def run(self) -> int:
        one_of("way", self.through, ("adapter", "transformers"))
        tasks = [task for name in self.tasks for task in TASK_SETS.get(name, (name,))]
        if not tasks:
            raise InputError("name at least one task: --tasks paper, or names that lm-eval knows")
        found = self._evaluate(tasks)
        if self.json:
            emit_json({"source": self.source, "through": self.through, **found.as_dict()})
            return 0
        out.print(table(found))
        note(f"before a text: {found.bos}")
        if found.cuts is not None:
            note(f"cut on the left: {found.cuts.requests:,} requests, {found.cuts.tokens:,} tokens")
        return 0

    def _evaluate(self, tasks: list[str]) -> Evaluation:
        from layerrope.interop.lm_eval import LayerRoPELM, evaluate_lm
        from layerrope.loading import load_lm
        from layerrope.machine import check_machine

        options = {"limit": self.limit, "n_shot": self.shots, "include": self.include, "batch_size": self.batch_size}
        if self.through == "transformers":
            return evaluate_lm(Path(self.source), tasks, **options)
        device = check_machine(self.device)
        loaded = load_lm(self.source)
        if loaded.tokenizer is None:
            raise InputError(f"{self.source} comes without a tokenizer: {loaded.why_no_tokenizer}")
        model = LayerRoPELM(loaded.model.float().to(device), loaded.tokenizer, self.batch_size)
        return evaluate_lm(model, tasks, **options)


def table(found: Evaluation) -> Table:
    """The scores for a terminal."""
    made = Table("task", "metric", "value", "documents")
    for task, metrics in found.scores.items():
        for metric, value in metrics.items():
            made.add_row(task, metric, f"{value:.4f}", str(found.n_samples.get(task, "")))
    return made
