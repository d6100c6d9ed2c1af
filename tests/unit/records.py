"""Records of the delay topic for the tests of the parser and its rules."""

from __future__ import annotations

from typing import Any

from chronos.core.message import ConditionalSchedule, Entry, Record
from chronos.core.shard.parsing import parse
from chronos.core.shard.record import WriterEpoch
from chronos.core.shard.rules import Rules

WRITER = WriterEpoch(
    cluster="shop", node="one", instance="i-1", shards=3, role_epoch=3, log_epoch=4
)
"""The master that writes the progress records of tests."""

NOW_MS = 1_700_000_000_000
AT = ("chronos-deliver-at", b"1700000001000")
IN = ("chronos-delay", b"90s")
TO = ("chronos-target-topic", b"orders")
GENERATED_ID = b"2-1700000001000-41"
RULES = Rules(
    shard=2,
    shards=4,
    own_topics=["chronos.delay", "chronos.progress"],
    allow=["ord*", "secret", "chronos.*", "__*"],
    deny=["secret", "*.private"],
    max_delay_ms=86_400_000,
)


def parsed(
    *headers: tuple[str, bytes | None],
    key: bytes | None = None,
    value: bytes | None = b"v",
    rules: Rules = RULES,
) -> Any:
    return parse(Record(42, NOW_MS, key, value, list(headers)), rules)


def action(verb: str) -> tuple[str, bytes]:
    return "chronos-action", verb.encode()


def message(
    *headers: tuple[str, bytes | None], key: bytes | None = None, value: bytes | None = b"v"
) -> Entry:
    result = parsed(*headers, key=key, value=value)
    entry = result.entry if isinstance(result, ConditionalSchedule) else result
    assert isinstance(entry, Entry), result
    return entry
