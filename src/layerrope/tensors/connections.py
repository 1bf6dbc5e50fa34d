"""One request, one answer: kept-alive connections of the standard library, with bounds on time and bytes.

Why no HTTP library: huggingface_hub brings `requests` in its 0.x versions and `httpx` later, so either choice
would tie this package to one of them. What is needed here is small, and redirects, retries and the token's
reach are decided in `http` anyway.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import importlib.util
import ipaddress
import socket
import ssl
import threading
import time
import urllib.request
import weakref
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from layerrope.errors import InputError
from layerrope.tensors.blobs import printable, redacted
from layerrope.tensors.entries import Spent

#: A body that comes slower than this (bytes/s), on top of the timeout, is given up.
SLOWEST = 16_000
#: Bytes of a body that are read, and waited for, at a time.
CHUNK = 1 << 16
#: (status, declared length of the body) -> how many bytes of it are wanted
Cap = Callable[[int, int | None], int]
PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Who is spoken to; a token belongs to exactly one."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether this is the machine itself, by its address (a name could resolve to anything)."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def origin_of(url: str) -> Origin:
    """Scheme, host and port of `url`. Raises InputError where it is no http(s) address, or holds a password."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{redacted(url)} is not an address: check it") from None
    if scheme not in PORTS or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise InputError(f"{redacted(url)} is not an http or https address: check it")
    if "@" in parts.netloc:
        raise InputError(f"the address of {printable(host)} holds a user name or password: give a token instead")
    return Origin(scheme, host.lower(), port or PORTS[scheme])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent."""

    url: str
    status: int
    headers: HTTPMessage
    body: bytes
    more: bool
    """the body went on behind the bytes that were wanted, and was not read further"""


class TransportError(Exception):
    """No whole answer came. `retry`: asking again may help."""

    def __init__(self, cause: str, retry: bool) -> None:
        super().__init__(cause)
        self.retry = retry


class Connections:
    """Idle connections by origin. Threads share it; each connection is used by one at a time."""

    def __init__(self, timeout: float, spent: Spent) -> None:
        self.timeout, self.spent = timeout, spent
        self._idle: dict[Origin, list[HTTPConnection]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._idle)

    def exchange(self, url: str, headers: Mapping[str, str], cap: Cap) -> Answer:
        """GET `url`; of the body at most `cap(status, length)` bytes are read. Raises TransportError.

        A kept-alive connection that the server has closed meanwhile is replaced by a fresh one, once.
        """
        origin = origin_of(url)
        with self._lock:
            kept = self._idle.get(origin, [])
            connection = kept.pop() if kept else None
        if connection is not None:
            with contextlib.suppress(_StaleError):
                return self._on(connection, origin, url, headers, cap)
        return self._on(self._connection(origin), origin, url, headers, cap)

    def _on(
        self,
        connection: HTTPConnection,
        origin: Origin,
        url: str,
        headers: Mapping[str, str],
        cap: Cap,
    ) -> Answer:
        kept_alive = connection.sock is not None
        try:
            answer, reusable = self._send(connection, url, headers, cap)
        except BaseException as error:
            connection.close()
            if kept_alive and isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                raise _StaleError from error
            if isinstance(error, (OSError, ValueError, http.client.HTTPException)):
                raise _transport_error(error, origin) from error
            raise
        if reusable:
            with self._lock:
                self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()
        return answer

    def _send(self, connection: HTTPConnection, url: str, headers: Mapping[str, str], cap: Cap) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again."""
        with self._lock:
            self.spent.requests += 1
        with _Deadline(self.timeout) as deadline:
            if connection.sock is None:
                connection.connect()
            assert connection.sock is not None
            deadline.watch(connection.sock)
            connection.request("GET", _target(connection, url), headers=dict(headers))
            response = connection.getresponse()
            wanted = cap(response.status, response.length)
            body = self._body(response, wanted + 1, deadline)
        if response.length and len(body) <= wanted:
            raise http.client.IncompleteRead(b"", response.length)
        reusable = response.isclosed() and not response.will_close
        return Answer(url, response.status, response.msg, body[:wanted], len(body) > wanted), reusable

    def _body(self, response: HTTPResponse, limit: int, deadline: _Deadline) -> bytes:
        """At most `limit` bytes of the body, counted as they come.

        Each chunk has the time that `SLOWEST` gives it, whatever length the server declared for the whole.
        """
        body = bytearray()
        while len(body) < limit:
            size = min(CHUNK, limit - len(body), response.length or CHUNK)
            deadline.allow((len(body) + size) / SLOWEST)
            if not (chunk := response.read(size)):
                break
            body += chunk
            with self._lock:
                self.spent.bytes += len(chunk)
        return bytes(body)

    def _connection(self, origin: Origin) -> HTTPConnection:
        """A connection to `origin`, through the system's proxy where one is set."""
        make = {"http": HTTPConnection, "https": self._https}[origin.scheme]
        proxy = None if origin.is_loopback else _proxy(origin)
        if proxy is None:
            return make(origin.host, origin.port, timeout=self.timeout)
        connection = make(proxy.host, proxy.port, timeout=self.timeout)
        if origin.scheme == "https":
            connection.set_tunnel(origin.host, origin.port, proxy.headers)
        return connection

    def _https(self, host: str, port: int, timeout: float) -> HTTPConnection:
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The system's certificates, and certifi's beside them where a Python comes without."""
        context = ssl.create_default_context()
        if not context.get_ca_certs() and importlib.util.find_spec("certifi"):
            context.load_verify_locations(importlib.import_module("certifi").where())
        return context


def _close(idle: dict[Origin, list[HTTPConnection]]) -> None:
    for connection in [c for kept in idle.values() for c in kept]:
        connection.close()


class _StaleError(Exception):
    """A kept-alive connection was closed by the server before it answered."""


class _Deadline:
    """Shuts the connection when its time is over: per-read timeouts alone let a server drip for ever.

    Twice the timeout until the answer begins; from the first `allow` on, the timeout and as much as that says.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = self._over = False
        self._socket: socket.socket | None = None
        self._body_began: float | None = None
        self._until = time.monotonic() + 2 * seconds
        self._changed = threading.Condition()

    def watch(self, connected: socket.socket) -> None:
        """The socket to shut; a connection that will close forgets its own as soon as the answer begins."""
        self._socket = connected

    def allow(self, seconds: float) -> None:
        """Let the body have the timeout and `seconds`, counted from its beginning."""
        with self._changed:
            self._body_began = self._body_began or time.monotonic()
            self._until = self._body_began + self._seconds + seconds
            self._changed.notify()

    def _wait(self) -> None:
        """What the watching thread does: wait until it is over, or the time is."""
        with self._changed:
            while not self._over and (left := self._until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._fired = not self._over
        if self._fired and self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # the plain one: TLS would say goodbye first

    def __enter__(self) -> _Deadline:
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._fired and not isinstance(error, KeyboardInterrupt):
            raise TimeoutError("it took too long") from error


def _transport_error(error: Exception, origin: Origin) -> TransportError:
    """What went wrong in plain words. Certificates, unknown hosts and refusals do not get better by asking again."""
    where = printable(origin.host)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(f"the certificate of {where} is not trusted ({error.verify_message})", retry=False)
    if isinstance(error, socket.gaierror):
        return TransportError(f"no host {where} is known: check the address and the network", retry=False)
    if isinstance(error, ConnectionRefusedError):
        return TransportError(f"{where} refuses connections on port {origin.port}", retry=False)
    if isinstance(error, TimeoutError):
        return TransportError(f"{where} did not answer in time", retry=True)
    if isinstance(error, http.client.IncompleteRead):
        return TransportError(f"{where} closed the connection in the middle of its answer", retry=True)
    if isinstance(error, http.client.RemoteDisconnected):
        return TransportError(f"{where} closed the connection without an answer", retry=True)
    if isinstance(error, http.client.HTTPException):
        return TransportError(f"{where} does not speak HTTP as it should ({type(error).__name__})", retry=False)
    retry = isinstance(error, OSError)  # else a host name that cannot be encoded
    return TransportError(f"the connection to {where} failed ({printable(error, 120)})", retry)


class _Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]


def _proxy(origin: Origin) -> _Proxy | None:
    """The proxy that the system sets for this origin, by its usual means (urllib's). Raises InputError."""
    address = urllib.request.getproxies().get(origin.scheme)
    if not address or urllib.request.proxy_bypass(origin.host):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if parts.scheme != "http" or not host:
        raise InputError(
            "the system's proxy address is not http://HOST:PORT, the one kind that is used here: set it anew"
        )
    if parts.username is None:
        return _Proxy(host, port, {})
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return _Proxy(host, port, {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"})


def _target(connection: HTTPConnection, url: str) -> str:
    """The request's target: path and query; the whole address where a proxy takes plain http."""
    parts = urlsplit(url)
    if parts.scheme == "http" and (connection.host, connection.port) != tuple(origin_of(url))[1:]:
        return url
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path
