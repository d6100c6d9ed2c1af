"""The counts of a vote and of a heartbeat, and what follows from them. The order of the comparisons matters."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from msgspec import Struct

from chronos.core.raft.values import HeartbeatResponse, HeartbeatResult, VoteResponse, VoteResult


class VoteOutcome(Enum):
    """The outcome of a vote, in the order in which it is determined (DL-18)."""

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
    """The counts of one vote (DL-17)."""

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
        """Return whether waiting for more answers is pointless (DL-06)."""
        return self.has_leader or self.accepted + self.not_ready >= quorum or self.answered == nodes

    def outcome(self, term: int, quorum: int) -> VoteOutcome:
        """Determine the outcome of a vote in `term` (DL-18)."""
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
    """The outcome of a heartbeat so far, in the order in which it is determined (DL-23).

    A greater term comes before all of them and is acted on as soon as one answer has it (DL-24).
    """

    KEPT = auto()
    """A quorum follows."""
    NOT_READY = auto()
    """A quorum once all followers have the term: send again at once."""
    INCONSISTENT = auto()
    """All have answered, and a node follows another leader in the same term."""
    OPEN = auto()


def heartbeat_outcome(answers: Iterable[HeartbeatResponse], quorum: int, *, closed: bool) -> HeartbeatOutcome:
    """Determine the outcome of a heartbeat; the leader counts itself (DL-22).

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
