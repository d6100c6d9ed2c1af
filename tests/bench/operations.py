"""Figures of bulk operations, rate limits, the selector, and replays of dead letters, each on one
shard."""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from tests.bench import load
from tests.harness.service import Service

if TYPE_CHECKING:
    from tests.bench.figures import Bench

POLL_S = 0.5
"""Between two queries of the service while it is measured."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _total(service: Service, name: str) -> int:
    return sum(int(shard["totals"][name]) for shard in service.shards())


def _memory_mib(service: Service) -> float:
    return service.resident_bytes() / 2**20


class _Peak:
    """The greatest resident memory of a service, looked at in a thread of its own."""

    def __init__(self, service: Service) -> None:
        self.mib = 0.0
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.mib = max(self.mib, _memory_mib(self._service))

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _filled(
    bench: Bench, service: Service, prefix: str, target: str, count: int, due_ms: int
) -> float:
    """Write messages for a running service and wait until they are taken in; messages per second
    from the first to the last."""
    load.fill(
        bench.broker.bootstrap, f"{prefix}.delay", target, count, due_ms, keyed=False, partitions=1
    )
    begun_s = time.monotonic()
    before = service.pending()
    service.wait_until(lambda: service.pending() >= count, "ingest", timeout_s=300, every_s=POLL_S)
    return (count - before) / (time.monotonic() - begun_s)


def figure_bulk(bench: Bench) -> None:
    """Cancels by filter while other messages are delivered."""
    prefix, count = bench.name("bulk"), bench.messages
    bench.reference()
    target = f"{prefix}.out"
    bench.create(target)
    with bench.service(prefix) as service:
        service.start()
        _filled(bench, service, prefix, f"{prefix}.far", count, _now_ms() + 86_400_000)
        rate, seconds = 200, 60.0
        watcher = bench.process(
            "watch",
            bootstrap=bench.broker.bootstrap,
            topic=target,
            count=int(rate * seconds),
            timeout_s=300,
        )
        generator = bench.process(
            "generate",
            bootstrap=bench.broker.bootstrap,
            topic=f"{prefix}.delay",
            target=target,
            rate=rate,
            seconds=seconds,
            lowest_ms=500,
            highest_ms=1_500,
        )
        service.wait_until(lambda: _total(service, "delivered") > 0, "deliver", timeout_s=60)
        cpu_s = service.cpu_s()
        job = service.post("/v1/jobs", {"action": "cancel", "filter": {"target": f"{prefix}.far"}})
        path = f"/v1/jobs/{job['id']}"
        service.wait_until(
            lambda: service.get(path)["state"] != "running",
            "end the job",
            timeout_s=600,
            every_s=POLL_S,
        )
        job = service.get(path)
        cpu_s = service.cpu_s() - cpu_s
        assert (job["state"], job["done"]) == ("done", count), job
        bench.result(generator)
        late = bench.result(watcher)
        service.stop()
    took_s = job["elapsed_ms"] / 1_000
    assert late["early"] + late["lost"] + late["duplicated"] == 0, late
    bench.add(
        f"{count:,} cancels by filter, {rate} deliveries a second besides",
        f"{took_s:.1f} s ({count / took_s:,.0f}/s, {count / took_s / bench.pt:.2f} PT, "
        f"{cpu_s * 1e6 / count:.1f} us of processor time each);"
        f" lateness p50 {late['p50_ms']:.0f}, p99 {late['p99_ms']:.0f} ms",
        "< 60 s for 500,000",
        took_s < 60 * count / 500_000,
        job=job,
        late=late,
    )


def figure_limit(bench: Bench) -> None:
    """Many due messages behind a limit: parked once, also after a kill; the rate, and how soon a
    changed one acts."""
    prefix, count = bench.name("limit"), 2 * bench.messages
    target = f"{prefix}.out"
    bench.broker.create_topic(target, config={"message.timestamp.type": "LogAppendTime"})
    slow, fast, seconds = 1_000, 4_000, 10
    with bench.service(
        prefix, shards=1, **{"delivery.rates": f'{{"{target}": {slow}/s}}'}
    ) as service:
        service.start()
        begun_s = time.monotonic()
        load.fill(
            bench.broker.bootstrap,
            f"{prefix}.delay",
            target,
            count,
            _now_ms(),
            keyed=False,
            partitions=1,
            spread_ms=1,
        )
        service.wait_until(lambda: _total(service, "parked") >= 0.4 * count, "park", timeout_s=300)
        service.kill()
        service.start()
        service.wait_until(
            lambda: _is_parked(service, count), "park all", timeout_s=600, every_s=POLL_S
        )
        parked_s = time.monotonic() - begun_s
        before = _total(service, "parked")
        service.kill()
        service.start()
        service.wait_until(lambda: _is_parked(service, count), "lead", timeout_s=120)
        time.sleep(seconds + 4)
        changed_ms = _now_ms()
        assert service.ask("PUT", f"/v1/rates/{target}", {"rate": f"{fast}/s"})[0] < 300
        time.sleep(seconds + 4)
        after, memory_mib = _total(service, "parked"), _memory_mib(service)
        ended_ms = _now_ms()
        assert service.ask("PUT", f"/v1/rates/{target}", {"rate": "1000000/s"})[0] < 300
        service.wait_until(
            lambda: _total(service, "delivered") >= count, "drain", timeout_s=300, every_s=POLL_S
        )
        parked = _total(service, "parked")
        service.stop()
    times_ms = sorted(_times_ms(bench, target))
    assert len(times_ms) == count

    def rate(from_ms: int, to_ms: int) -> float:
        return (
            (bisect_left(times_ms, to_ms) - bisect_left(times_ms, from_ms))
            * 1_000
            / (to_ms - from_ms)
        )

    old = rate(changed_ms - 1_000 * seconds - 500, changed_ms - 500)
    new = rate(ended_ms - 1_000 * seconds, ended_ms)
    # The first moment from which on the next 0.5 s have the new rate.
    acts_ms = next(
        (
            ms
            for ms in range(0, 5_000, 50)
            if rate(changed_ms + ms, changed_ms + ms + 500) >= 0.9 * fast
        ),
        5_000,
    )
    off = max(abs(old / slow - 1), abs(new / fast - 1))
    bench.add(
        f"{count:,} messages under a limit, killed amid the parking and after it",
        f"parked {parked:,} times (in {parked_s:.0f} s with their writing); {old:,.0f}/s of "
        f"{slow:,}/s and {new:,.0f}/s of {fast:,}/s over {seconds} s; a changed rate acts after "
        f"{acts_ms} ms; {memory_mib:.0f} MiB resident",
        "each once, within 5 %, within 1 s",
        before == after == parked <= count and off <= 0.05 and acts_ms <= 1_000,
        rates=[old, new],
    )


def _is_parked(service: Service, count: int) -> bool:
    """Return whether the master has pulled all messages, and those that were not delivered are
    parked."""
    shard = service.shards()[0]
    return (
        shard["role"] == "master"
        and shard["pull_offset"] >= count
        and shard["pending"] == shard["parked"]
    )


def _times_ms(bench: Bench, topic: str) -> list[int]:
    found: list[int] = []
    for messages in load.read(bench.broker.bootstrap, topic, idle=False):
        if messages is None:
            break
        found += [message.timestamp()[1] for message in messages]
    return found


def figure_selector(bench: Bench, runs: int = 5) -> None:
    """Processor time of a delivery with the selector and without it, in turns; three partitions."""
    cost_us: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(runs):
        for kind in sorted(cost_us, reverse=bool(number % 2)):
            cost_us[kind].append(_drain_us(bench, {"delivery_faults.enabled": kind}))
        bench.say(
            "     " + "  ".join(f"{kind} {costs[-1]:.2f} us" for kind, costs in cost_us.items())
        )
    ratios = [on / off for on, off in zip(*cost_us.values(), strict=True)]
    ratio = statistics.median(ratios)
    bench.add(
        f"processor time of a delivery with the selector, {runs} runs of {bench.messages:,}",
        f"{ratio:.3f} of that without it ({min(ratios):.3f} to {max(ratios):.3f};"
        f" {statistics.median(cost_us['on']):.2f} and {statistics.median(cost_us['off']):.2f} us)",
        "<= 1.02",
        ratio <= 1.02,
        runs=cost_us,
    )


def _drain_us(bench: Bench, settings: dict[str, Any]) -> float:
    """Processor time of the service for each of many messages that are due, without that of its
    start, in microseconds."""
    prefix = bench.name("drain")
    target = f"{prefix}.out"
    bench.broker.create_topic(target, partitions=3)
    with bench.service(prefix, shards=1, **settings, **{"workers.push": "off"}) as service:
        service.start()
        _filled(bench, service, prefix, target, bench.messages, _now_ms())
        service.stop()
        service.start()
        start_s = service.cpu_s()
        service.stop()
        service.settings["workers.push"] = "on"
        service.start()
        service.wait_until(lambda: service.pending() == 0, "drain", timeout_s=120, every_s=POLL_S)
        drained_s = service.cpu_s()
        service.stop()
    return (drained_s - start_s) * 1e6 / bench.messages


def figure_replay(bench: Bench, count: int = 200_000) -> None:
    """Resident memory while dead letters are replayed over HTTP, page by page as `chronos
    dead-letters replay` does."""
    prefix = bench.name("letters")
    target = f"{prefix}.out"
    with bench.service(prefix) as service:
        service.start()
        load.fill(
            bench.broker.bootstrap,
            f"{prefix}.delay",
            target,
            count,
            _now_ms(),
            keyed=False,
            partitions=1,
        )
        service.wait_until(
            lambda: _total(service, "dead") >= count,
            "dead-letter all",
            timeout_s=300,
            every_s=POLL_S,
        )
        service.stop()
        bench.create(target)
        service.start()
        before_mib = _memory_mib(service)
        peaks: list[float] = []
        begun_s = time.monotonic()
        after: str | None = None
        replayed = 0
        while True:
            with _Peak(service) as peak:
                body = {"all": True, **({"after": after} if after is not None else {})}
                answer = service.post("/v1/dead-letters/replay", body)
            peaks.append(peak.mib)
            replayed += answer["resolved"]
            after = answer["after"]
            if after is None:
                break
        took_s = time.monotonic() - begun_s
        service.wait_until(
            lambda: _total(service, "delivered") >= count,
            "deliver all",
            timeout_s=300,
            every_s=POLL_S,
        )
        service.stop()
    assert replayed == count, replayed
    quarter = peaks[len(peaks) // 4]
    bench.add(
        f"replay of {count:,} dead letters in {len(peaks)} requests",
        (
            f"{count / took_s:,.0f}/s; {before_mib:.0f} MiB resident before, {quarter:.0f} after "
            f"a quarter, {max(peaks):.0f} at most"
        ),
        "not growing: <= 1.25 of a quarter",
        max(peaks) <= 1.25 * quarter,
        peaks=peaks,
    )
