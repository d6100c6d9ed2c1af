"""The register of `chronos/core/cluster/raft`, simulated with the election: the same nodes, and the
same faults.

The log whose end decides a vote is the register itself, so leaders write values, and a node keeps
the last one on its disk together with its term and vote.

The checker sees only the messages that leave a node, its disk, and the values that it names
committed."""

from __future__ import annotations

from chronos.core.cluster.raft import values
from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.register import (
    Acceptance,
    Begin,
    Committed,
    Disk,
    Event,
    Message,
    Offer,
    Proposal,
    RegisterEntry,
    RegisterVoter,
    Stored,
    StoreEffect,
)
from chronos.core.cluster.raft.values import BecameLeader, LogEnd, Role
from tests.sim.elections import Elections, Node, Result
from tests.sim.world import CORRECTNESS, CRASH, LIVENESS, Finding


class RegisterNode(Node):
    """One voter, and its disk."""

    simulation: Registers

    def __init__(self, simulation: Registers, name: str) -> None:
        super().__init__(simulation, name)
        self.file = Disk()
        self.voter: RegisterVoter | None = None

    def _begin(self, elector: Elector) -> None:
        self.voter = RegisterVoter(elector)
        self.give(elector, Begin(self.file))

    def feed(self, elector: Elector, event: values.Event) -> None:
        self.give(elector, event)

    def receive_any(self, elector: Elector | None, event: Event) -> None:
        """Take an event; a frozen process takes it when it goes on, a dead one never."""
        if elector is None or elector is not self.elector:
            return
        if self.world.now_ms < self.frozen_ms:
            self.world.at(self.frozen_ms, self.receive_any, elector, event)
        else:
            self.give(elector, event)

    def give(self, elector: Elector, event: Event) -> None:
        """Give the voter one event and carry its effects out."""
        voter = self.voter
        assert voter is not None
        assert voter.elector is elector
        role = elector.role
        before = None if voter.latest is None else voter.latest.stamp
        try:
            effects = voter.step(event, self.local_ms())
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed on {event}: {error!r}") from error
        if isinstance(event, Offer) or any(isinstance(effect, BecameLeader) for effect in effects):
            self.simulation.proposed(before, voter.latest, carried=not isinstance(event, Offer))
        for effect in effects:
            if isinstance(effect, StoreEffect):
                self._store(elector, effect.disk)
            elif isinstance(effect, Committed):
                self.simulation.committed(self, effect.entry)
            elif isinstance(effect, BecameLeader):
                self.simulation.check_leader(self, elector)
            elif isinstance(effect, Proposal | Acceptance):
                self.simulation.send_entry(self, elector, effect)
            elif isinstance(effect, values.Message):
                self.simulation.send(self, elector, effect)
        if elector.role is not role:
            self.world.trace(f"{self.name} {elector.role} {elector.term}")
        self._schedule(elector)

    def _store(self, elector: Elector, disk: Disk) -> None:
        """Write to the disk, in order. A write that a crash overtakes may have been finished."""
        draw = self.world.random
        self._count_increase(disk.saved)
        self._written_ms = max(self._written_ms, self.world.now_ms) + self._write_ms()
        self.world.at(self._written_ms, self._finish_store, elector, disk, draw.random() < 0.5)

    def _finish_store(self, elector: Elector, disk: Disk, survives: bool) -> None:
        if elector is self.elector or (
            survives and self.elector is None and self.disk_is_before(disk.saved)
        ):
            self.file, self.disk = disk, disk.saved
            self.end = self.file.entry.stamp if self.file.entry is not None else LogEnd()
            self.receive_any(elector, Stored(disk))


class Registers(Elections):
    """One simulated run."""

    nodes: dict[str, RegisterNode]  # type: ignore[assignment]
    kind = RegisterNode

    def __init__(
        self, seed: int, *, nodes: int | None = None, lines: list[str] | None = None
    ) -> None:
        self.values: dict[LogEnd, bytes] = {}
        """Stamp -> its value."""
        self.parents: dict[LogEnd, LogEnd | None] = {}
        """Stamp -> the stamp of the entry that its leader had before."""
        self.done: list[LogEnd] = []
        """Stamps of the committed entries, in their order."""
        self.offered = 0
        super().__init__(seed, nodes=nodes, lines=lines)

    def run(self) -> Result:
        """Both phases of the election; then all nodes must agree on one value, offered after the
        healing."""
        result = super().run()
        ends = {node.file.entry.stamp if node.file.entry else None for node in self.nodes.values()}
        if len(ends) > 1:
            raise Finding(
                LIVENESS, f"the nodes have agreed on a leader, and have different entries: {ends}"
            )
        offered = self.offered + 1
        self._offer()
        for _ in range(100):
            self.world.pass_time(self.timing.heartbeat_ms // 2)
            entries = {
                node.file.entry.stamp if node.file.entry else None for node in self.nodes.values()
            }
            last = self.done[-1] if self.done else None
            if entries == {last} and any(
                int(self.values[stamp] or b"0") >= offered for stamp in self.done
            ):
                return result
            if not any(
                node.elector and node.elector.role is Role.LEADER for node in self.nodes.values()
            ):
                self._offer()
        raise Finding(
            LIVENESS, f"a value offered after the healing is not on all nodes: {self.done[-1:]}"
        )

    def _append(self) -> None:
        """A leader, which may be deposed, is offered a value."""
        if self.world.faulty:
            self._offer()
        self.world.after(self.world.random.randrange(1, self.timing.election_ms // 2), self._append)

    def _offer(self) -> None:
        leading = [
            node
            for node in self.nodes.values()
            if node.elector and node.elector.role is Role.LEADER
        ]
        if leading:
            self.offered += 1
            node = self.world.random.choice(leading)
            node.receive_any(node.elector, Offer(str(self.offered).encode()))

    def _forgets(self, node: Node, away_ms: int) -> None:
        """The disk keeps the register."""

    def send_entry(
        self, node: RegisterNode, elector: Elector, message: Proposal | Acceptance
    ) -> None:
        """Check and deliver a message of the register."""
        if isinstance(message, Proposal):
            self._check_value(message.entry)
        else:
            stored = node.file.entry
            if stored is None or stored.stamp < message.stamp:
                raise Finding(
                    CORRECTNESS, f"{node.name} confirmed {message.stamp} before it was durable"
                )
        self._transmit((node.name, message.to), message)

    def _deliver(self, way: tuple[str, str], message: Message) -> None:
        if isinstance(message, Proposal | Acceptance):
            node = self.nodes[way[1]]
            if not self.blocked.get(way):
                node.receive_any(node.elector, message)
        else:
            super()._deliver(way, message)

    # ---------------------------------------------------------------------------------- the checker

    def _check_value(self, entry: RegisterEntry) -> None:
        if self.values.setdefault(entry.stamp, entry.value) != entry.value:
            raise Finding(CORRECTNESS, f"two values have the stamp {entry.stamp}")

    def proposed(
        self, before: LogEnd | None, entry: RegisterEntry | None, *, carried: bool
    ) -> None:
        """A leader wrote an entry after the one it had. `carried`: it must be the same value, under
        its own term."""
        if entry is not None and entry.stamp != before:
            self._check_value(entry)
            if carried and entry.value != (b"" if before is None else self.values[before]):
                raise Finding(CORRECTNESS, f"{entry.stamp} was to be the value of {before} again")
            if self.parents.setdefault(entry.stamp, before) != before:
                raise Finding(CORRECTNESS, f"two entries have the stamp {entry.stamp}")

    def committed(self, node: RegisterNode, entry: RegisterEntry) -> None:
        """Of two committed entries the later one descends from the earlier one."""
        self._check_value(entry)
        stamp = entry.stamp
        copies = sum(
            bool(each.file.entry and each.file.entry.stamp >= stamp) for each in self.nodes.values()
        )
        if copies < len(self.names) // 2 + 1:
            raise Finding(CORRECTNESS, f"{node.name} committed {stamp}, which {copies} nodes have")
        for other in self.done:
            if not self._descends(max(stamp, other), min(stamp, other)):
                raise Finding(
                    CORRECTNESS,
                    f"{max(stamp, other)} was written without the committed {min(stamp, other)}",
                )
        self.done = sorted({*self.done, stamp})
        self.world.trace(f"{node.name} committed {stamp.epoch}.{stamp.applied}")

    def _descends(self, stamp: LogEnd, ancestor: LogEnd) -> bool:
        at: LogEnd | None = stamp
        while at is not None and at > ancestor:
            at = self.parents.get(at)
        return at == ancestor


def simulate(seed: int, *, nodes: int | None = None, lines: list[str] | None = None) -> Result:
    """Run one seed; raise `Finding` for an error."""
    return Registers(seed, nodes=nodes, lines=lines).run()
