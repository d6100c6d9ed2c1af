"""The figure `cost`: what a broker and a node use at low rates, and what an idle shard costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

from tests.bench.figures import Bench, progress_of

RATES = (0, 10, 100, 1_000, 5_000)
"""Messages a second, written and delivered."""

IDLE_SHARDS = 64

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
        time.sleep(WARM_S)
        pids = bench.broker.pid, service.pid
        began_s, before = time.time(), [_processor_s(pid) for pid in pids]
        time.sleep(seconds)
        ended_s, after = time.time(), [_processor_s(pid) for pid in pids]
        status = Path(f"/proc/{service.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in status)
        descriptors = len(os.listdir(f"/proc/{service.pid}/fd"))
        results = [bench.result(load) for load in loads]
        service.stop()
    committed = [
        at_ms
        for shard in range(shards)
        for at_ms, _ in progress_of(bench, f"{prefix}.progress", shard)
        if began_s <= at_ms / 1_000 < ended_s
    ]
    took_s = ended_s - began_s
    broker, node = ((late - early) / took_s for early, late in zip(before, after, strict=True))
    late = results[1] if results else {"p50_ms": 0.0, "p99_ms": 0.0}
    if results:
        assert late["early"] + late["lost"] + late["duplicated"] == 0, late
    return Used(
        broker=broker,
        service=node,
        transactions=len(committed) / took_s,
        threads=int(fields["Threads"]),
        descriptors=descriptors,
        memory_mib=int(fields["VmRSS"].split()[0]) / 1_024,
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
