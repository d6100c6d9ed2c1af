"""What the workers need of the world: a log, a store, a clock, a coordinator. Few verbs, and the laws they keep.

Two logs (`adapters.kafka`, `adapters.embedded`) and two stores (`adapters.rocks`, `adapters.memory`) implement
them; `tests/contract` holds one suite for each port, run over all its adapters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from chronos.core.codec import Identity
from chronos.core.message import Record
from chronos.core.roles import ClusterView, Member, Request, Roles
from chronos.core.step import StoreView

Outgoing = tuple[str, bytes | None, bytes | None, Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]], int]
"""A record to be written: topic, key, value, headers, partition (-1: by key, or the adapter's choice without one)."""


class Watermarks(Struct, frozen=True, kw_only=True):
    """Where a partition begins and ends."""

    start: int
    """Offset of the first record kept."""
    stable: int
    """Last stable offset: behind everything a read_committed reader may see."""
    high: int
    """High watermark; greater than `stable` while a transaction is open."""


class TopicInfo(Struct, frozen=True, kw_only=True):
    """What a fresh look at a topic found."""

    id: str
    """Changes when a topic is deleted and created again."""
    partitions: int
    leaderless: frozenset[int]
    """Partitions without a live leader."""
    bytes_max: int
    """Largest record batch the topic takes (`max.message.bytes`)."""
    compacted: bool = False
    """A compacted topic: it refuses records without a key."""
    writable: bool = True
    """The broker lets Chronos write to it."""
    replicas: int | None = None
    """Of its partition with the fewest; None where there is no such thing."""


class Appended(Struct, frozen=True, kw_only=True):
    """Where a record was written, once that is durable."""

    partition: int
    offset: int
    timestamp_ms: int


class TopicSpec(Struct, frozen=True, kw_only=True):
    """One of Chronos's own topics, as it has to be."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    """Kafka's topic settings; the embedded log needs none of them."""
    per_shard: bool = False
    """A partition is a shard, so there must be exactly so many; else the number is only for creating it."""


class Reader(Protocol):
    """Reads one partition as a `read_committed` consumer, from an offset on."""

    position: int
    """Offset behind the last record read, or behind the transaction markers that follow it."""

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """What is there now, without waiting; at least one record if there is one.

        Raises LogUnavailable; LogMismatch when the offset is not there any more.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read, or the position moved past a marker; False after the time."""

    def seek(self, offset: int) -> None:
        """Read on from another offset."""

    def close(self) -> None:
        """Give everything back."""


class Writer(Protocol):
    """The transactional producer of one shard; making one fences every earlier one of the same shard."""

    def send(self, messages: Iterable[Outgoing], progress: bytes) -> None:
        """Begin a transaction and hand over the messages and one progress record; does not wait for the brokers.

        Raises TransactionAborted (nothing is written, go on with this writer) or ProducerLost.
        """

    def commit(self, verify: Callable[[int], None], meanwhile: Callable[[], None] | None = None) -> Appended:
        """Wait for the brokers and commit: all of what was sent is readable, or nothing; where the progress record is.

        `verify` is called with the broker's timestamp of the progress record before the commit and may raise, on any
        thread. `meanwhile` is called once, on the caller's thread, while the brokers work where that is possible.
        Raises TransactionAborted (nothing written, go on with this writer), ProducerLost (unknown: only the
        progress log tells; this writer is of no use any more), and whatever `verify` raised, after an abort.
        """

    def close(self) -> None:
        """Give everything back without touching a transaction."""


class Log(Protocol):
    """Topics, partitions, offsets, transactions."""

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create the missing ones, check all; ConfigurationError or LogMismatch names what is wrong."""

    def look(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """A fresh look at topics that must not be created by it; None: not there."""

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Where the partition begins and ends at this moment, asked of the broker."""

    def stable_end(self, topic: str, partition: int) -> int:
        """Only the last stable offset: the question every step asks, on a connection of its own."""

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset whose record is at or after that time; the stable end when there is none yet."""

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Drop the records before the offset, never beyond the stable end; offsets are not given again."""

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Up to where a consumer group has committed; None where there is no such group, or nothing of it yet."""

    def ping(self, timeout_s: float) -> bool:
        """Whether any broker answers within the time; asked again and again, so it leaves nothing behind."""

    def reader(self, topic: str, partition: int, offset: int) -> Reader:
        """A reader that starts at the offset."""

    def writer(self, shard: int) -> Writer:
        """A writer for the shard; fences the earlier ones and resolves their last transaction."""

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Write records outside any transaction; returns once all are durable. Raises LogUnavailable, NoSpace."""

    def close(self) -> None:
        """Give everything back."""


class Store(StoreView, Protocol):
    """The materialised state of one shard: sorted bytes, written atomically, durable once flushed."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """First the deletes, then the puts, all or nothing. Raises NoSpace when nothing was written, StoreCorrupt."""

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Drop `start <= key < stop`, by one mark, not one by one."""

    def flush(self) -> None:
        """Make everything written so far durable."""

    def checkpoint(self, path: Path) -> None:
        """Flush, and put a copy of everything written so far there; the folder must not exist yet.

        The copy holds whole writes only, and can be opened as a store. PeerClient may read and write meanwhile.
        """

    def verify(self) -> int:
        """Read everything and check every checksum; how many rows. StoreCorrupt names the damage."""

    def size_bytes(self) -> int:
        """Bytes on disk."""

    def background_error(self) -> str | None:
        """Why the store takes no writes at the moment; None when it does."""

    def reopen(self) -> None:
        """After a background error: as after a crash, what was flushed. NoSpace while there is no room for it."""

    def close(self) -> None:
        """Flush and close."""


CLOCK_TOLERANCE_MS = 500
"""How far two clocks may differ, or one may be stepped, before nothing is delivered by them (law 2)."""


class Clock(Protocol):
    """The time of this machine."""

    def now_ms(self) -> int:
        """Epoch milliseconds, rounded down."""

    def stepped_ms(self) -> int:
        """By how much the wall clock was stepped against the boot clock since the start."""


class ClusterSnapshot(Struct, frozen=True, kw_only=True):
    """What a node knows of the cluster at one moment."""

    roles: Roles | None
    """As last read; None when nothing was published yet, or the session is lost: then this node is nobody's master."""
    members: Mapping[str, Member]
    """Nodes with a live session, as last read."""
    confirmed: bool
    """The session is connected, so that `roles` is up to date. False: go on as you are, but begin nothing."""


class Coordinator(Protocol):
    """Membership, and one leader among the members. Safety never rests on it: the log fences (law 5).

    Suspended (no server answers): `confirmed` is False, masters go on, the controller decides nothing. Lost (the session is
    over): `roles` is None, masters stop; `join` again.
    """

    def join(self, member: Member) -> None:
        """Take this node's place; at once when its own data directory held it, else after a session's time.

        Raises NodeIdTaken when another data directory has the id; CoordinatorUnavailable.
        """

    def report(self, member: Member) -> None:
        """Publish what this node is now. Raises CoordinatorUnavailable, also when the session is lost."""

    def look(self) -> ClusterSnapshot:
        """What is known now, without asking anybody."""

    def request(self, request: Request) -> None:
        """Leave a request to the controller. Raises CoordinatorUnavailable."""

    def control(self, plan: Callable[[ClusterView], Roles]) -> bool:
        """If this node is the controller and sure of it: look, plan, and publish what changed; whether it is.

        Published only while nobody else published since the look, and the requests seen are answered with it.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the outlook may have changed; False after the time."""

    def leave(self) -> None:
        """Give the place and the session back; others need not wait for it to expire."""


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    name: str
    bytes: int
    blake2b: str
    """Of its content, 32 bytes in hexadecimal."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What a checkpoint says of itself: whose it is, where in the two logs it stands, and how to tell it is whole."""

    format: int
    shard: int
    node: str
    """Who made it, for people."""
    version: str
    """Of Chronos."""
    made_at_ms: int
    identity: Identity
    """What the store belongs to: only where all of it is the same may it be used."""
    applied: int
    """Offset in the progress partition from which on it has to be replayed."""
    pull_offset: int
    """Offset in the delay partition from which on it has to be replayed."""
    cursor_due_ms: int
    cursor_offset: int
    progress_ms: int
    pending: int
    digest: str
    """`core.digest` of the store, with `remembered_ms`."""
    remembered_ms: int
    files: tuple[CheckpointFile, ...]

    @property
    def name(self) -> str:
        """Sorts by how far it is."""
        return f"{self.applied:020d}-{self.node}"

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


class Checkpoints(Protocol):
    """Copies of stores at another place. Retry while that cannot be reached or written; nothing depends on it then."""

    def save(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        """Make one, and read all of it back; it counts only once that was right."""

    def kept(self, shard: int, identity: Identity) -> Sequence[Checkpoint]:
        """The whole ones of this shard of these topics, the furthest first."""

    def is_intact(self, checkpoint: Checkpoint) -> bool:
        """Whether all its files are still there in their sizes; without reading them."""

    def prune(self, shard: int, identity: Identity, keep: int) -> Sequence[str]:
        """Remove all but the furthest `keep`, and what is left of half ones; the names of what was removed."""
