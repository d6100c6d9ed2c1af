"""Checkpoints: the place where they are kept, which all nodes share, and what one node does with them.

Decided by the code under test are when one is made, what is trimmed, and where a store begins (`workers.checkpoint`,
`node.beginning`); here is only what lies behind: the storage, and the copy of a store that one node gives another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from chronos.core.codec import Identity, State, unpack_state
from chronos.core.keys import STATE_KEY
from chronos.core.roles import Member, Roles
from chronos.errors import NoSpace, Retry, StoreCorrupt
from chronos.node.bootstrap import StoreBootstrap
from chronos.ports import Checkpoint, Store
from chronos.workers.checkpoint import Checkpointer, LogPosition, needed_from
from chronos.workers.membership import Membership
from chronos.workers.recovery import RecoveryCost
from tests.sim.broker import DELAY, PROGRESS, Partition
from tests.sim.store import SimStore
from tests.sim.world import Crashed, World, broken

if TYPE_CHECKING:
    from tests.sim.node import Machine, Process, Thread

SOUND_MIN = 3
"""Fewer undamaged ones than this are not damaged: what nobody has any more, nobody can promise."""

KEEP_MS = 1_000
"""How often a process looks whether a flush or a checkpoint is due."""


class CheckpointScheduler(Struct, frozen=True, kw_only=True):
    """How checkpoints are kept in a seed."""

    every_ms: int
    keep: int
    keep_logs_ms: int
    flush_every_ms: int
    away_ms: int
    """How long a node that is away is waited for with trimming."""
    copying_ms: int
    """How long it takes at most to make or to fetch one."""


class Kept(Struct):
    """One checkpoint."""

    checkpoint: Checkpoint
    rows: dict[bytes, bytes]
    damaged: bool = False
    """Its files have their sizes, and something else in them."""


def identity_of(shard: int, shards: int) -> Identity:
    """What all stores of a shard belong to."""
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
    """What a checkpoint with these rows says of itself."""
    data = rows.get(STATE_KEY)
    state = State() if data is None else unpack_state(data)
    return Checkpoint(
        format=1,
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


class Depot:
    """The place: what was put there is there, until it is removed; it may be out of reach, and damage things."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.away_ms = 0
        """Until when nobody reaches it."""
        self.kept: dict[int, dict[str, Kept]] = {}

    def of(self, shard: int) -> list[Kept]:
        """The furthest first."""
        if self.world.now_ms < self.away_ms:
            raise Retry("the place of the checkpoints cannot be reached")
        kept = self.kept.setdefault(shard, {})
        return [kept[name] for name in sorted(kept, reverse=True)]

    def damage(self, shard: int, choose: Callable[[Sequence[str]], str]) -> None:
        """Spoil one, as long as others are left."""
        sound = [name for name, kept in sorted(self.kept.get(shard, {}).items()) if not kept.damaged]
        if len(sound) >= SOUND_MIN:
            name = choose(sound)
            self.world.tell(f"checkpoint {name} of shard {shard} is damaged")
            self.kept[shard][name].damaged = True

    def check(self, partition: Partition, keep: int) -> None:
        """Law 1: behind what was trimmed there are as many checkpoints as are kept, and one that is sound."""
        found = list(self.kept.get(partition.number, {}).values())
        reaching = [
            kept
            for kept in found
            if (kept.checkpoint.pull_offset if partition.topic == DELAY else kept.checkpoint.applied) >= partition.start
        ]
        if len(reaching) < keep or all(kept.damaged for kept in reaching):
            raise broken("1", f"{partition.name} begins at {partition.start}, behind {len(reaching)} checkpoints")


class SimCheckpoints:
    """See `ports.Checkpoints`: the depot as one node sees it; also what restores a store from there."""

    def __init__(
        self, depot: Depot, machine: Machine, keeping: CheckpointScheduler, pause: Callable[[str, int], None]
    ) -> None:
        self._depot = depot
        self._machine = machine
        self._keeping = keeping
        self._pause = pause

    def save(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        assert isinstance(store, SimStore)
        machine = self._machine
        rows = store.rows()
        made = describe(rows, identity_of(shard, machine.setting.shards), machine.node, now_ms)
        for known in self._depot.of(shard):
            if known.checkpoint.name == made.name and known.rows == rows:
                return known.checkpoint
        self._depot.kept[shard].pop(made.name, None)
        self._pause("save", self._keeping.copying_ms)
        self._depot.of(shard)
        self._depot.world.tell(f"{machine.name}/{shard} has made checkpoint {made.name}")
        self._depot.kept[shard][made.name] = Kept(made, rows)
        return made

    def kept(self, shard: int, identity: Identity) -> list[Checkpoint]:
        return [kept.checkpoint for kept in self._depot.of(shard) if kept.checkpoint.identity == identity]

    def is_intact(self, checkpoint: Checkpoint) -> bool:
        return any(kept.checkpoint == checkpoint for kept in self._depot.of(checkpoint.shard))

    def prune(self, shard: int, identity: Identity, keep: int) -> list[str]:
        names = [kept.checkpoint.name for kept in self._depot.of(shard)][keep:]
        for name in names:
            del self._depot.kept[shard][name]
        return names

    def restore(self, shard: int, identity: Identity, into: Path) -> Checkpoint | None:
        tried = []
        for kept in self._depot.of(shard):
            self._pause("restore", self._keeping.copying_ms)
            self._depot.of(shard)
            if kept.damaged:
                tried.append(kept.checkpoint.name)
            else:
                self._machine.disk.fetched[into] = kept.rows
                return kept.checkpoint
        if tried:
            raise StoreCorrupt(f"all checkpoints of shard {shard} are damaged: {', '.join(tried)}")
        return None


class SimBeginning(StoreBootstrap):
    """The code under test, with another way to a node's store than HTTP."""

    def __init__(self, checkpoints: SimCheckpoints, machine: Machine, membership: Membership | None,
                 pause: Callable[[str, int], None], copying_ms: int) -> None:  # fmt: skip
        super().__init__(
            None,  # type: ignore[arg-type]
            checkpoints=checkpoints,  # type: ignore[arg-type]
            membership=membership,
            node=machine.node,
            token="",
            stopping=threading.Event(),
        )
        self._turn = Turn()  # type: ignore[assignment]
        self._machine = machine
        self._pause = pause
        self._copying_ms = copying_ms

    def _fetch(self, member: Member, identity: Identity, into: Path) -> Checkpoint:
        other = next((peer for peer in self._machine.peers if peer.instance == member.instance), None)
        if other is None or other.process is None or other.frozen or identity.shard not in other.stores:
            raise Retry(f"node {member.node} does not answer")
        try:
            rows = other.stores[identity.shard].rows()
        except StoreCorrupt as error:
            raise Retry(f"node {member.node}: {error}") from error
        self._pause("fetch", self._copying_ms)
        self._machine.disk.fetched[into] = rows
        return describe(rows, identity, member.node, self._machine.clock.now_ms())


class Turn:
    """A lock for code that all runs in one thread: who would wait comes back later."""

    def __init__(self) -> None:
        self._taken = False

    def acquire(self, timeout: float) -> bool:
        taken, self._taken = self._taken, True
        return not taken

    def release(self) -> None:
        self._taken = False


class Keeper:
    """What `chronos/node/checkpointing.py` and the keeper of `chronos/node/node.py` do with threads of their own."""

    def __init__(self, process: Process) -> None:
        machine = process.machine
        assert machine.depot is not None
        assert machine.keeping is not None
        self.process = process
        self.machine = machine
        self.world = process.world
        self.settings = machine.keeping
        self.checkpoints = SimCheckpoints(machine.depot, machine, self.settings, self._pause)
        self.beginning = SimBeginning(
            self.checkpoints, machine, process.membership, self._pause, self.settings.copying_ms
        )
        self.flushed = {thread.shard: _position(thread.replica.state) for thread in process.threads}
        """Where each store stood at its last flush: what a crash would leave."""
        self.heard: dict[int, Roles] = {}
        """The roles by which it asked what others need, when it trimmed last."""
        self._flushed_ms = self.world.now_ms
        self._checkpointers = [self._checkpointer(thread) for thread in process.threads]
        self.world.after(self.world.random.randrange(1, KEEP_MS), self._step)

    def _checkpointer(self, thread: Thread) -> Checkpointer:
        return Checkpointer(
            self.checkpoints,
            thread.log,
            thread.replica.store,
            shard=thread.shard,
            identity=identity_of(thread.shard, self.machine.setting.shards),
            every_ms=self.settings.every_ms,
            keep=self.settings.keep,
            keep_logs_ms=self.settings.keep_logs_ms,
            replicas=lambda: self._needed_from(thread.shard),
            trims=lambda: thread.replica.role == "master",
        )

    def _needed_from(self, shard: int) -> list[LogPosition | None]:
        membership, kept = self.process.membership, self.flushed[shard]
        if membership is None:
            return [kept]
        now_ms = self.machine.clock.now_ms()
        snapshot, away_ms = membership.snapshot(), self.settings.away_ms
        self.heard[shard] = snapshot.roles or Roles()
        return needed_from(snapshot, shard, node=self.machine.node, flushed=kept, now_ms=now_ms, away_ms=away_ms)

    def restore(self, store: SimStore, cost: RecoveryCost) -> bool:
        """Replace the contents of the store by a checkpoint, where that is needed and can be done."""
        shard = int(store.path.name)
        identity = identity_of(shard, self.machine.setting.shards)
        found = self.beginning.restore(store, identity, cost)  # type: ignore[arg-type]
        if found is None:
            return False
        self.world.tell(f"{self.machine.name}/{shard} begins with {found.name}")
        self.flushed[shard] = LogPosition(applied=found.applied, pull_offset=found.pull_offset)
        return True

    def _step(self) -> None:
        """Flush, make checkpoints and trim, as far as each is due."""
        machine, process = self.machine, self.process
        if process.dead or process.stopping:
            return
        if machine.frozen:
            self.world.at(machine.frozen_ms, self._step)
            return
        try:
            self._flush()
            for checkpointer in self._checkpointers:
                with suppress(Retry):
                    checkpointer.step(machine.clock.now_ms())
        except Crashed:
            return
        except StoreCorrupt:
            machine.lose_stores()
            return
        self.world.after(KEEP_MS, self._step)

    def _flush(self) -> None:
        if self.world.now_ms - self._flushed_ms < self.settings.flush_every_ms:
            return
        self._flushed_ms = self.world.now_ms
        with suppress(NoSpace):
            for thread in self.process.threads:
                store = self.machine.stores[thread.shard]
                store.flush()
                self.flushed[thread.shard] = _position(store.kept)

    def _pause(self, where: str, wait_ms: int) -> None:
        """Copying takes a while, in which all others go on; here the process may freeze or die."""
        self.process.touch(where)
        if self.world.faulty:
            self.world.pass_time(self.world.random.randrange(1, wait_ms))
        self.process.touch(where)


def _position(state: State) -> LogPosition:
    return LogPosition(applied=state.applied, pull_offset=state.pull_offset)
