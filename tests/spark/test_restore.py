"""`chronos restore` on a real broker: what was pending comes back in a new service, once, and what
was delivered lately is not accepted again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chronos.spark import schema
from chronos.spark.tables import open_tables
from tests.integration.flow import Sent, now_ms
from tests.spark.conftest import conf, small
from tests.spark.lost import last_json
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


def restore(
    outage: Outage, *more: str, settings: dict[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `settings`: others than those of the new service."""
    own = {"log.kind": "kafka", "log.kafka.bootstrap_servers": outage.broker.bootstrap}
    own |= outage.new_settings() if settings is None else settings  # type: ignore[arg-type]
    command = [sys.executable, "-m", "chronos", "restore", "-l", outage.storage.uri]
    command += [word for name, value in own.items() for word in ("--set", f"{name}={value}")]
    command += ["-o", "json", "--master", "local[2]", *conf(small()), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


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


@pytest.mark.campaign
def test_all_is_lost_but_an_archive_that_ends_ten_seconds_before(outage: Outage) -> None:
    """Lost is what was sent after the archive's end, unknown what was due after it, and doubled
    only what of that was delivered; everything else is delivered once."""
    outage.deliver(60)
    outage.archive()
    outage.flow.write(50, now_ms() + 120_000, now_ms() + 180_000, delays=0)
    end = time.monotonic() + 15
    archiving = threading.Thread(target=outage.archive)
    began = False
    while time.monotonic() < end:
        outage.flow.write(10, now_ms() + 100, now_ms() + 30_000, keyed=0.5, delays=0)
        if not began and time.monotonic() > end - 10:
            archiving.start()
            began = True
        time.sleep(0.2)  # the pace of the producer
    outage.flow.flush()
    outage.service.kill()
    lost_ms = now_ms()
    archiving.join(120)
    assert not archiving.is_alive()
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
    assert 5_000 < planned["lag_ms"] < 30_000
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
