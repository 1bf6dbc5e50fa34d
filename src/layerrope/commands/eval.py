"""`layerrope eval`: scores on the tasks of lm-evaluation-harness, or the loss in low precision or by iterations."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from layerrope.errors import InputError, one_of
from layerrope.terminal import emit_json, note, out

if TYPE_CHECKING:
    from torch import Tensor

    from layerrope.interop.lm_eval import Evaluation
    from layerrope.loading import Loaded
    from layerrope.looping.losses import LoopCurve
    from layerrope.numerics import Numerics
    from layerrope.studies.numerics import Scored

TASK_SETS: dict[str, tuple[str, ...]] = {
    "commonsense": (
        "boolq",
        "piqa",
        "social_iqa",
        "hellaswag",
        "winogrande",
        "arc_easy",
        "arc_challenge",
        "openbookqa",
    ),
}
"""Named sets: eight multiple-choice tasks of commonsense reasoning."""
EVALUATIONS = ("tasks", "numerics", "loops")
BELONGS: dict[str, tuple[str, ...]] = {
    "include": ("tasks",),
    "limit": ("tasks",),
    "shots": ("tasks",),
    "through": ("tasks",),
    "device": ("tasks", "loops"),
    "text": ("numerics",),
    "tokens": ("numerics", "loops"),
    "contrast": ("loops",),
    "early": ("loops",),
}
"""Option -> the evaluations that it belongs to."""


@dataclass(frozen=True)
class Command:
    """Score a model on tasks of lm-evaluation-harness, through its Python interface.

    Texts longer than the model's context lose tokens on the left, which is counted and printed. No token is put
    before a text, but end-of-text once where there is no context.
    """

    source: Annotated[str, tyro.conf.Positional]
    """run, checkpoint (RUN/checkpoints/step-N), exported folder or stock folder; for --numerics also a folder that
    layerrope compare or layerrope study wrote"""
    tasks: tuple[str, ...] = ()
    """names that lm-eval knows, or a named set: commonsense (eight tasks)"""
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
    """cpu, cuda, cuda:N, for --tasks and --loops"""
    numerics: bool = False
    """instead of tasks: loss in fp32, bf16, fp16, int8, int4 and fp8, and the size of the stream by depth; of a
    comparison or a study: under every scheme, with intervals over the seeds"""
    text: Path | None = None
    """text file for --numerics; a run's own validation text where its data is at hand"""
    tokens: int = 20_000
    """positions that --numerics and --loops score at most"""
    loops: tuple[int, ...] = ()
    """instead of tasks: loss of a looped run after these numbers of iterations, on its own validation text"""
    contrast: str | None = None
    """with --loops: the loss under LoopCD too, adaptive or with a fixed weight"""
    early: int = 1
    """iteration that --contrast decodes against"""
    json: bool = False
    """print the scores as one JSON document on stdout"""

    def run(self) -> int:
        return {"tasks": self._tasks, "numerics": self._numerics, "loops": self._loops}[self._which()]()

    def _which(self) -> str:
        """The evaluation that is asked for. Raises InputError for two at once, or an option of another one."""
        asked = [name for name in EVALUATIONS if getattr(self, name)]
        if len(asked) > 1:
            raise InputError(f"--{asked[0]} and --{asked[1]} are two different evaluations: ask for one of them")
        which = asked[0] if asked else "tasks"
        for option in fields(self):
            of = BELONGS.get(option.name, EVALUATIONS)
            if which not in of and getattr(self, option.name) != option.default:
                raise InputError(f"--{option.name} needs {' or '.join(f'--{name}' for name in of)}: leave it out")
        return which

    def _tasks(self) -> int:
        one_of("way", self.through, ("adapter", "transformers"))
        tasks = [task for name in self.tasks for task in TASK_SETS.get(name, (name,))]
        if not tasks:
            raise InputError(
                "name at least one task: --tasks commonsense, or names that lm-eval knows (or --numerics, or --loops)"
            )
        found = self._evaluate(tasks)
        if self.json:
            emit_json({"source": self.source, "through": self.through, **found.as_dict()})
            return 0
        out.print(table(found))
        note(f"before a text: {found.bos}")
        cuts = "not counted by lm-eval's own loader, which warns of each"
        if found.cuts is not None:
            cuts = f"{found.cuts.requests:,} requests, {found.cuts.tokens:,} tokens"
        note(f"cut on the left: {cuts}")
        return 0

    def _numerics(self) -> int:
        from layerrope.loading import load_lm
        from layerrope.numerics import numerics

        self._check_sizes()
        if (Path(self.source) / "study.json").is_file():
            return self._numerics_by_scheme()
        loaded = load_lm(self.source)
        batches = self._batches(loaded)
        found = numerics(loaded.model, batches)
        if self.json:
            emit_json({"source": self.source, "scheme": loaded.model.config.scheme, **asdict(found)})
            return 0
        for made in numerics_tables(found):
            out.print(made)
        text = "its own validation text" if self.text is None else self.text
        note(f"{loaded.label}: {sum(targets.numel() for _, targets in batches):,} positions of {text}")
        return 0

    def _numerics_by_scheme(self) -> int:
        from layerrope.studies.numerics import answers, score_schemes, settings_in

        if self.text is not None:
            raise InputError("a comparison is scored on its own validation text: leave out --text")
        folder = Path(self.source)
        made = {}
        for found in settings_in(folder):
            scored = made[found.name] = score_schemes(folder, found, self.tokens, self.batch_size, note)
            if not self.json:
                show_schemes(found.name, scored)
        if self.json:
            runs = [{"setting": name, **asdict(run)} for name, scored in made.items() for run in scored]
            says = [f"{name}: {line}".removeprefix(": ") for name in made for line in answers(made[name])]
            emit_json({"source": self.source, "runs": runs, "says": says})
        return 0

    def _check_sizes(self) -> None:
        for name, value in (("tokens", self.tokens), ("batch-size", self.batch_size)):
            if value < 1:
                raise InputError(f"{name} must be at least 1: got {value}")

    def _loops(self) -> int:
        from layerrope.looping.loopcd import read_contrast
        from layerrope.looping.losses import loop_curve
        from layerrope.training.machine import check_machine

        how = None if self.contrast is None else read_contrast(self.contrast, self.early)
        self._check_sizes()
        device = check_machine(self.device)
        found = loop_curve(self.source, self.loops, how, tokens=self.tokens, batch=self.batch_size, device=device)
        if self.json:
            emit_json({"source": self.source, "contrast": self.contrast, "early": self.early, **asdict(found)})
            return 0
        out.print(loops_table(found))
        note(f"{found.label}: trained at {found.trained_loops} iterations in the mean, {found.tokens:,} tokens scored")
        return 0

    def _batches(self, loaded: Loaded) -> list[tuple[Tensor, Tensor]]:
        """The given text, or the run's own validation windows."""
        from layerrope.loading import run_data
        from layerrope.numerics import text_batches

        if self.text is None:
            data = run_data(Path(self.source))
            if data is None:
                raise InputError(f"{self.source} is no run, so it has no text of its own: give --text FILE")
            return list(data.eval_batches(self.batch_size, self.tokens))
        if loaded.tokenizer is None:
            raise InputError(f"{self.source} comes without a tokenizer: {loaded.why_no_tokenizer}")
        text = _head(self.text, 64 * self.tokens)
        ids = loaded.tokenizer.encode_batch([text])[0].tolist()
        if len(ids) < 2:
            raise InputError(f"{self.text} has {len(ids)} tokens: at least 2 are needed")
        return text_batches(ids, loaded.model.config.seq_len, self.batch_size, self.tokens)

    def _evaluate(self, tasks: list[str]) -> Evaluation:
        from layerrope.interop.lm_eval import LayerRoPELM, evaluate_lm
        from layerrope.loading import load_lm
        from layerrope.training.machine import check_machine

        options = {"limit": self.limit, "n_shot": self.shots, "include": self.include, "batch_size": self.batch_size}
        device = check_machine(self.device)
        if self.through == "transformers":
            return evaluate_lm(Path(self.source), tasks, **options, device=str(device))
        loaded = load_lm(self.source)
        if loaded.tokenizer is None:
            raise InputError(f"{self.source} comes without a tokenizer: {loaded.why_no_tokenizer}")
        model = LayerRoPELM(loaded.model.float().to(device), loaded.tokenizer, self.batch_size)
        return evaluate_lm(model, tasks, **options)


def _head(path: Path, chars: int) -> str:
    """The first characters of a text file: more than any number of tokens that is asked for has."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no regular file: give a text file in UTF-8")
        with path.open(encoding="utf-8") as file:
            return file.read(chars)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): give a text file in UTF-8") from error


def show_schemes(name: str, scored: list[Scored]) -> None:
    """What each format costs every scheme in the setting `name`, for a terminal."""
    from layerrope.commands.compare import table
    from layerrope.studies.numerics import answers, loss_rows, stream_rows

    where = f" ({name})" if name else ""
    caption = f"Nats per token that each format adds, mean over seeds ± half a 95% interval{where}"
    out.print(table(loss_rows(scored), caption))
    out.print(table(stream_rows(scored), f"The stream in fp32, means over seeds{where}"))
    for line in answers(scored):
        out.print(f"- {line}", markup=False)


def numerics_tables(found: Numerics) -> tuple[Table, Table]:
    """Losses by format, and the stream by depth, for a terminal."""
    losses = Table("format", "loss (nats/token)", "change")
    for row in found.rows:
        losses.add_row(row.format, f"{row.loss:.4f}", f"{row.change:+.5f}")
    stream = Table("after layer", "RMS", "largest")
    for i, (rms, largest) in enumerate(zip(found.rms, found.largest, strict=True)):
        stream.add_row(str(i), f"{rms:.3g}", f"{largest:.3g}")
    return losses, stream


def loops_table(found: LoopCurve) -> Table:
    """Losses by iterations, for a terminal."""
    made = Table("iterations", "loss (nats/token)", "under LoopCD")
    for row in found.rows:
        made.add_row(str(row.loops), f"{row.loss:.4f}", "" if row.contrasted is None else f"{row.contrasted:.4f}")
    return made


def table(found: Evaluation) -> Table:
    """The scores for a terminal."""
    made = Table("task", "metric", "value", "documents")
    for task, metrics in found.scores.items():
        for metric, value in metrics.items():
            made.add_row(task, metric, f"{value:.4f}", str(found.n_samples.get(task, "")))
    return made
