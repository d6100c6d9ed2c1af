"""The faults, each from the moment before it until the cluster is whole again; and the bar that goes with it."""

import random
import shutil
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from tests.broker import Clients
from tests.chaos.fleet import SESSION_S, Fleet


class Fault(Struct, frozen=True, kw_only=True):
    """One kind of fault."""

    name: str
    says: str
    count: int
    """How often in a full run."""
    late_s: float
    """The bar: the worst lateness of what was due meanwhile."""
    act: Callable[[Fleet, random.Random], None]


def kill_master(fleet: Fleet, _: random.Random) -> None:
    """kill -9 of the node that is master of most shards; it comes back once others have taken over."""
    name = fleet.busiest()
    fleet.nodes[name].kill()
    fleet.wait_led(without=name)
    fleet.nodes[name].start()


def freeze_master(fleet: Fleet, dice: random.Random) -> None:
    """SIGSTOP of the node that is master of most shards, for 1 to 20 s."""
    name = fleet.busiest()
    node = fleet.nodes[name]
    until_s = time.monotonic() + dice.uniform(1.0, 20.0)
    node.freeze()
    try:
        if until_s - time.monotonic() > SESSION_S * 2:
            fleet.wait_led(without=name)
        time.sleep(max(0.0, until_s - time.monotonic()))
    finally:
        node.thaw()
    node.wait_ready()
    fleet.wait_led()


def hand_over(fleet: Fleet, dice: random.Random) -> None:
    """A planned hand-over of one shard to another node."""
    shard, master = dice.choice(sorted(fleet.masters().items()))
    other = dice.choice(sorted(set(fleet.running) - {master}))
    answer = fleet.any().post(f"/v1/shards/{shard}/transfer?to={other}", None)
    assert answer["result"] == "done", answer
    assert fleet.wait_led()[shard] == other


def roll(fleet: Fleet, _: random.Random) -> None:
    """A rolling restart of all nodes."""
    for name, node in fleet.nodes.items():
        assert node.stop() == 0
        fleet.wait_led(without=name)
        node.start()


def lose_disk(fleet: Fleet, _: random.Random) -> None:
    """kill -9 of the busiest node, and its data directory with it; an empty one takes its name."""
    name = fleet.busiest()
    node = fleet.nodes[name]
    node.kill()
    shutil.rmtree(node.data_dir)
    fleet.wait_led(without=name)
    node.start()


FAULTS = (
    Fault(name="kill", says="kill -9 of a master", count=30, late_s=SESSION_S + 3, act=kill_master),
    Fault(name="freeze", says="SIGSTOP of a master, 1 to 20 s", count=30, late_s=SESSION_S + 3, act=freeze_master),
    Fault(name="transfer", says="planned hand-over", count=30, late_s=1, act=hand_over),
    Fault(name="roll", says="rolling restart of all nodes", count=5, late_s=2, act=roll),
    Fault(name="disk", says="a node's data directory deleted", count=5, late_s=SESSION_S + 3, act=lose_disk),
)


def plan(names: list[str], count: int | None) -> Iterator[Fault]:
    """The faults to be done, in rounds, so that no kind has all of the machine's bad minutes."""
    chosen = [fault for fault in FAULTS if fault.name in names]
    most = max(fault.count if count is None else count for fault in chosen)
    for at in range(most):
        for fault in chosen:
            if at < (fault.count if count is None else count):
                yield fault


def epochs_complaints(kafka: Clients, progress_topic: str, shards: int) -> list[str]:
    """Law 5 from outside: in every shard's progress log the epochs never go back, and one epoch is one node's."""
    from chronos.core.progress import unpack_progress
    from tests.bench.load import read

    found = []
    for shard in range(shards):
        last, node = 0, ""
        for batch in read(kafka.bootstrap, progress_topic, shard):
            if batch is None:
                break
            for message in batch:
                progress = unpack_progress(message.value())
                if progress.log_epoch < last:
                    found.append(
                        f"shard {shard}: {progress.node} committed with epoch {progress.log_epoch} after {last}"
                    )
                elif progress.log_epoch == last and progress.instance != node:
                    found.append(f"shard {shard}: epoch {last} is used by two nodes")
                last, node = progress.log_epoch, progress.instance
    return found
