"""The rules of Prometheus and the dashboards of Grafana in `config`: expressions that are valid, of
metrics that exist, in the way that their kind asks for, and alerts with a runbook."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from chronos.admin.cluster.metrics import reference

ROOT = Path(__file__).parents[1]
RULES = yaml.safe_load((ROOT / "config/prometheus/rules.yaml").read_text())["groups"]
ALERTS = [rule for group in RULES for rule in group["rules"] if "alert" in rule]
RECORDED = {
    rule["record"]: rule["expr"] for group in RULES for rule in group["rules"] if "record" in rule
}
DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "config/grafana/dashboards").glob("*.json"))
}

FOREIGN = {
    "up": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_open_fds": "gauge",
}
"""Metrics of Prometheus itself and of its Python client."""

OF_COUNTERS = {"rate", "increase"}


@cache
def kinds() -> dict[str, str]:
    """The kind of each metric that an expression may name."""
    listed = re.findall(r"^\| `(chronos_\w+)` \|(?: `\w+` \|)? (\w+) \|", reference(), re.MULTILINE)
    found = dict(listed) | FOREIGN | dict.fromkeys(RECORDED, "gauge")
    for name, kind in listed:
        if kind == "histogram":
            found |= dict.fromkeys((f"{name}_bucket", f"{name}_sum", f"{name}_count"), "counter")
    return found


def expressions() -> list[tuple[str, str]]:
    """Each expression, with the place where it is."""
    found = [(f"record {name}", expression) for name, expression in RECORDED.items()]
    found += [(f"alert {alert['alert']}", alert["expr"]) for alert in ALERTS]
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            found += [(f"{name}: {panel['title']}", each["expr"]) for each in panel["targets"]]
    return found


def parsed(expression: str) -> Any:
    """The expression as a tree, with a value for Grafana's interval."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m"))


def selected(node: Any, function: str = "") -> Iterator[tuple[str, str]]:
    """The metrics that an expression reads, with the function that is applied to a range of each;
    empty: none is."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name or "", function
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selected(node.vector_selector, function)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selected(argument, node.func.name)
    else:
        for part in ("lhs", "rhs", "expr"):
            if (child := getattr(node, part, None)) is not None:
                yield from selected(child)


@pytest.mark.parametrize(("place", "expression"), expressions())
def test_an_expression_reads_metrics_that_exist_in_the_way_of_their_kind(
    place: str, expression: str
) -> None:
    """A counter by its rate or increase; a gauge never."""
    known = kinds()
    read = list(selected(parsed(expression)))
    assert read
    for name, function in read:
        assert name in known, f"{place}: there is no {name}"
        if known[name] == "counter" and name != "chronos_clients_abandoned_total":
            assert function in OF_COUNTERS, f"{place}: {name} is a counter"
        else:
            assert function not in OF_COUNTERS, f"{place}: {name} is a gauge"


def test_what_every_replica_reports_is_not_added_up_over_nodes() -> None:
    """Totals and pending messages belong to a shard: a sum over nodes counts each as often as it
    has replicas."""
    shared = r"chronos_(messages_\w+_total|pending_messages|parked_messages|held_records)"
    for place, expression in expressions():
        assert not re.search(rf"sum(?: by \(\w+\))? ?\((?:rate\()?{shared}", expression), place


def test_the_expressions_that_the_documentation_names_are_valid() -> None:
    known = kinds()
    text = (ROOT / "docs/how-to/monitor.md").read_text()
    spans = re.findall(r"`([^`\n]+)`", text)
    queries = [span for span in spans if "(" in span and "chronos_" in span]
    assert queries
    for query in queries:
        assert {name for name, _ in selected(parsed(query))} <= known.keys(), query


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_runbook_that_names_it(alert: dict[str, Any]) -> None:
    name, notes = alert["alert"], alert["annotations"]
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert f"`{name}`" in (ROOT / notes["runbook"]).read_text()
    page = Path(notes["runbook"]).relative_to("docs")
    row = next(
        line
        for line in (ROOT / "docs/how-to/monitor.md").read_text().splitlines()
        if line.startswith(f"| `{name}` | {alert['labels']['severity']} |")
    )
    assert f"](../{page})" in row
    used = set(re.findall(r"\$labels\.(\w+)", notes["summary"]))
    if grouped := re.findall(r"by \((\w+)\)", alert["expr"]):
        assert used <= set(grouped), "the expression keeps no such label"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_test_causes_the_trouble_of_an_alert(alert: dict[str, Any]) -> None:
    """Those tests fail on an alert that they do not name."""
    places = (
        "tests/node/test_alerts.py",
        "tests/integration/test_alerts.py",
        "tests/integration/test_targets.py",
    )
    assert any(f'"{alert["alert"]}"' in (ROOT / place).read_text() for place in places)


def test_the_documentation_lists_no_other_alert() -> None:
    text = (ROOT / "docs/how-to/monitor.md").read_text()
    assert re.findall(r"^\| `(Chronos\w+)` \|", text, re.MULTILINE) == [
        alert["alert"] for alert in ALERTS
    ]


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_the_panels_of_a_dashboard_are_apart_and_tell_their_unit(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${source}"


def test_prometheus_and_grafana_find_what_is_here() -> None:
    """The nodes of docker-compose.yml, the rules, the dashboards and the source of data."""
    config = yaml.safe_load((ROOT / "config/prometheus/prometheus.yaml").read_text())
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert config["rule_files"] == ["rules.yaml"]
    (job,) = config["scrape_configs"]
    targets = job["static_configs"][0]["targets"]
    assert targets == [f"{name}:7700" for name in services if name.startswith("chronos-")]
    (secret,) = services["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    provisioned = ROOT / "config/grafana/provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioned / "dashboards/chronos.yaml").read_text())["providers"]
    assert any(
        volume.split(":")[1] == provider["options"]["path"]
        for volume in services["grafana"]["volumes"]
    )
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) == 4
