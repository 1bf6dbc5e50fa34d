"""`layerrope sample`: text from a trained model, as it is made."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from layerrope.errors import InputError
from layerrope.terminal import emit_json, note


@dataclass(frozen=True)
class Command:
    """Continue a prompt with a trained model, one token after the other, with the key-value cache."""

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
    cache: bool = True
    """keep keys and values; without, the whole text is computed again for each token"""
    json: bool = False
    """print prompt, text and ids as one JSON document on stdout"""

    def run(self) -> int:
        from layerrope.loading import load_lm
        from layerrope.machine import check_machine
        from layerrope.sampling import Sampling, stream_text

        if self.tokens < 1:
            raise InputError(f"tokens must be at least 1: got {self.tokens}")
        how = Sampling(self.tokens, self.temperature, self.top_k, self.seed, self.cache)
        device = check_machine(self.device)
        loaded = load_lm(self.source)
        if loaded.tokenizer is None:
            raise InputError(
                f"{self.source} comes without a tokenizer, so it cannot read text: {loaded.why_no_tokenizer}"
            )
        note(f"{loaded.label}, scheme {loaded.model.config.scheme}")
        made = stream_text(loaded.model.to(device).eval(), loaded.tokenizer, self.prompt, how)
        if self.json:
            text = "".join(made)
            emit_json({"source": self.source, "prompt": self.prompt, "text": text, "seed": self.seed})
            return 0
        sys.stdout.write(self.prompt)
        for piece in made:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return 0
