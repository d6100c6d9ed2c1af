"""The election of `chronos/core/cluster/raft`: simulated, explored, and both of them tested with
planted faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim import registers
from tests.sim.command import main
from tests.sim.conftest import cases
from tests.sim.election_faults import EXPLORED, FAULTS, REGISTER_FAULTS
from tests.sim.elections import Elections, simulate
from tests.sim.exploration import elected, explore, started, without_leader
from tests.sim.planting import planted
from tests.sim.world import CORRECTNESS, Finding

FEW_SEEDS = 20
"""Seeds of the normal run; a slow test has more."""

REGISTER_SEEDS = 150
"""Seeds of the election with the register."""


def test_twenty_elections_have_one_leader_per_term_and_end_after_the_healing() -> None:
    """DL-01 to DL-33: 3, 5 and 7 nodes; one leader per term, one vote per node and term, no message
    before its write."""
    leaders = sum(simulate(seed).leaders for seed in range(FEW_SEEDS))
    assert leaders > 2 * FEW_SEEDS


@pytest.mark.slow
def test_hundreds_of_elections_have_one_leader_per_term_and_end_after_the_healing() -> None:
    assert main(["elections", "--first", str(FEW_SEEDS), "--seeds", "500"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", cases(FAULTS, "half of the nodes are a quorum (DL-07)"))
def test_a_planted_fault_of_the_election_is_found(
    fault: str, assert_found: Callable[[str, str], None]
) -> None:
    assert_found("elections", fault)


@pytest.mark.slow
def test_a_hundred_and_fifty_elections_with_a_register_lose_no_committed_value() -> None:
    """Of two committed values the later one follows from the earlier one, through every change of
    leader; and after the healing a value is written on all nodes."""
    committed = 0
    for seed in range(REGISTER_SEEDS):
        run = registers.Registers(seed)
        run.run()
        committed += len(run.done)
    assert committed > 10 * REGISTER_SEEDS


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", cases(REGISTER_FAULTS, "an entry is confirmed before it is durable")
)
def test_a_planted_fault_of_the_register_is_found(
    fault: str, assert_found: Callable[[str, str], None]
) -> None:
    assert_found("registers", fault)


def test_the_same_seed_gives_the_same_election() -> None:
    first, again, other = (Elections(seed).run() for seed in (5, 5, 8))
    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize("nodes", [2, 4])
def test_other_numbers_of_nodes_elect_too(nodes: int) -> None:
    for seed in range(20):
        assert simulate(seed, nodes=nodes).leaders > 0


@pytest.mark.slow
def test_every_short_election_of_three_nodes_is_safe() -> None:
    """DL-16, DL-19, DL-28, DL-29: from the start, below a leader, and without one; with a restart,
    and with slow writes."""
    assert (
        explore(started(durable_at_once=True), depth=5, crashes=1, durable_at_once=True).states
        > 5_000
    )
    assert (
        explore(started(durable_at_once=False), depth=7, crashes=1, durable_at_once=False).states
        > 5_000
    )
    assert (
        explore(
            started(durable_at_once=True, ends=(1, 0, 0)), depth=4, crashes=1, durable_at_once=True
        ).states
        > 1_000
    )
    assert explore(elected(), depth=6, crashes=1, durable_at_once=True).states > 5_000
    explored = explore(without_leader(), depth=7, crashes=0, durable_at_once=True)
    assert explored.terms == 2, "no exploration saw a second leader"


@pytest.mark.slow
def test_every_longer_election_of_three_nodes_is_safe() -> None:
    explore(started(durable_at_once=True), depth=6, crashes=2, durable_at_once=True)
    explore(started(durable_at_once=False), depth=9, crashes=1, durable_at_once=False)
    explore(elected(), depth=7, crashes=1, durable_at_once=True)
    assert explore(without_leader(), depth=8, crashes=1, durable_at_once=True).terms == 2
    explore(without_leader(), depth=8, crashes=1, durable_at_once=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", EXPLORED)
def test_the_exploration_finds_a_planted_fault_that_breaks_a_guarantee(fault: str) -> None:
    with planted(FAULTS[fault]), pytest.raises(Finding) as found:
        explore(started(durable_at_once=False), depth=8, crashes=1, durable_at_once=False)
    assert found.value.exit_code == CORRECTNESS


@pytest.mark.slow
def test_the_last_line_of_a_finding_in_an_election_is_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted(FAULTS["half of the nodes are a quorum (DL-07)"]):
        exit_code = main(["elections", "--seeds", "20"])
        last = capsys.readouterr().out.splitlines()[-1]
        seed = last.rpartition(" ")[2]
        assert last == f"replay it with: ./scripts/sim elections --seed {seed}"
        assert main(["elections", "--seed", seed]) == exit_code == CORRECTNESS
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"seed {seed}: ")
