"""Break a cluster of three nodes under load, and report; `scripts/chaos` starts it."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tests.chaos.drill import GAP_S, Drill
from tests.chaos.faults import FAULTS, Fault, epochs_complaints, plan
from tests.chaos.report import Report
from tests.chaos.world import Scene, World, bring_up
from tests.harness.service import ServiceError

LEG_S = 600.0
"""How long one fleet is kept: what it has delivered grows with time, and with it what a lost disk has to read again."""

PATIENCE = 2.0
"""A run that takes so many times longer than estimated is ended: the machine is too slow, or something hangs."""

TELL = Console(stderr=True, highlight=False)


def main() -> int:
    """Run the faults; 1 when a bar was missed."""
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--faults", default=",".join(names), help=f"comma separated: {', '.join(names)}")
    parser.add_argument("--count", type=int, help="how often each; default: as docs/reliability.md says")
    parser.add_argument("--rate", type=int, default=5_000, help="messages a second at most (default 5000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write the table into docs/reliability.md")
    arguments = parser.parse_args()
    chosen = arguments.faults.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    legs = [leg for scene, faults in plan(chosen, arguments.count) for leg in cut(scene, faults)]
    estimate_s = sum(leg_s(scene, faults) for scene, faults in legs)
    TELL.print(
        f"{sum(len(faults) for _, faults in legs)} faults on {len(legs)} fleets, one after the other:"
        f" about {estimate_s / 60:.0f} minutes, at most {PATIENCE * estimate_s / 60:.0f}"
    )
    report = Report(rate=arguments.rate)
    dice = random.Random(arguments.seed)
    deadline = time.monotonic() + PATIENCE * estimate_s
    for scene, faults in legs:
        run(scene, faults, report, dice, deadline)
    report.show()
    if arguments.keep:
        report.keep(" ".join(["./scripts/chaos", *sys.argv[1:]]))
    return 1 if report.missed else 0


def cut(scene: Scene, faults: list[Fault]) -> Iterator[tuple[Scene, list[Fault]]]:
    """The faults of a scene in legs: each has a fleet, and a load, of its own."""
    leg: list[Fault] = []
    for fault in faults:
        if leg and leg_s(scene, [*leg, fault]) > LEG_S:
            yield scene, leg
            leg = []
        leg.append(fault)
    if leg:
        yield scene, leg


def leg_s(scene: Scene, faults: list[Fault]) -> float:
    """About how long a leg takes."""
    return scene.start_s + scene.warm_s + sum(fault.takes_s + GAP_S for fault in faults)


def run(scene: Scene, faults: list[Fault], report: Report, dice: random.Random, deadline: float) -> None:
    """One leg. A fault that fails ends it: what comes after it would be judged on a cluster that is not whole."""
    with tempfile.TemporaryDirectory() as folder, bring_up(Path(folder), scene) as world:
        rate = min(report.rate, scene.rate_max)
        left_s = max(1.0, deadline - time.monotonic())
        with Drill(
            world.kafka, "chronos.delay", "chaos-target", rate=rate, seconds_max=left_s + LEG_S, warm_s=scene.warm_s
        ) as drill:
            for at, fault in enumerate(faults):
                if time.monotonic() > deadline:
                    report.wrong.append(f"no time was left for {len(faults) - at} faults ({scene.name})")
                    break
                try:
                    drill.fault(fault.name, lambda fault=fault: fault.act(world, dice))  # type: ignore[misc]
                except (AssertionError, ServiceError, OSError) as error:
                    TELL.print(f"FAILED: {fault.says}: {error}", markup=False)
                    report.wrong.append(f"{fault.says}: {first_line(error)}; {len(faults) - at - 1} faults left undone")
                    break
                TELL.print(f"{scene.name} {at + 1}/{len(faults)}: {fault.says}")
            report.add(drill.result(), rate)
        report.wrong += complaints(world, faults)


def complaints(world: World, faults: list[Fault]) -> list[str]:
    """What the logs and the stores say of a leg, once nothing is on its way any more."""
    found = epochs_complaints(world.kafka, "chronos.progress", world.fleet.shards)
    if any(fault.name == "disk" for fault in faults):
        found += world.fleet.digest_complaints()
    return found


def first_line(error: BaseException) -> str:
    """An error without the log that follows it."""
    return (str(error) or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
