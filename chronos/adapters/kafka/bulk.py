"""Producers that write in bulk from the tasks of a Spark job: each portion a transaction, or acknowledged records.

An opener is a value that travels to the executors; what it opens stays there.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import Struct

from chronos.adapters.kafka.log import BATCH_BYTES, COMMON, PRODUCER, TAKE_OVER_S
from chronos.errors import LogUnavailable, ProducerLost

BulkRecord = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Topic, key, value, headers. Keys are placed as Java producers place them; without one the client chooses."""

MESSAGE_BYTES = 64 * 1024 * 1024
"""What a producer holds: a task's memory is bounded."""


class BulkOpener(Struct, frozen=True, kw_only=True):
    """What a producer needs to know."""

    bootstrap_servers: str
    properties: Mapping[str, Any]
    timeout_s: float
    """How long a transaction, or the acknowledgement of a portion, may take."""

    def open(self, transactional_id: str | None, batch_bytes: int = BATCH_BYTES) -> "BulkWriter":
        """A producer; with an id every earlier one of that id is fenced first, and its last transaction resolved.

        A topic that takes less than `BATCH_BYTES` asks for smaller batches.
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
            "queue.buffering.max.kbytes": MESSAGE_BYTES // 1024, "message.timeout.ms": timeout_ms, **opener.properties,
        }  # fmt: skip
        settings["batch.size"] = min(batch_bytes, int(settings["batch.size"]))
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer(settings)
        self._refused: list[KafkaError] = []
        if self._transactional:
            self._take_over()

    def _take_over(self) -> None:
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                self._producer.init_transactions(max(1.0, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise LogUnavailable(f"no transaction can be begun: {error.args[0].str()}") from error

    def send(self, records: Sequence[BulkRecord]) -> None:
        """All of them: in one transaction, or until each is acknowledged. LogUnavailable or ProducerLost if not.

        After ProducerLost nobody knows whether the transaction was committed.
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
            # The client's way of saying that it called back while failing: measured when it is fenced.
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
        """Drop what is queued. A transaction that is open is ended by the next producer of its id, or by its timeout."""
        with suppress(KafkaException, SystemError):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.poll(0)
