"""The figure `cost`: what a broker and a node use at low rates, and what an idle shard costs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from tests.bench.figures import Bench, progress_of

RATES = (0, 10, 100, 1_000, 5_000)
"""Messages a second, written and delivered."""

IDLE_SHARDS = 64

IDLE_NODES = 3
"""Of the cluster that does nothing; each shard is on two of them."""

SETTLED_S = 90.0
"""After the start of the cluster: masters are spread, clients needed once are closed, and quiet
partitions share one."""

WARM_S = 10.0
"""Before the measurement: the broker compiles what it runs, and the messages become due."""


class Used(Struct):
    """What was used over a window."""

    broker: float
    """Processor time of the broker, as a share of one core."""
    service: float
    """The same of the node."""
    transactions: float
    """A second."""
    threads: int
    descriptors: int
    memory_mib: float
    """Resident memory of the node."""
    p50_ms: float
    p99_ms: float
    """Lateness at a reader; 0 without messages."""


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _shares(pids: Sequence[int], seconds: float) -> list[float]:
    """Processor time of each process over this time, as a share of one core."""
    began_s, before = time.monotonic(), [_processor_s(pid) for pid in pids]
    time.sleep(seconds)
    after, took_s = [_processor_s(pid) for pid in pids], time.monotonic() - began_s
    return [(late - early) / took_s for early, late in zip(before, after, strict=True)]


def _held(pid: int) -> tuple[int, int, float]:
    """Threads, file descriptors and resident memory (MiB) of a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return int(fields["Threads"]), descriptors, int(fields["VmRSS"].split()[0]) / 1_024


def measure(bench: Bench, rate: int, shards: int, seconds: float) -> Used:
    """Run a node with this load, and return what was used over `seconds` of it."""
    prefix = bench.name("cost")
    target = f"{prefix}.out"
    bench.create(target)
    with bench.service(prefix, shards=shards) as service:
        service.start()
        loads = []
        if rate:
            duration_s = WARM_S + seconds + 2.0
            source = {"topic": f"{prefix}.delay", "target": target, "rate": rate}
            times = {"seconds": duration_s, "lowest_ms": 2_000, "highest_ms": 3_000}
            bootstrap = bench.broker.bootstrap
            loads = [
                bench.process("generate", bootstrap=bootstrap, **source, **times),
                # A reader with the consumer's default settings: it costs the broker little.
                bench.process(
                    "watch",
                    bootstrap=bootstrap,
                    topic=target,
                    count=int(rate * duration_s),
                    timeout_s=duration_s + 60,
                    wait_ms=500,
                ),
            ]
        time.sleep(WARM_S if rate else SETTLED_S)
        pids = bench.broker.pid, service.pid
        began_s = time.time()
        broker, node = _shares(pids, seconds)
        ended_s = time.time()
        threads, descriptors, memory_mib = _held(service.pid)
        results = [bench.result(load) for load in loads]
        service.stop()
    committed = [
        at_ms
        for shard in range(shards)
        for at_ms, _ in progress_of(bench, f"{prefix}.progress", shard, shards)
        if began_s <= at_ms / 1_000 < ended_s
    ]
    late = results[1] if results else {"p50_ms": 0.0, "p99_ms": 0.0}
    if results:
        assert late["early"] + late["lost"] + late["duplicated"] == 0, late
    return Used(
        broker=broker,
        service=node,
        transactions=len(committed) / (ended_s - began_s),
        threads=threads,
        descriptors=descriptors,
        memory_mib=memory_mib,
        p50_ms=late["p50_ms"],
        p99_ms=late["p99_ms"],
    )


def figure_cost(bench: Bench, seconds: float = 20.0) -> None:
    """Processor time at low rates with one shard; then an idle node with many shards."""
    for rate in RATES:
        used = measure(bench, rate, 1, seconds)
        is_bound = rate == 1_000
        late = f"; p50 {used.p50_ms:.1f}, p99 {used.p99_ms:.1f} ms" if rate else ""
        bench.add(
            f"processor time at {rate:,}/s, of a core",
            f"broker {used.broker:.2f}, node {used.service:.2f}; "
            f"{used.transactions:.0f} transactions/s{late}",
            "<= 0.35 in all, p99 <= 40 ms" if is_bound else "-",
            not is_bound or (used.broker + used.service <= 0.35 and used.p99_ms <= 40),
        )
    one, many = (measure(bench, 0, shards, seconds) for shards in (1, IDLE_SHARDS))
    bench.add(
        f"processor time of an idle node with {IDLE_SHARDS} shards, of a core",
        f"broker {many.broker:.2f}, node {many.service:.2f}",
        "<= 0.05 each",
        max(many.broker, many.service) <= 0.05,
    )
    more = IDLE_SHARDS - 1
    bench.add(
        "a shard more on an idle node",
        f"{(many.threads - one.threads) / more:.1f} threads, "
        f"{(many.descriptors - one.descriptors) / more:.1f} file descriptors, "
        f"{(many.memory_mib - one.memory_mib) / more:.1f} MiB",
        "<= 2, <= 6, <= 1 MiB",
        many.threads - one.threads <= 2 * more,
    )
    _idle_cluster(bench, seconds)


def _idle_cluster(bench: Bench, seconds: float) -> None:
    """A cluster whose nodes hold a part of the shards each."""
    prefix = bench.name("idle")
    topics = ("delay", "progress", "rejected", "dead_letter", "cluster")
    settings = {
        "cluster": prefix,
        "coordinator.kind": "kafka",
        "coordinator.replication": 2,
        **{f"topics.{topic}": f"{prefix}.{topic}" for topic in topics},
    }
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                bench.service(
                    f"{prefix}-{at}", shards=IDLE_SHARDS, **settings, **{"node.id": f"n{at}"}
                )
            )
            for at in range(IDLE_NODES)
        ]
        began_s = time.monotonic()
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready(timeout_s=300)
        took_s = time.monotonic() - began_s
        time.sleep(SETTLED_S)
        broker, *shares = _shares([bench.broker.pid, *(node.pid for node in nodes)], seconds)
        threads, descriptors, memory_mib = map(max, *(_held(node.pid) for node in nodes))
        for node in nodes:
            node.stop()
    bench.add(
        f"{IDLE_NODES} idle nodes with {IDLE_SHARDS} shards, each on two of them, of a core",
        f"broker {broker:.2f}, nodes {min(shares):.2f} to {max(shares):.2f}; {threads} threads, "
        f"{descriptors} file descriptors, {memory_mib:.0f} MiB; ready after {took_s:.0f} s",
        "nodes <= 0.05",
        max(shares) <= 0.05,
    )
