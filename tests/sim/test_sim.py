"""The simulator finds nothing in the code as it is, and finds every fault that is planted in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.faults import FAULTS, planted
from tests.sim.simulation import simulate
from tests.sim.world import Finding

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 1_000

SCENARIOS = {
    "a lost producer is not used again when the refused records could not be written": 1,
    "a message that nobody takes is convicted though refused records come with it": 0,
    "what a wrong clock said of the log's end counts no more once the clock is right": 250,
    "a replica that was frozen before it fenced does not begin under a role that was given to another": 1969,
    "a step is not committed again when the store could not be read after its commit": 367,
    "a node that is back with an empty disk before anybody saw it gone gets a later role": 144,
    "a replica that was given a shard just now is counted when the log is trimmed": 84,
    "logs that were trimmed while a checkpoint was fetched are no end of the process": 6558,
}
"""Seeds that found a bug once."""


def test_fifty_clusters_break_no_law_and_finish_their_work() -> None:
    for seed in range(50):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_clusters_break_no_law_and_finish_their_work() -> None:
    for seed in range(50, SEEDS):
        simulate(seed)


@pytest.mark.parametrize("seed", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_what_failed_once_does_not_fail_again(seed: int) -> None:
    simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with planted(fault):
        for seed in range(SEEDS):
            try:
                simulate(seed)
            except Finding:
                return
    pytest.fail(f"{SEEDS} seeds did not find: {fault}")


def test_a_fault_that_is_planted_is_taken_out_again() -> None:
    def is_found(seed: int) -> bool:
        try:
            simulate(seed)
        except Finding:
            return True
        return False

    with planted("two masters in one epoch"):
        seed = next(seed for seed in range(20) if is_found(seed))
    simulate(seed)


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    program = "from tests.sim.simulation import simulate; print([simulate(seed).digest for seed in (5, 6, 10, 11, 13, 16, 23, 30)])"
    said = set()
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        said.add(ran.stdout)
    assert len(said) == 1
    assert len(set(said.pop().split(","))) == 8


def test_a_seed_that_found_something_is_named_last_with_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.sim.__main__ import main

    with planted("two masters in one epoch"):
        monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "20"])
        exit_code = main()
        said = capsys.readouterr().out.splitlines()
        seed = said[-1].rpartition(" ")[2]
        assert said[-1] == f"replay it with: ./scripts/sim --seed {seed}"
        monkeypatch.setattr(sys, "argv", ["sim", "--seed", seed])
        assert main() == exit_code == 129
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"seed {seed}: law 5")
