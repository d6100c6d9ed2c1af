"""Keeps this node registered with the registry of every node of its cluster, its own included, and removes expired nodes from its own.

After RocketMQ (NS-13): each time the whole registration, at once when it changes, else every `registry.register_every`. A registry
that does not answer is asked again after RETRY_MS. No registry waits for another one.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from chronos.admin.context import Context
from chronos.admin.registry import monotonic_ms, registration_body
from chronos.admin.registry_schemas import RegistrationResult
from chronos.core.reach import EVERYTHING
from chronos.core.registration import RETRY_MS, OwnRegistration, Peer
from chronos.core.registry import READ, WRITE, Holding, Registration, TopicConfig
from chronos.core.roles import Member
from chronos.workers.replica_state import NOT_READABLE, ReplicaState

log = structlog.get_logger("chronos.registry")

LOOK_S = 0.25
"""How often to look for a change of the own registration."""

LEAVE_S = 1.0
"""How long the registries may take to answer the registrations that were sent before, and again for the un-registration, of a node
that stops."""

_CREDENTIALS = re.compile(r"//[^/@]*@")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RegistrationResult).decode


class Registrar:
    """The registration of one node, in the event loop of its server."""

    def __init__(self, context: Context, url: str) -> None:
        """`url`: where the server listens."""
        self._context = context
        self._url = url
        self._settings = context.node.config.registry
        started_ms = monotonic_ms()
        self._scan_ms = started_ms + self._settings.scan_after
        self._own = OwnRegistration(
            started_ms=started_ms, after_ms=self._settings.register_after, every_ms=self._settings.register_every
        )
        self._tasks: set[asyncio.Task[None]] = set()
        """Registrations that were sent and not answered yet."""

    async def run(self) -> None:
        """Until the server stops."""
        stopping = self._context.stopping
        while not stopping.is_set():
            try:
                self._step(monotonic_ms())
            except Exception as error:
                # Routes grow old; the node itself works.
                log.exception("registration failed", why=repr(error))
            try:
                async with asyncio.timeout(LOOK_S):
                    await stopping.wait()
            except TimeoutError:
                continue

    def _step(self, now_ms: int) -> None:
        """1. the own registry, 2. the others that are due, 3. the scan for expired nodes"""
        # 1.
        registration = self._own.renew(self._describe(), self._context.now_ms())
        if self._own.own_is_due(now_ms):
            self._context.registry.register(registration, now_ms)
        # 2.
        members = self._members()
        for peer in self._own.due({name: member.started_ms for name, member in members.items()}, now_ms):
            task = asyncio.get_running_loop().create_task(self._register(members[peer.node], peer, registration))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # 3.
        if now_ms >= self._scan_ms:
            self._scan_ms = now_ms + self._settings.scan_every
            for expired in self._context.registry.expire(now_ms):
                log.info("node expired", node=expired.registration.node, address=expired.registration.address)

    async def _register(self, member: Member, peer: Peer, registration: Registration) -> None:
        path = f"/v1/registry/nodes/{registration.node}"
        result = None
        try:
            body = _encode(registration_body(registration))
            status, answer = await self._context.peers.ask_member(member, "PUT", path, {}, body, reach=EVERYTHING)
            if status == 200:
                result = _decode(answer)
            why = answer[:200].decode(errors="replace")
        except Exception as error:
            why = str(error) or type(error).__name__
        if result is None:
            if self._own.failed(peer, monotonic_ms()):
                log.warning(
                    "registration with another node failed", node=member.node, why=why, again_in_s=RETRY_MS // 1_000
                )
            return
        if self._own.answered(peer, registration, monotonic_ms()):
            log.info("registered with another node again", node=member.node)
        self._read(member, registration, result)

    def _read(self, member: Member, sent: Registration, result: RegistrationResult) -> None:
        if result.result == "registered":
            return
        if result.node != sent.node:
            log.warning(
                "another node is registered with the address of this one; set admin.advertised to an address of its own",
                registry=member.node, node=result.node, address=sent.address,
            )  # fmt: skip
        else:
            self._own.overtaken(sent, result.state_version)

    def _describe(self) -> Registration:
        """What the node serves now; its state version is given by `OwnRegistration`."""
        node = self._context.node
        config, member = node.config, node.describe()
        snapshot = None if node.membership is None else node.membership.snapshot()
        roles = None if snapshot is None else snapshot.roles
        address = self._url if config.admin.advertised is None else member.address
        return Registration(
            cluster=config.cluster,
            node=member.node,
            instance=member.instance,
            address=_CREDENTIALS.sub("//", address),
            version=member.version,
            state_version=0,
            writable=roles is None or member.node not in roles.drained,
            shards={
                shard: Holding(master=replica.role == ReplicaState.MASTER, epoch=replica.role_epoch)
                for shard, replica in member.replicas.items()
                if replica.role not in NOT_READABLE and replica.applied is not None
            },
            topics={
                config.topics.delay: TopicConfig(partitions=config.shards, permissions=READ | WRITE),
                config.topics.progress: TopicConfig(partitions=config.shards, permissions=READ),
            },
        )

    def _members(self) -> dict[str, Member]:
        membership = self._context.node.membership
        members = {} if membership is None else membership.snapshot().members
        return {name: member for name, member in members.items() if name != self._context.node.config.node.id}

    async def leave(self) -> None:
        """Remove this node from all registries that answer in time: 1. end its registrations, 2. un-register.

        A registration that arrives after the un-registration would keep the node until it expires.
        """
        registration = self._own.state
        if registration is None:
            return
        # 1.
        await _within(LEAVE_S, list(self._tasks))
        # 2.
        path = f"/v1/registry/nodes/{registration.node}"
        query: dict[str, str | list[str]] = {"state_version": str(registration.state_version)}
        ask = self._context.peers.ask_member
        await _within(
            LEAVE_S,
            [
                asyncio.ensure_future(ask(member, "DELETE", path, query, reach=EVERYTHING))
                for member in self._members().values()
            ],
        )


async def _within(timeout_s: float, tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Wait for tasks, and cancel those that take longer; their errors change nothing for a node that stops."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
