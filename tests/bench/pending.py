"""The figure `pending`: how fast many messages are taken in, and what they cost while they wait.

All of them are written before the service starts, and their due times are not in the order in which
they were written."""

import shutil
import time

from tests.bench import load
from tests.bench.figures import Bench, progress_of, start_s, start_steady
from tests.harness.service import Service
from tests.integration.foreign import delete_topic

DAY_MS = 86_400_000
"""The first message is due so long after it was written: nothing becomes due meanwhile."""

SPREADS = {"a year": 365 * DAY_MS, "one minute": 60_000}
"""Time within which the messages are due."""

KEYED_SHARE = 4
"""A message with an id takes three rows of the store instead of one: so many times fewer of them
are measured."""

RATE, SECONDS = 5_000, 30.0
"""The steady load beside the messages that wait, and without them."""

REPLAYED = 100_000
"""Messages taken in between the last flush and the kill, at most."""


def figure_pending(bench: Bench) -> None:
    """Ingest, memory, disk, reads, lateness and start."""
    count = bench.pending
    prefix = bench.name("none")
    with bench.service(prefix, shards=1) as service:
        service.start()
        alone = _lateness(bench, prefix)
        service.stop()
    for within, spread_ms in SPREADS.items():
        prefix = bench.name("many")
        with bench.service(prefix, shards=1) as service:
            early = _ingest(bench, service, prefix, count, within, spread_ms)
            named = f"{count:,} pending within {within}"
            _add_memory(bench, service, named, count, early)
            _add_cost(bench, service, prefix, named, count, alone)
        _remove(bench, service, prefix)
    prefix = bench.name("keyed")
    with bench.service(prefix, shards=1) as service:
        _ingest(
            bench, service, prefix, count // KEYED_SHARE, "a year", SPREADS["a year"], keyed=True
        )
    _remove(bench, service, prefix)


def _remove(bench: Bench, service: Service, prefix: str) -> None:
    """Free the disk for the next part."""
    shutil.rmtree(service.data_dir)
    delete_topic(bench.broker, f"{prefix}.delay")


def _write(
    bench: Bench, prefix: str, count: int, *, keyed: bool = False, spread_ms: int = 1_000
) -> None:
    """Write messages that are due from DAY_MS on."""
    load.fill(
        bench.broker.bootstrap,
        f"{prefix}.delay",
        f"{prefix}.out",
        count,
        time.time_ns() // 1_000_000 + DAY_MS,
        keyed=keyed,
        partitions=1,
        spread_ms=spread_ms,
        shuffled=True,
    )


def _ingest(
    bench: Bench,
    service: Service,
    prefix: str,
    count: int,
    within: str,
    spread_ms: int,
    *,
    keyed: bool = False,
) -> int:
    """Start the service before and after the messages are written, and add its rate to the table.
    Return its resident memory with a fifth of them."""
    service.start()
    service.stop()
    _write(bench, prefix, count, keyed=keyed, spread_ms=spread_ms)
    passed = bench.name("passed")
    bench.create(passed)
    tuned = bench.pass_through(f"{prefix}.delay", passed, count, tuned=True)
    delete_topic(bench.broker, passed)
    service.start()
    resident = 0
    for goal in (count // 5, count):
        service.wait_until(
            lambda goal=goal: service.pending() >= goal,  # type: ignore[misc]
            "ingest",
            timeout_s=60 + count / 5_000,
            every_s=2.0,
        )
        resident = resident or service.resident_bytes()
    records = [
        (at, record.pull_offset)
        for at, record in progress_of(bench, f"{prefix}.progress", 0, 1)
        if record.log_epoch == 2
    ]
    begun, *quarters = (
        next(at for at, pulled in records if pulled >= count * part // 4) for part in range(5)
    )
    rate = count / (quarters[3] - begun) * 1_000
    first = count / 4 / (quarters[0] - begun) * 1_000
    last = count / 4 / (quarters[3] - quarters[2]) * 1_000
    ids = "with random ids" if keyed else "without ids"
    bench.add(
        f"ingest {count:,} {ids}, due within {within}",
        (
            f"{rate:,.0f}/s, {rate / tuned:.2f} of a tuned pass-through of as many "
            f"({tuned:,.0f}/s); the first quarter {first:,.0f}/s, the last {last:,.0f}/s"
        ),
        "-" if keyed else ">= 0.7 of it",
        keyed or rate >= 0.7 * tuned,
        rate=rate,
        tuned=tuned,
    )
    return resident


def _add_memory(bench: Bench, service: Service, named: str, count: int, early: int) -> None:
    resident = service.resident_bytes()
    stored = sum(file.stat().st_size for file in (service.data_dir / "shards").rglob("*.*"))
    bench.add(
        f"memory and disk with {named}",
        (
            f"{resident / 2**20:.0f} MiB resident, {early / 2**20:.0f} with a fifth of them; "
            f"{stored / count:.0f} bytes of disk a message"
        ),
        "<= 500 MB, not growing",
        resident <= 500_000_000 and resident <= early * 1.25,
    )


def _add_cost(
    bench: Bench,
    service: Service,
    prefix: str,
    named: str,
    count: int,
    alone: dict[str, float],
) -> None:
    """Add what the messages cost while they wait."""
    reads = {
        what: _took_ms(service, path)
        for what, path in (
            ("the first 100", "/v1/messages?limit=100"),
            ("the timeline of a day", "/v1/timeline"),
            ("the counts", "/v1/shards"),
        )
    }
    bench.add(
        f"reads with {named}",
        ", ".join(f"{what} {took_ms:.0f} ms" for what, took_ms in reads.items()),
        "-",
        True,
        **reads,
    )
    beside = _lateness(bench, prefix)
    bench.add(
        f"p99 at {RATE:,}/s beside {named}",
        f"{beside['p99_ms']:.1f} ms, p99.9 {beside['p999_ms']:.1f}; with none "
        f"{alone['p99_ms']:.1f} and {alone['p999_ms']:.1f} ms",
        "<= 1.5 times that with none",
        beside["p99_ms"] <= 1.5 * alone["p99_ms"],
        runs=[beside, alone],
    )
    service.stop()
    clean_s = start_s(service)
    bench.add(f"start with {named}, clean", f"{clean_s:.1f} s", "<= 3 s", clean_s <= 3.0)
    _write(bench, prefix, REPLAYED)
    service.wait_until(lambda: service.pending() >= count + REPLAYED, "ingest", timeout_s=120)
    service.kill()
    killed_s = start_s(service)
    bench.add(f"start with {named}, after kill -9", f"{killed_s:.1f} s", "<= 30 s", killed_s <= 30)
    service.stop()


def _lateness(bench: Bench, prefix: str) -> dict[str, float]:
    """The lateness by `load.watch` of a steady load."""
    target = bench.name("steady")
    bench.create(target)
    found, _ = start_steady(bench, bench.broker.bootstrap, prefix, target, RATE, SECONDS)
    return found()


def _took_ms(service: Service, path: str) -> float:
    started = time.perf_counter()
    service.get(path)
    return (time.perf_counter() - started) * 1_000
