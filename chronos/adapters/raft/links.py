"""Connections to voters: one for the messages between two voters, one for the calls of a member."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress

import aiohttp
import msgspec

from chronos.adapters.raft.wire import (
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

PAUSE_S = 0.02
"""Pause after messages that were not taken."""


class Unanswered(Exception):
    """A voter gave no valid answer."""


async def post(session: aiohttp.ClientSession, url: str, to: str, seal: Seal, body: bytes, timeout_s: float) -> bytes:
    """Send one authenticated request and return its answer. Raises Unanswered."""
    signature = seal.request(to, body)
    try:
        async with session.post(
            url.rstrip("/") + PATH,
            data=body,
            headers={SIGNATURE: signature, "Content-Type": "application/msgpack"},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            answer = await response.read()
            if response.status == 401:
                raise Unanswered(f"{url} has another coordinator.secret, or serves another cluster or node")
            if response.status != 200:
                raise Unanswered(f"{url} answered with status {response.status}")
            if not is_same(response.headers.get(SIGNATURE, ""), seal.answer(signature, answer)):
                raise Unanswered(f"{url} does not know coordinator.secret")
            return answer
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unanswered(f"{url}: {str(error) or type(error).__name__}") from error


def open_session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A session for requests to voters."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True, limit=0))


class Link:
    """Sends the messages for one voter: one request at a time, and of each kind of message the last one only."""

    def __init__(
        self,
        to: str,
        url: str,
        seal: Seal,
        tls: ssl.SSLContext | None,
        received: Callable[[tuple[register.Message, ...]], None],
        unanswered: Callable[[str, tuple[register.Message, ...]], None],
        timeout_s: float,
    ) -> None:
        self._to = to
        self._url = url
        self._seal = seal
        self._unanswered = unanswered
        self._timeout_s = timeout_s
        self._outbox: dict[type, register.Message] = {}
        self._filled = asyncio.Event()
        self._session = open_session(tls)
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
            body = encode(Batch(messages))
            try:
                await post(self._session, self._url, self._to, self._seal, body, self._timeout_s)
            except Unanswered:
                self._unanswered(self._to, messages)
                await asyncio.sleep(PAUSE_S)


class Callers:
    """Calls of a member: finds the leader, and remembers it."""

    def __init__(self, peers: Mapping[str, str], seal: Seal, tls: ssl.SSLContext | None) -> None:
        self._peers = dict(peers)
        self._order = sorted(peers)
        self._seal = seal
        self._session = open_session(tls)
        self._leader = self._order[0]
        self.problem = ""
        """Why the last call had no answer."""

    async def ask(self, call: Call, timeout_s: float) -> Answer:
        """Return the answer of the voter that leads, as far as it is known. Raises Unanswered; the next call asks another one."""
        to = self._leader
        try:
            body = await post(self._session, self._peers[to], to, self._seal, encode(call), timeout_s)
            answer = decode_answer(body)
        except (Unanswered, msgspec.MsgspecError) as error:
            self.problem = str(error)
            self._next()
            raise Unanswered(self.problem) from error
        if isinstance(answer, NotLeader):
            self.problem = "the voters have no leader"
            if answer.leader in self._peers:
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
