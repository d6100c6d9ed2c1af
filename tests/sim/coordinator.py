"""Sessions, one lock and one published value, as ZooKeeper keeps them; and a client of it on each node.

A client knows what it was told last: a node that was frozen, or is cut off, goes on believing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chronos.core.roles import REBALANCE_AFTER_MS, REPLACE_AFTER_MS, ClusterView, Member, Request, Roles
from chronos.errors import CoordinatorUnavailable, NodeIdTaken
from chronos.ports import ClusterSnapshot
from tests.sim.world import World


class Ensemble:
    """The servers. `down` until a moment: then nobody is heard, and no session expires."""

    def __init__(self, world: World, *, shards: int, replication: int | None, session_ms: int) -> None:
        self.world = world
        self.shards = shards
        self.replication = replication
        self.session_ms = session_ms
        self.rebalance_after_ms = REBALANCE_AFTER_MS
        self.replace_after_ms = REPLACE_AFTER_MS
        self.down_ms = 0
        self.roles = Roles()
        self.version = 0
        self.controller_epoch = 0
        self.controller: int | None = None
        """Session that holds the lock."""
        self.requests: list[Request] = []
        self.clients: list[SimCoordinator] = []
        self._heard_ms: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self._sessions = 0

    @property
    def ping(self) -> bool:
        return self.world.now_ms >= self.down_ms

    def pause(self, wait_ms: int) -> None:
        self.down_ms = max(self.down_ms, self.world.now_ms + wait_ms)
        for session in self._heard_ms:
            self._heard_ms[session] = max(self._heard_ms[session], self.down_ms)

    def expire(self) -> None:
        """End the sessions nobody heard of for too long; the lock goes to the oldest session left."""
        if not self.ping:
            return
        now_ms = self.world.now_ms
        for session in [at for at, heard_ms in self._heard_ms.items() if now_ms - heard_ms > self.session_ms]:
            self.world.tell(f"session {session} of {self._members[session].node} expires")
            self.end(session)

    def end(self, session: int) -> None:
        self._heard_ms.pop(session, None)
        self._members.pop(session, None)
        if self.controller == session:
            self.controller = None
        if self.controller is None and self._members:
            self.controller = min(self._members)
            self.controller_epoch += 1
        self.spread()

    def hear(self, session: int) -> bool:
        """A heartbeat; whether the session is still there."""
        self.expire()
        if session not in self._heard_ms:
            return False
        self._heard_ms[session] = self.world.now_ms
        return True

    def open(self, member: Member) -> int:
        self.expire()
        for session, other in list(self._members.items()):
            if other.node == member.node:
                if other.instance != member.instance:
                    raise NodeIdTaken(f"another data directory has the id {member.node}")
                self.end(session)
        self._sessions += 1
        self._heard_ms[self._sessions] = self.world.now_ms
        self._members[self._sessions] = member
        if self.controller is None:
            self.controller = self._sessions
            self.controller_epoch += 1
        self.spread()
        return self._sessions

    def update(self, session: int, member: Member) -> None:
        if self._members.get(session) != member:
            self._members[session] = member
            self.spread()

    def publish(self, roles: Roles, version: int) -> bool:
        if version != self.version:
            return False
        self.version += 1
        self.roles = roles
        self.world.tell(f"roles {self.version}: " + " ".join(
            f"{shard}={given.master}@{given.epoch}" for shard, given in sorted(roles.shards.items())
        ))  # fmt: skip
        self.spread()
        return True

    def members(self) -> dict[str, Member]:
        return {member.node: member for member in self._members.values()}

    def spread(self) -> None:
        """Tell every client before long."""
        for client in self.clients:
            self.world.after(self.world.random.randrange(1, 60), client.refresh)


class SimCoordinator:
    """See `ports.Coordinator`: one process's client. `tick` is its heartbeat thread."""

    def __init__(self, ensemble: Ensemble, node: str, touch: Callable[[str], None]) -> None:
        self._ensemble = ensemble
        self._node = node
        self._touch = touch
        self._session: int | None = None
        self._roles: Roles | None = None
        self._members: Mapping[str, Member] = {}
        self._confirmed = False
        self._waits_ms: int | None = None
        """Since when it waits for its place, which another data directory has."""
        self._since_ms: dict[str, int] = {}
        self.cut_ms = 0
        """Cut off from the servers until then."""
        self.asleep: Callable[[], bool] = lambda: False
        """The process is frozen: nothing is sent and nothing received."""
        ensemble.clients.append(self)

    @property
    def _connected(self) -> bool:
        return self._ensemble.ping and self._ensemble.world.now_ms >= self.cut_ms

    @property
    def joined(self) -> bool:
        return self._session is not None

    def tick(self) -> None:
        if self._session is None:
            return
        if not self._connected:
            self._confirmed = False
        elif not self._ensemble.hear(self._session):
            self._session, self._roles, self._confirmed = None, None, False
        else:
            self.refresh()

    def refresh(self) -> None:
        if self._session is None or not self._connected or self.asleep():
            return
        self._roles, self._members, self._confirmed = self._ensemble.roles, self._ensemble.members(), True
        for node in sorted(self._members):
            self._since_ms.setdefault(node, self._ensemble.world.now_ms)
        for node in sorted(self._since_ms.keys() - self._members.keys()):
            del self._since_ms[node]

    def join(self, member: Member) -> None:
        self._check_connected()
        now_ms = self._ensemble.world.now_ms
        try:
            self._session = self._ensemble.open(member)
        except NodeIdTaken as taken:
            self._waits_ms = now_ms if self._waits_ms is None else self._waits_ms
            if now_ms - self._waits_ms > self._ensemble.session_ms + 1_000:
                raise
            raise CoordinatorUnavailable("another data directory has the place: it may be gone in a moment") from taken
        self._waits_ms = None
        self.refresh()

    def report(self, member: Member) -> None:
        self._check_connected()
        if self._session is None or not self._ensemble.hear(self._session):
            raise CoordinatorUnavailable("the session is over")
        self._ensemble.update(self._session, member)

    def look(self) -> ClusterSnapshot:
        return ClusterSnapshot(roles=self._roles, members=self._members, confirmed=self._confirmed)

    def request(self, request: Request) -> None:
        self._check_connected()
        self._ensemble.requests.append(request)

    def control(self, plan: Callable[[ClusterView], Roles]) -> bool:
        ensemble = self._ensemble
        if not self._confirmed or not self._connected or ensemble.controller != self._session:
            return False
        version, roles, requests = ensemble.version, ensemble.roles, tuple(ensemble.requests)
        self.refresh()
        view = ClusterView(
            now_ms=ensemble.world.now_ms,
            controller=self._node,
            controller_epoch=ensemble.controller_epoch,
            shards=ensemble.shards,
            replication=ensemble.replication,
            members=ensemble.members(),
            since_ms=dict(self._since_ms),
            roles=roles,
            requests=requests,
            rebalance_after_ms=ensemble.rebalance_after_ms,
            replace_after_ms=ensemble.replace_after_ms,
        )
        self._touch("control")
        planned = plan(view)
        if planned != roles and ensemble.publish(planned, version):
            ensemble.requests = [request for request in ensemble.requests if request not in requests]
        return True

    def wait(self, timeout_s: float) -> bool:
        return False

    def leave(self) -> None:
        if self._session is not None:
            # Nobody hears it of a node that is cut off: then the session expires.
            if self._connected:
                self._ensemble.end(self._session)
            self._session, self._roles, self._confirmed = None, None, False

    def _check_connected(self) -> None:
        if not self._connected:
            raise CoordinatorUnavailable("no server answers")
