"""Audits of random histories of the real shard: outcomes agree with the shard, and planted faults
are found."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from chronos.spark.audit import coverage
from chronos.spark.audit.job import due_times, judge
from chronos.spark.audit.outcomes import Span, with_accepted_ms
from chronos.spark.tables import Tables
from tests.spark.histories import DELAY, EVERYTHING, History, Row, played, tables, token
from tests.unit.histories import START_MS
from tests.unit.model import MINUTE_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def outcomes_of(archive: Tables, span: Span) -> list[Any]:
    """The outcomes of the promised deliveries due in the window."""
    covered = coverage.coverage(archive.offsets)
    return judge(archive, covered, DELAY, span).outcomes.collect()


def found(
    spark: SparkSession, histories: Sequence[History], deliveries: list[Row] | None = None
) -> list[Any]:
    """The outcomes of all promised deliveries."""
    return outcomes_of(tables(spark, histories, deliveries), EVERYTHING)


def tokens(rows: Sequence[Any], *outcomes: str) -> Counter[tuple[int, int, int]]:
    """`(shard, source offset, occurrence)` of the deliveries with these outcomes."""
    return Counter(
        (row["shard"], row["source_offset"], row["occurrence"])
        for row in rows
        if row["outcome"] in outcomes
    )


@pytest.fixture(scope="module")
def seed() -> int:
    """The seed in TEST_SEED, to repeat a run, or a random one."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32)))
    print(f"TEST_SEED={seed}")
    return seed


@pytest.mark.parametrize("drained", [True, False], ids=["to its end", "in the middle"])
def test_the_audit_agrees_with_the_shard(spark: SparkSession, seed: int, drained: bool) -> None:
    """Every message of every history has the outcome that the shard gave it; nothing is a false
    alarm."""
    histories = played(seed, drained=drained)
    rows = found(spark, histories)
    assert tokens(rows, "missing", "duplicated", "early", "unknown") == Counter()
    delivered = Counter(token(row) for history in histories for row in history.delivered())
    assert tokens(rows, "delivered") == delivered
    counts = Counter((row["shard"], row["outcome"]) for row in rows)
    for history in histories:
        totals, shard = history.master.model.totals, history.shard
        for outcome, total in (
            ("cancelled", "cancelled"),
            ("replaced", "replaced"),
            ("expired", "expired"),
            ("dead-lettered", "dead"),
        ):
            assert counts[shard, outcome] == totals[total], (shard, outcome)
        assert {at for on, at, _ in tokens(rows, "pending") if on == shard} == {
            *history.master.model.pending,
            *unread(history),
        }


def unread(history: History) -> set[int]:
    """Offsets of valid records that schedule a message and were not pulled yet."""
    return {
        intent.offset
        for intent in history.master.producers.intents
        if intent.offset >= history.master.model.pull_offset
        and intent.verb in ("schedule", "replace")
        and not (intent.rejection and intent.rejection.label == "unknown-header")
    }


def test_every_loss_is_found(spark: SparkSession, seed: int) -> None:
    """Each delivery removed from the archive is missing, and no other is."""
    histories, dice = played(seed, drained=True), random.Random(seed)
    kept: list[Row] = []
    lost: Counter[tuple[int, int, int]] = Counter()
    for row in (row for history in histories for row in history.delivered()):
        if dice.random() < 0.2:
            lost[token(row)] += 1
        else:
            kept.append(row)
    rows = found(spark, histories, kept)
    assert lost
    assert tokens(rows, "missing") == lost
    assert tokens(rows, "duplicated", "early", "unknown", "pending") == Counter()


def test_a_loss_is_pending_until_it_is_proved(spark: SparkSession, seed: int) -> None:
    """In the middle of a history a lost delivery is missing or not judged yet; a present one is
    never missing."""
    histories, dice = played(seed, drained=False), random.Random(seed)
    all_rows = [row for history in histories for row in history.delivered()]
    lost = {token(row) for row in all_rows if dice.random() < 0.3}
    rows = found(spark, histories, [row for row in all_rows if token(row) not in lost])
    missing = set(tokens(rows, "missing"))
    assert missing <= lost
    assert lost - missing <= set(tokens(rows, "pending"))
    assert len(missing) > len(lost) / 2


def test_every_duplicate_and_every_early_delivery_is_found(spark: SparkSession, seed: int) -> None:
    """Records added to the targets, or dated before their due time, are found, and no others."""
    histories, dice = played(seed, drained=True), random.Random(seed)
    rows: list[Row] = []
    duplicated: set[tuple[int, int, int]] = set()
    early: set[tuple[int, int, int]] = set()
    for row in (row for history in histories for row in history.delivered()):
        number = dice.random()
        if number < 0.1:
            duplicated.add(token(row))
            copies = dice.randint(1, 3)
            rows += [row | {"offset": 1_000_000 + len(rows) + copy} for copy in range(copies)]
        elif number < 0.2:
            early.add(token(row))
            row = row | {"timestamp_ms": row["due_at_ms"] - dice.randint(501, MINUTE_MS)}
        rows.append(row)
    judged = found(spark, histories, rows)
    assert duplicated
    assert early
    assert set(tokens(judged, "duplicated")) == duplicated
    assert set(tokens(judged, "early")) == early
    assert tokens(judged, "missing", "unknown") == Counter()


def test_a_window_has_the_outcomes_that_an_audit_of_everything_has_in_it(
    spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it reads only its folders, the progress records from its beginning on, and messages
    moved into it. The times of an id hold all of its deliveries."""
    histories = played(seed, drained=True)
    archive = tables(spark, histories)
    whole = outcomes_of(archive, EVERYTHING)
    times = due_times(with_accepted_ms(archive.messages), archive.decisions)
    spans = {
        (row["shard"], row["of"]): (row["first"], row["last"])
        for row in times.groupBy("shard", f.hex("id").alias("of"))
        .agg(f.min("at").alias("first"), f.max("at").alias("last"))
        .collect()
    }
    named = [row for row in whole if row["id"] is not None]
    assert named
    for row in named:
        first, last = spans[row["shard"], row["id"].hex().upper()]
        assert first <= row["window_ms"] <= last, row
    monkeypatch.setattr(coverage, "STEPS_BEFORE_MS", 0)
    for span in (
        Span(from_ms=START_MS + 8, to_ms=START_MS + MINUTE_MS + 9),
        Span(from_ms=START_MS + MINUTE_MS + 3, to_ms=START_MS + 9 * MINUTE_MS),
    ):
        within = [row for row in whole if span.from_ms <= row["due_ms"] < span.to_ms]
        found = outcomes_of(archive, span)
        assert within
        assert Counter(map(of_interest, found)) == Counter(map(of_interest, within))


def of_interest(row: Any) -> tuple[Any, ...]:
    """A row as a hashable key."""
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
