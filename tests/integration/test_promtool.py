"""The configuration of Prometheus and the metrics of a real node, checked by promtool.

The alerts are tested in tests/node/test_alerts.py and tests/integration/test_alerts.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.inside import Inside
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def promtool() -> str:
    """Its path, which `scripts/promtool/fetch` finds or fetches."""
    found = subprocess.run(
        [ROOT / "scripts" / "promtool" / "fetch"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.fail(f"no promtool for the rules of Prometheus:\n{found.stderr}", pytrace=False)
    return found.stdout.strip()


def checked(promtool: str, *arguments: str, text: str | None = None) -> str:
    """Run one of its checks, which must find nothing; return its output."""
    found = subprocess.run(
        [promtool, "check", *arguments],
        cwd=ROOT / "config" / "prometheus",
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_prometheus_accepts_its_configuration_and_the_rules(promtool: str) -> None:
    """Without the file of the token, which is a secret of the container."""
    assert "SUCCESS" in checked(promtool, "config", "--syntax-only", "prometheus.yaml")
    assert " rules found" in checked(promtool, "rules", "rules.yaml")


def test_prometheus_finds_no_fault_in_the_metrics_of_a_node(promtool: str, tmp_path: Path) -> None:
    """Names, units, help and types, after a delivery and a rejection."""
    with Inside(tmp_path) as service:

        def metrics() -> str:
            return service.ask("GET", "/metrics").body.decode()

        def counted(name: str) -> float:
            families = text_string_to_metric_families(metrics())
            return sum(each.value for one in families for each in one.samples if each.name == name)

        message = {"target": {"topic": "orders"}, "value": "v", "delay": 0}
        assert service.ask("POST", "/v1/messages", message).status == 202
        bad = {"chronos-target-topic": b"orders", "chronos-delay": b"soon"}
        service.node.log.append([("chronos.delay", b"bad", b"v", bad, -1)], 10.0)
        wait_until(lambda: counted("chronos_messages_delivered_total") == 1)
        wait_until(lambda: counted("chronos_messages_rejected_total") == 1)
        assert checked(promtool, "metrics", text=metrics()) == ""
