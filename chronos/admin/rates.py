"""Rate limits over HTTP: those in force, the messages that wait in lanes, and changes at run time."""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from chronos.admin.access import check_target, forbidden
from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, converted, wrong_field
from chronos.admin.schemas import LaneInfo, RateChange, RateInfo, Rates, RatesQuery
from chronos.admin.validation import decode_body
from chronos.admin.waiting import poll
from chronos.core.filter import WILDCARDS
from chronos.core.keys import LIMITED, Lane
from chronos.core.lanes import read_states
from chronos.core.rates import LIMITS_MAX, InForce, Rate, check_pattern, parse_rate, rate_text
from chronos.core.timefmt import MS_MAX, format_time
from chronos.node.driver import ShardDriver

CHANGE_S = 10.0
"""How long a request waits until its change is in force; then the answer is `accepted`."""

LANES_MAX = 1_000
"""Most lanes of an answer: those with the most messages."""

_decode_change = msgspec.json.Decoder(RateChange).decode


class RateLimitHandlers:
    """The handlers of `/v1/rates`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rates(self, call: Call) -> tuple[int, object]:
        """The limits in the order in which they are looked for, and the lanes of all shards together."""
        query: RatesQuery = call.query
        context, peers, own = self._context, self._context.peers, call.sender.reach
        if query.topic is not UNSET:
            check_target(call.sender, query.topic)
        held, missing = peers.split(peers.requested(query.shards))
        lengths = await context.in_thread(lane_lengths, [context.shards[number] for number in held])
        for _, found in await peers.gather(missing, "/v1/rates", {"topic": query.topic}, Rates, reach=own):
            for lane in found.lanes:
                lengths[(lane.topic, LIMITED if lane.partition is None else lane.partition)] += lane.messages
        table = context.node.rates.limits.table
        topic = None if query.topic is UNSET else query.topic
        in_force = None if topic is None else table.of(topic)
        limits = table.limits if topic is None else [] if in_force is None else [in_force]
        if topic is not None:
            # The limit may be that of a pattern, which is not for everybody.
            limits = [replace(limit, pattern=topic) for limit in limits] if own.is_limited else limits
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
        """Set the limit of a pattern; it replaces the one of the configuration until it is removed."""
        pattern = self._pattern(call)
        change = decode_body(_decode_change, RateChange, call.body)
        rate = converted("rate", parse_rate, change.rate)
        rates = self._context.node.rates
        changed = rates.changed()
        if pattern not in changed and len(changed) >= LIMITS_MAX:
            raise wrong_field(
                "pattern", f"{LIMITS_MAX} limits are set at run time, which is the most: remove some first"
            )
        await self._context.in_thread(lambda: rates.set(pattern, rate, at_ms=self._context.now_ms()))

        def is_set() -> bool | None:
            now = rates.changed()
            return (pattern in now and now[pattern] == rate) or None

        status = await self._done(is_set)
        return status, _info(InForce(pattern=pattern, rate=rate, changed=True))

    async def remove(self, call: Call) -> tuple[int, object]:
        """Remove a limit that was set at run time: that of the configuration is in force again, if there is one."""
        pattern = self._pattern(call)
        rates = self._context.node.rates
        changed = rates.changed()
        if pattern not in changed:
            own = call.sender.reach
            known = ", ".join(sorted(filter(own.admits_target, changed))[:10]) or "none"
            raise ProblemError(
                404, "no-rate", f"no limit was set at run time for {pattern}; those that were: {known}",
                hint="`unlimited` lifts a limit of the configuration",
            )  # fmt: skip
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
    """Return the number of messages in each lane, of these shards together. Raises Retry if a store cannot be read."""
    lengths: Counter[Lane] = Counter()
    for shard in shards:
        if shard.state.parked:
            lengths.update({lane: state.length for lane, state in read_states(shard.store).items()})
    return lengths


def _info(limit: InForce) -> RateInfo:
    return RateInfo(
        pattern=limit.pattern, rate=rate_text(limit.rate), source="run-time" if limit.changed else "configuration"
    )


def _empty_at(messages: int, rate: Rate | None, now_ms: int) -> str | None:
    """When the last of the messages will have left, if no more come; None: never, or as fast as possible."""
    if rate is None or rate.per_s == 0:
        return None
    return format_time(min(MS_MAX, now_ms + int(messages / rate.per_s * 1_000)))
