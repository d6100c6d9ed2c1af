"""Brokers that die, hang and restart, and a service that hangs: the service waits, reports the
reason, and continues by itself."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.topics import RENEW_S
from chronos.errors import LogUnavailable
from tests.harness import waiting
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, Sent, now_ms
from tests.integration.foreign import read_all

pytestmark = pytest.mark.kafka

TIMEOUT_S = 4
"""`delivery.transaction_timeout` of the quick tests."""

COMMIT_S = 3.0
"""A commit takes milliseconds, and on a loaded machine more than a second. Less than TIMEOUT_S,
after which it would be aborted."""

STILL_PENDING = 100
"""Pending messages of a shard when a fault begins: more than a step takes at the rates here."""

NOTICE_S = 30.0
"""A fault is noticed after the transaction timeout and the requests of a new start."""


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for one test that looks for expired transactions every second instead of every
    ten."""
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000}) as own:
        yield own


def serving(broker: Broker, flow: KafkaFlow, data_dir: Path, timeout_s: float) -> Service:
    """A node for the flow, not started yet."""
    settings = {**flow.settings(), "delivery.transaction_timeout": f"{timeout_s:g}s"}
    return Service(data_dir, bootstrap=broker.bootstrap, settings=settings)


def wait_paused(service: Service) -> list[str]:
    """Wait until every shard is paused with a reason; `/readyz` must report them too, each reason
    once with its shards."""

    def reasons() -> list[str]:
        return [shard["paused"] for shard in service.shards() if shard["paused"]]

    service.wait_until(lambda: len(reasons()) == SHARDS, "report why it waits", timeout_s=NOTICE_S)
    status, problem = service.ask("GET", "/readyz")
    assert status == 503, problem
    assert 1 <= len(problem["errors"]) <= SHARDS, problem
    return reasons()


def wait_delivered(service: Service, count: int) -> None:
    """Wait until `count` messages were delivered since the first start."""
    service.wait_until(lambda: service.delivered() >= count, f"deliver {count} messages")


def begin_delivering(
    flow: KafkaFlow, service: Service, count: int, *, before_ms: int, after_ms: int
) -> list[Sent]:
    """Write messages due from so many ms before now to so many after it; return them once every
    shard delivers: it has messages that are not due yet too, and needs the brokers for them. A
    shard without due messages makes no request, and does not notice a fault."""
    service.wait_until(lambda: service.pending() == 0, "deliver the messages of the last time")
    delivered = service.delivered()
    written = flow.write(count, now_ms() - before_ms, now_ms() + after_ms)
    flow.flush()
    service.wait_until(
        lambda: (
            service.delivered() > delivered
            and all(shard["pending"] >= STILL_PENDING for shard in service.shards())
        ),
        "deliver messages while others are pending in every shard",
    )
    return written


def test_a_record_that_was_given_up_is_not_written_later(own_broker: Broker) -> None:
    """Neither one that a frozen broker never read, nor one that was not sent before its
    deadline."""
    topic = own_broker.create_topic("t")
    log = KafkaLog(
        bootstrap_servers=own_broker.bootstrap,
        properties={},
        progress_topic=topic,
        transaction_timeout_s=1.0,
    )

    def append(key: bytes, timeout_s: float) -> None:
        log.append([(topic, key, b"v", {}, 0)], timeout_s)

    append(b"before", 30.0)
    own_broker.freeze()
    with pytest.raises(
        LogUnavailable, match="did not acknowledge within 1 s; it may have been written"
    ):
        append(b"frozen", 1.0)
    own_broker.kill()
    with pytest.raises(
        LogUnavailable, match="did not acknowledge within 1 s; it may have been written"
    ):
        append(b"down", 1.0)
    own_broker.start()
    append(b"after", 30.0)
    log.close()
    assert [got.key for got in read_all(own_broker.bootstrap, topic)] == [b"before", b"after"]


def test_a_ping_is_answered_by_a_broker_that_was_frozen_for_long(own_broker: Broker) -> None:
    """The client is replaced meanwhile, and the new one serves all other requests too."""
    topic = own_broker.create_topic("t")
    log = KafkaLog(
        bootstrap_servers=own_broker.bootstrap,
        properties={},
        progress_topic=topic,
        transaction_timeout_s=1.0,
    )
    assert log.ping(30.0)
    own_broker.freeze()
    until_s = time.monotonic() + 1.2 * RENEW_S
    while time.monotonic() < until_s:
        assert not log.ping(1.0)
    own_broker.thaw()
    wait_until(lambda: log.ping(1.0), "answer a ping")
    assert log.describe([topic])[topic] is not None
    log.close()


def check_outcome(flow: KafkaFlow, service: Service) -> None:
    """Assert that every message has its one outcome."""
    flow.wait_settled(service)
    service.wait_ready()
    assert flow.complaints() == []


@pytest.mark.campaign
def test_a_broker_killed_repeatedly_costs_only_time(own_broker: Broker, tmp_path: Path) -> None:
    """Three kills under load: each time the service reports why it waits, and continues by
    itself."""
    flow = KafkaFlow(own_broker, 1)
    with serving(own_broker, flow, tmp_path / "node", TIMEOUT_S) as service:
        service.start()
        process = service.pid
        for _ in range(3):
            written = begin_delivering(flow, service, 4_000, before_ms=500, after_ms=8_000)
            own_broker.kill()
            texts = wait_paused(service)
            assert not any("Traceback" in text for text in texts)
            own_broker.start()
            flow.cancel(written[::50])
            service.wait_ready()
        flow.flush()
        check_outcome(flow, service)
        assert service.pid == process


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, 10])
def test_a_service_waits_for_a_broker_frozen_beyond_the_transaction_timeout(
    own_broker: Broker, tmp_path: Path, timeout_s: int
) -> None:
    """A transaction in flight is aborted or committed, never both and never twice."""
    flow = KafkaFlow(own_broker, 2)
    with serving(own_broker, flow, tmp_path / "node", timeout_s) as service:
        service.start()
        for _ in range(2 if timeout_s == TIMEOUT_S else 1):
            begin_delivering(flow, service, 4_000, before_ms=500, after_ms=5_000)
            own_broker.freeze()
            wait_paused(service)
            own_broker.thaw()
            service.wait_ready()
        flow.flush()
        check_outcome(flow, service)


def test_a_service_frozen_beyond_the_transaction_timeout_recovers_by_itself(
    own_broker: Broker, tmp_path: Path
) -> None:
    """Frozen within a transaction, which the coordinator aborts: the producer is fenced, and the
    replica starts again."""
    flow = KafkaFlow(own_broker, 3)
    with serving(own_broker, flow, tmp_path / "node", TIMEOUT_S) as service:
        service.start()
        for _ in range(2):
            delivered = service.delivered()
            flow.write(30_000, now_ms() - 500, now_ms() + 4_000)
            flow.flush()
            wait_delivered(service, delivered + 500)
            masters = len(service.events("master"))
            freeze_in_a_transaction(own_broker, flow, service)
            wait_until(
                lambda: not own_broker.open_transactions(f"{flow.prefix}.progress"),
                "abort the open transaction",
            )
            service.thaw()
            wait_until(
                partial(masters_since, service, masters), "notice that it is fenced, and lead again"
            )
            service.wait_ready()
        check_outcome(flow, service)


def masters_since(service: Service, masters: int) -> bool:
    """Return whether a shard has become master again, after so many times."""
    return len(service.events("master")) > masters


def freeze_in_a_transaction(broker: Broker, flow: KafkaFlow, service: Service) -> None:
    """Freeze the process while it has a transaction open; messages are added for as long as that
    takes."""
    for _ in range(1_000):
        service.freeze()
        if stays_open(broker, flow):
            return
        service.thaw()
        if service.pending() == 0:
            flow.write(5_000, now_ms() - 500, now_ms() + 2_000)
            flow.flush()
    raise AssertionError("the service had no open transaction in any of 1,000 tries")


def stays_open(broker: Broker, flow: KafkaFlow) -> bool:
    """True if the open transaction has no commit under way: otherwise it ends by itself within
    `COMMIT_S`."""
    deadline = time.monotonic() + COMMIT_S
    while time.monotonic() < deadline:
        if not broker.open_transactions(f"{flow.prefix}.progress"):
            return False
    return True


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 80.0) -> None:
    """Poll until the condition is true."""
    waiting.wait_until(condition, lambda: f"the service did not {what} in time", timeout_s)


def test_a_stop_does_not_wait_for_a_dead_broker(own_broker: Broker, tmp_path: Path) -> None:
    """SIGTERM while the broker is down ends the process cleanly; the next start delivers the
    remaining messages."""
    flow = KafkaFlow(own_broker, 4)
    with serving(own_broker, flow, tmp_path / "node", TIMEOUT_S) as service:
        service.start()
        begin_delivering(flow, service, 2_000, before_ms=0, after_ms=6_000)
        own_broker.kill()
        wait_paused(service)
        begun_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - begun_s < 15.0
        own_broker.start()
        service.start()
        check_outcome(flow, service)
