"""Batches that no reader can decompress, in the delay topic: stepped over by a decision, and by
replay without a look inside."""

from __future__ import annotations

import resource
import shutil
import time
import uuid
from http.client import HTTPException
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chronos.adapters.kafka.bounded import reader as reading
from chronos.node import data_directory
from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker
from tests.harness.inside import Inside
from tests.harness.service import Service
from tests.harness.waiting import wait_until
from tests.harness.zookeeper import Ensemble
from tests.integration.foreign import Sent, Tail, Topics, produce, progress_of, read_all, schedule

pytestmark = pytest.mark.kafka

DELAYED_S_MAX = 60
"""Longest delay of the messages behind such a batch."""

RESIDENT_BYTES_MAX = 1 << 30

UNCLEAN_ENDS_MAX = 2


@pytest.mark.smoke
def test_batches_that_cannot_be_read_cost_only_themselves(broker: Broker, tmp_path: Path) -> None:
    """One record of 110 MB, then a batch of many and another one directly behind it; then such a
    record in other codecs.

    Afterwards a new store replays all.
    """
    topics = Topics.of(f"u{uuid.uuid4().hex[:8]}")
    target = broker.create_topic(f"{topics.delay}.target")
    compressed = {
        "linger_ms": 5_000,
        "batch_size": 500_000_000,
        "message_max_bytes": 500_000_000,
    }
    message = schedule(target)

    def send(*values: bytes) -> None:
        produce(
            broker.bootstrap, topics.delay, [Sent(value, message, partition=0) for value in values]
        )

    def bomb(count: int, size: int, codec: str = "zstd") -> tuple[int, int]:
        records = [Sent(bytes(size), message, partition=0)] * count
        places = produce(
            broker.bootstrap, topics.delay, records, compression_codec=codec, **compressed
        )
        return places[0][1], places[-1][1]

    def arrived(*values: bytes) -> None:
        with Tail(broker.bootstrap, target, topics.rejected) as tail:
            tail.take(target, len(values), timeout_s=DELAYED_S_MAX)
            tail.take(topics.rejected, len(ranges))
            tail.settle()
            assert [got.value for got in tail.records[target]] == list(values)
            rejected = tail.records[topics.rejected]
        assert [(got.value, got.reason) for got in rejected] == [(None, "unreadable")] * len(ranges)
        assert sorted(got.source or b"" for got in rejected) == sorted(
            f"{topics.delay}/0/{first}".encode() for first, _ in ranges
        )
        details = b" ".join(got.header("chronos-detail") or b"" for got in rejected)
        assert all(f"offsets {first} to {last}:".encode() in details for first, last in ranges)

    service = Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=topics.settings())
    with service:
        service.start()
        send(b"before")
        ranges = [bomb(1, 110_000_000)]
        send(b"between")
        ranges += [bomb(1_050, 100_000), bomb(1, 110_000_000)]
        send(b"after")
        ranges += [bomb(1, 110_000_000, "gzip"), bomb(1, 110_000_000, "lz4")]
        send(b"behind")
        arrived(b"before", b"between", b"after", b"behind")
        assert service.resident_bytes() < RESIDENT_BYTES_MAX
        service.stop()
        steps = [progress for _, progress in progress_of(broker.bootstrap, topics.progress)]
        assert [step.unreadable for step in steps if step.unreadable] == [
            (each,) for each in ranges
        ]

        shutil.rmtree(tmp_path / "node" / "shards")
        started_s = time.monotonic()
        service.start()
        send(b"again")
        arrived(b"before", b"between", b"after", b"behind", b"again")
        assert time.monotonic() - started_s < DELAYED_S_MAX


def test_a_batch_that_takes_too_much_memory_ends_the_process_twice_at_most(
    broker: Broker, tmp_path: Path
) -> None:
    """Two such batches with a message between them: the client aborts the process, also when it
    only fetches ahead."""
    topics = Topics.of(f"m{uuid.uuid4().hex[:8]}")
    target = broker.create_topic(f"{topics.delay}.target")
    service = Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=topics.settings())
    message = schedule(target)
    limit = 0

    def send(value: bytes, **settings: object) -> int:
        ((_, offset),) = produce(
            broker.bootstrap, topics.delay, [Sent(value, message, partition=0)], **settings
        )
        return offset

    def bomb() -> int:
        return send(bytes(250_000_000), compression_codec="lz4", message_max_bytes=500_000_000)

    with service.start(), Tail(broker.bootstrap, target, topics.rejected) as tail:
        send(b"before")
        tail.take(target, 1)
        limit = data_bytes(service.pid) + 150_000_000
        resource.prlimit(service.pid, resource.RLIMIT_DATA, (limit, limit))
        began_s = time.monotonic()
        offsets = [bomb()]
        send(b"between")
        offsets.append(bomb())
        send(b"after")
        service.wait_exit()
        ends = 1
        while ends <= UNCLEAN_ENDS_MAX:
            service.launch()
            resource.prlimit(service.pid, resource.RLIMIT_DATA, (limit, limit))
            deadline_s = time.monotonic() + DELAYED_S_MAX
            while (
                service.running and len(tail.records[target]) < 3 and time.monotonic() < deadline_s
            ):
                tail.read()
            if service.running:
                break
            service.wait_exit()
            ends += 1
        assert [got.value for got in tail.settle().records[target]] == [
            b"before",
            b"between",
            b"after",
        ], service.tail()
        assert ends <= UNCLEAN_ENDS_MAX
        assert time.monotonic() - began_s < DELAYED_S_MAX
        rejected = tail.records[topics.rejected]
        assert [(got.value, got.reason, got.source) for got in rejected] == [
            (None, "unreadable", f"{topics.delay}/0/{offset}".encode()) for offset in offsets
        ]
        send(b"later")
        tail.take(target, 4)


def test_a_large_batch_that_a_master_could_read_is_replayed_after_an_unclean_end(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that starts next reads in less memory than the batch needs; but its records were
    taken in."""
    topics = Topics.of(f"l{uuid.uuid4().hex[:8]}")
    target = broker.create_topic(f"{topics.delay}.target")
    service = Service(tmp_path / "data", bootstrap=broker.bootstrap, settings=topics.settings())
    inside = {
        name.replace(".", "__"): value
        for name, value in service.settings.items()
        if name.startswith(("log.", "top"))
    }

    def send(value: bytes) -> None:
        produce(broker.bootstrap, topics.delay, [Sent(value, schedule(target), partition=0)])

    with service.start(), Tail(broker.bootstrap, target, topics.rejected) as tail:
        send(b"before")
        # It has no target and is rejected: in the store, it would be flushed at once, and the next
        # process would begin behind it.
        large = [Sent(bytes(90_000_000), partition=0)]
        produce(
            broker.bootstrap,
            topics.delay,
            large,
            compression_codec="lz4",
            message_max_bytes=500_000_000,
        )
        send(b"behind")
        tail.take(target, 2)
        tail.take(topics.rejected, 1)
        service.kill()
        monkeypatch.setattr(reading, "MEMORY_BYTES", 300_000_000)
        # The kernel does not tell whether it killed a process for want of memory.
        monkeypatch.setattr(data_directory, "killed_for_memory", lambda: data_directory.UNKNOWN)
        with capture_logs() as lines, Inside(tmp_path, cluster=topics.delay, **inside):
            send(b"after")
            tail.take(target, 3)
        events = [line["event"] for line in lines]
        assert any("reading in bounded memory" in line.get("why", "") for line in lines)
        assert "no memory to read on" in events
        assert [got.value for got in tail.settle().records[target]] == [
            b"before",
            b"behind",
            b"after",
        ]
        assert [got.reason for got in tail.records[topics.rejected]] == ["no-target"]


def test_two_nodes_step_over_such_batches_alike(
    broker: Broker, zookeeper: Ensemble, tmp_path: Path
) -> None:
    """The follower fetches them ahead, and each node has little memory: it ends twice at most, and
    is started again."""
    topics = Topics.of(f"f{uuid.uuid4().hex[:8]}")
    target = broker.create_topic(f"{topics.delay}.target")
    message = schedule(target)
    fleet = Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=zookeeper.hosts,
        count=2,
        shards=1,
        settings={**topics.settings(), "delivery.transaction_timeout": "4s"},
    )

    def send(value: bytes, **settings: object) -> None:
        produce(broker.bootstrap, topics.delay, [Sent(value, message)], **settings)

    with fleet, Tail(broker.bootstrap, target) as tail:
        fleet.start()
        send(b"before")
        tail.take(target, 1)
        fleet.wait_alike()
        limits = {name: data_bytes(node.pid) + 220_000_000 for name, node in fleet.nodes.items()}
        ends = dict.fromkeys(limits, 0)
        for name, node in fleet.nodes.items():
            resource.prlimit(node.pid, resource.RLIMIT_DATA, (limits[name], limits[name]))
        send(bytes(250_000_000), compression_codec="lz4", message_max_bytes=500_000_000)
        send(b"between")
        send(bytes(120_000_000), compression_codec="zstd", message_max_bytes=500_000_000)
        send(b"after")

        def is_settled() -> bool:
            tail.read()
            for name, node in fleet.nodes.items():
                if not node.running:
                    ends[name] += 1
                    node.launch()
                    resource.prlimit(node.pid, resource.RLIMIT_DATA, (limits[name], limits[name]))
            if len(tail.records[target]) < 3 or not all(
                node.is_ready() for node in fleet.nodes.values()
            ):
                return False
            try:
                answers = [node.ask("GET", "/v1/shards/0/digest") for node in fleet.nodes.values()]
            except (OSError, HTTPException):
                return False  # it ended meanwhile
            if any(status != 200 for status, _ in answers):
                return False
            return len({(answer["applied"], answer["digest"]) for _, answer in answers}) == 1

        wait_until(
            is_settled,
            lambda: [node.tail() for node in fleet.nodes.values()],
            timeout_s=2 * DELAYED_S_MAX,
        )
        assert [got.value for got in tail.settle().records[target]] == [
            b"before",
            b"between",
            b"after",
        ]
        assert [got.reason for got in read_all(broker.bootstrap, topics.rejected)] == [
            "unreadable"
        ] * 2
        assert max(ends.values()) <= UNCLEAN_ENDS_MAX, ends


def data_bytes(pid: int) -> int:
    """What counts for RLIMIT_DATA."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmData:")
    )
    return int(line.split()[1]) * 1024
