"""Shards and the cache: ids come back as written, damage is named, nothing is ever half there."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from layerrope import cache as caching
from layerrope.cache import cache_folder, locked, sweep
from layerrope.data import DataConfig, load_data
from layerrope.errors import InputError
from layerrope.text import shards, tokens
from layerrope.text.shards import ShardWriter, open_shard, paths_of, width_for

NAMES: dict[str, Any] = {"key": "k", "tokenizer": ("t", "0"), "source": ("s", "1")}


def write(stem: Path, documents: list[list[int]], vocab_size: int = 300, eot: int = 256) -> Path:
    with ShardWriter(stem, vocab_size, eot) as writer:
        for ids in documents:
            writer.add(np.array(ids, np.int64), n_bytes=2 * len(ids))
        writer.publish(**NAMES)
    return stem


def edit(stem: Path, **changes: Any) -> None:
    header = paths_of(stem)[2]
    header.write_text(json.dumps({**json.loads(header.read_text()), **changes}))


@given(
    vocab_size=st.sampled_from([257, 65_535, 65_536, 65_537, 70_001, 2**31]),
    data=st.data(),
)
@settings(deadline=None, max_examples=40)
def test_ids_come_back(tmp_path_factory: pytest.TempPathFactory, vocab_size: int, data: st.DataObject) -> None:
    ids = st.one_of(st.integers(0, vocab_size - 1), st.integers(vocab_size - 3, vocab_size - 1))
    documents = data.draw(st.lists(st.lists(ids, max_size=20), max_size=6))
    shard = open_shard(write(tmp_path_factory.mktemp("s") / "a", documents, vocab_size), "k")
    found = [shard.ids[a:b].tolist() for a, b in zip(shard.offsets[:-1], shard.offsets[1:], strict=True)]
    assert found == [[*document, 256] for document in documents]
    assert shard.ids[0] == 256
    assert shard.header.n_tokens == sum(len(document) + 1 for document in documents)
    assert (shard.header.n_documents, shard.header.n_bytes) == (len(documents), 2 * sum(map(len, documents)))
    assert shard.gather(np.arange(len(shard.ids))).dtype == np.int64


def test_the_width_is_the_vocabularys() -> None:
    assert [width_for(v) for v in (257, 65_536, 65_537, 70_001)] == ["uint16", "uint16", "uint32", "uint32"]


def test_70000_does_not_become_4464(tmp_path: Path) -> None:
    shard = open_shard(write(tmp_path / "a", [[65_535, 65_536, 70_000]], 70_001))
    assert shard.gather(np.array([1, 2, 3])).tolist() == [65_535, 65_536, 70_000]


@pytest.mark.parametrize("ids", [[300], [5, -1], [2**40]])
def test_an_id_outside_the_vocabulary_is_not_written(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(InputError, match="vocabulary has 300 entries"):
        write(tmp_path / "a", [ids])
    assert not list(tmp_path.iterdir())


def truncate(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-4] ^= 1
    path.write_bytes(raw)


def put_id(stem: Path, value: int) -> None:
    raw = np.fromfile(paths_of(stem)[0], "<u2")
    raw[1] = value
    raw.tofile(paths_of(stem)[0])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut ids": (lambda s: truncate(paths_of(s)[0], 2), r"a\.bin has 10 bytes, but 6 items of 16 bits make 12"),
    "half an id": (lambda s: truncate(paths_of(s)[0], 1), r"a\.bin has 11 bytes"),
    "no ids": (lambda s: truncate(paths_of(s)[0], 12), r"a\.bin has 0 bytes"),
    "missing ids": (lambda s: paths_of(s)[0].unlink(), r"a\.bin is missing"),
    "longer ids": (lambda s: paths_of(s)[0].write_bytes(b"x" * 99), r"a\.bin has 99 bytes"),
    "cut offsets": (lambda s: truncate(paths_of(s)[1], 8), r"a\.offsets\.bin has 16 bytes"),
    "wrong offsets": (lambda s: np.array([1, 9, 6]).tofile(paths_of(s)[1]), r"a\.offsets\.bin does not list"),
    "flipped bit": (lambda s: flip(paths_of(s)[0]), r"a\.bin does not hold the ids that were written"),
    "id too large": (lambda s: put_id(s, 300), r"a\.bin holds id 300, outside its vocabulary of 300"),
    "narrower header": (lambda s: edit(s, width="uint32"), "has uint32 ids, but a vocabulary of 300 needs uint16"),
    "wider vocabulary": (lambda s: edit(s, vocab_size=70_001), "vocabulary of 70001 needs uint32"),
    "written as 32 bits": (lambda s: np.zeros(6, "<u4").tofile(paths_of(s)[0]), "24 bytes, but 6 items of 16 bits"),
    "other key": (lambda s: edit(s, key="other"), r"a\.json is stale"),
    "other format": (lambda s: edit(s, format="x"), r"a\.json is not a layerrope-shard-1 header"),
    "no header": (lambda s: paths_of(s)[2].unlink(), r"no such file: .*a\.json"),
    "not json": (lambda s: paths_of(s)[2].write_text("{"), r"a\.json is not readable JSON"),
    "list": (lambda s: paths_of(s)[2].write_text("[]"), "is not a layerrope-shard-1 header"),
    "missing field": (lambda s: edit(s, extra=1), "lacks a field or has one of the wrong type"),
    "wrong type": (lambda s: edit(s, n_ids="6"), "lacks a field or has one of the wrong type"),
    "no bool": (lambda s: edit(s, n_ids=True), "lacks a field or has one of the wrong type"),
    "negative": (lambda s: edit(s, n_ids=-6), "cannot be"),
    "huge": (lambda s: edit(s, n_ids=2**62), r"a\.bin has 12 bytes"),
    "end outside": (lambda s: edit(s, eot=300), "cannot be"),
    "other width": (lambda s: edit(s, width="float16"), "cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    stem = write(tmp_path / "a", [[1, 2], [3]])
    damage(stem)
    with pytest.raises(InputError, match=message) as caught:
        open_shard(stem, "k")
    assert "\n" not in str(caught.value)


def test_a_shard_too_large_to_check_at_once_is_checked_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "VERIFY_BYTES", 8)
    stem = write(tmp_path / "a", [[1, 2], [3]])
    put_id(stem, 299)
    assert open_shard(stem).gather(np.array([1])).tolist() == [299]
    put_id(stem, 300)
    with pytest.raises(InputError, match="holds id 300"):
        open_shard(stem).gather(np.array([0, 1]))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_pickle_in_place_of_a_file_is_not_opened(tmp_path: Path, which: int) -> None:
    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    stem = write(tmp_path / "a", [[1, 2], [3]])
    paths_of(stem)[which].write_bytes(pickle.dumps(Touch()))
    with pytest.raises(InputError, match=paths_of(stem)[which].name):
        open_shard(stem)
    assert not (tmp_path / "touched").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards.os, "fsync", full)
    with pytest.raises(InputError, match="no space left while writing"):
        write(tmp_path / "a", [[1]])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_failure_while_reading_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "good"}\n' * 50 + "bad\n")
    monkeypatch.setattr(tokens, "BATCH_CHARS", 10)
    with pytest.raises(InputError, match=r"a\.jsonl:51 is not a line of JSON"):
        load_data(DataConfig(source=str(text), tokenizer=tokenizer, seq_len=2), tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


# The cache


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {i} of some length"}) + "\n" for i in range(200)))
    return path


def test_shards_are_built_once_and_again_when_anything_changes(text: Path, tmp_path: Path) -> None:
    stages: list[str] = []

    def load(**settings: Any) -> int:
        stages.clear()
        config = DataConfig(source=str(text), **{"seq_len": 8, **settings})
        load_data(config, tmp_path / "cache", lambda stage, done: stages.append(stage))
        return len(stages)

    assert load() > 0
    assert load() == load(seq_len=16) == load(layout="padded") == 0
    assert load(tokenizer="bpe:300") > 0
    assert load(tokenizer="bpe:300") == 0
    assert load(val_fraction=0.3) > 0
    assert load(max_docs=9) > 0
    with text.open("a") as file:
        file.write('{"text": "one more"}\n')
    assert load() > 0
    assert stages == ["tokens"]


def test_a_damaged_cache_is_named_before_the_first_step(text: Path, tmp_path: Path) -> None:
    config = DataConfig(source=str(text), seq_len=8)
    load_data(config, tmp_path / "cache")
    ids = next((tmp_path / "cache" / "shards").glob("*-train.bin"))
    truncate(ids, 2)
    with pytest.raises(InputError, match=rf"{ids.name} has .* delete it and run again"):
        load_data(config, tmp_path / "cache")
    paths_of(ids.with_suffix(""))[2].unlink()
    assert load_data(config, tmp_path / "cache").train.n_windows > 0


def test_what_a_killed_process_left_is_no_obstacle_and_goes(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "shards"
    folder.mkdir(parents=True)
    old, new = folder / ".x.bin.1.part", folder / ".x.bin.2.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    sweep(folder)
    assert [old.exists(), new.exists()] == [False, True]
    config = DataConfig(source=str(text), seq_len=8)
    first = load_data(config, tmp_path / "cache").summary()
    for header in folder.glob("*.json"):
        header.unlink()
    for ids in folder.glob("*.bin"):
        truncate(ids, 1)
    assert load_data(config, tmp_path / "cache").summary() == first


SCRIPT = """
import contextlib, json, sys
from layerrope.text import prepare
from layerrope.data import DataConfig, load_data
if sys.argv[3] == "unlocked":
    prepare.locked = lambda path: contextlib.nullcontext()
data = load_data(DataConfig(source=sys.argv[1], tokenizer="bpe:300", seq_len=8), sys.argv[2])
print(json.dumps([data.summary(), data.batch(5, 4)[0].tolist()]))
"""


@pytest.mark.parametrize("lock", ["locked", "unlocked"])
def test_processes_that_build_the_same_shard_agree(text: Path, tmp_path: Path, lock: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(text), str(tmp_path / "cache"), lock]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    found = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], found
    assert found[0][0] == found[1][0]
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_process_waits_for_the_other_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time\nfrom filelock import FileLock\nwith FileLock(sys.argv[1]):\n"
         " print('held', flush=True)\n sys.stdin.read()", str(tmp_path / "a.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdin is not None
    holder.stdout.readline()
    wait = FileLock.acquire

    def acquire(self: Any) -> Any:
        if self.timeout < 0:
            order.append("waiting")
            holder.stdin.close()  # type: ignore[union-attr]
        return wait(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLock, "acquire", acquire)
        with locked(tmp_path / "a.lock"):
            order.append("mine")
    assert holder.wait(30) == 0
    assert order == ["waiting", "mine"]
    assert "waiting for another process" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(InputError, match=r"cannot write .*file/cache"):
        cache_folder(blocked / "cache")
    monkeypatch.setattr(Path, "home", lambda: blocked)
    noted: list[str] = []
    monkeypatch.setattr(caching, "note", noted.append)
    caching._temporary.cache_clear()
    folder = cache_folder()
    assert cache_folder() == folder
    assert folder.is_dir()
    assert len(noted) == 1
    assert str(folder) in noted[0]
    caching._temporary.cache_clear()
    folder.rmdir()


def test_the_default_cache_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "layerrope"
