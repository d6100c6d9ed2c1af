"""The replacement of stores by checkpoints: if an operator asks for it with `--from-checkpoint`,
and if the disk has no room for it; and what a process that is killed meanwhile leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.checkpoints.folder import CheckpointFolder
from chronos.adapters.clock import SystemClock
from chronos.adapters.rocksdb import RocksStore
from chronos.config import Config, load
from chronos.core.keys import IDENTITY_KEY, STATE_KEY
from chronos.core.shard.codec import Identity, State, pack_identity, pack_state
from chronos.errors import ChronosError, ConfigurationError, NoSpace, Retry, Stop
from chronos.node import Node
from chronos.node.bootstrap import FULL_MS, StoreBootstrap
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.data_directory import DataDirectory
from chronos.node.opening import open_store
from chronos.ports import Clock
from chronos.workers.replica.recovery import RecoveryCost
from tests.harness.clock import HandClock
from tests.harness.disk import fill, small_disk
from tests.harness.rows import rows_of
from tests.harness.table import table
from tests.sim.broker import Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer as Caller
from tests.sim.world import World

NOTHING_TO_READ = RecoveryCost(
    store_empty=False, logs_complete=True, records=0, applied_min=0, pull_offset_min=0
)
IDENTITY = Identity(
    cluster="c",
    shard=0,
    shards=1,
    delay_topic="d",
    delay_topic_id="1",
    progress_topic="p",
    progress_topic_id="2",
)


EMPTY = RecoveryCost(
    store_empty=True, logs_complete=True, records=7, applied_min=0, pull_offset_min=0
)


def configured(data_dir: Path, location: Path) -> Config:
    """A node on Kafka with one shard and a location for checkpoints."""
    return load(
        None,
        {},
        [
            f"node.data_dir={data_dir}",
            f"checkpoints.location={location}",
            "log.kind=kafka",
            "shards=1",
            "log.kafka.bootstrap_servers=127.0.0.1:1",
        ],
    )


def made(
    config: Config, clock: Clock, *, reserve_bytes: int = 0, forced: Sequence[int] = ()
) -> tuple[StoreBootstrap, RocksStore]:
    """The bootstrap of a node that has no other nodes, and its store, open."""
    world, directory = World(0), DataDirectory(Path(config.node.data_dir), node="n")
    failures: list[ChronosError] = []
    copier = Copier(directory.path / "copies", node="n", version="1", reserve_bytes=reserve_bytes)
    bootstrap = StoreBootstrap(
        copier,
        checkpoints=CheckpointScheduler(
            config,
            SimLog(Caller(world), Brokers(world, lambda transaction: None)),
            clock,
            copier=copier,
            failed=failures.append,
        ),
        others=None,
        stopping=threading.Event(),
        clock=clock,
        stores=directory.stores,
        forced=forced,
    )
    return bootstrap, open_store(config, directory, 0)


def save_checkpoint(path: Path, config: Config) -> list[tuple[bytes, bytes]]:
    """Save a checkpoint at the location, as another node does, and return its rows."""
    state = State(applied=7, pull_offset=70, cursor_due_ms=5, progress_ms=5)
    store = RocksStore(path / "saved")
    store.write([(STATE_KEY, pack_state(state)), (IDENTITY_KEY, pack_identity(IDENTITY))], [])
    copier = Copier(path / "saved-copies", node="other", version="1")
    folder = CheckpointFolder(
        str(config.checkpoints.location), config.cluster, copier, data_dir=path / "other"
    )
    folder.save(0, store, 1)
    rows = rows_of(store)
    store.close()
    return rows


def test_a_store_that_must_be_replaced_is_not_used_while_the_location_fails(tmp_path: Path) -> None:
    """The logs are complete, so that the store itself would do; once the location works and is
    empty, it does."""
    location = tmp_path / "checkpoints"
    config = configured(tmp_path / "node", location)
    bootstrap, store = made(config, SystemClock(), forced=[0])
    try:
        location.write_text("not a folder")
        for _ in range(2):
            with pytest.raises(
                Retry,
                match=(
                    "no checkpoint can replace the store of shard 0, as --from-checkpoint demands"
                ),
            ):
                bootstrap.restore(store, IDENTITY, NOTHING_TO_READ)
        location.unlink()
        assert bootstrap.restore(store, IDENTITY, NOTHING_TO_READ) is None
    finally:
        store.close()


def test_a_checkpoint_that_found_no_room_is_fetched_again_a_minute_later(tmp_path: Path) -> None:
    """No file of it is written into the reserve of the disk. Its source reads a whole store for
    each, so that the shard does not ask for one at every step."""
    clock, disk = HandClock(), tmp_path / "disk"
    config = configured(disk / "node", tmp_path / "checkpoints")
    rows = save_checkpoint(tmp_path, config)
    with small_disk(disk):
        bootstrap, store = made(config, clock, reserve_bytes=48 << 20)
        try:
            ballast = fill(disk, 24)
            with pytest.raises(NoSpace, match=r"limits\.disk_reserve") as first:
                bootstrap.restore(store, IDENTITY, EMPTY)
            ballast.unlink()
            # The wall clock is set by an hour, which does not shorten the pause.
            clock.stepped += 3_600_000
            clock.now += 3_600_000 + FULL_MS - 1
            with pytest.raises(NoSpace) as second:
                bootstrap.restore(store, IDENTITY, EMPTY)
            assert str(second.value) == str(first.value)
            clock.now += 1
            restored = bootstrap.restore(store, IDENTITY, EMPTY)
            assert restored is not None
            assert rows_of(store) == rows
        finally:
            store.close()


def test_a_checkpoint_behind_the_logs_is_not_kept(tmp_path: Path) -> None:
    """It takes the room of a whole store, and the next restore fetches another one."""
    config = configured(tmp_path / "node", tmp_path / "checkpoints")
    save_checkpoint(tmp_path, config)
    bootstrap, store = made(config, HandClock())
    assert bootstrap.restore(store, IDENTITY, replace(EMPTY, applied_min=8)) is None
    assert [path.name for path in store.path.parent.iterdir()] == ["0"]
    store.close()


@table(
    "left, mended",
    [
        ({"3": "store", "3.fetched.part": "half"}, {"3": "store"}),
        ({"3": "store", "3.fetched": "new"}, {"3": "store"}),
        ({"3": "new", "3.replaced": "store"}, {"3": "new"}),
        ({"3.fetched": "new", "3.replaced": "store"}, {"3": "new"}),
        ({"3.replaced": "store"}, {"3": "store"}),
        ({"13.fetched": "new", "13.fetched.part": "half"}, {}),
        (
            {"3.old": "of an operator", "x.fetched": "?"},
            {"3.old": "of an operator", "x.fetched": "?"},
        ),
    ],
)
def test_what_a_killed_process_left_beside_a_store_is_removed_and_no_only_copy_is(
    tmp_path: Path, left: Mapping[str, str], mended: Mapping[str, str]
) -> None:
    """Also if this node does not get the shard again. A store that was moved away for another one
    is in its place afterwards, or that other one is."""
    stores = tmp_path / "-".join(left) / "shards"
    for name, text in left.items():
        (stores / name).mkdir(parents=True)
        (stores / name / "content").write_text(text)
    begin(stores)
    assert {path.name: (path / "content").read_text() for path in stores.iterdir()} == mended


def begin(stores: Path) -> None:
    """Make the bootstrap of a node that has neither checkpoints nor other nodes."""
    StoreBootstrap(
        Copier(stores.with_name("copies"), node="n", version="1"),
        checkpoints=None,
        others=None,
        stopping=threading.Event(),
        clock=HandClock(),
        stores=stores,
    )


def test_a_store_that_cannot_be_put_back_is_not_begun_anew(tmp_path: Path) -> None:
    """The node does not start; a file system that refuses the move is looked at first."""
    (tmp_path / "3.replaced").mkdir()
    (tmp_path / "3").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Stop, match=r"3\.replaced cannot be moved to .*/3: Not a directory"):
        begin(tmp_path)
    assert (tmp_path / "3.replaced").exists()


# A process that replaces a store, and is killed at the nth change of a folder.
REPLACE = """
import os, signal, sys
from pathlib import Path
from chronos.adapters.rocksdb import RocksStore

folder, left = Path(sys.argv[1]), int(sys.argv[2])
store = RocksStore(folder / "0")
for name in ("0", "new"):
    made = store if name == "0" else RocksStore(folder / name)
    made.write([(b"name", name.encode())], [])
    made.flush()
    if made is not store:
        made.checkpoint(folder / "0.fetched")
        made.close()

def kill(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
store.replace(folder / "0.fetched")
"""
CHANGES = 8


def test_a_process_killed_while_it_replaces_a_store_leaves_one_of_the_two(tmp_path: Path) -> None:
    """At whichever change of a folder: the old one until it is moved away, then the new one."""
    places = [tmp_path / f"{each:02}" for each in range(1, CHANGES + 1)]
    killed = [
        subprocess.Popen([sys.executable, "-c", REPLACE, str(place), str(at)])
        for at, place in enumerate(places, start=1)
    ]
    assert {process.wait(60) for process in killed} == {-9}
    found: list[bytes | None] = []
    complete = []
    for place in places:
        complete.append((place / "0").exists())
        begin(place)
        assert sorted(path.name for path in place.iterdir()) == ["0", "new"]
        store = RocksStore(place / "0")
        found += store.get([b"name"])
        store.close()
    assert found == sorted(found, key=repr)
    assert set(found) == {b"0", b"new"}
    assert not all(complete), "one is killed between the two moves"


def test_a_checkpoint_is_not_asked_of_a_node_that_has_none(tmp_path: Path) -> None:
    """What the failed start has opened is closed: the same process may start a node there."""
    config = load(None, {}, [f"node.data_dir={tmp_path / 'node'}", "limits.disk_reserve=1MB"])
    node = Node(config, from_checkpoint=True)
    with pytest.raises(ConfigurationError, match=r"--from-checkpoint needs checkpoints\.location"):
        node.start()
    again = Node(config)
    again.start()
    again.stop()
