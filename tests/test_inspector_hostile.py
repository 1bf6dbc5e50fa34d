"""Names, configurations and outputs of strangers: nothing they hold commands a terminal, a file or the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspector_files import Tensors, growing, layered, write_folder

from layerrope import cli
from layerrope.errors import InputError
from layerrope.inspector import Inspection, check, compare, inspect
from layerrope.inspector.naming import LONGEST_ROLE, array_names, file_names, shortened, unique, with_safe_roles
from layerrope.norm_sites import find_norms

NAME = "model.layers.{l}.input_layernorm.weight"
LLAMA = {"model_type": "llama", "num_hidden_layers": 4}
HOSTILE = {
    "escape": "\x1b[31mEVIL\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "lines": "a\nerror: fake\r",
    "right to left": "\u202eabc\u202d",
    "null": "a\x00b",
    "half a pair": "\ud800",
    "markup": "[bold red]x[/bold]",
    "emoji": ":bomb: \U0001f4a3",
    "page": "<script>alert(1)</script>",
    "path": "../../etc/x",
    "other path": "..\\x",
    "long": "n" * 70_000,
    "wide": "\u5b57" * 400,
    "c1": "\x9b31m",
}


def raw_folder(folder: Path, tensors: Mapping[str, Any], config: Any = None) -> Path:
    """A model written by hand: names that the library would refuse."""
    header, data = {}, b""
    for name, values in tensors.items():
        array = np.asarray(values, np.float32)
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def run(*words: Any) -> int:
    return cli.main(["inspect", *map(str, words)])


# ---------------------------------------------------------------------------------------------------------- names
@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Sites, a norm outside the layers, a bias and a dtype under a hostile name."""
    evil = HOSTILE[request.param]
    tensors = layered(f"{evil}.{{l}}.{evil}norm.weight", growing(4, 8))
    tensors |= layered(f"{evil}/{{l}}.b.norm.bias", growing(4, 8, seed=1))
    return raw_folder(tmp_path / "m", {**tensors, f"{evil}norm.weight": np.zeros(8)})


def test_a_hostile_name_is_shown_escaped_everywhere(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_folder(tmp_path / "good", layered(NAME, growing(4, 8)), LLAMA)
    assert run(hostile, "--layers", "--shuffles", 1, "--csv", tmp_path / "o.csv", "--save", tmp_path / "o.npz") == 0
    assert run(hostile, good, "--shuffles", 1) == 0
    assert run(hostile, "--check") == 1
    assert run(hostile, "--json", "--shuffles", 1) == 0
    said = capsys.readouterr()
    for text in (said.out, said.err, (tmp_path / "o.csv").read_text()):
        assert all(c.isprintable() or c == "\n" for c in text)
        assert max(map(len, text.splitlines())) < 8000
    with np.load(tmp_path / "o.npz") as arrays:
        assert all(name.isascii() and len(name) < 200 and not set(name) & set("/\\") for name in arrays.files)
        assert (4, 8) in [a.shape for a in arrays.values()]


def test_a_page_and_pictures_bear_hostile_names(tmp_path: Path) -> None:
    tensors: Tensors = {}
    for evil in HOSTILE.values():
        tensors |= layered(f"{evil}.{{l}}.norm.weight", growing(3, 4))
    found = inspect(raw_folder(tmp_path / "m", tensors), shuffles=0)
    assert len(found.reports) == len(HOSTILE)
    page = found.to_html(tmp_path / "o.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    one_role = inspect(raw_folder(tmp_path / "n", layered("\x1b[31m\ud800\n\x00.{l}.norm.weight", growing(3, 4))))
    drawn = one_role.to_png(tmp_path / "png")
    assert len(drawn) == len({path.name.casefold() for path in drawn}) >= 5
    assert {path.parent for path in drawn} == {tmp_path / "png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    tensors: Tensors = {}
    for seed, between in enumerate("/\\_?:"):
        tensors |= layered(f"a{between}b.{{l}}.norm.weight", growing(3, 8, seed=seed))
    for seed, long in enumerate(("x", "y"), start=9):
        tensors |= layered(f"{'p' * 60}{long}{'q' * 90}.{{l}}.norm.weight", growing(3, 8, seed=seed))
    found = inspect(raw_folder(tmp_path / "m", tensors), shuffles=0)
    assert len(found.reports) == 7
    with np.load(found.save_npz(tmp_path / "o.npz")) as arrays:
        tables = {name: a for name, a in arrays.items() if a.ndim == 2}
    assert len(tables) == 7
    assert len({a.tobytes() for a in tables.values()}) == 7


@given(st.lists(st.text(max_size=8) | st.sampled_from(["a", "a (2)", "A", "é"]), max_size=8))
def test_names_made_unique_are_as_many_and_safe(names: list[str]) -> None:
    assert len(set(unique(names))) == len(names)
    assert len({name.casefold() for name in file_names(names)}) == len(names)
    assert all(name and len(name) < 100 and name.isascii() and "/" not in name for name in file_names(names))
    roles = list(dict.fromkeys(names))
    assert len(set(array_names(roles).values())) == len(roles)


@given(st.lists(st.text(max_size=200), unique=True, max_size=6))
def test_roles_are_printable_bounded_and_as_different_as_before(prefixes: list[str]) -> None:
    found = find_norms([f"{prefix}.{layer}.norm.weight" for prefix in prefixes for layer in range(2)], {})
    safe = with_safe_roles(found.tensors)
    assert all(norm.role.isprintable() and len(norm.role) <= LONGEST_ROLE + 5 for norm in safe)
    before, after = ([norm.role for norm in norms] for norms in (found.tensors, safe))
    assert [before.index(role) for role in before] == [after.index(role) for role in after]
    assert shortened("abcdefgh", 5) == "ab…gh"


@pytest.mark.parametrize("config", [{}, LLAMA])
def test_a_name_of_many_parts_costs_what_its_length_costs(config: dict[str, Any]) -> None:
    """Work that grows with the square of the length would take minutes here."""
    names = ["a." * 50_000 + f"x{i}.norm.weight" for i in range(20)]
    assert len(find_norms(names, config).tensors) == (1 if config else 20)  # of 20 prefixes one is the model


def test_a_model_beside_itself_is_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "m", layered(NAME, growing(4, 8)), LLAMA)
    found = inspect(folder, shuffles=0)
    both = compare([found, found])
    assert both.labels == [str(folder), f"{folder} (2)"]
    assert {row["model"] for row in both.site_rows} == set(both.labels)
    assert run(folder, folder, "--shuffles", 0) == 0
    assert "m (2)" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------- check
GOOD = layered(NAME, growing(4, 8)) | {"model.norm.weight": growing(1, 8)[0]}
NAN = np.full(8, np.nan, np.float32)
HIDDEN = {
    "past the configured depth": {"model.layers.4.input_layernorm.weight": NAN},
    "second tower": {"vision.layers.0.input_layernorm.weight": NAN},
    "duplicate layer": {"model.layers.01.input_layernorm.weight": NAN},
    "duplicate part": {"model.layers.1.input_layernorm.gamma": NAN},
    "duplicate final": {"model.norm.gamma": NAN},
    "six digits": {"model.layers.100000.input_layernorm.weight": NAN},
    "many digits": {"model.layers.999999999999.input_layernorm.weight": NAN},
    "no role here": {"model.layers.1.pre_feedforward_layernorm.weight": NAN},
    "another part": {"model.layers.1.input_layernorm.weight_g": NAN},
    "three dimensions": {"model.layers.1.extra_norm.weight": NAN.reshape(2, 2, 2)},
    "empty": {"model.layers.2.input_layernorm.weight": np.zeros(0, np.float32)},
    "zeros": {"aux.norm.weight": np.zeros(8, np.float32)},
    "layer scale": {"model.blocks.0.gamma_1": NAN},
    "bias": {"model.layers.1.input_layernorm.bias": NAN},
}


@pytest.mark.parametrize("where", HIDDEN)
def test_check_finds_a_broken_norm_wherever_it_hides(tmp_path: Path, where: str) -> None:
    found = check(write_folder(tmp_path / "m", {**GOOD, **HIDDEN[where]}, LLAMA))
    (name,) = HIDDEN[where]
    assert [fault["name"] for fault in found.faults] == [name]
    assert found.looked_at == len({**GOOD, **HIDDEN[where]})
    assert found.reports == {}


@pytest.mark.parametrize("config", [None, {"model_type": "unheard_of"}])
def test_check_looks_at_tables_of_an_unknown_model(tmp_path: Path, config: dict[str, str] | None) -> None:
    tensors = {**GOOD, "net.1.norm.weight": NAN.reshape(2, 4), "net.2.norm1.linear.weight": np.zeros((2, 4))}
    (fault,) = check(write_folder(tmp_path / "m", tensors, config)).faults
    assert (fault["role"], fault["name"], fault["fault"]) == ("other", "net.1.norm.weight", "NaN")


def test_check_fits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import layerrope.inspector.inspection as inspection

    def never(*_: object, **__: object) -> None:
        pytest.fail("a fit was run")

    monkeypatch.setattr(inspection, "report_site", never)
    folder = write_folder(tmp_path / "m", GOOD, LLAMA)
    assert run("--check", folder, "--csv", tmp_path / "o.csv", "--save", tmp_path / "o.npz") == 0
    assert "5 norm tensors read: every norm is finite" in " ".join(capsys.readouterr().err.split())
    assert run("--check", "--json", folder) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["fitted"], model["norms_read"], model["sites"], model["faults"]) == (False, 5, {}, [])
    assert run("--check", folder, "--html", tmp_path / "o.html") == 2
    assert "--check fits nothing" in capsys.readouterr().err


def test_what_check_cannot_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = raw_folder(tmp_path / "m", {**GOOD, "z.norm.table": np.ones((1100, 1000))}, LLAMA)
    assert run("--check", folder) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "1 tensors called like norms are too large or not stored as floats: z.norm.table" in said


def test_a_failed_check_stays_failed_when_nobody_reads(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**GOOD, "model.norm.weight": NAN}, LLAMA)
    command = f"set -o pipefail; {sys.executable} -m layerrope.cli inspect --check {folder} | true"
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False).returncode == 1


def test_a_second_tensor_for_one_place_is_told(tmp_path: Path) -> None:
    tensors = {**GOOD, "model.layers.01.input_layernorm.weight": np.full(8, 100.0)}
    found = inspect(write_folder(tmp_path / "m", tensors, LLAMA), shuffles=0)
    assert any("stand for a place that another has taken" in note for note in found.table.notes)
    assert found.table.sites["attn_read"].rows[1].name == "model.layers.1.input_layernorm.weight"


# ------------------------------------------------------------------------------------- configurations of this package
def lm_folder(folder: Path, scheme: str, config: Mapping[str, Any] = {}, drop: str = "none") -> Path:
    """An untrained model of 4 layers, its configuration changed by `config`."""
    import torch

    from layerrope import LM, ModelConfig

    shape = {"n_layer": 4, "n_head": 2, "d_model": 8, "d_ff": 8, "vocab_size": 5, "seq_len": 4, "scheme": scheme}
    torch.manual_seed(0)
    state = LM(ModelConfig(**shape)).state_dict()  # type: ignore[arg-type]
    kept = {name: value.numpy() for name, value in state.items() if drop not in name}
    text = json.dumps({"model_type": "layerrope", **shape, **config})
    return raw_folder(folder, kept, text)


BAD_SHAPES: dict[str, dict[str, Any]] = {
    "null": {"n_layer": None},
    "text": {"d_model": "8"},
    "negative": {"n_layer": -1},
    "none": {"d_model": 0},
    "fraction": {"n_layer": 4.0},
    "true": {"n_layer": True},
    "nan": {"n_layer": float("nan")},
    "infinite": {"d_model": float("inf")},
    "huge": {"n_layer": 10**12},
    "many digits": {"d_model": 10**4000},
    "deeper than the tensors": {"n_layer": 4000},
    "shallower": {"n_layer": 2},
    "wider": {"d_model": 16},
    "much wider": {"d_model": 1 << 20},
    "list as scheme": {"scheme": ["lns"]},
    "long scheme": {"scheme": "lns" * 1000},
    "unknown scheme": {"scheme": "\x1b[31m"},
}


@pytest.mark.parametrize("scheme", ["lns", "layerrope"])
@pytest.mark.parametrize("kind", BAD_SHAPES)
def test_a_configuration_that_is_not_the_tensors_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str, kind: str
) -> None:
    folder = lm_folder(tmp_path / "m", scheme, BAD_SHAPES[kind])
    for words in ((), ("--check",)):
        assert run(folder, *words) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert len(said) < 700


def test_a_fixed_table_has_no_fault_of_its_own(tmp_path: Path) -> None:
    """LNS multiplies layer 0 by 1/sqrt(1): whether that layer was trained, its own weight tells."""
    trained = lm_folder(tmp_path / "m", "lns")
    data = bytearray((trained / "model.safetensors").read_bytes())
    assert {f["layer"] for f in check(trained).faults} == {None, *range(4)}  # all ones: every layer, not the first only
    ones, halves = np.ones(8, np.float32).tobytes(), np.full(8, 1.5, np.float32).tobytes()
    (trained / "model.safetensors").write_bytes(bytes(data).replace(ones, halves))
    assert check(trained).faults == []
    assert "none of the configured 4 layers is missing" in check(trained).verdict
    assert inspect(trained, shuffles=0).faults == []
    lacking = lm_folder(tmp_path / "n", "lns", drop="layers.2.mlp.branch")
    assert ("mlp_read", 2, "missing") in [(f["role"], f["layer"], f["fault"]) for f in check(lacking).faults]


# -------------------------------------------------------------------------------------------------------- outputs
def outputs(found: Inspection, path: Path) -> dict[str, Any]:
    return {"csv": found.to_csv, "json": found.to_json, "npz": found.save_npz, "html": found.to_html}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "link", "hard"])
@pytest.mark.parametrize("kind", ["csv", "json", "npz", "html"])
def test_what_was_inspected_is_never_written_over(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_folder(tmp_path / "m", GOOD, LLAMA)
    (folder / "link").symlink_to("model.safetensors")
    os.link(folder / "model.safetensors", folder / "hard")
    found = inspect(folder, shuffles=0)
    before = (folder / name).read_bytes()
    with pytest.raises(InputError, match="is what was inspected"):
        outputs(found, folder)[kind](folder / name)
    assert (folder / name).read_bytes() == before
    outputs(found, folder)[kind](folder / f"new.{kind}")


def test_the_command_writes_over_no_input_and_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "m", GOOD, LLAMA)
    for flag in ("--csv", "--save", "--html"):
        other = "--save" if flag == "--csv" else "--csv"
        words = (flag, folder / "model.safetensors", other, tmp_path / "other")
        assert run(folder, "--shuffles", 0, *words) == 2
        assert not (tmp_path / "other").exists()
        assert "is what was inspected" in capsys.readouterr().err
    assert run(folder, "--shuffles", 0, "--csv", tmp_path / "x", "--save", tmp_path / "m" / ".." / "x") == 2
    assert "two outputs have the same name" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--shuffles", 10**20), ("--shuffles", -1), ("--base", "inf"), ("--base", "nan")])
def test_options_out_of_range_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...]
) -> None:
    assert run(write_folder(tmp_path / "m", GOOD, LLAMA), *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --------------------------------------------------------------------------------------------------------- amounts
def sparse_norms(folder: Path, count: int, width: int, dtype: str = "F8_E4M3") -> Path:
    """Norms that cost nothing on disk."""
    rows = {NAME.replace("{l}", str(i)): {"dtype": dtype, "shape": [width]} for i in range(count)}
    for i, row in enumerate(rows.values()):
        row["data_offsets"] = [i * width, (i + 1) * width]  # type: ignore[assignment]
    text = json.dumps(rows).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + count * width)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": count}))
    return folder


@pytest.mark.parametrize(("count", "width"), [(20, 1 << 20), (20_001, 1)])
def test_more_norms_than_any_model_has_are_not_read(tmp_path: Path, count: int, width: int) -> None:
    folder = sparse_norms(tmp_path / "m", count, width)
    for look in (inspect, check):
        with pytest.raises(InputError, match=r"norm tensors with .* numbers; at most"):
            look(folder)


def test_many_towers_and_dtypes_make_few_remarks(tmp_path: Path) -> None:
    towers = {f"t{n}.layers.0.input_layernorm.weight": np.ones(2) for n in range(200)}
    found = inspect(raw_folder(tmp_path / "m", {**GOOD, **towers}, LLAMA), shuffles=0)
    assert len(found.table.notes) < 30
    assert any("and 188 more" in note for note in found.table.notes)
