"""Time and memory of an audit of 10,000,000 archived messages. The archive is synthetic.

A day of four shards with a step each 100 ms: 95 % of the messages go to one target; 40 % have an id
of their own, 3 % are cancelled, 0.3 % moved, 1 % delivered at the second attempt, 0.5 % expired,
0.1 % refused. A few deliveries are missing, duplicated or early. The audit has to count all of them
exactly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chronos.core.keys import OFFSET_MAX
from chronos.core.timefmt import format_time
from tests.bench.figures import Bench

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import Column, DataFrame, SparkSession

    from chronos.spark.archive.commits import Commits
    from chronos.spark.delta import Commit

MESSAGES = 10_000_000
SMALLER = 4
"""Factor by which a second archive is smaller: two sizes show how time and memory grow."""

SMALLEST = 100_000
"""Messages below which there is no second archive: the benchmark is only to run."""

AUDIT_S = 180.0
AUDIT_BYTES = 3 * 2**30

SHARDS = 4
START_MS = 1_893_456_000_000
GAP_MS = 34
"""Ms between two records of a shard."""

STEP_MS = 100
"""Ms between two steps of a shard."""

DELAY_MS = 7_200_000
"""Longest delay in ms; the shortest is ten seconds."""

RETRY_MS = 1_000
MOVED_MS = 60_000
"""Ms from a reschedule to the new due time."""

WRITTEN_MS = 5
"""Ms from a step's clock to the broker's timestamp."""

PARTITIONS = 3
"""Partitions of a target."""

GROUP = 33
"""Size of a group of records of a shard; the last record of a group cancels another."""

PLANTED = 7
"""Number of deliveries made missing, duplicated and early, each."""

TARGETS = 50
"""Number of targets besides the one with nearly all messages."""

SAMPLE_S = 0.25


def audit_figure(bench: Bench, messages: int = MESSAGES) -> None:
    """Add the figures of time and memory."""
    if messages >= SMALLEST:
        smaller_seconds, smaller_bytes, exact = _audited(bench, messages // SMALLER)
        bench.add(
            f"audit of {messages // SMALLER:,} archived messages",
            f"{smaller_seconds:.0f} s, {smaller_bytes / 2**30:.2f} GiB",
            "exact",
            exact,
            seconds=smaller_seconds,
            bytes=smaller_bytes,
        )
    seconds, peak_bytes, exact = _audited(bench, messages)
    bench.add(
        f"audit of {messages:,} archived messages",
        f"{seconds:.0f} s{'' if exact else ', wrong counts'}",
        f"<= {AUDIT_S:.0f} s",
        seconds <= AUDIT_S and exact,
        seconds=seconds,
        exact=exact,
    )
    bench.add(
        "memory of that audit, JVM and Python together",
        f"{peak_bytes / 2**30:.2f} GiB",
        f"<= {AUDIT_BYTES / 2**30:.0f} GiB",
        peak_bytes <= AUDIT_BYTES,
        bytes=peak_bytes,
    )


def _audited(bench: Bench, messages: int) -> tuple[float, int, bool]:
    """Seconds, peak bytes, and whether all counts are exact."""
    folder = bench.directory / f"audited-{messages}"
    bench.say(f"     making an archive of {messages:,} messages")
    expected = make(folder, messages)
    seconds, peak_bytes, counts = measure(folder, bench.directory, messages)
    if counts != expected:
        bench.say(f"     found {counts}, there are {expected}")
    shutil.rmtree(folder)
    return seconds, peak_bytes, counts == expected


def measure(folder: Path, directory: Path, messages: int) -> tuple[float, int, dict[str, int]]:
    """Run the command: seconds, peak resident bytes, and its counts by outcome."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "audit",
        "--location",
        str(folder),
        "-o",
        "json",
        "--master",
        "local[2]",
        "--from",
        format_time(START_MS),
        "--to",
        format_time(START_MS + length_ms(messages)),
        "--report",
        str(directory / "audit.html"),
        "--conf",
        f"spark.local.dir={directory}",
    ]
    answer = directory / "audit.json"
    began = time.monotonic()
    with answer.open("wb") as output, subprocess.Popen(command, stdout=output) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(SAMPLE_S)
        seconds = time.monotonic() - began
    if process.returncode not in (0, 1):
        raise RuntimeError(f"the audit ended with {process.returncode}")
    counts: dict[str, int] = json.loads(answer.read_bytes())["counts"]
    return seconds, peak, counts


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            after_name = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process ended meanwhile
        children.setdefault(int(after_name[1]), []).append(int(entry))
        pages[int(entry)] = int(after_name[21])
    family, seen = [pid], 0
    while family:
        each = family.pop()
        seen += pages.get(each, 0)
        family += children.get(each, ())
    return seen * os.sysconf("SC_PAGE_SIZE")


# --- the archive


def length_ms(messages: int) -> int:
    """Ms from the first record to a time when all messages are settled."""
    return messages // SHARDS * GAP_MS + DELAY_MS + 120_000


def make(folder: Path, messages: int) -> dict[str, int]:
    """Write the tables an audit reads in the layout of `chronos archive`; the expected counts by
    outcome."""
    from chronos.spark import schema
    from chronos.spark.archive.commits import Commits
    from chronos.spark.session import open_session
    from chronos.spark.storage import ArchiveStorage
    from tests.spark.written import create_archive, read_to_the_end

    topics = {
        "delay": "delay",
        "progress": "progress",
        "rejected": "rejected",
        "dead_letter": "dead",
    }
    create_archive(folder, "bench", topics)
    spark = open_session("bench", "local[2]", {"spark.local.dir": str(folder.parent)}, kafka=False)
    try:
        records = _records(spark, messages)
        planted = _planted(records, messages)
        commits, written = Commits(spark, ArchiveStorage(str(folder)), "bench"), {}
        for table, rows in (
            (schema.MESSAGES, _messages(records)),
            (schema.DELIVERIES, _deliveries(records, *planted)),
            (schema.DECISIONS, _decisions(records)),
            (schema.PROGRESS, _progress(spark, messages)),
        ):
            written[table.name] = _write_table(rows, table, commits)
        end_ms = START_MS + length_ms(messages) + 60_000
        nothing = dict.fromkeys(name for name, *_ in schema.OFFSETS.columns)
        rows = [{**nothing, **read_to_the_end(*end, end_ms)} for end in _ends(messages)]
        commits.commit(rows, written, run="bench", stream="offsets", number=0)
        counts = {row["event"]: row["count"] for row in records.groupBy("event").count().collect()}
    finally:
        spark.stop()
    found = sum(counts.get(event, 0) for event in ("delivered", "moved", "retried"))
    expected = {
        "delivered": found - 3 * PLANTED,
        **dict.fromkeys(("missing", "duplicated", "early"), PLANTED),
        "cancelled": counts.get("cancelled", 0),
        "expired": counts.get("expired", 0),
        "rejected": counts.get("refused", 0),
    }
    return {outcome: count for outcome, count in expected.items() if count}


def _write_table(rows: DataFrame, table: Any, commits: Commits) -> Commit:
    """Write a table as `chronos archive` does; columns that may be null and are not given are
    null."""
    from pyspark.sql import functions as f

    from chronos.spark.schema import columns_of

    given = set(rows.columns)
    rows = rows.select(
        *(
            (f.lit(None) if field.nullable and field.name not in given else rows[field.name])
            .cast(field.dataType)
            .alias(field.name)
            for field in columns_of(table).fields
        )
    )
    return commits.write(table, rows, run="bench", stream="bench", number=0)


def _records(spark: SparkSession, messages: int) -> DataFrame:
    """Every record of the delay topic with its `event`; `r` numbers the records of a shard."""
    from pyspark.sql import functions as f

    per_shard = messages // SHARDS
    r = f.col("r")
    # A part for about an hour, so that a task writes to few folders.
    parts = max(2, per_shard * GAP_MS // 3_600_000)
    made = spark.range(0, per_shard * SHARDS, numPartitions=parts).select(
        f.col("id").alias("n"),
        (f.col("id") % SHARDS).cast("int").alias("shard"),
        f.floor(f.col("id") / SHARDS).alias("r"),
        f.pmod(f.xxhash64("id"), f.lit(1_000_000)).alias("dice"),
        f.pmod(f.xxhash64("id", f.lit("target")), f.lit(1_000)).alias("target_dice"),
    )
    event = (
        f.when(r % GROUP == 32, "cancels")
        .when(r % (10 * GROUP) == 31, "moves")
        .when((r % GROUP == 12) & (r + 20 < per_shard), "cancelled")
        .when((r % (10 * GROUP) == 22) & (r + 9 < per_shard), "moved")
        .when(f.col("dice") < 10_000, "retried")
        .when(f.col("dice") < 15_000, "expired")
        .when(f.col("dice") < 16_000, "refused")
        .otherwise("delivered")
    )
    timestamp_ms = START_MS + r * GAP_MS + f.col("shard")
    asked_ms = timestamp_ms + 10_000 + f.col("dice") * 7_919 % (DELAY_MS - 20_000)
    moved_ms = timestamp_ms + 9 * GAP_MS + MOVED_MS
    target = f.when(f.col("target_dice") < 950, "orders").otherwise(
        f.concat(f.lit("t-"), f.col("target_dice") % TARGETS)
    )
    return made.select(
        "*",
        event.alias("event"),
        timestamp_ms.alias("timestamp_ms"),
        asked_ms.alias("asked_ms"),
        target.alias("target"),
    ).withColumn("due_ms", f.when(f.col("event") == "moved", moved_ms).otherwise(f.col("asked_ms")))


def _planted(records: DataFrame, messages: int) -> list[list[int]]:
    """Numbers of the messages that are missing, duplicated and early."""
    found = (
        records.where("event = 'delivered'")
        .where(f"n % {messages // 64} = 3")
        .select("n")
        .limit(3 * PLANTED)
    )
    numbers = sorted(row["n"] for row in found.collect())
    assert len(numbers) == 3 * PLANTED
    return [numbers[kind::3] for kind in range(3)]


def _id(r: Column) -> Column:
    from pyspark.sql import functions as f

    return f.concat_ws("-", f.lit("order"), "shard", r).cast("binary")


def _messages(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    r, event = f.col("r"), f.col("event")
    verb = (
        f.when(event == "cancels", "cancel")
        .when(event == "moves", "reschedule")
        .otherwise("schedule")
    )
    named = f.when(event == "cancels", r - 20).when(event == "moves", r - 9).otherwise(r)
    has_name = (r % GROUP % 5).isin(2, 4) | event.isin("cancels", "moves")
    address = f.concat_ws("-", "shard", "asked_ms", "r").cast("binary")
    due_ms = f.when(event == "moves", f.col("timestamp_ms") + MOVED_MS).when(
        event != "cancels", f.col("asked_ms")
    )
    is_schedule = verb == "schedule"
    none = f.lit(None)
    return records.select(
        "shard",
        r.alias("offset"),
        "timestamp_ms",
        f.when(has_name, _id(named)).alias("key"),
        _payload().alias("value"),
        none.alias("headers"),
        verb.alias("verb"),
        f.when(has_name, _id(named)).otherwise(address).alias("id"),
        f.when(is_schedule, f.col("target")).alias("target"),
        none.alias("target_key"),
        due_ms.alias("requested_due_ms"),
        due_ms.alias("due_ms"),
        none.alias("expire_at_ms"),
        f.when(is_schedule & has_name, "reject").alias("on_conflict"),
        none.alias("reason"),
        none.alias("first_ms"),
    )


def _payload() -> Column:
    from pyspark.sql import functions as f

    return f.concat(f.sha2(f.col("n").cast("string"), 256), f.lit("." * 36)).cast("binary")


def _step(after_ms: Column) -> Column:
    """Number of the step that settles messages due then."""
    from pyspark.sql import functions as f

    return f.ceil((after_ms + 1 - START_MS) / STEP_MS)


def _step_ms(step: Column) -> Column:
    """Broker's timestamp of the records that the step wrote."""
    return START_MS + step * STEP_MS + WRITTEN_MS


def _deliveries(
    records: DataFrame, missing: list[int], duplicated: list[int], early: list[int]
) -> DataFrame:
    from pyspark.sql import functions as f

    n, is_second = f.col("n"), f.col("event") == "retried"
    timestamp_ms = _step_ms(_step(f.col("due_ms") + f.when(is_second, RETRY_MS).otherwise(0)))
    copies = f.when(n.isin(duplicated), f.sequence(f.lit(0), f.lit(1))).otherwise(f.array(f.lit(0)))
    found = records.where(f.col("event").isin("delivered", "moved", "retried") & ~n.isin(missing))
    none = f.lit(None)
    return found.withColumn("copy", f.explode(copies)).select(
        f.col("target").alias("topic"),
        (n % PARTITIONS).alias("partition"),
        (f.floor(n / PARTITIONS) * 2 + f.col("copy")).alias("offset"),
        f.when(n.isin(early), f.col("due_ms") - 10_000)
        .otherwise(timestamp_ms)
        .alias("timestamp_ms"),
        none.alias("key"),
        _payload().alias("value"),
        none.alias("headers"),
        none.alias("id"),
        f.col("due_ms").alias("due_at_ms"),
        f.lit("delay").alias("source_topic"),
        "shard",
        f.col("r").alias("source_offset"),
        f.lit(1).alias("occurrence"),
        f.when(is_second, 2).otherwise(1).alias("attempt"),
    )


def _decisions(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    is_refused, is_second = f.col("event") == "refused", f.col("event") == "retried"
    step = _step(f.when(is_refused, f.col("timestamp_ms")).otherwise(f.col("due_ms")))
    outcome = f.when(is_refused, "refused").when(is_second, "retry").otherwise("expired")
    return records.where(f.col("event").isin("refused", "retried", "expired")).select(
        "shard",
        (step * 2).alias("progress_offset"),
        _step_ms(step).alias("decided_ms"),
        f.when(~is_refused, f.col("due_ms")).alias("position_due_ms"),
        f.col("r").alias("source_offset"),
        outcome.alias("outcome"),
        f.when(is_refused, "conflict").alias("reason"),
        f.when(is_second, f.col("due_ms") + RETRY_MS).alias("next_due_ms"),
        f.lit(1).alias("occurrence"),
        f.when(is_second, 2).otherwise(1).alias("attempt"),
    )


def _progress(spark: SparkSession, messages: int) -> DataFrame:
    from pyspark.sql import functions as f

    from chronos.spark.schema import COUNTS

    steps = length_ms(messages) // STEP_MS
    step, shard = f.floor(f.col("id") / SHARDS), (f.col("id") % SHARDS).cast("int")
    pulled = f.floor((step * STEP_MS - 1 - shard) / GAP_MS) + 1
    zero = f.lit(0)
    return spark.range(
        0, steps * SHARDS, numPartitions=max(2, steps * STEP_MS // 3_600_000)
    ).select(
        shard.alias("shard"),
        (step * 2).alias("offset"),
        _step_ms(step).alias("timestamp_ms"),
        f.lit(1).alias("role_epoch"),
        f.lit(1).alias("log_epoch"),
        f.lit("n").alias("node"),
        f.lit("i").alias("instance"),
        (START_MS + step * STEP_MS - 1).alias("cursor_due_ms"),
        f.lit(str(OFFSET_MAX)).alias("cursor_offset"),
        f.greatest(zero, f.least(pulled, f.lit(messages // SHARDS))).alias("pull_offset"),
        *(zero.alias(name) for name in (*COUNTS, "refused")),
        f.unhex(f.sha2(f.col("id").cast("string"), 512)).alias("value"),
    )


def _ends(messages: int) -> list[tuple[str, str, int, int]]:
    """The end that each partition of each topic was read to."""
    ends = [("messages", "delay", shard, messages // SHARDS) for shard in range(SHARDS)]
    ends += [
        ("progress", "progress", shard, 2 * length_ms(messages) // STEP_MS + 1)
        for shard in range(SHARDS)
    ]
    targets = ["orders", *(f"t-{number}" for number in range(TARGETS))]
    return ends + [
        ("deliveries", target, number, messages)
        for target in targets
        for number in range(PARTITIONS)
    ]
