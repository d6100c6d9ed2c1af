"""Checkpoints in a folder and as a stream: a restore returns exactly what was saved, or nothing."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.adapters.checkpoints.files import (
    MANIFEST,
    Copier,
    decode_manifest,
    encode_manifest,
    open_copy,
    pack,
)
from chronos.adapters.checkpoints.folder import CheckpointFolder
from chronos.adapters.rocksdb import RocksStore
from chronos.core.keys import IDENTITY_KEY, STATE_KEY, entry_key
from chronos.core.shard.codec import RULES, Identity, State, pack_identity, pack_state
from chronos.core.shard.digest import digest
from chronos.core.shard.progress import unpack_progress
from chronos.errors import ConfigurationError, NoSpace, Retry, StoreCorrupt
from chronos.ports import Checkpoint, CheckpointFile, Store
from tests.harness.memory import MemoryStore
from tests.harness.rows import rows_of
from tests.unit.drivers import MASTER_RULES, Master, Replica, opened
from tests.unit.histories import SHARDS, Step, histories

NOW_MS = 1_800_000_000_000
SHARD = 3


def identity(topic_id: str = "d1") -> Identity:
    return Identity(
        cluster="c",
        shard=SHARD,
        shards=4,
        delay_topic="delay",
        delay_topic_id=topic_id,
        progress_topic="progress",
        progress_topic_id="p1",
    )


def fill(store: Store, applied: int, topic_id: str = "d1", size: int = 300) -> None:
    """Write pending messages, different ones at each position."""
    state = State(
        applied=applied, pull_offset=10 * applied, cursor_due_ms=5, progress_ms=NOW_MS, pending=size
    )
    random_bytes = random.Random(applied).randbytes
    rows = [(entry_key(NOW_MS + n, n), random_bytes(200 if n else 40_000)) for n in range(size)]
    store.write(
        [*rows, (STATE_KEY, pack_state(state)), (IDENTITY_KEY, pack_identity(identity(topic_id)))],
        [],
    )


class CopyingNode:
    """A node with stores, and a location for checkpoints."""

    def __init__(self, path: Path, kind: str, location: str) -> None:
        self.path = path
        self.kind = kind
        self.location = location
        self.files, self.root = fsspec.core.url_to_fs(location)
        self.stores: list[Store] = []
        self.copier = self.new_copier("node-1")
        self.folder = CheckpointFolder(location, "c", self.copier, data_dir=path / "data")

    def new_copier(self, node: str) -> Copier:
        open_store = open_copy if self.kind == "rocks" else MemoryStore.restored
        return Copier(self.path / "scratch" / node, node=node, version="9.9", open_store=open_store)

    def other(self, node: str) -> CheckpointFolder:
        """Another node with the same location."""
        return CheckpointFolder(
            self.location, "c", self.new_copier(node), data_dir=self.path / "data"
        )

    def store(self) -> Store:
        path = self.path / f"store-{len(self.stores)}"
        self.stores.append(self.opened(path))
        return self.stores[-1]

    def opened(self, path: Path) -> Store:
        return (
            RocksStore(path, memtable_bytes=1 << 20)
            if self.kind == "rocks"
            else MemoryStore.restored(path)
        )

    def content(self, path: Path) -> list[tuple[bytes, bytes]]:
        """The rows of a restored store, opened to write."""
        store = self.opened(path)
        rows = everything(store)
        store.close()
        return rows

    def place(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/c/{SHARD}/{name}"

    def left(self) -> list[Path]:
        """Files in the folders for unfinished work."""
        return [*self.path.glob("scratch/*/*"), *self.path.glob("*.part")]


def everything(store: Store) -> list[tuple[bytes, bytes]]:
    return rows_of(store)


@pytest.fixture(params=["rocks-file", "memory-file", "memory-object"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CopyingNode]:
    """Both stores in a folder, and one in object storage."""
    kind, place = request.param.split("-")
    location = (
        str(tmp_path / "place") if place == "file" else f"memory://bucket-{uuid.uuid4().hex}/deep"
    )
    made = CopyingNode(tmp_path, kind, location)
    yield made
    for store in made.stores:
        store.close()
    if place == "object":
        made.files.rm(made.root, recursive=True) if made.files.exists(made.root) else None


# ----------------------------------------------------------------------------------- There and back


def test_a_store_comes_back_from_its_checkpoint(case: CopyingNode, tmp_path: Path) -> None:
    """Every row of it; no temporary files remain."""
    store = case.store()
    fill(store, 7)
    made = case.folder.save(SHARD, store, NOW_MS)
    rows = everything(store)
    fill(store, 8, size=10)
    assert case.folder.kept(SHARD, identity())[0] == made
    assert case.folder.restore(SHARD, identity(), tmp_path / "back") == made
    assert case.content(tmp_path / "back") == rows
    assert case.left() == []


def test_a_manifest_names_the_shard_the_node_and_the_positions(case: CopyingNode) -> None:
    """As readable JSON, in a folder whose name sorts by position."""
    store = case.store()
    fill(store, 7)
    made = case.folder.save(SHARD, store, NOW_MS)
    assert made.name == "00000000000000000007-node-1"
    manifest = json.loads(case.files.cat_file(f"{case.place(made.name)}/{MANIFEST}"))
    assert (
        manifest["applied"],
        manifest["pull_offset"],
        manifest["cursor_due_ms"],
        manifest["pending"],
    ) == (
        7,
        70,
        5,
        300,
    )
    assert (manifest["shard"], manifest["node"], manifest["version"], manifest["made_at_ms"]) == (
        SHARD,
        "node-1",
        "9.9",
        NOW_MS,
    )
    assert manifest["digest"] == digest(store)
    there = {
        Path(each["name"]).name: each["size"]
        for each in case.files.ls(case.place(made.name), detail=True)
    }
    assert {file["name"]: file["bytes"] for file in manifest["files"]} == {
        name: size for name, size in there.items() if name != MANIFEST
    }


def test_a_shard_without_messages_has_a_checkpoint(case: CopyingNode, tmp_path: Path) -> None:
    """Its position is 0."""
    store = case.store()
    store.write([(IDENTITY_KEY, pack_identity(identity()))], [])
    assert case.folder.save(SHARD, store, NOW_MS).applied == 0
    restored = case.folder.restore(SHARD, identity(), tmp_path / "back")
    assert restored is not None
    assert case.content(tmp_path / "back") == everything(store)


def test_without_a_checkpoint_nothing_is_restored(case: CopyingNode, tmp_path: Path) -> None:
    """The result is None, and no folder is created."""
    assert case.folder.kept(SHARD, identity()) == []
    assert case.folder.restore(SHARD, identity(), tmp_path / "back") is None
    assert not (tmp_path / "back").exists()


def test_a_store_is_never_overwritten(case: CopyingNode, tmp_path: Path) -> None:
    """An existing folder keeps its content."""
    store = case.store()
    fill(store, 7)
    case.folder.save(SHARD, store, NOW_MS)
    (tmp_path / "back").mkdir()
    with pytest.raises(ConfigurationError, match="is there already"):
        case.folder.restore(SHARD, identity(), tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(history=histories, at=st.integers(0, 12), kind=st.sampled_from(["rocks", "memory"]))
def test_a_restored_replica_that_replays_the_rest_has_the_digest_of_its_master(
    tmp_path: Path, history: list[Step], at: int, kind: str
) -> None:
    """A random history, a checkpoint at any point of it, and the rest of the two logs."""
    path = tmp_path / uuid.uuid4().hex
    master = Master()
    master.play(history)
    at = min(at, len(master.progress))
    case = CopyingNode(path, kind, str(path / "place"))
    store = case.store()
    store.write([*master.snapshots[at].items(), (IDENTITY_KEY, pack_identity(identity()))], [])
    case.folder.save(SHARD, store, NOW_MS)
    store.close()
    assert case.folder.restore(SHARD, identity(), path / "back") is not None
    rows = dict(case.content(path / "back"))
    del rows[IDENTITY_KEY]
    replica = Replica(master, at, MASTER_RULES, 1_000_000)
    replica.store.rows = rows
    replica.shard = opened(replica.store)
    for offset, timestamp_ms, data in master.progress[at:]:
        replica.follow(unpack_progress(data, SHARDS), offset, timestamp_ms)
    assert digest(replica.store) == digest(master.store)


# ------------------------------------------------------------------------------------------ Several


def test_the_furthest_checkpoint_comes_first_of_any_node(case: CopyingNode) -> None:
    """By the position in the progress log, not by the clock."""
    store, other = case.store(), case.other("node-2")
    for applied, folder in ((9, case.folder), (100, other), (20, case.folder)):
        fill(store, applied)
        folder.save(SHARD, store, NOW_MS - applied)
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity())] == [
        100,
        20,
        9,
    ]
    assert case.folder.kept(SHARD + 1, identity()) == []


def test_a_checkpoint_of_the_same_state_is_not_made_again(case: CopyingNode) -> None:
    """The first one of a node stays; it is made again when a file of it is missing."""
    store = case.store()
    fill(store, 7)
    first = case.folder.save(SHARD, store, NOW_MS)
    assert case.folder.save(SHARD, store, NOW_MS + 1) == first
    case.files.rm_file(f"{case.place(first.name)}/{first.files[0].name}")
    assert not case.folder.is_intact(first)
    second = case.folder.save(SHARD, store, NOW_MS + 2)
    assert second.made_at_ms == NOW_MS + 2
    assert case.folder.is_intact(second)
    case.folder._check_files(second)


@pytest.mark.parametrize("cut", [True, False], ids=["half a manifest", "none"])
def test_a_checkpoint_without_a_whole_manifest_does_not_count(
    case: CopyingNode, tmp_path: Path, cut: bool
) -> None:
    """An upload that was cut short is neither listed nor restored, and its node makes it again."""
    store = case.store()
    fill(store, 7)
    case.folder.save(SHARD, store, NOW_MS)
    fill(store, 8)
    half = case.folder.save(SHARD, store, NOW_MS)
    manifest = f"{case.place(half.name)}/{MANIFEST}"
    if cut:
        case.files.pipe_file(manifest, case.files.cat_file(manifest)[:100])
    else:
        case.files.rm_file(manifest)
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity())] == [7]
    restored = case.folder.restore(SHARD, identity(), tmp_path / "back")
    assert restored is not None
    assert restored.applied == 7
    case.folder.save(SHARD, store, NOW_MS)
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity())] == [8, 7]


def test_checkpoints_of_other_topics_are_left_alone(case: CopyingNode, tmp_path: Path) -> None:
    """A topic that was deleted and created again starts at 0: checkpoints of the old one are
    further, and must not be used."""
    store = case.store()
    fill(store, 900, topic_id="old")
    case.folder.save(SHARD, store, NOW_MS)
    for applied in (1, 2, 3, 4):
        fill(store, applied)
        case.folder.save(SHARD, store, NOW_MS)
    newest = case.folder.restore(SHARD, identity(), tmp_path / "back")
    assert newest is not None
    assert newest.applied == 4
    case.folder.prune(SHARD, identity(), 3)
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity())] == [4, 3, 2]
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity("old"))] == [900]


def test_pruning_keeps_the_furthest_and_removes_older_incomplete_ones(case: CopyingNode) -> None:
    """An incomplete one that is further may be an upload under way."""
    store = case.store()
    for applied in range(1, 7):
        fill(store, applied)
        made = case.folder.save(SHARD, store, NOW_MS)
        if applied in (1, 6):
            case.files.rm_file(f"{case.place(made.name)}/{MANIFEST}")
    assert case.folder.prune(SHARD, identity(), 9) == []
    removed = case.folder.prune(SHARD, identity(), 3)
    assert removed == ["00000000000000000002-node-1", "00000000000000000001-node-1"]
    assert [checkpoint.applied for checkpoint in case.folder.kept(SHARD, identity())] == [5, 4, 3]
    assert case.files.exists(case.place("00000000000000000006-node-1"))
    assert not case.files.exists(case.place("00000000000000000002-node-1"))


def test_a_manifest_has_its_golden_bytes() -> None:
    """A newer node must read what an older one wrote: another meaning needs another format
    number."""
    assert decode_manifest(GOLDEN.encode(), "here") == Checkpoint(
        format=1,
        rules=1,
        shard=SHARD,
        node="n-1",
        version="0.1.0",
        made_at_ms=NOW_MS,
        identity=identity(),
        applied=7,
        pull_offset=70,
        cursor_due_ms=5,
        cursor_offset=6,
        progress_ms=8,
        pending=9,
        digest="0123",
        remembered_ms=21_780_000,
        files=(CheckpointFile(name="000008.sst", bytes=12, blake2b="ab"),),
    )
    assert json.loads(encode_manifest(decode_manifest(GOLDEN.encode(), "here"))) == json.loads(
        GOLDEN
    )


GOLDEN = """{
  "format": 1, "rules": 1, "shard": 3, "node": "n-1", "version": "0.1.0", "made_at_ms": 1800000000000,
  "identity": ["c", 3, 4, "delay", "d1", "progress", "p1"],
  "applied": 7, "pull_offset": 70, "cursor_due_ms": 5, "cursor_offset": 6, "progress_ms": 8, "pending": 9,
  "digest": "0123", "remembered_ms": 21780000,
  "files": [{"name": "000008.sst", "bytes": 12, "blake2b": "ab"}]
}"""  # noqa: E501


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (
            RULES + 1,
            f"here was written by rules {RULES + 1}, .* up to {RULES}: .* Upgrade",
        ),
        (0, "here names rules 0, which there never were"),
        ("x", "this checkpoint is damaged"),
    ],
)
def test_rules_that_are_not_known_are_named_whatever_else_a_manifest_has(
    rules: object, why: str
) -> None:
    with pytest.raises(StoreCorrupt, match=why):
        decode_manifest(json.dumps({"format": 1, "rules": rules, "shard": []}).encode(), "here")


# ------------------------------------------------------------------------------- Storage that fails


class Flaky(MemoryFileSystem):
    """Object storage that fails on demand."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    writes_left: ClassVar[int] = 10**9
    rotten: ClassVar[bool] = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            if Flaky.writes_left == 0:
                raise PermissionError("403: the token has expired; https://me:hunter2@there/c")
            Flaky.writes_left -= 1
        opened = super()._open(path, mode, **options)
        return io.BytesIO(flip(opened.getvalue())) if Flaky.rotten and mode == "rb" else opened


@pytest.fixture
def flaky() -> type[Flaky]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store.clear()
    Flaky.writes_left, Flaky.rotten = 10**9, False
    return Flaky


def test_an_upload_that_is_cut_short_at_any_file_does_not_count(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    """The next attempt completes it; errors do not show passwords."""
    case = CopyingNode(tmp_path, "rocks", "flaky://bucket/deep")
    store = case.store()
    fill(store, 7)
    with case.copier.temporary_copy(SHARD, store, NOW_MS) as (_, described):
        files = len(described.files)
    for writes in range(files + 1):
        flaky.writes_left = writes
        with pytest.raises(Retry, match="token has expired") as raised:
            case.folder.save(SHARD, store, NOW_MS)
        assert "hunter2" not in str(raised.value)
        assert case.folder.kept(SHARD, identity()) == []
        assert case.left() == []
    flaky.writes_left = files + 1
    made = case.folder.save(SHARD, store, NOW_MS)
    # Made again because a file is missing, and cut short in that: the old manifest does not count
    # for it.
    case.files.rm_file(f"{case.place(made.name)}/{made.files[0].name}")
    flaky.writes_left = 1
    with pytest.raises(Retry, match="token has expired"):
        case.folder.save(SHARD, store, NOW_MS)
    assert case.folder.kept(SHARD, identity()) == []
    flaky.writes_left = files + 1
    made = case.folder.save(SHARD, store, NOW_MS)
    assert case.folder.kept(SHARD, identity()) == [made]
    case.folder._check_files(made)
    store.close()


def test_storage_that_returns_other_bytes_gets_no_checkpoint(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    """Everything is read back before it counts: the logs must not be trimmed behind a copy that
    cannot be read."""
    case = CopyingNode(tmp_path, "rocks", "flaky://bucket/deep")
    store = case.store()
    fill(store, 7)
    flaky.rotten = True
    with pytest.raises(Retry, match="does not give back what was written"):
        case.folder.save(SHARD, store, NOW_MS)
    flaky.rotten = False
    assert case.folder.kept(SHARD, identity()) == []
    store.close()


def test_a_damaged_store_makes_no_checkpoint(tmp_path: Path) -> None:
    """Reading the copy finds the damage, so the sound checkpoints are not pruned for it."""
    case = CopyingNode(tmp_path, "rocks", str(tmp_path / "place"))
    store = case.store()
    fill(store, 7, size=3_000)
    store.flush()
    (table,) = sorted((tmp_path / "store-0").glob("*.sst"), key=lambda file: file.stat().st_size)[
        -1:
    ]
    table.write_bytes(flip(table.read_bytes()))
    with pytest.raises(StoreCorrupt, match="so the store is damaged too"):
        case.folder.save(SHARD, store, NOW_MS)
    assert case.folder.kept(SHARD, identity()) == []
    assert case.left() == []
    store.close()


# ------------------------------------------------------------------------------------------- Damage


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    if not data:
        return data
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "one bit": flip,
    "cut short": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
    "gone": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_next_older_one(
    case: CopyingNode, tmp_path: Path, damage: str
) -> None:
    """Whichever file is damaged, the manifest included; no temporary files remain."""
    store = case.store()
    fill(store, 7)
    case.folder.save(SHARD, store, NOW_MS)
    fill(store, 8)
    made = case.folder.save(SHARD, store, NOW_MS)
    for name in [MANIFEST, *(file.name for file in made.files)]:
        path = f"{case.place(made.name)}/{name}"
        data = case.files.cat_file(path)
        changed = DAMAGES[damage](data)
        if changed == data:
            continue  # an empty file cannot be emptied
        if changed is None:
            case.files.rm_file(path)
        else:
            case.files.pipe_file(path, changed)
        if name != MANIFEST:
            with pytest.raises(StoreCorrupt, match=r"another checkpoint"):
                case.folder._check_files(made)
            with pytest.raises(StoreCorrupt, match=r"another checkpoint"):
                case.folder.fetch(made, tmp_path / "back")
            assert case.folder.is_intact(made) == (damage == "one bit" and bool(data))
        if name != MANIFEST or damage not in ("one bit", "longer"):
            restored = case.folder.restore(SHARD, identity(), tmp_path / f"back-{name}")
            assert restored is not None
            assert restored.applied == 7
        assert case.left() == []
        case.files.pipe_file(path, data)
    case.folder._check_files(made)


def test_a_restore_with_only_damaged_checkpoints_names_them_all(
    case: CopyingNode, tmp_path: Path
) -> None:
    """It does not start empty, as if there had been none."""
    store = case.store()
    for applied in (7, 8):
        fill(store, applied)
        made = case.folder.save(SHARD, store, NOW_MS)
        path = f"{case.place(made.name)}/{max(made.files, key=lambda file: file.bytes).name}"
        case.files.pipe_file(path, flip(case.files.cat_file(path)))
    with pytest.raises(StoreCorrupt, match="all are damaged") as raised:
        case.folder.restore(SHARD, identity(), tmp_path / "back")
    assert "00000000000000000008-node-1, 00000000000000000007-node-1" in str(raised.value)
    assert not (tmp_path / "back").exists()


def test_a_manifest_of_another_store_is_found(case: CopyingNode, tmp_path: Path) -> None:
    """All files match the manifest, but the store in them does not."""
    store = case.store()
    fill(store, 7)
    made = case.folder.save(SHARD, store, NOW_MS)
    path = f"{case.place(made.name)}/{MANIFEST}"
    manifest = json.loads(case.files.cat_file(path))
    for name, value in (("digest", "0" * 32), ("pull_offset", 71)):
        case.files.pipe_file(path, json.dumps({**manifest, name: value}).encode())
        (wrong,) = case.folder.kept(SHARD, identity())
        with pytest.raises(StoreCorrupt, match=f"does not match its manifest: {name}"):
            case.folder.fetch(wrong, tmp_path / "back")


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"format": 2}, False),
        ({"rules": RULES + 1}, False),
        ({"files": [{"name": "../x", "bytes": 1, "blake2b": ""}]}, False),
        ({"files": [{"name": "/etc/x", "bytes": 1, "blake2b": ""}]}, False),
        ({"files": [{"name": MANIFEST, "bytes": 1, "blake2b": ""}]}, False),
        ({"applied": 8}, False),
        ({"applied": "x"}, False),
        ({"later": 1}, True),
    ],
)
def test_an_invalid_manifest_is_ignored(
    case: CopyingNode, change: dict[str, object], kept: bool
) -> None:
    """A newer format or rules, paths outside the folder, a position other than its name; additional
    fields are accepted."""
    store = case.store()
    fill(store, 7)
    made = case.folder.save(SHARD, store, NOW_MS)
    path = f"{case.place(made.name)}/{MANIFEST}"
    manifest = json.loads(case.files.cat_file(path))
    case.files.pipe_file(path, json.dumps({**manifest, **change}).encode())
    assert case.folder.kept(SHARD, identity()) == ([made] if kept else [])


def test_a_location_that_cannot_be_used_is_reported_without_its_password(tmp_path: Path) -> None:
    """Retry, because it may come back; an unknown kind of location is a ConfigurationError."""
    (tmp_path / "file").write_text("")
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
    folder = CheckpointFolder(
        str(tmp_path / "file" / "below"), "c", copier, data_dir=tmp_path / "data"
    )
    store = MemoryStore()
    fill(store, 1)
    with pytest.raises(Retry, match=r"checkpoints\.location .* failed"):
        folder.save(SHARD, store, NOW_MS)
    assert list((tmp_path / "scratch").iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"checkpoints\.location") as raised:
        CheckpointFolder("nonsense://me:hunter2@there/c", "c", copier, data_dir=tmp_path)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_location_inside_the_data_directory_is_refused(tmp_path: Path, form: str) -> None:
    """Also through a link: it would be lost with the disk."""
    copier = Copier(tmp_path / "scratch", node="n", version="1")
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for name in ("data", "data/c", "link/c", "x/../data"):
        with pytest.raises(ConfigurationError, match=r"inside node\.data_dir"):
            CheckpointFolder(form.format(tmp_path / name), "c", copier, data_dir=tmp_path / "data")
    CheckpointFolder(form.format(tmp_path / "data2"), "c", copier, data_dir=tmp_path / "data")


# ------------------------------------------------------------------------------------------ Streams


def test_a_store_comes_back_from_a_stream(case: CopyingNode, tmp_path: Path) -> None:
    """In chunks of any size."""
    store = case.store()
    fill(store, 7)
    sent = b"".join(case.copier.stream(SHARD, store, NOW_MS))
    for size in (1 << 20, 1_000, 513):
        chunks = [sent[at : at + size] for at in range(0, len(sent), size)]
        into = tmp_path / f"back-{size}"
        received = case.new_copier("node-2").receive(chunks, into)
        assert (received.applied, received.node, received.identity) == (7, "node-1", identity())
        assert case.content(into) == everything(store)
    assert case.left() == []


def test_a_stream_is_a_tar_that_any_tool_reads(case: CopyingNode) -> None:
    """The manifest first."""
    store = case.store()
    fill(store, 7)
    with tarfile.open(
        fileobj=io.BytesIO(b"".join(case.copier.stream(SHARD, store, NOW_MS)))
    ) as tar:
        names = tar.getnames()
        manifest = json.loads(tar.extractfile(MANIFEST).read())  # type: ignore[union-attr]
    assert names == [MANIFEST, *(file["name"] for file in manifest["files"])]


def test_a_stream_closed_before_its_end_leaves_no_files(case: CopyingNode) -> None:
    """As a server closes it when its client disconnects."""
    store = case.store()
    fill(store, 7)
    stream = case.copier.stream(SHARD, store, NOW_MS)
    assert next(stream)
    assert case.left() != []
    stream.close()  # type: ignore[attr-defined]
    assert case.left() == []


def test_a_stream_cut_or_damaged_anywhere_gives_no_store(case: CopyingNode, tmp_path: Path) -> None:
    """At a hundred positions each."""
    store = case.store()
    fill(store, 7, size=40)
    sent = b"".join(case.copier.stream(SHARD, store, NOW_MS))
    copier, into, dice = case.new_copier("node-2"), tmp_path / "back", random.Random(5)
    content = len(sent.rstrip(b"\0"))
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        last = tar.getmembers()[-1]
    with pytest.raises(StoreCorrupt, match=f"ended early, without {last.name}"):
        copier.receive([sent[: last.offset]], into)
    for at in [0, 1, 511, 512, *(dice.randrange(content) for _ in range(100))]:
        with pytest.raises(StoreCorrupt):
            copier.receive([sent[:at]], into)
        assert not into.exists()
    harmless = 0
    for at in (dice.randrange(content) for _ in range(100)):
        damaged = sent[:at] + bytes([sent[at] ^ 0x55]) + sent[at + 1 :]
        try:
            copier.receive([damaged], into)
        except StoreCorrupt:
            assert not into.exists()
        else:
            # A byte without effect: node, time, or padding.
            assert case.content(into) == everything(store)
            into.rename(tmp_path / f"harmless-{at}")
            harmless += 1
    assert harmless < 50
    assert case.left() == []


def test_a_stream_of_another_store_than_its_manifest_is_found(
    case: CopyingNode, tmp_path: Path
) -> None:
    """All files match the manifest, but the store in them does not."""
    store = case.store()
    fill(store, 7)
    with case.copier.temporary_copy(SHARD, store, NOW_MS) as (folder, described):
        wrong = b"".join(pack(folder, replace(described, digest="0" * 32)))
    with pytest.raises(StoreCorrupt, match="does not match its manifest: digest"):
        case.copier.receive([wrong], tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_stream_of_newer_rules_is_refused_before_its_store_is_read(
    case: CopyingNode, tmp_path: Path
) -> None:
    store = case.store()
    fill(store, 7)
    with case.copier.temporary_copy(SHARD, store, NOW_MS) as (folder, described):
        newer = b"".join(pack(folder, replace(described, rules=RULES + 1, digest="0" * 32)))
    with pytest.raises(StoreCorrupt, match=f"by rules {RULES + 1}, .* Upgrade this node"):
        case.copier.receive([newer], tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert case.left() == []


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_a_stream_writes_only_into_its_folder(tmp_path: Path) -> None:
    """Not through paths that lead elsewhere, links, or files that the manifest does not name."""
    store = MemoryStore()
    fill(store, 7)
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
    with tarfile.open(fileobj=io.BytesIO(b"".join(copier.stream(SHARD, store, NOW_MS)))) as tar:
        manifest = tar.extractfile(MANIFEST).read()  # type: ignore[union-attr]
        rows = tar.extractfile("rows").read()  # type: ignore[union-attr]
    link = tarfile.TarInfo("rows")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "outside")
    for sent in (
        b"",
        b"nonsense" * 1_000,
        archive((tarfile.TarInfo("rows"), rows), (tarfile.TarInfo(MANIFEST), manifest)),
        archive((tarfile.TarInfo(MANIFEST), manifest), (tarfile.TarInfo("../outside"), rows)),
        archive(
            (tarfile.TarInfo(MANIFEST), manifest),
            (tarfile.TarInfo("rows"), rows),
            (tarfile.TarInfo("more"), b""),
        ),
        archive((tarfile.TarInfo(MANIFEST), manifest), (link, b"")),
        archive(
            (tarfile.TarInfo(MANIFEST), manifest.replace(b'"rows"', b'"../r"')),
            (tarfile.TarInfo("../r"), rows),
        ),
    ):
        with pytest.raises(StoreCorrupt):
            copier.receive([sent], tmp_path / "into" / "back")
        assert list((tmp_path / "into").iterdir()) == []
        assert not (tmp_path / "outside").exists()


def test_errors_of_the_sender_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    """A connection that breaks keeps its own error."""
    store = MemoryStore()
    fill(store, 7)
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)

    def broken() -> Iterator[bytes]:
        yield from list(copier.stream(SHARD, store, NOW_MS))[:2]
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        copier.receive(broken(), tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    """With a limit on file size in place of a full disk; no files remain."""
    resource = pytest.importorskip("resource")
    store = MemoryStore()
    fill(store, 7)
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
    sent = list(copier.stream(SHARD, store, NOW_MS))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(NoSpace, match="Make room"):
            copier.receive(sent, tmp_path / "back")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path / "scratch") == []
    assert not (tmp_path / "back").exists()


def test_a_disk_without_room_for_a_small_file_is_named(tmp_path: Path) -> None:
    """The file fits in a buffer, so that its bytes are written when it is closed."""
    resource = pytest.importorskip("resource")
    store = MemoryStore()
    store.write([(STATE_KEY, pack_state(State())), (IDENTITY_KEY, pack_identity(identity()))], [])
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
    sent = list(copier.stream(SHARD, store, NOW_MS))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(NoSpace, match=r"rows cannot be written .*File too large.* Make room"):
            copier.receive(sent, tmp_path / "back")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["scratch"]


def test_no_file_of_a_checkpoint_is_written_into_the_reserve_of_the_disk(
    case: CopyingNode, tmp_path: Path
) -> None:
    """From a node or a location: the manifest says how much room it takes."""
    store = case.store()
    fill(store, 7)
    made = case.folder.save(SHARD, store, NOW_MS)
    open_store = open_copy if case.kind == "rocks" else MemoryStore.restored
    copier = Copier(
        tmp_path / "small", node="n", version="1", reserve_bytes=1 << 60, open_store=open_store
    )
    folder = CheckpointFolder(case.location, "c", copier, data_dir=tmp_path / "data")
    sent = case.copier.stream(SHARD, store, NOW_MS)
    for fetch in (
        lambda: folder.fetch(made, tmp_path / "back"),
        lambda: copier.receive(sent, tmp_path / "back"),
    ):
        with pytest.raises(NoSpace, match=r"leave less than .* MiB \(limits\.disk_reserve\)"):
            fetch()
        assert not (tmp_path / "back").exists()
    sent.close()
    assert case.left() == []


def test_a_folder_that_cannot_be_made_or_renamed_is_named(tmp_path: Path) -> None:
    """As on a disk whose directories cannot grow."""
    copier = Copier(tmp_path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NoSpace, match=r"back\.part cannot be written .*Not a directory"),
        copier.receiving(tmp_path / "file" / "back"),
    ):
        pass
    into = tmp_path / "back"
    with (
        pytest.raises(NoSpace, match=r"back\.part cannot be written .*Directory not empty"),
        copier.receiving(into),
    ):
        (into / "in the way").mkdir(parents=True)
    assert sorted(os.listdir(tmp_path)) == ["back", "file"]


def test_a_new_copier_removes_the_files_of_a_killed_one(tmp_path: Path) -> None:
    """Links to tables would hold disk space for ever."""
    left = tmp_path / "scratch" / "3-abc"
    left.mkdir(parents=True)
    (left / "000001.sst").write_text("")
    Copier(tmp_path / "scratch", node="n", version="1")
    assert not left.exists()


# ------------------------------------------------------------------------- A copy from another node


def test_a_copy_of_other_topics_is_refused(case: CopyingNode, tmp_path: Path) -> None:
    """A topic that was deleted and created again has another id: the store of the old one must not
    be used."""
    store = case.store()
    fill(store, 7)
    into = tmp_path / "taken"
    with pytest.raises(StoreCorrupt, match="it serves other topics"):
        case.copier.receive(case.copier.stream(SHARD, store, NOW_MS), into, identity("d2"))
    assert not into.exists()
    assert case.left() == []
    assert (
        case.copier.receive(case.copier.stream(SHARD, store, NOW_MS), into, identity()).applied == 7
    )


def test_a_digest_is_computed_without_keeping_a_copy(case: CopyingNode) -> None:
    """The same digest and positions as a checkpoint's; no temporary files remain."""
    store = case.store()
    fill(store, 7)
    computed = case.copier.digest(SHARD, store, NOW_MS)
    made = case.folder.save(SHARD, store, NOW_MS)
    assert (computed.digest, computed.applied, computed.pull_offset, computed.pending) == (
        made.digest,
        7,
        70,
        300,
    )
    assert computed.files == ()
    assert case.left() == []


def test_a_store_is_replaced_by_the_one_that_was_fetched(tmp_path: Path) -> None:
    """Without a restart: afterwards reads return the new rows, and nothing of the old store is
    left."""
    old = RocksStore(tmp_path / "store", memtable_bytes=1 << 20)
    new = RocksStore(tmp_path / "new", memtable_bytes=1 << 20)
    fill(old, 3, size=50)
    fill(new, 9)
    rows = everything(new)
    new.checkpoint(tmp_path / "fetched")
    new.close()
    old.replace(tmp_path / "fetched")
    try:
        assert everything(old) == rows
        old.write([(b"\xf0", b"more")], [])
        old.flush()
    finally:
        old.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "store"]
    again = RocksStore(tmp_path / "store", memtable_bytes=1 << 20)
    assert everything(again) == [*rows, (b"\xf0", b"more")]
    again.close()


def test_a_store_whose_replacement_cannot_be_moved_is_there_as_before(tmp_path: Path) -> None:
    """A shard that starts again must not find an empty store in its place."""
    store = RocksStore(tmp_path / "store", memtable_bytes=1 << 20)
    fill(store, 3, size=50)
    rows = everything(store)
    with pytest.raises(StoreCorrupt, match="No such file or directory"):
        store.replace(tmp_path / "fetched")
    assert os.listdir(tmp_path) == ["store"]
    store.open()
    assert everything(store) == rows
    store.close()


def test_checkpoints_on_a_local_disk_are_for_their_user_only(tmp_path):
    """They hold every payload. A folder of an earlier version is closed when it is used again."""
    location = tmp_path / "deep" / "checkpoints"
    before = os.umask(0o022)
    try:
        case = CopyingNode(tmp_path, "rocks", str(location))
        store = case.store()
        fill(store, 5)
        case.folder.save(SHARD, store, NOW_MS)
        case.folder.keep_archived(SHARD, identity(), {"delay": 1})
    finally:
        os.umask(before)
        for each in case.stores:
            each.close()
    assert {
        (path.is_dir(), path.stat().st_mode & 0o777) for path in (location, *location.rglob("*"))
    } == {
        (True, 0o700),
        (False, 0o600),
    }
    (location / "c").chmod(0o755)
    case.other("node-2")
    assert (location / "c").stat().st_mode & 0o777 == 0o700
