"""`chronos doctor` with Kafka: before the first start, while the service runs, and after it was
stopped."""

from __future__ import annotations

from pathlib import Path

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Topics, alter_topic, examine


def test_the_doctor_asks_the_brokers_before_the_first_start_and_at_any_time(
    broker: Broker, tmp_path: Path
) -> None:
    topics = Topics.of("doctor")
    with Service(
        tmp_path / "data", bootstrap=broker.bootstrap, settings=topics.settings()
    ) as service:
        # Before the first start: nothing is there, and nothing is created.
        code, found = examine(service)
        assert (code, found["problem"]) == (0, [])
        assert any("can be reached" in text and broker.bootstrap in text for text in found["ok"])
        assert any(
            f"missing: {topics.delay}, " in text and "at its first start" in text
            for text in found["note"]
        )
        assert any("the brokers' clocks are not known" in text for text in found["note"])
        assert not service.data_dir.exists()
        assert topics.delay not in broker.admin().list_topics(timeout=10).topics
        code, found = examine(service, topics__create="off")
        assert (code, len(found["problem"])) == (2, 1)
        assert "topics.create is off" in found["problem"][0]
        code, found = examine(service, topics__replication_factor=3)
        assert (code, len(found["problem"])) == (3, 1), found  # as many brokers may be starting
        assert f"creating the topic {topics.delay}: " in found["problem"][0]
        assert "INVALID_REPLICATION_FACTOR" in found["problem"][0]

        # While it runs: topics, targets and clocks.
        service.start()
        service.post(
            "/v1/messages",
            {"target": {"topic": f"{topics.delay}.nowhere"}, "value": "v", "delay": "1h"},
        )
        service.wait_until(lambda: service.pending() == 1, "take the message in")
        code, found = examine(service)
        assert (code, found["problem"]) == (0, [])
        assert any("node" in text and "is ready" in text for text in found["ok"])
        assert any(
            text.startswith(f"topics: {topics.delay}, {topics.progress}") for text in found["ok"]
        )
        assert any(text.startswith("clock: within") for text in found["ok"])
        assert any("one replica only" in text and topics.progress in text for text in found["note"])
        assert any(f"targets: missing: {topics.delay}.nowhere" in text for text in found["note"])
        assert service.pending() == 1

        # Stopped: the same from the stores.
        service.stop()
        code, found = examine(service)
        assert (code, found["problem"]) == (0, [])
        assert any("all checksums match" in text for text in found["ok"])
        assert any(text.startswith("clock: within") for text in found["ok"])
        assert any(f"targets: missing: {topics.delay}.nowhere" in text for text in found["note"])


def test_a_setting_of_the_cluster_topic_is_named_by_the_log_readyz_and_the_doctor(
    broker: Broker, tmp_path: Path
) -> None:
    topics = Topics.of("advised")
    cluster = f"{topics.delay}.cluster"
    broker.create_topic(
        cluster, partitions=2, config={"retention.ms": "60000", "cleanup.policy": "delete"}
    )
    advised = (
        f"{cluster} has retention.ms=60000, -1 is advised: kafka-configs --alter --topic "
        f"{cluster} --add-config retention.ms=-1"
    )
    settings = topics.settings(coordinator__kind="kafka", topics__cluster=cluster, node__id="a")

    def details(service: Service) -> list[str]:
        return service.get("/readyz").get("details", [])

    with Service(tmp_path / "data", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        service.wait_until(lambda: advised in details(service), "name the setting")
        code, found = examine(service)
        assert (code, found["problem"]) == (0, [])
        assert f"kafka: {advised}" in found["note"]
        alter_topic(broker, cluster, retention_ms="-1", cleanup_policy="compact")
        wrong = f"{cluster} has cleanup.policy=compact, Chronos needs delete: "
        service.wait_until(
            lambda: any(text.startswith(wrong) for text in details(service)), "name the new setting"
        )
        assert advised not in details(service)
        lines = [str(line["why"]) for line in service.events() if line["event"] == "topic setting"]
        assert lines.count(advised) == 1
        assert sum(text.startswith(wrong) for text in lines) == 1
        assert service.is_ready()
        code, found = examine(service)
        assert code > 0
        assert any(wrong in text for text in found["problem"])
