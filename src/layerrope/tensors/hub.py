"""A Hugging Face repository as a place: the local cache first, then the Hub at one fixed commit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, printable
from layerrope.tensors.connections import origin_of
from layerrope.tensors.http import Client
from layerrope.tensors.places import Folder, Place, safe_name
from layerrope.tensors.ranges import RemoteFile
from layerrope.tensors.shards import read_json

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_ID = re.compile(rf"(?P<repo>{_PART}(?:/{_PART})?)(?:/(?P<file>[^@]+))?(?:@(?P<revision>[^@]+))?", re.ASCII)
_REVISION = re.compile(r"[\w.+-][\w.+/-]{0,250}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: First words of a Hub path that are no organisation.
_NOT_MODELS = ("api", "datasets", "spaces", "docs", "papers", "collections", "blog")


@dataclass(frozen=True)
class HubId:
    """`org/name`, perhaps a file in it, perhaps a branch, tag or commit."""

    repo: str
    file: str = ""
    revision: str | None = None

    @property
    def label(self) -> str:
        where = f"{self.repo}/{self.file}" if self.file else self.repo
        return f"{where}@{self.revision}" if self.revision else where


def parse_id(text: str, revision: str | None = None) -> HubId | None:
    """`org/name[/FILE][@revision]` as a HubId; None where `text` is none. A `revision` of its own must agree."""
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise InputError(f"{printable(revision)!r} is no name of a branch, tag or commit: check it")
    match = _ID.fullmatch(text)
    if match is None or ".." in text or "//" in text or "--" in match["repo"]:
        return None
    if revision and match["revision"] and revision != match["revision"]:
        raise InputError(f"{printable(text)} names another revision than revision={revision!r}: give one of them")
    file = safe_name(match["file"], printable(text)) if match["file"] else ""
    return HubId(match["repo"], file, match["revision"] or revision)


def parse_page(url: str, endpoint: str, revision: str | None = None) -> HubId | None:
    """The model that a page or file address of the Hub at `endpoint` belongs to, None for any other address."""
    address = urlsplit(url)
    if origin_of(url) != origin_of(endpoint) or address.query not in ("", "download=true"):
        return None
    parts = unquote(address.path).strip("/").split("/")
    if len(parts) < 2 or parts[0] in _NOT_MODELS:
        return None
    repo, verb, rest = "/".join(parts[:2]), parts[2:3], parts[3:]
    if not verb:
        return parse_id(repo, revision)
    if verb[0] not in ("tree", "blob", "resolve", "raw") or not rest:
        return None
    found = parse_id("/".join([repo, *rest[1:]]), revision)
    return None if found is None else HubId(found.repo, found.file, revision or rest[0])


def cached_snapshot(hub_id: HubId, cache_dir: Any, revision: str | None = None) -> Folder | None:
    """The cached snapshot of the model at `revision` (else the id's, else main), whole or not; None without one.

    The cache is models--ORG--NAME with refs/REVISION (a commit's name), snapshots/COMMIT/ and blobs/; a ref that
    is no commit, and a link that leads out, are not followed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    repo = Path(cache_dir or HF_HUB_CACHE) / f"models--{hub_id.repo.replace('/', '--')}"
    commit = revision or hub_id.revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            ref = Folder(repo).open(f"refs/{commit}")
        except InputError:  # no file, or a link that leads out
            return None
        commit = ref.read(0, min(ref.size, 100)).decode("ascii", "replace").strip() if ref else ""
    snapshot = repo / "snapshots" / commit
    return Folder(snapshot) if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def cached_folder(hub_id: HubId, cache_dir: Any) -> Folder | None:
    """The cached snapshot of the model; None where it lacks every file that a model begins with."""
    wanted = [hub_id.file] if hub_id.file else ["model.safetensors.index.json", "model.safetensors", "config.json"]
    snapshot = cached_snapshot(hub_id, cache_dir)
    return snapshot if snapshot and any((snapshot.path / name).exists() for name in wanted) else None


class HubRepo(Place):
    """A repository at the commit that its revision names now; files that the cache holds are not fetched."""

    def __init__(self, client: Client, hub_id: HubId, endpoint: str, cache_dir: Any) -> None:
        """Asks the Hub for the commit and the list of files (one request). Raises InputError."""
        self.client, self.hub_id, self.endpoint, self.cache_dir = client, hub_id, endpoint, cache_dir
        self.label = hub_id.label
        revision = quote(hub_id.revision or "main", safe="")
        info = read_json(RemoteFile(client, f"{endpoint}/api/models/{hub_id.repo}/revision/{revision}"))
        self.commit = str(info.get("sha"))
        if not _COMMIT.fullmatch(self.commit):
            raise InputError(f"{endpoint} told no commit of {self.label}: is that the address of a Hub?")
        self.cached: list[str] = []
        self._names = _siblings(info.get("siblings"))

    def listing(self) -> list[str]:
        return self._names

    def open(self, name: str) -> Blob | None:
        from huggingface_hub import hf_hub_url

        if name not in self._names:
            return None
        if cached := self._cached(name):
            self.cached.append(name)
            return cached
        url = hf_hub_url(self.hub_id.repo, name, revision=self.commit, endpoint=self.endpoint)
        return RemoteFile(self.client, url)

    def _cached(self, name: str) -> Blob | None:
        snapshot = cached_snapshot(self.hub_id, self.cache_dir, self.commit)
        try:
            return snapshot.open(name) if snapshot else None
        except InputError:  # a link that leads out of the cache, or no file: the Hub has it
            return None


def _siblings(rows: Any) -> list[str]:
    """The file names of a model's listing; what no file of a model can be called is left out."""
    names = [row.get("rfilename") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return sorted(name for name in names if isinstance(name, str) and name.isprintable() and len(name) <= 1024)
