"""Lists of messages over HTTP, with a filter: pages over all shards, of pending or settled
messages, in the order of `planned_at`: the time for which a message is or was planned; of one that
was cancelled, or settled from a lane, the time at which it was settled.

The parts of shards on other nodes are requested from these nodes and merged here."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from chronos.admin.http.access import check_headers, check_targets
from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import begin_again, header_conditions, id_bytes, to_bytes
from chronos.admin.http.problems import converted, wrong_field
from chronos.admin.http.schemas import (
    JobFilter,
    MessageInfo,
    Page,
    PageQuery,
)
from chronos.admin.http.tokens import Sender
from chronos.admin.messages.info import message_info, tell_failure, tell_pause, tell_state
from chronos.admin.messages.scheduling import time_ms
from chronos.core.keys import OFFSET_MAX
from chronos.core.query.filter import Filter
from chronos.core.query.lookup import SETTLED
from chronos.core.query.pages import MessageRow, page, settled
from chronos.core.shard.wheel import Position
from chronos.core.timefmt import MS_MAX, format_time

FRESH_S = 3.0
"""How long a list waits until the shards have applied the records that were in the log when the
request came."""

ENDED = ("delivered", "cancelled", "expired", "dead", SETTLED)
"""The states of `state=settled`."""

PageKey = tuple[int, int, int]
"""`(place_ms, shard, offset)`: the order of messages over all shards."""

PLAIN_KEY = re.compile("([0-9]{1,15})-([0-9]{1,4})-([0-9]{1,19})", re.ASCII)
"""A page key as nodes give it to each other."""

Part = tuple[list[tuple[PageKey, MessageInfo]], PageKey | None]
"""Messages of some shards in order, and the key up to which they are complete; None: to the end."""

T = TypeVar("T")


def to_filter(
    sender: Sender,
    given: PageQuery | JobFilter,
    headers: Iterable[tuple[str, str]],
    *,
    within: str = "",
) -> Filter:
    """The filter of a sender, true of nothing but its own messages. `within`: the field that holds
    the conditions.

    ProblemError: 422 for a value that is not valid; 403 for a target that is not the sender's own,
    and for headers if it may not see them."""
    headers = tuple(headers)
    if given.target is not UNSET:
        check_targets(sender, given.target)
    if headers or given.contains is not UNSET:
        check_headers(sender)
    from_ms = (
        0 if given.due_from is UNSET else converted(f"{within}due_from", time_ms, given.due_from)
    )
    to_ms = (
        MS_MAX + 1 if given.due_to is UNSET else converted(f"{within}due_to", time_ms, given.due_to)
    )
    if from_ms > to_ms:
        raise wrong_field(
            f"{within}due_to", "lies before due_from, so that no message is in between"
        )
    return Filter(
        reach=sender.reach,
        target=None if given.target is UNSET else given.target,
        due_from_ms=from_ms,
        due_to_ms=to_ms,
        id_prefix=b""
        if given.id_prefix is UNSET
        else converted(f"{within}id_prefix", id_bytes, given.id_prefix),
        key=None if given.key is UNSET else converted(f"{within}key", id_bytes, given.key),
        headers=tuple(
            (name, converted(f"{within}header", to_bytes, value)) for name, value in headers
        ),
        contains=b""
        if given.contains is UNSET
        else converted(f"{within}contains", to_bytes, given.contains),
        is_series=given.series,
    )


class Listing:
    """The handler of lists."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(self, call: Call) -> tuple[int, object]:
        """Messages of all shards in the order of their planned times."""
        query: PageQuery = call.query
        reach = call.sender.reach
        matching = to_filter(call.sender, query, header_conditions(query.header))
        after = None if query.after is UNSET else self._page_key(call)

        context, peers = self._context, self._context.peers
        held, missing = peers.split(peers.requested(query.shards))

        def part(number: int) -> Part:
            if query.state != "pending":
                return self._settled(number, after, matching, query)
            return _part(
                number,
                page(
                    context.shards[number].store,
                    context.shards[number].state,
                    number,
                    begin=_after(after, number),
                    matching=matching,
                    limit=query.limit,
                    shards=context.node.config.shards,
                ),
                context.now_ms(),
            )

        is_fresh = query.fresh and after is None
        behind = await self._behind(held) if is_fresh else []
        parts = [await context.in_thread(part, number) for number in held]
        asked = asdict(query) | {
            "after": UNSET if after is None else _plain(after),
            "series": "true" if query.series else UNSET,
            "fresh": "true" if is_fresh else UNSET,
        }
        for _, found in await peers.gather(missing, "/v1/messages", asked, Page, reach=reach):
            behind += found.behind or ()
            rows = [
                ((time_ms(one.planned_at), one.shard, one.offset), one) for one in found.messages
            ]
            parts.append((rows, None if found.after is None else _from_plain(found.after)))
        messages, end = merge(parts, query.limit)
        kept_from = self._kept_from() if query.state != "pending" else UNSET
        key: str | None = None
        if end is not None:
            key = (
                _plain(end) if query.shards is not UNSET else context.cursors.seal(call, query, end)
            )
        return 200, Page(
            messages=messages,
            after=key,
            through=UNSET if end is None else format_time(end[0]),
            kept_from=kept_from,
            behind=sorted(behind) or UNSET,
        )

    async def _behind(self, held: list[int]) -> list[int]:
        """Return the shards that have not applied in time the records in the log at the
        beginning."""
        deadline_s = asyncio.get_running_loop().time() + FRESH_S
        caught_up = await asyncio.gather(
            *(self._context.caught_up(shard, deadline_s) for shard in held)
        )
        return [shard for shard, is_current in zip(held, caught_up, strict=True) if not is_current]

    def _kept_from(self) -> str | UnsetType:
        """The time before which messages that ended are deleted from the store."""
        config = self._context.node.config
        if not config.workers.delete:
            return UNSET
        return format_time(max(0, self._context.now_ms() - config.retention.delivered))

    def _settled(
        self, number: int, after: PageKey | None, matching: Filter, query: PageQuery
    ) -> Part:
        """The part of a page of settled messages that one shard has."""
        driver = self._context.shards[number]
        states = ENDED if query.state == "settled" else (query.state,)
        found, through = settled(
            driver.store,
            driver.state,
            number,
            begin=_after(after, number),
            matching=matching,
            states=states,
            limit=query.limit,
            shards=self._context.node.config.shards,
        )
        rows = []
        for one in found:
            answer = message_info(one.id, number, one.offset, one.place_ms, one.entry)
            tell_state(answer, one, partitions_of=driver.replica.target_partitions)
            rows.append(((one.place_ms, number, one.offset), answer))
        return rows, None if through is None else (through[0], number, through[1])

    def _page_key(self, call: Call) -> PageKey:
        """The place after which a page begins. A node that asks for a part of a page, by its
        shards, gives it unsealed."""
        query: PageQuery = call.query
        assert query.after is not UNSET
        if query.shards is not UNSET:
            return _from_plain(query.after)
        numbers = self._context.cursors.open(call, query, query.after)
        if len(numbers) != 3:
            raise begin_again()
        return numbers[0], numbers[1], numbers[2]


def merge(
    parts: Sequence[tuple[list[tuple[PageKey, T]], PageKey | None]], limit: int
) -> tuple[list[T], PageKey | None]:
    """One page from the parts of all shards, in the order of `PageKey`, only as far as every part
    is complete.

    The second value is the key after which the next page begins; None: this is the last page.
    """
    ends = [end for _, end in parts if end is not None]
    horizon = min(ends, default=None)
    rows = sorted((row for found, _ in parts for row in found), key=lambda row: row[0])
    if horizon is not None:
        rows = [row for row in rows if row[0] <= horizon]
    if len(rows) > limit:
        rows = rows[:limit]
        horizon = rows[-1][0]
    return [message for _, message in rows], horizon


def _row_info(shard: int, row: MessageRow, now_ms: int) -> MessageInfo:
    answer = message_info(row.id, shard, row.offset, row.place_ms, row.entry)
    tell_pause(answer, row.entry, now_ms)
    answer.parked = row.is_parked
    tell_failure(answer, row.failure, is_waiting=not row.is_parked)
    return answer


def _part(shard: int, found: tuple[list[MessageRow], Position | None], now_ms: int) -> Part:
    rows, through = found
    return (
        [((row.place_ms, shard, row.offset), _row_info(shard, row, now_ms)) for row in rows],
        None if through is None else (through[0], shard, through[1]),
    )


def _after(place: PageKey | None, shard: int) -> Position | None:
    """The position after which a shard's own page begins, for a page key among all shards."""
    if place is None:
        return None
    due_ms, last_shard, offset = place
    if shard == last_shard:
        return due_ms, offset
    return (due_ms, OFFSET_MAX) if shard < last_shard else (due_ms - 1, OFFSET_MAX)


def _plain(key: PageKey) -> str:
    return "-".join(map(str, key))


def _from_plain(text: str) -> PageKey:
    """The key that another node gives or gets. ProblemError if it is none."""
    match = PLAIN_KEY.fullmatch(text)
    if match is None:
        raise begin_again()
    due_ms, shard, offset = map(int, match.groups())
    return due_ms, shard, offset
