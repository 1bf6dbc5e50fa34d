"""A remote file as a blob: ranges asked for, checked, and held to one version of the file."""

from __future__ import annotations

import re

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, printable
from layerrope.tensors.connections import Answer
from layerrope.tensors.http import WHOLE_BUDGET, WHOLE_LIMIT, Client, HttpError, shown_url

#: Bytes asked for at first: most headers of safetensors files are shorter, and JSON files come whole.
HEAD = 64 << 10
JSON_HEAD = 4 << 20

_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,19})")


class RemoteFile(Blob):
    """A file behind an http(s) address, read by byte ranges.

    The first request brings the file's head, its size and its version (ETag, or Last-Modified). A later answer
    of another size or version raises InputError: bytes of two versions are never mixed. A range that starts
    elsewhere, is too short or says nothing of itself is asked for once more, then refused. A server that ignores
    ranges sends the whole file once, when it is at most WHOLE_LIMIT bytes.
    """

    remote = True

    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url, self.label = client, url, shown_url(url)
        answer = self._first(JSON_HEAD if url.partition("?")[0].endswith(".json") else HEAD)
        self._head, self._version, self.size = answer.body, _version(answer), _size(answer) or 0
        self.came_whole = answer.status == 200 and self.size > HEAD
        self._at = answer.url  # behind the redirects, so that they are paid once

    def read(self, start: int, stop: int) -> bytes:
        here = self._head[start:stop]
        if len(here) == stop - start:
            return here
        return here + self._fetch(start + len(here), stop)

    def _first(self, head: int) -> Answer:
        """The answer that brings the first `head` bytes, or all where there are fewer. Raises HttpError."""
        fault = None
        for _ in range(2):
            answer = self.client.get(self.url, (0, head))
            if answer.status == 416:
                answer = self._shorter(answer)
            if answer.status == 200 and answer.more:
                raise HttpError(
                    f"{self.label}: the server ignores byte ranges, and the file is larger than {WHOLE_LIMIT >> 20} "
                    f"MiB, or all such files together than {WHOLE_BUDGET >> 20}; download it and name the copy"
                )
            size = _size(answer)
            fault = _fault(answer, 0, head if size is None else min(head, size))
            if fault is None and size is not None:
                return answer
        raise self._unusable(fault or "does not tell the file's size (Content-Range)")

    def _unusable(self, fault: str) -> HttpError:
        return HttpError(f"{self.label}: the server {fault}, twice; a proxy may be in between: download the file")

    def _shorter(self, answer: Answer) -> Answer:
        """The file again after a 416: the server refuses a range that goes beyond the end, and tells where that is."""
        match = _UNSATISFIED.fullmatch(answer.headers.get("Content-Range", ""))
        size = int(match[1]) if match else 0
        again = self.client.get(self.url, (0, size) if 0 < size < JSON_HEAD else None)
        if again.status == 416:
            raise HttpError(f"{self.label}: the server refuses every range of it (416); check the address", 416)
        return again

    def _fetch(self, start: int, stop: int) -> bytes:
        fault = None
        for _ in range(2):
            answer = self._get(start, stop)
            fault = _fault(answer, start, stop)
            if fault is None:
                return answer.body if answer.status == 206 else answer.body[start:stop]
        raise self._unusable(fault or "")

    def _get(self, start: int, stop: int) -> Answer:
        """The answer for [start, stop), of the same version as before. A signed address that expired is renewed."""
        at = self._at  # other threads may renew it meanwhile
        try:
            answer = self.client.get(at, (start, stop))
        except HttpError as error:
            if at == self.url or error.status not in (400, 401, 403, 404, 410):
                raise
            answer = self.client.get(self.url, (start, stop))
            self._at = answer.url
        if answer.status == 416 or _size(answer) not in (None, self.size) or _version(answer) != self._version:
            raise InputError(f"{self.label} was replaced while it was being read: run the command again")
        return answer


def _version(answer: Answer) -> str | None:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified")


def _size(answer: Answer) -> int | None:
    """The size of the whole file, where the answer tells it."""
    if answer.status == 200:
        return None if answer.more else len(answer.body)
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return int(match[3]) if match and match[3] != "*" else None


def _fault(answer: Answer, start: int, stop: int) -> str | None:
    """What is wrong with the answer to a request for [start, stop), if anything."""
    if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        return f"sent it compressed ({printable(answer.headers['Content-Encoding'], 20)})"
    if answer.status == 200:
        return "sent the whole file in place of a range" if answer.more else None
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        return "sent a range that does not say which it is (no Content-Range)"
    if int(match[1]) != start:
        return f"sent bytes from {match[1]} on where those from {start} on were asked for (Content-Range)"
    if int(match[2]) != stop - 1 or len(answer.body) != stop - start or answer.more:
        return f"sent {len(answer.body)} bytes where {stop - start} were asked for"
    return None
