"""The differential oracle: replicas of the real code, kills at every call of a port, and a model of
the documentation beside them.

A run has 1 to 3 shards, 1 to 3 nodes, a clock for each broker and each machine, deleters that run
when they like, and stores that are lost or replaced by old checkpoints. Roles are assigned by dice.
After each transaction the model (`oracle_model`) compares what became of every record and message;
after each write to a store it compares every lookup, page and count, and the digests of all
replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from pathlib import Path
from random import Random

from msgspec import Struct

from chronos.core.cron import ZoneData
from chronos.core.rates import parse_rate
from chronos.core.shard.digest import digest
from chronos.core.shard.progress import Decision, unpack_progress
from chronos.core.shard.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.errors import Stop
from chronos.workers.replica.context import ReplicaContext
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.horizon import unpulled_ms
from chronos.workers.step.lanes import RateLimits, ShardRates
from chronos.workers.step.planned import Limits
from chronos.workers.step.targets import Retries
from tests.sim.broker import DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers, Transaction
from tests.sim.log import Faults, SimLog
from tests.sim.oracle_model import Service
from tests.sim.oracle_stores import compare
from tests.sim.oracle_targets import Targets
from tests.sim.oracle_values import SKEW_MS, TOLERANCE_MS, Message, Step, Terms, Written, wrong
from tests.sim.oracle_workload import ATTEMPTS_MAX, MAX_DELAY_MS, MAX_PAST_MS, Producers
from tests.sim.simulation import quiet
from tests.sim.store import Disk, SimStore
from tests.sim.thread import DeletingShard, sim_pusher, sim_settings
from tests.sim.world import CRASH, LIVENESS, START_MS, Crashed, Finding, World

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

ROUNDS = 100
"""Rounds with faults of a seed."""

SETTLING_ROUNDS_MAX = 3_000
"""Rounds without faults within which everything must be settled."""

OWN = (DELAY, PROGRESS, REJECTED, DEAD_LETTER)


@dataclass(kw_only=True)
class Spans:
    """The machine's clock around one transaction."""

    began_ms: int
    sent_ms: int
    zone_data: str


class SkewedBrokers(Brokers):
    """Brokers with a clock each. `caller` is the replica that begins transactions at the moment."""

    caller: OracleReplica | None = None
    spans: dict[int, Spans]

    def begin(self, shard: int, epoch: int) -> Transaction:
        transaction = super().begin(shard, epoch)
        assert self.caller is not None
        self.spans[id(transaction)] = Spans(
            began_ms=self.caller.decided_ms or self.caller.began_ms,
            sent_ms=self.caller.clock.now_ms(),
            zone_data=self.caller.zone_data.version,
        )
        return transaction


class MachineClock:
    """See `ports.Clock`: the true time, and the machine's offset."""

    def __init__(self, world: World, skew_ms: int) -> None:
        self._world = world
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._world.now_ms + self.skew_ms

    def stepped_ms(self) -> int:
        return 0


ZONE_OFFSETS_S = {"2026c": 0, "2026a": 2, "2026d": 13, "2026b": -27}
"""Version of the zone data -> how far every zone is ahead of UTC."""


def zone_data_of(version: str) -> ZoneData:
    """Return zone data in which all zones have the same time."""
    zone = timezone(timedelta(seconds=ZONE_OFFSETS_S[version]))
    return ZoneData(version, lambda name: zone)


ZONE_DATA_OF_STARTS = [zone_data_of(version) for version in ZONE_OFFSETS_S]


@dataclass(kw_only=True)
class OracleNode:
    """A machine: a clock, a disk with a store for each shard, and the replicas of one process."""

    name: str
    clock: MachineClock
    faults: Faults
    disk: Disk = field(default_factory=Disk)
    stores: dict[int, SimStore] = field(default_factory=dict)
    replicas: list[OracleReplica] = field(default_factory=list)
    deletes: float | None = None
    """How many steps of a replica are followed by one of its delete worker; None: it runs at its
    own times."""
    down_ms: int = 0
    """Until when no process runs, after a kill."""
    kill_in: int = -1
    """Calls of a port until the process is killed; negative: it is not."""
    seen: dict[int, Assignment] = field(default_factory=dict)
    """Its roles, as last read."""
    zone_data: ZoneData = ZONE_DATA_OF_STARTS[0]
    """Those of its process: each has another version, newer or older than that of the others."""
    log_cut_ms: int = 0
    lost_broker: int = 0
    lost_broker_ms: int = 0


class OracleReplica:
    """One replica and its thread. See `log.Caller`."""

    def __init__(self, oracle: Oracle, node: OracleNode, shard: int) -> None:
        self.oracle = oracle
        self.node = node
        self.world = oracle.world
        self.clock = node.clock
        self.zone_data = node.zone_data
        self.shard = shard
        self.name = f"{node.name}/{shard}"
        self.dead = False
        self.busy = False
        self.began_ms = 0
        self.decided_ms = 0
        """When the step began that made its last commit: it may have prepared what the next one
        decides."""
        self.wake_ms = 0
        """When it is to be stepped next, by the machine's clock."""
        self.log = SimLog(self, oracle.brokers)
        settings = oracle.settings
        rules = Rules(
            shard=shard,
            shards=oracle.shards,
            own_topics=OWN,
            deny=("forbidden",),
            max_delay_ms=MAX_DELAY_MS,
            max_past_ms=MAX_PAST_MS,
            deduplication_ms=settings.deduplication_ms,
            misplaced="forward" if oracle.terms.forwards else "reject",
            delay_topic=DELAY,
            attempts_max=ATTEMPTS_MAX,
            next_cron=node.zone_data.next_cron,
            zone_data=node.zone_data,
        )
        context = ReplicaContext(
            log=self.log,
            store=node.stores[shard],
            clock=node.clock,
            rules=rules,
            settings=sim_settings(
                settings.limits,
                node.name,
                node.name,
                delivered_ms=settings.delivered_ms,
                deduplication_ms=settings.deduplication_ms,
            ),
            pusher=lambda: sim_pusher(
                self.log,
                rules,
                Retries(attempts_max=ATTEMPTS_MAX, base_ms=200, cap_ms=2_000),
                ShardRates(shard, oracle.rates, began_ms=node.clock.now_ms()),
            ),
            guard=lambda: None,
            assigned=lambda: node.seen[shard],
            elsewhere=self._read_elsewhere,
        )
        self.replica = Replica(
            context,
            DeletingShard(
                context,
                lambda: None if node.deletes is None else oracle.dice.random() < node.deletes,
            ),
        )

    def _read_elsewhere(self, shard: int) -> int:
        """As `node.reading.ReadElsewhere`, of the shards that this node holds."""
        others = [other.replica.state for other in self.node.replicas if other.shard != shard]
        return min(map(unpulled_ms, others), default=MS_MAX)

    def step(self) -> None:
        """Step the replica once; it may be killed."""
        self.busy, self.began_ms = True, self.clock.now_ms()
        commits = self.replica.commits
        try:
            self.wake_ms = self.replica.step(self.began_ms).wake_ms
            if self.replica.commits > commits:
                self.decided_ms = self.began_ms
        except Crashed:
            pass
        except Finding:
            raise
        except Stop as error:
            raise wrong(f"{self.name} stops: {error}") from error
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed: {error!r}") from error
        finally:
            self.busy = False

    def touch(self, where: str) -> None:
        """A port was called: the process may be killed, or other replicas may run."""
        if self.dead:
            raise Crashed
        node = self.node
        if node.kill_in >= 0:
            node.kill_in -= 1
            if node.kill_in < 0:
                self.world.trace(f"{self.name} is killed at {where}")
                self.oracle.kill(node)
                raise Crashed
        self.oracle.interleave(self)
        if self.dead:
            raise Crashed
        if where == "send":  # only now: others may have sent meanwhile
            self.oracle.brokers.caller = self

    def misused(self, text: str) -> None:
        raise Finding(CRASH, f"{self.name}: {text}")

    def trimmed(self, text: str) -> None:
        raise wrong(f"{self.name}: {text}")

    def sleep(self, wait_ms: int) -> None:
        self.world.pass_time(wait_ms)
        if self.dead:
            raise Crashed

    def nudge(self) -> None:
        self.wake_ms = 0


class OracleService(Service):
    """The model, which sees what the log still holds for a shard."""

    def __init__(self, terms: Terms, targets: Targets, brokers: Brokers) -> None:
        super().__init__(terms, targets)
        self.targets = targets
        self.brokers = brokers

    def unread_ms(self, shard: int) -> int:
        times = []
        for model in self.shards:
            for record, owner in self.brokers.topics[DELAY][model.number].items[
                model.pull_offset :
            ]:
                if (
                    record is None
                    or record.create_time
                    or (owner is not None and owner.state != "committed")
                ):
                    continue
                command = self.commands.get((model.number, record.offset))
                if command is None:
                    # Written by a transaction that the model has not followed yet.
                    continue
                if command.flaw or command.id is None or self.home(command) != shard:
                    continue
                times.append(
                    record.timestamp_ms
                    if command.hop is None
                    else min(record.timestamp_ms, command.hop[2])
                )
            if model.number != shard:
                times += [record.timestamp_ms for record in model.forwards.get(shard, ())]
        return min(times, default=MS_MAX)

    def unread_action(self, shard: int, pull_offset: int, message: Message) -> str:
        closed_ms = self.targets.closed_ms
        if shard in closed_ms:
            return ""  # nothing can be read without a leader
        partition = self.brokers.topics[DELAY][shard]
        for offset in range(pull_offset, len(partition.shown_ms)):
            record, owner = partition.items[offset]
            if record is None or (owner is not None and owner.state != "committed"):
                continue
            command = self.commands.get((shard, offset))
            if (
                command is None
                or command.flaw
                or command.id != message.id
                or command.verb in ("probe", "replay")
            ):
                continue
            # Both the machine and the broker may be off by SKEW_MS.
            if partition.shown_ms[offset] < message.due_ms - TOLERANCE_MS - 2 * SKEW_MS:
                return f"{shard}/{offset} {command.verb}"
        return ""


class Result(Struct, frozen=True, kw_only=True):
    """The counts of a seed without a finding."""

    seed: int
    digest: str
    records: int
    commits: int
    kills: int
    deliveries: int
    comparisons: int


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of all nodes of a seed."""

    limits: Limits
    deduplication_ms: int
    delivered_ms: int


class Oracle:
    """Runs one seed."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        self.seed = seed
        self.world = world = World(seed, lines=lines)
        self.dice = dice = Random(f"oracle {seed}")
        self.awake_dice = Random(f"awake {seed}")
        self.shards = dice.choice([1, 2, 3])
        self.settings = self._draw_settings()
        self.brokers = SkewedBrokers(world, self._committed)
        self.brokers.spans = {}
        for clock in self.brokers.clocks:
            clock.bound_ms = SKEW_MS
            clock.skew_ms, clock.drift = (
                dice.choice([0, dice.randint(-SKEW_MS, SKEW_MS)]),
                dice.choice([0.0, 1e-5, -1e-5]),
            )
        for topic in (DELAY, PROGRESS):
            self.brokers.create(topic, self.shards)
        for topic in (REJECTED, DEAD_LETTER):
            self.brokers.create(topic, 1)
        self.targets = Targets(world, self.brokers, dice)
        self.terms = Terms(
            shards=self.shards,
            forwards=dice.random() < 0.9,
            deduplication_ms=self.settings.deduplication_ms,
            delivered_ms=self.settings.delivered_ms,
            attempts_max=ATTEMPTS_MAX,
        )
        self.service = OracleService(self.terms, self.targets, self.brokers)
        self.service.partitions = self.targets.partitions
        self.producers = Producers(world, self.brokers, self.service, self.targets, dice, seed=seed)
        rate = parse_rate("20/s burst 5")
        self.rates = RateLimits({"limited": rate})
        self.roles = [Assignment(kind="master", epoch=1)] * self.shards
        self.owners = [0] * self.shards
        self.kills = self.commits = self.comparisons = self.depth = 0
        self.lazy = dice.choice([0.0, 0.2, 0.6])
        """How often a node does not notice that its roles changed."""
        self.mixing = dice.choice([0.0, 0.02, 0.1])
        """How often another replica runs while one calls a port."""
        self.digests: dict[tuple[int, int], str] = {}
        self.checkpoints: list[tuple[int, dict[bytes, bytes]]] = []
        self.nodes = [
            OracleNode(
                name=f"n{number}",
                clock=MachineClock(world, dice.choice([0, dice.randint(-SKEW_MS, SKEW_MS)])),
                faults=self._draw_faults(),
            )
            for number in range(dice.choice([1, 2, 3]))
        ]
        for node in self.nodes:
            node.seen = self._view(node)
            node.deletes = dice.choice([None, 0.0, 0.0, 0.02])

    def _draw_settings(self) -> Settings:
        dice = self.dice
        return Settings(
            limits=Limits(
                messages=dice.choice([1, 2, 5, 100]),
                bytes=dice.choice([1, 300, 1_000_000]),
                wheel_messages=dice.choice([2, 5, 1_000]),
                wheel_bytes=dice.choice([200, 1_000_000]),
                wheel_horizon_ms=dice.choice([100, 3_000]),
                linger_ms=8,
                pull=True,
                push=True,
            ),
            deduplication_ms=dice.choice([2_000, 10 * MINUTE_MS, HOUR_MS]),
            delivered_ms=dice.choice([3_000, MINUTE_MS, HOUR_MS]),
        )

    def _draw_faults(self) -> Faults:
        dice = self.dice
        return Faults(
            aborts=dice.choice([0.0, 0.05]),
            unclear_commits=dice.choice([0.0, 0.05]),
            lost_on_abort=dice.choice([0.0, 0.3]),
            spurious_fences=dice.choice([0.0, 0.02]),
            short_reads=dice.choice([0.0, 0.2]),
            no_answer=dice.choice([0.0, 0.02]),
        )

    # --- the run

    def run(self) -> Result:
        """Run both phases; raises a Finding."""
        self._begin_late()
        for _ in range(ROUNDS):
            self._round()
        self._heal()
        self._settle()
        self._check_zone_data()
        return Result(
            seed=self.seed,
            digest=self.world.digest(),
            records=self.producers.sent,
            commits=self.commits,
            kills=self.kills,
            deliveries=sum(shard.delivered for shard in self.service.shards),
            comparisons=self.comparisons,
        )

    def _check_zone_data(self) -> None:
        """Each master has gone through what older zone data planned."""
        for node in self.nodes:
            for replica in node.replicas:
                recorded = self.service.shards[replica.shard].zone_data
                if (
                    replica.replica.role == ReplicaState.MASTER
                    and "" < recorded < replica.zone_data.version
                ):
                    raise Finding(
                        LIVENESS,
                        f"{replica.name} has zone data {replica.zone_data.version}, and does not "
                        f"go through what {recorded} planned",
                    )

    def _begin_late(self) -> None:
        """In some seeds the delay topic begins above 0: its first records were deleted before
        Chronos ran."""
        if self.dice.random() < 0.8:
            return
        habits = self.producers.habits
        transactions, habits.transactions = habits.transactions, 0.0
        for partition, shard in zip(self.brokers.topics[DELAY], self.service.shards, strict=True):
            for _ in range(self.dice.randint(0, 4)):
                self.producers.send()
            partition.start = partition.high
            shard.pull_offset = partition.start
        habits.transactions = transactions

    def _round(self) -> None:
        dice = self.dice
        for _ in range(dice.choice([0, 0, 1, 2, 5])):
            self.producers.send()
        self._pause(self._pause_ms())
        kind = dice.random()
        node = dice.choice(self.nodes)
        if kind < 0.12 and node.kill_in < 0:
            node.kill_in = dice.randrange(25)
        elif kind < 0.17:
            self._hand_over(dice.randrange(self.shards))
        elif kind < 0.22:
            self._keep_checkpoint()
        elif kind < 0.27:
            self.targets.disturb()
        elif kind < 0.32 and self.targets.disturbs_own:
            self.targets.close_own()
        elif kind < 0.35 and not node.replicas and node.stores:
            self._replace_store(node)
        for _ in range(dice.choice([1, 3, 6])):
            self._step(dice.choice(self.nodes))

    def _pause_ms(self) -> int:
        kind = self.dice.random()
        if kind < 0.75:
            return self.dice.randrange(200)
        if kind < 0.97:
            return self.dice.randrange(5_000)
        return self.dice.choice([MINUTE_MS, 20 * MINUTE_MS, 2 * HOUR_MS])

    def _pause(self, wait_ms: int) -> None:
        """Let time pass. In a long pause the masters go on, mostly: one that commits nothing for so
        long loses its leadership."""
        if wait_ms >= MINUTE_MS and self.awake_dice.random() < 0.7:
            for _ in range(wait_ms // MINUTE_MS):
                self.world.pass_time(MINUTE_MS)
                for node in self.nodes:
                    for replica in list(node.replicas):
                        if replica.replica.role == ReplicaState.MASTER and not replica.busy:
                            replica.step()
            return
        self.world.pass_time(wait_ms)

    def _step(self, node: OracleNode) -> None:
        """Step one replica of the node; start its process if none runs."""
        if not node.replicas:
            if node.down_ms <= self.world.now_ms:
                self._start(node)
            return
        if self.dice.random() >= self.lazy:
            node.seen = self._view(node)
        replica = self.dice.choice(node.replicas)
        if not replica.busy:
            replica.step()

    def interleave(self, caller: OracleReplica) -> None:
        """Let another replica run while one calls a port: the thread of the caller is frozen
        meanwhile."""
        if self.depth or self.dice.random() >= self.mixing:
            return
        self.depth += 1
        try:
            if self.dice.random() < 0.2:
                self._hand_over(caller.shard)
            for _ in range(self.dice.choice([1, 3, 12])):
                if self.dice.random() < 0.3:
                    self.world.pass_time(self.dice.randrange(100))
                self._step(self.dice.choice(self.nodes))
        finally:
            self.depth -= 1

    def _view(self, node: OracleNode) -> dict[int, Assignment]:
        number = self.nodes.index(node) if node in getattr(self, "nodes", []) else -1
        follower = Assignment(kind="follower")
        return {
            shard: self.roles[shard] if self.owners[shard] == number else follower
            for shard in range(self.shards)
        }

    def _hand_over(self, shard: int) -> None:
        """Assign the role of master to a node, perhaps the same one, with the next epoch."""
        epoch = self.roles[shard].epoch
        assert epoch is not None
        self.owners[shard] = self.dice.randrange(len(self.nodes))
        self.roles[shard] = Assignment(kind="master", epoch=epoch + 1)
        self.world.trace(f"shard {shard} is given to n{self.owners[shard]} with {epoch + 1}")

    # --- processes and stores

    def _start(self, node: OracleNode) -> None:
        # A process after a kill has older or newer zone data.
        node.zone_data = ZONE_DATA_OF_STARTS[self.kills % len(ZONE_DATA_OF_STARTS)]
        self.world.trace(f"{node.name} starts with zone data {node.zone_data.version}")
        node.seen = self._view(node)
        for shard in range(self.shards):
            if shard not in node.stores:
                node.stores[shard] = SimStore(self.world, node.disk, lambda store: None)
                node.stores[shard].path = Path("simulated") / node.name / str(shard)
            store = node.stores[shard]
            store._wrote = lambda store, shard=shard, node=node: self._wrote(shard, node, store)  # type: ignore[misc]
            node.replicas.append(OracleReplica(self, node, shard))

    def kill(self, node: OracleNode) -> None:
        """Kill the process; the disk keeps what was flushed."""
        self.kills += 1
        for replica in node.replicas:
            replica.dead = True
        node.replicas = []
        node.kill_in = -1
        node.stores = {shard: store.crash() for shard, store in node.stores.items()}
        node.down_ms = self.world.now_ms + self.dice.choice([0, 0, 500, 20_000])

    def _keep_checkpoint(self) -> None:
        running = [replica for node in self.nodes for replica in node.replicas]
        if running:
            replica = self.dice.choice(running)
            if replica.replica.known and replica.replica.role not in (ReplicaState.RESTORING,):
                self.checkpoints.append((replica.shard, replica.node.stores[replica.shard].rows()))

    def _replace_store(self, node: OracleNode) -> None:
        """Lose one store of a node that is down, or restore an old checkpoint of any node."""
        shard = self.dice.randrange(self.shards)
        fitting = [rows for of, rows in self.checkpoints if of == shard]
        rows = self.dice.choice(fitting) if fitting and self.dice.random() < 0.7 else {}
        self.world.trace(f"{node.name} has another store of shard {shard}: {len(rows)} rows")
        node.stores[shard]._restore(rows)

    # --- comparisons

    def _committed(self, transaction: Transaction) -> None:
        """A transaction of a shard was committed: the model follows it."""
        shard = transaction.shard
        assert shard is not None
        self.commits += 1
        model = self.service.shards[shard]
        written, progress_record = [], None
        for place, offset in transaction.written:
            record = place.items[offset][0]
            assert record is not None
            if place.topic == PROGRESS:
                progress_record = record
            else:
                written.append(Written(topic=place.topic, partition=place.number, record=record))
        assert progress_record is not None
        progress = unpack_progress(progress_record.value, self.shards)
        spans = self.brokers.spans.pop(id(transaction))
        partition = self.brokers.topics[DELAY][shard]
        items = partition.items[model.pull_offset : progress.pull_offset]
        records = [
            record
            for record, owner in items
            if record is not None
            and (owner is None or owner.state == "committed")
            and record.offset not in partition.unreadable
        ]
        if progress.pull_offset > partition.stable:
            raise wrong(
                f"shard {shard} took records up to {progress.pull_offset}, the end is "
                f"{partition.stable}"
            )
        self.targets.now(spans)
        self.world.trace(
            f"  {shard}: pulls to {progress.pull_offset}, cursor "
            f"{progress.cursor_due_ms - START_MS}/{progress.cursor_offset}, counts"
            f" {progress.counts}, refused {progress.refused}, decisions "
            f"{[tuple(each) for each in map(_shown, progress.decisions)]}"
        )
        model.step(
            Step(
                progress=progress,
                offset=progress_record.offset,
                timestamp_ms=progress_record.timestamp_ms,
                records=records,
                written=written,
                began_ms=spans.began_ms,
                sent_ms=spans.sent_ms,
                zone_data=spans.zone_data,
                zone_ms=ZONE_OFFSETS_S[spans.zone_data] * 1_000,
            )
        )

    def _wrote(self, shard: int, node: OracleNode, store: SimStore) -> None:
        """A replica applied a progress record."""
        state = store.state
        assert state is not None
        found = digest(store, remembered_ms=MS_MAX)
        if self.digests.setdefault((shard, state.applied), found) != found:
            raise wrong(
                f"{node.name}/{shard} at {state.applied} has another digest than the replica that "
                "was there before"
            )
        model = self.service.shards[shard]
        if state.applied == model.applied:
            self.comparisons += 1
            compare(store, model, self.producers.named, self.dice)

    # --- the end

    def _heal(self) -> None:
        world = self.world
        world.trace("all faults are gone")
        world.faulty = False
        self.mixing = self.lazy = 0.0
        self.brokers.heal()
        self.targets.heal()
        for node in self.nodes:
            node.kill_in = -1
            node.down_ms = 0
            for replica in node.replicas:
                replica.log.faults = Faults()
            node.faults = Faults()

    def _settle(self) -> None:
        """Let time pass until every record is read and every message settled, by every replica."""
        for number in range(SETTLING_ROUNDS_MAX):
            left = self._left()
            if not left:
                return
            if number % 50 == 0:
                self.producers.cancel_series()
            self.world.pass_time(50 if number < 50 else self._idle_ms())
            for node in self.nodes:
                for _ in range(self.shards):
                    self._step(node)
                for replica in node.replicas:
                    replica.step()
        raise Finding(LIVENESS, f"no end after {SETTLING_ROUNDS_MAX} rounds: {left}")

    def _idle_ms(self) -> int:
        """Return the time until the next message is due, within bounds."""
        places = [
            message.place_ms for shard in self.service.shards for message in shard.pending.values()
        ]
        return min(max(500, min(places, default=0) - self.world.now_ms), HOUR_MS)

    def _left(self) -> str:
        """Return what is not done yet; empty: everything is."""
        for shard in self.service.shards:
            left = self.brokers.topics[DELAY][shard.number].items[shard.pull_offset :]
            if any(
                record and (owner is None or owner.state == "committed") for record, owner in left
            ):
                return (
                    f"shard {shard.number} has read up to {shard.pull_offset}, and not "
                    f"{len(left)} more"
                )
            if shard.pending or shard.refusals or any(shard.forwards.values()):
                return (
                    f"shard {shard.number}: {[*shard.pending.values()][:2]} {shard.refusals[:2]} "
                    f"{shard.forwards}"
                )
            for node in self.nodes:
                store = node.stores.get(shard.number)
                applied = 0 if store is None or store.state is None else store.state.applied
                if applied != shard.applied and shard.applied:
                    return (
                        f"{node.name}/{shard.number} has applied up to {applied} of {shard.applied}"
                    )
        return ""


def _shown(decision: Decision) -> tuple[object, ...]:
    return (
        decision.due_ms - START_MS,
        decision.offset,
        decision.outcome.name,
        decision.reason,
        decision.next_due_ms,
        decision.attempt,
    )


def simulate(seed: int, *, lines: list[str] | None = None) -> Result:
    """Run one seed; raises a Finding."""
    with quiet():
        return Oracle(seed, lines=lines).run()


def summary(results: Sequence[Result]) -> str:
    """Return the text about many results."""
    records, commits = sum(each.records for each in results), sum(each.commits for each in results)
    kills, deliveries = (
        sum(each.kills for each in results),
        sum(each.deliveries for each in results),
    )
    comparisons = sum(each.comparisons for each in results)
    return (
        f"{records:,} records, {commits:,} transactions, {kills:,} kills, {deliveries:,} "
        f"deliveries; {comparisons:,} comparisons of a store with the model"
    )
