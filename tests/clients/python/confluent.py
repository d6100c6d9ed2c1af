"""confluent-kafka: librdkafka with its default partitioner."""

from __future__ import annotations

import os
from collections.abc import Callable

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.clients.python.lines import Program, Record, run

FLUSH_S = 60.0


def version() -> str:
    """The versions of the package and of the library in it."""
    return f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"


def write(bootstrap: str, topic: str, records: list[Record], ending: str) -> None:
    """Write records, in a transaction if it has an end."""
    settings: dict[str, object] = {"bootstrap.servers": bootstrap}
    if ending:
        settings["transactional.id"] = f"clients-confluent-{os.getpid()}"
    producer = Producer(settings)
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    if ending:
        producer.init_transactions(FLUSH_S)
        producer.begin_transaction()
    for record in records:
        headers: list[tuple[str, str | bytes | None]] = list(record.headers)
        producer.produce(topic, record.value, record.key, headers=headers, on_delivery=note)
    left = producer.flush(FLUSH_S)
    if left or failures:
        raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
    if ending == "commit":
        producer.commit_transaction(FLUSH_S)
    elif ending == "abort":
        producer.abort_transaction(FLUSH_S)


def read(bootstrap: str, topic: str, seen: Callable[[bytes], bool]) -> None:
    """Read the first partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "clients", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error, value = message.error(), message.value()
        if error is not None:
            raise KafkaException(error)
        assert isinstance(value, bytes)
        if not seen(value):
            consumer.close()
            return


if __name__ == "__main__":
    run(Program(version, write, read))
