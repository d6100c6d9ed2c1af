"""A seed that shows each planted fault, kept in `first_seeds.json`: a test tries it before
any other, which saves minutes.

A kept seed may no longer show its fault after a change of the simulator or of the calls of a port;
then the test looks for another one, which takes long. `scripts/sim faults` finds all of them anew.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.sim import elections, oracle, participant_cluster, registers, registries, simulation
from tests.sim.election_faults import FAULTS as ELECTION_FAULTS
from tests.sim.election_faults import REGISTER_FAULTS
from tests.sim.faults import FAULTS
from tests.sim.observer_faults import OBSERVER_FAULTS
from tests.sim.oracle_faults import FAULTS as ORACLE_FAULTS
from tests.sim.participant_faults import PARTICIPANT_FAULTS
from tests.sim.planting import Faults, planted
from tests.sim.registry_faults import REGISTRY_FAULTS
from tests.sim.world import finds

KEPT = Path(__file__).with_name("first_seeds.json")


class Planted(Struct, frozen=True):
    """The faults planted for one simulation."""

    simulate: Callable[[int], Any]
    faults: Faults
    seeds: int
    """Seeds, from 0 on, of which one must show the fault."""


PLANTED = {
    "clusters": Planted(simulation.simulate, FAULTS, 1_000),
    "observers": Planted(simulation.simulate_observed, OBSERVER_FAULTS, 300),
    "oracle": Planted(oracle.simulate, ORACLE_FAULTS, 600),
    "participants": Planted(participant_cluster.simulate, PARTICIPANT_FAULTS, 1_000),
    "registries": Planted(registries.simulate, REGISTRY_FAULTS, 300),
    "elections": Planted(elections.simulate, ELECTION_FAULTS, 3_000),
    "registers": Planted(registers.simulate, REGISTER_FAULTS, 300),
}


def kept() -> dict[str, dict[str, int]]:
    """The kept seeds: simulation -> fault -> seed."""
    return json.loads(KEPT.read_text())  # type: ignore[no-any-return]


def kept_seed(name: str, fault: str) -> int:
    """The kept seed of a fault; a fault that seed 0 shows is not kept."""
    return kept().get(name, {}).get(fault, 0)


def find(name: str, fault: str, limit_s: float = math.inf) -> int | None:
    """A seed that shows the fault, and nothing without it, the kept one before all others; None if
    none does, or none was found in time."""
    simulation = PLANTED[name]
    seeds = dict.fromkeys([kept_seed(name, fault), *range(simulation.seeds)])
    until_s = time.monotonic() + limit_s
    for seed in seeds:
        with planted(simulation.faults[fault]):
            shows = finds(simulation.simulate, seed)
        if shows and not finds(simulation.simulate, seed):
            return seed
        if time.monotonic() > until_s:
            break
    return None


def renew(jobs: int) -> int:
    """Find a seed of every fault, the kept one if it still shows it; report each, keep those that
    are not 0 at once, and return how many faults no seed shows."""
    seeds = {
        name: {fault: seed for fault, seed in kept().get(name, {}).items() if fault in each.faults}
        for name, each in PLANTED.items()
    }
    missing = 0
    for name, fault, seed, took_s in _found(jobs):
        print(f"{took_s:6.1f} s  {name}: seed {seed} shows: {fault}", flush=True)
        missing += seed is None
        seeds[name].pop(fault, None)
        if seed:
            seeds[name][fault] = seed
        KEPT.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n")
    return missing


def _found(jobs: int) -> Iterator[tuple[str, str, int | None, float]]:
    faults = [(name, fault) for name, each in PLANTED.items() for fault in each.faults]
    with ProcessPoolExecutor(jobs) as pool:
        for found in as_completed(pool.submit(_timed, fault) for fault in faults):
            yield found.result()


def _timed(given: tuple[str, str]) -> tuple[str, str, int | None, float]:
    began_s = time.monotonic()
    seed = find(*given)
    return *given, seed, time.monotonic() - began_s
