"""Repeated calls: a record whose call was executed is refused, whatever came in between."""

from __future__ import annotations

from typing import Any

import pytest

from chronos.core.message import CALL, Entry, IdOrder, Reason, Record, Rejection
from chronos.core.shard.codec import IdState, pack_id_state, unpack_entry, unpack_id_state
from chronos.core.shard.order import CALLS_MAX, call_token, is_repeated, with_call
from chronos.core.shard.step import CHANGED, CREATED, UNCHANGED
from tests.unit.records import AT, TO, parsed
from tests.unit.registered import START_MS, Registered

EVERY: dict[str, Any] = {"repeat": "every 10s", "delay": "10s"}
REPEATED = "repeated"


@pytest.fixture
def service() -> Registered:
    return Registered()


def act(service: Registered, at_s: float, kind: str, call: str) -> str:
    """One call of a kind; `pause` and `resume` are what they write."""
    if kind in ("schedule", "ignore", "replace", "upsert"):
        policy = "reject" if kind == "schedule" else kind
        return service.upsert(at_s, kind.encode(), policy=policy, call=call, **EVERY)
    if kind == "cancel":
        return service.act(at_s, "cancel", call=call)
    deliver_at = service.at_ms(900 if kind == "pause" else 40)
    return service.act(at_s, "reschedule", deliver_at=deliver_at, call=call)


KINDS = ("schedule", "replace", "upsert", "cancel", "reschedule", "pause")


@pytest.mark.parametrize("between", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_executed_once_with_any_other_in_between(
    service: Registered, kind: str, between: str
) -> None:
    if kind not in ("schedule", "upsert"):
        act(service, 0, "schedule", "before")
    assert act(service, 1, kind, "first") in ("done", CREATED, CHANGED)
    act(service, 2, between, "other")
    before, ignored = service.rows.rows.copy(), service.shard.state.totals.ignored
    assert act(service, 3, kind, "first") == REPEATED
    changed = {key for key, row in service.rows.rows.items() if before.get(key) != row}
    assert changed <= {b"mstate"}, "nothing but the position of the shard has changed"
    assert service.shard.state.totals.ignored == ignored + 1, "it is counted, and not copied"


@pytest.mark.parametrize("policy", ["reject", "replace", "ignore", "upsert"])
def test_a_call_is_known_after_the_delivery(service: Registered, policy: str) -> None:
    """With `replace` the repetition would be a new message, and delivered a second time."""
    service.upsert(0, delay="5s", policy=policy, call="first")
    service.step(5)
    assert service.delivered == [(5, b"v", 1)]
    assert service.upsert(6, delay="5s", policy=policy, call="first") == REPEATED
    service.step(60)
    assert len(service.delivered) == 1


def test_a_repeated_change_of_a_series_does_not_move_the_next_occurrence(
    service: Registered,
) -> None:
    service.upsert(0, **EVERY)
    assert service.act(1, "reschedule", delay="2s", call="first") == "done"
    service.step(3)
    assert service.due_s() == 20
    assert service.act(4, "reschedule", delay="2s", call="first") == REPEATED
    assert service.due_s() == 20


@pytest.mark.parametrize(
    "options",
    [
        {"delay": "5s", "expire_at": START_MS + 6_000},
        {"delay": "1s", "spread": "5s", "expire_at": START_MS + 8_000},
        {"repeat": "every 5s", "delay": "5s", "repeat_until": START_MS + 6_000},
    ],
)
def test_a_repeated_call_that_contradicts_itself_by_now_is_repeated(
    service: Registered, options: dict[str, Any]
) -> None:
    """Its times count from its own timestamp, so that it is refused if it comes for the first
    time."""
    late_s = 20
    assert service.upsert(0, policy="reject", call="first", **options) == "done"
    assert service.upsert(late_s, policy="reject", call="first", **options) == REPEATED
    other = service.upsert(late_s, policy="reject", call="other", **options)
    assert other == "contradictory-headers"


def test_the_same_message_of_another_caller_is_a_conflict(service: Registered) -> None:
    service.upsert(0, policy="reject", call="one", **EVERY)
    assert service.upsert(1, policy="reject", call="two", **EVERY) == "conflict"
    assert service.upsert(2, policy="reject", **EVERY) == "conflict"


def test_the_last_four_calls_of_an_id_are_known(service: Registered) -> None:
    service.upsert(0, policy="replace", call="0", **EVERY)
    for number in range(1, CALLS_MAX):
        assert service.act(number, "reschedule", delay="50s", call=str(number)) == "done"
    assert service.upsert(5, policy="replace", call="0", **EVERY) == REPEATED
    assert service.upsert(6, policy="replace", call="5", **EVERY) == "done"
    assert service.upsert(7, policy="replace", call="1", **EVERY) == REPEATED
    assert service.upsert(8, policy="replace", call="0", **EVERY) == "done", "it is forgotten"


def test_calls_that_were_not_executed_are_decided_again(service: Registered) -> None:
    service.upsert(0, **EVERY)
    assert service.upsert(1, policy="reject", call="refused", **EVERY) == "conflict"
    assert service.upsert(1, call="unchanged", **EVERY) == UNCHANGED
    service.act(2, "cancel")
    assert service.upsert(3, policy="reject", call="refused", **EVERY) == "done"


def test_firing_is_not_recognized_as_repeated(service: Registered) -> None:
    service.upsert(0, **EVERY)
    assert service.act(1, "fire-now", call="first") == "done"
    assert service.act(2, "fire-now", call="first") == "done"
    assert [number for _, _, number in service.delivered] == [1, 2]


def test_a_call_is_known_in_a_lane_and_through_it(service: Registered) -> None:
    service.upsert(0, policy="replace", call="first", **EVERY)
    service.step(10, parks=True)
    assert service.upsert(11, policy="replace", call="first", **EVERY) == REPEATED
    service.step(12, leave=1)
    assert service.upsert(13, policy="replace", call="first", **EVERY) == REPEATED


def test_what_names_no_call_takes_no_bytes(service: Registered) -> None:
    service.upsert(0, policy="replace", **EVERY)
    id_state = unpack_id_state(service.rows.rows[b"iid"])
    assert id_state.order is None
    named = IdState(1, 2, 3, order=with_call(None, call_token(b"first")))
    plain = IdState(1, 2, 3)
    assert len(pack_id_state(named)) - len(pack_id_state(plain)) == 12
    forwarded = IdState(1, 2, 3, order=IdOrder(0))
    assert len(pack_id_state(forwarded)) - len(pack_id_state(plain)) == 3


def test_tokens_are_compared_whole() -> None:
    """Two tokens side by side hold others in between."""
    order = with_call(with_call(None, b"abcdefgh"), b"ijklmnop")
    assert order is not None
    id_state = IdState(1, 2, 3, order=order)
    assert is_repeated(id_state, b"abcdefgh")
    assert is_repeated(id_state, b"ijklmnop")
    assert not is_repeated(id_state, b"efghijkl")
    assert not is_repeated(id_state, None)


def test_the_header_is_on_no_entry(service: Registered) -> None:
    service.upsert(0, call="first", **EVERY)
    (row,) = [row for key, row in service.rows.rows.items() if key[:1] == b"e"]
    entry = unpack_entry(row)
    assert isinstance(entry, Entry)
    assert entry.headers == {}
    assert b"first" not in row


@pytest.mark.parametrize("call", [None, b"", b"x" * 301])
def test_a_name_that_is_none_is_refused(call: bytes | None) -> None:
    for rest in ([TO, AT], [("chronos-action", b"cancel")]):
        found = parsed(*rest, (CALL, call), key=b"id")
        assert isinstance(found, Rejection)
        assert (found.reason, CALL in found.detail) == (Reason.BAD_VALUE, True)


def test_a_name_without_an_id_has_no_effect() -> None:
    assert parsed(TO, AT, (CALL, b"first")) == parsed(TO, AT)


def test_a_tombstone_with_a_name_is_a_cancel(service: Registered) -> None:
    service.upsert(0, **EVERY)
    record = Record(service.offset, service.at_ms(1), b"id", None, [(CALL, b"first")])
    service.offset += 1
    service.step(1, [record])
    assert service.found().state == "cancelled"
