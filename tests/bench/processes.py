"""The figure `processes`: what two nodes on one machine drain, against one."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tests.bench import load
from tests.bench.figures import Bench, drained, records_of
from tests.harness.service import consecutive_ports

SHARDS = 4

RUNS = 3

WRITE_S = 15.0
"""Time for writing the messages and taking them in, besides that which their number needs."""

WRITTEN_PER_S = 15_000
"""Messages that are written and taken in in a second at the least."""


def _pin(pid: int, cores: Collection[int]) -> None:
    """Restrict all threads of a process, and those that they start, to these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def drain(bench: Bench, processes: int, cores: Collection[int]) -> float:
    """Messages a second that so many processes on these cores deliver, of messages that are due in
    the same moment."""
    prefix = bench.name("processes")
    target, count = f"{prefix}.out", bench.messages
    bench.create(target)
    service = bench.service(
        prefix,
        shards=SHARDS,
        **{"coordinator.kind": "kafka", "topics.cluster": f"{prefix}.cluster", "node.id": "n1"},
    )
    consecutive_ports(service, processes)
    service.arguments = ["--processes", str(processes)]
    with service:
        service.launch()
        _pin(service.pid, cores)  # before it starts the others
        service.wait_ready(timeout_s=120)
        service.wait_until(lambda: len(service.leaders()) == processes, "spread the shards")
        due_ms = int((time.time() + WRITE_S + count / WRITTEN_PER_S) * 1_000)
        load.fill(
            bench.broker.bootstrap,
            f"{prefix}.delay",
            target,
            count,
            due_ms,
            keyed=False,
            partitions=SHARDS,
        )
        service.wait_until(lambda: service.pending() == count, "take everything in", every_s=0.2)
        assert time.time() * 1_000 < due_ms, "the messages were due before all were taken in"
        time.sleep(max(0.0, due_ms / 1_000 - time.time()))
        service.wait_until(lambda: service.pending() == 0, "drain", timeout_s=120.0, every_s=0.5)
        service.stop()
    return drained(records_of(bench, prefix, SHARDS), count, due_ms)


def figure_processes(bench: Bench) -> None:
    """One node and two: with the broker on a core of its own, and on all cores together."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        bench.say("     one core only: nothing to compare")
        return
    assert Path("/proc/self/task").exists(), "threads are pinned by their ids under /proc"
    for what, of_broker, of_nodes in (
        (f"the broker alone on one of {len(cores)} cores", cores[:1], cores[1:]),
        (f"{len(cores)} cores for the broker and the nodes", cores, cores),
    ):
        _pin(bench.broker.pid, of_broker)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(RUNS):
            for processes, found in rates.items():
                found.append(drain(bench, processes, of_nodes))
                bench.say(f"     {what}, {processes} processes: {found[-1]:,.0f}/s")
        one, two = (statistics.median(found) for found in rates.values())
        bench.add(
            f"drain {bench.messages:,} of {SHARDS} shards, two processes against one, {what}",
            f"{two:,.0f}/s against {one:,.0f}/s, {two / one:.2f}",
            "-",
            True,
            rates=rates,
        )
    _pin(bench.broker.pid, cores)
