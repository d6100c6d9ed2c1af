"""Requests about dead letters, without any I/O; and the call that replays, discards or counts many
of them, part by part.

A dead letter is named by its position, which is the partition and offset of its record, or by the
id of its message, which stands for the newest dead letter of this message; in a list, for all of
them. The clients send the requests."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlencode

import msgspec

from chronos.client.models import (
    DeadLetter,
    DeadLetterCount,
    DeadLetterRefusal,
    DeadLetterTotals,
    WholeDeadLetter,
)
from chronos.client.requests import HttpRequest, Steps, Time, id_path, id_text, time_ms

Verb = Literal["replay", "discard"]

PAGE_LETTERS = 1_000
"""Dead letters of one page, and of one part of a replay."""

COUNT_LETTERS = 10_000
"""Dead letters of one part of a count."""

READ_S = 20.0
"""How long the service may take for one part: it reads for 2 s, and waits for the log."""


Position = tuple[int, int]
"""Partition and offset of a dead letter in its topic."""

POSITIONS_MAX = 1_000
"""Positions in one request."""

Progress = Callable[[DeadLetterTotals], None]
"""Called after each part with the totals so far."""

_whole = msgspec.json.Decoder(WholeDeadLetter).decode


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters, of those that are not resolved.

    `target`        only messages for this topic, or for those that match a pattern such as `mail*`
    `reason`        only those with this reason, such as `target-missing`
    `since`         only those written at or after this time
    `until`         only those written before this time
    """

    target: str | None
    reason: str | None
    since: Time | None
    until: Time | None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters, the newest first."""

    letters: list[DeadLetter]
    after: str | None
    """Page key of the next page; None on the last page."""
    records: int
    """Records of the dead-letter topic that were read."""


class DeadLetterPart(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one part of a replay, of a discard or of a count."""

    matched: int
    resolved: int
    counts: list[DeadLetterCount]
    refused: list[DeadLetterRefusal]
    after: str | None
    records: int


def page(
    given: DeadLetterFilter,
    *,
    id: str | bytes | None = None,
    resolved: bool = False,
    limit: int = PAGE_LETTERS,
    after: str | None = None,
) -> HttpRequest:
    """Some dead letters, from the place `after` on."""
    query: dict[str, Any] = {
        **fields(given),
        "limit": limit,
        "resolved": "true" if resolved else "false",
    }
    if id is not None:
        query["id"] = id_text(id)
    if after is not None:
        query["after"] = after
    return HttpRequest(
        method="GET", path=f"/v1/dead-letters?{urlencode(query)}", decode=_page, wait_s=READ_S
    )


def get(id: str | bytes) -> HttpRequest:
    """The newest dead letter of a message."""
    return HttpRequest(
        method="GET", path=f"/v1/dead-letters/{id_path(id)}", decode=_whole, wait_s=READ_S
    )


def at(position: Position) -> HttpRequest:
    """The dead letter at a position."""
    path = f"/v1/dead-letters/at/{position_text(position)}"
    return HttpRequest(method="GET", path=path, decode=_whole, wait_s=READ_S)


def position_text(position: Position) -> str:
    """The position in the form of the HTTP interface."""
    partition, offset = position
    return f"{partition}:{offset}"


def resolve(
    verb: Verb,
    given: DeadLetterFilter,
    *,
    id: str | bytes | None = None,
    positions: Iterable[Position] = (),
    all: bool = False,
    dry_run: bool = False,
    anyway: bool = False,
    limit: int | None = None,
    after: str | None = None,
) -> HttpRequest:
    """Replay or discard one part, or count it. Repeating it does what sending it once does."""
    filter_, places = fields(given), [position_text(each) for each in positions]
    if (id is not None) + bool(places) + all + bool(filter_) != 1:
        raise ValueError(
            "give an id, or positions, or a filter (target, reason, since, until), or all=True"
        )
    if len(places) > POSITIONS_MAX:
        raise ValueError(f"{len(places)} positions: at most {POSITIONS_MAX} in one call")
    body: dict[str, Any] = {
        **filter_,
        "limit": (COUNT_LETTERS if dry_run else PAGE_LETTERS) if limit is None else limit,
    }
    if id is not None:
        body["id"] = id_text(id)
    if places:
        body["positions"] = places
    if all:
        body["all"] = True
    if dry_run:
        body["dry_run"] = True
    if anyway:
        body["anyway"] = True
    if after is not None:
        body["after"] = after
    path = f"/v1/dead-letters/{quote(verb)}"
    return HttpRequest(
        method="POST", path=path, body=msgspec.json.encode(body), decode=_part, wait_s=READ_S
    )


def resolve_all(
    verb: Verb,
    given: DeadLetterFilter,
    *,
    id: str | bytes | None = None,
    positions: Iterable[Position] = (),
    all: bool = False,
    dry_run: bool = False,
    anyway: bool = False,
    rate: float | None = None,
    progress: Progress | None = None,
) -> Steps[DeadLetterTotals]:
    """Replay, discard or count part by part until everything that was there at the beginning was
    read.

    `rate`: at most this many dead letters a second. `anyway`: also those whose cause is still
    there."""
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"rate is {rate:g}: it must be a number greater than 0")
    limit = None if rate is None or dry_run else max(1, min(PAGE_LETTERS, int(rate)))
    totals, after, places = DeadLetterTotals(), None, tuple(positions)
    while True:
        part: DeadLetterPart = yield resolve(
            verb,
            given,
            id=id,
            positions=places,
            all=all,
            dry_run=dry_run,
            anyway=anyway,
            limit=limit,
            after=after,
        )
        totals = totals.plus(part.matched, part.resolved, part.records, part.counts, part.refused)
        if progress is not None:
            progress(totals)
        after = part.after
        if after is None:
            return totals
        if rate is not None and part.resolved:
            yield part.resolved / rate


def fields(given: DeadLetterFilter) -> dict[str, Any]:
    """The filter in the form of the HTTP interface; ValueError for one that cannot be sent."""
    found: dict[str, Any] = {name: given.get(name) for name in ("target", "reason")}
    for name in ("since", "until"):
        time: Any = given.get(name)
        found[name] = None if time is None else time_ms(time)
    if (
        found["since"] is not None
        and found["until"] is not None
        and found["since"] > found["until"]
    ):
        raise ValueError("until lies before since, so that no dead letter is in between")
    return {name: value for name, value in found.items() if value is not None}


_page = msgspec.json.Decoder(DeadLetterPage).decode
_part = msgspec.json.Decoder(DeadLetterPart).decode
