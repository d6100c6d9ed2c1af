"""Drills: what was delivered is not called missing, and not sent again, because a clock is wrong or
a broker removed it in time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chronos.spark.runs import begin_run
from tests.integration.flow import now_ms
from tests.spark.drill import COUNT, Drill, set_clock
from tests.spark.logs import SHARDS, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def drill(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Drill]:
    """A drill on the shared broker."""
    made = Drill(spark, broker, tmp_path)
    yield made
    made.brokers.close()


def test_a_lost_message_is_found(drill: Drill) -> None:
    """The other drills would prove nothing if none were."""
    drill.begin()
    drill.send()
    drill.settle()
    drill.archive()
    assert (drill.audit().overall.counts, drill.to_send()) == ({"missing": COUNT}, COUNT)


def test_a_machine_whose_clock_is_ahead_calls_nothing_missing_after_a_kill(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that the killed run read are older, by that clock, than its last look at the
    target."""
    set_clock(monkeypatch, 60_000)
    drill.begin()
    drill.send()
    drill.archive()
    drill.deliver()
    drill.settle()
    drill.archive(killed_at="deliveries")
    found = drill.audit()
    assert (found.broken, found.clean, drill.to_send()) == (False, False, 0)
    assert found.reasons == [("pending", "target-not-read-so-far", COUNT)]
    drill.archive()
    assert (drill.audit().overall.counts, drill.to_send()) == ({"delivered": COUNT}, 0)
    # The archive does not end behind the newest record that it may hold.
    assert drill.audit().archived_ms <= now_ms()


def test_no_run_is_older_than_what_it_has_seen_or_than_the_run_before_it(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is behind would let a gap look older than the messages that it hides."""
    drill.step(0, 0)
    since_ms = now_ms() - 1_000
    streams = [("progress", [drill.logs.progress]), ("deliveries", [drill.logs.target])]
    set_clock(monkeypatch, -60_000)
    first = begin_run(drill.storage, drill.brokers, streams, None).run
    assert first.broker_ms is not None
    assert since_ms < first.read_ms == first.broker_ms <= now_ms() + 500
    set_clock(monkeypatch, -120_000)
    assert begin_run(drill.storage, drill.brokers, streams, first).run.read_ms == first.read_ms + 1


def test_a_record_that_a_compacted_target_may_have_removed_is_unknown(drill: Drill) -> None:
    """It is not sent again: the replay of an old value would take the place of the newest one."""
    target = f"{drill.logs.target}.compacted"
    drill.logs.broker.create_topic(
        target,
        partitions=SHARDS,
        config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact,delete"},
    )
    drill.logs.target = target
    drill.begin()
    drill.send()
    drill.settle()
    drill.archive()
    found = drill.audit()
    assert (found.reasons, found.broken, found.clean) == (
        [("unknown", "compacted", COUNT)],
        False,
        False,
    )
    assert drill.to_send() == 0
    noted = {
        row["topic"]: row["compacted"] for row in table(drill.directory, "offsets").to_pylist()
    }
    assert noted == {
        target: True,
        drill.logs.delay: False,
        drill.logs.progress: False,
        drill.logs.rejected: False,
        drill.logs.dead_letter: False,
    }


def test_what_a_target_held_that_was_created_again_before_the_first_run_is_unknown(
    drill: Drill,
) -> None:
    """Readers may have had it. What was due since the new topic is known to exist is missing, if it
    is."""
    drill.step(0, 0)
    drill.send()
    drill.deliver()
    drill.settle()
    drill.logs.delete(drill.logs.target)
    drill.logs.create(drill.logs.target)
    drill.archive()
    found = drill.audit()
    assert (found.reasons, found.broken, found.clean) == ([("unknown", "gap", COUNT)], False, False)
    assert drill.to_send() == 0


def test_what_a_target_lost_at_an_election_before_it_was_archived_is_unknown(drill: Drill) -> None:
    """Readers may have had it, and the log has grown again: half of one partition's records are
    left, and none of the other's."""
    broker, folders = drill.logs.broker, [f"{drill.logs.target}-{part}" for part in range(SHARDS)]
    drill.begin()
    drill.send()
    saved = drill.directory.parent / "saved"
    for at in range(COUNT):
        if at in (0, COUNT // 2):
            drill.logs.flush()
            part = 0 if at == 0 else 1
            shutil.copytree(broker.data / folders[part], saved / folders[part])
        receipt = drill.logs.receipt(at % SHARDS, at // SHARDS, drill.due_ms + at)
        drill.logs.write(drill.logs.target, b"%d" % at, receipt, partition=at % SHARDS)
    drill.logs.flush()
    drill.settle()
    broker.kill()
    for folder in folders:
        shutil.rmtree(broker.data / folder)
        shutil.copytree(saved / folder, broker.data / folder)
    broker.start()
    for at in range(2 * COUNT):
        drill.logs.write(drill.logs.target, b"of another producer", partition=at % SHARDS)
    drill.logs.flush()
    drill.archive()
    gaps = {row["gap_reason"] for row in table(drill.directory, "offsets").to_pylist()}
    assert gaps == {None}, "no archived record was lost"
    found = drill.audit()
    left = COUNT // 4
    assert (found.overall.counts, found.broken) == (
        {"delivered": left, "unknown": COUNT - left},
        False,
    )
    assert found.reasons == [("unknown", "gap", COUNT - left)]
    assert drill.to_send() == 0
