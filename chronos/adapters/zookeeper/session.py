"""One session with ZooKeeper, through kazoo, and what was last read in it.

Watches only leave a mark. All reading is done by the thread that asks for it, and every question has a bound in time.
Only this file and `zookeeper`, which decides what a session is for, import kazoo.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, RolledBackError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat
from msgspec.structs import replace

from chronos.core.roles import Member, Request, Roles
from chronos.errors import CoordinatorUnavailable

log = structlog.get_logger("chronos.zookeeper")

CONNECT_S = 5.0
"""How long a new session may take to begin."""

ANSWER_S = 2.0
"""How long an answer is waited for; a healthy ensemble takes milliseconds."""

PROGRESS_EVERY_S = 2.0
"""How often roles are published of which nothing is new but the progress: it grows all the time, and a successor needs
it only to tell a replica that lacks something from one that is a moment behind."""

MEMBERS, ROLES, REQUESTS = "members", "roles", "requests"

# kazoo warns of every attempt at every server; here it is said once, when it changes.
KAZOO_LOG = logging.getLogger("chronos.zookeeper.kazoo")
KAZOO_LOG.setLevel(logging.ERROR)

T = TypeVar("T")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's own, which gives one server no more of the session's time than leaves some for the others.

    kazoo waits as long as the session lasts for a connection, and, where there is one server, for its first word: one
    that takes connections and says nothing, as while it starts, or behind a network that is cut, costs the session.
    """

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self._attempt_s = attempt_s

    def create_connection(self, *arguments: Any, timeout: float, **more: Any) -> Any:
        """Connect to one server."""
        return super().create_connection(*arguments, timeout=min(timeout, self._attempt_s), **more)

    def select(self, reading: list[Any], writing: list[Any], failing: list[Any], timeout: float) -> Any:
        """Wait for sockets; for one alone while the rest of what it says or takes is due."""
        if len(reading) + len(writing) == 1:
            timeout = min(timeout, self._attempt_s)
        return super().select(reading, writing, failing, timeout)


class Session:
    """One session with ZooKeeper, from its beginning to its end, and what was last read in it."""

    def __init__(self, settings: Mapping[str, Any], base: str, woken: threading.Event) -> None:
        self.connected = False
        """A server answers."""
        self.confirmed = False
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
        servers = 1 + settings["hosts"].count(",")
        self.client = KazooClient(handler=Handler(settings["timeout"] / (servers + 1)), **settings)
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

    def now_ms(self) -> int:
        """Epoch ms by the clock as it was when the session began: one that is set meanwhile must not make a member that
        has just come, or gone, one that did so an hour ago."""
        return self._ahead_ms + time.monotonic_ns() // 1_000_000

    def lose(self) -> None:
        """The session is not to be used any more."""
        self.lost, self.confirmed = True, False
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
                self.confirmed = False
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
            self.confirmed = self.connected and not self.lost and drops == self._drops

    def _children(self, name: str) -> list[str]:
        names: list[str] = self.answer(self.client.get_children_async(f"{self._base}/{name}", watch=self._mark(name)))
        return names

    def _read_roles(self) -> None:
        data, stat = self.answer(self.client.get_async(f"{self._base}/{ROLES}", watch=self._mark(ROLES)))
        roles = decoded(data, Roles) if data else None
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
        """The requests not yet answered, oldest first, by the paths of their znodes."""
        asked = {path: self.client.get_async(path) for path in self._request_paths()}
        found = {}
        for path, result in asked.items():
            with suppress(NoNodeError):
                # What cannot be read is answered like any other: by a refusal that people can see.
                found[path] = decoded(self.answer(result)[0], Request) or Request(kind="unreadable", node="-")
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


def decoded(data: bytes, kind: type[T]) -> T | None:
    """The value, or None for what is none of its kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None


def _decisions(roles: Roles) -> Roles:
    """The roles without the progress that is noted in them."""
    return replace(roles, shards={shard: replace(given, applied=0) for shard, given in roles.shards.items()})
