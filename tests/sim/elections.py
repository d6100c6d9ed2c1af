"""The election of `chronos/core/cluster/raft`, simulated: 3, 5 or 7 nodes, one seed per run.

First everything may fail: messages are lost, delayed, duplicated and reordered; nodes are
partitioned (also one-way), cut off, frozen, killed and restarted; their clocks run at different
rates, and writes take time. Then the network heals, and all nodes must agree on a leader within
ELECTIONS_MAX election intervals and keep it.

The checker sees only the messages that leave a node, its disk, and the effects that name a leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.values import (
    Applied,
    BecameLeader,
    ElectionTiming,
    Event,
    LogEnd,
    Message,
    Persist,
    Persisted,
    Role,
    Saved,
    Start,
    TakeLeadershipResponse,
    Tick,
    Transfer,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from tests.sim.world import CORRECTNESS, CRASH, LIVENESS, Finding, World

ELECTIONS_MAX = 10
"""Election intervals from the healing of the network until all nodes agree on a leader."""

STABLE = 2
"""Election intervals for which the leader must then stay."""

TIMINGS = (
    ElectionTiming(),
    ElectionTiming(heartbeat_ms=500, vote_min_ms=150, vote_max_ms=500, transfer_wait_ms=500),
)


class Result(Struct):
    """The result of one seed without a finding."""

    nodes: int
    leaders: int
    """Number of terms with a leader."""
    restarts: int
    intervals: float
    """Election intervals from the healing until all nodes agreed."""
    events: int
    digest: str


class Node:
    """One node: its elector, its disk, and its clock."""

    def __init__(self, simulation: Elections, name: str) -> None:
        draw = simulation.world.random
        self.simulation = simulation
        self.world = simulation.world
        self.name = name
        self.rate = draw.choice([1_000, draw.randint(950, 1_050)])
        """Local milliseconds in 1,000 true ones."""
        self.disk: Saved | None = None
        self.end = LogEnd()
        self.elector: Elector | None = None
        self.starts = 0
        self.frozen_ms = 0
        self.behind = False
        """The node applies no more of the log: it can follow, and not lead."""
        self.cut_off = False
        self.term = 0
        """The greatest term written."""
        self.increases = 0
        """Number of increases of the term since the node was cut off."""
        self._started_ms = 0
        self._local_ms = 0
        self._written_ms = 0
        """Time at which the last write ends."""
        self._wake_ms: int | None = None

    def start(self) -> None:
        """Start with the content of the disk, and a clock that begins anywhere."""
        assert self.elector is None
        simulation = self.simulation
        self._started_ms = self._written_ms = self.world.now_ms
        self._local_ms = self.world.random.randrange(1_000_000)
        self._wake_ms = None
        self.starts += 1
        self.elector = Elector(
            node=self.name,
            peers=simulation.names,
            timing=simulation.timing,
        )
        self._begin(self.elector)

    def _begin(self, elector: Elector) -> None:
        self.feed(elector, Start(saved=self.disk))
        self.feed(elector, Applied(self.end))

    def local_ms(self) -> int:
        """The clock of this node."""
        return self._local_ms + (self.world.now_ms - self._started_ms) * self.rate // 1_000

    def crash(self) -> None:
        """End without warning; unfinished writes are lost or not."""
        self.elector = None

    def receive(self, elector: Elector | None, event: Event) -> None:
        """Take an event; a frozen process takes it when it goes on, a dead one never."""
        if elector is None or elector is not self.elector:
            return
        if self.world.now_ms < self.frozen_ms:
            self.world.at(self.frozen_ms, self.receive, elector, event)
        else:
            self.feed(elector, event)

    def feed(self, elector: Elector, event: Event) -> None:
        """Give the elector one event and carry its effects out."""
        role = elector.role
        try:
            effects = elector.step(event, self.local_ms())
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed on {event}: {error!r}") from error
        for effect in effects:
            if isinstance(effect, Persist):
                self._write(elector, effect.saved)
            elif isinstance(effect, BecameLeader):
                self.simulation.check_leader(self, elector)
            elif isinstance(effect, Message):
                self.simulation.send(self, elector, effect)
        if elector.role is not role:
            self.world.trace(f"{self.name} {elector.role} {elector.term}")
        self._schedule(elector)

    def _schedule(self, elector: Elector) -> None:
        """Wake the elector at its time."""
        wake_ms = elector.wake_ms
        if wake_ms is not None and wake_ms != self._wake_ms:
            self._wake_ms = wake_ms
            wait_ms = -(-(wake_ms - elector.now_ms) * 1_000 // self.rate)
            self.world.after(max(1, wait_ms), self._wake, elector, wake_ms)

    def _wake(self, elector: Elector, wake_ms: int) -> None:
        if elector is self.elector and wake_ms == self._wake_ms:
            self._wake_ms = None
            self.receive(elector, Tick())

    def _write(self, elector: Elector, saved: Saved) -> None:
        """Write to the disk, in order. A write that a crash overtakes may have been finished."""
        draw = self.world.random
        self._count_increase(saved)
        self._written_ms = max(self._written_ms, self.world.now_ms) + self._write_ms()
        self.world.at(self._written_ms, self._finish_write, elector, saved, draw.random() < 0.5)

    def _count_increase(self, saved: Saved) -> None:
        if saved.term > self.term:
            self.increases += 1
            self.term = saved.term

    def _write_ms(self) -> int:
        """Duration of one write."""
        return self.world.random.choice([1, 5, 5, 20, self.simulation.slow_write_ms])

    def _finish_write(self, elector: Elector, saved: Saved, survives: bool) -> None:
        if elector is self.elector or (
            survives and self.elector is None and self.disk_is_before(saved)
        ):
            self.disk = saved
            self.receive(elector, Persisted(saved))

    def disk_is_before(self, saved: Saved) -> bool:
        """Return whether a write would not undo one of a later incarnation."""
        return self.disk is None or self.disk.incarnation <= saved.incarnation

    def apply(self, end: LogEnd) -> None:
        """The node has applied the log up to here."""
        if end > self.end and not self.behind:
            self.end = end
            self.receive(self.elector, Applied(end))


class Elections:
    """One simulated run."""

    kind: type[Node] = Node

    def __init__(
        self, seed: int, *, nodes: int | None = None, lines: list[str] | None = None
    ) -> None:
        self.world = World(seed, lines=lines)
        draw = self.world.random
        self.names = tuple(f"n{number}" for number in range(1, (nodes or (3, 5, 7)[seed % 3]) + 1))
        self.timing = draw.choice(TIMINGS)
        self.loss, self.doubling = draw.choice([0.0, 0.02, 0.2]), draw.choice([0.0, 0.05])
        self.delay_ms = draw.choice(
            [5, 50, self.timing.heartbeat_ms // 8, self.timing.heartbeat_ms]
        )
        self.slow_write_ms = draw.choice([20, 500])
        self.blocked: dict[tuple[str, str], int] = {}
        """Sender and receiver -> number of faults that block the way."""
        self.log_end = LogEnd()
        """The end of a log that only leaders write, and that fences."""
        self.restarts = 0
        self.leaders: dict[int, tuple[str, int]] = {}
        """Term -> node and incarnation that led in it."""
        self.votes: dict[tuple[str, int], tuple[str, int]] = {}
        """Node and term -> node and incarnation that got its vote."""
        self.starts: dict[tuple[str, int], int] = {}
        """Node and incarnation -> the start that sent messages as that incarnation."""
        self.refused: set[tuple[str, str, int, int]] = set()
        """Voter, candidate, incarnation and number of requests from candidates whose log end is
        behind the voter's."""
        self.nodes = {name: self.kind(self, name) for name in self.names}

    # -------------------------------------------------------------------------------------- the run

    def run(self) -> Result:
        """Run both phases."""
        world, draw = self.world, self.world.random
        for node in self.nodes.values():
            world.after(draw.randrange(200), node.start)
        faults_ms = draw.randint(5, 10) * self.timing.election_ms
        for _ in range(draw.randint(2, 12)):
            world.after(draw.randrange(300, faults_ms), self._begin_fault)
        self._append()
        world.pass_time(faults_ms)
        self._heal()
        intervals = self._await_agreement()
        return Result(
            len(self.names),
            len(self.leaders),
            self.restarts,
            intervals,
            world.events,
            world.digest(),
        )

    def _begin_fault(self) -> None:
        world, draw = self.world, self.world.random
        leading = [
            node
            for node in self.nodes.values()
            if node.elector and node.elector.role is Role.LEADER
        ]
        node = draw.choice(
            leading if leading and draw.random() < 0.5 else list(self.nodes.values())
        )
        others = [name for name in self.names if name != node.name]
        lasts_ms = draw.randrange(100, 3 * self.timing.election_ms)
        kind = draw.choice(
            ["crash", "freeze", "cut off", "in", "out", "one way", "split", "transfer"]
        )
        world.trace(f"{kind} {node.name} {lasts_ms}")
        outward, inward = (
            [(node.name, other) for other in others],
            [(other, node.name) for other in others],
        )
        if kind == "crash":
            self._crash(node, draw.choice([draw.randrange(1, 100), lasts_ms]))
        elif kind == "freeze":
            node.frozen_ms = max(node.frozen_ms, world.now_ms + lasts_ms)
        elif kind == "transfer" and leading:
            self._transfer(draw.choice(leading), draw.choice(list(self.nodes.values())), lasts_ms)
        elif kind == "cut off":
            self._block([*outward, *inward], lasts_ms, node)
            if draw.random() < 0.3:
                self._crash(node, draw.randrange(1, 1_000))
        elif kind == "in":
            self._block(inward, lasts_ms)
        elif kind == "out":
            self._block(outward, lasts_ms)
        elif kind == "one way":
            ways = [(one, other) for one in self.names for other in self.names if one != other]
            self._block(draw.sample(ways, len(ways) // 3), lasts_ms)
        elif kind == "split":
            part = set(draw.sample(self.names, draw.randrange(1, len(self.names))))
            ways = [
                (one, other)
                for one in self.names
                for other in self.names
                if (one in part) != (other in part)
            ]
            self._block(ways, lasts_ms)

    def _transfer(self, leader: Node, transferee: Node, lasts_ms: int) -> None:
        """Transfer the leadership; some transferees fall silent meanwhile, and some of these stay
        behind from then on."""
        world = self.world
        leader.receive(
            leader.elector, Transfer(transferee=transferee.name, term=self._term(leader))
        )
        if world.chance(0.5):
            ways = [(transferee.name, other) for other in self.names if other != transferee.name]
            world.after(world.random.randrange(1, 2 * self.delay_ms), self._block, ways, lasts_ms)
            transferee.behind = not any(node.behind for node in self.nodes.values())

    def _crash(self, node: Node, away_ms: int) -> None:
        if node.elector is None:
            return
        node.crash()
        self.restarts += 1
        self._forgets(node, away_ms)
        self.world.after(away_ms, node.start)

    def _forgets(self, node: Node, away_ms: int) -> None:
        """Some nodes apply the log again after a restart."""
        if self.world.chance(0.3):
            node.end = LogEnd()
            self.world.after(away_ms + 300, node.apply, self.log_end)

    def _block(
        self, ways: list[tuple[str, str]], lasts_ms: int, cut_off: Node | None = None
    ) -> None:
        if not self.world.faulty:
            return
        for way in ways:
            self.blocked[way] = self.blocked.get(way, 0) + 1
        # A frozen node still has messages to read from before.
        if cut_off is not None and not cut_off.cut_off and cut_off.frozen_ms <= self.world.now_ms:
            cut_off.cut_off, cut_off.increases = True, 0
            self.world.after(lasts_ms, self._join, cut_off, lasts_ms)
        self.world.after(lasts_ms, self._unblock, ways)

    def _unblock(self, ways: list[tuple[str, str]]) -> None:
        for way in ways if self.world.faulty else ():
            self.blocked[way] -= 1

    def _join(self, node: Node, lasted_ms: int = 0) -> None:
        """A node is no longer cut off. An open vote may have increased its term once, later ones
        have not (DL-18.3)."""
        if node.cut_off and node.increases > 1:
            raise Finding(
                CORRECTNESS,
                f"{node.name} was cut off and increased its term {node.increases} times",
            )
        leads = node.elector is not None and node.elector.role is Role.LEADER
        if (
            node.cut_off
            and leads
            and lasted_ms > 2 * self.timing.election_ms
            and node.frozen_ms < self.world.now_ms
        ):
            raise Finding(
                CORRECTNESS, f"{node.name} was cut off for {lasted_ms} ms and still leads"
            )
        node.cut_off = False

    def _heal(self) -> None:
        """End all faults; the clocks still run at different rates, and a dead process starts within
        an interval."""
        self.world.faulty = False
        self.world.trace("heal")
        self.blocked.clear()
        self.loss = self.doubling = 0.0
        self.delay_ms = min(self.delay_ms, 50)
        self.slow_write_ms = 20
        for node in self.nodes.values():
            node.frozen_ms = min(node.frozen_ms, self.world.now_ms)
            self._join(node)

    def _await_agreement(self) -> float:
        """Pass time until all nodes agree on a leader and keep it; return after how many election
        intervals they did."""
        world, interval_ms, began_ms = self.world, self.timing.election_ms, self.world.now_ms
        agreed, since_ms = self._agreed(), began_ms
        while since_ms <= began_ms + ELECTIONS_MAX * interval_ms:
            if agreed is not None and world.now_ms >= since_ms + STABLE * interval_ms:
                return (since_ms - began_ms) / interval_ms
            world.pass_time(50)
            now_agreed = self._agreed()
            if now_agreed is None or now_agreed != agreed:
                agreed, since_ms = now_agreed, world.now_ms
        raise Finding(
            LIVENESS, f"no leader within {ELECTIONS_MAX} election intervals after the healing"
        )

    def _agreed(self) -> tuple[str, int] | None:
        """The leader and its term, if every node is up and follows it."""
        electors = [node.elector for node in self.nodes.values()]
        leader = next(
            (each for each in electors if each is not None and each.role is Role.LEADER), None
        )
        if leader is None:
            return None
        agreed = all(
            each and each.leader == leader.me and each.term == leader.term for each in electors
        )
        return (leader.node, leader.term) if agreed else None

    def _term(self, node: Node) -> int:
        return node.elector.term if node.elector else -1

    # ------------------------------------------------------------------------------ log and network

    def _append(self) -> None:
        """Some leader writes a record, if no later leader has: the log fences. All nodes that it
        reaches apply it."""
        world, draw = self.world, self.world.random
        leading = [
            node
            for node in self.nodes.values()
            if node.elector and node.elector.role is Role.LEADER
        ]
        if leading:
            leader = draw.choice(leading)
            if leader.end < self.log_end:
                leader.apply(self.log_end)
            elif not leader.behind and self._term(leader) >= self.log_end.epoch:
                self.log_end = LogEnd(self._term(leader), self.log_end.applied + 1)
                for node in self.nodes.values():
                    if not node.cut_off:
                        world.after(draw.randrange(200), node.apply, self.log_end)
        else:
            draw.choice(list(self.nodes.values())).apply(self.log_end)
        world.after(self.timing.election_ms // 4, self._append)

    def send(self, node: Node, elector: Elector, message: Message) -> None:
        """Check a message that leaves a node; lose it, delay it, double it."""
        self._check_message(node, elector, message)
        self._transmit((node.name, message.to), message)

    def _transmit(self, way: tuple[str, str], message: Any) -> None:
        draw = self.world.random
        if self.blocked.get(way) or (self.loss and draw.random() < self.loss):
            return
        for _ in range(2 if self.doubling and draw.random() < self.doubling else 1):
            self.world.after(
                1 + int(draw.random() ** 3 * self.delay_ms), self._deliver, way, message
            )

    def _deliver(self, way: tuple[str, str], message: Any) -> None:
        node = self.nodes[way[1]]
        if self.blocked.get(way) or node.elector is None:
            return
        if isinstance(message, VoteRequest) and node.elector.end > message.end:
            sender = message.sender
            self.refused.add((node.name, sender.node, sender.number, message.round))
        node.receive(node.elector, message)

    # ---------------------------------------------------------------------------------- the checker

    def _check_message(self, node: Node, elector: Elector, message: Message) -> None:
        """What a message says is on the disk (DL-28), and no node votes for two (DL-29)."""
        disk = node.disk
        number = elector.me.number
        if (
            disk is None
            or disk.incarnation != number
            or self.starts.setdefault((node.name, number), node.starts) != node.starts
        ):
            raise Finding(
                CORRECTNESS, f"{node.name} sent {message} before its incarnation was durable"
            )
        if isinstance(message, VoteResponse):
            if message.result is VoteResult.TERM_SMALL_THAN_LEDGER:
                return
            if message.result is VoteResult.ACCEPT:
                candidate = message.to, message.incarnation
                self._check_vote(node, message.term, candidate)
                if disk.term == message.term and (
                    disk.vote is None or (disk.vote.node, disk.vote.number) != candidate
                ):
                    raise Finding(CORRECTNESS, f"{node.name} voted before its vote was durable")
                if (node.name, *candidate, message.round) in self.refused:
                    raise Finding(
                        CORRECTNESS, f"{node.name} voted for {candidate}, which is behind it"
                    )
        if not isinstance(message, TakeLeadershipResponse) and disk.term < message.term:
            raise Finding(CORRECTNESS, f"{node.name} sent {message} before its term was durable")

    def _check_vote(self, node: Node, term: int, candidate: tuple[str, int]) -> None:
        before = self.votes.setdefault((node.name, term), candidate)
        if before != candidate:
            raise Finding(
                CORRECTNESS, f"{node.name} voted for {before} and {candidate} in term {term}"
            )

    def check_leader(self, node: Node, elector: Elector) -> None:
        """One incarnation leads in a term."""
        leader = node.name, elector.me.number
        before = self.leaders.setdefault(elector.term, leader)
        if before != leader:
            raise Finding(CORRECTNESS, f"{before} and {leader} led in term {elector.term}")
        if elector.vote == elector.me:
            self._check_vote(node, elector.term, leader)


def simulate(seed: int, *, nodes: int | None = None, lines: list[str] | None = None) -> Result:
    """Run one seed; raise `Finding` for an error."""
    return Elections(seed, nodes=nodes, lines=lines).run()


def summary(results: Sequence[Result]) -> str:
    """Describe many seeds without a finding."""
    intervals = sorted(result.intervals for result in results)
    leaders, restarts = (
        sum(getattr(result, name) for result in results) for name in ("leaders", "restarts")
    )
    return (
        f"{leaders} leaders, {restarts} restarts, {sum(result.events for result in results)} "
        "events\n"
        f"election intervals from healing to agreement: median {intervals[len(results) // 2]:.2f}, "
        f"99 % {intervals[len(results) * 99 // 100]:.2f}, worst {intervals[-1]:.2f}"
    )
