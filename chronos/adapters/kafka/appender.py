"""The producer for records outside transactions (`ports.Appender`): those of HTTP requests, of
probes and of the doctor.

A record is written before the caller's deadline or not at all, as far as the client can know: what
it has not sent by then is discarded. Of a record that is on its way, only the log shows whether it
was written.

After a fatal error of a producer, such as a missing permission, the next record has another
producer."""

import threading
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chronos.adapters.kafka.connection import (
    ABANDONED_CODES,
    PRODUCER,
    Connection,
)
from chronos.adapters.kafka.writer import discard
from chronos.errors import LogUnavailable
from chronos.ports import Appended, Outgoing

MESSAGE_TIMEOUT_MS = 30_000
"""How long the client tries to send a record; callers wait for a shorter time."""

PURGE_S = 1.0
"""How long the reports of discarded records may take."""

CLOSE_S = 2.0
"""How long `close` waits for the thread, and for records under way."""


class KafkaAppender:
    """Appends records and waits until they are durable. Any thread may call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: Producer | None = None
        """None before the first record, and after a fatal error of the last one."""
        self._poller: threading.Thread | None = None
        """The thread that polls the producer."""
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Produce the records and wait for every delivery report. Raises LogUnavailable.

        After the time everything that the client holds is discarded, also records of other callers,
        which fail alike."""
        producer = self._started()
        done = threading.Event()
        results: list[Appended | KafkaError | None] = [None] * len(records)
        missing = len(records)

        def reporting(at: int) -> Callable[[KafkaError | None, Message], None]:
            def report(error: KafkaError | None, message: Message) -> None:
                nonlocal missing
                results[at] = error or Appended(
                    partition=message.partition(),  # type: ignore[arg-type]
                    offset=message.offset(),  # type: ignore[arg-type]
                    timestamp_ms=message.timestamp()[1],
                )
                missing -= 1
                if missing == 0:
                    done.set()

            return report

        try:
            for at, (topic, key, value, headers, partition) in enumerate(records):
                producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=reporting(at),
                    headers=headers,  # type: ignore[arg-type]
                )
        except (KafkaException, BufferError) as error:
            producer.purge(in_queue=True, in_flight=True, blocking=False)  # the records before it
            raise LogUnavailable(f"a record could not be sent: {error}") from error
        in_time = not records or done.wait(timeout_s)
        if not in_time:
            # The caller is told now that it failed: it must not be sent to a broker that comes back
            # later.
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            done.wait(PURGE_S)
        appended = []
        for result in results:
            if result is None or (
                isinstance(result, KafkaError) and result.code() in ABANDONED_CODES
            ):
                raise self._unacknowledged(None if in_time else timeout_s)
            if isinstance(result, KafkaError):
                raise LogUnavailable(f"the brokers did not take a record: {result.str()}")
            appended.append(result)
        return appended

    def _unacknowledged(self, timeout_s: float | None) -> LogUnavailable:
        """`timeout_s`: None if the record was discarded earlier, for another caller or because the
        producer failed."""
        brokers = self._connection.bootstrap_servers
        text = (
            f"the brokers at {brokers} did not acknowledge, and the client has discarded the record"
            if timeout_s is None
            else f"the brokers at {brokers} did not acknowledge within {timeout_s:.0f} s"
        )
        return LogUnavailable(f"{text}; {self._connection.advice('it may have been written')}")

    def _started(self) -> Producer:
        with self._lock:
            if self._producer is None:
                producer = Producer(
                    self._connection.settings(
                        {**PRODUCER, "message.timeout.ms": MESSAGE_TIMEOUT_MS}
                    )
                )
                poller = threading.Thread(
                    target=self._poll, args=[producer], name="kafka-appends", daemon=True
                )
                try:
                    poller.start()
                except RuntimeError as error:
                    raise LogUnavailable(f"a record could not be sent: {error}") from error
                self._poller, self._producer = poller, producer
            return self._producer

    def _poll(self, producer: Producer) -> None:
        try:
            while not self._closing.is_set():
                producer.poll(0.1)
        except (KafkaException, SystemError):
            # A fatal error, which the client has logged: this producer takes no record again.
            with self._lock:
                self._producer = None
            discard(producer)

    def close(self) -> None:
        """Stop the thread and give the records under way a moment."""
        self._closing.set()
        if self._poller is not None:
            self._poller.join(CLOSE_S)
        if self._producer is not None:
            self._producer.flush(CLOSE_S)
