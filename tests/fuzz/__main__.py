"""Attack a service beside a well-formed load, and report what the load noticed; `scripts/fuzz` runs
this."""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.fuzz import hostile, records, tenants
from tests.fuzz.hostile import Campaign, Goal, Statuses
from tests.fuzz.load import Figures, Load
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Topics

DESCRIPTORS = 4_096
"""The limit of open files of the service: that of the recommended unit of systemd."""

CAMPAIGNS: dict[str, Campaign] = {
    "quiet": hostile.quiet,
    "connections": hostile.connections,
    "reconnecting": hostile.reconnecting,
    "http": hostile.almost_http,
    "unread": hostile.unread,
    "numbers": hostile.numbers,
    "crons": hostile.crons,
    "records": records.records,
    "series": records.series,
    "bombs": records.bombs,
    "tenants": tenants.tenants,
    "timing": tenants.timing,
    "greedy": tenants.greedy,
}

ON_KAFKA = {"records", "series", "bombs"}
"""Campaigns against a service on a broker of its own; the others attack one on the embedded log."""

WITH_TOKENS = {"tenants", "timing", "greedy"}
"""Campaigns against a service with tokens."""

LATE_MS, RESIDENT_BYTES, LOG_BYTES, STOP_S = 250, 1 << 30, 1_000_000, 5.0
"""Bars: the 99th percentile of the lateness, resident memory, what is logged, and how long a stop
takes during an attack."""

STRICT = {"quiet", "unread", "numbers", "crons", "series", "greedy"}
"""Campaigns with the bars STRICT_LATE_MS, ALIVE_MS, and STRICT_BYTES more than the service without
a load."""

STRICT_LATE_MS, ALIVE_MS, STRICT_BYTES = 100, 250, 300 << 20
"""The 99th percentiles of the lateness and of the answers of `/livez`, and memory."""

BOMB_LATE_MS = 60_000
"""Beside bombs: the worst lateness."""

SETTLE_S = 2.0
"""How long the load runs alone before and after the attack."""


def run(
    service: Service, name: str, goal: Goal, seconds: float, seed: int
) -> tuple[Figures, Statuses]:
    """One campaign."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with Load(service, f"load-{name}", goal.bootstrap) as load:
            time.sleep(SETTLE_S)
            statuses = process.submit(hostile.attack, CAMPAIGNS[name], goal, seconds, seed).result()
            time.sleep(SETTLE_S)
        return load.figures(), statuses


@contextmanager
def attacked(name: str, folder: Path) -> Iterator[tuple[Service, Goal]]:
    """A service with the limit of open files, on the log that the campaign attacks."""
    with ExitStack() as stack:
        topics = Topics.of(name)
        settings: dict[str, object] = {}
        bootstrap = None
        if name in ON_KAFKA:
            broker = stack.enter_context(Broker())
            bootstrap = broker.bootstrap
            for topic in (f"load-{name}", f"target-{name}"):
                broker.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
            settings = dict(topics.settings())
        if name in WITH_TOKENS:
            settings["admin.tokens"] = tenants.token_file(folder)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
        service = stack.enter_context(
            Service(folder / "node", bootstrap=bootstrap, settings=settings)
        )
        service.token = tenants.EVERYTHING if name in WITH_TOKENS else ""
        service.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield service, Goal(service.port, bootstrap or "", topics.delay, f"target-{name}")


def stop_s(service: Service, name: str, goal: Goal, seed: int) -> float:
    """How long a stop takes during another attack of the same kind."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        attack = process.submit(hostile.attack, CAMPAIGNS[name], goal, 3 * SETTLE_S, seed)
        time.sleep(2 * SETTLE_S)
        began_s = time.monotonic()
        service.stop()
        took_s = time.monotonic() - began_s
        attack.result()
    return took_s


def missed(
    name: str, figures: Figures, statuses: Statuses, quiet_bytes: int, service: Service
) -> list[str]:
    """The bars that were missed."""
    _, late_ms, worst_ms = figures.late_ms
    late_ms_max = STRICT_LATE_MS if name in STRICT else LATE_MS
    bytes_max = quiet_bytes + STRICT_BYTES if name in STRICT else RESIDENT_BYTES
    found = {
        "a message was not delivered exactly once": figures.wrong > 0,
        f"the lateness is more than {late_ms_max} ms": late_ms > late_ms_max and name != "bombs",
        f"/livez takes more than {ALIVE_MS} ms": figures.alive_ms[1] > ALIVE_MS and name in STRICT,
        f"the worst lateness is more than {BOMB_LATE_MS} ms": worst_ms > BOMB_LATE_MS,
        # With tokens, each request that is refused or changes something is one line, those of the
        # load too.
        "too much log": figures.log_bytes > LOG_BYTES and name not in WITH_TOKENS,
        "too much memory": figures.resident_bytes > bytes_max,
        "a request ended with 500": statuses["500"] > 0,
        "a tenant saw something of another": statuses["seen"] > 0,
        "a tenant changed something of another": statuses["changed"] > 0,
        (
            "what belongs to another takes a time of its own (medians more than "
            f"{tenants.APART:.0%} apart)"
        ): statuses["apart"] > 0,
        "the service is not ready": not service.is_ready(),
    }
    return [text for text, is_missed in found.items() if is_missed]


def main() -> int:
    """Run the campaigns; the exit code is 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument(
        "--campaigns", default=",".join(CAMPAIGNS), help=f"comma separated: {', '.join(CAMPAIGNS)}"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long each takes (default 30)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random choices (default 1)"
    )
    arguments = parser.parse_args()
    names = arguments.campaigns.split(",")
    if unknown := set(names) - set(CAMPAIGNS):
        parser.error(f"unknown campaigns: {', '.join(sorted(unknown))}")
    code = 0
    for name in names:
        with (
            tempfile.TemporaryDirectory() as folder,
            attacked(name, Path(folder)) as (service, goal),
        ):
            quiet_bytes = service.resident_bytes()
            figures, statuses = run(service, name, goal, arguments.seconds, arguments.seed)
            failures = missed(name, figures, statuses, quiet_bytes, service)
            stopped_s = stop_s(service, name, goal, arguments.seed)
            if stopped_s > STOP_S:
                failures.append(f"a stop takes more than {STOP_S:g} s")
            events = Counter(
                line.partition('"event":')[2][:40] for line in service.tail(10_000).splitlines()
            )
        measured = (figures.late_ms, figures.answer_ms, figures.alive_ms)
        late, answers, alive = (" / ".join(map(str, each)) for each in measured)
        print(
            f"{name}: {figures.accepted} messages, {figures.refused} refused, {figures.wrong} "
            f"wrong; lateness {late} ms (median / p99 / worst), answers {answers} ms, /livez "
            f"{alive} ms; {figures.resident_bytes >> 20} MiB "
            f"({(figures.resident_bytes - quiet_bytes) >> 20} more than before the load), "
            f"{figures.log_bytes} bytes of log; stopped in {stopped_s:.1f} s; answers to the "
            f"attack {dict(statuses.most_common())}"
        )
        for text in failures:
            code = 1
            print(f"  missed: {text}; log lines {events.most_common(5)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
