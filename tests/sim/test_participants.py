"""The simulation of the coordinator on Kafka finds no fault in the current code, and finds every
planted fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.conftest import cases
from tests.sim.participant_cluster import simulate
from tests.sim.participant_faults import PARTICIPANT_FAULTS

SEEDS = 350


def test_five_clusters_agree_on_one_controller() -> None:
    for seed in range(5):
        simulate(seed)


@pytest.mark.slow
def test_hundreds_of_clusters_agree_on_one_controller() -> None:
    for seed in range(5, SEEDS):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", cases(PARTICIPANT_FAULTS, "a fenced controller does not step down")
)
def test_a_planted_fault_is_found(fault: str, assert_found: Callable[[str, str], None]) -> None:
    assert_found("participants", fault)


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(7) == simulate(7)
