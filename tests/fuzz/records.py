"""The hostile producers: records that are almost messages, and batches that are small only because
they are compressed."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.fuzz.hostile import Goal, Statuses

RECORDS_PER_S = 1_000

ABORTED_EVERY = 7
"""One portion in so many is part of a transaction that is aborted."""

BOMBS_EVERY_S = 2.0

CODECS = ("zstd", "lz4", "gzip")

BOMB_BYTES = (110_000_000, 250_000_000)
"""What a bomb takes when it is decompressed."""

NAMES = [
    *(
        f"chronos-{name}"
        for name in (
            "deliver-at",
            "delay",
            "target-topic",
            "target-key",
            "action",
            "id",
            "on-conflict",
            "expire-at",
            "due-at",
            "source",
            "occurrence",
            "attempt",
            "attempts",
            "reason",
            "detail",
            "repeat",
            "spread",
            "time-zone",
            "late",
            "replayed",
            "",
            "DELAY",
        )
    ),
    "a",
    "",
    "x" * 300,
    "traceparent",
]

VALUES = [
    None,
    b"",
    b"0",
    b"-1",
    b"9" * 20,
    b"1e9",
    b"NaN",
    b"700ms",
    b"5 m",
    b"7d",
    b"\xff",
    b"\0",
    b"null",
    b"{}",
    b"[[[[",
    b"x" * 5_000,
    b"cancel",
    b"reschedule",
    b"fire-now",
    b"settled",
    b"schedule",
    b"replay",
    b"probe",
    b"reject",
    b"replace",
    b"*/1 * * * * *",
    b"every 1ms",
    b"Europe/Berlin",
    b"a{b}",
    "\u0663s".encode(),
    b"4102444800000",
    b"1798000000",
]


RARE = (b"0 */31 * 1#5,2#5", b"0 29 2 */7", b"*/1,*/1,*/1,*/1,*/1,*/1 */31 * 1#5")
"""Ends of cron expressions."""


class Hostile(NamedTuple):
    """A record."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def hostile(chance: random.Random, target: str) -> Hostile:
    """A message for the target with up to eight headers that are wrong, missing or there twice."""
    headers: list[tuple[str, bytes | None]] = [
        ("chronos-target-topic", target.encode()),
        ("chronos-delay", b"%dms" % chance.randrange(2_000)),
        ("chronos-id", b"hostile-%d" % chance.randrange(200)),
    ]
    headers = [each for each in headers if chance.random() < 0.9]
    for _ in range(chance.choice((0, 0, 1, 1, 2, 8))):
        headers.insert(
            chance.randrange(len(headers) + 1), (chance.choice(NAMES), chance.choice(VALUES))
        )
    key = chance.choice(
        (None, b"", b"hostile-%d" % chance.randrange(200), chance.randbytes(chance.randrange(40)))
    )
    value = chance.choice(
        (None, b"", chance.randbytes(chance.randrange(2_000)), bytes(chance.randrange(100_000)))
    )
    return Hostile(key, value, headers)


async def records(goal: Goal, seconds: float, seed: int) -> Statuses:
    """1,000 records a second that are almost messages; one portion in seven is aborted."""
    statuses: Statuses = Statuses()
    chance = random.Random(seed)
    plain = Producer(settings(goal))
    aborting = Producer({**settings(goal), "transactional.id": f"{goal.delay}-hostile"})
    await asyncio.to_thread(aborting.init_transactions)
    began_s = time.monotonic()
    written = portion = 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        portion += 1
        count = int(passed_s * RECORDS_PER_S) - written
        found = [hostile(chance, goal.target) for _ in range(count)]
        if portion % ABORTED_EVERY == 0:
            aborting.begin_transaction()
            await write(aborting, goal, found, statuses)
            await asyncio.to_thread(aborting.abort_transaction)
        else:
            await write(plain, goal, found, statuses)
        written += count
        await asyncio.sleep(0.05)
    return statuses


async def series(goal: Goal, seconds: float, seed: int) -> Statuses:
    """1,000 records a second with cron expressions that never fire, or that fire every 28 years."""
    statuses: Statuses = Statuses()
    chance = random.Random(seed)
    producer = Producer(settings(goal))
    began_s = time.monotonic()
    written = 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        count = int(passed_s * RECORDS_PER_S) - written
        found = [
            Hostile(
                b"series-%d" % (written + at),
                b"",
                [
                    ("chronos-target-topic", goal.target.encode()),
                    (
                        "chronos-repeat",
                        b"cron %d,%d " % (chance.randrange(60), chance.randrange(60))
                        + chance.choice(RARE),
                    ),
                ],
            )
            for at in range(count)
        ]
        await write(producer, goal, found, statuses)
        written += count
        await asyncio.sleep(0.05)
    return statuses


async def bombs(goal: Goal, seconds: float, seed: int) -> Statuses:
    """A batch that decompresses to 110 or 250 MB every two seconds, in one codec after the
    other."""
    statuses: Statuses = Statuses()
    chance = random.Random(seed)
    began_s = time.monotonic()
    at = 0
    while time.monotonic() - began_s < seconds:
        large = {"message.max.bytes": 1_000_000_000, "queue.buffering.max.kbytes": 1_000_000}
        producer = Producer(
            {**settings(goal), **large, "compression.codec": CODECS[at % len(CODECS)]}
        )
        size = chance.choice(BOMB_BYTES)
        await write(
            producer,
            goal,
            [Hostile(None, bytes(size), [("chronos-target-topic", goal.target.encode())])],
            statuses,
        )
        at += 1
        await asyncio.sleep(max(0.0, began_s + at * BOMBS_EVERY_S - time.monotonic()))
    return statuses


def settings(goal: Goal) -> dict[str, object]:
    """Settings of a producer."""
    return {"bootstrap.servers": goal.bootstrap, "linger.ms": 5, "log_level": 2}


async def write(
    producer: Producer, goal: Goal, found: Sequence[Hostile], statuses: Statuses
) -> None:
    """Write the records and wait for their reports."""

    def note(error: KafkaError | None, _: Message) -> None:
        statuses["written" if error is None else error.name()] += 1

    for key, value, headers in found:
        producer.produce(goal.delay, value, key, on_delivery=note, headers=list(headers))
    left = await asyncio.to_thread(producer.flush, 60)
    statuses["unanswered"] += left
