"""Thousands of messages that cannot be delivered, or have as many targets: the lateness of the
others meanwhile."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException

from tests.bench import load
from tests.bench.figures import Bench, start_steady
from tests.harness.broker import Clients, cluster
from tests.harness.service import Service
from tests.harness.waiting import wait_until
from tests.integration.foreign import Sent, delete_topic, produce, schedule

COUNT = 3_000
OTHERS_RATE = 200
OTHERS_P99_MS = 1_000
LANE_MESSAGES = 300_000
WARM_S = 3.0
"""From the start of the others to the flood."""


def figure_floods(bench: Bench, seconds: float = 30.0) -> None:
    """The others beside messages that die, beside a burst for thousands of targets, and beside a
    lane."""

    def keyless(prefix: str) -> None:
        target = bench.broker.create_topic(
            f"{prefix}.compacted", config={"cleanup.policy": "compact"}
        )
        flood(prefix, [target] * COUNT)

    def missing(prefix: str) -> None:
        flood(prefix, [f"{prefix}.missing"] * COUNT)

    def rejected(prefix: str) -> None:
        delete_topic(bench.broker, f"{prefix}.rejected")
        produce(bench.broker.bootstrap, f"{prefix}.delay", [Sent(b"junk")] * COUNT)

    def targets(prefix: str) -> None:
        flood(prefix, [f"{prefix}.to{at}" for at in range(COUNT)])

    def flood(prefix: str, names: list[str]) -> None:
        produce(
            bench.broker.bootstrap,
            f"{prefix}.delay",
            [Sent(b"flood", schedule(name)) for name in names],
        )

    def add(
        what: str,
        act: Callable[[str], None],
        *,
        dead: int = 0,
        refused: int = 0,
        create: bool = False,
    ) -> None:
        """`dead`, `refused`: the messages that end so."""
        prefix = bench.name("flood")
        if create:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(bench.create, [f"{prefix}.to{at}" for at in range(COUNT)]))
        target = f"{prefix}.out"
        bench.create(target)
        with bench.service(prefix, shards=1) as service:
            service.start()
            others, count = start_steady(
                bench, bench.broker.bootstrap, prefix, target, OTHERS_RATE, seconds
            )
            time.sleep(WARM_S)
            act(prefix)
            found = others()
            settled = count + COUNT - dead - refused
            service.wait_until(
                lambda: totals(service)["delivered"] == settled, "deliver everything", timeout_s=60
            )
            ended = totals(service)
            aborts = service.shards()[0]["aborts"]
            service.stop()
        assert (ended["dead"], ended["rejected"]) == (dead, refused), ended
        bar = "0 aborts" if create else f"p99 <= {OTHERS_P99_MS:,} ms"
        passed = aborts == 0 if create else found["p99_ms"] <= OTHERS_P99_MS
        add_others(bench, what, found, f"{aborts} aborts", bar, passed)

    add(f"others beside {COUNT:,} without a key for a compacted topic", keyless, dead=COUNT)
    add(f"others beside {COUNT:,} for a missing topic", missing, dead=COUNT)
    add(f"others beside a deleted rejected topic and {COUNT:,} refused", rejected, refused=COUNT)
    add(f"others beside {COUNT:,} for as many targets", targets, create=True)
    lane(bench)


def lane(bench: Bench) -> None:
    """Messages for a partition whose broker is killed, which is started again when all are
    parked."""
    with cluster(3, heap_mb=320) as kafka:
        prefix = bench.name("lane")
        lonely = kafka.create_topic(f"{prefix}.lonely", replication=1)
        target = kafka.create_topic(f"{prefix}.out", replication=3)
        down = kafka.node(leader(kafka, lonely))
        with bench.service(
            prefix, shards=1, **{"log.kafka.bootstrap_servers": kafka.bootstrap}
        ) as service:
            service.start()
            idle_bytes = service.resident_bytes()
            down.kill()
            wait_until(lambda: leader(kafka, lonely) < 0, timeout_s=30)
            service.wait_ready()
            others, _ = start_steady(bench, kafka.bootstrap, prefix, target, OTHERS_RATE, 60.0)
            time.sleep(WARM_S)
            due_ms = time.time_ns() // 1_000_000
            load.fill(
                kafka.bootstrap,
                f"{prefix}.delay",
                lonely,
                LANE_MESSAGES,
                due_ms,
                keyed=False,
                partitions=1,
            )
            service.wait_until(
                lambda: service.shards()[0]["parked"] == LANE_MESSAGES,
                "park all",
                timeout_s=120,
                every_s=1.0,
            )
            parked_s = time.time() - due_ms / 1_000
            parked_bytes = service.resident_bytes()
            found = others()
            moves = totals(service)["parked"]
            delivered = totals(service)["delivered"]
            started_s = time.monotonic()
            down.start()
            up_s = time.monotonic() - started_s
            service.wait_until(
                lambda: totals(service)["delivered"] - delivered == LANE_MESSAGES,
                "deliver all",
                timeout_s=180,
                every_s=0.5,
            )
            delivered_s = time.monotonic() - started_s - up_s
            (shard,) = service.shards()
            assert (shard["parked"], shard["pending"], shard["totals"]["dead"]) == (0, 0, 0), shard
            service.stop()
    more = (
        f"{moves:,} moves, all parked after {parked_s:.0f} s, delivered {delivered_s:.0f} s after "
        f"the broker was back, {(parked_bytes - idle_bytes) / 2**20:.0f} MiB more memory"
    )
    figure = f"others beside {LANE_MESSAGES:,} for a partition without a leader"
    add_others(bench, figure, found, more, "each is parked once", moves == LANE_MESSAGES)


def leader(kafka: Clients, topic: str) -> int:
    """The node id of the leader of partition 0; -1 without one, 0 while no broker answers."""
    admin = kafka.admin()
    try:
        return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader)
    except (KafkaException, KeyError):
        return 0


def totals(service: Service) -> dict[str, int]:
    """The totals of the only shard."""
    found: dict[str, int] = service.shards()[0]["totals"]
    return found


def add_others(
    bench: Bench, figure: str, found: dict[str, float], more: str, bar: str, passed: bool
) -> None:
    """Add the row of a flood: the lateness of the others, none of which may be early, lost or
    duplicated."""
    wrong = found["early"] + found["lost"] + found["duplicated"]
    measured = (
        f"p50 {found['p50_ms']:.0f}, p99 {found['p99_ms']:.0f}, max {found['max_ms']:.0f} ms; "
        f"{more}"
    )
    bench.add(figure, measured, bar, wrong == 0 and passed, others=found)
