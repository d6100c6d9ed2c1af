"""The benchmarks of the Spark jobs run: each command of their section in
docs/contributing/results.md, at a small size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]

SMALL = ("--spark-messages", "4000")
"""Enough that the audit's archive has every outcome it counts; no rate is reached."""


def documented() -> list[str]:
    """The commands of the section."""
    section = (
        (ROOT / "docs" / "contributing" / "results.md")
        .read_text()
        .split("### The Spark jobs")[1]
        .split("\n### ")[0]
    )
    return re.findall(r"`(\./scripts/bench[^`]*)`", section)


@pytest.mark.campaign
@pytest.mark.parametrize("command", documented())
def test_a_documented_benchmark_of_the_spark_jobs_runs_at_a_small_size(
    command: str, tmp_path: Path
) -> None:
    """Each part adds its figures, and what is exact at any size is as it should be."""
    answer = tmp_path / "bench.json"
    arguments = [*shlex.split(command), *SMALL, "--json", str(answer)]
    done = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=1_100, check=False
    )
    assert answer.exists(), done.stderr[-4_000:]
    rows = json.loads(answer.read_text())["rows"]
    by_part = {row["figure"].split(" ")[0]: row for row in rows}
    assert by_part.keys() == {"archive", "the", "audit", "memory", "an", "backfill", "of"}
    assert by_part["audit"]["detail"]["exact"], "the audit counts every outcome as it was made"
    assert by_part["an"]["detail"]["exact"], "and the same beside more runs"
    assert by_part["of"]["measured"] == "0 lost, 0 duplicated"
    assert done.returncode in (0, 1), done.stderr[-4_000:]


def test_the_section_has_a_command() -> None:
    """Otherwise the test above would test nothing."""
    assert documented() == ["./scripts/bench spark"]
