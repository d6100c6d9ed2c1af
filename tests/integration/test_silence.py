"""Nothing stops a shard in silence: what cannot be read or written is named, and everything else is
delivered."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from chronos.workers.watch import stall
from tests.harness.broker import Broker, Clients
from tests.harness.clock import ShiftedClock
from tests.harness.service import Service
from tests.harness.waiting import wait_until
from tests.integration.flow import KafkaFlow, now_ms
from tests.integration.foreign import (
    Got,
    Sent,
    Tail,
    Topics,
    alter_topic,
    produce,
    read_all,
    rule,
    schedule,
    topic_names_of,
)
from tests.integration.nodes import kafka, running

pytestmark = pytest.mark.kafka

LATE_MS = 4_000
"""Bound for the lateness of the messages that have nothing to do with the fault: they are late by
less than a second, and by more on a machine that is busy with other tests."""

JUNK = Sent(b"junk", [("chronos-target-topic", b"t")])
"""A record without a time, which is refused."""


class Place:
    """A service with one shard and a healthy target."""

    def __init__(self, kafka: Clients, folder: Path, **settings: object) -> None:
        self.kafka = kafka
        self.topics = Topics.of(f"q{uuid.uuid4().hex[:8]}")
        self.healthy = kafka.create_topic(f"{self.topics.delay}.healthy")
        self.service = Service(
            folder / "node", bootstrap=kafka.bootstrap, settings=self.topics.settings(**settings)
        )
        self._sent = 0

    def send(self, *records: Sent) -> None:
        produce(self.kafka.bootstrap, self.topics.delay, records)

    def others(self, count: int, *, first_ms: int, last_ms: int) -> list[Sent]:
        """Messages for the healthy target, due evenly between two moments from now."""
        now = now_ms()
        made = []
        for at in range(count):
            due_ms = now + first_ms + (last_ms - first_ms) * at // count
            headers = [
                ("chronos-target-topic", self.healthy.encode()),
                ("chronos-deliver-at", b"%d" % due_ms),
            ]
            made.append(Sent(b"%d" % self._sent, headers))
            self._sent += 1
        return made

    def check_others(self) -> None:
        """Assert that every message for the healthy target was delivered once, and 99 of 100 of
        them in time."""
        with Tail(self.kafka.bootstrap, self.healthy) as tail:
            tail.take(self.healthy, self._sent)
            found = tail.settle().records[self.healthy]
        assert sorted(int(got.value or b"") for got in found) == list(range(self._sent))
        late = sorted(got.timestamp_ms - int(got.header("chronos-due-at") or b"") for got in found)
        assert late[int(len(late) * 0.99) - 1] <= LATE_MS, late[-20:]

    def letters(self, topic: str, count: int) -> list[Got]:
        """Assert that the topic has exactly so many records, and return them."""
        with Tail(self.kafka.bootstrap, topic) as tail:
            tail.take(topic, count)
            found = tail.settle().records[topic]
        assert len(found) == count
        return found

    def aborts(self) -> int:
        return int(self.service.shards()[0]["aborts"])

    def wait_degraded(self, *words: str) -> None:
        """Wait until the shard names what it cannot do, in its status and in `/readyz`."""
        service = self.service

        def named() -> bool:
            status, problem = service.ask("GET", "/readyz")
            text = service.shards()[0]["paused"] or ""
            return status == 503 and all(word in text and word in str(problem) for word in words)

        service.wait_until(named, f"report {words}")


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    place = Place(broker, tmp_path)
    with place.service as service:
        service.start()
        yield place


# --------------------------------------------------------------------------------------- own topics


def delete(kafka: Clients, *topics: str) -> None:
    """Delete topics, without a look at the metadata, which may show them created again."""
    admin = kafka.admin()
    for future in admin.delete_topics(list(topics), operation_timeout=30).values():
        future.result(30)


@pytest.mark.smoke
def test_a_rejected_topic_deleted_at_run_time_is_created_again_and_delays_no_message(
    place: Place,
) -> None:
    """Junk arrives from the moment of the deletion on, beside messages with a short delay."""
    place.send(*place.others(200, first_ms=500, last_ms=5_000))
    delete(place.kafka, place.topics.rejected)
    for _ in range(30):
        place.send(JUNK, *place.others(5, first_ms=100, last_ms=600))
    place.check_others()
    letters = place.letters(place.topics.rejected, 30)
    assert {letter.reason for letter in letters} == {"no-time"}
    place.service.wait_ready()


def test_both_topics_are_created_again_while_nothing_needs_them(place: Place) -> None:
    """With the settings that Chronos gives them."""
    topics = [place.topics.rejected, place.topics.dead_letter]
    delete(place.kafka, *topics)
    service = place.service
    service.wait_until(
        lambda: service.log_path.read_text().count("topic created again") == 2,
        "create both topics again",
    )
    assert set(topics) <= topic_names_of(place.kafka)
    service.wait_ready()


def test_a_missing_topic_that_may_not_be_created_is_named_and_the_rest_delivered(
    broker: Broker, tmp_path: Path
) -> None:
    """`topics.create` is off: `/readyz` names the topic before and after a record needs it."""
    place = Place(broker, tmp_path)
    with place.service as service:
        service.start()
        service.stop()
        service.settings["topics.create"] = "off"
        service.start()
        place.send(*place.others(100, first_ms=3_000, last_ms=6_000))
        service.wait_until(lambda: service.accepted() == 100, "accept all messages")
        delete(broker, place.topics.rejected)
        service.wait_until(
            lambda: place.topics.rejected in str(service.ask("GET", "/readyz")), "name the topic"
        )
        place.send(JUNK, *place.others(1, first_ms=0, last_ms=0))
        place.wait_degraded(
            place.topics.rejected, "takes no records", "does not exist", "all others are executed"
        )
        service.wait_until(
            lambda: service.pending() == 0, "deliver what is pending, and what came behind the junk"
        )
        assert (service.shards()[0]["held"], service.shards()[0]["totals"]["rejected"]) == (1, 0)
        broker.create_topic(place.topics.rejected)
        place.letters(place.topics.rejected, 1)
        service.wait_ready()
        assert place.aborts() == 0


def test_a_dead_letter_topic_that_refuses_records_delays_no_other_message(place: Place) -> None:
    """No description tells that it does: it is found out with a few aborted transactions, and its
    messages wait."""
    small = place.kafka.create_topic(
        f"{place.topics.delay}.small", config={"max.message.bytes": 1_000}
    )
    alter_topic(place.kafka, place.topics.dead_letter, max_message_bytes="100")
    bad = [Sent(b"x" * 2_000, schedule(small)) for _ in range(10)]
    for _ in range(2):
        place.send(*bad, *place.others(100, first_ms=100, last_ms=3_000))
        place.wait_degraded(place.topics.dead_letter, "takes no records", "others are delivered")
    place.check_others()
    assert place.service.pending() == 20
    assert place.aborts() <= 12
    alter_topic(place.kafka, place.topics.dead_letter, max_message_bytes="2000000")
    assert {letter.reason for letter in place.letters(place.topics.dead_letter, 20)} == {
        "too-large"
    }
    place.service.wait_ready()


# -------------------------------------------------------------------------------------- permissions


@pytest.fixture(scope="module")
def secured_broker() -> Iterator[Broker]:
    """A broker with an authorizer; topics without rules are open to all."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with Broker(settings) as broker:
        yield broker


def allow_only(kafka: Clients, topic: str, *operations: AclOperation) -> None:
    """Allow all clients these operations on a topic, and no others."""
    for operation in operations:
        rule(kafka, topic, operation, AclPermissionType.ALLOW)


def allow_all(kafka: Clients, topic: str) -> None:
    """Remove the rules of a topic."""
    rules = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,  # type: ignore[arg-type]
    )
    admin = kafka.admin()
    admin.delete_acls([rules])[rules].result(30)


def test_a_rejected_topic_that_may_not_be_written_delays_only_the_refused_records(
    tmp_path: Path, secured_broker: Broker
) -> None:
    """They wait for the permission; what is pending is delivered in time, and cancels behind them
    win."""
    place = Place(secured_broker, tmp_path)
    rejected = place.topics.rejected
    with place.service as service:
        service.start()
        gone = [b"gone-%d" % at for at in range(20)]
        place.send(*(Sent(b"gone", schedule(place.healthy, delay="25s"), name) for name in gone))
        place.send(*place.others(100, first_ms=1_500, last_ms=4_000))
        service.wait_until(lambda: service.accepted() == 120, "accept all messages")
        allow_only(secured_broker, rejected, AclOperation.DESCRIBE, AclOperation.READ)
        place.send(
            JUNK,
            *(Sent(None, [], name) for name in gone),
            JUNK,
            *place.others(1, first_ms=0, last_ms=0),
        )
        place.wait_degraded(rejected, "takes no records", "does not let Chronos write")
        place.check_others()
        assert place.aborts() <= 2
        service.wait_until(
            lambda: service.pending() == 0, "execute what is behind the refused records"
        )
        (shard,) = service.shards()
        assert (shard["held"], shard["totals"]["cancelled"], shard["totals"]["rejected"]) == (
            2,
            20,
            0,
        )
        allow_all(secured_broker, rejected)
        place.letters(rejected, 2)
        service.wait_ready()


def test_a_dead_letter_topic_that_may_not_be_written_costs_no_transaction(
    tmp_path: Path, secured_broker: Broker
) -> None:
    """Its messages wait for the permission; all others are delivered in time."""
    place = Place(secured_broker, tmp_path)
    small = secured_broker.create_topic(
        f"{place.topics.delay}.small", config={"max.message.bytes": 1_000}
    )
    with place.service as service:
        service.start()
        allow_only(
            secured_broker, place.topics.dead_letter, AclOperation.DESCRIBE, AclOperation.READ
        )
        bad = [Sent(b"x" * 2_000, schedule(small)) for _ in range(10)]
        place.send(*bad, *place.others(100, first_ms=100, last_ms=3_000))
        place.wait_degraded(
            place.topics.dead_letter, "does not let Chronos write", "others are delivered"
        )
        place.check_others()
        assert (service.pending(), place.aborts()) == (10, 0)
        allow_all(secured_broker, place.topics.dead_letter)
        place.letters(place.topics.dead_letter, 10)
        service.wait_ready()


def test_without_the_permission_to_read_settings_the_log_says_what_is_not_checked(
    tmp_path: Path, secured_broker: Broker
) -> None:
    place = Place(secured_broker, tmp_path)
    with place.service as service:
        service.start()
        service.stop()
        for topic in (place.topics.rejected, place.topics.dead_letter):
            alter_topic(secured_broker, topic, max_message_bytes="20000")
        for topic in (*place.topics, place.healthy):
            allow_only(
                secured_broker, topic, AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE
            )
        service.start()
        place.send(
            JUNK, *place.others(100, first_ms=0, last_ms=500), Sent(b"lost", schedule("missing"))
        )
        place.check_others()
        place.letters(place.topics.rejected, 1)
        place.letters(place.topics.dead_letter, 1)
        assert service.is_ready()
        assert place.aborts() == 0
        for topic in place.topics:
            assert (
                service.log_path.read_text().count(
                    f'"topic": "{topic}", "needs": "DESCRIBE_CONFIGS"'
                )
                == 1
            )

        # What is refused for its size is passed on without its payload, although Chronos may not
        # read the limit.
        large = b"x" * 100_000
        lost = schedule("missing")
        place.send(
            JUNK._replace(value=large),
            *[JUNK] * 200,
            Sent(large, lost),
            Sent(b"small", lost),
            *[Sent(b"y" * 9_000, lost)] * 20,
        )
        first, refused, *others = place.letters(place.topics.rejected, 202)
        assert (refused.reason, refused.value, refused.key) == ("no-time", None, None)
        assert {got.value for got in (first, *others)} == {b"junk"}
        dead = [got.value for got in place.letters(place.topics.dead_letter, 23)]
        assert sorted(map(len, filter(None, dead))) == [4, 5, *[9_000] * 20]
        assert service.is_ready()
        assert place.aborts() <= 30


# ---------------------------------------------------------------------------------- another Chronos


def test_a_message_for_the_progress_topic_of_another_chronos_harms_neither(
    broker: Broker, tmp_path: Path
) -> None:
    """It is delivered there, and the other one steps over it; so is a message for the other's delay
    topic."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    place, other = Place(broker, tmp_path / "one"), Place(broker, tmp_path / "other")
    with place.service as service, other.service as second:
        service.start()
        second.start()
        passed_on = [*schedule(other.topics.delay), ("own", b"o")]
        place.send(
            Sent(b"odd", schedule(other.topics.progress)),
            Sent(b"on", passed_on),
            *place.others(50, first_ms=0, last_ms=500),
        )
        place.check_others()
        assert place.letters(place.topics.dead_letter, 0) == []
        (odd,) = [got for got in read_all(broker.bootstrap, other.topics.progress) if got.headers]
        assert odd.value == b"odd"
        assert [got.value for got in place.letters(other.topics.delay, 1)] == [b"on"]
        other.send(*other.others(50, first_ms=0, last_ms=500))
        other.check_others()
        second.stop()
        second.start()
        other.send(*other.others(50, first_ms=0, last_ms=500))
        other.check_others()
        assert (place.aborts(), other.aborts()) == (0, 0)


def test_records_of_another_program_in_the_progress_topic_are_named(place: Place) -> None:
    """The log tells how many there are, where, and what the first one looks like; the messages
    before and after them are delivered."""
    service = place.service
    place.send(*place.others(3, first_ms=0, last_ms=0))
    place.check_others()
    service.stop()
    headers = [("chronos-source", b"shop.delay/0/7"), ("own", b"o")]
    records = [Sent(b"hello", headers, key=b"order-1"), Sent(b"hello", key=b"order-2")]
    (_, offset), _ = produce(place.kafka.bootstrap, place.topics.progress, records)
    service.start()
    place.send(*place.others(3, first_ms=0, last_ms=0))
    place.check_others()
    (event,) = (
        event for event in service.events() if event["event"].startswith("records of another")
    )
    assert event["level"] == "warning"
    assert (event["partition"], event["offset"]) == (f"{place.topics.progress}/0", offset)
    assert (event["records"], event["key"]) == (2, "b'order-1'")
    assert event["headers"] == "chronos-source=b'shop.delay/0/7', own=b'o'"


# ---------------------------------------------------------------------------------------- the watch


def test_a_shard_whose_thread_hangs_is_paused_and_named_until_it_moves(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits for a lock in the middle of its work and reports nothing; the other shards
    are not concerned."""
    monkeypatch.setattr(stall, "STALLED_MS", 3_000)
    monkeypatch.setattr(stall, "STEP_MS_MAX", 2_000)
    flow = KafkaFlow(broker, 5)
    flow.write(100, now_ms(), now_ms() + 2_000, delays=0)
    flow.flush()
    with running(tmp_path / "node", ShiftedClock(0), kafka(broker, flow)) as node:
        wait_until(lambda: node.ready, lambda: [shard.paused for shard in node.shards])
        hung = node.shards[0]
        wait_until(
            lambda: sum(shard.state.pending for shard in node.shards) == 0, lambda: "not delivered"
        )
        with hung.applied._moved:
            # The thread hangs at the end of the step that pulls this record, and then there is one
            # that it cannot pull.
            (message,) = flow.write(1, now_ms(), now_ms(), keyed=0, delays=0)
            assert message.number % len(node.shards) == hung.number
            flow.flush()
            wait_until(lambda: hung.replica.pulled > hung.pulled, lambda: "not pulled")
            flow.write(len(node.shards), now_ms(), now_ms(), keyed=0, delays=0)
            flow.flush()
            wait_until(lambda: hung.paused is not None, lambda: "no alarm")
            assert not node.ready
            text = hung.paused or ""
            assert "no progress since" in text
            assert "a step has been running since" in text
            assert hung.replica.paused is None
            assert (hung.stall.count, hung.stall.ms >= 3_000) == (1, True)
            assert [shard.paused for shard in node.shards[1:]] == [None] * (len(node.shards) - 1)
        wait_until(lambda: node.ready and hung.paused is None, lambda: hung.paused)
        assert (hung.stall.count, hung.stall.ms) == (1, 0)
        wait_until(
            lambda: sum(shard.state.pending for shard in node.shards) == 0, lambda: "not delivered"
        )
    assert flow.complaints() == []
