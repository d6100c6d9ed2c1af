"""Queries: the results of `find`, `page` and `timeline` for a shard made of real records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.keys import OFFSET_MAX, count_key, entry_key
from chronos.core.message import Entry, Reason, Record
from chronos.core.query.filter import Filter
from chronos.core.query.lookup import FoundMessage, find
from chronos.core.query.pages import (
    EMPTY_SCANS_MAX,
    MERGED_SCAN_MAX,
    PAGE_SCAN_MAX,
    SHARD_SCAN_MIN,
    MessageRow,
    next_place_ms,
    page,
    scan_share,
    settled,
)
from chronos.core.query.timeline import INTERVALS_MAX, timeline
from chronos.core.reach import EVERYTHING as ALL_REACH
from chronos.core.reach import Reach
from chronos.core.shard.codec import FRESH, State, pack_entry
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection
from tests.harness.memory import MemoryStore
from tests.unit.model import Rows
from tests.unit.played import MINUTE_MS, NOW_MS, SHARD, SHARDS, Played, parked
from tests.unit.settings import examples

EVERYTHING = Filter()


STATES = ("delivered", "cancelled", "expired", "dead", "settled")


def ended(
    played: Played, matching: Filter = EVERYTHING, states: Sequence[str] = STATES, limit: int = 2
) -> list[tuple[bytes, str]]:
    """All pages of settled messages: id and state."""
    found: list[FoundMessage] = []
    begin = None
    while True:
        rows, begin = settled(
            played.rows,
            played.state,
            SHARD,
            begin=begin,
            matching=matching,
            states=states,
            limit=limit,
        )
        assert len(rows) <= limit
        found += rows
        if begin is None:
            return [(each.id, each.state) for each in found]


def test_settled_messages_are_listed_with_their_state_and_by_every_condition():
    """In the order of their due times; a page may have any size, and pending messages are not among
    them."""
    played = Played()
    sent = [
        played.send(NOW_MS + 10, key=b"order-1"),
        played.send(NOW_MS + 20),
        played.send(NOW_MS + 30, key=b"order-2", target="mails"),
        played.record(
            b"order-3",
            b"v",
            {
                "chronos-deliver-at": b"%d" % (NOW_MS + 40),
                "chronos-target-topic": b"orders",
                "chronos-target-key": b"customer-7",
                "tenant": b"17",
            },
        ),
        played.send(NOW_MS + 2 * MINUTE_MS, key=b"order-4"),
    ]
    played.step(sent, NOW_MS)
    assert ended(played) == []
    decided = {
        0: Decision(NOW_MS + 10, 0, Outcome.EXPIRED),
        2: Decision(NOW_MS + 30, 2, Outcome.DEAD),
    }
    played.step([], NOW_MS + MINUTE_MS, decided)
    generated = b"%d-%d-1" % (SHARD, NOW_MS + 20)
    everything = [
        (b"order-1", "expired"),
        (generated, "delivered"),
        (b"order-2", "dead"),
        (b"order-3", "delivered"),
    ]
    for limit in (1, 2, 3, 4, 100):
        assert ended(played, limit=limit) == everything
    for matching, ids in (
        (Filter(target="mails"), [b"order-2"]),
        (Filter(id_prefix=b"order-"), [b"order-1", b"order-2", b"order-3"]),
        (Filter(key=b"customer-7"), [b"order-3"]),
        (Filter(key=b"customer"), []),
        (Filter(headers=(("tenant", b"17"),)), [b"order-3"]),
        (Filter(contains=b"tomer"), [b"order-3"]),
        (Filter(contains=b"enan"), [b"order-3"]),
        (Filter(contains=b"17"), [b"order-3"]),
        (Filter(contains=b"der-2"), [b"order-2"]),
        (Filter(contains=b"Tenant"), []),
        (Filter(due_from_ms=NOW_MS + 20, due_to_ms=NOW_MS + 40), [generated, b"order-2"]),
        (Filter(reach=Reach(targets=("orders",), ids=("order-3",))), [generated, b"order-3"]),
    ):
        assert [message_id for message_id, _ in ended(played, matching)] == ids, matching
    assert ended(played, states=["dead"], limit=1) == [(b"order-2", "dead")]


def test_a_message_whose_id_has_a_later_one_is_listed_without_its_end():
    """The state of the id is that of the later one."""
    played = Played()
    played.step([played.send(NOW_MS + 10, key=b"a")], NOW_MS)
    played.step([], NOW_MS + 20, {0: Decision(NOW_MS + 10, 0, Outcome.DEAD)})
    assert ended(played) == [(b"a", "dead")]
    played.step([played.send(NOW_MS + 30, key=b"a")], NOW_MS + 20)
    assert ended(played) == [(b"a", "settled")]
    played.step([], NOW_MS + 40)
    assert ended(played) == [(b"a", "settled"), (b"a", "delivered")]
    assert ended(played, states=["dead"]) == []


def test_cancelled_messages_are_listed_wherever_they_were_when_they_were_cancelled():
    """In the store, in the batch of the cancel, or in a lane; by their id, a generated one too; and
    not once they are sent again."""
    played = Played()
    played.step([], NOW_MS)
    lane_due = NOW_MS + 10
    sent = [
        played.send(lane_due, key=b"parked"),
        played.send(NOW_MS + MINUTE_MS, key=b"stored"),
        played.send(NOW_MS + MINUTE_MS),
    ]
    played.step(sent, NOW_MS)
    played.step([], NOW_MS + 20, {0: parked(2, lane_due, 0)})
    generated = b"%d-%d-2" % (SHARD, NOW_MS + MINUTE_MS)

    def cancel(message_id: bytes) -> Record:
        return played.record(message_id, None, {})

    batch = [played.send(NOW_MS + MINUTE_MS, key=b"batch", target="mails")]
    batch += [cancel(each) for each in (b"parked", b"stored", generated, b"batch")]
    played.step(batch, NOW_MS + 30)
    ids = [b"parked", b"stored", generated, b"batch"]
    assert ended(played) == [(each, "cancelled") for each in ids]
    assert [played.find(each) for each in ids] == ["cancelled"] * 4
    assert (played.state.pending, played.state.parked) == (0, 0)
    assert ended(played, Filter(target="mails")) == [(b"batch", "cancelled")]
    assert read_all(played, 10, EVERYTHING) == []
    played.step([played.send(NOW_MS + 50, key=b"stored")], NOW_MS + 60)
    assert ended(played, Filter(id_prefix=b"stored")) == [
        (b"stored", "settled"),
        (b"stored", "delivered"),
    ]
    played.step([], NOW_MS + 2 * MINUTE_MS)
    assert len(ended(played)) == 5, "nothing that was cancelled is delivered"


def test_a_parked_message_is_found_listed_and_counted_like_any_pending_one():
    """Also by the generated id, in the minute of its due time, and once it has left its lane."""
    played = Played()
    due = [NOW_MS + 10, NOW_MS + 20, NOW_MS + 20, NOW_MS + 30, NOW_MS + 2 * MINUTE_MS]
    targets = ["orders", "orders", "mails", "orders", "orders"]
    sent = [
        played.send(at, target=to, key=b"a" if at == due[3] else None)
        for at, to in zip(due, targets, strict=True)
    ]
    played.step(sent, NOW_MS)
    lanes = [2, -1, 0, 2]
    played.step([], NOW_MS + 40, {at: parked(lane, due[at], at) for at, lane in enumerate(lanes)})
    ids = [b"%d-%d-%d" % (SHARD, due[at], at) if at != 3 else b"a" for at in range(5)]
    assert [played.find(message_id) for message_id in ids] == ["pending"] * 5
    first = find(played.rows, played.state, SHARD, SHARDS, ids[0], reach=ALL_REACH)
    assert first is not None
    assert first.entry is not None
    assert (played.state.pending, played.state.parked) == (5, 4)
    assert timeline(played.rows, NOW_MS, NOW_MS + 3 * MINUTE_MS, MINUTE_MS) == [4, 0, 1]
    assert next_place_ms(played.rows, played.state) == due[4]

    def listed(limit: int, target: str | None = None, due_from_ms: int = 0) -> list[bytes]:
        return [
            row.id
            for row in read_all(played, limit, Filter(target=target, due_from_ms=due_from_ms))
        ]

    assert [listed(limit) for limit in (1, 2, 4, 5, 100)] == [ids] * 5
    assert listed(2, "mails") == [ids[2]]
    assert listed(2, due_from_ms=due[1]) == ids[1:]

    played.step([], NOW_MS + 50, {1: Decision(due[1], 1, Outcome.DEAD)}, leave=1)
    assert [played.find(message_id) for message_id in ids] == [
        "delivered",
        "dead",
        "delivered",
        "pending",
        "pending",
    ]
    left = find(played.rows, played.state, SHARD, SHARDS, ids[0], reach=ALL_REACH)
    assert left is not None
    assert left.entry is not None
    assert listed(100) == ids[3:]
    assert timeline(played.rows, NOW_MS, NOW_MS + 3 * MINUTE_MS, MINUTE_MS) == [1, 0, 1]


def test_a_list_has_the_reason_of_a_message_that_was_tried():
    played = Played()
    due = [NOW_MS + at for at in range(1, 4)]
    sent = [played.send(at, key=b"%d" % offset) for offset, at in enumerate(due)]
    played.step(sent, NOW_MS)
    failed = Decision(
        due[1], 1, Outcome.RETRY, Reason.TARGET_MISSING, next_due_ms=NOW_MS + 5_000, attempt=2
    )
    waits = Decision(due[0], 0, Outcome.PARKED, Reason.NO_LEADER, lane=2)
    played.step([], due[1], {0: waits, 1: failed})
    reasons = [row.failure and Reason(row.failure.reason) for row in read_all(played, 10)]
    assert reasons == [Reason.NO_LEADER, None, Reason.TARGET_MISSING]


def test_a_message_is_found_by_its_key_through_all_its_states():
    """The id state gives the state, the entry at its place the rest."""
    played = Played()
    played.step(
        [
            played.send(NOW_MS + 50, key=b"a"),
            played.send(NOW_MS + 60, key=b"b"),
            played.send(NOW_MS + 70, key=b"c"),
            played.send(NOW_MS + 80, key=b"d"),
        ],
        NOW_MS,
    )
    found = find(played.rows, played.state, SHARD, SHARDS, b"a", reach=ALL_REACH)
    assert found is not None
    assert (found.state, found.place_ms, found.settled_ms) == ("pending", NOW_MS + 50, None)
    assert found.entry is not None
    assert (found.entry.target, found.entry.value) == ("orders", b"v")

    played.step([played.record(b"b", None, {})], NOW_MS)
    not_delivered = {
        2: Decision(NOW_MS + 70, 2, Outcome.EXPIRED),
        3: Decision(NOW_MS + 80, 3, Outcome.DEAD),
    }
    played.step([], NOW_MS + 100, not_delivered)
    states = {key: played.find(key) for key in (b"a", b"b", b"c", b"d", b"e")}
    assert states == {
        b"a": "delivered",
        b"b": "cancelled",
        b"c": "expired",
        b"d": "dead",
        b"e": None,
    }
    cancelled = find(played.rows, played.state, SHARD, SHARDS, b"b", reach=ALL_REACH)
    assert cancelled is not None
    assert cancelled.entry is None
    assert cancelled.settled_ms == NOW_MS


def test_a_message_without_a_key_is_found_by_its_generated_id():
    """It has no id state: its position is its id, and the cursor shows whether it is settled."""
    played = Played()
    played.step([played.send(NOW_MS + 50)], NOW_MS)
    generated_id = b"%d-%d-0" % (SHARD, NOW_MS + 50)
    assert played.find(generated_id) == "pending"
    played.step([], NOW_MS + 50)
    assert played.find(generated_id) == "delivered"


def test_a_moved_message_is_found_by_its_original_generated_id():
    """Reschedule and retry keep the name."""
    played = Played()
    played.step([played.send(NOW_MS + 50)], NOW_MS)
    generated_id = b"%d-%d-0" % (SHARD, NOW_MS + 50)
    played.step(
        [],
        NOW_MS + 60,
        {0: Decision(NOW_MS + 50, 0, Outcome.RETRY, next_due_ms=NOW_MS + 900, attempt=2)},
    )
    found = find(played.rows, played.state, SHARD, SHARDS, generated_id, reach=ALL_REACH)
    assert found is not None
    assert found.entry is not None
    assert (found.state, found.place_ms, found.entry.due_ms, found.entry.attempt) == (
        "pending",
        NOW_MS + 900,
        NOW_MS + 50,
        2,
    )


@pytest.mark.parametrize(
    "other_id",
    [
        pytest.param(b"%d-%d-0" % (SHARD, NOW_MS + 50), id="a message with a key stands there"),
        pytest.param(b"%d-%d-7" % (SHARD, NOW_MS + 50), id="nothing stands there"),
        pytest.param(b"0-%d-0" % (NOW_MS + 50), id="another shard's"),
        pytest.param(b"7-%d-0" % (NOW_MS + 50), id="no shard's"),
    ],
)
def test_a_generated_id_of_no_message_finds_nothing(other_id):
    """The entry at the position in a generated id has that id only if it has no key and was not
    moved."""
    played = Played()
    played.step([played.send(NOW_MS + 50, key=b"a")], NOW_MS)
    assert played.find(other_id) is None


def read_all(played: Played, limit: int, matching: Filter = EVERYTHING) -> list[MessageRow]:
    """All pages, one after the other."""
    rows: list[MessageRow] = []
    through = None
    for _ in range(10_000):
        found, through = page(
            played.rows, played.state, SHARD, begin=through, matching=matching, limit=limit
        )
        assert len(found) <= limit
        rows += found
        if through is None:
            return rows
    raise AssertionError("the pages do not end")


@given(
    dues=st.lists(
        st.tuples(st.integers(-5, 40), st.booleans(), st.sampled_from(["orders", "mails"])),
        max_size=25,
    ),
    settled=st.integers(0, 20),
    limit=st.integers(1, 7),
    target=st.sampled_from([None, "orders", "mails", "nothing"]),
    start=st.integers(-10, 45),
    length=st.integers(0, 50),
)
def test_the_pages_hold_every_pending_message_once_and_in_order(
    dues, settled, limit, target, start, length
):
    """For every page size: strictly after the cursor, within the period, for the target."""
    played = Played()
    records = [
        played.send(NOW_MS + due, key=b"k%d" % at if keyed else None, target=topic)
        for at, (due, keyed, topic) in enumerate(dues)
    ]
    played.step(records, NOW_MS + settled)
    span = (NOW_MS + start, NOW_MS + start + length)
    matching = Filter(target=target, due_from_ms=span[0], due_to_ms=span[1])
    found = [(row.place_ms, row.offset) for row in read_all(played, limit, matching)]
    expected = sorted(
        (NOW_MS + due, at)
        for at, (due, _, topic) in enumerate(dues)
        if due > settled and target in (None, topic) and span[0] <= NOW_MS + due < span[1]
    )
    assert found == expected


def test_a_page_scans_a_bounded_number_of_entries(monkeypatch):
    """A target without messages costs many short scans, not one long one."""
    monkeypatch.setattr("chronos.core.query.pages.PAGE_SCAN_MAX", 10)
    played = Played()
    played.step([played.send(NOW_MS + 100 + at) for at in range(25)], NOW_MS)
    matching = Filter(target="nothing")
    found, through = page(played.rows, played.state, SHARD, begin=None, matching=matching, limit=5)
    assert (found, through) == ([], (NOW_MS + 110, 9))
    assert read_all(played, 5, matching) == []


def test_many_shards_share_what_is_read_for_a_page():
    played = Played()
    played.step([played.send(NOW_MS + 100 + at) for at in range(2 * SHARD_SCAN_MIN)], NOW_MS)
    matching = Filter(target="nothing")
    found, through = page(
        played.rows, played.state, SHARD, begin=None, matching=matching, limit=5, shards=1_000
    )
    following = SHARD_SCAN_MIN
    assert (found, through) == ([], (NOW_MS + 100 + following, following - 1))
    assert scan_share(1) == PAGE_SCAN_MAX
    assert scan_share(64) * 64 <= MERGED_SCAN_MAX


TEXTS = st.sampled_from(["", "1", "2"])


@given(
    sent=st.lists(
        st.tuples(
            st.sampled_from([None, "a", "ab", "b"]), st.lists(st.tuples(TEXTS, TEXTS), max_size=3)
        ),
        max_size=12,
    ),
    prefix=st.sampled_from([b"", b"a", b"ab", b"1-", b"2-"]),
    wanted=st.lists(st.tuples(TEXTS, TEXTS), max_size=2),
)
def test_a_filter_compares_ids_and_headers_as_a_user_reads_them(sent, prefix, wanted):
    """A generated id has a prefix too; of a repeated header any value counts; all conditions must
    be true."""
    played = Played()
    records, expected = [], []
    for at, (name, headers) in enumerate(sent):
        message_id = (
            b"%d-%d-%d" % (SHARD, NOW_MS + 9, at) if name is None else f"{name}{at}".encode()
        )
        record = played.send(NOW_MS + 9, key=None if name is None else message_id)
        pairs = [(name, value.encode()) for name, value in headers]
        records.append(replace(record, headers=[*(record.headers or ()), *pairs]))
        if message_id.startswith(prefix) and all(pair in headers for pair in wanted):
            expected.append(message_id)
    played.step(records, NOW_MS)
    conditions = tuple((name, value.encode()) for name, value in wanted)
    assert [
        row.id for row in read_all(played, 3, Filter(id_prefix=prefix, headers=conditions))
    ] == expected


class Moving(Rows):
    """The rows of a shard that takes a step before each of its reads."""

    def __init__(self, rows: Rows, step: Callable[[], None]) -> None:
        super().__init__(chunk=rows.chunk)
        self._behind, self._step = rows, step

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._step()
        return self._behind.get(keys)

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        self._step()
        return self._behind.scan(start, stop, count_max, bytes_max)


@examples(300)
@given(
    dues=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    moves=st.lists(
        st.tuples(
            st.sampled_from(["deliver", "park", "leave", "cancel", "send"]), st.integers(0, 29)
        ),
        max_size=40,
    ),
    limit=st.integers(1, 6),
    selective=st.booleans(),
    chunk=st.sampled_from([1, 2, 5, 1_000]),
)
def test_pages_hold_each_message_that_stays_exactly_once_while_others_leave(
    dues, moves, limit, selective, chunk
):
    """Messages are delivered, parked, let out of their lanes, cancelled and scheduled between any
    two reads of a page."""
    played = Played()
    played.rows.chunk = chunk
    played.step([played.send(NOW_MS + due, key=b"k%d" % at) for at, due in enumerate(dues)], NOW_MS)
    left = iter(moves)
    until_ms = NOW_MS

    def move() -> None:
        nonlocal until_ms
        kind, at = next(left, ("none", 0))
        if kind in ("deliver", "park"):
            until_ms += 3
            not_delivered = (
                {at: parked(1, NOW_MS + due, at) for at, due in enumerate(dues)}
                if kind == "park"
                else {}
            )
            played.step([], until_ms, not_delivered)
        elif kind == "leave":
            played.step([], until_ms, leave=2)
        elif kind == "cancel":
            played.step([played.record(b"k%d" % at, None, {})], until_ms)
        elif kind == "send":
            played.step([played.send(until_ms + 5)], until_ms)

    matching = Filter(id_prefix=b"k") if selective else EVERYTHING
    view = Moving(played.rows, move)
    rows: list[MessageRow] = []
    through = None
    for _ in range(1_000):
        found, through = page(
            view, played.state, SHARD, begin=through, matching=matching, limit=limit
        )
        assert len(found) <= limit
        assert not rows or not found or rows[-1].position < found[0].position
        rows += found
        if through is None:
            break
    assert through is None, "the pages do not end"
    listed = [row.id for row in rows]
    assert len(set(listed)) == len(listed)
    stayed = {b"k%d" % at for at in range(len(dues)) if played.find(b"k%d" % at) == "pending"}
    assert stayed <= set(listed)


def test_the_next_place_is_the_place_of_the_first_pending_message():
    """None if no message is pending."""
    played = Played()
    assert next_place_ms(played.rows, played.state) is None
    played.step([played.send(NOW_MS + 90), played.send(NOW_MS + 80)], NOW_MS)
    assert next_place_ms(played.rows, played.state) == NOW_MS + 80
    played.step([], NOW_MS + 85)
    assert next_place_ms(played.rows, played.state) == NOW_MS + 90


@given(
    dues=st.lists(st.integers(1, 40 * MINUTE_MS), max_size=20),
    step=st.integers(1, 7),
    start=st.integers(0, 10),
)
def test_the_timeline_counts_every_pending_message_in_its_interval(dues, step, start):
    """Whatever the step, in whole minutes."""
    played = Played()
    played.step([played.send(NOW_MS + due) for due in dues], NOW_MS)
    from_ms = NOW_MS + start * MINUTE_MS + 17
    counts = timeline(played.rows, from_ms, from_ms + 30 * MINUTE_MS, step * MINUTE_MS)
    begin = NOW_MS + start * MINUTE_MS
    # The minute in which the timeline begins and that in which it ends are counted whole.
    for at, count in enumerate(counts):
        low = begin + at * step * MINUTE_MS
        high = min(low + step * MINUTE_MS, begin + 31 * MINUTE_MS)
        assert count == sum(low <= NOW_MS + due < high for due in dues)


@pytest.mark.parametrize(
    ("span", "step", "why"),
    [
        (MINUTE_MS, 30_000, "whole number of minutes"),
        (MINUTE_MS, 90_000, "whole number of minutes"),
        (0, MINUTE_MS, "after the beginning"),
        (-1, MINUTE_MS, "after the beginning"),
        ((INTERVALS_MAX + 1) * MINUTE_MS, MINUTE_MS, "longer step"),
        (10**14, 10**9 * MINUTE_MS, "days at once"),
    ],
)
def test_an_impossible_timeline_is_refused_with_the_reason(span, step, why):
    """Messages are counted by the minute, and an answer has a size."""
    with pytest.raises(ValueError, match=why):
        timeline(Rows(), NOW_MS, NOW_MS + span, step)


def test_a_page_after_the_end_of_a_millisecond_starts_in_the_next():
    """After a step that settled everything due, the cursor is the end of a millisecond."""
    played = Played()
    played.step([played.send(NOW_MS + 10), played.send(NOW_MS + 11)], NOW_MS + 10)
    assert played.state.cursor == (NOW_MS + 10, OFFSET_MAX)
    assert [row.place_ms for row in read_all(played, 5)] == [NOW_MS + 11]


def cancelled(minutes: int, each: int) -> tuple[MemoryStore, State]:
    """A store in which `each` messages of every minute were cancelled one by one, and one is left
    after them all."""
    store, first = MemoryStore(skipped_max=10), NOW_MS // MINUTE_MS + 1
    keys = [
        entry_key((first + minute) * MINUTE_MS + at, at)
        for minute in range(minutes)
        for at in range(each)
    ]
    counts = [count_key(first + minute) for minute in range(minutes)]
    store.write([(key, b"") for key in keys] + [(key, b"") for key in counts], [])
    store.write([], [*keys, *counts])
    last = Entry(
        id=None,
        key=None,
        headers=[],
        value=b"v",
        timestamp_ms=1,
        due_ms=(first + minutes) * MINUTE_MS,
        target="orders",
    )
    store.write(
        [
            (entry_key(last.due_ms, 7), pack_entry(last)),
            (count_key(first + minutes), (1).to_bytes(8, "big")),
        ],
        [],
    )
    return store, replace(FRESH, cursor_due_ms=NOW_MS, pending=1)


def test_a_look_up_passes_over_minutes_without_pending_messages():
    """Of 9 minutes with 1,000 cancelled messages each it meets those of the first scan only."""
    store, state = cancelled(minutes=9, each=1_000)
    due_ms = (NOW_MS // MINUTE_MS + 10) * MINUTE_MS
    assert next_place_ms(store, state) == due_ms
    (row,), through = page(store, state, SHARD, begin=None, matching=EVERYTHING, limit=1)
    assert (row.position, through) == ((due_ms, 7), (due_ms, 7))


def test_a_page_behind_many_cancelled_messages_is_read_in_bounded_parts():
    """With a message left in their minute the counts do not help: each page ends after a few scans
    and says how far it came, and the pages together find the message."""
    store, state = cancelled(minutes=1, each=100)
    minute = NOW_MS // MINUTE_MS + 1
    store.write([(count_key(minute), (1).to_bytes(8, "big"))], [])
    assert next_place_ms(store, state) is None
    places, begin = [], None
    found: list[MessageRow] = []
    while not found:
        found, begin = page(store, state, SHARD, begin=begin, matching=EVERYTHING, limit=1)
        assert begin is not None
        places.append(begin)
    assert places == sorted(set(places))
    assert len(places) == -(-100 // (10 * EMPTY_SCANS_MAX))


def test_a_shard_reads_ahead_over_deleted_entries_in_parts():
    """One scan a step, so that what is pulled and due meanwhile does not wait; then it finds the
    message, in its place."""
    store, state = cancelled(minutes=1, each=100)
    minute = NOW_MS // MINUTE_MS + 1
    store.write([(count_key(minute), (1).to_bytes(8, "big"))], [])
    shard = Shard(rules=Rules(shard=SHARD, shards=SHARDS), state=state, view=store)
    until_ms = (minute + 2) * MINUTE_MS
    selections: list[Selection] = []
    while not selections or not selections[-1].items:
        staged = shard.stage_nothing(0)
        selections.append(shard.select(staged, until_ms, 10, 10**6))
    assert len(selections) >= 10
    assert not any(one.complete for one in selections[:-1])
    assert [item[:2] for item in selections[-1].items] == [((minute + 1) * MINUTE_MS, 7)]
    cursors = [one.cursor for one in selections]
    assert cursors == sorted(set(cursors))
