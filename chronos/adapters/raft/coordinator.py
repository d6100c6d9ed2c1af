"""Membership and the controller over voters in the nodes themselves (`ports.Coordinator`): no other
system is needed.

The nodes of `peers` vote. They elect a leader, which keeps the members in memory and has the roles
written by a quorum of the voters. Every node, a voter or not, reports to that leader. The
controller is the member that registered first, as with ZooKeeper. A member from which a leader has
no report for the timeout has to join again; a time without a leader does not count.

One thread runs the reports and, on a voter, its election and its server; another one writes the
voter's file."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from chronos.adapters.clock import SystemClock
from chronos.adapters.raft.voter import COMMIT_S, Voter, Voting
from chronos.adapters.raft.wire import (
    BODY_BYTES_MAX,
    REGISTER_BYTES_MAX,
    Answer,
    Ask,
    Callers,
    Inspect,
    Join,
    Leave,
    NotRegistered,
    Publish,
    Report,
    Signer,
    StateUpdate,
    Taken,
    TooLarge,
    Unanswered,
    encode,
)
from chronos.core.cluster.raft.sessions import Content, RegistrationNumber
from chronos.core.cluster.raft.values import LogEnd
from chronos.core.cluster.roles import (
    PROGRESS_EVERY_S,
    ClusterState,
    Member,
    Request,
    Roles,
    id_taken,
)
from chronos.core.cluster.timing import Timing
from chronos.errors import CoordinatorFull, CoordinatorUnavailable
from chronos.ports import ClusterInspection, ClusterSnapshot, steady_ms

log = structlog.get_logger("chronos.raft")

AGAIN_S = 0.05
"""Pause after a call without an answer."""

JOIN_S = 5.0
"""How long `join` waits for a leader."""

CLOSE_S = 3.0
"""How long `leave` waits for its leave record, and for the voter of this node."""

T = TypeVar("T")


class VoterClients(Struct, frozen=True, kw_only=True):
    """The settings of the connections to the voters."""

    peers: Mapping[str, str]
    """The URLs of the voters by name."""
    secret: str
    tls: Callable[[], ssl.SSLContext] | None = None
    """The context for a new connection; None: no TLS."""


class _Known(Struct, frozen=True, kw_only=True):
    """What this node knows of the cluster."""

    controller: str = ""
    revision: RegistrationNumber = (0, 0)
    members: Mapping[str, Member] = {}
    since_ms: Mapping[str, int] = {}
    stamp: LogEnd = LogEnd()
    content: Content = Content()


class RaftCoordinator:
    """One node's membership in a cluster. See `ports.Coordinator`. Any thread may call `look` and
    `request`, one the other verbs."""

    def __init__(
        self,
        clients: VoterClients,
        *,
        cluster: str,
        node: str,
        timing: Timing,
        voting: Voting | None = None,
        join_s: float = JOIN_S,
    ) -> None:
        """`voting`: of a node that is a voter. Only `join` connects."""
        self._peers = dict(clients.peers)
        self._signer = Signer(clients.secret, cluster, clients.peers)
        self._tls = clients.tls
        self._cluster = cluster
        self._node = node
        self._timing = timing
        self._heartbeat_s = timing.heartbeat_ms / 1_000
        self._timeout_s = timing.timeout_ms / 1_000
        self._voting = voting
        self._join_s = join_s
        self._clock = SystemClock()
        self._woken = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._callers: Callers | None = None
        self._voter: Voter | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        # Of the current incarnation.
        self._incarnation = ""
        self._registration_number: RegistrationNumber = (0, 0)
        self._member: Member | None = None
        self._known = _Known()
        self._heard_s = float("-inf")
        """When the last report was sent that a leader with a quorum answered."""
        self._confirmed_last = False
        self._published_s = float("-inf")
        self._epoch = 0

    # --- the port

    def join(self, member: Member) -> None:
        """Register this node as a new incarnation. Raises NodeIdTaken, CoordinatorUnavailable,
        Stop, ConfigurationError."""
        self._start()
        self._run(self._end_incarnation(), CLOSE_S)
        self._known, self._heard_s = _Known(), float("-inf")
        self._run(self._join(member), None)

    def report(self, member: Member) -> None:
        self._joined()
        self._member = member
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._report_now)
        if not self._is_fresh:
            raise CoordinatorUnavailable(self._unanswered())

    def look(self) -> ClusterSnapshot:
        known = self._known
        if not self._incarnation:
            return ClusterSnapshot(roles=None, members={}, confirmed=False)
        return ClusterSnapshot(
            roles=known.content.roles, members=known.members, confirmed=self._is_fresh
        )

    def request(self, request: Request) -> None:
        self._joined()
        if not self._is_fresh:
            raise CoordinatorUnavailable(self._unanswered())
        call = Ask(id=uuid.uuid4().hex, request=request)
        answer = self._change(call, self._ask_until)
        if not isinstance(answer, StateUpdate):
            raise CoordinatorUnavailable(self._unanswered())

    def control(self, plan: Callable[[ClusterState], Roles]) -> bool:
        """If this node is certain to be the controller, plan and publish the changes; return
        whether it is.

        Raises CoordinatorFull if the voters cannot store the roles.
        """
        known, incarnation = self._known, self._incarnation
        if not incarnation or not self._is_fresh or known.controller != self._node:
            return False
        content = known.content
        roles = plan(self._state_of(known))
        answered = tuple(request_id for request_id, _ in content.requests)
        if not answered and not self._must_publish(content.roles, roles):
            return True
        call = Publish(
            incarnation=incarnation, version=content.version, roles=roles, answered=answered
        )
        answer = self._change(call, self._call)
        if isinstance(answer, StateUpdate):
            self._published_s = time.monotonic()
        return isinstance(answer, StateUpdate)

    def wait(self, timeout_s: float) -> bool:
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        return woken

    def leave(self) -> None:
        """End the session and the voter of this node."""
        if self._loop is None:
            return
        with suppress(CoordinatorUnavailable):
            self._run(self._end_incarnation(), CLOSE_S)
        with suppress(CoordinatorUnavailable):
            self._run(self._close(), CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(CLOSE_S)
        self._loop = self._thread = None

    def inspect(self) -> ClusterInspection:
        """Return the cluster as its leader tells it, without joining. Raises
        CoordinatorUnavailable."""
        self._start(votes=False)
        try:
            answer = self._run(self._ask_until(Inspect(), JOIN_S), None)
        finally:
            self.leave()
        if not isinstance(answer, StateUpdate):
            raise CoordinatorUnavailable(self._unanswered())
        return ClusterInspection(
            checked=f"{', '.join(self._peers.values())}: {answer.leader} leads the voters",
            members=answer.members or {},
            roles=None if answer.content is None else answer.content.roles,
        )

    # --- inside; any thread

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._heard_s <= self._timeout_s * 3 / 4

    def _joined(self) -> None:
        if not self._incarnation:
            raise CoordinatorUnavailable(
                "the session with the voters is over; this node has to join again"
            )

    def _unanswered(self) -> str:
        why = "" if self._callers is None else self._callers.problem
        text = f"no leader of the voters {', '.join(self._peers)} answers"
        return f"{text}: {why}" if why else text

    def _must_publish(self, before: Roles | None, roles: Roles) -> bool:
        if roles == before:
            return False
        is_due = time.monotonic() - self._published_s >= PROGRESS_EVERY_S
        return is_due or before is None or roles.decisions != before.decisions

    def _state_of(self, known: _Known) -> ClusterState:
        roles = known.content.roles or Roles()
        if (roles.controller, roles.controller_epoch) != (self._node, self._epoch):
            self._epoch = roles.controller_epoch + 1
        return ClusterState(
            now_ms=steady_ms(self._clock),
            controller=self._node,
            controller_epoch=self._epoch,
            members=known.members,
            since_ms=known.since_ms,
            roles=roles,
            requests=tuple(request for _, request in known.content.requests),
        )

    def _start(self, *, votes: bool = True) -> None:
        """Start the thread, and the voter of this node."""
        if self._loop is not None:
            return
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name="raft", daemon=True)
        self._thread.start()
        try:
            self._run(self._open(votes), None)
        except BaseException:
            self.leave()
            raise

    def _change(
        self, call: Ask | Publish, ask: Callable[[Any, float], Coroutine[Any, Any, Answer | None]]
    ) -> Answer | None:
        """Ask the leader for a change of the register. Raises CoordinatorFull if the voters cannot
        store it."""
        size = len(encode(call))
        too_large = TooLarge(bytes=size, bytes_max=REGISTER_BYTES_MAX)
        answer = too_large if size > BODY_BYTES_MAX else self._run(ask(call, COMMIT_S), None)
        if isinstance(answer, TooLarge):
            raise CoordinatorFull(
                f"the roles and the requests without an answer would take {answer.bytes} bytes, "
                f"more than the {answer.bytes_max} that the voters store: forget nodes that will "
                "not come back (`chronos forget NODE`), or use fewer shards"
            )
        return answer

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise CoordinatorUnavailable(self._unanswered()) from None

    # --- inside; the thread

    async def _open(self, votes: bool) -> None:
        self._callers = Callers(self._peers, self._signer, self._tls)
        self._changed = asyncio.Event()
        voting = self._voting
        if votes and voting is None:
            log.info("not a voter", node=self._node, voters=", ".join(self._peers))
        if votes and voting is not None:
            voter = Voter(
                self._node,
                self._peers,
                voting,
                signer=self._signer,
                timing=self._timing,
                client_tls=self._tls,
            )
            await voter.start()
            self._voter = voter

    async def _close(self) -> None:
        if self._voter is not None:
            await self._voter.stop()
            self._voter = None
        if self._callers is not None:
            await self._callers.close()
            self._callers = None

    async def _call(self, call: Any, timeout_s: float) -> Answer | None:
        """Return the answer of the leader, and note what it tells; None without one."""
        assert self._callers is not None
        asked_s, incarnation = time.monotonic(), self._incarnation
        try:
            answer = await self._callers.ask(call, timeout_s)
        except Unanswered:
            return None
        if (
            incarnation and incarnation == self._incarnation
        ):  # An answer to an earlier incarnation says nothing about this one.
            if isinstance(answer, StateUpdate):
                self._note(answer, asked_s)
            elif isinstance(answer, NotRegistered):
                self._lose()
        return answer

    async def _ask_until(self, call: Any, timeout_s: float) -> Answer | None:
        """Ask until the leader has answered."""
        deadline_s = time.monotonic() + timeout_s
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            answer = await self._call(call, min(remaining_s, self._timeout_s))
            if answer is not None:
                return answer
            await asyncio.sleep(AGAIN_S)
        return None

    async def _join(self, member: Member) -> None:
        """Register a new incarnation, and wait until the members are known."""
        incarnation = uuid.uuid4().hex
        assert self._callers is not None
        taken_s = None
        deadline_s = time.monotonic() + self._join_s
        while True:
            now_s = time.monotonic()
            try:
                answer = await self._callers.ask(
                    Join(incarnation=incarnation, member=member), self._timeout_s / 2
                )
            except Unanswered:
                answer = None
            if isinstance(answer, StateUpdate):
                self._incarnation, self._registration_number, self._member = (
                    incarnation,
                    answer.registration_number,
                    member,
                )
                self._note(answer, now_s)
                if answer.settled:
                    break
            elif isinstance(answer, NotRegistered):
                self._incarnation, incarnation = "", uuid.uuid4().hex
            elif isinstance(answer, Taken):
                self._incarnation = ""
                deadline_s = now_s + self._join_s
                taken_s = taken_s or now_s
                if now_s - taken_s > 2 * self._timeout_s:
                    raise id_taken(self._node, self._cluster, answer.holder)
            if now_s > deadline_s:
                self._incarnation = ""
                raise CoordinatorUnavailable(self._unanswered())
            await asyncio.sleep(AGAIN_S)
        self._reporting = asyncio.create_task(self._report_always())

    async def _report_always(self) -> None:
        try:
            await self._report_while_member()
        except Exception as error:
            log.exception("reports ended", why=str(error))
            self._lose()  # The node joins again.

    async def _report_while_member(self) -> None:
        assert self._changed is not None
        while self._incarnation and self._member is not None:
            known = self._known
            call = Report(
                incarnation=self._incarnation,
                registration_number=self._registration_number,
                member=self._member,
                revision=known.revision,
                stamp=known.stamp,
            )
            answer = await self._call(call, self._timeout_s / 2)
            self._tell_confirmed()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if answer is None else self._heartbeat_s):
                    await self._changed.wait()
                self._changed.clear()

    def _report_now(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _end_incarnation(self) -> None:
        """End the reports, and leave if there is a session."""
        reporting, self._reporting = self._reporting, None
        if reporting is not None:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting
        incarnation, self._incarnation = self._incarnation, ""
        if incarnation and self._is_fresh and self._callers is not None:
            with suppress(Unanswered):
                await self._callers.ask(Leave(incarnation=incarnation), self._timeout_s)

    def _lose(self) -> None:
        if self._incarnation:
            log.warning("session with the voters lost", node=self._node)
        self._incarnation, self._known, self._heard_s = "", _Known(), float("-inf")
        self._woken.set()

    def _note(self, update: StateUpdate, asked_s: float) -> None:
        """Note what the leader tells; while it does not know all members, nothing is confirmed.

        An answer that a later one has overtaken says nothing. If only such answers come, the voters
        have begun anew without their files."""
        known = before = self._known
        if update.stamp < known.stamp or update.revision < known.revision:
            if asked_s - self._heard_s > self._timeout_s:
                self._lose()
            return
        if update.content is not None or update.stamp == known.stamp:
            known = replace(known, stamp=update.stamp, content=update.content or known.content)
        if update.settled:
            self._heard_s = max(self._heard_s, asked_s)
            known = replace(known, controller=update.controller)
            if update.members is not None:
                known = replace(
                    known,
                    revision=update.revision,
                    members=update.members,
                    since_ms=update.since_ms,
                )
        if known != before:
            self._known = known
            self._woken.set()
        self._tell_confirmed()

    def _tell_confirmed(self) -> None:
        if self._confirmed_last != self._is_fresh:
            self._confirmed_last = not self._confirmed_last
            self._woken.set()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
