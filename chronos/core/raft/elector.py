"""The state machine of one node in an election: events in, effects out, after DLedger's rules (DL-*).

It has no clock, no randomness and no I/O: time is an argument, in ms of a clock that never goes back, and random intervals
are computed from node, incarnation, term and a counter.

Guarantees:

1. At most one incarnation leads in a term: it needs the votes of a quorum, and a node votes once in a term.
2. Term and vote are durable before any message that depends on them leaves: no message leaves while a write is
   unfinished, and no vote is counted (DL-28).
3. A vote is given to one incarnation of a candidate, and the number of the incarnation is durable before its first
   message: two lives of one node never lead in the same term (DL-29).
4. A node that reaches no quorum does not increase its term (DL-18.3).
"""

from __future__ import annotations

from chronos.core.raft.tally import HeartbeatOutcome, VoteOutcome, VoteTally, heartbeat_outcome
from chronos.core.raft.transfer import TransferState
from chronos.core.raft.values import (
    Applied,
    Effect,
    Event,
    Heartbeat,
    HeartbeatResponse,
    HeartbeatResult,
    Incarnation,
    Persist,
    Persisted,
    Role,
    Saved,
    Start,
    TakeLeadership,
    TakeLeadershipResponse,
    Tick,
    Transfer,
    TransferResult,
    VoteRequest,
    VoteResponse,
    VoteResult,
)


class Elector(TransferState, kw_only=True):
    """One node. `step` takes one event and returns its effects; `wake_ms` is the time of the next `Tick`."""

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event and return its effects in order; a message to another node has none.

        `now_ms` is at least that of the step before.
        """
        assert now_ms >= self.now_ms
        self.now_ms = now_ms
        self.effects, self.changed = [], False
        if type(event) is Start:
            self._on_start(event)
        else:
            assert self.me.number > 0, "not started"
            # Timers come first: a node that was frozen does not act in a role that has expired.
            self._run_timers()
            if type(event) is not Tick and getattr(event, "to", self.node) == self.node:
                getattr(self, _HANDLERS[type(event)])(event)
        self._run_timers()
        if self.taking is not None:
            self._end_taking()
        if self.changed:
            self.effects.append(Persist(self.saved))
        return self.effects

    @property
    def wake_ms(self) -> int | None:
        """The time of the next `Tick`; None: no time, another event comes first."""
        timing = self.timing
        if self.role is Role.FOLLOWER:
            due = [self.heard_ms + timing.election_ms + 1]
            if self.taking is not None:
                due.append(self.taking.until_ms + 1)
        elif self.role is Role.LEADER:
            due = [self.next_beat_ms, self.kept_ms + timing.election_ms + 1]
            if self.transferee is not None:
                due.append(self.transfer_until_ms)
            elif self._prefers_another():
                due.append(self.preferred_ms)
        elif self.unsaved:
            return None
        else:
            due = [self.vote_ms if self.votes is None else self.votes_until_ms]
        return max(min(due), self.now_ms)

    # -------------------------------------------------------------------------------------- start, writes, timers

    def _on_start(self, start: Start) -> None:
        """Begin as a candidate in the saved term, whose first vote is due at once (DL-10)."""
        assert self.me.number == 0, "started twice"
        saved = start.saved or Saved()
        self.term, self.vote = saved.term, saved.vote
        self.me = Incarnation(self.node, saved.incarnation + 1)
        self.vote_ms = self.now_ms
        self._save()

    def _on_persisted(self, event: Persisted) -> None:
        if event.saved == self.saved:
            self.unsaved = False
            self.effects += self.held
            self.held = ()

    def _on_applied(self, event: Applied) -> None:
        """Note the log end: the epoch comes with the records only, never from the own term (DL-36)."""
        self.end = event.end

    def _run_timers(self) -> None:
        if self.role is Role.FOLLOWER:
            if self.now_ms - self.heard_ms > self.timing.election_ms:  # DL-25
                self._become_candidate(self.term)
            elif self.taking is not None and not self.taking.began:
                self._take_leadership(self.taking)
        if self.role is Role.CANDIDATE:
            self._campaign()
        if self.role is Role.LEADER:
            self._lead()

    # ----------------------------------------------------------------------------------------------- candidate

    def _campaign(self) -> None:
        """Increase the term or vote, whichever is due (DL-11 to DL-13). Both wait for an unfinished write."""
        if self.unsaved:
            return
        if self.increase_now:
            self._increase_term()
            self.vote_ms = self._next_vote_ms()
            return
        if self.votes is None:
            if self.now_ms < self.vote_ms:
                return
            if self.increase_next:
                self._increase_term()
            self._request_votes()
        self._close_vote(self.votes or {})

    def _increase_term(self) -> None:
        """Adopt the greatest known term, or the next one (DL-14)."""
        self.term = max(self.known_term, self.term + 1)
        self.vote, self.votes = None, None
        self.increase_now = self.increase_next = False
        self._save()

    def _request_votes(self) -> None:
        """Vote by the same checks as the others, and ask them (DL-15)."""
        self.round += 1
        self.votes_until_ms = self.now_ms + self.timing.heartbeat_ms + self._draw(self.timing.vote_max_ms)  # DL-06
        own = VoteRequest(sender=self.me, to=self.node, term=self.term, end=self.end, round=self.round)
        self.votes = {self.node: self._answer_vote(own, own=True)}
        for peer in self.peers:
            if peer != self.node:
                self._send(VoteRequest(sender=self.me, to=peer, term=self.term, end=self.end, round=self.round))

    def _on_vote_response(self, response: VoteResponse) -> None:
        """Count an answer to the open vote. An answer to an earlier one, or to an earlier incarnation, counts nothing."""
        if self.votes is None or (response.incarnation, response.round) != (self.me.number, self.round):
            return
        if response.sender in self.peers:
            # A new dictionary: an older copy of this node keeps its own.
            self.votes = {**self.votes, response.sender: response}

    def _close_vote(self, answers: dict[str, VoteResponse]) -> None:
        """Act on the outcome of the open vote once it is decided or its time is over (DL-06, DL-18)."""
        tally = VoteTally().count(answers.values())
        if self.unsaved or (self.now_ms < self.votes_until_ms and not tally.is_decided(self.quorum, len(self.peers))):
            return
        self.votes = None
        outcome = tally.outcome(self.term, self.quorum)
        if outcome is VoteOutcome.PASSED:
            self._become_leader()
            return
        if outcome is VoteOutcome.NOT_READY:
            self.vote_ms = self.now_ms + self.timing.tick_ms
            return
        self.vote_ms = self._next_vote_ms()
        if outcome is VoteOutcome.GREATER_TERM:
            self._become_candidate(tally.greatest_term)
            self.increase_next = True
        elif outcome is VoteOutcome.HAS_LEADER:
            self.vote_ms += self.timing.election_ms
        elif outcome is VoteOutcome.BEHIND:
            self.vote_ms += self.timing.vote_max_ms
        elif outcome is VoteOutcome.LOST:
            self.increase_next = True

    # --------------------------------------------------------------------------------------------------- voter

    def _on_vote_request(self, request: VoteRequest) -> None:
        self._send(self._answer_vote(request, own=False))

    def _answer_vote(self, request: VoteRequest, *, own: bool) -> VoteResponse:
        result = self._judge_vote(request, own=own)
        if result is VoteResult.ACCEPT and self.vote != request.sender:
            assert self.vote is None, "a second vote in one term"
            self.vote = request.sender
            self._save()
        return VoteResponse(
            sender=self.node,
            to=request.sender.node,
            incarnation=request.sender.number,
            round=request.round,
            term=self.end.epoch if result is VoteResult.TERM_SMALL_THAN_LEDGER else self.term,
            result=result,
        )

    def _judge_vote(self, request: VoteRequest, *, own: bool) -> VoteResult:
        """Judge a vote request; the order of the checks is DL-16's.

        The log end comes before the term: a candidate that may not win cannot increase the term of the others.
        """
        sender = request.sender
        if sender.node not in self.peers:
            return VoteResult.UNKNOWN_LEADER
        if sender.node == self.node and not own:
            return VoteResult.UNEXPECTED_LEADER
        leader = self.leader
        if leader is not None and sender.node == leader.node and sender.number > leader.number:
            self._become_candidate(self.term)  # The leader has restarted: its incarnation is over.
        if request.end.epoch < self.end.epoch:
            return VoteResult.EXPIRED_LEDGER_TERM
        if request.end < self.end:
            return VoteResult.SMALL_LEDGER_END_INDEX
        if request.term < self.term:
            return VoteResult.EXPIRED_VOTE_TERM
        if request.term == self.term and self.vote not in (None, sender):
            return VoteResult.ALREADY_HAS_LEADER if self.leader is not None else VoteResult.ALREADY_VOTED
        if request.term > self.term:
            self._become_candidate(request.term)
            self.increase_now = True
            return VoteResult.TERM_NOT_READY
        if request.term < self.end.epoch:
            return VoteResult.TERM_SMALL_THAN_LEDGER
        if not own and self._is_taking() and self.end >= request.end:
            return VoteResult.TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    # ------------------------------------------------------------------------------------------------ follower

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        result = self._judge_heartbeat(heartbeat)
        self._send(
            HeartbeatResponse(
                sender=self.node,
                to=heartbeat.sender.node,
                incarnation=heartbeat.sender.number,
                round=heartbeat.round,
                result=result,
                term=self.term,
                end=self.end,
            )
        )

    def _judge_heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        """Judge a heartbeat; the order of the checks is DL-21's."""
        sender = heartbeat.sender
        if sender.node not in self.peers:
            return HeartbeatResult.UNKNOWN_MEMBER
        if sender.node == self.node:
            return HeartbeatResult.UNEXPECTED_MEMBER
        if heartbeat.term < self.term:
            return HeartbeatResult.EXPIRED_TERM
        if heartbeat.term > self.term:
            self._become_candidate(heartbeat.term)
            self.increase_now = True
            return HeartbeatResult.TERM_NOT_READY
        if self.leader is None:
            self._become_follower(sender)
        elif self.leader != sender:
            return HeartbeatResult.INCONSISTENT_LEADER
        self.heard_ms = self.now_ms
        return HeartbeatResult.SUCCESS

    # -------------------------------------------------------------------------------------------------- leader

    def _lead(self) -> None:
        """Step down, give a transfer up, transfer, send heartbeats: whichever is due."""
        if self.now_ms - self.kept_ms > self.timing.election_ms:  # DL-23
            self._become_candidate(self.term)
            return
        if self.transferee is not None and self.now_ms >= self.transfer_until_ms:
            self._end_transfer(TransferResult.TIMEOUT)
        if self.transferee is None and self._prefers_another() and self.now_ms >= self.preferred_ms:
            self._transfer_to_preferred()
        if self.now_ms >= self.next_beat_ms:
            self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        """Send a heartbeat to every other node (DL-20)."""
        if len(self.peers) == 1:
            self.kept_ms = self.now_ms
        self.round += 1
        self.beats = {}
        self.beat_ms = self.now_ms
        self.next_beat_ms = self.now_ms + self.timing.heartbeat_ms
        for peer in self.peers:
            if peer != self.node:
                self._send(Heartbeat(sender=self.me, to=peer, term=self.term, end=self.end, round=self.round))

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """Act on an answer (DL-22, DL-23); a greater term comes first, even when a quorum follows (DL-24)."""
        if self.role is not Role.LEADER or response.incarnation != self.me.number or response.sender not in self.peers:
            return
        if response.result is HeartbeatResult.EXPIRED_TERM and response.term > self.term:
            self._become_candidate(response.term)
            self.increase_next = True
            self.vote_ms = self._next_vote_ms()
            return
        self.ends = {**self.ends, response.sender: (self.now_ms, response.end)}
        if response.round != self.round:
            return
        self.beats = {**self.beats, response.sender: response}
        closed = len(self.beats) == len(self.peers) - 1
        outcome = heartbeat_outcome(self.beats.values(), self.quorum, closed=closed)
        if outcome is HeartbeatOutcome.KEPT:
            self.kept_ms = self.beat_ms
        elif outcome is HeartbeatOutcome.NOT_READY:
            self.next_beat_ms = min(self.next_beat_ms, self.now_ms + self.timing.tick_ms)
        elif outcome is HeartbeatOutcome.INCONSISTENT:
            self._become_candidate(self.term)


_HANDLERS: dict[type, str] = {
    Persisted: "_on_persisted",
    Applied: "_on_applied",
    Transfer: "_on_transfer",
    VoteRequest: "_on_vote_request",
    VoteResponse: "_on_vote_response",
    Heartbeat: "_on_heartbeat",
    HeartbeatResponse: "_on_heartbeat_response",
    TakeLeadership: "_on_take_leadership",
    TakeLeadershipResponse: "_on_take_leadership_response",
}
