"""The simulation of observed masters finds no fault in the current code, and finds every planted
fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.conftest import cases
from tests.sim.observer_faults import OBSERVER_FAULTS
from tests.sim.simulation import simulate_observed

SEEDS = 40


@pytest.mark.slow
def test_a_stuck_master_is_replaced_by_a_quorum_and_a_working_one_stays() -> None:
    """In every mode of `failover.on_unhealthy`; the most common faults are found with as many
    seeds."""
    for seed in range(6):
        simulate_observed(seed)


def test_a_store_that_cannot_be_read_while_a_step_commits_leaves_no_open_transaction() -> None:
    simulate_observed(505)


@pytest.mark.slow
def test_no_verdict_moves_a_role_that_must_stay_in_many_clusters() -> None:
    for seed in range(6, SEEDS):
        simulate_observed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("fault", cases(OBSERVER_FAULTS, "a lone observer causes a failover"))
def test_a_planted_fault_of_the_observers_is_found(
    fault: str, assert_found: Callable[[str, str], None]
) -> None:
    assert_found("observers", fault)
