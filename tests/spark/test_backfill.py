"""What backfill selects, what it makes of it, and that nothing is sent twice, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from chronos.adapters.kafka.bulk import BulkOpener
from chronos.adapters.kafka.log import BATCH_BYTES
from chronos.cli.backfill import _end
from chronos.cli.output import Format
from chronos.core.message import ConditionalSchedule, Entry, Record
from chronos.core.parsing import parse
from chronos.core.rules import Rules
from chronos.core.size import batch_bytes
from chronos.errors import ArchiveFailed, ArchiveInUse, LogUnavailable, ProducerLost
from chronos.spark import ledger, schema
from chronos.spark.audit.outcomes import Span
from chronos.spark.backfill import job as module
from chronos.spark.backfill.job import Backfill, selection
from chronos.spark.backfill.sending import (
    PORTION_BYTES,
    PORTION_ROWS,
    SendingJob,
    records_of,
    rows_together,
    send_parts,
)
from chronos.spark.requests import Attempt, BackfillRun, Request
from chronos.spark.storage import ArchiveStorage
from tests.integration.flow import read_committed
from tests.spark.conftest import connector
from tests.spark.logs import SHARDS, Logs
from tests.spark.lost import GAP_MS, START_MS, expected, said, write_lost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.harness.broker import Broker

T = START_MS
FATES = "shard int, source_offset long, occurrence int, id binary, target string, due_ms long, outcome string, reason string"


# --- selection


def fates(spark: SparkSession) -> DataFrame:
    """A unit of each outcome, at the offset that stands for it."""
    outcomes = [
        ("delivered", None), ("missing", None), ("duplicated", None), ("early", None), ("unknown", "gap"),
        ("cancelled", None), ("replaced", None), ("expired", None), ("dead-lettered", None), ("rejected", None),
        ("pending", "not-settled"), ("pending", "target-not-read-so-far"), ("skipped", None),
    ]  # fmt: skip
    rows = [
        (at % 2, at, 1, b"id-%d" % at, f"t-{at % 3}", T, outcome, reason)
        for at, (outcome, reason) in enumerate(outcomes)
    ]
    return spark.createDataFrame(rows, FATES)


@pytest.mark.parametrize(
    ("request_", "offsets"),
    [
        (Request(mode="missing"), [1]),
        (Request(mode="all"), [0, 1, 2, 3, 4, 11]),
        (Request(mode="gone"), [0, 1, 2, 3, 4, 11]),
        (Request(mode="pending"), [10]),
        (Request(mode="all", targets=["t-0", "*-1"]), [0, 1, 3, 4]),
        (Request(mode="all", targets=["t"]), []),
        (Request(mode="all", ids=[b"id-2".hex(), b"id-5".hex()]), [2]),
    ],
)
def test_what_is_asked_for_is_selected(spark: SparkSession, request_: Request, offsets: list[int]) -> None:
    """By outcome, target and id; never what ended otherwise than by delivery."""
    found = selection.selected(fates(spark), request_, {0: 11, 1: 0})
    assert sorted(row["source_offset"] for row in found.collect()) == offsets


def test_pending_is_what_the_delay_topic_holds_no_more(spark: SparkSession) -> None:
    """What is still in the log, Chronos reads there: it must not come twice."""
    found = selection.selected(fates(spark), Request(mode="pending"), {0: 10, 1: 2**62})
    assert found.collect() == []


def test_a_message_and_its_replays_are_one(spark: SparkSession) -> None:
    """Of a message and its replays the message is taken; of replays alone the first."""
    tokens = [(0, at, 1, b"i", "t", T, "missing") for at in range(7)]
    units = spark.createDataFrame(tokens, "shard int, source_offset long, occurrence int, id binary, target string,"
                                          " due_ms long, outcome string")  # fmt: skip
    of = {1: "d/0/0/1", 2: "d/0/99/1", 3: "d/0/99/1", 4: "d/0/0/2", 5: "d/0/1/1"}
    copies = spark.createDataFrame(
        [(0, at, source) for at, source in of.items()], "shard int, source_offset long, of string"
    )
    kept = selection.without_copies(units, copies, "d").collect()
    # 4 repeats another occurrence than the one that is there; 5 is a replay of a replay.
    assert sorted(row["source_offset"] for row in kept) == [0, 2, 4, 6]


def test_what_a_target_holds_is_read_from_receipts_and_replays(spark: SparkSession) -> None:
    """Of this delay topic alone; a series names its occurrence."""
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
    records = spark.createDataFrame(rows, "topic string, headers array<struct<name string, value binary>>")
    found = selection.in_targets(records, "d").collect()
    assert sorted(tuple(row) for row in found) == [("t", 1, 7, 1), ("t", 1, 8, 3), ("u", 0, 99, 1), ("u", 2, 5, 2)]


def test_headers_that_are_asked_for_must_all_be_there(spark: SparkSession) -> None:
    """Name and value; one of several of the same name is enough."""
    rows = [
        (0, [("tenant", b"a"), ("kind", b"x")]), (1, [("tenant", b"a")]), (2, [("kind", b"y"), ("kind", b"x"), ("tenant", b"a")]),
        (3, [("tenant", None), ("kind", b"x")]), (4, None), (5, []),
    ]  # fmt: skip
    records = spark.createDataFrame(rows, "n int, headers array<struct<name string, value binary>>")
    asked = Request(mode="all", headers=[("tenant", "a"), ("kind", "x")])
    assert [row["n"] for row in records.where(selection.has_headers(asked)).orderBy("n").collect()] == [0, 2]


def test_a_message_that_was_moved_into_the_window_is_found(spark: SparkSession) -> None:
    """Its record lies under the hour it was due in first."""
    units = spark.createDataFrame([(0, 5, 1, b"i", "t", T, "missing")],
                                  "shard int, source_offset long, occurrence int, id binary, target string, due_ms long,"
                                  " outcome string")  # fmt: skip
    row = {name: None for name, *_ in schema.MESSAGES.columns} | {
        "shard": 0, "offset": 5, "timestamp_ms": 1, "verb": "schedule", "value": b"four", "due_date": "1999-01-01",
        "due_hour": 3, "batch": "b",
    }  # fmt: skip
    messages = spark.createDataFrame([tuple(row.values())], schema.table_schema(schema.MESSAGES))
    span = Span(from_ms=T, to_ms=T + 1)
    assert selection.with_records(units, messages, span).collect() == []
    (found,) = selection.with_records(units, messages, None).collect()
    assert (found["value"], found["bytes"], found["due_ms"]) == (b"four", 4, T)


PLANNED = (
    "name string, target string, bytes_max long, keyed_only boolean, target_key binary, expire_at_ms long,"
    " value binary, id binary, headers array<struct<name string, value binary>>"
)
"""What a row of a plan has, and the topic it goes to, as far as it says whether the row can be sent."""


def test_what_would_never_be_taken_is_left_out(spark: SparkSession) -> None:
    """Each for its reason; expiry may be ignored, a broker's refusal may not."""
    plain: dict[str, Any] = {
        "target": "t", "bytes_max": 2_000, "keyed_only": False, "target_key": None, "expire_at_ms": None,
        "value": b"v" * 1_000, "id": b"i", "headers": [],
    }  # fmt: skip
    rows = [
        {"name": "plain"}, {"name": "expired", "expire_at_ms": T - 1}, {"name": "expires now", "expire_at_ms": T},
        {"name": "no topic", "bytes_max": None, "keyed_only": None}, {"name": "no key", "keyed_only": True},
        {"name": "key", "keyed_only": True, "target_key": b""}, {"name": "large", "value": b"v" * 2_000},
        {"name": "large header", "headers": [("trace", b"h" * 1_000)]}, {"name": "large key", "target_key": b"k" * 1_000},
        {"name": "no headers, no value", "headers": None, "value": None},
        {"name": "headers that are dropped", "headers": [("chronos-x", b"h" * 1_000), (ledger.REPLAY_OF, b"h" * 1_000)]},
    ]  # fmt: skip
    names = [column.split()[0] for column in PLANNED.split(", ", 8)]
    planned = spark.createDataFrame([tuple((plain | row)[name] for name in names) for row in rows], PLANNED)

    def why(request: Request) -> dict[str, str]:
        found = planned.select("name", selection.left_out(request, T, "d").alias("why")).collect()
        return {row["name"]: row["why"] for row in found if row["why"] is not None}

    unsendable = {
        "no topic": "no-target", "no key": "no-target", "large": "too-large", "large header": "too-large",
        "large key": "too-large",
    }  # fmt: skip
    assert why(Request(mode="missing")) == unsendable | {"expired": "expired"}
    assert why(Request(mode="missing", expired=True)) == unsendable


# --- records

JOB = SendingJob(location="", cluster="c", topic="c.delay", to="c.delay", run="r1", purpose="p", mode="missing", direct=False, expired=False,
          attempt=1, files=[], done=[], base_ms=T + 500, pace_ms=0.5, opener=BulkOpener(bootstrap_servers="", properties={}, timeout_s=1.0), batch_bytes=BATCH_BYTES)  # fmt: skip

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
values = st.none() | st.binary(max_size=20)
pairs = st.lists(st.tuples(names | st.sampled_from(["trace", "chronos-deliver-at", "chronos-source", "chronos-repeat"]), values),
                 max_size=6)  # fmt: skip


ROW = pa.schema(
    [("shard", pa.int32()), ("source_offset", pa.int64()), ("occurrence", pa.int32()), ("id", pa.binary()),
     ("target", pa.string()), ("due_ms", pa.int64()), ("outcome", pa.string()), ("key", pa.binary()),
     ("value", pa.binary()), ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
     ("target_key", pa.binary()), ("expire_at_ms", pa.int64()), ("bytes", pa.int64())]
)  # fmt: skip
"""A plan, as pyarrow reads it."""


def batch_of(**row: Any) -> pa.RecordBatch:
    """One row of a plan."""
    given_ = {"shard": 3, "source_offset": 70, "occurrence": 2, "target": "orders", "due_ms": T, "outcome": "missing",
              "bytes": 0, "key": None, "id": b"3-1-70", "expire_at_ms": None} | row  # fmt: skip
    named: Any = given_["headers"]
    given_["headers"] = [{"name": name, "value": value} for name, value in named]
    return pa.RecordBatch.from_pylist([given_], ROW)


@given(
    headers=pairs, value=values, target_key=values, named=st.booleans(), mode=st.sampled_from(["missing", "pending"])
)
def test_a_replay_asks_for_what_was_lost_byte_for_byte(
    headers: list[tuple[str, bytes | None]], value: bytes | None, target_key: bytes | None, named: bool, mode: str
) -> None:
    """As the core's parser reads it: target, key, payload and the producer's own headers in order."""
    key = b"order-7" if named else None
    batch = batch_of(headers=headers, value=value, target_key=target_key, key=key, id=key or b"3-1-70")
    (record,) = records_of(batch, structs.replace(JOB, mode=mode), part=4, first=9, rank=-5)
    topic, id_, payload, sent = record
    assert topic == "c.delay"
    derived = b"replay:p:c.delay/3/70/2"
    assert id_ == (key if named and mode == "pending" else derived)
    asked = parse(Record(0, T, id_, payload, sent), Rules(shard=0, shards=1))
    assert isinstance(asked, ConditionalSchedule)
    entry: Entry = asked.entry
    own = [pair for pair in headers if not pair[0].startswith("chronos-")]
    added = [(ledger.REPLAY_OF, b"c.delay/3/70/2"), (ledger.REPLAY_POSITION, b"r1/4/9")]
    added += [(ledger.REPLAY_ID, key)] if key is not None else []
    passed = list(entry.headers.items()) if isinstance(entry.headers, dict) else list(entry.headers)
    assert passed == own + added
    assert (entry.target, entry.key, entry.value, entry.expire_at_ms) == ("orders", target_key, value, None)
    assert entry.due_ms == (T if mode == "pending" else T + 502)
    assert asked.on_conflict.name == "IGNORE"


@pytest.mark.parametrize("direct", [True, False])
def test_a_replay_is_never_larger_than_was_reckoned(spark: SparkSession, direct: bool) -> None:
    """With the longest numbers there are, keyed and with many headers; and hardly ever smaller by much."""
    job = structs.replace(JOB, direct=direct, run="20300101T000000-abcdef", purpose="p" * 64, topic="d" * 249)
    plain = {"headers": [("n", None)] * 300, "value": b"v" * 1_000_000, "target_key": b"k" * 200, "target": "t" * 249}
    most = {"key": b"i" * 300, "id": b"i" * 300, "expire_at_ms": 10**14, "due_ms": 10**14, "shard": 10**9,
            "source_offset": 10**18, "occurrence": 10**9}  # fmt: skip
    for row in (plain, plain | most):
        batch = batch_of(**row)
        ((_, key, value, headers),) = records_of(batch, job, part=module.PARTS_MAX, first=10**9, rank=0)
        planned = spark.createDataFrame(
            [(row["value"], row["target_key"], row["target"], row.get("id", b"3-1-70"), row["headers"])],
            "value binary, target_key binary, target string, id binary, headers array<struct<name string, value binary>>",
        )
        asked = Request(mode="missing", purpose=job.purpose, direct=direct)
        (reckoned,) = planned.select(selection.replay_bytes(asked, job.topic)).collect()[0]
        assert 0 <= reckoned - batch_bytes(key, value, headers) < 2_500


def test_so_many_rows_are_read_at_once_as_are_sent_at_once(tmp_path: Path) -> None:
    """By the largest payload of a row group, also where Parquet keeps equal ones once; by headers where they are larger."""
    header = {"name": "h", "value": b"h" * 1_000_000}
    cases: list[tuple[list[dict[str, Any]], int]] = [
        ([{"bytes": 10, "value": b"v" * 10}] * 100, PORTION_ROWS),
        ([{"bytes": 1_000_000, "value": b"v" * 1_000_000}] * 20, PORTION_BYTES // 1_000_000),
        ([{"bytes": 2 * PORTION_BYTES, "value": b""}, {"bytes": 0, "value": b""}], 1),
        ([{"bytes": 0, "value": b"", "headers": [header]}], PORTION_BYTES // 1_000_000 - 1),
    ]
    for rows, expected_rows in cases:
        pq.write_table(pa.Table.from_pylist(rows, ROW), tmp_path / "plan.parquet")
        assert rows_together(pq.read_metadata(tmp_path / "plan.parquet").row_group(0)) == expected_rows


def test_a_replay_is_due_before_it_expires() -> None:
    """Spread or not; and when expiry is to be ignored, it does not expire."""
    batch = batch_of(headers=[], value=b"", target_key=None, expire_at_ms=T + 501)
    for job, due_ms, expire_at_ms in ((JOB, T + 501, T + 501), (structs.replace(JOB, expired=True), T + 550, None)):
        ((_, id_, value, headers),) = records_of(batch, job, part=0, first=100, rank=0)
        asked = parse(Record(0, T, id_, value, headers), Rules(shard=0, shards=1))
        assert isinstance(asked, ConditionalSchedule)
        assert (asked.entry.due_ms, asked.entry.expire_at_ms) == (due_ms, expire_at_ms)


def test_a_replay_of_a_replay_names_what_it_repeats() -> None:
    """And not what that repeated: each header is there once."""
    old = [
        (ledger.REPLAY_OF, b"c.delay/0/0/1"),
        ("trace", b"x"),
        (ledger.REPLAY_POSITION, b"r0/1/1"),
        (ledger.REPLAY_ID, b"o"),
    ]
    ((_, _, _, headers),) = records_of(batch_of(headers=old, value=b"", target_key=None), JOB, part=0, first=0, rank=0)
    own = [pair for pair in headers if not pair[0].startswith("chronos-")]
    assert own == [("trace", b"x"), (ledger.REPLAY_OF, b"c.delay/3/70/2"), (ledger.REPLAY_POSITION, b"r1/0/0")]


def test_what_is_left_is_spread_without_the_holes_of_what_was_sent() -> None:
    """The rank of each row that is left, by part."""
    job = structs.replace(JOB, done=[3, 0, 5])
    ranks = job.rank([5, 4, 7])
    assert [
        rank + row for rank, done, rows in zip(ranks, job.done, [5, 4, 7], strict=True) for row in range(done, rows)
    ] == [*range(8)]


# --- exactly once

unhurried = pytest.mark.timeout(600)
"""A plan is some tens of Spark's jobs."""


class Lost:
    """An archive of lost messages, and the delay topic they are sent back to."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path, messages: int) -> None:
        self.logs = Logs(broker)
        self.messages = messages
        self.spark = spark
        self.storage = ArchiveStorage(str(directory / "archive"))
        write_lost(
            spark, self.storage, cluster=self.logs.cluster, delay=self.logs.delay, target=self.logs.target,
            messages=messages, shards=SHARDS,
        )  # fmt: skip
        self.brokers = self.logs.brokers()
        self.opener = BulkOpener(bootstrap_servers=broker.bootstrap, properties={}, timeout_s=30.0)
        self.request = Request(mode="missing", from_ms=T, to_ms=T + messages * GAP_MS)

    def job(self) -> Backfill:
        """A driver that knows only what is in the archive and in the log."""
        return Backfill(self.spark, self.storage, self.brokers, self.opener, bootstrap_servers=self.logs.broker.bootstrap)

    def begin(self) -> tuple[Backfill, BackfillRun]:
        """Everything is planned, nothing is sent."""
        job = self.job()
        planned = job.plan(self.request)
        assert planned.messages == self.messages
        return job, job.begin(planned)

    def first_attempt(self, run: BackfillRun, files: list[str]) -> SendingJob:
        """What the tasks of a first attempt are told."""
        return SendingJob(
            location=self.storage.uri, cluster=self.logs.cluster, topic=self.logs.delay, to=self.logs.delay, run=run.run, purpose="backfill",
            mode="missing", direct=False, expired=False, attempt=1, files=files, done=[0] * len(files), base_ms=T,
            pace_ms=0.0, opener=self.opener, batch_bytes=BATCH_BYTES,
        )  # fmt: skip

    def command(self) -> list[str]:
        """The same on the command line."""
        command = [sys.executable, "-m", "chronos", "backfill", "-l", self.storage.uri, "--yes", "-o", "json",
                   "--from", str(T), "--to", str(T + self.messages * GAP_MS), "--master", "local[2]"]  # fmt: skip
        command += self.logs.settings()
        for name, value in {**connector(), "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}.items():
            command += ["--conf", f"{name}={value}"]
        return command

    def in_log(self) -> int:
        """Offsets of the delay topic, markers and all."""
        return sum(self.brokers.watermarks(self.logs.delay, shard).high for shard in range(SHARDS))

    def complaints(self) -> list[str]:
        """What a `read_committed` reader of the delay topic finds missing, doubled or changed."""
        times: Counter[bytes] = Counter()
        wrong = []
        for message in read_committed(self.logs.broker.bootstrap, self.logs.delay):
            pairs: Any = message.headers() or []
            headers = dict(pairs)
            source = headers["x-chronos-replay-of"].removeprefix(f"{self.logs.delay}/".encode())
            shard, offset, _ = (int(each) for each in source.split(b"/"))
            number = offset * SHARDS + shard
            times[source] += 1
            _, value, key = expected(number, self.logs.target, SHARDS)
            if (message.value(), headers.get("chronos-target-key"), pairs[0]) != (
                value,
                key,
                ("trace", b"%d" % number),
            ):
                wrong.append(f"changed: {message.value()!r} {pairs}")
        wanted = {expected(number, self.logs.target, SHARDS)[0] for number in range(self.messages)}
        wrong += [f"{source!r} is there {count} times" for source, count in times.items() if count != 1]
        wrong += [f"{source!r} is lost" for source in wanted - times.keys()]
        return wrong[:10]


@pytest.fixture
def make(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Callable[[int], Lost]]:
    """Archives of so many lost messages."""
    made: list[Lost] = []

    def lost(messages: int) -> Lost:
        made.append(Lost(spark, broker, tmp_path / str(len(made)), messages))
        return made[-1]

    yield lost
    for each in made:
        each.brokers.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of many parts, so that there is something between the first and the last one."""
    monkeypatch.setattr(module, "PART_ROWS", 4_000)


@unhurried
@pytest.mark.usefixtures("small_parts")
def test_who_was_fenced_writes_no_more_and_what_it_had_committed_is_known(make: Callable[[int], Lost]) -> None:
    """A first attempt that died: one part whole, one half, one with a transaction left open; and its ghost goes on."""
    lost = make(20_000)
    _, run = lost.begin()
    assert len(run.rows) == 5
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    files = ledger.plan_files(lost.storage, run.run)
    ghosts = {}
    dead = lost.first_attempt(run, files)
    for part, sent in ((0, run.rows[0]), (1, 1_500), (2, 0)):
        ledger.record_started(lost.storage, run.run, 1, part)
        ghosts[part] = lost.opener.open(ledger.transactional_id(lost.logs.cluster, run.run, 1, part))
        records = list(rows_of_part(lost, dead, part))
        if sent:
            ghosts[part].send(records[:sent])
    hanging = ghosts[2]._producer
    hanging.begin_transaction()
    for topic, key, value, headers in records[:100]:
        hanging.produce(topic, value, key, headers=headers)
    hanging.flush(10)

    report = lost.job().send(lost.job().unfinished() or run)
    assert (report.messages, report.state, report.attempts) == (20_000, "done", 2)
    assert lost.complaints() == []
    for ghost in ghosts.values():
        with pytest.raises((ProducerLost, LogUnavailable)):
            ghost.send(records[:10])
    assert lost.complaints() == []
    assert ledger.sent_rows(lost.spark, lost.storage).distinct().count() == 20_000


def rows_of_part(lost: Lost, job: SendingJob, part: int) -> Iterator[Any]:
    """The records of a part, as its task makes them."""
    first = 0
    with lost.storage.open(f"{ledger.run_folder(job.run)}/_plan/{job.files[part]}") as stream:
        for batch in pq.ParquetFile(stream).iter_batches(1_000):
            yield from records_of(batch, job, part, first, 0)
            first += batch.num_rows


@unhurried
@pytest.mark.usefixtures("small_parts")
def test_a_worker_that_is_killed_is_made_good_in_the_same_run(make: Callable[[int], Lost]) -> None:
    """kill -9 of a Python worker amid its part: a task is not simply run again, the log is asked first."""
    lost = make(40_000)
    job, run = lost.begin()
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            workers = workers_below(os.getpid()) if lost.in_log() > 10_000 else []
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    report = job.send(run)
    killer.join()
    assert killed
    assert report.messages == 40_000
    assert report.attempts >= 2
    assert lost.complaints() == []


def workers_below(pid: int) -> list[int]:
    """Python workers of a Spark session: what its daemon has forked."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            command = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        parents[int(entry)] = (int(stat[1]), b"pyspark.daemon" in command)
    daemons = {each for each, (_, is_daemon) in parents.items() if is_daemon}
    workers = [each for each, (parent, is_daemon) in parents.items() if is_daemon and parent in daemons]

    def is_ours(each: int) -> bool:
        while each in parents:
            if each == pid:
                return True
            each = parents[each][0]
        return False

    return [each for each in workers if is_ours(each)]


@pytest.mark.slow
@unhurried
def test_a_driver_that_is_killed_is_completed_by_the_same_command(make: Callable[[int], Lost], tmp_path: Path) -> None:
    """kill -9 while it plans, at random points while it sends, and at its end; then each is there once, and stays so."""
    lost, dice = make(60_000), random.Random(11)
    sent = lost.storage.path(ledger.SENT).removeprefix("file://")
    log_path = tmp_path / "backfill.log"

    def is_planning() -> bool:
        return bool(list(Path(sent).glob("run=*/_plan")))

    def has_sent(share: float) -> Callable[[], bool]:
        return lambda: lost.in_log() > share * lost.messages

    def is_ending() -> bool:
        return bool(list(Path(sent).glob("run=*/rows")))

    moments = [is_planning, has_sent(dice.uniform(0.02, 0.3)), has_sent(dice.uniform(0.45, 0.8)), is_ending]
    kills = 0
    for moment in moments:
        with log_path.open("ab") as output:
            process = subprocess.Popen(lost.command(), stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + 120
        while not moment() and process.poll() is None:
            assert time.monotonic() < deadline, log_path.read_text()[-4_000:]
            time.sleep(0.005)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills >= 3, log_path.read_text()[-4_000:]
    ran = subprocess.run(lost.command(), capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    assert lost.complaints() == []
    assert (said(ran.stdout)["messages"], said(ran.stdout)["sent_before"]) == (0, 60_000)
    assert ledger.sent_rows(lost.spark, lost.storage).distinct().count() == 60_000


@unhurried
def test_a_run_that_was_begun_is_ended_on_purpose_and_by_what_is_known(make: Callable[[int], Lost]) -> None:
    """Another request does not end it by chance. Where the log cannot tell any more, nothing is guessed."""
    lost = make(400)
    job, run = lost.begin()
    other = Request(mode="all", options=["x"])
    with pytest.raises(typer.BadParameter, match="--resume sends the rest"):
        _end(job, run, other, Format.json, yes=True, resume=False, abandon=False, dry_run=False)
    with lost.job().locked(), pytest.raises(ArchiveInUse, match="another process"), lost.job().locked():
        pass
    job.send(run)
    run.state = "sending"
    ledger.save_run(lost.storage, run)
    watermarks = [
        TopicPartition(lost.logs.delay, shard, lost.brokers.watermarks(lost.logs.delay, shard).high)
        for shard in range(SHARDS)
    ]
    admin = lost.logs.broker.admin()  # kept: a client that is gone answers nobody
    for future in admin.delete_records(watermarks).values():
        future.result(30)
    with pytest.raises(ArchiveFailed, match="trimmed to offset"):
        job._reconciliation.rows_sent(run)


@unhurried
def test_a_topic_that_was_made_again_with_fewer_partitions_is_known_for_another(make: Callable[[int], Lost]) -> None:
    """Before its partitions are asked for."""
    lost = make(400)
    job, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    lost.logs.delete(lost.logs.delay)
    lost.logs.broker.create_topic(lost.logs.delay, partitions=SHARDS - 1)
    with pytest.raises(ArchiveFailed, match="made again"):
        job._reconciliation.rows_sent(run)


@unhurried
def test_a_topic_that_takes_little_gets_little_at_once_and_nothing_that_is_too_large(
    make: Callable[[int], Lost],
) -> None:
    """Otherwise the run would be refused for ever."""
    lost = make(400)

    def takes(bytes_max: int) -> None:
        resource = ConfigResource(ResourceType.TOPIC, lost.logs.delay)
        resource.add_incremental_config(
            ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
        )
        admin = lost.logs.broker.admin()  # kept: a client that is gone answers nobody
        admin.incremental_alter_configs([resource])[resource].result(30)

    takes(300)
    job = lost.job()
    planned = job.plan(lost.request)
    assert (planned.messages, planned.too_large) == (0, 400)
    job.discard(planned)
    takes(3_000)
    job, run = lost.begin()
    assert job.send(run).attempts == 1
    assert lost.complaints() == []


@unhurried
def test_what_has_no_target_is_not_sent_straight_to_it(make: Callable[[int], Lost]) -> None:
    """It is left out, counted and named; through Chronos it would become a dead letter."""
    lost = make(400)
    lost.logs.delete(lost.logs.target)
    for direct, messages in ((True, 0), (False, 400)):
        planned = lost.job().plan(structs.replace(lost.request, direct=direct))
        assert (planned.messages, planned.no_target) == (messages, 400 - messages)
        assert planned.absent_targets == [lost.logs.target]


@unhurried
def test_a_part_is_begun_once_an_attempt(make: Callable[[int], Lost]) -> None:
    """Spark may run a stage again, whose tasks count as first attempts: what had been sent would be sent once more."""
    lost = make(400)
    _, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    job = lost.first_attempt(run, ledger.plan_files(lost.storage, run.run))
    part = pa.RecordBatch.from_pydict({"id": [0]})
    assert [batch.column("rows").to_pylist() for batch in send_parts(job, [0])(iter([part]))] == [[400]]
    with pytest.raises(ArchiveFailed, match="ended before its time"):
        list(send_parts(job, [0])(iter([part])))
    assert lost.complaints() == []


@unhurried
def test_an_abandoned_run_leaves_what_it_had_sent_in_the_ledger(make: Callable[[int], Lost]) -> None:
    """The rest of it, and no more, is there for the next."""
    lost = make(400)
    job, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    files = ledger.plan_files(lost.storage, run.run)
    dead = lost.first_attempt(run, files)
    ledger.record_started(lost.storage, run.run, 1, 0)
    writer = lost.opener.open(ledger.transactional_id(lost.logs.cluster, run.run, 1, 0))
    writer.send(list(rows_of_part(lost, dead, 0))[:150])
    report = job.abandon(run)
    assert (report.state, report.messages) == ("abandoned", 150)
    assert ledger.sent_rows(lost.spark, lost.storage).count() == 150
    assert lost.job().unfinished() is None
    planned = lost.job().plan(lost.request)
    assert (planned.messages, planned.sent_before) == (250, 150)


@unhurried
def test_straight_to_the_target_with_the_receipt_it_would_have_had(make: Callable[[int], Lost]) -> None:
    """Without Chronos; what was noted as sent is not sent again."""
    lost = make(600)
    lost.request = Request(mode="missing", from_ms=T, to_ms=T + 600 * GAP_MS, direct=True, rate=600.0)
    job, run = lost.begin()
    ledger.record_sent(lost.storage, run.run, 0, 150)
    run.attempts.append(Attempt(number=1, began_ms=1))
    began_s = time.monotonic()
    report = job.send(run)
    assert time.monotonic() - began_s > 450 / 600 * 0.9
    assert (report.messages, lost.in_log()) == (600, 0)
    found = list(read_committed(lost.logs.broker.bootstrap, lost.logs.target))
    assert len(found) == 450
    for message in found:
        headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
        assert headers["chronos-source"] + b"/1" == headers["x-chronos-replay-of"]
        shard, offset = map(int, headers["chronos-source"].split(b"/")[1:])
        number = offset * SHARDS + shard
        assert number >= 150
        _, value, key = expected(number, lost.logs.target, SHARDS)
        assert (message.value(), message.key()) == (value, key)
        assert headers["chronos-due-at"] == b"%d" % (T + number * GAP_MS)
        assert headers["chronos-id"] == (
            b"order-%d" % number if number % 5 == 0 else b"%d-%d-%d" % (shard, T + number * GAP_MS, offset)
        )
    rows = ledger.sent_rows(lost.spark, lost.storage)
    assert (
        rows.where("via = 'direct'").count(),
        json.loads(lost.storage.read(f"{ledger.run_folder(run.run)}/report.json") or b"")["state"],
    ) == (600, "done")
