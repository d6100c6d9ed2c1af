"""Producers that write in bulk from the tasks of a Spark job: each portion is a transaction, or acknowledged records.

A `BulkOpener` is a value that Spark ships to its executors; the producers it opens stay there.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import Struct

from chronos.adapters.kafka.settings import BATCH_BYTES, COMMON, PRODUCER
from chronos.adapters.kafka.writer import discard, init_transactions
from chronos.errors import LogUnavailable, ProducerLost

BulkRecord = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Topic, key, value, headers. Keys are placed as Java producers place them; without one the client chooses."""

QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes that a producer queues, so that a task's memory is bounded."""


class BulkOpener(Struct, frozen=True, kw_only=True):
    """The settings of a bulk producer."""

    bootstrap_servers: str
    properties: Mapping[str, Any]
    """The operator's client properties."""
    timeout_s: float
    """How long a transaction, or the acknowledgement of a portion, may take."""

    def open(self, transactional_id: str | None, batch_bytes: int = BATCH_BYTES) -> "BulkWriter":
        """Open a producer; with an id, fence every earlier one of that id first and resolve its last transaction.

        `batch_bytes`: largest batch, for topics whose `max.message.bytes` is below `BATCH_BYTES`.
        """
        return BulkWriter(self, transactional_id, batch_bytes)


class BulkWriter:
    """One producer of one task."""

    def __init__(self, opener: BulkOpener, transactional_id: str | None, batch_bytes: int) -> None:
        self._timeout_s = opener.timeout_s
        self._transactional = transactional_id is not None
        timeout_ms = int(opener.timeout_s * 1_000)
        settings = {
            **COMMON, "bootstrap.servers": opener.bootstrap_servers, "log_level": 2, **PRODUCER,
            "queue.buffering.max.kbytes": QUEUE_BYTES_MAX // 1024, "message.timeout.ms": timeout_ms, **opener.properties,
        }  # fmt: skip
        settings["batch.size"] = min(batch_bytes, int(settings["batch.size"]))
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer(settings)
        self._refused: list[KafkaError] = []
        if self._transactional:
            init_transactions(
                self._producer,
                "no transaction can be begun",
                lambda: f"is a broker at {opener.bootstrap_servers} up, and the address right?",
            )

    def send(self, records: Sequence[BulkRecord]) -> None:
        """Write all records, in one transaction or until each is acknowledged. Raises LogUnavailable, ProducerLost.

        After ProducerLost it is unknown whether the transaction was committed.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._transactional:
                self._producer.begin_transaction()
            for topic, key, value, headers in records:
                self._produce(topic, key, value, headers, deadline)
            if self._producer.flush(max(0.1, deadline - time.monotonic())) > 0:
                raise ProducerLost(f"the brokers did not take a portion within {self._timeout_s:g} s")
            if self._refused:
                raise LogUnavailable(f"a record was refused: {self._refused[0].str()} ({self._refused[0].name()})")
            if self._transactional:
                self._commit(deadline)
        except KafkaException as error:
            cause = error.args[0]
            raise ProducerLost(f"a portion could not be written: {cause.str()} ({cause.name()})") from error
        except SystemError as error:
            # Raised when a callback runs while the client fails: measured when it is fenced.
            raise ProducerLost(f"a portion could not be written: {error}") from error

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        deadline: float,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=self._report, headers=headers)  # type: ignore[arg-type]
                return
            except BufferError:
                if time.monotonic() >= deadline:
                    raise ProducerLost(f"the brokers did not take a portion within {self._timeout_s:g} s") from None
                self._producer.poll(0.05)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(error)

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise

    def close(self) -> None:
        """Drop what is queued; an open transaction is ended by the next producer of its id, or by its time-out."""
        discard(self._producer)
