"""Reading through the service what is in Kafka: records of targets, rejected records, and what
became of an id."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.broker import Broker
from tests.harness.command import run
from tests.harness.service import Service
from tests.integration.foreign import Sent, Topics, produce, schedule

pytestmark = pytest.mark.kafka


def test_records_of_targets_and_rejected_ones_are_read_through_the_service(
    broker: Broker, tmp_path: Path
) -> None:
    topics = Topics.of(f"reading{time.time_ns() % 10**9}")
    target, closed = f"{topics.delay}.target", f"{topics.delay}.closed"
    settings = {**topics.settings(shards=2), "targets.deny": closed}
    broker.create_topic(target, partitions=2)
    broker.create_topic(closed, partitions=1)
    with Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        sent = [
            Sent(b"pay-%d" % at, schedule(target, target_key=b"k%d" % at), b"id-%d" % at)
            for at in range(4)
        ]
        never = [("chronos-target-topic", target.encode()), ("chronos-delay", b"never")]
        sent += [Sent(b"x", never, b"bad"), Sent(b"y", never, None, 1)]
        produce(broker.bootstrap, topics.delay, sent)

        done = run("tail", target, "--from", "beginning", "-n", 4, "-o", "json", server=service.url)
        assert done.code == 0, done.err
        assert sorted(line.split('"value": "')[1][:5] for line in done.out.splitlines()) == [
            f"pay-{at}" for at in range(4)
        ]
        done = run(
            "tail", topics.rejected, "--from", "beginning", "-n", 2, "--headers", server=service.url
        )
        assert done.out.count("chronos-reason=bad-value") == 2

        ends = {
            each["partition"]: each["end"]
            for each in service.get("/v1/topics", topic=target)["topics"][0]["partitions"]
        }
        begun_s = time.monotonic()
        page = service.get(f"/v1/topics/{target}/records", partition=1, offset=ends[1], wait="1s")
        assert (page["records"], page["next_offset"]) == ([], ends[1])
        assert time.monotonic() - begun_s >= 0.9, "it waits for a record"
        assert {each["topic"] for each in service.get("/v1/topics")["topics"]} >= {
            topics.delay,
            topics.rejected,
        }
        for topic, status in ((closed, 403), ("__consumer_offsets", 403), (f"{target}.none", 404)):
            assert service.ask("GET", f"/v1/topics/{topic}/records")[0] == status, topic

        (keyless,) = [one for one in service.get("/v1/rejected")["rejected"] if not one["id"]]
        shard, offset = keyless["source"].split("/")[1:]
        for message_id in ("bad", f"{shard}-1700000000000-{offset}"):
            status, problem = service.ask("GET", f"/v1/messages/{message_id}")
            assert (status, [one["reason"] for one in problem["errors"]]) == (404, ["bad-value"]), (
                message_id
            )
        done = run("rejected", "count", server=service.url)
        assert done.out.split()[-3:] == ["bad-value", target, "2"]
        delivered = service.get("/v1/messages", state="delivered", key="k2")["messages"]
        assert [one["id"] for one in delivered] == ["id-2"]
