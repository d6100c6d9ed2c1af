"""Rejected records as their topic holds them: the record of the delay topic, its source, and the reason.

A rejected record is a `Letter` that is never resolved. What its producer wrote may say anything, also under names that Chronos
uses: only the last three headers are Chronos's own.
"""

from msgspec.structs import replace

from chronos.core.dead_letters import Letter, read
from chronos.core.keys import parse_generated_id
from chronos.core.message import DETAIL, REASON, SOURCE, TARGET_TOPIC, Headers, Record

OWN_HEADERS = (SOURCE, REASON, DETAIL)
"""The last headers of a rejected record, which Chronos wrote."""


def read_rejected(partition: int, record: Record, whole: bool) -> Letter | None:
    """Return the rejected record; None if Chronos did not write it.

    Its id is its key, empty without one. Its target is empty if its headers name none, or several.
    """
    headers = list(record.headers or ())
    if tuple(name for name, _ in headers[-3:]) != OWN_HEADERS:
        return None
    targets = [value for name, value in headers[:-3] if name == TARGET_TOPIC]
    found = read(partition, replace(record, headers=headers[-3:]), False)
    assert isinstance(found, Letter), "it has a reason and no resolution"
    target = (targets[0] or b"").decode("utf-8", "replace") if len(targets) == 1 else ""
    return replace(found, id=record.key or b"", target=target, record=record if whole else None)


def producer_headers(letter: Letter) -> Headers:
    """Return the headers of a whole rejected record as its producer wrote them."""
    assert letter.record is not None
    return list(letter.record.headers or ())[:-3]


def source_of(message_id: bytes, shards: int, delay_topic: str) -> str | None:
    """Return where the record of a generated id is, or of an id that is its position: topic/partition/offset; None for any other id.

    A record without a key that was rejected has no other name.
    """
    generated = parse_generated_id(message_id, shards)
    if generated is not None:
        return f"{delay_topic}/{generated[0]}/{generated[2]}"
    topic, _, place = message_id.decode("utf-8", "replace").partition("/")
    partition, _, offset = place.partition("/")
    return message_id.decode() if topic == delay_topic and partition.isdecimal() and offset.isdecimal() else None
