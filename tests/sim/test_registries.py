"""The simulation of the registries finds no fault in the present code, and finds every planted
fault."""

from __future__ import annotations

import pytest

from tests.sim.faults import planted
from tests.sim.registries import simulate
from tests.sim.registry_faults import REGISTRY_FAULTS
from tests.sim.world import finds

SEEDS = 300


def test_registries_that_share_nothing_answer_the_roles() -> None:
    for seed in range(15):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_registries_that_share_nothing_answer_the_roles_in_many_clusters() -> None:
    for seed in range(15, SEEDS):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", REGISTRY_FAULTS)
def test_a_planted_fault_of_the_registries_is_found(fault: str) -> None:
    with planted(fault, REGISTRY_FAULTS):
        assert any(finds(simulate, seed) for seed in range(SEEDS)), (
            f"{SEEDS} seeds did not find: {fault}"
        )


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(7) == simulate(7)
