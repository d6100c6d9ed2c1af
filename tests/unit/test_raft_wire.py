"""Messages of members and voters: their names, and bytes that are not understood."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chronos.adapters.raft.wire import (
    Answer,
    Ask,
    Batch,
    Call,
    Incoming,
    Inspect,
    Join,
    Leave,
    NotLeader,
    NotRegistered,
    Publish,
    Refused,
    Report,
    StateUpdate,
    Taken,
    TooLarge,
    decode_answer,
    decode_content,
    decode_incoming,
    encode,
    encode_content,
)
from chronos.core.cluster.raft.sessions import Content
from chronos.core.cluster.raft.values import LogEnd, VoteResponse, VoteResult
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
MEMBER_FIELDS = {
    "node": "a",
    "instance": "i",
    "address": "http://a",
    "version": "1",
    "started_ms": 5,
    "replicas": {0: {"applied": 7}},
}
ROLES = Roles(controller="a", controller_epoch=2, shards={0: ShardRoles(master="a", epoch=1)})
ROLES_FIELDS = {
    "controller": "a",
    "controller_epoch": 2,
    "shards": {0: {"master": "a", "epoch": 1}},
}
REQUEST, REQUEST_FIELDS = Request(kind="drain", node="b"), {"kind": "drain", "node": "b"}
STAMP, STAMP_FIELDS = LogEnd(3, 4), {"epoch": 3, "applied": 4}
CONTENT = Content(version=6, roles=ROLES, requests=(("x", REQUEST),))
CONTENT_FIELDS = {"version": 6, "roles": ROLES_FIELDS, "requests": [["x", REQUEST_FIELDS]]}

CALLS: list[tuple[Call, dict[str, Any]]] = [
    (Join(incarnation="l", member=MEMBER), {"incarnation": "l", "member": MEMBER_FIELDS}),
    (
        Report(
            incarnation="l",
            registration_number=(1, 2),
            member=MEMBER,
            revision=(1, 5),
            stamp=STAMP,
        ),
        {
            "incarnation": "l",
            "registration_number": [1, 2],
            "member": MEMBER_FIELDS,
            "revision": [1, 5],
            "stamp": STAMP_FIELDS,
        },
    ),
    (Ask(id="x", request=REQUEST), {"id": "x", "request": REQUEST_FIELDS}),
    (
        Publish(incarnation="l", version=6, roles=ROLES, answered=("x",)),
        {"incarnation": "l", "version": 6, "roles": ROLES_FIELDS, "answered": ["x"]},
    ),
    (Leave(incarnation="l"), {"incarnation": "l"}),
    (Inspect(), {}),
]
ANSWERS: list[tuple[Answer, dict[str, Any]]] = [
    (NotLeader(leader="v1"), {"leader": "v1"}),
    (Taken(holder=MEMBER), {"holder": MEMBER_FIELDS}),
    (NotRegistered(), {}),
    (Refused(), {}),
    (TooLarge(bytes=9, bytes_max=8), {"bytes": 9, "bytes_max": 8}),
    (
        StateUpdate(
            leader="v1",
            registration_number=(1, 2),
            settled=True,
            controller="a",
            revision=(1, 5),
            members={"a": MEMBER},
            since_ms={"a": 7},
            stamp=STAMP,
            content=CONTENT,
        ),
        {
            "leader": "v1",
            "registration_number": [1, 2],
            "settled": True,
            "controller": "a",
            "revision": [1, 5],
            "members": {"a": MEMBER_FIELDS},
            "since_ms": {"a": 7},
            "stamp": STAMP_FIELDS,
            "content": CONTENT_FIELDS,
        },
    ),
]


def decode(message: Incoming | Answer, data: bytes) -> Incoming | Answer:
    """As the receiver of the message does."""
    found: Incoming | Answer = (
        decode_answer(data) if isinstance(message, Answer) else decode_incoming(data)
    )
    return found


def newer(value: Any) -> Any:
    """The same with one more field in every map of fields."""
    if isinstance(value, list):
        return [newer(each) for each in value]
    if not isinstance(value, dict):
        return value
    of_fields = all(isinstance(key, str) and key != "a" for key in value)
    found = {key: newer(each) for key, each in value.items()}
    return {"a field of a newer version": ["new"], **found} if of_fields else found


@table(
    ("message", "fields"),
    [*CALLS, *ANSWERS],
)
def test_a_message_has_the_names_of_the_code_and_is_read_from_them(
    message: Call | Answer, fields: dict[str, Any]
) -> None:
    """Fields that a newer version added are ignored, at any depth."""
    tagged = {"type": type(message).__name__, **fields}
    assert msgspec.msgpack.decode(encode(message), strict=False) == tagged
    assert decode(message, encode(message)) == message
    assert decode(message, encode(newer(tagged))) == message


def test_the_content_of_the_register_is_read_without_the_fields_of_a_newer_version() -> None:
    assert msgspec.msgpack.decode(encode_content(CONTENT), strict=False) == CONTENT_FIELDS
    assert decode_content(encode_content(CONTENT)) == CONTENT
    assert decode_content(encode(newer(CONTENT_FIELDS))) == CONTENT


def test_a_call_or_an_answer_of_a_newer_version_is_an_error() -> None:
    """A voter answers it with status 400, and a member asks the next voter."""
    later = encode({"type": "Later", "incarnation": "l"})
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'Later'"):
        decode_incoming(later)
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'Later'"):
        decode_answer(later)
    vote = VoteResponse(
        sender="v2", to="v1", incarnation=1, term=2, round=1, result=VoteResult.ACCEPT
    )
    data = encode(Batch((vote,)))
    assert decode_incoming(data) == Batch((vote,))
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'accepu'"):
        decode_incoming(data.replace(b"accept", b"accepu"))
