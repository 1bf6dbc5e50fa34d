"""Sampling: the text that `generate` gives, in whole characters, from every kind of folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from interop_models import model

from layerrope import InputError, cli
from layerrope.exporting.export import export
from layerrope.sampling import Sampling, stream_text, stream_tokens
from layerrope.text.tokens import Bytes, Subwords


@pytest.mark.parametrize("scheme", ["layerrope", "hc", "layerrope-peri"])
@pytest.mark.parametrize("cache", [True, False])
def test_tokens_are_those_of_generate(scheme: str, cache: bool) -> None:
    made = model(scheme)
    how = Sampling(25, temperature=0.9, top_k=7, seed=4, cache=cache)
    expected = made.generate(torch.tensor([[5, 6, 7]]), 25, temperature=0.9, top_k=7, seed=4)[0, 3:].tolist()
    assert list(stream_tokens(made, [5, 6, 7], how)) == expected


def test_pieces_are_whole_characters_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é漢字 ok"
    monkeypatch.setattr("layerrope.sampling.stream_tokens", lambda *given: iter([*text.encode(), 256, 65]))
    pieces = list(stream_text(model(vocab_size=257), Bytes(), "x", Sampling()))
    assert pieces == ["é", "漢", "字", " ", "o", "k"]  # and nothing after end-of-text


def test_a_character_that_is_never_finished_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerrope.sampling.stream_tokens", lambda *given: iter([65, *"漢".encode()[:2]]))
    assert "".join(stream_text(model(vocab_size=257), Bytes(), "x", Sampling())).startswith("A")


def test_the_command_prints_the_same_text_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(model(vocab_size=257), tmp_path / "m", tokenizer=Bytes(), reader="plain")
    words = ["sample", str(tmp_path / "m"), "--prompt", "The", "--tokens", "8", "--seed", "3"]
    assert cli.main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["prompt"] == "The"
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"The{said['text']}\n"


def test_the_command_reads_its_prompt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(model(vocab_size=257), tmp_path / "m", tokenizer=Bytes(), reader="plain")
    read: list[list[str]] = []
    encode = Subwords.encode_batch
    monkeypatch.setattr(Subwords, "encode_batch", lambda self, texts: read.append(texts) or encode(self, texts))
    assert cli.main(["sample", str(tmp_path / "m"), "--prompt", "The", "--tokens", "2"]) == 0
    assert read == [["The"]]


def test_a_text_longer_than_those_trained_on_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(vocab_size=257)
    export(made, tmp_path / "m", tokenizer=Bytes(), reader="plain")
    room = made.config.seq_len - len("The")
    for tokens, said in ((room, False), (room + 1, True)):
        assert cli.main(["sample", str(tmp_path / "m"), "--prompt", "The", "--tokens", str(tokens)]) == 0
        assert (f"was trained on {made.config.seq_len}" in " ".join(capsys.readouterr().err.split())) == said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "0"], "tokens must be at least 1"),
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top-k"),
        (["--device", "toaster"], "unknown device"),
    ],
)
def test_bad_settings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    export(model(vocab_size=257), tmp_path / "m", tokenizer=Bytes(), reader="plain")
    assert cli.main(["sample", str(tmp_path / "m"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(model(), tmp_path / "m", reader="plain")
    assert cli.main(["sample", str(tmp_path / "m")]) == 2
    assert "without a tokenizer" in capsys.readouterr().err


def test_a_gguf_is_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = export(model("prenorm", vocab_size=257), tmp_path / "m", as_="gguf", tokenizer=Bytes(), reader="plain")
    for source in (made.folder, made.folder / "model.gguf"):
        assert cli.main(["sample", str(source)]) == 2
        assert "is a GGUF file" in capsys.readouterr().err
    assert cli.main(["sample", str(made.folder / "proof.json")]) == 2
    assert "proof.json is a file: give its folder" in capsys.readouterr().err


def test_prompts_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(InputError, match="gives id 122, the model knows 61"):
        list(stream_text(model(), Bytes(), "z", Sampling()))
