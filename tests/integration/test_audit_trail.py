"""The audit trail in a topic on a real broker, read from its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Topics

IDS = 7


def test_the_trail_in_a_topic_is_read_newest_first_page_by_page(
    broker: Broker, tmp_path: Path
) -> None:
    """Also by a node that has just started."""
    topics = Topics.of(f"trail{time.time_ns() % 10**9}")
    settings = {
        **topics.settings(shards=1),
        "audit.to": "topic",
        "audit.topic": f"{topics.delay}.audit",
        "audit.required": "on",
    }
    with Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        for number in range(IDS):
            body = {"id": f"id-{number}", "target": {"topic": "t"}, "value": "v", "delay": "1h"}
            service.post("/v1/messages", body)
        service.stop()
        service.start()
        service.wait_until(lambda: len(pages(service, limit=100)) == IDS, "write the outcomes")
        newest_first = [[f"id-{number}"] for number in reversed(range(IDS))]
        assert [entry["ids"] for entry in pages(service, limit=3)] == newest_first


def pages(service: Service, *, limit: int) -> list[dict[str, Any]]:
    """The outcomes of all pages."""
    found: list[dict[str, Any]] = []
    after: dict[str, object] = {}
    while True:
        page = service.get("/v1/audit", phase="outcome", limit=limit, **after)
        found += page["entries"]
        if page["after"] is None:
            return found
        after = {"after": page["after"]}
