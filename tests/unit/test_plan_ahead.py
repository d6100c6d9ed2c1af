"""The transaction of a step with dead letters: planned ahead of the step, it is the one that the
step would plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, cast

import pytest
from msgspec.structs import replace

from chronos.core.keys import WHOLE_TOPIC
from chronos.core.message import Entry, Options, Reason
from chronos.core.rates import Rate
from chronos.core.series import parse_repetition
from chronos.core.shard.codec import FRESH, pack_entry
from chronos.core.shard.fate import Fates
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Outcome
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, selection_of
from chronos.ports import Log, TopicInfo
from chronos.workers.step.lanes import RateLimits, ShardRates
from chronos.workers.step.letter_topics import UNBOUNDED
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import SECOND_LOOK_MS, Refusals, Retries, SetAside
from tests.harness.drafts import plan_next, plan_of
from tests.harness.memory import MemoryStore
from tests.harness.table import table

NOW_MS = 1_800_000_000_000
DUE_MS = NOW_MS - 60_000
RULES = Rules(shard=3, shards=8, deny=["denied"])


def topic(name: str, bytes_max: int = 1_000_000, **more: Any) -> TopicInfo:
    return TopicInfo(id=name, partitions=3, leaderless=frozenset(), bytes_max=bytes_max, **more)


class Topics:
    """The part of a log that a pusher uses, and what it describes."""

    def __init__(self) -> None:
        names = ("orders", "denied", "dead")
        self.infos = {name: topic(name) for name in names}
        self.infos["small"] = topic("small", 100)
        self.infos["closed"] = topic("closed", writable=False)
        self.infos["compacted"] = topic("compacted", compacted=True)

    def describe(self, topics: list[str]) -> dict[str, TopicInfo | None]:
        return {name: self.infos.get(name) for name in topics}


class Kept(LookAhead[PlannedTransaction]):
    """A look-ahead that shows the plan it keeps."""

    def __init__(self) -> None:
        super().__init__(Shard(rules=RULES, state=FRESH, view=MemoryStore()))
        self.kept: PlannedTransaction | None = None

    def keep_plan(
        self, selection: Selection, fates: Fates, plan: PlannedTransaction, basis: object
    ) -> None:
        self.kept = plan
        super().keep_plan(selection, fates, plan, basis)


class Bench:
    """A pusher that has found out twice that the topic `missing` is missing."""

    def __init__(self) -> None:
        self.topics, self.ahead, self.refusals = Topics(), Kept(), Refusals()
        self.limits: dict[str, Rate | None] = {}
        self.changed: Mapping[str, Rate | None] = {}
        self.pusher = Pusher(
            cast("Log", self.topics),
            RULES,
            PushSettings(
                delay_topic="delay",
                rejected_topic="rejected",
                dead_letter_topic="dead",
                create_topics=False,
                retries=Retries(attempts_max=3, base_ms=1_000, cap_ms=1_000),
            ),
            rates=ShardRates(3, RateLimits({}, changed=lambda: self.changed)),
        )
        self.look(NOW_MS - SECOND_LOOK_MS)
        self.look(NOW_MS)

    def look(self, now_ms: int) -> None:
        """Describe all topics again."""
        self.pusher.targets.describe(
            {*self.topics.infos, "orders", "missing"}, now_ms, age_ms_max=0
        )

    def plan(self, selection: Selection, now_ms: int = NOW_MS, **more: Any) -> PlannedTransaction:
        inputs = StepInputs(refusals=self.refusals, **{"now_ms": now_ms, **more})
        return plan_of(self.pusher, selection, inputs, self.ahead)

    def prepare(self, selection: Selection) -> PlannedTransaction | None:
        """Plan ahead; the transaction that was kept."""
        plan_next(
            self.pusher, selection, StepInputs(now_ms=NOW_MS, refusals=self.refusals), self.ahead
        )
        return self.ahead.kept


def selected(*entries: Entry) -> Selection:
    items = [(DUE_MS + at, 70 + at, pack_entry(entry)) for at, entry in enumerate(entries)]
    return selection_of(items, list(entries), items[-1][:2], complete=False)


def entry(
    target: str,
    *,
    message_id: bytes | None = None,
    key: bytes | None = None,
    expire_at_ms: int | None = None,
    value: bytes = b"v" * 200,
) -> Entry:
    return Entry(
        message_id, DUE_MS, target, key, {"own": b"o", "nothing": None}, value, 1, expire_at_ms
    )


def shown(plan: PlannedTransaction) -> list[tuple[object, ...]]:
    """Each message with its headers in order, whatever holds them."""
    found: list[tuple[object, ...]] = []
    for name, key, value, headers, partition in plan.messages:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        found.append((name, key, value, list(pairs), partition))
    return found


MIXED = (
    entry("orders"),
    entry("small"),
    entry("orders", expire_at_ms=NOW_MS - 1),
    entry("orders", expire_at_ms=NOW_MS),
    entry("small", value=b""),
)
"""Delivered, too large, expired, not expired yet, and nearly too large."""


@table("message_id", [None, b"order-7", b"3-1700000000000-9"])
@table("key", [None, b"key"])
@table(
    ("target", "reason"),
    [
        ("orders", Reason.EXPIRED),
        ("small", Reason.TOO_LARGE),
        ("denied", Reason.FORBIDDEN_TARGET),
        ("closed", Reason.FORBIDDEN_TARGET),
        ("missing", Reason.TARGET_MISSING),
        ("compacted", Reason.NO_KEY),
    ],
)
def test_a_letter_is_the_same_ahead_of_its_step_in_it_and_where_letters_are_bounded(
    target: str, reason: Reason, key: bytes | None, message_id: bytes | None
) -> None:
    """Header by header and byte by byte, and it counts alike."""
    expire_at_ms = NOW_MS - 5 if reason is Reason.EXPIRED else NOW_MS + 5
    doomed = entry(target, message_id=message_id, key=key, expire_at_ms=expire_at_ms)
    selection = selected(doomed, entry("orders"), replace(doomed, value=b"w" * 300, headers={}))
    early, short, long = Bench(), Bench(), Bench()
    kept = early.prepare(selection)
    plans = [
        early.plan(selection),
        short.plan(selection),
        long.plan(selection, dead_letter_bytes_max=UNBOUNDED - 1),
    ]
    assert plans[0] is kept
    assert shown(plans[0]) == shown(plans[1]) == shown(plans[2])
    first, *_ = plans
    dead = 0 if reason is Reason.NO_KEY and key is not None else 2
    assert [decision.reason for decision in first.decisions] == [reason] * dead
    assert (first.dead_letters, first.dead.cases.total(), first.undelivered[target]) == (
        dead,
        dead,
        dead,
    )
    for plan in plans:
        for name in (
            "decisions",
            "details",
            "due_ms",
            "dead_letters",
            "dead",
            "undelivered",
            "targets",
        ):
            assert getattr(plan, name) == getattr(first, name), name


def test_messages_for_a_missing_topic_are_dead_lettered_a_few_at_a_time() -> None:
    """100 a second, in steps of 50 ms: none of the steps has the messages of many, and each message
    waits for one look."""
    bench, step_ms, spacing_ms = Bench(), 50, 10
    waiting = [
        (due_ms, at, replace(entry("missing"), due_ms=due_ms))
        for at, due_ms in enumerate(range(NOW_MS, NOW_MS + 10_000, spacing_ms))
    ]
    count, letters = len(waiting), []
    for now_ms in range(NOW_MS, NOW_MS + 15_000, step_ms):
        due = sorted((row for row in waiting if row[0] <= now_ms), key=itemgetter(0, 1))
        if not due:
            continue
        items = [(due_ms, at, pack_entry(found)) for due_ms, at, found in due]
        found = [each for *_, each in due]
        plan = bench.plan(
            selection_of(items, found, items[-1][:2], complete=False),
            now_ms,
        )
        deferred = {
            made.offset: made.next_due_ms
            for made in plan.decisions
            if made.outcome is Outcome.DEFERRED
        }
        waiting = [row for row in waiting if row[0] > now_ms] + [
            (deferred[at], at, each) for _, at, each in due if at in deferred
        ]
        for made in plan.decisions:
            if made.outcome is Outcome.DEAD:
                assert (
                    now_ms - found[[row[1] for row in due].index(made.offset)].due_ms
                    <= SECOND_LOOK_MS + step_ms
                )
        letters.append(plan.dead_letters)
    assert not waiting
    assert sum(letters) == count
    assert max(letters) <= 2 * step_ms // spacing_ms


def test_a_letter_that_its_topic_does_not_take_goes_without_its_payload() -> None:
    bench = Bench()
    bench.topics.infos["dead"] = topic("dead", 1_000)
    bench.look(NOW_MS)
    plan = bench.plan(selected(entry("small", value=b"v" * 5_000)))
    (letter,) = plan.messages
    assert letter[2] is None
    assert b"too large to be passed on" in (dict(letter[3])["chronos-detail"] or b"")


def test_a_step_with_dead_letters_is_used_as_it_was_prepared() -> None:
    bench, selection = Bench(), selected(*MIXED)
    kept = bench.prepare(selection)
    plan = bench.plan(selection)
    assert plan is kept
    assert [message[0] for message in plan.messages] == ["orders", "dead", "dead", "orders", "dead"]
    assert plan == Bench().plan(selection)


def limit(bench: Bench) -> dict[str, Any]:
    bench.changed = {"orders": Rate(per_s=1.0, burst=1)}
    return {}


def set_aside(bench: Bench) -> dict[str, Any]:
    bench.refusals.set_aside["orders"] = SetAside(
        next_ms=NOW_MS + 500, pause_ms=500, turn_ms=NOW_MS
    )
    return {}


def redescribed(name: str, info: TopicInfo | None) -> Callable[[Bench], dict[str, Any]]:
    def change(bench: Bench) -> dict[str, Any]:
        if info is None:
            del bench.topics.infos[name]
        else:
            bench.topics.infos[name] = info
        bench.look(NOW_MS)
        return {}

    return change


CHANGES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "a rate limit": limit,
    "a target that is set aside": set_aside,
    "a lane": lambda bench: {"lanes": {("orders", WHOLE_TOPIC)}},
    "a poison record": lambda bench: {"poison": (70, DUE_MS, 1, 1)},
    "a target that takes more": redescribed("small", topic("small", 5_000)),
    "a target that takes less": redescribed("orders", topic("orders", 100)),
    "a target without a leader": redescribed(
        "orders", replace(topic("orders"), leaderless=frozenset({0, 1, 2}))
    ),
    "a deleted target": redescribed("orders", None),
    "a dead-letter topic that is closed": redescribed("dead", topic("dead", writable=False)),
    "a dead-letter topic that takes less": redescribed("dead", topic("dead", 300)),
    "a dead-letter topic that was not open before": lambda bench: {"defers_dead_letters": True},
    "a bound for dead letters": lambda bench: {"dead_letter_bytes_max": 500},
    "a message that has expired since": lambda bench: {"now_ms": NOW_MS + 1},
    "a message that has not expired yet": lambda bench: {"now_ms": NOW_MS - 1},
}


@table("name", CHANGES)
def test_a_prepared_step_does_not_hold_after(name: str) -> None:
    """The step is then decided as if nothing had been prepared."""
    bench, other, selection = Bench(), Bench(), selected(*MIXED)
    kept = bench.prepare(selection)
    assert kept is not None
    plan = bench.plan(selection, **CHANGES[name](bench))
    assert plan is not kept
    now = other.plan(selection, **CHANGES[name](other))
    assert shown(plan) == shown(now)
    assert plan.decisions == now.decisions
    # What was prepared is not what is decided now: the change matters.
    assert (shown(kept), kept.decisions) != (shown(now), now.decisions)


@pytest.mark.parametrize("since_ms", [0, 1])
def test_a_target_that_may_exist_by_now_is_described_again_before_a_letter(since_ms: int) -> None:
    """A message that was due after the last description is deferred, and its step not prepared."""
    due_ms = NOW_MS + since_ms
    selection = selected(replace(entry("missing"), due_ms=due_ms))
    selection = replace(
        selection, items=[(due_ms, 70, selection.items[0][2])], cursor=(NOW_MS + 9, 0)
    )
    bench = Bench()
    assert (bench.prepare(selection) is None) == bool(since_ms)
    (decision,) = bench.plan(selection, NOW_MS + 2).decisions
    assert decision.outcome is (Outcome.DEFERRED if since_ms else Outcome.DEAD)


@pytest.mark.parametrize("options", [{"attempt": 2}, {"headers": [("own", b"1"), ("own", b"2")]}])
def test_a_letter_keeps_the_attempts_and_repeated_names_of_its_message(
    options: dict[str, Any],
) -> None:
    bench, selection = Bench(), selected(replace(entry("small"), **options))
    kept = bench.prepare(selection)
    plan = bench.plan(selection)
    assert plan is kept
    assert [decision.reason for decision in plan.decisions] == [Reason.TOO_LARGE]
    names = [
        name for *_, pairs, _ in shown(plan) for name, _ in cast("list[tuple[str, bytes]]", pairs)
    ]
    assert names.count("own") == (2 if "headers" in options else 1)
    assert names.count("chronos-attempt") == 1


def test_a_step_with_a_series_is_not_prepared() -> None:
    """Whether an occurrence was missed depends on the time of the step."""
    every = Options(repetition=parse_repetition("every 1s"))
    bench, selection = Bench(), selected(entry("orders"), replace(entry("orders"), options=every))
    assert bench.prepare(selection) is None


def test_preparing_asks_the_brokers_nothing() -> None:
    """Not even about the dead-letter topic: then the step is not prepared."""
    bench, selection = Bench(), selected(*MIXED)
    bench.pusher.targets.forget("dead")
    bench.topics.infos.clear()
    assert bench.prepare(selection) is None
