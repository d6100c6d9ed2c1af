"""The simulated coordination service, as ZooKeeper behaves: sessions, one lock, one published
value; and a node's client.

A client's view is as old as its last refresh: a node that was frozen, or is cut off, keeps its last
view.

Servers that lost their data, or were restored to an older state, refuse every session from before,
for ever; a client begins another one when it was not answered for a session timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chronos.core.cluster.replication import ProgressWindows
from chronos.core.cluster.roles import (
    REBALANCE_AFTER_MS,
    REPLACE_AFTER_MS,
    ClusterState,
    ClusterView,
    Member,
    Request,
    Roles,
    same_directory,
)
from chronos.errors import CoordinatorUnavailable, NodeIdTaken
from chronos.ports import ClusterSnapshot
from tests.sim.observers import MAX_LAG_MS
from tests.sim.world import World

TAKEN_GRACE_MS = 1_000
"""How much longer than a session `join` waits for a place that another data directory holds."""

EARLIER_MAX = 20
"""Most earlier states that the servers can be restored to."""

POLL_MS = 20
"""How often `join` and `wait` look again while simulated time passes."""


class Ensemble:
    """The servers. Until `down_ms` they answer no request, and no session expires."""

    def __init__(
        self, world: World, *, shards: int, replication: int | None, session_ms: int
    ) -> None:
        self.world = world
        self.shards = shards
        self.replication = replication
        self.session_ms = session_ms
        self.rebalance_after_ms = REBALANCE_AFTER_MS
        self.replace_after_ms = REPLACE_AFTER_MS
        self.down_ms = 0
        self.published: Roles | None = None
        """The roles as last published; None before the first time."""
        self.version = 0
        """Number of times that roles were published."""
        self.controller: int | None = None
        """The session that holds the lock."""
        self.requests: list[Request] = []
        self.clients: list[SimCoordinator] = []
        self.generation = 0
        """Number of times that the data were lost, or restored to an older state."""
        self.earlier: list[Roles] = []
        """The roles that were published, the last ones of each generation."""
        self.planned: list[Callable[[ClusterView, Roles], None]] = []
        """Called with roles that were published, and the view that they were planned for."""
        self._heartbeat_ms: dict[int, int] = {}
        """Time of the last heartbeat of each session."""
        self._members: dict[int, Member] = {}
        self._sessions = 0

    @property
    def answering(self) -> bool:
        return self.world.now_ms >= self.down_ms

    @property
    def roles(self) -> Roles:
        """The roles as last published; empty before the first time."""
        return self.published or Roles()

    def pause(self, wait_ms: int) -> None:
        self.down_ms = max(self.down_ms, self.world.now_ms + wait_ms)
        for session in self._heartbeat_ms:
            self._heartbeat_ms[session] = max(self._heartbeat_ms[session], self.down_ms)

    def lose_memory(self, roles: Roles | None) -> None:
        """Lose everything (None), or everything since these roles were published."""
        self.world.trace(f"the coordination service loses its {'later ' if roles else ''}data")
        self.generation += 1
        self.version += 1
        self.published, self.controller = roles, None
        for known in (self.requests, self._heartbeat_ms, self._members):
            known.clear()
        self.spread()

    def expire(self) -> None:
        """End the sessions whose last heartbeat is too old; the lock goes to the oldest session
        left."""
        if not self.answering:
            return
        now_ms = self.world.now_ms
        for session in [
            at for at, last_ms in self._heartbeat_ms.items() if now_ms - last_ms > self.session_ms
        ]:
            self.world.trace(f"session {session} of {self._members[session].node} expires")
            self.end(session)

    def end(self, session: int) -> None:
        self._heartbeat_ms.pop(session, None)
        self._members.pop(session, None)
        if self.controller == session:
            self.controller = None
        if self.controller is None and self._members:
            self.controller = min(self._members)
        self.spread()

    def heartbeat(self, session: int) -> bool:
        """Keep the session alive; return whether it still exists."""
        self.expire()
        if session not in self._heartbeat_ms:
            return False
        self._heartbeat_ms[session] = self.world.now_ms
        return True

    def open(self, member: Member) -> int:
        self.expire()
        for session, other in list(self._members.items()):
            if other.node == member.node:
                if not same_directory(other, member):
                    raise NodeIdTaken(
                        f"node.id {member.node} is taken: the node at {other.address} has it"
                    )
                self.end(session)
        self._sessions += 1
        self._heartbeat_ms[self._sessions] = self.world.now_ms
        self._members[self._sessions] = member
        if self.controller is None:
            self.controller = self._sessions
        self.spread()
        return self._sessions

    def update(self, session: int, member: Member) -> None:
        if self._members.get(session) != member:
            self._members[session] = member
            self.spread()

    def publish(self, roles: Roles, version: int) -> bool:
        """Write the roles unless others were published since `version`."""
        if version != self.version:
            return False
        self.version += 1
        self.published = roles
        self.earlier = [*self.earlier[1 - EARLIER_MAX :], roles]
        self.world.trace(
            f"roles {self.version}: "
            + " ".join(
                f"{shard}={given.master}@{given.epoch}"
                for shard, given in sorted(roles.shards.items())
            )
        )
        self.spread()
        return True

    def members(self) -> dict[str, Member]:
        return {member.node: member for member in self._members.values()}

    def sessions(self) -> dict[str, int]:
        """The session of each member."""
        return {member.node: session for session, member in self._members.items()}

    def spread(self) -> None:
        """Notify every client after a short delay."""
        for client in self.clients:
            self.world.after(self.world.random.randrange(1, 60), client.refresh)


class SimCoordinator:
    """See `ports.Coordinator`: one process's client. `tick` is its heartbeat thread."""

    def __init__(self, ensemble: Ensemble, node: str, touch: Callable[[str], None]) -> None:
        self._ensemble = ensemble
        self._node = node
        self._touch = touch
        self._session: int | None = None
        self._generation = 0
        """Of the servers when the session began."""
        self._answered_ms = 0
        """When a server last answered the session."""
        self._member: Member | None = None
        """The last report."""
        self._kept: Roles | None = None
        """The last roles of an earlier session, until this one reads some."""
        self.joined_ms = 0
        """When this session began."""
        self._roles: Roles | None = None
        self._members: Mapping[str, Member] = {}
        self._confirmed = False
        self._since_ms: dict[str, tuple[int, int]] = {}
        """Session of each member, and when this client first saw it."""
        self._epoch = 0
        """Controller epoch of this session; 0 before it is the controller."""
        self._woken = False
        self._windows = ProgressWindows(MAX_LAG_MS)
        """Of this process, like `workers.cluster.membership` in a node."""
        self.cut_ms = 0
        """Until when no server can be reached from here."""
        self.asleep: Callable[[], bool] = lambda: False
        """True while the process is frozen: it sends and receives nothing."""
        self.now_ms: Callable[[], int] = lambda: ensemble.world.now_ms
        """The time that a controller plans with."""
        self.view: ClusterView | None = None
        """The view of the last plan, which the process completes with what it knows besides the
        coordinator."""
        ensemble.clients.append(self)

    @property
    def _reachable(self) -> bool:
        """A server answers a new session."""
        return self._ensemble.answering and self._ensemble.world.now_ms >= self.cut_ms

    @property
    def _connected(self) -> bool:
        """A server answers this session."""
        is_known = self._session is None or self._generation == self._ensemble.generation
        return self._reachable and is_known

    @property
    def joined(self) -> bool:
        return self._session is not None

    def tick(self) -> None:
        if self._session is None:
            return
        if not self._connected:
            self._woken = self._woken or self._confirmed
            self._confirmed = False
        elif not self._ensemble.heartbeat(self._session):
            self._forget()
        else:
            self._answered_ms = self._ensemble.world.now_ms
            self.refresh()

    def refresh(self) -> None:
        if self._session is None or not self._connected or self.asleep():
            return
        if self._session not in self._ensemble.sessions().values():
            self._forget()
            return
        known = (self._roles, self._members, self._confirmed)
        self._roles, self._members, self._confirmed = (
            self._ensemble.published,
            self._ensemble.members(),
            True,
        )
        if known != (self._roles, self._members, self._confirmed):
            self._woken = True
        self._windows.observe(self._members, self._roles, self._ensemble.world.now_ms)
        sessions = self._ensemble.sessions()
        for node, session in sorted(sessions.items()):
            if self._since_ms.get(node, (None, 0))[0] != session:
                self._since_ms[node] = (session, self.now_ms())
        for node in sorted(self._since_ms.keys() - sessions.keys()):
            del self._since_ms[node]

    def _forget(self) -> None:
        """The session is over."""
        if self._roles is not None and not self._roles.are_empty:
            self._kept = self._roles
        self._session, self._roles, self._members, self._confirmed = None, None, {}, False
        self._since_ms.clear()
        self._epoch = 0
        self._woken = True

    def join(self, member: Member) -> None:
        self._end()
        self._open(member)
        self.refresh()

    def _open(self, member: Member) -> None:
        deadline_ms = self._ensemble.world.now_ms + self._ensemble.session_ms + TAKEN_GRACE_MS
        while self._session is None:
            self._check_connected()
            try:
                self._session = self._ensemble.open(member)
                self._generation = self._ensemble.generation
                self.joined_ms = self._answered_ms = self._ensemble.world.now_ms
                self._member = member
            except NodeIdTaken:
                if self._ensemble.world.now_ms >= deadline_ms:
                    raise
                self._ensemble.world.pass_time(POLL_MS)
                self._touch("join")

    def _replace_refused(self) -> None:
        """Begin another session if this one was not answered for a session timeout, and a server
        answers."""
        silent_ms = self._ensemble.world.now_ms - self._answered_ms
        if (
            self._session is None
            or self._connected
            or not self._reachable
            or silent_ms < self._ensemble.session_ms
        ):
            return
        assert self._member is not None
        self._forget()
        self._open(self._member)
        self.refresh()

    def report(self, member: Member) -> None:
        self._member = member
        self._replace_refused()
        session = self._check_session()
        self._ensemble.update(session, member)

    def look(self) -> ClusterSnapshot:
        roles, kept = self._roles, self._kept
        if self._session is not None and kept and (roles is None or roles.are_empty):
            return ClusterSnapshot(roles=kept, members=self._members, confirmed=False)
        return ClusterSnapshot(roles=roles, members=self._members, confirmed=self._confirmed)

    def request(self, request: Request) -> None:
        self._check_session()
        self._ensemble.requests.append(request)

    def completed(self, state: ClusterState, **more: object) -> ClusterView:
        """The view of a state, as the process of this node has it."""
        ensemble = self._ensemble
        return ClusterView.of(
            state,
            shards=ensemble.shards,
            replication=ensemble.replication,
            rebalance_after_ms=ensemble.rebalance_after_ms,
            replace_after_ms=ensemble.replace_after_ms,
            **{"in_sync_from": self._windows.needed} | more,
        )

    def control(self, plan: Callable[[ClusterState], Roles]) -> bool:
        self._replace_refused()
        ensemble, session = self._ensemble, self._session
        if (
            session is None
            or not self._confirmed
            or not self._connected
            or ensemble.controller != session
        ):
            return False
        version, roles, requests = ensemble.version, ensemble.roles, tuple(ensemble.requests)
        self.refresh()
        if (roles.controller, roles.controller_epoch) != (self._node, self._epoch):
            self._epoch = roles.controller_epoch + 1
        state = ClusterState(
            now_ms=self.now_ms(),
            controller=self._node,
            controller_epoch=self._epoch,
            members=ensemble.members(),
            since_ms={node: since_ms for node, (_, since_ms) in self._since_ms.items()},
            roles=roles,
            requests=requests,
        )
        planned = plan(state)
        self._touch("control")
        is_news = bool(requests) or planned != ensemble.published
        if is_news and ensemble.controller == session and ensemble.publish(planned, version):
            del ensemble.requests[: len(requests)]
            for check in ensemble.planned:
                assert self.view is not None
                check(self.view, planned)
            self.refresh()
        return True

    def wait(self, timeout_s: float) -> bool:
        world = self._ensemble.world
        until_ms = world.now_ms + int(timeout_s * 1_000)
        while not self._woken and world.now_ms < until_ms:
            world.pass_time(min(POLL_MS, until_ms - world.now_ms))
        woken, self._woken = self._woken, False
        return woken

    def leave(self) -> None:
        self._end()
        self._kept = None

    def _end(self) -> None:
        if self._session is None:
            return
        # While cut off, the servers do not learn of it: then the session expires.
        if self._connected:
            self._ensemble.end(self._session)
        self._forget()

    def _check_connected(self) -> None:
        if not self._connected:
            raise CoordinatorUnavailable("no server answers")

    def _check_session(self) -> int:
        if self._session is None:
            raise CoordinatorUnavailable("the session is over; this node has to join again")
        self._check_connected()
        if not self._ensemble.heartbeat(self._session):
            self._forget()
            raise CoordinatorUnavailable("the session is over; this node has to join again")
        return self._session
