"""Faults of the election and of the register that the simulation and the exploration must find;
`tests/sim/faults.py` plants them."""

from __future__ import annotations

from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.register import Voter
from chronos.core.cluster.raft.values import VoteTally
from tests.sim.faults import Change

FAULTS: dict[str, list[Change]] = {
    "messages leave before the write they depend on is finished (DL-28)": [
        (Elector, "_send", "if not self.unsaved:", "if True:"),
    ],
    "the vote of a term is forgotten in a restart (DL-28)": [
        (Elector, "_on_start", "saved.term, saved.vote", "saved.term, None"),
    ],
    "a vote is given to a node, not to its incarnation (DL-29)": [
        (
            Elector,
            "_vote_result",
            "self.vote not in (None, sender)",
            "self.vote is not None and self.vote.node != sender.node",
        ),
        (Elector, "_answer_vote", "self.vote != request.sender", "self.vote is None"),
        (Elector, "_become_leader", "assert self.vote is not None", "pass"),
    ],
    "an incarnation keeps the number of the one before (DL-29)": [
        (Elector, "_on_start", "saved.incarnation + 1", "max(1, saved.incarnation)"),
    ],
    "a node votes again in a term for every candidate (DL-16.7)": [
        (Elector, "_vote_result", "self.vote not in (None, sender)", "False"),
        (Elector, "_answer_vote", 'assert self.vote is None, "a second vote in one term"', "pass"),
    ],
    "half of the nodes are a quorum (DL-07)": [
        (VoteTally, "outcome", "if self.accepted >= quorum:", "if self.accepted >= quorum - 1:"),
    ],
    "answers to an earlier vote count (DL-19)": [
        (
            Elector,
            "_on_vote_response",
            "(response.incarnation, response.round) != (self.me.number, self.round)",
            "response.incarnation != self.me.number",
        ),
    ],
    "the log end of a candidate is not compared (DL-16.4)": [
        (Elector, "_vote_result", "if request.end < self.end:", "if False:"),
    ],
    "an isolated node increases its term (DL-18.3)": [
        (VoteTally, "outcome", "return VoteOutcome.NO_QUORUM", "return VoteOutcome.LOST"),
    ],
    "a leader that a quorum follows ignores a greater term (DL-24, DL-36)": [
        (Elector, "_on_heartbeat_response", "response.term > self.term:", "False:"),
    ],
    "a leader without a quorum stays (DL-23)": [
        (Elector, "_lead", "if self.now_ms - self.kept_ms > self.timing.election_ms:", "if False:"),
    ],
    "a follower without a leader waits for ever (DL-25)": [
        (
            Elector,
            "_run_timers",
            "if self.now_ms - self.heard_ms > self.timing.election_ms:",
            "if False:",
        ),
    ],
    "a lost vote is repeated in the same term (DL-18.7)": [
        (Elector, "_close_vote", "elif outcome is VoteOutcome.LOST:", "elif False:"),
    ],
}

EXPLORED = (
    "messages leave before the write they depend on is finished (DL-28)",
    "the vote of a term is forgotten in a restart (DL-28)",
    "a vote is given to a node, not to its incarnation (DL-29)",
    "a node votes again in a term for every candidate (DL-16.7)",
)
"""Faults that show within a few steps."""

REGISTER_FAULTS: dict[str, list[Change]] = {
    "an entry is confirmed before it is durable": [
        (
            Voter,
            "_on_proposal",
            "self._changed = True",
            "self._changed = True\nself._durable = stamp\nself._confirm()",
        ),
    ],
    "an entry of a deposed leader is accepted": [
        (
            Voter,
            "_on_proposal",
            "elector.leader != proposal.sender or elector.term != stamp.epoch",
            "False",
        ),
        (Voter, "_on_proposal", "elector.role is not Role.FOLLOWER", "elector.role is Role.LEADER"),
        (Voter, "_confirm", "self._durable.epoch == elector.term", "True"),
    ],
    "an entry is replaced by an earlier one": [
        (Voter, "_on_proposal", "stamp > self.latest.stamp", "stamp != self.latest.stamp"),
    ],
    "a new leader begins with an empty value": [
        (Voter, "_elect", 'b"" if self.latest is None else self.latest.value', 'b""'),
    ],
    "copies of an entry of an earlier term are counted": [
        (
            Voter,
            "_elect",
            'self._propose(b"" if self.latest is None else self.latest.value)',
            "[self._send_latest(peer) for peer in self.elector.peers]",
        ),
        (Voter, "_accept", " or stamp.epoch != elector.term", ""),
        (Voter, "_commit", " or latest.stamp.epoch != elector.term", ""),
        (Voter, "_on_proposal", " or elector.term != stamp.epoch", ""),
        (Voter, "_confirm", "self._durable.epoch == elector.term", "True"),
    ],
    "one copy too few commits an entry": [
        (Voter, "_commit", "copies >= elector.quorum", "copies >= elector.quorum - 1"),
    ],
    "the leader counts its own copy before it is durable": [
        (Voter, "_commit", "self._durable >= latest.stamp", "1"),
    ],
    "the entry of a node does not count in an election": [
        (Voter, "_stored", "self._elect(Applied(self._durable), now_ms)", "pass"),
        (Voter, "_begin", "self._elect(Applied(self._durable), now_ms)", "pass"),
        (Voter, "_on_heartbeat_response", "response.end < self.latest.stamp", "True"),
    ],
    "the version of an entry is used twice": [
        (Voter, "_propose", "self.latest.stamp.applied + 1", "self.latest.stamp.applied"),
    ],
    "the entry is forgotten in a restart": [
        (Voter, "_begin", "self.latest = disk.entry", "self.latest = None"),
        (Voter, "_begin", "LogEnd() if disk.entry is None else disk.entry.stamp", "LogEnd()"),
    ],
    "an entry that was lost is not sent again": [
        (Voter, "_on_heartbeat_response", "self.latest is not None and", "False and"),
    ],
}
