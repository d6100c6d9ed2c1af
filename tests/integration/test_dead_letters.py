"""Dead letters on a real broker: a replay that is killed, repeated, or run by two operators
delivers every message once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.broker import Broker
from tests.harness.command import run
from tests.harness.service import Service
from tests.integration.foreign import Sent, Tail, Topics, produce, read_all, schedule

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
LETTERS = 1_000
RATE = 200


def replay(service: Service, *options: str) -> subprocess.Popen[str]:
    """The command, started."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "dead-letters",
        "replay",
        "--all",
        "--yes",
        *options,
    ]
    environ = {**os.environ, "CHRONOS_SERVER": service.url, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


def ended(command: subprocess.Popen[str]) -> int:
    command.communicate(timeout=120)
    return command.returncode


@pytest.mark.smoke
def test_a_replay_that_is_killed_and_repeated_by_two_operators_delivers_every_message_once(
    broker: Broker, tmp_path: Path
) -> None:
    """Half of the messages have ids of their own. The dead letters are in several partitions,
    between transaction markers."""
    topics = Topics.of(f"letters{time.time_ns() % 10**9}")
    target = f"{topics.delay}.target"
    settings = topics.settings(shards=3)
    with Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        headers = schedule(target, target_key=b"k")
        sent = [
            Sent(b"%d" % at, headers, b"id-%d" % at if at % 2 else None) for at in range(LETTERS)
        ]
        produce(broker.bootstrap, topics.delay, sent)
        service.wait_until(
            lambda: sum(shard["totals"]["dead"] for shard in service.shards()) == LETTERS,
            "let all die",
            timeout_s=90,
        )
        broker.create_topic(target, partitions=1)

        # Two operators run the same command, and both are lost with the service.
        operators = [replay(service, "--rate", str(RATE)) for _ in range(2)]
        with Tail(broker.bootstrap, target) as tail:
            tail.until(lambda: len(tail.records[target]) > RATE, "the first parts", timeout_s=90)
        service.kill()
        assert all(ended(operator) != 0 for operator in operators)
        service.start()

        # The command alone is killed.
        operator = replay(service, "--rate", str(RATE))
        before = len(read_all(broker.bootstrap, target))
        with Tail(broker.bootstrap, target) as tail:
            tail.until(lambda: len(tail.records[target]) > before, "another part", timeout_s=90)
        operator.kill()
        ended(operator)

        # Two operators run it to the end, again if the broker did not answer in time; one of them
        # may find nothing more.
        for _ in range(5):
            operators = [replay(service) for _ in range(2)]
            if [ended(operator) for operator in operators] == [0, 0]:
                break
        with Tail(broker.bootstrap, target) as tail:
            tail.take(target, LETTERS, timeout_s=90)
        assert service.get("/v1/dead-letters")["letters"] == []

        # The records of requests that were lost before their markers are written again.
        again = [
            got
            for got in read_all(broker.bootstrap, topics.delay)
            if got.header("chronos-action") == b"replay"
        ]
        repeated = [Sent(got.value, got.headers, got.key, got.partition) for got in again[:RATE]]
        produce(broker.bootstrap, topics.delay, repeated)
        ignored = len(again) + len(repeated) - LETTERS
        service.wait_until(
            lambda: sum(shard["totals"]["ignored"] for shard in service.shards()) == ignored,
            "ignore them",
            timeout_s=60,
        )

        with Tail(broker.bootstrap, target) as tail:
            tail.take(target, LETTERS)
            found = tail.settle().records[target]
        assert Counter(got.value for got in found) == Counter(b"%d" % at for at in range(LETTERS))
        for got in found:
            number = int(got.value or b"")
            assert got.key == b"k"
            assert got.header("chronos-replayed") is not None
            assert number % 2 == 0 or got.header("chronos-id") == b"id-%d" % number
        assert read_all(broker.bootstrap, topics.rejected) == []


def test_a_missing_target_is_told_before_and_after_and_no_longer_once_it_is_there(
    broker: Broker, tmp_path: Path
) -> None:
    """The answer to the message has a warning; a replay is refused; `status` is green and the
    replay goes once the topic is there."""
    topics = Topics.of(f"cause{time.time_ns() % 10**9}")
    target, compacted = f"{topics.delay}.target", f"{topics.delay}.compacted"
    broker.create_topic(compacted, partitions=1, config={"cleanup.policy": "compact"})
    with Service(
        tmp_path / "node", bootstrap=broker.bootstrap, settings=topics.settings(shards=1)
    ) as service:
        service.start()

        def warnings(topic: str, **more: object) -> list[str]:
            """Those of the first answer that came when the topic was described."""
            body = {"target": {"topic": topic, **more}, "value": "v", "delay": "1h"}
            found: list[list[str]] = []

            def look() -> bool:
                found.append(service.post("/v1/messages", body).get("warnings", []))
                return bool(found[-1]) or len(found) == 5

            service.wait_until(look, "answer")
            return found[-1]

        assert "does not exist" in warnings(target)[0]
        assert "takes no message without a key" in warnings(compacted)[0]
        assert warnings(compacted, key="k") == []

        service.post(
            "/v1/messages", {"id": "lost", "target": {"topic": target}, "value": "v", "delay": 0}
        )
        service.wait_until(
            lambda: service.shards()[0]["totals"]["dead"] == 1, "let it die", timeout_s=60
        )
        assert "messages fail" in run("status", server=service.url).out
        refused = run("dead-letters", "replay", "lost", server=service.url)
        assert refused.code == 1
        assert f"the cause is still there: the target topic {target} does not exist" in refused.err
        again = run("dead-letters", "replay", "lost", "--anyway", server=service.url)
        assert (again.code, again.out) == (0, "1 dead letter replayed\n")
        assert "1 dead letter will fail again: target-missing" in again.err
        service.wait_until(
            lambda: service.shards()[0]["totals"]["dead"] == 2, "let it die again", timeout_s=60
        )

        broker.create_topic(target, partitions=1)
        service.wait_until(
            lambda: service.shards()[0]["dead_recently"] is None, "look at the cause", timeout_s=60
        )
        assert "messages fail" not in run("status", server=service.url).out
        service.wait_until(
            lambda: run("dead-letters", "replay", "lost", server=service.url).code == 0,
            "replay it",
            timeout_s=60,
        )
        with Tail(broker.bootstrap, target) as tail:
            assert [got.value for got in tail.take(target, 1, timeout_s=60)] == [b"v"]
