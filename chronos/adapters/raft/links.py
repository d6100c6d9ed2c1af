"""Connections to voters: one for the messages between two voters, one for the calls of a member."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress

import aiohttp
import msgspec
import structlog

from chronos.adapters.raft.wire import (
    CHALLENGE,
    PATH,
    SIGNATURE,
    Answer,
    Batch,
    Call,
    NotLeader,
    Seal,
    decode_answer,
    encode,
    is_same,
)
from chronos.core.raft import register

log = structlog.get_logger("chronos.raft")

PAUSE_S = 0.02
"""Pause after messages that were not taken."""


class Unanswered(Exception):
    """A voter gave no valid answer."""


class VoterClient:
    """Authenticated requests to one voter."""

    def __init__(
        self, session: aiohttp.ClientSession, to: str, url: str, seal: Seal, tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        """`tls`: the context for a new connection; None: the authorities of the system."""
        self._session = session
        self._tls = tls
        self._to = to
        self._url = url.rstrip("/") + PATH
        self._name = url
        self._seal = seal
        self._challenge = ""
        """The last one that the voter gave; empty: to be asked for."""

    async def post(self, body: bytes, timeout_s: float) -> bytes:
        """Send one request and return its answer. Raises Unanswered."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._post_once(body)
                if answer is None:
                    # The voter was started again, or the challenge is old.
                    self._challenge = ""
                    answer = await self._post_once(body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._challenge = ""
            raise Unanswered(f"{self._name}: {str(error) or type(error).__name__}") from error
        if answer is None:
            raise Unanswered(
                f"{self._name} has another coordinator.secret or other names in coordinator.raft.peers, or serves another cluster or node"
            )
        return answer

    async def _post_once(self, body: bytes) -> bytes | None:
        """Return the answer; None if the voter does not take the signature."""
        if not self._challenge:
            async with self._session.post(self._url, ssl=self._context(), allow_redirects=False) as response:
                if response.status != 401:
                    raise Unanswered(f"{self._name} answered with status {response.status}")
                self._challenge = response.headers.get(CHALLENGE, "")
        header = self._seal.request(self._to, self._challenge, body)
        headers = {SIGNATURE: header, "Content-Type": "application/msgpack"}
        async with self._session.post(
            self._url, data=body, headers=headers, ssl=self._context(), allow_redirects=False
        ) as response:
            answer = await response.read()
            if response.status == 401:
                return None
            if response.status != 200:
                raise Unanswered(f"{self._name} answered with status {response.status}")
            if not is_same(response.headers.get(SIGNATURE, ""), self._seal.answer(header, answer)):
                raise Unanswered(f"{self._name} does not know coordinator.secret")
            self._challenge = response.headers.get(CHALLENGE, "")
            return answer

    def _context(self) -> ssl.SSLContext | bool:
        return True if self._tls is None else self._tls()


def open_session() -> aiohttp.ClientSession:
    """A session for requests to voters, each of which has a time limit of its own."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


class Link:
    """Sends the messages for one voter: one request at a time, and of each kind of message the last one only."""

    def __init__(
        self,
        to: str,
        url: str,
        seal: Seal,
        tls: Callable[[], ssl.SSLContext] | None,
        unanswered: Callable[[str, tuple[register.Message, ...]], None],
        timeout_s: float,
    ) -> None:
        self._to = to
        self._unanswered = unanswered
        self._timeout_s = timeout_s
        self._outbox: dict[type, register.Message] = {}
        self._filled = asyncio.Event()
        self._session = open_session()
        self._client = VoterClient(self._session, to, url, seal, tls)
        self._task = asyncio.create_task(self._run())

    def send(self, message: register.Message) -> None:
        """Send a message, or drop it if the voter does not take messages."""
        self._outbox[type(message)] = message
        self._filled.set()

    async def close(self) -> None:
        """End at once."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._session.close()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            messages = tuple(self._outbox.values())
            self._outbox.clear()
            try:
                await self._client.post(encode(Batch(messages)), self._timeout_s)
            except Exception as error:
                # Without this task the voter would never get a message again.
                if not isinstance(error, Unanswered):
                    log.exception("messages to a voter not sent", voter=self._to, why=repr(error))
                self._unanswered(self._to, messages)
                await asyncio.sleep(PAUSE_S)


class Callers:
    """Calls of a member: finds the leader, and remembers it."""

    def __init__(self, peers: Mapping[str, str], seal: Seal, tls: Callable[[], ssl.SSLContext] | None) -> None:
        self._order = sorted(peers)
        self._session = open_session()
        self._clients = {to: VoterClient(self._session, to, url, seal, tls) for to, url in peers.items()}
        self._leader = self._order[0]
        self.problem = ""
        """Why the last call had no answer."""

    async def ask(self, call: Call, timeout_s: float) -> Answer:
        """Return the answer of the voter that leads, as far as it is known. Raises Unanswered; the next call asks another one."""
        try:
            answer = decode_answer(await self._clients[self._leader].post(encode(call), timeout_s))
        except (Unanswered, msgspec.MsgspecError) as error:
            self.problem = str(error)
            self._next()
            raise Unanswered(self.problem) from error
        if isinstance(answer, NotLeader):
            self.problem = "the voters have no leader"
            if answer.leader in self._clients:
                self._leader = answer.leader
            else:
                self._next()
            raise Unanswered(self.problem)
        return answer

    def _next(self) -> None:
        self._leader = self._order[(self._order.index(self._leader) + 1) % len(self._order)]

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
