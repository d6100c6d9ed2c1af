"""What strangers can do to the HTTP interface: other web sites, hostile bodies, hostile
connections."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import resource
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from chronos.admin.http.connections import (
    BODY_UNREAD_MAX,
    READ_AHEAD_BYTES,
    SparseLog,
    connections_max,
)
from chronos.admin.http.routes import table
from chronos.client import Client
from chronos.node.data_directory import DataDirectory
from tests.harness.inside import Inside
from tests.harness.waiting import wait_until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One node for all tests, which listens on all addresses."""
    folder = tmp_path_factory.mktemp("doors")
    settings = {
        "admin__host": "0.0.0.0",
        "node__id": "node-1",
        "admin__allowed_hosts": "Chronos.Example,other",
        "admin__open": "on",
    }
    with Inside(folder, admin__advertised="http://inside.example:1", **settings) as running:
        yield running


def raw(service: Inside, request: bytes) -> bytes:
    """The whole answer to bytes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request)
        found = b""
        while chunk := connection.recv(65_536):
            found += chunk
        return found


def about_strangers(logs: Iterable[Mapping[str, object]]) -> list[object]:
    """The events of the log lines that strangers cause."""
    kinds = (
        "too many connections",
        "request not read",
        "request failed",
        "connections cannot be accepted",
    )
    return [line["event"] for line in logs if line["event"] in kinds]


# --- Host


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("[::1]:7", 200),
        ("10.1.2.3:7700", 200),
        (("a.localhost"), 200),
        ("node-1:7700", 200),
        ("NODE-1.", 200),
        (socket.gethostname(), 200),
        ("inside.example", 200),
        ("chronos.example:80", 200),
        ("other", 200),
        ("evil.example", 421),
        ("node-1.evil.example", 421),
        ("0x7f.1", 421),
        ("[bad]", 400),
        ("[::1", 400),
        ("a b", 400),
        ("a:port", 400),
        ("a@127.0.0.1", 400),
        (("127.0.0.1/x"), 400),
        ("", 400),
    ],
)
def test_only_the_names_of_the_node_are_served_on_every_address(service, host, status, caplog):
    """DNS rebinding gives another site's name to this node, also where it listens on all addresses;
    no traceback is logged."""
    answer = service.ask("GET", "/v1/shards", headers={"Host": host})
    assert answer.status == status
    assert caplog.records == []


def test_a_request_without_a_host_is_served_to_old_clients_only(service):
    """HTTP/1.0 has no Host header; a health check may use it."""
    assert raw(service, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200")
    assert raw(service, b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n").split()[1] == b"400"
    twice = (
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert raw(service, twice).split()[1] == b"400"


@pytest.mark.parametrize(
    "path", ["/v1/shards/0/digest", "/v1/shards/0/checkpoint", "/v1/shards", "/metrics"]
)
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_web_site_cannot_start_or_read_anything_by_a_get(service, path, site):
    """A digest or a checkpoint reads a whole store."""
    answer = service.ask("GET", path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
    assert (answer.status, answer.problem) == (403, "cross-site")


def test_a_link_on_another_web_site_leads_to_the_console(service):
    """Only the console: it changes nothing by itself."""
    for path in ("/", "/ui/messages/order-17?as=json"):
        assert service.ask("GET", path, headers={"Sec-Fetch-Site": "cross-site"}).status == 200
    assert (
        service.ask("POST", "/v1/messages", {}, headers={"Origin": "http://[bad"}).problem
        == "cross-site"
    )


@pytest.mark.parametrize(
    "name", ["Origin", "Content-Type", "Content-Encoding", "Host", "Sec-Fetch-Site"]
)
def test_a_header_that_is_not_utf8_is_no_error_of_the_service(service, name):
    """The problem shows its bytes escaped."""
    head = b"POST /v1/messages HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n"
    head += b"" if name == "Host" else b"Host: localhost\r\n"
    answer = raw(service, head + name.encode() + b": \xff\xfea\r\n\r\n{}")
    assert answer.split()[1] in (b"400", b"403", b"415"), answer


def test_the_server_is_not_named(service):
    """Neither in answers nor in errors."""
    for path in ("/livez", "/none", "/"):
        assert "server" not in service.ask("GET", path).headers


# --- Bodies


def test_a_compressed_body_is_refused_before_it_is_decompressed(service):
    """A megabyte may hold a gigabyte; `identity` is no compression."""
    body = gzip.compress(b'{"target": {"topic": "t"}, "value": "v", "delay": "1h"}')
    kind = {"Content-Type": "application/json"}
    for coding in ("gzip", "deflate", "br", "zstd", "x"):
        answer = service.ask(
            "POST", "/v1/messages", body, headers={**kind, "Content-Encoding": coding}
        )
        assert (answer.status, answer.problem) == (415, "encoded"), coding
    plain = {"target": {"topic": "t"}, "value": "v", "delay": "1h"}
    assert (
        service.ask("POST", "/v1/messages", plain, headers={"Content-Encoding": "identity"}).status
        == 202
    )


def test_a_header_name_with_a_nul_is_refused(service):
    """Kafka's C client would end the name there."""
    target = {"topic": "t", "headers": {"a\0b": "x"}}
    answer = service.ask("POST", "/v1/messages", {"target": target, "value": "v", "delay": "1h"})
    assert (answer.status, answer.json()["errors"][0]["field"]) == (422, "target.headers")
    assert "contains NUL" in answer.json()["detail"]


# --- Paths


@pytest.mark.slow
def test_an_id_of_any_byte_is_reached_over_http(service):
    """Every byte alone and in the middle, as the client writes it and percent-encoded whole."""
    names = [bytes([byte]) for byte in range(256)] + [b"a%cb" % byte for byte in range(256)]
    names += [b"{id}", b"}{", b"..", b"a/../b", b"%7B", b"a//b", b"?x#y"]
    with Client(service.server.url) as client:
        client.schedule_many(
            [
                {"target": {"topic": "t"}, "value": "v", "delay": "1h", "id": text(name)}
                for name in names
            ]
        )
        for name in names:
            assert client.get(name).state == "pending", name
            assert client.cancel(name), name
            assert client.get(name).state == "cancelled", name
    for byte in range(1, 128):
        if chr(byte) != ".":
            assert service.ask("GET", f"/v1/messages/%{byte:02X}").json()["state"] == "cancelled", (
                byte
            )
    assert service.ask("GET", "/v1/rates/" + quote("a{b}", safe="")).status == 405


def text(name: bytes) -> str:
    """An id as JSON has it."""
    from chronos.admin.http.encoding import id_text

    return id_text(name)


def test_bytes_that_are_not_http_leave_no_traceback(service, caplog):
    """One log line at the most, however many there are."""
    with caplog.at_level(logging.WARNING), capture_logs() as logs:
        for request in (
            b"\x16\x03\x01\x02\x00\x01",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET http://[bad HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        ):
            answer = raw(service, request)
            assert answer.split()[1:2] == [b"400"], (request[:40], answer)
            assert b"aiohttp" not in answer
            assert b"Python" not in answer
    assert caplog.records == []
    assert about_strangers(logs) in ([], ["request not read"])


def test_the_data_directory_is_for_its_owner_only(service):
    """It holds every payload."""
    assert service.node.directory.path.stat().st_mode & 0o777 == 0o700


def test_a_data_directory_that_others_may_read_is_closed_to_them_or_named(tmp_path):
    """Its owner's process may close it; another user's directory is named in the log."""
    path = tmp_path / "data"
    for owner, mode, after, is_named in (
        (os.geteuid(), 0o755, 0o700, False),
        (os.geteuid() + 1, 0o755, 0o755, True),
        (os.geteuid() + 1, 0o770, 0o770, False),
    ):
        path.mkdir(mode=mode)
        path.chmod(mode)
        if owner != os.geteuid():
            if os.geteuid():
                pytest.skip("only root gives a directory away")
            os.chown(path, owner, -1)
        directory = DataDirectory(path, node="n")
        with capture_logs() as logs:
            directory.claim()
        directory.release()
        assert path.stat().st_mode & 0o777 == after
        assert [line["path"] for line in logs] == ([str(path)] if is_named else [])
        shutil.rmtree(path)


# --- Connections


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """A node with few connections."""
    monkeypatch.setattr("chronos.admin.http.server.connections_max", lambda: 20)
    monkeypatch.setattr("chronos.admin.http.connections.HEADER_S", 120.0)
    with Inside(tmp_path) as running:
        yield running


def closed(connection: socket.socket) -> bool:
    """Return whether the other side closed an idle connection; waits for 20 s at most."""
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_idle_connections_give_way_to_new_ones(few, caplog):
    """The oldest ones first; requests are answered throughout, and the log has one line."""
    with ExitStack() as stack, caplog.at_level(logging.WARNING), capture_logs() as logs:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", few.port)))
            for _ in range(120)
        ]
        assert few.ask("GET", "/livez").status == 200
        assert all(closed(connection) for connection in idle[:100])
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        idle[-1].settimeout(20)
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200")
    assert about_strangers(logs) == ["too many connections"]
    assert caplog.records == []


def test_a_connection_that_serves_a_request_is_not_closed_for_a_new_one(few):
    """A long poll is answered although many idle connections come."""
    few.ask("POST", "/v1/messages", {"target": {"topic": "kept"}, "value": "1", "delay": 0})
    offset = few.ask("GET", "/v1/topics/kept/records?wait=20s").json()["next_offset"]
    with ExitStack() as stack:
        poll = stack.enter_context(socket.create_connection(("127.0.0.1", few.port)))
        poll.sendall(
            (
                f"GET /v1/topics/kept/records?wait=30s&offset={offset} HTTP/1.1\r\nHost: "
                "localhost\r\n\r\n"
            ).encode()
        )
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", few.port)))
        few.ask("POST", "/v1/messages", {"target": {"topic": "kept"}, "value": "2", "delay": 0})
        poll.settimeout(20)
        assert poll.recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_without_a_request_is_closed_in_time(tmp_path, monkeypatch):
    """Also one that sends a header byte by byte."""
    monkeypatch.setattr("chronos.admin.http.connections.HEADER_S", 0.2)
    with Inside(tmp_path) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as silent:
            assert closed(silent)
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert closed(slow)


def test_half_of_the_descriptors_are_left_to_the_node(monkeypatch):
    """And there is a bound of its own where descriptors have none."""
    for limit, most in (
        (1_024, 512),
        (100, 50),
        (1_000_000, 2_000),
        (resource.RLIM_INFINITY, 2_000),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections_max() == most


def test_all_bodies_in_flight_have_one_bound(tmp_path, monkeypatch):
    """Bodies that are not complete take from it what they have sent; their end gives it back."""
    monkeypatch.setattr("chronos.admin.http.context.BODIES_BYTES_MAX", 4_200_000)
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: 3000000\r\n\r\n"
    )
    message = {"target": {"topic": "t"}, "value": "v" * 3_000_000, "delay": "1h"}
    small = {**message, "value": "v"}
    with Inside(tmp_path, topics__message_bytes_max="1MiB") as service:
        left = service.server._context.bodies  # type: ignore[union-attr]
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            slow.sendall(head + b" " * 2_900_000)
            wait_until(lambda: left._left <= 4_200_000 - 2_900_000)
            answer = service.ask("POST", "/v1/messages", message)
            assert (answer.status, answer.problem) == (503, "busy")
            assert service.ask("POST", "/v1/messages", small).status == 202
        wait_until(lambda: left._left == 4 * 1024 * 1024 or left._left == 4_200_000)
        assert service.ask("POST", "/v1/messages", message).status == 422


def test_long_polls_share_no_thread_with_other_requests(tmp_path, monkeypatch):
    """Hundreds of polls, of topics that are there and of others, wait with few threads; actions and
    look-ups are answered."""
    monkeypatch.setattr("chronos.admin.http.waiting.POLLS_MAX", 300)
    with Inside(tmp_path) as service, ExitStack() as stack:
        service.ask(
            "POST", "/v1/messages", {"target": {"topic": "there"}, "value": "1", "delay": 0}
        )
        offset = service.ask("GET", "/v1/topics/there/records?wait=20s").json()["next_offset"]
        polls = []
        for at in range(300):
            path = (
                f"/v1/topics/there/records?offset={offset}&wait=60s"
                if at % 2
                else "/v1/topics/later/records?wait=60s"
            )
            poll = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            poll.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            polls.append(poll)
        context = service.server._context
        assert context is not None
        wait_until(lambda: context.polls._count == 300)
        assert service.ask("GET", "/v1/topics/there/records?wait=60s").problem == "busy"
        for at in range(20):
            body = {"target": {"topic": "t"}, "value": "v", "delay": "1h", "id": f"id-{at}"}
            assert service.ask("POST", "/v1/messages", body).status == 202
            assert service.ask("DELETE", f"/v1/messages/id-{at}").json()["result"] == "cancelled"
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith("http-poll") for name in names) <= 16
        for topic in ("there", "later"):
            service.ask(
                "POST", "/v1/messages", {"target": {"topic": topic}, "value": "2", "delay": 0}
            )
        for poll in polls:
            poll.settimeout(30)
            assert poll.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_no_log(service, caplog):
    """Neither a traceback nor a line."""
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: 10\r\n\r\n{"
    )
    with capture_logs() as logs:
        for is_busy in (False, False, True):
            both = threading.Barrier(2, timeout=30)
            if is_busy:  # the request and its end are found together
                service._loop.call_soon_threadsafe(lambda both=both: (both.wait(), both.wait()))
                both.wait()
            with socket.create_connection(("127.0.0.1", service.port)) as leaving:
                leaving.sendall(head)
            if is_busy:
                both.wait()
        context = service.server._context
        assert context is not None
        wait_until(lambda: service.server._listener._count <= 1)  # type: ignore[union-attr]
        assert service.ask("GET", "/livez").status == 200
    assert about_strangers(logs) == []
    assert caplog.records == []


# --- numbers, tokens and errors of Chronos

DIGITS = [
    "9" * 4_301,
    "-" + "9" * 4_301,
    "9" * 4_301 + "-1-1",
    "1," + "9" * 4_301,
    "9" * 4_301 + "ms",
    "9" * 20,
    "-1",
    "\u0663",
]
"""Python refuses to convert more than 4,300 digits."""


@pytest.mark.slow
def test_no_number_in_a_path_or_a_query_is_an_error_of_the_service(service):
    """Of any route, in any parameter."""
    with capture_logs() as logs:
        for route in table(None):
            paths = [
                re.sub(r"\{\w+\}", quote(text), route.path) for text in DIGITS if "{" in route.path
            ]
            at = re.sub(r"\{\w+\}", "0", route.path)
            paths += [
                f"{at}?{name}={quote(text)}"
                for name in route.query.__struct_fields__
                for text in DIGITS
            ]
            for path in paths:
                answer = service.ask(route.method, path, {} if route.body else None)
                assert answer.status != 500, (route.method, path[:100])
    assert [
        line for line in logs if line["event"] in ("request failed", "request not answered")
    ] == []


def test_an_error_of_the_service_is_logged_once_a_second_for_each_place(monkeypatch):
    """With the number of those that were left out, and another one beside it."""
    now_s = 100.0
    monkeypatch.setattr("chronos.admin.http.connections.time.monotonic", lambda: now_s)
    sparse_log = SparseLog()

    def fail(number: int) -> None:
        try:
            raise KeyError(number) if number % 2 else IndexError(number)
        except LookupError as error:
            sparse_log.fault("request failed", error, path="/")

    with capture_logs() as logs:
        for number in range(100):
            fail(number)
        now_s += 1.0
        fail(1)
    assert [(line["event"], line["left_out"]) for line in logs] == [
        ("request failed", 0),
        ("request failed", 0),
        ("request failed", 49),
    ]
    assert all(isinstance(line["exc_info"], LookupError) for line in logs)


# --- what nobody reads


def left_of(service: Inside) -> int:
    """The memory for requests that is left."""
    context = service.server._context
    assert context is not None
    return context.bodies._left


@pytest.mark.slow
def test_a_body_that_nobody_reads_stays_with_its_sender(service):
    """A connection takes a few kilobytes of it, which count, and keeps no more; the end of its
    request gives them back."""
    whole = left_of(service)
    head = (
        b"GET /v1/topics/none/records?wait=4s HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        b"4000000\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(10):
            sender = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
            sender.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sender.sendall(head + b" " * 4_000_000 * 2)
        assert 10 * READ_AHEAD_BYTES <= whole - left_of(service) <= 10 * BODY_UNREAD_MAX
        assert service.ask("GET", "/livez").status == 200
    wait_until(lambda: left_of(service) == whole)


def test_a_request_whose_body_is_not_read_is_answered_and_counts_no_more(service):
    """The rest of the body is thrown away as it comes, and the connection serves the next
    request."""
    whole = left_of(service)
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sender:
        for _ in range(2):
            sender.sendall(
                b"PUT /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n"
                + b" " * 3_000_000
            )
            assert sender.recv(100).startswith(b"HTTP/1.1 404")
            sender.recv(65_536)
        # The last of the body may still be on its way.
        wait_until(lambda: left_of(service) == whole)


def test_when_the_memory_for_requests_is_taken_small_ones_are_answered(tmp_path, monkeypatch):
    """A connection that sends more is closed, with one line in the log."""
    monkeypatch.setattr("chronos.admin.http.context.BODIES_BYTES_MAX", 4_200_000)
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: 4190000\r\n\r\n"
    )
    unread = (
        b"GET /v1/topics/none/records?wait=60s HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        b"200000\r\n\r\n"
    )
    with Inside(tmp_path, topics__message_bytes_max="1MiB") as service, capture_logs() as logs:
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            slow.sendall(head + b" " * 4_185_000)
            wait_until(lambda: left_of(service) < 16_384)
            with socket.create_connection(("127.0.0.1", service.port), timeout=20) as refused:
                with suppress(ConnectionError):
                    refused.sendall(unread + b" " * 200_000)
                assert closed(refused)
            assert service.ask("GET", "/livez").status == 200
        wait_until(lambda: left_of(service) >= 4_190_000)
    assert [line["why"] for line in logs if line["event"] == "connection closed"] == [
        "the memory for requests is taken"
    ]


def test_headers_without_an_end_are_not_kept(service):
    """Nor many requests that are not answered yet."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sender:
        with suppress(ConnectionError):
            sender.sendall(
                b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (b"a: " + b"b" * 8_000 + b"\r\n") * 100
            )
        assert closed(sender)
    poll = b"GET /v1/topics/none/records?wait=60s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sender:
        sender.settimeout(1.0)
        with suppress(OSError):
            sender.sendall(poll + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500_000)
        assert service.ask("GET", "/livez").status == 200
        assert left_of(service) > 0


def test_a_large_body_is_read_whatever_arrives_at_once(service):
    """In pieces of any size."""
    message = {"target": {"topic": "t"}, "value": "v" * 900_000, "delay": "1h"}
    assert service.ask("POST", "/v1/messages", message).status == 202
    body = b'{"target": {"topic": "t"}, "value": "%s", "delay": "1h"}' % (b"v" * 20_000)
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert raw(service, head + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 202")


def test_bodies_that_do_not_arrive_do_not_hold_up_a_stop(tmp_path):
    """Those that a handler reads are refused; the others are no longer waited for."""
    read = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: 90\r\n\r\n{"
    )
    unread = (
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n" + b" " * 100_000
    )
    with ExitStack() as stack:
        with Inside(tmp_path) as service:
            senders = [
                stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                for _ in range(20)
            ]
            for at, sender in enumerate(senders):
                sender.settimeout(20)
                sender.sendall(read if at % 2 else unread)
            wait_until(lambda: len(service.server._context.bodies._arriving) == 10)  # type: ignore[union-attr]
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 6.0
        assert senders[1].recv(100).startswith(b"HTTP/1.1 503")


# --- cron expressions


def cron_message(at: int, expression: str) -> dict[str, object]:
    return {
        "target": {"topic": "t"},
        "value": "v",
        "id": f"cron-{at}",
        "repeat": f"cron {expression}",
    }


def test_one_request_has_a_bounded_number_of_cron_expressions(tmp_path):
    """All messages of a request that is accepted are pending, whatever a step of the shard checks
    at once."""
    messages = [cron_message(at, f"{at % 60} {at // 60} * 1-6 *") for at in range(501)]
    with Inside(tmp_path) as service:
        answer = service.ask("POST", "/v1/messages", messages)
        assert answer.status == 422
        assert "more than 500 different cron expressions" in answer.json()["detail"]
        assert service.ask("POST", "/v1/messages", messages[:500]).status == 202
        alike = [cron_message(at, "0 9 * * 1-5") for at in range(1_000, 3_000)]
        assert service.ask("POST", "/v1/messages", alike).status == 202
        wait_until(
            lambda: (
                service.ask("GET", "/v1/shards").json()["shards"][0]["totals"]["accepted"] == 2_500
            )
        )


def test_expressions_that_never_fire_are_refused_each_with_its_field(service):
    """All of them, in a body that is small."""
    messages = [cron_message(at, f"{at} 0 */31 * 1#5,2#5") for at in range(60)]
    answer = service.ask("POST", "/v1/messages", messages)
    assert answer.status == 422
    assert len(answer.json()["errors"]) == 60
    assert {error["field"] for error in answer.json()["errors"]} == {"repeat"}
    assert "never fires" in answer.json()["errors"][0]["detail"]


def test_the_check_of_a_body_ends_when_its_client_leaves(tmp_path):
    """Nothing of it is written, and its memory is given back."""
    message = {"target": {"topic": "t"}, "value": "v" * 100, "delay": "1h", "repeat": "every 1h"}
    body = json.dumps([message] * 10_000).encode()
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with Inside(tmp_path) as service:
        whole = left_of(service)
        with socket.create_connection(("127.0.0.1", service.port)) as leaving:
            leaving.sendall(head % len(body) + body)
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert service.ask("GET", "/livez").status == 200
        wait_until(lambda: left_of(service) == whole)
        assert service.ask("GET", "/v1/shards").json()["shards"][0]["totals"]["accepted"] == 0
