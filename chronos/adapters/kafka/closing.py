"""The closing of consumers within a bounded time.

librdkafka 2.16 can lock itself up when a consumer is closed while it learns that its position is
not in the log: the thread of a broker waits for the partition's mutex, which it holds itself
(`rd_kafka_offset_reset`), and `close` waits for that thread for ever. One of 10,000 closes of
readers below the log's start did so (measured; librdkafka#5476 is related). So each consumer is
closed on a thread of its own: a shard's thread must not wait for ever."""

import threading
from contextlib import suppress
from typing import Protocol

import structlog

log = structlog.get_logger("chronos.kafka")

CLOSE_S = 10.0
"""Time in s a consumer has to close. One that works takes milliseconds; one that leaves a broker
that is gone, up to a few seconds."""


class Closable(Protocol):
    """A consumer."""

    def close(self) -> object:
        """Close it."""


class Closer:
    """Closes consumers, each on a thread of its own. Any thread may call."""

    def __init__(self, timeout_s: float = CLOSE_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self.abandoned = 0
        """Consumers that did not close in time: each keeps its threads and connections until the
        process ends."""

    def close(self, consumer: Closable) -> None:
        """Close the consumer, or abandon it. Raises what its `close` raises."""
        raised: list[BaseException] = []

        def close() -> None:
            try:
                consumer.close()
            except BaseException as error:
                raised.append(error)

        # A daemon: the process ends without it.
        thread = threading.Thread(target=close, name="closing a consumer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this machine has no thread left
            consumer.close()
            return
        thread.join(self._timeout_s)
        if thread.is_alive():
            self._abandon()
        elif raised:
            raise raised[0]

    def leave(self, consumer: Closable) -> None:
        """Close the consumer without waiting for it."""
        with suppress(RuntimeError):  # this machine has no thread left
            threading.Thread(
                target=self.close, args=[consumer], name="leaving a consumer", daemon=True
            ).start()
            return
        consumer.close()

    def _abandon(self) -> None:
        with self._lock:
            self.abandoned += 1
            count = self.abandoned
        log.error(
            "client abandoned",
            why=(
                f"a consumer did not close within {self._timeout_s:g} s (a fault of the Kafka "
                "client); it keeps its threads and connections until this process ends"
            ),
            abandoned=count,
        )


consumers = Closer()
"""The closer of this process."""
