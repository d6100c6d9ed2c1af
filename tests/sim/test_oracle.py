"""The service does what its documentation says, whatever fails; and the oracle finds every planted
fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.command import main
from tests.sim.conftest import cases
from tests.sim.oracle import simulate
from tests.sim.oracle_faults import FAULTS
from tests.sim.planting import planted
from tests.sim.world import Finding

SEEDS = 50


def test_two_runs_agree_with_the_model_of_the_documentation() -> None:
    for seed in range(2):
        simulate(seed)


@pytest.mark.slow
def test_many_runs_agree_with_the_model_of_the_documentation() -> None:
    for seed in range(2, SEEDS):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("fault", cases(FAULTS, "one cancel of each id is remembered"))
def test_a_planted_fault_is_found(fault: str, assert_found: Callable[[str, str], None]) -> None:
    assert_found("oracle", fault)


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(4) == simulate(4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oracle", "--oracle"])
def test_the_last_line_of_a_finding_is_the_command_that_replays_its_seed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with planted(FAULTS["messages are selected before they are due"]):
        exit_code = main([name, "--seeds", "20"])
        lines = capsys.readouterr().out.splitlines()
        seed = lines[-1].rpartition(" ")[2]
        assert lines[-1] == f"replay it with: ./scripts/sim oracle --seed {seed}"
        assert main([name, "--seed", seed]) == exit_code == 129
        assert "before its time" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_a_planted_fault_is_removed_again() -> None:
    with planted(FAULTS["a header is lost"]), pytest.raises(Finding, match="has the headers"):
        simulate(0)
    simulate(0)
