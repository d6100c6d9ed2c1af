"""The scan of all pending messages that bulk operations and counts per target use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronos.core.message import Entry
from chronos.core.query.filter import Filter
from chronos.core.query.scan import pending_between, scan_pending
from chronos.core.shard.codec import pack_entry, unpack_entry, unpack_head
from tests.unit.model import Rows
from tests.unit.played import MINUTE_MS, NOW_MS, SHARD, Played, parked


def scanned(rows: Rows, matching: Filter) -> tuple[int, list[tuple[bytes, int, str]]]:
    """The rows read, and id, due time and target of each match."""
    read, found = 0, []
    for count, matches in scan_pending(rows, SHARD, matching):
        read += count
        found += [(match.id, match.place_ms, match.target) for match in matches]
    return read, found


@given(
    sent=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.booleans(),
            st.sampled_from(["orders", "mails"]),
            st.sampled_from(["", "x"]),
        ),
        max_size=20,
    ),
    parking=st.integers(0, 20),
    settled=st.integers(0, 30),
    leave=st.integers(0, 3),
    start=st.integers(-5, 45),
    length=st.integers(0, 50),
    target=st.sampled_from([None, "orders", "nothing"]),
    header=st.booleans(),
    chunk=st.sampled_from([1, 3, 1_000]),
)
def test_a_scan_finds_exactly_the_pending_messages_of_the_filter(
    sent, parking, settled, leave, start, length, target, header, chunk
):
    """Parked ones too, whatever the size of a scan; delivered ones never, although their entries
    are still there."""
    played = Played()
    played.rows.chunk = chunk
    records = []
    for at, (due, keyed, topic, value) in enumerate(sent):
        headers = {
            "chronos-deliver-at": b"%d" % (NOW_MS + due),
            "chronos-target-topic": topic.encode(),
        }
        records.append(
            played.record(b"k%d" % at if keyed else None, b"v", headers | {"h": value.encode()})
        )
    played.step(records, NOW_MS)
    parkings = {at: parked(1, NOW_MS + due, at) for at, (due, *_) in enumerate(sent)}
    played.step([], NOW_MS + parking, parkings)
    played.step([], NOW_MS + max(parking, settled), leave=leave)
    matching = Filter(
        target=target,
        due_from_ms=NOW_MS + start,
        due_to_ms=NOW_MS + start + length,
        headers=(("h", b"x"),) if header else (),
    )
    expected = [
        (message_id, NOW_MS + due, topic)
        for at, (due, keyed, topic, value) in enumerate(sent)
        for message_id in [b"k%d" % at if keyed else b"%d-%d-%d" % (SHARD, NOW_MS + due, at)]
        if played.find(message_id) == "pending"
        and start <= due < start + length
        and target in (None, topic)
        and (value == "x" or not header)
    ]
    read, found = scanned(played.rows, matching)
    assert sorted(found) == sorted(expected)
    assert len(found) <= read <= pending_between(played.rows, matching)


def test_the_expected_number_is_that_of_the_minutes_of_the_window():
    """Messages are counted by the minute."""
    played = Played()
    played.step([played.send(NOW_MS + at * MINUTE_MS + 5) for at in range(10)], NOW_MS)
    assert pending_between(played.rows, Filter()) == 10
    assert (
        pending_between(
            played.rows,
            Filter(due_from_ms=NOW_MS + MINUTE_MS + 1, due_to_ms=NOW_MS + 3 * MINUTE_MS),
        )
        == 2
    )
    assert pending_between(played.rows, Filter(due_from_ms=NOW_MS, due_to_ms=NOW_MS)) == 0


def test_the_head_of_an_entry_is_its_first_fields():
    """They are decoded without the others."""
    entry = Entry(b"a", 5, "orders", b"k", {"h": b"v"}, b"value", 3)
    head = unpack_head(pack_entry(entry))
    whole = unpack_entry(pack_entry(entry))
    assert (head.id, head.due_ms, head.target) == (whole.id, whole.due_ms, whole.target)
