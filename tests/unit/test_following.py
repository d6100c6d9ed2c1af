"""What `chronos archive --follow` shows of its runs, and how it ends: the status, its HTTP server,
its options and its signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from chronos.admin.archive.server import ArchiveServer
from chronos.admin.archive.status import ARCHIVE_METRICS, STALE_ROUNDS, ArchiveStatus
from chronos.cli.spark.follow import Stopping, follow_options
from chronos.config import load
from chronos.errors import ArchiveFailed, LogUnavailable, Stop

PAUSE_S = 60.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of the status."""
    return Clock()


@pytest.fixture
def status(clock: Clock) -> ArchiveStatus:
    """That of a process that was just started."""
    return ArchiveStatus(
        ("deliveries", "messages"),
        cluster="c",
        location="file:///a",
        pause_s=PAUSE_S,
        monotonic=clock,
    )


def run(status: ArchiveStatus, clock: Clock, run_s: float, error: Exception | None = None) -> None:
    """A run that takes so long."""
    status.run_began()
    clock.now_s += run_s
    if error is None:
        status.run_succeeded()
    else:
        status.run_failed(error)


def samples(status: ArchiveStatus) -> dict[str, float]:
    """The values of all metrics, with the value of a label behind the name."""
    return {
        ":".join([sample.name, *sample.labels.values()]): sample.value
        for family in status.collect()
        for sample in family.samples
        if not sample.name.endswith("_info")
    }


def test_every_metric_that_is_listed_is_there_with_its_kind_and_no_other(
    status: ArchiveStatus, clock: Clock
) -> None:
    """After a run, a commit and a failure nothing is absent any more."""
    status.committed({"messages": (1, 0)})
    status.archived_until(1_500)
    run(status, clock, 1.0)
    run(status, clock, 1.0, ArchiveFailed("x"))
    found = {sample.name: family.type for family in status.collect() for sample in family.samples}
    assert found == {name: kind for name, kind, _ in ARCHIVE_METRICS}


def test_the_counts_of_runs_add_up(status: ArchiveStatus, clock: Clock) -> None:
    """By table and by kind of error; an end that is not known any more stays."""
    first = samples(status)
    assert first["chronos_archive_records_total:deliveries"] == 0
    assert "chronos_archive_end_timestamp_seconds" not in first
    assert "chronos_archive_commit_timestamp_seconds" not in first
    assert abs(first["chronos_archive_success_timestamp_seconds"] - time.time()) < 60
    status.committed({"messages": (3, 1), "deliveries": (2, 0)})
    status.committed({"messages": (4, 0)})
    status.archived_until(1_500)
    status.archived_until(None)
    status.archived_until(0)
    run(status, clock, 7.0, LogUnavailable("x"))
    run(status, clock, 7.0, LogUnavailable("x"))
    run(status, clock, 5.0, ArchiveFailed("x"))
    run(status, clock, 6.0)
    last = samples(status)
    assert last["chronos_archive_records_total:messages"] == 7
    assert last["chronos_archive_records_total:deliveries"] == 2
    assert last["chronos_archive_gaps_total:messages"] == 1
    assert last["chronos_archive_end_timestamp_seconds"] == 1.5
    assert last["chronos_archive_runs_total"] == 4
    assert last["chronos_archive_failures_total:LogUnavailable"] == 2
    assert last["chronos_archive_failures_total:ArchiveFailed"] == 1
    assert last["chronos_archive_run_seconds"] == 6.0


def test_an_archive_is_ready_until_the_last_success_is_too_long_ago(
    status: ArchiveStatus, clock: Clock
) -> None:
    """The bound is that of some pauses and runs. A failure before it is a detail, and a reason from
    then on."""
    assert status.reasons() == ["no run has ended without an error yet"]
    run(status, clock, 10.0, ArchiveFailed("no broker"))
    assert status.reasons()[0] == "no run has ended without an error yet"
    assert status.reasons()[1].endswith("Z failed: no broker")
    run(status, clock, 10.0)
    assert (status.reasons(), status.details()) == ([], [])
    clock.now_s += 30.0
    run(status, clock, 1.0, ArchiveFailed("no broker again"))
    assert status.reasons() == []
    assert status.details()[0].endswith("failed: no broker again")
    clock.now_s += STALE_ROUNDS * (PAUSE_S + 10.0) - 31.0
    assert status.reasons() == []
    assert samples(status)["chronos_archive_ready"] == 1
    clock.now_s += 1.0
    assert status.reasons()[0] == (
        "the last run without an error ended 211s ago, and more than 210s is too long"
    )
    assert status.reasons()[1].endswith("failed: no broker again")
    assert samples(status)["chronos_archive_ready"] == 0
    run(status, clock, 10.0)
    assert (status.reasons(), status.details()) == ([], [])


@pytest.fixture
def server(status: ArchiveStatus) -> Iterator[ArchiveServer]:
    """A server that has not been started."""
    made = ArchiveServer(status, load(None, {}, []))
    yield made
    made.stop()


def get(url: str, host: str | None = None) -> tuple[int, str, str]:
    """Status, type and body of an answer."""
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_server_answers_with_metrics_and_readiness(
    status: ArchiveStatus, server: ArchiveServer, clock: Clock
) -> None:
    """Problems are those of the service: a reason each, another host, an unknown path."""
    url = server.start("127.0.0.1", 0)
    code, kind, body = get(f"{url}/readyz")
    assert (code, kind) == (503, "application/problem+json")
    assert json.loads(body)["errors"] == [{"detail": "no run has ended without an error yet"}]
    run(status, clock, 1.0)
    assert get(f"{url}/readyz")[::2] == (200, '{"status":"ok"}')
    run(status, clock, 1.0, ArchiveFailed("why"))
    code, _, body = get(f"{url}/readyz")
    assert code == 200
    assert json.loads(body)["details"][0].endswith("failed: why")
    code, kind, body = get(f"{url}/metrics")
    assert (code, kind.partition(";")[0]) == (200, "text/plain")
    names = {each.name for each in text_string_to_metric_families(body)}
    assert {"chronos_archive_ready", "chronos_archive_runs", "process_open_fds"} <= names
    assert get(f"{url}/metrics", "evil.example")[0] == 421
    assert get(f"{url}/v1/shards")[0] == 404
    assert get(f"{url}/livez")[0] == 404


def test_an_address_that_is_taken_is_named(server: ArchiveServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Stop, match=f"--listen 127.0.0.1:{port}: cannot listen there: "):
            server.start("127.0.0.1", port)


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:7790", "127.0.0.1", 7790),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("archive.example.com:65535", "archive.example.com", 65_535),
        ("[::1]:7790", "::1", 7790),
    ],
)
def test_an_address_has_a_host_and_a_port(listen: str, host: str, port: int) -> None:
    found = follow_options("90s", listen)
    assert (found.host, found.port, found.pause_s) == (host, port, 90.0)


@pytest.mark.parametrize("listen", ["7790", ":7790", "localhost", "::1:7790", "h:65536", "h:-1"])
def test_another_text_is_refused_as_an_address(listen: str) -> None:
    with pytest.raises(typer.BadParameter, match="write HOST:PORT"):
        follow_options("1m", listen)
    with pytest.raises(typer.BadParameter, match="--every"):
        follow_options("soon", "127.0.0.1:7790")


def test_the_first_signal_asks_to_stop_and_ends_a_pause_and_the_second_interrupts() -> None:
    """Before the runs the first one interrupts too. Python's main thread gets the signals."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopping = Stopping()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert not stopping.is_stopping()
        stopping.begin_runs()
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        stopping.pause(60.0)
        assert time.monotonic() - began < 30
        assert stopping.is_stopping()
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    finally:
        stopping.close()
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
