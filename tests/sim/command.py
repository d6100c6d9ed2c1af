"""`scripts/sim`: one command for every simulation. It runs many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice, takewhile
from typing import Any, Protocol

from msgspec import Struct

from tests.sim import (
    elections,
    first_seeds,
    oracle,
    participant_cluster,
    registers,
    registries,
    simulation,
)
from tests.sim.world import Finding

REPORT_EVERY = 500
"""Seeds between two lines of progress."""


class Simulate(Protocol):
    """Runs one seed; raises a Finding."""

    def __call__(self, seed: int, *, lines: list[str] | None = None) -> Any: ...


class Simulation(Struct, frozen=True):
    """What the command knows of one simulation."""

    command: str
    description: str
    seeds: int
    """Number of seeds by default."""
    simulate: Simulate
    summary: Callable[[Sequence[Any]], str]
    """The text of many results."""


CLUSTERS = Simulation(
    "scripts/sim",
    "Deterministic simulation of a whole cluster.",
    1_000,
    simulation.simulate,
    simulation.summary,
)
OTHERS = {
    "observers": Simulation(
        "scripts/sim observers",
        "Simulation of a whole cluster whose masters are observed.",
        1_000,
        simulation.simulate_observed,
        simulation.summary,
    ),
    "registries": Simulation(
        "scripts/sim registries",
        "Simulation of the registries of a cluster.",
        1_000,
        registries.simulate,
        registries.summary,
    ),
    "elections": Simulation(
        "scripts/sim elections",
        "Simulation of the election.",
        10_000,
        elections.simulate,
        elections.summary,
    ),
    "registers": Simulation(
        "scripts/sim registers",
        "Simulation of the election with the register.",
        10_000,
        registers.simulate,
        elections.summary,
    ),
    "oracle": Simulation(
        "scripts/sim oracle",
        "Comparison of the service with a model of its documentation.",
        1_000,
        oracle.simulate,
        oracle.summary,
    ),
    "participants": Simulation(
        "scripts/sim participants",
        "Simulation of a cluster whose coordinator is Kafka.",
        1_000,
        participant_cluster.simulate,
        participant_cluster.summary,
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the simulation that the arguments name; return the exit code."""
    if arguments[:1] == ["faults"]:
        return _renew(arguments[1:])
    if arguments[:1] and (name := arguments[0].removeprefix("--")) in OTHERS:
        return _run(OTHERS[name], arguments[1:])
    return _run(CLUSTERS, arguments)


def _run(simulation: Simulation, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=simulation.command, description=simulation.description)
    parser.add_argument(
        "--seeds", type=int, default=simulation.seeds, help="number of seeds (default %(default)s)"
    )
    parser.add_argument("--minutes", type=float, help="run for this long instead")
    parser.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default 1)")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _replay(simulation, given.seed)
    began_s = time.monotonic()
    seeds = (
        range(given.first, given.first + given.seeds)
        if given.minutes is None
        else count(given.first)
    )
    results: list[Any] = []
    for seed, result in _results(simulation.simulate, seeds, given.jobs, given.minutes):
        if isinstance(result, _Found):
            print(
                f"seed {seed}: {result.text}\nreplay it with: ./{simulation.command} --seed {seed}"
            )
            return result.exit_code
        results.append(result)
        if len(results) % REPORT_EVERY == 0:
            print(f"{len(results)} seeds in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    print(f"{len(results)} seeds in {time.monotonic() - began_s:.1f} s")
    if results:
        print(simulation.summary(results))
        # The rule of three: with no failure in n trials, the rate is below 3/n with 95 %
        # confidence.
        print(
            f"nothing found: with 95 % confidence fewer than {3 / len(results):.2g} of all seeds "
            "fail (3/n)"
        )
    return 0


def _renew(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/sim faults",
        description="Find a seed that shows each planted fault, and keep it for the tests.",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default 1)")
    missing = first_seeds.renew(parser.parse_args(arguments).jobs)
    print(f"{missing} faults are shown by no seed" if missing else "every fault is shown")
    return 1 if missing else 0


def _replay(simulation: Simulation, seed: int) -> int:
    lines: list[str] = []
    try:
        result = simulation.simulate(seed, lines=lines)
    except Finding as finding:
        print("\n".join(lines))
        if finding.__cause__ is not None:
            traceback.print_exception(finding.__cause__)
        print(f"seed {seed}: {finding}")
        return finding.exit_code
    print("\n".join(lines))
    print(f"seed {seed}: nothing found; {result}")
    return 0


class _Found(Struct, frozen=True):
    """A finding, as it passes between processes."""

    exit_code: int
    text: str


class _Judged(Struct, frozen=True):
    """A simulation whose findings are values."""

    simulate: Simulate

    def __call__(self, seed: int) -> Any:
        try:
            return self.simulate(seed)
        except Finding as finding:
            return _Found(finding.exit_code, str(finding))


def _results(
    simulate: Simulate, seeds: range | count[int], jobs: int, minutes: float | None
) -> Iterator[tuple[int, Any]]:
    """Yield each seed and its result or finding, in order, for at most so many minutes."""
    ends_s = None if minutes is None else time.monotonic() + minutes * 60
    remaining = iter(takewhile(lambda _: ends_s is None or time.monotonic() < ends_s, seeds))
    judged = _Judged(simulate)
    if jobs == 1:
        yield from ((seed, judged(seed)) for seed in remaining)
        return
    with ProcessPoolExecutor(jobs) as pool:
        while batch := list(islice(remaining, jobs * 50)):
            yield from zip(batch, pool.map(judged, batch, chunksize=10), strict=True)
