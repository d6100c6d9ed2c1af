"""Participants of a cluster whose coordinator is Kafka: who is seen, who is gone, which incarnation
counts, and who takes over.

A log of two lists carries the records; the tests decide when each participant reads, and what the
time is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from chronos.core.cluster.kafka.controllership import REPUBLISH_MS, Stage
from chronos.core.cluster.kafka.heartbeats import OwnHeartbeats
from chronos.core.cluster.kafka.participant import Participant, Place
from chronos.core.cluster.kafka.plausibility import REPORT_JUMP_MAX
from chronos.core.cluster.kafka.records import (
    Announcement,
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RecordUnreadable,
    RolesRecord,
    Submission,
    pack_record,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import NUMBER_MAX, Member, ReplicaReport, Request, Roles, ShardRoles
from chronos.core.cluster.timing import Timing

T = TypeVar("T")

TIMING = Timing(heartbeat_ms=100, timeout_ms=600)
STEP_MS = 100


class ClusterLog:
    """The log and the time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.heartbeats: list[ClusterRecord] = []
        self.roles: list[RolesRecord] = []
        self.readers: dict[str, Reader] = {}

    def start(self, node: str, incarnation: str = "", instance: str = "", start: int = 0) -> Reader:
        incarnation = incarnation or node
        self.readers[incarnation] = reader = Reader(
            self, node, incarnation, instance or f"i-{node}", start
        )
        return reader

    def run(self, ms: int, *incarnations: str) -> None:
        """Pass time; these participants read and write every STEP_MS: first all read, then all
        write. All if none is named."""
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            readers = [
                self.readers[incarnation] for incarnation in incarnations or tuple(self.readers)
            ]
            for reader in readers:
                if reader.reads:
                    reader.read()
            for reader in readers:
                reader.write()
            for reader in readers:
                reader.take_over()


class Reader:
    """One participant and its positions."""

    def __init__(
        self, case: ClusterLog, node: str, incarnation: str, instance: str, start: int
    ) -> None:
        self.case = case
        member = Member(
            node=node, instance=instance, address=f"http://{node}", version="1", started_ms=0
        )
        self.participant = Participant(member, incarnation, timing=TIMING, start=start)
        self.positions = [start, 0]
        self.reads = True
        self.took_over = 0

    def read(self) -> None:
        case = self.case
        for record in case.heartbeats[self.positions[0] :]:
            self.participant.read_heartbeat(
                self.positions[0], read(unpack_record, record), case.now_ms
            )
            self.positions[0] += 1
        for roles in case.roles[self.positions[1] :]:
            self.participant.read_roles(self.positions[1], read(unpack_roles, roles))
            self.positions[1] += 1

    def write(self) -> None:
        for record in self.participant.step(self.case.now_ms):
            self.case.heartbeats.append(record)
            if isinstance(record, MemberHeartbeat):
                self.participant.settled(record)

    def take_over(self) -> None:
        control, case = self.participant.control, self.case
        for _ in range(6):
            if control.stage in {Stage.READING, Stage.READING_AGAIN}:
                control.ended(control.stage, len(case.roles))
                self.read()
            elif control.stage is Stage.FENCING:
                control.fenced(case.now_ms)
            elif control.stage is Stage.OPENING and control.writing is not None:
                self.took_over += 1
                self.commit(control.writing)
            self.write()

    def commit(self, record: RolesRecord) -> None:
        self.case.roles.append(record)
        self.participant.control.committed(record, self.case.now_ms)

    def publish(self, master: str) -> bool:
        """Publish a master of shard 0 under a role epoch greater than any reported; return whether
        there was something to publish."""
        last = self.participant.control.last
        assert last is not None
        reports = (
            replica
            for member in self.participant.members().values()
            for replica in member.replicas.values()
        )
        epoch = max((replica.role_epoch for replica in reports), default=0) + 1
        shards = {0: ShardRoles(master=master, epoch=epoch)}
        record = self.participant.publish(Roles(shards=shards), last.answered, self.case.now_ms)
        if record is not None:
            self.commit(record)
        return record is not None

    @property
    def place(self) -> str:
        return self.participant.place

    @property
    def stage(self) -> str:
        return self.participant.stage

    @property
    def controls(self) -> bool:
        return self.participant.may_decide(self.case.now_ms)


def read(unpack: Callable[[bytes], T], record: ClusterRecord | RolesRecord) -> T | None:
    """The record as another process reads it: from its bytes, or not at all."""
    try:
        return unpack(pack_record(record))
    except RecordUnreadable:
        return None


@pytest.fixture
def case() -> ClusterLog:
    return ClusterLog()


def last_heartbeat(case: ClusterLog, incarnation: str) -> MemberHeartbeat:
    return next(
        record
        for record in reversed(case.heartbeats)
        if isinstance(record, MemberHeartbeat) and record.incarnation == incarnation
    )


def controllers(case: ClusterLog) -> list[str]:
    return [incarnation for incarnation, reader in case.readers.items() if reader.controls]


# --------------------------------------------------------------------------------------- Heartbeats


def test_a_process_is_seen_for_three_quarters_of_the_timeout_after_a_heartbeat_that_came_back(
    case: ClusterLog,
) -> None:
    a = case.start("a")
    case.run(500)
    assert a.participant.seen(case.now_ms)
    written_ms = case.now_ms - STEP_MS
    assert a.participant.seen(written_ms + TIMING.timeout_ms * 3 // 4)
    assert not a.participant.seen(written_ms + TIMING.timeout_ms * 3 // 4 + 1)


def test_one_heartbeat_is_in_flight_and_none_is_queued(case: ClusterLog) -> None:
    participant = case.start("a").participant
    (first,) = participant.step(0)
    assert isinstance(first, MemberHeartbeat)
    assert participant.step(10_000) == []
    participant.settled(first)
    assert len(participant.step(10_000)) == 1


def test_a_member_that_is_silent_is_gone_after_the_timeout(case: ClusterLog) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(4_000)
    assert set(a.participant.members()) == {"a", "b"}
    case.run(500, "a")
    assert set(a.participant.members()) == {"a", "b"}
    case.run(400, "a")
    assert set(a.participant.members()) == {"a"}
    case.run(500)
    assert set(a.participant.members()) == {"a", "b"}


def test_a_member_that_writes_but_does_not_read_is_gone(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(4_000)
    b.reads = False
    case.run(1_000)
    assert set(a.participant.members()) == {"a"}


def test_a_member_that_does_not_read_the_roles_is_gone_and_not_confirmed(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(4_000)
    behind = b if a.controls else a
    other = a if behind is b else b
    behind.positions[1] = 10**6
    other.publish("a")
    case.run(600)
    assert behind.participant.seen(case.now_ms)
    assert not behind.participant.confirmed(case.now_ms)
    case.run(600)
    assert behind.participant.member.node not in other.participant.members()


def test_nobody_is_gone_because_the_judge_was_stopped(case: ClusterLog) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(4_000)
    case.run(10_000, "b")
    case.run(STEP_MS, "a")
    assert set(a.participant.members()) == {"a", "b"}
    case.run(1_000)
    assert set(a.participant.members()) == {"a", "b"}


def test_after_a_pause_of_its_own_a_process_waits_three_timeouts_before_it_calls_others_gone(
    case: ClusterLog,
) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(4_000)
    case.now_ms += 1_000
    case.run(3 * TIMING.timeout_ms, "a")
    assert set(a.participant.members()) == {"a", "b"}
    case.run(400, "a")
    assert set(a.participant.members()) == {"a"}


def test_what_was_written_before_a_process_began_does_not_make_others_present(
    case: ClusterLog,
) -> None:
    case.start("a")
    case.run(1_000)
    b = case.start("b")
    case.run(1_000, "b")
    assert set(b.participant.members()) == {"b"}


# -------------------------------------------------------------------------------------------- Lives


def test_a_restart_takes_its_place_at_once_and_the_process_before_stops(case: ClusterLog) -> None:
    first = case.start("a", "a1")
    case.run(1_000)
    second = case.start("a", "a2")
    case.run(300)
    assert second.place == Place.MEMBER
    assert first.place == Place.REPLACED
    assert first.participant.step(case.now_ms + 1_000) == []
    assert first.participant.leave() is None


def test_another_directory_under_the_name_of_a_member_is_refused(case: ClusterLog) -> None:
    first = case.start("a", "a1")
    case.run(1_000)
    second = case.start("a", "a2", "another")
    case.run(2_000)
    assert second.place == Place.NEWCOMER
    case.run(1_000)
    assert second.place == Place.REFUSED
    assert first.place == Place.MEMBER


def test_a_copy_of_a_data_directory_takes_no_place_while_the_other_process_is_heard(
    case: ClusterLog,
) -> None:
    """However often it is started again; then it keeps the place, and the first one stays out."""

    def start(incarnation: str, place: str) -> Reader:
        reader = case.start("a", incarnation)
        reader.participant.member = replace(reader.participant.member, place=place)
        return reader

    first = start("a1", "one")
    case.run(1_000)
    for incarnation in ("a2", "a3"):
        copy = start(incarnation, "two")
        case.run(3_000, "a1", incarnation)
        assert (first.place, copy.place) == (Place.MEMBER, Place.REFUSED)
    copy = start("a4", "two")
    case.run(3_000, "a4")
    assert copy.place == Place.MEMBER
    case.run(300, "a1", "a4")
    assert first.place == Place.REPLACED
    again = start("a5", "one")
    case.run(3_000, "a4", "a5")
    assert (copy.place, again.place) == (Place.MEMBER, Place.REFUSED)


@pytest.mark.parametrize("leave_record", [True, False])
def test_another_directory_gets_the_name_of_a_node_that_left_or_is_gone(
    case: ClusterLog, leave_record: bool
) -> None:
    first = case.start("a", "a1")
    case.run(1_000)
    last = first.participant.leave()
    assert last is not None
    if leave_record:
        case.heartbeats.append(last)
    second = case.start("a", "a2", "another")
    case.run(1_000 if leave_record else 3_000, "a2")
    assert second.place == Place.MEMBER


def test_of_two_newcomers_with_one_name_the_first_in_the_partition_wins(case: ClusterLog) -> None:
    first, second = case.start("a", "a1", "one"), case.start("a", "a2", "two")
    case.run(1_000)
    assert first.place == Place.MEMBER
    assert second.place == Place.REFUSED


def test_a_life_that_said_farewell_never_counts_again(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(1_000)
    last = a.participant.leave()
    assert last is not None
    late = a.participant._heartbeat(case.now_ms)
    case.heartbeats += [last, late]
    case.run(200, "b")
    assert set(b.participant.members()) == {"b"}


def test_a_generation_is_greater_than_those_that_were_trimmed(case: ClusterLog) -> None:
    """A node that returns after its records were trimmed counts for those that still remember
    it."""
    b = case.start("b")
    case.run(100)
    for generation in range(1, 4):
        case.heartbeats.append(
            LeaveRecord(node="a", incarnation=f"old{generation}", generation=generation)
        )
    case.run(1_000)
    case.start("a", start=len(case.heartbeats))
    case.run(500)
    assert set(b.participant.members()) == {"a", "b"}


# ----------------------------------------------------------------------------------- The controller


def test_the_first_announcement_takes_over_and_the_others_count_afresh(case: ClusterLog) -> None:
    readers = [case.start(node) for node in "abc"]
    case.run(1_200)
    assert controllers(case) == ["a"]
    assert [reader.took_over for reader in readers] == [1, 0, 0]
    assert sum(isinstance(record, Announcement) for record in case.heartbeats) >= 1
    case.run(5_000)
    assert controllers(case) == ["a"]
    assert [record.epoch for record in case.roles] == [1]


def test_a_controller_that_is_silent_is_replaced_under_a_greater_epoch(case: ClusterLog) -> None:
    for node in "abc":
        case.start(node)
    case.run(1_200)
    case.run(1_200, "b", "c")
    assert controllers(case) == ["b"]
    case.run(300)
    assert controllers(case) == ["b"]
    assert case.readers["a"].stage == Stage.FOLLOWING
    assert [record.epoch for record in case.roles] == [1, 2]


def test_nobody_waits_for_a_controller_that_said_farewell(case: ClusterLog) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(1_200)
    assert controllers(case) == ["a"]
    last = a.participant.leave()
    assert last is not None
    case.heartbeats.append(last)
    case.run(300, "b")
    assert case.readers["b"].controls


def test_a_controller_that_does_not_publish_what_it_announces_is_replaced(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    assert a.participant.publish(Roles(drained=("x",)), 0, case.now_ms) is not None
    case.run(1_200)
    assert controllers(case) == ["b"]
    assert b.took_over == 1


def test_a_controller_that_writes_but_does_not_read_is_replaced(case: ClusterLog) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(1_200)
    a.reads = False
    case.run(1_200)
    assert controllers(case) == ["b"]


def test_a_controller_that_is_not_seen_publishes_nothing(case: ClusterLog) -> None:
    a = case.start("a")
    case.run(1_200)
    assert a.controls
    case.now_ms += TIMING.timeout_ms
    assert not a.publish("a")
    case.run(300)
    assert a.publish("a")


def test_a_candidate_that_reads_of_another_one_first_does_not_fence(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    a.participant.control.failed()
    b.participant.control.restart()
    b.participant.control.stand(case.now_ms)
    case.heartbeats.append(Announcement(node="a", incarnation="a", number=9))
    b.read()
    assert b.stage == Stage.FOLLOWING


def test_a_candidate_that_was_stopped_before_it_fenced_does_not_fence(case: ClusterLog) -> None:
    a = case.start("a")
    while a.stage != Stage.STANDING:
        case.now_ms += STEP_MS
        a.read()
        a.write()
    a.read()
    assert a.stage == Stage.READING
    a.participant.control.ended(Stage.READING, 0)
    a.participant.step(case.now_ms + TIMING.timeout_ms)
    assert a.stage == Stage.FOLLOWING


def test_a_taking_over_that_lasts_longer_than_the_timeout_is_given_up(case: ClusterLog) -> None:
    """Others stand by then; a fence that comes back later is not followed by an epoch record."""
    a = case.start("a")
    while a.stage != Stage.READING:
        case.now_ms += STEP_MS
        a.read()
        a.write()
    a.participant.control.ended(Stage.READING, 0)
    a.write()
    assert a.stage == Stage.FENCING
    case.now_ms += TIMING.timeout_ms
    a.write()
    assert a.stage == Stage.FOLLOWING
    a.participant.control.fenced(case.now_ms)
    assert a.stage == Stage.FOLLOWING


def test_a_controller_that_reads_of_a_greater_epoch_follows(case: ClusterLog) -> None:
    a = case.start("a")
    case.run(1_200)
    assert a.controls
    case.roles.append(
        RolesRecord(incarnation="b", version=9, roles=Roles(controller="b", controller_epoch=2))
    )
    case.run(100)
    assert a.stage == Stage.FOLLOWING
    assert not a.publish("a")


def test_a_timeout_must_be_four_heartbeats_at_least() -> None:
    with pytest.raises(AssertionError, match="lost heartbeat"):
        OwnHeartbeats(Timing(heartbeat_ms=500, timeout_ms=1_500))


def test_a_member_that_failed_counts_longer_than_the_others(case: ClusterLog) -> None:
    a, _ = case.start("a"), case.start("b")
    case.run(1_200)
    assert controllers(case) == ["a"]
    a.participant.control.failed()
    case.run(900)
    assert controllers(case) == ["b"]


def test_an_epoch_is_greater_than_any_that_a_heartbeat_reports(case: ClusterLog) -> None:
    """Also when the log lost the roles of that epoch."""
    case.start("a")
    reporting = Member(node="b", instance="i-b", address="", version="1", started_ms=0)
    case.heartbeats.append(
        MemberHeartbeat(member=reporting, incarnation="b", number=1, generation=1, epoch=7)
    )
    case.run(1_200)
    assert [record.epoch for record in case.roles] == [8]


def test_the_roles_are_published_on_a_change_and_again_after_some_time(case: ClusterLog) -> None:
    a = case.start("a")
    case.run(1_200)
    assert a.publish("a")
    case.run(300)
    assert not a.publish("a")
    assert a.publish("b")
    case.run(REPUBLISH_MS)
    assert a.publish("b")


def test_requests_wait_until_a_roles_record_answers_them(case: ClusterLog) -> None:
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    request = Request(kind="drain", node="b")
    case.heartbeats.append(Submission(request=request))
    offset = len(case.heartbeats) - 1
    case.run(100)
    assert b.participant.requests() == [(offset, request)]
    record = a.participant.publish(Roles(drained=("b",)), offset + 1, case.now_ms)
    assert record is not None
    a.commit(record)
    case.run(100)
    assert b.participant.requests() == []
    assert b.participant.roles == record.roles


def test_a_report_is_written_when_it_changes_and_once_in_a_timeout(case: ClusterLog) -> None:
    """The heartbeats between have no replicas, and readers keep those that they have read."""
    a, b = case.start("a"), case.start("b")
    case.run(3_000)
    for applied in (5, 6):
        report = replace(a.participant.member, replicas={0: ReplicaReport(applied=applied)})
        a.participant.member = report
        began = len(case.heartbeats)
        case.run(2 * TIMING.timeout_ms)
        written = [
            each
            for each in case.heartbeats[began:]
            if isinstance(each, MemberHeartbeat) and each.incarnation == "a"
        ]
        assert [each.number for each in written if not each.brief] == [
            written[0].number,
            written[6].number,
        ]
        assert all(
            each.member == (replace(report, replicas={}) if each.brief else report)
            for each in written
        )
        assert b.participant.members()["a"] == report
    late = case.start("c")
    case.run(500)
    assert late.participant.members()["a"] == report


def test_a_report_that_no_longer_has_a_replica_is_not_confused_with_a_brief_one(
    case: ClusterLog,
) -> None:
    """A node that holds no shard reports none."""
    a, b = case.start("a"), case.start("b")
    a.participant.member = replace(a.participant.member, replicas={0: ReplicaReport(applied=5)})
    case.run(1_000)
    a.participant.member = replace(a.participant.member, replicas={})
    case.run(200)
    assert b.participant.members()["a"].replicas == {}


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation": "other", "generation": NUMBER_MAX},
        {"heartbeats_read": NUMBER_MAX},
        {"number": NUMBER_MAX},
        {"epoch": NUMBER_MAX},
        {"controls": NUMBER_MAX},
    ],
    ids=str,
)
def test_a_heartbeat_with_an_absurd_number_costs_nobody_its_place(
    case: ClusterLog, change: dict[str, Any]
) -> None:
    """Another client copies a heartbeat and changes a number. Afterwards the roles of the next
    controller still count."""
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    assert a.publish("a")
    case.run(300)
    copied = last_heartbeat(case, "a")
    case.heartbeats.append(replace(copied, **change))
    case.run(1_500)
    assert (a.place, b.place, controllers(case)) == ("member", "member", ["a"])
    assert set(b.participant.members()) == {"a", "b"}
    case.run(2_500, "b")
    assert b.controls
    assert b.publish("b")
    assert 1 < b.participant.control.epoch < 10
    newcomer = case.start("c")
    case.run(300)
    assert newcomer.participant.roles == b.participant.roles


def test_epochs_in_heartbeats_never_exclude_the_next_controller(case: ClusterLog) -> None:
    """The greatest one that counts, and then one as far beyond that: the next controller's epoch
    counts for everybody, also newcomers."""
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    assert a.publish("a")
    case.run(300)
    copied = last_heartbeat(case, "a")
    for jumps in (1, 2, 3):
        case.heartbeats.append(
            replace(copied, epoch=a.participant.control.epoch + jumps * REPORT_JUMP_MAX)
        )
        case.run(300)
    case.run(2_500, "b")
    assert b.controls
    assert b.publish("b")
    newcomer = case.start("c")
    case.run(1_500, "b", "c")
    assert newcomer.participant.roles == b.participant.roles
    assert set(newcomer.participant.members()) == {"b", "c"}
    assert controllers(case) == ["b"]


def test_a_farewell_with_an_absurd_generation_costs_nobody_its_place(case: ClusterLog) -> None:
    """Of another incarnation of the same node, so that no later incarnation would be greater."""
    a = case.start("a")
    case.run(1_200)
    case.heartbeats.append(LeaveRecord(node="a", incarnation="other", generation=NUMBER_MAX))
    case.run(300)
    assert a.place == "member"
    case.heartbeats.append(LeaveRecord(node="a", incarnation="a", generation=1))
    again = case.start("a", incarnation="again")
    case.run(300)
    assert again.place == "member"


@pytest.mark.parametrize(
    "change",
    [
        {"version": NUMBER_MAX},
        {"answered": NUMBER_MAX},
        {"roles": Roles(controller="x", controller_epoch=NUMBER_MAX)},
        {
            "roles": Roles(
                controller="x", controller_epoch=1, shards={0: ShardRoles(epoch=NUMBER_MAX)}
            )
        },
    ],
    ids=str,
)
def test_roles_with_an_absurd_number_do_not_replace_the_last_ones(
    case: ClusterLog, change: dict[str, Any]
) -> None:
    """A number that counts is never reduced: later roles would be older than these for ever."""
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    assert a.publish("a")
    case.run(100)
    copied = case.roles[-1]
    case.roles.append(
        replace(copied, **{"incarnation": "x", "version": copied.version + 1, **change})
    )
    newcomer = case.start("c")
    case.run(1_500)
    assert controllers(case) == ["a"]
    assert a.publish("b")
    case.run(100)
    assert {
        (given.participant.roles or Roles()).shards[0].master for given in (a, b, newcomer)
    } == {"b"}
    request = Request(kind="drain", node="b")
    case.heartbeats.append(Submission(request=request))
    case.run(100)
    assert [asked for _, asked in b.participant.requests()] == [request]


def test_a_report_with_an_absurd_role_epoch_is_ignored(case: ClusterLog) -> None:
    """The next master of that shard would have a role epoch that nobody can read."""
    a, b = case.start("a"), case.start("b")
    case.run(1_200)
    assert a.publish("a")
    case.run(100)
    replicas = {0: ReplicaReport(role_epoch=NUMBER_MAX)}
    stranger = Member(
        node="x", instance="i-x", address="", version="1", started_ms=0, replicas=replicas
    )
    case.heartbeats.append(
        MemberHeartbeat(member=stranger, incarnation="x", number=1, generation=1, heartbeats_read=1)
    )
    case.run(100)
    assert a.publish("b")
    case.run(100)
    assert b.participant.roles == a.participant.roles
    assert set(b.participant.members()) == {"a", "b"}
