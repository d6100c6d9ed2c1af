"""The limit of open files: raised where that is possible, and named where it is not."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronos.config import Config, load
from chronos.node.descriptors import AMPLE, needed, raise_limit

ROOT = Path(__file__).parents[2]

KIND = resource.RLIMIT_NOFILE


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of this process, which are the same again after the test."""
    before = resource.getrlimit(KIND)
    yield before
    resource.setrlimit(KIND, before)


def with_shards(shards: int) -> Config:
    """A configuration."""
    return load(None, {}, [f"shards={shards}"])


def test_a_limit_that_is_too_low_is_raised_to_what_the_system_allows(
    limits: tuple[int, int],
) -> None:
    """And one that is high enough stays."""
    _, hard = limits
    config = with_shards(64)
    enough = min(AMPLE * needed(config), hard)
    resource.setrlimit(KIND, (enough, hard))
    raise_limit(config)
    assert resource.getrlimit(KIND) == (enough, hard)
    resource.setrlimit(KIND, (enough - 1, hard))
    raise_limit(config)
    assert resource.getrlimit(KIND) == (hard, hard)


@pytest.mark.parametrize("verb", ["serve", "doctor"])
@pytest.mark.process
def test_a_limit_that_cannot_be_raised_is_named_with_what_is_needed(
    tmp_path: Path, verb: str
) -> None:
    """By a start, which ends with exit code 2 before it makes anything, and by the doctor."""
    settings = ["--set", f"node.data_dir={tmp_path / 'data'}", "--set", "shards=64"]
    command = [
        "bash",
        "-c",
        'ulimit -n 300 && exec "$@"',
        "bash",
        sys.executable,
        "-m",
        "chronos",
        verb,
        *settings,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 2
    wanted = needed(with_shards(64))
    assert (
        f"may open 300 files, and 64 shards need {wanted:,}: raise the limit"
        in done.stdout + done.stderr
    )
    assert not (tmp_path / "data").exists()
