"""Every run of an election with few steps, breadth first: three nodes, and in each state every
possible next step.

A step delivers one message (in any order; a message that is never delivered is lost), lets one
node's next timer expire, finishes one node's write, or kills and restarts one node, with or without
its unfinished write. The clocks of the nodes are independent of each other. The invariants are
those of `tests/sim/elections.py`: one leader per term, one vote per node and term."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.values import (
    BecameLeader,
    Event,
    HeartbeatResponse,
    Incarnation,
    LogEnd,
    Message,
    Persist,
    Persisted,
    Role,
    Saved,
    Start,
    Tick,
    VoteResponse,
    VoteResult,
)
from tests.sim.world import CORRECTNESS, Finding

NODES = ("n1", "n2", "n3")


class State(Struct, frozen=True, kw_only=True):
    """A state of the whole system, with the history that the invariants need."""

    electors: tuple[Elector, ...]
    disks: tuple[Saved | None, ...]
    pending: tuple[Saved | None, ...] = (None, None, None)
    """The unfinished write of each node."""
    messages: frozenset[Message] = frozenset()
    """Messages that were sent and neither received nor lost."""
    crashes: int = 0
    leaders: frozenset[tuple[int, Incarnation]] = frozenset()
    votes: frozenset[tuple[str, int, str, int]] = frozenset()
    """Voter, term, candidate, incarnation."""
    path: tuple[str, ...] = ()
    """The steps that led here; not part of the identity."""


class Explored(Struct):
    """The size of an exploration."""

    states: int
    terms: int
    """The most terms with a leader in one run."""


def explore(state: State, *, depth: int, crashes: int, durable_at_once: bool) -> Explored:
    """Visit every state within `depth` steps."""
    terms = len(state.leaders)
    seen, border = {_identity(state)}, [state]
    for _ in range(depth):
        reached = []
        for state in border:
            for successor in _successors(state, crashes, durable_at_once):
                identity = _identity(successor)
                if identity not in seen:
                    seen.add(identity)
                    reached.append(successor)
                    terms = max(terms, len(successor.leaders))
        border = reached
    return Explored(len(seen), terms)


def started(*, durable_at_once: bool, ends: tuple[int, ...] = (0, 0, 0)) -> State:
    """All nodes have just started; `ends`: how far the log of each is applied."""
    logs = zip(NODES, ends, strict=True)
    electors = tuple(
        Elector(node=name, peers=NODES, end=LogEnd(0, applied)) for name, applied in logs
    )
    state = State(electors=electors, disks=(None, None, None))
    for number in range(len(NODES)):
        state = _stepped(state, number, Start(saved=None), "start", durable_at_once)
    return state


def elected(*, ends: tuple[int, ...] = (0, 0, 0)) -> State:
    """The first node leads and the others follow; no message is on its way."""
    state = started(durable_at_once=True, ends=ends)
    for _ in range(10):
        state = _calmed(state)
        if state.electors[0].role is Role.LEADER:
            break
        state = _expired(state, 0, durable_at_once=True)
    assert [elector.role for elector in state.electors] == [
        Role.LEADER,
        Role.FOLLOWER,
        Role.FOLLOWER,
    ]
    return replace(state, path=("elected",))


def without_leader() -> State:
    """The first node led and is away; the others have noticed it and failed to win a vote in its
    term."""
    state = elected()
    for number in (1, 2):
        state = _expired(state, number, durable_at_once=True)
    state = _calmed(
        replace(state, messages=frozenset(each for each in state.messages if each.to != NODES[0]))
    )
    assert [elector.role for elector in state.electors] == [
        Role.LEADER,
        Role.CANDIDATE,
        Role.CANDIDATE,
    ]
    return replace(state, path=("without a leader",))


def _calmed(state: State) -> State:
    """All messages are delivered, and those that follow from them."""
    for _ in range(100):
        if not state.messages:
            break
        state = _delivered(state, min(state.messages, key=repr), durable_at_once=True)
    return state


def _successors(state: State, crashes: int, durable_at_once: bool) -> Iterator[State]:
    for message in state.messages:
        yield _delivered(state, message, durable_at_once)
    for number, elector in enumerate(state.electors):
        if elector.wake_ms is not None:
            yield _expired(state, number, durable_at_once)
        if state.pending[number] is not None:
            yield _written(state, number, durable_at_once)
        if state.crashes < crashes:
            yield _restarted(state, number, durable_at_once, state.disks[number])
            if state.pending[number] is not None:
                yield _restarted(state, number, durable_at_once, state.pending[number])


def _delivered(state: State, message: Message, durable_at_once: bool) -> State:
    taken = replace(state, messages=state.messages - {message})
    return _stepped(taken, NODES.index(message.to), message, f"deliver {message}", durable_at_once)


def _expired(state: State, number: int, durable_at_once: bool) -> State:
    """Time passes for one node, until its next timer expires."""
    elector = state.electors[number]
    assert elector.wake_ms is not None
    return _stepped(
        state, number, Tick(), f"timer of {elector.node}", durable_at_once, elector.wake_ms
    )


def _stepped(
    state: State, number: int, event: Event, text: str, durable_at_once: bool, now_ms: int = 0
) -> State:
    """One node takes an event; its effects are carried out and checked."""
    elector = copy.copy(state.electors[number])
    path = (*state.path, text)
    pending, messages, leaders, votes = (
        state.pending[number],
        state.messages,
        state.leaders,
        state.votes,
    )
    for effect in elector.step(event, max(now_ms, elector.now_ms)):
        if isinstance(effect, Persist):
            pending = effect.saved
        elif isinstance(effect, BecameLeader):
            leaders = leaders | {(effect.term, elector.me)}
            if len({leader for term, leader in leaders if term == effect.term}) > 1:
                raise Finding(
                    CORRECTNESS, "\n".join([*path, f"two leaders in term {effect.term}: {leaders}"])
                )
        elif isinstance(effect, Message):
            messages = messages | {effect}
            if isinstance(effect, VoteResponse) and effect.result is VoteResult.ACCEPT:
                votes = _voted(
                    votes, path, elector.node, effect.term, effect.to, effect.incarnation
                )
    if elector.vote == elector.me and not elector.unsaved:
        votes = _voted(votes, path, elector.node, elector.term, elector.node, elector.me.number)
    electors = _put(state.electors, number, elector)
    state = replace(
        state,
        electors=electors,
        pending=_put(state.pending, number, pending),
        messages=frozenset(message for message in messages if not _is_ignored(message, electors)),
        leaders=leaders,
        votes=votes,
        path=path,
    )
    return (
        _written(state, number, durable_at_once)
        if durable_at_once and pending is not None
        else state
    )


def _is_ignored(message: Message, electors: tuple[Elector, ...]) -> bool:
    """Return whether an answer comes too late for ever: it need not be delivered."""
    elector = electors[NODES.index(message.to)]
    if isinstance(message, VoteResponse):
        return elector.votes is None or (message.incarnation, message.round) != (
            elector.me.number,
            elector.round,
        )
    return isinstance(message, HeartbeatResponse) and message.incarnation != elector.me.number


def _voted(
    votes: frozenset, path: tuple[str, ...], voter: str, term: int, candidate: str, incarnation: int
) -> frozenset:
    votes = votes | {(voter, term, candidate, incarnation)}
    if sum(vote[:2] == (voter, term) for vote in votes) > 1:
        raise Finding(
            CORRECTNESS, "\n".join([*path, f"two votes of {voter} in term {term}: {votes}"])
        )
    return votes


def _written(state: State, number: int, durable_at_once: bool) -> State:
    """The unfinished write of a node is durable."""
    saved = state.pending[number]
    assert saved is not None
    state = replace(
        state, disks=_put(state.disks, number, saved), pending=_put(state.pending, number, None)
    )
    return _stepped(state, number, Persisted(saved), f"write of {NODES[number]}", durable_at_once)


def _restarted(state: State, number: int, durable_at_once: bool, disk: Saved | None) -> State:
    """A node is killed and starts with this on its disk."""
    before = state.electors[number]
    state = replace(
        state,
        electors=_put(
            state.electors, number, Elector(node=before.node, peers=NODES, end=before.end)
        ),
        disks=_put(state.disks, number, disk),
        pending=_put(state.pending, number, None),
        crashes=state.crashes + 1,
    )
    return _stepped(
        state, number, Start(saved=disk), f"restart {before.node} with {disk}", durable_at_once
    )


def _put(values: tuple, number: int, value: object) -> tuple:
    return (*values[:number], value, *values[number + 1 :])


def _identity(state: State) -> tuple:
    """Two states with the same identity have the same successors."""
    return (
        tuple(_node_identity(elector) for elector in state.electors),
        state.disks,
        state.pending,
        state.messages,
        state.crashes,
        state.leaders,
        state.votes,
    )


def _node_identity(elector: Elector) -> tuple:
    """The state of a node without absolute times: a timer expires when the exploration says so.

    Times remain where they decide about more than the next timer: of a leader how long ago a quorum
    answered, of a candidate whether the next vote is due."""
    times: tuple[object, ...] = ()
    if elector.role is Role.LEADER:
        now_ms = elector.now_ms
        times = (
            elector.next_beat_ms - now_ms,
            elector.kept_ms - now_ms,
            elector.beat_ms - now_ms,
            elector.round,
        )
    elif elector.role is Role.CANDIDATE:
        times = elector.votes is None and elector.vote_ms <= elector.now_ms, elector.round
    return (
        elector.role,
        elector.term,
        elector.vote,
        elector.me,
        elector.leader,
        elector.known_term,
        elector.increase_now,
        elector.increase_next,
        elector.unsaved,
        elector.held,
        elector.votes and frozenset(elector.votes.values()),
        frozenset(elector.beats.values()) if elector.role is Role.LEADER else None,
        times,
    )
