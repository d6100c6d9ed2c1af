"""What the requests about dead letters and about rejected records have in common.

Each request reads a bounded part of its topic; its answer says where the next request continues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import UNSET

from chronos.admin.access import check_id, check_target
from chronos.admin.context import Call, Context
from chronos.admin.encoding import whole_id_bytes
from chronos.admin.letter_scan import LetterTopic, Part, Wanted, Window
from chronos.admin.problems import ProblemError, converted
from chronos.admin.scheduling import time_ms
from chronos.admin.schemas import (
    DeadLetterQuery,
    DeadLetterSelection,
    RejectedCountQuery,
    RejectedQuery,
)
from chronos.admin.tokens import Sender
from chronos.core.dead_letters import Letter
from chronos.core.keys import OFFSET_MAX
from chronos.errors import LogUnavailable

PART_BYTES = 8_000_000
"""Bytes of the letters that one request reads whole, at least one letter."""

FIND_S = 5.0
"""How long the newest letter of an id is looked for."""

Answer = tuple[int, object]
Selection = DeadLetterQuery | DeadLetterSelection | RejectedQuery | RejectedCountQuery
Handlers = TypeVar("Handlers")


def repeatable(
    handler: Callable[[Handlers, Call], Awaitable[Answer]],
) -> Callable[[Handlers, Call], Awaitable[Answer]]:
    """The handler, whose answer while the log does not answer says that its request may be repeated."""

    async def handle(self: Handlers, call: Call) -> Answer:
        try:
            return await handler(self, call)
        except LogUnavailable as error:
            raise ProblemError(
                503, "unavailable", str(error), hint="repeat the request: nothing is replayed twice"
            ) from None

    return handle


class LetterRequests:
    """Reads one of the two topics for requests."""

    def __init__(self, context: Context, topic: LetterTopic) -> None:
        self._context = context
        self._topic = topic

    async def part(
        self, call: Call, query: Selection, wanted: Wanted, *, newest_first: bool, limit: int, whole: bool = False
    ) -> Part:
        """One part, from where the request says, or of everything that is there now."""
        topic = self._topic
        numbers = None if query.after is UNSET else self._context.cursors.open(call, query, query.after)

        def scan() -> Part:
            windows = topic.windows(wanted.since_ms, wanted.until_ms) if numbers is None else _windows(numbers)
            return topic.scan(
                windows, wanted, newest_first=newest_first, limit=limit, bytes_max=PART_BYTES if whole else None
            )

        return await self._context.in_thread(scan)

    def after(self, call: Call, query: Selection, part: Part) -> str | None:
        """The page key of what is still to be read."""
        if part.windows is None:
            return None
        return self._context.cursors.seal(call, query, [offset for window in part.windows for offset in window])

    async def newest(
        self, call: Call, wanted: Wanted, *, kind: str, noun: str, older: str
    ) -> tuple[Letter, str | None]:
        """The newest letter, whole, and its resolution.

        ProblemError with status 404 if there is none, or none is found in FIND_S. `kind`, `noun`: of the problem. `older`: how older
        ones are found.
        """
        topic = self._topic
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FIND_S
        rest: list[Window] | None = await self._context.in_thread(topic.windows)
        offsets = sum(end - first for first, end in rest or ())

        def scan(windows: list[Window]) -> Part:
            return topic.scan(windows, wanted, newest_first=True, limit=1)

        while rest is not None and loop.time() < deadline_s:
            part: Part = await self._context.in_thread(scan, rest)
            rest = part.windows
            for found in part.found:
                letter = await self._context.in_thread(topic.letter, found.letter.partition, found.letter.offset)
                if letter is not None:
                    return letter, found.resolution
        read = f"{offsets - sum(end - first for first, end in rest or ())} "
        raise ProblemError(
            404, kind, f"the newest {'' if call.sender.is_limited else read}offsets of {topic.topic} hold no {noun}",
            hint=None if rest is None else older,
        )  # fmt: skip


def id_in(query: DeadLetterQuery | DeadLetterSelection | RejectedQuery, sender: Sender) -> bytes | None:
    """The id that a request gives; ProblemError with status 403 if it is not for the sender."""
    if query.id is UNSET:
        return None
    message_id = converted("id", whole_id_bytes, query.id)
    check_id(sender, message_id)
    return message_id


def wanted_of(query: Selection, sender: Sender, **more: Any) -> Wanted:
    """The letters that a request selects, all of them the sender's own."""
    fields: dict[str, Any] = {}
    if query.target is not UNSET:
        check_target(sender, query.target)
    for name in ("since", "until"):
        value = getattr(query, name)
        if value is not UNSET:
            fields[f"{name}_ms"] = converted(name, time_ms, value)
    return Wanted(
        target=None if query.target is UNSET else query.target,
        reason=None if query.reason is UNSET else query.reason,
        reach=sender.reach,
        **fields,
        **more,
    )


def records_read(call: Call, part: Part) -> int:
    """The records that were read: for a sender with limits only those that it may know of."""
    return len(part.found) if call.sender.is_limited else part.records


def _windows(numbers: list[int]) -> list[Window]:
    return [
        (min(first, OFFSET_MAX), min(end, OFFSET_MAX)) for first, end in zip(numbers[::2], numbers[1::2], strict=False)
    ]
