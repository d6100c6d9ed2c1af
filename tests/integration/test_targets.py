"""Targets that are missing, deleted, too narrow, compacted, forbidden or leaderless do not delay
other messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AclPermissionType,
)

from chronos.core.keys import partition_of
from chronos.core.size import batch_bytes
from tests.harness.broker import Broker, Clients, cluster
from tests.harness.prometheus import Prometheus
from tests.harness.service import Service
from tests.harness.waiting import NotInTime, wait_until
from tests.integration.foreign import (
    Got,
    Sent,
    Tail,
    Topics,
    alter_topic,
    delete_topic,
    produce,
    rule,
    schedule,
    topic_names_of,
)

OTHERS_MS = 15_000
"""Bound for the delay of other messages when a topic fails within a step: a transaction timeout and
the next attempt. Usually it is a fraction of a second, which the benchmarks measure."""


class Place:
    """A service with one shard, and a healthy topic beside the tested one."""

    def __init__(self, kafka: Clients, folder: Path, **settings: object) -> None:
        self.kafka = kafka
        self.topics = Topics.of(f"g{uuid.uuid4().hex[:8]}")
        self.healthy = kafka.create_topic(f"{self.topics.delay}.healthy")
        self.settings: dict[str, object] = {
            "delivery__retry_base": "100ms",
            "delivery__attempts_max": 3,
            **settings,
        }
        self.folder = folder
        self.service = self.make()

    def make(self, **more: object) -> Service:
        """A service on the same topics and data."""
        return Service(
            self.folder / "node",
            bootstrap=self.kafka.bootstrap,
            settings=self.topics.settings(**{**self.settings, **more}),
        )

    def target(self, name: str = "target", **config: object) -> str:
        """Create a target topic."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return self.kafka.create_topic(f"{self.topics.delay}.{name}", config=settings)

    def send(self, *records: Sent) -> None:
        """Write to the delay topic."""
        produce(self.kafka.bootstrap, self.topics.delay, records)

    def check_others(
        self, count: int, *, within_ms: int = OTHERS_MS, judged_from: int = 0
    ) -> list[Got]:
        """Assert that `count` messages are in the healthy topic, in order, each once, and none
        after the first ones much too late."""
        with Tail(self.kafka.bootstrap, self.healthy) as tail:
            tail.take(self.healthy, count)
            found = tail.settle().records[self.healthy]
        numbers = [int(got.value or b"") for got in found]
        assert numbers == list(range(count))
        late_ms = max(
            got.timestamp_ms - int(got.header("chronos-due-at") or b"")
            for got in found[judged_from:]
        )
        if late_ms >= within_ms:
            raise NotInTime(f"{late_ms} ms late")
        return found

    def dead(self, count: int, *, timeout_s: float = 60.0) -> list[Got]:
        """Exactly `count` dead letters, once they are there."""
        with Tail(self.kafka.bootstrap, self.topics.dead_letter) as tail:
            tail.take(self.topics.dead_letter, count, timeout_s=timeout_s)
            found = tail.settle().records[self.topics.dead_letter]
        assert len(found) == count
        return found

    def arrived(self, topic: str, count: int) -> list[bytes]:
        """Exactly `count` payloads of a topic, once they are there."""
        with Tail(self.kafka.bootstrap, topic) as tail:
            tail.take(topic, count)
            found = tail.settle().records[topic]
        assert len(found) == count
        return [got.value or b"" for got in found]

    def others(self, start: int, count: int) -> list[Sent]:
        """Messages for the healthy topic."""
        headers = schedule(self.healthy)
        return [Sent(b"%d" % number, headers) for number in range(start, start + count)]


def reason_of(service: Service, message_id: str) -> dict[str, Any]:
    """The message with this id, once a reason why it is not delivered is known."""
    path = f"/v1/messages/{message_id}"
    service.wait_until(
        lambda: service.ask("GET", path)[1].get("reason") is not None,
        f"find a reason for {message_id}",
    )
    found: dict[str, Any] = service.get(path)
    return found


def mixed(one: list[Sent], other: list[Sent]) -> list[Sent]:
    """The records of both lists, alternating."""
    longest = max(len(one), len(other))
    return [records[at] for at in range(longest) for records in (one, other) if at < len(records)]


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    place = Place(broker, tmp_path)
    with place.service:
        place.service.start()
        yield place
        assert place.service.running, place.service.tail()


def again(letter: Got) -> Sent:
    """A dead letter as an operator sends it again: unchanged, with a new time."""
    return Sent(letter.value, [*letter.headers, ("chronos-delay", b"0")], letter.key)


@pytest.fixture
def creating_broker() -> Iterator[Broker]:
    """A broker that creates a topic whenever a client asks for its metadata."""
    with Broker({"auto.create.topics.enable": True}) as broker:
        yield broker


def test_a_missing_topic_is_looked_up_twice_and_never_created(
    tmp_path: Path, creating_broker: Broker
) -> None:
    """Even on a broker that creates topics automatically; the dead letters can be delivered once
    the topic exists."""
    place = Place(creating_broker, tmp_path)
    missing = f"{place.topics.delay}.typo"
    with place.service:
        place.service.start()
        started = time.monotonic()
        place.send(
            *mixed(
                [
                    Sent(b"m%d" % n, schedule(missing, target_key=b"k"), key=b"id%d" % n)
                    for n in range(20)
                ],
                place.others(0, 200),
            )
        )
        deferred = reason_of(place.service, "id0")
        assert (deferred["state"], deferred["reason"], deferred["attempts"]) == (
            "pending",
            "target-missing",
            0,
        )
        assert deferred["detail"] == "the topic was not found, and is looked for once more"
        assert deferred["due_at"] < deferred["last_try_at"] < deferred["next_try_at"]

        others = place.check_others(200)
        letters = place.dead(20)
        assert time.monotonic() - started >= 2
        assert max(got.timestamp_ms for got in others) < min(
            letter.timestamp_ms for letter in letters
        )
        assert {letter.reason for letter in letters} == {"target-missing"}
        assert missing not in topic_names_of(creating_broker)
        dead = place.service.get("/v1/messages/id0")
        assert (dead["state"], dead["reason"], dead["attempts"]) == ("dead", "target-missing", 1)
        assert deferred["last_try_at"] < dead["last_try_at"] == dead["settled_at"]

        creating_broker.create_topic(missing)
        place.send(*(again(letter) for letter in letters))
        assert sorted(place.arrived(missing, 20)) == sorted(b"m%d" % n for n in range(20))
        place.dead(20)


@pytest.mark.smoke
def test_a_topic_deleted_at_run_time_costs_other_messages_a_moment(place: Place) -> None:
    """The cached metadata is up to ten seconds old and wrong: the transaction fails, then it is
    fetched again."""
    gone = place.target("gone")
    place.send(Sent(b"before", schedule(gone)), *place.others(0, 1))
    assert place.arrived(gone, 1) == [b"before"]
    place.send(Sent(b"later", schedule(gone, delay="1h"), key=b"later"))
    delete_topic(place.kafka, gone)
    place.send(*mixed([Sent(b"g%d" % n, schedule(gone)) for n in range(10)], place.others(1, 100)))
    place.check_others(101)
    assert {letter.reason for letter in place.dead(10)} == {"target-missing"}

    # The topic exists again before `later` is due: older metadata must not count against it.
    place.kafka.create_topic(gone)
    place.send(
        Sent(None, [("chronos-action", b"fire-now")], key=b"later"), Sent(b"anew", schedule(gone))
    )
    assert sorted(place.arrived(gone, 2)) == [b"anew", b"later"]
    place.dead(10)


def test_the_size_limit_of_a_target_is_kept_to_the_byte(place: Place) -> None:
    """A record at the limit is delivered, one byte more is a dead letter, and no transaction fails
    for it."""
    limit = 5_000
    small = place.target("small", max_message_bytes=limit)
    at_ms = time.time_ns() // 1_000_000 + 1_000
    pads = range(4_400, 4_960)
    headers = [
        ("chronos-target-topic", small.encode()),
        ("chronos-deliver-at", b"%d" % at_ms),
        ("chronos-target-key", b"key"),
        ("own", None),
        ("ü" * 40, b"x" * 64),
        ("own", b""),
    ]
    place.send(*mixed([Sent(b"p" * pad, headers) for pad in pads], place.others(0, 100)))
    place.check_others(100)

    with Tail(place.kafka.bootstrap, small, place.topics.dead_letter) as tail:
        fitting, letters = tail.records[small], tail.records[place.topics.dead_letter]
        tail.until(lambda: len(fitting) + len(letters) == len(pads), "every message, here or there")
        tail.settle()
    sizes = [batch_bytes(got.key, got.value, got.headers) for got in fitting]
    assert len(fitting) + len(letters) == len(pads)
    assert {letter.reason for letter in letters} == {"too-large"}
    assert max(sizes) == limit, "the largest message that fits was not delivered"
    assert (
        min(len(letter.value or b"") for letter in letters)
        == max(len(got.value or b"") for got in fitting) + 1
    )
    assert place.service.shards()[0]["aborts"] == 0


@pytest.mark.parametrize("limit", [300, 4_000])
def test_a_topic_with_a_small_batch_limit_takes_many_small_messages(
    place: Place, limit: int
) -> None:
    """By default the client would build batches a thousand times larger than the topic allows."""
    narrow = place.target("narrow", max_message_bytes=limit)
    place.send(
        *mixed([Sent(b"n%05d" % n, schedule(narrow)) for n in range(6_000)], place.others(0, 2_000))
    )

    assert place.arrived(narrow, 6_000) == [b"n%05d" % n for n in range(6_000)]
    place.check_others(2_000, within_ms=10_000)
    assert place.service.shards()[0]["aborts"] == 0


def test_a_size_limit_lowered_after_the_last_metadata_request_is_noticed(place: Place) -> None:
    """The first transaction fails, then the metadata is fetched again; no message is duplicated."""
    target = place.target("target")
    place.send(Sent(b"look", schedule(target)))
    place.arrived(target, 1)
    alter_topic(place.kafka, target, max_message_bytes="1000")
    place.send(
        *mixed(
            [Sent(b"x" * 2_000, schedule(target)), Sent(b"fits", schedule(target))],
            place.others(0, 100),
        )
    )

    assert place.arrived(target, 2) == [b"look", b"fits"]
    assert [letter.reason for letter in place.dead(1)] == ["too-large"]
    place.check_others(100)


@pytest.mark.parametrize(
    "known", [True, False], ids=["compacted-before", "compacted-after-the-last-metadata-request"]
)
def test_a_compacted_topic_refuses_messages_without_a_key_and_no_others(
    place: Place, known: bool
) -> None:
    """They can never be written, so they are dead-lettered at once; all others are delivered once
    and in order."""
    target = place.target("compacted", **({"cleanup_policy": "compact"} if known else {}))
    place.send(Sent(b"look", schedule(target, target_key=b"k")))
    place.arrived(target, 1)
    alter_topic(place.kafka, target, cleanup_policy="compact")
    keyed = [Sent(b"c%d" % n, schedule(target, target_key=b"k%d" % (n % 7))) for n in range(300)]
    bare = [Sent(b"bare%d" % n, schedule(target)) for n in range(40)]
    place.send(*mixed(bare, mixed(keyed, place.others(0, 300))))

    place.check_others(300)
    assert place.arrived(target, 301) == [b"look"] + [b"c%d" % n for n in range(300)]
    letters = place.dead(40)
    assert {(letter.reason, letter.header("chronos-attempt")) for letter in letters} == {
        ("no-key", b"1")
    }
    assert {letter.header("chronos-detail") for letter in letters} == {
        f"{target} is compacted and takes no message without a key: set chronos-target-key".encode()
    }
    assert place.service.shards()[0]["aborts"] <= (0 if known else 3)

    alter_topic(place.kafka, target, cleanup_policy="delete")
    letter = letters[0]
    place.send(Sent(letter.value, [*letter.headers, ("chronos-delay", b"2500ms")], letter.key))
    with Tail(place.kafka.bootstrap, target) as tail:
        tail.until(
            lambda: len(tail.records[target]) == 302,
            "the letter that was sent round again",
            timeout_s=15,
        )


def test_a_topic_that_cannot_be_created_costs_only_its_own_messages(
    broker: Broker, tmp_path: Path
) -> None:
    """Its name collides with another one; and a target that is forbidden by now is not created
    either."""
    place = Place(broker, tmp_path, delivery__create_topics=True, workers__push="off")
    place.target("a_b")
    new, colliding, forbidden = (
        f"{place.topics.delay}.{name}" for name in ("new", "a.b", "secret")
    )
    with place.service as service:
        service.start()
        place.send(Sent(b"later", schedule(forbidden, delay="100ms")))
        service.wait_until(lambda: service.pending() == 1, "accept it")
        service.stop()
    place.service = place.make(targets__deny="['*.secret']", workers__push="on")
    with place.service as service:
        service.start()
        bad = [Sent(b"x", schedule(colliding)) for _ in range(20)]
        place.send(Sent(b"anew", schedule(new)), *mixed(bad, place.others(0, 200)))
        place.check_others(200)
        assert place.arrived(new, 1) == [b"anew"]
        letters = place.dead(21)
        assert place.service.shards()[0]["paused"] is None
    by_target = {letter.header("chronos-target-topic"): letter.reason for letter in letters}
    assert by_target == {
        colliding.encode(): "target-missing",
        forbidden.encode(): "forbidden-target",
    }
    assert forbidden not in topic_names_of(broker)


@pytest.fixture
def short_broker() -> Iterator[Broker]:
    """A broker whose default replication factor is larger than the number of brokers."""
    with Broker({"default.replication.factor": 3}) as broker:
        yield broker


def test_messages_wait_for_a_topic_that_cannot_be_created_yet(
    tmp_path: Path, short_broker: Broker
) -> None:
    """A lack of brokers is temporary: they are parked, none is dead-lettered, and other messages
    are delivered meanwhile."""
    place = Place(
        short_broker, tmp_path, delivery__create_topics=True, topics__replication_factor=1
    )
    waiting = f"{place.topics.delay}.waiting"
    with place.service as service:
        service.start()
        place.send(
            *mixed([Sent(b"w%d" % n, schedule(waiting)) for n in range(20)], place.others(0, 200))
        )
        place.check_others(200)
        service.wait_until(lambda: service.shards()[0]["parked"] == 20, "park the messages")
        with Tail(short_broker.bootstrap, place.topics.dead_letter) as letters:
            letters.settle(2.5)  # longer than two metadata requests
            assert letters.records[place.topics.dead_letter] == []
        short_broker.create_topic(waiting)
        assert place.arrived(waiting, 20) == [b"w%d" % n for n in range(20)]
        place.dead(0)


@pytest.fixture(scope="module")
def secured_broker() -> Iterator[Broker]:
    """A broker with an authorizer; topics without rules are open to all."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with Broker(settings) as broker:
        yield broker


@pytest.mark.parametrize("creates", [False, True], ids=["", "create_topics"])
def test_a_topic_without_write_permission_is_forbidden(
    tmp_path: Path, secured_broker: Broker, creates: bool
) -> None:
    """Neither a topic that is visible but not writable nor an invisible one delays other messages,
    whether missing topics are created or not."""
    place = Place(secured_broker, tmp_path, delivery__create_topics=creates)
    seen, unseen = place.target("seen"), place.target("unseen")
    rule(secured_broker, seen, AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    rule(secured_broker, unseen, AclOperation.ALL, AclPermissionType.DENY)
    with place.service:
        place.service.start()
        bad = [Sent(b"x", schedule(topic)) for topic in (seen, unseen) for _ in range(20)]
        place.send(*mixed(bad, place.others(0, 200)))
        place.check_others(200)
        letters = place.dead(40)
        assert place.service.shards()[0]["aborts"] == 0
    by_reason = {letter.header("chronos-target-topic"): letter.reason for letter in letters}
    assert by_reason == {seen.encode(): "forbidden-target", unseen.encode(): "target-missing"}


def blind_target(place: Place, bytes_max: int) -> str:
    """A target with a size limit that Chronos may not read: what is larger is refused without a
    warning."""
    blind = place.target("blind", max_message_bytes=bytes_max)
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE):
        rule(place.kafka, blind, operation, AclPermissionType.ALLOW)
    return blind


@pytest.mark.parametrize("count", [2, 8])
def test_an_unpredictable_refusal_is_found_by_halving(
    tmp_path: Path, secured_broker: Broker, count: int
) -> None:
    """Messages beyond an unknown size limit are dead-lettered, all others delivered once; also if
    so many are refused that the target is set aside, while every other message for it is a good
    one."""
    place = Place(secured_broker, tmp_path)
    blind = blind_target(place, 100_000)
    with place.service:
        place.service.start()
        fine = [Sent(b"f%d" % number, schedule(blind)) for number in range(200)]
        bad = [
            Sent(b"x" * 150_000, schedule(blind), key=b"bad%d" % number) for number in range(count)
        ]
        bad[1] = bad[1]._replace(headers=[*schedule(blind), ("chronos-attempts", b"1")])
        place.send(*mixed(bad, mixed(fine, place.others(0, 200))))

        letters = place.dead(count)
        assert {letter.reason for letter in letters} == {"refused-by-broker"}
        attempts = {letter.key: letter.header("chronos-attempt") for letter in letters}
        assert attempts == {sent.key: b"1" if sent is bad[1] else b"3" for sent in bad}
        for number, made in ((0, 3), (1, 1)):
            dead = place.service.get(f"/v1/messages/bad{number}")
            assert (dead["state"], dead["reason"], dead["attempts"]) == (
                "dead",
                "refused-by-broker",
                made,
            )
            assert dead["detail"].startswith("refused by the broker every time: a")
        assert sorted(place.arrived(blind, 200)) == sorted(b"f%d" % number for number in range(200))
        place.check_others(200)
        assert place.service.shards()[0]["paused"] is None


def test_a_target_that_refuses_every_message_is_set_aside(
    tmp_path: Path, secured_broker: Broker
) -> None:
    """A thousand refused messages cost about as many aborts as twenty, and delay no other message;
    once the target takes messages again, those that wait are delivered."""
    place = Place(secured_broker, tmp_path, delivery__retry_cap="5s")
    blind = blind_target(place, 300)
    refused = [Sent(b"%d" % number + b"x" * 400, schedule(blind)) for number in range(1_000)]
    with place.service as service:
        service.start()
        place.send(*mixed(refused, place.others(0, 300)))
        place.check_others(300)
        letters = place.dead(1_000)
        assert {letter.value for letter in letters} == {sent.value for sent in refused}
        assert {letter.reason for letter in letters} == {"refused-by-broker"}
        untried = [letter for letter in letters if letter.header("chronos-attempt") == b"1"]
        assert len(untried) > 900
        assert b"like every message for" in (untried[0].header("chronos-detail") or b"")
        aborts = service.shards()[0]["aborts"]
        assert aborts < 200

        place.send(
            *mixed(
                [Sent(b"late%d" % number, schedule(blind)) for number in range(100)],
                place.others(300, 300),
            )
        )
        assert len(place.arrived(blind, 100)) == 100
        place.check_others(600)


def test_allow_and_deny_apply_when_sending_and_when_delivering(
    broker: Broker, tmp_path: Path
) -> None:
    """A message for a topic that is forbidden later is dead-lettered; for one forbidden from the
    start it is rejected."""
    place = Place(broker, tmp_path)
    target, other = place.target("target"), place.target("secret")
    place.service = place.make(targets__deny="['*.secret']")
    with place.service as service:
        service.start()
        place.send(Sent(b"no", schedule(other)), Sent(b"later", schedule(target, delay="4s")))
        place.send(Sent(b"now", schedule(target)))
        assert place.arrived(target, 1) == [b"now"]
        service.wait_until(lambda: service.shards()[0]["totals"]["rejected"] == 1, "refuse one")
        service.stop()
    place.service = place.make(targets__allow="['*.secret', '*.healthy']")
    with place.service as service:
        service.start()
        (letter,) = place.dead(1)
        assert (letter.reason, letter.value) == ("forbidden-target", b"later")
        service.stop()
    place.service = place.make()
    with place.service as service:
        service.start()
        place.send(again(letter))
        assert place.arrived(target, 2) == [b"now", b"later"]
    assert place.arrived(other, 0) == []


def test_a_record_too_large_for_the_next_topic_is_named_by_its_source(place: Place) -> None:
    """The largest record of the delay topic, rejected or dead-lettered to a topic with a smaller
    limit."""
    for topic in (place.topics.rejected, place.topics.dead_letter):
        alter_topic(place.kafka, topic, max_message_bytes="1048588")
    limit = 1 << 20
    target = place.target("target", max_message_bytes=1_000_000)
    cases: dict[str, list[tuple[str, bytes | None]]] = {
        "refused": [("chronos-target-topic", b"t"), ("own", b"o")],
        "dead": [*schedule(target), ("own", b"o")],
    }
    largest = {name: limit - batch_bytes(b"", b"", headers) - 4 for name, headers in cases.items()}
    for name, headers in cases.items():
        record = Sent(b"x" * largest[name], headers)
        assert limit - 8 <= batch_bytes(None, record.value, headers) <= limit
        place.send(record)
        with pytest.raises(AssertionError):
            place.send(Sent(b"x" * (largest[name] + 16), headers))
    place.send(*place.others(0, 10))

    (letter,) = place.dead(1)
    with Tail(place.kafka.bootstrap, place.topics.rejected) as tail:
        (refused,) = tail.take(place.topics.rejected, 1)
    for got, reason, offset in ((refused, "no-time", 0), (letter, "too-large", 1)):
        assert (got.reason, got.value, got.key) == (reason, None, None)
        assert got.source == f"{place.topics.delay}/0/{offset}".encode()
        assert b"too large to be passed on" in (got.header("chronos-detail") or b"")
    place.check_others(10)


def test_topics_created_by_chronos_take_the_largest_record_whole(place: Place) -> None:
    """The rejected and dead-letter topics allow larger records than the delay topic, by the size of
    the reason headers."""
    headers = [("chronos-target-topic", b"t"), ("own", b"o")]
    value = b"x" * ((1 << 20) - batch_bytes(b"", b"", headers) - 4)
    place.send(Sent(value, headers))

    with Tail(place.kafka.bootstrap, place.topics.rejected) as tail:
        (refused,) = tail.take(place.topics.rejected, 1)
    assert refused.value == value
    assert refused.headers[:2] == headers


@pytest.mark.kafka
def test_messages_for_leaderless_partitions_wait_in_lanes_and_others_do_not(tmp_path: Path) -> None:
    """Each is parked once, also over a restart, and can be cancelled; then they are delivered in
    order, never dead-lettered.

    The same holds for a partition with too few in-sync replicas."""
    with cluster(3, heap_mb=320) as kafka:
        place = Place(kafka, tmp_path)
        lonely = kafka.create_topic(f"{place.topics.delay}.lonely", partitions=3, replication=1)
        single = kafka.create_topic(f"{place.topics.delay}.single", partitions=1, replication=1)
        strict = kafka.create_topic(
            f"{place.topics.delay}.strict", replication=3, config={"min.insync.replicas": 3}
        )
        admin = kafka.admin()

        def leader_of(topic: str, partition: int) -> int:
            """The node id of the leader; -1 without one."""
            return int(
                admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
            )

        def is_leaderless(topic: str, partition: int) -> bool:
            """False also while no broker answers, as may happen while one is killed."""
            try:
                return leader_of(topic, partition) < 0
            except KafkaException:
                return False

        down = kafka.node(leader_of(single, 0))
        (dead,) = [number for number in range(3) if kafka.node(leader_of(lonely, number)) is down]
        keys = [b"k%d" % number for number in range(60)]
        keyed = [
            Sent(b"%s %d" % (key, turn), schedule(lonely, target_key=key))
            for turn in range(4)
            for key in keys
        ]
        stuck = [sent for sent in keyed if partition_of((sent.value or b"").split()[0], 3) == dead]
        bare = [Sent(b"b%d" % number, schedule(lonely)) for number in range(60)]
        many = [Sent(b"s%d" % number, schedule(single)) for number in range(5_000)]
        wanting = [Sent(b"w%d" % number, schedule(strict)) for number in range(5)]
        waiting = len(stuck) + len(many) + len(wanting)
        with place.service as service:
            service.start()
            down.kill()
            wait_until(
                lambda: is_leaderless(lonely, dead) and is_leaderless(single, 0), timeout_s=30
            )
            service.wait_ready()
            # Chronos's own topics fail over too, which takes as long as Kafka needs: that is over
            # once a message is delivered.
            place.send(*place.others(0, 1))
            place.arrived(place.healthy, 1)
            place.send(*many[:100], Sent(b"never", schedule(single), key=b"mine"), *many[100:])
            place.send(*mixed(mixed(keyed, [*bare, *wanting]), place.others(1, 200)))
            place.check_others(201, judged_from=1)
            with Tail(kafka.bootstrap, place.topics.dead_letter) as letters:
                service.wait_until(
                    lambda: service.shards()[0]["parked"] == service.pending() == waiting + 1,
                    "deliver to the partitions with a leader, and park the others",
                )
                letters.settle(2.5)
                assert letters.records[place.topics.dead_letter] == []
            assert len(stuck) > 20
            mine = service.get("/v1/messages/mine")
            assert (mine["state"], mine["parked"], mine["reason"], mine["attempts"]) == (
                "pending",
                True,
                "no-leader",
                0,
            )
            assert mine["detail"] == f"no partition of {single} has a leader"
            assert mine["next_try_at"] is None
            assert service.ask("DELETE", "/v1/messages/mine")[1]["result"] == "cancelled"
            prometheus = Prometheus(targets={"node": lambda: str(service.get("/metrics"))})
            assert prometheus.scrape() == set()
            assert prometheus.scrape_for(2) == {"ChronosNoLeader"}
            topics = {found["topic"] for found in prometheus.fired["ChronosNoLeader"]}
            assert topics == {lonely, single, strict}
            service.stop()
            service.start()
            (shard,) = service.shards()
            assert (shard["parked"], shard["pending"], shard["paused"]) == (waiting, waiting, None)
            assert (shard["totals"]["parked"], shard["totals"]["carried"]) == (waiting + 1, 0)

            down.start()
            found = place.arrived(lonely, len(keyed) + len(bare))
            assert sorted(found) == sorted([sent.value or b"" for sent in keyed + bare])
            for key in keys:
                assert [value for value in found if value.split()[0] == key] == [
                    b"%s %d" % (key, turn) for turn in range(4)
                ]
            assert place.arrived(single, len(many)) == [sent.value for sent in many]
            assert place.arrived(strict, len(wanting)) == [sent.value for sent in wanting]
            assert place.dead(0) == []
            service.wait_until(lambda: service.pending() == 0, "settle everything")
            assert service.shards()[0]["parked"] == 0
