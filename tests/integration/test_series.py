"""Series and spread messages on a real broker: the rhythm across kill -9, what an outage missed,
actions, and the spread."""

from __future__ import annotations

import time
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from chronos.core.series import spread_shift_ms
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Got, Sent, Tail, Topics, produce, schedule

pytestmark = pytest.mark.kafka

EARLY_MS = 500
"""Law 2: the tolerance of the clocks."""


def number(got: Got) -> int:
    return int(got.header("chronos-occurrence") or b"1")


def due_ms(got: Got) -> int:
    return int(got.header("chronos-due-at") or b"0")


def test_series_keep_their_rhythm_across_a_kill_and_a_spread_smooths_a_burst(
    broker: Broker, tmp_path: Path
) -> None:
    """Each occurrence once; `fire-all` delivers what the outage missed, `fire-once` one for all; a
    cancel ends a series."""
    topics = Topics.of(f"g{uuid.uuid4().hex[:8]}")
    kept, merged, cron, burst = (
        broker.create_topic(f"{topics.delay}.{name}") for name in ("all", "once", "cron", "burst")
    )
    service = Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=topics.settings())
    with service:
        service.start()
        all_missed = schedule(
            kept, delay="100ms", repeat=b"every 300ms", repeat_times=b"20", late_policy=b"fire-all"
        )
        one_missed = schedule(merged, delay="100ms", repeat=b"every 200ms")
        each_second = [
            ("chronos-target-topic", cron.encode()),
            ("chronos-repeat", b"cron * * * * * *"),
            ("chronos-time-zone", b"Europe/Lisbon"),
            ("chronos-repeat-times", b"2"),
        ]
        records = [
            Sent(b"all", all_missed),
            Sent(b"once", one_missed, key=b"once"),
            Sent(b"cron", each_second),
        ]
        produce(broker.bootstrap, topics.delay, records)
        places = produce(
            broker.bootstrap,
            topics.delay,
            [Sent(b"%d" % n, schedule(burst, delay="1s", spread=b"3s")) for n in range(60)],
        )
        with Tail(broker.bootstrap, kept, merged, cron, burst) as tail:
            tail.take(kept, 3)
            service.kill()
            time.sleep(2)  # the outage
            service.start()
            tail.take(kept, 20, timeout_s=60)
            before = len(tail.records[merged])
            tail.take(merged, before + 3)
            assert service.get("/v1/messages/once")["repetition"]["repeat"] == "every 200ms"
            assert service.ask("DELETE", "/v1/messages/once")[1]["result"] == "cancelled"
            tail.take(cron, 2)
            tail.take(burst, 60)
            ended = tail.settle().records
        found = ended[kept]
        assert [number(got) for got in found] == list(range(1, 21))
        first_ms = due_ms(found[0])
        assert [due_ms(got) - first_ms for got in found] == [300 * at for at in range(20)]
        assert len({got.source for got in found}) == 1

        found = ended[merged]
        assert [number(got) for got in found] == list(range(1, len(found) + 1))
        steps_ms = [due_ms(later) - due_ms(got) for got, later in pairwise(found)]
        assert all(step_ms > 0 and step_ms % 200 == 0 for step_ms in steps_ms), steps_ms
        assert max(steps_ms) >= 1_000, "the outage is not merged into one delivery"
        assert len(found) < 40
        assert service.get("/v1/messages/once")["state"] == "cancelled"

        assert [due_ms(got) % 1_000 for got in ended[cron]] == [0, 0]
        offsets = {b"%d" % n: place for n, place in enumerate(places)}
        for got in ended[burst]:
            shard, offset = offsets[got.value or b""]
            assert (
                got.timestamp_ms >= due_ms(got) + spread_shift_ms(shard, offset, 3_000) - EARLY_MS
            )
        assert len(ended[burst]) == 60
        for got in [*ended[kept], *ended[merged], *ended[cron]]:
            assert got.timestamp_ms >= due_ms(got) - EARLY_MS
