"""aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.clients.python.lines import Program, Record, run


def version() -> str:
    """The version of the package."""
    return str(aiokafka.__version__)


def write(bootstrap: str, topic: str, records: list[Record], ending: str) -> None:
    """Write records, without a transaction."""
    assert not ending
    asyncio.run(_write(bootstrap, topic, records))


async def _write(bootstrap: str, topic: str, records: list[Record]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        reports = [
            await producer.send(topic, each.value, each.key, headers=each.headers)
            for each in records
        ]
        await producer.flush()
        await asyncio.gather(*reports)


def read(bootstrap: str, topic: str, seen: Callable[[bytes], bool]) -> None:
    """Read the first partition."""
    asyncio.run(_read(bootstrap, topic, seen))


async def _read(bootstrap: str, topic: str, seen: Callable[[bytes], bool]) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    async with consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        async for record in consumer:
            if not seen(record.value):
                return


if __name__ == "__main__":
    run(Program(version, write, read))
