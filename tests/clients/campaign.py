"""The campaign: every client writes messages, every client cancels them, and every client reads a
topic with aborted records."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from chronos.core.keys import partition_of
from tests.clients.judge import Delivered, Expected, Pair, Reading, judge, judge_reader
from tests.clients.programs import Program
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Pairs, Sent, Tail, Topics, read_all

SHARDS = 4

AHEAD_MS = 2_000
"""The last action is acknowledged at least so long before the first message is due."""

LOST_S = 60.0
"""A message that is not delivered so long after its due time is lost."""

REPLACED_MS, MOVED_MS = 1_000, 3_000
"""How much later than the others the replaced and the rescheduled messages are due."""

TRANSACTIONS, PER_TRANSACTION = 40, 5
"""Transactions of the topic for the readers, every other one aborted, and the records of each."""

WRITER = "client"
"""Header that names the client and, behind a colon, the end of its transaction."""


class TooSlow(Exception):
    """The actions were not written before the messages were due."""


class Canceller(NamedTuple):
    """A client that cancels, replaces and reschedules."""

    program: Program
    ending: str = ""
    """End of the transaction in which it writes."""

    @property
    def name(self) -> str:
        """The client's name, and the end of the transaction."""
        return (
            f"{self.program.client.name}:{self.ending}" if self.ending else self.program.client.name
        )


def cancellers(programs: Sequence[Program]) -> list[Canceller]:
    """Every client, and those that write transactions also with each end of one."""
    plain = [Canceller(program) for program in programs]
    return plain + [
        Canceller(program, ending) for program in programs for ending in program.client.endings
    ]


class Outcome(NamedTuple):
    """What the campaign found."""

    expected: dict[bytes, Expected]
    wrong: dict[Pair, Counter[str]]
    rejected: Counter[tuple[str, str]]
    """Records in the rejected topic by client and reason."""
    placed: dict[str, tuple[int, int]]
    """For each client the number of its records in the delay topic, and of those in another
    partition than that of the id."""
    forwarded: int


class Plan(NamedTuple):
    """The records of all clients, and what has to come of them."""

    expected: dict[bytes, Expected]
    written: dict[str, list[Sent]]
    """By the name of the producer."""
    acted: dict[str, list[Sent]]
    """By the name of the canceller."""


def plan(
    producers: Sequence[str], acting: Sequence[str], each: int, target: str, due_ms: int, seed: int
) -> Plan:
    """`each` messages for every pair of a producer and a canceller: half of them are cancelled, a
    tenth each replaced and rescheduled.

    Every other cancel is a tombstone. Every fourth id has braces and random bytes.
    """
    chance = random.Random(seed)
    made = Plan({}, {name: [] for name in producers}, {name: [] for name in acting})
    for producer in producers:
        for canceller in acting:
            for at in range(each):
                name = f"{producer}/{canceller}/{at}".encode()
                if at % 4 == 3:
                    name += b"{" + chance.randbytes(16) + b"}"
                made.written[producer].append(
                    Sent(name, [*_aim(target, due_ms), _writer(producer)], name)
                )
                action, value, due = _action(name, at, each, target, due_ms, canceller)
                if action is not None:
                    made.acted[canceller].append(action)
                if canceller.endswith(":abort"):
                    value, due = name, due_ms
                made.expected[name] = Expected(producer, canceller, value, due)
    return made


def _action(
    name: bytes, at: int, each: int, target: str, due_ms: int, canceller: str
) -> tuple[Sent | None, bytes | None, int]:
    """The action on a message, its delivered value, and its due time."""
    own = _writer(canceller)
    if at < each // 2:
        verb: Pairs = [("chronos-action", b"cancel")] if at % 2 else []
        return Sent(None, [*verb, own], name), None, due_ms
    if at < each * 6 // 10:
        value, due = b"replaced " + name, due_ms + REPLACED_MS
        return (
            Sent(value, [("chronos-action", b"replace"), *_aim(target, due), own], name),
            value,
            due,
        )
    if at < each * 7 // 10:
        due = due_ms + MOVED_MS
        return Sent(None, [("chronos-action", b"reschedule"), _at(due), own], name), name, due
    return None, name, due_ms


def _aim(target: str, due_ms: int) -> Pairs:
    return [("chronos-target-topic", target.encode()), _at(due_ms)]


def _at(due_ms: int) -> tuple[str, bytes]:
    return "chronos-deliver-at", b"%d" % due_ms


def _writer(name: str) -> tuple[str, bytes]:
    return WRITER, name.encode()


def run(
    broker: Broker,
    service: Service,
    topics: Topics,
    programs: Sequence[Program],
    each: int,
    due_s: float,
    seed: int,
) -> Outcome:
    """Write, cancel, read the target and judge."""
    target = broker.create_topic(
        "target", partitions=4, config={"message.timestamp.type": "LogAppendTime"}
    )
    due_ms = time.time_ns() // 1_000_000 + int(due_s * 1_000)
    acting = cancellers(programs)
    names = [program.client.name for program in programs]
    made = plan(names, [each_one.name for each_one in acting], each, target, due_ms, seed)

    def address(program: Program) -> str:
        return service.url if program.client.name == "http" else broker.bootstrap

    for program in programs:
        program.write(address(program), topics.delay, made.written[program.client.name])
        _left_ms(due_ms)
    for canceller in acting:
        records = made.acted[canceller.name]
        canceller.program.write(address(canceller.program), topics.delay, records, canceller.ending)
        _left_ms(due_ms)

    delivered = sum(wanted.value is not None for wanted in made.expected.values())
    deadline_s = time.monotonic() + (_left_ms(due_ms) + MOVED_MS) / 1_000 + LOST_S
    with Tail(broker.bootstrap, target) as tail:
        while len(tail.records[target]) < delivered and time.monotonic() < deadline_s:
            tail.read()
        found = [
            Delivered(got.header("chronos-id"), got.value, got.timestamp_ms)
            for got in tail.settle(2.0).records[target]
        ]
    refused = Counter(
        ((got.header(WRITER) or b"?").decode(), got.reason or "?")
        for got in read_all(broker.bootstrap, topics.rejected)
    )
    forwarded = sum(shard["totals"]["forwarded"] for shard in service.shards())
    return Outcome(
        made.expected, judge(made.expected, found), refused, _placed(broker, topics), forwarded
    )


def _left_ms(due_ms: int) -> int:
    """The time until the messages are due; TooSlow if it is not enough."""
    left_ms = due_ms - time.time_ns() // 1_000_000
    if left_ms < AHEAD_MS:
        raise TooSlow(
            "not every action was written before the messages were due; use a longer --due"
        )
    return left_ms


def _placed(broker: Broker, topics: Topics) -> dict[str, tuple[int, int]]:
    """Where each client placed its records; those over HTTP have no name of a client, and forwarded
    ones are left out."""
    count: Counter[str] = Counter()
    misplaced: Counter[str] = Counter()
    for got in read_all(broker.bootstrap, topics.delay):
        if got.header("chronos-forwarded") is None and got.key is not None:
            name = (got.header(WRITER) or b"http").decode().partition(":")[0]
            count[name] += 1
            misplaced[name] += got.partition != partition_of(got.key, SHARDS)
    return {name: (count[name], misplaced[name]) for name in count}


# ------------------------------------------------------------------------------------------ Readers

END = b"end"


def write_transactions(broker: Broker, topic: str) -> tuple[list[bytes], list[bytes]]:
    """Write transactions to a topic, every other one aborted; the committed values, END as the last
    one, and the aborted."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 2}
    )
    producer.init_transactions(60)
    committed: list[bytes] = []
    dropped: list[bytes] = []
    for number in range(TRANSACTIONS):
        is_aborted = number % 2 == 0
        values = [
            b"%s %d %d" % (b"aborted" if is_aborted else b"committed", number, at)
            for at in range(PER_TRANSACTION)
        ]
        values += [END] if number == TRANSACTIONS - 1 else []
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(60) == 0
        if is_aborted:
            producer.abort_transaction(60)
            dropped += values
        else:
            producer.commit_transaction(60)
            committed += values
    return committed, dropped


def readings(broker: Broker, programs: Iterable[Program]) -> dict[str, Reading]:
    """What each client shows of a topic with aborted transactions, reading as
    docs/concepts/exactly-once.md says."""
    topic = broker.create_topic("transactions", partitions=1)
    committed, aborted = write_transactions(broker, topic)
    found = {}
    for program in programs:
        if program.client.committed_only is not None:
            found[program.client.name] = judge_reader(
                committed, aborted, program.read(broker.bootstrap, topic, END)
            )
    return found
