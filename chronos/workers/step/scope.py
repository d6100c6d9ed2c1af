"""The scope of a step: whether it pulls, and whether it delivers everything due by now without
regard to records that are not pulled, decided in one place before anything is pulled. What was
pulled is a value too, `Pulled`.

Keeps its part of laws 6 and 8: a message is delivered once every record is pulled that was readable
at its due time; or without them, if the pull worker is off, or if the queues of held records are
full and none of their destinations takes records, unless all of these may do so again soon."""

from collections.abc import Sequence
from enum import Enum, auto

from msgspec import Struct

from chronos.core.message import Record
from chronos.core.shard.step import Parsed
from chronos.errors import BatchUnreadable
from chronos.workers.step.planned import Limits


class Pull(Enum):
    """The records that a step pulls."""

    NOTHING = auto()
    NEXT = auto()
    """The next ones."""
    TO_END = auto()
    """The next ones, after the broker was asked for the end of the partition: a backlog of due
    messages costs one request, not one a step."""


class Scope(Struct, frozen=True, kw_only=True):
    """What one step may do."""

    pull: Pull
    is_blind: bool = False
    """Everything due by now is delivered, without regard to records that are not pulled. Then the
    cursor must not say that they were (law 3: ids would be forgotten too early)."""
    is_delivery_turn: bool = False
    """Nothing is pulled in this step, because it is the turn of messages: the next one pulls."""
    is_paused: bool = False
    """Nothing is pulled until something other than a record ends that."""


class Pulled(Struct, frozen=True, kw_only=True):
    """What one step has pulled."""

    records: Sequence[Record] = ()
    parsed: Parsed | None = None
    unreadable: BatchUnreadable | None = None
    """Why the next batch could not be read; then there are no records."""
    reached_ms: int
    """Every record that could be read at this time (epoch ms) is pulled, by this step or before:
    messages that were due by then may be delivered."""


class Times(Struct, frozen=True, kw_only=True):
    """The times on which the scope of a step depends, when it begins (epoch ms)."""

    now_ms: int
    due_ms: int | None
    """Due time of the next message, or a time before it; None: none is pending."""
    reached_ms: int
    """`Pulled.reached_ms` of the steps before."""
    watermark_ms: int
    """Greatest timestamp of the records pulled."""

    @property
    def is_due(self) -> bool:
        """A message is due, or may be."""
        return self.due_ms is not None and self.due_ms <= self.now_ms

    @property
    def is_proven(self) -> bool:
        """A message was due at a time up to which every record is pulled: none can change it any
        more."""
        proven_ms = min(self.now_ms, max(self.reached_ms, self.watermark_ms))
        return self.due_ms is not None and self.due_ms <= proven_ms

    @property
    def is_open(self) -> bool:
        """A message is due that a record not pulled yet may change, as far as `reached_ms`
        shows."""
        return self.due_ms is not None and self.reached_ms < self.due_ms <= self.now_ms


class Room(Enum):
    """Whether the queues take more held records."""

    FREE = auto()
    FULL = auto()
    """They are full, and a destination takes records, or all that take none may do so soon."""
    STUCK = auto()
    """They are full, and no destination takes records."""


def scope_of(
    limits: Limits,
    times: Times,
    *,
    room: Room,
    is_heartbeat: bool,
    has_open_lane: bool,
    has_written_letters: bool,
) -> Scope:
    """Return the scope of the next step.

    `has_open_lane`: a lane with messages is open. `has_written_letters`: the last step rejected or
    forwarded records."""
    if not limits.pull:
        return Scope(pull=Pull.NOTHING, is_blind=True, is_paused=True)
    if room is not Room.FREE:
        # Law 8 before law 6: refused records that cannot be written must not hold back what is
        # pending for long.
        return Scope(pull=Pull.NOTHING, is_blind=room is Room.STUCK, is_paused=True)
    delivers = limits.push and times.is_due
    is_turn = has_open_lane or (delivers and times.is_proven)
    if has_written_letters and is_turn and not is_heartbeat:
        # Records are rejected and forwarded without messages; so messages come first now.
        return Scope(pull=Pull.NOTHING, is_delivery_turn=True)
    # Messages that leave a lane are kept directly behind the cursor, for their retention: so the
    # cursor must follow the current time, for which the end must be known.
    if is_heartbeat or has_open_lane or (delivers and times.is_open):
        return Scope(pull=Pull.TO_END)
    return Scope(pull=Pull.NEXT)
