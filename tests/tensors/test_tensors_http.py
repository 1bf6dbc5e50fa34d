"""Remote files: only what is needed is fetched, side by side, and every way a server fails is told apart."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback, Reply, Request, missing, ranged
from tensor_files import CONFIG, safetensors_bytes, tiny_llama

from layerrope.errors import InputError
from layerrope.tensors import TensorSource, connections, http, open_source
from layerrope.tensors.connections import Answer, origin_of
from layerrope.tensors.http import Client, HttpError
from layerrope.tensors.ranges import HEAD, RemoteFile
from layerrope.tensors.source import WORKERS, in_parallel

PATH = "/m/model.safetensors"


def norms_of(source: TensorSource) -> dict[str, np.ndarray]:
    return source.read(name for name in source.names if "norm" in name)


def wide_model(layers: int = 32, width: int = 64) -> dict[str, np.ndarray]:
    """Norms with 64 KiB of weights between them, so that neighbours are too far apart to join."""
    tensors: dict[str, np.ndarray] = {}
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = np.full(width, layer + 0.5, np.float32)
            tensors[f"model.layers.{layer}.{norm[:4]}.matrix"] = np.zeros(1 << 14, np.float32)
    return tensors


def test_only_headers_and_norms_are_fetched_and_counted(server: Loopback) -> None:
    tensors = wide_model()
    url = server.put(PATH, safetensors_bytes(tensors))
    server.put("/m/config.json", json.dumps(CONFIG).encode())
    source = open_source(url)
    read = norms_of(source)
    assert source.config == CONFIG
    assert len(read) == 64
    assert all(np.array_equal(read[name], tensors[name]) for name in read)
    norm_bytes = sum(source.names[name].nbytes for name in read)
    assert (source.spent.bytes, source.spent.requests) == (server.sent, len(server.log))
    assert norm_bytes < source.spent.bytes <= norm_bytes + HEAD + len(json.dumps(CONFIG))
    assert server.connections <= WORKERS + 2


def test_neighbours_are_joined_into_one_request(server: Loopback) -> None:
    tensors = {"weight": np.zeros(1 << 15, np.float32)}
    tensors |= {f"norm.{i}": np.full(8, i, np.float32) for i in range(40)}
    source = open_source(server.put(PATH, safetensors_bytes(tensors)))
    before = source.spent.requests
    read = norms_of(source)
    assert [int(read[f"norm.{i}"][0]) for i in range(40)] == list(range(40))
    assert source.spent.requests == before + 1


def test_sixty_four_norms_take_at_most_twelve_round_trips(server: Loopback) -> None:
    url = server.put(PATH, safetensors_bytes(wide_model()))
    server.latency = 0.05

    def seconds() -> float:
        started = time.perf_counter()
        assert len(norms_of(open_source(url))) == 64
        return time.perf_counter() - started

    assert min(seconds() for _ in range(3)) < 12 * server.latency


def test_a_long_header_is_read_whole(server: Loopback) -> None:
    tensors = {f"a.rather.long.name.{i}.norm": np.full(2, i, np.float32) for i in range(2000)}
    data = safetensors_bytes(tensors)
    assert int.from_bytes(data[:8], "little") > HEAD
    read = norms_of(open_source(server.put(PATH, data)))
    assert all(read[name][0] == tensors[name][0] for name in tensors)


def test_an_index_on_a_web_folder_is_followed(server: Loopback) -> None:
    tensors = tiny_llama()
    half = {n: tensors[n] for n in list(tensors)[::2]}, {n: tensors[n] for n in list(tensors)[1::2]}
    for no, part in enumerate(half):
        server.put(f"/m/part {no}.safetensors", safetensors_bytes(part))
    weight_map = {name: f"part {no}.safetensors" for no, part in enumerate(half) for name in part}
    server.put("/m/model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
    for address in ("/m", "/m/", "/m/model.safetensors.index.json"):
        read = open_source(server.url + address).read(tensors)
        assert all(np.array_equal(read[name], tensors[name]) for name in tensors)


# -- servers that mishandle ranges ------------------------------------------------------------------------------


def altered(**headers: str) -> Callable[[Request], Reply]:
    """`ranged`, with other headers; "" takes one away."""

    def behave(request: Request) -> Reply:
        reply = ranged(request)
        changed = {**reply.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return Reply(reply.status, reply.body, {k: v for k, v in changed.items() if v})

    return behave


def shifted(request: Request) -> Reply:
    start = request.start + 1
    stop = min(request.stop, len(request.data))
    return Reply(206, request.data[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(request.data)}"})


def short(request: Request) -> Reply:
    """Fewer bytes than it says it sends, and a clean end."""
    whole = ranged(request)
    return Reply(206, whole.body[:-5], whole.headers)


def broken_off(request: Request) -> Reply:
    whole = ranged(request)
    return Reply(206, whole.body[:-5], whole.headers, declared=len(whole.body))


RANGE_FAULTS: dict[str, tuple[Callable[[Request], Reply], str]] = {
    "wrong start": (shifted, "sent bytes from 1 on where those from 0 on"),
    "short": (short, "bytes where"),
    "no Content-Range": (altered(Content_Range=""), "no Content-Range"),
    "no size": (altered(Content_Range="bytes 0-9/*"), "sent|size"),
    "compressed": (altered(Content_Encoding="gzip"), "sent it compressed"),
    "broken off": (broken_off, "closed the connection in the middle"),
}


@pytest.mark.parametrize("fault", RANGE_FAULTS)
def test_a_faulty_range_is_asked_for_again_then_refused(server: Loopback, fault: str) -> None:
    behave, message = RANGE_FAULTS[fault]
    data = bytes(range(256)) * 4
    once = RemoteFile(Client(sleep=lambda _: None), server.put("/once", data, behave, ranged))
    assert (once.size, once.read(0, 1024)) == (1024, data)
    with pytest.raises(HttpError, match=message):
        RemoteFile(Client(sleep=lambda _: None), server.put("/always", data, behave))
    assert len([r for r in server.log if r.path == "/always"]) <= 3


@pytest.mark.parametrize("fault", sorted(set(RANGE_FAULTS) - {"no size"}))
def test_a_faulty_range_later_on_is_asked_for_again_then_refused(server: Loopback, fault: str) -> None:
    behave, message = RANGE_FAULTS[fault]
    data = np.arange(1 << 17, dtype=np.uint8).tobytes()
    keeps_version = lambda request: Reply(*_with_etag(behave(request)))  # noqa: E731
    good = RemoteFile(Client(sleep=lambda _: None), server.put("/a", data, ranged, keeps_version, ranged))
    assert good.read(100_000, 100_010) == data[100_000:100_010]
    bad = RemoteFile(Client(sleep=lambda _: None), server.put("/b", data, ranged, keeps_version))
    with pytest.raises(HttpError, match=message.replace("1 on", "100001 on").replace("0 on", "100000 on")):
        bad.read(100_000, 100_010)


def _with_etag(reply: Reply) -> tuple[int, bytes, dict[str, str], int | None]:
    return reply.status, reply.body, {"ETag": '"v1"', **reply.headers}, reply.declared


def test_a_server_that_ignores_ranges_sends_a_small_file_once(server: Loopback) -> None:
    tensors = wide_model(layers=2)
    data = safetensors_bytes(tensors)
    source = open_source(server.put(PATH, data, lambda request: Reply(200, request.data)))
    read = norms_of(source)
    assert all(np.array_equal(read[name], tensors[name]) for name in read)
    assert source.spent.bytes == server.sent == len(data) + len(missing(server.log[0]).body)


def test_a_download_of_whole_files_is_said(server: Loopback) -> None:
    data = safetensors_bytes(wide_model(layers=2))
    source = open_source(server.put(PATH, data, lambda request: Reply(200, request.data)))
    assert f"the server ignores byte ranges: a whole file was downloaded, {len(data):,} bytes" in source.notes
    assert not any("whole" in note for note in open_source(server.put("/n/model.safetensors", data)).notes)


def test_whole_files_have_one_budget(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may list thousands of files, and a server send each whole."""
    data = safetensors_bytes({"t": np.zeros(25_000, np.float32)})
    monkeypatch.setattr(http, "WHOLE_BUDGET", 5 * len(data))
    weight_map = {f"t{no}": f"s{no}.safetensors" for no in range(40)}
    server.put("/m/model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
    for name in weight_map.values():
        server.put(f"/m/{name}", data, lambda request: Reply(200, request.data))
    with pytest.raises(HttpError, match=r"ignores byte ranges.*all such files together"):
        open_source(f"{server.url}/m/")
    assert sum(len(r.data) for r in server.log if r.path.endswith("safetensors")) < 40 * len(data)


def test_a_whole_file_without_a_length_takes_only_what_it_is_from_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_BUDGET", 1000)
    url, listener = raw_server(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 300))
    client = Client(sleep=lambda _: None)
    with listener:
        assert [len(client.get(url).body) for _ in range(3)] == [300, 300, 300]
        assert client.get(url).more  # 100 are left


def test_one_source_costs_no_more_than_its_budget(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.put(PATH, bytes(100_000))
    monkeypatch.setattr(http, "BUDGET", 150_000)
    client = Client()
    client.get(url, (0, 90_000))
    client.get(url, (0, 90_000))
    with pytest.raises(HttpError, match="were received for one model"):
        client.get(url, (0, 10))


def test_an_interrupt_waits_for_no_thread() -> None:
    """What Ctrl-C raises in the main thread goes up although a worker is still held by a server."""
    release, outlasted = threading.Event(), list[bool]()

    def held() -> None:
        release.wait(60)
        outlasted.append(True)

    def interrupted() -> None:
        time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_parallel([(held, ()), (interrupted, ()), *[(held, ())] * 20], 4)
    assert outlasted == []
    release.set()  # what the other threads still wait for


def test_jobs_side_by_side_give_results_in_order_and_the_first_error() -> None:
    assert in_parallel([(pow, (n, 2)) for n in range(50)], 8) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        in_parallel([(divmod, (1, n)) for n in (1, 0, 1)], 2)


SECRETS = [
    "http://user:hunter2@[bad/x?token=hunter2",
    "https://user:hun/ter2@host:port/x",
    "https://u:hunter2?x@host/y",
    "http://host:99999/x?sig=hunter2",
    "https//user:hunter2@host/x.safetensors?sig=hunter2",
    "user:hunter2@host/x.safetensors",
    "http://a b/x?sig=hunter2#hunter2",
    "http://user:hunter2@host/x",
    "http://host/\udcff?sig=hunter2",
    "http://\udcff/",
]


@pytest.mark.parametrize("url", SECRETS)
def test_no_secret_of_an_address_is_shown(url: str) -> None:
    for open_it in (open_source, lambda u: open_source("org/name", endpoint=u)):
        with pytest.raises(InputError) as refused:
            open_it(url)
        assert "unter2" not in str(refused.value)
        assert "hun/" not in str(refused.value)


def test_a_server_that_ignores_ranges_is_not_followed_into_a_large_file(server: Loopback) -> None:
    large = lambda request: Reply(200, b"\0" * 100_000, declared=13_500_000_000)  # noqa: E731
    with pytest.raises(HttpError, match=r"ignores byte ranges.*download it"):
        open_source(server.put(PATH, b"", large))


def test_416_falls_back_to_the_size_the_server_tells(server: Loopback) -> None:
    tensors = tiny_llama()
    data = safetensors_bytes(tensors)

    def strict(request: Request) -> Reply:
        if request.stop > len(request.data):
            return Reply(416, headers={"Content-Range": f"bytes */{len(request.data)}"})
        return ranged(request)

    def sulking(request: Request) -> Reply:
        return Reply(416) if request.ranged else Reply(200, request.data)

    for behave in (strict, sulking):
        source = open_source(server.put(PATH, data, behave))
        assert np.array_equal(source.read(["model.norm.weight"])["model.norm.weight"], tensors["model.norm.weight"])
        assert source.spent.requests <= 3
    with pytest.raises(InputError, match="416"):
        open_source(server.put(PATH, data, lambda request: Reply(416)))
    with pytest.raises(InputError, match="cut off: 0 bytes"):
        open_source(server.put(PATH, b""))


@pytest.mark.parametrize("change", ["etag", "size", "both", "gone"])
def test_a_file_replaced_between_requests_is_noticed(server: Loopback, change: str) -> None:
    old, new = safetensors_bytes(wide_model(2)), safetensors_bytes(wide_model(2) | {"more": np.zeros(4, np.float32)})
    source = open_source(server.put(PATH, old))
    etag = '"v2"' if change in ("etag", "both") else '"v1"'
    data = {"etag": old, "gone": b"0"}.get(change, new)
    server.put(PATH, data, lambda request: ranged(request, etag))
    with pytest.raises(InputError, match="replaced while it was being read"):
        norms_of(source)


# -- redirects and the token ------------------------------------------------------------------------------------


def redirect(target: str, status: int = 302) -> Callable[[Request], Reply]:
    return lambda request: Reply(status, headers={"Location": target})


def test_the_token_stays_with_its_host_and_redirects_are_paid_once(server: Loopback) -> None:
    tensors = wide_model(4)
    server.put("/cdn/blob", safetensors_bytes(tensors))
    url = server.put(PATH, b"", redirect(f"{server.other_url}/cdn/blob?signature=1"))
    source = open_source(url, token="hf_secret")
    assert len(norms_of(source)) == 8
    own, cdn = ([r for r in server.log if r.path.startswith(p)] for p in ("/m/model", "/cdn"))
    assert {r.headers.get("authorization") for r in own} == {"Bearer hf_secret"}
    assert {r.headers.get("authorization") for r in cdn} == {None}
    assert (len(own), len(cdn)) == (1, 8)  # the first norm came with the head


@pytest.mark.parametrize("target", ["/m/other.safetensors", "other.safetensors"])
def test_a_redirect_on_the_same_host_keeps_the_token(server: Loopback, target: str) -> None:
    server.put("/m/other.safetensors", safetensors_bytes(tiny_llama()))
    open_source(server.put(PATH, b"", redirect(target, 307)), token="hf_secret")
    assert {r.headers.get("authorization") for r in server.log} == {"Bearer hf_secret"}


def test_a_signed_address_that_expired_is_asked_for_anew(server: Loopback) -> None:
    tensors = wide_model(2)
    server.put("/cdn/old", safetensors_bytes(tensors), ranged, lambda request: Reply(403, b"expired"))
    server.put("/cdn/new", safetensors_bytes(tensors))
    url = server.put(PATH, b"", redirect("/cdn/old"), redirect("/cdn/new"))
    assert len(norms_of(open_source(url))) == 4


def test_redirects_that_lead_nowhere_are_refused(server: Loopback) -> None:
    loop = server.put(PATH, b"", redirect(server.other_url + PATH))
    server.put("/a", b"", lambda request: Reply(302, headers={"Location": f"/a?{len(server.log)}"}))
    for url, message in {
        loop: "in a circle",
        f"{server.url}/a?": "more than 8 times",
        server.put("/none", b"", lambda request: Reply(302)): "redirected to nowhere",
        server.put("/file", b"", redirect("file:///etc/passwd")): "redirected to nowhere",
    }.items():
        with pytest.raises(HttpError, match=message):
            Client().get(url)
        assert len(server.log) < 40


def test_https_is_not_left_for_http() -> None:
    headers = HTTPMessage()
    headers["Location"] = "http://elsewhere.example/x"
    with pytest.raises(HttpError, match="from https to plain http at elsewhere"):
        http._next_hop(Answer("https://hub.example/x", 302, headers, b"", False), "https://hub.example/x")


def test_a_token_goes_over_plain_http_to_this_machine_only() -> None:
    far, near = origin_of("http://10.1.2.3/x"), origin_of("http://127.0.0.1:9/x")
    assert Client("hf_secret", far)._authorization(far) == {}
    assert Client("hf_secret", near)._authorization(near)
    assert Client("hf_secret", origin_of("https://a.b/"))._authorization(origin_of("https://a.b:444/")) == {}


@pytest.mark.parametrize("token", ["two words", "line\r\nX-Evil: 1", "tökén"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InputError, match="token") as caught:
        open_source("http://127.0.0.1:9/model.safetensors", token=token)
    assert token not in str(caught.value)


# -- servers that say no ------------------------------------------------------------------------------------------

LOGIN = b"<!DOCTYPE html><html><body>Please log in</body></html>"

REFUSALS: dict[str, tuple[Callable[[Request], Reply], str]] = {
    "unauthorised": (lambda r: Reply(401), "private or no such name"),
    "gated": (lambda r: Reply(403, headers={"X-Error-Code": "GatedRepo"}), "gated: accept its terms at"),
    "forbidden": (lambda r: Reply(403), "access is forbidden"),
    "missing": (missing, "no such file: check the name"),
    "throttled": (lambda r: Reply(429, headers={"Retry-After": "3600"}), "too many requests (429); wait 3600 s"),
    "busy": (lambda r: Reply(503, headers={"Retry-After": "900"}), "not available now (503); wait 900 s"),
    "down": (lambda r: Reply(503), "failed 3 times"),
    "proxy login": (lambda r: Reply(200, LOGIN, {"Content-Type": "text/html"}), "a proxy or login page answered"),
    "teapot": (lambda r: Reply(418), "the server answered 418"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_each_refusal_has_its_own_next_step(server: Loopback, kind: str) -> None:
    behave, message = REFUSALS[kind]
    url = server.put(PATH, b"", behave)
    with pytest.raises(HttpError) as caught:
        Client(sleep=lambda _: None).get(url, (0, 100))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    others = [text for name, (_, text) in REFUSALS.items() if name != kind]
    assert not any(text in str(caught.value) for text in others)
    assert len(server.log) <= http.ATTEMPTS


@pytest.mark.parametrize("kind", ["missing", "forbidden", "proxy login", "unauthorised"])
@pytest.mark.parametrize("address", [PATH, "/m"])
def test_a_refusal_of_the_file_or_folder_asked_for_is_told(server: Loopback, kind: str, address: str) -> None:
    behave, message = REFUSALS[kind]
    for name in (PATH, "/m/model.safetensors.index.json", "/m/config.json"):
        server.put(name, b"", behave)
    with pytest.raises(InputError, match=message):
        open_source(server.url + address)


def test_a_missing_part_of_a_remote_set_is_named(server: Loopback) -> None:
    index = {"weight_map": {"a": "x.safetensors"}}
    server.put("/m/model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(InputError, match=r"x\.safetensors: the server answered 404.*listed in model"):
        open_source(server.url + "/m")


def test_a_refused_token_is_told_from_a_missing_one(server: Loopback) -> None:
    url = server.put(PATH, b"", lambda r: Reply(401))
    with pytest.raises(HttpError, match="the token was refused"):
        open_source(url, token="hf_old")


def test_503_twice_then_fine(server: Loopback) -> None:
    down = lambda request: Reply(503)  # noqa: E731
    waits: list[float] = []
    answer = Client(sleep=waits.append).get(server.put(PATH, b"abc", down, down, ranged), (0, 3))
    assert answer.body == b"abc"
    assert len(waits) == 2
    assert waits[0] < waits[1] <= 2 * http.BACKOFF


@pytest.mark.parametrize("told", ["2", "date"])
def test_429_waits_as_told(server: Loopback, told: str) -> None:
    when = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3)) if told == "date" else told
    url = server.put(PATH, b"abc", lambda r: Reply(429, headers={"Retry-After": when}), ranged)
    waits: list[float] = []
    assert Client(sleep=waits.append).get(url, (0, 3)).body == b"abc"
    assert len(waits) == 1
    assert 1.5 < waits[0] <= 3


def test_429_holds_every_thread(server: Loopback) -> None:
    """One thread was told to wait; the next request of another one waits too."""
    client = Client(sleep=(waits := []).append)
    client.get(server.put("/a", b"abc", lambda r: Reply(429, headers={"Retry-After": "20"}), ranged), (0, 3))
    client.get(server.put("/b", b"abc"), (0, 3))
    assert len(waits) == 2
    assert waits[1] > 15


def test_a_server_that_never_answers_is_given_up(server: Loopback) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    started = time.perf_counter()
    with listener, pytest.raises(HttpError, match="did not answer in time"):
        Client(timeout=0.1, sleep=lambda _: None).get(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
    assert time.perf_counter() - started < 3


def raw_server(answer: Callable[[socket.socket], None], seen: list[bytes] | None = None) -> tuple[str, socket.socket]:
    """A server below HTTP: `answer` gets each connection behind its request's first bytes (kept in `seen`)."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener is closed when the test ends
            while True:
                threading.Thread(target=converse, args=listener.accept()[:1], daemon=True).start()

    def converse(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            start = connection.recv(4096)
            if seen is not None:
                seen.append(start)
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/x.safetensors", listener


def drip(start: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.02)

    return answer


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX-",
        b"HTTP/1.1 206 P\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n",
    ],
)
def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(connections, "SLOWEST", 1e9)
    url, listener = raw_server(drip(start))
    started = time.perf_counter()
    with listener, pytest.raises(HttpError, match="did not answer in time"):
        Client(timeout=0.15, sleep=lambda _: None).get(url, (0, 9999))
    assert time.perf_counter() - started < 2.5


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "without an answer|connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HTTP|middle"),
        (b"HTTP/1.1 206 OK\r\nContent-Length: 99999999999999\r\n\r\nabc", "in the middle"),
    ],
)
def test_what_is_not_quite_http_is_one_line(said: bytes, message: str) -> None:
    url, listener = raw_server(lambda connection: connection.sendall(said))
    with listener, pytest.raises(HttpError, match=message) as caught:
        RemoteFile(Client(timeout=2, sleep=lambda _: None), url)
    assert "\n" not in str(caught.value)


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    def one_answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 206 P\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/3\r\n\r\nabc")

    url, listener = raw_server(one_answer)
    client = Client(sleep=lambda _: pytest.fail("no pause is due"))
    with listener:
        for _ in range(3):
            assert client.get(url, (0, 3)).body == b"abc"
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "not an http"),
        ("http://[::1", "not an address"),
        ("http://host:99999999/x", "not an address"),
        ("https://user:hunter2@host/x.safetensors", "give a token instead"),
        (f"http://{'a' * 70}.example/x.safetensors", "cannot|failed|no host"),
        ("http://127.0.0.1:9/m\x1b[31m.bin", "run code"),
        ("http://127.0.0.1:1/model.safetensors", "refuses connections"),
    ],
)
def test_addresses_that_cannot_be_read_are_one_line(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_source(url, timeout=2)
    assert str(caught.value).isprintable()
    assert "hunter2" not in str(caught.value)


def test_the_query_of_a_signed_address_is_used_and_never_shown(server: Loopback) -> None:
    server.put(PATH, safetensors_bytes(tiny_llama()))
    source = open_source(f"{server.url}{PATH}?X-Signature=secret")
    assert server.log[0].path == f"{PATH}?X-Signature=secret"
    assert (source.config, "secret" in source.label) == ({}, False)
    assert len(server.log) == 1


def test_no_file_is_written_and_no_proxy_is_asked_for_loopback(
    server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    open_source(server.put(PATH, safetensors_bytes(tiny_llama())))
    assert list(tmp_path.iterdir()) == []


def test_a_proxy_is_used_where_the_system_sets_one(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy here is the loopback server; it gets the whole address, and no name is looked up."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    server.put("/m/model.safetensors", safetensors_bytes(tiny_llama()))
    open_source("http://far.invalid/m/model.safetensors")
    assert "http://far.invalid/m/model.safetensors" in [r.path for r in server.log]


# -- TLS ------------------------------------------------------------------------------------------------------------

CERTIFICATE = Path(__file__).parents[1] / "data" / "tensors" / "localhost.pem"


@pytest.fixture
def tls_server(server: Loopback) -> str:
    """The loopback server behind a certificate for localhost that no authority signed; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f"https://localhost:{server.server_port}"


def test_a_certificate_that_is_not_trusted_is_refused(tls_server: str) -> None:
    with pytest.raises(HttpError, match="the certificate of localhost is not trusted"):
        open_source(f"{tls_server}/m/model.safetensors", token="hf_secret")


def test_https_to_a_trusted_host(tls_server: str, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    tensors = wide_model(4)
    server.put(PATH, safetensors_bytes(tensors))
    read = norms_of(open_source(tls_server + PATH, token="hf_secret"))
    assert all(np.array_equal(read[name], tensors[name]) for name in read)
    assert {r.headers.get("authorization") for r in server.log} == {"Bearer hf_secret"}
    server.put(PATH, b"", redirect(f"http://127.0.0.1:{server.server_port}/x"))
    with pytest.raises(HttpError, match="from https to plain http at 127"):
        open_source(tls_server + PATH)


@pytest.mark.parametrize("login", ["", "me:pass%20word@"])
def test_https_through_a_proxy(tls_server: str, server: Loopback, monkeypatch: pytest.MonkeyPatch, login: str) -> None:
    """A tunnel to the host asked for; the proxy sees its login and never the token."""
    seen: list[bytes] = []

    def tunnel(connection: socket.socket) -> None:
        """What was asked for is answered by the loopback server, whatever host was named."""
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", server.server_port)) as target:
            pump = threading.Thread(target=copy_bytes, args=(target, connection), daemon=True)
            pump.start()
            copy_bytes(connection, target)
            pump.join()

    address, listener = raw_server(tunnel, seen)
    monkeypatch.setenv("https_proxy", address.replace("//", f"//{login}").removesuffix("/x.safetensors"))
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.delenv("no_proxy", raising=False)
    server.put(PATH, safetensors_bytes(tiny_llama()))
    far = connections.Origin("https", "localhost", server.server_port)
    monkeypatch.setattr(connections.Origin, "is_loopback", property(lambda self: False))
    with listener:
        source = open_source(f"https://{far.host}:{far.port}{PATH}", token="hf_secret")
        assert "model.norm.weight" in source.names
    assert seen[0].startswith(f"CONNECT localhost:{far.port} ".encode())
    assert (b"Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk" in seen[0]) == bool(login)
    assert not any(b"hf_secret" in start for start in seen)


def copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://[::1", "http://"])
def test_a_proxy_of_another_kind_is_one_line(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(InputError, match="proxy address is not http://HOST:PORT"):
        open_source("https://far.invalid/m/model.safetensors")
