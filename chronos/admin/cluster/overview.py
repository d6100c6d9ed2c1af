"""Handlers about the work of the shards: their state, the timeline of due times, the last minutes,
the outcomes by target, the rate limits, and the health checks `/livez` and `/readyz`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from chronos.admin.http.access import check_target, forbidden
from chronos.admin.http.context import Call, Context
from chronos.admin.http.problems import ProblemError, converted, decode_body, wrong_field
from chronos.admin.http.schemas import (
    DEAD_CASES_MAX,
    Counters,
    Cursor,
    DeadCase,
    DeadRecently,
    Epoch,
    Fault,
    Health,
    HeldBack,
    History,
    HistoryQuery,
    Interval,
    LaneInfo,
    Lateness,
    Minute,
    OverviewQuery,
    RateChange,
    RateInfo,
    Rates,
    RatesQuery,
    ReplicaInfo,
    Shard,
    Shards,
    TargetCounters,
    TargetInfo,
    Targets,
    TargetsQuery,
    Timeline,
    TimelineQuery,
)
from chronos.admin.http.waiting import poll
from chronos.admin.messages.scheduling import duration_ms, time_ms
from chronos.core.cluster.reports import NOT_HELD
from chronos.core.cluster.roles import Member, verdicts
from chronos.core.keys import LIMITED, MINUTE_MS, OFFSET_MAX, Lane
from chronos.core.query.filter import WILDCARDS
from chronos.core.query.pages import next_place_ms
from chronos.core.query.timeline import TIMELINE_MAX_MS, check_timeline, timeline
from chronos.core.rates import LIMITS_MAX, InForce, Rate, check_pattern, parse_rate, rate_text
from chronos.core.reach import EVERYTHING
from chronos.core.shard.lanes import read_lanes
from chronos.core.timefmt import MS_MAX, format_time
from chronos.errors import ChronosError
from chronos.node.histogram import Histogram
from chronos.node.outcomes import TARGETS_COUNTED, TargetCounts
from chronos.node.shards import ShardDriver

CHANGE_S = 10.0
"""How long a request waits until its change is in force; then the answer is `accepted`."""

LANES_MAX = 1_000
"""Most lanes of an answer: those with the most messages."""

_decode_change = msgspec.json.Decoder(RateChange).decode

DAY_MS = 86_400_000

TIMELINE_MS = 3_600_000
"""Length of a timeline whose end is not given."""

TIMELINE_INTERVALS = 60
"""Greatest number of intervals of a timeline without a step."""


class RateLimitHandlers:
    """The handlers of `/v1/rates`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rates(self, call: Call) -> tuple[int, object]:
        """The limits in the order in which they are looked for, and the lanes of all shards
        together."""
        query: RatesQuery = call.query
        context, peers, own = self._context, self._context.peers, call.sender.reach
        if query.topic is not UNSET:
            check_target(call.sender, query.topic)
        held, missing = peers.split(peers.requested(query.shards))
        lengths = await context.in_thread(lane_lengths, [context.shards[number] for number in held])
        for _, found in await peers.gather(
            missing, "/v1/rates", {"topic": query.topic}, Rates, reach=own
        ):
            for lane in found.lanes:
                lengths[(lane.topic, LIMITED if lane.partition is None else lane.partition)] += (
                    lane.messages
                )
        table = context.node.rates.limits.table
        topic = None if query.topic is UNSET else query.topic
        in_force = None if topic is None else table.of(topic)
        limits = table.limits if topic is None else [] if in_force is None else [in_force]
        if topic is not None:
            # The limit may be that of a pattern, which is not for everybody.
            limits = (
                [replace(limit, pattern=topic) for limit in limits] if own.is_limited else limits
            )
        limits = [limit for limit in limits if own.admits_target(limit.pattern)]
        of_topic = Counter(
            {
                lane: length
                for lane, length in lengths.items()
                if topic in (None, lane[0]) and own.admits_target(lane[0])
            }
        )
        return 200, Rates(rates=[_info(limit) for limit in limits], lanes=self._lanes(of_topic))

    def _lanes(self, lengths: Counter[Lane]) -> list[LaneInfo]:
        table, now_ms = self._context.node.rates.limits.table, self._context.now_ms()
        return [
            LaneInfo(
                topic=topic,
                partition=None if partition == LIMITED else partition,
                waits_for="rate" if partition == LIMITED else "leader",
                messages=messages,
                rate=None if (limit := table.of(topic)) is None else rate_text(limit.rate),
                empty_at=_empty_at(messages, None if limit is None else limit.rate, now_ms)
                if partition == LIMITED
                else None,
            )
            for (topic, partition), messages in lengths.most_common(LANES_MAX)
        ]

    async def set(self, call: Call) -> tuple[int, object]:
        """Set the limit of a pattern; it replaces the one of the configuration until it is
        removed."""
        pattern = self._pattern(call)
        change = decode_body(_decode_change, RateChange, call.body)
        rate = converted("rate", parse_rate, change.rate)
        rates = self._context.node.rates
        changed = rates.changed()
        if pattern not in changed and len(changed) >= LIMITS_MAX:
            raise wrong_field(
                "pattern",
                f"{LIMITS_MAX} limits are set at run time, which is the most: remove some first",
            )
        await self._context.in_thread(
            lambda: rates.set(pattern, rate, at_ms=self._context.now_ms())
        )

        def is_set() -> bool | None:
            now = rates.changed()
            return (pattern in now and now[pattern] == rate) or None

        status = await self._done(is_set)
        return status, _info(InForce(pattern=pattern, rate=rate, changed=True))

    async def remove(self, call: Call) -> tuple[int, object]:
        """Remove a limit that was set at run time: that of the configuration is in force again, if
        there is one."""
        pattern = self._pattern(call)
        rates = self._context.node.rates
        changed = rates.changed()
        if pattern not in changed:
            own = call.sender.reach
            known = ", ".join(sorted(filter(own.admits_target, changed))[:10]) or "none"
            raise ProblemError(
                404,
                "no-rate",
                f"no limit was set at run time for {pattern}; those that were: {known}",
                hint="`unlimited` lifts a limit of the configuration",
            )
        removed = InForce(pattern=pattern, rate=changed[pattern], changed=True)
        await self._context.in_thread(lambda: rates.remove(pattern, at_ms=self._context.now_ms()))
        status = await self._done(lambda: pattern not in rates.changed() or None)
        return status, _info(removed)

    @staticmethod
    def _pattern(call: Call) -> str:
        pattern = converted("pattern", check_pattern, call.request.match_info["pattern"])
        is_topic = not set(pattern) & WILDCARDS
        if call.sender.is_limited and not is_topic:
            raise forbidden(call.sender, f"may limit single topics only, not {pattern}")
        check_target(call.sender, pattern)
        return pattern

    async def _done(self, look: Callable[[], bool | None]) -> int:
        return 200 if await poll(look, CHANGE_S, self._context.stopping) else 202


def lane_lengths(shards: Iterable[ShardDriver]) -> Counter[Lane]:
    """Return the number of messages in each lane, of these shards together. Raises Retry if a store
    cannot be read."""
    lengths: Counter[Lane] = Counter()
    for shard in shards:
        states = read_lanes(shard.store, shard.state.parked)
        lengths.update({lane: state.length for lane, state in states.items()})
    return lengths


def _info(limit: InForce) -> RateInfo:
    return RateInfo(
        pattern=limit.pattern,
        rate=rate_text(limit.rate),
        source="run-time" if limit.changed else "configuration",
    )


def _empty_at(messages: int, rate: Rate | None, now_ms: int) -> str | None:
    """Return when the last of the messages will have left the lane if no more arrive; None: never,
    or as fast as possible."""
    if rate is None or rate.per_s == 0:
        return None
    return format_time(min(MS_MAX, now_ms + int(messages / rate.per_s * 1_000)))


class Overview:
    """The handlers of `/v1/shards`, `/v1/timeline`, `/v1/history`, `/livez` and `/readyz`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def shards(self, call: Call) -> tuple[int, object]:
        """Every shard: role, positions, lag, lateness, totals; a shard of other nodes as one of
        them shows it."""
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
        for found in await asyncio.gather(
            *(self._from_peers(group) for group in peers.groups(missing))
        ):
            shards.update((shard.shard, shard) for shard in found)
        return 200, Shards(shards=[shards[number] for number in numbers])

    async def _from_peers(self, numbers: list[int]) -> list[Shard]:
        """The shards as another node shows them, their master if it answers; empty when no node
        answers."""
        try:
            return [
                shard
                for _, part in await self._context.peers.gather(
                    numbers, "/v1/shards", {}, Shards, reach=EVERYTHING
                )
                for shard in part.shards
            ]
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
            in_sync_missing=None
            if in_sync is None or not in_sync.rules.needed
            else in_sync.missing(shard.number),
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
        return (
            None
            if found is None
            else HeldBack(records=found.records, since=format_time(found.since_ms))
        )

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
        holders = () if assigned is None else assigned.replicas
        replicas = replicas_of(snapshot.members, shard.number, holders)
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
            lambda: [
                timeline(context.shards[number].store, from_ms, to_ms, step_ms) for number in held
            ]
        )
        interval = {"from": from_ms, "to": to_ms, "step": step_ms}
        for _, found in await peers.gather(
            missing, "/v1/timeline", interval, Timeline, reach=call.sender.reach
        ):
            counts.append([interval.pending for interval in found.intervals])
        sums = [sum(column) for column in zip(*counts, strict=True)]
        start_ms = from_ms // MINUTE_MS * MINUTE_MS
        return 200, Timeline(
            start=format_time(start_ms),
            end=format_time(start_ms + len(sums) * step_ms),
            step_ms=step_ms,
            pending=sum(sums),
            intervals=[
                Interval(start=format_time(start_ms + at * step_ms), pending=pending)
                for at, pending in enumerate(sums)
            ],
        )

    async def history(self, call: Call) -> tuple[int, object]:
        """The last minutes of this node, or of all nodes."""
        query: HistoryQuery = call.query
        node = self._context.node
        minutes = [
            Minute(
                start=format_time(minute.start_ms),
                delivered=minute.delivered,
                dead=minute.dead,
                expired=minute.expired,
                rejected=minute.rejected,
                pending=minute.pending,
                late_p99_ms=_ms(minute.quantile_s(0.99)),
                late_max_ms=_ms(minute.quantile_s(1.0)),
            )
            for minute in node.history.minutes(self._context.now_ms(), query.minutes)
        ]
        silent: list[str] = []
        if query.of == "cluster":
            answers, silent = await self._context.peers.ask_all(
                "/v1/history", {"minutes": str(query.minutes)}, History, reach=call.sender.reach
            )
            minutes = added_up([minutes, *(answer.minutes for answer in answers)])
        return 200, History(node=node.config.node.id, silent=silent, minutes=minutes)

    async def targets(self, call: Call) -> tuple[int, object]:
        """The counts of each target."""
        query: TargetsQuery = call.query
        reach = call.sender.reach
        known, others = self._context.node.outcomes.all_targets()
        words = "" if query.find is UNSET else query.find.lower()
        found = {
            topic: counts
            for topic, counts in known.items()
            if words in topic.lower() and reach.admits_target(topic)
        }
        silent: list[str] = []
        if query.of == "cluster":
            asked = {"of": "node", "limit": str(TARGETS_COUNTED)}
            if words:
                asked["find"] = words
            answers, silent = await self._context.peers.ask_all(
                "/v1/targets", asked, Targets, reach=reach
            )
            for answer in answers:
                for each in answer.targets:
                    counts = found.setdefault(each.topic, TargetCounts())
                    counts.add(each.delivered, each.late, each.dead_letters)
                if (more := answer.others) is not None:
                    others.add(more.delivered, more.late, more.dead_letters)
        rows = [TargetInfo(topic=topic, **_counters(found[topic])) for topic in sorted(found)]
        if query.order != "topic":
            rows.sort(key=attrgetter(query.order), reverse=True)
        return 200, Targets(
            targets=rows[: query.limit],
            total=len(rows),
            others=None if reach.is_limited else TargetCounters(**_counters(others)),
            silent=silent,
        )

    @staticmethod
    def _time(field: str, value: object, default_ms: int) -> int:
        if value is UNSET:
            return default_ms
        assert isinstance(value, int | str)
        return converted(field, time_ms, value)

    async def live(self, _: Call) -> tuple[int, object]:
        """Answer 200 while the process should be kept running."""
        if self._context.node.failure is not None:
            raise ProblemError(503, "failed", str(self._context.node.failure))
        return 200, Health()

    async def ready(self, _: Call) -> tuple[int, object]:
        """Answer 200 if every shard has reached its role and none is paused."""
        reasons = self._context.reasons()
        if reasons:
            raise ProblemError(
                503,
                "not-ready",
                "; ".join(reasons),
                errors=[Fault(detail=reason) for reason in reasons],
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


def _counters(counts: TargetCounts) -> dict[str, int]:
    """The fields of `TargetCounters`."""
    return {"delivered": counts.delivered, "late": counts.late, "dead_letters": counts.dead}


def replicas_of(
    members: Mapping[str, Member], shard: int, holders: Collection[str]
) -> list[ReplicaInfo]:
    """The replicas of a shard: those that a node holds, and those that it is to hold. `holders`:
    the nodes to which they are assigned."""
    found = [
        (node, replica)
        for node, member in sorted(members.items())
        if (replica := member.replicas.get(shard)) is not None
        and (replica.role != NOT_HELD or node in holders)
    ]
    furthest = max((replica.applied or 0 for _, replica in found), default=0)
    return [
        ReplicaInfo(
            node=node,
            role=replica.role,
            applied=replica.applied,
            lag=None if replica.applied is None else furthest - replica.applied,
        )
        for node, replica in found
    ]


def added_up(histories: Iterable[Iterable[Minute]]) -> list[Minute]:
    """The minutes of several nodes added up, the oldest first."""
    by_start: dict[str, list[Minute]] = {}
    for history in histories:
        for minute in history:
            by_start.setdefault(minute.start, []).append(minute)
    return [
        Minute(
            start=start,
            delivered=sum(each.delivered for each in parts),
            dead=sum(each.dead for each in parts),
            expired=sum(each.expired for each in parts),
            rejected=sum(each.rejected for each in parts),
            pending=sum(each.pending for each in parts),
            late_p99_ms=_latest(each.late_p99_ms for each in parts if each.delivered),
            late_max_ms=_latest(each.late_max_ms for each in parts if each.delivered),
        )
        for start, parts in sorted(by_start.items())
    ]


def _latest(lateness_ms: Iterable[float | None]) -> float | None:
    """The greatest; None if one is not known, or there is none."""
    found = list(lateness_ms)
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None
