"""The shard: what the records of one delay partition and the decisions of its masters make of each other.

A deterministic state machine in three moves, the same for a master and for a replica that replays:

    stage   records of the delay partition -> what they would change       (a master decides, a replica is told)
    select  what is due, stored or staged  -> messages in order            (by time, or up to the cursor it is told)
    apply   a committed progress record    -> one atomic write to the store

Nothing is changed before `install`, so a step whose transaction was aborted leaves no trace. `parse_ahead`, `select_ahead`
and `draft` do a part of these moves early, while an earlier step commits; what they made is used where it still holds.
The laws it keeps are numbers 4 (the cursor only moves forward), 7 (nothing pending is deleted) and 9 (state depends on the
logs only). It reads the store through `StoreView` and never writes.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.codec import (
    CANCELLED,
    DEAD,
    DELIVERED,
    EXPIRED,
    PENDING,
    IdState,
    State,
    Totals,
    pack_entry,
    pack_id_state,
    pack_state,
    unpack_entry,
    unpack_id_state,
)
from chronos.core.keys import (
    ID_STATE,
    MINUTE_MS,
    OFFSET_MAX,
    STATE_KEY,
    count_key,
    cursor_history_key,
    entry_key,
    entry_position,
    expiry_key,
    generated_id,
    parse_generated_id,
)
from chronos.core.message import (
    Action,
    Command,
    ConditionalSchedule,
    Entry,
    OnConflict,
    Reason,
    Record,
    Rejection,
    Verb,
    entry_id,
)
from chronos.core.parsing import parse
from chronos.core.progress import RESCHEDULING, Decision, Outcome, Progress, count_outcomes
from chronos.core.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.core.wheel import Item, Position, Wheel
from chronos.errors import LogMismatch

READ_AHEAD_MESSAGES = 5_000
"""Entries read from the store at once: one step's worth."""

READ_AHEAD_BYTES = 8_000_000
"""Bytes read from the store at once: one step's worth."""

COUNTS_CACHED_MAX = 200_000
"""Minutes whose pending count is kept in memory: 138 days, about 20 MB at the most."""


class StoreView(Protocol):
    """What the shard needs to read of its store."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of the keys, in their order."""

    def scan(self, start: bytes, stop: bytes, count_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Rows with `start <= key < stop` in order, at most so many and so large, at least one if there is one."""


KeyValue = tuple[bytes, bytes]
"""Key and value, as the store takes them."""

Placed = tuple[int, bytes]
"""Due time and bytes of an entry that is to be put in the store."""


class Parsed(Struct, kw_only=True):
    """Delay records as far as they can be understood without knowing what came before them."""

    records: list[Record] = []
    commands: list[Command] = []
    places: list[Placed | None] = []
    """Where each message goes, unless the placement rule or its id forbid it; None for all else."""
    known: dict[bytes, IdState] = {}
    """The stored words of the ids that are named."""
    named_ids: set[bytes] = set()
    """These ids, stored or not."""
    acted_on: set[bytes] = set()
    """Those that an action names: only they can be addresses."""


class Staged(Struct, kw_only=True):
    """What a batch of delay records would change, and nothing of it done yet."""

    pull_offset: int
    watermark_ms: int
    placed: dict[int, Placed] = msgspec.field(default_factory=dict)
    """By source offset, what is to be put in the store."""
    removed: dict[int, int] = msgspec.field(default_factory=dict)
    """Source offset -> due_ms of stored entries that leave their place."""
    id_states: dict[bytes, IdState] = msgspec.field(default_factory=dict)
    """Id -> its new word; a settled one has no time yet, it is that of the progress record."""
    refused: list[tuple[int, int]] = msgspec.field(default_factory=list)
    rejections: list[tuple[Record, Rejection]] = msgspec.field(default_factory=list)
    """What goes to the rejected topic; empty on replay."""
    accepted: int = 0
    cancelled: int = 0
    replaced: int = 0
    changed: int = 0
    ignored: int = 0
    probes: int = 0


class Selection(Struct, kw_only=True):
    """What is due, in order, and the cursor once all of it is settled."""

    items: list[Item]
    entries: list[Entry]
    named: list[int]
    """Which of the entries carry an id: the only ones that have a word, and that were tried before."""
    cursor: Position
    complete: bool
    """Everything due was selected; else there is more."""


class Next(Struct, kw_only=True):
    """The selection that follows one which is not committed yet, if nothing comes in between."""

    selection: Selection
    after: Position
    edits: int
    bounds: tuple[int, int]


class Draft(Struct, kw_only=True):
    """What a step writes, but for what depends on when it is committed."""

    puts: list[KeyValue]
    deletes: list[bytes]
    delta: dict[int, int]
    """By how much the count of each minute changes."""
    id_states: dict[bytes, IdState]
    """All new words; those of ids that are settled have no time yet."""
    rescheduled: dict[int, Placed]


class Changes(Struct, kw_only=True):
    """One atomic write: first the deletes, then the puts."""

    puts: list[KeyValue]
    deletes: list[bytes]
    state: State
    counts: dict[int, int]
    id_states: dict[bytes, IdState]
    forgotten: list[Position]
    arrived: list[Item]


class Shard:
    """The state of one shard in memory: its `State`, the wheel and the counts; all of it comes from the store."""

    def __init__(self, *, rules: Rules, state: State, view: StoreView) -> None:
        self.rules = rules
        self.state = state
        self.wheel = Wheel(state.cursor)
        self._view = view
        self._counts: dict[int, int] = {}
        # What was done ahead of its step, or of its step's commit; used if it still holds, and else done again.
        self._parsed = Parsed()
        self._next: Next | None = None
        self._drafted: tuple[Staged, Draft] | None = None
        # What was decided is not decided again: replay parses by rules that refuse nothing a setting could refuse.
        self._replay_rules = Rules(shard=rules.shard, shards=rules.shards, max_delay_ms=2 * MS_MAX)

    # --- stage

    def stage(self, records: Sequence[Record]) -> Staged:
        """What the records change, refusing what must be refused: the master's side."""
        ahead, self._parsed = self._parsed, Parsed()
        count = min(len(ahead.records), len(records))
        if count == 0 or ahead.records[:count] != records[:count]:
            return self._stage(self._parse(records, self.rules), None)
        parsed = self._parse(records[count:], self.rules)
        parsed.records = list(records)
        parsed.commands = ahead.commands[:count] + parsed.commands
        parsed.places = ahead.places[:count] + parsed.places
        parsed.known.update(ahead.known)
        parsed.acted_on |= ahead.acted_on
        return self._stage(parsed, None)

    def replay_stage(self, records: Sequence[Record], refused: Mapping[int, int]) -> Staged:
        """What the records change when exactly those in `refused` are refused: the replica's side."""
        return self._stage(self._parse(records, self._replay_rules), refused)

    def parse_ahead(self, records: Sequence[Record]) -> None:
        """Do now what the next `stage` of these records would begin with."""
        self._parsed = self._parse(records, self.rules)

    def _parse(self, records: Sequence[Record], rules: Rules) -> Parsed:
        commands = [parse(record, rules) for record in records]
        places = [(command.due_ms, pack_entry(command)) if type(command) is Entry else None for command in commands]
        named_ids = {
            command.id for command in commands if not isinstance(command, Rejection) and command.id is not None
        }
        acted_on = {command.id for command in commands if type(command) is Action}
        parsed = Parsed(records=list(records), commands=commands, places=places, named_ids=named_ids, acted_on=acted_on)
        if named_ids:
            ids = list(named_ids)
            found = self._view.get([ID_STATE + message_id for message_id in ids])
            parsed.known = {
                message_id: unpack_id_state(data)
                for message_id, data in zip(ids, found, strict=True)
                if data is not None
            }
        return parsed

    def _stage(self, parsed: Parsed, told: Mapping[int, int] | None) -> Staged:
        state, records = self.state, parsed.records
        staged = Staged(pull_offset=state.pull_offset, watermark_ms=state.watermark_ms)
        known = parsed.known
        if parsed.acted_on:
            self._look_up_generated_ids(parsed.acted_on, known)
        floor_ms = state.cursor_due_ms + 1
        placed, id_states = staged.placed, staged.id_states
        for record, command, place in zip(records, parsed.commands, parsed.places, strict=True):
            offset = record.offset
            if record.timestamp_ms > staged.watermark_ms:
                staged.watermark_ms = record.timestamp_ms
            if told is not None and offset in told:
                _count_refusal(staged, offset, told[offset])
                continue
            if place is not None:
                message_id, due_ms = command.id, place[0]  # type: ignore[union-attr]
                # Without an id, or with a new one, as most are: nothing to judge, nothing to replace.
                if message_id is None or (message_id not in id_states and message_id not in known):
                    if due_ms < floor_ms or due_ms < record.timestamp_ms:
                        due_ms = self._place(staged, command, offset, record.timestamp_ms)  # type: ignore[arg-type]
                    else:
                        placed[offset] = place
                    if message_id is not None:
                        id_states[message_id] = IdState(PENDING, due_ms, offset)
                    staged.accepted += 1
                    continue
            rejection = (
                command
                if type(command) is Rejection
                else self._act(staged, known, record, command, deciding=told is None)
            )
            if rejection is not None:
                if told is not None:
                    raise LogMismatch(
                        f"replaying shard {self.rules.shard}: the record at offset {offset} cannot be executed"
                        f" ({rejection.reason.label}), yet the master did not refuse it: is this the same topic?"
                    )
                _count_refusal(staged, offset, rejection.reason)
                if rejection.reason is not Reason.IGNORED:
                    staged.rejections.append((record, rejection))
        if records:
            assert records[0].offset >= state.pull_offset
            staged.pull_offset = records[-1].offset + 1
        return staged

    def _look_up_generated_ids(self, named: set[bytes], known: dict[bytes, IdState]) -> None:
        """Where an action names an address without a word, the entry that stands there speaks."""
        # A key is never an address: only an action can name one.
        unknown_ids = [
            (message_id, parsed)
            for message_id in named - known.keys()
            if (parsed := parse_generated_id(message_id, self.rules.shards)) is not None
        ]
        entries = self._view.get([entry_key(due_ms, offset) for _, (_, due_ms, offset) in unknown_ids])
        for (message_id, (_, due_ms, offset)), data in zip(unknown_ids, entries, strict=True):
            # An entry that carries an id came here from somewhere else: this is not its address.
            if data is not None and unpack_entry(data).id is None:
                settled = (due_ms, offset) <= self.state.cursor
                known[message_id] = IdState(DELIVERED if settled else PENDING, due_ms, offset)

    def _act(
        self, staged: Staged, known: Mapping[bytes, IdState], record: Record, command: Command, *, deciding: bool
    ) -> Rejection | None:
        """Execute what concerns an id; the refusal when it cannot be."""
        if type(command) is Entry:
            command = ConditionalSchedule(command, Verb.SCHEDULE, OnConflict.REJECT)
        if type(command) is ConditionalSchedule:
            key = command.id or b""
            id_state = staged.id_states.get(key) or known.get(key)
            return self._schedule(staged, id_state, record, command, deciding=deciding)
        assert type(command) is Action
        if command.verb is Verb.PROBE:
            staged.probes += 1
            return None
        id_state = self._word(staged, known, command.id)
        if id_state is None:
            return Rejection(Reason.UNKNOWN, "no message has this id")
        if id_state.state != PENDING:
            return Rejection(Reason.TOO_LATE, "the message is pending no more")
        if command.verb is Verb.CANCEL:
            self._remove(staged, id_state)
            staged.id_states[command.id] = IdState(CANCELLED, id_state.due_ms, id_state.offset)
            staged.cancelled += 1
            return None
        self._move(staged, id_state, record, command)
        return None

    def _word(self, staged: Staged, known: Mapping[bytes, IdState], message_id: bytes) -> IdState | None:
        """What is known of the id an action names, this batch included."""
        id_state = staged.id_states.get(message_id) or known.get(message_id)
        parsed = parse_generated_id(message_id, self.rules.shards) if id_state is None else None
        if parsed is None:
            return id_state
        _, due_ms, offset = parsed
        place_ms, data = staged.placed.get(offset, (None, b""))
        if place_ms != due_ms or entry_id(unpack_entry(data), self.rules.shard, offset) != message_id:
            return None
        return IdState(PENDING, due_ms, offset)

    def _schedule(
        self, staged: Staged, id_state: IdState | None, record: Record, command: ConditionalSchedule, *, deciding: bool
    ) -> Rejection | None:
        """A `schedule` or `replace` with an id of its own."""
        pending = id_state is not None and id_state.state == PENDING
        if deciding:
            rejection = self._check_conflict(id_state, record, command)
            if rejection is not None:
                return rejection
        if pending:
            assert id_state is not None
            self._remove(staged, id_state)
            staged.replaced += 1
        due_ms = self._place(staged, command.entry, record.offset, record.timestamp_ms)
        assert command.entry.id is not None
        staged.id_states[command.entry.id] = IdState(PENDING, due_ms, record.offset)
        staged.accepted += 1
        return None

    def _check_conflict(
        self, id_state: IdState | None, record: Record, command: ConditionalSchedule
    ) -> Rejection | None:
        if command.verb is Verb.REPLACE:
            if id_state is None:
                return Rejection(Reason.UNKNOWN, "no message has this id: there is nothing to replace")
            if id_state.state != PENDING:
                return Rejection(Reason.TOO_LATE, "the message is pending no more")
            return None
        if id_state is None or command.on_conflict is OnConflict.REPLACE:
            return None
        pending = id_state.state == PENDING
        window_ms = record.timestamp_ms - self.rules.deduplication_ms
        if pending or (id_state.state == DELIVERED and id_state.settled_ms > window_ms):
            what = "is pending" if pending else "was delivered within the deduplication window"
            reason = Reason.IGNORED if command.on_conflict is OnConflict.IGNORE else Reason.CONFLICT
            return Rejection(reason, f"a message with this id {what}")
        return None

    def _move(self, staged: Staged, id_state: IdState, record: Record, command: Action) -> None:
        """`reschedule` and `fire-now`: the same message at another time."""
        staged.changed += 1
        if command.verb is Verb.FIRE_NOW and id_state.due_ms <= max(record.timestamp_ms, self.state.cursor_due_ms + 1):
            return
        here = staged.placed.get(id_state.offset)
        if here is None:
            (data,) = self._view.get([entry_key(id_state.due_ms, id_state.offset)])
            assert data is not None, "a pending word points at no entry"
        else:
            data = here[1]
        entry = unpack_entry(data)
        message_id = entry_id(entry, self.rules.shard, id_state.offset)
        due_ms = record.timestamp_ms if command.due_ms is None else command.due_ms
        self._remove(staged, id_state)
        place_ms = self._place(
            staged, replace(entry, id=message_id, due_ms=due_ms), id_state.offset, record.timestamp_ms
        )
        staged.id_states[message_id] = IdState(PENDING, place_ms, id_state.offset)

    def _place(self, staged: Staged, entry: Entry, offset: int, timestamp_ms: int) -> int:
        """The one placement rule; an entry that does not stand at its address carries its id with it."""
        place_ms = entry.due_ms
        if place_ms < timestamp_ms or place_ms <= self.state.cursor_due_ms:
            place_ms = max(timestamp_ms, self.state.cursor_due_ms + 1)
        if entry.id is None and place_ms != entry.due_ms:
            entry = replace(entry, id=generated_id(self.rules.shard, entry.due_ms, offset))
            staged.id_states[entry.id] = IdState(PENDING, place_ms, offset)  # type: ignore[index]
        staged.placed[offset] = (place_ms, pack_entry(entry))
        return place_ms

    def _remove(self, staged: Staged, id_state: IdState) -> None:
        """Take a pending message away, from this batch or from the store."""
        if staged.placed.pop(id_state.offset, None) is None:
            assert (id_state.due_ms, id_state.offset) > self.state.cursor, "a pending message lies behind the cursor"
            staged.removed[id_state.offset] = id_state.due_ms

    # --- select

    def select(self, staged: Staged, until_ms: int, messages_max: int, bytes_max: int) -> Selection:
        """What is due at or before `until_ms`, in order, at most so much, at least one if there is one."""
        wheel, until = self.wheel, (until_ms, OFFSET_MAX)
        ahead, self._next = self._next, None
        if ahead is not None and self._holds(ahead, staged, until_ms, (messages_max, bytes_max)):
            return ahead.selection
        while wheel.through < until and wheel.messages < messages_max and wheel.bytes <= bytes_max:
            self._read_ahead(until_ms)
        stored = wheel.peek(until_ms, messages_max)
        # The wheel may hold more than was looked at, or the store more than the wheel: only up to there is order known.
        known = stored[-1][:2] if len(stored) == messages_max else min(until, wheel.through)
        items = self._merge(staged, stored, known)
        fitting = _fitting(items, messages_max, bytes_max)
        if fitting < len(items):
            del items[fitting:]
            return _unpacked(items, items[-1][:2], complete=False)
        return _unpacked(items, max(known, self.state.cursor), complete=known == until)

    def select_ahead(self, selection: Selection, until_ms: int, messages_max: int, bytes_max: int) -> Selection | None:
        """The selection that will follow this one once it is committed, if nothing comes in between and it is full."""
        after = selection.cursor
        items = self.wheel.peek(until_ms, messages_max, after)
        fitting = _fitting(items, messages_max, bytes_max)
        if fitting == len(items) < messages_max:
            return None
        del items[fitting:]
        following = _unpacked(items, items[-1][:2], complete=False)
        self._next = Next(selection=following, after=after, edits=self.wheel.edits, bounds=(messages_max, bytes_max))
        return following

    def _holds(self, ahead: Next, staged: Staged, until_ms: int, bounds: tuple[int, int]) -> bool:
        """Whether what was selected ahead is what would be selected now."""
        cursor = ahead.selection.cursor
        return (
            ahead.after == self.state.cursor
            and ahead.edits == self.wheel.edits
            and ahead.bounds == bounds
            and cursor[0] <= until_ms
            and not staged.removed
            and not any(due_ms <= cursor[0] for due_ms, _ in staged.placed.values())
        )

    def replay_select(self, staged: Staged, cursor: Position) -> Selection:
        """What a master selected when it moved the cursor there."""
        while self.wheel.through < cursor:
            self._read_ahead(cursor[0])
        stored = [item for item in self.wheel.peek(cursor[0], self.wheel.messages) if item[:2] <= cursor]
        return _unpacked(self._merge(staged, stored, cursor), cursor, complete=True)

    def _merge(self, staged: Staged, stored: list[Item], through: Position) -> list[Item]:
        """Stored and staged entries up to a position, in order."""
        if staged.removed:
            stored = [item for item in stored if staged.removed.get(item[1]) != item[0]]
        through_ms = through[0]
        due = [
            (due_ms, offset, data)
            for offset, (due_ms, data) in staged.placed.items()
            if due_ms <= through_ms and (due_ms, offset) <= through
        ]
        if not due:
            return stored
        return sorted(stored + due)

    def read_ahead(self, until_ms: int, messages_max: int) -> bool:
        """Fill the wheel a step's worth further; False when it holds so many, or is complete up to `until_ms`."""
        if self.wheel.messages >= messages_max or self.wheel.through >= (until_ms, OFFSET_MAX):
            return False
        self._read_ahead(until_ms)
        return True

    def _read_ahead(self, until_ms: int) -> None:
        due_ms, offset = self.wheel.through
        start = entry_key(due_ms, offset + 1) if offset < OFFSET_MAX else entry_key(due_ms + 1, 0)
        stop = entry_key(until_ms + 1, 0)
        if start >= stop:
            return
        rows = self._view.scan(start, stop, READ_AHEAD_MESSAGES, READ_AHEAD_BYTES)
        items = [(*entry_position(key), data) for key, data in rows]
        # Only a scan that finds nothing proves the end: one that stopped at its limit looks like one that reached it.
        self.wheel.extend(items, items[-1][:2] if items else (until_ms, OFFSET_MAX))

    # --- apply

    def draft(self, staged: Staged, selection: Selection, progress: Progress) -> None:
        """Do now what `apply` would begin with: all that does not depend on when the record is committed."""
        self._drafted = (staged, self._draft(staged, selection, progress))

    def _draft(self, staged: Staged, selection: Selection, progress: Progress) -> Draft:
        cursor = (progress.cursor_due_ms, progress.cursor_offset)
        placed = staged.placed
        delta: defaultdict[int, int] = defaultdict(int)
        for due_ms in staged.removed.values():
            delta[due_ms // MINUTE_MS] -= 1
        for due_ms, _ in placed.values():
            delta[due_ms // MINUTE_MS] += 1
        _count_settled(selection.items, delta)
        decisions = {decision.offset: decision for decision in progress.decisions}
        id_states = dict(staged.id_states)
        rescheduled = self._settle(selection, decisions, cursor, id_states)
        for due_ms, _ in rescheduled.values():
            delta[due_ms // MINUTE_MS] += 1
        deletes = [entry_key(due_ms, source) for source, due_ms in staged.removed.items()]
        if rescheduled:
            deletes += [entry_key(decisions[source].due_ms, source) for source in rescheduled if source not in placed]
            placed = placed | rescheduled
        puts = [(entry_key(due_ms, source), data) for source, (due_ms, data) in placed.items()]
        puts += [
            (ID_STATE + message_id, pack_id_state(id_state))
            for message_id, id_state in id_states.items()
            if id_state.state == PENDING
        ]
        return Draft(puts=puts, deletes=deletes, delta=delta, id_states=id_states, rescheduled=rescheduled)

    def apply(
        self, staged: Staged, selection: Selection, progress: Progress, *, offset: int, timestamp_ms: int
    ) -> Changes:
        """The write that a committed progress record asks for; `offset` and `timestamp_ms` are that record's."""
        state = self.state
        cursor = (progress.cursor_due_ms, progress.cursor_offset)
        assert cursor >= state.cursor, "the cursor only moves forward"
        self._compare(staged, selection, progress, offset)
        drafted, self._drafted = self._drafted, None
        if drafted is not None and drafted[0] is staged:
            draft = drafted[1]
        else:
            draft = self._draft(staged, selection, progress)
        puts, deletes, id_states = draft.puts, draft.deletes, draft.id_states
        for message_id, id_state in id_states.items():
            if id_state.state != PENDING:
                settled = IdState(id_state.state, id_state.due_ms, id_state.offset, timestamp_ms)
                id_states[message_id] = settled
                puts.append((ID_STATE + message_id, pack_id_state(settled)))
                puts.append((expiry_key(timestamp_ms, message_id), b""))
        counts = self._counted(draft.delta, puts, deletes)
        minute = timestamp_ms // MINUTE_MS
        if minute > state.history_minute:
            puts.append((cursor_history_key(minute), entry_key(*state.cursor)))
        applied = State(
            applied=offset + 1,
            pull_offset=progress.pull_offset,
            cursor_due_ms=cursor[0],
            cursor_offset=cursor[1],
            watermark_ms=staged.watermark_ms,
            pending=state.pending + sum(draft.delta.values()),
            role_epoch=progress.role_epoch,
            log_epoch=progress.log_epoch,
            instance=progress.instance,
            node=progress.node,
            progress_ms=timestamp_ms,
            history_minute=max(minute, state.history_minute),
            totals=_added(state.totals, staged, selection, progress.decisions),
        )
        assert applied.pending >= 0, "more was settled than was pending"
        puts.append((STATE_KEY, pack_state(applied)))
        return Changes(
            puts=puts,
            deletes=deletes,
            state=applied,
            counts=counts,
            id_states=id_states,
            forgotten=[(due_ms, source) for source, due_ms in staged.removed.items()],
            arrived=self._arrived(staged.placed, cursor) + self._arrived(draft.rescheduled, cursor),
        )

    def _arrived(self, placed: Mapping[int, Placed], cursor: Position) -> list[Item]:
        """What of it belongs into the wheel."""
        through = self.wheel.through
        through_ms = through[0]
        return [
            (due_ms, source, data)
            for source, (due_ms, data) in placed.items()
            if due_ms <= through_ms and cursor < (due_ms, source) <= through
        ]

    def _compare(self, staged: Staged, selection: Selection, progress: Progress, offset: int) -> None:
        """What was found here must be what the master found; LogMismatch before anything is written otherwise."""
        decided = {(decision.due_ms, decision.offset) for decision in progress.decisions}
        strangers = decided.difference(item[:2] for item in selection.items) if decided else decided
        for what, told, found in (
            ("settled messages", progress.selected, len(selection.items)),
            ("their outcomes", progress.counts, count_outcomes(len(selection.items), progress.decisions)),
            ("the pull offset", progress.pull_offset, staged.pull_offset),
            ("refused records", len(progress.refused), len(staged.refused)),
            ("decisions about messages it did not settle", 0, len(strangers)),
        ):
            if told != found:
                raise LogMismatch(
                    f"shard {self.rules.shard}: the progress record at offset {offset} says {told} for {what}, this"
                    f" replica finds {found}. Its store or its logs are not those of the master: remove the shard's"
                    " store to rebuild it from the logs."
                )

    def _settle(
        self, selection: Selection, decisions: Mapping[int, Decision], cursor: Position, id_states: dict[bytes, IdState]
    ) -> dict[int, Placed]:
        """Note the new words of what was selected, without their time; give what goes on by source offset."""
        items, entries = selection.items, selection.entries
        rescheduled: dict[int, Placed] = {}
        for at in selection.named:
            due_ms, offset, _ = items[at]
            id_states[entries[at].id] = IdState(DELIVERED, due_ms, offset)  # type: ignore[index]
        if not decisions:
            return rescheduled
        for (due_ms, offset, _), entry in zip(items, entries, strict=True):
            decision = decisions.get(offset)
            if decision is None:
                continue
            message_id = entry_id(entry, self.rules.shard, offset)
            if decision.outcome in RESCHEDULING:
                next_ms = max(decision.next_due_ms, cursor[0] + 1)
                repeated = decision.outcome in (Outcome.AGAIN, Outcome.SKIPPED)
                going_on = replace(
                    entry,
                    id=message_id,
                    due_ms=decision.next_due_ms if repeated else entry.due_ms,
                    occurrence=decision.occurrence,
                    attempt=decision.attempt,
                )
                rescheduled[offset] = (next_ms, pack_entry(going_on))
                id_states[message_id] = IdState(PENDING, next_ms, offset)
            else:
                assert decision.outcome in (Outcome.EXPIRED, Outcome.DEAD), "a plain delivery is no decision"
                ended = EXPIRED if decision.outcome is Outcome.EXPIRED else DEAD
                id_states[message_id] = IdState(ended, due_ms, offset)
        return rescheduled

    def _counted(
        self, delta: Mapping[int, int], puts: list[tuple[bytes, bytes]], deletes: list[bytes]
    ) -> dict[int, int]:
        """The new count of every minute that changed."""
        touched = [minute for minute, change in delta.items() if change]
        unread = [minute for minute in touched if minute not in self._counts]
        if unread:
            if len(self._counts) + len(unread) > COUNTS_CACHED_MAX:
                self._counts.clear()
                unread = touched
            for minute, data in zip(unread, self._view.get([count_key(minute) for minute in unread]), strict=True):
                self._counts[minute] = 0 if data is None else int.from_bytes(data, "big")
        counts = {minute: self._counts[minute] + delta[minute] for minute in touched}
        for minute, count in counts.items():
            assert count >= 0, "a minute has fewer messages than were settled in it"
            if count:
                puts.append((count_key(minute), count.to_bytes(8, "big")))
            else:
                deletes.append(count_key(minute))
        return counts

    def install(self, changes: Changes) -> None:
        """The write was made: let the memory follow it."""
        self.state = changes.state
        self._counts.update(changes.counts)
        wheel = self.wheel
        for due_ms, offset in changes.forgotten:
            wheel.forget(due_ms, offset)
        wheel.advance(changes.state.cursor)
        for item in changes.arrived:
            wheel.add(*item)
        # Words that were read ahead of this write speak as they do after it.
        for message_id in self._parsed.named_ids & changes.id_states.keys():
            self._parsed.known[message_id] = changes.id_states[message_id]

    def next_due_ms(self) -> int | None:
        """When to look again: the next message held is due, or nothing is known beyond; None with nothing pending."""
        if self.state.pending == 0:
            return None
        held_ms = self.wheel.next_due_ms()
        through_ms, through_offset = self.wheel.through
        unknown_ms = through_ms + 1 if through_offset == OFFSET_MAX else through_ms
        return unknown_ms if held_ms is None else held_ms


def _count_refusal(staged: Staged, offset: int, reason: int) -> None:
    staged.refused.append((offset, reason))
    if reason == Reason.IGNORED:
        staged.ignored += 1


def nothing_selected(cursor: Position, *, complete: bool) -> Selection:
    """The selection of a step that delivers nothing."""
    return Selection(items=[], entries=[], named=[], cursor=cursor, complete=complete)


def _unpacked(items: list[Item], cursor: Position, *, complete: bool) -> Selection:
    entries = [unpack_entry(data) for _, _, data in items]
    named = [at for at, entry in enumerate(entries) if entry.id is not None]
    return Selection(items=items, entries=entries, named=named, cursor=cursor, complete=complete)


def _fitting(items: Sequence[Item], messages_max: int, bytes_max: int) -> int:
    """How many of the items, at least one, stay within so many and so many bytes."""
    size = 0
    for at, (_, _, data) in enumerate(items[:messages_max]):
        size += len(data)
        if size > bytes_max and at > 0:
            return at
    return min(len(items), messages_max)


def _count_settled(items: Sequence[Item], delta: dict[int, int]) -> None:
    """Take what was selected off its minutes; the items are in order of time."""
    at = 0
    while at < len(items):
        minute = items[at][0] // MINUTE_MS
        end = bisect_left(items, ((minute + 1) * MINUTE_MS,), lo=at)
        delta[minute] -= end - at
        at = end


def _added(totals: Totals, staged: Staged, selection: Selection, decisions: Sequence[Decision]) -> Totals:
    outcomes = [decision.outcome for decision in decisions]
    rescheduled = sum(outcome in RESCHEDULING for outcome in outcomes)
    # An occurrence of a series that comes again was delivered all the same.
    again = outcomes.count(Outcome.AGAIN)
    return Totals(
        accepted=totals.accepted + staged.accepted,
        delivered=totals.delivered + len(selection.items) - len(outcomes) + again,
        cancelled=totals.cancelled + staged.cancelled,
        replaced=totals.replaced + staged.replaced,
        changed=totals.changed + staged.changed,
        expired=totals.expired + outcomes.count(Outcome.EXPIRED),
        dead=totals.dead + outcomes.count(Outcome.DEAD),
        carried=totals.carried + rescheduled,
        rejected=totals.rejected + len(staged.refused) - staged.ignored,
        ignored=totals.ignored + staged.ignored,
        probes=totals.probes + staged.probes,
    )
