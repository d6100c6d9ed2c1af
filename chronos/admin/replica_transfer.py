"""Sends a checkpoint of a shard to another node, and computes the digest by which two replicas are compared."""

import asyncio
from contextlib import suppress

import structlog
from aiohttp import web

from chronos.admin.access import NODE_HEADER, TOKEN_HEADER, is_token_of
from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, shard_number
from chronos.admin.schemas import DigestInfo
from chronos.admin.waiting import poll
from chronos.core.codec import FRESH
from chronos.core.timefmt import format_time
from chronos.node.driver import ShardDriver

log = structlog.get_logger("chronos.http")

STREAMS_MAX = 2
"""Checkpoints sent at a time: each reads a whole store."""

MEMBER_S = 2.0
"""How long to wait for a member that has just joined; the coordinator publishes it within milliseconds."""

SEND_S = 60.0
"""How long the other node may take to accept a chunk of a megabyte; then the transfer ends."""


class ReplicaTransfer:
    """The handlers of `/v1/shards/{shard}/checkpoint` and `/v1/shards/{shard}/digest`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = 0
        self._digesting = asyncio.Lock()

    async def checkpoint(self, call: Call) -> web.StreamResponse:
        """A checkpoint of a shard, made now; only for members of the cluster, because it contains every payload."""
        await self._check_member(call.request)
        shard = self._shard(call)
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
            # An error before the first byte is answered as a problem.
            chunk = await context.in_thread(next, chunks, None)
            await response.prepare(request)
            while chunk is not None:
                if context.stopping.is_set():
                    raise ConnectionAbortedError("this node is stopping")
                async with asyncio.timeout(SEND_S):
                    await response.write(chunk)
                chunk = await context.in_thread(next, chunks, None)
            await response.write_eof()
        except BaseException as error:
            if not response.prepared:
                raise
            # An incomplete checkpoint must not look complete: the connection is cut without the end of the body.
            if request.transport is not None:
                request.transport.abort()
            log.warning("checkpoint not sent completely", shard=shard.number, why=repr(error))
            if not isinstance(error, Exception):
                raise
        finally:
            # A generator that still runs in its thread is closed when it is dropped.
            with suppress(ValueError):
                chunks.close()
        return response

    async def digest(self, call: Call) -> tuple[int, object]:
        """The digest of a replica, computed over a snapshot of its store."""
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
        """The requested replica; ProblemError when this node holds none, or an empty one."""
        shards = self._context.shards
        shard = shards[shard_number(call.request.match_info["shard"], len(shards))]
        if shard.role == "none" or not shard.replica.known or shard.state == FRESH:
            raise ProblemError(
                503, "not-held", f"this node holds no data of shard {shard.number} (its replica is {shard.role})"
            )
        return shard

    async def _check_member(self, request: web.Request) -> None:
        """1. the request names a node, 2. the node is a member, 3. the token is the one that the node gave the coordinator."""
        node = request.headers.get(NODE_HEADER, "")
        token = request.headers.get(TOKEN_HEADER, "")
        membership = self._context.node.membership

        def is_member() -> bool | None:
            member = None if membership is None else membership.snapshot().members.get(node)
            return is_token_of(member, token) or None

        if membership is not None and node and token and await poll(is_member, MEMBER_S, self._context.stopping):
            return
        raise ProblemError(
            403, "not-a-member", "checkpoints are sent only to other nodes of this cluster",
            hint="for backups of your own set checkpoints.location",
        )  # fmt: skip
