"""The registry of nodes: the handlers under `/v1/registry`, and the registration of this node with
the registries of all nodes of its cluster.

The registry holds registrations of nodes, routes of topics, and configuration by namespace. As in
RocketMQ, a registration is always whole: it is sent at once when it changes, otherwise every
REGISTER_EVERY_MS. A registry that does not answer is asked again after RETRY_MS. Law: a registry
that does not answer delays no registration with another one."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, UnsetType

from chronos.admin.http.access import NODE_HEADER, TOKEN_HEADER, is_token_of
from chronos.admin.http.context import Call, Context
from chronos.admin.http.problems import ProblemError, decode_body, wrong_field
from chronos.admin.http.schemas import (
    NAME_CHARACTERS_MAX,
    ConfigChange,
    ConfigEntry,
    Namespaces,
    NamespaceValues,
    NodeAddress,
    OneClusterQuery,
    OperationResult,
    Permissions,
    RegisteredCluster,
    RegisteredClusters,
    RegisteredNode,
    RegisteredNodes,
    RegisteredShard,
    RegisteredTopic,
    RegisteredTopics,
    RegistrationBody,
    RegistrationResult,
    RegistryQuery,
    RoutesQuery,
    ShardMaster,
    ShardRoute,
    ShardRoutes,
    TopicInCluster,
    UnregistrationQuery,
    UnregistrationResult,
)
from chronos.admin.http.waiting import poll
from chronos.core import certificates
from chronos.core.cluster.registry.registration import (
    EXPIRE_INTERVALS,
    RETRY_MS,
    OwnRegistration,
    Peer,
)
from chronos.core.cluster.registry.registry import SCANS
from chronos.core.cluster.registry.values import (
    READ,
    WRITE,
    Answer,
    Endpoint,
    Full,
    Holding,
    KnownNode,
    Registration,
    Routes,
    TopicConfig,
)
from chronos.core.cluster.roles import Member
from chronos.core.reach import EVERYTHING
from chronos.core.timefmt import format_time
from chronos.node.registry_values import RegistryConfiguration
from chronos.workers.replica.state import NOT_READABLE, ReplicaState

log = structlog.get_logger("chronos.registry")

REGISTER_EVERY_MS = 30_000
"""How often a node registers although nothing has changed: a registry that has lost a node has it
again after this time."""

LOOK_S = 0.25
"""Time between two comparisons of the own registration with the node's state."""

LEAVE_S = 1.0
"""How long the registries may take to answer the registrations that were sent before, and again for
the un-registration, of a node that stops."""

_CREDENTIALS = re.compile(r"//[^/@]*@")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RegistrationResult).decode

AHEAD_MS = 86_400_000
"""How far the state version of a registration may be ahead of this node's clock. Versions are the
times of changes (epoch ms): one that is far ahead would keep the later states of its node out."""

CHANGE_S = 10.0
"""How long to wait until the controller has published a change of the configuration."""

MEMBER_S = 2.0
"""How long to wait for a member that has just joined."""

ENCODED_MAX = 4_096
"""Most answers about routes that are kept encoded."""

_decode_registration = msgspec.json.Decoder(RegistrationBody).decode
_decode_value = msgspec.json.Decoder(ConfigChange).decode

_PERMISSIONS: dict[int, Permissions] = {
    bits: [*(["read"] if bits & READ else []), *(["write"] if bits & WRITE else [])]  # type: ignore[list-item]
    for bits in (0, READ, WRITE, READ | WRITE)
}

T = TypeVar("T")


class Registrar:
    """The registration of one node, in the event loop of its server."""

    def __init__(self, context: Context, url: str) -> None:
        """`url`: where the server listens."""
        self._context = context
        self._url = url
        self._scan_every_ms = REGISTER_EVERY_MS // SCANS
        started_ms = monotonic_ms()
        self._scan_ms = started_ms + self._scan_every_ms // 2
        self._own = OwnRegistration(
            started_ms=started_ms, after_ms=self._scan_every_ms, every_ms=REGISTER_EVERY_MS
        )
        self._tasks: set[asyncio.Task[None]] = set()
        """Registrations that were sent and not answered yet."""

    async def run(self) -> None:
        """Register this node and remove expired nodes, until the server stops."""
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
        for peer in self._own.due(
            {name: member.started_ms for name, member in members.items()}, now_ms
        ):
            task = asyncio.get_running_loop().create_task(
                self._register(members[peer.node], peer, registration)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # 3.
        if now_ms >= self._scan_ms:
            self._scan_ms = now_ms + self._scan_every_ms
            for expired in self._context.registry.expire(now_ms):
                log.info(
                    "node expired",
                    node=expired.registration.node,
                    address=expired.registration.address,
                )

    async def _register(self, member: Member, peer: Peer, registration: Registration) -> None:
        path = f"/v1/registry/nodes/{registration.node}"
        result = None
        try:
            body = _encode(registration_body(registration))
            status, answer = await self._context.peers.ask_member(
                member, "PUT", path, {}, body, reach=EVERYTHING
            )
            if status == 200:
                result = _decode(answer)
            why = answer[:200].decode(errors="replace")
        except Exception as error:
            why = certificates.reason(error)
        if result is None:
            if self._own.failed(peer, monotonic_ms()):
                log.warning(
                    "registration with another node failed",
                    node=member.node,
                    why=why,
                    again_in_s=RETRY_MS // 1_000,
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
                (
                    "another node is registered with the address of this one; set "
                    "admin.advertised to an address of its own"
                ),
                registry=member.node,
                node=result.node,
                address=sent.address,
            )
        else:
            self._own.overtaken(sent, result.state_version)

    def _describe(self) -> Registration:
        """Return the topics and shards that the node serves now; `OwnRegistration` adds the state
        version."""
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
            expire_after_ms=EXPIRE_INTERVALS * REGISTER_EVERY_MS,
            shards={
                shard: Holding(master=replica.role == ReplicaState.MASTER, epoch=replica.role_epoch)
                for shard, replica in member.replicas.items()
                if replica.role not in NOT_READABLE and replica.applied is not None
            },
            topics={
                config.topics.delay: TopicConfig(
                    partitions=config.shards, permissions=READ | WRITE
                ),
                config.topics.progress: TopicConfig(partitions=config.shards, permissions=READ),
            },
        )

    def _members(self) -> dict[str, Member]:
        membership = self._context.node.membership
        members = {} if membership is None else membership.snapshot().members
        return {
            name: member
            for name, member in members.items()
            if name != self._context.node.config.node.id
        }

    async def leave(self) -> None:
        """Remove this node from all registries that answer in time: 1. end its registrations, 2.
        un-register.

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
    """Wait for tasks, and cancel those that take longer; their errors change nothing for a node
    that stops."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def monotonic_ms() -> int:
    """Return the time of registrations: a clock that does not step when the system clock is set."""
    return int(time.monotonic() * 1_000)


class RegistryHandlers:
    """The handlers of `/v1/registry`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._encoded: dict[tuple[str, str, int | None], bytes] = {}
        self._encoded_at = -1
        """`Registry.changes` when the answers were encoded."""

    @property
    def _configuration(self) -> RegistryConfiguration:
        return self._context.node.registry_configuration

    # --- registration

    async def register(self, call: Call) -> tuple[int, object]:
        """Register a node with all that it serves."""
        body = decode_body(_decode_registration, RegistrationBody, call.body)
        registration = read_registration(_name(call, "node"), body)
        if registration.state_version > self._context.now_ms() + AHEAD_MS:
            raise wrong_field(
                "state_version",
                "is more than a day ahead of this node's clock; use the time of the change in ms",
            )
        await self._check_sender(call, registration.cluster)
        registry = self._context.registry
        answer = _in_bounds(lambda: registry.register(registration, monotonic_ms()))
        return 200, answer_info(answer)

    async def unregister(self, call: Call) -> tuple[int, object]:
        """Remove a node that stops."""
        query: UnregistrationQuery = call.query
        cluster, node = self._cluster(query), _name(call, "node")
        await self._check_sender(call, cluster)
        version = 2**63 - 1 if isinstance(query.state_version, UnsetType) else query.state_version
        return 200, UnregistrationResult(
            result=self._context.registry.unregister(cluster, node, version)
        )

    async def _check_sender(self, call: Call, cluster: str) -> None:
        """ProblemError unless the sender is the node itself, with the token that it gave the
        coordinator."""
        request, membership = call.request, self._context.node.membership
        node, token = request.headers.get(NODE_HEADER, ""), request.headers.get(TOKEN_HEADER, "")

        def is_member() -> bool | None:
            member = None if membership is None else membership.snapshot().members.get(node)
            return is_token_of(member, token) or None

        is_itself = (
            node == request.match_info["node"] and cluster == self._context.node.config.cluster
        )
        if (
            token
            and is_itself
            and membership is not None
            and await poll(is_member, MEMBER_S, self._context.stopping)
        ):
            return
        raise ProblemError(
            403,
            "not-a-member",
            "a node of this cluster registers itself only, with the token it gave the coordinator",
        )

    # --- queries

    async def routes(self, call: Call) -> web.StreamResponse:
        """The routes of a topic, encoded once for each change of the registry."""
        query: RoutesQuery = call.query
        found = self._context.registry
        found.configure(self._configuration.known())
        cluster = self._cluster(query)
        topic = self._context.delay_topic if isinstance(query.topic, UnsetType) else query.topic
        shard = None if isinstance(query.shard, UnsetType) else query.shard
        if self._encoded_at != found.changes or len(self._encoded) >= ENCODED_MAX:
            self._encoded, self._encoded_at = {}, found.changes
        key = (cluster, topic, shard)
        body = self._encoded.get(key)
        if body is None:
            routes = found.routes(cluster, topic, shard)
            if routes is None:
                what = f"shard {shard} of topic {topic}" if shard is not None else f"topic {topic}"
                raise ProblemError(
                    404,
                    "no-route",
                    f"no node of cluster {cluster} is registered for {what}",
                    hint=(
                        "`chronos registry nodes` shows the registered nodes; nodes register when "
                        "they have reached their roles"
                    ),
                )
            body = self._encoded[key] = _encode(routes_info(cluster, topic, routes))
        return web.Response(body=body, content_type="application/json")

    async def nodes(self, call: Call) -> tuple[int, object]:
        """The registered nodes of a cluster, or of all."""
        query: RegistryQuery = call.query
        cluster = None if isinstance(query.cluster, UnsetType) else query.cluster
        ahead_ms = self._context.now_ms() - monotonic_ms()
        return 200, RegisteredNodes(
            registry=self._context.node.config.node.id,
            nodes=[_node_info(node, ahead_ms) for node in self._context.registry.nodes(cluster)],
        )

    async def topics(self, call: Call) -> tuple[int, object]:
        """The registered topics of a cluster, or of all."""
        query: RegistryQuery = call.query
        found = self._context.registry
        clusters: Iterable[str] = (
            found.clusters() if isinstance(query.cluster, UnsetType) else [query.cluster]
        )
        return 200, RegisteredTopics(
            topics=[
                TopicInCluster(
                    cluster=cluster,
                    topic=topic,
                    partitions=config.partitions,
                    permissions=_PERMISSIONS[config.permissions],
                )
                for cluster in clusters
                for topic, config in found.topics(cluster).items()
            ]
        )

    async def clusters(self, _: Call) -> tuple[int, object]:
        """The clusters with registered nodes."""
        return 200, RegisteredClusters(
            clusters=[
                RegisteredCluster(
                    cluster=name, nodes=list(cluster.nodes), shards=list(cluster.shards)
                )
                for name, cluster in self._context.registry.clusters().items()
            ]
        )

    # --- changes

    async def delete_topic(self, call: Call) -> tuple[int, object]:
        """Remove a topic from this registry."""
        cluster, topic = self._cluster(call.query), call.request.match_info["topic"]
        if not self._context.registry.delete_topic(cluster, topic):
            raise ProblemError(
                404, "no-topic", f"no node of cluster {cluster} has registered topic {topic[:249]}"
            )
        return 200, OperationResult(
            result="done", what=f"removal of topic {topic} from this registry"
        )

    # --- configuration

    async def namespaces(self, _: Call) -> tuple[int, object]:
        """The namespaces of the configuration."""
        return 200, Namespaces(namespaces=sorted(self._configuration.known()))

    async def values(self, call: Call) -> tuple[int, object]:
        """All values of a namespace."""
        namespace = _name(call, "namespace")
        values = self._configuration.known().get(namespace, {})
        return 200, NamespaceValues(namespace=namespace, values=dict(sorted(values.items())))

    async def value(self, call: Call) -> tuple[int, object]:
        """One value."""
        namespace, key, value = self._known(call)
        if value is None:
            raise _no_value(namespace, key)
        return 200, self._entry(namespace, key, value)

    async def set_value(self, call: Call) -> tuple[int, object]:
        """Set a value."""
        namespace, key, _ = self._known(call)
        value = decode_body(_decode_value, ConfigChange, call.body).value
        return await self._change(call, namespace, key, value), self._entry(namespace, key, value)

    async def delete_value(self, call: Call) -> tuple[int, object]:
        """Delete a value."""
        namespace, key, value = self._known(call)
        if value is None:
            raise _no_value(namespace, key)
        return await self._change(call, namespace, key, None), self._entry(namespace, key, value)

    async def _change(self, call: Call, namespace: str, key: str, value: str | None) -> int:
        """Have the value set or deleted; return 200 once that is so, or 202 if it is not soon."""
        context = self._context
        try:
            await context.in_thread(
                lambda: self._configuration.change(namespace, key, value, at_ms=context.now_ms())
            )
        except Full as error:
            raise ProblemError(409, "registry-full", str(error)) from None
        changed = await poll(
            lambda: self._known(call)[2] == value or None, CHANGE_S, context.stopping
        )
        return 200 if changed else 202

    def _known(self, call: Call) -> tuple[str, str, str | None]:
        """Return the namespace and the key that a request names, and the value."""
        namespace, key = _name(call, "namespace"), _name(call, "key")
        return namespace, key, self._configuration.known().get(namespace, {}).get(key)

    def _entry(self, namespace: str, key: str, value: str) -> ConfigEntry:
        return ConfigEntry(
            registry=self._context.node.config.node.id, namespace=namespace, key=key, value=value
        )

    def _cluster(self, query: OneClusterQuery) -> str:
        return (
            self._context.node.config.cluster
            if isinstance(query.cluster, UnsetType)
            else query.cluster
        )


def _in_bounds(change: Callable[[], T]) -> T:
    try:
        return change()
    except Full as error:
        raise ProblemError(409, "registry-full", str(error)) from None


def _name(call: Call, parameter: str) -> str:
    name = call.request.match_info[parameter]
    if len(name) > NAME_CHARACTERS_MAX:
        raise wrong_field(parameter, f"must have at most {NAME_CHARACTERS_MAX} characters")
    return name


def _no_value(namespace: str, key: str) -> ProblemError:
    return ProblemError(
        404,
        "no-value",
        f"the registry has no value {key[:250]} in namespace {namespace[:250]}",
        hint="`chronos registry config set` sets it",
    )


# --- Between the values of `core.cluster.registry` and JSON


def read_registration(node: str, body: RegistrationBody) -> Registration:
    """The registration in a request."""
    return Registration(
        cluster=body.cluster,
        node=node,
        instance=body.instance,
        address=body.address,
        version=body.version,
        state_version=body.state_version,
        writable=body.writable,
        expire_after_ms=None if isinstance(body.expire_after, UnsetType) else body.expire_after,
        shards={
            each.shard: Holding(master=each.role == "master", epoch=each.epoch)
            for each in body.shards
        },
        topics=None
        if body.topics is None
        else {
            each.topic: TopicConfig(
                partitions=each.partitions,
                permissions=sum(
                    {"read": READ, "write": WRITE}[name] for name in {*each.permissions}
                ),
            )
            for each in body.topics
        },
    )


def registration_body(registration: Registration) -> RegistrationBody:
    """The body of a request that registers a node."""
    topics = registration.topics
    return RegistrationBody(
        cluster=registration.cluster,
        instance=registration.instance,
        address=registration.address,
        version=registration.version,
        state_version=registration.state_version,
        writable=registration.writable,
        expire_after=UNSET
        if registration.expire_after_ms is None
        else registration.expire_after_ms,
        shards=_shards_info(registration),
        topics=None
        if topics is None
        else [
            RegisteredTopic(
                topic=topic,
                partitions=config.partitions,
                permissions=_PERMISSIONS[config.permissions],
            )
            for topic, config in topics.items()
        ],
    )


def answer_info(answer: Answer) -> RegistrationResult:
    """The answer to a registration."""
    result: Literal["registered", "ignored"] = "registered" if answer.accepted else "ignored"
    return RegistrationResult(
        result=result,
        state_version=answer.state_version,
        node=answer.node,
        refused=list(answer.refused),
        masters=[
            ShardMaster(shard=shard, master=_address(master))
            for shard, master in sorted(answer.masters.items())
        ],
    )


def _shards_info(registration: Registration) -> list[RegisteredShard]:
    return [
        RegisteredShard(
            shard=shard, role="master" if holding.master else "follower", epoch=holding.epoch
        )
        for shard, holding in sorted(registration.shards.items())
    ]


def _node_info(node: KnownNode, ahead_ms: int) -> RegisteredNode:
    """`ahead_ms`: this machine's clock less the time of registrations."""
    registration = node.registration
    return RegisteredNode(
        cluster=registration.cluster,
        node=registration.node,
        instance=registration.instance,
        address=registration.address,
        version=registration.version,
        state_version=registration.state_version,
        writable=node.registration.writable,
        registered_at=format_time(node.registered_ms + ahead_ms),
        shards=_shards_info(registration),
    )


def routes_info(cluster: str, topic: str, found: Routes) -> ShardRoutes:
    """The answer to a request for routes."""
    return ShardRoutes(
        cluster=cluster,
        topic=topic,
        partitions=found.partitions,
        routes=[
            ShardRoute(
                shard=route.shard,
                permissions=_PERMISSIONS[route.permissions],
                master=None if route.master is None else _address(route.master),
                followers=[_address(follower) for follower in route.followers],
            )
            for route in found.routes
        ],
    )


def _address(endpoint: Endpoint) -> NodeAddress:
    return NodeAddress(node=endpoint.node, address=endpoint.address)
