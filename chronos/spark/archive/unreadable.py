"""The ranges of offsets of the delay topic that the archive does not read, because the service has
rejected their records; the reading of the records around them; and the search for a further batch
that Spark cannot read, after a stream has failed.

Spark may fail at such a batch: it is damaged, or cannot be decompressed within bounds and would
take the memory of the JVM; or its producer's timestamp is too large for Spark's source. The ranges
follow from the progress records, which a run reads first."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.message import Reason
from chronos.errors import BatchUnreadable, Retry
from chronos.spark.codec import of_shard
from chronos.spark.runs import ArchiveBrokers

READ_AHEAD = 10_000
"""Offsets after its last one that a consumer may decompress: one poll has 500 records, with markers
between them."""

HIDDEN_MAX = 1_000
"""Most batches without visible records that are looked at before a range."""

TIMESTAMP_MS_MAX = (2**63 - 1) // 1_000
"""Spark holds times in microseconds: a producer's timestamp in nanoseconds, taken for milliseconds,
is beyond that."""

CREATE_TIME = Reason.CREATE_TIME.label

SEARCH_S = 60.0
"""Longest search for a batch that cannot be read."""

SEARCH_RECORDS, SEARCH_BYTES, SEARCH_WAIT_S = 5_000, 8_000_000, 0.5
"""One read of the search."""

Ranges = dict[str, list[tuple[int, int]]]
"""First and last offsets by partition, in order."""


def known_ranges(
    brokers: ArchiveBrokers,
    progress: DataFrame,
    decisions: DataFrame,
    delay_topic: str,
    begin: Mapping[int, int],
) -> Ranges:
    """The ranges that the records of the tables `progress` and `decisions` name, from these offsets
    of the partitions on."""
    # Each partition from its own offset on: what lies before it may have been deleted.
    first = f.coalesce(of_shard(begin), f.lit(0))
    steps = progress.where(f.col("unreadable").isNotNull() & (f.col("pull_offset") > first))
    ranges = [
        (row["shard"], each["first"], each["last"])
        for row in steps.select("shard", "unreadable").collect()
        for each in row["unreadable"]
    ]
    refused = decisions.where((f.col("reason") == CREATE_TIME) & (f.col("source_offset") >= first))
    stamped = [
        (row["shard"], row["source_offset"])
        for row in refused.select("shard", "source_offset").collect()
    ]
    found = _merged([*ranges, *_beyond(brokers, delay_topic, stamped)])
    return {
        part: [(first, last) for first, last in of_part if last >= begin.get(int(part), 0)]
        for part, of_part in found.items()
    }


def _beyond(
    brokers: ArchiveBrokers, topic: str, stamped: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """The batches with a timestamp beyond TIMESTAMP_MS_MAX, of these records (partition, offset)
    with a producer's timestamp.

    All records of such a batch have producers' timestamps, and were rejected.
    """
    seen = (-1, -1)
    for part, offset in sorted(stamped):
        if (part, offset) <= seen:
            continue
        header = brokers.batch_header(topic, part, offset)
        seen = (part, header.last)
        if header.timestamp_ms > TIMESTAMP_MS_MAX and header.first <= offset:
            yield part, header.first, header.last


def _merged(ranges: Iterable[tuple[int, int, int]]) -> Ranges:
    """The ranges (partition, first, last) by partition, those without an offset between them as
    one."""
    merged: Ranges = {}
    for part, first, last in sorted(ranges):
        of_part = merged.setdefault(str(part), [])
        if of_part and first <= of_part[-1][1] + 1:
            of_part[-1] = (of_part[-1][0], max(last, of_part[-1][1]))
        else:
            of_part.append((first, last))
    return merged


class ReadablePart(Struct, frozen=True):
    """Offsets of a partition to read."""

    begin: int
    end: int
    before_range: bool
    """A range begins behind them, so that nothing may be read ahead."""


def parts_of(begin: int, end: int, ranges: Sequence[tuple[int, int]]) -> list[ReadablePart]:
    """The offsets from `begin` to `end`, exclusive, that are in none of the ranges."""
    parts = []
    for first, last in ranges:
        if last < begin or first >= end + READ_AHEAD:
            continue
        if begin < min(first, end):
            parts.append(ReadablePart(begin, min(first, end), before_range=True))
        begin = max(begin, last + 1)
    if begin < end:
        parts.append(ReadablePart(begin, end, before_range=False))
    return parts


def skipped(begin: int, end: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of the ranges from `begin` to `end`, exclusive: first offset, and the offset after
    the last one."""
    clipped = [(max(first, begin), min(last + 1, end)) for first, last in ranges]
    return [(first, until) for first, until in clipped if first < until]


def is_near(begin: int, end: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether a consumer that reads from `begin` to `end`, exclusive, may decompress a batch
    of the ranges."""
    return any(last >= begin and first < end + READ_AHEAD for first, last in ranges)


def parts_around(
    spans: Mapping[str, tuple[int, int]], ranges: Ranges
) -> dict[str, list[ReadablePart]] | None:
    """The parts to read of these offsets (begin, end) by partition; None if no range is near: they
    can be read as they are."""
    if not any(is_near(*span, ranges.get(part, ())) for part, span in spans.items()):
        return None
    return {part: parts_of(*span, ranges.get(part, ())) for part, span in spans.items()}


def records_around(
    spark: SparkSession,
    brokers: ArchiveBrokers,
    topic: str,
    parts: Mapping[str, Sequence[ReadablePart]],
    options: Mapping[str, str],
    nothing: DataFrame,
) -> DataFrame:
    """The records of these parts by partition, read without those between them.

    `options`: those of Spark's Kafka source. `nothing`: no records of it.
    """
    frames = [nothing]
    for at in range(max(map(len, parts.values()), default=0)):
        here = {number: of_part[at] for number, of_part in parts.items() if at < len(of_part)}
        for before_range in (False, True):
            chosen = {
                number: part for number, part in here.items() if part.before_range is before_range
            }
            if chosen:
                ends = {
                    number: _visible_end(brokers, topic, int(number), part)
                    if before_range
                    else part.end
                    for number, part in chosen.items()
                }
                frames.append(_read(spark, topic, chosen, ends, options, one_by_one=before_range))
    return reduce(DataFrame.unionAll, frames)


def _read(
    spark: SparkSession,
    topic: str,
    parts: Mapping[str, ReadablePart],
    ends: Mapping[str, int],
    options: Mapping[str, str],
    *,
    one_by_one: bool,
) -> DataFrame:
    wanted: dict[str, Any] = {
        **options,
        "assign": json.dumps({topic: [int(number) for number in parts]}),
        "startingOffsets": json.dumps(
            {topic: {number: part.begin for number, part in parts.items()}}
        ),
        "endingOffsets": json.dumps({topic: dict(ends)}),
    }
    if one_by_one:
        wanted["kafka.max.poll.records"] = (
            "1"  # the consumer decompresses what a poll returns, and no more
        )
    return spark.read.format("kafka").options(**wanted).load()


def _visible_end(brokers: ArchiveBrokers, topic: str, partition: int, part: ReadablePart) -> int:
    """The end of the part without the markers and aborted records at its end.

    Spark looks for a record at each offset: at theirs its consumer would go on to the next one,
    which is in the range."""
    end = part.end
    for _ in range(HIDDEN_MAX):
        if end <= part.begin:
            return part.begin
        header = brokers.batch_header(topic, partition, end - 1)
        if not header.hidden:
            break
        end = min(end - 1, header.first)
    return max(end, part.begin)


def find_unreadable(
    brokers: ArchiveBrokers, places: Sequence[tuple[str, str, int, int]], known: Ranges
) -> str | None:
    """Look for the first batch in these offsets (topic, partition, begin, end) that Spark cannot
    read, and say why.

    None if there is none outside the ranges, or none was found within SEARCH_S.
    """
    deadline_s = time.monotonic() + SEARCH_S
    for topic, partition, begin, end in places:
        for part in parts_of(begin, end, known.get(partition, ())):
            reader = brokers.reader(topic, int(partition), part.begin, mode="bounded")
            try:
                while reader.position < part.end and time.monotonic() < deadline_s:
                    reader.wait(SEARCH_WAIT_S)
                    for record in reader.read(SEARCH_RECORDS, SEARCH_BYTES):
                        if record.timestamp_ms > TIMESTAMP_MS_MAX:
                            return (
                                f"the record at offset {record.offset} of {topic}/{partition} has "
                                f"the timestamp {record.timestamp_ms}, which Spark cannot hold"
                            )
            except BatchUnreadable as error:
                return (
                    f"the batch at offset {error.offset} of {topic}/{partition} takes too much "
                    f"memory ({error})"
                )
            except Retry:
                return None
            finally:
                reader.close()
    return None
