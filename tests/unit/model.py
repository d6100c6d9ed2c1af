"""A naive shard to compare the real one with: dictionaries and a sort, written from the design.

It decides nothing about time: like a replica it is told how far the cursor went, and it knows of no wheel.
What it shares with the real one is only the layout of the bytes, so that whole stores can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from chronos.core.codec import IdState, State, Totals, pack_entry, pack_id_state, pack_state
from chronos.core.keys import STATE_KEY, count_key, cursor_history_key, entry_key, expiry_key, id_key
from chronos.core.message import Entry, Reason

MINUTE_MS = 60_000
LAST = 2**64 - 1
STATES = {"pending": 1, "delivered": 2, "cancelled": 3, "expired": 4, "dead": 5}


class Rows:
    """Rows in memory. A scan gives up to `chunk` of them, and never more bytes than it was asked for."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None, chunk: int = 1_000_000) -> None:
        self.rows = dict(rows or {})
        self.chunk = chunk

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes, count_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in sorted(key for key in self.rows if start <= key < stop)[: min(count_max, self.chunk)]:
            size += len(self.rows[key])
            if found and size > bytes_max:
                break
            found.append((key, self.rows[key]))
        return found

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        for key in deletes:
            self.rows.pop(key, None)
        self.rows.update(puts)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a record of the delay topic asks for, before anybody wrote it down as headers."""

    offset: int
    timestamp_ms: int
    verb: str
    id: bytes | None = None
    due_ms: int = 0
    expire_at_ms: int | None = None
    policy: str = "reject"
    target: str = "orders"
    value: bytes | None = b"payload"
    rejection: Reason | None = None
    """What is wrong with it whatever the shard holds."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What a master decides about a selected message."""

    outcome: str = "delivered"
    next_due_ms: int = 0
    occurrence: int = 1
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message and where it stands."""

    place_ms: int
    offset: int
    id: bytes
    user_id: bool
    moved: bool
    """It does not stand, or once did not stand, at the time it was asked for."""
    due_ms: int
    ask: Ask
    occurrence: int = 1
    attempt: int = 1

    @property
    def position(self) -> tuple[int, int]:
        return self.place_ms, self.offset

    def packed(self) -> bytes:
        ask = self.ask
        return pack_entry(
            Entry(
                id=self.id if self.user_id or self.moved else None,
                due_ms=self.due_ms,
                target=ask.target,
                key=None,
                headers={},
                value=ask.value,
                timestamp_ms=ask.timestamp_ms,
                expire_at_ms=ask.expire_at_ms,
                occurrence=self.occurrence,
                attempt=self.attempt,
            )
        )


@dataclass
class Model:
    """The shard as the design tells it."""

    shard: int
    deduplication_ms: int
    cursor: tuple[int, int] = (0, LAST)
    pull_offset: int = 0
    watermark_ms: int = 0
    history_minute: int = 0
    pending: dict[int, Message] = field(default_factory=dict)
    settled: dict[tuple[int, int], Message] = field(default_factory=dict)
    said: dict[bytes, tuple[str, int, int, int]] = field(default_factory=dict)
    """Id -> state, place, offset and time of settling, for everything that ever was in the id space."""
    stored_words: set[bytes] = field(default_factory=set)
    other_rows: dict[bytes, bytes] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)

    # --- what an id means

    def lookup(self, message_id: bytes) -> str | None:
        """The state of the message with this id, None when there is none."""
        said = self.said.get(message_id)
        return said[0] if said else None

    def _holder(self, message_id: bytes) -> Message | None:
        return next((message for message in self.pending.values() if message.id == message_id), None)

    # --- one step

    def stage(self, asks: Sequence[Ask]) -> list[tuple[int, Reason]]:
        """Execute the records in order; who is refused, and why."""
        refused = []
        self.ended: list[bytes] = []
        for ask in asks:
            self.pull_offset = ask.offset + 1
            self.watermark_ms = max(self.watermark_ms, ask.timestamp_ms)
            reason = ask.rejection or self._execute(ask)
            if reason is not None:
                refused.append((ask.offset, reason))
                self.totals["ignored" if reason is Reason.IGNORED else "rejected"] += 1
        return refused

    def _execute(self, ask: Ask) -> Reason | None:
        if ask.verb == "probe":
            self.totals["probes"] += 1
            return None
        if ask.verb in ("schedule", "replace"):
            return self._schedule(ask)
        assert ask.id is not None
        state = self.lookup(ask.id)
        if state is None:
            return Reason.UNKNOWN
        holder = self._holder(ask.id)
        if holder is None:
            return Reason.IGNORED if (ask.verb, state) == ("cancel", "cancelled") else Reason.TOO_LATE
        if ask.verb == "cancel":
            del self.pending[holder.offset]
            self._say(holder, "cancelled")
            self.totals["cancelled"] += 1
        elif ask.verb == "reschedule":
            self._move(holder, ask.due_ms, ask.timestamp_ms)
        elif self._place(0, ask.timestamp_ms) < holder.place_ms:
            self._move(holder, ask.timestamp_ms, ask.timestamp_ms)
        else:
            self.totals["changed"] += 1
        return None

    def _schedule(self, ask: Ask) -> Reason | None:
        if ask.id is not None:
            holder = self._holder(ask.id)
            said = self.said.get(ask.id)
            if ask.verb == "replace" and holder is None:
                return Reason.TOO_LATE if said else Reason.UNKNOWN
            if ask.verb == "schedule" and ask.policy != "replace":
                fresh = (
                    said is not None and said[0] == "delivered" and ask.timestamp_ms - said[3] < self.deduplication_ms
                )
                if holder is not None or fresh:
                    return Reason.IGNORED if ask.policy == "ignore" else Reason.CONFLICT
            if holder is not None:
                del self.pending[holder.offset]
                self.totals["replaced"] += 1
        place_ms = self._place(ask.due_ms, ask.timestamp_ms)
        generated_id = b"%d-%d-%d" % (self.shard, ask.due_ms, ask.offset)
        message = Message(
            place_ms=place_ms,
            offset=ask.offset,
            id=generated_id if ask.id is None else ask.id,
            user_id=ask.id is not None,
            moved=place_ms != ask.due_ms,
            due_ms=ask.due_ms,
            ask=ask,
        )
        self.pending[ask.offset] = message
        self._say(message, "pending")
        self.totals["accepted"] += 1
        return None

    def _move(self, message: Message, due_ms: int, timestamp_ms: int) -> None:
        moved = replace(message, place_ms=self._place(due_ms, timestamp_ms), due_ms=due_ms, moved=True)
        self.pending[message.offset] = moved
        self._say(moved, "pending")
        self.totals["changed"] += 1

    def _place(self, due_ms: int, timestamp_ms: int) -> int:
        return max(due_ms, timestamp_ms, self.cursor[0] + 1)

    def _say(self, message: Message, state: str, settled_ms: int = 0) -> None:
        self.said[message.id] = (state, message.place_ms, message.offset, settled_ms)
        # The id space holds what an address alone does not tell.
        if message.user_id or message.moved or state not in ("pending", "delivered"):
            self.stored_words.add(message.id)
        if state != "pending":
            self.ended.append(message.id)

    def due(self, until: tuple[int, int]) -> list[Message]:
        """What is pending up to a position, in order."""
        return sorted((m for m in self.pending.values() if m.position <= until), key=lambda m: m.position)

    def apply(self, cursor: tuple[int, int], fates: Mapping[int, Fate], timestamp_ms: int) -> list[Message]:
        """Settle everything up to the cursor; what was delivered, in order."""
        old_cursor, delivered = self.cursor, []
        due = self.due(cursor)
        self.cursor = max(self.cursor, cursor)
        for message in due:
            fate = fates.get(message.offset, Fate())
            if fate.outcome in ("delivered", "again"):
                delivered.append(message)
                self.totals["delivered"] += 1
            if fate.outcome in ("again", "retry", "deferred", "skipped"):
                self._carry_on(message, fate)
                continue
            del self.pending[message.offset]
            self.settled[message.position] = message
            self._say(message, fate.outcome)
            if fate.outcome != "delivered":
                self.totals[fate.outcome] += 1
        for message_id in self.ended:
            state, place_ms, offset, _ = self.said[message_id]
            # An id that was taken again in the same step is pending, or ended once more: the last word holds.
            if state != "pending":
                self.said[message_id] = (state, place_ms, offset, timestamp_ms)
                if message_id in self.stored_words:
                    self.other_rows[expiry_key(timestamp_ms, message_id)] = b""
        if timestamp_ms // MINUTE_MS > self.history_minute:
            self.history_minute = timestamp_ms // MINUTE_MS
            self.other_rows[cursor_history_key(self.history_minute)] = entry_key(*old_cursor)
        return delivered

    def _carry_on(self, message: Message, fate: Fate) -> None:
        repeated = fate.outcome in ("again", "skipped")
        going_on = replace(
            message,
            place_ms=max(fate.next_due_ms, self.cursor[0] + 1),
            due_ms=fate.next_due_ms if repeated else message.due_ms,
            moved=True,
            occurrence=fate.occurrence,
            attempt=fate.attempt,
        )
        self.pending[message.offset] = going_on
        self._say(going_on, "pending")
        self.totals["carried"] += 1

    # --- the store it would have

    def rows(
        self, *, applied: int, progress_ms: int, role_epoch: int, log_epoch: int, instance: str, node: str
    ) -> dict[bytes, bytes]:
        """Every row of the store, the state among them."""
        rows = dict(self.other_rows)
        for message in [*self.pending.values(), *self.settled.values()]:
            rows[entry_key(*message.position)] = message.packed()
        for message_id in self.stored_words:
            state, place_ms, offset, settled_ms = self.said[message_id]
            rows[id_key(message_id)] = pack_id_state(IdState(STATES[state], place_ms, offset, settled_ms))
        for minute, count in Counter(m.place_ms // MINUTE_MS for m in self.pending.values()).items():
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
        )
        return rows | {STATE_KEY: pack_state(state)}
