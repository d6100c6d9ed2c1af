"""The audit as a whole: its summary, window, files and command."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import msgspec
import pyarrow.dataset as ds
import pytest
import typer
from msgspec import structs

from chronos.admin.cluster.audit import BROKEN, read_result, state_of
from chronos.cli.output import Format
from chronos.cli.spark.audit import _publish, _show, as_json, parse_moment, warnings
from chronos.errors import ArchiveFailed
from chronos.spark import schema
from chronos.spark.archive.compact import compact
from chronos.spark.audit import summary
from chronos.spark.audit.coverage import (
    MOMENTS_MAX,
    Coverage,
    Frontier,
    _thin,
    collect_evidence,
    coverage,
    frontiers,
)
from chronos.spark.audit.job import (
    Audit,
    EmptyWindow,
    FoundDeliveries,
    TargetCoverage,
    audit,
    default_span,
    find,
    judge,
)
from chronos.spark.audit.outcomes import OUTCOMES, WRONG, Span
from chronos.spark.audit.report import TARGETS_SHOWN, html
from chronos.spark.audit.summary import DAY_MS
from chronos.spark.objective import parse_objective, results
from chronos.spark.request import BackfillRequest
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables
from tests.harness.inside import Inside
from tests.spark.cases import (
    READ_MS,
    SETTLED_MS,
    WINDOW,
    JudgedShard,
    T,
    add_batch,
    archive_of,
    rows_of,
    write_archive,
)
from tests.spark.conftest import conf, small
from tests.spark.histories import HOUR_MS, frame, offsets_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


HOSTILE = "<script>alert(1)</script>"


# --- summary

OUTCOME_COLUMNS = (
    "target string, due_ms long, outcome string, reason string, lateness_ms long, shard int, "
    "source_offset long"
)


def random_outcomes(dice: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Outcomes of two targets over three hours, one target with 95 % of them."""
    rows = []
    for number in range(count):
        outcome = dice.choices(["delivered", "missing", "cancelled", "pending"], [90, 1, 5, 4])[0]
        late_ms = int(10 ** dice.uniform(0, 7)) if outcome == "delivered" else None
        target = "big" if dice.random() < 0.95 else "small"
        rows.append((target, T + dice.randrange(3 * HOUR_MS), outcome, None, late_ms, 3, number))
    return rows


@pytest.fixture(scope="module")
def outcome_rows() -> list[tuple[Any, ...]]:
    return random_outcomes(random.Random(5), 4_000)


@pytest.fixture(scope="module")
def cells(spark: SparkSession, outcome_rows: list[tuple[Any, ...]]) -> Iterator[DataFrame]:
    made = summary.cube(
        spark.createDataFrame(outcome_rows, OUTCOME_COLUMNS), Span(from_ms=T, to_ms=T + 3 * HOUR_MS)
    ).cache()
    yield made
    made.unpersist()


def test_counts_and_percentiles_equal_those_of_the_rows(
    cells: DataFrame, outcome_rows: list[tuple[Any, ...]]
) -> None:
    """Per target and hour; percentiles to 1 %, the maximum exactly."""
    late: dict[tuple[str, int], list[int]] = defaultdict(list)
    counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for target, due_ms, outcome, _, late_ms, _, _ in outcome_rows:
        hour = target, due_ms - due_ms % HOUR_MS
        counts[hour][outcome] += 1
        if late_ms is not None:
            late[hour].append(late_ms)
    rows = summary.by_hour(cells)
    assert [(row.target, row.at_ms) for row in rows] == sorted(counts)
    for row in rows:
        hour = row.target or "", row.at_ms or 0
        assert row.counts == counts[hour]
        assert row.lateness.count == len(late[hour])
        assert row.lateness.max_ms == max(late[hour])
        for share, found in (
            (0.5, row.lateness.p50_ms),
            (0.99, row.lateness.p99_ms),
            (0.999, row.lateness.p999_ms),
        ):
            assert found is not None
            at = share * (len(late[hour]) - 1)
            low, high = sorted(late[hour])[math.floor(at)], sorted(late[hour])[math.ceil(at)]
            assert low * 0.989 - 1 <= found <= high * 1.001 + 1
    whole = summary.overall(cells)
    assert sum(whole.counts.values()) == len(outcome_rows)
    assert [row.target for row in summary.by_target(cells)] == ["big", "small"]


def test_samples_are_deliveries_that_broke_a_law(
    cells: DataFrame, outcome_rows: list[tuple[Any, ...]]
) -> None:
    """Their number is bounded, and each is among the rows."""
    missing = {(row[5], row[6]) for row in outcome_rows if row[2] == "missing"}
    found = summary.samples(cells)
    assert len(found) == summary.SAMPLES < len(missing)
    assert {(each.shard, each.source_offset) for each in found} <= missing
    assert {each.outcome for each in found} == {"missing"}


def test_the_worst_minutes_come_first(
    cells: DataFrame, outcome_rows: list[tuple[Any, ...]]
) -> None:
    """The minutes with most broken promises first, then those with the greatest lateness."""
    span = Span(from_ms=T, to_ms=T + 3 * HOUR_MS)
    broken = Counter(row[1] - row[1] % 60_000 for row in outcome_rows if row[2] == "missing")
    found = summary.worst(cells, span)
    assert len(found) == summary.WORST
    assert [row.counts.get("missing", 0) for row in found] == sorted(broken.values(), reverse=True)[
        : summary.WORST
    ]
    assert summary.first_pending_ms(cells) == min(
        row[1] for row in outcome_rows if row[2] == "pending"
    )


@pytest.mark.parametrize(
    ("length_ms", "width_ms"),
    [(1, 60_000), (DAY_MS, 60_000), (DAY_MS + 60_000 * 60 + 1, 120_000), (30 * DAY_MS, 1_800_000)],
)
def test_a_curve_has_a_bounded_number_of_points_for_any_window(
    length_ms: int, width_ms: int
) -> None:
    assert summary.width_ms(Span(from_ms=T, to_ms=T + length_ms)) == width_ms
    assert length_ms <= width_ms * summary.POINTS_MAX


# --- coverage and frontiers


def test_a_topic_is_covered_as_far_as_its_least_covered_partition(spark: SparkSession) -> None:
    """With a gap, with a partition added later, and with an open transaction."""
    rows = [
        offsets_row("deliveries", "plain", 0, 9, read_ms=50),
        offsets_row("deliveries", "plain", 1, 9, read_ms=50),
        offsets_row("deliveries", "plain", 0, 9, read_ms=60),
        offsets_row("deliveries", "grown", 0, 9, read_ms=50),
        offsets_row("deliveries", "grown", 0, 9, read_ms=60, gap=True, gap_reason="truncated"),
        offsets_row("deliveries", "grown", 0, 9, read_ms=70),
        offsets_row("deliveries", "grown", 1, 9, read_ms=70),
        offsets_row("deliveries", "open", 0, 9, read_ms=50, high_watermark=10),
        offsets_row("deliveries", "open", 1, 9, read_ms=50),
    ]
    from chronos.spark import schema

    rows += [
        offsets_row("deliveries", "ahead", 0, 9, read_ms=50, broker_ms=30),
        offsets_row("deliveries", "ahead", 1, 9, read_ms=50, broker_ms=30),
        offsets_row("deliveries", "keys", 0, 9, read_ms=50, compacted=False),
        offsets_row("deliveries", "keys", 0, 9, read_ms=60, compacted=True),
        offsets_row("deliveries", "keys", 0, 9, read_ms=70, compacted=False),
        offsets_row("deliveries", "keys", 0, 9, read_ms=80, compacted=False),
    ]
    found = coverage(frame(spark, schema.OFFSETS, rows))
    assert found.targets == {
        "plain": Coverage(covered_ms=50, until_ms=50),
        "grown": Coverage(
            covered_ms=70, until_ms=70, gap_ms=60, before_gap_ms=50, gap_reason="truncated"
        ),
        "open": Coverage(covered_ms=0, unresolved=True),
        "ahead": Coverage(covered_ms=50, until_ms=30),
        "keys": Coverage(covered_ms=80, until_ms=80, before_gap_ms=50, compacted_ms=70),
    }


def test_several_batches_of_one_run_cover_a_partition_together(spark: SparkSession) -> None:
    """Rows with the same time of reading are combined: one has the log's ends, the next the offsets
    read."""
    from chronos.spark import schema

    rows = [
        offsets_row("deliveries", "t", 0, 9, read_ms=50, from_offset=0, until_offset=0),
        offsets_row("deliveries", "t", 0, 9, read_ms=50, from_offset=0, until_offset=5),
        offsets_row("deliveries", "t", 0, 9, read_ms=50, from_offset=5, until_offset=9),
        offsets_row("deliveries", "t", 0, 12, read_ms=60, from_offset=9, until_offset=11),
    ]
    found = coverage(frame(spark, schema.OFFSETS, rows))
    assert found.targets["t"] == Coverage(covered_ms=50, until_ms=50)


def test_moments_are_rounded_down_to_a_bounded_number() -> None:
    """With more moments than are evaluated, each counts as one at or before it."""
    for count in (0, 1, MOMENTS_MAX - 1, MOMENTS_MAX, 1_000):
        moments = random.Random(count).sample(range(1, 10**6), count)
        found = _thin(moments)
        assert set(moments) <= set(found)
        assert all(kept <= moment for moment, kept in found.items())
        assert len(set(found.values())) <= MOMENTS_MAX + 1
        assert not moments or found[max(moments)] == max(moments)


def test_each_moment_has_its_frontier(spark: SparkSession) -> None:
    """By the progress records that the run had seen then, whatever the clocks of its machine and of
    the brokers are."""
    case = (
        JudgedShard("", {})
        .step(T + 70_000, 0, 0)
        .step(T + 71_000, T + 1_000, 10)
        .step(T - 2_000, T + 2_000, 20)
    )
    case.read("progress", 1, read_ms=T).read("progress", 3, read_ms=T + 5).read(
        "progress", 5, read_ms=T + 9
    ).put(0)
    tables = archive_of(spark, [case])
    seen = frontiers(tables.progress, tables.offsets, [T - 1, T, T + 4, T + 5, T + 8, T + 9])
    assert seen == {
        (0, T + 5): Frontier(10, T + 1_000),
        (0, T + 8): Frontier(10, T + 1_000),
        (0, T + 9): Frontier(20, T + 2_000),
    }
    target = Coverage(covered_ms=T + 6, gap_ms=T + 5, before_gap_ms=T)
    one = {0: Coverage(covered_ms=1)}
    judged, last = collect_evidence({"t": target}, one, one, tables.progress, tables.offsets)
    assert last == {0: Frontier(20, T + 2_000)}
    assert judged[0, "t"].covered == Frontier(10, T + 1_000)
    assert judged[0, "t"].before_gap == Frontier()


# --- the whole


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with most outcomes, and a topic name that is HTML."""
    due = T + 60_000
    cases = [
        JudgedShard("", {})
        .send(0, due)
        .deliver(0, due, due + 12)
        .send(1, due + 1)
        .deliver(1, due + 1, due + 4_000)
        .send(2, due + 2)
        .send(3, T + 30 * 60_000)
        .deliver(3, T + 30 * 60_000, T + 30 * 60_000 + 90_000)
        .send(4, SETTLED_MS + 9),
        JudgedShard("", {})
        .send(0, due, target=HOSTILE)
        .deliver(0, due, due - 9_000, topic=HOSTILE)
        .send(1, due, target="elsewhere")
        .send(2, due)
        .decide("expired", 2, due, reason="expired"),
    ]
    return write_archive(rows_of(cases), tmp_path_factory.mktemp("audit") / "archive")


@pytest.fixture(scope="module")
def audited(spark: SparkSession, archived: Path) -> Audit:
    """An audit of the whole archive."""
    return audit(spark, ArchiveStorage(str(archived)), from_ms=T, to_ms=T + DAY_MS)


def test_an_audit_counts_outcomes_and_names_the_time_it_judged_up_to(audited: Audit) -> None:
    """Counts by outcome, the last judged moment, and when the delay topic was archived."""
    assert audited.overall.counts == {
        "delivered": 3,
        "missing": 1,
        "early": 1,
        "expired": 1,
        "unknown": 1,
        "pending": 1,
    }
    assert audited.broken
    assert not audited.clean
    assert audited.judged_ms == SETTLED_MS + 9
    assert audited.archived_ms == READ_MS
    assert audited.overall.lateness == summary.Lateness(
        count=4, p50_ms=2_001, p99_ms=87_420, p999_ms=89_742, max_ms=90_000
    )
    assert {(outcome, why) for outcome, why, _ in audited.reasons} == {
        ("unknown", "target-not-archived"),
        ("expired", "expired"),
        ("pending", "not-settled"),
    }
    assert [(each.outcome, each.shard, each.source_offset) for each in audited.samples] == [
        ("missing", 0, 2),
        ("early", 1, 0),
    ]


def test_the_default_window_is_the_last_archived_day(spark: SparkSession, archived: Path) -> None:
    """It ends when the delay topic was last read."""
    found = audit(spark, ArchiveStorage(str(archived)), from_ms=None, to_ms=None)
    assert found.span == Span(from_ms=READ_MS - DAY_MS, to_ms=READ_MS)
    assert default_span(READ_MS, None, T) == Span(from_ms=T - DAY_MS, to_ms=T)
    assert default_span(READ_MS, T, None) == Span(from_ms=T, to_ms=READ_MS)
    with pytest.raises(EmptyWindow, match="before it begins"):
        default_span(READ_MS, READ_MS, T)
    # Behind the archive's end: up to now, and if it begins later, what to do about it.
    assert default_span(READ_MS, READ_MS, None, READ_MS + 9) == Span(
        from_ms=READ_MS, to_ms=READ_MS + 9
    )
    with pytest.raises(EmptyWindow, match=r"the archive ends at .* run `chronos archive` first"):
        default_span(READ_MS, READ_MS + 9, None, READ_MS + 9)


def test_an_empty_window_is_clean(spark: SparkSession, archived: Path) -> None:
    """Without messages nothing is wrong, all of the window is judged, and the page can be made."""
    found = audit(spark, ArchiveStorage(str(archived)), from_ms=T - DAY_MS, to_ms=T - 1)
    assert found.clean
    assert found.overall.counts == {}
    assert found.judged_ms == T - 1
    assert "Nothing was due" in html(found)


def test_an_audit_of_a_window_reads_only_its_partitions(
    spark: SparkSession, archived: Path
) -> None:
    """Spark's plans filter by partition and by the time of the rows, and read no payload."""
    from chronos.spark.audit.outcomes import received, scheduled

    tables, _, delay = open_tables(spark, ArchiveStorage(str(archived)))
    for rows, partition, time in (
        (received(tables.deliveries, delay, WINDOW), "date", "due_at_ms"),
        (scheduled(tables.messages, WINDOW).select("id"), "month", "due_ms"),
    ):
        (scan,) = re.findall(
            r"FileScan parquet .*", rows._jdf.queryExecution().executedPlan().toString()
        )
        assert re.search(rf"PartitionFilters: \[[^\]]*{partition}", scan)
        assert re.search(rf"DataFilters: \[[^\]]*{time}", scan)
        assert "value" not in scan.partition("ReadSchema")[2]


class Growing(ArchiveStorage):
    """An archive that a concurrent run writes to right before its log is looked at for the time
    number `before`."""

    def __init__(self, location: Path, before: int, write: Callable[[], None]) -> None:
        super().__init__(str(location))
        self._left = before
        self._write = write

    def files(self, below: str, *, recursive: bool = False) -> list[tuple[str, int]]:
        """The files, after the concurrent run has written."""
        if self._left == 0:
            self._write()
        self._left -= 1
        return super().files(below, recursive=recursive)


def test_rows_of_a_concurrent_archive_run_cause_no_false_alarm(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whenever a batch arrives whose deliveries and decisions prove that nothing is lost, and
    whether or not it is committed: all of it is read, or nothing."""
    due = T + 60_000
    first = JudgedShard("", {}).send(0, due).send(1, due).step(T, 0, 0)
    first.read("messages", read_ms=T).read("progress", 1, read_ms=T).read(
        "deliveries", 0, read_ms=T
    )
    later = JudgedShard("", {}).deliver(0, due, due).step(T, 0, 0).step(SETTLED_MS, SETTLED_MS, 2)
    later.decide("dead-letter", 1, due, reason="too-large").read_plainly(
        "messages", "progress", "deliveries"
    )
    before_it = write_archive(rows_of([first]), tmp_path / "archive")
    more = archive_of(spark, [later])
    pending = {"pending": 2}
    for before, is_committed, expected in (
        (0, True, {"delivered": 1, "dead-lettered": 1}),
        (1, True, pending),
        (3, True, pending),
        (0, False, pending),
    ):
        folder = shutil.copytree(before_it, tmp_path / f"archive-{before}-{is_committed}")

        def write(folder: Path = folder, commit: bool = is_committed) -> None:
            add_batch(more, folder, "later", commit=commit)

        tables, _, delay = open_tables(spark, Growing(folder, before, write))
        judged = judge(tables, coverage(tables.offsets), delay, WINDOW).outcomes
        assert Counter(row["outcome"] for row in judged.collect()) == expected, before


def test_an_audit_beside_a_compaction_reads_what_was_archived(
    spark: SparkSession, archived: Path, tmp_path: Path
) -> None:
    """The files that it merged are there as long as an audit may read them."""
    storage = ArchiveStorage(str(shutil.copytree(archived, tmp_path / "archive")))
    tables, _, _ = open_tables(spark, storage)
    compact(spark, storage, 1 << 30, ignore)
    again, _, _ = open_tables(spark, storage)
    for name in ("messages", "deliveries", "decisions", "progress"):
        before, after = getattr(tables, name), getattr(again, name)
        assert before.count() == after.count()
        assert before.drop("first_headers").exceptAll(after.drop("first_headers")).count() == 0


def test_a_folder_without_an_archive_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ArchiveFailed, match=r"holds no archive"):
        audit(spark, ArchiveStorage(str(tmp_path)), from_ms=None, to_ms=None)
    empty = ArchiveStorage(str(tmp_path / "archive"))
    topics = {"delay": "d", "progress": "p", "rejected": "r", "dead_letter": "l"}
    claim = {"format": schema.FORMAT, "id": "a", "cluster": "c", "topics": topics}
    empty.write_json("archive.json", claim)
    with pytest.raises(ArchiveFailed, match="holds no record of the delay topic"):
        audit(spark, empty, from_ms=None, to_ms=None)


# --- output


class Outside(HTMLParser):
    """Collects everything a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "base", "form"):
            self.found.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (
                name in ("src", "href", "action", "xlink:href") and value != "data:,"
            ):
                self.found.append(f"{tag} {name}={value}")


def test_the_page_fetches_nothing_runs_nothing_and_escapes_names(audited: Audit) -> None:
    """It has styles for light and dark, every outcome and every plot."""
    page = html(audited)
    outside = Outside()
    outside.feed(page)
    outside.close()
    assert outside.found == []
    assert not re.search(r"url\(|@import|https?:", page)
    assert "&lt;script&gt;" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg") == 2
    for outcome in audited.overall.counts:
        assert outcome in page
    assert "90 s" in page or "1.5 min" in page


def test_the_page_says_how_many_targets_it_leaves_out(audited: Audit) -> None:
    (row, *_) = audited.targets
    for left_out, said in ((0, []), (2, ["2"]), (1_000, ["1,000"])):
        page = html(structs.replace(audited, targets=[row] * (TARGETS_SHOWN + left_out)))
        assert re.findall(r"and ([0-9,]+) more targets", page) == said


def test_json_has_times_as_rfc_3339_and_lateness_in_milliseconds(audited: Audit) -> None:
    """It survives a round trip through JSON, with the overall result at the top."""
    found = json.loads(json.dumps(as_json(audited)))
    assert found["judged_until"].startswith("2030-01-01T02:00:00.009")
    assert found["clean"] is False
    assert found["counts"]["missing"] == 1
    assert found["lateness"]["max_ms"] == 90_000
    assert {each["target"] for each in found["targets"]} == {
        "target-0",
        "target-1",
        f"{HOSTILE}-1",
        "elsewhere-1",
    }
    assert found["samples"][0] == {
        "outcome": "missing",
        "shard": 0,
        "offset": 2,
        "target": "target-0",
        "due_minute": "2030-01-01T00:01:00.000Z",
    }


def test_the_console_reads_the_json(audited: Audit, tmp_path: Path) -> None:
    """Its reader and the audit agree on the fields, and on the outcomes that break a promise."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(as_json(audited)))
    found = read_result(tmp_path, "a", state_of(path.stat()))
    assert (found.verdict, found.counts) == ("broken", audited.overall.counts)
    shown = json.loads(msgspec.json.encode(found))
    printed = as_json(audited)
    assert all(shown[name] == printed[name] for name in shown.keys() & printed.keys())
    assert printed.keys() - shown.keys() == {
        "clean",
        "objectives",
        "hours",
        "days",
        "shards",
        "archived_targets",
        "details",
        "versions",
    }
    assert BROKEN == WRONG


def test_the_terminal_shows_what_was_broken(
    audited: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outcomes, targets, and the reasons why more could not be judged."""
    _show(audited)
    shown = capsys.readouterr()
    assert "promises were broken: 1 missing, 1 early" in shown.out
    assert "missing: shard 0, offset 2, for target-0" in shown.out
    assert "judged up to 2030-01-01T02:00:00.009Z" in shown.out
    assert [line.partition(":")[0] for line in warnings(audited)] == [
        "1 messages are unknown",
        "1 messages are not judged yet",
    ]
    assert all(line in shown.err for line in warnings(audited))
    assert (
        "not everything could be judged: 1 messages are unknown (target-not-archived); messages "
        "due from" in shown.out
    )


def test_only_what_is_proved_is_shown_as_clean(
    audited: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown messages, old pending ones and a window beyond the archive's end have an exit code of
    their own."""

    def result(counts: dict[str, int], judged_ms: int, to_ms: int) -> tuple[int, str, Audit]:
        found = structs.replace(
            audited,
            overall=structs.replace(audited.overall, counts=counts),
            judged_ms=judged_ms,
            samples=[],
            span=Span(from_ms=T, to_ms=to_ms),
            archived_ms=READ_MS,
            reasons=[("unknown", "gap", counts.get("unknown", 0))] if "unknown" in counts else [],
        )
        code = 0
        try:
            _publish(found, Format.text, None)
        except typer.Exit as ended:
            code = ended.exit_code
        return code, capsys.readouterr().out.splitlines()[-1], found

    code, line, found = result({"delivered": 3}, READ_MS, READ_MS)
    assert (code, found.clean) == (0, True)
    assert line == "nothing is missing, duplicated or early: 3 messages, each with its outcome"
    # The last two minutes before the archive's end may be pending.
    code, line, found = result({"delivered": 3, "pending": 1}, READ_MS - 120_000, READ_MS)
    assert (code, found.clean, line[:19]) == (0, True, "nothing due before ")
    for counts, judged_ms, to_ms, why in (
        ({"delivered": 3, "unknown": 1_000}, READ_MS, READ_MS, "1,000 messages are unknown (gap)"),
        ({"pending": 1}, READ_MS - 120_001, READ_MS, "on are pending"),
        ({"pending": 1}, T + 5, T + HOUR_MS, "on are pending"),
        ({}, READ_MS, READ_MS + HOUR_MS, "before the window does"),
    ):
        code, line, found = result(counts, judged_ms, to_ms)
        assert (code, found.clean, found.broken) == (6, False, False)
        assert line.startswith("not everything could be judged: ")
        assert why in line
        assert "not everything could be judged" in html(found)
    assert result({"missing": 1, "unknown": 1}, READ_MS, READ_MS)[0] == 1


def test_objectives_are_compared_with_the_window_and_with_each_day(
    audited: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missed one has an exit code of its own, unless a promise was broken."""
    late = audited.overall.lateness
    assert late.max_ms == 90_000
    assert sum(day.lateness.count for day in audited.days) == late.count
    whole = structs.replace(
        audited,
        overall=structs.replace(audited.overall, counts={"delivered": late.count}),
        samples=[],
        judged_ms=audited.archived_ms,
        span=structs.replace(audited.span, to_ms=audited.archived_ms),
    )

    def result(found: Audit, *texts: str) -> tuple[int, str]:
        objectives = results(map(parse_objective, texts), found.overall, found.days)
        page, rows = html(found, objectives), as_json(found, objectives)["objectives"]
        assert [row["met"] for row in rows] == [each.met for each in objectives]
        assert all(f"Objective {text.replace('<', '&lt;')}" in page for text in texts)
        code = 0
        try:
            _publish(found, Format.text, None, objectives)
        except typer.Exit as ended:
            code = ended.exit_code
        return code, capsys.readouterr().out

    assert result(whole, "max<90001ms", "p50<2h") == (0, ANY)
    code, shown = result(whole, "max<90001ms", "max<90s")
    assert code == 7
    assert "objective max<90001ms is met: max is 90 s" in shown or "1.5 min" in shown
    assert "objective max<90s is missed: max is 1.5 min; missed on 2030-01-01" in shown
    assert result(audited, "max<90s")[0] == 1
    unknown = structs.replace(whole, judged_ms=whole.span.from_ms)
    assert (result(unknown, "max<2h")[0], result(unknown, "max<90s")[0]) == (6, 7)


@pytest.mark.parametrize("reason", ["recreated", "deleted", "truncated"])
def test_a_lost_target_is_named_with_the_command_that_restores_it(
    audited: Audit, reason: str
) -> None:
    """Its messages were delivered, so that the audit is clean; they are not there any more."""
    lost = TargetCoverage(
        target="orders", covered_ms=READ_MS, gap_ms=READ_MS, unresolved=False, gap_reason=reason
    )
    lines = warnings(structs.replace(audited, archived_targets=[lost]))
    (line,) = (line for line in lines if line.startswith("orders "))
    assert "`chronos backfill --gone --target orders`" in line


def test_the_result_is_shown_before_the_page_is_written(
    audited: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path that cannot be written to does not cost the result of a long audit."""
    with pytest.raises(ArchiveFailed, match="the report cannot be written"):
        _publish(audited, Format.json, str(tmp_path / "nowhere" / "page.html"))
    assert json.loads(capsys.readouterr().out)["counts"] == audited.overall.counts


def test_a_window_is_given_in_rfc_3339_or_before_now() -> None:
    now_ms = 10**12
    assert parse_moment("-2h", now_ms, "--from") == now_ms - 2 * HOUR_MS
    assert parse_moment("now", now_ms, "--to") == now_ms
    assert parse_moment("2030-01-01T01:00:00+01:00", now_ms, "--to") == T
    for wrong in ("yesterday", "-", "-2 weeks", "2030-01-01"):
        with pytest.raises(typer.BadParameter, match="--from"):
            parse_moment(wrong, now_ms, "--from")


def chronos_audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as users run it."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "audit",
        "--master",
        "local[2]",
        *conf(small(compiled=True)),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_the_command_ends_with_1_when_a_promise_was_broken(archived: Path, tmp_path: Path) -> None:
    """JSON on stdout, progress and nothing of Spark's on stderr; details that are there are refused
    before Spark starts."""
    details, page = tmp_path / "details", tmp_path / "audit.html"
    done = chronos_audit(
        "-l",
        str(archived),
        "--from",
        "2030-01-01T00:00:00Z",
        "--to",
        "2030-01-02T00:00:00Z",
        "-o",
        "json",
        "--details",
        str(details),
        "--report",
        str(page),
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["counts"]["early"] == 1
    assert page.read_text().startswith("<!doctype html>")
    rows = ds.dataset(details, format="parquet").to_table().to_pylist()
    assert Counter(row["outcome"] for row in rows) == json.loads(done.stdout)["counts"]
    assert set(OUTCOMES) >= {row["outcome"] for row in rows}
    lines = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert list(dict.fromkeys(lines)) == [
        "starting Spark",
        "reading the coverage of the archive",
        f"writing the details to {details}",
        "joining promised deliveries with the targets",
        f"the report is in {page}",
    ]
    again = chronos_audit("-l", str(archived), "--details", str(details))
    what = f"error: {details} exists already; choose another folder for the details, or remove it\n"
    assert (again.returncode, again.stdout, again.stderr) == (1, "", what)


def test_messages_are_found_by_id_target_and_window_with_their_outcomes(
    spark: SparkSession, archived: Path
) -> None:
    """Ids without a window in the whole archive."""

    def found(id_prefix: str = "", limit: int = 100, **wanted: Any) -> FoundDeliveries:
        request = BackfillRequest(mode="all", from_ms=T, to_ms=T + DAY_MS, **wanted)
        return find(spark, ArchiveStorage(str(archived)), request, id_prefix=id_prefix, limit=limit)

    everything = found()
    outcomes = Counter(each.outcome for each in everything.deliveries)
    assert outcomes == {
        "delivered": 3,
        "missing": 1,
        "early": 1,
        "expired": 1,
        "unknown": 1,
        "pending": 1,
    }
    assert not everything.has_more
    assert [each.due_ms for each in everything.deliveries] == sorted(
        each.due_ms for each in everything.deliveries
    )
    assert [each.outcome for each in found(targets=["else*"]).deliveries] == ["unknown"]
    (hostile,) = (each for each in everything.deliveries if each.outcome == "early")
    assert hostile.delivered_ms == T + 60_000 - 9_000
    assert hostile.id is not None
    of_id = found(ids=[hostile.id.hex()], id_prefix=hostile.id.decode()[:-1]).deliveries
    assert hostile in of_id
    assert {each.id for each in of_id} == {hostile.id}
    assert found(id_prefix=f"{hostile.id.decode()}-", headers=[("customer", "42")]).deliveries == []
    for ids, deliveries in (([hostile.id.hex()], of_id), ([b"none".hex()], [])):
        request = BackfillRequest(mode="all", ids=ids)
        anywhere = find(spark, ArchiveStorage(str(archived)), request, limit=100)
        assert (anywhere.span, anywhere.deliveries) == (None, deliveries)
    first = found(limit=2)
    assert (first.deliveries, first.has_more) == (everything.deliveries[:2], True)


def test_a_message_that_was_moved_is_found_by_id_and_target(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Although the action names no target."""
    later_ms = T + 30 * 60_000
    case = JudgedShard("", {}).send(0, T + 60_000, id=b"order", on_conflict="reject")
    case.act("reschedule", 1, b"order", at_ms=T, due_ms=later_ms)
    case.deliver(0, later_ms, later_ms)
    folder = write_archive(rows_of([case]), tmp_path / "archive")
    request = BackfillRequest(mode="all", ids=[b"order".hex()], targets=["target*"])
    (one,) = find(spark, ArchiveStorage(str(folder)), request, limit=10).deliveries
    assert (one.due_ms, one.outcome) == (later_ms, "delivered")


def test_the_command_finds_a_message_in_the_archive(archived: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "chronos",
        "archive",
        "find",
        "--master",
        "local[2]",
        *conf(small()),
        "-l",
        str(archived),
    ]
    window = ["--from", "2030-01-01T00:00:00Z", "--to", "2030-01-02T00:00:00Z"]
    done = subprocess.run(
        [*command, "--target", "else*", *window],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "unknown (target-not-archived)" in done.stdout
    assert (
        "1 of the messages due 2030-01-01T00:00:00.000Z to 2030-01-02T00:00:00.000Z" in done.stderr
    )


def test_find_asks_the_archive_for_what_the_service_does_not_keep(
    archived: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "chronos", "find", "--target", "else*", "-o", "json"]
    # The verb has no option for Spark: its settings come from where Spark itself looks.
    defaults = "".join(f"{name} {value}\n" for name, value in small().items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    with Inside(tmp_path / "data", shards=1) as node:

        def asked(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, *more, "--server", f"http://127.0.0.1:{node.port}"],
                env={
                    **os.environ,
                    "CHRONOS_ARCHIVE": str(archived),
                    "SPARK_CONF_DIR": str(tmp_path),
                },
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )

        # What is due in the future has not ended: the service keeps all of it.
        kept = asked("--from", "2030-01-01T00:00:00Z", "--until", "2030-01-02T00:00:00Z")
        assert (kept.returncode, json.loads(kept.stdout)["archive"]) == (4, None)
        done = asked()
    assert done.returncode == 0, done.stderr
    assert "looking in the archive" in done.stderr
    (one,) = json.loads(done.stdout)["archive"]["messages"]
    assert (one["outcome"], one["reason"]) == ("unknown", "target-not-archived")


@pytest.mark.parametrize(
    ("ended", "last"),
    [
        ("interrupted", "stopped; nothing was judged"),
        ("JVM killed", "error: Spark's JVM ended before"),
    ],
)
def test_a_command_that_is_ended_writes_one_line(archived: Path, ended: str, last: str) -> None:
    """No traceback of Python or Java, and exit code 1; Spark's log is named if the command
    failed."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "audit",
        "--master",
        "local[2]",
        "-l",
        str(archived),
        "--from",
        "2030-01-01T00:00:00Z",
        *conf(small()),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("reading the coverage"):
                break
        if ended == "interrupted":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            (java,) = java_of(process.pid)
            os.kill(java, signal.SIGKILL)
        _, errors = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = [
        line
        for line in errors.splitlines()
        if not line.startswith(("reading", "joining", "Spark's own log is in"))
    ]
    assert [line[: len(last)] for line in lines] == [last]
    assert process.returncode == 1
    logs = re.findall(r"^Spark's own log is in (.+)$", errors, re.MULTILINE)
    assert len(logs) == (ended != "interrupted")
    for log in logs:
        assert "WARN" in Path(log).read_text()
        Path(log).unlink()


def java_of(session: int) -> list[int]:
    """The Java processes of a session of processes."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if (
                int(stat[3]) == session
                and b"java" in Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[0]
            ):
                found.append(int(entry))
    return found


def test_the_command_explains_missing_and_wrong_options(tmp_path: Path) -> None:
    for arguments, text, code in (
        ((), "Missing option '--location'", 2),
        (("-l", str(tmp_path), "--from", "soon"), "--from: 'soon' is not a time", 2),
        (("-l", str(tmp_path), "--from", "-1h", "--to", "-2h"), "--from must lie before --to", 2),
        (("-l", "nothing://here"), "cannot hold an archive", 1),
    ):
        done = chronos_audit(*arguments)
        assert text in " ".join(done.stderr.split()), done.stderr
        assert done.returncode == code
