"""The Kafka log without a broker: every error names the bootstrap servers that were asked. Needs no
Java."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition
from structlog.testing import capture_logs

from chronos.adapters.clock import SystemClock
from chronos.adapters.kafka import topics, writer
from chronos.adapters.kafka.cluster import heartbeats as heartbeats_module
from chronos.adapters.kafka.cluster.heartbeats import HeartbeatWriter
from chronos.adapters.kafka.connection import CONSUMER, Connection
from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.shared import Share, SharedConsumer
from chronos.adapters.kafka.topics import KafkaTopics
from chronos.adapters.kafka.writer import BulkOpener
from chronos.config import load
from chronos.core.cluster.kafka.records import LeaveRecord
from chronos.errors import LogUnavailable
from chronos.node.cluster import ClusterNode, NodeCallbacks, open_coordinator
from chronos.node.opening import open_kafka
from chronos.node.tls import Tls
from chronos.ports import TopicSpec
from chronos.workers.cluster import observer
from chronos.workers.cluster.observer import MasterPosition
from tests.harness.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture
def address() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, and never listening
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_every_error_without_a_broker_names_the_bootstrap_servers(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests at once, because each waits for its own time-out; `commit_offsets` is left out,
    it takes 45 s."""
    monkeypatch.setattr(writer, "INIT_TIMEOUT_S", 1.0)
    log = KafkaLog(
        bootstrap_servers=address,
        properties={},
        progress_topic="progress",
        transaction_timeout_s=1.0,
        request_timeout_s=0.5,
    )
    requests = {
        "prepare": lambda: log.prepare(
            [TopicSpec(name="t", partitions=1, settings={})], create=True
        ),
        "describe": lambda: log.describe(["t"]),
        "names": log.names,
        "watermarks": lambda: log.watermarks("t", 0),
        "stable_end": lambda: log.stable_end("t", 0),
        "offset_at": lambda: log.offset_at("t", 0, 1),
        "trim": lambda: log.trim("t", 0, 1),
        "committed": lambda: log.committed("g", "t", 0),
        "truncated": lambda: log.truncated({("t", 0): (5, 1)}),
        "cluster_id": log.cluster_id,
        "append": lambda: log.append([("t", None, b"v", [], 0)], 1.0),
        "writer": lambda: log.writer(0),
        "bulk": lambda: BulkOpener(bootstrap_servers=address, properties={}, timeout_s=1.0).open(
            "id"
        ),
    }
    with ThreadPoolExecutor(len(requests)) as pool:
        futures = {name: pool.submit(request) for name, request in requests.items()}
        errors = {name: future.exception(TIMEOUT_S) for name, future in futures.items()}
    assert not log.ping(0.1)
    log.close()
    assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(
        requests, LogUnavailable
    )
    assert [name for name, error in errors.items() if address not in str(error)] == []


def test_a_creation_whose_client_answers_too_late_can_be_tried_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a freeze of the process: the time for the answer is over before the client, which
    gives up earlier otherwise, has looked at its clock."""
    monkeypatch.setattr(topics, "ANSWER_MARGIN_S", -0.2)
    creating = KafkaTopics(Connection(address, {}, request_timeout_s=0.5), "progress")
    with pytest.raises(LogUnavailable, match=r"creating the topic t: no broker .* in time"):
        creating.creation_problems([TopicSpec(name="t", partitions=1, settings={})])


@pytest.mark.slow
def test_a_probe_that_is_not_acknowledged_discards_no_record_of_an_http_request(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an appender holds is discarded after the time of one call, so probes have one of their
    own."""
    monkeypatch.setattr(observer, "APPEND_S", 0.3)
    settings = [
        "log.kind=kafka",
        f"log.kafka.bootstrap_servers={address}",
        "coordinator.kind=kafka",
        "failover.on_unhealthy=auto",
    ]
    config = load(None, {}, settings)
    log = open_kafka(config)
    here = MasterPosition(cursor=(0, 0), pull_offset=0)
    node = ClusterNode(
        open_coordinator(config, Tls(config)),
        config,
        log=log,
        clock=SystemClock(),
        callbacks=NodeCallbacks(
            describe=lambda: pytest.fail("it has not joined"),
            look=lambda shard, master: here,
            changed=lambda: True,
            assigned=lambda _: None,
            failed=lambda error: None,
        ),
    )
    assert node._observer is not None
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(log.append, [("t", None, b"of a request", [], 0)], TIMEOUT_S)
        producer = log._appender._started()
        wait_until(lambda: len(producer) > 0, timeout_s=TIMEOUT_S)
        node._observer._observe(dict.fromkeys(range(config.shards), (1, "n")))
        with pytest.raises(TimeoutError):
            accepted.result(0.5)
        with pytest.raises(LogUnavailable):
            log.append([("t", None, b"of another request", [], 0)], 0.1)
        with pytest.raises(LogUnavailable):
            accepted.result(TIMEOUT_S)
    node.leave(1.0)
    log.close()


def test_an_outage_is_one_line_about_heartbeats(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it lasts: another line says each minute that no broker answers."""
    monkeypatch.setattr(heartbeats_module, "LINES_S", 0.0)
    connection = Connection(address, {})
    heartbeats = HeartbeatWriter(connection, "chronos.cluster", 200)
    failed: list[str] = []
    with capture_logs() as logs:
        for count in range(1, 3):
            heartbeats.write(
                LeaveRecord(node="a", incarnation="i", generation=1),
                lambda offset, why: failed.append(why),
            )

            def has_failed(count: int = count) -> bool:
                heartbeats.poll()
                return len(failed) == count

            wait_until(has_failed, timeout_s=TIMEOUT_S)
    assert [line["event"] for line in logs].count("heartbeat not written") == 1
    assert all("timed out" in why for why in failed)
    heartbeats.close()


class Lines(list[str]):
    """A logger that keeps the lines of a client, each of which waits in it for a poll."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        self.append(text)


def test_a_shared_consumer_without_shares_keeps_no_lines_for_the_log(address: str) -> None:
    """Its readers have left it, because no broker answers; the client writes a line whenever a
    connection fails."""
    lines, settings = Lines(), Connection(address, {}).settings(CONSUMER)
    shared = SharedConsumer(lambda: {**settings, "logger": lines})
    share = Share(shared)
    share.assign([TopicPartition("t", 0, 0)])
    wait_until(lambda: len(lines) > 0, timeout_s=TIMEOUT_S)
    share.close()
    wait_until(lambda: not shared._asked, timeout_s=TIMEOUT_S)
    for _ in range(2):
        before = len(lines)
        wait_until(lambda before=before: len(lines) > before, timeout_s=10)  # type: ignore[misc]
    shared.close()
