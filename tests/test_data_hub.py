"""Streamed datasets, with a stand-in for the `datasets` library: fetched once, continued, named when broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from layerrope.data import DataConfig, Dataset, load_data
from layerrope.errors import InputError, MissingExtra
from layerrope.text import hub

Row = dict[str, Any]


class Stream:
    """What `load_dataset(..., streaming=True)` gives for one split; counts the rows it hands out."""

    def __init__(self, rows: list[Row], fails_after: int | None = None) -> None:
        self.rows, self.fails_after = rows, fails_after
        self.given = self.first = 0

    def skip(self, count: int) -> Stream:
        self.first = count
        return self

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(self.rows[self.first :], self.first):
            if number == self.fails_after:
                raise ConnectionError("the line\nwent dead")
            self.given += 1
            yield row


class Library(ModuleType):
    """A `datasets` module with one dataset, "some/data"."""

    def __init__(self, **splits: Stream) -> None:
        super().__init__("datasets")
        self.splits = splits
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, name: str, config: str | None, *, revision: str, streaming: bool) -> dict[str, Stream]:
        assert streaming
        self.asked.append((name, config, revision))
        if config == "nope":
            raise ValueError("BuilderConfig 'nope' not found.\nAvailable: ['en']")
        return self.splits


def rows(name: str, count: int) -> list[Row]:
    return [{"text": f"{name} document number {i}", "id": i} for i in range(count)]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library(train=Stream(rows("train", 500)), validation=Stream(rows("val", 20)))
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr(hub, "_commit", lambda name, revision: f"commit of {revision}")
    return library


def load(tmp_path: Path, source: str = "hf:some/data:en", **settings: Any) -> Dataset:
    return load_data(DataConfig(source=source, **{"seq_len": 8, **settings}), tmp_path)


def test_splits_are_the_datasets_own(tmp_path: Path, library: Library) -> None:
    data = load(tmp_path)
    assert (data.train.n_documents, data.val.n_documents, data.split_by) == (500, 20, "source")
    assert set(library.asked) == {("some/data", "en", "commit of None")}
    assert data.summary()["source"] == "some/data"


def test_nothing_is_fetched_twice_and_a_network_is_needed_once(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, tokenizer="bpe:300").batch(3, 4)[0]
    assert library.splits["train"].given == 500
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert (load(tmp_path, tokenizer="bpe:300").batch(3, 4)[0] == first).all()
    assert load(tmp_path).train.n_documents == 500


def test_a_limit_stops_the_stream_and_a_larger_one_goes_on(tmp_path: Path, library: Library) -> None:
    stream = library.splits["train"]
    assert load(tmp_path, max_docs=30).train.n_documents == 30
    assert stream.given <= 32
    assert load(tmp_path, max_docs=50).train.n_documents == 50
    assert stream.given <= 54
    small = load(tmp_path, max_docs=30, seq_len=4).batch(0, 2)[0]
    assert (load(tmp_path / "other", max_docs=30, seq_len=4).batch(0, 2)[0] == small).all()


def test_rows_are_kept_file_by_file(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PART_CHARS", 1_000)
    whole = load(tmp_path)
    assert len(list(tmp_path.glob("hub/*/train-*.jsonl.zst"))) > 5
    for shard in tmp_path.glob("shards/*"):
        shard.unlink()
    assert load(tmp_path).summary() == whole.summary()
    assert library.splits["train"].given == 500


def test_a_broken_stream_is_named_and_continued(tmp_path: Path, library: Library) -> None:
    stream = library.splits["train"]
    stream.fails_after = 123
    with pytest.raises(InputError, match=r"the stream of some/data stopped \(the line\): run again to go on"):
        load(tmp_path)
    stream.fails_after = None
    assert load(tmp_path).train.n_documents == 500
    assert stream.given == 500


def test_without_a_validation_split_documents_are_held_out(tmp_path: Path, library: Library) -> None:
    del library.splits["validation"]
    data = load(tmp_path, val_fraction=0.1, max_docs=100)
    assert data.train.n_documents == 100
    assert 5 <= data.val.n_documents <= 20
    assert library.splits["train"].given < 200


@pytest.mark.parametrize(("names", "chosen"), [(("test", "dev"), "dev"), (("test",), "test"), (("other",), None)])
def test_the_validation_split_goes_by_name(
    tmp_path: Path, library: Library, names: tuple[str, ...], chosen: str | None
) -> None:
    del library.splits["validation"]
    library.splits |= {name: Stream(rows(name, 9)) for name in names}
    assert hub.open_hub("hf:some/data", "text", tmp_path).val_split == chosen


def test_works_stay_together_and_empty_rows_are_left_out(tmp_path: Path, library: Library) -> None:
    library.splits = {"train": Stream([{"text": f"w{i % 7} {i}", "work": i % 7} for i in range(70)] + [{"text": " "}])}
    data = load(tmp_path, val_fraction=0.2)
    val = "".join(data.decode(row) for inputs, _ in data.eval_batches(4) for row in inputs)
    assert data.train.n_documents + data.val.n_documents == 70
    assert data.val.n_documents % 10 == 0
    assert data.split_by == "work"
    assert val.count("w") == data.val.n_documents


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("hf:some/data:nope", {}, r"cannot open the dataset 'some/data' \(BuilderConfig 'nope' not found\.\)"),
        ("hf:some/data", {"text_key": "content"}, r"some/data, row 0 of validation, .* 'content' \(keys: text, id\)"),
        ("hf:", {}, r"cannot read 'hf:': a dataset is hf:NAME\[:CONFIG\]\[@REVISION\]"),
        ("hf:a:b:c", {}, "a dataset is hf:NAME"),
    ],
)
def test_a_dataset_that_cannot_be_used(
    tmp_path: Path, library: Library, source: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, source, **settings)
    assert "\n" not in str(caught.value)


def test_a_dataset_without_a_training_split(tmp_path: Path, library: Library) -> None:
    del library.splits["train"]
    with pytest.raises(InputError, match=r"some/data has no split called train \(it has validation\)"):
        load(tmp_path)


def test_a_revision_is_another_dataset(tmp_path: Path, library: Library) -> None:
    one, two = (load(tmp_path, f"hf:some/data@{r}").summary() for r in ("v1", "v2"))
    assert one["source_sha256"] != two["source_sha256"]
    assert one["train_ids_sha256"] == two["train_ids_sha256"]
    assert {asked[2] for asked in library.asked} == {"commit of v1", "commit of v2"}


def test_a_local_folder_is_known_by_its_content(tmp_path: Path, library: Library) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"1")
    one = hub.open_hub(f"hf:{folder}", "text", tmp_path / "cache")
    assert (one.commit, one.name) == (None, "mine")
    (folder / "a.parquet").write_bytes(b"2")
    assert hub.open_hub(f"hf:{folder}", "text", tmp_path / "cache").sha256 != one.sha256


def test_a_damaged_cache_is_named(tmp_path: Path, library: Library) -> None:
    load(tmp_path)
    for shard in tmp_path.glob("shards/*"):
        shard.unlink()
    part = next(tmp_path.glob("hub/*/train-*.jsonl.zst"))
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train-0+\.jsonl\.zst is damaged"):
        load(tmp_path)
    next(tmp_path.glob("hub/*/about.json")).write_text('{"commit": 1}')
    with pytest.raises(InputError, match=r"about\.json is damaged"):
        load(tmp_path)


def test_without_the_extra_it_is_named(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'layerrope\[hf\]'"):
        load(tmp_path)


def test_an_unknown_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Api:
        def dataset_info(self, name: str, revision: str | None) -> None:
            raise RuntimeError("404 Client Error\nmore")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with pytest.raises(InputError, match=r"cannot find the dataset 'some/data' .* \(404 Client Error\): check"):
        load(tmp_path)


@pytest.mark.opt_in
def test_the_real_library_reads_a_local_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, count in (("train", 200), ("validation", 20)):
        lines = (f'{{"text": "{name} document {i}"}}\n' for i in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    cache = tmp_path / "cache"
    assert load(cache, f"hf:{folder}", max_docs=30).train.n_documents == 30
    data = load(cache, f"hf:{folder}")
    assert (data.train.n_documents, data.val.n_documents) == (200, 20)
