"""Messages over HTTP: schedule, find, list, cancel, reschedule, fire."""

import asyncio
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import UNSET

from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, wrong_field
from chronos.admin.scheduling import Planned, decode_body, new_time, plan_action, time_ms
from chronos.admin.text import BASE64_ID, headers_out, id_bytes, id_text, text_or_base64
from chronos.admin.wire import Accepted, Destination, Done, Known, Message, Move, Page, PageQuery
from chronos.core.keys import ID_BYTES_MAX, OFFSET_MAX, address, parse_address, partition_of
from chronos.core.message import Entry, Reason
from chronos.core.moment import MS_MAX, format_time
from chronos.core.query import Found, Row, find, page
from chronos.core.wheel import Position
from chronos.driver import ShardDriver
from chronos.ports import Appended

FIND_S = 1.0
"""How long a look-up waits for the shard to take in what the log held when it was asked (DESIGN section 7)."""

ACT_S = 5.0
"""How long an action waits to be applied."""


IN_LOOP_BYTES = 32_768
"""A body up to this size is checked in the event loop; larger ones beside it, so that they hold up nobody."""

Place = tuple[int, int, int]
"""`(place_ms, shard, offset)`: the order of a page over all shards."""

_decode_move = msgspec.json.Decoder(Move).decode


class Messages:
    """The handlers under `/v1/messages`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- schedule

    async def schedule(self, call: Call) -> tuple[int, object]:
        """Schedule a message, or up to 10,000 at once."""
        context = self._context
        if len(call.body) <= IN_LOOP_BYTES:
            planned, is_batch = self._plan(call.body)
        else:
            planned, is_batch = await context.in_thread(self._plan, call.body)
        records = [one.record for one in planned]
        appended = await context.appender.append(records, sum(one.bytes for one in planned))
        accepted = [_accepted(one, where) for one, where in zip(planned, appended, strict=True)]
        return 202, accepted if is_batch else accepted[0]

    def _plan(self, body: bytes) -> tuple[list[Planned], bool]:
        messages = self._context.planner.read(body)
        is_batch = isinstance(messages, list)
        batch: list[Message] = messages if isinstance(messages, list) else [messages]
        return self._context.planner.plan(batch, self._context.now_ms(), batch=is_batch), is_batch

    # --- find

    async def get(self, call: Call) -> tuple[int, object]:
        """What is known of one message."""
        message_id = _id_of(call.request)
        deadline_s = asyncio.get_running_loop().time() + FIND_S
        shard, found, sure = await self._look(message_id, deadline_s, pending_first=False)
        if found is None:
            raise ProblemError(
                404, "not-found", f"nothing is known of {id_text(message_id)}",
                hint="it was never scheduled, was refused (see the rejected topic), or its retention is over"
                if sure else "not everything in the log has been taken in yet: ask again",
            )  # fmt: skip
        return 200, known(found.id, shard, found.offset, found.place_ms, found.entry, found)

    async def _look(
        self, message_id: bytes, deadline_s: float, *, pending_first: bool
    ) -> tuple[int, Found | None, bool]:
        """`(shard, what is known, whether that is all there was to know)`: at home first, then, if ids may live
        anywhere, in all other shards."""
        context = self._context
        home, others = self._shards_of(message_id)
        sure = await context.caught_up(home, deadline_s)
        found = await context.in_thread(self._find, context.shards[home], message_id)
        if found is not None and (found.state == "pending" or not pending_first):
            return home, found, sure
        if others:
            sure &= all(await asyncio.gather(*(context.caught_up(shard, deadline_s) for shard in others)))
            elsewhere = await context.in_thread(
                lambda: [(shard, self._find(context.shards[shard], message_id)) for shard in others]
            )
            there = [(shard, one) for shard, one in elsewhere if one is not None]
            there.sort(key=lambda each: each[1].state != "pending")
            if there and (found is None or there[0][1].state == "pending"):
                return *there[0], sure
        return home, found, sure

    def _shards_of(self, message_id: bytes) -> tuple[int, list[int]]:
        """Where the id belongs, and where else it may be."""
        count = len(self._context.shards)
        named = parse_address(message_id, count)
        if named is not None:
            return named[0], []
        home = partition_of(message_id, count)
        if self._context.rules[home].refuse_wrong_shard:
            return home, []
        return home, [shard for shard in range(count) if shard != home]

    def _find(self, shard: ShardDriver, message_id: bytes) -> Found | None:
        return find(shard.store, shard.state, shard.number, len(self._context.shards), message_id)

    # --- list

    async def page(self, call: Call) -> tuple[int, object]:
        """Pending messages of all shards in the order in which they are due."""
        query: PageQuery = call.query
        due_from_ms = 0 if query.due_from is UNSET else _time("due_from", query.due_from)
        due_to_ms = MS_MAX + 1 if query.due_to is UNSET else _time("due_to", query.due_to)
        after = None if query.after is UNSET else _place(query.after)
        target = None if query.target is UNSET else query.target

        def pages() -> list[tuple[list[Row], Position | None]]:
            return [
                page(
                    shard.store, shard.state, shard.number, after=_after(after, shard.number),
                    due_from_ms=due_from_ms, due_to_ms=due_to_ms, target=target, limit=query.limit,
                )
                for shard in self._context.shards
            ]  # fmt: skip

        rows, following = merge(await self._context.in_thread(pages), query.limit)
        messages = [known(row.id, shard, row.offset, row.place_ms, row.entry, None) for shard, row in rows]
        return 200, Page(messages=messages, after=None if following is None else "-".join(map(str, following)))

    # --- act

    async def cancel(self, call: Call) -> tuple[int, object]:
        """Cancel a message."""
        return await self._act(_id_of(call.request), "cancel", "cancelled", None)

    async def fire(self, call: Call) -> tuple[int, object]:
        """Deliver a message now."""
        return await self._act(_id_of(call.request), "fire-now", "fired", None)

    async def reschedule(self, call: Call) -> tuple[int, object]:
        """Give a message a new time."""
        move = decode_body(_decode_move, call.body)
        return await self._act(_id_of(call.request), "reschedule", "rescheduled", new_time(move))

    async def _act(
        self, message_id: bytes, verb: str, success: str, time: tuple[str, bytes] | None
    ) -> tuple[int, object]:
        """1. find the shard, 2. write the action, 3. wait until it is applied, 4. say what became of it."""
        context = self._context
        loop = asyncio.get_running_loop()
        shard, others = self._shards_of(message_id)
        if others:
            shard, _, _ = await self._look(message_id, loop.time() + FIND_S, pending_first=True)
        record = plan_action(message_id, verb, time, context.rules[shard], context.delay_topic, context.now_ms())
        (appended,) = await context.appender.append([record], 1_024)
        done = Done(result="accepted", id=id_text(message_id), shard=shard, offset=appended.offset)
        if not await context.watches[shard].pulled(appended.offset + 1, ACT_S):
            return 202, done
        reason = await self._refusal(context.shards[shard], message_id, verb, appended)
        if reason is None:
            done.result = success  # type: ignore[assignment]
        elif reason == Reason.TOO_LATE:
            done.result = "too_late"
        elif reason == Reason.UNKNOWN:
            done.result = "unknown"
        else:
            done.result, done.detail = "refused", Reason(reason).word
        return 200, done

    async def _refusal(self, shard: ShardDriver, message_id: bytes, verb: str, appended: Appended) -> int | None:
        """Why the applied action was refused; None: it was not. A cancel of what is cancelled already has its way."""
        reason = shard.refusal(appended.offset)
        if reason is not None and verb == "cancel":
            found = await self._context.in_thread(self._find, shard, message_id)
            if found is not None and found.state == "cancelled":
                return None
        return reason


def _accepted(planned: Planned, appended: Appended) -> Accepted:
    due_ms = planned.due_ms + appended.timestamp_ms if planned.is_delay else planned.due_ms
    return Accepted(
        id=planned.id or address(appended.partition, due_ms, appended.offset).decode(),
        shard=appended.partition,
        offset=appended.offset,
        due_at=format_time(due_ms),
    )


def known(message_id: bytes, shard: int, offset: int, place_ms: int, entry: Entry | None, found: Found | None) -> Known:
    """A message as the API shows it."""
    answer = Known(
        id=id_text(message_id),
        state="pending" if found is None else found.state,  # type: ignore[arg-type]
        shard=shard,
        offset=offset,
        due_at=format_time(place_ms if entry is None else entry.due_ms),
        planned_at=format_time(place_ms),
        settled_at=None if found is None or found.settled_ms is None else format_time(found.settled_ms),
    )
    if entry is None:
        return answer
    key, key_base64 = text_or_base64(entry.key)
    answer.target = Destination(
        topic=entry.target,
        key=UNSET if key is None else key,
        key_base64=key_base64,
        headers=headers_out(entry.headers) if entry.headers else UNSET,
    )
    answer.accepted_at = format_time(entry.timestamp_ms)
    answer.expire_at = None if entry.expire_at_ms is None else format_time(entry.expire_at_ms)
    answer.occurrence, answer.attempt = entry.occurrence, entry.attempt
    answer.value_bytes = None if entry.value is None else len(entry.value)
    return answer


def merge(pages: list[tuple[list[Row], Position | None]], limit: int) -> tuple[list[tuple[int, Row]], Place | None]:
    """One page of many: in the order of `Place`, only as far as every shard's answer is complete.

    The second value is where the next page begins; None when there is no more.
    """
    horizon: Place | None = None
    rows: list[tuple[Place, Row]] = []
    for shard, (found, through) in enumerate(pages):
        rows += [((row.place_ms, shard, row.offset), row) for row in found]
        if through is not None:
            end = (through[0], shard, through[1])
            horizon = end if horizon is None else min(horizon, end)
    rows.sort(key=lambda each: each[0])
    if horizon is not None:
        rows = [each for each in rows if each[0] <= horizon]
    if len(rows) > limit:
        rows = rows[:limit]
        horizon = rows[-1][0]
    return [(place[1], row) for place, row in rows], horizon


def _after(place: Place | None, shard: int) -> Position | None:
    """Where a shard's own page begins, behind a place among all shards."""
    if place is None:
        return None
    due_ms, at, offset = place
    if shard == at:
        return due_ms, offset
    return (due_ms, OFFSET_MAX) if shard < at else (due_ms - 1, OFFSET_MAX)


def _place(text: str) -> Place:
    due_ms, shard, offset = (int(part) for part in text.split("-"))
    if offset > OFFSET_MAX:
        raise wrong_field("after", "give back what the page before said")
    return due_ms, shard, offset


def _time(field: str, value: int | str) -> int:
    try:
        return time_ms(value)
    except ValueError as error:
        raise wrong_field(field, str(error)) from None


def _id_of(request: web.Request) -> bytes:
    """The id in the path: percent-encoded UTF-8, or `base64:` and base64."""
    data = unquote_to_bytes(request.rel_url.raw_path.split("/")[3])
    try:
        text = data.decode()
        message_id = id_bytes(text)
    except UnicodeDecodeError:
        raise wrong_field("id", f"is not UTF-8; write other bytes as {BASE64_ID} and base64") from None
    except ValueError as error:
        raise wrong_field("id", str(error)) from None
    if not 0 < len(message_id) <= ID_BYTES_MAX:
        raise wrong_field("id", f"an id is 1 to {ID_BYTES_MAX} bytes long, this one {len(message_id)}")
    return message_id
