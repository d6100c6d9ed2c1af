"""Membership and the controller on ZooKeeper, through kazoo. The only file that imports it.

    <path>/<cluster>/members/<node>     ephemeral; a Member as JSON. The oldest of them is the controller.
    <path>/<cluster>/roles              Roles as JSON; written by the controller only, and only over the version it read
    <path>/<cluster>/requests/request-  Request as JSON, in sequence; deleted in the transaction that answers it

The controller is the member whose znode is the oldest: a queue for a lock, without znodes of its own. An older one
can go but none can come, so who is the oldest stays it for as long as its znode is there; and publishing is one
transaction that asks for that znode too. So a controller that was deposed, even one that does not know, writes nothing.

Watches only leave a mark. All reading is done by the thread that calls `wait`, `control` and `join`, every question
has a bound in time, and everything kazoo raises becomes CoordinatorUnavailable here and nowhere else.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from msgspec.structs import replace

from chronos.core.roles import REBALANCE_AFTER_MS, Member, Request, Roles, View
from chronos.errors import ConfigurationError, CoordinatorUnavailable, NodeIdTaken
from chronos.ports import Outlook

log = structlog.get_logger("chronos.zookeeper")

CONNECT_S = 5.0
"""How long a new session may take to begin."""

ANSWER_S = 2.0
"""How long an answer is waited for; a healthy ensemble takes milliseconds."""

CLOSE_S = 2.0
"""How long `leave` waits for the servers to end the session; after that they find out by themselves."""

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0}
"""kazoo's own longest pause between two attempts is an hour."""

PROGRESS_EVERY_S = 2.0
"""How often roles are published of which nothing is new but the progress: it grows all the time, and a successor needs
it only to tell a replica that lacks something from one that is a moment behind."""

MEMBERS, ROLES, REQUESTS = "members", "roles", "requests"

# kazoo warns of every attempt at every server; here it is said once, when it changes.
KAZOO_LOG = logging.getLogger("chronos.zookeeper.kazoo")
KAZOO_LOG.setLevel(logging.ERROR)

T = TypeVar("T")


class ZooKeeperCoordinator:
    """One node's place in a cluster. `look` and `request` may be called by any thread, the others by one."""

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
        """`authentication` is `none`, `digest` or `sasl`; `acl` is `open`, or `creator`: only who authenticated alike.

        Raises ConfigurationError for a file or a package that is missing. Connects to nobody: `join` does.
        """
        self._cluster = cluster
        self._node = node
        self._instance = instance
        self._shards = shards
        self._replication = replication
        self._session_timeout_s = session_timeout_s
        self._rebalance_after_ms = rebalance_after_ms
        self._base = f"{path.rstrip('/')}/{cluster}"
        self._settings: dict[str, Any] = {
            "hosts": hosts,
            "timeout": session_timeout_s,
            "connection_retry": RECONNECT,
            "logger": KAZOO_LOG,
            "default_acl": CREATOR_ALL_ACL if acl == "creator" else OPEN_ACL_UNSAFE,
        }
        _check(authentication, ca=ca, certfile=certfile, keyfile=keyfile)
        if authentication == "digest":
            self._settings["auth_data"] = [("digest", f"{username}:{password}")]
        elif authentication == "sasl":
            sasl = {"mechanism": "DIGEST-MD5", "username": username, "password": password}
            self._settings["sasl_options"] = sasl
        if tls:
            self._settings |= {"use_ssl": True, "ca": ca, "certfile": certfile, "keyfile": keyfile}
            self._settings["check_hostname"] = True
        self._woken = threading.Event()
        self._session: _Session | None = None

    # The verbs

    def join(self, member: Member) -> None:
        """Begin a session and take this node's place in it. Raises NodeIdTaken, CoordinatorUnavailable."""
        self._end_session()
        session = self._session = _Session(self._settings, self._base, self._woken)
        try:
            with _translated():
                session.begin()
                self._take_place(session, member)
                session.refresh()
        except BaseException:
            self._end_session()
            raise

    def report(self, member: Member) -> None:
        """Publish what this node is now. Raises CoordinatorUnavailable, also when the session is lost."""
        session = self._connected()
        try:
            with _translated():
                session.answer(session.client.set_async(session.member_path(self._node), msgspec.json.encode(member)))
        except CoordinatorUnavailable as error:
            if isinstance(error.__cause__, NoNodeError):
                session.lose()  # Somebody removed it: as after the end of a session, the place must be taken again.
            raise

    def look(self) -> Outlook:
        """What is known now, without asking anybody."""
        session = self._session
        if session is None or session.lost:
            return Outlook(roles=None, members={}, sure=False)
        return Outlook(roles=session.roles, members=session.members, sure=session.sure)

    def request(self, request: Request) -> None:
        """Leave a request to the controller. Raises CoordinatorUnavailable."""
        session = self._connected()
        with _translated():
            path = f"{self._base}/{REQUESTS}/request-"
            session.answer(session.client.create_async(path, msgspec.json.encode(request), sequence=True))

    def control(self, plan: Callable[[View], Roles]) -> bool:
        """If this node is the controller and sure of it: look, plan, and publish what changed; whether it is."""
        session = self._session
        if session is None or session.lost or not session.connected:
            return False
        with _translated():
            session.refresh()
            if not (session.sure and session.is_oldest(self._node)):
                return False
            requests = session.read_requests()
            view = self._view(session, tuple(requests.values()))
            roles = plan(view)
            if requests or session.is_news(roles):
                session.publish(roles, answered=list(requests), node=self._node)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the outlook may have changed; False after the time."""
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        session = self._session
        if session is not None and session.connected and not session.lost:
            # What cannot be read now stays marked, and is read by the next call.
            with suppress(CoordinatorUnavailable), _translated():
                session.refresh()
        return woken

    def leave(self) -> None:
        """Give the place and the session back; others need not wait for it to expire."""
        closing = self._end_session()
        if closing is not None:
            closing.join(CLOSE_S)

    # Within

    def _connected(self) -> "_Session":
        session = self._session
        if session is None or session.lost:
            raise CoordinatorUnavailable("the session with ZooKeeper is over; this node has to join again")
        if not session.connected:
            raise CoordinatorUnavailable(f"no ZooKeeper server of {self._settings['hosts']} answers")
        return session

    def _end_session(self) -> threading.Thread | None:
        session, self._session = self._session, None
        return None if session is None else session.end()

    def _take_place(self, session: "_Session", member: Member) -> None:
        """Make this node's znode; in one transaction with the removal of the one its own last session left.

        So that nobody ever sees this node gone, and its shards stay where they are.
        """
        path, data = session.member_path(self._node), msgspec.json.encode(member)
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
            other = _decoded(stored, Member)
            if other is not None and other.instance == self._instance:
                if session.replace_member(path, data, stat.version):
                    return
            elif (remaining_s := deadline - time.monotonic()) > 0:
                gone.wait(remaining_s)
            else:
                where = "another process" if other is None else f"the node at {other.address}"
                raise NodeIdTaken(
                    f"node.id {self._node} is taken: {where} serves cluster {self._cluster} under it from another data "
                    "directory; give this node an id of its own, or stop the other one"
                )

    def _view(self, session: "_Session", requests: tuple[Request, ...]) -> View:
        roles = session.roles or Roles()
        if (roles.controller, roles.controller_epoch) != (self._node, session.epoch):
            session.epoch = roles.controller_epoch + 1
        return View(
            now_ms=_now_ms(),
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


class _Session:
    """One session with ZooKeeper, from its beginning to its end, and what was last read in it."""

    def __init__(self, settings: Mapping[str, Any], base: str, woken: threading.Event) -> None:
        self.connected = False
        """A server answers."""
        self.sure = False
        """Everything was read since it last did not."""
        self.lost = False
        """The session is over, and with it this node's znode."""
        self.roles: Roles | None = None
        self.members: Mapping[str, Member] = {}
        self.since_ms: Mapping[str, int] = {}
        """For each member, when its znode was first seen."""
        self.epoch = 0
        """Of this session as the controller; 0 before it is."""
        self._stats: dict[str, ZnodeStat] = {}
        self._decoded: dict[str, Member] = {}
        self._seen_ms: dict[str, tuple[int, int]] = {}
        self._roles_version = 0
        self._published_s = 0.0
        self._requests: list[str] = []
        self._base = base
        self._woken = woken
        self._lock = threading.Lock()
        self._stale = {MEMBERS, ROLES, REQUESTS}
        self._drops = 0
        self.client = KazooClient(**settings)
        self.client.add_listener(self._on_state)

    def begin(self) -> None:
        """Connect, and make the znodes that stay."""
        connected = self.client.start_async()
        if not connected.wait(CONNECT_S):
            raise CoordinatorUnavailable(f"no ZooKeeper server answers within {CONNECT_S:g} s ({self._hosts()})")
        self.connected = True
        for name in (MEMBERS, REQUESTS, ROLES):
            self.answer(self.client.ensure_path_async(f"{self._base}/{name}"))

    def end(self) -> threading.Thread:
        """Give the session back. kazoo may wait ten seconds for a server that does not answer: not here."""
        self.lose()
        closing = threading.Thread(target=self._close, name="zookeeper-close", daemon=True)
        closing.start()
        return closing

    def lose(self) -> None:
        """The session is not to be used any more."""
        self.lost, self.sure = True, False
        self._woken.set()

    def answer(self, result: IAsyncResult) -> Any:
        """What a question was answered, within ANSWER_S; raises what kazoo raises.

        kazoo takes every request it sends for a heartbeat: with one in each of its periods it never notices that nothing
        is answered, and the session runs out on a server that hangs (measured). So the connection is ended here, and
        kazoo goes to another server with the same session.
        """
        try:
            return result.get(timeout=ANSWER_S)
        except KazooTimeoutError:
            connection = self.client._connection._socket
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            raise

    def member_path(self, node: str) -> str:
        """The znode of a member."""
        return f"{self._base}/{MEMBERS}/{node}"

    def replace_member(self, path: str, data: bytes, version: int) -> bool:
        """Put this session's znode in the place of another one's; whether that was still the one read."""
        change = self.client.transaction()
        change.delete(path, version)
        change.create(path, data, ephemeral=True)
        return not any(isinstance(result, Exception) for result in self.answer(change.commit_async()))

    # What kazoo's threads say

    def _on_state(self, state: str) -> None:
        with self._lock:
            self.connected = state == KazooState.CONNECTED
            if not self.connected:
                self.sure = False
                self._drops += 1
                # Watches end with a connection.
                self._stale |= {MEMBERS, ROLES, REQUESTS, *map(self.member_path, self._stats)}
            ended = self.lost
            if state == KazooState.LOST:
                self.lost = True
        self._woken.set()
        if not ended:
            log.log(logging.INFO if self.connected else logging.WARNING, "zookeeper session", state=state.lower())

    def _mark(self, what: str) -> Callable[[WatchedEvent], None]:
        def mark(_: WatchedEvent) -> None:
            with self._lock:
                self._stale.add(what)
            self._woken.set()

        return mark

    # Reading

    def refresh(self) -> None:
        """Read what is marked, and watch it again."""
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
            self.sure = self.connected and not self.lost and drops == self._drops

    def _children(self, name: str) -> list[str]:
        names: list[str] = self.answer(self.client.get_children_async(f"{self._base}/{name}", watch=self._mark(name)))
        return names

    def _read_roles(self) -> None:
        data, stat = self.answer(self.client.get_async(f"{self._base}/{ROLES}", watch=self._mark(ROLES)))
        roles = _decoded(data, Roles) if data else None
        if data and roles is None:
            raise CoordinatorUnavailable(f"{self._base}/{ROLES} in ZooKeeper holds what this version cannot read")
        self.roles, self._roles_version = roles, stat.version

    def _read_members(self, stale: set[str]) -> None:
        names = set(self._children(MEMBERS)) if MEMBERS in stale else set(self._stats)
        new = {name for name in names if name not in self._stats or self.member_path(name) in stale}
        asked = {
            name: self.client.get_async(self.member_path(name), watch=self._mark(self.member_path(name)))
            for name in sorted(new)
        }
        for name in set(self._stats) - names:
            self._forget(name)
        for name, result in asked.items():
            try:
                data, stat = self.answer(result)
            except NoNodeError:  # It went while we asked; its parent is marked by that.
                self._forget(name)
                continue
            self._stats[name] = stat
            member = _decoded(data, Member)
            if member is None:
                log.warning("member of another version ignored", node=name)
                self._decoded.pop(name, None)
            else:
                self._decoded[name] = member
            if self._seen_ms.get(name, (0, 0))[0] != stat.czxid:
                self._seen_ms[name] = (stat.czxid, _now_ms())
        self.members = dict(self._decoded)
        self.since_ms = {name: seen_ms for name, (_, seen_ms) in self._seen_ms.items()}

    def _forget(self, name: str) -> None:
        for known in (self._stats, self._decoded, self._seen_ms):
            known.pop(name, None)

    def read_requests(self) -> dict[str, Request]:
        """The requests not yet answered, oldest first, by the paths of their znodes."""
        asked = {path: self.client.get_async(path) for path in self._request_paths()}
        found = {}
        for path, result in asked.items():
            with suppress(NoNodeError):
                # What cannot be read is answered like any other: by a refusal that people can see.
                found[path] = _decoded(self.answer(result)[0], Request) or Request(kind="unreadable", node="-")
        return found

    def _request_paths(self) -> list[str]:
        return [f"{self._base}/{REQUESTS}/{name}" for name in self._requests]

    # The controller

    def is_oldest(self, node: str) -> bool:
        """Whether this session made the oldest of the members' znodes."""
        own = self._stats.get(node)
        if own is None or self.client.client_id is None or own.ephemeralOwner != self.client.client_id[0]:
            return False
        return all(own.czxid <= stat.czxid for stat in self._stats.values())

    def is_news(self, roles: Roles) -> bool:
        """Whether the roles are worth publishing now."""
        if roles == self.roles:
            return False
        quiet_s = time.monotonic() - self._published_s
        return quiet_s >= PROGRESS_EVERY_S or self.roles is None or _decisions(roles) != _decisions(self.roles)

    def publish(self, roles: Roles, *, answered: list[str], node: str) -> None:
        """Write the roles over those that were read, and remove the requests: all, or nothing."""
        change = self.client.transaction()
        change.check(self.member_path(node), -1)
        change.set_data(f"{self._base}/{ROLES}", msgspec.json.encode(roles), version=self._roles_version)
        for path in answered:
            change.delete(path)
        try:
            results = self.answer(change.commit_async())
        finally:
            # Read again what was written, also when it is not known whether it was.
            with self._lock:
                self._stale |= {ROLES, REQUESTS}
        refused = [result for result in results if isinstance(result, Exception)]
        if refused:
            cause = next((error for error in refused if not isinstance(error, RolledBackError)), refused[0])
            with self._lock:
                self._stale.add(MEMBERS)
            self._woken.set()
            log.info("roles not published, they changed meanwhile", cause=type(cause).__name__)
            return
        self._roles_version = results[1].version
        self.roles, self._published_s = roles, time.monotonic()
        self._requests = [name for name in self._requests if f"{self._base}/{REQUESTS}/{name}" not in answered]

    def _hosts(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.client.hosts)

    def _close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            # Nobody waits for it, and the servers end the session by themselves in its time.
            log.info("session not closed", why=str(error))


def _check(authentication: str, **files: str | None) -> None:
    """What kazoo would find out only in a thread of its own, where nobody hears of it."""
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
        raise CoordinatorUnavailable(f"ZooKeeper did not do what it was asked: {reason}") from error


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """The value, or None for what is none of its kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None


def _decisions(roles: Roles) -> Roles:
    """The roles without the progress that is noted in them."""
    return replace(roles, shards={shard: replace(given, applied=0) for shard, given in roles.shards.items()})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
