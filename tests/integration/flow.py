"""A flow of messages with a known expected outcome, and the check that compares it with the target
topics.

`KafkaFlow` is a Kafka producer and a `read_committed` consumer, `HttpFlow` a client of the HTTP
interface of a node on the embedded log, and `LogFlow` writes to that log while no node runs. They
record every request and acknowledgement; `complaints` lists every message that was lost,
duplicated, early, or delivered although it was cancelled in time, and every cancel that failed
without a rejection.

This module does not use pytest, and of Chronos only its headers, topics and HTTP interface.
"""

import datetime
import http.client
import json
import random
import time
import urllib.error
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.keys import partition_of
from chronos.ports import Outgoing
from tests.harness.broker import Clients
from tests.harness.service import Service

SHARDS = 4
TARGET_PARTITIONS = 3
PADDING = "." * 120

IN_TIME_MS = 500
"""A cancel that was readable this long before the due time must win (law 6)."""

STEP_MS = 2_000
"""How long a node's transaction may have been open when the node is killed: far longer than a step
takes."""

FLUSH_S = 120.0
"""Bound for the acknowledgement of all records, a broker's restart included."""

READ_S = 60.0
"""Bound for reading a topic to its end."""

HTTP_MESSAGES = 50
"""Messages per POST."""

LOG_MESSAGES = 2_000
"""Messages per write to the log."""


def now_ms() -> int:
    """Epoch milliseconds of this machine's clock, which is also the broker's."""
    return time.time_ns() // 1_000_000


@dataclass
class Sent:
    """One message: the request, and what is known of its outcome."""

    number: int
    id: str | None
    """The user's id, or the generated id once that is known."""
    due_ms: int | None
    """None: counted from the acknowledgement, which has not arrived."""
    accepted: bool | None = None
    """None: unknown, because the answer was lost."""
    accepted_ms: int = 0
    """The broker's timestamp of its record, epoch milliseconds; 0: not known."""
    cancel_ms: int | None = None
    """When a cancel was known to be readable, epoch milliseconds."""
    cancel_unsure: bool = False
    """True if a cancel may have been written later than `cancel_ms`, or not at all."""
    hops: bool = False
    """True if a record of it was written to another partition than that of its id, by a client with
    another partitioner."""
    cancel_result: str | None = None
    """The `result` in the answer of the HTTP interface."""


@dataclass(frozen=True)
class Found:
    """A record of a target, rejected or dead-letter topic."""

    number: int
    timestamp_ms: int
    headers: dict[str, str]
    place: str


@dataclass
class Watermarks:
    """The offset after the last acknowledged record, by shard."""

    offsets: dict[int, int] = field(default_factory=dict)

    def note(self, shard: int, offset: int) -> None:
        """Note an acknowledged record."""
        self.offsets[shard] = max(self.offsets.get(shard, 0), offset + 1)


class Flow:
    """The common part of all flows: the plan and the check."""

    skew_ms = 0
    """Most by which the clock of a broker differs from this machine's."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: list[Sent] = []
        self.watermarks = Watermarks()
        self.target = "target"
        self.held_back: list[tuple[int, int]] = []
        """Spans, in epoch ms, from the kill of a node that forwards records to the end of its last
        transaction, which hides what was written meanwhile: law 6 counts from when a cancel can be
        read."""

    def plan(self, soonest_ms: int, latest_ms: int, *, keyed: bool) -> Sent:
        """Plan the next message; its payload begins with its number."""
        number = len(self.sent)
        message = Sent(
            number=number,
            id=f"order-{number}" if keyed else None,
            due_ms=self.random.randint(soonest_ms, latest_ms),
        )
        self.sent.append(message)
        return message

    def settings(self) -> dict[str, object]:
        """The settings of a service for this flow."""
        return {"shards": SHARDS}

    # --- at the end

    def is_settled(self, service: Service) -> bool:
        """Return whether all acknowledged records were pulled and no message is pending."""
        shards = service.shards()
        pulled = all(
            shard["pull_offset"] >= self.watermarks.offsets.get(shard["shard"], 0)
            and shard["role"] in ("master", "follower")
            for shard in shards
        )
        if not pulled or sum(shard["pending"] for shard in shards):
            return False
        # Forwarded records are pulled once more.
        return (
            not any(message.hops for message in self.sent)
            or sum(shard["lag"] or 0 for shard in shards) == 0
        )

    def wait_settled(self, service: Service, *, timeout_s: float = 90.0) -> None:
        """Wait until every acknowledged message is settled."""

        def settled() -> bool:
            try:
                return self.is_settled(service)
            except (OSError, http.client.HTTPException):
                return False

        service.wait_until(settled, "settle every message", timeout_s=timeout_s)

    def _readable_ms(self, written_ms: int) -> int:
        """Return when a record that was written then could be read at the latest."""
        ends = [
            end_ms
            for begin_ms, end_ms in self.held_back
            if begin_ms - STEP_MS <= written_ms < end_ms
        ]
        return max([written_ms, *ends])

    def delivered(self) -> list[Found]:
        """All records of the target topic that a `read_committed` consumer reads."""
        raise NotImplementedError

    def rejected(self) -> list[Found]:
        """All records of the rejected topic."""
        raise NotImplementedError

    def dead_letters(self) -> list[Found]:
        """All records of the dead-letter topic."""
        raise NotImplementedError

    def ends(self) -> tuple[int, int]:
        """Number of all deliveries and of all dead letters."""
        return len(self.delivered()), len(self.dead_letters())

    def complaints(self) -> list[str]:
        """Violations of the expected outcome: a line per kind, with examples; empty if there is
        none."""
        delivered, rejected, dead = self.delivered(), self.rejected(), self.dead_letters()
        times = Counter(found.number for found in delivered)
        too_late = Counter(
            found.number for found in rejected if found.headers.get("chronos-reason") == "too-late"
        )
        overtaking = {
            found.number for found in rejected if found.headers.get("chronos-reason") == "unknown"
        }
        wrong: dict[str, list[str]] = {}
        for message in self.sent:
            readable_ms = self._readable_ms(message.cancel_ms or 0)
            fault = _fault(
                message, times[message.number], too_late[message.number], readable_ms + self.skew_ms
            )
            if (
                message.number in overtaking
                and times[message.number]
                and not _is_cancel_older(message)
            ):
                fault = "delivered though a cancel had overtaken it"
            if fault is not None:
                wrong.setdefault(fault, []).append(f"{message}, {times[message.number]} times")
        for found in delivered:
            due_ms = self.sent[found.number].due_ms
            if due_ms is not None and found.timestamp_ms < due_ms - self.skew_ms:
                wrong.setdefault("early", []).append(f"{due_ms - found.timestamp_ms} ms: {found}")
        for found in dead:
            wrong.setdefault("dead-lettered", []).append(str(found))
        for found in rejected:
            hops = self.sent[found.number].hops
            if found.headers.get("chronos-reason") not in ("too-late", *["unknown"] * hops):
                wrong.setdefault("rejected", []).append(str(found))
        return [f"{len(lines)} {fault}: {'; '.join(lines[:5])}" for fault, lines in wrong.items()]


def _is_cancel_older(message: Sent) -> bool:
    """Return whether a cancel in another partition was written before its message, or in the same
    millisecond: then it is for none."""
    return (
        message.hops and message.cancel_ms is not None and message.cancel_ms <= message.accepted_ms
    )


def _fault(message: Sent, times: int, too_late: int, readable_ms: int) -> str | None:
    """The violation of a message that was delivered `times` times and whose cancel was rejected
    `too_late` times, and was readable at `readable_ms`."""
    if times > 1:
        return "duplicated"
    if message.accepted is False and times:
        return "delivered though not accepted"
    if not message.accepted:
        return None
    asked = message.cancel_ms is not None or message.cancel_unsure
    if not asked:
        return None if times else "lost"
    if message.hops:
        # Forwarded, one of its records is readable in the partition of its id only later; of the
        # two orders each is possible.
        if _is_cancel_older(message):
            return None
        return (
            "silent: delivered in spite of a cancel, without a rejection"
            if times and not too_late
            else None
        )
    if times and message.cancel_result == "cancelled":
        return "delivered though the answer said cancelled"
    if not times and message.cancel_result == "too_late":
        return "lost though the answer said too late to cancel"
    if message.cancel_ms is None or message.cancel_unsure:
        return None
    assert message.due_ms is not None
    if times and readable_ms < message.due_ms - IN_TIME_MS:
        return "delivered though cancelled in time"
    if not times and too_late:
        return "lost: a cancel was too late, but the message was not delivered"
    if times and not too_late:
        return "silent: delivered in spite of a cancel, without a rejection"
    return None


# -------------------------------------------------------------------------------------------- Kafka


class KafkaFlow(Flow):
    """In through a Kafka producer and out through a consumer, on separate topics."""

    def __init__(self, kafka: Clients, seed: int, *, misplaced: float = 0.0) -> None:
        """`misplaced`: share of the records with a key that go to any partition, as from a client
        with another partitioner."""
        super().__init__(seed)
        self.misplaced = misplaced
        self._kafka = kafka
        self.prefix = f"flow-{uuid.uuid4().hex[:8]}"
        self.target = f"{self.prefix}.target"
        self.delay = f"{self.prefix}.delay"
        for topic, partitions in ((self.target, TARGET_PARTITIONS), (self.delay, SHARDS)):
            kafka.create_topic(
                topic, partitions=partitions, config={"message.timestamp.type": "LogAppendTime"}
            )
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 2,
            }
        )
        self._unanswered = 0

    def settings(self) -> dict[str, object]:
        """The cluster's name and topics of this flow."""
        topics = {
            name: f"{self.prefix}.{name}"
            for name in ("delay", "progress", "rejected", "dead_letter", "cluster")
        }
        return {
            **super().settings(),
            "cluster": self.prefix,
            **{f"topics.{name}": topic for name, topic in topics.items()},
        }

    def write(
        self,
        count: int,
        soonest_ms: int,
        latest_ms: int,
        *,
        keyed: float = 0.4,
        delays: float = 0.1,
    ) -> list[Sent]:
        """Write `count` messages due between the two times; some with ids, some with a delay
        instead of a time."""
        written = []
        for _ in range(count):
            message = self.plan(soonest_ms, latest_ms, keyed=self.random.random() < keyed)
            assert message.due_ms is not None
            headers: dict[str, str | bytes | None] = {"chronos-target-topic": self.target.encode()}
            if self.random.random() < delays and message.due_ms > now_ms():
                delay_ms, message.due_ms = message.due_ms - now_ms(), None
                headers["chronos-delay"] = b"%d" % delay_ms
            else:
                delay_ms = 0
                headers["chronos-deliver-at"] = b"%d" % message.due_ms
            partition = self._partition(message)
            done = self._accept(message, delay_ms)
            self._produce(message.id, f"{message.number} {PADDING}", headers, partition, done)
            written.append(message)
        self._producer.poll(0)
        return written

    def _partition(self, message: Sent) -> int:
        """Return the partition of the next record of a message; -1: that of its id."""
        if message.id is None:
            return message.number % SHARDS
        if self.random.random() >= self.misplaced:
            return -1
        message.hops = True
        return self.random.randrange(SHARDS)

    def cancel(self, messages: Iterable[Sent]) -> None:
        """Cancel messages by their key, or by their generated id once it is known."""
        for message in messages:
            if message.id is None:
                continue
            if message.id.startswith("order-"):
                self._produce(
                    message.id, None, {}, self._partition(message), self._cancelled(message)
                )
            else:
                headers: dict[str, str | bytes | None] = {"chronos-action": b"cancel"}
                headers["chronos-id"] = message.id.encode()
                shard = self._partition(message)
                shard = int(message.id.split("-")[0]) if shard < 0 else shard
                self._produce(None, str(message.number), headers, shard, self._cancelled(message))
        self._producer.poll(0)

    def fire(self, messages: Iterable[Sent]) -> None:
        """Make messages due now, by their key or by their generated id, which is known once they
        are acknowledged."""
        for message in messages:
            assert message.id is not None
            message.due_ms = now_ms()
            headers: dict[str, str | bytes | None] = {"chronos-action": b"fire-now"}
            if message.id.startswith("order-"):
                self._produce(message.id, None, headers, -1, _nothing)
            else:
                headers["chronos-id"] = message.id.encode()
                self._produce(None, None, headers, int(message.id.split("-")[0]), _nothing)

    def _produce(
        self,
        key: str | None,
        value: str | None,
        headers: dict[str, str | bytes | None],
        partition: int,
        done: Callable[[Message], None],
    ) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            self._unanswered -= 1
            if error is not None:
                raise RuntimeError(f"a record was not written: {error}")
            shard, offset = message.partition(), message.offset()
            assert shard is not None
            assert offset is not None
            self.watermarks.note(shard, offset)
            done(message)

        self._unanswered += 1
        while True:
            try:
                self._producer.produce(
                    self.delay,
                    value,
                    key,
                    partition,
                    on_delivery=report,
                    headers=headers,
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    @staticmethod
    def _accept(message: Sent, delay_ms: int) -> Callable[[Message], None]:
        def note(report: Message) -> None:
            message.accepted, message.accepted_ms = True, report.timestamp()[1]
            if message.due_ms is None:
                message.due_ms = report.timestamp()[1] + delay_ms
            if message.id is None:
                message.id = f"{report.partition()}-{message.due_ms}-{report.offset()}"

        return note

    @staticmethod
    def _cancelled(message: Sent) -> Callable[[Message], None]:
        message.cancel_unsure = True

        def note(report: Message) -> None:
            message.cancel_unsure = False
            message.cancel_ms = report.timestamp()[1]

        return note

    def poll(self) -> None:
        """Process the acknowledgements that have arrived."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        if self._producer.flush(FLUSH_S) > 0 or self._unanswered:
            raise RuntimeError(f"{self._unanswered} records were not acknowledged in {FLUSH_S:g} s")

    def is_settled(self, service: Service) -> bool:
        """As in the base class; records that are not acknowledged yet count too."""
        self._producer.poll(0)
        return not self._unanswered and super().is_settled(service)

    def delivered(self) -> list[Found]:
        """The target topic."""
        return list(self._read(self.target))

    def rejected(self) -> list[Found]:
        """The rejected topic. A cancel has no payload: its message is found by its id."""
        return list(self._read(f"{self.prefix}.rejected"))

    def dead_letters(self) -> list[Found]:
        """The dead-letter topic."""
        return list(self._read(f"{self.prefix}.dead_letter"))

    def is_own(self, message: Message) -> bool:
        """Return whether a record belongs to the messages in `sent`."""
        return True

    def _read(self, topic: str) -> Iterator[Found]:
        for message in read_committed(self._kafka.bootstrap, topic):
            if not self.is_own(message):
                continue
            headers = text_headers(message)
            value, key = message.value(), message.key()
            if value is None and key is not None:
                value = key.removeprefix(b"order-")
            elif value is None:
                named = headers["chronos-id"]
                value = b"%d" % next(sent.number for sent in self.sent if sent.id == named)
            yield Found(
                number=int(value.split(b" ")[0]),
                timestamp_ms=message.timestamp()[1],
                headers=headers,
                place=f"{topic}/{message.partition()}/{message.offset()}",
            )


def _nothing(report: Message) -> None:
    """An acknowledgement that changes nothing."""


def text_headers(message: Message) -> dict[str, str]:
    """The headers as text; a null value is empty."""
    pairs: Any = message.headers() or ()
    return {name: (value or b"").decode() for name, value in pairs}


def read_committed(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every committed record of a topic up to the current end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "flow",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 2,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        unread = set(partitions)
        deadline = time.monotonic() + READ_S
        while unread:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{topic} could not be read to its end within {READ_S:g} s: partitions "
                    f"{unread} are left"
                )
            for message in consumer.consume(5_000, 0.1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise RuntimeError(str(error))
    finally:
        consumer.close()


# --------------------------------------------------------------------------------------------- HTTP


class HttpFlow(Flow):
    """In and out through the HTTP interface of a service on the embedded log, which may be killed
    at any time."""

    def __init__(self, service: Service, seed: int) -> None:
        super().__init__(seed)
        self._service = service
        self.refused: Counter[int] = Counter()
        """Answers other than 200 and 202, by status."""

    def write(
        self, count: int, soonest_ms: int, latest_ms: int, *, keyed: float = 0.4
    ) -> list[Sent]:
        """Write `count` messages; a request whose answer was lost is repeated only if that is
        safe."""
        written: list[Sent] = []
        while len(written) < count:
            with_ids = self.random.random() < keyed
            size = min(HTTP_MESSAGES, count - len(written))
            batch = [self.plan(soonest_ms, latest_ms, keyed=with_ids) for _ in range(size)]
            written += batch
            self._post(batch, repeat=with_ids)
        return written

    def _post(self, batch: list[Sent], *, repeat: bool) -> None:
        body = [
            {
                "target": {"topic": self.target},
                "value": f"{message.number} {PADDING}",
                "deliver_at": message.due_ms,
                **({"id": message.id, "on_conflict": "ignore"} if message.id is not None else {}),
            }
            for message in batch
        ]
        while True:
            status, answer = self._ask("POST", "/v1/messages", body)
            if status == 202:
                for message, accepted in zip(batch, answer, strict=True):
                    message.accepted = True
                    message.id = accepted["id"]
                    self.watermarks.note(accepted["shard"], accepted["offset"])
                return
            if status is not None and 0 < status < 500:
                raise RuntimeError(f"POST answered {status}: {answer}")
            # Not connected, or 507: nothing was written. In all other cases the messages may have
            # been written.
            if status not in (NOT_CONNECTED, 507) and not repeat:
                return
            time.sleep(0.01)

    def cancel(self, messages: Iterable[Sent]) -> None:
        """Cancel messages, one request each; a request whose answer was lost is not repeated."""
        for message in messages:
            if message.id is None:
                continue
            message.cancel_unsure = True
            status, answer = self._ask("DELETE", f"/v1/messages/{message.id}", None)
            if status in (200, 202):
                message.cancel_unsure = False
                message.cancel_ms = now_ms()
                message.cancel_result = answer["result"]
                self.watermarks.note(answer["shard"], answer["offset"])

    def _ask(self, method: str, path: str, body: object) -> tuple[int | None, Any]:
        """The status and the answer; NOT_CONNECTED if nothing was sent, None if the answer was
        lost."""
        try:
            status, answer = self._service.ask(method, path, body)
        except urllib.error.URLError as error:
            refused = isinstance(error.reason, ConnectionRefusedError)
            return (NOT_CONNECTED if refused else None), None
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return None, None
        if status not in (200, 202):
            self.refused[status] += 1
        return status, answer

    def delivered(self) -> list[Found]:
        """The target topic."""
        return self._read(self.target)

    def rejected(self) -> list[Found]:
        """The rejected topic."""
        return self._read("chronos.rejected")

    def dead_letters(self) -> list[Found]:
        """The dead-letter topic."""
        return self._read("chronos.dead-letter")

    def _read(self, topic: str) -> list[Found]:
        known = {
            each["topic"]: each["partitions"] for each in self._service.get("/v1/topics")["topics"]
        }
        numbers = {message.id: message.number for message in self.sent}
        found = []
        for partition in known.get(topic, ()):
            number, offset = partition["partition"], partition["start"]
            while offset < partition["end"]:
                path = f"/v1/topics/{topic}/records"
                answer = self._service.get(path, partition=number, offset=offset, limit=1_000)
                for record in answer["records"]:
                    found.append(self._found(topic, record, numbers))
                assert answer["next_offset"] > offset
                offset = answer["next_offset"]
        return found

    @staticmethod
    def _found(topic: str, record: dict[str, Any], numbers: dict[str | None, int]) -> Found:
        headers = record["headers"]
        value = record.get("value")
        named = record.get("key") or headers.get("chronos-id")
        return Found(
            number=int(value.split(" ")[0]) if value else numbers[named],
            timestamp_ms=_epoch_ms(record["timestamp"]),
            headers=headers,
            place=f"{topic}/{record['partition']}/{record['offset']}",
        )


NOT_CONNECTED = -1
"""In place of a status: no request was sent."""


class LogFlow(HttpFlow):
    """In by writing to the embedded log of a stopped service, out through its HTTP interface once
    it runs."""

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Open the log for the block."""
        self._log = EmbeddedLog(
            self._service.data_dir / "log",
            clock=SystemClock(),
            disk_reserve_bytes=0,
            partitions_default=1,
        )
        try:
            yield self
        finally:
            self._log.close()

    def write(
        self, count: int, soonest_ms: int, latest_ms: int, *, keyed: float = 0.4
    ) -> list[Sent]:
        """Write `count` messages."""
        written: list[Sent] = []
        while len(written) < count:
            size = min(LOG_MESSAGES, count - len(written))
            batch = [
                self.plan(soonest_ms, latest_ms, keyed=self.random.random() < keyed)
                for _ in range(size)
            ]
            written += batch
            self._append(batch)
        return written

    def end_of_target(self) -> int:
        """Number of records in the target topic, which has one partition."""
        return self._log.watermarks(self.target, 0).stable

    def _append(self, batch: list[Sent]) -> None:
        records: list[Outgoing] = []
        for message in batch:
            headers = {
                "chronos-target-topic": self.target.encode(),
                "chronos-deliver-at": b"%d" % (message.due_ms or 0),
            }
            key = None if message.id is None else message.id.encode()
            shard = message.number % SHARDS if key is None else partition_of(key, SHARDS)
            records.append(
                ("chronos.delay", key, f"{message.number} {PADDING}".encode(), headers, shard)
            )
        for message, appended in zip(batch, self._log.append(records, READ_S), strict=True):
            message.accepted = True
            message.id = message.id or f"{appended.partition}-{message.due_ms}-{appended.offset}"
            self.watermarks.note(appended.partition, appended.offset)

    def cancel(self, messages: Iterable[Sent]) -> None:
        """Cancel messages by key or by generated id."""
        chosen = list(messages)
        records: list[Outgoing] = []
        for message in chosen:
            assert message.id is not None
            name = message.id.encode()
            if message.id.startswith("order-"):
                records.append(("chronos.delay", name, None, {}, partition_of(name, SHARDS)))
            else:
                headers = {"chronos-action": b"cancel", "chronos-id": name}
                records.append(
                    ("chronos.delay", None, None, headers, int(message.id.split("-")[0]))
                )
        for message, appended in zip(chosen, self._log.append(records, READ_S), strict=True):
            message.cancel_ms = appended.timestamp_ms
            self.watermarks.note(appended.partition, appended.offset)


def _epoch_ms(text: str) -> int:
    """Epoch milliseconds of `2030-01-31T09:00:00.123Z`."""
    moment = datetime.datetime.fromisoformat(text)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (moment - epoch) // datetime.timedelta(milliseconds=1)
