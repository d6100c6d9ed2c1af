"""Break a cluster of three nodes under load, and report; `scripts/chaos` starts it."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.broker import Broker
from tests.chaos.drill import Drill, Result
from tests.chaos.faults import FAULTS, Fault, epochs_complaints, plan
from tests.chaos.fleet import Fleet
from tests.zookeeper import Ensemble

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
    return report(result, wrong, arguments.rate)


def run(fleet: Fleet, broker: Broker, faults: list[Fault], rate: int, dice: random.Random) -> Result:
    """All faults under one load."""
    seconds = sum(FAULT_S[fault.name] for fault in faults) + 10.0
    out = Console(stderr=True)
    with Drill(broker, "chronos.delay", "chaos-target", rate=rate, seconds=seconds) as drill:
        for at, fault in enumerate(faults):
            if drill.over:
                raise SystemExit(f"the load ended before fault {at + 1} of {len(faults)}: the machine is too slow")
            drill.fault(fault.name, lambda fault=fault: fault.act(fleet, dice))  # type: ignore[misc]
            out.print(f"{at + 1}/{len(faults)} {fault.says}", highlight=False)
        return drill.result()


def report(result: Result, wrong: list[str], rate: int) -> int:
    """The table; 1 when a bar was missed."""
    table = Table("fault", "count", "late p50", "late max", "bar", "")
    missed = bool(wrong) or result.lost + result.doubled + result.early > 0
    for fault in FAULTS:
        worst = sorted(window.worst_ms for window in result.windows if window.name == fault.name)
        if not worst:
            continue
        kept = worst[-1] <= fault.late_s * 1_000
        missed |= not kept
        table.add_row(
            fault.says, str(len(worst)), f"{worst[len(worst) // 2] / 1_000:.2f} s", f"{worst[-1] / 1_000:.2f} s",
            f"<= {fault.late_s:g} s", "ok" if kept else "MISSED",
        )  # fmt: skip
    out = Console()
    out.print(table)
    out.print(
        f"{result.messages} messages at {rate}/s: {result.lost} lost, {result.doubled} doubled, {result.early} early",
        highlight=False,
    )
    for complaint in wrong:
        out.print(complaint, highlight=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
