"""Models on disk: a folder, a file, shards, a run; all through one interface."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensor_files import CONFIG, framed, gguf_bytes, safetensors_bytes, tiny_llama, write_model

from layerrope.errors import InputError
from layerrope.tensors import open_source
from layerrope.tensors.blobs import LocalFile
from layerrope.tensors.places import safe_name


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("start", ["folder", "file"])
def test_a_folder_and_any_of_its_files_give_the_same_tensors(tmp_path: Path, shards: int, start: str) -> None:
    tensors = tiny_llama()
    folder = write_model(tmp_path / "m", tensors, shards)
    files = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.index.json"))
    for path in [folder] if start == "folder" else files:
        source = open_source(path)
        assert (source.format, source.config) == ("safetensors", CONFIG)
        assert set(source.names) == set(tensors)
        read = source.read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
        assert (source.spent.bytes, source.spent.requests) == (0, 0)


def test_a_path_that_is_not_there_is_one_line() -> None:
    with pytest.raises(InputError, match="no such file or folder") as caught:
        open_source("./nowhere/model.safetensors")
    assert "\n" not in str(caught.value)


def test_the_newest_readable_step_of_a_run_is_taken_and_broken_ones_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_model(run, {})
    (run / "model.safetensors").unlink()
    for step in (9, 10, 11):
        write_model(run / f"checkpoints/step-{step}", {"norm": np.full(2, step, np.float32)})
    (run / "checkpoints/step-12").mkdir()
    whole = safetensors_bytes({"norm": np.zeros(2, np.float32)})
    (run / "checkpoints/step-11/model.safetensors").write_bytes(whole[:-3])
    for path in (run, run / "checkpoints"):
        source = open_source(path)
        assert (source.format, source.config, source.label) == ("run", CONFIG, f"{path}@step-10")
        assert source.read(["norm"])["norm"].tolist() == [10, 10]
        assert [note.split(":")[0] for note in source.notes] == ["skipped step-12", "skipped step-11"]
    source = open_source(run / "checkpoints/step-9")
    assert (source.format, source.config, source.notes) == ("run", CONFIG, [])
    assert source.read(["norm"])["norm"].tolist() == [9, 9]


def refusal(path: Path) -> str:
    """The one line that refuses `path`; it comes in under a second."""
    started = time.perf_counter()
    with pytest.raises(InputError) as caught:
        open_source(path)
    assert time.perf_counter() - started < 1
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_run_without_a_sound_step_is_refused(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"run/checkpoints/step-{step}").mkdir(parents=True)
    assert "no checkpoint that can be read: skipped step-2" in refusal(tmp_path / "run")


def test_a_path_on_disk_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no revision 'main'"):
        open_source(write_model(tmp_path / "m", {}), revision="main")


# -- which files make up the model ----------------------------------------------------------------------------------


def test_model_safetensors_wins_over_what_lies_beside_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"norm": np.zeros(2, np.float32)})
    (folder / "optimizer.safetensors").write_bytes(safetensors_bytes({"m": np.ones(2, np.float32)}))
    (folder / "m.gguf").write_bytes(gguf_bytes({}, {}))
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert set(open_source(folder).names) == {"norm"}


def test_a_numbered_set_without_an_index_is_whole(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tensors := tiny_llama(), shards=3)
    (folder / "model.safetensors.index.json").unlink()
    for start in (folder, folder / "model-00002-of-00003.safetensors"):
        assert set(open_source(start).names) == set(tensors)
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert "lacks model-00003-of-00003.safetensors" in refusal(folder)


def test_several_models_in_a_folder_are_listed(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors"):
        (tmp_path / name).write_bytes(safetensors_bytes({}))
    assert "holds 2 models, so name one file of it: a.safetensors, b.safetensors" in refusal(tmp_path)


def test_an_empty_folder_and_an_empty_index_are_refused(tmp_path: Path) -> None:
    assert "holds no .safetensors and no .gguf file" in refusal(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for text, message in {
        "{}": "no weight_map",
        '{"weight_map": {}}': "no weight_map",
        '{"weight_map": {"a": 1}}': "a file name that is no text",
        '{"weight_map": {"a": ["x"]}}': "a file name that is no text",
        "[1]": "holds no JSON object",
        "{": "is not JSON",
        "[" * 100_000: "is not JSON",
    }.items():
        index.write_text(text)
        assert message in refusal(tmp_path)


def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tiny_llama(), shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.wait"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    assert "puts tensor model.norm.wait into model-00001-of-00002.safetensors, which does not hold it" in refusal(
        folder
    )


def test_one_tensor_in_two_files_needs_an_index(tmp_path: Path) -> None:
    """The index says which copy counts; without one nobody can."""
    for no in (1, 2):
        data = safetensors_bytes({"tied": np.full(1, no, np.float32), f"w{no}": np.zeros(1, np.float32)})
        (tmp_path / f"model-0000{no}-of-00002.safetensors").write_bytes(data)
    assert "tensor tied is in" in refusal(tmp_path)
    weight_map = {"tied": "model-00001-of-00002.safetensors", "w2": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = open_source(tmp_path)
    assert (source.read(["tied"])["tied"][0], set(source.names)) == (1, {"tied", "w1", "w2"})


# -- what is never opened -------------------------------------------------------------------------------------------

HOSTILE_NAMES = [
    "../x.safetensors",
    "/etc/passwd",
    "a/../../x",
    "..",
    "",
    "C:\\x",
    "a\\b",
    "a\0b",
    "a\nb",
    "x" * 2000,
    7,
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_that_leave_the_folder_are_refused(name: object) -> None:
    with pytest.raises(InputError, match="not a plain name inside its own folder"):
        safe_name(name, "index.json")


@pytest.mark.parametrize("name", ["x.safetensors", "a/b.safetensors", "ä.gguf", "..x", "a b"])
def test_names_inside_the_folder_are_kept(name: str) -> None:
    assert safe_name(name, "index.json") == name


@pytest.mark.parametrize("how", ["dots", "absolute", "link", "folder link"])
def test_an_index_cannot_reach_outside_its_folder(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = write_model(tmp_path / "outside", {"norm": np.zeros(2, np.float32)})
    folder = tmp_path / "m"
    folder.mkdir()
    target = {"dots": "../outside/model.safetensors", "absolute": str(outside / "model.safetensors")}
    target |= {"link": "link.safetensors", "folder link": "sub/model.safetensors"}
    (folder / "link.safetensors").symlink_to(outside / "model.safetensors")
    (folder / "sub").symlink_to(outside)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm": target[how]}}))
    opened: list[Path] = []
    reading = LocalFile.read
    monkeypatch.setattr(LocalFile, "read", lambda self, *span: opened.append(self.path) or reading(self, *span))
    assert ("will not be opened" if how in ("dots", "absolute") else "leads out of its folder") in refusal(folder)
    assert all(path.parent == folder for path in opened)


def test_links_inside_a_folder_and_to_a_named_file_are_followed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"norm": np.zeros(2, np.float32)})
    (folder / "model.safetensors").rename(folder / "real.bytes")
    (folder / "model.safetensors").symlink_to("real.bytes")
    (tmp_path / "elsewhere.safetensors").symlink_to(folder / "real.bytes")
    (tmp_path / "linked").symlink_to(folder)
    for path in (folder, tmp_path / "elsewhere.safetensors", tmp_path / "linked"):
        assert set(open_source(path).names) == {"norm"}


class Touch:
    """Unpickling an instance creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


PICKLED_NAMES = [
    "pytorch_model.bin",
    "model.pt",
    "model.pth",
    "last.ckpt",
    "model.pkl",
    "weights.npy",
    "model.safetensors",
]


@pytest.mark.parametrize("name", [*PICKLED_NAMES, "model.gguf", "config.json", "model.safetensors.index.json"])
def test_a_pickle_under_any_name_is_never_opened(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    folder = tmp_path / "m"
    folder.mkdir()
    if name == "config.json":
        write_model(folder, {"norm": np.zeros(2, np.float32)})
    (folder / name).write_bytes(pickle.dumps({"weight": Touch(marker)}))
    assert pickle.loads((folder / name).read_bytes()) == {"weight": None}
    marker.rmdir()
    for path in (folder, folder / name):
        said = refusal(path)
        assert name in said
    assert not marker.exists()


def test_the_refusal_of_a_pickle_names_the_alternative(tmp_path: Path) -> None:
    for name in PICKLED_NAMES[:-1]:
        (tmp_path / name).write_bytes(pickle.dumps({}))
        assert ".safetensors" in refusal(tmp_path / name)


def test_what_is_no_regular_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "not a regular file" in refusal(tmp_path)
    assert "not a regular file" in refusal(tmp_path / "model.safetensors")
    assert "not a regular file" in refusal(Path("/dev/zero"))
    (tmp_path / "gone.safetensors").symlink_to("nowhere")
    assert "No such file" in refusal(tmp_path / "gone.safetensors")
    (tmp_path / "d.safetensors").mkdir()
    assert "holds no" in refusal(tmp_path / "d.safetensors")


def test_a_file_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"norm": np.zeros(2, np.float32)}))
    source = open_source(path)
    path.write_bytes(safetensors_bytes({"norm": np.zeros(3, np.float32)}))
    with pytest.raises(InputError, match="changed while it was being read"):
        source.read(["norm"])


@pytest.mark.parametrize("by", ["fifo", "link", "folder", "copy", "nothing"])
def test_a_file_swapped_between_header_and_norms_is_noticed(tmp_path: Path, by: str) -> None:
    """Also for one of the same size and time, and for what would be waited on for ever."""
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    path.write_bytes(safetensors_bytes({"norm": np.zeros(2, np.float32)}))
    other.write_bytes(safetensors_bytes({"norm": np.ones(2, np.float32)}))
    was = path.stat()
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    source = open_source(path)
    path.unlink()
    swap = {
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(other),
        "folder": path.mkdir,
        "copy": lambda: other.rename(path),
        "nothing": lambda: None,
    }
    swap[by]()
    with pytest.raises(InputError, match=r"changed while it was being read|cannot read"):
        source.read(["norm"])


@pytest.mark.parametrize("link", ["checkpoints", "checkpoints/step-5"])
def test_links_do_not_lead_out_of_a_run(tmp_path: Path, link: str) -> None:
    outside = write_model(tmp_path / "outside/step-5", {"norm": np.zeros(2, np.float32)})
    run = tmp_path / "run"
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(outside.parent if link == "checkpoints" else outside)
    for path in (run, run / "checkpoints", run / "checkpoints/step-5"):
        assert "leads out of its folder" in refusal(path)
    within = write_model(run / "kept/step-7", {"norm": np.zeros(2, np.float32)})
    (run / link).unlink()
    (run / link).symlink_to(within.parent if link == "checkpoints" else within)
    assert set(open_source(run).names) == {"norm"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.PTH", "a/b.ckpt"])
def test_an_index_that_names_a_pickle_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps({"norm": 1}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm": name}}))
    said = refusal(tmp_path)
    assert "run code hidden in it" in said
    assert name in said


def test_files_that_tensors_come_from_are_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tiny_llama(), shards=2)
    shards = {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    found = {p.name for p in open_source(folder).files()}
    assert found == {*shards, "model.safetensors.index.json", "config.json"}


@pytest.mark.parametrize("place", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("filler", ["[],", "1,", "{},"])
def test_json_that_would_grow_is_refused_before_it_does(tmp_path: Path, place: str, filler: str) -> None:
    folder = write_model(tmp_path / "m", tiny_llama())
    (folder / place).write_text('{"a":[' + filler * 2_100_000 + "0]}")
    assert "are read" in refusal(folder)


def test_names_that_could_command_a_terminal_are_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "\x1b[31mred"
    write_model(folder, {"\x1b]0;title\x07": np.zeros(2, np.float32)})
    source = open_source(folder)
    assert source.label.isprintable()
    assert "\x1b]0;title\x07" in source.names
    with pytest.raises(InputError, match=r"no tensor .*\\x1b\]0;titel") as caught:
        source.read(["\x1b]0;titel\x07"])
    assert str(caught.value).isprintable()


# -- cost -------------------------------------------------------------------------------------------------------------


def write_sparse_7b(folder: Path) -> None:
    """LLaMA-2 7B's tensors in two sparse shards: 13.5 GB that take some KB on disk."""
    folder.mkdir()
    shapes = {"model.embed_tokens.weight": (32000, 4096), "lm_head.weight": (32000, 4096), "model.norm.weight": (4096,)}
    for layer in range(32):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{m}_proj.weight": (4096, 4096) for m in "qkvo"}
        shapes |= {f"{at}.mlp.{m}_proj.weight": (11008, 4096) for m in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (4096, 11008)
        shapes |= {f"{at}.{m}_layernorm.weight": (4096,) for m in ("input", "post_attention")}
    weight_map = {}
    for no, names in enumerate((list(shapes)[::2], list(shapes)[1::2]), 1):
        file = f"model-{no:05d}-of-00002.safetensors"
        header, at = {}, 0
        for name in names:
            end = at + 2 * int(np.prod(shapes[name]))
            header[name] = {"dtype": "F16", "shape": shapes[name], "data_offsets": [at, end]}
            at = end
        start = framed(json.dumps(header).encode())
        with (folder / file).open("wb") as out:
            out.write(start)
            out.truncate(len(start) + at)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_7b_model_on_disk_takes_under_a_second(tmp_path: Path) -> None:
    write_sparse_7b(tmp_path / "7b")
    started = time.perf_counter()
    source = open_source(tmp_path / "7b")
    norms = source.read(name for name in source.names if "norm" in name)
    assert time.perf_counter() - started < 1
    assert len(norms) == 65
    assert sum(info.nbytes for info in source.names.values()) > 13_000_000_000


def test_the_package_loads_without_torch_and_without_the_hub() -> None:
    code = "import sys, layerrope.tensors; print([m for m in ('torch', 'huggingface_hub', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
