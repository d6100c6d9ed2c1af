"""The replica: every transition between its states, what makes it happen, and how long it waits in
each."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.keys import CURSOR_HISTORY, STATE_KEY
from chronos.core.shard.codec import RULES, pack_state
from chronos.core.shard.progress import VERSION
from chronos.errors import Deposed, LogMismatch, LogUnavailable, NoSpace
from chronos.node import shards
from chronos.node.shards import report
from chronos.node.watch import CLOCK_STEP_MS, LOG_EVERY_MS, OVER_MS, ShardWatch
from chronos.ports import READING_BOUNDED, Appended, Verify, Watermarks, Writer
from chronos.workers.replica import state as states_module
from chronos.workers.replica.checkpoint import LogPosition
from chronos.workers.replica.leadership import FOREIGN_SILENCE_MS, STANDALONE, Assignment
from chronos.workers.replica.phases import (
    NEAR_OFFSETS,
    POLL_MS,
    PREDECESSOR_POLL_MS,
    BeginPhase,
)
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.retention import DELETE_EVERY_MS
from chronos.workers.replica.state import TRANSITIONS, ReplicaState
from chronos.workers.step.master import HEARTBEAT_MS
from tests.harness.memory import MemoryStore
from tests.harness.replicas import FOLLOW, LEAVE, STEPS_MAX, Node, S, SharedShard, lead
from tests.harness.rows import rows_of
from tests.harness.waiting import wait_until
from tests.harness.writers import AroundWriter


@pytest.fixture
def case(tmp_path: Path) -> Iterator[SharedShard]:
    made = SharedShard(tmp_path)
    yield made
    made.log.close()


# ---------------------------------------------------------------------------------- The transitions


def starting(case: SharedShard) -> None:
    pass


def none(case: SharedShard) -> None:
    case.node.assignment = LEAVE
    case.node.until(S.NONE)


def restoring(case: SharedShard) -> None:
    case.commit()
    case.no_checkpoint()
    case.node.until(S.RESTORING)


def recovering(case: SharedShard) -> None:
    case.node.until(S.RECOVERING)


def follower(case: SharedShard) -> None:
    case.node.until(S.FOLLOWER)


def waiting(case: SharedShard) -> None:
    case.commit()
    case.node.assignment = STANDALONE
    case.node.until(S.WAITING)


def taking_over(case: SharedShard) -> None:
    case.node.assignment = lead(1)
    case.node.until(S.TAKING_OVER)


def master(case: SharedShard) -> None:
    case.node.assignment = lead(1)
    case.node.until(S.MASTER)


def stepped_down(case: SharedShard) -> None:
    master(case)
    case.node.assignment = FOLLOW
    case.node.until(S.STEPPED_DOWN)


REACH: dict[ReplicaState, Callable[[SharedShard], None]] = {
    S.STARTING: starting,
    S.NONE: none,
    S.RESTORING: restoring,
    S.RECOVERING: recovering,
    S.FOLLOWER: follower,
    S.WAITING: waiting,
    S.TAKING_OVER: taking_over,
    S.MASTER: master,
    S.STEPPED_DOWN: stepped_down,
}


def assign(assignment: Assignment) -> Callable[[SharedShard], None]:
    def change(case: SharedShard) -> None:
        case.node.assignment = assignment

    return change


def commits_without_checkpoint(case: SharedShard) -> None:
    """The store is empty, and the log no longer is."""
    case.commit()
    case.no_checkpoint()


def follows_without_checkpoint(case: SharedShard) -> None:
    commits_without_checkpoint(case)
    case.node.assignment = FOLLOW


def breaks_off_without_checkpoint(case: SharedShard) -> None:
    commits_without_checkpoint(case)
    case.break_off()


def is_interrupted_before_the_start_of_its_logs(case: SharedShard) -> None:
    """The store holds something, and the log was trimmed beyond it."""
    case.commit()
    case.no_checkpoint()
    case.node.guard = "the disk is full"
    case.node.step()
    case.commit()
    case.trim()
    case.node.guard = None


def the_checkpoint_is_not_needed(case: SharedShard) -> None:
    case.node.fetch = lambda cost: False


def is_standalone_beside_another_master(case: SharedShard) -> None:
    case.commit()
    case.node.assignment = STANDALONE


def the_other_master_is_silent(case: SharedShard) -> None:
    case.clock.now += FOREIGN_SILENCE_MS


def the_epoch_record_is_not_written_before_another_assignment(case: SharedShard) -> None:
    case.node.step()  # resolves
    case.node.assignment = FOLLOW


def loses_its_assignment_and_the_log(case: SharedShard) -> None:
    case.node.assignment = FOLLOW
    case.log.append([(case.progress, None, b"", (), 0)], 9.0)
    case.trim()
    case.no_checkpoint()


def is_standalone_and_another_node_takes_over_meanwhile(case: SharedShard) -> None:
    case.node.assignment = STANDALONE
    case.node.replica.close()
    case.node = Node(case, "a", STANDALONE)
    case.node.until(S.TAKING_OVER)
    case.commit()


def goes_on(case: SharedShard) -> None:
    pass


def stops(case: SharedShard) -> None:
    case.node.replica.close()


def fails(case: SharedShard) -> None:
    case.node.replica.fail("the reason")


CAUSES: dict[tuple[ReplicaState, ReplicaState], Callable[[SharedShard], None]] = {
    (S.STARTING, S.NONE): assign(LEAVE),
    (S.STARTING, S.RESTORING): commits_without_checkpoint,
    (S.STARTING, S.RECOVERING): goes_on,
    (S.NONE, S.RESTORING): follows_without_checkpoint,
    (S.NONE, S.RECOVERING): assign(FOLLOW),
    (S.RESTORING, S.NONE): assign(LEAVE),
    (S.RESTORING, S.RECOVERING): the_checkpoint_is_not_needed,
    (S.RECOVERING, S.NONE): assign(LEAVE),
    (S.RECOVERING, S.RESTORING): breaks_off_without_checkpoint,
    (S.RECOVERING, S.FOLLOWER): goes_on,
    (S.RECOVERING, S.WAITING): is_standalone_beside_another_master,
    (S.RECOVERING, S.TAKING_OVER): assign(lead(1)),
    (S.FOLLOWER, S.NONE): assign(LEAVE),
    (S.FOLLOWER, S.RESTORING): is_interrupted_before_the_start_of_its_logs,
    (S.FOLLOWER, S.RECOVERING): SharedShard.break_off,
    (S.FOLLOWER, S.TAKING_OVER): assign(lead(1)),
    (S.WAITING, S.RESTORING): is_interrupted_before_the_start_of_its_logs,
    (S.WAITING, S.RECOVERING): SharedShard.break_off,
    (S.WAITING, S.TAKING_OVER): the_other_master_is_silent,
    (S.TAKING_OVER, S.NONE): assign(LEAVE),
    (S.TAKING_OVER, S.RESTORING): breaks_off_without_checkpoint,
    (S.TAKING_OVER, S.RECOVERING): assign(FOLLOW),
    (S.TAKING_OVER, S.WAITING): is_standalone_and_another_node_takes_over_meanwhile,
    (S.TAKING_OVER, S.MASTER): goes_on,
    (S.TAKING_OVER, S.STEPPED_DOWN): the_epoch_record_is_not_written_before_another_assignment,
    (S.MASTER, S.STEPPED_DOWN): assign(FOLLOW),
    (S.STEPPED_DOWN, S.NONE): assign(LEAVE),
    (S.STEPPED_DOWN, S.RESTORING): loses_its_assignment_and_the_log,
    (S.STEPPED_DOWN, S.RECOVERING): goes_on,
    **{(state, S.STOPPED): stops for state in REACH if state != S.MASTER},
    **{(state, S.FAILED): fails for state in REACH},
}
"""For each transition, what makes it happen."""


@pytest.mark.parametrize(
    ("before", "after"), CAUSES, ids=lambda state: str(state).replace(" ", "_")
)
def test_every_transition_happens(
    case: SharedShard, before: ReplicaState, after: ReplicaState
) -> None:
    """The next state that the replica reports is the one in the table, not another one on the way
    to it."""
    REACH[before](case)
    assert case.node.replica.role == before
    CAUSES[before, after](case)
    for _ in range(STEPS_MAX):
        if case.node.replica.role != before:
            break
        case.node.step()
    assert case.node.replica.role == after


def test_no_other_transition_is_allowed() -> None:
    """Each transition of the table is one that the tests cause."""
    assert {
        (before, after) for before, states in TRANSITIONS.items() for after in states
    } == CAUSES.keys()
    assert TRANSITIONS.keys() == set(ReplicaState)


def test_the_documented_table_is_the_one_that_is_checked() -> None:
    assert states_module.__doc__ is not None
    lines = states_module.__doc__.split("may become\n")[1].split("\n\n")[0].splitlines()
    documented = {}
    for line in lines:
        state, *following = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        documented[state] = set(following[0].split(", ")) if following else set()
    assert documented == {state: set(states) for state, states in TRANSITIONS.items()}


def test_a_transition_that_is_not_in_the_table_is_a_bug(case: SharedShard) -> None:
    case.node.replica.close()
    with pytest.raises(AssertionError, match="stopped cannot become failed"):
        case.node.replica.fail("too late")


# ------------------------------------------------------------------------------------ In the states


def test_a_master_that_is_closed_steps_down_first(case: SharedShard) -> None:
    """Its writer is closed, and the next master continues without a fence in between."""
    master(case)
    case.node.replica.close()
    assert case.node.replica.role == S.STOPPED
    case.other.assignment = lead(2)
    case.other.until(S.MASTER)
    assert case.other.replica.state.role_epoch == 2


def test_a_follower_applies_what_the_master_commits(case: SharedShard) -> None:
    """Both hold the same state; the follower delivers nothing itself."""
    follower(case)
    headers = {"chronos-target-topic": b"t", "chronos-delay": b"0"}
    case.commit()
    case.log.append([(case.delay, b"id", b"v", headers, 0)], 9.0)
    for _ in range(STEPS_MAX):
        case.clock.now += 100
        case.other.step()
        case.node.step()
    assert case.node.replica.role == S.FOLLOWER
    assert case.node.replica.state == case.other.replica.state
    assert case.node.replica.state.totals.delivered == 1
    assert case.other.replica.commits > 0
    assert case.node.replica.commits == 0


def test_the_next_due_time_is_known_after_the_step_that_pulled_the_message(
    case: SharedShard,
) -> None:
    """The stall judge reads it, also if the thread hangs before its next step."""
    master(case)
    due_ms = case.clock.now + 5_000
    headers = {"chronos-target-topic": b"t", "chronos-deliver-at": b"%d" % due_ms}
    case.log.append([(case.delay, None, b"v", headers, 0)], 9.0)
    for _ in range(STEPS_MAX):
        case.clock.now += 100
        case.node.step()
        if case.node.replica.state.pending:
            break
    assert case.node.replica.state.pending == 1
    assert case.node.replica.due_ms is not None
    assert case.clock.now < case.node.replica.due_ms <= due_ms


@pytest.mark.parametrize(
    ("changes", "wait_ms"),
    [({"confirmed": False}, POLL_MS), ({"predecessor_active": True}, PREDECESSOR_POLL_MS)],
    ids=["unconfirmed", "predecessor active"],
)
def test_a_new_master_that_must_wait_fences_no_writer(
    case: SharedShard, changes: dict[str, bool], wait_ms: int
) -> None:
    """It stays a follower, and records that arrive do not end its wait."""
    case.commit()
    follower(case)
    case.node.assignment = Assignment(kind="master", epoch=5, **changes)  # type: ignore[arg-type]
    turn = case.node.turn()
    assert (turn.wake_ms - case.clock.now, turn.is_timed) == (wait_ms, True)
    assert case.node.replica.role == S.FOLLOWER
    case.commit()  # The other master is not fenced.
    assert case.other.replica.aborts == 0
    case.node.assignment = lead(5)
    case.node.until(S.MASTER)
    assert case.node.replica.state.role_epoch == 5


def test_the_next_process_of_the_last_master_fences_before_it_replays(case: SharedShard) -> None:
    """The transaction that the last one left open hides the records of other shards. Nobody else
    may do so: another node may lead."""
    for _ in range(NEAR_OFFSETS + 1):
        case.commit()
    for name, aborts in (("c", 0), ("b", 1)):
        started = Node(case, name, STANDALONE)
        started.step()
        assert (started.replica.role, started.replica.state.applied) == (S.RECOVERING, 0)
        case.clock.now += HEARTBEAT_MS
        case.other.step()
        assert case.other.replica.aborts == aborts
    started.until(S.MASTER)
    assert started.replica.state.applied > NEAR_OFFSETS


def test_a_replica_that_reads_in_bounded_memory_says_so_until_it_has_caught_up(
    case: SharedShard,
) -> None:
    """To the controller, which gives it no role meanwhile, and in one line of the log a minute for
    all shards."""
    case.commit()
    node = Node(case, "a", FOLLOW, bounded=True)
    watch = ShardWatch(
        [node.driver],
        case.log,
        progress_topic=case.progress,
        clock=case.clock,
        failed=node.failures.append,
        outage=lambda: None,
    )
    with capture_logs() as lines:
        for monotonic_ms in (0, LOG_EVERY_MS - 1, LOG_EVERY_MS):
            watch.step(monotonic_ms)
        assert report(node.driver, LogPosition(applied=0, pull_offset=0)).reason == READING_BOUNDED
        node.until(S.FOLLOWER)
        assert report(node.driver, LogPosition(applied=0, pull_offset=0)).reason is None
        for monotonic_ms in (LOG_EVERY_MS + OVER_MS, LOG_EVERY_MS + OVER_MS + 1):
            watch.step(monotonic_ms)
    told = [
        (line["event"], line.get("why")) for line in lines if line["event"] in ("paused", "resumed")
    ]
    assert told == [("paused", READING_BOUNDED)] * 2 + [("resumed", None)]


def test_an_assignment_older_than_the_log_is_not_taken(case: SharedShard) -> None:
    """The log contains a later role epoch: the replica pauses, fences no writer, and leads with a
    later one."""
    case.other.assignment = lead(7)
    case.commit()
    case.node.assignment = lead(7)
    case.node.steps(STEPS_MAX)
    assert "it waits for a later role" in str(case.node.replica.paused)
    assert case.node.replica.role == S.RECOVERING
    case.commit()
    assert case.other.replica.aborts == 0
    case.node.assignment = lead(8)
    case.node.until(S.MASTER)
    assert case.node.replica.paused is None


def test_a_node_does_not_take_a_role_again_that_is_older_than_its_own_last_one(
    case: SharedShard,
) -> None:
    """After a restart it takes the last one again; the coordinator may be restored to an older
    state."""
    case.node.assignment = lead(7)
    case.node.until(S.MASTER)
    case.break_off()
    again = Node(case, "a", lead(5))
    again.steps(STEPS_MAX)
    assert "role epoch 7, and this node was given 5" in str(again.replica.paused)
    assert again.replica.role == S.RECOVERING
    again.assignment = lead(7)
    again.until(S.MASTER)


OLDER = {
    "another node is its master": Assignment(kind="follower", epoch=4),
    "others hold the shard": Assignment(kind="none", epoch=4),
    "it is its master": lead(4),
    "none were read": Assignment(kind="follower", epoch=0, confirmed=False),
}


@pytest.mark.parametrize("older", OLDER.values(), ids=OLDER)
def test_a_master_continues_while_the_roles_are_older_than_its_own(
    case: SharedShard, older: Assignment
) -> None:
    """The coordinator lost its data, or was restored to an older state. Roles as late as its own
    end the leadership."""
    case.node.assignment = lead(5)
    case.node.until(S.MASTER)
    case.node.assignment = older
    for _ in range(STEPS_MAX):
        case.clock.now += HEARTBEAT_MS
        case.node.step()
        assert case.node.replica.role == S.MASTER
    assert case.node.replica.state.role_epoch == 5
    case.node.assignment = replace(older, kind="follower", epoch=5)
    case.node.step()
    assert case.node.replica.role == S.STEPPED_DOWN


def test_a_standalone_master_that_was_deposed_ends_its_process(case: SharedShard) -> None:
    """It was silent for too long, another node took over, and two nodes would take turns for
    ever."""
    case.node.assignment = STANDALONE
    case.node.until(S.MASTER)
    case.clock.now += FOREIGN_SILENCE_MS
    case.other.until(S.MASTER)
    with pytest.raises(Deposed, match="node b"):
        case.node.steps(STEPS_MAX)


def test_a_store_that_is_being_restored_is_not_reported(case: SharedShard) -> None:
    """Its state is known again once it was restored, or the restore was given up."""
    case.commit()
    known = []

    def fetch(cost: RecoveryCost) -> bool:
        known.append((case.node.replica.role, case.node.replica.known))
        return False

    assert case.node.replica.known
    case.node.fetch = fetch
    follower(case)
    assert known == [(S.RESTORING, False)]
    assert case.node.replica.known


def test_a_retry_keeps_the_state_and_gives_the_reason(case: SharedShard) -> None:
    """A follower whose disk is full is a paused follower; afterwards it recovers and has no
    reason."""
    follower(case)
    case.node.guard = "1 MiB free"
    waits_ms = [case.node.step() for _ in range(9)]
    assert waits_ms[:5:2] == [50, 100, 200]
    assert max(waits_ms) == 500
    assert case.node.replica.paused == "1 MiB free"
    case.node.guard = None
    case.node.until(S.RECOVERING)
    case.node.until(S.FOLLOWER)
    assert case.node.replica.paused is None


class CountedLog(EmbeddedLog):
    """The embedded log, with the clients that are open, and a call that fails once."""

    open: Sequence[object] = ()
    fails_at = 0
    """Number of the call that fails; 0: none."""
    calls = 0

    def count_anew(self, fails_at: int) -> None:
        self.calls, self.fails_at, self.open = 0, fails_at, ()

    def reader(self, *args: Any, **options: Any) -> Any:
        self._count_call()
        return self._counted(super().reader(*args, **options))

    def writer(self, shard: int) -> Any:
        self._count_call()
        return self._counted(super().writer(shard))

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        self._count_call()
        return super().watermarks(topic, partition)

    def _count_call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise LogUnavailable("the broker is gone")

    def _counted(self, client: Any) -> Any:
        close = client.close

        def closing() -> None:
            close()
            self.open = [each for each in self.open if each is not client]

        self.open = [*self.open, client]
        client.close = closing
        return client


def leads(node: Node) -> bool:
    """Return whether the node is the shard's master."""
    return node.replica.role == S.MASTER


def test_a_failure_at_any_call_of_a_take_over_leaves_no_client_open(tmp_path: Path) -> None:
    """What a phase hands to the next one is closed whichever of them fails."""
    case = SharedShard(tmp_path, log_type=CountedLog)
    case.schedule(3)
    case.commit()
    log = cast("CountedLog", case.log)
    case.other.replica.close()
    for fails_at in itertools.count(1):
        log.count_anew(fails_at)
        node = Node(case, f"n{fails_at}", lead(fails_at + 1))
        while not leads(node) and log.calls < fails_at:
            node.step()
        if leads(node):
            break
        assert node.replica.paused == "the broker is gone"
        assert not log.open
        node.until(S.MASTER)
        assert len(log.open) == 2, "a reader of the delay partition, and a writer"
        node.replica.close()
        assert not log.open
    assert fails_at > 7, "watermarks four times, two readers, a writer"
    case.log.close()


def test_a_follower_whose_log_was_trimmed_ahead_of_it_continues_from_a_checkpoint(
    case: SharedShard,
) -> None:
    """The node that trims had not heard of it; neither its process nor its place in the cluster
    ends."""
    case.commit()
    follower(case)
    before = case.node.replica.state.applied
    case.commit()
    case.commit()
    case.trim()

    def fetch(cost: RecoveryCost) -> bool:
        if cost.logs_complete:
            return False
        case.node.store.write(rows_of(case.other.store), [])
        return True

    case.node.fetch = fetch
    case.node.step()
    assert "starts again from a checkpoint" in str(case.node.replica.paused)
    case.node.until(S.RESTORING)
    case.node.until(S.FOLLOWER)
    assert case.node.replica.paused is None
    assert case.node.replica.state.applied == case.other.replica.state.applied > before
    case.commit()
    case.node.steps(2)
    assert case.node.replica.state == case.other.replica.state


def test_a_shard_has_a_thread_and_an_open_store_only_while_it_is_held(case: SharedShard) -> None:
    """The thread ends and the store is closed without a loss; both are there again with the next
    assignment."""
    case.commit()
    driver, store = case.node.driver, case.node.store

    def found() -> tuple[bool, bool, bool]:
        return driver.is_running, driver.lacks_thread, store.is_open

    assert found() == (False, True, True)
    driver.start()
    wait_until(lambda: driver.role == S.FOLLOWER)
    assert found() == (True, False, True)
    case.node.assignment = LEAVE
    driver.step_soon()
    driver.join(time.monotonic() + 9.0)
    assert driver.role == S.NONE
    assert found() == (False, False, False)
    assert driver.state == case.other.replica.state
    case.node.assignment = FOLLOW
    assert found() == (False, True, False)
    case.commit()
    driver.start()
    wait_until(lambda: driver.state == case.other.replica.state)
    assert found() == (True, False, True)
    driver.stop()
    driver.join(time.monotonic() + 9.0)
    assert driver.role.value == "stopped"
    assert found() == (False, False, True)


def test_a_wait_tells_whether_records_may_have_arrived(case: SharedShard) -> None:
    """A turn says whether records end the wait at all, or the caller sleeps."""
    case.node.assignment = LEAVE
    case.node.until(S.NONE)
    assert case.node.turn().is_timed
    case.node.assignment = FOLLOW
    case.node.until(S.FOLLOWER)
    assert not case.node.turn().is_timed
    assert case.node.replica.wait(0.0) is False
    case.commit()
    assert case.node.replica.wait(9.0) is True


def test_a_waiting_shard_steps_soon_when_it_is_told_to(
    case: SharedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock stands still, so that no time for a step comes; without the word it would step
    once a minute."""
    monkeypatch.setattr(shards, "STEP_EVERY_S", 60.0)
    driver = case.node.driver
    driver.start()
    wait_until(lambda: driver.role == S.FOLLOWER)
    case.node.assignment = LEAVE
    driver.step_soon()
    driver.join(time.monotonic() + 9.0)
    assert driver.role == S.NONE


def test_a_step_of_the_wall_clock_wakes_the_shards(case: SharedShard) -> None:
    """Messages may be due that were not; a clock that runs a little faster wakes none."""
    driver = case.node.driver
    watch = ShardWatch(
        [driver],
        case.log,
        progress_topic=case.progress,
        clock=case.clock,
        failed=case.node.failures.append,
        outage=lambda: None,
    )
    for stepped_ms, wakes in ((0, False), (CLOCK_STEP_MS - 1, False), (-3_600_000, True)):
        case.clock.stepped = stepped_ms
        watch.step(0)
        assert driver._soon.is_set() == wakes


def test_a_store_that_cannot_be_flushed_stays_open(case: SharedShard) -> None:
    """What it holds would be lost; the replica says why it waits."""

    class FullStore(MemoryStore):
        full = True

        def flush(self) -> None:
            if self.full:
                raise NoSpace("no space left")
            super().flush()

    case.commit()
    store = FullStore()
    node = Node(case, "c", FOLLOW, store=store)
    node.until(S.FOLLOWER)
    node.assignment = LEAVE
    node.steps(4)
    assert store.is_open
    assert node.replica.role == S.FOLLOWER
    assert node.replica.paused == "no space left"
    store.full = False
    node.until(S.NONE)
    assert not store.is_open


def test_a_store_that_failed_is_reopened_before_its_shard_is_given_up(case: SharedShard) -> None:
    """It could not be flushed before, and the node would keep the shard until it is started again.
    What was not flushed is lost, and read from the log if the shard comes back."""

    class FailedStore(MemoryStore):
        error: str | None = None
        is_broken = False

        def background_error(self) -> str | None:
            return self.error

        def flush(self) -> None:
            if self.error is not None:
                raise NoSpace(self.error)
            super().flush()

        def reopen(self) -> None:
            if self.is_broken:
                raise NoSpace("the disk still fails")
            self.error = None
            self.open()

    case.commit()
    store = FailedStore()
    node = Node(case, "c", FOLLOW, store=store)
    node.until(S.FOLLOWER)
    store.flush()
    flushed = node.replica.state.applied
    case.commit()
    node.steps(2)
    assert node.replica.state.applied > flushed
    store.error, store.is_broken = "IO error", True
    node.assignment = LEAVE
    node.steps(4)
    assert (node.replica.role, node.replica.paused) == (S.FOLLOWER, "the disk still fails")
    store.is_broken = False
    node.until(S.NONE)
    assert not store.is_open
    assert node.replica.paused is None
    assert node.replica.state.applied == flushed
    node.assignment = FOLLOW
    node.until(S.FOLLOWER)
    assert node.replica.state == case.other.replica.state


def test_a_shard_that_was_never_held_has_no_store(case: SharedShard) -> None:
    """Its state is that of an empty shard, and its position is reported."""
    store = MemoryStore()
    store.close()
    node = Node(case, "c", LEAVE, store=store)
    assert report(node.driver, LogPosition(applied=0, pull_offset=0)).applied == 0
    node.until(S.NONE)
    assert not store.is_open
    case.commit()
    node.assignment = FOLLOW
    node.until(S.FOLLOWER)
    assert node.replica.state == case.other.replica.state


def test_a_replica_whose_log_lost_records_fails_with_the_reason(case: SharedShard) -> None:
    """The driver's thread ends; the state is `failed`, and the node gets the error."""
    case.commit()
    case.trim()
    case.node.driver.start()
    case.node.driver.join(time.monotonic() + 9.0)
    (failure,) = case.node.failures
    assert isinstance(failure, LogMismatch)
    assert case.node.driver.role == S.FAILED
    assert case.node.driver.paused == str(failure)


# --------------------------------------------------------------------- A delay log that begins late


def test_a_shard_whose_delay_log_begins_above_0_is_replayed_from_where_its_first_record_says(
    case: SharedShard,
) -> None:
    """Records that were deleted before the first start were never accepted; a node without a store
    must find that again."""
    case.schedule(5, deleted=3)
    case.commit()
    case.lead()
    assert (case.other.replica.state.pending, case.other.replica.state.pull_offset) == (2, 5)
    case.follow_from_nothing()


def test_a_follower_begins_where_the_first_master_began_although_it_saw_older_records(
    case: SharedShard,
) -> None:
    """It started before the records were deleted; the first master began after that."""
    case.schedule(5)
    follower(case)
    case.schedule(0, deleted=3)
    case.commit()
    case.lead()
    case.follow_from_nothing()
    assert case.node.replica.state.totals.accepted == 2


def test_a_master_that_waits_with_its_first_record_does_not_begin_before_the_log(
    case: SharedShard,
) -> None:
    """Its disk is full when it has taken over, and records are deleted before there is room
    again."""
    case.schedule(5)
    case.other.until(S.TAKING_OVER)
    while not isinstance(case.other.replica._phase, BeginPhase):
        case.other.step()
    case.other.guard = "1 MiB free"
    case.other.step()
    case.schedule(0, deleted=3)
    case.other.guard = None
    case.other.until(S.MASTER)
    case.lead()
    assert case.other.replica.state.totals.accepted == 2
    case.follow_from_nothing()


def test_a_store_decided_by_newer_rules_is_refused_although_nothing_is_left_to_replay(
    case: SharedShard,
) -> None:
    """As after an orderly stop of a newer version: no record that names its rules is read."""
    case.commit()
    case.lead()
    store, row = case.node.store, pack_state(case.node.replica.state)
    newer = row[:1] + bytes([RULES + 1]) + row[2:]
    store.write([(STATE_KEY, newer)], [])
    with pytest.raises(LogMismatch, match=f"by rules {RULES + 1}, .* up to {RULES}: a newer"):
        Node(case, "a", STANDALONE, store=store)
    assert store.get([STATE_KEY]) == [newer]


def test_a_delay_log_that_lost_accepted_records_is_an_error_of_an_empty_store(
    case: SharedShard,
) -> None:
    case.commit()
    case.schedule(5, deleted=3)
    with pytest.raises(LogMismatch, match="begins at 3, but the store needs it from 0 on"):
        case.node.steps(STEPS_MAX)


# ----------------------------------------------------------------------- Partitions that were added


@pytest.mark.parametrize("assignment", [FOLLOW, lead(9)], ids=["follower", "master"])
def test_a_log_that_was_written_with_another_number_of_shards_is_a_named_error(
    case: SharedShard, assignment: Assignment
) -> None:
    """The topics got a second partition, and the configuration followed: no cancel would find what
    has moved."""
    case.schedule(5)
    case.commit()
    case.lead()
    grown = Node(case, "c", assignment, shards=2)
    with pytest.raises(
        LogMismatch, match="names 1 as the number of shards, and it is 2 now: partitions were added"
    ):
        grown.steps(STEPS_MAX)
    assert grown.replica.role != S.MASTER
    assert grown.replica.state.applied == 0


# ---------------------------------------------------------------------- Records of another program


def test_records_of_another_program_in_the_progress_log_are_stepped_over_and_named(
    case: SharedShard,
) -> None:
    """They have a key or headers. One line names the first of them, and one a minute the next."""
    follower(case)
    case.commit()
    case.schedule(2)
    for key, headers in ((b"k", {}), (None, {"a": b"1"})):
        case.log.append([(case.progress, key, b"x", headers, 0)], 9.0)
    case.lead()
    with capture_logs() as lines:
        case.follow_from_nothing()
    (line,) = [line for line in lines if "another program" in line["event"]]
    assert (line["records"], line["key"], line["partition"]) == (2, "b'k'", f"{case.progress}/0")
    assert case.node.replica.state.totals.accepted == 2
    assert case.other.replica.aborts == 0
    case.node.assignment = lead(9)
    case.node.until(S.MASTER)


def test_a_shard_begins_where_its_first_progress_record_says_whatever_is_before_it(
    case: SharedShard,
) -> None:
    case.log.append([(case.progress, b"k", b"x", {}, 0)] * 3, 9.0)
    case.schedule(5, deleted=3)
    case.commit()
    case.lead()
    assert (case.other.replica.state.pending, case.other.replica.state.pull_offset) == (2, 5)
    case.schedule(0, deleted=4)
    with pytest.raises(LogMismatch, match="begins at 4, but the store needs it from 3 on"):
        case.node.steps(STEPS_MAX)


@pytest.mark.parametrize("number", [RULES + 1, 255])
def test_a_progress_record_of_newer_rules_ends_a_replica_which_applies_nothing_of_it(
    case: SharedShard, number: int
) -> None:
    case.commit()
    follower(case)
    before = rows_of(case.node.store)
    newer = VERSION + bytes([number]) + b"\xc1"
    case.log.append([(case.progress, None, newer, (), 0)], 9.0)
    with pytest.raises(
        LogMismatch,
        match=f"record at offset .* cannot be applied: .* by rules {number}, .* Upgrade",
    ):
        case.node.steps(STEPS_MAX)
    assert rows_of(case.node.store) == before


# -------------------------------------------------------------------------------- What a phase owns


class WatchedLog(EmbeddedLog):
    """Knows which readers and writers are open, and calls `during` in the calls of a writer."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.opened: list[object] = []
        self.during: Callable[[str], None] = lambda call: None

    def _watched(self, part: Any) -> Any:
        close = part.close

        def close_once() -> None:
            self.opened.remove(part)
            close()

        part.close = close_once
        self.opened.append(part)
        return part

    def reader(self, topic: str, partition: int, offset: int, **mode: Any) -> Any:
        return self._watched(super().reader(topic, partition, offset, **mode))

    def writer(self, shard: int) -> Any:
        return self._watched(WatchedWriter(super().writer(shard), self))


class WatchedWriter(AroundWriter):
    def __init__(self, writer: Writer, log: WatchedLog) -> None:
        super().__init__(writer)
        self._log = log

    def begin_at(self, end: int) -> None:
        self._log.during("begin_at")
        super().begin_at(end)

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        self._log.during("commit")
        return super().commit(verify, meanwhile)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[SharedShard]:
    made = SharedShard(tmp_path, log_type=WatchedLog)
    made.commit()
    made.schedule(3)
    made.lead()
    follower(made)
    made.node.steps(STEPS_MAX)
    yield made
    made.log.close()


def during(case: SharedShard, look: Callable[[str], None]) -> None:
    assert isinstance(case.log, WatchedLog)
    case.log.during = look


def opened(case: SharedShard) -> list[object]:
    assert isinstance(case.log, WatchedLog)
    return list(case.log.opened)


def test_everything_that_a_phase_hands_over_is_closed_if_it_breaks_off(
    watched: SharedShard,
) -> None:
    """The writer is open, and the reader of the follower is that of the puller, when the writer
    fails to find the end of the log."""
    follows = opened(watched)  # two readers of the node, a reader and the writer of the other one

    def fails(call: str) -> None:
        assert len(opened(watched)) == len(follows) + 1
        raise LogUnavailable(f"{call}: no broker")

    assert len(follows) == 4
    during(watched, fails)
    watched.node.assignment = lead(9)
    watched.node.until(S.TAKING_OVER)
    watched.node.step()
    assert watched.node.replica.paused == "begin_at: no broker"
    assert len(opened(watched)) == 2
    during(watched, lambda call: None)
    watched.node.until(S.MASTER)
    assert len(opened(watched)) == 4
    watched.node.replica.close()
    assert len(opened(watched)) == 2


def test_a_master_that_hangs_in_a_commit_is_seen_as_it_is(watched: SharedShard) -> None:
    """What other threads read during a step is that of its phase: a stall is judged by it."""
    replica = watched.node.replica
    found: list[tuple[str, int, int | None, int | None]] = []
    watched.node.assignment = lead(9)
    watched.node.until(S.MASTER)
    during(
        watched,
        lambda call: found.append((call, replica.pulled, replica.due_ms, replica.replayed)),
    )
    watched.schedule(2)
    watched.node.turn()
    ((call, pulled, due_ms, replayed),) = found
    assert (call, pulled, replayed) == ("commit", 3, None)
    assert due_ms is not None
    assert due_ms > watched.clock.now
    assert replica.pulled == 5


def test_a_committed_step_is_reported_although_the_deletion_after_it_fails(
    case: SharedShard,
) -> None:
    """The replica starts again, and requests that wait for the outcome get it."""

    class FullStore(MemoryStore):
        full = False

        def scan(
            self, start: bytes, stop: bytes, count_max: int, bytes_max: int
        ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
            if self.full and start == CURSOR_HISTORY:
                raise NoSpace("no space left")
            return super().scan(start, stop, count_max, bytes_max)

    store = FullStore()
    node = Node(case, "c", STANDALONE, store=store)
    node.until(S.MASTER)
    case.clock.now += DELETE_EVERY_MS
    case.schedule(1)
    store.full = True
    report = node.turn().report
    assert report is not None
    assert (node.replica.role, node.replica.paused) == (S.STEPPED_DOWN, "no space left")
    assert node.replica.commits == 1
    store.full = False
    node.until(S.MASTER)
    assert node.replica.state.pending == 1
