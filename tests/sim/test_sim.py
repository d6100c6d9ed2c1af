"""The simulator finds no fault in the current code, and finds every planted fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.sim import first_seeds
from tests.sim.command import main
from tests.sim.conftest import cases
from tests.sim.faults import FAULTS
from tests.sim.planting import Change, Faults, place_of, planted
from tests.sim.simulation import simulate
from tests.sim.world import Finding, finds

ROOT = Path(__file__).resolve().parents[2]
CLEAN_SEEDS = 100
"""Seeds that break no law in each run of the tests; thousands are run by hand."""

SCENARIOS = {
    "a lost producer is not used again after refused records could not be written": 103,
    "a poison record is isolated although refused records are in the same step": 58,
    "an end of the log found under a wrong clock is asked for again once the clock is right": 177,
    "a refusal whose decision was committed without an answer is not counted again": 16,
    "a replica that was frozen before it fenced does not lead under a role that another node has": 189,  # noqa: E501
    "a committed step is not committed again when the store cannot be read": 150,
    "a node that returns with an empty disk before it was missed gets a later role": 144,
    "a replica that was just given a shard is counted when the log is trimmed": 84,
    "logs that are trimmed while a checkpoint is fetched do not end the process": 6558,
    "a log that is trimmed while a replica starts does not end the process": 1748,
    (
        "many poison records of a target that is set aside are settled, however many pauses that "
        "takes"
    ): 80034,
    "a message may share the attempt that follows twenty poison records of its target": 83344,
}
"""Seeds that show a bug that was found once, each as long as its fault is in `faults.FAULTS`.

After a change of the simulator or of the calls of a port, other seeds show it: plant the fault and
look for one. """


def test_three_clusters_break_no_law_and_finish_their_work() -> None:
    for seed in range(3):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.smoke
def test_seventeen_more_clusters_break_no_law() -> None:
    for seed in range(3, 20):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, CLEAN_SEEDS, 40))
def test_a_hundred_clusters_break_no_law_and_finish_their_work(first: int) -> None:
    for seed in range(first, first + 40):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    simulate(seed)


OF_EACH_LAW = (
    "an abort drops the staged records",
    "clocks are not compared",
    "a lost producer is taken for an abort",
    "the cursor passes messages beyond the batch limit",
    "two masters in one epoch",
    "a cancelled message is delivered",
    "the retention deletes pending messages",
    "a poison record stops its shard",
    "a replica decides again",
)
"""One fault that breaks each of docs/contributing/laws.md, in their order."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", cases(FAULTS, *OF_EACH_LAW))
def test_a_planted_fault_is_found(fault: str, assert_found: Callable[[str, str], None]) -> None:
    assert_found("clusters", fault)


def misfits(faults: Faults) -> list[str]:
    """The faults that do not fit the current code, each with the reason."""
    found = []
    for fault in faults:
        before: dict[FunctionType, CodeType] = {}
        try:
            for change in faults[fault]:
                function = place_of(change).function()
                before[function] = function.__code__
            with planted(faults[fault]):
                assert all(each.__code__ is not code for each, code in before.items()), fault
        except (LookupError, SyntaxError) as error:
            found.append(f"{fault}: {error}")
        assert all(each.__code__ is code for each, code in before.items()), f"left: {fault}"
    return found


def test_every_planted_fault_fits_the_present_code() -> None:
    """Each of every simulation can be planted and is removed again; whether it is found is tested
    slowly."""
    found = {name: misfits(each.faults) for name, each in first_seeds.PLANTED.items()}
    assert found == {name: [] for name in first_seeds.PLANTED}


@pytest.mark.slow
def test_a_planted_fault_that_does_not_fit_is_named() -> None:
    faults: Faults = {
        f"{name}, {len(before)}": [*before, change]
        for before in ((), FAULTS["two masters in one epoch"])
        for name, change in {
            "the text is gone": Change("no such text", "pass"),
            "the function is gone": Change("return", "pass", "no_such_function"),
            "the text stands in several functions": Change("return", "pass"),
            "the replacement is no code": Change("if not self.unsaved:", "if:"),
            "the text is a parameter": Change("now_ms: int", "now_ms: int = 0", "Deleter.step"),
        }.items()
    }
    assert [each.partition(":")[0] for each in misfits(faults)] == list(faults)


@pytest.mark.slow
def test_a_shard_that_stops_for_good_is_reported() -> None:
    """Law 8: nothing stops a shard in silence; the judge runs in every simulated node."""
    with (
        planted(FAULTS["a poison record stops its shard"]),
        pytest.raises(Finding, match="without faults, reported"),
    ):
        simulate(0)


def test_a_planted_fault_is_removed_again() -> None:
    with planted(FAULTS["two masters in one epoch"]):
        seed = next(seed for seed in range(20) if finds(simulate, seed))
    simulate(seed)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    program = (
        "from tests.sim.simulation import simulate, simulate_observed\n"
        "print([simulate(seed).digest for seed in (5, 6, 10, 11, 13, 16, 23)] + "
        "[simulate_observed(1).digest])"
    )
    outputs = set()
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(ran.stdout)
    assert len(outputs) == 1
    assert len(set(outputs.pop().split(","))) == 8


def test_the_last_line_of_a_finding_is_the_command_that_replays_its_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted(FAULTS["two masters in one epoch"]):
        exit_code = main(["--seeds", "20"])
        lines = capsys.readouterr().out.splitlines()
        seed = lines[-1].rpartition(" ")[2]
        assert lines[-1] == f"replay it with: ./scripts/sim --seed {seed}"
        assert main(["--seed", seed]) == exit_code == 129
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"seed {seed}: law 5")
