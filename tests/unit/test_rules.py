"""Golden logs: both logs of a shard as masters of each rules number wrote them, and the bytes of
its store after each step."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

from chronos.core.message import Record
from chronos.core.shard.progress import RULES, unpack_progress
from tests.unit.drivers import MASTER_RULES, OTHER_RULES, Master, Replica

GOLDEN = Path(__file__).parent / "golden"


def digest_of(rows: dict[bytes, bytes]) -> bytes:
    return blake2b(repr(sorted(rows.items())).encode(), digest_size=16).digest()


@pytest.mark.parametrize("number", range(1, RULES + 1))
def test_logs_of_every_rules_number_replay_to_the_bytes_they_had(number: int) -> None:
    # Never write these files anew: a log that was decided by old rules is replayed by them for
    # ever.
    logs = msgspec.msgpack.decode(zlib.decompress((GOLDEN / f"rules-{number}.bin").read_bytes()))
    assert len(logs) >= 40
    numbers = set()
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
            record = unpack_progress(data)
            numbers.add(record.rules)
            replica.follow(record, offset, timestamp_ms)
            assert digest_of(replica.store.rows) == expected
    assert numbers == {number}
