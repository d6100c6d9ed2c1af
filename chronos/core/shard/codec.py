"""The bytes of values in the store: a version byte, then msgpack.

Changing a format: a field is only ever appended, with a default that means what its absence meant.
Any other change takes the next version number, a decoder for both versions, and a golden-bytes test
for each (tests/unit/test_codec.py). Bytes of an unknown version raise a named error; they are never
guessed at.

Fields that were appended with rules 2 are written only where they say something: what was decided
by rules 1 has the same bytes in every version, and so the same digest."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Entry, EntryHead, IdOrder
from chronos.errors import StoreCorrupt

ENTRY_VERSION, ID_STATE_VERSION, STATE_VERSION, IDENTITY_VERSION = (
    b"\x01",
    b"\x01",
    b"\x01",
    b"\x01",
)
LANE_STATE_VERSION, HELD_VERSION, QUEUE_STATE_VERSION = b"\x01", b"\x01", b"\x01"

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

    state: int
    due_ms: int
    """With `offset`: the current or last position of its entry (epoch ms)."""
    offset: int
    settled_ms: int = 0
    """Broker time (epoch ms) at which the message stopped being pending; 0 while it is pending."""
    failure: Failure | None = None
    """Of a message that is retried, deferred or parked, and of one that expired or is dead."""
    first_ms: int = 0
    """The first timestamp (epoch ms) of the record that scheduled the message. By rules 1, or of a
    cancel that is not older."""
    cancel_shard: int | None = None
    """By rules 1: the shard that the cancel of `first_ms` came to first, or the state's own for
    cancels that came to several. None: no cancel has that time."""
    order: IdOrder | None = None
    """By rules 2: as in the entry of the message, with the cancels that came since."""


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
    """Those of the pending messages that are parked in lanes."""
    rules: int = 1
    """The number of the rules of the last progress record."""
    horizon_ms: int = 0
    """Ids settled, and cancels noted, before this broker time (epoch ms) are forgotten."""
    held: int = 0
    """Refused records that wait for their destination."""
    held_bytes: int = 0
    """Bytes of their rows."""
    held_forwards: int = 0
    """Those of the held records that wait for another partition of the delay topic."""

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

_encode = msgspec.msgpack.Encoder().encode

_ENTRY_WITHOUT_ORDER = ENTRY_VERSION + bytes([0x90 + len(Entry.__struct_fields__) - 1])
_ID_STATE_WITHOUT_ORDER = ID_STATE_VERSION + bytes([0x90 + len(IdState.__struct_fields__) - 1])
"""The version, and msgpack's header of an array without the last field, which is one byte, null."""

_FIRST_STATE_FIELDS = State.__struct_fields__.index("rules")
"""Fields of the states of rules 1."""

_TOTALS, _FIRST_TOTALS = (
    State.__struct_fields__.index("totals"),
    Totals.__struct_fields__.index("held"),
)
"""The place of the totals in a state, and the number of their fields in the states of rules 1."""


def pack_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    data = _encode(entry)
    return ENTRY_VERSION + data if entry.order is not None else _ENTRY_WITHOUT_ORDER + data[1:-1]


def pack_id_state(id_state: IdState) -> bytes:
    """Return the bytes of an id state."""
    data = _encode(id_state)
    return (
        ID_STATE_VERSION + data
        if id_state.order is not None
        else _ID_STATE_WITHOUT_ORDER + data[1:-1]
    )


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
    if state.rules == 1:
        fields = [*astuple(state)[:_FIRST_STATE_FIELDS]]
        fields[_TOTALS] = astuple(state.totals)[:_FIRST_TOTALS]
        return STATE_VERSION + _encode(fields)
    return STATE_VERSION + _encode(state)


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


unpack_entry = _unpacker(Entry, ENTRY_VERSION, "an entry")
unpack_head = _unpacker(EntryHead, ENTRY_VERSION, "an entry")
"""Decodes the first fields of an entry only."""
unpack_id_state = _unpacker(IdState, ID_STATE_VERSION, "an id state")
unpack_lane_state = _unpacker(LaneState, LANE_STATE_VERSION, "a lane's state")
unpack_held = _unpacker(HeldRecord, HELD_VERSION, "a held record")
unpack_queue_state = _unpacker(QueueState, QUEUE_STATE_VERSION, "the state of a queue")
unpack_state = _unpacker(State, STATE_VERSION, "the state")
unpack_identity = _unpacker(Identity, IDENTITY_VERSION, "the identity")
