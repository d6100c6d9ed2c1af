"""The state machine of one node in an election, with the transfer of the leadership: events in,
effects out. Its rules are those of the election of RocketMQ's DLedger.

It has no clock, no randomness and no I/O: time is an argument, in ms of a clock that never goes
back, and intervals that vary are computed from node, incarnation, term and a counter.

Guarantees:

1. At most one incarnation leads in a term: it needs the votes of a quorum, and a node votes once in
   a term.
2. Term and vote are durable before any message that depends on them leaves: no message leaves while
   a write is unfinished, and no vote is counted.
3. A vote is given to one incarnation of a candidate, and the number of the incarnation is durable
   before its first message: two incarnations of one node never lead in the same term.
4. A vote that no quorum answers does not increase the term beyond those of the nodes that answered.
   So a node that is cut off increases its term at most once: after a lost vote, to a greater term
   that it has seen, or in a transfer.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from chronos.core.cluster.raft.values import (
    Applied,
    BecameCandidate,
    BecameFollower,
    BecameLeader,
    Effect,
    ElectionTiming,
    Event,
    Heartbeat,
    HeartbeatOutcome,
    HeartbeatResponse,
    HeartbeatResult,
    Incarnation,
    LogEnd,
    Message,
    Persist,
    Persisted,
    Role,
    Saved,
    Start,
    TakeLeadership,
    TakeLeadershipResponse,
    Tick,
    Transfer,
    TransferEnded,
    TransferResult,
    VoteOutcome,
    VoteRequest,
    VoteResponse,
    VoteResult,
    VoteTally,
    heartbeat_outcome,
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


class Elector(Struct, kw_only=True):
    """One node. `step` takes one event and returns its effects; `wake_ms` is the time of the next
    `Tick`.

    The state consists of immutable values, so that a shallow copy is a snapshot."""

    node: str
    peers: tuple[str, ...]
    """All nodes, this one included."""
    timing: ElectionTiming = ElectionTiming()

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

    def __post_init__(self) -> None:
        assert self.node in self.peers
        assert len(set(self.peers)) == len(self.peers)

    @property
    def quorum(self) -> int:
        """Number of nodes that decide."""
        return len(self.peers) // 2 + 1

    @property
    def saved(self) -> Saved:
        """The state to save."""
        return Saved(term=self.term, vote=self.vote, incarnation=self.me.number)

    # -------------------------------------------------------------------------- writes and messages

    def _save(self) -> None:
        self.changed = self.unsaved = True

    def _send(self, message: Message) -> None:
        if not self.unsaved:
            self.effects.append(message)
            return
        kept = [
            other for other in self.held if (type(other), other.to) != (type(message), message.to)
        ]
        self.held = (*kept, message)

    def _draw(self, below: int) -> int:
        """A number in [0, below) from node, incarnation, term and a counter."""
        self.draws += 1
        text = f"{self.node} {self.me.number} {self.term} {self.draws}"
        return (
            int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % below if below else 0
        )

    def _next_vote_ms(self) -> int:
        """The time of the next vote."""
        timing, taking = self.timing, self._is_taking()
        least = timing.taking_min_ms if taking else timing.vote_min_ms
        most = timing.taking_max_ms if taking else timing.vote_max_ms
        return self.now_ms + least + self._draw(most - least)

    def _is_taking(self) -> bool:
        return self.taking is not None and self.taking.began and self.taking.term == self.term

    # ---------------------------------------------------------------------------------------- roles

    def _become_candidate(self, term: int) -> None:
        """Become a candidate, without a leader. `term` is the greatest term seen; it is not adopted
        here."""
        assert term >= self.term
        self.known_term = max(self.known_term, term)
        self.leader = self.transferee = None
        if self.role is not Role.CANDIDATE:
            self.role = Role.CANDIDATE
            self.effects.append(BecameCandidate(self.term))

    def _become_follower(self, leader: Incarnation) -> None:
        """Follow the leader of the own term."""
        assert self.role is Role.CANDIDATE
        self.role, self.leader = Role.FOLLOWER, leader
        self.votes, self.increase_now, self.increase_next = None, False, False
        self.heard_ms = self.now_ms
        self.effects.append(BecameFollower(self.term, leader))

    def _become_leader(self) -> None:
        """Lead in the own term; the first heartbeat is due at once."""
        assert self.role is Role.CANDIDATE
        assert not self.unsaved
        assert self.vote is not None
        self.role, self.leader = Role.LEADER, self.me
        self.votes = None
        self.next_beat_ms = self.kept_ms = self.beat_ms = self.now_ms
        self.beats, self.ends = {}, {}
        self.effects.append(BecameLeader(self.term))

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
                self._handle(event)
        self._run_timers()
        if self.taking is not None:
            self._end_taking()
        if self.changed:
            self.effects.append(Persist(self.saved))
        return self.effects

    def _handle(self, event: Event) -> None:
        match event:
            case Persisted():
                self._on_persisted(event)
            case Applied():
                self._on_applied(event)
            case Transfer():
                self._on_transfer(event)
            case VoteRequest():
                self._on_vote_request(event)
            case VoteResponse():
                self._on_vote_response(event)
            case Heartbeat():
                self._on_heartbeat(event)
            case HeartbeatResponse():
                self._on_heartbeat_response(event)
            case TakeLeadership():
                self._on_take_leadership(event)
            case TakeLeadershipResponse():
                self._on_take_leadership_response(event)
            case _:
                raise AssertionError(f"not an event: {event!r}")

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
        elif self.unsaved:
            return None
        else:
            due = [self.vote_ms if self.votes is None else self.votes_until_ms]
        return max(min(due), self.now_ms)

    # ------------------------------------------------------------------------ start, writes, timers

    def _on_start(self, start: Start) -> None:
        """Begin as a candidate in the saved term, whose first vote is due at once."""
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
        """Note the log end: the epoch comes with the records only, never from the own term."""
        self.end = event.end

    def _run_timers(self) -> None:
        if self.role is Role.FOLLOWER:
            if self.now_ms - self.heard_ms > self.timing.election_ms:
                self._become_candidate(self.term)
            elif self.taking is not None and not self.taking.began:
                self._take_leadership(self.taking)
        if self.role is Role.CANDIDATE:
            self._campaign()
        if self.role is Role.LEADER:
            self._lead()

    # ------------------------------------------------------------------------------------ candidate

    def _campaign(self) -> None:
        """Increase the term or vote, whichever is due. Both wait for an unfinished
        write."""
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
        """Adopt the greatest known term, or the next one."""
        self.term = max(self.known_term, self.term + 1)
        self.vote, self.votes = None, None
        self.increase_now = self.increase_next = False
        self._save()

    def _request_votes(self) -> None:
        """Vote by the same checks as the others, and ask them."""
        self.round += 1
        self.votes_until_ms = (
            self.now_ms + self.timing.heartbeat_ms + self._draw(self.timing.vote_max_ms)
        )
        own = VoteRequest(
            sender=self.me, to=self.node, term=self.term, end=self.end, round=self.round
        )
        self.votes = {self.node: self._answer_vote(own, own=True)}
        for peer in self.peers:
            if peer != self.node:
                self._send(
                    VoteRequest(
                        sender=self.me, to=peer, term=self.term, end=self.end, round=self.round
                    )
                )

    def _on_vote_response(self, response: VoteResponse) -> None:
        """Count an answer to the open vote. An answer to an earlier one, or to an earlier
        incarnation, counts nothing."""
        if self.votes is None or (response.incarnation, response.round) != (
            self.me.number,
            self.round,
        ):
            return
        if response.sender in self.peers:
            # A new dictionary: an older copy of this node keeps its own.
            self.votes = {**self.votes, response.sender: response}

    def _close_vote(self, answers: dict[str, VoteResponse]) -> None:
        """Act on the outcome of the open vote once it is decided or its time is over."""
        tally = VoteTally().count(answers.values())
        if self.unsaved or (
            self.now_ms < self.votes_until_ms and not tally.is_decided(self.quorum, len(self.peers))
        ):
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

    # ---------------------------------------------------------------------------------------- voter

    def _on_vote_request(self, request: VoteRequest) -> None:
        self._send(self._answer_vote(request, own=False))

    def _answer_vote(self, request: VoteRequest, *, own: bool) -> VoteResponse:
        result = self._vote_result(request, own=own)
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

    def _vote_result(self, request: VoteRequest, *, own: bool) -> VoteResult:
        """Return the answer to a vote request; the order of the checks is DLedger's.

        The log end comes before the term: a candidate that may not win cannot increase the term of
        the others."""
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
            return (
                VoteResult.ALREADY_HAS_LEADER
                if self.leader is not None
                else VoteResult.ALREADY_VOTED
            )
        if request.term > self.term:
            self._become_candidate(request.term)
            self.increase_now = True
            return VoteResult.TERM_NOT_READY
        if request.term < self.end.epoch:
            return VoteResult.TERM_SMALL_THAN_LEDGER
        if not own and self._is_taking() and self.end >= request.end:
            return VoteResult.TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    # ------------------------------------------------------------------------------------- follower

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        result = self._heartbeat_result(heartbeat)
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

    def _heartbeat_result(self, heartbeat: Heartbeat) -> HeartbeatResult:
        """Return the answer to a heartbeat; the order of the checks is DLedger's."""
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

    # --------------------------------------------------------------------------------------- leader

    def _lead(self) -> None:
        """Step down, give a transfer up, send heartbeats: whichever is due."""
        if self.now_ms - self.kept_ms > self.timing.election_ms:
            self._become_candidate(self.term)
            return
        if self.transferee is not None and self.now_ms >= self.transfer_until_ms:
            self._end_transfer(TransferResult.TIMEOUT)
        if self.now_ms >= self.next_beat_ms:
            self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        """Send a heartbeat to every other node."""
        if len(self.peers) == 1:
            self.kept_ms = self.now_ms
        self.round += 1
        self.beats = {}
        self.beat_ms = self.now_ms
        self.next_beat_ms = self.now_ms + self.timing.heartbeat_ms
        for peer in self.peers:
            if peer != self.node:
                self._send(
                    Heartbeat(
                        sender=self.me, to=peer, term=self.term, end=self.end, round=self.round
                    )
                )

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """Act on an answer; a greater term comes first, even when a quorum follows."""
        if (
            self.role is not Role.LEADER
            or response.incarnation != self.me.number
            or response.sender not in self.peers
        ):
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

    # ------------------------------------------------------------------------------------- transfer

    def _lag(self, end: LogEnd) -> int:
        """How far a log end is behind this leader's; of an earlier epoch too far."""
        if end >= self.end:
            return 0
        return (
            self.end.applied - end.applied
            if end.epoch == self.end.epoch
            else self.timing.transfer_lag_max
        )

    def _begin_transfer(self, transferee: str) -> None:
        self.transferee = transferee
        self.transfer_until_ms = (
            self.now_ms + self.timing.transfer_wait_ms + self.timing.heartbeat_ms
        )
        self._send(TakeLeadership(sender=self.me, to=transferee, term=self.term, end=self.end))

    def _end_transfer(self, result: TransferResult) -> None:
        assert self.transferee is not None
        self.effects.append(TransferEnded(self.transferee, result))
        self.transferee = None

    def _on_transfer(self, transfer: Transfer) -> None:
        """Begin a transfer that an operator asked for, or refuse it; the order of the checks is
        DLedger's."""
        _, end = self.ends.get(transfer.transferee, (0, LogEnd()))
        refusals = {
            TransferResult.UNKNOWN_MEMBER: transfer.transferee not in self.peers
            or transfer.transferee == self.node,
            TransferResult.INCONSISTENT_TERM: transfer.term != self.term,
            TransferResult.NOT_LEADER: self.role is not Role.LEADER,
            TransferResult.LEADER_TRANSFERRING: self.transferee is not None,
            TransferResult.FALL_BEHIND_TOO_MUCH: self._lag(end) >= self.timing.transfer_lag_max,
        }
        refusal = next((result for result, applies in refusals.items() if applies), None)
        if refusal is not None:
            self.effects.append(TransferEnded(transfer.transferee, refusal))
        else:
            self._begin_transfer(transfer.transferee)

    def _on_take_leadership_response(self, response: TakeLeadershipResponse) -> None:
        """Note the end of a transfer; after a failure this leader may begin another one."""
        if response.incarnation != self.me.number:
            return
        if response.result is TransferResult.SUCCESS:
            self.effects.append(TransferEnded(response.sender, response.result))
        elif self.role is Role.LEADER and (response.sender, response.term) == (
            self.transferee,
            self.term,
        ):
            self._end_transfer(response.result)

    # ----------------------------------------------------------------------------------- transferee

    def _on_take_leadership(self, request: TakeLeadership) -> None:
        """Take the leadership over from the own leader, at once or when its log end is reached."""
        if (
            self.role is not Role.FOLLOWER
            or self.leader != request.sender
            or self.taking is not None
        ):
            self._answer_take_leadership(request, TransferResult.INCONSISTENT_LEADER)
        elif request.term != self.term:
            self._answer_take_leadership(request, TransferResult.INCONSISTENT_TERM)
        else:
            self.taking = Taking(
                request=request, until_ms=self.now_ms + self.timing.transfer_wait_ms
            )

    def _take_leadership(self, taking: Taking) -> None:
        """Become a candidate of the next term once the leader's log end is reached."""
        if self.end >= taking.request.end and self.now_ms <= taking.until_ms:
            self.taking = Taking(request=taking.request, until_ms=taking.until_ms, began=True)
            self._become_candidate(taking.term)
            self.increase_now = True

    def _end_taking(self) -> None:
        """Answer the former leader once the result is known."""
        assert self.taking is not None
        result = self._taking_result(self.taking)
        if result is not None:
            request, self.taking = self.taking.request, None
            self._answer_take_leadership(request, result)

    def _taking_result(self, taking: Taking) -> TransferResult | None:
        """Return the result of a transfer to this node; None: not known yet."""
        if self.term > taking.term:
            return TransferResult.EXPIRED_TERM
        if self.role is Role.LEADER and self.term == taking.term:
            return TransferResult.SUCCESS
        if not taking.began:
            waits = self.role is Role.FOLLOWER and self.now_ms <= taking.until_ms
            return None if waits else TransferResult.TAKE_LEADERSHIP_FAILED
        return None if self.role is Role.CANDIDATE else TransferResult.TAKE_LEADERSHIP_FAILED

    def _answer_take_leadership(self, request: TakeLeadership, result: TransferResult) -> None:
        sender = request.sender
        self._send(
            TakeLeadershipResponse(
                sender=self.node,
                to=sender.node,
                incarnation=sender.number,
                term=request.term,
                result=result,
            )
        )
