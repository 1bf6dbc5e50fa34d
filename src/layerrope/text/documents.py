"""Documents, and which side of the split each goes to: whole documents (or whole works), never parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Side = Literal["train", "val"]
SIDES: tuple[Side, Side] = ("train", "val")
RANGE = 1 << 64


@dataclass(frozen=True)
class Document:
    """One text. `work` groups documents that belong together."""

    text: str
    work: str | None = None


class Source(Protocol):
    """Text in a fixed order.

    `sha256` names the content. `sides` is ("val", "train") where the source has a validation split of its own,
    and (None,) where it is one stream still to be split; `documents` takes one of them.
    """

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def sides(self) -> tuple[Side | None, ...]: ...

    def documents(self, side: Side | None) -> Iterator[Document]: ...


KEYS: dict[str, Callable[[Document], str]] = {
    "work": lambda document: document.work or document.text,
    "document": lambda document: document.text,
}


@dataclass(frozen=True)
class SplitRule:
    """How documents are divided; `by` is one of

    source: the source has a validation split of its own;
    work: whole works, by a hash of the work's name (documents without one: of their text);
    document: whole documents, by a hash of the text (the source holds one work only);
    tail: the source is one document, and its last part is validation, cut at a paragraph.
    """

    by: Literal["source", "work", "document", "tail"]
    fraction: float = 0.0
    threshold: int = 0

    def apply(self, documents: Iterator[Document], side: Side | None) -> Iterator[tuple[Side, str]]:
        """Side and text of `documents`, which are those of `side` where the source splits itself."""
        for document in documents:
            if side is not None:
                yield side, document.text
            elif self.by == "tail":
                yield from zip(SIDES, cut_tail(document.text, self.fraction), strict=True)
            else:
                yield SIDES[place(KEYS[self.by](document)) < self.threshold], document.text


def place(key: str) -> int:
    """A fixed pseudo-random place of `key` in [0, 2^64), the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def plan_split(source: Source, fraction: float) -> SplitRule:
    """The first rule of `SplitRule` that leaves text on both sides.

    A work or document is validation when its hash lies in the lowest `fraction` of the range. Where that would
    leave one side empty (a handful of works), the single lowest goes to validation, or the single highest to
    training. Reads the source only until both sides are seen.
    """
    if source.sides != (None,):
        return SplitRule("source")
    for by in ("work", "document"):
        threshold = _threshold((place(KEYS[by](document)) for document in source.documents(None)), fraction)
        if threshold is not None:
            return SplitRule(by, fraction, threshold)
    return SplitRule("tail", fraction)


def _threshold(places: Iterator[int], fraction: float) -> int | None:
    wanted = int(fraction * RANGE)
    low, high = RANGE, -1
    for here in places:
        low, high = min(low, here), max(high, here)
        if low < wanted <= high:
            return wanted
    if low >= high:
        return None
    return low + 1 if wanted <= low else high


def cut_tail(text: str, fraction: float) -> tuple[str, str]:
    """`text` in two, the second part about `fraction` of it, at the last paragraph, line or word end before there."""
    want = len(text) - max(1, int(fraction * len(text)))
    for mark in ("\n\n", "\n", " "):
        cut = text.rfind(mark, 0, want)
        if cut > want // 2:
            return text[:cut] + mark, text[cut + len(mark) :]
    return text[:want], text[want:]
