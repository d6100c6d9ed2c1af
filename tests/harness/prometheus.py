"""Prometheus for tests: scrapes `/metrics`, and evaluates the alerts of `config/prometheus`.

Each scrape counts as one scrape interval after the one before, however soon it comes: the last one
is at its own time, and those before it lie back from there. `time()` is therefore right at each
evaluation, and twenty scrapes are the five minutes of a rule, or of its `for`. What a gauge says in
seconds is real time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import parse, parse_duration

from tests.harness.promql import (
    LOOK_BACK_S,
    NAME,
    Labels,
    Samples,
    Vector,
    evaluate,
    labels_of,
)

CONFIG = Path(__file__).parents[2] / "config/prometheus"

Scrape = Callable[[], str]
"""Returns the text of `/metrics`; raises OSError if nothing answers."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert of the rules."""

    name: str
    expression: Any
    for_s: float
    """How long the expression must hold."""
    summary: str


def _groups() -> list[dict[str, Any]]:
    return list(yaml.safe_load((CONFIG / "rules.yaml").read_text())["groups"])


def _seconds(duration: str) -> float:
    return float(parse_duration(duration).total_seconds())


ALERTS = [
    Alert(
        name=rule["alert"],
        expression=parse(rule["expr"]),
        for_s=_seconds(rule["for"]) if "for" in rule else 0.0,
        summary=rule["annotations"]["summary"],
    )
    for group in _groups()
    for rule in group["rules"]
    if "alert" in rule
]

RECORDED = {
    rule["record"]: parse(rule["expr"])
    for group in _groups()
    for rule in group["rules"]
    if "record" in rule
}

READ = frozenset(re.findall(r"\b(?:chronos_\w+|up)\b", (CONFIG / "rules.yaml").read_text()))
"""Names of the series that a rule reads, and some more words."""

_CONFIG = yaml.safe_load((CONFIG / "prometheus.yaml").read_text())
INTERVAL_S = _seconds(_CONFIG["global"]["scrape_interval"])
JOB = str(_CONFIG["scrape_configs"][0]["job_name"])
KEPT = int(LOOK_BACK_S / INTERVAL_S) + 2
"""Scrapes that an expression can reach."""


@dataclass(kw_only=True)
class Prometheus:
    """One server and its targets."""

    targets: Mapping[str, Scrape]
    """By the label `instance`."""
    ever: set[str] = field(default_factory=set)
    """Names of all alerts that have fired since `forget`."""
    fired: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """The alerts that fire by the last evaluation, with the labels of each."""
    _scrapes: list[dict[Labels, float]] = field(default_factory=list)
    _began: dict[tuple[str, Labels], int] = field(default_factory=dict)
    """Number of the scrape since which the expression of an alert has held, by its labels."""

    def scrape(self, times: int = 1) -> set[str]:
        """Scrape all targets and evaluate all alerts, so many times; return those that fire."""
        for _ in range(times):
            self._scrape()
        return set(self.fired)

    def scrape_for(self, minutes: float) -> set[str]:
        """Scrape so often that every condition has held for so many minutes."""
        return self.scrape(math.ceil(minutes * 60 / INTERVAL_S) + 1)

    def forget(self) -> None:
        """Begin anew, as after hours without an alert."""
        self.ever, self.fired, self._scrapes, self._began = set(), {}, [], {}

    def recorded(self, name: str) -> Vector:
        """The result of a recording rule, at the last scrape."""
        found = evaluate(RECORDED[name], *self._history(time.time()))
        assert isinstance(found, dict)
        return found

    def _scrape(self) -> None:
        found: dict[Labels, float] = {}
        for instance, ask in self.targets.items():
            own = {"job": JOB, "instance": instance}
            try:
                text = ask()
            except OSError:
                found[labels_of("up", own)] = 0.0
                continue
            found[labels_of("up", own)] = 1.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name in READ:
                        found[labels_of(sample.name, {**sample.labels, **own})] = sample.value
        now_s = time.time()
        self._scrapes.append(found)
        self._evaluate(now_s)

    def _history(self, now_s: float) -> tuple[Samples, float]:
        """The scrapes that an expression can reach, the last one now."""
        samples = Samples()
        scrapes = self._scrapes[-KEPT:]
        before: set[Labels] = set()
        for back, scrape in zip(reversed(range(len(scrapes))), scrapes, strict=True):
            at_s = now_s - back * INTERVAL_S
            for labels in before - scrape.keys():
                samples.add(labels, at_s, None)
            for labels, value in scrape.items():
                samples.add(labels, at_s, value)
            before = set(scrape)
        return samples, now_s

    def _evaluate(self, now_s: float) -> None:
        history, number = self._history(now_s), len(self._scrapes)
        began: dict[tuple[str, Labels], int] = {}
        self.fired = {}
        for alert in ALERTS:
            holding = evaluate(alert.expression, *history)
            assert isinstance(holding, dict), f"{alert.name} is a number"
            for labels in holding:
                key = alert.name, frozenset(each for each in labels if each[0] != NAME)
                assert key not in began, f"{alert.name} holds twice for {sorted(key[1])}"
                began[key] = self._began.get(key, number)
                if (number - began[key]) * INTERVAL_S >= alert.for_s:
                    self._fire(alert, dict(key[1]))
        self._began = began

    def _fire(self, alert: Alert, labels: dict[str, str]) -> None:
        named = set(re.findall(r"\$labels\.(\w+)", alert.summary))
        assert named <= labels.keys(), f"{alert.name} has no {named - labels.keys()}"
        self.fired.setdefault(alert.name, []).append(labels)
        self.ever.add(alert.name)
