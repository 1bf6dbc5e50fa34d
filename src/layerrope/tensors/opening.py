"""From what a person typed to a `TensorSource`: a folder, a file, a run, a Hub id or an address."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerrope.errors import InputError
from layerrope.tensors.blobs import LocalFile, printable, redacted
from layerrope.tensors.connections import origin_of
from layerrope.tensors.entries import Spent
from layerrope.tensors.http import Client, shown_url
from layerrope.tensors.hub import HubId, HubRepo, cached_folder, parse_id, parse_page
from layerrope.tensors.layout import find_model, find_step, run_of
from layerrope.tensors.places import Folder, Place
from layerrope.tensors.ranges import RemoteFile
from layerrope.tensors.shards import (
    NUMBERED,
    PICKLES,
    Found,
    is_pickle,
    pickle_refused,
    read_config,
    read_index,
    read_one,
    read_set,
)
from layerrope.tensors.source import TensorSource, in_parallel
from layerrope.tensors.web import WebFolder, tidy_url, web_folder


def open_source(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> TensorSource:
    """Open `source` and read its headers; tensors are read when asked for.

    `source`: a folder or file (safetensors, single or with an index; GGUF, single or split), a training run of
    this package (its newest checkpoint that can be read, or the step-N named), a Hub id `org/name[@revision]` or
    one file of it `org/name/FILE[@revision]`, or an http(s) address of a file or of a folder. What exists on disk
    wins.

    `token` goes to the Hub's (or the address's) own host only; without one, the token that `hf auth login` saved
    is used for the Hub that it is for, and not for another `endpoint`. `endpoint` is the Hub's address, `cache_dir`
    its cache; `timeout` is in seconds, for the server to answer or go on sending. Raises InputError for everything
    that cannot be read.
    """
    text = os.fspath(source)
    if text.lower().startswith(("http://", "https://")):
        return _Remote(token, endpoint, cache_dir, timeout).open_url(tidy_url(text), revision)
    if _exists(text):
        if revision is not None:
            raise InputError(f"{printable(text)} is on this disk, so it has no revision {printable(revision)!r}")
        return _open_path(Path(text))
    hub_id = parse_id(text, revision) if isinstance(source, str) else None
    if hub_id is None or _looks_local(hub_id):
        raise InputError(f"no such file or folder: {redacted(text)}")
    try:
        return _Remote(token, endpoint, cache_dir, timeout).open_hub(hub_id)
    except InputError as error:
        if not _may_be_local(text):
            raise
        raise InputError(f"no such file or folder: {redacted(text)}; tried as a Hub id: {error}") from error


def _may_be_local(text: str) -> bool:
    """Whether a Hub id may rather be a mistyped path: one word, or in a folder that is here."""
    return "/" not in text or Path(text).parent.is_dir()


def _exists(text: str) -> bool:
    try:
        return bool(text) and os.path.lexists(text)
    except ValueError:  # a NUL in the name
        return False


def _looks_local(hub_id: HubId) -> bool:
    """Whether an id without an organisation is rather the name of a file that is missing."""
    return "/" not in hub_id.repo and hub_id.repo.endswith((".safetensors", ".gguf", ".json", *PICKLES))


def _open_path(path: Path) -> TensorSource:
    if not os.path.isdir(path):
        return _open_file(path)
    if run := run_of(path):
        return _open_run(path, *run)
    folder = Folder(path)
    return _together(str(path), lambda: find_model(folder), folder)


def _open_run(path: Path, run: Path, candidates: list[Path]) -> TensorSource:
    step, found = find_step(run, candidates)
    label = str(path) if path.name == step.name else f"{path}@{step.name}"
    folder = Folder(run)
    source = TensorSource(label, "run", found.entries, read_config(folder), notes=found.notes)
    source.beside += folder.opened
    return source


def _open_file(path: Path) -> TensorSource:
    folder = Folder(path.parent)
    if path.name.endswith(".index.json") or is_pickle(path.name) or NUMBERED.fullmatch(path.name):
        return _together(str(path), lambda: _named(folder, path.name), folder)
    return _together(str(path), lambda: read_one(LocalFile(path)), folder)


def _named(place: Place, name: str) -> Found:
    """The model that the file `name` belongs to: an index, a part of a set, or itself."""
    if is_pickle(name):
        raise pickle_refused(f"{place.label.rstrip('/')}/{name}")
    if name.endswith(".index.json"):
        return read_index(place, name)
    match = NUMBERED.fullmatch(name)
    if match and match["ending"] == ".safetensors":
        index = f"{match['stem']}.safetensors.index.json"
        if place.open(index) is not None:
            return read_index(place, index)
    return read_set(place, name)


def _together(
    label: str,
    read: Callable[[], Found],
    place: Place | None,
    folder: str = "",
    spent: Spent | None = None,
) -> TensorSource:
    """The source of what `read` finds, with the config.json beside it (in `folder` of `place`) or GGUF's metadata."""
    side_by_side = 2 if spent is not None else 1
    jobs: list[Any] = [(read, ())] + ([(read_config, (place, folder))] if place is not None else [])
    found, *configs = in_parallel(jobs, side_by_side)
    config = found.metadata if found.format == "gguf" else (configs or [{}])[0]
    notes = [*found.notes, *_unranged(found)]
    source = TensorSource(label, found.format, found.entries, config, spent, notes)
    source.beside += place.opened if isinstance(place, Folder) else []
    return source


def _unranged(found: Found) -> list[str]:
    """That whole files were downloaded, where a server knows no ranges."""
    blobs = {id(e.blob): e.blob for e in found.entries.values()}.values()
    whole = [b.size for b in blobs if isinstance(b, RemoteFile) and b.came_whole]
    files = "a whole file was" if len(whole) == 1 else f"{len(whole)} whole files were"
    return [f"the server ignores byte ranges: {files} downloaded, {sum(whole):,} bytes"] if whole else []


@dataclass
class _Remote:
    """What every remote source needs to know."""

    token: str | None
    endpoint: str | None
    cache_dir: str | os.PathLike[str] | None
    timeout: float

    def open_url(self, url: str, revision: str | None) -> TensorSource:
        endpoint = tidy_url(self.endpoint or _default_endpoint())
        if hub_id := parse_page(url, endpoint, revision):
            return self.open_hub(hub_id)
        if revision is not None:
            raise InputError(f"{shown_url(url)} is no Hub model, so it has no revision {printable(revision)!r}")
        client = Client(self.token, origin_of(url), self.timeout)
        path = url.partition("?")[0]
        if is_pickle(path):
            raise pickle_refused(shown_url(url))
        if "?" in url:
            return _together(shown_url(url), lambda: read_one(RemoteFile(client, url)), None, spent=client.spent)
        if not path.endswith((".safetensors", ".gguf", ".json")):
            folder = WebFolder(client, url.rstrip("/") + "/")
            return _together(shown_url(url), lambda: find_model(folder), folder, spent=client.spent)
        folder, name = web_folder(client, url)
        return _together(shown_url(url), lambda: _named(folder, name), folder, spent=client.spent)

    def open_hub(self, hub_id: HubId) -> TensorSource:
        """The cache's copy where it is whole, else the Hub's."""
        cached, why = self._open_cached(hub_id)
        if cached is not None:
            return cached
        if _is_offline():
            raise InputError(f"{hub_id.label} is not whole in the local cache, and offline mode is on: {why}")
        endpoint = tidy_url(self.endpoint or _default_endpoint()).rstrip("/")
        client = Client(self.token or _saved_token(endpoint), origin_of(endpoint), self.timeout)
        repo = HubRepo(client, hub_id, endpoint, self.cache_dir)
        source = _together(hub_id.label, lambda: _in_place(repo, hub_id), repo, _folder(hub_id), client.spent)
        source.notes.append(f"read at commit {repo.commit[:12]}")
        if repo.cached:
            source.notes.append(f"{len(repo.cached)} of its files came from the local Hugging Face cache")
        return source

    def _open_cached(self, hub_id: HubId) -> tuple[TensorSource | None, str]:
        """The source from the local cache alone, or None and why not."""
        folder = cached_folder(hub_id, self.cache_dir)
        if folder is None:
            return None, "nothing of it is there"
        try:
            source = _together(hub_id.label, lambda: _in_place(folder, hub_id), folder, _folder(hub_id))
        except InputError as error:
            return None, str(error)
        source.notes.append(f"local Hugging Face cache used (commit {printable(folder.path.name[:12])})")
        return source, ""


def _in_place(place: Place, hub_id: HubId) -> Found:
    return _named(place, hub_id.file) if hub_id.file else find_model(place)


def _folder(hub_id: HubId) -> str:
    return hub_id.file.rpartition("/")[0]


def _default_endpoint() -> str:
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT


def _saved_token(endpoint: str) -> str | None:
    """The token that `hf auth login` saved, for the Hub that the library itself uses and for no other address."""
    from huggingface_hub import get_token

    return get_token() if origin_of(endpoint) == origin_of(tidy_url(_default_endpoint())) else None


def _is_offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)
