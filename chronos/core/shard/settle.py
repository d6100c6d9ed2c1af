"""The settled messages of a step: the id states that a committed progress record gives them, the
entries of those that stay pending, and the rows of both.

`settle` turns the decisions of the record into values, and the other functions turn these into
rows. Only `id_rows` needs the time of the record, so the rest is computed while it commits. Keeps
its part of laws 3 (an id is settled once) and 4 (no entry is placed at or before the cursor)."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from chronos.core.keys import ID_STATE, MINUTE_MS, entry_key, expiry_key, generated_id, lane_key
from chronos.core.series import carried
from chronos.core.shard.codec import (
    DEAD,
    DELIVERED,
    EXPIRED,
    PENDING,
    Failure,
    IdState,
    pack_entry,
    pack_id_state,
)
from chronos.core.shard.order import kept_from_ms
from chronos.core.shard.progress import Decision, Outcome, Progress
from chronos.core.shard.step import (
    KeyValue,
    Placed,
    Selection,
    Staged,
    StoreView,
    Writes,
    placed_ms,
)
from chronos.core.shard.wheel import Item


class Settled(Struct, frozen=True, kw_only=True):
    """What a step makes of the messages that it selected, and of the ids that it staged."""

    decisions: dict[int, Decision]
    """Source offset -> the decision of the progress record; a message without one is delivered."""
    behind_ms: int
    """Due time (epoch ms) of the settled entry of a message that left a lane: behind the cursor,
    whatever its offset."""
    id_states: dict[bytes, IdState]
    """New id states of messages without a decision; those of settled ids have no time yet."""
    decided: dict[bytes, IdState]
    """New id states of messages with a decision, without a time."""
    rescheduled: dict[int, Placed]
    """Source offset -> entry at its next time, of messages that stay pending."""
    parked: set[int]
    """Source offsets of the messages that are parked."""


def settle(staged: Staged, selection: Selection, progress: Progress, shard: int) -> Settled:
    """Return what the progress record makes of the selected messages."""
    items, entries, left = selection.items, selection.entries, selection.left
    cursor_ms = progress.cursor_due_ms
    behind_ms = cursor_ms - 1
    decisions = {decision.offset: decision for decision in progress.decisions}
    settled = Settled(
        decisions=decisions,
        behind_ms=behind_ms,
        id_states=dict(staged.id_states),
        decided={},
        rescheduled={},
        parked=set(),
    )
    id_states, decided = settled.id_states, settled.decided
    for at in selection.with_id:
        due_ms, offset, _ = items[at]
        if not decisions or offset not in decisions:
            entry, place_ms = entries[at], due_ms if at >= left else behind_ms
            id_states[entry.id] = IdState(  # type: ignore[index]
                DELIVERED, place_ms, offset, 0, None, entry.timestamp_ms, entry.order
            )
    if not decisions:
        return settled
    details, next_floor_ms = progress.details, placed_ms(0, 0, cursor_ms)
    like: Decision | None = None
    failure = None
    for at in [at for at, (_, offset, _) in enumerate(items) if offset in decisions]:
        (due_ms, offset, _), entry = items[at], entries[at]
        decision = decisions[offset]
        message_id = entry.id or generated_id(shard, entry.due_ms, offset)
        # Of thousands of messages that fail in one step, nearly all fail alike.
        if not decision.reason:
            failure = like = None
        elif like is None or not _fails_alike(decision, like):
            failure, like = _failure(decision, details), decision
        if id_states:
            id_states.pop(message_id, None)
        state, at_ms = PENDING, due_ms
        if decision.outcome is Outcome.PARKED:
            settled.parked.add(offset)
        elif decision.next_due_ms:
            next_ms, next_entry = carried(entry, decision, message_id, shard)
            at_ms = max(next_ms, next_floor_ms)
            settled.rescheduled[offset] = (at_ms, pack_entry(next_entry))
        else:
            assert decision.outcome in (Outcome.EXPIRED, Outcome.DEAD), (
                "a plain delivery is not a decision"
            )
            state = EXPIRED if decision.outcome is Outcome.EXPIRED else DEAD
            at_ms = due_ms if at >= left else behind_ms
        decided[message_id] = IdState(
            state, at_ms, offset, 0, failure, entry.timestamp_ms, entry.order
        )
    return settled


def _failure(decision: Decision, details: Sequence[str]) -> Failure | None:
    """Return the failure that the decision records, without its time; None if it names no reason.
    `details`: `Progress.details`."""
    if not decision.reason:
        return None
    # A dead message has used its last attempt; for any other one the decision has the number of the
    # attempt that comes next.
    attempts = decision.attempt - (decision.outcome is not Outcome.DEAD)
    detail = details[decision.detail - 1] if 0 < decision.detail <= len(details) else ""
    return Failure(decision.reason, attempts, 0, detail)


def _fails_alike(decision: Decision, other: Decision) -> bool:
    """Return whether two decisions of one step have equal failures."""
    return (
        decision.outcome == other.outcome
        and decision.reason == other.reason
        and decision.detail == other.detail
        and decision.attempt == other.attempt
    )


def entry_rows(
    staged: Staged, selection: Selection, settled: Settled
) -> tuple[list[KeyValue], list[bytes]]:
    """Return the rows of the entries that are placed, and the keys of those that leave their
    position; the rows of lanes are not among them."""
    placed, left, decisions = staged.placed, selection.left, settled.decisions
    rescheduled, parked = settled.rescheduled, settled.parked
    deletes = [entry_key(due_ms, source) for source, due_ms in staged.removed.items()]
    if rescheduled and not (placed or parked or left):
        deletes += [entry_key(decisions[source].due_ms, source) for source in rescheduled]
        placed = rescheduled
    elif rescheduled or parked:
        moved = (rescheduled.keys() | parked) - {source for _, source, _ in selection.items[:left]}
        deletes += [
            entry_key(decisions[source].due_ms, source) for source in moved if source not in placed
        ]
        if parked:
            placed = {source: place for source, place in placed.items() if source not in parked}
        placed = placed | rescheduled
    return [(entry_key(due_ms, source), data) for source, (due_ms, data) in placed.items()], deletes


def cancelled_rows(staged: Staged, behind_ms: int, view: StoreView) -> list[KeyValue]:
    """Return the settled entries of the messages that were cancelled: directly behind the cursor,
    as of those that left a lane. `behind_ms`: `Settled.behind_ms`."""
    if behind_ms < 0:
        return []
    keys = {}
    for offset, data in staged.cancels.items():
        if data is None and offset in staged.removed:
            keys[offset] = entry_key(staged.removed[offset], offset)
        elif data is None:
            due_ms, lane = staged.unparked[offset]
            keys[offset] = lane_key(lane, due_ms, offset)
    stored = dict(zip(keys, view.get(list(keys.values())), strict=True))
    entries = {
        offset: stored.get(offset) if data is None else data
        for offset, data in staged.cancels.items()
    }
    return [
        (entry_key(behind_ms, offset), data) for offset, data in entries.items() if data is not None
    ]


def minute_changes(staged: Staged, selection: Selection, settled: Settled) -> dict[int, int]:
    """Return the changes of the counts of pending messages, by minute of the epoch; parked messages
    are not counted."""
    changes: defaultdict[int, int] = defaultdict(int)
    left = selection.left
    for due_ms in staged.removed.values():
        changes[due_ms // MINUTE_MS] -= 1
    for due_ms, _ in staged.placed.values():
        changes[due_ms // MINUTE_MS] += 1
    _count_settled(selection.items[left:] if left else selection.items, changes)
    for due_ms, _ in settled.rescheduled.values():
        changes[due_ms // MINUTE_MS] += 1
    for due_ms, _ in staged.unparked.values():
        changes[due_ms // MINUTE_MS] -= 1
    for due_ms, _, _ in staged.relaned.values():
        changes[due_ms // MINUTE_MS] += 1
    for due_ms, _, _ in selection.items[:left]:
        changes[due_ms // MINUTE_MS] -= 1
    for source in settled.parked:
        changes[settled.decisions[source].due_ms // MINUTE_MS] += 1
    return changes


def _count_settled(items: Sequence[Item], changes: dict[int, int]) -> None:
    """Subtract selected items, which are in order of time, from the counts of their minutes."""
    at = 0
    while at < len(items):
        minute = items[at][0] // MINUTE_MS
        end = bisect_left(items, ((minute + 1) * MINUTE_MS,), lo=at)
        changes[minute] -= end - at
        at = end


def pending_rows(id_states: Mapping[bytes, IdState]) -> list[KeyValue]:
    """Return the rows of the ids that are pending, which need no time."""
    return [
        (ID_STATE + message_id, pack_id_state(id_state))
        for message_id, id_state in id_states.items()
        if id_state.state == PENDING
    ]


def id_rows(writes: Writes, timestamp_ms: int) -> tuple[dict[bytes, IdState], list[KeyValue]]:
    """Return the new id states of a step whose progress record has this time (epoch ms), and the
    rows that are not among `pending_rows`."""
    id_states = writes.id_states.copy()
    rows: list[KeyValue] = []
    for message_id, id_state in writes.id_states.items():
        if id_state.state == PENDING:
            continue
        # A state with a time was settled before: a cancel that is noted prolongs the time for which
        # it is kept.
        if not id_state.settled_ms:
            id_state = id_states[message_id] = IdState(
                id_state.state,
                id_state.due_ms,
                id_state.offset,
                timestamp_ms,
                None,
                id_state.first_ms,
                id_state.order,
            )
        kept_ms = id_state.settled_ms if id_state.order is None else kept_from_ms(id_state)
        rows.append((ID_STATE + message_id, pack_id_state(id_state)))
        rows.append((expiry_key(kept_ms, message_id), b""))
    for message_id, id_state in _dated(writes.decided, timestamp_ms).items():
        id_states[message_id] = id_state
        rows.append((ID_STATE + message_id, pack_id_state(id_state)))
        if id_state.state != PENDING:
            kept_ms = timestamp_ms if id_state.order is None else kept_from_ms(id_state)
            rows.append((expiry_key(kept_ms, message_id), b""))
    return id_states, rows


def _dated(id_states: Mapping[bytes, IdState], timestamp_ms: int) -> dict[bytes, IdState]:
    """Return the id states of the decisions of one step whose progress record has this time (epoch
    ms)."""
    dated_states: dict[bytes, IdState] = {}
    undated = failure = None
    for message_id, id_state in id_states.items():
        state = id_state.state
        if id_state.failure is None and state == PENDING:
            dated_states[message_id] = id_state
            continue
        if id_state.failure is not undated:
            undated = failure = id_state.failure
            if undated is not None:
                failure = Failure(undated.reason, undated.attempts, timestamp_ms, undated.detail)
        settled_ms = 0 if state == PENDING else timestamp_ms
        dated_states[message_id] = IdState(
            state,
            id_state.due_ms,
            id_state.offset,
            settled_ms,
            failure,
            id_state.first_ms,
            id_state.order,
        )
    return dated_states
