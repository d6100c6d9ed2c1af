"""A clock that is wrong, from the start or stepped: no message is early, and the service reports
why it waits."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.node import Node
from tests.harness.broker import Broker
from tests.harness.clock import ShiftedClock
from tests.harness.waiting import is_in_time, wait_until
from tests.integration.flow import Found, KafkaFlow, now_ms, read_committed
from tests.integration.nodes import kafka, running

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
WRONG_MS = [MINUTE_MS, -MINUTE_MS, HOUR_MS, -HOUR_MS]
TOLERANCE_MS = 500
COUNT = 200

SHOWN_S = 30.0
"""Time in s that the records of a committed transaction have to be shown."""


def paused(node: Node) -> list[str | None]:
    """The pause reason of every shard, or None."""
    return [shard.paused for shard in node.shards]


def all_paused_for(node: Node, reason: str) -> bool:
    """Whether the pause of every shard names `reason`."""
    return all(reason in (text or "") for text in paused(node))


def pending(node: Node) -> int:
    """Messages pending in all shards."""
    return sum(shard.state.pending for shard in node.shards)


def cursor_ms(node: Node) -> int:
    """The furthest cursor."""
    return max(shard.state.cursor_due_ms for shard in node.shards)


def early(found: list[Found]) -> list[Found]:
    """Records delivered more than the tolerance before their due time, by the broker's clock."""
    return [
        each
        for each in found
        if each.timestamp_ms < int(each.headers["chronos-due-at"]) - TOLERANCE_MS
    ]


# -------------------------------------------------------------------------------------------- Kafka


def check_outcome(flow: KafkaFlow, node: Node) -> None:
    """Assert that every message is delivered once, and none early."""
    settled = lambda: sum(shard.state.totals.delivered for shard in node.shards)  # noqa: E731
    wait_until(
        lambda: node.ready and settled() >= len(flow.sent), lambda: (paused(node), pending(node))
    )
    # Kafka shows the records of a transaction a moment after it has answered that it is committed.
    is_in_time(
        lambda: len(flow.delivered()) >= len(flow.sent), deadline_s=time.monotonic() + SHOWN_S
    )
    found = flow.delivered()
    assert sorted(each.number for each in found) == [message.number for message in flow.sent]
    assert early(found) == []
    assert flow.dead_letters() == []
    assert node.failure is None


@pytest.mark.parametrize("wrong_ms", WRONG_MS)
def test_a_node_with_a_wrong_clock_waits_until_it_is_right(
    broker: Broker, tmp_path: Path, wrong_ms: int
) -> None:
    """No shard commits a progress record before the clock agrees with the broker's; then all shards
    continue."""
    flow = KafkaFlow(broker, 1)
    clock = ShiftedClock(wrong_ms)
    flow.write(COUNT, now_ms() - 1_000, now_ms() + 1_500, delays=0)
    flow.flush()
    with running(tmp_path / "node", clock, kafka(broker, flow)) as node:
        wait_until(lambda: all(paused(node)), lambda: paused(node))
        wait_until(
            lambda: now_ms() > max(message.due_ms or 0 for message in flow.sent), lambda: "never"
        )
        for text in paused(node):
            assert text is not None
            assert "the broker's clock is" in text
            difference_ms = int(re.findall(r"-?\d+", text)[0])
            assert abs(difference_ms + wrong_ms) < 1_000
            assert "NTP" in text
        assert not node.ready
        assert cursor_ms(node) <= now_ms()
        assert list(read_committed(broker.bootstrap, flow.target)) == []
        clock.shift(-wrong_ms)
        check_outcome(flow, node)


@pytest.mark.parametrize("wrong_ms", WRONG_MS)
def test_a_clock_that_is_stepped_while_running_pauses_until_it_is_back(
    broker: Broker, tmp_path: Path, wrong_ms: int
) -> None:
    """Messages due by the wrong clock stay pending; messages that became due meanwhile are
    delivered at once."""
    flow = KafkaFlow(broker, 2)
    clock = ShiftedClock()
    with running(tmp_path / "node", clock, kafka(broker, flow)) as node:
        wait_until(lambda: node.ready, lambda: paused(node))
        flow.write(COUNT, now_ms() + 1_500, now_ms() + 4_000, delays=0)
        flow.flush()
        wait_until(lambda: pending(node) == COUNT, lambda: pending(node))
        clock.shift(wrong_ms)
        wait_until(lambda: all_paused_for(node, "NTP"), lambda: paused(node))
        assert flow.delivered() == []
        assert cursor_ms(node) <= now_ms() + TOLERANCE_MS
        wait_until(
            lambda: now_ms() > max(message.due_ms or 0 for message in flow.sent), lambda: "never"
        )
        assert flow.delivered() == []
        clock.shift(-wrong_ms)
        check_outcome(flow, node)


# ----------------------------------------------------------------------------------------- embedded


def append(node: Node, due_ms: int, number: int) -> None:
    """Write one message to the embedded log."""
    headers = {"chronos-deliver-at": b"%d" % due_ms, "chronos-target-topic": b"target"}
    node.log.append(
        [("chronos.delay", None, b"%d" % number, headers, number % len(node.shards))], 5.0
    )


def delivered(node: Node) -> list[int]:
    """The numbers in the target topic; asserts that none is early by the log's clock."""
    assert isinstance(node.log, EmbeddedLog)
    if "target" not in node.log.topics():
        return []
    reader = node.log.reader("target", 0, 0)
    records = reader.read(10_000, 1 << 24)
    reader.close()
    for record in records:
        due_ms = next(
            int(value or b"") for name, value in record.headers or () if name == "chronos-due-at"
        )
        assert record.timestamp_ms >= due_ms
    return sorted(int(record.value or b"") for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("wrong_ms", WRONG_MS)
def test_a_step_of_the_hosts_clock_stops_the_embedded_log_until_it_is_back(
    tmp_path: Path, wrong_ms: int
) -> None:
    """Its only clock is the host's: after a step no message is accepted or delivered, and the pause
    names the reason."""
    clock = ShiftedClock()
    with running(tmp_path / "node", clock, {}) as node:
        wait_until(lambda: node.ready, lambda: paused(node))
        due_ms = now_ms() + 5_000
        for number in range(COUNT):
            append(node, due_ms + number, number)
        wait_until(lambda: pending(node) == COUNT, lambda: pending(node))
        clock.shift(wrong_ms)
        with pytest.raises(Exception, match=r"clock was stepped .* restart Chronos"):
            append(node, due_ms, COUNT)
        wait_until(lambda: all_paused_for(node, "restart Chronos"), lambda: paused(node))
        wait_until(lambda: now_ms() > due_ms + COUNT, lambda: "never")
        assert delivered(node) == []
        assert cursor_ms(node) <= now_ms()
        clock.shift(-wrong_ms)
        wait_until(lambda: node.ready and pending(node) == 0, lambda: paused(node))
        assert delivered(node) == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("wrong_ms", [MINUTE_MS, HOUR_MS])
def test_after_a_restart_a_clock_that_was_set_ahead_counts_as_right(
    tmp_path: Path, wrong_ms: int
) -> None:
    """As the text of the pause says: only the operator knows which time is right."""
    with running(tmp_path / "node", ShiftedClock(), {}) as node:
        wait_until(lambda: node.ready, lambda: paused(node))
        append(node, now_ms() + wrong_ms, 0)
        wait_until(lambda: pending(node) == 1, lambda: pending(node))
    with running(tmp_path / "node", ShiftedClock(wrong_ms + 1), {}) as node:
        wait_until(lambda: node.ready and pending(node) == 0, lambda: paused(node))
        assert delivered(node) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("wrong_ms", [-MINUTE_MS, -HOUR_MS])
def test_an_embedded_log_with_future_timestamps_waits_for_them(
    tmp_path: Path, wrong_ms: int
) -> None:
    """Started with a clock behind that of the last run, a node pauses; with the right clock it
    continues."""
    with running(tmp_path / "node", ShiftedClock(), {}) as node:
        wait_until(lambda: node.ready, lambda: paused(node))
        for number in range(8):
            append(node, now_ms() + 1_000, number)
        wait_until(lambda: pending(node) == 8, lambda: pending(node))
        reached_ms = cursor_ms(node)
    with running(tmp_path / "node", ShiftedClock(wrong_ms), {}) as node:
        wait_until(lambda: all(paused(node)), lambda: paused(node))
        assert {"in this machine's future" in (text or "") for text in paused(node)} == {True}
        wait_until(lambda: now_ms() > reached_ms + 1_500, lambda: "never")
        assert delivered(node) == []
    with running(tmp_path / "node", ShiftedClock(), {}) as node:
        wait_until(lambda: node.ready and pending(node) == 0, lambda: paused(node))
        assert delivered(node) == list(range(8))
