"""A naive model of a shard, written from the design: dictionaries and a sort.

It makes no decision about time: like a replica, it gets the cursor as an argument, and it has no
wheel. It shares only the layout of the bytes with the real shard, so that whole stores can be
compared."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import msgspec

from chronos.core.keys import (
    STATE_KEY,
    count_key,
    cursor_history_key,
    entry_key,
    expiry_key,
    held_key,
    id_key,
    lane_key,
    lane_state_key,
    pack_lane,
    parked_key,
    parse_generated_id,
    queue_state_key,
)
from chronos.core.message import Entry, IdOrder, Options, Reason, Record, Repetition
from chronos.core.series import spread_shift_ms
from chronos.core.shard.codec import (
    Failure,
    HeldRecord,
    IdState,
    LaneState,
    QueueState,
    State,
    Totals,
    pack_entry,
    pack_held,
    pack_id_state,
    pack_lane_state,
    pack_queue_state,
    pack_state,
)

SHARD = 1
MINUTE_MS = 60_000
LAST = 2**64 - 1
STATES = {"pending": 1, "delivered": 2, "cancelled": 3, "expired": 4, "dead": 5, "absent": 6}
TO_REJECTED = -1
"""The destination of held records that wait for the rejected topic."""
SKEW_MS = 500
"""Most by which the clocks of two brokers differ."""


JUDGED_LAST = (Reason.BEYOND_MAX_DELAY, Reason.PAST, Reason.FORBIDDEN_TARGET)
"""Flaws of a record whose headers can be read: its id and its call are known."""


def token(call: bytes) -> bytes:
    """What is kept of the name of a call."""
    return hashlib.blake2b(call, digest_size=8).digest()


class Rows:
    """Rows in memory. A scan returns at most `chunk` rows, within the limit of bytes."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None, chunk: int = 1_000_000) -> None:
        self.rows = dict(rows or {})
        self.chunk = chunk

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in sorted(key for key in self.rows if start <= key < stop):
            size += len(self.rows[key])
            if len(found) >= min(count_max, self.chunk) or (found and size > bytes_max):
                return found, key
            found.append((key, self.rows[key]))
        return found, None

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        for key in deletes:
            self.rows.pop(key, None)
        self.rows.update(puts)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """The intent of a record of the delay topic, before it is written as headers."""

    offset: int
    timestamp_ms: int
    verb: str
    id: bytes | None = None
    due_ms: int = 0
    expire_at_ms: int | None = None
    policy: str = "reject"
    target: str = "orders"
    value: bytes | None = b"payload"
    replayed: bytes | None = None
    """The source of the dead letter that a `replay` schedules again."""
    repetition: Repetition | None = None
    first_is_left: bool = False
    """The first time of a series is left to its cron expression."""
    spread_ms: int = 0
    rejection: Reason | None = None
    """Return the reason for which it must be refused regardless of the shard's state."""
    hop_ms: int | None = None
    """Of a forwarded record: how long before its own time its first timestamp is; negative where
    the clocks differ."""
    call: bytes | None = None
    """Names the call of which the record may be a repetition."""
    is_at: bool = True
    """Its time is given, and not a delay."""
    hop_from: int = 0
    """Of a forwarded record: the shard that it came to first."""
    elsewhere: int | None = None
    """The shard that its id belongs to, if that is another one."""

    @property
    def first_ms(self) -> int:
        """The time that counts for its order and for its due time: its own if the first timestamp
        is too far ahead."""
        hop_ms = self.hop_ms or 0
        return self.timestamp_ms - (hop_ms if hop_ms >= -SKEW_MS else 0)

    @property
    def first_shard(self) -> int:
        """The shard that it came to first."""
        return SHARD if self.hop_ms is None else self.hop_from


@dataclass(frozen=True, kw_only=True)
class ChosenOutcome:
    """The outcome of a selected message, as the test chose it."""

    outcome: str = "delivered"
    next_due_ms: int = 0
    occurrence: int = 1
    attempt: int = 1
    lane: int = 0
    reason: int = 0
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message and its position."""

    place_ms: int
    offset: int
    id: bytes
    user_id: bool
    moved: bool
    """Its position is, or once was, another one than the requested time."""
    due_ms: int
    intent: Intent
    occurrence: int = 1
    attempt: int = 1
    lane: int | None = None
    """The partition of its target in whose lane it is parked."""
    expire_at_ms: int | None = None
    planned_ms: int = 0
    """Time in the rhythm of an occurrence that was moved or tried."""
    order: IdOrder | None = None
    """Where it came to first, and the cancels of its id before it, as far as the entry shows
    them."""

    @property
    def shift_ms(self) -> int:
        return spread_shift_ms(SHARD, self.offset, self.intent.spread_ms)

    def aside(self) -> Message:
        """The message once its occurrence does not stand at its time in the rhythm any more."""
        if self.intent.repetition is None or (self.planned_ms and self.occurrence):
            return self
        return replace(self, planned_ms=self.due_ms)

    @property
    def position(self) -> tuple[int, int]:
        return self.place_ms, self.offset

    def packed(self) -> bytes:
        intent = self.intent
        repetition = intent.repetition and msgspec.structs.replace(
            intent.repetition, planned_ms=self.planned_ms
        )
        options = Options(spread_ms=intent.spread_ms, repetition=repetition)
        return pack_entry(
            Entry(
                id=self.id if self.user_id or self.moved else None,
                due_ms=self.due_ms,
                target=intent.target,
                key=None,
                headers={} if intent.replayed is None else {"chronos-replayed": intent.replayed},
                value=intent.value,
                timestamp_ms=intent.first_ms,
                expire_at_ms=self.expire_at_ms,
                occurrence=self.occurrence,
                attempt=self.attempt,
                options=None if options == Options() else options,
                order=self.order,
            )
        )


@dataclass
class Model:
    """The shard, as the design describes it."""

    shard: int
    deduplication_ms: int
    cursor: tuple[int, int] = (0, LAST)
    pull_offset: int = 0
    watermark_ms: int = 0
    history_minute: int = 0
    pending: dict[int, Message] = field(default_factory=dict)
    settled: dict[tuple[int, int], Message] = field(default_factory=dict)
    id_states: dict[bytes, tuple[str, int, int, int]] = field(default_factory=dict)
    """Id -> state, place, offset and settling time, for every message there ever was."""
    failures: dict[bytes, Failure] = field(default_factory=dict)
    """Id -> why it was not delivered when it was last tried."""
    firsts: dict[bytes, int] = field(default_factory=dict)
    """Id -> first timestamp of its message."""
    orders: dict[bytes, IdOrder | None] = field(default_factory=dict)
    """Id -> where its message came to first."""
    cancels: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Id -> first timestamp and first shard of every cancel that is remembered."""
    calls: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Id -> token of each of the last four calls that were executed."""
    stored_ids: set[bytes] = field(default_factory=set)
    lane_starts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Lane that is not empty -> no message of it is before this position."""
    left: list[Message] = field(default_factory=list)
    """Messages delivered from a lane."""
    other_rows: dict[bytes, bytes] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    queues: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Destination -> offset and row of every held record, in order."""
    queue_starts: dict[int, int] = field(default_factory=dict)
    """Destination with held records -> none of them is before this offset."""
    horizon_ms: int = 0
    cancelled: list[Message] = field(default_factory=list)
    """Messages that were cancelled in this step."""
    forgotten: set[bytes] = field(default_factory=set)
    """Forgotten ids whose rows are still in the store."""

    # Ids

    def lookup(self, message_id: bytes) -> str | None:
        """The state of the message with this id, None when there is none."""
        known = self.id_states.get(message_id)
        return known[0] if known and known[0] != "absent" else None

    def _holder(self, message_id: bytes) -> Message | None:
        return next(
            (message for message in self.pending.values() if message.id == message_id), None
        )

    def forget(self, horizon_ms: int) -> None:
        """Forget every id that was settled, and whose cancels came, before the horizon; its row
        stays until it is deleted."""
        self.horizon_ms = horizon_ms
        for message_id, (state, _, _, settled_ms) in list(self.id_states.items()):
            if (
                state == "pending"
                or not 0 < settled_ms < horizon_ms
                or self._kept_ms(message_id) >= horizon_ms
            ):
                continue
            if message_id in self.stored_ids:
                self.other_rows[id_key(message_id)] = self._id_row(message_id)
                self.stored_ids.discard(message_id)
                self.forgotten.add(message_id)
                for known in (self.failures, self.cancels, self.calls):
                    known.pop(message_id, None)  # type: ignore[attr-defined]
                # A generated id may be that of a replay too, which leaves the entry of the first
                # message where it was.
                kept = [each for each in self.settled.values() if each.id == message_id]
                message = next(
                    (
                        each
                        for each in kept
                        if not each.user_id and not each.moved and each.place_ms == each.due_ms
                    ),
                    None,
                )
                if message is not None:
                    # Its entry is still at the address that the id names, as of one that was
                    # delivered.
                    self.id_states[message_id] = ("delivered", message.place_ms, message.offset, 0)
                else:
                    for gone in (self.id_states, self.firsts, self.orders):
                        gone.pop(message_id, None)  # type: ignore[attr-defined]

    # One step

    def stage(self, intents: Sequence[Intent]) -> list[tuple[int, Reason]]:
        """Execute the records in order; return the offsets of the refused ones with their
        reasons."""
        refused = []
        self._begin()
        for intent in intents:
            self.pull_offset = intent.offset + 1
            if intent.rejection is not Reason.CREATE_TIME:
                self.watermark_ms = max(self.watermark_ms, intent.timestamp_ms)
            reason = self._flaw(intent) or self._execute(intent)
            if reason is not None:
                refused.append((intent.offset, reason))
                counted = {
                    Reason.IGNORED: "ignored",
                    Reason.REPEATED: "ignored",
                    Reason.FORWARDED: "forwarded",
                }
                self.totals[counted.get(reason, "rejected")] += 1
        return refused

    def _flaw(self, intent: Intent) -> Reason | None:
        """What is wrong with the record itself; a call that was executed before counts as repeated
        all the same, in the shard of its id."""
        names_call = intent.call is not None and intent.id is not None and intent.verb != "replay"
        if names_call and intent.rejection in JUDGED_LAST:
            if intent.elsewhere is not None:
                return None
            if self._is_repeated(intent):
                return Reason.REPEATED
        return intent.rejection

    def _begin(self) -> None:
        self.ended: list[bytes] = []
        self.prolonged: set[bytes] = set()
        self.cancelled = []

    def step_over(self, first: int, last: int) -> list[tuple[int, Reason]]:
        """Refuse a range of offsets as one record, and count nothing else."""
        self._begin()
        self.pull_offset = last + 1
        self.totals["rejected"] += 1
        return [(first, Reason.UNREADABLE)]

    def hold(
        self, refused: Sequence[tuple[int, Reason]], closed: Set[int], home: int
    ) -> tuple[list[tuple[int, Reason]], dict[int, tuple[int, Reason]]]:
        """Return the refused records once those have to wait whose destination is closed; and for
        each that waits its destination and its reason."""
        waiting: dict[int, tuple[int, Reason]] = {}
        seen = []
        for offset, reason in refused:
            destination = home if reason is Reason.FORWARDED else TO_REJECTED
            copied = reason not in (Reason.IGNORED, Reason.REPEATED)
            if copied and destination in closed | self.queues.keys():
                waiting[offset] = (destination, reason)
                self.totals["held"] += 1
                self.totals["forwarded" if reason is Reason.FORWARDED else "rejected"] -= 1
                reason = Reason.HELD if reason is Reason.FORWARDED else reason
            seen.append((offset, reason))
        return seen, waiting

    def enqueue(self, destination: int, record: Record, reason: int, detail: str) -> None:
        """Keep a record that waits."""
        headers = None if record.headers is None else list(record.headers)
        row = pack_held(
            HeldRecord(record.key, record.value, headers, record.timestamp_ms, reason, detail)
        )
        insort(self.queues.setdefault(destination, []), (record.offset, row))
        start = self.queue_starts.get(destination, record.offset)
        self.queue_starts[destination] = min(start, record.offset)

    def write_on(self, destination: int, count: int, rejected: int, requeued: int) -> None:
        """Forget the first held records of a destination, which were written on; some of them as
        rejected, and some to another queue."""
        self._begin()
        queue = self.queues.pop(destination)
        self.queue_starts[destination] = queue[count - 1][0] + 1
        if queue[count:]:
            self.queues[destination] = queue[count:]
        else:
            del self.queue_starts[destination]
        self.totals["rejected"] += rejected
        self.totals["forwarded"] += count - rejected - requeued

    def _execute(self, intent: Intent) -> Reason | None:
        if intent.verb == "probe":
            self.totals["probes"] += 1
            return None
        if intent.elsewhere is not None:
            return Reason.FORWARDED if intent.hop_ms is None else Reason.WRONG_SHARD
        if intent.verb in ("schedule", "replace", "replay"):
            return self._schedule(intent)
        if intent.verb == "settled":
            return self._take_as_delivered(intent)
        assert intent.id is not None
        state = self.lookup(intent.id)
        if state is None:
            self._note(intent)
            return Reason.UNKNOWN
        if self._is_repeated(intent):
            return Reason.REPEATED
        holder = self._holder(intent.id)
        if holder is None:
            self._note(intent)
            return (
                Reason.IGNORED
                if (intent.verb, state) == ("cancel", "cancelled")
                else Reason.TOO_LATE
            )
        came_elsewhere = intent.first_shard != self._came_first(holder.id)
        if came_elsewhere and intent.first_ms < holder.intent.first_ms - SKEW_MS:
            return Reason.TOO_LATE
        since_ms = min(intent.first_ms, intent.timestamp_ms)
        if intent.verb == "cancel":
            del self.pending[holder.offset]
            self.cancelled.append(holder)
            self._set_state(holder, "cancelled")
            self._call(intent)
            self._date(intent)
            self.totals["cancelled"] += 1
        elif intent.verb == "reschedule":
            if (
                holder.expire_at_ms is not None
                and holder.intent.repetition is None
                and intent.due_ms + holder.shift_ms > holder.expire_at_ms
            ):
                return Reason.BEYOND_EXPIRY
            if intent.call is not None:
                self._call(intent)
                holder = replace(holder, order=self.id_order(holder.id))
            self._move(holder, intent.due_ms, since_ms, holder.shift_ms)
        elif self._place(0, since_ms) < holder.place_ms or holder.occurrence == 0:
            self._move(holder, since_ms, since_ms, 0)
        else:
            self.totals["changed"] += 1
        return None

    def _is_fresh(self, intent: Intent) -> bool:
        """Whether the id was delivered within the deduplication window."""
        assert intent.id is not None
        known = self.id_states.get(intent.id)
        return (
            known is not None
            and known[0] == "delivered"
            and (
                intent.first_ms - known[3] < self.deduplication_ms
                or intent.id not in self.stored_ids
            )
        )

    def _take_as_delivered(self, intent: Intent) -> Reason | None:
        """The id is taken as if a message had been delivered at the time of this record."""
        assert intent.id is not None
        if self._holder(intent.id) is not None:
            return Reason.CONFLICT
        if self._is_fresh(intent):
            return Reason.IGNORED
        at_ms = min(intent.first_ms, intent.timestamp_ms)
        self.id_states[intent.id] = ("delivered", at_ms, intent.offset, at_ms)
        self.firsts[intent.id] = intent.first_ms
        self.orders[intent.id] = None if intent.hop_ms is None else IdOrder(intent.hop_from)
        self.failures.pop(intent.id, None)
        self.stored_ids.add(intent.id)
        self.forgotten.discard(intent.id)
        self.ended = [each for each in self.ended if each != intent.id]
        self.prolonged.add(intent.id)
        return None

    def _note(self, intent: Intent) -> None:
        """A cancel that changes nothing still comes after everything of its id that was written
        before it."""
        assert intent.id is not None
        if intent.verb != "cancel" or parse_generated_id(intent.id, SHARD + 1) is not None:
            return
        if self.lookup(intent.id) is None:
            self.id_states[intent.id] = ("absent", 0, 0, 0)
            self.stored_ids.add(intent.id)
            self.ended.append(intent.id)
        elif self._date(intent):
            self.prolonged.add(intent.id)
        self._date(intent)

    def _date(self, cancel: Intent) -> bool:
        """Note the first timestamp of a cancel, and where it came to first; return whether that
        changes the state of the id."""
        assert cancel.id is not None
        before = self.id_order(cancel.id)
        self.cancels.setdefault(cancel.id, []).append((cancel.first_ms, cancel.first_shard))
        return before != self.id_order(cancel.id)

    def _is_repeated(self, intent: Intent) -> bool:
        """Whether the same call was executed lately."""
        calls = self.calls.get(intent.id or b"", [])
        is_known = intent.call is not None and token(intent.call) in calls
        return is_known and intent.verb not in ("fire-now", "settled")

    def _call(self, intent: Intent) -> None:
        """Note a call that is executed."""
        if intent.call is not None and intent.id is not None and intent.verb != "replay":
            calls = self.calls.get(intent.id, [])
            self.calls[intent.id] = [*calls[-3:], token(intent.call)]

    def _came_first(self, message_id: bytes) -> int:
        """The shard that the message of an id came to first."""
        order = self.orders.get(message_id)
        return self.shard if order is None or order.source is None else order.source

    def id_order(self, message_id: bytes) -> IdOrder | None:
        """What the state of an id shows: the latest cancel, and the latest one that came to another
        partition than that, and the last calls."""
        found = self.orders.get(message_id)
        cancels = self.cancels.get(message_id, [])
        calls = b"".join(self.calls.get(message_id, [])) or None
        source = found.source if found else None
        if not cancels:
            return found if calls is None else IdOrder(source, (), calls)
        latest = min(cancels, key=lambda cancel: (-cancel[0], cancel[1]))
        others = [cancel for cancel in cancels if cancel[1] != latest[1]]
        second = [min(others, key=lambda cancel: (-cancel[0], cancel[1]))] if others else []
        return IdOrder(source, (latest, *second), calls)

    def _is_overtaken(self, intent: Intent) -> bool:
        """Whether a message is older than what came to another partition first: than a cancel,
        which counts as later where the clocks may differ, or than a message."""
        assert intent.id is not None
        if any(
            first_ms >= intent.first_ms - SKEW_MS and shard != intent.first_shard
            for first_ms, shard in self.cancels.get(intent.id, [])
        ):
            return True
        return (
            self._came_first(intent.id) != intent.first_shard
            and self.firsts.get(intent.id, 0) > intent.first_ms + SKEW_MS
        )

    def _schedule(self, intent: Intent) -> Reason | None:
        if intent.id is not None:
            holder = self._holder(intent.id)
            known = self.id_states.get(intent.id)
            if known is not None and intent.verb != "replay" and self._is_repeated(intent):
                return Reason.REPEATED
            if known is not None and self._is_overtaken(intent):
                return Reason.TOO_LATE
            if known is not None and known[0] == "absent":
                known = None
            if intent.verb == "replace" and holder is None:
                return Reason.TOO_LATE if known else Reason.UNKNOWN
            fresh = self._is_fresh(intent)
            if intent.verb == "replay" and intent.id in self.forgotten:
                fresh = False  # its entry does not tell how it ended
            if intent.verb == "replay" and (holder is not None or fresh):
                assert known is not None
                taken_by = self.settled.get(known[1:3]) if holder is None else holder
                is_same = taken_by is not None and taken_by.intent.replayed == intent.replayed
                return Reason.IGNORED if is_same else Reason.CONFLICT
            if intent.verb == "schedule" and intent.policy == "upsert":
                refused = self._refuse_upsert(intent, holder, known)
                if refused is not None:
                    return refused
            elif (
                intent.verb == "schedule"
                and intent.policy != "replace"
                and (holder is not None or fresh)
            ):
                return Reason.IGNORED if intent.policy == "ignore" else Reason.CONFLICT
            if holder is not None:
                del self.pending[holder.offset]
                self.totals["replaced"] += 1
        shift_ms = spread_shift_ms(self.shard, intent.offset, intent.spread_ms)
        place_ms = self._place(intent.due_ms + shift_ms, min(intent.first_ms, intent.timestamp_ms))
        generated_id = b"%d-%d-%d" % (self.shard, intent.due_ms, intent.offset)
        expire_at_ms = intent.expire_at_ms
        if intent.verb == "replay" and expire_at_ms is not None and expire_at_ms <= intent.due_ms:
            expire_at_ms = None  # it is delivered although its message has expired
        message = Message(
            place_ms=place_ms,
            offset=intent.offset,
            id=generated_id if intent.id is None else intent.id,
            user_id=intent.id
            is not None,  # a replayed message carries its id, also a generated one
            moved=place_ms != intent.due_ms,
            due_ms=intent.due_ms,
            intent=intent,
            occurrence=0 if intent.first_is_left else 1,
            expire_at_ms=expire_at_ms,
        )
        self._call(intent)
        self.orders[message.id] = None if intent.hop_ms is None else IdOrder(intent.hop_from)
        message = replace(message, order=self.id_order(message.id))
        failure = self.failures.pop(message.id, None)
        is_upsert = intent.verb == "schedule" and intent.policy == "upsert"
        if is_upsert and intent.id is not None and holder is not None:
            message = self._succeeding(message, holder)
            if message.lane is not None and failure is not None:
                self.failures[message.id] = msgspec.structs.replace(failure, attempts=0)
        self.pending[intent.offset] = message
        self._set_state(message, "pending")
        self.totals["accepted"] += 1
        return None

    def _succeeding(self, message: Message, holder: Message) -> Message:
        """The message of an upsert that takes the place of a pending one."""
        rhythm, before = message.intent.repetition, holder.intent.repetition
        if self._rhythm(message) == self._rhythm(holder):
            message = replace(
                message,
                due_ms=holder.due_ms,
                planned_ms=holder.planned_ms,
                expire_at_ms=holder.expire_at_ms,
                occurrence=holder.occurrence,
            )
        elif not message.intent.is_at:
            own_ms, latest_ms = message.due_ms, holder.due_ms
            if holder.occurrence == 0:
                latest_ms = holder.planned_ms or LAST
            is_later = bool(rhythm and before and holder.occurrence) and (
                0 < holder.planned_ms < holder.due_ms
            )
            first_ms = min(own_ms, latest_ms)
            if rhythm is None:
                message = replace(message, due_ms=first_ms)
            elif message.occurrence == 0 and own_ms < latest_ms and not is_later:
                message = replace(message, planned_ms=latest_ms if latest_ms < LAST else 0)
            else:
                expire_at_ms = message.expire_at_ms
                message = replace(
                    message,
                    due_ms=latest_ms if is_later else first_ms,
                    planned_ms=first_ms if is_later and first_ms < latest_ms else 0,
                    occurrence=1,
                    expire_at_ms=expire_at_ms and expire_at_ms + first_ms - own_ms,
                )
        stays = message.due_ms == holder.due_ms and message.intent.target == holder.intent.target
        if holder.lane is not None and stays:
            return replace(message.aside(), lane=holder.lane, place_ms=holder.place_ms)
        place_ms = self._place(
            message.due_ms + message.shift_ms,
            min(message.intent.first_ms, message.intent.timestamp_ms),
        )
        return replace(message, place_ms=place_ms, moved=True)

    @staticmethod
    def _rhythm(message: Message) -> tuple[object, ...]:
        """What an upsert compares to find the same rhythm."""
        repetition, expiry_ms = message.intent.repetition, message.expire_at_ms
        if repetition is not None and expiry_ms is not None:
            expiry_ms -= message.planned_ms or message.due_ms
        return message.intent.spread_ms, repetition, expiry_ms

    def _refuse_upsert(
        self, intent: Intent, holder: Message | None, known: tuple[str, int, int, int] | None
    ) -> Reason | None:
        if holder is not None:
            planned_ms = holder.planned_ms or holder.due_ms
            again = replace(
                holder, intent=intent, expire_at_ms=intent.expire_at_ms, due_ms=intent.due_ms
            )
            again = replace(again, planned_ms=0)
            same = (intent.target, intent.value) == (holder.intent.target, holder.intent.value)
            is_same = same and self._rhythm(again) == self._rhythm(
                replace(holder, planned_ms=planned_ms)
            )
            return Reason.IGNORED if is_same and holder.intent.replayed is None else None
        if known is None or known[0] not in ("delivered", "expired", "dead"):
            return None
        failure = self.failures.get(intent.id or b"")
        if failure is not None and failure.reason == Reason.BAD_VALUE:
            return None
        ended = self.settled.get(known[1:3])
        is_late = intent.first_ms - known[3] >= self.deduplication_ms
        if ended is None or ended.intent.repetition is None or is_late:
            return None
        return Reason.CONFLICT

    def _move(self, message: Message, due_ms: int, timestamp_ms: int, shift_ms: int) -> None:
        moved = replace(
            message.aside(),
            place_ms=self._place(due_ms + shift_ms, timestamp_ms),
            due_ms=due_ms,
            moved=True,
            lane=None,
            occurrence=max(1, message.occurrence),
        )
        self.pending[message.offset] = moved
        self._set_state(moved, "pending")
        self.totals["changed"] += 1

    def _place(self, due_ms: int, timestamp_ms: int) -> int:
        return max(due_ms, timestamp_ms, self.cursor[0] + 1)

    def _set_state(self, message: Message, state: str, settled_ms: int = 0) -> None:
        self.id_states[message.id] = (state, message.place_ms, message.offset, settled_ms)
        self.firsts[message.id] = message.intent.first_ms
        # The id space holds only what a generated id does not show.
        if message.user_id or message.moved or state not in ("pending", "delivered"):
            self.stored_ids.add(message.id)
            self.forgotten.discard(message.id)
        if state != "pending":
            self.ended.append(message.id)
        if state in ("delivered", "cancelled"):
            self.failures.pop(message.id, None)

    def due(self, until: tuple[int, int]) -> list[Message]:
        """Messages pending up to a position outside lanes, in order."""
        found = (m for m in self.pending.values() if m.lane is None and m.position <= until)
        return sorted(found, key=lambda m: m.position)

    def lane(self, lane: tuple[str, int], until: tuple[int, int] = (LAST, LAST)) -> list[Message]:
        """Messages parked in a lane up to a position, in order."""
        found = (
            m
            for m in self.pending.values()
            if (m.intent.target, m.lane) == lane and m.position <= until
        )
        return sorted(found, key=lambda m: m.position)

    def apply(
        self,
        cursor: tuple[int, int],
        chosen: Mapping[int, ChosenOutcome],
        timestamp_ms: int,
        lanes: Sequence[tuple[tuple[str, int], tuple[int, int]]] = (),
    ) -> list[Message]:
        """Settle everything up to the cursor, and up to the cursor of each lane.

        Return the delivered messages that were due, in order; those that left a lane are added to
        `left`."""
        old_cursor = self.cursor
        delivered: list[Message] = []
        leaving = []
        for lane, until in lanes:
            leaving += self.lane(lane, until)
            self.lane_starts[lane] = (until[0], until[1] + 1)
        due = self.due(cursor)
        self.cursor = max(self.cursor, cursor)
        for message in self.cancelled:
            # Its entry stays, behind the cursor.
            ended = replace(message, place_ms=self.cursor[0] - 1, lane=None)
            if ended.place_ms >= 0:
                self.settled[ended.position] = ended
        for message, ends in [*((m, self.left) for m in leaving), *((m, delivered) for m in due)]:
            choice = chosen.get(message.offset, ChosenOutcome())
            self.failures.pop(message.id, None)
            if choice.reason:
                failed = choice.attempt if choice.outcome == "dead" else choice.attempt - 1
                self.failures[message.id] = Failure(
                    choice.reason, failed, timestamp_ms, choice.detail
                )
            if choice.outcome == "parked":
                self._park(message, choice.lane)
                continue
            if message.lane is not None:
                # What leaves a lane ends behind the cursor.
                message = replace(message, lane=None, place_ms=self.cursor[0] - 1)
            if choice.outcome in ("delivered", "again"):
                ends.append(message)
                self.totals["delivered"] += 1
            if choice.next_due_ms:
                if choice.outcome in ("expired", "dead"):
                    self.totals[choice.outcome] += 1
                self._reschedule(message, choice)
                continue
            del self.pending[message.offset]
            self.settled[message.position] = message
            self._set_state(message, choice.outcome)
            if choice.outcome != "delivered":
                self.totals[choice.outcome] += 1
        for message_id in self.prolonged - set(self.ended):
            if self.id_states[message_id][0] != "pending":
                self.other_rows[expiry_key(self._kept_ms(message_id), message_id)] = b""
        for message_id in self.ended:
            state, place_ms, offset, _ = self.id_states[message_id]
            # An id that was used again in the same step is pending, or ended once more: its last
            # state counts.
            if state != "pending":
                self.id_states[message_id] = (state, place_ms, offset, timestamp_ms)
                if message_id in self.stored_ids:
                    self.other_rows[expiry_key(self._kept_ms(message_id), message_id)] = b""
        lengths = Counter(
            (m.intent.target, m.lane) for m in self.pending.values() if m.lane is not None
        )
        self.lane_starts = {
            lane: start for lane, start in self.lane_starts.items() if lengths[lane]
        }
        if timestamp_ms // MINUTE_MS > self.history_minute:
            self.history_minute = timestamp_ms // MINUTE_MS
            self.other_rows[cursor_history_key(self.history_minute)] = entry_key(*old_cursor)
        return delivered

    def _kept_ms(self, message_id: bytes) -> int:
        """The time from which a settled id is kept: that of its end, or of a cancel that came more
        than a moment later."""
        settled_ms = self.id_states[message_id][3]
        last_ms = max((first_ms for first_ms, _ in self.cancels.get(message_id, [])), default=0)
        return last_ms if last_ms > settled_ms + SKEW_MS else settled_ms

    def _park(self, message: Message, partition: int) -> None:
        lane = (message.intent.target, partition)
        parked = replace(message.aside(), lane=partition, moved=True)
        self.pending[message.offset] = parked
        self.lane_starts[lane] = min(self.lane_starts.get(lane, message.position), message.position)
        self._set_state(parked, "pending")
        self.totals["parked"] += 1

    def _reschedule(self, message: Message, choice: ChosenOutcome) -> None:
        place_ms = choice.next_due_ms
        if choice.outcome in ("retry", "deferred"):
            message = message.aside()
        else:
            assert message.intent.repetition is not None
            stands_in = choice.outcome == "skipped" and choice.occurrence == message.occurrence
            later_ms = choice.next_due_ms - (message.planned_ms or message.due_ms)
            message = replace(
                message,
                due_ms=choice.next_due_ms,
                planned_ms=choice.next_due_ms if stands_in else 0,
                expire_at_ms=None
                if message.expire_at_ms is None
                else message.expire_at_ms + later_ms,
            )
            place_ms += message.shift_ms
        rescheduled = replace(
            message,
            place_ms=max(place_ms, self.cursor[0] + 1),
            moved=True,
            occurrence=choice.occurrence,
            attempt=choice.attempt if choice.outcome in ("retry", "deferred") else 1,
        )
        self.pending[message.offset] = rescheduled
        self._set_state(rescheduled, "pending")
        self.totals["carried"] += 1

    # The store

    def _id_row(self, message_id: bytes) -> bytes:
        name, place_ms, offset, settled_ms = self.id_states[message_id]
        first_ms, order = self.firsts.get(message_id, 0), self.id_order(message_id)
        failure = self.failures.get(message_id)
        return pack_id_state(
            IdState(STATES[name], place_ms, offset, settled_ms, failure, first_ms, order)
        )

    def rows(
        self,
        *,
        applied: int,
        progress_ms: int,
        role_epoch: int,
        log_epoch: int,
        instance: str,
        node: str,
    ) -> dict[bytes, bytes]:
        """Every row of the store, the state among them."""
        rows = dict(self.other_rows)
        lengths: Counter[tuple[str, int]] = Counter()
        for message in [*self.pending.values(), *self.settled.values()]:
            if message.lane is None:
                rows[entry_key(*message.position)] = message.packed()
            else:
                lane = (message.intent.target, message.lane)
                rows[lane_key(lane, *message.position)] = message.packed()
                rows[parked_key(*message.position)] = pack_lane(lane)
                lengths[lane] += 1
        for lane, length in lengths.items():
            rows[lane_state_key(lane)] = pack_lane_state(LaneState(length, *self.lane_starts[lane]))
        for destination, queue in self.queues.items():
            rows |= {held_key(destination, offset): row for offset, row in queue}
            size = sum(len(row) for _, row in queue)
            rows[queue_state_key(destination)] = pack_queue_state(
                QueueState(len(queue), size, self.queue_starts[destination])
            )
        for message_id in self.stored_ids:
            rows[id_key(message_id)] = self._id_row(message_id)
        for minute, count in Counter(
            m.place_ms // MINUTE_MS for m in self.pending.values()
        ).items():
            rows[count_key(minute)] = count.to_bytes(8, "big")
        state = State(
            applied=applied,
            pull_offset=self.pull_offset,
            cursor_due_ms=self.cursor[0],
            cursor_offset=self.cursor[1],
            watermark_ms=self.watermark_ms,
            pending=len(self.pending),
            role_epoch=role_epoch,
            log_epoch=log_epoch,
            instance=instance,
            node=node,
            progress_ms=progress_ms,
            history_minute=self.history_minute,
            totals=Totals(**self.totals),
            parked=sum(message.lane is not None for message in self.pending.values()),
            horizon_ms=self.horizon_ms,
            held=sum(len(queue) for queue in self.queues.values()),
            held_bytes=sum(len(row) for queue in self.queues.values() for _, row in queue),
            held_forwards=sum(len(queue) for to, queue in self.queues.items() if to != TO_REJECTED),
        )
        return rows | {STATE_KEY: pack_state(state)}
