"""Break a cluster of three nodes under load, and report; `scripts/chaos` starts it."""

import argparse
import datetime
import os
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.broker import Broker
from tests.chaos.drill import GAP_S, Drill, Result
from tests.chaos.faults import FAULTS, Fault, epochs_complaints, plan
from tests.chaos.fleet import Fleet
from tests.zookeeper import Ensemble

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

FAULT_S = {"kill": 14, "freeze": 24, "transfer": 4, "roll": 24, "disk": 20}
"""About how long each takes until the cluster is whole again: for how long the load must last."""


def main() -> int:
    """Run the faults; 1 when a bar was missed."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--faults", default=",".join(names), help=f"comma separated: {', '.join(names)}")
    parser.add_argument("--count", type=int, help="how often each; default: as docs/reliability.md says")
    parser.add_argument("--rate", type=int, default=5_000, help="messages a second (default 5000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write the table into docs/reliability.md")
    arguments = parser.parse_args()
    chosen = arguments.faults.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    faults = list(plan(chosen, arguments.count))
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker() as broker,
        Ensemble() as zookeeper,
        Fleet(Path(folder), bootstrap=broker.bootstrap, zookeeper=zookeeper.hosts) as fleet,
    ):
        fleet.start()
        result = run(fleet, broker, faults, arguments.rate, random.Random(arguments.seed))
        wrong = epochs_complaints(broker, "chronos.progress", fleet.shards)
    if arguments.keep:
        keep(result, wrong, arguments.rate)
    return report(result, wrong, arguments.rate)


def run(fleet: Fleet, broker: Broker, faults: list[Fault], rate: int, dice: random.Random) -> Result:
    """All faults under one load."""
    seconds = sum(FAULT_S[fault.name] + GAP_S for fault in faults) + 10.0
    out = Console(stderr=True)
    with Drill(broker, "chronos.delay", "chaos-target", rate=rate, seconds=seconds) as drill:
        for at, fault in enumerate(faults):
            if drill.over:
                raise SystemExit(f"the load ended before fault {at + 1} of {len(faults)}: the machine is too slow")
            drill.fault(fault.name, lambda fault=fault: fault.act(fleet, dice))  # type: ignore[misc]
            out.print(f"{at + 1}/{len(faults)} {fault.says}", highlight=False)
        return drill.result()


def rows(result: Result) -> list[tuple[str, int, str, str, str, bool]]:
    """For each fault: its name, how often, the median and the worst lateness, the bar, and whether it was kept."""
    found = []
    for fault in FAULTS:
        worst = sorted(window.worst_ms for window in result.windows if window.name == fault.name)
        if worst:
            median, most = worst[len(worst) // 2] / 1_000, worst[-1] / 1_000
            found.append(
                (
                    fault.says,
                    len(worst),
                    f"{median:.2f} s",
                    f"{most:.2f} s",
                    f"<= {fault.late_s:g} s",
                    most <= fault.late_s,
                )
            )
    return found


def summary(result: Result, wrong: list[str], rate: int) -> str:
    """What was wrong over the whole run."""
    return (
        f"{result.messages:,} messages at {rate:,}/s: {result.lost} lost, {result.doubled} doubled, {result.early} early,"
        f" {len(wrong)} commits of a deposed master"
    )


def keep(result: Result, wrong: list[str], rate: int) -> None:
    """Write the table between the markers of docs/reliability.md."""
    lines = [
        f"Measured on {datetime.date.today()} by `./scripts/chaos`: {os.cpu_count()} cores for nodes, Kafka, ZooKeeper and load"
        f" together. {summary(result, wrong, rate)}.",
        "",
        "| fault | count | lateness, median of the worst | lateness, worst | bar | |",
        "|---|---|---|---|---|---|",
        *(
            f"| {says} | {count} | {median} | {most} | {bar} | {'ok' if kept else '**missed**'} |"
            for says, count, median, most, bar, kept in rows(result)
        ),
    ]
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


def report(result: Result, wrong: list[str], rate: int) -> int:
    """The table; 1 when a bar was missed."""
    table = Table("fault", "count", "late p50", "late max", "bar", "")
    missed = bool(wrong) or result.lost + result.doubled + result.early > 0
    for says, count, median, most, bar, kept in rows(result):
        missed |= not kept
        table.add_row(says, str(count), median, most, bar, "ok" if kept else "MISSED")
    out = Console()
    out.print(table)
    out.print(summary(result, wrong, rate), highlight=False)
    for complaint in wrong:
        out.print(complaint, highlight=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
