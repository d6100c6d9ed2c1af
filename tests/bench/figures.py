"""The figures: each is a function that runs the real service against a real broker."""

import hashlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronos.core.shard.progress import Progress, unpack_progress
from tests.bench import load, operations, registry, stages
from tests.harness.broker import Broker
from tests.harness.service import Service

POLL_S = 1.0
"""Between two queries of the service while its throughput is measured: each answer costs it
time."""

DELAYS = {"lowest_ms": 3_000, "highest_ms": 10_000}
"""When the messages of a steady load are due."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    figure: str
    measured: str
    bar: str
    passed: bool
    detail: dict[str, Any] = field(default_factory=dict)


class Bench:
    """A broker, a directory for data, and unique names."""

    def __init__(
        self,
        broker: Broker,
        directory: Path,
        *,
        messages: int,
        say: Callable[[str], None],
        pending: int = 5_000_000,
        spark_messages: int | None = None,
    ) -> None:
        self.broker = broker
        self.directory = directory
        self.messages = messages
        self.pending = pending
        """Messages of the figure `pending`."""
        self.spark_messages = spark_messages
        """Messages of each part of the figure `spark`; None: those of
        docs/contributing/results.md."""
        self.say = say
        self.rows: list[Row] = []
        self.stages: dict[str, float] = {}
        """Microseconds per message, by stage of the hot path."""
        self._made = 0
        self._bare: list[float] = []
        self._tuned: list[float] = []

    # --- parts

    def name(self, stem: str) -> str:
        """A unique name for topics and directories."""
        self._made += 1
        return f"{stem}{self._made}"

    def service(self, prefix: str, *, shards: int = 1, **settings: object) -> Service:
        """A node on the broker with separate topics."""
        topics = {
            f"topics.{kind}": f"{prefix}.{kind}"
            for kind in ("delay", "progress", "rejected", "dead_letter")
        }
        return Service(
            self.directory / prefix,
            bootstrap=self.broker.bootstrap,
            settings={"cluster": prefix, "shards": shards, **topics, **settings},
        )

    def create(self, topic: str) -> None:
        """Create a topic with one partition."""
        self.broker.create_topic(topic)

    def process(self, function: str, **arguments: Any) -> subprocess.Popen[str]:
        """Start a function of `load` in a separate process."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.bench.load", function, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def result(self, process: subprocess.Popen[str]) -> Any:
        """Wait for the process and return its result."""
        output, _ = process.communicate(timeout=1_800)
        if process.returncode:
            raise RuntimeError(f"a load process exited with {process.returncode}")
        return json.loads(output)

    def add(self, figure: str, measured: str, bar: str, passed: bool, **detail: Any) -> None:
        """Add a row to the table, and print it."""
        self.rows.append(
            Row(figure=figure, measured=measured, bar=bar, passed=passed, detail=detail)
        )
        self.say(f"{'ok  ' if passed else 'MISS'} {figure}: {measured} (bar {bar})")

    # --- the references

    def pass_through(
        self, source: str, target: str, count: int, *, tuned: bool, targets: int = 1
    ) -> float:
        """Run `load.pass_through` in a separate process; messages per second."""
        rate: float = self.result(
            self.process(
                "pass_through",
                bootstrap=self.broker.bootstrap,
                source=source,
                target=target,
                count=count,
                tuned=tuned,
                targets=targets,
            )
        )
        return rate

    def reference(self) -> None:
        """Measure both references once more."""
        source = self.name("pass-in")
        self.create(source)
        load.fill(
            self.broker.bootstrap, source, source, self.messages, 0, keyed=False, partitions=1
        )
        for tuned, rates in ((False, self._bare), (True, self._tuned)):
            target = self.name("pass-out")
            self.create(target)
            rates.append(self.pass_through(source, target, self.messages, tuned=tuned))
        self.say(f"     PT {self._bare[-1]:,.0f}/s, tuned {self._tuned[-1]:,.0f}/s")

    @property
    def pt(self) -> float:
        """PT: the rate of the plain pass-through, median of all measurements."""
        return statistics.median(self._bare)

    @property
    def tuned(self) -> float:
        """The rate of the pass-through with a tuned consumer, median of all measurements."""
        return statistics.median(self._tuned)

    def add_references(self) -> None:
        """Add the rows of the references."""
        self.add("PT, a bare pass-through", f"{self.pt:,.0f}/s", "-", True, rates=self._bare)
        self.add(
            "a pass-through with a tuned consumer",
            f"{self.tuned:,.0f}/s",
            "-",
            True,
            rates=self._tuned,
        )

    def add_ratio(self, figure: str, rate: float, bar: float) -> None:
        """Add a throughput as a multiple of PT, and of the tuned pass-through."""
        measured = (
            f"{rate / self.pt:.2f} PT ({rate:,.0f}/s; {rate / self.tuned:.2f} of a tuned one)"
        )
        self.add(figure, measured, f">= {bar} PT", rate >= bar * self.pt, rate=rate)


def progress_of(bench: Bench, topic: str, shard: int, shards: int) -> list[tuple[int, Progress]]:
    """`(broker timestamp, progress record)` of every progress record of a shard, in order."""
    found: list[tuple[int, Progress]] = []
    for messages in load.read(bench.broker.bootstrap, topic, shard, idle=False):
        if messages is None:
            return found
        found += [
            (message.timestamp()[1], unpack_progress(message.value(), shards))
            for message in messages
        ]
    return found


def throughput(
    bench: Bench,
    *,
    shards: int,
    keyed: bool,
    drain: bool,
    failing: float = 0.0,
    misplaced: bool = False,
) -> tuple[float, float]:
    """`(ingested, drained)` messages per second, by the broker's timestamps of the progress
    records.

    `failing`: the share of them that is too large for its target, which is dead-lettered.
    `misplaced`: each is forwarded."""
    prefix = bench.name("flow")
    target = f"{prefix}.out"
    count = bench.messages
    bench.create(target)
    failed = int(count * failing)

    def fill(due_ms: int) -> None:
        load.fill(
            bench.broker.bootstrap,
            f"{prefix}.delay",
            target,
            count - failed,
            due_ms,
            keyed=keyed,
            partitions=shards,
            misplaced=misplaced,
        )
        if failed:
            small = f"{prefix}.small"
            bench.broker.create_topic(small, config={"max.message.bytes": "100"})
            load.fill(
                bench.broker.bootstrap,
                f"{prefix}.delay",
                small,
                failed,
                due_ms,
                keyed=keyed,
                partitions=shards,
            )

    # Due after the end of the ingest, whose duration is estimated from the reference.
    due_in_ms = 25_000 + int(count / bench.tuned * 4_000) if drain else None
    found = flow(bench, prefix, fill, count, due_in_ms=due_in_ms, shards=shards)
    return found.ingested, found.drained


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What a service did with a delay topic that was full when it started."""

    ingested: float
    """Messages per second, by the broker's timestamps of the progress records."""
    drained: float
    """0 if the messages were not to become due."""
    resident_bytes: int
    """Memory of the service at the end."""


def flow(
    bench: Bench,
    prefix: str,
    fill: Callable[[int], None],
    count: int,
    *,
    due_in_ms: int | None,
    shards: int = 1,
) -> Flow:
    """Fill the delay topic of a service that does not run, and measure how it ingests and drains
    that.

    `fill`: writes `count` messages that are due at a time (epoch ms). `due_in_ms`: how long after
    the beginning of the fill that is, at least until everything is ingested; None: the messages
    become due after the measurement."""
    service = bench.service(prefix, shards=shards, **{"workers.push": "off"})
    with service:
        service.start()
        service.stop()
    due_ms = time.time_ns() // 1_000_000 + (3_600_000 if due_in_ms is None else due_in_ms)
    fill(due_ms)
    service.settings["workers.push"] = "on"
    with service:
        service.start()
        service.wait_until(
            lambda: service.pending() >= count, "ingest everything", timeout_s=120, every_s=POLL_S
        )
        assert time.time_ns() // 1_000_000 < due_ms or due_in_ms is None, (
            "the ingest took longer than estimated"
        )
        if due_in_ms is not None:
            service.wait_until(
                lambda: service.pending() == 0,
                "drain",
                timeout_s=240 + (due_ms / 1_000 - time.time()),
                every_s=POLL_S,
            )
        resident_bytes = service.resident_bytes()
        service.stop()
    ingested, drained = rates(
        bench, prefix, count, None if due_in_ms is None else due_ms, shards=shards
    )
    return Flow(ingested=ingested, drained=drained, resident_bytes=resident_bytes)


def rates(
    bench: Bench, prefix: str, count: int, due_ms: int | None, *, shards: int
) -> tuple[float, float]:
    """`(ingested, drained)` messages per second of a service that has taken in `count` messages
    after a restart, by its progress records; not drained if `due_ms` is None."""
    records = records_of(bench, prefix, shards)
    ingests = [(at, record) for at, record in records if record.selected == 0]
    pulls = sorted(at for at, record in ingests if record.pull_offset > 0)
    begun = min(at for at, record in records if record.log_epoch == 2)
    ingested = count / ((pulls[-1] - begun) / 1_000)
    if due_ms is None:
        return ingested, 0.0
    return ingested, drained(records, count, due_ms)


def records_of(bench: Bench, prefix: str, shards: int) -> list[tuple[int, Progress]]:
    """`progress_of` all shards of a service."""
    return [
        record
        for shard in range(shards)
        for record in progress_of(bench, f"{prefix}.progress", shard, shards)
    ]


def drained(records: Sequence[tuple[int, Progress]], count: int, due_ms: int) -> float:
    """Messages per second from the time at which `count` of them were due to the last commit."""
    settled = [at for at, record in records if record.selected > 0]
    # The messages are due within one second: a drain that takes less than that would not be
    # measured.
    return count / ((max(settled) - due_ms) / 1_000)


def figure_throughput(bench: Bench) -> None:
    """Ingest and drain with one shard and with four; references before, between and after."""
    bench.reference()
    runs: dict[str, list[float]] = {
        name: [] for name in ("ingest", "drain", "keyed", "ingest4", "drain4")
    }
    for _ in range(3):
        ingest, drain = throughput(bench, shards=1, keyed=False, drain=True)
        keyed, _ = throughput(bench, shards=1, keyed=True, drain=False)
        bench.reference()
        ingest4, drain4 = throughput(bench, shards=4, keyed=False, drain=True)
        for name, rate in zip(runs, (ingest, drain, keyed, ingest4, drain4), strict=True):
            runs[name].append(rate)
        bench.say("     " + "  ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in runs.items()))
    bench.reference()
    figures = (
        ("ingest", f"ingest {bench.messages:,} without keys", 0.9),
        ("keyed", f"ingest {bench.messages:,} with a key each", 0.6),
        ("drain", f"drain {bench.messages:,} due in the same second", 1.0),
        ("ingest4", "ingest, four shards in one process", 1.0),
        ("drain4", "drain, four shards in one process", 1.4),
    )
    bench.add_references()
    for name, figure, bar in figures:
        bench.add_ratio(figure, statistics.median(runs[name]), bar)


def figure_forwarding(bench: Bench) -> None:
    """Ingest into four shards of one process, of keys that are well placed and of keys that all
    have to be forwarded."""
    well, misplaced = [], []
    for _ in range(3):
        well.append(throughput(bench, shards=4, keyed=True, drain=False)[0])
        misplaced.append(throughput(bench, shards=4, keyed=True, drain=False, misplaced=True)[0])
        bench.say(f"     well placed {well[-1]:,.0f}/s  misplaced {misplaced[-1]:,.0f}/s")
    share = statistics.median(misplaced) / statistics.median(well)
    bench.add(
        f"ingest {bench.messages:,} keys, four shards in one process, each key forwarded",
        f"{statistics.median(misplaced):,.0f}/s, {share:.2f} of well-placed keys",
        ">= 0.5",
        share >= 0.5,
        well=well,
        misplaced=misplaced,
    )


def figure_steady(bench: Bench, seconds: float = 60.0) -> None:
    """Lateness under a steady load for a read_committed reader; the median of three runs."""
    usual = (10, 25, 100)
    for rate, bars in ((5_000, usual), (20_000, usual), (50_000, (None, 60, None))):
        runs = []
        for _ in range(3):
            runs.append(_steady(bench, rate, seconds))
            bench.say(f"     {rate}/s: {runs[-1]}")
        _add_lateness(bench, f"steady {rate:,}/s for {seconds:g} s", runs, bars)


def _steady(bench: Bench, rate: int, seconds: float, *, missing_rate: int = 0) -> dict[str, float]:
    """The lateness by `load.watch` of a steady load. `missing_rate`: messages a second besides, for
    a topic that does not exist."""
    prefix = bench.name("steady")
    target = f"{prefix}.out"
    bench.create(target)
    with bench.service(prefix, shards=1) as service:
        service.start()
        if missing_rate:
            arguments = {
                "topic": f"{prefix}.delay",
                "target": f"{prefix}.missing",
                "rate": missing_rate,
            }
            missing = bench.process(
                "generate", bootstrap=bench.broker.bootstrap, seconds=seconds, **arguments, **DELAYS
            )
        others, _ = start_steady(bench, bench.broker.bootstrap, prefix, target, rate, seconds)
        found = others()
        if missing_rate:
            bench.result(missing)
        service.stop()
    return found


def start_s(service: Service) -> float:
    """Start a service, and return how long it takes to be ready."""
    started = time.perf_counter()
    service.start()
    return time.perf_counter() - started


def start_steady(
    bench: Bench, bootstrap: str, prefix: str, target: str, rate: int, seconds: float
) -> tuple[Callable[[], dict[str, float]], int]:
    """Start a steady load; return a function that waits for its end and returns its lateness by
    `load.watch`, and its size."""
    count = int(rate * seconds)
    watcher = bench.process(
        "watch", bootstrap=bootstrap, topic=target, count=count, timeout_s=seconds + 60
    )
    source = {"topic": f"{prefix}.delay", "target": target, "rate": rate}
    generator = bench.process("generate", bootstrap=bootstrap, seconds=seconds, **source, **DELAYS)

    def result() -> dict[str, float]:
        bench.result(generator)
        found: dict[str, float] = bench.result(watcher)
        return found

    return result, count


def figure_single(bench: Bench, count: int = 1_000) -> None:
    """Lateness of single messages on an idle node."""
    prefix = bench.name("single")
    target = f"{prefix}.out"
    bench.create(target)
    with bench.service(prefix, shards=1) as service:
        service.start()
        watcher = bench.process(
            "watch", bootstrap=bench.broker.bootstrap, topic=target, count=count, timeout_s=180
        )
        bench.result(
            bench.process(
                "one_at_a_time",
                bootstrap=bench.broker.bootstrap,
                topic=f"{prefix}.delay",
                target=target,
                count=count,
                gap_s=0.06,
            )
        )
        run = bench.result(watcher)
        service.stop()
    _add_lateness(bench, f"one at a time, {count:,} of them", [run], (8, 25, None))


def figure_series(bench: Bench, seconds: float = 20.0) -> None:
    """Processor time of the service for 10,000 series of 1 s, and for 10,000 messages a second."""
    rate = 10_000
    cost_us: dict[str, list[float]] = {"message": [], "occurrence": []}
    for _ in range(3):
        for kind, costs in cost_us.items():
            prefix = bench.name(kind)
            target, delay = f"{prefix}.out", f"{prefix}.delay"
            bench.create(target)
            with bench.service(prefix, shards=1) as service:
                service.start()
                source = {"bootstrap": bench.broker.bootstrap, "topic": delay, "target": target}
                if kind == "message":
                    times = {
                        "rate": rate,
                        "seconds": seconds + 15.0,
                        "lowest_ms": 1_000,
                        "highest_ms": 2_000,
                    }
                    generator = bench.process("generate", **source, **times)
                else:
                    due_ms = time.time_ns() // 1_000_000 + 3_000
                    generator = bench.process(
                        "repeat", **source, count=rate, every_ms=1_000, due_ms=due_ms
                    )
                service.wait_until(lambda: _delivered(service) >= 4 * rate, "deliver", timeout_s=60)
                begun, cpu_s = _delivered(service), service.cpu_s()
                time.sleep(seconds)
                cpu_s = service.cpu_s() - cpu_s
                delivered = _delivered(service) - begun
                bench.result(generator)
                service.stop()
            assert delivered >= 0.5 * rate * seconds, (
                f"only {delivered:,} deliveries in {seconds:g} s"
            )
            costs.append(cpu_s * 1_000_000 / delivered)
        bench.say(
            "     " + "  ".join(f"{kind} {costs[-1]:.1f} us" for kind, costs in cost_us.items())
        )
    message_us, occurrence_us = (statistics.median(costs) for costs in cost_us.values())
    ratio = occurrence_us / message_us
    bench.add(
        "processor time of an occurrence, 10,000 series of 1 s",
        f"{ratio:.2f} of that of a message, 10,000/s ({occurrence_us:.1f} and {message_us:.1f} us)",
        "<= 1.0",
        ratio <= 1.0,
        runs=cost_us,
    )


def _delivered(service: Service) -> int:
    return sum(int(shard["totals"]["delivered"]) for shard in service.shards())


def figure_failing(bench: Bench, seconds: float = 30.0) -> None:
    """The others, while a fifth of the messages fails permanently, and while a target does not
    exist."""
    bench.reference()
    rates: dict[str, list[float]] = {"clean": [], "failing": []}
    for _ in range(3):
        for kind, found in rates.items():
            _, drained = throughput(
                bench, shards=1, keyed=False, drain=True, failing=0.2 * (kind == "failing")
            )
            found.append(drained)
        bench.say(
            "     " + "  ".join(f"{kind} {found[-1]:,.0f}/s" for kind, found in rates.items())
        )
    clean, failing = (statistics.median(found) for found in rates.values())
    share = 0.8 * failing / clean
    bench.add(
        f"drain {bench.messages:,} of which 20 % fail permanently",
        (
            f"the others at {share:.2f} of a clean run, all at {failing / clean:.2f} "
            f"({failing:,.0f}/s and {clean:,.0f}/s)"
        ),
        ">= 0.8 of a clean run",
        share >= 0.8,
        runs=rates,
    )
    late: dict[str, list[float]] = {"clean": [], "missing": []}
    for _ in range(3):
        for kind, p99_ms in late.items():
            run = _steady(bench, 5_000, seconds, missing_rate=1_000 * (kind == "missing"))
            assert run["early"] + run["lost"] + run["duplicated"] == 0, run
            p99_ms.append(run["p99_ms"])
        bench.say(
            "     " + "  ".join(f"{kind} p99 {p99_ms[-1]:.1f} ms" for kind, p99_ms in late.items())
        )
    clean_ms, missing_ms = (statistics.median(p99_ms) for p99_ms in late.values())
    bench.add(
        f"p99 at 5,000/s, beside 1,000/s for a missing topic, {seconds:g} s",
        f"{missing_ms:.1f} ms, without them {clean_ms:.1f} ms",
        "< 50 ms more",
        missing_ms - clean_ms < 50,
        runs=late,
    )


def _add_lateness(
    bench: Bench, figure: str, runs: list[dict[str, float]], bars: tuple[float | None, ...]
) -> None:
    names = ("p50_ms", "p99_ms", "p999_ms")
    medians = {name: statistics.median(run[name] for run in runs) for name in names}
    wrong = sum(run["early"] + run["lost"] + run["duplicated"] for run in runs)
    worst = max(run["max_ms"] for run in runs)
    passed = wrong == 0 and all(
        bar is None or medians[name] <= bar for name, bar in zip(names, bars, strict=True)
    )
    measured = (
        f"p50 {medians['p50_ms']:.1f}, p99 {medians['p99_ms']:.1f}, p99.9 "
        f"{medians['p999_ms']:.1f}, max {worst:.1f} ms; {wrong:g} early, lost or duplicated"
    )
    bar = ", ".join(
        f"{name[:-3]} <= {bar} ms" for name, bar in zip(names, bars, strict=True) if bar is not None
    )
    bench.add(figure, measured, bar, passed, runs=runs)


def figure_http(bench: Bench, batches: int = 400) -> None:
    """Messages per second accepted durably over HTTP by the embedded log, 500 per request."""
    rate, cost_us = _over_http(bench, batches, with_tls=False)
    bench.add(
        "embedded log over HTTP, batches of 500",
        f"{rate:,.0f}/s",
        ">= 20,000/s",
        rate >= 20_000,
        rate=rate,
    )
    secured, secured_us = _over_http(bench, batches, with_tls=True)
    bench.add(
        "the same with TLS, a handshake for each batch, and a bearer token",
        (
            f"{secured:,.0f}/s; {secured_us:.1f} us of processor time a message, {cost_us:.1f} us "
            "without"
        ),
        "-",
        True,
        rate=secured,
        cost_us=secured_us,
        plain_us=cost_us,
    )


def _over_http(bench: Bench, batches: int, *, with_tls: bool) -> tuple[float, float]:
    """Messages per second over HTTP, and the service's processor time for one (us), without or with
    TLS and a bearer token."""
    name = bench.name("http")
    settings: dict[str, object] = {"shards": 4, "logging.level": "warning"}
    access: dict[str, str] = {}
    if with_tls:
        folder = bench.directory / f"{name}-access"
        folder.mkdir()
        access = {"authority": str(folder / "node.pem"), "token": "writer"}
        entry = {
            "name": "writer",
            "sha256": hashlib.sha256(b"writer").hexdigest(),
            "roles": ["write"],
        }
        (folder / "tokens.yaml").write_text(json.dumps({"tokens": [entry]}))
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        of = ["-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(folder / "node.key"), "-out", access["authority"]]
        subprocess.run([*new, *of, *files], check=True, capture_output=True, timeout=60)
        settings |= {
            "admin.tokens": folder / "tokens.yaml",
            "admin.tls.certificate": folder / "node.pem",
            "admin.tls.key": folder / "node.key",
        }
    with Service(bench.directory / name, settings=settings) as service:
        if with_tls:
            service.url = service.url.replace("http:", "https:")
            service.context = ssl.create_default_context(cafile=access["authority"])
        service.start()
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        generator = bench.process(
            "post",
            url=service.url + "/v1/messages",
            batches=batches,
            size=500,
            due_ms=due_ms,
            **access,
        )
        cpu_s = service.cpu_s()
        rate = float(bench.result(generator))
        cost_us = (service.cpu_s() - cpu_s) * 1e6 / (batches * 500)
        service.stop()
    return rate, cost_us


def figure_stages(bench: Bench) -> None:
    """The cost of a message by stage."""
    bench.stages = stages.measure()
    for stage, cost_us in bench.stages.items():
        bench.say(f"     {stage}: {cost_us:.2f} us")


def figure_floods(bench: Bench) -> None:
    """The others beside thousands of messages that cannot be delivered, or have as many targets."""
    from tests.bench import floods

    floods.figure_floods(bench)


def figure_pending(bench: Bench) -> None:
    """The ingest of many messages, and what they cost while they are pending."""
    from tests.bench import pending

    pending.figure_pending(bench)


def figure_shapes(bench: Bench) -> None:
    """Large payloads, many headers, many targets, one target key, and a broker far away."""
    from tests.bench import shapes

    shapes.figure_shapes(bench)


def figure_cost(bench: Bench) -> None:
    """Processor time at low rates, and that of an idle node with many shards."""
    from tests.bench import cost

    cost.figure_cost(bench)


def figure_processes(bench: Bench) -> None:
    """Two nodes on one machine against one."""
    from tests.bench import processes

    processes.figure_processes(bench)


def figure_bulk(bench: Bench) -> None:
    """Cancels by filter, and lists after them."""
    from tests.bench import cancelled

    operations.figure_bulk(bench)
    cancelled.figure_cancelled(bench)


def figure_restart(bench: Bench) -> None:
    """A start after a kill against one after a stop, with 16 and 64 shards."""
    from tests.bench import restart

    restart.figure_restart(bench)


def figure_plan(bench: Bench) -> None:
    """The processor time of one plan of the controller."""
    from tests.bench import plans

    plans.figure_plan(bench)


def figure_spark(bench: Bench) -> None:
    """The Spark jobs: records archived per second, time, memory and reach of an audit, messages
    replayed per second."""
    from tests.bench.spark_archive import archive_figure
    from tests.bench.spark_audit import audit_figure
    from tests.bench.spark_backfill import backfill_figure
    from tests.bench.spark_window import window_figure

    sizes = [] if bench.spark_messages is None else [bench.spark_messages]
    archive_figure(bench, *sizes)
    audit_figure(bench, *sizes)
    window_figure(bench, *sizes)
    backfill_figure(bench, *sizes)


FIGURES: dict[str, Callable[[Bench], None]] = {
    "throughput": figure_throughput,
    "forwarding": figure_forwarding,
    "steady": figure_steady,
    "single": figure_single,
    "pending": figure_pending,
    "shapes": figure_shapes,
    "http": figure_http,
    "series": figure_series,
    "failing": figure_failing,
    "bulk": figure_bulk,
    "limit": operations.figure_limit,
    "selector": operations.figure_selector,
    "replay": operations.figure_replay,
    "floods": figure_floods,
    "cost": figure_cost,
    "processes": figure_processes,
    "restart": figure_restart,
    "registry": registry.figure_registry,
    "plan": figure_plan,
    "stages": figure_stages,
    "spark": figure_spark,
}


def machine() -> str:
    """One line about the machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown processor",
    )
    return f"{model}, {os.cpu_count()} cores, Python {sys.version.split()[0]}"
