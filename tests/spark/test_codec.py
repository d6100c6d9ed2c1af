"""Arrow batches in, Arrow batches out: a column is parsed as the core parses each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.keys import generated_id
from chronos.core.message import Action, ConditionalSchedule, Entry, Record, Rejection, Verb
from chronos.core.shard.codec import RULES
from chronos.core.shard.parsing import parse
from chronos.core.shard.progress import (
    NO_OUTCOMES,
    Decision,
    Hold,
    LaneCursor,
    Outcome,
    Progress,
    Written,
    pack_progress,
)
from chronos.core.shard.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.errors import LogMismatch
from chronos.spark import schema
from chronos.spark.codec import PARSED, parse_messages, unpack_decisions, unpack_steps

SHARDS = 3
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

names = st.sampled_from(
    [
        "chronos-deliver-at",
        "chronos-delay",
        "chronos-target-topic",
        "chronos-target-key",
        "chronos-action",
        "chronos-id",
        "chronos-on-conflict",
        "chronos-expire-at",
        "chronos-forwarded",
        "chronos-unknown",
        "traceparent",
        "ü",
    ]
)
values = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.sampled_from(
        [
            b"1800000000000",
            b"5s",
            b"orders",
            b"cancel",
            b"replace",
            b"reschedule",
            b"fire-now",
            b"settled",
            b"probe",
            b"ignore",
            b"0-1800000000000-3",
            b"2100-01-01T00:00:00Z",
            b"d/2/7;1700000000000",
        ]
    ),
)
records = st.builds(
    Record,
    offset=st.integers(0, 2**40),
    timestamp_ms=st.integers(1_700_000_000_000, 1_800_000_000_000),
    key=st.one_of(st.none(), st.binary(max_size=8)),
    value=st.one_of(st.none(), st.binary(max_size=8)),
    headers=st.lists(st.tuples(names, values), max_size=5),
)


def batch_of(rows: list[tuple[int, Record]]) -> pa.RecordBatch:
    """A batch as Spark's Kafka source makes it: without headers the column is null."""
    headers = [
        [{"name": name, "value": value} for name, value in record.headers]
        if record.headers
        else None
        for _, record in rows
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([shard for shard, _ in rows], pa.int32()),
            pa.array([record.offset for _, record in rows], pa.int64()),
            pa.array([record.timestamp_ms for _, record in rows], pa.int64()),
            pa.array([record.key for _, record in rows], pa.binary()),
            pa.array([record.value for _, record in rows], pa.binary()),
            pa.array(headers, HEADERS),
        ],
        names=["shard", "offset", "timestamp_ms", "key", "value", "headers"],
    )


def expected(shard: int, record: Record) -> dict[str, Any]:
    """The command that the core parses, as columns."""
    command = parse(record, Rules(shard=shard, shards=SHARDS, max_delay_ms=2 * MS_MAX))
    row: dict[str, Any] = dict.fromkeys(PARSED)
    entry = command.entry if isinstance(command, ConditionalSchedule) else command
    if isinstance(entry, Entry):
        row |= {
            "verb": "schedule",
            "target": entry.target,
            "target_key": entry.key,
            "requested_due_ms": entry.due_ms,
            "due_ms": entry.due_ms,
            "expire_at_ms": entry.expire_at_ms,
            "id": entry.id or generated_id(shard, entry.due_ms, record.offset),
            "first_ms": other_than(record.timestamp_ms, entry.timestamp_ms),
        }
    if isinstance(command, Entry) and command.id is not None:
        row |= {"on_conflict": "reject"}
    elif isinstance(command, ConditionalSchedule) and command.verb is Verb.REPLAY:
        row |= {"on_conflict": None if record.key is None else "reject"}
    elif isinstance(command, ConditionalSchedule):
        row |= {"verb": command.verb.name.lower(), "on_conflict": command.on_conflict.name.lower()}
    elif isinstance(command, Action):
        row |= {
            "verb": command.verb.name.lower().replace("_", "-"),
            "id": command.id or None,
            "requested_due_ms": command.due_ms,
            "due_ms": command.due_ms,
            "first_ms": other_than(record.timestamp_ms, command.first_ms),
        }
    elif isinstance(command, Rejection):
        row |= {"verb": "refused", "id": record.key, "reason": command.reason.label}
    return row


def other_than(timestamp_ms: int, first_ms: int | None) -> int | None:
    """The first timestamp of a forwarded record, if it is not its own."""
    return None if first_ms == timestamp_ms else first_ms


@given(st.lists(st.tuples(st.integers(0, 2), records), min_size=1, max_size=20), st.data())
def test_a_batch_is_parsed_as_the_core_parses_each_record(
    rows: list[tuple[int, Record]], data: st.DataObject
) -> None:
    """Also a slice of a batch; the columns of the record stay unchanged."""
    batch = batch_of(rows)
    begin = data.draw(st.integers(0, len(rows)))
    (made,) = parse_messages(SHARDS)(iter([batch.slice(begin)]))
    assert made.schema.names == [name for name, *_ in schema.MESSAGES.columns]
    assert made.select(batch.schema.names).to_pylist() == batch.slice(begin).to_pylist()
    assert made.select(list(PARSED)).to_pylist() == [
        expected(shard, record) for shard, record in rows[begin:]
    ]


@pytest.mark.parametrize("key", [b"order-7", None])
def test_the_replay_of_a_dead_letter_is_a_schedule_under_its_own_id(key: bytes | None) -> None:
    """Also under a generated id, which has no conflict policy."""
    headers = [
        ("chronos-action", b"replay"),
        ("chronos-replayed", b"chronos.delay/1/41"),
        ("chronos-delay", b"0"),
        ("chronos-target-topic", b"orders"),
        ("chronos-id", b"1-1800000000000-41"),
    ]
    (made,) = parse_messages(SHARDS)(
        iter([batch_of([(1, Record(5, 1_800_000_000_000, key, b"v", headers))])])
    )
    (row,) = made.to_pylist()
    assert (row["verb"], row["id"]) == ("schedule", key or b"1-1800000000000-41")
    assert row["on_conflict"] == (None if key is None else "reject")


@pytest.mark.parametrize(
    ("headers", "verb", "due_ms"),
    [
        ([("chronos-delay", b"5s"), ("chronos-target-topic", b"orders")], "schedule", 6_000),
        (
            [
                ("chronos-action", b"replace"),
                ("chronos-delay", b"5s"),
                ("chronos-target-topic", (b"orders")),
            ],
            "replace",
            6_000,
        ),
        ([("chronos-action", b"reschedule"), ("chronos-delay", b"5s")], "reschedule", 6_000),
        ([("chronos-action", b"cancel")], "cancel", None),
    ],
)
def test_a_forwarded_record_keeps_its_first_timestamp_beside_its_own(
    headers: list[tuple[str, bytes]], verb: str, due_ms: int | None
) -> None:
    """It is null in a record that was not forwarded, or that was within the same millisecond."""
    hop = ("chronos-forwarded", b"d/2/7;1800000001000")
    sent = [
        Record(5, 1_800_000_000_000 + at, b"k", b"v", [*headers, *hops])
        for at, hops in ((1_000, []), (1_000, [hop]), (1_300, [hop]))
    ]
    (made,) = parse_messages(SHARDS)(iter([batch_of([(1, record) for record in sent])]))
    due_at_ms = None if due_ms is None else 1_800_000_000_000 + due_ms
    assert [(row["verb"], row["due_ms"]) for row in made.to_pylist()] == [(verb, due_at_ms)] * 3
    assert made.select(["timestamp_ms", "first_ms"]).to_pylist() == [
        {"timestamp_ms": 1_800_000_001_000, "first_ms": None},
        {"timestamp_ms": 1_800_000_001_000, "first_ms": None},
        {"timestamp_ms": 1_800_000_001_300, "first_ms": 1_800_000_001_000},
    ]


def test_progress_records_become_a_row_each_and_a_row_for_each_decision() -> None:
    """Refusals and outcomes other than delivery become decisions; counts become columns."""
    step = Progress(
        role_epoch=7,
        log_epoch=3,
        cluster="shop",
        node="n1",
        instance="i",
        shards=SHARDS,
        cursor_due_ms=99,
        cursor_offset=2**64 - 1,
        pull_offset=12,
        counts=(5, 0, 1, 0, 0, 0, 1, 1),
        refused=((3, 18), (4, 200), (8, 21)),
        unreadable=((8, 10),),
        decisions=(
            Decision(50, 6, Outcome.RETRY, 35, 70, 1, 2),
            Decision(51, 7, Outcome.DEAD, 33),
            Decision(52, 8, Outcome.PARKED, 36, lane=2),
        ),
        lanes=(LaneCursor("orders", -1, 49, 5),),
    )
    batch = pa.RecordBatch.from_pydict(
        {"shard": [1], "offset": [4], "timestamp_ms": [100], "value": [pack_progress(step)]}
    )
    (steps,) = unpack_steps(SHARDS)(iter([batch]))
    row = dict(
        zip(
            (name for name, *_ in schema.PROGRESS.columns),
            steps.to_pylist()[0].values(),
            strict=True,
        )
    )
    assert row == {
        "shard": 1,
        "offset": 4,
        "timestamp_ms": 100,
        "role_epoch": 7,
        "log_epoch": 3,
        "node": "n1",
        "instance": "i",
        "cursor_due_ms": 99,
        "cursor_offset": "18446744073709551615",
        "pull_offset": 12,
        "delivered": 5,
        "again": 0,
        "retried": 1,
        "deferred": 0,
        "skipped": 0,
        "expired": 0,
        "dead": 1,
        "parked": 1,
        "refused": 3,
        "value": pack_progress(step),
        "unreadable": [{"first": 8, "last": 10}],
    }
    (decisions,) = unpack_decisions(SHARDS)(iter([batch]))
    assert decisions.schema.names == [name for name, *_ in schema.DECISIONS.columns]
    assert [tuple(found.values())[3:] for found in decisions.to_pylist()] == [
        (None, 3, "refused", "unknown", None, 1, 1, None, None, None),
        (None, 4, "refused", "reason-200", None, 1, 1, None, None, None),
        *(
            (None, offset, "refused", "unreadable", None, 1, 1, None, None, None)
            for offset in (8, 9, 10)
        ),
        (50, 6, "retry", "refused-by-broker", 70, 1, 2, None, None, None),
        (51, 7, "dead-letter", "target-missing", None, 1, 1, None, None, None),
        (52, 8, "parked", "no-leader", None, 1, 1, 2, None, None),
        (49, 5, "left-lane", None, None, 1, 1, -1, "orders", None),
    ]


def test_held_records_have_their_destination_and_each_queue_written_on_a_row() -> None:
    """What was too large for its partition is refused by the step that wrote on the others."""
    step = Progress(
        role_epoch=7,
        log_epoch=3,
        cluster="shop",
        node="n1",
        instance="i",
        shards=SHARDS,
        cursor_due_ms=99,
        cursor_offset=4,
        pull_offset=12,
        counts=(0, *NO_OUTCOMES),
    )
    pulled = replace(
        step, refused=((3, 25), (4, 20), (5, 15)), held=(Hold(3, 2), Hold(5, -1)), held_forwards=1
    )
    wrote = replace(step, written=(Written(2, 3, (1, 3)), Written(-1, 5)))
    batch = pa.RecordBatch.from_pydict(
        {
            "shard": [1] * 2,
            "offset": [4, 6],
            "timestamp_ms": [100, 110],
            "value": [pack_progress(each) for each in (pulled, wrote)],
        }
    )
    (decisions,) = unpack_decisions(SHARDS)(iter([batch]))
    columns = ["progress_offset", "source_offset", "outcome", "reason", "destination"]
    assert [tuple(row.values()) for row in decisions.select(columns).to_pylist()] == [
        (4, 3, "refused", "held", 2),
        (4, 4, "refused", "forwarded", None),
        (4, 5, "refused", "conflict", -1),
        (6, 1, "refused", "too-large", None),
        (6, 3, "refused", "too-large", None),
        (6, 3, "written-on", None, 2),
        (6, 5, "written-on", None, -1),
    ]


STEP = Progress(
    role_epoch=7,
    log_epoch=3,
    cluster="shop",
    node="n1",
    instance="i",
    shards=SHARDS,
    cursor_due_ms=99,
    cursor_offset=4,
    pull_offset=12,
    counts=(5, *NO_OUTCOMES),
    refused=((3, 18),),
    decisions=(Decision(50, 6, Outcome.RETRY, 35, 70, 1, 2),),
)


def steps_batch(*values: bytes) -> pa.RecordBatch:
    """Progress records of one shard."""
    count = len(values)
    offsets = list(range(0, 2 * count, 2))
    return pa.RecordBatch.from_pydict(
        {
            "shard": [1] * count,
            "offset": offsets,
            "timestamp_ms": [100] * count,
            "value": list(values),
        }
    )


def test_fields_that_a_later_version_appended_to_a_progress_record_are_left_out() -> None:
    data = pack_progress(STEP)
    later = data[:2] + msgspec.msgpack.encode([*msgspec.msgpack.decode(data[2:]), [[5, 6]], "more"])
    batch = steps_batch(data, later)
    (steps,) = unpack_steps(SHARDS)(iter([batch]))
    rows = steps.rename_columns([name for name, *_ in schema.PROGRESS.columns]).to_pylist()
    assert [
        (row["pull_offset"], row["cursor_due_ms"], row["refused"], row["value"]) for row in rows
    ] == [(12, 99, 1, value) for value in (data, later)]
    (decisions,) = unpack_decisions(SHARDS)(iter([batch]))
    found = [(row["source_offset"], row["outcome"], row["reason"]) for row in decisions.to_pylist()]
    assert found == [(3, "refused", "unknown"), (6, "retry", "refused-by-broker")] * 2


@pytest.mark.parametrize("unpack", [unpack_steps, unpack_decisions], ids=["steps", "decisions"])
def test_progress_records_of_newer_rules_or_of_other_shards_are_refused(
    unpack: Callable[[int], Callable[..., Any]],
) -> None:
    """As by a node: what they mean is not known."""
    data = pack_progress(STEP)
    newer = data[:1] + bytes([RULES + 1]) + data[2:]
    with pytest.raises(LogMismatch, match=f"written by rules {RULES + 1}"):
        list(unpack(SHARDS)(iter([steps_batch(newer)])))
    with pytest.raises(LogMismatch, match=f"names {SHARDS} as the number of shards"):
        list(unpack(SHARDS + 1)(iter([steps_batch(data)])))


def test_a_first_timestamp_ahead_of_the_record_s_own_is_kept_within_half_a_second() -> None:
    """The clocks of two brokers differ; one that is further ahead counts as the record's own."""
    headers = [
        ("chronos-delay", b"5s"),
        ("chronos-target-topic", b"orders"),
        ("chronos-forwarded", b"d/2/7;1800000001000"),
    ]
    sent = [Record(5, 1_800_000_001_000 - ahead_ms, b"k", b"v", headers) for ahead_ms in (500, 501)]
    (made,) = parse_messages(SHARDS)(iter([batch_of([(1, record) for record in sent])]))
    assert made.select(["verb", "due_ms", "first_ms"]).to_pylist() == [
        {"verb": "schedule", "due_ms": 1_800_000_006_000, "first_ms": 1_800_000_001_000},
        {"verb": "schedule", "due_ms": 1_800_000_005_499, "first_ms": None},
    ]


def test_a_header_in_another_spelling_counts_in_the_archive() -> None:
    headers = [
        ("Chronos-Deliver-At", b"1800000000000"),
        ("CHRONOS_TARGET_TOPIC", b"orders"),
        ("chronos_spread", b"1h"),
    ]
    (made,) = parse_messages(SHARDS)(
        iter([batch_of([(1, Record(5, 1_800_000_000_000, None, b"v", headers))])])
    )
    (row,) = made.to_pylist()
    assert (row["verb"], row["requested_due_ms"]) == ("schedule", 1_800_000_000_000)
    assert row["due_ms"] > row["requested_due_ms"]
