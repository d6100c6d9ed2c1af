"""The observer of masters, on the simulator's brokers: what it sends, what it takes for an
observation, what it judges."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from chronos.core.cluster.health import HealthRules, Verdict
from chronos.core.cluster.roles import Member, Roles, ShardRoles
from chronos.ports import ClusterSnapshot
from chronos.workers.cluster.observer import (
    TAKE_OVER_MS,
    HealthObserver,
    MasterPosition,
    ProbedTopic,
)
from chronos.workers.replica.state import ReplicaState
from tests.harness.zookeeper import member
from tests.sim.broker import DELAY, Brokers, Transaction
from tests.sim.log import SimLog
from tests.sim.simulation import Observer as Caller
from tests.sim.world import World

RULES = HealthRules()
SHARDS = 3
ROUND = RULES.every_ms // RULES.timeout_ms
"""Steps in which every shard is observed once."""
HEALTHY, UNHEALTHY = Verdict(epoch=1, healthy=True), Verdict(epoch=1, healthy=False)


class WorldClock:
    """The simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms

    def stepped_ms(self) -> int:
        return 0


class SlowLog(SimLog):
    """A log that needs time to tell where a partition ends."""

    def __init__(self, caller: Caller, brokers: Brokers, meanwhile: Callable[[], None]) -> None:
        super().__init__(caller, brokers)
        self._meanwhile = meanwhile

    def stable_end(self, topic: str, partition: int) -> int:
        end = super().stable_end(topic, partition)
        self._meanwhile()
        return end


class ObservedShards:
    """Some observers of three shards, whose masters execute everything at once unless they are
    stuck."""

    def __init__(self, observers: int = 1, rules: HealthRules = RULES) -> None:
        self.world = World(0)
        self.brokers = Brokers(self.world, lambda transaction: None)
        self.brokers.create(DELAY, SHARDS)
        self.roles = {shard: ShardRoles(master="m", epoch=1) for shard in range(SHARDS)}
        self.stuck: dict[int, MasterPosition] = {}
        """Shards whose masters do nothing, and where they stand."""
        self.cursors = dict.fromkeys(range(SHARDS), 0)
        self.members: dict[str, Member] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while an observer waits for the end of a partition."""
        self.shown = True
        """The replicas show how far the masters have come."""
        self.callers = [Caller(self.world) for _ in range(observers)]
        self.observers = [
            HealthObserver(
                ProbedTopic(
                    log=SlowLog(caller, self.brokers, lambda: self.meanwhile()),
                    appender=SimLog(caller, self.brokers),
                    topic=DELAY,
                    shards=SHARDS,
                ),
                rules,
                clock=WorldClock(self.world),
                snapshot=lambda: ClusterSnapshot(
                    roles=Roles(shards=dict(self.roles)), members=dict(self.members), confirmed=True
                ),
                position_of=self.look,
            )
            for caller in self.callers
        ]

    def look(self, shard: int, master: str) -> MasterPosition | None:
        assert master == self.roles[shard].master
        return self.stuck.get(shard, self.position(shard)) if self.shown else None

    def position(self, shard: int) -> MasterPosition:
        return MasterPosition(
            cursor=(self.cursors[shard], 0), pull_offset=self.brokers.topics[DELAY][shard].stable
        )

    def records(self, shard: int) -> int:
        return len(self.brokers.topics[DELAY][shard].committed())

    def stick(self, shard: int) -> None:
        self.stuck[shard] = self.position(shard)

    def step(self, steps: int = ROUND) -> None:
        """Each observer makes so many steps, one after the other within each time-out."""
        for _ in range(steps):
            for observer in self.observers:
                self.world.pass_time(RULES.timeout_ms // len(self.observers))
                observer.step()

    def verdict(self, shard: int) -> Verdict | None:
        verdicts = [observer.verdict(shard) for observer in self.observers]
        assert all(verdict == verdicts[0] for verdict in verdicts)
        return verdicts[0]


def test_an_idle_shard_is_sent_one_probe_a_period() -> None:
    """HA-12: a record with the action `probe`, to the shard's own partition."""
    case = ObservedShards()
    case.step(5 * ROUND)
    for shard in range(SHARDS):
        assert case.records(shard) == 5
        assert case.verdict(shard) == HEALTHY


def test_a_shard_that_moves_is_sent_no_probe_after_the_first() -> None:
    """A moving cursor counts as healthy, however slow each step is."""
    case = ObservedShards()
    for _ in range(12):
        case.step()
        case.cursors[1] += 1
    assert [case.records(shard) for shard in range(SHARDS)] == [12, 1, 12]
    assert case.verdict(1) == HEALTHY


def test_several_observers_send_no_more_probes_than_one() -> None:
    """What one of them sends moves the shard for the others too."""
    case = ObservedShards(observers=3)
    case.step(20 * ROUND)
    for shard in range(SHARDS):
        assert case.records(shard) <= 22
        assert case.verdict(shard) == HEALTHY


def test_a_stuck_master_is_unhealthy_after_five_periods_and_healthy_when_it_moves() -> None:
    """HA-22: and no other shard is concerned."""
    case = ObservedShards()
    case.step()
    case.stick(1)
    before_ms = case.world.now_ms
    while case.verdict(1) != UNHEALTHY:
        case.step(1)
        assert case.world.now_ms - before_ms <= 6 * RULES.every_ms + RULES.timeout_ms
    assert case.world.now_ms - before_ms > 4 * RULES.every_ms
    assert (case.verdict(0), case.verdict(2)) == (HEALTHY, HEALTHY)
    del case.stuck[1]
    case.step()
    assert case.verdict(1) == HEALTHY


def test_a_master_that_moves_while_the_end_of_its_partition_is_asked_for_is_healthy() -> None:
    """The request may take seconds: what the shard showed before it is no failure."""
    case = ObservedShards()
    case.step()
    case.stick(1)

    def move() -> None:
        case.cursors[1] += 1
        case.stick(1)

    case.meanwhile = move
    case.step(10 * ROUND)
    assert case.cursors[1] > 5
    assert case.verdict(1) == HEALTHY


def test_a_master_that_is_stuck_from_the_start_is_unhealthy_after_five_periods() -> None:
    """HA-19 mended: the first observation counts."""
    case = ObservedShards()
    case.stick(0)
    case.step(5 * ROUND + 1)
    assert case.verdict(0) == UNHEALTHY


def test_a_new_master_is_judged_by_what_it_does_itself() -> None:
    """HA-44."""
    case = ObservedShards()
    case.stick(0)
    case.step(5 * ROUND + 1)
    case.roles[0] = replace(case.roles[0], master="n", epoch=2)
    case.step()
    assert case.verdict(0) == Verdict(epoch=2, healthy=True)
    case.step(5 * ROUND)
    assert case.verdict(0) == Verdict(epoch=2, healthy=False)


def test_without_a_master_or_a_replica_that_shows_it_there_is_no_verdict() -> None:
    """HA-16, HA-18, HA-24: what is not seen is no failure, and is forgotten."""
    case = ObservedShards()
    case.roles[2] = ShardRoles()
    case.step(ROUND + 1)
    assert [case.verdict(shard) for shard in range(SHARDS)] == [HEALTHY, HEALTHY, None]
    case.shown, before = False, [case.records(shard) for shard in range(SHARDS)]
    case.step(6 * ROUND)
    assert [case.verdict(shard) for shard in range(SHARDS)] == [None] * 3
    assert [case.records(shard) for shard in range(SHARDS)] == before
    assert before[2] == 0


def test_an_observer_that_the_log_does_not_answer_judges_nobody() -> None:
    """HA-15: it could not ask."""
    case = ObservedShards()
    case.step()
    case.callers[0].log_cut_ms = case.world.now_ms + 1_000_000
    case.step(8 * ROUND)
    assert [case.verdict(shard) for shard in range(SHARDS)] == [None] * 3


def test_a_partition_that_takes_no_records_keeps_no_other_master_from_being_judged() -> None:
    """It has no leader; the probes of one step are one request. Once it takes records again, its
    own master is judged too."""
    case = ObservedShards(rules=HealthRules(every_ms=RULES.timeout_ms))  # all shards in each step
    case.step(2)
    lone = case.brokers.topics[DELAY][0]
    case.brokers.leaderless[lone.name] = case.world.now_ms + 60_000
    case.stick(0)
    case.stick(1)
    case.step(20)
    assert case.verdict(0) is None
    assert case.verdict(1) == UNHEALTHY
    assert case.verdict(2) == HEALTHY
    while case.brokers.is_paused(lone):
        case.step(1)
    case.step(20)
    assert case.verdict(0) == UNHEALTHY


def test_a_probe_behind_the_open_transaction_of_a_producer_says_nothing_about_the_master() -> None:
    """No master can read it, so it is no observation; when the transaction ends, the master is
    judged again."""
    case = ObservedShards()
    case.step()
    partition, transaction = case.brokers.topics[DELAY][1], Transaction(None, 0)
    case.brokers.append(partition, None, b"", None, transaction)
    for _ in range(8 * ROUND):
        case.step(1)
        assert case.verdict(1) in (HEALTHY, None)
        assert (case.verdict(0), case.verdict(2)) == (HEALTHY, HEALTHY)
    assert case.verdict(1) is None
    case.brokers.decide(transaction, commit=True)
    case.step(ROUND + 1)
    assert case.verdict(1) == HEALTHY
    case.stick(1)
    case.step(6 * ROUND)
    assert case.verdict(1) == UNHEALTHY


def test_a_probe_whose_partition_cannot_be_asked_for_its_end_is_no_observation() -> None:
    case = ObservedShards()
    case.stick(0)
    for _ in range(8):
        case.step()
        # The probe of this step is written, and the end of its partition is asked for in the next
        # one.
        case.callers[0].log_cut_ms = case.world.now_ms + RULES.timeout_ms + 1
        assert case.verdict(0) is None
    assert case.records(0) == 8


def test_a_master_is_not_judged_by_failures_while_it_takes_over() -> None:
    """By its own report, and for a time: one that never gets there is found too."""
    case = ObservedShards()
    case.roles[0] = replace(case.roles[0], master="n", epoch=2)
    case.stick(0)
    taking_over = member("n", shards=1)
    replica = replace(taking_over.replicas[0], role=ReplicaState.TAKING_OVER)
    case.members["n"] = replace(taking_over, replicas={0: replica})
    case.step(TAKE_OVER_MS // RULES.timeout_ms)
    assert case.verdict(0) is None
    del case.stuck[0]
    case.step()
    assert case.verdict(0) == Verdict(epoch=2, healthy=True)
    case.roles[0] = replace(case.roles[0], epoch=3)
    case.stick(0)
    case.step(TAKE_OVER_MS // RULES.timeout_ms)
    assert case.verdict(0) is None
    case.step(6 * ROUND)
    assert case.verdict(0) == Verdict(epoch=3, healthy=False)


def test_a_new_master_that_reports_its_role_is_judged_at_once() -> None:
    case = ObservedShards()
    case.stick(0)
    master = member("m", shards=1)
    case.members["m"] = replace(
        master, replicas={0: replace(master.replicas[0], role=ReplicaState.MASTER)}
    )
    case.step(5 * ROUND + 1)
    assert case.verdict(0) == UNHEALTHY


def test_a_verdict_ends_with_the_thread_that_gave_it() -> None:
    """HA-24."""
    case = ObservedShards()
    case.step()
    case.world.pass_time(RULES.forgotten_ms)
    assert case.verdict(0) is None
