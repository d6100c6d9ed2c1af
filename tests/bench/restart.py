"""The figure `restart`: how soon a node is ready again after a stop and after `kill -9`, amid a
load on all of its shards."""

from __future__ import annotations

import statistics
import time

from tests.bench.figures import Bench, start_s
from tests.harness.service import Service

SHARDS = (16, 64)

RATE = 300
"""Messages a second, written meanwhile to all shards alike; each is due 2 to 3 s later."""

TURNS = 3
"""Stops, and as many kills, by turns."""

RUNNING_S = 25.0
"""From when the node is ready until it is ended: less than the interval of the flushes, so that a
kill loses nearly as much as it can."""

LATER_MAX = 1.5
"""The bar: start after a kill over start after a stop."""


def figure_restart(bench: Bench) -> None:
    """Start after a kill against start after a stop, with 16 and 64 shards."""
    for shards in SHARDS:
        prefix = bench.name("restart")
        target = f"{prefix}.out"
        bench.create(target)
        stopped_s, killed_s = [], []
        with bench.service(prefix, shards=shards) as service:
            service.start()
            load = bench.process(
                "generate",
                bootstrap=bench.broker.bootstrap,
                topic=f"{prefix}.delay",
                target=target,
                rate=RATE,
                seconds=2 * TURNS * (RUNNING_S + 12),
                lowest_ms=2_000,
                highest_ms=3_000,
            )
            for _ in range(TURNS):
                stopped_s.append(_restart_s(service, killed=False))
                killed_s.append(_restart_s(service, killed=True))
            takeovers = service.events("master")[-shards:]
            load.kill()
            load.wait()
        stopped, killed = statistics.median(stopped_s), statistics.median(killed_s)
        bench.add(
            f"ready after kill -9, {shards} shards",
            f"{killed:.1f} s, after a stop {stopped:.1f} s: {killed / stopped:.2f} times as long",
            f"<= {LATER_MAX} times",
            killed <= LATER_MAX * stopped,
            stopped_s=stopped_s,
            killed_s=killed_s,
            slowest={
                part: max(event[part] for event in takeovers)
                for part in ("replayed", "fence_ms", "resolve_ms", "commit_ms")
            },
        )


def _restart_s(service: Service, *, killed: bool) -> float:
    """End a node that has run for a while, and return how long it takes to be ready again."""
    time.sleep(RUNNING_S)
    if killed:
        service.kill()
    else:
        service.stop()
    return start_s(service)
