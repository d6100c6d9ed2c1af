"""Held records: a partition, or the rejected topic, that takes no records delays what goes there,
and nothing else.

Masters of two shards and their followers on the embedded log, which is told which partitions take
no records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.config import load
from chronos.core.keys import partition_of
from chronos.core.message import Reason, Record
from chronos.core.query.lookup import holds_for
from chronos.core.shard import queues
from chronos.core.shard.digest import digest
from chronos.core.shard.progress import Progress, unpack_progress
from chronos.errors import ChronosError, TransactionAborted
from chronos.node.shards import ShardDriver, Shared, make_shard
from chronos.node.topics import own_topics
from chronos.ports import Outgoing, TopicInfo, Writer
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.horizon import reached_ms, unforwarded_ms, unpulled_ms
from chronos.workers.step.letter_topics import ELECTION_MS, REFUSED_PAUSE_MS
from tests.harness.clock import HandClock
from tests.harness.memory import MemoryStore
from tests.harness.writers import AroundWriter

SHARDS = 3
IDS = [
    [name for at in range(400) if partition_of(name := b"%d" % at, SHARDS) == home]
    for home in range(SHARDS)
]
"""Partition -> ids that belong to it."""
SECOND = 1_000
STEP_MESSAGES = 500
"""Fewer than a node has, so that few records fill a step."""


class Refusing(AroundWriter):
    """A writer whose transactions fail if they hold records for a place that refuses them."""

    def __init__(self, log: PartialLog, writer: Writer) -> None:
        super().__init__(writer)
        self._log = log

    def send(self, messages: Sequence[Outgoing], progress: bytes) -> None:
        places = {(topic, partition) for topic, _, _, _, partition in messages}
        if {*places, *((topic, -1) for topic, _ in places)} & self._log.refusing:
            raise TransactionAborted("refused", poison_likely=True)
        super().send(messages, progress)


class PartialLog(EmbeddedLog):
    """The embedded log, some of whose partitions take no records."""

    leaderless: set[tuple[str, int]]
    """Topics and partitions that are described as without a leader."""
    refusing: set[tuple[str, int]]
    """Topics and partitions (-1: all) that refuse records, which their description does not say."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        return {
            name: info
            and replace(
                info,
                leaderless=frozenset(number for topic, number in self.leaderless if topic == name),
            )
            for name, info in super().describe(topics).items()
        }

    def writer(self, shard: int) -> Refusing:  # type: ignore[override]
        return Refusing(self, super().writer(shard))


class Service:
    """Three shards on one node, which are stepped by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = HandClock()
        self.config = load(None, {}, [f"shards={SHARDS}"])
        self.topics = self.config.topics
        self.log = PartialLog(
            path / "log",
            clock=self.clock,
            progress_topic=self.topics.progress,
            disk_reserve_bytes=0,
        )
        self.log.leaderless, self.log.refusing = set(), set()
        self.log.prepare(own_topics(self.config), create=True)
        self.failures: list[ChronosError] = []
        self.stores = [MemoryStore() for _ in range(SHARDS)]
        self.shards = [
            self.make(number, self.stores[number], STANDALONE) for number in range(SHARDS)
        ]
        self.run(0)

    def make(self, number: int, store: MemoryStore, assignment: Assignment) -> ShardDriver:
        shared = Shared(
            config=self.config,
            log=self.log,
            clock=self.clock,
            instance="a",
            guard=lambda: None,
            failed=self.failures.append,
        )
        return make_shard(
            shared,
            number,
            store=store,
            assigned=lambda: assignment,
            restore=lambda cost: False,
        )

    def run(self, for_ms: int, *, only: Sequence[int] = range(SHARDS)) -> None:
        """Step the shards until that much time has passed, each as often as it asks for."""
        until_ms = self.clock.now + for_ms
        while True:
            for _ in range(30):
                wakes = [
                    self.shards[number].replica.step(self.clock.now).wake_ms for number in only
                ]
                if min(wakes) > self.clock.now:
                    break
            assert not self.failures
            if self.clock.now >= until_ms:
                return
            self.clock.now = min(
                until_ms, max(self.clock.now + 1, min(*wakes, self.clock.now + 250))
            )

    def write(
        self, partition: int, *records: tuple[bytes | None, bytes | None, dict[str, bytes | None]]
    ) -> list[int]:
        """Append records to a partition of the delay topic."""
        made: list[Outgoing] = [
            (self.topics.delay, key, value, headers, partition) for key, value, headers in records
        ]
        return [appended.offset for appended in self.log.append(made, 9.0)]

    def message(
        self, message_id: bytes, in_ms: int, value: bytes = b"v"
    ) -> tuple[bytes, bytes, dict[str, bytes | None]]:
        """A message that is due so much later, whatever becomes of it until then."""
        headers: dict[str, bytes | None] = {
            "chronos-target-topic": b"t",
            "chronos-deliver-at": b"%d" % (self.clock.now + in_ms),
        }
        return message_id, value, headers

    def read(self, topic: str, partition: int = 0) -> list[Record]:
        reader = self.log.reader(topic, partition, 0)
        found: list[Record] = []
        while records := reader.read(1_000, 1 << 30):
            found += records
        reader.close()
        return found

    def delivered(self) -> list[bytes | None]:
        infos = self.log.topics()
        return (
            [
                record.value
                for number in range(infos["t"].partitions)
                for record in self.read("t", number)
            ]
            if "t" in infos
            else []
        )

    def rejected(self) -> list[tuple[bytes | None, bytes | None, bytes | None]]:
        """Key, source offset and reason of the rejected records."""
        found: list[tuple[bytes | None, bytes | None, bytes | None]] = []
        for number in range(self.log.topics()[self.topics.rejected].partitions):
            for record in self.read(self.topics.rejected, number):
                headers = dict(record.headers or ())
                source = (headers["chronos-source"] or b"").rpartition(b"/")[2]
                found.append((record.key, source, headers["chronos-reason"]))
        return found

    def progress(self, shard: int) -> list[Progress]:
        return [
            unpack_progress(record.value, SHARDS)
            for record in self.read(self.topics.progress, shard)
        ]

    def waits(self, shard: int) -> tuple[int, int]:
        """Held records, and those of them for other partitions."""
        state = self.shards[shard].replica.state
        return state.held, state.held_forwards

    def check_replay(self, number: int) -> None:
        """A follower that starts from nothing ends with the same state."""
        store = MemoryStore()
        follower = self.make(number, store, Assignment(kind="follower"))
        while follower.replica.role != ReplicaState.FOLLOWER:
            follower.replica.step(self.clock.now)
        assert follower.replica.state == self.shards[number].replica.state
        assert digest(store) == digest(self.stores[number])
        follower.replica.close()

    def close(self) -> None:
        for shard in self.shards:
            shard.replica.close()
        self.log.close()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr("chronos.node.shards.STEP_MESSAGES", STEP_MESSAGES)
    service = Service(tmp_path)
    yield service
    service.close()


def cut(service: Service, partition: int) -> None:
    """From now on a partition of the delay topic has no leader, and the masters know it."""
    service.log.leaderless.add((service.topics.delay, partition))
    service.run(11 * SECOND)


def test_every_cancel_behind_a_record_that_cannot_be_forwarded_wins(service: Service) -> None:
    """And the record arrives, and acts, once the partition of its id has a leader."""
    cut(service, 1)
    kept, gone, late = IDS[0][0], IDS[0][1:21], IDS[1][0]
    service.write(0, *(service.message(name, 30 * SECOND, name) for name in (kept, *gone)))
    service.write(1, service.message(late, 60 * SECOND, late))
    service.run(SECOND)
    service.write(0, (late, None, {}))
    service.write(0, *((name, None, {}) for name in gone))
    service.run(40 * SECOND)
    assert service.delivered() == [kept]
    assert service.waits(0) == (1, 1)
    paused = service.shards[0].replica.paused
    assert paused is not None
    assert (
        "1 records wait to be forwarded to chronos.delay/1 (chronos.delay/1 has no leader" in paused
    )
    service.log.leaderless.clear()
    service.run(40 * SECOND)
    assert service.delivered() == [kept]
    assert (service.waits(0), service.shards[0].replica.paused) == ((0, 0), None)
    totals = service.shards[0].replica.state.totals
    assert (totals.held, totals.forwarded, totals.rejected, totals.cancelled) == (1, 1, 0, 20)
    assert service.shards[1].replica.state.totals.cancelled == 1
    service.check_replay(0)
    service.check_replay(1)


def test_records_of_an_id_keep_their_order_behind_a_queue(service: Service) -> None:
    """What comes while the queue is written on goes behind it."""
    name, batch = IDS[1][0], STEP_MESSAGES
    cut(service, 1)
    many = [service.message(each, 500 * SECOND) for each in IDS[1][1:40]] * (batch // 30)
    service.write(0, *many, service.message(name, 500 * SECOND, b"first"))
    service.run(10)
    assert service.waits(0) == (len(many) + 1,) * 2
    service.log.leaderless.clear()
    while not service.progress(0)[-1].written:
        service.run(100, only=[1])
        service.shards[0].replica.step(service.clock.now)
    assert service.waits(0)[0] > 0
    service.clock.now += service.config.delivery.linger
    service.write(0, (name, None, {}), service.message(name, 200, b"second"), (name, None, {}))
    service.write(2, service.message(IDS[1][41], 200, b"through another partition"))
    service.run(10 * SECOND)
    assert service.waits(0) == (0, 0)
    hops = [
        dict(record.headers or ()).get("chronos-forwarded")
        for record in service.read(service.topics.delay, 1)
    ]
    through_0 = [
        int(hop.split(b"/")[2].split(b";")[0])
        for hop in hops
        if hop and hop.startswith(b"chronos.delay/0/")
    ]
    assert through_0 == list(range(len(many) + 4))
    assert service.delivered() == [b"through another partition"]
    assert service.shards[1].replica.state.totals.cancelled == 2
    written = [progress.written for progress in service.progress(0) if progress.written]
    assert len(written) >= 2
    assert all(progress.selected == 0 for progress in service.progress(0) if progress.written)
    service.check_replay(0)


def test_deliveries_go_on_between_the_steps_that_write_on(service: Service) -> None:
    cut(service, 1)
    batch = STEP_MESSAGES
    service.write(0, *[service.message(name, 500 * SECOND) for name in IDS[1][:40]] * (batch // 10))
    service.run(10)
    service.write(0, *(service.message(name, 1_500, name) for name in IDS[0][:5]))
    service.run(SECOND)
    service.log.leaderless.clear()
    service.clock.now += 1_000
    seen: list[Progress] = []
    for _ in range(30):
        service.shards[0].replica.step(service.clock.now)
        last = service.progress(0)[-1]
        if not seen or seen[-1] is not last:
            seen.append(last)
    wrote = [bool(progress.written) for progress in seen]
    delivered = next(at for at, progress in enumerate(seen) if progress.selected)
    assert wrote[:delivered].count(True) <= 2
    assert service.waits(0)[0] == 0


def test_a_master_that_takes_over_finds_the_queues(service: Service) -> None:
    """From its store, and from the log alone."""
    cut(service, 1)
    service.write(0, *(service.message(name, 500 * SECOND) for name in IDS[1][:5]))
    service.run(10)
    service.check_replay(0)
    service.shards[0].replica.close()
    store = MemoryStore()
    service.stores[0] = store
    service.shards[0] = service.make(0, store, STANDALONE)
    service.run(100 * SECOND)
    assert service.waits(0) == (5, 5)
    service.log.leaderless.clear()
    service.run(2 * SECOND)
    assert service.waits(0) == (0, 0)
    assert service.shards[1].replica.state.pending == 5


def test_a_partition_that_refuses_records_without_a_word_is_found_alone(service: Service) -> None:
    """Two transactions fail; then what goes there waits, and what goes to the others is
    forwarded."""
    service.log.refusing.add((service.topics.delay, 1))
    service.write(
        0,
        service.message(IDS[1][0], 20 * SECOND, b"one"),
        service.message(IDS[2][0], 20 * SECOND, b"two"),
    )
    service.write(0, service.message(IDS[0][0], 2 * SECOND, b"own"))
    service.run(REFUSED_PAUSE_MS + SECOND)
    assert service.shards[0].replica.aborts >= 2
    assert service.waits(0) == (1, 1)
    assert service.delivered() == [b"own"]
    service.run(30 * SECOND)
    assert service.delivered() == [b"own", b"two"]
    service.log.refusing.clear()
    service.run(REFUSED_PAUSE_MS + SECOND)
    assert sorted(value or b"" for value in service.delivered()) == [b"one", b"own", b"two"]
    service.check_replay(0)


def test_rejections_wait_while_the_rejected_topic_takes_none(service: Service) -> None:
    """The client's answer does not wait: the progress record has the reason. The letter has its
    text, cut."""
    partitions = service.log.topics()[service.topics.rejected].partitions
    service.log.leaderless |= {(service.topics.rejected, number) for number in range(partitions)}
    service.run(11 * SECOND)
    kept, gone = IDS[0][0], IDS[0][1:4]
    service.write(0, *(service.message(name, 30 * SECOND, name) for name in (kept, *gone)))
    unknown, flawed = service.write(
        0,
        (IDS[0][8], None, {"chronos-action": b"fire-now"}),
        (IDS[0][9], b"v", {"chronos-wish": b"x" * 400}),
    )
    service.write(0, *((name, None, {}) for name in gone))
    service.run(40 * SECOND)
    assert (service.delivered(), service.rejected(), service.waits(0)) == ([kept], [], (2, 0))
    assert service.shards[0].replica.state.totals.rejected == 0
    refused = {
        offset: reason for progress in service.progress(0) for offset, reason in progress.refused
    }
    assert refused == {unknown: Reason.UNKNOWN, flawed: Reason.UNKNOWN_HEADER}
    assert "chronos.rejected takes no records" in (service.shards[0].replica.paused or "")
    service.check_replay(0)
    service.log.leaderless.clear()
    service.run(2 * SECOND)
    assert [(source, reason) for _, source, reason in service.rejected()] == [
        (b"%d" % unknown, b"unknown"),
        (b"%d" % flawed, b"unknown-header"),
    ]
    assert (service.waits(0), service.shards[0].replica.state.totals.rejected) == ((0, 0), 2)
    service.check_replay(0)


def test_a_held_record_that_its_partition_would_not_take_any_more_is_rejected(
    service: Service,
) -> None:
    """Those before and behind it are forwarded."""
    cut(service, 1)
    before, large, behind = IDS[1][:3]
    service.write(
        0,
        service.message(before, 20 * SECOND, b"before"),
        service.message(large, 20 * SECOND, b"x" * 5_000),
        service.message(behind, 20 * SECOND, b"behind"),
    )
    service.run(10)
    (spec,) = [spec for spec in own_topics(service.config) if spec.name == service.topics.delay]
    smaller = replace(spec, settings={**spec.settings, "max.message.bytes": "2000"})
    service.log.prepare([smaller], create=True)
    small = {name: info.bytes_max for name, info in service.log.topics().items()}
    service.log.leaderless.clear()
    service.run(30 * SECOND)
    assert small[service.topics.delay] == 2_000
    assert sorted(value or b"" for value in service.delivered()) == [b"before", b"behind"]
    assert [(key, reason) for key, _, reason in service.rejected()] == [(large, b"too-large")]
    service.check_replay(0)


def test_a_held_record_that_is_too_large_waits_for_the_rejected_topic_and_holds_up_no_other(
    service: Service,
) -> None:
    cut(service, 1)
    before, large, behind = IDS[1][:3]
    service.write(
        0,
        service.message(before, 20 * SECOND, b"before"),
        service.message(large, 20 * SECOND, b"x" * 5_000),
        service.message(behind, 20 * SECOND, b"behind"),
    )
    service.run(10)
    (spec,) = [spec for spec in own_topics(service.config) if spec.name == service.topics.delay]
    smaller = replace(spec, settings={**spec.settings, "max.message.bytes": "2000"})
    service.log.prepare([smaller], create=True)
    partitions = service.log.topics()[service.topics.rejected].partitions
    service.log.leaderless = {(service.topics.rejected, number) for number in range(partitions)}
    service.run(30 * SECOND)
    assert sorted(value or b"" for value in service.delivered()) == [b"before", b"behind"]
    assert (service.rejected(), service.waits(0)) == ([], (1, 0))
    service.check_replay(0)
    service.log.leaderless.clear()
    service.run(2 * SECOND)
    assert [(key, reason) for key, _, reason in service.rejected()] == [(large, b"too-large")]
    totals = service.shards[0].replica.state.totals
    assert (service.waits(0), totals.rejected, totals.forwarded) == ((0, 0), 1, 2)
    service.check_replay(0)


def test_beyond_the_bound_nothing_is_pulled_and_what_is_pending_is_delivered(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "HELD_MAX", 3)
    cut(service, 1)
    kept, missed = IDS[0][0], IDS[0][1]
    service.write(0, *(service.message(name, 5 * SECOND, name) for name in (kept, missed)))
    service.run(10)
    service.write(0, *(service.message(name, 500 * SECOND) for name in IDS[1][:3]))
    service.run(10)
    assert service.waits(0) == (3, 3)
    service.write(0, (missed, None, {}))
    written_ms = service.clock.now
    service.run(ELECTION_MS + 6 * SECOND)
    assert sorted(value or b"" for value in service.delivered()) == sorted([kept, missed])
    # Law 3: an id is forgotten by this time, and the cancel is not pulled.
    assert reached_ms(service.shards[0].replica.state) <= written_ms
    assert "nothing more is pulled until fewer records wait" in (
        service.shards[0].replica.paused or ""
    )
    service.log.leaderless.clear()
    service.run(2 * SECOND)
    assert service.waits(0) == (0, 0)
    assert [reason for _, _, reason in service.rejected()] == [b"too-late"]


def test_other_shards_forget_nothing_that_a_held_record_may_need(service: Service) -> None:
    cut(service, 1)
    service.write(0, service.message(IDS[0][0], 500 * SECOND))
    service.run(10)
    state = service.shards[0].replica.state
    assert unforwarded_ms(state) == unpulled_ms(state) > 0
    service.write(0, service.message(IDS[1][0], 500 * SECOND))
    service.run(10)
    assert unforwarded_ms(service.shards[0].replica.state) == 0
    assert service.progress(0)[-1].held_forwards == 1
    assert [
        holds_for(service.stores[0], service.shards[0].replica.state, home)
        for home in range(SHARDS)
    ] == [
        False,
        True,
        False,
    ]
    service.log.leaderless.clear()
    service.run(2 * SECOND)
    assert unforwarded_ms(service.shards[0].replica.state) > 0
    assert service.progress(0)[-1].held_forwards == 0
    assert not holds_for(service.stores[0], service.shards[0].replica.state, 1)
