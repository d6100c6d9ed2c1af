"""The golden log: both logs of a shard as masters of rules 1 wrote them, and the bytes of its store
after each step.

`python -m tests.unit.test_rules` makes it. Never make one again that a released version has: a log
that was decided by old rules is replayed by them for ever."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from chronos.core.message import Record
from chronos.core.shard.codec import RULES
from chronos.core.shard.progress import Outcome, Progress, unpack_progress
from tests.unit.drivers import MASTER_RULES, OTHER_RULES, Master, Replica
from tests.unit.histories import SHARDS, Step, steps
from tests.unit.model import MINUTE_MS

GOLDEN = Path(__file__).parent / "golden" / f"rules-{RULES}.bin"
LOGS, EACH = 40, 20
"""Logs in the file, and histories of which one is kept: neighbours are much alike."""


def digest_of(rows: dict[bytes, bytes]) -> bytes:
    return blake2b(repr(sorted(rows.items())).encode(), digest_size=16).digest()


def make() -> bytes:
    logs: list[Any] = []

    @seed(1)
    @settings(max_examples=LOGS * EACH, phases=[Phase.generate], database=None, deadline=None)
    @given(
        history=st.lists(steps, min_size=12, max_size=12),
        kept_ms=st.sampled_from([None, 0, 20, MINUTE_MS]),
    )
    def play(history: list[Step], kept_ms: int | None) -> None:
        master = Master(kept_ms=kept_ms)
        master.play(history)
        records = [
            (each.offset, each.timestamp_ms, each.key, each.value, each.headers, each.create_time)
            for each in master.producers.records
        ]
        logs.append((records, master.progress, [digest_of(rows) for rows in master.snapshots]))

    play()
    return zlib.compress(msgspec.msgpack.encode(logs[::EACH][:LOGS]), 9)


def test_the_golden_log_replays_to_the_bytes_that_it_had() -> None:
    logs = msgspec.msgpack.decode(zlib.decompress(GOLDEN.read_bytes()))
    assert len(logs) >= 40
    seen: list[Progress] = []
    for at, (records, progress, digests) in enumerate(logs):
        master = Master()
        master.producers.records = [
            Record(
                offset, timestamp_ms, key, value, [tuple(header) for header in headers], create_time
            )
            for offset, timestamp_ms, key, value, headers, create_time in records
        ]
        replica = Replica(master, 0, [MASTER_RULES, *OTHER_RULES][at % 4], 1_000_000)
        for (offset, timestamp_ms, data), expected in zip(progress, digests[1:], strict=True):
            seen.append(unpack_progress(data, SHARDS))
            replica.follow(seen[-1], offset, timestamp_ms)
            assert digest_of(replica.store.rows) == expected
    decided = {decision.outcome for step in seen for decision in step.decisions}
    assert decided == {*Outcome} - {Outcome.DELIVERED}
    for name in ("refused", "probes", "unreadable", "lanes", "details", "horizon_ms", "held"):
        assert any(getattr(step, name) for step in seen), name
    assert any(each.too_large for step in seen for each in step.written)
    assert any(step.written and step.held for step in seen)


if __name__ == "__main__":
    GOLDEN.write_bytes(make())
