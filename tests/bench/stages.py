"""The cost of one message on the hot path by stage, in microseconds of one core; no broker
needed."""

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from chronos.adapters.rocksdb import RocksStore
from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Record
from chronos.core.shard.codec import FRESH
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Decision, Progress, pack_progress
from chronos.core.shard.record import WriterEpoch
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, Staged, nothing_selected
from chronos.core.shard.wheel import Wheel
from chronos.ports import TopicInfo
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import Refusals, Retries
from tests.bench import load
from tests.harness.drafts import plan_of

T = TypeVar("T")

BATCH = 5_000
BATCHES = 40
NOW_MS = 1_800_000_000_000


class _Stopwatch:
    """Seconds spent, by stage."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}

    def time(self, stage: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + time.perf_counter() - started
        return result


class _Topics:
    """The only method of a log that a pusher calls."""

    def describe(self, topics: list[str]) -> dict[str, TopicInfo | None]:
        return {
            topic: TopicInfo(id=topic, partitions=1, leaderless=frozenset(), bytes_max=1_048_588)
            for topic in topics
        }


def _records(batch: int, *, keyed: bool) -> list[Record]:
    value = os.urandom(load.VALUE_BYTES)
    records = []
    for at in range(batch * BATCH, (batch + 1) * BATCH):
        given = load.headers(NOW_MS + at // 500, "orders")
        headers = [(name, value) for name, value in given.items() if isinstance(value, bytes)]
        records.append(
            Record(at, NOW_MS - 60_000, b"order-%d" % at if keyed else None, value, headers)
        )
    return records


SHARDS = 4
WRITER = WriterEpoch(
    cluster="shop", node="bench", instance="bench", shards=SHARDS, role_epoch=1, log_epoch=1
)


def _recorded(staged: Staged, selection: Selection, decisions: Sequence[Decision]) -> Progress:
    progress = WRITER.progress(staged, selection, decisions)
    pack_progress(progress)
    return progress


def _step(
    watch: _Stopwatch,
    shard: Shard,
    store: RocksStore,
    staged: Staged,
    selection: Selection,
    way: str,
    decisions: Sequence[Decision] = (),
) -> None:
    progress = watch.time(
        f"{way}: progress record", lambda: _recorded(staged, selection, decisions)
    )
    offset = shard.state.applied
    changes = watch.time(
        f"{way}: apply",
        lambda: shard.apply(staged, selection, progress, offset=offset, timestamp_ms=NOW_MS),
    )
    watch.time(f"{way}: write to the store", lambda: store.write(changes.puts, changes.deletes))
    watch.time(f"{way}: install", lambda: shard.install(changes))


def _flow(watch: _Stopwatch, directory: Path, *, keyed: bool) -> None:
    rules = Rules(shard=0, shards=SHARDS)
    store = RocksStore(directory)
    shard = Shard(rules=rules, state=FRESH, view=store)
    way = "ingest with a key" if keyed else "ingest"
    for batch in range(BATCHES):
        records = _records(batch, keyed=keyed)
        staged = watch.time(f"{way}: parse and stage", lambda records=records: shard.stage(records))  # type: ignore[misc]
        nothing = nothing_selected(shard.state.cursor, complete=True)
        _step(watch, shard, store, staged, nothing, way)
    if not keyed:
        _drain(watch, shard, store, rules)
    store.close()


def _pusher(rules: Rules) -> Pusher:
    return Pusher(
        _Topics(),  # type: ignore[arg-type]
        rules,
        PushSettings(
            delay_topic="chronos.delay",
            rejected_topic="r",
            dead_letter_topic="d",
            create_topics=False,
            retries=Retries(attempts_max=5, base_ms=1_000, cap_ms=60_000),
        ),
    )


def _series(watch: _Stopwatch, directory: Path) -> None:
    """10,000 series of 1 s, each step with half of them; the first occurrences are not measured."""
    rules = Rules(shard=0, shards=SHARDS)
    store = RocksStore(directory)
    shard = Shard(rules=rules, state=FRESH, view=store)
    for batch in range(2):
        records = [
            Record(
                record.offset,
                record.timestamp_ms,
                None,
                record.value,
                [
                    *load.headers(  # type: ignore[list-item]
                        NOW_MS + record.offset % BATCH // 10 + 500 * batch, "orders"
                    ).items(),
                    ("chronos-repeat", b"every 1s"),
                ],  # type: ignore[list-item]
            )
            for record in _records(batch, keyed=False)
        ]
        _step(
            _Stopwatch(),
            shard,
            store,
            shard.stage(records),
            nothing_selected(shard.state.cursor, complete=True),
            "",
        )
    pusher = _pusher(rules)
    for turn in range(-4, BATCHES):
        now_ms = NOW_MS + 500 * (turn + 5) - 1
        used = watch if turn >= 0 else _Stopwatch()
        used.time("series: read ahead", lambda: shard.read_ahead(now_ms + 500, 2 * BATCH))  # noqa: B023
        staged = shard.stage([])
        selection = used.time(
            "series: select and unpack",
            lambda: shard.select(staged, now_ms, BATCH, 8_000_000),  # noqa: B023
        )
        assert len(selection.items) == BATCH
        ahead: LookAhead[PlannedTransaction] = LookAhead(shard)
        inputs = StepInputs(now_ms=now_ms, refusals=Refusals())
        plan = used.time("series: plan", partial(plan_of, pusher, selection, inputs, ahead))
        assert len(plan.messages) == len(plan.decisions) == BATCH
        _step(used, shard, store, staged, selection, "series", plan.decisions)
    store.close()


def _drain(watch: _Stopwatch, shard: Shard, store: RocksStore, rules: Rules) -> None:
    pusher = _pusher(rules)
    until_ms = NOW_MS + 3_600_000
    store.flush()
    while shard.state.pending:
        watch.time("drain: read ahead", lambda: shard.read_ahead(until_ms, 2 * BATCH))
        staged = shard.stage([])
        selection = watch.time(
            "drain: select and unpack",
            lambda: shard.select(staged, until_ms, BATCH, 8_000_000),  # noqa: B023
        )
        ahead: LookAhead[PlannedTransaction] = LookAhead(shard)
        inputs = StepInputs(now_ms=until_ms, refusals=Refusals())
        plan = partial(plan_of, pusher, selection, inputs, ahead)
        watch.time("drain: plan", plan)
        _step(watch, shard, store, staged, selection, "drain")


def _wheel(watch: _Stopwatch) -> None:
    data = bytes(300)
    items = [(NOW_MS + at // 5, at, data) for at in range(BATCH)]
    for _ in range(BATCHES):
        wheel = Wheel((NOW_MS - 1, OFFSET_MAX))
        through = (NOW_MS + 10_000, OFFSET_MAX)
        wheel.extend([], through)
        watch.time("wheel: add", lambda wheel=wheel: [wheel.add(*item) for item in items])  # type: ignore[misc]
        watch.time("wheel: peek", lambda wheel=wheel: wheel.peek(NOW_MS + 10_000, BATCH))  # type: ignore[misc]
        watch.time(
            "wheel: forget",
            lambda wheel=wheel: [wheel.forget(due, at) for due, at, _ in items],  # type: ignore[misc]
        )  # type: ignore[misc]
        wheel.clear((NOW_MS - 1, OFFSET_MAX))
        watch.time(
            "wheel: extend",
            lambda wheel=wheel, through=through: wheel.extend(items, through),  # type: ignore[misc]
        )  # type: ignore[misc]
        watch.time("wheel: advance", lambda wheel=wheel: wheel.advance((NOW_MS + 500, 0)))  # type: ignore[misc]


def measure() -> dict[str, float]:
    """Microseconds per message, by stage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    watch = _Stopwatch()
    directory = Path(tempfile.mkdtemp(prefix="chronos-stages-"))
    try:
        _flow(watch, directory / "plain", keyed=False)
        _flow(watch, directory / "keyed", keyed=True)
        _series(watch, directory / "series")
        _wheel(watch)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {stage: spent_s / (BATCH * BATCHES) * 1e6 for stage, spent_s in watch.spent_s.items()}
