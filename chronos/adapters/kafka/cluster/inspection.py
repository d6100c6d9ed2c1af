"""The cluster as its topic shows it to a client that does not join, for `chronos doctor`.

It reads what the topic holds, then for one timeout, in which every member writes a heartbeat; it
writes nothing."""

import time

from chronos.adapters.kafka.cluster.reader import Forgotten
from chronos.adapters.kafka.cluster.topic import ClusterTopic
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    LeaveRecord,
    MemberHeartbeat,
    RecordUnreadable,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import Member, Roles
from chronos.core.cluster.timing import Timing
from chronos.errors import CoordinatorUnavailable, LogUnavailable
from chronos.ports import ClusterInspection

READ_S = 5.0
"""How long reading what the topic holds may take."""


def inspect(topic: ClusterTopic, timing: Timing) -> ClusterInspection:
    """Read for a timeout, in which every member writes a heartbeat, and close the topic. Raises
    ConfigurationError, CoordinatorUnavailable."""
    place = f"{topic.connection.bootstrap_servers}, topic {topic.name}"
    try:
        if not topic.exists():
            why = "the topic does not exist yet; the first node that joins creates it"
            return ClusterInspection(checked=place, notes=(why,), members={}, roles=None)
        topic.open(create=False)
        denied, public = topic.denied(), topic.public()
        members, unreadable, roles = _read(topic, timing)
    except (LogUnavailable, Forgotten) as error:
        raise CoordinatorUnavailable(f"no Kafka broker answers for the cluster: {error}") from error
    finally:
        topic.close()
    notes = [*topic.advice]
    notes += [
        f"an ACL denies {word}: a node needs Read and Write on {topic.name}" for word in denied
    ]
    if public:
        notes.append(
            f"every client of this Kafka may {' and '.join(public).lower()} {topic.name}: writing "
            "to it is commanding the cluster, and it holds the tokens of the nodes: allow only "
            "Chronos (docs/how-to/kafka.md#acls)"
        )
    if unreadable:
        notes.append(f"{unreadable} records are not understood: run the same version everywhere")
    return ClusterInspection(
        checked=f"{place}: it can be read", notes=tuple(notes), members=members, roles=roles
    )


def _read(topic: ClusterTopic, timing: Timing) -> tuple[dict[str, Member], int, Roles | None]:
    """Return the members with a heartbeat, the number of records that cannot be decoded, and the
    last roles."""
    reader = topic.reader()
    try:
        entries = reader.read_all(READ_S)
        before = len(entries)
        deadline_s = time.monotonic() + timing.timeout_ms / 1_000
        while (left_s := deadline_s - time.monotonic()) > 0:
            entries += reader.poll(left_s)
    finally:
        reader.close()
    reports: dict[str, Member] = {}
    members: dict[str, Member] = {}
    roles: Roles | None = None
    unreadable = 0
    for at, entry in enumerate(entries):
        try:
            if entry.partition != HEARTBEATS:
                roles = unpack_roles(entry.value).roles
                continue
            record = unpack_record(entry.value)
        except RecordUnreadable:
            unreadable += 1
            continue
        if isinstance(record, MemberHeartbeat) and record.generation:
            node = record.member.node
            reports[node] = reports.get(node, record.member) if record.brief else record.member
            if at >= before:
                members[node] = reports[node]
        elif isinstance(record, LeaveRecord):
            members.pop(record.node, None)
    return members, unreadable, roles
