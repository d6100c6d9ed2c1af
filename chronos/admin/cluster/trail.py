"""Reads the audit trail from its end, in bounded parts; `chronos/admin/http/audit.py` writes it.

Times in the trail are those of the nodes, each by its own clock, so entries of several nodes are
only about in order."""

import time
from collections.abc import Sequence
from contextlib import closing

import msgspec
from msgspec import UNSET

from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import begin_again
from chronos.admin.http.problems import ProblemError, converted, wrong_field
from chronos.admin.http.schemas import AuditEntry, AuditPage, AuditQuery
from chronos.admin.messages.scheduling import time_ms
from chronos.core.timefmt import format_time
from chronos.node.opening import open_audit_trail
from chronos.ports import AuditTrail

PART_S = 2.0
"""How long one page may read; at least one entry is read."""

DISORDER_MS = 60_000
"""How far the clocks of the nodes may differ: so far before `since` is still looked for entries."""

_decode = msgspec.json.Decoder(AuditEntry).decode

Part = tuple[list[AuditEntry], Sequence[int] | None, int]
"""The entries of a page, the position behind them, None if everything was read, and the number of
entries that were read."""


class Period(msgspec.Struct, frozen=True):
    """Times as entries have them, which order like text."""

    since: str
    until: str | None
    begin: str
    """No entry before this one is in the period."""


class AuditReads:
    """The handler of `/v1/audit`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(self, call: Call) -> tuple[int, object]:
        """Entries of the trail, the newest first."""
        query: AuditQuery = call.query
        context = self._context
        trail = open_audit_trail(context.node.config, context.node.log)
        if trail is None:
            raise ProblemError(
                501,
                "no-trail",
                "audit.to is log: the trail is in the log lines of `chronos.audit` of each node",
                hint="set audit.to to file or to topic to read it here",
            )
        period = _period(query)
        behind = None if query.after is UNSET else context.cursors.open(call, query, query.after)
        try:
            found, position, read = await context.in_thread(_part, trail, query, period, behind)
        except LookupError:
            raise begin_again() from None
        return 200, AuditPage(
            kept_in="file" if context.node.config.audit.to == "file" else "topic",
            entries=found,
            after=None if position is None else context.cursors.seal(call, query, position),
            read=read,
        )


def _period(query: AuditQuery) -> Period:
    since_ms = 0 if query.since is UNSET else converted("since", time_ms, query.since)
    until_ms = None if query.until is UNSET else converted("until", time_ms, query.until)
    if until_ms is not None and since_ms > until_ms:
        raise wrong_field("until", "lies before since, so that nothing is in between")
    return Period(
        since=format_time(since_ms),
        until=None if until_ms is None else format_time(until_ms),
        begin=format_time(max(0, since_ms - DISORDER_MS)),
    )


def _part(
    trail: AuditTrail, query: AuditQuery, period: Period, behind: Sequence[int] | None
) -> Part:
    """Read until the page is full, the time is over, or the period is."""
    ends_s = time.monotonic() + PART_S
    found: list[AuditEntry] = []
    position = behind
    read = 0
    with closing(trail.newest(behind)) as entries:
        for data, position in entries:
            read += 1
            entry = _entry(data)
            if entry is not None and entry.time < period.begin:
                return found, None, read
            if entry is not None and _is_wanted(entry, query, period):
                found.append(entry)
            if len(found) == query.limit or time.monotonic() >= ends_s:
                return found, position, read
    return found, None, read


def _entry(data: bytes) -> AuditEntry | None:
    """The entry; None for a line that a full disk cut short, or a record of another program."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_wanted(entry: AuditEntry, query: AuditQuery, period: Period) -> bool:
    return (
        query.token in (UNSET, entry.token)
        and query.action in (UNSET, entry.verb)
        and query.phase in (UNSET, entry.phase)
        and (query.id is UNSET or query.id in entry.ids)
        and (not query.refused or entry.status >= 400)
        and period.since <= entry.time
        and (period.until is None or entry.time < period.until)
    )
