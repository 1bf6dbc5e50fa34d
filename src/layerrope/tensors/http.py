"""A small client for reading: redirects, the token's reach, retries, and what to tell a person when it fails.

- The token is sent to the one origin (scheme, host, port) that it belongs to, whatever redirects there are, and
  never over plain http except to this machine.
- At most MAX_HOPS redirects, none twice, none from https to http.
- Time-outs, cut connections, 408 and 5xx are tried ATTEMPTS times with growing pauses. 429 (and 503) wait as the
  server says, all threads together, when that is at most MAX_WAIT seconds; otherwise the answer is an error.
"""

from __future__ import annotations

import email.utils
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from layerrope import __version__
from layerrope.errors import InputError
from layerrope.tensors.blobs import printable
from layerrope.tensors.connections import Answer, Connections, Origin, TransportError, origin_of
from layerrope.tensors.entries import Spent

ATTEMPTS = 3
BACKOFF = 0.4
MAX_WAIT = 30.0
MAX_HOPS = 8
#: A server that ignores ranges is borne with for files up to this size, and so many bytes of such files together.
WHOLE_LIMIT = 64 << 20
WHOLE_BUDGET = 256 << 20
#: Bytes of bodies that one source may cost in all.
BUDGET = 1 << 30
#: Of an error page, as much as is looked at.
ERROR_PAGE = 1 << 16

_REDIRECTS = (301, 302, 303, 307, 308)
_URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"
_AGAIN = (408, 429, 500, 502, 503, 504)


class HttpError(InputError):
    """A server said no. `status` is its code (0: none came), `absent` that the file may just not be there."""

    def __init__(self, message: str, status: int = 0, absent: bool = False) -> None:
        super().__init__(message)
        self.status, self.absent = status, absent


def shown_url(url: str) -> str:
    """`url` for a message: without its query, which may hold a signature."""
    return printable(url.partition("?")[0].partition("#")[0])


class Client:
    """GET with a bounded body, for many threads at once. Counts what it spends."""

    def __init__(
        self,
        token: str | None = None,
        token_origin: Origin | None = None,
        timeout: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`token` is for `token_origin` only. Raises InputError where it cannot be sent as a header."""
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InputError("the token holds spaces or characters that no token has: set it anew (hf auth login)")
        if not 0 < timeout < 86_400:
            raise InputError(f"a timeout of {timeout} seconds cannot be used: give a number above 0")
        self.spent = Spent()
        self._token, self._token_origin, self._sleep = token, token_origin, sleep
        self._connections = Connections(timeout, self.spent)
        self._resume_at: dict[Origin, float] = {}
        self._whole_left = WHOLE_BUDGET
        self._lock = threading.Lock()

    def get(self, url: str, span: tuple[int, int] | None = None) -> Answer:
        """The answer to GET `url`, for the bytes [start, stop) where `span` is given.

        Its status is 200, 206 or 416; everything else raises HttpError with the next step for the person. The
        body ends at what was asked for, or at WHOLE_LIMIT where the server sends everything (`Answer.more` then).
        """
        headers = {"User-Agent": f"layerrope/{__version__}", "Accept": "*/*"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        for attempt in range(1, ATTEMPTS + 1):
            final = attempt == ATTEMPTS
            try:
                answer = self._follow(url, headers, span)
            except TransportError as error:
                if final or not error.retry:
                    again = f" (tried {attempt} times)" if attempt > 1 else ""
                    advice = "" if "check" in str(error) else "; check the network and try again"
                    raise HttpError(f"{shown_url(url)}: {error}{again}{advice}") from error
                self._sleep(BACKOFF * 2 ** (attempt - 1))
                continue
            if answer.status not in _AGAIN or final:
                break
            self._hold(answer, attempt)
        if answer.status in (200, 206, 416):
            _refuse_pages(answer, url, from_start=span is None or span[0] == 0)
            return answer
        raise self._refusal(answer, url)

    def _follow(self, url: str, headers: dict[str, str], span: tuple[int, int] | None) -> Answer:
        seen: set[str] = set()
        here = urldefrag(url).url
        while True:
            origin = origin_of(here)
            self._wait_turn(origin)
            answer = self._exchange(here, headers | self._authorization(origin), span)
            if answer.status not in _REDIRECTS:
                return answer
            seen.add(here)
            here = _next_hop(answer, url)
            if here in seen or len(seen) > MAX_HOPS:
                raise HttpError(
                    f"{shown_url(url)}: redirected in a circle or more than {MAX_HOPS} times, as login pages do; "
                    f"check the address",
                    answer.status,
                )

    def _exchange(self, url: str, headers: dict[str, str], span: tuple[int, int] | None) -> Answer:
        """One request, its body bounded: by the range, by what is left for whole files, by an error's beginning."""
        if self.spent.bytes > BUDGET:
            raise HttpError(
                f"{shown_url(url)}: more than {BUDGET >> 20} MiB were received for one model, so it is left"
            )
        reserved = 0

        def cap(status: int, length: int | None) -> int:
            nonlocal reserved
            if status == 200:
                reserved = self._reserve(length)
                return reserved
            return ERROR_PAGE if status != 206 else span[1] - span[0] if span else WHOLE_LIMIT

        used = 0
        try:
            answer = self._connections.exchange(url, headers, cap)
            used = len(answer.body)
            return answer
        finally:
            with self._lock:
                self._whole_left += reserved - used if reserved else 0

    def _reserve(self, length: int | None) -> int:
        """How much of a whole file of that length is read: all or nothing, and at most what is left for such files."""
        with self._lock:
            granted = min(WHOLE_LIMIT, self._whole_left)
            if length is not None:
                granted = length if length <= granted else 0
            self._whole_left -= granted
            return granted

    def _authorization(self, origin: Origin) -> dict[str, str]:
        private = origin.scheme == "https" or origin.is_loopback
        if self._token is None or origin != self._token_origin or not private:
            return {}
        return {"Authorization": f"Bearer {self._token}"}

    def _hold(self, answer: Answer, attempt: int) -> None:
        """Make every thread wait before it asks this server again. Raises HttpError where that takes too long."""
        told = _retry_after(answer) if answer.status in (429, 503) else None
        if told is not None and told > MAX_WAIT:
            raise self._refusal(answer, answer.url)
        delay = BACKOFF * 2 ** (attempt - 1) if told is None else told
        with self._lock:
            origin = origin_of(answer.url)
            self._resume_at[origin] = max(self._resume_at.get(origin, 0.0), time.monotonic() + delay)

    def _wait_turn(self, origin: Origin) -> None:
        with self._lock:
            delay = self._resume_at.get(origin, 0.0) - time.monotonic()
        if delay > 0:
            self._sleep(delay)

    def _refusal(self, answer: Answer, url: str) -> HttpError:
        """The error for a final status: what it means and what to do."""
        where, status = shown_url(url), answer.status
        if status in (401, 403) and _is_gated(answer):
            page = printable(_model_page(url))
            what = f"the model is gated: accept its terms at {page} and give a token of that account (hf auth login)"
            return HttpError(f"{where}: {what}", status)
        if status == 401:
            sent = bool(self._authorization(origin_of(answer.url)))
            refused = "the token was refused: check it (hf auth whoami)"
            asked = "private or no such name: check the name, or give a token (hf auth login, or token=...)"
            return HttpError(f"{where}: {refused if sent else asked}", status)
        wait = _retry_after(answer)
        if status == 429 or (status == 503 and wait is not None):
            meaning = "too many requests" if status == 429 else "not available now"
            told = "some minutes" if wait is None else f"{wait:.0f} s, as the server asks,"
            return HttpError(f"{where}: {meaning} ({status}); wait {told} and run the command again", status)
        if status in _AGAIN:
            return HttpError(
                f"{where}: the server failed {ATTEMPTS} times ({status}); it may be down, so try again later", status
            )
        meaning, absent = _MEANINGS.get(status, ("check the address", False))
        return HttpError(f"{where}: the server answered {status}; {meaning}", status, absent)


#: status -> (what to do, whether the file may just not be there; stores answer 403 where they do not list)
_MEANINGS: dict[int, tuple[str, bool]] = {
    403: ("access is forbidden: check the address and what the token allows", True),
    404: ("there is no such file: check the name and the revision", True),
    410: ("it has been taken away: look for another copy", True),
    407: ("the proxy wants a login: set it in the system's proxy address", False),
    451: ("it may not be shown here for legal reasons", False),
}


def _next_hop(answer: Answer, url: str) -> str:
    """Where a redirect leads. Raises HttpError where it leads nowhere or out of https."""
    location = quote(answer.headers.get("Location", "").encode("latin-1", "replace"), safe=_URL_CHARACTERS)
    try:
        target = urldefrag(urljoin(answer.url, location)).url
        origin = origin_of(target)
    except ValueError:
        location, origin = "", origin_of(answer.url)
        target = ""
    if not location:
        raise HttpError(f"{shown_url(url)}: redirected to nowhere ({answer.status}); check the address", answer.status)
    if origin.scheme == "http" and urlsplit(answer.url).scheme == "https":
        raise HttpError(
            f"{shown_url(url)}: redirected from https to plain http at {printable(origin.host)}, which is not "
            f"followed; check the address",
            answer.status,
        )
    return target


def _refuse_pages(answer: Answer, url: str, from_start: bool) -> None:
    """Raises HttpError where the answer is an HTML page: a login, a proxy, a site that answers everything so."""
    start = answer.body[:64].lstrip().lower() if from_start else b""
    is_page = answer.headers.get_content_type() == "text/html" and answer.status != 416
    if is_page or start.startswith((b"<!doctype html", b"<html")):
        raise HttpError(
            f"{shown_url(url)}: an HTML page came in place of the file; a proxy or login page answered, so open "
            f"the address in a browser and check it",
            answer.status,
            absent=True,
        )


def _retry_after(answer: Answer) -> float | None:
    """Seconds that the server asks to wait, by Retry-After (a number or a date)."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _is_gated(answer: Answer) -> bool:
    code = answer.headers.get("X-Error-Code", "")
    said = answer.headers.get("X-Error-Message", "") + answer.body[:4096].decode(errors="replace")
    return code == "GatedRepo" or re.search(r"\bgated\b", said, re.IGNORECASE) is not None


def _model_page(url: str) -> str:
    """The page of the model that a Hub address belongs to."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/api/models").split("/resolve/")[0].split("/revision/")[0]
    return f"{parts.scheme}://{parts.netloc}{path}"
