"""Upsert: a message or a series that an application schedules again at every start."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from chronos.core.cron import next_cron
from chronos.core.keys import lane_key
from chronos.core.message import LatePolicy, Options, Reason, Record
from chronos.core.series import is_paused, resumed_ms, spread_shift_ms
from chronos.core.shard.codec import PENDING, unpack_entry, unpack_id_state
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.step import CHANGED, CREATED, UNCHANGED
from tests.unit.records import WRITER
from tests.unit.registered import SECOND, SHARD, START_MS, Registered

HOUR, DAY = 3_600_000, 86_400_000
EVERY: dict[str, Any] = {"repeat": "every 10s", "delay": "10s"}


@pytest.fixture
def service() -> Registered:
    return Registered()


def test_a_series_that_is_registered_more_often_than_its_interval_keeps_its_times(
    service: Registered,
) -> None:
    service.run(60, dict.fromkeys(range(0, 61, 6), EVERY))
    assert [due_s for due_s, _, _ in service.delivered] == [10, 20, 30, 40, 50, 60]
    assert [number for _, _, number in service.delivered] == [1, 2, 3, 4, 5, 6]


def test_two_versions_that_alternate_starve_nothing(service: Registered) -> None:
    """Each has another rhythm and another payload, and registers before the other one's time."""
    versions: list[dict[str, Any]] = [
        EVERY | {"value": b"old"},
        {"repeat": "every 7s", "delay": "7s", "value": b"new"},
    ]
    service.run(60, {at_s: versions[at_s // 3 % 2] for at_s in range(0, 61, 3)})
    times = [due_s for due_s, _, _ in service.delivered]
    assert all(later - due_s <= 10 for due_s, later in pairwise(times))
    assert times[0] <= 10
    assert times[-1] >= 50


def test_two_versions_by_cron_starve_nothing(service: Registered) -> None:
    """The first times are left to the expressions."""
    versions: list[dict[str, Any]] = [
        {"repeat": "cron */10 * * * * *"},
        {"repeat": "cron */15 * * * * *"},
    ]
    service.run(60, {at_s: versions[at_s // 4 % 2] for at_s in range(0, 61, 4)})
    times = [due_s for due_s, _, _ in service.delivered]
    assert times[0] <= 10
    assert all(later - due_s <= 15 for due_s, later in pairwise(times))
    assert len(times) >= 4


def test_the_answer_says_created_unchanged_or_changed(service: Registered) -> None:
    assert service.upsert(0, **EVERY) == CREATED
    assert service.upsert(6, **EVERY) == UNCHANGED
    assert service.upsert(7, b"other", **EVERY) == CHANGED
    assert service.upsert(7, b"other", repeat="every 20s", delay="20s") == CHANGED
    assert service.act(8, "cancel") == "done"
    assert service.upsert(9, **EVERY) == CREATED
    assert service.due_s() == 19


@pytest.mark.parametrize(
    "more",
    [
        {"target_topic": "others"},
        {"target_key": "k"},
        {"attempts": 2},
        {"value": b"other"},
    ],
)
def test_other_content_takes_the_place_of_the_pending_occurrence(
    service: Registered, more: dict[str, Any]
) -> None:
    service.upsert(0, **EVERY, repeat_times=5)
    for at_s in (10, 20):
        service.step(at_s)
    assert service.upsert(26, **(EVERY | {"repeat_times": 5} | more)) == CHANGED
    found = service.found()
    assert found.offset == service.offset - 1, "chronos-source is that of the new record"
    assert found.entry is not None
    assert (found.entry.occurrence, found.entry.attempt, service.due_s()) == (3, 1, 30)
    for at_s in (30, 40, 50, 60, 70):
        service.step(at_s)
    assert [number for _, _, number in service.delivered] == [1, 2, 3, 4, 5]


def test_an_attempt_begins_anew_with_other_content(service: Registered) -> None:
    service.upsert(0, **EVERY)
    retry = Decision(service.at_ms(10), 0, Outcome.RETRY, 35, service.at_ms(40), 1, 3)
    staged = service.shard.stage_nothing(0)
    selection = service.shard.select(staged, service.at_ms(10), 100, 10**9)
    progress = WRITER.progress(staged, selection, (retry,))
    for shard, rows in ((service.shard, service.rows), (service.replica, service.followed)):
        made = shard.replay_stage([], progress)
        selected = shard.replay_select(made, (progress.cursor_due_ms, progress.cursor_offset))
        changes = shard.apply(
            made, selected, progress, offset=shard.state.applied, timestamp_ms=service.at_ms(10)
        )
        rows.write(changes.puts, changes.deletes)
        shard.install(changes)
    assert service.upsert(12, **EVERY) == UNCHANGED, "what was tried is pending all the same"
    assert service.found().place_ms == service.at_ms(40)
    assert service.upsert(13, b"other", **EVERY) == CHANGED
    entry = service.found().entry
    assert entry is None or entry.attempt == 1
    assert service.delivered[-1][:2] == (10, b"other"), "it is due, and delivered at once"


def test_the_order_of_headers_does_not_make_another_message(service: Registered) -> None:
    """Some clients keep headers in maps."""
    for at_s, names in ((0, ("one", "two")), (1, ("two", "one"))):
        headers = {"target-topic": "orders", "on-conflict": "upsert"} | {
            name.replace("_", "-"): text for name, text in EVERY.items()
        }
        pairs = [(f"chronos-{name}", text.encode()) for name, text in headers.items()]
        pairs += [(name, b"1") for name in names]
        record = Record(service.offset, service.at_ms(at_s), b"id", b"v", pairs)
        service.offset += 1
        staged = service.step(at_s, [record])
        assert staged.upserts[record.offset] == (UNCHANGED if at_s else CREATED)


RHYTHMS: list[dict[str, Any]] = [
    {"repeat": "every 11s"},
    {"repeat": "backoff 10s 2 10s"},
    {"repeat_times": 7},
    {"repeat_until": START_MS + DAY},
    {"late_policy": "skip"},
    {"spread": "1s"},
    {"expire_at": START_MS + DAY},
]


@pytest.mark.parametrize("more", RHYTHMS)
def test_another_rhythm_begins_anew_at_the_earlier_of_the_two_times(
    service: Registered, more: dict[str, Any]
) -> None:
    service.upsert(0, **EVERY)
    service.step(10)
    assert service.upsert(16, **(EVERY | more)) == CHANGED
    assert service.due_s() == 20, "the pending time is the earlier one"
    assert service.found().entry.occurrence == 1  # type: ignore[union-attr]
    assert service.upsert(16, **(EVERY | more | {"delay": "2s"})) in (UNCHANGED, CHANGED)
    assert service.upsert(16, **(EVERY | {"delay": "2s"})) == CHANGED
    assert service.due_s() == 18, "its own time is the earlier one"
    assert service.upsert(16, **(EVERY | more), policy="replace") == "done"
    assert service.due_s() == 26, "replace puts it off"


def test_the_same_rhythm_with_another_first_time_is_the_same(service: Registered) -> None:
    service.upsert(0, **EVERY)
    assert service.upsert(1, repeat="every 10s", delay="5s") == UNCHANGED
    assert service.upsert(1, repeat="every 10s", deliver_at=service.at_ms(3)) == UNCHANGED
    assert service.due_s() == 10


def test_a_time_is_taken_as_given_with_another_rhythm(service: Registered) -> None:
    service.upsert(0, **EVERY)
    assert service.upsert(1, repeat="every 1m", deliver_at=service.at_ms(500)) == CHANGED
    assert service.due_s() == 500


def test_the_period_of_an_expiry_is_compared_and_not_the_expiry(service: Registered) -> None:
    def expiring(first_s: int, period_s: int) -> dict[str, Any]:
        return {
            "repeat": "every 10s",
            "deliver_at": service.at_ms(first_s),
            "expire_at": service.at_ms(first_s + period_s),
        }

    service.upsert(0, **expiring(10, 5))
    service.step(10)
    assert service.upsert(12, **expiring(10, 5)) == UNCHANGED
    assert service.upsert(12, **expiring(22, 5)) == UNCHANGED
    assert service.upsert(12, b"other", **expiring(22, 5)) == CHANGED
    assert service.found().entry.expire_at_ms == service.at_ms(25)  # type: ignore[union-attr]
    assert service.upsert(12, **expiring(22, 6)) == CHANGED
    assert service.due_s() == 22


def pause(service: Registered, at_s: float, until_s: float) -> None:
    service.act(at_s, "reschedule", deliver_at=service.at_ms(until_s))


@pytest.mark.parametrize(
    ("repeat", "other"),
    [
        ("every 10s", {"repeat": "every 7s", "delay": "7s"}),
        ("cron */10 * * * * *", {"repeat": "cron */15 * * * * *"}),
    ],
)
def test_a_paused_series_stays_paused(
    service: Registered, repeat: str, other: dict[str, Any]
) -> None:
    first: dict[str, Any] = {"repeat": repeat} | ({"delay": "10s"} if repeat[0] == "e" else {})
    service.upsert(0, **first)
    service.step(1)
    pause(service, 2, 100)
    assert service.upsert(3, **first) == UNCHANGED
    assert service.upsert(4, b"other", **first) == CHANGED
    assert service.upsert(5, b"other", **other) == CHANGED
    entry = service.found().entry
    assert entry is not None
    assert service.due_s() == 100
    now_ms = service.at_ms(20)
    assert is_paused(entry, now_ms, next_cron)
    resumed = resumed_ms(entry, now_ms, next_cron)
    assert resumed is not None
    assert 0 <= resumed - now_ms <= 15 * SECOND, "it can be resumed in its new rhythm"
    assert service.upsert(30, b"other", **other) == UNCHANGED
    service.step(99)
    assert not service.delivered
    service.step(100)
    assert service.delivered == [(100, b"other", 1)], "nothing of the pause is made up for"


def test_a_time_that_is_given_ends_a_pause(service: Registered) -> None:
    service.upsert(0, **EVERY)
    pause(service, 2, 100)
    service.upsert(3, repeat="every 7s", deliver_at=service.at_ms(20))
    assert service.due_s() == 20


@pytest.mark.parametrize("bound", [{"repeat_times": 2}, {"repeat_until": START_MS + 25_000}])
def test_a_series_that_ended_is_not_begun_again_within_the_window(
    service: Registered, bound: dict[str, Any]
) -> None:
    options = EVERY | bound
    service.upsert(0, **options)
    service.step(10)
    service.step(20)
    assert service.found().state == "delivered"
    record = Record(
        service.offset,
        service.at_ms(21),
        b"id",
        b"v",
        [
            ("chronos-target-topic", b"orders"),
            ("chronos-on-conflict", b"upsert"),
            ("chronos-repeat", b"every 10s"),
            ("chronos-delay", b"1s"),
        ],
    )
    service.offset += 1
    staged = service.step(21, [record])
    ((_, rejection),) = staged.letters.rejections
    assert rejection.reason is Reason.CONFLICT
    assert "ended" in rejection.detail
    if "repeat_times" in bound:
        assert service.upsert(22, **options, policy="replace") == "done"
        service.act(22, "cancel")
        assert service.upsert(23, **options) == CREATED, "a cancelled one is free"
        service.step(33)
        service.step(43)
        assert service.upsert(43 + 6 * HOUR / SECOND, **options) == CREATED


def test_a_message_that_is_no_series_keeps_its_time_too(service: Registered) -> None:
    assert service.upsert(0, delay="60s") == CREATED
    assert service.upsert(6, delay="60s") == UNCHANGED
    assert service.upsert(7, deliver_at=service.at_ms(900)) == UNCHANGED
    assert service.upsert(8, b"other", delay="60s") == CHANGED
    assert service.due_s() == 60
    assert service.upsert(9, b"other", delay="60s", expire_at=service.at_ms(600)) == CHANGED
    assert service.upsert(10, b"other", delay="60s", expire_at=service.at_ms(600)) == UNCHANGED
    assert service.due_s() == 60
    service.step(60)
    assert service.delivered == [(60, b"other", 1)]
    assert service.upsert(61, delay="60s") == CREATED, "as with replace"


def test_a_message_becomes_a_series_and_a_series_a_message(service: Registered) -> None:
    service.upsert(0, delay="60s")
    assert service.upsert(1, **EVERY) == CHANGED
    assert service.due_s() == 11
    assert service.upsert(2, delay="60s") == CHANGED
    assert service.due_s() == 11
    service.step(11)
    service.step(100)
    assert len(service.delivered) == 1


def test_a_spread_message_is_spread_by_its_own_record(service: Registered) -> None:
    spread: dict[str, Any] = EVERY | {"spread": "5s"}
    service.upsert(0, **spread)
    service.upsert(1, b"other", **spread)
    shift_ms = spread_shift_ms(SHARD, 1, 5 * SECOND)
    assert service.found().place_ms == service.at_ms(10) + shift_ms


@pytest.mark.parametrize("other", [{}, {"repeat": "every 7s", "delay": "7s"}])
def test_a_message_in_a_lane_keeps_its_place(service: Registered, other: dict[str, Any]) -> None:
    service.upsert(0, **EVERY)
    service.step(10, parks=True)
    before = service.found()
    assert before.lane is not None
    assert service.upsert(12, b"other", **(EVERY | other)) == CHANGED
    found = service.found()
    assert (found.lane, found.place_ms) == (before.lane, before.place_ms)
    assert found.lane is not None
    assert found.failure is not None
    assert found.failure.reason == Reason.RATE_LIMITED
    data = service.rows.rows[lane_key(found.lane, found.place_ms, found.offset)]
    assert unpack_entry(data).value == b"other"
    assert service.shard.state.pending == service.shard.state.parked == 1
    service.step(13, leave=5)
    assert service.delivered == [(10, b"other", 1)]
    assert service.due_s() == 10 + (7 if other else 10)


@pytest.mark.parametrize(
    ("action", "options", "delivered"),
    [
        ("upsert", {"delay": "10s"}, [b"other"]),
        ("replace", {"delay": "1h"}, []),
        ("reschedule", {"delay": "1h"}, []),
        ("fire-now", {}, [b"upsert"]),
        ("cancel", {}, []),
    ],
)
def test_a_message_in_a_lane_is_found_while_the_cursor_is_at_its_due_time(
    service: Registered, action: str, options: dict[str, Any], delivered: list[bytes]
) -> None:
    """More messages are due at that time than a step takes, and the upsert keeps the due time with
    an offset that the cursor has not passed."""
    service.upsert(0, b"message", delay="10s")
    others = [
        ("chronos-target-topic", b"orders"),
        ("chronos-deliver-at", b"%d" % service.at_ms(10)),
    ]
    service.step(0, [Record(at, service.at_ms(0), None, b"", others) for at in range(1, 7)])
    service.offset, service.most = 7, 1
    service.step(11, parks=True)
    assert service.upsert(11, b"upsert", delay="10s") == CHANGED
    found = service.found()
    assert found.lane is not None
    assert (found.place_ms, found.offset) > service.shard.state.cursor
    if action == "upsert":
        assert service.upsert(11, b"other", **options) == CHANGED
    elif action == "replace":
        assert service.upsert(11, b"other", policy="replace", **options) == "done"
    else:
        assert service.act(11, action, **options) == "done"
    service.most = 100
    service.step(12)
    service.step(13, leave=5)
    assert [each for _, each, _ in service.delivered if each] == delivered
    state = service.shard.state
    left = action in ("replace", "reschedule")
    assert (state.pending, state.parked, service.shard.lanes.states) == (left, 0, {})
    assert service.found().state == (
        "pending" if left else "cancelled" if not delivered else "delivered"
    )


def test_upserts_and_actions_of_one_batch_follow_each_other_in_a_lane(service: Registered) -> None:
    service.upsert(0, **EVERY)
    service.step(10, parks=True)
    headers = [
        ("chronos-target-topic", b"orders"),
        ("chronos-on-conflict", b"upsert"),
        ("chronos-repeat", b"every 10s"),
        ("chronos-delay", b"10s"),
    ]
    batch = [
        Record(1, service.at_ms(11), b"id", b"one", headers),
        Record(2, service.at_ms(11), b"id", b"two", headers),
        Record(3, service.at_ms(11), b"id", b"two", headers),
    ]
    staged = service.step(11, batch)
    assert list(staged.upserts.values()) == [CHANGED, CHANGED, UNCHANGED]
    assert service.found().lane is not None
    cancel = [
        Record(4, service.at_ms(12), b"id", b"three", headers),
        Record(5, service.at_ms(12), b"id", None, []),
    ]
    service.step(12, cancel)
    assert service.found().state == "cancelled"
    assert service.shard.state.pending == service.shard.state.parked == 0


def test_another_target_leaves_the_lane(service: Registered) -> None:
    service.upsert(0, **EVERY)
    service.step(10, parks=True)
    service.upsert(12, **(EVERY | {"target_topic": "others"}))
    assert service.delivered == [(10, b"v", 1)]


def test_the_state_of_the_id_is_that_of_the_new_record(service: Registered) -> None:
    service.upsert(0, **EVERY)
    service.upsert(3, b"other", **EVERY)
    id_state = unpack_id_state(service.rows.rows[b"iid"])
    assert (id_state.state, id_state.offset) == (PENDING, 1)
    assert (id_state.due_ms, id_state.first_ms) == (service.at_ms(10), service.at_ms(3))


def test_a_series_that_makes_up_for_all_begins_where_the_pending_one_is(
    service: Registered,
) -> None:
    service.upsert(0, **EVERY, late_policy="fire-all")
    service.upsert(6, repeat="every 20s", delay="20s", late_policy="fire-all")
    entry = service.found().entry
    assert entry is not None
    assert isinstance(entry.options, Options)
    assert entry.options.repetition is not None
    assert entry.options.repetition.late_policy == LatePolicy.FIRE_ALL
    service.step(10)
    service.step(50)
    assert [due_s for due_s, _, _ in service.delivered] == [10, 30]
