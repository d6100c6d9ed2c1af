"""What the pusher makes of a selection, ahead of its step or in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.keys import WHOLE_TOPIC
from chronos.core.message import Entry, Options, Reason
from chronos.core.shard.codec import FRESH, pack_entry, unpack_entry
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Outcome, unpack_progress
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Leaving, Selection, selection_of
from chronos.ports import Outgoing, TopicSpec
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import TARGETS_MAX, Pusher, PushSettings
from chronos.workers.step.report import LATE_MS, StepReport
from chronos.workers.step.targets import Attempt, Refusals, Retries, SetAside, attempt_of
from tests.harness.clock import HandClock
from tests.harness.drafts import drafted, plan_next, plan_of
from tests.harness.memory import MemoryStore
from tests.harness.replicas import SharedShard

NOW_MS = 1_800_000_000_000
EXPIRED_MS = NOW_MS - 5


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(
        tmp_path / "log", clock=HandClock(), progress_topic="progress", disk_reserve_bytes=0
    )
    log.prepare(
        [
            TopicSpec(name=name, partitions=1, settings={})
            for name in ("orders", "rejected", "dead")
        ],
        create=True,
    )
    yield log
    log.close()


def pusher_on(log: EmbeddedLog, *, seen: bool = True, attempts_max: int = 1) -> Pusher:
    """One that has looked at the target before, or not."""
    pusher = Pusher(
        log,
        Rules(shard=0, shards=1),
        PushSettings(
            delay_topic="delay",
            rejected_topic="rejected",
            dead_letter_topic="dead",
            create_topics=False,
            retries=Retries(attempts_max=attempts_max, base_ms=1_000, cap_ms=60_000),
        ),
    )
    if seen:
        pusher.targets.describe(["orders"], NOW_MS)
    return pusher


def selected(*expiries: int | None) -> Selection:
    """Messages that are due, the first with an id, each with one header of its own."""
    items = []
    for at, expire_at_ms in enumerate(expiries):
        entry = Entry(
            b"id" if at == 0 else None,
            NOW_MS - 9 + at,
            "orders",
            None,
            {"own": b"o"},
            b"%d" % at,
            NOW_MS - 99,
            expire_at_ms,
        )
        items.append((entry.due_ms, 7 + at, pack_entry(entry)))
    entries = [unpack_entry(data) for _, _, data in items]
    return selection_of(items, entries, items[-1][:2], complete=False)


def planned(
    pusher: Pusher,
    selection: Selection,
    look_ahead: LookAhead[PlannedTransaction],
    poison: Attempt | None = None,
    refusals: Refusals | None = None,
) -> PlannedTransaction:
    refusals = Refusals() if refusals is None else refusals
    return plan_of(
        pusher, selection, StepInputs(now_ms=NOW_MS, refusals=refusals, poison=poison), look_ahead
    )


def look_ahead() -> LookAhead[PlannedTransaction]:
    return LookAhead(Shard(rules=Rules(shard=0, shards=1), state=FRESH, view=MemoryStore()))


@pytest.mark.parametrize("poison", [None, (7, NOW_MS - 9, 1, 1), (8, NOW_MS - 8, 1, 1)])
@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize(
    "expiries", [(None, None, None), (None, EXPIRED_MS, None), (EXPIRED_MS, None, NOW_MS + 5)]
)
@pytest.mark.parametrize("seen", [True, False])
def test_a_transaction_planned_early_is_the_one_that_would_be_planned_now(
    log: EmbeddedLog,
    poison: Attempt | None,
    forget: bool,
    expiries: tuple[int | None, ...],
    seen: bool,
) -> None:
    """Also if the descriptions of the targets or the poison record changed in between; no header is
    written twice."""

    def plan_once(*, early: bool) -> PlannedTransaction:
        pusher, selection, ahead = pusher_on(log, seen=seen), selected(*expiries), look_ahead()
        if early:
            plan_next(pusher, selection, StepInputs(now_ms=NOW_MS, refusals=Refusals()), ahead)
        if forget:
            pusher.targets.forget_all()
        return planned(pusher, selection, ahead, poison)

    plan = plan_once(early=True)
    assert plan == plan_once(early=False)
    assert len(plan.messages) + len(plan.decisions) >= 3
    for _, _, _, headers, _ in plan.messages:
        names = [name for name, _ in (headers.items() if isinstance(headers, Mapping) else headers)]
        assert len(names) == len(set(names))
        assert {"own", "chronos-id", "chronos-due-at", "chronos-source"} <= set(names)


def test_planning_leaves_the_selected_entries_as_they_are(log: EmbeddedLog) -> None:
    pusher, selection, ahead = pusher_on(log), selected(None, EXPIRED_MS, None), look_ahead()
    plan_next(pusher, selection, StepInputs(now_ms=NOW_MS, refusals=Refusals()), ahead)
    planned(pusher, selection, ahead)
    assert selection.entries == selected(None, EXPIRED_MS, None).entries


def test_messages_leave_the_lane_of_a_target_that_is_set_aside_as_deferred_ones(
    log: EmbeddedLog,
) -> None:
    """Due messages still queue up behind it, although the target may be attempted now."""
    lane, refusals, selection = ("orders", WHOLE_TOPIC), Refusals(), selected(None, None, None)
    refusals.set_aside["orders"] = SetAside(next_ms=NOW_MS, turn_ms=NOW_MS)
    leaving = Leaving(
        lane=lane, items=selection.items[:1], entries=selection.entries[:1], is_all=False
    )
    plan = plan_of(
        pusher_on(log),
        replace(selection, leaving=(leaving,)),
        StepInputs(now_ms=NOW_MS, refusals=refusals, lanes={lane}),
        look_ahead(),
    )
    assert not plan.messages
    assert [(made.offset, made.outcome, made.reason) for made in plan.decisions] == [
        (7, Outcome.DEFERRED, Reason.REFUSED_BY_BROKER),
        (8, Outcome.PARKED, Reason.NO_LEADER),
        (9, Outcome.PARKED, Reason.NO_LEADER),
    ]


def test_a_selection_other_than_the_one_planned_early_gets_a_plan_of_its_own(
    log: EmbeddedLog,
) -> None:
    pusher, ahead = pusher_on(log), look_ahead()
    plan_next(
        pusher, selected(None, None, None), StepInputs(now_ms=NOW_MS, refusals=Refusals()), ahead
    )
    plan = planned(pusher, selected(None), ahead)
    assert [message[2] for message in plan.messages] == [b"0"]
    assert plan.due_ms == [NOW_MS - 9]


def test_a_transaction_has_a_bounded_number_of_targets(tmp_path: Path) -> None:
    """Thousands of them would exceed its time-out. Every message is delivered once, also with a
    look-ahead."""
    case = SharedShard(tmp_path)
    names = [f"target-{number}" for number in range(2 * TARGETS_MAX + 50)]
    case.log.prepare(
        [TopicSpec(name=name, partitions=1, settings={}) for name in names], create=True
    )
    case.commit()
    due_ms = case.clock.now + 1_000
    batch = [
        (
            "chronos.delay",
            None,
            b"%d" % at,
            [
                ("chronos-target-topic", names[at % len(names)].encode()),
                ("chronos-deliver-at", b"%d" % due_ms),
            ],
            0,
        )
        for at in range(6_000)
    ]
    case.log.append(batch, 10.0)
    case.clock.now = due_ms
    delivered: list[int] = []
    steps = 0
    while len(delivered) < len(batch):
        steps += 1
        assert steps < 100
        report = case.other.turn().report
        delivered += [] if report is None else report.due_ms
    records = case.log.reader(case.progress, 0, 0).read(1_000, 10**9)
    selected = [unpack_progress(record.value, 1).selected for record in records]
    assert sum(selected) == len(batch)
    assert max(selected) == TARGETS_MAX
    found = [
        record.value or b""
        for name in names
        for record in case.log.reader(name, 0, 0).read(1_000, 10**9)
    ]
    assert sorted(found) == sorted(value for _, _, value, _, _ in batch)


@pytest.mark.parametrize(
    ("own", "attempt", "dies"), [(0, 2, False), (2, 1, False), (2, 2, True), (9, 3, True)]
)
def test_a_refused_message_is_retried_as_often_as_it_asks_within_the_configuration(
    log: EmbeddedLog, own: int, attempt: int, dies: bool
) -> None:
    """Its decision has the broker's error as text."""
    pusher, selection, refusals = pusher_on(log, attempts_max=3), selected(None), Refusals()
    entry = replace(selection.entries[0], attempt=attempt, options=Options(attempts_max=own))
    selection = replace(selection, items=[(NOW_MS, 7, pack_entry(entry))], entries=[entry])
    refusals.refuse(selection, NOW_MS, pusher.retries, "MSG_SIZE_TOO_LARGE")
    plan = planned(pusher, selection, look_ahead(), attempt_of(NOW_MS, 7, entry), refusals)
    (decision,) = plan.decisions
    text = "refused by the broker every time: MSG_SIZE_TOO_LARGE" if dies else "MSG_SIZE_TOO_LARGE"
    assert decision.outcome is (Outcome.DEAD if dies else Outcome.RETRY)
    assert (decision.reason, decision.attempt) == (
        Reason.REFUSED_BY_BROKER,
        attempt if dies else attempt + 1,
    )
    assert plan.details[decision.detail - 1] == text
    assert plan.dead.ids == ([b"id"] if dies else [])
    if dies:
        ((_, _, _, headers, _),) = plan.messages
        assert dict(headers)["chronos-attempts"] == b"%d" % own


@pytest.mark.parametrize(
    "now", [{"due_ms": NOW_MS}, {"occurrence": 2}, {"attempt": 2}], ids=lambda now: next(iter(now))
)
@pytest.mark.parametrize("is_set_aside", [False, True])
def test_a_message_is_attempted_although_an_earlier_attempt_of_it_was_refused(
    log: EmbeddedLog, now: dict[str, int], is_set_aside: bool
) -> None:
    """Before the refusal was decided, an action moved the message, or another master decided: the
    mark is of no use then."""
    pusher, selection, refusals = pusher_on(log), selected(None), Refusals()
    before, entry = selection.entries[0], replace(selection.entries[0], **now)
    refused = attempt_of(before.due_ms, 7, before)
    if is_set_aside:
        refusals.set_aside["orders"] = SetAside(
            next_ms=NOW_MS, turn_ms=NOW_MS, attempts={7: refused}
        )
    selection = replace(selection, items=[(entry.due_ms, 7, pack_entry(entry))], entries=[entry])
    plan = planned(pusher, selection, look_ahead(), None if is_set_aside else refused, refusals)
    assert ([message[0] for message in plan.messages], plan.decisions) == (["orders"], [])


def test_late_deliveries_are_counted_by_target_without_messages_that_were_not_delivered(
    log: EmbeddedLog,
) -> None:
    """The first message expired; of the others one is late, all of them, or none."""
    selection = selected(EXPIRED_MS, None, None)
    draft = drafted(selection, look_ahead(), NOW_MS)
    plan = pusher_on(log).plan(draft, StepInputs(now_ms=NOW_MS, refusals=Refusals()), look_ahead())
    for late_ms, late in ((NOW_MS - 8, {}), (NOW_MS - 7, {"orders": 1}), (NOW_MS, {"orders": 2})):
        report = StepReport.of(draft, plan, shard=0, committed_ms=late_ms + LATE_MS)
        assert (report.delivered, report.late) == ({"orders": 2}, late)
    assert report.dead.cases == {(Reason.EXPIRED, "orders"): 1}


@pytest.mark.parametrize("change", ["none", "cancel", "replace", "lost role"])
def test_a_step_with_dead_letters_that_was_prepared_is_decided_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Every fifth message has expired; the change comes between the first step of a backlog, which
    prepares the second, and the second. Every message ends once."""
    monkeypatch.setattr("chronos.node.shards.STEP_MESSAGES", 500)
    case, count = SharedShard(tmp_path), 1_200
    case.log.prepare([TopicSpec(name="orders", partitions=1, settings={})], create=True)
    case.commit()
    due_ms = case.clock.now + 1_000

    def record(number: int, value: bytes | None, *headers: tuple[str, bytes]) -> Outgoing:
        times = [("chronos-deliver-at", b"%d" % due_ms)] if value is not None else []
        if value is not None and number % 5 == 0:
            times.append(("chronos-expire-at", b"%d" % (due_ms + 1)))
        target = [("chronos-target-topic", b"orders")] if value is not None else []
        return "chronos.delay", b"k%d" % number, value, [*target, *times, *headers], 0

    case.log.append([record(at, b"%d" % at) for at in range(count)], 10.0)
    node, clock = case.other, case.clock
    while node.replica.state.totals.accepted < count:
        node.step()
    clock.now = due_ms + 5_000
    node.step()
    settled = count - node.replica.state.pending
    assert 0 < settled < count - 500
    changed = settled + 7, settled - settled % 5 + 10
    if change == "cancel":
        case.log.append([record(at, None) for at in changed], 10.0)
    elif change == "replace":
        case.log.append(
            [record(at, b"new", ("chronos-action", b"replace")) for at in changed], 10.0
        )
    elif change == "lost role":
        node.guard = "the disk is full"
        node.step()
        node.guard = None
    for _ in range(20):
        node.step()
    assert node.replica.state.pending == 0
    delivered = [
        record.value or b"" for record in case.log.reader("orders", 0, 0).read(2 * count, 10**9)
    ]
    letters = [
        record.value or b""
        for record in case.log.reader("chronos.dead-letter", 0, 0).read(2 * count, 10**9)
    ]
    gone = {b"%d" % at for at in changed} if change in ("cancel", "replace") else set()
    new = [b"new"] if change == "replace" else []
    assert sorted(delivered) == sorted(
        [b"%d" % at for at in range(count) if at % 5 and b"%d" % at not in gone] + new
    )
    assert sorted(letters) == sorted(
        [b"%d" % at for at in range(0, count, 5) if b"%d" % at not in gone] + new
    )
