"""Counts of outcomes by reason and by target, and the warning about recent dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from chronos.core.message import TARGET_TOPIC, Reason, Record, Rejection
from chronos.core.selector import NO_LEADER
from chronos.node.outcomes import (
    CANDIDATES_MAX,
    RECENT_MS,
    TARGETS_COUNTED,
    TARGETS_SHOWN,
    BusiestTargets,
    Outcomes,
    TargetCounts,
    is_over,
)
from chronos.ports import TopicInfo
from chronos.workers.step.planned import CASES_MAX, IDS_SHOWN, LetterCounts, count_rejected
from chronos.workers.step.report import StepReport

NOW_MS = 1_800_000_000_000


def step(
    *dead: tuple[Reason, str, int], at_ms: int = NOW_MS, delivered: Mapping[str, int] | None = None
) -> StepReport:
    """A step that dead-lettered these numbers of messages by reason and target."""
    letters = LetterCounts()
    for reason, target, count in dead:
        for _ in range(count):
            letters.add(reason, target, b"id")
    return StepReport(
        pulled=0,
        due_ms=[],
        committed_ms=at_ms,
        refused=[],
        dead=letters,
        rejected=LetterCounts(),
        delivered=delivered or {},
        late={},
    )


def test_dead_letters_are_told_until_ten_minutes_after_the_last_one() -> None:
    outcomes = Outcomes()
    outcomes.count(0, step((Reason.TARGET_MISSING, "a", 2), (Reason.TOO_LARGE, "b", 1)))
    outcomes.count(0, step((Reason.TARGET_MISSING, "a", 1), at_ms=NOW_MS + 60_000))
    found = outcomes.recent_deaths(0, NOW_MS + 60_000)
    assert found is not None
    assert (found.messages, found.last_ms) == (4, NOW_MS + 60_000)
    assert found.cases == [(Reason.TARGET_MISSING, "a", 3), (Reason.TOO_LARGE, "b", 1)]
    assert found.text() == (
        "4 messages were dead-lettered in the last 10 min: target-missing for a (3), too-large "
        "for b (1)"
    )
    assert outcomes.recent_deaths(1, NOW_MS) is None
    last = outcomes.recent_deaths(0, NOW_MS + RECENT_MS)
    assert last is not None
    assert last.text() == "1 message was dead-lettered in the last 10 min: target-missing for a (1)"
    assert outcomes.recent_deaths(0, NOW_MS + 60_000 + RECENT_MS) is None


def test_expired_messages_are_counted_but_do_not_count_as_dying() -> None:
    outcomes = Outcomes()
    outcomes.count(0, step((Reason.EXPIRED, "a", 2)))
    assert outcomes.recent_deaths(0, NOW_MS) is None
    assert outcomes.by_reason()[0][Reason.EXPIRED] == 2
    assert outcomes.by_target()["a"].dead == 2


def test_the_memory_for_recent_dead_letters_is_bounded() -> None:
    outcomes = Outcomes()
    for second in range(3_000):
        outcomes.count(0, step((Reason.TARGET_MISSING, "a", 1), at_ms=NOW_MS + second * 1_000))
    (slots,) = outcomes._recent.values()
    assert len(slots) <= RECENT_MS // 10_000 + 1
    found = outcomes.recent_deaths(0, NOW_MS + 3_000_000)
    assert found is not None
    assert 590 <= found.messages <= 610


def test_the_busiest_targets_are_counted_apart_and_no_count_goes_back() -> None:
    targets = BusiestTargets()
    for number in range(TARGETS_SHOWN):
        targets.add(f"t{number}", 10, 0, 0)
    targets.add("new", 9, 1, 1)
    assert "new" not in targets.shown
    assert targets.other == TargetCounts(9, 1, 1)
    targets.add("new", 5, 0, 0)
    assert "new" in targets.shown
    assert len(targets.shown) == TARGETS_SHOWN
    assert targets.other == TargetCounts(14, 1, 1)
    targets.add("new", 3, 2, 1)
    assert targets.shown["new"] == TargetCounts(3, 2, 1)
    for number in range(3 * CANDIDATES_MAX):
        targets.add(f"rare{number}", 1, 0, 0)
    assert len(targets.candidates) <= CANDIDATES_MAX
    assert len(targets.shown) == TARGETS_SHOWN


def test_the_first_ten_thousand_targets_are_counted_one_by_one() -> None:
    outcomes = Outcomes()
    outcomes.count(0, step(delivered={f"t{number}": 1 for number in range(TARGETS_COUNTED)}))
    outcomes.count(0, step((Reason.TARGET_MISSING, "late", 2), delivered={"t7": 5, "late": 3}))
    known, later = outcomes.all_targets()
    assert len(known) == TARGETS_COUNTED
    assert known["t7"] == TargetCounts(6, 0, 0)
    assert later == TargetCounts(3, 0, 2)
    known["t7"].add(1, 0, 0)
    assert outcomes.all_targets()[0]["t7"] == TargetCounts(6, 0, 0)


def test_rejected_records_are_counted_by_reason_and_named_target() -> None:
    def record(offset: int, key: bytes | None, target: bytes | None) -> Record:
        return Record(
            offset, NOW_MS, key, None, None if target is None else [(TARGET_TOPIC, target)]
        )

    rejection = Rejection(Reason.FORBIDDEN_TARGET, "no")
    unknown = Rejection(Reason.UNREADABLE_HEADERS, "no")
    found = count_rejected(
        [
            (record(1, b"k", b"a"), rejection),
            (record(2, None, b"a"), rejection),
            (record(3, b"\xff", None), unknown),
        ],
        4,
    )
    assert found.cases == {(Reason.FORBIDDEN_TARGET, "a"): 2, (Reason.UNREADABLE_HEADERS, ""): 1}
    assert found.ids == [b"k", b"4/2", b"\xff"]
    many = count_rejected(
        [(record(at, None, b"t%d" % at), rejection) for at in range(2 * CASES_MAX)], 0
    )
    assert (len(many.cases), many.cases.total(), len(many.ids)) == (
        CASES_MAX + 1,
        2 * CASES_MAX,
        IDS_SHOWN,
    )


def test_hops_that_are_too_far_ahead_are_counted_by_both_brokers() -> None:
    """With 0 from the start; when others lead, a count stays with those that led."""
    leaders = [7, 8, NO_LEADER, 7]
    outcomes = Outcomes(lambda: leaders)
    assert outcomes.hops_ahead() == {(7, 8): 0, (8, 7): 0}
    for shard, ahead in ((1, [(0, 700), (2, 900)]), (1, [(0, 501), (9, 501)]), (2, [])):
        outcomes.count(shard, replace(step(), ahead=ahead))
    leaders[:] = [8, 7, 9, 7]
    assert outcomes.hops_ahead() == {
        (7, 8): 2,
        (NO_LEADER, 8): 2,
        (8, 7): 0,
        (7, 9): 0,
        (9, 7): 0,
        (8, 9): 0,
        (9, 8): 0,
    }


def test_a_cause_that_is_gone_is_no_longer_told_until_it_is_back() -> None:
    outcomes = Outcomes()
    outcomes.count(0, step((Reason.TARGET_MISSING, "a", 2), (Reason.TOO_LARGE, "b", 1)))
    outcomes.count(1, step((Reason.TARGET_MISSING, "a", 1)))
    assert outcomes.recent_targets(NOW_MS) == {"a", "b"}
    assert outcomes.recent_targets(NOW_MS + RECENT_MS) == set()
    info = TopicInfo(id="1", partitions=1, leaderless=frozenset(), bytes_max=1)
    outcomes.forget_recent(lambda reason, topic: is_over(reason, info if topic == "a" else None))
    left = outcomes.recent_deaths(0, NOW_MS)
    assert left is not None
    assert left.cases == [(Reason.TOO_LARGE, "b", 1)]
    assert outcomes.recent_deaths(1, NOW_MS) is None
    outcomes.count(1, step((Reason.TARGET_MISSING, "a", 1), at_ms=NOW_MS + 1))
    assert outcomes.recent_deaths(1, NOW_MS + 1) is not None


def test_the_cause_of_a_dead_letter_is_over_when_its_target_takes_such_messages() -> None:
    info = TopicInfo(id="1", partitions=1, leaderless=frozenset(), bytes_max=1)
    barred, compacted = replace(info, writable=False), replace(info, compacted=True)
    cases = {
        Reason.TARGET_MISSING: [True, True, True],
        Reason.FORBIDDEN_TARGET: [True, False, True],
        Reason.NO_KEY: [True, True, False],
        Reason.TOO_LARGE: [False, False, False],
        Reason.REFUSED_BY_BROKER: [False, False, False],
    }
    for reason, expected in cases.items():
        assert [is_over(reason, each) for each in (info, barred, compacted)] == expected, reason
        assert not is_over(reason, None)
    assert is_over(Reason.TOO_LARGE, info, bytes_max_before=0)
    assert not is_over(Reason.TOO_LARGE, info, bytes_max_before=1)
