"""The examples, run as their READMEs say, against a real service on the embedded log."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType

import pytest

from tests.harness.service import Service

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all examples: each uses ids of its own."""
    with Service(tmp_path_factory.mktemp("examples") / "data") as running:
        yield running.start()


def play(name: str, *arguments: str) -> str:
    """The output of an example; it must exit with 0."""
    program = EXAMPLES / name / f"{name}.py"
    done = subprocess.run(
        [sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def verbs(output: str) -> list[str]:
    """The first two words of every line, without the parts that differ from run to run."""
    return [" ".join(line.split()[:2]).split("-")[0] for line in output.splitlines()]


def test_unpaid_orders_are_closed_and_paid_ones_are_not(service: Service) -> None:
    """Three orders, one paid in time, one too late."""
    output = play("unpaid_orders", "--server", service.url, "--after", "1s")
    assert verbs(output)[:4] == ["placed anna", "placed ben", "placed cleo", "paid anna"]
    assert sorted(verbs(output)[4:6]) == ["closed ben", "closed cleo"]
    assert verbs(output)[6:] == ["refunded ben"]
    assert "cancelled" in output


def test_reminders_move_along_with_their_customer(service: Service) -> None:
    """The same wall-clock time in another zone is another instant."""
    output = play("reminders", "--server", service.url)
    expected = [
        "set pills:",
        "set letter:",
        "moved pills:",
        "moved letter:",
        "came pills:",
        "drop letter:",
    ]
    assert verbs(output) == expected
    assert output.endswith("drop   letter: cancelled\n")


@pytest.mark.smoke
@pytest.mark.process
def test_the_commands_of_the_readme_work_as_written(tmp_path: Path) -> None:
    """Its first commands, in order, on a new service."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    first = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[0]
    commands = [shlex.split(line)[1:] for line in first.splitlines() if line.startswith("chronos ")]
    assert [verb for verb, *_ in commands] == ["send", "send", "cancel", "tail"]
    with Service(tmp_path / "data").start() as fresh:
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", "chronos", *command],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "CHRONOS_SERVER": fresh.url},
            )
            assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("please pay\n")
        assert "key=order-17" in done.stdout
        assert fresh.pending() == 0


@pytest.fixture(scope="module")
def reminders() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(
        "reminders", EXAMPLES / "reminders" / "reminders.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reminders"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("wall", "odd", "due"),
    [
        ("2030-03-31T00:30:00", None, "2030-03-31T00:30:00+00:00"),
        ("2030-03-31T01:30:00", "gap", "2030-03-31T01:30:00+00:00"),
        ("2030-03-31T02:30:00", None, "2030-03-31T01:30:00+00:00"),
        ("2030-10-27T00:30:00", None, "2030-10-26T23:30:00+00:00"),
        ("2030-10-27T01:30:00", "overlap", "2030-10-27T00:30:00+00:00"),
        ("2030-10-27T02:30:00", None, "2030-10-27T02:30:00+00:00"),
    ],
)
def test_a_wall_clock_time_is_one_instant_also_when_clocks_change(
    reminders: ModuleType, wall: str, odd: str | None, due: str
) -> None:
    """The table of the README: Lisbon changes its clocks on 2030-03-31 and 2030-10-27."""
    moment = datetime.fromisoformat(wall)
    assert reminders.oddity(moment, "Europe/Lisbon") == odd
    assert reminders.instant(moment, "Europe/Lisbon").isoformat() == due
