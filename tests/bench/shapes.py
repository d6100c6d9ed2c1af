"""The figure `shapes`: messages unlike those of the other figures, and a broker far away. No row
may fall off a cliff that docs/contributing/results.md does not name."""

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from chronos.workers.step.push import TARGETS_MAX
from tests.bench import load
from tests.bench.figures import Bench, flow, start_steady
from tests.bench.load import Shape
from tests.harness.broker import Broker
from tests.harness.ports import free_port
from tests.harness.proxy import Network

BYTES = 400_000_000
"""Payloads of a row together, at most."""

SHAPES = {
    "200 bytes": Shape(),
    "10 kB": Shape(value_bytes=10_000),
    "100 kB": Shape(value_bytes=100_000),
    "1 MB": Shape(value_bytes=1_000_000 - 1_000),
    "30 more headers": Shape(headers=30),
    "one target key": Shape(target_key=True),
    "100 targets": Shape(targets=100),
    "1,000 targets": Shape(targets=1_000),
}

MANY_TARGETS = 20_000
"""Messages for more targets than one transaction has; a pass-through whose transactions have as
many times out."""

ROUND_TRIP_S = 0.02
"""To a broker far away."""

FAR_RATES = (100, 5_000)
"""Messages a second to and from it."""


def figure_shapes(bench: Bench) -> None:
    """Ingest and drain of each shape, beside a tuned pass-through of the same records."""
    for name, shape in SHAPES.items():
        _measure(bench, name, shape)
    _measure_far(bench)


def _measure(bench: Bench, name: str, shape: Shape) -> None:
    prefix = bench.name("shape")
    count = min(bench.messages, BYTES // shape.value_bytes)
    compared = shape.targets <= TARGETS_MAX
    if not compared:
        count = min(count, MANY_TARGETS)
    delay, target = f"{prefix}.delay", f"{prefix}.out"
    passed = bench.name("passed")
    _create(bench, target, shape.targets)
    if compared:
        _create(bench, passed, shape.targets)
    tuned = None

    def fill(due_ms: int) -> None:
        nonlocal tuned
        load.fill(
            bench.broker.bootstrap,
            delay,
            target,
            count,
            due_ms,
            keyed=False,
            partitions=1,
            shape=shape,
        )
        if compared:
            tuned = bench.pass_through(delay, passed, count, tuned=True, targets=shape.targets)

    # After the pass-through, which shows how long the ingest takes, and the start.
    done = flow(bench, prefix, fill, count, due_in_ms=45_000)
    found = done.ingested, done.drained
    megabytes = shape.value_bytes / 1e6
    ratios = [f" ({rate / tuned:.2f} of a tuned pass-through)" if tuned else "" for rate in found]
    bench.add(
        f"{name}: {count:,} messages",
        (
            f"ingest {found[0]:,.0f}/s{ratios[0]}, drain {found[1]:,.0f}/s{ratios[1]}, "
            f"{found[1] * megabytes:,.0f} MB/s; {done.resident_bytes / 2**20:.0f} MiB resident"
        ),
        "-",
        True,
        ingested=found[0],
        drained=found[1],
        tuned=tuned,
    )


def _create(bench: Bench, name: str, topics: int) -> None:
    names = [name] if topics == 1 else [f"{name}{at}" for at in range(topics)]
    new = [NewTopic(each, 1, config={"max.message.bytes": "2000000"}) for each in names]
    admin = bench.broker.admin()
    for created in admin.create_topics(new, request_timeout=120).values():
        created.result(120)


def _measure_far(bench: Bench) -> None:
    """The lateness with a broker that is 20 ms away, there and back."""
    near = bench.broker
    port = free_port()
    with Network() as network:
        link = network.link(port, delay_s=ROUND_TRIP_S / 2)
        with Broker(heap_mb=1024, for_load=True, doors={"FAR": (port, link.port)}) as broker:
            bench.broker = broker
            try:
                for rate in FAR_RATES:
                    _add_far(bench, link.address, rate)
            finally:
                bench.broker = near


def _add_far(bench: Bench, address: str, rate: int) -> None:
    prefix = bench.name("far")
    target = f"{prefix}.out"
    bench.create(target)
    with bench.service(prefix, shards=1) as service:
        service.settings["log.kafka.bootstrap_servers"] = address
        service.start()
        found, _ = start_steady(bench, bench.broker.bootstrap, prefix, target, rate, 20.0)
        late = found()
        service.stop()
    wrong = late["early"] + late["lost"] + late["duplicated"]
    bench.add(
        f"a broker {ROUND_TRIP_S * 1_000:.0f} ms away, {rate:,}/s",
        (
            f"p50 {late['p50_ms']:.0f}, p99 {late['p99_ms']:.0f}, max {late['max_ms']:.0f} ms for "
            f"a reader beside the broker; {wrong:g} early, lost or duplicated"
        ),
        "-",
        wrong == 0,
        runs=[late],
    )
