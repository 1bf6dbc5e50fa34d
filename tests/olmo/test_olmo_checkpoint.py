"""OLMo-core checkpoints as models of this package, without OLMo-core: exact, and safe on hostile files.

`tests/data/olmo` was written by OLMo-core 3.0.0 on two ranks (`make_olmo_data.py`), with the logits it computes.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerrope import cli
from layerrope.errors import InputError
from layerrope.exporting.export import export
from layerrope.interop.dcp import DcpFolder
from layerrope.interop.olmo_checkpoint import read_olmo
from layerrope.interop.olmo_names import read_olmo_config
from layerrope.loading import load_lm

DATA = Path(__file__).parents[1] / "data" / "olmo"
STEP = DATA / "step3"
IDS = torch.arange(16)[None] % 13


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(STEP, tmp_path / "step3"))


def metadata(step: Path) -> Path:
    return step / "model_and_optim" / ".metadata"


# ------------------------------------------------------------------------------------------------------------ reading
def test_an_lm_computes_what_olmo_core_did() -> None:
    model = load_lm(STEP).model
    assert (model.config.scheme, model.config.n_kv_head, model.config.seq_len) == ("layerrope", 2, 16)
    wanted = torch.tensor(json.loads((DATA / "logits.json").read_text()))
    torch.testing.assert_close(model(IDS)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "layerrope"])
def test_it_is_exported_with_a_proof(kind: str, tmp_path: Path) -> None:
    assert cli.main(["export", str(STEP), "--to", str(tmp_path / kind), "--as", kind, "--reader", "plain"]) == 0
    proof = json.loads((tmp_path / kind / "proof.json").read_text())
    assert proof["passed"]
    assert proof["format"] == kind
    torch.testing.assert_close(load_lm(tmp_path / kind).model(IDS), load_lm(STEP).model(IDS), rtol=1e-4, atol=1e-5)


def test_every_command_that_reads_a_model_reads_it_as_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Converted, it gives the very numbers that the checkpoint gives; `inspect` wants it converted."""
    own, text = str(tmp_path / "own"), str(tmp_path / "text.txt")
    (tmp_path / "text.txt").write_text("abcdefgh" * 40)
    assert cli.main(["export", str(STEP), "--to", own, "--as", "layerrope", "--reader", "plain"]) == 0
    model, mine = load_lm(STEP).model, load_lm(own).model
    assert model.config == mine.config
    assert all(torch.equal(t, mine.state_dict()[name]) for name, t in model.state_dict().items())
    assert cli.main(["inspect", str(STEP)]) == 2
    assert "--as layerrope" in capsys.readouterr().err
    assert cli.main(["inspect", own, "--json"]) == 0
    assert cli.main(["export", own, "--to", str(tmp_path / "llama"), "--reader", "plain"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", own, "--numerics", "--text", text, "--tokens", "64", "--json"]) == 2
    assert "tokenizer" in capsys.readouterr().err  # the checkpoint does not name one


def test_the_tokenizer_is_the_one_that_config_names(step: Path) -> None:
    assert "does not say which tokenizer" in load_lm(step).why_no_tokenizer
    told = json.loads((step / "config.json").read_text())
    (step / "config.json").write_text(json.dumps(told | {"data": {"tokenizer": "bytes"}}))
    tokenizer = load_lm(step).tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == 257


def test_plain_torch_checkpoints_are_read_too(tmp_path: Path) -> None:
    saved = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(2).bfloat16(), "word": "text"}
    dcp.save(saved, checkpoint_id=str(tmp_path), no_dist=True)
    folder = DcpFolder(tmp_path)
    assert sorted(folder.saved) == ["a", "b", "c"]
    for name in folder.saved:
        assert torch.equal(folder.read(name), saved[name])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ hostile
class Bomb:
    """Unpickled by an ordinary reader, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def refused(step: Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_lm(step)
    assert "\n" not in str(caught.value)


def test_metadata_that_runs_code_is_refused_before_it_does(step: Path, tmp_path: Path) -> None:
    metadata(step).write_bytes(pickle.dumps(Bomb(tmp_path / "hit")))
    refused(step, "names posix.mkdir")
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("os", "system"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("builtins", "setattr"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 4])
def test_no_other_name_is_known(step: Path, module: str, name: str, protocol: int) -> None:
    old = f"c{module}\n{name}\n."
    new = (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module.encode()
        + b"\x8c"
        + bytes([len(name)])
        + name.encode()
        + b"\x93."
    )
    metadata(step).write_bytes(new if protocol else old.encode())
    refused(step, f"names {module}.{name}")


class Reach:
    """Unpickled by an ordinary reader, the attribute `name` of `owner`."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


@pytest.mark.parametrize("owner", [torch.Size, "text", torch.float32])
def test_getattr_names_members_of_an_enum_and_reaches_nothing(step: Path, owner: Any) -> None:
    """Python before 3.11.4 pickles an enum's member as getattr(enum, name)."""
    metadata(step).write_bytes(pickle.dumps(Reach(owner, "__class__")))
    refused(step, "takes attributes of something else than its enum")


def test_metadata_of_an_older_python_is_read(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    class Old(pickle._Pickler):  # type: ignore[name-defined] # the one in Python, which takes a reducer for enums
        def reducer_override(self, thing: Any) -> Any:
            is_enum = isinstance(thing, _MEM_FORMAT_ENCODING)
            return (getattr, (type(thing), thing.name)) if is_enum else NotImplemented

    saved = {"a": torch.randn(3, 4)}
    dcp.save(saved, checkpoint_id=str(tmp_path), no_dist=True)
    file = tmp_path / ".metadata"
    found = pickle.loads(file.read_bytes())
    with file.open("wb") as opened:
        Old(opened).dump(found)
    assert b"getattr" in file.read_bytes()
    assert torch.equal(DcpFolder(tmp_path).read("a"), saved["a"])


def test_a_tensor_that_runs_code_is_refused_before_it_does(step: Path, tmp_path: Path) -> None:
    folder = DcpFolder(step / "model_and_optim")
    piece = folder.saved["model.gains.gamma"].pieces[0]
    file = step / "model_and_optim" / piece.file
    data = bytearray(file.read_bytes())
    bomb = pickle.dumps(Bomb(tmp_path / "hit"))
    data[piece.offset : piece.offset + piece.length] = bomb.ljust(piece.length, b"\0")
    file.write_bytes(data)
    refused(step, "tensor model.gains.gamma cannot be read")
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m"])
def test_names_that_would_leave_their_line_do_not(name: str, tmp_path: Path) -> None:
    written = name.encode()
    pickled = b"\x80\x04\x8c" + bytes([len(written)]) + written + b"\x8c\x01x\x93."
    (tmp_path / ".metadata").write_bytes(pickled)
    with pytest.raises(InputError) as caught:
        DcpFolder(tmp_path)
    assert str(caught.value).isprintable()


def test_a_missing_shard_is_named(step: Path) -> None:
    (step / "model_and_optim" / "__1_3.distcp").unlink()
    refused(step, "__1_3.distcp")


def test_a_shard_that_is_cut_short_is_named(step: Path) -> None:
    file = step / "model_and_optim" / "__0_1.distcp"
    file.write_bytes(file.read_bytes()[:-40])
    refused(step, "cut short|cannot be read")


@pytest.mark.parametrize("name", ["config.json", "model_and_optim/.metadata", "model_and_optim/__0_1.distcp"])
def test_a_pipe_is_no_file(step: Path, name: str) -> None:
    (step / name).unlink()
    os.mkfifo(step / name)
    refused(step, f"{name} is (no|not a) regular file")


@pytest.mark.parametrize("name", [".metadata", "__0_1.distcp"])
def test_links_that_lead_out_of_the_folder_are_refused(step: Path, tmp_path: Path, name: str) -> None:
    file = step / "model_and_optim" / name
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    refused(step, "a link that leads out")


@pytest.mark.parametrize("where", ["../../secret", "/etc/hostname", "a/b"])
def test_pieces_outside_of_the_folder_are_refused(where: str, tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(2)}, checkpoint_id=str(tmp_path), no_dist=True)
    found = pickle.loads((tmp_path / ".metadata").read_bytes())  # our own file, from the line before
    for place in found.storage_data.values():
        place.relative_path = where
    (tmp_path / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InputError, match="no plain file of the folder"):
        DcpFolder(tmp_path)


def test_pieces_that_leave_gaps_are_refused(tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(4)}, checkpoint_id=str(tmp_path), no_dist=True)
    found = pickle.loads((tmp_path / ".metadata").read_bytes())  # our own file, from the line before
    found.state_dict_metadata["a"].size = torch.Size([6])
    (tmp_path / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InputError, match="leave gaps"):
        DcpFolder(tmp_path).read("a")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_metadata_is_refused_in_one_line_or_read_right(tmp_path: Path, data: st.DataObject) -> None:
    whole = metadata(STEP).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    damaged = whole[:at] if cut else whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    (tmp_path / ".metadata").write_bytes(damaged)
    said = ""
    try:
        found = [size for saved in DcpFolder(tmp_path).saved.values() for size in saved.shape]
    except InputError as error:
        said, found = str(error), []
    assert "\n" not in said
    assert all(size >= 0 for size in found)


# ------------------------------------------------------------------------------------------------------------- config
CONFIG = json.loads((STEP / "config.json").read_text())["model"]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The model's configuration with one field changed; `None` removes it."""
    copied = json.loads(json.dumps(CONFIG))
    *parents, last = path.split(".")
    place = copied
    for name in parents:
        place = place[name]
    place[last] = value
    return copied


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("block", None, "model.block"),
        ("block", [], "model.block"),
        ("n_layers", "2", "model.n_layers"),
        ("n_layers", True, "model.n_layers"),
        ("n_layers", 10**9, "n_layer must be at most"),
        ("block.name", "moe", None),
        ("scheme", "no-such", "no-such"),
        ("scheme", "hc", None),
        ("name", "moe", "model.name"),
        ("embed_scale", 2.0, "embed_scale"),
        ("block.dropout", 0.1, "dropout"),
        ("block.sequence_mixer.qk_norm", {"name": "rms"}, "qk_norm"),
        ("block.sequence_mixer.bias", None, "bias"),
        ("block.sequence_mixer.head_dim", 64, "head_dim"),
        ("block.sequence_mixer.rope.scaling", {"factor": 2}, "scaling"),
        ("block.layer_norm.name", "default", "layer_norm.name"),
        ("block.layer_norm.eps", "x", "eps"),
        ("block.feed_forward.activation", "gelu_tanh", "activation"),
        ("lm_head.bias", True, "lm_head.bias"),
    ],
)
def test_what_an_lm_is_not_is_refused_by_name(step: Path, path: str, value: Any, named: str | None) -> None:
    told = {"model": changed(path, value), "train_module": {"max_sequence_length": 16}}
    (step / "config.json").write_text(json.dumps(told))
    if path == "block.name":  # the scheme stands in for OLMo-core's own block types
        assert read_olmo_config(told["model"], 16).scheme == "layerrope"
        return
    refused(step, named or "tensor")


@pytest.mark.parametrize("told", [None, [], {}, {"model": 3}, {"model": {}}])
def test_a_config_that_is_none_is_refused(step: Path, told: Any) -> None:
    (step / "config.json").write_text(json.dumps(told))
    refused(step, "config.json")


def test_a_checkpoint_without_config_says_what_writes_it(step: Path) -> None:
    (step / "config.json").unlink()
    with pytest.raises(InputError, match="ConfigSaverCallback"):
        read_olmo(step)


def test_export_takes_the_model_too(tmp_path: Path) -> None:
    assert export(read_olmo(STEP).model, tmp_path / "made", reader="plain").proof["format"] == "llama"
