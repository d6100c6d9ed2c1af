"""The producer of all records of `chronos.cluster` but roles: heartbeats, announcements, requests
and leave records, without transactions, each given up after the timeout.

While the broker of its connection does not answer, a spare producer writes the heartbeats too: the
broker may be frozen, or gone. The roles are written in `roles`."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chronos.adapters.kafka.connection import (
    PRODUCER,
    RECONNECTING,
    Connection,
)
from chronos.adapters.kafka.writer import discard
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ClusterRecord,
    MemberHeartbeat,
    pack_record,
)

log = structlog.get_logger("chronos.cluster")

LINES_S = 30.0
"""Least time between two lines about heartbeats that were not written, or about records that are
ignored."""

Settled = Callable[[int | None, str], None]
"""Called with the offset of a record once it is durable; or with None, and why it is not known to
be written."""


class HeartbeatWriter:
    """An idempotent producer of records without transactions, which gives each up after the
    timeout. For one thread.

    A frozen broker answers on its old connections at once when it wakes, and takes seconds for new
    ones (`connection.COMMON`). So the producer keeps its connection; as the broker may be gone
    instead, heartbeats are written with a spare producer besides, until one of the two is
    answered."""

    def __init__(self, connection: Connection, topic: str, timeout_ms: int) -> None:
        self._topic = topic
        settings: Mapping[str, Any] = {
            **PRODUCER,
            **RECONNECTING,
            "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
            "topic.metadata.refresh.interval.ms": 1_000,
            "socket.max.fails": 0,  # requests that time out do not close the connection
        }
        self._settings = connection.settings(settings)
        self._producer = Producer(self._settings)
        self._spare: Producer | None = None
        self._answered: Producer | None = None
        """The producer of the last acknowledgement since the last `poll`."""
        self._timed_out = False
        """A record was not acknowledged in time since the last `poll`."""
        self._under_way: dict[int, Settled] = {}
        self._written = 0
        self._logged_s = -LINES_S
        self._is_told = False
        """The failures since the last acknowledgement are logged: an outage is one line."""

    def write(self, record: ClusterRecord, settled: Settled) -> None:
        """Begin to write a record; `settled` is called by a later `poll`, or at once if the client
        refuses it."""
        self._written += 1
        self._under_way[self._written] = settled
        self._produce(self._producer, self._written, record)
        # A heartbeat that is read twice counts once; a request does not.
        if self._spare is not None and isinstance(record, MemberHeartbeat):
            self._produce(self._spare, self._written, record)

    def _produce(self, producer: Producer, number: int, record: ClusterRecord) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._timed_out |= error.code() == KafkaError._MSG_TIMED_OUT
                self._failed(number, error.str())
                return
            self._answered, self._is_told = producer, False
            if number in self._under_way:
                self._under_way.pop(number)(message.offset(), "")

        try:
            producer.produce(
                self._topic, pack_record(record), partition=HEARTBEATS, on_delivery=report
            )
        except KafkaException as error:
            self._failed(number, error.args[0].str())
            if error.args[0].fatal():
                self._replace(Producer(self._settings), error.args[0].str())
        except BufferError as error:
            self._failed(number, str(error))

    def _failed(self, number: int, why: str) -> None:
        """Settle a record; nothing if another producer's answer has settled it."""
        settled = self._under_way.pop(number, None)
        if settled is None:
            return
        now_s = time.monotonic()
        if not self._is_told and now_s - self._logged_s >= LINES_S:
            self._logged_s, self._is_told = now_s, True
            log.warning("heartbeat not written", topic=self._topic, why=why)
        settled(None, why)

    def _replace(self, producer: Producer, why: str) -> None:
        """Go on with another producer: the outcome of what is under way will not be known."""
        self._drop_spare(producer)
        discard(self._producer)
        self._producer = producer
        for number in list(self._under_way):
            self._failed(number, why)

    def _drop_spare(self, kept: Producer | None = None) -> None:
        if self._spare is not None and self._spare is not kept:
            discard(self._spare)
        self._spare = None

    def poll(self) -> None:
        """Call `settled` for the records whose outcome is known."""
        try:
            self._producer.poll(0)
            if self._spare is not None:
                self._spare.poll(0)
        except (KafkaException, SystemError) as error:
            self._replace(Producer(self._settings), str(error))
        answered, timed_out = self._answered, self._timed_out
        self._answered, self._timed_out = None, False
        if answered is None and timed_out:
            self._drop_spare()
            self._spare = Producer(self._settings)
        elif answered is not None and answered is self._spare:
            self._replace(answered, "another connection was answered first")
        elif answered is self._producer:
            self._drop_spare()

    def close(self) -> None:
        """Release the clients; what is not written yet is dropped."""
        self._drop_spare()
        discard(self._producer)
