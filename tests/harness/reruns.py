"""A second run of tests that were not in time, on a machine that may have been busy.

    pytest --not-in-time FILE     writes the tests to run once more into FILE, one a line

A failure counts as one of time if a wait ended by its deadline (tests/harness/waiting.py) or
pytest's time limit ended the test, and the test needs a server or a process: others compute only.
If any failure is another one, nothing is written: a lost message or a wrong digest is never run
again."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.harness import tiers
from tests.harness.waiting import NotInTime

AT_MOST = 5
"""Tests that are run once more. With more of them the machine or the change is at fault."""

_PROPERTY = "not in time"


class Reruns:
    """Writes the tests to run once more, and shows each failure at once, because a run takes long;
    in a worker it only says why a test failed."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        self._config = config
        self._tests: dict[str, bool] = {}
        """Failed test -> whether it was only not in time."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say whether a failure is one of time."""
        report = yield
        if call.excinfo is not None and report.failed:
            is_late = is_not_in_time(call.excinfo) and bool(tiers.of(item) - {"slow"})
            report.user_properties.append((_PROPERTY, is_late))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the reports of all workers."""
        if report.failed:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"\nfailed: {report.nodeid} ({report.when})")
            is_late = dict(report.user_properties).get(_PROPERTY) is True
            self._tests[report.nodeid] = self._tests.get(report.nodeid, True) and is_late

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the tests, if these are the only ones that failed."""
        if hasattr(session.config, "workeroutput") or exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        if 0 < len(self._tests) <= AT_MOST and all(self._tests.values()):
            self._path.write_text("".join(f"{test}\n" for test in self._tests))


def is_not_in_time(failure: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether a failure is one of time."""
    if isinstance(failure.value, NotInTime):
        return True
    # pytest-timeout fails the test with this text.
    is_failed = isinstance(failure.value, pytest.fail.Exception)
    return is_failed and str(failure.value).startswith("Timeout (")


def add_option(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--not-in-time", type=Path, help="write the tests to run once more here")


def begin(config: pytest.Config) -> None:
    """Collect them, if that is asked for."""
    path = config.getoption("--not-in-time")
    if path is not None:
        config.pluginmanager.register(Reruns(path.absolute(), config), "reruns")
