"""The flush of a node: it trims the embedded log, which is the only other copy of the pending
messages."""

from __future__ import annotations

import time
from pathlib import Path

from chronos.config import load
from chronos.node import Node
from tests.harness.waiting import check_deadline


def test_the_log_is_not_trimmed_when_the_store_is_replaced_during_the_flush(tmp_path: Path) -> None:
    """As after a full disk: records that the store had not flushed are replayed from the log."""
    node = Node(
        load(
            None, {}, [f"node.data_dir={tmp_path / 'node'}", "shards=1", "limits.disk_reserve=1MB"]
        )
    )
    node.start()
    try:
        shards, topic = node._built.shards, node.config.topics.delay
        (store,), (shard,) = shards.stores.values(), node.shards
        store.checkpoint(tmp_path / "earlier")
        headers = {"chronos-target-topic": b"t", "chronos-delay": b"1h"}
        node.log.append([(topic, None, b"v", headers, 0)] * 10, 9.0)
        deadline = time.monotonic() + 9.0
        while shard.state.pull_offset < 10:
            check_deadline(deadline)
            time.sleep(0.01)
        shard.stop()
        shard.join(9.0)
        flush = store.flush

        def flush_late() -> None:
            store.replace(tmp_path / "earlier")
            flush()

        store.flush = flush_late  # type: ignore[method-assign]
        shards.flush(node.log)
        assert node.log.watermarks(topic, 0).start == 0
        store.flush = flush  # type: ignore[method-assign]
        shards.flush(node.log)
        assert node.log.watermarks(topic, 0).start == 0
    finally:
        node.stop()
