"""`layerrope sample`: text from a trained model, as it is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from layerrope.errors import InputError
from layerrope.terminal import emit_json, note

if TYPE_CHECKING:
    from layerrope.looping.looped import LoopedLM
    from layerrope.model import LM
    from layerrope.text.tokens import Tokenizer


@dataclass(frozen=True)
class Command:
    """Continue a prompt with a trained model, one token after the other."""

    source: Annotated[str, tyro.conf.Positional]
    """run, checkpoint (RUN/checkpoints/step-N), exported folder or stock folder"""
    prompt: str = ""
    """text to continue; empty: the model starts a document"""
    tokens: int = 200
    """tokens to make at most"""
    temperature: float = 0.8
    """divides the logits; 0 takes the most likely token each time"""
    top_k: int | None = None
    """sample among the k most likely tokens only; all"""
    seed: int = 0
    """of the sampling: the same seed gives the same text"""
    device: str = "cpu"
    """cpu, cuda, cuda:N"""
    threads: int | None = None
    """CPU threads of torch's operators; its own choice"""
    cache: bool = True
    """keep keys and values; without, the whole text is computed again for each token (looped models: always)"""
    loops: int | None = None
    """iterations of a looped model; those it was trained with"""
    contrast: str | None = None
    """decode a looped model against an earlier iteration (LoopCD): adaptive, or a fixed weight such as 0.3"""
    early: int = 1
    """iteration that --contrast decodes against"""
    json: bool = False
    """print prompt, text and seed as one JSON document on stdout"""

    def run(self) -> int:
        from layerrope.looping.loopcd import read_contrast
        from layerrope.sampling import Sampling, begin_text
        from layerrope.training.machine import check_machine, threads

        if self.tokens < 1:
            raise InputError(f"tokens must be at least 1: got {self.tokens}")
        contrast = None if self.contrast is None else read_contrast(self.contrast, self.early)
        settings = (self.tokens, self.temperature, self.top_k, self.seed, self.cache, self.loops, contrast)
        how = Sampling(*settings)
        device = check_machine(self.device)
        model, tokenizer, label = self._read()
        ids, made = begin_text(model.to(device).eval(), tokenizer, self.prompt, how)  # refuses what cannot be drawn
        note(f"{label}, scheme {model.config.scheme}")
        longest = len(ids) + self.tokens
        if longest > model.config.seq_len:
            note(f"up to {longest} tokens, where the model was trained on {model.config.seq_len}: the end may be poor")
        with threads(self.threads):
            self._show(made)
        return 0

    def _show(self, made: Iterator[str]) -> None:
        if self.json:
            text = "".join(made)
            emit_json({"source": self.source, "prompt": self.prompt, "text": text, "seed": self.seed})
            return
        sys.stdout.write(self.prompt)
        for piece in made:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")

    def _read(self) -> tuple[LM | LoopedLM, Tokenizer, str]:
        """The model, its tokenizer, and what was loaded in words."""
        from layerrope.loading import load_lm, run_tokenizer
        from layerrope.looping.looped import LoopedLM
        from layerrope.training.run_folder import read_record
        from layerrope.training.trained import load_trained, run_of, run_trains

        if run_trains(self.source, "looped"):
            found = load_trained(self.source)
            assert isinstance(found.model, LoopedLM)
            model, label = found.model, found.label
            tokenizer, why = run_tokenizer(read_record(run_of(self.source)) or {})
        else:
            loaded = load_lm(self.source)
            model, label, tokenizer, why = loaded.model, loaded.label, loaded.tokenizer, loaded.why_no_tokenizer
        if tokenizer is None:
            raise InputError(f"{self.source} comes without a tokenizer, so it cannot read text: {why}")
        return model, tokenizer, label
