"""Data directories of the embedded log as earlier versions left them: after an orderly stop, and
after a kill, which leaves records to replay.

The archives are never written anew. A change of the rules or of a format adds those of the version
before it: `python -m tests.node.test_frozen rules-<number> <checkout of that version>`."""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chronos.adapters.rocksdb import RocksStore
from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import pack_state, unpack_state
from chronos.core.shard.progress import RULES
from chronos.errors import LogMismatch
from tests.harness.service import Service

pytestmark = pytest.mark.process

FROZEN = Path(__file__).parent / "frozen"

SETTINGS: dict[str, object] = {"node.id": "n1", "shards": 1, "limits.max_delay": "36500d"}

FAR = "2100-01-31T09:00:00Z"
"""The due time of what stays pending."""

DELAY = "6s"
"""Of what is due when the directory is opened again: the node is stopped before."""

NOT_CONTENT = ("LOG", "LOCK")
"""RocksDB's info log and the locks."""


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("version", ["rules-2"])
def test_a_data_directory_of_an_earlier_version_is_opened_and_delivered_from(
    version: str, end: str, tmp_path: Path
) -> None:
    with tarfile.open(FROZEN / f"{version}-{end}.tar.xz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    with Service(tmp_path / "data", settings=SETTINGS) as service:
        service.start()
        assert service.get("/v1/nodes")["rules"] == RULES
        service.wait_until(lambda: service.pending() == 2, "deliver what is due")
        assert sorted(values(service, "target")) == [
            "delivered before",
            "due",
            "occurrence",
            "occurrence",
            "occurrence",
            "rescheduled",
        ]
        assert values(service, "chronos.rejected") == ["conflict"]
        assert values(service, "chronos.dead-letter") == ["expired"]
        (generated,) = (
            found["id"]
            for found in service.get("/v1/messages")["messages"]
            if found["id"] != "pending"
        )
        for message_id in ("pending", generated):
            status, answer = service.ask("DELETE", f"/v1/messages/{message_id}")
            assert (status, answer["result"]) == (200, "cancelled")
        assert service.stop() == 0


def test_a_data_directory_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    """After an orderly stop nothing is left to replay, and so no record names the rules."""
    with Service(tmp_path / "data", settings=SETTINGS) as service:
        service.start()
        assert service.stop() == 0
        store = RocksStore(tmp_path / "data" / "shards" / "0")
        (data,) = store.get([STATE_KEY])
        assert data is not None
        later = replace(unpack_state(data), rules=RULES + 1)
        store.write([(STATE_KEY, pack_state(later))], [])
        store.flush()
        store.close()
        service.launch()
        assert service.wait_exit() == LogMismatch.exit_code
        assert f"decided by rules {RULES + 1}" in service.tail(1)
        assert "Traceback" not in service.tail()


def values(service: Service, topic: str) -> list[str]:
    """The values of all records of a topic with one partition."""
    found = service.get(f"/v1/topics/{topic}/records", partition=0, offset=0, limit=100)
    return [record["value"] for record in found["records"]]


def write(name: str, source: Path) -> None:
    """Write the archives of a version."""
    for end in ("stopped", "killed"):
        with (
            tempfile.TemporaryDirectory() as folder,
            Service(Path(folder, "data"), settings=SETTINGS, source=source) as service,
        ):
            service.start()

            def send(value: str, **options: Any) -> None:
                body = {"target": {"topic": "target"}, "value": value, **options}
                service.post("/v1/messages", body)

            send("delivered before", delay="0ms")
            send("due", id="due", delay=DELAY)
            send("conflict", id="due", delay=DELAY)
            send("cancelled", id="cancelled", delay=DELAY)
            send("rescheduled", id="rescheduled", deliver_at=FAR)
            send("expired", delay=DELAY, expire_at=int(time.time() * 1_000) + 6_500)
            series = {"repeat": "every 1s", "repeat_times": 3, "late_policy": "fire-all"}
            send("occurrence", delay=DELAY, **series)
            send("pending", id="pending", deliver_at=FAR)
            send("pending", deliver_at=FAR)
            assert service.ask("DELETE", "/v1/messages/cancelled")[1]["result"] == "cancelled"
            moved = service.ask("PATCH", "/v1/messages/rescheduled", {"delay": DELAY})
            assert moved[1]["result"] == "rescheduled"
            service.wait_until(lambda: service.pending() == 6, "deliver the first message")
            if end == "stopped":
                service.stop()
            else:
                service.kill()
            with tarfile.open(FROZEN / f"{name}-{end}.tar.xz", "w:xz") as archive:
                archive.add(
                    service.data_dir,
                    ".",
                    filter=lambda info: None if Path(info.name).name in NOT_CONTENT else info,
                )


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]).resolve())
