"""Lanes: how due messages and open lanes share a step, which lanes are open, and which messages
wait in them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chronos.core.keys import (
    UNCREATED,
    WHOLE_TOPIC,
    Lane,
    entry_key,
    lane_key,
    lane_state_key,
    pack_lane,
    parked_key,
    partition_of,
)
from chronos.core.message import Entry
from chronos.core.shard.codec import FRESH, LaneState, pack_entry, pack_lane_state
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, Staged
from chronos.ports import TopicInfo
from chronos.workers.step import lanes
from chronos.workers.step.lanes import LaneTurns, Openings, SelectionBounds, is_open, lane_for
from chronos.workers.step.targets import NOT_YET, Target
from tests.harness.memory import MemoryStore
from tests.harness.table import table

NOW_MS = 1_000
KEY = b"k"
OWN = partition_of(KEY, 3)
"""The partition of KEY in a topic with three."""

ORDERS = TopicInfo(id="1", partitions=3, leaderless=frozenset(), bytes_max=1_000)


class Queues:
    """A shard with due messages and lanes, each message named by its offset; steps that commit or
    fail."""

    def __init__(
        self,
        due: int,
        parked_in: dict[Lane, int],
        *,
        failed: tuple[int, ...] = (),
        messages: int = 8,
    ) -> None:
        """`due`, `parked_in`: numbers of messages; those with an offset in `failed` failed
        before."""
        rows: dict[bytes, bytes] = {}
        offset = 0
        for lane, length in parked_in.items():
            rows[lane_state_key(lane)] = pack_lane_state(LaneState(length, 0, 0))
            for _ in range(length):
                rows[lane_key(lane, 5, offset)] = self._packed(offset, failed)
                rows[parked_key(5, offset)] = pack_lane(lane)
                offset += 1
        parked = offset
        for _ in range(due):
            rows[entry_key(20, offset)] = self._packed(offset, failed)
            offset += 1
        store = MemoryStore()
        store.write(list(rows.items()), [])
        state = replace(FRESH, cursor_due_ms=10, pending=offset, parked=parked)
        self.shard = Shard(rules=Rules(shard=0, shards=1), state=state, view=store)
        self.opened = set(parked_in)
        self.turns = LaneTurns(
            self.shard, lambda asked, _: Openings(lanes=frozenset(asked.keys() & self.opened))
        )
        self.messages = messages

    @staticmethod
    def _packed(offset: int, failed: tuple[int, ...]) -> bytes:
        attempt = 2 if offset in failed else 1
        return pack_entry(Entry(b"%d" % offset, 5, "t", None, {}, None, 1, attempt=attempt))

    def step(self, *, alone: bool = False, fails: bool = False, apart: bool = False) -> list[int]:
        """The offsets that one step selects. Nothing is applied: the next step finds the same
        queues."""
        self.turns.look(NOW_MS)

        def select_due(messages_max: int, bytes_max: int) -> Selection:
            staged = Staged(pull_offset=0, watermark_ms=0)
            selection = self.shard.select(staged, NOW_MS, messages_max, bytes_max)
            tried = next(
                (at for at, entry in enumerate(selection.entries) if entry.attempt > 1), None
            )
            return (
                selection
                if tried is None
                else self.shard.select(staged, NOW_MS, max(1, tried), bytes_max)
            )

        batch = SelectionBounds(messages=self.messages, bytes=10**6, is_search=alone, now_ms=NOW_MS)
        staged = Staged(pull_offset=0, watermark_ms=0)
        if apart:
            self.selection = self.turns.select(staged, batch, select_due, lambda due: True)
        else:
            self.selection = self.turns.select(staged, batch, select_due)
        if not fails:
            self.turns.committed({})
        return [offset for _, offset, _ in self.selection.items]


def test_due_messages_and_lanes_share_a_batch_and_lanes_come_first_in_it():
    """Half of it at least for due messages; a lane that is short leaves its share to the next."""
    queues = Queues(100, {("a", 0): 1, ("b", 0): 100})
    assert queues.step() == [0, 1, 2, 3, 101, 102, 103, 104]
    assert [leaving.is_all for leaving in queues.selection.leaving] == [True, False]
    assert not queues.selection.complete
    assert len(Queues(1, {("a", 0): 100}).step()) == 8
    assert len(Queues(100, {("a", 0): 1}).step()) == 5


def test_a_closed_lane_is_left_alone_and_everything_else_is_complete():
    queues = Queues(3, {("a", 0): 2, ("b", 0): 2})
    queues.opened = {("b", 0)}
    assert queues.step() == [2, 3, 4, 5, 6]
    assert queues.selection.complete


def test_every_lane_of_many_has_its_turn(monkeypatch: pytest.MonkeyPatch):
    """A step takes from a bounded number of lanes, because the progress record names them."""
    monkeypatch.setattr(lanes, "LANES_MAX", 3)
    queues = Queues(0, {("t", number): 1 for number in range(10)}, messages=1_000)
    taken = [queues.step() for _ in range(11)]
    assert {len(offsets) for offsets in taken} == {3}
    assert {offset for offsets in taken for offset in offsets} == set(range(10))


def test_a_poison_record_is_looked_for_in_one_queue_which_keeps_its_turn_until_it_succeeds():
    queues = Queues(2, {("a", 0): 2, ("b", 0): 2})
    assert queues.step(alone=True, fails=True) == [0, 1]
    assert queues.step(alone=True, fails=True) == [0, 1]
    assert queues.step(alone=True) == [0, 1]
    assert queues.step(alone=True) == [2, 3]
    assert queues.step(alone=True) == [4, 5]
    assert queues.step(alone=True) == [0, 1]


def test_a_message_that_failed_before_is_selected_alone_in_the_turn_of_its_queue():
    """In a lane and among the due ones; no other queue waits for it for more than one step, nor it
    for ever."""
    queues = Queues(2, {("a", 0): 2, ("b", 0): 2}, failed=(0, 4))
    steps = [queues.step() for _ in range(6)]
    assert steps == [[0], [2, 3], [4], [0], [2, 3], [4]]
    assert Queues(0, {("a", 0): 2}, failed=(0,)).step() == [0]
    assert Queues(0, {("a", 0): 3}, failed=(1,)).step() == [0]


def test_due_messages_that_share_no_step_with_lanes_have_a_turn_of_their_own():
    queues = Queues(2, {("a", 0): 2, ("b", 0): 2})
    steps = [queues.step(apart=True) for _ in range(4)]
    assert steps == [[0, 1, 2, 3], [2, 3, 0, 1], [4, 5], [0, 1, 2, 3]]


def test_one_message_at_a_time_comes_from_each_queue_in_turn():
    queues = Queues(1, {("a", 0): 1, ("b", 0): 1}, messages=1)
    assert [queues.step() for _ in range(4)] == [[0], [1], [2], [0]]


@table(
    ("info", "partition", "opened"),
    [
        (ORDERS, 0, True),
        (replace(ORDERS, leaderless=frozenset({0})), 0, False),
        (replace(ORDERS, leaderless=frozenset({1, 2})), 0, True),
        (ORDERS, 7, True),
        (replace(ORDERS, leaderless=frozenset({0, 1})), WHOLE_TOPIC, True),
        (replace(ORDERS, leaderless=frozenset({0, 1, 2})), WHOLE_TOPIC, False),
        (replace(ORDERS, leaderless=frozenset({0}), writable=False), 0, True),
        (NOT_YET, UNCREATED, False),
        (NOT_YET, 0, False),
        (replace(ORDERS, leaderless=frozenset({0, 1, 2})), UNCREATED, True),
    ],
)
def test_a_lane_is_open_when_its_messages_need_not_wait_any_more(
    info: TopicInfo, partition: int, opened: bool
) -> None:
    """Also when their partition does not exist, or they can only be dead-lettered."""
    target = Target(info=info, described_ms=5_000, missing_since_ms=None)
    assert is_open(partition, target) is opened


def test_the_lanes_of_a_deleted_topic_open_after_the_second_description():
    assert not is_open(0, Target(info=None, described_ms=5_000, missing_since_ms=4_000))
    assert is_open(0, Target(info=None, described_ms=6_000, missing_since_ms=4_000))


@table(
    ("key", "leaderless", "occupied", "lane"),
    [
        (KEY, set(), set(), None),
        (KEY, {OWN}, set(), OWN),
        (KEY, {0, 1, 2} - {OWN}, set(), None),
        (KEY, set(), {OWN}, OWN),
        (KEY, set(), {WHOLE_TOPIC}, None),
        (KEY, set(), {UNCREATED}, UNCREATED),
        (None, {0, 1}, {0, 1}, None),
        (None, {0, 1, 2}, set(), WHOLE_TOPIC),
        (None, set(), {WHOLE_TOPIC}, WHOLE_TOPIC),
        (None, set(), {UNCREATED}, UNCREATED),
    ],
)
def test_a_message_waits_for_its_partition_and_behind_what_waits_there_already(
    key: bytes | None, leaderless: set[int], occupied: set[int], lane: int | None
) -> None:
    entry = Entry(None, 1, "t", key, {}, None, 1)
    info = replace(ORDERS, leaderless=frozenset(leaderless))
    assert lane_for(entry, info, {("t", partition) for partition in occupied}) == lane
    assert lane_for(entry, NOT_YET, set()) == UNCREATED
