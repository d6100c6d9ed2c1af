"""Rules of a shard: which targets and ids it accepts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronos.core.keys import partition_of
from chronos.core.message import (
    Action,
    Entry,
    Reason,
    Rejection,
    Verb,
)
from chronos.core.rules import Rules
from tests.unit.records import AT, GENERATED_ID, RULES, TO, action, parsed


def test_an_id_in_the_wrong_shard_is_refused_only_where_the_configuration_asks_for_it() -> None:
    strict = Rules(shard=2, shards=4, refuse_wrong_shard=True)
    here = next(b"%d" % n for n in range(99) if partition_of(b"%d" % n, 4) == 2)
    elsewhere = next(b"%d" % n for n in range(99) if partition_of(b"%d" % n, 4) != 2)
    assert isinstance(parsed(AT, TO, key=elsewhere), Entry)
    assert isinstance(parsed(AT, TO, key=here, rules=strict), Entry)
    for headers in ([AT, TO], [action("cancel")]):
        result = parsed(*headers, key=elsewhere, rules=strict)
        assert isinstance(result, Rejection)
        assert result.reason is Reason.WRONG_SHARD
    # A generated id contains its shard, regardless of its hash.
    assert parsed(action("cancel"), key=GENERATED_ID, rules=strict) == Action(Verb.CANCEL, GENERATED_ID)


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
