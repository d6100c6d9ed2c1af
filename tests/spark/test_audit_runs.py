"""Audits of real runs: a service is killed again and again amid messages with all features, its
logs are archived, and the audit raises no false alarm."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Message, Producer

from chronos.adapters.kafka.log import KafkaLog
from chronos.spark.archive.job import ArchivePlan, archive
from chronos.spark.audit.job import Audit, audit
from chronos.spark.request import BackfillRequest
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import SHARDS, Sent, now_ms, read_committed, text_headers
from tests.integration.mixture import MixedFlow
from tests.spark.backfills import backfill_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.campaign

RUNS = int(os.environ.get("AUDIT_RUNS", "1"))
"""Runs, each with a seed of its own."""

LIVES = 4
"""How often a run's service is started before it is killed."""

MESSAGES = 300
"""Plain messages written in each incarnation; a fifth as many records that change or end them."""

MIXED = 50
"""Messages written in each incarnation that are series, spread, expire, have a limited target or
one that fails."""

PAST_MS, AHEAD_MS = 2_000, 12_000

STARTING = 0.3
"""Share of the kills that come while the service still starts."""

AGE_MS = 600
"""Age in ms at which a progress record counts: more than the tolerance of clocks."""

AFTER = b"0 after"
"""Payload of the messages that move the cursors to the end."""

Token = tuple[int, int, int]
"""Shard and offset of the record that brought a message, and the occurrence."""


class Run:
    """One service with its flow, and an archive of its topics."""

    def __init__(self, broker: Broker, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.flow = MixedFlow(broker, seed)
        self.service = Service(
            directory / "node", bootstrap=broker.bootstrap, settings=self.flow.settings()
        )
        self.storage = ArchiveStorage(str(directory / "archive"))
        self.began_ms = now_ms()
        self._broker = broker
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "log_level": 2}
        )
        self.unreadable = 0
        self._others = 0
        topics = {
            name: f"{self.flow.prefix}.{name}"
            for name in ("delay", "progress", "rejected", "dead_letter")
        }
        self.plan = ArchivePlan(
            cluster=self.flow.prefix,
            bootstrap_servers=broker.bootstrap,
            delay=topics["delay"],
            progress=topics["progress"],
            rejected=topics["rejected"],
            dead_letter=topics["dead_letter"],
            targets=[
                self.flow.target,
                *(topic for name, topic in self.flow.targets.items() if name != "nowhere"),
            ],
        )

    # --- events

    def live_and_die(self) -> None:
        """Write, start, change, kill."""
        written = self.flow.write(MESSAGES, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        self.flow.write_mixed(MIXED, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        self.service.launch()
        if self.dice.random() < STARTING:
            time.sleep(self.dice.uniform(0.0, 0.9))
        else:
            self.service.wait_ready()
            time.sleep(self.dice.uniform(0.0, 0.6))
        self.service.kill()
        self.flow.flush()
        self.flow.cancel(message for message in written if self.dice.random() < 0.05)
        self._change(message for message in written if self.dice.random() < 0.1)
        self._write_what_is_refused()

    def _change(self, messages: Iterable[Sent]) -> None:
        """Reschedule, fire, replace, and send a taken id again."""
        for message in messages:
            assert message.id is not None
            due = b"%d" % self.dice.randint(now_ms() - PAST_MS, now_ms() + AHEAD_MS)
            own = message.id.startswith("order-")
            verb = self.dice.choice(
                ["reschedule", "fire-now", *(["replace", "take-over", "again"] if own else [])]
            )
            headers: dict[str, str | bytes | None] = {}
            if verb in ("reschedule", "fire-now", "replace"):
                headers["chronos-action"] = verb.encode()
            if verb != "fire-now":
                headers["chronos-deliver-at"] = due
            if verb in ("replace", "take-over", "again"):
                headers["chronos-target-topic"] = self.flow.target.encode()
            if verb == "take-over":
                headers["chronos-on-conflict"] = b"replace"
            shard = -1
            if not own:
                headers["chronos-id"] = message.id.encode()
                shard = int(message.id.split("-")[0])
            self._write(message.id if own else None, f"{message.number} {verb}", headers, shard)

    def _write_what_is_refused(self) -> None:
        """Send records that cannot be parsed."""
        for headers in (
            {},
            {"chronos-deliver-at": b"soon", "chronos-target-topic": b"x"},
            {"chronos-deliver-at": b"1", "chronos-target-topic": b"no topic"},
        ):
            self._write(None, "0 refused", dict(headers), self.dice.randrange(SHARDS))
            self.unreadable += 1

    def _write(
        self, key: str | None, value: str | None, headers: dict[str, str | bytes | None], shard: int
    ) -> None:
        def seen(error: Any, record: Any) -> None:
            assert error is None, error
            self.flow.watermarks.note(record.partition(), record.offset())

        self._producer.produce(
            self.flow.delay, value, key, shard, headers=headers, on_delivery=seen
        )
        assert self._producer.flush(60) == 0

    def end(self) -> int:
        """Start the service once more until all messages have ended; the time up to which all must
        be judged."""
        self.service.start()
        self.flow.replay_all(self.service)
        end_ms = now_ms() + AHEAD_MS  # nothing is due later, be it cancelled or refused
        # The cursor passes `end_ms`, and what says so is old enough when the target is archived.
        for after_ms in (1, 2 * AGE_MS):
            for shard in range(SHARDS):
                headers: dict[str, str | bytes | None] = {
                    "chronos-target-topic": self.flow.target.encode(),
                    "chronos-deliver-at": b"%d" % (end_ms + after_ms),
                }
                self._write(None, AFTER.decode(), headers, shard)
            self.flow.wait_settled(self.service)
        assert self.service.stop() == 0
        return end_ms

    # --- results

    def promised(self) -> set[tuple[int, int]]:
        """Records that schedule a message or cannot be parsed, without those that move the cursors
        to the end."""
        found = set()
        for record in read_committed(self._broker.bootstrap, self.flow.delay):
            headers = dict(record.headers() or ())
            asks = (
                headers.get("chronos-action", b"replace") in (b"replace", b"replay")
                and record.value() is not None
            )
            if asks and record.value() != AFTER:
                shard, offset = record.partition(), record.offset()
                assert shard is not None
                assert offset is not None
                found.add((shard, offset))
        return found

    def archive(self, spark: SparkSession) -> None:
        """Archive all present records."""
        brokers = self._brokers()
        try:
            archive(spark, brokers, self.storage, self.plan, ignore)
        finally:
            brokers.close()

    def read(self, topic: str) -> Iterator[Message]:
        """All committed records of a topic."""
        return read_committed(self._broker.bootstrap, topic)

    def missing(self, spark: SparkSession, end_ms: int) -> int:
        """The number of messages that `chronos backfill --missing-only --dry-run` would send."""
        brokers = self._brokers()
        try:
            job = backfill_of(spark, self.storage, brokers, self._broker.bootstrap)
            plan = job.plan(
                BackfillRequest(mode="missing", from_ms=self.began_ms - 60_000, to_ms=end_ms)
            )
            job.discard(plan)
        finally:
            brokers.close()
        return plan.messages

    def _brokers(self) -> KafkaLog:
        return KafkaLog(
            bootstrap_servers=self._broker.bootstrap,
            properties={},
            progress_topic=self.plan.progress,
            transaction_timeout_s=10,
        )

    def audit(
        self, spark: SparkSession, end_ms: int, details: Path
    ) -> tuple[Audit, list[dict[str, Any]]]:
        """An audit of all messages due before `end_ms`, and a row for each promised delivery."""
        found = audit(
            spark, self.storage, from_ms=self.began_ms - 60_000, to_ms=end_ms, details=str(details)
        )
        return found, ds.dataset(details, format="parquet").to_table().to_pylist()


def token(headers: dict[str, str]) -> Token:
    """The token in the receipt of a record."""
    _, shard, offset = headers["chronos-source"].rsplit("/", 2)
    return int(shard), int(offset), int(headers.get("chronos-occurrence", "1"))


def tokens(rows: list[dict[str, Any]], *outcomes: str) -> Counter[Token]:
    """Tokens of the deliveries with these outcomes."""
    return Counter(row_token(row) for row in rows if row["outcome"] in outcomes)


@pytest.fixture(scope="module")
def first_seed() -> int:
    """The seed in TEST_SEED, to repeat a run, or a random one."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32)))
    print(f"TEST_SEED={seed}")
    return seed


@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_with_kills_is_audited_as_clean(
    spark: SparkSession, broker: Broker, tmp_path: Path, first_seed: int, number: int
) -> None:
    """Every message has ended, nothing is a false alarm, and each outcome agrees with the
    topics."""
    run = Run(broker, tmp_path, first_seed + number)
    with run.service:
        run.flow.begin(run.service)
        run.service.kill()
        with run.flow.replaying(run.service):
            for incarnation in range(LIVES):
                run.live_and_die()
                if incarnation == LIVES // 2:
                    run.archive(spark)
                    run.flow.repair()
        end_ms = run.end()
    run.archive(spark)
    found, rows = run.audit(spark, end_ms, tmp_path / "details")
    counts = found.overall.counts
    assert found.clean, found.samples
    assert not {"pending", "unknown"} & set(counts), found.reasons
    assert found.judged_ms == end_ms
    records = [
        text_headers(record) for topic in run.plan.targets or () for record in run.read(topic)
    ]
    delivered = Counter(
        token(headers) for headers in records if int(headers["chronos-due-at"]) < end_ms
    )
    assert max(delivered.values()) == 1
    assert tokens(rows, "delivered") == delivered
    everything = [text_headers(record) for record in run.read(run.plan.dead_letter)]
    letters = [headers for headers in everything if "chronos-reason" in headers]
    assert tokens(rows, "expired", "dead-lettered") == Counter(
        token(headers) for headers in letters
    )
    attempts = {
        token(headers): int(headers.get("chronos-attempt", "1")) for headers in records + letters
    }
    ended_there = ("delivered", "expired", "dead-lettered")
    of_rows = {row_token(row): row["attempt"] for row in rows if row["outcome"] in ended_there}
    assert of_rows == {each: attempts[each] for each in of_rows}
    assert counts["rejected"] == len(tokens(rows, "rejected")) >= run.unreadable
    refused = {token(text_headers(record)) for record in run.read(run.plan.rejected)}
    ignored = {(*row_source(row), 1) for row in rows if row["reason"] == "ignored"}
    assert set(tokens(rows, "rejected")) - ignored <= refused
    assert {row_source(row) for row in rows} == run.promised()
    ended = tokens(rows, "cancelled", "replaced")
    assert not set(ended) & set(delivered)
    assert all(
        counts.get(outcome) for outcome in ("cancelled", "replaced", "expired", "dead-lettered")
    )
    assert found.overall.lateness.count == len(delivered)
    assert max(row["occurrence"] for row in rows) > 1
    assert run.missing(spark, end_ms) == 0


def row_token(row: dict[str, Any]) -> Token:
    """The token of a row of the details."""
    return row["shard"], row["source_offset"], row["occurrence"]


def row_source(row: dict[str, Any]) -> tuple[int, int]:
    """Shard and offset of a row of the details."""
    return row["shard"], row["source_offset"]
