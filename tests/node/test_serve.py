"""`chronos serve` on a terminal, and starts that end with a reason."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chronos.adapters.rocksdb import RocksStore
from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import RULES
from chronos.errors import LogMismatch
from tests.harness.command import run
from tests.harness.ports import free_port
from tests.harness.service import Service

pytestmark = pytest.mark.process

ORDER = ["started", "listening", "stopping", "no longer listening", "stopped"]
"""Lines of the log from start to stop."""

ROOT = Path(__file__).parents[2]


def test_a_kafka_that_does_not_answer_ends_the_start_with_exit_code_3(tmp_path):
    """The error names the address that was asked."""
    address = f"127.0.0.1:{free_port()}"
    done = run(
        "serve",
        "--set",
        f"node.data_dir={tmp_path / 'data'}",
        "--set",
        "log.kind=kafka",
        "--set",
        "admin.port=0",
        "--set",
        "log.kafka.request_timeout=300ms",
        "--set",
        f"log.kafka.bootstrap_servers={address}",
    )
    assert done.code == 3, done.err
    assert "Traceback" not in done.err
    assert address in done.err


def test_a_service_without_assertions_does_not_start(tmp_path):
    """They keep the guarantees."""
    command = [
        sys.executable,
        "-O",
        "-m",
        "chronos",
        "serve",
        "--set",
        f"node.data_dir={tmp_path / 'data'}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "without -O" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_data_directory_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    """After an orderly stop nothing is left to replay, and so no record names the rules."""
    with Service(tmp_path / "data", settings={"shards": 1}) as service:
        service.start()
        assert service.stop() == 0
        store = RocksStore(tmp_path / "data" / "shards" / "0")
        (data,) = store.get([STATE_KEY])
        assert data is not None
        store.write([(STATE_KEY, data[:1] + bytes([RULES + 1]) + data[2:])], [])
        store.flush()
        store.close()
        service.launch()
        assert service.wait_exit() == LogMismatch.exit_code
        assert f"written by rules {RULES + 1}" in service.tail(1)
        assert "Traceback" not in service.tail()


def test_http_listens_once_the_node_has_started_and_ends_before_it(tmp_path: Path) -> None:
    """CH-04, CH-07: HTTP is the last part of a start, and the first of a stop."""
    with Service(tmp_path / "data", settings={"shards": 1}) as service:
        service.start()
        assert service.stop() == 0
        assert [line["event"] for line in service.events(*ORDER)] == ORDER


@pytest.mark.smoke
def test_on_a_terminal_it_prints_its_address_and_commands_that_work(tmp_path):
    """And Ctrl-C stops it in order."""
    leader, follower = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "chronos",
        "serve",
        "--set",
        f"node.data_dir={tmp_path / 'data'}",
        "--set",
        "admin.port=0",
        "--set",
        "limits.disk_reserve=0",
    ]
    environ = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=subprocess.PIPE, cwd=ROOT, env=environ
    ) as process:
        os.close(follower)
        shown = b""
        while b"Ctrl-C" not in shown:
            shown += os.read(leader, 1_000)
        assert b"listens on http://127.0.0.1:" in shown
        commands = [
            shlex.split(line)[1:]
            for line in shown.decode().splitlines()
            if line.startswith("  chronos ")
        ]
        assert [verb for verb, *_ in commands] == ["send", "tail", "status"]
        assert run(*commands[0]).code == 0
        assert run(*commands[1], "-n", 1).out == "hello, later\n"
        assert run(*commands[2][:-1]).code == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(leader)
