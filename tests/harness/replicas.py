"""A log with one shard and the nodes that share it, whose replicas are stepped by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.config import load
from chronos.core.cron import ZONE_DATA, ZoneData
from chronos.core.shard.digest import digest
from chronos.errors import ChronosError, Retry
from chronos.node.shards import ShardDriver, Shared, make_shard
from chronos.node.topics import own_topics
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.phases import ReplicaTurn
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.lanes import RateLimits
from chronos.workers.step.master import HEARTBEAT_MS
from tests.harness.clock import HandClock
from tests.harness.memory import MemoryStore

STEPS_MAX = 20
"""Steps in which a replica must reach the next state, without any time passing."""


FOLLOW, LEAVE = Assignment(kind="follower"), Assignment(kind="none")


S = ReplicaState


def lead(epoch: int) -> Assignment:
    """The assignment of the master of a cluster."""
    return Assignment(kind="master", epoch=epoch)


class Node:
    """A node with one shard, whose replica is stepped by hand."""

    def __init__(
        self,
        case: SharedShard,
        name: str,
        assignment: Assignment,
        *,
        shards: int = 1,
        bounded: bool = False,
        store: MemoryStore | None = None,
        zone_data: ZoneData = ZONE_DATA,
    ) -> None:
        self.assignment = assignment
        self.guard: str | None = None
        self.fetch: Callable[[RecoveryCost], bool] = lambda cost: False
        """What `restore` does."""
        self.clock = case.clock
        self.store = store or MemoryStore()
        self.failures: list[ChronosError] = []
        shared = Shared(
            config=load(None, {}, [f"shards={shards}", f"node.id={name}"]),
            log=case.log,
            clock=case.clock,
            instance=name,
            guard=lambda: self.guard,
            failed=self.failures.append,
            limits=case.limits,
            zone_data=zone_data,
        )
        self.driver: ShardDriver = make_shard(
            shared,
            0,
            store=self.store,
            assigned=lambda: self.assignment,
            restore=lambda cost: self.fetch(cost),
            bounded=bounded,
        )
        self.replica: Replica = self.driver.replica

    def turn(self) -> ReplicaTurn:
        """One step."""
        return self.replica.step(self.clock.now)

    def step(self) -> int:
        """One step; how many ms later the replica wants the next one."""
        return self.turn().wake_ms - self.clock.now

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def until(self, role: ReplicaState) -> None:
        """Step until the replica is in the state."""
        for _ in range(STEPS_MAX):
            if self.replica.role == role:
                return
            self.step()
        assert self.replica.role == role


class SharedShard:
    """A log with one shard, and the nodes that share it; `node` is the one under test."""

    def __init__(
        self,
        path: Path,
        *,
        limits: RateLimits | None = None,
        log_type: type[EmbeddedLog] = EmbeddedLog,
    ) -> None:
        self.clock = HandClock()
        self.limits = limits
        config = load(None, {}, ["shards=1"])
        self.delay, self.progress = config.topics.delay, config.topics.progress
        self.log = log_type(
            path / "log", clock=self.clock, progress_topic=self.progress, disk_reserve_bytes=0
        )
        self.log.prepare(own_topics(config), create=True)
        self.node = Node(self, "a", FOLLOW)
        self.other = Node(self, "b", STANDALONE)

    def commit(self) -> None:
        """Have the other node lead, or commit another heartbeat."""
        if self.other.replica.role == S.MASTER:
            self.clock.now += HEARTBEAT_MS
            self.other.step()
        self.other.until(S.MASTER)

    def trim(self) -> None:
        """Drop everything from the progress log."""
        self.log.trim(self.progress, 0, self.log.stable_end(self.progress, 0))

    def schedule(self, count: int, *, deleted: int = 0, delay: bytes = b"1d") -> None:
        """Append messages to the delay topic, and delete its first records, as retention does, down
        to this offset."""
        headers = {"chronos-target-topic": b"t", "chronos-delay": delay}
        self.log.append(
            [(self.delay, b"%d" % number, b"v", headers, 0) for number in range(count)], 9.0
        )
        self.log.trim(self.delay, 0, deleted)

    def lead(self) -> None:
        """Have the other node, which is the master, execute what is in the delay log."""
        for _ in range(STEPS_MAX):
            self.clock.now += 10
            self.other.step()

    def follow_from_nothing(self) -> None:
        """Have the node under test follow with its empty store, and compare it with the other
        one's."""
        self.node.until(S.FOLLOWER)
        self.node.steps(STEPS_MAX)
        assert self.node.replica.state == self.other.replica.state
        assert digest(self.node.store) == digest(self.other.store)

    def break_off(self) -> None:
        """A failure that the replica can only mend by starting again from its store."""
        self.node.guard = "the disk is full"
        self.node.step()
        self.node.guard = None

    def no_checkpoint(self) -> None:
        """From now on a store that needs a checkpoint cannot be restored yet."""

        def fetch(cost: RecoveryCost) -> bool:
            if cost.store_empty or not cost.logs_complete:
                raise Retry("no node answers")
            return False

        self.node.fetch = fetch
