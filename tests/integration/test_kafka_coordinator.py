"""The coordinator on a real Kafka: its topic is deleted, trimmed and inspected.

The contract that it shares with the other coordinators is `tests/contract/test_coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from chronos.adapters.kafka.cluster import loop as loop_module
from chronos.adapters.kafka.cluster.coordinator import KafkaCoordinator
from chronos.adapters.kafka.cluster.heartbeats import HeartbeatWriter
from chronos.adapters.kafka.cluster.inspection import inspect
from chronos.adapters.kafka.connection import Connection
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ROLES,
    MemberHeartbeat,
    RolesRecord,
    pack_record,
)
from chronos.core.cluster.roles import NUMBER_MAX, Roles
from chronos.core.cluster.timing import Timing
from chronos.errors import ConfigurationError, CoordinatorUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Broker
from tests.harness.plans import plan_for
from tests.harness.ports import free_port
from tests.harness.proxy import Link, Network
from tests.harness.waiting import wait_until
from tests.harness.zookeeper import member
from tests.integration.foreign import Sent, produce

pytestmark = pytest.mark.kafka

TIMING = Timing(heartbeat_ms=200, timeout_ms=1_000)

plan = plan_for(2)

WAIT_S = 30.0
"""Bound of every wait."""


class Nodes:
    """Coordinators over one topic; they leave at the end of the test."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.made: list[KafkaCoordinator] = []

    def coordinator(self, node: str, *, create: bool = True) -> KafkaCoordinator:
        """A coordinator that has not joined."""
        spec = TopicSpec(name=self.topic, partitions=2, settings={"retention.ms": "-1"})
        made = KafkaCoordinator(
            Connection(self.broker.bootstrap, {}),
            spec,
            create_topic=create,
            cluster="test",
            node=node,
            timing=TIMING,
        )
        self.made.append(made)
        return made

    def joined(self, node: str) -> KafkaCoordinator:
        """A coordinator that has joined."""
        made = self.coordinator(node)
        made.join(member(node))
        return made

    def until(self, condition: Callable[[], object], *nodes: KafkaCoordinator) -> None:
        """Let these coordinators control until the condition holds."""

        def holds() -> bool:
            for each in nodes:
                with suppress(CoordinatorUnavailable):
                    each.control(plan)
            return bool(condition())

        wait_until(holds, timeout_s=WAIT_S)


@pytest.fixture
def nodes(broker: Broker, topic_names: Callable[..., str]) -> Iterator[Nodes]:
    """Nodes of a cluster of their own."""
    made = Nodes(broker, topic_names("cluster"))
    yield made
    for coordinator in made.made:
        coordinator.leave()


def masters(roles: Roles | None) -> set[str | None]:
    """The masters of the roles."""
    return set() if roles is None else {given.master for given in roles.shards.values()}


def test_a_topic_that_was_deleted_is_created_again_and_masters_go_on_meanwhile(
    nodes: Nodes,
) -> None:
    """Every node registers anew; the roles that it had stay, and the next controller has a greater
    epoch."""
    a, b = nodes.joined("a"), nodes.joined("b")
    nodes.until(lambda: masters(a.look().roles) == masters(b.look().roles) == {"a", "b"}, a, b)
    before = a.look().roles
    assert before is not None
    admin = nodes.broker.admin()
    admin.delete_topics([nodes.topic])[nodes.topic].result(WAIT_S)
    seen: list[Roles | None] = []

    def is_again() -> bool:
        snapshots = [a.look(), b.look()]
        seen.extend(each.roles for each in snapshots)
        return all(
            each.confirmed
            and each.roles is not None
            and each.roles.controller_epoch > before.controller_epoch
            for each in snapshots
        )

    nodes.until(is_again, a, b)
    assert None not in seen
    nodes.until(lambda: set(a.look().members) == set(b.look().members) == {"a", "b"}, a, b)


def test_the_controller_trims_the_topic_and_a_newcomer_knows_all(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written long ago is deleted, but never the last roles."""
    monkeypatch.setattr(loop_module, "TRIM_MS", 500)
    a = nodes.joined("a")
    nodes.until(lambda: masters(a.look().roles) == {"a"}, a)
    topic = a.topic()
    nodes.until(
        lambda: topic.watermarks(HEARTBEATS).start > 3 and topic.watermarks(ROLES).start > 0, a
    )
    topic.close()
    b = nodes.joined("b")
    assert b.look().roles == a.look().roles
    assert set(b.look().members) == {"a", "b"}


STRANGER = member("x")

FOREIGN: list[bytes | None] = [
    None,
    b"",
    b"\x00\xff" * 500,
    b"[" * 500_000,
    msgspec.msgpack.encode({"type": "heartbeat", "incarnation": "x"}),
    b'{"type":"heartbeat-2","incarnation":"x"}',
    b'{"type":"' + b"x" * 500_000 + b'"}',
    b'{"type":"heartbeat","member":[],"incarnation":7}',
    b'{"type":"leave","node":"a","incarnation":"x","generation":18446744073709551616}',
    pack_record(
        MemberHeartbeat(member=STRANGER, incarnation="x", number=1, generation=1, epoch=NUMBER_MAX)
    ),
    pack_record(MemberHeartbeat(member=STRANGER, incarnation="x", number=1, generation=NUMBER_MAX)),
    pack_record(
        RolesRecord(
            incarnation="x", version=1, roles=Roles(controller="x", controller_epoch=NUMBER_MAX)
        )
    ),
    pack_record(
        RolesRecord(
            incarnation="x", version=1, roles=Roles(controller="x", controller_epoch=2**63 - 1)
        )
    ),
]
"""Values that another client could write: what no reader decodes, a later version, and numbers that
no process counts up to."""


def test_records_of_other_clients_stop_no_member_and_take_no_role(nodes: Nodes) -> None:
    """Among them batches in both partitions that the client cannot decompress: it would wait there
    for ever."""
    a, b = nodes.joined("a"), nodes.joined("b")
    nodes.until(lambda: masters(a.look().roles) == masters(b.look().roles) == {"a", "b"}, a, b)
    before = a.look().roles
    assert before is not None
    bootstrap, topic = nodes.broker.bootstrap, a.topic()
    with capture_logs() as lines:
        for partition in (HEARTBEATS, ROLES):
            produce(
                bootstrap, topic.name, [Sent(value, partition=partition) for value in FOREIGN * 20]
            )
            bomb = Sent(bytes(110_000_000), partition=partition)
            limits = {"message_max_bytes": 500_000_000, "batch_size": 500_000_000}
            produce(bootstrap, topic.name, [bomb], compression_codec="zstd", **limits)
        written = [topic.watermarks(partition).high for partition in (HEARTBEATS, ROLES)]

        def have_read() -> bool:
            loops = [each._loop for each in (a, b)]
            positions = [loop._reader.positions for loop in loops if loop is not None]
            return len(positions) == 2 and all(
                found >= end for each in positions for found, end in zip(each, written, strict=True)
            )

        topic.close()
        nodes.until(have_read, a, b)
        nodes.until(lambda: a.look().confirmed and b.look().confirmed, a, b)
    assert set(a.look().members) == set(b.look().members) == {"a", "b"}
    after = a.look().roles
    assert after is not None
    assert before.controller_epoch <= after.controller_epoch < before.controller_epoch + 10
    ignored = [line for line in lines if line["event"] == "record of the cluster topic ignored"]
    assert 2 <= len(ignored) <= 8, "one at once for each of the two members, then one in 30 s"
    assert all(len(line["why"]) <= 300 for line in ignored)
    batches = [line for line in lines if line["event"] == "batch of the cluster topic ignored"]
    assert {line["partition"] for line in batches} == {HEARTBEATS, ROLES}
    assert len(batches) >= 4
    c = nodes.joined("c")
    nodes.until(lambda: set(c.look().members) == {"a", "b", "c"}, a, b, c)
    a.leave()
    b.leave()
    nodes.until(lambda: masters(c.look().roles) == {"c"}, c)


def test_an_inspection_shows_the_members_and_the_roles_and_writes_nothing(nodes: Nodes) -> None:
    """`chronos doctor` does not join."""
    a = nodes.joined("a")
    nodes.until(lambda: masters(a.look().roles) == {"a"}, a)
    found = inspect(a.topic(), TIMING)
    assert found.members == {"a": member("a")}
    assert found.roles == a.look().roles
    (note,) = found.notes
    assert note.startswith(f"every client of this Kafka may read and write {nodes.topic}: ")
    a.leave()
    assert inspect(a.topic(), TIMING).members == {}


def test_an_inspection_says_what_the_acls_allow_to_everybody() -> None:
    """One for all users is named, also in its prefixed form; one for a single user is not."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as broker:
        nodes = Nodes(broker, "chronos.cluster")
        a = nodes.joined("a")

        admin = broker.admin()

        def allow(
            principal: str, pattern: ResourcePatternType, name: str, operation: AclOperation
        ) -> None:
            rule = AclBinding(
                ResourceType.TOPIC,
                name,
                pattern,
                principal,
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            admin.create_acls([rule])[rule].result(WAIT_S)

        def public() -> list[str]:
            return [
                note.partition(" may ")[2].partition(" chronos.cluster:")[0]
                for note in inspect(a.topic(), TIMING).notes
            ]

        allow("User:*", ResourcePatternType.PREFIXED, "chronos.", AclOperation.READ)
        nodes.until(lambda: public() == ["read"], a)
        allow("User:chronos", ResourcePatternType.LITERAL, nodes.topic, AclOperation.ALL)
        allow("User:*", ResourcePatternType.LITERAL, "other", AclOperation.ALL)
        allow("User:*", ResourcePatternType.LITERAL, nodes.topic, AclOperation.WRITE)
        nodes.until(lambda: public() == ["read and write"], a)
        a.leave()


def test_an_inspection_of_a_topic_that_does_not_exist_creates_none(nodes: Nodes) -> None:
    """It says that the first node creates it."""
    coordinator = nodes.coordinator("a")
    found = inspect(coordinator.topic(), TIMING)
    assert (found.members, found.roles) == ({}, None)
    assert "does not exist yet" in found.notes[0]
    assert not coordinator.topic().exists()


def test_a_topic_with_other_partitions_is_refused(nodes: Nodes) -> None:
    """Heartbeats and roles need one each."""
    nodes.broker.create_topic(nodes.topic, partitions=3)
    with pytest.raises(ConfigurationError, match="has 3 partitions, Chronos needs 2"):
        nodes.joined("a")


def test_a_missing_topic_is_not_created_where_topics_are_not(nodes: Nodes) -> None:
    """With `topics.create: off`."""
    with pytest.raises(ConfigurationError, match="these topics are missing"):
        nodes.coordinator("a", create=False).join(member("a"))


class Writing:
    """A writer of heartbeats whose only way to the broker is a link; one heartbeat at a time."""

    def __init__(self, link: Link) -> None:
        self._writer = HeartbeatWriter(
            Connection(link.address, {}), "heartbeats", TIMING.timeout_ms
        )
        self._number = 0
        self._is_under_way = False
        self.acknowledged = self.failed = 0

    def until(self, count: str, more: int) -> None:
        """Write heartbeats until so many more are `acknowledged` or `failed`."""
        enough = getattr(self, count) + more

        def write() -> bool:
            if not self._is_under_way:
                self._number += 1
                self._is_under_way = True
                self._writer.write(
                    MemberHeartbeat(
                        member=member("a"), incarnation="i", number=self._number, generation=1
                    ),
                    self._settled,
                )
            self._writer.poll()
            return getattr(self, count) >= enough

        wait_until(write, timeout_s=WAIT_S)

    def _settled(self, offset: int | None, why: str) -> None:
        self._is_under_way = False
        self.acknowledged += offset is not None
        self.failed += offset is None

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


@pytest.fixture
def beyond_a_link() -> Iterator[tuple[Link, Writing]]:
    """A writer with a connection through the link."""
    with Network() as network:
        link = network.link(port := free_port())
        with Broker(doors={"LINK": (port, link.port)}, heap_mb=256) as broker:
            broker.create_topic("heartbeats")
            writing = Writing(link)
            writing.until("acknowledged", 1)
            yield link, writing
            writing.close()


def test_heartbeats_go_on_over_the_connection_from_before_a_silence(
    beyond_a_link: tuple[Link, Writing],
) -> None:
    """A broker that wakes takes seconds for new connections, here for ever."""
    link, writing = beyond_a_link
    link.cut(silent=True)
    link.refuse_new()
    writing.until("failed", 2)
    link.mend_old()
    writing.until("acknowledged", 3)


def test_heartbeats_go_on_over_another_connection_where_the_old_one_stays_silent(
    beyond_a_link: tuple[Link, Writing],
) -> None:
    """As if the host were gone; and a second time."""
    link, writing = beyond_a_link
    for _ in range(2):
        link.strand()
        writing.until("failed", 1)
        writing.until("acknowledged", 3)
