"""Selection of the messages of a backfill, and the reasons to leave one out."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.spark import ledger, schema
from chronos.spark.audit.outcomes import Span
from chronos.spark.backfill import selection
from chronos.spark.request import BackfillRequest
from tests.spark.cases import JudgedShard, archive_of
from tests.spark.lost import START_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


T = START_MS
OUTCOME_COLUMNS = (
    "shard int, source_offset long, occurrence int, id binary, target string, requested_due_ms "
    "long, due_ms long, outcome string, reason string"
)


def every_outcome(spark: SparkSession) -> DataFrame:
    """A delivery of each outcome, at an offset of its own."""
    outcomes = [
        ("delivered", None),
        ("missing", None),
        ("duplicated", None),
        ("early", None),
        ("unknown", "gap"),
        ("cancelled", None),
        ("replaced", None),
        ("expired", "expired"),
        ("dead-lettered", "target-missing"),
        ("rejected", "past"),
        ("pending", "not-settled"),
        ("pending", "target-not-read-so-far"),
        ("skipped", None),
        ("pending", "held"),
        ("pending", "conflict"),
    ]
    rows = [
        (at % 2, at, 1, b"id-%d" % at, f"t-{at % 3}", T, T, outcome, reason)
        for at, (outcome, reason) in enumerate(outcomes)
    ]
    return spark.createDataFrame(rows, OUTCOME_COLUMNS)


@pytest.mark.parametrize(
    ("request_", "offsets"),
    [
        (BackfillRequest(mode="missing"), [1]),
        (BackfillRequest(mode="all"), [0, 1, 2, 3, 4, 11]),
        (BackfillRequest(mode="gone"), [0, 1, 2, 3, 4, 11]),
        (BackfillRequest(mode="pending"), [10, 13]),
        (BackfillRequest(mode="dead-letters"), [8]),
        (BackfillRequest(mode="dead-letters", reasons=["expired", "target-missing"]), [7, 8]),
        (BackfillRequest(mode="dead-letters", reasons=["too-large"]), []),
        (BackfillRequest(mode="rejected", reasons=["past", "conflict"]), [9]),
        (BackfillRequest(mode="rejected", reasons=["conflict"]), []),
        (BackfillRequest(mode="all", targets=["t-0", "*-1"]), [0, 1, 3, 4]),
        (BackfillRequest(mode="all", targets=["t"]), []),
        (BackfillRequest(mode="all", ids=[b"id-2".hex(), b"id-5".hex()]), [2]),
    ],
)
def test_the_requested_messages_are_selected(
    spark: SparkSession, request_: BackfillRequest, offsets: list[int]
) -> None:
    """By outcome, target and id; never a message that ended otherwise than by delivery."""
    found = selection.selected(every_outcome(spark), request_, {0: 15, 1: 14})
    assert sorted(row["source_offset"] for row in found.collect()) == offsets


def test_pending_messages_still_in_the_delay_topic_are_not_selected(spark: SparkSession) -> None:
    """Chronos reads their records itself: they must not come twice."""
    found = selection.selected(
        every_outcome(spark), BackfillRequest(mode="pending"), {0: 10, 1: 13}
    )
    assert found.collect() == []


@pytest.mark.parametrize("archived_ms", [T, T + 100])
def test_a_restore_selects_what_is_pending_and_the_ids_that_were_delivered_lately(
    spark: SparkSession, archived_ms: int
) -> None:
    """What was due by the loss is unknown unless the archive reaches to it. An id comes once, and
    not beside a pending message of it."""
    lost_ms, window_ms = T + 100, 1_000
    late_ms = lost_ms + CLOCK_TOLERANCE_MS
    rows: list[tuple[bytes, int, str, str | None, int | None]] = [
        (b"due at the loss", late_ms, "pending", "not-settled", None),
        (b"due later", late_ms + 1, "pending", "not-settled", None),
        (b"held", late_ms + 1, "pending", "held", None),
        (b"settled", T - 5_000, "pending", "target-not-read-so-far", None),
        (b"lately", T - 5_000, "delivered", None, lost_ms - window_ms),
        (b"long ago", T - 5_000, "delivered", None, lost_ms - window_ms - 1),
        (b"twice", T - 50, "delivered", None, T - 50),
        (b"twice", T - 40, "duplicated", None, T - 40),
        (b"due later", T - 40, "delivered", None, T - 40),
        (b"lost", T - 40, "missing", None, None),
        (b"not archived", T - 40, "unknown", "target-not-archived", None),
        (b"cancelled", T - 40, "cancelled", None, None),
        (b"expired", T - 40, "expired", "expired", None),
        (b"dead", T - 40, "dead-lettered", "target-missing", None),
        (b"rejected", T - 40, "rejected", "past", None),
    ]
    outcomes = spark.createDataFrame(
        [
            (0, at, 1, id_, "t", due_ms, due_ms, outcome, reason, delivered_ms, 1)
            for at, (id_, due_ms, outcome, reason, delivered_ms) in enumerate(rows)
        ],
        f"{OUTCOME_COLUMNS}, delivered_ms long, accepted_ms long",
    )
    request = BackfillRequest(mode="pending", lost_ms=lost_ms, deduplication_ms=window_ms)
    found = selection.restored(outcomes, request, archived_ms).collect()
    at_loss = "unknown" if archived_ms < lost_ms else "pending"
    assert sorted((row["source_offset"], row["outcome"]) for row in found) == [
        (0, at_loss),
        (1, "pending"),
        (2, "pending"),
        (4, "settled"),
        (7, "settled"),
        (9, "settled"),
        (10, "settled"),
    ]


def test_a_pending_message_is_not_restored_if_a_later_cancel_waited_to_be_executed(
    spark: SparkSession,
) -> None:
    """Whatever messages of its id came before the cancel; an executed one was judged by the audit,
    and another action may have been refused."""
    case = JudgedShard("", {}).step(T, T, 5)
    case.act("cancel", 4, b"refused", at_ms=T).act("cancel", 7, b"off", at_ms=T)
    case.act("reschedule", 8, b"moved", at_ms=T, due_ms=T + 9)
    tables = archive_of(spark, [case])
    rows = [(1, b"off"), (6, b"off"), (9, b"off"), (2, b"refused"), (3, b"moved")]
    deliveries = spark.createDataFrame(
        [(0, at, 1, id_, "t", T, T, "pending") for at, id_ in rows]
        + [(0, 0, 1, b"off", "t", T, T, "settled")],
        OUTCOME_COLUMNS.replace(", reason string", ""),
    )
    left = selection.without_cancelled(deliveries, tables.messages, tables.progress).collect()
    assert {row["source_offset"] for row in left} == {0, 9, 2, 3}


def test_a_dead_letter_that_was_replayed_or_discarded_is_left_alone(spark: SparkSession) -> None:
    """By its marker; or by the message of a replay whose marker is missing."""
    units = spark.createDataFrame(
        [(0, at, 1 + at // 7, b"i", "t", T, "dead-lettered") for at in range(9)],
        "shard int, source_offset long, occurrence int, id binary, target string,"
        " due_ms long, outcome string",
    )
    headers = "headers array<struct<name: string, value: binary>>"
    letters: list[tuple[Any, ...]]
    letters = [("dead", 1, 40 + at, "d", 0, at, 1, []) for at in range(7)]
    letters += [("dead", 0, 43, "d", 0, 6, 1, []), ("dead", 1, 43, "other", 0, 6, 1, [])]
    for resolution, resolved in ((b"replayed", b"41-42"), (b"discarded", b"30,43")):
        marker = [("chronos-resolution", resolution), ("chronos-resolved", resolved)]
        letters.append(("dead", 1, 99, None, None, None, 1, marker))
    dead_letters = spark.createDataFrame(
        letters,
        "topic string, partition int, offset long, source_topic string, shard int,"
        f" source_offset long, occurrence int, {headers}",
    )
    messages = spark.createDataFrame(
        [
            ([("chronos-replayed", of)],)
            for of in (b"d/0/4", b"d/0/7", b"d/0/8/2", b"other/0/5", b"d/0/0/2")
        ]
        + [(None,)],
        headers,
    )
    kept = selection.without_resolved(units, dead_letters, messages, "d").collect()
    assert sorted(row["source_offset"] for row in kept) == [0, 5, 6, 7]


def test_a_message_and_its_replays_count_once(spark: SparkSession) -> None:
    """The original is selected; if only replays were found, the first of them."""
    tokens = [(0, at, 1, b"i", "t", T, "missing") for at in range(7)]
    units = spark.createDataFrame(
        tokens,
        "shard int, source_offset long, occurrence int, id binary, target string,"
        " due_ms long, outcome string",
    )
    of = {1: "d/0/0/1", 2: "d/0/99/1", 3: "d/0/99/1", 4: "d/0/0/2", 5: "d/0/1/1"}
    copies = spark.createDataFrame(
        [(0, at, source) for at, source in of.items()], "shard int, source_offset long, of string"
    )
    kept = selection.without_copies(units, copies, "d").collect()
    # 4 repeats another occurrence than the one that is there; 5 is a replay of a replay.
    assert sorted(row["source_offset"] for row in kept) == [0, 2, 4, 6]


def test_receipts_and_replay_headers_name_the_messages_in_a_target(spark: SparkSession) -> None:
    """Messages of other delay topics do not count; a series names its occurrence."""
    rows = [
        ("t", [("chronos-source", b"d/1/7")]),
        ("t", [("chronos-source", b"d/1/8"), ("chronos-occurrence", b"3")]),
        ("u", [("chronos-source", b"d/0/99"), (ledger.REPLAY_OF, b"d/2/5/2")]),
        ("t", [("chronos-source", b"other/1/7")]),
        ("t", [("chronos-source", b"nonsense")]),
        ("t", [("chronos-source", b"d/99999999999/1")]),
        ("t", [("chronos-source", b"d/1/99999999999999999999")]),
        ("t", None),
    ]
    records = spark.createDataFrame(
        rows, "topic string, headers array<struct<name string, value binary>>"
    )
    found = selection.in_targets(records, "d").collect()
    assert sorted(tuple(row) for row in found) == [
        ("t", 1, 7, 1),
        ("t", 1, 8, 3),
        ("u", 0, 99, 1),
        ("u", 2, 5, 2),
    ]


def test_after_a_rebuild_under_the_same_names_only_the_same_messages_count_as_present(
    spark: SparkSession,
) -> None:
    """Receipts name other messages then: id and requested time must agree, and a replay must be one
    of this archive."""
    units = spark.createDataFrame(
        [(0, at, 1, b"id-%d" % at, "t", T + at, T + at + 7, "delivered") for at in range(6)],
        "shard int, source_offset long, occurrence int, id binary, target string, "
        "requested_due_ms long, due_ms long, outcome string",
    )

    def receipt(at: int, id_: bytes, due_ms: int) -> list[tuple[str, bytes]]:
        return [
            ("chronos-source", b"d/0/%d" % at),
            ("chronos-id", id_),
            ("chronos-due-at", b"%d" % due_ms),
        ]

    rows = [
        ("t", receipt(0, b"id-0", T)),
        ("t", receipt(1, b"another", T + 1)),
        ("t", receipt(2, b"id-2", T + 9)),
        (
            "t",
            [
                *receipt(9, b"r", T),
                (ledger.REPLAY_OF, b"d/0/3/1"),
                (ledger.REPLAY_POSITION, b"ours/0/1"),
            ],
        ),
        (
            "t",
            [
                *receipt(9, b"r", T),
                (ledger.REPLAY_OF, b"d/0/4/1"),
                (ledger.REPLAY_POSITION, b"theirs/0/1"),
            ],
        ),
    ]
    records = spark.createDataFrame(
        rows, "topic string, headers array<struct<name string, value binary>>"
    )
    strict = selection.without_present(units, records, "d", runs=["ours"]).collect()
    assert sorted(row["source_offset"] for row in strict) == [1, 2, 4, 5]
    same = selection.without_present(units, records, "d", runs=None).collect()
    assert [row["source_offset"] for row in same] == [5]


def test_gone_messages_are_counted_by_partition_as_deleted_or_lost(spark: SparkSession) -> None:
    """Deleted: before the first offset of the archived topic. A topic created again, and an
    unarchived delivery, are lost."""
    units = spark.createDataFrame(
        [(0, at, 1, b"i", target, T, "delivered") for at, target in enumerate("ttttug")],
        (
            "shard int, source_offset long, occurrence int, id binary, target string, due_ms "
            "long, outcome string"
        ),
    )
    held = [("t", 0, 4, 0), ("t", 0, 5, 1), ("t", 1, 5, 2), ("u", 0, 1, 4)]
    archived = spark.createDataFrame(
        [(topic, part, offset, 0, source, 1) for topic, part, offset, source in held],
        "topic string, partition int, offset long, shard int, source_offset long, occurrence int",
    )
    starts = spark.createDataFrame(
        [("t", 0, 5), ("t", 1, 9)], "target string, partition int, log_start long"
    )
    found = selection.gone_from(units, archived, starts).collect()
    assert sorted(map(tuple, found), key=repr) == sorted(
        [
            ("t", 0, 1, 1, 5),
            ("t", 1, 1, 0, 9),
            ("t", None, 0, 1, None),
            ("u", 0, 0, 1, None),
            ("g", None, 0, 1, None),
        ],
        key=repr,
    )


def test_a_message_must_have_all_requested_headers(spark: SparkSession) -> None:
    """With name and value; of several headers with the same name one is enough."""
    rows = [
        (0, [("tenant", b"a"), ("kind", b"x")]),
        (1, [("tenant", b"a")]),
        (2, [("kind", b"y"), ("kind", b"x"), ("tenant", b"a")]),
        (3, [("tenant", None), ("kind", b"x")]),
        (4, None),
        (5, []),
    ]
    records = spark.createDataFrame(rows, "n int, headers array<struct<name string, value binary>>")
    asked = BackfillRequest(mode="all", headers=[("tenant", "a"), ("kind", "x")])
    assert [
        row["n"] for row in records.where(selection.has_headers(asked)).orderBy("n").collect()
    ] == [0, 2]


def test_a_message_that_was_moved_into_the_window_is_found(spark: SparkSession) -> None:
    """Its record is in the folder of its first due time. A later occurrence expires as long after
    its time as the first."""
    units = spark.createDataFrame(
        [(0, 5, at, b"i", "t", T + at, T + at, "missing") for at in (1, 3)],
        "shard int, source_offset long, occurrence int, id binary, target string,"
        " requested_due_ms long, due_ms long, outcome string",
    )
    row = dict.fromkeys(schema.table_schema(schema.MESSAGES).names) | {
        "shard": 0,
        "offset": 5,
        "timestamp_ms": 1,
        "verb": "schedule",
        "value": b"four",
        "month": date(1999, 1, 1),
        "requested_due_ms": T + 1,
        "expire_at_ms": T + 10,
    }
    messages = spark.createDataFrame([tuple(row.values())], schema.table_schema(schema.MESSAGES))
    span = Span(from_ms=T, to_ms=T + 1)
    assert selection.with_records(units, messages, span).collect() == []
    found = selection.with_records(units, messages, None).orderBy("occurrence").collect()
    assert [(row["value"], row["bytes"], row["due_ms"], row["expire_at_ms"]) for row in found] == [
        (b"four", 4, T + 1, T + 10),
        (b"four", 4, T + 3, T + 12),
    ]


def test_a_moved_occurrence_takes_its_expiry_along(spark: SparkSession) -> None:
    """The first one of a series too, as in a pause; a message that does not repeat expires at the
    time of its header, wherever it is moved."""
    units = spark.createDataFrame(
        [
            (0, at, 1, b"i", "t", T + moved, T + moved, "pending")
            for at, moved in enumerate((7, -7, 7))
        ],
        "shard int, source_offset long, occurrence int, id binary, target string,"
        " requested_due_ms long, due_ms long, outcome string",
    )
    every = [{"name": "chronos-repeat", "value": b"every 1h"}]
    other = [{"name": "Chronos_Repeat", "value": b"every 1h"}]
    rows = [
        dict.fromkeys(schema.table_schema(schema.MESSAGES).names)
        | {
            "shard": 0,
            "offset": at,
            "timestamp_ms": 1,
            "verb": "schedule",
            "headers": headers,
            "month": date(1999, 1, 1),
            "requested_due_ms": T,
            "expire_at_ms": T + 5,
        }
        for at, headers in enumerate((every, other, None))
    ]
    messages = spark.createDataFrame(
        [tuple(row.values()) for row in rows], schema.table_schema(schema.MESSAGES)
    )
    found = selection.with_records(units, messages, None).orderBy("source_offset").collect()
    assert [row["expire_at_ms"] - T for row in found] == [12, 5, 5]


PLANNED = (
    "name string, outcome string, key binary, target string, bytes_max long, compacted boolean, "
    "target_compacted boolean, target_key binary, expire_at_ms long, value binary, id binary, "
    "headers array<struct<name string, value binary>>"
)
"""The columns of a plan and of the topic it goes to that decide whether a row can be sent."""


def test_messages_that_the_broker_would_refuse_are_left_out(spark: SparkSession) -> None:
    """Each with its reason; expiry may be ignored, a refusal of the broker may not."""
    plain: dict[str, object] = {
        "outcome": "pending",
        "key": None,
        "target": "t",
        "bytes_max": 2_000,
        "compacted": False,
        "target_compacted": None,
        "target_key": None,
        "expire_at_ms": None,
        "value": b"v" * 1_000,
        "id": b"i",
        "headers": [],
    }
    rows: list[dict[str, object]] = [
        {"name": "plain"},
        {"name": "expired", "expire_at_ms": T - 1},
        {"name": "expires now", "expire_at_ms": T},
        {"name": "no topic", "bytes_max": None, "compacted": None},
        {"name": "no key", "compacted": True},
        {"name": "key", "compacted": True, "target_key": b""},
        {"name": "large", "value": b"v" * 2_000},
        {"name": "large header", "headers": [("trace", b"h" * 1_000)]},
        {"name": "large key", "target_key": b"k" * 1_000},
        {"name": "no headers, no value", "headers": None, "value": None},
        {"name": "older than what the target holds", "target_compacted": True},
        {"name": "settled", "outcome": "settled", "key": b"i"},
        {"name": "settled under a generated id", "outcome": "settled"},
        {"name": "perhaps delivered", "outcome": "unknown"},
        {
            "name": "a series, perhaps delivered",
            "outcome": "unknown",
            "headers": [("Chronos_Repeat", b"every 1s")],
        },
        {
            "name": "headers that are dropped",
            "headers": [("chronos-x", b"h" * 1_000), (ledger.REPLAY_OF, b"h" * 1_000)],
        },
    ]
    names = [column.split()[0] for column in PLANNED.split(", ", 11)]
    planned = spark.createDataFrame(
        [tuple((plain | row)[name] for name in names) for row in rows], PLANNED
    )

    def why(request: BackfillRequest) -> dict[str, str]:
        found = planned.select("name", selection.left_out(request, T, "d").alias("why")).collect()
        return {row["name"]: row["why"] for row in found if row["why"] is not None}

    unsendable = {
        "no topic": "no-target",
        "no key": "no-target",
        "large": "too-large",
        "large header": "too-large",
        "large key": "too-large",
        "settled under a generated id": "no-id",
    }
    older = {"older than what the target holds": "compacted"}
    assert why(BackfillRequest(mode="missing")) == unsendable | older | {"expired": "expired"}
    assert why(BackfillRequest(mode="gone", expired=True)) == unsendable | older
    assert why(BackfillRequest(mode="all", expired=True, compacted=True)) == unsendable
    restore = BackfillRequest(mode="pending", expired=True)
    assert why(restore) == unsendable
    restore = structs.replace(restore, lost_ms=T)
    assert why(restore) == unsendable | {"perhaps delivered": "unknown"}
    assert why(structs.replace(restore, repeat_unknown=True)) == unsendable
