"""Compares what users can ask of a replica with the oracle's model: every lookup, every page, every
count."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chronos.core.message import Reason
from chronos.core.query.filter import Filter
from chronos.core.query.lookup import find
from chronos.core.query.pages import page
from chronos.core.query.timeline import timeline
from chronos.core.reach import EVERYTHING
from chronos.core.shard.codec import State
from tests.sim.oracle_model import ShardModel
from tests.sim.oracle_values import wrong
from tests.sim.store import SimStore

MINUTE_MS = 60_000
NEVER_USED = (b"never", b"0-1700000000000-1", b"id-99")


def compare(store: SimStore, model: ShardModel, ids: Sequence[bytes], dice: Random) -> None:
    """Compare a store with the model, which is at the same progress record; raises a Finding."""
    state = store.state
    assert state is not None
    if state.pull_offset != model.pull_offset or state.cursor != model.cursor:
        raise wrong(
            f"shard {model.number} is at {state}, not at {model.pull_offset} and {model.cursor}"
        )
    # Every lookup now and then; those that are likely to have changed always.
    known = (
        [*ids, *NEVER_USED]
        if dice.random() < 0.1
        else [*model.pending, *ids[:8], *dice.sample(ids, min(3, len(ids)))]
    )
    for message_id in known:
        _compare_lookup(store, state, model, message_id)
    _compare_pages(store, state, model, dice)
    _compare_counts(store, state, model)


def _compare_lookup(store: SimStore, state: State, model: ShardModel, message_id: bytes) -> None:
    found = find(store, state, model.number, model.terms.shards, message_id, reach=EVERYTHING)
    pending, settled = model.pending.get(message_id), model.settled.get(message_id)
    what = f"the lookup of {message_id!r} in shard {model.number}"
    if pending is not None:
        if found is None or found.state != "pending" or found.entry is None:
            raise wrong(f"{what} finds {found}, pending is {pending}")
        shown = (
            found.place_ms,
            found.offset,
            found.entry.due_ms,
            found.entry.occurrence,
            found.entry.attempt,
        )
        expected = (
            pending.place_ms,
            pending.offset,
            pending.due_ms,
            pending.occurrence,
            pending.attempt,
        )
        if (
            shown != expected
            or found.entry.target != pending.command.target
            or found.entry.value != pending.command.value
        ):
            raise wrong(f"{what} finds {shown}, not {expected}: {found}")
        if (found.lane or None) != pending.lane:
            raise wrong(f"{what} finds the lane {found.lane}, not {pending.lane}")
        if found.entry.expire_at_ms != pending.expire_at_ms:
            raise wrong(
                f"{what} finds the expiry {found.entry.expire_at_ms}, not {pending.expire_at_ms}"
            )
        reason = "" if found.failure is None else Reason(found.failure.reason).label
        if reason != pending.reason:
            raise wrong(f"{what} finds the failure {found.failure}, not {pending.reason!r}")
        return
    if settled is None:
        settled = model.forgotten.get(message_id)
        if settled is None and found is not None:
            raise wrong(f"{what} finds {found}, and no message has this id")
    if settled is None:
        return
    # Deleters run when they like, once the retention is over.
    if found is None and model.progress_ms - settled.settled_ms > model.terms.delivered_ms:
        return
    if found is None or found.state != settled.state or found.offset != settled.message.offset:
        raise wrong(f"{what} finds {found}, it is {settled}")
    if found.settled_ms not in (None, settled.settled_ms):
        raise wrong(f"{what} was settled at {found.settled_ms}, not at {settled.settled_ms}")


def _compare_pages(store: SimStore, state: State, model: ShardModel, dice: Random) -> None:
    limit, begin, rows = dice.choice([1, 3, 100]), None, []
    matching = dice.choice([Filter(), Filter(target="a"), Filter(id_prefix=b"id-")])
    while True:
        found, begin = page(store, state, model.number, begin=begin, matching=matching, limit=limit)
        if len(found) > limit:
            raise wrong(f"a page of {limit} messages has {len(found)}")
        rows += [
            (row.id, row.place_ms, row.offset, row.entry.due_ms, row.is_parked) for row in found
        ]
        if begin is None:
            break
    expected = [
        (message.id, message.place_ms, message.offset, message.due_ms, message.lane is not None)
        for message in sorted(model.pending.values(), key=lambda message: message.position)
        if matching.target in (None, message.command.target)
        and message.id.startswith(matching.id_prefix)
    ]
    if rows != expected:
        raise wrong(f"the pages of shard {model.number} have {rows}, pending are {expected}")


def _compare_counts(store: SimStore, state: State, model: ShardModel) -> None:
    parked = sum(message.lane is not None for message in model.pending.values())
    if (state.pending, state.parked) != (len(model.pending), parked):
        raise wrong(
            f"shard {model.number} counts {state.pending} pending and {state.parked} parked, "
            f"there are {len(model.pending)} and {parked}"
        )
    waiting = len(model.refusals) + sum(map(len, model.forwards.values()))
    if state.held != waiting:
        raise wrong(f"shard {model.number} counts {state.held} held records, there are {waiting}")
    if not model.pending:
        return
    times = sorted(message.place_ms // MINUTE_MS for message in model.pending.values())
    first = times[0] * MINUTE_MS
    last = min(times[-1], times[0] + 200) + 1
    counts = timeline(store, first, last * MINUTE_MS, MINUTE_MS)
    expected = [times.count(minute) for minute in range(times[0], last)]
    if counts != expected:
        raise wrong(f"the timeline of shard {model.number} has {counts}, pending are {expected}")
