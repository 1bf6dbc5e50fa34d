"""Reading text and dividing it: whole works or documents on one side, and every bad file named."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.text import files as text_files
from layerrope.text.documents import Document, Side, cut_tail, plan_split
from layerrope.text.files import open_files, read_txt

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}
KEYS = ("text", "work")


class Listed:
    """A source from a list of (work, text)."""

    name, sha256 = "listed", "0"
    sides: tuple[Side | None, ...] = (None,)

    def __init__(self, *rows: tuple[str | None, str]) -> None:
        self.rows = rows
        self.read = 0

    def documents(self, side: Side | None) -> Iterator[Document]:
        for work, text in self.rows:
            self.read += 1
            yield Document(text, work)


def texts(path: Path, **settings: str) -> list[str]:
    source = open_files(str(path), **settings)
    return [document.text for side in source.sides for document in source.documents(side)]


def jsonl(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


# Files


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_every_kind_of_file_gives_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, block: int
) -> None:
    monkeypatch.setattr(text_files, "BLOCK", block)
    wanted = ["First.\n\nÄ second paragraph.", "Second, with  spaces \r\n and a late <|endoftext|> inside"]
    txt, lines = tmp_path / f"a.txt{suffix}", tmp_path / f"b.jsonl{suffix}"
    txt.write_bytes(PACKERS[suffix]("\n<|endoftext|>\n".join(wanted).encode()))
    lines.write_bytes(PACKERS[suffix](jsonl(wanted[0]) + b"\n  \n" + jsonl(wanted[1]).rstrip()))
    assert texts(txt) == wanted
    assert texts(lines) == wanted


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1))
def test_jsonl_texts_survive(tmp_path_factory: pytest.TempPathFactory, wanted: list[str]) -> None:
    path = tmp_path_factory.mktemp("t") / "a.jsonl"
    path.write_bytes(jsonl(*wanted))
    assert texts(path) == [text for text in wanted if not text.isspace()]


def test_a_text_file_is_read_byte_for_byte_but_for_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne\r\n\ttwo\n\n")
    assert texts(path) == ["One\r\n\ttwo\n\n"]
    path = tmp_path / "b.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + jsonl("x"))
    assert texts(path) == ["x"]


def test_two_zstd_frames_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(PACKERS[".zst"](b"one ") + PACKERS[".zst"](b"two"))
    assert texts(path) == ["one two"]


def test_another_text_key(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"content": "here", "text": 3}\n')
    assert texts(path, text_key="content") == ["here"]
    with pytest.raises(InputError, match=r"a\.jsonl:1 has no text under 'text' \(keys: content, text\)"):
        texts(path)


HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "missing": ("", b"", "no such file or folder: .*hf:NAME"),
    "suffix": ("a.pdf", b"x", r"cannot read .*a\.pdf: data is \.txt or \.jsonl"),
    "only a suffix": (".jsonl", b"{}", "cannot read"),
    "empty": ("a.txt", b"", "there is no text in .*a.txt"),
    "white": ("a.jsonl", jsonl(" \n", ""), "there is no text"),
    "nul": ("a.txt", b"ab\n<|endoftext|>\ncd\0", "a.txt is not text: NUL byte at offset 19"),
    "utf-16": ("a.txt", "ab".encode("utf-16"), "NUL byte at offset 3"),
    "latin-1": ("a.txt", b"line\ncaf\xe9 s", "a.txt is not UTF-8: byte 0xe9 at offset 8"),
    "jsonl bytes": ("a.jsonl", jsonl("x") + b'{"text": "\xff"}', r"a.jsonl is not UTF-8: byte 0xff at offset 24"),
    "jsonl": ("a.jsonl", jsonl("x") + b"\n{'text': 1}\n", r"a\.jsonl:3 is not a line of JSON"),
    "cut json": ("a.jsonl", jsonl("x")[:-5], r"a\.jsonl:1 is not a line of JSON"),
    "deep json": ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1 is not a line of JSON"),
    "list": ("a.jsonl", b"[1]\n", r"a\.jsonl:1 has no text under 'text' \(not an object\)"),
    "number": ("a.jsonl", b'{"text": 1}\n', r"a\.jsonl:1 has no text under 'text' \(keys: text\)"),
    "surrogate": ("a.jsonl", b'{"text": "x\\ud800"}', r"a\.jsonl:1 has half a surrogate pair at character 1"),
    **{
        f"not {suffix}": (f"a.txt{suffix}", b"plain text", f"a.txt{suffix} is damaged or not a {suffix} file")
        for suffix in (".xz", ".gz", ".zst")
    },
    **{
        f"cut {suffix}": (f"a.txt{suffix}", PACKERS[suffix](b"text " * 9_999)[:-6], "is damaged or not a")
        for suffix in (".xz", ".gz", ".zst")
    },
    **{
        f"dirt {suffix}": (
            f"a.txt{suffix}",
            PACKERS[suffix](b"text " * 9_999)[:30] + b"\xff" * 30,
            "is damaged or not a",
        )
        for suffix in (".xz", ".gz")
    },
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_file_is_named_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    name, raw, message = HOSTILE[case]
    path = tmp_path / (name or "missing.txt")
    if name:
        path.write_bytes(raw)
    with pytest.raises(InputError, match=message) as caught:
        load_data(DataConfig(source=str(path), seq_len=1), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.suffix in (".bin", ".json", ".part")]


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(InputError, match=r"cannot read .*a\.txt \(Is a directory\)"):
        list(read_txt(tmp_path / "a.txt"))


# Folders


@pytest.mark.parametrize(
    ("names", "val", "train"),
    [
        (["a.txt", "b.txt"], None, ["a.txt", "b.txt"]),
        (["train-0.txt", "train-1.txt", "val.txt"], ["val.txt"], ["train-0.txt", "train-1.txt"]),
        (["big/a.txt", "validation/b.txt"], ["validation/b.txt"], ["big/a.txt"]),
        (["tiny-train.txt", "tiny-valid.txt"], ["tiny-valid.txt"], ["tiny-train.txt"]),
        (["c4-train.00000-of-00002.txt", "c4-validation.00000-of-00001.txt"], ["c4-validation.00000-of-00001.txt"],
         ["c4-train.00000-of-00002.txt"]),
        (["a.txt", "test_02.txt"], ["test_02.txt"], ["a.txt"]),
        (["a.txt", "test.txt", "dev.txt"], ["dev.txt"], ["a.txt"]),
        (["valentine.txt", "testament.txt", "attest.txt"], None, ["attest.txt", "testament.txt", "valentine.txt"]),
        (["a.txt", ".hidden.txt", ".git/b.txt", "notes.md", "works.json"], None, ["a.txt"]),
    ],
)  # fmt: skip
def test_names_decide_the_side(tmp_path: Path, names: list[str], val: list[str] | None, train: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = open_files(str(tmp_path))
    found = {side: [document.text for document in source.documents(side)] for side in source.sides}
    assert found == ({None: train} if val is None else {"val": val, "train": train})


def test_a_folder_without_text_or_without_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text in the folder"):
        open_files(str(tmp_path))
    (tmp_path / "val.txt").write_text("x")
    with pytest.raises(InputError, match="none to train on"):
        open_files(str(tmp_path))


def test_the_source_hash_follows_content_and_names(tmp_path: Path) -> None:
    def sha256(folder: str, name: str, text: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
        return open_files(str(tmp_path / folder)).sha256

    first = sha256("one", "a.txt", "hello")
    assert sha256("two", "a.txt", "hello") == first
    assert sha256("two", "a.txt", "hallo") != first
    assert sha256("three", "b.txt", "hello") != first


# Splits


def sides(source: Listed, fraction: float = 0.2) -> dict[str, list[str]]:
    rule = plan_split(source, fraction)
    found: dict[str, list[str]] = {"train": [], "val": []}
    for side, text in rule.apply(source.documents(None), None):
        found[side].append(text)
    return found


@given(
    works=st.lists(st.integers(0, 12), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.99),
)
def test_whole_works_go_to_one_side_and_both_sides_have_some(works: list[int], fraction: float) -> None:
    source = Listed(*((f"w{work}", f"w{work} {i}") for i, work in enumerate(works)))
    found = sides(source, fraction)
    assert sorted(found["train"] + found["val"]) == sorted(text for _, text in source.rows)
    assert found["train"]
    assert found["val"]
    if len(set(works)) > 1:
        assert not {t.split()[0] for t in found["train"]} & {t.split()[0] for t in found["val"]}


def test_equal_texts_are_never_on_both_sides() -> None:
    source = Listed(*((None, f"text {i % 50}") for i in range(500)))
    found = sides(source)
    assert not set(found["train"]) & set(found["val"])


def test_the_share_held_out_is_about_the_fraction_and_stays_as_a_source_grows() -> None:
    small = sides(Listed(*((None, f"text {i}") for i in range(2_000))), 0.1)
    large = sides(Listed(*((None, f"text {i}") for i in range(4_000))), 0.1)
    assert 150 < len(small["val"]) < 250
    assert set(small["val"]) <= set(large["val"])


def test_planning_reads_only_what_it_needs() -> None:
    source = Listed(*((None, f"text {i}") for i in range(100_000)))
    assert plan_split(source, 0.05).by == "work"
    assert source.read < 1_000


def test_one_work_is_split_by_its_documents_and_one_document_at_a_paragraph() -> None:
    book = Listed(*(("w", f"chapter {i}") for i in range(9)))
    assert plan_split(book, 0.1).by == "document"
    assert len(sides(book, 0.1)["val"]) >= 1
    paragraphs = [f"Paragraph {i}. " + "word " * 30 for i in range(40)]
    found = sides(Listed((None, "\n\n".join(paragraphs))), 0.1)
    assert found["train"][0].split("\n\n")[:-1] + found["val"][0].split("\n\n") == paragraphs
    assert 2 <= len(found["val"][0].split("\n\n")) <= 6


@given(text=st.text(min_size=1), fraction=st.floats(0.01, 0.99))
def test_a_tail_is_a_cut(text: str, fraction: float) -> None:
    head, tail = cut_tail(text, fraction)
    assert head + tail == text
    assert tail


def test_a_source_that_splits_itself_is_left_alone() -> None:
    source = Listed((None, "a"), (None, "b"))
    source.sides = ("val", "train")
    rule = plan_split(source, 0.1)
    assert (rule.by, source.read) == ("source", 0)
    assert list(rule.apply(source.documents("val"), "val")) == [("val", "a"), ("val", "b")]
