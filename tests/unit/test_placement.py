"""The partition of an id, and the hop of a record that arrived in another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.keys import id_key, partition_of
from chronos.core.message import (
    Action,
    Command,
    ConditionalSchedule,
    Entry,
    Headers,
    IdOrder,
    Misplaced,
    Reason,
    Record,
    Rejection,
    Verb,
)
from chronos.core.shard.codec import DELIVERED, FRESH, IdState, pack_id_state
from chronos.core.shard.order import hop, partitions_of
from chronos.core.shard.parsing import parse
from chronos.core.shard.progress import Progress, count_outcomes
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import nothing_selected
from tests.harness.table import table
from tests.unit.model import Rows
from tests.unit.records import AT, GENERATED_ID, IN, NOW_MS, TO, WRITER, action

SHARD, SHARDS, TOPIC = 2, 4, "chronos.delay"
HERE = next(b"order-%d" % n for n in range(99) if partition_of(b"order-%d" % n, SHARDS) == SHARD)
THERE = next(b"order-%d" % n for n in range(99) if partition_of(b"order-%d" % n, SHARDS) == 1)
FORWARD = Rules(shard=SHARD, shards=SHARDS, misplaced="forward", delay_topic=TOPIC)
REJECT = Rules(shard=SHARD, shards=SHARDS, misplaced="reject", delay_topic=TOPIC)
HOP = ("chronos-forwarded", b"chronos.delay/1/7;%d" % (NOW_MS - 40))


def staged(
    *headers: tuple[str, bytes | None], key: bytes | None, rules: Rules = FORWARD
) -> Command:
    """The command of one record in the shard."""
    shard = Shard(rules=rules, state=FRESH, view=Rows())
    return shard.parse([Record(42, NOW_MS, key, b"v", list(headers))]).commands[0]


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 64))
def test_many_keys_have_the_partitions_that_each_has_alone(
    keys: list[bytes], partitions: int
) -> None:
    assert partitions_of(keys, partitions) == [partition_of(key, partitions) for key in keys]


@table("length", [1, 2, 3, 4, 5, 8, 21, 36, 1024])
def test_keys_of_one_length_are_hashed_together_to_the_same_partitions(length: int) -> None:
    keys = [bytes((at * 31 + place * 7) % 256 for place in range(length)) for at in range(100)]
    assert partitions_of(keys, 7) == [partition_of(key, 7) for key in keys]


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (THERE, [AT, TO]),
        (THERE, [AT, TO, action("replace")]),
        (THERE, [action("cancel")]),
        (None, [action("fire-now"), ("chronos-id", THERE)]),
        (THERE, [action("settled")]),
        (None, [action("cancel"), ("chronos-id", b"1-1700000001000-41")]),
        (b"1-1700000001000-41", [action("reschedule"), AT]),
    ],
    ids=str,
)
def test_a_record_of_another_shard_is_forwarded_once_or_rejected(
    key: bytes | None, headers: Headers
) -> None:
    """Once: a record that has a hop is rejected."""
    command = staged(*headers, key=key)
    assert isinstance(command, Misplaced)
    assert (command.reason, command.partition) == (Reason.FORWARDED, 1)
    for again in (staged(*headers, key=key, rules=REJECT), staged(*headers, HOP, key=key)):
        assert type(again) is Rejection
        assert again.reason is Reason.WRONG_SHARD


@pytest.mark.parametrize("rules", [FORWARD, REJECT], ids=["forward", "reject"])
def test_a_record_in_its_own_shard_and_one_without_an_id_are_executed_there(rules: Rules) -> None:
    """A generated id contains its shard, regardless of its hash."""
    assert isinstance(staged(AT, TO, key=HERE, rules=rules), Entry)
    assert isinstance(staged(AT, TO, key=None, rules=rules), Entry)
    assert staged(action("cancel"), key=GENERATED_ID, rules=rules) == Action(
        Verb.CANCEL, GENERATED_ID
    )
    assert staged(action("probe"), key=None, rules=rules) == Action(Verb.PROBE, b"")


def test_an_invalid_record_of_another_shard_is_rejected_where_it_came_to() -> None:
    command = staged(AT, key=THERE)
    assert type(command) is Rejection
    assert command.reason is Reason.NO_TARGET


def test_a_forwarded_record_is_understood_as_at_its_first_timestamp() -> None:
    """A delay counts from then; the hop is in none of the headers that are passed on."""
    entry = staged(IN, TO, ("trace", b"1"), HOP, key=HERE)
    assert isinstance(entry, Entry)
    assert (entry.timestamp_ms, entry.due_ms) == (NOW_MS - 40, NOW_MS - 40 + 90_000)
    assert entry.headers == {"trace": b"1"}
    replaced = staged(IN, TO, action("replace"), HOP, key=HERE)
    assert isinstance(replaced, ConditionalSchedule)
    assert replaced.entry.timestamp_ms == NOW_MS - 40
    assert staged(action("cancel"), HOP, key=HERE) == Action(Verb.CANCEL, HERE, None, NOW_MS - 40)
    moved = staged(action("reschedule"), IN, HOP, key=HERE)
    assert moved == Action(Verb.RESCHEDULE, HERE, NOW_MS - 40 + 90_000, NOW_MS - 40)


@pytest.mark.parametrize(
    "value",
    [
        b"chronos.delay/2/7;1700000000000",
        b"chronos.delay/4/7;1699999999999",
        b"other/1/7;1699999999999",
        b"chronos.delay/1/7",
        b"chronos.delay/1/7;-1",
        b"chronos.delay/01/7;1",
        b"",
        None,
    ],
)
def test_a_hop_that_cannot_be_true_is_not_believed(value: bytes | None) -> None:
    """It names its own or no partition, another topic, or no time."""
    command = staged(AT, TO, ("chronos-forwarded", value), key=HERE)
    assert isinstance(command, Rejection)
    assert command.reason is Reason.BAD_VALUE
    assert "chronos-forwarded" in command.detail


def test_a_hop_that_is_given_twice_is_refused() -> None:
    command = staged(AT, TO, HOP, HOP, key=HERE)
    assert isinstance(command, Rejection)
    assert command.reason is Reason.REPEATED_HEADER


@given(st.integers(0, 2**63 - 1), st.integers(NOW_MS - 10**9, NOW_MS))
def test_a_hop_is_read_back_by_the_shard_it_goes_to(offset: int, first_ms: int) -> None:
    written = hop(b"%b/1/" % TOPIC.encode(), Record(offset, first_ms, HERE, b"v", []))
    command = parse(
        Record(0, NOW_MS, HERE, b"v", [AT, TO, ("chronos-forwarded", written)]), FORWARD
    )
    assert isinstance(command, Entry)
    assert command.timestamp_ms == first_ms


CANCEL, MESSAGE, MOVE = (
    [action("cancel")],
    [AT, TO, ("chronos-on-conflict", b"replace")],
    [action("reschedule"), AT],
)
REPLACE = [AT, TO, action("replace")]
UNKNOWN, TOO_LATE, IGNORED = Reason.UNKNOWN, Reason.TOO_LATE, Reason.IGNORED


@table(
    ("sent", "refused"),
    [
        # Within 0.5 s, in two partitions: the cancel wins in any order of arrival.
        pytest.param(
            [(SHARD, 0, CANCEL), (1, 0, MESSAGE)], {0: UNKNOWN, 1: TOO_LATE}, id="cancel, message"
        ),
        pytest.param(
            [(3, 0, CANCEL), (1, 0, MESSAGE)], {0: UNKNOWN, 1: TOO_LATE}, id="both forwarded"
        ),
        pytest.param(
            [(1, 0, CANCEL), (SHARD, 0, MESSAGE)],
            {0: UNKNOWN, 1: TOO_LATE},
            id="the message came directly",
        ),
        pytest.param(
            [(1, 0, CANCEL), (SHARD, 500, MESSAGE)],
            {0: UNKNOWN, 1: TOO_LATE},
            id="the message 0.5 s later",
        ),
        pytest.param(
            [(1, 0, CANCEL), (SHARD, 501, MESSAGE)], {0: UNKNOWN}, id="the message later than that"
        ),
        pytest.param(
            [(SHARD, 900, CANCEL), (1, 0, MESSAGE)],
            {0: UNKNOWN, 1: TOO_LATE},
            id="a cancel that overtakes",
        ),
        pytest.param([(1, 0, MESSAGE), (SHARD, 0, CANCEL)], {}, id="message, cancel"),
        pytest.param([(SHARD, 0, MESSAGE), (1, 0, CANCEL)], {}, id="forwarded cancel"),
        pytest.param(
            [(SHARD, 500, MESSAGE), (1, 0, CANCEL)], {}, id="a cancel 0.5 s earlier arrives later"
        ),
        pytest.param(
            [(SHARD, 501, MESSAGE), (1, 0, CANCEL)], {1: TOO_LATE}, id="a cancel earlier than that"
        ),
        pytest.param(
            [(SHARD, 0, CANCEL), (1, 0, REPLACE)], {0: UNKNOWN, 1: TOO_LATE}, id="replace"
        ),
        # One partition keeps its order.
        pytest.param(
            [(1, 0, CANCEL), (1, 0, MESSAGE)], {0: UNKNOWN}, id="the order of another partition"
        ),
        pytest.param(
            [(SHARD, 0, CANCEL), (SHARD, 0, MESSAGE)],
            {0: UNKNOWN},
            id="the order of the own partition",
        ),
        pytest.param(
            [(1, 900, CANCEL), (1, 0, MESSAGE)],
            {0: UNKNOWN},
            id="one partition whose clock was set back",
        ),
        pytest.param(
            [(1, 900, MESSAGE), (1, 0, CANCEL)], {}, id="a cancel after its clock was set back"
        ),
        pytest.param(
            [(1, 900, MESSAGE), (1, 0, MESSAGE)], {}, id="a message after its clock was set back"
        ),
        # The two cancels that are remembered.
        pytest.param(
            [(1, 0, CANCEL), (3, 0, CANCEL), (1, 0, MESSAGE)],
            {0: UNKNOWN, 1: UNKNOWN, 2: TOO_LATE},
            id="one of two cancels",
        ),
        pytest.param(
            [(1, 0, CANCEL), (3, 200, CANCEL), (3, 300, MESSAGE)],
            {0: UNKNOWN, 1: UNKNOWN, 2: TOO_LATE},
            id="the older of two cancels",
        ),
        pytest.param(
            [(3, 200, CANCEL), (1, 0, CANCEL), (3, 100, CANCEL), (3, 300, MESSAGE)],
            {0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN, 3: TOO_LATE},
            id="the older of two partitions, noted between two of the other",
        ),
        pytest.param(
            [(1, 0, CANCEL), (3, 600, CANCEL), (3, 700, MESSAGE)],
            {0: UNKNOWN, 1: UNKNOWN},
            id="the other cancel is too old",
        ),
        pytest.param(
            [(SHARD, 0, MESSAGE), (1, 0, CANCEL), (3, 0, CANCEL), (1, 0, MESSAGE)],
            {2: IGNORED, 3: TOO_LATE},
            id="a second cancel of a cancelled message",
        ),
        pytest.param(
            [(SHARD, 0, MESSAGE), (SHARD, 0, CANCEL), (1, 0, MESSAGE)],
            {2: TOO_LATE},
            id="sent again elsewhere",
        ),
        pytest.param(
            [(SHARD, 0, MESSAGE), (1, 0, CANCEL), (1, 0, MESSAGE)],
            {},
            id="sent again by the same producer",
        ),
        pytest.param(
            [(1, 0, CANCEL), (1, 100, MESSAGE), (3, 200, REPLACE)],
            {0: UNKNOWN, 2: TOO_LATE},
            id="a cancel is remembered with the message that followed it",
        ),
        # Two messages: the arrival decides, unless one is too old.
        pytest.param([(3, 400, MESSAGE), (1, 0, MESSAGE)], {}, id="two messages within 0.5 s"),
        pytest.param(
            [(3, 501, MESSAGE), (1, 0, MESSAGE)], {1: TOO_LATE}, id="a message that is too old"
        ),
        # Other actions.
        pytest.param([(SHARD, 0, CANCEL), (1, 0, MOVE)], {0: UNKNOWN, 1: UNKNOWN}, id="reschedule"),
        pytest.param([(3, 0, MESSAGE), (1, 0, MESSAGE), (1, 0, MOVE)], {}, id="no cancel"),
        pytest.param(
            [(3, 501, MESSAGE), (1, 0, MOVE)], {1: TOO_LATE}, id="a reschedule that is too old"
        ),
    ],
)
@table("hop_ms", [0, 7, -400])
@table("steps", [1, 4])
def test_the_order_of_records_of_one_id_that_came_to_several_partitions(
    sent: list[tuple[int, int, Headers]], refused: dict[int, Reason], hop_ms: int, steps: int
) -> None:
    """Each record came to a partition at a time, by the clock of its broker; the home's clock is
    `hop_ms` ahead of the others. In one step, and in several."""
    records = []
    for offset, (partition, at_ms, headers) in enumerate(sent):
        first_ms = NOW_MS + at_ms
        came = b"%b/%d/%d;%d" % (TOPIC.encode(), partition, offset, first_ms)
        is_forwarded = partition != SHARD
        hops = [("chronos-forwarded", came)] if is_forwarded else []
        records.append(
            Record(offset, first_ms + is_forwarded * hop_ms, HERE, b"v", [*headers, *hops])
        )
    store = Rows()
    shard, replica = (
        Shard(rules=rules, state=FRESH, view=store) for rules in (FORWARD, FORWARD.for_replay())
    )
    found: dict[int, int] = {}
    size = len(records) if steps == 1 else 1
    for at in range(0, len(records), size):
        batch = records[at : at + size]
        staged = shard.stage(batch)
        found |= dict(staged.letters.refused)
        nothing = nothing_selected(shard.state.cursor, complete=True)
        progress = WRITER.progress(staged, nothing)
        assert replica.replay_stage(batch, progress).id_states == staged.id_states
        for one in (shard, replica):
            changes = one.apply(staged, nothing, progress, offset=at, timestamp_ms=NOW_MS + 900)
            one.install(changes)
        store.write(changes.puts, changes.deletes)
    assert found == refused


@pytest.mark.parametrize(
    ("ahead_ms", "counts_ms"), [(0, 0), (1, 1), (500, 500), (501, 0), (86_400_000, 0)]
)
def test_no_hop_is_refused_for_its_time(ahead_ms: int, counts_ms: int) -> None:
    """A first timestamp that is further ahead than two clocks may differ counts as the record's own
    time."""
    hop_ahead = ("chronos-forwarded", b"chronos.delay/1/7;%d" % (NOW_MS + ahead_ms))
    entry = staged(IN, TO, hop_ahead, key=HERE)
    assert isinstance(entry, Entry)
    assert (entry.timestamp_ms, entry.due_ms) == (NOW_MS + counts_ms, NOW_MS + counts_ms + 90_000)
    assert entry.order == IdOrder(1)
    assert staged(action("cancel"), hop_ahead, key=HERE) == Action(
        Verb.CANCEL, HERE, None, NOW_MS + counts_ms
    )


@pytest.mark.parametrize("headers", [MESSAGE, CANCEL, [AT, TO]], ids=["replace", "cancel", "plain"])
def test_a_hop_that_is_too_far_ahead_is_reported_with_its_first_partition(headers: Headers) -> None:
    """The metric names the brokers of both partitions by it."""
    shard = Shard(rules=FORWARD, state=FRESH, view=Rows())
    records = [
        Record(
            at,
            NOW_MS,
            HERE,
            b"v",
            [*headers, ("chronos-forwarded", b"chronos.delay/3/%d;%d" % (at, first_ms))],
        )
        for at, first_ms in enumerate((NOW_MS - 9, NOW_MS + 500, NOW_MS + 501))
    ]
    assert shard.stage(records).ahead == [(3, 501)]
    progress = Progress(
        role_epoch=1,
        log_epoch=1,
        cluster="c",
        node="n",
        instance="i",
        shards=SHARDS,
        pull_offset=3,
        cursor_due_ms=0,
        cursor_offset=0,
        counts=count_outcomes(0, ()),
        refused=tuple(shard.stage(records).letters.refused),
    )
    assert shard.replay_stage(records, progress).ahead == []


def test_a_late_message_whose_first_timestamp_is_ahead_does_not_wait_for_it() -> None:
    shard = Shard(rules=FORWARD, state=FRESH, view=Rows())
    ahead = ("chronos-forwarded", b"chronos.delay/1/7;%d" % (NOW_MS + 400))
    late = ("chronos-deliver-at", b"%d" % (NOW_MS - 5_000))
    found = shard.stage([Record(42, NOW_MS, HERE, b"v", [late, TO, ahead])])
    assert [due_ms for due_ms, _ in found.placed.values()] == [NOW_MS]


def test_a_repetition_is_judged_by_its_first_timestamp_however_late_it_is_forwarded() -> None:
    """An id is delivered, repeated an hour later in another partition, and that record arrives
    seven hours late."""
    hour_ms = 3_600_000
    delivered = IdState(DELIVERED, NOW_MS, 1, NOW_MS, None, NOW_MS)
    store = Rows({id_key(HERE): pack_id_state(delivered)})
    shard = Shard(rules=FORWARD, state=FRESH, view=store)
    for first_ms, expected in ((hour_ms, {0: Reason.CONFLICT}), (6 * hour_ms, {})):
        came = ("chronos-forwarded", b"chronos.delay/1/7;%d" % (NOW_MS + first_ms))
        record = Record(0, NOW_MS + 8 * hour_ms, HERE, b"v", [("chronos-delay", b"1h"), TO, came])
        assert dict(shard.stage([record]).letters.refused) == expected
