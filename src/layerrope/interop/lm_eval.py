"""lm-evaluation-harness: an `LM` as one of its models, and its own loader of exported folders beside it."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (lm-eval is an extra: without it, its name resolves to this very module)
from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from layerrope.errors import InputError, MissingExtra, one_of, reason
from layerrope.files import read_json
from layerrope.loading import is_patched
from layerrope.model import LM
from layerrope.scoring import Cuts, Scorer
from layerrope.text.tokens import Tokenizer

try:
    from lm_eval import simple_evaluate, utils  # pyright: ignore[reportMissingImports]
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtra("lm-eval", "eval") from error

BOS = "end-of-text once before an empty context or a whole document, else nothing"


class LayerRoPELM(TemplateLM):
    """An `LM` and its tokenizer for lm-eval.

    The tokenizer adds no token of its own. An empty context, and the start of a document that is scored whole, is
    the end-of-text token, once. Texts are cut on the left; `scorer.cuts` counts.
    """

    def __init__(self, model: LM, tokenizer: Tokenizer, batch_size: int = 8) -> None:
        super().__init__()
        self.model, self.codec = model, tokenizer
        self.scorer = Scorer(model, tokenizer.vocab_size, batch_size)

    @property
    def eot_token_id(self) -> int:
        return self.codec.eot

    @property
    def max_length(self) -> int:
        return self.scorer.context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.codec.encode_batch([string])[0].tolist()

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        scores = self.scorer.score([(context, continuation) for _, context, continuation in requests])
        return [(score.log_likelihood, score.greedy) for score in scores]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole documents, in windows that do not overlap but by one token of context."""
        return [self._rolling(request.args[0]) for request in requests]

    def _rolling(self, text: str) -> float:
        windows = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text), prefix_token=self.eot_token_id, max_seq_len=self.max_length, context_len=1
        )
        pairs = [utils.make_disjoint_window(window) for window in windows]
        return sum(score.log_likelihood for score in self.scorer.score(pairs))

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The most likely continuations, up to a stop string."""
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        until = [until] if isinstance(until, str) else until
        n_new = int(settings.get("max_gen_toks", 256))
        if n_new >= self.max_length:
            raise InputError(f"{n_new} new tokens leave no room for a context in {self.max_length} positions")
        ids = self.tok_encode(context) or [self.eot_token_id]
        cut = max(0, len(ids) - (self.max_length - n_new))
        self.scorer.cuts.requests += cut > 0
        self.scorer.cuts.tokens += cut
        given = torch.tensor([ids[cut:]], device=self.model.embed.weight.device)
        made = self.model.generate(given, n_new, temperature=0, stop=self.eot_token_id)[0, given.shape[1] :].tolist()
        made = made[: made.index(self.eot_token_id)] if self.eot_token_id in made else made
        text = self.codec.decode(made)
        return text[: min((at for at in map(text.find, until) if at >= 0), default=len(text))]


# ----------------------------------------------------------------------------------------------------------- evaluate
@dataclass(frozen=True)
class Evaluation:
    """What lm-eval found, and how."""

    scores: dict[str, dict[str, float]]
    """task -> metric -> value"""
    n_samples: dict[str, int]
    cuts: Cuts | None
    """requests cut on the left; None where lm-eval's own loader ran, which does not count them"""
    bos: str
    """what stands before a text"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_lm(
    model: Any,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    n_shot: int | None = None,
    include: Path | None = None,
    batch_size: int = 8,
    device: str = "cpu",
) -> Evaluation:
    """Run lm-eval's tasks on a model.

    Args:
        model: a `LayerRoPELM`, or the path of a folder, which lm-eval then loads by transformers.
        tasks: names that lm-eval knows.
        limit: documents per task; None: all.
        n_shot: examples in the context; None: each task's own number.
        include: a folder with task files of your own.
        batch_size: rows of a forward pass, where a folder is given.
        device: cpu, cuda or cuda:N, where a folder is given.

    Raises:
        InputError: an unknown task, a number that is none, a folder that is no stock model, or what lm-eval says of
            tasks whose files or data it cannot read.
    """
    own = isinstance(model, LayerRoPELM)
    if not own:
        _check_folder(Path(model))
    for name, value, least in (("limit", limit, 1), ("shots", n_shot, 0), ("batch-size", batch_size, 1)):
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}: got {value}")
    manager = TaskManager(include_path=None if include is None else str(include))
    for task in tasks:
        one_of("task", task, manager.all_tasks)
    loading = {"model_args": {"pretrained": str(model), "dtype": "float32"}, "batch_size": batch_size}
    with _told(), contextlib.redirect_stdout(io.StringIO()):  # the harness prints tables of its own
        found = simple_evaluate(
            model=model if own else "hf",
            tasks=list(tasks),
            num_fewshot=n_shot,
            limit=limit,
            task_manager=manager,
            log_samples=False,
            bootstrap_iters=0,
            **({} if own else loading | {"device": device}),
        )
    assert found is not None
    scores = {task: _numbers(found["results"][task]) for task in found["results"]}
    samples = {task: int(n["effective"]) for task, n in found.get("n-samples", {}).items()}
    cuts = model.scorer.cuts if own else None
    return Evaluation(scores, samples, cuts, BOS)


def _check_folder(folder: Path) -> None:
    """Raise InputError unless transformers reads `folder` as the whole model that lies there."""
    if is_patched(folder):
        raise InputError(f"{folder} is a model patched by layerrope.apply: export it first, or its gains would be lost")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{folder} is no folder that transformers reads: export it first, or leave out --through")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Inside, what lm-eval and its data loaders raise becomes an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"lm-eval cannot run these tasks on this model ({reason(error)})") from error


def _numbers(result: dict[str, Any]) -> dict[str, float]:
    """ "acc,none" -> acc, without the standard errors."""
    return {
        name.removesuffix(",none"): float(value)
        for name, value in result.items()
        if isinstance(value, float) and "stderr" not in name
    }
