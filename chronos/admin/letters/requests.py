"""The common part of the handlers of dead letters and of rejected records: the filter of a request,
the reading of one bounded part of the topic, and the page key of the rest.

The handlers are in `dead_letters` and `rejected`; the topics are read in `scan`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import UNSET

from chronos.admin.http.access import check_id, check_targets
from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import id_text, whole_id_bytes
from chronos.admin.http.problems import ProblemError, converted, wrong_field
from chronos.admin.http.schemas import (
    DeadLetterCountQuery,
    DeadLetterQuery,
    DeadLetterSelection,
    RejectedCountQuery,
    RejectedQuery,
)
from chronos.admin.http.tokens import Sender
from chronos.admin.letters.scan import LetterTopic, ScanPart, Wanted, Window
from chronos.admin.messages.scheduling import time_ms
from chronos.core.keys import OFFSET_MAX
from chronos.core.letters import Letter
from chronos.core.message import REASON_LABELS
from chronos.errors import LogUnavailable

PART_BYTES = 8_000_000
"""Bytes of the letters that one request reads whole, at least one letter."""

FIND_S = 5.0
"""How long the newest letter of an id is looked for."""

Answer = tuple[int, object]
Selection = DeadLetterCountQuery | DeadLetterSelection | RejectedCountQuery | RejectedQuery
"""The list of dead letters extends the query of its counts."""

Handlers = TypeVar("Handlers")


def repeatable(
    handler: Callable[[Handlers, Call], Awaitable[Answer]],
) -> Callable[[Handlers, Call], Awaitable[Answer]]:
    """Return the handler with another answer for an unreachable log: it says that the request may
    be repeated."""

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
        self,
        call: Call,
        query: Selection,
        wanted: Wanted,
        *,
        newest_first: bool,
        limit: int,
        whole: bool = False,
    ) -> ScanPart:
        """Read one part, from the page key of the request on, or from the beginning without one."""
        topic = self._topic
        numbers = (
            None if query.after is UNSET else self._context.cursors.open(call, query, query.after)
        )

        def scan() -> ScanPart:
            windows = topic.windows(wanted) if numbers is None else _windows(numbers)
            return topic.scan(
                windows,
                wanted,
                newest_first=newest_first,
                limit=limit,
                bytes_max=PART_BYTES if whole else None,
            )

        return await self._context.in_thread(scan)

    def after(self, call: Call, query: Selection, part: ScanPart) -> str | None:
        """Return the page key of the rest; None if everything was read."""
        if part.windows is None:
            return None
        return self._context.cursors.seal(
            call, query, [offset for window in part.windows for offset in window]
        )

    async def newest(
        self, call: Call, wanted: Wanted, *, kind: str, noun: str, older: str
    ) -> tuple[Letter, str | None]:
        """The newest letter, whole, and its resolution.

        ProblemError with status 404 if there is none, or none is found in FIND_S. `kind`, `noun`:
        of the problem. `older`: how older ones are found."""
        found, read, is_all = await self._first(wanted)
        if found is not None:
            return found
        raise ProblemError(
            404,
            kind,
            (
                f"the newest {'' if call.sender.is_limited else f'{read} '}offsets of "
                f"{self._topic.topic} hold no {noun}"
            ),
            hint=None if is_all else older,
        )

    async def at(self, call: Call, position: tuple[int, int]) -> tuple[Letter, str | None]:
        """The letter at a position, whole, and its resolution.

        ProblemError with status 404 if there is none. LogUnavailable if the markers behind it were
        not all read in FIND_S: the next request goes on from there."""
        wanted = Wanted(positions=frozenset((position,)), resolved=True, reach=call.sender.reach)
        found, _, is_all = await self._first(wanted)
        if found is not None:
            return found
        if not is_all:
            raise LogUnavailable(f"the markers of {self._topic.topic} are being read: ask again")
        raise ProblemError(
            404,
            "no-dead-letter",
            f"{self._topic.topic} has no dead letter at {position[0]}:{position[1]}",
        )

    async def _first(self, wanted: Wanted) -> tuple[tuple[Letter, str | None] | None, int, bool]:
        """The newest letter, whole, with its resolution, of those that FIND_S suffices to read; how
        many offsets were read, and whether these were all."""
        topic = self._topic
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FIND_S
        rest: list[Window] | None = await self._context.in_thread(topic.windows, wanted)
        offsets = sum(end - first for first, end in rest or ())

        def scan(windows: list[Window]) -> ScanPart:
            return topic.scan(windows, wanted, newest_first=True, limit=1)

        while rest is not None and loop.time() < deadline_s:
            part: ScanPart = await self._context.in_thread(scan, rest)
            rest = part.windows
            for found in part.found:
                letter = await self._context.in_thread(
                    topic.letter, found.letter.partition, found.letter.offset
                )
                if letter is not None:
                    return (letter, found.resolution), offsets, rest is None
        return None, offsets - sum(end - first for first, end in rest or ()), rest is None


def id_in(
    query: DeadLetterQuery | DeadLetterSelection | RejectedQuery, sender: Sender
) -> bytes | None:
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
        check_targets(sender, query.target)
    if query.reason is not UNSET:
        converted("reason", _known_reason, query.reason)
    for name in ("since", "until"):
        value = getattr(query, name)
        if value is not UNSET:
            fields[f"{name}_ms"] = converted(name, time_ms, value)
    if "until_ms" in fields and fields.get("since_ms", 0) > fields["until_ms"]:
        raise wrong_field("until", "lies before since, so that nothing is in between")
    return Wanted(
        target=None if query.target is UNSET else query.target,
        reason=None if query.reason is UNSET else query.reason,
        reach=sender.reach,
        **fields,
        **more,
    )


def _known_reason(text: str) -> str:
    """The reason; ValueError, with a text for users, for one that no letter can have.

    A new reason comes with new rules, so no node writes it before all of them know it."""
    if text not in REASON_LABELS:
        raise ValueError(f"{text[:80]!r} is not a reason; these are: {', '.join(REASON_LABELS)}")
    return text


def records_read(call: Call, part: ScanPart) -> int:
    """The records that were read: for a sender with limits only those that it may know of."""
    return len(part.found) if call.sender.is_limited else part.records


def letter_info(kind: type[Any], letter: Letter, **more: Any) -> Any:
    """What is shown of every letter, as a `kind` with `more` fields."""
    return kind(
        id=id_text(letter.id),
        reason=letter.reason,
        detail=letter.detail,
        topic=letter.target,
        source=letter.source,
        partition=letter.partition,
        offset=letter.offset,
        value_bytes=letter.value_bytes,
        **more,
    )


def _windows(numbers: list[int]) -> list[Window]:
    return [
        (min(first, OFFSET_MAX), min(end, OFFSET_MAX))
        for first, end in zip(numbers[::2], numbers[1::2], strict=False)
    ]
