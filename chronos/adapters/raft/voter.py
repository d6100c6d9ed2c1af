"""A voter: runs the election and the register of `core.cluster.raft`, keeps its file, and serves
members and voters over HTTP.

Everything runs in one event loop; only the writes of the file have a thread.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct

from chronos.adapters.clock import SystemClock
from chronos.adapters.disk import replace_file
from chronos.adapters.raft.wire import (
    BODY_BYTES_MAX,
    CHALLENGE,
    PATH,
    REGISTER_BYTES_MAX,
    ROLES_BYTES_MAX,
    SIGNATURE,
    Answer,
    Ask,
    Batch,
    Call,
    Challenges,
    Incoming,
    Inspect,
    Join,
    Leave,
    Link,
    NotLeader,
    NotRegistered,
    Publish,
    Refused,
    Report,
    Signer,
    StateUpdate,
    Taken,
    TooLarge,
    decode_content,
    decode_incoming,
    encode,
    encode_content,
)
from chronos.core.cluster.raft import register
from chronos.core.cluster.raft.elector import Elector
from chronos.core.cluster.raft.register import Disk
from chronos.core.cluster.raft.sessions import Content, Sessions
from chronos.core.cluster.raft.values import (
    BecameCandidate,
    BecameFollower,
    BecameLeader,
    ElectionTiming,
    LogEnd,
    Role,
    Tick,
    Transfer,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from chronos.core.cluster.roles import Request, Roles
from chronos.core.cluster.timing import Timing
from chronos.errors import ConfigurationError, Stop
from chronos.ports import steady_ms

FORMAT = 1


class _File(Struct, frozen=True, kw_only=True):
    format: int
    node: str
    disk: Disk


def read_file(path: Path, node: str) -> Disk:
    """Return the content of the file; an empty one if there is none yet. Raises Stop if it cannot
    be read."""
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return Disk()
    except (OSError, msgspec.MsgspecError) as error:
        raise Stop(
            f"{path} cannot be read ({error}); it holds the vote of this node: restore it, or "
            "remove it"
        ) from None
    if found.format != FORMAT or found.node != node:
        raise Stop(
            f"{path} is of node {found.node} (format {found.format}), and this is node {node}"
        )
    return found.disk


def write_file(path: Path, node: str, disk: Disk) -> None:
    """Replace the file durably. Raises OSError."""
    replace_file(path, msgspec.msgpack.encode(_File(format=FORMAT, node=node, disk=disk)))


CONNECTIONS_MAX = 250
"""Most connections: each member has one or two to the leader, and each voter one to every other."""

HANDSHAKE_S = 5.0
"""How long a new connection may take to negotiate TLS."""


class _Request(web.BaseRequest):
    """A request whose answer does not name the library and its version: they help an attacker
    only."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> _Request:
    return _Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


class BoundedServer(web.Server):
    """A server with at most CONNECTIONS_MAX connections. At the bound the oldest one without a
    valid request is closed for a new one."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, access_log=None, lingering_time=0, request_factory=_request)
        self._known: set[web.RequestHandler] = set()
        self._unknown: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections without a valid request so far, oldest first."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._known) + len(self._unknown)

    def keep(self, request: web.BaseRequest) -> None:
        """The connection of this request belongs to a node of the cluster."""
        if self._unknown.pop(request.protocol, None) is not None:
            self._known.add(request.protocol)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unknown[handler] = transport
        if self.count > CONNECTIONS_MAX:
            self._unknown.pop(next(iter(self._unknown))).abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._known.discard(handler)
        self._unknown.pop(handler, None)


async def read_body(request: web.BaseRequest) -> bytes | None:
    """Return the content of a request; None if it is too large."""
    content = bytearray()
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return None
    async for part in request.content.iter_any():
        content += part
        if len(content) > BODY_BYTES_MAX:
            return None
    return bytes(content)


log = structlog.get_logger("chronos.raft")

RENEW_S = 1.0
"""Time between two looks for a new certificate."""

COMMIT_S = 2.0
"""Longest wait for a quorum to write a value."""

WRITE_AGAIN_S = 0.5
"""Pause after a write of the file that failed."""

TRANSFER_S = 1.0
"""How long a leader that stops waits for another voter to lead."""

ANSWER_S = 1.0
"""How long a voter that stops goes on with requests."""


def election_timing(timing: Timing) -> ElectionTiming:
    """The intervals of the election; with 2 s and 6 s they are DLedger's."""
    heartbeat_ms = timing.heartbeat_ms
    return ElectionTiming(
        tick_ms=min(10, heartbeat_ms // 2),
        heartbeat_ms=heartbeat_ms,
        heartbeats_missed_max=max(1, timing.timeout_ms // heartbeat_ms),
        vote_min_ms=min(300, heartbeat_ms // 2),
        vote_max_ms=min(1_000, 2 * heartbeat_ms),
    )


class Voting(Struct, frozen=True, kw_only=True):
    """The settings of the voter of this node."""

    host: str
    port: int
    path: Path
    tls: Callable[[], ssl.SSLContext | None] | None = None
    """The context for a new connection to it; None: no TLS."""


class Voter:
    """One voter, from `start` to `stop`."""

    def __init__(
        self,
        node: str,
        peers: Mapping[str, str],
        voting: Voting,
        *,
        signer: Signer,
        timing: Timing,
        client_tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`peers`: the URLs of all voters by name. `client_tls`: the context for a new connection
        from it; None: no TLS."""
        self.timing = election_timing(timing)
        self._node = node
        self._peers = dict(peers)
        self._address = voting.host, voting.port
        self._path = voting.path
        self._signer = signer
        self._timeout_ms = timing.timeout_ms
        self._clock = SystemClock()
        self._tls = voting.tls, client_tls
        self._voter = register.RegisterVoter(
            Elector(node=node, peers=tuple(sorted(peers)), timing=self.timing)
        )
        self.sessions = Sessions(timing.timeout_ms, peers)
        self._content: tuple[LogEnd, Content] = (LogEnd(), Content())
        self._previous = ""
        self._links: dict[str, Link] = {}
        self._waiters: list[tuple[LogEnd, asyncio.Future[None]]] = []
        self._unwritten: register.Disk | None = None
        self._writing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="raft-file")
        self._timer: asyncio.TimerHandle | None = None
        self._challenges = Challenges(time.monotonic())
        self._server: BoundedServer | None = None
        self._listening: list[asyncio.Server] = []
        self._renewing: asyncio.Task[None] | None = None
        self._stopped = False
        """It was stopped, or an error has ended it."""

    @property
    def leads(self) -> bool:
        """True if this voter leads, and a quorum has confirmed that lately."""
        fresh_ms = self._timeout_ms * 3 // 4
        return (
            not self._stopped
            and self._voter.leads
            and _now_ms() - self._voter.elector.kept_ms <= fresh_ms
        )

    @property
    def term(self) -> int:
        """The term it is in."""
        return self._voter.elector.term

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._server is None else self._server.count

    @property
    def requests(self) -> tuple[Request, ...]:
        """Requests without an answer."""
        return tuple(request for _, request in self._latest().requests)

    async def start(self) -> None:
        """Read the file, listen, and take part. Raises Stop and ConfigurationError."""
        disk = read_file(self._path, self._node)
        server_tls, client_tls = self._tls
        self._links = {
            peer: Link(peer, url, self._signer, client_tls, self._unanswered, self._link_timeout_s)
            for peer, url in self._peers.items()
            if peer != self._node
        }
        host, port = self._address
        self._server = BoundedServer(self._handle)
        context = None if server_tls is None else server_tls()
        try:
            self._listening = [
                await asyncio.get_running_loop().create_server(
                    self._server, host, port, **_options(context), reuse_address=True
                )
            ]
        except OSError as error:
            await self.stop()
            raise ConfigurationError(
                [
                    f"coordinator.raft.peers: cannot listen on {host}:{port}: "
                    f"{error.strerror or error}"
                ]
            ) from None
        if context is not None:
            assert server_tls is not None
            self._renewing = asyncio.create_task(self._renew(server_tls, context))
        self._give(register.Begin(disk))

    async def _renew(
        self, tls: Callable[[], ssl.SSLContext | None], context: ssl.SSLContext
    ) -> None:
        """Accept connections with a new certificate; the sockets stay open, so that none is
        refused."""
        while True:
            await asyncio.sleep(RENEW_S)
            current = tls()
            if current is None or current is context:
                continue
            try:
                renewed = await self._listen_again(current)
            except OSError as error:
                log.warning("certificate of the voter not renewed", node=self._node, why=str(error))
                continue
            context = current
            for server in self._listening:
                server.close()
            self._listening = renewed

    async def _listen_again(self, context: ssl.SSLContext) -> list[asyncio.Server]:
        """Listen on the same sockets with another context. Raises OSError, and then nothing has
        changed."""
        assert self._server is not None
        renewed: list[asyncio.Server] = []
        try:
            for sock in [sock for server in self._listening for sock in server.sockets]:
                renewed.append(
                    await asyncio.get_running_loop().create_server(
                        self._server, sock=sock.dup(), **_options(context)
                    )
                )
        except OSError:
            for server in renewed:
                server.close()
            raise
        return renewed

    async def stop(self) -> None:
        """Hand the leadership over, and end."""
        if self._voter.leads and not self._stopped:
            await self._hand_over()
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiters()
        for link in self._links.values():
            await link.close()
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for listening in self._listening:
            listening.close()
        if self._server is not None:
            await self._server.shutdown(ANSWER_S)
        await asyncio.to_thread(self._writer.shutdown)

    async def _hand_over(self) -> None:
        elector = self._voter.elector
        alive_ms = _now_ms() - 2 * self.timing.heartbeat_ms
        ends = [(end, peer) for peer, (at_ms, end) in elector.ends.items() if at_ms >= alive_ms]
        if ends:
            self._give(Transfer(transferee=max(ends)[1], term=elector.term))
            deadline_s = time.monotonic() + TRANSFER_S
            while elector.role is Role.LEADER and time.monotonic() < deadline_s:
                await asyncio.sleep(0.01)

    @property
    def _link_timeout_s(self) -> float:
        """How long a voter may take to answer: a slow one must not lose the messages, a frozen one
        only holds up its own."""
        return self._timeout_ms / 2_000

    # ----------------------------------------------------------------------------------- the driver

    def _unanswered(self, peer: str, messages: tuple[register.Message, ...]) -> None:
        """A voter did not take these messages: a vote need not wait for it."""
        for request in messages:
            votes = self._voter.elector.votes
            if isinstance(request, VoteRequest) and votes is not None and peer not in votes:
                self._give(
                    VoteResponse(
                        sender=peer,
                        to=self._node,
                        incarnation=request.sender.number,
                        term=request.term,
                        round=request.round,
                        result=VoteResult.UNKNOWN,
                    )
                )

    def _give(self, event: register.Event) -> None:
        """Give the voter an event, and carry its effects out."""
        if self._stopped:
            return
        try:
            self._act(self._voter.step(event, _now_ms()))
        except Exception as error:
            # It is silent from now on, as after a crash; the other voters go on.
            self._stopped = True
            log.exception("voter ended", node=self._node, why=str(error))
            self._fail_waiters()
            return
        if self._voter.elector.role is Role.LEADER:
            self.sessions.tick(_now_ms())
        self._schedule()

    def _act(self, effects: list[register.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, register.StoreEffect):
                self._store(effect.disk)
            elif isinstance(effect, register.Committed):
                self._resolve_waiters(effect.entry.stamp)
            elif isinstance(effect, BecameLeader):
                log.info("leads the voters", node=self._node, term=effect.term)
                self.sessions.begin(effect.term, _now_ms(), self._previous)
            elif isinstance(effect, BecameFollower):
                self._previous = effect.leader.node
                log.info(
                    "follows a voter", node=self._node, leader=effect.leader.node, term=effect.term
                )
                self._fail_waiters()
            elif isinstance(effect, BecameCandidate):
                self._fail_waiters()
            elif isinstance(effect, register.Message):
                self._send(effect)

    def _send(self, message: register.Message) -> None:
        """Send a message to another voter; one to any other node is an answer that no node waits
        for."""
        link = self._links.get(message.to)
        if link is not None:
            link.send(message)

    def _schedule(self) -> None:
        wake_ms = self._voter.elector.wake_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms is not None:
            wait_s = max(0.001, (wake_ms - _now_ms()) / 1_000)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._give, Tick())

    def _store(self, disk: register.Disk) -> None:
        self._unwritten = disk
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write the last state until there is no later one; nothing is told of a write that
        failed."""
        loop = asyncio.get_running_loop()
        while (disk := self._unwritten) is not None:
            self._unwritten = None
            try:
                await loop.run_in_executor(self._writer, write_file, self._path, self._node, disk)
            except Exception as error:
                log.error("vote not written", path=str(self._path), why=str(error) or repr(error))
                if self._unwritten is None:
                    self._unwritten = disk
                await asyncio.sleep(WRITE_AGAIN_S)
                continue
            self._give(register.Stored(disk))

    # ----------------------------------------------------------------------------------- the server

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Check the sender by the header; without the secret nothing is read and nothing is
        changed."""
        if request.method != "POST" or request.path != PATH:
            return web.Response(status=404)
        now_s = time.monotonic()
        header = request.headers.get(SIGNATURE, "")
        signature = self._signer.read(self._node, header)
        if signature is None or not self._challenges.take(signature, now_s):
            return self._unauthorized(now_s)
        assert self._server is not None
        self._server.keep(request)
        body = await read_body(request)
        if body is None:
            return web.Response(status=413)
        if not signature.is_of(body):
            return self._unauthorized(now_s)
        try:
            message = decode_incoming(body)
        except msgspec.MsgspecError:
            return web.Response(status=400)
        answer = await self._answer(message)
        if answer is None:
            return web.Response(status=503)
        headers = {
            SIGNATURE: self._signer.answer(header, answer),
            CHALLENGE: self._challenges.current(time.monotonic()),
        }
        return web.Response(body=answer, headers=headers)

    def _unauthorized(self, now_s: float) -> web.Response:
        return web.Response(status=401, headers={CHALLENGE: self._challenges.current(now_s)})

    async def _answer(self, message: Incoming) -> bytes | None:
        """Return the answer to messages of voters or to a call; None if the voter has ended."""
        if isinstance(message, Batch):
            self._take(message)
            answer = b""
        else:
            answer = encode(await self._serve(message))
        return None if self._stopped else answer

    def _take(self, batch: Batch) -> None:
        """Take the messages of other voters, and ignore those of any other node."""
        for message in batch.messages:
            sender = message.sender if isinstance(message.sender, str) else message.sender.node
            if sender in self._links:
                self._give(message)
            else:
                log.warning("message of a node that is not a voter", node=self._node, sender=sender)

    async def _serve(self, call: Call) -> Answer:
        self._give(Tick())
        if not self.leads:
            leader = self._voter.elector.leader
            return NotLeader(
                leader="" if leader is None or leader.node == self._node else leader.node
            )
        sessions, wall_ms = self.sessions, steady_ms(self._clock)
        if isinstance(call, Join):
            if sessions.is_ended(call.incarnation):
                return NotRegistered()
            holder = sessions.join(call.incarnation, call.member, _now_ms(), wall_ms)
            return Taken(holder=holder) if holder is not None else self._update(call.member.node)
        if isinstance(call, Report):
            if not sessions.report(
                call.incarnation, call.registration_number, call.member, _now_ms(), wall_ms
            ):
                return NotRegistered()
            return self._update(call.member.node, call)
        if isinstance(call, Leave):
            sessions.leave(call.incarnation)
            return self._update("")
        if isinstance(call, Inspect):
            return self._update("")
        return await self._change(call)

    async def _change(self, call: Ask | Publish) -> Answer:
        """Change the content of the register, and wait until a quorum has it."""
        content = self._latest()
        if isinstance(call, Ask):
            changed = content.asked(call.id, call.request)
            return await (
                self._told() if changed is None else self._offer(changed, REGISTER_BYTES_MAX)
            )
        controller = self.sessions.controller
        if self.sessions.is_ended(call.incarnation):
            return NotRegistered()
        if (
            not self._is_settled()
            or self.sessions.incarnation(controller) != call.incarnation
            or call.version != content.version
        ):
            return Refused()
        return await self.publish(call.roles, call.answered)

    async def publish(self, roles: Roles, answered: tuple[str, ...] = ()) -> Answer:
        """Publish roles over the last ones."""
        return await self._offer(self._latest().published(roles, answered), ROLES_BYTES_MAX)

    async def _offer(self, content: Content, bytes_max: int) -> Answer:
        value = encode_content(content)
        if len(value) > bytes_max:
            # The other voters would refuse it, and every change after it.
            return TooLarge(bytes=len(value), bytes_max=bytes_max)
        self._give(register.Offer(value))
        return await self._told()

    async def _told(self) -> Answer:
        """Return the news once a quorum has the last content, whichever request wrote it."""
        latest = self._voter.latest
        if not self._voter.leads or latest is None:
            return NotLeader()
        if self._voter.committed is not latest:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((latest.stamp, waiter))
            try:
                async with asyncio.timeout(COMMIT_S):
                    await waiter
            except (TimeoutError, _NotCommitted):
                return NotLeader()
        return self._update("")

    def _latest(self) -> Content:
        """The content that the next change is made from."""
        latest = self._voter.latest
        assert latest is not None
        if self._content[0] != latest.stamp:
            self._content = latest.stamp, decode_content(latest.value)
        return self._content[1]

    def _is_settled(self) -> bool:
        return self.sessions.settled(self._latest().roles, _now_ms())

    def _update(self, node: str, known: Report | None = None) -> StateUpdate:
        """The current state, as far as a quorum has it."""
        sessions, committed = self.sessions, self._voter.committed
        assert committed is not None
        is_settled = self._is_settled()
        tell_members = is_settled and (known is None or known.revision != sessions.revision)
        tell_content = known is None or known.stamp != committed.stamp
        return StateUpdate(
            leader=self._node,
            registration_number=sessions.registration_number(node),
            settled=is_settled,
            controller=sessions.controller if is_settled else "",
            revision=sessions.revision,
            members=sessions.members if tell_members else None,
            since_ms=sessions.since_ms if tell_members else {},
            stamp=committed.stamp,
            content=decode_content(committed.value) if tell_content else None,
        )

    def _resolve_waiters(self, stamp: LogEnd) -> None:
        for of, waiter in self._waiters:
            if of <= stamp and not waiter.done():
                waiter.set_result(None)
        self._waiters = [each for each in self._waiters if not each[1].done()]

    def _fail_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(_NotCommitted())


class _NotCommitted(Exception):
    """This node no longer leads, and does not know whether a value was committed."""


def _options(context: ssl.SSLContext | None) -> dict[str, Any]:
    """The options of a listening socket with this context."""
    return {"ssl": context, "ssl_handshake_timeout": None if context is None else HANDSHAKE_S}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
