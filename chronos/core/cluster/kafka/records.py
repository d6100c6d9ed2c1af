"""The records of the topic `chronos.cluster`, as values and as bytes.

Partition 0 has heartbeats, announcements, requests, and the last records of processes that stop in
order. Partition 1 has the roles. A record is JSON, like members and roles in ZooKeeper: any console
consumer shows it, and a reader ignores fields that it does not know. A record that must not be read
without its new fields takes a new `type`, and older readers step over it (`RecordUnreadable`)."""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

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
    """The bytes are not a record of `chronos.cluster` that this version of Chronos knows; readers
    step over it."""


class MemberHeartbeat(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="heartbeat",
):
    """The regular report of one process, which shows that it runs and reads."""

    member: Member
    """Its node, data directory, address and report."""
    incarnation: str
    """Random for each process."""
    number: Number
    """Counts the heartbeats of this incarnation."""
    generation: Number = 0
    """Number of this incarnation among the incarnations of its node: the greatest one counts, and
    of equal ones the first in the partition. 0: the process has not claimed the name of its node
    yet, and is not a member."""
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
