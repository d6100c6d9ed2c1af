"""`chronos doctor` as an operator meets it, beside a running service, a stopped one and a damaged
one."""

from __future__ import annotations

import pytest

from tests.harness.command import Done, run
from tests.harness.ports import free_port
from tests.harness.service import Service

pytestmark = pytest.mark.process


def examine(service: Service, *arguments: str) -> Done:
    """Run the doctor with the settings of a service."""
    settings = [
        part for path, value in service.settings.items() for part in ("--set", f"{path}={value}")
    ]
    return run("doctor", *settings, *arguments)


def test_the_doctor_reads_every_store_of_a_stopped_service(tmp_path):
    """And finds nothing wrong."""
    with Service(tmp_path / "data", settings={"shards": 2}) as service:
        assert "does not exist yet" in examine(service).out
        service.start()
        service.post(
            "/v1/messages",
            [{"target": {"topic": "t"}, "value": "x", "delay": "1h"} for _ in range(100)],
        )
        service.wait_until(lambda: service.pending() == 100, "take them in")
        asked = examine(service)
        assert asked.code == 0
        assert "stores can be verified only while the service is stopped" in asked.out
        service.stop()
        done = examine(service)
        assert done.code == 0, done.out
        assert done.out.count("all checksums match") == 3
        assert done.out.endswith("\nno problems found\n")
        assert "workers." not in done.out
        assert "nothing is delivered: workers.push is off" in (
            examine(service, "--set", "workers.push=off").out
        )
        service.start()
        assert service.pending() == 100


def test_the_doctor_finds_a_damaged_store(tmp_path):
    """Exit code 5 and the folder; the other store is checked too."""
    with Service(tmp_path / "data", settings={"shards": 2}) as service:
        service.start()
        body = [{"target": {"topic": "t"}, "value": "x" * 500, "delay": "1h"} for _ in range(2_000)]
        service.post("/v1/messages", body)
        service.wait_until(lambda: service.pending() == 2_000, "take them in")
        service.stop()
        table = max(
            (service.data_dir / "shards" / "0").glob("*.sst"), key=lambda path: path.stat().st_size
        )
        data = bytearray(table.read_bytes())
        middle = len(data) // 3
        data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
        table.write_bytes(data)
        done = examine(service)
        assert done.code == 5, done.out
        assert "PROBLEM  store of shard 0: damaged" in done.out
        assert str(service.data_dir / "shards" / "0") in done.out
        assert "ok       store of shard 1" in done.out
        found = examine(service, "-o", "json").json
        assert not found["ok"]
        assert [finding["exit_code"] for finding in found["findings"] if finding["exit_code"]] == [
            5
        ]


def test_the_doctor_reports_a_log_that_does_not_answer(tmp_path):
    """Exit code 3."""
    (tmp_path / "data").mkdir()
    done = run(
        "doctor",
        "--set",
        f"node.data_dir={tmp_path / 'data'}",
        "--set",
        "log.kind=kafka",
        "--set",
        "log.kafka.request_timeout=300ms",
        "--set",
        f"log.kafka.bootstrap_servers=127.0.0.1:{free_port()}",
    )
    assert done.code == 3, done.out
    assert "PROBLEM  log" in done.out
