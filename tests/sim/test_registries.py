"""The simulation of the registries finds no fault in the current code, and finds every planted
fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.conftest import cases
from tests.sim.registries import simulate
from tests.sim.registry_faults import REGISTRY_FAULTS

SEEDS = 150


def test_registries_that_share_nothing_answer_the_roles() -> None:
    for seed in range(5):
        simulate(seed)


@pytest.mark.slow
def test_registries_that_share_nothing_answer_the_roles_in_many_clusters() -> None:
    for seed in range(5, SEEDS):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("fault", cases(REGISTRY_FAULTS, "an older state displaces a newer one"))
def test_a_planted_fault_of_the_registries_is_found(
    fault: str, assert_found: Callable[[str, str], None]
) -> None:
    assert_found("registries", fault)


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(7) == simulate(7)
