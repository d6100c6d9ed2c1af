"""Any Kafka client can use Chronos: Java's console programs and librdkafka, without a Chronos
library."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chronos.core.keys import partition_of
from tests.clients.snippets import Place, Snippet, snippets, wait_for_message
from tests.harness.broker import Broker, ConsoleRecord
from tests.harness.service import Service
from tests.integration.foreign import Got, Sent, Tail, Topics, produce, schedule

pytestmark = pytest.mark.kafka

EARLY_MS = 0
"""Tolerance for early deliveries: the broker's clock is that of this machine."""

LATE_MS = 3_000
"""Bound of the lateness on two cores with a broker, a JVM and another test beside the service."""

MURMUR2 = {"partitioner": "murmur2_random"}


class Chronos:
    """A running service and its clients."""

    def __init__(self, broker: Broker, service: Service, topics: Topics) -> None:
        self.broker = broker
        self.service = service
        self.topics = topics

    def target(self, **config: object) -> str:
        """A new target topic."""
        return self.broker.create_topic(f"t.{uuid.uuid4().hex[:10]}", partitions=3, config=config)

    def send(self, *records: Sent, **settings: object) -> list[tuple[int, int]]:
        """Write to the delay topic as a librdkafka client."""
        return produce(self.broker.bootstrap, self.topics.delay, records, **settings)

    def read(self, topic: str, count: int) -> list[Got]:
        """The records of a topic, once they are at least `count`."""
        with Tail(self.broker.bootstrap, topic) as tail:
            return tail.take(topic, count)

    def rejected(self, *places: tuple[int, int]) -> list[Got]:
        """The rejections of these delay records, in their order."""
        wanted = [
            f"{self.topics.delay}/{partition}/{offset}".encode() for partition, offset in places
        ]
        with Tail(self.broker.bootstrap, self.topics.rejected) as tail:
            records = tail.records[self.topics.rejected]
            tail.until(
                lambda: set(wanted) <= {got.source for got in records}, f"rejections of {wanted}"
            )
            return sorted(
                (got for got in records if got.source in wanted),
                key=lambda got: wanted.index(got.source or b""),
            )


def running(broker: Broker, folder: Path, **settings: object) -> Iterator[Chronos]:
    """A service with separate topics."""
    topics = Topics.of(f"f{uuid.uuid4().hex[:8]}")
    with Service(
        folder / "node", bootstrap=broker.bootstrap, settings=topics.settings(shards=2, **settings)
    ) as service:
        service.start()
        yield Chronos(broker, service, topics)
        assert service.running, service.tail()
        assert service.stop() == 0


# One node serves all of them.


@pytest.fixture(scope="module")
def chronos(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chronos]:
    yield from running(broker, tmp_path_factory.mktemp("foreign"))


def own_headers(got: Got) -> list[tuple[str, bytes | None]]:
    return [header for header in got.headers if not header[0].startswith("chronos-")]


def due_ms(got: Got) -> int:
    return int(got.header("chronos-due-at") or b"")


@pytest.mark.smoke
def test_the_console_programs_of_kafka_schedule_and_read(chronos: Chronos) -> None:
    """Without any library: a shell is enough."""
    target = chronos.target()
    started_ms = time.time_ns() // 1_000_000
    own = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("a", "1"),
        ("a", None),
        ("a", "2"),
    ]
    control = [
        ("chronos-target-topic", target),
        ("chronos-delay", "1s"),
        ("chronos-target-key", "customer-7"),
    ]
    chronos.broker.console_producer(
        chronos.topics.delay,
        [
            ConsoleRecord("hello", key=f"id-{target}", headers=[*own[:2], *control, *own[2:]]),
            ConsoleRecord(
                "plain", headers=[("chronos-target-topic", target), ("chronos-delay", "1s")]
            ),
        ],
    )

    found = chronos.broker.console_consumer(target, max_messages=2, timeout_ms=20_000)

    hello, plain = sorted(found, key=lambda record: record.value or "")
    headers = dict(hello.headers)
    assert [header for header in hello.headers if not header[0].startswith("chronos-")] == own
    assert (hello.value, hello.key) == ("hello", "customer-7")
    assert headers["chronos-id"] == f"id-{target}"
    assert hello.timestamp_ms is not None
    assert started_ms + 1_000 <= int(headers["chronos-due-at"] or "") <= hello.timestamp_ms
    topic, partition, _ = (headers["chronos-source"] or "").split("/")
    assert topic == chronos.topics.delay
    # Java's partitioner chooses the partition that Chronos computes for the id.
    assert int(partition) == partition_of(f"id-{target}".encode(), 2)
    assert (plain.key, {"chronos-occurrence", "chronos-attempt"} & set(headers)) == (None, set())
    shard, due, place = (dict(plain.headers)["chronos-id"] or "").split("-")
    assert dict(plain.headers)["chronos-source"] == f"{topic}/{shard}/{place}"
    assert due == dict(plain.headers)["chronos-due-at"]


@pytest.mark.parametrize(
    "snippet",
    [each for each in snippets() if each.language in ("java", "python")],
    ids=lambda each: each.name,
)
def test_the_programs_in_the_documentation_schedule(
    chronos: Chronos, tmp_path: Path, snippet: Snippet
) -> None:
    """As they stand there; `scripts/clients` runs those in other languages too."""
    target = chronos.target()
    place = Place(chronos.broker.bootstrap, chronos.service.url, chronos.topics.delay, target)
    snippet.run(place, f"snippet-{target}", tmp_path)
    with Tail(chronos.broker.bootstrap, target) as tail:
        wait_for_message(tail, target, f"snippet-{target}")


@pytest.mark.parametrize("settings", [{}, MURMUR2], ids=["default-partitioner", "murmur2"])
def test_every_format_of_a_time_is_understood(
    chronos: Chronos, settings: dict[str, object]
) -> None:
    """Delays count from the broker's timestamp, times are absolute; no message is early."""
    target = chronos.target()
    delays = {
        "0": 0,
        "0ms": 0,
        "700": 700,
        "250ms": 250,
        "0.9s": 900,
        "1s": 1_000,
        "0.0000001s": 1,
        "0.01m": 600,
    }
    now = datetime.now(UTC)
    times = {
        str(int(now.timestamp() * 1_000) + 800): 800,
        (now + timedelta(seconds=1)).isoformat(timespec="milliseconds"): 1_000,
        (now + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"): 1_000,
        (now - timedelta(days=1)).isoformat(): 0,
        str(int(now.timestamp() * 1_000) - 864_000_000): 0,
    }
    records = [Sent(text.encode(), schedule(target, delay=text)) for text in delays]
    aim = ("chronos-target-topic", target.encode())
    records += [Sent(text.encode(), [aim, ("chronos-deliver-at", text.encode())]) for text in times]
    chronos.send(*records, **settings)

    found = {(got.value or b"").decode(): got for got in chronos.read(target, len(records))}

    for text, got in found.items():
        assert got.timestamp_ms >= due_ms(got) - EARLY_MS, text
        if text in delays and text not in times:
            assert got.timestamp_ms - due_ms(got) <= LATE_MS, text
    one = found[(now + timedelta(seconds=1)).isoformat(timespec="milliseconds")]
    assert due_ms(one) == int((now.timestamp() * 1_000) // 1) + 1_000
    gaps = {
        text: due_ms(found[text]) - due_ms(found["0ms"]) for text in delays if text not in times
    }
    assert all(abs(gap - delays[text]) < LATE_MS for text, gap in gaps.items()), gaps


def test_any_payload_key_and_header_arrives_byte_for_byte(chronos: Chronos) -> None:
    """Null, empty and binary payloads, keys and headers are kept apart."""
    target = chronos.target()
    every = bytes(range(256))
    odd = [
        ("", b"x"),
        ("X-Chronos-Delay", b"not ours"),
        ("é", None),
        ("a", b""),
        ("a", every),
        ("z", b"1"),
        ("a", b"2"),
    ]
    made = [
        Sent(value, [*odd, *schedule(target, target_key=key), ("last", b"l")])
        for value in (None, b"", every, b"v")
        for key in (b"", every, b"k")
    ]
    made += [Sent(value, [*odd, *schedule(target), ("last", b"l")]) for value in (None, b"", every)]
    places = chronos.send(*made)

    found = {got.source: got for got in chronos.read(target, len(made))}

    for sent, (partition, offset) in zip(made, places, strict=True):
        got = found[f"{chronos.topics.delay}/{partition}/{offset}".encode()]
        assert (got.value, got.key) == (sent.value, dict(sent.headers).get("chronos-target-key"))
        assert own_headers(got) == [*odd, ("last", b"l")]
        if got.key is not None:
            assert got.partition == partition_of(got.key, 3), (
                "a key is not in the partition of Java's partitioner"
            )


@pytest.mark.smoke
@pytest.mark.parametrize("settings", [{}, MURMUR2], ids=["default-partitioner", "murmur2"])
def test_a_later_action_on_an_id_wins(chronos: Chronos, settings: dict[str, object]) -> None:
    """Cancel, reschedule, fire and replace reach the message of the same producer, with any
    partitioner."""
    target = chronos.target()
    ids = {
        name: f"{name}-{target}".encode()
        for name in ("cancel", "cancel-2", "later", "fire", "replace", "policy")
    }
    chronos.send(
        *(Sent(b"first", schedule(target, delay="3s"), key) for key in ids.values()), **settings
    )
    act = [
        Sent(None, [], ids["cancel"]),
        Sent(b"ignored", [("chronos-action", b"cancel")], ids["cancel-2"]),
        Sent(None, [("chronos-action", b"reschedule"), ("chronos-delay", b"4s")], ids["later"]),
        Sent(None, [("chronos-action", b"fire-now")], ids["fire"]),
        Sent(b"second", schedule(target, delay="2s", action=b"replace"), ids["replace"]),
        Sent(b"second", schedule(target, delay="2s", on_conflict=b"replace"), ids["policy"]),
    ]
    sent_ms = time.time_ns() // 1_000_000
    chronos.send(*act, **settings)

    with Tail(chronos.broker.bootstrap, target) as tail:
        tail.take(target, 4)
        found = {got.header("chronos-id"): got for got in tail.settle().records[target]}

    assert len(tail.records[target]) == 4
    assert set(found) == {ids["later"], ids["fire"], ids["replace"], ids["policy"]}
    assert found[ids["fire"]].timestamp_ms - sent_ms < LATE_MS
    assert found[ids["later"]].timestamp_ms >= sent_ms + 4_000
    assert {found[ids[name]].value for name in ("replace", "policy")} == {b"second"}
    assert {found[ids[name]].value for name in ("later", "fire")} == {b"first"}


def test_a_record_that_is_refused_comes_back_with_its_reason(chronos: Chronos) -> None:
    """The rejection has the record unchanged, its source, a reason for programs and a detail for
    people.

    The source is the partition that decided, to which a misplaced record is forwarded first: so no
    key is misplaced here."""
    target = chronos.target()
    key = f"taken-{target}".encode()
    (first,) = chronos.send(Sent(b"first", schedule(target, delay="1h"), key), **MURMUR2)
    wrong: list[tuple[str, Sent]] = [
        ("conflict", Sent(b"again", schedule(target, delay="1h"), key)),
        ("conflict", Sent(b"again", schedule(target, delay="1h", on_conflict=b"reject"), key)),
        ("unknown", Sent(None, [], f"nobody-{target}".encode())),
        ("unknown", Sent(b"x", schedule(target, action=b"replace"), f"nobody-{target}".encode())),
        ("reserved-id", Sent(b"x", schedule(target), b"0-1700000000000-1")),
        ("bad-id", Sent(b"x", schedule(target), b"")),
        ("bad-id", Sent(b"x", schedule(target), b"i" * 1_025)),
        ("no-target", Sent(b"x", [("chronos-delay", b"1s")])),
        ("no-time", Sent(b"x", [("chronos-target-topic", target.encode())])),
        ("bad-value", Sent(b"x", schedule(target, delay="soon"))),
        (
            "bad-value",
            Sent(
                b"x",
                [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"1700000000")],
            ),
        ),
        ("bad-value", Sent(b"x", schedule("no such name"))),
        ("bad-value", Sent(b"x", schedule("."))),
        ("bad-value", Sent(b"x", schedule(target, action=b"explode"))),
        ("unknown-header", Sent(b"x", schedule(target, delaay=b"1s"))),
        ("unknown-header", Sent(b"x", [*schedule(target), ("Chronos_Spraed", b"1s")])),
        ("repeated-header", Sent(b"x", [*schedule(target), ("chronos-delay", b"1s")])),
        ("repeated-header", Sent(b"x", [*schedule(target), ("CHRONOS_DELAY", b"1s")])),
        (
            "past",
            Sent(
                b"x",
                [
                    ("Chronos-Target-Topic", target.encode()),
                    ("chronos_deliver_at", b"1577836800000"),
                ],
            ),
        ),
        ("contradictory-headers", Sent(b"x", schedule(target, deliver_at=b"1700000000000"))),
        (
            "contradictory-headers",
            Sent(b"x", schedule(target, delay="1h", expire_at=b"1700000000000")),
        ),
        ("beyond-max-delay", Sent(b"x", schedule(target, delay="3651d"))),
        ("reserved-target", Sent(b"x", schedule(chronos.topics.progress))),
        ("reserved-target", Sent(b"x", schedule("__consumer_offsets"))),
        ("no-id", Sent(b"x", [("chronos-action", b"cancel")])),
    ]
    places = chronos.send(*(sent for _, sent in wrong), **MURMUR2)
    chronos.send(
        Sent(b"dropped", schedule(target, on_conflict=b"ignore"), key),
        Sent(b"fine", schedule(target)),
        **MURMUR2,
    )

    found = chronos.rejected(*places)

    for (reason, sent), got in zip(wrong, found, strict=True):
        assert got.reason == reason, (sent, got)
        assert (got.key, got.value, got.headers[: len(sent.headers)]) == (
            sent.key,
            sent.value,
            list(sent.headers),
        )
        assert [name for name, _ in got.headers[-3:]] == [
            "chronos-source",
            "chronos-reason",
            "chronos-detail",
        ]
    assert [got.value for got in chronos.read(target, 1)] == [b"fine"], (
        "the ignored message was delivered, or the one after it was not"
    )
    assert first


def test_an_expired_message_is_dead_lettered(chronos: Chronos) -> None:
    """`chronos-expire-at`: a service is frozen until one of two messages has expired."""
    target = chronos.target()
    chronos.service.freeze()
    soon_ms = time.time_ns() // 1_000_000 + 100
    expiry_ms = soon_ms + 200
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % soon_ms)]
    chronos.send(
        Sent(b"stale", [*aim, ("chronos-expire-at", b"%d" % expiry_ms)]), Sent(b"kept", aim)
    )
    while time.time_ns() // 1_000_000 <= expiry_ms:
        time.sleep(0.05)
    chronos.service.thaw()

    assert [got.value for got in chronos.read(target, 1)] == [b"kept"]
    with Tail(chronos.broker.bootstrap, chronos.topics.dead_letter) as tail:
        dead = tail.records[chronos.topics.dead_letter]
        tail.until(lambda: b"stale" in {got.value for got in dead}, "the dead letter")
    assert [got.reason for got in dead if got.value == b"stale"] == ["expired"]


def test_a_delivered_message_can_be_scheduled_again_unchanged(chronos: Chronos) -> None:
    """Its receipt headers are dropped, so a consumer need not remove them; it gets a new id."""
    target = chronos.target()
    own = [("n", b"1"), ("traceparent", b"00-1-2-01")]
    chronos.send(Sent(b"round", [*own, *schedule(target, target_key=b"k")], f"r-{target}".encode()))
    (once,) = chronos.read(target, 1)
    chronos.send(
        Sent(once.value, [*once.headers, *schedule(target, delay="100ms", target_key=once.key)])
    )

    again = chronos.read(target, 2)[1]

    assert (again.value, again.key, own_headers(again)) == (b"round", b"k", own)
    assert [name for name, _ in again.headers] == [
        "n",
        "traceparent",
        "chronos-id",
        "chronos-due-at",
        "chronos-source",
    ]
    assert again.source != once.source
    assert again.header("chronos-id") != once.header("chronos-id")


def test_a_message_without_a_key_is_cancelled_by_its_generated_id(chronos: Chronos) -> None:
    """The generated id follows from the producer's delivery report and the requested time. Another
    message of the same time is left."""
    target = chronos.target()
    at_ms = time.time_ns() // 1_000_000 + 3_600_000
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % at_ms)]
    sent = chronos.send(Sent(b"gone", aim, partition=1), Sent(b"kept", aim, partition=1))
    gone, kept = (f"{shard}-{at_ms}-{offset}" for shard, offset in sent)
    cancel = [("chronos-action", b"cancel"), ("chronos-id", gone.encode())]
    # It may be written to any partition: it is forwarded to the one that the id begins with.
    chronos.send(Sent(None, cancel, partition=0))

    service = chronos.service

    def is_cancelled() -> bool:
        status, found = service.ask("GET", f"/v1/messages/{gone}")
        return status == 200 and found["state"] == "cancelled"

    service.wait_until(is_cancelled, "apply the cancel")
    assert service.get(f"/v1/messages/{kept}")["state"] == "pending"
    assert service.ask("DELETE", f"/v1/messages/{kept}")[0] == 200


def test_keyed_deliveries_keep_their_order(chronos: Chronos) -> None:
    """Per key by due time, then by arrival; for messages of one shard."""
    target = chronos.target()
    start_ms = time.time_ns() // 1_000_000 + 1_500
    made = [
        Sent(
            b"%d-%d" % (due, at),
            [
                ("chronos-target-topic", target.encode()),
                ("chronos-deliver-at", b"%d" % (start_ms + due * 40)),
                ("chronos-target-key", b"key-%d" % (at % 5)),
            ],
            partition=0,
        )
        for at, due in enumerate(range(20, 0, -1))
        for _ in range(25)
    ]
    chronos.send(*made)

    found = chronos.read(target, len(made))

    for key in {got.key for got in found}:
        mine = [got for got in found if got.key == key]
        order = [(due_ms(got), int((got.source or b"").rpartition(b"/")[2])) for got in mine]
        assert len({got.partition for got in mine}) == 1
        assert order == sorted(order)


def test_ids_can_be_bound_to_the_partitions_of_javas_partitioner(
    broker: Broker, tmp_path: Path
) -> None:
    """`topics.misplaced=reject`: an id in another partition is rejected."""
    for chronos in running(broker, tmp_path, topics__misplaced="reject"):
        target = chronos.target()
        keys = [b"order-%d" % number for number in range(40)]
        chronos.send(*(Sent(b"right", schedule(target), key) for key in keys), **MURMUR2)
        assert len(chronos.read(target, len(keys))) == len(keys)

        misplaced = [
            Sent(b"wrong", schedule(target), key + b"w", 1 - partition_of(key + b"w", 2))
            for key in keys[:5]
        ]
        places = chronos.send(*misplaced)
        found = chronos.rejected(*places)
        assert {got.reason for got in found} == {"wrong-shard"}
        assert b"murmur2_random" in (found[0].header("chronos-detail") or b"")
