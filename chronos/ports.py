"""The ports: what the workers, the node and the HTTP interface ask of a log, a store, a clock, a
coordinator, checkpoints, an audit trail and tracing, and the guarantees that each gives.

`adapters` implements them, the log twice and the coordinator three times. `tests/contract` holds
one suite for each of the first five and runs it over all adapters, and over the simulator's
implementations of the first four. A method of an adapter without a docstring does what is written
here.

No implementation changes a value that it is given, and none keeps one to change it later: records,
headers, rows and specifications are the caller's."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from chronos.core.clock import CLOCK_TOLERANCE_MS as CLOCK_TOLERANCE_MS
from chronos.core.cluster.roles import ClusterState, Member, Request, Roles
from chronos.core.message import Record
from chronos.core.shard.codec import Identity
from chronos.core.shard.progress import Decision
from chronos.core.shard.step import Parsed, Selection, Staged, StoreView

Outgoing = tuple[
    str,
    bytes | None,
    bytes | None,
    Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]],
    int,
]
"""A record to write: topic, key, value, headers, partition (-1: by key, or the adapter's choice
without one)."""


class Watermarks(Struct, frozen=True, kw_only=True):
    """First and last offsets of a partition."""

    start: int
    """Offset of the first record kept."""
    stable: int
    """Last stable offset: the offset after everything a read_committed reader may see."""
    high: int
    """High watermark; greater than `stable` while a transaction is open."""
    leader_epoch: int | None = None
    """Leader epoch at the end of the partition; None if the log has none. An election begins a new
    one."""


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic as the log described it."""

    id: str
    """Topic id; it changes when the topic is deleted and created again."""
    partitions: int
    """Number of partitions."""
    leaderless: frozenset[int]
    """Partitions without a live leader."""
    bytes_max: int
    """Largest record batch that the topic accepts, in bytes (`max.message.bytes`)."""
    compacted: bool = False
    """A compacted topic refuses records without a key."""
    writable: bool = True
    """The broker lets Chronos write to it."""
    replicas: int | None = None
    """Replicas of the partition that has the fewest; None if the log does not replicate."""
    short: frozenset[int] = frozenset()
    """Partitions with fewer in-sync replicas than `min.insync.replicas`: they can be read, and take
    no records."""
    leaders: tuple[int, ...] = ()
    """Id of the broker that leads each partition, -1 for none; empty if the log has no brokers."""
    advice: tuple[str, ...] = ()
    """Settings of a topic of Chronos that are only unwise, for people; known after `prepare`."""

    @property
    def closed(self) -> frozenset[int]:
        """Partitions that take no records at the moment."""
        return self.leaderless | self.short


class Appended(Struct, frozen=True, kw_only=True):
    """Position of a durable record."""

    partition: int
    offset: int
    timestamp_ms: int
    """Broker time of the append (epoch ms)."""


class Sent(Struct, kw_only=True):
    """One record of a transaction, and whether its partition's leader has acknowledged it."""

    topic: str
    partition: int
    """-1: the client chooses it by the key, and it is known with the answer."""
    key: bytes | None = None
    latency_ms: int | None = None
    """Time from the hand-over to the acknowledgement; None: not acknowledged."""
    failed: bool = False
    """Not acknowledged in the time of the transaction: the leader is slow or gone."""


class Throttle(Struct, frozen=True, kw_only=True):
    """How the brokers slow a writer down, because it is above a quota."""

    rate: int
    """Bytes a second that they took last."""
    bytes_max: int
    """Bytes of a transaction that they take within half its time-out at that rate."""
    pause_ms: int
    """Time to wait before the next transaction: they take nothing for longer than half its
    time-out."""


class TopicSpec(Struct, frozen=True, kw_only=True):
    """A topic to create or check: its partitions and settings."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    """Kafka's topic settings; the embedded log reads `max.message.bytes` and `retention.ms`."""
    per_shard: bool = False
    """A partition is a shard, so `partitions` must match exactly; otherwise it only counts when the
    topic is created."""


ReaderMode = Literal["plain", "bounded", "alone", "patient", "quiet"]
"""How a reader reads:

    plain     It fetches ahead, and returns a record as soon as it can.
    bounded   No batch takes more than a bounded amount of memory: one that would is a
              BatchUnreadable. It is slower. Behind the end that the partition had when a reader of
              this kind was first asked for, it reads as a plain one.
    alone     One batch at a time: the next one is fetched some seconds after the records of this
              one were taken.
    patient   It fetches ahead, but its position may move past transaction markers half a second
              late, and a reader that waits costs the brokers little.
    quiet     A patient one of a partition to which little is written: its first record may be half
              a second late too, and it costs next to nothing."""


READING_BOUNDED = (
    "reading in bounded memory, because the last process ended where this one begins, perhaps for "
    "want of memory"
)
"""How `Reader.delayed` of a bounded reader begins, for people."""


class Reader(Protocol):
    """Reads one partition as a `read_committed` consumer, from an offset on. For one thread."""

    @property
    def position(self) -> int:
        """Offset after the last record read, or after the transaction markers that follow it."""

    @property
    def delayed(self) -> str | None:
        """Why it reads slowly, or waits until others have read, for people; None if it does
        neither. Any thread may read it."""

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends the current `wait`, or else the next one; None: nothing ends a wait. Any thread may
        read and call it."""

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return the next records without waiting; at least one if there is one.

        Raises LogUnavailable; BatchUnreadable when the very next batch cannot be read, each time
        until a `seek` past it; LogMismatch when the offset is no longer in the log."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a record, or for the position to move past a marker; False if the time passes
        first, or if `waker` was called."""

    def seek(self, offset: int) -> None:
        """Continue from another offset."""

    def close(self) -> None:
        """Release the client."""


Verify = Callable[[int, Iterable[Record]], None]
"""Checks a step that is written and not committed yet: the broker's timestamp of its progress
record (epoch ms), and the committed records that others wrote to the progress partition since the
last step, or since `Writer.begin_at`; they are read as they are asked for."""


class Writer(Protocol):
    """The transactional producer of one shard; creating one fences every earlier one of the same
    shard. For one thread.

    Kafka fences by the transactional id, and forgets an id that was not used for
    `transactional.id.expiration.ms`: then the producer of a process that was frozen longer is
    refused nothing. So a writer compares, at each commit, the place of its record with the place
    that it expects."""

    @property
    def sent(self) -> Sequence[Sent]:
        """Some records of the last transaction, evenly spread, the progress record and the first
        message among them; empty if the log has no brokers. The answers are entered as they come;
        any thread may read."""

    @property
    def throttle(self) -> Throttle | None:
        """How the brokers slow this writer down now; None: they do not. Any thread may read."""

    def begin_at(self, end: int) -> None:
        """Expect the first progress record at this offset or behind it: every record before it was
        applied, and no transaction is open. Without this call a writer expects none."""

    def send(self, messages: Sequence[Outgoing], progress: bytes) -> None:
        """Begin a transaction and hand over the messages and one progress record; does not wait for
        the brokers.

        Neither the messages nor their headers are changed: the caller may use them again after an
        abort. Raises TransactionAborted (nothing is written, this writer may go on) or
        ProducerLost."""

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        """Commit what was sent, all of it or nothing, and return the position of the progress
        record.

        `verify` is called once before the commit, on any thread; if it raises, the transaction is
        aborted and the exception passed on. What others wrote is nothing where the progress record
        is at the offset that follows from this writer's own transactions; where it cannot be read
        in 5 s, ProducerLost is raised in `verify`.
        `meanwhile` is called once, on the caller's thread, while a log with brokers waits for them.
        Raises TransactionAborted (nothing is written, this writer may go on) or ProducerLost (only
        the progress log shows whether the transaction committed; make a new writer)."""

    def close(self) -> None:
        """Release the client; an open transaction is left as it is."""


class Appender(Protocol):
    """Writing records outside any transaction. Any thread may call."""

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Write records outside any transaction and return once all are durable; the records are
        not changed.

        After the time, everything that this appender holds is discarded, also records of other
        callers, which fail alike. Raises LogUnavailable, NoSpace."""

    def close(self) -> None:
        """Release all clients."""


class AuditSink(Protocol):
    """Where the audit trail is kept. One thread at a time calls."""

    def write(self, entries: Sequence[bytes]) -> None:
        """Write entries, each one JSON object, and return once they are durable. Raises Retry,
        NoSpace.

        Entries of a write that failed may be there, in part or as a whole.
        """

    def close(self) -> None:
        """Release what it holds."""


class AuditTrail(Protocol):
    """The kept part of the audit trail, read from its end. Any thread may call."""

    def newest(self, behind: Sequence[int] | None) -> Generator[tuple[bytes, Sequence[int]]]:
        """Yield the entries, the newest first, each with the position behind it, from which a later
        call goes on.

        `behind`: such a position; None: the end. Raises LookupError if the position is no longer
        there, Retry, LogUnavailable.
        """


class Tracing(Protocol):
    """The observer of the messages of committed steps. It never waits and never fails."""

    def accepted(self, shard: int, committed_ms: int, parsed: Parsed, staged: Staged) -> None:
        """Observe the messages that were accepted by a step that was committed at this time (epoch
        ms): those parsed, without those refused."""

    def settled(
        self, shard: int, committed_ms: int, selection: Selection, decisions: Sequence[Decision]
    ) -> None:
        """Observe the messages that the step delivered, dead-lettered or expired."""


class RecordLog(Appender, Protocol):
    """Reading and writing records."""

    marker_offsets: int
    """Offsets that the end of a transaction takes in each partition that it wrote to."""

    def reader(
        self, topic: str, partition: int, offset: int, *, mode: ReaderMode = "plain"
    ) -> Reader:
        """Return a reader that starts at the offset."""

    def writer(self, shard: int) -> Writer:
        """Return a writer for the shard; fences the earlier ones and resolves their last
        transaction."""


class TopicLog(Protocol):
    """Topics, and the offsets of their partitions. Any thread may call."""

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create missing topics and check all. Raises ConfigurationError or LogMismatch naming
        every problem."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Describe topics as they are now, without creating any; None for a missing one."""

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Return the partition's first and last offsets, as the broker reports them now."""

    def stable_end(self, topic: str, partition: int) -> int:
        """Return the last stable offset only, over a connection of its own: a master with due
        messages calls it."""

    def stable_ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the last stable offset of each partition that answers now. One request to each
        broker, however many the partitions; no error if none answers."""

    def high_watermarks(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the high watermark of each partition, as `stable_ends` does."""

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the first offset whose record is at or after that time; the last stable offset if
        there is none yet."""

    def batch_bounds(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        """Return the first and last offset of the batch that holds `offset`, from its own header;
        it is not decompressed."""

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before the offset, never beyond the last stable offset; offsets are
        never reused."""

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the committed offset of a consumer group; None if the group committed nothing."""

    def ping(self, timeout_s: float) -> bool:
        """Return whether a broker answers within the time. It is called continually and keeps no
        resources."""


class Log(RecordLog, TopicLog, Protocol):
    """Records and topics. Ask for the narrower protocol where one is enough."""


class StoreSnapshot(StoreView, Protocol):
    """The rows of a store as they were when it was made. Any thread may read. Every method raises
    Retry once it is closed."""

    def close(self) -> None:
        """Release the files and memory that it keeps. Closing the store does so too."""


class Store(StoreView, Protocol):
    """The materialised state of one shard: sorted bytes, written atomically, durable once
    flushed."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Apply the deletes, then the puts, all or nothing. Raises NoSpace if nothing was written,
        StoreCorrupt."""

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete `start <= key < stop` with one range tombstone."""

    def compact(self) -> bool:
        """Compact the ranges in which more than 10,000 rows were deleted one by one since the last
        time, and return whether there were any. Other threads may read and write meanwhile."""

    def snapshot(self) -> StoreSnapshot:
        """Return a view of the rows as they are now; later writes do not change it. Close it
        soon."""

    def flush(self) -> None:
        """Make everything written so far durable. Raises NoSpace if it cannot be, and after a
        background error always, until `reopen`."""

    def checkpoint(self, path: Path) -> None:
        """Flush, and copy everything written so far to a folder that must not exist yet.

        The copy contains complete writes only and can be opened as a store. Other threads may read
        and write meanwhile."""

    def verify(self) -> int:
        """Read every row, check every checksum and return the number of rows. StoreCorrupt names
        the damage."""

    def size_bytes(self) -> int:
        """Return the bytes on disk."""

    def background_error(self) -> str | None:
        """Return the reason why the store refuses writes at the moment; None if it accepts them."""

    @property
    def is_open(self) -> bool:
        """Whether the store is open. Every other method raises Retry while it is not, except
        `size_bytes`, `open` and `close`."""

    def open(self) -> None:
        """Open a closed store, which is created if it is not on disk yet. Raises NoSpace,
        StoreCorrupt, LogMismatch."""

    def reopen(self) -> None:
        """Reopen after a background error, as after a crash, with the flushed writes. Raises
        NoSpace while the disk is full."""

    def close(self) -> None:
        """Flush and close."""


class Clock(Protocol):
    """The time of this machine."""

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down."""

    def stepped_ms(self) -> int:
        """Return the milliseconds by which the wall clock was stepped against the boot clock since
        the start."""


def steady_ms(clock: Clock) -> int:
    """Return milliseconds that a step of the wall clock does not change: for durations, so that
    none looks like silence or lag."""
    return clock.now_ms() - clock.stepped_ms()


class ClusterSnapshot(Struct, frozen=True, kw_only=True):
    """The knowledge of a node about the cluster at one moment."""

    roles: Roles | None
    """As last read; None before the first publication and after a lost session: this node then
    begins no leadership."""
    members: Mapping[str, Member]
    """Nodes with a live session, as last read."""
    confirmed: bool
    """The session is connected, so `roles` is up to date. False: the node keeps its current roles
    and takes no new one."""
    why: str = ""
    """Why `roles` are not confirmed although a server answers, for people; empty: none does."""


class Coordinator(Protocol):
    """Membership, and one leader among the members. Safety never rests on it: the log fences (law
    5).

    Suspended (no server answers, or the servers have no roles any more): `roles` stay as last read,
    `confirmed` is False, masters continue, the controller decides nothing. Lost (the session has
    ended): `roles` is None; `join` again. Masters continue until roles are read that are not older
    than theirs."""

    def join(self, member: Member) -> None:
        """Register this node, at once if its own data directory was registered under its id, else
        after a session time-out.

        Raises NodeIdTaken when another data directory has the id; CoordinatorUnavailable.
        """

    def report(self, member: Member) -> None:
        """Publish this node's state. Raises CoordinatorUnavailable, also when the session is
        lost."""

    def look(self) -> ClusterSnapshot:
        """Return the current knowledge, without a request to a server."""

    def request(self, request: Request) -> None:
        """Store a request for the controller. Raises CoordinatorUnavailable."""

    def control(self, plan: Callable[[ClusterState], Roles]) -> bool:
        """If this node is certain to be the controller, read, plan and publish the changes; return
        whether it is.

        Roles are published only if no other node published since the read, and the requests read
        are answered with them."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until the snapshot may have changed; False if the time passes first."""

    def leave(self) -> None:
        """End the session and the registration, so that other nodes need not wait for them to
        expire."""


class ClusterInspection(Struct, frozen=True, kw_only=True):
    """The findings of an inspection of the coordinator from outside the cluster, for `chronos
    doctor`."""

    checked: str
    """The address of the coordinator, and what was tried there with success, for people."""
    notes: tuple[str, ...] = ()
    """Unusual findings, for people."""
    members: Mapping[str, Member]
    unreadable: tuple[str, ...] = ()
    """Members whose report another version of Chronos wrote."""
    roles: Roles | None
    """As published; None if there are none, or if they cannot be read."""


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    name: str
    """Name in the checkpoint's folder."""
    bytes: int
    """Size of its content."""
    blake2b: str
    """Digest of its content, 32 bytes in hexadecimal."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The manifest of a checkpoint: its store, its positions in the two logs, and the digests that
    prove it complete."""

    format: int
    """Version of the manifest."""
    rules: int
    """The number of the rules of its store, see `core.shard.progress`."""
    shard: int
    node: str
    """Id of the node that made it, for people."""
    version: str
    """Version of Chronos that made it."""
    made_at_ms: int
    """Clock of that node when it was made (epoch ms)."""
    identity: Identity
    """Identity of the store: a checkpoint may be used only for a store with exactly this
    identity."""
    applied: int
    """Offset in the progress partition from which to replay."""
    pull_offset: int
    """Offset in the delay partition from which to replay."""
    cursor_due_ms: int
    cursor_offset: int
    progress_ms: int
    """Broker timestamp of the last progress record applied (epoch ms)."""
    pending: int
    """Number of pending messages."""
    digest: str
    """`core.shard.digest` of the store, with `remembered_ms`."""
    remembered_ms: int
    """Time in ms for which the digest covers settled id states."""
    files: tuple[CheckpointFile, ...]

    @property
    def name(self) -> str:
        """Name in its folder; names sort by `applied`."""
        return f"{self.applied:020d}-{self.node}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


class Checkpoints(Protocol):
    """Copies of stores in another location. Every method raises Retry while the location cannot be
    read or written."""

    def save(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        """Make a checkpoint and read all of it back; it is complete only once every byte was
        verified."""

    def kept(self, shard: int, identity: Identity) -> Sequence[Checkpoint]:
        """Return the complete checkpoints of the shard with this identity, those with the greatest
        `applied` first."""

    def is_intact(self, checkpoint: Checkpoint) -> bool:
        """Return whether all its files still exist with the right sizes, without reading them."""

    def prune(self, shard: int, identity: Identity, keep: int) -> Sequence[str]:
        """Remove all but the `keep` furthest checkpoints, and the files of incomplete ones; return
        the names removed."""

    def archived(self, shard: int, identity: Identity) -> Mapping[str, int]:
        """By topic, the archive's positions in the shard's partitions that were kept last."""

    def keep_archived(self, shard: int, identity: Identity, offsets: Mapping[str, int]) -> None:
        """Keep the archive's positions: Kafka deletes the offsets of a group that was inactive for
        a week."""
