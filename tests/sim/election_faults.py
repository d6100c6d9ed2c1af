"""Faults of the election and of the register that the simulation and the exploration must find;
`planting` plants them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

FAULTS: Faults = {
    "messages leave before the write they depend on is finished (DL-28)": [
        Change("if not self.unsaved:", "if True:")
    ],
    "the vote of a term is forgotten in a restart (DL-28)": [
        Change("saved.term, saved.vote", "saved.term, None")
    ],
    "a vote is given to a node, not to its incarnation (DL-29)": [
        Change(
            "self.vote not in (None, sender)",
            "self.vote is not None and self.vote.node != sender.node",
        ),
        Change("self.vote != request.sender", "self.vote is None"),
        Change("assert self.vote is not None", "pass"),
    ],
    "an incarnation keeps the number of the one before (DL-29)": [
        Change("saved.incarnation + 1", "max(1, saved.incarnation)")
    ],
    "a node votes again in a term for every candidate (DL-16.7)": [
        Change("self.vote not in (None, sender)", "False"),
        Change('assert self.vote is None, "a second vote in one term"', "pass"),
    ],
    "half of the nodes are a quorum (DL-07)": [
        Change("if self.accepted >= quorum:", "if self.accepted >= quorum - 1:")
    ],
    "answers to an earlier vote count (DL-19)": [
        Change(
            "(response.incarnation, response.round) != (self.me.number, self.round)",
            "response.incarnation != self.me.number",
        )
    ],
    "the log end of a candidate is not compared (DL-16.4)": [
        Change("if request.end < self.end:", "if False:")
    ],
    "an isolated node increases its term (DL-18.3)": [
        Change("return VoteOutcome.NO_QUORUM", "return VoteOutcome.LOST")
    ],
    "a leader that a quorum follows ignores a greater term (DL-24, DL-36)": [
        Change("response.term > self.term:", "False:")
    ],
    "a leader without a quorum stays (DL-23)": [
        Change("if self.now_ms - self.kept_ms > self.timing.election_ms:", "if False:")
    ],
    "a follower without a leader waits for ever (DL-25)": [
        Change("if self.now_ms - self.heard_ms > self.timing.election_ms:", "if False:")
    ],
    "a lost vote is repeated in the same term (DL-18.7)": [
        Change("elif outcome is VoteOutcome.LOST:", "elif False:")
    ],
}

EXPLORED = (
    "messages leave before the write they depend on is finished (DL-28)",
    "the vote of a term is forgotten in a restart (DL-28)",
    "a vote is given to a node, not to its incarnation (DL-29)",
    "a node votes again in a term for every candidate (DL-16.7)",
)
"""Faults that show within a few steps."""

REGISTER_FAULTS: Faults = {
    "an entry is confirmed before it is durable": [
        Change(
            "self._changed = True",
            "self._changed = True\nself._durable = stamp\nself._confirm()",
            "_on_proposal",
        )
    ],
    "an entry of a deposed leader is accepted": [
        Change("elector.leader != proposal.sender or elector.term != stamp.epoch", "False"),
        Change("elector.role is not Role.FOLLOWER", "elector.role is Role.LEADER"),
        Change("self._durable.epoch == elector.term", "True"),
    ],
    "an entry is replaced by an earlier one": [
        Change("stamp > self.latest.stamp", "stamp != self.latest.stamp")
    ],
    "a new leader begins with an empty value": [
        Change('b"" if self.latest is None else self.latest.value', 'b""')
    ],
    "copies of an entry of an earlier term are counted": [
        Change(
            'self._propose(b"" if self.latest is None else self.latest.value)',
            "[self._send_latest(peer) for peer in self.elector.peers]",
        ),
        Change(" or stamp.epoch != elector.term", ""),
        Change(" or latest.stamp.epoch != elector.term", ""),
        Change(" or elector.term != stamp.epoch", ""),
        Change("self._durable.epoch == elector.term", "True"),
    ],
    "one copy too few commits an entry": [
        Change("copies >= elector.quorum", "copies >= elector.quorum - 1")
    ],
    "the leader counts its own copy before it is durable": [
        Change("self._durable >= latest.stamp", "1")
    ],
    "the entry of a node does not count in an election": [
        Change("self._elect(Applied(self._durable), now_ms)", "pass", "_stored"),
        Change("self._elect(Applied(self._durable), now_ms)", "pass", "_begin"),
        Change("response.end < self.latest.stamp", "True"),
    ],
    "the version of an entry is used twice": [
        Change("self.latest.stamp.applied + 1", "self.latest.stamp.applied")
    ],
    "the entry is forgotten in a restart": [
        Change("self.latest = disk.entry", "self.latest = None"),
        Change("LogEnd() if disk.entry is None else disk.entry.stamp", "LogEnd()"),
    ],
    "an entry that was lost is not sent again": [
        Change("self.latest is not None and", "False and")
    ],
}
