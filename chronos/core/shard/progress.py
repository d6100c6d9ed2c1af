"""Progress records: the decisions of a master in one step, and the failures of messages among them.

Nothing else changes a shard's state: a delay record counts once a progress record covers it.

Layout: a version byte, the number of the rules (a byte), then a msgpack array in the field order of
`Progress`. A replica that does not know the version or the rules stops before it decodes the rest.

Rules are everything that a replay computes: how a record is parsed, where a message is placed, what
an id state notes. A change of any of it takes the next number.

Every replica computes the failure of a message from its decision in the progress record alone (law
9). `pack_progress` keeps its part of laws 3 and 9."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec
from msgspec import Struct

from chronos.core.message import Record
from chronos.core.shard.codec import (
    RULES,
    UNDECODABLE,
    check_rules,
)
from chronos.errors import LogMismatch

VERSION = b"\x01"


class Outcome(IntEnum):
    """The outcome of a selected message."""

    DELIVERED = 1
    AGAIN = 2
    RETRY = 3
    DEFERRED = 4
    SKIPPED = 5
    EXPIRED = 6
    DEAD = 7
    PARKED = 8


class Decision(Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a selected message that is not a plain, final delivery. Field order is the
    layout."""

    due_ms: int
    """With `offset`: the position at which it was selected (epoch ms)."""
    offset: int
    outcome: Outcome
    reason: int = 0
    """The `Reason` of the outcome; 0: none."""
    next_due_ms: int = 0
    """The next due time (epoch ms) of a message that stays pending: it was retried, deferred or
    repeated, or an occurrence of its series was skipped, expired or dead-lettered; otherwise 0. A
    parked message keeps its time."""
    occurrence: int = 1
    """The occurrence that the message is from now on."""
    attempt: int = 1
    """The attempt that comes next; of a dead-lettered or expired message, the last one."""
    lane: int = 0
    """The partition of the target whose lane a `PARKED` message enters; `keys.WHOLE_TOPIC`,
    `UNCREATED` or `LIMITED`."""
    detail: int = 0
    """The number, from 1 on, of the reason's text among `Progress.details`; 0: none."""
    offset_s: int | None = None
    """The zone's offset from UTC (s) at `next_due_ms`, if a cron expression that names wall-clock
    times gave that time."""


class Replan(Struct, frozen=True, array_like=True, gc=False):
    """A pending occurrence of a series at the time that newer zone data give it. Field order is the
    layout."""

    due_ms: int
    """With `offset`: its position before (epoch ms)."""
    offset: int
    next_ms: int
    """Its due time from now on (epoch ms)."""
    offset_s: int
    """The zone's offset from UTC (s) at that time."""


class LaneCursor(Struct, frozen=True, array_like=True, gc=False):
    """The position up to which the messages of a lane left it in one step. Field order is the
    layout."""

    topic: str
    partition: int
    due_ms: int
    offset: int


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """A refused record that is kept in the store until its destination takes it. Field order is the
    layout."""

    offset: int
    destination: int
    """The partition of the delay topic that it is forwarded to, or `keys.REJECTED`: the rejected
    topic."""
    detail: int = 0
    """The number, from 1 on, of the text of a rejected record among `Progress.details`; 0: none."""


class Written(Struct, frozen=True, array_like=True, gc=False):
    """The first held records of a destination, which were written to it in this step. Field order
    is the layout."""

    destination: int
    offset: int
    """Source offset of the last one."""
    too_large: tuple[int, ...] = ()
    """Offsets of the records among them that are too large for the partition: they went to the
    rejected topic, or, if `Progress.held` has them, to its queue."""


class Progress(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The progress record of one step. Field order is the layout."""

    role_epoch: int
    """The epoch that the coordinator published with the role of master."""
    log_epoch: int
    """One more than the last epoch found in the progress log when this master took over."""
    cluster: str
    """The cluster of the node that wrote it: two clusters on one progress topic would deliver
    everything twice."""
    node: str
    """The node's name, for people."""
    instance: str
    """The id of the node's data directory, which identifies the node."""
    shards: int
    """The number of shards: with another one the ids of this shard would belong to others."""
    cursor_due_ms: int
    cursor_offset: int
    pull_offset: int
    counts: tuple[int, ...]
    """Messages selected by outcome, from `Outcome.DELIVERED` on: those between the last cursor and
    this one, and those that left a lane."""
    refused: tuple[tuple[int, int], ...] = ()
    """`(offset, Reason)` of every delay record below `pull_offset` that was refused, in order."""
    decisions: tuple[Decision, ...] = ()
    """Every outcome that is not a plain, final delivery, in order."""
    probes: int = 0
    """Probes among the delay records staged."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """`(first, last)` of every range of offsets that was stepped over, because its batch cannot be
    read. A step with ranges pulls nothing else; the first offset of each is among `refused`, with
    the reason `UNREADABLE`."""
    lanes: tuple[LaneCursor, ...] = ()
    """The cursor of every lane that messages left."""
    details: tuple[str, ...] = ()
    """The different texts that explain decisions, at most DETAILS_MAX."""
    horizon_ms: int = 0
    """Ids settled, and cancels noted, before this broker time (epoch ms) were forgotten in this
    step, whether or not the delete worker has removed them yet."""
    held: tuple[Hold, ...] = ()
    """The refused records that wait for their destination. A record that is to be forwarded has the
    reason `HELD`, a rejected one its own. In a step with `written`: the records that went from the
    queue of a partition to that of the rejected topic."""
    written: tuple[Written, ...] = ()
    """The queues of held records of which the beginning was written on; such a step pulls and
    delivers nothing."""
    held_forwards: int = 0
    """Held records that wait for another partition of the delay topic after this step."""
    replans: tuple[Replan, ...] = ()
    """Pending occurrences that newer zone data moved, in the order of their positions, at most
    REPLANS_MAX."""
    zone_data: str = ""
    """Version of the zone data that planned the times of series up to this step, where it is
    another one than before; empty: it is the same."""

    @property
    def selected(self) -> int:
        """Number of selected messages; replay checks that it finds as many."""
        return sum(self.counts)

    def rejections(self) -> Mapping[int, int]:
        """The refused delay records as offset -> reason."""
        return dict(self.refused)


NO_OUTCOMES = (0,) * (len(Outcome) - 1)


def count_outcomes(selected: int, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """Return `Progress.counts`: all of `selected` messages were delivered, except those in
    `decisions`."""
    if not decisions:
        return (selected, *NO_OUTCOMES)
    outcomes = [decision.outcome for decision in decisions]
    counts = [outcomes.count(outcome) for outcome in Outcome]
    counts[0] += selected - len(decisions)
    return tuple(counts)


LANES_MAX = 50
"""Most lanes that messages leave in one step: the progress record names each with its topic."""

DETAILS_MAX = 20
"""Most texts of one progress record: decisions with further texts have none."""

DETAIL_BYTES_MAX = 200
"""Most bytes of one text; a longer one is cut."""

DECISION_BYTES_MAX = 1 + 9 + 9 + 1 + 2 + 9 + 9 + 5 + 5 + 1 + 5
"""Most bytes of a decision: its array, then the fields of `Decision`."""

REPLANS_MAX = 1_000
"""Most pending occurrences of which one step computes the times by newer zone data."""

REPLAN_BYTES_MAX = 1 + 9 + 9 + 9 + 5
"""Most bytes of a `Replan`: its array, then its fields."""

REFUSED_BYTES_MAX = 1 + 9 + 2
"""Most bytes of a refused record: its array, an offset, a reason."""

HOLDS_PER_DECISION = 2
"""Held records for which a step selects one message fewer, so that `progress_bytes_max` holds: a
`Hold` takes at most 16 bytes."""

LANE_BYTES_MAX = 1 + 251 + 5 + 9 + 9
"""Most bytes of a lane's cursor: its array, a topic's name, then the other fields of
`LaneCursor`."""

REST_BYTES_MAX = 16_384
"""Most bytes of the other fields, names included, and of the record batch around them."""


def progress_bytes_max(messages: int) -> int:
    """Return the most bytes that the record batch takes whose step refuses and selects `messages`
    messages each."""
    decided = messages * (DECISION_BYTES_MAX + REFUSED_BYTES_MAX)
    replans = REPLANS_MAX * REPLAN_BYTES_MAX
    lanes, details = LANES_MAX * LANE_BYTES_MAX, DETAILS_MAX * (2 + DETAIL_BYTES_MAX)
    return decided + lanes + details + replans + REST_BYTES_MAX


def detail_number(details: list[str], text: str) -> int:
    """Return the number of the text for `Decision.detail`, and add it to `details` where it is new;
    0 if these are full."""
    cut = text.encode(errors="replace")[:DETAIL_BYTES_MAX].decode(errors="ignore")
    if cut not in details:
        if not cut or len(details) >= DETAILS_MAX:
            return 0
        details.append(cut)
    return details.index(cut) + 1


_HEAD = VERSION + bytes([RULES])

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Progress).decode


def pack_progress(progress: Progress) -> bytes:
    """Return the bytes of a progress record."""
    assert all(count >= 0 for count in progress.counts), "more messages were decided than selected"
    assert all(offset < progress.pull_offset for offset, _ in progress.refused[-1:]), (
        "a refused record was not pulled"
    )
    assert all(first <= last < progress.pull_offset for first, last in progress.unreadable), (
        "a range was not pulled"
    )
    return _HEAD + _encode(progress)


def is_foreign(record: Record) -> bool:
    """Return whether another program wrote a record of the progress topic: it has a key or headers,
    which no progress record has. Every reader steps over it (law 9)."""
    return record.key is not None or bool(record.headers)


def unpack_progress(data: bytes | None, shards: int) -> Progress:
    """Return the progress record in the bytes. Raises LogMismatch if this version of Chronos cannot
    have written them, or wrote them with another number of shards."""
    if not data or data[:1] != VERSION:
        shown = data[0] if data else "none"
        raise LogMismatch(
            f"a progress record has format version {shown}, which this version of Chronos does "
            "not know: a newer node wrote it, or the topic is not Chronos's. Upgrade this node, "
            "or check topics.progress."
        )
    check_rules(data[1] if len(data) > 1 else 0, "a progress record", LogMismatch)
    try:
        progress = _decode(data[2:])
    except UNDECODABLE as error:
        raise LogMismatch(
            f"a progress record cannot be decoded ({error}); check topics.progress"
        ) from error
    if progress.shards != shards:
        raise LogMismatch(
            f"a progress record names {progress.shards} as the number of shards, and it is "
            f"{shards} now: partitions were added to the topics of Chronos, so that ids belong to "
            "other shards. Give Chronos a second set of topics, and schedule again what is pending"
        )
    return progress
