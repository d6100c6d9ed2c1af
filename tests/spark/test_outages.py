"""Outage drills on a real broker and a real node: lost messages come back, each once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chronos.spark.request import BackfillRequest
from tests.integration.flow import now_ms
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


@pytest.mark.smoke
def test_a_deleted_target_gets_back_exactly_its_lost_messages(outage: Outage) -> None:
    """Messages delivered before the loss come again, archived or not; those in the new topic do
    not."""
    first = outage.deliver(60)
    outage.archive()
    before = sorted(map(repr, outage.records()))
    second = outage.deliver(40)
    second_before = sorted(map(repr, outage.records()))
    gone = Counter(message.number for message in outage.flow.sent)
    outage.delete_target()
    third = outage.deliver(20)
    assert outage.times().keys().isdisjoint(gone)
    outage.archive()

    report = outage.replay("gone", targets=[outage.flow.target])
    assert report.messages == len(gone) >= len(first) + len(second)
    assert (sum(each.lost for each in report.gone), any(each.deleted for each in report.gone)) == (
        len(gone),
        False,
    )
    outage.settle_replays()
    assert outage.times() == Counter(message.number for message in outage.flow.sent)
    assert {found.number for found in outage.replays()} == gone.keys()
    assert {message.number for message in third}.isdisjoint(gone)
    # Key, payload and headers are those that were lost.
    restored = Counter(map(repr, outage.records()))
    assert not Counter(second_before) - restored
    assert not Counter(before) - restored

    again = outage.replay("gone", targets=[outage.flow.target], purpose="another")
    assert again.messages == 0


def test_the_archive_brings_back_pending_messages_without_disks_and_logs(outage: Outage) -> None:
    """The disks are lost and the logs trimmed; each pending message comes once, due before the
    recovery or after it."""
    delivered = outage.deliver(60)
    soon_ms, later_ms = now_ms() + 10_000, now_ms() + 20_000
    waiting = outage.flow.write(80, soon_ms, later_ms, keyed=0.5, delays=0)
    far = outage.flow.write(6, now_ms() + 3_600_000, now_ms() + 7_200_000, keyed=1, delays=0)
    outage.flow.flush()
    cancelled = [message for message in waiting if message.number % 7 == 0]
    outage.flow.cancel(cancelled)
    outage.flow.flush()
    outage.service.wait_until(outage.is_pulled, "pull everything")
    outage.service.kill()
    outage.archive()
    for name in ("delay", "progress"):
        outage.trim(name)
    pending = {message.number for message in (*waiting, *far)} - {
        message.number for message in cancelled
    }
    pending -= outage.times().keys()
    assert len(pending) > len(far)

    outage.begin_anew()
    report = outage.replay("pending")
    assert report.messages == len(pending)
    # The ids are the original ones: a producer that cancels need not know of the loss.
    outage.flow.cancel(far)
    outage.flow.flush()
    outage.settle_replays(timeout_s=120)
    times = outage.times()
    wanted = {message.number for message in waiting} - {message.number for message in cancelled}
    wanted |= {message.number for message in (*delivered, *outage.later)}
    assert times == Counter(wanted)
    early = [
        found
        for found in outage.flow.delivered()
        if found.timestamp_ms < (outage.flow.sent[found.number].due_ms or 0)
    ]
    assert early == []


def test_a_window_is_replayed_in_order_at_the_requested_rate(outage: Outage) -> None:
    """All messages of the window come in the order they were due; cancelled ones stay cancelled."""
    dice = random.Random(3)
    start_ms = now_ms() + 1_500
    window = outage.flow.write(200, start_ms, start_ms + 1_000, delays=0)
    cancelled = dice.sample([message for message in window if message.id], 20)
    outage.flow.cancel(cancelled)
    outage.settle()
    outside = outage.deliver(30)
    outage.archive()
    before = outage.times()
    wanted = {message.number for message in window} - {message.number for message in cancelled}
    assert not before.keys() & {message.number for message in cancelled}

    rate = 90.0
    asked: dict[str, Any] = {
        "from_ms": start_ms,
        "to_ms": start_ms + 1_001,
        "rate": rate,
        "purpose": "incident-42",
    }
    report = outage.replay("all", **asked)
    assert report.messages == len(wanted)
    outage.settle_replays()
    assert outage.times() == before + Counter(wanted)
    replays = outage.replays()
    assert {found.number for found in replays} == wanted
    assert not wanted & {message.number for message in outside}
    due = sorted(int(found.headers["chronos-due-at"]) for found in replays)
    paces = [round((at - due[0]) * rate / 1_000 - rank, 1) for rank, at in enumerate(due)]
    assert max(map(abs, paces)) <= 1
    assert due[-1] - due[0] >= (len(wanted) - 2) * 1_000 / rate
    in_order = sorted(replays, key=lambda found: int(found.headers["chronos-due-at"]))
    originals = [outage.flow.sent[found.number].due_ms or 0 for found in in_order]
    assert originals == sorted(originals)

    outage.archive()
    # The wider window holds the replays too, whose originals are in it.
    wider = BackfillRequest(mode="all", **asked | {"to_ms": now_ms()})
    job = outage.backfill()
    again = job.plan(wider)
    assert (again.sent_before, again.messages) == (len(wanted), len(outside) + len(outage.later))
    job.discard(again)
