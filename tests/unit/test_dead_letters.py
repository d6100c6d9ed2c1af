"""Dead letters as records: letters, markers, and the record that schedules a letter again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.letters import Letter, Marker, Offsets, marker_headers, read, replay
from chronos.core.message import ConditionalSchedule, Reason, Record, Rejection, Verb
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import Rules

NOW_MS = 1_700_000_000_000
BYTES_MAX = 1_000_000
RULES = [Rules(shard=shard, shards=4, deny=["secret"]) for shard in range(4)]


def record(**more: str | bytes | None) -> Record:
    """A dead letter as the push worker writes it, with changes by header."""
    key, value = more.pop("key", b"order-7"), more.pop("value", b"payload")
    headers = {
        "trace": "1",
        "chronos-id": key or "2-1699999999000-41",
        "chronos-due-at": "1699999999000",
        "chronos-source": "chronos.delay/1/41",
        "chronos-target-topic": "orders",
        "chronos-target-key": "customer",
        "chronos-attempt": "1",
        "chronos-reason": "target-missing",
        "chronos-detail": "not found",
    } | {f"chronos-{name.replace('_', '-')}": value for name, value in more.items()}
    pairs = [
        (name, x.encode() if isinstance(x, str) else x)
        for name, x in headers.items()
        if x is not None
    ]
    assert key is None or isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    return Record(17, NOW_MS, key, value, pairs)


def letter(**more: str | bytes | None) -> Letter:
    found = read(3, record(**more), whole=True)
    assert isinstance(found, Letter)
    return found


def scheduled(found: Letter) -> tuple[int, ConditionalSchedule]:
    """Shard and command of the replay."""
    made = replay(found, RULES, "chronos.delay", BYTES_MAX, NOW_MS)
    assert not isinstance(made, Rejection), made
    shard, key, headers = made
    assert found.record is not None
    command = parse(Record(5, NOW_MS, key, found.record.value, headers), RULES[shard])
    assert isinstance(command, ConditionalSchedule), command
    return shard, command


def test_a_letter_has_id_reason_target_source_attempt_and_times() -> None:
    found = letter(attempt="3")
    assert (found.partition, found.offset, found.timestamp_ms) == (3, 17, NOW_MS)
    assert (found.id, found.reason, found.detail, found.target) == (
        b"order-7",
        "target-missing",
        "not found",
        "orders",
    )
    assert (found.source, found.due_ms, found.attempt, found.value_bytes) == (
        "chronos.delay/1/41",
        NOW_MS - 1_000,
        3,
        7,
    )


def test_a_record_of_somebody_else_is_neither_letter_nor_marker() -> None:
    assert read(0, Record(1, NOW_MS, b"k", b"v", [("other", b"x")]), whole=True) is None
    assert read(0, Record(1, NOW_MS, b"k", b"v", None), whole=True) is None
    for resolved in ("", "x", "5-3", "1,,2", "1-2-3"):
        headers = [("chronos-resolution", b"replayed"), ("chronos-resolved", resolved.encode())]
        assert read(0, Record(1, NOW_MS, None, None, headers), whole=True) is None
    headers = [("chronos-resolution", b"burnt"), ("chronos-resolved", b"1")]
    assert read(0, Record(1, NOW_MS, None, None, headers), whole=True) is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))))
def test_the_offsets_of_markers_are_a_set_kept_as_ranges(added: list[tuple[int, int]]) -> None:
    offsets, expected = Offsets(), set()
    for first, length in added:
        offsets.add(first, first + length)
        expected |= set(range(first, first + length + 1))
    assert {offset for offset in range(80) if offset in offsets} == expected
    ranges = offsets.ranges()
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges)), "not merged"
    if ranges:
        pairs = list(marker_headers("discarded", ranges).items())
        assert read(0, Record(90, NOW_MS, None, None, pairs), whole=False) == Marker(
            "discarded", ranges
        )


def test_a_replay_keeps_id_target_payload_and_headers_and_names_the_letter() -> None:
    shard, command = scheduled(letter())
    entry = command.entry
    assert (shard, command.verb, entry.id) == (1, Verb.REPLAY, b"order-7")
    assert (entry.target, entry.key, entry.value, entry.due_ms) == (
        "orders",
        b"customer",
        b"payload",
        NOW_MS,
    )
    assert entry.headers == {"trace": b"1", "chronos-replayed": b"chronos.delay/1/41"}
    assert (entry.attempt, entry.expire_at_ms) == (1, None)


def test_a_replay_of_a_message_without_a_key_keeps_its_generated_id_and_goes_to_its_shard() -> None:
    shard, command = scheduled(letter(key=None))
    assert (shard, command.entry.id, command.entry.value) == (2, b"2-1699999999000-41", b"payload")
    assert scheduled(letter(key=None, value=None))[1].entry.value is None


def test_a_second_replay_names_the_first_letter_and_an_occurrence_is_a_letter_of_its_own() -> None:
    again = letter(source="chronos.delay/1/99", replayed="chronos.delay/1/41")
    assert scheduled(again)[1].entry.headers == {
        "trace": b"1",
        "chronos-replayed": b"chronos.delay/1/41",
    }
    for occurrence in ("1", "4"):
        entry = scheduled(letter(occurrence=occurrence))[1].entry
        assert entry.id == b"chronos.delay/1/41/%b" % occurrence.encode(), (
            "the series keeps its own id"
        )
    assert scheduled(letter(occurrence="4"))[1].entry.headers == {
        "trace": b"1",
        "chronos-replayed": b"chronos.delay/1/41/4",
    }


def test_a_replay_keeps_the_attempts_that_its_producer_asked_for_and_counts_them_again() -> None:
    entry = scheduled(letter(attempts="3", attempt="3"))[1].entry
    assert entry.options is not None
    assert (entry.options.attempts_max, entry.attempt) == (3, 1)


def test_a_replay_keeps_an_expiry_that_is_not_over_when_it_is_written() -> None:
    assert scheduled(letter(expire_at=str(NOW_MS + 1)))[1].entry.expire_at_ms == NOW_MS + 1
    assert scheduled(letter(expire_at=str(NOW_MS)))[1].entry.expire_at_ms is None


def test_an_expiry_that_passes_on_the_way_to_the_log_is_left_out() -> None:
    found = letter(expire_at=str(NOW_MS + 5))
    made = replay(found, RULES, "chronos.delay", BYTES_MAX, NOW_MS)
    assert not isinstance(made, Rejection), made
    shard, key, headers = made
    for late_ms, expire_at_ms in ((4, NOW_MS + 5), (5, None), (6, None)):
        command = parse(Record(5, NOW_MS + late_ms, key, b"payload", headers), RULES[shard])
        assert isinstance(command, ConditionalSchedule), command
        assert command.entry.expire_at_ms == expire_at_ms


@pytest.mark.parametrize(
    ("more", "bytes_max", "reason"),
    [
        ({"target_topic": "secret"}, BYTES_MAX, Reason.FORBIDDEN_TARGET),
        ({"target_topic": None}, BYTES_MAX, Reason.NO_TARGET),
        ({"id": "7-1699999999000-41", "key": None}, BYTES_MAX, None),
        ({"value": b"x" * 900}, 1_000, Reason.TOO_LARGE),
    ],
)
def test_a_letter_that_the_shard_would_refuse_is_not_replayed(
    more: dict[str, str | bytes | None], bytes_max: int, reason: Reason | None
) -> None:
    found = replay(letter(**more), RULES, "chronos.delay", bytes_max, NOW_MS)
    assert (found.reason if isinstance(found, Rejection) else None) == reason
