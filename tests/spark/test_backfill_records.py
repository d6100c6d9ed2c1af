"""The records that a backfill makes of the rows of a plan: target, key, payload and headers byte
for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from chronos.adapters.kafka.connection import BATCH_BYTES
from chronos.adapters.kafka.writer import BulkOpener
from chronos.core.message import Action, ConditionalSchedule, Entry, Record, Verb, folded_name
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import Rules
from chronos.core.size import batch_bytes
from chronos.spark import ledger
from chronos.spark.backfill import job as module
from chronos.spark.backfill import selection
from chronos.spark.backfill.pace import Pace
from chronos.spark.backfill.sending import (
    PORTION_BYTES,
    PORTION_ROWS,
    BulkRecord,
    SendingJob,
    records_of,
    rows_together,
)
from chronos.spark.request import BackfillRequest
from tests.spark.lost import START_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = START_MS


JOB = SendingJob(
    location="",
    cluster="c",
    topic="c.delay",
    to="c.delay",
    to_topic=None,
    run="r1",
    purpose="p",
    mode="missing",
    direct=False,
    expired=False,
    attempt=1,
    files=[],
    done=[],
    pace=Pace(base_ms=T + 500, rates=[(0, 2_000.0)]),
    ahead_ms=None,
    opener=BulkOpener(bootstrap_servers="", properties={}, timeout_s=1.0),
    batch_bytes=BATCH_BYTES,
)


def made(
    batch: pa.RecordBatch, job: SendingJob, part: int = 0, first: int = 0, rank: int = 0
) -> list[BulkRecord]:
    """The records of a batch; `rank` is that of the part's row 0."""
    return list(records_of(batch, job, part, first, lambda row: job.pace.due_ms(row + rank)))


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
values = st.none() | st.binary(max_size=20)
pairs = st.lists(
    st.tuples(
        names
        | st.sampled_from(["trace", "chronos-deliver-at", "chronos-source", "chronos-on-conflict"]),
        values,
    ),
    max_size=6,
)


ROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("source_offset", pa.int64()),
        ("occurrence", pa.int32()),
        ("id", pa.binary()),
        ("target", pa.string()),
        ("requested_due_ms", pa.int64()),
        ("due_ms", pa.int64()),
        ("outcome", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("target_key", pa.binary()),
        ("expire_at_ms", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""Schema of a plan."""


def batch_of(**row: Any) -> pa.RecordBatch:
    """One row of a plan."""
    given_ = {
        "shard": 3,
        "source_offset": 70,
        "occurrence": 2,
        "target": "orders",
        "requested_due_ms": T,
        "due_ms": T,
        "outcome": "missing",
        "bytes": 0,
        "key": None,
        "id": b"3-1-70",
        "expire_at_ms": None,
    } | row
    named: Any = given_["headers"]
    given_["headers"] = [{"name": name, "value": value} for name, value in named]
    return pa.RecordBatch.from_pylist([given_], ROW)


@given(
    headers=pairs,
    value=values,
    target_key=values,
    named=st.booleans(),
    mode=st.sampled_from(["missing", "pending"]),
)
def test_a_replay_schedules_the_lost_message_byte_for_byte(
    headers: list[tuple[str, bytes | None]],
    value: bytes | None,
    target_key: bytes | None,
    named: bool,
    mode: str,
) -> None:
    """Read by the core's parser: target, key, payload and the producer's own headers in order."""
    key = b"order-7" if named else None
    batch = batch_of(
        headers=headers, value=value, target_key=target_key, key=key, id=key or b"3-1-70"
    )
    (record,) = made(batch, structs.replace(JOB, mode=mode), part=4, first=9, rank=-5)
    topic, id_, payload, sent = record
    assert topic == "c.delay"
    derived = b"replay:p:c.delay/3/70/2"
    assert id_ == (key if named and mode == "pending" else derived)
    command = parse(Record(0, T, id_, payload, sent), Rules(shard=0, shards=1))
    assert isinstance(command, ConditionalSchedule)
    entry: Entry = command.entry
    own = [pair for pair in headers if not folded_name(pair[0]).startswith("chronos-")]
    added = [(ledger.REPLAY_OF, b"c.delay/3/70/2"), (ledger.REPLAY_POSITION, b"r1/4/9")]
    added += [(ledger.REPLAY_ID, key)] if key is not None else []
    passed = list(entry.headers.items()) if isinstance(entry.headers, dict) else list(entry.headers)
    assert passed == own + added
    assert (entry.target, entry.key, entry.value, entry.expire_at_ms) == (
        "orders",
        target_key,
        value,
        None,
    )
    assert entry.due_ms == (T if mode == "pending" else T + 502)
    assert command.on_conflict.name == "IGNORE"


def test_an_id_that_was_delivered_is_restored_as_settled() -> None:
    """Without payload and target, and with its position in the run."""
    batch = batch_of(headers=[], outcome="settled", key=b"order-7", id=b"order-7", target_key=b"k")
    ((topic, key, value, headers),) = made(batch, structs.replace(JOB, mode="pending"), 4, 9)
    assert (topic, key, value) == ("c.delay", b"order-7", None)
    assert (ledger.REPLAY_POSITION, b"r1/4/9") in headers
    command = parse(Record(0, T, key, value, headers), Rules(shard=0, shards=1))
    assert command == Action(Verb.SETTLED, b"order-7")


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("to_topic", [None, "o" * 249])
def test_a_replay_is_never_larger_than_its_estimate(
    spark: SparkSession, direct: bool, to_topic: str | None
) -> None:
    """With the longest numbers, a key and many headers; and the estimate is at most 2.5 kB too
    large."""
    job = structs.replace(
        JOB,
        direct=direct,
        run="20300101T000000-abcdef",
        purpose="p" * 64,
        topic="d" * 249,
        to_topic=to_topic,
    )
    plain = {
        "headers": [("n", None)] * 300,
        "value": b"v" * 1_000_000,
        "target_key": b"k" * 200,
        "target": "t" * 249,
    }
    most = {
        "key": b"i" * 300,
        "id": b"i" * 300,
        "expire_at_ms": 10**14,
        "due_ms": 10**14,
        "shard": 10**9,
        "source_offset": 10**18,
        "occurrence": 10**9,
    }
    for row in (plain, plain | most):
        batch = batch_of(**row)
        ((_, key, value, headers),) = made(batch, job, part=module.PARTS_MAX, first=10**9, rank=0)
        planned = spark.createDataFrame(
            [
                (
                    row["value"],
                    row["target_key"],
                    row["target"],
                    row.get("id", b"3-1-70"),
                    row["headers"],
                )
            ],
            (
                "value binary, target_key binary, target string, id binary, headers "
                "array<struct<name string, value binary>>"
            ),
        )
        asked = BackfillRequest(
            mode="missing", purpose=job.purpose, direct=direct, to_topic=to_topic
        )
        (estimate,) = planned.select(selection.replay_bytes(asked, job.topic)).collect()[0]
        assert 0 <= estimate - batch_bytes(key, value, headers) < 2_500


def test_the_rows_read_at_once_are_bounded_by_bytes(tmp_path: Path) -> None:
    """By the largest payload of a row group, even if Parquet stores equal ones once; by the headers
    if these are larger."""
    header = {"name": "h", "value": b"h" * 1_000_000}
    cases: list[tuple[list[dict[str, Any]], int]] = [
        ([{"bytes": 10, "value": b"v" * 10}] * 100, PORTION_ROWS),
        ([{"bytes": 1_000_000, "value": b"v" * 1_000_000}] * 20, PORTION_BYTES // 1_000_000),
        ([{"bytes": 2 * PORTION_BYTES, "value": b""}, {"bytes": 0, "value": b""}], 1),
        ([{"bytes": 0, "value": b"", "headers": [header]}], PORTION_BYTES // 1_000_000 - 1),
    ]
    for rows, expected_rows in cases:
        pq.write_table(pa.Table.from_pylist(rows, ROW), tmp_path / "plan.parquet")
        assert (
            rows_together(pq.read_metadata(tmp_path / "plan.parquet").row_group(0)) == expected_rows
        )


def test_a_replay_is_due_before_it_expires() -> None:
    """Even if it is spread over time; with expiry ignored it does not expire."""
    batch = batch_of(headers=[], value=b"", target_key=None, expire_at_ms=T + 501)
    for job, due_ms, expire_at_ms in (
        (JOB, T + 501, T + 501),
        (structs.replace(JOB, expired=True), T + 550, None),
    ):
        ((_, id_, value, headers),) = made(batch, job, part=0, first=100, rank=0)
        command = parse(Record(0, T, id_, value, headers), Rules(shard=0, shards=1))
        assert isinstance(command, ConditionalSchedule)
        assert (command.entry.due_ms, command.entry.expire_at_ms) == (due_ms, expire_at_ms)


SERIES = [
    ("chronos-repeat", b"every 1h"),
    ("chronos-repeat-times", b"9"),
    ("chronos-late-policy", b"fire-all"),
    ("chronos-spread", b"5m"),
    ("chronos-attempts", b"3"),
]


@pytest.mark.parametrize(("mode", "repeats"), [("missing", False), ("pending", True)])
def test_a_pending_series_goes_on_and_a_missing_occurrence_comes_alone(
    mode: str, repeats: bool
) -> None:
    """The seventh of nine occurrences: three are left."""
    batch = batch_of(
        headers=SERIES,
        value=b"v",
        target_key=None,
        occurrence=7,
        due_ms=T + 60_000,
        expire_at_ms=T + 600_000,
    )
    ((_, id_, value, headers),) = made(
        batch, structs.replace(JOB, mode=mode), part=0, first=0, rank=0
    )
    command = parse(Record(0, T, id_, value, headers), Rules(shard=0, shards=1, attempts_max=10))
    assert isinstance(command, ConditionalSchedule)
    entry = command.entry
    assert entry.options is not None
    assert (entry.due_ms, entry.expire_at_ms) == (T if repeats else JOB.pace.base_ms, T + 600_000)
    assert (entry.options.attempts_max, entry.options.spread_ms) == (3, 300_000 if repeats else 0)
    repetition = entry.options.repetition
    assert (repetition is None, repetition and repetition.times) == (
        not repeats,
        3 if repeats else None,
    )


def test_a_message_with_a_spread_that_is_pending_keeps_its_moment() -> None:
    batch = batch_of(
        headers=[("chronos-spread", b"5m")], value=b"v", target_key=None, due_ms=T + 60_000
    )
    ((_, _, _, headers),) = made(
        batch, structs.replace(JOB, mode="pending"), part=0, first=0, rank=0
    )
    assert [value for name, value in headers if name == "chronos-deliver-at"] == [
        b"%d" % (T + 60_000)
    ]
    assert "chronos-spread" not in dict(headers)


@pytest.mark.parametrize("direct", [True, False])
def test_all_messages_can_be_sent_to_one_topic(direct: bool) -> None:
    """Under ids that are in no conflict with replays to the targets."""
    batch = batch_of(headers=[], value=b"v", target_key=None)
    job = structs.replace(JOB, direct=direct, to_topic="repair")
    ((topic, id_, value, headers),) = made(batch, job)
    if direct:
        assert topic == "repair"
        return
    command = parse(Record(0, T, id_, value, headers), Rules(shard=0, shards=1))
    assert isinstance(command, ConditionalSchedule)
    assert command.entry.target == "repair"
    assert (topic, id_) == ("c.delay", b"replay:p@repair:c.delay/3/70/2")


def test_a_direct_replay_has_the_requested_time() -> None:
    batch = batch_of(headers=[], value=b"v", target_key=None, due_ms=T + 60_000)
    ((_, _, _, headers),) = made(batch, structs.replace(JOB, direct=True), part=0, first=0, rank=0)
    assert dict(headers)["chronos-due-at"] == b"%d" % T


def test_a_replay_of_a_replay_names_what_it_repeats() -> None:
    """Not the original of that replay: each header is there once."""
    old = [
        (ledger.REPLAY_OF, b"c.delay/0/0/1"),
        ("trace", b"x"),
        (ledger.REPLAY_POSITION, b"r0/1/1"),
        (ledger.REPLAY_ID, b"o"),
    ]
    ((_, _, _, headers),) = made(
        batch_of(headers=old, value=b"", target_key=None), JOB, part=0, first=0, rank=0
    )
    own = [pair for pair in headers if not folded_name(pair[0]).startswith("chronos-")]
    assert own == [
        ("trace", b"x"),
        (ledger.REPLAY_OF, b"c.delay/3/70/2"),
        (ledger.REPLAY_POSITION, b"r1/0/0"),
    ]


def test_the_rows_left_to_send_have_consecutive_ranks() -> None:
    """The ranks of all parts together, without the rows sent before."""
    job = structs.replace(JOB, done=[3, 0, 5])
    ranks = job.rank([5, 4, 7])
    assert [
        rank + row
        for rank, done, rows in zip(ranks, job.done, [5, 4, 7], strict=True)
        for row in range(done, rows)
    ] == [*range(8)]
