"""The state of one node in an election: its fields, writes, messages, random intervals and changes of role."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from chronos.core.raft.values import (
    BecameCandidate,
    BecameFollower,
    BecameLeader,
    Effect,
    HeartbeatResponse,
    Incarnation,
    LogEnd,
    Message,
    Role,
    Saved,
    TakeLeadership,
    Timing,
    VoteResponse,
)


class Taking(Struct, frozen=True, kw_only=True):
    """A transfer of the leadership to this node."""

    request: TakeLeadership
    until_ms: int
    """End of the time to reach the leader's log end."""
    began: bool = False
    """The log end was reached, and this node has become a candidate."""

    @property
    def term(self) -> int:
        """The term in which this node takes the leadership."""
        return self.request.term + 1


class State(Struct, kw_only=True):
    """The state; it consists of immutable values, so that a shallow copy is a snapshot."""

    node: str
    peers: tuple[str, ...]
    """All nodes, this one included."""
    preferred: tuple[str, ...] = ()
    """Nodes to which another leader transfers the leadership."""
    timing: Timing = Timing()

    now_ms: int = 0
    role: Role = Role.CANDIDATE
    term: int = 0
    vote: Incarnation | None = None
    """The candidate that has this node's vote in `term`."""
    me: Incarnation = Incarnation("", 0)
    end: LogEnd = LogEnd()
    leader: Incarnation | None = None
    known_term: int = -1
    """The greatest term known of any node."""
    draws: int = 0
    """Number of random intervals so far."""

    unsaved: bool = False
    """A write is unfinished."""
    changed: bool = False
    """The state to save was changed in this step."""
    held: tuple[Message, ...] = ()
    """Messages to send once the write is finished; of each kind the last one for each node."""
    effects: list[Effect] = []

    # Of a candidate.
    increase_now: bool = False
    """Another node has a greater term: adopt it at once, without a vote."""
    increase_next: bool = False
    """The next vote is in a greater term."""
    vote_ms: int = -1
    """Time of the next vote."""
    round: int = 0
    """Number of the last vote or heartbeat of this incarnation."""
    votes: dict[str, VoteResponse] | None = None
    """Answers to the open vote; None: no vote is open."""
    votes_until_ms: int = 0
    """End of the open vote."""

    # Of a follower.
    heard_ms: int = 0
    """Time of the last heartbeat received."""
    taking: Taking | None = None

    # Of a leader.
    beat_ms: int = 0
    """Time of the last heartbeat sent."""
    next_beat_ms: int = 0
    beats: dict[str, HeartbeatResponse] = {}
    """Answers to the last heartbeat."""
    kept_ms: int = 0
    """Time at which the last heartbeat was sent that a quorum answered."""
    ends: dict[str, tuple[int, LogEnd]] = {}
    """Node -> time and content of its last report of its log end."""
    transferee: str | None = None
    transfer_until_ms: int = 0
    preferred_ms: int = 0
    """Time of the next check for a preferred leader."""

    def __post_init__(self) -> None:
        assert self.node in self.peers
        assert len(set(self.peers)) == len(self.peers)

    @property
    def quorum(self) -> int:
        """Number of nodes that decide (DL-07)."""
        return len(self.peers) // 2 + 1

    @property
    def saved(self) -> Saved:
        """The state to save."""
        return Saved(term=self.term, vote=self.vote, incarnation=self.me.number)

    # ------------------------------------------------------------------------------------- writes and messages

    def _save(self) -> None:
        self.changed = self.unsaved = True

    def _send(self, message: Message) -> None:
        if not self.unsaved:
            self.effects.append(message)
            return
        kept = [other for other in self.held if (type(other), other.to) != (type(message), message.to)]
        self.held = (*kept, message)

    def _draw(self, below: int) -> int:
        """A number in [0, below) from node, incarnation, term and a counter."""
        self.draws += 1
        text = f"{self.node} {self.me.number} {self.term} {self.draws}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % below if below else 0

    def _next_vote_ms(self) -> int:
        """The time of the next vote (DL-04, DL-05)."""
        timing, taking = self.timing, self._is_taking()
        least = timing.taking_min_ms if taking else timing.vote_min_ms
        most = timing.taking_max_ms if taking else timing.vote_max_ms
        return self.now_ms + least + self._draw(most - least)

    def _is_taking(self) -> bool:
        return self.taking is not None and self.taking.began and self.taking.term == self.term

    # --------------------------------------------------------------------------------------------------- roles

    def _become_candidate(self, term: int) -> None:
        """Know no leader any more; `term` is known, and not adopted yet (DL-26)."""
        assert term >= self.term
        self.known_term = max(self.known_term, term)
        self.leader = self.transferee = None
        if self.role is not Role.CANDIDATE:
            self.role = Role.CANDIDATE
            self.effects.append(BecameCandidate(self.term))

    def _become_follower(self, leader: Incarnation) -> None:
        """Follow the leader of the own term (DL-26, DL-27)."""
        assert self.role is Role.CANDIDATE
        self.role, self.leader = Role.FOLLOWER, leader
        self.votes, self.increase_now, self.increase_next = None, False, False
        self.heard_ms = self.now_ms
        self.effects.append(BecameFollower(self.term, leader))

    def _become_leader(self) -> None:
        """Lead in the own term; the first heartbeat is due at once (DL-19)."""
        assert self.role is Role.CANDIDATE
        assert not self.unsaved
        assert self.vote is not None
        self.role, self.leader = Role.LEADER, self.me
        self.votes = None
        self.next_beat_ms = self.kept_ms = self.beat_ms = self.now_ms
        self.beats, self.ends = {}, {}
        self.preferred_ms = self.now_ms + self.timing.preferred_ms
        self.effects.append(BecameLeader(self.term))
