"""The checkpoint worker: when it makes a checkpoint, and that a log is never trimmed ahead of a
position in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.checkpoints.folder import CheckpointFolder
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.cluster.roles import AWAY_MS, Member, ReplicaReport, Roles, ShardRoles
from chronos.core.keys import IDENTITY_KEY, STATE_KEY
from chronos.core.shard.codec import Identity, State, pack_identity, pack_state
from chronos.errors import Retry
from chronos.ports import ClusterSnapshot, TopicSpec
from chronos.workers.replica.checkpoint import (
    CHECK_EVERY_MS,
    RETRY_MS,
    Checkpointer,
    CheckpointSettings,
    LogPosition,
    Trimming,
    needed_from,
    trim_to,
)
from tests.harness.clock import HandClock
from tests.harness.memory import MemoryStore
from tests.harness.table import table

HOUR_MS = 3_600_000
KEEP_LOGS_MS = 7 * 24 * HOUR_MS
RECORDS = 40

# ----------------------------------------------------------------------------------------- The rule


@table(
    ("checkpoints", "replicas", "archived", "by_age", "expected"),
    [
        ([30, 20, 10], [50], None, 90, 10),
        ([10, 30, 20], [50], None, 90, 10),
        ([30, 20, 10], [50, 7, 60], None, 90, 7),
        ([30, 20, 10], [50], 6, 90, 6),
        ([30, 20, 10], [50], 0, 90, 5),
        ([30, 20, 10], [50], 99, 90, 10),
        ([30, 20, 10], [50], None, 8, 8),
        ([40, 30, 20, 10], [50], None, 90, 10),
        # Fewer than three intact checkpoints, or a replica whose position is not known: nothing is
        # trimmed.
        ([30, 20], [50], None, 90, 5),
        ([], [50], None, 90, 5),
        ([30, 20, 10], [50, None], None, 90, 5),
        ([30, 20, 10], [], None, 90, 5),
        # Never backwards.
        ([30, 20, 10], [4], None, 90, 5),
        ([3, 2, 1], [50], None, 90, 5),
    ],
)
def test_a_log_is_trimmed_up_to_the_first_position_in_use(
    checkpoints, replicas, archived, by_age, expected
) -> None:
    """Each of them alone holds up the trimming; the log begins at 5."""
    found = trim_to(
        checkpoints=checkpoints, replicas=replicas, archived=archived, by_age=by_age, start=5
    )
    assert found == expected


offsets = st.integers(0, 100)


@given(
    checkpoints=st.lists(offsets, max_size=6),
    replicas=st.lists(st.one_of(offsets, offsets, st.none()), max_size=5),
    archived=st.one_of(st.none(), offsets),
    by_age=offsets,
    start=offsets,
)
def test_a_log_is_never_trimmed_ahead_of_a_position_in_use(
    checkpoints, replicas, archived, by_age, start
) -> None:
    """An offset beyond the start is at or before every position, and all positions are known."""
    to = trim_to(
        checkpoints=checkpoints, replicas=replicas, archived=archived, by_age=by_age, start=start
    )
    assert to >= start
    if to > start:
        assert len(checkpoints) >= 3
        assert replicas
        assert None not in replicas
        assert all(to <= position for position in [*checkpoints, *replicas, by_age])
        assert archived is None or to <= archived


FLUSHED = ReplicaReport(role="follower", kept_applied=7, kept_pull_offset=3)
NOW_MS = 1_800_000_000_000
MINE = LogPosition(applied=9, pull_offset=5)
OTHER = LogPosition(applied=7, pull_offset=3)


@table(
    ("reports", "registered", "away_ms", "expected"),
    [
        pytest.param(
            {"b": FLUSHED}, "ab", {}, [MINE, OTHER], id="it needs what it has not flushed"
        ),
        pytest.param(
            {"b": ReplicaReport(role="follower")},
            "ab",
            {},
            [MINE, None],
            id="it reports no position",
        ),
        pytest.param({"b": replace(FLUSHED, role="none")}, "a", {}, [MINE], id="it holds nothing"),
        pytest.param(
            {"b": replace(FLUSHED, role="none")},
            "ab",
            {},
            [MINE, OTHER],
            id="it was assigned the shard just now",
        ),
        pytest.param(
            {"b": FLUSHED}, "a", {}, [MINE, OTHER], id="it has not given up the shard yet"
        ),
        pytest.param({}, "ab", {"b": AWAY_MS - 1}, [MINE, None], id="it is away"),
        pytest.param({}, "ab", {"b": AWAY_MS}, [MINE], id="it was away for too long"),
        pytest.param({}, "a", {}, [MINE], id="it was forgotten"),
        pytest.param({}, "a", {}, [MINE], id="there is no other node"),
    ],
)
def test_the_position_of_every_registered_replica_counts(
    reports, registered, away_ms, expected
) -> None:
    """This node is `a`; None: a replica whose position is not known, so that nothing may be
    trimmed."""
    members = {
        node: Member(
            node=node, instance=node, address="", version="", started_ms=0, replicas={0: replica}
        )
        for node, replica in {"a": ReplicaReport(role="master"), **reports}.items()
    }
    away = {node: NOW_MS - for_ms for node, for_ms in away_ms.items()}
    roles = Roles(shards={0: ShardRoles(master="a", replicas=tuple(registered))}, away=away)
    snapshot = ClusterSnapshot(roles=roles, members=members, confirmed=True)
    assert needed_from(snapshot, 0, node="a", flushed=MINE, now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    ("roles", "confirmed"), [(None, True), (Roles(), False)], ids=["no roles", "not confirmed"]
)
def test_a_node_that_does_not_know_the_roles_does_not_know_the_positions(roles, confirmed) -> None:
    snapshot = ClusterSnapshot(roles=roles, members={}, confirmed=confirmed)
    assert needed_from(snapshot, 0, node="a", flushed=MINE, now_ms=NOW_MS) == [None]


# --------------------------------------------------------------------------------------- The worker


class CheckpointedShard:
    """A shard with a log of both kinds, a record an hour in each, and a store that is moved on by
    hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = HandClock()
        self.log = EmbeddedLog(
            path / "log", clock=self.clock, disk_reserve_bytes=0, progress_topic="progress"
        )
        specs = [
            TopicSpec(name=name, partitions=2, settings={}, per_shard=True)
            for name in ("delay", "progress")
        ]
        infos = self.log.prepare(specs, create=True)
        self.identity = Identity(
            cluster="c",
            shard=1,
            shards=2,
            delay_topic="delay",
            delay_topic_id=infos["delay"].id,
            progress_topic="progress",
            progress_topic_id=infos["progress"].id,
        )
        self.store = MemoryStore()
        self.store.write([(IDENTITY_KEY, pack_identity(self.identity))], [])
        self.location = path / "checkpoints"
        copier = Copier(path / "scratch", node="n", version="1", open_store=MemoryStore.restored)
        self.folder = CheckpointFolder(str(self.location), "c", copier, data_dir=path / "data")
        self.replicas: list[LogPosition | None] = [LogPosition(applied=10**6, pull_offset=10**6)]
        self.archived: dict[str, int] = {}
        self.trims = True
        self.worker = self.new_worker()
        self.moved = 0

    def new_worker(self) -> Checkpointer:
        return Checkpointer(
            self.folder,
            self.log,
            self.store,
            identity=self.identity,
            settings=CheckpointSettings(every_ms=HOUR_MS, keep=3, keep_logs_ms=KEEP_LOGS_MS),
            trimming=Trimming(
                replicas=lambda: self.replicas,
                archived=lambda topic, partition: (
                    self.archived.get(topic) if partition == 1 else None
                ),
                trims=lambda: self.trims,
            ),
        )

    def move(self, hours: int = 1) -> None:
        """Hours pass; in each the log gets two delay records and one progress record, and the store
        follows."""
        for _ in range(hours):
            self.clock.now += HOUR_MS
            self.log.append(
                [("delay", None, b"d", [], 1)] * 2 + [("progress", None, b"p", [], 1)], 9.0
            )
            self.moved += 1
        state = State(
            applied=self.moved,
            pull_offset=2 * self.moved,
            cursor_due_ms=self.moved,
            progress_ms=self.clock.now,
        )
        self.store.write([(STATE_KEY, pack_state(state))], [])

    def step(self) -> int:
        return self.worker.step(self.clock.now)

    def applied(self) -> list[int]:
        return [checkpoint.applied for checkpoint in self.folder.kept(1, self.identity)]

    def starts(self) -> tuple[int, int]:
        return self.log.watermarks("delay", 1).start, self.log.watermarks("progress", 1).start


@pytest.fixture
def case(tmp_path: Path) -> Iterator[CheckpointedShard]:
    made = CheckpointedShard(tmp_path)
    yield made
    made.log.close()


def test_a_checkpoint_is_made_when_the_youngest_is_old_enough(case: CheckpointedShard) -> None:
    """At once without one, and then every hour, also by a worker that was started in between."""
    case.move()
    wake_ms = case.step()
    assert case.applied() == [1]
    assert wake_ms == case.clock.now + CHECK_EVERY_MS
    case.move(0)
    case.clock.now += HOUR_MS - 1
    case.worker = case.new_worker()
    assert case.step() == case.clock.now + 1
    assert case.applied() == [1]
    case.clock.now += 1
    case.move(0)
    case.store.write([(STATE_KEY, pack_state(State(applied=5)))], [])
    case.step()
    assert case.applied() == [5, 1]


def test_a_checkpoint_can_be_asked_for(case: CheckpointedShard) -> None:
    """It is made with the next step, once."""
    case.move()
    case.step()
    case.store.write([(STATE_KEY, pack_state(State(applied=7)))], [])
    case.clock.now += 1
    case.step()
    assert case.applied() == [1]
    case.worker.ask()
    case.step()
    assert case.applied() == [7, 1]
    case.store.write([(STATE_KEY, pack_state(State(applied=8)))], [])
    case.step()
    assert case.applied() == [7, 1]


def test_a_checkpoint_from_a_clock_ahead_does_not_delay_the_next_ones(
    case: CheckpointedShard,
) -> None:
    """One whose time is ten years ahead is ignored; one from a clock that is a little ahead
    counts."""
    case.move()
    case.folder.save(1, case.store, case.clock.now + 10 * 365 * 24 * HOUR_MS)
    case.move()
    case.step()
    assert case.applied() == [2, 1]
    case.move()
    case.folder.save(1, case.store, case.clock.now + 200)
    case.move(0)
    case.store.write([(STATE_KEY, pack_state(State(applied=4)))], [])
    case.clock.now += HOUR_MS
    case.step()
    assert case.applied() == [3, 2, 1]
    case.clock.now += 200
    case.step()
    assert case.applied() == [4, 3, 2]


def test_the_three_furthest_checkpoints_are_kept(case: CheckpointedShard) -> None:
    for _ in range(5):
        case.move()
        case.step()
    assert case.applied() == [5, 4, 3]


def test_nothing_is_trimmed_before_there_are_three_checkpoints_and_a_week(
    case: CheckpointedShard,
) -> None:
    """Then it is trimmed to the oldest of three checkpoints, but the last week is always kept."""
    for _ in range(2):
        case.move(150)
        case.step()
        assert case.starts() == (0, 0)
    case.move(150)
    case.step()
    # 450 hours, 168 of them are kept, the oldest checkpoint stands at 150.
    assert case.starts() == (300, 150)
    case.move(10)
    case.step()
    # The oldest checkpoint is at 300 now: the week decides.
    assert case.starts() == (2 * (460 - 168 - 1), 460 - 168 - 1)


def grown(case: CheckpointedShard) -> None:
    """Three checkpoints, at 250, 300 and 350 hours, made while nothing may be trimmed."""
    case.trims = False
    for hours in (250, 50, 50):
        case.move(hours)
        case.step()
    assert case.applied() == [350, 300, 250]
    assert case.starts() == (0, 0)
    case.trims = True
    case.clock.now += CHECK_EVERY_MS


def test_a_clock_that_is_set_ahead_trims_nothing(case: CheckpointedShard) -> None:
    """The age of a record is counted to the last one that was executed."""
    for _ in range(3):
        case.move()
        case.step()
    case.clock.now += 2 * KEEP_LOGS_MS
    case.step()
    assert (len(case.applied()), case.starts()) == (3, (0, 0))


def test_the_master_alone_trims(case: CheckpointedShard) -> None:
    """Other nodes make checkpoints only."""
    grown(case)
    case.step()
    assert case.starts() == (2 * 181, 181)


def test_a_replica_that_is_behind_holds_up_both_logs(case: CheckpointedShard) -> None:
    """Each log by its own position; an unknown position holds up both."""
    grown(case)
    case.replicas.append(None)
    case.step()
    assert case.starts() == (0, 0)
    case.replicas[1] = LogPosition(applied=20, pull_offset=31)
    case.clock.now += CHECK_EVERY_MS
    case.step()
    assert case.starts() == (31, 20)


def test_records_that_are_not_archived_are_not_trimmed(case: CheckpointedShard) -> None:
    """Each topic by its own position."""
    grown(case)
    case.archived = {"delay": 17}
    case.step()
    assert case.starts() == (17, 181)
    # Kafka has forgotten the offsets of the group, and the node starts again; the archive still
    # exists.
    case.archived = {}
    case.worker = case.new_worker()
    case.clock.now += CHECK_EVERY_MS
    case.step()
    assert case.starts() == (17, 181)
    case.archived = {"delay": 18}
    case.clock.now += CHECK_EVERY_MS
    case.step()
    assert case.starts() == (18, 181)
    # The archive is given up: its group is deleted, and then the file that keeps its position.
    case.archived = {}
    (case.location / "c" / "1" / "archived.json").unlink()
    case.clock.now += CHECK_EVERY_MS
    case.step()
    assert case.starts() == (2 * 181, 181)


def test_the_archive_s_position_is_kept_before_anything_can_be_trimmed(
    case: CheckpointedShard,
) -> None:
    """With the first checkpoint, while Kafka still has the offsets; a topic created again has no
    position."""
    case.archived = {"delay": 17}
    case.move(250)
    case.step()
    case.archived = {}
    case.worker = case.new_worker()
    for _ in range(2):
        case.move(50)
        case.step()
    assert case.starts() == (17, 181)
    again = replace(case.identity, delay_topic_id="another")
    assert (case.folder.archived(1, case.identity), case.folder.archived(1, again)) == (
        {"delay": 17},
        {},
    )


def test_a_checkpoint_that_lost_a_file_does_not_count(case: CheckpointedShard) -> None:
    """Two intact ones are not three."""
    grown(case)
    next(case.location.glob("c/1/*300-n/rows")).unlink()
    case.step()
    assert case.starts() == (0, 0)


def test_a_clock_that_was_ahead_once_does_not_delay_the_next_checkpoint(
    case: CheckpointedShard,
) -> None:
    case.move()
    case.step()
    case.clock.now += 24 * 365 * HOUR_MS
    case.step()
    case.clock.now -= 24 * 365 * HOUR_MS
    case.move()
    case.step()
    assert case.applied() == [2, 1]


def test_a_failed_checkpoint_is_reported_and_tried_again_after_a_minute(
    case: CheckpointedShard,
) -> None:
    """Also one that was asked for: the request is not forgotten."""
    case.move()
    case.location.write_text("not a folder")
    case.worker.ask()
    with pytest.raises(Retry, match=r"checkpoints\.location"):
        case.step()
    assert "checkpoints.location" in str(case.worker.problem)
    assert case.step() == case.clock.now + RETRY_MS
    case.location.unlink()

    def fail(_: Path) -> None:
        raise OSError(5, "a disk that fails")

    case.clock.now += RETRY_MS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case.store, "checkpoint", fail)
        with pytest.raises(OSError, match="a disk that fails"):
            case.step()
    assert "a disk that fails" in str(case.worker.problem)
    case.clock.now += RETRY_MS
    case.step()
    assert case.worker.problem is None
    assert case.applied() == [1]
    assert [checkpoint.applied for checkpoint in case.worker.kept] == [1]
