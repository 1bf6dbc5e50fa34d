"""From a source to two shards: split the documents, train or read the tokenizer, encode, publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from layerrope.cache import cache_folder, content_key, locked, sweep
from layerrope.errors import InputError
from layerrope.files import write_atomic
from layerrope.text.documents import SIDES, Side, Source, SplitRule, plan_split
from layerrope.text.files import embedded, open_files
from layerrope.text.shards import Shard, ShardWriter, open_shard, shard_exists
from layerrope.text.tokens import Subwords, Tokenizer, bpe_size, in_batches, load_file, read_tokenizer, train_bpe

if TYPE_CHECKING:
    from layerrope.data import DataConfig

Progress = Callable[[str, int], None]
"""Called as progress(stage, characters of text so far); the stages are "tokenizer" and "tokens"."""

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


@dataclass(frozen=True)
class Plan:
    """What is to be prepared: the text of `source`, divided by `rule`, within the limits of `config`."""

    config: DataConfig
    source: Source
    rule: SplitRule
    report: Progress

    def key(self, *more: object) -> str:
        """The cache key of what is made from this text and `more`."""
        config = self.config
        limits = (config.max_docs, config.max_tokens, config.max_val_tokens)
        return content_key(RECIPE, self.source.sha256, vars(self.rule), limits, *more)


def prepare(config: DataConfig, cache_dir: str | Path | None, progress: Progress | None = None) -> Prepared:
    """The tokenizer and the two shards of `config`, from the cache or built now.

    A second process that wants the same shards waits for the first. Raises InputError for what cannot be read.
    """
    cache = cache_folder(cache_dir)
    source = open_source(config, cache)
    plan = Plan(config, source, plan_split(source, config.val_fraction), progress or (lambda stage, done: None))
    tokenizer = tokenizer_for(plan, cache)
    key = plan.key("shards", tokenizer.info.sha256)
    stem = cache / "shards" / key[:32]
    stems: dict[Side, Path] = {side: stem.with_name(f"{stem.name}-{side}") for side in SIDES}
    if not all(map(shard_exists, stems.values())):
        with locked(stem.with_suffix(".lock")):
            if not all(map(shard_exists, stems.values())):
                build(plan, tokenizer, stems, key)
    return Prepared(tokenizer, open_shard(stems["train"], key), open_shard(stems["val"], key), plan.rule.by)


def open_source(config: DataConfig, cache: Path) -> Source:
    """The source `config` names. Raises InputError when there is no such thing."""
    if config.source == "embedded":
        return embedded()
    if config.source.startswith("hf:"):
        from layerrope.text.hub import open_hub

        return open_hub(config.source, config.text_key, cache)
    return open_files(config.source, config.text_key)


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


def sided_texts(plan: Plan, quota: Quota) -> Iterator[tuple[Side, str]]:
    """Side and text of the documents of the source, as far as `quota` wants them."""
    for part in plan.source.sides:
        for side, text in plan.rule.apply(plan.source.documents(part), part):
            if quota.done(part):
                break
            if text and quota.takes(side):
                quota.docs[side] += 1
                yield side, text


def tokenizer_for(plan: Plan, cache: Path) -> Tokenizer:
    """The tokenizer of the plan; a BPE is trained on the training split and kept in the cache."""
    spec = plan.config.tokenizer
    if not spec.startswith("bpe:"):
        return read_tokenizer(spec)
    size = bpe_size(spec)
    path = cache / "tokenizers" / f"{plan.key('bpe', size)[:32]}.json"
    if not path.exists():
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                write_atomic(path, train_bpe(training_texts(plan), size).to_str())
    return Subwords(spec, load_file(path))


def training_texts(plan: Plan) -> Iterator[str]:
    """The texts a BPE is trained on: those of the training split, within the limits of the plan."""
    quota, seen = quota_of(plan.config, CHARS_PER_TOKEN), 0
    for side, text in sided_texts(plan, quota):
        quota.size[side] += len(text)
        seen += len(text)
        plan.report("tokenizer", seen)
        if side == "train":
            yield text


def build(plan: Plan, tokenizer: Tokenizer, stems: dict[Side, Path], key: str) -> None:
    """Encode the text of `plan` into the shards `stems`. Raises InputError when a side gets no text."""
    sweep(stems["train"].parent)
    with ExitStack() as stack:
        writers: dict[Side, ShardWriter] = {
            side: stack.enter_context(ShardWriter(stem, tokenizer.vocab_size, tokenizer.eot))
            for side, stem in stems.items()
        }
        encode(plan, tokenizer, writers)
        check_sides(writers, plan.config)
        for writer in writers.values():
            writer.publish(
                key=key,
                tokenizer=(tokenizer.info.name, tokenizer.info.sha256),
                source=(plan.source.name, plan.source.sha256),
            )


def encode(plan: Plan, tokenizer: Tokenizer, writers: dict[Side, ShardWriter]) -> None:
    """Write every document of `plan` to its side, some millions of characters at a time."""
    quota, seen = quota_of(plan.config), 0
    for batch in in_batches(sided_texts(plan, quota), lambda found: len(found[1])):
        for (side, text), ids in zip(batch, tokenizer.encode_batch([text for _, text in batch]), strict=True):
            if quota.has_room(side):
                writers[side].add(ids, len(text.encode()))
                quota.size[side] = writers[side].n_tokens
            seen += len(text)
        plan.report("tokens", seen)


def check_sides(writers: dict[Side, ShardWriter], config: DataConfig) -> None:
    """InputError when a side is empty."""
    if not any(writer.n_documents for writer in writers.values()):
        raise InputError(f"there is no text in {config.source}: give a source that has some")
    for side, writer in writers.items():
        if not writer.n_documents:
            name = {"train": "training", "val": "validation"}[side]
            raise InputError(
                f"no document of {config.source} went to the {name} split: raise max_docs or change val_fraction"
            )
