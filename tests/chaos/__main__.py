"""Break a cluster of three nodes under load and report the outcome; `scripts/chaos` runs this."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tests.chaos.clocks import kill_under_clocks
from tests.chaos.drill import GAP_S, Drill
from tests.chaos.faults import FAULTS, OF_ZOOKEEPER, Fault, epochs_complaints, plan
from tests.chaos.kills import kill_at_first_start, kill_on_embedded_log, kill_on_kafka
from tests.chaos.report import Report
from tests.chaos.world import Scene, World, bring_up
from tests.harness.broker import Broker
from tests.harness.service import ServiceError

LEG_S = 600.0
"""How long one cluster is used: its logs grow with time, and a node that lost its disk reads them
from the start."""

PATIENCE = 2.0
"""The run is ended after this multiple of the estimate: the machine is too slow, or something
hangs."""

KILL_S = 1.5
"""About how long one kill of a single node takes."""

PROGRESS = Console(stderr=True, highlight=False)


def main() -> int:
    """Run the faults; the exit code is 1 if a bar was missed."""
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--faults", default=",".join(names), help=f"comma separated: {', '.join(names)}"
    )
    parser.add_argument(
        "--count",
        type=int,
        help="how often each fault; default: as in docs/contributing/results.md",
    )
    parser.add_argument(
        "--coordinator",
        choices=["zookeeper", "kafka", "raft"],
        default="kafka",
        help="of the nodes (default kafka)",
    )
    parser.add_argument(
        "--rate", type=int, default=5_000, help="messages per second at most (default 5000)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random choices (default 1)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the table into docs/contributing/results.md"
    )
    parser.add_argument(
        "--kills",
        type=int,
        metavar="N",
        help=(
            "instead of the faults: kill -9 a single node N times at random moments on Kafka, on "
            "the embedded log, and during its first start, and check every message "
            "(./scripts/chaos --tests does it some tens of times)"
        ),
    )
    parser.add_argument(
        "--clocks",
        type=float,
        metavar="MINUTES",
        help=(
            "instead of the faults: kill nodes and brokers for so long, on three brokers of which "
            "two have clocks 400 ms apart and drifting, with all features, and check every message"
        ),
    )
    arguments = parser.parse_args()
    if arguments.clocks is not None:
        return kill_with_clocks(arguments.clocks, arguments.seed)
    if arguments.kills is not None:
        return kill_single_node(arguments.kills, arguments.seed)
    chosen = arguments.faults.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    if arguments.coordinator != "zookeeper":
        chosen = [name for name in chosen if name not in OF_ZOOKEEPER]
    legs = [leg for scene, faults in plan(chosen, arguments.count) for leg in cut(scene, faults)]
    estimate_s = sum(leg_s(scene, faults) for scene, faults in legs)
    PROGRESS.print(
        f"{sum(len(faults) for _, faults in legs)} faults on {len(legs)} clusters, one after the "
        f"other: about {estimate_s / 60:.0f} minutes, at most {PATIENCE * estimate_s / 60:.0f}"
    )
    report = Report(rate=arguments.rate)
    dice = random.Random(arguments.seed)
    deadline = time.monotonic() + PATIENCE * estimate_s
    for scene, faults in legs:
        run(scene, faults, report, dice, deadline, coordinator=arguments.coordinator)
    report.show()
    if arguments.keep:
        report.keep(" ".join(["./scripts/chaos", *sys.argv[1:]]), arguments.coordinator)
    return 1 if report.missed else 0


def kill_with_clocks(minutes: float, seed: int) -> int:
    """Kill nodes and brokers whose clocks differ; the exit code is 1 if a message has not exactly
    the ends that it may have."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            kill_under_clocks(Path(folder), seconds=60 * minutes, seed=seed, say=PROGRESS.print)
        except (AssertionError, ServiceError) as error:
            print(f"{minutes:g} minutes with clocks that differ, seed {seed}: FAILED: {error}")
            return 1
    print(f"{minutes:g} minutes with clocks that differ, seed {seed}: ok")
    return 0


def kill_single_node(kills: int, seed: int) -> int:
    """Kill a node on each log; the exit code is 1 if a message was lost, duplicated or early."""
    PROGRESS.print(f"{kills} kills of each kind: about {3 * kills * KILL_S / 60:.0f} minutes")
    failed = False
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        runs: dict[str, Callable[[], None]] = {
            "Kafka": lambda: kill_on_kafka(broker, Path(folder, "kafka"), kills=kills, seed=seed),
            "the embedded log": lambda: kill_on_embedded_log(
                Path(folder, "embedded"), kills=kills, seed=seed
            ),
            "the first start": lambda: kill_at_first_start(
                Path(folder, "first"), kills=kills, seed=seed
            ),
        }
        for subfolder in ("kafka", "embedded", "first"):
            Path(folder, subfolder).mkdir()
        for name, run_kills in runs.items():
            try:
                run_kills()
            except (AssertionError, ServiceError) as error:
                failed = True
                print(f"{kills} kills, {name}, seed {seed}: FAILED: {error}")
            else:
                print(f"{kills} kills, {name}, seed {seed}: ok")
    return 1 if failed else 0


def cut(scene: Scene, faults: list[Fault]) -> Iterator[tuple[Scene, list[Fault]]]:
    """Split the faults of a scene into legs; each leg has a new cluster and a new load."""
    leg: list[Fault] = []
    for fault in faults:
        if leg and leg_s(scene, [*leg, fault]) > LEG_S:
            yield scene, leg
            leg = []
        leg.append(fault)
    if leg:
        yield scene, leg


def leg_s(scene: Scene, faults: list[Fault]) -> float:
    """The estimated duration of a leg in seconds."""
    return scene.start_s + scene.warm_s + sum(fault.takes_s + GAP_S for fault in faults)


def run(
    scene: Scene,
    faults: list[Fault],
    report: Report,
    dice: random.Random,
    deadline: float,
    *,
    coordinator: str,
) -> None:
    """Run one leg. A fault that fails ends it: later ones would be judged on a cluster that is
    already broken."""
    with (
        tempfile.TemporaryDirectory() as folder,
        bring_up(Path(folder), scene, coordinator=coordinator) as world,
    ):
        rate = min(report.rate, scene.rate_max)
        left_s = max(1.0, deadline - time.monotonic())
        with Drill(
            world.kafka,
            "chronos.delay",
            "chaos-target",
            rate=rate,
            seconds_max=left_s + LEG_S,
            warm_s=scene.warm_s,
            reference=scene.reference,
        ) as drill:
            for at, fault in enumerate(faults):
                if time.monotonic() > deadline:
                    report.failures.append(
                        f"no time was left for {len(faults) - at} faults ({scene.name})"
                    )
                    break
                try:
                    drill.fault(fault.name, lambda fault=fault: fault.act(world, dice))  # type: ignore[misc]
                except (AssertionError, ServiceError, OSError) as error:
                    PROGRESS.print(f"FAILED: {fault.title}: {error}", markup=False)
                    report.failures.append(
                        f"{fault.title}: {first_line(error)}; {len(faults) - at - 1} faults not run"
                    )
                    break
                PROGRESS.print(f"{scene.name} {at + 1}/{len(faults)}: {fault.title}")
            report.add(drill.result(), rate)
        report.take_overs += world.fleet.take_overs()
        report.failures += complaints(world, faults)


def complaints(world: World, faults: list[Fault]) -> list[str]:
    """Violations found in the logs and the stores after a leg, once all messages are settled."""
    found = epochs_complaints(world.kafka, "chronos.progress", world.fleet.shards)
    if any(fault.name == "disk" for fault in faults):
        found += world.fleet.digest_complaints()
    return found


def first_line(error: BaseException) -> str:
    """The text of an error without the log that follows it."""
    return (str(error) or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
