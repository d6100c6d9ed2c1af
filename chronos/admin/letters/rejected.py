"""Rejected records over HTTP: list, show and count.

A rejected record is a record of the delay topic that its shard refused; one that was only ignored,
or repeated an earlier call, is not among them. It is kept in the rejected topic, and nothing
replays it. Each request reads a bounded part of that topic; the answer to a list or a count says
where the next request continues."""

from collections import Counter
from typing import Any

from msgspec import UNSET, UnsetType

from chronos.admin.http.access import check_headers
from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import (
    header_conditions,
    headers_out,
    id_text,
    text_or_base64,
    to_bytes,
)
from chronos.admin.http.problems import converted
from chronos.admin.http.schemas import (
    RejectedCount,
    RejectedCountQuery,
    RejectedCounts,
    RejectedInfo,
    RejectedPage,
    RejectedQuery,
    RejectedRecord,
)
from chronos.admin.http.tokens import Sender
from chronos.admin.letters.requests import (
    Answer,
    LetterRequests,
    id_in,
    letter_info,
    records_read,
    repeatable,
    wanted_of,
)
from chronos.admin.letters.scan import Wanted
from chronos.admin.messages.messages import id_of
from chronos.core.letters import (
    Letter,
    producer_headers,
    source_of,
)
from chronos.core.timefmt import format_time


class RejectedRecords:
    """The handlers under `/v1/rejected`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _requests(self) -> LetterRequests:
        return LetterRequests(self._context, self._context.rejected)

    @repeatable
    async def page(self, call: Call) -> Answer:
        """Rejected records of all partitions, the newest first."""
        query: RejectedQuery = call.query
        message_id = id_in(query, call.sender)
        wanted = wanted_of(
            query,
            call.sender,
            id=message_id,
            origin=self._origin(message_id),
            source=_given(query.source),
            headers=_headers_in(query, call.sender),
        )
        part = await self._requests.part(call, query, wanted, newest_first=True, limit=query.limit)
        found = [_rejected_info(RejectedInfo, each.letter) for each in part.found]
        after = self._requests.after(call, query, part)
        return 200, RejectedPage(rejected=found, after=after, records=records_read(call, part))

    @repeatable
    async def get(self, call: Call) -> Answer:
        """The newest rejected record of an id."""
        message_id = id_of(call)
        letter, _ = await self._requests.newest(
            call,
            Wanted(id=message_id, origin=self._origin(message_id), reach=call.sender.reach),
            kind="no-rejection",
            noun=f"rejected record of {id_text(message_id)}",
            older="older ones: GET /v1/rejected with `id` and `until`",
        )
        assert letter.record is not None
        value, value_base64 = text_or_base64(letter.record.value)
        return 200, _rejected_info(
            RejectedRecord,
            letter,
            headers=headers_out(producer_headers(letter.record)),
            value_base64=value_base64,
            value=UNSET if value_base64 is not UNSET else value,
        )

    @repeatable
    async def counts(self, call: Call) -> Answer:
        """The number of rejected records by reason, target and source, in one part."""
        query: RejectedCountQuery = call.query
        wanted = wanted_of(
            query,
            call.sender,
            source=_given(query.source),
            headers=_headers_in(query, call.sender),
            counted_header=_given(query.by_header),
        )
        part = await self._requests.part(call, query, wanted, newest_first=False, limit=query.limit)
        counts = Counter(
            (one.letter.reason, one.letter.target, one.letter.source.rpartition("/")[0], one.header)
            for one in part.found
        )
        after = self._requests.after(call, query, part)
        return 200, RejectedCounts(
            counts=[
                RejectedCount(
                    reason=reason,
                    topic=target,
                    source=source,
                    header=UNSET if query.by_header is UNSET else header,
                    records=count,
                )
                for (reason, target, source, header), count in counts.most_common()
            ],
            after=after,
            records=records_read(call, part),
        )

    def _origin(self, message_id: bytes | None) -> str | None:
        context = self._context
        return (
            None
            if message_id is None
            else source_of(message_id, len(context.shards), context.delay_topic)
        )


def _given(text: str | UnsetType) -> str | None:
    return None if text is UNSET else text


def _headers_in(
    query: RejectedQuery | RejectedCountQuery, sender: Sender
) -> tuple[tuple[str, bytes], ...]:
    """The headers that a request asks for. ProblemError with status 403 if its sender may not see
    headers."""
    conditions = header_conditions(query.header)
    if conditions or (isinstance(query, RejectedCountQuery) and query.by_header is not UNSET):
        check_headers(sender)
    return tuple((name, converted("header", to_bytes, value)) for name, value in conditions)


def _rejected_info(kind: type[Any], letter: Letter, **more: Any) -> Any:
    return letter_info(kind, letter, rejected_at=format_time(letter.timestamp_ms), **more)
