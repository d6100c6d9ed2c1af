"""One session with ZooKeeper: its connection, its watches, and the data last read in it.

Watches only mark data as stale, and wake the caller. The calling thread does all reading, and every
request has a time limit. What kazoo or the system below it raises during a membership becomes
CoordinatorUnavailable in `translated`; `inspection` translates the errors of a client that does not
join."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat

from chronos.core.cluster.roles import (
    PROGRESS_EVERY_S,
    Member,
    Request,
    Roles,
)
from chronos.errors import CoordinatorFull, CoordinatorUnavailable

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
        # kazoo keeps every different watch of a node until the node changes.
        self._marks = {name: self._marking(name) for name in (MEMBERS, ROLES, REQUESTS)}
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
            # First the time: a reader without the lock must not see a new connection as an old one.
            self.since_s = time.monotonic()
            self.connected = state == KazooState.CONNECTED
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
            self.client.get_children_async(f"{self._base}/{name}", watch=self._marks[name])
        )
        return names

    def _read_roles(self) -> None:
        data, stat = self.answer(
            self.client.get_async(f"{self._base}/{ROLES}", watch=self._marks[ROLES])
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


@contextmanager
def translated() -> Iterator[None]:
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
