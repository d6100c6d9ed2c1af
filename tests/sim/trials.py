"""Trials of observed masters in a cluster without other faults: what may move a shard, what must,
and how soon.

`moves.Moves` checks every change of roles meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from chronos.core.cluster.assignment import CUT_OFF
from chronos.core.cluster.health import ARMED, ARMED_MS, AUTO, MOVED_MS
from chronos.core.cluster.replication import SYNC
from chronos.core.cluster.roles import ShardRoles
from tests.sim.broker import DELAY, TRANSACTION_MS, Transaction
from tests.sim.cluster import HOUR_MS, Cluster, ClusterPart
from tests.sim.expectations import Expectation
from tests.sim.fault_injection import STUCK_PLACES
from tests.sim.moves import CLOCK_MS
from tests.sim.node import TICK_MS, UNREACHABLE_MS, Process, SimulatedNode
from tests.sim.observers import MAX_LAG_MS
from tests.sim.thread import ReplicaThread
from tests.sim.world import LIVENESS, Finding

MARGIN_MS = 2_000
"""How much longer than the bound a master is stuck."""

LOOK_MS = 500
"""Interval at which a trial checks whether it is over."""

PUBLISHED_MS = 4 * TICK_MS
"""Time in which a verdict is reported, the controller decides, and the roles are published."""

TAKEN_OVER_MS = 20_000
"""Time in which a new master takes over: without faults much less."""

LOST_MS = 10_000
"""More than a session, and the time in which the controller replaces a master that is gone."""


class _Stuck(Struct):
    """A master that is stuck on purpose."""

    shard: int
    epoch: int
    thread: ReplicaThread


class Trials(ClusterPart):
    """The trials of one seed; `wait_for_all` lets time pass until every node has its roles."""

    def __init__(self, cluster: Cluster, wait_for_all: Callable[[], None]) -> None:
        super().__init__(cluster)
        assert cluster.moves is not None
        self.moves = cluster.moves
        self.settings = cluster.moves.settings
        self.dice = cluster.health_dice
        self._wait_for_all = wait_for_all

    def run(self) -> None:
        """Raises a Finding."""
        self._wait_for_all()
        rules = self.settings.rules
        # Until then windows may hold observations from the time of faults.
        self.world.pass_time(rules.window * rules.every_ms)
        self.moves.strict = True
        self._know_followers_in_sync()
        self._disturb_observers()
        self._stick_a_master()
        self._lose_a_master_beside_a_paused_follower()
        self._silence_the_log()

    # --- No false alarm

    def _disturb_observers(self) -> None:
        """Pauses of observers, steps of clocks, and a transaction that a producer leaves open move
        no role."""
        rules, dice = self.settings.rules, self.dice
        began_ms = self.world.now_ms
        hold_ms = (rules.in_a_row + 2) * rules.every_ms
        for process in self._processes():
            assert process.observer is not None
            if dice.random() < 0.4:
                process.observer.pause(dice.choice([rules.every_ms, hold_ms // 2]))
            if dice.random() < 0.4:
                is_master = any(thread.role == "master" for thread in process.threads)
                # A master whose clock is further off pauses deliveries, and is no example of a
                # healthy one.
                step_ms = (
                    dice.choice([-200, 200])
                    if is_master
                    else dice.choice([-HOUR_MS, -10_000, 10_000, HOUR_MS])
                )
                self.world.after(
                    dice.randrange(hold_ms // 2), setattr, process.node.clock, "skew_ms", step_ms
                )
        if dice.random() < 0.5:
            self._leave_transaction_open(dice.randrange(self.shards), hold_ms)
        self.world.pass_time(hold_ms + rules.every_ms)
        for node in self.nodes:
            node.clock.skew_ms = 0
        # A shard may be moved to a node whose clock is wrong, to spread the masters evenly, and the
        # only replica of one to spread the replicas.
        spreading = ["spread evenly"]
        if self.cluster.replication == 1:
            spreading.append("holds no replica any more")
        moved = [
            (shard, why)
            for at_ms, shard, why in self.moves.changes
            if at_ms > began_ms and why not in spreading and shard not in self.moves.stuck
        ]
        if moved:
            raise Finding(LIVENESS, f"a role moved in a healthy cluster: {moved}")

    def _leave_transaction_open(self, shard: int, wait_ms: int) -> None:
        """No reader of committed records gets what is behind it, and what is pending goes on to be
        delivered."""
        transaction, partition = Transaction(None, 0), self.brokers.topics[DELAY][shard]
        offset = self.brokers.append(
            partition, None, None, [("chronos-action", b"probe")], transaction
        )
        self.checker.expect(partition, offset, Expectation(verb="probe"))
        self.world.after(wait_ms, self._end_transaction, transaction)

    def _end_transaction(self, transaction: Transaction) -> None:
        self.brokers.decide(transaction, commit=True)

    # --- A master that is alive and stuck

    @property
    def _found_ms(self) -> int:
        """Longest time until a quorum that observes it has a stuck master replaced: the bound of
        the rules, and the publication."""
        return self.settings.found_ms + PUBLISHED_MS

    def _stick_a_master(self) -> None:
        self._wait_for_all()
        shared = [shard for shard in range(self.shards) if len(self.cluster.holders(shard)) > 1]
        if not shared:
            return
        shard, mode = self.dice.choice(shared), self.settings.mode
        lone = self.dice.random() < 0.3
        if lone:
            self._pause_all_observers_but_one()
        if mode == ARMED and not lone:
            self._try_permission(shard)
        elif mode == AUTO and not lone:
            self._outlast_the_last_move(shard)
            # A transaction that the master leaves open hides probes in the delay partitions that it
            # forwards to, until it expires.
            self._require_to_move(
                shard, self._found_ms + TRANSACTION_MS, self.dice.choice([None, *STUCK_PLACES])
            )
        else:
            self._require_to_stay(shard, self.dice.choice([None, *STUCK_PLACES]))
        self._release()

    def _outlast_the_last_move(self, shard: int) -> None:
        """A verdict moves a shard once in five minutes."""
        if self.moves.by_verdict[shard]:
            again_ms = self.moves.by_verdict[shard][-1] + MOVED_MS + CLOCK_MS
            self.world.pass_time(max(0, again_ms - self.world.now_ms))
            self._wait_for_all()

    def _stick(self, shard: int, wait_ms: int, at: str | None) -> _Stuck | None:
        """Stick the master of a shard, or all replicas of its node; None: the master did not come
        to the place."""
        given, thread = self._roles()[shard], self._master_thread(shard)
        if thread is None:
            return None
        threads = thread.process.threads if self.dice.random() < 0.3 else [thread]
        self.moves.stuck.update(each.shard for each in threads)
        for each in threads:
            each.stick(wait_ms, at)
        give_up_ms = self.world.now_ms + 2 * self.settings.rules.every_ms + LOOK_MS
        while thread.held_ms is None and self.world.now_ms < give_up_ms:
            # In a call, it lets the time pass until it is released.
            self.world.pass_time(LOOK_MS)
        if thread.held_ms is None:
            self._release()
            return None
        return _Stuck(shard, given.epoch, thread)

    def _pause_all_observers_but_one(self) -> None:
        rules, processes = self.settings.rules, self._processes()
        paused = [
            process.observer
            for process in self.dice.sample(processes, len(processes) - 1)
            if process.observer
        ]
        for observer in paused:
            observer.pause(2 * rules.forgotten_ms + 4 * self._found_ms + LOST_MS)
        self.world.pass_time(rules.forgotten_ms + 2 * rules.timeout_ms)
        for observer in paused:
            if any(observer.observer.verdict(shard) is not None for shard in range(self.shards)):
                raise Finding(LIVENESS, f"{observer.name} does not run, and has a verdict")

    def _release(self) -> None:
        for process in self._processes():
            assert process.observer is not None
            process.observer.paused_ms = 0
            for thread in process.threads:
                thread.release()

    def _require_to_stay(self, shard: int, at: str | None) -> _Stuck | None:
        """Switched off, without permission, or observed by one node alone, a stuck master stays."""
        stuck = self._stick(
            shard, 4 * self._found_ms if at is None else self._found_ms + MARGIN_MS, at
        )
        if stuck is None:
            return None
        moves = len(self.moves.by_verdict[shard])
        self._pass_until(stuck, self._found_ms)
        if len(self.moves.by_verdict[shard]) > moves:
            raise Finding(
                LIVENESS, f"shard {shard} was moved without permission, or by a lone observer"
            )
        return stuck

    def _require_to_move(self, shard: int, within_ms: int, at: str | None) -> None:
        """The bound follows from the rules: a row of failures after the next look, and the
        publication of verdict and roles."""
        stuck = self._stick(shard, within_ms + MARGIN_MS, at)
        if stuck is None:
            return
        self._pass_until(stuck, within_ms)
        assert stuck.thread.held_ms is not None
        moved_ms = self.moves.given_after_ms(shard, stuck.epoch)
        if moved_ms is None or moved_ms > stuck.thread.held_ms + within_ms:
            raise Finding(
                LIVENESS, f"shard {shard} keeps a master that is stuck for {within_ms} ms"
            )

    def _pass_until(self, stuck: _Stuck, after_ms: int) -> None:
        assert stuck.thread.held_ms is not None
        self.world.pass_time(max(0, stuck.thread.held_ms + after_ms - self.world.now_ms))

    def _try_permission(self, shard: int) -> None:
        """Without permission the master stays; one permission moves the shard once."""
        if self.dice.random() < 0.5:
            self._arm_while_the_clock_is_ahead(shard)
        stuck = self._require_to_stay(shard, None)
        if stuck is None or self._roles()[shard].epoch != stuck.epoch:
            return  # It was moved to spread the masters evenly.
        self.cluster.arm(shard, self.dice.choice(self.nodes).clock.now_ms())
        self.world.pass_time(PUBLISHED_MS)
        if self._roles()[shard].epoch == stuck.epoch:
            raise Finding(
                LIVENESS,
                f"shard {shard} keeps a stuck master although an operator permits to replace it",
            )
        self._release()
        give_up_ms = self.world.now_ms + TAKEN_OVER_MS
        while self._master_thread(shard) is None and self.world.now_ms < give_up_ms:
            self.world.pass_time(LOOK_MS)
        self._require_to_stay(shard, None)

    def _arm_while_the_clock_is_ahead(self, shard: int) -> None:
        """A permission that a controller gives whose clock is an hour ahead does not last longer
        than any other one."""
        assert self.ensemble is not None
        controllers = [
            node
            for node in self.cluster.present()
            if node.node_id == self.ensemble.roles.controller
        ]
        for node in controllers:
            node.clock.skew_ms = HOUR_MS
            self.cluster.arm(shard, node.clock.now_ms())
        self.moves.clocks_step = True
        self.world.pass_time(PUBLISHED_MS)
        for node in controllers:
            node.clock.skew_ms = 0
        self.world.pass_time(2 * ARMED_MS)

    def _master_thread(self, shard: int) -> ReplicaThread | None:
        """The thread of the shard's master, once it has taken over."""
        master = self._roles()[shard].master
        threads = [
            process.threads[shard]
            for process in self._processes()
            if process.node.node_id == master and shard < len(process.threads)
        ]
        return next((thread for thread in threads if thread.role == "master"), None)

    # --- Followers in sync

    def _know_followers_in_sync(self) -> None:
        """Every node knows all followers of a healthy cluster to be in sync, and the shards that
        have too few of them."""
        give_up_ms = self.world.now_ms + 3 * MAX_LAG_MS
        while wrong := self._wrongly_in_sync():
            if self.world.now_ms >= give_up_ms:
                raise Finding(LIVENESS, wrong)
            self.world.pass_time(LOOK_MS)

    def _wrongly_in_sync(self) -> str:
        rules = self.settings.replication
        for process in self._processes():
            assert process.in_sync is not None
            for shard, given in self._roles().items():
                expected = sorted(
                    node.node_id
                    for node in self.cluster.holders(shard)
                    if node.node_id != given.master
                )
                found, shortage = process.in_sync.followers(shard), process.in_sync.shortage(shard)
                is_short = rules.mode == SYNC and len(expected) < rules.min_in_sync
                if list(found) != expected or (shortage is not None) != is_short:
                    return (
                        f"{process.node.name} says of shard {shard}: in sync {found}, {shortage}; "
                        f"followers: {expected}"
                    )
        return ""

    def _lose_a_master_beside_a_paused_follower(self) -> None:
        """A follower that is paused is not in sync, however far it has come; `Moves` checks that
        another one is promoted."""
        self._wait_for_all()
        shard = self.dice.randrange(self.shards)
        master = self._roles()[shard].master
        followers = [node for node in self.cluster.holders(shard) if node.node_id != master]
        lost = [node for node in self.cluster.present() if node.node_id == master]
        if len(followers) < 2 or self.cluster.duplicated:
            return
        paused: SimulatedNode = self.dice.choice(followers)
        self.world.trace(f"{paused.name} disk low")
        paused.disk.low = True
        # Long enough for its report, and short enough that it is hardly behind.
        self.world.pass_time(2 * TICK_MS)
        lost[0].crash(LOST_MS)
        self.world.pass_time(LOST_MS)
        paused.disk.low = False

    # --- An outage of all brokers

    def _silence_the_log(self) -> None:
        """No broker answers for a time, and the nodes see its end one after the other: no role
        moves."""
        self._wait_for_all()
        dice, began_ms = self.cluster.silence_dice, self.world.now_ms
        end_ms = began_ms + UNREACHABLE_MS + dice.randrange(500, 4_000)
        for node in self.nodes:
            node.log_cut_ms = end_ms + dice.randrange(UNREACHABLE_MS - 2 * TICK_MS)
        self.world.pass_time(end_ms - began_ms + 3 * UNREACHABLE_MS)
        moved = [
            (shard, why)
            for at_ms, shard, why in self.moves.changes
            if at_ms > began_ms and why == CUT_OFF
        ]
        if moved:
            raise Finding(LIVENESS, f"a role moved although no node reached the brokers: {moved}")

    # --- The cluster

    def _roles(self) -> dict[int, ShardRoles]:
        assert self.ensemble is not None
        return dict(self.ensemble.roles.shards)

    def _processes(self) -> list[Process]:
        found = [node.process for node in self.cluster.present()]
        return [
            process for process in found if process is not None and process.observer is not None
        ]
