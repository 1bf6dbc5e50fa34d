"""A byte-level tokenizer as GGUF keeps it, for llama.cpp to read and write text with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from layerrope.tensors.gguf_write import Value
from layerrope.text.tokens import Tokenizer

NORMAL, CONTROL, UNUSED = 1, 3, 5
"""Kinds of token."""

NO_VOCABULARY: dict[str, Value] = {"tokenizer.ggml.model": "no_vocab"}
"""What a file without a tokenizer says: it takes ids."""


def vocabulary(tokenizer: Tokenizer | None, vocab_size: int) -> tuple[dict[str, Value], str]:
    """The metadata of `tokenizer` for a model of `vocab_size` ids, and why there is none (empty where there is one)."""
    if tokenizer is None:
        return NO_VOCABULARY, "no tokenizer came with the model"
    file = json.loads(tokenizer.to_json())
    split = _split(file)
    if split is None:
        return NO_VOCABULARY, f"{tokenizer.info.name} splits text in a way that has no name in llama.cpp"
    names = {id: (token, NORMAL) for token, id in file["model"]["vocab"].items()}
    names |= {added["id"]: (added["content"], CONTROL) for added in file["added_tokens"]}
    if max(names) >= vocab_size:
        return NO_VOCABULARY, f"{tokenizer.info.name} has ids up to {max(names)}, the model knows {vocab_size}"
    rows = [names.get(id, (f"[unused {id}]", UNUSED)) for id in range(vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",  # a byte-level BPE
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": [token for token, _ in rows],
        "tokenizer.ggml.token_type": [kind for _, kind in rows],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokenizer.eot,  # what a document starts after; never put there unasked
        "tokenizer.ggml.eos_token_id": tokenizer.eot,
        "tokenizer.ggml.add_bos_token": False,
    }, ""


def _split(file: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for how a tokenizer.json splits text into words, or None where it has none for it."""
    if file["model"].get("type") != "BPE" or file.get("normalizer") is not None:
        return None
    steps = file.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    if not steps or kinds[-1] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    splits = steps[-1].get("use_regex", True) or not file["model"]["merges"]  # bytes alone come out of any split
    digits = kinds[:-1] == ["Digits"] and steps[0].get("individual_digits")
    return "gpt-2" if splits and len(kinds) == 1 else "smollm" if splits and digits else None
