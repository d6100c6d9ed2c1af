"""The topic watch: a topic that one check finds changed is checked again before the node ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.errors import ConfigurationError
from chronos.ports import TopicSpec
from chronos.workers.watch.topics import CHECK_EVERY_MS, TopicWatch


def test_a_single_check_that_finds_a_topic_changed_is_not_an_error(tmp_path: Path) -> None:
    """A broker with old metadata soon catches up, or another broker answers."""
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
    assert now_ms == 5 * CHECK_EVERY_MS
    with pytest.raises(ConfigurationError, match="2 partitions where 3"):
        watch.step(now_ms)
    log.close()
