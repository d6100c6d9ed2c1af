"""The digest: equal for replicas with the same content, regardless of what retention dropped;
different for any other difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.keys import (
    COUNT,
    EXPIRY,
    ID_STATE,
    MINUTE_MS,
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
    partition_of,
    queue_state_key,
    wall_clock_key,
)
from chronos.core.message import Record
from chronos.core.shard.codec import (
    DELIVERED,
    FRESH,
    PENDING,
    IdState,
    LaneState,
    QueueState,
    State,
    pack_id_state,
    pack_lane_state,
    pack_queue_state,
    pack_state,
    unpack_state,
)
from chronos.core.shard.digest import PORTION_ROWS, digest
from chronos.core.shard.progress import unpack_progress
from chronos.core.shard.shard import Shard
from chronos.workers.replica.retention import Deleter, id_states_kept_ms
from chronos.workers.step.horizon import UNPULLED_BEFORE_MS, Horizon
from tests.harness.memory import MemoryStore
from tests.harness.rows import rows_of
from tests.harness.table import table
from tests.unit.drivers import MASTER_RULES, OTHER_RULES, Master, Replica
from tests.unit.histories import DEDUPLICATION_MS, SHARDS, Step, histories
from tests.unit.model import SHARD, Rows
from tests.unit.records import WRITER
from tests.unit.settings import examples

NOW_MS = 1_000 * MINUTE_MS
REMEMBERED_MS = id_states_kept_ms(0, DEDUPLICATION_MS)


class Cleaned(Replica):
    """A replica whose delete worker runs at times."""

    def __init__(self, master: Master, start: int, other: int, delivered_ms: int) -> None:
        super().__init__(master, start, OTHER_RULES[other], 1_000_000)
        self.store = MemoryStore()  # type: ignore[assignment]
        self.store.write(list(master.snapshots[start].items()), [])
        data = self.store.get([STATE_KEY])[0]
        state = FRESH if data is None else unpack_state(data)
        self.shard = Shard(rules=self.rules, state=state, view=self.store)
        self.deleter = Deleter(
            self.store,  # type: ignore[arg-type]
            self.shard,
            delivered_ms=delivered_ms,
            deduplication_ms=DEDUPLICATION_MS,
        )


@pytest.mark.slow
@examples(500)
@given(
    history=histories,
    starts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    others=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    kept_ms=st.sampled_from([0, MINUTE_MS, 100 * MINUTE_MS]),
    remembered_ms=st.sampled_from([0, 15, MINUTE_MS]),
    cleans=st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 300)), max_size=12),
)
def test_replicas_have_the_digest_of_their_master_whatever_retention_deleted(
    history: list[Step],
    starts: tuple[int, int],
    others: tuple[int, int],
    kept_ms: int,
    remembered_ms: int,
    cleans: list[tuple[int, int]],
) -> None:
    """Two replicas that start at different records, with other settings, retention and moments of
    cleaning."""
    master = Master(kept_ms=remembered_ms)
    master.play(history)
    replicas = [
        Cleaned(master, min(start, len(master.progress)), other, delivered_ms)
        for start, other, delivered_ms in zip(starts, others, (0, kept_ms), strict=True)
    ]
    for at, (offset, timestamp_ms, data) in enumerate(master.progress):
        for replica, start in zip(replicas, starts, strict=True):
            if at >= start:
                replica.follow(unpack_progress(data, SHARDS), offset, timestamp_ms)
        for number, late_ms in cleans[at : at + 1]:
            replicas[number].deleter.step(timestamp_ms + late_ms * 1_000)
        expected = digest(Rows(master.snapshots[at + 1]), remembered_ms=10**12)
        for replica, start in zip(replicas, starts, strict=True):
            assert at < start or digest(replica.store, remembered_ms=10**12) == expected
    for replica in replicas:
        replica.deleter.step(master.now_ms + 600 * MINUTE_MS)
        for compared_ms in (0, 1, REMEMBERED_MS, 10**12):
            assert digest(replica.store, remembered_ms=compared_ms) == digest(
                master.store, remembered_ms=compared_ms
            )


class ScannedStore(MemoryStore):
    """A store that keeps where the scans of its expiry rows began."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[bytes] = []

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        if start[:1] == EXPIRY:
            self.starts.append(start)
        return super().scan(start, stop, count_max, bytes_max)


def test_cancels_of_unknown_ids_are_remembered_for_the_deduplication_window_and_then_deleted() -> (
    None
):
    """Ten thousand, some of them sent twice: each leaves a state, for a message that may still be
    forwarded, and no more than that.

    No batch is looked for among the rows that the batches before it deleted.
    """
    store = ScannedStore()
    shard = Shard(rules=OTHER_RULES[0], state=FRESH, view=store)
    deleter = Deleter(store, shard, delivered_ms=0, deduplication_ms=DEDUPLICATION_MS)
    read_ms = [NOW_MS]
    horizon = Horizon(kept_ms=deleter.id_states_ms, elsewhere=lambda: read_ms[0])

    def commit(records: list[Record], now_ms: int) -> None:
        staged = shard.stage(records, horizon_ms=horizon.at(shard.state, now_ms))
        selection = shard.select(staged, now_ms, 1, 1)
        progress = WRITER.progress(staged, selection)
        changes = shard.apply(
            staged, selection, progress, offset=shard.state.applied + 1, timestamp_ms=now_ms
        )
        store.write(changes.puts, changes.deletes)
        shard.install(changes)

    def kept() -> int:
        rows = rows_of(store)
        return sum(key[:1] in (ID_STATE, EXPIRY) for key, _ in rows)

    def clean(now_ms: int) -> None:
        while deleter.step(now_ms) <= now_ms:
            pass

    unknown = [b"id-%d" % at for at in range(10_000)]
    home = [name for name in unknown if partition_of(name, SHARDS) == SHARD]
    for number, names in enumerate((home, home[:500])):
        first = number * len(home)
        commit(
            [Record(first + at, NOW_MS, name, None, []) for at, name in enumerate(names)],
            NOW_MS + number,
        )
    assert kept() == 2 * len(home) + 500
    clean(NOW_MS + 10)
    assert kept() == 2 * len(home) + 500
    later_ms = NOW_MS + 1 + REMEMBERED_MS + UNPULLED_BEFORE_MS + 2 * MINUTE_MS
    for minute in range(4):
        commit([], later_ms + minute * MINUTE_MS)
    clean(later_ms)
    assert kept() == 2 * len(home) + 500, "another shard has not read so far, and may still forward"
    read_ms[0] = later_ms
    for minute in range(4, 8):
        commit([], later_ms + minute * MINUTE_MS)
    store.starts.clear()
    clean(later_ms)
    assert kept() == 0
    assert store.starts == sorted(set(store.starts))
    assert len(store.starts) > 3
    store.starts.clear()
    clean(later_ms)
    assert store.starts == [EXPIRY], "the next pass does not begin at the first row"


@examples(300)
@given(history=histories, chunk=st.sampled_from([1, 2, 3, 7]))
def test_the_digest_does_not_depend_on_how_the_store_is_read(
    history: list[Step], chunk: int
) -> None:
    """In portions of any size."""
    master = Master()
    master.play(history)
    rows = Rows(master.store.rows, chunk)
    assert digest(rows, remembered_ms=REMEMBERED_MS) == digest(
        master.store, remembered_ms=REMEMBERED_MS
    )


STATE = State(
    applied=7,
    pull_offset=9,
    cursor_due_ms=NOW_MS,
    cursor_offset=50,
    pending=2,
    progress_ms=NOW_MS,
    node="a",
)
ROWS = {
    STATE_KEY: pack_state(STATE),
    entry_key(NOW_MS - 1, 3): b"settled",
    entry_key(NOW_MS, 50): b"settled at the cursor",
    entry_key(NOW_MS, 51): b"pending",
    entry_key(NOW_MS + 5, 4): b"pending too",
    id_key(b"p"): pack_id_state(IdState(PENDING, NOW_MS, 51)),
    id_key(b"young"): pack_id_state(IdState(DELIVERED, NOW_MS - 9, 2, NOW_MS - 100)),
    id_key(b"old"): pack_id_state(IdState(DELIVERED, NOW_MS - 9, 1, NOW_MS - 101)),
    expiry_key(NOW_MS - 100, b"young"): b"",
    expiry_key(NOW_MS - 101, b"old"): b"",
    count_key(NOW_MS // MINUTE_MS): (2).to_bytes(8, "big"),
    cursor_history_key(3): entry_key(1, 1),
}


def found(changes: dict[bytes, bytes | None]) -> str:
    rows = {key: value for key, value in {**ROWS, **changes}.items() if value is not None}
    return digest(Rows(rows), remembered_ms=100)


@table(
    "changes",
    [
        {STATE_KEY: pack_state(replace(STATE, applied=8))},
        {STATE_KEY: pack_state(replace(STATE, watermark_ms=1))},
        {STATE_KEY: pack_state(STATE)[:-1] + b"\xd9\0"},
        {STATE_KEY: None},
        {entry_key(NOW_MS, 51): b"pendinG"},
        {entry_key(NOW_MS, 51): None},
        {entry_key(NOW_MS, 52): b""},
        {entry_key(2**64 - 1, 2**64 - 1): b"far"},
        {entry_key(NOW_MS, 51): b"pending" + b"too", entry_key(NOW_MS + 5, 4): b""},
        {id_key(b"p"): None},
        {id_key(b"p"): pack_id_state(IdState(PENDING, NOW_MS, 52))},
        {id_key(b"young"): None},
        {id_key(b"young"): pack_id_state(IdState(DELIVERED, NOW_MS - 9, 2, NOW_MS - 99))},
        {expiry_key(NOW_MS - 100, b"young"): None},
        {count_key(NOW_MS // MINUTE_MS): (3).to_bytes(8, "big")},
        {count_key(NOW_MS // MINUTE_MS): None},
        {COUNT + b"\xff" * 8: b"\0"},
        {lane_key(("orders", 2), NOW_MS - 5, 3): b"parked"},
        {parked_key(NOW_MS - 5, 3): pack_lane(("orders", 2))},
        {lane_state_key(("orders", 2)): pack_lane_state(LaneState(1, NOW_MS - 5, 3))},
        {held_key(2, 3): b"held"},
        {queue_state_key(2): pack_queue_state(QueueState(1, 4, 3))},
        {wall_clock_key(NOW_MS, 51): b""},
    ],
)
def test_every_difference_that_matters_changes_the_digest(
    changes: dict[bytes, bytes | None],
) -> None:
    """A table of small differences between replicas that must not differ."""
    assert found(changes) != found({})


@pytest.mark.parametrize(
    "changes",
    [
        {entry_key(NOW_MS - 1, 3): None},
        {entry_key(NOW_MS, 50): None},
        {entry_key(5, 5): b"settled long ago"},
        {id_key(b"old"): None, expiry_key(NOW_MS - 101, b"old"): None},
        {expiry_key(5, b"p"): b""},
        {cursor_history_key(3): None},
        {b"midentity": b"somebody"},
    ],
)
def test_rows_that_may_be_dropped_at_any_time_do_not_change_the_digest(
    changes: dict[bytes, bytes | None],
) -> None:
    """Settled entries, id states past their retention, the cursor history."""
    assert found(changes) == found({})


def test_an_empty_store_has_the_digest_of_a_fresh_state() -> None:
    """Before the first progress record nothing needs to be written."""
    assert digest(Rows()) == digest(Rows({STATE_KEY: pack_state(FRESH)}))


def test_the_digest_of_a_format_stays_as_it_is() -> None:
    """Nodes of two versions compare digests: a change of the computation needs a new version
    byte."""
    assert found({}) == "69e45d185e0d479d328a050abfd216db"


def test_more_rows_than_one_portion_are_all_covered() -> None:
    """The last of many rows matters as much as the first."""
    many = {entry_key(NOW_MS + 60_000, at): b"v" for at in range(2 * PORTION_ROWS + 1)}
    last = entry_key(NOW_MS + 60_000, 2 * PORTION_ROWS)
    assert digest(Rows({**ROWS, **many})) != digest(Rows({**ROWS, **many, last: b"w"}))


def test_what_was_settled_before_an_outage_is_deleted_after_its_retention_whenever_the_next_record_came() -> (  # noqa: E501
    None
):
    """Else its entry outlives its id state, and an expired message would be found as delivered."""
    store = MemoryStore()
    settled, early = (100 * MINUTE_MS + 1, 1), (99 * MINUTE_MS + 1, 0)
    state = replace(FRESH, cursor_due_ms=300 * MINUTE_MS, progress_ms=300 * MINUTE_MS)
    rows = {
        STATE_KEY: pack_state(state),
        entry_key(*early): b"settled in minute 99",
        entry_key(*settled): b"settled in minute 100",
        cursor_history_key(100): entry_key(*early),
        cursor_history_key(300): entry_key(*settled),
    }
    store.write(list(rows.items()), [])
    shard = Shard(rules=MASTER_RULES, state=state, view=store)
    deleter = Deleter(store, shard, delivered_ms=200 * MINUTE_MS, deduplication_ms=0)
    deleter.step(300 * MINUTE_MS)
    assert store.get([entry_key(*early), entry_key(*settled)]) == [None, b"settled in minute 100"]
    shard.state = replace(state, progress_ms=301 * MINUTE_MS)
    deleter.step(301 * MINUTE_MS)
    assert store.get([entry_key(*settled)]) == [None]
