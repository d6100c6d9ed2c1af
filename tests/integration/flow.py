"""A flow of messages whose end is known beforehand, and the checker that compares it with what the targets hold.

Two ways in and out: `KafkaFlow` is a Kafka producer and a `read_committed` consumer, `HttpFlow` a client of the HTTP
interface of a node on the embedded log. Both remember what they asked for and what was acknowledged; `complaints`
names every message that was lost, doubled, early, delivered although cancelled in time, or ended without a word.

Knows nothing of pytest, and nothing of Chronos but its headers, its topics and its HTTP interface.
"""

import datetime
import http.client
import json
import random
import threading
import time
import urllib.error
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.broker import Clients
from tests.service import Service

SHARDS = 4
TARGET_PARTITIONS = 3
PADDING = "." * 120

IN_TIME_MS = 500
"""A cancel that was readable so long before the due time must win (law 6)."""

FLUSH_S = 120.0
"""How long the producer may take to have everything acknowledged, a broker's restart included."""

READ_S = 60.0
"""How long a topic may take to be read to its end."""

HTTP_MESSAGES = 50
"""Messages of one POST."""


def now_ms() -> int:
    """This machine's clock, which is also the broker's."""
    return time.time_ns() // 1_000_000


@dataclass
class Sent:
    """One message: what was asked, and what is known of it."""

    number: int
    id: str | None
    """The user's own, or the address once that is known."""
    due_ms: int | None
    """None: counted from the acknowledgement, which has not come."""
    accepted: bool | None = None
    """None: nobody knows, because the answer got lost."""
    cancel_ms: int | None = None
    """When a cancel was known to be readable."""
    cancel_unsure: bool = False
    """A cancel may have been written later than `cancel_ms`, or not at all."""
    cancel_result: str | None = None
    """What the HTTP interface said."""


@dataclass(frozen=True)
class Found:
    """One record of a target, rejected or dead-letter topic."""

    number: int
    timestamp_ms: int
    headers: dict[str, str]
    place: str


@dataclass
class Ends:
    """Behind the last record that was acknowledged, by shard."""

    offsets: dict[int, int] = field(default_factory=dict)

    def saw(self, shard: int, offset: int) -> None:
        """A record was acknowledged there."""
        self.offsets[shard] = max(self.offsets.get(shard, 0), offset + 1)


class Flow:
    """What both ways share: the plan and its check."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: list[Sent] = []
        self.ends = Ends()
        self.target = "target"

    def plan(self, soonest_ms: int, latest_ms: int, *, keyed: bool) -> Sent:
        """The next message; its number is its payload."""
        number = len(self.sent)
        message = Sent(
            number=number,
            id=f"order-{number}" if keyed else None,
            due_ms=self.random.randint(soonest_ms, latest_ms),
        )
        self.sent.append(message)
        return message

    def settings(self) -> dict[str, object]:
        """What the service must be told to serve this flow."""
        return {"shards": SHARDS}

    # --- at the end

    def is_settled(self, service: Service) -> bool:
        """Whether everything acknowledged was pulled, and nothing is pending."""
        shards = service.shards()
        pulled = all(
            shard["pull_offset"] >= self.ends.offsets.get(shard["shard"], 0) and shard["role"] == "master"
            for shard in shards
        )
        return pulled and sum(shard["pending"] for shard in shards) == 0

    def wait_settled(self, service: Service, *, timeout_s: float = 90.0) -> None:
        """Wait until everything acknowledged has come to its end."""

        def settled() -> bool:
            try:
                return self.is_settled(service)
            except (OSError, http.client.HTTPException):
                return False

        service.wait_until(settled, "settle everything", timeout_s=timeout_s)

    def delivered(self) -> list[Found]:
        """Everything in the target topic, as a `read_committed` reader finds it."""
        raise NotImplementedError

    def rejected(self) -> list[Found]:
        """Everything in the rejected topic."""
        raise NotImplementedError

    def dead_letters(self) -> list[Found]:
        """Everything in the dead-letter topic."""
        raise NotImplementedError

    def complaints(self) -> list[str]:
        """What is wrong with the outcome, one line each, at most a few of a kind; empty when all is well."""
        delivered, rejected, dead = self.delivered(), self.rejected(), self.dead_letters()
        times = Counter(found.number for found in delivered)
        too_late = Counter(found.number for found in rejected if found.headers.get("chronos-reason") == "too-late")
        wrong: dict[str, list[str]] = {}
        for message in self.sent:
            fault = _fault(message, times[message.number], too_late[message.number])
            if fault is not None:
                wrong.setdefault(fault, []).append(f"{message}, {times[message.number]} times")
        for found in delivered:
            due_ms = self.sent[found.number].due_ms
            if due_ms is not None and found.timestamp_ms < due_ms:
                wrong.setdefault("early", []).append(f"{due_ms - found.timestamp_ms} ms: {found}")
        for found in dead:
            wrong.setdefault("dead-lettered", []).append(str(found))
        for found in rejected:
            if found.headers.get("chronos-reason") not in ("too-late",):
                wrong.setdefault("rejected", []).append(str(found))
        return [f"{len(lines)} {fault}: {'; '.join(lines[:5])}" for fault, lines in wrong.items()]


def _fault(message: Sent, times: int, too_late: int) -> str | None:
    """What is wrong with a message that was delivered so many times and whose cancel was so often refused."""
    if times > 1:
        return "doubled"
    if message.accepted is False and times:
        return "delivered though not accepted"
    if not message.accepted:
        return None
    asked = message.cancel_ms is not None or message.cancel_unsure
    if not asked:
        return None if times else "lost"
    if times and message.cancel_result == "cancelled":
        return "delivered though said to be cancelled"
    if not times and message.cancel_result == "too_late":
        return "lost though said to be too late to cancel"
    if message.cancel_ms is None or message.cancel_unsure:
        return None
    assert message.due_ms is not None
    if times and message.cancel_ms < message.due_ms - IN_TIME_MS:
        return "delivered though cancelled in time"
    if not times and too_late:
        return "lost: a cancel was too late, and yet nothing was delivered"
    if times and not too_late:
        return "silent: delivered in spite of a cancel, and nobody said so"
    return None


# ------------------------------------------------------------------------------------------------------------ Kafka


class KafkaFlow(Flow):
    """Through a Kafka producer, and out through a consumer, on topics of its own."""

    def __init__(self, kafka: Clients, seed: int) -> None:
        super().__init__(seed)
        self._kafka = kafka
        self.prefix = f"flow-{uuid.uuid4().hex[:8]}"
        self.target = f"{self.prefix}.target"
        self.delay = f"{self.prefix}.delay"
        for topic, partitions in ((self.target, TARGET_PARTITIONS), (self.delay, SHARDS)):
            kafka.create_topic(topic, partitions=partitions, config={"message.timestamp.type": "LogAppendTime"})
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
        topics = {name: f"{self.prefix}.{name}" for name in ("delay", "progress", "rejected", "dead_letter")}
        return {
            **super().settings(),
            "cluster": self.prefix,
            **{f"topics.{name}": topic for name, topic in topics.items()},
        }

    def write(self, count: int, soonest_ms: int, latest_ms: int, *, keyed: float = 0.4, delays: float = 0.1) -> list[Sent]:
        """Write so many messages, due between the two times; some with ids, some with a delay instead of a time."""
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
            partition = -1 if message.id is not None else message.number % SHARDS
            self._produce(message.id, f"{message.number} {PADDING}", headers, partition, self._accept(message, delay_ms))
            written.append(message)
        self._producer.poll(0)
        return written

    def cancel(self, messages: Iterable[Sent]) -> None:
        """Ask for the end of messages: by their key, or by their address once it is known."""
        for message in messages:
            if message.id is None:
                continue
            if message.id.startswith("order-"):
                self._produce(message.id, None, {}, -1, self._cancelled(message))
            else:
                headers: dict[str, str | bytes | None] = {"chronos-action": b"cancel", "chronos-id": message.id.encode()}
                shard = int(message.id.split("-")[0])
                self._produce(None, str(message.number), headers, shard, self._cancelled(message))
        self._producer.poll(0)

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
            self.ends.saw(shard, offset)
            done(message)

        self._unanswered += 1
        while True:
            try:
                self._producer.produce(
                    self.delay, value, key, partition, on_delivery=report, headers=headers  # type: ignore[arg-type]
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    @staticmethod
    def _accept(message: Sent, delay_ms: int) -> Callable[[Message], None]:
        def note(report: Message) -> None:
            message.accepted = True
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
        """Take in the acknowledgements that have come."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        if self._producer.flush(FLUSH_S) > 0 or self._unanswered:
            raise RuntimeError(f"{self._unanswered} records were not acknowledged in {FLUSH_S:g} s")

    def is_settled(self, service: Service) -> bool:
        """As said; everything written counts, so it is waited for."""
        self._producer.poll(0)
        return not self._unanswered and super().is_settled(service)

    def delivered(self) -> list[Found]:
        """The target topic."""
        return list(self._read(self.target))

    def rejected(self) -> list[Found]:
        """The rejected topic. A cancel has no payload, so its message is found by its id."""
        return list(self._read(f"{self.prefix}.rejected"))

    def dead_letters(self) -> list[Found]:
        """The dead-letter topic."""
        return list(self._read(f"{self.prefix}.dead_letter"))

    def _read(self, topic: str) -> Iterator[Found]:
        for message in read_committed(self._kafka.bootstrap, topic):
            headers = {name: (value or b"").decode() for name, value in message.headers() or ()}  # type: ignore[union-attr]
            value, key = message.value(), message.key()
            text = key.decode().removeprefix("order-") if value is None and key is not None else (value or b"").decode()
            yield Found(
                number=int(text.split(" ")[0]),
                timestamp_ms=message.timestamp()[1],
                headers=headers,
                place=f"{topic}/{message.partition()}/{message.offset()}",
            )


def read_committed(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every committed record of a topic up to where each of its partitions ends now."""
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
                raise RuntimeError(f"{topic} could not be read to its end in {READ_S:g} s: {sorted(unread)} are left")
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


# ------------------------------------------------------------------------------------------------------------- HTTP


class HttpFlow(Flow):
    """Through the HTTP interface of a service on the embedded log, which may be killed at any moment."""

    def __init__(self, service: Service, seed: int) -> None:
        super().__init__(seed)
        self._service = service
        self.refused: Counter[int] = Counter()
        """Answers that were neither done nor lost, by status."""

    def write(
        self, count: int, soonest_ms: int, latest_ms: int, *, keyed: float = 0.4, gone: threading.Event | None = None
    ) -> list[Sent]:
        """Write so many messages in requests of some each; one whose answer got lost is repeated only if that is safe."""
        written: list[Sent] = []
        while len(written) < count:
            ours = self.random.random() < keyed
            batch = [
                self.plan(soonest_ms, latest_ms, keyed=ours) for _ in range(min(HTTP_MESSAGES, count - len(written)))
            ]
            written += batch
            self._post(batch, repeat=ours)
            if gone is not None and gone.is_set():
                break
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
                    self.ends.saw(accepted["shard"], accepted["offset"])
                return
            if status is not None and 0 < status < 500:
                raise RuntimeError(f"POST answered {status}: {answer}")
            # Not connected, and 507: nothing was written. Anything else may have been.
            if status not in (NOT_CONNECTED, 507) and not repeat:
                return
            time.sleep(0.01)

    def cancel(self, messages: Iterable[Sent]) -> None:
        """Cancel messages, one request each; one whose answer got lost is not repeated."""
        for message in messages:
            if message.id is None:
                continue
            message.cancel_unsure = True
            status, answer = self._ask("DELETE", f"/v1/messages/{message.id}", None)
            if status in (200, 202):
                message.cancel_unsure = False
                message.cancel_ms = now_ms()
                message.cancel_result = answer["result"]
                self.ends.saw(answer["shard"], answer["offset"])

    def _ask(self, method: str, path: str, body: object) -> tuple[int | None, Any]:
        """The status and the answer; NOT_CONNECTED when nothing was sent, None when the answer got lost."""
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
        known = {each["topic"]: each["partitions"] for each in self._service.get("/v1/topics")["topics"]}
        numbers = {message.id: message.number for message in self.sent}
        found = []
        for partition in known.get(topic, ()):
            number, offset = partition["partition"], partition["start"]
            while offset < partition["end"]:
                answer = self._service.get(f"/v1/topics/{topic}/records", partition=number, offset=offset, limit=1_000)
                for record in answer["records"]:
                    found.append(self._found(topic, record, numbers))
                assert answer["next_offset"] > offset
                offset = answer["next_offset"]
        return found

    @staticmethod
    def _found(topic: str, record: dict[str, Any], numbers: dict[str | None, int]) -> Found:
        headers = record["headers"]
        value = record.get("value")
        number = int(value.split(" ")[0]) if value else numbers[record.get("key") or headers.get("chronos-id")]
        return Found(
            number=number,
            timestamp_ms=_epoch_ms(record["timestamp"]),
            headers=headers,
            place=f"{topic}/{record['partition']}/{record['offset']}",
        )


NOT_CONNECTED = -1
"""Stands for a status where nothing was sent."""


def _epoch_ms(text: str) -> int:
    """Epoch milliseconds of `2030-01-31T09:00:00.123Z`."""
    moment = datetime.datetime.fromisoformat(text)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (moment - epoch) // datetime.timedelta(milliseconds=1)
