"""The shard: the state machine of one delay partition.

It is deterministic and makes three moves, the same for a master and for a replica that replays its
decisions:

    stage   records of the delay partition -> the changes they ask for     (a master decides, a replica executes; `staging`)
    select  due messages, stored or staged -> messages in order            (by time, or up to a recorded cursor)
    apply   a committed progress record    -> one atomic write to the store

A master's step changes the state only in `install`, so one whose transaction was aborted can be
made again. Before that only caches change: the wheel reads ahead, the states of lanes and queues
are read, and the rules remember names and counts. `look_ahead` computes parts of the next step
while this one commits. The shard reads the store through `StoreView` and never writes. Keeps its
part of laws 1, 3, 4, 8 and 9."""  # noqa: E501

from collections.abc import Mapping, Sequence

from chronos.core.keys import (
    ID_STATE,
    MINUTE_MS,
    OFFSET_MAX,
    STATE_KEY,
    Lane,
    cursor_history_key,
    entry_key,
    entry_position,
    position_before,
)
from chronos.core.message import PROBE_ID, Action, Command, Entry, Record
from chronos.core.shard.codec import (
    IdState,
    LaneState,
    QueueState,
    State,
    pack_entry,
    pack_state,
    unpack_id_state,
)
from chronos.core.shard.counts import MinuteCounts, next_counted
from chronos.core.shard.fate import Fates, fates_of
from chronos.core.shard.lanes import Lanes
from chronos.core.shard.order import check_places
from chronos.core.shard.parsing import has_cron, parse
from chronos.core.shard.progress import (
    LaneCursor,
    Progress,
)
from chronos.core.shard.queues import Queues, held_by
from chronos.core.shard.record import check_record
from chronos.core.shard.replans import ZoneWalk, carry_out, index_writes, versions
from chronos.core.shard.rules import Rules
from chronos.core.shard.settle import (
    cancelled_rows,
    entry_rows,
    id_rows,
    minute_changes,
    pending_rows,
    settle,
)
from chronos.core.shard.staging import stage, stage_nothing, stage_unreadable
from chronos.core.shard.step import (
    Changes,
    Parsed,
    Placed,
    Selection,
    Staged,
    StoreView,
    Writes,
    add_totals,
    fitting,
    unpacked,
    with_leaving,
)
from chronos.core.shard.wheel import Item, Position, Wheel

READ_AHEAD_MESSAGES = 5_000
"""Entries read from the store in one scan: one step's worth."""

READ_AHEAD_BYTES = 8_000_000
"""Bytes read from the store in one scan: one step's worth."""

REPLAY_AHEAD_MS = 1_000
"""A replica reads entries this far beyond the cursor of a progress record: one scan then serves
many records, which are some 5 ms apart (a replay takes a fifth less time so)."""

REPLAY_AHEAD_MESSAGES = 500
"""Entries of such a scan."""

REPLAY_AHEAD_BYTES = 250_000
"""Bytes of such a scan; the wheel of a replica holds up to four times as much."""

CRON_CHECKS_MAX = 200
"""Cron expressions that a master checks in one step; each takes up to 0.3 ms."""

PARSED_AT_ONCE = 100
"""Records that are parsed between two looks at the number of cron expressions among them."""

WITHOUT_ID = frozenset({None, PROBE_ID})
"""Ids of commands that name no message."""


def _commands(records: Sequence[Record], rules: Rules) -> list[Command]:
    """Return the commands of the first records, until enough cron expressions were checked."""
    commands: list[Command] = []
    checks = 0
    for at in range(0, len(records), PARSED_AT_ONCE):
        parsed = [parse(record, rules) for record in records[at : at + PARSED_AT_ONCE]]
        commands += parsed
        # Almost all records are plain messages.
        checks += sum(
            map(
                has_cron,
                [
                    command
                    for command in parsed
                    if type(command) is not Entry or command.options is not None
                ],
            )
        )
        if checks >= CRON_CHECKS_MAX:
            break
    return commands


class Shard:
    """The state of one shard in memory: its `State`, the wheel, lanes and cached counts, all of it
    read from the store."""

    def __init__(self, *, rules: Rules, state: State, view: StoreView) -> None:
        self.rules = rules
        self.state = state
        self.wheel = Wheel(state.cursor)
        self.lanes = Lanes(view, rules.shard, parked=state.parked)
        self.queues = Queues(view, held=state.held)
        self._view = view
        self._counts = MinuteCounts(view)
        # Replay never decides again: its rules reject nothing that a setting could reject.
        self._replay_rules = rules.for_replay()

    # --- stage

    def parse(self, records: Sequence[Record]) -> Parsed:
        """Parse the records by the master's rules, and read the states of the ids they name.

        Only the first ones, at least PARSED_AT_ONCE, if CRON_CHECKS_MAX of them have a cron
        expression."""
        return self._parse(records, self.rules)

    def stage(
        self, records: Sequence[Record], parsed: Parsed | None = None, *, horizon_ms: int = 0
    ) -> Staged:
        """Return the changes that the first records ask for, as many as `parse` takes, rejecting
        what must be rejected: the master's side.

        `parsed`: the result of `parse` for these records, if it was computed before and is still up
        to date. `horizon_ms`: ids settled, and cancels noted, before that time are forgotten."""
        assert parsed is None or len(parsed.records) <= len(records)
        horizon_ms = max(horizon_ms, self.state.horizon_ms)
        parsed = self.parse(records) if parsed is None else parsed
        return stage(parsed, self.rules, self.state, self._view, horizon_ms=horizon_ms)

    def replay_stage(self, records: Sequence[Record], progress: Progress) -> Staged:
        """Return the changes that the records ask for when exactly those that the progress record
        names are rejected: the replica's side. Raises LogMismatch if another record cannot be
        executed."""
        rules = self._replay_rules
        parsed, refused = self._parse(records, rules), progress.rejections()
        staged = stage(
            parsed, rules, self.state, self._view, horizon_ms=progress.horizon_ms, replayed=refused
        )
        staged.letters.written = self.queues.replay(progress.written)
        staged.letters.held = held_by(progress, records, staged.letters.written)
        carry_out(staged, progress.replans, self.state, self._view, rules.shard)
        return staged

    def zone_walk(self) -> ZoneWalk:
        """Return the way of a master through the pending occurrences of series."""
        return ZoneWalk(self.rules, self._view)

    def stage_nothing(self, horizon_ms: int) -> Staged:
        """Return the changes of a master's step that pulls nothing."""
        return stage_nothing(self.state, max(horizon_ms, self.state.horizon_ms))

    def stage_unreadable(
        self, ranges: Sequence[tuple[int, int]], progress: Progress | None = None
    ) -> Staged:
        """Return the changes of a step over ranges of offsets, first and last, that cannot be read.

        `progress`: the record that is replayed; None for a master.
        """
        if progress is None:
            return stage_unreadable(ranges, self.state, self.state.horizon_ms)
        staged = stage_unreadable(ranges, self.state, progress.horizon_ms)
        staged.letters.held = held_by(progress, ())
        return staged

    def _parse(self, records: Sequence[Record], rules: Rules) -> Parsed:
        commands = (
            [parse(record, rules) for record in records]
            if rules.next_cron is None
            else _commands(records, rules)
        )
        records = records[: len(commands)]
        ids = [command.id for command in commands]
        if (
            rules.misplaced is not None
            and rules.shards > 1
            and any(ids)
            and check_places(records, commands, ids, rules)
        ):
            ids = [command.id for command in commands]
        named_ids: set[bytes] = {*ids}  # type: ignore[arg-type]
        named_ids -= WITHOUT_ID
        places = [
            (command.due_ms, pack_entry(command))
            if type(command) is Entry and command.options is None
            else None
            for command in commands
        ]
        return Parsed(
            records=records,
            commands=commands,
            places=places,
            known=self._read_id_states(named_ids),
            named_ids=named_ids,
            action_ids=frozenset(command.id for command in commands if type(command) is Action),
        )

    def _read_id_states(self, named_ids: set[bytes]) -> dict[bytes, IdState]:
        if not named_ids:
            return {}
        ids = list(named_ids)
        rows = self._view.get([ID_STATE + message_id for message_id in ids])
        return {
            message_id: unpack_id_state(data)
            for message_id, data in zip(ids, rows, strict=True)
            if data is not None
        }

    # --- select

    def select(self, staged: Staged, until_ms: int, messages_max: int, bytes_max: int) -> Selection:
        """Return the messages due at or before `until_ms`, in order, within both limits: at least
        one if there is one, unless many entries before it were deleted."""
        wheel, until = self.wheel, (until_ms, OFFSET_MAX)
        while wheel.through < until and wheel.messages < messages_max and wheel.bytes <= bytes_max:
            if not self._read_ahead(until_ms):
                break  # the next step goes on after the deleted entries
        stored = wheel.peek(until_ms, messages_max)
        # The wheel may hold more than `peek` returned, or the store more than the wheel: the order
        # is known up to here.
        known = stored[-1][:2] if len(stored) == messages_max else min(until, wheel.through)
        items = self._merge(staged, stored, known)
        count = fitting(items, messages_max, bytes_max)
        if count < len(items):
            del items[count:]
            return unpacked(items, items[-1][:2], complete=False)
        return unpacked(items, max(known, self.state.cursor), complete=known == until)

    def select_next(
        self, selection: Selection, until_ms: int, messages_max: int, bytes_max: int
    ) -> Selection | None:
        """Return the selection that follows `selection` if nothing is staged in between; None if it
        is not a full one."""
        items = self.wheel.peek(until_ms, messages_max, selection.cursor)
        count = fitting(items, messages_max, bytes_max)
        if count == len(items) < messages_max:
            return None
        del items[count:]
        return unpacked(items, items[-1][:2], complete=False)

    def replay_select(
        self, staged: Staged, cursor: Position, lanes: Sequence[LaneCursor] = ()
    ) -> Selection:
        """Return the messages that the master selected when it moved the cursor to `cursor`, and
        the lanes' cursors to `lanes`."""
        wheel = self.wheel
        if wheel.messages > 4 * REPLAY_AHEAD_MESSAGES or wheel.bytes > 4 * REPLAY_AHEAD_BYTES:
            # What arrives goes into the wheel too, if it is due before its end.
            wheel.clear(self.state.cursor)
        if wheel.through < cursor:
            self._read_ahead(cursor[0] + REPLAY_AHEAD_MS, REPLAY_AHEAD_MESSAGES, REPLAY_AHEAD_BYTES)
        while wheel.through < cursor:
            self._read_ahead(cursor[0])
        stored = [
            item for item in self.wheel.peek(cursor[0], self.wheel.messages) if item[:2] <= cursor
        ]
        selection = unpacked(self._merge(staged, stored, cursor), cursor, complete=True)
        return (
            with_leaving(selection, self.lanes.replay(lanes, staged), complete=True)
            if lanes
            else selection
        )

    def _merge(self, staged: Staged, stored: list[Item], through: Position) -> list[Item]:
        """Return the stored and staged entries up to the position `through`, in order."""
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
        """Read one scan of entries into the wheel; False if it holds `messages_max`, or all that is
        due by `until_ms`."""
        if self.wheel.messages >= messages_max or self.wheel.through >= (until_ms, OFFSET_MAX):
            return False
        self._read_ahead(until_ms)
        return True

    def _read_ahead(
        self,
        until_ms: int,
        messages_max: int = READ_AHEAD_MESSAGES,
        bytes_max: int = READ_AHEAD_BYTES,
    ) -> bool:
        """Read one scan of entries into the wheel; False if it met deleted entries only."""
        due_ms, offset = self.wheel.through
        start = entry_key(due_ms, offset + 1) if offset < OFFSET_MAX else entry_key(due_ms + 1, 0)
        stop = entry_key(until_ms + 1, 0)
        if start >= stop:
            return True
        rows, rest = self._view.scan(start, stop, messages_max, bytes_max)
        if not rows and rest is not None:
            rest = next_counted(self._view, rest, stop)
        items = [(*entry_position(key), data) for key, data in rows]
        self.wheel.extend(items, (until_ms, OFFSET_MAX) if rest is None else position_before(rest))
        return bool(rows) or rest is None

    def fates(self, selection: Selection, now_ms: int) -> Fates:
        """Return the fates of the selected messages in a step at this time."""
        return fates_of(selection, self.rules.shard, now_ms, self.rules.zone_data)

    # --- apply

    def writes(self, staged: Staged, selection: Selection, progress: Progress) -> Writes:
        """Return the part of `apply` that does not depend on the offset and time of the progress
        record."""
        settled = settle(staged, selection, progress, self.rules.shard)
        puts, deletes = entry_rows(staged, selection, settled)
        puts += pending_rows(settled.id_states)
        if staged.cancels:
            puts += cancelled_rows(staged, settled.behind_ms, self._view)
        lanes: dict[Lane, LaneState | None] = {}
        parked = 0
        if selection.leaving or settled.parked or staged.unparked:
            changed = self.lanes.writes(staged, selection, settled.decisions, settled.behind_ms)
            puts += changed.puts
            deletes += changed.deletes
            lanes, parked = changed.states, changed.length
        if self.state.zone_data or progress.zone_data:
            index_puts, index_deletes = index_writes(
                staged, selection, settled.decisions, settled.rescheduled, self._view
            )
            puts += index_puts
            deletes += index_deletes
        queues: dict[int, QueueState | None] = {}
        held = held_bytes = 0
        if staged.letters.held or staged.letters.written:
            queued = self.queues.writes(staged, progress)
            puts += queued.puts
            deletes += queued.deletes
            queues, held, held_bytes = queued.states, queued.length, queued.bytes
        return Writes(
            puts=puts,
            deletes=deletes,
            delta=minute_changes(staged, selection, settled),
            id_states=settled.id_states,
            decided=settled.decided,
            rescheduled=settled.rescheduled,
            lanes=lanes,
            parked=parked,
            queues=queues,
            held=held,
            held_bytes=held_bytes,
        )

    def apply(
        self,
        staged: Staged,
        selection: Selection,
        progress: Progress,
        *,
        offset: int,
        timestamp_ms: int,
        writes: Writes | None = None,
    ) -> Changes:
        """Return the write that a committed progress record asks for; `offset` and `timestamp_ms`
        are that record's.

        `writes`: the result of `writes` for the same three arguments, if it was computed before.
        Raises LogMismatch if this replica's result differs from what the master recorded.
        """
        state = self.state
        cursor = (progress.cursor_due_ms, progress.cursor_offset)
        assert cursor >= state.cursor, "the cursor only moves forward"
        assert offset >= state.applied, "a progress record is applied twice"
        assert timestamp_ms > 0, "a settled id needs a time"
        check_record(
            progress, offset, staged, selection, self.rules.shard, held_forwards=state.held_forwards
        )
        if writes is None:
            writes = self.writes(staged, selection, progress)
        id_states, id_puts = id_rows(writes, timestamp_ms)
        puts, deletes = writes.puts + id_puts, writes.deletes.copy()
        counts = self._counts.changed(writes.delta, puts, deletes)
        minute = timestamp_ms // MINUTE_MS
        zone_data, newest_zone_data = versions(state, progress)
        if minute > state.history_minute:
            puts.append((cursor_history_key(minute), entry_key(*state.cursor)))
        applied = State(
            applied=offset + 1,
            pull_offset=progress.pull_offset,
            cursor_due_ms=cursor[0],
            cursor_offset=cursor[1],
            watermark_ms=staged.watermark_ms,
            pending=state.pending + sum(writes.delta.values()),
            role_epoch=progress.role_epoch,
            log_epoch=progress.log_epoch,
            instance=progress.instance,
            node=progress.node,
            progress_ms=timestamp_ms,
            history_minute=max(minute, state.history_minute),
            totals=add_totals(state.totals, staged, selection, progress.decisions),
            parked=state.parked + writes.parked,
            horizon_ms=progress.horizon_ms,
            held=state.held + writes.held,
            held_bytes=state.held_bytes + writes.held_bytes,
            held_forwards=progress.held_forwards,
            zone_data=zone_data,
            newest_zone_data=newest_zone_data,
        )
        assert applied.pending >= 0, "more messages were settled than were pending"
        assert applied.pull_offset >= state.pull_offset, "the pull offset only moves forward"
        assert applied.horizon_ms >= state.horizon_ms, (
            "an id that is forgotten is not remembered again"
        )
        puts.append((STATE_KEY, pack_state(applied)))
        return Changes(
            puts=puts,
            deletes=deletes,
            state=applied,
            counts=counts,
            id_states=id_states,
            removed=[(due_ms, source) for source, due_ms in staged.removed.items()],
            arrived=self._arrived(staged.placed, cursor)
            + self._arrived(writes.rescheduled, cursor),
            lanes=writes.lanes,
            queues=writes.queues,
        )

    def _arrived(self, placed: Mapping[int, Placed], cursor: Position) -> list[Item]:
        """Return the entries among `placed` that belong in the wheel."""
        through = self.wheel.through
        through_ms = through[0]
        return [
            (due_ms, source, data)
            for source, (due_ms, data) in placed.items()
            if due_ms <= through_ms and cursor < (due_ms, source) <= through
        ]

    def install(self, changes: Changes) -> None:
        """Install a write that was made into the memory."""
        assert changes.state.cursor >= self.state.cursor, "the cursor only moves forward"
        self.state = changes.state
        self._counts.install(changes.counts)
        if changes.lanes:
            self.lanes.install(changes.lanes)
        if changes.queues:
            self.queues.install(changes.queues)
        wheel = self.wheel
        for due_ms, offset in changes.removed:
            wheel.forget(due_ms, offset)
        wheel.advance(changes.state.cursor)
        for item in changes.arrived:
            wheel.add(*item)

    def next_due_ms(self) -> int | None:
        """Return the due time (epoch ms) of the next message, or the end of the wheel if it is
        empty; None if none is pending outside lanes."""
        if self.state.pending == self.state.parked:
            return None
        held_ms = self.wheel.next_due_ms()
        through_ms, through_offset = self.wheel.through
        unknown_ms = through_ms + 1 if through_offset == OFFSET_MAX else through_ms
        return unknown_ms if held_ms is None else held_ms
