"""Messages over HTTP: schedule, find, list, cancel, reschedule, fire."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import UNSET
from msgspec.structs import asdict

from chronos.admin.context import Call, Context
from chronos.admin.encoding import BASE64_ID, headers_out, id_bytes, id_path, id_text, text_or_base64
from chronos.admin.problems import PROBLEM_JSON, ProblemError, wrong_field
from chronos.admin.scheduling import Planned, decode_body, new_time, plan_action, time_ms
from chronos.admin.schemas import Accepted, Destination, Done, Known, Message, Move, Page, PageQuery, ShardsQuery
from chronos.core.keys import ID_BYTES_MAX, OFFSET_MAX, generated_id, parse_generated_id, partition_of
from chronos.core.message import Entry, Reason
from chronos.core.query import Found, MessageRow, find, page
from chronos.core.timefmt import MS_MAX, format_time
from chronos.core.wheel import Position
from chronos.node.driver import ShardDriver
from chronos.ports import Appended

FIND_S = 1.0
"""How long a look-up waits for the shard to take in what the log held when it was asked (docs/how-to/cancel-and-change.md)."""

ACT_S = 5.0
"""How long an action waits to be applied."""


IN_LOOP_BYTES = 32_768
"""A body up to this size is checked in the event loop; larger ones beside it, so that they hold up nobody."""

PageKey = tuple[int, int, int]
"""`(place_ms, shard, offset)`: the order of a page over all shards."""

Part = tuple[list[tuple[PageKey, Known]], PageKey | None]
"""Messages of some shards in their order, and up to where they are all there are; None: to the end."""

T = TypeVar("T")

Answer = tuple[int, object] | web.Response

_decode_known = msgspec.json.Decoder(Known).decode
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
        _, found, sure = await self._look(call, message_id, deadline_s, pending_first=False)
        if found is None:
            raise ProblemError(
                404, "not-found", f"nothing is known of {id_text(message_id)}",
                hint="it was never scheduled, was refused (see the rejected topic), or its retention is over"
                if sure else "not everything in the log has been taken in yet: ask again",
            )  # fmt: skip
        return 200, found

    async def _look(
        self, call: Call, message_id: bytes, deadline_s: float, *, pending_first: bool
    ) -> tuple[int, Known | None, bool]:
        """`(shard, what is known, whether that is all there was to know)`: at home first, then, if ids may live
        anywhere, in all other shards."""
        query: ShardsQuery = call.query
        among = set(self._context.others.asked(query.shards))
        home, others = self._shards_of(message_id)
        found, sure = None, True
        if home in among:
            found, sure = await self._look_in([home], message_id, deadline_s)
            if found is not None and (found.state == "pending" or not pending_first):
                return home, found, sure
        others = [shard for shard in others if shard in among]
        if others:
            there, sure_there = await self._look_in(others, message_id, deadline_s)
            sure &= sure_there
            if there is not None and (found is None or there.state == "pending"):
                return there.shard, there, sure
        return home, found, sure

    async def _look_in(self, shards: list[int], message_id: bytes, deadline_s: float) -> tuple[Known | None, bool]:
        """What these shards know of it, the one where it is pending first; and whether that is all they ever will."""
        context = self._context
        held, missing = context.others.split(shards)
        groups = context.others.groups(missing)
        caught_up, answers = await asyncio.gather(
            self._caught_up(held, deadline_s),
            asyncio.gather(*(context.others.ask(group, "GET", id_path(message_id), {}) for group in groups)),
        )
        found = await context.in_thread(lambda: [self._known(shard, message_id) for shard in held])
        for status, body in answers:
            if status == 200:
                found.append(_decode_known(body))
            elif status != 404:
                raise ProblemError(503, "no-holder", f"another node answered {status} for shards {missing}")
        there = sorted((one for one in found if one is not None), key=lambda one: one.state != "pending")
        return there[0] if there else None, caught_up

    async def _caught_up(self, shards: list[int], deadline_s: float) -> bool:
        return all(await asyncio.gather(*(self._context.caught_up(shard, deadline_s) for shard in shards)))

    def _known(self, shard: int, message_id: bytes) -> Known | None:
        found = self._find(self._context.shards[shard], message_id)
        return None if found is None else known(found.id, shard, found.offset, found.place_ms, found.entry, found)

    def _shards_of(self, message_id: bytes) -> tuple[int, list[int]]:
        """Where the id belongs, and where else it may be."""
        count = len(self._context.shards)
        named = parse_generated_id(message_id, count)
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
        after = None if query.after is UNSET else _page_key(query.after)
        target = None if query.target is UNSET else query.target

        context, others = self._context, self._context.others
        held, missing = others.split(others.asked(query.shards))

        def pages() -> list[Part]:
            return [
                _part(
                    number,
                    page(
                        context.shards[number].store, context.shards[number].state, number,
                        after=_after(after, number), due_from_ms=due_from_ms, due_to_ms=due_to_ms, target=target,
                        limit=query.limit,
                    ),
                )
                for number in held
            ]  # fmt: skip

        parts = await context.in_thread(pages)
        for _, found in await others.gather(missing, "/v1/messages", asdict(query), Page):
            rows = [((time_ms(one.planned_at), one.shard, one.offset), one) for one in found.messages]
            parts.append((rows, None if found.after is None else _page_key(found.after)))
        messages, following = merge(parts, query.limit)
        return 200, Page(messages=messages, after=None if following is None else "-".join(map(str, following)))

    # --- act

    async def cancel(self, call: Call) -> Answer:
        """Cancel a message."""
        return await self._act(call, "cancel", "cancelled", None)

    async def fire(self, call: Call) -> Answer:
        """Deliver a message now."""
        return await self._act(call, "fire-now", "fired", None)

    async def reschedule(self, call: Call) -> Answer:
        """Give a message a new time."""
        move = decode_body(_decode_move, call.body)
        return await self._act(call, "reschedule", "rescheduled", new_time(move))

    async def _act(self, call: Call, verb: str, success: str, time: tuple[str, bytes] | None) -> Answer:
        """1. find the shard, 2. write the action, 3. wait until it is applied, 4. say what became of it.

        From 2 on it is done by a node that holds the shard: only there it shows what became of it.
        """
        context = self._context
        query: ShardsQuery = call.query
        message_id = _id_of(call.request)
        loop = asyncio.get_running_loop()
        shard, others = self._shards_of(message_id)
        if query.shards is not UNSET:
            (shard, *_) = context.others.asked(query.shards)
        elif others:
            shard, _, _ = await self._look(call, message_id, loop.time() + FIND_S, pending_first=True)
        if not context.others.holds(shard):
            path = id_path(message_id) + ("/fire" if verb == "fire-now" else "")
            status, body = await context.others.ask([shard], call.request.method, path, {}, call.body or None)
            kind = "application/json" if status < 400 else PROBLEM_JSON
            return web.Response(status=status, body=body, content_type=kind)
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
            done.result, done.detail = "refused", Reason(reason).label
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
        id=planned.id or generated_id(appended.partition, due_ms, appended.offset).decode(),
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


def merge(
    parts: Sequence[tuple[list[tuple[PageKey, T]], PageKey | None]], limit: int
) -> tuple[list[T], PageKey | None]:
    """One page of many: in the order of `PageKey`, only as far as every part's answer is complete.

    The second value is where the next page begins; None when there is no more.
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


def _part(shard: int, found: tuple[list[MessageRow], Position | None]) -> Part:
    rows, through = found
    return (
        [
            ((row.place_ms, shard, row.offset), known(row.id, shard, row.offset, row.place_ms, row.entry, None))
            for row in rows
        ],
        None if through is None else (through[0], shard, through[1]),
    )


def _after(place: PageKey | None, shard: int) -> Position | None:
    """Where a shard's own page begins, behind a place among all shards."""
    if place is None:
        return None
    due_ms, at, offset = place
    if shard == at:
        return due_ms, offset
    return (due_ms, OFFSET_MAX) if shard < at else (due_ms - 1, OFFSET_MAX)


def _page_key(text: str) -> PageKey:
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
