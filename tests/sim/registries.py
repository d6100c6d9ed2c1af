"""Simulation of the registries: nodes that register with all of them over a network that loses,
repeats and reorders messages.

The code under test is `core.cluster.registry` and `core.cluster.registry`, the requests between
them as `admin.cluster.registry` reads and writes them, and the routes that a client keeps
(`client.servers`). The rest is simulated: processes that freeze, end in order or not, and start
again with an empty registry, under another address, or with their clock set back; a controller that
moves shards; members that are known late.

Phase one is about safety: each registry is compared with what was registered there. In phase two
nothing fails, and one interval later all registries answer the same routes, which are the roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chronos.admin.cluster.registry import read_registration, registration_body, routes_info
from chronos.admin.http.schemas import RegistrationBody
from chronos.client.requests import get
from chronos.client.servers import ROUTES_S, Servers
from chronos.core.cluster.registry.registration import RETRY_MS, OwnRegistration, Peer
from chronos.core.cluster.registry.registry import EXPIRE_AFTER_MS, Registry
from chronos.core.cluster.registry.values import (
    READ,
    WRITE,
    Answer,
    Holding,
    Registration,
    TopicConfig,
)
from chronos.core.keys import partition_of
from tests.sim.world import CORRECTNESS, CRASH, LIVENESS, Finding, World

CLUSTER, DELAY = "c", "chronos.delay"

AFTER_MS, EVERY_MS, SCAN_AFTER_MS, SCAN_EVERY_MS = 10_000, 30_000, 5_000, 10_000
"""Defaults of the section `registry`: initial delay and interval of registrations, and of the scan
(NS-13, NS-03)."""

LOOK_MS = 1_000
"""How often a process looks for a change of its own registration and for registries that are
due."""

ASK_MS = 5_000
"""Time after which a registration without an answer has failed."""

KNOWN_MS = 3_000
"""Longest time until a process learns of a change of the roles or of the members."""

CLIENT_MS = 2_500
"""Interval between two requests of a client."""

SETTLED_MS = ASK_MS + RETRY_MS + EVERY_MS + KNOWN_MS + 2 * LOOK_MS
"""Longest time without faults until every live node is registered everywhere: the last failure, and
one interval."""

PROMPT_MS = KNOWN_MS + 2 * LOOK_MS
"""Longest time until a change is registered everywhere: a process learns of it, and looks."""

IDS = tuple(f"order-{number}" for number in range(8))


class Place(Struct, frozen=True):
    """The checker's record of one registered node."""

    registration: Registration
    at_ms: int


class Process:
    """One incarnation of a node: its registry, and its registration with all others."""

    def __init__(self, cluster: Cluster, node: SimulatedNode) -> None:
        world = cluster.world
        self.cluster = cluster
        self.node = node
        self.started_ms = world.now_ms
        self.ended = False
        self.registry = Registry()
        self.places: dict[str, Place] = {}
        """What the registry must hold."""
        self.masters: dict[int, tuple[str, int]] = {}
        """Shard -> the node that counts as its master, whether it registered itself, and its role
        epoch."""
        self.own = OwnRegistration(started_ms=world.now_ms, after_ms=AFTER_MS, every_ms=EVERY_MS)
        self.roles, self.holders = cluster.given()
        self.incarnations: dict[str, int] = {}
        """Start of the other members' processes, as this one knows them."""
        self._scan_ms = world.now_ms + SCAN_AFTER_MS
        world.after(0, self._step)

    def call(self, wait_ms: int, act: partial[None]) -> None:
        """Call after a delay, and once the process is not frozen; never if it has ended."""
        self.cluster.world.after(wait_ms, self._call, act)

    def _call(self, act: partial[None]) -> None:
        if self.ended:
            return
        if self.node.is_frozen:
            self.cluster.world.after(self.node.thaws_ms, self._call, act)
        else:
            act()

    def _step(self) -> None:
        """As `admin.cluster.registry.Registrar._step`."""
        world = self.cluster.world
        if self.ended:
            return
        if self.node.is_frozen:
            world.after(self.node.thaws_ms, self._step)
            return
        registration = self.own.renew(self._describe(), world.now_ms + self.node.clock_ms)
        if self.own.own_is_due(world.now_ms):
            self.cluster.register(self, registration)
        for peer in self.own.due(self.incarnations, world.now_ms):
            self.cluster.send(self, peer, registration)
        if world.now_ms >= self._scan_ms:
            self._scan_ms = world.now_ms + SCAN_EVERY_MS
            self.cluster.scan(self)
        world.after(LOOK_MS, self._step)

    def _describe(self) -> Registration:
        return Registration(
            cluster=CLUSTER,
            node=self.node.name,
            instance=self.node.name,
            address=self.node.address,
            version="1",
            state_version=0,
            writable=self.node.name not in self.cluster.drained,
            shards={
                shard: Holding(master=master == self.node.name, epoch=epoch)
                for shard, (master, epoch) in self.roles.items()
                if self.node.name in self.holders[shard]
            },
            topics={DELAY: TopicConfig(partitions=self.cluster.shards, permissions=READ | WRITE)},
        )


class SimulatedNode:
    """A node, which outlives its processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = f"http://{name}"
        self.frozen_ms = 0
        self.clock_ms = 0
        """Its clock less the true time."""
        self.process: Process | None = None
        self.gone = False
        self.now_ms = lambda: 0

    @property
    def is_frozen(self) -> bool:
        return self.frozen_ms > self.now_ms()

    @property
    def thaws_ms(self) -> int:
        """Time until it may be thawed: all faults may end before its own time."""
        return min(LOOK_MS, self.frozen_ms - self.now_ms())


class Client:
    """A client that knows some of the nodes, and asks for single messages."""

    def __init__(self, cluster: Cluster, addresses: Sequence[str]) -> None:
        self.cluster = cluster
        self.servers = Servers(addresses)
        self._step()

    def _step(self) -> None:
        self.ask(self.cluster.world.random.choice(IDS))
        self.cluster.world.after(CLIENT_MS, self._step)

    def ask(self, named: str) -> str | None:
        """Return the address that answered; None if none did."""
        now_s, servers, request = self.cluster.world.now_ms / 1_000, self.servers, get(named)
        if servers.needs_routes(request, now_s):
            for address in servers.registries(now_s):
                process = self.cluster.at(address)
                if process is None:
                    servers.failed(address, now_s)
                    continue
                servers.answered(address)
                if servers.learn(*_routes(process.registry), now_s):
                    break
        tried: set[str] = set()
        while True:
            address = servers.choose(request, tried, now_s)
            if self.cluster.at(address) is not None:
                servers.answered(address)
                return address
            servers.failed(address, now_s)
            tried.add(address)
            if not servers.has_others(request, tried):
                return None


def _routes(registry: Registry) -> tuple[int, bytes]:
    """As the handler of `GET /v1/registry/routes`."""
    found = registry.routes(CLUSTER, DELAY)
    if found is None:
        return 404, b"{}"
    return 200, msgspec.json.encode(routes_info(CLUSTER, DELAY, found))


class Cluster:
    """The world of one seed."""

    def __init__(self, seed: int, lines: list[str] | None = None) -> None:
        world = self.world = World(seed, lines=lines)
        draw = world.random
        self.shards = draw.choice([1, 3])
        self.lost, self.repeated = draw.choice([0.0, 0.05, 0.4]), draw.choice([0.0, 0.2])
        self.late_ms = draw.choice([10, 2_000, 40_000])
        """Longest delay of a message."""
        self.drained: set[str] = set()
        self.nodes = [SimulatedNode(f"n{number}") for number in range(draw.choice([2, 3, 4]))]
        self.ports = count(1)
        for node in self.nodes:
            node.now_ms = lambda: world.now_ms
            node.clock_ms = draw.randint(-200, 200)
        self.roles = {shard: (draw.choice(self.nodes).name, 1) for shard in range(self.shards)}
        """Shard -> the master and its role epoch."""
        self.holders = {shard: {node.name for node in self.nodes} for shard in range(self.shards)}
        self.registered = 0
        for node in self.nodes:
            self.start(node)
        first, *others = [node.address for node in self.nodes]
        self.clients = [
            Client(self, [*draw.sample(others, 1), first]),
            Client(self, [first, *others]),
        ]
        self.fault_ms = draw.randrange(60_000, 400_000)
        kinds = [
            self._kill,
            self._kill,
            self._stop,
            self._freeze,
            self._freeze,
            self._move,
            self._move,
            self._place,
            self._place,
            self._drain,
            self._set_clock,
            self._change_address,
            self._swap_addresses,
            self._go,
        ]
        for _ in range(draw.choice([0, 4, 12, 25])):
            world.after(draw.randrange(self.fault_ms), self._inject, draw.choice(kinds))

    # --- processes

    def start(self, node: SimulatedNode) -> None:
        if node.process is None and not node.gone:
            self.world.trace(f"{node.name} starts at {node.address}")
            node.process = Process(self, node)
            self._spread()

    def at(self, address: str) -> Process | None:
        """The process that answers at an address."""
        found = [
            node.process for node in self.nodes if node.address == address and not node.is_frozen
        ]
        return next((process for process in found if process is not None), None)

    def running(self) -> list[Process]:
        return [node.process for node in self.nodes if node.process is not None]

    def given(self) -> tuple[dict[int, tuple[str, int]], dict[int, frozenset[str]]]:
        """The roles and the holders of all shards, as the controller publishes them now."""
        return dict(self.roles), {
            shard: frozenset(holders) for shard, holders in self.holders.items()
        }

    def _give(self, shard: int, name: str) -> None:
        """Make a node the master of a shard."""
        self.roles[shard] = (name, self.roles[shard][1] + 1)
        self.holders[shard].add(name)

    def _spread(self) -> None:
        """Every process learns of members and roles after a while."""
        for process in self.running():
            wait_ms = self.world.random.randrange(KNOWN_MS - LOOK_MS)
            process.call(wait_ms, partial(self._learn, process))

    def _learn(self, process: Process) -> None:
        process.roles, process.holders = self.given()
        process.incarnations = {
            other.node.name: other.started_ms
            for other in self.running()
            if other.node is not process.node
        }

    # --- messages

    def send(self, sender: Process, peer: Peer, registration: Registration) -> None:
        """Send a registration; its answer, or the end of the time for it, comes back."""
        body = msgspec.json.encode(registration_body(registration))
        request = _Request(sender, peer, registration)
        sender.call(ASK_MS, partial(self._failed, request))
        world, draw = self.world, self.world.random
        for _ in range(2 if world.faulty and world.chance(self.repeated) else 1):
            if not (world.faulty and world.chance(self.lost)):
                world.after(draw.randrange(self._late_ms), self._arrive, request, body)

    @property
    def _late_ms(self) -> int:
        return self.late_ms if self.world.faulty else 50

    def _arrive(self, request: _Request, body: bytes) -> None:
        """A message goes to the address of its receiver, whichever process has it by now."""
        receivers = [node.process for node in self.nodes if node.name == request.peer.node]
        receiver = receivers[0]
        if receiver is not None:
            receiver.call(0, partial(self._receive, receiver, request, body))

    def _receive(self, receiver: Process, request: _Request, body: bytes) -> None:
        registration = read_registration(
            request.sender.node.name, msgspec.json.decode(body, type=RegistrationBody)
        )
        answer = self.register(receiver, registration)
        if not (self.world.faulty and self.world.chance(self.lost)):
            wait_ms = self.world.random.randrange(self._late_ms)
            request.sender.call(wait_ms, partial(self._answered, request, answer))

    def _answered(self, request: _Request, answer: Answer) -> None:
        if request.is_over:
            return
        request.is_over = True
        own, sent = request.sender.own, request.registration
        own.answered(request.peer, sent, self.world.now_ms)
        if not answer.accepted and answer.node == sent.node:
            own.overtaken(sent, answer.state_version)

    def _failed(self, request: _Request) -> None:
        if not request.is_over:
            request.is_over = True
            request.sender.own.failed(request.peer, self.world.now_ms)

    # --- registries, and their checks

    def register(self, process: Process, registration: Registration) -> Answer:
        """Register, and compare with the rule: the newer state of a node counts, and the newer one
        of an address (NS-22)."""
        self.registered += 1
        places = process.places
        rivals = {
            name: place
            for name, place in places.items()
            if name == registration.node or place.registration.address == registration.address
        }
        is_older = any(
            place.registration.state_version > registration.state_version
            for place in rivals.values()
        )
        answer = process.registry.register(registration, self.world.now_ms)
        if not is_older:
            for name in (*rivals, registration.node):
                self._forget(process, name)
            self._remember(process, Place(registration, self.world.now_ms))
        if answer.accepted == is_older:
            raise _broken(
                f"{process.node.name} {'takes' if is_older else 'refuses'} {registration}, beside "
                f"{rivals}"
            )
        if isinstance(answer.masters, dict):
            answer.masters.clear()
        self._check(process)
        return answer

    def _remember(self, process: Process, place: Place) -> None:
        """Of two that register as master, the one with the greater role epoch counts."""
        registration = place.registration
        process.places[registration.node] = place
        for shard, holding in registration.shards.items():
            if holding.master and holding.epoch >= process.masters.get(shard, ("", 0))[1]:
                process.masters[shard] = (registration.node, holding.epoch)

    def _forget(self, process: Process, name: str) -> None:
        process.places.pop(name, None)
        process.masters = {
            shard: master for shard, master in process.masters.items() if master[0] != name
        }

    def unregister(self, process: Process, name: str, state_version: int) -> None:
        place = process.places.get(name)
        if place is not None and place.registration.state_version <= state_version:
            self._forget(process, name)
        process.registry.unregister(CLUSTER, name, state_version)
        self._check(process)

    def scan(self, process: Process) -> None:
        """A node is gone at the first scan after its time, and not before it (NS-14)."""
        now_ms = self.world.now_ms
        expired = process.registry.expire(now_ms)
        due = {
            name for name, place in process.places.items() if now_ms - place.at_ms > EXPIRE_AFTER_MS
        }
        if {each.registration.node for each in expired} != due:
            raise _broken(
                f"{process.node.name} lets {[each.registration.node for each in expired]} expire, "
                f"not {due}"
            )
        for name in due:
            self._forget(process, name)
        self._check(process)

    def _check(self, process: Process) -> None:
        """The registry holds what was registered, its routes lead to registered nodes, and nothing
        is left of others (NS-17)."""
        registry, places = process.registry, process.places
        found = {
            node.registration.node: (node.registration, node.registered_ms)
            for node in registry.nodes()
        }
        if found != {name: (place.registration, place.at_ms) for name, place in places.items()}:
            raise _broken(f"{process.node.name} holds {found}, not {places}")
        held = {shard for place in places.values() for shard in place.registration.shards}
        clusters = registry.clusters()
        shards = {shard for cluster in clusters.values() for shard in cluster.shards}
        if (
            bool(clusters) != bool(places)
            or not shards <= held
            or (registry.topics(CLUSTER) and not shards)
        ):
            raise _broken(
                f"{process.node.name} keeps {clusters} and {registry.topics(CLUSTER)} of "
                f"{sorted(places)}"
            )
        routes = registry.routes(CLUSTER, DELAY)
        for route in () if routes is None else routes.routes:
            listed = [*([] if route.master is None else [route.master]), *route.followers]
            if any(places[each.node].registration.address != each.address for each in listed):
                raise _broken(f"{process.node.name} routes to {listed}")
            master = process.masters.get(route.shard, ("",))[0]
            if (route.master.node if route.master else "") != master:
                raise _broken(
                    f"{process.node.name} routes shard {route.shard} to {route.master}, not to "
                    f"{master}"
                )

    # --- faults

    def _inject(self, kind: object) -> None:
        if self.world.faulty:
            assert callable(kind)
            kind()

    def _any(self) -> SimulatedNode:
        return self.world.random.choice(self.nodes)

    def _kill(self) -> None:
        self._end(self._any(), "is killed")

    def _end(self, node: SimulatedNode, how: str) -> None:
        process = node.process
        if process is not None:
            self.world.trace(f"{node.name} {how}")
            process.ended, node.process = True, None
            self._fail_over(node.name)
            self._spread()
            self.world.after(self.world.random.choice([500, 15_000, 150_000]), self.start, node)

    def _stop(self) -> None:
        """Stop in order: the node un-registers, and its earlier registrations may still be on their
        way."""
        node = self._any()
        process, draw = node.process, self.world.random
        if process is None or node.is_frozen or process.own.state is None:
            return
        for other in self.running():
            if other is not process and not self.world.chance(self.lost):
                version = process.own.state.state_version
                other.call(
                    draw.randrange(self._late_ms),
                    partial(self.unregister, other, node.name, version),
                )
        self._end(node, "stops")

    def _go(self) -> None:
        """A node ends for good."""
        node = self.world.random.choice(self.nodes[1:])
        if sum(not each.gone for each in self.nodes) > 2:
            node.gone = True
            self._end(node, "is gone for good")

    def _freeze(self) -> None:
        node, wait_ms = self._any(), self.world.random.choice([2_000, 20_000, 140_000])
        self.world.trace(f"{node.name} freezes for {wait_ms}")
        node.frozen_ms = self.world.now_ms + wait_ms
        self._fail_over(node.name)

    def _fail_over(self, name: str) -> None:
        others = [process.node.name for process in self.running() if process.node.name != name]
        for shard, (master, _) in list(self.roles.items()):
            if master == name and others:
                self._give(shard, self.world.random.choice(others))
        self._spread()

    def _move(self) -> None:
        running = self.running()
        if running:
            shard, draw = self.world.random.randrange(self.shards), self.world.random
            self._give(shard, draw.choice(running).node.name)
            self.world.trace(f"shard {shard} goes to {self.roles[shard][0]}")
            self._spread()

    def _place(self) -> None:
        """A node that does not lead a shard gets a replica of it, or gives it up."""
        shard, name = self.world.random.randrange(self.shards), self._any().name
        if name != self.roles[shard][0]:
            self.holders[shard] ^= {name}
            self._spread()

    def _drain(self) -> None:
        name = self._any().name
        (self.drained.discard if name in self.drained else self.drained.add)(name)

    def _set_clock(self) -> None:
        self._any().clock_ms = self.world.random.choice([-3_600_000, -10_000, 0, 10_000, 3_600_000])

    def _change_address(self) -> None:
        """A node starts again at another address. The first node keeps its own: a client needs one
        that it knows."""
        node = self._any()
        if node.process is None and node is not self.nodes[0]:
            node.address = f"http://{node.name}:{next(self.ports)}"

    def _swap_addresses(self) -> None:
        """Two nodes start again, each at the other's address."""
        if len(others := [node for node in self.nodes[1:] if not node.gone]) > 1:
            one, other = self.world.random.sample(others, 2)
            for node in (one, other):
                self._end(node, "is killed, and starts at the address of another one")
            one.address, other.address = other.address, one.address

    # --- phase two

    def heal(self) -> None:
        """End all faults, and start every node that is not gone."""
        self.world.trace("all faults are gone")
        self.world.faulty = False
        for node in self.nodes:
            node.frozen_ms = 0
            self.start(node)
        for shard, (master, _) in list(self.roles.items()):
            if all(process.node.name != master for process in self.running()):
                self._give(shard, self.running()[0].node.name)
        self._spread()

    def judge(self) -> None:
        """All registries answer the roles, and clients go to the masters; nodes that are gone are
        forgotten after their time."""
        self.world.pass_time(SETTLED_MS)
        self._agree(replace(self._expected(), gone=False))
        self.world.pass_time(int(ROUTES_S * 1_000) + CLIENT_MS)
        for client in self.clients:
            for named in IDS:
                master, _ = self.roles[partition_of(named.encode(), self.shards)]
                expected = next(node.address for node in self.nodes if node.name == master)
                if (found := client.ask(named)) != expected:
                    raise Finding(LIVENESS, f"a client asks {found} for {named}, not {expected}")
        self._change_and_restart()
        self.world.pass_time(EXPIRE_AFTER_MS + SCAN_EVERY_MS)
        self._agree(self._expected())

    def _change_and_restart(self) -> None:
        """A change is registered at once, and with the empty registry of a process that starts
        again."""
        shard, node = self.world.random.randrange(self.shards), self.running()[-1].node
        self._give(shard, self.running()[0].node.name)
        self._spread()
        self.world.pass_time(PROMPT_MS)
        self._agree(replace(self._expected(), gone=False))
        self._end(node, "is killed")
        node.process = Process(self, node)
        self._spread()
        self.world.pass_time(AFTER_MS + PROMPT_MS)
        self._agree(replace(self._expected(), gone=False))

    def _expected(self) -> _Expected:
        names = sorted(process.node.name for process in self.running())
        return _Expected(
            masters={shard: master for shard, (master, _) in self.roles.items()},
            followers={
                shard: [name for name in names if name != master and name in self.holders[shard]]
                for shard, (master, _) in self.roles.items()
            },
            writable={
                shard: master not in self.drained for shard, (master, _) in self.roles.items()
            },
        )

    def _agree(self, expected: _Expected) -> None:
        live = {process.node.name for process in self.running()}
        for process in self.running():
            routes = process.registry.routes(CLUSTER, DELAY)
            found = () if routes is None else routes.routes
            seen = _Expected(
                masters={route.shard: route.master.node if route.master else "" for route in found},
                followers={
                    route.shard: [
                        each.node for each in route.followers if expected.gone or each.node in live
                    ]
                    for route in found
                },
                writable={route.shard: bool(route.permissions & WRITE) for route in found},
                gone=expected.gone,
            )
            if seen != expected:
                raise Finding(
                    LIVENESS, f"the registry of {process.node.name} says {seen}, not {expected}"
                )


class _Request(Struct):
    """A registration that was sent."""

    sender: Process
    peer: Peer
    registration: Registration
    is_over: bool = False
    """It was answered, or the time for it is over."""


class _Expected(Struct, frozen=True, kw_only=True):
    """The routes of a topic."""

    masters: dict[int, str]
    followers: dict[int, list[str]]
    writable: dict[int, bool]
    gone: bool = True
    """Nodes that are gone count."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The counts of one seed."""

    registrations: int
    digest: str


def _broken(text: str) -> Finding:
    return Finding(CORRECTNESS, f"the registry of {text}")


def simulate(seed: int, *, lines: list[str] | None = None) -> Outcome:
    """Simulate one seed. Raises Finding."""
    cluster = Cluster(seed, lines)
    try:
        cluster.world.pass_time(cluster.fault_ms)
        cluster.heal()
        cluster.judge()
    except Exception as error:
        raise Finding(CRASH, f"failed: {error!r}") from error
    return Outcome(registrations=cluster.registered, digest=cluster.world.digest())


def summary(results: Sequence[Outcome]) -> str:
    """Describe many seeds without a finding."""
    return f"{sum(each.registrations for each in results)} registrations"
