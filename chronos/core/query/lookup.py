"""The look-up of one message by its id, in one shard: from the state of the id, or from the entry
at the position that a generated id names.

It knows what the store has kept: a message whose retention is over is unknown, or only the state of
its id is known."""

from msgspec import Struct

from chronos.core.keys import (
    Lane,
    entry_key,
    id_key,
    lane_key,
    parse_generated_id,
    queue_state_key,
)
from chronos.core.message import Entry, entry_id
from chronos.core.reach import Reach
from chronos.core.shard.codec import (
    ABSENT,
    DELIVERED,
    PENDING,
    STATE_NAMES,
    Failure,
    State,
    unpack_entry,
    unpack_id_state,
)
from chronos.core.shard.lanes import lane_of
from chronos.core.shard.step import StoreView

SETTLED = "settled"
"""The state of a message that ended, where it is not known how."""


class FoundMessage(Struct, frozen=True, kw_only=True):
    """The known state of one message."""

    id: bytes
    state: str
    """pending, delivered, cancelled, expired or dead; of `settled` also SETTLED."""
    place_ms: int
    """Due time in the store (epoch ms): never before the requested one; later after a retry or a
    late arrival."""
    offset: int
    """Source offset: that of its delay record."""
    settled_ms: int | None
    """Broker time (epoch ms) at which it was settled; None while it is pending, or if it has no id
    state."""
    entry: Entry | None
    """The message; None after a cancel, or after its retention."""
    failure: Failure | None = None
    """Why it was not delivered when it was last tried."""
    lane: Lane | None = None
    """The lane in which it is parked."""


def holds_for(view: StoreView, state: State, destination: int) -> bool:
    """Return whether a shard has held records that are to be forwarded to this partition."""
    return state.held_forwards > 0 and view.get([queue_state_key(destination)])[0] is not None


def find(
    view: StoreView, state: State, shard: int, shards: int, message_id: bytes, *, reach: Reach
) -> FoundMessage | None:
    """Return the message with this id in this shard; None if it is unknown.

    A message out of reach is unknown; with a limited reach also one whose target is no longer
    kept."""
    message = _find(view, state, shard, shards, message_id)
    if message is None or not reach.is_limited:
        return message
    return (
        message
        if message.entry is not None and reach.admits(message_id, message.entry.target)
        else None
    )


def _find(
    view: StoreView, state: State, shard: int, shards: int, message_id: bytes
) -> FoundMessage | None:
    (data,) = view.get([id_key(message_id)])
    if data is not None:
        id_state = unpack_id_state(data)
        if id_state.state == ABSENT:
            return None
        position = (id_state.due_ms, id_state.offset)
        (stored,) = view.get([entry_key(*position)])
        lane: Lane | None = None
        if stored is None and id_state.state == PENDING:
            lane = lane_of(view, *position)
            (stored,) = (None,) if lane is None else view.get([lane_key(lane, *position)])
        return FoundMessage(
            id=message_id,
            state=STATE_NAMES[id_state.state],
            place_ms=id_state.due_ms,
            offset=id_state.offset,
            settled_ms=None if id_state.state == PENDING else id_state.settled_ms,
            entry=None if stored is None else unpack_entry(stored),
            failure=id_state.failure,
            lane=lane,
        )
    generated_id = parse_generated_id(message_id, shards)
    if generated_id is None or generated_id[0] != shard:
        return None
    _, due_ms, offset = generated_id
    (stored,) = view.get([entry_key(due_ms, offset)])
    if stored is None:
        return None
    entry = unpack_entry(stored)
    if entry_id(entry, shard, offset) != message_id:
        # The message at this position has a key, and only its key names it.
        return None
    settled = (due_ms, offset) <= state.cursor
    return FoundMessage(
        id=message_id,
        state=STATE_NAMES[DELIVERED if settled else PENDING],
        place_ms=due_ms,
        offset=offset,
        settled_ms=None,
        entry=entry,
    )
