"""Chronos's own topics changed by others: deleted, created again, trimmed, extended, or filled
before the first start.

The result is always an exit or a pause with a reason that says what to do; no message is duplicated
or silently lost."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import (
    Sent,
    Tail,
    Topics,
    alter_topic,
    delete_topic,
    produce,
    progress_of,
    read_all,
    schedule,
)

pytestmark = pytest.mark.kafka

STAMPED = {"message.timestamp.type": "LogAppendTime"}

CONFIGURATION_EXIT, MISMATCH_EXIT = 2, 1

STEPPED_OVER = "records of another program stepped over: allow only Chronos to write to this topic"


class Place:
    """A service on the shared broker, with separate topics and a target topic."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.topics = Topics.of(f"o{uuid.uuid4().hex[:8]}")
        self.target = broker.create_topic(f"{self.topics.delay}.target")
        self.folder = folder
        self.service = self.make()

    def make(self, **settings: object) -> Service:
        """A service on the same topics and data."""
        return Service(
            self.folder / "node",
            bootstrap=self.broker.bootstrap,
            settings=self.topics.settings(**settings),
        )

    @contextmanager
    def pair(self) -> Iterator[tuple[Service, Service]]:
        """Two nodes of a cluster on the same topics, not started yet."""
        shared = {"coordinator__kind": "kafka", "topics__cluster": f"{self.topics.delay}.cluster"}
        settings = self.topics.settings(**shared, node__id="n2")
        with (
            self.make(**shared, node__id="n1") as first,
            Service(
                self.folder / "second", bootstrap=self.broker.bootstrap, settings=settings
            ) as second,
        ):
            yield first, second

    def send(self, *values: bytes, delay: str = "0ms", partition: int = 0) -> None:
        """Write messages for the target."""
        headers = schedule(self.target, delay=delay)
        produce(
            self.broker.bootstrap,
            self.topics.delay,
            [Sent(value, headers, partition=partition) for value in values],
        )

    def begin(self) -> None:
        """Deliver two messages, and keep one pending."""
        self.service.start()
        self.send(b"a", b"b")
        self.send(b"later", delay="1h")
        self.arrived(b"a", b"b")
        self.service.wait_until(lambda: self.service.pending() == 1, "hold one message")

    def arrived(self, *values: bytes) -> None:
        """Assert that the target contains exactly these messages, also after a short wait for
        more."""
        with Tail(self.broker.bootstrap, self.target) as tail:
            tail.take(self.target, len(values))
            assert sorted(got.value or b"" for got in tail.settle().records[self.target]) == sorted(
                values
            )

    def remake(self, topic: str, **config: object) -> None:
        """Delete a topic and create it again."""
        delete_topic(self.broker, topic)
        self.broker.create_topic(topic, config={**STAMPED, **config})

    def trim(self, topic: str, offset: int) -> None:
        """Delete the records before an offset."""
        admin = self.broker.admin()
        for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            future.result(30)


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    place = Place(broker, tmp_path)
    yield place
    place.service.close()


def check_log(service: Service, *words: str) -> None:
    """Assert that the last lines of the log contain the words: what happened and what to do."""
    last = service.tail(3)
    assert all(word in last for word in words), last


def wait_agreed(first: Service, second: Service) -> None:
    """Wait until both nodes have the same state of the shard."""
    compared = ("applied", "digest", "pull_offset")

    def agree() -> bool:
        found = [node.get("/v1/shards/0/digest") for node in (first, second)]
        return len({tuple(each[name] for name in compared) for each in found}) == 1

    second.wait_until(agree, "replay the shard to its master's digest")


@pytest.mark.parametrize("which", ["delay", "progress"])
def test_a_topic_deleted_at_run_time_ends_the_service_with_the_name_of_the_topic(
    place: Place, which: str
) -> None:
    place.begin()
    topic = getattr(place.topics, which)
    delete_topic(place.broker, topic)

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(place.service, topic, "deleted")


@pytest.mark.parametrize("which", ["delay", "progress"])
def test_a_topic_recreated_at_run_time_ends_the_service(place: Place, which: str) -> None:
    """The client would continue at its old offset: the first records of the new topic would be
    silently lost."""
    place.begin()
    topic = getattr(place.topics, which)
    place.remake(topic)

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(place.service, topic, "deleted and created again")
    place.arrived(b"a", b"b")


@pytest.mark.parametrize("which", ["delay", "progress"])
def test_a_topic_recreated_while_the_service_was_stopped_is_noticed_at_the_start(
    place: Place, which: str
) -> None:
    place.begin()
    assert place.service.stop() == 0
    place.remake(getattr(place.topics, which))
    place.service.launch()

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(place.service, f"{which}_topic_id", "to start anew, remove the data directory")
    place.arrived(b"a", b"b")


def test_the_remedy_for_a_recreated_topic_works(place: Place) -> None:
    """Data directory and both topics removed: the new messages are delivered, the old ones not
    again."""
    place.begin()
    place.service.stop()
    delete_topic(place.broker, place.topics.delay, place.topics.progress)
    shutil.rmtree(place.service.data_dir)
    place.service.start()
    place.send(b"new")

    place.arrived(b"a", b"b", b"new")


@pytest.mark.parametrize("which", ["delay", "progress"])
@pytest.mark.parametrize("keeps_store", [True, False], ids=["store-kept", "store-lost"])
def test_a_topic_trimmed_ahead_of_the_store_is_noticed_at_the_start(
    place: Place, which: str, keeps_store: bool
) -> None:
    """A store beyond the gap continues; without a store the error names the gap."""
    place.begin()
    place.service.stop()
    place.trim(getattr(place.topics, which), 1)
    if keeps_store:
        place.service.start()
        place.send(b"c")
        place.arrived(b"a", b"b", b"c")
        return
    shutil.rmtree(place.service.data_dir)
    place.service.launch()

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(
        place.service, f"{getattr(place.topics, which)}/0 begins at 1", "trimmed ahead of the store"
    )
    place.arrived(b"a", b"b")


def test_records_trimmed_before_they_were_pulled_end_the_service(place: Place) -> None:
    """Records that were accepted and are lost are reported, with the store and without."""
    place.begin()
    place.service.stop()
    place.send(b"lost-1", b"lost-2")
    place.trim(place.topics.delay, 5)
    place.service.launch()

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(place.service, "begins at 5", "needs it from 3 on")

    shutil.rmtree(place.service.data_dir)
    place.service.launch()
    assert place.service.wait_exit() == MISMATCH_EXIT, "replay must not skip the gap either"
    place.arrived(b"a", b"b")


def test_partitions_added_at_run_time_end_the_service_and_a_rebuild_with_more_shards(
    place: Place,
) -> None:
    """No shard would read such a partition, and no cancel would find an id that moved."""
    place.begin()
    admin = place.broker.admin()
    admin.create_partitions([NewPartitions(place.topics.delay, 2)])[place.topics.delay].result(30)

    assert place.service.wait_exit() == CONFIGURATION_EXIT
    check_log(
        place.service,
        f"{place.topics.delay} has 2 partitions where `shards` says 1",
        "a second set of topics",
    )

    admin.create_partitions([NewPartitions(place.topics.progress, 2)])[
        place.topics.progress
    ].result(30)
    shutil.rmtree(place.service.data_dir / "shards")
    place.service = place.make(shards=2)
    place.service.launch()
    assert place.service.wait_exit() == MISMATCH_EXIT
    text = "names 1 as the number of shards, and it is 2 now: partitions were added"
    check_log(place.service, f"{place.topics.progress}/0", text, "a second set of topics")
    place.arrived(b"a", b"b")


@pytest.mark.parametrize("which", ["delay", "progress"])
def test_producer_timestamps_on_its_own_topics_are_refused(place: Place, which: str) -> None:
    """`CreateTime` is noticed at run time and at every start; the error contains the command that
    repairs it."""
    place.begin()
    topic = getattr(place.topics, which)
    alter_topic(place.broker, topic, message_timestamp_type="CreateTime")
    assert place.service.wait_exit() == CONFIGURATION_EXIT
    place.service.launch()

    assert place.service.wait_exit() == CONFIGURATION_EXIT
    check_log(place.service, f"--topic {topic} --add-config message.timestamp.type=LogAppendTime")

    alter_topic(place.broker, topic, message_timestamp_type="LogAppendTime")
    place.service.start()
    place.send(b"c")
    place.arrived(b"a", b"b", b"c")


def test_a_topic_filled_before_the_first_start_is_delivered_from_its_beginning(
    place: Place,
) -> None:
    place.broker.create_topic(place.topics.delay, config=STAMPED)
    place.send(b"early-1", b"early-2")
    place.send(b"later", delay="1h")
    place.service.start()
    place.send(b"new")

    place.arrived(b"early-1", b"early-2", b"new")
    assert place.service.pending() == 1


def test_a_topic_trimmed_before_the_first_start_is_read_from_its_first_offset(place: Place) -> None:
    """Records deleted before the first start were never accepted."""
    place.broker.create_topic(place.topics.delay, config=STAMPED)
    place.send(b"gone-1", b"gone-2", b"kept")
    place.trim(place.topics.delay, 2)
    place.service.start()
    place.send(b"new")

    place.arrived(b"kept", b"new")


def test_a_shard_that_begins_above_offset_0_is_rebuilt_after_a_kill_and_on_another_node(
    place: Place,
) -> None:
    """The store is lost with the process, which had flushed nothing yet; a node that joins later
    never had one."""
    place.broker.create_topic(place.topics.delay, config=STAMPED)
    place.send(b"gone-1", b"gone-2", b"kept")
    place.send(b"later", delay="1h")
    place.trim(place.topics.delay, 2)
    with place.pair() as (first, second):
        first.start()
        place.arrived(b"kept")
        first.kill()
        first.start()
        place.send(b"new")
        place.arrived(b"kept", b"new")
        assert first.pending() == 1

        second.start()
        wait_agreed(first, second)
        first.kill()
        second.wait_until(lambda: second.shards()[0]["role"] == "master", "take the shard over")
        place.send(b"last")
        place.arrived(b"kept", b"new", b"last")
        assert second.pending() == 1


@pytest.mark.parametrize(
    ("topic", "config", "code"),
    [
        ("delay", {}, CONFIGURATION_EXIT),
        ("delay", {**STAMPED, "cleanup.policy": "compact"}, CONFIGURATION_EXIT),
        ("progress", {**STAMPED, "max.message.bytes": 100_000}, CONFIGURATION_EXIT),
    ],
    ids=["create-time", "compacted", "too small for a progress record"],
)
def test_a_topic_created_by_others_with_wrong_settings_is_refused(
    place: Place, topic: str, config: dict[str, object], code: int
) -> None:
    place.broker.create_topic(getattr(place.topics, topic), config=config)
    place.service.launch()

    assert place.service.wait_exit() == code
    check_log(place.service, "Chronos needs", "kafka-configs --alter")


def test_records_of_another_program_in_the_progress_topic_are_stepped_over(place: Place) -> None:
    """Before the first start, between the steps of a master and while no node runs: they have a key
    or headers. The start of the delay partition is read from the first progress record behind
    them."""
    place.broker.create_topic(place.topics.delay, config=STAMPED)
    place.broker.create_topic(place.topics.progress, config=STAMPED)
    place.send(b"gone", b"one")
    place.trim(place.topics.delay, 1)
    records = [
        Sent(b"hello", key=b"order-1"),
        Sent(None, key=b"order-1"),
        Sent(b"hello", [("chronos-source", b"shop.delay/0/7")]),
        Sent(None, [("own", None)]),
    ]

    def disturb() -> None:
        produce(place.broker.bootstrap, place.topics.progress, records)

    with place.pair() as (first, second):
        disturb()
        first.start()
        place.send(b"later", delay="1h")
        place.arrived(b"one")
        disturb()
        place.send(b"two")
        place.arrived(b"one", b"two")
        second.start()
        wait_agreed(first, second)
        disturb()
        place.send(b"three")
        place.arrived(b"one", b"two", b"three")
        wait_agreed(first, second)
        second.stop()
        # Its store is lost with the process, which had flushed nothing yet.
        first.kill()
        disturb()
        first.start()
        place.send(b"four")
        place.arrived(b"one", b"two", b"three", b"four")
        second.start()
        wait_agreed(first, second)
        first.kill()
        second.wait_until(lambda: second.shards()[0]["role"] == "master", "take the shard over")
        place.send(b"five")
        place.arrived(b"one", b"two", b"three", b"four", b"five")
        assert second.pending() == 1
        named = second.events(STEPPED_OVER)
        assert [event["key"] for event in named][:1] == ["b'order-1'"]
        assert 0 < sum(event["records"] for event in named) <= 16


def test_a_record_that_is_no_progress_record_but_could_be_one_is_never_stepped_over(
    place: Place,
) -> None:
    """It has neither a key nor headers."""
    place.broker.create_topic(place.topics.progress, config=STAMPED)
    produce(place.broker.bootstrap, place.topics.progress, [Sent(b"hello")])
    place.service.launch()

    assert place.service.wait_exit() == MISMATCH_EXIT
    check_log(place.service, "progress record", "topics.progress")


def test_missing_topics_are_not_created_if_that_is_switched_off(place: Place) -> None:
    """With `topics.create=off` the error names all missing topics."""
    service = place.make(topics__create="off")
    service.launch()

    assert service.wait_exit() == CONFIGURATION_EXIT
    check_log(service, *place.topics)


def test_progress_is_written_for_every_step_and_never_twice(place: Place) -> None:
    """Positions only move forward, also across a kill."""
    place.begin()
    place.service.kill()
    place.service.start()
    place.send(b"c")
    place.arrived(b"a", b"b", b"c")

    records = [
        progress for _, progress in progress_of(place.broker.bootstrap, place.topics.progress)
    ]
    cursors = [(progress.cursor_due_ms, progress.cursor_offset) for progress in records]
    pulls = [progress.pull_offset for progress in records]
    assert cursors == sorted(cursors)
    assert pulls == sorted(pulls)
    assert read_all(place.broker.bootstrap, place.topics.rejected) == []
