"""The values of an election: messages between nodes, the events and effects of the state machine,
and the counts of votes and heartbeats, with the outcomes that follow from them.

Messages are tagged, so that JSON or MessagePack restores them: `msgspec.json.decode(data,
type=Message)`. What a node does after an outcome is decided in `elector`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum, auto

from msgspec import Struct


class ElectionTiming(Struct, frozen=True, kw_only=True):
    """All intervals of an election; the defaults are DLedger's."""

    tick_ms: int = 10
    """Time until a vote or a heartbeat is repeated for nodes that were not ready."""
    heartbeat_ms: int = 2_000
    """Time between two heartbeats of a leader."""
    heartbeats_missed_max: int = 3
    """Heartbeat intervals without a heartbeat, or without a quorum of answers, until a leader is
    given up."""
    vote_min_ms: int = 300
    vote_max_ms: int = 1_000
    """The time until the next vote is drawn from [vote_min_ms, vote_max_ms)."""
    taking_min_ms: int = 30
    taking_max_ms: int = 100
    """The same for a node that takes the leadership over in a transfer."""
    transfer_lag_max: int = 1_000
    """The leadership is transferred only to a node whose log end is less than this behind."""
    transfer_wait_ms: int = 1_000
    """Time for a transferee to reach the leader's log end."""

    def __post_init__(self) -> None:
        assert 0 < self.tick_ms < self.heartbeat_ms
        assert self.heartbeats_missed_max >= 1
        assert 0 < self.vote_min_ms <= self.vote_max_ms
        assert 0 < self.taking_min_ms <= self.taking_max_ms
        assert self.transfer_wait_ms > 0

    @property
    def election_ms(self) -> int:
        """The election interval: time without a heartbeat after which a follower becomes a
        candidate."""
        return self.heartbeat_ms * self.heartbeats_missed_max


class Role(StrEnum):
    """The role of a node."""

    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"


class Incarnation(Struct, frozen=True):
    """One incarnation of a node, from a start to the next one. Votes are given to incarnations, not
    to nodes."""

    node: str
    number: int
    """Number of starts of the node so far."""


class LogEnd(Struct, frozen=True, order=True):
    """How far a node's log is applied. It must grow only through leaders: nodes whose ends grow
    without a leader would refuse each other's votes for as long as that lasts."""

    epoch: int = -1
    """The term of the leader whose record was applied last; never the node's own term."""
    applied: int = -1
    """Number of that record."""


class Saved(Struct, frozen=True, kw_only=True):
    """The part of the state that survives a restart. A node that lost it must not start under the
    same name."""

    term: int = 0
    vote: Incarnation | None = None
    """The candidate that has this node's vote in `term`."""
    incarnation: int = 0
    """Number of starts of the node."""


class VoteResult(StrEnum):
    """The answer to a vote request."""

    ACCEPT = "accept"
    UNKNOWN = "unknown"
    """No answer: the transport reports that the request failed."""
    UNKNOWN_LEADER = "unknown leader"
    UNEXPECTED_LEADER = "unexpected leader"
    EXPIRED_LEDGER_TERM = "expired ledger term"
    SMALL_LEDGER_END_INDEX = "small ledger end index"
    EXPIRED_VOTE_TERM = "expired vote term"
    ALREADY_HAS_LEADER = "already has leader"
    ALREADY_VOTED = "already voted"
    TERM_NOT_READY = "term not ready"
    TERM_SMALL_THAN_LEDGER = "term small than ledger"
    TAKING_LEADERSHIP = "taking leadership"


class HeartbeatResult(StrEnum):
    """The answer to a heartbeat."""

    SUCCESS = "success"
    UNKNOWN_MEMBER = "unknown member"
    UNEXPECTED_MEMBER = "unexpected member"
    EXPIRED_TERM = "expired term"
    INCONSISTENT_LEADER = "inconsistent leader"
    TERM_NOT_READY = "term not ready"


class TransferResult(StrEnum):
    """The end of a leadership transfer."""

    SUCCESS = "success"
    UNKNOWN_MEMBER = "unknown member"
    INCONSISTENT_TERM = "inconsistent term"
    NOT_LEADER = "not leader"
    LEADER_TRANSFERRING = "leader transferring"
    FALL_BEHIND_TOO_MUCH = "fall behind too much"
    INCONSISTENT_LEADER = "inconsistent leader"
    TAKE_LEADERSHIP_FAILED = "take leadership failed"
    EXPIRED_TERM = "expired term"
    TIMEOUT = "timeout"
    """The transferee did not answer."""


# ----------------------------------------------------------------------------------------- messages


class _Request(Struct, frozen=True, kw_only=True, tag=True):
    sender: Incarnation
    to: str
    """The node that receives the message."""
    term: int
    """The sender's term."""
    end: LogEnd
    """The sender's log end."""


class VoteRequest(_Request, frozen=True, kw_only=True):
    """A candidate asks for a vote."""

    round: int
    """Number of the vote in the sender's incarnation."""


class Heartbeat(_Request, frozen=True, kw_only=True):
    """A leader keeps its followers."""

    round: int
    """Number of the heartbeat in the sender's incarnation."""


class TakeLeadership(_Request, frozen=True, kw_only=True):
    """A leader asks a follower to take the leadership over."""


class _Response(Struct, frozen=True, kw_only=True, tag=True):
    sender: str
    to: str
    """The node that receives the message."""
    incarnation: int
    """The incarnation of the receiver that sent the request."""
    term: int
    """The sender's term; of TERM_SMALL_THAN_LEDGER the epoch of its log end. Of a transfer: the
    term of the request."""


class VoteResponse(_Response, frozen=True, kw_only=True):
    """The answer to a vote request."""

    round: int
    result: VoteResult


class HeartbeatResponse(_Response, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    round: int
    result: HeartbeatResult
    end: LogEnd
    """The sender's log end."""


class TakeLeadershipResponse(_Response, frozen=True, kw_only=True):
    """The answer to a request to take the leadership over."""

    result: TransferResult


Message = (
    VoteRequest
    | VoteResponse
    | Heartbeat
    | HeartbeatResponse
    | TakeLeadership
    | TakeLeadershipResponse
)


# ------------------------------------------------------------------------------- events and effects


class Start(Struct, frozen=True, kw_only=True):
    """Event: the node starts."""

    saved: Saved | None
    """The content of its file; None only for the very first start."""


class Tick(Struct, frozen=True):
    """Event: time has passed."""


class Persisted(Struct, frozen=True):
    """Event: a write is durable (write to a new file, fsync, rename, fsync of the directory). It
    must not be given for a failed write; until a later write succeeds, the node then sends
    nothing."""

    saved: Saved


class Applied(Struct, frozen=True):
    """Event: the log end of the node."""

    end: LogEnd


class Transfer(Struct, frozen=True, kw_only=True):
    """Event: an operator asks this leader to transfer the leadership."""

    transferee: str
    term: int
    """The leader's term as the operator knows it."""


Event = Start | Tick | Persisted | Applied | Transfer | Message


class Persist(Struct, frozen=True):
    """Effect: write this state, then give `Persisted`. Writes may be combined, but never
    reordered."""

    saved: Saved


class BecameLeader(Struct, frozen=True):
    """Effect: this node leads. The term is the fencing token: no other incarnation of any node
    leads in it. An incarnation that stepped down without an answer of a quorum may lead in the same
    term again."""

    term: int


class BecameFollower(Struct, frozen=True):
    """Effect: this node follows."""

    term: int
    leader: Incarnation


class BecameCandidate(Struct, frozen=True):
    """Effect: this node knows no leader, and is no longer one itself."""

    term: int


class TransferEnded(Struct, frozen=True):
    """Effect: a transfer was refused, failed or succeeded. A leader that steps down meanwhile
    reports a success only."""

    transferee: str
    result: TransferResult


Effect = Persist | BecameLeader | BecameFollower | BecameCandidate | TransferEnded | Message


class VoteOutcome(Enum):
    """The outcome of a vote, in the order in which it is determined."""

    GREATER_TERM = auto()
    HAS_LEADER = auto()
    NO_QUORUM = auto()
    """Fewer than a quorum answered: an isolated node votes again in the same term."""
    BEHIND = auto()
    """Too many voters have a later log end."""
    PASSED = auto()
    NOT_READY = auto()
    """A quorum once all voters have the term: vote again at once."""
    LOST = auto()


class VoteTally(Struct):
    """The counts of one vote."""

    answered: int = 0
    valid: int = 0
    accepted: int = 0
    not_ready: int = 0
    ahead: int = 0
    """Voters with a later log end."""
    greatest_term: int = -1
    has_leader: bool = False

    def count(self, answers: Iterable[VoteResponse]) -> VoteTally:
        """Add answers; at most one for each voter."""
        for answer in answers:
            self.answered += 1
            result = answer.result
            self.valid += result is not VoteResult.UNKNOWN
            if result is VoteResult.ACCEPT:
                self.accepted += 1
            elif result is VoteResult.ALREADY_HAS_LEADER:
                self.has_leader = True
            elif result is VoteResult.TERM_NOT_READY:
                self.not_ready += 1
            elif result in (VoteResult.EXPIRED_LEDGER_TERM, VoteResult.SMALL_LEDGER_END_INDEX):
                self.ahead += 1
            elif result in (VoteResult.EXPIRED_VOTE_TERM, VoteResult.TERM_SMALL_THAN_LEDGER):
                self.greatest_term = max(self.greatest_term, answer.term)
        return self

    def is_decided(self, quorum: int, nodes: int) -> bool:
        """Return whether waiting for more answers is pointless."""
        return self.has_leader or self.accepted + self.not_ready >= quorum or self.answered == nodes

    def outcome(self, term: int, quorum: int) -> VoteOutcome:
        """Determine the outcome of a vote in `term`."""
        if self.greatest_term > term:
            return VoteOutcome.GREATER_TERM
        if self.has_leader:
            return VoteOutcome.HAS_LEADER
        if self.valid < quorum:
            return VoteOutcome.NO_QUORUM
        if self.valid - self.ahead < quorum:
            return VoteOutcome.BEHIND
        if self.accepted >= quorum:
            return VoteOutcome.PASSED
        if self.accepted + self.not_ready >= quorum:
            return VoteOutcome.NOT_READY
        return VoteOutcome.LOST


class HeartbeatOutcome(Enum):
    """The outcome of a heartbeat so far, in the order in which it is determined.

    A greater term comes before all of them and is acted on as soon as one answer has it.
    """

    KEPT = auto()
    """A quorum follows."""
    NOT_READY = auto()
    """A quorum once all followers have the term: send again at once."""
    INCONSISTENT = auto()
    """All have answered, and a node follows another leader in the same term."""
    OPEN = auto()


def heartbeat_outcome(
    answers: Iterable[HeartbeatResponse], quorum: int, *, closed: bool
) -> HeartbeatOutcome:
    """Determine the outcome of a heartbeat; the leader counts itself.

    `closed`: no more answers are expected.
    """
    kept, not_ready, inconsistent = 1, 0, False
    for answer in answers:
        kept += answer.result is HeartbeatResult.SUCCESS
        not_ready += answer.result is HeartbeatResult.TERM_NOT_READY
        inconsistent |= answer.result is HeartbeatResult.INCONSISTENT_LEADER
    if kept >= quorum:
        return HeartbeatOutcome.KEPT
    if kept + not_ready >= quorum:
        return HeartbeatOutcome.NOT_READY
    if inconsistent and closed:
        return HeartbeatOutcome.INCONSISTENT
    return HeartbeatOutcome.OPEN
