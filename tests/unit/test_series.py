"""Series: which occurrence is delivered, skipped or merged, and what an action does to a series at
any moment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from itertools import product
from typing import Any

import pytest

from chronos.core.cron import next_cron
from chronos.core.keys import generated_id
from chronos.core.message import (
    DELAY,
    REPEAT,
    TARGET_TOPIC,
    Entry,
    LatePolicy,
    Options,
    Reason,
    Record,
    Rejection,
    Repeat,
    Repetition,
)
from chronos.core.series import (
    REPETITIONS_MAX,
    backoff_ms,
    carried,
    expires_ms,
    following_after,
    is_paused,
    parse_repetition,
    resumed_ms,
    spread_shift_ms,
    upcoming,
)
from chronos.core.shard.codec import FRESH
from chronos.core.shard.fate import (
    Dead,
    Fate,
    Fires,
    Skips,
    fate_of,
    within_repetitions,
)
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Decision, Outcome, Progress
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import CRON_CHECKS_MAX, PARSED_AT_ONCE, Shard
from chronos.core.shard.step import Selection, Staged, selection_of
from tests.harness.memory import MemoryStore
from tests.unit.drivers import OTHER_RULES, OUTCOMES, Scenario, opened
from tests.unit.histories import SHARD, START_MS, Step, render
from tests.unit.model import ChosenOutcome, Intent, Rows
from tests.unit.records import WRITER

T = 1_700_000_000_000
SECOND = 1_000


def series(text: str, **more: Any) -> Repetition:
    parsed = parse_repetition(text)
    return Repetition(parsed.kind, parsed.values, parsed.cron, **more)


def fate(
    repetition: Repetition,
    *,
    late_ms: int = 3,
    occurrence: int = 1,
    spread_ms: int = 0,
    due_ms: int = T,
) -> Fate | None:
    """The fate of an occurrence due at `due_ms` that is selected later by `late_ms` than its
    position."""
    options = Options(spread_ms=spread_ms, repetition=repetition)
    entry = Entry(b"s", due_ms, "t", None, {}, None, T, occurrence=occurrence, options=options)
    return fate_of(entry, 7, SHARD, due_ms + spread_shift_ms(SHARD, 7, spread_ms) + late_ms)


FIRE_ONCE, FIRE_ALL, SKIP = LatePolicy.FIRE_ONCE, LatePolicy.FIRE_ALL, LatePolicy.SKIP


@pytest.mark.parametrize("policy", LatePolicy)
def test_an_occurrence_in_time_is_delivered_and_the_next_is_counted_from_its_due_time(
    policy: LatePolicy,
) -> None:
    every = series("every 1s", late_policy=policy)
    for late_ms in (0, 3, 999):
        assert fate(every, late_ms=late_ms) == Fires(T + SECOND)
    assert fate(series("backoff 1s 2 1h", late_policy=policy), occurrence=4) == Fires(
        T + 8 * SECOND
    )
    daily = series("cron 0 9 * * *", zone="Europe/Lisbon", late_policy=policy)
    assert fate(daily) == Fires(next_cron("0 9 * * *", "Europe/Lisbon", T) or 0)


def test_missed_occurrences_are_delivered_as_one_all_or_not_at_all() -> None:
    """A minute of outage: the occurrences from T to T + 60 s are due."""
    assert fate(series("every 1s"), late_ms=60_500) == Skips(T + 60 * SECOND, 1)
    assert fate(series("every 1s", late_policy=FIRE_ALL), late_ms=60_500) == Fires(T + SECOND)
    assert fate(series("every 1s", late_policy=SKIP), late_ms=60_500) == Skips(T + 61 * SECOND, 2)


def test_the_occurrence_that_stands_for_the_missed_ones_is_delivered_however_late_it_becomes() -> (
    None
):
    """Otherwise a series whose interval is shorter than a step would never be delivered."""
    stands_in = series("every 100ms", planned_ms=T)
    assert fate(stands_in, late_ms=350) == Fires(T + 400)
    assert fate(series("every 100ms", planned_ms=T, late_policy=FIRE_ALL), late_ms=350) == Fires(
        T + 100
    )


def test_the_last_occurrence_is_delivered_however_late() -> None:
    assert fate(series("every 1s", times=3), occurrence=3, late_ms=10**9) is None
    assert fate(series("every 1s", until_ms=T + 999, late_policy=SKIP), late_ms=10**9) is None
    assert fate(series("every 1s", until_ms=T + 2_500), late_ms=10**9) == Skips(T + 2_000, 1)


def test_a_series_whose_last_occurrences_are_skipped_ends_with_a_dead_letter() -> None:
    ended = fate(series("every 1s", until_ms=T + 2_500, late_policy=SKIP), late_ms=10**9)
    assert isinstance(ended, Dead)
    assert (ended.reason, ended.next_ms) == (Reason.EXPIRED, 0)


def test_missed_occurrences_are_not_delivered_while_the_dead_letter_topic_takes_no_letter() -> None:
    """The decision to wait for it changes nothing of the fate, but for one with an expiry of its
    own."""
    skipped = series("every 1s", until_ms=T + 2_500, late_policy=SKIP)
    for expire_at_ms in (None, T + 10):
        entry = Entry(
            b"s",
            T,
            "t",
            None,
            {},
            None,
            T,
            occurrence=1,
            expire_at_ms=expire_at_ms,
            options=Options(repetition=skipped),
        )
        found = fate_of(entry, 7, SHARD, T + 60_000)
        assert isinstance(found, Dead)
        waits = Decision(T, 7, Outcome.DEFERRED, Reason.EXPIRED, T + 65_000, 1, 1)
        place_ms, waiting = carried(entry, waits, b"s", SHARD)
        again = fate_of(waiting, 7, SHARD, T + 65_000)
        assert (place_ms, waiting.due_ms) == (T + 65_000, T)
        assert isinstance(again, Dead)
        assert (again.reason, again.next_ms) == (Reason.EXPIRED, 0)


def test_a_cron_series_without_a_time_gets_its_first_one() -> None:
    first = fate(series("cron 0 9 * * *", zone="Europe/Lisbon"), occurrence=0)
    assert first == Skips(next_cron("0 9 * * *", "Europe/Lisbon", T) or 0, 1)


def test_a_zone_that_this_machine_does_not_know_ends_the_series_with_a_reason() -> None:
    ended = fate(series("cron 0 9 * * *", zone="Europe/Atlantis"))
    assert isinstance(ended, Dead)
    assert (ended.reason, "Europe/Atlantis" in ended.detail) == (Reason.BAD_VALUE, True)


def test_a_spread_series_is_judged_by_its_spread_time() -> None:
    assert spread_shift_ms(SHARD, 7, 60_000) > SECOND
    assert fate(series("every 1s"), spread_ms=60_000) == Fires(T + SECOND)
    assert fate(series("every 1s"), spread_ms=60_000, late_ms=2_500) == Skips(T + 2_000, 1)


def next_times(
    repetition: Repetition, *, count: int = 3, now_ms: int = T - 1, occurrence: int = 1
) -> list[int]:
    """The next times, in seconds after T, of a series whose pending occurrence is due at T."""
    options = Options(repetition=repetition)
    entry = Entry(b"s", T, "t", None, {}, None, T, occurrence=occurrence, options=options)
    return [(at - T) // SECOND for at in upcoming(entry, now_ms, count, next_cron)]


def test_the_next_times_of_a_series_begin_with_the_pending_occurrence_and_end_with_it() -> None:
    assert next_times(series("every 1s")) == [0, 1, 2]
    assert next_times(series("every 1s"), count=0) == []
    assert next_times(series("backoff 1s 2 1h"), count=4) == [0, 1, 3, 7]
    assert next_times(series("every 1s", times=3), occurrence=2) == [0, 1]
    assert next_times(series("every 1s", until_ms=T + 1_999)) == [0, 1]


def test_the_next_times_after_an_outage_have_missed_occurrences_only_if_all_are_delivered() -> None:
    now_ms = T + 60_500
    assert next_times(series("every 1s"), now_ms=now_ms) == [0, 61, 62]
    assert next_times(series("every 1s", late_policy=FIRE_ALL), now_ms=now_ms) == [0, 1, 2]


def test_the_next_times_follow_the_rhythm_although_the_pending_occurrence_was_moved() -> None:
    assert next_times(series("every 60s", planned_ms=T - 30 * SECOND)) == [0, 30, 90]


def test_the_next_times_behind_a_moved_occurrence_are_those_that_are_delivered() -> None:
    """What the rhythm has before it is left out, or delivered with it."""
    now_ms, moved_from_ms = T - 200 * SECOND, T - 150 * SECOND
    for policy in (FIRE_ONCE, SKIP):
        every = series("every 60s", planned_ms=moved_from_ms, late_policy=policy)
        assert next_times(every, now_ms=now_ms) == [0, 30, 90]
        assert fate(every, late_ms=0) == Fires(T + 30 * SECOND)
    every = series("every 60s", planned_ms=moved_from_ms, late_policy=FIRE_ALL)
    assert next_times(every, now_ms=now_ms, count=4) == [0, 0, 0, 30]
    assert fate(every, late_ms=0) == Fires(T - 90 * SECOND)


def test_the_next_times_of_a_cron_series_are_those_of_its_zone() -> None:
    winter_ms = 1_732_579_200_000  # 2024-11-26T00:00:00Z
    entry = Entry(
        b"s",
        winter_ms,
        "t",
        None,
        {},
        None,
        winter_ms,
        occurrence=0,
        options=Options(repetition=series("cron 0 9 * * 1-5", zone="Europe/Berlin")),
    )
    hours = [(at - winter_ms) // 3_600_000 for at in upcoming(entry, winter_ms, 5, next_cron)]
    assert hours == [8, 32, 56, 80, 152]
    with pytest.raises(ValueError, match="Europe/Atlantis"):
        next_times(series("cron 0 9 * * *", zone="Europe/Atlantis"))


def pending(
    repetition: Repetition, *, due_ms: int = T, occurrence: int = 1, expire_at_ms: int | None = None
) -> Entry:
    """The entry of a series."""
    options = Options(repetition=repetition)
    return Entry(
        b"s",
        due_ms,
        "t",
        None,
        {},
        None,
        T,
        expire_at_ms=expire_at_ms,
        occurrence=occurrence,
        options=options,
    )


@pytest.mark.parametrize(
    ("from_ms", "expected_ms"),
    [
        pytest.param(-5 * SECOND, 0, id="before the pending occurrence"),
        pytest.param(0, 0, id="at the pending occurrence"),
        pytest.param(1, 60 * SECOND, id="after it"),
        pytest.param(60 * SECOND, 60 * SECOND, id="at a later one"),
        pytest.param(605 * SECOND, 660 * SECOND, id="between later ones"),
    ],
)
def test_a_paused_series_goes_on_with_the_first_time_of_its_rhythm(
    from_ms: int, expected_ms: int
) -> None:
    """Wherever its pending occurrence was moved to."""
    for repetition, due_ms in (
        (series("every 60s"), T),
        (series("every 60s", planned_ms=T), T + 10**9),
    ):
        entry = pending(repetition, due_ms=due_ms)
        assert resumed_ms(entry, T + from_ms, next_cron) == T + expected_ms


def test_a_series_goes_on_within_its_rhythm_or_not_at_all() -> None:
    """The last occurrence of a number of times moves like the others; nothing comes after the end
    of the rhythm. Growing intervals have no times of their own."""
    last = pending(series("every 60s", times=3, planned_ms=T), due_ms=T + 10**9, occurrence=3)
    assert resumed_ms(last, T + SECOND, next_cron) == T + 60 * SECOND
    undecided = pending(series("cron 0 9 * * *"), occurrence=0)
    first_ms = next_cron("0 9 * * *", "", T)
    assert resumed_ms(undecided, T - 5, next_cron) == first_ms
    for text in ("every 60s", "backoff 60s 1 60s"):
        ended = series(text, until_ms=T + 90 * SECOND, planned_ms=T)
        over = pending(ended, due_ms=T + 10**9)
        assert resumed_ms(over, T + 91 * SECOND, next_cron) is None
        assert resumed_ms(over, T + 60 * SECOND, next_cron) == T + 60 * SECOND
    growing = pending(series("backoff 1s 2 1h", planned_ms=T), due_ms=T + 10**9, occurrence=2)
    assert resumed_ms(growing, T + 777, next_cron) == T + 777


def test_a_series_is_paused_while_it_leaves_out_an_occurrence_that_is_to_come() -> None:
    moved = pending(series("every 60s", planned_ms=T), due_ms=T + 150 * SECOND)
    assert is_paused(moved, T - SECOND, next_cron)
    assert is_paused(moved, T + 119 * SECOND, next_cron)
    assert not is_paused(moved, T + 120 * SECOND, next_cron)
    assert not is_paused(moved, T + 150 * SECOND, next_cron)
    within = pending(series("every 60s", planned_ms=T), due_ms=T + 59 * SECOND)
    assert not is_paused(within, T - SECOND, next_cron)
    assert not is_paused(pending(series("every 60s")), T - 10**9, next_cron)
    # Over its own time alone; once that has passed, nothing more is left out, as after a resume.
    over_one = pending(series("every 60s", planned_ms=T), due_ms=T + 60 * SECOND)
    assert is_paused(over_one, T - SECOND, next_cron)
    assert not is_paused(over_one, T, next_cron)
    ahead = pending(series("every 60s", planned_ms=T), due_ms=T - 70 * SECOND)
    assert not is_paused(ahead, T - 90 * SECOND, next_cron)
    # Its number of times and its last time say nothing of what is left out now.
    for bound in ({"times": 1}, {"until_ms": T + SECOND}):
        bounded = pending(series("every 60s", planned_ms=T, **bound), due_ms=T + 10**9)
        assert is_paused(bounded, T + 10**6, next_cron)


def test_an_occurrence_that_is_moved_to_a_later_time_takes_its_expiry_along() -> None:
    every, expire_at_ms = series("every 60s"), T + 10 * SECOND
    moved = series("every 60s", planned_ms=T)
    assert expires_ms(pending(every)) is None
    assert expires_ms(pending(every, expire_at_ms=expire_at_ms)) == expire_at_ms
    later = pending(moved, due_ms=T + 90 * SECOND, expire_at_ms=expire_at_ms)
    assert expires_ms(later) == T + 100 * SECOND
    earlier = pending(moved, due_ms=T - 90 * SECOND, expire_at_ms=expire_at_ms)
    assert expires_ms(earlier) == expire_at_ms


# --- actions, exhaustively


class Rhythm:
    """A shard and a master that decides about series as the push worker does, and a replica with
    other settings that follows it from the beginning. `against_model`: the model agrees at every
    step."""

    def __init__(self, *, against_model: bool) -> None:
        self.scenario = _Modelled() if against_model else None
        self.store = Rows()
        self.own = opened(self.store)
        self.replica_store = Rows()
        self.replica = opened(self.replica_store, OTHER_RULES[0])
        self.now_ms = START_MS
        self.records: list[Record] = []
        self.deliveries: list[tuple[Entry, int]] = []
        self.refused: list[tuple[int, int]] = []

    def copy(self) -> Rhythm:
        """The same at this moment, without a model; what happens to one of both changes nothing in
        the other."""
        assert self.scenario is None
        made = copy(self)
        made.store, made.own = copy_of(self.store, self.own)
        made.replica_store, made.replica = copy_of(self.replica_store, self.replica)
        made.records, made.deliveries = self.records[:], self.deliveries[:]
        return made

    @property
    def pending(self) -> int:
        return self.own.state.pending

    def send(self, verb: str, message_id: bytes | None, due_ms: int, at: int, **more: Any) -> int:
        offset = len(self.records) + 1
        intent = Intent(
            offset=offset, timestamp_ms=at, verb=verb, id=message_id, due_ms=due_ms, **more
        )
        self.records.append(render(intent))
        if self.scenario is not None:
            self.scenario.send(verb, message_id, due_ms, at=at, **more)
        return offset

    def run(self, now_ms: int, outcome: str = "delivered", in_ms: int = 0) -> None:
        self.now_ms = now_ms
        shard = self.own
        staged = shard.stage(
            [record for record in self.records if record.offset >= shard.state.pull_offset]
        )
        selection = shard.select(staged, now_ms, 100, 10**6)
        chosen = decided(selection, now_ms, outcome, in_ms)
        decisions = tuple(
            Decision(
                due_ms,
                offset,
                OUTCOMES[choice.outcome],
                0,
                choice.next_due_ms,
                choice.occurrence,
                choice.attempt,
            )
            for due_ms, offset, _ in selection.items
            if (choice := chosen[offset]).outcome != "delivered"
        )
        progress = WRITER.progress(staged, selection, decisions)
        self.refused = staged.letters.refused
        for (_, offset, _), entry in zip(selection.items, selection.entries, strict=True):
            if chosen[offset].outcome in ("delivered", "again"):
                self.deliveries.append((entry, now_ms))
        self._apply(shard, self.store, staged, selection, progress)
        self._follow(progress)
        if self.scenario is not None:
            self.scenario.run(now_ms, (outcome, in_ms))
            assert self.scenario.refused() == self.refused

    def restart(self) -> None:
        self.own = opened(self.store)

    def _follow(self, progress: Progress) -> None:
        """The replica applies a step; it then has the rows of the master."""
        shard = self.replica
        records = [
            r for r in self.records if shard.state.pull_offset <= r.offset < progress.pull_offset
        ]
        staged = shard.replay_stage(records, progress)
        selection = shard.replay_select(staged, (progress.cursor_due_ms, progress.cursor_offset))
        self._apply(shard, self.replica_store, staged, selection, progress)
        assert self.replica_store.rows == self.store.rows

    @staticmethod
    def _apply(
        shard: Shard, store: Rows, staged: Staged, selection: Selection, progress: Progress
    ) -> None:
        changes = shard.apply(
            staged,
            selection,
            progress,
            offset=shard.state.applied,
            timestamp_ms=progress.cursor_due_ms,
        )
        store.write(changes.puts, changes.deletes)
        shard.install(changes)


def copy_of(store: Rows, shard: Shard) -> tuple[Rows, Shard]:
    """A store and its shard as they are now, with the shard's wheel, lanes and counts."""
    rows = Rows(store.rows, store.chunk)
    same = (shard.rules, shard.state, shard._replay_rules)  # never changed, but replaced
    memo: dict[int, Any] = {id(each): each for each in same} | {id(store): rows}
    return rows, deepcopy(shard, memo)


class _Modelled(Scenario):
    def _decide(self, selection: Selection, step: Step) -> dict[int, ChosenOutcome]:
        return decided(selection, self.now_ms, *step.outcomes[0])


def decided(
    selection: Selection, now_ms: int, outcome: str, in_ms: int
) -> dict[int, ChosenOutcome]:
    """The outcomes of a step in which the target takes the messages, refuses them for now, or for
    good."""
    chosen = {}
    for (_, offset, _), entry in zip(selection.items, selection.entries, strict=True):
        rhythmic = entry.options is not None and entry.options.repetition is not None
        fate = fate_of(entry, offset, SHARD, now_ms) if rhythmic else None
        if isinstance(fate, Skips):
            choice = ChosenOutcome(
                outcome="skipped", next_due_ms=fate.next_ms, occurrence=fate.occurrence, attempt=1
            )
        elif isinstance(fate, Dead):
            choice = ChosenOutcome(outcome="expired", occurrence=entry.occurrence)
        elif outcome == "retry":
            choice = ChosenOutcome(
                outcome="retry",
                next_due_ms=now_ms + in_ms,
                occurrence=entry.occurrence,
                attempt=entry.attempt + 1,
            )
        elif fate is not None:
            goes_on = "again" if outcome == "delivered" else outcome
            choice = ChosenOutcome(
                outcome=goes_on, next_due_ms=fate.next_ms, occurrence=entry.occurrence + 1
            )
        else:
            choice = ChosenOutcome(outcome=outcome, occurrence=entry.occurrence)
        chosen[offset] = choice
    return chosen


INTERVAL = 100
OPERATIONS = (
    "select",
    "retry",
    "dead",
    "outage",
    "cancel",
    "replace",
    "reschedule",
    "fire-now",
    "restart",
)


class Course:
    """A series and the operations on it so far: each comes at a moment at which an occurrence may
    be due, in the step that selects it."""

    def __init__(
        self, message_id: bytes | None, policy: LatePolicy, *, against_model: bool
    ) -> None:
        self.rhythm = rhythm = Rhythm(against_model=against_model)
        self.repetition = series(f"every {INTERVAL}", late_policy=policy)
        self.first = START_MS + INTERVAL
        offset = rhythm.send(
            "schedule", message_id, self.first, START_MS, repetition=self.repetition
        )
        rhythm.run(START_MS)
        self.name = message_id or generated_id(SHARD, self.first, offset)
        self.live = True

    def copy(self) -> Course:
        made = copy(self)
        made.rhythm = self.rhythm.copy()
        return made

    def do(self, operation: str) -> None:
        rhythm = self.rhythm
        now_ms = rhythm.now_ms + (int(3.5 * INTERVAL) if operation == "outage" else INTERVAL)
        seen = len(rhythm.deliveries)
        acts = True
        if operation in ("cancel", "fire-now"):
            rhythm.send(operation, self.name, 0, now_ms)
        elif operation == "reschedule":
            rhythm.send(operation, self.name, now_ms + 70, now_ms)
        elif operation == "replace":
            rhythm.send(operation, self.name, now_ms + 30, now_ms, repetition=self.repetition)
        else:
            acts = False
        if operation == "restart":
            rhythm.restart()
        rhythm.run(now_ms, operation if operation in ("retry", "dead") else "delivered", 30)
        assert bool(rhythm.refused) == (acts and not self.live), (
            "an action misses a live series, or finds an ended one"
        )
        new = rhythm.deliveries[seen:]
        self.live = self.live and operation != "cancel"
        assert self.live or not new, "a cancelled series is delivered"
        if acts and self.live and operation in ("replace", "reschedule"):
            assert not new, "the occurrence that was moved or replaced is delivered all the same"
        if self.live and operation == "fire-now":
            assert len(new) == 1, "fire-now does not deliver at once"
        assert rhythm.pending == int(self.live), (
            "a live series has one pending occurrence, an ended one has none"
        )

    def end(self) -> None:
        """Two more occurrences, and what holds for all of them."""
        for _ in range(2 if self.live else 0):
            self.rhythm.run(self.rhythm.now_ms + INTERVAL)
        check_deliveries(self.rhythm, self.first, live=self.live)


def check_deliveries(rhythm: Rhythm, first: int, *, live: bool) -> None:
    tokens = [(entry.timestamp_ms, entry.occurrence) for entry, _ in rhythm.deliveries]
    assert len(tokens) == len(set(tokens)), "an occurrence is delivered twice"
    assert tokens == sorted(tokens), "occurrences are delivered out of order"
    for entry, now_ms in rhythm.deliveries:
        assert entry.due_ms <= now_ms, "an occurrence is delivered early"
        repetition = entry.options.repetition if entry.options else None
        assert repetition is not None
        began = first if entry.timestamp_ms == START_MS else entry.timestamp_ms + 30
        assert ((repetition.planned_ms or entry.due_ms) - began) % INTERVAL == 0, (
            "the series drifts"
        )
    last = rhythm.deliveries[-1][1] if rhythm.deliveries else 0
    assert not live or last == rhythm.now_ms, "a live series stands still"


def operations(message_id: bytes | None) -> list[str]:
    """Without an id there is nothing to replace."""
    return [name for name in OPERATIONS if message_id is not None or name != "replace"]


def is_wanted(orders: Sequence[str], policy: LatePolicy) -> bool:
    """The policies differ only after an outage."""
    return policy is FIRE_ONCE or "outage" in orders


@contextmanager
def naming(orders: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{', '.join(orders)}: {error}") from error


def check_all(depth: int, message_id: bytes | None, policy: LatePolicy, first: str) -> None:
    """All orders of `depth` operations that begin with `first`; those with a common beginning share
    it."""

    def check(before: Course, orders: tuple[str, ...]) -> None:
        if len(orders) == depth and not is_wanted(orders, policy):
            return
        with naming(orders):
            course = before.copy()
            course.do(orders[-1])
            if len(orders) == depth:
                course.end()
        if len(orders) < depth:
            for operation in operations(message_id):
                check(course, (*orders, operation))

    check(Course(message_id, policy, against_model=False), (first,))


def check_all_with_model(
    depth: int, message_id: bytes | None, policy: LatePolicy, first: str
) -> None:
    """The same orders, each from its beginning."""
    for rest in product(operations(message_id), repeat=depth - 1):
        orders = (first, *rest)
        if not is_wanted(orders, policy):
            continue
        with naming(orders):
            course = Course(message_id, policy, against_model=True)
            for operation in orders:
                course.do(operation)
            course.end()


CASES = list(product((None, b"a"), LatePolicy))


@pytest.mark.parametrize("length", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("message_id", "policy"), CASES)
def test_actions_act_on_a_series_at_any_moment(
    message_id: bytes | None, policy: LatePolicy, length: int
) -> None:
    """All orders of selection, retry, dead letter, outage, cancel, replacement, reschedule,
    fire-now and restart."""
    for first in operations(message_id):
        check_all(length, message_id, policy, first)


@pytest.mark.parametrize("length", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("message_id", "policy"), CASES)
def test_the_model_agrees_with_a_series_in_all_short_orders_of_actions(
    message_id: bytes | None, policy: LatePolicy, length: int
) -> None:
    """Every byte of the store."""
    for first in operations(message_id):
        check_all_with_model(length, message_id, policy, first)


@pytest.mark.campaign
@pytest.mark.parametrize(("message_id", "policy"), CASES)
def test_longer_orders_of_actions(message_id: bytes | None, policy: LatePolicy) -> None:
    """The same, with five actions, and with four against the model: some 80 times the orders."""
    for first in operations(message_id):
        check_all(5, message_id, policy, first)
        check_all_with_model(4, message_id, policy, first)


def test_a_step_checks_a_bounded_number_of_cron_expressions() -> None:
    """The rest of the records comes in the next step; plain messages are not bounded, and a replica
    takes what was recorded."""
    rules = Rules(shard=0, shards=1, next_cron=next_cron)
    store = MemoryStore()
    shard = Shard(rules=rules, state=FRESH, view=store)
    cron = [
        Record(
            at,
            T,
            b"cron-%d" % at,
            b"",
            [
                (TARGET_TOPIC, b"t"),
                (REPEAT, f"cron {at % 60} 0 */31 {at % 12 + 1} 1#5,2#5".encode()),
            ],
        )
        for at in range(1_000)
    ]
    plain = [
        Record(at, T, b"plain-%d" % at, b"", [(TARGET_TOPIC, b"t"), (DELAY, b"1h")])
        for at in range(1_000, 5_000)
    ]
    assert len(shard.parse(plain).records) == 4_000
    found = shard.parse(cron + plain)
    assert CRON_CHECKS_MAX <= len(found.records) < CRON_CHECKS_MAX + PARSED_AT_ONCE
    assert all(
        type(command) is Rejection and "never fires" in command.detail for command in found.commands
    )
    staged = shard.stage(cron + plain)
    assert staged.pull_offset == len(found.records)
    ahead: LookAhead[object] = LookAhead(shard)
    ahead.parse(cron)
    parsed = ahead.parsed(cron + plain)
    assert list(parsed.records) == (cron + plain)[: len(parsed.commands)]
    assert len(parsed.commands) < 2 * (CRON_CHECKS_MAX + PARSED_AT_ONCE)
    replaying = Shard(rules=rules.for_replay(), state=FRESH, view=store)
    assert len(replaying.parse(cron + plain).records) == 5_000


def test_a_step_computes_times_of_a_bounded_number_of_cron_expressions_and_backoffs() -> None:
    """Series with the same one count once."""

    def entry(text: str) -> Entry:
        return Entry(
            b"id",
            T,
            "t",
            None,
            {},
            b"",
            T,
            options=Options(repetition=parse_repetition(text)),
        )

    def within(entries: list[Entry]) -> int:
        items = [(T, at, b"") for at in range(len(entries))]
        return within_repetitions(selection_of(items, entries, (T, len(items)), complete=True))

    plain = Entry(b"id", T, "t", None, {}, b"", T)
    assert within([plain, entry("cron 0 9 * * *"), entry("backoff 1s 2 1h")] * 5_000) == 15_000
    crons = [entry(f"cron {at % 60} {at // 60} * * *") for at in range(REPETITIONS_MAX + 50)]
    assert within([plain] * 7 + crons) == 7 + REPETITIONS_MAX
    backoffs = [entry(f"backoff 1s 1.{at:03} 1h") for at in range(1, 101)]
    assert within(backoffs + crons) == REPETITIONS_MAX
    assert within([entry(f"every {at}s") for at in range(1, 301)]) == 300


def test_the_next_time_of_a_backoff_is_found_without_computing_each() -> None:
    """It is the one that is found by adding the intervals."""
    generator = random.Random(1)
    for _ in range(2_000):
        base_ms = generator.randrange(100, 10_000)
        factor = generator.choice((1_000, 1_001, 1_010, 1_500, 2_000, 10_000))
        values = (base_ms, factor, base_ms * generator.choice((1, 3, 1_000)))
        occurrence, planned_ms = generator.randrange(1, 40), T
        after_ms = planned_ms + generator.choice((-5, 0, 1, base_ms, base_ms * 50, base_ms * 500))
        next_ms, at = planned_ms + backoff_ms(values, occurrence), occurrence
        while next_ms <= after_ms:
            at += 1
            next_ms += backoff_ms(values, at)
        found = Repetition(Repeat.BACKOFF, values)
        assert following_after(found, planned_ms, occurrence, after_ms, next_cron) == next_ms
