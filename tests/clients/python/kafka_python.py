"""kafka-python and its fork kafka-python-ng, which have one package name; which of them depends on
the path."""

from __future__ import annotations

from collections.abc import Callable

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.clients.python.lines import Program, Record, run

FLUSH_S = 60.0


def version() -> str:
    """The version of the package."""
    return str(kafka.__version__)


def write(bootstrap: str, topic: str, records: list[Record], ending: str) -> None:
    """Write records, without a transaction."""
    assert not ending
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    reports = [producer.send(topic, record.value, record.key, record.headers) for record in records]
    producer.flush(FLUSH_S)
    for report in reports:
        report.get(FLUSH_S)
    producer.close()


def read(bootstrap: str, topic: str, seen: Callable[[bytes], bool]) -> None:
    """Read the first partition; kafka-python-ng has no setting for the isolation level."""
    settings = (
        {"isolation_level": "read_committed"}
        if "isolation_level" in KafkaConsumer.DEFAULT_CONFIG
        else {}
    )
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, **settings)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    for record in consumer:
        if not seen(record.value):
            consumer.close()
            return


if __name__ == "__main__":
    run(Program(version, write, read))
