"""The faults: each runs from the moment before it until the cluster has recovered, and has a bar
for lateness.

Besides the lateness that the drill measures, a fault raises AssertionError if the cluster does not
do what it should, and ServiceError if it does not recover."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from tests.chaos.fleet import SESSION_S, Fleet
from tests.chaos.world import LINKED, PLAIN, QUORUMS, STALLED, Scene, World
from tests.harness.broker import Broker, Clients, Cluster
from tests.harness.proxy import Link

CLOCK_WRONG_S = 4.0
"""How long a stepped clock stays wrong after the node has reported it."""

QUORUM_LOST_S = 30.0

CALM_S = 1_800.0
"""How long a cluster under full load keeps its roles without a fault."""

LOOK_S = 5.0
"""Time between two looks at the roles of a cluster without a fault."""

STALL_S = 20.0
"""How long a broker is frozen."""

AWAKE_S = 8.0
"""How long the machine stays busy after the broker was woken."""

CUT_AFTER_S = 3.0
"""How long a cut lasts after other nodes have taken over."""


class Fault(Struct, frozen=True, kw_only=True):
    """One kind of fault."""

    name: str
    title: str
    scene: Scene
    """The cluster that the fault needs."""
    count: int
    """How often in a full run."""
    takes_s: int
    """Estimated time until the cluster has recovered, seconds."""
    late_s: float
    """The bar: the worst lateness allowed for messages due meanwhile, seconds."""
    beyond_s: float | None = None
    """Or so much more than a bare transactional producer needs in the same fault; None: no more
    than `late_s` in any case."""
    act: Callable[[World, random.Random], None]


def no_fault(world: World, _: random.Random) -> None:
    """Nothing happens for half an hour: no role changes."""
    fleet = world.fleet
    before = published(fleet)
    until_s = time.monotonic() + CALM_S
    while (left_s := until_s - time.monotonic()) > 0:
        assert_unmoved(fleet, before)
        time.sleep(min(LOOK_S, left_s))


def kill_master(world: World, _: random.Random) -> None:
    """kill -9 of the node that is master of most shards; it is started again once other nodes have
    taken over."""
    fleet = world.fleet
    name = fleet.busiest()
    fleet.nodes[name].kill()
    fleet.wait_led(without=name)
    fleet.nodes[name].start()
    world.wait_recovered()


def freeze_master(world: World, dice: random.Random) -> None:
    """SIGSTOP of the node that is master of most shards, for 1 to 20 s."""
    fleet = world.fleet
    name = fleet.busiest()
    node = fleet.nodes[name]
    until_s = time.monotonic() + dice.uniform(1.0, 20.0)
    node.freeze()
    try:
        if until_s - time.monotonic() > fleet.session_s * 2:
            fleet.wait_led(without=name)
        time.sleep(max(0.0, until_s - time.monotonic()))
    finally:
        node.thaw()
    # A thawed node still reports that it is ready until it notices the end of its session.
    world.wait_recovered()


def freeze_controller(world: World, dice: random.Random) -> None:
    """SIGSTOP of the controller at a random moment while it publishes roles; it resumes after
    another one has taken over."""
    fleet = world.fleet
    name = fleet.nodes_seen()["controller"]
    node = fleet.nodes[name]
    other = next(each for other, each in fleet.running.items() if other != name)
    stopped_s = time.monotonic() + dice.uniform(0.2, 0.5)
    # Every change is published by itself: the controller is in a transaction most of the time.
    while time.monotonic() < stopped_s:
        status, _ = other.ask("PUT", "/v1/rates/frozen", {"rate": f"{dice.randrange(1, 1_000)}/s"})
        assert status in (200, 202), status
    node.freeze()
    try:
        other.wait_until(
            lambda: other.get("/v1/nodes")["controller"] not in (name, None),
            "see another controller",
            timeout_s=60.0,
        )
        fleet.wait_led(without=name)
    finally:
        node.thaw()
    world.wait_recovered()
    fleet.wait_agreed()


def hand_over(world: World, dice: random.Random) -> None:
    """A planned hand-over of one shard to another node."""
    fleet = world.fleet
    shard, master = dice.choice(sorted(fleet.masters().items()))
    other = dice.choice(sorted(set(fleet.running) - {master}))
    fleet.transfer(shard, other)
    assert fleet.wait_led()[shard] == other


def roll(world: World, _: random.Random) -> None:
    """A rolling restart of all nodes."""
    fleet = world.fleet
    for name, node in fleet.nodes.items():
        assert node.stop() == 0
        fleet.wait_led(without=name)
        node.start()
        # The other nodes list it as a member only a moment later.
        world.wait_recovered()


def lose_disk(world: World, _: random.Random) -> None:
    """kill -9 of the busiest node, and its data directory deleted; it starts again with an empty
    one."""
    fleet = world.fleet
    name = fleet.busiest()
    node = fleet.nodes[name]
    node.kill()
    shutil.rmtree(node.data_dir)
    fleet.wait_led(without=name)
    node.start()
    world.wait_recovered()


def published(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the last changes of roles, once all nodes know them; a master may have begun to lead
    only later."""
    fleet.wait_agreed()
    return list(fleet.nodes_seen()["history"])


def assert_unmoved(fleet: Fleet, before: list[dict[str, Any]]) -> None:
    """Assert that no role has changed since, except to spread masters evenly, as happens a minute
    after a node returns."""
    changes = [change for change in fleet.nodes_seen()["history"] if change not in before]
    moved = [change for change in changes if change["why"] != "spread evenly"]
    assert not moved, f"roles changed: {moved}"


def lose_zookeeper(world: World, dice: random.Random) -> None:
    """One ZooKeeper server of three killed, the leader or a follower: no role changes."""
    fleet = world.fleet
    before = published(fleet)
    assert world.zookeeper is not None
    server = dice.choice(world.zookeeper.servers)
    server.kill()
    time.sleep(fleet.session_s + SESSION_S)
    world.wait_recovered()
    assert_unmoved(fleet, before)
    server.start()
    world.wait_recovered()


def lose_quorum(world: World, dice: random.Random, *, away_s: float = QUORUM_LOST_S) -> None:
    """Two ZooKeeper servers of three killed: masters continue, and roles can move again once there
    is a quorum."""
    fleet = world.fleet
    before = published(fleet)
    assert world.zookeeper is not None
    servers = dice.sample(world.zookeeper.servers, 2)
    until_s = time.monotonic() + away_s
    for server in servers:
        server.kill()
    for node in fleet.running.values():
        node.wait_until(
            lambda node=node: not node.get("/v1/nodes")["sure"],  # type: ignore[misc]
            "notice that its session is uncertain",
        )  # type: ignore[misc]
    time.sleep(max(0.0, until_s - time.monotonic()))
    assert_unmoved(fleet, before)
    world.zookeeper.start()
    world.wait_recovered()
    hand_over(world, dice)


def lose_broker(world: World, dice: random.Random) -> None:
    """One Kafka broker of three killed; it is started again once the cluster works without it."""
    assert isinstance(world.kafka, Cluster)
    broker = dice.choice(world.kafka.brokers)
    broker.kill()
    time.sleep(world.fleet.session_s)
    world.wait_recovered()
    broker.start()
    world.kafka.wait_in_sync()
    world.wait_recovered()


def stall_broker(world: World, _: random.Random) -> None:
    """The only Kafka broker frozen beside two busy loops, and woken: no role moves."""
    assert isinstance(world.kafka, Broker)
    before = published(world.fleet)
    with busy(2, seconds=STALL_S + AWAKE_S):
        world.kafka.freeze()
        try:
            time.sleep(STALL_S)
        finally:
            world.kafka.thaw()
        time.sleep(AWAKE_S)
    world.wait_recovered()
    assert_unmoved(world.fleet, before)


@contextmanager
def busy(loops: int, *, seconds: float) -> Iterator[None]:
    """Keep so many processors busy while the block runs, for at most this time."""
    program = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def step_clock(world: World, wrong_s: int) -> None:
    """A master's clock is stepped: it reports that, delivers nothing, and continues without a
    restart when the clock is right."""
    fleet = world.fleet
    name = fleet.busiest()
    node = fleet.nodes[name]
    process = node.pid
    aborts = {shard["shard"]: shard["aborts"] for shard in node.shards()}

    def assigned() -> list[dict[str, Any]]:
        # A replica that brokers made wait for too long begins to lead again, and cannot until the
        # clock is right.
        return [shard for shard in node.shards() if shard["master"] == name]

    def alarmed() -> bool:
        return all("NTP" in (shard["paused"] or "") for shard in assigned())

    node.set_clock(wrong_s * 1_000)
    try:
        node.wait_until(alarmed, "report that its clock is wrong")
        status, _ = node.ask("GET", "/readyz")
        assert status == 503, "a node that delivers nothing reports that it is ready"
        time.sleep(CLOCK_WRONG_S)
        node.wait_until(alarmed, "still report that its clock is wrong")
        found = assigned()
        assert found, "its shards were moved"
        assert all(shard["aborts"] > aborts[shard["shard"]] for shard in found), (
            "no step was aborted"
        )
        latest_ms = time.time_ns() // 1_000_000 + 500
        assert all(shard["cursor"]["due_ms"] <= latest_ms for shard in found), (
            "a cursor ran into a false future"
        )
    finally:
        node.set_clock(0)
    world.wait_recovered()
    assert node.pid == process


def ahead(world: World, _: random.Random) -> None:
    """10 s forward."""
    step_clock(world, 10)


def behind(world: World, _: random.Random) -> None:
    """10 s back."""
    step_clock(world, -10)


def hour(world: World, _: random.Random) -> None:
    """1 h forward."""
    step_clock(world, 3_600)


def cut_off(world: World, name: str, links: list[Link], *, silent: bool) -> None:
    """Cut the links of a node until other nodes have taken over; restored, the same process takes
    part again."""
    fleet = world.fleet
    node = fleet.nodes[name]
    process = node.pid
    for link in links:
        link.cut(silent=silent)
    try:
        fleet.wait_led(without=name)
        time.sleep(CUT_AFTER_S)
    finally:
        for link in links:
            link.mend()
    world.wait_recovered()
    assert node.pid == process


def cut_zookeeper(world: World, dice: random.Random) -> None:
    """The network between the busiest node and ZooKeeper cut: packets dropped, or connections
    refused."""
    name = world.fleet.busiest()
    cut_off(world, name, world.lines[name].zookeeper, silent=dice.random() < 0.5)


def cut_kafka(world: World, dice: random.Random) -> None:
    """The same between the busiest node and Kafka."""
    name = world.fleet.busiest()
    cut_off(world, name, world.lines[name].kafka, silent=dice.random() < 0.5)


FAILOVER_S = SESSION_S + 3
CLOCK_S = CLOCK_WRONG_S + 3

FAULTS = (
    Fault(
        name="none",
        title="no fault for 30 minutes",
        scene=PLAIN,
        count=1,
        takes_s=1_800,
        late_s=1,
        act=no_fault,
    ),
    Fault(
        name="kill",
        title="kill -9 of a master",
        scene=PLAIN,
        count=30,
        takes_s=14,
        late_s=FAILOVER_S,
        act=kill_master,
    ),
    Fault(
        name="freeze",
        title="SIGSTOP of a master, 1 to 20 s",
        scene=PLAIN,
        count=30,
        takes_s=16,
        late_s=FAILOVER_S,
        act=freeze_master,
    ),
    Fault(
        name="controller",
        title="SIGSTOP of the controller while it publishes",
        scene=PLAIN,
        count=10,
        takes_s=16,
        late_s=FAILOVER_S,
        act=freeze_controller,
    ),
    Fault(
        name="transfer",
        title="planned hand-over",
        scene=PLAIN,
        count=30,
        takes_s=2,
        late_s=1,
        act=hand_over,
    ),
    Fault(
        name="roll",
        title="rolling restart of all nodes",
        scene=PLAIN,
        count=5,
        takes_s=20,
        late_s=2,
        act=roll,
    ),
    Fault(
        name="disk",
        title="a node's data directory deleted",
        scene=PLAIN,
        count=5,
        takes_s=20,
        late_s=FAILOVER_S,
        act=lose_disk,
    ),
    Fault(
        name="ahead",
        title="a master's clock stepped 10 s forward",
        scene=PLAIN,
        count=5,
        takes_s=8,
        late_s=CLOCK_S,
        act=ahead,
    ),
    Fault(
        name="behind",
        title="a master's clock stepped 10 s back",
        scene=PLAIN,
        count=5,
        takes_s=8,
        late_s=CLOCK_S,
        act=behind,
    ),
    Fault(
        name="hour",
        title="a master's clock stepped 1 h forward",
        scene=PLAIN,
        count=5,
        takes_s=8,
        late_s=CLOCK_S,
        act=hour,
    ),
    Fault(
        name="cut-zookeeper",
        title="network cut between a master and ZooKeeper",
        scene=LINKED,
        count=10,
        takes_s=13,
        late_s=FAILOVER_S,
        act=cut_zookeeper,
    ),
    Fault(
        name="cut-kafka",
        title="network cut between a master and Kafka",
        scene=LINKED,
        count=10,
        takes_s=14,
        late_s=FAILOVER_S,
        act=cut_kafka,
    ),
    Fault(
        name="zookeeper",
        title="ZooKeeper server killed, of 3",
        scene=QUORUMS,
        count=5,
        takes_s=12,
        late_s=FAILOVER_S,
        act=lose_zookeeper,
    ),
    Fault(
        name="quorum",
        title="ZooKeeper quorum lost for 30 s",
        scene=QUORUMS,
        count=5,
        takes_s=40,
        late_s=FAILOVER_S,
        act=lose_quorum,
    ),
    Fault(
        name="broker",
        title="Kafka broker killed, of 3",
        scene=QUORUMS,
        count=10,
        takes_s=20,
        late_s=10,
        act=lose_broker,
    ),
    Fault(
        name="stall",
        title="Kafka broker frozen for 20 s, beside two busy loops",
        scene=STALLED,
        count=30,
        takes_s=30,
        late_s=STALL_S + 3,
        beyond_s=3,
        act=stall_broker,
    ),
)


OF_ZOOKEEPER = frozenset({"cut-zookeeper", "zookeeper", "quorum"})
"""The faults that need one."""


def plan(names: list[str], count: int | None) -> Iterator[tuple[Scene, list[Fault]]]:
    """The faults to run, by scene and in rounds, so that a slow phase of the machine hits every
    kind alike."""
    for scene in (PLAIN, LINKED, QUORUMS, STALLED):
        chosen = [fault for fault in FAULTS if fault.name in names and fault.scene is scene]
        counts = {fault.name: fault.count if count is None else count for fault in chosen}
        rounds = range(max(counts.values(), default=0))
        if chosen:
            yield scene, [fault for at in rounds for fault in chosen if at < counts[fault.name]]


def epochs_complaints(kafka: Clients, progress_topic: str, shards: int) -> list[str]:
    """Violations of law 5 in the progress logs: an epoch that goes back, or one that two nodes
    used."""
    from chronos.core.shard.progress import unpack_progress
    from tests.bench.load import read

    found = []
    for shard in range(shards):
        last, node = 0, ""
        for batch in read(kafka.bootstrap, progress_topic, shard):
            if batch is None:
                break
            for message in batch:
                progress = unpack_progress(message.value(), shards)
                if progress.log_epoch < last:
                    found.append(
                        f"shard {shard}: {progress.node} committed with epoch "
                        f"{progress.log_epoch} after {last}"
                    )
                elif progress.log_epoch == last and progress.instance != node:
                    found.append(f"shard {shard}: two nodes used epoch {last}")
                last, node = progress.log_epoch, progress.instance
    return found
