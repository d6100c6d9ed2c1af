"""Fixtures for every test: a real broker, a real ZooKeeper, unique names; and how tests are spread
over workers.

Each pytest-xdist worker has a broker and a ZooKeeper server of its own, shared by all its tests: a
session is a worker's. Two workers therefore never meet in a topic, a port or a file, and while one
waits for a session to expire the other uses the processor."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadScopeScheduling

from tests.harness import profile, reruns, stale_seeds, tiers
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.harness.zookeeper import Ensemble
from tests.unit.settings import CHOSEN, FEW

# Each node, client and command would read the authorities of the system, which takes 50 ms of
# processor time, and no test needs them.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).parent / "harness" / "authorities.pem"))

# No deadlines: on two cores with a broker beside them, a slow example proves nothing.
_no_deadline = settings(
    max_examples=FEW if CHOSEN == "fast" else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
settings.register_profile("dev", _no_deadline)
# The same examples in every full run (scripts/test full), which judges the change; other runs
# find new examples. It shows the first example that fails as it is: shrinking may take five
# minutes, and a test that exceeds its time limit shows no reason. `TEST_EXAMPLES=whole
# HYPOTHESIS_PROFILE=shrink pytest --timeout 0 <test>` finds the same example and shrinks it.
settings.register_profile("shrink", _no_deadline, derandomize=True)
settings.register_profile(
    "ci",
    settings.get_profile("shrink"),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

Service.forked = True

SPARK_SECOND = {
    "test_archive_end.py",
    "test_audit.py",
    "test_audit_runs.py",
    "test_commits.py",
    "test_false_missing.py",
    "test_outages.py",
    "test_outcomes_cases.py",
    "test_outcomes_histories.py",
    "test_restore.py",
    "test_unreadable.py",
    "test_witness.py",
}
"""Half of the tests of Spark, by time: one worker makes a session for these, and another one for
the others."""

LONG_WITH_ALL_EXAMPLES = {"test_digest.py", "test_series.py", "test_shard_model.py"}
"""Tests of these take up to half a minute with the examples of a full run."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of which the tier runs no test: that would take it seconds."""
    return True if tiers.is_left_out(collection_path, config) else None


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives single tests to the workers, but all tests of a file that share a fixture or a value to
    one of them, which makes it once; and so each half of the tests of Spark.

    `--dist loadgroup` does not do it: xdist 3.8 writes the group into a node id that pytest 9.2
    does not read."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        folder, _, module = path.rpartition("/")
        if folder == "tests/spark":
            return "spark, second" if module in SPARK_SECOND else "spark"
        return path if _shares(path) else nodeid


@cache
def _shares(path: str) -> bool:
    """Return whether fixtures or values of the file are made once for all its tests."""
    text = (Path(__file__).parents[1] / path).read_text()
    return 'scope="module"' in text or "\n@cache\n" in text


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Replace the scheduler of xdist."""
    return _Scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with the resources that their fixtures give; put the tests that take longest
    first.

    A worker takes the next test, or half of the tests of Spark, when it has finished one. With the
    long ones first, the short ones fill up what is left at the end, and no worker idles while
    another one runs the longest test."""
    for item in items:
        if item.get_closest_marker("campaign") is not None:
            item.add_marker(pytest.mark.timeout(CAMPAIGN_S))
        for resource in tiers.needs(item):
            item.add_marker(resource)
    slow = {item.path for item in items if tiers.of(item) & {"slow", "process"}}
    items.sort(key=lambda item: _order(item, slow))


def _order(item: pytest.Item, slow: set[Path]) -> tuple[bool, ...]:
    """Spark, then slow tests and those of processes, then the others that need a server, then those
    with many examples, then the rest; each in the order of its file.

    Tests that share a fixture stay together, and one of them that is slow, by the files in `slow`,
    comes with all others."""
    path = item.nodeid.partition("::")[0]
    needs = tiers.of(item)
    return (
        item.path.parent.name != "spark",
        not needs & {"slow", "process"} and not (item.path in slow and _shares(path)),
        not needs,
        path.rpartition("/")[2] not in LONG_WITH_ALL_EXAMPLES,
    )


_stderr = pytest.StashKey[int]()
"""Where the stacks of a test that hangs are written: while a test runs, pytest captures the other
one."""

CAMPAIGN_S = 3_600.0
"""Time limit of a campaign in s. The other tests have that of pyproject.toml, and those of
`./scripts/test fast` that of the script: a limit ends a test that hangs, and judges no speed."""

WATCHDOG_S = 120.0
"""Time in s that a test and its fixtures have beyond the time limit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`./scripts/test` has the same options."""
    profile.add_option(parser)
    reruns.add_option(parser)
    tiers.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is captured yet."""
    config.stash[_stderr] = os.dup(2)
    tiers.begin(config)
    stale_seeds.begin(config)
    profile.begin(config)
    reruns.begin(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and leave what is made then out of all later collections: it
    stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process with all stacks if the time limit does not end a test: that is a signal,
    which a call of a library in C that never returns does not see. The run ends then, and names the
    test."""
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    if item.config.getoption("timeout") is None:
        faulthandler.dump_traceback_later(
            limit_s + WATCHDOG_S, exit=True, file=item.config.stash[_stderr]
        )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker that all tests of a worker share: use unique names in it, and leave it running."""
    # Kafka's own session: a broker that gets no processor for some seconds must not be fenced.
    with Broker({"broker.session.timeout.ms": 9_000}) as shared:
        yield shared


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for one test, to kill and to freeze; it takes about 3 s."""
    with Broker() as own:
        yield own


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[Ensemble]:
    """The ZooKeeper server that all tests of a worker share: use a unique cluster name, and leave
    it running."""
    with Ensemble() as shared:
        yield shared


@pytest.fixture
def own_zookeeper() -> Iterator[Ensemble]:
    """A ZooKeeper server for one test, to kill and to freeze; it takes about 1 s."""
    with Ensemble() as own:
        yield own


@pytest.fixture
def topic_names(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Make unique names for topics, groups and transactions: `topic_names("orders")`."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:60].strip("-")

    def name(stem: str = "topic") -> str:
        return f"{stem}.{test}.{uuid.uuid4().hex[:8]}"

    return name
