"""Rules of a shard: which targets and ids it accepts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronos.core.message import (
    Entry,
    Rejection,
)
from chronos.core.rules import Rules
from tests.unit.records import AT, GENERATED_ID, RULES, TO, action, parsed


def test_a_generated_id_of_a_shard_that_does_not_exist_is_an_ordinary_id() -> None:
    assert isinstance(parsed(AT, TO, key=b"4-1-1"), Entry)


@given(
    st.sampled_from([b"1700000001000", b"1700086400001", b"170000000100x", b"0001700000000", b"17000000010000"]),
    st.sampled_from([b"orders", b"ord-2", b"secret", b"payments", b"chronos.delay", b"__x", b"..", b"\xff"]),
    st.sampled_from([None, b"", b"order-7", GENERATED_ID, b"x" * 1025]),
    st.booleans(),
)
def test_a_record_for_a_target_seen_before_is_parsed_to_the_same_result(
    at: bytes, target: bytes, key: bytes | None, null: bool
) -> None:
    fresh = Rules(
        shard=2,
        shards=4,
        own_topics=["chronos.delay"],
        allow=RULES.allow,
        deny=RULES.deny,
        max_delay_ms=86_400_000,
    )
    headers = [("chronos-deliver-at", at), ("chronos-target-topic", target), ("a", b"1")]
    first = parsed(*headers, key=key, value=None if null else b"v", rules=fresh)
    assert parsed(*headers, key=key, value=None if null else b"v", rules=fresh) == first
    assert parsed(*headers, action("schedule"), key=key, value=None if null else b"v", rules=fresh) == first


def test_the_answer_for_a_target_does_not_depend_on_the_number_of_targets_seen() -> None:
    rules = Rules(shard=0, shards=1, allow=["ok-*"])
    for number in range(10_001):
        assert rules.target(b"ok-%d" % number) == f"ok-{number}"
    assert isinstance(rules.target(b"other"), Rejection)
    assert rules.target(b"ok-0") == "ok-0"
