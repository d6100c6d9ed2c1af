"""A simulated cluster whose coordinator is Kafka: one seed, faults in a first phase, then healing,
then judgement.

Judged are: no two epochs commit in turn; nobody is called gone because of a clock, or of the pause
of the judge alone; a controller answers within the timeout times the number of members after
healing; in the end all have the last roles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from msgspec import Struct

from chronos.core.cluster.kafka.controllership import Stage
from chronos.core.cluster.kafka.participant import Place
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ROLES,
    RolesRecord,
    Submission,
    pack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import Request
from tests.sim.cluster_topic import Entry
from tests.sim.participants import TIMING, Process, Topic
from tests.sim.world import CORRECTNESS, LIVENESS, Finding, World

FAULTS_MS = 12_000
"""Length of the first phase."""

SETTLE_MS = 11_500
"""Time after healing at which the whole cluster must agree."""

FOREVER_MS = 10**6

CLEAN_MS = 4 * TIMING.timeout_ms
"""A process without a fault for so long, beside a log without one, must not be called gone."""


class Checker:
    """Judges the log and every process, from outside the code."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.incarnations: dict[str, Process] = {}
        self.roles: list[RolesRecord] = []
        """All records that were committed, in order."""
        self.answered_ms: dict[str, int] = {}
        """When each request was answered."""
        self.unclean = False
        """An unclean election lost records."""

    def found(self, text: str) -> Finding:
        return Finding(CORRECTNESS, f"at {self.world.now_ms}: {text}")

    def committed(self, offset: int, value: bytes) -> None:
        """Two controllers never commit in turn, and each record follows from the one before."""
        record = unpack_roles(value)
        self.world.trace(
            f"{record.incarnation} commits {record.epoch}.{record.version} "
            f"{dict(record.roles.shards)}"
        )
        before = self.roles[-1] if self.roles else None
        if before is not None:
            if record.epoch < before.epoch:
                raise self.found(
                    f"{record.incarnation} commits epoch {record.epoch} after {before.epoch}"
                )
            if record.epoch == before.epoch and record.incarnation != before.incarnation:
                raise self.found(
                    f"{record.incarnation} and {before.incarnation} both commit epoch "
                    f"{record.epoch}"
                )
            if record.version <= before.version and not self.unclean:
                raise self.found(
                    f"{record.incarnation} commits version {record.version} after {before.version}"
                )
            lost = set(before.roles.limited) - set(record.roles.limited)
            if lost and not self.unclean:
                raise self.found(
                    f"{record.incarnation} commits roles without what was answered before: {lost}"
                )
        self.roles.append(record)
        for pattern in record.roles.limited:
            self.answered_ms.setdefault(pattern, self.world.now_ms)

    def judged(self, judge: Process) -> None:
        """A process that is not frozen, cut or stopped, beside a log that answers, is not called
        gone."""
        gone = judge.participant.incarnations.gone()
        for incarnation in sorted(gone - judge.gone):
            accused = self.incarnations.get(incarnation)
            self.world.trace(f"{judge.incarnation} calls {incarnation} gone")
            since_ms = self.world.now_ms - CLEAN_MS
            if (
                accused is None
                or accused.incarnation != incarnation
                or accused.ended
                or accused.left
                or accused.excused_ms >= since_ms
                or judge.topic.excused_ms >= since_ms
            ):
                continue
            raise self.found(
                f"{judge.incarnation} calls {incarnation} gone, which was well all the time"
            )
        judge.gone = set(gone)

    def stopped(self, process: Process) -> None:
        """A process stops only because another one has, or had lately, its name."""
        others = [
            other
            for other in self.incarnations.values()
            if other.node == process.node and other is not process
        ]
        if not others:
            raise self.found(
                f"{process.incarnation} is {process.participant.place} although no other process "
                "had its name"
            )


class Cluster:
    """The cluster of one seed."""

    def __init__(self, seed: int, lines: list[str] | None = None) -> None:
        self.world = world = World(seed, lines=lines)
        self.began_ms = world.now_ms
        self.checker = Checker(world)
        self.topic = Topic(world, self.checker)
        self.incarnations = count(1)
        self.unclear = 0.0
        """Share of the commits whose answer is lost."""
        self.broken: Process | None = None
        """The process whose fault stays after healing."""
        self.still_heard = False
        """The process that stays broken goes on with its heartbeats, and reads."""
        self.requests = count(1)
        self.processes: list[Process] = []
        for number in range(world.random.choice([1, 2, 3, 3, 3, 5])):
            self.start(f"n{number}", f"i{number}")

    def start(self, node: str, instance: str) -> None:
        self.processes.append(Process(self, node, instance))
        self.world.trace(f"{self.processes[-1].incarnation} of {instance} starts")

    def running(self) -> list[Process]:
        return [process for process in self.processes if not process.ended]

    # --- faults

    def draw_faults(self) -> None:
        """Each kind of fault is absent from some seeds, so that no fault hides what another one
        would show."""
        draw = self.world.random
        kinds = [
            kind
            for kind in (
                self.freeze,
                self.freeze,
                self.freeze_all,
                self.kill,
                self.leave,
                self.double,
                self.contend,
                self.cut,
                self.silence,
                self.elect,
                self.slow,
                self.freeze_controller,
                self.mute_reader,
            )
            if draw.random() < 0.5
        ]
        self.unclear = draw.choice([0.0, 0.0, 0.1])
        may_lose = draw.random() < 0.1
        for _ in range(draw.choice([0, 2, 5, 12]) if kinds else 0):
            self.world.after(draw.randrange(FAULTS_MS), draw.choice(kinds))
        if may_lose:
            self.world.after(draw.randrange(4_000, FAULTS_MS), self.elect_unclean)
        for _ in range(draw.choice([0, 2, 100])):
            self.world.after(draw.randrange(FAULTS_MS), self.ask)

    def _one(self) -> Process | None:
        running = self.running()
        return self.world.random.choice(running) if running else None

    def _some_ms(self) -> int:
        return self.world.random.choice([100, 700, 1_000, 1_600, 3_000, 8_000])

    def freeze(self) -> None:
        if process := self._one():
            wait_ms = self._some_ms()
            self.world.trace(f"{process.incarnation} freezes for {wait_ms}")
            process.freeze(wait_ms)

    def freeze_all(self) -> None:
        wait_ms = self._some_ms()
        self.world.trace(f"all freeze for {wait_ms}")
        for process in self.running():
            process.freeze(wait_ms)

    def freeze_controller(self) -> None:
        """Whichever process is taking over or controlling, at any point of it."""
        for process in self.running():
            if process.participant.stage is not Stage.FOLLOWING:
                process.freeze(
                    self.world.random.choice(
                        [self._some_ms(), self.world.random.randrange(1_500, 2_600)]
                    )
                )
                self.world.trace(f"{process.incarnation} freezes while {process.participant.stage}")

    def kill(self) -> None:
        if process := self._one():
            self.world.trace(f"{process.incarnation} is killed")
            process.ended = True
            self.world.after(self.world.random.randrange(4_000), self._restart, process)

    def _restart(self, process: Process) -> None:
        if not any(other.instance == process.instance for other in self.running()):
            self.start(process.node, process.instance)

    def leave(self) -> None:
        process = self._one()
        if process is None or process.left:
            return
        leave_record = process.participant.leave()
        self.world.trace(f"{process.incarnation} leaves")
        process.left = True
        if leave_record is None:
            process.ended = True
        else:
            process.write(leave_record)
        self.world.after(self.world.random.randrange(100, 4_000), self._return, process)

    def _return(self, process: Process) -> None:
        process.ended = True
        self._restart(process)

    def double(self) -> None:
        """A second process starts on the same directory while the first is frozen."""
        if process := self._one():
            process.freeze(self._some_ms())
            process.left = True
            self.start(process.node, process.instance)

    def contend(self) -> None:
        """Another directory under the same name; sometimes two at once."""
        if process := self._one():
            for _ in range(self.world.random.choice([1, 2])):
                self.start(process.node, f"{process.instance}+{next(self.incarnations)}")

    def cut(self) -> None:
        if process := self._one():
            verb, partition = self.world.random.choice(list(process.cut_ms))
            wait_ms = self._some_ms()
            self.world.trace(f"{process.incarnation} can not {verb} {partition} for {wait_ms}")
            process.cut(verb, partition, wait_ms)

    def mute_reader(self) -> None:
        """Can write but not read."""
        if process := self._one():
            wait_ms = self._some_ms()
            self.world.trace(f"{process.incarnation} can not read for {wait_ms}")
            for partition in (HEARTBEATS, ROLES):
                process.cut("read", partition, wait_ms)

    def silence(self) -> None:
        wait_ms = self._some_ms()
        chosen = self.world.random.choice(
            [(HEARTBEATS,), (ROLES,), (HEARTBEATS, ROLES), (HEARTBEATS, ROLES)]
        )
        self.world.trace(f"partitions {chosen} are silent for {wait_ms}")
        for partition in chosen:
            self.topic.partitions[partition].silence(wait_ms)
        if chosen == (ROLES,):
            self.topic.excuse(wait_ms)

    def elect(self) -> None:
        partition = self.world.random.choice([HEARTBEATS, ROLES])
        wait_ms, keeps = self.world.random.randrange(10, 1_500), self.world.chance(0.5)
        self.world.trace(f"partition {partition} elects a leader in {wait_ms}")
        self.topic.partitions[partition].elect(wait_ms, keeps_tail=keeps)
        if partition == ROLES:
            self.topic.excuse(wait_ms)

    def elect_unclean(self) -> None:
        partition = self.world.random.choice([HEARTBEATS, ROLES])
        self.world.trace(f"partition {partition} elects a leader that lacks records")
        self.checker.unclean = True
        self.topic.partitions[partition].elect(
            300, keeps_tail=False, loses=self.world.random.randrange(1, 6)
        )
        self.topic.excuse(TIMING.timeout_ms)

    def slow(self) -> None:
        wait_ms = self._some_ms()
        self.topic.slow_ms = self.world.random.choice([200, 500, 900])
        self.world.trace(f"latencies of up to {self.topic.slow_ms} for {wait_ms}")
        self.topic.excuse(wait_ms + TIMING.timeout_ms)
        self.world.after(wait_ms, self._fast)

    def _fast(self) -> None:
        self.topic.slow_ms = 0

    def ask(self) -> str:
        """Submit a request to the controller; it is written without loss."""
        pattern = f"r{next(self.requests)}"
        request = Request(kind="limit", node="", pattern=pattern, rate="1/s")
        partition = self.topic.partitions[HEARTBEATS]
        partition.append(Entry(pack_record(Submission(request=request))))
        partition.high = len(partition.entries)
        return pattern

    # --- judgement

    def heal(self) -> None:
        """End all faults; in some seeds one process stays broken."""
        self.unclear = 0.0
        self.topic.slow_ms = 0
        for each in self.topic.partitions:
            each.silent_ms = 0
        for process in self.running():
            process.heal()
            if process.left:
                process.ended = True
        if not self.running():
            self.start("n0", "i0")
        self.world.trace("healed")
        running = self.running()
        if len(running) == len(self.names()) >= 2 and self.world.chance(0.5):
            controllers = [
                process for process in running if process.participant.stage is Stage.CONTROLLING
            ]
            self._break(self.world.random.choice([self.world.random.choice(running), *controllers]))

    def names(self) -> set[str]:
        return {process.node for process in self.running()}

    def _break(self, process: Process) -> None:
        kind = self.world.random.choice(
            ["frozen", "no reads", "no reads of roles", "no writes of roles", "no writes"]
        )
        self.world.trace(f"{process.incarnation} stays broken: {kind}")
        self.broken, self.still_heard = process, kind == "no writes of roles"
        if kind == "frozen":
            process.freeze(FOREVER_MS)
        for verb, partition in process.cut_ms:
            if kind in {f"no {verb}s", f"no {verb}s of roles"} and (
                partition == ROLES or not kind.endswith("roles")
            ):
                process.cut(verb, partition, FOREVER_MS)
        process.excuse(FOREVER_MS)

    def judge(self) -> int:
        """Return how long after healing a controller answered a request, in ms."""
        world, healed_ms = self.world, self.world.now_ms
        # A member that stays broken may be the first to stand, and costs a turn.
        bound_ms = TIMING.timeout_ms * (max(2, len(self.names())) + (self.broken is not None))
        if not any(process.participant.place is Place.MEMBER for process in self.running()):
            # Newcomers from other directories wait until the name is free.
            bound_ms += TIMING.grace_ms + TIMING.timeout_ms
        patterns = {self.ask()}
        while not (answered := patterns & set(self.checker.answered_ms)):
            if world.now_ms - healed_ms >= bound_ms:
                raise Finding(
                    LIVENESS,
                    f"no controller {bound_ms} ms after healing, with {len(self.names())} members",
                )
            world.pass_time(50)
            if self.checker.unclean:
                # Positions began again: a request at an old position counts as answered. An
                # operator asks again.
                patterns.add(self.ask())
        world.pass_time(healed_ms + SETTLE_MS - world.now_ms)
        self._agree()
        return min(self.checker.answered_ms[pattern] for pattern in answered) - healed_ms

    def _agree(self) -> None:
        """All processes that are well have the last roles, know each other, and one of them is the
        controller."""
        last = self.checker.roles[-1]
        well = [process for process in self.running() if process is not self.broken]
        names = sorted(process.node for process in well)
        if len(names) != len(set(names)):
            raise self.checker.found(f"two processes have one name: {names}")
        known = set(names)
        if self.broken is not None and self.still_heard:
            known.add(self.broken.node)
        for process in well:
            participant = process.participant
            if participant.place is not Place.MEMBER or not participant.confirmed(process.now_ms()):
                raise Finding(
                    LIVENESS, f"{process.incarnation} is a {participant.place}, and not confirmed"
                )
            if participant.control.last != last:
                raise self.checker.found(
                    f"{process.incarnation} has other roles than the last ones"
                )
            if set(participant.members()) != known and not self.checker.unclean:
                raise self.checker.found(
                    f"{process.incarnation} knows {sorted(participant.members())}, not "
                    f"{sorted(known)}"
                )
        controllers = [
            process.incarnation
            for process in well
            if process.participant.may_decide(process.now_ms())
        ]
        if len(controllers) != 1 and not (self.broken is not None and self.checker.unclean):
            raise Finding(LIVENESS, f"controllers: {controllers}")


class Outcome(Struct, frozen=True, kw_only=True):
    """What one seed showed."""

    members: int
    controlled_ms: int
    """Time after healing until a controller answered a request."""
    digest: str
    """Of the trace."""


def simulate(seed: int, *, lines: list[str] | None = None) -> Outcome:
    """Simulate one seed. Raises Finding."""
    cluster = Cluster(seed, lines)
    cluster.draw_faults()
    cluster.world.pass_time(FAULTS_MS)
    cluster.heal()
    controlled_ms = cluster.judge()
    return Outcome(
        members=len(cluster.names()), controlled_ms=controlled_ms, digest=cluster.world.digest()
    )


def summary(results: Sequence[Outcome]) -> str:
    """Describe many seeds without a finding."""
    worst_ms: dict[int, int] = {}
    for each in results:
        worst_ms[each.members] = max(worst_ms.get(each.members, 0), each.controlled_ms)
    worst = ", ".join(f"{members} members: {ms} ms" for members, ms in sorted(worst_ms.items()))
    return f"longest until a controller answered: {worst}"
