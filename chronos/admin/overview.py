"""The shards, the timeline and the health of a node over HTTP."""

import asyncio

from msgspec import UNSET
from msgspec.structs import asdict

from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, converted, wrong_field
from chronos.admin.scheduling import duration_ms, time_ms
from chronos.admin.schemas import (
    DEAD_CASES_MAX,
    Counters,
    Cursor,
    DeadCase,
    DeadRecently,
    Epoch,
    Fault,
    Health,
    HeldBack,
    Interval,
    Lateness,
    OverviewQuery,
    ReplicaInfo,
    Shard,
    Shards,
    Timeline,
    TimelineQuery,
)
from chronos.core.histogram import Histogram
from chronos.core.keys import MINUTE_MS, OFFSET_MAX
from chronos.core.query import TIMELINE_MAX_MS, check_timeline, next_place_ms, timeline
from chronos.core.reach import EVERYTHING
from chronos.core.roles import verdicts
from chronos.core.timefmt import MS_MAX, format_time
from chronos.errors import ChronosError
from chronos.node.driver import ShardDriver

DAY_MS = 86_400_000

TIMELINE_MS = 3_600_000
"""Length of a timeline whose end is not given."""

TIMELINE_INTERVALS = 60
"""Greatest number of intervals of a timeline without a step."""


class Overview:
    """The handlers of `/v1/shards`, `/v1/timeline`, `/livez` and `/readyz`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def shards(self, call: Call) -> tuple[int, object]:
        """Every shard: role, positions, lag, lateness, totals; a shard of other nodes as one of them shows it."""
        query: OverviewQuery = call.query
        context, peers = self._context, self._context.peers
        numbers = peers.requested(query.shards)
        held, missing = peers.split(numbers)
        if query.copies == "masters" and query.shards is UNSET:
            missing += [number for number in held if context.shards[number].role != "master"]
        await context.refresh()
        now_ms = context.now_ms()
        shards = await context.in_thread(
            lambda: {number: self._shard(context.shards[number], now_ms) for number in numbers}
        )
        for number in missing:
            if number not in held:
                shards[number].node, shards[number].paused = None, "no node with a replica answers"
        for found in await asyncio.gather(*(self._from_peers(group) for group in peers.groups(missing))):
            shards.update((shard.shard, shard) for shard in found)
        return 200, Shards(shards=[shards[number] for number in numbers])

    async def _from_peers(self, numbers: list[int]) -> list[Shard]:
        """The shards as another node shows them, their master if it answers; empty when no node answers."""
        try:
            return [shard for _, part in await self._context.peers.gather(
                        numbers, "/v1/shards", {}, Shards, reach=EVERYTHING)
                    for shard in part.shards]  # fmt: skip
        except ProblemError:
            return []

    def _shard(self, shard: ShardDriver, now_ms: int) -> Shard:
        state = shard.state
        try:
            next_ms = next_place_ms(shard.store, state)
        except ChronosError:
            next_ms = None
        master, since, replicas = self._roles(shard)
        in_sync = self._context.node.in_sync
        return Shard(
            shard=shard.number,
            node=self._context.node.config.node.id,
            role=shard.role,
            master=master,
            master_since=since,
            replicas=replicas,
            epoch=Epoch(role=state.role_epoch, log=state.log_epoch),
            paused=shard.paused,
            cursor=Cursor(
                due_at=format_time(state.cursor_due_ms),
                due_ms=state.cursor_due_ms,
                offset=None if state.cursor_offset == OFFSET_MAX else state.cursor_offset,
            ),
            pull_offset=state.pull_offset,
            end_offset=self._context.end_offset(shard.number),
            lag=self._context.lag(shard.number),
            held_back=self._held_back(shard.number),
            waits_for=shard.waits_for(now_ms),
            dead_recently=self._dead_recently(shard.number, now_ms),
            unitless=dict(shard.shard.rules.unitless) or None,
            unhealthy=self._unhealthy(shard.number),
            in_sync=None if in_sync is None else list(in_sync.followers(shard.number)),
            in_sync_needed=None if in_sync is None else in_sync.rules.needed or None,
            applied=state.applied,
            progress_at=format_time(state.progress_ms) if state.progress_ms else None,
            pending=state.pending,
            parked=state.parked,
            held=state.held,
            next_due_at=None if next_ms is None else format_time(next_ms),
            oldest_overdue_ms=0 if next_ms is None else max(0, now_ms - next_ms),
            lateness=_lateness(shard.lateness),
            step_p99_ms=_ms(shard.steps.quantile_s(0.99)),
            commits=shard.commits,
            aborts=shard.aborts,
            totals=Counters(**asdict(state.totals)),
            store_bytes=self._context.store_bytes(shard.number),
        )

    def _held_back(self, shard: int) -> HeldBack | None:
        found = self._context.node.open_transactions.held_back(shard)
        return None if found is None else HeldBack(records=found.records, since=format_time(found.since_ms))

    def _dead_recently(self, shard: int, now_ms: int) -> DeadRecently | None:
        found = self._context.node.outcomes.recent_deaths(shard, now_ms)
        if found is None:
            return None
        return DeadRecently(
            messages=found.messages,
            last_at=format_time(found.last_ms),
            cases=[
                DeadCase(reason=reason.label, target=target, messages=count)
                for reason, target, count in found.cases[:DEAD_CASES_MAX]
            ],
            text=found.text(),
        )

    def _unhealthy(self, shard: int) -> list[str] | None:
        membership = self._context.node.membership
        snapshot = None if membership is None else membership.snapshot()
        if snapshot is None or snapshot.roles is None or shard not in snapshot.roles.shards:
            return None
        found = verdicts(snapshot.members, shard, snapshot.roles.shards[shard].epoch)
        return sorted(node for node, healthy in found.items() if not healthy) or None

    def _roles(self, shard: ShardDriver) -> tuple[str | None, str | None, list[ReplicaInfo]]:
        """The assigned master, since when, and the position of each replica."""
        membership = self._context.node.membership
        if membership is None:
            return shard.state.node or None, None, []
        snapshot = membership.snapshot()
        assigned = None if snapshot.roles is None else snapshot.roles.shards.get(shard.number)
        found = [
            (node, replica)
            for node, member in sorted(snapshot.members.items())
            if (replica := member.replicas.get(shard.number)) is not None
        ]
        furthest = max((replica.applied or 0 for _, replica in found), default=0)
        replicas = [
            ReplicaInfo(
                node=node,
                role=replica.role,
                applied=replica.applied,
                lag=None if replica.applied is None else furthest - replica.applied,
            )
            for node, replica in found
        ]
        if assigned is None:
            return None, None, replicas
        return assigned.master, format_time(assigned.since_ms), replicas

    async def timeline(self, call: Call) -> tuple[int, object]:
        """Pending messages per interval, of all shards together."""
        query: TimelineQuery = call.query
        from_ms = self._time("from", query.start, self._context.now_ms())
        to_ms = self._time("to", query.end, min(from_ms + TIMELINE_MS, MS_MAX))
        if to_ms <= from_ms:
            raise wrong_field("to", "the end must lie after the beginning")
        if to_ms - from_ms > TIMELINE_MAX_MS:
            raise wrong_field("to", f"at most {TIMELINE_MAX_MS // DAY_MS} days at once")
        try:
            step_ms = _step(to_ms - from_ms) if query.step is UNSET else duration_ms(query.step)
            check_timeline(from_ms, to_ms, step_ms)
        except ValueError as error:
            raise wrong_field("step", str(error)) from None
        context, peers = self._context, self._context.peers
        held, missing = peers.split(peers.requested(query.shards))
        counts = await context.in_thread(
            lambda: [timeline(context.shards[number].store, from_ms, to_ms, step_ms) for number in held]
        )
        interval = {"from": from_ms, "to": to_ms, "step": step_ms}
        for _, found in await peers.gather(missing, "/v1/timeline", interval, Timeline, reach=call.sender.reach):
            counts.append([interval.pending for interval in found.intervals])
        sums = [sum(column) for column in zip(*counts, strict=True)]
        start_ms = from_ms // MINUTE_MS * MINUTE_MS
        return 200, Timeline(
            start=format_time(start_ms),
            end=format_time(start_ms + len(sums) * step_ms),
            step_ms=step_ms,
            pending=sum(sums),
            intervals=[
                Interval(start=format_time(start_ms + at * step_ms), pending=pending) for at, pending in enumerate(sums)
            ],
        )

    @staticmethod
    def _time(field: str, value: object, default_ms: int) -> int:
        if value is UNSET:
            return default_ms
        assert isinstance(value, int | str)
        return converted(field, time_ms, value)

    async def live(self, _: Call) -> tuple[int, object]:
        """200 while the process should be kept running."""
        if self._context.node.failure is not None:
            raise ProblemError(503, "failed", str(self._context.node.failure))
        return 200, Health()

    async def ready(self, _: Call) -> tuple[int, object]:
        """200 if every shard has reached its role and none is paused."""
        reasons = self._context.reasons()
        if reasons:
            raise ProblemError(
                503, "not-ready", "; ".join(reasons), errors=[Fault(detail=reason) for reason in reasons]
            )
        return 200, Health(details=self._context.details() or UNSET)


def _step(length_ms: int) -> int:
    """The shortest whole number of minutes that divides the length into at most 60 intervals."""
    return max(1, -(-length_ms // (TIMELINE_INTERVALS * MINUTE_MS))) * MINUTE_MS


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1_000, 3)


def _lateness(lateness: Histogram) -> Lateness:
    count = sum(lateness.counts)
    return Lateness(
        count=count,
        p50_ms=_ms(lateness.quantile_s(0.5)),
        p99_ms=_ms(lateness.quantile_s(0.99)),
        p999_ms=_ms(lateness.quantile_s(0.999)),
        mean_ms=_ms(lateness.sum_s / count) if count else None,
    )
