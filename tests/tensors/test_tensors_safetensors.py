"""The safetensors parser: legal oddities are read, everything else is refused in one line, quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from tensor_files import bfloat16, framed, safetensors_bytes, tiny_llama

from layerrope.errors import InputError
from layerrope.tensors import open_source
from layerrope.tensors.blobs import MemoryFile
from layerrope.tensors.entries import Entry
from layerrope.tensors.floats import BITS, DECODERS
from layerrope.tensors.safetensors_format import read_header
from layerrope.tensors.shards import read_file
from layerrope.tensors.source import TensorSource


def source_of(data: bytes) -> TensorSource:
    found = read_file(MemoryFile(data, "x.safetensors"))
    return TensorSource("x", found.format, found.entries, {})


def refusal(data: bytes) -> str:
    """The one line that refuses `data`; it comes in under a second."""
    started = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_file(MemoryFile(data, "x.safetensors"))
    assert time.perf_counter() - started < 1
    message = str(caught.value)
    assert message.startswith("x.safetensors")
    assert message.isprintable()
    assert len(message) < 600
    return message


def row(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file(header: Any, size: int = 16) -> bytes:
    return framed(header if isinstance(header, bytes) else json.dumps(header).encode(), bytes(size))


def test_the_librarys_own_files_are_read(tmp_path: Path) -> None:
    tensors = tiny_llama() | {"double": np.array([1 / 3]), "half": np.ones(3, np.float16), "counts": np.arange(5)}
    source = source_of(save(tensors, metadata={"format": "pt"}))
    floats = [name for name in tensors if name != "counts"]
    read = source.read(floats)
    assert all(np.array_equal(read[name], tensors[name]) for name in floats)
    assert (read["double"].dtype, read["half"].dtype) == (np.float64, np.float32)
    assert source.names["counts"].dtype == "I64"
    assert source.notes == []


ODDITIES = {
    "other order than the data": file({"b": row(offsets=[16, 32]), "a": row(offsets=[0, 16])}, 32),
    "padded with spaces": file(json.dumps({"a": row()}).encode() + b" " * 77),
    "not aligned to 8": file({"a": row("F16", [1], [0, 2]), "b": row(offsets=[2, 18])}, 18),
    "a dimension of zero": file({"a": row(shape=[0, 3], offsets=[16, 16]), "b": row()}, 16),
    "zero-size in the middle": file(
        {"a": row(), "b": row(shape=[0], offsets=[16, 16]), "c": row(offsets=[16, 32])}, 32
    ),
    "a scalar": file({"a": row(shape=[], offsets=[0, 4])}, 4),
    "metadata only": file({"__metadata__": {"format": "pt"}}, 0),
    "empty": file({}, 0),
    "an empty name": file({"": row()}),
    "fields nobody knows": file({"a": {**row(), "comment": [1]}}),
}


@pytest.mark.parametrize("kind", ODDITIES)
def test_legal_oddities_are_read(kind: str) -> None:
    source = source_of(ODDITIES[kind])
    read = source.read(source.names)
    expected = {name: (tuple(info.shape), 0.0) for name, info in source.names.items()}
    assert {name: (value.shape, float(value.sum())) for name, value in read.items()} == expected


def test_unaligned_and_reordered_values_are_the_right_ones() -> None:
    data = np.float16([3]).tobytes() + np.float32([1, 2]).tobytes()
    header = {"late": row("F32", [2], [2, 10]), "early": row("F16", [1], [0, 2])}
    read = source_of(framed(json.dumps(header).encode(), data)).read(["late", "early"])
    assert (read["late"].tolist(), read["early"].tolist()) == ([1, 2], [3])


HOSTILE = {
    "empty": (b"", "cut off: 0 bytes"),
    "three bytes": (b"abc", "cut off: 3 bytes"),
    "header behind the end": (framed(b"{}")[:-1], "declares a header of 2 bytes"),
    "header of 2^62": ((1 << 62).to_bytes(8, "little") + bytes(12), "declares a header of 4611686018427387904"),
    "header over 100 MB": ((100_000_001).to_bytes(8, "little") + bytes(20), "the format allows 100000000"),
    "half the data": (safetensors_bytes(tiny_llama())[:-300], "it is cut off"),
    "not JSON": (file(b"{nonsense"), "not JSON"),
    "not UTF-8": (file(b'{"\xff\xfe": 1}'), "not JSON"),
    "not an object": (file([1, 2]), "does not start with"),
    "leading spaces": (file(b" {}", 0), "does not start with"),
    "deeply nested": (file(b'{"a":' * 100_000), "not JSON"),
    "huge number": (file(b'{"a":' + b"9" * 10_000 + b"}"), "not JSON"),
    "name twice": (file(b'{"a":1,"a":2}'), "names 'a' twice"),
    "row is no object": (file({"a": 7}), "tensor a has no dtype"),
    "no dtype": (file({"a": {"shape": [], "data_offsets": [0, 0]}}, 0), "tensor a has no dtype"),
    "shape is text": (file({"a": row(shape="4")}), "tensor a has a shape"),
    "shape holds a fraction": (file({"a": row(shape=[4.0])}), "tensor a has a shape"),
    "shape holds a truth": (file({"a": row(shape=[True, 4])}), "tensor a has a shape"),
    "negative dimension": (file({"a": row(shape=[-4])}), "tensor a has a shape"),
    "shape too large": (file({"a": row(shape=[1000])}), "does not fit its 16 bytes"),
    "shape overflows": (file({"a": row(shape=[2**62, 2**62])}), "does not fit its 16 bytes"),
    "shape wraps to fit": (file({"a": row(shape=[2**62 + 1, 4])}), "does not fit its 16 bytes"),
    "many huge dimensions": (file({"a": row(shape=[2**62] * 100_000)}), "tensor a has a shape"),
    "negative offset": (file({"a": row(offsets=[-16, 0])}), "tensor a has data_offsets"),
    "reversed offsets": (file({"a": row(offsets=[16, 0])}), "tensor a has data_offsets"),
    "three offsets": (file({"a": row(offsets=[0, 8, 16])}), "tensor a has data_offsets"),
    "behind the end": (file({"a": row(offsets=[4, 20])}), "tensor a ends at byte"),
    "overlap": (file({"a": row(), "b": row(offsets=[8, 24])}, 24), "tensor b overlaps a"),
    "same bytes twice": (file({"a": row(), "b": row()}), "tensor b overlaps a"),
    "hole": (file({"a": row(), "b": row(offsets=[20, 36])}, 36), "tensor b leaves a hole of 4 bytes"),
    "hole at the start": (file({"a": row(offsets=[4, 20])}, 20), "tensor a leaves a hole of 4 bytes"),
    "trailing bytes": (file({"a": row()}, 20), "4 bytes behind a belong to no tensor"),
    "part of a byte": (file({"a": row("F4", [3], [0, 2])}, 2), "does not fit its 2 bytes"),
    "metadata is a list": (file({"__metadata__": [1]}, 0), "__metadata__"),
    "metadata holds numbers": (file({"__metadata__": {"a": 1}}, 0), "__metadata__"),
    "escape sequence": (file({"\x1b]0;owned\x07\n\u202e": row(shape=[9])}), r"\x1b]0;owned\x07\n\u202e"),
    "zip": (b"PK\x03\x04\x14\x00\x08\x08" + bytes(40), "a zip archive"),
    "pickle": (b"\x80\x02}q\x00X\x01\x00\x00\x00" + bytes(40), "a pickle"),
    "numpy": (b"\x93NUMPY\x01\x00v\x00{'descr'" + bytes(40), "a numpy array"),
    "HTML page": (b"<!DOCTYPE html><html><body>log in", "an HTML page"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_with_the_cause(kind: str) -> None:
    data, message = HOSTILE[kind]
    assert message in refusal(data)


def test_nothing_is_allocated_by_a_declared_size(tmp_path: Path) -> None:
    """A sparse file really has the size it declares; asking for its tensors is refused, not tried."""
    path = tmp_path / "sparse.safetensors"
    header = json.dumps({"model.norm.weight": row("F32", [1 << 38], [0, 1 << 40])}).encode()
    with path.open("wb") as out:
        out.write(framed(header))
        out.truncate(8 + len(header) + (1 << 40))
    source = open_source(path)
    assert source.names["model.norm.weight"].nbytes == 1 << 40
    with pytest.raises(InputError, match=r"1099511627776 bytes.*model\.norm\.weight"):
        source.read(source.names)


@pytest.mark.parametrize("shape", [[0, 1 << 62], [0] + [1 << 40] * 63, [0] * 40])
def test_an_empty_tensor_that_no_array_can_be_is_one_line_when_asked_for(shape: list[int]) -> None:
    row = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    data = framed(json.dumps({"a": row, "b": {**row, "shape": [0, 3]}}).encode())
    source = TensorSource("x", "safetensors", read_header(MemoryFile(data, "x")), {})
    assert source.read(["b"])["b"].shape == (0, 3)
    try:
        np.zeros(shape)
    except ValueError:
        with pytest.raises(InputError, match="no array can have"):
            source.read(["a"])
    else:
        assert source.read(["a"])["a"].shape == tuple(shape)


def test_what_is_read_at_once_is_bounded_as_decoded() -> None:
    """An 8-bit float takes four bytes when read, so stored bytes are no bound."""
    row = {"dtype": "F8_E4M3", "shape": [1000], "data_offsets": [0, 1000]}
    data = framed(json.dumps({"a": row}).encode(), bytes(1000))
    source = TensorSource("x", "safetensors", read_header(MemoryFile(data, "x")), {})
    assert source.read(["a"], limit=4000)["a"].shape == (1000,)
    with pytest.raises(InputError, match="4000 bytes of tensors"):
        source.read(["a"], limit=3999)


def test_unknown_dtypes_matter_only_when_asked_for() -> None:
    norms = {"a.norm": ("BF16", (2,), bfloat16(np.float32([1.5, -2]))), "b.norm": np.float16([0.1])}
    others = {"w1": ("F8_E8M0", (4,), bytes(4)), "w2": ("F4", (8,), bytes(4)), "w3": ("Q7_ODD", (3, 5), bytes(11))}
    source = source_of(safetensors_bytes(norms | others | {"c.norm": np.float64([0.1])}))
    read = source.read(["a.norm", "b.norm", "c.norm", "w1"])
    assert read["a.norm"].tolist() == [1.5, -2]
    assert read["b.norm"][0] == np.float32(np.float16(0.1))
    assert (read["c.norm"][0], read["c.norm"].dtype) == (0.1, np.float64)
    assert [note.partition(" is not")[0] for note in source.notes] == [
        "dtype F4 on 1 tensor",
        "dtype Q7_ODD on 1 tensor",
    ]
    for name, dtype in {"w2": "F4", "w3": "Q7_ODD"}.items():
        with pytest.raises(InputError, match=f"tensor {name} is stored as {dtype}"):
            source.read(["a.norm", name])


def test_a_tensor_that_is_not_there_comes_with_the_nearest_name() -> None:
    source = source_of(safetensors_bytes(tiny_llama()))
    with pytest.raises(InputError, match=r"no tensor 'model\.norm\.wieght': did you mean model\.norm\.weight"):
        source.read(["model.norm.wieght"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
offsets = st.lists(st.integers(-2, 40), min_size=2, max_size=2)
near_rows = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "U8", "F8_E4M3", "F4", "I64"]) | json_values,
        "shape": st.lists(st.integers(0, 5), max_size=3) | json_values,
        "data_offsets": offsets | json_values,
    }
)
headers = st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), near_rows | json_values, max_size=4)


def accepted_by_library(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except Exception:
        return False
    return True


def entries_or_none(raw: bytes) -> dict[str, Entry] | None:
    try:
        return read_header(MemoryFile(raw, "x.safetensors"))
    except InputError as error:
        check_line(str(error))
        return None


def check_line(message: str) -> None:
    assert message.isprintable()


@settings(max_examples=300, deadline=1000)
@given(headers, st.binary(max_size=40))
def test_any_header_is_read_or_refused_as_the_library_does(header: dict[str, Any], data: bytes) -> None:
    raw = framed(json.dumps(header).encode(), data)
    entries = entries_or_none(raw)
    if accepted_by_library(raw):
        assert entries is not None
        assert set(entries) == set(header) - {"__metadata__"}
    elif entries is not None:
        assert any(entry.info.dtype not in BITS for entry in entries.values())


@settings(max_examples=300, deadline=1000)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(safetensors_bytes(tiny_llama(layers=1, width=2), metadata={"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    entries = entries_or_none(bytes(raw))
    if entries is not None:
        readable = [name for name, entry in entries.items() if entry.info.dtype in DECODERS]
        read = TensorSource("x", "safetensors", entries, {}).read(readable)
        assert all(read[name].shape == entries[name].info.shape for name in readable)


@settings(max_examples=50, deadline=1000)
@given(st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 3), max_size=4), max_size=6), st.integers(0, 9))
def test_what_the_library_writes_is_read_back(shapes: dict[str, list[int]], pad: int) -> None:
    shapes.pop("__metadata__", None)
    tensors = {name: np.random.default_rng(pad).standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    for raw in (save(tensors), safetensors_bytes(tensors, pad=pad)):
        read = source_of(raw).read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
