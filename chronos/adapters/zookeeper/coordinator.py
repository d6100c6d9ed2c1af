"""Membership and the controller on ZooKeeper, on top of sessions (`zookeeper.session`).

    <path>/<cluster>/members/<node>     ephemeral; a Member as JSON. The oldest of them is the controller.
    <path>/<cluster>/roles              Roles as JSON; written only by the controller, and only over the version it read
    <path>/<cluster>/requests/request-  Request as JSON, sequential; deleted in the transaction that answers it

The controller is the member with the oldest znode: a lock's queue that needs no znodes of its own. An older znode can
vanish but never appear, so a member stays the oldest for as long as its znode exists, and publishing is one transaction
that also requires that znode. A controller that was deposed therefore writes nothing, even before it notices.

Everything that kazoo or the system below it raises becomes CoordinatorUnavailable here and nowhere else.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from chronos.adapters.zookeeper.session import ANSWER_S, KAZOO_LOG, REQUESTS, Session, decoded
from chronos.core.roles import REBALANCE_AFTER_MS, ClusterView, Member, Request, Roles, id_taken, same_directory
from chronos.errors import ConfigurationError, CoordinatorUnavailable
from chronos.ports import ClusterSnapshot

CLOSE_S = 2.0
"""How long `leave` waits for the servers to end the session; after that they end it by its time-out."""

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}
"""Pauses between attempts to connect, in seconds. kazoo's longest is an hour; a session of 4 s must outlive several."""


class ZooKeeperCoordinator:
    """One node's membership in a cluster. See `ports.Coordinator`. Any thread may call `look` and `request`, one the other verbs."""

    def __init__(
        self,
        *,
        hosts: str,
        cluster: str,
        node: str,
        instance: str,
        shards: int,
        replication: int | None = None,
        session_timeout_s: float = 10.0,
        path: str = "/chronos",
        rebalance_after_ms: int = REBALANCE_AFTER_MS,
        authentication: str = "none",
        username: str | None = None,
        password: str | None = None,
        acl: str = "open",
        tls: bool = False,
        ca: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
    ) -> None:
        """`authentication`: `none`, `digest` or `sasl`. `acl`: `open`, or `creator` for clients that authenticate alike.

        Raises ConfigurationError for a file or a package that is missing. Only `join` connects.
        """
        self._cluster = cluster
        self._node = node
        self._instance = instance
        self._shards = shards
        self._replication = replication
        self._session_timeout_s = session_timeout_s
        self._rebalance_after_ms = rebalance_after_ms
        self.base = f"{path.rstrip('/')}/{cluster}"
        """The znode that holds the cluster."""
        self.settings: dict[str, Any] = {
            "hosts": hosts,
            "timeout": session_timeout_s,
            "connection_retry": RECONNECT,
            "logger": KAZOO_LOG,
            "default_acl": CREATOR_ALL_ACL if acl == "creator" else OPEN_ACL_UNSAFE,
        }
        _check(authentication, ca=ca, certfile=certfile, keyfile=keyfile)
        if authentication == "digest":
            self.settings["auth_data"] = [("digest", f"{username}:{password}")]
        elif authentication == "sasl":
            sasl = {"mechanism": "DIGEST-MD5", "username": username, "password": password}
            self.settings["sasl_options"] = sasl
        if tls:
            self.settings |= {"use_ssl": True, "ca": ca, "certfile": certfile, "keyfile": keyfile}
            self.settings["check_hostname"] = True
        self._woken = threading.Event()
        self._session: Session | None = None

    # --- the port

    def join(self, member: Member) -> None:
        """Start a session and register this node in it. Raises NodeIdTaken, CoordinatorUnavailable."""
        with _translated():
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
        """Publish this node's state. Raises CoordinatorUnavailable, also when the session is lost."""
        session = self._connected()
        try:
            with _translated():
                session.answer(session.client.set_async(session.member_path(self._node), session.encode(member)))
        except CoordinatorUnavailable as error:
            if isinstance(error.__cause__, NoNodeError):
                session.lose()  # the znode was removed: the node must register again, as after the end of a session
            raise

    def look(self) -> ClusterSnapshot:
        """Return the present knowledge, without a request to a server."""
        session = self._session
        if session is None or session.lost:
            return ClusterSnapshot(roles=None, members={}, confirmed=False)
        return ClusterSnapshot(roles=session.roles, members=session.members, confirmed=session.confirmed)

    def request(self, request: Request) -> None:
        """Store a request for the controller. Raises CoordinatorUnavailable."""
        session = self._connected()
        with _translated():
            path = f"{self.base}/{REQUESTS}/request-"
            session.answer(session.client.create_async(path, session.encode(request), sequence=True))

    def control(self, plan: Callable[[ClusterView], Roles]) -> bool:
        """If this node is certain to be the controller, read, plan and publish the changes; return whether it is."""
        session = self._session
        if session is None or session.lost or not session.connected:
            return False
        with _translated():
            session.refresh()
            if not (session.confirmed and session.is_oldest(self._node)):
                return False
            requests = session.read_requests()
            view = self._view(session, tuple(requests.values()))
            roles = plan(view)
            if requests or session.must_publish(roles):
                session.publish(roles, answered=list(requests), node=self._node)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the snapshot may have changed; False if the time passes first."""
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        session = self._session
        if session is not None and session.connected and not session.lost:
            # A part that cannot be read now stays marked as stale and is read by the next call.
            with suppress(CoordinatorUnavailable), _translated():
                session.refresh()
        return woken

    def leave(self) -> None:
        """End the session and the registration, so that other nodes need not wait for them to expire."""
        closing = self._end_session()
        if closing is not None:
            closing.join(CLOSE_S)

    # --- inside

    def _connected(self) -> Session:
        session = self._session
        if session is None or session.lost:
            raise CoordinatorUnavailable("the session with ZooKeeper is over; this node has to join again")
        if not session.connected:
            raise CoordinatorUnavailable(f"no ZooKeeper server of {self.settings['hosts']} answers")
        return session

    def _end_session(self) -> threading.Thread | None:
        session, self._session = self._session, None
        return None if session is None else session.end()

    def _register(self, session: Session, member: Member) -> None:
        """Create this node's znode, in one transaction with the removal of the one that its own last session left.

        So no other node ever sees this node as absent, and its shards stay where they are.
        """
        path, data = session.member_path(self._node), session.encode(member)
        deadline = time.monotonic() + self._session_timeout_s + 1.0
        while True:
            gone = threading.Event()
            try:
                stored, stat = session.answer(session.client.get_async(path, watch=lambda _, gone=gone: gone.set()))
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

    def _view(self, session: Session, requests: tuple[Request, ...]) -> ClusterView:
        roles = session.roles or Roles()
        if (roles.controller, roles.controller_epoch) != (self._node, session.epoch):
            session.epoch = roles.controller_epoch + 1
        return ClusterView(
            now_ms=session.now_ms(),
            controller=self._node,
            controller_epoch=session.epoch,
            shards=self._shards,
            replication=self._replication,
            members=session.members,
            since_ms=session.since_ms,
            roles=roles,
            requests=requests,
            rebalance_after_ms=self._rebalance_after_ms,
        )


def _check(authentication: str, **files: str | None) -> None:
    """Raise ConfigurationError for what kazoo would find out only in a thread of its own, where the error is lost."""
    problems = [
        f"coordinator.zookeeper.{key}: {file} cannot be read"
        for key, file in files.items()
        if file is not None and not os.access(file, os.R_OK)
    ]
    if authentication == "sasl" and find_spec("puresasl") is None:
        problems.append(
            "coordinator.zookeeper.authentication: sasl needs the package pure-sasl, which is not installed"
        )
    if problems:
        raise ConfigurationError(problems)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KazooTimeoutError as error:
        raise CoordinatorUnavailable(f"ZooKeeper did not answer within {ANSWER_S:g} s") from error
    except KazooException as error:
        reason = str(error) or type(error).__name__
        raise CoordinatorUnavailable(f"ZooKeeper refused the request: {reason}") from error
    except (OSError, RuntimeError) as error:
        # This machine has no file descriptor, or no thread, left.
        raise CoordinatorUnavailable(f"ZooKeeper could not be asked: {error}") from error
