"""Every implementation of a port, one row of a table each: the contract suites run over all rows.

To add a log: write a context manager that takes the test's request and the name of a progress topic
and yields a `LogCase`, and add a row to `LOGS` (`test_log.py`). To add a store, add a row to
`STORES` (`test_store.py`); a clock, a row to `CLOCKS` (`test_clock.py`). The suites themselves do
not change.

`lacks` names the features that an implementation does not have by design; their tests call
`case.require(...)`. A test that fails for any other reason has found an error in the
implementation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.rocksdb import RocksStore
from chronos.core.message import Record
from chronos.ports import Clock, Log, Reader, Store, TopicSpec
from tests.harness.broker import Broker
from tests.harness.clock import ShiftedClock
from tests.harness.memory import MemoryStore
from tests.harness.rows import rows_of
from tests.harness.waiting import check_deadline
from tests.sim.broker import PROGRESS, Brokers
from tests.sim.log import SimLog
from tests.sim.node import SimClock
from tests.sim.simulation import Observer
from tests.sim.store import Disk, SimStore
from tests.sim.world import World

TIMEOUT_S = 30.0

PARTITIONS = 4
"""Partitions of the progress topic, and of a target unless the test says otherwise."""

BLOB_BYTES_MIN = 1_000
"""RocksDB keeps values of this size or more in blob files."""


class Feature(Enum):
    """Features that not every log has."""

    THREADS = "calls from several threads"
    BATCH_LIMITS = "a largest record batch for each topic (max.message.bytes)"
    GROUPS = "consumer groups"
    MISSING_TOPICS = "topics that are missing until they are created by name"


@dataclass(kw_only=True)
class LogCase:
    """A log under test. The suite prepares `progress` with `PARTITIONS` partitions before each
    test."""

    log: Log
    connect: Callable[[], Log]
    """Another client of the same log; the same object where there are no clients."""
    names: Callable[..., str]
    """Makes topic names that no other test uses."""
    progress: str
    clock: Clock = field(default_factory=SystemClock)
    """The clock of the log's timestamps."""
    delete_records: Callable[[str, int, int], object]
    """Delete the records of a partition before an offset without asking this client."""
    bootstrap: str = ""
    """Address of the brokers, where there are any."""
    lacks: frozenset[Feature] = frozenset()

    def pass_time(self, wait_ms: int) -> None:
        """Return once the log's clock has moved on by so much. A log with a clock of its own
        overrides it."""
        until_ms, deadline = self.clock.now_ms() + wait_ms, time.monotonic() + TIMEOUT_S
        while self.clock.now_ms() < until_ms:
            check_deadline(deadline)

    def require(self, feature: Feature) -> None:
        """Skip the test on a log without the feature."""
        if feature in self.lacks:
            pytest.skip(f"this log has no {feature.value}")

    def topic(self, stem: str = "target", partitions: int = PARTITIONS, **settings: str) -> str:
        """A new topic; `message_timestamp_type=...` sets `message.timestamp.type`."""
        name = self.names(stem)
        spec = TopicSpec(
            name=name,
            partitions=partitions,
            settings={key.replace("_", "."): settings[key] for key in settings},
        )
        self.log.prepare([spec], create=True)
        return name


@contextmanager
def embedded_log(request: pytest.FixtureRequest, progress: str) -> Iterator[LogCase]:
    """The embedded log in a folder of the test's own."""
    path: Path = request.getfixturevalue("tmp_path")
    log = EmbeddedLog(
        path / "log", clock=SystemClock(), progress_topic=progress, disk_reserve_bytes=0
    )
    yield LogCase(
        log=log,
        connect=lambda: log,
        names=request.getfixturevalue("topic_names"),
        progress=progress,
        delete_records=log.trim,
        lacks=frozenset({Feature.GROUPS, Feature.MISSING_TOPICS}),
    )
    log.close()


@contextmanager
def kafka_log(request: pytest.FixtureRequest, progress: str) -> Iterator[LogCase]:
    """Kafka, on the broker that all tests share."""
    broker: Broker = request.getfixturevalue("broker")
    names = request.getfixturevalue("topic_names")
    logs: list[KafkaLog] = []

    def connect() -> KafkaLog:
        logs.append(
            KafkaLog(
                bootstrap_servers=broker.bootstrap,
                properties={},
                progress_topic=progress,
                transaction_timeout_s=10.0,
            )
        )
        return logs[-1]

    def delete_records(topic: str, partition: int, offset: int) -> None:
        admin = broker.admin()
        for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(TIMEOUT_S)

    yield LogCase(
        log=connect(),
        connect=connect,
        names=names,
        progress=progress,
        delete_records=delete_records,
        bootstrap=broker.bootstrap,
    )
    for log in logs:
        log.close()


class SimulatedClient(Observer):
    """A thread without faults, which waits in simulated time."""

    def sleep(self, wait_ms: int) -> None:
        """Let the time of the simulation pass."""
        self.world.pass_time(wait_ms)


@dataclass(kw_only=True)
class SimulatedLogCase(LogCase):
    """The simulator's log, whose time passes only when somebody waits."""

    world: World

    def pass_time(self, wait_ms: int) -> None:
        """Let the time of the simulation pass."""
        self.world.pass_time(wait_ms)


@contextmanager
def simulated_log(request: pytest.FixtureRequest, progress: str) -> Iterator[LogCase]:
    """The simulator's log, without faults. The name of its progress topic is fixed."""
    world = World(0)
    brokers = Brokers(world, lambda transaction: None)

    def delete_records(topic: str, partition: int, offset: int) -> None:
        brokers.topics[topic][partition].start = offset

    yield SimulatedLogCase(
        log=SimLog(SimulatedClient(world), brokers),
        connect=lambda: SimLog(SimulatedClient(world), brokers),
        names=request.getfixturevalue("topic_names"),
        progress=PROGRESS,
        clock=SimClock(world),
        delete_records=delete_records,
        lacks=frozenset({Feature.GROUPS, Feature.THREADS}),
        world=world,
    )


@dataclass(frozen=True, kw_only=True)
class LogImplementation:
    """A row of `LOGS`."""

    open: Callable[[pytest.FixtureRequest, str], AbstractContextManager[LogCase]]
    marks: tuple[pytest.MarkDecorator, ...] = ()


LOGS: Mapping[str, LogImplementation] = {
    "embedded": LogImplementation(open=embedded_log),
    "simulated": LogImplementation(open=simulated_log),
    "kafka": LogImplementation(open=kafka_log, marks=(pytest.mark.kafka,)),
}


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A row of `STORES`."""

    make: Callable[[Path], Store]
    """A new store; one that needs a disk uses the folder, which does not exist yet."""
    open_copy: Callable[[Path], Store]
    """Open a checkpoint, to read and to write."""
    flushed_bytes_max: int = 0
    """`unflushed_bytes` is at most this after a flush."""


def rocks_store(path: Path) -> RocksStore:
    """A small RocksDB."""
    return RocksStore(
        path, block_cache=1 << 20, memtable_bytes=1 << 20, blob_bytes_min=BLOB_BYTES_MIN
    )


def simulated_store(path: Path) -> SimStore:
    """The simulator's store, on a disk without faults."""
    disk = Disk()
    disk.flush_chance = 0.0
    return SimStore(World(0), disk, lambda store: None)


def simulated_copy(path: Path) -> SimStore:
    """A checkpoint of the simulator's store, opened."""
    store = simulated_store(path)
    rows = MemoryStore.restored(path)
    store.write(rows_of(rows), [])
    store.flush()
    return store


STORES: Mapping[str, StoreKind] = {
    "rocksdb": StoreKind(make=rocks_store, open_copy=rocks_store, flushed_bytes_max=4_096),
    "memory": StoreKind(make=lambda path: MemoryStore(), open_copy=MemoryStore.restored),
    "simulated": StoreKind(make=simulated_store, open_copy=simulated_copy),
}


def wall_ms() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class ClockCase:
    """A row of `CLOCKS`: a clock that has not been stepped."""

    clock: Clock
    true_ms: Callable[[], int] = wall_ms
    """The time that the clock has to show until it is stepped."""
    shift: Callable[[int], None] | None = None
    """Step the clock by so many milliseconds; None where a test cannot."""


def shifted_clock() -> ClockCase:
    """The clock of drills."""
    clock = ShiftedClock()
    return ClockCase(clock=clock, shift=clock.shift)


def simulated_clock() -> ClockCase:
    """A node's clock in the simulator."""
    world = World(0)
    clock = SimClock(world)

    def shift(step_ms: int) -> None:
        clock.skew_ms += step_ms

    return ClockCase(clock=clock, true_ms=lambda: world.now_ms, shift=shift)


CLOCKS: Mapping[str, Callable[[], ClockCase]] = {
    "system": lambda: ClockCase(clock=SystemClock()),
    "shifted": shifted_clock,
    "simulated": simulated_clock,
}


@contextmanager
def connected(broker: Broker) -> Iterator[KafkaLog]:
    """Clients of a broker."""
    log = KafkaLog(
        bootstrap_servers=broker.bootstrap,
        properties={},
        progress_topic="none",
        transaction_timeout_s=10.0,
    )
    yield log
    log.close()


def read_until(reader: Reader, end: int) -> list[Record]:
    """Read everything up to a position; fails if it does not come in time."""
    deadline = time.monotonic() + TIMEOUT_S
    records: list[Record] = []
    while reader.position < end:
        check_deadline(deadline, f"at {reader.position}, not at {end}")
        reader.wait(1.0)
        records += reader.read(1_000, 10**9)
    return records
