"""The second part of the figure `bulk`: lists after a job has cancelled all messages but the last,
and deliveries beside them."""

import statistics
import time

from tests.bench import load
from tests.bench.figures import Bench, start_steady
from tests.harness.service import Service

DAY_MS = 86_400_000
"""The first message is due so long after it was written: nothing becomes due meanwhile."""

SPREADS = {"a year": 365 * DAY_MS, "one minute": 60_000}
"""Time within which the cancelled messages were due."""

RATE, SECONDS = 1_000, 20.0
"""Deliveries beside the pages, and without the cancelled messages."""

POLL_S = 0.5
"""Between two looks at the service."""


def figure_cancelled(bench: Bench) -> None:
    """Pages of one message, and the lateness beside them, from the end of the job on."""
    for within, spread_ms in SPREADS.items():
        prefix = bench.name("cancelled")
        # Each load has a target of its own, which is read from its beginning.
        before, during = f"{prefix}.before", f"{prefix}.during"
        for target in (before, during):
            bench.create(target)
        with bench.service(prefix, shards=1) as service:
            service.start()
            broker = bench.broker.bootstrap
            alone = start_steady(bench, broker, prefix, before, RATE, SECONDS)[0]()
            _cancel(bench, service, prefix, spread_ms)
            ended_s = time.monotonic()
            result, _ = start_steady(bench, broker, prefix, during, RATE, SECONDS)
            took_ms, found_s = [], 0.0
            while time.monotonic() - ended_s < SECONDS or not found_s:
                begun_s = time.perf_counter()
                page = service.get("/v1/messages?limit=1&target=*.last")
                took_ms.append((time.perf_counter() - begun_s) * 1_000)
                if page["messages"] and not found_s:
                    found_s = time.monotonic() - ended_s
                time.sleep(0.05)
            beside = result()
            service.stop()
        page_ms = statistics.median(took_ms)
        bench.add(
            f"pages after {bench.messages:,} cancelled within {within}, {RATE:,}/s beside",
            f"median {page_ms:.1f} ms, longest {max(took_ms):.0f}; the message that is left on the "
            f"first page after {found_s:.1f} s; lateness p99 {beside['p99_ms']:.1f} ms, without "
            f"the cancelled {alone['p99_ms']:.1f}",
            "median <= 20 ms; <= 1.2 times that without",
            page_ms <= 20 and beside["p99_ms"] <= 1.2 * alone["p99_ms"],
            runs=[alone, beside],
        )


def _cancel(bench: Bench, service: Service, prefix: str, spread_ms: int) -> None:
    """Have messages taken in and cancelled by a job; one after them is left."""
    count, first_ms = bench.messages, time.time_ns() // 1_000_000 + DAY_MS
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
    left = {"topic": f"{prefix}.last"}
    service.post(
        "/v1/messages", {"target": left, "value": "v", "deliver_at": first_ms + spread_ms - 1}
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
