"""Alerts of a real node on the embedded log: each fires when its trouble is there, no other one
does, and normal work fires none. tests/integration/test_alerts.py has those that need Kafka.

The expressions of `config/prometheus/rules.yaml` are evaluated over what the node answers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronos.admin.archive.server import ArchiveServer
from chronos.admin.archive.status import ArchiveStatus
from chronos.admin.http import audit
from chronos.admin.http.tokens import digest
from chronos.config import load
from chronos.node import tls
from chronos.node.shards import ShardDriver
from chronos.workers.step import tenure
from chronos.workers.watch import stall
from tests.harness.certificates import Authority
from tests.harness.clock import ShiftedClock
from tests.harness.inside import Inside
from tests.harness.prometheus import Prometheus
from tests.harness.service import Service
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000

NORMAL_REJECTIONS = {"conflict", "too-late", "unknown"}
"""Reasons of what producers do in normal work: a repetition, a late cancel, a cancel of nothing."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def of_service(*services: Service) -> Prometheus:
    """A Prometheus that scrapes these nodes."""
    return Prometheus(
        targets={
            f"node-{at}": lambda service=service: str(service.get("/metrics"))  # type: ignore[misc]
            for at, service in enumerate(services)
        }
    )


def of_inside(service: Inside, token: str = "") -> Prometheus:
    """A Prometheus that scrapes this node."""

    def metrics() -> str:
        answer = service.ask("GET", "/metrics", token=token)
        assert answer.status == 200, answer
        return answer.body.decode()

    return Prometheus(targets={"node": metrics})


def message(message_id: str, due_ms: int, **more: Any) -> dict[str, Any]:
    return {"id": message_id, "target": {"topic": "t"}, "value": "v", "deliver_at": due_ms, **more}


def value(service: Inside, name: str) -> float:
    """A value of `/metrics` without labels."""
    text = service.ask("GET", "/metrics").body.decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def rejections(text: str) -> set[str]:
    """The reasons for which `/metrics` counts rejected records."""
    lines = [line for line in text.splitlines() if line.startswith("chronos_rejections_total{")]
    return {line.split('"')[1] for line in lines if float(line.split()[1])}


# --- Nothing is wrong


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with the reserve of the disk that is the default."""
    settings = {"shards": 2, "limits.disk_reserve": "256MiB"}
    with Service(tmp_path_factory.mktemp("healthy") / "data", settings=settings) as running:
        yield running.start()


def test_normal_work_and_a_restart_fire_no_alert(healthy: Service) -> None:
    """Scheduled, delivered, cancelled, changed, repeated and expired messages, and cancels that are
    too late or for none; then nothing for eleven minutes, a restart of half a minute, and nothing
    again."""
    prometheus = of_service(healthy)
    prometheus.scrape_for(6)
    soon_ms, later_ms = now_ms() + 300, now_ms() + HOUR_MS
    healthy.post(
        "/v1/messages",
        [message(f"soon-{at}", soon_ms) for at in range(50)]
        + [message(f"later-{at}", later_ms) for at in range(50)]
        + [message("stale", now_ms() - 1_000, expire_at=now_ms() + 1)],
    )
    healthy.wait_until(lambda: healthy.accepted() == 101, "accept the messages")
    prometheus.scrape()
    healthy.post("/v1/messages", [message("later-0", later_ms)])
    assert healthy.ask("DELETE", "/v1/messages/later-1")[1]["result"] == "cancelled"
    assert healthy.ask("DELETE", "/v1/messages/none")[1]["result"] == "unknown"
    assert healthy.ask("PATCH", "/v1/messages/later-2", {"delay": "2h"})[0] == 200
    healthy.wait_until(lambda: healthy.pending() == 49, "deliver what is due")
    prometheus.scrape()
    assert healthy.ask("DELETE", "/v1/messages/soon-0")[1]["result"] == "too_late"
    healthy.wait_until(
        lambda: rejections(healthy.get("/metrics")) == NORMAL_REJECTIONS, "count the rejections"
    )
    prometheus.scrape()
    assert [
        value > 0 for value in prometheus.recorded("chronos:messages_delivered:rate1m").values()
    ] == [True]
    assert [
        value > 0 for value in prometheus.recorded("chronos:lateness_seconds:p99_5m").values()
    ] == [True]
    prometheus.scrape_for(11)
    assert healthy.stop() == 0
    prometheus.scrape(2)
    healthy.start()
    prometheus.scrape_for(11)
    assert prometheus.ever == set()


# --- The node


def test_a_node_that_does_not_answer_is_down(healthy: Service) -> None:
    prometheus = of_service(healthy)
    prometheus.scrape()
    healthy.kill()
    assert prometheus.scrape() == set()
    assert prometheus.scrape_for(11) == {"ChronosDown"}
    healthy.start()
    assert prometheus.scrape() == set()
    prometheus.forget()
    prometheus.scrape_for(11)
    assert prometheus.ever == set()


def test_a_node_without_room_is_paused_and_one_that_is_back_after_an_hour_is_not_silent(
    tmp_path: Path,
) -> None:
    """It has messages that became due meanwhile. The conditions hold for as long as each alert
    asks."""
    settings = {"shards": 2}
    with Inside(tmp_path, ShiftedClock(-HOUR_MS), **settings) as before:
        due_ms = now_ms() - HOUR_MS // 2
        before.ask("POST", "/v1/messages", [message(f"id-{at}", due_ms) for at in range(20)])
        wait_until(lambda: sum(shard.state.pending for shard in before.node.shards) == 20)
    with Inside(tmp_path, **settings, limits__disk_reserve="1TiB") as full:
        prometheus = of_inside(full)
        assert prometheus.scrape() == set()
        assert prometheus.scrape_for(1) == {"ChronosLate", "ChronosNoMaster", "ChronosPaused"}
        assert "ChronosNotReady" in prometheus.scrape_for(5)
        assert prometheus.scrape_for(10) == {
            "ChronosDisk",
            "ChronosLate",
            "ChronosNoMaster",
            "ChronosNotReady",
            "ChronosPaused",
        }
    with Inside(tmp_path, **settings) as back:
        prometheus = of_inside(back)
        prometheus.scrape()
        wait_until(lambda: back.node.ready and not any(s.state.pending for s in back.node.shards))
        prometheus.scrape_for(11)
        assert prometheus.ever == set()


@contextmanager
def set_right_by_an_hour(path: Path) -> Iterator[tuple[Inside, ShardDriver]]:
    """A node whose clock was an hour behind until a moment ago, and its shard with a message that
    is due."""
    clock = ShiftedClock(-HOUR_MS)
    with Inside(path, clock) as service:
        service.ask("POST", "/v1/messages", message("due", now_ms() - HOUR_MS // 2))
        (shard,) = service.node.shards
        wait_until(lambda: shard.state.pending == 1)
        clock.shift(HOUR_MS)
        yield service, shard


def test_a_master_that_commits_nothing_is_silent_and_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock, an hour behind, is set right: the embedded log waits for a restart. The leadership
    does not end here, so that the shard has a master."""
    monkeypatch.setattr(stall, "STALLED_MS", 1_000)
    for name in ("TENURE_MS", "SURE_MS"):
        monkeypatch.setattr(tenure, name, 2 * HOUR_MS)
    with set_right_by_an_hour(tmp_path) as (service, shard):
        wait_until(lambda: shard.paused is not None and shard.stall.ms > 0)
        prometheus = of_inside(service)
        assert prometheus.scrape() == {"ChronosSilent", "ChronosStalled"}
        assert prometheus.scrape_for(11) == {
            "ChronosLate",
            "ChronosNotReady",
            "ChronosPaused",
            "ChronosSilent",
            "ChronosStalled",
        }


def test_a_shard_whose_master_finds_its_clock_set_by_an_hour_has_no_master_and_is_paused(
    tmp_path: Path,
) -> None:
    """Its leadership ends, and the next one does not begin while the clock is wrong."""
    with set_right_by_an_hour(tmp_path) as (service, shard):
        wait_until(lambda: shard.role == "taking over" and shard.paused is not None)
        prometheus = of_inside(service)
        prometheus.scrape()
        assert {"ChronosNoMaster", "ChronosNotReady", "ChronosPaused"} <= prometheus.scrape_for(11)


# --- Messages


def test_dead_letters_and_refused_records_fire_for_five_minutes(tmp_path: Path) -> None:
    with Inside(tmp_path, workers__push="off") as before:
        assert (
            before.ask("POST", "/v1/messages", message("doomed", now_ms() + HOUR_MS)).status == 202
        )
        wait_until(lambda: before.node.shards[0].state.pending == 1)
    with Inside(tmp_path, targets__deny="t") as service:
        wait_until(lambda: service.node.ready)
        prometheus = of_inside(service)
        prometheus.scrape()
        assert service.ask("POST", "/v1/messages/doomed/fire").json()["result"] == "fired"
        totals = lambda: service.node.shards[0].state.totals  # noqa: E731
        wait_until(lambda: totals().dead == 1)
        assert prometheus.scrape() == {"ChronosDeadLetters"}
        service.node.log.append([("chronos.delay", b"k", b"v", {"chronos-delay": b"1s"}, 0)], 5.0)
        wait_until(lambda: totals().rejected == 1)
        assert prometheus.scrape() == {"ChronosDeadLetters", "ChronosRejections"}
        assert prometheus.fired["ChronosDeadLetters"] == [{"reason": "forbidden-target"}]
        assert prometheus.fired["ChronosRejections"] == [{"reason": "no-target"}]
        assert prometheus.scrape(18) == {"ChronosRejections"}
        assert prometheus.scrape_for(6) == set()


# --- The archive


def of_archive(end_s: float, success_s: float) -> ArchiveStatus:
    """An archive with this end, whose last run without an error ended then; epoch s."""
    status = ArchiveStatus(
        ("messages",), cluster="c", location="file:///a", pause_s=60.0, now=lambda: success_s
    )
    status.archived_until(int(end_s * 1_000))
    status.run_began()
    status.run_succeeded()
    return status


@pytest.mark.parametrize(
    ("end_age_s", "success_age_s", "fires"),
    [(3_300, 3_300, False), (3_900, 10, True), (10, 3_900, True), (3_900, 3_900, True)],
)
def test_an_archive_that_is_older_than_an_hour_fires_after_a_minute(
    end_age_s: float, success_age_s: float, fires: bool
) -> None:
    """By its end, or by its last run without an error; also when the process has ended."""
    now_s = time.time()
    status = of_archive(now_s - end_age_s, now_s - success_age_s)
    server = ArchiveServer(status, load(None, {}, []))
    prometheus = Prometheus(targets={"archive": lambda: archive_metrics(url)})
    url = server.start("127.0.0.1", 0)
    try:
        assert prometheus.scrape() == set()
        assert prometheus.scrape_for(1) == ({"ChronosArchiveOld"} if fires else set())
    finally:
        server.stop()
    fired = prometheus.scrape_for(1)
    assert fired - {"ChronosArchiveOld"} == {"ChronosDown"}
    assert ("ChronosArchiveOld" in fired) == fires


def archive_metrics(url: str) -> str:
    """The text of `/metrics` at this address."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


# --- Access


def test_files_of_access_that_cannot_be_used_fire_after_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone: certificates, the keys of the issuer, and the tokens."""
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    tokens, jwks = tmp_path / "tokens.yaml", tmp_path / "jwks.json"
    entry = {"name": "reader", "sha256": digest("reader"), "roles": ["read"]}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    key = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    jwks.write_text(json.dumps({"keys": [{**key, "kid": "k", "alg": "ES256", "use": "sig"}]}))
    settings = {
        "admin__tls__certificate": pair.certificate,
        "admin__tls__key": pair.key,
        "admin__tokens": tokens,
        "admin__jwt__jwks": jwks,
        "admin__jwt__issuer": "https://issuer.example.org",
        "admin__jwt__audience": "chronos",
    }
    with Inside(tmp_path, **settings) as service:
        service.context = authority.trusting()
        prometheus = of_inside(service, "reader")
        prometheus.scrape_for(11)
        for path in (pair.certificate, jwks, tokens):
            good = path.read_bytes()
            path.write_text("nonsense")
            assert prometheus.scrape() == set()
            assert prometheus.scrape_for(10) == {"ChronosCredentialsStale"}
            path.write_bytes(good)
            assert prometheus.scrape() == set(), path
            prometheus.forget()


def test_an_audit_trail_that_cannot_be_written_fires_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for five minutes after entries were lost."""
    folder = tmp_path / "trail"
    folder.mkdir()
    settings = {"audit__path": folder / "audit.jsonl"}
    with Inside(tmp_path, **settings) as service:
        prometheus = of_inside(service)
        failing = lambda: value(service, "chronos_audit_failing")  # noqa: E731
        prometheus.scrape_for(6)
        away = folder.rename(tmp_path / "away")
        service.ask("POST", "/v1/messages", message("a", now_ms() + HOUR_MS))
        wait_until(lambda: failing() == 1)
        assert prometheus.scrape() == {"ChronosAuditTrail"}
        away.rename(folder)
        wait_until(lambda: failing() == 0)
        assert prometheus.scrape() == set()
        monkeypatch.setattr(audit, "WAITING_MAX", 0)
        service.ask("POST", "/v1/messages", message("b", now_ms() + HOUR_MS))
        assert prometheus.scrape() == {"ChronosAuditTrail"}
        assert prometheus.scrape_for(6) == set()
        assert prometheus.ever == {"ChronosAuditTrail"}
