"""What the tests of all simulations share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.harness.stale_seeds import PROPERTY
from tests.sim import first_seeds

SEARCH_S = 600
"""Time for the search of another seed, less than the time limit of a test."""


def cases(faults: Iterable[str], *smoke: str) -> list[Any]:
    """The planted faults as parameters of a test. `smoke`: those that `./scripts/test` plants, one
    of each family."""
    assert set(smoke) <= set(faults)
    return [
        pytest.param(fault, marks=[pytest.mark.smoke] if fault in smoke else []) for fault in faults
    ]


@pytest.fixture
def assert_found(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Assert that a seed of a simulation shows a planted fault: `assert_found("oracle", fault)`."""

    def check(name: str, fault: str) -> None:
        seed = first_seeds.find(name, fault, SEARCH_S)
        if seed != first_seeds.kept_seed(name, fault):
            record_property(PROPERTY, fault)
        assert seed is not None, "look for a seed without a time limit: ./scripts/sim faults"

    return check
