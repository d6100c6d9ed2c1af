"""Each outcome, each precedence and each boundary, with one small shard for each case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chronos.spark.audit.coverage import coverage
from chronos.spark.audit.job import judge
from tests.spark.cases import PULLED, READ_MS, SETTLED_MS, WINDOW, JudgedShard, T, archive_of
from tests.spark.histories import DELAY, HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


DUE = T + 60_000
LATER = T + 120_000
A, B = (0, 1), (1, 1)
"""Tokens of the first two records: offset and occurrence."""


def delivered_or_not() -> list[JudgedShard]:
    """Cases decided by the deliveries in the target."""
    return [
        JudgedShard("delivered", {A: ("delivered", None)}).send(0, DUE).deliver(0, DUE, DUE + 5),
        JudgedShard("missing", {A: ("missing", None)}).send(0, DUE),
        JudgedShard("half a second before it was due: clocks differ", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE - 500),
        JudgedShard("a millisecond more is early", {A: ("early", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE - 501),
        JudgedShard("twice", {A: ("duplicated", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .deliver(0, DUE, DUE + 1),
        JudgedShard("twice, and once of them early", {A: ("duplicated", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .deliver(0, DUE, DUE - 5_000),
        JudgedShard("twice, in two partitions at the same offset", {A: ("duplicated", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .deliver(0, DUE, DUE, offset=0, partition=1),
        JudgedShard("one record that is in the archive twice", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .deliver(0, DUE, DUE, offset=0),
        JudgedShard("copied to another topic by somebody", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .deliver(0, DUE, DUE, topic="copies"),
        JudgedShard("only a copy elsewhere", {A: ("missing", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE, topic="copies"),
        JudgedShard("of another cluster", {A: ("missing", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE, source_topic="their.delay"),
        JudgedShard("due as the window begins", {A: ("missing", None)}).send(0, T),
        JudgedShard("due as the window ends", {}).send(0, T + HOUR_MS),
        JudgedShard(
            "spread: due later than requested, in the hour before", {A: ("delivered", None)}
        )
        .send(0, T, requested_due_ms=T - 1_000)
        .deliver(0, T - 1_000, T + 1),
    ]


def refused() -> list[JudgedShard]:
    """Cases of messages that were refused."""
    mine = {"id": b"mine", "on_conflict": "reject"}
    return [
        JudgedShard("refused", {A: ("rejected", "conflict")})
        .send(0, DUE, **mine)
        .decide("refused", 0, T - 50_000, reason="conflict"),
        JudgedShard("forwarded: it is judged in its own shard", {})
        .send(0, DUE, **mine)
        .decide("refused", 0, T - 50_000, reason="forwarded"),
        JudgedShard(
            "refused, and written on after it was held",
            {A: ("rejected", "conflict"), B: ("rejected", "too-late")},
        )
        .send(0, DUE, **mine)
        .hold(0, -1, "conflict")
        .send(1, DUE, **mine)
        .hold(1, -1, "too-late")
        .write_on(1, -1),
        JudgedShard(
            "refused, and still held",
            {
                A: ("rejected", "conflict"),
                B: ("pending", "too-late"),
                (2, 1): ("pending", "conflict"),
            },
        )
        .send(0, DUE, **mine)
        .hold(0, -1, "conflict")
        .write_on(0, -1)
        .send(1, DUE, **mine)
        .hold(1, -1, "too-late")
        .send(2, DUE, **mine)
        .hold(2, -1, "conflict")
        .send(3, DUE, **mine)
        .hold(3, 1)
        .write_on(3, 1),
        JudgedShard(
            "too large when it was written on, and behind younger ones in the queue it went to",
            {
                A: ("rejected", "too-large"),
                B: ("pending", "too-large"),
                (2, 1): ("rejected", "conflict"),
            },
        )
        .send(0, DUE, **mine)
        .hold(0, 1)
        .send(1, DUE, **mine)
        .hold(1, 1)
        .send(2, DUE, **mine)
        .hold(2, -1, "conflict")
        .write_on(2, -1)
        .decide("written-on", 1, T, in_step=3, destination=1)
        .decide("refused", 0, T, in_step=3, reason="too-large", destination=-1)
        .decide("refused", 1, T, in_step=3, reason="too-large", destination=-1)
        .decide("written-on", 0, T, in_step=4, destination=-1),
        JudgedShard(
            "not to be understood, and still held",
            {A: ("rejected", "bad-value"), B: ("pending", "no-time")},
        )
        .send(0, None, verb="refused", reason="bad-value", target=None, timestamp_ms=T + 5)
        .hold(0, -1, "bad-value")
        .send(1, None, verb="refused", reason="no-time", target=None, timestamp_ms=T + 5)
        .hold(1, -1, "no-time")
        .write_on(0, -1),
        JudgedShard(
            "not to be read, and still held",
            {A: ("rejected", "unreadable"), B: ("pending", "unreadable")},
        )
        .hold(0, -1, "unreadable", T + 5)
        .write_on(0, -1)
        .hold(1, -1, "unreadable", T + 5)
        .read("messages", 2, gap=True, gap_reason="unreadable")
        .read("messages", from_offset=2)
        .read_plainly("progress", "deliveries"),
        JudgedShard("an action of another partition that is still held", {})
        .send(0, None, verb="refused", reason="unknown", target=None, timestamp_ms=T + 5)
        .hold(0, 1),
        JudgedShard("not to be understood", {A: ("rejected", "bad-value")}).send(
            0, None, verb="refused", reason="bad-value", target=None, timestamp_ms=T + 5
        ),
    ]


def ended_otherwise() -> list[JudgedShard]:
    """Cases decided by the delay topic and the progress log."""
    mine = {"id": b"mine", "on_conflict": "reject"}
    return [
        JudgedShard("cancelled", {A: ("cancelled", None)})
        .send(0, DUE, **mine)
        .act("cancel", 1, b"mine", at_ms=T),
        JudgedShard("cancelled by its address", {A: ("cancelled", None)})
        .send(0, DUE)
        .act("cancel", 1, b"0-%d-0" % DUE, at_ms=T),
        JudgedShard("cancelled, and yet delivered", {A: ("duplicated", "cancelled")})
        .send(0, DUE, **mine)
        .act("cancel", 1, b"mine", at_ms=T)
        .deliver(0, DUE, DUE),
        JudgedShard("a cancel that was refused", {A: ("delivered", None)})
        .send(0, DUE, **mine)
        .act("cancel", 1, b"mine", at_ms=DUE + 100)
        .decide("refused", 1, DUE + 200, reason="too-late")
        .deliver(0, DUE, DUE),
        JudgedShard("a cancel that was not pulled yet", {A: ("delivered", None)})
        .send(0, DUE, **mine)
        .act("cancel", PULLED, b"mine", at_ms=T)
        .deliver(0, DUE, DUE)
        .read("messages", PULLED + 1)
        .read_plainly("progress", "deliveries"),
        JudgedShard("a cancel of a later message with its id", {A: ("missing", None)})
        .send(0, DUE, **mine)
        .act("cancel", 900, b"mine", at_ms=LATER)
        .step(T, 0, 0)
        .step(LATER, LATER, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard("replaced", {A: ("replaced", None), B: ("delivered", None)})
        .send(0, DUE, **mine)
        .send(1, LATER, id=b"mine", verb="replace", on_conflict="replace")
        .deliver(1, LATER, LATER),
        JudgedShard(
            "replaced by a schedule that says so", {A: ("replaced", None), B: ("delivered", None)}
        )
        .send(0, DUE, **mine)
        .send(1, LATER, id=b"mine", on_conflict="replace")
        .deliver(1, LATER, LATER),
        JudgedShard(
            "its id taken again after it was lost",
            {A: ("missing", None), (900, 1): ("delivered", None)},
        )
        .send(0, DUE, **mine)
        .send(900, LATER, id=b"mine", on_conflict="replace", timestamp_ms=DUE + 1)
        .step(T, 0, 0)
        .step(DUE + 1, DUE, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .deliver(900, LATER, LATER),
        JudgedShard(
            "its id taken while it was late", {A: ("replaced", None), (900, 1): ("delivered", None)}
        )
        .send(0, DUE, **mine)
        .send(900, LATER, id=b"mine", on_conflict="replace", timestamp_ms=DUE + 1)
        .step(T, 0, 0)
        .step(DUE + 1, DUE - 1, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .deliver(900, LATER, LATER),
        JudgedShard(
            "its id taken after it was settled by its first timestamp",
            {A: ("delivered", None), (900, 1): ("delivered", None)},
        )
        .send(0, T, **mine, timestamp_ms=DUE + 2, first_ms=T)
        .deliver(0, T, DUE)
        .send(900, LATER, id=b"mine", on_conflict="replace", timestamp_ms=DUE + 3)
        .deliver(900, LATER, LATER)
        .step(T, 0, 0)
        .step(DUE + 1, DUE, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard("ids of other shards are others", {A: ("missing", None)}).send(0, DUE, **mine),
        JudgedShard(
            "a replace that was refused ends nothing",
            {A: ("delivered", None), B: ("rejected", "too-late")},
        )
        .send(0, DUE, **mine)
        .send(1, LATER, id=b"mine", verb="replace", on_conflict="replace")
        .decide("refused", 1, LATER, reason="too-late")
        .deliver(0, DUE, DUE),
        JudgedShard("expired", {A: ("expired", "expired")})
        .send(0, DUE)
        .decide("expired", 0, LATER, reason="expired"),
        JudgedShard("dead", {A: ("dead-lettered", "target-missing")})
        .send(0, DUE)
        .decide("dead-letter", 0, LATER, reason="target-missing"),
        JudgedShard("dead, and yet delivered", {A: ("duplicated", "dead-lettered")})
        .send(0, DUE)
        .decide("dead-letter", 0, LATER, reason="too-large")
        .deliver(0, DUE, DUE),
    ]


def carried_on() -> list[JudgedShard]:
    """Cases of messages that were moved, retried or repeated."""
    mine = {"id": b"mine", "on_conflict": "reject"}
    return [
        JudgedShard("moved within the window", {A: ("delivered", None)})
        .send(0, DUE, **mine)
        .act("reschedule", 1, b"mine", at_ms=T, due_ms=LATER)
        .deliver(0, LATER, LATER),
        JudgedShard("moved, and delivered at its first time", {A: ("early", None)})
        .send(0, DUE, **mine)
        .act("reschedule", 1, b"mine", at_ms=T, due_ms=LATER)
        .deliver(0, LATER, DUE),
        JudgedShard("moved out of the window", {})
        .send(0, DUE, **mine)
        .act("reschedule", 1, b"mine", at_ms=T, due_ms=T + 5 * HOUR_MS),
        JudgedShard("moved into the window", {A: ("missing", None)})
        .send(0, T + 9 * HOUR_MS, **mine)
        .act("reschedule", 1, b"mine", at_ms=T, due_ms=DUE),
        JudgedShard("fired within the window", {A: ("delivered", None)})
        .send(0, T + 9 * HOUR_MS, **mine)
        .act("fire-now", 1, b"mine", at_ms=DUE)
        .deliver(0, DUE, DUE + 3),
        JudgedShard("fired within the window by a record older than it", {A: ("delivered", None)})
        .send(0, T + 2 * HOUR_MS, **mine, timestamp_ms=T + 400)
        .act("fire-now", 1, b"mine", at_ms=T + 600, first_ms=T + 200)
        .deliver(0, T + 200, T + 700),
        JudgedShard("fired before the window by a record older than it", {})
        .send(0, T + 2 * HOUR_MS, **mine, timestamp_ms=T + 100)
        .act("fire-now", 1, b"mine", at_ms=T + 300, first_ms=T - 200)
        .deliver(0, T - 200, T + 400),
        JudgedShard("settled: promises nothing, acts on nothing", {A: ("delivered", None)})
        .send(0, DUE, **mine)
        .act("settled", 1, b"mine", at_ms=T)
        .act("settled", 2, b"other", at_ms=DUE)
        .deliver(0, DUE, DUE + 3),
        JudgedShard("fired when it was due already", {A: ("delivered", None)})
        .send(0, DUE, **mine)
        .act("fire-now", 900, b"mine", at_ms=LATER)
        .deliver(0, DUE, LATER + 3)
        .step(T, 0, 0)
        .step(DUE - 1, DUE - 1, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            "moved into the window by new zone data, after an occurrence before the window",
            {(0, 2): ("delivered", None)},
        )
        .send(0, T - 6 * HOUR_MS, timestamp_ms=T - 7 * HOUR_MS)
        .step(T - 6 * HOUR_MS, T - 6 * HOUR_MS, 1)
        .step(T - HOUR_MS, T - HOUR_MS, 1)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .decide("again", 0, 0, in_step=0, next_due_ms=T + 2 * HOUR_MS, occurrence=2)
        .decide("planned-again", 0, 0, in_step=1, next_due_ms=DUE)
        .deliver(0, DUE, DUE + 3, occurrence=2),
        JudgedShard(
            "moved by new zone data to a time that is past, and delivered in the same step",
            {A: ("delivered", None)},
        )
        .send(0, T + 9 * HOUR_MS)
        .step(T, T, 1)
        .step(LATER, LATER, PULLED)
        .decide("planned-again", 0, 0, in_step=1, next_due_ms=DUE)
        .deliver(0, DUE, LATER),
        JudgedShard("delivered at the second attempt", {A: ("delivered", None)})
        .send(0, DUE)
        .decide("retry", 0, DUE + 1, next_due_ms=LATER, attempt=2)
        .deliver(0, DUE, LATER, attempt=2),
        JudgedShard("lost at the second attempt", {A: ("missing", None)})
        .send(0, DUE)
        .decide("retry", 0, DUE + 1, next_due_ms=LATER, attempt=2),
        JudgedShard("waits for its second attempt", {A: ("pending", "not-settled")})
        .send(0, DUE)
        .decide("retry", 0, DUE + 1, next_due_ms=SETTLED_MS + 1, attempt=2),
        JudgedShard("deferred, and delivered in its turn", {A: ("delivered", None)})
        .send(0, DUE)
        .decide("deferred", 0, DUE + 1, next_due_ms=LATER)
        .deliver(0, DUE, LATER + 1),
        JudgedShard("parked, and still in its lane", {A: ("pending", "not-settled")})
        .send(0, DUE)
        .decide("parked", 0, DUE + 1, position_due_ms=DUE, lane=2),
        JudgedShard("parked, and another lane moved on", {A: ("pending", "not-settled")})
        .send(0, DUE)
        .decide("parked", 0, DUE + 1, position_due_ms=DUE, lane=2)
        .step(T, 0, 0)
        .step(DUE + 1, DUE + 1, PULLED)
        .step(LATER, LATER, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .decide("left-lane", 0, LATER, in_step=2, position_due_ms=LATER, lane=1, target="target"),
        JudgedShard("parked, and delivered when its lane was open", {A: ("delivered", None)})
        .send(0, DUE)
        .decide("parked", 0, DUE + 1, position_due_ms=DUE, lane=2)
        .deliver(0, DUE, LATER)
        .step(T, 0, 0)
        .step(DUE + 1, DUE + 1, PULLED)
        .step(LATER, LATER, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .decide("left-lane", 0, LATER, in_step=2, position_due_ms=DUE, lane=2, target="target"),
        JudgedShard("parked, and lost when it left its lane", {A: ("missing", None)})
        .send(0, DUE)
        .decide("parked", 0, DUE + 1, position_due_ms=DUE, lane=2)
        .step(T, 0, 0)
        .step(DUE + 1, DUE + 1, PULLED)
        .step(LATER, LATER, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED)
        .decide("left-lane", 0, LATER, in_step=2, position_due_ms=DUE, lane=2, target="target"),
        JudgedShard("parked, and cancelled in its lane", {A: ("cancelled", None)})
        .send(0, DUE, **mine)
        .decide("parked", 0, DUE + 1, position_due_ms=DUE, lane=2)
        .act("cancel", 900, b"mine", at_ms=LATER)
        .step(T, 0, 0)
        .step(DUE + 1, DUE + 1, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            "put off before the window, and moved into it while it waited", {A: ("missing", None)}
        )
        .send(0, T - HOUR_MS, timestamp_ms=T - 2 * HOUR_MS, **mine)
        .decide("deferred", 0, T - HOUR_MS, next_due_ms=T - 1_000)
        .act("reschedule", 900, b"mine", at_ms=T - 60_000, due_ms=DUE)
        .step(T - 2 * HOUR_MS, 0, 0)
        .step(T - HOUR_MS, T - HOUR_MS, 1)
        .step(T - 60_000, T - 60_000, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            "an occurrence of a series, moved into the window before it was due",
            {(0, 2): ("delivered", None)},
        )
        .send(0, T - HOUR_MS, timestamp_ms=T - 2 * HOUR_MS, **mine)
        .decide("again", 0, T - HOUR_MS, next_due_ms=T - 1_000, occurrence=2)
        .act("reschedule", 900, b"mine", at_ms=T - 60_000, due_ms=DUE)
        .deliver(0, DUE, DUE, occurrence=2)
        .step(T - 2 * HOUR_MS, 0, 0)
        .step(T - HOUR_MS, T - HOUR_MS, 1)
        .step(T - 60_000, T - 60_000, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            "a series: twice delivered, the third to come",
            {A: ("delivered", None), (0, 2): ("delivered", None)},
        )
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .decide("again", 0, DUE, next_due_ms=LATER, occurrence=2)
        .deliver(0, LATER, LATER, occurrence=2)
        .decide("again", 0, LATER, next_due_ms=T + 5 * HOUR_MS, occurrence=3, in_step=2),
        JudgedShard(
            "a series: one occurrence is lost", {A: ("delivered", None), (0, 2): ("missing", None)}
        )
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .decide("again", 0, DUE, next_due_ms=LATER, occurrence=2)
        .decide("again", 0, LATER, next_due_ms=T + 5 * HOUR_MS, occurrence=3, in_step=2),
        JudgedShard(
            "a series that began before the window",
            {(0, 7): ("delivered", None), (0, 8): ("missing", None)},
        )
        .send(0, T - 9 * HOUR_MS)
        .decide("again", 0, T - HOUR_MS, next_due_ms=DUE, occurrence=7)
        .deliver(0, DUE, DUE, occurrence=7)
        .decide("again", 0, DUE, next_due_ms=LATER, occurrence=8, in_step=2)
        .decide("again", 0, LATER, next_due_ms=T + 5 * HOUR_MS, occurrence=9, in_step=3)
        .step(T - 10 * HOUR_MS, 0, 0)
        .step(T - HOUR_MS, T - HOUR_MS, PULLED)
        .step(DUE, DUE, PULLED)
        .step(LATER, LATER, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            (
                "a series with a spread: one of its times is before the window, and its spread "
                "time within"
            ),
            {(0, 3): ("delivered", None)},
        )
        .send(0, T - 9 * HOUR_MS + 5_000, requested_due_ms=T - 9 * HOUR_MS)
        .decide("again", 0, T + 1, next_due_ms=T - 2_000, occurrence=2)
        .deliver(0, T - 2_000, T + 3_001, occurrence=2)
        .decide("again", 0, T + 3_001, next_due_ms=T + 1_000, occurrence=3, in_step=2)
        .deliver(0, T + 1_000, T + 6_001, occurrence=3)
        .decide("again", 0, T + 6_001, next_due_ms=T + HOUR_MS, occurrence=4, in_step=3)
        .step(T - 10 * HOUR_MS, 0, 0)
        .step(T + 1, T + 1, PULLED)
        .step(T + 3_001, T + 3_001, PULLED)
        .step(T + 6_001, T + 6_001, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            (
                "a series with a spread: one of its times is within the window, and its spread "
                "time behind"
            ),
            {(0, 2): ("delivered", None)},
        )
        .send(0, T - 9 * HOUR_MS + 5_000, requested_due_ms=T - 9 * HOUR_MS)
        .decide("again", 0, T, next_due_ms=T + HOUR_MS - 1_000, occurrence=2)
        .deliver(0, T + HOUR_MS - 1_000, T + HOUR_MS + 4_001, occurrence=2)
        .step(T - 10 * HOUR_MS, 0, 0)
        .step(T, T, PULLED)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard("moved to just before the window with a spread that ends in it", {})
        .send(0, T + 6_000, requested_due_ms=T + 1_000, **mine)
        .act("reschedule", 1, b"mine", at_ms=T - 60_000, due_ms=T - 1_000)
        .deliver(0, T - 1_000, T + 4_001),
        JudgedShard(
            "a late occurrence is skipped", {A: ("skipped", None), (0, 2): ("delivered", None)}
        )
        .send(0, DUE)
        .decide("skipped", 0, DUE, next_due_ms=LATER, occurrence=2)
        .deliver(0, LATER, LATER, occurrence=2),
        JudgedShard(
            "an occurrence that expired is skipped",
            {A: ("expired", "expired"), (0, 2): ("delivered", None)},
        )
        .send(0, DUE)
        .decide("skipped", 0, DUE, next_due_ms=LATER, occurrence=2, reason="expired")
        .deliver(0, LATER, LATER, occurrence=2),
        JudgedShard("a series is given its first time", {A: ("delivered", None)})
        .send(0, DUE)
        .decide("skipped", 0, DUE, next_due_ms=LATER)
        .deliver(0, LATER, LATER),
        JudgedShard("a series is cancelled", {A: ("delivered", None), (0, 2): ("cancelled", None)})
        .send(0, DUE, **mine)
        .deliver(0, DUE, DUE)
        .decide("again", 0, DUE, next_due_ms=LATER, occurrence=2)
        .act("cancel", 900, b"mine", at_ms=DUE + 1)
        .step(T, 0, 0)
        .step(DUE, DUE, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
    ]


def judged_or_not() -> list[JudgedShard]:
    """Cases at the frontier, to the millisecond and to the offset."""
    pending = ("pending", "not-settled")
    return [
        JudgedShard("at the cursor", {A: ("missing", None), B: pending})
        .send(0, DUE)
        .send(1, DUE + 1)
        .step(T, 0, 0)
        .step(DUE, DUE, 2),
        JudgedShard("at the cursor amid what is due then", {A: ("missing", None), B: pending})
        .send(0, DUE - 1)
        .send(1, DUE)
        .step(T, 0, 0)
        .step(DUE, DUE, 2, cursor_offset=0),
        JudgedShard("accepted late: in time with its timestamp", {A: ("missing", None)})
        .send(0, T, timestamp_ms=DUE)
        .step(T, 0, 0)
        .step(DUE, DUE, 1),
        JudgedShard("accepted late: beyond the cursor with its timestamp", {A: pending})
        .send(0, T, timestamp_ms=DUE + 1)
        .step(T, 0, 0)
        .step(DUE, DUE, 1),
        JudgedShard("forwarded late: in time with its first timestamp", {A: ("missing", None)})
        .send(0, T, timestamp_ms=DUE + 1, first_ms=DUE)
        .step(T, 0, 0)
        .step(DUE, DUE, 1),
        JudgedShard("not pulled", {A: pending})
        .send(0, DUE)
        .step(T, 0, 0)
        .step(SETTLED_MS, SETTLED_MS, 0),
        JudgedShard("pulled with the cursor at its end already", {A: pending})
        .send(0, DUE)
        .step(T, 0, 0)
        .step(LATER, LATER, 0)
        .step(LATER + 1, LATER, 1),
        JudgedShard("the same, and then the cursor went on", {A: ("missing", None)})
        .send(0, DUE)
        .step(T, 0, 0)
        .step(LATER, LATER, 0)
        .step(LATER + 1, LATER, 1)
        .step(LATER + 2, LATER + 1, 1),
        JudgedShard("no progress record before: nothing is proved", {A: pending})
        .send(0, DUE)
        .step(T, LATER, 1),
        JudgedShard("delivered before it is judged", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .step(T, 0, 0),
        JudgedShard("a step whose delay records are not all archived", {A: pending})
        .send(0, DUE)
        .step(T, 0, 0)
        .step(SETTLED_MS, SETTLED_MS, PULLED + 1),
        JudgedShard("a step whose decisions are not all archived", {A: pending})
        .send(0, DUE)
        .read_plainly("messages", "deliveries")
        .read("progress", 4),
        JudgedShard("settled just before the target was read", {A: ("missing", None)})
        .send(0, DUE)
        .step(T, 0, 0)
        .step(READ_MS - 1, LATER, 1)
        .read_plainly("messages", "deliveries")
        .read("progress", 3),
        JudgedShard(
            "settled when the target had been read already",
            {A: ("pending", "target-not-read-so-far")},
        )
        .send(0, DUE)
        .step(T, 0, 0)
        .step(READ_MS + 1, LATER, 1)
        .read_plainly("messages", "deliveries")
        .read("progress", 2)
        .read("progress", 3, read_ms=READ_MS + 9),
        JudgedShard(
            "the same, by a clock of the archive's machine that is ahead",
            {A: ("pending", "target-not-read-so-far")},
        )
        .send(0, DUE)
        .step(T, 0, 0)
        .step(READ_MS - 60_000, LATER, 1)
        .read_plainly("messages", "deliveries")
        .read("progress", 2)
        .read("progress", 3, read_ms=READ_MS + 9),
        JudgedShard(
            (
                "settled before the target was read, by a clock of the archive's machine that is "
                "behind"
            ),
            {A: ("missing", None)},
        )
        .send(0, DUE)
        .step(T, 0, 0)
        .step(READ_MS + 60_000, LATER, 1)
        .read_plainly("messages", "deliveries")
        .read("progress", 3),
        JudgedShard(
            "the progress topic could not be read with the target",
            {A: ("pending", "target-not-read-so-far")},
        )
        .send(0, DUE)
        .step(T, 0, 0)
        .step(DUE, LATER, 1)
        .read_plainly("messages", "deliveries")
        .read("progress", 3, read_ms=READ_MS + 9),
    ]


def known_or_not() -> list[JudgedShard]:
    """Cases of gaps and open transactions: exactly the messages they may concern are unknown."""
    logs = ("messages", "progress")
    gap = {"gap": True, "gap_reason": "trimmed"}
    ended = {"stable_end": PULLED, "high_watermark": PULLED}
    return [
        JudgedShard("the target is not archived", {A: ("unknown", "target-not-archived")}).send(
            0, DUE, target="elsewhere"
        ),
        JudgedShard(
            "the target is not archived, and it is not settled", {A: ("pending", "not-settled")}
        )
        .send(0, DUE, target="elsewhere")
        .step(T, 0, 0),
        JudgedShard("a transaction is open", {A: ("unknown", "open-transaction")})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", high_watermark=PULLED + 1),
        JudgedShard("a transaction is open, and the record is there", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .read_plainly(*logs)
        .read("deliveries", high_watermark=PULLED + 1),
        JudgedShard("a transaction was open, and is no more", {A: ("missing", None)})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=READ_MS - 9, high_watermark=PULLED + 1)
        .read("deliveries"),
        JudgedShard(
            "a transaction is open in one of two partitions", {A: ("unknown", "open-transaction")}
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries")
        .read("deliveries", partition=1, high_watermark=PULLED + 1),
        JudgedShard(
            "a transaction is open, opened after all was settled and read", {A: ("missing", None)}
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries")
        .read("deliveries", read_ms=READ_MS + 9, high_watermark=PULLED + 1),
        JudgedShard(
            "the target was not read to its end", {A: ("pending", "target-not-read-so-far")}
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", PULLED - 1, **ended),
        JudgedShard("the target lost records after it was due", {A: ("unknown", "gap")})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=T)
        .read("deliveries", **gap),
        JudgedShard("the target lost records, and it is there", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=T)
        .read("deliveries", **gap),
        JudgedShard("the target lost records before it was due", {A: ("missing", None)})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=DUE - 501, **gap)
        .read("deliveries"),
        JudgedShard(
            "the target lost records before it was due, by a clock half a second behind",
            {A: ("unknown", "gap")},
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=DUE - 500, **gap)
        .read("deliveries"),
        JudgedShard(
            "the target was read whole after it was settled, and lost records then",
            {A: ("missing", None)},
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries")
        .read("deliveries", read_ms=READ_MS + 9, **gap),
        JudgedShard(
            "the target's beginning was gone when it was read first", {A: ("unknown", "gap")}
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", from_offset=7),
        JudgedShard("the progress log lost records", {A: ("unknown", "gap")})
        .send(0, DUE)
        .read_plainly("messages", "deliveries")
        .read("progress", 1, read_ms=T)
        .read("progress", **gap),
        JudgedShard("the delay topic lost records, perhaps a cancel", {A: ("unknown", "gap")})
        .send(0, DUE)
        .read_plainly("progress", "deliveries")
        .read("messages", read_ms=T)
        .read("messages", **gap),
        JudgedShard("the delay topic lost records before it was sent", {A: ("missing", None)})
        .send(0, DUE, timestamp_ms=DUE - 1)
        .read_plainly("progress", "deliveries")
        .read("messages", read_ms=DUE - 502, **gap)
        .read("messages"),
        JudgedShard(
            "the delay topic's beginning was gone before it was archived", {B: ("missing", None)}
        )
        .send(1, DUE)
        .read_plainly("progress", "deliveries")
        .read("messages", from_offset=1, log_start=1),
    ]


def created_again() -> list[JudgedShard]:
    """Cases of targets that may have been deleted and created again before the archive first looked
    at them."""
    logs = ("messages", "progress")
    gone = ("unknown", "gap")
    return [
        JudgedShard("the target has nothing older than a second after it was due", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=DUE + 1_000),
        JudgedShard("the same, and it is there", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE + 1_000)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=DUE + 1_000),
        JudgedShard(
            "the target has a record of half a second before it was due", {A: ("missing", None)}
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=DUE - 500),
        JudgedShard("the target has a record of almost half a second before it was due", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=DUE - 499),
        JudgedShard("one of its partitions has", {A: ("missing", None)})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=READ_MS)
        .read("deliveries", partition=1, oldest_ms=DUE - 500),
        JudgedShard("due before its first record, and accepted after", {A: ("missing", None)})
        .send(0, T, timestamp_ms=DUE)
        .read_plainly(*logs)
        .read("deliveries", oldest_ms=DUE - 500),
        JudgedShard("a later read asks no more", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=READ_MS - 9, oldest_ms=DUE)
        .read("deliveries"),
    ]


def elected() -> list[JudgedShard]:
    """Cases of targets whose partitions had elections, which may have cost records that the archive
    had not read."""
    logs = ("messages", "progress")
    gone, missing = ("unknown", "gap"), ("missing", None)

    def lost(from_ms: int, until_ms: int) -> dict[str, int]:
        return {"loss_from_ms": from_ms, "loss_until_ms": until_ms}

    return [
        JudgedShard("it may have been delivered before an election, and lost", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(SETTLED_MS, READ_MS)),
        JudgedShard("the same, and it is there", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(SETTLED_MS, READ_MS)),
        JudgedShard("it was settled before the last record that survived", {A: missing})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(SETTLED_MS + 1, READ_MS)),
        JudgedShard("it was due after the first record of the new leader", {A: missing})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(0, DUE - 1)),
        JudgedShard("it was due with the first record of the new leader", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(0, DUE)),
        JudgedShard("two elections, between which it was settled", {A: missing})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(SETTLED_MS + 1, READ_MS))
        .read("deliveries", partition=1, **lost(0, DUE - 1)),
        JudgedShard("two elections that overlap", {A: gone})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", **lost(SETTLED_MS + 1, READ_MS))
        .read("deliveries", partition=1, **lost(0, SETTLED_MS + 1)),
    ]


def compacted() -> list[JudgedShard]:
    """Cases of targets whose broker may remove a record once a newer one has its key."""
    logs = ("messages", "progress")
    removed = ("unknown", "compacted")
    return [
        JudgedShard("the target is compacted", {A: removed})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", compacted=True),
        JudgedShard("the target is compacted, and it is there", {A: ("delivered", None)})
        .send(0, DUE)
        .deliver(0, DUE, DUE)
        .read_plainly(*logs)
        .read("deliveries", compacted=True),
        JudgedShard("the target is not compacted", {A: ("missing", None)})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", compacted=False),
        JudgedShard(
            "the target was read whole after it was settled, and compacted then",
            {A: ("missing", None)},
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", compacted=False)
        .read("deliveries", read_ms=READ_MS + 9, compacted=True),
        JudgedShard("the target was compacted, and was not when it was due", {A: ("missing", None)})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=T - 2, compacted=True)
        .read("deliveries", read_ms=T - 1, compacted=False)
        .read("deliveries", compacted=False),
        JudgedShard("the target was compacted until some time after it was due", {A: removed})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", read_ms=T - 1, compacted=True)
        .read("deliveries", compacted=False),
        JudgedShard("read by a version that did not ask, and compacted when one did", {A: removed})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries")
        .read("deliveries", read_ms=READ_MS + 9, compacted=True),
        JudgedShard(
            "read by a version that did not ask, and not compacted when one did",
            {A: ("missing", None)},
        )
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries")
        .read("deliveries", read_ms=READ_MS + 9, compacted=False),
        JudgedShard("the target is compacted, and lost records too", {A: ("unknown", "gap")})
        .send(0, DUE)
        .read_plainly(*logs)
        .read("deliveries", compacted=True, gap=True, gap_reason="trimmed"),
    ]


LISTED, DOUBLED, LOST, LATE, UNLISTED, UNPROVED, REFUSED = range(10, 17)
"""Offsets of the source's shard: of one hop, of two, of none, of one that may not be archived yet,
two that are not listed, and of one whose record was refused."""

HELD, LARGE, HELD_LOST, HELD_LATE, CANCEL, WAITING, COPIED, WAITING_CANCEL = range(20, 28)
"""Offsets of records that it held for another partition: written on, too large then, written on
without a hop, with one that may not be archived yet, a cancel that was written on late, and three
that wait still: a message, one with a copy, and a cancel."""


def hop(offset: int, topic: str = DELAY) -> list[dict[str, object]]:
    """The headers of a record that was forwarded from that offset of the first shard."""
    return [
        {"name": "chronos-forwarded", "value": b"%b/0/%d;%d" % (topic.encode(), offset, T - 60_000)}
    ]


def forwarded() -> list[JudgedShard]:
    """Cases decided by the hops of records; the first one has their sources."""
    mine = {"id": b"mine", "on_conflict": "reject"}
    return [
        JudgedShard(
            "the source of the others",
            {
                (LOST, 1): ("missing", "not-forwarded"),
                (HELD_LOST, 1): ("missing", "not-forwarded"),
                (LARGE, 1): ("rejected", "too-large"),
                (WAITING, 1): ("pending", "held"),
                (COPIED, 1): ("pending", "held"),
            },
        )
        .send(LISTED, DUE, **mine)
        .decide("refused", LISTED, T - 50_000, reason="forwarded")
        .send(DOUBLED, DUE, **mine)
        .decide("refused", DOUBLED, T - 50_000, reason="forwarded")
        .send(REFUSED, DUE, **mine)
        .decide("refused", REFUSED, T - 50_000, reason="forwarded")
        .send(LOST, DUE, **mine)
        .decide("refused", LOST, T - 50_000, reason="forwarded")
        .send(LATE, DUE, **mine)
        .decide("refused", LATE, READ_MS - 60_000, reason="forwarded")
        .send(HELD, DUE, **mine)
        .hold(HELD, 1)
        .send(LARGE, DUE, **mine)
        .hold(LARGE, 1)
        .send(HELD_LOST, DUE, **mine)
        .hold(HELD_LOST, 1)
        .write_on(HELD_LOST, 1, T, LARGE)
        .send(HELD_LATE, DUE, **mine)
        .hold(HELD_LATE, 1)
        .write_on(HELD_LATE, 1, READ_MS - 60_000)
        .send(WAITING, DUE, **mine)
        .hold(WAITING, 1)
        .send(COPIED, DUE, **mine)
        .hold(COPIED, 2)
        .act("cancel", CANCEL, b"mine", at_ms=T)
        .hold(CANCEL, 3, at_ms=T)
        .write_on(CANCEL, 3, LATER)
        .act("cancel", WAITING_CANCEL, b"mine", at_ms=T)
        .hold(WAITING_CANCEL, 1, at_ms=T),
        JudgedShard(
            "a held cancel that came after the message was delivered", {A: ("delivered", None)}
        )
        .send(0, DUE, **mine)
        .act("cancel", 900, b"mine", at_ms=LATER, first_ms=T, headers=hop(CANCEL))
        .deliver(0, DUE, DUE)
        .step(T, 0, 0)
        .step(DUE, DUE, 900)
        .step(SETTLED_MS, SETTLED_MS, PULLED),
        JudgedShard(
            "a hop of a record that its source's shard still holds",
            {A: ("duplicated", "hop-not-listed")},
        )
        .send(0, DUE, **mine, headers=hop(COPIED))
        .deliver(0, DUE, DUE),
        JudgedShard("forwarded here after it was held", {A: ("delivered", None)})
        .send(0, DUE, **mine, headers=hop(HELD))
        .deliver(0, DUE, DUE),
        JudgedShard("forwarded here, and listed", {A: ("delivered", None)})
        .send(0, DUE, **mine, headers=hop(LISTED))
        .deliver(0, DUE, DUE),
        JudgedShard(
            "a hop that its source's shard does not list", {A: ("duplicated", "hop-not-listed")}
        )
        .send(0, DUE, **mine, headers=hop(UNLISTED))
        .deliver(0, DUE, DUE),
        JudgedShard("the same, refused", {A: ("rejected", "conflict")})
        .send(0, DUE, **mine, headers=hop(UNLISTED))
        .decide("refused", 0, T - 50_000, reason="conflict"),
        JudgedShard(
            "a copy of a hop whose record was refused",
            {A: ("rejected", "conflict"), B: ("duplicated", "hop-not-listed")},
        )
        .send(0, DUE, **mine, headers=hop(REFUSED))
        .decide("refused", 0, T - 50_000, reason="conflict")
        .send(1, DUE, **mine | {"id": b"again"}, headers=hop(REFUSED))
        .deliver(1, DUE, DUE),
        JudgedShard(
            "a cancel with a hop that is not listed",
            {A: ("cancelled", None), B: ("duplicated", "hop-not-listed")},
        )
        .send(0, DUE, **mine)
        .send(
            1, None, verb="cancel", id=b"mine", target=None, timestamp_ms=T, headers=hop(UNLISTED)
        ),
        JudgedShard("a hop of a step that may not be archived yet", {A: ("delivered", None)})
        .send(0, DUE, **mine, timestamp_ms=READ_MS - 60_000, headers=hop(UNPROVED))
        .deliver(0, DUE, DUE),
        JudgedShard("a hop of another topic is a header like others", {A: ("delivered", None)})
        .send(0, DUE, **mine, headers=hop(UNLISTED, topic="another"))
        .deliver(0, DUE, DUE),
        JudgedShard(
            "forwarded twice", {A: ("delivered", None), B: ("duplicated", "hop-not-listed")}
        )
        .send(0, DUE, **mine, headers=hop(DOUBLED))
        .deliver(0, DUE, DUE)
        .send(1, DUE, **mine | {"id": b"again"}, headers=hop(DOUBLED))
        .deliver(1, DUE, DUE),
    ]


PLAIN = [
    *delivered_or_not(),
    *refused(),
    *judged_or_not(),
    *known_or_not(),
    *created_again(),
    *elected(),
    *compacted(),
]
CASES = [*ended_otherwise(), *carried_on()]
FORWARDED = forwarded()
ALL = [*PLAIN, *CASES, *FORWARDED]

Found = dict[tuple[int, int], tuple[str, str | None]]


def outcomes_of(spark: SparkSession, cases: list[JudgedShard]) -> list[Found]:
    """The outcomes of each case."""
    archive = archive_of(spark, cases)
    judged = judge(archive, coverage(archive.offsets), DELAY, WINDOW)
    rows = judged.outcomes.collect()
    outcomes: list[Found] = [{} for _ in cases]
    for row in rows:
        token = row["source_offset"], row["occurrence"]
        assert token not in outcomes[row["shard"]], "one row for each promised delivery"
        outcomes[row["shard"]][token] = row["outcome"], row["reason"]
    return outcomes


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> list[Found]:
    """The outcomes of each case, in three archives: one in which no record acts on a message and no
    decision is about one, which is audited without the timeline; and one of the hops, because
    whether one is lost depends on all shards."""
    assert {row["verb"] for case in PLAIN for row in case.messages} == {"schedule", "refused"}
    assert {row["outcome"] for case in PLAIN for row in case.decisions} == {"refused", "written-on"}
    return [*outcomes_of(spark, PLAIN), *outcomes_of(spark, CASES), *outcomes_of(spark, FORWARDED)]


@pytest.mark.parametrize("number", range(len(ALL)), ids=[case.name for case in ALL])
def test_each_case_has_the_expected_outcomes(found: list[Found], number: int) -> None:
    """Exactly the expected deliveries, each with its outcome and reason."""
    assert found[number] == ALL[number].expects
