"""The unit for systemd agrees with the service: its command, settings, exit codes and times."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path

from typer.testing import CliRunner

from chronos.cli.app import app
from chronos.config import load
from chronos.errors import ConfigurationError, LogUnavailable, StoreCorrupt
from tests.harness.stopping import LONGEST_STOP_S

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "config/systemd/chronos.service"


def unit() -> dict[str, dict[str, list[str]]]:
    """Section -> directive -> its values."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in UNIT.read_text().splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[section][name].append(value)
    return found


SERVICE = unit()["Service"]


def test_the_command_is_one_of_the_command_line() -> None:
    (command,) = SERVICE["ExecStart"]
    _, verb, option, _ = shlex.split(command)
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert option in shown.output


def test_the_data_directory_is_the_one_that_the_service_may_write_to() -> None:
    environment = dict(each.split("=", 1) for each in SERVICE["Environment"])
    (state,) = SERVICE["StateDirectory"]
    assert load(None, environment, []).node.data_dir == f"/var/lib/{state}"
    assert SERVICE["ProtectSystem"] == ["strict"]


def test_directories_of_the_documentation_outside_it_are_named_in_the_unit() -> None:
    """Nothing else is writable."""
    examples = (ROOT / "docs/how-to/backup.md").read_text()
    (location,) = re.findall(r"^  location: (/\S+)", examples, re.MULTILINE)
    assert f"#ReadWritePaths={location}\n" in UNIT.read_text()


def test_only_errors_that_a_restart_does_not_mend_prevent_it() -> None:
    (codes,) = SERVICE["RestartPreventExitStatus"]
    assert {int(code) for code in codes.split()} == {
        ConfigurationError.exit_code,
        StoreCorrupt.exit_code,
    }
    assert LogUnavailable.exit_code not in map(int, codes.split())
    assert SERVICE["Restart"] == ["on-failure"]


def test_the_service_has_time_to_stop_in_order() -> None:
    """And gets one signal: a second one ends it at once."""
    (timeout_s,) = SERVICE["TimeoutStopSec"]
    assert int(timeout_s) > LONGEST_STOP_S
    assert SERVICE["KillMode"] == ["mixed"]
    assert "KillSignal" not in SERVICE


def test_the_documentation_names_the_unit_and_its_values() -> None:
    (line,) = [
        line
        for line in (ROOT / "docs/operations.md").read_text().splitlines()
        if line.startswith("- **systemd**")
    ]
    named = dict(re.findall(r"`(\w+)=([^`]*)`", line))
    assert named
    for name, value in named.items():
        assert SERVICE[name] == [value], name
