"""The first move of a step: the changes that a batch of parsed delay records asks for.

A master decides which records are rejected; a replica executes exactly those that the progress
record does not list as refused (law 9). Nothing outside the `Staged` that is returned changes.
Keeps its part of laws 3 and 6: no record is staged twice, and a pending message is found until it
has left."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.core.keys import Lane, entry_key, generated_id, lane_key, parse_generated_id
from chronos.core.message import (
    EXPIRE_AT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    REPLAYED,
    Action,
    Command,
    ConditionalSchedule,
    Entry,
    IdOrder,
    Misplaced,
    OnConflict,
    Reason,
    Record,
    Rejection,
    Verb,
    entry_id,
)
from chronos.core.series import (
    aside,
    is_unchanged,
    keeps_wall_clock,
    moved,
    repetition_of,
    shift_ms,
    upserted,
)
from chronos.core.shard.codec import (
    ABSENT,
    CANCELLED,
    DEAD,
    DELIVERED,
    EXPIRED,
    PENDING,
    IdState,
    State,
    pack_entry,
    unpack_entry,
)
from chronos.core.shard.lanes import lane_of
from chronos.core.shard.letters import UNCOPIED
from chronos.core.shard.order import (
    ahead_ms,
    first_shard,
    is_forgotten,
    is_repeated,
    overtaken,
    precedes,
    succeeding,
    succeeding_order,
    with_call,
    with_cancel,
)
from chronos.core.shard.rules import Rules
from chronos.core.shard.step import (
    CHANGED,
    CREATED,
    UNCHANGED,
    Parsed,
    Staged,
    StoreView,
    placed_ms,
)
from chronos.errors import LogMismatch

CHANGED_NOTHING = frozenset({Reason.UNKNOWN, Reason.TOO_LATE, Reason.IGNORED})
"""Reasons of refused cancels that count for the order of the records of their id all the same."""


REPEATED = Rejection(Reason.REPEATED, "the same call was executed before")


def stage(
    parsed: Parsed,
    rules: Rules,
    state: State,
    view: StoreView,
    *,
    horizon_ms: int = 0,
    replayed: Mapping[int, int] | None = None,
) -> Staged:
    """Return the changes that the parsed records ask for, in the state before them.

    `horizon_ms`: `Progress.horizon_ms` of the step. `replayed`: offset -> reason of the refused
    records of a progress record; None if this node is the master and decides. Raises LogMismatch if
    a record that the master executed cannot be executed."""
    return _Staging(parsed, rules, state, view, horizon_ms, replayed).run()


def stage_nothing(state: State, horizon_ms: int) -> Staged:
    """Return the changes of a step that pulls nothing."""
    return Staged(
        pull_offset=state.pull_offset, watermark_ms=state.watermark_ms, horizon_ms=horizon_ms
    )


def stage_unreadable(ranges: Sequence[tuple[int, int]], state: State, horizon_ms: int) -> Staged:
    """Return the changes of a step over ranges of offsets, first and last, that cannot be read:
    each is refused as a whole."""
    staged = stage_nothing(state, horizon_ms)
    for first, last in ranges:
        assert staged.pull_offset <= first <= last, "a range of offsets is staged twice"
        staged.letters.refuse(first, Reason.UNREADABLE)
        staged.unreadable.append((first, last))
        staged.pull_offset = last + 1
    return staged


class _Staging:
    """One call of `stage`."""

    def __init__(
        self,
        parsed: Parsed,
        rules: Rules,
        state: State,
        view: StoreView,
        horizon_ms: int,
        replayed: Mapping[int, int] | None,
    ) -> None:
        self.parsed = parsed
        self.rules = rules
        self.state = state
        self.view = view
        self.replayed = replayed
        self.staged = stage_nothing(state, horizon_ms)
        self.known = parsed.known
        """Id -> its state before this batch, unless it is forgotten."""
        if horizon_ms:
            self.known = {
                message_id: known
                for message_id, known in parsed.known.items()
                if not is_forgotten(known, horizon_ms)
            }
        self.addressed: dict[bytes, IdState] = {}
        """Generated id that an action names -> the state that the entry at its position gives it.
        Kept apart from `known`: it does not say how a message ended that is forgotten, and a replay
        must not take that one as delivered."""

    def run(self) -> Staged:
        """Execute or refuse every record, in order."""
        parsed, replayed, staged = self.parsed, self.replayed, self.staged
        self.addressed = self._look_up_generated_ids(parsed.action_ids - self.known.keys())
        known, floor_ms = self.known, self.state.cursor_due_ms + 1
        placed, id_states = staged.placed, staged.id_states
        for record, command, place in zip(
            parsed.records, parsed.commands, parsed.places, strict=True
        ):
            offset = record.offset
            if record.timestamp_ms > staged.watermark_ms and not record.create_time:
                staged.watermark_ms = record.timestamp_ms
            if replayed is not None and offset in replayed:
                staged.letters.refuse(offset, replayed[offset])
                if replayed[offset] in CHANGED_NOTHING:
                    self._note_cancel(record, command, replayed[offset])
                    self._note_upsert(record, command, replayed[offset])
                continue
            if place is not None:
                message_id, due_ms = command.id, place[0]
                # Most records have no id, or a new one: there is no conflict and nothing to
                # replace.
                if message_id is None or (message_id not in id_states and message_id not in known):
                    if due_ms < floor_ms or due_ms < record.timestamp_ms:
                        due_ms = self._place(command, record)  # type: ignore[arg-type]
                    else:
                        placed[offset] = place
                    if message_id is not None:
                        if command.order is not None:  # type: ignore[union-attr]
                            self._note_clock(record)
                        id_states[message_id] = IdState(
                            PENDING,
                            due_ms,
                            offset,
                            0,
                            None,
                            command.timestamp_ms,  # type: ignore[union-attr]
                            command.order,  # type: ignore[union-attr]
                        )
                    staged.accepted += 1
                    continue
            if type(command) is Misplaced and replayed is None:
                staged.letters.refuse(offset, Reason.FORWARDED)
                staged.letters.forwards.append((record, command.partition))
                continue
            if isinstance(command, Rejection):
                self._refuse(record, REPEATED if self._is_repeated(command) else command)
                continue
            rejection = self._execute(record, command)
            if rejection is not None:
                self._refuse(record, rejection)
                if rejection.reason in CHANGED_NOTHING:
                    self._note_cancel(record, command, rejection.reason)
                    self._note_upsert(record, command, rejection.reason)
        if parsed.records:
            assert parsed.records[0].offset >= self.state.pull_offset, "a record is staged twice"
            staged.pull_offset = parsed.records[-1].offset + 1
        return staged

    def _is_repeated(self, rejection: Rejection) -> bool:
        """Return whether the call of a record that cannot be parsed was executed before."""
        id_state = None if rejection.id is None else self._id_state(rejection.id)
        return id_state is not None and is_repeated(id_state, rejection.call)

    def _refuse(self, record: Record, rejection: Rejection) -> None:
        if self.replayed is not None:
            raise LogMismatch(
                f"replaying shard {self.rules.shard}: the record at offset {record.offset} cannot "
                f"be executed ({rejection.reason.label}), but the master executed it: is this the "
                "same topic?"
            )
        self.staged.letters.refuse(record.offset, rejection.reason)
        if rejection.reason not in UNCOPIED:
            self.staged.letters.rejections.append((record, rejection))

    def _look_up_generated_ids(self, message_ids: frozenset[bytes]) -> dict[bytes, IdState]:
        """Return the states of generated ids without an id state, derived from the entries at the
        positions in the ids."""
        if not message_ids:
            return {}
        # A key is never a generated id: only an action can name one.
        generated = [
            (message_id, position)
            for message_id in message_ids
            if (position := parse_generated_id(message_id, self.rules.shards)) is not None
        ]
        rows = self.view.get([entry_key(due_ms, offset) for _, (_, due_ms, offset) in generated])
        id_states = {}
        for (message_id, (_, due_ms, offset)), data in zip(generated, rows, strict=True):
            # An entry with an id was moved here or has a key: the generated id of this position is
            # not its id.
            if data is not None and (entry := unpack_entry(data)).id is None:
                state = DELIVERED if (due_ms, offset) <= self.state.cursor else PENDING
                id_states[message_id] = IdState(
                    state, due_ms, offset, 0, None, entry.timestamp_ms, entry.order
                )
        return id_states

    def _note_clock(self, record: Record) -> None:
        """Note a hop whose first timestamp is further ahead than the clocks of two brokers may
        differ."""
        hop_ms = ahead_ms(record)
        if hop_ms > CLOCK_TOLERANCE_MS and self.replayed is None:
            self.staged.ahead.append((first_shard(record, self.rules.shard), hop_ms))

    def _note_cancel(self, record: Record, command: Command, reason: int) -> None:
        """Keep the first timestamp of a cancel that changed nothing: an older record of its id may
        still be forwarded."""
        if type(command) is not Action or command.verb is not Verb.CANCEL:
            return
        if parse_generated_id(command.id, self.rules.shards) is not None:
            return  # no record but that of the message itself can give it its id
        id_state = self.staged.id_states.get(command.id) or self.known.get(command.id)
        if reason == Reason.UNKNOWN:
            before = (
                id_state
                if id_state is not None and id_state.state == ABSENT
                else IdState(ABSENT, 0, 0)
            )
            self.staged.id_states[command.id] = replace(
                self._cancelled(before, record, command), settled_ms=0
            )
        elif id_state is not None and id_state.state != PENDING:
            noted = self._cancelled(id_state, record, command)
            if noted != id_state:
                self.staged.id_states[command.id] = noted

    def _note_upsert(self, record: Record, command: Command, reason: int) -> None:
        """Keep that an upsert found the same message pending."""
        if (
            type(command) is ConditionalSchedule
            and command.on_conflict is OnConflict.UPSERT
            and reason == Reason.IGNORED
        ):
            self.staged.upserts[record.offset] = UNCHANGED

    def _cancelled(self, id_state: IdState, record: Record, cancel: Action) -> IdState:
        """Return the state that remembers a cancel, as far as it matters for the order of the
        records of its id."""
        return with_cancel(
            id_state, _first_ms(record, cancel), first_shard(record, self.rules.shard)
        )

    def _execute(self, record: Record, command: Command) -> Rejection | None:
        """Execute a command that concerns an id; return the rejection if it cannot be executed."""
        if type(command) is Entry:
            command = ConditionalSchedule(command, Verb.SCHEDULE, OnConflict.REJECT)
        if type(command) is ConditionalSchedule:
            return self._schedule(record, command)
        assert type(command) is Action
        if command.verb is Verb.PROBE:
            self.staged.probes += 1
            return None
        if command.first_ms is not None:
            self._note_clock(record)
        id_state = self._id_state(command.id)
        if command.verb is Verb.SETTLED:
            return self._take_as_delivered(record, command, id_state)
        if id_state is None or id_state.state == ABSENT:
            return Rejection(Reason.UNKNOWN, "no message has this id")
        if self.replayed is None and is_repeated(id_state, command.call):
            return REPEATED
        if id_state.state != PENDING:
            if command.verb is Verb.CANCEL and id_state.state == CANCELLED:
                return Rejection(Reason.IGNORED, "the message is cancelled already")
            return Rejection(Reason.TOO_LATE, "the message is no longer pending")
        if self.replayed is None and self._precedes(record, command, id_state):
            return Rejection(
                Reason.TOO_LATE, "the message was scheduled after this record was written"
            )
        if command.verb is Verb.CANCEL:
            self.staged.cancels[id_state.offset] = self._staged_entry(id_state.offset)
            self._remove(id_state)
            ended = IdState(
                CANCELLED,
                id_state.due_ms,
                id_state.offset,
                0,
                None,
                id_state.first_ms,
                id_state.order,
            )
            ended = replace(ended, order=with_call(ended.order, command.call))
            self.staged.id_states[command.id] = self._cancelled(ended, record, command)
            self.staged.cancelled += 1
            return None
        return self._move(id_state, record, command)

    def _take_as_delivered(
        self, record: Record, action: Action, id_state: IdState | None
    ) -> Rejection | None:
        """Execute a `settled`: the id counts as that of a message that was scheduled by this record
        and delivered at its time. No entry belongs to it, and nothing is counted."""
        first_ms = _first_ms(record, action)
        if id_state is not None:
            if id_state.state == PENDING:
                return Rejection(Reason.CONFLICT, "a message with this id is pending")
            is_delivered = id_state.state == DELIVERED
            if self.replayed is None and is_delivered and self._ended_lately(id_state, first_ms):
                return Rejection(
                    Reason.IGNORED,
                    "a message with this id was delivered within the deduplication window",
                )
        own = None
        if action.first_ms is not None:
            own = IdOrder(first_shard(record, self.rules.shard))
        at_ms = min(first_ms, record.timestamp_ms)
        order = succeeding_order(own, id_state)
        self.staged.id_states[action.id] = IdState(
            DELIVERED, at_ms, record.offset, at_ms, None, first_ms, order
        )
        return None

    def _precedes(self, record: Record, action: Action, id_state: IdState) -> bool:
        """Return whether an action was written before the pending message of its id that arrived
        before it."""
        first_ms, own = _first_ms(record, action), self.rules.shard
        return precedes(first_ms, first_shard(record, own), id_state, own)

    def _id_state(self, message_id: bytes) -> IdState | None:
        """Return the state of the id that an action, or a rejected call, names, as of the records
        before it in this batch."""
        id_state = (
            self.staged.id_states.get(message_id)
            or self.known.get(message_id)
            or self.addressed.get(message_id)
        )
        parsed = parse_generated_id(message_id, self.rules.shards) if id_state is None else None
        if parsed is None:
            return id_state
        _, due_ms, offset = parsed
        place_ms, data = self.staged.placed.get(offset, (None, b""))
        if place_ms != due_ms:
            return None
        entry = unpack_entry(data)
        if entry_id(entry, self.rules.shard, offset) != message_id:
            return None
        return IdState(PENDING, due_ms, offset, 0, None, entry.timestamp_ms, entry.order)

    def _schedule(self, record: Record, command: ConditionalSchedule) -> Rejection | None:
        """Execute a `schedule`, `replace` or `replay`; most of those without an id are placed by
        `run`."""
        message_id = command.entry.id
        if message_id is None:
            self._place(command.entry, record)
            self.staged.accepted += 1
            return None
        if command.entry.order is not None:
            self._note_clock(record)
        id_state = self.staged.id_states.get(message_id) or self.known.get(message_id)
        if (
            id_state is None
            and command.verb is Verb.REPLAY
            and message_id not in self.parsed.known  # which is forgotten: it was not delivered
        ):
            id_state = self._id_state(message_id) or self._look_up_generated_ids(
                frozenset({message_id})
            ).get(message_id)
        if self.replayed is None:
            if id_state is not None and is_repeated(id_state, command.call):
                return REPEATED
            rejection = self._overtaken(id_state, record, command)
            if rejection is None:
                rejection = self._check_conflict(id_state, record, command)
            if rejection is not None:
                return rejection
        entry = succeeding(command.entry, id_state)
        if command.call is not None:
            entry = replace(entry, order=with_call(entry.order, command.call))
        lane, failure = None, None
        is_upsert = command.on_conflict is OnConflict.UPSERT
        if is_upsert:
            self.staged.upserts[record.offset] = CREATED
        if id_state is not None and id_state.state == PENDING:
            if is_upsert:
                self.staged.upserts[record.offset] = CHANGED
                pending = self._pending_entry(id_state)
                entry = upserted(entry, pending, is_at=command.is_at)
                if (
                    entry.due_ms == pending.due_ms
                    and entry.target == pending.target
                    and entry.key == pending.key
                ):
                    lane = self._lane(id_state)
            self._remove(id_state)
            self.staged.replaced += 1
        if lane is None:
            due_ms = self._place(entry, record)
        else:
            assert id_state is not None
            due_ms, failure = id_state.due_ms, id_state.failure
            if failure is not None:
                failure = replace(failure, attempts=0)
            parked = pack_entry(replace(entry, options=aside(entry)))
            self.staged.relaned[record.offset] = (due_ms, lane, parked)
        self.staged.id_states[message_id] = IdState(
            PENDING, due_ms, record.offset, 0, failure, entry.timestamp_ms, entry.order
        )
        self.staged.accepted += 1
        return None

    def _overtaken(
        self, id_state: IdState | None, record: Record, command: ConditionalSchedule
    ) -> Rejection | None:
        """Return the rejection of a message if a record of its id that counts as later came before
        it."""
        if id_state is None:
            return None
        first_ms, own = command.entry.timestamp_ms, self.rules.shard
        return overtaken(id_state, first_ms, first_shard(record, own), own)

    def _check_conflict(
        self, id_state: IdState | None, record: Record, command: ConditionalSchedule
    ) -> Rejection | None:
        if id_state is not None and id_state.state == ABSENT:
            id_state = None
        if command.verb is Verb.REPLACE:
            if id_state is None:
                return Rejection(
                    Reason.UNKNOWN, "no message has this id: there is nothing to replace"
                )
            if id_state.state != PENDING:
                return Rejection(Reason.TOO_LATE, "the message is no longer pending")
            return None
        if command.on_conflict is OnConflict.UPSERT:
            return None if id_state is None else self._check_upsert(id_state, command)
        if id_state is None or command.on_conflict is OnConflict.REPLACE:
            return None
        pending = id_state.state == PENDING
        delivered = id_state.state == DELIVERED and self._ended_lately(
            id_state, command.entry.timestamp_ms
        )
        if pending or delivered:
            why = "is pending" if pending else "was delivered within the deduplication window"
            is_ignored = command.on_conflict is OnConflict.IGNORE or self._is_replay_of_same(
                id_state, command
            )
            reason = Reason.IGNORED if is_ignored else Reason.CONFLICT
            return Rejection(reason, f"a message with this id {why}")
        return None

    def _ended_lately(self, id_state: IdState, first_ms: int) -> bool:
        """Return whether a settled message ended within the deduplication window of a record with
        this first timestamp (epoch ms)."""
        window_ms = first_ms - self.rules.deduplication_ms
        # Without an id state the time of the delivery is not known: the message itself is still
        # kept, so it is not long ago.
        return not 0 < id_state.settled_ms <= window_ms

    def _check_upsert(self, id_state: IdState, command: ConditionalSchedule) -> Rejection | None:
        """Return the rejection of an upsert whose message is pending already, or is a series that
        came to its end lately."""
        if id_state.state == PENDING:
            if is_unchanged(command.entry, self._pending_entry(id_state)):
                return Rejection(Reason.IGNORED, "the same message with this id is pending")
            return None
        if id_state.state not in (DELIVERED, EXPIRED, DEAD):
            return None
        failure = id_state.failure
        is_broken = failure is not None and failure.reason == Reason.BAD_VALUE
        if is_broken or not self._ended_lately(id_state, command.entry.timestamp_ms):
            return None
        (data,) = self.view.get([entry_key(id_state.due_ms, id_state.offset)])
        repetition = None if data is None else repetition_of(unpack_entry(data))
        if repetition is None:
            return None
        how = REPEAT_TIMES if repetition.times else REPEAT_UNTIL
        return Rejection(
            Reason.CONFLICT,
            f"the series with this id ended by its {how} within the deduplication window: replace "
            "begins it again",
        )

    def _is_replay_of_same(self, id_state: IdState, command: ConditionalSchedule) -> bool:
        """Return whether the message that has the id is a replay of the dead letter that the
        command replays too."""
        if command.verb is not Verb.REPLAY:
            return False
        data = self._staged_entry(id_state.offset)
        if data is None:
            key = (
                self._stored_key(id_state)
                if id_state.state == PENDING
                else entry_key(id_state.due_ms, id_state.offset)
            )
            (data,) = self.view.get([key])
        return data is not None and _replayed(unpack_entry(data)) == _replayed(command.entry)

    def _move(self, id_state: IdState, record: Record, action: Action) -> Rejection | None:
        """Execute a `reschedule` or `fire-now`: the same message at another time."""
        entry = self._pending_entry(id_state)
        is_fired, first_ms = (
            action.due_ms is None,
            min(_first_ms(record, action), record.timestamp_ms),
        )
        is_next = id_state.due_ms <= max(first_ms, self.state.cursor_due_ms + 1)
        if is_fired and is_next and entry.occurrence:
            self.staged.changed += 1
            self.staged.zones.fired.add(id_state.offset)
            return None
        shift = 0 if is_fired else shift_ms(entry, self.rules.shard, id_state.offset)
        if self.replayed is None and _is_beyond_expiry(action, entry, shift):
            return Rejection(
                Reason.BEYOND_EXPIRY,
                f"the new time is after the message's {EXPIRE_AT}, {entry.expire_at_ms}",
            )
        message_id = entry_id(entry, self.rules.shard, id_state.offset)
        due_ms = first_ms if action.due_ms is None else action.due_ms
        self.staged.changed += 1
        self._remove(id_state)
        if action.call is not None:
            entry = replace(entry, order=with_call(entry.order, action.call))
        place_ms = self._place_at(
            moved(entry, message_id, due_ms), id_state.offset, first_ms, spreads=not is_fired
        )
        self.staged.id_states[message_id] = replace(
            id_state,
            due_ms=place_ms,
            first_ms=entry.timestamp_ms,
            order=entry.order if action.call is not None else id_state.order,
        )
        return None

    def _place(self, entry: Entry, record: Record) -> int:
        """Stage the entry of a record by the placement rule."""
        # A first timestamp may be ahead of the record's own, by the difference of two clocks: a
        # late message waits for neither.
        return self._place_at(entry, record.offset, min(entry.timestamp_ms, record.timestamp_ms))

    def _place_at(self, entry: Entry, offset: int, first_ms: int, *, spreads: bool = True) -> int:
        """Stage an entry by the placement rule; one that leaves the position in its generated id
        carries that id."""
        shift = shift_ms(entry, self.rules.shard, offset) if spreads else 0
        place_ms = placed_ms(entry.due_ms + shift, first_ms, self.state.cursor_due_ms)
        if entry.id is None and place_ms != entry.due_ms:
            entry = replace(entry, id=generated_id(self.rules.shard, entry.due_ms, offset))
            self.staged.id_states[entry.id] = IdState(  # type: ignore[index]
                PENDING, place_ms, offset, 0, None, entry.timestamp_ms, entry.order
            )
        self.staged.placed[offset] = (place_ms, pack_entry(entry))
        if entry.options is not None:
            self.staged.zones.dated.discard(offset)
            if keeps_wall_clock(entry):
                self.staged.zones.dated.add(offset)
        return place_ms

    def _remove(self, id_state: IdState) -> None:
        """Take a pending message out of this batch or out of the store."""
        due_ms, offset = id_state.due_ms, id_state.offset
        if (
            self.staged.placed.pop(offset, None) is None
            and self.staged.relaned.pop(offset, None) is None
        ):
            lane = self._lane(id_state)
            if lane is None:
                self.staged.removed[offset] = due_ms
            else:
                self.staged.unparked[offset] = (due_ms, lane)

    def _staged_entry(self, offset: int) -> bytes | None:
        """Return the packed entry of a message that a record of this batch brought or moved."""
        place = self.staged.placed.get(offset)
        if place is not None:
            return place[1]
        parked = self.staged.relaned.get(offset)
        return None if parked is None else parked[2]

    def _pending_entry(self, id_state: IdState) -> Entry:
        """Return the entry of a pending message."""
        data = self._staged_entry(id_state.offset)
        if data is None:
            (data,) = self.view.get([self._stored_key(id_state)])
            assert data is not None, "the state of a pending id names no entry"
        return unpack_entry(data)

    def _lane(self, id_state: IdState) -> Lane | None:
        """Return the lane of a pending message; None: it is in none."""
        due_ms, offset = id_state.due_ms, id_state.offset
        if offset in self.staged.relaned:
            return self.staged.relaned[offset][1]
        if due_ms > self.state.cursor_due_ms:
            return None
        # An upsert keeps the lane and the due time with an offset of its own, which the cursor may
        # not have passed.
        lane = lane_of(self.view, due_ms, offset)
        assert lane is not None or (due_ms, offset) > self.state.cursor, (
            "a pending message is neither after the cursor nor in a lane"
        )
        return lane

    def _stored_key(self, id_state: IdState) -> bytes:
        """Return the key of a pending message in the store: in its lane if the cursor has passed
        it."""
        lane = self._lane(id_state)
        if lane is None:
            return entry_key(id_state.due_ms, id_state.offset)
        return lane_key(lane, id_state.due_ms, id_state.offset)


def _first_ms(record: Record, action: Action) -> int:
    """Return the first timestamp (epoch ms) of an action."""
    return record.timestamp_ms if action.first_ms is None else action.first_ms


def _replayed(entry: Entry) -> bytes | None:
    """Return the source of the dead letter of which the entry is a replay; None if it is not a
    replay."""
    return dict(entry.headers).get(REPLAYED)


def _is_beyond_expiry(action: Action, entry: Entry, shift: int) -> bool:
    """Return whether a `reschedule` names a time at which the message, later by `shift` (ms), would
    only expire. An occurrence of a series takes its expiry along."""
    return (
        action.due_ms is not None
        and entry.expire_at_ms is not None
        and action.due_ms + shift > entry.expire_at_ms
        and repetition_of(entry) is None
    )
