"""Attack a service beside a well-formed load, and report what the load noticed; `scripts/fuzz` runs this."""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.hostile import CAMPAIGNS, Statuses, attack
from tests.fuzz.load import Figures, Load
from tests.harness.service import Service

DESCRIPTORS = 4_096
"""The limit of open files of the service: that of the recommended unit of systemd."""

LATE_MS, RESIDENT_BYTES, LOG_BYTES = 250, 1 << 30, 1_000_000
"""Bars: the 99th percentile of the lateness, resident memory, and what is logged."""

SETTLE_S = 2.0
"""How long the load runs alone before and after the attack."""


def run(service: Service, name: str, seconds: float, seed: int) -> tuple[Figures, Statuses]:
    """One campaign."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with Load(service, f"load-{name}") as load:
            time.sleep(SETTLE_S)
            statuses = process.submit(attack, name, service.port, seconds, seed).result()
            time.sleep(SETTLE_S)
        return load.figures(), statuses


def missed(figures: Figures, statuses: Statuses, service: Service) -> list[str]:
    """The bars that were missed."""
    found = {
        "a message was not delivered exactly once": figures.wrong > 0,
        f"the lateness is more than {LATE_MS} ms": figures.late_ms[1] > LATE_MS,
        "too much memory": figures.resident_bytes > RESIDENT_BYTES,
        "too much log": figures.log_bytes > LOG_BYTES,
        "a request ended with 500": statuses["500"] > 0,
        "the service is not ready": not service.is_ready(),
    }
    return [text for text, is_missed in found.items() if is_missed]


def main() -> int:
    """Run the campaigns; the exit code is 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--campaigns", default=",".join(CAMPAIGNS), help=f"comma separated: {', '.join(CAMPAIGNS)}")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each takes (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default 1)")
    arguments = parser.parse_args()
    names = arguments.campaigns.split(",")
    if unknown := set(names) - set(CAMPAIGNS):
        parser.error(f"unknown campaigns: {', '.join(sorted(unknown))}")
    code = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
            service = Service(Path(folder) / "node")
            with service.start():
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                figures, statuses = run(service, name, arguments.seconds, arguments.seed)
                failures = missed(figures, statuses, service)
                events = Counter(line.partition('"event":')[2][:40] for line in service.tail(10_000).splitlines())
        late, answers = (" / ".join(map(str, each)) for each in (figures.late_ms, figures.answer_ms))
        print(
            f"{name}: {figures.accepted} messages, {figures.refused} refused, {figures.wrong} wrong; lateness {late} ms"
            f" (median / p99 / worst), answers {answers} ms; {figures.resident_bytes >> 20} MiB, {figures.log_bytes} bytes"
            f" of log; answers to the attack {dict(statuses.most_common())}"
        )
        for text in failures:
            code = 1
            print(f"  missed: {text}; log lines {events.most_common(5)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
