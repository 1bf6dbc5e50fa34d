"""A web server on this machine that behaves, or misbehaves, as told; it never leaves loopback."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Reply:
    """One answer: status, headers, body; `declared` is the Content-Length sent when it is not the body's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    declared: int | None = None


Behaviour = Callable[["Request"], Reply]


@dataclass
class Request:
    """What came in: the path with its query, the headers, the file at that path and the range asked for."""

    path: str
    headers: dict[str, str]
    data: bytes
    start: int
    stop: int

    @property
    def ranged(self) -> bool:
        return "range" in self.headers


def ranged(request: Request, etag: str = '"v1"') -> Reply:
    """What a good server answers: 206 with the part that exists, 200 without a range, 416 behind the end."""
    size = len(request.data)
    if not request.ranged:
        return Reply(200, request.data, {"ETag": etag})
    if request.start >= size:
        return Reply(416, headers={"Content-Range": f"bytes */{size}"})
    stop = min(request.stop, size)
    span = f"bytes {request.start}-{stop - 1}/{size}"
    return Reply(206, request.data[request.start : stop], {"ETag": etag, "Content-Range": span})


def missing(request: Request) -> Reply:
    return Reply(404, b"nothing here")


class Loopback(ThreadingHTTPServer):
    """Serves `files` (path -> bytes) with `ranged`, unless `behaviour` (path -> function) says otherwise."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.behaviour: dict[str, Behaviour] = {}
        self.log: list[Request] = []
        self.sent = 0
        self.connections = 0
        self.latency = 0.0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def other_url(self) -> str:
        """The same server under another host name, so another origin."""
        return f"http://localhost:{self.server_port}"

    def put(self, path: str, data: bytes, *replies: Behaviour) -> str:
        """Serve `data` at `path`: by each of `replies` once, in turn, the last one (or `ranged`) from then on."""
        self.files[path] = data
        queue = [*replies] or [ranged]
        self.behaviour[path] = lambda request: (queue.pop(0) if len(queue) > 1 else queue[0])(request)
        return self.url + path

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what some of the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(span[1]), int(span[2]) + 1) if span else (0, 0)
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.path, headers, self.server.files.get(path, b""), start, stop)
        with self.server.lock:
            self.server.log.append(request)
            behave = self.server.behaviour.get(path, ranged if path in self.server.files else missing)
            reply = behave(request)
            self.server.sent += len(reply.body)
        if self.server.latency:
            time.sleep(self.server.latency)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        length = len(reply.body) if reply.declared is None else reply.declared
        for key, value in {"Content-Length": str(length), **reply.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(reply.body)
        if length != len(reply.body):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Loopback]:
    server = Loopback()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
