"""An archive of lost messages: all settled long ago, and none in its target. Written without a
broker and without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chronos.core.keys import OFFSET_MAX
from chronos.spark.schema import COUNTS

Row = dict[str, Any]

START_MS = 1_790_000_000_000
"""Due time of the first message, epoch ms."""

GAP_MS = 7
"""Ms from one due time to the next."""

HOUR_MS = 3_600_000


def expected(number: int, target: str, shards: int) -> tuple[bytes, bytes, bytes | None]:
    """Source without its topic, payload and target key of a message."""
    source = b"%d/%d/1" % (number % shards, number // shards)
    return (
        source,
        b"payload %d of %b" % (number, target.encode()),
        b"key-%d" % number if number % 3 else None,
    )


def write_lost(
    folder: Path,
    *,
    cluster: str,
    delay: str,
    target: str,
    messages: int,
    shards: int,
    dead: int = 0,
) -> None:
    """Write the archive. `messages` is a multiple of `shards`; every fifth message has an id of its
    own. The first `dead` messages were dead-lettered, and the dead letter of the first one was
    discarded."""
    from tests.spark.written import create_archive, read_to_the_end, write_batch

    topics = {name: f"{cluster}.{name}" for name in ("progress", "rejected", "dead_letter")}
    create_archive(folder, "lost", topics | {"delay": delay}, cluster)
    end_ms = START_MS + messages * GAP_MS + 24 * HOUR_MS
    decided_ms, each = end_ms - 3 * HOUR_MS, messages // shards
    read = [("messages", delay, number, each) for number in range(shards)]
    read += [("progress", topics["progress"], number, 3) for number in range(shards)]
    read += [("deliveries", target, number, 0) for number in range(shards)]
    rows: dict[str, Iterable[Row]] = {
        "messages": (_message(number, target, shards) for number in range(messages)),
        "decisions": (_decision(number, shards, decided_ms) for number in range(dead)),
        "dead_letters": _letters(delay, shards, dead, decided_ms),
        "progress": _steps(shards, each, end_ms),
        "offsets": (read_to_the_end(*each, end_ms) for each in read),
    }
    write_batch(folder, rows, "lost")


def _message(number: int, target: str, shards: int) -> Row:
    shard, offset, due_ms = number % shards, number // shards, START_MS + number * GAP_MS
    own = b"order-%d" % number if number % 5 == 0 else None
    _, value, target_key = expected(number, target, shards)
    return {
        "shard": shard,
        "offset": offset,
        "timestamp_ms": due_ms - HOUR_MS,
        "key": own,
        "value": value,
        "headers": [
            ("chronos-deliver-at", b"%d" % due_ms),
            ("trace", b"%d" % number),
            ("chronos-target-topic", target.encode()),
            ("trace", None),
        ],
        "verb": "schedule",
        "id": own or b"%d-%d-%d" % (shard, due_ms, offset),
        "target": target,
        "target_key": target_key,
        "requested_due_ms": due_ms,
        "due_ms": due_ms,
    }


def _decision(number: int, shards: int, decided_ms: int) -> Row:
    return {
        "shard": number % shards,
        "source_offset": number // shards,
        "occurrence": 1,
        "progress_offset": 1,
        "decided_ms": decided_ms,
        "position_due_ms": START_MS + number * GAP_MS,
        "outcome": "dead-letter",
        "reason": "target-missing",
        "attempt": 1,
    }


def _letters(delay: str, shards: int, dead: int, decided_ms: int) -> Iterator[Row]:
    """The dead letters, and the marker of the first one."""
    for number in range(dead + 1 if dead else 0):
        row = {"topic": "dead", "partition": 0, "offset": number, "timestamp_ms": decided_ms}
        if number < dead:
            shard, offset = number % shards, number // shards
            row |= {"source_topic": delay, "shard": shard, "source_offset": offset}
            yield row | {"occurrence": 1, "attempt": 1}
        else:
            marker = [("chronos-resolution", b"discarded"), ("chronos-resolved", b"0")]
            yield row | {"headers": marker, "occurrence": 1, "attempt": 1}


def _steps(shards: int, pulled: int, end_ms: int) -> Iterator[Row]:
    """Three steps of each shard; the second one has settled everything."""
    for shard in range(shards):
        for at, cursor_ms in enumerate((0, end_ms - 3 * HOUR_MS, end_ms - HOUR_MS)):
            yield {
                "shard": shard,
                "offset": at,
                "timestamp_ms": end_ms + (at - 3) * HOUR_MS,
                "role_epoch": 1,
                "log_epoch": 1,
                "node": "n",
                "instance": "i",
                "cursor_due_ms": cursor_ms,
                "cursor_offset": str(OFFSET_MAX),
                "pull_offset": pulled if at else 0,
                **dict.fromkeys(COUNTS, 0),
                "refused": 0,
                "value": b"",
            }


def last_json(output: str) -> dict[str, Any]:
    """The JSON on the last line of a command's output."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
