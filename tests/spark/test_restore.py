"""`chronos restore` on a real broker: what was pending comes back in a new service, once, and what
was delivered lately is not accepted again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.log import KafkaLog
from chronos.cli.spark.restore import RestoreOptions, _stopped_at
from chronos.errors import ArchiveFailed, LogUnavailable
from chronos.spark import ledger, schema
from chronos.spark.archive.job import CLUSTER_ID
from chronos.spark.audit.summary import DAY_MS
from chronos.spark.backfill.restore import QUIET_MS, check_empty, check_stopped, newest_ms
from chronos.spark.request import BackfillRequest
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables
from tests.integration.flow import Sent, now_ms, read_committed
from tests.spark.backfills import backfill_of, source_of
from tests.spark.conftest import conf, small
from tests.spark.kills import kill_when
from tests.spark.logs import SHARDS, Logs
from tests.spark.lost import GAP_MS, START_MS, last_json, write_lost
from tests.spark.outage import Outage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def outage(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Outage]:
    """A cluster of its own on the shared broker."""
    with Outage(spark, broker, tmp_path, 1) as made:
        yield made


def command(location: str, bootstrap: str, settings: Mapping[str, object], *more: str) -> list[str]:
    """The command line with the settings of the new service."""
    own = {"log.kind": "kafka", "log.kafka.bootstrap_servers": bootstrap, **settings}
    line = [sys.executable, "-m", "chronos", "restore", "-l", location]
    line += [word for name, value in own.items() for word in ("--set", f"{name}={value}")]
    return [*line, "-o", "json", "--master", "local[2]", *conf(small()), *more]


def run_restore(
    location: str, bootstrap: str, settings: Mapping[str, object], *more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with the settings of the new service."""
    line = command(location, bootstrap, settings, *more)
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


def write_archive(folder: Path, logs: Logs, messages: int) -> None:
    """An archive of these logs, whose messages were settled long ago."""
    write_lost(
        folder,
        cluster=logs.cluster,
        delay=logs.delay,
        target=logs.target,
        messages=messages,
        shards=SHARDS,
    )


def restore(
    outage: Outage, *more: str, settings: dict[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `settings`: others than those of the new service."""
    settings = outage.new_settings() if settings is None else settings
    return run_restore(outage.storage.uri, outage.broker.bootstrap, settings, *more)


def restored(outage: Outage, *more: str) -> dict[str, Any]:
    """The report of the command."""
    ran = restore(outage, *more)
    assert ran.returncode == 0, ran.stderr
    return last_json(ran.stdout)


def send_again(outage: Outage, messages: list[Sent]) -> None:
    """Schedule messages again under their ids."""
    headers: dict[str, str | bytes | None] = {
        "chronos-target-topic": outage.flow.target,
        "chronos-delay": "0ms",
    }
    for message in messages:
        value = f"{message.number} again"
        outage.flow._produce(message.id, value, headers, -1, lambda _: None)
    outage.flow.flush()


def test_what_was_pending_is_restored_once_and_delivered_ids_stay_taken(outage: Outage) -> None:
    """Refused while the old service may run, and where something is; `--dry-run` changes
    nothing."""
    delivered = outage.deliver(60)
    later_ms = now_ms() + 1_800_000
    waiting = outage.flow.write(80, later_ms, later_ms + 3_600_000, keyed=0.5, delays=0)
    outage.flow.flush()
    cancelled = [message for message in waiting if message.number % 7 == 0]
    outage.flow.cancel(cancelled)
    outage.flow.flush()
    outage.service.wait_until(outage.is_pulled, "pull everything")
    outage.service.kill()
    outage.archive()

    ran = restore(outage, "--yes")
    assert (ran.returncode, "may still run" in ran.stderr) == (1, True), ran.stderr
    ran = restore(outage, "--yes", "--old-cluster-is-gone", settings=outage.flow.settings())
    assert (ran.returncode, "is not empty" in ran.stderr) == (1, True), ran.stderr

    pending = {message.number for message in waiting}
    pending -= {message.number for message in cancelled}
    ids = {
        message.id for message in (*delivered, *outage.later) if (message.id or "")[:5] == "order"
    }
    assert ids
    planned = restored(outage, "--dry-run", "--old-cluster-is-gone")
    counts = ("messages", "settled", "unknown", "lag_ms", "unarchived_targets")
    found = {name: planned[name] for name in counts}
    assert found == {
        "messages": len(pending),
        "settled": len(ids),
        "unknown": 0,
        "lag_ms": 0,
        "unarchived_targets": [],
    }
    assert f"{outage.flow.prefix}.new.delay" not in outage.brokers.names()

    report = restored(outage, "--yes", "--old-cluster-is-gone")
    assert report["state"] == "done"
    assert {name: report[name] for name in counts} == found
    ran = restore(outage, "--yes", "--old-cluster-is-gone")
    assert (ran.returncode, "is not empty" in ran.stderr) == (1, True), ran.stderr

    before = outage.times()
    outage.begin_anew(creates=False)
    again = [message for message in delivered if message.id in ids]
    send_again(outage, again)
    due = [message for message in waiting if message.number in pending]
    outage.flow.fire([message for message in due if (message.id or "")[:5] == "order"])
    outage.flow.flush()
    fired = {message.number for message in due if (message.id or "")[:5] == "order"}
    outage.service.wait_until(
        lambda: len(outage.flow.rejected()) >= len(again), "refuse what was delivered"
    )
    outage.service.wait_until(
        lambda: outage.times().total() >= before.total() + len(fired), "deliver what is fired"
    )
    refused = [each for each in outage.flow.rejected() if each.number not in pending]
    assert Counter(each.number for each in refused) == Counter(each.number for each in again)
    assert {each.headers["chronos-reason"] for each in refused} == {"conflict"}
    assert outage.times() == before + Counter(fired)
    left = sum(shard["pending"] for shard in outage.service.shards())
    assert left == len(pending) - len(fired)


def test_a_restore_that_was_begun_is_completed_by_the_same_command(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Ids of delivered messages are sent as settled and without a payload; ids that Chronos
    generated are not sent."""
    logs, storage = Logs(broker), ArchiveStorage(str(tmp_path / "archive"))
    write_archive(tmp_path / "archive", logs, 40)
    new = f"{logs.cluster}.new.delay"
    broker.create_topic(new, partitions=SHARDS, config={"message.timestamp.type": "LogAppendTime"})
    brokers = logs.brokers()
    job = backfill_of(spark, storage, brokers, broker.bootstrap, delay_topic=new)
    request = BackfillRequest(
        mode="pending", purpose="restore-1", lost_ms=now_ms(), deduplication_ms=now_ms()
    )
    with job.locked():
        planned = job.plan(request)
        job.begin(planned)
    brokers.close()
    assert (planned.messages, planned.settled, planned.unknown) == (8, 8, 0)
    settings = {
        "cluster": logs.cluster,
        "shards": SHARDS,
        "topics.delay": new,
        "topics.progress": f"{logs.cluster}.new.progress",
    }
    ran = run_restore(storage.uri, broker.bootstrap, settings, "--yes", "--old-cluster-is-gone")
    assert ran.returncode == 0, ran.stderr
    report = last_json(ran.stdout)
    assert (report["run"], report["state"]) == (planned.run, "done")
    assert (report["messages"], report["settled"]) == (0, 8)
    sent = {}
    for record in read_committed(broker.bootstrap, new):
        headers: Any = dict(record.headers() or ())
        assert record.value() is None
        assert headers.keys() == {"chronos-action", ledger.REPLAY_POSITION}
        sent[record.key()] = headers["chronos-action"]
    assert sent == {b"order-%d" % number: b"settled" for number in range(0, 40, 5)}


def test_an_archive_of_other_brokers_is_restored_only_if_the_old_service_is_known_to_have_stopped(
    broker: Broker, tmp_path: Path
) -> None:
    storage = ArchiveStorage(str(tmp_path / "archive"))
    topics = {name: f"old.{name}" for name in ("delay", "progress", "rejected", "dead_letter")}
    claim = {"format": schema.FORMAT, "id": "old", "cluster": "old", "topics": topics}
    storage.write_json("archive.json", {**claim, CLUSTER_ID: "another"})
    settings = {f"topics.{name}": f"{uuid.uuid4().hex}.{name}" for name in ("delay", "progress")}
    ran = run_restore(storage.uri, broker.bootstrap, settings, "--yes")
    assert (ran.returncode, "archived from other brokers" in ran.stderr) == (1, True), ran.stderr
    old = tmp_path / "old.yaml"
    old.write_text(f"log: {{kind: kafka, kafka: {{bootstrap_servers: '{broker.bootstrap}'}}}}\n")
    ran = run_restore(storage.uri, broker.bootstrap, settings, "--old-cluster", str(old))
    assert (ran.returncode, "from the Kafka cluster another" in ran.stderr) == (1, True), ran.stderr


@pytest.mark.parametrize(("age_ms", "is_refused"), [(QUIET_MS - 1, True), (QUIET_MS, False)])
def test_an_old_service_counts_as_stopped_once_its_newest_progress_record_is_old(
    age_ms: int, is_refused: bool
) -> None:
    with pytest.raises(ArchiveFailed, match="may still run") if is_refused else nullcontext():
        check_stopped("c.progress", now_ms() - age_ms, now_ms())


def test_the_newest_record_of_a_topic_and_an_empty_one_are_told_apart(broker: Broker) -> None:
    """Of all partitions; a topic that does not exist is empty."""
    logs = Logs(broker)
    brokers = logs.brokers()
    missing = f"{logs.cluster}.missing"
    assert newest_ms(brokers, logs.delay) is newest_ms(brokers, missing) is None
    check_empty(brokers, [logs.delay, missing])
    began_ms = now_ms()
    logs.write(logs.delay, b"1", [], partition=SHARDS - 1)
    logs.flush()
    newest = newest_ms(brokers, logs.delay)
    assert newest is not None
    assert began_ms <= newest <= now_ms()
    with pytest.raises(ArchiveFailed, match="is not empty"):
        check_empty(brokers, [missing, logs.delay])
    brokers.close()


class Headless(KafkaLog):
    """Brokers that the connection for headers of batches does not reach."""

    def batch_header(self, topic: str, partition: int, offset: int) -> BatchHeader:
        """Raise LogUnavailable."""
        raise LogUnavailable(f"{topic}/{partition} at offset {offset}: not supported")


def test_an_old_service_that_is_gone_needs_no_progress_topic_that_can_be_read(
    broker: Broker,
) -> None:
    """Otherwise it is not known to have stopped."""
    logs = Logs(broker)
    logs.write(logs.progress, logs.step())
    logs.flush()
    brokers = logs.brokers(Headless)
    claim = {"topics": {"progress": logs.progress}, CLUSTER_ID: brokers.cluster_id()}
    to = source_of(brokers, broker.bootstrap)

    def stopped_at(*, is_gone: bool) -> int | None:
        asked = RestoreOptions(old_cluster_is_gone=is_gone)
        return _stopped_at("archive", claim, to, asked, now_ms())

    assert stopped_at(is_gone=True) is None
    with pytest.raises(LogUnavailable, match="not supported"):
        stopped_at(is_gone=False)
    brokers.close()


@pytest.mark.campaign
def test_a_restore_to_another_kafka_cluster_that_is_killed_is_completed_by_the_same_command(
    spark: SparkSession, broker: Broker, own_broker: Broker, tmp_path: Path
) -> None:
    """kill -9 while it plans, amid its sending and near its end: each id is sent once."""
    logs, storage, messages = Logs(broker), ArchiveStorage(str(tmp_path / "archive")), 300_000
    write_archive(tmp_path / "archive", logs, messages)
    brokers = logs.brokers()
    claim = storage.read_json("archive.json")
    storage.write_json("archive.json", {**claim, CLUSTER_ID: brokers.cluster_id()})
    brokers.close()
    old = tmp_path / "old.yaml"
    old.write_text(f"log: {{kind: kafka, kafka: {{bootstrap_servers: '{broker.bootstrap}'}}}}\n")
    settings = {
        "cluster": logs.cluster,
        "shards": SHARDS,
        "topics.delay": logs.delay,
        "topics.progress": logs.progress,
        "retention.deduplication": "30d",
    }
    lost_ms = START_MS + messages * GAP_MS + DAY_MS
    options = ("--yes", "--old-cluster", str(old), "--lost-at", str(lost_ms))
    line = command(storage.uri, own_broker.bootstrap, settings, *options)
    ids = Counter(b"order-%d" % number for number in range(0, messages, 5))
    consumer = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "watermarks", "log_level": 2}
    )

    def sent() -> int:
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(logs.delay, shard), timeout=10)[1]
                for shard in range(SHARDS)
            )
        except KafkaException:  # the topic is not there yet
            return 0

    def is_planned() -> bool:
        return bool(list((tmp_path / "archive" / ledger.SENT).glob("run=*/_plan")))

    log_path, kills = tmp_path / "restore.log", 0
    for moment in (is_planned, lambda: sent() > 0.2 * len(ids), lambda: sent() > 0.8 * len(ids)):
        kills += kill_when(line, moment, log_path)
    assert kills >= 2, log_path.read_text()[-4_000:]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    consumer.close()
    records = list(read_committed(own_broker.bootstrap, logs.delay))
    assert Counter(record.key() for record in records) == ids
    assert {dict(record.headers() or ()).get("chronos-action") for record in records} == {
        b"settled"
    }
    ran = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert (ran.returncode, "is not empty" in ran.stderr) == (1, True), ran.stderr


@pytest.mark.campaign
def test_all_is_lost_but_an_archive_that_ends_ten_seconds_before(outage: Outage) -> None:
    """Lost is what was sent after the archive's end, unknown what was due after it, and doubled
    only what of that was delivered; everything else is delivered once."""
    outage.deliver(60)
    outage.archive()
    outage.flow.write(50, now_ms() + 120_000, now_ms() + 180_000, delays=0)
    is_lost = threading.Event()

    def produce() -> None:
        while not is_lost.wait(0.2):  # its pace
            outage.flow.write(10, now_ms() + 100, now_ms() + 30_000, keyed=0.5, delays=0)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        outage.service.wait_until(lambda: len(outage.flow.sent) > 300, "take the first messages")
        outage.archive()
        time.sleep(10)  # the lag
        outage.service.kill()
    finally:
        is_lost.set()
        producer.join(30)
    outage.flow.flush()
    lost_ms = now_ms()
    before = outage.times()
    names = ("delay", "progress", "rejected", "dead_letter")
    outage.delete(*(f"{outage.flow.prefix}.{name}" for name in names))
    outage.delete_target()

    tables, _, _ = open_tables(outage.spark, outage.storage)
    assert tables.versions[schema.MESSAGES.name]
    sent, known = (
        {int(row["value"].split()[0]) for row in table.select("value").collect() if row["value"]}
        for table in (tables.messages, tables.deliveries)
    )
    messages = {message.number: message for message in outage.flow.sent}
    unknown = {number for number in sent - known if (messages[number].due_ms or 0) <= lost_ms + 500}
    assert unknown
    options = ("--old-cluster-is-gone", "--lost-at", str(lost_ms))
    planned = restored(outage, "--dry-run", *options)
    assert planned["unknown"] == planned["unknown_left_out"] == len(unknown)
    assert planned["messages"] == len(sent - known - unknown)
    assert 10_000 <= planned["lag_ms"] < 120_000
    report = restored(outage, "--yes", "--repeat-unknown", *options)
    assert (report["unknown"], report["unknown_left_out"]) == (len(unknown), 0)

    outage.begin_anew(creates=False)
    outage.settle_replays(timeout_s=240)
    after = outage.times()
    lost = messages.keys() - before.keys() - after.keys()
    assert lost == messages.keys() - sent - before.keys()
    doubled = {number for number, times in (before + after).items() if times > 1}
    assert doubled == unknown & before.keys()
    assert after.keys() == sent - known
    assert set((before + after).values()) <= {1, 2}
