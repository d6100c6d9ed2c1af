"""The replicated register: one value that the leader of an election replaces as a whole, on every
voter.

A `RegisterVoter` has an `Elector`, and this register beside it. It has no clock and no I/O either.

Guarantees, for values that `Committed` named:

1. No later leader lacks a committed value: a voter confirms an entry only while it follows the
   leader that sent it, after the entry is durable, and it votes for no candidate whose entry is
   earlier than its own.
2. Of one stamp there is one value: a stamp is the leader's term, in which no other incarnation
   leads, and a version that grows.
3. A new leader writes the last value that it has again, under its own term, before it commits
   anything else: an entry of an earlier term is never committed by counting its copies.
"""

from __future__ import annotations

from msgspec import Struct

from chronos.core.cluster.raft import values
from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.values import (
    Applied,
    BecameLeader,
    HeartbeatResponse,
    HeartbeatResult,
    Incarnation,
    LogEnd,
    Persist,
    Persisted,
    Role,
    Saved,
    Start,
)


class RegisterEntry(Struct, frozen=True, kw_only=True):
    """One value of the register."""

    stamp: LogEnd
    """The term of the leader that wrote it, and its version."""
    value: bytes


class Disk(Struct, frozen=True, kw_only=True):
    """Everything that survives a restart, written as a whole. A voter that lost it must not start
    under the same name."""

    saved: Saved = Saved()
    entry: RegisterEntry | None = None


class Proposal(Struct, frozen=True, kw_only=True, tag=True):
    """A leader sends its last entry."""

    sender: Incarnation
    to: str
    entry: RegisterEntry


class Acceptance(Struct, frozen=True, kw_only=True, tag=True):
    """A follower confirms that an entry of its leader is durable."""

    sender: str
    to: str
    incarnation: int
    """The incarnation of the receiver that sent the entry."""
    stamp: LogEnd


Message = values.Message | Proposal | Acceptance


class Begin(Struct, frozen=True):
    """Event: the voter starts with the content of its file."""

    disk: Disk


class Stored(Struct, frozen=True):
    """Event: a write is durable, as `Persisted`."""

    disk: Disk


class Offer(Struct, frozen=True):
    """Event: a new value. Only a leader takes it."""

    value: bytes


Event = Begin | Stored | Offer | Proposal | Acceptance | values.Event


class StoreEffect(Struct, frozen=True):
    """Effect: write this, then give `Stored`. Writes may be combined, but never reordered."""

    disk: Disk


class Committed(Struct, frozen=True):
    """Effect, of a leader: a quorum has this entry; every later leader begins with it or with a
    later one."""

    entry: RegisterEntry


Effect = StoreEffect | Committed | Proposal | Acceptance | values.Effect


class RegisterVoter:
    """One voter. `step` takes one event and returns its effects, as `Elector.step` does."""

    def __init__(self, elector: Elector) -> None:
        self.elector = elector
        self.latest: RegisterEntry | None = None
        """The last entry accepted or proposed, perhaps not durable yet."""
        self.committed: RegisterEntry | None = None
        """The last entry that this node committed as a leader."""
        self._durable = LogEnd()
        self._accepted: dict[str, LogEnd] = {}
        """Voter -> the last entry of the current term that it has durable; of a leader."""
        self._effects: list[Effect] = []
        self._changed = False

    @property
    def leads(self) -> bool:
        """True if this node leads, and has committed an entry in its term: `latest` follows from
        every committed one."""
        committed = self.committed
        is_leader = self.elector.role is Role.LEADER
        return is_leader and committed is not None and committed.stamp.epoch == self.elector.term

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event and return its effects in order."""
        self._effects, self._changed = [], False
        if isinstance(event, Begin):
            self._begin(event.disk, now_ms)
        elif isinstance(event, Stored):
            self._stored(event.disk, now_ms)
        elif isinstance(event, Offer):
            self._elect(values.Tick(), now_ms)
            if self.elector.role is Role.LEADER:
                self._propose(event.value)
        elif isinstance(event, Proposal):
            self._elect(values.Tick(), now_ms)
            self._on_proposal(event)
        elif isinstance(event, Acceptance):
            self._elect(values.Tick(), now_ms)
            if event.to == self.elector.node and event.incarnation == self.elector.me.number:
                self._accept(event.sender, event.stamp)
        else:
            self._elect(event, now_ms)
            if isinstance(event, HeartbeatResponse):
                self._on_heartbeat_response(event)
        if self._changed:
            self._effects.append(StoreEffect(Disk(saved=self.elector.saved, entry=self.latest)))
        return self._effects

    # --------------------------------------------------------------------------------- the election

    def _elect(self, event: values.Event, now_ms: int) -> None:
        """Give the elector an event; a node that begins to lead writes its last value under its own
        term."""
        for effect in self.elector.step(event, now_ms):
            if isinstance(effect, Persist):
                self._changed = True
                continue
            self._effects.append(effect)
            if isinstance(effect, BecameLeader):
                self._accepted = {}
                self._propose(b"" if self.latest is None else self.latest.value)

    def _begin(self, disk: Disk, now_ms: int) -> None:
        self.latest = disk.entry
        self._durable = LogEnd() if disk.entry is None else disk.entry.stamp
        self._elect(Start(saved=disk.saved), now_ms)
        self._elect(Applied(self._durable), now_ms)

    def _stored(self, disk: Disk, now_ms: int) -> None:
        """Note what is durable before the elector sends what waited for it."""
        if disk.entry is not None and disk.entry.stamp > self._durable:
            self._durable = disk.entry.stamp
            self._elect(Applied(self._durable), now_ms)
        self._elect(Persisted(disk.saved), now_ms)
        self._confirm()
        self._commit()

    # --------------------------------------------------------------------------------- the follower

    def _on_proposal(self, proposal: Proposal) -> None:
        """Take an entry of the current leader; an earlier one than the last is late."""
        stamp = proposal.entry.stamp
        elector = self.elector
        if proposal.to != elector.node or elector.role is not Role.FOLLOWER:
            return
        if elector.leader != proposal.sender or elector.term != stamp.epoch:
            return
        if self.latest is None or stamp > self.latest.stamp:
            self.latest = proposal.entry
            self._changed = True
        else:
            self._confirm()

    def _confirm(self) -> None:
        """Confirm the durable entry to the leader that sent it. A node that knows a greater term
        may have voted, and is silent."""
        elector = self.elector
        if (
            elector.role is Role.FOLLOWER
            and elector.leader is not None
            and self._durable.epoch == elector.term
        ):
            leader = elector.leader
            self._effects.append(
                Acceptance(
                    sender=elector.node,
                    to=leader.node,
                    incarnation=leader.number,
                    stamp=self._durable,
                )
            )

    # ----------------------------------------------------------------------------------- the leader

    def _propose(self, value: bytes) -> None:
        """Write a value under the own term, and send it to all; it is sent again to those that lack
        it (heartbeats)."""
        version = 0 if self.latest is None else self.latest.stamp.applied + 1
        self.latest = RegisterEntry(stamp=LogEnd(self.elector.term, version), value=value)
        self._changed = True
        for peer in self.elector.peers:
            self._send_latest(peer)

    def _send_latest(self, peer: str) -> None:
        if peer != self.elector.node and self.latest is not None:
            self._effects.append(Proposal(sender=self.elector.me, to=peer, entry=self.latest))

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """Take the entry that a follower has, which it names in each answer to a heartbeat."""
        if (response.to, response.incarnation) != (self.elector.node, self.elector.me.number):
            return
        if response.result is not HeartbeatResult.SUCCESS or self.elector.role is not Role.LEADER:
            return
        self._accept(response.sender, response.end)
        if (
            self.latest is not None
            and response.term == self.elector.term
            and response.end < self.latest.stamp
        ):
            self._send_latest(response.sender)

    def _accept(self, sender: str, stamp: LogEnd) -> None:
        """Count a copy. Only entries of the own term are counted."""
        elector = self.elector
        if (
            elector.role is not Role.LEADER
            or sender not in elector.peers
            or stamp.epoch != elector.term
        ):
            return
        self._accepted[sender] = max(stamp, self._accepted.get(sender, stamp))
        self._commit()

    def _commit(self) -> None:
        """Commit the last entry once a quorum, which may include this node, has it durable."""
        elector, latest = self.elector, self.latest
        if elector.role is not Role.LEADER or latest is None or latest.stamp.epoch != elector.term:
            return
        if self.committed is not None and self.committed.stamp >= latest.stamp:
            return
        copies = sum(
            stamp >= latest.stamp for peer, stamp in self._accepted.items() if peer != elector.node
        )
        copies += self._durable >= latest.stamp
        if copies >= elector.quorum:
            self.committed = latest
            self._effects.append(Committed(latest))
