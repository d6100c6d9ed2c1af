"""The values in the store that have several fields, and their bytes: a version byte, then msgpack;
the state has the number of the rules in between. Rows that hold one number, a position, a lane or
nothing are packed where they are written.

Bytes of an unknown version or of unknown rules raise a named error; they are never guessed at.
`pack_state` keeps its part of law 1: the counts in a state agree."""

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Entry, EntryHead, IdOrder
from chronos.errors import ChronosError, LogMismatch, StoreCorrupt

ENTRY_VERSION, ID_STATE_VERSION, STATE_VERSION, IDENTITY_VERSION = (
    b"\x01",
    b"\x01",
    b"\x01",
    b"\x01",
)
LANE_STATE_VERSION, HELD_VERSION, QUEUE_STATE_VERSION = b"\x01", b"\x01", b"\x01"

RULES = 1
"""The number of the rules by which this version of Chronos decides and replays, see `progress`."""

PENDING, DELIVERED, CANCELLED, EXPIRED, DEAD, ABSENT = 1, 2, 3, 4, 5, 6
"""States of an id. A replaced message has no state of its own: its id belongs to the message that
replaced it. No message has an id that is absent: a cancel named it, and what was written before
that cancel may still be forwarded."""

STATE_NAMES = {
    PENDING: "pending",
    DELIVERED: "delivered",
    CANCELLED: "cancelled",
    EXPIRED: "expired",
    DEAD: "dead",
}


class Failure(Struct, frozen=True, array_like=True, gc=False):
    """Why a message was not delivered when it was last tried. Field order is the layout."""

    reason: int
    """The `Reason`."""
    attempts: int
    """Delivery attempts that failed, of this occurrence."""
    tried_ms: int = 0
    """Broker time (epoch ms) of the progress record that decided so."""
    detail: str = ""
    """The reason in words; empty if the progress record has none."""


class IdState(Struct, frozen=True, array_like=True, gc=False):
    """The last known state of an id. Field order is the layout."""

    state: Annotated[int, Meta(ge=PENDING, le=ABSENT)]
    due_ms: int
    """With `offset`: the current or last position of its entry (epoch ms)."""
    offset: int
    settled_ms: int = 0
    """Broker time (epoch ms) at which the message stopped being pending; 0 while it is pending."""
    failure: Failure | None = None
    """Of a message that is retried, deferred or parked, and of one that expired or is dead."""
    first_ms: int = 0
    """The first timestamp (epoch ms) of the record that scheduled the message; 0: no message had
    the id."""
    order: IdOrder | None = None
    """As in the entry of the message, with the cancels that came since."""


class Totals(Struct, frozen=True, array_like=True, gc=False):
    """Counts of messages and records by outcome, since the shard began. Field order is the
    layout."""

    accepted: int = 0
    delivered: int = 0
    cancelled: int = 0
    replaced: int = 0
    changed: int = 0
    """Rescheduled or fired by an action."""
    expired: int = 0
    dead: int = 0
    carried: int = 0
    """Retried, deferred or repeated: they remained pending under a new due time."""
    rejected: int = 0
    ignored: int = 0
    probes: int = 0
    parked: int = 0
    """Times a message was parked in a lane."""
    forwarded: int = 0
    """Records written on to the partition that their id belongs to."""
    held: int = 0
    """Refused records that had to wait for the partition or topic they are written to. They count
    as forwarded or rejected when they are written."""


class LaneState(Struct, frozen=True, array_like=True, gc=False):
    """The state of a lane that is not empty. Field order is the layout."""

    length: int
    """Number of messages in it."""
    due_ms: int
    """With `offset`: no message of the lane is before this position (epoch ms)."""
    offset: int


class HeldRecord(Struct, frozen=True, array_like=True, gc=False):
    """A refused record that waits for its destination. Field order is the layout."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    """None if they cannot be read."""
    timestamp_ms: int
    reason: int = 0
    """The `Reason` of a rejected record; 0 for one that is to be forwarded."""
    detail: str = ""
    """The reason in words; empty if the progress record has none."""


class QueueState(Struct, frozen=True, array_like=True, gc=False):
    """The state of a queue of held records that is not empty. Field order is the layout."""

    length: int
    """Number of records in it."""
    bytes: int
    """Bytes of their rows."""
    offset: int
    """No record of the queue is before this offset."""


class State(Struct, frozen=True, array_like=True, gc=False):
    """The state of a shard apart from its messages; written with every change. Field order is the
    layout."""

    applied: int = 0
    """Offset in the progress partition after the last record applied."""
    pull_offset: int = 0
    """Offset in the delay partition after the last record staged."""
    cursor_due_ms: int = 0
    cursor_offset: int = 0
    watermark_ms: int = 0
    """Greatest broker timestamp among the records staged (epoch ms)."""
    pending: int = 0
    role_epoch: int = 0
    log_epoch: int = 0
    instance: str = ""
    """Id of the data directory whose node wrote the last progress record."""
    node: str = ""
    """Name of that node, for people."""
    progress_ms: int = 0
    """Broker timestamp of the last progress record (epoch ms)."""
    history_minute: int = 0
    """Last minute of the epoch for which the cursor history has a row."""
    totals: Totals = Totals()
    parked: int = 0
    """Number of pending messages that are parked in lanes."""
    horizon_ms: int = 0
    """Ids settled, and cancels noted, before this broker time (epoch ms) are forgotten."""
    held: int = 0
    """Number of held records: refused records that wait for their destination."""
    held_bytes: int = 0
    """Bytes of their rows."""
    held_forwards: int = 0
    """Those of the held records that wait for another partition of the delay topic."""
    zone_data: str = ""
    """Version of the zone data that planned times of series last; empty: none did."""
    newest_zone_data: str = ""
    """The newest version that ever did."""

    @property
    def cursor(self) -> tuple[int, int]:
        """The position up to which every message is settled."""
        return self.cursor_due_ms, self.cursor_offset


class Identity(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The cluster, shard and topics that a store belongs to; compared at every start."""

    cluster: str
    shard: int
    shards: int
    delay_topic: str
    delay_topic_id: str
    progress_topic: str
    progress_topic_id: str


FRESH = State(cursor_offset=OFFSET_MAX)
"""The state of a shard that has applied nothing."""

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding damaged bytes: msgspec's own, and Python's for text that is not UTF-8 and for
too deep nesting."""

T = TypeVar("T")

_STATE_HEAD = STATE_VERSION + bytes([RULES])

_encode = msgspec.msgpack.Encoder().encode


def pack_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    return ENTRY_VERSION + _encode(entry)


def pack_id_state(id_state: IdState) -> bytes:
    """Return the bytes of an id state."""
    return ID_STATE_VERSION + _encode(id_state)


def pack_lane_state(lane_state: LaneState) -> bytes:
    """Return the bytes of a lane's state."""
    assert lane_state.length > 0, "an empty lane has no state"
    return LANE_STATE_VERSION + _encode(lane_state)


def pack_held(held: HeldRecord) -> bytes:
    """Return the bytes of a held record."""
    return HELD_VERSION + _encode(held)


def pack_queue_state(queue_state: QueueState) -> bytes:
    """Return the bytes of the state of a queue."""
    assert queue_state.length > 0, "an empty queue has no state"
    assert queue_state.bytes > 0, "every row has bytes"
    return QUEUE_STATE_VERSION + _encode(queue_state)


def pack_state(state: State) -> bytes:
    """Return the bytes of a shard's state."""
    assert state.pending >= 0, "the number of pending messages is negative"
    assert 0 <= state.parked <= state.pending, "parked messages are counted wrongly"
    assert state.applied >= 0, "a position in the progress log is negative"
    assert 0 <= state.held_forwards <= state.held, "held records are counted wrongly"
    return _STATE_HEAD + _encode(state)


def check_rules(number: int, noun: str, error: type[ChronosError]) -> None:
    """Raise the error if the thing named by `noun` has a number of rules that this version of
    Chronos does not know."""
    if number > RULES:
        raise error(
            f"{noun} was written by rules {number}, and this version of Chronos knows rules up to "
            f"{RULES}: a newer version wrote it. Upgrade this node."
        )
    if number < 1:
        raise error(f"{noun} names rules {number}, which there never were: it is damaged.")


def pack_identity(identity: Identity) -> bytes:
    """Return the bytes of an identity."""
    assert 0 <= identity.shard < identity.shards, "there is no such shard"
    return IDENTITY_VERSION + _encode(identity)


def _unpacker(kind: type[T], version: bytes, noun: str) -> Callable[[bytes], T]:
    """Return the function that decodes one kind of value. It raises StoreCorrupt if the bytes are
    of another version or damaged."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def unpack(data: bytes) -> T:
        if data[:1] != version:
            raise _unknown(noun, data)
        try:
            return decode(data[1:])
        except UNDECODABLE as error:
            raise _damaged(noun, error) from error

    return unpack


def _unknown(what: str, data: bytes) -> StoreCorrupt:
    version = data[0] if data else "none"
    return StoreCorrupt(
        f"{what} in the store has format version {version}, which this version of Chronos does "
        "not know: was the data directory written by a newer one? Start that version."
    )


def _damaged(what: str, error: Exception) -> StoreCorrupt:
    return StoreCorrupt(
        f"{what} in the store cannot be decoded ({error}): the store is damaged. On Kafka, remove "
        "it: it is rebuilt from the logs; on the embedded log, restore a copy of the data "
        "directory."
    )


def unpack_state(data: bytes) -> State:
    """Return the state in the bytes. Raises StoreCorrupt, or LogMismatch if a newer version of
    Chronos wrote it."""
    if data[:1] == STATE_VERSION and len(data) > 1:
        check_rules(data[1], "the last step in the store", LogMismatch)
    return _unpack_state(data[:1] + data[2:])


unpack_entry = _unpacker(Entry, ENTRY_VERSION, "an entry")
unpack_head = _unpacker(EntryHead, ENTRY_VERSION, "an entry")
"""Decodes the first fields of an entry only."""
unpack_id_state = _unpacker(IdState, ID_STATE_VERSION, "an id state")
unpack_lane_state = _unpacker(LaneState, LANE_STATE_VERSION, "a lane's state")
unpack_held = _unpacker(HeldRecord, HELD_VERSION, "a held record")
unpack_queue_state = _unpacker(QueueState, QUEUE_STATE_VERSION, "the state of a queue")
_unpack_state = _unpacker(State, STATE_VERSION, "the state")
unpack_identity = _unpacker(Identity, IDENTITY_VERSION, "the identity")
