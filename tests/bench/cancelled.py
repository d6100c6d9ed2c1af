"""The second part of the figure `bulk`: lists after a job has cancelled all messages but the last,
and deliveries beside them."""

import statistics
import time
from dataclasses import dataclass

from tests.bench import load
from tests.bench.figures import Bench, start_steady
from tests.harness.service import Service

DAY_MS = 86_400_000
"""The first message is due so long after it was written: nothing becomes due meanwhile."""

SPREADS = {"a year": 365 * DAY_MS, "one minute": 60_000}
"""Time within which the cancelled messages were due."""

RATE, SECONDS = 1_000, 20.0
"""Deliveries beside the pages."""

POLL_S = 0.5
"""Between two looks at the service."""


@dataclass(frozen=True)
class Beside:
    """What pages of one message cost beside deliveries."""

    median_ms: float
    longest_ms: float
    found_s: float
    """After so long the message that is left is on the first page (s)."""
    lateness: dict[str, float]
    """By `load.watch`."""


def figure_cancelled(bench: Bench) -> None:
    """Pages of one message, and the lateness beside them: with nothing cancelled, and from the end
    of the job on."""
    for within, spread_ms in SPREADS.items():
        prefix = bench.name("cancelled")
        first_ms = time.time_ns() // 1_000_000 + DAY_MS
        with bench.service(prefix, shards=1) as service:
            service.start()
            _schedule_last(service, prefix, first_ms + spread_ms - 1)
            alone = _beside(bench, service, prefix, "before")
            _cancel(bench, service, prefix, first_ms, spread_ms)
            after = _beside(bench, service, prefix, "after")
            service.stop()
        p99_ms = alone.lateness["p99_ms"], after.lateness["p99_ms"]
        bench.add(
            f"pages after {bench.messages:,} cancelled within {within}, {RATE:,}/s beside",
            f"median {after.median_ms:.1f} ms, with nothing cancelled {alone.median_ms:.1f}; "
            f"longest {after.longest_ms:.0f} and {alone.longest_ms:.0f}; the message that is left "
            f"on the first page after {after.found_s:.1f} s, with nothing cancelled "
            f"{alone.found_s:.1f}; lateness p99 {p99_ms[1]:.1f} ms, with nothing cancelled "
            f"{p99_ms[0]:.1f}",
            "median <= 20 ms; <= 1.2 times that without",
            after.median_ms <= 20 and p99_ms[1] <= 1.2 * p99_ms[0],
            runs=[alone.lateness, after.lateness],
        )


def _beside(bench: Bench, service: Service, prefix: str, name: str) -> Beside:
    """Read pages until the deliveries end and the last message is found."""
    # Each load has a target of its own, which is read from its beginning.
    target = f"{prefix}.{name}"
    bench.create(target)
    begun_s = time.monotonic()
    result, _ = start_steady(bench, bench.broker.bootstrap, prefix, target, RATE, SECONDS)
    took_ms, found_s = [], 0.0
    while time.monotonic() - begun_s < SECONDS or not found_s:
        page_s = time.perf_counter()
        page = service.get(f"/v1/messages?limit=1&target={prefix}.last")
        took_ms.append((time.perf_counter() - page_s) * 1_000)
        if page["messages"] and not found_s:
            found_s = time.monotonic() - begun_s
        time.sleep(0.05)
    return Beside(statistics.median(took_ms), max(took_ms), found_s, result())


def _schedule_last(service: Service, prefix: str, due_ms: int) -> None:
    """Schedule the message that is left."""
    message = {"target": {"topic": f"{prefix}.last"}, "value": "v", "deliver_at": due_ms}
    service.post("/v1/messages", message)


def _cancel(bench: Bench, service: Service, prefix: str, first_ms: int, spread_ms: int) -> None:
    """Have messages taken in and cancelled by a job."""
    count = bench.messages
    load.fill(
        bench.broker.bootstrap,
        f"{prefix}.delay",
        f"{prefix}.far",
        count,
        first_ms,
        keyed=False,
        partitions=1,
        spread_ms=spread_ms,
        shuffled=True,
    )
    timeout_s = 60 + count / 1_000
    service.wait_until(
        lambda: service.pending() > count, "ingest", timeout_s=timeout_s, every_s=POLL_S
    )
    order = {"action": "cancel", "filter": {"target": f"{prefix}.far"}}
    path = f"/v1/jobs/{service.post('/v1/jobs', order)['id']}"
    service.wait_until(
        lambda: service.get(path)["state"] != "running",
        "end the job",
        timeout_s=timeout_s,
        every_s=POLL_S,
    )
    job = service.get(path)
    assert (job["state"], job["done"]) == ("done", count), job
