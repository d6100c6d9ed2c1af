"""Writing to the topic `chronos.cluster`: heartbeats and what belongs to them without transactions, and roles in transactions."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chronos.adapters.kafka.cluster_topic import ClusterTopic
from chronos.adapters.kafka.connection import Connection
from chronos.adapters.kafka.settings import PRODUCER, RECONNECTING
from chronos.adapters.kafka.writer import KafkaWriter, discard
from chronos.core.cluster_records import HEARTBEATS, ROLES, ClusterRecord, RolesRecord, pack_record
from chronos.core.controllership import Controllership, Stage
from chronos.errors import ChronosError, LogUnavailable

log = structlog.get_logger("chronos.cluster")

ASK_AGAIN_S = 0.05
"""Pause before the end of the partition ROLES is asked for again."""

LINES_S = 30.0
"""Least time between two lines about heartbeats that were not written, or about records that are ignored."""

Settled = Callable[[int | None, str], None]
"""Called with the offset of a record once it is durable; or with None, and why it is not known to be written."""


class HeartbeatWriter:
    """An idempotent producer of records without transactions, which gives each up after the timeout. For one thread."""

    def __init__(self, connection: Connection, topic: str, timeout_ms: int) -> None:
        self._topic = topic
        settings: Mapping[str, Any] = {
            **PRODUCER,
            **RECONNECTING,
            "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        self._settings = connection.settings(settings)
        self._producer = Producer(self._settings)
        self._under_way: dict[int, Settled] = {}
        self._written = 0
        self._logged_s = -LINES_S

    def write(self, record: ClusterRecord, settled: Settled) -> None:
        """Begin to write a record; `settled` is called by a later `poll`, or at once if the client refuses it."""
        self._written += 1
        number = self._written
        self._under_way[number] = settled

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed(number, error.str())
            elif number in self._under_way:
                self._under_way.pop(number)(message.offset(), "")

        try:
            self._producer.produce(self._topic, pack_record(record), partition=HEARTBEATS, on_delivery=report)
        except KafkaException as error:
            self._failed(number, error.args[0].str())
            if error.args[0].fatal():
                self._replace(error.args[0].str())
        except BufferError as error:
            self._failed(number, str(error))

    def _failed(self, number: int, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LINES_S:
            self._logged_s = now_s
            log.warning("heartbeat not written", topic=self._topic, why=why)
        if number in self._under_way:
            self._under_way.pop(number)(None, why)

    def _replace(self, why: str) -> None:
        """Go on with another producer: the outcome of what is under way will not be known."""
        discard(self._producer)
        self._producer = Producer(self._settings)
        for number in list(self._under_way):
            self._failed(number, why)

    def poll(self) -> None:
        """Call `settled` for the records whose outcome is known."""
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:
            self._replace(str(error))

    def close(self) -> None:
        """Release the client; what is not written yet is dropped."""
        discard(self._producer)


Tell = Callable[["RolesWriter", Callable[[Controllership, int], None]], None]
"""Applies a result of a RolesWriter to the controllership, with the time of the monotonic clock in ms; nothing if another
RolesWriter has begun."""


class RolesWriter:
    """One attempt to become the controller and to remain it, in a thread of its own: every call may wait for the brokers.

    The transactional producer fences those of all earlier attempts, of every process. After any error, or an unclear outcome, the
    attempt has failed; the next one begins with a new producer.
    """

    def __init__(self, topic: ClusterTopic, *, timeout_s: float, tell: Tell) -> None:
        """`timeout_s`: longest transaction."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._tell = tell
        self._writer: KafkaWriter | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._abandoned = threading.Event()
        self.stage: Stage | None = None
        """The last stage that it was asked to act on."""
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    # --- called by the loop; none of these waits

    def act(self, stage: Stage, opening: RolesRecord | None) -> None:
        """Do what a new stage asks for. `opening`: the epoch record, in the stage OPENING."""
        if stage is self.stage:
            return
        self.stage = stage
        if stage in {Stage.READING, Stage.READING_AGAIN}:
            self._jobs.put(lambda: self._ask_end(stage))
        elif stage is Stage.FENCING:
            self._jobs.put(self._fence)
        elif stage is Stage.OPENING and opening is not None:
            self.commit(opening)

    def commit(self, record: RolesRecord) -> threading.Event:
        """Commit a record in a transaction; the event is set when its outcome was told."""
        done = threading.Event()
        self._jobs.put(lambda: self._commit(record, done))
        return done

    def trim(self, heartbeats: int, roles: int) -> None:
        """Delete the records before these offsets."""
        self._jobs.put(lambda: self._trim(heartbeats, roles))

    def abandon(self) -> None:
        """End the attempt: the thread ends after the call that it waits for, and nothing that it finds is told."""
        if not self._abandoned.is_set() and self.stage is not Stage.CONTROLLING:
            # One that takes too long is repeated: if this line comes again and again, the brokers are too slow for the timeout.
            log.info("controller: an attempt ended", stage=self.stage)
        self._abandoned.set()
        self._jobs.put(None)

    # --- in its thread

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set() and (job := self._jobs.get()) is not None:
                job()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _ask_end(self, stage: Stage) -> None:
        """Ask until there is an answer, or the attempt is abandoned because it took too long."""
        while not self._abandoned.is_set():
            with suppress(LogUnavailable):
                end = self._end(stage)
                if end is not None:
                    self._tell(self, partial(_ended, stage, end))
                    return
            self._abandoned.wait(ASK_AGAIN_S)

    def _end(self, stage: Stage) -> int | None:
        if stage is Stage.READING:
            return self._topic.stable_end(ROLES)
        ends = self._topic.watermarks(ROLES)
        return ends.high if ends.stable == ends.high else None

    def _fence(self) -> None:
        try:
            self._writer = KafkaWriter(
                self._topic.connection,
                transactional_id=f"chronos-{self._topic.id}-controller",
                progress_topic=self._topic.name,
                shard=ROLES,
                timeout_s=self._timeout_s,
                small_batch_topics={},
                failure="becoming controller: the last transaction of the controller before was not resolved",
            )
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.fenced(now_ms))

    def _commit(self, record: RolesRecord, done: threading.Event) -> None:
        try:
            assert self._writer is not None
            self._writer.send([], pack_record(record))
            self._writer.commit(lambda _: None)
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.committed(record, now_ms))
        finally:
            done.set()

    def _failed(self, error: ChronosError) -> None:
        if not self._abandoned.is_set():
            log.info("controller: an attempt failed", stage=self.stage, why=str(error))
        self._tell(self, lambda control, _: control.failed())

    def _trim(self, heartbeats: int, roles: int) -> None:
        try:
            self._topic.trim(HEARTBEATS, heartbeats)
            self._topic.trim(ROLES, roles)
        except LogUnavailable as error:
            log.warning("cluster topic not trimmed", why=str(error))


def _ended(stage: Stage, end: int, control: Controllership, now_ms: int) -> None:
    control.ended(stage, end)
