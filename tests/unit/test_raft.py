"""`chronos/core/cluster/raft`, rule by rule: each test names the rules of DLedger's election that
it shows."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from chronos.core.cluster.raft.elector import Elector
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
from tests.harness.table import table

A, B, C, D = (Incarnation(name, 1) for name in "abcd")
TIMING = ElectionTiming()


def node(*, peers: str = "abc", end: LogEnd | None = None) -> Elector:
    """Node `a`, which starts at 0 ms; nothing has happened yet."""
    return Elector(node="a", peers=tuple(peers), end=end or LogEnd())


def give(elector: Elector, event: Event, now_ms: int | None = None) -> list[Effect]:
    """Give an event; every write is durable at once. Writes are left out of the effects."""
    found: list[Effect] = []
    effects = elector.step(event, elector.now_ms if now_ms is None else now_ms)
    for _ in range(10):
        found += [effect for effect in effects if not isinstance(effect, Persist)]
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        if not writes:
            break
        effects = elector.step(Persisted(writes[-1].saved), elector.now_ms)
    return found


def candidate(term: int = 5, vote: Incarnation | None = None, **arguments: Any) -> Elector:
    """Node `a` has just voted in `term` and has got no answer yet."""
    elector = node(**arguments)
    give(elector, Start(saved=Saved(term=term, vote=vote)), 0)
    return elector


def leader(term: int = 5, **arguments: Any) -> Elector:
    """Node `a` leads in `term` since 0 ms; its first heartbeat has no answer yet."""
    elector = candidate(term, **arguments)
    answer(elector, VoteResult.ACCEPT)
    for peer in elector.peers[2:]:
        answer(elector, VoteResult.ACCEPT, sender=peer)
    assert elector.role is Role.LEADER
    return elector


def follower(term: int = 5, **arguments: Any) -> Elector:
    """Node `a` follows `b` in `term` since 0 ms and has voted for it."""
    elector = candidate(term, B, **arguments)
    give(elector, beat(term))
    assert elector.role is Role.FOLLOWER
    return elector


def ask(term: int, *, sender: Incarnation = B, end: LogEnd | None = None) -> VoteRequest:
    """A vote request to node `a`."""
    return VoteRequest(sender=sender, to="a", term=term, end=end or LogEnd(), round=1)


def answer(
    elector: Elector, result: VoteResult, *, sender: str = "b", term: int | None = None
) -> list[Effect]:
    """Give an answer to the open vote of node `a`."""
    response = VoteResponse(
        sender=sender,
        to="a",
        incarnation=elector.me.number,
        round=elector.round,
        term=elector.term if term is None else term,
        result=result,
    )
    return give(elector, response)


def beat(term: int, *, sender: Incarnation = B, end: LogEnd | None = None) -> Heartbeat:
    """A heartbeat to node `a`."""
    return Heartbeat(sender=sender, to="a", term=term, end=end or LogEnd(), round=1)


def beaten(
    elector: Elector,
    result: HeartbeatResult,
    *,
    sender: str = "b",
    term: int = 5,
    end: LogEnd | None = None,
) -> list[Effect]:
    """Give an answer to the last heartbeat of node `a`."""
    response = HeartbeatResponse(
        sender=sender,
        to="a",
        incarnation=elector.me.number,
        round=elector.round,
        term=term,
        end=end or LogEnd(),
        result=result,
    )
    return give(elector, response)


def only(effects: list[Effect], kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


# -------------------------------------------------------------------------------------------- voter


@table(
    ("state", "request_", "result"),
    [
        (lambda: candidate(5), ask(5, sender=D), VoteResult.UNKNOWN_LEADER),
        (lambda: candidate(5), ask(5, sender=A), VoteResult.UNEXPECTED_LEADER),
        (
            lambda: candidate(5, end=LogEnd(3, 9)),
            ask(9, end=LogEnd(2, 99)),
            VoteResult.EXPIRED_LEDGER_TERM,
        ),
        (
            lambda: candidate(5, end=LogEnd(3, 9)),
            ask(9, end=LogEnd(3, 8)),
            VoteResult.SMALL_LEDGER_END_INDEX,
        ),
        (lambda: candidate(5), ask(4), VoteResult.EXPIRED_VOTE_TERM),
        (lambda: follower(5), ask(5, sender=C), VoteResult.ALREADY_HAS_LEADER),
        (lambda: leader(5), ask(5, sender=C), VoteResult.ALREADY_HAS_LEADER),
        (lambda: candidate(5), ask(5), VoteResult.ALREADY_VOTED),
        (lambda: candidate(5, B), ask(5), VoteResult.ACCEPT),
        (lambda: follower(5), ask(6), VoteResult.TERM_NOT_READY),
        (
            lambda: candidate(5, end=LogEnd(7, 1)),
            ask(5, end=LogEnd(7, 1)),
            VoteResult.TERM_SMALL_THAN_LEDGER,
        ),
        (lambda: taking(5), ask(6, sender=C), VoteResult.TAKING_LEADERSHIP),
        (lambda: taking(5), ask(6, sender=C, end=LogEnd(0, 1)), VoteResult.ACCEPT),
    ],
)
def test_a_vote_request_is_judged_in_the_order_of_the_rules(state, request_, result) -> None:
    """DL-16: every check, with those before it passed and those after it failing where they can."""
    elector = state()
    (response,) = only(give(elector, request_), VoteResponse)
    assert response.result is result
    assert (response.to, response.incarnation, response.round) == (request_.sender.node, 1, 1)


def test_a_candidate_that_is_behind_cannot_increase_the_term_of_the_others() -> None:
    """DL-16.3, DL-16.4 before DL-16.9."""
    elector = follower(5, end=LogEnd(3, 9))
    give(elector, ask(99, sender=C, end=LogEnd(3, 8)))
    assert (elector.role, elector.term) == (Role.FOLLOWER, 5)


def test_a_greater_term_is_adopted_at_once_without_a_vote() -> None:
    """DL-16.9, DL-13: the answer is that the term is not ready; the next request in that term is
    accepted."""
    elector = leader(5)
    effects = give(elector, ask(8))
    assert BecameCandidate(5) in effects
    assert only(effects, VoteResponse)[0].result is VoteResult.TERM_NOT_READY
    assert (elector.term, elector.vote, only(effects, VoteRequest)) == (8, None, [])
    assert TIMING.vote_min_ms <= elector.vote_ms < TIMING.vote_max_ms
    assert only(give(elector, ask(8)), VoteResponse)[0].result is VoteResult.ACCEPT


# ---------------------------------------------------------------------------------------- candidate


def test_the_first_vote_is_at_once_and_in_the_saved_term() -> None:
    """DL-10, DL-12, DL-15: a node begins as a candidate, and asks every other node."""
    elector = node(end=LogEnd(2, 3))
    assert (elector.role, elector.term, elector.known_term, elector.end) == (
        Role.CANDIDATE,
        0,
        -1,
        LogEnd(2, 3),
    )
    requests = only(give(elector, Start(saved=Saved(term=5, incarnation=6)), 0), VoteRequest)
    me = Incarnation("a", 7)
    assert requests == [
        VoteRequest(sender=me, to=to, term=5, end=LogEnd(2, 3), round=1) for to in "bc"
    ]
    assert elector.vote == me


def test_nothing_happens_before_the_next_vote_is_due() -> None:
    """DL-11, DL-04."""
    elector = candidate(5)
    answer(elector, VoteResult.UNKNOWN)
    answer(elector, VoteResult.UNKNOWN, sender="c")
    due_ms = elector.vote_ms
    assert elector.wake_ms == due_ms
    assert TIMING.vote_min_ms <= due_ms < TIMING.vote_max_ms
    assert give(elector, Tick(), due_ms - 1) == []
    assert len(only(give(elector, Tick(), due_ms), VoteRequest)) == 2


def test_random_intervals_depend_on_node_incarnation_term_and_counter_only() -> None:
    """DL-03, DL-04: they are repeatable, differ between nodes, and cover their range."""
    one, same, other = (candidate(5) for _ in range(3))
    other.node = "b"
    drawn = [[each._draw(700) for _ in range(200)] for each in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(0 <= each < 700 for each in drawn[0])
    assert max(drawn[0]) - min(drawn[0]) > 600


def test_a_vote_ends_early_once_it_is_decided_and_otherwise_in_time() -> None:
    """DL-06."""
    for result in (VoteResult.ACCEPT, VoteResult.TERM_NOT_READY, VoteResult.ALREADY_HAS_LEADER):
        elector = candidate(5)
        answer(elector, result)
        assert elector.votes is None, result
    elector = candidate(5)
    answer(elector, VoteResult.ALREADY_VOTED)
    assert elector.votes is not None
    until_ms = elector.votes_until_ms
    assert TIMING.heartbeat_ms <= until_ms < TIMING.heartbeat_ms + TIMING.vote_max_ms
    give(elector, Tick(), until_ms - 1)
    assert elector.votes is not None
    give(elector, Tick(), until_ms)
    assert elector.votes is None


def responses(*results: VoteResult, term: int = 5) -> list[VoteResponse]:
    return [
        VoteResponse(sender=str(number), to="a", incarnation=1, round=1, term=term, result=result)
        for number, result in enumerate(results)
    ]


YES, NO, LEADS, LATER, UNREADY = (
    VoteResult.ACCEPT,
    VoteResult.ALREADY_VOTED,
    VoteResult.ALREADY_HAS_LEADER,
    VoteResult.SMALL_LEDGER_END_INDEX,
    VoteResult.TERM_NOT_READY,
)


@table(
    ("answers", "outcome"),
    [
        (
            [*responses(YES, YES, YES, LEADS), *responses(VoteResult.EXPIRED_VOTE_TERM, term=6)],
            VoteOutcome.GREATER_TERM,
        ),
        (
            [*responses(YES, YES), *responses(VoteResult.TERM_SMALL_THAN_LEDGER, term=6)],
            VoteOutcome.GREATER_TERM,
        ),
        (responses(YES, YES, YES, LEADS), VoteOutcome.HAS_LEADER),
        (responses(YES, LEADS), VoteOutcome.HAS_LEADER),
        (responses(YES, YES, VoteResult.UNKNOWN, VoteResult.UNKNOWN), VoteOutcome.NO_QUORUM),
        (responses(YES, LATER, LATER), VoteOutcome.BEHIND),
        (responses(YES, NO, VoteResult.EXPIRED_LEDGER_TERM), VoteOutcome.BEHIND),
        (responses(YES, YES, YES, LATER, UNREADY), VoteOutcome.PASSED),
        (responses(YES, YES, UNREADY, NO, LATER), VoteOutcome.NOT_READY),
        (responses(YES, YES, NO, VoteResult.TAKING_LEADERSHIP), VoteOutcome.LOST),
    ],
)
def test_the_outcome_of_a_vote_is_determined_in_the_order_of_the_rules(answers, outcome) -> None:
    """DL-07, DL-17, DL-18: of five nodes."""
    assert VoteTally().count(answers).outcome(5, quorum=3) is outcome


@pytest.mark.parametrize(
    ("results", "term", "least_ms", "most_ms"),
    [
        ([VoteResult.EXPIRED_VOTE_TERM, NO], 9, 300, 1_000),
        ([NO, LEADS], 5, 6_300, 7_000),
        ([VoteResult.UNKNOWN, VoteResult.UNKNOWN], 5, 300, 1_000),
        ([LATER, LATER], 5, 1_300, 2_000),
        ([LATER, UNREADY], 5, 10, 11),
        ([NO, NO], 6, 300, 1_000),
    ],
    ids=["DL-18.1", "DL-18.2", "DL-18.3", "DL-18.4", "DL-18.6", "DL-18.7"],
)
def test_the_outcome_decides_the_time_and_the_term_of_the_next_vote(
    results, term, least_ms, most_ms
) -> None:
    """DL-12, DL-14, DL-18: only a lost vote and a greater known term increase the term."""
    elector = candidate(5)
    for sender, result in zip("bc", results, strict=True):
        answer(elector, result, sender=sender, term=9)
    assert elector.role is Role.CANDIDATE
    assert elector.wake_ms is not None
    assert least_ms <= elector.wake_ms < most_ms
    requests = only(give(elector, Tick(), elector.wake_ms), VoteRequest)
    assert [request.term for request in requests] == [term, term]


def test_an_isolated_node_does_not_increase_its_term() -> None:
    """DL-18.3."""
    elector = follower(5)
    for _ in range(200):
        assert elector.wake_ms is not None
        give(elector, Tick(), elector.wake_ms)
    assert (elector.role, elector.term) == (Role.CANDIDATE, 5)


def test_an_answer_counts_once_and_only_for_the_open_vote() -> None:
    """DL-19: answers to an earlier vote, to an earlier incarnation, to another node, and of
    strangers count nothing."""
    elector = candidate(5, peers="abcde")
    for change in ({"round": 0}, {"incarnation": 0}, {"to": "e"}, {"sender": "x"}):
        for sender in "bcd":
            response = VoteResponse(
                sender=sender, to="a", incarnation=1, round=1, term=5, result=VoteResult.ACCEPT
            )
            give(elector, msgspec.structs.replace(response, **change))
    for _ in range(3):
        answer(elector, VoteResult.ACCEPT)
    assert elector.role is Role.CANDIDATE
    effects = answer(elector, VoteResult.ACCEPT, sender="c")
    assert effects[0] == BecameLeader(5)
    assert [message.to for message in only(effects, Heartbeat)] == list("bcde")


# -------------------------------------------------------------------------- follower and heartbeats


@pytest.mark.parametrize(
    ("state", "heartbeat", "result"),
    [
        (lambda: follower(5), beat(5, sender=D), HeartbeatResult.UNKNOWN_MEMBER),
        (lambda: follower(5), beat(5, sender=A), HeartbeatResult.UNEXPECTED_MEMBER),
        (lambda: follower(5), beat(4), HeartbeatResult.EXPIRED_TERM),
        (lambda: candidate(5), beat(5), HeartbeatResult.SUCCESS),
        (lambda: follower(5), beat(5), HeartbeatResult.SUCCESS),
        (lambda: follower(5), beat(5, sender=C), HeartbeatResult.INCONSISTENT_LEADER),
        (lambda: leader(5), beat(5, sender=C), HeartbeatResult.INCONSISTENT_LEADER),
        (lambda: follower(5), beat(6, sender=C), HeartbeatResult.TERM_NOT_READY),
    ],
)
def test_a_heartbeat_is_judged_in_the_order_of_the_rules(state, heartbeat, result) -> None:
    """DL-21."""
    (response,) = only(give(state(), heartbeat), HeartbeatResponse)
    assert response.result is result


def test_a_follower_of_an_earlier_term_joins_the_later_leader_with_its_second_heartbeat() -> None:
    """DL-21, DL-13, DL-26: the role changes first, then the term, then the leader."""
    elector = follower(5)
    assert BecameCandidate(5) in give(elector, beat(7, sender=C))
    assert (elector.role, elector.term, elector.leader) == (Role.CANDIDATE, 7, None)
    assert BecameFollower(7, C) in give(elector, beat(7, sender=C))


def test_a_follower_becomes_a_candidate_after_three_intervals_without_a_heartbeat() -> None:
    """DL-02, DL-25, DL-26, DL-27: in its own term, and it votes at once."""
    elector = follower(5)
    give(elector, beat(5), 1_000)
    assert elector.wake_ms == 7_001
    assert give(elector, Tick(), 7_000) == []
    effects = give(elector, Tick(), 7_001)
    assert effects[0] == BecameCandidate(5)
    assert [request.term for request in only(effects, VoteRequest)] == [5, 5]


def test_a_leader_sends_heartbeats_at_once_and_every_interval() -> None:
    """DL-19, DL-20."""
    elector = leader(5)
    beaten(elector, HeartbeatResult.SUCCESS)
    assert elector.wake_ms == 2_000
    assert give(elector, Tick(), 1_999) == []
    assert [message.to for message in only(give(elector, Tick(), 2_000), Heartbeat)] == ["b", "c"]


@pytest.mark.parametrize(
    ("results", "closed", "outcome"),
    [
        (
            [HeartbeatResult.SUCCESS, HeartbeatResult.INCONSISTENT_LEADER, HeartbeatResult.SUCCESS],
            True,
            HeartbeatOutcome.KEPT,
        ),
        (
            [HeartbeatResult.SUCCESS, HeartbeatResult.TERM_NOT_READY],
            False,
            HeartbeatOutcome.NOT_READY,
        ),
        (
            [HeartbeatResult.INCONSISTENT_LEADER, HeartbeatResult.SUCCESS],
            False,
            HeartbeatOutcome.OPEN,
        ),
        (
            [HeartbeatResult.INCONSISTENT_LEADER, *[HeartbeatResult.UNKNOWN_MEMBER] * 3],
            True,
            HeartbeatOutcome.INCONSISTENT,
        ),
        ([HeartbeatResult.SUCCESS], False, HeartbeatOutcome.OPEN),
    ],
)
def test_the_outcome_of_a_heartbeat_is_determined_in_the_order_of_the_rules(
    results, closed, outcome
) -> None:
    """DL-22, DL-23: of five nodes, the leader counts itself."""
    answers = [
        HeartbeatResponse(
            sender=str(number), to="a", incarnation=1, round=1, term=5, end=LogEnd(), result=result
        )
        for number, result in enumerate(results)
    ]
    assert heartbeat_outcome(answers, 3, closed=closed) is outcome


def test_a_leader_without_a_quorum_of_answers_steps_down_in_its_term() -> None:
    """DL-23: three intervals after it sent the last heartbeat that a quorum answered."""
    elector = leader(5)
    give(elector, Tick(), 2_000)
    beaten(elector, HeartbeatResult.SUCCESS)
    for now_ms in (4_000, 6_000, 8_000):
        assert BecameCandidate(5) not in give(elector, Tick(), now_ms)
    assert elector.wake_ms == 8_001
    assert give(elector, Tick(), 8_001)[0] == BecameCandidate(5)


def test_a_leader_steps_down_when_all_have_answered_and_one_follows_another_leader() -> None:
    """DL-23."""
    elector = leader(5)
    assert beaten(elector, HeartbeatResult.INCONSISTENT_LEADER) == []
    assert BecameCandidate(5) in beaten(elector, HeartbeatResult.INCONSISTENT_LEADER, sender="c")


def test_a_heartbeat_is_repeated_at_once_for_nodes_that_were_not_ready() -> None:
    """DL-23, DL-01."""
    elector = leader(5)
    beaten(elector, HeartbeatResult.TERM_NOT_READY)
    assert elector.wake_ms == 10
    assert len(only(give(elector, Tick(), 10), Heartbeat)) == 2


def test_a_greater_term_ends_a_leadership_that_a_quorum_follows() -> None:
    """DL-24: also in a late answer. The next vote, after a random interval, is in that term
    (DL-14)."""
    elector = leader(5)
    first = elector.round
    beaten(elector, HeartbeatResult.SUCCESS)
    give(elector, Tick(), 2_000)
    beaten(elector, HeartbeatResult.SUCCESS)
    elector.round = first
    effects = beaten(elector, HeartbeatResult.EXPIRED_TERM, sender="c", term=8)
    assert effects == [BecameCandidate(5)]
    assert elector.wake_ms is not None
    assert 2_300 <= elector.wake_ms < 3_000
    assert {
        request.term for request in only(give(elector, Tick(), elector.wake_ms), VoteRequest)
    } == {8}


# ----------------------------------------------------------------------------- writes, incarnations


def test_no_message_leaves_before_term_vote_and_incarnation_are_durable() -> None:
    """DL-28: neither at the start, nor an answer; a write that fails releases nothing."""
    elector = node()
    (write,) = only(elector.step(Start(saved=Saved(term=5, vote=B, incarnation=1)), 0), Persist)
    assert write == Persist(Saved(term=5, vote=B, incarnation=2))
    assert elector.wake_ms is None
    assert elector.step(Tick(), 60_000) == []
    assert len(elector.step(Persisted(write.saved), 60_000)) == 2

    effects = elector.step(ask(6), 60_001)
    assert len(effects) == 2
    (early,), (write,) = only(effects, VoteResponse), only(effects, Persist)
    assert (early.result, early.term) == (VoteResult.TERM_NOT_READY, 5)
    assert write == Persist(Saved(term=6, vote=None, incarnation=2))
    effects = elector.step(ask(6), 60_002)
    assert len(effects) == 1
    (second,) = only(effects, Persist)
    assert second == Persist(Saved(term=6, vote=B, incarnation=2))
    assert elector.step(Persisted(write.saved), 60_003) == []
    (response,) = elector.step(Persisted(second.saved), 60_004)
    assert isinstance(response, VoteResponse)
    assert response.result is VoteResult.ACCEPT


def test_a_single_node_leads_once_its_vote_is_durable() -> None:
    """DL-28, DL-07: one node is a quorum, and its term remains the same after a restart of a node
    that did not vote."""
    elector = node(peers="a")
    (write,) = only(elector.step(Start(saved=None), 0), Persist)
    (vote,) = only(elector.step(Persisted(write.saved), 0), Persist)
    assert elector.role.value == "candidate"
    assert elector.step(Persisted(vote.saved), 1) == [BecameLeader(0)]
    for now_ms in range(2_001, 60_000, 2_000):
        assert elector.step(Tick(), now_ms) == []
    assert elector.role is Role.LEADER


def test_messages_that_wait_for_a_write_are_bounded() -> None:
    """DL-28: of each kind the last one for each node is kept."""
    elector = node()
    elector.step(Start(saved=Saved(term=5)), 0)
    for now_ms in range(100):
        elector.step(beat(5), now_ms)
    assert len(elector.held) == 1


def test_a_restarted_leader_gets_no_vote_in_the_term_of_its_earlier_incarnation() -> None:
    """DL-29: it leads again in a later term, which alone tells the two incarnations apart."""
    first = leader(5, peers="a")
    elector = node(peers="a")
    effects = give(elector, Start(saved=first.saved), 0)
    assert effects == []
    assert elector.me == Incarnation("a", 2)
    assert elector.wake_ms is not None
    assert give(elector, Tick(), elector.wake_ms) == [BecameLeader(6)]


def test_a_later_incarnation_of_the_leader_ends_the_following_at_once() -> None:
    """DL-29: a follower need not wait three intervals for a leader that has restarted."""
    elector = follower(5)
    effects = give(elector, ask(5, sender=Incarnation("b", 2)))
    assert effects[0] == BecameCandidate(5)
    assert only(effects, VoteResponse)[0].result is VoteResult.ALREADY_VOTED


# ---------------------------------------------------------------------------------------- transfers


def taking(term: int, **arguments: Any) -> Elector:
    """Node `a` has begun to take the leadership over, in the next term, and has not voted yet."""
    elector = follower(term, **arguments)
    give(elector, TakeLeadership(sender=B, to="a", term=term, end=elector.end))
    assert (elector.role, elector.term, elector.vote) == (Role.CANDIDATE, term + 1, None)
    return elector


@pytest.mark.parametrize(
    ("state", "transfer", "result"),
    [
        (lambda: leader(5), Transfer(transferee="x", term=5), TransferResult.UNKNOWN_MEMBER),
        (lambda: leader(5), Transfer(transferee="b", term=4), TransferResult.INCONSISTENT_TERM),
        (lambda: follower(5), Transfer(transferee="b", term=5), TransferResult.NOT_LEADER),
        (
            lambda: transferring(5),
            Transfer(transferee="c", term=5),
            TransferResult.LEADER_TRANSFERRING,
        ),
        (
            lambda: leader(5, end=LogEnd(4, 1_000)),
            Transfer(transferee="b", term=5),
            TransferResult.FALL_BEHIND_TOO_MUCH,
        ),
    ],
)
def test_a_transfer_is_refused_in_the_order_of_the_rules(state, transfer, result) -> None:
    """DL-31, DL-09: a node of unknown log end is too far behind."""
    assert give(state(), transfer) == [TransferEnded(transfer.transferee, result)]


def test_a_log_end_of_a_later_epoch_is_not_behind() -> None:
    """DL-09."""
    elector = leader(5, end=LogEnd(4, 2_000))
    beaten(elector, HeartbeatResult.SUCCESS, end=LogEnd(5, 1))
    assert len(only(give(elector, Transfer(transferee="b", term=5)), TakeLeadership)) == 1


def transferring(term: int) -> Elector:
    elector = leader(term, end=LogEnd(4, 1_000))
    beaten(elector, HeartbeatResult.SUCCESS, end=LogEnd(4, 1))
    assert len(only(give(elector, Transfer(transferee="b", term=term)), TakeLeadership)) == 1
    return elector


def test_a_transfer_that_fails_or_is_not_answered_ends() -> None:
    """DL-31."""
    failure = TakeLeadershipResponse(
        sender="b", to="a", incarnation=1, term=5, result=TransferResult.TAKE_LEADERSHIP_FAILED
    )
    elector = transferring(5)
    assert give(elector, failure) == [TransferEnded("b", TransferResult.TAKE_LEADERSHIP_FAILED)]
    assert elector.transferee is None
    elector = transferring(5)
    give(elector, Tick(), 2_000)
    beaten(elector, HeartbeatResult.SUCCESS)
    assert TransferEnded("b", TransferResult.TIMEOUT) in give(elector, Tick(), 3_000)


def test_a_transferee_votes_soon_and_in_the_next_term() -> None:
    """DL-32, DL-05."""
    elector = taking(5)
    assert elector.wake_ms is not None
    assert 30 <= elector.wake_ms < 100
    assert {
        request.term for request in only(give(elector, Tick(), elector.wake_ms), VoteRequest)
    } == {6}
    effects = answer(elector, VoteResult.ACCEPT)
    assert effects[0] == BecameLeader(6)
    assert only(effects, TakeLeadershipResponse)[0].result is TransferResult.SUCCESS


def test_a_transferee_waits_for_the_log_end_of_the_leader() -> None:
    """DL-32: up to a second."""
    for applied_ms, role in ((1_000, Role.CANDIDATE), (1_001, Role.FOLLOWER)):
        elector = follower(5)
        assert give(elector, TakeLeadership(sender=B, to="a", term=5, end=LogEnd(4, 7))) == []
        assert elector.wake_ms == 1_001
        effects = give(elector, Applied(LogEnd(4, 7)), applied_ms)
        assert elector.role is role
        failed = [each.result for each in only(effects, TakeLeadershipResponse)]
        assert failed == ([] if role is Role.CANDIDATE else [TransferResult.TAKE_LEADERSHIP_FAILED])


def test_only_the_own_leader_can_transfer_to_a_node() -> None:
    """DL-32."""
    for sender, term, result in (
        (C, 5, TransferResult.INCONSISTENT_LEADER),
        (Incarnation("b", 2), 5, TransferResult.INCONSISTENT_LEADER),
        (B, 4, TransferResult.INCONSISTENT_TERM),
    ):
        elector = follower(5)
        (response,) = give(elector, TakeLeadership(sender=sender, to="a", term=term, end=LogEnd()))
        assert isinstance(response, TakeLeadershipResponse)
        assert response.result is result
        assert elector.role is Role.FOLLOWER


def test_a_transferee_reports_how_its_transfer_ended() -> None:
    """DL-33: it follows another leader of its term, or a later term has begun."""
    results = [
        each.result for each in only(give(taking(5), beat(6, sender=C)), TakeLeadershipResponse)
    ]
    assert results == [TransferResult.TAKE_LEADERSHIP_FAILED]
    results = [
        each.result for each in only(give(taking(5), beat(8, sender=C)), TakeLeadershipResponse)
    ]
    assert results == [TransferResult.EXPIRED_TERM]


# ------------------------------------------------------------------------------------ known defects


def test_the_epoch_of_the_log_end_comes_from_records_only() -> None:
    """DL-36, openmessaging/dledger#52: neither a term nor a leadership changes it."""
    elector = leader(5, end=LogEnd(2, 7))
    give(elector, ask(9, end=LogEnd(2, 7)))
    assert (elector.term, elector.end) == (9, LogEnd(2, 7))


def test_a_preferred_leader_that_lost_returns_to_follower() -> None:
    """DL-36, openmessaging/dledger#85 and #247: its greater term ends the old leadership, and it
    follows the next one."""
    old, lost = leader(5), taking(5)
    (heartbeat, _) = only(give(old, Tick(), 2_000), Heartbeat)
    (response,) = only(
        give(lost, msgspec.structs.replace(heartbeat, sender=B, to="a")), HeartbeatResponse
    )
    assert (response.result, response.term) == (HeartbeatResult.EXPIRED_TERM, 6)
    beaten(old, HeartbeatResult.SUCCESS, sender="c")
    beaten(old, response.result, term=response.term)
    assert old.role is Role.CANDIDATE
    assert old.wake_ms is not None
    give(old, Tick(), old.wake_ms)
    effects = answer(old, VoteResult.ACCEPT, sender="c")
    assert effects[0] == BecameLeader(6)
    give(lost, beat(6))
    assert lost.role is Role.FOLLOWER


# ------------------------------------------------------------------------------------------- values


def test_messages_survive_json() -> None:
    """They are sent between nodes."""
    effects = give(node(), Start(saved=None), 0)
    for message in [*effects, *give(follower(5), beat(5)), *give(follower(5), ask(9))]:
        if isinstance(message, Message):
            assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_a_shallow_copy_is_a_snapshot() -> None:
    """No step changes a value that an older copy holds."""
    elector = leader(5, peers="abcde")
    snapshot = copy.copy(elector)
    before = msgspec.json.encode(snapshot)
    beaten(elector, HeartbeatResult.SUCCESS)
    give(elector, Tick(), 9_000)
    answer(elector, VoteResult.ACCEPT)
    give(elector, ask(9), 9_001)
    assert msgspec.json.encode(snapshot) == before


@pytest.mark.parametrize(
    "timing",
    [{"tick_ms": 0}, {"vote_max_ms": 200}, {"heartbeats_missed_max": 0}, {"taking_max_ms": 1}],
)
def test_intervals_that_contradict_each_other_are_refused(timing) -> None:
    with pytest.raises(AssertionError):
        ElectionTiming(**timing)
