"""Text from a model, piece by piece, while it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from layerrope.errors import InputError
from layerrope.looping.loopcd import Contrast, Drawing, stream
from layerrope.looping.looped import LoopedLM
from layerrope.model import LM, check_drawing, sample_token
from layerrope.text.tokens import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    max_new_tokens: int = 200
    """tokens at most"""
    temperature: float = 0.8
    """0 takes the most likely"""
    top_k: int | None = None
    seed: int = 0
    cache: bool = True
    """of keys and values; a looped model has none"""
    loops: int | None = None
    """iterations of a looped model; None: those it was trained with"""
    contrast: Contrast | None = None
    """of a looped model, against an earlier iteration"""

    def __post_init__(self) -> None:
        check_drawing(self.max_new_tokens, self.temperature, self.top_k, self.seed)

    @property
    def drawing(self) -> Drawing:
        return Drawing(self.loops, self.contrast, self.temperature, self.top_k)


def stream_text(model: LM | LoopedLM, tokenizer: Tokenizer, prompt: str, how: Sampling) -> Iterator[str]:
    """The continuation of `prompt`, in pieces that are whole characters; their sum is the text of all new tokens.

    An end-of-text token ends it and is not part of the text. An empty prompt starts from end-of-text, which stands
    before every document in training.

    Raises:
        InputError: the prompt is not UTF-8 or has tokens that the model does not know (both at once, before any
            text); the text outgrows learned positions; loops or a contrast that the model cannot have.
    """
    return begin_text(model, tokenizer, prompt, how)[1]


def begin_text(
    model: LM | LoopedLM, tokenizer: Tokenizer, prompt: str, how: Sampling
) -> tuple[list[int], Iterator[str]]:
    """The prompt's ids and what `stream_text` gives, with its refusals."""
    if isinstance(model, LoopedLM):
        how.drawing.counts(model)
    elif how.loops is not None or how.contrast is not None:
        raise InputError("only looped models have iterations: leave out loops and contrast")
    ids = _prompt_ids(model, tokenizer, prompt)
    return ids, _pieces(model, tokenizer, ids, how)


def _prompt_ids(model: LM | LoopedLM, tokenizer: Tokenizer, prompt: str) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the prompt is not UTF-8 text at character {error.start}: type it again") from error
    ids = tokenizer.encode_batch([prompt])[0].tolist() if prompt else [tokenizer.eot]
    if max(ids) >= model.config.vocab_size:
        raise InputError(f"the tokenizer gives id {max(ids)}, the model knows {model.config.vocab_size} ids")
    return ids


def _pieces(model: LM | LoopedLM, tokenizer: Tokenizer, ids: list[int], how: Sampling) -> Iterator[str]:
    made: list[int] = []
    shown = ""
    for token in stream_tokens(model, ids, how):
        if token == tokenizer.eot:
            break
        made.append(token)
        text = tokenizer.decode(made)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # a character of several bytes is still coming
            yield text[len(shown) :]
            shown = text
    rest = tokenizer.decode(made)[len(shown) :]
    if rest:
        yield rest


@torch.no_grad()
def stream_tokens(model: LM | LoopedLM, ids: list[int], how: Sampling) -> Iterator[int]:
    """The new ids, one by one: those that `model.generate` gives for the same settings."""
    device = model.embed.weight.device
    generator = torch.Generator(device).manual_seed(how.seed)
    if isinstance(model, LoopedLM):
        texts = torch.tensor([ids], device=device)
        yield from (int(token) for token in islice(stream(model, texts, how.drawing, generator), how.max_new_tokens))
        return
    caches = model.caches() if how.cache else None
    whole = fresh = torch.tensor([ids], device=device)
    for _ in range(how.max_new_tokens):
        h = model.hidden(fresh if caches else whole, caches)
        token = sample_token(model.logits(h[:, -1:])[:, 0], how.temperature, how.top_k, generator)
        fresh = token[:, None]
        whole = torch.cat((whole, fresh), dim=1)
        yield int(token)
