"""Whole shards for other nodes: a checkpoint as a stream, and the digest by which two replicas are compared."""

import asyncio
import hmac
from contextlib import suppress

import structlog
from aiohttp import web

from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, no_shard
from chronos.admin.schemas import DigestInfo
from chronos.core.codec import FRESH
from chronos.core.timefmt import format_time
from chronos.node.driver import ShardDriver

log = structlog.get_logger("chronos.http")

STREAMS_MAX = 2
"""Checkpoints sent at a time: each reads a whole store, and this node has other work."""

KNOWN_S = 2.0
"""How long to wait to hear of a member that has just come; the coordinator tells within milliseconds."""

LOOK_S = 0.05

SENT_S = 60.0
"""How long the other node may take for a megabyte; then it is not there any more."""


class ReplicaTransfer:
    """The handlers of `/v1/shards/{shard}/checkpoint` and `/v1/shards/{shard}/digest`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = 0
        self._digesting = asyncio.Lock()

    async def checkpoint(self, call: Call) -> web.StreamResponse:
        """A checkpoint of a shard, made now; only for members of the cluster, because it holds every payload."""
        shard = self._shard(call)
        await self._check_member(call.request)
        if self._streams >= STREAMS_MAX:
            raise ProblemError(503, "busy-copying", f"this node sends {STREAMS_MAX} checkpoints already")
        self._streams += 1
        try:
            return await self._send(call.request, shard)
        finally:
            self._streams -= 1

    async def _send(self, request: web.Request, shard: ShardDriver) -> web.StreamResponse:
        context = self._context
        chunks = context.node.copier.stream(shard.number, shard.store, context.now_ms())
        response = web.StreamResponse(headers={"Content-Type": "application/x-tar"})
        try:
            # Whatever makes it impossible shows before the first byte, as a problem like any other.
            chunk = await context.in_thread(next, chunks, None)
            await response.prepare(request)
            while chunk is not None:
                if context.stopping.is_set():
                    raise ConnectionAbortedError("this node is stopping")
                async with asyncio.timeout(SENT_S):
                    await response.write(chunk)
                chunk = await context.in_thread(next, chunks, None)
            await response.write_eof()
        except BaseException as error:
            if not response.prepared:
                raise
            # Half a checkpoint must not look like a whole one: no end, and no more answers on this connection.
            if request.transport is not None:
                request.transport.abort()
            log.warning("checkpoint not sent to the end", shard=shard.number, why=repr(error))
            if not isinstance(error, Exception):
                raise
        finally:
            # A generator that still runs, in its thread, is closed when it is dropped.
            with suppress(ValueError):
                chunks.close()
        return response

    async def digest(self, call: Call) -> tuple[int, object]:
        """The digest of a replica, of a copy that stands still."""
        shard = self._shard(call)
        context = self._context
        async with self._digesting:
            found = await context.in_thread(context.node.copier.digest, shard.number, shard.store, context.now_ms())
        return 200, DigestInfo(
            shard=shard.number,
            node=context.node.config.node.id,
            applied=found.applied,
            pull_offset=found.pull_offset,
            cursor_at=format_time(found.cursor_due_ms),
            pending=found.pending,
            digest=found.digest,
            remembered_ms=found.remembered_ms,
        )

    def _shard(self, call: Call) -> ShardDriver:
        """The replica that is asked for, if there is anything in it."""
        shards = self._context.shards
        number = call.request.match_info["shard"]
        if not number.isdecimal() or not number.isascii() or int(number) >= len(shards):
            raise no_shard(len(shards))
        shard = shards[int(number)]
        if shard.role == "none" or not shard.replica.known or shard.state == FRESH:
            raise ProblemError(503, "not-held", f"this node holds nothing of shard {number} (it is {shard.role})")
        return shard

    async def _check_member(self, request: web.Request) -> None:
        """1. it names itself, 2. the coordinator knows it, 3. it shows what it told the coordinator."""
        node = request.headers.get("Chronos-Node", "")
        token = request.headers.get("Chronos-Token", "").encode()
        membership = self._context.node.membership
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + KNOWN_S
        while membership is not None and node and token:
            member = membership.snapshot().members.get(node)
            if member is not None and member.token and hmac.compare_digest(member.token.encode(), token):
                return
            if loop.time() > deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        raise ProblemError(
            403, "not-a-member", "a checkpoint is given to other nodes of this cluster only",
            hint="for a copy of your own set checkpoints.location",
        )  # fmt: skip
