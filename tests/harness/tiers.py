"""What a test needs, and the tiers of tests that follow from it.

A mark names a resource. Fixtures give it by the type they return; a test that starts a server or a
process in its body has the mark by hand, and fails without it. `./scripts/test` runs the tiers."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import waiting

SERVERS = {
    "kafka": "a Kafka broker",
    "zookeeper": "a ZooKeeper server",
    "spark": "a Spark session",
    "browser": "a Chromium",
    "tools": "Helm or promtool",
}
"""Resources that need more than Python. A test of one of them is never skipped."""

RESOURCES = {
    **SERVERS,
    "process": "a process of Chronos",
    "slow": "more than 2 s of processor time, or 5 s of waiting",
}

GIVEN = {
    "Broker": "kafka",
    "Cluster": "kafka",
    "Ensemble": "zookeeper",
    "SparkSession": "spark",
    "Browser": "browser",
    "Service": "process",
}
"""Type of a fixture -> the resource it gives."""

_ANY = " or ".join(RESOURCES)

TIERS = {
    "fast": f"not ({_ANY} or campaign)",
    "smoke": f"smoke and ({_ANY})",
    "rest": f"({_ANY}) and not smoke and not campaign",
    "full": "not campaign",
}
"""Tier -> the marks of its tests. `rest`: what `fast` and `smoke` leave out."""

WAIT_S = 60.0
"""Bound of each wait in `fast` and `smoke`, in s."""

SLOW_S = 2.0
"""Processor time of a test that is slow, in s."""

_SLOW = "slow"
"""Property of a test that is, with its processor time in s."""


def needs(item: pytest.Item) -> set[str]:
    """The resources that the fixtures of a test give."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return set()
    given = set()
    for definitions in info.name2fixturedefs.values():
        fixture = definitions[-1].func
        type_ = inspect.formatannotation(fixture.__annotations__.get("return", ""))
        for name in GIVEN.keys() & set(re.findall(r"\w+", type_)):
            # A class of the test's own may have the same name.
            if getattr(fixture.__globals__.get(name), "__module__", "") != fixture.__module__:
                given.add(GIVEN[name])
    return given


def of(item: pytest.Item) -> set[str]:
    """The resources that a test is marked with."""
    return {mark.name for mark in item.iter_markers()} & RESOURCES.keys()


def chosen(config: pytest.Config) -> str:
    """The tier of this run; empty for a run of named tests."""
    return config.getoption("tier") or ""


def add_option(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--tier", choices=TIERS, help="run the tests of a tier: see scripts/test")


def begin(config: pytest.Config) -> None:
    """Select the tests of the tier, and watch each of them."""
    for name, need in RESOURCES.items():
        config.addinivalue_line("markers", f"{name}: needs {need}")
    tier = chosen(config)
    if tier:
        config.option.markexpr = TIERS[tier]
    if tier in ("fast", "smoke"):
        waiting.LONGEST_S = WAIT_S
    config.pluginmanager.register(Watch(), "what a test needs")


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Return whether the tier has no test of a module or a folder, so that its import, which may
    take a second, is saved: all its tests have a resource, or none is a smoke test."""
    tier = chosen(config)
    if tier not in ("fast", "smoke"):
        return False
    if path.is_dir():
        modules = list(path.rglob("test_*.py"))
        return bool(modules) and all(is_left_out(module, config) for module in modules)
    if not path.name.startswith("test_"):
        return False
    text = path.read_text()
    if tier == "smoke":
        # `cases` of tests/sim/conftest.py gives the mark too.
        return "mark.smoke" not in text and " cases\n" not in text
    marks = re.search(r"^pytestmark = (.*)$", text, re.MULTILINE)
    return marks is not None and any(
        f"mark.{name}" in marks[1] for name in (*RESOURCES, "campaign")
    )


class Watch:
    """Fails a test that needs what it is not marked with, and names slow tests."""

    def __init__(self) -> None:
        self._started = ""
        self._began_s = 0.0
        self._slow: dict[str, float] = {}
        """Test -> its processor time in s, of all workers."""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # The second event is that of tests/harness/command.py.
        command = {"subprocess.Popen": 1, "chronos.fork": 0}.get(event)
        if command is None or not isinstance(arguments[command], list | tuple):
            return
        words = [os.fsdecode(word) for word in arguments[command]]
        if event == "chronos.fork" or Path(words[0]).name == "java" or "chronos" in words[:4]:
            self._started = " ".join(words)[:200]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A process that was started without a mark fails the test; so does a test on a server that
        is skipped, because the server would go untested in silence."""
        report = yield
        marks = of(item)
        if self._started and report.passed and not marks - {"slow"}:
            report.outcome = "failed"
            report.longrepr = f"needs @pytest.mark.process, because it started {self._started}"
            self._started = ""
        if report.skipped and marks & SERVERS.keys() and not hasattr(report, "wasxfail"):
            report.outcome = "failed"
            report.longrepr = f"tests on servers must not be skipped: {report.longrepr}"
        if report.when != "teardown" or marks:
            return report
        used_s = time.process_time() - self._began_s
        # With the examples of a full run any generated test is slow.
        is_generated = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        is_exempt = is_generated and chosen(item.config) != "fast"
        if used_s > SLOW_S and not is_exempt:
            report.user_properties.append((_SLOW, used_s))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """What was started before is not of this test."""
        self._started, self._began_s = "", time.process_time()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what all workers found slow."""
        used_s = dict(report.user_properties).get(_SLOW)
        if isinstance(used_s, float):
            self._slow[report.nodeid] = used_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the slow tests that lack the mark."""
        for test, used_s in sorted(self._slow.items()):
            terminalreporter.write_line(f"{used_s:.1f} s, mark it slow: {test}")
