"""Records of the cluster topic: golden bytes, which a running cluster already has, and bytes that
are not understood."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from chronos.core.cluster.kafka.records import (
    Announcement,
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RecordUnreadable,
    RolesRecord,
    Submission,
    pack_record,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import Member, ReplicaReport, Request, Roles, ShardRoles
from tests.harness.table import table

MEMBER = Member(
    node="a",
    instance="i",
    address="http://a",
    version="1",
    started_ms=5,
    replicas={0: ReplicaReport(applied=7)},
)

ROLES_RECORD = RolesRecord(
    incarnation="l",
    version=3,
    answered=9,
    roles=Roles(controller="a", controller_epoch=2, shards={0: ShardRoles(master="a", epoch=1)}),
)

ROLES_BYTES = (
    b'{"type":"roles","incarnation":"l","version":3,"answered":9,'
    b'"roles":{"controller":"a","controller_epoch":2,"shards":{"0":{"master":"a","epoch":1}}}}'
)

GOLDEN: list[tuple[ClusterRecord, bytes]] = [
    (
        MemberHeartbeat(
            member=MEMBER,
            incarnation="l",
            number=3,
            generation=1,
            heartbeats_read=40,
            roles_read=4,
            epoch=2,
            controls=2,
            version=6,
        ),
        b'{"type":"heartbeat","member":{"node":"a","instance":"i","address":"http://a","version":"1","started_ms":5,'
        b'"replicas":{"0":{"applied":7}}},"incarnation":"l","number":3,"generation":1,"heartbeats_read":40,"roles_read":4,'
        b'"epoch":2,"controls":2,"version":6}',
    ),
    (
        Announcement(node="a", incarnation="l", number=1),
        b'{"type":"announcement","node":"a","incarnation":"l","number":1}',
    ),
    (
        LeaveRecord(node="a", incarnation="l", generation=2),
        b'{"type":"leave","node":"a","incarnation":"l","generation":2}',
    ),
    (
        Submission(request=Request(kind="drain", node="b")),
        b'{"type":"request","request":{"kind":"drain","node":"b"}}',
    ),
    (
        MemberHeartbeat(
            member=replace(MEMBER, replicas={}), incarnation="l", number=4, generation=1, brief=True
        ),
        b'{"type":"heartbeat","member":{"node":"a","instance":"i","address":"http://a","version":"1","started_ms":5},'
        b'"incarnation":"l","number":4,"generation":1,"brief":true}',
    ),
]


@pytest.mark.parametrize(
    ("record", "value"), GOLDEN, ids=[type(record).__name__ for record, _ in GOLDEN]
)
def test_a_record_has_these_bytes_and_is_read_from_them(
    record: ClusterRecord, value: bytes
) -> None:
    assert pack_record(record) == value
    assert unpack_record(value) == record


def test_a_roles_record_has_these_bytes_and_is_read_from_them() -> None:
    assert pack_record(ROLES_RECORD) == ROLES_BYTES
    assert unpack_roles(ROLES_BYTES) == ROLES_RECORD
    assert ROLES_RECORD.epoch == 2


def test_a_rules_number_is_written_where_it_is_not_the_first() -> None:
    """Whether a node knows such rules is the question of its membership."""
    record = replace(ROLES_RECORD, roles=Roles(controller="a", controller_epoch=2, rules=2))
    value = (
        b'{"type":"roles","incarnation":"l","version":3,"answered":9,'
        b'"roles":{"controller":"a","controller_epoch":2,"rules":2}}'
    )
    assert pack_record(record) == value
    assert unpack_roles(value) == record


@pytest.mark.parametrize(
    ("record", "value"),
    [*GOLDEN, (ROLES_RECORD, ROLES_BYTES)],
    ids=lambda each: "" if isinstance(each, bytes) else type(each).__name__,
)
def test_fields_of_a_newer_version_are_ignored(
    record: ClusterRecord | RolesRecord, value: bytes
) -> None:
    """In the record, its member, the reports of it, its request, and the roles of each shard."""
    unpack = unpack_roles if isinstance(record, RolesRecord) else unpack_record
    newer = re.sub(rb'\{(?="[a-z])', b'{"a field of a newer version":["new",{}],', value)
    assert newer.count(b"newer") == len(re.findall(rb'\{"[a-z]', value))
    assert unpack(newer) == record


@table(
    ("value", "why"),
    [
        (None, "has no value"),
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b"[" * 100_000, "cannot be decoded"),
        (b'{"type":"later"}', "Invalid value 'later'"),
        (b'{"type":"heartbeat","incarnation":"l","number":1}', "missing required field `member`"),
        (
            b'{"type":"announcement","node":1,"incarnation":"l","number":1}',
            "Expected `str`, got `int`",
        ),
        (ROLES_BYTES, "Invalid value 'roles'"),
        (
            b'{"type":"announcement","node":"a","incarnation":"l","number":9223372036854775807}',
            "<= 9007199254740991",
        ),
        (b'{"type":"announcement","node":"a","incarnation":"l","number":-1}', ">= 0"),
        (
            GOLDEN[0][1].replace(b'"applied":7', b'"applied":7,"role_epoch":9223372036854775807'),
            "<= 9007199254740991",
        ),
        (
            b'{"type":"announcement","node":"a","incarnation":"l","number":1,"more":"'
            + bytes(16 << 20)
            + b'"}',
            "bytes, more than",
        ),
    ],
)
def test_what_is_no_record_of_the_heartbeats_is_named(value: bytes | None, why: str) -> None:
    with pytest.raises(RecordUnreadable, match=why):
        unpack_record(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "has no value"),
        (GOLDEN[1][1], "Invalid value 'announcement'"),
        (b"{", "truncated"),
        (b"{}", "missing"),
        (
            ROLES_BYTES.replace(b'"version":3', b'"version":18446744073709551616'),
            "<= 9007199254740991",
        ),
        (ROLES_BYTES.replace(b'"epoch":1', b'"epoch":9223372036854775807'), "<= 9007199254740991"),
    ],
)
def test_what_is_no_record_of_the_roles_is_named(value: bytes | None, why: str) -> None:
    with pytest.raises(RecordUnreadable, match=why):
        unpack_roles(value)
