"""Checkpoints: the storage that all nodes share, and the maintenance thread of one node.

The code under test decides when a checkpoint is made, what is trimmed, and what a store is restored
from (`workers.replica.checkpoint`, `node.bootstrap`). This module supplies the storage and the
transfer of a store between nodes."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from chronos.core.cluster.roles import Member, ShardRoles
from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import RULES, Identity, State, unpack_state
from chronos.errors import NoSpace, Retry, StoreCorrupt
from chronos.node.bootstrap import OtherNodes, StoreBootstrap
from chronos.ports import Checkpoint, ClusterSnapshot, Store
from chronos.workers.cluster.membership import Membership
from chronos.workers.replica.checkpoint import (
    Checkpointer,
    CheckpointSettings,
    LogPosition,
    Trimming,
    needed_from,
)
from chronos.workers.replica.recovery import RecoveryCost
from tests.sim.broker import DELAY, PROGRESS, Partition
from tests.sim.store import NOWHERE, SimStore
from tests.sim.world import Crashed, World, broken

if TYPE_CHECKING:
    from tests.sim.node import Process, SimulatedNode
    from tests.sim.thread import ReplicaThread

INTACT_MIN = 3
"""A checkpoint is damaged only while this many are intact: no promise covers the loss of all
copies."""

MAINTENANCE_MS = 1_000
"""Interval at which a process checks whether a flush or a checkpoint is due."""


class SeedCheckpoints(Struct, frozen=True, kw_only=True):
    """The settings of checkpoints in one seed."""

    every_ms: int
    keep: int
    keep_logs_ms: int
    flush_every_ms: int
    away_ms: int
    """Time after which a node that is away no longer holds trimming back."""
    copying_ms: int
    """Longest time to make or to fetch a checkpoint."""


class StoredCheckpoint(Struct):
    """One checkpoint in the storage."""

    checkpoint: Checkpoint
    rows: dict[bytes, bytes]
    damaged: bool = False
    """Its files have the right sizes and wrong content."""


def identity_of(shard: int, shards: int) -> Identity:
    """The identity of all stores of a shard."""
    return Identity(
        cluster="simulated",
        shard=shard,
        shards=shards,
        delay_topic=DELAY,
        delay_topic_id="1",
        progress_topic=PROGRESS,
        progress_topic_id="2",
    )


def describe(rows: dict[bytes, bytes], identity: Identity, node: str, now_ms: int) -> Checkpoint:
    """The manifest of a checkpoint with these rows."""
    data = rows.get(STATE_KEY)
    state = State() if data is None else unpack_state(data)
    return Checkpoint(
        format=1,
        rules=RULES,
        shard=identity.shard,
        node=node,
        version="",
        made_at_ms=now_ms,
        identity=identity,
        applied=state.applied,
        pull_offset=state.pull_offset,
        cursor_due_ms=state.cursor_due_ms,
        cursor_offset=state.cursor_offset,
        progress_ms=state.progress_ms,
        pending=state.pending,
        digest="",
        remembered_ms=0,
        files=(),
    )


class CheckpointStorage:
    """The storage: it keeps every checkpoint until it is removed, may be unreachable, and may
    damage content."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.unreachable_ms = 0
        """Until when no node reaches it."""
        self.kept: dict[int, dict[str, StoredCheckpoint]] = {}

    def of(self, shard: int) -> list[StoredCheckpoint]:
        """The checkpoints of a shard, the furthest first."""
        if self.world.now_ms < self.unreachable_ms:
            raise Retry("the storage of the checkpoints cannot be reached")
        kept = self.kept.setdefault(shard, {})
        return [kept[name] for name in sorted(kept, reverse=True)]

    def damage(self, shard: int, choose: Callable[[Sequence[str]], str]) -> None:
        """Damage one, as long as enough others are intact."""
        intact = [
            name for name, kept in sorted(self.kept.get(shard, {}).items()) if not kept.damaged
        ]
        if len(intact) >= INTACT_MIN:
            name = choose(intact)
            self.world.trace(f"checkpoint {name} of shard {shard} is damaged")
            self.kept[shard][name].damaged = True

    def check(self, partition: Partition, keep: int) -> None:
        """Law 1: a trim leaves at least `keep` checkpoints that reach the new start, and one of
        them is intact."""
        found = list(self.kept.get(partition.number, {}).values())
        reaching = [
            kept
            for kept in found
            if (
                kept.checkpoint.pull_offset if partition.topic == DELAY else kept.checkpoint.applied
            )
            >= partition.start
        ]
        if len(reaching) < keep or all(kept.damaged for kept in reaching):
            raise broken(
                "1",
                (
                    f"{partition.name} starts at {partition.start}, which only {len(reaching)} "
                    "checkpoints reach"
                ),
            )


class SimCheckpoints:
    """See `ports.Checkpoints`: the storage as one node sees it; `restore` reads a checkpoint
    back."""

    def __init__(
        self,
        storage: CheckpointStorage,
        node: SimulatedNode,
        settings: SeedCheckpoints,
        pause: Callable[[str, int], None],
    ) -> None:
        self._storage = storage
        self._node = node
        self._settings = settings
        self._pause = pause

    def save(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        assert isinstance(store, SimStore)
        node = self._node
        rows = store.rows()
        made = describe(rows, identity_of(shard, node.settings.shards), node.node_id, now_ms)
        for known in self._storage.of(shard):
            if known.checkpoint.name == made.name and known.rows == rows:
                return known.checkpoint
        self._storage.kept[shard].pop(made.name, None)
        self._pause("save", self._settings.copying_ms)
        self._storage.of(shard)
        self._storage.world.trace(f"{node.name}/{shard} has made checkpoint {made.name}")
        self._storage.kept[shard][made.name] = StoredCheckpoint(made, rows)
        return made

    def kept(self, shard: int, identity: Identity) -> list[Checkpoint]:
        return [
            kept.checkpoint
            for kept in self._storage.of(shard)
            if kept.checkpoint.identity == identity
        ]

    def is_intact(self, checkpoint: Checkpoint) -> bool:
        return any(kept.checkpoint == checkpoint for kept in self._storage.of(checkpoint.shard))

    def prune(self, shard: int, identity: Identity, keep: int) -> list[str]:
        names = [kept.checkpoint.name for kept in self._storage.of(shard)][keep:]
        for name in names:
            del self._storage.kept[shard][name]
        return names

    def archived(self, shard: int, identity: Identity) -> dict[str, int]:
        """No simulated cluster has an archive."""
        self._storage.of(shard)
        return {}

    def keep_archived(self, shard: int, identity: Identity, offsets: Mapping[str, int]) -> None:
        raise AssertionError("no simulated cluster has an archive")

    def restore(self, shard: int, identity: Identity, into: Path) -> Checkpoint | None:
        tried = []
        for kept in self._storage.of(shard):
            self._pause("restore", self._settings.copying_ms)
            self._storage.of(shard)
            if kept.damaged:
                tried.append(kept.checkpoint.name)
            else:
                self._node.disk.fetched[into] = kept.rows
                return kept.checkpoint
        if tried:
            raise StoreCorrupt(f"all checkpoints of shard {shard} are damaged: {', '.join(tried)}")
        return None


class SimBootstrap(StoreBootstrap):
    """The code under test, with a direct transfer in place of HTTP."""

    def __init__(
        self,
        checkpoints: SimCheckpoints,
        node: SimulatedNode,
        membership: Membership | None,
        pause: Callable[[str, int], None],
        copying_ms: int,
    ) -> None:
        super().__init__(
            None,  # type: ignore[arg-type]
            checkpoints=checkpoints,  # type: ignore[arg-type]
            others=None
            if membership is None
            else OtherNodes(
                membership=membership,
                node=node.node_id,
                token="",
                tls=ssl.create_default_context,
            ),
            stopping=threading.Event(),
            clock=node.clock,
            stores=NOWHERE.parent,
        )
        self._turn = TryLock()  # type: ignore[assignment]
        self._owner = node
        self._pause = pause
        self._copying_ms = copying_ms

    def _fetch(self, member: Member, identity: Identity, into: Path) -> Checkpoint:
        other = next((peer for peer in self._owner.peers if peer.instance == member.instance), None)
        if (
            other is None
            or other.process is None
            or other.frozen
            or identity.shard not in other.stores
        ):
            raise Retry(f"node {member.node} does not answer")
        try:
            rows = other.stores[identity.shard].rows()
        except (StoreCorrupt, NoSpace) as error:
            raise Retry(f"node {member.node}: {error}") from error
        self._pause("fetch", self._copying_ms)
        self._owner.disk.fetched[into] = rows
        return describe(rows, identity, member.node, self._owner.clock.now_ms())


class TryLock:
    """A lock for code that runs in one thread: `acquire` never waits, the caller tries again
    later."""

    def __init__(self) -> None:
        self._taken = False

    def acquire(self, timeout: float) -> bool:
        taken, self._taken = self._taken, True
        return not taken

    def release(self) -> None:
        self._taken = False


class Maintenance:
    """The maintenance thread: flushes, checkpoints and trims, as `chronos/node` does."""

    def __init__(self, process: Process) -> None:
        node = process.node
        assert node.storage is not None
        assert node.checkpoint_settings is not None
        self.process = process
        self.node = node
        self.world = process.world
        self.settings = node.checkpoint_settings
        self.checkpoints = SimCheckpoints(node.storage, node, self.settings, self._pause)
        self.bootstrap = SimBootstrap(
            self.checkpoints, node, process.membership, self._pause, self.settings.copying_ms
        )
        self.flushed = {thread.shard: _position(thread.replica.state) for thread in process.threads}
        """Position of each store at its last flush, which is where a crash would put it back."""
        self.trim_snapshots: dict[int, ClusterSnapshot] = {}
        """For each shard, the snapshot that the last trim was computed from."""
        self._flushed_ms = self.world.now_ms
        self._checkpointers = [self._checkpointer(thread) for thread in process.threads]
        self.world.after(self.world.random.randrange(1, MAINTENANCE_MS), self._step)

    def _checkpointer(self, thread: ReplicaThread) -> Checkpointer:
        return Checkpointer(
            self.checkpoints,
            thread.log,
            thread.replica.store,
            identity=identity_of(thread.shard, self.node.settings.shards),
            settings=CheckpointSettings(
                every_ms=self.settings.every_ms,
                keep=self.settings.keep,
                keep_logs_ms=self.settings.keep_logs_ms,
            ),
            trimming=Trimming(
                replicas=lambda: self._needed_from(thread.shard),
                trims=lambda: thread.replica.role == "master",
            ),
        )

    def _needed_from(self, shard: int) -> list[LogPosition | None]:
        membership, kept = self.process.membership, self.flushed[shard]
        if membership is None:
            return [kept]
        now_ms = self.node.clock.now_ms()
        snapshot, away_ms = membership.snapshot(), self.settings.away_ms
        self.trim_snapshots[shard] = snapshot
        return needed_from(
            snapshot, shard, node=self.node.node_id, flushed=kept, now_ms=now_ms, away_ms=away_ms
        )

    def counted(self, shard: int, node_id: str) -> bool:
        """Return whether the last trim of a shard had to leave what a node needs: it had the shard,
        and was there or not away for long. A node that came back or was given the shard since then
        checks where the logs start before it reads them."""
        snapshot = self.trim_snapshots.get(shard)
        if snapshot is None or snapshot.roles is None:
            return False
        roles = snapshot.roles
        now_ms = self.node.clock.now_ms()
        there = (
            node_id in snapshot.members
            or now_ms - roles.away.get(node_id, now_ms) < self.settings.away_ms
        )
        return there and node_id in roles.shards.get(shard, ShardRoles()).replicas

    def restore(self, store: SimStore, cost: RecoveryCost) -> bool:
        """Replace the content of the store by a checkpoint where the code under test decides so;
        return whether."""
        shard = int(store.path.name)
        identity = identity_of(shard, self.node.settings.shards)
        found = self.bootstrap.restore(store, identity, cost)  # type: ignore[arg-type]
        if found is None:
            return False
        self.world.trace(f"{self.node.name}/{shard} is restored from {found.name}")
        self.flushed[shard] = LogPosition(applied=found.applied, pull_offset=found.pull_offset)
        return True

    def _step(self) -> None:
        """Flush, make checkpoints and trim, each when it is due."""
        node, process = self.node, self.process
        if process.dead or process.stopping:
            return
        if node.frozen:
            self.world.at(node.frozen_ms, self._step)
            return
        try:
            self._flush()
            for checkpointer in self._checkpointers:
                with suppress(Retry):
                    checkpointer.step(node.clock.now_ms())
        except Crashed:
            return
        except StoreCorrupt:
            node.lose_stores()
            return
        self.world.after(MAINTENANCE_MS, self._step)

    def _flush(self) -> None:
        if self.world.now_ms - self._flushed_ms < self.settings.flush_every_ms:
            return
        self._flushed_ms = self.world.now_ms
        with suppress(NoSpace):
            for thread in self.process.threads:
                store = self.node.stores[thread.shard]
                if not store.is_open:
                    continue
                store.flush()
                self.flushed[thread.shard] = _position(store.durable)

    def _pause(self, where: str, wait_ms: int) -> None:
        """Copying takes time in which all other threads run; here the process may freeze or die."""
        self.process.touch(where)
        if self.world.faulty:
            self.world.pass_time(self.world.random.randrange(1, wait_ms))
        self.process.touch(where)


def _position(state: State) -> LogPosition:
    return LogPosition(applied=state.applied, pull_offset=state.pull_offset)
