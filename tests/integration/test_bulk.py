"""Bulk operations on a real Kafka while deliveries go on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import KafkaFlow, Sent, now_ms

pytestmark = pytest.mark.kafka

FAR, NEAR = 5_000, 3_000


def run_job(service: Service, matching: dict[str, Any], messages: list[Sent]) -> dict[str, Any]:
    """Cancel the messages of the filter, which are these, and wait for the end of the job."""
    for message in messages:
        message.cancel_unsure = True
    job = service.post("/v1/jobs", {"action": "cancel", "filter": matching})
    path = f"/v1/jobs/{job['id']}"
    service.wait_until(lambda: service.get(path)["state"] != "running", "end the job", timeout_s=90)
    found: dict[str, Any] = service.get(path)
    assert (found["state"], found["failed"]) == ("done", 0)
    return found


def test_thousands_are_cancelled_while_others_are_delivered_on_time(
    broker: Broker, tmp_path: Path
) -> None:
    """Every matching message is cancelled or was too late, no other one is; a store rebuilt from
    the logs counts the same."""
    flow = KafkaFlow(broker, 1)
    with Service(
        tmp_path / "data", bootstrap=broker.bootstrap, settings=flow.settings()
    ) as service:
        service.start()
        far_ms = now_ms() + 3_600_000
        far = flow.write(FAR, far_ms, far_ms + 600_000, delays=0.0)
        near_ms = now_ms() + 1_000
        flow.write(NEAR, near_ms, near_ms + 9_000)
        flow.flush()
        job = run_job(service, {"due_from": far_ms}, far)
        assert (job["matched"], job["done"], job["too_late"]) == (FAR, FAR, 0)
        assert job["targets"] == [{"topic": flow.target, "messages": FAR}]
        for message in far:
            message.cancel_result = "cancelled"

        # Those that are due right now: each is either cancelled or delivered, and counted so.
        soon = flow.write(NEAR, now_ms(), now_ms() + 4_000, delays=0.0)
        flow.flush()
        job = run_job(service, {"target": flow.target}, flow.sent)
        assert job["matched"] == job["done"] + job["too_late"] > 0
        flow.wait_settled(service)
        assert flow.complaints() == []
        totals = [shard["totals"] for shard in service.shards()]
        assert sum(each["cancelled"] for each in totals) == FAR + job["done"]
        assert sum(each["delivered"] for each in totals) == len(flow.sent) - FAR - job["done"]
        assert len(soon) == NEAR

        assert service.stop() == 0
        for store in (tmp_path / "data").glob("shard*"):
            shutil.rmtree(store)
        service.start()
        assert [shard["totals"] for shard in service.shards()] == totals
