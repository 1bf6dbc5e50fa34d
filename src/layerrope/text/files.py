"""Text from disk: .txt and .jsonl files, plain or compressed, alone or in folders, read as a stream."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerrope.errors import InputError
from layerrope.text.documents import Document, Side
from layerrope.text.tokens import EOT

BLOCK = 1 << 20
SEPARATOR = EOT.encode()
READS = ".txt or .jsonl (also .xz, .zst, .gz), a folder of these, embedded, or hf:NAME"
VAL_NAMES = ("val", "valid", "validation", "eval", "dev", "heldout", "holdout")
TEST_NAMES = ("test",)
CORPUS = Path(__file__).parents[1] / "corpus"


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def _xz(path: Path) -> Iterator[bytes]:
    with lzma.open(path) as file:
        while block := file.read(BLOCK):
            yield block


def _gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        while block := file.read(BLOCK):
            yield block


def _zstd(path: Path) -> Iterator[bytes]:
    """Frame by frame, since the library's own stream reader ends silently where a file is cut off."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    started = False
    for block in _plain(path):
        while block:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            started = True
            if text := frame.decompress(block):
                yield text
            block = frame.unused_data if frame.eof else b""
    if started and not frame.eof:
        raise EOFError("compressed file ended before the end of its frame")


OPENERS: dict[str, Callable[[Path], Iterator[bytes]]] = {"": _plain, ".xz": _xz, ".zst": _zstd, ".gz": _gzip}
KINDS = (".txt", ".jsonl")


def kind_of(path: Path) -> tuple[str, str] | None:
    """(".txt" or ".jsonl", compression suffix) of a file that can be read by its name; None for any other."""
    suffixes = path.suffixes[-2:]
    packed = suffixes[-1] if suffixes and suffixes[-1] in OPENERS else ""
    kind = path.name.removesuffix(packed)
    return next(((k, packed) for k in KINDS if kind.endswith(k) and kind != k), None)


def blocks(path: Path) -> Iterator[bytes]:
    """The decompressed content of `path` in blocks. Raises InputError where it cannot be read or is damaged."""
    import zstandard

    packed = (kind_of(path) or ("", ""))[1]
    try:
        yield from OPENERS[packed](path)
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{path} is damaged or not a {packed} file ({error}): fetch it again") from error
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})") from error


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of `path`, each with its line end, and where they start; a byte-order mark is left out."""
    start, held = 0, [b""]
    for block in blocks(path):
        first, *rest = block.split(b"\n")
        held.append(first)
        for following in rest:
            line = b"".join(held) + b"\n"
            yield _unmarked(start, line)
            start, held = start + len(line), [following]
    if tail := b"".join(held):
        yield _unmarked(start, tail)


def _unmarked(start: int, line: bytes) -> tuple[int, bytes]:
    mark = len(codecs.BOM_UTF8) if start == 0 and line.startswith(codecs.BOM_UTF8) else 0
    return start + mark, line[mark:]


def decoded(raw: bytes, path: Path, start: int) -> str:
    """`raw`, found at byte `start` of the (decompressed) file, as text; InputError when it is not UTF-8 text."""
    nul = raw.find(b"\0")
    if nul >= 0:
        raise InputError(f"{path} is not text: NUL byte at offset {start + nul:,}; save it as UTF-8 text")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {start + error.start:,}; save it as UTF-8"
        ) from error


def read_txt(path: Path) -> Iterator[Document]:
    """The documents of a text file: parted by lines that read <|endoftext|>, or all of it as one."""
    begin: int | None = None
    held: list[bytes] = []
    for start, line in lines(path):
        if line.strip() == SEPARATOR:
            yield Document(decoded(b"".join(held).removesuffix(b"\n"), path, begin or 0))
            begin, held = None, []
        else:
            begin = start if begin is None else begin
            held.append(line)
    yield Document(decoded(b"".join(held), path, begin or 0))


def read_jsonl(path: Path, text_key: str) -> Iterator[Document]:
    """One document a line: an object with a text under `text_key` and, where there is one, a `work`."""
    for number, (start, line) in enumerate(lines(path), 1):
        if line.strip():
            yield _record(decoded(line, path, start), f"{path}:{number}", text_key)


def _record(line: str, where: str, text_key: str) -> Document:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not a line of JSON ({error}): mend or remove it") from error
    return document_from(record, where, text_key)


def document_from(record: Any, where: str, text_key: str) -> Document:
    """The document in a JSON object or dataset row. Raises InputError, naming `where`, when there is no text."""
    if not isinstance(record, dict) or not isinstance(record.get(text_key), str):
        found = f"keys: {', '.join(map(str, record))}" if isinstance(record, dict) else "not an object"
        raise InputError(f"{where} has no text under {text_key!r} ({found}): name the key that has it")
    text, work = record[text_key], record.get("work")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has half a surrogate pair at character {error.start}: mend it") from error
    return Document(text, None if work is None else str(work))


@dataclass(frozen=True)
class Files:
    """A source of text files with their sides. `sha256` covers relative names and contents."""

    name: str
    files: tuple[tuple[str, Path, Side | None], ...]
    text_key: str = "text"
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        whole = hashlib.sha256(self.text_key.encode())
        for label, path, side in self.files:
            whole.update(f"\0{label}\0{side}\0{digest(path)}".encode())
        object.__setattr__(self, "sha256", whole.hexdigest())

    @property
    def sides(self) -> tuple[Side | None, ...]:
        return tuple(dict.fromkeys(side for _, _, side in self.files))

    def documents(self, side: Side | None) -> Iterator[Document]:
        for _, path, _ in (row for row in self.files if row[2] == side):
            kind = (kind_of(path) or KINDS)[0]
            found = read_txt(path) if kind == ".txt" else read_jsonl(path, self.text_key)
            yield from (document for document in found if document.text.strip())


def digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})") from error


def embedded() -> Files:
    """The corpus inside the package: public-domain novels, whole works held out (see corpus/SOURCES.md)."""
    sides: tuple[Side, ...] = ("val", "train")
    return Files("embedded", tuple((f"{side}.jsonl.xz", CORPUS / f"{side}.jsonl.xz", side) for side in sides))


def check_name(name: str) -> None:
    """Raise InputError for a file name that is not UTF-8: it could not be written into the record of a run."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(name).decode(errors="backslashreplace")
        raise InputError(f"the file name {shown} is not UTF-8: rename it") from error


def open_files(spec: str, text_key: str = "text") -> Files:
    """The text file or folder `spec`. Raises InputError when there is none, or nothing in it can be read."""
    check_name(spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        return Files(path.resolve().name, _folder(path), text_key)
    if not path.exists():
        raise InputError(f"no such file or folder: {spec} (data is {READS})")
    if kind_of(path) is None:
        raise InputError(f"cannot read {spec}: data is {READS}")
    return Files(path.name, ((path.name, path, None),), text_key)


def _folder(root: Path) -> tuple[tuple[str, Path, Side | None], ...]:
    """Files of a folder, at any depth, in the order of their names.

    Names (of a file or of a folder on the way) that say validation make that side; if there are none, those that
    say test do; with both, test files are left alone. Without either, the split is by hash and sides are None.
    """
    found = [
        (path.relative_to(root), path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and kind_of(path) and not any(p.startswith(".") for p in path.relative_to(root).parts)
    ]
    if not found:
        raise InputError(f"no text in the folder {root}: data is {READS}")
    for label, _ in found:
        check_name(str(label))
    val = {label for label, _ in found if _says(label, VAL_NAMES)}
    test = {label for label, _ in found if _says(label, TEST_NAMES)} - val
    held, left = (val, test) if val else (test, set())
    rows = [(label, path) for label, path in found if label not in left]
    if held and all(label in held for label, _ in rows):
        raise InputError(f"every file in {root} is named as validation or test: there is none to train on")
    ordered = sorted(rows, key=lambda row: (row[0] not in held, row[0].as_posix()))
    sides: tuple[Side | None, Side | None] = ("train", "val") if held else (None, None)
    return tuple((label.as_posix(), path, sides[label in held]) for label, path in ordered)


def _says(label: Path, names: tuple[str, ...]) -> bool:
    """Whether a file or folder on the way is called one of `names`: its first or last word, numbers aside."""
    for part in label.parts:
        stem = re.sub(r"(\.(txt|jsonl))?(\.(xz|zst|gz))?$", "", part.lower())
        words = [word.rstrip("0123456789") for word in re.split(r"[._-]", stem)]
        words = [word for word in words if word not in ("", "of")]
        if words and (words[0] in names or words[-1] in names):
            return True
    return False
