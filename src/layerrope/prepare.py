"""From a source to two shards: split the documents, train or read the tokenizer, encode, publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layerrope.cache import cache_folder, content_key, locked, sweep
from layerrope.documents import Document, Side, Source, SplitRule, plan_split
from layerrope.errors import InputError
from layerrope.files import write_atomic
from layerrope.shards import Shard, ShardWriter, open_shard, shard_exists
from layerrope.text_files import embedded, open_files
from layerrope.tokens import BATCH_CHARS, Subwords, Tokenizer, bpe_size, load_file, read_tokenizer, train_bpe

if TYPE_CHECKING:
    from layerrope.data import DataConfig

Progress = Callable[[str, int], None]
"""Called as progress(stage, bytes of text so far); the stages are "tokenizer" and "tokens"."""

RECIPE = 1
"""Part of every cache key: raise it when the same source and tokenizer would give other ids."""
CHARS_PER_TOKEN = 4
"""A rough English average: how much text a BPE is trained on under `max_tokens`."""


@dataclass(frozen=True)
class Prepared:
    """What a `Dataset` is made of."""

    tokenizer: Tokenizer
    train: Shard
    val: Shard
    split_by: str


def prepare(config: DataConfig, cache_dir: str | Path | None, progress: Progress | None = None) -> Prepared:
    """The tokenizer and the two shards of `config`, from the cache or built now.

    A second process that wants the same shards waits for the first. Raises InputError for what cannot be read.
    """
    report = progress or (lambda stage, done: None)
    cache = cache_folder(cache_dir)
    source = open_source(config, cache)
    rule = plan_split(source, config.val_fraction)
    tokenizer = tokenizer_for(config, source, rule, cache, report)
    key = content_key("shards", RECIPE, source.sha256, vars(rule), tokenizer.info.sha256, limits(config))
    stems = {side: cache / "shards" / f"{key[:32]}-{side}" for side in ("train", "val")}
    if not all(map(shard_exists, stems.values())):
        with locked(cache / "shards" / f"{key[:32]}.lock"):
            if not all(map(shard_exists, stems.values())):
                build(stems, key, config, source, rule, tokenizer, report)
    return Prepared(tokenizer, open_shard(stems["train"], key), open_shard(stems["val"], key), rule.by)


def open_source(config: DataConfig, cache: Path) -> Source:
    """The source `config` names. Raises InputError when there is no such thing."""
    if config.source == "embedded":
        return embedded()
    if config.source.startswith("hf:"):
        from layerrope.hub import open_hub

        return open_hub(config.source, config.text_key, cache)
    return open_files(config.source, config.text_key)


def limits(config: DataConfig) -> tuple[int | None, int | None, int | None]:
    """The limits of `config`, as they enter cache keys."""
    return config.max_docs, config.max_tokens, config.max_val_tokens


@dataclass
class Quota:
    """How much each side may still take: documents (training only), and tokens or some other size."""

    max_docs: int | None
    max_size: dict[Side, int | None]
    fraction: float
    docs: dict[Side, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    size: dict[Side, int] = field(default_factory=lambda: {"train": 0, "val": 0})

    def has_room(self, side: Side) -> bool:
        """Whether the size of `side` is below its limit: the document that reaches it is the last."""
        limit = self.max_size[side]
        return limit is None or self.size[side] < limit

    def takes(self, side: Side) -> bool:
        """Whether `side` takes one more document."""
        return self.has_room(side) and (side == "val" or self.max_docs is None or self.docs[side] < self.max_docs)

    def done(self, side: Side | None) -> bool:
        """Whether nothing more need be read of `side` (None: of a stream that holds both sides).

        Where training is full, such a stream is read on until validation has half of its expected documents.
        """
        if side is not None:
            return not self.takes(side)
        share = self.fraction * (self.docs["train"] + self.docs["val"])
        enough = self.docs["val"] >= max(1, 0.5 * share)
        return not self.takes("train") and (enough or not self.takes("val"))


def quota_of(config: DataConfig, unit: int = 1) -> Quota:
    """The limits of `config` with sizes in tokens, or in characters at `unit` characters a token."""
    sizes: dict[Side, int | None] = {
        "train": config.max_tokens and config.max_tokens * unit,
        "val": config.max_val_tokens and config.max_val_tokens * unit,
    }
    return Quota(config.max_docs, sizes, config.val_fraction)


def documents(source: Source, rule: SplitRule, quota: Quota) -> Iterator[Document]:
    """The documents of `source` with their sides, as far as `quota` wants them."""
    for side in source.sides:
        for document in rule.apply(source.documents(side)):
            if quota.done(side):
                break
            assert document.side is not None
            if document.text and quota.takes(document.side):
                quota.docs[document.side] += 1
                yield document


def tokenizer_for(config: DataConfig, source: Source, rule: SplitRule, cache: Path, report: Progress) -> Tokenizer:
    """The tokenizer of `config`; a BPE is trained on the training split and kept in the cache."""
    if not config.tokenizer.startswith("bpe:"):
        return read_tokenizer(config.tokenizer)
    size = bpe_size(config.tokenizer)
    key = content_key("bpe", RECIPE, source.sha256, vars(rule), size, limits(config))
    path = cache / "tokenizers" / f"{key[:32]}.json"
    if not path.exists():
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                texts = training_texts(config, source, rule, report)
                write_atomic(path, train_bpe(texts, size).to_str())
    return Subwords(config.tokenizer, load_file(path))


def training_texts(config: DataConfig, source: Source, rule: SplitRule, report: Progress) -> Iterator[str]:
    """The texts a BPE is trained on: those of the training split, within the limits of `config`."""
    quota, seen = quota_of(config, CHARS_PER_TOKEN), 0
    for document in documents(source, rule, quota):
        assert document.side is not None
        quota.size[document.side] += len(document.text)
        seen += len(document.text)
        report("tokenizer", seen)
        if document.side == "train":
            yield document.text


def build(
    stems: dict[str, Path],
    key: str,
    config: DataConfig,
    source: Source,
    rule: SplitRule,
    tokenizer: Tokenizer,
    report: Progress,
) -> None:
    """Encode `source` into the shards `stems`. Raises InputError when a side gets no text."""
    sweep(stems["train"].parent)
    quota = quota_of(config)
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(ShardWriter(stem, tokenizer.vocab_size, tokenizer.eot))
            for side, stem in stems.items()
        }
        for batch in batches(documents(source, rule, quota)):
            for document, ids in zip(batch, tokenizer.encode_batch([d.text for d in batch]), strict=True):
                add(writers, quota, document, ids)
            report("tokens", sum(writer.n_bytes for writer in writers.values()))
        check_sides(writers, config)
        for writer in writers.values():
            writer.publish(
                key=key,
                tokenizer=(tokenizer.info.name, tokenizer.info.sha256),
                source=(source.name, source.sha256),
            )


def add(writers: dict[str, ShardWriter], quota: Quota, document: Document, ids: np.ndarray) -> None:
    """Write one encoded document to its side, if there is still room for it."""
    assert document.side is not None
    if quota.has_room(document.side):
        writers[document.side].add(ids, len(document.text.encode()))
        quota.size[document.side] = writers[document.side].n_tokens


def batches(found: Iterator[Document]) -> Iterator[list[Document]]:
    """Runs of documents of about BATCH_CHARS characters."""
    batch: list[Document] = []
    size = 0
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_sides(writers: dict[str, ShardWriter], config: DataConfig) -> None:
    """InputError when a side is empty."""
    if not any(writer.n_documents for writer in writers.values()):
        raise InputError(f"there is no text in {config.source}: give a source that has some")
    for side, writer in writers.items():
        if not writer.n_documents:
            name = {"train": "training", "val": "validation"}[side]
            raise InputError(
                f"no document of {config.source} went to the {name} split: raise max_docs or change val_fraction"
            )
