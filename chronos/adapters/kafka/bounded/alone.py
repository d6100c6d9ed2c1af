"""A reader of one batch of any size that librdkafka takes, in this process, while no child runs.

It is for a batch that a replica's reader refuses, because a record is too large or the batch
exceeds the memory of a child, but that a master has read: its records are in the decisions that are
replayed, so it cannot be stepped over."""

import sys
import time

import structlog
from confluent_kafka import Consumer

from chronos.adapters.kafka.bounded.reader import PROBE_FETCHES, ReaderLog
from chronos.adapters.kafka.bounded.turns import turns
from chronos.adapters.kafka.reader import KafkaReader
from chronos.errors import LogUnavailable

log = structlog.get_logger("chronos.kafka")

ALONE_WAIT_S = 120.0
"""How long a batch that is read alone waits for its turn: a turn lasts for some seconds, and each
shard may have one before."""


class AloneReader(KafkaReader):
    """Reads a batch of any size, one with each fetch, in this process: it has the turn until it is
    closed."""

    def __init__(self, log: ReaderLog, topic: str, partition: int, offset: int) -> None:
        """Raises LogUnavailable if other readers do not end their turns in time."""
        deadline = time.monotonic() + ALONE_WAIT_S
        # A turn that has lasted too long is noticed only when it is asked for.
        while not (has_turn := turns.take(self, 1.0)) and time.monotonic() < deadline:
            pass
        if not has_turn:
            raise LogUnavailable(
                f"{topic}/{partition}: other partitions are still being read in bounded memory"
            )
        try:
            consumer = Consumer({**log.consumer_settings(topic), **PROBE_FETCHES})
            super().__init__(consumer, topic, partition, offset, record_bytes_max=sys.maxsize)
        except BaseException:
            turns.leave(self)
            raise

    def close(self) -> None:
        """Release the client, and the turn."""
        super().close()
        turns.leave(self)
