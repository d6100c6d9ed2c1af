"""Rejected records as values: what of them is Chronos's, and whose they are."""

from __future__ import annotations

import pytest

from chronos.admin.letters.scan import Wanted, is_own
from chronos.core.letters import Letter, producer_headers, read_rejected, source_of
from chronos.core.message import Record
from chronos.core.reach import EVERYTHING, Reach

NOW_MS = 1_700_000_000_000
OWN = [
    ("chronos-source", b"chronos.delay/1/41"),
    ("chronos-reason", b"bad-value"),
    ("chronos-detail", b"no time"),
]
MINE = Reach(targets=("mine",), ids=("mine-*",))


def rejected(key: bytes | None, *headers: tuple[str, bytes | None]) -> Letter:
    found = read_rejected(2, Record(17, NOW_MS, key, b"payload", [*headers, *OWN]), True)
    assert found is not None
    return found


def test_a_rejected_record_has_key_reason_source_and_the_headers_as_they_were_sent() -> None:
    found = rejected(b"order-7", ("x", b"1"), ("chronos-target-topic", b"orders"))
    assert (found.partition, found.offset, found.timestamp_ms) == (2, 17, NOW_MS)
    assert (found.id, found.reason, found.detail) == (b"order-7", "bad-value", "no time")
    assert (found.target, found.source, found.value_bytes) == ("orders", "chronos.delay/1/41", 7)
    assert found.record is not None
    assert producer_headers(found.record) == [("x", b"1"), ("chronos-target-topic", b"orders")]


def test_headers_of_the_producer_change_nothing_that_chronos_wrote() -> None:
    found = rejected(
        None,
        ("chronos-reason", b"expired"),
        ("chronos-source", b"x/0/0"),
        ("chronos-id", b"mine-1"),
        ("chronos-resolution", b"discarded"),
        ("chronos-resolved", b"0-99"),
    )
    assert (found.id, found.reason, found.source) == (b"", "bad-value", "chronos.delay/1/41")


@pytest.mark.parametrize("headers", [None, [], [("x", b"1")], OWN[:2], [*OWN, ("x", b"1")]])
def test_a_record_of_somebody_else_is_no_rejected_record(
    headers: list[tuple[str, bytes | None]] | None,
) -> None:
    assert read_rejected(0, Record(1, NOW_MS, b"k", b"v", headers), True) is None


@pytest.mark.parametrize(
    ("key", "targets", "is_mine"),
    [
        (b"mine-1", [b"mine"], True),
        (None, [b"mine"], True),
        (b"theirs-1", [b"mine"], False),
        (b"mine-1", [b"theirs"], False),
        (b"mine-1", [], False),
        (b"mine-1", [b"mine", b"theirs"], False),
        (b"mine-1", [None], False),
        (None, [], False),
    ],
)
def test_a_rejected_record_is_own_if_its_only_target_and_its_key_are(
    key: bytes | None, targets: list[bytes | None], is_mine: bool
) -> None:
    found = rejected(key, *(("chronos-target-topic", target) for target in targets))
    assert is_own(found, MINE) == is_mine
    assert is_own(found, EVERYTHING)


def test_a_token_that_is_limited_by_ids_alone_sees_no_record_without_a_target() -> None:
    assert not is_own(rejected(None), Reach(ids=("mine-*",)))


def test_a_record_without_a_key_has_the_name_of_its_position() -> None:
    assert source_of(b"1-1699999999000-41", 4, "chronos.delay") == "chronos.delay/1/41"
    assert source_of(b"chronos.delay/1/41", 4, "chronos.delay") == "chronos.delay/1/41"
    for other in (
        b"9-1699999999000-41",
        b"order-7",
        b"chronos.delay/1",
        b"other/1/41",
        b"\xff/1/41",
        b"chronos.delay/x/1",
    ):
        assert source_of(other, 4, "chronos.delay") is None
    by_position = Wanted(id=b"chronos.delay/1/41", origin="chronos.delay/1/41", reach=EVERYTHING)
    assert by_position.matches(rejected(None))
    assert not by_position.matches(rejected(b"order-7")), "it has a name of its own"


def test_a_source_is_a_partition_or_a_position() -> None:
    for source, matches in (
        ("chronos.delay", True),
        ("chronos.delay/1", True),
        ("chronos.delay/1/41", True),
        ("chronos.delay/1/4", False),
        ("chronos.delay/11", False),
    ):
        assert Wanted(source=source, reach=EVERYTHING).matches(rejected(None)) == matches, source
