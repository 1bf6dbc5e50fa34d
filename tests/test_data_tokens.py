"""Tokenizers: text comes back, ids stay in range, and a tokenizer's file cannot smuggle anything in."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HubTokenizer

from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.text import tokens
from layerrope.text.tokens import EOT, Bytes, Subwords, pieces, read_tokenizer, train_bpe

SAMPLE = "The stream is read, and written back; the rows don't fade with depth.\n\nA 2nd line: 3.14 -- ok.\n"


@pytest.fixture(scope="module")
def bpe() -> Subwords:
    return Subwords("bpe:400", train_bpe([SAMPLE * 5, "the depth of the stream\t\tand its rows"] * 3, 400))


def word_level(path: Path, vocabulary: dict[str, int], **more: Any) -> Path:
    """A tokenizer.json that knows whole words."""
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    parts = ("normalizer", "post_processor", "decoder", "truncation", "padding")
    settings = {part: None for part in parts} | {"added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}}
    path.write_text(json.dumps({"version": "1.0", "model": model} | settings | more))
    return path


@given(st.text())
def test_bytes_are_utf8(text: str) -> None:
    ids = Bytes().encode_batch([text])[0]
    assert ids.tolist() == list(text.encode())
    assert Bytes().decode(ids.tolist()) == text


def test_bytes_decode_shows_ends_and_survives_half_a_character() -> None:
    assert Bytes().decode([104, 105, 256, 256, 195]) == f"hi{EOT}{EOT}\ufffd"


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_bpe_gives_the_text_back(bpe: Subwords, texts: list[str]) -> None:
    for text, ids in zip(texts, bpe.encode_batch(texts), strict=True):
        assert bpe.decode(ids.tolist()) == text
        assert bpe.eot not in ids
        assert ids.size == 0 or ids.max() < bpe.vocab_size


def test_the_end_of_text_is_no_text(bpe: Subwords) -> None:
    (ids,) = bpe.encode_batch([f"a{EOT}b"])
    assert bpe.eot not in ids
    assert bpe.decode(ids.tolist()) == f"a{EOT}b"


def test_bpe_training_is_repeatable_and_starts_from_all_bytes(bpe: Subwords) -> None:
    texts = [SAMPLE * n for n in (1, 2, 3)]
    assert train_bpe(texts, 300).to_str() == train_bpe(texts, 300).to_str()
    small = Subwords("bpe:257", train_bpe(["x"], 257))
    assert small.vocab_size == 257
    assert small.encode_batch(["äx"])[0].size == 3
    assert Subwords("bpe:9999", train_bpe(["ab"], 9999)).vocab_size < 9999


@given(st.text(alphabet="ab \n.'0é", max_size=200), st.integers(1, 20))
def test_pieces_are_a_cut(text: str, size: int) -> None:
    found = pieces(text, size)
    assert "".join(found) == text
    assert all(len(piece) <= 2 * size for piece in found)


WORDS = st.lists(st.sampled_from(["the", "depth", "don't", "3.14", "--", "(rows)", "'s", "x"]), min_size=2)
GAPS = st.sampled_from([" ", " ", " ", "\n", "\n\n", "  "])


@given(words=WORDS, data=st.data())
def test_pieces_do_not_change_the_ids(bpe: Subwords, words: list[str], data: st.DataObject) -> None:
    text = "".join(word + data.draw(GAPS) for word in words)
    found = pieces(text, 12)
    starts = list(itertools.accumulate(map(len, found)))[:-1]
    assume(all(re.match(r"\S \S", text[start - 1 : start + 2]) for start in starts))
    assert np.array_equal(np.concatenate(bpe.encode_batch(found)), bpe.encode_batch([text])[0])


def test_a_long_document_is_encoded_in_batches_of_pieces(bpe: Subwords, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [SAMPLE * 7, "", "short", SAMPLE]
    whole = bpe.encode_batch(texts)
    monkeypatch.setattr(tokens, "BATCH_CHARS", 100)
    monkeypatch.setattr(tokens.pieces, "__defaults__", (20,))
    assert len(pieces(texts[0])) > 9
    for one, other in zip(whole, bpe.encode_batch(texts), strict=True):
        assert np.array_equal(one, other)


def test_only_the_first_part_of_a_very_long_text_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TRAIN_CHARS", 100)
    first = train_bpe([SAMPLE, SAMPLE], 300).to_str()
    assert train_bpe([SAMPLE, SAMPLE, "zzzz " * 50], 300).to_str() == first


def test_a_tokenizer_file_gives_its_vocabulary_and_nothing_else(tmp_path: Path) -> None:
    path = word_level(
        tmp_path / "tokenizer.json",
        {"w0": 0, "w1": 1, "</s>": 2, "w3": 3},
        truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        padding={"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3,
                 "pad_type_id": 0, "pad_token": "w3"},
        post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [],
                        "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
    )  # fmt: skip
    found = read_tokenizer(str(path))
    assert found.encode_batch(["w1 w3 w1"])[0].tolist() == [1, 3, 1]
    assert (found.vocab_size, found.eot, found.info.name) == (4, 2, "tokenizer.json")


def test_a_vocabulary_without_an_end_gets_one_and_gaps_are_counted(tmp_path: Path) -> None:
    found = read_tokenizer(str(word_level(tmp_path / "a.json", {"w0": 0, "w7": 7})))
    assert (found.vocab_size, found.eot) == (9, 8)
    assert found.decode([7, 0, 8, 8, 7]) == f"w7 w0{EOT}{EOT}w7"


def test_the_hash_follows_the_definition(tmp_path: Path) -> None:
    one, two, three = (
        read_tokenizer(str(word_level(tmp_path / f"{i}.json", vocabulary))).info.sha256
        for i, vocabulary in enumerate([{"w0": 0, "a": 1}, {"w0": 0, "a": 1}, {"w0": 0, "b": 1}])
    )
    assert one == two != three


def test_ids_above_65535_survive(tmp_path: Path) -> None:
    """Public trainers have stored them in 16 bits, and 70000 came back as 4464."""
    vocabulary = {f"w{i}": i for i in range(70_000)} | {"</s>": 70_000}
    path = word_level(tmp_path / "wide.json", vocabulary)
    text = tmp_path / "a.txt"
    text.write_text("w65535 w65536 w69999 w4464\n<|endoftext|>\nw1 w2 w3\n")
    data = load_data(DataConfig(source=str(text), tokenizer=str(path), seq_len=2, val_fraction=0.5), tmp_path / "c")
    assert data.vocab_size == 70_001
    read = [t for _, targets in [data.batch(0, data.train.n_windows), *data.eval_batches(1)] for t in targets]
    ids = {int(i) for row in read for i in row}
    assert {65_535, 65_536, 69_999, 70_000} <= ids
    assert data.encode("w69999") == [69_999]


@given(st.text())
def test_bytes_as_a_tokenizer_json(written: HubTokenizer, text: str) -> None:
    assert written.encode(text, add_special_tokens=False).ids == list(text.encode())
    assert written.decode([*text.encode(), 256], skip_special_tokens=False) == text + EOT


@pytest.fixture(scope="module")
def written() -> HubTokenizer:
    """The byte tokenizer as `tokenizers` reads it; its end-of-text is not to be found in text."""
    found = HubTokenizer.from_str(Bytes().to_json())
    found.encode_special_tokens = True
    return found


def test_a_tokenizer_json_has_the_same_ids_or_is_refused(bpe: Subwords, tmp_path: Path) -> None:
    found = HubTokenizer.from_str(bpe.to_json())
    assert found.encode(SAMPLE).ids == bpe.encode_batch([SAMPLE])[0].tolist()
    assert found.token_to_id(EOT) == bpe.eot
    without = read_tokenizer(str(word_level(tmp_path / "a.json", {"w0": 0, "w1": 1})))
    assert HubTokenizer.from_str(without.to_json()).token_to_id(EOT) == without.eot == 2
    with pytest.raises(InputError, match="gaps in its ids"):
        read_tokenizer(str(word_level(tmp_path / "b.json", {"w0": 0, "w7": 7}))).to_json()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("byte", "unknown tokenizer 'byte': choose bytes, bpe:SIZE"),
        ("hub:", "unknown tokenizer"),
        ("bpe:", "at least 257 entries"),
        ("bpe:256", "at least 257 entries"),
        ("bpe:4k", "at least 257 entries"),
        ("missing.json", "no such tokenizer file: missing.json"),
    ],
)
def test_a_tokenizer_that_is_none(tmp_path: Path, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_data(DataConfig(tokenizer=spec), tmp_path)


@pytest.mark.parametrize("raw", [b"", b"{}", b"\x80\x04\x95", b'{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_file(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(InputError, match=r"a\.json is not a tokenizer\.json"):
        read_tokenizer(str(tmp_path / "a.json"))


def test_a_text_that_a_tokenizer_cannot_encode(tmp_path: Path) -> None:
    path = word_level(tmp_path / "words.json", {"w1": 0})
    with pytest.raises(InputError, match=r"the tokenizer words\.json cannot encode this text \(.*UNK"):
        read_tokenizer(str(path)).encode_batch(["w1 unknown"])


def test_a_hub_tokenizer_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tokenizers

    path = word_level(tmp_path / "a.json", {"w0": 0, "</s>": 1})
    asked: list[str] = []

    def from_pretrained(name: str) -> Any:
        asked.append(name)
        if name != "some/name":
            raise RuntimeError("404 on\nmany lines")
        return tokenizers.Tokenizer.from_file(str(path))

    monkeypatch.setattr(tokens, "_from_hub", from_pretrained)
    assert read_tokenizer("hub:some/name").info.name == "hub:some/name"
    with pytest.raises(InputError, match=r"cannot get the tokenizer 'other' from the Hub \(404 on\): check"):
        read_tokenizer("hub:other")
    assert asked == ["some/name", "other"]
