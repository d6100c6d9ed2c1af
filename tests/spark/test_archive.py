"""The archive on the real broker: each record once, byte for byte, after kills and losses."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from chronos.adapters.kafka.log import KafkaLog
from chronos.errors import ArchiveFailed, ArchiveInUse, ArchiveUnusable, LogUnavailable
from chronos.ports import TopicInfo
from chronos.spark import schema
from chronos.spark.archive.compact import compact
from chronos.spark.archive.job import ARCHIVE_GROUP, TableResult, archive, check_claim
from chronos.spark.codec import stored
from chronos.spark.runs import archived_run, begin_run
from chronos.spark.session import Step, ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables
from tests.harness.broker import Broker
from tests.harness.waiting import check_deadline, wait_until
from tests.integration.foreign import alter_topic
from tests.spark.conftest import conf, small
from tests.spark.logs import SHARDS, Logs, positions_in, table

pytestmark = pytest.mark.spark

DUE_MS = 1_900_000_000_000


@pytest.fixture
def logs(broker: Broker) -> Logs:
    """Topics with one progress record in them."""
    made = Logs(broker)
    made.write(made.progress, made.step())
    made.flush()
    return made


@pytest.fixture
def brokers(logs: Logs) -> Iterator[KafkaLog]:
    """The adapter that the archive asks."""
    log = logs.brokers()
    yield log
    log.close()


def by_table(done: list[TableResult]) -> dict[str, int]:
    """Records archived, by table."""
    return {each.table: each.records for each in done}


def everything(logs: Logs, count: int) -> list[tuple[Any, ...]]:
    """Shard and offset of `count` messages written to the shards in turn."""
    return sorted((at % SHARDS, at // SHARDS) for at in range(count))


def test_each_record_is_there_once_byte_for_byte(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Null keys, null values, no headers, binary and repeated headers; and the next run adds only
    new records, of a target that is compacted from then on."""
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, None, []),
        (b"\xff\x00", b"\x80", [("a", b"\xfe"), ("a", None), ("ü", b"")]),
        (b"k", None, []),
    ]
    for key, value, headers in odd:
        logs.write(logs.delay, value, headers, key=key)
    logs.flush()
    done = by_table(archive(spark, brokers, ArchiveStorage(str(tmp_path)), logs.plan(), ignore))
    assert done == {"progress": 1, "deliveries": 0, "rejected": 0, "dead_letters": 0, "messages": 3}
    rows = sorted(table(tmp_path, "messages").to_pylist(), key=lambda row: row["offset"])
    found = [
        (row["key"], row["value"], [(pair["name"], pair["value"]) for pair in row["headers"] or []])
        for row in rows
    ]
    assert found == odd
    assert [row["verb"] for row in rows] == ["refused", "refused", "cancel"]
    for name, each in schema.TABLES.items():  # tables without rows too
        delta = DeltaTable(tmp_path / name)
        assert [field.name for field in delta.schema().fields] == schema.table_schema(each).names
        protocol = delta.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert not protocol.reader_features
        assert not protocol.writer_features
    reached = archived_run(open_tables(spark, ArchiveStorage(str(tmp_path)))[0].offsets)
    assert reached is not None
    read = reached.topics[logs.delay].partitions["0"]
    assert (read.position, read.leader_epoch) == (3, brokers.watermarks(logs.delay, 0).leader_epoch)

    due = b"%d" % DUE_MS
    logs.write(
        logs.delay,
        b"late",
        [("chronos-deliver-at", due), ("chronos-target-topic", logs.target.encode())],
    )
    logs.write(logs.target, b"not of Chronos", partition=1)
    logs.write(logs.target, b"late", logs.receipt(0, 3, 1), partition=1)
    logs.flush()
    # Without targets those that messages name are archived, also one that the run has just found.
    named = logs.plan(targets=None)

    def compact_target(step: Step) -> None:
        if step.name == "archiving deliveries" and not step.done:
            alter_topic(logs.broker, logs.target, cleanup_policy="compact")

    done = by_table(archive(spark, brokers, ArchiveStorage(str(tmp_path)), named, compact_target))
    reads = sorted(
        (row["sequence"], row["compacted"])
        for row in table(tmp_path, "offsets").to_pylist()
        if row["topic"] == logs.target
    )
    assert (reads[0][1], reads[-1][1]) == (False, True)
    assert done == {"progress": 0, "deliveries": 1, "rejected": 0, "dead_letters": 0, "messages": 1}
    assert positions_in(tmp_path, "messages", "shard") == [(0, at) for at in range(4)]
    (delivered,) = table(tmp_path, "deliveries").to_pylist()
    own = {
        name: delivered[name]
        for name in ("shard", "source_offset", "due_at_ms", "id", "occurrence", "attempt")
    }
    assert own == {
        "shard": 0,
        "source_offset": 3,
        "due_at_ms": 1,
        "id": b"0-1-3",
        "occurrence": 1,
        "attempt": 1,
    }
    assert delivered["date"] == date(1970, 1, 1)
    assert delivered["due_at"] == datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)
    assert dict(delivered["first_headers"])["chronos-due-at"] == b"1"

    assert by_table(
        archive(spark, brokers, ArchiveStorage(str(tmp_path)), named, ignore)
    ) == dict.fromkeys(done, 0)
    group = ARCHIVE_GROUP.format(cluster=logs.cluster)
    assert [brokers.committed(group, logs.delay, shard) for shard in range(SHARDS)] == [4, 0]
    assert brokers.committed(group, logs.progress, 0) == 1
    assert brokers.committed(group, logs.target, 1) is None


def test_each_row_is_stored_under_its_date_in_utc(spark: SparkSession) -> None:
    """Of its due time, else of the record's timestamp; a timestamp from before the topic had the
    broker's may be in microseconds, and a due time after the year 9999. The zone of the machine and
    of the session takes no part."""
    columns = "shard int, timestamp_ms long, due_ms long"
    last = 253_402_300_799_999
    rows = [
        (0, DUE_MS * 1_000, None),
        (1, DUE_MS * 1_000, DUE_MS),
        (2, DUE_MS, None),
        (3, DUE_MS, last),
        (4, DUE_MS, last + 1),
        (5, DUE_MS, 86_400_000 - 1),
        (6, DUE_MS, 31 * 86_400_000),
    ]
    kept = [name for name, *_ in schema.MESSAGES.columns if name not in columns]
    given = spark.createDataFrame(rows, columns).withColumns(dict.fromkeys(kept, f.lit(None)))
    given = given.withColumn("headers", f.lit(None).cast(schema.HEADERS))
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        made = stored(given, schema.MESSAGES).orderBy("shard")
        found = [
            (str(row["month"]), row["due"])
            for row in made.select(
                f.col("month").cast("string").alias("month"), f.unix_millis("due_at").alias("due")
            ).collect()
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [
        ("1970-01-01", None),
        ("2030-03-01", DUE_MS),
        ("2030-03-01", None),
        ("9999-12-01", last),
        ("9999-12-01", None),
        ("1970-01-01", 86_400_000 - 1),
        ("1970-02-01", 31 * 86_400_000),
    ]


def test_small_batches_end_where_one_large_one_would(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Compaction then changes nothing but the number of files."""
    logs.schedule(1_000, DUE_MS)
    tmp_path /= "of Jürgen"  # a folder by any name
    storage = ArchiveStorage(str(tmp_path))
    done = archive(spark, brokers, storage, logs.plan(batch_records=300), ignore)
    assert {each.batches for each in done if each.table in ("messages", "deliveries")} == {4}
    before = {name: table(tmp_path, name) for name in ("messages", "deliveries", "offsets")}
    keys = [("shard", "ascending"), ("offset", "ascending")]
    compacted = {each.table: each for each in compact(spark, storage, 1 << 20, ignore)}
    assert compacted["messages"].files_after == 1 < compacted["messages"].files_before
    after = table(tmp_path, "messages").sort_by(keys)
    assert after.to_pylist() == before["messages"].sort_by(keys).to_pylist()
    assert positions_in(tmp_path, "deliveries", "partition") == sorted(
        (logs.target, shard, offset) for shard, offset in everything(logs, 1_000)
    )
    reads = table(tmp_path, "offsets").to_pylist()
    assert len([row for row in reads if row["topic"]]) == len(before["offsets"])
    assert [row["table"] for row in reads if not row["topic"]] == ["compact"]

    assert by_table(archive(spark, brokers, storage, logs.plan(), ignore))["messages"] == 0


def test_foreign_headers_are_not_taken_for_a_receipt(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """A due time out of range files the row under the record's own hour; of repeated headers the
    last ones, Chronos's, count."""
    for due in (10**16, -1):
        logs.write(
            logs.target, b"foreign", [*logs.receipt(0, 7, 1)[::2], ("chronos-due-at", b"%d" % due)]
        )
    own = [("chronos-source", b"of/1/2"), ("chronos-reason", b"a joke"), ("chronos-id", b"kept")]
    logs.write(
        logs.rejected,
        b"refused",
        [*own, ("chronos-source", b"delay/0/4"), ("chronos-reason", b"bad-value")],
    )
    logs.flush()
    archive(spark, brokers, ArchiveStorage(str(tmp_path)), logs.plan(), ignore)
    for row in table(tmp_path, "deliveries").to_pylist():
        assert row["due_at_ms"] in (10**16, -1)
        assert row["date"] == datetime.fromtimestamp(row["timestamp_ms"] / 1000, UTC).date()
    (refused,) = table(tmp_path, "rejected").to_pylist()
    columns = {
        name: refused[name] for name in ("id", "source_topic", "source_offset", "reason", "detail")
    }
    assert columns == {
        "id": b"kept",
        "source_topic": "delay",
        "source_offset": 4,
        "reason": "bad-value",
        "detail": None,
    }


@pytest.mark.campaign
def test_a_run_that_is_killed_is_completed_by_the_next(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """kill -9 of the driver while it writes, several times: pyarrow and Spark both read each record
    once."""
    count, dice = 6_000, random.Random(4)
    logs.schedule(count, DUE_MS)
    command = [
        sys.executable,
        "-m",
        "chronos",
        "archive",
        "--location",
        str(tmp_path),
        "--targets",
        logs.target,
        "--batch-records",
        "1000",
        *logs.settings(),
        *conf(small()),
    ]
    kills = 0
    for table_name in ("deliveries", "messages", "messages"):
        with (tmp_path.with_suffix(".log")).open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        log = f"{table_name}/_delta_log/*.json"
        wanted = len(list(tmp_path.glob(log))) + dice.randrange(1, 3)
        deadline = time.monotonic() + 250
        while len(list(tmp_path.glob(log))) < wanted and process.poll() is None:
            check_deadline(deadline)
            time.sleep(0.01)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills == 3
    storage = ArchiveStorage(str(tmp_path))
    done = archive(spark, brokers, storage, logs.plan(), ignore)
    assert 0 < by_table(done)["messages"] < count
    assert positions_in(tmp_path, "messages", "shard") == everything(logs, count)
    assert positions_in(tmp_path, "deliveries", "partition") == sorted(
        (logs.target, *at) for at in everything(logs, count)
    )
    for name in ("messages", "deliveries"):
        read = spark.read.format("delta").load(storage.path(name)).drop("first_headers")
        assert (read.count(), read.distinct().count()) == (count, count)


def test_records_deleted_before_they_were_archived_are_recorded_as_a_gap(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """By trimming, and by deleting and creating a topic: the run succeeds and archives every
    remaining record."""
    logs.schedule(20, DUE_MS)
    storage = ArchiveStorage(str(tmp_path))
    archive(spark, brokers, storage, logs.plan(), ignore)
    logs.schedule(20, DUE_MS)
    admin = logs.broker.admin()
    (trimmed,) = admin.delete_records([TopicPartition(logs.delay, 1, 15)]).values()
    trimmed.result(30)
    logs.delete(logs.target)
    logs.create(logs.target)
    logs.write(logs.target, b"new", logs.receipt(0, 30, DUE_MS), partition=1)
    logs.flush()
    done = archive(spark, brokers, storage, logs.plan(), ignore)
    assert {each.table: each.gaps for each in done if each.gaps} == {
        "messages": 1,
        "deliveries": SHARDS,
    }
    assert by_table(done)["deliveries"] == 1
    assert positions_in(tmp_path, "messages", "shard") == [(0, at) for at in range(20)] + [
        (1, at) for at in range(20) if not 10 <= at < 15
    ]
    gaps = [row for row in table(tmp_path, "offsets").to_pylist() if row["gap"]]
    assert sorted(
        (row["topic"], row["partition"], row["from_offset"], row["gap_reason"]) for row in gaps
    ) == [
        (logs.delay, 1, 15, "trimmed"),
        (logs.target, 0, 0, "recreated"),
        (logs.target, 1, 0, "recreated"),
    ]
    assert not any(each.gaps for each in archive(spark, brokers, storage, logs.plan(), ignore))
    # Without the target, and with another that is not there: the rest goes on.
    logs.delete(logs.target)
    assert "deliveries" not in by_table(
        archive(spark, brokers, storage, logs.plan(targets=[logs.target]), ignore)
    )
    gaps = [row for row in table(tmp_path, "offsets").to_pylist() if row["gap_reason"] == "deleted"]
    assert {(row["topic"], row["partition"]) for row in gaps} == {
        (logs.target, part) for part in range(SHARDS)
    }


@pytest.mark.parametrize("reason", ["trimmed", "recreated"])
def test_records_deleted_while_a_run_reads_are_a_gap_too(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path, reason: str
) -> None:
    """They existed when the run began, and no longer when their stream was read."""
    admin = logs.broker.admin()
    logs.schedule(20, DUE_MS)

    def lose(step: Step) -> None:
        if step.name != "archiving progress" or step.done == 0:
            return
        if reason == "trimmed":
            (trimmed,) = admin.delete_records([TopicPartition(logs.target, 1, 6)]).values()
            trimmed.result(30)
        else:
            logs.delete(logs.target)
            logs.create(logs.target)
            logs.write(logs.target, b"new", logs.receipt(0, 30, DUE_MS), partition=1)
            logs.flush()

    done = archive(spark, brokers, ArchiveStorage(str(tmp_path)), logs.plan(), lose)
    gaps = [row for row in table(tmp_path, "offsets").to_pylist() if row["gap"]]
    assert {(row["topic"], row["gap_reason"]) for row in gaps} == {(logs.target, reason)}
    assert sum(each.gaps for each in done) == len(gaps)
    if reason == "trimmed":
        assert [(row["partition"], row["from_offset"], row["until_offset"]) for row in gaps] == [
            (1, 6, 10)
        ]
        assert len(positions_in(tmp_path, "deliveries", "partition")) == 14


def test_an_archive_has_one_writer_and_one_cluster(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Each refusal names its reason."""
    storage = ArchiveStorage(str(tmp_path))
    with (
        storage.locked(),
        pytest.raises(ArchiveInUse, match="another process"),
        storage.locked(wait_s=0),
    ):
        pass
    archive(spark, brokers, storage, logs.plan(), ignore)
    other = Logs(logs.broker)
    with pytest.raises(ArchiveUnusable, match=logs.cluster):
        archive(spark, brokers, storage, other.plan(), ignore)
    storage.write_json("archive.json", {"format": 99})
    with pytest.raises(ArchiveUnusable, match="format 99"):
        archive(spark, brokers, storage, logs.plan(), ignore)
    gone = Logs(logs.broker)
    gone.delete(gone.progress)
    elsewhere = ArchiveStorage(str(tmp_path / "other"))
    with pytest.raises(ArchiveFailed, match=gone.progress):
        archive(spark, brokers, elsewhere, gone.plan(), ignore)
    typo = replace(logs.plan(), cluster="typo")
    with pytest.raises(
        ArchiveUnusable,
        match=f"was written by the cluster {logs.cluster}, and the setting cluster is typo",
    ):
        archive(spark, brokers, elsewhere, typo, ignore)
    assert not (tmp_path / "other").exists()


def test_an_archive_belongs_to_one_kafka_cluster(
    logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Another one is refused unless the plan accepts it; an archive without the id takes that of
    the brokers."""
    storage = ArchiveStorage(str(tmp_path))
    claim = check_claim(storage, brokers, logs.plan())
    assert claim["kafka_cluster_id"] == brokers.cluster_id() != ""
    storage.write_json("archive.json", {**claim, "kafka_cluster_id": "another"})
    with pytest.raises(
        ArchiveUnusable,
        match="was archived from the Kafka cluster another, and these brokers belong to",
    ):
        check_claim(storage, brokers, logs.plan())
    assert check_claim(storage, brokers, logs.plan(other_cluster=True)) == claim
    storage.write_json(
        "archive.json", {name: value for name, value in claim.items() if name != "kafka_cluster_id"}
    )
    assert check_claim(storage, brokers, logs.plan()) == claim


def test_a_partition_that_lost_its_disk_and_grew_again_is_a_gap(
    broker: Broker, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """It reaches beyond the archived position, and has other records there; a restart alone is no
    gap."""
    storage = ArchiveStorage(str(tmp_path))
    logs.schedule(40, DUE_MS)
    streams = [("deliveries", [logs.target]), ("messages", [logs.delay])]
    run = begin_run(storage, brokers, streams, None).run
    for topic, part in ((logs.target, "0"), (logs.target, "1"), (logs.delay, "0")):
        run.topics[topic].partitions[part].position = 20

    def restart(*lost: str) -> None:
        broker.kill()
        for folder in lost:
            shutil.rmtree(broker.data / folder)
        broker.start()
        wait_until(
            answers, lambda: "the clients do not find the broker and its leaders", timeout_s=60
        )

    def answers() -> bool:
        try:
            infos = brokers.describe([logs.target, logs.delay])
            for topic, info in infos.items():
                for partition in range(info.partitions if info is not None else 0):
                    brokers.watermarks(topic, partition)
        except LogUnavailable:
            return False
        return all(info is not None and not info.leaderless for info in infos.values())

    restart(f"{logs.target}-0")
    logs.schedule(100, DUE_MS)
    started = begin_run(storage, brokers, streams, run)
    assert started.left_out == {}
    # What tells it, whether or not the client has heard of the election.
    known = run.topics[logs.target].partitions["0"].leader_epoch
    assert known is not None
    assert brokers.batch_header(logs.target, 0, 19).leader_epoch > known
    found = started.run
    reads = {
        (topic, part): read
        for topic, each in found.topics.items()
        for part, read in each.partitions.items()
    }
    assert (reads[logs.target, "0"].gap_reason, reads[logs.target, "0"].begin) == ("truncated", 0)
    assert (reads[logs.target, "1"].gap_reason, reads[logs.target, "1"].begin) == (None, 20)
    assert (reads[logs.delay, "0"].gap_reason, reads[logs.delay, "0"].begin) == (None, 20)
    restart(f"{logs.delay}-0")
    logs.schedule(100, DUE_MS)
    with pytest.raises(ArchiveUnusable, match=f"{logs.delay}/0 lost records that are archived"):
        begin_run(storage, brokers, streams, found)


def test_a_stream_that_fails_names_the_offsets_and_does_not_stop_the_others(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """A progress record of a later version: topic, partition and offsets are named, the other
    streams are archived."""
    storage = ArchiveStorage(str(tmp_path))
    logs.schedule(6, DUE_MS)
    logs.write(logs.progress, b"\xfenot of this version")
    logs.flush()
    with pytest.raises(
        ArchiveFailed, match=rf"{logs.progress}/0 offsets 0 to 2\..*format version 254.*Upgrade"
    ):
        archive(spark, brokers, storage, logs.plan(), ignore)
    assert positions_in(tmp_path, "messages", "shard") == everything(logs, 6)
    group = ARCHIVE_GROUP.format(cluster=logs.cluster)
    assert (
        brokers.committed(group, logs.delay, 0),
        brokers.committed(group, logs.progress, 0),
    ) == (3, 0)


def test_records_of_another_program_in_the_progress_topic_are_left_out(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """They have a key or headers. The first progress record behind them names the cluster."""
    logs = Logs(broker)
    logs.schedule(6, DUE_MS)
    for value, headers, key in (
        (b"hello", (), b"k"),
        (None, (), b"k"),
        (b"x", [("own", b"o")], None),
    ):
        logs.write(logs.progress, value, headers, key=key)
    logs.write(logs.progress, logs.step())
    logs.write(logs.progress, b"hello", key=b"k")
    logs.write(logs.progress, logs.step())
    logs.flush()
    brokers, storage = logs.brokers(), ArchiveStorage(str(tmp_path / "archive"))
    with pytest.raises(ArchiveUnusable, match=f"was written by the cluster {logs.cluster}"):
        archive(spark, brokers, storage, replace(logs.plan(), cluster="typo"), ignore)
    archive(spark, brokers, storage, logs.plan(), ignore)
    brokers.close()
    assert positions_in(tmp_path / "archive", "progress", "shard") == [(0, 3), (0, 5)]
    assert positions_in(tmp_path / "archive", "messages", "shard") == everything(logs, 6)


class Elsewhere(ArchiveStorage):
    """Storage whose files Spark's tasks have written to local disks of other hosts."""

    def sizes(self, below: str, paths: Sequence[str]) -> dict[str, int | None]:
        """The sizes here, once the files are elsewhere."""
        for path in paths:
            Path(urlsplit(self.uri).path, below, path).unlink()
        return super().sizes(below, paths)


def test_rows_written_to_another_host_s_disk_do_not_count_as_archived(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """The run fails before it commits, and the next one archives the records."""
    logs.schedule(6, DUE_MS)
    with pytest.raises(ArchiveFailed, match=r"wrote \d+ rows to .* and 0 are there") as failed:
        archive(spark, brokers, Elsewhere(str(tmp_path)), logs.plan(batch_records=3), ignore)
    assert "folder that all of them share" in str(failed.value)
    assert brokers.committed(ARCHIVE_GROUP.format(cluster=logs.cluster), logs.delay, 0) is None
    archive(spark, brokers, ArchiveStorage(str(tmp_path)), logs.plan(), ignore)
    assert positions_in(tmp_path, "messages", "shard") == everything(logs, 6)


class Leaderless(KafkaLog):
    """Brokers without a leader for one partition."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """As the adapter, with partition 1 of the target leaderless."""
        infos = super().describe(topics)
        return {
            name: replace(info, leaderless=frozenset({1}))
            if info is not None and name.endswith("target")
            else info
            for name, info in infos.items()
        }


def test_a_topic_that_cannot_be_read_keeps_its_position(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """The other topics are archived, the error names this one, and the next run reads it."""
    storage = ArchiveStorage(str(tmp_path))
    logs.schedule(4, DUE_MS)
    archive(spark, brokers, storage, logs.plan(), ignore)
    logs.schedule(4, DUE_MS)
    without_leader = logs.brokers(Leaderless)
    with pytest.raises(
        ArchiveFailed, match=f"{logs.target} was left out: no broker leads {logs.target}/1"
    ):
        archive(spark, without_leader, storage, logs.plan(), ignore)
    without_leader.close()
    assert len(positions_in(tmp_path, "messages", "shard")) == 8
    assert len(positions_in(tmp_path, "deliveries", "partition")) == 4
    archive(spark, brokers, storage, logs.plan(), ignore)
    assert positions_in(tmp_path, "deliveries", "partition") == sorted(
        (logs.target, *at) for at in everything(logs, 8)
    )


def test_a_run_is_dated_before_its_first_request(
    logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Records that arrive between its requests need not be read; and a delay topic created again
    needs another archive."""
    streams = [("progress", [logs.progress]), ("messages", [logs.delay])]
    began_ms = time.time_ns() // 1_000_000

    class Slow(KafkaLog):
        def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
            infos = super().describe(topics)
            time.sleep(0.5)
            return infos

    slow = logs.brokers(Slow)
    started = begin_run(ArchiveStorage(str(tmp_path)), slow, streams, None)
    slow.close()
    assert began_ms <= started.run.read_ms < began_ms + 500
    logs.delete(logs.delay)
    logs.create(logs.delay)
    with pytest.raises(ArchiveUnusable, match=f"{logs.delay} was deleted and created again"):
        begin_run(ArchiveStorage(str(tmp_path)), brokers, streams, started.run)
