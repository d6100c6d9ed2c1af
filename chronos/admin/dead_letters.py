"""Dead letters over HTTP: list, show, replay, discard.

Each request reads and writes a bounded part of the dead-letter topic; its answer says where the next request continues. A
replay is written before the marker that resolves its letters. Between the two a request may be lost, and is repeated: the
shard accepts only the first replay of a letter.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec
import structlog
from msgspec import UNSET

from chronos.admin.context import Call, Context
from chronos.admin.encoding import headers_out, id_text, text_or_base64
from chronos.admin.letter_scan import Found, Wanted
from chronos.admin.letters import Answer, LetterRequests, id_in, records_read, repeatable, wanted_of
from chronos.admin.messages import id_of
from chronos.admin.problems import invalid, wrong_field
from chronos.admin.schemas import (
    DeadLetter,
    DeadLetterCount,
    DeadLetterInfo,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLetterRefusal,
    DeadLetterResult,
    DeadLetterSelection,
    Destination,
    Fault,
)
from chronos.admin.validation import decode_body
from chronos.core.dead_letters import Letter, control_headers, marker_headers, own_headers, replay
from chronos.core.message import TARGET_KEY, Rejection
from chronos.core.size import memory_bytes
from chronos.core.timefmt import format_time
from chronos.errors import LogUnavailable
from chronos.ports import Outgoing

log = structlog.get_logger("chronos.http")

MARKER_RANGES = 500
"""Ranges of offsets in one marker: at most about 20 kB."""

FILTERS = ("target", "reason", "since", "until")

_decode_selection = msgspec.json.Decoder(DeadLetterSelection).decode


class DeadLetters:
    """The handlers under `/v1/dead-letters`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _requests(self) -> LetterRequests:
        return LetterRequests(self._context, self._context.dead_letters)

    @repeatable
    async def page(self, call: Call) -> Answer:
        """Dead letters of all partitions, the newest first."""
        query: DeadLetterQuery = call.query
        wanted = wanted_of(query, call.sender, id=id_in(query, call.sender), resolved=query.resolved)
        part = await self._requests.part(call, query, wanted, newest_first=True, limit=query.limit)
        letters = [_info(DeadLetterInfo, found.letter, found.resolution) for found in part.found]
        after = self._requests.after(call, query, part)
        return 200, DeadLetterPage(letters=letters, after=after, records=records_read(call, part))

    @repeatable
    async def get(self, call: Call) -> Answer:
        """The newest dead letter of a message."""
        message_id = id_of(call)
        letter, resolution = await self._requests.newest(
            call,
            Wanted(id=message_id, resolved=True, reach=call.sender.reach),
            kind="no-dead-letter",
            noun=f"dead letter of {id_text(message_id)}",
            older="older ones: GET /v1/dead-letters with `id` and `until`",
        )
        return 200, _whole(letter, resolution)

    @repeatable
    async def replay(self, call: Call) -> Answer:
        """Schedule dead letters again, due at once, and mark them as replayed."""
        return await self._resolve(call, "replayed", self._replayed)

    @repeatable
    async def discard(self, call: Call) -> Answer:
        """Mark dead letters as discarded."""
        return await self._resolve(call, "discarded", lambda _: ([], []))

    # --- resolve

    async def _resolve(
        self,
        call: Call,
        resolution: str,
        records_of: Callable[[Sequence[Letter]], tuple[list[Outgoing], list[tuple[Letter, Rejection]]]],
    ) -> Answer:
        """1. read a part, 2. write the replays, 3. write the markers of those that were not refused."""
        selection = decode_body(_decode_selection, DeadLetterSelection, call.body)
        _check(selection)
        context = self._context
        is_one = selection.id is not UNSET
        part = await self._requests.part(
            call,
            selection,
            wanted_of(selection, call.sender, id=id_in(selection, call.sender)),
            newest_first=is_one,
            limit=1 if is_one else selection.limit,
            whole=not (is_one or selection.dry_run),
        )
        after = None if is_one and part.found else self._requests.after(call, selection, part)
        refused: list[tuple[Letter, Rejection]] = []
        resolved = 0
        if part.found and not selection.dry_run:
            records, refused = await context.in_thread(records_of, [found.letter for found in part.found])
            if records:
                size_bytes = sum(memory_bytes(*record[1:3], None) for record in records)
                call.hold.grow(size_bytes)
                await context.appender.append(records, size_bytes)
            left = {(letter.partition, letter.offset) for letter, _ in refused}
            markers = _markers(context.dead_letters.topic, part.found, left, resolution)
            if markers:
                await context.appender.append(markers, 20_000 * len(markers))
            resolved = len(part.found) - len(refused)
            log.info("dead letters resolved", resolution=resolution, letters=resolved, refused=len(refused))
        counts = Counter((found.letter.reason, found.letter.target) for found in part.found)
        return 200, DeadLetterResult(
            matched=len(part.found),
            resolved=resolved,
            counts=[
                DeadLetterCount(reason=reason, topic=target, letters=count)
                for (reason, target), count in counts.most_common()
            ],
            refused=_refusals(refused),
            after=after,
            records=records_read(call, part),
        )

    def _replayed(self, letters: Sequence[Letter]) -> tuple[list[Outgoing], list[tuple[Letter, Rejection]]]:
        """The records that schedule the letters again, and the letters that cannot be, with the reasons."""
        context = self._context
        records: list[Outgoing] = []
        refused = []
        now_ms, bytes_max = context.now_ms(), context.node.config.topics.message_bytes_max
        for letter in letters:
            if letter.record is None:
                letter = self._read(letter)
            found = replay(letter, context.rules, context.delay_topic, bytes_max, now_ms)
            if isinstance(found, Rejection):
                refused.append((letter, found))
                continue
            shard, key, headers = found
            assert letter.record is not None
            records.append((context.delay_topic, key, letter.record.value, headers, shard))
        return records, refused

    def _read(self, letter: Letter) -> Letter:
        """The same letter as a whole."""
        whole = self._context.dead_letters.letter(letter.partition, letter.offset)
        if whole is None:
            raise LogUnavailable(f"the dead letter of {id_text(letter.id)} was deleted just now")
        return whole


def _markers(topic: str, part: Sequence[Found], left: set[tuple[int, int]], resolution: str) -> list[Outgoing]:
    """The markers for the letters of a part, without those in `left`; letters that follow each other are one range."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    in_order = sorted(part, key=lambda found: (found.letter.partition, found.letter.offset))
    for (partition, _, is_left), run in groupby(in_order, key=_run_without(left)):
        if not is_left:
            offsets = [found.letter.offset for found in run]
            ranges.setdefault(partition, []).append((offsets[0], offsets[-1]))
    markers: list[Outgoing] = []
    for partition, of_partition in ranges.items():
        rest = iter(of_partition)
        while some := list(islice(rest, MARKER_RANGES)):
            markers.append((topic, None, None, marker_headers(resolution, some), partition))
    return markers


def _run_without(left: set[tuple[int, int]]) -> Callable[[Found], tuple[int, int, bool]]:
    def key(found: Found) -> tuple[int, int, bool]:
        return found.letter.partition, found.run, (found.letter.partition, found.letter.offset) in left

    return key


def _refusals(refused: Sequence[tuple[Letter, Rejection]]) -> list[DeadLetterRefusal]:
    found: dict[str, DeadLetterRefusal] = {}
    for letter, rejection in refused:
        reason = rejection.reason.label
        if reason in found:
            found[reason].letters += 1
        else:
            found[reason] = DeadLetterRefusal(reason=reason, letters=1, id=id_text(letter.id), detail=rejection.detail)
    return list(found.values())


# --- requests


def _check(selection: DeadLetterSelection) -> None:
    """ProblemError with status 422 unless exactly one way of selection is used."""
    filters = [name for name in FILTERS if getattr(selection, name) is not UNSET]
    given = [name for name in ("id", "all") if getattr(selection, name) is not UNSET]
    if selection.all is False:
        raise wrong_field("all", "only true is valid")
    if len(given) + bool(filters) != 1:
        detail = "give `id`, or `all`, or at least one of `target`, `reason`, `since` and `until`"
        raise invalid(detail, [Fault(field=(given or filters or ["id"])[0], detail=detail)])


# --- answers


def _info(kind: type[Any], letter: Letter, resolution: str | None, **more: Any) -> Any:
    return kind(
        id=id_text(letter.id),
        reason=letter.reason,
        detail=letter.detail,
        topic=letter.target,
        dead_at=format_time(letter.timestamp_ms),
        due_at=None if letter.due_ms is None else format_time(letter.due_ms),
        attempt=letter.attempt,
        source=letter.source,
        partition=letter.partition,
        offset=letter.offset,
        value_bytes=letter.value_bytes,
        occurrence=letter.occurrence,
        replayed=UNSET if letter.replayed is None else letter.replayed,
        resolution=UNSET if resolution is None else resolution,
        **more,
    )


def _whole(letter: Letter, resolution: str | None) -> Any:
    assert letter.record is not None
    key, key_base64 = text_or_base64(control_headers(letter).get(TARGET_KEY))
    value, value_base64 = text_or_base64(letter.record.value)
    own = own_headers(letter)
    target = Destination(
        topic=letter.target,
        key=UNSET if key is None else key,
        key_base64=key_base64,
        headers=headers_out(own) if own else UNSET,
    )
    return _info(
        DeadLetter, letter, resolution, target=target, value_base64=value_base64,
        value=UNSET if value_base64 is not UNSET else value,
    )  # fmt: skip
