"""Faults of the election that the simulation and the exploration must find; `tests/sim/faults.py` plants them."""

from __future__ import annotations

from chronos.core.raft.elector import Elector
from chronos.core.raft.state import State
from chronos.core.raft.tally import VoteTally
from tests.sim.faults import Change

FAULTS: dict[str, list[Change]] = {
    "messages leave before the write they depend on is finished (DL-28)": [
        (State, "_send", "if not self.unsaved:", "if True:"),
    ],
    "the vote of a term is forgotten in a restart (DL-28)": [
        (Elector, "_on_start", "saved.term, saved.vote", "saved.term, None"),
    ],
    "a vote is given to a node, not to its incarnation (DL-29)": [
        (
            Elector,
            "_judge_vote",
            "self.vote not in (None, sender)",
            "self.vote is not None and self.vote.node != sender.node",
        ),
        (Elector, "_answer_vote", "self.vote != request.sender", "self.vote is None"),
        (State, "_become_leader", "assert self.vote is not None", "pass"),
    ],
    "an incarnation keeps the number of the one before (DL-29)": [
        (Elector, "_on_start", "saved.incarnation + 1", "max(1, saved.incarnation)"),
    ],
    "a node votes again in a term for every candidate (DL-16.7)": [
        (Elector, "_judge_vote", "self.vote not in (None, sender)", "False"),
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
        (Elector, "_judge_vote", "if request.end < self.end:", "if False:"),
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
        (Elector, "_run_timers", "if self.now_ms - self.heard_ms > self.timing.election_ms:", "if False:"),
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
