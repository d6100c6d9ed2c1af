"""Membership and the controller on ZooKeeper, over sessions of kazoo, and the inspection from
outside the cluster.

Watches only mark data as stale. The calling thread does all reading, and every request has a time
limit.

    <path>/<cluster>/members/<node>     ephemeral; a Member as JSON. The oldest of them is the controller.
    <path>/<cluster>/roles              Roles as JSON; written only by the controller, and only over the version it read
    <path>/<cluster>/requests/request-  Request as JSON, sequential; deleted in the transaction that answers it

The controller is the member with the oldest znode: a lock's queue that needs no znodes of its own.
An older znode can vanish but never appear, so a member stays the oldest for as long as its znode
exists, and publishing is one transaction that also requires that znode. A controller that was
deposed therefore writes nothing, even before it notices.

A client remembers the last transaction that it read, and a server whose data are older refuses it:
after a loss of its data, or with the data of an older state, ZooKeeper refuses every session from
before, for ever. So a second session starts beside one that was not answered for a session
time-out, and the first of them that is answered counts. If the second finds no roles, those that
were read last stay, unconfirmed, until a controller publishes.

Everything that kazoo or the system below it raises becomes CoordinatorUnavailable here and nowhere
else.

The inspection does not join, and creates only the znodes that a node's first start creates; a test
znode ends with its session."""  # noqa: E501

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from msgspec import Struct

from chronos.core.cluster.roles import (
    PROGRESS_EVERY_S,
    ClusterState,
    Member,
    Request,
    Roles,
    id_taken,
    same_directory,
)
from chronos.core.timefmt import format_duration
from chronos.errors import ConfigurationError, CoordinatorFull, CoordinatorUnavailable
from chronos.ports import CLOCK_TOLERANCE_MS, ClusterInspection, ClusterSnapshot

log = structlog.get_logger("chronos.zookeeper")

CONNECT_S = 5.0
"""How long a new session may take to start."""

ANSWER_S = 2.0
"""Longest wait for an answer; a healthy ensemble takes milliseconds."""

ZNODE_BYTES_MAX = 0xFFFFF - 65_536
"""Largest value of a znode: ZooKeeper ends the connection of a client whose request is larger than
`jute.maxbuffer`, 1 MiB by default, and a request holds paths too."""

REQUESTS_MAX = 100
"""Most requests answered in one transaction, which names the znode of each."""

MEMBERS, ROLES, REQUESTS = "members", "roles", "requests"

# kazoo warns about every attempt at every server; `_on_state` logs each change once.
KAZOO_LOG = logging.getLogger("chronos.zookeeper.kazoo")
KAZOO_LOG.setLevel(logging.ERROR)

T = TypeVar("T")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a limit on the part of the session's time that one server may take.

    kazoo waits up to the whole session time-out for a connection and, if there is one server, also
    for its first answer. A server that accepts connections and does not answer, because it starts
    or the network is partitioned, would cost the session."""

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self._attempt_s = attempt_s

    def create_connection(self, *arguments: Any, timeout: float, **more: Any) -> Any:
        """Connect to one server."""
        return super().create_connection(*arguments, timeout=min(timeout, self._attempt_s), **more)

    def select(
        self, reading: list[Any], writing: list[Any], failing: list[Any], timeout: float
    ) -> Any:
        """Wait for sockets; kazoo waits for a single one in the middle of an exchange, so the limit
        applies to it too."""
        if len(reading) + len(writing) == 1:
            timeout = min(timeout, self._attempt_s)
        return super().select(reading, writing, failing, timeout)


class Session:
    """One session with ZooKeeper, from its start to its end, and the data last read in it."""

    def __init__(self, settings: Mapping[str, Any], base: str, woken: threading.Event) -> None:
        self.connected = False
        """A server is connected."""
        self.confirmed = False
        """Everything was read again since the last time no server was connected."""
        self.lost = False
        """The session has ended, and with it this node's znode."""
        self.since_s = time.monotonic()
        """Since when a server is connected, or none is (monotonic s)."""
        self.roles: Roles | None = None
        self.members: Mapping[str, Member] = {}
        self.since_ms: Mapping[str, int] = {}
        """Member -> time when its znode was first seen (epoch ms)."""
        self.epoch = 0
        """This session's epoch as the controller; 0 before it is one."""
        self._stats: dict[str, ZnodeStat] = {}
        self._members: dict[str, Member] = {}
        self._seen_ms: dict[str, tuple[int, int]] = {}
        self._roles_version = 0
        self._published_s = 0.0
        self._requests: list[str] = []
        self._base = base
        self._woken = woken
        self._ahead_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self._lock = threading.Lock()
        self._stale = {MEMBERS, ROLES, REQUESTS}
        self._drops = 0
        self._large: frozenset[str] = frozenset()
        """The kinds of values that are near the limit of a znode."""
        servers = 1 + settings["hosts"].count(",")
        self.client = KazooClient(handler=Handler(settings["timeout"] / (servers + 1)), **settings)
        self.client.add_listener(self._on_state)

    def connect(self) -> threading.Event:
        """Begin to connect to the servers, one after the other, until one answers; return the event
        that is set then."""
        connected: threading.Event = self.client.start_async()
        return connected

    def prepare(self) -> None:
        """Create the persistent znodes."""
        for name in (MEMBERS, REQUESTS, ROLES):
            self.answer(self.client.ensure_path_async(f"{self._base}/{name}"))

    def start(self) -> None:
        """Connect, and create the persistent znodes."""
        if not self.connect().wait(CONNECT_S):
            raise CoordinatorUnavailable(
                f"no ZooKeeper server answers within {CONNECT_S:g} s ({self._hosts()})"
            )
        self.connected = True
        self.prepare()

    def end(self) -> threading.Thread:
        """End the session in a thread, because kazoo may wait ten seconds for a server that does
        not answer."""
        self.lose()
        closing = threading.Thread(target=self._close, name="zookeeper-close", daemon=True)
        closing.start()
        return closing

    def now_ms(self) -> int:
        """Return epoch milliseconds by the clock as it was when the session started.

        Setting the clock later must not make a member that has just joined, or left, look an hour
        older."""
        return self._ahead_ms + time.monotonic_ns() // 1_000_000

    def lose(self) -> None:
        """Mark the session as ended: it must not be used again."""
        self.lost, self.confirmed = True, False
        self._woken.set()

    def encode(self, value: Member | Roles | Request) -> bytes:
        """Return the value as JSON. Raises CoordinatorFull if ZooKeeper would not take it."""
        data = msgspec.json.encode(value)
        what = type(value).__name__.lower()
        if len(data) > ZNODE_BYTES_MAX:
            raise CoordinatorFull(
                f"the znode for {what} would take {len(data)} bytes, more than the "
                f"{ZNODE_BYTES_MAX} that ZooKeeper takes (jute.maxbuffer): forget nodes that will "
                "not come back (`chronos forget NODE`), or use fewer shards"
            )
        is_large = len(data) > ZNODE_BYTES_MAX // 2
        if is_large and what not in self._large:
            log.warning("znode is half full", what=what, bytes=len(data), bytes_max=ZNODE_BYTES_MAX)
        self._large = self._large | {what} if is_large else self._large - {what}
        return data

    def answer(self, result: IAsyncResult) -> Any:
        """Return the answer to a request within ANSWER_S; raises what kazoo raises.

        kazoo counts every request it sends as a heartbeat: with one in each of its periods it never
        notices that nothing is answered, and the session expires on a server that hangs (measured).
        So this closes the connection, and kazoo continues the same session on another server."""
        try:
            return result.get(timeout=ANSWER_S)
        except KazooTimeoutError:
            connection = self.client._connection._socket
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            raise

    def member_path(self, node: str) -> str:
        """Path of a member's znode."""
        return f"{self._base}/{MEMBERS}/{node}"

    def replace_member(self, path: str, data: bytes, version: int) -> bool:
        """Replace another session's znode by one of this session; return whether it was still the
        one read."""
        change = self.client.transaction()
        change.delete(path, version)
        change.create(path, data, ephemeral=True)
        return not any(
            isinstance(result, Exception) for result in self.answer(change.commit_async())
        )

    # --- called by kazoo's threads

    def _on_state(self, state: str) -> None:
        with self._lock:
            self.connected = state == KazooState.CONNECTED
            self.since_s = time.monotonic()
            if not self.connected:
                self.confirmed = False
                self._drops += 1
                # Watches end with the connection.
                self._stale |= {MEMBERS, ROLES, REQUESTS, *map(self.member_path, self._stats)}
            ended = self.lost
            if state == KazooState.LOST:
                self.lost = True
        self._woken.set()
        if not ended:
            log.log(
                logging.INFO if self.connected else logging.WARNING,
                "zookeeper session",
                state=state.lower(),
            )

    def _marking(self, name: str) -> Callable[[WatchedEvent], None]:
        def mark(_: WatchedEvent) -> None:
            with self._lock:
                self._stale.add(name)
            self._woken.set()

        return mark

    # --- reading

    def refresh(self) -> None:
        """Read the stale data, and watch it again."""
        with self._lock:
            stale, drops = self._stale, self._drops
            self._stale = set()
        if not stale:
            return
        try:
            if ROLES in stale:
                self._read_roles()
            if REQUESTS in stale:
                self._requests = sorted(self._children(REQUESTS))
            self._read_members(stale)
        except BaseException:
            with self._lock:
                self._stale |= stale
            raise
        with self._lock:
            self.confirmed = self.connected and not self.lost and drops == self._drops

    def _children(self, name: str) -> list[str]:
        names: list[str] = self.answer(
            self.client.get_children_async(f"{self._base}/{name}", watch=self._marking(name))
        )
        return names

    def _read_roles(self) -> None:
        data, stat = self.answer(
            self.client.get_async(f"{self._base}/{ROLES}", watch=self._marking(ROLES))
        )
        roles = decoded(data, Roles) if data else None
        if data and roles is None:
            raise CoordinatorUnavailable(
                f"{self._base}/{ROLES} in ZooKeeper holds what this version cannot read"
            )
        self.roles, self._roles_version = roles, stat.version

    def _read_members(self, stale: set[str]) -> None:
        names = set(self._children(MEMBERS)) if MEMBERS in stale else set(self._stats)
        new = {name for name in names if name not in self._stats or self.member_path(name) in stale}
        asked = {
            name: self.client.get_async(
                self.member_path(name), watch=self._marking(self.member_path(name))
            )
            for name in sorted(new)
        }
        for name in set(self._stats) - names:
            self._forget(name)
        for name, result in asked.items():
            try:
                data, stat = self.answer(result)
            except NoNodeError:  # it vanished meanwhile, which marks its parent
                self._forget(name)
                continue
            self._stats[name] = stat
            member = decoded(data, Member)
            if member is None:
                log.warning("member of another version ignored", node=name)
                self._members.pop(name, None)
            else:
                self._members[name] = member
            if self._seen_ms.get(name, (0, 0))[0] != stat.czxid:
                self._seen_ms[name] = (stat.czxid, self.now_ms())
        self.members = dict(self._members)
        self.since_ms = {name: seen_ms for name, (_, seen_ms) in self._seen_ms.items()}

    def _forget(self, name: str) -> None:
        for known in (self._stats, self._members, self._seen_ms):
            known.pop(name, None)

    def read_requests(self) -> dict[str, Request]:
        """Return the requests not yet answered, oldest first, by the paths of their znodes."""
        asked = {path: self.client.get_async(path) for path in self._request_paths()}
        found = {}
        for path, result in asked.items():
            with suppress(NoNodeError):
                # A request that cannot be read is answered like any other, by a refusal that
                # operators can see.
                found[path] = decoded(self.answer(result)[0], Request) or Request(
                    kind="unreadable", node="-"
                )
        return found

    def _request_paths(self) -> list[str]:
        return [f"{self._base}/{REQUESTS}/{name}" for name in self._requests[:REQUESTS_MAX]]

    # --- the controller

    def is_oldest(self, node: str) -> bool:
        """Return whether this session created the oldest of the members' znodes."""
        own = self._stats.get(node)
        if (
            own is None
            or self.client.client_id is None
            or own.ephemeralOwner != self.client.client_id[0]
        ):
            return False
        return all(own.czxid <= stat.czxid for stat in self._stats.values())

    def must_publish(self, roles: Roles) -> bool:
        """Return whether the roles differ enough to be published now."""
        if roles == self.roles:
            return False
        quiet_s = time.monotonic() - self._published_s
        return (
            quiet_s >= PROGRESS_EVERY_S
            or self.roles is None
            or roles.decisions != self.roles.decisions
        )

    def publish(self, roles: Roles, *, answered: list[str], node: str) -> None:
        """Write the roles over those that were read and delete the requests, all or nothing."""
        change = self.client.transaction()
        change.check(self.member_path(node), -1)
        change.set_data(f"{self._base}/{ROLES}", self.encode(roles), version=self._roles_version)
        for path in answered:
            change.delete(path)
        try:
            results = self.answer(change.commit_async())
        finally:
            # Read back what was written, also when it is unknown whether it was.
            with self._lock:
                self._stale |= {ROLES, REQUESTS}
        refused = [result for result in results if isinstance(result, Exception)]
        if refused:
            cause = next(
                (error for error in refused if not isinstance(error, RolledBackError)), refused[0]
            )
            with self._lock:
                self._stale.add(MEMBERS)
            self._woken.set()
            log.info("roles not published, they changed meanwhile", cause=type(cause).__name__)
            return
        self._roles_version = results[1].version
        self.roles, self._published_s = roles, time.monotonic()
        self._requests = [
            name for name in self._requests if f"{self._base}/{REQUESTS}/{name}" not in answered
        ]

    def _hosts(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.client.hosts)

    def _close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            # No caller waits for it, and the servers end the session after its time-out.
            log.info("session not closed", why=str(error))


def decoded(data: bytes, kind: type[T]) -> T | None:
    """Return the decoded value; None if the bytes are not of its type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None


CLOSE_S = 2.0
"""How long `leave` waits for the servers to end the session; after that they end it by its
time-out."""

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}
"""Pauses between attempts to connect, in seconds. kazoo's longest is an hour; a session of 4 s must
outlive several."""

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


class ZooKeeperServers(Struct, frozen=True, kw_only=True):
    """The ensemble, and how to connect to it."""

    hosts: str
    session_timeout_s: float = 10.0
    path: str = "/chronos"
    authentication: Literal["none", "digest", "sasl"] = "none"
    username: str | None = None
    password: str | None = None
    acl: Literal["open", "creator"] = "open"
    """`creator`: only clients that authenticate alike have access."""
    tls: bool = False
    ca: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def client_settings(self) -> dict[str, Any]:
        """Return the settings of kazoo's client. Raises ConfigurationError for a file or a package
        that is missing."""
        files = {"ca": self.ca, "certfile": self.certfile, "keyfile": self.keyfile}
        _check(self.authentication, files)
        settings: dict[str, Any] = {
            "hosts": self.hosts,
            "timeout": self.session_timeout_s,
            "connection_retry": RECONNECT,
            "logger": KAZOO_LOG,
            "default_acl": CREATOR_ALL_ACL if self.acl == "creator" else OPEN_ACL_UNSAFE,
        }
        if self.authentication == "digest":
            settings["auth_data"] = [("digest", f"{self.username}:{self.password}")]
        elif self.authentication == "sasl":
            sasl = {
                "mechanism": "DIGEST-MD5",
                "username": self.username,
                "password": self.password,
            }
            settings["sasl_options"] = sasl
        if self.tls:
            settings |= {"use_ssl": True, "check_hostname": True, **files}
        return settings


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
        """Publish this node's state. Raises CoordinatorUnavailable, also when the session is lost,
        and NodeIdTaken."""
        self._member = member
        self._replace_silent()
        session = self._connected()
        try:
            with _translated():
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
        """Return the current knowledge, without a request to a server."""
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
        """Store a request for the controller. Raises CoordinatorUnavailable."""
        session = self._connected()
        with _translated():
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
        with _translated():
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
        """End the session and the registration, so that other nodes need not wait for them to
        expire."""
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
        with _translated():
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


def _check(authentication: str, files: Mapping[str, str | None]) -> None:
    """Raise ConfigurationError for what kazoo would find out only in a thread of its own, where the
    error is lost."""
    problems = [
        f"coordinator.zookeeper.{key}: {file} cannot be read"
        for key, file in files.items()
        if file is not None and not os.access(file, os.R_OK)
    ]
    if authentication == "sasl" and find_spec("puresasl") is None:
        problems.append(
            "coordinator.zookeeper.authentication: sasl needs the package pure-sasl, which is not "
            "installed"
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


def inspect(coordinator: ZooKeeperCoordinator) -> ClusterInspection:
    """Start a session with the coordinator's settings, write, read, and end it. Raises
    CoordinatorUnavailable."""
    settings, base = coordinator.settings, coordinator.base
    client = KazooClient(**{**settings, "connection_retry": {"max_tries": 1}})
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    try:
        if not client.start_async().wait(CONNECT_S):
            raise CoordinatorUnavailable(
                f"no ZooKeeper server answers within {CONNECT_S:g} s ({hosts})"
            )
        return _inspect(client, base, hosts, asked_ms=round(settings["timeout"] * 1_000))
    except KazooTimeoutError as error:
        raise CoordinatorUnavailable(f"ZooKeeper did not answer within {ANSWER_S:g} s") from error
    except KazooException as error:
        reason = str(error) or type(error).__name__
        raise CoordinatorUnavailable(
            f"ZooKeeper refused the request: {reason} (under {base})"
        ) from error
    finally:
        client.stop()
        client.close()


def _inspect(client: KazooClient, base: str, hosts: str, *, asked_ms: int) -> ClusterInspection:
    client.ensure_path_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)
    before_ms = time.time_ns() // 1_000_000
    made = client.create_async(f"{base}/doctor-", b"", ephemeral=True, sequence=True).get(
        timeout=ANSWER_S
    )
    after_ms = time.time_ns() // 1_000_000
    stat = client.exists_async(made).get(timeout=ANSWER_S)
    client.delete_async(made).get(timeout=ANSWER_S)
    members: dict[str, Member] = {}
    unreadable = []
    for name in sorted(client.get_children_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)):
        try:
            members[name] = msgspec.json.decode(
                _read(client, f"{base}/{MEMBERS}/{name}"), type=Member
            )
        except msgspec.MsgspecError:
            unreadable.append(name)
    given_ms = int(client._session_timeout)
    clock_ms = max(before_ms - stat.ctime, stat.ctime - after_ms, 0)
    notes = []
    if given_ms != asked_ms:
        notes.append(
            f"the session timeout is {format_duration(given_ms)}, not {format_duration(asked_ms)}"
            " (coordinator.zookeeper.session_timeout): the server allows 2 to 20 of its tickTime"
        )
    if clock_ms > CLOCK_TOLERANCE_MS:
        notes.append(
            f"its clock and this machine's differ by {clock_ms} ms. Nothing depends on it, but "
            "one of them is wrong: check NTP on both"
        )
    return ClusterInspection(
        checked=f"{hosts}: a session was opened, and {base} can be written",
        notes=tuple(notes),
        members=members,
        unreadable=tuple(unreadable),
        roles=_roles(_read(client, f"{base}/{ROLES}")),
    )


def _read(client: KazooClient, path: str) -> bytes:
    try:
        data: bytes = client.get_async(path).get(timeout=ANSWER_S)[0]
    except NoNodeError:
        return b""
    return data


def _roles(data: bytes) -> Roles | None:
    try:
        return msgspec.json.decode(data, type=Roles) if data else None
    except msgspec.MsgspecError:
        return None
