"""Drivers: a master that runs a history and is compared with the model at every step, and replicas
of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chronos.core.cron import next_cron
from chronos.core.keys import (
    LIMITED,
    REJECTED,
    STATE_KEY,
    entry_key,
    entry_position,
    id_key,
    parse_generated_id,
)
from chronos.core.message import Reason, Rejection, entry_id
from chronos.core.shard.codec import (
    FRESH,
    STATE_NAMES,
    State,
    pack_held,
    unpack_entry,
    unpack_id_state,
    unpack_state,
)
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import (
    DETAIL_BYTES_MAX,
    DETAILS_MAX,
    Decision,
    Outcome,
    Progress,
    detail_number,
    pack_progress,
    unpack_progress,
)
from chronos.core.shard.queues import record_of, unreadable_record
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, Staged, nothing_selected, with_leaving
from tests.unit.histories import (
    DEDUPLICATION_MS,
    ELSEWHERE,
    LANES,
    MAX_DELAY_MS,
    MAX_PAST_MS,
    SHARD,
    SHARDS,
    START_MS,
    Producers,
    Step,
    check_wheel,
    disturb,
    render,
)
from tests.unit.model import LAST, ChosenOutcome, Intent, Message, Model, Rows
from tests.unit.records import WRITER

OUTCOMES = {
    "delivered": Outcome.DELIVERED,
    "again": Outcome.AGAIN,
    "retry": Outcome.RETRY,
    "deferred": Outcome.DEFERRED,
    "skipped": Outcome.SKIPPED,
    "expired": Outcome.EXPIRED,
    "dead": Outcome.DEAD,
    "parked": Outcome.PARKED,
}

REASONS = (0, Reason.TARGET_MISSING, Reason.REFUSED_BY_BROKER, Reason.NO_LEADER)
TOO_LARGE = "1000 bytes; the partition takes 900"
DETAILS = ("", "the topic does not exist", "refused by the broker", "", "no partition has a leader")


MASTER_RULES = Rules(
    shard=SHARD,
    shards=SHARDS,
    allow=["orders", "secret"],
    deny=["secret"],
    max_delay_ms=MAX_DELAY_MS,
    max_past_ms=MAX_PAST_MS,
    deduplication_ms=DEDUPLICATION_MS,
    misplaced="forward",
    delay_topic="d",
    next_cron=next_cron,
)
"""Those of a master."""

ANY_ID_RULES = Rules(
    shard=SHARD,
    shards=SHARDS,
    allow=["orders"],
    max_delay_ms=MAX_DELAY_MS,
    deduplication_ms=DEDUPLICATION_MS,
    next_cron=next_cron,
)
"""Those of a master that does not ask where an id belongs."""

OTHER_RULES = [
    Rules(shard=SHARD, shards=SHARDS, allow=["nothing"], misplaced="forward", delay_topic="other"),
    Rules(shard=SHARD, shards=SHARDS, own_topics=["orders"], deduplication_ms=0, max_delay_ms=1),
    Rules(
        shard=SHARD, shards=SHARDS, deduplication_ms=10**12, max_delay_ms=10**12, misplaced="reject"
    ),
]


def opened(rows: Rows, rules: Rules = MASTER_RULES) -> Shard:
    """A shard that starts from its store, as after a restart."""
    data = rows.rows.get(STATE_KEY)
    return Shard(rules=rules, state=FRESH if data is None else unpack_state(data), view=rows)


def pending_rows(rows: Rows, state: State) -> list[tuple[int, int, bytes]]:
    """Entries of the store beyond the cursor."""
    return [
        (*entry_position(key), rows.rows[key])
        for key in sorted(rows.rows)
        if key[:1] == b"e" and entry_position(key) > state.cursor
    ]


class Master:
    """Runs a history: both logs, a store, and a model that must agree with them."""

    rules = MASTER_RULES

    def __init__(self, chunk: int = 1_000_000, kept_ms: int | None = None) -> None:
        """`kept_ms`: how long settled ids are remembered; None: for ever."""
        self.kept_ms = kept_ms
        self.store = Rows(chunk=chunk)
        self._open()
        self.model = Model(SHARD, DEDUPLICATION_MS)
        self.producers = Producers()
        self.progress: list[tuple[int, int, bytes]] = []
        self.snapshots = [dict(self.store.rows)]
        self.delivered: list[Message] = []
        self.now_ms = START_MS

    def _open(self) -> None:
        self.shard = opened(self.store, self.rules)
        self.look_ahead: LookAhead[None] = LookAhead(self.shard)

    def play(self, history: Sequence[Step]) -> None:
        for step in history:
            self.now_ms += step.waited_ms
            for sent in step.sent:
                self.producers.send(sent, self.now_ms)
            for what, amount in step.disturbances:
                if what == "restart":
                    self._open()
                else:
                    disturb(self.shard, what, amount, self.now_ms)
            self.step(step)

    def drain(self, until_ms: int) -> None:
        """Step until no message is pending; each step must make progress."""
        plain = Step((), 0, 3, 400, (("delivered", 0),), (), False, False)
        self.now_ms = until_ms
        for _ in range(200):
            self.now_ms += 1  # a series gets its first time in one step, and is due in the next
            self.step(plain)
            if self.shard.state.pending == self.shard.state.held == 0:
                break
        assert self.shard.state.pending == self.shard.state.held == 0

    def step(self, step: Step) -> Selection:
        shard, model, ahead = self.shard, self.model, self.look_ahead
        for destination in sorted(shard.queues.states.keys() - {*step.closed}):
            self._write_on(destination, step)
        first = sum(intent.offset < model.pull_offset for intent in self.producers.intents)
        last = first + step.records_max
        intents, records = self.producers.intents[first:last], self.producers.records[first:last]
        first_offset, last_offset = model.pull_offset, model.pull_offset + step.unreadable - 1
        steps_over = step.unreadable > 0 and not records
        if steps_over:
            self.producers.skip_to(last_offset)
            staged = shard.stage_unreadable([(first_offset, last_offset)])
            rejection = Rejection(Reason.UNREADABLE, f"offsets {first_offset} to {last_offset}")
            staged.letters.rejections.append((unreadable_record(first_offset), rejection))
        else:
            horizon_ms = 0
            if self.kept_ms is not None:
                horizon_ms = max(0, shard.state.progress_ms - self.kept_ms)
            staged = shard.stage(records, ahead.parsed(records), horizon_ms=horizon_ms)
        texts = {record.offset: rejection.detail for record, rejection in staged.letters.rejections}
        closed = {*step.closed} | shard.queues.states.keys()
        staged.letters.hold_forwards(closed)
        if REJECTED in closed:
            staged.letters.hold_rejections()
        behind = step.behind or last < len(self.producers.records)
        until_ms = min(self.now_ms, staged.watermark_ms) if behind else self.now_ms
        selection = ahead.selection(staged, until_ms, step.messages_max, step.bytes_max)
        # Parts of the next step that are computed before this one has ended must make no difference
        # to it.
        ahead.select(selection, until_ms, step.messages_max, step.bytes_max)
        ahead.parse(self.producers.records[last : last + 2])
        selection = self._open_lanes(staged, selection, step)
        if step.aborted:
            return selection

        model.forget(staged.horizon_ms)
        refused = model.step_over(first_offset, last_offset) if steps_over else model.stage(intents)
        refused, waiting = model.hold(refused, closed, ELSEWHERE)
        assert staged.letters.refused == refused
        silent = (Reason.IGNORED, Reason.REPEATED, Reason.FORWARDED, Reason.HELD)
        assert [record.offset for record, _ in staged.letters.rejections] == [
            offset for offset, reason in refused if reason not in silent and offset not in waiting
        ]
        assert {held.record.offset: held.destination for held in staged.letters.held} == {
            offset: destination for offset, (destination, _) in waiting.items()
        }
        assert [(record.offset, partition) for record, partition in staged.letters.forwards] == [
            (offset, ELSEWHERE) for offset, reason in refused if reason is Reason.FORWARDED
        ]
        self._check_selection(staged, selection, until_ms, step)
        chosen = self._decide(selection, step)
        progress = self._progress(staged, selection, chosen)
        for held, hold in zip(staged.letters.held, progress.held, strict=True):
            destination, reason = waiting[hold.offset]
            text = progress.details[hold.detail - 1] if hold.detail else ""
            cut = texts.get(hold.offset, "").encode()[:DETAIL_BYTES_MAX].decode(errors="ignore")
            assert text == cut or (not text and len(progress.details) == DETAILS_MAX)
            model.enqueue(
                destination, held.record, 0 if reason is Reason.FORWARDED else reason, text
            )
        self._commit(staged, selection, progress, chosen)
        return selection

    def _write_on(self, destination: int, step: Step) -> None:
        """Write the first held records of a destination on, if the step is not aborted."""
        shard, queue = self.shard, self.model.queues[destination]
        prefix = shard.queues.first(destination, step.messages_max, step.bytes_max)
        count, sizes = len(prefix.rows), [len(row) for _, row in queue]
        assert [(offset, pack_held(held), size) for offset, held, size in prefix.rows] == [
            (offset, row, len(row)) for offset, row in queue[:count]
        ]
        assert count == 1 or (count <= step.messages_max and sum(sizes[:count]) <= step.bytes_max)
        if step.aborted:
            return
        staged = shard.stage_nothing(0)
        if step.oversized and destination != REJECTED:
            offset, held, _ = prefix.rows[-1]
            prefix = replace(prefix, too_large=(offset,))
            staged.letters.rejections = [
                (record_of(offset, held), Rejection(Reason.TOO_LARGE, TOO_LARGE))
            ]
            if REJECTED in {*step.closed} | shard.queues.states.keys():
                staged.letters.hold_rejections()
        staged.letters.written = [prefix]
        selection = nothing_selected(shard.state.cursor, complete=True)
        self.model.forget(staged.horizon_ms)
        rejected = count if destination == REJECTED else len(staged.letters.rejections)
        self.model.write_on(destination, count, rejected, len(staged.letters.held))
        for each in staged.letters.held:
            self.model.enqueue(REJECTED, each.record, Reason.TOO_LARGE, TOO_LARGE)
        self._commit(staged, selection, self._progress(staged, selection, {}), {})

    def _commit(
        self,
        staged: Staged,
        selection: Selection,
        progress: Progress,
        chosen: dict[int, ChosenOutcome],
    ) -> None:
        shard, model, ahead = self.shard, self.model, self.look_ahead
        ahead.write(staged, selection, progress)
        offset, timestamp_ms = 2 * len(self.progress) + 1, max(self.now_ms, shard.state.progress_ms)
        writes = ahead.writes(staged, selection)
        changes = shard.apply(
            staged, selection, progress, offset=offset, timestamp_ms=timestamp_ms, writes=writes
        )
        # A failed write is retried, so a second computation must give the same changes.
        assert (
            shard.apply(staged, selection, progress, offset=offset, timestamp_ms=timestamp_ms)
            == changes
        )
        self.store.write(changes.puts, changes.deletes)
        shard.install(changes)
        ahead.installed(changes)
        self.last_progress = progress
        self.progress.append((offset, timestamp_ms, pack_progress(progress)))
        self.snapshots.append(dict(self.store.rows))
        lanes = [
            ((cursor.topic, cursor.partition), (cursor.due_ms, cursor.offset))
            for cursor in progress.lanes
        ]
        self.delivered += model.apply(selection.cursor, chosen, timestamp_ms, lanes)
        self._check_store(offset, timestamp_ms)

    def _open_lanes(self, staged: Staged, selection: Selection, step: Step) -> Selection:
        """Add the messages that leave the open lanes."""
        lanes = self.shard.lanes
        opened = [lane for lane in sorted(lanes.states) if lane[1] in step.lanes]
        found = [
            lanes.select(
                lane,
                staged,
                step.messages_max,
                step.bytes_max,
                step.allowed if lane[1] == LIMITED else None,
                self.now_ms,
            )
            for lane in opened
        ]
        leaving = [lane for lane in found if lane is not None]
        return (
            with_leaving(selection, leaving, complete=selection.complete) if leaving else selection
        )

    def _check_leaving(self, staged: Staged, selection: Selection, step: Step) -> None:
        """What leaves a lane is a prefix of it, within the limits; a message that failed before
        leaves alone. Messages that an upsert of this step put into the lane leave it later."""
        for leaving in selection.leaving:
            everything = self.model.lane(leaving.lane)
            parked = [each for each in everything if each.offset not in staged.relaned]
            count = len(leaving.items)
            assert leaving.items == [
                (*message.position, message.packed()) for message in parked[:count]
            ]
            assert leaving.is_all == (count == len(everything))
            assert count == 1 or (
                count <= step.messages_max
                and all(message.attempt == 1 for message in parked[:count])
            )
            size = sum(len(data) for _, _, data in leaving.items)
            assert size <= step.bytes_max or count == 1
            if leaving.lane[1] == LIMITED:
                live = [
                    m
                    for m in parked[:count]
                    if m.expire_at_ms is None or self.now_ms <= m.expire_at_ms
                ]
                assert step.allowed is None or len(live) <= step.allowed
        offered = {leaving.lane for leaving in selection.leaving}
        closed = (LIMITED,) if step.allowed == 0 else ()
        lanes = {
            (m.intent.target, m.lane)
            for m in self.model.pending.values()
            if m.lane in step.lanes and m.lane not in closed and m.offset not in staged.relaned
        }
        assert offered == lanes, "an open lane stands still"

    def _check_selection(
        self, staged: Staged, selection: Selection, until_ms: int, step: Step
    ) -> None:
        model, until = self.model, (until_ms, LAST)
        self._check_leaving(staged, selection, step)
        due = model.due(until)
        items = selection.items[selection.left :]
        count = len(items)
        assert items == [(*message.position, message.packed()) for message in due[:count]]
        assert selection.cursor >= model.cursor
        assert model.due(selection.cursor) == due[:count]
        assert selection.cursor <= max(until, model.cursor)
        assert selection.complete == (selection.cursor == max(until, model.cursor))
        size = sum(len(data) for _, _, data in items)
        assert count <= step.messages_max
        assert size <= step.bytes_max or count == 1
        if not selection.complete:
            assert count > 0 or selection.cursor > model.cursor, "the step gets nowhere"
            if not staged.removed and count < len(due):
                full = (
                    count == step.messages_max or size + len(due[count].packed()) > step.bytes_max
                )
                assert full, "a step takes as much as it may"

    def _decide(self, selection: Selection, step: Step) -> dict[int, ChosenOutcome]:
        chosen = {}
        for at, ((_, offset, _), entry) in enumerate(
            zip(selection.items, selection.entries, strict=True)
        ):
            outcome, in_ms = step.outcomes[at % len(step.outcomes)]
            is_series = entry.options is not None and entry.options.repetition is not None
            if outcome in ("again", "skipped") and not is_series:
                outcome = "delivered"
            elif is_series and entry.occurrence == 0:
                outcome = "skipped"
            goes_on = is_series and outcome in ("expired", "dead") and in_ms > 0
            stays = goes_on or outcome in ("again", "skipped", "retry", "deferred")
            # A series that is behind skips to a later time with the same occurrence.
            counts = (
                goes_on
                or outcome == "again"
                or (outcome == "skipped" and (in_ms % 2 or not entry.occurrence))
            )
            chosen[offset] = ChosenOutcome(
                outcome=outcome,
                next_due_ms=self.now_ms + in_ms if stays else 0,
                lane=LANES[in_ms % len(LANES)] if outcome == "parked" else 0,
                reason=0 if outcome in ("delivered", "again") else REASONS[in_ms % len(REASONS)],
                detail=DETAILS[in_ms % len(DETAILS)],
                occurrence=entry.occurrence + bool(counts),
                attempt=1
                if outcome in ("again", "skipped")
                else entry.attempt + (outcome == "retry"),
            )
        return chosen

    def _progress(
        self, staged: Staged, selection: Selection, chosen: dict[int, ChosenOutcome]
    ) -> Progress:
        details: list[str] = []
        decisions = tuple(
            Decision(
                due_ms=due_ms,
                offset=offset,
                outcome=OUTCOMES[choice.outcome],
                next_due_ms=choice.next_due_ms,
                occurrence=choice.occurrence,
                attempt=choice.attempt,
                lane=choice.lane,
                reason=choice.reason,
                detail=detail_number(details, choice.detail),
            )
            for due_ms, offset, _ in selection.items
            if (choice := chosen[offset]).outcome != "delivered"
        )
        progress = WRITER.progress(
            staged,
            selection,
            decisions,
            details,
            held_forwards=self.shard.state.held_forwards,
        )
        return unpack_progress(pack_progress(progress), SHARDS)

    def _check_store(self, offset: int, timestamp_ms: int) -> None:
        expected = self.model.rows(
            applied=offset + 1,
            progress_ms=timestamp_ms,
            role_epoch=3,
            log_epoch=4,
            instance="i-1",
            node="one",
        )
        assert self.store.rows == expected
        assert unpack_state(self.store.rows[STATE_KEY]) == self.shard.state
        check_wheel(self.shard, pending_rows(self.store, self.shard.state))
        for message_id in self.model.id_states.keys() - self.model.forgotten:
            assert self._lookup(message_id) == self.model.lookup(message_id)

    def _lookup(self, message_id: bytes) -> str | None:
        """The answer of a query: the stored state of the id, else the entry at a generated id's
        position."""
        id_state = self.store.rows.get(id_key(message_id))
        if id_state is not None:
            return STATE_NAMES.get(unpack_id_state(id_state).state)
        parsed = parse_generated_id(message_id, SHARDS)
        data = parsed and self.store.rows.get(entry_key(*parsed[1:]))
        if not data or not parsed or entry_id(unpack_entry(data), SHARD, parsed[2]) != message_id:
            return None
        return "delivered" if parsed[1:] <= self.shard.state.cursor else "pending"


class Replica:
    """Replays both logs of a master from any of its states, with other settings."""

    def __init__(self, master: Master, start: int, rules: Rules, chunk: int) -> None:
        self.master = master
        self.rules = rules
        self.store = Rows(master.snapshots[start], chunk)
        self.shard = opened(self.store, rules)

    def follow(self, progress: Progress, offset: int, timestamp_ms: int) -> None:
        shard = self.shard
        records = [
            record
            for record in self.master.producers.records
            if shard.state.pull_offset <= record.offset < progress.pull_offset
        ]
        if progress.unreadable:
            assert not records, "a step over a range pulls nothing else"
            staged = shard.stage_unreadable(progress.unreadable, progress)
        else:
            staged = shard.replay_stage(records, progress)
        selection = shard.replay_select(
            staged, (progress.cursor_due_ms, progress.cursor_offset), progress.lanes
        )
        changes = shard.apply(staged, selection, progress, offset=offset, timestamp_ms=timestamp_ms)
        self.store.write(changes.puts, changes.deletes)
        shard.install(changes)


class Scenario(Master):
    """A master with records and steps given one by one; its ids belong to any shard."""

    rules = ANY_ID_RULES

    def send(
        self,
        verb: str,
        message_id: bytes | None = None,
        due_ms: int = 0,
        *,
        at: int = START_MS,
        **more: Any,
    ) -> int:
        """Write one record; return its offset."""
        intents = self.producers.intents
        offset = intents[-1].offset + 1 if intents else 1
        intents.append(
            Intent(offset=offset, timestamp_ms=at, verb=verb, id=message_id, due_ms=due_ms, **more)
        )
        self.producers.records.append(render(intents[-1]))
        return offset

    def run(
        self,
        now_ms: int,
        *outcomes: tuple[str, int],
        messages_max: int = 100,
        bytes_max: int = 10**6,
    ) -> Selection:
        """Run one step."""
        self.now_ms = now_ms
        return self.step(
            Step(
                (),
                0,
                messages_max,
                bytes_max,
                outcomes or (("delivered", 0),),
                (),
                behind=False,
                aborted=False,
            )
        )

    def places(self, selection: Selection) -> list[tuple[int, int]]:
        return [item[:2] for item in selection.items]

    def refused(self) -> list[tuple[int, int]]:
        """Offsets and reasons of the records that the last step refused."""
        return list(self.last_progress.refused)
