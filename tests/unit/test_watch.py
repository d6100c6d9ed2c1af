"""The watch worker: what one look finds amiss is looked at again before the node ends for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.errors import ConfigurationError
from chronos.ports import TopicSpec
from chronos.workers.watch import LOOK_EVERY_MS, TopicWatch


def test_one_look_that_finds_a_topic_otherwise_ends_nobody(tmp_path: Path) -> None:
    """A broker that knows less than the others is soon asked no more, or knows as much."""
    log = EmbeddedLog(tmp_path / "log", clock=SystemClock(), disk_reserve_bytes=0)
    right, wrong, missing = (
        TopicSpec(name=name, partitions=partitions, settings={}, per_shard=True)
        for name, partitions in (("delay", 2), ("delay", 3), ("gone", 2))
    )
    infos = log.prepare([right], create=True)
    topics = [right]
    watch = TopicWatch(log, topics, infos | {"gone": infos["delay"]})
    now_ms = 0
    for topics[0] in (wrong, right, missing, right, wrong):
        now_ms = watch.step(now_ms)
    assert now_ms == 5 * LOOK_EVERY_MS
    with pytest.raises(ConfigurationError, match="2 partitions where 3"):
        watch.step(now_ms)
    log.close()
