"""New zone data between two masters: a daily series is delivered once a day, at the wall-clock time
of the newer data, whatever was planned, and replicas do as the master did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from chronos.core.cron import ZoneData
from chronos.core.keys import ENTRY, WALL_CLOCK, entry_key, entry_position
from chronos.core.message import Record
from chronos.core.series import keeps_wall_clock, repetition_of, spread_shift_ms
from chronos.core.shard.codec import unpack_entry
from chronos.core.shard.digest import digest
from chronos.core.shard.progress import REPLANS_MAX, Progress, unpack_progress
from chronos.core.timefmt import format_time, parse_time_ms
from chronos.ports import TopicSpec
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.master import HEARTBEAT_MS
from chronos.zones import zone_of
from tests.harness.memory import MemoryStore
from tests.harness.replicas import FOLLOW, Node, SharedShard, lead
from tests.harness.rows import rows_of

HOUR_MS = 3_600_000
ZONE = b"Europe/Berlin"


def shifted(version: str, hours: int) -> ZoneData:
    """Zone data in which every zone is ahead of UTC by so many hours."""
    return ZoneData(version, lambda name: timezone(timedelta(hours=hours)))


def with_gap(version: str, *, gap: bool) -> ZoneData:
    """The zone data of Berlin, with or without the change of its clocks on 2027-03-28."""
    return ZoneData(version, zone_of) if gap else shifted(version, 1)


OLD, WIDE, NARROW = shifted("2026e", 2), shifted("2026f", 3), shifted("2026f", 1)


class Days(SharedShard):
    """A shard whose masters have different zone data, one after the other."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.log.prepare([TopicSpec(name="t", partitions=1, settings={})], create=True)
        self.epoch = 0
        self.master: Node | None = None
        self.zone_data = OLD

    def lead_by(self, zone_data: ZoneData, *, store: MemoryStore | None = None) -> Node:
        """Have a new process with these zone data lead; it goes on with the store of the last one,
        or another."""
        if store is None:
            store = MemoryStore() if self.master is None else self.master.store
        self.epoch += 1
        self.master = Node(
            self, f"n{self.epoch}", lead(self.epoch), store=store, zone_data=zone_data
        )
        self.zone_data = zone_data
        self.master.until(ReplicaState.MASTER)
        return self.master

    def append(self, *records: tuple[bytes, dict[str, bytes]], value: bytes | None = b"v") -> None:
        self.log.append([(self.delay, key, value, headers, 0) for key, headers in records], 9.0)

    def at(self, text: str) -> None:
        """Let the time pass until then: a process with the same zone data takes over before each
        due time, instead of heartbeats all day."""
        until_ms = parse_time_ms(text)
        while self.clock.now < until_ms:
            assert self.master is not None
            wait_ms = max(1, self.master.step())
            next_ms = min(until_ms, self.next_due_ms())
            if next_ms > self.clock.now + HEARTBEAT_MS:
                self.clock.now = next_ms - 1_000
                self.lead_by(self.zone_data)
            else:
                self.clock.now = min(next_ms, self.clock.now + wait_ms)
        assert self.master is not None
        self.master.steps(5)

    def next_due_ms(self) -> int:
        """The time of the first pending message after now, as the store has it."""
        found = [entry_position(key)[0] for key, _ in pending(self)]
        return min((due_ms for due_ms in found if due_ms > self.clock.now), default=10**15)

    def skip_to(self, text: str) -> None:
        """Let the time pass without a master."""
        self.clock.now = parse_time_ms(text)

    @property
    def delivered(self) -> list[str]:
        """The due times of what was delivered, and the delivery time where it was later."""
        found = []
        for record in records_of(self, "t"):
            due_ms = int(dict(record.headers or ())["chronos-due-at"] or b"")
            late = record.timestamp_ms - due_ms > 1_000
            found.append(
                format_time(due_ms)[5:16] + (f" at {clock(record.timestamp_ms)}" if late else "")
            )
        return found

    @property
    def steps(self) -> list[Progress]:
        return [unpack_progress(record.value, 1) for record in records_of(self, self.progress)]


def clock(time_ms: int) -> str:
    return format_time(time_ms)[11:16]


def records_of(case: SharedShard, topic: str) -> list[Record]:
    reader = case.log.reader(topic, 0, 0)
    found: list[Record] = []
    while part := reader.read(1_000, 10_000_000):
        found += part
    reader.close()
    return found


def daily(expression: bytes = b"57 28 22 * * *", **more: bytes) -> dict[str, bytes]:
    return {
        "chronos-target-topic": b"t",
        "chronos-repeat": b"cron " + expression,
        "chronos-time-zone": ZONE,
        **{f"chronos-{name.replace('_', '-')}": value for name, value in more.items()},
    }


def index_of(store: MemoryStore) -> list[tuple[int, int]]:
    rows = rows_of(store, WALL_CLOCK, bytes([WALL_CLOCK[0] + 1]))
    return [entry_position(key) for key, _ in rows]


def check(node: Node) -> None:
    """The index names exactly the pending occurrences that keep a wall-clock time."""
    cursor = node.replica.state.cursor
    rows = rows_of(node.store, ENTRY, bytes([ENTRY[0] + 1]))
    expected = [
        entry_position(key)
        for key, data in rows
        if entry_position(key) > cursor and keeps_wall_clock(unpack_entry(data))
    ]
    assert index_of(node.store) == expected


@pytest.fixture
def days(tmp_path: Path) -> Iterator[Days]:
    case = Days(tmp_path)
    yield case
    if case.master is not None:
        check(case.master)
        follower = Node(case, "follower", FOLLOW)
        while follower.replica.state != case.master.replica.state:
            before = follower.replica.state
            follower.steps(30)
            assert follower.replica.state != before
        assert follower.replica.state == case.master.replica.state
        assert digest(follower.store) == digest(case.master.store)
    case.log.close()


def begin(days: Days, zone_data: ZoneData, *series: tuple[bytes, dict[str, bytes]]) -> None:
    """A master plans series on 2027-01-15 at 08:00."""
    days.lead_by(zone_data)
    days.append(*series)
    days.at("2027-01-15T08:00:05Z")


@pytest.mark.parametrize(
    ("newer", "restart", "again", "expected"),
    [
        # 22:28:57 is at 20:28:57Z by the old data, at 21:28:57Z by the narrow ones, and at
        # 19:28:57Z by the wide ones.
        (NARROW, "15T12:00:00Z", "15T12:00:01Z", ["01-15T21:28", "01-16T21:28", "01-17T21:28"]),
        (NARROW, "15T20:00:00Z", "15T20:59:00Z", ["01-15T21:28", "01-16T21:28", "01-17T21:28"]),
        (NARROW, "15T20:29:30Z", "15T20:30:00Z", ["01-15T20:28", "01-16T21:28", "01-17T21:28"]),
        (WIDE, "15T12:00:00Z", "15T12:00:01Z", ["01-15T19:28", "01-16T19:28", "01-17T19:28"]),
        (WIDE, "15T19:20:00Z", "15T20:00:00Z", ["01-15T19:28 at 20:00", "01-16T19:28", (
            "01-17T19:28"
        )]),
        (WIDE, "15T20:29:30Z", "15T20:30:00Z", ["01-15T20:28", "01-16T19:28", "01-17T19:28"]),
    ],
)  # fmt: skip
def test_a_daily_series_is_delivered_once_a_day_at_the_newer_wall_clock_time(
    days: Days, newer: ZoneData, restart: str, again: str, expected: list[str]
) -> None:
    begin(days, OLD, (b"s", daily()))
    days.at(f"2027-01-{restart}")
    days.skip_to(f"2027-01-{again}")
    days.lead_by(newer)
    days.at("2027-01-18T00:00:00Z")
    assert days.delivered == expected


@pytest.mark.parametrize("newer", [shifted("2026e", 1), shifted("2026d", 1)])
def test_equal_and_older_zone_data_move_nothing_that_is_planned(
    days: Days, newer: ZoneData
) -> None:
    """They compute what comes next; and the newer data come through that again."""
    begin(days, OLD, (b"s", daily()))
    days.lead_by(newer)
    days.at("2027-01-15T23:00:00Z")
    assert days.delivered == ["01-15T20:28"]
    assert not any(step.replans for step in days.steps)
    days.at("2027-01-16T20:00:00Z")
    days.lead_by(OLD)
    days.at("2027-01-17T12:00:00Z")
    is_older = newer.version < OLD.version
    assert days.delivered[1:] == ["01-16T20:28" if is_older else "01-16T21:28"]
    assert days.master is not None
    state = days.master.replica.state
    assert state.zone_data == state.newest_zone_data == OLD.version


def test_times_that_were_given_or_moved_and_series_in_real_time_keep_their_instants(
    days: Days,
) -> None:
    begin(
        days,
        OLD,
        (b"given", daily(deliver_at=b"2027-01-15T20:28:57Z")),
        (b"moved", daily()),
        (b"real", daily(b"0 45 * * * *", deliver_at=b"2027-01-15T20:28:58Z")),
        (b"every", {**daily(), "chronos-repeat": b"every 1d", "chronos-delay": b"13h"}),
    )
    del_zone = {"chronos-action": b"reschedule", "chronos-deliver-at": b"2027-01-15T20:29:00Z"}
    days.append((b"moved", del_zone), value=None)
    days.at("2027-01-15T12:00:00Z")
    before = sorted(unpack_entry(data).due_ms for _, data in pending(days))
    node = days.lead_by(NARROW)
    days.at("2027-01-15T12:10:00Z")
    assert sorted(unpack_entry(data).due_ms for _, data in pending(days)) == before
    assert index_of(node.store) == []
    days.at("2027-01-15T20:30:00Z")
    days.append((b"real", {}), (b"every", {}), value=None)
    days.at("2027-01-17T00:00:00Z")
    assert days.delivered == [
        "01-15T20:28",
        "01-15T20:28",
        "01-15T20:29",
        # The time given has the wall-clock time 21:28:57 by the newer data, that of the moved one
        # in the rhythm is 22:28:57.
        "01-15T21:28",
        "01-16T21:28",
        "01-16T21:28",
    ]


def pending(days: Days) -> list[tuple[bytes, bytes]]:
    assert days.master is not None
    due_ms, offset = days.master.replica.state.cursor
    start = entry_key(due_ms, offset + 1) if offset < 2**64 - 1 else entry_key(due_ms + 1, 0)
    return rows_of(days.master.store, start, bytes([ENTRY[0] + 1]))


def test_expiry_and_spread_go_with_an_occurrence_that_moves(days: Days) -> None:
    begin(
        days,
        OLD,
        (
            b"s",
            daily(
                b"57 28 22 * * *",
                deliver_at=b"2027-01-15T08:00:01Z",
                expire_at=b"2027-01-15T08:10:01Z",
                spread=b"1m",
            ),
        ),
    )
    days.at("2027-01-15T08:02:00Z")
    ((_, before),) = pending(days)
    days.lead_by(NARROW)
    days.at("2027-01-15T08:03:00Z")
    ((key, after),) = pending(days)
    old, new = unpack_entry(before), unpack_entry(after)
    assert new.due_ms - old.due_ms == HOUR_MS
    assert (new.expire_at_ms or 0) - new.due_ms == (old.expire_at_ms or 0) - old.due_ms == 600_000
    assert 0 <= entry_position(key)[0] - new.due_ms < 60_000


def test_an_occurrence_that_would_come_after_the_end_of_its_series_keeps_its_instant(
    days: Days,
) -> None:
    begin(days, OLD, (b"s", daily(repeat_until=b"2027-01-15T21:00:00Z")))
    days.lead_by(NARROW)
    days.at("2027-01-17T00:00:00Z")
    assert days.delivered == ["01-15T20:28"]


def test_a_time_that_was_the_end_of_a_gap_is_the_one_that_is_named_where_there_is_none(
    days: Days,
) -> None:
    """Berlin has no 02:30 on 2027-03-28."""
    days.skip_to("2027-03-27T12:00:00Z")
    days.lead_by(with_gap("2026e", gap=True))
    days.append((b"s", daily(b"30 2 * * *")))
    days.at("2027-03-27T12:01:00Z")
    days.lead_by(with_gap("2026f", gap=False))
    days.at("2027-03-29T12:00:00Z")
    assert days.delivered == ["03-28T01:30", "03-29T01:30"]


def test_the_way_through_many_series_is_in_bounded_steps_and_nothing_due_waits_for_it(
    days: Days,
) -> None:
    many = 2 * REPLANS_MAX + 500
    begin(days, OLD)
    for first in range(0, many, 500):
        days.append(*((b"%d" % each, daily()) for each in range(first, first + 500)))
        days.at(format_time(days.clock.now + 1_000))
    assert days.master is not None
    assert len(index_of(days.master.store)) == many
    days.append((b"due", {"chronos-target-topic": b"t", "chronos-delay": b"0ms"}))
    node = days.lead_by(NARROW)
    before = len(days.steps)
    node.step()
    assert len(days.delivered) == 1
    node.steps(6)
    made = days.steps[before:]
    assert [len(step.replans) for step in made if step.replans] == [REPLANS_MAX, REPLANS_MAX, 500]
    assert [step.zone_data for step in made if step.zone_data] == [NARROW.version]
    assert node.replica.state.zone_data == NARROW.version
    assert {due_ms for due_ms, _ in index_of(node.store)} == {parse_time_ms("2027-01-15T21:28:57Z")}


@pytest.mark.parametrize("kills", [(0,), (1,), (2,), (1, 1), (1, 2, 1)])
def test_a_way_that_kills_interrupt_begins_again(days: Days, kills: tuple[int, ...]) -> None:
    """Between the kills a follower becomes master, or a node with the older data."""
    many = REPLANS_MAX + 100
    begin(days, OLD)
    for first in range(0, many, 100):
        days.append(*((b"%d" % each, daily()) for each in range(first, first + 100)))
        days.at(format_time(days.clock.now + 1_000))
    for at, steps in enumerate(kills):
        days.lead_by(NARROW if at != 1 else OLD, store=MemoryStore() if at == 2 else None)
        assert days.master is not None
        days.master.steps(steps)
    days.lead_by(NARROW)
    days.at("2027-01-15T08:30:00Z")
    assert days.master is not None
    assert days.master.replica.state.zone_data == NARROW.version
    assert sum(len(step.replans) for step in days.steps) == many
    days.at("2027-01-16T21:00:00Z")
    assert days.delivered == ["01-15T21:28"] * many


def test_records_in_the_step_of_the_way_win(days: Days) -> None:
    begin(days, OLD, (b"a", daily()), (b"b", daily()), (b"c", daily()), (b"d", daily()))
    days.lead_by(NARROW)
    days.append((b"b", {}), value=None)
    days.append((b"c", daily(b"0 0 23 * * *", on_conflict=b"replace")))
    days.append((b"d", {"chronos-action": b"fire-now"}), value=None)
    days.at("2027-01-16T00:00:00Z")
    assert days.delivered == ["01-15T08:00", "01-15T21:28", "01-15T22:00"]


def test_each_time_has_the_offset_of_its_zone_beside_it() -> None:
    berlin = ZoneData("x", zone_of)
    summer, winter = (
        int(datetime(2027, month, 1, 9, tzinfo=UTC).timestamp() * 1_000) for month in (7, 1)
    )
    assert berlin.offset_s("0 9 * * *", "Europe/Berlin", summer) == 7_200
    assert berlin.offset_s("0 9 * * *", "Europe/Berlin", winter) == 3_600
    assert berlin.offset_s("0 * * * *", "Europe/Berlin", winter) is None


def test_a_time_that_an_upsert_kept_has_no_wall_clock(days: Days) -> None:
    """The time is that of the message before, not one of the new expression."""
    plain = {name: value for name, value in daily().items() if name != "chronos-time-zone"}
    first = {"chronos-repeat": b"every 1d", "chronos-deliver-at": b"2027-01-15T10:17:03Z"}
    begin(days, OLD, (b"s", plain | first))
    days.append((b"s", daily(b"0 9 * * *", on_conflict=b"upsert")))
    days.at("2027-01-15T08:01:00Z")
    days.lead_by(shifted("2026g", 2))
    days.at("2027-01-17T00:00:00Z")
    assert days.delivered == ["01-15T10:17", "01-16T07:00"]


def test_an_upsert_that_goes_behind_the_walk_is_planned_again(days: Days) -> None:
    """The spread of the new record places the occurrence before the position that was reached."""
    hour_ms = 3_600_000
    begin(
        days,
        OLD,
        (b"p0", daily(b"0 5 22 * * *", spread=b"1h")),
        *((b"a%d" % at, daily(b"0 %d 22 * * *" % (5 + 5 * at))) for at in range(11)),
    )
    days.at("2027-01-15T09:05:00Z")
    days.lead_by(NARROW)
    shift_ms = spread_shift_ms(0, 0, hour_ms)
    earlier = next(
        at for at in range(12, 60) if spread_shift_ms(0, at, hour_ms) < shift_ms - 300_000
    )
    for at in range(12, earlier):
        days.append((b"x%d" % at, {}), value=None)
    days.append((b"p0", daily(b"0 5 22 * * *", spread=b"1h", on_conflict=b"upsert")), value=b"new")
    assert days.master is not None
    days.master.steps(6)
    assert days.master.replica.state.zone_data == NARROW.version
    repetitions = [repetition_of(unpack_entry(data)) for _, data in pending(days)]
    assert {each.offset_s for each in repetitions if each is not None} == {3_600}


def test_an_occurrence_that_was_fired_when_it_was_due_stays(days: Days) -> None:
    begin(days, OLD, (b"s", daily()))
    days.at("2027-01-15T20:20:00Z")
    days.skip_to("2027-01-15T20:29:10Z")
    days.append((b"s", {"chronos-action": b"fire-now"}), value=None)
    days.skip_to("2027-01-15T20:30:00Z")
    days.lead_by(NARROW)
    days.at("2027-01-15T20:40:00Z")
    assert len(days.delivered) == 1
