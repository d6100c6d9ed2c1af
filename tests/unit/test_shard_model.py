"""The shard against a naive model of the design, and against replicas of itself.

A random history is played by a master; the model must agree with every selection, every refusal and
every byte of the store. Replicas that start from any point of it, and get the recorded decisions,
must end with the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.shard.progress import Decision, Outcome, Written, unpack_progress
from chronos.errors import LogMismatch
from tests.unit.drivers import (
    MASTER_RULES,
    OTHER_RULES,
    Master,
    Replica,
    opened,
    pending_rows,
)
from tests.unit.histories import MAX_DELAY_MS, SHARDS, Step, check_wheel, disturb, histories
from tests.unit.model import MINUTE_MS, SKEW_MS
from tests.unit.settings import examples


@examples(500)
@given(
    history=histories,
    chunk=st.sampled_from([1, 2, 3, 1_000_000]),
    kept_ms=st.sampled_from([None, 0, 20, MINUTE_MS]),
)
def test_a_shard_agrees_with_the_model_whatever_disturbs_its_memory(
    history: list[Step], chunk: int, kept_ms: int | None
) -> None:
    master = Master(chunk, kept_ms)
    master.play(history)
    master.drain(master.now_ms + 10 * MAX_DELAY_MS)
    places = [message.position for message in master.delivered]
    assert places == sorted(set(places)), "delivered out of order, or twice at one position"
    # An action that came to another partition may be older than its message, by the difference of
    # two clocks.
    assert all(
        message.place_ms >= message.intent.first_ms - SKEW_MS for message in master.delivered
    )
    assert len(master.delivered) + len(master.model.left) == master.shard.state.totals.delivered


@examples(500)
@given(
    history=histories,
    start=st.integers(0, 12),
    other=st.integers(0, 2),
    chunk=st.sampled_from([1, 3, 1_000_000]),
    disturbed=st.lists(
        st.sampled_from(["", "clear", "shrink", "ahead", "restart"]), min_size=1, max_size=5
    ),
)
def test_a_replica_with_other_settings_ends_with_the_same_bytes_from_any_start(
    history: list[Step],
    start: int,
    other: int,
    chunk: int,
    disturbed: list[str],
) -> None:
    master = Master(kept_ms=20)
    master.play(history)
    start = min(start, len(master.progress))
    replica = Replica(master, start, OTHER_RULES[other], chunk)
    for at, (offset, timestamp_ms, data) in enumerate(master.progress[start:]):
        what = disturbed[at % len(disturbed)]
        if what == "restart":
            replica.shard = opened(replica.store, replica.rules)
        elif what:
            disturb(replica.shard, what, 2, timestamp_ms)
        replica.follow(unpack_progress(data, SHARDS), offset, timestamp_ms)
        assert replica.store.rows == master.snapshots[start + at + 1]
        check_wheel(replica.shard, pending_rows(replica.store, replica.shard.state))


@examples(300)
@given(
    history=histories,
    at=st.integers(0, 12),
    wrong=st.sampled_from(["more", "fewer", "refused", "unselected", "pull", "held", "written"]),
)
def test_a_progress_record_that_does_not_fit_the_log_stops_the_replica_before_it_writes(
    history: list[Step], at: int, wrong: str
) -> None:
    master = Master()
    master.play(history)
    if not master.progress:
        return
    at = min(at, len(master.progress) - 1)
    offset, timestamp_ms, data = master.progress[at]
    progress = unpack_progress(data, SHARDS)
    unselected = Decision(due_ms=1, offset=10**9, outcome=Outcome.DEAD)
    if wrong == "fewer" and progress.selected == 0:
        wrong = "more"
    bad = {
        "more": replace(progress, counts=(progress.counts[0] + 1, *progress.counts[1:])),
        "fewer": replace(progress, counts=(progress.counts[0] - 1, *progress.counts[1:])),
        "refused": replace(progress, refused=(*progress.refused, (10**9, 1))),
        "unselected": replace(progress, decisions=(*progress.decisions, unselected)),
        "held": replace(progress, held_forwards=progress.held_forwards + 1),
        "written": replace(progress, written=(*progress.written, Written(0, 10**9))),
        "pull": replace(progress, pull_offset=progress.pull_offset + 10**6),
    }[wrong]
    replica = Replica(master, at, MASTER_RULES, 1_000_000)
    master.producers.records = [
        r for r in master.producers.records if r.offset < progress.pull_offset
    ]
    with pytest.raises(LogMismatch, match="remove the shard's store"):
        replica.follow(bad, offset, timestamp_ms)
    assert replica.store.rows == master.snapshots[at]
    replica.follow(progress, offset, timestamp_ms)
    assert replica.store.rows == master.snapshots[at + 1]
