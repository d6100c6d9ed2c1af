"""Membership and the controller on ZooKeeper (`ports.Coordinator`).

    <path>/<cluster>/members/<node>     ephemeral; a Member as JSON. The oldest of them is the controller.
    <path>/<cluster>/roles              Roles as JSON; written only by the controller, and only over the version it read
    <path>/<cluster>/requests/request-  Request as JSON, sequential; deleted in the transaction that answers it

The controller is the member with the oldest znode, as in a queue for a lock. An older znode can
vanish but never appear, so a member stays the oldest for as long as its znode exists, and
publishing is one transaction that also requires that znode. A controller that was deposed therefore
writes nothing, even before it notices.

A client remembers the last transaction that it read, and a server whose data are older refuses it:
after a loss of its data, or with the data of an older state, ZooKeeper refuses such a client until
its own transactions have passed that one, which may never happen. So a second session starts beside
one that was not answered for a session time-out, and replaces it once it has been answered for
AHEAD_S; if the first is answered before, the second ends. If the second finds no roles, those that
were read last stay, unconfirmed, until a controller publishes."""  # noqa: E501

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from kazoo.exceptions import NodeExistsError, NoNodeError

from chronos.adapters.zookeeper.servers import RECONNECT, ZooKeeperServers
from chronos.adapters.zookeeper.session import REQUESTS, Session, decoded, translated
from chronos.core.cluster.roles import (
    ClusterState,
    Member,
    Request,
    Roles,
    id_taken,
    same_directory,
)
from chronos.errors import CoordinatorUnavailable
from chronos.ports import ClusterSnapshot

log = structlog.get_logger("chronos.zookeeper")

CLOSE_S = 2.0
"""How long `leave` waits for the servers to end the session; after that they end it by its
time-out."""

AHEAD_S = 2 * RECONNECT["max_delay"]
"""How long a second session is answered before it counts: as a rule the first one has tried the
server that answers by then. It continues if it is known there, and need not register again."""

OLDER_DATA = (
    "ZooKeeper answers a new session and not the one from before, as it does when its data were "
    "lost, or restored from an older state"
)

NO_ROLES = (
    "ZooKeeper has no roles of this cluster any more, its data were probably lost: masters continue"
    " until the controller publishes roles"
)


class ZooKeeperCoordinator:
    """One node's membership in a cluster. See `ports.Coordinator`. Any thread may call `look` and
    `request`, one the other verbs."""

    def __init__(self, servers: ZooKeeperServers, *, cluster: str, node: str) -> None:
        """Raises ConfigurationError for a file or a package that is missing. Only `join`
        connects."""
        self.settings = servers.client_settings()
        self.base = f"{servers.path.rstrip('/')}/{cluster}"
        """The znode that holds the cluster."""
        self._cluster = cluster
        self._node = node
        self._session_timeout_s = servers.session_timeout_s
        self._woken = threading.Event()
        self._session: Session | None = None
        self._second: Session | None = None
        """A session that starts beside one that is not answered."""
        self._member: Member | None = None
        """The last report."""
        self._kept: Roles | None = None
        """The last roles of an earlier session, until this one reads some."""

    # --- the port

    def join(self, member: Member) -> None:
        """Start a session and register this node in it. Raises NodeIdTaken,
        CoordinatorUnavailable."""
        self._member = member
        with translated():
            self._end_session()
            session = self._session = Session(self.settings, self.base, self._woken)
            try:
                session.start()
                self._register(session, member)
                session.refresh()
            except BaseException:
                self._end_session()
                raise

    def report(self, member: Member) -> None:
        """Publish this node's state. Raises CoordinatorUnavailable, also when the session is lost,
        and NodeIdTaken."""
        self._member = member
        self._replace_silent()
        session = self._connected()
        try:
            with translated():
                session.answer(
                    session.client.set_async(
                        session.member_path(self._node), session.encode(member)
                    )
                )
        except CoordinatorUnavailable as error:
            if isinstance(error.__cause__, NoNodeError):
                # the znode was removed: the node must register again, as after the end of a session
                session.lose()
            raise

    def look(self) -> ClusterSnapshot:
        session = self._session
        if session is None or session.lost:
            return ClusterSnapshot(roles=None, members={}, confirmed=False)
        roles, kept = session.roles, self._kept
        if kept is not None and (roles is None or roles.are_empty):
            return ClusterSnapshot(
                roles=kept,
                members=session.members,
                confirmed=False,
                why=NO_ROLES if session.confirmed else "",
            )
        return ClusterSnapshot(roles=roles, members=session.members, confirmed=session.confirmed)

    def request(self, request: Request) -> None:
        session = self._connected()
        with translated():
            path = f"{self.base}/{REQUESTS}/request-"
            session.answer(
                session.client.create_async(path, session.encode(request), sequence=True)
            )

    def control(self, plan: Callable[[ClusterState], Roles]) -> bool:
        """If this node is certain to be the controller, read, plan and publish the changes; return
        whether it is. Raises CoordinatorUnavailable, NodeIdTaken."""
        self._replace_silent()
        session = self._session
        if session is None or session.lost or not session.connected:
            return False
        with translated():
            session.refresh()
            if not (session.confirmed and session.is_oldest(self._node)):
                return False
            requests = session.read_requests()
            view = self._state_of(session, tuple(requests.values()))
            roles = plan(view)
            if requests or session.must_publish(roles):
                session.publish(roles, answered=list(requests), node=self._node)
        return True

    def wait(self, timeout_s: float) -> bool:
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        session = self._session
        if session is not None and session.connected and not session.lost:
            # A part that cannot be read now stays marked as stale and is read by the next call.
            with suppress(CoordinatorUnavailable), translated():
                session.refresh()
        return woken

    def leave(self) -> None:
        closing = self._end_session()
        self._kept = None
        if closing is not None:
            closing.join(CLOSE_S)

    # --- inside

    def _connected(self) -> Session:
        session = self._session
        if session is None or session.lost:
            raise CoordinatorUnavailable(
                "the session with ZooKeeper is over; this node has to join again"
            )
        if not session.connected:
            raise CoordinatorUnavailable(f"no ZooKeeper server of {self.settings['hosts']} answers")
        return session

    def _end_session(self) -> threading.Thread | None:
        self._end_second()
        session = self._session
        self._keep_roles(session)
        self._session = None
        return None if session is None else session.end()

    def _keep_roles(self, session: Session | None) -> None:
        if session is not None and session.roles is not None and not session.roles.are_empty:
            self._kept = session.roles

    def _end_second(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            second.end()

    def _replace_silent(self) -> None:
        """Replace a session that no server has answered for a session time-out by a second one,
        once that has been answered for AHEAD_S, registered this node and read the roles, if there
        are any. Raises NodeIdTaken, CoordinatorUnavailable."""
        session, second = self._session, self._second
        if session is None or session.lost or session.connected:
            self._end_second()
            return
        now_s = time.monotonic()
        if now_s - session.since_s < self._session_timeout_s:
            return
        if second is not None and second.lost:
            self._end_second()
            second = None
        with translated():
            if second is None:
                second = Session(self.settings, self.base, self._woken)
                second.connect()
                self._second = second
            if not second.connected or now_s - second.since_s < AHEAD_S:
                return
            assert self._member is not None
            second.prepare()
            self._register(second, self._member)
            second.refresh()
        log.warning(
            "zookeeper session replaced",
            why=OLDER_DATA,
            silent_s=round(now_s - session.since_s, 1),
            zxid_before=session.client.last_zxid,
            zxid=second.client.last_zxid,
        )
        self._keep_roles(session)
        self._session, self._second = second, None
        session.end()

    def _register(self, session: Session, member: Member) -> None:
        """Create this node's znode, in one transaction with the removal of the one that its own
        last session left.

        So no other node ever sees this node as absent, and its shards stay where they are.
        """
        path, data = session.member_path(self._node), session.encode(member)
        deadline = time.monotonic() + self._session_timeout_s + 1.0
        while True:
            gone = threading.Event()
            try:
                stored, stat = session.answer(
                    session.client.get_async(path, watch=lambda _, gone=gone: gone.set())
                )
            except NoNodeError:
                with suppress(NodeExistsError):
                    session.answer(session.client.create_async(path, data, ephemeral=True))
                    return
                continue
            other = decoded(stored, Member)
            if other is not None and same_directory(other, member):
                if session.replace_member(path, data, stat.version):
                    return
            elif (remaining_s := deadline - time.monotonic()) > 0:
                gone.wait(remaining_s)
            else:
                raise id_taken(self._node, self._cluster, other)

    def _state_of(self, session: Session, requests: tuple[Request, ...]) -> ClusterState:
        roles = session.roles or Roles()
        if (roles.controller, roles.controller_epoch) != (self._node, session.epoch):
            session.epoch = roles.controller_epoch + 1
        return ClusterState(
            now_ms=session.now_ms(),
            controller=self._node,
            controller_epoch=session.epoch,
            members=session.members,
            since_ms=session.since_ms,
            roles=roles,
            requests=requests,
        )
