"""The records of `chronos.cluster`, with which members find each other, and heartbeats: which
processes are seen by the others.

Partition 0 has heartbeats, announcements, requests, and the last records of processes that end.
Partition 1 has the roles.

A record is JSON, like members and roles in ZooKeeper: any console consumer shows it, and a reader
ignores the fields that a newer version of Chronos added. A change that older readers must not
ignore takes a new `type`.

Nothing here depends on the log's timestamps or on a wall clock. A process measures the silence of
the others by its monotonic clock, and only between its own heartbeats that each came back in time:
what others wrote meanwhile lies between them in the partition, so a pause of this process, or of
the log, is never taken for a silence of theirs."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.cluster.roles import Member, Number, Request, Roles
from chronos.core.shard.codec import UNDECODABLE

HEARTBEATS: Final = 0
"""The partition of heartbeats, announcements, requests, and last records."""

ROLES: Final = 1
"""The partition of the roles, which is written in transactions."""

VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest value of a record, decompressed: four times the largest batch that the topic takes. A
larger one was not written by Chronos."""


class RecordUnreadable(ValueError):
    """The bytes are no record of `chronos.cluster` that this version of Chronos knows; readers step
    over it."""


class MemberHeartbeat(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="heartbeat",
):
    """A sign of life of one process."""

    member: Member
    """Its node, data directory, address and report."""
    incarnation: str
    """Random for each process."""
    number: Number
    """Counts the heartbeats of this incarnation."""
    generation: Number = 0
    """Place of this incarnation among the incarnations of its node: the greatest one counts, and of
    equal ones the first in the partition. 0: the process has not claimed the name of its node yet,
    and is no member."""
    heartbeats_read: Number = 0
    """Position in the partition HEARTBEATS up to which this process has read."""
    roles_read: Number = 0
    """Position in the partition ROLES up to which this process has read."""
    epoch: Number = 0
    """The greatest controller epoch that this process has seen."""
    controls: Number = 0
    """The epoch under which this process is the controller; 0: it is not."""
    version: Number = 0
    """Of a controller: the version that it has published, or is about to publish."""
    brief: bool = False
    """The report on its replicas is the one that this incarnation wrote last, and `member` has
    none: with many shards they take most of a heartbeat."""


class Announcement(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="announcement",
):
    """The intention of a member to become controller."""

    node: str
    incarnation: str
    number: Number
    """Counts the announcements of this incarnation."""


class LeaveRecord(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="leave",
):
    """The last record of a process that stops in order; nothing of this incarnation counts after
    it."""

    node: str
    incarnation: str
    generation: Number


class Submission(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="request"):
    """A request of an operator to the controller; roles records say up to which offset requests are
    answered."""

    request: Request


ClusterRecord = MemberHeartbeat | Announcement | LeaveRecord | Submission
"""The records of the partition HEARTBEATS."""


class RolesRecord(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="roles",
):
    """The whole of the roles: a reader that has the last of these is complete. The controller and
    its epoch are in `roles`."""

    incarnation: str
    """The incarnation of the controller."""
    version: Number
    """Counts the records of this partition; the first record of each controller has a greater
    epoch, too."""
    answered: Number = 0
    """Position in the partition HEARTBEATS before which all requests are answered."""
    roles: Roles

    @property
    def epoch(self) -> int:
        """The epoch of the controller that published it."""
        return self.roles.controller_epoch


_Record = TypeVar("_Record")

_encode = msgspec.json.Encoder().encode
_decode_record: Callable[[bytes], ClusterRecord] = msgspec.json.Decoder(ClusterRecord).decode
_decode_roles = msgspec.json.Decoder(RolesRecord).decode


def pack_record(record: ClusterRecord | RolesRecord) -> bytes:
    """Return the value of a record of either partition."""
    return _encode(record)


def unpack_record(value: bytes | None) -> ClusterRecord:
    """Return the record of the partition HEARTBEATS that has this value. Raises
    RecordUnreadable."""
    return _unpack(value, _decode_record, "heartbeat")


def unpack_roles(value: bytes | None) -> RolesRecord:
    """Return the record of the partition ROLES that has this value. Raises RecordUnreadable."""
    return _unpack(value, _decode_roles, "roles record")


def _unpack(value: bytes | None, decode: Callable[[bytes], _Record], kind: str) -> _Record:
    if value is None:
        raise RecordUnreadable("a record of the cluster topic has no value")
    if len(value) > VALUE_BYTES_MAX:
        raise RecordUnreadable(
            f"a record of the cluster topic has {len(value)} bytes, more than {VALUE_BYTES_MAX}"
        )
    try:
        return decode(value)
    except UNDECODABLE as error:
        raise RecordUnreadable(
            f"a {kind} of the cluster topic cannot be decoded: {error}"
        ) from error


GRACE_TIMEOUTS = 3
"""After this process was itself unseen or stopped, it calls no member gone for so many timeouts."""


class Timing(Struct, frozen=True, kw_only=True):
    """The two times of a coordinator on Kafka or on voters."""

    heartbeat_ms: int = 250
    """Time between two heartbeats."""
    timeout_ms: int = 1_500
    """Silence after which a controller is replaced, and a member is gone."""

    @property
    def prompt_ms(self) -> int:
        """Most time for a heartbeat to come back, and between two heartbeats, for the time between
        them to count."""
        return self.timeout_ms // 2

    @property
    def seen_ms(self) -> int:
        """Most time since the heartbeat that came back last was written, for a process to be
        seen."""
        return self.timeout_ms * 3 // 4

    @property
    def grace_ms(self) -> int:
        """Time that must count before a process calls a member gone after a pause of its own."""
        return GRACE_TIMEOUTS * self.timeout_ms


class TimeSince:
    """The time that counts since something happened last."""

    def __init__(self) -> None:
        self.ms = 0
        self._happened = False

    def happened(self) -> None:
        """It happened between two own heartbeats: the time between these does not count."""
        self.ms, self._happened = 0, True

    def passed(self, ms: int) -> None:
        """So much time counts."""
        self.ms += 0 if self._happened else ms
        self._happened = False

    def restart(self, from_ms: int = 0) -> None:
        """Count from here; `from_ms`: negative to count longer than others."""
        self.ms, self._happened = from_ms, False


class OwnHeartbeats:
    """The heartbeats of this process: when the next one is due, and how much time counts between
    those that came back."""

    def __init__(self, timing: Timing) -> None:
        assert 0 < 4 * timing.heartbeat_ms <= timing.timeout_ms, (
            "one lost heartbeat must not end the time that counts"
        )
        self._timing = timing
        self._written_ms: OrderedDict[int, int] = OrderedDict()
        """Heartbeats that have not come back -> when they were written. The latest of them only: an
        older one is late anyway."""
        self._kept = 2 + 2 * timing.timeout_ms // timing.heartbeat_ms
        self._number = 0
        self._due_ms: int | None = None
        self._in_flight = 0
        """Number of the heartbeat that is being written; 0: none."""
        self._returned_ms: int | None = None
        """When the heartbeat that came back last was written."""
        self._prompt = False
        """That heartbeat came back in time."""
        self.returned = 0
        """Number of the heartbeat that came back last; 0: none did."""

    def due(self, now_ms: int, *, at_once: bool = False) -> bool:
        """Return whether to write a heartbeat now: at most one is in flight, and none is queued."""
        return not self._in_flight and (at_once or self._due_ms is None or now_ms >= self._due_ms)

    def write(self, now_ms: int) -> int:
        """Return the number of the heartbeat that is written now."""
        self._number += 1
        self._in_flight = self._number
        self._due_ms = now_ms + self._timing.heartbeat_ms
        self._written_ms[self._number] = now_ms
        while len(self._written_ms) > self._kept:
            self._written_ms.popitem(last=False)
        return self._number

    def settled(self, number: int) -> None:
        """The log acknowledged this heartbeat, or refused it."""
        if number == self._in_flight:
            self._in_flight = 0

    def came_back(self, number: int, now_ms: int) -> int | None:
        """Return the time that counts since the heartbeat before; None if it does not count,
        because one of them was late."""
        if not self.returned < number <= self._number:
            return 0
        self.returned = number
        self.settled(number)
        written_ms = self._written_ms.get(number)
        while self._written_ms and next(iter(self._written_ms)) <= number:
            self._written_ms.popitem(last=False)
        was_prompt, before_ms = self._prompt, self._returned_ms
        self._returned_ms = written_ms
        self._prompt = written_ms is not None and now_ms - written_ms <= self._timing.prompt_ms
        if written_ms is None or before_ms is None or not (self._prompt and was_prompt):
            return None
        between_ms = written_ms - before_ms
        if between_ms > self._timing.prompt_ms:
            return None
        return between_ms

    def seen(self, now_ms: int) -> bool:
        """Return whether a heartbeat came back that was written only lately: no other process can
        have called this one gone."""
        return self._returned_ms is not None and now_ms - self._returned_ms <= self._timing.seen_ms


class SeenIncarnation(Struct, kw_only=True):
    """What is known of the incarnation that counts for a node."""

    incarnation: str
    generation: int
    member: Member | None
    """As reported last; None: only its leave record was read."""
    previous: str = ""
    """The incarnation that it replaced."""
    heartbeats_read: int = -1
    roles_read: int = 0
    present: bool = False
    """It was heard since this process began, and is not gone."""
    gone: bool = False
    left: bool = False
    """Its leave record was read."""
    silence: TimeSince
    """Since a heartbeat told that it goes on reading."""
    lag: TimeSince
    """Since it reported to have read the last roles, or some more of that partition."""


class SeenIncarnations:
    """The incarnation that counts for each node, by the partition alone, and whether it is present,
    by the time that counts."""

    def __init__(self, timing: Timing, incarnation: str) -> None:
        self._timing = timing
        self._own = incarnation
        self._incarnations: dict[str, SeenIncarnation] = {}
        self._counted_ms = 0
        """The time that counts since this process was itself unseen or stopped."""

    def get(self, node: str) -> SeenIncarnation | None:
        """Return the incarnation that counts for the node, also when it is gone or left; None if
        none was ever read."""
        return self._incarnations.get(node)

    def counts(self, node: str, incarnation: str) -> bool:
        """Return whether this incarnation counts for the node."""
        known = self._incarnations.get(node)
        return known is not None and known.incarnation == incarnation and not known.left

    def present(self) -> dict[str, SeenIncarnation]:
        """Return the nodes that are members now."""
        return {node: known for node, known in self._incarnations.items() if known.present}

    def heard(self, heartbeat: MemberHeartbeat, *, backlog: bool) -> bool:
        """Apply a heartbeat; return whether it tells that an incarnation that counts goes on
        reading.

        `backlog`: it was written before this process began, so that it tells nothing of the
        present."""
        known = self._of(
            heartbeat.member.node, heartbeat.incarnation, heartbeat.generation, heartbeat.member
        )
        if known is None or known.left:
            return False
        reported = heartbeat.member if known.member is None or not heartbeat.brief else known.member
        known.member = replace(heartbeat.member, replicas=reported.replicas)
        if heartbeat.roles_read > known.roles_read:
            known.lag.happened()
        known.roles_read = heartbeat.roles_read
        if heartbeat.heartbeats_read <= known.heartbeats_read:
            return False
        known.heartbeats_read = heartbeat.heartbeats_read
        known.silence.happened()
        if not backlog and known.lag.ms < self._timing.timeout_ms:
            known.present, known.gone = True, False
        return True

    def leave_record(self, leave_record: LeaveRecord) -> bool:
        """Apply a leave record; return whether that incarnation counted."""
        known = self._of(leave_record.node, leave_record.incarnation, leave_record.generation, None)
        if known is None or known.left:
            return False
        known.left, known.present = True, False
        return True

    def _of(
        self, node: str, incarnation: str, generation: int, member: Member | None
    ) -> SeenIncarnation | None:
        """Return the entry of the incarnation if it counts: the greatest generation does, of equal
        ones the first in the partition."""
        known = self._incarnations.get(node)
        if generation > (0 if known is None else known.generation):
            previous = "" if known is None else known.incarnation
            self._incarnations[node] = known = SeenIncarnation(
                incarnation=incarnation,
                generation=generation,
                member=member,
                previous=previous,
                silence=TimeSince(),
                lag=TimeSince(),
            )
        return known if known is not None and known.incarnation == incarnation else None

    def passed(self, ms: int | None, roles_end: int) -> None:
        """Count the time between two own heartbeats; None: it does not count, and everything is
        counted from here.

        `roles_end`: position after the last roles that this process has read.
        """
        self._counted_ms = 0 if ms is None else self._counted_ms + ms
        for known in self._incarnations.values():
            if known.left or known.gone or known.incarnation == self._own:
                continue
            if ms is None:
                known.silence.restart()
                known.lag.restart()
                continue
            known.silence.passed(ms)
            if known.roles_read >= roles_end:
                known.lag.restart()
            else:
                known.lag.passed(ms)
            silence_ms = max(known.silence.ms, known.lag.ms)
            if silence_ms >= self._timing.timeout_ms and self._counted_ms >= self._timing.grace_ms:
                known.gone, known.present = True, False

    def heard_for_long(self, node: str) -> bool:
        """Return whether the incarnation of this node is still heard when it would have been gone
        if it had stopped when this began."""
        known = self._incarnations.get(node)
        is_heard = (
            known is not None and known.present and known.silence.ms <= self._timing.prompt_ms
        )
        return is_heard and self._counted_ms >= self._timing.grace_ms + self._timing.timeout_ms

    def gone(self) -> frozenset[str]:
        """Return the incarnations that count but were not heard for long."""
        return frozenset(known.incarnation for known in self._incarnations.values() if known.gone)
