"""The simulated processes of a cluster whose coordinator is Kafka.

Each process runs `core.cluster.kafka.participant` as the adapter does: it reads both partitions,
writes what `step` returns, and takes over as `stage` says. Its clock has any offset and drifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chronos.core.cluster.kafka.controllership import Stage
from chronos.core.cluster.kafka.participant import STOPPED, Participant
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ROLES,
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RolesRecord,
    pack_record,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import Member, Request, Roles, ShardRoles
from chronos.core.cluster.timing import Timing
from tests.sim.cluster_topic import (
    Entry,
    FencedProducer,
    Kind,
    SimPartition,
    Transactions,
    Truncated,
)
from tests.sim.world import CRASH, Finding, World

if TYPE_CHECKING:
    from tests.sim.participant_cluster import Checker, Cluster

TIMING = Timing()

RETRY_MS = 100
"""Longest time between two attempts of a producer."""

DELIVERY_MS = 1_500
"""Time after which a producer gives a record up."""

HANGS_MS = 30_000
"""Longest time for which a transaction waits for a partition that cannot be reached."""


def plan(before: Roles, members: dict[str, Member], requests: list[Request]) -> Roles:
    """Keep the master while it is a member; answer requests by listing them."""
    given = before.shards.get(0, ShardRoles())
    if members and given.master not in members:
        given = replace(given, master=min(members), epoch=given.epoch + 1, previous=given.master)
    limited = {**before.limited, **{request.pattern: request.rate for request in requests}}
    return replace(before, shards={0: given}, limited=limited)


class Topic:
    """Both partitions, and how they are reached."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.world = world
        self.partitions = (SimPartition(world), SimPartition(world, transactional=True))
        self.transactions = Transactions(world, self.partitions[ROLES], checker.committed)
        self.slow_ms = 0
        """Added to every latency, at most."""
        self.excused_ms = 0
        """Until when the log itself is the reason that a process is not heard."""

    def latency_ms(self) -> int:
        return self.world.random.randrange(1, 12 + self.slow_ms)

    def excuse(self, wait_ms: int) -> None:
        self.excused_ms = max(self.excused_ms, self.world.now_ms + wait_ms)


class Process:
    """One process, from its start to its end."""

    def __init__(self, cluster: Cluster, node: str, instance: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.topic = cluster.topic
        self.node = node
        self.instance = instance
        self.frozen_ms = 0
        self.cut_ms = {
            (verb, partition): 0 for verb in ("read", "write") for partition in (HEARTBEATS, ROLES)
        }
        """Until when it can not read or write a partition."""
        self._waiting: list[tuple[Callable[[], None], str]] = []
        """What is to be done once it is no longer frozen."""
        self.ended = False
        self.left = False
        self.excused_ms = self.world.now_ms
        """Until when a fault of its own is the reason that it is not heard."""
        self._offset_ms = self.world.random.randrange(10**6)
        self._rate = 1 + self.world.random.uniform(-0.02, 0.02)
        self._epoch_seen = 0
        self.register()
        self.world.after(self.world.random.randrange(50), self.tick)

    def register(self) -> None:
        """Begin as a new incarnation."""
        self.incarnation = f"{self.node}/{next(self.cluster.incarnations)}"
        self.positions = [0, 0]
        self._cuts = [len(partition.cuts) for partition in self.topic.partitions]
        member = Member(
            node=self.node, instance=self.instance, address=self.node, version="1", started_ms=0
        )
        self.participant = Participant(
            member, self.incarnation, timing=TIMING, epoch_seen=self._epoch_seen
        )
        self.producer: int | None = None
        self._asked: Stage | None = None
        self.gone: set[str] = set()
        """Lives that it calls gone."""
        self.cluster.checker.incarnations[self.incarnation] = self

    # --- faults

    def excuse(self, wait_ms: int) -> None:
        self.excused_ms = max(self.excused_ms, self.world.now_ms + wait_ms)

    def freeze(self, wait_ms: int) -> None:
        self.frozen_ms = max(self.frozen_ms, self.world.now_ms + wait_ms)
        self.excuse(wait_ms)
        self.world.at(self.frozen_ms, self._thaw)

    def _thaw(self) -> None:
        if self.world.now_ms >= self.frozen_ms:
            waiting, self._waiting = self._waiting, []
            for do, incarnation in waiting:
                self._awake(do, incarnation)

    def cut(self, verb: str, partition: int, wait_ms: int) -> None:
        key = (verb, partition)
        self.cut_ms[key] = max(self.cut_ms[key], self.world.now_ms + wait_ms)
        self.excuse(wait_ms)

    def heal(self) -> None:
        self.frozen_ms = 0
        self._thaw()
        for key in self.cut_ms:
            self.cut_ms[key] = 0

    def reaches(self, verb: str, partition: int) -> bool:
        return (
            self.topic.partitions[partition].answering
            and self.world.now_ms >= self.cut_ms[verb, partition]
        )

    def now_ms(self) -> int:
        """The monotonic clock of this process."""
        return self._offset_ms + int((self.world.now_ms - self.cluster.began_ms) * self._rate)

    def later(self, wait_ms: int, do: Callable[[], None], incarnation: str | None = None) -> None:
        """Call after a delay, or once the process is no longer frozen; not at all if the process or
        this incarnation has ended."""
        self.world.after(wait_ms, self._awake, do, incarnation or self.incarnation)

    def _awake(self, do: Callable[[], None], incarnation: str) -> None:
        if self.ended or incarnation != self.incarnation:
            return
        if self.world.now_ms < self.frozen_ms:
            self._waiting.append((do, incarnation))
        else:
            do()

    # --- the loop

    def tick(self) -> None:
        try:
            self._read()
            self._act()
        except Truncated:
            self.world.trace(f"{self.incarnation} was truncated")
            self._epoch_seen = self.participant.control.epoch_seen
            self.excuse(TIMING.timeout_ms)
            self.register()
        except Finding:
            raise
        except Exception as error:
            raise Finding(CRASH, f"{self.incarnation}: {error!r}") from error
        self.later(self.world.random.randrange(10, 100), self.tick)

    def _read(self) -> None:
        both = [HEARTBEATS, ROLES] if self.world.chance(0.5) else [ROLES, HEARTBEATS]
        for number in both:
            if not self.topic.partitions[number].has_more(
                self.positions[number], self._cuts[number]
            ):
                continue
            if not self.reaches("read", number):
                continue
            for entry in self.topic.partitions[number].read(
                self.positions[number], self._cuts[number]
            ):
                offset = self.positions[number]
                self.positions[number] += 1
                if number == HEARTBEATS:
                    self.participant.read_heartbeat(
                        offset, unpack_record(entry.value), self.now_ms()
                    )
                elif entry.kind is Kind.COMMITTED:
                    self.participant.read_roles(offset, unpack_roles(entry.value))
                else:
                    self.participant.roles_position(offset + 1)
            self._cuts[number] = len(self.topic.partitions[number].cuts)
        self.cluster.checker.judged(self)

    def _act(self) -> None:
        participant = self.participant
        stage = participant.stage
        for record in participant.step(self.now_ms()):
            self.write(record)
        if participant.place in STOPPED:
            self.world.trace(f"{self.incarnation} is {participant.place}")
            self.cluster.checker.stopped(self)
            self.ended = True
            return
        if participant.stage is not stage:
            self.world.trace(f"{self.incarnation}: {stage} -> {participant.stage}")
        stage = participant.stage
        if stage in {Stage.READING, Stage.READING_AGAIN} and self._asked is not stage:
            self._asked = stage
            self.later(self.topic.latency_ms(), lambda: self._ask_end(stage))
        elif stage is Stage.FENCING and self._asked is not stage:
            self._asked = stage
            wait_ms = self.world.random.choice([60, 60, 300]) + (
                500 if self.topic.transactions.is_open else 0
            )
            self.later(wait_ms, self._fence)
        elif stage is Stage.OPENING and self._asked is not stage:
            self._asked = stage
            assert participant.control.writing is not None
            self._send(participant.control.writing)
        elif stage in {Stage.FOLLOWING, Stage.STANDING}:
            self._asked = self.producer = None
        elif stage is Stage.CONTROLLING and self.producer is not None:
            self._control()

    def write(self, record: ClusterRecord) -> None:
        deadline_ms = self.world.now_ms + DELIVERY_MS
        self.later(self.topic.latency_ms(), lambda: self._try(record, deadline_ms))

    def _try(self, record: ClusterRecord, deadline_ms: int) -> None:
        if not self.reaches("write", HEARTBEATS):
            if self.world.now_ms >= deadline_ms:
                self._settled(record)
            else:
                self.later(
                    self.world.random.randrange(20, RETRY_MS),
                    lambda: self._try(record, deadline_ms),
                )
            return
        partition = self.topic.partitions[HEARTBEATS]
        partition.append(Entry(pack_record(record)))
        self.later(20 + self.topic.latency_ms(), lambda: self._settled(record))

    def _settled(self, record: ClusterRecord) -> None:
        if isinstance(record, MemberHeartbeat):
            self.participant.settled(record)
        elif isinstance(record, LeaveRecord):
            self.ended = True

    # --- taking over and controlling

    def _ask_end(self, stage: Stage) -> None:
        partition = self.topic.partitions[ROLES]
        if self.participant.stage is not stage:
            return
        if not self.reaches("read", ROLES) or (
            stage is Stage.READING_AGAIN and partition.stable != partition.high
        ):
            self.later(50, lambda: self._ask_end(stage))
        else:
            self.participant.control.ended(stage, partition.stable)

    def _fence(self) -> None:
        if not self.reaches("write", ROLES):
            if self.participant.stage is Stage.FENCING:
                self.later(100, self._fence)
            return
        self.producer = self.topic.transactions.fence()
        self.later(self.topic.latency_ms(), lambda: self.participant.control.fenced(self.now_ms()))

    def _control(self) -> None:
        participant = self.participant
        requests = participant.requests()
        roles = plan(
            participant.roles or Roles(),
            participant.members(),
            [request for _, request in requests],
        )
        answered = requests[-1][0] + 1 if requests else 0
        last = participant.control.last
        record = participant.publish(
            roles, max(answered, 0 if last is None else last.answered), self.now_ms()
        )
        if record is not None:
            self._send(record)

    def _send(self, record: RolesRecord) -> None:
        producer = self.producer

        deadline_ms = self.world.now_ms + self.world.random.choice([0, HANGS_MS])

        def send() -> None:
            if producer is None or self.participant.control.writing is not record:
                return
            if not self.reaches("write", ROLES) and self.world.now_ms < deadline_ms:
                self.later(100, send)
                return
            try:
                if not self.reaches("write", ROLES):
                    raise FencedProducer
                self.topic.transactions.send(producer, pack_record(record))
            except FencedProducer:
                self._lost(record)
            else:
                self.later(15 + self.topic.latency_ms(), commit)

        def commit() -> None:
            try:
                if producer is None or not self.reaches("write", ROLES):
                    raise FencedProducer
                is_known = self.topic.transactions.commit(producer) and not self.world.chance(
                    self.cluster.unclear
                )
            except FencedProducer:
                is_known = False
            if not is_known:
                self._lost(record)
            else:
                self.later(
                    self.topic.latency_ms(),
                    lambda: self.participant.control.committed(record, self.now_ms()),
                )

        self.later(self.topic.latency_ms(), send)

    def _lost(self, record: RolesRecord) -> None:
        if self.participant.control.writing is record:
            self.world.trace(f"{self.incarnation} is fenced, or does not know the outcome")
            self.participant.control.failed()
            self.producer = None
