"""Models on a Hub (a loopback one): commits, caches, tokens, and one model through every kind of source."""

from __future__ import annotations

import json
import os
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from loopback import Loopback, Reply, Request, ranged
from tensor_files import CONFIG, gguf_bytes, safetensors_bytes, tiny_llama, write_model

from layerrope.errors import InputError
from layerrope.tensors import TensorSource, open_source, opening
from layerrope.tensors.hub import HubId, parse_id, parse_page

COMMITS = {"main": "a" * 40, "v1.0": "b" * 40, "pr/7": "c" * 40}


class Hub:
    """A repository on a loopback server: its API, files by commit, large ones redirected to another host."""

    def __init__(self, server: Loopback, repo: str = "org/tiny") -> None:
        self.server, self.repo = server, repo

    def publish(self, files: dict[str, bytes], revision: str = "main") -> None:
        commit = COMMITS[revision]
        info = {"id": self.repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        for name in (revision, commit):
            self.server.put(f"/api/models/{self.repo}/revision/{name}", json.dumps(info).encode())
        for name, data in files.items():
            self.server.put(f"/cdn/{commit}/{name}", data)
            self.server.put(f"/{self.repo}/resolve/{commit}/{name}", data, self._answer(commit, name))

    def _answer(self, commit: str, name: str):
        if name.endswith(".json"):
            return ranged
        target = f"{self.server.other_url}/cdn/{commit}/{name}?signed=yes"
        return lambda request: Reply(302, headers={"Location": target})

    def open(self, text: str, cache: Path, **options: str) -> TensorSource:
        return open_source(text, endpoint=self.server.url, cache_dir=cache, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def cache(folder: Path, cache_dir: Path, repo: str = "org/tiny", revision: str = "main") -> Path:
    """A Hugging Face cache that holds the files of `folder`: blobs, and a snapshot of links to them."""
    root = cache_dir / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMITS[revision]
    for made in (root / "blobs", root / "refs", snapshot):
        made.mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(COMMITS[revision])
    for name, data in files_of(folder).items():
        (root / "blobs" / f"hash-of-{name}").write_bytes(data)
        os.symlink(f"../../blobs/hash-of-{name}", snapshot / name)
    return snapshot


@pytest.fixture
def hub(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return Hub(server)


def test_one_model_through_every_source(hub: Hub, tmp_path: Path) -> None:
    """A folder, its file, shards, the cache, the Hub with and without a revision, an address, and GGUF."""
    tensors = tiny_llama()
    folder = write_model(tmp_path / "m", tensors)
    sharded = write_model(tmp_path / "s", tensors, shards=3)
    cache(folder, tmp_path / "cache")
    hub.publish(files_of(sharded))
    hub.publish(files_of(folder), "v1.0")
    hub.server.put("/m/model.safetensors", (folder / "model.safetensors").read_bytes())
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(gguf_bytes(tensors, {"general.architecture": "llama"}))
    empty = tmp_path / "empty"
    sources = [
        open_source(folder),
        open_source(folder / "model.safetensors"),
        open_source(sharded),
        open_source(gguf),
        open_source(hub.server.url + "/m/model.safetensors"),
        hub.open("org/tiny", tmp_path / "cache"),
        hub.open("org/tiny", empty),
        hub.open("org/tiny@v1.0", empty),
        hub.open("org/tiny/model.safetensors@v1.0", empty),
        hub.open(f"{hub.server.url}/org/tiny/blob/v1.0/model.safetensors", empty),
    ]
    for source in sources:
        read = source.read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors), source.label
        assert {name: info.shape for name, info in source.names.items()} == {n: t.shape for n, t in tensors.items()}
        assert (source.spent.bytes > 0) == (source in sources[4:5] + sources[6:])
    assert all(source.config == CONFIG for source in sources[5:])


def test_a_revision_is_pinned_to_its_commit(hub: Hub, tmp_path: Path) -> None:
    for value, revision in enumerate(COMMITS):
        one = {"norm": np.full(2, value, np.float32)}
        hub.publish({"model.safetensors": safetensors_bytes(one)}, revision)
    for value, (revision, commit) in enumerate(COMMITS.items()):
        for options in ({"text": f"org/tiny@{revision}"}, {"text": "org/tiny", "revision": revision}):
            hub.server.log.clear()
            source = hub.open(cache=tmp_path, **options)
            assert source.read(["norm"])["norm"].tolist() == [value, value]
            assert f"read at commit {commit[:12]}" in source.notes
            assert all(commit in r.path for r in hub.server.log[1:])
    with pytest.raises(InputError, match="another revision"):
        hub.open("org/tiny@main", tmp_path, revision="v1.0")


def test_the_token_goes_to_the_hub_and_not_to_its_store(hub: Hub, tmp_path: Path) -> None:
    hub.publish(files_of(write_model(tmp_path / "m", tiny_llama())))
    hub.open("org/tiny", tmp_path, token="hf_secret").read(["model.norm.weight"])
    for request in hub.server.log:
        expected = None if request.path.startswith("/cdn") else "Bearer hf_secret"
        assert request.headers.get("authorization") == expected
    assert any(request.path.startswith("/cdn") for request in hub.server.log)


def test_a_saved_token_is_used_for_its_hub_only(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_saved")
    hub.publish(files_of(write_model(tmp_path / "m", tiny_llama())))
    hub.open("org/tiny", tmp_path)
    assert not any("authorization" in request.headers for request in hub.server.log)  # another Hub than the token's
    hub.server.log.clear()
    hub.open("org/tiny", tmp_path, token="hf_given")
    assert hub.server.log[0].headers["authorization"] == "Bearer hf_given"
    hub.server.put("/elsewhere/model.safetensors", safetensors_bytes(tiny_llama()))
    open_source(hub.server.url + "/elsewhere/model.safetensors")
    assert "authorization" not in hub.server.log[-1].headers
    hub.server.log.clear()
    monkeypatch.setattr(opening, "_default_endpoint", lambda: hub.server.url)
    open_source("org/tiny", cache_dir=tmp_path)
    assert hub.server.log[0].headers["authorization"] == "Bearer hf_saved"


def test_a_whole_cached_copy_needs_no_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tiny_llama()
    cache(write_model(tmp_path / "m", tensors, shards=2), tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = hub.open("org/tiny", tmp_path / "cache")
    assert np.array_equal(source.read(["model.norm.weight"])["model.norm.weight"], tensors["model.norm.weight"])
    assert hub.server.log == []
    assert source.notes == [f"local Hugging Face cache used (commit {'a' * 12})"]
    with pytest.raises(InputError, match="offline mode is on"):
        hub.open("org/tiny@v1.0", tmp_path / "cache")


def test_a_partial_cached_copy_is_completed_from_the_same_commit(hub: Hub, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tensors := tiny_llama(), shards=3)
    hub.publish(files_of(folder))
    snapshot = cache(folder, tmp_path / "cache")
    (snapshot / "model-00002-of-00003.safetensors").unlink()
    source = hub.open("org/tiny", tmp_path / "cache")
    read = source.read(tensors)
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
    fetched = {r.path.rpartition("/")[2].partition("?")[0] for r in hub.server.log[1:]}
    assert fetched == {"model-00002-of-00003.safetensors"}
    assert any("came from the local Hugging Face cache" in note for note in source.notes)


def test_a_cached_copy_of_another_revision_is_not_taken(hub: Hub, tmp_path: Path) -> None:
    old, new = ({"norm": np.full(2, v, np.float32)} for v in (1, 2))
    cache(write_model(tmp_path / "m", old), tmp_path / "cache", revision="v1.0")
    hub.publish({"model.safetensors": safetensors_bytes(new)})
    assert hub.open("org/tiny", tmp_path / "cache").read(["norm"])["norm"].tolist() == [2, 2]
    assert hub.open("org/tiny@v1.0", tmp_path / "cache").read(["norm"])["norm"].tolist() == [1, 1]


@pytest.mark.parametrize("revision", ["/etc/hostname", "../../../secret", "a/../../b", "a//b", "", "\x1b[31m", "a b"])
def test_a_revision_is_never_a_path(hub: Hub, tmp_path: Path, revision: str) -> None:
    hub.publish(files_of(write_model(tmp_path / "m", tiny_llama())))
    with pytest.raises(InputError, match="no name of a branch, tag or commit"):
        hub.open("org/tiny", tmp_path / "cache", revision=revision)
    assert hub.server.log == []


def test_names_in_a_listing_that_are_none_are_left_out(hub: Hub, tmp_path: Path) -> None:
    hub.publish(files_of(write_model(tmp_path / "m", tiny_llama())))
    names = ["\ud800.safetensors", "\x1b[31m.safetensors", "a\n.gguf", "n" * 2000 + ".gguf", 5, None, {"a": 1}]
    listing = [{"rfilename": name} for name in names] + [{"rfilename": "model.safetensors"}, 7]
    info = json.dumps({"sha": COMMITS["main"], "siblings": listing})
    hub.server.put("/api/models/org/tiny/revision/main", info.encode())
    assert set(hub.open("org/tiny", tmp_path / "cache").names) == set(tiny_llama())


def swap_ref(root: Path, how: str) -> None:
    ref = root / "refs" / "main"
    ref.unlink()
    if how == "fifo":
        os.mkfifo(ref)
    elif how == "folder":
        ref.mkdir()
    elif how == "link":
        (root.parent / "outside").write_text("a" * 40)
        ref.symlink_to(root.parent / "outside")
    else:
        ref.write_bytes({"path": b"../../../m", "binary": b"\xff\xfe", "long": b"a" * 100_000, "nul": b"a\0b"}[how])


@pytest.mark.parametrize("how", ["fifo", "folder", "link", "path", "binary", "long", "nul"])
def test_a_ref_of_the_cache_that_is_no_commit_is_not_followed(hub: Hub, tmp_path: Path, how: str) -> None:
    folder = write_model(tmp_path / "m", tiny_llama())
    swap_ref(cache(folder, tmp_path / "cache").parents[1], how)
    hub.publish({"model.safetensors": safetensors_bytes({"norm": np.zeros(2, np.float32)})})
    assert set(hub.open("org/tiny", tmp_path / "cache").names) <= {"norm", *tiny_llama()}
    assert hub.server.log != []


def test_blobs_that_are_a_link_are_not_the_cache_s(hub: Hub, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tiny_llama())
    snapshot = cache(folder, tmp_path / "cache")
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads out of its folder"):
        open_source(snapshot)
    hub.publish({"model.safetensors": safetensors_bytes({"norm": np.zeros(2, np.float32)})})
    assert set(hub.open("org/tiny", tmp_path / "cache").names) == {"norm"}  # from the Hub


def test_one_of_several_gguf_files_is_named(hub: Hub, tmp_path: Path) -> None:
    tensors = tiny_llama()
    data = gguf_bytes(tensors, {"general.architecture": "llama"})
    hub.publish({"README.md": b"#", "tiny.Q4_0.gguf": data, "sub/tiny.Q8_0.gguf": data, "tiny.F16.gguf": data})
    with pytest.raises(InputError, match=r"holds 2 models, so name one file of it: tiny.F16.gguf, tiny.Q4_0.gguf"):
        hub.open("org/tiny", tmp_path)
    for name in ("tiny.Q4_0.gguf", "sub/tiny.Q8_0.gguf"):
        source = hub.open(f"org/tiny/{name}", tmp_path)
        assert (source.format, source.config["general.architecture"]) == ("gguf", "llama")
        assert set(source.names) == set(tensors)


def test_a_repository_of_pickles_is_refused_by_name(hub: Hub, tmp_path: Path) -> None:
    hub.publish({"pytorch_model.bin": b"\x80\x02", "config.json": b"{}"})
    for text in ("org/tiny", "org/tiny/pytorch_model.bin"):
        with pytest.raises(InputError, match=r"pytorch_model\.bin is not opened.*safetensors"):
            hub.open(text, tmp_path)
    assert not any("resolve" in r.path and "pytorch_model" in r.path for r in hub.server.log)


REFUSED = {
    "missing": (Reply(401, headers={"X-Error-Code": "RepoNotFound"}), "private or no such name"),
    "gated": (
        Reply(403, headers={"X-Error-Code": "GatedRepo"}),
        "accept its terms at http://127.0.0.1:[0-9]+/org/tiny ",
    ),
    "no revision": (Reply(404, headers={"X-Error-Code": "RevisionNotFound"}), "check the name and the revision"),
    "not a Hub": (Reply(200, b"{}"), "is that the address of a Hub"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_hub_refuses_comes_with_the_next_step(hub: Hub, tmp_path: Path, kind: str) -> None:
    reply, message = REFUSED[kind]
    hub.server.put("/api/models/org/tiny/revision/main", b"", lambda request: reply)
    with pytest.raises(InputError, match=message):
        hub.open("org/tiny", tmp_path)


def test_a_renamed_repository_is_followed(hub: Hub, tmp_path: Path) -> None:
    hub.publish(files_of(write_model(tmp_path / "m", tiny_llama())))

    def moved(request: Request) -> Reply:
        return Reply(307, headers={"Location": request.path.replace("old/name", "org/tiny")})

    for path in (f"/resolve/{COMMITS['main']}/model.safetensors", f"/resolve/{COMMITS['main']}/config.json"):
        hub.server.put("/old/name" + path, b"", moved)
    hub.server.put("/api/models/old/name/revision/main", b"", moved)
    assert "model.norm.weight" in hub.open("old/name", tmp_path).names


def test_names_in_a_listing_that_leave_the_repository_are_refused(hub: Hub, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    hub.publish({"model.safetensors.index.json": index, "../../x.safetensors": b"x"})
    with pytest.raises(InputError, match="not a plain name"):
        hub.open("org/tiny", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("gpt2", HubId("gpt2")),
        ("org/name@v1", HubId("org/name", "", "v1")),
        ("org/name@refs/pr/1", HubId("org/name", "", "refs/pr/1")),
        ("org/name/a/b.gguf@main", HubId("org/name", "a/b.gguf", "main")),
        ("./org/name", None),
        ("/org/name", None),
        ("org/../name", None),
        ("org/name@", None),
        ("a b/c", None),
        ("", None),
    ],
)
def test_ids(text: str, expected: HubId | None) -> None:
    assert parse_id(text) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name/tree/v1", HubId("org/name", "", "v1")),
        ("org/name/blob/main/a/b.gguf", HubId("org/name", "a/b.gguf", "main")),
        ("org/name/resolve/main/x.safetensors", HubId("org/name", "x.safetensors", "main")),
        ("datasets/org/name", None),
        ("org/name/discussions/1", None),
        ("org", None),
    ],
)
def test_pages(path: str, expected: HubId | None) -> None:
    assert parse_page(f"https://hub.example/{path}", "https://hub.example") == expected
    assert parse_page(f"https://other.example/{path}", "https://hub.example") is None


@pytest.mark.parametrize("text", ["model.safetensors", "runs/../x", "x.gguf", "./a", "/nowhere", "", "a\0b", "é/ü"])
def test_what_is_neither_a_path_nor_an_id_asks_no_server(text: str) -> None:
    with pytest.raises(InputError, match="no such file or folder") as caught:
        open_source(text, endpoint="http://127.0.0.1:1")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("text", "local"), [("run2", True), ("runs/run2", True), ("elsewhere/run2", False)])
def test_a_mistyped_folder_is_said_to_be_missing_first(
    text: str, local: bool, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Hub(server).open(text, tmp_path / "cache")
    assert str(caught.value).startswith(f"no such file or folder: {text}; tried as a Hub id: ") == local
