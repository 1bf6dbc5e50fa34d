"""Tokenizers: bytes, a byte-level BPE trained on the training split, or one from a file or the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from layerrope.errors import InputError, reason

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer

T = TypeVar("T")
EOT = "<|endoftext|>"
EOT_NAMES = (EOT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""Names under which published tokenizers keep their end-of-text entry, in the order they are looked for."""

KINDS = "bytes, bpe:SIZE, a tokenizer.json file, or hub:NAME"
PIECE = 1 << 16
"""Characters: longer documents are encoded in pieces of about this length, cut between words (see `pieces`)."""
BATCH_CHARS = 4 << 20
"""Characters encoded at a time."""
TRAIN_CHARS = 256 << 20
"""Characters of training text that a BPE is trained on at most (counted from the start of the split)."""


@dataclass(frozen=True)
class TokenizerInfo:
    """Which tokenizer: the name it was asked for by, and the SHA-256 of its full definition."""

    name: str
    sha256: str


class Tokenizer(Protocol):
    """Text to ids and back. Ids lie in [0, vocab_size); `eot` ends a document and never comes out of text."""

    info: TokenizerInfo
    vocab_size: int
    eot: int

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def to_json(self) -> str: ...


class Bytes:
    """UTF-8 bytes: id b is byte b (0 ... 255), id 256 ends a document.

    The vocabulary has 257 entries. End-of-text gets an id of its own, because each of the 256 byte values can
    occur in a document; nothing is padded, so no id exists that the data never holds.
    """

    info = TokenizerInfo("bytes", hashlib.sha256(b"layerrope bytes 257").hexdigest())
    vocab_size = 257
    eot = 256

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return with_ends(ids, self.eot, lambda run: bytes(run).decode(errors="replace"))

    def to_json(self) -> str:
        """The same tokenizer as the text of a tokenizer.json: a BPE of the 256 bytes without merges."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        tokenizer = Tokenizer(models.BPE({_byte_character(b): b for b in range(256)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([EOT])
        return tokenizer.to_str()


def _byte_character(b: int) -> str:
    """The printable character by which byte-level tokenizers write byte `b` (GPT-2's alphabet)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(b) if b in printable else chr(256 + sum(1 for other in range(b) if other not in printable))


class Subwords:
    """A `tokenizers` tokenizer used for its vocabulary alone.

    Truncation, padding and added begin or end tokens of its file are switched off, and the name of a special
    token inside a text is text. Where its vocabulary has no end-of-text entry (`EOT_NAMES`), the id after its last
    is used.
    """

    def __init__(self, name: str, tokenizer: HubTokenizer) -> None:
        self.info = TokenizerInfo(name, hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise InputError(f"the tokenizer {name} has an empty vocabulary: use another one")
        tokenizer.encode_special_tokens = True
        top = max(vocabulary.values())
        self.eot = next((vocabulary[entry] for entry in EOT_NAMES if entry in vocabulary), top + 1)
        self.vocab_size = max(top, self.eot) + 1
        self._own_end = self.eot > top
        self._tokenizer = tokenizer

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        cut = [pieces(text) for text in texts]
        batches = in_batches(itertools.chain.from_iterable(cut), len)
        ids = itertools.chain.from_iterable(map(self._ids, batches))
        return [np.concatenate(list(itertools.islice(ids, len(parts)))) for parts in cut]

    def _ids(self, texts: list[str]) -> list[np.ndarray]:
        try:
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # such as a word outside a vocabulary without an entry for unknown ones
            raise InputError(f"the tokenizer {self.info.name} cannot encode this text ({reason(error)})") from error
        return [np.array(each.ids, np.uint32) for each in found]

    def decode(self, ids: Sequence[int]) -> str:
        if not self._own_end:
            return self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return with_ends(ids, self.eot, lambda run: self._tokenizer.decode(run, skip_special_tokens=False))

    def to_json(self) -> str:
        """The text of a tokenizer.json; an end-of-text entry that the file lacks is added to it.

        Raises InputError when the vocabulary has gaps: the format would give the new entry another id than `eot`.
        """
        from tokenizers import Tokenizer

        made = Tokenizer.from_str(self._tokenizer.to_str())
        if self._own_end:
            made.add_special_tokens([EOT])
        if made.id_to_token(self.eot) is None:
            raise InputError(
                f"the tokenizer {self.info.name} has gaps in its ids and no end-of-text entry, so no "
                f"tokenizer.json says what was used: choose one that has it"
            )
        return made.to_str()


def with_ends(ids: Sequence[int], eot: int, decode: Callable[[list[int]], str]) -> str:
    """The text of `ids` with every end-of-text written out, for a `decode` that does not know it."""
    runs = itertools.groupby(ids, lambda i: i == eot)
    return "".join(EOT * len(list(run)) if end else decode(list(run)) for end, run in runs)


def pieces(text: str, size: int = PIECE) -> list[str]:
    """`text` cut into pieces of about `size` characters, so that one long document needs bounded memory.

    A cut falls before a single space between two other characters. No word of GPT-2's splitting rule and its
    successors reaches over such a place, so the ids are those of the whole text. Where `size` characters hold no
    such place, the cut falls anywhere.
    """
    cuts, place = [0], re.compile(r"(?<=\S)(?= \S)")
    while len(text) - cuts[-1] > 2 * size:
        found = place.search(text, cuts[-1] + size, cuts[-1] + 2 * size)
        cuts.append(found.start() if found else cuts[-1] + 2 * size)
    return [text[a:b] for a, b in itertools.pairwise([*cuts, len(text)])]


def in_batches(items: Iterable[T], chars: Callable[[T], int]) -> Iterator[list[T]]:
    """Runs of items of about BATCH_CHARS characters (the library needs some 100 bytes a token while it encodes)."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += chars(item)
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def bpe_size(spec: str) -> int:
    """The vocabulary size in "bpe:SIZE"; InputError when it is not a whole number above 256."""
    size = spec.partition(":")[2]
    if not re.fullmatch(r"[0-9]{1,8}", size) or int(size) < 257:
        raise InputError(f"tokenizer {spec!r}: a byte-level BPE has at least 257 entries, as in bpe:4096")
    return int(size)


def train_bpe(texts: Iterable[str], vocab_size: int) -> HubTokenizer:
    """Train a byte-level BPE: GPT-2's split into words, all 256 bytes as the base, one end-of-text entry.

    A small text runs out of repeated pairs, and the vocabulary then has fewer entries than `vocab_size`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first_chars(texts, TRAIN_CHARS), trainer)
    return tokenizer


def _first_chars(texts: Iterable[str], limit: int) -> Iterator[str]:
    for text in texts:
        if limit <= 0:
            return
        yield from pieces(text)
        limit -= len(text)


def read_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer `spec` names: bytes, a tokenizer.json file, or hub:NAME (needs the network once).

    Raises InputError when there is none, or when it cannot be read.
    """
    if spec == "bytes":
        return Bytes()
    kind, _, name = spec.partition(":")
    if kind == "hub" and name:
        return Subwords(spec, _load(_from_hub, name, f"cannot get the tokenizer {name!r} from the Hub"))
    path = Path(spec).expanduser()
    if path.suffix != ".json":
        raise InputError(f"unknown tokenizer {spec!r}: choose {KINDS}")
    if not path.is_file():
        raise InputError(f"no such tokenizer file: {spec}")
    return Subwords(path.name, load_file(path))


def load_file(path: Path) -> HubTokenizer:
    """The tokenizer in a tokenizer.json. Raises InputError when it is none."""
    return _load(_from_file, str(path), f"{path} is not a tokenizer.json")


def _from_file(path: str) -> HubTokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


def _from_hub(name: str) -> HubTokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_pretrained(name)


def _load(loader: Callable[[str], HubTokenizer], what: str, trouble: str) -> HubTokenizer:
    try:
        return loader(what)
    except Exception as error:  # the library raises plain Exception for everything
        raise InputError(f"{trouble} ({reason(error)}): check the name") from error
