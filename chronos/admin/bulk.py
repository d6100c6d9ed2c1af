"""A bulk operation on one shard: finds pending messages by a filter, writes an action for each, and counts the results.

The actions are ordinary records of the delay topic, so replay, replicas and the audit treat them like a user's.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence

from msgspec import Struct, field

from chronos.admin.context import Context
from chronos.admin.problems import ProblemError
from chronos.core.codec import PENDING, unpack_id_state
from chronos.core.filter import Filter
from chronos.core.keys import id_key, parse_generated_id
from chronos.core.message import ACTION, ID, Reason
from chronos.core.pending import Match, pending_between, scan_pending
from chronos.errors import Retry
from chronos.ports import Appended, Outgoing

BATCH = 1_000
"""Actions written at a time; fewer than twice as many when a scan finds more."""

IN_FLIGHT = 2
"""Batches written and not applied yet: few, so that the steps of the shard stay short and deliveries go on."""

COLLECT_S = 0.25
"""How long matching messages may wait for their batch to be full."""

RECORD_BYTES = 200
"""Bytes of an action's record without its id, roughly."""

CAUGHT_UP_S = 10.0
"""How long a job waits at its beginning until the shard has applied the records that are in the log."""

WRITE_S = 60.0
"""How long a batch is tried again while the log does not take it."""

AGAIN_S = 1.0
"""Pause before it is tried again."""

STOP_S = 3.0
"""How long a stopped job waits for the results of its last batches."""

TARGETS_MAX = 10_000
"""Targets counted one by one."""


class Order(Struct, frozen=True, kw_only=True):
    """What a job does."""

    matching: Filter
    verb: bytes | None
    """The action; None: messages are counted only."""
    time: tuple[str, bytes] | None = None
    """The header with the new time of a `reschedule`."""


class Counts(Struct):
    """What a job has done so far. For one event loop."""

    expected: int = 0
    scanned: int = 0
    matched: int = 0
    written: int = 0
    done: int = 0
    too_late: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Label of the reason -> number of refused actions."""
    targets: Counter[str] = field(default_factory=Counter)
    """Target -> number of matching messages, of the first `TARGETS_MAX` targets."""
    other_targets: int = 0
    """Matching messages for further targets."""


class WriteFailed(Exception):
    """The log did not take a batch."""


class BulkRun:
    """One job's run on one shard that this node holds. `stopping` is set by it when it fails, so that the other runs end too."""

    def __init__(self, context: Context, shard: int, order: Order, counts: Counts, stopping: asyncio.Event) -> None:
        self._context = context
        self._shard = context.shards[shard]
        self._order = order
        self._counts = counts
        self._stopping = stopping
        self._in_flight: deque[list[int]] = deque()

    async def run(self) -> None:
        """1. wait until the log is applied, 2. scan a snapshot, 3. write actions in batches, 4. count their results.

        Ends early once `stopping` is set. Raises ChronosError when the store cannot be read, WriteFailed.
        """
        try:
            await self._run()
        except Exception:
            self._stopping.set()
            raise
        finally:
            await self._settle(0)

    async def _run(self) -> None:
        context, shard, counts = self._context, self._shard, self._counts
        await context.caught_up(shard.number, asyncio.get_running_loop().time() + CAUGHT_UP_S)
        snapshot = await context.in_thread(shard.store.snapshot)
        try:
            counts.expected += await context.in_thread(pending_between, snapshot, self._order.matching)
            scan = scan_pending(snapshot, shard.number, self._order.matching)
            waiting: list[Match] = []
            since_s = 0.0
            while not self._stopping.is_set() and (found := await context.in_thread(next, scan, None)) is not None:
                scanned, matches = found
                # How many messages of others lie between is not for a sender with limits.
                counts.scanned += len(matches) if self._order.matching.reach.is_limited else scanned
                self._count(matches)
                if self._order.verb is None:
                    continue
                if matches and not waiting:
                    since_s = time.monotonic()
                waiting += matches
                if len(waiting) >= BATCH or (waiting and time.monotonic() - since_s > COLLECT_S):
                    await self._write(waiting)
                    waiting = []
            if waiting and not self._stopping.is_set():
                await self._write(waiting)
        finally:
            await context.in_thread(snapshot.close)

    def _count(self, matches: Sequence[Match]) -> None:
        counts = self._counts
        counts.matched += len(matches)
        for target, count in Counter(match.target for match in matches).items():
            if target in counts.targets or len(counts.targets) < TARGETS_MAX:
                counts.targets[target] += count
            else:
                counts.other_targets += count

    async def _write(self, matches: list[Match]) -> None:
        records = await self._context.in_thread(self._plan, matches)
        self._counts.too_late += len(matches) - len(records)
        if not records:
            return
        try:
            appended = await self._append(records)
        except WriteFailed:
            self._counts.failed += len(records)
            raise
        self._counts.written += len(records)
        self._in_flight.append([each.offset for each in appended])
        await self._settle(IN_FLIGHT - 1)

    def _plan(self, matches: list[Match]) -> list[Outgoing]:
        """The actions on those messages that are still pending, and still in the due window: the snapshot may be a minute old.

        A message that has got the id of one of them since then is left alone, except in the moment between here and the log.
        """
        shard, order, topic = self._shard, self._order, self._context.delay_topic
        assert order.verb is not None
        shards = len(self._context.shards)
        states = shard.store.get([id_key(match.id) for match in matches])
        cursor = shard.state.cursor
        headers: dict[str, bytes | None] = {ACTION: order.verb}
        if order.time is not None:
            headers[order.time[0]] = order.time[1]
        records: list[Outgoing] = []
        for match, data in zip(matches, states, strict=True):
            if data is None:
                is_pending = (match.place_ms, match.offset) > cursor
            else:
                id_state = unpack_id_state(data)
                is_same = id_state.state == PENDING and id_state.offset == match.offset
                # It may have been moved out of the due window.
                is_pending = is_same and order.matching.start <= (id_state.due_ms, 0) < order.matching.stop
            if not is_pending:
                continue
            if parse_generated_id(match.id, shards) is None:
                records.append((topic, match.id, None, headers, shard.number))
            else:
                records.append((topic, None, None, {**headers, ID: match.id}, shard.number))
        return records

    async def _append(self, records: list[Outgoing]) -> list[Appended]:
        """Write the records, again and again while the log does not take them: an action may be repeated."""
        size = sum(len(record[1] or b"") + RECORD_BYTES for record in records)
        deadline_s = time.monotonic() + WRITE_S
        while True:
            try:
                return await self._context.appender.append(records, size)
            except (Retry, ProblemError) as error:
                if time.monotonic() > deadline_s or self._stopping.is_set():
                    raise WriteFailed(str(error)) from error
            await asyncio.sleep(AGAIN_S)

    async def _settle(self, in_flight_max: int) -> None:
        """Count the results of the oldest batches once they are applied."""
        waiter = self._context.pull_waiters[self._shard.number]
        stop_s = STOP_S
        while len(self._in_flight) > in_flight_max:
            offsets = self._in_flight[0]
            while not await waiter.wait(offsets[-1] + 1, 0.5):
                if self._stopping.is_set():
                    stop_s -= 0.5
                    if stop_s <= 0:
                        return
            self._in_flight.popleft()
            for offset in offsets:
                self._count_result(self._shard.refusal(offset))

    def _count_result(self, reason: int | None) -> None:
        counts = self._counts
        if reason is None or reason == Reason.IGNORED:
            # A cancel of a message that is cancelled already is ignored.
            counts.done += 1
        elif reason in (Reason.TOO_LATE, Reason.UNKNOWN):
            counts.too_late += 1
        else:
            counts.failed += 1
            counts.reasons[Reason(reason).label] += 1
