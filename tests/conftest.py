"""What every test can ask for: a real broker, names nobody else uses, and Hypothesis without a stopwatch."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.broker import Broker

# Deadlines are off: a machine with two cores and a broker on it is slow at times, and that proves nothing.
_unhurried = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("dev", **_unhurried)
# The same examples every time: a change is judged by what it changed. New ones are found where people work.
settings.register_profile("ci", derandomize=True, **_unhurried)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

BROKER_FIXTURES = {"broker", "own_broker"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for a broker is an integration test, so that `scripts/test fast` can never need Java."""
    for item in items:
        if BROKER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker that all tests share: use names of your own in it, and leave it running."""
    with Broker() as shared:
        yield shared


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for this test alone, to kill and to freeze; it takes about 3 s."""
    with Broker() as own:
        yield own


@pytest.fixture
def topic_names(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes names for topics, groups and transactions that no other test uses: `topic_names("orders")`."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:60].strip("-")

    def name(stem: str = "topic") -> str:
        return f"{stem}.{test}.{uuid.uuid4().hex[:8]}"

    return name
