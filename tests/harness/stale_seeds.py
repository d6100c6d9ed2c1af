"""Ends a run early in which many kept seeds of planted faults are stale: looking for each of them
anew takes minutes, and `./scripts/sim faults` finds all at once (tests/sim/first_seeds.py)."""

from __future__ import annotations

import pytest

PROPERTY = "stale seed"
"""Property of a test (`record_property`) whose kept seed does not show its fault any longer."""

AT_MOST = 10


class StaleSeeds:
    """Counts the stale seeds of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count = 0
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, to end it."""
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a seed; end the run after the last one that is looked for."""
        if report.when != "call" or PROPERTY not in dict(report.user_properties):
            return
        self._count += 1
        if self._count > AT_MOST:
            # With xdist the scheduler ends the run.
            running = self._config.pluginmanager.getplugin("dsession") or self._session
            assert running is not None
            running.shouldstop = (
                f"more than {AT_MOST} kept seeds of planted faults are stale; find all of them: "
                "./scripts/sim faults --jobs 2"
            )


def begin(config: pytest.Config) -> None:
    """Count in the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(StaleSeeds(config), "stale seeds")
